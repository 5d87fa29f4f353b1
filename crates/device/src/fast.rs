//! The fast tier: one growing stretch of bytes, read and written in place, made durable by the range.
//!
//! Owns [`FastTier`] and the choice of medium. Promises that an address once mapped stays good, that a full disk is an
//! error and never a signal, and that `persist` means on each medium what the crate's documentation says. Must not know
//! segments, records or rows.
//!
//! The bytes themselves are behind [`TierBytes`], which says who may touch which of them.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::emulate::{EmulatedTier, PersistentMemoryModel};
use crate::error::SyncFailure;
use crate::error::{DeviceError, Result};
use crate::fault::{CrashModel, CrashSim, Image};
use crate::file::TierFile;
use crate::flush;
use crate::machine::boot_id;
use crate::map::{Mapping, page_bytes};
use crate::random::Random;
use crate::sync::{Asker, SyncGate};

/// No page is smaller.
const PAGE_BYTES_MIN: u64 = 4096;
const LINE_BYTES: u64 = 64;
/// Address space that is set aside where nobody says how much, on small disks and none.
const RESERVE_BYTES: u64 = 1 << 40;

/// How a fast tier is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FastTierOptions {
    /// Most bytes the tier may grow to. Default: no limit but the disk and the reserve.
    pub bytes_max: u64,
    /// Address space set aside, in bytes; growth ends there. Costs no memory. Default `u64::MAX`: 1 TiB, or twice the file system
    /// that the tier is on if that is more. Never more than `bytes_max`; and where the process may not have so much, less is taken.
    pub reserve_bytes: u64,
}

impl Default for FastTierOptions {
    fn default() -> FastTierOptions {
        FastTierOptions { bytes_max: u64::MAX, reserve_bytes: u64::MAX }
    }
}

impl FastTierOptions {
    /// Address space for a tier on a disk of so many bytes, or on none.
    fn reserve_on(&self, disk_bytes: Option<u64>) -> u64 {
        let reserve_bytes = match self.reserve_bytes {
            // A disk may be made larger while the tier is open, which cannot move.
            u64::MAX => disk_bytes.map_or(0, |bytes| bytes.saturating_mul(2)).max(RESERVE_BYTES),
            chosen => chosen,
        };
        reserve_bytes.min(self.bytes_max)
    }
}

/// What a tier's bytes rest on. The crate's documentation says what each promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// A file through the page cache.
    PageCache,
    /// A file on a DAX mount: loads and stores reach persistent memory itself.
    PersistentMemory,
    /// Memory of this process, gone with it.
    Dram,
    /// Memory or a file, slowed to a [`PersistentMemoryModel`].
    Emulated,
    /// The crash-simulating medium of [`CrashSim`].
    Simulated,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::PageCache => "file through the page cache",
            Medium::PersistentMemory => "persistent memory (DAX)",
            Medium::Dram => "DRAM",
            Medium::Emulated => "emulated persistent memory",
            Medium::Simulated => "simulated",
        })
    }
}

/// What lies under an emulated persistent memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmulatedBase {
    /// Memory of this process.
    Dram,
    /// The file at this path, created if missing. It survives the process; a power cut may take anything not yet
    /// written back, whatever was persisted.
    File(PathBuf),
}

/// Where the bytes are.
#[derive(Debug)]
enum Backing {
    File(TierFile),
    Dram(Mapping),
    Simulated(CrashSim),
}

impl Backing {
    fn mapping(&self) -> &Mapping {
        match self {
            Backing::File(file) => file.mapping(),
            Backing::Dram(mapping) => mapping,
            Backing::Simulated(sim) => sim.mapping(),
        }
    }
}

/// A growing stretch of bytes on one medium. Share it in an `Arc`; every method takes `&self`.
#[derive(Debug)]
pub struct FastTier {
    base: NonNull<u8>,
    /// Grown length. Every byte below is mapped. Written under `growing`.
    bytes: AtomicU64,
    /// Reads are delayed.
    slow_reads: bool,
    /// Stores are recorded or delayed.
    watched_writes: bool,
    read_only: bool,
    medium: Medium,
    bytes_max: u64,
    /// Dropped before the mapping whose addresses it knows.
    emulation: Option<EmulatedTier>,
    backing: Backing,
    growing: Mutex<()>,
    syncs: SyncGate,
}

