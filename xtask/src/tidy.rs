//! House rules that no other tool checks. Reads source as text, relying on rustfmt's layout.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::{Outcome, named_tests};

/// Lines in a file, and in a file of tests.
const FILE_LINES_MAX: usize = 900;
const TEST_FILE_LINES_MAX: usize = 1500;
/// Lines in a function, from its name to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// The least `PERSIST:` tags in the crates that durability rests on.
const PERSIST_TAGS_MIN: usize = 10;

/// Module names that say nothing.
const BANNED_NAMES: &[&str] = &["mod.rs", "util.rs", "utils.rs", "common.rs", "helpers.rs", "misc.rs"];
/// Where `unsafe` may be.
const UNSAFE_PLACES: &[&str] = &[
    "crates/device/",
    "crates/engine/src/index",
    "crates/engine/src/tier.rs",
    "crates/engine/src/epoch/copies.rs",
    "crates/engine/tests/integration/rot.rs",
    "bindings/c/",
    "compare/",
];
/// Files every clone must have.
const REQUIRED: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "docs/reading-order.md",
    "docs/durability.md",
    named_tests::DOCUMENT,
    "docs/formats.md",
    "docs/operating.md",
];
const ARCHITECTURE_LINES_MAX: usize = 300;
/// Words of this code's own that gave way to those of the field, in names and in comments. Some that gave way in one meaning are the field's in another, and
/// stay: a leaf's fence keys (Graefe 2011), a unit of measure, a look-up that found a command, a queue that is stuck, a price that is worth it, a history that
/// settles. Of those only the types below are refused.
const REPLACED_WORDS: &[(&str, &str)] = &[
    ("lane", "appender"),
    ("lanes", "appenders"),
    ("incarnation", "segment number"),
    ("collector", "gc"),
    ("merger", "consolidation"),
    ("clustering", "range reordering"),
    ("swims", "merges in place"),
    ("unsettled", "awaits its first sync"),
    ("glance", "peek"),
    ("sought", "pipeline peek"),
    ("onward", "range reordering"),
    ("died", "obsolete"),
    ("books", "cache state"),
    ("debt", "write throttle"),
];
/// Names of several words that gave way, too. Their single words mean other things elsewhere.
const REPLACED_NAMES: &[(&str, &str)] = &[
    ("hides_nothing", "is_droppable_tombstone"),
    ("leave_out", "quarantine"),
    ("note_ends", "a checkpoint of headers"),
    ("keep_merged", "consolidation_loop"),
    ("keep_synced", "sync_loop"),
];
/// Types that had such names, and where. Elsewhere they may mean something else.
const REPLACED_TYPES: &[(&str, &[&str])] = &[
    (
        "crates/engine/",
        &[
            "Ahead",
            "Books",
            "Clustering",
            "Collector",
            "Found",
            "Gone",
            "Lane",
            "Lead",
            "Left",
            "Merging",
            "NoUnit",
            "Note",
            "Noted",
            "NotedTable",
            "Pace",
            "Piece",
            "Pin",
            "Place",
            "Scattered",
            "Unit",
            "Units",
            "Unsettled",
            "Visit",
            "Walk",
        ],
    ),
    (
        "crates/tool/",
        &["Ahead", "Fate", "Gathered", "Glance", "Known", "Lane", "More", "MoreTable", "Sought"],
    ),
    ("crates/row/", &["Found", "Gone", "Left", "Merging", "Piece", "Place", "Told", "Visit", "Walk"]),
    ("sim/", &["Found"]),
];

pub(crate) fn run(root: &Path) -> Outcome {
    let mut problems = Vec::new();
    let (mut persist_tags, mut tests) = (0, BTreeSet::new());
    for path in sources(root) {
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                persist_tags += text.matches("PERSIST:").count();
                check_source(&shown, &text, &mut problems);
                named_tests::collect(&shown, &text, &mut tests);
            }
            Err(error) => problems.push(format!("{shown}: {error}")),
        }
    }
    if persist_tags < PERSIST_TAGS_MIN {
        problems.push(format!(
            "only {persist_tags} PERSIST: tags are left; there were at least {PERSIST_TAGS_MIN}"
        ));
    }
    for name in REQUIRED.iter().filter(|name| !root.join(name).is_file()) {
        problems.push(format!("{name} is missing"));
    }
    check_documents(root, &mut problems);
    let defects = std::fs::read_to_string(root.join(named_tests::DOCUMENT)).unwrap_or_default();
    named_tests::check(&defects, &tests, &mut problems);
    crate::imports::check(root, &mut problems);
    problems.iter().for_each(|problem| println!("{problem}"));
    match problems.len() {
        0 => Outcome::Passed,
        count => Outcome::Failed(format!("{count} house rules broken")),
    }
}

/// All Rust files but those of this crate, in order.
fn sources(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["crates", "bindings", "sim", "fuzz", "compare", "xtask"].map(|name| root.join(name)).into();
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["target", "corpus", "artifacts"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).map_or(Vec::new(), |entries| entries.flatten().map(|e| e.path()).collect())
}

