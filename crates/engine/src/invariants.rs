//! Checks of what the comments promise, for tests: the feature `invariants`.
//!
//! Owns whether they are made. Promises that nothing of them is left where they are not: neither without the feature nor, since
//! examples and measurements are built with what tests are, without debug assertions; nor under miri, which takes too long. Must not know what is promised:
//! that is looked at beside it, in `index/tree/invariants.rs`, `log/appender.rs` and `db/inspect/counts.rs`.

/// Whether invariants are checked.
const CHECKED: bool = cfg!(all(feature = "invariants", debug_assertions, not(miri)));

/// Whether those are checked that are about what one thread holds: under `shuttle` all tasks are one thread.
pub(crate) const ARE_OF_THREADS: bool = CHECKED && !cfg!(shuttle);

/// Fails the test that broke what `check` looks at, if invariants are checked.
///
/// # Panics
/// With what `check` says is wrong.
#[inline]
pub(crate) fn check(what: &str, check: impl FnOnce() -> Result<(), String>) {
    // Who panics already has failed, and may have left anything half done.
    if CHECKED
        && !std::thread::panicking()
        && let Err(wrong) = check()
    {
        panic!("{what}: {wrong}");
    }
}
