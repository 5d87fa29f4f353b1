//! The capacity tier's files on a file system.
//!
//! Owns the system calls. Promises what the parent module promises of them. Must not know steps, nor the simulated medium.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use super::WritePath;
use crate::copy::DirectoryLock;
use crate::error::{DeviceError, Result};
use crate::file::{
    FILE_MODE, cached_pages, create_directories, file_size_limit, file_system_bytes, open_again,
    sync_directory, write_zeros,
};
use crate::map::page_bytes;
use crate::relaxed::{OwnedBytes, UnfilledBytes};

/// What reads past the page cache are multiples of.
const PAGE_BYTES: u64 = 4096;

/// A file of which the page cache had nothing so many times in a row is one of which it has little: it is asked less often.
const UNCACHED_SURE: u8 = 32;
/// Once in so many times then.
const ASKED_EVERY: u8 = 16;

/// A file is brought into the page cache so much at a time, and no more is under way: who wants a block of it waits for that. (With the file system's readahead of 8 MiB readers waited for up to
/// 100 ms.)
const BROUGHT_BYTES: usize = 256 << 10;

/// A locked directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    lock: DirectoryLock,
    is_read_only: bool,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Directory> {
        let path = &absolute(path)?;
        create_directories(path).map_err(|source| DeviceError::io("make the directory", path, source))?;
        // PERSIST: also of one that was there: who made it may have been killed before this.
        match sync_directory(path) {
            Err(source) if source.kind() != io::ErrorKind::PermissionDenied => {
                return Err(DeviceError::io("sync the directory of", path, source));
            }
            _ => {}
        }
        let lock = DirectoryLock::take(path)?;
        raise_descriptor_limit();
        Ok(Directory { path: path.to_path_buf(), lock, is_read_only: false })
    }

    pub(super) fn open_read_only(path: &Path) -> Result<Directory> {
        let path = &absolute(path)?;
        let lock = DirectoryLock::share(path)?;
        raise_descriptor_limit();
        Ok(Directory { path: path.to_path_buf(), lock, is_read_only: true })
    }

    fn check_writable(&self) -> Result<()> {
        match self.is_read_only {
            true => Err(DeviceError::ReadOnly { path: self.path.clone() }),
            false => Ok(()),
        }
    }

    /// Of files: what else there is, as a file system has at its top, nobody here has made.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let io = |source| DeviceError::io("list", &self.path, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.file_type().map_err(io)?.is_file() {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }

    pub(super) fn create(self: &Arc<Self>, name: &str, on: WritePath) -> Result<FileWriter> {
        self.check_writable()?;
        let path = self.path.join(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE);
        let direct = match on {
            WritePath::PastPageCache => libc::O_DIRECT,
            WritePath::ThroughPageCache => 0,
        };
        let opened = match options.clone().custom_flags(direct).open(&path) {
            // The file system knows no direct writes; some make the file before they say so.
            Err(refused) if refused.raw_os_error() == Some(libc::EINVAL) => {
                if fs::metadata(&path).is_ok_and(|file| file.len() == 0) {
                    options.create_new(false);
                }
                options.open(&path).map(|file| (file, false))
            }
            opened => opened.map(|file| (file, direct != 0)),
        };
        let (file, is_direct) = opened.map_err(|source| refused("create", &path, 0, source))?;
        Ok(FileWriter { file, path, is_direct, on, directory: Arc::clone(self) })
    }

    /// The file, and its bytes.
    pub(super) fn open_allocated(self: &Arc<Self>, name: &str) -> Result<(RewrittenFile, u64)> {
        self.check_writable()?;
        let path = self.path.join(name);
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|source| DeviceError::io("open", &path, source))?;
        let bytes = file.metadata().map_err(|source| DeviceError::io("measure", &path, source))?.len();
        Ok((RewrittenFile { file, path, _directory: Arc::clone(self) }, bytes))
    }

    pub(super) fn open_file(self: &Arc<Self>, name: &str) -> Result<Arc<OpenedFile>> {
        OpenedFile::open(self, self.path.join(name))
    }

    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let path = self.path.join(name);
        fs::remove_file(&path).map_err(|source| DeviceError::io("remove", &path, source))
    }

    pub(super) fn sync_names(&self) -> Result<()> {
        self.check_writable()?;
        let synced = self.lock.directory().sync_all();
        synced.map_err(|source| refused("sync", &self.path, 0, source))
    }

    pub(super) fn free_bytes(&self) -> Option<u64> {
        file_system_bytes(self.lock.directory()).map(|(_, free)| free)
    }
}

