//! The simulated disk's files, as the capacity tier calls for them: each call is refused if a fault says so, done, and logged.
//!
//! Owns these calls and what tests say of them. Must not know what a crash leaves.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::files::{FileCall, FileOp, SimulatedFile, SyncOf, path_of};
use super::{CrashSim, Fault, Image, Record, Refusal};
use crate::error::{DeviceError, Result};

fn refused(call: FileCall, what: &'static str, name: &str, refusal: Refusal) -> DeviceError {
    let takes_space = !matches!(call, FileCall::Read | FileCall::Remove);
    match refusal {
        Refusal::NoSpace if takes_space => {
            DeviceError::TargetFull { path: path_of(name), wanted: 0, source: refusal.error() }
        }
        _ => DeviceError::io(what, &path_of(name), refusal.error()),
    }
}

fn missing(what: &'static str, name: &str) -> DeviceError {
    DeviceError::io(what, &path_of(name), io::Error::from_raw_os_error(libc::ENOENT))
}

impl Record {
    fn may(&mut self, call: FileCall, what: &'static str, name: &str) -> Result<()> {
        let is_unreadable = call == FileCall::Read && self.faults.files.unreadable.contains(name);
        match self.faults.files.next(call).or(is_unreadable.then_some(Refusal::Io)) {
            Some(refusal) => Err(refused(call, what, name, refusal)),
            None => Ok(()),
        }
    }

    /// Whether the disk has room for a file that is `old` bytes long to be `new`.
    fn may_lengthen(&mut self, name: &str, old: u64, new: u64) -> Result<()> {
        self.may(FileCall::Write, "write to", name)?;
        let more = new.saturating_sub(old);
        match self.faults.disk_bytes {
            Some(disk) if more > 0 && self.taken_bytes() + more > disk => Err(DeviceError::TargetFull {
                path: path_of(name),
                wanted: new,
                source: Refusal::NoSpace.error(),
            }),
            _ => Ok(()),
        }
    }
}

/// The capacity tier's calls.
impl CrashSim {
    pub(crate) fn file_names(&self) -> Result<Vec<String>> {
        let mut record = self.record();
        record.may(FileCall::Read, "list", "")?;
        Ok(record.files.names())
    }

    pub(crate) fn create_file(&self, name: &str) -> Result<Arc<SimulatedFile>> {
        let mut record = self.record();
        record.may(FileCall::Create, "create", name)?;
        let Some(file) = record.files.create(name) else {
            let source = io::Error::from_raw_os_error(libc::EEXIST);
            return Err(DeviceError::io("create", &path_of(name), source));
        };
        record.log(FileOp::Create { file: file.number, name: Arc::clone(&file.name) });
        Ok(file)
    }

    pub(crate) fn open_file(&self, name: &str) -> Result<Arc<SimulatedFile>> {
        let mut record = self.record();
        record.may(FileCall::Read, "open", name)?;
        record.files.find(name).ok_or_else(|| missing("open", name))
    }

    /// Makes a file `bytes` long, at least.
    pub(crate) fn lengthen_file(&self, file: &SimulatedFile, bytes: u64) -> Result<()> {
        let mut record = self.record();
        let old = file.bytes();
        record.may_lengthen(&file.name, old, bytes)?;
        if bytes > old {
            file.lengthen(bytes);
            record.log(FileOp::Lengthen { file: file.number, bytes });
        }
        Ok(())
    }

    pub(crate) fn write_file(&self, file: &SimulatedFile, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut record = self.record();
        let (old, end) = (file.bytes(), offset + bytes.len() as u64);
        record.may_lengthen(&file.name, old, end)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if end > old {
            record.log(FileOp::Lengthen { file: file.number, bytes: end });
        }
        file.write(offset, bytes);
        record.log(FileOp::Write { file: file.number, offset, bytes: bytes.into() });
        Ok(())
    }

    pub(crate) fn sync_file(&self, file: &SimulatedFile) -> Result<()> {
        let mut record = self.record();
        record.persists += 1;
        if record.faults.files.lies.is_some_and(|lies| lies(SyncOf::File(&file.name))) {
            return Ok(());
        }
        let synced = record.may(FileCall::Sync, "sync", &file.name);
        record.log(FileOp::Sync { file: file.number, failed: synced.is_err() });
        synced
    }

