//! Merges of groups: those of a table made one, or, where there is no room for that, some of those that came last.
//!
//! Owns when there is a merge, of which groups, and its steps. Promises that a look finds in what was merged what it found before; and that a table which could be sealed is not held for want of room that no merge of two groups takes. Must not know how a group is written, nor how one is found.
//!
//! All groups of a table are merged where there is room for that: then what is gone is left out. Where there is not, those of L0 are which are next to one another, the most that fit ([`Engine::merge_that_fits`]): of these nothing is gained but their number, and what extents were not full. Below them older groups stay, so of a key whose newest entry is gone they keep one that [says so](NOTHING).

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use super::{MERGE_STEP, SealRun, is_held, push_or_end};
use crate::db::engine::{Engine, TableShared};
use crate::group::{
    Group, GroupFilter, GroupLevels, GroupWriter, MergedEntries, MergedGroups, NumberedGroup,
};
use crate::index::Slot;
use crate::levels::{NOTHING, damaged_leaf, leaf_bytes_min};
use crate::log::{LeafWriter, PlaceState};
use crate::scheduler::gc_state::MergeScope;
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// Groups are merged with the one below them that have as many of so many parts of its keys as [may wait](crate::scheduler::controller::Controller::groups_max), which is half at rest. (And so are more than may wait.)
const GROUPS_PARTS: u64 = 32;
/// For want of room in a filter groups are merged that have this share of the keys of the one below, not fewer.
const L1_SHARE_MAX: u64 = 32;
/// Filters take this share of the index, at most.
pub(super) const FILTERS_SHARE: u64 = 3;
/// So many times the groups that may wait are a reason for a merge, and none to let more of them wait.
const WANTED: f64 = 1.25;
/// What is merged may take so much more than before: keys of another length fill leaves otherwise.
const MORE_SHARE: u64 = 64;

/// How many times the groups there are that may wait for a merge, if `groups_max` may: by their number, and by their keys beside those of the group below them.
fn groups_owed(groups: &GroupLevels, groups_max: u32) -> f64 {
    let (count, most) = (groups.l0().len() as f64, f64::from(groups_max));
    let of_l0: u64 = groups.l0().iter().map(|of| of.group.entries()).sum();
    let of_l1 = groups.l1().entries().max(1) as f64;
    // Two are not worth a merge, however small the one below is; and many beside a small one are no sign that merges do not keep up.
    let by_keys = if count > 2.0 { (of_l0 * GROUPS_PARTS) as f64 / (of_l1 * most) } else { 0.0 };
    let by_keys = if of_l0 as f64 > of_l1 { by_keys.min(WANTED) } else { by_keys };
    by_keys.max(count / most)
}

/// How many extents groups of so many bytes take together, at most.
fn extents_for(bytes: u64, leaf_bytes_max: u64) -> u64 {
    (bytes + bytes / MORE_SHARE).div_ceil(leaf_bytes_max)
}

/// Which groups of L0 are merged where so many extents are all the room there is: the most that are next to one another and fit, for that is what more groups may come for; of as many those that take the least. And how many extents two take that are next to one another, at the least.
fn groups_that_fit(l0: &[NumberedGroup], extents: u64, leaf_bytes_max: u64) -> (Range<usize>, u64) {
    let (mut chosen, mut least) = ((0..0, 0), u64::MAX);
    for newest in 0..l0.len() {
        let mut bytes = l0[newest].group.bytes();
        for (oldest, of) in l0.iter().enumerate().skip(newest + 1) {
            bytes += of.group.bytes();
            let wanted = extents_for(bytes, leaf_bytes_max);
            least = least.min(wanted);
            if wanted > extents {
                break;
            }
            let key = |range: &Range<usize>, wanted| (range.len(), Reverse(wanted));
            if key(&(newest..oldest + 1), wanted) > key(&chosen.0, chosen.1) {
                chosen = (newest..oldest + 1, wanted);
            }
        }
    }
    (chosen.0, least)
}

/// When.
impl Engine {
    /// The thread that merges groups.
    pub(crate) fn groups_loop(&self) {
        // A checkpoint waits for a cycle of gc, and a merge may: a seal may not.
        self.work_while_writable(Engine::is_index_checkpoint_due, |engine| {
            engine.merge_groups_where_wanted().and(engine.checkpoint_index_if_due().map(drop))
        });
    }

