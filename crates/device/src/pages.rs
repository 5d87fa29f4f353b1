//! Anonymous memory by the page: what [`Arena`](crate::Arena) and `map::Mapping` are made of.
//!
//! Owns where it comes from: the kernel; under `miri`, which knows no protection and no advice, the allocator, so that what is built on
//! it can be checked. Promises zeros at first, and the same meaning of each call in both. Must not know who uses it, nor files.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

pub(crate) use imp::{advise, make_accessible, release, reserve};

/// What the pages of a new reservation may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing before [`make_accessible`]: a touch traps.
    None,
    /// Loads and stores.
    ReadWrite,
}

#[cfg(not(miri))]
mod imp {
    use super::{Access, NonNull, io};

    /// Sets `bytes` of address space aside, a multiple of the page; memory comes when it is touched.
    pub(crate) fn reserve(bytes: usize, access: Access) -> io::Result<NonNull<u8>> {
        let protection = match access {
            Access::None => libc::PROT_NONE,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))
    }

    /// Gives a whole reservation back.
    ///
    /// # Safety
    /// `base` and `bytes` are those of [`reserve`], and nobody uses the memory now or later.
    pub(crate) unsafe fn release(base: NonNull<u8>, bytes: usize) {
        // SAFETY: by the contract above.
        unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
    }

    /// Makes pages of a reservation fit for loads and stores.
    ///
    /// # Safety
    /// They lie in a reservation of the caller's.
    pub(crate) unsafe fn make_accessible(start: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: by the contract above; only protection changes.
        match unsafe { libc::mprotect(start.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Tells the kernel what pages are for (`madvise`).
    ///
    /// # Safety
    /// They lie in a reservation of the caller's, and if the advice drops contents (`MADV_DONTNEED` of private memory), nobody refers to them.
    pub(crate) unsafe fn advise(start: *mut u8, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: by the contract above.
        match unsafe { libc::madvise(start.cast(), bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(miri)]
mod imp {
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::{Access, NonNull, io};

    /// Smaller than any page, and what the interpreter can number.
    const ALIGN: usize = 4096;
    const BYTES_MAX: usize = (1 << 30) + (4 << 20);

    fn layout(bytes: usize) -> io::Result<Layout> {
        if bytes > BYTES_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Layout::from_size_align(bytes, ALIGN).map_err(io::Error::other)
    }

    /// Takes `bytes` from the allocator. What may be done with them is not kept.
    pub(crate) fn reserve(bytes: usize, _: Access) -> io::Result<NonNull<u8>> {
        if bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let layout = layout(bytes)?;
        // SAFETY: not of no bytes, checked above.
        NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Gives a whole reservation back.
    ///
    /// # Safety
    /// `base` and `bytes` are those of [`reserve`], and nobody uses the memory now or later.
    pub(crate) unsafe fn release(base: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = layout(bytes) {
            // SAFETY: by the contract above: allocated with this layout, which depends on `bytes` alone.
            unsafe { dealloc(base.as_ptr(), layout) };
        }
    }

    /// Nothing: memory of the allocator is fit for loads and stores.
    ///
    /// # Safety
    /// As of the kernel's: pages of a reservation of the caller's.
    pub(crate) unsafe fn make_accessible(_: *mut u8, _: usize) -> io::Result<()> {
        Ok(())
    }

    /// Does what of the advice can be seen: what is dropped reads as zeros.
    ///
    /// # Safety
    /// As of the kernel's: the pages lie in a reservation of the caller's, and if the advice drops contents (`MADV_DONTNEED`), nobody refers to them.
    pub(crate) unsafe fn advise(start: *mut u8, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        if advice == libc::MADV_DONTNEED {
            // SAFETY: by the contract above: the caller's, and nobody refers to it.
            unsafe { start.write_bytes(0, bytes) };
        }
        Ok(())
    }
}
