//! The file behind a fast tier: its lock, its length, its way to the disk.
//!
//! Owns opening, locking, allocating and syncing. Promises that every byte it grew by has its disk blocks until they are
//! released, so that no store through the mapping can meet a full disk. Must not know what the bytes mean.
//!
//! The lock is an `flock` on the tier's own file, so it cannot be stepped around by deleting another file, and it ends
//! with the process however that ends. Beside it, `NAME.lock` holds the holder's process id as decimal text, for the
//! message of whoever is refused; nothing else rests on that file.
#![allow(unsafe_code)]

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{DeviceError, Result};
use crate::map::{FileAccess, Mapping, is_persistent_memory, page_bytes};

/// Who may do what with the files and directories made here: their owner all, others nothing. Those that are there already
/// stay as they are.
pub(crate) const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// Zeros written at once where the file system cannot allocate without writing.
const ZEROS_BYTES: usize = 256 << 10;

/// A locked, mapped file.
#[derive(Debug)]
pub(crate) struct TierFile {
    mapping: Mapping,
    /// Holds the lock.
    file: File,
    /// The same file opened once more, for the mapping: `msync` hears of failed write-backs by it, `fdatasync` by `file`.
    mapped: File,
    path: PathBuf,
    access: FileAccess,
    /// Whether blocks can be had, and given back, in the middle of the file.
    has_ranges: bool,
}