// SAFETY: `base` points into the mapping that `backing` owns for as long as the tier lives; the bytes behind it are plain
// memory, to which only `TierBytes` leads; its rules say who may touch them when.
unsafe impl Send for FastTier {}
// SAFETY: as above.
unsafe impl Sync for FastTier {}

impl FastTier {
    /// Opens the file at `path` for reading and writing, alone. On a DAX mount the medium is [`Medium::PersistentMemory`],
    /// elsewhere [`Medium::PageCache`]. `create` makes an empty file where there is none.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] while another handle has it open, [`DeviceError::Full`] where a sparse file cannot be given
    /// its blocks, [`DeviceError::Io`] for what the operating system refuses.
    pub fn open_file(path: &Path, options: &FastTierOptions, create: bool) -> Result<FastTier> {
        let (file, bytes) = TierFile::open(path, create, |disk_bytes| options.reserve_on(disk_bytes))?;
        let medium = if file.is_persistent_memory() { Medium::PersistentMemory } else { Medium::PageCache };
        Ok(FastTier::over(Backing::File(file), medium, bytes, options.bytes_max))
    }

    /// Opens the file at `path` for reading, beside other readers but not beside a writer. Every change is refused:
    /// [`FastTier::grow`] and [`FastTier::persist`] by an error, [`TierBytes::write`] and [`TierBytes::store_u64`] by a panic.
    ///
    /// # Errors
    /// As [`FastTier::open_file`].
    pub fn open_file_read_only(path: &Path) -> Result<FastTier> {
        let (file, bytes) = TierFile::open_read_only(path)?;
        Ok(FastTier::over(Backing::File(file), Medium::PageCache, bytes, bytes))
    }

    /// A copy of what the file at `path` holds, beside other readers but not beside a writer. What is stored is in memory of this process and ends with the tier; the file stays as it is, to the byte. So whoever
    /// repairs what he opens can look at it so. A page takes memory once it is stored to. [`FastTier::grow`] is refused, and persisting makes nothing durable.
    ///
    /// # Errors
    /// As [`FastTier::open_file`].
    pub fn open_file_copy(path: &Path) -> Result<FastTier> {
        let (file, bytes) = TierFile::open_copy(path)?;
        Ok(FastTier::over(Backing::File(file), Medium::Dram, bytes, bytes))
    }

    /// A tier in memory, for tests and for data that need not last.
    ///
    /// # Errors
    /// [`DeviceError::Io`] where the address space cannot be had.
    pub fn dram(options: &FastTierOptions) -> Result<FastTier> {
        let mapping = Mapping::reserve(options.reserve_on(None), 0)
            .map_err(|source| DeviceError::io("reserve address space for", Path::new("DRAM"), source))?;
        mapping.advise_huge_pages(0, mapping.bytes());
        Ok(FastTier::over(Backing::Dram(mapping), Medium::Dram, 0, options.bytes_max))
    }

    /// A tier that behaves like the persistent memory of `model`, for experiments. Persisting costs what it costs there
    /// (cache-line write-back and a fence) and makes nothing durable.
    ///
    /// # Errors
    /// As those of the base: [`FastTier::dram`], [`FastTier::open_file`].
    pub fn emulated(
        base: EmulatedBase,
        model: PersistentMemoryModel,
        options: &FastTierOptions,
    ) -> Result<FastTier> {
        let mut tier = match base {
            EmulatedBase::Dram => FastTier::dram(options)?,
            EmulatedBase::File(path) => FastTier::open_file(&path, options, true)?,
        };
        tier.medium = Medium::Emulated;
        let base = tier.base.as_ptr() as u64;
        tier.emulation = Some(EmulatedTier::new(&model, base..base + tier.backing.mapping().bytes()));
        (tier.slow_reads, tier.watched_writes) = (true, true);
        Ok(tier)
    }

