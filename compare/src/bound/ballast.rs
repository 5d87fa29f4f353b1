//! Memory taken out of the way, so that less is left to all.
//!
//! Owns the locked mapping. Promises that its pages are in memory until it is dropped.

// Mapping and locking memory is unsafe; there is no other way to take it away.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs;
use std::io;

use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munmap};

/// Locked memory.
#[derive(Debug)]
pub(crate) struct Ballast {
    place: *mut c_void,
    bytes: usize,
}

impl Ballast {
    /// Locks so many bytes.
    pub(crate) fn lock(bytes: u64) -> io::Result<Ballast> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a new mapping, where nothing else lies; it is used by nobody but the kernel.
        let place = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let ballast = Ballast { place, bytes };
        // SAFETY: the mapping is this long, and stays until the ballast is dropped.
        unsafe { mlock(ballast.place, ballast.bytes)? };
        Ok(ballast)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // SAFETY: the mapping is this ballast's alone, and nothing refers to it.
        let _ = unsafe { munmap(self.place, self.bytes) };
    }
}

/// Bytes that processes could have now: free, or of the page cache.
pub(crate) fn available() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes << 10)
        .ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked() -> u64 {
        let text = fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    }

    #[test]
    fn a_ballast_is_locked_until_it_is_dropped() {
        let before = locked();
        let ballast = Ballast::lock(4 << 20).unwrap();
        assert_eq!((locked() - before, ballast.bytes()), (4 << 20, 4 << 20));
        drop(ballast);
        assert_eq!(locked(), before);
        assert!(Ballast::lock(1 << 60).is_err());
    }
}
