//! Backups that clients ask for, made beside the event loop.
//!
//! Owns: the one thread that makes a backup, and what is known of the last. Promises: a client names a directory in the one that
//! the operator chose, and can write nowhere else; no command waits for a backup; dropping it ends a backup that is under
//! way, which a later one goes on with. Must not know clients or bytes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hedgerow::backup::{Progress, Summary};
use hedgerow::{Db, Error};

use crate::printing::report;

/// Bytes in the name of a backup.
const NAME_BYTES_MAX: usize = 128;

/// What is known of the backup that was asked for last.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Its name; empty if there was none since the server started.
    pub name: String,
    /// Whether it is under way.
    pub is_running: bool,
    /// Bytes copied or found there, of all; then bytes read again.
    pub copied: u64,
    /// See above.
    pub verified: u64,
    /// See above.
    pub total: u64,
    /// What it did, once it is done.
    pub summary: Option<Summary>,
    /// Why it is not.
    pub failure: Option<String>,
    /// When it ended, s since 1970.
    pub ended_s: u64,
    /// How long it took, ms.
    pub took_ms: u64,
}

impl Status {
    /// In a word: `none`, `running`, `ok` or `err`.
    pub fn word(&self) -> &'static str {
        match (&self.summary, &self.failure) {
            _ if self.is_running => "running",
            (Some(_), _) => "ok",
            (None, Some(_)) => "err",
            (None, None) => "none",
        }
    }
}

/// The backups of a server.
#[derive(Debug)]
pub struct Backups {
    directory: Option<PathBuf>,
    status: Arc<Mutex<Status>>,
    cancelled: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn lock(status: &Mutex<Status>) -> MutexGuard<'_, Status> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backups {
    /// Backups go into `directory`; none are made without.
    pub fn new(directory: Option<PathBuf>) -> Backups {
        Backups { directory, status: Arc::default(), cancelled: Arc::default(), thread: None }
    }

    /// What is known of the last.
    pub fn status(&self) -> Status {
        lock(&self.status).clone()
    }

    /// Begins a backup into the directory `name` of the operator's. The error is the reason.
    pub fn start(&mut self, db: &Db, name: &[u8]) -> Result<(), String> {
        let directory = self
            .directory
            .as_ref()
            .ok_or("backups need a directory of the operator's choice: start the server with --backup-dir")?;
        let name = checked(name)?;
        let mut status = lock(&self.status);
        if status.is_running {
            return Err(format!("the backup '{}' is under way", status.name));
        }
        *status = Status { name: name.to_owned(), is_running: true, ..Status::default() };
        drop(status);
        self.cancelled.store(false, Ordering::Release);
        let (db, to) = (db.clone(), directory.join(name));
        let (shared, cancelled) = (Arc::clone(&self.status), Arc::clone(&self.cancelled));
        let spawned = std::thread::Builder::new().name("backup".into()).spawn(move || {
            let started = Instant::now();
            let outcome = db.backup_with(&to, |progress| match cancelled.load(Ordering::Acquire) {
                true => Err(Error::cancelled()),
                false => {
                    record_progress(&mut lock(&shared), progress);
                    Ok(())
                }
            });
            let mut status = lock(&shared);
            status.is_running = false;
            status.took_ms = started.elapsed().as_millis() as u64;
            status.ended_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            match outcome {
                Ok(summary) => status.summary = Some(summary),
                Err(error) => {
                    status.failure = Some(error.to_string());
                    // Who asks for the status is not to wait for who reads this.
                    drop(status);
                    report(format_args!("the backup into {} failed: {error}", to.display()));
                }
            }
        });
        match spawned {
            Ok(thread) => {
                self.join();
                self.thread = Some(thread);
                Ok(())
            }
            Err(error) => {
                *lock(&self.status) = Status::default();
                Err(format!("the backup's thread can not be started: {error}"))
            }
        }
    }

    /// Asks the backup that is under way to end; whether there is one.
    pub fn cancel(&self) -> bool {
        self.cancelled.store(true, Ordering::Release);
        lock(&self.status).is_running
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already; there is nothing to add here.
            drop(thread.join());
        }
    }
}

impl Drop for Backups {
    fn drop(&mut self) {
        self.cancel();
        self.join();
    }
}

fn record_progress(status: &mut Status, progress: Progress) {
    match progress {
        Progress::Copying(done, total) => (status.copied, status.total) = (done, total),
        Progress::Verifying(done, total) => (status.verified, status.total) = (done, total),
    }
}

/// A name that is one directory and no way out of another.
fn checked(name: &[u8]) -> Result<&str, String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && name[0] != b'.' && name.iter().all(is_plain);
    std::str::from_utf8(name).ok().filter(|_| fits).ok_or_else(|| {
        format!(
            "invalid backup name: 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', not beginning with '.'"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for name in ["monday", "2026-11-22.full", "a_b", "x"] {
            assert_eq!(checked(name.as_bytes()), Ok(name));
        }
        for name in
            ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a b", "a\0", "\u{e9}", &"x".repeat(129)]
        {
            assert!(checked(name.as_bytes()).is_err(), "{name:?}");
        }
        assert!(checked(b"\xff").is_err());
    }
}
