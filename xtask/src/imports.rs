//! Who imports whom inside of a crate: circles of imports, names that two types have, and who works on the whole engine.
//!
//! Owns the resolution of paths to the files that define what they name, and the search for circles. Promises that an import
//! counts to the file that defines a name, not to one that re-exports it; that a file and its folder (`log.rs`, `log/`) count
//! as one where circles are looked for beside them, and that inside of a folder its files are looked at one by one. Reads
//! source as text ([`scan`]), so methods are not seen: a call `engine.gc()` is no import; but who may have methods of the whole engine
//! is looked at ([`whole_engine`]). What there is of each kind is
//! in [`permitted`]: what is not in there is refused, and so is what is in there and no longer exists.

mod permitted;
mod scan;
mod whole_engine;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use scan::Module;

/// Re-exports of re-exports are followed this far.
const ALIASES_MAX: usize = 16;

/// The crates that are looked at, by the folders of their sources.
const CRATES: &[&str] = &[
    "crates/device/src",
    "crates/row/src",
    "crates/row-derive/src",
    "crates/engine/src",
    "crates/kvssd/src",
    "crates/pool/src",
    "crates/tool/src",
    "bindings/c/src",
    "sim/src",
    "xtask/src",
];

/// Says what is wrong with the imports and the names of all crates under `root`.
pub(crate) fn check(root: &Path, problems: &mut Vec<String>) {
    let mut circles = Vec::new();
    let mut twice = Vec::new();
    for folder in CRATES {
        let source = Crate::read(root, folder);
        if *folder == whole_engine::CRATE {
            whole_engine::check(&source, permitted::WHOLE_ENGINE, problems);
        }
        circles.extend(source.circles());
        twice.extend(source.types_defined_twice());
    }
    for circle in &circles {
        println!("a circle of {} imports: {}", circle.imports.len(), members_shown(circle));
    }
    check_circles(&circles, permitted::CIRCLES, problems);
    check_types(&twice, permitted::TYPES_DEFINED_TWICE, problems);
}

/// Files that import each other in a circle, without their `.rs`, and the imports that tie them.
struct Circle {
    members: BTreeSet<String>,
    imports: Vec<String>,
}

fn members_shown(circle: &Circle) -> String {
    circle.members.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn check_circles(circles: &[Circle], permitted: &[&[&str]], problems: &mut Vec<String>) {
    for circle in circles {
        let is_permitted = permitted
            .iter()
            .any(|files| circle.members.iter().all(|member| files.contains(&member.as_str())));
        if !is_permitted {
            problems.push(format!(
                "a circle of imports that xtask/src/imports/permitted.rs does not permit: {}\n  {}",
                members_shown(circle),
                circle.imports.join("\n  ")
            ));
        }
    }
    for file in permitted.iter().flat_map(|files| *files) {
        if !circles.iter().any(|circle| circle.members.contains(*file)) {
            problems.push(format!("{file} is in no circle of imports any more: strike it off permitted.rs"));
        }
    }
}

fn check_types(twice: &[(String, Vec<String>)], permitted: &[(&str, &[&str])], problems: &mut Vec<String>) {
    let is_permitted = |name: &str, file: &str| {
        permitted.iter().any(|(other, files)| *other == name && files.contains(&file))
    };
    for (name, files) in twice {
        if let Some(file) = files.iter().find(|file| !is_permitted(name, file)) {
            problems.push(format!("{file}: a type {name} is defined in {} files", files.len()));
        }
    }
    for (name, files) in permitted {
        for file in *files {
            if !twice.iter().any(|(other, found)| other == name && found.iter().any(|f| f == file)) {
                problems.push(format!("{name} of {file} is defined once: strike it off permitted.rs"));
            }
        }
    }
}

/// The modules of a crate, by the paths that lead to them from its root: `["log", "format"]`.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Vec<String>, FileModule>,
    /// Macros that are at the root wherever they are written.
    macros: BTreeMap<String, String>,
}

struct FileModule {
    /// Without its `.rs`.
    file: String,
    module: Module,
}

impl Crate {
    fn read(root: &Path, folder: &str) -> Crate {
        Crate::from_files(folder, &|file| std::fs::read_to_string(root.join(format!("{file}.rs"))).ok())
    }

