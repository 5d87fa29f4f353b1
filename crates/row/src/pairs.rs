//! Rows over a backend that keeps pairs: tables with schemas, and their rows, each of them one pair.
//!
//! Owns what a table and its rows are as pairs, for every such backend. Names and meaning are those of the tiered store's `Db` and `Table`. Must not know
//! which backend it is.
//!
//! | file | what |
//! |---|---|
//! | `pairs/transaction.rs` | an attempt at reading and changing rows that never waits: all else is made of it |
//! | `pairs/transaction/steps.rs` | what waits, of one attempt or of many together |
//! | `pairs/table.rs` | tables, for callers that wait |
//! | `pairs/batch.rs` | several changes of one row as one |
//! | `pairs/edit.rs` | what an edit makes of a row |
//! | `pairs/held_row.rs` | a row as it was got |
//! | `pairs/catalog.rs` | bytes of the catalog's pairs |
//! | `pairs/at_hand.rs` | how many bytes all attempts have at hand |
//! | `pairs/hints.rs` | tables as they were seen last |
//! | `pairs/exchange.rs` | commands together, and their answers |
//!
//! **One row is one step.** A change is a conditional write of one pair, so a row changes whole or not at all, whoever else writes, in this process or
//! in another. What spans several rows is a [batch](crate::backend::Command::Batch) of conditional writes, where the backend has them; else who asks for it is told
//! `Unsupported`, as who asks for a snapshot, or a scan in order, always is.
//!
//! **Everybody has the same tables**: they are pairs, too, and each attempt looks at them first. A change of a table's schema is there for all attempts
//! that begin after it. Clearing a table gives its rows another group, at once; what an attempt that had begun before writes into the old one
//! is as if it had been cleared. It may stay there as bytes that nobody finds.

mod at_hand;
mod batch;
mod catalog;
mod edit;
mod exchange;
mod held_row;
mod hints;
mod table;
mod transaction;

use std::collections::HashSet;
use std::sync::Arc;

use at_hand::AtHand;
pub use batch::PairBatch;
use catalog::{
    CATALOG_GROUP, CatalogEntry, SeenEntry, counter_key, decode_counter, encode_counter, entry_key,
};
pub use edit::Edit;
use exchange::{ask_one, get, put, unexpected};
use hedgerow_device::Clock;
pub use held_row::HeldRow;
use hints::Hints;
pub use table::PairTable;
pub use transaction::{FetchRoom, Transaction, WalkCursor};
use transaction::{exists, no_table};

use crate::backend::{Answer, Backend, Capabilities, Command, Cursor, Expect, GROUP_BYTES, Pair, Session};
use crate::limits::{KEY_BYTES_MAX, TABLE_NAME_BYTES_MAX};
use crate::schema::table::TableSchema;
use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result, Schema};

/// An open store of rows over a backend that keeps pairs. Cheap to clone, `Send + Sync`.
#[derive(Clone)]
pub struct PairDb {
    store: Arc<PairStore>,
}

/// What all handles share.
struct PairStore {
    backend: Arc<dyn Backend>,
    clock: Clock,
    /// Tables as they were seen last: where to look, never what to believe.
    hints: Mutex<Hints>,
    at_hand: AtHand,
    /// Groups whose rows are gone for everybody, but not yet from the backend, which failed then.
    unfreed: Mutex<Vec<u32>>,
    /// Groups of tables that may have been cleared or dropped: what the store answered did not say.
    doubtful: Mutex<Vec<(Box<str>, u32)>>,
    /// Sessions that nobody uses at the moment.
    sessions: Mutex<Vec<Box<dyn Session>>>,
}

/// Pairs of the catalog in one step of a walk.
const NAMES_STEP: usize = 256;

/// Groups that were not freed when they should have been, of which some are tried again with the next.
const UNFREED_MAX: usize = 64 << 10;

/// Of those, so many.
const UNFREED_TRIED: usize = 16;

fn walk_of_names(from: Cursor, pairs: usize) -> Command<'static> {
    Command::Walk { group: CATALOG_GROUP, from, pairs }
}

