//! Removing keys: one by one, or many in their order.
//!
//! Owns: what leaves a leaf, and what is done about a leaf that is left empty. Promises: of many keys each leaf is walked to, locked and moved together once, however
//! many of them are in it; a key goes only if its slot is what the caller knows. Must not know: why a key goes.

use smallvec::SmallVec;

use super::edit::EntryBits;
use super::node::{Meta, SlotLock};
use super::tree::TreeView;
use super::{Index, Slot, edit, lock_entry};
use crate::epoch::Guard;
use crate::sync::Backoff;

/// The leaves of keys so far ahead are on their way into the cache, one key of so many asked: neighbours share a leaf.
const AHEAD: usize = 24;
const ONE_OF: usize = 8;
/// A leaf that has no more than this share of the entries that it could is joined with the one on its left, if that is as empty.
const SPARSE_PARTS: usize = 3;

impl Index {
    /// Removes those of `entries`, which are in the order of their keys, whose slot is the one that comes with the key; `removed[i]` says whether the `i`-th was one of them.
    ///
    /// # Panics
    /// If `removed` is shorter than `entries`.
    pub(crate) fn remove_in_order(&self, entries: &[(&[u8], Slot)], guard: &Guard<'_>, removed: &mut [bool]) {
        debug_assert!(entries.is_sorted_by(|one, next| one.0 < next.0), "each key once, in order");
        let removed = &mut removed[..entries.len()];
        for (key, _) in entries.iter().take(AHEAD).step_by(ONE_OF) {
            self.view(guard).prefetch_leaf(key);
        }
        let (mut at, mut prefetched, mut backoff) = (0, 0, Backoff::new());
        while let Some(&(key, _)) = entries.get(at) {
            let view = self.view(guard);
            while prefetched <= at {
                if let Some((key, _)) = entries.get(prefetched + AHEAD) {
                    view.prefetch_leaf(key);
                }
                prefetched += ONE_OF;
            }
            match lock_entry(view, key) {
                Ok(None) => at += 1,
                Ok(Some((lock, meta, place, equal))) => {
                    let (entries, removed) = (&entries[at..], &mut removed[at..]);
                    let leaf = LockedLeaf { view, stripe: guard.stripe(), lock, meta };
                    let (done, left) = leaf.remove_first_of(entries, (place, equal), removed);
                    at += done;
                    // The leaf on the left has been passed before: as a rule it is as empty.
                    if left > 0 && left * SPARSE_PARTS <= meta.cap() {
                        view.join_with_left(key);
                    }
                }
                Err(_) => backoff.wait(),
            }
        }
    }
}

/// A leaf that is locked against writers.
pub(super) struct LockedLeaf<'a> {
    pub(super) view: TreeView<'a>,
    pub(super) stripe: usize,
    pub(super) lock: SlotLock<'a>,
    pub(super) meta: Meta,
}

impl LockedLeaf<'_> {
    /// Removes of the first `entries` those that are here as they are given; the first is or would be at `found`. Returns how many are done with: the first, and all that were found
    /// here behind it, and how many entries the leaf has left if any went. One that is not found may be in the next leaf.
    fn remove_first_of(
        self,
        entries: &[(&[u8], Slot)],
        mut found: (usize, bool),
        removed: &mut [bool],
    ) -> (usize, usize) {
        let (node, first) = (self.lock.node(), entries[0].0);
        let (mut found_here, mut done): (EntryBits, usize) = (0, 0);
        loop {
            let (at, equal) = found;
            if equal && node.slot(self.meta, at) == entries[done].1.raw() {
                found_here |= 1 << at;
                removed[done] = true;
            }
            done += 1;
            let Some(&(key, _)) = entries.get(done) else { break };
            // What does not share the leaf's prefix is not in it.
            if key.get(..self.meta.prefix()) != first.get(..self.meta.prefix()) {
                break;
            }
            match node.search(self.meta, key, self.lock.version()) {
                Ok((at, true)) => found = (at, true),
                _ => break,
            }
        }
        if found_here == 0 {
            return (done, 0);
        }
        let left = self.meta.count() - found_here.count_ones() as usize;
        self.remove(found_here, first);
        (done, left)
    }

    /// Removes `gone`, at least one entry; `key` leads to this leaf.
    pub(super) fn remove(self, gone: EntryBits, key: &[u8]) {
        let LockedLeaf { view, stripe, lock, meta } = self;
        let (node, mut blobs) = (lock.node(), SmallVec::<[u64; 8]>::new());
        let mut longest = 0;
        for at in (0..meta.count()).filter(|at| gone >> at & 1 == 1) {
            longest = longest.max(meta.prefix() + node.ext(meta, at).len());
        }
        let lock = lock.escalate();
        edit::remove_entries(node, gone, |blob| blobs.push(blob));
        drop(lock);
        view.tree.count_removed_keys(stripe, gone.count_ones(), longest);
        for blob in blobs {
            // SAFETY: the node led to it until it was removed, under its lock.
            unsafe { view.retire_blob(blob) };
        }
        if meta.count() == gone.count_ones() as usize {
            view.unlink_empty(key);
        }
    }
}
