//! The node: its layout, its lock, and everything a reader does to it.
//!
//! Owns: the 1 KiB layout below and the version word. Promises: whatever a reader sees while a writer is at work, it
//! reads only inside the node, ends, and finds out by the version. Must not know: trees.
//!
//! A node is 128 cells of 8 bytes, all atomic, always accessed whole (two sizes of atomic access to one place would
//! be outside the memory model). A *half* is 4 bytes of a cell, the even half being the upper one, so that bytes of a
//! key in consecutive halves are in key order within cells too.
//!
//! ```text
//! cell 0        version: lock bits and a counter
//! cell 1        meta: count 8 | cap 8 | level 6 | heap 10 | dead 10 | prefix 18 bits, from the lowest
//! cell 2..      cap heads: 8 bytes of the key after the prefix, big-endian, zero-padded
//! then          cap exts, in halves: key length after the prefix 17 | first half in the heap 14 | spilled 1
//! then          leaf: cap slots              inner: cap + 1 child ids, in halves; child 0 is left of entry 0
//! ...           free
//! half `heap`.. to the end: suffixes, the key after prefix and head, in zero-padded halves; or, for a spilled key,
//!               two halves with the address of its blob, which holds the whole key
//! ```
//! `cap` is chosen for each node from the mean suffix of its entries. `dead` counts halves of the heap whose entries
//! are gone. The prefix is what the node's two fences share: every key routed here starts with it, so it is not
//! stored; whoever needs the bytes takes them from the key that led here.
//!
//! **Order.** Zero padding makes different keys equal in head and halves ("a" and "a\0"). Entries are ordered by head,
//! then by suffix halves as far as both have them, then by length: where padded bytes are equal up to the shorter key's
//! end, the longer one continues with zeros, so the shorter is its prefix and comes first, as it should.
//!
//! **The lock.** `STRUCT` excludes everybody; readers wait for it. `SLOT` excludes writers only: its holder may replace
//! slots of existing entries, each by one 8-byte store, and nothing else (above the leaves, where there are none, it keeps children from coming, going and being split). Releasing `STRUCT` steps the counter,
//! releasing `SLOT` does not, and readers ignore the `SLOT` bit: so a reader's check fails exactly if entries may have
//! moved under it.
//!
//! **Why a checked read is consistent** (the seqlock of Boehm, "Can seqlocks get along with programming language memory
//! models?", 2012). A reader loads the version (acquire), then data (relaxed), then fences (acquire) and loads the
//! version again. A writer sets `STRUCT`, fences (release), stores data (relaxed), and releases the stepped version. If
//! the reader saw any of the writer's stores, the two fences synchronise, so its second load sees `STRUCT` or later and
//! differs. If it began after the release, its acquire load makes all of the stores visible. Slots are stored with
//! release and loaded with acquire, because what they point to is published by them alone.
#![allow(unsafe_code)]

use std::cmp::Ordering as Cmp;
use std::hint;

use hedgerow_device::prefetch;

use super::stored_key;
use crate::sync::Backoff;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// Cells of a node. Small under `shuttle`, so that a few steps split it.
pub(super) const CELLS: usize = if cfg!(shuttle) { 16 } else { 128 };
pub(super) const HALVES: usize = CELLS * 2;
/// Cells before the heads.
pub(super) const HEADER: usize = 2;
/// The longest suffix kept in a node, in bytes; longer keys spill. Bounds what one entry can take, and so the least
/// number of entries a full node has (14).
pub(super) const SUFFIX_MAX: usize = if cfg!(shuttle) { 8 } else { 48 };
/// Halves of a blob's address.
pub(super) const SPILL_HALVES: usize = 2;

const SLOT: u64 = 1;
const STRUCT: u64 = 2;
const STEP: u64 = 4;

/// What was read may be torn or out of date: begin again from the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry;

/// One node. See the [module](self) for its layout.
#[repr(C, align(128))]
pub(super) struct Node([AtomicU64; CELLS]);

/// The second cell, unpacked by its getters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta(u64);

