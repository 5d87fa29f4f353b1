//! Options, each declared once: its default, its bounds, its meaning.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of sorted tables in a store's own, if no other is given.
pub const CAPACITY_DIRECTORY: &str = "capacity";

/// As much of the address space as the indexes may take, if nobody says less.
const INDEX_BYTES_MAX: u64 = 64 << 30;
/// More threads gain nothing: each looks through what all others have walked.
const RECOVERY_THREADS_MAX: usize = 256;

/// When a write is safe, and from what.
///
/// | mode | a killed process loses | a power cut loses |
/// |---|---|---|
/// | `Immediate` | nothing | nothing |
/// | `Interval(t)` | nothing | at most the last `t`, or what the sync before took if that is longer, and the sync under way |
/// | `Process` | nothing | everything since the last [`persist`](crate::Db::persist) that the kernel had not written by itself |
///
/// In every mode what survives a power cut is a prefix of the writes, batches whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Durable before the call returns. Concurrent writers share one sync (group commit).
    Immediate,
    /// Synced in the background at this interval, from the beginning of one sync to that of the next. The default, at one second.
    Interval(Duration),
    /// Safe in the page cache when the call returns; synced when the kernel pleases and at `persist` and `close`.
    Process,
}

/// In what pieces writers write the log back, ahead of the syncs that make it durable: the last piece is what a sync has left to do.
///
/// It has a meaning in [`Interval`](Durability::Interval) and [`Process`](Durability::Process) mode; in `Immediate` each write is durable by itself, and nothing is left to
/// be written back. No promise changes: what is durable is what a sync says.
///
/// | granule | persistent memory, emulated or not | a file | DRAM |
/// |---|---|---|---|
/// | `Sync` | the thread that syncs flushes lines; no writer does | the thread that syncs, or the kernel in its time | nothing |
/// | `Segment` | whoever begins a segment flushes the one before: the most at once, the least often | whoever begins a segment has the kernel begin to write the one before | nothing |
/// | `Block(n)` | whoever appends behind a full block flushes it: little at once, often | has the kernel begin to write it: a system call for each | nothing |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PersistGranule {
    /// Writers write nothing back. The default.
    #[default]
    Sync,
    /// A segment when it is full.
    Segment,
    /// Blocks of so many bytes as they are full, a power of two from 4 KiB to 1 GiB, and what is left of a segment with it. BushStore's is 16 KiB.
    Block(u64),
}

/// Whether rows are cached in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// Never; no memory is set aside.
    Off,
    /// While reads of the fast tier are found to be slower than reads of DRAM; on a file in the page cache see `Options::cache_bytes`. The default.
    Auto,
    /// Always, gain or not: for experiments and tests.
    On,
}

/// Which rows the cache takes in and lets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePolicy {
    /// By the hit ratio of their table, with a lifetime (FOCUS section V-C). The default.
    Focus,
    /// Every row that is read comes in, the one that was not read for longest goes: for comparison.
    Lru,
}

/// How blocks of sorted tables are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As they are.
    None,
    /// By LZ4 where that saves pages.
    #[default]
    Lz4,
}

/// Where sorted tables are, the files of rows that are not in the log.
///
/// Whatever is a path names their directory: `Options::new().capacity("/mnt/large")`. Rows come there by themselves in a store that is bounded
/// ([`Options::capacity`] says by what), and so data may be larger than the fast tier:
///
/// ```
/// # fn main() -> hedgerow::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("hedgerow-doc-capacity-{}", std::process::id()));
/// use hedgerow::{Capacity, Db, ErrorKind, Options, Schema, Type, row};
/// # use hedgerow::Durability;
/// let options = Options::new().fast_tier_bytes_max(16 << 20);
/// # let options = options.durability(Durability::Process);
/// let db = Db::open_with(&dir, options.clone())?;
/// let notes = db.create_table("notes", Schema::new().field("text", Type::Bytes))?;
/// let text = [b'x'; 1_000];
/// for n in 0..40_000u64 {
///     notes.put(&n, &row! { text: &text })?;
/// }
/// assert!(notes.get(&0u64)?.is_some() && db.metrics().records_moved > 0);
/// # drop(notes);
/// db.close()?;
/// // Without a place for them it is full at its limit; and with sorted tables it is not opened without.
/// let refused = Db::open_with(&dir, options.capacity(Capacity::None)).err().unwrap();
/// assert_eq!(refused.kind(), ErrorKind::Invalid);
/// # std::fs::remove_dir_all(dir).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Capacity {
    /// In the directory `capacity` in the store's own; of a store that is opened on a given tier, nowhere. The default.
    #[default]
    Beside,
    /// In this directory.
    At(PathBuf),
    /// Nowhere: the store has no rows but those in its log. One that has sorted tables already is not opened so.
    None,
}

