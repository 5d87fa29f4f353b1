//! Scans: entries in key order, a batch at a time, forward or backward.
//!
//! Owns: the walk from leaf to leaf. Promises: each leaf's entries are those of one moment; no key is given twice or
//! out of order within a call; nothing is allocated once the batch's buffers have grown. Must not know: records.
//!
//! Leaves have no links. The walk keeps the parent and goes to the next child while the parent's version holds;
//! otherwise it comes down anew by the fence it stopped at, which is also what the next leaf's prefix is taken from.
#![allow(unsafe_code)]

use std::ops::Bound;

use super::arena::NULL;
use super::node::{Meta, Node, Retry, SUFFIX_MAX, spills, suffix_halves};
use super::tree::TreeView;
use super::{Index, PREFETCH_LINES, Slot};
use crate::epoch::Guard;
use crate::sync::Backoff;

/// Entries of a scan, in its order. Reuse it: its buffers keep their memory.
#[derive(Debug, Default)]
pub struct ScanBatch {
    keys: Vec<u8>,
    ends: Vec<usize>,
    slots: Vec<Slot>,
    /// Where the walk is: a key of the range of the leaf it looks for.
    seek: Vec<u8>,
    /// The far fence of the leaf it is at.
    fence: Vec<u8>,
}

impl ScanBatch {
    /// An empty batch.
    pub fn new() -> ScanBatch {
        ScanBatch::default()
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The key of entry `i`.
    ///
    /// # Panics
    /// If there is no entry `i`.
    #[inline]
    pub fn key(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.keys[start..self.ends[i]]
    }

    /// All slots, in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Entries in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], Slot)> {
        (0..self.len()).map(|i| (self.key(i), self.slots[i]))
    }

    /// Forgets all entries, keeping the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Adds an entry behind those that are there.
    pub(crate) fn push(&mut self, key: &[u8], slot: Slot) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        self.slots.push(slot);
    }

    fn truncate(&mut self, entries: usize) {
        self.slots.truncate(entries);
        self.ends.truncate(entries);
        self.keys.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

/// Whether a scan came to the end of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanEnd {
    /// Nothing follows.
    Done,
    /// The limit was reached; more may follow the last key.
    More,
}

/// A way through the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Reverse,
}

/// Which leaf of a range's keys the walk looks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seek {
    /// The leaf whose range has the seek key; from that key on, itself included or not.
    At { included: bool },
    /// The leaf whose range ends at the seek key or has smaller keys besides it: where the keys less than it end.
    Below,
    /// The last leaf.
    Last,
}

/// A leaf and its place in its parent.
struct Stop<'g> {
    /// `None` where a range has no leaf.
    leaf: Option<(&'g Node, u64)>,
    parent: Option<(&'g Node, Meta, u64, usize)>,
    /// Whether `fence` holds the fence on the far side; else there is nothing beyond.
    bounded: bool,
}

struct LeafScan<'a, 'g> {
    view: TreeView<'g>,
    way: Way,
    /// The bound on the far side.
    until: Bound<&'a [u8]>,
    limit: usize,
    out: &'a mut ScanBatch,
}

impl Index {
    /// Puts up to `limit` entries from `from` on, ascending, and not beyond `to`, into `out`, in place of what it held.
    /// To go on after `More`, scan from `Excluded` the last key.
    pub(crate) fn scan_forward(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
        guard: &Guard<'_>,
        out: &mut ScanBatch,
    ) -> ScanEnd {
        self.scan(Way::Forward, from, to, limit, guard, out)
    }

    /// Puts up to `limit` entries from `to` on, descending, and not beyond `from`, into `out`, in place of what it held.
    /// To go on after `More`, scan to `Excluded` the last key.
    pub(crate) fn scan_reverse(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
        guard: &Guard<'_>,
        out: &mut ScanBatch,
    ) -> ScanEnd {
        self.scan(Way::Reverse, from, to, limit, guard, out)
    }

    fn scan(
        &self,
        way: Way,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
        guard: &Guard<'_>,
        out: &mut ScanBatch,
    ) -> ScanEnd {
        out.clear();
        if is_void(from, to) {
            return ScanEnd::Done;
        }
        if limit == 0 {
            return ScanEnd::More;
        }
        let (near, until) = if way == Way::Forward { (from, to) } else { (to, from) };
        out.seek.clear();
        let seek = match (near, way) {
            (Bound::Included(key), _) => {
                out.seek.extend_from_slice(key);
                Seek::At { included: true }
            }
            (Bound::Excluded(key), _) => {
                out.seek.extend_from_slice(key);
                if way == Way::Forward { Seek::At { included: false } } else { Seek::Below }
            }
            // The empty key is less than all: it leads to the first leaf.
            (Bound::Unbounded, Way::Forward) => Seek::At { included: true },
            (Bound::Unbounded, Way::Reverse) => Seek::Last,
        };
        LeafScan { view: self.view(guard), way, until, limit, out }.run(seek)
    }
}

/// Whether no key can be in the range.
fn is_void(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
            from >= to
        }
    }
}

