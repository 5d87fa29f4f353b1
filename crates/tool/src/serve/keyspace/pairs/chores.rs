//! What a command asks of a store of pairs that is none of rows: keys in no order, counts, tables.
//!
//! Owns what is asked for, and the work at it, step by step: each takes a few exchanges, so that others go on in between. Promises bounded memory, however many tables
//! there are. All of it waits for the store: it is not for the event loop. Must not know commands or clients.

use std::ops::Range;

use hedgerow::{ErrorKind, Schema, Type};
use hedgerow_row::pairs::{PairDb, Transaction};

use super::scan::{KeyScan, ScanWork, ScannedKeys};
use super::tables::{TableWalk, open};
use crate::serve::failure::{Failure, Outcome};
use crate::serve::keyspace::TableSummary;
use crate::serve::keyspace::naming::{Place, TableName};
use crate::serve::limits;

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Chore {
    /// Keys, in no order.
    Scan(KeyScan),
    /// How many rows each database has, about.
    Count,
    /// The tables of a database.
    Summaries(usize),
    /// All rows of these databases are to go, and with them the tables whose schema is not declared.
    Clear(Range<usize>),
    /// A table of this name and schema.
    Create(String, Schema),
    /// The table of this name is to go.
    Drop(String),
    /// A table's schema is to change.
    Evolve(String, FieldChange),
}

/// A change of a schema.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldChange {
    /// A nullable field more.
    Add(String, Type),
    /// Another name for a field.
    Rename(String, String),
    /// A field less.
    Drop(String),
}

/// What came of it.
#[derive(Debug)]
pub enum Done {
    /// These keys.
    Scanned(ScannedKeys),
    /// So many rows, by database.
    Counted(Vec<u64>),
    /// These tables.
    Summaries(Vec<TableSummary>),
    /// Whether it changed something.
    Changed(bool),
}

impl Chore {
    /// Whether it changes tables.
    pub fn changes(&self) -> bool {
        !matches!(self, Chore::Scan(_) | Chore::Count | Chore::Summaries(_))
    }
}

impl Chore {
    /// Whether it takes one step.
    pub fn is_short(&self) -> bool {
        matches!(self, Chore::Create(..) | Chore::Drop(_) | Chore::Evolve(..))
    }
}

/// A chore that is being done.
pub struct Work {
    /// Which.
    pub chore: Chore,
    state: WorkState,
}

enum WorkState {
    /// It takes one step.
    Single,
    Scan(ScanWork),
    Count(TableWalk, Vec<u64>),
    Summaries(TableWalk, Vec<TableSummary>, usize),
    Clear(TableWalk),
}

impl Work {
    /// None of it is done yet.
    pub fn new(chore: Chore) -> Work {
        let state = match &chore {
            Chore::Scan(scan) => WorkState::Scan(ScanWork::new(scan.clone())),
            Chore::Count => WorkState::Count(TableWalk::default(), vec![0; limits::DATABASES]),
            Chore::Summaries(_) => WorkState::Summaries(TableWalk::default(), Vec::new(), 0),
            Chore::Clear(_) => WorkState::Clear(TableWalk::default()),
            Chore::Create(..) | Chore::Drop(_) | Chore::Evolve(..) => WorkState::Single,
        };
        Work { chore, state }
    }

    /// Goes on a little; says what came of it once it is done. Blocks.
    pub fn step(&mut self, db: &PairDb) -> Option<Outcome<Done>> {
        self.try_step(db).transpose()
    }

    fn try_step(&mut self, db: &PairDb) -> Outcome<Option<Done>> {
        match (&self.chore, &mut self.state) {
            (_, WorkState::Scan(work)) => Ok(work.step(db)?.map(Done::Scanned)),
            (_, WorkState::Count(walk, counts)) => {
                for ((_, table), rows) in next_of(walk, db, rows)? {
                    if let Some(count) = counts.get_mut(table.space) {
                        *count += rows;
                    }
                }
                Ok(walk.is_over().then(|| Done::Counted(std::mem::take(counts))))
            }
            (Chore::Summaries(space), WorkState::Summaries(walk, found, bytes)) => {
                let of_space = |transaction: &Transaction, named: &(String, TableName)| match named.1.space {
                    at if at == *space => summary(transaction, named),
                    _ => Ok(None),
                };
                for summary in next_of(walk, db, of_space)?.into_iter().filter_map(|(_, summary)| summary) {
                    *bytes += summary.prefix.len() + size_of::<TableSummary>();
                    found.push(summary);
                }
                if *bytes > limits::KEYS_BYTES_MAX {
                    return Err(Failure::new(format!(
                        "ERR the tables of this database take more than {} bytes to tell",
                        limits::KEYS_BYTES_MAX
                    )));
                }
                Ok(walk.is_over().then(|| Done::Summaries(std::mem::take(found))))
            }
            (Chore::Clear(spaces), WorkState::Clear(walk)) => {
                clear_next(walk, spaces, db)?;
                Ok(walk.is_over().then_some(Done::Changed(true)))
            }
            (chore, _) => chore.run(db).map(Some),
        }
    }
}

