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
//! So nothing but `fetch` and `commit` waits, and a thread that must not wait leaves these two to another. [`PairTable`](super::PairTable) is the same with
//! everything in one thread.
//!
//! **The catalog first.** A table's pair is got in each attempt, not before it began, so a row is never read by a schema older than itself, nor in the group
//! of a table that had been cleared. What was known of the table earlier only says where its rows probably are, to get them in the
//! same exchange.
//!
//! **A row that has expired** by the reader's clock is answered as absent only once it is removed, or somebody else has written: of two clocks
//! that differ one might show it again. A field that has expired is absent by the reader's clock alone.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::PairStore;
use super::catalog::{CatalogEntry, SeenEntry, entry_key};
use super::edit::{Edit, Target};
use super::exchange::{ask, ask_one, get, put, unexpected};
use super::held_row::HeldRow;
use crate::backend::{Answer, Command, Cursor, Expect, GROUP_BYTES, Mark, Pair, Session, pair_key};
use crate::schema::body::is_past;
use crate::schema::plan::PlanError;
use crate::schema::table::TableSchema;
use crate::stored_row::StoredRow;
use crate::{Error, ErrorKind, FieldName, Result, Schema};

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
    /// What was asked for and is not at hand.
    wanted: RefCell<Vec<Want>>,
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
    /// The value of the pair that was read.
    got: Option<Box<[u8]>>,
    change: Option<NewValue>,
}

/// The value that a pair is to have; `None` if there is to be no pair.
type NewValue = Option<Box<[u8]>>;

impl RowAtHand {
    fn got(pair: Option<Pair>) -> RowAtHand {
        let seen = pair.as_ref().map_or(Expect::Absent, |pair| Expect::Same(pair.mark));
        RowAtHand { seen, got: pair.map(|pair| pair.value), change: None }
    }

    /// The pair's value, a change included.
    fn value(&self) -> Option<&[u8]> {
        self.change.as_ref().unwrap_or(&self.got).as_deref()
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

/// Where a walk through the rows of a table goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WalkCursor {
    /// The table's number, and the group that is walked; 0 at the start.
    table: u32,
    group: u32,
    at: Cursor,
}

impl WalkCursor {
    /// From the start of a table.
    pub const START: WalkCursor = WalkCursor { table: 0, group: 0, at: Cursor::START };

    /// Bytes of memory it takes besides its own.
    pub fn bytes(&self) -> usize {
        self.at.place().map_or(0, <[u8]>::len)
    }
}

/// Fetches in which tables change under one attempt, before that is told as a conflict.
const LOOKS_MAX: usize = 64;

/// Rows in one step of a walk, at most: they are all in memory at once.
const WALK_ROWS_MAX: usize = 1_024;

impl Transaction {
    pub(super) fn new(store: Arc<PairStore>) -> Transaction {
        let now_ms = store.clock.now_ms();
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
            wanted: RefCell::default(),
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
    /// `Invalid`.
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
            // One that is damaged can be removed, too.
            Some(row) if !matches!(edit, Edit::Delete) => self.held(&entry, key, row)?,
            _ => None,
        };
        let value = edit.apply(target, held.as_ref()).map_err(|error| self.refused(table, &entry, error))?;
        if existed || value.is_some() || row.is_none() {
            let blind = RowAtHand { seen: Expect::Any, got: None, change: None };
            self.rows.entry(pair).or_insert(blind).change = Some(value.map(Vec::into_boxed_slice));
        }
        Ok(existed)
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

    /// Whether there is something to commit.
    pub fn has_changes(&self) -> bool {
        self.rows.values().any(|row| row.change.is_some())
    }