impl Meta {
    pub(super) fn new(level: usize, prefix: usize, cap: usize) -> Meta {
        Meta((cap as u64) << 8 | (level as u64) << 16 | (HALVES as u64) << 22 | (prefix as u64) << 42)
    }

    pub(super) fn count(self) -> usize {
        (self.0 & 0xff) as usize
    }

    pub(super) fn cap(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// 0 for a leaf.
    pub(super) fn level(self) -> usize {
        (self.0 >> 16 & 0x3f) as usize
    }

    pub(super) fn is_leaf(self) -> bool {
        self.level() == 0
    }

    /// First half of the heap in use.
    pub(super) fn heap(self) -> usize {
        (self.0 >> 22 & 0x3ff) as usize
    }

    pub(super) fn dead(self) -> usize {
        (self.0 >> 32 & 0x3ff) as usize
    }

    pub(super) fn prefix(self) -> usize {
        (self.0 >> 42) as usize
    }

    pub(super) fn with_count(self, count: usize) -> Meta {
        Meta(self.0 & !0xff | count as u64)
    }

    pub(super) fn with_heap(self, heap: usize, dead: usize) -> Meta {
        Meta(self.0 & !(0xf_ffff << 22) | (heap as u64) << 22 | (dead as u64) << 32)
    }

    /// First cell of the exts.
    fn exts(self) -> usize {
        HEADER + self.cap()
    }

    /// First cell of the slots or child ids.
    fn values(self) -> usize {
        self.exts() + self.cap().div_ceil(2)
    }

    /// Halves before the free space, for `cap` entries on `level`.
    pub(super) const fn fixed_halves(level: usize, cap: usize) -> usize {
        let values = if level == 0 { cap } else { (cap + 1).div_ceil(2) };
        (HEADER + cap + cap.div_ceil(2) + values) * 2
    }

    /// Halves between the arrays and the heap.
    pub(super) fn free(self) -> usize {
        self.heap().saturating_sub(Meta::fixed_halves(self.level(), self.cap()))
    }
}

/// Where an entry's key is and how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ext(pub(super) u32);

impl Ext {
    pub(super) fn new(len: usize, at: usize, spilled: bool) -> Ext {
        Ext(len as u32 | (at as u32) << 17 | u32::from(spilled) << 31)
    }

    /// Bytes of the key after the prefix.
    pub(super) fn len(self) -> usize {
        (self.0 & 0x1_ffff) as usize
    }

    pub(super) fn at(self) -> usize {
        (self.0 >> 17 & 0x3fff) as usize
    }

    pub(super) fn spilled(self) -> bool {
        self.0 >> 31 == 1
    }

