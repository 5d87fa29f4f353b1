//! The crash-simulating medium: memory that remembers every store, and can say what a crash would have left.
//!
//! Owns [`CrashSim`] (the medium and its log), [`CrashWalk`] (a walk along the log) and [`Image`] (what one crash left).
//! Promises that every image is one the fault model below allows, and that a script, a position and a seed give the same
//! images again. Must not know what the bytes mean.
//!
//! # The fault model
//!
//! A crash falls between two logged operations, or into the second. What it leaves is, for each *granule* apart from every
//! other, what was durable plus **a prefix, in store order, of the stores since**. Nothing is promised between granules.
//!
//! | | [`CrashModel::CacheLines`] (persistent memory) | [`CrashModel::Pages`] (file through the page cache) |
//! |---|---|---|
//! | granule | 64-byte line: the cache may evict it at any time | 4 KiB page: the kernel may write it back at any time |
//! | torn inside | between 8-byte words | between 512-byte sectors, and between 8-byte words of the store under way |
//! | `persist(range)` | the lines that the range touches | the pages that the range touches, and the length |
//! | `grow` | durable on return | lost unless persisted since: the image is shorter |
//! | failed `persist` | the lines stay as they were | the pages count as clean: a later `persist` does not write them |
//!
//! - Aligned 8-byte stores are atomic. The words of *one* `write` survive in any combination (the compiler and `memcpy` may
//!   order them at will), but none of them before every earlier `write` and `store_u64` to the granule.
//! - After a failed `persist` the dirty data may be gone: its pages keep some earlier state for ever, unless they are stored
//!   to again, which makes the whole page dirty again.
//! - A killed process loses nothing: the image holds every store, what was pending is still pending, and the boot id is
//!   the same. After a power cut the boot id is another.
//! - A failed write-back, whoever caused it ([`CrashSim::fail_write_back`]: the kernel, by itself), is told once to each who
//!   asks for a range and to each who asks for everything: each has an opened file of its own.
//! - Corruption ([`CrashSim::corrupt`], [`Image::corrupt`]) changes a byte at rest and in the present view alike.
//! - Bytes that were released are zero as if stored over; a store to them before they are allocated again panics. An image has
//!   blocks for all its bytes.
//! - Files ([`CapacityTier::simulated`](crate::CapacityTier::simulated)) are on the same disk and in the same log; `fault/files.rs` has their
//!   rules.
//! - Not modelled: a page dropped from the page cache after a failed write-back, so that even the running process sees old
//!   bytes; a file cut short by others; a device that lies about its cache.
//!
//! The log keeps at most a limit of stored bytes (default 1 GiB). Beyond it the oldest operations are folded into the
//! starting state, and walks start later: see [`CrashSim::first_op`].
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::path::Path;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::checksum::crc32c;
use crate::error::{DeviceError, Result};
use crate::map::{Mapping, page_bytes};
use crate::random::Random;
use crate::sync::Asker;

use disk::{DiskReplay, LogEntry};
pub(crate) use files::SimulatedFile;
pub use files::{FileCall, SyncOf};
use files::{FileFaults, FilesImage, FilesReplay, SimulatedFiles};
use replay::{Op, Pages, Replay};

mod directory;
mod disk;
mod files;
mod replay;

/// How the medium loses what was not persisted. The module's documentation has the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrashModel {
    /// Persistent memory behind processor caches.
    CacheLines,
    /// A file behind the page cache.
    Pages,
}

impl CrashModel {
    fn granule_bytes(self) -> u64 {
        match self {
            CrashModel::CacheLines => 64,
            CrashModel::Pages => 4096,
        }
    }

    /// The part of a granule that the medium writes at one stroke.
    fn atom_bytes(self) -> u64 {
        match self {
            CrashModel::CacheLines => 64,
            CrashModel::Pages => 512,
        }
    }
}

