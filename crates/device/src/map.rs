//! Address space: one reservation per tier, filled from the front as the tier grows.
//!
//! Owns the `mmap` calls. Promises that the base address never moves and that a page once mapped stays mapped until the
//! [`Mapping`] is dropped, so that pointers into it stay good across growth. Must not know what the bytes mean.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pages::{self, Access};

/// Alignment of the base address: lets the kernel use 2 MiB pages where it can.
const BASE_ALIGN: usize = 2 << 20;
/// How much one `madvise` call populates: short enough that a growing thread never waits long for the address space.
const POPULATE_STEP: usize = 4 << 20;
/// Pages whose presence is asked for at once.
const PAGES_A_LOOK: usize = 128;
/// Since Linux 5.14; older kernels answer `EINVAL`, which is ignored.
const MADV_POPULATE_READ: libc::c_int = 22;
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// The machine's page size in bytes.
pub(crate) fn page_bytes() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| {
        // SAFETY: sysconf reads a constant and touches no memory of ours.
        let answer = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(answer).ok().filter(|n| n.is_power_of_two()).unwrap_or(4096)
    })
}

/// Which mapping a file's pages get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileAccess {
    /// Loads only.
    Read,
    /// Loads and stores through the page cache.
    Write,
    /// Loads and stores to persistent memory, the file's metadata durable before a page becomes writable (`MAP_SYNC`).
    WriteSync,
    /// Loads from the file, and stores to pages of this process's own, which nobody else sees and which end with the mapping.
    Copy,
}

impl FileAccess {
    /// Whether what is stored goes to the file.
    pub(crate) fn changes_file(self) -> bool {
        matches!(self, FileAccess::Write | FileAccess::WriteSync)
    }

    fn protection(self) -> libc::c_int {
        match self {
            FileAccess::Read => libc::PROT_READ,
            FileAccess::Write | FileAccess::WriteSync | FileAccess::Copy => {
                libc::PROT_READ | libc::PROT_WRITE
            }
        }
    }

    fn flags(self) -> libc::c_int {
        match self {
            FileAccess::Read | FileAccess::Write => libc::MAP_SHARED,
            FileAccess::WriteSync => libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC,
            // However long the file is, memory is wanted for what is stored alone.
            FileAccess::Copy => libc::MAP_PRIVATE | libc::MAP_NORESERVE,
        }
    }
}

/// A reserved stretch of address space. Pages not yet mapped trap.
#[derive(Debug)]
pub(crate) struct Mapping {
    whole: NonNull<u8>,
    whole_bytes: usize,
    base: NonNull<u8>,
    bytes: usize,
    /// See [`Mapping::read_nothing_ahead`].
    reads_ahead: AtomicBool,
    /// See [`Mapping::lease`].
    is_leased: AtomicBool,
}

