//! The catalog: which tables there are, and their schemas.
//!
//! Owns the tables of an open store, the order of their changes, and when they are durable. A change is a record in the log
//! like a row (`catalog/format.rs`), with a sequence of its own: it is as durable as the rows before and after it, and what is
//! left after a crash is a prefix of both. The catalog in the root is a checkpoint: whole as of a sequence, stored off the
//! callers' path. Promises:
//!
//! 1. A row that was written under a change has a higher sequence than it: the change is published when its record has its
//!    sequence, so whoever knows of it takes his own later.
//! 2. PERSIST: a change's record is durable before a catalog that holds it, and that before the record's segment is freed. So a
//!    change is always in one of the two, and a change's record counts as obsolete from the first: whoever frees its segment stores the
//!    catalog before ([`Engine::checkpoint_catalog`]).
//! 3. What several steps come to is in one record, however many they are (`catalog/plan.rs`).
//!
//! Must not know rows.

mod format;
mod plan;
mod replay;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};

use self::format::{EMPTY_BYTES, Stored, encode_catalog, entry_bytes, malformed};
use self::plan::Plan;
pub use self::plan::TableChanges;
pub(super) use self::replay::LoggedChange;
use super::engine::{Engine, TableShared};
use crate::index::{Epoch, NodeArena, RowIndex};
use crate::log::format::{CATALOG_TABLE, RecordKind, RecordSpec};
use crate::log::segment::{Claim, SegmentKind};
use crate::log::{Appender, Log, NoSpace};
use crate::schema::table::{FieldAccess, TableSchema};
use crate::{Error, Result, Schema};

/// Bytes in a table's name.
const NAME_BYTES_MAX: usize = 255;
/// With so many bytes of changes in the log that the root's catalog does not hold, it is stored whether or not they are durable:
/// so much is replayed at most when the store is opened.
const CHANGES_BYTES_MAX: u64 = 1 << 20;

/// The tables of a store.
pub(crate) struct Catalog {
    tables: ArcSwap<Tables>,
    /// Held while the catalog changes.
    changing: Mutex<State>,
    /// The root's catalog is whole as of this sequence. Held while it is stored anew.
    stored: Mutex<u64>,
    access: FieldAccess,
    /// It is the one that was stored last.
    whole: bool,
    /// Of the ids below, those that no table has are of tables which were dropped.
    all_below: u32,
    /// Changes in the log count.
    replays: bool,
}

#[derive(Default, Clone)]
struct Tables {
    by_name: HashMap<Arc<str>, Arc<TableShared>>,
    /// In order: it is the one in which they are stored.
    by_id: BTreeMap<u32, Arc<TableShared>>,
}

/// What is known of the catalog beside its tables.
struct State {
    /// Of the next table. No id is used twice.
    next_id: u32,
    /// Of the last change.
    sequence: u64,
    /// That the catalog takes when it is stored.
    bytes: u64,
    /// Of the records of changes that are not in the root's catalog.
    logged_bytes: u64,
    /// Of tables that were found to be gone when changes were replayed.
    gone: HashSet<u32>,
}

/// What a change came to.
enum Tried<R> {
    /// Done; if anything changed, under this sequence.
    Done(R, Option<u64>),
    /// There is no segment for so many bytes. Wait, and begin anew.
    NoSpace(usize, NoSpace),
}

/// The appenders that are locked through a change.
enum Locked<'l> {
    /// Nobody writes: rows go.
    Every((Vec<MutexGuard<'l, Appender>>, MutexGuard<'l, Appender>)),
    Mine(MutexGuard<'l, Appender>),
}

impl Locked<'_> {
    fn appender(&mut self) -> &mut Appender {
        match self {
            Locked::Every((appenders, _)) => &mut appenders[0],
            Locked::Mine(appender) => appender,
        }
    }
}

impl Catalog {
    /// The catalog of the root. Changes in the log are [replayed](Engine::replay_changes) later.
    pub(super) fn load(
        log: &Log,
        arena: &Arc<NodeArena>,
        epoch: &Arc<Epoch>,
        access: FieldAccess,
    ) -> Result<Catalog> {
        let stored = Stored::decode(log.load_catalog()?)?;
        let (sequence, replays) = (stored.sequence()?, log.root().changes_in_log);
        if replays && sequence.is_none() {
            return Err(malformed());
        }
        Ok(Catalog::of(stored, sequence.unwrap_or(0), (arena, epoch), access, (true, replays)))
    }