impl Capacity {
    /// The directory of the sorted tables of a store in the directory `store`, if there is to be one.
    pub(crate) fn directory(&self, store: Option<&Path>) -> Option<PathBuf> {
        match self {
            Capacity::Beside => store.map(|store| store.join(CAPACITY_DIRECTORY)),
            Capacity::At(directory) => Some(directory.clone()),
            Capacity::None => None,
        }
    }
}

impl<P: Into<PathBuf>> From<P> for Capacity {
    fn from(directory: P) -> Capacity {
        Capacity::At(directory.into())
    }
}

/// How to open a store. All have defaults; each has a setter.
///
/// ```
/// use std::time::Duration;
///
/// use hedgerow::{Durability, Options};
///
/// let options = Options::new()
///     .durability(Durability::Interval(Duration::from_millis(200)))
///     .fast_tier_bytes_max(8 << 30)
///     .cache_bytes(256 << 20);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// When a write is safe, and from what. Default `Interval(1 s)`.
    pub durability: Durability,
    /// In what pieces writers write the log back, ahead of the syncs. Default [`PersistGranule::Sync`]: they do not.
    pub persist_granule: PersistGranule,
    /// The most bytes the fast tier may take. Default: no limit but the disk's, and 1,048,576 segments. It is 32 TiB at most. At least the root and seven segments. When three sixteenths of it are left, or 1.5 GiB,
    /// rows that were not written lately move to sorted tables (see [`Options::capacity`]). With [`Capacity::None`], or once those have all that they
    /// may take, new rows are refused as [`Full`](crate::ErrorKind::Full). Less than the store
    /// takes already is worked towards: new rows are refused until it takes less, and what is freed goes back to the disk. The
    /// file's length stays.
    pub fast_tier_bytes_max: u64,
    /// Bytes in one log segment, a power of two from 256 KiB to 1 GiB; fixed when the store is created. Default 0: as the store
    /// chooses, 2 MiB, or less, down to 256 KiB, where `fast_tier_bytes_max` or the disk would hold fewer than 128 of them: a few
    /// are kept in reserve.
    pub segment_bytes: u64,
    /// Format version of the store that is created; one that there is keeps its own. Default 3. 2 is for builds that know no newer one (it
    /// is 1 where the root takes one segment): a page that the medium puts in the place of another of the same segment may go
    /// unnoticed there.
    pub format_version: u32,
    /// Whether reads verify the checksums of what they read. Default true.
    pub verify_reads: bool,
    /// The longest chain of deltas before a row is rewritten whole (FOCUS section V-B). 1 to 7, default 5.
    pub delta_chain_max: u8,
    /// Whether delta chains that reads find, or that are full, are merged into rows in the background. Default
    /// true.
    pub merge: bool,
    /// Whether deltas of fixed fields are merged into their rows in place, where the medium's lines are cheap to flush
    /// (persistent memory, emulated or not, and DRAM). Needs `merge`. Default true.
    #[doc(hidden)]
    pub swim: bool,
    /// Whether merging in place flushes each line once for all that changed in it, not once for each field. Default true.
    #[doc(hidden)]
    pub line_flush: bool,
    /// Whether ranges that are scanned repeatedly, and whose rows were not written in the order of their keys, are copied into
    /// that order while reads prevail. Needs `merge`. Default true.
    pub reorder: bool,
    /// Whether keys leave memory, where the index is short of room, for groups of keys on the fast tier; their rows stay where they are. Default true.
    pub seal: bool,
    /// How many groups of sealed keys of a table wait for a merge, 1 to 64 (DecouKV's IMTN). Default: none, found at run time.
    #[doc(hidden)]
    pub groups_max: Option<u32>,
    /// Eighths of the fast tier that one move takes out of the log, 1 to 4 (DecouKV's DFTS). Default: none, found at run time.
    #[doc(hidden)]
    pub run_eighths: Option<u32>,
    /// Whether one thread collects, moves rows, seals keys, and merges groups and sorted tables, one after the other, as in stores whose index goes with its rows. Default false.
    #[doc(hidden)]
    pub coupled: bool,
    /// Whether a read of single fields goes down a chain of deltas no farther than to the newest that names them (FOCUS section
    /// V-B). Default true; else it goes to the end of every chain: for experiments.
    #[doc(hidden)]
    pub early_stop: bool,
    /// Whether fixed fields are read at the constant offsets that their schema gives them (FOCUS section V-A). Default true; else by
    /// walking the fields before them, as rows without a schema would have to be: for experiments. No byte that is stored
    /// depends on it.
    #[doc(hidden)]
    pub schema_layout: bool,
    /// The most bytes of DRAM the cache may take. Default 64 MiB. While the cache is bypassed, rows of sorted tables that are asked for again and again take them, and where there are
    /// none nobody does. A store that has sorted tables keeps blocks and rows of them in half as much more, at least 16 MiB. Below
    /// 1 MiB there is no cache. On a file in the page cache it is bypassed unless the store uses more than there is of memory, and
    /// this is at least half of memory and with the index at most seven eighths.
    pub cache_bytes: u64,
    /// Whether rows are cached in DRAM. Default `Auto`.
    pub cache_mode: CacheMode,
    /// Which rows the cache takes in and lets go. Default `Focus`.
    pub cache_policy: CachePolicy,
    /// Hit ratio of a table from which on every row read is cached; below, the fewer the lower it is (FOCUS section V-C).
    /// 0 to 1, default 0.5.
    pub cache_hit_threshold: f64,
    /// Seconds that a row of a table with a hit ratio of 1 outlives its last read in a cache that is nearly empty: the
    /// paper's RW. More than 0, up to 3600. Default: none, found at run time for each hit ratio.
    #[doc(hidden)]
    pub cache_rw: Option<f64>,
    /// Whether to create the store if there is none. Default true.
    pub create: bool,
    /// Whether to open the store for reading only, beside others who do so and no writer: not a byte of it changes, and every
    /// write fails with [`ReadOnly`](crate::ErrorKind::ReadOnly). Nothing is created then, and no thread started. Default
    /// false.
    pub read_only: bool,
    /// The most bytes of DRAM the indexes may take, of which a sixty-fourth is kept for deletes of rows that are not in the log. Default: no limit (64 GiB of address space). Of less, keys leave memory for
    /// the fast tier once half is taken, and when a store is opened (see [`Options::seal`]). What must stay may take more then: leaves are
    /// filled to nine tenths, and have keys of rows that had left the index and not yet the log. Until it is less new keys are refused; when a quarter is left rows move to sorted tables, too (see [`Options::capacity`]). A new key that finds no room waits for that, as for space.
    pub index_bytes_max: u64,
    /// Whether to run the background threads: syncing, collecting, merging, sweeping expired rows, touching memory ahead of
    /// its use. Default true; without them [`Db::persist`](crate::Db::persist) syncs and [`Db::collect`](crate::Db::collect)
    /// collects, merges and sweeps by hand, and a full store says so at once.
    pub background: bool,
    /// Whether a write that finds no room waits while gc may make some (about a second at most without
    /// progress, and a minute where a backup has still to copy what was made free), and writers slow down beforehand while space is low. Default true. Without, such a write fails at once
    /// with [`Busy`](crate::ErrorKind::Busy), for a program whose threads must not sleep.
    pub wait_for_space: bool,
    /// A store whose log takes at least so many bytes saves its index when it is closed, so that the log need not be read when it is opened next. That takes 20 to 40 bytes for each key, of free space in the fast tier,
    /// until then. Default 64 MiB; `u64::MAX` for never.
    pub saved_index_bytes_min: u64,
    /// A store of which keys are sealed ([`Options::seal`]) takes a checkpoint of its index each time that so many bytes
    /// were written to a log that is as long, so that after its process was killed no more than that, about, is read when
    /// it is opened. That takes about 20 bytes for each key in memory, of free space in the fast tier, and what is merged
    /// of the index on the fast tier stays until the next; where space is low it is given up. Writers wait for 50 ms at
    /// most; where more than a million keys are in memory, or rows are merged in place (persistent memory), there is none; nor where
    /// more than a thousand keys, and one in a thousand, have more than 254 older records in the log, or had since the store was opened.
    /// After a power cut the log is walked as ever, and so it is where what was written since would not fit into the index.
    ///
    /// Default `u64::MAX`: none is taken, and one that was is not used. 1 GiB is a good value for a log of many GiB whose
    /// durability is not [`Process`](crate::Durability::Process): what was never synced is rewritten by any opening after a kill.
    pub index_checkpoint_bytes: u64,
    /// Threads that replay the log when opening. Default: the cores of the machine, at most 8. More than 256 are taken for 256, and 0 for 1;
    /// where the system gives fewer, these do it.
    pub recovery_threads: usize,
    /// Where sorted tables are, which hold rows that are not in the log. Their directory is made when the first of them is, and belongs to
    /// this store alone. Default [`Capacity::Beside`]: `capacity` in the store's directory; of a store that is opened on a given tier, none.
    ///
    /// Rows move there from the log, instead of being refused, when little room is left of what bounds the store: of `fast_tier_bytes_max` or
    /// `index_bytes_max`, where they are set below what they are by default, or of the disk, where this names a directory. A store with none of
    /// these keeps all its rows in the log, but those of a [load](crate::Table::load), until the disk is full.
    pub capacity: Capacity,
    /// The most bytes that sorted tables may take. What would take more is refused with [`Full`](crate::ErrorKind::Full). An eighth of
    /// it, 256 MiB at most, is kept for merging them, and not for rows that move or are loaded. Where they take more already when the store is opened, nothing but deletes and
    /// merges is written there until they do not; for these they may take 256 MiB besides, twice what they have at most. Default: no limit but the disk's, of which rows that move leave 256 MiB.
    pub capacity_bytes_max: u64,
    /// How many bytes a second moves of rows and merges of sorted tables may write to these, and merges read of them, in the background: at least 64 KiB. Default: none, as many as there
    /// are. It bounds work that can wait. Where a quarter of the room is missing that a move is to find, or what is to be merged holds writers or lacks room, that goes on in spite of it, rather than
    /// that writers wait ([`QueueMetrics::io_bytes_beyond`](crate::QueueMetrics)); a move takes a segment at least. Loads, backups, openings and reads
    /// take nothing of it; [`Db::collect`](crate::Db::collect) merges without waiting for it, and leaves moves out while it is spent.
    pub io_bytes_per_s: Option<u64>,
    /// How sorted tables that are written are compressed; those that there are stay as they are. Default LZ4, where that saves space.
    pub compression: Compression,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            durability: Durability::Interval(Duration::from_secs(1)),
            persist_granule: PersistGranule::Sync,
            fast_tier_bytes_max: u64::MAX,
            segment_bytes: 0,
            format_version: 3,
            verify_reads: true,
            delta_chain_max: 5,
            merge: true,
            swim: true,
            line_flush: true,
            reorder: true,
            seal: true,
            groups_max: None,
            run_eighths: None,
            coupled: false,
            early_stop: true,
            schema_layout: true,
            cache_bytes: 64 << 20,
            cache_mode: CacheMode::Auto,
            cache_policy: CachePolicy::Focus,
            cache_hit_threshold: 0.5,
            cache_rw: None,
            create: true,
            read_only: false,
            index_bytes_max: INDEX_BYTES_MAX,
            saved_index_bytes_min: 64 << 20,
            index_checkpoint_bytes: u64::MAX,
            background: true,
            wait_for_space: true,
            recovery_threads: std::thread::available_parallelism().map_or(2, |n| n.get()).min(8),
            capacity: Capacity::Beside,
            capacity_bytes_max: u64::MAX,
            io_bytes_per_s: None,
            compression: Compression::Lz4,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// The directory of sorted tables, a path, or another [`Capacity`]. Default: `capacity` in the store's.
    ///
    /// Sets [`Options::capacity`].
    #[must_use]
    pub fn capacity(mut self, capacity: impl Into<Capacity>) -> Options {
        self.capacity = capacity.into();
        self
    }

    /// Threads that an opening takes, if it can have them.
    pub(crate) fn opening_threads(&self) -> usize {
        self.recovery_threads.clamp(1, RECOVERY_THREADS_MAX)
    }

    /// Whether something bounds the store that rows in sorted tables take nothing of.
    pub(crate) fn is_bounded(&self) -> bool {
        self.fast_tier_bytes_max != u64::MAX
            || self.index_bytes_max < INDEX_BYTES_MAX
            || matches!(self.capacity, Capacity::At(_))
    }
}