impl TierFile {
    /// Opens and locks `path` for reading and writing, and maps all it holds. Answers its length too. `reserve_on` says how much
    /// address space is set aside, of a file on a file system of so many bytes.
    pub(crate) fn open(
        path: &Path,
        create: bool,
        reserve_on: impl FnOnce(Option<u64>) -> u64,
    ) -> Result<(TierFile, u64)> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .mode(FILE_MODE)
            .open(path)
            .map_err(|source| DeviceError::io("open", path, source))?;
        lock(&file, path, File::try_lock)?;
        write_holder(path);
        if create && file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            // PERSIST: a new file's name is durable before anything in it is, or a power cut takes the whole tier.
            sync_directory(path).map_err(|source| DeviceError::io("sync the directory of", path, source))?;
        }
        let access = if is_persistent_memory(&file) { FileAccess::WriteSync } else { FileAccess::Write };
        let disk_bytes = file_system_bytes(&file).map(|(all, _)| all);
        TierFile::map(file, path, access, reserve_on(disk_bytes))
    }

    /// Opens `path` for reading beside other readers.
    pub(crate) fn open_read_only(path: &Path) -> Result<(TierFile, u64)> {
        let file = File::open(path).map_err(|source| DeviceError::io("open", path, source))?;
        lock(&file, path, File::try_lock_shared)?;
        TierFile::map(file, path, FileAccess::Read, 0)
    }

    /// Opens `path` for reading beside other readers, and maps it so that it may be stored to, for this process alone.
    pub(crate) fn open_copy(path: &Path) -> Result<(TierFile, u64)> {
        let file = File::open(path).map_err(|source| DeviceError::io("open", path, source))?;
        lock(&file, path, File::try_lock_shared)?;
        TierFile::map(file, path, FileAccess::Copy, 0)
    }

    fn map(file: File, path: &Path, access: FileAccess, reserve_bytes: u64) -> Result<(TierFile, u64)> {
        let length = file.metadata().map_err(|source| DeviceError::io("measure", path, source))?.len();
        let mapping = Mapping::reserve(reserve_bytes, length)
            .map_err(|source| DeviceError::io("reserve address space for", path, source))?;
        let mapped = match access {
            FileAccess::Read | FileAccess::Copy => file.try_clone(),
            FileAccess::Write | FileAccess::WriteSync => {
                open_again(&file, OpenOptions::new().read(true).write(true))
            }
        };
        let mapped = mapped.map_err(|source| DeviceError::io("open a second time", path, source))?;
        let mut tier =
            TierFile { mapping, file, mapped, path: path.to_path_buf(), access, has_ranges: false };
        if access == FileAccess::WriteSync {
            // A sparse copy of a tier has holes, and a store to a hole of a full disk would be a SIGBUS.
            tier.allocate(0, length)?;
        } else if access == FileAccess::Write {
            // On persistent memory the block map would have to be synced at each change.
            tier.has_ranges = punch(&tier.file, length, page_bytes()).is_ok();
        }
        // SAFETY: nothing is mapped yet; what the file lacks of blocks was allocated, or is found before it is stored to (`FastTier::allocate`).
        unsafe { tier.mapping.map_file(0, length, &tier.mapped, access) }
            .map_err(|source| DeviceError::io("map", path, source))?;
        Ok((tier, length))
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// [`Mapping::make_pages_small`].
    pub(crate) fn make_pages_small(&self, from: u64, to: u64) {
        // SAFETY: the mapping is this file's.
        unsafe { self.mapping.make_pages_small(&self.file, from, to) };
    }

    /// [`Mapping::evict`].
    pub(crate) fn evict(&self, from: u64, to: u64) {
        // SAFETY: the mapping is this file's.
        unsafe { self.mapping.evict(&self.file, from, to) };
    }

    /// Writes `from..to` over with what the file holds there, to the device. Blocks that were allocated and never written are
    /// marked so, and a sync after the first store to each commits the file system's journal: 230 instead of 150 us for 1 KB
    /// (ext4). Nobody may store there meanwhile. Best effort.
    pub(crate) fn write_through(&self, from: u64, to: u64) {
        // PERSIST: by a way of its own. The kernel tells a failed write once to each opened file: told here, of whatever page, it
        // would not be told to the sync that somebody waits for. So that will hear of what fails here.
        let Ok(apart) = open_again(&self.file, OpenOptions::new().read(true).write(true)) else { return };
        let mut bytes = vec![0; (to - from) as usize];
        if apart.read_exact_at(&mut bytes, from).is_ok() {
            write_synced(&apart, &bytes, from);
        }
    }

    /// Stores `bytes` at `from` by a system call rather than through the mapping. They are seen there at once, and durable with the
    /// next sync, but only the block they lie in is dirty. False if that was refused.
    ///
    /// The kernel holds a file's pages in pieces of up to 2 MiB (large folios). A store through the mapping makes all of its piece
    /// dirty: a byte in each MiB of 256 had a sync write 227 MiB, and 1 MiB when it was stored so (ext4, Linux 6.18).
    pub(crate) fn store_apart(&self, from: u64, bytes: &[u8]) -> bool {
        // Beyond the limit it would raise SIGXFSZ, which kills the process.
        let is_allowed = file_size_limit().is_none_or(|limit| from + bytes.len() as u64 <= limit);
        is_allowed && self.file.write_all_at(bytes, from).is_ok()
    }

    /// [`Mapping::remap`].
    pub(crate) fn remap(&self, from: u64, to: u64) {
        // SAFETY: the mapping is this file's.
        unsafe { self.mapping.remap(from, to) };
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_persistent_memory(&self) -> bool {
        self.access == FileAccess::WriteSync
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.access == FileAccess::Read
    }

    pub(crate) fn changes_file(&self) -> bool {
        self.access.changes_file()
    }

    /// Maps what was [allocated](TierFile::allocate).
    pub(crate) fn map_more(&self, from: u64, to: u64) -> Result<()> {
        // SAFETY: nothing but this file is mapped; the blocks were allocated.
        unsafe { self.mapping.map_file(from, to, &self.mapped, self.access) }
            .map_err(|source| DeviceError::io("map", &self.path, source))
    }

    /// Bytes that the file of `length` bytes may still take, as far as the file system knows.
    pub(crate) fn free_bytes(&self, length: u64) -> Option<u64> {
        let on_disk = file_system_bytes(&self.file).map(|(_, free)| free);
        // What was released lies below the length, and may be had again.
        let taken = self.allocated_bytes().map_or(length, |allocated| allocated.min(length));
        let allowed = file_size_limit().map(|limit| limit.saturating_sub(taken));
        on_disk.into_iter().chain(allowed).min()
    }

    /// Bytes of disk that the file takes.
    pub(crate) fn allocated_bytes(&self) -> Option<u64> {
        // In this unit whatever the file system's own.
        self.file.metadata().ok().map(|metadata| metadata.blocks() * 512)
    }

    /// Bytes of the whole file system.
    pub(crate) fn file_system_bytes(&self) -> Option<u64> {
        file_system_bytes(&self.file).map(|(all, _)| all)
    }

    /// Gives the blocks of `from..to` back; they read as zeros. False where that is not possible.
    pub(crate) fn release(&self, from: u64, to: u64) -> bool {
        self.has_ranges && punch(&self.file, from, to - from).is_ok()
    }

    /// Blocks for bytes below the file's length, whose contents stay as they are.
    pub(crate) fn allocate_again(&self, from: u64, to: u64) -> Result<()> {
        if self.has_ranges { self.allocate(from, to) } else { Ok(()) }
    }

    /// Lengthens the file from `from` to `to` bytes of zeros, blocks allocated.
    pub(crate) fn allocate(&self, from: u64, to: u64) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let refused = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
                DeviceError::Full { wanted: to, limit: from, source: Some(source) }
            }
            _ => DeviceError::io("allocate room in", &self.path, source),
        };
        if let Some(limit) = file_size_limit()
            && to > limit
        {
            // Asking would raise SIGXFSZ, which kills the process.
            let source = io::Error::from_raw_os_error(libc::EFBIG);
            return Err(DeviceError::Full { wanted: to, limit, source: Some(source) });
        }
        match fallocate(&self.file, from, to - from) {
            Err(refusal) if refusal.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                // Only what lies beyond the present end may be overwritten.
                let end = self.file.metadata().map_err(refused)?.len();
                write_zeros(&self.file, from.max(end), to).map_err(refused)
            }
            answer => answer.map_err(refused),
        }
    }

    /// The file's bytes in `from..to` and its length are on the device on return. For [`Asker::Range`](crate::sync::Asker).
    pub(crate) fn sync(&self, from: u64, to: u64) -> Result<()> {
        self.mapping.sync(from, to).map_err(|source| DeviceError::io("msync", &self.path, source))
    }

    /// Has write-back of the bytes `from..to` begin.
    pub(crate) fn start_write_back(&self, from: u64, to: u64) {
        // Without a flag that waits: those would take a failure in, of which the next sync must be told.
        // SAFETY: a system call on a descriptor that is open; it changes no contents.
        let _ = unsafe {
            libc::sync_file_range(
                self.file.as_raw_fd(),
                from as libc::off64_t,
                (to - from) as libc::off64_t,
                libc::SYNC_FILE_RANGE_WRITE,
            )
        };
    }

    /// Has the next sync write those pages of `from..to` that are in the page cache, as if they had been stored to. False if the
    /// kernel cannot do that.
    ///
    /// Of a page that is not in the page cache the device has all that there is.
    pub(crate) fn rewrite(&self, from: u64, to: u64) -> bool {
        // SAFETY: the mapping is this file's.
        unsafe { self.mapping.rewrite(from, to) }
    }

    /// All the file's bytes and its length are on the device on return. Persistent memory: writes back every line
    /// the kernel knows to be dirty. For [`Asker::Whole`](crate::sync::Asker).
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| DeviceError::io("fdatasync", &self.path, source))
    }
}