    /// Merges groups that are many, or of which much is gone.
    ///
    /// # Errors
    /// `Corrupted`, of a leaf; what the tier refuses. What can be done is done before.
    pub(crate) fn merge_groups_where_wanted(&self) -> Result<()> {
        if self.log.leaf_extents() == 0 {
            // No table has groups, as in most stores.
            return Ok(());
        }
        let Some(_alone) = self.gc.merging_groups.try_lock() else { return Ok(()) };
        let (mut done, filters) = (Ok(()), self.filters());
        for table in self.catalog.all() {
            done = done.and(self.merge_groups_if_wanted(&table, filters));
        }
        done = done.and(self.gather_small_tables());
        self.log.free_retired_leaves();
        done
    }

    /// Whether all tables that could be sealed wait for their groups to be merged, and those of one are, now or once there is more room. (One that cannot be merged holds up no other.)
    pub(super) fn waits_for_merge(&self) -> bool {
        let tables = self.tables_worth_leaves();
        let can_be_merged = |table| self.merge_that_fits(table, &table.levels.groups(), usize::MAX).is_some();
        !tables.is_empty()
            && tables.iter().all(is_held)
            && (tables.iter().any(can_be_merged) || self.may_gain_space())
    }

    fn emptied_and_segments(&self) -> (u64, u64) {
        (self.log.segments_emptied(), u64::from(self.log.space().segment_extents()))
    }

    /// Bytes that the filters of all tables take, and how many tables have groups.
    pub(super) fn filters(&self) -> (u64, u64) {
        let tables = self.catalog.all();
        let with_groups = tables.iter().filter(|of| of.levels.has_groups());
        with_groups.fold((0, 0), |(bytes, count), of| (bytes + of.levels.filter_bytes(), count + 1))
    }

    /// How many keys the filter of a table may have, beside [those](Engine::filters) of other tables.
    pub(super) fn filter_keys_max(&self, table: &TableShared, (bytes, tables): (u64, u64)) -> u64 {
        let filters_max = self.options.index_bytes_max / FILTERS_SHARE;
        let others = bytes.saturating_sub(table.levels.filter_bytes());
        let of_each = filters_max / tables.max(1);
        GroupFilter::keys_for_bytes(filters_max.saturating_sub(others).max(of_each))
    }

    /// Of the groups of a table that wait for a merge there are so many times as many as may, where most do.
    pub(crate) fn groups_owed(&self) -> f64 {
        if self.log.leaf_extents() == 0 {
            return 0.0;
        }
        let groups_max = self.gc.controller.groups_max();
        let tables = self.catalog.all();
        let with_groups = tables.iter().filter(|table| table.levels.has_groups());
        with_groups.map(|table| groups_owed(&table.levels.groups(), groups_max)).fold(0.0, f64::max)
    }

    /// Merges groups of a table if they are many, or much of them is gone, and there is room.
    fn merge_groups_if_wanted(&self, table: &Arc<TableShared>, filters: (u64, u64)) -> Result<()> {
        if !table.levels.has_groups() {
            return Ok(());
        }
        let groups = table.levels.groups();
        let of_l0: u64 = groups.l0().iter().map(|of| of.group.entries()).sum();
        // The newest may be one that goes on.
        let is_open = self.gc.sealing.try_lock().is_none();
        let may_be_merged = groups.l0().len().saturating_sub(usize::from(is_open));
        if may_be_merged == 0 && is_open {
            return Ok(());
        }
        // A filter of all of them takes half of what it may: by the time they are merged as many have come again.
        let fills_filter = may_be_merged > 0
            && of_l0 * 2 > self.filter_keys_max(table, filters)
            && of_l0 * L1_SHARE_MAX > groups.l1().entries();
        let is_wanted = groups_owed(&groups, self.gc.controller.groups_max()) > 1.0
            || is_held(table)
            || fills_filter && groups.newest_first().count() > 1
            || table.levels.groups_are_worn(self.emptied_and_segments());
        if !is_wanted {
            return Ok(());
        }
        // No copy more while the last is not given back: somebody may read for long.
        self.log.free_retired_leaves();
        if self.log.has_retired_leaves() {
            return Ok(());
        }
        match self.merge_that_fits(table, &groups, may_be_merged) {
            Some(merged) => self.merge_some_groups(table, &groups, &merged),
            None => Ok(()),
        }
    }

