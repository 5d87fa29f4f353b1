//! Leaves that are mostly empty, made one.
//!
//! Owns the joining of a leaf with the one on its left, where many keys left both. Promises that a reader finds each key in the one, in the other or in what they were made. Must not know why keys left.
//!
//! A node's fences never widen, and so neither do those of a leaf: both are replaced, by a new one with the outer fences of the two. Whoever is in one of them finds its version changed, and begins again. Leaves of different parents are not joined.

use super::*;

/// What two leaves have is joined if it takes no more than so many of 8 parts of a leaf: who writes there next finds room.
const FILLED_PARTS: usize = 5;

/// Two leaves of one parent.
struct Neighbours {
    /// Which child of the parent the right one is.
    at: usize,
    left_id: u32,
    right_id: u32,
    /// What keys of each begin with.
    prefixes: [Vec<u8>; 2],
    /// How many bytes of that keys of both do.
    shared: usize,
}

impl<'g> TreeView<'g> {
    /// Joins the leaf of `key` with the one on its left, if both together fill little more than half of one. Takes memory for a moment.
    #[cold]
    pub(in crate::index) fn join_with_left(&self, key: &[u8]) {
        let mut backoff = Backoff::new();
        while let Err(Retry) = (TreeView { budget: Budget::Beyond, ..*self }).try_join(key) {
            backoff.wait();
        }
    }

    fn try_join(&self, key: &[u8]) -> Result<(), Retry> {
        let Some(place) = self.place(key, 0)? else { return Ok(()) };
        let (Some((right, right_version)), Some((parent, parent_version, at))) = (place.node, place.parent)
        else {
            return Ok(());
        };
        let meta = parent.meta();
        let (Some(left_at), true) = (at.checked_sub(1), place.level == 0) else { return Ok(()) };
        let left_id = parent.child(meta, left_at);
        let outer_low = match left_at.checked_sub(1) {
            Some(fence) => {
                let mut low = key.get(..meta.prefix()).ok_or(Retry)?.to_vec();
                parent.append_tail(meta, fence, parent_version, &mut low)?;
                Some(low)
            }
            None => place.outer_low.clone(),
        };
        parent.check(parent_version)?;
        if left_id == NULL {
            return Ok(());
        }
        let left = self.arena.node(left_id);
        let left_version = left.stable();
        parent.check(parent_version)?;
        let Some(separator) = &place.low else { return Ok(()) };
        let prefix_of = |node: &Node, of: &[u8]| of.get(..node.meta().prefix()).map(<[u8]>::to_vec);
        let (Some(left_prefix), Some(right_prefix)) = (prefix_of(left, separator), prefix_of(right, key))
        else {
            return Err(Retry);
        };
        let shared = shared(outer_low.as_deref(), place.high.as_deref());
        let prefixes = [left_prefix, right_prefix];
        let two = Neighbours { at, left_id, right_id: place.id, prefixes, shared };
        let parent_lock = parent.lock(parent_version)?;
        let left_lock = match left.lock(left_version) {
            Ok(lock) => lock,
            Err(retry) => {
                parent_lock.unchanged();
                return Err(retry);
            }
        };
        let right_lock = match right.lock(right_version) {
            Ok(lock) => lock,
            Err(retry) => {
                unlock_unchanged(Some(parent_lock), Some(left_lock));
                return Err(retry);
            }
        };
        match self.joined(&two, &left_lock, &right_lock) {
            Some(joined) => self.put_joined(&two, joined, parent_lock, [left_lock, right_lock]),
            None => {
                right_lock.unchanged();
                unlock_unchanged(Some(parent_lock), Some(left_lock));
            }
        }
        Ok(())
    }

    /// A new leaf with what both have; `None` if that would be too full, or there is no memory.
    fn joined(&self, two: &Neighbours, left: &NodeLock<'_>, right: &NodeLock<'_>) -> Option<u32> {
        let items = [Items::unpack(left), Items::unpack(right)];
        let count = items[0].count + items[1].count;
        let mut bytes = Vec::new();
        let mut entries: Vec<(std::ops::Range<usize>, u64, u64)> = Vec::with_capacity(count);
        for (items, prefix) in items.iter().zip(&two.prefixes) {
            // Read before the locks were had, and of the same fences.
            if items.prefix != prefix.len() || two.shared > prefix.len() {
                return None;
            }
            for i in 0..items.count {
                let from = bytes.len();
                bytes.extend_from_slice(&prefix[two.shared..]);
                bytes.extend_from_slice(items.tail(i));
                // What was short enough to be in its leaf may not be in this.
                if spills(bytes.len() - from) && items.blob(i) == 0 {
                    return None;
                }
                entries.push((from..bytes.len(), items.blob(i), items.value(i)));
            }
        }
        let entry = |i: usize| {
            let (tail, blob, value) = &entries[i];
            Entry { tail: &bytes[tail.clone()], blob: *blob, value: *value }
        };
        if !edit::fills_at_most(count, FILLED_PARTS, entry) {
            return None;
        }
        let id = self.allocate().ok()?;
        let is_packed = edit::pack(self.arena.node(id), 0, two.shared, NULL, count, None, entry);
        if !is_packed {
            self.unallocate(id);
        }
        is_packed.then_some(id)
    }

    /// Puts the new leaf in the place of both.
    fn put_joined(&self, two: &Neighbours, joined: u32, parent: NodeLock<'_>, leaves: [NodeLock<'_>; 2]) {
        let node = parent.node;
        node.write_half(Node::child_at(node.meta(), two.at - 1), joined);
        let blob = edit::remove_separator(node, two.at - 1);
        drop((leaves, parent));
        self.retire(two.left_id);
        self.retire(two.right_id);
        // SAFETY: the parent led to it until it was removed, under its lock.
        unsafe { self.retire_blob(blob) };
    }
}