/// A setter for each option but the experimental ones.
macro_rules! setters {
    ($($(#[$says:meta])* $name:ident: $kind:ty,)*) => {
        impl Options {
            $(
                $(#[$says])*
                #[doc = concat!("\n\nSets [`Options::", stringify!($name), "`].")]
                #[must_use]
                pub fn $name(mut self, $name: $kind) -> Options {
                    self.$name = $name;
                    self
                }
            )*
        }
    };
}

setters! {
    /// When a write is safe. Default `Interval(1 s)`.
    durability: Durability,
    /// In what pieces writers write the log back, ahead of the syncs. Default `Sync`: they do not.
    persist_granule: PersistGranule,
    /// The most bytes that the fast tier may take, at least the root and seven segments; rows beyond it are in sorted tables. Default: what the disk has.
    fast_tier_bytes_max: u64,
    /// Bytes in a segment of a store that is created: a power of two from 256 KiB to 1 GiB, or 0, the default, for as many as suit its size.
    segment_bytes: u64,
    /// The version of the format of a store that is created: 2, or 3, the default.
    format_version: u32,
    /// Whether reads verify checksums. Default true.
    verify_reads: bool,
    /// The most deltas over a row: 1 to 7, default 5.
    delta_chain_max: u8,
    /// Whether deltas are merged into rows in the background. Default true.
    merge: bool,
    /// Whether rows that are scanned together are brought together. Default true.
    reorder: bool,
    /// Whether keys leave memory where the index is short of room. Default true.
    seal: bool,
    /// The most bytes of DRAM that cached rows may take. Default 64 MiB.
    cache_bytes: u64,
    /// Whether rows are cached in DRAM. Default `Auto`: where it is quicker.
    cache_mode: CacheMode,
    /// Which rows the cache takes in and lets go. Default `Focus`: by hit ratio and lifetime.
    cache_policy: CachePolicy,
    /// The hit ratio of a table from which on all its rows that are read are cached: 0 to 1, default 0.5.
    cache_hit_threshold: f64,
    /// Whether to create the store if there is none. Default true.
    create: bool,
    /// Whether to open the store for reading only. Default false.
    read_only: bool,
    /// The most bytes of DRAM that the indexes may take. Default: no limit but 64 GiB of addresses.
    index_bytes_max: u64,
    /// Whether to run the background threads. Default true.
    background: bool,
    /// Whether a write that finds no room waits while gc may make some, about a second. Default true.
    wait_for_space: bool,
    /// How long a log must be for the index to be saved when the store is closed. Default 64 MiB.
    saved_index_bytes_min: u64,
    /// How much is written between two checkpoints of the index. Default `u64::MAX`: none is taken.
    index_checkpoint_bytes: u64,
    /// Threads that replay the log when opening. Default: the cores of the machine, at most 8.
    recovery_threads: usize,
    /// The most bytes that sorted tables may take. Default: what the disk has.
    capacity_bytes_max: u64,
    /// Bytes a second that moves and merges of sorted tables may take in the background. Default: no bound.
    io_bytes_per_s: Option<u64>,
    /// How sorted tables are compressed. Default LZ4.
    compression: Compression,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each setter sets its own option, to what it was given.
    #[test]
    fn all_options_have_setters() {
        let set = Options::new()
            .durability(Durability::Process)
            .persist_granule(PersistGranule::Segment)
            .fast_tier_bytes_max(1 << 30)
            .segment_bytes(1 << 20)
            .format_version(2)
            .verify_reads(false)
            .delta_chain_max(3)
            .merge(false)
            .reorder(false)
            .seal(false)
            .cache_bytes(7 << 20)
            .cache_mode(CacheMode::On)
            .cache_policy(CachePolicy::Lru)
            .cache_hit_threshold(0.25)
            .create(false)
            .read_only(true)
            .index_bytes_max(1 << 25)
            .background(false)
            .wait_for_space(false)
            .saved_index_bytes_min(1 << 22)
            .index_checkpoint_bytes(1 << 29)
            .recovery_threads(99)
            .capacity("/mnt/large")
            .capacity_bytes_max(1 << 40)
            .io_bytes_per_s(Some(50 << 20))
            .compression(Compression::None);
        let Options { swim, line_flush, early_stop, schema_layout, cache_rw, .. } = Options::default();
        let Options { groups_max, run_eighths, coupled, .. } = Options::default();
        let expected = Options {
            durability: Durability::Process,
            persist_granule: PersistGranule::Segment,
            fast_tier_bytes_max: 1 << 30,
            segment_bytes: 1 << 20,
            format_version: 2,
            verify_reads: false,
            delta_chain_max: 3,
            merge: false,
            swim,
            line_flush,
            reorder: false,
            seal: false,
            groups_max,
            run_eighths,
            coupled,
            early_stop,
            schema_layout,
            cache_bytes: 7 << 20,
            cache_mode: CacheMode::On,
            cache_policy: CachePolicy::Lru,
            cache_hit_threshold: 0.25,
            cache_rw,
            create: false,
            read_only: true,
            index_bytes_max: 1 << 25,
            background: false,
            wait_for_space: false,
            saved_index_bytes_min: 1 << 22,
            index_checkpoint_bytes: 1 << 29,
            recovery_threads: 99,
            capacity: Capacity::At("/mnt/large".into()),
            capacity_bytes_max: 1 << 40,
            io_bytes_per_s: Some(50 << 20),
            compression: Compression::None,
        };
        assert_eq!(set, expected);
    }
}