    /// All that `lib` and `main` lead to, read by `text_of`.
    fn from_files(folder: &str, text_of: &dyn Fn(&str) -> Option<String>) -> Crate {
        let mut source = Crate::default();
        for name in ["lib", "main"] {
            let file = format!("{folder}/{name}");
            if let Some(text) = text_of(&file) {
                // A package with both has its modules in one of them: the other has nothing to declare.
                source.add(Vec::new(), &file, folder, scan::scan(&text), text_of);
            }
        }
        source
    }

    fn add(
        &mut self,
        path: Vec<String>,
        file: &str,
        folder: &str,
        mut module: Module,
        text_of: &dyn Fn(&str) -> Option<String>,
    ) {
        for name in &module.files {
            let inside = format!("{folder}/{name}");
            if let Some(text) = text_of(&inside) {
                self.add(joined(&path, name), &inside, &inside, scan::scan(&text), text_of);
            }
        }
        for (name, inline) in std::mem::take(&mut module.inline) {
            let inside = format!("{folder}/{name}");
            self.add(joined(&path, &name), file, &inside, inline, text_of);
        }
        for name in &module.macros {
            self.macros.insert(name.clone(), file.to_owned());
        }
        // The library's root, where there is one, keeps its place.
        self.modules.entry(path).or_insert(FileModule { file: file.to_owned(), module });
    }

    /// The file that defines what `path` names, seen from the module `from`; none for what is not of this crate.
    fn file_of(&self, from: &[String], path: &[String]) -> Option<&str> {
        self.resolve(from, path, ALIASES_MAX)
    }

    fn resolve(&self, from: &[String], path: &[String], aliases_left: usize) -> Option<&str> {
        let mut here = from.to_vec();
        let mut segments = path;
        while let Some((segment, rest)) = segments.split_first() {
            match segment.as_str() {
                "crate" => here.clear(),
                "self" => {}
                "super" => here.truncate(here.len().saturating_sub(1)),
                _ => break,
            }
            segments = rest;
        }
        // A first segment that is no name of this module is another crate's.
        let is_anchored = segments.len() < path.len();
        for (at, segment) in segments.iter().enumerate() {
            let inside = joined(&here, segment);
            if self.modules.contains_key(&inside) {
                here = inside;
                continue;
            }
            let known = self.named(&here, segment, &segments[at + 1..], aliases_left);
            return known.or_else(|| {
                if !is_anchored && at == 0 {
                    return None;
                }
                let exported = here.is_empty().then(|| self.macros.get(segment)).flatten();
                exported.or_else(|| self.modules.get(&here).map(|module| &module.file)).map(String::as_str)
            });
        }
        self.modules.get(&here).map(|module| module.file.as_str())
    }

    /// Where `segment` and what follows it leads to, if the module `here` defines or imports it.
    fn named(&self, here: &[String], segment: &str, rest: &[String], aliases_left: usize) -> Option<&str> {
        let found = self.modules.get(here)?;
        if found.module.items.iter().any(|item| item == segment) {
            return Some(&found.file);
        }
        let aliases_left = aliases_left.checked_sub(1)?;
        for import in &found.module.imports {
            let mut path = import.path.clone();
            if import.name == segment {
                path.extend_from_slice(rest);
                // `use hedgerow_device::Clock` leads out of the crate, and so does what is taken from it.
                return self.resolve(here, &path, aliases_left).or(Some(""));
            }
            if import.name == "*" {
                path.pop();
                let glob = self.module_at(here, &path)?;
                if let Some(file) = self.named(&glob, segment, rest, aliases_left) {
                    return Some(file);
                }
            }
        }
        None
    }

    /// The module that `path` names, without aliases.
    fn module_at(&self, from: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut here = from.to_vec();
        for segment in path {
            match segment.as_str() {
                "crate" => here.clear(),
                "self" => {}
                "super" => drop(here.pop()),
                _ => here.push(segment.clone()),
            }
        }
        self.modules.contains_key(&here).then_some(here)
    }

