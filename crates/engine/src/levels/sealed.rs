//! What of a table's index is sealed: keys that only groups have, on the tier (`group.rs`).
//!
//! Owns which groups there are, how a look into them is made, and what must be known of a key that is written while only a group has it. Promises that an entry which counts is the newest record of its key: *if the young tree has no slot of a key and the
//! entry of the newest group that has it is not gone, that entry leads to its newest record; and if that is gone, no group has anything of the key.* For a key leaves the young tree into a newer group, or when it has no older record in the log any more: what older groups
//! have of it was freed then ([38](../../../../docs/decisions/0038-sealing.md)). Must not know how keys are sealed, nor what a record says.
//!
//! An entry cannot be taken back. It is *gone* once the segment that it leads into was emptied, which the log says of a place ([`LogView::kept`]). Who finds it gone looks into the young tree once more, where its copy is, if there is one.

use std::cmp::Ordering as KeyOrder;
use std::collections::HashSet;
use std::ops::Bound;

use arc_swap::ArcSwap;
use hedgerow_device::Random;

use crate::group::{
    DamagedLeaf, Group, GroupCursor, GroupFilter, GroupLevels, LeafPlace, MergedGroups, NumberedGroup,
};
use crate::index::{LogSlot, ScanBatch, ScanEnd, Slot, Tag};
use crate::log::{Log, LogGuard, LogView, PlaceState};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};

/// More entries than a leaf has: of 1 KiB, where each takes 9 bytes at the least.
const LEAF_PLACES: u64 = 128;

/// A filter tells numbers apart that are less than twice as far from one another.
const NUMBERS_APART_MAX: u64 = 1 << 14;

/// The word of an entry that says of a key that groups have nothing of it: that of older ones was gone where a newer entry was, which a merge has left out. They stay below, and without this the key would be found there again, under a tombstone that hides nothing any more.
pub(crate) const NOTHING: u64 = 0;

/// The groups as they were at one moment.
pub(super) type Groups = arc_swap::Guard<std::sync::Arc<GroupLevels>>;

/// The sealed part of a table's index.
pub(super) struct Sealed {
    /// There is a group: who finds nothing in the young tree asks no further otherwise.
    any: AtomicBool,
    groups: ArcSwap<GroupLevels>,
    /// Keys that the young tree does not have.
    rows: AtomicU64,
    /// Keys are being sealed: of what is in the young tree now a group may have an entry soon.
    sealing: AtomicBool,
    /// Rows of the table move to sorted tables.
    moving: AtomicBool,
    /// Keys have left the young tree for a group since that began.
    sealed_meanwhile: AtomicBool,
    /// Meanwhile: the entries that were stored over, as words. A key may be unsealed and sealed again with another count of older records.
    stored_over: Mutex<HashSet<u64>>,
    /// The number of the next group.
    next_number: AtomicU64,
    /// Entries that scans passed by in vain since groups were merged.
    passed: AtomicU64,
    /// How many segments had been emptied when they were.
    emptied_at_merge: AtomicU64,
}

/// A longer key stays in memory: a leaf of its own would be mostly empty.
const KEY_BYTES_MAX: usize = 256;

/// Whether a key may leave memory with this slot: that of a row in the log, with or without deltas over it, of which nothing but a write and the freeing of an older record changes the slot.
pub(crate) fn is_sealable(key: &[u8], slot: Slot) -> bool {
    let is_row = matches!(slot.tag(), Tag::Row | Tag::Delta) && !slot.expires();
    let is_known = slot.older_versions() < Slot::OLDER_VERSIONS_SATURATED && !slot.bytes_unknown();
    is_row && is_known && key.len() <= KEY_BYTES_MAX
}

/// What groups have of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SealedLook {
    /// Nothing, or an entry that says [so](NOTHING).
    Absent,
    /// Its newest record, if the young tree has none.
    There(Slot),
    /// An entry whose record is elsewhere. With what tells whether it was found so before.
    Gone(u64),
}

impl SealedLook {
    pub(super) fn slot(self) -> Option<Slot> {
        match self {
            SealedLook::There(slot) => Some(slot),
            SealedLook::Absent | SealedLook::Gone(_) => None,
        }
    }
}

