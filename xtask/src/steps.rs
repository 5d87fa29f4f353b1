//! The steps, each defined once. `.ci/run` and `cargo xtask check` run them all, in this order: the quick ones first.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;

use crate::{Outcome, refused, tidy};

/// One thing that must pass.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Path) -> Outcome,
}

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u32 = 25;

pub(crate) const STEPS: &[Step] = &[
    Step { name: "tidy", what: "house rules on files, functions, names and tags", run: tidy::run },
    Step { name: "fmt", what: "rustfmt has nothing to change", run: fmt },
    Step { name: "clippy", what: "no warning, and nothing from the ban list in clippy.toml", run: clippy },
    Step { name: "refused", what: "what breaks a rule of a signature does not compile", run: refused::run },
    Step { name: "deny", what: "licences, bans and sources of dependencies (deny.toml)", run: deny },
    Step { name: "docs", what: "the documentation builds and no link in it is broken", run: docs },
    Step { name: "test", what: "the README's test command", run: test },
    Step {
        name: "shuttle",
        what: "index, cache, log, gc, catalog and waits under chosen interleavings",
        run: shuttle,
    },
    Step { name: "miri", what: "the index and the formats, interpreted: no undefined behaviour", run: miri },
    Step { name: "tsan", what: "the tests of concurrency under ThreadSanitizer: no data race", run: tsan },
    Step { name: "fuzz", what: "every fuzz target for a few seconds", run: fuzz },
    Step { name: "clients", what: "Redis clients from outside against the server", run: clients },
];

/// Not part of CI: it takes an hour or more.
pub(crate) const SOAK: Step = Step {
    name: "soak",
    what: "kills, crashes, faults and damage at full length, and an hour of mixed load; prints what each loop has seen",
    run: soak,
};

fn fmt(_: &Path) -> Outcome {
    all(&[cargo(&["fmt", "--all", "--check"])])
}

fn clippy(_: &Path) -> Outcome {
    all(&[cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])])
}