/// Which of the pending stores a crash leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Survivors {
    /// None: only what was persisted.
    None,
    /// All, though the power was cut.
    All,
    /// Of each granule a random prefix, sometimes torn; how many granules survive at all is drawn anew for each image.
    Random,
    /// Only the granules of the last store: a record that overtook everything before it.
    LastStore,
    /// Everything but the granules of the last store.
    AllButLastStore,
    /// Of each pending store only its first granule: heads without their bodies.
    HeadersOnly,
    /// Of each pending store all but its first granule: bodies without their heads.
    BodiesOnly,
    /// All, and the boot id is the same: the process was killed and the machine went on.
    ProcessKill,
}

impl Survivors {
    /// Every kind once.
    pub const EACH: [Survivors; 8] = [
        Survivors::None,
        Survivors::All,
        Survivors::Random,
        Survivors::LastStore,
        Survivors::AllButLastStore,
        Survivors::HeadersOnly,
        Survivors::BodiesOnly,
        Survivors::ProcessKill,
    ];
}

/// What a crash left. Cheap to clone: images share the pages they have in common.
#[derive(Debug, Clone)]
pub struct Image {
    /// Whether the machine went on: a killed process, not a power cut.
    pub same_boot: bool,
    /// Where in the log the crash fell: the number of operations before it.
    pub op_index: u64,
    /// The kind of crash.
    pub survivors: Survivors,
    /// What the next process sees, and which of it is still pending.
    state: DiskReplay,
    view: Pages,
    files: FilesImage,
    bytes: u64,
    boot_id: u128,
    bytes_max: u64,
}

impl Image {
    /// Length of the tier after the crash.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A copy of the `len` bytes at `offset`; bytes beyond the end are zero.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view.read(offset, &mut bytes);
        bytes
    }

    /// A number that two images share if the next process finds the same in both, and hardly otherwise: to count how many
    /// distinct ones a sweep has opened.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.same_boot, self.bytes).hash(&mut hasher);
        for (offset, page) in self.view.filled().filter(|(_, page)| page.iter().any(|&byte| byte != 0)) {
            (offset, crc32c(0, page)).hash(&mut hasher);
        }
        self.files.hash(&mut hasher);
        hasher.finish()
    }

    /// Flips the bits `xor` of the byte at `offset`, as a decayed medium would. Nothing happens beyond the end.
    pub fn corrupt(&mut self, offset: u64, xor: u8) {
        if offset < self.bytes {
            let byte = self.read(offset, 1)[0] ^ xor;
            self.view.write(offset, &[byte]);
            self.state.apply(&Op::Corrupt { offset, byte }.into());
        }
    }
}

/// Why a medium refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A fault of the device: `EIO`.
    Io,
    /// The disk is full: `ENOSPC`.
    NoSpace,
}

impl Refusal {
    fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Refusal::Io => libc::EIO,
            Refusal::NoSpace => libc::ENOSPC,
        })
    }
}

/// A fault to come: after so many calls that succeed one is refused, or all are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Calls that still succeed.
    pub after: u64,
    /// All later ones are refused, too.
    pub sticky: bool,
    /// With what.
    pub refusal: Refusal,
}

/// Whether the next call is refused.
fn next_refusal(coming: &mut Option<Fault>) -> Option<Refusal> {
    let fault = coming.as_mut()?;
    if fault.after > 0 {
        fault.after -= 1;
        return None;
    }
    let Fault { sticky, refusal, .. } = *fault;
    if !sticky {
        *coming = None;
    }
    Some(refusal)
}

/// A failed write-back that one persist is told of before anybody else can know.
struct ToldAlone {
    picks: fn(u64, u64) -> bool,
    meanwhile: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for ToldAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToldAlone").finish_non_exhaustive()
    }
}

/// Faults to come.
#[derive(Debug, Default)]
struct Faults {
    persists: Option<Fault>,
    grows: Option<Fault>,
    told_alone: Option<ToldAlone>,
    /// Bytes of the disk under the medium; `None`: as many as it may grow to.
    disk_bytes: Option<u64>,
    /// Persists of such a range (offset, length; all: 0 and `u64::MAX`) succeed without effect.
    lies: Option<fn(u64, u64) -> bool>,
    files: FileFaults,
}