impl Drop for TierFile {
    fn drop(&mut self) {
        if self.changes_file() {
            // While the lock is still held, so that a successor's id is never wiped.
            let _ = OpenOptions::new().write(true).truncate(true).open(holder_path(&self.path));
        }
        // Closing is not enough: a child between its fork and its exec still shares the descriptor, and so the lock.
        let _ = self.file.unlock();
    }
}

/// Makes the directory `path`, and those above it that are missing, durably; only their owner may look into them.
///
/// # Errors
/// What the operating system refuses.
pub fn create_directories(path: &Path) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
    for made in missing {
        // PERSIST: the names on the way to a file are durable before anything in it is. Where its directory may not be read,
        // it cannot be synced, either.
        match sync_directory(made) {
            Err(refused) if refused.kind() != io::ErrorKind::PermissionDenied => return Err(refused),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}

fn lock(file: &File, path: &Path, how: fn(&File) -> std::result::Result<(), TryLockError>) -> Result<()> {
    match how(file) {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(DeviceError::Locked { path: path.to_path_buf(), holder: read_holder(path) })
        }
        Err(TryLockError::Error(source)) => Err(DeviceError::io("lock", path, source)),
    }
}

fn holder_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Leaves this process's id beside the file. Best effort: only a message reads it.
fn write_holder(path: &Path) {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(FILE_MODE);
    if let Ok(mut file) = options.open(holder_path(path)) {
        let _ = writeln!(file, "{}", std::process::id());
    }
}

