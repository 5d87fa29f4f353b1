//! Bulk building: a tree from keys that come in order.
//!
//! Owns: packing nodes full, level by level. Promises: the same tree as inserting the keys one by one, but packed to
//! the fill asked for and without a search per key. Several threads can each gather the leaves of a range of keys, which
//! are then joined. Must not know: where the keys come from.
#![allow(unsafe_code)]

use super::arena::{Budget, IndexFull, NULL, NodeArena};
use super::edit::{self, Entry};
use super::longest::LongestKeys;
use super::node::{HALVES, Meta, SPILL_HALVES, spills, suffix_halves};
use super::tree::{Tree, common_prefix};
use super::{Index, Slot, blob};
use crate::epoch::Epoch;
use crate::sync::Arc;

/// More entries than a leaf holds are never gathered.
const GATHER_MAX: usize = 63;

/// Builds an [`Index`] from strictly ascending keys. Dropped unfinished, it gives back all it took.
pub(crate) struct IndexBuilder {
    arena: Arc<NodeArena>,
    is_beyond_budget: bool,
    epoch: Arc<Epoch>,
    /// Halves a leaf is filled to.
    fill: usize,
    keys: u64,
    nodes: u64,
    blob_bytes: u64,
    longest: LongestKeys,
    /// Bytes of the longest separator.
    separator_max: usize,
    /// The keys of the leaf being gathered, end to end.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    slots: Vec<Slot>,
    /// The low fence of the leaf being gathered; `None` for the first.
    low: Option<Vec<u8>>,
    /// The high fence of the last leaf there will be; `None` for no bound.
    end: Option<Vec<u8>>,
    /// Halves the gathered keys take in a leaf with a prefix of `prefix` bytes.
    prefix: usize,
    halves: usize,
    /// The nodes of the level last built, and how many of them have got a parent.
    below: Level,
    adopted: usize,
    /// The nodes of the level being built on top of it.
    above: Level,
}