/// Failed write-backs, and who has been told of them.
#[derive(Debug, Default)]
struct WriteBackErrors {
    count: u64,
    last: Option<Refusal>,
    told: [u64; 2],
}

/// Everything under the medium's lock.
#[derive(Debug)]
struct Record {
    /// The state before the first operation of `log`.
    start: DiskReplay,
    first_op: u64,
    log: Vec<LogEntry>,
    log_bytes: usize,
    log_bytes_max: usize,
    bytes: u64,
    persists: u64,
    errors: WriteBackErrors,
    faults: Faults,
    /// Pages without blocks: nobody may store to them.
    released: BTreeSet<u64>,
    files: SimulatedFiles,
}

#[derive(Debug)]
struct SimulatedMedium {
    mapping: Mapping,
    model: CrashModel,
    bytes_max: u64,
    boot_id: u128,
    record: Mutex<Record>,
}

/// The crash-simulating medium. A cheap handle: clones are the same medium.
#[derive(Debug, Clone)]
pub struct CrashSim {
    medium: Arc<SimulatedMedium>,
}

/// In place of a path.
const NAME: &str = "the simulated medium";
/// Most stored bytes that the log keeps by default.
const LOG_BYTES_MAX: usize = 1 << 30;
/// What an operation without bytes counts for in the log's limit.
const OP_BYTES: usize = 48;
/// Bytes of a page of the simulated disk.
const PAGE_BYTES: u64 = 4096;
/// Most address space that a simulated tier reserves.
const RESERVE_BYTES_MAX: u64 = 1 << 40;

impl CrashSim {
    /// An empty medium that can grow to `bytes_max`.
    ///
    /// # Panics
    /// The process may not reserve the address space.
    pub fn new(model: CrashModel, bytes_max: u64) -> CrashSim {
        let start = DiskReplay::new(Replay::new(model), FilesReplay::default());
        CrashSim::starting_with(start, (&Pages::default(), 0), 1, bytes_max)
    }

    /// A new medium that holds what a crash left: no faults, an empty log.
    ///
    /// # Panics
    /// As [`CrashSim::new`].
    pub fn from_image(image: &Image) -> CrashSim {
        let view = (&image.view, image.bytes);
        let sim = CrashSim::starting_with(image.state.clone(), view, image.boot_id, image.bytes_max);
        sim.record().files = SimulatedFiles::of(&image.files);
        sim
    }

    fn starting_with(
        start: DiskReplay,
        (view, bytes): (&Pages, u64),
        boot_id: u128,
        bytes_max: u64,
    ) -> CrashSim {
        let mapping = Mapping::reserve(bytes_max.min(RESERVE_BYTES_MAX), bytes)
            .expect("address space for the simulated medium can be reserved");
        let mapped = bytes.next_multiple_of(page_bytes());
        mapping.map_memory(0, mapped).expect("memory for the simulated medium can be had");
        if view.filled().count() as u64 * page_bytes() > mapped / 2 {
            // One call takes the page faults that the copies below would take one by one.
            mapping.populate(0, mapped);
        }
        for (offset, page) in view.filled().take_while(|(offset, _)| *offset < bytes) {
            let len = page.len().min((bytes.saturating_sub(offset)) as usize);
            // SAFETY: it begins and ends below `bytes`, which was just mapped, and no one else knows the mapping yet.
            unsafe {
                let target = mapping.base().add(offset as usize).as_ptr();
                std::ptr::copy_nonoverlapping(page.as_ptr(), target, len);
            }
        }
        let record = Record {
            start,
            first_op: 0,
            log: Vec::new(),
            log_bytes: 0,
            log_bytes_max: LOG_BYTES_MAX,
            bytes,
            persists: 0,
            errors: WriteBackErrors::default(),
            faults: Faults::default(),
            released: BTreeSet::new(),
            files: SimulatedFiles::default(),
        };
        let model = record.start.model();
        let medium = SimulatedMedium { mapping, model, bytes_max, boot_id, record: Mutex::new(record) };
        CrashSim { medium: Arc::new(medium) }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.medium.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.medium.mapping
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.record().bytes
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.medium.bytes_max
    }