/// Has the process open as many files as it may at most: each file that is read takes a descriptor, and what is usual otherwise, 1024, is soon used up. A try: opening
/// a file says where it ends.
pub(super) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills what it is given.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    if is_known && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: reads what it is given.
        let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

/// Names of files go by the path and their sync by the lock: both lead to one directory, wherever the process goes.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|source| DeviceError::io("find", path, source))
}

fn refused(what: &'static str, path: &Path, wanted: u64, source: io::Error) -> DeviceError {
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
            DeviceError::TargetFull { path: path.to_path_buf(), wanted, source }
        }
        _ => DeviceError::io(what, path, source),
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct FileWriter {
    file: File,
    path: PathBuf,
    is_direct: bool,
    on: WritePath,
    directory: Arc<Directory>,
}

impl FileWriter {
    /// Writes whole pages, which lie on a page of memory, at a whole page of the file.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        if file_size_limit().is_some_and(|limit| end > limit) {
            // Asking would raise SIGXFSZ, which kills the process.
            return Err(refused("write to", &self.path, end, io::Error::from_raw_os_error(libc::EFBIG)));
        }
        let written = match self.file.write_all_at(bytes, offset) {
            // A device with larger blocks than these pages.
            Err(error) if self.is_direct && error.raw_os_error() == Some(libc::EINVAL) => {
                self.make_buffered()?;
                self.file.write_all_at(bytes, offset)
            }
            written => written,
        };
        written.map_err(|source| refused("write to", &self.path, end, source))?;
        if !self.is_direct {
            self.begin_write_back(offset, bytes.len());
        }
        Ok(())
    }

    /// Has the file written through the page cache from now on.
    pub(super) fn make_buffered(&mut self) -> Result<()> {
        let again = open_again(&self.file, OpenOptions::new().read(true).write(true));
        self.file = again.map_err(|source| DeviceError::io("open a second time", &self.path, source))?;
        self.is_direct = false;
        Ok(())
    }

    /// The same file, to be filled with zeros.
    pub(super) fn into_allocated(mut self) -> Result<RewrittenFile> {
        self.make_buffered()?;
        let FileWriter { file, path, directory, .. } = self;
        Ok(RewrittenFile { file, path, _directory: directory })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// So that the sync at the end finds little left to do, and readers of other files no queue. A hint.
    fn begin_write_back(&self, offset: u64, bytes: usize) {
        // SAFETY: a call on an open descriptor.
        let _ = unsafe {
            let (from, bytes) = (offset as libc::off64_t, bytes as libc::off64_t);
            libc::sync_file_range(self.file.as_raw_fd(), from, bytes, libc::SYNC_FILE_RANGE_WRITE)
        };
    }

    /// The bytes and the length are on the device on return.
    pub(super) fn finish(self) -> Result<Arc<OpenedFile>> {
        self.file.sync_data().map_err(|source| refused("sync", &self.path, 0, source))?;
        if self.on == WritePath::PastPageCache {
            // Direct or not: some file systems take the flag, and go through the cache all the same.
            advise(&self.file, 0, 0, libc::POSIX_FADV_DONTNEED);
        }
        OpenedFile::open(&self.directory, self.path)
    }
}

/// A file that is read, through the page cache or past it.
#[derive(Debug)]
pub(super) struct OpenedFile {
    file: File,
    /// The same file, opened to be read past the page cache when that is first asked for. None where the file system does not do that.
    direct: OnceLock<Option<File>>,
    /// How often in a row, at most [`UNCACHED_SURE`] times, the page cache was asked for bytes of it in vain; and how often it was not asked since.
    uncached: AtomicU8,
    unasked: AtomicU8,
    path: PathBuf,
    /// The lock stays as long as something is read under it.
    _directory: Arc<Directory>,
}

