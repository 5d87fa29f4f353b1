//! The shape of one tree: the way down, splits, and nodes that come and go.
//!
//! Owns: the root, the parent-child links and their locking order. Promises: a key's path is found through any
//! concurrent change, or `Retry`. Must not know: slots, decisions.
//!
//! **Ranges.** A node serves the keys from its low fence up to, not including, its high fence; fences are separators
//! of ancestors, and the outermost are infinite. A node's range changes only when the node itself is split. So that
//! this holds under deletes too, leaves that are joined are replaced (`tree/join.rs`), and an empty node is unlinked by leaving `NULL` in its parent for its range (neighbouring
//! `NULL`s merge); nobody's fences, and so nobody's prefix, widen. A key that comes to a `NULL` gets a new leaf
//! planted there, under single-child nodes if need be, so that all leaves are on level 0. A root without children becomes a leaf itself: only a tree that never had a key has no node.
//!
//! **Locks** are taken from parent to child, each by a version read before the parent's was checked: if it can be
//! taken, the child is still the parent's child, with the fences found on the way. The root's range is all keys, and
//! the root id is written only by the holder of the lock of the node it names (or from `NULL`, by compare-exchange);
//! readers compare the id again after reading the root's version, which a root split steps after writing the id.
#![allow(unsafe_code)]

mod invariants;
mod join;

use super::arena::{Budget, IndexFull, NODE_BYTES, NULL, NodeArena};
use super::blob;
use super::edit::{self, Entry, Items, Room};
use super::longest::LongestKeys;
use super::node::{Node, NodeLock, Retry, SUFFIX_MAX, SlotLock, spills};
use super::stored_key;
use crate::epoch::{Epoch, Garbage};
use crate::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, Backoff};

const STRIPES: usize = 8;

/// A counter's part, on cache lines of its own.
#[repr(align(128))]
struct Stripe(AtomicI64);

/// A root and its counters. Replaced as a whole by root swaps.
pub(super) struct Tree {
    root: AtomicU32,
    nodes: AtomicU64,
    /// [`LongestKeys`] of those there are.
    longest: AtomicU64,
    /// Bytes of the longest separator there ever was: one can be longer than every key, for it may be of a key that did not come in.
    separator_max: AtomicU64,
    blob_bytes: AtomicI64,
    keys: [Stripe; STRIPES],
}

impl Tree {
    pub(super) fn new(
        root: u32,
        nodes: u64,
        keys: u64,
        longest: LongestKeys,
        separator_max: usize,
        blob_bytes: u64,
    ) -> Tree {
        let tree = Tree {
            root: AtomicU32::new(root),
            nodes: AtomicU64::new(nodes),
            longest: AtomicU64::new(longest.raw()),
            separator_max: AtomicU64::new(separator_max as u64),
            blob_bytes: AtomicI64::new(blob_bytes as i64),
            keys: [const { Stripe(AtomicI64::new(0)) }; STRIPES],
        };
        tree.keys[0].0.store(keys as i64, Ordering::Relaxed);
        tree
    }

    /// Counts a new key of `len` bytes.
    pub(super) fn count_new_key(&self, stripe: usize, len: usize) {
        self.count_keys(stripe, 1);
        self.update_longest(|longest| longest.with(len));
    }

    /// Counts so many keys out, the longest of which has `len` bytes.
    pub(super) fn count_removed_keys(&self, stripe: usize, keys: u32, len: usize) {
        self.count_keys(stripe, -i64::from(keys));
        self.update_longest(|longest| longest.without(len));
    }

    #[inline]
    fn update_longest(&self, change: impl Fn(LongestKeys) -> LongestKeys) {
        let changed = |raw: u64| Some(change(LongestKeys::from_raw(raw)).raw()).filter(|&new| new != raw);
        // Hardly ever a change: who only looks does not take the line from others.
        if changed(self.longest.load(Ordering::Relaxed)).is_some() {
            let _ = self.longest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        }
    }

    /// Counts a new separator of `len` bytes.
    fn count_separator(&self, len: usize) {
        if self.separator_max.load(Ordering::Relaxed) < len as u64 {
            self.separator_max.fetch_max(len as u64, Ordering::Relaxed);
        }
    }

