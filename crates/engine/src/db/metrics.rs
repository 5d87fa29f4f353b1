//! `Metrics`: counters and gauges of a store at one moment.

use hedgerow_device::SyncFailure;

use super::counters::Count;
use super::engine::Engine;

mod queues;
mod sealed;
mod sorted_tables;

pub use queues::QueueMetrics;
pub use sealed::SealedMetrics;
pub use sorted_tables::{FailedMove, SortedTablesMetrics};

use crate::log::WriteFailure;
use crate::sync::atomic::Ordering;

/// Counters and gauges of a store at one moment. Counters start at zero when the store is opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Rows in all tables, expired ones not yet swept included.
    pub rows: u64,
    /// Those of them that have an expiry.
    pub rows_expiring: u64,
    /// Tables.
    pub tables: u64,
    /// Bytes of DRAM taken by the indexes.
    pub index_bytes: u64,
    /// Bytes they may take ([`Options::index_bytes_max`](crate::Options::index_bytes_max)).
    pub index_bytes_max: u64,
    /// The part of them that is on the fast tier.
    pub sealed: SealedMetrics,
    /// Bytes the fast tier takes now.
    pub fast_tier_bytes: u64,
    /// Bytes in one segment, but for those of larger records.
    pub segment_bytes: u64,
    /// Bytes of the disk that it takes: fewer once freed segments were given back. On no disk, `fast_tier_bytes`.
    pub fast_tier_allocated_bytes: u64,
    /// Bytes it may take.
    pub fast_tier_bytes_max: u64,
    /// Bytes of records that are needed (estimated).
    pub live_bytes: u64,
    /// Bytes of records that are not, and wait for collection (estimated).
    pub obsolete_bytes: u64,
    /// Bytes of segments where there is no record: what open ones have room for, and what was left over when they were sealed.
    pub unused_bytes: u64,
    /// The store was opened by the index that was saved when it was closed, and its log was not read.
    pub index_was_saved: bool,
    /// Whether the store was opened by a checkpoint of its index, after its process had been killed: only what had been written since was read ([`Options::index_checkpoint_bytes`](crate::Options::index_checkpoint_bytes)).
    pub index_was_checkpointed: bool,
    /// Checkpoints of the index that were taken since.
    pub index_checkpoints: u64,
    /// Whole rows written.
    pub puts: u64,
    /// Partial updates written.
    pub updates: u64,
    /// Rows looked up.
    pub gets: u64,
    /// Rows deleted.
    pub deletes: u64,
    /// Scans begun.
    pub scans: u64,
    /// Rows removed because they expired.
    pub expired: u64,
    /// Syncs of the medium.
    pub syncs: u64,
    /// Bytes of the log that writers wrote back ahead of them ([`Options::persist_granule`](crate::Options::persist_granule)).
    pub bytes_written_back: u64,
    /// Segments collected.
    pub segments_collected: u64,
    /// Segments quarantined because gc met corruption, in them or under a delta in them. They keep their space;
    /// reading what is corrupted says where it is.
    pub segments_quarantined: u64,
    /// Bytes of live records copied by gc.
    pub bytes_collected: u64,
    /// Rows, deltas and tombstones that moved from the log to sorted tables.
    pub records_moved: u64,
    /// Bytes that they took in the log.
    pub bytes_moved: u64,
    /// What there is below the log, what looks into it cost, and how rows come there.
    pub sorted_tables: SortedTablesMetrics,
    /// What waits behind writers, and what may.
    pub queues: QueueMetrics,
    /// What writing 1 KiB takes of the time of all writers together, in ns, while they are held to the rate at which room is made; 0 while they are not.
    pub write_throttle_ns_per_kib: u64,
    /// How long writers have slept for that, all together, in ns.
    pub write_throttle_ns: u64,
    /// How long ago the oldest snapshot was taken that is still there, in ms: what it may need stays in the fast tier, and what was written since does not move.
    pub oldest_snapshot_age_ms: Option<u64>,
    /// Delta chains merged into rows in the background: those that reads met, and those that a write filled.
    pub chains_merged: u64,
    /// Those of them that were merged into their row in place (FOCUS section V-B).
    pub chains_merged_in_place: u64,
    /// Rows copied into the order of their keys because scans met them apart.
    pub rows_reordered: u64,
    /// Reads of rows that were in the cache, while it was in use.
    pub cache_hits: u64,
    /// Reads of rows that were not, while it was in use.
    pub cache_misses: u64,
    /// Rows copied into the cache.
    pub cache_admissions: u64,
    /// Rows evicted from it; those that were changed or deleted are not counted.
    pub cache_evictions: u64,
    /// Rows in the cache.
    pub cache_rows: u64,
    /// Bytes of DRAM that its pages take.
    pub cache_bytes: u64,
    /// Bytes it may take.
    pub cache_bytes_max: u64,
    /// Whether it is in use. Not while it is bypassed because rows are read from the fast tier about as fast, or that is in the page cache.
    pub cache_active: bool,
    /// How many times longer a read of the fast tier takes than one of DRAM, in percent, as last measured; 0 if never.
    pub cache_benefit_percent: u64,
    /// The last sequence given out: writes in the life of the store, about.
    pub sequence: u64,
    /// Everything up to this sequence is durable.
    pub durable_sequence: u64,
    /// The sync that failed, if one did: which call, what the system said, and when. The store takes no more writes then.
    pub sync_failure: Option<SyncFailure>,
    /// Why the store takes no more writes though it was not closed, and since when: that sync, or something else ([`Db::write_failure`](crate::Db::write_failure)).
    pub write_failure: Option<WriteFailure>,
}

