//! The files of a copy of a fast tier: written with system calls, beside the store and not through a mapping.
//!
//! Owns [`CopyFile`], [`DirectoryLock`] and the few steps with names that a copy needs. Promises that a full disk is
//! [`DeviceError::TargetFull`] and never a signal, that a name is durable when a function says so, and that what is copied does
//! not push what the store needs out of the page cache. Must not know what the bytes mean.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use journal::{CopyStep, CrashDirectory, record_copy};

use crate::error::{DeviceError, Result};
use crate::file::{FILE_MODE, create_directories, file_size_limit, sync_directory};

mod journal;

/// A file that a copy is written to, sparse where nothing is.
#[derive(Debug)]
pub struct CopyFile {
    file: File,
    path: PathBuf,
}

impl CopyFile {
    /// Opens the file at `path` for reading and writing, and makes it if there is none.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; [`DeviceError::Locked`] while a store has it open.
    pub fn open(path: &Path) -> Result<CopyFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.open(path).map_err(|source| DeviceError::io("open", path, source))?;
        match file.try_lock() {
            // Held no longer than this look: the copy itself is guarded by its directory's lock.
            Ok(()) => file.unlock().map_err(|source| DeviceError::io("unlock", path, source))?,
            Err(TryLockError::WouldBlock) => return Err(locked(path)),
            Err(TryLockError::Error(source)) => return Err(DeviceError::io("lock", path, source)),
        }
        journal::done(|| CopyStep::Open(path.to_path_buf()));
        Ok(CopyFile { file, path: path.to_path_buf() })
    }

    /// Bytes in the file.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn bytes(&self) -> Result<u64> {
        let length = self.file.metadata().map_err(|source| DeviceError::io("measure", &self.path, source))?;
        Ok(length.len())
    }

    /// Makes the file `bytes` long: cut short, or longer by a hole.
    ///
    /// # Errors
    /// [`DeviceError::TargetFull`] above the process's file-size limit; [`DeviceError::Io`].
    pub fn set_bytes(&self, bytes: u64) -> Result<()> {
        if file_size_limit().is_some_and(|limit| bytes > limit) {
            // Asking would raise SIGXFSZ, which kills the process.
            let source = io::Error::from_raw_os_error(libc::EFBIG);
            return Err(self.refused("lengthen", bytes, source));
        }
        self.file.set_len(bytes).map_err(|source| self.refused("lengthen", bytes, source))?;
        journal::done(|| CopyStep::SetBytes(self.path.clone(), bytes));
        Ok(())
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// [`DeviceError::TargetFull`], [`DeviceError::Io`]: then some of them may be written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        self.file.write_all_at(bytes, offset).map_err(|source| self.refused("write to", end, source))?;
        journal::done(|| CopyStep::Write(self.path.clone(), offset, bytes.into()));
        Ok(())
    }

    /// Fills `bytes` from `offset` on; what lies beyond the end of the file is zeros.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn read_at(&self, mut offset: u64, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.file.read_at(bytes, offset) {
                Ok(0) => {
                    bytes.fill(0);
                    return Ok(());
                }
                Ok(read) => (bytes, offset) = (&mut bytes[read..], offset + read as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(DeviceError::io("read", &self.path, source)),
            }
        }
        Ok(())
    }

    /// Gives the blocks of `offset..offset + bytes` back, so that zeros are read there. Best effort: where the file system
    /// knows no holes the bytes stay as they are.
    pub fn punch_hole(&self, offset: u64, bytes: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call on an open descriptor. Should a tier have the file mapped, that is against its fifth rule (`TierBytes::new`).
        let _ = unsafe {
            libc::fallocate(self.file.as_raw_fd(), mode, offset as libc::off_t, bytes as libc::off_t)
        };
        journal::done(|| CopyStep::Write(self.path.clone(), offset, vec![0; bytes as usize].into()));
    }

    /// What was written, and the length, are on the device on return.
    ///
    /// # Errors
    /// [`DeviceError::Io`]: what was written since the last sync may never be.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => self.refused("sync", 0, source),
            _ => DeviceError::io("sync", &self.path, source),
        })?;
        journal::done(|| CopyStep::Sync(self.path.clone()));
        Ok(())
    }

    /// Lets the page cache go of the file's synced pages: they must not push out the store's, and whoever reads them next
    /// reads the device. A hint.
    pub fn let_go(&self) {
        // SAFETY: advice on an open descriptor.
        let _ = unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }

    fn refused(&self, what: &'static str, wanted: u64, source: io::Error) -> DeviceError {
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
                DeviceError::TargetFull { path: self.path.clone(), wanted, source }
            }
            _ => DeviceError::io(what, &self.path, source),
        }
    }
}

