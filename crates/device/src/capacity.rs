//! The capacity tier: a directory of files on a large, slow device.
//!
//! Owns [`CapacityTier`] (the names), [`NewFile`] (a file that is written front to back, once), [`CapacityFile`] (one that is read) and [`AllocatedFile`] (one that has
//! all its blocks beforehand). Promises
//! that what was [finished](NewFile::finish) is on the device, that a name is once [`CapacityTier::sync_names`] returned, and that writing does not push what others
//! need out of the page cache. Must not know what the bytes mean.
//!
//! # Why the page cache is passed by when writing and used when reading
//!
//! A file of rows that were just moved here is one that nobody has asked for lately: its pages in the cache would cost those of the mapped log
//! theirs. Copying them there takes most of a core besides. So files are written by `O_DIRECT`, [`STEP_BYTES`] at a time, each step while the next is filled; where the file system refuses that, through
//! the cache, which is told to let go. Reads go through the cache: it is the large one, shared by all processes, and its hits cost no request. But to go through it costs about
//! half of the processor time of a read that it cannot answer (a page is found and given up, the bytes are copied, and each read is a request that the device is told of by
//! itself). So who knows that it is in vain asks for a read [past it](FileRead::past_cache).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{DeviceError, Result};
use crate::fault::{CrashSim, SimulatedFile};
use crate::relaxed::OwnedBytes;

use behind::WriteBehind;
use directory::{Directory, FileWriter, OpenedFile, RewrittenFile};
use ring::{NumberedRead, ReadSource};

mod behind;
mod directory;
mod ring;

/// Files are whole numbers of these: what a device reads and writes at least, and where direct writes must begin.
pub const CAPACITY_PAGE_BYTES: usize = 4096;
/// Bytes of one write.
const STEP_BYTES: usize = 1 << 20;

/// A directory of files that are written once. Clones are the same directory.
#[derive(Debug, Clone)]
pub struct CapacityTier {
    place: Place,
}

/// Which way the bytes of a new file take to the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WritePath {
    /// Past the page cache, where the file system can do that. None of them stays in it.
    #[default]
    PastPageCache,
    /// Through the page cache, where they stay: whoever reads them next waits for no device. It costs one more copy of them.
    ThroughPageCache,
}

#[derive(Debug, Clone)]
enum Place {
    Directory(Arc<Directory>),
    Simulated(CrashSim),
}

impl CapacityTier {
    /// Opens the directory `path`, and makes it, durably, if there is none. Nobody else has it open for writing meanwhile.
    ///
    /// # Errors
    /// [`DeviceError::Locked`]; [`DeviceError::Io`].
    pub fn open(path: &Path) -> Result<CapacityTier> {
        Ok(CapacityTier { place: Place::Directory(Arc::new(Directory::open(path)?)) })
    }

    /// Whether there is a directory `path`, or something else in its place.
    pub fn is_there(path: &Path) -> bool {
        path.exists()
    }

    /// Opens the directory `path` to read what is there, beside others who only read.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] while it is open for writing; [`DeviceError::Io`], also if there is none.
    pub fn open_read_only(path: &Path) -> Result<CapacityTier> {
        Ok(CapacityTier { place: Place::Directory(Arc::new(Directory::open_read_only(path)?)) })
    }

    /// Files on the simulated medium: in its log, so that one crash cuts them and the fast tier at one moment.
    pub fn simulated(sim: &CrashSim) -> CapacityTier {
        CapacityTier { place: Place::Simulated(sim.clone()) }
    }

