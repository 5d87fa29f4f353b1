//! Having a line of DRAM on its way before it is needed.
//!
//! Owns the instruction. Promises that it has no effect but on the processor's caches. Must not know media: lines of a tier are [`FastTier::prefetch`](crate::FastTier::prefetch)'s.

#![allow(unsafe_code)]

/// Starts loading the cache line in which `place` begins, to be in the nearest cache.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of a valid address; it has no effect but on caches. SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
    }
    let _ = place;
}