    fn longest(&self) -> LongestKeys {
        LongestKeys::from_raw(self.longest.load(Ordering::Acquire))
    }

    fn count_keys(&self, stripe: usize, by: i64) {
        self.keys[stripe % STRIPES].0.fetch_add(by, Ordering::Relaxed);
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        let blobs = self.blob_bytes.load(Ordering::Relaxed).max(0) as u64;
        self.nodes.load(Ordering::Relaxed) * NODE_BYTES + blobs
    }

    /// Records that a blob for a key of `len` bytes was linked (`by` 1) or unlinked (-1).
    pub(super) fn count_blob(&self, len: usize, by: i64) {
        self.blob_bytes.fetch_add(blob::cost(len) as i64 * by, Ordering::Relaxed);
    }

    /// Frees all nodes and blobs.
    ///
    /// # Safety
    /// Nobody uses the tree now or later.
    pub(super) unsafe fn free(&self, arena: &NodeArena) {
        let mut all = usize::MAX;
        // SAFETY: by the contract above.
        unsafe { self.parts().free(arena, &mut all) };
    }

    /// All of its nodes and blobs, to be freed.
    pub(super) fn parts(&self) -> TreeParts {
        // If nothing can be in a blob, leaves need not be looked into.
        let separator_max = self.separator_max.load(Ordering::Acquire) as usize;
        let spilled = spills(self.longest().longest().max(separator_max));
        let root = self.root.load(Ordering::Acquire);
        TreeParts { nodes: if root == NULL { Vec::new() } else { vec![root] }, spilled }
    }
}

/// What is not freed yet of a tree that nobody uses any more.
pub(super) struct TreeParts {
    /// With all that is below them.
    nodes: Vec<u32>,
    /// Keys may be in blobs.
    spilled: bool,
}

impl TreeParts {
    /// Frees so many nodes and blobs, and what else the last node has of either (above leaves without blobs: those leaves), and takes them off `parts`. Whether any
    /// are left.
    ///
    /// # Safety
    /// Nobody uses the tree now or later; its nodes are in `arena`, and are freed by this alone.
    pub(super) unsafe fn free(&mut self, arena: &NodeArena, parts: &mut usize) -> bool {
        while *parts > 0
            && let Some(id) = self.nodes.pop()
        {
            let node = arena.node(id);
            let meta = node.meta();
            let mut freed = 1;
            if self.spilled {
                for i in 0..meta.count() {
                    let ext = node.ext(meta, i);
                    if ext.spilled() {
                        // SAFETY: linked blobs are allocated and linked once; nobody else is left to use it.
                        unsafe { blob::free(arena, node.blob(ext)) };
                        freed += 1;
                    }
                }
            }
            let children = (0..=meta.count()).map(|i| node.child(meta, i)).filter(|id| *id != NULL);
            match meta.level() {
                0 => {}
                1 if !self.spilled => {
                    for id in children {
                        arena.release(id);
                        freed += 1;
                    }
                }
                _ => self.nodes.extend(children),
            }
            arena.release(id);
            *parts = parts.saturating_sub(freed);
        }
        !self.nodes.is_empty()
    }
}

struct RetiredNode {
    arena: Arc<NodeArena>,
    id: u32,
}

impl Garbage for RetiredNode {
    fn free(self: Box<Self>, _: &mut usize) -> Option<Box<dyn Garbage>> {
        self.arena.release(self.id);
        None
    }
}

/// Bytes that two fences share; an infinite one shares none.
fn shared(low: Option<&[u8]>, high: Option<&[u8]>) -> usize {
    match (low, high) {
        (Some(low), Some(high)) => common_prefix(low, high),
        _ => 0,
    }
}

/// Bytes that `a` and `b` begin with alike.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Why a structural change did not happen.
enum Obstacle {
    Retry,
    Full(IndexFull),
    /// The parent, on this level, must be split first.
    Parent(usize),
}

impl From<Retry> for Obstacle {
    fn from(_: Retry) -> Obstacle {
        Obstacle::Retry
    }
}