    /// Halves it takes in the heap.
    pub(super) fn halves(self) -> usize {
        if self.spilled() { SPILL_HALVES } else { suffix_halves(self.len()) }
    }
}

/// Halves of the suffix of a key of `len` bytes after the prefix.
pub(super) fn suffix_halves(len: usize) -> usize {
    len.saturating_sub(8).div_ceil(4)
}

/// Whether a key of `len` bytes after the prefix is too long for a node.
pub(super) fn spills(len: usize) -> bool {
    len > 8 + SUFFIX_MAX
}

/// The 8 bytes of `key` from `at`, big-endian, zero-padded.
#[inline]
pub(crate) fn head_of(key: &[u8], at: usize) -> u64 {
    match key.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let rest = key.get(at..).unwrap_or_default();
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

/// The 4 bytes of `key` from `at`, likewise.
#[inline]
pub(super) fn half_of(key: &[u8], at: usize) -> u32 {
    match key.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => (head_of(key, at) >> 32) as u32,
    }
}

impl Node {
    #[cfg(shuttle)]
    pub(super) fn zeroed() -> Node {
        Node(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    // Masked, not checked: torn offsets may point anywhere, and must stay inside the node.
    #[inline(always)]
    fn cell(&self, i: usize) -> &AtomicU64 {
        &self.0[i & (CELLS - 1)]
    }

    #[inline(always)]
    pub(super) fn read(&self, i: usize) -> u64 {
        self.cell(i).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn write(&self, i: usize, word: u64) {
        self.cell(i).store(word, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn half(&self, i: usize) -> u32 {
        (self.read(i >> 1) >> (32 - 32 * (i & 1))) as u32
    }

    /// For lock holders: replaces one half, keeping the other.
    #[inline(always)]
    pub(super) fn write_half(&self, i: usize, half: u32) {
        let shift = 32 - 32 * (i & 1);
        let kept = self.read(i >> 1) & !(0xffff_ffff << shift);
        self.write(i >> 1, kept | u64::from(half) << shift);
    }

    #[inline]
    pub(super) fn meta(&self) -> Meta {
        Meta(self.read(1))
    }

    pub(super) fn write_meta(&self, meta: Meta) {
        self.write(1, meta.0);
    }

    #[inline(always)]
    pub(super) fn head(&self, i: usize) -> u64 {
        self.read(HEADER + i)
    }

    #[inline]
    pub(super) fn ext(&self, meta: Meta, i: usize) -> Ext {
        Ext(self.half(meta.exts() * 2 + i))
    }

    pub(super) fn ext_at(meta: Meta, i: usize) -> usize {
        meta.exts() * 2 + i
    }

    /// Cell of slot `i` of a leaf.
    pub(super) fn slot_at(meta: Meta, i: usize) -> usize {
        meta.values() + i
    }

    /// Half of child `i` of an inner node.
    pub(super) fn child_at(meta: Meta, i: usize) -> usize {
        meta.values() * 2 + i
    }

    /// The word of slot `i`. Acquire: what it points to was written before it was stored.
    #[inline]
    pub(super) fn slot(&self, meta: Meta, i: usize) -> u64 {
        self.cell(Node::slot_at(meta, i)).load(Ordering::Acquire)
    }

    /// For holders of `SLOT`: replaces slot `i`.
    #[inline]
    pub(super) fn store_slot(&self, meta: Meta, i: usize, word: u64) {
        self.cell(Node::slot_at(meta, i)).store(word, Ordering::Release);
    }

    #[inline]
    pub(super) fn child(&self, meta: Meta, i: usize) -> u32 {
        self.half(Node::child_at(meta, i))
    }

    /// The address of a spilled key's blob; not to be followed before a check.
    pub(super) fn blob(&self, ext: Ext) -> u64 {
        u64::from(self.half(ext.at())) << 32 | u64::from(self.half(ext.at() + 1))
    }

    /// Starts loading the first `lines` cache lines.
    #[inline(always)]
    pub(super) fn prefetch(&self, lines: usize) {
        for line in 0..lines.min(CELLS / 8) {
            prefetch(&self.0[line * 8]);
        }
    }

    /// Starts loading what belongs to where `key` would be: its ext, and in a leaf its slot. Nothing is checked. Returns how
    /// many heads are less than that of `key`.
    #[inline]
    pub(super) fn prefetch_entry(&self, meta: Meta, key: &[u8]) -> usize {
        let at = self.heads_below(meta.count(), head_of(key, meta.prefix()));
        prefetch(self.cell(Node::ext_at(meta, at) >> 1));
        prefetch(self.cell(Node::slot_at(meta, at)));
        at
    }

    /// Starts loading the suffix of entry `at`.
    #[inline]
    pub(super) fn prefetch_suffix(&self, meta: Meta, at: usize) {
        let ext = self.ext(meta, at);
        prefetch(self.cell(ext.at() >> 1));
        prefetch(self.cell((ext.at() + ext.halves()) >> 1));
    }

    /// The version, once no structural writer is at work.
    #[inline]
    pub(super) fn stable(&self) -> u64 {
        let version = self.0[0].load(Ordering::Acquire);
        if version & STRUCT == 0 { version & !SLOT } else { self.stable_slowly() }
    }

    #[cold]
    fn stable_slowly(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            backoff.wait();
            let version = self.0[0].load(Ordering::Acquire);
            if version & STRUCT == 0 {
                return version & !SLOT;
            }
        }
    }

    /// `Ok` if everything read since `stable` gave `version` is consistent.
    #[inline(always)]
    pub(super) fn check(&self, version: u64) -> Result<(), Retry> {
        fence(Ordering::Acquire);
        if self.0[0].load(Ordering::Relaxed) & !SLOT == version { Ok(()) } else { Err(Retry) }
    }

    /// Excludes other writers, if the version is still `version`. Waits for a holder of `SLOT`.
    pub(super) fn lock_slots(&self, version: u64) -> Result<SlotLock<'_>, Retry> {
        self.acquire(version, version | SLOT)?;
        Ok(SlotLock { node: self, version })
    }

    /// Excludes everybody, if the version is still `version`.
    pub(super) fn lock(&self, version: u64) -> Result<NodeLock<'_>, Retry> {
        self.acquire(version, version | SLOT | STRUCT)?;
        fence(Ordering::Release);
        Ok(NodeLock { node: self, version, end: STEP })
    }

    fn acquire(&self, version: u64, locked: u64) -> Result<(), Retry> {
        let mut backoff = Backoff::new();
        loop {
            match self.0[0].compare_exchange_weak(version, locked, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) if now & !SLOT != version => return Err(Retry),
                Err(now) if now & SLOT != 0 => backoff.wait(),
                Err(_) => {}
            }
        }
    }

    /// Whether readers would have to wait.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_locked(&self) -> bool {
        self.0[0].load(Ordering::Relaxed) & STRUCT != 0
    }

