//! A Rust file as what it declares and the paths it names: good enough for source that compiles and that rustfmt has laid out.
//!
//! Owns the tokens and the shape of items. What only tests compile is left out. Must not know what a path leads to, nor of
//! other files.

/// A module of a file: the file itself, or one written inside it.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// Items with a name, types among them.
    pub(super) items: Vec<String>,
    /// Structs, enums, unions, traits and aliases that are items.
    pub(super) types: Vec<String>,
    pub(super) imports: Vec<Import>,
    pub(super) named: Named,
    /// The types that blocks of `impl` are for.
    pub(super) implemented: Vec<String>,
    /// Modules that are files of their own.
    pub(super) files: Vec<String>,
    pub(super) inline: Vec<(String, Module)>,
    /// Macros that the whole crate has at its root.
    pub(super) macros: Vec<String>,
}

/// What the bodies and signatures of items name.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// Paths of two and more segments.
    pub(super) paths: Vec<Vec<String>>,
    /// The types behind a `&`, or behind that and an `Arc`, unless a function returns them.
    pub(super) borrowed: Vec<String>,
}

/// `use a::b as name`; a `*` has the name `*`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) name: String,
    pub(super) path: Vec<String>,
}

/// A file's module. Empty for a file that says that only tests compile it.
pub(super) fn scan(text: &str) -> Module {
    let mut scanner = Scanner { tokens: tokens(text), at: 0 };
    let mut module = Module::default();
    scanner.items(&mut module);
    module
}

/// Words, and punctuation a character at a time. Comments, texts, characters and lifetimes are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = text_length(rest) {
            length
        } else if first == '\'' {
            character_length(rest)
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            found.push(rest[..length].to_owned());
            length
        } else {
            if !first.is_whitespace() {
                found.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    found
}

/// The bytes of the text literal that `rest` begins with, if it does.
fn text_length(rest: &str) -> Option<usize> {
    let bare = rest.trim_start_matches(['b', 'c']);
    let before = rest.len() - bare.len();
    if before > 1 {
        return None;
    }
    if let Some(raw) = bare.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let close = format!("\"{}", "#".repeat(hashes));
        let text = raw[hashes..].strip_prefix('"')?;
        let end = text.find(&close).map(|end| before + 2 + hashes + end + close.len());
        return Some(end.unwrap_or(rest.len()));
    }
    let mut escaped = false;
    for (at, c) in bare.strip_prefix('"')?.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(before + at + 2),
            _ => {}
        }
    }
    Some(rest.len())
}

/// The bytes of the character or lifetime that `rest` begins with.
fn character_length(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => rest[3..].find('\'').map_or(rest.len(), |end| end + 4),
        (Some(_), Some((end, '\''))) => end + 1,
        _ => 1,
    }
}

struct Scanner {
    tokens: Vec<String>,
    at: usize,
}

impl Scanner {
    fn peek(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned().unwrap_or_default()
    }

    fn eat(&mut self, token: &str) -> bool {
        let is_next = self.peek(0) == token;
        self.at += usize::from(is_next);
        is_next
    }

    /// Items up to the brace that ends the module, or to the end.
    fn items(&mut self, module: &mut Module) {
        while self.at < self.tokens.len() && !self.eat("}") {
            if self.peek(0) == "#" && self.peek(1) == "!" {
                if self.attribute().is_test {
                    self.at = self.tokens.len();
                }
                continue;
            }
            let attributes = self.attributes();
            match attributes.is_test {
                true => self.item(&mut Module::default(), attributes),
                false => self.item(module, attributes),
            }
        }
    }

    fn item(&mut self, module: &mut Module, attributes: Attributes) {
        if self.eat("pub") && self.peek(0) == "(" {
            self.group(&mut Named::default());
        }
        let word = self.next();
        match word.as_str() {
            "use" => self.import(&mut Vec::new(), &mut module.imports),
            "mod" => self.module(module),
            "const" | "unsafe" | "async" | "extern"
                if matches!(self.peek(0), "fn" | "unsafe" | "async" | "extern" | "impl" | "trait") =>
            {
                self.item(module, attributes);
            }
            "struct" | "enum" | "union" | "trait" | "type" => {
                let name = self.next();
                module.items.push(name.clone());
                module.types.push(name);
                self.rest_of_item(word == "type", &mut module.named);
            }
            "const" | "static" | "fn" => {
                self.eat("mut");
                let name = self.next();
                module.items.push(name);
                self.rest_of_item(word != "fn", &mut module.named);
            }
            "macro_rules" => {
                self.eat("!");
                let name = self.next();
                if attributes.is_exported { &mut module.macros } else { &mut module.items }.push(name);
                self.rest_of_item(false, &mut Named::default());
            }
            _ => {
                if word == "impl" {
                    module.implemented.extend(self.implemented());
                }
                self.rest_of_item(false, &mut module.named);
            }
        }
    }