    /// From file to file, with the names that the first takes from the second.
    fn imports(&self) -> BTreeMap<(String, String), BTreeSet<String>> {
        let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
        for (here, from) in &self.modules {
            let imported = from.module.imports.iter().map(|import| &import.path);
            for path in imported.chain(&from.module.named.paths) {
                let path = match path.last() {
                    Some(last) if last == "*" => &path[..path.len() - 1],
                    _ => path,
                };
                if let Some(to) = self.file_of(here, path).filter(|to| !to.is_empty() && *to != from.file) {
                    let name = path.last().cloned().unwrap_or_default();
                    found.entry((from.file.clone(), to.to_owned())).or_default().insert(name);
                }
            }
        }
        found
    }

    /// The circles among what stands side by side in a folder.
    fn circles(&self) -> Vec<Circle> {
        let imports = self.imports();
        // By folder: from one of its files (with that file's own folder) to another.
        let mut folders: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
        for (from, to) in imports.keys() {
            if let Some((folder, from, to)) = side_by_side(from, to) {
                folders.entry(folder).or_default().entry(from).or_default().insert(to);
            }
        }
        let mut circles = Vec::new();
        for graph in folders.values() {
            for members in knots(graph) {
                let is_in = |file: &str| {
                    members
                        .iter()
                        .any(|m| file.strip_prefix(*m).is_some_and(|r| r.is_empty() || r.starts_with('/')))
                };
                let tied = imports.iter().filter(|((from, to), _)| {
                    is_in(from)
                        && is_in(to)
                        && side_by_side(from, to)
                            .is_some_and(|(_, f, t)| members.contains(f) && members.contains(t))
                });
                let imports = tied
                    .map(|((from, to), names)| {
                        let names: Vec<&str> = names.iter().map(String::as_str).collect();
                        format!("{from} -> {to}: {}", names.join(", "))
                    })
                    .collect();
                circles.push(Circle { members: members.iter().map(|&m| m.to_owned()).collect(), imports });
            }
        }
        circles
    }

    /// The names that several types have, with the files that define them.
    fn types_defined_twice(&self) -> Vec<(String, Vec<String>)> {
        let mut files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for module in self.modules.values() {
            for name in &module.module.types {
                files.entry(name).or_default().push(module.file.clone());
            }
        }
        let twice = files.into_iter().filter(|(_, files)| files.len() > 1);
        twice.map(|(name, files)| (name.to_owned(), files)).collect()
    }
}

fn joined(path: &[String], name: &str) -> Vec<String> {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

/// The folder in which two files part, and what of it each is in; none where one of them is the other's folder's file.
fn side_by_side<'a>(from: &'a str, to: &'a str) -> Option<(&'a str, &'a str, &'a str)> {
    let mut parted = 0;
    for (at, (a, b)) in from.bytes().zip(to.bytes()).enumerate() {
        if a != b {
            break;
        }
        if a == b'/' {
            parted = at + 1;
        }
    }
    let up_to_next = |file: &'a str| &file[..file[parted..].find('/').map_or(file.len(), |end| parted + end)];
    let (from, to) = (up_to_next(from), up_to_next(to));
    // The file of the folder that the other is in, or the root of the crate.
    let is_root = |file: &str| matches!(&file[parted..], "lib" | "main");
    (from != to && !is_root(from) && !is_root(to)).then(|| (&from[..parted], from, to))
}

/// The sets of more than one from each of which all others of the set can be reached.
fn knots<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<BTreeSet<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|&from| (from, reachable(graph, from))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (&from, there) in &reached {
        let knot: BTreeSet<&str> = there
            .iter()
            .copied()
            .filter(|to| reached.get(to).is_some_and(|back| back.contains(from)))
            .collect();
        if !knot.is_empty() && !found.contains(&knot) {
            found.push(knot);
        }
    }
    found
}

