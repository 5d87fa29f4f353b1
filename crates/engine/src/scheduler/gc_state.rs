//! What gc shares with those who wait for it, and with those whose work it must not meet.
//!
//! Owns the request for a cycle, the victims that wait to be freed, and the count of what was done. Promises to tell
//! whether a cycle is under way, or was since somebody looked. Must not know how a segment is emptied.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::controller::{Controller, FixedKnobs};
use super::throttle::{Throttle, Work};

use crate::index::LogSlot;
use crate::sst::SstKey;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock};
use crate::{Error, ErrorKind};

/// What the last seal left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeftBySeal {
    /// What the young index took.
    pub(crate) young_bytes: u64,
    /// There is another once it has grown by so much.
    pub(crate) growth: u64,
    /// Segments that had been freed.
    pub(crate) freed: u64,
}

/// Which groups of a table are to be made one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MergeScope {
    All,
    Some,
}

/// See [`GcState::record_merge_of_groups_lacked`].
type GroupsLacked = (u32, u64, (u64, u32));

/// What gc shares with those who wait for it.
#[derive(Default)]
pub(crate) struct GcState {
    pub(crate) requested: AtomicBool,
    /// How often extents had come back when a writer was last told `Busy`, until somebody waits after that.
    pub(crate) returns_at_busy: Mutex<Option<u64>>,
    /// Cycles that ended, of the gc thread and by hand.
    cycles: AtomicU64,
    /// Cycles under way.
    running: AtomicU64,
    /// The last cycle emptied no victim: there was less room than it seemed.
    pub(crate) no_progress: AtomicBool,
    /// When a cycle without need last gave something back, by the store's clock.
    pub(crate) gave_back_ns: AtomicU64,
    pub(crate) segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Bytes of records that merging made obsolete, less those of the rows it wrote.
    pub(crate) gained: AtomicU64,
    /// What writers are delayed while space is low.
    pub(crate) throttle: Throttle,
    /// Victims that wait for readers or snapshots.
    pub(crate) pending: Mutex<VecDeque<Pending>>,
    /// Cycles share it; whoever changes records in place has it alone.
    pub(crate) lock: RwLock<()>,
    /// What the oldest snapshot sees of rows with many versions above it.
    pub(crate) rows_seen: Mutex<RowsSeen>,
    /// By segment that is not freed yet: the tombstones and expired rows in it that left the index. No key counts them.
    pub(crate) dropped: Mutex<HashMap<u32, Vec<u64>>>,
    /// One move at a time.
    pub(crate) moving: Mutex<()>,
    /// One is under way.
    is_moving: AtomicBool,
    /// One at a time copies out of queued victims, makes that durable or frees them.
    pub(crate) settling: Mutex<()>,
    /// Where rows move: keys of records in `dropped` that no move put there, and those of victims that moves gave up.
    dropped_keys: Mutex<DroppedKeys>,
    /// Keys whose rows stay in the log because of a count that is not known.
    pub(crate) many: Mutex<ManyKeys>,
    /// The last move found nothing to move, or failed: others would too.
    moves_in_vain: AtomicBool,
    /// What moves while nobody writes.
    pub(crate) rest: Mutex<Rest>,
    /// Of the next move.
    pub(crate) next_move: AtomicU64,
    /// One seals at a time, and one merges groups.
    pub(crate) sealing: Mutex<()>,
    /// Held while some keys go from the young index to a group, and by a move that looks which of its own did.
    pub(crate) seal_slice: Mutex<()>,
    pub(crate) merging_groups: Mutex<()>,
    /// What the young index took after the last seal, and how many segments had been freed by then.
    left_by_seal: Mutex<LeftBySeal>,
    /// Extents that the next seal is to find, and when that was counted: how much of the index was taken, and how many keys had been sealed.
    leaves_owed: Mutex<((u64, u64), u32)>,
    /// By what was to be merged: the table whose groups found no room when they were merged last, how many extents they want at least, and how many segments had been emptied, and extents could be had, by then.
    groups_lacked: Mutex<[Option<GroupsLacked>; 2]>,
    /// What had been sealed and merged when was looked last whether tables that share extents are spread thin.
    pub(crate) looked_for_spread_tables: AtomicU64,
    /// Keys that were sealed, and those that were written when groups were merged.
    keys_sealed: [AtomicU64; 2],
    /// What the index took when the last move had ended.
    index_floor: AtomicU64,
    /// A new key was refused since the last move had ended, for want of room in the index.
    index_refused: AtomicBool,
    /// How many keys it had when it was full last; 0 before that.
    index_keys_full: AtomicU64,
    /// Victims of moves that wait to be freed, in the order in which they were emptied.
    pub(crate) moved_from: Mutex<VecDeque<MovedFrom>>,
    /// How often what a move takes is halved, because the capacity tier had no room for more.
    move_halvings: AtomicU32,
    /// Why the last move failed, and when.
    move_failure: Mutex<Option<MoveFailure>>,
    /// What of the victims of the move that is under way is in sorted tables: room soon.
    moving_bytes: AtomicU64,
    /// What making 1 KiB of room by moves takes, in ns, on the mean of the last; 0 before the first. And what taking out a record does.
    move_cost_ns: AtomicU64,
    record_cost_ns: AtomicU64,
    /// How many records had moved when that was measured.
    moved_before: AtomicU64,
    /// How much a move takes.
    pub(crate) controller: Controller,
    /// How much of its time merging may use, in percent.
    merge_share: MergeShare,
    /// Records that were moved to sorted tables, and their bytes in the log.
    moved: [AtomicU64; 2],
    /// Moves that took something out of the log.
    moves: AtomicU64,
    /// A segment was freed with a record in it that could not be read: keys count what lay behind that for ever.
    pub(crate) counts_lost: AtomicBool,
    /// A merge in place was cut off: the next opening has to look at all rows.
    pub(crate) needs_walk: AtomicBool,
}