fn check_source(path: &str, text: &str, problems: &mut Vec<String>) {
    let file = path.rsplit('/').next().unwrap_or(path);
    if BANNED_NAMES.contains(&file) {
        problems.push(format!("{path}: the name says nothing about what the module owns"));
    }
    let is_test = path.contains("/tests") || path.ends_with("tests.rs");
    let (lines, max) = (text.lines().count(), if is_test { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX });
    if lines > max {
        problems.push(format!("{path}: {lines} lines; the limit is {max}"));
    }
    let lines: Vec<&str> = text.lines().collect();
    if !lines.first().is_some_and(|line| line.starts_with("//!")) && !is_test {
        problems.push(format!("{path}: does not open with what the module owns and promises"));
    }
    let mut allowed_unsafe = UNSAFE_PLACES.iter().any(|place| path.starts_with(place));
    allowed_unsafe |= path.starts_with("xtask/");
    for (at, line) in lines.iter().enumerate() {
        let number = at + 1;
        for tag in ["TODO", "FIXME", "XXX"] {
            if has_word(line, tag) && !path.starts_with("xtask/") {
                problems.push(format!("{path}:{number}: {tag}; finish it or open an issue"));
            }
        }
        let code = line.split("//").next().unwrap_or(line);
        if is_past_the_door(path, code) && !is_test {
            problems.push(format!(
                "{path}:{number}: atomics and locks come from crate::sync, the one door to them"
            ));
        }
        if !allowed_unsafe && (has_word(code, "unsafe {") || has_word(code, "unsafe fn")) {
            problems.push(format!(
                "{path}:{number}: unsafe belongs in crates/device, bindings/c, the engine's index, its tier.rs and epoch/copies.rs"
            ));
        }
    }
    check_functions(path, &lines, problems);
    if !path.starts_with("xtask/") {
        check_words(path, &lines, problems);
    }
}

/// Whether a line of the engine, or of what lies below it, imports what `sync.rs` is the door to. Tests in a file of the product are indented.
fn is_past_the_door(path: &str, code: &str) -> bool {
    let is_import = [
        "use std::sync::atomic",
        "use std::sync::Mutex",
        "use std::sync::RwLock",
        "use std::sync::Condvar",
        "use parking_lot",
    ]
    .iter()
    .any(|import| code.starts_with(import));
    is_import && (path.starts_with("crates/engine/src/") || path.starts_with("crates/row/src/"))
}

/// No name or comment goes back to a word that was replaced.
fn check_words(path: &str, lines: &[&str], problems: &mut Vec<String>) {
    let types =
        REPLACED_TYPES.iter().filter(|(place, _)| path.starts_with(place)).flat_map(|(_, types)| *types);
    let types: Vec<&str> = types.copied().collect();
    for (at, line) in lines.iter().enumerate() {
        let number = at + 1;
        for part in line.split(|c: char| !c.is_ascii_alphanumeric()) {
            let part = part.to_ascii_lowercase();
            if let Some((word, instead)) = REPLACED_WORDS.iter().find(|(word, _)| part == *word) {
                problems.push(format!("{path}:{number}: {word}; the word is {instead}"));
            }
        }
        if let Some((name, instead)) = REPLACED_NAMES.iter().find(|(name, _)| has_word(line, name)) {
            problems.push(format!("{path}:{number}: {name}; the word is {instead}"));
        }
        if let Some(name) = declared_type(line).filter(|name| types.contains(name)) {
            problems.push(format!("{path}:{number}: {name} was a name that says nothing to others"));
        }
    }
}

/// The type that a line declares.
fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split([' ', '<', '(', ';', '{']).filter(|word| !word.is_empty());
    let keyword =
        words.find(|word| !word.starts_with("pub") && !matches!(*word, "crate)" | "super)" | "in"))?;
    if !matches!(keyword, "struct" | "enum" | "trait" | "type" | "union") {
        return None;
    }
    words.next()
}

/// Whether `word` is in `line` and is not part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !(before.is_some_and(is_part) || after.is_some_and(is_part) && word.ends_with(is_part))
    })
}

/// A function ends where a brace closes at the indentation of its `fn`.
fn check_functions(path: &str, lines: &[&str], problems: &mut Vec<String>) {
    for (at, line) in lines.iter().enumerate() {
        let trimmed = line.trim_start();
        let indent = &line[..line.len() - trimmed.len()];
        let mut words = trimmed.split([' ', '(']).skip_while(|word| {
            matches!(*word, "async" | "const" | "unsafe" | "extern" | "\"C\"")
                || word.starts_with("pub")
                || matches!(*word, "crate)" | "super)")
        });
        if words.next() != Some("fn") {
            continue;
        }
        let name = words.next().unwrap_or_default();
        // A declaration without a body: of a trait, or of a foreign function.
        let head_end = lines[at..].iter().position(|l| l.ends_with('{') || l.ends_with(';'));
        if head_end.is_some_and(|end| lines[at + end].ends_with(';')) {
            continue;
        }
        let end = lines[at..]
            .iter()
            .position(|l| l.strip_prefix(indent).is_some_and(|rest| rest.starts_with('}') || rest == ";"));
        let Some(length) = end.map(|end| end + 1) else { continue };
        let one_line = line.ends_with('}') || line.ends_with(';');
        if !one_line && length > FUNCTION_LINES_MAX {
            problems.push(format!(
                "{path}:{}: `{name}` has {length} lines; the limit is {FUNCTION_LINES_MAX}",
                at + 1
            ));
        }
    }
}