/// The tables whose pairs these are. One that is damaged has a name all the same: who opens it is told, and it can be dropped. One whose name is no
/// text is nobody's, and nobody could open it or drop it.
fn names_of(pairs: &[Pair]) -> impl Iterator<Item = String> {
    let name = |pair: &Pair| String::from_utf8(pair.key.get(GROUP_BYTES..)?.to_vec()).ok();
    pairs.iter().filter_map(name).filter(|name| !name.is_empty())
}

impl PairDb {
    /// The rows in a backend, which goes by the machine's clock.
    pub fn open(backend: Arc<dyn Backend>) -> PairDb {
        PairDb::open_at(backend, Clock::system())
    }

    /// [`PairDb::open`], by another clock.
    pub fn open_at(backend: Arc<dyn Backend>, clock: Clock) -> PairDb {
        let (hints, sessions) = (Mutex::default(), Mutex::default());
        let (unfreed, doubtful) = (Mutex::default(), Mutex::default());
        let at_hand = AtHand::default();
        PairDb { store: Arc::new(PairStore { backend, clock, hints, at_hand, unfreed, doubtful, sessions }) }
    }

    /// What the backend can, and how much it takes.
    pub fn capabilities(&self) -> &Capabilities {
        self.store.backend.capabilities()
    }

    /// What the backend has counted, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.store.backend.counters()
    }

    /// Bytes of the rows that are at hand for all attempts there are, and about those of their tables. A row that several have got together counts for each.
    pub fn bytes_at_hand(&self) -> usize {
        self.store.at_hand.bytes()
    }

    /// A session of the backend, for a thread of its own that [fetches](Transaction::fetch) and [commits](Transaction::commit).
    ///
    /// # Errors
    /// `Closed`.
    pub fn session(&self) -> Result<Box<dyn Session>> {
        self.store.backend.session()
    }

    /// An attempt at reading and changing rows, for callers that must not wait.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(Arc::clone(&self.store))
    }

    /// Runs `run` on an attempt until all that it wants is at hand and what it changes is committed: several times, perhaps. Waits for the
    /// backend meanwhile.
    ///
    /// # Errors
    /// Those of `run`, and of [`Transaction::fetch`] and [`Transaction::commit`] but `Conflict`.
    pub fn transact<R>(&self, run: impl FnMut(&mut Transaction) -> Result<R>) -> Result<R> {
        self.store.with_session(|session| attempt(&mut self.transaction(), session, run))
    }

    /// Creates a table, or opens the one of that name if it has the same schema.
    ///
    /// # Errors
    /// `Exists` if there is one with another schema; `Invalid` if the name or the schema cannot be.
    pub fn create_table(&self, name: &str, schema: Schema) -> Result<PairTable> {
        let seen = self.store.with_session(|session| self.store.create(session, name, &schema))?;
        Ok(PairTable::new(self, name, seen.entry.table))
    }

    /// Opens a table with at least these fields: makes it if there is none, and adds the fields that it does not have, for everybody. Fields
    /// that `schema` does not name stay, rows are not rewritten, and a field that was added holds its default in rows that are there.
    ///
    /// # Errors
    /// `Exists` if a field has another type or default there, or only one of the two is nullable: the message says all that differs; `Invalid`
    /// if the name or the schema cannot be.
    pub fn ensure_table(&self, name: &str, schema: Schema) -> Result<PairTable> {
        let seen = self.store.with_session(|session| self.store.ensure(session, name, &schema))?;
        Ok(PairTable::new(self, name, seen.entry.table))
    }

    /// Opens a table.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn table(&self, name: &str) -> Result<PairTable> {
        let seen = self.store.with_session(|session| self.store.look(session, name))?;
        let seen = seen.ok_or_else(|| no_table(name))?;
        Ok(PairTable::new(self, name, seen.entry.table))
    }

    /// The tables' names, in order.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn table_names(&self) -> Result<Vec<String>> {
        self.transact(|transaction| transaction.table_names().map(<[String]>::to_vec))
    }

    /// The names of some tables, in no order: at most `most`, and perhaps none. What is there throughout a walk comes at least once. Gives where to go on;
    /// `None` at the end.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn some_table_names(&self, from: &Cursor, most: usize) -> Result<(Vec<String>, Option<Cursor>)> {
        let walk = walk_of_names(from.clone(), most);
        match self.store.with_session(|session| ask_one(session, walk))? {
            Answer::Walked(pairs, next) => Ok((names_of(&pairs).collect(), next)),
            _ => Err(unexpected("pairs")),
        }
    }

    /// Drops a table with all its rows; false if there is none. Its name is free again at once.
    ///
    /// # Errors
    /// Those of the backend.
    pub fn drop_table(&self, name: &str) -> Result<bool> {
        self.store.with_session(|session| self.store.drop_table(session, name))
    }

    /// Makes durable what was written before.
    ///
    /// # Errors
    /// `Unsupported` where the backend keeps nothing; those of the backend.
    pub fn persist(&self) -> Result<()> {
        match self.store.with_session(|session| ask_one(session, Command::Persist))? {
            Answer::Persisted => Ok(()),
            _ => Err(unexpected("that it is durable")),
        }
    }

    /// Closes the backend, for everybody.
    ///
    /// # Errors
    /// What it failed to make durable.
    pub fn close(&self) -> Result<()> {
        self.store.backend.close()
    }
}