    /// Makes a node that nobody can reach fit for use again.
    pub(super) fn revive(&self) {
        let version = self.0[0].load(Ordering::Relaxed);
        self.0[0].store((version & !(STEP - 1)) + STEP, Ordering::Relaxed);
    }

    /// How many of the `count` heads are less than `head`.
    #[inline(always)]
    fn heads_below(&self, count: usize, head: u64) -> usize {
        let (mut from, mut left) = (0, count);
        while left > 1 {
            let half = left / 2;
            // Unpredictable: a branch here costs a wrong guess every other step, more than the whole search without.
            from += hint::select_unpredictable(self.head(from + half - 1) < head, half, 0);
            left -= half;
        }
        from + usize::from(left == 1 && self.head(from) < head)
    }

    /// How many entries are less than `key`, and whether the next one equals it. `key` starts with the node's prefix.
    /// Meaningful only if `version` still holds afterwards; `Retry` may come early.
    #[inline]
    pub(super) fn search(&self, meta: Meta, key: &[u8], version: u64) -> Result<(usize, bool), Retry> {
        let from = self.heads_below(meta.count(), head_of(key, meta.prefix()));
        self.search_from(meta, from, key, version)
    }

    /// [`Node::search`] for who knows how many heads are less than that of `key`, by [`Node::prefetch_entry`].
    #[inline(always)]
    pub(super) fn search_from(
        &self,
        meta: Meta,
        from: usize,
        key: &[u8],
        version: u64,
    ) -> Result<(usize, bool), Retry> {
        let (count, head) = (meta.count(), head_of(key, meta.prefix()));
        if from >= count || self.head(from) != head {
            return Ok((from, false));
        }
        if from + 1 >= count || self.head(from + 1) != head {
            return Ok(match self.compare(meta, from, key, version)? {
                Cmp::Less => (from + 1, false),
                Cmp::Equal => (from, true),
                Cmp::Greater => (from, false),
            });
        }
        self.search_run(meta, from, key, version)
    }

