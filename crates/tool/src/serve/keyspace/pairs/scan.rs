//! Keys of a store of pairs, in no order: for `SCAN`, `KEYS`, `RANDOMKEY`; and the sweep.
//!
//! Owns walks through the rows of the tables of a database. Promises that a key that is there throughout comes at least once, in bounded memory. All of
//! it waits for the store: it is not for the event loop.

use hedgerow::ErrorKind;
use hedgerow_row::pairs::{HeldRow, PairDb, PairTable, WalkCursor, may_be_of_a_broken_session};

use super::kind_of;
use super::tables::{TableWalk, open, parse};
use crate::serve::glob;
use crate::serve::keyspace::Kind;
use crate::serve::keyspace::cursor::KeyWalk;
use crate::serve::keyspace::naming::{Place, TableName};

/// Rows in one step of a walk.
const WALK_ROWS: usize = 64;

/// Names of tables that are got at a time: where a scan goes on they are remembered.
const NAMES: usize = 16;

/// Which keys are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyScan {
    /// Of this database.
    pub space: usize,
    /// From here on.
    pub from: KeyWalk,
    /// Rows that are passed, about.
    pub rows: usize,
    /// Bytes of keys after which it ends, about.
    pub bytes: usize,
    /// Only keys that match.
    pub pattern: Option<Vec<u8>>,
    /// Only keys of this type.
    pub kind: Option<Kind>,
}

/// Keys, and where to go on; none at the end.
#[derive(Debug, Default)]
pub struct ScannedKeys {
    /// Each once.
    pub keys: Vec<Vec<u8>>,
    /// None at the end.
    pub next: Option<KeyWalk>,
}

fn key_of(table: &TableName, row: &[u8]) -> Vec<u8> {
    match &table.place {
        Place::Prefix(prefix) => [prefix, &b":"[..], row].concat(),
        _ => row.to_vec(),
    }
}

/// A scan under way.
pub(super) struct ScanWork {
    scan: KeyScan,
    at: KeyWalk,
    /// The table it is in.
    table: Option<(PairTable, TableName)>,
    keys: Vec<Vec<u8>>,
    rows: usize,
    bytes: usize,
}

impl ScanWork {
    pub(super) fn new(scan: KeyScan) -> ScanWork {
        let at = scan.from.clone();
        ScanWork { scan, at, table: None, keys: Vec::new(), rows: 0, bytes: 0 }
    }

    /// Goes on by some rows; gives the keys once it has ended. Blocks.
    pub(super) fn step(&mut self, db: &PairDb) -> hedgerow::Result<Option<ScannedKeys>> {
        if self.at.is_over() || self.rows >= self.scan.rows || self.bytes >= self.scan.bytes {
            let mut keys = std::mem::take(&mut self.keys);
            // A walk may come by a row twice.
            keys.sort_unstable();
            keys.dedup();
            return Ok(Some(ScannedKeys { keys, next: Some(self.at.clone()).filter(|at| !at.is_over()) }));
        }
        if self.at.tables.is_empty() {
            self.find_tables(db)?;
            return Ok(None);
        }
        if self.table.is_none() && !self.enter(db)? {
            self.leave();
            return Ok(None);
        }
        self.walk()?;
        Ok(None)
    }

    /// Some more tables of the database, perhaps none.
    fn find_tables(&mut self, db: &PairDb) -> hedgerow::Result<()> {
        let Some(from) = &self.at.rest else { return Ok(()) };
        let (names, rest) = db.some_table_names(from, NAMES)?;
        let named = names.into_iter().filter_map(parse);
        let of_space = named.filter(|(_, table)| table.space == self.scan.space);
        (self.at.tables, self.at.rest) = (of_space.map(|(name, _)| name).collect(), rest);
        self.at.within = WalkCursor::START;
        // It counts, or a walk through nothing might go on for long.
        self.rows = self.rows.saturating_add(1);
        Ok(())
    }

    /// Opens the first of the tables; false if it went meanwhile.
    fn enter(&mut self, db: &PairDb) -> hedgerow::Result<bool> {
        let Some((name, table)) = self.at.tables.first().cloned().and_then(parse) else { return Ok(false) };
        let Some(opened) = open(db, &name)? else { return Ok(false) };
        if !opened.goes_on(&self.at.within) {
            // The table that it was of is gone, and with it all that was there throughout.
            self.at.within = WalkCursor::START;
        }
        self.table = Some((opened, table));
        Ok(true)
    }

