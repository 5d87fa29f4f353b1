//! Tables of few keys: too few for an extent of leaves of their own, and too many tables to keep all of them in memory.
//!
//! Owns which tables are worth leaves, which of them share extents, and when such leaves are written anew. Promises that tables which share extents lie in no more than about twice as many as their leaves take. Must not know how keys are sealed, nor how groups are merged.
//!
//! Groups of few leaves are written one behind the other ([`Log::shared_leaf_writer`](crate::log::Log::shared_leaf_writer)), whatever table they are of. An extent is free once the last of them is merged, or its table is gone: one group of a table that nobody writes to would keep all of it. So where such tables are spread thin their groups are merged for that alone.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Result;
use crate::db::engine::{Engine, TableShared};
use crate::group::Group;
use crate::levels::{is_worth_leaves, leaf_bytes_min};
use crate::log::LeafWriter;
use crate::sync::atomic::Ordering;

/// Tables that share extents are spread thin from so many times as many on as they need, and so many more.
const SPREAD_TIMES: u64 = 2;
const SPREAD_MORE: u64 = 2;

impl Engine {
    /// Tables whose young keys are worth leaves: of those with few of them all together, or none.
    pub(super) fn tables_worth_leaves(&self) -> Vec<Arc<TableShared>> {
        let mut tables = self.catalog.all();
        let least = leaf_bytes_min(self.options.index_bytes_max);
        tables.retain(|table| self.bytes_to_seal(table) >= least);
        let of_few = |table: &&Arc<TableShared>| !self.is_worth_leaves(self.bytes_to_seal(table));
        let together = tables.iter().filter(of_few).map(|table| self.bytes_to_seal(table)).sum();
        if !self.is_worth_leaves(together) {
            tables.retain(|table| !of_few(&table));
        }
        tables
    }

    /// Whether no table has as many keys as may leave it.
    pub(super) fn has_only_small_tables(&self) -> bool {
        let least = leaf_bytes_min(self.options.index_bytes_max);
        self.options.seal && self.catalog.all().iter().all(|table| self.bytes_to_seal(table) < least)
    }

    /// Whether so many bytes of leaves are worth an extent of their own.
    pub(super) fn is_worth_leaves(&self, leaf_bytes: u64) -> bool {
        is_worth_leaves(leaf_bytes, &self.log, self.options.index_bytes_max)
    }

    /// Where about so many bytes of leaves are written.
    pub(super) fn leaf_writer(&self, leaf_bytes: u64) -> LeafWriter<'_> {
        match self.is_worth_leaves(leaf_bytes) {
            true => self.log.leaf_writer(0),
            false => self.log.shared_leaf_writer(0),
        }
    }

    /// Merges the groups of tables that are spread thin, where there is room. By one thread at a time.
    pub(super) fn gather_small_tables(&self) -> Result<()> {
        // Nothing has become thinner but by a seal, a merge, or the end of a table.
        let (sealed, merged) = self.gc.keys_sealed();
        let now = sealed + merged + self.catalog.all().len() as u64;
        if self.gc.looked_for_spread_tables.swap(now, Ordering::Relaxed) == now {
            return Ok(());
        }
        let mut done = Ok(());
        for table in self.tables_spread_thin() {
            done = done.and(self.merge_all_groups(&table));
        }
        self.log.free_retired_leaves();
        done
    }

    /// Of the tables whose leaves share extents those that others have left nearly alone there, if together they take far more extents than they need.
    pub(super) fn tables_spread_thin(&self) -> Vec<Arc<TableShared>> {
        let (leaf_bytes_max, extent_bytes) = (self.log.leaf_bytes_max(), self.log.extent_bytes());
        let mut tables = self.catalog.all();
        tables.retain(|table| {
            let bytes = table.levels.groups().newest_first().map(|group| group.bytes()).sum();
            bytes > 0 && !self.is_worth_leaves(bytes)
        });
        let mut bytes_in: HashMap<u64, u64> = HashMap::new();
        let places_of = |group: &Group| -> Vec<(u64, u64)> {
            let place = |of: &crate::group::LeafExtent| (of.place().at / extent_bytes, u64::from(of.bytes()));
            group.extents().iter().map(|of| place(of)).collect()
        };
        for table in &tables {
            let groups = table.levels.groups();
            for (extent, bytes) in groups.newest_first().flat_map(|group| places_of(group)) {
                *bytes_in.entry(extent).or_default() += bytes;
            }
        }
        let needed = bytes_in.values().sum::<u64>().div_ceil(leaf_bytes_max);
        if bytes_in.len() as u64 <= needed * SPREAD_TIMES + SPREAD_MORE {
            return Vec::new();
        }
        let is_thin = |(extent, _): (u64, u64)| {
            bytes_in.get(&extent).is_some_and(|bytes| bytes * SPREAD_TIMES < leaf_bytes_max)
        };
        tables.retain(|table| {
            table.levels.groups().newest_first().flat_map(|group| places_of(group)).any(is_thin)
        });
        tables
    }
}
