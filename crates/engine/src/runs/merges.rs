//! What is known of merges while a store is open.
//!
//! Owns [`Merges`]: that there is one at a time, what they came to, and which files they leave alone. Must not know how runs are merged.

use std::collections::{BTreeMap, BTreeSet};

use super::{OpenRun, OpenRuns};
use std::sync::Arc;

use super::expired::{Expired, Sample};
use super::garbage::{CoveredShare, Replaced, ReplacedSample, SamplePace, estimate};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{Error, ErrorKind};

/// A file that could not be read for so many merges, and for none between, is left alone for a while: so long, and after each try that fails twice as long, up to about a day.
const UNREAD_MAX: u32 = 3;
const UNREAD_PAUSE_MS: u64 = 10 * 60 * 1000;
const UNREAD_DOUBLINGS_MAX: u32 = 7;

/// Of so many files it is read at once when their rows expire: a slice makes one or two, so these are known sooner than the next come; and of thousands of a store that was opened merges wait for none but these.
pub(super) const SAMPLED_AT_ONCE: usize = 4;

/// What was merged since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MergeNumbers {
    /// Slices that count.
    pub(crate) slices: u64,
    /// Bytes of files that were written for them.
    pub(crate) bytes: u64,
    /// Slices that came to nothing: because of a damaged file, or of what the capacity tier refused.
    pub(crate) failures: u64,
    /// Bytes of all runs that were thought to be garbage when it was last looked for: of rows that were replaced or have expired, and of tables that are gone.
    pub(crate) garbage: u64,
}

/// A file that could not be read.
#[derive(Debug, Clone, Copy, Default)]
struct Unread {
    /// For so many merges, and for none between.
    times: u32,
    /// When it was last, in ms since 1970.
    at_ms: u64,
}

impl Unread {
    /// Whether it is left alone. A clock that was set back since says no more than that it is another time: what then looks like a year is no longer than a pause.
    fn is_left_alone(self, now_ms: u64) -> bool {
        let pause_ms = |more: u32| UNREAD_PAUSE_MS << more.min(UNREAD_DOUBLINGS_MAX);
        self.times.checked_sub(UNREAD_MAX).is_some_and(|more| now_ms.abs_diff(self.at_ms) < pause_ms(more))
    }
}

/// What was merged since the store was opened, and what cannot be.
#[derive(Debug, Default)]
pub(super) struct Merges {
    /// Held while a slice is merged: one at a time.
    pub(super) alone: Mutex<()>,
    slices: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    garbage: AtomicU64,
    /// In thousandths.
    backlog: AtomicU64,
    /// Files in which a merge met corruption: runs with one are left alone, and looks at what is damaged say so.
    damaged: Mutex<BTreeSet<u64>>,
    /// Files that could not be read.
    unread: Mutex<BTreeMap<u64, Unread>>,
    /// Files for which there was too little room when they were written anew alone, and how much there was.
    too_large: Mutex<BTreeMap<u64, u64>>,
    pub(super) replaced: Mutex<Replaced>,
    pub(super) covered: Mutex<CoveredShare>,
    pub(super) expired: Mutex<Expired>,
    /// There were runs when the store was opened, of which it knows nothing yet.
    lacks_opened: AtomicBool,
}

impl Merges {
    /// Of a store that was opened with these runs.
    pub(super) fn of_opened(runs: &OpenRuns) -> Merges {
        Merges { lacks_opened: AtomicBool::new(runs.runs.len() > 1), ..Merges::default() }
    }

    /// A new run was written.
    pub(super) fn count_replaced(&self, sample: &ReplacedSample) {
        self.replaced.lock().add(sample);
    }

    /// Makes the estimate of what was replaced before the store was opened, unless that was done.
    pub(super) fn estimate(&self, runs: &Arc<OpenRuns>, pace: &SamplePace<'_>) {
        if !self.lacks_opened.swap(false, Ordering::Relaxed) {
            return;
        }
        // It is of all runs that there are now. What runs that came meanwhile were charged with is among it, and that of later ones is added.
        drop(std::mem::take(&mut *self.replaced.lock()));
        let estimated = estimate(runs, pace);
        self.replaced.lock().take_in(estimated);
    }

    /// Reads when rows of files expire of which nobody knows that, of [`SAMPLED_AT_ONCE`] at most. Whether there are more.
    pub(super) fn look_at_expiries(&self, runs: &OpenRuns, now_ms: u64, pace: &SamplePace<'_>) -> bool {
        let unknown = self.expired.lock().unknown(runs, now_ms);
        for &of in unknown.iter().take(SAMPLED_AT_ONCE) {
            if !(pace.goes_on)() {
                return false;
            }
            let sample = Sample::of(of, now_ms, pace);
            self.expired.lock().take_in(of.1.id().number, sample, runs);
        }
        unknown.len() > SAMPLED_AT_ONCE
    }

