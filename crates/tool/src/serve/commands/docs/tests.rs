use super::*;

/// The tree in the notation it came from.
fn show(arguments: &[Argument]) -> String {
    let one = |argument: &Argument| {
        let inner = match &argument.kind {
            Kind::Token => String::new(),
            Kind::Value(kind) => format!("{}:{kind}", argument.name),
            Kind::OneOf(options) => {
                format!(
                    "<{}>",
                    options.iter().map(|o| show(std::slice::from_ref(o))).collect::<Vec<_>>().join("|")
                )
            }
            Kind::Block(parts) => format!("({})", show(parts)),
        };
        let token = argument.token.clone().unwrap_or_default();
        let text = format!("{token} {inner}").trim().to_string();
        let text = if argument.multiple { format!("{text}...") } else { text };
        if argument.optional { format!("[{text}]") } else { text }
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_manuals_notation_is_understood() {
    for (syntax, tree) in [
        ("", ""),
        ("key", "key:key"),
        ("key [key ...]", "key:key..."),
        ("key value [NX | XX]", "key:key value:string [<NX|XX>]"),
        ("key [EX seconds | KEEPTTL]", "key:key [<EX seconds:integer|KEEPTTL>]"),
        ("key field value [field value ...]", "key:key (field:string value:string)..."),
        ("cursor [MATCH pattern]", "cursor:integer [MATCH pattern:pattern]"),
        ("key FIELDS numfields field [field ...]", "key:key FIELDS numfields:integer field:string..."),
        ("<ON | OFF>", "<ON|OFF>"),
    ] {
        assert_eq!(show(&parse(syntax)), tree, "{syntax}");
    }
}

#[test]
fn every_syntax_is_consumed_whole() {
    for command in all() {
        let tree = show(&parse(command.syntax));
        let words = |text: &str| {
            let mut words: Vec<String> = text
                .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
                .filter(|word| word.chars().any(|c| c.is_ascii_uppercase()))
                .map(str::to_string)
                .collect();
            words.sort();
            words.dedup();
            words
        };
        assert_eq!(words(&tree), words(command.syntax), "{command:?}: {tree}");
    }
}

#[test]
fn docs_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == markdown(), "run: cargo run -- commands > docs/commands.md");
}

#[test]
fn docs_are_maps_of_the_right_size() {
    // What a client that parses strictly would stumble over: the number of elements announced and sent must agree.
    for command in all() {
        for resp3 in [false, true] {
            let mut out = Vec::new();
            reply_docs(&mut Reply::new(&mut out, resp3), command);
            assert_eq!(skip(&out), Some(&b""[..]), "{command:?}");
            out.clear();
            reply_info(&mut Reply::new(&mut out, resp3), command);
            assert_eq!(skip(&out), Some(&b""[..]), "{command:?}");
        }
    }
}

/// What is left after one reply.
fn skip(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, mut rest) = (&bytes[1..end], &bytes[end + 2..]);
    let number = || std::str::from_utf8(line).ok()?.parse::<usize>().ok();
    match bytes.first()? {
        b'+' | b':' => Some(rest),
        b'$' => rest.get(number()? + 2..),
        marker @ (b'*' | b'%' | b'~') => {
            for _ in 0..number()? * if *marker == b'%' { 2 } else { 1 } {
                rest = skip(rest)?;
            }
            Some(rest)
        }
        _ => None,
    }
}