    /// The names of all files, in no order.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn names(&self) -> Result<Vec<String>> {
        match &self.place {
            Place::Directory(directory) => directory.names(),
            Place::Simulated(sim) => sim.file_names(),
        }
    }

    /// Makes a file, to be written on this path.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also if there is one of that name; [`DeviceError::TargetFull`]; [`DeviceError::ReadOnly`].
    ///
    /// # Panics
    /// The name is one of a file in this directory.
    pub fn create(&self, name: &str, on: WritePath) -> Result<NewFile> {
        check_name(name);
        let target = match &self.place {
            Place::Directory(directory) => {
                let writer = directory.create(name, on)?;
                let path = writer.path().to_path_buf();
                Target::Directory(WriteBehind::new(writer, path))
            }
            Place::Simulated(sim) => Target::Simulated(sim.clone(), sim.create_file(name)?),
        };
        Ok(NewFile { target, step: Step::new(), written: 0, has_failed: false })
    }

    /// Makes a file of `bytes` zeros that have their blocks on the device, durably but for the name.
    ///
    /// # Errors
    /// As [`CapacityTier::create`].
    ///
    /// # Panics
    /// As [`CapacityTier::create`].
    pub fn create_allocated(&self, name: &str, bytes: u64) -> Result<AllocatedFile> {
        check_name(name);
        let made = match &self.place {
            Place::Directory(directory) => {
                directory.create(name, WritePath::PastPageCache)?.into_allocated().map(Rewritten::Directory)
            }
            Place::Simulated(sim) => Ok(Rewritten::Simulated(sim.clone(), sim.create_file(name)?)),
        };
        let allocated = made.and_then(|file| {
            let file = AllocatedFile { file, bytes };
            match &file.file {
                Rewritten::Directory(zeros) => zeros.allocate(bytes)?,
                Rewritten::Simulated(sim, zeros) => sim.lengthen_file(zeros, bytes)?,
            }
            // PERSIST: the length, so that a file of this name is as long as it should be.
            file.sync()?;
            Ok(file)
        });
        if allocated.is_err() {
            // What there is of it is of no use, and in the way of another try.
            let _ = self.remove(name);
        }
        allocated
    }

    /// Opens a file that [`CapacityTier::create_allocated`] made.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also if there is none; [`DeviceError::ReadOnly`].
    ///
    /// # Panics
    /// As [`CapacityTier::create`].
    pub fn open_allocated(&self, name: &str) -> Result<AllocatedFile> {
        check_name(name);
        let (file, bytes) = match &self.place {
            Place::Directory(directory) => {
                let (file, bytes) = directory.open_allocated(name)?;
                (Rewritten::Directory(file), bytes)
            }
            Place::Simulated(sim) => {
                let file = sim.open_file(name)?;
                let bytes = file.bytes();
                (Rewritten::Simulated(sim.clone(), file), bytes)
            }
        };
        Ok(AllocatedFile { file, bytes })
    }

    /// Opens a file to read it. It stays readable though its name is removed.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also if there is none.
    ///
    /// # Panics
    /// The name is one of a file in this directory.
    pub fn open_file(&self, name: &str) -> Result<CapacityFile> {
        check_name(name);
        let opened = match &self.place {
            Place::Directory(directory) => Opened::Directory(directory.open_file(name)?),
            Place::Simulated(sim) => Opened::Simulated(sim.clone(), sim.open_file(name)?),
        };
        Ok(CapacityFile { opened })
    }

    /// Removes a name. After a power cut it may be there again, unless [`CapacityTier::sync_names`] returned since.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also if there is none; [`DeviceError::ReadOnly`].
    ///
    /// # Panics
    /// The name is one of a file in this directory.
    pub fn remove(&self, name: &str) -> Result<()> {
        check_name(name);
        match &self.place {
            Place::Directory(directory) => directory.remove(name),
            Place::Simulated(sim) => sim.remove_file(name),
        }
    }

    /// The names as they are now, those that are gone included, are on the device on return.
    ///
    /// # Errors
    /// [`DeviceError::Io`], [`DeviceError::ReadOnly`].
    pub fn sync_names(&self) -> Result<()> {
        match &self.place {
            Place::Directory(directory) => directory.sync_names(),
            Place::Simulated(sim) => sim.sync_names(),
        }
    }

    /// Bytes that files may still take, as far as is known.
    pub fn free_bytes(&self) -> Option<u64> {
        match &self.place {
            Place::Directory(directory) => directory.free_bytes(),
            Place::Simulated(sim) => sim.free_bytes(),
        }
    }
}

fn check_name(name: &str) {
    let is_one = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    assert!(is_one, "{name:?} is no name of a file");
}

/// What was appended and not written yet, at addresses that direct writes can begin at.
struct Step {
    memory: Box<[u8]>,
    from: usize,
    filled: usize,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("filled", &self.filled).finish_non_exhaustive()
    }
}

impl Step {
    fn new() -> Step {
        let memory = vec![0; STEP_BYTES + CAPACITY_PAGE_BYTES].into_boxed_slice();
        let from = memory.as_ptr().align_offset(CAPACITY_PAGE_BYTES);
        assert!(from < CAPACITY_PAGE_BYTES, "bytes can be aligned");
        Step { memory, from, filled: 0 }
    }