impl<'g> LeafScan<'_, 'g> {
    fn run(mut self, mut seek: Seek) -> ScanEnd {
        let mut backoff = Backoff::new();
        let mut next: Option<Stop<'g>> = None;
        loop {
            let entries = self.out.len();
            let found = match next.take() {
                Some(stop) => Ok(Some(stop)),
                None => self.descend(seek),
            };
            let step = found.and_then(|stop| match stop {
                Some(stop) => self.take(&stop, seek).map(|end| (end, Some(stop))),
                None => Ok((Some(ScanEnd::Done), None)),
            });
            match step {
                Ok((Some(end), _)) => return end,
                Ok((None, stop)) => {
                    std::mem::swap(&mut self.out.seek, &mut self.out.fence);
                    seek = if self.way == Way::Forward { Seek::At { included: true } } else { Seek::Below };
                    next = stop.and_then(|stop| self.beside(&stop));
                }
                Err(Retry) => {
                    self.out.truncate(entries);
                    backoff.wait();
                }
            }
        }
    }

    /// Comes down from the root to the leaf of `seek`, leaving its far fence in `fence`.
    fn descend(&mut self, seek: Seek) -> Result<Option<Stop<'g>>, Retry> {
        let Some((_, mut node, mut version)) = self.view.enter()? else { return Ok(None) };
        let mut parent = None;
        // The deepest entry that fences the path on the far side.
        let mut fence = None;
        loop {
            let meta = node.meta();
            if meta.is_leaf() {
                break;
            }
            let at = match seek {
                Seek::Last => meta.count(),
                Seek::At { .. } => {
                    node.search(meta, &self.out.seek, version).map(|(at, equal)| at + usize::from(equal))?
                }
                Seek::Below => node.search(meta, &self.out.seek, version)?.0,
            };
            let id = node.child(meta, at);
            let child = self.view.arena.node(id);
            child.prefetch(PREFETCH_LINES);
            match self.way {
                Way::Forward if at < meta.count() => fence = Some((node, meta, version, at)),
                Way::Reverse if at > 0 => fence = Some((node, meta, version, at - 1)),
                _ => {}
            }
            parent = Some((node, meta, version, at));
            if id == NULL {
                node.check(version)?;
                self.read_fence(fence)?;
                return Ok(Some(Stop { leaf: None, parent, bounded: fence.is_some() }));
            }
            let child_version = child.stable();
            node.check(version)?;
            (node, version) = (child, child_version);
        }
        self.read_fence(fence)?;
        Ok(Some(Stop { leaf: Some((node, version)), parent, bounded: fence.is_some() }))
    }

    /// Reads a separator on the path of the seek key into `fence`.
    fn read_fence(&mut self, fence: Option<(&'g Node, Meta, u64, usize)>) -> Result<(), Retry> {
        let Some((node, meta, version, at)) = fence else { return Ok(()) };
        self.out.fence.clear();
        self.out.fence.extend_from_slice(self.out.seek.get(..meta.prefix()).ok_or(Retry)?);
        node.append_tail(meta, at, version, &mut self.out.fence)?;
        node.check(version)
    }

    /// The leaf after `stop` under the same parent, if there is one with a fence of its own there and the parent is as
    /// it was.
    fn beside(&mut self, stop: &Stop<'g>) -> Option<Stop<'g>> {
        let (node, meta, version, at) = stop.parent?;
        let (at, fence) = match self.way {
            Way::Forward if at + 1 < meta.count() => (at + 1, at + 1),
            Way::Reverse if at >= 2 => (at - 1, at - 2),
            _ => return None,
        };
        if meta.level() != 1 {
            return None;
        }
        let id = node.child(meta, at);
        let leaf = match id {
            NULL => None,
            _ => Some((self.view.arena.node(id), self.view.arena.node(id).stable())),
        };
        // Checks the parent, after the leaf's version was read.
        self.read_fence(Some((node, meta, version, fence))).ok()?;
        Some(Stop { leaf, parent: Some((node, meta, version, at)), bounded: true })
    }

    /// Copies the wanted entries of a leaf out; how the scan ends, if it does here.
    fn take(&mut self, stop: &Stop<'g>, seek: Seek) -> Result<Option<ScanEnd>, Retry> {
        let last = !stop.bounded || self.ends_before_fence();
        let Some((leaf, version)) = stop.leaf else {
            return Ok(last.then_some(ScanEnd::Done));
        };
        self.prefetch_beside(stop);
        let meta = leaf.meta();
        let near = match seek {
            Seek::Last => meta.count(),
            _ => {
                let (at, equal) = leaf.search(meta, &self.out.seek, version)?;
                let over = match seek {
                    Seek::At { included } => included == (self.way == Way::Reverse),
                    _ => false,
                };
                at + usize::from(over && equal)
            }
        };
        let far = self.far_end(leaf, meta, version, stop.bounded)?;
        let (start, end) = if self.way == Way::Forward { (near, far) } else { (far, near) };
        let wanted = end.saturating_sub(start);
        let taken = wanted.min(self.limit - self.out.len());
        match self.way {
            Way::Forward => self.copy(leaf, meta, version, start..start + taken)?,
            Way::Reverse => self.copy(leaf, meta, version, (end - taken..end).rev())?,
        }
        leaf.check(version)?;
        Ok(if last && taken == wanted {
            Some(ScanEnd::Done)
        } else if self.out.len() == self.limit {
            Some(ScanEnd::More)
        } else {
            None
        })
    }

    /// Whether the far bound lies in this leaf's range, so that nothing beyond its far fence is wanted.
    fn ends_before_fence(&self) -> bool {
        let fence = self.out.fence.as_slice();
        match (self.until, self.way) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(key), Way::Forward) => key < fence,
            (Bound::Excluded(key), Way::Forward) => key <= fence,
            (Bound::Included(key) | Bound::Excluded(key), Way::Reverse) => key >= fence,
        }
    }

    /// The position of the far bound in this leaf. The bound is searched for only if the leaf's range has it, so that
    /// it starts with the leaf's prefix.
    fn far_end(&self, leaf: &Node, meta: Meta, version: u64, bounded: bool) -> Result<usize, Retry> {
        let fence = self.out.fence.as_slice();
        let (key, equal_counts) = match (self.until, self.way) {
            (Bound::Unbounded, Way::Forward) => return Ok(meta.count()),
            (Bound::Unbounded, Way::Reverse) => return Ok(0),
            (Bound::Included(key), way) => (key, way == Way::Forward),
            (Bound::Excluded(key), way) => (key, way == Way::Reverse),
        };
        match self.way {
            Way::Forward if bounded && key >= fence => return Ok(meta.count()),
            Way::Reverse if bounded && key < fence => return Ok(0),
            _ => {}
        }
        let (at, equal) = leaf.search(meta, key, version)?;
        Ok(at + usize::from(equal && equal_counts))
    }

    /// Begins to load the leaf after this one.
    #[inline]
    fn prefetch_beside(&self, stop: &Stop<'g>) {
        let Some((node, meta, _, at)) = stop.parent else { return };
        let at = match self.way {
            Way::Forward if at < meta.count() => at + 1,
            Way::Reverse if at > 0 => at - 1,
            _ => return,
        };
        // An id out of date loads something useless, no more.
        self.view.arena.node(node.child(meta, at)).prefetch(PREFETCH_LINES);
    }

    /// Appends entries to the batch.
    fn copy(
        &mut self,
        leaf: &Node,
        meta: Meta,
        version: u64,
        entries: impl ExactSizeIterator<Item = usize>,
    ) -> Result<(), Retry> {
        /// What is written at most beyond a key's end.
        const SLACK: usize = 8;
        let ScanBatch { keys, ends, slots, seek, .. } = &mut *self.out;
        let prefix = seek.get(..meta.prefix()).ok_or(Retry)?;
        let room = entries.len() * (prefix.len() + 8 + SUFFIX_MAX) + SLACK;
        keys.reserve(room);
        ends.reserve(entries.len());
        slots.reserve(entries.len());
        for i in entries {
            let slot = Slot::from_raw(leaf.slot(meta, i)).ok_or(Retry)?;
            let ext = leaf.ext(meta, i);
            if ext.spilled() {
                keys.extend_from_slice(prefix);
                leaf.append_tail(meta, i, version, keys)?;
                keys.reserve(room);
            } else if spills(ext.len()) {
                return Err(Retry);
            } else {
                let len = keys.len();
                // SAFETY: `room` was reserved for all entries that do not spill, and again after each that does; an
                // entry takes at most prefix + 8 + SUFFIX_MAX of it, as its length was just checked. All bytes up to
                // the new length are written: prefix, head, and as many halves as the length calls for.
                unsafe {
                    let mut to = keys.as_mut_ptr().add(len);
                    std::ptr::copy_nonoverlapping(prefix.as_ptr(), to, prefix.len());
                    to = to.add(prefix.len());
                    to.cast::<[u8; 8]>().write(leaf.head(i).to_be_bytes());
                    for half in 0..suffix_halves(ext.len()) {
                        to.add(8 + half * 4)
                            .cast::<[u8; 4]>()
                            .write(leaf.half(ext.at() + half).to_be_bytes());
                    }
                    keys.set_len(len + prefix.len() + ext.len());
                }
            }
            ends.push(keys.len());
            slots.push(slot);
        }
        Ok(())
    }
}
