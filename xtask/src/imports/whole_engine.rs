//! Who works on the whole engine: methods of `Engine`, and functions that borrow one, which are methods by another name.
//!
//! Owns the rule that they stand in the files that [`permitted`](super::permitted) lists, each with its concept. A handle that a
//! caller holds (`Db`, `Table`, `Batch`) shares an engine and calls its methods; it is not borrowed one, and is not listed. Must not know
//! what the methods do.

use std::collections::BTreeSet;

use super::Crate;

/// Where the engine is.
pub(super) const CRATE: &str = "crates/engine/src";
/// The whole of it.
const ENGINE: &str = "Engine";

/// Says which files work on the whole engine and are not in `permitted`, and which are there and do not.
pub(super) fn check(source: &Crate, permitted: &[(&str, &str)], problems: &mut Vec<String>) {
    let is_engine = |name: &String| name == ENGINE;
    let working: BTreeSet<&str> = source
        .modules
        .values()
        .filter(|found| {
            let module = &found.module;
            module.implemented.iter().any(is_engine) || module.named.borrowed.iter().any(is_engine)
        })
        .map(|found| found.file.as_str())
        .collect();
    for file in &working {
        if !permitted.iter().any(|(other, _)| other == file) {
            problems.push(format!(
                "{file}.rs works on the whole {ENGINE}, and is not in WHOLE_ENGINE of xtask/src/imports/permitted.rs: let it take the parts it needs"
            ));
        }
    }
    for (file, _) in permitted {
        if !working.contains(file) {
            problems.push(format!(
                "{file}.rs does not work on the whole {ENGINE} any more: strike it off permitted.rs"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(
        files: &'static [(&'static str, &'static str)],
        permitted: &[(&str, &str)],
    ) -> Vec<String> {
        let source = Crate::from_files("src", &|file| {
            let file = file.strip_prefix("src/")?;
            files.iter().find(|(name, _)| *name == file).map(|(_, text)| (*text).to_owned())
        });
        let mut problems = Vec::new();
        check(&source, permitted, &mut problems);
        problems
    }

    #[test]
    fn a_method_of_the_engine_stands_where_it_may() {
        let files = &[
            ("lib", "mod engine; mod read; mod handle;"),
            ("engine", "pub struct Engine { log: Log } impl Engine { fn open() -> Engine { Engine {} } }"),
            ("read", "use crate::engine::Engine; impl Engine { fn read(&self) {} }"),
            (
                "handle",
                "use crate::engine::Engine; struct Handle { engine: Arc<Engine> } impl Handle { fn engine(&self) -> &Arc<Engine> { &self.engine } }\n\
                 #[cfg(test)] mod tests { fn looks(engine: &Engine) {} }",
            ),
        ];
        let problems = problems_of(files, &[("src/engine", "all")]);
        assert!(
            problems.len() == 1 && problems[0].starts_with("src/read.rs works on the whole"),
            "{problems:?}"
        );
        assert_eq!(problems_of(files, &[("src/engine", "all"), ("src/read", "one read")]), [""; 0]);
        let problems = problems_of(files, &[("src/engine", ""), ("src/read", ""), ("src/handle", "")]);
        assert!(problems.len() == 1 && problems[0].starts_with("src/handle.rs does not"), "{problems:?}");
    }

    /// Functions that take one are its methods, and so are those of a struct that holds one lent.
    #[test]
    fn whoever_borrows_one_counts() {
        let files = &[
            ("lib", "mod function; mod holder; mod shared; mod closure;"),
            ("function", "fn f(engine: &crate::Engine) {}"),
            ("holder", "struct Holder<'e> { engine: &'e mut Engine }"),
            ("shared", "fn f(engine: &Arc<Engine>) {}"),
            ("closure", "fn f(run: impl FnOnce(&Engine)) {}"),
        ];
        let problems = problems_of(files, &[]);
        let named = ["closure", "function", "holder", "shared"];
        assert_eq!(problems.len(), named.len());
        for (problem, file) in problems.iter().zip(named) {
            assert!(problem.starts_with(&format!("src/{file}.rs works")), "{problem}");
        }
    }
}