fn read_holder(path: &Path) -> String {
    let text = fs::read_to_string(holder_path(path)).unwrap_or_default();
    let Ok(id) = text.trim().parse::<u32>() else {
        return "another process (it left no process id; it may be reading)".to_owned();
    };
    match fs::read_to_string(format!("/proc/{id}/comm")) {
        Ok(name) => format!("process {id} ({})", name.trim()),
        Err(_) => format!("another process (the last writer was process {id}, which this one cannot see)"),
    }
}

/// The same file, opened for itself: a failed write-back is told to each opened file once, and advice is of one.
pub(crate) fn open_again(file: &File, options: &OpenOptions) -> io::Result<File> {
    // Not by its path, where another file may be by now, or none.
    options.open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Allocates blocks and lengthens the file; bytes already there stay as they are.
fn fallocate(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    fallocate_by(file, 0, from, bytes)
}

/// Makes a hole, which reads as zeros; the length stays.
fn punch(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    fallocate_by(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, from, bytes)
}

fn fallocate_by(file: &File, mode: libc::c_int, from: u64, bytes: u64) -> io::Result<()> {
    loop {
        // SAFETY: a call on an open descriptor. What it changes under our mapping are bytes that the caller owns.
        let answer =
            unsafe { libc::fallocate(file.as_raw_fd(), mode, from as libc::off_t, bytes as libc::off_t) };
        if answer == 0 {
            return Ok(());
        }
        let refused = io::Error::last_os_error();
        if refused.kind() != io::ErrorKind::Interrupted {
            return Err(refused);
        }
    }
}

pub(crate) fn write_zeros(file: &File, mut from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES];
    while from < to {
        let step = (to - from).min(ZEROS_BYTES as u64);
        file.write_all_at(&zeros[..step as usize], from)?;
        from += step;
    }
    Ok(())
}

/// Writes `bytes` at `from`; they, and no others, are on the device on return, unless that was refused.
fn write_synced(file: &File, mut bytes: &[u8], mut from: u64) {
    while !bytes.is_empty() {
        let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one piece, of bytes that are borrowed for the call and only read.
        let written =
            unsafe { libc::pwritev2(file.as_raw_fd(), &piece, 1, from as libc::off_t, libc::RWF_DSYNC) };
        match usize::try_from(written) {
            Ok(1..) => (bytes, from) = (&bytes[written as usize..], from + written as u64),
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

/// How many pages the page cache has of the `bytes` from `offset` on, and how many of them the device lacks. `None` from a kernel before 6.5, which cannot
/// say. Unlike a read that may not wait, asking brings nothing there.
pub(crate) fn cached_pages(file: &File, offset: u64, bytes: u64) -> Option<(u64, u64)> {
    /// The same number on all architectures.
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = [offset, bytes];
    // Pages cached, dirty, under write-back, evicted, evicted lately.
    let mut pages = [0u64; 5];
    // SAFETY: cachestat reads two words at `range` and fills five at `pages`.
    let answer =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), pages.as_mut_ptr(), 0) };
    (answer == 0).then_some((pages[0], pages[1] + pages[2]))
}

/// Bytes of the file system that holds `file`, and those of them that anybody may have.
pub(crate) fn file_system_bytes(file: &File) -> Option<(u64, u64)> {
    // SAFETY: all zeros are a valid statvfs; the call fills it.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a statvfs to fill.
    let refused = unsafe { libc::fstatvfs(file.as_raw_fd(), &mut answer) };
    let bytes = |blocks: u64| blocks.saturating_mul(answer.f_frsize);
    // A file system without a size of its own says 0.
    (refused == 0 && answer.f_blocks != 0).then(|| (bytes(answer.f_blocks), bytes(answer.f_bavail)))
}

/// The largest file this process may make (`ulimit -f`), where there is a limit.
pub(crate) fn file_size_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit to fill.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_made_with_those_above_them() {
        let top = std::env::temp_dir().join(format!("hedgerow-directories-{}", std::process::id()));
        let deep = top.join("a/b/c");
        for _ in 0..2 {
            create_directories(&deep).unwrap();
            assert!(deep.is_dir());
        }
        fs::write(deep.join("file"), b"in the way").unwrap();
        assert!(create_directories(&deep.join("file")).is_err());
        fs::remove_dir_all(&top).unwrap();
    }
}