    pub(crate) fn sync_names(&self) -> Result<()> {
        let mut record = self.record();
        record.persists += 1;
        if record.faults.files.lies.is_some_and(|lies| lies(SyncOf::Names)) {
            return Ok(());
        }
        record.may(FileCall::SyncNames, "sync", "")?;
        record.log(FileOp::SyncNames);
        Ok(())
    }

    pub(crate) fn remove_file(&self, name: &str) -> Result<()> {
        let mut record = self.record();
        record.may(FileCall::Remove, "remove", name)?;
        let Some(name) = record.files.remove(name) else { return Err(missing("remove", name)) };
        record.log(FileOp::Remove { name });
        Ok(())
    }

    pub(crate) fn read_file(&self, file: &SimulatedFile, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.record().may(FileCall::Read, "read", &file.name)?;
        match file.read(offset, bytes) == bytes.len() {
            true => Ok(()),
            false => Err(DeviceError::io("read", &file.path(), io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Somebody waits for one read, or for several that are under way together.
    pub(crate) fn count_file_wait(&self) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        let mut record = self.record();
        record.files.waits += 1;
        record.files.waiters.insert(thread);
    }

    /// Whether `bytes` were in memory, and are copied.
    pub(crate) fn read_file_at_hand(
        &self,
        file: &SimulatedFile,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<bool> {
        let is_cold = self.record().files.are_cold;
        if is_cold { Ok(false) } else { self.read_file(file, offset, bytes).map(|()| true) }
    }
}

/// What tests say.
impl CrashSim {
    /// Whether what files have is in memory from now on, as it is at first: if not, whoever does not wait for the disk reads nothing.
    pub fn files_at_hand(&self, at_hand: bool) {
        self.record().files.are_cold = !at_hand;
    }

    /// How often somebody waited for reads of files so far. Reads that were under way together are one wait.
    pub fn file_waits(&self) -> u64 {
        self.record().files.waits
    }

    /// The names of threads that waited for reads of files so far; of those that have none an empty one.
    pub fn file_waiters(&self) -> BTreeSet<String> {
        self.record().files.waiters.clone()
    }

    /// Calls of this kind on files are refused as `fault` says, until [`CrashSim::clear_faults`].
    pub fn fail_file_calls(&self, call: FileCall, fault: Fault) {
        self.record().faults.files.set(call, fault);
    }

    /// Reads of the file of this name are refused with [`Refusal::Io`], until [`CrashSim::clear_faults`].
    pub fn refuse_reads_of(&self, name: &str) {
        self.record().faults.files.unreadable.insert(name.to_owned());
    }

    /// From now on syncs of files or names that `lies` picks succeed without effect. Against the fault model: for showing that a test
    /// notices.
    pub fn lie_about_file_syncs(&self, lies: Option<fn(SyncOf<'_>) -> bool>) {
        self.record().faults.files.lies = lies;
    }

    /// Flips the bits `xor` of the byte at `offset` of a file, at rest and in the present view; nothing happens where there is none.
    pub fn corrupt_file(&self, name: &str, offset: u64, xor: u8) {
        let mut record = self.record();
        let Some(file) = record.files.find(name) else { return };
        let mut byte = [0];
        if file.read(offset, &mut byte) == 1 {
            byte[0] ^= xor;
            file.write(offset, &byte);
            record.log(FileOp::Corrupt { file: file.number, offset, byte: byte[0] });
        }
    }
}

/// The files of an image.
impl Image {
    /// Their names.
    pub fn file_names(&self) -> Vec<String> {
        self.files.names()
    }

    /// All bytes of one; `None` if there is no such file.
    pub fn read_file(&self, name: &str) -> Option<Vec<u8>> {
        self.files.read(name)
    }

    /// Flips the bits `xor` of the byte at `offset` of one, as a decayed medium would. Nothing happens where there is none.
    pub fn corrupt_file(&mut self, name: &str, offset: u64, xor: u8) {
        self.files.corrupt(name, offset, xor);
    }
}