    /// The catalog of a damaged store: that which counts, or else the younger of what looks like one, and what is wrong then.
    pub(super) fn salvage(
        log: &Log,
        arena: &Arc<NodeArena>,
        epoch: &Arc<Epoch>,
        access: FieldAccess,
    ) -> (Catalog, Option<Error>) {
        let named = log.load_catalog().and_then(|bytes| {
            // A root made up for a store that lost its own names an empty one, and none was ever stored.
            let is_made_up = bytes.is_empty() && log.root().generation == 0;
            if is_made_up { Err(malformed()) } else { Ok(()) }
        });
        if named.is_ok()
            && let Ok(catalog) = Catalog::load(log, arena, epoch, access)
        {
            return (catalog, None);
        }
        let areas = log.catalog_areas().into_iter();
        let decoded = areas.filter_map(|bytes| Stored::decode(bytes).ok());
        let youngest =
            decoded.filter(|stored| !stored.entries.is_empty()).max_by_key(|stored| stored.next_id);
        let error = named.err().unwrap_or_else(malformed);
        let error = match &youngest {
            None => error,
            Some(_) => Error::corrupted(format!(
                "{}; tables and fields are taken from what looks like its copy",
                error.message()
            )),
        };
        let stored = youngest.unwrap_or_else(Stored::empty);
        // It is not known as of when it is: what the log has can only be younger, table by table.
        (Catalog::of(stored, 0, (arena, epoch), access, (false, true)), Some(error))
    }

    fn of(
        stored: Stored,
        sequence: u64,
        (arena, epoch): (&Arc<NodeArena>, &Arc<Epoch>),
        access: FieldAccess,
        (whole, replays): (bool, bool),
    ) -> Catalog {
        let (mut tables, mut bytes) = (Tables::default(), EMPTY_BYTES);
        let next_id = stored.next_id;
        for entry in stored.entries {
            bytes += entry_bytes(&entry.name, &entry.schema);
            let index = RowIndex::new(arena, epoch);
            let schema = entry.schema.with_access(access);
            tables.insert(Arc::new(TableShared::new(entry.id, &entry.name, schema, index)));
        }
        Catalog {
            tables: ArcSwap::from_pointee(tables),
            changing: Mutex::new(State { next_id, sequence, bytes, logged_bytes: 0, gone: HashSet::new() }),
            stored: Mutex::new(sequence),
            access,
            whole,
            all_below: if whole { next_id } else { 0 },
            replays,
        }
    }

    /// Whether it is what was stored last, with what is found of later changes.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// No change of it is lost: of all ids, those that no table has are of tables which were dropped.
    pub(super) fn is_sure(&mut self) {
        self.all_below = if self.whole { u32::MAX } else { 0 };
    }

    /// Whether the table with this id was surely dropped, and its rows with it.
    pub(super) fn is_gone(&self, id: u32) -> bool {
        self.by_id(id).is_none() && (id < self.all_below || self.changing.lock().gone.contains(&id))
    }

    /// Whether changes in the log count: the store was not closed in order by a build that stores the whole catalog then.
    pub(super) fn replays(&self) -> bool {
        self.replays
    }

    pub(crate) fn by_id(&self, id: u32) -> Option<Arc<TableShared>> {
        self.tables.load().by_id.get(&id).cloned()
    }

    /// Waits until a change of the catalog that is under way is done.
    pub(super) fn wait_for_change(&self) {
        drop(self.changing.lock());
    }

    pub(super) fn by_name(&self, name: &str) -> Option<Arc<TableShared>> {
        self.tables.load().by_name.get(name).cloned()
    }

    /// All tables, in the order of their ids.
    pub(crate) fn all(&self) -> Vec<Arc<TableShared>> {
        self.tables.load().by_id.values().cloned().collect()
    }

