//! Keys of a store of pairs, in no order: for `SCAN`, `KEYS`, `RANDOMKEY`; and the sweep.
//!
//! Owns walks through the tables of a database. Promises that a key that is there throughout comes at least once, in bounded memory. All of
//! it waits for the store: it is not for the event loop.

use hedgerow::{Change, ErrorKind};
use hedgerow_row::pairs::{HeldRow, PairDb, PairTable, WalkCursor, may_be_of_a_broken_session};

use super::kind_of;
use crate::serve::glob;
use crate::serve::keyspace::Kind;
use crate::serve::keyspace::naming::{Place, TableName};
use crate::serve::limits;

/// Rows in one step of a walk.
const WALK_ROWS: usize = 64;

/// Where a walk goes on: in this table, here.
pub type WalkPosition = (String, WalkCursor);

/// Which keys are wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyScan {
    /// Of this database.
    pub space: usize,
    /// From here on.
    pub from: Option<WalkPosition>,
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
    pub next: Option<WalkPosition>,
}

/// The tables of a database, in order.
pub(super) fn tables_of(names: &[String], space: usize) -> impl Iterator<Item = (&String, TableName)> {
    let parsed = names.iter().filter_map(|name| Some((name, TableName::parse(name)?)));
    let of_keys = |place: &Place| matches!(place, Place::Plain | Place::Overflow | Place::Prefix(_));
    parsed.filter(move |(_, table)| table.space == space && of_keys(&table.place))
}

fn key_of(table: &TableName, row: &[u8]) -> Vec<u8> {
    match &table.place {
        Place::Prefix(prefix) => [prefix, &b":"[..], row].concat(),
        _ => row.to_vec(),
    }
}

/// A table of this name; none if it went meanwhile.
fn open(db: &PairDb, name: &str) -> hedgerow::Result<Option<PairTable>> {
    match db.table(name) {
        Ok(table) => Ok(Some(table)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl KeyScan {
    /// Walks. Blocks.
    pub(super) fn run(&self, db: &PairDb) -> hedgerow::Result<ScannedKeys> {
        let names = db.table_names()?;
        let mut found = ScannedKeys::default();
        let (mut rows, mut bytes) = (0, 0);
        let mut from = self.from.clone();
        for (name, table) in tables_of(&names, self.space) {
            let mut cursor = match &from {
                Some((at, _)) if at > name => continue,
                Some((at, cursor)) if at == name => cursor.clone(),
                _ => WalkCursor::START,
            };
            from = None;
            if rows >= self.rows || bytes >= self.bytes {
                found.next = Some((name.clone(), cursor));
                break;
            }
            let Some(opened) = open(db, name)? else { continue };
            if !opened.goes_on(&cursor) {
                // The table that it was of is gone, and with it all that was there throughout.
                cursor = WalkCursor::START;
            }
            loop {
                let mut passed = 0;
                let next = opened.walk(&cursor, WALK_ROWS.min(self.rows - rows), |row| {
                    passed += 1;
                    if let Some(key) = self.wanted(&table, row)? {
                        bytes += key.len();
                        found.keys.push(key);
                    }
                    Ok(())
                });
                let next = match next {
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    other => other?,
                };
                // A step that passed none counts, too, or a walk through nothing might go on for long.
                rows = rows.saturating_add(passed.max(1));
                let Some(next) = next else { break };
                cursor = next;
                if rows >= self.rows || bytes >= self.bytes {
                    found.next = Some((name.clone(), cursor));
                    found.tidy();
                    return Ok(found);
                }
            }
        }
        found.tidy();
        Ok(found)
    }

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

impl ScannedKeys {
    /// A walk may come by a row twice.
    fn tidy(&mut self) {
        self.keys.sort_unstable();
        self.keys.dedup();
    }
}

/// Whether a row is no key any more since its last field has expired. One that is no key for another reason is none of the server's.
fn is_left_empty(row: &HeldRow<'_>) -> hedgerow::Result<bool> {
    Ok(row.has_field_expiry() && kind_of(row)?.is_none())
}

/// A round through all rows, which removes what has expired: rows by being come by, and those whose last field has expired.
#[derive(Debug, Default)]
pub struct PairSweep {
    space: usize,
    at: Option<WalkPosition>,
}

impl PairSweep {
    /// Goes on a little; false at the end of the round, after which the next begins. What fails is tried again with the next step. Blocks.
    pub fn step(&mut self, db: &PairDb) -> hedgerow::Result<bool> {
        let names = db.table_names()?;
        let at = self.at.clone();
        let next = |(name, _): &(&String, TableName)| at.as_ref().is_none_or(|(table, _)| *table <= **name);
        let Some((name, _)) = tables_of(&names, self.space).find(next) else { return Ok(self.next_space()) };
        let cursor = match at {
            Some((table, cursor)) if table == *name => cursor,
            _ => WalkCursor::START,
        };
        let table = match open(db, name) {
            Ok(Some(table)) => table,
            Ok(None) => return Ok(self.go_on(name, None)),
            // Whoever wants it is told; the others' rows expire all the same.
            Err(error) if !may_be_of_a_broken_session(&error) => return Ok(self.go_on(name, None)),
            Err(error) => return Err(error),
        };
        let cursor = if table.goes_on(&cursor) { cursor } else { WalkCursor::START };
        let mut empty: Vec<Vec<u8>> = Vec::new();
        let walked = table.walk_over_damage(&cursor, WALK_ROWS, |row| {
            // Who reads a row that is damaged is told.
            if let Ok(row) = row
                && is_left_empty(&row).unwrap_or(false)
            {
                empty.push(row.key().to_vec());
            }
            Ok(())
        });
        let walked = match walked {
            // Nothing of this table can be come by; of others perhaps.
            Err(error) if !may_be_of_a_broken_session(&error) => return Ok(self.go_on(name, None)),
            walked => walked?,
        };
        for key in empty {
            table.modify(&key, |row| {
                let is_empty = row.map(is_left_empty).transpose()?.unwrap_or(false);
                Ok((if is_empty { Change::Delete } else { Change::Keep }, ()))
            })?;
        }
        Ok(self.go_on(name, walked))
    }

    /// Remembers where to go on: in this table, or after it.
    fn go_on(&mut self, name: &str, walked: Option<WalkCursor>) -> bool {
        self.at = match walked {
            Some(cursor) => Some((name.to_owned(), cursor)),
            // No name lies between this and the one it is made of.
            None => Some((format!("{name}\0"), WalkCursor::START)),
        };
        true
    }

    fn next_space(&mut self) -> bool {
        self.at = None;
        self.space = (self.space + 1) % limits::DATABASES;
        self.space != 0
    }
}