    /// Merges all groups of a table but for one that is being written, if there is room.
    pub(super) fn merge_all_groups(&self, table: &Arc<TableShared>) -> Result<()> {
        let groups = table.levels.groups();
        let is_open = self.gc.sealing.try_lock().is_none();
        let may_be_merged = groups.l0().len().saturating_sub(usize::from(is_open));
        match self.merge_that_fits(table, &groups, may_be_merged) {
            Some(all @ MergedGroups::IntoL1(_)) => self.merge_some_groups(table, &groups, &all),
            _ => Ok(()),
        }
    }

    /// What of the groups of a table is merged now, of so many of L0 that may be, the oldest: all of them if there is room for that; else, if they are many, [some](groups_that_fit). `None` where there is no room for any.
    fn merge_that_fits(
        &self,
        table: &Arc<TableShared>,
        groups: &GroupLevels,
        may_be_merged: usize,
    ) -> Option<MergedGroups> {
        let l0 = &groups.l0()[groups.l0().len().saturating_sub(may_be_merged)..];
        let has_room = self.has_room_to_merge(table, groups)
            // What a checkpoint alone holds on to it would hold on to once more, after the merge.
            || self.forget_checkpoint_that_holds(1) && self.has_room_to_merge(table, groups);
        if has_room {
            return Some(MergedGroups::IntoL1(l0.first().map_or(0, |newest| newest.number)));
        }
        let (is_held, groups_max) = (is_held(table), self.gc.controller.groups_max() as usize);
        if !is_held && l0.len() <= groups_max {
            return None;
        }
        let room = self.room();
        // Of a few groups, as long as more may come, too much would be written again and again.
        let (fewest, kept) =
            if is_held { (2, 0) } else { (groups_max.div_ceil(2), self.left_to_writers(room)) };
        let id = table.id.load(Ordering::Acquire);
        let lacked = self.gc.merge_of_groups_lacked(MergeScope::Some, id, self.log.segments_emptied());
        // As few as were had in vain, or as many as there are if these are more by now.
        let known = lacked.filter(|(_, available)| room.available <= *available).map(|(of, _)| of - 1);
        let extents = u64::from(room.available.saturating_sub(kept)).min(known.unwrap_or(u64::MAX));
        let (chosen, _) = groups_that_fit(l0, extents, self.log.leaf_bytes_max());
        let (newest, oldest) = (l0.get(chosen.start)?, l0.get(chosen.end.checked_sub(1)?)?);
        (chosen.len() >= fewest.max(2)).then_some(MergedGroups::OfL0(oldest.number..=newest.number))
    }

    /// Whether there is room for a group that takes the place of all of a table: as much again, less what is gone, until those before are free. What is hidden by the young index is
    /// written too, and nobody has counted it: where there was no room for that the next merge has room for all.
    pub(super) fn has_room_to_merge(&self, table: &Arc<TableShared>, groups: &GroupLevels) -> bool {
        let (entries, bytes, extents) =
            groups.newest_first().fold((0, 0, 0), |(entries, bytes, extents), of| {
                (entries + of.entries(), bytes + of.bytes(), extents + of.extents().len() as u64)
            });
        let counting = table.levels.sealed_rows().min(entries);
        let live = (u128::from(bytes) * u128::from(counting) / u128::from(entries.max(1))) as u64;
        let leaf_bytes_max = self.log.leaf_bytes_max();
        let id = table.id.load(Ordering::Acquire);
        let lacked = self.gc.merge_of_groups_lacked(MergeScope::All, id, self.log.segments_emptied());
        let wanted = (live + live / 8).div_ceil(leaf_bytes_max).max(lacked.map_or(0, |(extents, _)| extents));
        let wanted = wanted.min(bytes.div_ceil(leaf_bytes_max));
        let room = self.room();
        // It makes room in the end; or a seal waits for it, which makes room in the index, and writers for that.
        let is_for_writers = wanted + (extents / 4).max(1) <= extents || is_held(table);
        let kept = if is_for_writers { 0 } else { self.left_to_writers(room) };
        u64::from(room.available.saturating_sub(kept)) >= wanted
    }