/// A cycle that is under way.
pub(crate) struct Cycle<'g>(&'g GcState);

impl Drop for Cycle<'_> {
    fn drop(&mut self) {
        self.0.cycles.fetch_add(1, Ordering::SeqCst);
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A move that is under way.
pub(crate) struct MoveBegun<'g>(&'g GcState);

impl Drop for MoveBegun<'_> {
    fn drop(&mut self) {
        self.0.is_moving.store(false, Ordering::Relaxed);
    }
}

/// Rows remembered of the oldest snapshot, at most; then they are forgotten.
const ROWS_SEEN_MAX: usize = 1024;

/// By table and key, the sequence of the row that the oldest snapshot sees, for rows where that takes a long walk.
#[derive(Default)]
pub(crate) struct RowsSeen {
    oldest: u64,
    rows: HashMap<(u32, Box<[u8]>), u64>,
}

impl RowsSeen {
    pub(crate) fn get(&self, oldest: u64, table: u32, key: &[u8]) -> Option<u64> {
        if self.oldest != oldest || self.rows.is_empty() {
            return None;
        }
        self.rows.get(&(table, key.into())).copied()
    }

    pub(crate) fn insert(&mut self, oldest: u64, table: u32, key: &[u8], sequence: u64) {
        if self.oldest != oldest || self.rows.len() == ROWS_SEEN_MAX {
            (self.oldest, self.rows) = (oldest, HashMap::new());
        }
        self.rows.insert((table, key.into()), sequence);
    }
}

/// How long nobody has written, and what of that was used.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// The last sequence, and since when it has been; never 0 once it is known.
    pub(crate) sequence: u64,
    pub(crate) since_ns: u64,
    pub(crate) pass: RestPass,
    /// How many tombstones hid something when the last pass had ended, those it had to leave, and when that was.
    pub(crate) left: u64,
    pub(crate) left_ns: u64,
}

/// A pass over the segments that there are when it begins, to move tombstones.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) enum RestPass {
    /// None since the store was written to.
    #[default]
    NotYet,
    /// Out of the segments with these numbers, both included, that were not looked through yet; and how many tombstones hid something when it began.
    UnderWay { from: u64, upto: u64, hiding: u64 },
    /// There is nothing to be gained by another.
    Done,
}