/// Nodes of one level from left to right, and the separators between them.
#[derive(Default)]
struct Level {
    ids: Vec<u32>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Level {
    /// The separator between nodes `i` and `i + 1`.
    fn separator(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }

    fn push_separator(&mut self, separator: &[u8]) {
        self.bytes.extend_from_slice(separator);
        self.ends.push(self.bytes.len());
    }

    /// Adds a range without a node, up to the fence `high`.
    fn push_empty(&mut self, high: Option<&[u8]>) {
        self.ids.push(NULL);
        if let Some(high) = high {
            self.push_separator(high);
        }
    }

    /// Takes the last range, which has no node, and the fence behind it away.
    fn pop_empty(&mut self) {
        self.ids.pop();
        self.ends.pop();
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// Adds what is to the right; the separator before it is here already.
    fn append(&mut self, right: &mut Level) {
        let before = self.bytes.len();
        self.ids.append(&mut right.ids);
        self.bytes.append(&mut right.bytes);
        self.ends.extend(right.ends.drain(..).map(|end| before + end));
    }
}

/// What comes after the keys gathered for a leaf.
#[derive(Clone, Copy)]
enum After<'k> {
    Key(&'k [u8]),
    /// The end of the builder's range.
    Fence(Option<&'k [u8]>),
}

impl IndexBuilder {
    /// A builder whose nodes are filled to `fill_percent` (50 to 100) of what they hold.
    pub(crate) fn new(arena: Arc<NodeArena>, epoch: Arc<Epoch>, fill_percent: u32) -> IndexBuilder {
        let fill = HALVES * fill_percent.clamp(50, 100) as usize / 100;
        IndexBuilder {
            arena,
            epoch,
            fill,
            is_beyond_budget: false,
            keys: 0,
            nodes: 0,
            blob_bytes: 0,
            longest: LongestKeys::default(),
            separator_max: 0,
            bytes: Vec::new(),
            ends: Vec::new(),
            slots: Vec::new(),
            low: None,
            end: None,
            prefix: 0,
            halves: 0,
            below: Level::default(),
            adopted: 0,
            above: Level::default(),
        }
    }

    /// The same for what is there already, with which the budget may be exceeded.
    #[must_use]
    pub(crate) fn beyond_budget(mut self) -> IndexBuilder {
        self.is_beyond_budget = true;
        self
    }

    /// The same for the keys from `low` on and below `end`, to be [joined](IndexBuilder::join) with the others.
    #[must_use]
    pub(crate) fn between(mut self, low: Option<Vec<u8>>, end: Option<Vec<u8>>) -> IndexBuilder {
        self.prefix = low.as_ref().map_or(0, Vec::len);
        (self.low, self.end) = (low, end);
        self
    }

    /// Adds a key greater than all before it.
    ///
    /// # Errors
    /// `IndexFull` when the budget is used up.
    ///
    /// # Panics
    /// If the key is not greater than the last.
    #[inline]
    pub(crate) fn push(&mut self, key: &[u8], slot: Slot) -> Result<(), IndexFull> {
        if let Some(last) = self.last() {
            assert!(last < key, "keys must ascend strictly");
        }
        let prefix = match self.low.as_deref().map(|low| &low[..self.prefix]) {
            None => 0,
            Some(prefix) if key.starts_with(prefix) => prefix.len(),
            Some(prefix) => common_prefix(prefix, key),
        };
        let mut halves = self.halves + entry_halves(key.len() - prefix);
        if prefix < self.prefix {
            halves = (0..self.slots.len()).map(|i| entry_halves(self.key(i).len() - prefix)).sum::<usize>()
                + entry_halves(key.len() - prefix);
        }
        if self.slots.len() == GATHER_MAX
            || halves + Meta::fixed_halves(0, 0) > self.fill && !self.slots.is_empty()
        {
            self.flush(After::Key(key))?;
            return self.push(key, slot);
        }
        (self.prefix, self.halves) = (prefix, halves);
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
        self.slots.push(slot);
        self.keys += 1;
        self.longest = self.longest.with(key.len());
        Ok(())
    }

    /// The leaves of this builder, then those of `next`, whose keys begin where this one's end.
    ///
    /// # Errors
    /// `IndexFull` when the budget is used up.
    ///
    /// # Panics
    /// If this one's range has no end, or `next` builds in another arena or epoch.
    pub(crate) fn join(mut self, mut next: IndexBuilder) -> Result<IndexBuilder, IndexFull> {
        assert!(
            Arc::ptr_eq(&self.arena, &next.arena) && Arc::ptr_eq(&self.epoch, &next.epoch),
            "ranges of one arena and epoch"
        );
        let fence = self.end.take().expect("a range with an end");
        let end = next.end.take();
        if next.keys == 0 && (self.keys == 0 || !self.slots.is_empty()) {
            // The last leaf, which is not made yet, serves the empty range as well.
            self.end = end;
            return Ok(self);
        }
        self.gather_rest(Some(&fence))?;
        next.gather_rest(end.as_deref())?;
        // Beside a range without a node it becomes part of that.
        if self.keys == 0 && next.below.ids.first() != Some(&NULL) {
            self.below.push_empty(Some(&fence));
        } else if next.keys == 0 {
            if self.below.ids.last() == Some(&NULL) {
                self.below.pop_empty();
            }
            self.below.push_empty(end.as_deref());
        }
        self.below.append(&mut next.below);
        self.end = end;
        self.low = next.low.take();
        self.keys += next.keys;
        self.nodes += next.nodes;
        self.blob_bytes += next.blob_bytes;
        self.longest = self.longest.joined(next.longest);
        self.separator_max = self.separator_max.max(next.separator_max);
        Ok(self)
    }

    /// The tree of all keys pushed.
    ///
    /// # Errors
    /// `IndexFull` when the budget is used up.
    pub(crate) fn finish(self) -> Result<Index, IndexFull> {
        self.finish_or(NULL)
    }

    /// [`IndexBuilder::finish`]; of no keys it is a tree with an empty leaf.
    ///
    /// # Errors
    /// As [`IndexBuilder::finish`].
    pub(crate) fn finish_with_leaf(mut self) -> Result<Index, IndexFull> {
        if self.keys > 0 {
            return self.finish();
        }
        let leaf = self.allocate()?;
        edit::pack(self.arena.node(leaf), 0, 0, NULL, 0, None, |_| unreachable!("no entries"));
        self.finish_or(leaf)
    }

    /// The tree, with `empty` as its root if there is no key.
    fn finish_or(mut self, empty: u32) -> Result<Index, IndexFull> {
        self.gather_rest(None)?;
        let mut level = 0;
        while self.below.ids.len() > 1 {
            level += 1;
            while self.adopted < self.below.ids.len() {
                self.build_inner(level)?;
            }
            self.below = std::mem::take(&mut self.above);
            self.adopted = 0;
        }
        let root = self.below.ids.pop().filter(|root| *root != NULL).unwrap_or(empty);
        let tree = Tree::new(root, self.nodes, self.keys, self.longest, self.separator_max, self.blob_bytes);
        Ok(Index::with_tree(self.arena.clone(), self.epoch.clone(), tree))
    }

    /// Makes leaves of all keys gathered; `fence` is the high fence of the last.
    fn gather_rest(&mut self, fence: Option<&[u8]>) -> Result<(), IndexFull> {
        while !self.slots.is_empty() {
            self.flush(After::Fence(fence))?;
        }
        Ok(())
    }

    fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start..self.ends[i]]
    }

    fn last(&self) -> Option<&[u8]> {
        self.slots.len().checked_sub(1).map(|last| self.key(last))
    }

    fn budget(&self) -> Budget<'static> {
        if self.is_beyond_budget { Budget::Beyond } else { Budget::Writes }
    }