/// Whether an error may say that the device of a session went away: then another session is to be used.
pub fn may_be_of_a_broken_session(error: &Error) -> bool {
    use ErrorKind::{Closed, Indeterminate, Io, Unavailable};
    matches!(error.kind(), Closed | Indeterminate | Io | Unavailable)
}

/// See [`PairDb::transact`].
fn attempt<R>(
    transaction: &mut Transaction,
    session: &mut dyn Session,
    mut run: impl FnMut(&mut Transaction) -> Result<R>,
) -> Result<R> {
    loop {
        let done = match run(transaction) {
            // What it wanted it did not get, whatever it made of that.
            Ok(_) if transaction.wants() => transaction.fetch(session).map(|()| None),
            Ok(result) => transaction.commit(session).map(|()| Some(result)),
            Err(error) if error.kind() == ErrorKind::NotInMemory && transaction.wants() => {
                transaction.fetch(session).map(|()| None)
            }
            Err(error) => return Err(error),
        };
        match done {
            Ok(Some(result)) => return Ok(result),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Conflict => transaction.restart(),
            Err(error) => return Err(error),
        }
    }
}

impl PairStore {
    fn with_session<R>(&self, run: impl FnOnce(&mut dyn Session) -> Result<R>) -> Result<R> {
        let kept = self.sessions.lock().pop();
        let mut session = match kept {
            Some(session) => session,
            None => self.backend.session()?,
        };
        let result = run(&mut *session);
        if !result.as_ref().is_err_and(may_be_of_a_broken_session) {
            self.sessions.lock().push(session);
        }
        result
    }

    /// Refuses a key that no row here can have.
    fn check_key(&self, key: &[u8]) -> Result<()> {
        let max = KEY_BYTES_MAX.min(self.backend.capabilities().key_bytes_max - GROUP_BYTES);
        match key.len() {
            1.. if key.len() <= max => Ok(()),
            bytes => Err(Error::invalid(format!("a key has 1 to {max} bytes; this one has {bytes}"))),
        }
    }

    fn check_name(&self, name: &str) -> Result<()> {
        let max = TABLE_NAME_BYTES_MAX.min(self.backend.capabilities().key_bytes_max - GROUP_BYTES);
        match name.len() {
            1.. if name.len() <= max => Ok(()),
            bytes => {
                Err(Error::invalid(format!("a table's name has 1 to {max} bytes; this one has {bytes}")))
            }
        }
    }

    /// A table as it is now.
    fn look(&self, session: &mut dyn Session, name: &str) -> Result<Option<SeenEntry>> {
        if self.check_name(name).is_err() {
            // There can be no such table.
            return Ok(None);
        }
        let key = entry_key(name);
        get(session, &key)?.map(|pair| self.seen_entry(name, &key, &pair)).transpose()
    }

    /// A table's entry as it was got. One that has not changed since shares what was made of it.
    fn seen_entry(&self, name: &str, key: &[u8], pair: &Pair) -> Result<SeenEntry> {
        let known = self.hints.lock().get(name).filter(|known| known.mark == pair.mark).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let entry = CatalogEntry::decode(key, &pair.value)?;
        let seen = SeenEntry { entry, mark: pair.mark, bytes: pair.value.len() };
        self.hints.lock().insert(name, seen.clone());
        Ok(seen)
    }

