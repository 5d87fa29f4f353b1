//! Whether a tree is what `node.rs` and `tree.rs` promise of one. Looked at before a tree is freed, in tests (`invariants.rs`).
//!
//! Owns: the walk over all nodes. Promises: says the first thing that is wrong, and where. Must not know: what the slots stand for.

use super::super::arena::{NULL, NodeArena};
use super::super::blob;
use super::super::node::{HALVES, Meta, Node, head_of, spills};
use super::super::slot::Slot;
use super::{Tree, shared};
use crate::sync::atomic::Ordering;

/// The range of a node: its low and its high fence, `None` where it is infinite.
type Fences<'k> = (Option<&'k [u8]>, Option<&'k [u8]>);

/// What a walk has come by.
struct TreeCheck<'a> {
    arena: &'a NodeArena,
    nodes: u64,
    keys: u64,
    blob_bytes: u64,
    /// Bytes of the longest key, and of the longest separator.
    key_max: usize,
    separator_max: usize,
}

impl Tree {
    /// What is wrong with a tree that nobody uses.
    pub(in crate::index) fn check(&self, arena: &NodeArena) -> Result<(), String> {
        let mut walk = TreeCheck { arena, nodes: 0, keys: 0, blob_bytes: 0, key_max: 0, separator_max: 0 };
        let root = self.root.load(Ordering::Acquire);
        if root != NULL {
            walk.node(root, None, (None, None))?;
        }
        let blob_bytes = self.blob_bytes.load(Ordering::Relaxed).max(0) as u64;
        for (what, counted, found) in [
            ("nodes", self.nodes.load(Ordering::Relaxed), walk.nodes),
            ("keys", self.keys(), walk.keys),
            ("bytes of blobs", blob_bytes, walk.blob_bytes),
        ] {
            if counted != found {
                return Err(format!("it counts {counted} {what} and has {found}"));
            }
        }
        let separator_max = self.separator_max.load(Ordering::Relaxed) as usize;
        for (what, bound, found) in [
            ("key", self.longest().longest(), walk.key_max),
            ("separator", separator_max, walk.separator_max),
        ] {
            if bound < found {
                return Err(format!("it has a {what} of {found} bytes and takes {bound} for the longest"));
            }
        }
        Ok(())
    }
}

impl TreeCheck<'_> {
    fn node(&mut self, id: u32, level: Option<usize>, fences: Fences<'_>) -> Result<(), String> {
        let node = self.arena.node(id);
        let meta = node.meta();
        let wrong = |what: String| format!("node {id}, on level {}: {what}", meta.level());
        if level.is_some_and(|level| level != meta.level()) {
            return Err(wrong(format!("it should be on level {level:?}")));
        }
        let prefix = shared(fences.0, fences.1);
        if meta.prefix() != prefix {
            return Err(wrong(format!("a prefix of {} bytes, of fences that share {prefix}", meta.prefix())));
        }
        check_room(node, meta).map_err(wrong)?;
        let mut keys = Vec::with_capacity(meta.count());
        for i in 0..meta.count() {
            let key = self.key(node, meta, i, fences).map_err(wrong)?;
            if keys.last().is_some_and(|last| *last >= key) {
                return Err(wrong(format!("entry {i} is not above the one before")));
            }
            if meta.is_leaf() && Slot::from_raw(node.slot(meta, i)).is_none() {
                return Err(wrong(format!("entry {i} has no slot")));
            }
            keys.push(key);
        }
        self.nodes += 1;
        let longest = keys.iter().map(Vec::len).max().unwrap_or(0);
        if meta.is_leaf() {
            self.keys += keys.len() as u64;
            self.key_max = self.key_max.max(longest);
            return Ok(());
        }
        self.separator_max = self.separator_max.max(longest);
        for i in 0..=meta.count() {
            let low = if i == 0 { fences.0 } else { Some(keys[i - 1].as_slice()) };
            let high = keys.get(i).map(Vec::as_slice).or(fences.1);
            match node.child(meta, i) {
                NULL if i > 0 && node.child(meta, i - 1) == NULL => {
                    return Err(wrong(format!("child {i} is missing, and so is the one before")));
                }
                NULL => {}
                child => self.node(child, Some(meta.level() - 1), (low, high))?,
            }
        }
        Ok(())
    }

    /// The whole key of entry `i`, which lies between the fences.
    fn key(&mut self, node: &Node, meta: Meta, i: usize, (low, high): Fences<'_>) -> Result<Vec<u8>, String> {
        let ext = node.ext(meta, i);
        let mut key = low.map_or(&[][..], |low| &low[..meta.prefix()]).to_vec();
        if node.append_tail(meta, i, node.stable(), &mut key).is_err() {
            return Err(format!("entry {i} has a key of {} bytes that does not spill", ext.len()));
        }
        if key.len() != meta.prefix() + ext.len() {
            return Err(format!("entry {i} says {} bytes of a key, and its blob has others", ext.len()));
        }
        if node.head(i) != head_of(&key, meta.prefix()) {
            return Err(format!("entry {i} has the head of another key"));
        }
        if ext.spilled() {
            self.blob_bytes += blob::cost(key.len());
        } else if spills(ext.len()) {
            return Err(format!("entry {i} has {} bytes in the node", ext.len()));
        }
        // A separator at the low fence would leave the child before it nothing.
        let is_above = low.is_none_or(|low| if meta.is_leaf() { low <= &key } else { low < &key });
        if !is_above || high.is_some_and(|high| key.as_slice() >= high) {
            return Err(format!(
                "entry {i}, {}, is beyond the fences {low:?} and {high:?}",
                key.escape_ascii()
            ));
        }
        Ok(key)
    }
}

