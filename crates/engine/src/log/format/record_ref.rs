//! The word by which a record refers to another one: its `previous`.
//!
//! Owns: the layout of the word, which is persisted. Promises: a reference is never zero; 0 in a record is "nothing in the log". Must
//! not know: what an index keeps in memory. Its word (`index/slot.rs`) is another type, though it has the same layout today:
//! `db/chain.rs` makes one of the other, and nobody else does.
//!
//! ```text
//!  63  61  60   59   57 56        50 49       42 41                                   0
//! +------+-----+-------+------------+-----------+--------------------------------------+
//! | kind | exp | depth | size class |   older   |           log offset / 8             |
//! |  3   |  1  |   3   |     7      |     8     |                 42                   |
//! +------+-----+-------+------------+-----------+--------------------------------------+
//! ```
//! - `kind`: 1 row, 2 delta, 3 tombstone, 5 a delta of a version whose row is not in the log: of the record referred to.
//! - `exp`: the row has an expiry; written by an older version, it may have had one.
//! - `depth`: deltas from the record referred to down to its row, 0 to 7; with kind 5 records; of a tombstone 1 if it hid what was below the log.
//! - `size class`: bytes of the record referred to, rounded up (`size_class.rs`).
//! - `older`: what the older-version count of the key was then. Nobody reads it.
//! - offset: 42 bits of 8-byte units, so 32 TiB of log.

use std::fmt;
use std::num::NonZeroU64;

use super::RecordKind;
use crate::size_class::class_bytes;

const OFFSET_BITS: u32 = 42;
const CLASS_AT: u32 = 50;
const KIND_AT: u32 = 61;
/// The kind of a delta of a version whose row is not in the log.
const BLIND: u64 = 5;
const _: () = {
    assert!(CLASS_AT == OFFSET_BITS + 8, "older");
    assert!(KIND_AT == CLASS_AT + 7 + 3 + 1, "size class, depth, expiry");
    assert!(RecordKind::Tombstone as u64 >> (u64::BITS - KIND_AT) == 0);
    assert!(size_of::<Option<RecordRef>>() == 8, "0 is none");
};

/// Where a record is and what it is, as another record says it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct RecordRef(NonZeroU64);

impl RecordRef {
    /// Log offsets are below this.
    pub(crate) const OFFSET_END: u64 = 1 << (OFFSET_BITS + 3);

    /// The reference in a persisted word, if it has one.
    #[inline]
    pub(crate) fn from_word(word: u64) -> Option<RecordRef> {
        NonZeroU64::new(word).map(RecordRef)
    }

    /// The word to be persisted.
    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0.get()
    }

    /// Log offset of the record, in bytes.
    #[inline]
    pub(crate) fn offset(self) -> u64 {
        (self.word() & ((1 << OFFSET_BITS) - 1)) << 3
    }

    /// Bytes of the record, rounded up to its size class.
    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        class_bytes((self.word() >> CLASS_AT & 0x7f) as u8)
    }

    /// Whether the record may be longer than [`RecordRef::bytes`] says: its class is the largest.
    pub(crate) fn bytes_unknown(self) -> bool {
        self.word() >> CLASS_AT & 0x7f == u64::from(crate::size_class::LARGEST)
    }

    /// Whether the record is a delta, which may refer to another one.
    #[inline]
    pub(crate) fn is_delta(self) -> bool {
        matches!(self.word() >> KIND_AT, kind if kind == RecordKind::Delta as u64 || kind == BLIND)
    }
}

impl fmt::Debug for RecordRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordRef")
            .field("kind", &RecordKind::of((self.word() >> KIND_AT) as u16))
            .field("offset", &self.offset())
            .field("bytes", &self.bytes())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A delta with an expiry, five deep, of the size class of 1,152 bytes, three older versions, at byte 0x1238.
    #[test]
    fn the_word_is_as_documented() {
        let word = 2 << 61 | 1 << 60 | 5 << 57 | 41 << 50 | 3 << 42 | 0x247;
        let reference = RecordRef::from_word(word).unwrap();
        assert_eq!((reference.word(), reference.is_delta()), (word, true));
        assert_eq!((reference.offset(), reference.bytes()), (0x1238, 1_152));
        assert!(!reference.bytes_unknown());
        let row = RecordRef::from_word(1 << 61 | 127 << 50).unwrap();
        assert!(row.bytes_unknown() && !row.is_delta());
        assert_eq!(RecordRef::from_word(0), None, "nothing in the log");
    }
}
