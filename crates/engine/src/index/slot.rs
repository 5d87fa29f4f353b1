//! The slot: the one 8-byte word an index keeps for a key.
//!
//! Owns: the layout of the word. Promises: a slot is never zero, and every field reads back as written. Must not know:
//! trees, logs.
//!
//! ```text
//!  63  61  60   59   57 56        50 49       42 41                                   0
//! +------+-----+-------+------------+-----------+--------------------------------------+
//! | tag  | exp | depth | size class |   older   |           log offset / 8             |
//! |  3   |  1  |   3   |     7      |     8     |                 42                   |
//! +------+-----+-------+------------+-----------+--------------------------------------+
//! ```
//! - `tag`: 1 row, 2 delta, 3 tombstone, 4 cached, 5 blind; 0 never; 6 and 7 reserved for the lower levels.
//! - `exp`: the row has an expiry, which may have passed.
//! - `depth`: deltas from the newest record down to its row, 0 to 7; of a *blind* slot all records, for the row is not in the log; of a tombstone 1 if
//!   it hides what sorted tables may have of the key, else 0.
//! - `size class`: bytes of the newest record, rounded up (`size_class.rs`).
//! - `older`: the older-version count: physical records of this key still in the log beside the newest; 255 is saturated and stays.
//! - offset: 42 bits of 8-byte units, so 32 TiB of log.
//!
//! A *cached* slot stands for the *log* slot of the same key, which is kept in the cache's entry (`cache.rs`): its offset
//! is the entry's place in the cache's memory, its size class that of the entry's record; `exp`, `depth` and `older` are
//! those of the log slot, and of the older-version count it alone is up to date.
//!
//! A *blind* slot leads to deltas whose row is in sorted tables, if it is anywhere: nobody looked when they were written.
//!
//! The word lives in DRAM, and in the index that is saved of a closed store, of whose version the layout is a part (`manifest/saved_index.rs`). What a record in the log says of another one, its `previous`, is a type of its own
//! (`log/format/record_ref.rs`), made of log slots and turned back into them by `db/chain.rs`.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::Deref;

use crate::size_class::{LARGEST, class_bytes, class_of};

const ADDR_BITS: u32 = 42;
const OLDER_VERSIONS_AT: u32 = 42;
const CLASS_AT: u32 = 50;
const DEPTH_AT: u32 = 57;
const EXPIRES_AT: u32 = 60;
const TAG_AT: u32 = 61;
const ADDR_MASK: u64 = (1 << ADDR_BITS) - 1;
/// The tag of a cached slot.
const CACHED: u64 = 4;
/// And of a blind one.
const BLIND: u64 = 5;

/// What the newest record of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tag {
    /// A whole row.
    Row,
    /// Changed fields on top of older records.
    Delta,
    /// The key was deleted.
    Tombstone,
    /// A row whose merged copy is in the cache.
    Cached,
    /// Changed fields on top of older deltas, and of what sorted tables have of the key.
    Blind,
    /// A value this build gives no meaning to; never made by a constructor.
    Reserved,
}

/// One key's word in the index. The module describes its layout. It has an address for whoever asked where it [leads](Slot::leads_to).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Slot(NonZeroU64);

/// A slot that leads into the log: never a cached one. Only such a slot has an offset in the log, and becomes what a record says
/// that it replaced; the word is the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct LogSlot(Slot);

/// Where a slot leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotTarget {
    /// To a record in the log.
    Log(LogSlot),
    /// To the entry at this place in the cache.
    Cache(u64),
}

impl Slot {
    /// Log offsets are multiples of 8 below this.
    pub const OFFSET_END: u64 = 1 << (ADDR_BITS + 3);
    /// The most deltas a slot can count.
    pub const DEPTH_MAX: u8 = 7;
    /// The sticky value of [`Slot::older_versions`].
    pub const OLDER_VERSIONS_SATURATED: u8 = 255;

