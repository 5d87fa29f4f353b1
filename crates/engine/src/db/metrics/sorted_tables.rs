//! `SortedTablesMetrics`: what there is below the log, what looks into it cost, and how rows come there.
//!
//! Owns what is known of these. Promises that asking waits for no edit of the runs and reads nothing of a disk. Must not know how any of it comes about.

use crate::runs::Runs;
use crate::scheduler::gc_state::GcState;
use crate::sst::{BlockCache, LookCounts, RecordCache};
use crate::{Error, ErrorKind};

/// Counters and gauges of the sorted tables of a store at one moment; all zero where there are none, but for what they may take. Counters start at zero when the store is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SortedTablesMetrics {
    /// Runs: sorted tables that count together. A look goes through all that may have its key.
    pub runs: u64,
    /// Files.
    pub files: u64,
    /// Bytes of all files, of those too that are written or wait to be removed.
    pub bytes: u64,
    /// Bytes they may take ([`Options::capacity_bytes_max`](crate::Options::capacity_bytes_max)).
    pub bytes_max: u64,
    /// Whole rows in them; a key that is in several runs has several.
    pub rows: u64,
    /// Deltas, whose rows are older.
    pub deltas: u64,
    /// Deleted keys that hide rows of older runs.
    pub tombstones: u64,
    /// Bytes of records before they were compressed.
    pub record_bytes: u64,
    /// Bytes of DRAM that filters and bounds take, all of the time.
    pub memory_bytes: u64,
    /// Looks for a key into a file whose filter did not deny it.
    pub looks: u64,
    /// Those of them that found nothing.
    pub filter_false_positives: u64,
    /// Bytes of DRAM that the cache of blocks takes.
    pub block_cache_bytes: u64,
    /// Bytes it may take.
    pub block_cache_bytes_max: u64,
    /// Blocks that were found in it.
    pub block_cache_hits: u64,
    /// Blocks that were not, and were read.
    pub block_cache_misses: u64,
    /// Bytes of DRAM that rows take which are kept by themselves, found by their keys.
    pub record_cache_bytes: u64,
    /// Bytes they may take now.
    pub record_cache_bytes_max: u64,
    /// Looks for a key that were answered by them, without a look into files.
    pub record_cache_hits: u64,
    /// Bytes of files that were read into the page cache as a whole, because much of them was asked for and memory has room for all.
    pub bytes_brought: u64,
    /// Moves of rows from the log.
    pub moves: u64,
    /// Slices of runs that were merged: about 64 MiB each.
    pub merges: u64,
    /// Bytes of the files that were written for them.
    pub bytes_merged: u64,
    /// Slices that could not be merged: a file is damaged, and its run left alone from then on, or the capacity tier refused something, and it is tried again.
    pub merges_failed: u64,
    /// Bytes of records that nobody needs, before they were compressed: of tables that are gone, and of rows that were replaced; of rows that deltas lie over a tenth at least, and all where such rows are read. Estimated when merges are looked for.
    pub garbage_bytes: u64,
    /// Bytes that are to move for there to be as much room in the fast tier as there should be.
    pub bytes_to_move: u64,
    /// Why the last move failed, if it did.
    pub move_failure: Option<FailedMove>,
}

/// Why the last move of rows to sorted tables failed. It is tried again by and by; meanwhile the fast tier fills.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedMove {
    /// What kind of error it was: `Full` where sorted tables have all that they may take.
    pub kind: ErrorKind,
    /// What the error said.
    pub message: String,
    /// How long ago, in milliseconds.
    pub ago_ms: u64,
}

impl FailedMove {
    fn of((error, ago_ns): (Error, u64)) -> FailedMove {
        FailedMove { kind: error.kind(), message: error.message().to_owned(), ago_ms: ago_ns / 1_000_000 }
    }
}