impl OpenedFile {
    fn open(directory: &Arc<Directory>, path: PathBuf) -> Result<Arc<OpenedFile>> {
        let file = File::open(&path).map_err(|source| DeviceError::io("open", &path, source))?;
        // A read brings what was asked for, in one request, and nothing on speculation.
        advise(&file, 0, 0, libc::POSIX_FADV_RANDOM);
        let (direct, uncached, unasked) = (OnceLock::new(), AtomicU8::new(0), AtomicU8::new(0));
        Ok(Arc::new(OpenedFile { file, direct, uncached, unasked, path, _directory: Arc::clone(directory) }))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> Result<u64> {
        let metadata = self.file.metadata();
        metadata.map(|it| it.len()).map_err(|source| DeviceError::io("measure", &self.path, source))
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(bytes, offset);
        read.map_err(|source| DeviceError::io("read", &self.path, source))
    }

    /// The `bytes` at `offset`. `is_direct`: past the page cache, as [`OpenedFile::can_pass_cache`] said.
    pub(super) fn read_owned(&self, offset: u64, bytes: usize, is_direct: bool) -> Result<OwnedBytes> {
        let memory = UnfilledBytes::new(bytes);
        let there = if is_direct { self.read_direct(offset, &memory) } else { 0 };
        self.read_rest(offset, memory, there)
    }

    /// So many bytes at `offset` as were read past the page cache. Of an error, [`OpenedFile::read_rest`] says what it is.
    fn read_direct(&self, offset: u64, memory: &UnfilledBytes) -> usize {
        // SAFETY: a read from an open descriptor into memory that is ours.
        let read = unsafe {
            let target = memory.as_ptr().cast();
            libc::pread(self.as_raw_fd(true), target, memory.len(), offset as libc::off_t)
        };
        usize::try_from(read).unwrap_or(0)
    }

    /// Whether these bytes can be read past the page cache, and the page cache has not all of them: what it has costs no request.
    pub(super) fn can_pass_cache(&self, offset: u64, bytes: usize) -> bool {
        let is_whole = offset.is_multiple_of(PAGE_BYTES) && (bytes as u64).is_multiple_of(PAGE_BYTES);
        is_whole && self.direct().is_some() && !self.is_cached(offset, bytes as u64)
    }

    /// Whether the page cache has all of these bytes, as far as it was asked: less often where it never had any. A kernel before 6.5 cannot say, and then it has not.
    fn is_cached(&self, offset: u64, bytes: u64) -> bool {
        // Asking costs a tenth of a read. Counts that another thread's store hides make for a question more or less.
        let uncached = self.uncached.load(Ordering::Relaxed);
        if uncached == UNCACHED_SURE {
            let unasked = self.unasked.load(Ordering::Relaxed).wrapping_add(1);
            self.unasked.store(unasked, Ordering::Relaxed);
            if !unasked.is_multiple_of(ASKED_EVERY) {
                return false;
            }
        }
        let pages = cached_pages(&self.file, offset, bytes);
        let wanted = (offset + bytes).div_ceil(page_bytes()) - offset / page_bytes();
        let is_cached = pages.is_some_and(|(cached, _)| cached >= wanted);
        let uncached = if is_cached { 0 } else { (uncached + 1).min(UNCACHED_SURE) };
        self.uncached.store(uncached, Ordering::Relaxed);
        is_cached
    }

    fn direct(&self) -> Option<&File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        self.direct.get_or_init(|| open_again(&self.file, &options).ok()).as_ref()
    }

