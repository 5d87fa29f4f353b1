//! Looking ahead in a pipeline: the rows of its commands are brought into the processor's caches together.
//!
//! A command on a row that lies in memory alone waits three or four times for memory, one miss after the other. The
//! misses of a dozen commands can be waited for at once, if their keys are known: they stand in the connection's buffer.
//!
//! Owns: the glance at commands not yet parsed. Promises: a bounded amount of work, that it changes nothing, and that bytes it cannot
//! make sense of are left to the parser. Must not know what commands do, apart from where their keys lie.

use super::commands;
use super::keyspace::{FETCHED_MAX, Keyspace};

/// Commands looked at in one go.
const COMMANDS_MAX: usize = FETCHED_MAX;
/// Arguments of a command; one with more is not looked past.
const ARGUMENTS_MAX: usize = 64;

/// Fetches the rows of commands at the start of `input`; returns how many commands those were, at least 1.
pub fn fetch(keyspace: &Keyspace, space: usize, input: &[u8]) -> usize {
    let mut strings: [&[u8]; COMMANDS_MAX] = [&[]; COMMANDS_MAX];
    let mut hashes: [&[u8]; COMMANDS_MAX] = [&[]; COMMANDS_MAX];
    let (mut string_count, mut hash_count, mut seen) = (0, 0, 0);
    for (name, key) in (Heads { input }).take(COMMANDS_MAX) {
        seen += 1;
        let Some(command) = commands::by_name(name).filter(|command| command.keys.0 == 1) else { continue };
        match command.group {
            "string" => {
                strings[string_count] = key;
                string_count += 1;
            }
            "hash" => {
                hashes[hash_count] = key;
                hash_count += 1;
            }
            _ => {}
        }
    }
    if seen > 1 {
        keyspace.fetch(space, &strings[..string_count], &hashes[..hash_count]);
    }
    seen.max(1)
}

/// The name and the first argument of each whole command.
struct Heads<'i> {
    input: &'i [u8],
}

impl<'i> Iterator for Heads<'i> {
    type Item = (&'i [u8], &'i [u8]);

    fn next(&mut self) -> Option<(&'i [u8], &'i [u8])> {
        let (count, mut rest) = number(self.input.strip_prefix(b"*")?)?;
        if count > ARGUMENTS_MAX {
            return None;
        }
        let mut first: [&[u8]; 2] = [&[]; 2];
        for i in 0..count {
            let (bytes, after) = number(rest.strip_prefix(b"$")?)?;
            let argument = after.get(..bytes)?;
            rest = after.get(bytes + 2..)?;
            if let Some(place) = first.get_mut(i) {
                *place = argument;
            }
        }
        self.input = rest;
        Some((first[0], first[1]))
    }
}

/// A length of up to eight digits and what follows its line.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(9).enumerate() {
        match byte {
            b'0'..=b'9' => value = value * 10 + usize::from(byte - b'0'),
            b'\r' if i > 0 => return Some((value, bytes.get(i + 2..)?)),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(input: &[u8]) -> Vec<(&[u8], &[u8])> {
        Heads { input }.collect()
    }

    #[test]
    fn whole_commands_are_seen() {
        let input =
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nHGET\r\n$2\r\nab";
        assert_eq!(heads(input), [(&b"SET"[..], &b"k"[..]), (b"PING", b"")]);
        let input = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10\r\n0123456789\r\n*2\r\n$3\r\nGET\r\n$1\r\nx\r\n";
        assert_eq!(heads(input), [(&b"SET"[..], &b"k"[..]), (b"GET", b"x")]);
    }

    #[test]
    fn what_makes_no_sense_ends_it() {
        for input in [
            &b""[..],
            b"PING\r\n",
            b"*-1\r\n",
            b"*\r\n",
            b"*99999999999999999999\r\n",
            b"*2\r\n$99999999\r\nx",
            b"*2\r\n:1\r\n",
            b"*65\r\n$1\r\na\r\n",
            b"*2\r\n$1",
        ] {
            assert_eq!(heads(input), [], "{:?}", String::from_utf8_lossy(input));
        }
    }
}
