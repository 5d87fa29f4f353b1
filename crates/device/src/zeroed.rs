//! Words of memory that are zero, and take none before they are touched.
//!
//! Owns nothing. Must not know what the words mean.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

/// `count` words, all zero. The kernel gives the pages of a large number of them when they are first touched.
pub fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    // Memory that is asked for as zeros is not written to.
    let words = Box::into_raw(vec![0_u64; count].into_boxed_slice());
    // SAFETY: let go of just now, so it is owned by nobody else; an AtomicU64 has the layout of a u64 where both are aligned to
    // 8 bytes (checked below), and any bits are a value of it.
    unsafe { Box::from_raw(words as *mut [AtomicU64]) }
}

const _: () = assert!(align_of::<AtomicU64>() == align_of::<u64>());

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_zero_and_apart() {
        let words = zeroed_words(if cfg!(miri) { 1 << 8 } else { 1 << 20 });
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[7].store(9, Ordering::Relaxed);
        assert_eq!([6, 7, 8].map(|at: usize| words[at].load(Ordering::Relaxed)), [0, 9, 0]);
        assert!(zeroed_words(0).is_empty());
    }
}
