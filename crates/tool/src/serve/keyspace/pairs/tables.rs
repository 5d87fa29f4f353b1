//! The tables of a store of pairs that keep keys, by and by.
//!
//! Owns walks through their names. Promises that a table which is there throughout comes at least once, and that few names are in memory at a time: there may be
//! as many tables as there are prefixes of keys. Waits for the store: it is not for the event loop.

use std::collections::{HashSet, VecDeque};

use hedgerow::{Error, ErrorKind};
use hedgerow_row::backend::Cursor;
use hedgerow_row::pairs::{PairDb, PairTable};

use crate::serve::keyspace::naming::{Place, TableName};

/// Names that are got at a time.
const NAMES: usize = 64;

/// What a table's name says, if its rows are keys.
pub(super) fn parse(name: String) -> Option<(String, TableName)> {
    let table = TableName::parse(&name)?;
    let has_keys = matches!(&table.place, Place::Plain | Place::Overflow | Place::Prefix(_));
    has_keys.then_some((name, table))
}

/// A table of this name; none if it went meanwhile.
pub(super) fn open(db: &PairDb, name: &str) -> hedgerow::Result<Option<PairTable>> {
    match db.table(name) {
        Ok(table) => Ok(Some(table)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A walk through all tables, of all databases.
#[derive(Debug)]
pub(super) struct TableWalk {
    /// Those that were got and not come by yet.
    pub(super) pending: VecDeque<(String, TableName)>,
    /// Where the others are got.
    rest: Option<Cursor>,
    /// From where names were got already.
    walked: HashSet<Cursor>,
}

impl Default for TableWalk {
    fn default() -> TableWalk {
        TableWalk { pending: VecDeque::new(), rest: Some(Cursor::START), walked: HashSet::new() }
    }
}

impl TableWalk {
    /// Whether no table is left.
    pub(super) fn is_over(&self) -> bool {
        self.pending.is_empty() && self.rest.is_none()
    }

    /// Gets some more, if none is pending. There may be none among them.
    pub(super) fn refill(&mut self, db: &PairDb) -> hedgerow::Result<()> {
        let Some(from) = self.rest.as_ref().filter(|_| self.pending.is_empty()) else { return Ok(()) };
        if self.walked.contains(from) {
            self.rest = None;
            return Err(Error::new(ErrorKind::Io, "the store walks through its tables in a circle"));
        }
        let (names, next) = db.some_table_names(from, NAMES)?;
        self.walked.extend(std::mem::replace(&mut self.rest, next));
        self.pending.extend(names.into_iter().filter_map(parse));
        Ok(())
    }
}
