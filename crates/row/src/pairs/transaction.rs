//! `Transaction`: an attempt at reading and changing rows that never waits.
//!
//! Owns what is at hand of the backend for this attempt, and what it would change. Promises that what it shows was in the backend together
//! with the schema it is read by at some time after the attempt began, and that what it commits happens whole and only if nobody came in between, or not at
//! all. Must not know who makes attempts, nor how often.
//!
//! An attempt is a run of calls over what is at hand. A call that wants what is not fails with `NotInMemory`, and what it wanted is recorded:
//! [`Transaction::fetch`] brings it, and the run begins again. Calls may go on after such a failure to record all they want, so that it is brought at once.
//! In the end [`Transaction::commit`] stores the row that was changed, if it still is what was read. `Conflict` says that it is not: then
//! [`Transaction::restart`], and everything again.
//!
//! So nothing but `fetch` and `commit` waits, and a thread that must not wait leaves these two to another, which can do them for many attempts together
//! (`transaction/steps.rs`). [`PairTable`](super::PairTable) is the same with everything in one thread.
//!
//! **The catalog first.** A table's pair is got in each attempt, not before it began, so a row is never read by a schema older than itself, nor in the group
//! of a table that had been cleared. What was known of the table earlier only says where its rows probably are, to get them in the
//! same exchange.
//!
//! **A row that has expired** by the reader's clock is answered as absent only once it is removed, or somebody else has written: of two clocks
//! that differ one might show it again. A field that has expired is absent by the reader's clock alone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::PairStore;
use super::at_hand::AtHandOfOne;
use super::catalog::{CatalogEntry, SeenEntry};
use super::edit::{Edit, Target};
use super::exchange::{rows_under_way, unexpected};
use super::held_row::HeldRow;
use crate::backend::{Cursor, Expect, GROUP_BYTES, Mark, Pair, pair_key};
use crate::schema::plan::PlanError;
use crate::schema::table::TableSchema;
use crate::stored_row::StoredRow;
use crate::transaction_bytes::TransactionBytes;
use crate::{Error, ErrorKind, FieldName, Result, Schema};

mod follow;
mod steps;

use steps::Step;

/// An attempt at reading and changing rows that never waits: a run of calls over what is at hand, made again until all of it is, and committed if nobody came
/// in between.
pub struct Transaction {
    store: Arc<PairStore>,
    now_ms: u64,
    /// Tables at hand, by name; `None`: there is none of this name.
    tables: HashMap<Box<str>, Option<SeenEntry>>,
    /// Rows at hand, by the keys of their pairs.
    rows: HashMap<Vec<u8>, RowAtHand>,
    /// Steps of walks at hand.
    walks: Vec<WalkAtHand>,
    /// Counts at hand, each with the group that was counted.
    counts: HashMap<Box<str>, (u32, u64)>,
    names: Option<Vec<String>>,
    /// Tables that were cleared for this attempt.
    cleared: Vec<Box<str>>,
    /// Tables that were looked at again because a row seemed newer, and the mark that they still had.
    looked_again: HashMap<Box<str>, Mark>,
    /// Rows that were got, had expired, and are yet to be removed: the keys of their pairs, and the pairs' marks.
    expired: HashMap<Vec<u8>, Mark>,
    /// What was asked for and is not at hand.
    wanted: RefCell<Wanted>,
    /// What the rows that were edited in the part that was begun last were to be before it, if one was begun; by the keys of their pairs.
    edited: Option<HashMap<Vec<u8>, Edited>>,
    /// Of the changes of rows, and of those that `edited` has.
    changes: TransactionBytes,
    /// What the attempt that this one follows is about to store.
    followed: Option<NewValue>,
    /// What it waits for.
    step: Option<Step>,
    at_hand: AtHandOfOne,
}

/// Some rows of a table, and where to go on, if there are more.
struct WalkAtHand {
    table: Box<str>,
    from: WalkCursor,
    rows: usize,
    /// The group that was walked.
    group: u32,
    pairs: Vec<Pair>,
    next: Option<Cursor>,
    /// Pairs whose rows had expired. Those that have a mark are yet to be removed; of the others somebody came first, and what is there now is yet to be got.
    expired: HashMap<Box<[u8]>, Option<Mark>>,
}