    fn allocate(&mut self) -> Result<u32, IndexFull> {
        let id = self.arena.allocate(self.budget())?;
        self.arena.node(id).revive();
        self.nodes += 1;
        Ok(id)
    }

    /// Makes a leaf of the gathered keys, or of the first of them if not all fit.
    fn flush(&mut self, next: After<'_>) -> Result<(), IndexFull> {
        let id = self.allocate()?;
        let mut count = self.slots.len();
        let high = loop {
            let after = if count < self.slots.len() { After::Key(self.key(count)) } else { next };
            let high = match after {
                After::Key(key) => Some(key[..common_prefix(self.key(count - 1), key) + 1].to_vec()),
                After::Fence(fence) => fence.map(<[u8]>::to_vec),
            };
            let prefix = match (&self.low, &high) {
                (Some(low), Some(high)) => common_prefix(low, high),
                _ => 0,
            };
            match self.pack_leaf(id, prefix, count) {
                Ok(true) => break high,
                // A fence that shares less than the keys do: fewer keys, longer.
                Ok(false) => count -= (count / 16).max(1),
                Err(full) => {
                    self.nodes -= 1;
                    self.arena.release(id);
                    return Err(full);
                }
            }
        };
        self.below.ids.push(id);
        if let Some(high) = &high {
            self.below.push_separator(high);
        }
        let taken = self.ends[count - 1];
        self.bytes.drain(..taken);
        self.slots.drain(..count);
        self.ends.drain(..count);
        self.ends.iter_mut().for_each(|end| *end -= taken);
        self.low = high;
        self.prefix = match (self.low.as_deref(), self.last()) {
            (Some(low), Some(last)) => common_prefix(low, last),
            (Some(low), None) => low.len(),
            (None, _) => 0,
        };
        self.halves = (0..self.slots.len()).map(|i| entry_halves(self.key(i).len() - self.prefix)).sum();
        Ok(())
    }

    /// Writes the first `count` gathered keys to a leaf; false if they do not fit.
    fn pack_leaf(&mut self, id: u32, prefix: usize, count: usize) -> Result<bool, IndexFull> {
        let mut blobs = [0; GATHER_MAX];
        let mut made = 0;
        let mut full = None;
        for i in (0..count).filter(|i| spills(self.key(*i).len() - prefix)) {
            match blob::allocate(&self.arena, self.key(i), self.budget()) {
                Ok(raw) => {
                    blobs[i] = raw;
                    made += blob::cost(self.key(i).len());
                }
                Err(e) => {
                    full = Some(e);
                    break;
                }
            }
        }
        let packed = full.is_none()
            && edit::pack(self.arena.node(id), 0, prefix, NULL, count, None, |i| Entry {
                tail: &self.key(i)[prefix..],
                blob: blobs[i],
                value: self.slots[i].raw(),
            });
        if packed {
            self.blob_bytes += made;
            return Ok(true);
        }
        for raw in blobs.into_iter().filter(|raw| *raw != 0) {
            // SAFETY: made above, and the node that would have held it was not written.
            unsafe { blob::free(&self.arena, raw) };
        }
        full.map_or(Ok(false), Err)
    }