    /// Takes as many of `bytes` as there is room for, and returns the rest.
    fn fill<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let (now, rest) = bytes.split_at(bytes.len().min(STEP_BYTES - self.filled));
        let at = self.from + self.filled;
        self.memory[at..at + now.len()].copy_from_slice(now);
        self.filled += now.len();
        rest
    }

    /// Zeros up to a whole number of pages.
    fn fill_page(&mut self) {
        let filled = self.filled.next_multiple_of(CAPACITY_PAGE_BYTES);
        self.memory[self.from + self.filled..self.from + filled].fill(0);
        self.filled = filled;
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.from..self.from + self.filled]
    }

    fn clear(&mut self) {
        self.filled = 0;
    }
}

#[derive(Debug)]
enum Target {
    Directory(WriteBehind<FileWriter>),
    Simulated(CrashSim, Arc<SimulatedFile>),
}

/// A file that is being written, front to back. Dropped before it is [finished](NewFile::finish), or after an error, it is left as it
/// is, for [`CapacityTier::remove`].
#[derive(Debug)]
pub struct NewFile {
    target: Target,
    step: Step,
    /// In the file, without what is in `step`.
    written: u64,
    /// A write failed: what came after it is not in the file.
    has_failed: bool,
}

impl NewFile {
    /// Bytes appended so far.
    pub fn bytes(&self) -> u64 {
        self.written + self.step.filled as u64
    }

    /// Appends `bytes`, of which some may stay in memory until more come.
    ///
    /// # Errors
    /// [`DeviceError::TargetFull`], [`DeviceError::Io`], of these bytes or of some before: then the file is of no use any more, and refuses all else.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            bytes = self.step.fill(bytes);
            if self.step.filled == STEP_BYTES {
                self.write_step()?;
            }
        }
        Ok(())
    }

    /// Appends zeros up to a whole number of pages.
    ///
    /// # Errors
    /// As [`NewFile::append`].
    pub fn fill_page(&mut self) -> Result<()> {
        self.step.fill_page();
        if self.step.filled == STEP_BYTES { self.write_step() } else { Ok(()) }
    }

    fn check_whole(&self) -> Result<()> {
        if self.has_failed {
            let source = io::Error::other("an earlier write to it failed");
            return Err(DeviceError::io("go on with", &self.path(), source));
        }
        Ok(())
    }

    fn write_step(&mut self) -> Result<()> {
        self.check_whole()?;
        self.has_failed = true;
        let bytes = self.step.filled as u64;
        match &mut self.target {
            Target::Directory(behind) => behind.write(self.written, &mut self.step)?,
            Target::Simulated(sim, file) => {
                sim.write_file(file, self.written, self.step.bytes())?;
                self.step.clear();
            }
        }
        self.has_failed = false;
        self.written += bytes;
        Ok(())
    }

    fn path(&self) -> PathBuf {
        match &self.target {
            Target::Directory(behind) => behind.path().to_path_buf(),
            Target::Simulated(_, file) => file.path(),
        }
    }

    /// Writes what is left, with zeros up to a whole number of pages; all bytes are on the device on return. The name is not, before
    /// [`CapacityTier::sync_names`].
    ///
    /// # Errors
    /// As [`NewFile::append`]; a failed sync says nothing of other files, and closes nothing.
    pub fn finish(mut self) -> Result<CapacityFile> {
        self.check_whole()?;
        self.step.fill_page();
        // PERSIST: whoever is told of the file finds its bytes on the device.
        let opened = match self.target {
            Target::Directory(behind) => {
                let mut writer = behind.finish()?;
                writer.write(self.written, self.step.bytes())?;
                Opened::Directory(writer.finish()?)
            }
            Target::Simulated(sim, file) => {
                sim.write_file(&file, self.written, self.step.bytes())?;
                sim.sync_file(&file)?;
                Opened::Simulated(sim, file)
            }
        };
        Ok(CapacityFile { opened })
    }
}

#[derive(Debug, Clone)]
enum Opened {
    Directory(Arc<OpenedFile>),
    Simulated(CrashSim, Arc<SimulatedFile>),
}

/// A file that is read. Clones are the same opened file; it stays readable though its name is removed.
#[derive(Debug, Clone)]
pub struct CapacityFile {
    opened: Opened,
}

