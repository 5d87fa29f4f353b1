//! Names of hash fields as names of a table's fields, which are text, and back.
//!
//! Owns the spelling: a name that is text and begins neither with `@` nor with `%` is itself; any other is `%` and then its bytes, of which
//! those that are no printable ASCII, `%` and `@` are written `%XX`. Promises that every name has one spelling, and that none begins with `@`:
//! such are the server's own.

use std::borrow::Cow;
use std::fmt::Write;

/// The field of a row that holds the value of a key that is a string.
pub const STRING: &str = "@string";

/// The table's name for a field.
pub fn encoded(name: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_empty() && !text.starts_with(['@', '%']) => Cow::Borrowed(text),
        _ => {
            let mut text = String::from("%");
            for &byte in name {
                match byte {
                    b'%' | b'@' => {}
                    b' '..=b'~' => {
                        text.push(byte as char);
                        continue;
                    }
                    _ => {}
                }
                let written = write!(text, "%{byte:02X}");
                debug_assert!(written.is_ok(), "a String takes every write");
            }
            Cow::Owned(text)
        }
    }
}

/// The field that has this name in the table; `None` if it is the server's own, or nothing that the server wrote.
pub fn decoded(name: &str) -> Option<Cow<'_, [u8]>> {
    let Some(mut rest) = name.strip_prefix('%').map(str::as_bytes) else {
        return (!name.starts_with('@')).then_some(Cow::Borrowed(name.as_bytes()));
    };
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return None };
        let digit = |byte: u8| (byte as char).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = tail;
    }
    // Another spelling of a name would be shown and could not be asked for.
    (encoded(&bytes) == name).then_some(Cow::Owned(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_one_spelling() {
        let all = (0..=255u8).map(|byte| vec![byte]);
        let some: [&[u8]; 12] = [
            b"",
            b"name",
            b"@more",
            b"@string",
            b"%",
            b"%41",
            b"a%b",
            b"a@b",
            b"\xff\0x",
            b"%%",
            "\u{e9}t\u{e9}".as_bytes(),
            b"a b",
        ];
        let names: Vec<Vec<u8>> = all.chain(some.map(<[u8]>::to_vec)).collect();
        let mut spellings = std::collections::HashSet::new();
        let mut different = std::collections::HashSet::new();
        for name in names {
            let spelling = encoded(&name).into_owned();
            assert!(!spelling.starts_with('@') && !spelling.is_empty(), "{spelling}");
            assert_eq!(decoded(&spelling).as_deref(), Some(&name[..]), "{spelling}");
            spellings.insert(spelling);
            different.insert(name);
        }
        assert_eq!(spellings.len(), different.len());
        assert_eq!(encoded(b"name"), "name");
        assert_eq!(encoded(b"@string"), "%%40string");
        for foreign in [STRING, "%4", "%%G1", "@x"] {
            assert_eq!(decoded(foreign), None, "{foreign}");
        }
    }
}
