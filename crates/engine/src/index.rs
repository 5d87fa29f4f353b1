//! The young index: one concurrent ordered tree per table, in DRAM, from keys to [`Slot`]s.
//!
//! Owns: the tree and its memory ([`NodeArena`]); what readers may still see is left to the store's [`Epoch`].
//! Promises: reads write nothing shared and take no lock (they wait for a writer only while it moves entries of the
//! very node they read, tens of nanoseconds); writers of one key are serialised; a scan sees each leaf as it was at
//! one moment. Must not know: what a slot's record holds, logs, tables' names.
//!
//! A B+-tree with optimistic lock coupling (Leis, Haubenschild, Neumann, "Optimistic Lock Coupling", 2019) and heads
//! (Graefe, Larson, "B-tree indexes and CPU caches", 2001; after Lomet's prefix truncation). The parts:
//! `index/slot.rs` the slot word; `node.rs` layout, lock, search; `edit.rs` changes to one node; `tree.rs` paths,
//! splits, unlinking; `remove.rs` removing; `scan.rs`; `build.rs` bulk building; `arena.rs`, `blob.rs` memory; `rows.rs` the index
//! of a table, which keeps deleted keys apart.
#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arena;
mod blob;
mod build;
mod edit;
mod longest;
mod node;
mod probe;
mod remove;
mod rows;
mod sample;
mod scan;
mod slot;
mod stored_key;
mod tree;

#[cfg(all(test, shuttle))]
mod shuttle;
#[cfg(all(test, not(shuttle)))]
mod tests;

use std::fmt;

use crate::epoch::{Epoch, Garbage, Guard};
use crate::invariants;
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::{Arc, Backoff};

pub(crate) use arena::{Budget, IndexReservation, NodeArena};
pub(crate) use build::IndexBuilder;
pub(crate) use node::head_of;
pub(crate) use rows::RowIndex;
pub(crate) use scan::ScanEnd;
pub(crate) use slot::SlotTarget;

pub use arena::IndexFull;
pub use probe::IndexProbe;
pub use scan::ScanBatch;
pub use slot::{LogSlot, Slot, Tag};

use edit::{Entry, Room};
use longest::LongestKeys;
use node::{Meta, Node, Retry, SlotLock};
use remove::LockedLeaf;
use tree::{Tree, TreeParts, TreeView};

/// Cache lines of a node loaded ahead on the way down.
const PREFETCH_LINES: usize = 16;

/// The same for a group of keys, where more would fight for the core's few outstanding misses.
const GROUP_LINES: usize = 6;
/// Keys that [`Index::multi_get`] looks up together.
const GROUP: usize = 16;

/// What an upsert does with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Leaves it as it is.
    Keep,
    /// Sets its slot.
    Store(Slot),
    /// Removes it.
    Remove,
}

/// What becomes of a key that is not there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NewKey<'g> {
    /// It may be stored, in memory of this budget.
    Stored(Budget<'g>),
    /// Nothing is stored for it: it takes no memory, however full the index is.
    NotStored,
}

/// One table's tree.
pub(crate) struct Index {
    tree: AtomicPtr<Tree>,
    arena: Arc<NodeArena>,
    epoch: Arc<Epoch>,
}

impl Index {
    /// Bytes in a key: 1 to this. Longer ones are the caller's to refuse.
    pub(crate) const KEY_BYTES_MAX: usize = 64 << 10;

    /// An empty tree; it takes no node until the first key.
    pub(crate) fn new(arena: Arc<NodeArena>, epoch: Arc<Epoch>) -> Index {
        Index::with_tree(arena, epoch, Tree::new(arena::NULL, 0, 0, LongestKeys::default(), 0, 0))
    }

    fn with_tree(arena: Arc<NodeArena>, epoch: Arc<Epoch>, tree: Tree) -> Index {
        Index { tree: AtomicPtr::new(Box::into_raw(Box::new(tree))), arena, epoch }
    }

