//! `Db`: the open store, and the parts it is made of.
//!
//! | file | what |
//! |---|---|
//! | `db/write.rs` | the write path |
//! | `db/read.rs` | the read path |
//! | `db/lower.rs` | what of a row is in sorted tables |
//! | `db/prefetch.rs` | what of a row is prefetched |
//! | `db/disk_waits.rs` | asking the disk for what will be read, where memory is short |
//! | `db/at_hand.rs`, `db/lacked.rs` | reading without waiting for the disk, and what that lacked |
//! | `db/load.rs` | rows in bulk |
//! | `db/scan.rs`, `db/batch.rs`, `db/snapshot.rs` | scans, batches, snapshots |
//! | `db/expiry.rs` | removing rows that have expired |
//! | `db/deleted.rs` | tombstones out of the way of scans |
//! | `db/cached.rs` | rows copied into DRAM and let go again |
//! | `db/recover.rs` | opening after a crash |
//! | `db/catalog.rs`, `db/shared_table.rs` | the tables |
//! | `db/catalog_changes.rs` | how tables and their schemas change |
//! | `db/pins.rs` | what must stay in the log for snapshots and backups |
//! | `db/counters.rs`, `db/metrics.rs` | counting |
//! | `db/backup.rs` | copies of an open store |
//! | `db/identity.rs` | that there is a store, whatever becomes of its data |
//! | `db/inspect.rs` | looking without changing |
//! | `db/salvage.rs`, `db/repair.rs` | what is left of a damaged store, and copying it |
//! | `db/engine.rs` | `Engine`: what they share |
//! | `db/loops.rs` | which background loops a store has |
//! | `db/tiers.rs` | what a store is opened on |

pub(crate) mod append;
mod at_hand;
pub mod backup;
mod batch;
pub(crate) mod cached;
pub(crate) mod catalog;
mod catalog_changes;
pub(crate) mod chain;
pub(crate) mod counters;
pub(crate) mod deleted;
pub(crate) mod disk_waits;
pub(crate) mod engine;
mod expiry;
#[cfg(test)]
pub(crate) mod fixture;
mod identity;
pub mod inspect;
mod lacked;
mod load;
mod loops;
pub(crate) mod lower;
pub(crate) mod merging;
pub(crate) mod metrics;
pub(crate) mod pins;
mod prefetch;
mod random_key;
pub(crate) mod read;
pub(crate) mod recover;
#[cfg(any(refused = "names", refused = "types", refused = "borrows", refused = "privacy"))]
mod refused;
pub(crate) mod repair;
mod salvage;
mod saved_index;
pub(crate) mod scan;
pub(crate) mod shared_table;
#[cfg(all(test, shuttle))]
pub(crate) mod shuttle;
mod snapshot;
mod table;
pub(crate) mod tiers;
pub(crate) mod torn_blocks;
pub(crate) mod write;

use std::borrow::Borrow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use at_hand::{AtHandOnly, Missing};
pub use batch::Batch;
pub use catalog::TableChanges;
use engine::Engine;
use hedgerow_device::{Clock, FastTier, FastTierOptions, SyncFailure, create_directories};
use identity::Witness;
pub use load::Loader;
pub use metrics::{FailedMove, Metrics, QueueMetrics, SealedMetrics, SortedTablesMetrics};
pub use read::RowRef;
pub use scan::Scan;
pub use shared_table::expiring::Expiring;
pub use snapshot::Snapshot;
pub use table::{ReadGuard, RowHandle, Table};
pub use tiers::Tiers;

use crate::invariants;
use crate::log::WriteFailure;
use crate::sync::Mutex;
use crate::{Durability, Error, ErrorKind, Options, Result, Schema};

/// The file of the fast tier in a store's directory.
pub const FAST_TIER_FILE: &str = "fast";

/// An open store. Cheap to clone, `Send + Sync`. The store closes when the last clone and the last [`Table`] of it are
/// dropped; [`Db::close`] does it at once and says what went wrong.
///
/// ```
/// # fn main() -> hedgerow::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("hedgerow-doc-db-{}", std::process::id()));
/// use hedgerow::{Db, Schema, Type, row};
/// let db = Db::open(&dir)?;
/// let users = db.create_table("users", Schema::new().field("name", Type::String).field("age", Type::U32))?;
/// users.put(b"42", &row! { name: "Ada", age: 36 })?;
/// users.update(b"42", &row! { age: 37 })?;
/// let row = users.get(b"42")?.expect("it was just written");
/// assert_eq!(row.get_as::<u32>("age")?, 37);
/// db.close()?;
/// # std::fs::remove_dir_all(dir).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Db {
    engine: Arc<Engine>,
    /// Closes the store when the last `Db` and the last `Table` are gone.
    handle: Arc<Handle>,
}

