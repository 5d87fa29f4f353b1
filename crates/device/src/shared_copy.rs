//! Bytes that stay in memory, under one word.
//!
//! Owns [`SharedCopy`]. Promises that it takes no more memory than its bytes, two counts and a length; and that it can be known by an address alone, as what many look up without a lock must be. Must not know who
//! keeps the address, nor until when.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::relaxed::SharedBytes;

/// A copy of [`SharedBytes`], lent as they are, and no longer than they. Clones are the same.
#[derive(Clone)]
pub struct SharedCopy {
    /// How many words follow, then these.
    words: Arc<[AtomicU64]>,
}

impl SharedCopy {
    /// Of bytes to which nobody stores now.
    pub fn of(bytes: &SharedBytes) -> SharedCopy {
        let words = std::iter::once(bytes.words().len() as u64).chain(bytes.words());
        SharedCopy { words: words.map(AtomicU64::new).collect() }
    }

    /// The bytes.
    #[inline]
    pub fn shared(&self) -> &SharedBytes {
        // SAFETY: words of ours, to which nobody stores; the first says how many follow, and is always there.
        unsafe { SharedBytes::from_raw(self.words.as_ptr().add(1).cast(), self.words.len() - 1) }
    }

    /// The copy as an address, which is a multiple of 8, for whoever keeps it in a word; to be taken [back](SharedCopy::from_address), or it stays for good.
    pub fn into_address(self) -> usize {
        Arc::into_raw(self.words).cast::<AtomicU64>().expose_provenance()
    }

    /// The copy that has become this address, back from there.
    ///
    /// # Safety
    /// [`SharedCopy::into_address`] gave it, and it is taken back once.
    pub unsafe fn from_address(address: usize) -> SharedCopy {
        // SAFETY: the caller's; it is what `Arc::into_raw` gave.
        SharedCopy { words: unsafe { Arc::from_raw(words_at(address)) } }
    }

    /// A clone of the copy that has become this address.
    ///
    /// # Safety
    /// [`SharedCopy::into_address`] gave it, and it is not taken back before this returns.
    #[inline]
    pub unsafe fn clone_at(address: usize) -> SharedCopy {
        // SAFETY: the caller's; it is what `Arc::into_raw` gave, and one count at least is left until it is taken back.
        unsafe {
            let words = words_at(address);
            Arc::increment_strong_count(words);
            SharedCopy { words: Arc::from_raw(words) }
        }
    }
}

/// The words at an address, as `Arc::into_raw` gave them.
///
/// # Safety
/// [`SharedCopy::into_address`] gave it, and it is not taken back before this returns.
#[inline]
unsafe fn words_at(address: usize) -> *const [AtomicU64] {
    let words = std::ptr::with_exposed_provenance::<AtomicU64>(address);
    // SAFETY: the caller's: a copy lies there, whose first word says how many follow.
    let following = unsafe { (*words).load(Ordering::Relaxed) } as usize;
    std::ptr::slice_from_raw_parts(words, 1 + following)
}

impl fmt::Debug for SharedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.shared(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_found_by_its_address_until_it_is_taken_back() {
        for len in [0, 1, 5, 200] {
            let mut words: Vec<u64> = (1..=len).collect();
            let copy = SharedCopy::of(SharedBytes::of(&mut words));
            words.clear();
            let address = copy.clone().into_address();
            assert!(address.is_multiple_of(8));
            drop(copy);
            // SAFETY: given above, and not taken back yet.
            let clone = unsafe { SharedCopy::clone_at(address) };
            // SAFETY: given above, and taken back here alone.
            let back = unsafe { SharedCopy::from_address(address) };
            assert_eq!(back.shared().to_words(), (1..=len).collect::<Vec<u64>>());
            drop(back);
            assert_eq!(clone.shared().len() as u64, 8 * len);
        }
    }
}