    pub(crate) fn boot_id(&self) -> u128 {
        self.medium.boot_id
    }

    /// Random numbers that belong to what was done to the medium so far.
    pub(crate) fn random(&self) -> Random {
        Random::from_seed(self.ops() ^ (self.medium.boot_id as u64).rotate_left(32))
    }

    /// How this medium loses what was not persisted.
    pub fn model(&self) -> CrashModel {
        self.medium.model
    }

    /// Limits the log to about `bytes` of stored bytes.
    pub fn limit_log(&self, bytes: usize) {
        self.record().log_bytes_max = bytes;
    }

    /// Operations logged so far. After the script's step `i`, this is the position that `i` was done by.
    pub fn ops(&self) -> u64 {
        let record = self.record();
        record.first_op + record.log.len() as u64
    }

    /// The first position that a walk can still reach: 0 unless the log outgrew its limit.
    pub fn first_op(&self) -> u64 {
        self.record().first_op
    }

    /// Persists so far, and syncs of files and names, failed ones included.
    pub fn persist_points(&self) -> u64 {
        self.record().persists
    }

    /// After `n` more persists the next fails with an I/O error; all later ones too if `sticky`.
    pub fn fail_persist_after(&self, n: u64, sticky: bool) {
        self.fail_persists(Fault { after: n, sticky, refusal: Refusal::Io });
    }

    /// Persists to come fail.
    pub fn fail_persists(&self, fault: Fault) {
        self.record().faults.persists = Some(fault);
    }

    /// After `n` more growths every one is refused as on a full disk, until [`CrashSim::clear_faults`].
    pub fn fail_grow_after(&self, n: u64) {
        self.fail_grows(Fault { after: n, sticky: true, refusal: Refusal::NoSpace });
    }

    /// Growths to come are refused.
    pub fn fail_grows(&self, fault: Fault) {
        self.record().faults.grows = Some(fault);
    }

    /// The kernel writes everything pending back, which fails now: all of it counts as clean. The next persist of a range is
    /// told, and the next of everything.
    pub fn fail_write_back(&self) {
        self.record().fail_write_back(Refusal::Io);
    }

    /// At the first persist that `picks` chooses by offset and length, all that is pending fails to be written. That persist is
    /// told, and before its caller can know, `meanwhile` is called: there is no moment at which another would rather ask.
    pub fn fail_write_back_at(&self, picks: fn(u64, u64) -> bool, meanwhile: impl FnOnce() + Send + 'static) {
        self.record().faults.told_alone = Some(ToldAlone { picks, meanwhile: Box::new(meanwhile) });
    }

    /// Puts the medium on a disk of `bytes`: growth beyond is refused as on a full disk, until [`CrashSim::clear_faults`] or
    /// until the disk is made larger.
    pub fn limit_disk(&self, bytes: u64) {
        self.record().faults.disk_bytes = Some(bytes);
    }