    #[inline]
    fn view<'g>(&'g self, guard: &'g Guard<'_>) -> TreeView<'g> {
        debug_assert!(
            std::ptr::eq(guard.epoch(), &*self.epoch),
            "a guard of another domain protects nothing here"
        );
        // SAFETY: a tree is freed only after it was replaced and every guard of that time is gone; ours is older.
        let tree = unsafe { &*self.tree.load(Ordering::Acquire) };
        TreeView { arena: &self.arena, epoch: &self.epoch, tree, budget: Budget::Writes }
    }

    /// The slot of `key`.
    pub(crate) fn get(&self, key: &[u8], guard: &Guard<'_>) -> Option<Slot> {
        let mut backoff = Backoff::new();
        loop {
            match try_get(self.view(guard), key) {
                Ok(slot) => return slot,
                Err(Retry) => backoff.wait(),
            }
        }
    }

    /// Looks all `keys` up, level by level together, so that their cache misses overlap; `out[i]` is for `keys[i]`.
    /// Each key is read at a moment of its own.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    pub(crate) fn multi_get(&self, keys: &[&[u8]], guard: &Guard<'_>, out: &mut [Option<Slot>]) {
        for (keys, out) in keys.chunks(GROUP).zip(out[..keys.len()].chunks_mut(GROUP)) {
            self.get_group(keys, guard, |i, found| out[i] = found.slot);
        }
    }

    /// [`Index::multi_get`] that remembers for [`Index::upsert_at`] where the keys are.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    pub(crate) fn multi_locate<'g>(&'g self, keys: &[&[u8]], guard: &'g Guard<'_>, out: &mut [Located<'g>]) {
        for (keys, out) in keys.chunks(GROUP).zip(out[..keys.len()].chunks_mut(GROUP)) {
            self.get_group(keys, guard, |i, found| out[i] = found);
        }
    }

    #[inline(always)]
    fn get_group<'g>(
        &'g self,
        keys: &[&[u8]],
        guard: &'g Guard<'_>,
        mut found: impl FnMut(usize, Located<'g>),
    ) {
        let view = self.view(guard);
        let mut descents = [const { None }; GROUP];
        if let Ok(Some((_, root, version))) = view.enter() {
            descents[..keys.len()].fill(Some(Descent {
                node: root,
                parent: None,
                version,
                loading: Loading::Heads,
            }));
        } else {
            for (i, key) in keys.iter().enumerate() {
                found(i, Located { slot: self.get(key, guard), ..Located::default() });
            }
        }
        let mut going = true;
        while going {
            going = false;
            for (i, key) in keys.iter().enumerate() {
                let Some(descent) = &mut descents[i] else { continue };
                match descent.step(view, key) {
                    Ok(None) => going = true,
                    Ok(Some(located)) => {
                        found(i, located);
                        descents[i] = None;
                    }
                    Err(Retry) => {
                        found(i, Located { slot: self.get(key, guard), ..Located::default() });
                        descents[i] = None;
                    }
                }
            }
        }
    }

    /// Runs `decide` with the slot of `key` while all other writers of the key are kept out (readers go on), then does
    /// what it decided. `decide` runs once, or not at all if the index is full; other keys of the same leaf wait for it
    /// too (and where there is no leaf and none is made, those that want one beside it), so it should take no longer than finishing a record.
    ///
    /// # Errors
    /// `IndexFull` if `key` is new and there is no memory for it within the budget.
    #[inline]
    pub(crate) fn upsert<R>(
        &self,
        key: &[u8],
        guard: &Guard<'_>,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> Result<R, IndexFull> {
        self.upsert_at(key, None, NewKey::Stored(Budget::Writes), guard, decide)
    }

    /// [`Index::upsert`] of a key that [`Index::multi_locate`] looked up `at` this place under the same guard. The tree is
    /// walked again only if the leaf's entries have been moved since. If it is a `new_key`, that says what it takes.
    ///
    /// # Errors
    /// As [`Index::upsert`]. Of a key that is not to be stored only in a tree without a leaf: one that nobody ever stored anything in.
    ///
    /// # Panics
    /// If it is decided to store a key that is not there, and is not to be stored then.
    #[inline]
    pub(crate) fn upsert_at<'g, R>(
        &'g self,
        key: &[u8],
        mut at: Option<LeafPosition<'g>>,
        new_key: NewKey<'g>,
        guard: &'g Guard<'_>,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> Result<R, IndexFull> {
        let (is_stored, budget) = match new_key {
            NewKey::Stored(budget) => (true, budget),
            // It takes none but for the first leaf of a tree.
            NewKey::NotStored => (false, Budget::Beyond),
        };
        debug_assert!((1..=Self::KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
        let (mut backoff, mut planted) = (Backoff::new(), false);
        loop {
            let view = TreeView { budget, ..self.view(guard) };
            let known = at.take().and_then(|at| at.lock(view).ok());
            let locked = known.map_or_else(|| lock_entry(view, key), |locked| Ok(Some(locked)));
            let (lock, meta, at, equal) = match locked {
                Ok(Some(locked)) => locked,
                Ok(None) if is_stored => {
                    view.plant(key)?;
                    planted = true;
                    continue;
                }
                Ok(None) => match view.hold_absent(key) {
                    Ok(Some(lock)) => return Ok(not_stored(lock, decide)),
                    // Of an empty tree there is nothing that could be held. Its first leaf stays.
                    Ok(None) => {
                        view.plant(key)?;
                        continue;
                    }
                    Err(Retry) => {
                        backoff.wait();
                        continue;
                    }
                },
                Err(Retry) => {
                    backoff.wait();
                    continue;
                }
            };
            let write = Write { view, key, stripe: guard.stripe(), meta, at, planted };
            if equal {
                return Ok(write.present(lock, decide));
            }
            if !is_stored {
                return Ok(not_stored(lock, decide));
            }
            let room = edit::room(meta, key.len() - meta.prefix());
            if room == Room::Split {
                drop(lock);
                view.split(key, 0)?;
                continue;
            }
            return write.absent(lock, room, decide);
        }
    }

    /// Bytes of memory that new keys of so many bytes each take at most, whatever splits they cause: to be
    /// [reserved](NodeArena::reserve) for them.
    pub(crate) fn bytes_for(&self, lens: impl IntoIterator<Item = usize>, guard: &Guard<'_>) -> u64 {
        self.view(guard).bytes_for(lens)
    }

    /// Keys in the tree. While writers are at work, a number between what it was and what it will be.
    pub(crate) fn len(&self) -> u64 {
        self.view(&self.epoch.pin()).tree.keys()
    }

    /// Bytes of memory this tree takes: nodes and key blobs.
    pub(crate) fn bytes(&self) -> u64 {
        self.view(&self.epoch.pin()).tree.bytes()
    }

    /// Puts the contents of `other` in place of this tree's, at one moment. Readers that began before go on in the old
    /// tree, which is freed when they are gone. A write that overlaps the call may be lost with the old tree: the caller
    /// keeps out writers whose writes must survive.
    ///
    /// # Panics
    /// If `other` lives in another arena or epoch.
    pub(crate) fn replace_with(&self, other: Index) {
        assert!(
            Arc::ptr_eq(&self.arena, &other.arena) && Arc::ptr_eq(&self.epoch, &other.epoch),
            "trees of one arena and epoch"
        );
        let empty = Box::into_raw(Box::new(Tree::new(arena::NULL, 0, 0, LongestKeys::default(), 0, 0)));
        let new = other.tree.swap(empty, Ordering::AcqRel);
        let old = self.tree.swap(new, Ordering::AcqRel);
        self.epoch.defer(Box::new(RetiredTree { tree: old, arena: self.arena.clone() }));
    }

    /// Drops all entries at one moment, as [`Index::replace_with`] an empty tree.
    pub(crate) fn clear(&self) {
        self.replace_with(Index::new(self.arena.clone(), self.epoch.clone()));
    }
}

/// A tree that was replaced, and that readers may still be in. No box before they are gone: a box says that nobody else looks.
struct RetiredTree {
    tree: *mut Tree,
    arena: Arc<NodeArena>,
}

// SAFETY: it is the only way to a tree that it may free, and a tree is nothing but atomics.
unsafe impl Send for RetiredTree {}

impl Garbage for RetiredTree {
    fn free(self: Box<Self>, parts: &mut usize) -> Option<Box<dyn Garbage>> {
        let RetiredTree { tree, arena } = *self;
        // SAFETY: made by `Box::into_raw`, and the swap took it from the only place that had it; the epoch calls this when every guard
        // that could see the tree is gone.
        let tree = unsafe { Box::from_raw(tree) };
        invariants::check("a tree that was replaced", || tree.check(&arena));
        Box::new(UnseenTree { parts: tree.parts(), arena }).free(parts)
    }
}

/// What is left of a tree that was replaced, and that nobody is in any more.
struct UnseenTree {
    parts: TreeParts,
    arena: Arc<NodeArena>,
}

impl Garbage for UnseenTree {
    fn free(mut self: Box<Self>, parts: &mut usize) -> Option<Box<dyn Garbage>> {
        // SAFETY: the nodes are those of a `RetiredTree`, which was the only way to them; this is now.
        let is_more = unsafe { self.parts.free(&self.arena, parts) };
        if is_more { Some(self) } else { None }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`; readers and writers borrow the index, so none is left.
        unsafe {
            let tree = Box::from_raw(self.tree.load(Ordering::Acquire));
            invariants::check("an index", || tree.check(&self.arena));
            tree.free(&self.arena);
        }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("keys", &self.len())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

#[inline]
fn try_get(view: TreeView<'_>, key: &[u8]) -> Result<Option<Slot>, Retry> {
    match view.leaf(key)? {
        Some((leaf, version)) => get_in_leaf(leaf, version, key),
        None => Ok(None),
    }
}

#[inline]
fn get_in_leaf(leaf: &Node, version: u64, key: &[u8]) -> Result<Option<Slot>, Retry> {
    let meta = leaf.meta();
    let (at, equal) = leaf.search(meta, key, version)?;
    slot_at(leaf, version, at, equal)
}

/// The slot of entry `at` if that is the key's, once all that was read of the leaf is known to be consistent.
#[inline(always)]
fn slot_at(leaf: &Node, version: u64, at: usize, equal: bool) -> Result<Option<Slot>, Retry> {
    let word = if equal { leaf.slot(leaf.meta(), at) } else { 0 };
    leaf.check(version)?;
    Ok(Slot::from_raw(word))
}

/// What a look-up found.
#[derive(Clone, Copy, Default)]
pub(crate) struct Located<'g> {
    /// The key's slot.
    pub slot: Option<Slot>,
    /// Where in the tree the key is or would be; `None` if that was not to be known.
    pub at: Option<LeafPosition<'g>>,
    /// The slot is not the tree's: the key was sealed, and is a new one to the tree.
    pub is_sealed: bool,
}

/// An entry of a leaf, as it was at one version of the leaf.
#[derive(Clone, Copy)]
pub(crate) struct LeafPosition<'g> {
    tree: &'g Tree,
    leaf: &'g Node,
    version: u64,
    at: u16,
    equal: bool,
}

impl<'g> LeafPosition<'g> {
    /// What [`lock_entry`] gives, if no entry of the leaf was moved since it was looked at. One that left the tree has another
    /// version; but not the leaves of a tree that was replaced as a whole.
    #[inline]
    fn lock(self, view: TreeView<'g>) -> Result<LockedEntry<'g>, Retry> {
        if !std::ptr::eq(self.tree, view.tree) {
            return Err(Retry);
        }
        let lock = self.leaf.lock_slots(self.version)?;
        Ok((lock, self.leaf.meta(), usize::from(self.at), self.equal))
    }
}

/// One key's way down, a level at a time.
#[derive(Clone, Copy)]
struct Descent<'g> {
    node: &'g Node,
    /// The parent, if `node`'s version is still to be read, and its version if so, else `node`'s.
    parent: Option<&'g Node>,
    version: u64,
    /// In a leaf: what of it was asked for.
    loading: Loading,
}

/// What of a leaf is on its way into the cache.
#[derive(Clone, Copy)]
enum Loading {
    Heads,
    /// So many heads are less than the key's.
    Entry(usize),
    Suffix(usize),
}

impl<'g> Descent<'g> {
    /// Goes one level down, to a node that begins to be loaded; or gives the slot, if this is a leaf.
    #[inline(always)]
    fn step(&mut self, view: TreeView<'g>, key: &[u8]) -> Result<Option<Located<'g>>, Retry> {
        if let Some(parent) = self.parent.take() {
            let version = self.node.stable();
            parent.check(self.version)?;
            self.version = version;
        }
        let meta = self.node.meta();
        if meta.is_leaf() {
            self.loading = match self.loading {
                Loading::Heads => Loading::Entry(self.node.prefetch_entry(meta, key)),
                Loading::Entry(at) => {
                    self.node.prefetch_suffix(meta, at);
                    Loading::Suffix(at)
                }
                Loading::Suffix(from) => return self.locate(view, key, from).map(Some),
            };
            return Ok(None);
        }
        let (at, equal) = self.node.search(meta, key, self.version)?;
        let id = self.node.child(meta, at + usize::from(equal));
        let child = view.arena.node(id);
        if id == arena::NULL {
            self.node.check(self.version)?;
            return Ok(Some(Located::default()));
        }
        child.prefetch(GROUP_LINES);
        (self.parent, self.node) = (Some(self.node), child);
        Ok(None)
    }

    /// Finds the key in the leaf that was come to, where `from` heads are less than its.
    #[inline(always)]
    fn locate(&self, view: TreeView<'g>, key: &[u8], from: usize) -> Result<Located<'g>, Retry> {
        let &Descent { node: leaf, version, .. } = self;
        let (at, equal) = leaf.search_from(leaf.meta(), from, key, version)?;
        let slot = slot_at(leaf, version, at, equal)?;
        let at = LeafPosition { tree: view.tree, leaf, version, at: at as u16, equal };
        Ok(Located { slot, at: Some(at), is_sealed: false })
    }
}

/// A leaf that is locked against writers, where in it a key is or would be, and whether it is there.
type LockedEntry<'g> = (SlotLock<'g>, Meta, usize, bool);

/// The leaf of `key`, locked, and the key's place in it; `None` if there is no leaf.
#[inline]
fn lock_entry<'g>(view: TreeView<'g>, key: &[u8]) -> Result<Option<LockedEntry<'g>>, Retry> {
    let Some((leaf, version)) = view.leaf(key)? else { return Ok(None) };
    let meta = leaf.meta();
    let (at, equal) = leaf.search(meta, key, version)?;
    // The lock is had only at the version everything was read at.
    let lock = leaf.lock_slots(version)?;
    Ok(Some((lock, meta, at, equal)))
}

/// Decides on a key that is not there, nor will be as long as `lock` is held, and that is not to be stored.
fn not_stored<R>(lock: SlotLock<'_>, decide: impl FnOnce(Option<Slot>) -> (Decision, R)) -> R {
    let (decision, result) = decide(None);
    assert!(!matches!(decision, Decision::Store(_)), "a key that is not there is not to be stored");
    drop(lock);
    result
}

/// One upsert that holds its leaf's `SLOT` lock.
struct Write<'a> {
    view: TreeView<'a>,
    key: &'a [u8],
    stripe: usize,
    meta: Meta,
    at: usize,
    /// Whether a leaf was planted for it.
    planted: bool,
}

impl Write<'_> {
    fn present<R>(self, lock: SlotLock<'_>, decide: impl FnOnce(Option<Slot>) -> (Decision, R)) -> R {
        let node = lock.node();
        let (decision, result) = decide(Slot::from_raw(node.slot(self.meta, self.at)));
        match decision {
            Decision::Keep => {}
            Decision::Store(slot) => node.store_slot(self.meta, self.at, slot.raw()),
            Decision::Remove => {
                let leaf = LockedLeaf { view: self.view, stripe: self.stripe, lock, meta: self.meta };
                leaf.remove(1 << self.at, self.key);
            }
        }
        result
    }

    fn absent<R>(
        self,
        lock: SlotLock<'_>,
        room: Room,
        decide: impl FnOnce(Option<Slot>) -> (Decision, R),
    ) -> Result<R, IndexFull> {
        let node = lock.node();
        let tail = &self.key[self.meta.prefix()..];
        // Before deciding, since the decision may be in the log already when it comes back.
        let blob = UnlinkedBlob { view: self.view, raw: self.view.blob_for(self.key, tail.len())? };
        let (decision, result) = decide(None);
        if let Decision::Store(slot) = decision {
            let lock = lock.escalate();
            if room == Room::Relayout {
                edit::relayout(&lock, tail.len());
            }
            edit::insert(node, self.at, &Entry { tail, blob: blob.link(), value: slot.raw() });
            drop(lock);
            self.view.tree.count_new_key(self.stripe, self.key.len());
        } else {
            drop(lock);
            // A leaf that another planted is left to him: who reserved memory for one has none for a second.
            if self.planted && self.meta.count() == 0 {
                self.view.unlink_empty(self.key);
            }
        }
        Ok(result)
    }
}

/// A blob that goes again if, by decision or by panic, it is not linked.
struct UnlinkedBlob<'a> {
    view: TreeView<'a>,
    raw: u64,
}

impl UnlinkedBlob<'_> {
    fn link(mut self) -> u64 {
        std::mem::take(&mut self.raw)
    }
}

impl Drop for UnlinkedBlob<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `blob_for`, and taken out by whoever linked it.
        unsafe { self.view.free_blob(self.raw) };
    }
}