    /// The slot of the row of `log_slot`, a row or delta, once the cache holds it at `place` in a record of `bytes` bytes.
    pub fn cached(log_slot: LogSlot, place: u64, bytes: u64) -> Slot {
        debug_assert!(matches!(log_slot.tag(), Tag::Row | Tag::Delta), "{log_slot:?} is not to be cached");
        check_address(place);
        let kept = log_slot.raw() & (1 << EXPIRES_AT | 7 << DEPTH_AT | 0xff << OLDER_VERSIONS_AT);
        let word =
            CACHED << TAG_AT | kept | u64::from(class_of(bytes)) << CLASS_AT | (place >> 3 & ADDR_MASK);
        Slot(NonZeroU64::new(word).expect("the tag is not zero"))
    }

    /// Whether the slot leads to a place in the cache, not in the log.
    #[inline]
    pub fn is_cached(self) -> bool {
        self.raw() >> TAG_AT == CACHED
    }

    /// Where the newest record is found.
    #[inline(always)]
    pub fn leads_to(self) -> SlotTarget {
        if self.is_cached() { SlotTarget::Cache(self.address()) } else { SlotTarget::Log(LogSlot(self)) }
    }

    /// The slot, if it leads into the log.
    #[inline(always)]
    pub fn in_log(self) -> Option<LogSlot> {
        match self.leads_to() {
            SlotTarget::Log(slot) => Some(slot),
            SlotTarget::Cache(_) => None,
        }
    }

    /// The place in the cache, if the slot leads there.
    #[inline(always)]
    pub fn in_cache(self) -> Option<u64> {
        match self.leads_to() {
            SlotTarget::Log(_) => None,
            SlotTarget::Cache(place) => Some(place),
        }
    }

    /// A cached slot with its entry moved to `place`, all else kept. `None` for one that leads into the log.
    #[must_use]
    pub fn moved_in_cache(self, place: u64) -> Option<Slot> {
        check_address(place);
        self.is_cached().then(|| self.with(0, ADDR_MASK, place >> 3 & ADDR_MASK))
    }

    /// The word, for the tree.
    pub fn raw(self) -> u64 {
        self.0.get()
    }

    /// The slot of a word; `None` for zero.
    pub fn from_raw(word: u64) -> Option<Slot> {
        NonZeroU64::new(word).map(Slot)
    }

    /// What the newest record is.
    pub fn tag(self) -> Tag {
        match self.raw() >> TAG_AT {
            1 => Tag::Row,
            2 => Tag::Delta,
            3 => Tag::Tombstone,
            CACHED => Tag::Cached,
            BLIND => Tag::Blind,
            _ => Tag::Reserved,
        }
    }

    /// Log offset of the newest record, which is in the log.
    #[cfg(test)]
    pub(crate) fn log_offset(self) -> u64 {
        self.in_log().expect("a slot that leads into the log").offset()
    }

    fn address(self) -> u64 {
        (self.raw() & ADDR_MASK) << 3
    }

    /// Whether the row has an expiry.
    pub fn expires(self) -> bool {
        self.raw() >> EXPIRES_AT & 1 == 1
    }

    /// Deltas in the chain.
    pub fn depth(self) -> u8 {
        (self.raw() >> DEPTH_AT & 7) as u8
    }

    /// Records in the log that are the version which the slot stands for.
    #[inline]
    pub fn records(self) -> u8 {
        match self.tag() {
            Tag::Blind => self.depth(),
            Tag::Tombstone => 1,
            Tag::Row | Tag::Delta | Tag::Cached | Tag::Reserved => self.depth() + 1,
        }
    }

    /// Whether it is a tombstone that hides what sorted tables may have of the key.
    #[inline]
    pub fn hides_below(self) -> bool {
        self.tag() == Tag::Tombstone && self.depth() > 0
    }

    /// Older physical records of this key in the log; 255 is "many".
    pub fn older_versions(self) -> u8 {
        (self.raw() >> OLDER_VERSIONS_AT & 0xff) as u8
    }