/// A victim with nothing live in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) extent: u32,
    /// Snapshots older than this may need it.
    pub(crate) sequence: u64,
    pub(crate) epoch: u64,
    /// Bytes of the copies of what lived in it.
    pub(crate) copied: u64,
}

/// A victim out of which records were moved to sorted tables.
///
/// A tombstone of a key leaves the log, too, and its segment must not be freed while that of a record is not which it hides: replay would bring the row back. Their keys do not
/// tell, for what moved is counted nowhere. So these are freed in the order in which they were emptied. One that cannot be emptied leaves them only when its keys are known to move no more
/// (`give_up` in `gc/moving.rs`).
#[derive(Debug)]
pub(crate) struct MovedFrom {
    pub(crate) pending: Pending,
    /// Of the move. What was moved together may be freed in any order: no key has records in two of these.
    pub(crate) number: u64,
    /// All that it held has left the index: no key counts anything of it.
    pub(crate) is_uncounted: bool,
    /// A checkpoint came after the last record that was copied out of it.
    pub(crate) is_durable: bool,
    /// Records, by offset, that were changed while they moved and found no room elsewhere yet. The victim is not empty before there are none.
    pub(crate) left: Vec<u64>,
}

/// Keys of live rows whose older records are "many" by their slots.
#[derive(Debug, Default)]
pub(crate) struct ManyKeys {
    keys: HashSet<(u32, Box<[u8]>)>,
    /// Bytes of their rows.
    bytes: u64,
    not_before_ns: u64,
    /// What is being counted.
    pub(crate) count: Option<ManyCount>,
}

/// So many are noted at most; the others' turn comes when these have been counted.
const MANY_KEYS_MAX: usize = 1 << 16;

impl ManyKeys {
    pub(crate) fn insert(&mut self, table: u32, key: &[u8], bytes: u64) {
        if self.keys.len() < MANY_KEYS_MAX && self.keys.insert((table, key.into())) {
            self.bytes += bytes;
        }
    }

    /// Whether it is time to count: a count is under way, or their rows take more than so much.
    pub(crate) fn is_due(&self, now_ns: u64, bytes: impl FnOnce() -> u64) -> bool {
        let is_full = self.keys.len() == MANY_KEYS_MAX;
        let is_wanted = || !self.keys.is_empty() && (is_full || self.bytes > bytes());
        now_ns >= self.not_before_ns && (self.count.is_some() || is_wanted())
    }

    /// All keys; there are none then.
    pub(crate) fn take_keys(&mut self) -> impl Iterator<Item = (u32, Box<[u8]>)> {
        self.bytes = 0;
        std::mem::take(&mut self.keys).into_iter()
    }

    pub(crate) fn not_before(&mut self, ns: u64) {
        self.not_before_ns = ns;
    }
}

/// A key that is counted.
#[derive(Debug)]
pub(crate) struct CountedKey {
    pub(crate) table: u32,
    pub(crate) key: Box<[u8]>,
    /// Leads into the log: a place in the cache may be another row's by the end, and this key's again.
    pub(crate) slot: LogSlot,
    /// The segment that it leads to.
    pub(crate) segment: u64,
    /// Of the record there: no write of the key leaves it as it is.
    pub(crate) version: u64,
    /// Records of it in segments that were counted and are not free, those of its version included.
    pub(crate) records: u64,
}

/// A count of the records of some keys, a few segments at a time.
///
/// A key is one of these if it led into a segment that is to be counted when it was looked up, with none counted yet: all of them were sealed before, so that nobody had written it since.
/// What it comes to of a key counts only if in the end its slot, the number of the segment that this leads to and the version there are as they were last known here: then nobody has written the
/// key since the count began. For a write changes the version, and so does a merge in place. What else can happen to records of such a key is told: that one
/// was copied ([`ManyCount::copied`]), and that a segment with one is free ([`ManyCount::freed`]). So the number is that of its records in the segments that there are, once all that there were in the
/// beginning are counted or free. An event of which nobody tells leaves the slot other than it is known, for a place in a segment is never written twice; it costs the key its count, and nothing else.
#[derive(Debug, Default)]
pub(crate) struct ManyCount {
    /// By the hash of table and key.
    keys: HashMap<u64, CountedKey>,
    /// Keys that are not looked up yet: table and key. No segment is counted before they are.
    pub(crate) noted: Vec<(u32, Box<[u8]>)>,
    /// Segments that are not counted yet: their first extents, by their numbers.
    pub(crate) left: BTreeMap<u64, u32>,
}