    /// Bytes that the disk under the medium still has, where it has a limit.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let record = self.record();
        record.faults.disk_bytes.map(|disk| disk.saturating_sub(record.taken_bytes()))
    }

    pub(crate) fn disk_bytes(&self) -> Option<u64> {
        self.record().faults.disk_bytes
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.record().allocated_bytes()
    }

    /// Whole pages are zero from now on, as if by a store that the crash model may lose, and have no blocks.
    pub(crate) fn release(&self, from: u64, to: u64) {
        let zeros = vec![0; (to - from) as usize];
        // SAFETY: below the grown length, so mapped; the caller owns the range.
        unsafe {
            let target = self.mapping().base().add(from as usize).as_ptr();
            std::ptr::write_bytes(target, 0, zeros.len());
        }
        let mut record = self.record();
        record.log(Op::Store { offset: from, bytes: zeros.into() });
        record.released.extend(pages_of(from, to));
    }

    pub(crate) fn allocate(&self, from: u64, to: u64) -> Result<()> {
        let mut record = self.record();
        let wanted: Vec<u64> = record.released.range(pages_of(from, to)).copied().collect();
        if !wanted.is_empty() {
            record.may_take(from, to, wanted.len() as u64 * PAGE_BYTES)?;
        }
        record.released.retain(|page| !pages_of(from, to).contains(page));
        Ok(())
    }

    /// From now on persists that `lies` picks by offset and length (0 and `u64::MAX` for everything) succeed without effect,
    /// as on a device that does not honour its flush command; `None`: none do. Against the fault model: for showing that a
    /// test notices.
    pub fn lie_about_persists(&self, lies: Option<fn(u64, u64) -> bool>) {
        self.record().faults.lies = lies;
    }

    /// Takes back the faults to come.
    pub fn clear_faults(&self) {
        self.record().faults = Faults::default();
    }

    /// Flips the bits `xor` of the byte at `offset`, at rest and in the present view, under the tier that is open. Nothing happens beyond the
    /// end. Of what a crash leaves, [`Image::corrupt`] flips bits.
    ///
    /// # Safety
    /// Nobody reads or stores the byte meanwhile, and nobody holds a slice that it is in: it is stored to as by
    /// [`TierBytes::write`](crate::TierBytes::write), and not by who promised to keep its rules.
    pub unsafe fn corrupt(&self, offset: u64, xor: u8) {
        let mut record = self.record();
        if offset >= record.bytes {
            return;
        }
        // SAFETY: below the grown length, so mapped; by the contract above nobody else is at the byte.
        let byte = unsafe {
            let byte = self.mapping().base().add(offset as usize).as_ptr();
            *byte ^= xor;
            *byte
        };
        record.log(Op::Corrupt { offset, byte });
    }

    pub(crate) fn record_store(&self, offset: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            let mut record = self.record();
            record.check_blocks(offset, bytes.len());
            record.log(Op::Store { offset, bytes: bytes.into() });
        }
    }

    /// Has `store` store `bytes` at once, and logs it.
    pub(crate) fn record_atomic(&self, offset: u64, bytes: &[u8], store: impl FnOnce()) {
        // Under the lock, so that whoever sees the bytes finds them logged before anything it does itself.
        let mut record = self.record();
        record.check_blocks(offset, bytes.len());
        store();
        record.log(Op::Store { offset, bytes: bytes.into() });
    }

    /// Logs what `load` finds there as if it had just been stored.
    pub(crate) fn record_again(&self, offset: u64, load: impl FnOnce() -> [u8; 8]) {
        // Under the lock: nobody's store is logged between the two, to be undone by this.
        let mut record = self.record();
        let bytes = load();
        record.check_blocks(offset, bytes.len());
        record.log(Op::Store { offset, bytes: bytes.as_slice().into() });
    }

    /// A tier was opened over the medium: it hears of errors that nobody was told of, and of no other.
    pub(crate) fn open(&self) {
        let errors = &mut self.record().errors;
        if errors.told.contains(&errors.count) {
            errors.told = [errors.count; 2];
        }
    }

    pub(crate) fn persist(&self, asker: Asker, offset: u64, len: u64) -> Result<()> {
        let mut record = self.record();
        record.persists += 1;
        if record.faults.lies.is_some_and(|lies| lies(offset, len)) {
            return Ok(());
        }
        let told_alone = record.faults.told_alone.take_if(|fault| (fault.picks)(offset, len));
        if told_alone.is_some() {
            record.fail_write_back(Refusal::Io);
        }
        match next_refusal(&mut record.faults.persists) {
            Some(refusal) => {
                record.log(Op::Persist { offset, len, failed: true });
                record.errors.add(refusal);
            }
            None => record.log(Op::Persist { offset, len, failed: false }),
        }
        let told = record.errors.tell(asker);
        drop(record);
        if let Some(fault) = told_alone {
            (fault.meanwhile)();
        }
        match told {
            None => Ok(()),
            Some(refusal) => {
                let call = if asker == Asker::Range { "msync" } else { "fdatasync" };
                Err(DeviceError::io(call, Path::new(NAME), refusal.error()))
            }
        }
    }

    pub(crate) fn grow(&self, old: u64, new: u64) -> Result<()> {
        let mut record = self.record();
        record.may_take(old, new, new - old)?;
        // A crash may have left a length that is no whole number of pages; its last page is mapped already.
        self.mapping()
            .map_memory(old - old % page_bytes(), new)
            .map_err(|source| DeviceError::io("map", Path::new(NAME), source))?;
        record.bytes = new;
        record.log(Op::Grow { bytes: new });
        Ok(())
    }

    /// A walk along the log as it is now, from its beginning.
    pub fn walk(&self) -> CrashWalk {
        let record = self.record();
        CrashWalk {
            state: record.start.clone(),
            log: record.log.clone(),
            first_op: record.first_op,
            next: 0,
            points: 0,
            started: false,
            boot_id: self.medium.boot_id,
            bytes_max: self.medium.bytes_max,
        }
    }

    /// `count` images of a crash after the first `op_index` operations: the kinds of [`Survivors::EACH`] in turn, then
    /// random ones.
    pub fn images_at(&self, op_index: u64, seed: u64, count: usize) -> Vec<Image> {
        let mut walk = self.walk();
        walk.seek(op_index);
        let kinds = Survivors::EACH.into_iter().chain(std::iter::repeat(Survivors::Random));
        kinds.take(count).enumerate().map(|(n, kind)| walk.image(kind, seed.wrapping_add(n as u64))).collect()
    }

    /// What is left if the process is killed now.
    pub fn process_kill(&self) -> Image {
        let mut walk = self.walk();
        walk.seek(u64::MAX);
        walk.image(Survivors::ProcessKill, 0)
    }
}