/// A directory that one at a time writes in: a copy, or a capacity tier. The kernel's lock, on the directory itself; it ends with the
/// process.
#[derive(Debug)]
pub struct DirectoryLock {
    directory: File,
}

impl DirectoryLock {
    /// Locks the directory `path`.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] while another has it; [`DeviceError::Io`].
    pub fn take(path: &Path) -> Result<DirectoryLock> {
        DirectoryLock::lock(path, File::try_lock)
    }

    /// Locks the directory `path` against [`DirectoryLock::take`], beside others that do the same.
    ///
    /// # Errors
    /// As [`DirectoryLock::take`].
    pub fn share(path: &Path) -> Result<DirectoryLock> {
        DirectoryLock::lock(path, File::try_lock_shared)
    }

    fn lock(path: &Path, how: fn(&File) -> std::result::Result<(), TryLockError>) -> Result<DirectoryLock> {
        let directory = File::open(path).map_err(|source| DeviceError::io("open", path, source))?;
        match how(&directory) {
            Ok(()) => Ok(DirectoryLock { directory }),
            Err(TryLockError::WouldBlock) => Err(locked(path)),
            Err(TryLockError::Error(source)) => Err(DeviceError::io("lock", path, source)),
        }
    }

    pub(crate) fn directory(&self) -> &File {
        &self.directory
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // A child between its fork and its exec still shares the descriptor, and so the lock.
        let _ = self.directory.unlock();
    }
}

fn locked(path: &Path) -> DeviceError {
    DeviceError::Locked {
        path: path.to_path_buf(),
        holder: "another process, another store or another backup".to_owned(),
    }
}

/// All bytes of a small file; `None` if there is none.
///
/// # Errors
/// [`DeviceError::Io`].
pub fn read_small_file(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DeviceError::io("read", path, source)),
    }
}

/// Puts `bytes` in the place of the file at `path`, or of nothing: all of them or none, durably.
///
/// # Errors
/// [`DeviceError::Io`].
pub fn replace_small_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let refused = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            DeviceError::TargetFull { path: temporary.clone(), wanted: bytes.len() as u64, source }
        }
        _ => DeviceError::io("write", &temporary, source),
    };
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(&temporary)
        .map_err(|source| DeviceError::io("open", &temporary, source))?;
    journal::done(|| CopyStep::Open(temporary.clone()));
    journal::done(|| CopyStep::SetBytes(temporary.clone(), 0));
    // PERSIST: the bytes before the name that leads to them.
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(refused)?;
    journal::done(|| CopyStep::Append(temporary.clone(), bytes.into()));
    journal::done(|| CopyStep::Sync(temporary.clone()));
    rename_file(&temporary, path)
}

/// Appends to a file that there is. Not durable by itself.
///
/// # Errors
/// [`DeviceError::TargetFull`], [`DeviceError::Io`].
pub fn append_to_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let refused = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            DeviceError::TargetFull { path: path.to_path_buf(), wanted: bytes.len() as u64, source }
        }
        _ => DeviceError::io("append to", path, source),
    };
    OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(bytes)).map_err(refused)?;
    journal::done(|| CopyStep::Append(path.to_path_buf(), bytes.into()));
    Ok(())
}

/// Gives a file another name in its directory, durably.
///
/// # Errors
/// [`DeviceError::Io`].
pub fn rename_file(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|source| DeviceError::io("rename", from, source))?;
    journal::done(|| CopyStep::Rename(from.to_path_buf(), to.to_path_buf()));
    // PERSIST: the new name is durable before anything rests on it.
    sync_names_beside(to)
}

/// Removes a file, durably; nothing happens if there is none.
///
/// # Errors
/// [`DeviceError::Io`].
pub fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(DeviceError::io("remove", path, source)),
        Ok(()) => journal::done(|| CopyStep::Remove(path.to_path_buf())),
    }
    sync_names_beside(path)
}