impl ManyCount {
    /// Of keys that are still to be looked up, in segments all of which are sealed.
    pub(crate) fn new(noted: Vec<(u32, Box<[u8]>)>, left: BTreeMap<u64, u32>) -> ManyCount {
        ManyCount { keys: HashMap::new(), noted, left }
    }

    pub(crate) fn add_key(&mut self, key: CountedKey) {
        self.keys.insert(SstKey::new(key.table, &key.key).hash(), key);
    }

    fn key_mut(&mut self, table: u32, key: &[u8]) -> Option<&mut CountedKey> {
        let of_hash = self.keys.get_mut(&SstKey::new(table, key).hash());
        of_hash.filter(|of| of.table == table && *of.key == *key)
    }

    /// A record of the key, if it is one of these, is in a segment that is counted now.
    pub(crate) fn found(&mut self, table: u32, key: &[u8]) {
        if let Some(counted) = self.key_mut(table, key) {
            counted.records += 1;
        }
    }

    /// The version of a key was copied: a record more, in a segment that was not there in the beginning.
    pub(crate) fn copied(
        &mut self,
        (table, key): (u32, &[u8]),
        from: LogSlot,
        to: (LogSlot, u64),
        version: u64,
    ) {
        let Some(counted) = self.key_mut(table, key) else { return };
        match (counted.slot, counted.version) == (from, version) {
            true => {
                (counted.slot, counted.segment) = to;
                counted.records += 1;
            }
            false => drop(self.keys.remove(&SstKey::new(table, key).hash())),
        }
    }

    /// A record of the key is gone with the segment of this number.
    pub(crate) fn freed(&mut self, table: u32, key: &[u8], segment: u64) {
        if self.left.contains_key(&segment) {
            return;
        }
        if let Some(counted) = self.key_mut(table, key) {
            counted.records = counted.records.saturating_sub(1);
        }
    }

    pub(crate) fn into_keys(self) -> impl Iterator<Item = CountedKey> {
        self.keys.into_values()
    }
}

/// What moves may be thought to cost for 1 KiB, or for a record, and what before one was measured: 250 MB a second. Too much holds writers up for a moment, too little leaves them without room.
const MOVE_COST_NS: [u64; 2] = [200, 50_000];
const MOVE_COST_FIRST_NS: u64 = 4_000;
/// With each move for which no key had to wait, the index is thought to take one key more in so many.
const INDEX_KEYS_MORE: u64 = 64;
/// A move of 1 GiB is halved to 1 MiB.
const MOVE_HALVINGS_MAX: u32 = 10;
/// After a move failed the next is not before so long: twice as long each time, up to a minute.
const MOVE_AGAIN_NS: [u64; 2] = [1_000_000_000, 60_000_000_000];

/// Why and when a move failed, and how long none is tried.
#[derive(Debug)]
struct MoveFailure {
    error: Error,
    at_ns: u64,
    pause_ns: u64,
}

/// Keys with a record in the log that left the index and that no key counts: an expired row, a tombstone, a row that moved out of a victim which was given up. Were a younger record of such a
/// key moved, a replay would find the older one alone.
#[derive(Debug, Default)]
struct DroppedKeys {
    by_extent: HashMap<u32, Vec<u64>>,
    counts: HashMap<u64, u32>,
}

impl DroppedKeys {
    fn insert(&mut self, extent: u32, hash: u64) {
        self.by_extent.entry(extent).or_default().push(hash);
        *self.counts.entry(hash).or_default() += 1;
    }

    fn remove(&mut self, extent: u32) {
        for hash in self.by_extent.remove(&extent).unwrap_or_default() {
            if let Some(count) = self.counts.get_mut(&hash) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&hash);
                }
            }
        }
    }
}