fn reachable<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = graph.get(from).into_iter().flatten().copied().collect();
    while let Some(to) = next.pop() {
        if found.insert(to) {
            next.extend(graph.get(to).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &'static [(&'static str, &'static str)]) -> Crate {
        Crate::from_files("src", &|file| {
            let file = file.strip_prefix("src/")?;
            files.iter().find(|(name, _)| *name == file).map(|(_, text)| (*text).to_owned())
        })
    }

    fn members_of(source: &Crate) -> Vec<Vec<String>> {
        source.circles().into_iter().map(|circle| circle.members.into_iter().collect()).collect()
    }

    fn problems_of(source: &Crate, circles: &[&[&str]], types: &[(&str, &[&str])]) -> Vec<String> {
        let mut problems = Vec::new();
        check_circles(&source.circles(), circles, &mut problems);
        check_types(&source.types_defined_twice(), types, &mut problems);
        problems
    }

    const CIRCLE: &[(&str, &str)] = &[
        ("lib", "mod a; mod b; mod c; pub use b::B;"),
        ("a", "use crate::B; pub struct A;"),
        ("b", "mod part; pub use part::B;"),
        ("b/part", "pub struct B; fn f() { crate::c::g() }"),
        ("c", "use super::a::A; pub fn g() {} pub struct B;"),
    ];

    #[test]
    fn a_circle_counts_to_the_files_that_define_the_names() {
        let source = crate_of(CIRCLE);
        assert_eq!(members_of(&source), [["src/a", "src/b", "src/c"]]);
        let imports = &source.circles()[0].imports;
        assert_eq!(*imports, ["src/a -> src/b/part: B", "src/b/part -> src/c: g", "src/c -> src/a: A"]);
    }

    #[test]
    fn what_is_not_permitted_is_refused() {
        let source = crate_of(CIRCLE);
        let problems = problems_of(&source, &[], &[]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(
            problems[0].starts_with("a circle of imports") && problems[0].contains("src/a, src/b, src/c")
        );
        assert!(problems[1].contains("a type B is defined in 2 files"));
        // Permitted in part is not permitted.
        let problems = problems_of(&source, &[&["src/a", "src/b"]], &[("B", &["src/c"])]);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert_eq!(
            problems_of(&source, &[&["src/a", "src/b", "src/c"]], &[("B", &["src/b/part", "src/c"])]),
            [""; 0]
        );
    }

    #[test]
    fn what_is_permitted_and_gone_is_refused() {
        let source = crate_of(&[("lib", "mod a; mod b;"), ("a", "use super::b::B;"), ("b", "pub struct B;")]);
        assert_eq!(problems_of(&source, &[], &[]), [""; 0]);
        let problems = problems_of(&source, &[&["src/a", "src/b"]], &[("B", &["src/b"])]);
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems.iter().all(|problem| problem.contains("strike it off")));
    }

    #[test]
    fn a_file_and_its_folder_are_one_and_its_files_are_not() {
        let files = &[
            ("lib", "mod a; pub struct L; mod z { pub struct Z; }"),
            ("a", "mod b; mod c; mod d; use b::B; pub struct A; fn f() { c::g() }"),
            ("a/b", "use super::A; use crate::{L, z::Z}; pub struct B; mod inner;"),
            ("a/b/inner", "use super::super::c::g;"),
            ("a/c", "use super::d; pub fn g() { d::h() }"),
            ("a/d", "use std::fmt; use other::b::B; pub fn h() { fmt::a(); super::b::B::new() }"),
        ];
        assert_eq!(members_of(&crate_of(files)), [["src/a/b", "src/a/c", "src/a/d"]]);
    }

    #[test]
    fn globs_aliases_and_macros_are_followed() {
        let files = &[
            ("lib", "mod a; mod b; mod c; mod front { pub use crate::a::*; }"),
            ("a", "pub use crate::b::Long as Short; #[macro_export] macro_rules! m { () => {} }"),
            ("b", "pub struct Long; use crate::c::C;"),
            ("c", "pub struct C; fn f() { crate::front::Short::g(); crate::m!() }"),
        ];
        let imports = crate_of(files).imports();
        let shown: Vec<String> = imports.keys().map(|(from, to)| format!("{from} {to}")).collect();
        assert_eq!(shown, ["src/a src/b", "src/b src/c", "src/c src/a", "src/c src/b", "src/lib src/a"]);
    }

    #[test]
    fn the_house_itself_is_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for folder in CRATES {
            let source = Crate::read(root, folder);
            // The macro for rows is one file, which imports none of its own.
            let is_one_file = *folder == "crates/row-derive/src";
            assert_eq!(source.modules.len() <= 2, is_one_file, "{folder}");
            assert_eq!(source.imports().is_empty(), is_one_file, "{folder}");
        }
    }
}
