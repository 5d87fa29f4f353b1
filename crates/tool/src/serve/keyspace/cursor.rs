//! Cursors of `SCAN` and `HSCAN`: integers for clients, positions here.
//!
//! Owns: the bounded memory of positions. Promises: a cursor that is forgotten, or was given by an earlier run of the server, means
//! the beginning, so that every key present throughout is still returned at least once. Strings come last, since a key that is set becomes one, whatever it was: so
//! only a string that becomes a hash (by RENAME, COPY or one EXEC) may be missed.

use std::collections::VecDeque;

use hedgerow_row::backend::Cursor;
use hedgerow_row::pairs::WalkCursor;

use crate::serve::limits;

/// Where a scan goes on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// In the hashes without prefix.
    Plain,
    /// In the hashes whose prefix has no table.
    Overflow,
    /// In the hashes with this prefix.
    Prefix(Box<[u8]>),
    /// In the strings.
    Strings,
    /// In the fields of one hash: its key.
    Fields(Box<[u8]>),
    /// In the tables of a store of pairs, in no order.
    Tables,
}

/// Where a walk through the keys of a store of pairs goes on: here in the first of these tables, then in the others, then in those that come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWalk {
    /// The names of the tables that were got and not left yet.
    pub tables: Vec<String>,
    /// The place in the first of them.
    pub within: WalkCursor,
    /// Where others are got, if there may be more.
    pub rest: Option<Cursor>,
}

impl KeyWalk {
    /// From the start.
    pub const START: KeyWalk =
        KeyWalk { tables: Vec::new(), within: WalkCursor::START, rest: Some(Cursor::START) };

    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.tables.is_empty() && self.rest.is_none()
    }

    fn bytes(&self) -> usize {
        let names: usize = self.tables.iter().map(|name| name.len() + size_of::<String>()).sum();
        let rest = self.rest.as_ref().and_then(Cursor::place).map_or(0, <[u8]>::len);
        names + self.within.bytes() + rest
    }
}

/// A place between two entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The database.
    pub space: usize,
    /// Which table.
    pub source: Source,
    /// The last row (or field) returned.
    pub after: Box<[u8]>,
    /// Where a walk in no order goes on, if it is one.
    pub walk: Option<KeyWalk>,
}

impl Position {
    fn bytes(&self) -> usize {
        let name = match &self.source {
            Source::Prefix(name) | Source::Fields(name) => name.len(),
            _ => 0,
        };
        size_of::<Position>() + name + self.after.len() + self.walk.as_ref().map_or(0, KeyWalk::bytes)
    }
}

/// The positions of unfinished scans.
#[derive(Debug)]
pub struct Cursors {
    first: u64,
    positions: VecDeque<Position>,
    bytes: usize,
}

/// Bytes of positions remembered.
const BYTES_MAX: usize = 16 << 20;

impl Cursors {
    /// None yet. Cursors start at a number that depends on the time, so that those of an earlier run mean nothing; they
    /// stay below 2^53 for clients whose numbers are floats.
    pub fn new(now_ms: u64) -> Cursors {
        Cursors { first: (now_ms / 1000) << 20 | 1, positions: VecDeque::new(), bytes: 0 }
    }

    /// Remembers a position and gives its number; forgets the oldest if there are too many.
    pub fn insert(&mut self, position: Position) -> u64 {
        self.bytes += position.bytes();
        while self.positions.len() >= limits::CURSORS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.positions.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.first += 1;
        }
        self.positions.push_back(position);
        self.first + self.positions.len() as u64 - 1
    }

    /// The position of a number; None means the beginning.
    pub fn get(&self, cursor: u64) -> Option<&Position> {
        self.positions.get(usize::try_from(cursor.checked_sub(self.first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_a_bounded_number() {
        let mut cursors = Cursors::new(1_800_000_000_000);
        let at = |n: usize| Position {
            space: 0,
            source: Source::Strings,
            after: n.to_string().into_bytes().into(),
            walk: None,
        };
        let numbers: Vec<u64> = (0..limits::CURSORS_MAX + 10).map(|n| cursors.insert(at(n))).collect();
        assert!(numbers.iter().all(|&n| n > 0 && n < 1 << 53));
        assert_eq!(cursors.get(numbers[9]), None);
        assert_eq!(cursors.get(numbers[10]), Some(&at(10)));
        assert_eq!(cursors.get(numbers[limits::CURSORS_MAX + 9]), Some(&at(limits::CURSORS_MAX + 9)));
        assert_eq!(cursors.get(0), None);
        assert_eq!(cursors.get(u64::MAX), None);
    }
}