    /// A tier over the crash-simulating medium, with what it holds now: a second tier over the same medium, opened after
    /// the first was dropped, is a clean restart. Of two at a time only one can have the bytes ([`TierBytes::new`]).
    pub fn simulated(sim: &CrashSim) -> FastTier {
        sim.open();
        let (bytes, bytes_max) = (sim.bytes(), sim.bytes_max());
        let mut tier = FastTier::over(Backing::Simulated(sim.clone()), Medium::Simulated, bytes, bytes_max);
        tier.watched_writes = true;
        tier
    }

    /// A simulated tier over what a crash left. Its medium is new (no faults, an empty log): [`FastTier::crash_sim`].
    pub fn from_image(image: &Image) -> FastTier {
        FastTier::simulated(&CrashSim::from_image(image))
    }

    fn over(backing: Backing, medium: Medium, bytes: u64, bytes_max: u64) -> FastTier {
        let mapping = backing.mapping();
        let read_only = matches!(&backing, Backing::File(file) if file.is_read_only());
        let page = page_bytes();
        // A file longer than a new, smaller limit is read in full; it only cannot grow.
        let bytes_max = bytes_max.min(mapping.bytes());
        FastTier {
            base: mapping.base(),
            bytes: AtomicU64::new(bytes),
            slow_reads: false,
            watched_writes: false,
            read_only,
            medium,
            bytes_max: if read_only { bytes_max } else { bytes_max - bytes_max % page },
            emulation: None,
            backing,
            growing: Mutex::new(()),
            syncs: SyncGate::default(),
        }
    }

    /// What the bytes rest on.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// The tier's file, where it has one.
    pub fn path(&self) -> Option<&Path> {
        match &self.backing {
            Backing::File(file) => Some(file.path()),
            Backing::Dram(_) | Backing::Simulated(_) => None,
        }
    }

    /// The simulated medium behind this tier, where there is one.
    pub fn crash_sim(&self) -> Option<&CrashSim> {
        match &self.backing {
            Backing::Simulated(sim) => Some(sim),
            Backing::File(_) | Backing::Dram(_) => None,
        }
    }

    /// A number for whatever is made on this tier, which nothing else has. A simulated medium gives the same one where the same
    /// was done to it before, so that a script leaves the same bytes whenever it runs.
    pub fn new_id(&self) -> u128 {
        let mut random = match &self.backing {
            Backing::Simulated(sim) => sim.random(),
            Backing::File(_) | Backing::Dram(_) => Random::from_entropy(),
        };
        u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
    }

    /// Whether the tier was opened by [`FastTier::open_file_read_only`].
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Tells whether the machine went down since the bytes were written: see [`boot_id`]. A simulated medium has its own.
    pub fn boot_id(&self) -> u128 {
        match &self.backing {
            Backing::Simulated(sim) => sim.boot_id(),
            Backing::File(_) | Backing::Dram(_) => boot_id(),
        }
    }

    /// Present length. A file cut short by someone else shows it here, to the byte.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Length beyond which [`FastTier::grow`] answers [`DeviceError::Full`], in whole pages.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Lengthens the tier to `new_bytes`, rounded up to a page; new bytes are zero. Shorter than present: nothing happens.
    /// Slices and addresses handed out stay good. The new length is durable with the first `persist` after it.
    ///
    /// # Errors
    /// [`DeviceError::Full`], with the tier as it was; [`DeviceError::Io`]; [`DeviceError::Closed`]; [`DeviceError::ReadOnly`].
    pub fn grow(&self, new_bytes: u64) -> Result<()> {
        self.refuse_unchanged_file()?;
        self.syncs.check()?;
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.bytes.load(Ordering::Relaxed);
        if new_bytes <= old {
            return Ok(());
        }
        if new_bytes > self.bytes_max {
            return Err(DeviceError::Full { wanted: new_bytes, limit: self.bytes_max, source: None });
        }
        let new = new_bytes.next_multiple_of(page_bytes());
        match &self.backing {
            Backing::File(file) => {
                file.allocate(old, new)?;
                if file.is_persistent_memory() {
                    // PERSIST: persist() is a matter of cache lines there, so the file's new length and blocks are made
                    // durable here.
                    self.syncs.pass(Asker::Whole, || file.sync_all())?;
                }
                file.map_more(old, new)?;
            }
            Backing::Dram(mapping) => {
                mapping.map_memory(old, new).map_err(|source| memory_refused(old, new, source))?
            }
            Backing::Simulated(sim) => sim.grow(old, new)?,
        }
        self.bytes.store(new, Ordering::Release);
        Ok(())
    }