/// Links between documents lead somewhere, and the map stays short.
fn check_documents(root: &Path, problems: &mut Vec<String>) {
    let mut documents: Vec<PathBuf> = [root.to_path_buf(), root.join("docs"), root.join("docs/decisions")]
        .iter()
        .flat_map(|folder| entries(folder))
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    documents.sort();
    for path in documents {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if shown == "ARCHITECTURE.md" && text.lines().count() > ARCHITECTURE_LINES_MAX {
            problems.push(format!("{shown}: the map is longer than {ARCHITECTURE_LINES_MAX} lines"));
        }
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or(target);
            if file.is_empty() || file.contains("://") || file.contains([' ', '|', '\\']) {
                continue;
            }
            if !path.parent().unwrap_or(root).join(file).exists() {
                problems.push(format!("{shown}: the link to {target} leads nowhere"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(path: &str, text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        check_source(path, text, &mut problems);
        problems
    }

    #[test]
    fn a_tidy_file_passes() {
        assert_eq!(problems_of("crates/engine/src/log.rs", "//! Owns.\nfn a() {\n    b();\n}\n"), [""; 0]);
    }

    #[test]
    fn each_rule_is_broken_once() {
        let long = format!("//! Owns.\npub(crate) fn long() {{\n{}}}\n", "    b();\n".repeat(80));
        for (path, text) in [
            ("crates/engine/src/util.rs", "//! Owns.\n"),
            ("crates/engine/src/log.rs", "fn a() {}\n"),
            ("crates/engine/src/log.rs", "//! Owns.\n// TODO later\n"),
            ("crates/engine/src/log.rs", "//! Owns.\nfn a() {\n    unsafe { b() }\n}\n"),
            ("crates/engine/src/log.rs", long.as_str()),
            ("crates/engine/src/log.rs", &"//! Owns.\n".repeat(901)),
            ("crates/engine/src/log.rs", "//! Owns.\nlet all_lanes = ();\n"),
            ("crates/engine/src/log.rs", "//! Owns.\n// What the collector frees.\n"),
            ("crates/engine/src/log.rs", "//! Owns.\npub(crate) struct Found<'a> {\n"),
            ("crates/tool/src/serve.rs", "//! Owns.\nenum Fate {\n"),
            ("crates/engine/src/log.rs", "//! Owns.\nuse parking_lot::Mutex;\n"),
            ("crates/engine/src/db/pins.rs", "//! Owns.\nuse std::sync::atomic::AtomicU64;\n"),
            ("crates/row/src/schema.rs", "//! Owns.\nuse std::sync::Mutex;\n"),
            ("crates/row/src/schema.rs", "//! Owns.\nfn a() {\n    unsafe { b() }\n}\n"),
            ("crates/row/src/schema.rs", "//! Owns.\nstruct Piece;\n"),
        ] {
            assert_eq!(problems_of(path, text).len(), 1, "{path}: {text:.60}");
        }
    }

    #[test]
    fn every_replaced_word_and_name_is_refused() {
        for (word, _) in REPLACED_WORDS.iter().chain(REPLACED_NAMES) {
            for line in [format!("// What {word} is."), format!("    self.{word}();")] {
                let found = problems_of("crates/engine/src/log.rs", &format!("//! Owns.\n{line}\n"));
                assert_eq!(found.len(), 1, "{word}: {found:?}");
            }
        }
        for (place, types) in REPLACED_TYPES {
            for name in *types {
                let found = problems_of(&format!("{place}src/a.rs"), &format!("//! Owns.\nstruct {name};\n"));
                assert!(!found.is_empty(), "{place}: {name} is let through");
            }
        }
    }

    #[test]
    fn names_that_mean_something_else_stay() {
        let text = "//! Owns.\nenum Lookup {\n    Found(u8),\n}\npub struct FoundAgain;\nlet plane = 1;\n";
        assert_eq!(problems_of("crates/engine/src/log.rs", text), [""; 0]);
        assert_eq!(problems_of("crates/tool/src/bench/chart.rs", "//! Owns.\npub enum Unit {\n"), [""; 0]);
    }

    #[test]
    fn a_method_ends_at_its_own_brace() {
        let text = format!(
            "//! Owns.\nimpl A {{\n    fn a(&self) {{\n{}    }}\n\n{}}}\n",
            "        b();\n".repeat(60),
            "    const B: u8 = 1;\n".repeat(60)
        );
        assert_eq!(problems_of("crates/engine/src/log.rs", &text), [""; 0]);
    }
}
