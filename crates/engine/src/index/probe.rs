//! The index for measurements from outside (`parts::index`): one tree, with the memory and the epoch it is in.
//!
//! Owns: nothing of its own. Promises: no call can break what the trees rest on, for it pins its own epoch, builds in its own memory, and looks at
//! each key. The engine, which pays for none of that, calls the trees through `levels.rs`. Must not know: what is measured.

use std::io;
use std::ops::Bound;

use super::{Decision, Index, IndexFull, NodeArena, ScanBatch, ScanEnd, Slot};
use crate::epoch::Epoch;
use crate::sync::Arc;

/// A tree with all that it needs.
#[derive(Debug)]
pub struct IndexProbe {
    arena: Arc<NodeArena>,
    epoch: Arc<Epoch>,
    index: Index,
}

/// The key.
///
/// # Panics
/// If it is empty or longer than [`Index::KEY_BYTES_MAX`].
fn checked(key: &[u8]) -> &[u8] {
    let (len, max) = (key.len(), Index::KEY_BYTES_MAX);
    assert!((1..=max).contains(&len), "a key has 1 to {max} bytes, and this one {len}");
    key
}

impl IndexProbe {
    /// An empty tree in memory of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// When there is no address space for it.
    pub fn new(bytes_max: u64) -> io::Result<IndexProbe> {
        let (arena, epoch) = (Arc::new(NodeArena::new(bytes_max)?), Arc::new(Epoch::new()));
        let index = Index::new(Arc::clone(&arena), Arc::clone(&epoch));
        Ok(IndexProbe { arena, epoch, index })
    }

    /// An empty tree in the same memory.
    #[must_use]
    pub fn beside(&self) -> IndexProbe {
        self.with(Index::new(Arc::clone(&self.arena), Arc::clone(&self.epoch)))
    }

    /// A tree of `sorted` in the same memory, its leaves filled to `fill_percent`.
    ///
    /// # Errors
    /// `IndexFull`.
    ///
    /// # Panics
    /// If keys do not ascend strictly, or one is empty or too long.
    pub fn built(&self, sorted: &[(&[u8], Slot)], fill_percent: u32) -> Result<IndexProbe, IndexFull> {
        let sorted = sorted.iter().map(|&(key, slot)| (checked(key), slot));
        let (arena, epoch) = (Arc::clone(&self.arena), Arc::clone(&self.epoch));
        Ok(self.with(Index::bulk_build(arena, epoch, sorted, fill_percent)?))
    }

    fn with(&self, index: Index) -> IndexProbe {
        IndexProbe { arena: Arc::clone(&self.arena), epoch: Arc::clone(&self.epoch), index }
    }

    /// Puts the contents of `other` in the place of this tree's, and frees what was there.
    ///
    /// # Panics
    /// If `other` is in other memory.
    pub fn replace_with(&self, other: IndexProbe) {
        self.index.replace_with(other.index);
        while self.epoch.collect() > 0 {}
    }

    /// Asks for 2 MiB pages.
    pub fn prefer_huge_pages(&self) {
        self.arena.prefer_huge_pages();
    }

    /// Has the kernel give memory ahead, `lead` bytes of it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn populate_ahead(&self, lead: u64) -> io::Result<u64> {
        self.arena.populate_ahead(lead)
    }

    /// Pins and lets go, as each of the other calls does.
    pub fn pin(&self) {
        drop(std::hint::black_box(self.epoch.pin()));
    }

    /// The slot of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Slot> {
        self.index.get(checked(key), &self.epoch.pin())
    }

    /// The slots of all `keys`, looked up together.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`, or a key empty or too long.
    pub fn multi_get(&self, keys: &[&[u8]], out: &mut [Option<Slot>]) {
        keys.iter().for_each(|key| _ = checked(key));
        self.index.multi_get(keys, &self.epoch.pin(), out);
    }

    /// Sets the slot of `key`; without one, removes it.
    ///
    /// # Errors
    /// `IndexFull` if `key` is new and there is no memory for it.
    ///
    /// # Panics
    /// If the key is empty or too long.
    pub fn set(&self, key: &[u8], slot: Option<Slot>) -> Result<(), IndexFull> {
        let decision = slot.map_or(Decision::Remove, Decision::Store);
        self.index.upsert(checked(key), &self.epoch.pin(), |_| (decision, ()))
    }

    /// Up to `limit` entries between two keys, ascending, or with `reverse` descending; whether there are more.
    pub fn scan(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        reverse: bool,
        limit: usize,
        out: &mut ScanBatch,
    ) -> bool {
        let guard = self.epoch.pin();
        let end = match reverse {
            false => self.index.scan_forward(from, to, limit, &guard, out),
            true => self.index.scan_reverse(from, to, limit, &guard, out),
        };
        end == ScanEnd::More
    }

    /// Bytes of memory the tree takes.
    pub fn bytes(&self) -> u64 {
        self.index.bytes()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::{LogSlot, Tag};
    use super::*;

    fn slot(n: u64) -> Slot {
        Slot::from(LogSlot::new(Tag::Row, n * 8, 64))
    }

    #[test]
    fn it_answers_as_the_tree() {
        let probe = IndexProbe::new(1 << 20).unwrap();
        let longest = vec![b'k'; Index::KEY_BYTES_MAX];
        for (n, key) in [&b"a"[..], b"b", &longest].into_iter().enumerate() {
            probe.set(key, Some(slot(n as u64 + 1))).unwrap();
            assert_eq!(probe.get(key), Some(slot(n as u64 + 1)));
        }
        let mut batch = ScanBatch::new();
        assert!(probe.scan((Bound::Unbounded, Bound::Unbounded), true, 2, &mut batch));
        assert_eq!((batch.key(0), batch.key(1)), (&longest[..], &b"b"[..]));
        let built = probe.built(&[(b"c", slot(4))], 90).unwrap();
        probe.replace_with(built);
        probe.beside().set(b"c", None).unwrap();
        let mut found = [None; 2];
        probe.multi_get(&[b"b", b"c"], &mut found);
        assert_eq!(found, [None, Some(slot(4))]);
    }

    #[test]
    #[should_panic(expected = "this one 65537")]
    fn a_key_that_no_entry_has_room_for_is_refused() {
        let probe = IndexProbe::new(1 << 20).unwrap();
        _ = probe.set(&vec![0; Index::KEY_BYTES_MAX + 1], Some(slot(1)));
    }

    #[test]
    #[should_panic(expected = "this one 65537")]
    fn nor_is_such_a_key_built_from() {
        let probe = IndexProbe::new(1 << 20).unwrap();
        _ = probe.built(&[(&[0; Index::KEY_BYTES_MAX + 1], slot(1))], 90);
    }

    #[test]
    #[should_panic(expected = "trees of one arena")]
    fn a_tree_in_other_memory_is_refused() {
        let (one, other) = (IndexProbe::new(1 << 20).unwrap(), IndexProbe::new(1 << 20).unwrap());
        one.replace_with(other);
    }
}