impl WalkAtHand {
    fn is(&self, table: &str, from: &WalkCursor, rows: usize, group: u32) -> bool {
        *self.table == *table && self.from == *from && self.rows == rows && self.group == group
    }
}

/// A row as it was got, and as it is to be.
struct RowAtHand {
    /// What must be there for a change of it to happen: what was read, or anything.
    seen: Expect,
    /// The pair that was read. Others who got it with the same exchange have it, too.
    got: Option<Arc<Pair>>,
    change: Option<NewValue>,
}

/// A row that was edited, as it was before.
struct Edited {
    /// It had not been looked at, nor edited.
    is_new: bool,
    change: Option<NewValue>,
}

/// The value that a pair is to have; `None` if there is to be no pair. Shared with an attempt that [follows](Transaction::follow).
type NewValue = Option<Arc<Vec<u8>>>;

impl RowAtHand {
    fn got(pair: Option<Arc<Pair>>) -> RowAtHand {
        let seen = pair.as_ref().map_or(Expect::Absent, |pair| Expect::Same(pair.mark));
        RowAtHand { seen, got: pair, change: None }
    }

    /// The pair's value, a change included.
    fn value(&self) -> Option<&[u8]> {
        match &self.change {
            Some(change) => change.as_ref().map(|value| value.as_slice()),
            None => self.got.as_ref().map(|pair| &*pair.value),
        }
    }

    /// Bytes that it takes, as it was got and as it is to be.
    fn bytes(&self) -> usize {
        let got = self.got.as_ref().map_or(0, |pair| pair.value.len());
        ROW_BYTES + got + self.change.iter().flatten().map(|value| value.len()).sum::<usize>()
    }