    /// The type that a block is for, seen from behind its `impl`.
    fn implemented(&self) -> Option<String> {
        let (mut depth, mut found) = (0, None);
        for token in &self.tokens[self.at..] {
            match token.as_str() {
                "{" | "where" => break,
                "<" => depth += 1,
                ">" => depth -= 1,
                // An arrow of a function type closes nothing.
                "-" => depth += 1,
                word if depth == 0 && is_type(word) => found = Some(word.to_owned()),
                _ => {}
            }
        }
        found
    }

    /// The types behind the `&` that is next: the type itself, and behind an `Arc` what is in it.
    fn borrowed(&self) -> Vec<String> {
        let is_returned = self.at > 1 && self.tokens[self.at - 2..self.at] == ["-", ">"];
        let mut found = Vec::new();
        for token in self.tokens[self.at + 1..].iter().filter(|_| !is_returned) {
            match token.as_str() {
                // A lifetime, `mut`, `dyn`, a module; and what parts them.
                ":" | "<" => {}
                word if is_type(word) => {
                    found.push(word.to_owned());
                    if word != "Arc" {
                        break;
                    }
                }
                word if is_punctuation(word) => break,
                _ => {}
            }
        }
        found
    }

    fn module(&mut self, module: &mut Module) {
        let name = self.next();
        if self.eat(";") {
            module.files.push(name);
        } else if self.eat("{") {
            let mut inside = Module::default();
            self.items(&mut inside);
            module.inline.push((name, inside));
        }
    }

    /// To the `;`, or to the end of the block, that ends an item.
    fn rest_of_item(&mut self, is_value: bool, named: &mut Named) {
        while self.at < self.tokens.len() {
            match self.peek(0) {
                ";" => {
                    self.at += 1;
                    return;
                }
                "}" => return,
                "{" => {
                    self.group(named);
                    if !is_value {
                        return;
                    }
                }
                "(" | "[" => self.group(named),
                _ => self.token_of_body(named),
            }
        }
    }

    /// What stands in brackets, with them.
    fn group(&mut self, named: &mut Named) {
        self.at += 1;
        while self.at < self.tokens.len() {
            match self.peek(0) {
                ")" | "]" | "}" => {
                    self.at += 1;
                    return;
                }
                "(" | "[" | "{" => self.group(named),
                _ => self.token_of_body(named),
            }
        }
    }

    fn token_of_body(&mut self, named: &mut Named) {
        if self.peek(0) == "#" && matches!(self.peek(1), "[" | "!") {
            if self.attributes().is_test {
                self.skip_one();
            }
        } else if self.eat("use") {
            let mut imports = Vec::new();
            self.import(&mut Vec::new(), &mut imports);
            named.paths.extend(imports.into_iter().map(|import| import.path));
        } else {
            let from_outside = self.eat(":") && self.eat(":");
            if self.peek(0) == "&" {
                named.borrowed.extend(self.borrowed());
            }
            let follows_dot = self.at > 0 && self.tokens[self.at - 1] == ".";
            let mut path = Vec::new();
            while self.peek(0).starts_with(|c: char| c.is_alphabetic() || c == '_') {
                path.push(self.next());
                if self.peek(0) != ":" || self.peek(1) != ":" || is_punctuation(self.peek(2)) {
                    break;
                }
                self.at += 2;
            }
            match path.len() {
                0 => self.at += usize::from(!matches!(self.peek(0), ")" | "]" | "}" | "(" | "[" | "{")),
                1 => {}
                _ if from_outside || follows_dot => {}
                _ => named.paths.push(path),
            }
        }
    }

    /// An item, a field or a statement inside of a body.
    fn skip_one(&mut self) {
        while self.at < self.tokens.len() {
            match self.peek(0) {
                ";" | "," => {
                    self.at += 1;
                    return;
                }
                ")" | "]" | "}" => return,
                "{" => return self.group(&mut Named::default()),
                "(" | "[" => self.group(&mut Named::default()),
                _ => self.at += 1,
            }
        }
    }

    fn attributes(&mut self) -> Attributes {
        let mut all = Attributes::default();
        while self.peek(0) == "#" {
            let one = self.attribute();
            all.is_test |= one.is_test;
            all.is_exported |= one.is_exported;
        }
        all
    }

    fn attribute(&mut self) -> Attributes {
        let began = self.at;
        self.eat("#");
        self.eat("!");
        self.group(&mut Named::default());
        let words = &self.tokens[began..self.at];
        let has = |word: &str| words.iter().any(|token| token == word);
        let is_negated = words.windows(3).any(|three| three[0] == "not" && three[2] == "test");
        Attributes {
            is_test: has("cfg") && (has("test") && !is_negated || has("doctest")),
            is_exported: has("macro_export"),
        }
    }