impl Engine {
    pub(crate) fn metrics(&self) -> Metrics {
        let tables = self.catalog.all();
        let (live_bytes, obsolete_bytes, unused_bytes) = self.log.record_bytes();
        let (fast_tier_bytes, fast_tier_bytes_max) = self.log.space().tier_bytes();
        let (segments_collected, bytes_collected) = self.gc.totals();
        let (records_moved, bytes_moved) = self.gc.moved();
        let (chains_merged, chains_merged_in_place) = self.merge_queue.merged();
        let (write_throttle_ns_per_kib, write_throttle_ns) = self.gc.throttle.paid();
        let bytes_to_move = if self.may_move() { self.missing_landing() } else { 0 };
        let move_bytes = if self.may_move() { self.bytes_to_move(u64::MAX) } else { 0 };
        let of_cache = &self.cache.numbers;
        Metrics {
            rows: tables.iter().map(|t| t.rows()).sum(),
            rows_expiring: tables.iter().map(|t| t.expiry.rows()).sum(),
            tables: tables.len() as u64,
            index_bytes: tables.iter().map(|t| t.levels.bytes()).sum(),
            index_bytes_max: self.options.index_bytes_max,
            sealed: SealedMetrics::of(&tables, &self.log, &self.gc),
            fast_tier_bytes,
            segment_bytes: self.log.extent_bytes(),
            fast_tier_allocated_bytes: self.log.tier().allocated_bytes().unwrap_or(fast_tier_bytes),
            fast_tier_bytes_max,
            live_bytes,
            obsolete_bytes,
            unused_bytes,
            index_was_saved: self.index_was_saved.load(Ordering::Relaxed),
            index_was_checkpointed: self.index_was_checkpointed.load(Ordering::Relaxed),
            index_checkpoints: self.index_checkpoints.load(Ordering::Relaxed),
            puts: self.counters.sum(Count::Put),
            updates: self.counters.sum(Count::Update),
            gets: self.counters.sum(Count::Get),
            deletes: self.counters.sum(Count::Delete),
            scans: self.counters.sum(Count::Scan),
            expired: self.counters.sum(Count::Expired),
            syncs: self.log.syncs(),
            bytes_written_back: self.log.bytes_written_back(),
            segments_collected,
            segments_quarantined: self.log.segments_quarantined(),
            bytes_collected,
            records_moved,
            bytes_moved,
            sorted_tables: SortedTablesMetrics::of(
                &self.runs,
                &self.gc,
                (self.clock.monotonic_ns(), bytes_to_move),
            ),
            queues: QueueMetrics::of((&self.gc.controller, &self.io_budget), self.groups_owed(), move_bytes),
            write_throttle_ns_per_kib,
            write_throttle_ns,
            oldest_snapshot_age_ms: self.snapshots.oldest_age_ms(self.clock.monotonic_ns()),
            chains_merged,
            chains_merged_in_place,
            rows_reordered: self.reorder_queue.rows(),
            cache_hits: self.counters.sum(Count::CacheHit),
            cache_misses: self.counters.sum(Count::CacheMiss),
            cache_admissions: of_cache.admissions.load(Ordering::Relaxed),
            cache_evictions: of_cache.evictions.load(Ordering::Relaxed),
            cache_rows: of_cache.rows.load(Ordering::Relaxed),
            cache_bytes: of_cache.bytes.load(Ordering::Relaxed),
            cache_bytes_max: self.cache.bytes_max(),
            cache_active: self.cache.tick() != 0,
            cache_benefit_percent: of_cache.benefit_percent.load(Ordering::Relaxed),
            sequence: self.log.last_sequence(),
            durable_sequence: self.log.durable_sequence(),
            sync_failure: self.log.tier().sync_failure().cloned(),
            write_failure: self.log.write_failure(),
        }
    }
}