impl From<IndexFull> for Obstacle {
    fn from(full: IndexFull) -> Obstacle {
        Obstacle::Full(full)
    }
}

/// A tree as seen under a guard.
#[derive(Clone, Copy)]
pub(super) struct TreeView<'g> {
    pub(super) arena: &'g Arc<NodeArena>,
    pub(super) epoch: &'g Epoch,
    pub(super) tree: &'g Tree,
    /// What a change takes its memory from.
    pub(super) budget: Budget<'g>,
}

/// A node on a key's path, and what leads to it.
struct PathNode<'g> {
    /// The parent, its version, and which child of it; `None` for the root.
    parent: Option<(&'g Node, u64, usize)>,
    id: u32,
    /// The node and its version; `None` for `NULL`.
    node: Option<(&'g Node, u64)>,
    level: usize,
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
    /// The low fence of the parent.
    outer_low: Option<Vec<u8>>,
}

impl<'g> TreeView<'g> {
    /// The root's id, the root and its version; `None` if the tree is empty.
    #[inline]
    pub(super) fn enter(&self) -> Result<Option<(u32, &'g Node, u64)>, Retry> {
        let id = self.tree.root.load(Ordering::Acquire);
        if id == NULL {
            return Ok(None);
        }
        let node = self.arena.node(id);
        let version = node.stable();
        if self.tree.root.load(Ordering::Acquire) == id { Ok(Some((id, node, version))) } else { Err(Retry) }
    }

    /// Levels of the tree.
    fn height(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            match self.enter() {
                Ok(None) => return 0,
                Ok(Some((_, root, version))) => {
                    let level = root.meta().level();
                    if root.check(version).is_ok() {
                        return level as u64 + 1;
                    }
                }
                Err(Retry) => {}
            }
            backoff.wait();
        }
    }

    /// Bytes that new keys of so many bytes each take at most, whatever nodes they split.
    ///
    /// **Nodes.** A key splits at most one node of each level, since either part of a node that is split has room for any entry; or
    /// it plants one of each level at most. Above the root there come fewer new nodes than keys: each of them has two children
    /// at least, and those of the lowest new level are the parts that the root was split into.
    /// **Blobs.** A key that may spill has one of its own, and each node may come with a separator in another: one that there was, or
    /// one between two keys of the tree or of these.
    pub(super) fn bytes_for(&self, lens: impl IntoIterator<Item = usize>) -> u64 {
        let (mut keys, mut blobs, mut longest) = (0u64, 0, self.tree.longest());
        for len in lens {
            keys += 1;
            blobs += if spills(len) { blob::cost(len) } else { 0 };
            longest = longest.with(len);
        }
        let separator_max = self.tree.separator_max.load(Ordering::Relaxed) as usize;
        let separator_max = longest.separator_max().max(separator_max);
        let node = NODE_BYTES + if spills(separator_max) { blob::cost(separator_max) } else { 0 };
        let height = if keys == 0 { 0 } else { self.height().max(1) + 1 };
        keys.saturating_mul(height).saturating_mul(node).saturating_add(blobs)
    }

    /// The leaf of `key` and its version; `None` if its range has no leaf.
    #[inline]
    pub(super) fn leaf(&self, key: &[u8]) -> Result<Option<(&'g Node, u64)>, Retry> {
        let Some((_, mut node, mut version)) = self.enter()? else { return Ok(None) };
        loop {
            let meta = node.meta();
            if meta.is_leaf() {
                return Ok(Some((node, version)));
            }
            let (at, equal) = node.search(meta, key, version)?;
            let id = node.child(meta, at + usize::from(equal));
            let child = self.arena.node(id);
            child.prefetch(super::PREFETCH_LINES);
            if id == NULL {
                node.check(version)?;
                return Ok(None);
            }
            // The child's version first: if the parent is unchanged after that, the child was its child with it.
            let child_version = child.stable();
            node.check(version)?;
            (node, version) = (child, child_version);
        }
    }

    /// Starts loading the leaf of `key`, if nobody is in the way of finding it.
    pub(super) fn prefetch_leaf(&self, key: &[u8]) {
        let Ok(Some((_, mut node, mut version))) = self.enter() else { return };
        loop {
            let meta = node.meta();
            if meta.is_leaf() {
                return;
            }
            let Ok((at, equal)) = node.search(meta, key, version) else { return };
            let id = node.child(meta, at + usize::from(equal));
            if id == NULL || node.check(version).is_err() {
                return;
            }
            let child = self.arena.node(id);
            if meta.level() == 1 {
                return child.prefetch(super::PREFETCH_LINES);
            }
            (node, version) = (child, child.stable());
        }
    }

    /// The node on `level` on the path of `key`, or the `NULL` where the path ends above it.
    fn place(&self, key: &[u8], level: usize) -> Result<Option<PathNode<'g>>, Retry> {
        let Some((id, mut node, mut version)) = self.enter()? else { return Ok(None) };
        let mut place =
            PathNode { parent: None, id, node: None, level: 0, low: None, high: None, outer_low: None };
        loop {
            let meta = node.meta();
            place.level = meta.level();
            if meta.level() <= level {
                node.check(version)?;
                place.node = Some((node, version));
                return Ok(Some(place));
            }
            let (at, equal) = node.search(meta, key, version)?;
            let at = at + usize::from(equal);
            let prefix = key.get(..meta.prefix()).ok_or(Retry)?;
            let fence = |i: usize| -> Result<Vec<u8>, Retry> {
                let mut fence = prefix.to_vec();
                node.append_tail(meta, i, version, &mut fence)?;
                Ok(fence)
            };
            place.outer_low.clone_from(&place.low);
            if at > 0 {
                place.low = Some(fence(at - 1)?);
            }
            if at < meta.count() {
                place.high = Some(fence(at)?);
            }
            let id = node.child(meta, at);
            (place.parent, place.id) = (Some((node, version, at)), id);
            if id == NULL {
                node.check(version)?;
                place.level = meta.level() - 1;
                return Ok(Some(place));
            }
            let child = self.arena.node(id);
            let child_version = child.stable();
            node.check(version)?;
            (node, version) = (child, child_version);
        }
    }

    fn allocate(&self) -> Result<u32, IndexFull> {
        let id = self.arena.allocate(self.budget)?;
        self.arena.node(id).revive();
        self.tree.nodes.fetch_add(1, Ordering::Relaxed);
        Ok(id)
    }

    /// Takes back a node that never was reachable.
    fn unallocate(&self, id: u32) {
        self.tree.nodes.fetch_sub(1, Ordering::Relaxed);
        self.arena.release(id);
    }

    /// Gives an unlinked node back once its readers are gone. Its lock has been let go of, which has stepped its version: enough to turn those away who come late, for
    /// they find it, or the parent, changed. Nor is the parent locked: whoever hands garbage over may free some of others first.
    fn retire(&self, id: u32) {
        self.tree.nodes.fetch_sub(1, Ordering::Relaxed);
        self.epoch.defer(Box::new(RetiredNode { arena: self.arena.clone(), id }));
    }

    /// Gives an unlinked blob back once its readers are gone; 0 is none.
    ///
    /// # Safety
    /// It was linked in this tree, this caller unlinked it, and gives it back once.
    pub(super) unsafe fn retire_blob(&self, raw: u64) {
        if raw != 0 {
            // SAFETY: until now it was linked, and our guard is older than the epoch that will free it: readers have one of the same.
            unsafe {
                self.tree.count_blob(stored_key::key(raw).len(), -1);
                blob::retire(self.arena, self.epoch, raw);
            }
        }
    }

    /// Frees a blob that was never linked; 0 is none.
    ///
    /// # Safety
    /// [`TreeView::blob_for`] gave it, and nobody but the caller ever knew it.
    pub(super) unsafe fn free_blob(&self, raw: u64) {
        if raw != 0 {
            // SAFETY: by the contract above.
            unsafe {
                self.tree.count_blob(stored_key::key(raw).len(), -1);
                blob::free(self.arena, raw);
            }
        }
    }

    /// A blob for `key` if it is too long for a node where it has `len` bytes after the prefix; else 0.
    pub(super) fn blob_for(&self, key: &[u8], len: usize) -> Result<u64, IndexFull> {
        if !spills(len) {
            return Ok(0);
        }
        let raw = blob::allocate(self.arena, key, self.budget)?;
        self.tree.count_blob(key.len(), 1);
        Ok(raw)
    }

    /// Locks the node above the `NULL` in which the path of `key` ends: nobody plants a leaf there meanwhile. `None` of an empty tree.
    pub(super) fn hold_absent(&self, key: &[u8]) -> Result<Option<SlotLock<'g>>, Retry> {
        let Some(place) = self.place(key, 0)? else { return Ok(None) };
        match (place.node, place.parent) {
            (None, Some((parent, version, _))) => Ok(Some(parent.lock_slots(version)?)),
            // A leaf was planted since.
            _ => Err(Retry),
        }
    }

    /// Plants an empty leaf where the path of `key` ends in `NULL`.
    #[cold]
    pub(super) fn plant(&self, key: &[u8]) -> Result<(), IndexFull> {
        let mut backoff = Backoff::new();
        loop {
            match self.try_plant(key) {
                Ok(()) => return Ok(()),
                Err(Obstacle::Full(full)) => return Err(full),
                Err(_) => backoff.wait(),
            }
        }
    }

    fn try_plant(&self, key: &[u8]) -> Result<(), Obstacle> {
        let Some(place) = self.place(key, 0)? else {
            let id = self.allocate()?;
            edit::pack(self.arena.node(id), 0, 0, NULL, 0, None, |_| unreachable!("no entries"));
            if self.tree.root.compare_exchange(NULL, id, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                self.unallocate(id);
            }
            return Ok(());
        };
        let (None, Some((parent, version, at))) = (place.node, place.parent) else { return Ok(()) };
        let lock = parent.lock(version)?;
        let prefix = shared(place.low.as_deref(), place.high.as_deref());
        let mut top = NULL;
        for level in 0..=place.level {
            let id = match self.allocate() {
                Ok(id) => id,
                Err(full) => {
                    self.unplant(top);
                    lock.unchanged();
                    return Err(full.into());
                }
            };
            edit::pack(self.arena.node(id), level, prefix, top, 0, None, |_| unreachable!("no entries"));
            top = id;
        }
        parent.write_half(Node::child_at(parent.meta(), at), top);
        Ok(())
    }

    /// Takes back a chain of single-child nodes that never was reachable.
    fn unplant(&self, mut top: u32) {
        while top != NULL {
            let node = self.arena.node(top);
            let meta = node.meta();
            let below = if meta.is_leaf() { NULL } else { node.child(meta, 0) };
            self.unallocate(top);
            top = below;
        }
    }

    /// Splits the node on `level` on the path of `key`, unless it has room for another entry by now.
    #[cold]
    pub(super) fn split(&self, key: &[u8], level: usize) -> Result<(), IndexFull> {
        let mut backoff = Backoff::new();
        loop {
            match self.try_split(key, level) {
                Ok(()) => return Ok(()),
                Err(Obstacle::Full(full)) => return Err(full),
                Err(Obstacle::Parent(level)) => self.split(key, level)?,
                Err(Obstacle::Retry) => backoff.wait(),
            }
        }
    }

    fn try_split(&self, key: &[u8], level: usize) -> Result<(), Obstacle> {
        let Some(place) = self.place(key, level)? else { return Ok(()) };
        let Some((node, version)) = place.node else { return Ok(()) };
        let parent = match place.parent {
            Some((parent, version, at)) => Some((parent.lock(version)?, at)),
            None => None,
        };
        let lock = match node.lock(version) {
            Ok(lock) => lock,
            Err(retry) => {
                unlock_unchanged(parent.map(|(lock, _)| lock), None);
                return Err(retry.into());
            }
        };
        let meta = node.meta();
        let need = if meta.is_leaf() { key.len() - meta.prefix() } else { 8 + SUFFIX_MAX };
        if edit::room(meta, need) != Room::Split {
            unlock_unchanged(parent.map(|(lock, _)| lock), Some(lock));
            return Ok(());
        }
        if parent.is_none() && self.tree.root.load(Ordering::Acquire) != place.id {
            lock.unchanged();
            return Err(Obstacle::Retry);
        }
        let items = Items::unpack(&lock);
        let cut = Cut::choose(&items, &lock, key, &place)?;
        match self.carry_out(&place, parent.as_ref().map(|(lock, at)| (lock, *at)), node, &items, &cut) {
            Ok(()) => Ok(()),
            Err(obstacle) => {
                unlock_unchanged(parent.map(|(lock, _)| lock), Some(lock));
                Err(obstacle)
            }
        }
    }

    /// Splits `node` at `cut`; all locks are held. Changes nothing if there is an obstacle.
    fn carry_out(
        &self,
        place: &PathNode<'g>,
        parent: Option<(&NodeLock<'_>, usize)>,
        node: &Node,
        items: &Items<'_>,
        cut: &Cut,
    ) -> Result<(), Obstacle> {
        let parent_prefix = parent.map_or(0, |(parent, _)| parent.node.meta().prefix());
        let tail = &cut.separator[parent_prefix..];
        let entry_len = if cut.blob == 0 { tail.len() } else { 8 + SUFFIX_MAX + 1 };
        if let Some((parent, _)) = parent
            && edit::room(parent.node.meta(), entry_len) == Room::Split
        {
            return Err(Obstacle::Parent(parent.node.meta().level()));
        }
        let right = self.allocate()?;
        let new_root = match parent {
            Some(_) => NULL,
            None => self.allocate().inspect_err(|_| self.unallocate(right))?,
        };
        let blob = if cut.blob != 0 { Ok(cut.blob) } else { self.blob_for(&cut.separator, tail.len()) };
        let blob = blob.inspect_err(|_| {
            self.unallocate(right);
            if new_root != NULL {
                self.unallocate(new_root);
            }
        })?;
        let (left_prefix, right_prefix) = (
            shared(place.low.as_deref(), Some(&cut.separator)),
            shared(Some(&cut.separator), place.high.as_deref()),
        );
        let (left_fits, right_fits) = (
            items.pack(
                self.arena.node(right),
                cut.right..items.count,
                right_prefix,
                cut.right_first_child,
                None,
            ),
            items.pack(node, 0..cut.left, left_prefix, items.first_child, None),
        );
        assert!(left_fits && right_fits, "a part fits where the whole did");
        self.tree.count_separator(cut.separator.len());
        let entry = Entry { tail, blob, value: u64::from(right) };
        match parent {
            Some((parent, at)) => {
                if edit::room(parent.node.meta(), entry_len) == Room::Relayout {
                    edit::relayout(parent, entry_len);
                }
                edit::insert(parent.node, at, &entry);
            }
            None => {
                edit::pack(self.arena.node(new_root), items.level + 1, 0, place.id, 1, None, |_| entry);
                self.tree.root.store(new_root, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Unlinks the leaf of `key` if it is empty, and every node above it that this leaves empty.
    #[cold]
    pub(super) fn unlink_empty(&self, key: &[u8]) {
        let mut backoff = Backoff::new();
        let mut level = 0;
        loop {
            match self.try_unlink(key, level) {
                Ok(true) => level += 1,
                Ok(false) => return,
                Err(Retry) => backoff.wait(),
            }
        }
    }

    /// Unlinks the node on `level` if it is empty; whether its parent may be empty now.
    fn try_unlink(&self, key: &[u8], level: usize) -> Result<bool, Retry> {
        let Some(place) = self.place(key, level)? else { return Ok(false) };
        let Some((node, version)) = place.node else { return Ok(false) };
        if place.level != level || !is_empty(node) {
            node.check(version)?;
            return Ok(false);
        }
        let Some((parent, parent_version, at)) = place.parent else {
            // An empty root leaf may stay, and an empty inner root becomes one: a tree that had a key has something that can be locked, however full the index is.
            if level > 0 {
                let lock = node.lock(version)?;
                if self.tree.root.load(Ordering::Acquire) != place.id {
                    lock.unchanged();
                    return Err(Retry);
                }
                edit::pack(node, 0, 0, NULL, 0, None, |_| unreachable!("no entries"));
                drop(lock);
            }
            return Ok(false);
        };
        let parent_lock = parent.lock(parent_version)?;
        let lock = match node.lock(version) {
            Ok(lock) => lock,
            Err(retry) => {
                parent_lock.unchanged();
                return Err(retry);
            }
        };
        let meta = parent.meta();
        parent.write_half(Node::child_at(meta, at), NULL);
        let mut blobs = [0; 2];
        if at < meta.count() && parent.child(meta, at + 1) == NULL {
            blobs[0] = edit::remove_separator(parent, at);
        }
        if at > 0 && parent.child(meta, at - 1) == NULL {
            blobs[1] = edit::remove_separator(parent, at - 1);
        }
        let parent_empty = is_empty(parent);
        drop((lock, parent_lock));
        self.retire(place.id);
        for raw in blobs {
            // SAFETY: the parent led to it until it was removed, under its lock.
            unsafe { self.retire_blob(raw) };
        }
        Ok(parent_empty)
    }
}

/// Whether a node has neither entries nor children.
fn is_empty(node: &Node) -> bool {
    let meta = node.meta();
    meta.count() == 0 && (meta.is_leaf() || node.child(meta, 0) == NULL)
}

fn unlock_unchanged(parent: Option<NodeLock<'_>>, node: Option<NodeLock<'_>>) {
    for lock in [node, parent].into_iter().flatten() {
        lock.unchanged();
    }
}

/// Where a full node is cut in two.
struct Cut {
    /// Entries that stay, and the first that goes right; a separator between them goes up.
    left: usize,
    right: usize,
    right_first_child: u32,
    /// The whole key that separates the two.
    separator: Vec<u8>,
    /// The blob of the separator if it moves up with one, else 0.
    blob: u64,
}

impl Cut {
    fn choose(
        items: &Items<'_>,
        lock: &NodeLock<'_>,
        key: &[u8],
        place: &PathNode<'_>,
    ) -> Result<Cut, Retry> {
        let (at, _) = lock.node.search(lock.node.meta(), key, lock.version())?;
        if items.level == 0 { Cut::leaf(items, at, key, place) } else { Cut::inner(items, at, key) }
    }

    /// A leaf is cut where the separator is shortest, near the middle; near an end if keys come in order there.
    fn leaf(items: &Items<'_>, at: usize, key: &[u8], place: &PathNode<'_>) -> Result<Cut, Retry> {
        let count = items.count;
        let few = (count / 10).max(1);
        let between = |i: usize| common_prefix(items.tail(i - 1), items.tail(i));
        let (cut, last) = if at == count && place.high.is_none() {
            // Ascending keys at the right edge: this leaf stays as full as it is.
            (count, common_prefix(items.tail(count - 1), &key[items.prefix..]))
        } else {
            let cut = match at {
                _ if at == count => count - few,
                0 => few,
                _ => (count * 7 / 16..=count * 9 / 16)
                    .filter(|i| (1..count).contains(i))
                    .min_by_key(|i| between(*i))
                    .unwrap_or(1),
            };
            (cut, between(cut))
        };
        let tail = if cut == count { &key[items.prefix..] } else { items.tail(cut) };
        let separator = [&key[..items.prefix], &tail[..last + 1]].concat();
        Ok(Cut { left: cut, right: cut, right_first_child: NULL, separator, blob: 0 })
    }

    /// An inner node gives its shortest separator near the middle to its parent.
    fn inner(items: &Items<'_>, at: usize, key: &[u8]) -> Result<Cut, Retry> {
        let count = items.count;
        let few = (count / 10).max(1);
        let cut = match at {
            _ if at == count => count - 1 - few,
            0 => few,
            _ => (count * 7 / 16..=count * 9 / 16).min_by_key(|i| items.tail(*i).len()).unwrap_or(1),
        };
        let cut = cut.clamp(1, count - 2);
        let separator = [&key[..items.prefix], items.tail(cut)].concat();
        let right_first_child = items.value(cut) as u32;
        Ok(Cut { left: cut, right: cut + 1, right_first_child, separator, blob: items.blob(cut) })
    }
}