// SAFETY: a Mapping is address space, not data; the kernel calls it makes are safe from any thread, and who may touch
// which bytes is settled by the rules of TierBytes.
unsafe impl Send for Mapping {}
// SAFETY: as above; what methods change of the struct are atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `wanted` bytes of address space, or less where the process may not have so much, but at least `needed`.
    pub(crate) fn reserve(wanted: u64, needed: u64) -> io::Result<Mapping> {
        let page = page_bytes();
        let needed = needed.next_multiple_of(page).max(page);
        let mut bytes = wanted.min(1 << 46).next_multiple_of(page).max(needed);
        loop {
            match Mapping::reserve_exactly(bytes as usize) {
                Ok(mapping) => return Ok(mapping),
                Err(refused) if bytes == needed => return Err(refused),
                Err(_) => bytes = (bytes / 2).next_multiple_of(page).max(needed),
            }
        }
    }

    fn reserve_exactly(bytes: usize) -> io::Result<Mapping> {
        let whole_bytes = bytes + BASE_ALIGN;
        let whole = pages::reserve(whole_bytes, Access::None)?;
        let skip = whole.as_ptr().align_offset(BASE_ALIGN);
        assert!(skip < BASE_ALIGN, "an address can be rounded up");
        // SAFETY: skip < BASE_ALIGN, checked above, and the mapping is BASE_ALIGN longer than `bytes`.
        let base = unsafe { whole.add(skip) };
        let (reads_ahead, is_leased) = (AtomicBool::new(true), AtomicBool::new(false));
        Ok(Mapping { whole, whole_bytes, base, bytes, reads_ahead, is_leased })
    }

    /// Where byte 0 is.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Whether the bytes are given out, to whoever may load and store them: once, however many tiers the mapping is under.
    pub(crate) fn lease(&self) -> &AtomicBool {
        &self.is_leased
    }

    /// Bytes reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn at(&self, from: u64, to: u64) -> (*mut u8, usize) {
        assert!(
            from <= to && to <= self.bytes(),
            "range {from}..{to} lies in the reservation of {}",
            self.bytes
        );
        // SAFETY: just checked to lie inside the reservation.
        let start = unsafe { self.base.add(from as usize) };
        (start.as_ptr(), (to - from) as usize)
    }

    /// Maps bytes `from..to` of `file` at the same offsets here. `from` is rounded down to a page. Pages mapped before
    /// keep their contents: they are the same pages of the same file.
    ///
    /// # Safety
    /// What is mapped here already is of that file. It has blocks for all these bytes, or a store would trap.
    pub(crate) unsafe fn map_file(
        &self,
        from: u64,
        to: u64,
        file: &File,
        access: FileAccess,
    ) -> io::Result<()> {
        let from = from - from % page_bytes();
        let (start, bytes) = self.at(from, to);
        if bytes == 0 {
            return Ok(());
        }
        let flags = access.flags() | libc::MAP_FIXED;
        // SAFETY: MAP_FIXED replaces only pages of our own reservation: unused ones, or the same page of the same file,
        // which a concurrent reader finds unchanged, by the contract above.
        let answer = unsafe {
            libc::mmap(start.cast(), bytes, access.protection(), flags, file.as_raw_fd(), from as libc::off_t)
        };
        if answer == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if !self.reads_ahead.load(Ordering::SeqCst) {
            self.advise_random(from, to);
        }
        Ok(())
    }

    /// From now on nothing is read ahead of a page of the file, mapped up to `to`, that is touched; of what is mapped later, too. A hint.
    ///
    /// What lies beside a row is another row: with a readahead of 8 MiB, as some disks have it, a store larger than memory reads
    /// thousands of rows for one. Who knows what he will touch says so ([`Mapping::will_need`]). But while there is memory enough,
    /// readahead brings pages in large folios: fewer faults, fewer translations, fewer interrupts when they are written.
    pub(crate) fn read_nothing_ahead(&self, to: u64) {
        self.reads_ahead.store(false, Ordering::SeqCst);
        self.advise_random(0, to);
    }

    fn advise_random(&self, from: u64, to: u64) {
        let (start, bytes) = self.at(from, to);
        // SAFETY: advice; it changes no contents.
        let _ = unsafe { pages::advise(start, bytes, libc::MADV_RANDOM) };
    }

    /// Has the bytes `from..to` of the mapped file read, as far as they are not in memory, and waits for none of them. Best effort.
    pub(crate) fn will_need(&self, from: u64, to: u64) {
        let (start, bytes) = self.at(from - from % page_bytes(), to);
        // SAFETY: advice; it changes no contents.
        let _ = unsafe { pages::advise(start, bytes, libc::MADV_WILLNEED) };
    }

    /// Whether all pages of the bytes `from..to` of the mapped file are in memory. Where the kernel does not say, they are.
    pub(crate) fn is_in_memory(&self, from: u64, to: u64) -> bool {
        let mut from = from - from % page_bytes();
        let mut pages = [0u8; PAGES_A_LOOK];
        while from < to {
            let step = (to - from).min(PAGES_A_LOOK as u64 * page_bytes());
            let (start, bytes) = self.at(from, from + step);
            // SAFETY: it writes a byte for each page of the range, of which there are PAGES_A_LOOK at most.
            if unsafe { libc::mincore(start.cast(), bytes, pages.as_mut_ptr()) } != 0 {
                return true;
            }
            let looked_at = step.div_ceil(page_bytes()) as usize;
            if pages[..looked_at].iter().any(|page| page & 1 == 0) {
                return false;
            }
            from += step;
        }
        true
    }

    /// Makes bytes `from..to` zeroed memory of this process. `from` is a multiple of the page.
    pub(crate) fn map_memory(&self, from: u64, to: u64) -> io::Result<()> {
        let (start, bytes) = self.at(from, to);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: only pages of our own anonymous reservation change protection, from none to read and write.
        unsafe { pages::make_accessible(start, bytes) }
    }

    /// Gives the memory of `from..to`, mapped by [`Mapping::map_memory`], back; it reads as zeros from now on. False, and nothing happens, where
    /// those are no whole pages: the kernel would take the rest of the last one as well.
    ///
    /// # Safety
    /// Nobody refers to these bytes.
    pub(crate) unsafe fn release_memory(&self, from: u64, to: u64) -> bool {
        if !from.is_multiple_of(page_bytes()) || !to.is_multiple_of(page_bytes()) {
            return false;
        }
        let (start, bytes) = self.at(from, to);
        // SAFETY: private memory of our own reservation, which nobody refers to, by the contract above; and no byte of a page beside it goes, by
        // the check.
        unsafe { pages::advise(start, bytes, libc::MADV_DONTNEED).is_ok() }
    }

    /// Asks for 2 MiB pages behind `from..to`. A hint.
    pub(crate) fn advise_huge_pages(&self, from: u64, to: u64) {
        let (start, bytes) = self.at(from, to);
        // SAFETY: a hint on our own reservation; it changes no contents. Its failure is of no consequence.
        let _ = unsafe { pages::advise(start, bytes, libc::MADV_HUGEPAGE) };
    }

    /// Takes the write faults of `from..to` now. Best effort: a kernel that cannot do it leaves them for later.
    pub(crate) fn populate(&self, from: u64, to: u64) {
        let _ = self.populate_by(MADV_POPULATE_WRITE, from, to);
    }

    /// The same for read faults: pages that nobody stored to are not dirty then, and not written by the next sync.
    pub(crate) fn populate_clean(&self, from: u64, to: u64) {
        let _ = self.populate_by(MADV_POPULATE_READ, from, to);
    }

    /// Maps the pages of `from..to` anew, clean: what was stored to them is left to the file.
    ///
    /// When the kernel writes a dirty page it first takes the right to store to it away, in every processor that may have it in its
    /// table of translations: an interrupt a page. Here all of them lose it at once.
    ///
    /// # Safety
    /// A file is mapped here ([`Mapping::map_file`]), not memory, which would be gone.
    pub(crate) unsafe fn remap(&self, from: u64, to: u64) {
        let (start, bytes) = self.at(from - from % page_bytes(), to);
        // SAFETY: advice. The mapping is shared: what it lets go of is in the file, and comes back when it is touched.
        let _ = unsafe { pages::advise(start, bytes, libc::MADV_DONTNEED) };
        self.populate_clean(from, to);
    }

    /// Best effort. Whether all of it was.
    fn populate_by(&self, advice: libc::c_int, from: u64, to: u64) -> bool {
        let mut from = from - from % page_bytes();
        while from < to {
            let step = (to - from).min(POPULATE_STEP as u64);
            let (start, bytes) = self.at(from, from + step);
            // SAFETY: populating changes no contents, and reports what would be SIGBUS as an error.
            if unsafe { pages::advise(start, bytes, advice) }.is_err() {
                return false;
            }
            from += step;
        }
        true
    }

    /// Makes those pages of `from..to` dirty that are in memory, and stores nothing. False if the kernel cannot.
    ///
    /// All translations are dropped first. A page that is mapped for reading would be made dirty by a fault of its own, and each of them goes
    /// over all of its folio, of up to 512 pages: 3 GiB took 5.7 s so, and 0.3 s without translations (ext4, Linux 6.18).
    ///
    /// # Safety
    /// A file is mapped here ([`Mapping::map_file`]), not memory, which would be gone.
    pub(crate) unsafe fn rewrite(&self, from: u64, to: u64) -> bool {
        let mut from = from - from % page_bytes();
        while from < to {
            let step = (to - from).min(POPULATE_STEP as u64);
            let (start, bytes) = self.at(from, from + step);
            // SAFETY: advice. The mapping is shared: what it lets go of is in the file, and comes back when it is touched.
            let _ = unsafe { pages::advise(start, bytes, libc::MADV_DONTNEED) };
            for (first, pages) in self.in_memory(from, from + step) {
                if !self.populate_by(MADV_POPULATE_WRITE, first, first + pages) {
                    return false;
                }
            }
            from += step;
        }
        true
    }

    /// Which runs of pages of `from..to` are in memory: where each begins, and how many bytes it has. All, if the kernel does not say.
    fn in_memory(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let (start, bytes) = self.at(from, to);
        let mut pages = vec![0u8; bytes.div_ceil(page_bytes() as usize)];
        // SAFETY: a question about a range of our own reservation; the kernel writes a byte for each page of it.
        if unsafe { libc::mincore(start.cast(), bytes, pages.as_mut_ptr()) } != 0 {
            return vec![(from, to - from)];
        }
        let mut at = from;
        let runs = pages.chunk_by(|one, next| one & 1 == next & 1).map(|run| {
            let first = at;
            at += run.len() as u64 * page_bytes();
            (run[0] & 1 == 1).then_some((first, at.min(to) - first))
        });
        runs.flatten().collect()
    }

    /// Lets go of the pages of `from..to`, as far as they are clean, and has the next ones come one at a time. Best effort.
    ///
    /// The kernel reads a file ahead in pieces of up to 2 MiB (large folios), and a store to one byte makes all of its piece
    /// dirty: each sync of a record of 100 bytes would write half a megabyte.
    ///
    /// # Safety
    /// As [`Mapping::evict`].
    pub(crate) unsafe fn make_pages_small(&self, file: &File, from: u64, to: u64) {
        self.advise_random(from - from % page_bytes(), to);
        // SAFETY: the caller's.
        unsafe { self.evict(file, from, to) };
    }

    /// Lets go of the pages of `from..to`, as far as they are clean. Best effort.
    ///
    /// # Safety
    /// `file` is mapped here, not memory, which would be gone.
    pub(crate) unsafe fn evict(&self, file: &File, from: u64, to: u64) {
        let (start, bytes) = self.at(from - from % page_bytes(), to);
        // SAFETY: advice. The mapping is shared: what it lets go of is in the file, and comes back when it is touched.
        unsafe {
            let _ = pages::advise(start, bytes, libc::MADV_DONTNEED);
            let (from, bytes) = (from as libc::off_t, (to - from) as libc::off_t);
            libc::posix_fadvise(file.as_raw_fd(), from, bytes, libc::POSIX_FADV_DONTNEED);
        }
    }

    /// Writes the pages of `from..to` to the file and waits for the device, file size included.
    pub(crate) fn sync(&self, from: u64, to: u64) -> io::Result<()> {
        let from = from - from % page_bytes();
        let (start, bytes) = self.at(from, to);
        loop {
            // SAFETY: msync reads pages of our own mapping.
            if unsafe { libc::msync(start.cast(), bytes, libc::MS_SYNC) } == 0 {
                return Ok(());
            }
            let refused = io::Error::last_os_error();
            if refused.kind() != io::ErrorKind::Interrupted {
                return Err(refused);
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the reservation is ours alone, and every borrow into it ended with its owner.
        unsafe { pages::release(self.whole, self.whole_bytes) };
    }
}

/// Whether stores to a mapping of `file` reach persistent memory without the page cache (a DAX mount).
pub(crate) fn is_persistent_memory(file: &File) -> bool {
    if !crate::flush::can_write_back() {
        return false;
    }
    let bytes = page_bytes() as usize;
    let access = FileAccess::WriteSync;
    // SAFETY: a fresh mapping at an address of the kernel's choice, never touched.
    let probe = unsafe {
        libc::mmap(ptr::null_mut(), bytes, access.protection(), access.flags(), file.as_raw_fd(), 0)
    };
    if probe == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the mapping made above, used by no one.
    unsafe { libc::munmap(probe, bytes) };
    true
}