/// What `look` says of the next tables of a walk, which are got together.
fn next_of<R>(
    walk: &mut TableWalk,
    db: &PairDb,
    look: impl Fn(&Transaction, &(String, TableName)) -> hedgerow::Result<R>,
) -> hedgerow::Result<Vec<((String, TableName), R)>> {
    walk.refill(db)?;
    let pending = &walk.pending;
    let found = db.transact(|transaction| {
        // All of them are asked for before the first that is not at hand ends it.
        let found: Vec<hedgerow::Result<R>> = pending.iter().map(|named| look(transaction, named)).collect();
        found.into_iter().collect::<hedgerow::Result<Vec<R>>>()
    })?;
    Ok(walk.pending.drain(..).zip(found).collect())
}

/// About how many rows a table has; none if there is no such table.
fn rows(transaction: &Transaction, (name, _): &(String, TableName)) -> hedgerow::Result<u64> {
    match transaction.schema(name)? {
        None => Ok(0),
        Some(_) => transaction.count(name),
    }
}

fn summary(transaction: &Transaction, named: &(String, TableName)) -> hedgerow::Result<Option<TableSummary>> {
    let Place::Prefix(prefix) = &named.1.place else { return Ok(None) };
    let rows = rows(transaction, named)?;
    let Some(schema) = transaction.schema(&named.0)? else { return Ok(None) };
    let fields = schema.fields();
    let declared = fields.fields().iter().filter(|field| !field.name().starts_with('@'));
    let (fields, is_open) = (declared.count(), fields.is_open());
    Ok(Some(TableSummary { prefix: prefix.to_vec(), rows, fields, is_open }))
}

/// Clears, or drops, the next table of a walk, if it is of one of these databases.
fn clear_next(walk: &mut TableWalk, spaces: &Range<usize>, db: &PairDb) -> hedgerow::Result<()> {
    walk.refill(db)?;
    if let Some((name, _)) = walk.pending.front().filter(|(_, table)| spaces.contains(&table.space)) {
        clear_table(name, db)?;
    }
    walk.pending.pop_front();
    Ok(())
}

fn clear_table(name: &str, db: &PairDb) -> hedgerow::Result<()> {
    let schema = db.transact(|transaction| Ok(transaction.schema(name)?.cloned()));
    let is_declared = match schema {
        Ok(None) => return Ok(()),
        Ok(Some(schema)) => !schema.fields().is_open(),
        // What its schema was nobody can tell any more: it would be in the way for ever.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Version) => false,
        Err(error) => return Err(error),
    };
    if !is_declared {
        return db.drop_table(name).map(drop);
    }
    let Some(table) = open(db, name)? else { return Ok(()) };
    match table.clear() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        cleared => cleared,
    }
}

impl Chore {
    /// Does one that takes one step.
    fn run(&self, db: &PairDb) -> Outcome<Done> {
        match self {
            Chore::Create(table, schema) => {
                db.create_table(table, schema.clone())?;
                Ok(Done::Changed(true))
            }
            Chore::Drop(table) => Ok(Done::Changed(db.drop_table(table)?)),
            Chore::Evolve(table, change) => {
                let table = db.table(table)?;
                match change {
                    FieldChange::Add(name, kind) => table.add_field(name, *kind)?,
                    FieldChange::Rename(name, to) => table.rename_field(name, to)?,
                    FieldChange::Drop(name) => table.drop_field(name)?,
                }
                Ok(Done::Changed(true))
            }
            Chore::Scan(_) | Chore::Count | Chore::Summaries(_) | Chore::Clear(_) => Err(Failure::NOT_YET),
        }
    }
}

#[cfg(test)]
mod tests;