    /// Bytes that the disk under the tier has free, within what the process may write to one file; `None` where nobody
    /// knows. Others take of them, too: a growth may be refused in spite of it, and where a part of the disk is kept for
    /// the superuser, it may succeed in spite of it.
    pub fn free_bytes(&self) -> Option<u64> {
        match &self.backing {
            Backing::File(file) => file.free_bytes(self.bytes()),
            Backing::Dram(_) => None,
            Backing::Simulated(sim) => sim.free_bytes(),
        }
    }

    /// Bytes of the file system, or of the simulated disk, that the tier is on; `None` where there is none.
    pub fn disk_bytes(&self) -> Option<u64> {
        match &self.backing {
            Backing::File(file) => file.file_system_bytes(),
            Backing::Dram(_) => None,
            Backing::Simulated(sim) => sim.disk_bytes(),
        }
    }

    /// Bytes of the disk that the tier takes now, where it is on one: less than [`FastTier::bytes`] once some were
    /// [released](TierBytes::release).
    pub fn allocated_bytes(&self) -> Option<u64> {
        match &self.backing {
            Backing::File(file) => file.allocated_bytes(),
            Backing::Dram(_) => None,
            Backing::Simulated(sim) => Some(sim.allocated_bytes()),
        }
    }

    /// Makes sure that the bytes `offset..offset + len`, below the grown length, may be stored to: after they were released,
    /// and where a file may be a sparse copy. Their contents stay.
    ///
    /// # Errors
    /// As [`FastTier::grow`].
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.refuse_unchanged_file()?;
        let end = offset.saturating_add(len).min(self.bytes());
        if offset >= end {
            return Ok(());
        }
        match &self.backing {
            Backing::File(file) => file.allocate_again(offset, end),
            Backing::Dram(_) => Ok(()),
            Backing::Simulated(sim) => sim.allocate(offset, end),
        }
    }

    /// Takes the page faults of writing `offset..offset + len` now, on this thread, so that no writer takes them later.
    /// Best effort; bytes beyond the present length are left out.
    pub fn populate(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.bytes());
        if self.read_only || offset >= end {
            return;
        }
        match &self.backing {
            Backing::File(file) => file.mapping().populate(offset, end),
            Backing::Dram(mapping) => mapping.populate(offset, end),
            Backing::Simulated(_) => {}
        }
    }

    /// For bytes that do not fit in memory, and are touched here and there: from now on a page that is not in memory is read alone, where the
    /// medium is a file through the page cache. A hint.
    pub fn read_nothing_ahead(&self) {
        if let Backing::File(file) = &self.backing
            && self.medium == Medium::PageCache
        {
            file.mapping().read_nothing_ahead(self.bytes());
        }
    }

    /// Has the bytes read that are not in memory, where the medium is a file through the page cache, and waits for none: whoever will touch many
    /// of them waits once instead of a page at a time. A hint; bytes beyond the end are left out.
    pub fn will_need(&self, offset: u64, len: u64) {
        if let Some((file, end)) = self.cached_file(offset, len) {
            file.mapping().will_need(offset, end);
        }
    }

    /// Has the kernel begin to write what is dirty of these bytes to the disk, where the medium is a file through the page cache, and waits for none of it: a
    /// [`persist_all`](FastTier::persist_all) that follows has less to do. For bytes that will not change. Durable they are by that alone, which also says what failed.
    pub fn start_write_back(&self, offset: u64, len: u64) {
        if let Some((file, end)) = self.cached_file(offset, len) {
            file.start_write_back(offset, end);
        }
    }

    /// Whether the bytes can be read without waiting for a disk, as far as the kernel knows. What is not a file through the page cache always can;
    /// bytes beyond the end are left out. A system call.
    pub fn is_in_memory(&self, offset: u64, len: u64) -> bool {
        self.cached_file(offset, len).is_none_or(|(file, end)| file.mapping().is_in_memory(offset, end))
    }

    /// The file, and where the bytes that exist of `len` at `offset` end, if there are any and it is one through the page cache.
    fn cached_file(&self, offset: u64, len: u64) -> Option<(&TierFile, u64)> {
        let end = offset.saturating_add(len).min(self.bytes());
        match &self.backing {
            Backing::File(file) if self.medium == Medium::PageCache && offset < end => Some((file, end)),
            _ => None,
        }
    }

    /// Has the bytes leave memory, as far as they are durable and the medium is a file through the page cache: for measuring, and for tests. Best
    /// effort: file systems in memory keep them.
    pub fn evict(&self, offset: u64, len: u64) {
        if let Some((file, end)) = self.cached_file(offset, len) {
            file.evict(offset, end);
        }
    }

    /// Waits until the bytes have been read from the disk, where the medium is a file through the page cache. Best effort; bytes beyond the
    /// end are left out.
    pub fn bring(&self, offset: u64, len: u64) {
        if let Some((file, end)) = self.cached_file(offset, len) {
            file.mapping().populate_clean(offset, end);
        }
    }

    /// Maps bytes anew, clean, that were stored and will be read, but hardly stored to again: their pages' way to the medium will interrupt nobody.
    /// Nothing but time changes. On a file in the page cache; elsewhere nothing at all.
    pub fn remap(&self, offset: u64, len: u64) {
        if let Some((file, end)) = self.cached_file(offset, len) {
            file.remap(offset, end);
        }
    }

    /// Asks for the cache lines of the `len` bytes at `offset`. A hint: what is out of range is ignored.
    #[inline]
    pub fn prefetch(&self, offset: u64, len: u64) {
        if offset.saturating_add(len) > self.bytes() {
            return;
        }
        let address = self.base.as_ptr() as u64 + offset;
        if self.slow_reads {
            self.emulate_prefetch(address, len);
        } else {
            flush::fetch(address, len);
        }
    }

    #[cold]
    fn emulate_prefetch(&self, address: u64, len: u64) {
        if let Some(emulation) = &self.emulation {
            emulation.prefetch(address, len);
        }
    }

    /// Drops the `len` bytes at `offset` from the processor's caches, real or emulated, so that this thread's next read of
    /// them is a read of the medium: for measuring it. Best effort; bytes that do not exist are left out.
    pub fn cool(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.bytes());
        if offset >= end {
            return;
        }
        let address = self.base.as_ptr() as u64 + offset;
        // SAFETY: below the grown length, so mapped while `self` lives.
        unsafe { flush::evict(address, end - offset) };
        if let Some(emulation) = &self.emulation {
            emulation.forget(address, end - offset);
        }
    }

    /// Waits for the cache lines from `offset` on, a multiple of 8, to arrive, and answers with a number made of theirs: for measuring how long
    /// so many bytes take. It means nothing, but whatever depends on it waits as well. Nothing is read as far as the language goes, so
    /// others may store there. Charged as a read of them all.
    ///
    /// # Panics
    /// They all exist.
    pub fn await_lines(&self, offset: u64, len: u64) -> u64 {
        let bytes = self.bytes();
        if !offset.is_multiple_of(8) || offset.checked_add(len).is_none_or(|end| end > bytes) {
            out_of_range(offset, len, bytes);
        }
        let address = self.base.as_ptr() as u64 + offset;
        if let Some(emulation) = &self.emulation {
            emulation.read(address, len);
        }
        // SAFETY: whole lines of a range below the grown length, so mapped while `self` lives.
        let numbers =
            (0..len / LINE_BYTES).map(|line| unsafe { flush::await_word(address + line * LINE_BYTES) });
        numbers.fold(0, u64::wrapping_add)
    }

    #[inline]
    fn check_writable(&self, offset: u64, len: u64) {
        let bytes = self.bytes();
        if offset.checked_add(len).is_none_or(|end| end > bytes) {
            out_of_range(offset, len, bytes);
        }
        if self.read_only {
            written_read_only();
        }
    }

    fn refuse_read_only(&self) -> Result<()> {
        match &self.backing {
            Backing::File(file) if file.is_read_only() => {
                Err(DeviceError::ReadOnly { path: file.path().to_path_buf() })
            }
            _ => Ok(()),
        }
    }

    /// Of a copy, too: what it would take of the disk is not its own.
    fn refuse_unchanged_file(&self) -> Result<()> {
        match &self.backing {
            Backing::File(file) if !file.changes_file() => {
                Err(DeviceError::ReadOnly { path: file.path().to_path_buf() })
            }
            _ => Ok(()),
        }
    }

    /// Makes every store so far to `offset..offset + len` durable, and on a file its length too. The stores must have
    /// happened before the call (this thread's, or others' that published them to it).
    ///
    /// # Errors
    /// [`DeviceError::Io`]: the range may or may not be durable, and may never become so: take no more writes.
    /// [`DeviceError::Closed`]: an earlier one failed, or another that was under way. [`DeviceError::ReadOnly`].
    pub fn persist(&self, offset: u64, len: u64) -> Result<()> {
        self.refuse_read_only()?;
        let bytes = self.bytes();
        let end = offset.saturating_add(len).min(bytes);
        if offset >= end {
            return Ok(());
        }
        match (&self.backing, self.medium) {
            (Backing::Simulated(sim), _) => {
                self.syncs.pass(Asker::Range, || sim.persist(Asker::Range, offset, end - offset))
            }
            // msync of the range, not fdatasync: alike where little is dirty, and it does not wait for what others wrote
            // elsewhere (measured with 128 MB dirty elsewhere: 2 to 8 ms against 30).
            (Backing::File(file), Medium::PageCache) => {
                self.syncs.pass(Asker::Range, || file.sync(offset, end))
            }
            (_, Medium::PersistentMemory | Medium::Emulated) => {
                if let Some(emulation) = &self.emulation {
                    emulation.persisted(self.base.as_ptr() as u64 + offset, end - offset);
                }
                // PERSIST: the caller's stores, then the write-back of their lines, then the fence; whatever the caller
                // stores after this call is ordered behind it.
                // SAFETY: below the grown length, so mapped while `self` lives.
                unsafe { flush::write_back(self.base.as_ptr() as u64 + offset, end - offset) };
                flush::fence();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Makes everything stored so far durable.
    ///
    /// # Errors
    /// As [`FastTier::persist`].
    pub fn persist_all(&self) -> Result<()> {
        self.refuse_read_only()?;
        match &self.backing {
            Backing::Simulated(sim) => {
                self.syncs.pass(Asker::Whole, || sim.persist(Asker::Whole, 0, u64::MAX))
            }
            Backing::File(file) if matches!(self.medium, Medium::PageCache | Medium::PersistentMemory) => {
                self.syncs.pass(Asker::Whole, || file.sync_all())
            }
            Backing::File(_) | Backing::Dram(_) => {
                if let Some(emulation) = &self.emulation {
                    emulation.persist_all();
                }
                flush::fence();
                Ok(())
            }
        }
    }

    /// Whether a sync has failed: from then on every one is refused, and so is growth. A relaxed load.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.syncs.has_failed()
    }

    /// The first sync that failed.
    pub fn sync_failure(&self) -> Option<&SyncFailure> {
        self.syncs.failure()
    }

    /// Whether `persist` costs cache lines, not a system call: then there is no point in grouping commits.
    pub fn flush_is_cheap(&self) -> bool {
        match (&self.backing, self.medium) {
            (Backing::Simulated(sim), _) => sim.model() == CrashModel::CacheLines,
            (_, medium) => medium != Medium::PageCache,
        }
    }
}

fn memory_refused(old: u64, new: u64, source: io::Error) -> DeviceError {
    if source.raw_os_error() == Some(libc::ENOMEM) {
        DeviceError::Full { wanted: new, limit: old, source: Some(source) }
    } else {
        DeviceError::io("map", Path::new("DRAM"), source)
    }
}

#[cold]
#[inline(never)]
fn out_of_range(offset: u64, len: u64, bytes: u64) -> ! {
    panic!("{len} bytes at {offset} do not lie in a tier of {bytes} bytes (words lie at multiples of 8)")
}

#[cold]
#[inline(never)]
fn written_read_only() -> ! {
    panic!("a tier opened for reading only was written to")
}

mod bytes;
mod exclusive;
#[cfg(test)]
mod tests;

pub use bytes::TierBytes;
pub use exclusive::ExclusiveTier;