    /// A number that tells a row as it was got from all that is ever under its key; `None` if there was none. Changes of this
    /// attempt do not matter.
    ///
    /// # Errors
    /// `NotInMemory`; `NotFound` if there is no such table.
    pub fn seen(&self, table: &str, key: &[u8]) -> Result<Option<Mark>> {
        let entry = self.existing(table)?;
        match self.rows.get(&pair_key(entry.group, key)).map(|row| row.seen) {
            Some(Expect::Same(mark)) => Ok(Some(mark)),
            Some(Expect::Absent) => Ok(None),
            _ => Err(self.want(Want::Row(table.into(), key.into()))),
        }
    }

    /// Runs `look` on some rows of a table, in no order: at most `rows` of them, and perhaps none. What is there throughout a walk comes
    /// at least once. Changes of this attempt are not seen. Gives where to go on; `None` at the end.
    ///
    /// # Errors
    /// `NotInMemory`; `NotFound` if there is no such table; those of `look`.
    pub fn walk(
        &self,
        table: &str,
        from: &WalkCursor,
        rows: usize,
        mut look: impl FnMut(&HeldRow<'_>) -> Result<()>,
    ) -> Result<Option<WalkCursor>> {
        let (entry, rows) = (self.existing(table)?, rows.clamp(1, WALK_ROWS_MAX));
        if *from != WalkCursor::START && from.table != entry.table {
            return Err(Error::invalid("a walk goes on in the table that it began in"));
        }
        if *from != WalkCursor::START && from.group != entry.group {
            // Its table was cleared: nothing of what it walked was there throughout.
            return Ok(None);
        }
        let Some(walked) = self.walks.iter().find(|walk| walk.is(table, from, rows, entry.group)) else {
            return Err(self.want(Want::Walk(table.into(), from.clone(), rows)));
        };
        for pair in &walked.pairs {
            let stored = StoredRow::parse(entry.group, row_key(pair)?, &pair.value)?;
            look(&HeldRow::new(stored, &entry.schema, pair.mark.number(), self.now_ms))?;
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
    pub fn ensure_table(&self, table: &str, schema: &Schema) -> Result<()> {
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

    /// Bytes of the rows that are at hand, as they were got.
    pub fn bytes_at_hand(&self) -> usize {
        let rows = self.rows.values().filter_map(|row| row.got.as_ref()).map(|value| value.len());
        let walked = self.walks.iter().flat_map(|walk| &walk.pairs).map(|pair| pair.value.len());
        rows.sum::<usize>() + walked.sum::<usize>()
    }

    /// Whether something is to be fetched.
    pub fn wants(&self) -> bool {
        !self.wanted.borrow().is_empty()
    }

    /// Records what is not at hand.
    fn want(&self, want: Want) -> Error {
        let mut wanted = self.wanted.borrow_mut();
        // A run wants a row once, and there may be many.
        if matches!(want, Want::Row(..)) || !wanted.contains(&want) {
            wanted.push(want);
        }
        Error::new(ErrorKind::NotInMemory, "it is not at hand: have it fetched, then try again")
    }
}

/// What waits.
impl Transaction {
    /// Brings what was wanted, and forgets what was changed: the run begins again. Blocks; the session is this attempt's alone meanwhile.
    ///
    /// # Errors
    /// Those of the backend; of what was to be done to the catalog: `Exists`, `Invalid`, `NotFound`. `Conflict` if tables change so quickly that no
    /// row could be got.
    pub fn fetch(&mut self, session: &mut dyn Session) -> Result<()> {
        let mut wanted = std::mem::take(self.wanted.get_mut());
        if wanted.is_empty() {
            return Ok(());
        }
        self.rows.retain(|_, row| row.seen != Expect::Any);
        self.rows.values_mut().for_each(|row| row.change = None);
        if self.change_catalog(session, &wanted)? {
            // An error of what is still to be got would say that nothing was changed: the run wants it again.
            self.forget_other_groups();
            return Ok(());
        }
        for _ in 0..LOOKS_MAX {
            wanted = self.fetch_once(session, wanted)?;
            if wanted.is_empty() {
                self.forget_other_groups();
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Conflict, "the tables change all the while"))
    }

    /// Rows that were got where a table had been before it was cleared are none of its.
    fn forget_other_groups(&mut self) {
        let groups = self.tables.values().flatten().map(|seen| seen.entry.group.to_be_bytes());
        let groups: Vec<[u8; GROUP_BYTES]> = groups.collect();
        self.rows.retain(|key, _| groups.iter().any(|group| key.starts_with(group)));
    }

    /// Does what was asked for to the catalog; says whether that was something.
    fn change_catalog(&mut self, session: &mut dyn Session, wanted: &[Want]) -> Result<bool> {
        let (store, mut did) = (Arc::clone(&self.store), false);
        for want in wanted {
            let (name, seen) = match want {
                Want::Create(name, schema) => (name, store.create(session, name, schema)?),
                Want::Learn(name, table, names) => {
                    let learned = |schema: &TableSchema| schema.with_learned(names);
                    (name, store.evolve(session, name, Some(*table), learned)?)
                }
                Want::Clear(name) => {
                    let seen = store.clear(session, name, None)?;
                    self.cleared.push(name.clone());
                    (name, seen)
                }
                _ => continue,
            };
            self.tables.insert(name.clone(), Some(seen));
            did = true;
        }
        Ok(did)
    }

    /// Gets what it can in one exchange; gives back what could not be got, because more had to be known first.
    fn fetch_once(&mut self, session: &mut dyn Session, wanted: Vec<Want>) -> Result<Vec<Want>> {
        let mut commands = Commands::default();
        for want in &wanted {
            self.plan(want, &mut commands);
        }
        let borrowed: Vec<Command<'_>> = commands.all.iter().map(PairCommand::command).collect();
        let answers = ask(session, &borrowed);
        drop(borrowed);
        for (command, answer) in commands.all.into_iter().zip(answers) {
            self.take(command, answer?, session)?;
        }
        Ok(wanted.into_iter().filter(|want| !self.is_at_hand(want)).collect())
    }

    /// Where the rows of a table are, as far as is known.
    fn group_of(&self, table: &str) -> Option<u32> {
        match self.tables.get(table) {
            Some(seen) => seen.as_ref().map(|seen| seen.entry.group),
            None => self.store.hints.lock().get(table).map(|seen| seen.entry.group),
        }
    }

    fn plan(&self, want: &Want, commands: &mut Commands) {
        let (Want::Table(table) | Want::Row(table, _) | Want::Walk(table, ..) | Want::Count(table)) = want
        else {
            if *want == Want::Names {
                commands.push(PairCommand::Names);
            }
            return;
        };
        if !self.tables.contains_key(table) {
            commands.push_once(entry_key(table), |key| PairCommand::Table(table.clone(), key));
        }
        let Some(group) = self.group_of(table) else { return };
        match want {
            Want::Row(_, key) if self.store.check_key(key).is_ok() => {
                commands.push_once(pair_key(group, key), |key| PairCommand::Row(group, key));
            }
            Want::Walk(_, from, rows) if from.group == 0 || from.group == group => {
                commands.push(PairCommand::Walk(table.clone(), group, from.clone(), *rows));
            }
            Want::Count(_) => commands.push(PairCommand::Count(table.clone(), group)),
            _ => {}
        }
    }

    fn take(&mut self, command: PairCommand, answer: Answer, session: &mut dyn Session) -> Result<()> {
        match (command, answer) {
            (PairCommand::Table(name, key), Answer::Got(pair)) => {
                let seen = pair.map(|pair| self.store.seen_entry(&name, &key, &pair)).transpose()?;
                self.tables.insert(name, seen);
            }
            (PairCommand::Row(group, pair_key), Answer::Got(pair)) => {
                let row = self.unexpired(session, group, &pair_key, pair)?;
                self.rows.insert(pair_key, RowAtHand::got(row));
            }
            (PairCommand::Walk(table, group, from, rows), Answer::Walked(walked, next)) => {
                let mut pairs = Vec::with_capacity(walked.len());
                for pair in walked {
                    check_group(&pair, group)?;
                    let key = pair.key.clone();
                    pairs.extend(self.unexpired(session, group, &key, Some(pair))?);
                }
                self.walks.push(WalkAtHand { table, from, rows, group, pairs, next });
            }
            (PairCommand::Count(table, group), Answer::Counted(count)) => {
                self.counts.insert(table, (group, count));
            }
            (PairCommand::Names, Answer::Walked(pairs, next)) => {
                self.names = Some(self.store.names_from(session, pairs, next)?);
            }
            _ => return Err(unexpected("what it was asked for")),
        }
        Ok(())
    }

    /// A pair as it was got, unless its row has expired: then it is removed, and what is there afterwards counts. What is no row is told to
    /// whoever reads it.
    fn unexpired(
        &self,
        session: &mut dyn Session,
        group: u32,
        pair_key: &[u8],
        mut pair: Option<Pair>,
    ) -> Result<Option<Pair>> {
        while let Some(found) = &pair {
            let expires_at_ms = StoredRow::parse(group, &pair_key[GROUP_BYTES..], &found.value)
                .map(|row| row.expires_at_ms());
            if !is_past(expires_at_ms.unwrap_or(None), self.now_ms) {
                break;
            }
            let expect = Expect::Same(found.mark);
            match ask_one(session, Command::Delete { key: pair_key, expect }) {
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
            pair = get(session, pair_key)?;
        }
        Ok(pair)
    }

    /// Whether a want is served, by a table that is at hand and not older than the rows that were got with it.
    fn is_at_hand(&mut self, want: &Want) -> bool {
        let (Want::Table(table) | Want::Row(table, _) | Want::Walk(table, ..) | Want::Count(table)) = want
        else {
            return true;
        };
        let (entry, mark) = match self.tables.get(table) {
            None => return false,
            // The call will be told.
            Some(None) => return true,
            Some(Some(seen)) => (&seen.entry, seen.mark),
        };
        let (group, version) = (entry.group, entry.schema.version());
        let is_newer = |pair_key: &[u8], value: &[u8]| {
            let row = StoredRow::parse(group, &pair_key[GROUP_BYTES..], value);
            row.is_ok_and(|row| row.schema_version() > version)
        };
        let has_newer = match want {
            Want::Row(_, key) if self.store.check_key(key).is_ok() => {
                let key = pair_key(group, key);
                match self.rows.get(&key) {
                    None => return false,
                    Some(row) => row.got.as_ref().is_some_and(|value| is_newer(&key, value)),
                }
            }
            Want::Walk(_, from, _) if from.group != 0 && from.group != group => false,
            Want::Walk(_, from, rows) => {
                match self.walks.iter().find(|walk| walk.is(table, from, *rows, group)) {
                    None => return false,
                    Some(walk) => walk.pairs.iter().any(|pair| is_newer(&pair.key, &pair.value)),
                }
            }
            Want::Count(_) => return self.counts.get(table).is_some_and(|(counted, _)| *counted == group),
            _ => false,
        };
        // A row that is still newer than what was looked at again for it is damaged, or the table is: who reads it is told.
        if has_newer && self.looked_again.insert(table.clone(), mark) != Some(mark) {
            self.tables.remove(table);
            self.walks.retain(|walk| walk.table != *table);
            return false;
        }
        true
    }

    /// Stores the row that was changed. Blocks; the session is this attempt's alone meanwhile. Does nothing if none was.
    ///
    /// # Errors
    /// `Conflict` if the row is not any more what was read: [restart](Transaction::restart), and try again. `Unsupported` if more than one row was
    /// changed, or rows were read beside the one that was: these backends change one row at a time. Those of the backend; after
    /// `Indeterminate` the change may have happened.
    pub fn commit(&mut self, session: &mut dyn Session) -> Result<()> {
        if !self.has_changes() {
            return Ok(());
        }
        if self.rows.len() > 1 || !self.walks.is_empty() {
            let message = "a change that depends on more than one row; this store changes one row at a time";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let Some((key, row)) = self.rows.iter_mut().find(|(_, row)| row.change.is_some()) else {
            return Ok(());
        };
        let is_new = row.seen == Expect::Absent;
        let seen = match row.change.as_ref().and_then(Option::as_ref) {
            Some(value) => Expect::Same(put(session, key, value, row.seen)?),
            // It was not there, and is not to be.
            None if is_new => Expect::Absent,
            None => match ask_one(session, Command::Delete { key, expect: row.seen })? {
                Answer::Deleted(_) => Expect::Absent,
                _ => return Err(unexpected("whether there was a pair")),
            },
        };
        (row.seen, row.got) = (seen, row.change.take().flatten());
        if is_new && row.got.is_some() {
            let key = key.clone();
            self.check_still_there(session, &key)?;
        }
        Ok(())
    }

    /// That a row was absent may be because its table was cleared, and its group freed, since the attempt began. If so, nobody can say whether the
    /// row was stored before that or comes after it, where others would not see it.
    fn check_still_there(&self, session: &mut dyn Session, pair_key: &[u8]) -> Result<()> {
        let at_hand = self.tables.iter().filter_map(|(name, seen)| Some((name, seen.as_ref()?)));
        for (name, seen) in at_hand.filter(|(_, seen)| pair_key.starts_with(&seen.entry.group.to_be_bytes()))
        {
            let now = self.store.look(session, name);
            if now.is_ok_and(|now| now.is_some_and(|now| now.entry.group == seen.entry.group)) {
                return Ok(());
            }
        }
        let message = "its table was cleared, or could not be looked at again: the row may have been stored, and may be gone";
        Err(Error::new(ErrorKind::Indeterminate, message))
    }
}

/// Commands of one exchange.
#[derive(Default)]
struct Commands {
    all: Vec<PairCommand>,
    /// Keys that are got.
    keys: HashSet<Vec<u8>>,
}

impl Commands {
    fn push(&mut self, command: PairCommand) {
        self.all.push(command);
    }

    /// Adds the command for a key unless it is there.
    fn push_once(&mut self, key: Vec<u8>, command: impl FnOnce(Vec<u8>) -> PairCommand) {
        if self.keys.insert(key.clone()) {
            self.all.push(command(key));
        }
    }
}

/// A command for something that is wanted.
enum PairCommand {
    Table(Box<str>, Vec<u8>),
    Row(u32, Vec<u8>),
    Walk(Box<str>, u32, WalkCursor, usize),
    Count(Box<str>, u32),
    Names,
}

impl PairCommand {
    fn command(&self) -> Command<'_> {
        match self {
            PairCommand::Table(_, key) | PairCommand::Row(_, key) => Command::Get { key },
            PairCommand::Walk(_, group, from, pairs) => {
                Command::Walk { group: *group, from: from.at.clone(), pairs: *pairs }
            }
            PairCommand::Count(_, group) => Command::Count { group: *group },
            PairCommand::Names => super::walk_of_names(Cursor::START),
        }
    }
}

fn check_group(pair: &Pair, group: u32) -> Result<()> {
    match pair.key.starts_with(&group.to_be_bytes()) {
        true => Ok(()),
        false => Err(unexpected("pairs of the group that it was asked for")),
    }
}

fn row_key(pair: &Pair) -> Result<&[u8]> {
    pair.key.get(GROUP_BYTES..).ok_or_else(|| unexpected("a key"))
}

pub(super) fn no_table(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no table {name:?}"))
}

pub(super) fn exists(name: &str) -> Error {
    Error::new(ErrorKind::Exists, format!("the table {name:?} exists with another schema"))
}
