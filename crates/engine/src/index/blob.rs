//! Key blobs: whole keys kept outside the node when they are too long for it.
//!
//! Owns: the allocation of a blob. Promises: a blob never changes between being made and freed. Must not know: which
//! node holds it. A blob is named by its address in a `u64`, never zero, as it is stored in node cells.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::ptr;

use super::Index;
use super::arena::{Budget, IndexFull, NodeArena};
use super::stored_key::{HEADER, key};
use crate::epoch::{Epoch, Garbage};
use crate::sync::Arc;

/// What the allocator adds to a piece, about; counted against the budget.
const OVERHEAD: usize = 16;

/// What a blob of a key of `key_len` bytes costs of the budget.
pub(super) fn cost(key_len: usize) -> u64 {
    (HEADER + key_len + OVERHEAD) as u64
}

fn layout(key_len: usize) -> Option<Layout> {
    Layout::from_size_align(HEADER.checked_add(key_len)?, align_of::<u64>()).ok()
}

/// A blob of `key`, or `IndexFull` if neither the budget nor the allocator has room.
///
/// # Panics
/// If the key is longer than an entry can say. Every key that is too long for a node comes by here, so nobody else looks.
pub(super) fn allocate(arena: &NodeArena, key: &[u8], budget: Budget<'_>) -> Result<u64, IndexFull> {
    assert!(key.len() <= Index::KEY_BYTES_MAX, "a key of {} bytes", key.len());
    let layout = layout(key.len()).ok_or_else(|| arena.full())?;
    let charge = cost(key.len());
    arena.charge(charge, budget)?;
    // SAFETY: the layout is not empty; the writes stay within it and are aligned.
    unsafe {
        let base = alloc(layout);
        if base.is_null() {
            arena.discharge(charge);
            return Err(arena.full());
        }
        base.cast::<u64>().write(key.len() as u64);
        ptr::copy_nonoverlapping(key.as_ptr(), base.add(HEADER), key.len());
        Ok(base.expose_provenance() as u64)
    }
}

/// Frees a blob.
///
/// # Safety
/// `raw` came from [`allocate`] and nobody uses it now or later.
pub(super) unsafe fn free(arena: &NodeArena, raw: u64) {
    // SAFETY: by the contract above.
    let len = unsafe { key(raw) }.len();
    if let Some(layout) = layout(len) {
        arena.discharge(cost(len));
        // SAFETY: allocated with this very layout, which depends on the length alone.
        unsafe { dealloc(ptr::with_exposed_provenance_mut(raw as usize), layout) };
    }
}

struct Retired {
    arena: Arc<NodeArena>,
    raw: u64,
}

impl Garbage for Retired {
    fn free(self: Box<Self>, _: &mut usize) -> Option<Box<dyn Garbage>> {
        // SAFETY: by the contract of `retire`, and the epoch calls this when nobody can reach the blob any more.
        unsafe { free(&self.arena, self.raw) };
        None
    }
}

/// Frees a blob, already unlinked, when its readers are gone.
///
/// # Safety
/// `raw` came from [`allocate`], for this arena; no node leads to it any more, who can still reach it holds a guard of `epoch`, and it is
/// retired once.
pub(super) unsafe fn retire(arena: &Arc<NodeArena>, epoch: &Epoch, raw: u64) {
    epoch.defer(Box::new(Retired { arena: arena.clone(), raw }));
}