    /// A number that no table and no group ever had.
    fn next_number(&self, session: &mut dyn Session) -> Result<u32> {
        let key = counter_key();
        loop {
            let (number, expect) = match get(session, &key)? {
                Some(pair) => (decode_counter(&pair.value)?, Expect::Same(pair.mark)),
                None => (1, Expect::Absent),
            };
            let after = number.checked_add(1).ok_or_else(|| {
                Error::invalid(format!("{} tables were made or cleared; there can be no more", u32::MAX))
            })?;
            match put(session, &key, &encode_counter(after), expect) {
                Ok(_) => return Ok(number),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The table of this name, made if there is none.
    fn create(&self, session: &mut dyn Session, name: &str, schema: &Schema) -> Result<SeenEntry> {
        self.check_name(name)?;
        let mut new = None;
        loop {
            if let Some(seen) = self.look(session, name)? {
                return if seen.entry.schema.accepts(schema) { Ok(seen) } else { Err(exists(name)) };
            }
            let entry = match &new {
                Some(entry) => CatalogEntry::clone(entry),
                None => {
                    let schema = Arc::new(TableSchema::create(schema)?);
                    let number = self.next_number(session)?;
                    new.insert(CatalogEntry { table: number, group: number, schema }).clone()
                }
            };
            match self.store_entry(session, name, entry, Expect::Absent) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                other => return other,
            }
        }
    }

    /// The table of this name, with at least these fields.
    fn ensure(&self, session: &mut dyn Session, name: &str, schema: &Schema) -> Result<SeenEntry> {
        loop {
            match self.create(session, name, schema) {
                Err(error) if error.kind() == ErrorKind::Exists => {}
                done => return done,
            }
            match self.evolve(session, name, None, |there| there.with_ensured(name, schema)) {
                // It was dropped in between.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                done => return done,
            }
        }
    }

    fn store_entry(
        &self,
        session: &mut dyn Session,
        name: &str,
        entry: CatalogEntry,
        expect: Expect,
    ) -> Result<SeenEntry> {
        let key = entry_key(name);
        let value = entry.encode(&key);
        let mark = put(session, &key, &value, expect)?;
        let seen = SeenEntry { entry, mark, bytes: value.len() };
        self.hints.lock().insert(name, seen.clone());
        Ok(seen)
    }

    /// Changes the entry of a table, of the one with this number if one is given; gives the entry before and after.
    fn change(
        &self,
        session: &mut dyn Session,
        (name, table): (&str, Option<u32>),
        mut change: impl FnMut(&CatalogEntry) -> Result<CatalogEntry>,
    ) -> Result<(SeenEntry, SeenEntry)> {
        loop {
            let before = self.look(session, name)?.ok_or_else(|| no_table(name))?;
            if table.is_some_and(|table| table != before.entry.table) {
                return Err(no_table(name));
            }
            let (key, after) = (entry_key(name), change(&before.entry)?);
            if after.encode(&key) == before.entry.encode(&key) {
                return Ok((before.clone(), before));
            }
            match self.store_entry(session, name, after, Expect::Same(before.mark)) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error),
                Ok(after) => return Ok((before, after)),
            }
        }
    }

    /// Changes the schema of a table.
    fn evolve(
        &self,
        session: &mut dyn Session,
        name: &str,
        table: Option<u32>,
        change: impl Fn(&TableSchema) -> Result<TableSchema>,
    ) -> Result<SeenEntry> {
        let evolved = |entry: &CatalogEntry| {
            Ok(CatalogEntry { schema: Arc::new(change(&entry.schema)?), ..entry.clone() })
        };
        Ok(self.change(session, (name, table), evolved)?.1)
    }

