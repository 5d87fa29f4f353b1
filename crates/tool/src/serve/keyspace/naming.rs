//! Table names of key prefixes, both ways.
//!
//! Owns: the spelling described in the parent module. Promises: every prefix has one name and every name one prefix.

use std::fmt;

use crate::serve::failure::{Failure, Outcome};
use crate::serve::limits;

/// Bytes of a table's name.
const NAME_BYTES_MAX: usize = 128;

/// What a table holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The strings.
    Strings,
    /// Hashes without a prefix.
    Plain,
    /// Hashes whose prefix has no table.
    Overflow,
    /// Hashes with this prefix.
    Prefix(Box<[u8]>),
    /// Fields that other tables do not have; one for all databases.
    OverflowFields,
}

/// The database and the place of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    /// The database.
    pub space: usize,
    /// What the table holds.
    pub place: Place,
}

/// Splits a key at the first `:`; None if there is nothing before or after it.
#[inline]
pub fn split(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = key.iter().position(|&byte| byte == b':')?;
    let (prefix, rest) = key.split_at(at);
    let row = rest.get(1..)?;
    (!prefix.is_empty() && !row.is_empty()).then_some((prefix, row))
}

/// Whether the name of the prefix's table is short enough.
pub fn fits(space: usize, prefix: &[u8]) -> bool {
    prefix.len() <= NAME_BYTES_MAX
        && TableName { space, place: Place::Prefix(prefix.into()) }.to_string().len() <= NAME_BYTES_MAX
}

/// Refuses a prefix whose table can not be declared.
pub fn check_prefix(space: usize, prefix: &[u8]) -> Outcome<()> {
    match !prefix.is_empty() && !prefix.contains(&b':') && fits(space, prefix) {
        true => Ok(()),
        false => Err(Failure::text("ERR a table's name is 1 to 128 bytes, without ':'")),
    }
}

impl TableName {
    /// What the table of this name holds; None if the name is not of the mapping.
    pub fn parse(name: &str) -> Option<TableName> {
        let (space, rest) = match name.strip_prefix('@').and_then(|rest| rest.split_once('/')) {
            Some((number, rest)) => {
                (number.parse().ok().filter(|n| (1..limits::DATABASES).contains(n))?, rest)
            }
            None => (0, name),
        };
        let place = match rest {
            "@strings" => Place::Strings,
            "@plain" => Place::Plain,
            "@overflow" => Place::Overflow,
            "@more" if space == 0 => Place::OverflowFields,
            _ if rest.starts_with('@') => return None,
            _ => Place::Prefix(unescape(rest)?.into()),
        };
        let parsed = TableName { space, place };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.space > 0 {
            write!(f, "@{}/", self.space)?;
        }
        match &self.place {
            Place::Strings => f.write_str("@strings"),
            Place::Plain => f.write_str("@plain"),
            Place::Overflow => f.write_str("@overflow"),
            Place::OverflowFields => f.write_str("@more"),
            Place::Prefix(prefix) => prefix.iter().try_for_each(|&byte| match byte {
                b'%' | b'@' => write!(f, "%{byte:02X}"),
                b' '..=b'~' => write!(f, "{}", byte as char),
                _ => write!(f, "%{byte:02X}"),
            }),
        }
    }
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        match rest {
            [] => break,
            [b'%', high, low, tail @ ..] => {
                let digit = |byte: u8| (byte as char).to_digit(16);
                bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
                rest = tail;
            }
            [b'%', ..] => return None,
            [byte, tail @ ..] => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    (!bytes.is_empty() && !bytes.contains(&b':')).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_are_one_to_one() {
        for prefix in [&b"users"[..], b"a b", b"50%", b"@strings", b"\xff\0", b"3/x", b"@3/x"] {
            for space in [0, 1, 15] {
                let name = TableName { space, place: Place::Prefix(prefix.into()) };
                assert_eq!(TableName::parse(&name.to_string()), Some(name));
            }
        }
        for place in [Place::Strings, Place::Plain, Place::Overflow] {
            let name = TableName { space: 7, place };
            assert_eq!(TableName::parse(&name.to_string()), Some(name));
        }
        assert_eq!(TableName { space: 0, place: Place::Prefix((*b"users").into()) }.to_string(), "users");
    }

    #[test]
    fn foreign_names_are_left_alone() {
        for name in ["", "50%", "@other", "@16/x", "@0/x", "@01/x", "a:b", "%41", "@3/@more", "caf\u{e9}"] {
            assert_eq!(TableName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn keys_split_at_the_first_colon() {
        assert_eq!(split(b"users:42"), Some((&b"users"[..], &b"42"[..])));
        assert_eq!(split(b"a:b:c"), Some((&b"a"[..], &b"b:c"[..])));
        assert_eq!(split(b"a::"), Some((&b"a"[..], &b":"[..])));
        for plain in [&b"a"[..], b":a", b"a:", b":", b""] {
            assert_eq!(split(plain), None);
        }
    }
}