    /// Whether a file of the run is known to be damaged, or could not be read lately.
    pub(super) fn has_damaged(&self, run: &OpenRun, now_ms: u64) -> bool {
        let has = |is_damaged: &dyn Fn(u64) -> bool| {
            run.ranges.iter().any(|range| is_damaged(range.sst.id().number))
        };
        let damaged = self.damaged.lock();
        if has(&|number| damaged.contains(&number)) {
            return true;
        }
        drop(damaged);
        let unread = self.unread.lock();
        !unread.is_empty()
            && has(&|number| unread.get(&number).is_some_and(|unread| unread.is_left_alone(now_ms)))
    }

    /// So much is thought to be garbage.
    pub(super) fn set_garbage(&self, bytes: u64) {
        self.garbage.store(bytes, Ordering::Relaxed);
    }

    /// What is to be merged is so many times what may be there.
    pub(super) fn set_backlog(&self, times: f64) {
        self.backlog.store((times * 1000.0) as u64, Ordering::Relaxed);
    }

    pub(super) fn backlog(&self) -> f64 {
        self.backlog.load(Ordering::Relaxed) as f64 / 1000.0
    }

    /// These files were read.
    pub(super) fn were_read(&self, files: impl Iterator<Item = u64>) {
        let mut unread = self.unread.lock();
        if !unread.is_empty() {
            files.for_each(|number| {
                unread.remove(&number);
            });
        }
    }

    /// A slice counts, of which so many bytes were written.
    pub(super) fn count(&self, bytes: u64) {
        self.slices.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A slice came to nothing, because of what is in these files, or because they cannot be read; if there are none, because of what the capacity tier refused.
    pub(super) fn failed(&self, error: Error, files: Vec<u64>, now_ms: u64) -> Error {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Invalid) {
            self.damaged.lock().extend(files);
            return error;
        }
        let mut unread = self.unread.lock();
        for number in files {
            let Unread { times, .. } = unread.get(&number).copied().unwrap_or_default();
            unread.insert(number, Unread { times: times.saturating_add(1), at_ms: now_ms });
        }
        error
    }

    /// Files that were to be written anew alone did not fit into the room there is: they are not tried again before there is more.
    pub(super) fn lacked_room(&self, files: impl Iterator<Item = u64>, room: u64) {
        self.too_large.lock().extend(files.map(|number| (number, room)));
    }

    /// How much room a file needs at least to be written anew, if that was tried.
    pub(super) fn needed_at_least(&self, number: u64) -> u64 {
        self.too_large.lock().get(&number).map_or(0, |room| room.saturating_add(1))
    }

    /// Forgets which files did not fit, but for those that count.
    pub(super) fn retain_too_large(&self, counts: impl Fn(u64) -> bool) {
        let mut too_large = self.too_large.lock();
        if !too_large.is_empty() {
            too_large.retain(|&number, _| counts(number));
        }
    }

    /// What was merged.
    pub(super) fn numbers(&self) -> MergeNumbers {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let Merges { slices, bytes, failures, garbage, .. } = self;
        MergeNumbers {
            slices: load(slices),
            bytes: load(bytes),
            failures: load(failures),
            garbage: load(garbage),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock may be set to any time meanwhile: a file is left alone for no longer than its pause.
    #[test]
    fn an_unread_file_is_left_alone_for_its_pause_and_no_longer() {
        let at_ms = 1_000 * UNREAD_PAUSE_MS;
        let mut unread = Unread { times: UNREAD_MAX - 1, at_ms };
        assert!(!unread.is_left_alone(at_ms), "not before it failed so often");
        unread.times = UNREAD_MAX;
        assert!(unread.is_left_alone(at_ms) && unread.is_left_alone(at_ms + UNREAD_PAUSE_MS - 1));
        assert!(!unread.is_left_alone(at_ms + UNREAD_PAUSE_MS));
        assert!(!unread.is_left_alone(at_ms - UNREAD_PAUSE_MS) && !unread.is_left_alone(0), "set back");
        unread.times = u32::MAX;
        let longest = UNREAD_PAUSE_MS << UNREAD_DOUBLINGS_MAX;
        assert!(unread.is_left_alone(at_ms + longest - 1) && !unread.is_left_alone(at_ms + longest));
    }
}