/// Bytes that are wanted of a file.
#[derive(Debug, Clone, Copy)]
pub struct FileRead<'a> {
    /// The file.
    pub file: &'a CapacityFile,
    /// Where in it they begin.
    pub offset: u64,
    /// How many they are.
    pub bytes: usize,
    /// The page cache is not to keep them: unless it has them already they are read past it, where the file system can do that, the place is one of whole pages, and so is
    /// the length.
    pub past_cache: bool,
}

/// Reads that come about one after the other, for [`CapacityFile::read_in_turn`].
pub trait ReadsInTurn {
    /// The next, and a number for it, if there is one now. Where there is none it is asked again once one that is under way was answered, if any is.
    fn next(&mut self) -> Option<(usize, FileRead<'_>)>;

    /// What [`CapacityFile::read`] says of the read of this number.
    fn done(&mut self, number: usize, answer: Result<OwnedBytes>);

    /// Does a little of what else there is to do, while all reads that can be begun are under way, and at the end while none is; false if that is nothing now. `next` is asked
    /// again then. What takes long keeps the device waiting.
    fn meanwhile(&mut self) -> bool {
        false
    }
}

/// Reads that are all known.
struct Listed<'a, D> {
    reads: std::iter::Enumerate<std::slice::Iter<'a, FileRead<'a>>>,
    done: D,
}

impl<D: FnMut(usize, Result<OwnedBytes>)> ReadsInTurn for Listed<'_, D> {
    fn next(&mut self) -> Option<(usize, FileRead<'_>)> {
        let (number, read) = self.reads.next()?;
        Some((number, *read))
    }

    fn done(&mut self, number: usize, answer: Result<OwnedBytes>) {
        (self.done)(number, answer);
    }
}

impl FileRead<'_> {
    /// Does this read alone.
    ///
    /// # Errors
    /// As [`CapacityFile::read`].
    pub fn alone(&self) -> Result<OwnedBytes> {
        match &self.file.opened {
            Opened::Directory(file) => {
                let is_direct = self.past_cache && file.can_pass_cache(self.offset, self.bytes);
                file.read_owned(self.offset, self.bytes, is_direct)
            }
            Opened::Simulated(..) => self.file.read(self.offset, self.bytes),
        }
    }
}

/// Those of them that are of files on a file system; the others are answered at once.
struct OnDisk<'r, R> {
    reads: &'r mut R,
    /// Whether the wait was counted.
    is_counted: bool,
}

impl<R: ReadsInTurn> ReadSource for OnDisk<'_, R> {
    fn next(&mut self) -> Option<NumberedRead> {
        loop {
            let (number, FileRead { file, offset, bytes, past_cache }) = self.reads.next()?;
            let (sim, file) = match &file.opened {
                Opened::Directory(file) => {
                    let is_direct = past_cache && file.can_pass_cache(offset, bytes);
                    return Some(NumberedRead { number, file: Arc::clone(file), offset, bytes, is_direct });
                }
                Opened::Simulated(sim, file) => (sim.clone(), Arc::clone(file)),
            };
            if !std::mem::replace(&mut self.is_counted, true) {
                sim.count_file_wait();
            }
            let mut read = OwnedBytes::zeroed(bytes);
            let is_read = sim.read_file(&file, offset, &mut read.as_mut_slice()[..bytes]);
            self.reads.done(number, is_read.map(|()| read));
        }
    }

    fn done(&mut self, number: usize, answer: Result<OwnedBytes>) {
        self.reads.done(number, answer);
    }

    fn meanwhile(&mut self) -> bool {
        self.reads.meanwhile()
    }
}