    /// Gives a table another group, in which there is nothing; what was in the old one goes.
    fn clear(&self, session: &mut dyn Session, name: &str, table: Option<u32>) -> Result<SeenEntry> {
        self.look(session, name)?.ok_or_else(|| no_table(name))?;
        let group = self.next_number(session)?;
        let mut old = group;
        let cleared = |entry: &CatalogEntry| {
            old = entry.group;
            Ok(CatalogEntry { group, ..entry.clone() })
        };
        let (before, after) =
            self.change(session, (name, table), cleared).inspect_err(|error| self.doubt(error, name, old))?;
        self.free(session, Some(before.entry.group));
        Ok(after)
    }

    fn drop_table(&self, session: &mut dyn Session, name: &str) -> Result<bool> {
        loop {
            let key = entry_key(name);
            if self.check_name(name).is_err() {
                return Ok(false);
            }
            let Some(pair) = get(session, &key)? else {
                self.free(session, None);
                return Ok(false);
            };
            // One that is damaged does not say where its rows are.
            let group = CatalogEntry::decode(&key, &pair.value).ok().map(|entry| entry.group);
            match ask_one(session, Command::Delete { key: &key, expect: Expect::Same(pair.mark) }) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => {
                    group.into_iter().for_each(|group| self.doubt(&error, name, group));
                    return Err(error);
                }
                Ok(_) => {
                    self.hints.lock().remove(name);
                    self.free(session, group);
                    return Ok(true);
                }
            }
        }
    }

    /// Remembers the group that a table had when it was cleared or dropped, if this error leaves it open whether it was.
    fn doubt(&self, error: &Error, name: &str, group: u32) {
        if error.kind() == ErrorKind::Indeterminate {
            let mut doubtful = self.doubtful.lock();
            doubtful.push((name.into(), group));
            let more = doubtful.len().saturating_sub(UNFREED_MAX);
            doubtful.drain(..more);
        }
    }

    /// Of the groups of which it was open whether a table has them, those that none has: a group never comes back.
    fn settle_doubtful(&self, session: &mut dyn Session) -> Vec<u32> {
        let tried: Vec<_> = {
            let mut doubtful = self.doubtful.lock();
            let tried = doubtful.len().min(UNFREED_TRIED);
            doubtful.drain(..tried).collect()
        };
        let (mut known, mut fails) = (Vec::new(), false);
        for (name, group) in tried {
            let seen = if fails { None } else { self.look(session, &name).ok() };
            fails = seen.is_none();
            match seen {
                Some(None) => known.push(group),
                Some(Some(seen)) if seen.entry.group != group => known.push(group),
                // It could not be looked at; or what was asked for may be done still. The others are looked at first the next time.
                _ => self.doubtful.lock().push((name, group)),
            }
        }
        known
    }

    /// Frees what the rows of a group take. The group is no table's any more, so what fails now is done with one of the next, and nobody need be told.
    /// Of more than are remembered the bytes stay.
    fn free(&self, session: &mut dyn Session, group: Option<u32>) {
        let settled = self.settle_doubtful(session);
        let mut groups = {
            let mut unfreed = self.unfreed.lock();
            let left = unfreed.len().saturating_sub(UNFREED_TRIED);
            unfreed.split_off(left)
        };
        groups.extend(settled.into_iter().chain(group));
        // Where one fails the others probably do, and each may take as long as the store is waited for.
        let freed = groups
            .iter()
            .rev()
            .take_while(|&&group| ask_one(session, Command::Clear { group }).is_ok())
            .count();
        groups.truncate(groups.len() - freed);
        let mut unfreed = self.unfreed.lock();
        // Those that failed now are tried last.
        unfreed.splice(0..0, groups);
        unfreed.truncate(UNFREED_MAX);
    }

    /// The names of tables, given the first step of a walk through the catalog.
    fn names_from(
        &self,
        session: &mut dyn Session,
        mut pairs: Vec<Pair>,
        mut next: Option<Cursor>,
    ) -> Result<Vec<String>> {
        let (mut names, mut walked) = (Vec::new(), HashSet::new());
        loop {
            names.extend(names_of(&pairs));
            let Some(from) = next else { break };
            if !walked.insert(from.clone()) {
                return Err(unexpected("where to go on"));
            }
            (pairs, next) = match ask_one(session, walk_of_names(from, NAMES_STEP))? {
                Answer::Walked(pairs, next) => (pairs, next),
                _ => return Err(unexpected("pairs")),
            };
        }
        // A walk may come by a pair twice.
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