    /// `search` among entries from `from` on whose heads equal the key's.
    #[cold]
    fn search_run(&self, meta: Meta, from: usize, key: &[u8], version: u64) -> Result<(usize, bool), Retry> {
        let head = self.head(from);
        let end = match head.checked_add(1) {
            Some(above) => self.heads_below(meta.count(), above),
            None => meta.count(),
        };
        if end <= from {
            // Heads moved meanwhile.
            return Err(Retry);
        }
        // Keys in order come to the end of a leaf whose prefix, at the tree's edge, is empty: look there first.
        if self.compare(meta, end - 1, key, version)? == Cmp::Less {
            return Ok((end, false));
        }
        let (mut low, mut high) = (from, end);
        while low < high {
            let middle = (low + high) / 2;
            match self.compare(meta, middle, key, version)? {
                Cmp::Less => low = middle + 1,
                Cmp::Equal => return Ok((middle, true)),
                Cmp::Greater => high = middle,
            }
        }
        Ok((low, false))
    }

    /// Entry `i`, whose head equals that of `key`, against `key`.
    #[inline]
    fn compare(&self, meta: Meta, i: usize, key: &[u8], version: u64) -> Result<Cmp, Retry> {
        let ext = self.ext(meta, i);
        let prefix = meta.prefix();
        if ext.spilled() {
            let raw = self.blob(ext);
            self.check(version)?;
            // SAFETY: checked, and the caller's guard was made before.
            let stored = unsafe { stored_key::key(raw) };
            return Ok(stored.get(prefix..).cmp(&key.get(prefix..)));
        }
        let len = key.len().saturating_sub(prefix);
        for half in 0..suffix_halves(ext.len()).min(suffix_halves(len)) {
            let (ours, theirs) = (self.half(ext.at() + half), half_of(key, prefix + 8 + half * 4));
            if ours != theirs {
                return Ok(ours.cmp(&theirs));
            }
        }
        Ok(ext.len().cmp(&len))
    }

    /// Appends the key of entry `i` after the prefix to `out`; `out` is undefined beyond its old length on `Retry`.
    pub(super) fn append_tail(
        &self,
        meta: Meta,
        i: usize,
        version: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Retry> {
        let ext = self.ext(meta, i);
        if ext.spilled() {
            let raw = self.blob(ext);
            self.check(version)?;
            // SAFETY: checked, and the caller's guard was made before.
            let stored = unsafe { stored_key::key(raw) };
            out.extend_from_slice(stored.get(meta.prefix()..).ok_or(Retry)?);
            return Ok(());
        }
        if spills(ext.len()) {
            return Err(Retry);
        }
        let end = out.len() + ext.len();
        out.extend_from_slice(&self.head(i).to_be_bytes());
        for half in 0..suffix_halves(ext.len()) {
            out.extend_from_slice(&self.half(ext.at() + half).to_be_bytes());
        }
        out.truncate(end);
        Ok(())
    }
}

/// The `SLOT` lock: dropping it lets other writers in.
pub(super) struct SlotLock<'a> {
    node: &'a Node,
    version: u64,
}

impl<'a> SlotLock<'a> {
    pub(super) fn node(&self) -> &'a Node {
        self.node
    }

    /// What `check` must see while the lock is held.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Goes on to exclude readers too. Nobody else changes the version word while `SLOT` is held.
    pub(super) fn escalate(self) -> NodeLock<'a> {
        let (node, version) = (self.node, self.version);
        std::mem::forget(self);
        node.0[0].store(version | SLOT | STRUCT, Ordering::Relaxed);
        fence(Ordering::Release);
        NodeLock { node, version, end: STEP }
    }
}

impl Drop for SlotLock<'_> {
    fn drop(&mut self) {
        self.node.0[0].store(self.version, Ordering::Release);
    }
}

/// Both locks: dropping it steps the version.
pub(super) struct NodeLock<'a> {
    pub(super) node: &'a Node,
    version: u64,
    end: u64,
}

impl NodeLock<'_> {
    /// What `check` must see while the lock is held.
    pub(super) fn version(&self) -> u64 {
        self.version | STRUCT
    }

    /// Unlocks a node that was not changed.
    pub(super) fn unchanged(mut self) {
        self.end = 0;
    }
}

impl Drop for NodeLock<'_> {
    fn drop(&mut self) {
        self.node.0[0].store(self.version + self.end, Ordering::Release);
    }
}