impl CapacityFile {
    /// Bytes in the file.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn bytes(&self) -> Result<u64> {
        match &self.opened {
            Opened::Directory(file) => file.bytes(),
            Opened::Simulated(_, file) => Ok(file.bytes()),
        }
    }

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also if the file ends before.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match &self.opened {
            Opened::Directory(file) => file.read(offset, bytes),
            Opened::Simulated(sim, file) => {
                sim.count_file_wait();
                sim.read_file(file, offset, bytes)
            }
        }
    }

    /// Fills `bytes` from `offset` on if all of them are in memory: `false` if a read would have to wait for the device, and then `bytes` is anything. It may
    /// have asked the device for them. Where the file system or the kernel cannot say, nothing is ever in memory.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also if the file ends before.
    pub fn read_at_hand(&self, offset: u64, bytes: &mut [u8]) -> Result<bool> {
        match &self.opened {
            Opened::Directory(file) => file.read_at_hand(offset, bytes),
            Opened::Simulated(sim, file) => sim.read_file_at_hand(file, offset, bytes),
        }
    }

    /// The `bytes` from `offset` on.
    ///
    /// # Errors
    /// As [`CapacityFile::read_at`].
    pub fn read(&self, offset: u64, bytes: usize) -> Result<OwnedBytes> {
        match &self.opened {
            Opened::Directory(file) => file.read_owned(offset, bytes, false),
            Opened::Simulated(..) => {
                let mut read = OwnedBytes::zeroed(bytes);
                self.read_at(offset, &mut read.as_mut_slice()[..bytes])?;
                Ok(read)
            }
        }
    }

    /// Does all `reads`, many of them under way at the same time, and tells `done` of each once, in whatever order they come: which of them it is, and what
    /// [`CapacityFile::read`] says of it. Others go on meanwhile.
    pub fn read_many(reads: &[FileRead<'_>], done: impl FnMut(usize, Result<OwnedBytes>)) {
        CapacityFile::read_in_turn(&mut Listed { reads: reads.iter().enumerate(), done });
    }

    /// [`CapacityFile::read_many`] of reads that come about one after the other: some are under way while the next is thought of.
    pub fn read_in_turn(reads: &mut impl ReadsInTurn) {
        ring::read_all(&mut OnDisk { reads, is_counted: false });
    }

    /// Asks for bytes that will be read soon, and waits for none. A hint.
    pub fn will_read(&self, offset: u64, bytes: u64) {
        if let Opened::Directory(file) = &self.opened {
            file.will_read(offset, bytes);
        }
    }

    /// Brings what the page cache lacks of the file there, 256 KiB at a time as long as `goes_on` says so; returns how many bytes came. For who knows that
    /// there is memory for all of it, and that it will be read.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn bring(&self, goes_on: impl Fn() -> bool) -> Result<u64> {
        match &self.opened {
            Opened::Directory(file) => file.bring(goes_on),
            // It is as much in memory as it is said to be.
            Opened::Simulated(..) => Ok(0),
        }
    }

    /// The file's path, or what stands for it.
    pub fn path(&self) -> PathBuf {
        match &self.opened {
            Opened::Directory(file) => file.path().to_path_buf(),
            Opened::Simulated(_, file) => file.path(),
        }
    }

    /// The file's path, if it is on a file system.
    pub fn linkable_path(&self) -> Option<PathBuf> {
        match &self.opened {
            Opened::Directory(_) => Some(self.path()),
            Opened::Simulated(..) => None,
        }
    }
}

#[derive(Debug)]
enum Rewritten {
    Directory(RewrittenFile),
    Simulated(CrashSim, Arc<SimulatedFile>),
}

/// A file whose bytes all have their blocks: writing it meets no full disk.
#[derive(Debug)]
pub struct AllocatedFile {
    file: Rewritten,
    bytes: u64,
}

impl AllocatedFile {
    /// Bytes in the file, as it was when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    ///
    /// # Panics
    /// They do not all lie in the file.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len());
        match &self.file {
            Rewritten::Directory(file) => file.read(offset, bytes),
            Rewritten::Simulated(sim, file) => sim.read_file(file, offset, bytes),
        }
    }

    /// Writes `bytes` at `offset`. Durable with the next [`AllocatedFile::sync`]; before it each page of them may be, apart from
    /// every other.
    ///
    /// # Errors
    /// [`DeviceError::TargetFull`], [`DeviceError::Io`]: some of them may be written.
    ///
    /// # Panics
    /// They do not all lie in the file.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len());
        match &self.file {
            Rewritten::Directory(file) => file.write(offset, bytes),
            Rewritten::Simulated(sim, file) => sim.write_file(file, offset, bytes),
        }
    }

    /// All that was written is on the device on return.
    ///
    /// # Errors
    /// [`DeviceError::TargetFull`], [`DeviceError::Io`]: what was written since the last sync may never be, however often one tries again.
    pub fn sync(&self) -> Result<()> {
        match &self.file {
            Rewritten::Directory(file) => file.sync(),
            Rewritten::Simulated(sim, file) => sim.sync_file(file),
        }
    }

    fn check(&self, offset: u64, bytes: usize) {
        let end = offset.checked_add(bytes as u64);
        let bytes_there = self.bytes;
        assert!(end.is_some_and(|end| end <= bytes_there), "{bytes} bytes at {offset} of {bytes_there}");
    }
}

#[cfg(test)]
mod tests;