    /// Names in order.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tables.load().by_name.keys().map(|name| name.to_string()).collect();
        names.sort_unstable();
        names
    }

    fn copy(&self) -> Tables {
        Tables::clone(&self.tables.load())
    }

    /// Its bytes, whole as of `sequence`. Nothing changes meanwhile.
    fn encode(&self, state: &State, sequence: u64) -> Vec<u8> {
        let tables: Vec<_> = self.all().into_iter().map(|table| (table.schema.load_full(), table)).collect();
        let entries =
            tables.iter().map(|(schema, table)| (table.id.load(Ordering::Relaxed), &*table.name, &**schema));
        encode_catalog(state.next_id, entries, sequence)
    }
}

impl Tables {
    /// In the place of another of that name, if there is one: returns its id.
    fn insert(&mut self, table: Arc<TableShared>) -> Option<u32> {
        let id = table.id.load(Ordering::Relaxed);
        let before = self.by_name.insert(Arc::clone(&table.name), Arc::clone(&table));
        let before = before.map(|before| before.id.load(Ordering::Relaxed));
        before.into_iter().for_each(|id| drop(self.by_id.remove(&id)));
        self.by_id.insert(id, table);
        before
    }

    fn remove(&mut self, table: &TableShared) {
        self.by_id.remove(&table.id.load(Ordering::Relaxed));
        self.by_name.remove(&table.name);
    }
}

/// The record of a change, but for its body.
fn change_spec(body_bytes: usize) -> RecordSpec<'static> {
    RecordSpec {
        kind: RecordKind::Row,
        flags: 0,
        table: CATALOG_TABLE,
        schema_version: 0,
        key: &[0],
        expires_at_ms: None,
        body_bytes,
    }
}

/// Changing it.
impl Engine {
    /// Creates a table; one that exists and accepts `schema` is opened.
    pub(super) fn create_table(&self, name: &str, schema: &Schema) -> Result<Arc<TableShared>> {
        self.change(|plan| plan.create(name, schema, &|| self.new_index()))
    }

    /// Drops a table; false if there is none of that name.
    pub(super) fn drop_table(&self, name: &str) -> Result<bool> {
        self.change(|plan| Ok(plan.drop_table(name)))
    }

    /// Removes all rows of a table.
    pub(super) fn clear_table(&self, table: &Arc<TableShared>) -> Result<()> {
        self.change(|plan| {
            table.check_there()?;
            plan.clear(&table.name)
        })
    }

    /// Changes a table's schema.
    pub(super) fn evolve(
        &self,
        table: &TableShared,
        change: impl Fn(&TableSchema) -> Result<TableSchema>,
    ) -> Result<()> {
        self.change(|plan| {
            table.check_there()?;
            plan.evolve(&table.name, &change)
        })
    }

    /// Makes several changes together.
    pub(super) fn change_tables(&self, changes: &TableChanges) -> Result<()> {
        self.change(|plan| changes.apply(plan, &|| self.new_index()))
    }

    fn new_index(&self) -> RowIndex {
        RowIndex::new(&self.arena, &self.epoch)
    }