struct Handle {
    engine: Arc<Engine>,
    /// What closing came to, once it was done.
    closed: Mutex<Option<Result<()>>>,
}

impl Db {
    /// Opens the store in the directory `path` with default options, making it if there is none.
    ///
    /// # Errors
    /// `Locked` if another process has it open, `Corrupted`, `Version`, `Io`, `Full`.
    pub fn open(path: impl AsRef<Path>) -> Result<Db> {
        Db::open_with(path, Options::default())
    }

    /// [`Db::open`] with options.
    ///
    /// # Errors
    /// As [`Db::open`]; `Invalid` for an option out of its bounds; `NotFound` if there is no store and it is not to be made.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Db::open_with_clock(path, options, Clock::system())
    }

    /// [`Db::open_with`], with a clock for expiry.
    ///
    /// # Errors
    /// As [`Db::open_with`].
    pub fn open_with_clock(path: impl AsRef<Path>, options: Options, clock: Clock) -> Result<Db> {
        let path = path.as_ref();
        if let Some(error) = identity::unfinished(path) {
            return Err(error);
        }
        if options.read_only {
            return Db::open_read_only(path, options, clock);
        }
        if options.create {
            create_directories(path).map_err(|error| {
                Error::io(format_args!("cannot make the directory {}", path.display()), error)
            })?;
        }
        let file = path.join(FAST_TIER_FILE);
        let witness = Witness::read(path)?;
        if !options.create && !exists(&file) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no store in {}", path.display())));
        }
        let tier_options =
            FastTierOptions { bytes_max: options.fast_tier_bytes_max, ..FastTierOptions::default() };
        let tier = Arc::new(FastTier::open_file(&file, &tier_options, options.create)?);
        witness.check(&tier)?;
        let is_new = tier.bytes() == 0;
        let db = Db::open_at(Tiers::in_directory(tier, path), options, clock)?;
        witness.keep(db.engine.log.root().store_id, is_new)?;
        Ok(db)
    }

    fn open_read_only(path: &Path, options: Options, clock: Clock) -> Result<Db> {
        let file = path.join(FAST_TIER_FILE);
        let witness = Witness::read(path)?;
        if !exists(&file) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no store in {}", path.display())));
        }
        let tier = Arc::new(FastTier::open_file_read_only(&file)?);
        witness.check(&tier)?;
        Db::open_at(Tiers::in_directory(tier, path), options, clock)
    }

    /// Opens a store on a given fast tier: DRAM, emulated persistent memory, a crash simulation. With a capacity tier beside it as `(fast, capacity)`.
    /// On a tier that is only read the store is only read, whatever the options say.
    ///
    /// # Errors
    /// As [`Db::open_with`]; `Invalid` if the store is only to be read ([`Options::read_only`]) and the tier can be written to.
    pub fn open_on(tiers: impl Into<Tiers>, options: Options) -> Result<Db> {
        Db::open_at(tiers, options, Clock::system())
    }

    /// [`Db::open_on`], with a clock for expiry.
    ///
    /// # Errors
    /// As [`Db::open_with`].
    pub fn open_at(tiers: impl Into<Tiers>, options: Options, clock: Clock) -> Result<Db> {
        let (tiers, mut options) = (tiers.into(), options);
        if tiers.fast.is_read_only() {
            (options.create, options.background) = (false, false);
        } else if options.read_only {
            return Err(Error::invalid(
                "a store that is only to be read needs a fast tier that is only read",
            ));
        }
        let background = options.background;
        let engine = Arc::new(Engine::open(tiers, options, clock)?);
        let handle = Arc::new(Handle { engine: Arc::clone(&engine), closed: Mutex::new(None) });
        if background {
            // If it fails, the handle closes the store, and so ends what was started.
            engine.start_background()?;
        }
        Ok(Db { engine, handle })
    }

    /// Creates a table; one that exists with the same schema is opened.
    ///
    /// # Errors
    /// `Exists` if it exists with another schema; `Invalid` for a bad name or schema.
    pub fn create_table(&self, name: &str, schema: Schema) -> Result<Table> {
        Ok(Table::new(self, self.engine.create_table(name, &schema)?))
    }

    /// Opens a table with at least these fields: makes it if there is none, and adds the fields that it does not have. What a program
    /// calls at its start, with the schema that it knows. Fields that `schema` does not name stay, rows are not rewritten, and a field
    /// that was added holds its default in rows that are there.
    ///
    /// # Errors
    /// `Exists` if a field has another type or default there, or only one of the two is nullable: the message says all that differs. `Invalid`
    /// for a bad name or schema.
    pub fn ensure_table(&self, name: &str, schema: Schema) -> Result<Table> {
        Ok(Table::new(self, self.engine.ensure_table(name, &schema)?))
    }

    /// Opens a table.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn table(&self, name: &str) -> Result<Table> {
        match self.engine.catalog.by_name(name) {
            Some(shared) => Ok(Table::new(self, shared)),
            None => Err(Error::new(ErrorKind::NotFound, format!("there is no table {name:?}"))),
        }
    }

    /// The tables' names, in order.
    pub fn table_names(&self) -> Vec<String> {
        self.engine.catalog.names()
    }

    /// Drops a table with all its rows; false if there is none. Its name is free again at once.
    ///
    /// # Errors
    /// `Io`, `Closed`.
    pub fn drop_table(&self, name: &str) -> Result<bool> {
        self.engine.drop_table(name)
    }

    /// Makes several changes of tables, or none: one write to the log, however many they are.
    ///
    /// # Errors
    /// Those of the single changes, before anything is changed.
    pub fn change_tables(&self, changes: &TableChanges) -> Result<()> {
        self.engine.change_tables(changes)
    }

    /// Writes all of a batch, or nothing. A batch that is lent may be written again, or [cleared](Batch::clear) for the next.
    ///
    /// # Errors
    /// Those of the single writes, before anything is written; `Conflict` if a required version has changed. `Closed` if it stopped
    /// half-way after all: then the store takes no more writes, and opened again it has all of the batch or nothing.
    pub fn write(&self, batch: impl Borrow<Batch>) -> Result<()> {
        self.engine.write_batch(batch.borrow())
    }

    /// Keeps the rows that [`Table::look_up`] finds under it where they are. While it lives gc gives nothing back: it
    /// should live for microseconds, and nobody who holds it may wait for space.
    ///
    /// What was looked up under it cannot outlive it:
    ///
    /// ```compile_fail,E0505
    /// # fn example(db: &hedgerow::Db, table: &hedgerow::Table) {
    /// let guard = db.pin();
    /// let mut row = None;
    /// table.look_up(&guard, &[b"key"], |_, found| row = Some(found));
    /// drop(guard);
    /// let _ = row.map(|row| table.read_handle(b"key", row, |_| Ok(())));
    /// # }
    /// ```
    #[inline]
    pub fn pin(&self) -> ReadGuard<'_> {
        ReadGuard(self.engine.read_view())
    }

    /// Takes a snapshot.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(Arc::clone(&self.engine))
    }

    /// Makes everything written so far durable against a power cut, with a checkpoint in the file that says so: what is missing of
    /// it later will be missed, by opening and by `hedgerow check`.
    ///
    /// # Errors
    /// `Io`, after which the store takes no more writes; `Closed`, after a sync or an edit of the manifest of sorted tables that failed, a
    /// batch that stopped half-way for want of memory for the index ([`Db::write_failure`]), or a close.
    pub fn persist(&self) -> Result<()> {
        self.engine.checkpoint()
    }

    /// Makes everything written so far durable against a power cut, as each write in [`Durability::Immediate`] is: callers
    /// at the same time share one sync. What a [`Db::persist`] does besides follows in the background within about a second.
    ///
    /// # Errors
    /// As those of [`Db::persist`].
    pub fn sync(&self) -> Result<()> {
        self.engine.log.check_writable()?;
        self.engine.log.persist_to(self.engine.log.last_sequence())
    }

    /// Frees what obsolete records take, as far as it can be done now, without waiting for the background thread. Returns
    /// the segments freed. In a store without threads it removes what has expired before, and merges sorted tables after, until there is nothing to merge.
    ///
    /// # Errors
    /// `Corrupted` when it has met corruption in a segment, and done the rest: the segment keeps its space and is quarantined
    /// from then on ([`Metrics::segments_quarantined`]); or in a sorted table, which is left alone from then on
    /// ([`Metrics::sorted_tables`]). `Full` if there is no room to be made. `Io`, `Closed`.
    pub fn collect(&self) -> Result<usize> {
        self.engine.log.check_writable()?;
        self.engine.runs.remove_dropped();
        let freed = self.engine.run_gc_now();
        if self.engine.options.background {
            return freed;
        }
        // Whatever it was that did not go well: merges may make the room it lacked.
        self.engine.log.check_writable()?;
        match self.engine.merge_all() {
            // What there was room for is merged.
            Err(error) if error.kind() == ErrorKind::Full => {}
            merged => merged?,
        }
        match freed {
            Err(error) if error.kind() == ErrorKind::Full => self.engine.run_gc_now(),
            freed => freed,
        }
    }

    /// One round of the cache's worker, as its thread does it: for tests of a store without threads of its own.
    #[doc(hidden)]
    pub fn tend_cache(&self) {
        self.engine.tend_cache();
    }

    /// Rows move to sorted tables as if there were little room, out of segments that are still written to as well if `sealing`: for tests, of stores whose rows move.
    ///
    /// # Errors
    /// `Invalid` of a store whose rows do not move; what the capacity tier refuses. `Io`, `Closed`.
    #[doc(hidden)]
    pub fn move_rows(&self, sealing: bool) -> Result<()> {
        self.engine.move_by_hand(sealing)
    }

    /// What is behind it.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Waits until gc has made room, at most `timeout`; then repeat what failed with `Busy`. It returns at once if gc has made
    /// some since a call was last told `Busy`. False if gc looked meanwhile and made none: a caller for whom that is so for a second
    /// in all may take the store for full.
    pub fn wait_for_space(&self, timeout: Duration) -> bool {
        self.engine.await_gc_cycle_since_busy(timeout)
    }

    /// The sync that failed, if one did: from then on every write, and [`Db::persist`], is refused with `Closed`, and reads go on.
    /// Costs next to nothing: to be asked often.
    pub fn sync_failure(&self) -> Option<SyncFailure> {
        self.engine.log.tier().sync_failure().cloned()
    }

    /// Why the store takes no more writes though it was not closed, if it takes none: a sync that failed ([`Db::sync_failure`]), what a killed process left that could
    /// not be made durable, an edit of the manifest of sorted tables that failed, or a batch that stopped half-way. From then on every write, and [`Db::persist`], is refused with `Closed`, and reads go on.
    /// Costs next to nothing: to be asked often.
    pub fn write_failure(&self) -> Option<WriteFailure> {
        self.engine.log.write_failure()
    }

    /// Counters and gauges.
    pub fn metrics(&self) -> Metrics {
        self.engine.metrics()
    }

    /// The medium of the fast tier, for people.
    pub fn medium(&self) -> String {
        self.engine.log.tier().medium().to_string()
    }

    /// The durability mode the store was opened with.
    pub fn durability(&self) -> Durability {
        self.engine.options.durability
    }

    /// Persists and closes. Writes through other handles fail with `Closed` from then on; reads go on, and the file stays
    /// locked, until the last handle is dropped: each [`Db`], [`Table`], [`Snapshot`] and [`Missing`], and a [`Batch`] that was given a table.
    ///
    /// # Errors
    /// `Io` if the last sync failed; `Closed` if the store took no more writes before ([`Db::write_failure`]): then it is not marked as closed in order.
    pub fn close(self) -> Result<()> {
        self.handle.close()
    }
}

#[expect(clippy::disallowed_methods, reason = "once, before there is a tier to go through")]
fn exists(path: &Path) -> bool {
    path.exists()
}

impl Handle {
    fn close(&self) -> Result<()> {
        // Whoever closes it again is told the same.
        self.closed.lock().get_or_insert_with(|| self.close_first()).clone()
    }

    fn close_first(&self) -> Result<()> {
        self.engine.close()?;
        invariants::check("a store, as it was closed", || self.check_closed());
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Whoever wants to know calls `close`.
        drop(self.close());
    }
}