    /// Bytes of the newest record, or of that in the cache, rounded up to its size class.
    pub fn bytes(self) -> u64 {
        class_bytes((self.raw() >> CLASS_AT & 0x7f) as u8)
    }

    /// Whether the record may be longer than [`Slot::bytes`] says: its class is the largest.
    pub fn bytes_unknown(self) -> bool {
        self.raw() >> CLASS_AT & 0x7f == u64::from(LARGEST)
    }

    /// With `fewer` older records; "many" stays "many".
    #[must_use]
    pub fn subtract_older_versions(self, fewer: u8) -> Slot {
        if self.older_versions() == Self::OLDER_VERSIONS_SATURATED {
            self
        } else {
            self.with(OLDER_VERSIONS_AT, 0xff, u64::from(self.older_versions().saturating_sub(fewer)))
        }
    }

    fn with(self, at: u32, mask: u64, value: u64) -> Slot {
        // The tag is never made 0, so the word stays non-zero.
        Slot(NonZeroU64::new(self.raw() & !(mask << at) | value << at).expect("the tag is not zero"))
    }
}

impl LogSlot {
    /// A slot of `tag` for the record at log offset `offset`, of `bytes` bytes; depth 0, no older versions, no expiry.
    pub fn new(tag: Tag, offset: u64, bytes: u64) -> LogSlot {
        check_address(offset);
        let tag: u64 = match tag {
            Tag::Row => 1,
            Tag::Delta => 2,
            Tag::Blind => BLIND,
            Tag::Tombstone | Tag::Cached | Tag::Reserved => 3,
        };
        let word = tag << TAG_AT | u64::from(class_of(bytes)) << CLASS_AT | (offset >> 3 & ADDR_MASK);
        LogSlot(Slot(NonZeroU64::new(word).expect("the tag is not zero")))
    }

    /// Log offset of the newest record, in bytes.
    pub fn offset(self) -> u64 {
        self.0.address()
    }

    /// With the record moved to `offset`, all else kept.
    #[must_use]
    pub fn with_offset(self, offset: u64) -> LogSlot {
        check_address(offset);
        LogSlot(self.0.with(0, ADDR_MASK, offset >> 3 & ADDR_MASK))
    }

    /// As of a version whose row is not in the log, all else kept.
    #[must_use]
    pub fn blind(self) -> LogSlot {
        LogSlot(self.0.with(TAG_AT, 7, BLIND))
    }

    /// With the expiry bit set to `expires`.
    #[must_use]
    pub fn with_expires(self, expires: bool) -> LogSlot {
        LogSlot(self.0.with(EXPIRES_AT, 1, u64::from(expires)))
    }

    /// With `depth` deltas in the chain, at most [`Slot::DEPTH_MAX`].
    #[must_use]
    pub fn with_depth(self, depth: u8) -> LogSlot {
        debug_assert!(depth <= Slot::DEPTH_MAX, "depth {depth} in a slot");
        LogSlot(self.0.with(DEPTH_AT, 7, u64::from(depth.min(Slot::DEPTH_MAX))))
    }

    /// With the mark of a tombstone that hides what is below.
    #[must_use]
    pub fn with_hides_below(self, hides: bool) -> LogSlot {
        debug_assert!(self.tag() == Tag::Tombstone, "{self:?} hides nothing");
        self.with_depth(u8::from(hides))
    }

    /// With so many older records.
    #[must_use]
    pub fn with_older_versions(self, older: u8) -> LogSlot {
        LogSlot(self.0.with(OLDER_VERSIONS_AT, 0xff, u64::from(older)))
    }

    /// With `more` older records added; sticks at "many".
    #[must_use]
    pub fn add_older_versions(self, more: u8) -> LogSlot {
        self.with_older_versions(self.older_versions().saturating_add(more))
    }
}

impl From<LogSlot> for Slot {
    #[inline]
    fn from(slot: LogSlot) -> Slot {
        slot.0
    }
}