    fn leave(&mut self) {
        self.table = None;
        self.at.tables.drain(..self.at.tables.len().min(1));
        self.at.within = WalkCursor::START;
        self.rows = self.rows.saturating_add(1);
    }

    /// A step through the rows of the table.
    fn walk(&mut self) -> hedgerow::Result<()> {
        let Some((opened, table)) = &self.table else { return Ok(()) };
        let (scan, keys, bytes, mut passed) = (&self.scan, &mut self.keys, &mut self.bytes, 0);
        let next = opened.walk(&self.at.within, WALK_ROWS.min(scan.rows - self.rows), |row| {
            passed += 1;
            if let Some(key) = scan.wanted(table, row)? {
                *bytes += key.len();
                keys.push(key);
            }
            Ok(())
        });
        let next = match next {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            other => other?,
        };
        self.rows = self.rows.saturating_add(passed);
        match next {
            Some(next) => {
                self.at.within = next;
                self.rows = self.rows.saturating_add(usize::from(passed == 0));
            }
            None => self.leave(),
        }
        Ok(())
    }
}

impl KeyScan {
    /// The row's key, if it is wanted.
    fn wanted(&self, table: &TableName, row: &HeldRow<'_>) -> hedgerow::Result<Option<Vec<u8>>> {
        let key = key_of(table, row.key());
        if self.pattern.as_ref().is_some_and(|pattern| !glob::matches(pattern, &key)) {
            return Ok(None);
        }
        let kind = kind_of(row)?;
        Ok((kind.is_some() && self.kind.is_none_or(|wanted| kind == Some(wanted))).then_some(key))
    }
}

/// Whether a row is no key any more since its last field has expired. One that is no key for another reason is none of the server's.
fn is_left_empty(row: &HeldRow<'_>) -> hedgerow::Result<bool> {
    Ok(row.has_field_expiry() && kind_of(row)?.is_none())
}

/// A round through all rows, which removes what has expired: rows by being come by, and those whose last field has expired.
#[derive(Default)]
pub struct PairSweep {
    tables: TableWalk,
    /// The table it is in, and where in it.
    at: Option<(PairTable, WalkCursor)>,
}

impl PairSweep {
    /// Goes on a little; false at the end of the round, after which the next begins. What fails is tried again with the next step. Blocks.
    pub fn step(&mut self, db: &PairDb) -> hedgerow::Result<bool> {
        let Some((table, cursor)) = self.at.take() else { return self.enter(db) };
        match step_through(&table, &cursor) {
            Ok(next) => self.at = next.map(|next| (table, next)),
            // Nothing of this table can be come by, or it went; of others perhaps.
            Err(error) if !may_be_of_a_broken_session(&error) => {}
            Err(error) => {
                self.at = Some((table, cursor));
                return Err(error);
            }
        }
        Ok(self.goes_on())
    }

    /// Goes to the next table; false if there is none.
    fn enter(&mut self, db: &PairDb) -> hedgerow::Result<bool> {
        self.tables.refill(db)?;
        let Some((name, _)) = self.tables.pending.front() else { return Ok(self.goes_on()) };
        match open(db, name) {
            Ok(table) => self.at = table.map(|table| (table, WalkCursor::START)),
            // Whoever wants it is told; the others' rows expire all the same.
            Err(error) if !may_be_of_a_broken_session(&error) => {}
            Err(error) => return Err(error),
        }
        self.tables.pending.pop_front();
        Ok(self.goes_on())
    }

    fn goes_on(&mut self) -> bool {
        let is_over = self.at.is_none() && self.tables.is_over();
        if is_over {
            *self = PairSweep::default();
        }
        !is_over
    }
}

/// Some rows of a table; gives where to go on.
fn step_through(table: &PairTable, cursor: &WalkCursor) -> hedgerow::Result<Option<WalkCursor>> {
    let mut empty: Vec<Vec<u8>> = Vec::new();
    let next = table.walk_over_damage(cursor, WALK_ROWS, |row| {
        // Who reads a row that is damaged is told.
        if let Ok(row) = row
            && is_left_empty(&row).unwrap_or(false)
        {
            empty.push(row.key().to_vec());
        }
        Ok(())
    })?;
    match table.remove_if(&empty, is_left_empty) {
        // What cannot be removed now is come by in the next round.
        Err(error) if !may_be_of_a_broken_session(&error) => Ok(next),
        removed => removed.map(|()| next),
    }
}