/// Whether a node is divided as its second cell says.
fn check_room(node: &Node, meta: Meta) -> Result<(), String> {
    if meta.count() > meta.cap() {
        return Err(format!("{} entries, and room for {}", meta.count(), meta.cap()));
    }
    if Meta::fixed_halves(meta.level(), meta.cap()) > meta.heap() {
        return Err("its heap lies over its entries".to_owned());
    }
    let live: usize = (0..meta.count()).map(|i| node.ext(meta, i).halves()).sum();
    let counted = HALVES - meta.heap() - meta.dead();
    if live != counted {
        return Err(format!("{live} halves of its heap are in use, and {counted} counted so"));
    }
    Ok(())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::super::{Decision, Index, LogSlot, Tag};
    use super::super::Tree;
    use super::*;
    use crate::epoch::Epoch;
    use crate::sync::Arc;

    /// Three levels of keys, some of which spill.
    fn filled() -> Index {
        let arena = Arc::new(NodeArena::new(16 << 20).unwrap());
        let index = Index::new(arena, Arc::new(Epoch::new()));
        for n in 0..3000u64 {
            let tail = if n % 50 == 0 { 70 } else { 0 };
            let key = format!("{:020}{:x<tail$}", n * 7 % 3000, "");
            let slot = Slot::from(LogSlot::new(Tag::Row, n * 8, 32));
            index.upsert(key.as_bytes(), &index.epoch.pin(), |_| (Decision::Store(slot), ())).unwrap();
        }
        index
    }

    fn tree(index: &Index) -> &Tree {
        // SAFETY: nobody replaces it.
        unsafe { &*index.tree.load(Ordering::Acquire) }
    }

    /// The leaf at the left edge, and the node above it.
    fn left_edge(index: &Index) -> (&Node, &Node) {
        let mut above = index.arena.node(tree(index).root.load(Ordering::Acquire));
        assert!(above.meta().level() > 0);
        while above.meta().level() > 1 {
            above = index.arena.node(above.child(above.meta(), 0));
        }
        (above, index.arena.node(above.child(above.meta(), 0)))
    }

    /// Spoils a tree, looks at what is said of it, and mends it.
    fn is_told(index: &Index, what: &str, spoil: impl FnOnce(), mend: impl FnOnce()) {
        spoil();
        let wrong = tree(index).check(&index.arena).expect_err(what);
        mend();
        assert!(wrong.contains(what), "{wrong}");
        tree(index).check(&index.arena).unwrap();
    }

    #[test]
    fn what_is_wrong_with_a_tree_is_told() {
        let index = filled();
        let tree = tree(&index);
        tree.check(&index.arena).unwrap();
        is_told(&index, "3001 keys", || tree.count_keys(0, 1), || tree.count_keys(0, -1));
        let nodes = tree.nodes.load(Ordering::Relaxed);
        let set = |nodes: u64| tree.nodes.store(nodes, Ordering::Relaxed);
        is_told(&index, "nodes and has", || set(nodes + 1), || set(nodes));
        is_told(&index, "bytes of blobs", || tree.count_blob(90, 1), || tree.count_blob(90, -1));
        let longest = tree.longest.swap(0, Ordering::Relaxed);
        is_told(&index, "a key of 90 bytes", || (), || tree.longest.store(longest, Ordering::Relaxed));

        let (above, leaf) = left_edge(&index);
        let (meta, head) = (leaf.meta(), leaf.head(1));
        let set = |cell: usize, word: u64| leaf.write(cell, word);
        is_told(&index, "not above the one before", || set(3, 0), || set(3, head));
        let last = 2 + meta.count() - 1;
        let highest = leaf.read(last);
        is_told(&index, "beyond the fences", || set(last, u64::MAX), || set(last, highest));
        let slot = (Node::slot_at(meta, 0), leaf.slot(meta, 0));
        is_told(&index, "has no slot", || set(slot.0, 0), || set(slot.0, slot.1));
        let other = meta.with_heap(meta.heap(), meta.dead() + 1);
        is_told(&index, "counted so", || leaf.write_meta(other), || leaf.write_meta(meta));

        let (meta, at) = (above.meta(), Node::child_at(above.meta(), 0));
        let children = [above.child(meta, 0), above.child(meta, 1)];
        let put = |to: [u32; 2]| (0..2).for_each(|i| above.write_half(at + i, to[i]));
        is_told(&index, "a prefix of", || put([children[1], children[0]]), || put(children));
        let root = tree.root.load(Ordering::Acquire);
        is_told(&index, "should be on level", || put([root, children[1]]), || put(children));
        is_told(&index, "and so is the one before", || put([NULL, NULL]), || put(children));
    }
}