/// A slot that stands for what nobody can say: the leaf is damaged. A row of unknown length, in the place of which there is no record: who reads it is told that it is corrupted, and no delta goes over it. It has many older records, as
/// far as anybody can say: what takes its place neither moves nor, if it is a tombstone, goes before they were counted.
fn unknown(damaged: DamagedLeaf) -> Slot {
    let row = LogSlot::new(Tag::Row, damaged.at(), u64::MAX);
    row.with_older_versions(Slot::OLDER_VERSIONS_SATURATED).into()
}

/// Whether what groups gave stands for what nobody can say. (Rows whose length their slot does not say are not sealed.)
pub(super) fn is_unknown(sealed: Slot) -> bool {
    sealed.bytes_unknown()
}

/// What these groups have of a key.
pub(super) fn look_into(groups: &GroupLevels, key: &[u8], log: LogView<'_>) -> SealedLook {
    match groups.get(key, &log) {
        Ok(look) => {
            log.record_leaf_look(look.asked);
            look.slot.map_or(SealedLook::Absent, |word| look_of(word, look.stamp, log))
        }
        Err(damaged) => {
            log.record_damaged_leaf();
            SealedLook::There(unknown(damaged))
        }
    }
}

/// What became of an entry of a group with this stamp.
fn look_of(word: u64, stamp: u64, log: LogView<'_>) -> SealedLook {
    let Some(slot) = Slot::from_raw(word).and_then(Slot::in_log) else { return SealedLook::Absent };
    match log.kept(slot.offset(), stamp) {
        PlaceState::There => SealedLook::There(slot.into()),
        PlaceState::Gone(mark) => SealedLook::Gone(mark),
    }
}