/// Makes a directory in one that there is, durably; nothing happens if it is there already.
///
/// # Errors
/// [`DeviceError::Io`].
pub fn make_directory(path: &Path) -> Result<()> {
    create_directories(path).map_err(|source| DeviceError::io("make the directory", path, source))?;
    journal::done(|| CopyStep::MakeDirectory(path.to_path_buf()));
    // PERSIST: also of one that was there: who made it may have been killed before this.
    sync_directory(path).map_err(|source| DeviceError::io("sync the directory of", path, source))?;
    journal::done(|| CopyStep::SyncNames(path.to_path_buf()));
    Ok(())
}

/// Gives a file that is durable one more name, `to`; false where that cannot be: it is on another file system, or on one that
/// knows no links, it is somebody else's, or it has as many names as it may. The name is not durable before those of
/// its directory are synced, as [`rename_file`] does.
///
/// # Errors
/// [`DeviceError::TargetFull`]; [`DeviceError::Io`], also if there is a file of that name.
pub fn link_file(from: &Path, to: &Path) -> Result<bool> {
    match fs::hard_link(from, to) {
        Ok(()) => {
            journal::done(|| CopyStep::Link(to.to_path_buf(), fs::read(to).unwrap_or_default().into()));
            Ok(true)
        }
        Err(source) => match source.raw_os_error() {
            Some(
                libc::EXDEV | libc::EPERM | libc::EACCES | libc::EMLINK | libc::EOPNOTSUPP | libc::ENOSYS,
            ) => Ok(false),
            Some(libc::ENOSPC | libc::EDQUOT) => {
                Err(DeviceError::TargetFull { path: to.to_path_buf(), wanted: 0, source })
            }
            _ => Err(DeviceError::io("link", to, source)),
        },
    }
}

/// The names in the directory that `path` is in are durable on return, those that are gone included.
///
/// # Errors
/// [`DeviceError::Io`].
fn sync_names_beside(path: &Path) -> Result<()> {
    sync_directory(path).map_err(|source| DeviceError::io("sync the directory of", path, source))?;
    journal::done(|| CopyStep::SyncNames(path.to_path_buf()));
    Ok(())
}

/// The names in a directory; none if there is no directory.
///
/// # Errors
/// [`DeviceError::Io`].
pub fn names_in(path: &Path) -> Result<Vec<String>> {
    let io = |source| DeviceError::io("list", path, source);
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(io)?,
    };
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    entries.map(name).collect::<io::Result<_>>().map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_sparse_and_can_be_written_anywhere() {
        let path = std::env::temp_dir().join(format!("hedgerow-copy-{}", std::process::id()));
        let file = CopyFile::open(&path).unwrap();
        file.set_bytes(8 << 20).unwrap();
        file.write_at(5 << 20, b"here").unwrap();
        file.sync().unwrap();
        file.let_go();
        let mut bytes = [1; 6];
        file.read_at((5 << 20) - 1, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0here\0");
        file.punch_hole(5 << 20, 4096);
        file.read_at(5 << 20, &mut bytes).unwrap();
        assert_eq!((&bytes, file.bytes().unwrap()), (&[0; 6], 8 << 20));
        file.read_at((8 << 20) - 2, &mut bytes).unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_directory_is_locked_once_and_a_file_is_replaced_whole() {
        let directory = std::env::temp_dir().join(format!("hedgerow-copy-dir-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let lock = DirectoryLock::take(&directory).unwrap();
        assert!(matches!(DirectoryLock::take(&directory), Err(DeviceError::Locked { .. })));
        drop(lock);
        DirectoryLock::take(&directory).unwrap();
        let path = directory.join("small");
        assert_eq!(read_small_file(&path).unwrap(), None);
        replace_small_file(&path, b"one").unwrap();
        replace_small_file(&path, b"two").unwrap();
        append_to_file(&path, b" three").unwrap();
        assert_eq!(read_small_file(&path).unwrap().unwrap(), b"two three");
        assert_eq!(names_in(&directory).unwrap(), ["small"]);
        remove_file(&path).unwrap();
        remove_file(&path).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert!(names_in(&directory).unwrap().is_empty());
    }
}