    fn version(&self) -> u64 {
        match self.seen {
            Expect::Same(mark) if self.change.is_none() => mark.number(),
            _ => 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Want {
    Table(Box<str>),
    Row(Box<str>, Box<[u8]>),
    Walk(Box<str>, WalkCursor, usize),
    Count(Box<str>),
    Names,
    Create(Box<str>, Schema),
    /// Names for the table of this name and number.
    Learn(Box<str>, u32, Vec<String>),
    Clear(Box<str>),
}

impl Want {
    /// The table that it is of. Names are of none, and no table has this name.
    fn table(&self) -> &str {
        match self {
            Want::Table(table) | Want::Row(table, _) | Want::Walk(table, ..) | Want::Count(table) => table,
            Want::Create(table, _) | Want::Learn(table, ..) | Want::Clear(table) => table,
            Want::Names => "",
        }
    }
}

/// What is wanted, each once, in the order in which it was asked for.
#[derive(Default)]
struct Wanted {
    all: Vec<Want>,
    /// Which of them are of a table, rows left out: there may be as many tables as there are prefixes of keys.
    by_table: HashMap<Box<str>, Vec<usize>>,
}

impl Wanted {
    fn add(&mut self, want: Want) {
        // A run wants a row once, and there may be many.
        if !matches!(want, Want::Row(..)) {
            let known = self.by_table.entry(want.table().into()).or_default();
            if known.iter().any(|&at| self.all[at] == want) {
                return;
            }
            known.push(self.all.len());
        }
        self.all.push(want);
    }
}

/// Where a walk through the rows of a table goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WalkCursor {
    /// The table's number, and the group that is walked; 0 at the start.
    table: u32,
    group: u32,
    at: Cursor,
}

impl WalkCursor {
    /// Whether a walk through the table of this number can go on here.
    pub(super) fn is_of(&self, table: u32) -> bool {
        *self == WalkCursor::START || self.table == table
    }

    /// From the start of a table.
    pub const START: WalkCursor = WalkCursor { table: 0, group: 0, at: Cursor::START };

    /// Bytes of memory it takes besides its own.
    pub fn bytes(&self) -> usize {
        self.at.place().map_or(0, <[u8]>::len)
    }
}

/// Bytes that a row takes besides its own.
const ROW_BYTES: usize = 64;

/// How many times longer than an entry of the catalog the schema is that is made of it, about.
const SCHEMA_TIMES: usize = 4;

/// How much may come with an exchange of several attempts.
#[derive(Debug, Clone, Copy)]
pub struct FetchRoom {
    /// After so many bytes nothing more is got; the last row may be over it.
    pub bytes: usize,
    /// Whether that does not hold for the first of the attempts.
    pub first_goes: bool,
}

/// Rows in one step of a walk, at most: they are all in memory at once.
const WALK_ROWS_MAX: usize = 1_024;

impl Transaction {
    pub(super) fn new(store: Arc<PairStore>) -> Transaction {
        let (now_ms, at_hand) = (store.clock.now_ms(), store.at_hand.attempt());
        Transaction {
            store,
            now_ms,
            tables: HashMap::new(),
            rows: HashMap::new(),
            walks: Vec::new(),
            counts: HashMap::new(),
            names: None,
            cleared: Vec::new(),
            looked_again: HashMap::new(),
            expired: HashMap::new(),
            wanted: RefCell::default(),
            edited: None,
            changes: TransactionBytes::default(),
            followed: None,
            step: None,
            at_hand,
        }
    }

    /// Forgets everything: what is at hand, what was changed, what was wanted. The next attempt begins now.
    pub fn restart(&mut self) {
        *self = Transaction::new(Arc::clone(&self.store));
    }

    /// The time this attempt goes by, in ms since 1970.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// A table's schema; `None` if there is no such table.
    ///
    /// # Errors
    /// `NotInMemory`.
    pub fn schema(&self, table: &str) -> Result<Option<&Arc<TableSchema>>> {
        Ok(self.entry(table)?.map(|entry| &entry.schema))
    }

    pub(super) fn entry(&self, table: &str) -> Result<Option<&CatalogEntry>> {
        match self.tables.get(table) {
            Some(seen) => Ok(seen.as_ref().map(|seen| &seen.entry)),
            // There can be no such table.
            None if self.store.check_name(table).is_err() => Ok(None),
            None => Err(self.want(Want::Table(table.into()))),
        }
    }

    fn existing(&self, table: &str) -> Result<&CatalogEntry> {
        self.entry(table)?.ok_or_else(|| no_table(table))
    }

    /// Has a row fetched with what else is wanted, unless it is at hand.
    pub fn prefetch(&self, table: &str, key: &[u8]) {
        // That it is not at hand is recorded, and what else may be wrong is told to whoever reads it.
        drop(self.read(table, key, |_| Ok(())));
    }

    /// Runs `read` on a row, or on `None` if there is none. Changes of this attempt are seen.
    ///
    /// # Errors
    /// `NotInMemory`; `NotFound` if there is no such table; `Corrupted`, `Version`; those of `read`.
    pub fn read<R>(
        &self,
        table: &str,
        key: &[u8],
        read: impl FnOnce(Option<&HeldRow<'_>>) -> Result<R>,
    ) -> Result<R> {
        let want = || self.want(Want::Row(table.into(), key.into()));
        let entry = match self.tables.contains_key(table) || self.store.check_name(table).is_err() {
            true => self.existing(table)?,
            // The table is wanted with it.
            false => return Err(want()),
        };
        if self.store.check_key(key).is_err() {
            // There can be no such row.
            return read(None);
        }
        let row = self.rows.get(&pair_key(entry.group, key)).ok_or_else(want)?;
        read(self.held(entry, key, row)?.as_ref())
    }

    fn held<'r>(
        &self,
        entry: &'r CatalogEntry,
        key: &'r [u8],
        row: &'r RowAtHand,
    ) -> Result<Option<HeldRow<'r>>> {
        let Some(value) = row.value() else { return Ok(None) };
        let stored = StoredRow::parse(entry.group, key, value)?;
        Ok(Some(HeldRow::new(stored, &entry.schema, row.version(), self.now_ms)))
    }

    /// Changes a row as it is to be once this is committed. Says whether there was a row; of a `Put` of a row that is not at hand always false.
    ///
    /// # Errors
    /// `NotInMemory`, where the row is needed, or names that an open table has not learned yet; `NotFound` if there is no such table;
    /// `Invalid`. So it is once all changes together take more than [`TRANSACTION_BYTES_MAX`](crate::limits::TRANSACTION_BYTES_MAX) in memory: then
    /// they are forgotten, and nothing can be committed until what is wanted is fetched, or the attempt restarted.
    pub fn edit<F: FieldName>(&mut self, table: &str, key: &[u8], edit: &Edit<'_, F>) -> Result<bool> {
        match self.store.check_key(key) {
            Err(_) if matches!(edit, Edit::Delete) => return Ok(false),
            checked => checked?,
        }
        let entry = self.existing(table)?.clone();
        let pair = pair_key(entry.group, key);
        let row = self.rows.get(&pair);
        if row.is_none() && edit.needs_row() {
            return Err(self.want(Want::Row(table.into(), key.into())));
        }
        let target = Target {
            group: entry.group,
            key,
            schema: &entry.schema,
            now_ms: self.now_ms,
            value_bytes_max: self.store.backend.capabilities().value_bytes_max,
        };
        let existed = row.is_some_and(|row| row.value().is_some());
        let held = match row {
            // What does not look at the row does not mind that it is damaged.
            Some(row) if edit.looks_at_row() => self.held(&entry, key, row)?,
            _ => None,
        };
        let value = edit.apply(target, held.as_ref()).map_err(|error| self.refused(table, &entry, error))?;
        if existed || value.is_some() || row.is_none() {
            self.set_change(pair, value.map(Arc::new))?;
        }
        Ok(existed)
    }

    fn set_change(&mut self, pair_key: Vec<u8>, value: NewValue) -> Result<()> {
        // What it replaces is in memory until then.
        if let Err(error) = self.changes.hold(change_bytes(&pair_key, &value)) {
            self.forget_changes();
            return Err(error);
        }
        let before = self.rows.get(&pair_key).map(RowAtHand::bytes);
        let blind = RowAtHand { seen: Expect::Any, got: None, change: None };
        let row = self.rows.entry(pair_key.clone()).or_insert(blind);
        let change = row.change.replace(value);
        // A row whose change was refused may be at hand again without having been counted.
        self.at_hand.set((self.at_hand.bytes() + row.bytes()).saturating_sub(before.unwrap_or(0)));
        match &mut self.edited {
            Some(edited) if !edited.contains_key(&pair_key) => {
                edited.insert(pair_key, Edited { is_new: before.is_none(), change });
            }
            _ => self.changes.let_go(held_bytes(&pair_key, change.as_ref())),
        }
        Ok(())
    }

    /// Forgets what rows were to be, and those of which no more is known.
    fn forget_changes(&mut self) {
        self.rows.retain(|_, row| row.seen != Expect::Any);
        self.rows.values_mut().for_each(|row| row.change = None);
        (self.edited, self.followed) = (None, None);
        self.count_bytes();
    }

    /// Begins a part of the run, which may be undone.
    pub fn begin_part(&mut self) {
        for (pair_key, Edited { change, .. }) in self.edited.replace(HashMap::new()).into_iter().flatten() {
            self.changes.let_go(held_bytes(&pair_key, change.as_ref()));
        }
    }

    /// Undoes the edits of the part that was begun last: they were of something that cannot be done whole.
    pub fn undo_part(&mut self) {
        for (pair_key, Edited { is_new, change }) in self.edited.take().into_iter().flatten() {
            let Some(row) = self.rows.get_mut(&pair_key) else { continue };
            let before = row.bytes();
            let undone = std::mem::replace(&mut row.change, change);
            let mut now = row.bytes();
            if is_new {
                self.rows.remove(&pair_key);
                now = 0;
            }
            self.changes.let_go(held_bytes(&pair_key, undone.as_ref()));
            self.at_hand.set((self.at_hand.bytes() + now).saturating_sub(before));
        }
    }

    /// Whether an edit could be made of some row of this table, whatever there is.
    ///
    /// # Errors
    /// As [`Transaction::edit`].
    pub fn check<F: FieldName>(&self, table: &str, edit: &Edit<'_, F>) -> Result<()> {
        let entry = self.existing(table)?;
        let target = Target {
            group: entry.group,
            key: &[],
            schema: &entry.schema,
            now_ms: self.now_ms,
            value_bytes_max: self.store.backend.capabilities().value_bytes_max,
        };
        edit.apply(target, None).map(drop).map_err(|error| self.refused(table, entry, error))
    }

    fn refused(&self, table: &str, entry: &CatalogEntry, error: PlanError) -> Error {
        match error {
            PlanError::Invalid(error) => error,
            PlanError::Unknown(names) => self.want(Want::Learn(table.into(), entry.table, names)),
        }
    }

    /// Whether there is something to commit, or was, and was refused.
    pub fn has_changes(&self) -> bool {
        self.check_changes().is_err() || self.rows.values().any(|row| row.change.is_some())
    }

    /// Whether all changes that were asked for are there to be committed.
    ///
    /// # Errors
    /// `Invalid` if they were too much, and were forgotten: see [`Transaction::edit`].
    pub fn check_changes(&self) -> Result<()> {
        self.changes.check()
    }

    /// A number that tells a row as it was got from all that is ever under its key; `None` if there was none. Changes of this
    /// attempt do not matter.
    ///
    /// # Errors
    /// `NotInMemory`; `NotFound` if there is no such table.
    pub fn seen(&self, table: &str, key: &[u8]) -> Result<Option<Mark>> {
        let entry = self.existing(table)?;
        if self.store.check_key(key).is_err() {
            // There can be no such row.
            return Ok(None);
        }
        match self.rows.get(&pair_key(entry.group, key)).map(|row| row.seen) {
            Some(Expect::Same(mark)) => Ok(Some(mark)),
            Some(Expect::Absent) => Ok(None),
            _ => Err(self.want(Want::Row(table.into(), key.into()))),
        }
    }

    /// Runs `look` on some rows of a table, in no order: at most `rows` of them, and perhaps none. What is there throughout a walk comes
    /// at least once. `look` is told of one that is damaged, too. Changes of this attempt are not seen. Gives where to go on; `None` at the end.
    ///
    /// # Errors
    /// `NotInMemory`; `NotFound` if there is no such table; those of `look`.
    pub fn walk(
        &self,
        table: &str,
        from: &WalkCursor,
        rows: usize,
        mut look: impl FnMut(Result<HeldRow<'_>>) -> Result<()>,
    ) -> Result<Option<WalkCursor>> {
        let value_bytes_max = self.store.backend.capabilities().value_bytes_max;
        let rows = rows.clamp(1, WALK_ROWS_MAX.min(rows_under_way(value_bytes_max)));
        let entry = self.existing(table)?;
        if !from.is_of(entry.table) {
            return Err(Error::invalid("a walk goes on in the table that it began in"));
        }
        if *from != WalkCursor::START && from.group != entry.group {
            // Its table was cleared: nothing of what it walked was there throughout.
            return Ok(None);
        }
        let is_whole =
            |walk: &&WalkAtHand| walk.is(table, from, rows, entry.group) && walk.expired.is_empty();
        let Some(walked) = self.walks.iter().find(is_whole) else {
            return Err(self.want(Want::Walk(table.into(), from.clone(), rows)));
        };
        for pair in &walked.pairs {
            let stored = StoredRow::parse(entry.group, row_key(pair)?, &pair.value);
            let row =
                stored.map(|stored| HeldRow::new(stored, &entry.schema, pair.mark.number(), self.now_ms));
            look(row)?;
        }
        let (table, group) = (entry.table, entry.group);
        Ok(walked.next.clone().map(|at| WalkCursor { table, group, at }))
    }

    /// About how many rows a table has, changes of this attempt left out: expired ones that nobody has come by are counted.
    ///
    /// # Errors
    /// `NotInMemory`; `NotFound` if there is no such table.
    pub fn count(&self, table: &str) -> Result<u64> {
        let group = self.existing(table)?.group;
        let count = self.counts.get(table).filter(|(counted, _)| *counted == group);
        count.map(|(_, count)| *count).ok_or_else(|| self.want(Want::Count(table.into())))
    }

    /// The names of all tables, in order.
    ///
    /// # Errors
    /// `NotInMemory`.
    pub fn table_names(&self) -> Result<&[String]> {
        self.names.as_deref().ok_or_else(|| self.want(Want::Names))
    }

    /// Has a table made, if there is none of this name. It is there at once for everybody, whatever becomes of this attempt.
    ///
    /// # Errors
    /// `NotInMemory`; `Exists` if there is one with another schema; `Invalid`.
    pub fn create_table(&self, table: &str, schema: &Schema) -> Result<()> {
        match self.entry(table)? {
            Some(entry) if entry.schema.accepts(schema) => Ok(()),
            Some(_) => Err(exists(table)),
            None => Err(self.want(Want::Create(table.into(), schema.clone()))),
        }
    }

    /// Has all rows of a table removed: once for this attempt, at once, and whatever becomes of it. What was read of it before is not at hand any
    /// more.
    ///
    /// # Errors
    /// `NotInMemory`; `NotFound` if there is no such table.
    pub fn clear(&self, table: &str) -> Result<()> {
        if self.cleared.iter().any(|cleared| **cleared == *table) {
            return Ok(());
        }
        self.existing(table)?;
        Err(self.want(Want::Clear(table.into())))
    }

    /// Bytes of the rows that are at hand, as they were got and as they are to be, and about those of what is known of their tables.
    pub fn bytes_at_hand(&self) -> usize {
        self.at_hand.bytes()
    }

    /// After what is at hand has changed.
    fn count_bytes(&mut self) {
        let rows = self.rows.values().map(RowAtHand::bytes);
        let walked = self.walks.iter().flat_map(|walk| &walk.pairs).map(|pair| ROW_BYTES + pair.value.len());
        let tables = self.tables.values().flatten().map(|seen| seen.bytes.saturating_mul(SCHEMA_TIMES));
        self.at_hand.set(rows.sum::<usize>() + walked.sum::<usize>() + tables.sum::<usize>());
        let changes = self.rows.iter().map(|(key, row)| held_bytes(key, row.change.as_ref()));
        let edited =
            self.edited.iter().flatten().map(|(key, edited)| held_bytes(key, edited.change.as_ref()));
        self.changes.set(changes.sum::<usize>() + edited.sum::<usize>());
    }

    /// Whether something is to be fetched.
    pub fn wants(&self) -> bool {
        !self.wanted.borrow().all.is_empty()
    }

    /// Whether something is to be made, cleared or taught names with the next fetch: that happens for everybody, whatever becomes of this attempt.
    pub fn wants_changes(&self) -> bool {
        let changes = |want: &Want| matches!(want, Want::Create(..) | Want::Learn(..) | Want::Clear(_));
        self.wanted.borrow().all.iter().any(changes)
    }

    /// Records what is not at hand.
    fn want(&self, want: Want) -> Error {
        self.wanted.borrow_mut().add(want);
        Error::new(ErrorKind::NotInMemory, "it is not at hand: have it fetched, then try again")
    }
}

/// Bytes in memory of what a row is to be.
fn change_bytes(pair_key: &[u8], value: &NewValue) -> usize {
    TransactionBytes::of_write(pair_key.len(), value.as_ref().map_or(0, |value| value.len()))
}

/// The same of a change that there may be.
fn held_bytes(pair_key: &[u8], change: Option<&NewValue>) -> usize {
    change.map_or(0, |value| change_bytes(pair_key, value))
}

pub(super) fn no_table(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no table {name:?}"))
}

pub(super) fn exists(name: &str) -> Error {
    Error::new(ErrorKind::Exists, format!("the table {name:?} exists with another schema"))
}

fn row_key(pair: &Pair) -> Result<&[u8]> {
    pair.key.get(GROUP_BYTES..).ok_or_else(|| unexpected("a key"))
}