/// Looks.
impl Sealed {
    pub(super) fn new() -> Sealed {
        Sealed {
            any: AtomicBool::new(false),
            groups: ArcSwap::from_pointee(GroupLevels::default()),
            rows: AtomicU64::new(0),
            sealing: AtomicBool::new(false),
            moving: AtomicBool::new(false),
            sealed_meanwhile: AtomicBool::new(false),
            stored_over: Mutex::new(HashSet::new()),
            next_number: AtomicU64::new(1),
            passed: AtomicU64::new(0),
            emptied_at_merge: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Keys that only groups have. While writers are at work, a number between what it was and what it will be.
    pub(super) fn rows(&self) -> u64 {
        // Counted up after a key has left the young tree: it may have been written again by then.
        (self.rows.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    pub(super) fn groups(&self) -> std::sync::Arc<GroupLevels> {
        self.groups.load_full()
    }

    /// The groups that there are, if there are any, for who looks for these keys: what he looks at first is on its way.
    #[inline]
    pub(super) fn groups_for(&self, keys: &[&[u8]]) -> Option<Groups> {
        if !self.is_any() {
            return None;
        }
        let groups = self.groups.load();
        keys.iter().for_each(|key| groups.prefetch(key));
        Some(groups)
    }

    /// The groups that there are, if there are any.
    pub(super) fn groups_if_any(&self) -> Option<std::sync::Arc<GroupLevels>> {
        self.is_any().then(|| self.groups.load_full())
    }

    /// What groups have of a key.
    pub(super) fn look(&self, key: &[u8], log: LogView<'_>) -> SealedLook {
        look_into(&self.groups.load(), key, log)
    }

    /// Chooses an entry at random, whether it counts or not, and puts its key into `key`. `None` if the choice came to no entry: try again.
    pub(super) fn sample(&self, random: &mut Random, log: LogView<'_>, key: &mut Vec<u8>) -> Option<Slot> {
        let groups = self.groups.load();
        let leaves: u64 = groups.newest_first().map(|group| group.leaves()).sum();
        let mut leaf = random.below(leaves.max(1));
        let place = random.below(LEAF_PLACES) as usize;
        for group in groups.newest_first() {
            let Some(behind) = leaf.checked_sub(group.leaves()) else {
                let (found, word) = group.entry_at(leaf, place, &log).ok()??;
                *key = found;
                return look_of(word, group.stamp(), log).slot();
            };
            leaf = behind;
        }
        None
    }
}

/// Between which keys.
type KeyBounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// A walk of all groups as one, either way.
struct GroupWalk<'g, 'l> {
    /// Newest first.
    cursors: Vec<GroupCursor<'g, LogView<'l>>>,
    reverse: bool,
}

impl<'g, 'l> GroupWalk<'g, 'l> {
    fn begin(
        groups: &'g GroupLevels,
        log: &'g LogView<'l>,
        (low, high): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
    ) -> Result<GroupWalk<'g, 'l>, DamagedLeaf> {
        let mut cursors: Vec<_> = groups.newest_first().map(|group| GroupCursor::new(group, log)).collect();
        for cursor in &mut cursors {
            match (reverse, low, high) {
                (false, Bound::Unbounded, _) => cursor.seek(b"")?,
                (false, Bound::Included(low) | Bound::Excluded(low), _) => cursor.seek(low)?,
                (true, _, Bound::Unbounded) => cursor.seek_last()?,
                (true, _, Bound::Excluded(high)) => cursor.seek_below(high)?,
                (true, _, Bound::Included(high)) => {
                    cursor.seek(high)?;
                    if cursor.entry().is_none_or(|(key, _)| key != high) {
                        cursor.seek_below(high)?;
                    }
                }
            }
            if let (false, Bound::Excluded(low)) = (reverse, low)
                && cursor.entry().is_some_and(|(key, _)| key == low)
            {
                cursor.advance()?;
            }
        }
        Ok(GroupWalk { cursors, reverse })
    }

    /// Whether a key comes before another one, the way it goes.
    fn is_before(&self, one: &[u8], other: &[u8]) -> bool {
        one.cmp(other) == if self.reverse { KeyOrder::Greater } else { KeyOrder::Less }
    }

    /// The key that comes next, with the entry of the newest group that has it, and that group's stamp.
    fn head(&self) -> Option<(&[u8], u64, u64)> {
        let heads = self.cursors.iter().filter_map(|cursor| {
            let (key, word) = cursor.entry()?;
            Some((key, word, cursor.group().stamp()))
        });
        heads.reduce(|first, next| if self.is_before(next.0, first.0) { next } else { first })
    }

    /// On behind a key, which is that of the head.
    fn pass(&mut self, key: &[u8]) -> Result<(), DamagedLeaf> {
        for cursor in &mut self.cursors {
            if cursor.entry().is_some_and(|(at, _)| at == key) {
                if self.reverse { cursor.go_back()? } else { cursor.advance()? }
            }
        }
        Ok(())
    }
}

/// Whether a key that comes after the near bound of a range is within the far one.
fn is_within(key: &[u8], (low, high): (Bound<&[u8]>, Bound<&[u8]>), reverse: bool) -> bool {
    match (reverse, low, high) {
        (false, _, Bound::Included(high)) => key <= high,
        (false, _, Bound::Excluded(high)) => key < high,
        (true, Bound::Included(low), _) => key >= low,
        (true, Bound::Excluded(low), _) => key > low,
        (false, _, Bound::Unbounded) | (true, Bound::Unbounded, _) => true,
    }
}

/// Walks.
impl Sealed {
    /// Adds to a batch, which the young tree gave for a range up to this end while these were the groups, what they have of that range; at most `count` stay. `newest` is asked for the slot of a key whose entry is gone.
    ///
    /// # Errors
    /// If a leaf is damaged.
    pub(super) fn add_to_scan(
        &self,
        groups: &GroupLevels,
        (range, reverse): (KeyBounds<'_>, bool),
        (count, young_end): (usize, ScanEnd),
        guard: &LogGuard<'_>,
        batch: &mut ScanBatch,
        newest: impl Fn(&[u8]) -> Option<Slot>,
    ) -> Result<ScanEnd, DamagedLeaf> {
        let log = guard.view();
        let mut walk = GroupWalk::begin(groups, &log, range, reverse)?;
        let young = std::mem::take(batch);
        let (mut at, mut key, mut gone) = (0, Vec::new(), 0);
        while batch.len() < count {
            let sealed = walk.head().filter(|(key, ..)| is_within(key, range, reverse));
            let young_key = (at < young.len()).then(|| young.key(at));
            match (young_key, sealed) {
                (Some(first), None) => batch.push(first, young.slots()[at]),
                (Some(first), Some((other, ..))) if !walk.is_before(other, first) => {
                    batch.push(first, young.slots()[at]);
                    if first == other {
                        walk.pass(first)?;
                    }
                }
                (None, Some(_)) if young_end == ScanEnd::More => break,
                (_, Some((other, word, stamp))) => {
                    key.clear();
                    key.extend_from_slice(other);
                    let slot = match look_of(word, stamp, log) {
                        SealedLook::There(slot) => Some(slot),
                        SealedLook::Gone(_) => {
                            gone += 1;
                            newest(&key)
                        }
                        SealedLook::Absent => None,
                    };
                    slot.into_iter().for_each(|slot| batch.push(&key, slot));
                    walk.pass(&key)?;
                    continue;
                }
                (None, None) => break,
            }
            at += 1;
        }
        if gone > 0 {
            self.passed.fetch_add(gone, Ordering::Relaxed);
        }
        let follows = at < young.len() || walk.head().is_some_and(|(key, ..)| is_within(key, range, reverse));
        Ok(if follows || young_end == ScanEnd::More { ScanEnd::More } else { ScanEnd::Done })
    }
}

/// What changes.
impl Sealed {
    /// Whether keys are being sealed.
    #[inline]
    pub(super) fn is_sealing(&self) -> bool {
        self.sealing.load(Ordering::Acquire)
    }

    pub(super) fn set_sealing(&self, sealing: bool) {
        self.sealing.store(sealing, Ordering::SeqCst);
    }

    /// Takes over the group of a table that is being opened: of keys that the young tree does not have.
    pub(super) fn open_with(&self, group: Group) {
        let rows = group.entries();
        self.open_groups(GroupLevels::default().merged(0, Arc::new(group)), rows);
    }

    /// The same of several, that have so many rows which the young tree does not have.
    pub(super) fn open_groups(&self, groups: GroupLevels, rows: u64) {
        self.count_sealed(rows);
        self.next_number.store(groups.l0().first().map_or(0, |newest| newest.number) + 1, Ordering::Relaxed);
        self.set(groups);
    }

    /// The number of the group that comes next, or of the newest, which `goes_on`.
    pub(super) fn number_of_group(&self, goes_on: bool) -> u64 {
        let newest = self.groups().l0().first().map(|newest| newest.number).filter(|_| goes_on);
        newest.unwrap_or_else(|| self.next_number.load(Ordering::Relaxed))
    }

    /// Adds a group to those there are, or what it has to the newest, if it has that one's number; who looks from now on finds it.
    pub(super) fn add(&self, group: &Arc<Group>, number: u64) {
        let now = self.groups();
        match now.l0().first().filter(|newest| newest.number == number) {
            Some(newest) => {
                debug_assert!(newest.group.stamp() == group.stamp(), "of one run");
                let extents = newest.group.extents().iter().chain(group.extents()).cloned().collect();
                let group = Arc::new(Group::of(extents).stamped(group.stamp()));
                self.set(now.with_newest(NumberedGroup { number, group }));
            }
            None => {
                // One that was to go on, and was merged meanwhile: of its number the filter knows nothing any more.
                let is_late = number < self.next_number.load(Ordering::Relaxed);
                let number = if is_late { self.next_number.load(Ordering::Relaxed) } else { number };
                let now = if is_late { (*now).clone().with_filter(None) } else { (*now).clone() };
                self.next_number.store(number + 1, Ordering::Relaxed);
                self.set(now.with_group(NumberedGroup { number, group: Arc::clone(group) }));
            }
        }
    }

    /// Which groups of L0 may have a key is told from now on by this filter, which has the keys of all; or by none.
    pub(super) fn set_filter(&self, filter: Option<GroupFilter>) {
        self.set((*self.groups()).clone().with_filter(filter.map(Arc::new)));
    }

    /// Whether so many entries are gone, or were passed by in vain, that merging all groups is worth it: it costs no more than what was lost. What the young tree hides is not gone before its segment was emptied: of that a merge drops nothing, so it is not asked for
    /// before a sixteenth of the `segments` there are has been since the last.
    pub(super) fn is_worn(&self, (emptied, segments): (u64, u64)) -> bool {
        /// Fewer are not worth a look.
        const FEW: u64 = 1024;
        let entries: u64 = self.groups().newest_first().map(|group| group.entries()).sum();
        let rows = self.rows();
        let since = emptied - self.emptied_at_merge.load(Ordering::Relaxed).min(emptied);
        let may_drop = since > segments / 16;
        may_drop && (entries > 0 && rows == 0 || entries > 2 * rows + FEW)
            || entries > rows && self.passed.load(Ordering::Relaxed) > entries + FEW
    }

    /// Puts a group in the place of some of these, of which it was made since so many segments had been emptied; false if they are others by now.
    pub(super) fn set_merged(
        &self,
        of: &GroupLevels,
        (which, emptied): (&MergedGroups, u64),
        merged: Group,
        log: &Log,
    ) -> bool {
        let (now, merged) = (self.groups(), Arc::new(merged));
        let merging = now.merging(which);
        let before = of.merging(which);
        // One of them has gone on since.
        let are_same = merging.len() == before.len()
            && merging.iter().zip(before).all(|(now, before)| Arc::ptr_eq(now, before));
        if !are_same {
            return false;
        }
        let next = self.next_number.load(Ordering::Relaxed);
        let oldest = |groups: &GroupLevels| groups.l0().last().map_or(next, |oldest| oldest.number);
        match which {
            MergedGroups::IntoL1(upto) => {
                let merged = now.merged(*upto, merged);
                self.set(merged.clone());
                self.passed.store(0, Ordering::Relaxed);
                self.emptied_at_merge.store(emptied, Ordering::Relaxed);
                // Of one that was merged in L0 the filter may have higher numbers than its own.
                merged.deletes(oldest(&merged) - 1);
            }
            MergedGroups::OfL0(numbers) => {
                let merged = now.merged_in_l0(numbers, merged);
                let are_far_apart = next - oldest(&merged) > NUMBERS_APART_MAX;
                self.set(if are_far_apart { merged.renumbered(next) } else { merged });
            }
        }
        log.retire_leaves(merging.into_iter().flat_map(|group| places_of(group)));
        true
    }

    fn set(&self, groups: GroupLevels) {
        let any = groups.newest_first().next().is_some();
        self.groups.store(std::sync::Arc::new(groups));
        self.any.store(any, Ordering::SeqCst);
    }

    /// So many keys have left the young tree, and groups have them.
    pub(super) fn count_sealed(&self, keys: u64) {
        self.rows.fetch_add(keys, Ordering::Relaxed);
    }

    /// So many keys do not count any more that only groups have.
    pub(super) fn count_gone(&self, keys: u64) {
        self.rows.fetch_sub(keys, Ordering::Relaxed);
    }

    /// The young tree has a slot from now on of a key that only a group had: with the leaf locked where it is.
    pub(super) fn record_stored_over(&self, sealed: Slot) {
        // Of a leaf that is damaged nobody knows whether it has the key.
        let Some(sealed) = sealed.in_log().filter(|sealed| !is_unknown(**sealed)) else { return };
        self.count_gone(1);
        if self.moving.load(Ordering::Acquire) {
            self.stored_over.lock().insert(Slot::from(sealed).raw());
        }
    }

    /// Rows of the table move from now on: which entries are stored over is remembered.
    pub(super) fn begin_move(&self) {
        self.sealed_meanwhile.store(false, Ordering::SeqCst);
        self.moving.store(true, Ordering::SeqCst);
    }

    /// Keys are about to leave the young tree, which groups have. With an appender locked: a move that begins meanwhile looks at no slot before that is let go of.
    pub(super) fn begin_forgetting(&self) {
        self.sealed_meanwhile.store(true, Ordering::SeqCst);
    }

    /// Whether any did since the move began.
    pub(super) fn was_sealed_meanwhile(&self) -> bool {
        self.sealed_meanwhile.load(Ordering::SeqCst)
    }

    /// Whether an entry like this has been stored over since the move began.
    pub(super) fn was_stored_over(&self, sealed: LogSlot) -> bool {
        self.stored_over.lock().contains(&Slot::from(sealed).raw())
    }

    pub(super) fn end_move(&self) {
        self.moving.store(false, Ordering::Release);
        *self.stored_over.lock() = HashSet::new();
    }

    /// Forgets all keys. The caller keeps out all writers, and who seals.
    pub(super) fn clear(&self, log: &Log) {
        let old = self.groups.swap(std::sync::Arc::default());
        self.any.store(false, Ordering::SeqCst);
        self.rows.store(0, Ordering::Relaxed);
        log.retire_leaves(old.newest_first().flat_map(|group| places_of(group)));
    }

    /// Bytes of memory of the filter.
    pub(super) fn filter_bytes(&self) -> u64 {
        if self.is_any() { self.groups.load().filter().map_or(0, |filter| filter.bytes()) } else { 0 }
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        if !self.is_any() {
            return 0;
        }
        let groups = self.groups.load();
        let filter = groups.filter().map_or(0, |filter| filter.bytes());
        filter + groups.newest_first().map(|group| group.memory_bytes() as u64).sum::<u64>()
    }
}

/// Where the leaves of a group are.
fn places_of(group: &Group) -> impl Iterator<Item = LeafPlace> {
    group.extents().iter().map(|extent| extent.place())
}
