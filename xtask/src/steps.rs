//! The steps, each defined once. `.ci/run` and `cargo xtask check` run them all, in this order: the quick ones first.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Outcome, tidy};

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
    Step { name: "deny", what: "licences, bans and sources of dependencies (deny.toml)", run: deny },
    Step { name: "docs", what: "the documentation builds and no link in it is broken", run: docs },
    Step { name: "test", what: "the README's test command", run: test },
    Step { name: "shuttle", what: "the index under chosen interleavings", run: shuttle },
    Step { name: "fuzz", what: "every fuzz target for a few seconds", run: fuzz },
    Step { name: "clients", what: "Redis clients from outside against the server", run: clients },
];

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

fn shuttle(_: &Path) -> Outcome {
    let mut test = cargo(&["test", "-p", "hedgerow", "--lib", "--target-dir", "target/shuttle", "shuttle"]);
    test.env("RUSTFLAGS", "--cfg shuttle");
    all(&[test])
}

fn fuzz(root: &Path) -> Outcome {
    let Ok(manifest) = std::fs::read_to_string(root.join("fuzz/Cargo.toml")) else {
        return Outcome::Skipped("there is no fuzz/Cargo.toml".into());
    };
    let mut in_bin = false;
    let mut runs = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            in_bin = line == "[[bin]]";
        } else if let (true, Some(name)) = (in_bin, line.strip_prefix("name = ")) {
            let seconds = format!("-max_total_time={FUZZ_SECONDS}");
            let mut run = Command::new("cargo");
            run.args([
                "+nightly",
                "fuzz",
                "run",
                name.trim_matches('"'),
                "--",
                &seconds,
                "-print_final_stats=0",
            ]);
            runs.push(run);
        }
    }
    if runs.is_empty() { Outcome::Failed("fuzz/Cargo.toml names no target".into()) } else { all(&runs) }
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
    for command in commands {
        let mut again = Command::new(command.get_program());
        again.args(command.get_args()).stdin(Stdio::null());
        command.get_envs().for_each(|(name, value)| {
            if let Some(value) = value {
                again.env(name, value);
            }
        });
        // Cargo tells its children which package they run for; the commands here are for all.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "RUSTUP_TOOLCHAIN", "CARGO"] {
            again.env_remove(name);
        }
        match again.status() {
            Ok(status) if status.success() => {}
            Ok(status) => return Outcome::Failed(format!("{} ({status})", shown(command))),
            Err(error) => return Outcome::Failed(format!("{}: {error}", shown(command))),
        }
    }
    Outcome::Passed
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