impl SortedTablesMetrics {
    pub(super) fn of(runs: &Runs, gc: &GcState, (now_ns, bytes_to_move): (u64, u64)) -> SortedTablesMetrics {
        let current = runs.current();
        let (counts, (bytes, bytes_max)) = (current.counts(), runs.bytes());
        let (cache, merged) = (runs.block_cache(), runs.merged());
        let looks = cache.as_ref().map(|cache| cache.counts());
        let of_cache = |part: fn(&BlockCache) -> u64| cache.as_ref().map_or(0, part);
        let of_records = |part: fn(&RecordCache) -> u64| runs.record_cache().map_or(0, part);
        let of_looks = |part: fn(&LookCounts) -> u64| looks.map_or(0, part);
        SortedTablesMetrics {
            runs: current.runs().len() as u64,
            files: current.files().len() as u64,
            bytes,
            bytes_max,
            rows: counts.rows,
            deltas: counts.deltas,
            tombstones: counts.tombstones,
            record_bytes: counts.bytes,
            memory_bytes: current.memory_bytes(),
            looks: of_looks(LookCounts::looks),
            filter_false_positives: of_looks(LookCounts::false_positives),
            block_cache_bytes: of_cache(BlockCache::bytes),
            block_cache_bytes_max: of_cache(BlockCache::bytes_max),
            block_cache_hits: of_looks(LookCounts::cache_hits),
            block_cache_misses: of_looks(LookCounts::cache_misses),
            record_cache_bytes: of_records(RecordCache::bytes),
            record_cache_bytes_max: of_records(RecordCache::bytes_max),
            record_cache_hits: of_records(RecordCache::hits),
            bytes_brought: runs.bytes_brought(),
            moves: gc.moves(),
            merges: merged.slices,
            bytes_merged: merged.bytes,
            merges_failed: merged.failures,
            garbage_bytes: merged.garbage,
            bytes_to_move,
            move_failure: gc.move_failed_since(now_ns).map(FailedMove::of),
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier};

    use crate::db::fixture::options;
    use crate::{Db, ErrorKind, Options, Schema, Type, row};

    fn open(sim: &CrashSim, options: Options) -> Db {
        let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
        Db::open_at(tiers, options, Clock::manual(1_000)).unwrap()
    }

    fn schema() -> Schema {
        Schema::new().field("n", Type::U64)
    }

    #[test]
    fn what_is_below_is_counted_and_so_is_what_looks_cost() {
        let db = open(&CrashSim::new(CrashModel::Pages, 16 << 20), options());
        let table = db.create_table("t", schema()).unwrap();
        let lower = || db.metrics().sorted_tables;
        let empty = lower();
        assert_eq!((empty.runs, empty.files, empty.bytes, empty.rows, empty.memory_bytes), (0, 0, 0, 0, 0));
        table
            .load(|loader| {
                (0..4_000u64).try_for_each(|n| loader.push(&(2 * n).to_be_bytes(), &[("n", n.into())]))
            })
            .unwrap();
        let loaded = lower();
        assert_eq!((loaded.runs, loaded.files, loaded.rows), (1, 1, 4_000));
        assert_eq!((loaded.deltas, loaded.tombstones, loaded.looks), (0, 0, 0));
        // The index blocks are there as soon as the file is: the first look reads one block and no more.
        assert!(loaded.block_cache_bytes >= 4_096 && loaded.block_cache_misses == 0, "{loaded:?}");
        assert!(table.get(&0u64.to_be_bytes()).unwrap().is_some());
        assert_eq!(lower().block_cache_misses, 1);
        assert!(loaded.bytes >= 4_096 && loaded.record_bytes > 4_000 * 16, "{loaded:?}");
        assert!(loaded.memory_bytes >= 4_000 * 12 / 8, "the filter alone has 12 bits a key: {loaded:?}");
        for n in 0..100u64 {
            assert!(table.get(&(2 * n).to_be_bytes()).unwrap().is_some());
        }
        let found = lower();
        assert_eq!((found.looks, found.filter_false_positives), (101, 0));
        let blocks = found.block_cache_misses;
        assert!(blocks >= 1 && found.block_cache_hits >= 200 - blocks, "{found:?}");
        assert!(found.block_cache_bytes >= 4_096 && found.block_cache_bytes <= found.block_cache_bytes_max);
        for n in 0..4_000u64 {
            assert!(table.get(&(2 * n + 1).to_be_bytes()).unwrap().is_none());
        }
        let missed = lower();
        let denied_not = missed.looks - found.looks;
        assert_eq!(missed.filter_false_positives, denied_not, "nothing was there");
        assert!((1..100).contains(&denied_not), "one in 190 is: {denied_not}");
    }

    #[test]
    fn moves_are_counted_and_what_holds_them_up_is_told() {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        let options = |capacity_bytes_max| Options {
            segment_bytes: 256 << 10,
            fast_tier_bytes_max: 16 << 20,
            capacity_bytes_max,
            ..options()
        };
        let db = open(&sim, options(1));
        let table = db.create_table("t", Schema::open()).unwrap();
        assert_eq!(db.metrics().sorted_tables.bytes_to_move, 0);
        let text = "x".repeat(1_000);
        for n in 0..13_000u64 {
            table.put(&n.to_be_bytes(), &row! { text: text.as_str() }).unwrap();
        }
        let snapshot = db.snapshot();
        let short = db.metrics();
        assert!(short.sorted_tables.bytes_to_move > 256 << 10, "{short:?}");
        assert!(short.sorted_tables.move_failure.is_none() && short.oldest_snapshot_age_ms == Some(0));
        let _ = db.collect();
        let failed = db.metrics().sorted_tables;
        let failure = failed.move_failure.unwrap();
        assert_eq!((failure.kind, failure.ago_ms, failed.moves), (ErrorKind::Full, 0, 0));
        assert!(failure.message.contains("capacity_bytes_max"), "{}", failure.message);
        drop((snapshot, table));
        db.close().unwrap();

        let db = open(&sim, options(u64::MAX));
        db.collect().unwrap();
        let moved = db.metrics();
        let lower = moved.sorted_tables;
        assert!(lower.moves > 0 && lower.move_failure.is_none(), "{lower:?}");
        assert!(lower.bytes_to_move < short.sorted_tables.bytes_to_move, "{lower:?} after {short:?}");
        assert!(lower.rows > 0 && lower.rows == moved.records_moved, "{lower:?}");
        assert_eq!(moved.oldest_snapshot_age_ms, None);
    }
}
