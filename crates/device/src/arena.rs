//! A large range of anonymous memory, reserved at once and touched bit by bit.
//!
//! Owns: one private mapping and its page advice. Promises: the range never moves, is zero where it was never written,
//! and stays mapped until the `Arena` is dropped. Must not know: what the bytes mean.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use crate::pages::{self, Access};

/// Bytes of one small page. Larger base pages only make advice coarser.
const PAGE: usize = 4096;

/// A reserved range of zeroed memory whose pages are given by the kernel when first touched or by [`Arena::populate`].
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an `Arena` is an address and a length; it hands out no references, and all its methods may run at once.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `bytes`, rounded up to a page, without taking memory for them.
    ///
    /// # Errors
    /// `InvalidInput` for zero bytes; what the system says if the address space is not to be had.
    pub fn reserve(bytes: usize) -> io::Result<Arena> {
        if bytes == 0 || bytes > isize::MAX as usize - PAGE {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an arena takes 1 byte to isize::MAX"));
        }
        let len = bytes.next_multiple_of(PAGE);
        let base = pages::reserve(len, Access::ReadWrite)?;
        Ok(Arena { base, len })
    }

    /// The first byte; aligned to a page. Valid for reads and writes of `len` bytes while `self` lives.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes reserved.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an arena has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives memory to the pages of `[from, from + bytes)` now, so that no later access of them faults. Contents stay.
    /// A kernel that cannot (before Linux 5.14) does nothing.
    ///
    /// # Errors
    /// `OutOfMemory` and the like from the kernel. Ranges outside the arena are cut to it.
    pub fn populate(&self, from: usize, bytes: usize) -> io::Result<()> {
        match self.advise(from, bytes, libc::MADV_POPULATE_WRITE) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            done => done,
        }
    }

    /// Asks for 2 MiB pages under the whole range. A hint: a kernel without them is no error.
    pub fn prefer_huge_pages(&self) {
        let _ = self.advise(0, self.len, libc::MADV_HUGEPAGE);
    }

    fn advise(&self, from: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        let from = from.min(self.len) / PAGE * PAGE;
        let end = from.saturating_add(bytes).min(self.len);
        if from >= end {
            return Ok(());
        }
        // SAFETY: the range lies inside our mapping; neither advice used here changes contents.
        unsafe { pages::advise(self.base.as_ptr().add(from), end - from, advice) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and nobody may use it after the arena is gone.
        unsafe { pages::release(self.base, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::Arena;

    #[test]
    fn memory_is_zero_writable_and_keeps_its_contents_when_populated() {
        let arena = Arena::reserve(64 << 20).expect("reserve");
        assert_eq!(arena.len(), 64 << 20);
        let at = 5 << 20;
        // SAFETY: inside the arena, and no other thread touches it.
        unsafe {
            let byte = arena.base().as_ptr().add(at);
            assert_eq!(byte.read(), 0);
            byte.write(7);
            arena.populate(4 << 20, 2 << 20).expect("populate");
            assert_eq!(byte.read(), 7);
        }
        arena.prefer_huge_pages();
        arena.populate(63 << 20, 9 << 20).expect("cut to the arena");
        arena.populate(90 << 20, 1).expect("outside is nothing");
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        assert!(Arena::reserve(0).is_err());
        assert!(Arena::reserve(usize::MAX).is_err());
    }
}