    /// Makes the next inner node of the level being built.
    fn build_inner(&mut self, level: usize) -> Result<(), IndexFull> {
        let first = self.adopted;
        let left = self.below.ids.len() - first;
        let low = first.checked_sub(1).map(|i| self.below.separator(i).to_vec());
        let mut halves = Meta::fixed_halves(level, 0);
        let mut count = 0;
        // Counted with the longest prefix there can be; packing finds out if it is shorter.
        while count + 1 < left && count < GATHER_MAX - 1 && (halves <= self.fill || count == 0) {
            let separator = self.below.separator(first + count);
            let prefix = low.as_deref().map_or(0, |low| common_prefix(low, separator));
            halves += entry_halves(separator.len() - prefix) - 1;
            count += 1;
        }
        if halves > self.fill && count > 1 {
            count -= 1;
        }
        let id = self.allocate()?;
        let high = loop {
            let high = (count + 1 < left).then(|| self.below.separator(first + count).to_vec());
            let prefix = match (&low, &high) {
                (Some(low), Some(high)) => common_prefix(low, high),
                _ => 0,
            };
            match self.pack_inner(id, level, prefix, first, count) {
                Ok(true) => break high,
                Ok(false) => count -= (count / 16).max(1),
                Err(full) => {
                    self.nodes -= 1;
                    self.arena.release(id);
                    return Err(full);
                }
            }
        };
        self.above.ids.push(id);
        if let Some(high) = high {
            self.above.push_separator(&high);
        }
        self.adopted = first + count + 1;
        Ok(())
    }

    /// Writes an inner node of `count` separators and the children around them; false if they do not fit.
    fn pack_inner(
        &mut self,
        id: u32,
        level: usize,
        prefix: usize,
        first: usize,
        count: usize,
    ) -> Result<bool, IndexFull> {
        let mut blobs = [0; GATHER_MAX];
        let mut made = 0;
        let mut full = None;
        let longest = (0..count).map(|i| self.below.separator(first + i).len()).max().unwrap_or(0);
        self.separator_max = self.separator_max.max(longest);
        for i in (0..count).filter(|i| spills(self.below.separator(first + i).len() - prefix)) {
            let separator = self.below.separator(first + i);
            match blob::allocate(&self.arena, separator, self.budget()) {
                Ok(raw) => {
                    blobs[i] = raw;
                    made += blob::cost(separator.len());
                }
                Err(e) => {
                    full = Some(e);
                    break;
                }
            }
        }
        let below = &self.below;
        let packed = full.is_none()
            && edit::pack(self.arena.node(id), level, prefix, below.ids[first], count, None, |i| Entry {
                tail: &below.separator(first + i)[prefix..],
                blob: blobs[i],
                value: u64::from(below.ids[first + i + 1]),
            });
        if packed {
            self.blob_bytes += made;
            return Ok(true);
        }
        for raw in blobs.into_iter().filter(|raw| *raw != 0) {
            // SAFETY: made above, and the node that would have held it was not written.
            unsafe { blob::free(&self.arena, raw) };
        }
        full.map_or(Ok(false), Err)
    }
}

impl Drop for IndexBuilder {
    fn drop(&mut self) {
        for &id in self.below.ids[self.adopted.min(self.below.ids.len())..].iter().chain(&self.above.ids) {
            // SAFETY: no index was made of these nodes, and those that have a parent go with it.
            unsafe { Tree::new(id, 0, 0, self.longest, self.separator_max, 0).free(&self.arena) };
        }
    }
}

/// Halves that a key of `len` bytes after the prefix takes in a leaf.
fn entry_halves(len: usize) -> usize {
    5 + if spills(len) { SPILL_HALVES } else { suffix_halves(len) }
}

impl Index {
    /// An index of `sorted`, whose keys must ascend strictly, packed to `fill_percent` (50 to 100).
    ///
    /// # Errors
    /// `IndexFull` when the budget is used up.
    ///
    /// # Panics
    /// If keys do not ascend strictly.
    pub(crate) fn bulk_build<K: AsRef<[u8]>>(
        arena: Arc<NodeArena>,
        epoch: Arc<Epoch>,
        sorted: impl IntoIterator<Item = (K, Slot)>,
        fill_percent: u32,
    ) -> Result<Index, IndexFull> {
        let mut builder = IndexBuilder::new(arena, epoch, fill_percent);
        for (key, slot) in sorted {
            builder.push(key.as_ref(), slot)?;
        }
        builder.finish()
    }
}
