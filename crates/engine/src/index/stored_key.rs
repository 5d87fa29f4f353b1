//! The bytes of a key blob: the key's length, then the key.
//!
//! Owns: how they are read. Must not know: how they were allocated, and when they are freed (`index/blob.rs`).
#![allow(unsafe_code)]

use std::ptr;

/// Bytes before the key: its length.
pub(super) const HEADER: usize = size_of::<u64>();
/// The key in a blob.
///
/// # Safety
/// `raw` came from [`allocate`](super::blob::allocate) and is not freed during `'a`: the caller holds a guard made while the blob was
/// reachable, and has checked the version of the node it read `raw` from.
pub(super) unsafe fn key<'a>(raw: u64) -> &'a [u8] {
    let base = ptr::with_exposed_provenance::<u8>(raw as usize);
    // SAFETY: by the contract above; the header says how many bytes follow it.
    unsafe {
        let len = base.cast::<u64>().read() as usize;
        std::slice::from_raw_parts(base.add(HEADER), len)
    }
}