/// Percent of its time that merging sorted tables may use.
#[derive(Debug)]
struct MergeShare(AtomicU32);

impl Default for MergeShare {
    fn default() -> MergeShare {
        MergeShare(AtomicU32::new(100))
    }
}

/// Merges.
impl GcState {
    /// How much of its time merging may use from now on, from 0 to 1.
    pub(crate) fn set_merge_share(&self, share: f64) {
        self.merge_share.0.store((share * 100.0) as u32, Ordering::Relaxed);
    }

    /// How long a merge is to pause after it worked for so long.
    pub(crate) fn merge_pause_ns(&self, worked_ns: u64) -> u64 {
        let share = u64::from(self.merge_share.0.load(Ordering::Relaxed).clamp(1, 100));
        worked_ns.saturating_mul(100 - share) / share
    }
}

/// Moves.
impl GcState {
    /// The capacity tier refused something.
    pub(crate) fn moving_failed(&self, error: &Error, now_ns: u64) {
        let mut failure = self.move_failure.lock();
        let pause_ns = failure.as_ref().map_or(MOVE_AGAIN_NS[0], |before| 2 * before.pause_ns);
        let pause_ns = pause_ns.min(MOVE_AGAIN_NS[1]);
        if error.kind() == ErrorKind::Full {
            self.change_halvings(|halvings| (halvings + 1).min(MOVE_HALVINGS_MAX));
        }
        *failure = Some(MoveFailure { error: error.clone(), at_ns: now_ns, pause_ns });
        self.moves_in_vain.store(true, Ordering::Relaxed);
    }

