//! What tests may ask of the machine they run on: patience, room for files, and to say what it can not do.
//!
//! Promises that no test passes or fails by the speed of the machine, that one that could not run says so where it is seen, and
//! that what a test writes is gone after it.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the machine's clock, and write where it has room for files"
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hedgerow::FAST_TIER_FILE;

/// Who has waited so long waits in vain.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks until `holds` does; panics, with what did not come to be, where it never will.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Says of the test that calls it that it did not run, past the capture of its output: it must not look as if it had passed.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Nobody is there to be told that standard error is closed.
    drop(writeln!(std::io::stderr(), "SKIPPED {test}: {why}"));
}

/// A directory of a test's own, or the place for one; what is there goes with it.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A place where nothing is yet.
    pub fn new(name: &str) -> Scratch {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hedgerow-{name}-{}-{number}", std::process::id()));
        // Of a process of the same number that was killed, most likely of none.
        drop(std::fs::remove_dir_all(&path));
        Scratch(path)
    }

    /// An empty directory.
    ///
    /// # Panics
    /// It can not be made.
    pub fn made(name: &str) -> Scratch {
        let scratch = Scratch::new(name);
        let made = std::fs::create_dir_all(&scratch.0);
        made.unwrap_or_else(|error| panic!("making {}: {error}", scratch.0.display()));
        scratch
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What is or may be in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The data file of a store in it.
    pub fn fast(&self) -> PathBuf {
        self.0.join(FAST_TIER_FILE)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been made.
        drop(std::fs::remove_dir_all(&self.0));
    }
}
