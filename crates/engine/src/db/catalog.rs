//! The catalog: which tables there are, and their schemas.
//!
//! Owns the tables of an open store, and when the root's catalog is stored anew; how they are changed is in `db/catalog_changes.rs`. A change is a record in the log
//! like a row (`manifest/catalog.rs`), with a sequence of its own: it is as durable as the rows before and after it, and what is
//! left after a crash is a prefix of both. The catalog in the root is a checkpoint: whole as of a sequence, stored off the
//! callers' path. Promises:
//!
//! 1. A row that was written under a change has a higher sequence than it: the change is published when its record has its
//!    sequence, so whoever knows of it takes his own later.
//! 2. PERSIST: a change's record is durable before a catalog that holds it, and that before the record's segment is freed. So a
//!    change is always in one of the two, and a change's record counts as obsolete from the first: whoever frees its segment stores the
//!    catalog before ([`Catalog::checkpoint`]).
//! 3. What several steps come to is in one record, however many they are (`catalog/plan.rs`).
//!
//! Must not know rows.

pub(super) mod plan;
pub(super) mod replay;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use hedgerow_row::schema::table::FieldAccess;

pub use self::plan::TableChanges;
use super::shared_table::TableShared;
use crate::epoch::Epoch;
use crate::index::NodeArena;
use crate::levels::{Levels, LevelsBuilder};
use crate::log::Log;
use crate::manifest::catalog::{EMPTY_BYTES, Stored, encode_catalog, entry_bytes, malformed};
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// With so many bytes of changes in the log that the root's catalog does not hold, it is stored whether or not they are durable:
/// so much is replayed at most when the store is opened.
const CHANGES_BYTES_MAX: u64 = 1 << 20;

/// The tables of a store.
pub(crate) struct Catalog {
    pub(super) tables: ArcSwap<Tables>,
    /// Held while the catalog changes.
    pub(super) changing: Mutex<CatalogState>,
    /// The root's catalog is whole as of this sequence. Held while it is stored anew.
    pub(super) stored: Mutex<u64>,
    pub(super) access: FieldAccess,
    /// It is the one that was stored last.
    pub(super) whole: bool,
    /// Of one that is not, the sequence that it says it is whole as of.
    claimed_sequence: u64,
    /// Of the ids below, those that no table has are of tables which were dropped.
    pub(super) all_below: u32,
    /// Changes in the log count.
    pub(super) replays: bool,
    /// Where the indexes of its tables are.
    arena: Arc<NodeArena>,
    epoch: Arc<Epoch>,
}

#[derive(Default, Clone)]
pub(super) struct Tables {
    pub(super) by_name: HashMap<Arc<str>, Arc<TableShared>>,
    /// In order: it is the one in which they are stored.
    pub(super) by_id: BTreeMap<u32, Arc<TableShared>>,
}

/// What is known of the catalog beside its tables.
pub(super) struct CatalogState {
    /// Of the next table. No id is used twice.
    pub(super) next_id: u32,
    /// Of the last change.
    pub(super) sequence: u64,
    /// That the catalog takes when it is stored.
    pub(super) bytes: u64,
    /// Of the records of changes that are not in the root's catalog.
    pub(super) logged_bytes: u64,
    /// Of tables that were found to be gone when changes were replayed.
    pub(super) gone: HashSet<u32>,
}