impl WriteBackErrors {
    fn add(&mut self, refusal: Refusal) {
        self.count += 1;
        self.last = Some(refusal);
    }

    /// What `asker` has not been told yet.
    fn tell(&mut self, asker: Asker) -> Option<Refusal> {
        let told = std::mem::replace(&mut self.told[asker as usize], self.count);
        self.last.filter(|_| told < self.count)
    }
}

fn pages_of(from: u64, to: u64) -> Range<u64> {
    from / PAGE_BYTES..to.div_ceil(PAGE_BYTES)
}

impl Record {
    fn allocated_bytes(&self) -> u64 {
        self.bytes - self.released.len() as u64 * PAGE_BYTES
    }

    /// Of the disk: by the tier and by files.
    fn taken_bytes(&self) -> u64 {
        self.allocated_bytes() + self.files.bytes()
    }

    /// Whether the disk has `bytes` more, for `from..to`; if so, that is a growth of those that may still succeed.
    fn may_take(&mut self, from: u64, to: u64, bytes: u64) -> Result<()> {
        let beyond = self.faults.disk_bytes.is_some_and(|disk| self.taken_bytes() + bytes > disk);
        match if beyond { Some(Refusal::NoSpace) } else { next_refusal(&mut self.faults.grows) } {
            Some(Refusal::NoSpace) => {
                let source = Some(Refusal::NoSpace.error());
                Err(DeviceError::Full { wanted: to, limit: from, source })
            }
            Some(refusal) => Err(DeviceError::io("allocate room in", Path::new(NAME), refusal.error())),
            None => Ok(()),
        }
    }

    /// A store to bytes without blocks would be a SIGBUS on a full disk, and is found here on every disk.
    fn check_blocks(&self, offset: u64, bytes: usize) {
        let stored = pages_of(offset, offset + bytes as u64);
        assert!(
            self.released.range(stored).next().is_none(),
            "a store of {bytes} bytes at {offset}, where the disk was given back"
        );
    }

    fn fail_write_back(&mut self, refusal: Refusal) {
        self.log(Op::Persist { offset: 0, len: u64::MAX, failed: true });
        self.errors.add(refusal);
    }

