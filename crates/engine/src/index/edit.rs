//! Changes to one node, by the holder of its lock.
//!
//! Owns: inserting, removing and laying out entries. Promises: every function leaves a node that is valid by the layout
//! in `node.rs`. Must not know: parents, locks, versions.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use super::node::{
    Ext, HALVES, HEADER, Meta, Node, NodeLock, SPILL_HALVES, half_of, head_of, spills, suffix_halves,
};
use super::stored_key;

/// Some entries of a leaf: bit `i` is entry `i`.
pub(super) type EntryBits = u64;

/// More entries than any node holds: [`EntryBits`] has a bit for each.
const ENTRIES_MAX: usize = EntryBits::BITS as usize;
/// More bytes than the keys of any node take after its prefix, spilled ones aside.
const BYTES_MAX: usize = 2048;

/// One entry on its way into a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    /// The key after the node's prefix.
    pub(super) tail: &'a [u8],
    /// The key's blob, or 0 if the node keeps the key.
    pub(super) blob: u64,
    /// A slot, or the child right of a separator.
    pub(super) value: u64,
}

impl Entry<'_> {
    fn halves(&self) -> usize {
        if self.blob == 0 { suffix_halves(self.tail.len()) } else { SPILL_HALVES }
    }
}

/// How an entry more can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// By [`insert`] alone.
    Direct,
    /// By [`relayout`] first.
    Relayout,
    /// By splitting the node first.
    Split,
}

/// Halves that a key of `len` bytes after the prefix takes in the heap.
fn halves_of(len: usize) -> usize {
    if spills(len) { SPILL_HALVES } else { suffix_halves(len) }
}

/// The room for a key of `len` bytes after the prefix.
pub(super) fn room(meta: Meta, len: usize) -> Room {
    let count = meta.count();
    let need = halves_of(len);
    if count < meta.cap() && meta.free() >= need {
        return Room::Direct;
    }
    let live = HALVES - meta.heap() - meta.dead();
    // A little more than needed, or a nearly full node would be laid out anew at every insert.
    match best_cap(meta.level(), count + 1, live + need) {
        Some(cap) if cap > count + count / 8 => Room::Relayout,
        _ => Room::Split,
    }
}

/// The most entries that fit if they are all like these `count`, which take `heap` halves; `None` if not even these.
pub(super) fn best_cap(level: usize, count: usize, heap: usize) -> Option<usize> {
    let fixed = if level == 0 { 5 } else { 4 };
    let space = HALVES - HEADER * 2 - usize::from(level > 0);
    let mut cap = if count == 0 { space / (fixed + 2) } else { space * count / (fixed * count + heap) };
    while cap >= count && Meta::fixed_halves(level, cap) + heap > HALVES {
        cap = cap.checked_sub(1)?;
    }
    (cap >= count && cap < ENTRIES_MAX).then_some(cap)
}

/// Whether a leaf with these entries fills at most so many of 8 parts of a node.
pub(super) fn fills_at_most<'a>(count: usize, parts: usize, entry: impl Fn(usize) -> Entry<'a>) -> bool {
    let heap: usize = (0..count).map(|i| entry(i).halves()).sum();
    count < ENTRIES_MAX && (Meta::fixed_halves(0, count) + heap) * 8 <= HALVES * parts
}

/// Writes a node anew: `count` entries as `entry` gives them, with capacity for more like them, and for one of `more`
/// halves if given. Returns false, and writes nothing, if they do not fit.
pub(super) fn pack<'a>(
    node: &Node,
    level: usize,
    prefix: usize,
    first_child: u32,
    count: usize,
    more: Option<usize>,
    entry: impl Fn(usize) -> Entry<'a>,
) -> bool {
    let heap: usize = (0..count).map(|i| entry(i).halves()).sum();
    let Some(cap) = best_cap(level, count + usize::from(more.is_some()), heap + more.unwrap_or(0)) else {
        return false;
    };
    let meta = Meta::new(level, prefix, cap);
    let mut heap = HALVES;
    if level > 0 {
        node.write_half(Node::child_at(meta, 0), first_child);
    }
    for i in 0..count {
        let entry = entry(i);
        heap -= entry.halves();
        put(node, meta, i, heap, &entry);
    }
    node.write_meta(meta.with_count(count).with_heap(heap, 0));
    true
}

