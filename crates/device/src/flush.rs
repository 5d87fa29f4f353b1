//! Cache lines: write-back and the fence that waits for it, fetching them ahead, and waiting for them.
//!
//! Owns the instructions `clwb`, `clflushopt`, `clflush`, `prefetcht1`, `mov` (x86-64) and `dc cvap`, `dc civac`, `prfm`, `ldr` (aarch64). Promises that after
//! [`write_back`] and then [`fence`], the lines are in the persistence domain of the memory they map. Must not know which
//! memory that is.
#![allow(unsafe_code)]

/// Bytes of a cache line, the granule that is written back.
pub(crate) const LINE_BYTES: u64 = 64;

/// Whether this processor can write a line back to persistent memory.
pub(crate) fn can_write_back() -> bool {
    imp::can_write_back()
}

/// Starts the write-back of every line that the `len` bytes at `address` touch. Does not wait: see [`fence`]. Contents never change.
///
/// # Safety
/// The bytes are mapped: elsewhere it traps as a load would.
pub(crate) unsafe fn write_back(address: u64, len: u64) {
    // SAFETY: by the contract above.
    unsafe { imp::write_back(address, len) };
}

/// Starts to bring the lines of the `len` bytes at `address` into the second-level cache. A hint: an address that is not mapped is
/// ignored.
#[inline(always)]
pub(crate) fn fetch(address: u64, len: u64) {
    (address..address + len).step_by(LINE_BYTES as usize).for_each(imp::fetch);
}

/// Drops every line that the `len` bytes at `address` touch from the processor's caches, where it can be done. Contents never change.
///
/// # Safety
/// The bytes are mapped.
pub(crate) unsafe fn evict(address: u64, len: u64) {
    // SAFETY: by the contract above.
    unsafe { imp::evict(address, len) };
}

/// Waits for the word at `address`, a multiple of 8, to arrive, and answers with some number: for measuring how long that takes. What
/// follows by way of the number begins after it. 0 where the processor is asked for nothing.
///
/// To the language this is no load. The number is any number, and comes from nowhere that the language knows of, so others may store to the
/// word meanwhile, in whatever pieces.
///
/// # Safety
/// The word is mapped.
#[inline]
pub(crate) unsafe fn await_word(address: u64) -> u64 {
    debug_assert!(address.is_multiple_of(8), "a word that lies in two lines");
    // SAFETY: by the contract above.
    unsafe { imp::await_word(address) }
}