    /// Makes the change that `steps` comes to, waiting for space; it is asked again then.
    fn change<R>(&self, steps: impl Fn(&mut Plan<'_>) -> Result<R>) -> Result<R> {
        let mut waits = 0;
        loop {
            match self.try_change(&steps)? {
                Tried::Done(result, None) => return Ok(result),
                Tried::Done(result, Some(sequence)) => {
                    return self.make_durable(sequence).map(|()| result);
                }
                Tried::NoSpace(bytes, no_space) => self.wait_for_space(bytes, no_space, &mut waits)?,
            }
        }
    }

    fn try_change<R>(&self, steps: impl Fn(&mut Plan<'_>) -> Result<R>) -> Result<Tried<R>> {
        let mut state = self.catalog.changing.lock();
        let mut plan = Plan::new(&self.catalog, state.next_id);
        let result = steps(&mut plan)?;
        if plan.is_empty() {
            return Ok(Tried::Done(result, None));
        }
        let (less, more) = plan.bytes();
        let bytes = state.bytes + more - less;
        if more > less {
            self.log.make_room_for_catalog(bytes)?;
        }
        let body = plan.body();
        let claim = if plan.only_removes() { Claim::Delete } else { Claim::Write };
        let mut locked = match plan.removes_rows() {
            true => Locked::Every(self.log.every_appender()),
            false => Locked::Mine(self.log.appender()),
        };
        let (sequence, record_bytes) = match self.log_change(locked.appender(), &body, claim) {
            Ok(logged) => logged,
            Err((bytes, no_space)) => return Ok(Tried::NoSpace(bytes, no_space)),
        };
        (state.next_id, state.sequence, state.bytes) = (plan.next_id(), sequence, bytes);
        state.logged_bytes += record_bytes as u64;
        let vanished = plan.publish();
        for table in &vanished {
            table.index.clear();
            table.expiry.reset(0);
        }
        if !vanished.is_empty() {
            self.log.rows_vanished();
        }
        Ok(Tried::Done(result, Some(sequence)))
    }

    /// Writes the record of a change; returns its sequence and its length.
    fn log_change(
        &self,
        appender: &mut Appender,
        body: &[u8],
        claim: Claim,
    ) -> std::result::Result<(u64, usize), (usize, NoSpace)> {
        let spec = change_spec(body.len());
        let bytes = spec.record_bytes();
        let reservation = appender
            .reserve(&self.log, SegmentKind::Row, bytes, claim)
            .map_err(|no_space| (bytes, no_space))?;
        let with_end = bytes + reservation.end_bytes;
        self.log.tier().write(reservation.offset, with_end, |out| {
            spec.encode(out, reservation.seed_at(reservation.offset), |out| out.copy_from_slice(body));
        });
        let sequence = self.seal_record(&spec, &reservation, None);
        appender.commit(reservation, sequence);
        self.count_change(reservation.offset, bytes as u64);
        Ok((sequence, bytes))
    }

    /// Counts the record of a change as obsolete: nobody has to move it (see the second promise of the module), and no table has its id.
    pub(super) fn count_change(&self, offset: u64, bytes: u64) {
        self.log.add_obsolete(offset, bytes);
        self.log.record_vanished((offset / self.log.extent_bytes()) as u32, bytes);
    }
}

/// Storing it.
impl Engine {
    /// Stores the catalog in the root, durably, if the root's does not hold all changes.
    pub(crate) fn checkpoint_catalog(&self) -> Result<()> {
        if self.log.tier().is_read_only() {
            return Ok(());
        }
        let mut stored = self.catalog.stored.lock();
        let (bytes, sequence, logged_bytes) = {
            let state = self.catalog.changing.lock();
            if state.sequence <= *stored {
                return Ok(());
            }
            (self.catalog.encode(&state, state.sequence), state.sequence, state.logged_bytes)
        };
        // PERSIST: the records of the changes, and all writes before them, are durable before the catalog that holds them: else a
        // power cut would leave it ahead of the rows.
        self.log.persist_to(sequence)?;
        self.log.store_catalog(&bytes)?;
        *stored = sequence;
        self.catalog.changing.lock().logged_bytes -= logged_bytes;
        Ok(())
    }

    /// [`Engine::checkpoint_catalog`], when it costs no sync of the rows that nobody else asks for, or there is much to be stored: for
    /// housekeeping.
    pub(super) fn store_catalog_if_due(&self) -> Result<()> {
        let (sequence, logged_bytes) = {
            let state = self.catalog.changing.lock();
            (state.sequence, state.logged_bytes)
        };
        let is_due = logged_bytes > 0 && self.log.checkpointed_sequence() >= sequence;
        if is_due || logged_bytes > CHANGES_BYTES_MAX { self.checkpoint_catalog() } else { Ok(()) }
    }

    /// Whether the log holds changes that the root's catalog does not.
    pub(super) fn has_logged_changes(&self) -> bool {
        let stored = self.catalog.stored.lock();
        self.catalog.changing.lock().sequence > *stored
    }

    /// Runs `list` with a sequence, when all up to it is published, and the catalog as it is then: no table is made, changed or
    /// dropped until it returns.
    pub(super) fn at_catalog_barrier<R>(&self, list: impl FnOnce(u64, Vec<u8>) -> R) -> R {
        let state = self.catalog.changing.lock();
        let sequence = self.log.barrier();
        list(sequence, self.catalog.encode(&state, sequence))
    }
}