/// Writes entry `i`, its heap part at half `at`.
#[inline]
fn put(node: &Node, meta: Meta, i: usize, at: usize, entry: &Entry<'_>) {
    node.write(HEADER + i, head_of(entry.tail, 0));
    node.write_half(Node::ext_at(meta, i), Ext::new(entry.tail.len(), at, entry.blob != 0).0);
    if meta.is_leaf() {
        node.write(Node::slot_at(meta, i), entry.value);
    } else {
        node.write_half(Node::child_at(meta, i + 1), entry.value as u32);
    }
    if entry.blob == 0 {
        let end = at + suffix_halves(entry.tail.len());
        let (mut half, mut from) = (at, 8);
        while half < end {
            // Two at once where they share a cell.
            if half.is_multiple_of(2) && half + 2 <= end {
                node.write(half >> 1, head_of(entry.tail, from));
                (half, from) = (half + 2, from + 8);
            } else {
                node.write_half(half, half_of(entry.tail, from));
                (half, from) = (half + 1, from + 4);
            }
        }
    } else {
        node.write_half(at, (entry.blob >> 32) as u32);
        node.write_half(at + 1, entry.blob as u32);
    }
}

/// Inserts before entry `at` of a node with [`Room::Direct`].
pub(super) fn insert(node: &Node, at: usize, entry: &Entry<'_>) {
    let meta = node.meta();
    let count = meta.count();
    debug_assert!(at <= count && count < meta.cap() && meta.free() >= entry.halves(), "no room");
    for i in (at..count).rev() {
        node.write(HEADER + i + 1, node.head(i));
    }
    move_halves_up(node, Node::ext_at(meta, at), count - at);
    if meta.is_leaf() {
        for i in (at..count).rev() {
            node.write(Node::slot_at(meta, i + 1), node.read(Node::slot_at(meta, i)));
        }
    } else {
        move_halves_up(node, Node::child_at(meta, at + 1), count - at);
    }
    let heap = meta.heap() - entry.halves();
    put(node, meta, at, heap, entry);
    node.write_meta(meta.with_count(count + 1).with_heap(heap, meta.dead()));
}

/// Moves `count` halves from `from` one place up.
fn move_halves_up(node: &Node, from: usize, count: usize) {
    let mut i = from + count;
    // Whole cells while both source halves are among those to move.
    if count > 0 && i.is_multiple_of(2) {
        node.write_half(i, node.half(i - 1));
        i -= 1;
    }
    while i >= from + 2 {
        node.write(i >> 1, u64::from(node.half(i - 2)) << 32 | u64::from(node.half(i - 1)));
        i -= 2;
    }
    while i > from {
        node.write_half(i, node.half(i - 1));
        i -= 1;
    }
}

/// Removes separator `at` of an inner node, with the child right of it; returns the blob that is now nobody's, or 0.
pub(super) fn remove_separator(node: &Node, at: usize) -> u64 {
    let meta = node.meta();
    let count = meta.count();
    let ext = node.ext(meta, at);
    for i in at + 1..count {
        node.write(HEADER + i - 1, node.head(i));
        node.write_half(Node::ext_at(meta, i - 1), node.ext(meta, i).0);
    }
    for i in at + 2..=count {
        node.write_half(Node::child_at(meta, i - 1), node.child(meta, i));
    }
    write_less(node, meta, count - 1, ext.halves());
    if ext.spilled() { node.blob(ext) } else { 0 }
}

/// Removes `entries` of a leaf; `blob` is called with each blob that is now nobody's.
pub(super) fn remove_entries(node: &Node, entries: EntryBits, mut blob: impl FnMut(u64)) {
    let meta = node.meta();
    debug_assert!(meta.is_leaf(), "separators have children");
    let (first, count) = (entries.trailing_zeros() as usize, meta.count());
    let (mut to, mut freed) = (first, 0);
    for i in first..count {
        let ext = node.ext(meta, i);
        if entries >> i & 1 == 1 {
            freed += ext.halves();
            if ext.spilled() {
                blob(node.blob(ext));
            }
            continue;
        }
        node.write(HEADER + to, node.head(i));
        node.write_half(Node::ext_at(meta, to), ext.0);
        node.write(Node::slot_at(meta, to), node.read(Node::slot_at(meta, i)));
        to += 1;
    }
    write_less(node, meta, to, freed);
}