    /// The error of an index that is full with keys which could be sealed, if there were room for that: what is missing.
    pub(crate) fn explain_full_index(&self, full: Error) -> Error {
        let (tables, available) = (self.tables_worth_leaves(), self.room().available);
        let (leaf_bytes_max, extent_bytes) = (self.log.leaf_bytes_max(), self.log.extent_bytes());
        let least =
            |table: &Arc<TableShared>| groups_that_fit(table.levels.groups().l0(), 0, leaf_bytes_max).1;
        let free = format!("extents of {extent_bytes} bytes, and {available} are free");
        let missing = match tables.iter().min_by_key(|table| least(table)) {
            Some(table) if tables.iter().all(is_held) => format!(
                "table {:?} has {} groups of keys that left it, and no table may have more: merging two of them takes {} {free}",
                table.name,
                table.levels.groups().l0().len(),
                least(table)
            ),
            Some(_) if !self.has_room_to_seal() => {
                format!("leaves of keys that could leave it take 2 {free}")
            }
            None if self.has_only_small_tables() => format!(
                "of its {} tables none has keys for {} bytes of leaves, and fewer stay in it",
                self.catalog.all().len(),
                leaf_bytes_min(self.options.index_bytes_max)
            ),
            _ => return full,
        };
        let most = self.options.index_bytes_max;
        Error::new(full.kind(), format!("{}; that is {most} bytes; {missing}", full.message()))
    }
}

/// Merges.
impl Engine {
    /// Merges all groups of a table, but for one that is being written. By one thread at a time.
    #[cfg(test)]
    pub(crate) fn merge_groups(&self, table: &Arc<TableShared>) -> Result<()> {
        let groups = table.levels.groups();
        let is_open = self.gc.sealing.try_lock().is_none();
        match groups.l0().get(usize::from(is_open)) {
            Some(newest) => self.merge_some_groups(table, &groups, &MergedGroups::IntoL1(newest.number)),
            None => Ok(()),
        }
    }

    /// Merges these of the groups of a table, of which none is being written. By one thread at a time.
    pub(super) fn merge_some_groups(
        &self,
        table: &TableShared,
        groups: &GroupLevels,
        which: &MergedGroups,
    ) -> Result<()> {
        let run =
            SealRun { table, id: table.id.load(Ordering::Acquire), below: self.log.next_segment_number() };
        let bytes = groups.merging(which).iter().map(|group| group.bytes()).sum();
        let (mut leaves, emptied) = (self.leaf_writer(bytes), self.log.segments_emptied());
        let Some(merged) = self.write_merged_group(&run, (groups, which), &mut leaves)? else {
            return Ok(());
        };
        let merged = merged.stamped(run.below);
        self.gc.count_keys_sealed(0, merged.entries());
        self.publish_groups(table, run.id, leaves, |levels| {
            levels.set_merged(groups, (which, emptied), merged, &self.log)
        });
        Ok(())
    }

    /// What some of these groups have together: of each key the newest entry; where that is gone none, or what says so while there are older groups. `None` where there is no room for it, or nobody wants it any more.
    pub(super) fn write_merged_group(
        &self,
        run: &SealRun<'_>,
        (groups, which): (&GroupLevels, &MergedGroups),
        leaves: &mut LeafWriter<'_>,
    ) -> Result<Option<Group>> {
        let (mut writer, mut from) = (GroupWriter::new(leaves), Vec::new());
        let merging: Vec<&Group> = groups.merging(which).into_iter().map(|group| &**group).collect();
        let bytes = merging.iter().map(|group| group.bytes()).sum();
        let (scope, gone, wanted) = match which {
            MergedGroups::IntoL1(_) => (MergeScope::All, None, 0),
            MergedGroups::OfL0(_) => {
                (MergeScope::Some, Some(NOTHING), extents_for(bytes, self.log.leaf_bytes_max()))
            }
        };
        loop {
            let guard = self.log.pin();
            let view = guard.view();
            if run.is_over() || self.scheduler.is_stopped() {
                return Ok(None);
            }
            let mut merged = MergedEntries::new(&merging, &view, &from).map_err(damaged_leaf)?;
            for _ in 0..MERGE_STEP {
                let Some((key, word)) = merged.entry() else { return writer.finish().map(Some) };
                let slot = Slot::from_raw(word).and_then(Slot::in_log);
                let counts =
                    slot.is_some_and(|slot| view.kept(slot.offset(), merged.stamp()) == PlaceState::There);
                let kept = if counts { Some(word) } else { gone };
                if let Some(word) = kept
                    && !push_or_end(writer.push(key, word))?
                {
                    let lacked = if wanted > 0 { wanted } else { writer.extents() as u64 + 1 };
                    let then = (self.log.segments_emptied(), self.room().available);
                    self.gc.record_merge_of_groups_lacked(scope, run.id, lacked, then);
                    return Ok(None);
                }
                merged.advance(|_, _| ()).map_err(damaged_leaf)?;
            }
            match merged.entry() {
                Some((next, _)) => from = next.to_vec(),
                None => return writer.finish().map(Some),
            }
        }
    }
}