    fn log(&mut self, op: impl Into<LogEntry>) {
        let op = op.into();
        self.log_bytes += OP_BYTES + op.stored_bytes();
        self.log.push(op);
        if self.log_bytes > self.log_bytes_max {
            self.fold();
        }
    }

    /// Folds the older half of the log into the starting state.
    fn fold(&mut self) {
        let mut freed = 0;
        let mut folded = 0;
        while freed < self.log_bytes / 2 && folded < self.log.len() {
            freed += OP_BYTES + self.log[folded].stored_bytes();
            self.start.apply(&self.log[folded]);
            folded += 1;
        }
        self.log.drain(..folded);
        self.log_bytes -= freed;
        self.first_op += folded as u64;
    }
}

/// A walk along a medium's log: stop anywhere, and ask what a crash there would leave.
#[derive(Debug, Clone)]
pub struct CrashWalk {
    state: DiskReplay,
    log: Vec<LogEntry>,
    first_op: u64,
    next: usize,
    points: u64,
    started: bool,
    boot_id: u128,
    bytes_max: u64,
}

impl CrashWalk {
    /// Goes to the next persist point: the state just before a `persist`, or a sync of a file or of names, takes effect, where the most is pending; and last
    /// of all to the end of the log. `false` once that was visited. What a crash right after a persist leaves is among the
    /// images of the next point ([`Survivors::None`]).
    pub fn next_point(&mut self) -> bool {
        if self.started {
            if self.next == self.log.len() {
                return false;
            }
            self.step();
        }
        self.started = true;
        while self.next < self.log.len() && !self.log[self.next].is_point() {
            self.step();
        }
        true
    }

    /// Goes one logged operation on; `false` at the end of the log.
    pub fn next_op(&mut self) -> bool {
        self.started = true;
        let more = self.next < self.log.len();
        if more {
            self.step();
        }
        more
    }

    /// Goes on to just after the first `op_index` operations of the log, or to its end. Never goes back.
    pub fn seek(&mut self, op_index: u64) {
        while self.op_index() < op_index && self.next_op() {}
    }

    fn step(&mut self) {
        let op = &self.log[self.next];
        self.state.apply(op);
        self.points += u64::from(op.is_point());
        self.next += 1;
    }

    /// Operations that have taken effect here: compare with [`CrashSim::ops`] as noted while the script ran.
    pub fn op_index(&self) -> u64 {
        self.first_op + self.next as u64
    }

    /// Persists that have taken effect here.
    pub fn point(&self) -> u64 {
        self.points
    }

    /// Bytes stored and not yet durable, counted by granules.
    pub fn pending_bytes(&self) -> u64 {
        self.state.pending_bytes()
    }

    /// One image for each of `kinds`. Where nothing is pending all power cuts are alike: only the first is given.
    pub fn images(&self, kinds: &[Survivors], seed: u64) -> Vec<Image> {
        let mut cut = false;
        let mut images = Vec::with_capacity(kinds.len());
        for (n, &kind) in kinds.iter().enumerate() {
            if kind != Survivors::ProcessKill && self.state.is_settled() && std::mem::replace(&mut cut, true)
            {
                continue;
            }
            images.push(self.image(kind, seed.wrapping_add(n as u64)));
        }
        images
    }

    /// What a crash of this kind leaves here. `seed` matters to [`Survivors::Random`] only.
    pub fn image(&self, kind: Survivors, seed: u64) -> Image {
        let mut random = Random::from_seed(seed ^ self.op_index().rotate_left(32));
        let (view, bytes, files) = self.state.survive(kind, &mut random);
        let same_boot = kind == Survivors::ProcessKill;
        let state = self.state.after(kind, (&view, bytes, &files));
        let boot_id = if same_boot { self.boot_id } else { self.boot_id + 1 };
        let bytes_max = self.bytes_max;
        Image {
            same_boot,
            op_index: self.op_index(),
            survivors: kind,
            state,
            view,
            files,
            bytes,
            boot_id,
            bytes_max,
        }
    }
}

#[cfg(test)]
mod tests;