    fn change_halvings(&self, change: impl Fn(u32) -> u32) {
        let _ =
            self.move_halvings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(change(now)));
    }

    /// How often what a move takes is halved.
    pub(crate) fn move_halvings(&self) -> u32 {
        self.move_halvings.load(Ordering::Relaxed)
    }

    /// There is more room for sorted tables than when the last move failed, perhaps for want of it.
    pub(crate) fn may_move_again(&self) {
        if self.move_failure.lock().take().is_some() {
            self.moves_in_vain.store(false, Ordering::Relaxed);
        }
    }

    /// A move queued so many victims, and the index takes so many bytes.
    pub(crate) fn moved_out_of(&self, victims: usize, index_bytes: u64) {
        self.moves_in_vain.store(victims == 0, Ordering::Relaxed);
        if victims > 0 {
            *self.move_failure.lock() = None;
            self.change_halvings(|halvings| halvings.saturating_sub(1));
            self.index_floor.store(index_bytes, Ordering::Relaxed);
            if !self.index_refused.swap(false, Ordering::Relaxed) {
                // It takes more perhaps than when a key was refused, of a leaf that was full among sparse ones.
                let full = self.index_keys_full.load(Ordering::Relaxed);
                self.index_keys_full.store(full + full / INDEX_KEYS_MORE, Ordering::Relaxed);
            }
        }
    }

    /// A seal is done: the young index takes so many bytes, after `growth` more of which there may be another, and so many segments have been freed since the store was opened.
    ///
    /// One that took out less than a quarter of what the last asked for was for nothing: the next waits for twice as much as that.
    pub(crate) fn sealed(&self, young_bytes: u64, growth: u64, freed: u64) {
        let mut last = self.left_by_seal.lock();
        let was_in_vain = last.growth > 0 && young_bytes + last.growth / 4 > last.young_bytes + last.growth;
        let growth = if was_in_vain { growth.max(2 * last.growth) } else { growth };
        *last = LeftBySeal { young_bytes, growth, freed };
    }

    /// So many keys left memory, or were written anew with others.
    pub(crate) fn count_keys_sealed(&self, sealed: u64, merged: u64) {
        self.keys_sealed[0].fetch_add(sealed, Ordering::Relaxed);
        self.keys_sealed[1].fetch_add(merged, Ordering::Relaxed);
    }

    /// How many keys left memory, and how many were written when groups were merged.
    pub(crate) fn keys_sealed(&self) -> (u64, u64) {
        let [sealed, merged] = self.keys_sealed.each_ref().map(|keys| keys.load(Ordering::Relaxed));
        (sealed, merged)
    }

    /// Extents that the next seal is to find; counted again where it may have become another number, which `at` tells.
    pub(crate) fn leaves_owed(&self, at: (u64, u64), count: impl FnOnce() -> u32) -> u32 {
        let mut owed = self.leaves_owed.lock();
        if owed.0 != at {
            *owed = (at, count());
        }
        owed.1
    }

    /// What was told of the last seal, where the young index takes so many bytes now. What it left is not there any more as soon as all of it is less.
    pub(crate) fn left_by_seal(&self, young_bytes: u64) -> LeftBySeal {
        let mut last = self.left_by_seal.lock();
        last.young_bytes = last.young_bytes.min(young_bytes);
        *last
    }

    /// A merge of groups of a table would have taken so many extents at least, and found no room for them, when so many segments had been emptied and so many extents could be had.
    pub(crate) fn record_merge_of_groups_lacked(
        &self,
        scope: MergeScope,
        table: u32,
        extents: u64,
        (emptied, available): (u64, u32),
    ) {
        self.groups_lacked.lock()[scope as usize] = Some((table, extents, (emptied, available)));
    }

    /// How many extents the last such merge of groups of a table is known to have lacked, and how many could be had: nothing once anything was emptied since, for less may count by then.
    pub(crate) fn merge_of_groups_lacked(
        &self,
        scope: MergeScope,
        table: u32,
        emptied: u64,
    ) -> Option<(u64, u32)> {
        let lacked = self.groups_lacked.lock()[scope as usize];
        lacked.filter(|of| (of.0, of.2.0) == (table, emptied)).map(|(_, extents, of)| (extents, of.1))
    }

    /// A move is under way until what is returned is dropped.
    pub(crate) fn begin_move(&self) -> MoveBegun<'_> {
        self.is_moving.store(true, Ordering::Relaxed);
        MoveBegun(self)
    }

    /// Whether a move is under way.
    pub(crate) fn is_moving(&self) -> bool {
        self.is_moving.load(Ordering::Relaxed)
    }

    /// Whether the last move came to nothing.
    pub(crate) fn moves_in_vain(&self) -> bool {
        self.moves_in_vain.load(Ordering::Relaxed)
    }

    /// What the index took when the last move had ended: leaves that became sparse are not given back. Nothing, once a key was refused all the same: its leaf was full.
    pub(crate) fn index_floor(&self) -> u64 {
        if self.index_refused.load(Ordering::Relaxed) { 0 } else { self.index_floor.load(Ordering::Relaxed) }
    }

    /// A new key was refused for want of room in the index, which has so many, if that is all it takes.
    pub(crate) fn refuse_index(&self, keys: Option<u64>) {
        self.index_refused.store(true, Ordering::Relaxed);
        if let Some(keys) = keys {
            self.index_keys_full.store(keys, Ordering::Relaxed);
        }
    }

    /// Whether a new key was refused since the last move had ended.
    pub(crate) fn is_index_refused(&self) -> bool {
        self.index_refused.load(Ordering::Relaxed)
    }

    /// The index is likely to have so many keys when it is full, if nothing better is known.
    pub(crate) fn guess_index_keys(&self, keys: u64) {
        let _known = self.index_keys_full.compare_exchange(0, keys, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// How many keys it has when it is full is not known any more: it is not nearly.
    pub(crate) fn forget_index_keys(&self) {
        if self.index_keys_full.load(Ordering::Relaxed) > 0 {
            self.index_keys_full.store(0, Ordering::Relaxed);
        }
    }

    /// How many keys the index had when it was full last.
    pub(crate) fn index_keys_full(&self) -> Option<u64> {
        Some(self.index_keys_full.load(Ordering::Relaxed)).filter(|keys| *keys > 0)
    }

    /// Whether a move failed a moment ago, and the next would too.
    pub(crate) fn moving_failed_lately(&self, now_ns: u64) -> bool {
        let failure = self.move_failure.lock();
        failure.as_ref().is_some_and(|failure| now_ns.abs_diff(failure.at_ns) < failure.pause_ns)
    }

    /// Why the last move failed, if it did.
    pub(crate) fn move_failure(&self) -> Option<Error> {
        self.move_failure.lock().as_ref().map(|failure| failure.error.clone())
    }

    /// Whether moves lately failed for want of room in sorted tables, and as many have not gone well since.
    pub(crate) fn moves_lack_room(&self) -> bool {
        self.move_halvings() > 0
    }

    /// Why the last move failed, and how long ago by the clock.
    pub(crate) fn move_failed_since(&self, now_ns: u64) -> Option<(Error, u64)> {
        let failure = self.move_failure.lock();
        failure.as_ref().map(|failure| (failure.error.clone(), now_ns.saturating_sub(failure.at_ns)))
    }

    /// How many moves took something out of the log.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// The record of a key, by the hash of it and its table, leaves the index, and is counted nowhere while it is in the log. Before it does.
    pub(crate) fn will_drop_key(&self, extent: u32, hash: u64) {
        self.dropped_keys.lock().insert(extent, hash);
    }

    /// Whether a record of the key of this hash may be in the log that no key counts.
    pub(crate) fn may_have_dropped(&self, hash: impl FnOnce() -> u64) -> bool {
        let dropped = self.dropped_keys.lock();
        !dropped.counts.is_empty() && dropped.counts.contains_key(&hash())
    }

    /// Whether all that is known of records that left the index holds still when nothing else is known: no count was lost, and nothing waits to be freed.
    pub(crate) fn knows_all(&self) -> bool {
        self.knows_counts() && self.pending.lock().is_empty() && self.moved_from.lock().is_empty()
    }

    /// Whether no count was lost, which does not come back before the store is opened anew.
    pub(crate) fn knows_counts(&self) -> bool {
        let is_lost = |of: &AtomicBool| of.load(Ordering::Relaxed);
        !is_lost(&self.counts_lost) && !is_lost(&self.needs_walk)
    }

    /// How many records are known that left the index.
    pub(crate) fn dropped_count(&self) -> u64 {
        self.dropped.lock().values().map(|offsets| offsets.len() as u64).sum()
    }

    /// By segment, the offsets of records that left the index uncounted.
    ///
    /// # Errors
    /// Those of `visit`.
    pub(crate) fn each_dropped<E>(
        &self,
        mut visit: impl FnMut(u32, &[u64]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.dropped.lock().iter().try_for_each(|(&extent, offsets)| visit(extent, offsets))
    }

    /// The same of the hashes of their keys, as far as they are kept.
    ///
    /// # Errors
    /// Those of `visit`.
    pub(crate) fn each_dropped_key<E>(
        &self,
        mut visit: impl FnMut(u32, &[u64]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.dropped_keys.lock().by_extent.iter().try_for_each(|(&extent, hashes)| visit(extent, hashes))
    }

    /// Forgets the records in a segment that is free now; returns those that left the index, by offset.
    pub(crate) fn forget_dropped(&self, extent: u32) -> Vec<u64> {
        self.dropped_keys.lock().remove(extent);
        self.dropped.lock().remove(&extent).unwrap_or_default()
    }

    /// How many queued victims wait for room: what was changed while it moved is in them still.
    pub(crate) fn unfinished_moves(&self) -> usize {
        self.moved_from.lock().iter().filter(|victim| !victim.left.is_empty()).count()
    }

    /// So many bytes of victims are in sorted tables, and will be room when the move ends; 0: it has ended.
    pub(crate) fn set_moving_bytes(&self, bytes: u64) {
        self.moving_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn moving_bytes(&self) -> u64 {
        self.moving_bytes.load(Ordering::Relaxed)
    }

    /// A move took so long and made so many bytes of room.
    pub(crate) fn record_move(&self, ns: u64, bytes: u64) {
        self.moves.fetch_add(1, Ordering::Relaxed);
        let moved = self.moved().0;
        let record = |mean: &AtomicU64, cost_ns: u64| {
            let before = mean.load(Ordering::Relaxed);
            let cost_ns = if before == 0 { cost_ns } else { (before + cost_ns) / 2 };
            mean.store(cost_ns.clamp(MOVE_COST_NS[0], MOVE_COST_NS[1]), Ordering::Relaxed);
        };
        record(&self.move_cost_ns, ns / (bytes >> 10).max(1));
        // What moved may be forgotten later.
        let records = moved.saturating_sub(self.moved_before.load(Ordering::Relaxed));
        if let Some(cost_ns) = ns.checked_div(records) {
            self.moved_before.store(moved, Ordering::Relaxed);
            record(&self.record_cost_ns, cost_ns);
        }
    }

    /// What making 1 KiB of room by moves takes, in ns, and what taking out a record does.
    pub(crate) fn move_costs_ns(&self) -> [u64; 2] {
        [&self.move_cost_ns, &self.record_cost_ns].map(|cost| match cost.load(Ordering::Relaxed) {
            0 => MOVE_COST_FIRST_NS,
            known => known,
        })
    }

    pub(crate) fn count_moved(&self, records: u64, bytes: u64) {
        self.moved[0].fetch_add(records, Ordering::Relaxed);
        self.moved[1].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records that were moved, and their bytes.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.moved[0].load(Ordering::Relaxed), self.moved[1].load(Ordering::Relaxed))
    }

    /// All victims that are not freed yet.
    pub(crate) fn waiting(&self) -> Vec<Pending> {
        let mut waiting: Vec<Pending> = self.pending.lock().iter().copied().collect();
        waiting.extend(self.moved_from.lock().iter().map(|victim| victim.pending));
        waiting
    }
}

impl GcState {
    /// With some knobs fixed.
    pub(crate) fn with(knobs: FixedKnobs) -> GcState {
        GcState { controller: Controller::with(knobs), ..GcState::default() }
    }

    /// A cycle is under way until what is returned is dropped. Others may be at the same time.
    pub(crate) fn begin_cycle(&self) -> Cycle<'_> {
        self.running.fetch_add(1, Ordering::SeqCst);
        Cycle(self)
    }

    /// How many cycles have ended.
    pub(crate) fn cycles(&self) -> u64 {
        self.cycles.load(Ordering::SeqCst)
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.running.load(Ordering::SeqCst) > 0
    }

    /// Whether no cycle has been under way since so many had ended. What is looked at in between was not looked at in the middle of one.
    pub(crate) fn was_idle_since(&self, cycles: u64) -> bool {
        // In this order: one that ends counts as ended before it counts as gone.
        !self.is_busy() && self.cycles() == cycles
    }

    /// First extents of victims that are not freed yet.
    pub(crate) fn waiting_to_free(&self) -> Vec<u32> {
        self.waiting().iter().map(|victim| victim.extent).collect()
    }

    /// Bytes copied out of victims that wait for the snapshot of `sequence`.
    pub(crate) fn spent_for_snapshots(&self, sequence: u64) -> u64 {
        let waiting = self.waiting();
        waiting.iter().filter(|victim| sequence < victim.sequence).map(|victim| victim.copied).sum()
    }

    /// Records that the record at `offset`, in the segment `extent`, has left the index and no other took its place.
    pub(crate) fn record_dropped(&self, extent: u32, offset: u64) {
        self.dropped.lock().entry(extent).or_default().push(offset);
    }

    /// The same of all these records.
    pub(crate) fn record_all_dropped(&self, extent: u32, offsets: Vec<u64>) {
        self.dropped.lock().entry(extent).or_default().extend(offsets);
    }

    /// The records in a segment that left the index, by offset.
    pub(crate) fn dropped_in(&self, extent: u32) -> Vec<u64> {
        self.dropped.lock().get(&extent).cloned().unwrap_or_default()
    }

    /// Whether the last cycle emptied no victim.
    pub(crate) fn made_no_progress(&self) -> bool {
        self.no_progress.load(Ordering::Relaxed)
    }

    pub(crate) fn done(&self) -> Work {
        let (segments, copied) = self.totals();
        Work { segments, copied, gained: self.gained.load(Ordering::Relaxed) }
    }

    /// Segments collected and bytes copied so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.segments.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}
