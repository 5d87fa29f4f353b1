//! What tests may ask of the machine they run on: patience, and to say what it can not do.
//!
//! Promises that no test passes or fails by the speed of the machine, and that one that could not run says so where it is seen.
#![allow(clippy::disallowed_methods, reason = "who waits for threads waits by the machine's clock")]

use std::io::Write;
use std::time::{Duration, Instant};

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
