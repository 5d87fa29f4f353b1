//! How often a thread had to wait for the disk to touch memory.
//!
//! Owns the count as the kernel keeps it. Must not know what was touched.
#![allow(unsafe_code)]

/// Page faults of the calling thread that read from a disk, since it began. A system call: a third of a microsecond. (Miri does not know it, nor
/// a disk.)
pub fn major_faults() -> u64 {
    if cfg!(miri) {
        return 0;
    }
    // SAFETY: a structure of integers, for which zeros are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid structure to fill.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_majflt as u64
}
