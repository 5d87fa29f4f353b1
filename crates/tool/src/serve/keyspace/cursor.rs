//! Cursors of `SCAN` and `HSCAN`: integers for clients, positions here.
//!
//! Owns: the bounded memory of positions. Promises: a cursor that is forgotten, or was given by an earlier run of the server, means
//! the beginning, so that every key present throughout is still returned at least once. Strings come last, since a key that is set becomes one, whatever it was: so
//! only a string that becomes a hash (by RENAME, COPY or one EXEC) may be missed.

use std::collections::BTreeMap;

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

/// The positions of unfinished scans, by their cursors.
#[derive(Debug)]
pub struct Cursors {
    next: u64,
    /// Where nobody went on yet.
    waiting: BTreeMap<u64, Position>,
    /// Where somebody did. Whoever lost the answer may ask for it again.
    passed: BTreeMap<u64, Position>,
    bytes: usize,
}

/// Bytes of positions remembered.
const BYTES_MAX: usize = 16 << 20;

impl Cursors {
    /// None yet. Cursors start at a number that depends on the time, so that those of an earlier run mean nothing; they
    /// stay below 2^53 for clients whose numbers are floats.
    pub fn new(now_ms: u64) -> Cursors {
        let next = (now_ms / 1000) << 20 | 1;
        Cursors { next, waiting: BTreeMap::new(), passed: BTreeMap::new(), bytes: 0 }
    }

    /// The cursor of a scan that is at `position` now, and was at that of the cursor `from`, if it did not begin; 0 if it has ended. If there are too many positions those are forgotten first, the
    /// oldest before others, that a scan went on from: so a scan that goes on is not sent back to the beginning by the steps of others, only by as many scans.
    pub fn go_on(&mut self, from: Option<u64>, position: Option<Position>) -> u64 {
        if let Some((from, passed)) = from.and_then(|from| Some((from, self.waiting.remove(&from)?))) {
            self.passed.insert(from, passed);
        }
        let Some(position) = position else { return 0 };
        self.bytes += position.bytes();
        while self.waiting.len() + self.passed.len() >= limits::CURSORS_MAX || self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.passed.pop_first().or_else(|| self.waiting.pop_first()) else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
        let cursor = self.next;
        self.next += 1;
        self.waiting.insert(cursor, position);
        cursor
    }

    /// The position of a cursor; None means the beginning.
    pub fn get(&self, cursor: u64) -> Option<&Position> {
        self.waiting.get(&cursor).or_else(|| self.passed.get(&cursor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: usize) -> Position {
        Position { space: 0, source: Source::Strings, after: n.to_string().into_bytes().into(), walk: None }
    }

    #[test]
    fn remembers_a_bounded_number() {
        let mut cursors = Cursors::new(1_800_000_000_000);
        let numbers: Vec<u64> =
            (0..limits::CURSORS_MAX + 10).map(|n| cursors.go_on(None, Some(at(n)))).collect();
        assert!(numbers.iter().all(|&n| n > 0 && n < 1 << 53));
        assert_eq!(cursors.get(numbers[9]), None);
        assert_eq!(cursors.get(numbers[10]), Some(&at(10)));
        assert_eq!(cursors.get(numbers[limits::CURSORS_MAX + 9]), Some(&at(limits::CURSORS_MAX + 9)));
        assert_eq!(cursors.get(0), None);
        assert_eq!(cursors.get(u64::MAX), None);
    }

    /// However many steps others make, a scan is where it was; and the answer to its last step may be asked for again.
    #[test]
    fn a_scan_is_sent_back_by_no_other() {
        let mut cursors = Cursors::new(1_800_000_000_000);
        let slow = cursors.go_on(None, Some(at(0)));
        let mut quick = cursors.go_on(None, Some(at(1)));
        for n in 2..3 * limits::CURSORS_MAX {
            let before = quick;
            quick = cursors.go_on(Some(quick), Some(at(n)));
            assert_eq!(cursors.get(before), Some(&at(n - 1)));
        }
        assert_eq!((cursors.get(slow), cursors.get(quick).is_some()), (Some(&at(0)), true));
        assert_eq!(cursors.go_on(Some(slow), None), 0);
        // One that has ended is forgotten as what was passed is.
        assert_eq!(cursors.get(slow), Some(&at(0)));
        cursors.go_on(Some(quick), Some(at(1)));
        assert_eq!(cursors.get(slow), None);
        // Positions of names so long that fewer fit.
        let long = Position { after: vec![b'x'; BYTES_MAX / 4].into(), ..at(0) };
        let numbers: Vec<u64> = (0..8).map(|_| cursors.go_on(None, Some(long.clone()))).collect();
        assert!(cursors.get(numbers[4]).is_none() && cursors.get(numbers[7]).is_some());
        assert!(cursors.bytes <= BYTES_MAX && cursors.waiting.len() <= 4);
    }
}