impl Catalog {
    /// The catalog of the root. Changes in the log are replayed (`catalog/replay.rs`) later.
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
        let youngest = decoded.filter(|stored| !stored.entries.is_empty()).max_by_key(|stored| {
            // Changes of fields take no id.
            (stored.next_id, stored.claimed_sequence())
        });
        let error = named.err().unwrap_or_else(malformed);
        let error = match &youngest {
            None => error,
            Some(_) => Error::corrupted(format!(
                "{}; tables and fields are taken from what looks like its copy",
                error.message()
            )),
        };
        let stored = youngest.unwrap_or_else(Stored::empty);
        // What it says of when it is as of is believed where the log bears it out (`replay_changes`); else what the log has can only be younger, table by table.
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
        let (next_id, claimed_sequence) = (stored.next_id, stored.claimed_sequence());
        for entry in stored.entries {
            bytes += entry_bytes(&entry.name, &entry.schema);
            let levels = Levels::new(arena, epoch);
            let schema = entry.schema.with_access(access);
            tables.insert(Arc::new(TableShared::new(entry.id, &entry.name, schema, levels)));
        }
        Catalog {
            tables: ArcSwap::from_pointee(tables),
            changing: Mutex::new(CatalogState {
                next_id,
                sequence,
                bytes,
                logged_bytes: 0,
                gone: HashSet::new(),
            }),
            stored: Mutex::new(sequence),
            access,
            whole,
            claimed_sequence,
            all_below: if whole { next_id } else { 0 },
            replays,
            arena: Arc::clone(arena),
            epoch: Arc::clone(epoch),
        }
    }

    /// The empty index of a table to be.
    pub(super) fn new_levels(&self) -> Levels {
        Levels::new(&self.arena, &self.epoch)
    }

    /// What builds a table's index of the keys from the first to before the second.
    pub(super) fn levels_builder<'l>(&self, keys: (Option<Vec<u8>>, Option<Vec<u8>>)) -> LevelsBuilder<'l> {
        LevelsBuilder::new(&self.arena, &self.epoch, keys)
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

    /// The ids of all tables, and the sequence of the change that made them so.
    pub(super) fn ids(&self) -> (HashSet<u32>, u64) {
        let state = self.changing.lock();
        (self.tables.load().by_id.keys().copied().collect(), state.sequence)
    }

    /// Names in order.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tables.load().by_name.keys().map(|name| name.to_string()).collect();
        names.sort_unstable();
        names
    }

    pub(super) fn copy(&self) -> Tables {
        Tables::clone(&self.tables.load())
    }

    /// Its bytes, whole as of `sequence`. Nothing changes meanwhile.
    pub(super) fn encode(&self, state: &CatalogState, sequence: u64) -> Vec<u8> {
        let tables: Vec<_> = self.all().into_iter().map(|table| (table.schema.load_full(), table)).collect();
        let entries =
            tables.iter().map(|(schema, table)| (table.id.load(Ordering::Relaxed), &*table.name, &**schema));
        encode_catalog(state.next_id, entries, sequence)
    }
}

/// Storing it in the root.
impl Catalog {
    /// Stores the catalog in the root, durably, if the root's does not hold all changes.
    pub(crate) fn checkpoint(&self, log: &Log) -> Result<()> {
        if log.tier().is_read_only() {
            return Ok(());
        }
        let mut stored = self.stored.lock();
        let (bytes, sequence, logged_bytes) = {
            let state = self.changing.lock();
            if state.sequence <= *stored {
                return Ok(());
            }
            (self.encode(&state, state.sequence), state.sequence, state.logged_bytes)
        };
        // PERSIST: the records of the changes, and all writes before them, are durable before the catalog that holds them: else a
        // power cut would leave it ahead of the rows.
        log.persist_to(sequence)?;
        log.store_catalog(&bytes)?;
        *stored = sequence;
        self.changing.lock().logged_bytes -= logged_bytes;
        Ok(())
    }

    /// [`Catalog::checkpoint`], when it costs no sync of the rows that nobody else asks for, or there is much to be stored: for
    /// housekeeping.
    pub(super) fn checkpoint_if_due(&self, log: &Log) -> Result<()> {
        let (sequence, logged_bytes) = {
            let state = self.changing.lock();
            (state.sequence, state.logged_bytes)
        };
        let is_due = logged_bytes > 0 && log.checkpointed_sequence() >= sequence;
        if is_due || logged_bytes > CHANGES_BYTES_MAX { self.checkpoint(log) } else { Ok(()) }
    }

    /// Whether the log holds changes that the root's catalog does not.
    pub(super) fn has_logged_changes(&self) -> bool {
        let stored = self.stored.lock();
        self.changing.lock().sequence > *stored
    }

    /// Runs `look` while no table is made, changed or dropped; `None` if the log holds changes that the root's catalog does not.
    pub(super) fn while_stored<R>(&self, look: impl FnOnce() -> R) -> Option<R> {
        let stored = self.stored.lock();
        let state = self.changing.lock();
        (state.sequence <= *stored).then(look)
    }

    /// Runs `list` with a sequence, when all up to it is published, and the catalog as it is then: no table is made, changed or
    /// dropped until it returns.
    pub(super) fn at_barrier<R>(&self, log: &Log, list: impl FnOnce(u64, Vec<u8>) -> R) -> R {
        let state = self.changing.lock();
        let sequence = log.barrier();
        list(sequence, self.encode(&state, sequence))
    }
}

impl Tables {
    /// In the place of another of that name, if there is one: returns its id.
    pub(super) fn insert(&mut self, table: Arc<TableShared>) -> Option<u32> {
        let id = table.id.load(Ordering::Relaxed);
        let before = self.by_name.insert(Arc::clone(&table.name), Arc::clone(&table));
        let before = before.map(|before| before.id.load(Ordering::Relaxed));
        before.into_iter().for_each(|id| drop(self.by_id.remove(&id)));
        self.by_id.insert(id, table);
        before
    }

    pub(super) fn remove(&mut self, table: &TableShared) {
        self.by_id.remove(&table.id.load(Ordering::Relaxed));
        self.by_name.remove(&table.name);
    }
}