/// Waits until every write-back this thread started has reached the persistence domain.
#[inline]
pub(crate) fn fence() {
    imp::fence();
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use super::LINE_BYTES;
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_sfence};
    use std::sync::OnceLock;

    #[derive(Clone, Copy, PartialEq)]
    enum Instruction {
        /// Keeps the line in the cache.
        Clwb,
        /// Drops the line, in any order with others.
        Clflushopt,
        /// Drops the line, one after the other. Every x86-64 has it.
        Clflush,
    }

    fn instruction() -> Instruction {
        static FOUND: OnceLock<Instruction> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let leaves = __cpuid(0).eax;
            let features = if leaves >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
            if features & (1 << 24) != 0 {
                Instruction::Clwb
            } else if features & (1 << 23) != 0 {
                Instruction::Clflushopt
            } else {
                Instruction::Clflush
            }
        })
    }

    pub(super) fn can_write_back() -> bool {
        true
    }

    /// # Safety
    /// As of the parent's.
    pub(super) unsafe fn write_back(address: u64, len: u64) {
        let mut line = address & !(LINE_BYTES - 1);
        let end = address + len;
        let instruction = instruction();
        while line < end {
            // SAFETY: the line holds a byte the caller says is mapped; the instructions change no contents and are present
            // by CPUID. Without `nomem` the compiler keeps earlier stores before them.
            unsafe {
                match instruction {
                    Instruction::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Instruction::Clflushopt => {
                        asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                    }
                    Instruction::Clflush => {
                        asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags))
                    }
                }
            }
            line += LINE_BYTES;
        }
    }

    /// # Safety
    /// As of the parent's.
    pub(super) unsafe fn evict(address: u64, len: u64) {
        for line in (address & !(LINE_BYTES - 1)..address + len).step_by(LINE_BYTES as usize) {
            // SAFETY: the line holds a byte the caller says is mapped; every x86-64 has the instruction, and it changes no
            // contents.
            unsafe { asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)) }
        }
        // SAFETY: a barrier, of SSE2, which every x86-64 has: loads after it find the lines gone.
        unsafe { std::arch::x86_64::_mm_mfence() };
    }

    /// # Safety
    /// As of the parent's.
    #[inline]
    pub(super) unsafe fn await_word(address: u64) -> u64 {
        let number: u64;
        // SAFETY: the caller says that the word is mapped; nothing is stored.
        unsafe {
            asm!("mov {}, [{}]", out(reg) number, in(reg) address, options(nostack, preserves_flags, readonly));
        }
        number
    }

    #[inline(always)]
    pub(super) fn fetch(line: u64) {
        // SAFETY: a prefetch of any address; it loads nothing the program can see. SSE is part of x86-64.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(
                std::ptr::without_provenance(line as usize),
            );
        }
    }

    #[inline]
    pub(super) fn fence() {
        // PERSIST: clwb and clflushopt are ordered only by a fence; after it the lines are in the persistence domain (ADR).
        // SAFETY: a barrier, of SSE, which every x86-64 has.
        unsafe { _mm_sfence() };
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use super::LINE_BYTES;
    use std::arch::asm;

    /// `DC CVAP`, clean to the point of persistence, since Armv8.2.
    const HWCAP_DCPOP: u64 = 1 << 16;

    pub(super) fn can_write_back() -> bool {
        // SAFETY: reads a word the kernel left in the auxiliary vector.
        unsafe { libc::getauxval(libc::AT_HWCAP) & HWCAP_DCPOP != 0 }
    }

    /// # Safety
    /// As of the parent's.
    pub(super) unsafe fn write_back(address: u64, len: u64) {
        if !can_write_back() {
            return;
        }
        let mut line = address & !(LINE_BYTES - 1);
        let end = address + len;
        while line < end {
            // SAFETY: the line is mapped, the instruction changes no contents and is present by HWCAP. It is written as
            // its system-instruction encoding, since the assembler may not know the feature.
            unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags)) };
            line += LINE_BYTES;
        }
    }

    /// # Safety
    /// As of the parent's.
    pub(super) unsafe fn evict(address: u64, len: u64) {
        for line in (address & !(LINE_BYTES - 1)..address + len).step_by(LINE_BYTES as usize) {
            // SAFETY: the line is mapped; Linux lets programs clean and invalidate lines by address, and no contents change.
            unsafe { asm!("dc civac, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        fence();
    }

    /// # Safety
    /// As of the parent's.
    #[inline]
    pub(super) unsafe fn await_word(address: u64) -> u64 {
        let number: u64;
        // SAFETY: the caller says that the word is mapped; nothing is stored.
        unsafe {
            asm!("ldr {}, [{}]", out(reg) number, in(reg) address, options(nostack, preserves_flags, readonly));
        }
        number
    }

    #[inline(always)]
    pub(super) fn fetch(line: u64) {
        // SAFETY: a prefetch of any address; it loads nothing the program can see.
        unsafe {
            asm!("prfm pldl2keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
    }

    #[inline]
    pub(super) fn fence() {
        // PERSIST: DSB waits for the cleans before it to reach the point of persistence.
        // SAFETY: a barrier.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    pub(super) fn can_write_back() -> bool {
        false
    }

    /// # Safety
    /// None: it does nothing.
    pub(super) unsafe fn write_back(_address: u64, _len: u64) {}

    /// # Safety
    /// None: it does nothing.
    pub(super) unsafe fn evict(_address: u64, _len: u64) {}

    /// # Safety
    /// None: it asks for nothing.
    pub(super) unsafe fn await_word(_address: u64) -> u64 {
        0
    }

    pub(super) fn fetch(_line: u64) {}

    pub(super) fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}