    /// A tree of imports, after `use` or inside its braces, to its `;`, `,` or `}`.
    fn import(&mut self, prefix: &mut Vec<String>, imports: &mut Vec<Import>) {
        let depth = prefix.len();
        while self.at < self.tokens.len() {
            match self.peek(0) {
                ":" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while self.at < self.tokens.len() && !self.eat("}") {
                        self.import(prefix, imports);
                        self.eat(",");
                    }
                    prefix.truncate(depth);
                    self.eat(";");
                    return;
                }
                "," | "}" | ";" => break,
                "as" => {
                    self.at += 1;
                    let name = self.next();
                    imports.push(Import { name, path: prefix.clone() });
                    prefix.truncate(depth);
                    self.eat(";");
                    return;
                }
                _ => {
                    let segment = self.next();
                    // `a::{self}` is `a`.
                    if segment != "self" || prefix.is_empty() {
                        prefix.push(segment);
                    }
                }
            }
        }
        if let Some(name) = prefix.last() {
            imports.push(Import { name: name.clone(), path: prefix.clone() });
        }
        prefix.truncate(depth);
        self.eat(";");
    }
}

fn is_type(token: &str) -> bool {
    token.starts_with(char::is_uppercase)
}

fn is_punctuation(token: &str) -> bool {
    !token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[derive(Debug, Default, Clone, Copy)]
struct Attributes {
    is_test: bool,
    is_exported: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths_of(text: &str) -> Vec<String> {
        scan(text).named.paths.iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn imports_are_taken_apart() {
        let module = scan("pub use a::{self, b::{C, D as E}, f::*};\nuse super::g;\n");
        let shown: Vec<String> = module
            .imports
            .iter()
            .map(|import| format!("{}={}", import.name, import.path.join("::")))
            .collect();
        assert_eq!(shown, ["a=a", "C=a::b::C", "E=a::b::D", "*=a::f::*", "g=super::g"]);
    }

    #[test]
    fn items_have_their_names() {
        let module = scan(
            "pub(crate) struct A<T>(T);\nstruct B { b: u8 }\npub const fn c() { struct Inner; }\nconst D: A<u8> = A { 0: 1 };\n\
             impl A<u8> { type Item = u8; fn e(&self) {} }\nmod f;\nmod g { pub enum H { I } }\nunsafe impl J for A<u8> {}\n\
             #[macro_export]\nmacro_rules! k { () => {}; }\ntype L = u8;\n",
        );
        assert_eq!(module.types, ["A", "B", "L"]);
        assert_eq!(module.items, ["A", "B", "c", "D", "L"]);
        assert_eq!(module.files, ["f"]);
        assert_eq!(module.inline[0].1.types, ["H"]);
        assert_eq!(module.macros, ["k"]);
    }

    #[test]
    fn paths_are_found_in_bodies_and_signatures() {
        let text = "fn a<'a>(b: super::B<'a>) -> c::D { e::f(b'\\'', 'x', \"g::h // \"); i.j::<k::L>(); ::m::n() } // o::p\n";
        assert_eq!(paths_of(text), ["super::B", "c::D", "e::f", "k::L"]);
        assert_eq!(paths_of("fn a() { use b::C; let d = r#\"e::f \"quoted\" \"#; }\n"), ["b::C"]);
    }

    #[test]
    fn blocks_are_for_their_type() {
        let text = "impl A {}\nimpl<'b, T: Fn(&C) -> D> super::E<'b, T> {}\nimpl F<G> for h::I<J> where K: L {}\n\
                    #[cfg(test)]\nimpl M {}\n";
        assert_eq!(scan(text).implemented, ["A", "E", "I"]);
    }

    #[test]
    fn what_is_borrowed_is_found_behind_its_lifetime_and_its_arc() {
        let text = "fn a<'x>(b: &'x mut super::B<C>, d: &Arc<D>, e: E, f: impl Fn(&F)) -> &G { let h = &i; }\n\
                    struct J<'x> { k: &'x K }\nimpl L { fn m(self: &Arc<M>) -> &'x N { o(|p: &P| 1) } }\n\
                    #[cfg(test)]\nfn q(r: &R) {}\n";
        assert_eq!(scan(text).named.borrowed, ["B", "Arc", "D", "F", "K", "Arc", "M", "P"]);
    }

    #[test]
    fn what_only_tests_compile_is_left_out() {
        let text = "#[cfg(test)]\nmod tests { struct A; use b::C; }\n#[cfg(all(test, x))]\nfn d() { e::f() }\n\
                    impl G { #[cfg(test)]\n fn h(&self) { i::j() } fn k(&self) { l::m() } }\n#[cfg(not(test))]\nstruct N;\n";
        let module = scan(text);
        assert_eq!((module.types, module.inline.len()), (vec!["N".to_owned()], 0));
        assert_eq!(paths_of(text), ["l::m"]);
    }
}