    /// The bytes at `offset` that `memory` is for, of which it has so many already.
    pub(super) fn read_rest(
        &self,
        offset: u64,
        memory: UnfilledBytes,
        mut there: usize,
    ) -> Result<OwnedBytes> {
        let failed = |source| Err(DeviceError::io("read", &self.path, source));
        while there < memory.len() {
            let from = (offset + there as u64) as libc::off_t;
            // SAFETY: a read from an open descriptor into the rest of memory that is ours.
            let read = unsafe {
                let target = memory.as_ptr().add(there).cast();
                libc::pread(self.file.as_raw_fd(), target, memory.len() - there, from)
            };
            match usize::try_from(read) {
                Ok(0) => return failed(io::ErrorKind::UnexpectedEof.into()),
                Ok(now) => there += now,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return failed(error),
                },
            }
        }
        // SAFETY: the kernel has filled all of them, and answered.
        Ok(unsafe { memory.assume_filled() })
    }

    pub(super) fn as_raw_fd(&self, is_direct: bool) -> RawFd {
        let direct = if is_direct { self.direct() } else { None };
        direct.unwrap_or(&self.file).as_raw_fd()
    }

    /// Whether `bytes` were in memory, and are copied.
    pub(super) fn read_at_hand(&self, offset: u64, bytes: &mut [u8]) -> Result<bool> {
        let read = read_exact_at_hand(offset, bytes, |offset, bytes| self.read_now(offset, bytes));
        read.map_err(|source| DeviceError::io("read", &self.path, source))
    }

    /// As many of `bytes` at `offset` as are in memory; `EAGAIN` if none is.
    pub(super) fn read_now(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let target = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: a read from an open descriptor into memory that is borrowed for the call.
        let read = unsafe {
            libc::preadv2(self.file.as_raw_fd(), &target, 1, offset as libc::off_t, libc::RWF_NOWAIT)
        };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Brings what the page cache lacks of the file there, a step at a time as long as `goes_on`; returns how many bytes came.
    pub(super) fn bring(&self, goes_on: impl Fn() -> bool) -> Result<u64> {
        let failed = |source| DeviceError::io("read", &self.path, source);
        let (bytes, mut offset, mut read) = (self.bytes()?, 0, 0);
        let cached =
            |offset, bytes| cached_pages(&self.file, offset, bytes).map(|(pages, _)| pages * page_bytes());
        let before = cached(0, bytes);
        let mut step = vec![0; BROUGHT_BYTES.min(bytes as usize)];
        while offset < bytes && goes_on() {
            let step = &mut step[..BROUGHT_BYTES.min((bytes - offset) as usize)];
            let len = step.len() as u64;
            if cached(offset, len).is_none_or(|cached| cached < len) {
                self.file.read_exact_at(step, offset).map_err(failed)?;
                read += len;
            }
            offset += len;
        }
        // Reads past the page cache ask it first from now on.
        self.uncached.store(0, Ordering::Relaxed);
        // What others read meanwhile counts, too.
        Ok(before.zip(cached(0, bytes)).map_or(read, |(before, after)| after.saturating_sub(before)))
    }

    pub(super) fn will_read(&self, offset: u64, bytes: u64) {
        advise(&self.file, offset, bytes, libc::POSIX_FADV_WILLNEED);
    }
}

/// A file that is read and written through the page cache.
#[derive(Debug)]
pub(super) struct RewrittenFile {
    file: File,
    path: PathBuf,
    _directory: Arc<Directory>,
}

impl RewrittenFile {
    /// Makes the file of `bytes` zeros. They are written, not only given blocks: a sync after the first write to each block would else commit the file
    /// system's journal.
    pub(super) fn allocate(&self, bytes: u64) -> Result<()> {
        if file_size_limit().is_some_and(|limit| bytes > limit) {
            // Asking would raise SIGXFSZ, which kills the process.
            return Err(refused("allocate", &self.path, bytes, io::Error::from_raw_os_error(libc::EFBIG)));
        }
        write_zeros(&self.file, 0, bytes).map_err(|source| refused("allocate", &self.path, bytes, source))
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(bytes, offset);
        read.map_err(|source| DeviceError::io("read", &self.path, source))
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|source| refused("write to", &self.path, offset + bytes.len() as u64, source))
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| refused("sync", &self.path, 0, source))
    }
}

/// Fills `bytes` by as many calls of `read` as that takes; whether none would have waited.
pub(super) fn read_exact_at_hand(
    mut offset: u64,
    mut bytes: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
) -> io::Result<bool> {
    while !bytes.is_empty() {
        match read(offset, bytes) {
            // The end of the file, or Linux 5.9 or 5.10, which say so of what is not in memory: who waits for it finds out.
            Ok(0) => return Ok(false),
            Ok(now) => {
                offset += now as u64;
                bytes = &mut bytes[now..];
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // The last three: who has no such flag cannot say, and would wait without it.
                Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => return Ok(false),
                _ => return Err(error),
            },
        }
    }
    Ok(true)
}

/// Advice is a hint: what comes of it does not matter.
fn advise(file: &File, offset: u64, bytes: u64, advice: libc::c_int) {
    // SAFETY: advice on an open descriptor.
    let _ =
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as libc::off_t, bytes as libc::off_t, advice) };
}