impl Deref for LogSlot {
    type Target = Slot;

    #[inline]
    fn deref(&self) -> &Slot {
        &self.0
    }
}

fn check_address(address: u64) {
    debug_assert!(address.is_multiple_of(8) && address < Slot::OFFSET_END, "address {address} in a slot");
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("tag", &self.tag())
            .field(if self.is_cached() { "place" } else { "offset" }, &self.address())
            .field("bytes", &self.bytes())
            .field("depth", &self.depth())
            .field("older_versions", &self.older_versions())
            .field("expires", &self.expires())
            .finish()
    }
}

impl fmt::Debug for LogSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_size_class_says_nothing() {
        assert!(LogSlot::new(Tag::Row, 0, u64::MAX).bytes_unknown());
        assert!(!LogSlot::new(Tag::Row, 0, 1 << 20).bytes_unknown());
    }

    #[test]
    fn the_word_is_as_documented() {
        let slot =
            LogSlot::new(Tag::Delta, 0x1238, 32).with_depth(5).with_older_versions(3).with_expires(true);
        assert_eq!(slot.raw(), 2 << 61 | 1 << 60 | 5 << 57 | 3 << 42 | 0x247);
    }

    #[test]
    fn a_cached_slot_keeps_what_callers_look_at() {
        let log_slot =
            LogSlot::new(Tag::Delta, 0x1238, 100).with_depth(5).with_older_versions(3).with_expires(true);
        let cached = Slot::cached(log_slot, 0x40, 1_200);
        assert_eq!(cached.raw() >> 61, 4);
        assert!(cached.is_cached() && !log_slot.is_cached());
        assert_eq!(log_slot.moved_in_cache(0x80), None);
        let moved = cached.moved_in_cache(0x80).unwrap();
        assert_eq!((moved.in_cache(), moved.moved_in_cache(0x40)), (Some(0x80), Some(cached)));
        assert_eq!((cached.tag(), cached.in_cache(), cached.in_log()), (Tag::Cached, Some(0x40), None));
        assert_eq!((Slot::from(log_slot).in_log(), log_slot.in_cache()), (Some(log_slot), None));
        assert_eq!((cached.depth(), cached.older_versions(), cached.expires()), (5, 3, true));
        assert!((1_200..1_350).contains(&cached.bytes()));
    }

    proptest! {
        #[test]
        fn fields_read_back_and_leave_each_other_alone(
            tag in 0usize..3, unit in 0u64..1 << 42, moved in 0u64..1 << 42, bytes in 0u64..1 << 22, depth in 0u8..8, older: u8,
            more: u8, expires: bool,
        ) {
            let tag = [Tag::Row, Tag::Delta, Tag::Tombstone][tag];
            let slot = LogSlot::new(tag, unit * 8, bytes).with_depth(depth).with_older_versions(older).with_expires(expires);
            prop_assert_eq!(Slot::from_raw(slot.raw()).and_then(Slot::in_log), Some(slot));
            let fewer = if older == 255 { 255 } else { older.saturating_sub(more) };
            let fewer = (slot.subtract_older_versions(more).in_log().unwrap(), fewer);
            for (slot, older) in [
                (slot, older),
                (slot.add_older_versions(more), older.saturating_add(more)),
                fewer,
            ] {
                prop_assert_eq!(slot.tag(), tag);
                prop_assert_eq!(slot.offset(), unit * 8);
                prop_assert_eq!(slot.depth(), depth);
                prop_assert_eq!(slot.older_versions(), older);
                prop_assert_eq!(slot.expires(), expires);
                prop_assert!(slot.bytes() >= bytes.min(1_966_080));
                prop_assert!(slot.bytes() <= bytes.max(32) + bytes / 8);
                let elsewhere = slot.with_offset(moved * 8);
                prop_assert_eq!(elsewhere.offset(), moved * 8);
                prop_assert_eq!(elsewhere.with_offset(unit * 8), slot);
            }
        }
    }
}
