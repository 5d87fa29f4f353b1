//! Tests that a document names are there: the page of defects says nothing that no test shows any more.
//!
//! Owns what a test is called on that page: `hedgerow::` and its module as cargo prints it, or `integration::` and its file, and the name of its function. Promises to tell of each name
//! for which there is no such test, or one that is `#[ignore]`d. Must not know what a test shows.
//!
//! It reads lines, not Rust. It does not see whether a file is part of the crate, whether `#[cfg]` leaves a test out or `#[cfg_attr]` ignores it somewhere (as under
//! miri), tests that macros make, modules within a file but `tests`, where that one ends, nor whether a test can fail.

use std::collections::BTreeSet;

/// The document, from the root.
pub(crate) const DOCUMENT: &str = "docs/defects.md";
/// Where tests are that it may name, and what their names begin with there.
const PLACES: &[(&str, &str)] =
    &[("crates/engine/src/", "hedgerow::"), ("crates/engine/tests/integration/", "integration::")];

/// Adds the tests of a file to those that may be named.
pub(crate) fn collect(path: &str, text: &str, tests: &mut BTreeSet<String>) {
    let place = PLACES.iter().find_map(|(place, begin)| Some((path.strip_prefix(place)?, begin)));
    let Some((file, begin)) = place else { return };
    let module = file.trim_end_matches(".rs").replace('/', "::");
    let (mut within, mut is_test, mut is_ignored) = ("", false, false);
    for line in text.lines().map(str::trim) {
        match line {
            "mod tests {" => within = "tests::",
            "#[test]" => is_test = true,
            // On either side of `#[test]`, with a reason or without.
            _ if line.starts_with("#[ignore") => is_ignored = true,
            _ => {}
        }
        if let Some(name) = line.strip_prefix("fn ").and_then(|rest| rest.split('(').next())
            && std::mem::take(&mut is_test)
            && !std::mem::take(&mut is_ignored)
        {
            tests.insert(format!("{begin}{module}::{within}{name}"));
        }
    }
}

/// Each name of a test in the document is one of those that there are, and there are names at all.
pub(crate) fn check(document: &str, tests: &BTreeSet<String>, problems: &mut Vec<String>) {
    let is_name = |word: &&str| PLACES.iter().any(|(_, begin)| word.starts_with(begin) && word != begin);
    let mut names = document.split('`').skip(1).step_by(2).filter(is_name).peekable();
    if names.peek().is_none() {
        problems.push(format!("{DOCUMENT}: names no test"));
    }
    for name in names.filter(|name| !tests.contains(*name)) {
        problems.push(format!("{DOCUMENT}: there is no test {name}, or it is ignored"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(document: &str) -> Vec<String> {
        let (mut tests, mut problems) = (BTreeSet::new(), Vec::new());
        let inline = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() {\n    fn made() {\n";
        collect("crates/engine/src/gc/many.rs", inline, &mut tests);
        collect("crates/engine/src/gc/tests.rs", "#[test]\nfn two() {\n", &mut tests);
        collect(
            "crates/engine/tests/integration/kill.rs",
            "#[test]\n#[should_panic]\nfn three() {\n",
            &mut tests,
        );
        let ignored = [
            "#[test]\n#[ignore]\nfn never() {\n",
            "#[ignore = \"slow\"]\n#[test]\nfn slow() {\n",
            "#[test]\n#[cfg_attr(miri, ignore)]\nfn four() {\n",
            "#[test]\nfn five() {\n",
        ];
        collect("crates/engine/tests/integration/ignored.rs", &ignored.concat(), &mut tests);
        collect("crates/tool/src/serve.rs", "#[test]\nfn elsewhere() {\n", &mut tests);
        check(document, &tests, &mut problems);
        problems
    }

    #[test]
    fn tests_that_are_there_may_be_named() {
        let all = "`hedgerow::gc::many::tests::one`, `hedgerow::gc::tests::two`<br>`integration::kill::three`, `integration::ignored::four`, `integration::ignored::five`; `gc.rs`, `hedgerow::`";
        assert_eq!(problems_of(all), [""; 0]);
    }

    #[test]
    fn a_name_without_a_test_is_told() {
        for name in [
            "hedgerow::gc::many::tests::made",
            "hedgerow::gc::many::one",
            "hedgerow::gc::tests::one",
            "hedgerow::serve::elsewhere",
            "integration::kill::two",
            "integration::ignored::never",
            "integration::ignored::slow",
        ] {
            let expected = format!("docs/defects.md: there is no test {name}, or it is ignored");
            assert_eq!(problems_of(&format!("`{name}` and `hedgerow::gc::tests::two`")), [expected]);
        }
        assert_eq!(problems_of("`gc.rs`").len(), 1, "a page without names is not what it was");
    }
}