fn deny(_: &Path) -> Outcome {
    // The advisory database is fetched from elsewhere, so `cargo deny check advisories` is left to whoever is online.
    all(&[cargo(&["deny", "--workspace", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"])])
}

fn docs(_: &Path) -> Outcome {
    let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings -D rustdoc::broken_intra_doc_links");
    all(&[doc])
}

/// What the README tells people to run. It says so in a block of its own, which is read from there.
fn test(root: &Path) -> Outcome {
    let Ok(readme) = std::fs::read_to_string(root.join("README.md")) else {
        return Outcome::Failed("README.md cannot be read".into());
    };
    let Some(line) = readme.lines().find(|line| line.starts_with("cargo test")) else {
        return Outcome::Failed("README.md has no line that begins with `cargo test`".into());
    };
    let words: Vec<&str> = line.split('#').next().unwrap_or(line).split_whitespace().skip(1).collect();
    all(&[cargo(&words)])
}

/// The tests whose loops ask `hedgerow_sim::rounds` how long to go on, one after the other; then an hour of mixed load on more rows than the fast tier holds.
fn soak(_: &Path) -> Outcome {
    let mut of_packages = Vec::new();
    for package in ["hedgerow", "hedgerow-tool"] {
        let mut test = cargo(&["test", "-p", package, "--test", "integration", "--"]);
        test.args(["--include-ignored", "--nocapture", "--test-threads=1"]).env("HEDGEROW_SOAK", "1");
        of_packages.push(test);
    }
    let mut load = cargo(&["run", "--release", "-p", "hedgerow", "--example", "mixed_load", "--"]);
    load.args(["dir=target/mixed-load", "seconds=3600"]);
    of_packages.push(load);
    all(&of_packages)
}

fn shuttle(_: &Path) -> Outcome {
    let mut of_packages = Vec::new();
    for package in ["hedgerow", "hedgerow-kvssd"] {
        let mut test = cargo(&["test", "-p", package, "--lib", "--target-dir", "target/shuttle", "shuttle"]);
        test.env("RUSTFLAGS", "--cfg shuttle");
        of_packages.push(test);
    }
    all(&of_packages)
}

/// What a step says that needs components of a nightly toolchain, where one of them is missing.
fn skipped_without_nightly(components: &[&str]) -> Option<Outcome> {
    let mut list = Command::new("rustup");
    list.args(["component", "list", "--installed", "--toolchain", "nightly"]);
    let installed = match list.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => {
            return Some(Outcome::Skipped(
                "there is no nightly toolchain (`rustup toolchain install nightly`)".into(),
            ));
        }
    };
    let is_missing = |component: &&&str| !installed.lines().any(|name| name.starts_with(**component));
    let missing = components.iter().find(is_missing)?;
    let how = format!("`rustup component add {missing} --toolchain nightly`");
    Some(Outcome::Skipped(format!("the nightly toolchain has no {missing} ({how})")))
}

/// Of the tests of rows, those of golden bytes: that crate has no unsafe code, and those with random rows take minutes each.
const MIRI_ROWS: [&str; 3] =
    ["schema::tests::fixed_numbers", "schema::tests::golden", "stored_row::tests::blocks"];
/// Modules whose tests miri runs with strict provenance: no pointer is made of an integer.
const MIRI_STRICT: [&str; 7] = [
    "log::format",
    "log::segment",
    "manifest::catalog",
    "manifest::root",
    "manifest::segment_list",
    "cache::page",
    "cache::ring",
];
/// The nodes of the index name key blobs by addresses in two halves of words (`index/stored_key.rs`): pointers are made of them. Of its
/// tests those that come by all that is unsafe; others take minutes each. And one of a whole store, which has an index. So are records that are kept by a hash of their keys.
const MIRI_EXPOSED: [&str; 10] = [
    "consolidate::in_place::tests::a_row_is_read_while",
    "index::arena",
    "epoch::tests",
    "index::longest",
    "index::tests::a_replaced_tree",
    "index::tests::a_separator_longer",
    "index::tests::concurrent_increments",
    "index::tests::readers_find",
    "sst::record_cache::tests::a_row_comes_in",
    "sst::record_cache::tests::readers_find",
];

fn miri(_: &Path) -> Outcome {
    if let Some(skipped) = skipped_without_nightly(&["miri", "rust-src"]) {
        return skipped;
    }
    // The first of them builds the interpreter's standard library.
    let first = all(&[with_miri(
        &["-p", "hedgerow-device"],
        &["arena::", "zeroed::", "checksum::", "relaxed::"],
        "-Zmiri-strict-provenance",
    )]);
    if !matches!(first, Outcome::Passed) {
        return first;
    }
    // The longest first.
    two_at_once(&[
        with_miri(&["-p", "hedgerow"], &MIRI_EXPOSED, "-Zmiri-permissive-provenance"),
        with_miri(&["-p", "hedgerow"], &MIRI_STRICT, "-Zmiri-strict-provenance"),
        with_miri(&["-p", "hedgerow-row"], &MIRI_ROWS, "-Zmiri-strict-provenance"),
        with_miri(&["-p", "hedgerow-device"], &["shared_copy::"], "-Zmiri-permissive-provenance"),
    ])
}

/// The tests of `modules` under miri. Sizes are smaller there: the tests ask `cfg!(miri)`.
fn with_miri(package: &[&str], modules: &[&str], provenance: &str) -> Command {
    let mut command = cargo(&["+nightly", "miri", "test", "--lib", "--target-dir", "target/miri"]);
    command.args(package).arg("--").args(modules);
    // Tests look at clocks, and proptest at its file of seeds.
    command.env("MIRIFLAGS", format!("-Zmiri-disable-isolation {provenance}"));
    command
}

/// Those in which threads meet, and which were seen to end there within minutes.
const TSAN_TESTS: [&str; 12] = [
    "concurrency::calls_on_a_key",
    "concurrency::readers_never_see",
    "concurrency::snapshots_are_consistent",
    "reclaim::a_table_cleared_under_writers",
    "reclaim::all_writers_of_a_failed_group_commit",
    "reclaim::counts_are_right_after_all_threads_met",
    "reclaim::rows_merged_in_place_are_read_whole",
    "reclaim::what_is_seen_of_a_batch",
    "backup::a_backup_is_a_prefix",
    "backup::rows_that_are_merged_in_place",
    "--skip",
    "when_durable_at_once",
];

/// The standard library is instrumented, too, or what it orders would not be seen. A report fails the test's process; none is suppressed.
fn tsan(_: &Path) -> Outcome {
    if let Some(skipped) = skipped_without_nightly(&["rust-src"]) {
        return skipped;
    }
    let Some(host) = host() else { return Outcome::Failed("`rustc -vV` names no host".into()) };
    let mut test =
        cargo(&["+nightly", "test", "-Zbuild-std", "--target", &host, "--target-dir", "target/tsan"]);
    test.args(["-p", "hedgerow", "--test", "integration", "--"]);
    test.args(TSAN_TESTS);
    test.env("RUSTFLAGS", "-Zsanitizer=thread");
    all(&[test])
}

/// What `cargo fuzz` builds with, the address sanitizer apart: so it needs neither nightly nor an installation.
const FUZZ_RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Clink-dead-code";

fn fuzz(root: &Path) -> Outcome {
    let Ok(manifest) = std::fs::read_to_string(root.join("fuzz/Cargo.toml")) else {
        return Outcome::Failed("fuzz/Cargo.toml cannot be read".into());
    };
    let Some(host) = host() else { return Outcome::Failed("`rustc -vV` names no host".into()) };
    // With a target named, build scripts and macros are built without these flags.
    let build = ["--release", "--manifest-path", "fuzz/Cargo.toml", "--target", host.as_str()];
    let built = all(&[with_fuzz_flags(&["build"], &build)]);
    if !matches!(built, Outcome::Passed) {
        return built;
    }
    let mut runs = Vec::new();
    for name in fuzz_targets(&manifest) {
        let seconds = format!("-max_total_time={FUZZ_SECONDS}");
        let corpus = format!("fuzz/corpus/{name}");
        if let Err(error) = std::fs::create_dir_all(root.join(&corpus)) {
            return Outcome::Failed(format!("{corpus}: {error}"));
        }
        let mut run = with_fuzz_flags(&["run", "--bin", &name], &build);
        run.args(["--", &seconds, "-artifact_prefix=fuzz/artifacts/", "-verbosity=0", &corpus]);
        runs.push(run);
    }
    if std::fs::create_dir_all(root.join("fuzz/artifacts")).is_err() {
        return Outcome::Failed("fuzz/artifacts cannot be made".into());
    }
    two_at_once(&runs)
}

fn with_fuzz_flags(first: &[&str], then: &[&str]) -> Command {
    let mut command = cargo(first);
    command.args(then).env("RUSTFLAGS", FUZZ_RUSTFLAGS);
    command
}

/// The names of the `[[bin]]`s.
fn fuzz_targets(manifest: &str) -> Vec<String> {
    let bins = manifest.split("[[bin]]").skip(1);
    let name = |bin: &str| bin.lines().find_map(|line| line.strip_prefix("name = ").map(str::to_owned));
    bins.filter_map(name).map(|name| name.trim_matches('"').to_owned()).collect()
}

/// The platform that this runs on, as rustc names it.
fn host() -> Option<String> {
    let output = Command::new("rustc").arg("-vV").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
}

fn clients(root: &Path) -> Outcome {
    let script = root.join(".ci/outside-clients.sh");
    if !script.exists() {
        return Outcome::Skipped("there is no .ci/outside-clients.sh".into());
    }
    let mut run = Command::new("bash");
    run.arg(script);
    all(&[run])
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments);
    command
}

/// Runs the commands one after the other, up to the first that fails.
fn all(commands: &[Command]) -> Outcome {
    let failed = commands.iter().find_map(|command| failure(command, ready(command).status()));
    failed.map_or(Outcome::Passed, Outcome::Failed)
}

/// Runs commands that use one processor each, two at a time, up to the first that fails; prints what each says when it has ended.
fn two_at_once(commands: &[Command]) -> Outcome {
    let (next, failed) = (Mutex::new(commands.iter()), Mutex::new(None));
    let take = || next.lock().ok()?.next().filter(|_| failed.lock().is_ok_and(|failed| failed.is_none()));
    let work = || {
        while let Some(command) = take() {
            let output = ready(command).stdout(Stdio::piped()).stderr(Stdio::piped()).output();
            let Ok(mut failed) = failed.lock() else { return };
            if let Ok(output) = &output {
                println!("{}", shown(command));
                print!(
                    "{}{}",
                    String::from_utf8_lossy(&output.stderr),
                    String::from_utf8_lossy(&output.stdout)
                );
            }
            if let Some(why) = failure(command, output.map(|output| output.status)) {
                failed.get_or_insert(why);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| _ = scope.spawn(work)));
    match failed.into_inner() {
        Ok(None) => Outcome::Passed,
        Ok(Some(why)) => Outcome::Failed(why),
        Err(_) => Outcome::Failed("a thread of this step has panicked".into()),
    }
}

/// The command as it is run. Cargo tells its children which package they run for; the commands here are for all.
fn ready(command: &Command) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            again.env(name, value);
        }
    }
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "RUSTUP_TOOLCHAIN", "CARGO"] {
        again.env_remove(name);
    }
    again
}

/// Why a command did not end well, if it did not.
fn failure(command: &Command, ended: std::io::Result<ExitStatus>) -> Option<String> {
    match ended {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("{} ({status})", shown(command))),
        Err(error) => Some(format!("{}: {error}", shown(command))),
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