/// Writes the meta of a node that has `count` entries left, and `freed` halves less in its heap.
fn write_less(node: &Node, meta: Meta, count: usize, freed: usize) {
    let (heap, dead) = if count == 0 { (HALVES, 0) } else { (meta.heap(), meta.dead() + freed) };
    node.write_meta(meta.with_count(count).with_heap(heap, dead));
}

/// Lays a locked node out anew without dead space, with capacity for a key of `len` bytes after the prefix.
pub(super) fn relayout(lock: &NodeLock<'_>, len: usize) {
    let items = Items::unpack(lock);
    let packed = items.pack(lock.node, 0..items.count, items.prefix, items.first_child, Some(halves_of(len)));
    debug_assert!(packed, "room() said it fits");
}

/// All entries of a node, copied out, but for the blobs of its keys: those are the node's as long as its lock is held.
pub(super) struct Items<'l> {
    lock: PhantomData<&'l NodeLock<'l>>,
    pub(super) level: usize,
    pub(super) prefix: usize,
    pub(super) count: usize,
    pub(super) first_child: u32,
    starts: [u16; ENTRIES_MAX],
    lens: [u32; ENTRIES_MAX],
    blobs: [u64; ENTRIES_MAX],
    values: [u64; ENTRIES_MAX],
    bytes: [u8; BYTES_MAX],
}

impl<'l> Items<'l> {
    /// The entries of a node that is locked.
    pub(super) fn unpack(lock: &'l NodeLock<'_>) -> Items<'l> {
        let node = lock.node;
        let meta = node.meta();
        let mut items = Items {
            lock: PhantomData,
            level: meta.level(),
            prefix: meta.prefix(),
            count: meta.count(),
            first_child: if meta.is_leaf() { 0 } else { node.child(meta, 0) },
            starts: [0; ENTRIES_MAX],
            lens: [0; ENTRIES_MAX],
            blobs: [0; ENTRIES_MAX],
            values: [0; ENTRIES_MAX],
            bytes: [0; BYTES_MAX],
        };
        let mut end = 0;
        for i in 0..items.count {
            let ext = node.ext(meta, i);
            items.starts[i] = end as u16;
            items.lens[i] = ext.len() as u32;
            items.values[i] = if meta.is_leaf() {
                node.read(Node::slot_at(meta, i))
            } else {
                u64::from(node.child(meta, i + 1))
            };
            if ext.spilled() {
                items.blobs[i] = node.blob(ext);
                continue;
            }
            items.bytes[end..end + 8].copy_from_slice(&node.head(i).to_be_bytes());
            for half in 0..suffix_halves(ext.len()) {
                let at = end + 8 + half * 4;
                items.bytes[at..at + 4].copy_from_slice(&node.half(ext.at() + half).to_be_bytes());
            }
            end += 8 + suffix_halves(ext.len()) * 4;
        }
        items
    }

    /// The key of entry `i` after the prefix.
    pub(super) fn tail(&self, i: usize) -> &[u8] {
        if self.blobs[i] != 0 {
            // SAFETY: linked in a node that was locked when it was read, and still is: nobody else unlinks it, and what its holder unlinks is
            // not freed before the guard is gone under which the node was found.
            return &unsafe { stored_key::key(self.blobs[i]) }[self.prefix..];
        }
        let start = usize::from(self.starts[i]);
        &self.bytes[start..start + self.lens[i] as usize]
    }

    /// The blob of entry `i`, or 0.
    pub(super) fn blob(&self, i: usize) -> u64 {
        self.blobs[i]
    }

    /// The slot of entry `i`, or the child right of it.
    pub(super) fn value(&self, i: usize) -> u64 {
        self.values[i]
    }

    /// Writes the entries of `range` to `node` with a prefix at least as long as they had.
    pub(super) fn pack(
        &self,
        node: &Node,
        range: Range<usize>,
        prefix: usize,
        first_child: u32,
        more: Option<usize>,
    ) -> bool {
        debug_assert!(prefix >= self.prefix, "fences only draw closer");
        let shift = prefix - self.prefix;
        pack(node, self.level, prefix, first_child, range.len(), more, |i| {
            let i = range.start + i;
            Entry { tail: &self.tail(i)[shift..], blob: self.blobs[i], value: self.values[i] }
        })
    }
}
