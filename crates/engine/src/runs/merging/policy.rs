//! Which runs are merged, and when.
//!
//! Owns [`choose`], and what it goes by: how much of each run there is, and how much of that is thought to be garbage. Promises that a store whose runs nobody adds to comes to rest: each merge makes
//! the runs fewer, or takes off what was counted as garbage. Must not know how runs are merged.
//!
//! **Fewer runs.** A look asks the filter of every run. Of more than there may be, those next to one another are merged that cost the fewest bytes for the square of the runs that go: many
//! runs of like size. The fewest bytes for each run that goes would be those of two small runs time and again: of 400 runs that came one by one, 8 of which may be there, each byte would be written 8.5
//! times. By the square it is 3.0 times, and 5.6 times of 2,000; no choice can do with much less.
//!
//! **Room.** Where there is hardly any left, files are written anew one by one, each of which gives back more than it takes, before any are merged.
//!
//! **Less garbage.** Where more than a share of all is garbage, the range of keys that has the largest share of it is merged with all that is newer. What of a file counts no more, since merges took
//! it over, is garbage too: its room is given back when the last of it is written anew.

use std::ops::Range;

/// What is known of a file's range in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangeWeight {
    /// Composite, both included.
    pub(super) keys: [Box<[u8]>; 2],
    pub(super) bytes: u64,
    /// Of rows that newer runs replace, and as much of those that deltas cover as counts.
    pub(super) obsolete: u64,
    /// Of tables that are gone.
    pub(super) gone: u64,
    /// Of rows whose time has come.
    pub(super) expired: u64,
    /// Bytes of the file that count in no range, as many as fall to this one. They are not among `bytes`.
    pub(super) trimmed: u64,
}

impl RangeWeight {
    fn garbage(&self) -> u64 {
        (self.obsolete + self.gone + self.expired).min(self.bytes) + self.trimmed
    }
}

/// What is known of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunWeight {
    pub(super) ranges: Vec<RangeWeight>,
    /// It can be merged with others now.
    pub(super) is_free: bool,
}

impl RunWeight {
    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes).sum()
    }

    fn replaced(&self) -> u64 {
        self.ranges.iter().map(|range| range.obsolete.min(range.bytes)).sum()
    }

    pub(super) fn garbage(&self) -> u64 {
        self.ranges.iter().map(RangeWeight::garbage).sum()
    }
}

/// When runs are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MergeLimits {
    /// There may be so many runs.
    pub(crate) runs_max: usize,
    /// So much of all may be garbage.
    pub(crate) garbage_percent_max: u64,
    /// So much of what deltas cover counts as that, in percent ([`Runs::covered_percent`](crate::runs::Runs::covered_percent)).
    pub(crate) covered_percent: u64,
}

/// What is to be merged: places of runs, the newest first, and of which range, if not all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) runs: Range<usize>,
    pub(super) keys: Option<[Box<[u8]>; 2]>,
}

/// What of these runs, newest first, is to be merged next.
pub(super) fn choose(runs: &[RunWeight], limits: MergeLimits) -> Option<Choice> {
    // Those that wait for a snapshot or are damaged are no reason to merge the others each time that one comes.
    match runs.iter().filter(|run| run.is_free).count() > limits.runs_max {
        true => fewer_runs(runs).map(|runs| Choice { runs, keys: None }),
        false => None,
    }
    .or_else(|| less_garbage(runs, limits.garbage_percent_max))
}

/// A range of a file of which a part counts no more, written anew alone.
#[derive(Debug, Clone)]
pub(super) struct WrittenAnew {
    /// The place of its run.
    pub(super) run: usize,
    /// Composite, both included.
    pub(super) keys: [Box<[u8]>; 2],
    /// What the file takes, and what all that counts of it would take.
    pub(super) file_bytes: u64,
    pub(super) needed: u64,
}

/// A file gives back less than one in so many of its bytes: that is not worth its writing.
const GIVEN_BACK_ONE_IN: u64 = 16;

/// Of what fits into `room`, that which gives back the largest share of its file.
pub(super) fn room_making(all: &[WrittenAnew], room: u64) -> Option<Choice> {
    let given_back = |anew: &WrittenAnew| anew.file_bytes.saturating_sub(anew.needed);
    let is_worth_it = |anew: &WrittenAnew| {
        given_back(anew) * GIVEN_BACK_ONE_IN >= anew.file_bytes.max(1) && anew.needed <= room
    };
    let share = |anew: &WrittenAnew| u128::from(given_back(anew)) * 1000 / u128::from(anew.file_bytes.max(1));
    let best = all.iter().filter(|anew| is_worth_it(anew)).max_by_key(|anew| share(anew))?;
    Some(Choice { runs: best.run..best.run + 1, keys: Some(best.keys.clone()) })
}

/// How many times as many runs there are as there may be, or as much of rows that were replaced as garbage, whichever is more. What cannot be merged now is not owed, nor what is of
/// tables that are gone: nobody writes that.
pub(super) fn backlog(runs: &[RunWeight], limits: MergeLimits) -> f64 {
    let free = runs.iter().filter(|run| run.is_free);
    let (count, bytes, replaced) = free.fold((0usize, 0, 0), |(count, bytes, replaced), run| {
        (count + 1, bytes + run.bytes(), replaced + run.replaced())
    });
    let of_runs = count as f64 / limits.runs_max.max(1) as f64;
    let garbage_max = bytes as f64 * limits.garbage_percent_max as f64 / 100.0;
    of_runs.max(replaced as f64 / garbage_max.max(1.0))
}

/// The runs next to one another whose merging costs the least for the square of the runs that go; of those that cost as much, the most.
fn fewer_runs(runs: &[RunWeight]) -> Option<Range<usize>> {
    let mut best: Option<(u128, Range<usize>)> = None;
    for first in 0..runs.len() {
        let mut bytes = 0;
        for (at, run) in runs.iter().enumerate().skip(first).take_while(|(_, run)| run.is_free) {
            bytes += u128::from(run.bytes());
            let fewer = (at - first) as u128;
            // In thousandths, so that what divides badly is told apart.
            let Some(cost) = (bytes * 1000).checked_div(fewer * fewer) else { continue };
            let is_better = |(least, of): &(u128, Range<usize>)| {
                cost < *least || cost == *least && at + 1 - first > of.len()
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some((cost, first..at + 1));
            }
        }
    }
    best.map(|(_, runs)| runs)
}

/// The range of keys with the largest share of garbage, where there is too much of it in all that can be merged: with what cannot, there would be no end of merging the rest.
fn less_garbage(runs: &[RunWeight], percent_max: u64) -> Option<Choice> {
    let ranges = runs.iter().filter(|run| run.is_free).flat_map(|run| &run.ranges);
    let (bytes, garbage) = ranges.fold((0, 0), |(bytes, garbage), range| {
        (bytes + range.bytes + range.trimmed, garbage + range.garbage())
    });
    if garbage == 0 || u128::from(garbage) * 100 <= u128::from(bytes) * u128::from(percent_max) {
        return None;
    }
    let free = runs.iter().enumerate().filter(|(_, run)| run.is_free);
    let all = free.flat_map(|(at, run)| run.ranges.iter().map(move |range| (at, range)));
    let share = |range: &RangeWeight| {
        u128::from(range.garbage()) * 1000 / u128::from((range.bytes + range.trimmed).max(1))
    };
    let (at, worst) = all.filter(|(_, range)| range.garbage() > 0).max_by_key(|(_, range)| share(range))?;
    // What is of tables that are gone, has expired, or counts no more, goes when the range is written anew, alone.
    let newer = match worst.gone + worst.expired + worst.trimmed >= worst.obsolete {
        true => 0,
        false => runs[..at].iter().rev().take_while(|run| run.is_free).count(),
    };
    Some(Choice { runs: at - newer..at + 1, keys: Some(worst.keys.clone()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MergeLimits = MergeLimits { runs_max: 8, garbage_percent_max: 30, covered_percent: 100 };

    fn range(bytes: u64, obsolete: u64, gone: u64) -> RangeWeight {
        let keys = [Box::from(&b"a"[..]), Box::from(&b"z"[..])];
        RangeWeight { keys, bytes, obsolete, gone, expired: 0, trimmed: 0 }
    }

    fn runs_of(bytes: &[u64]) -> Vec<RunWeight> {
        let run = |&bytes: &u64| RunWeight { ranges: vec![range(bytes, 0, 0)], is_free: true };
        bytes.iter().map(run).collect()
    }

    fn chosen(bytes: &[u64]) -> Option<Range<usize>> {
        choose(&runs_of(bytes), LIMITS).map(|choice| choice.runs)
    }

    #[test]
    fn runs_of_like_size_are_merged_and_not_before_there_are_too_many() {
        assert_eq!(chosen(&[5; 8]), None);
        assert_eq!(chosen(&[5; 9]), Some(0..9));
        assert_eq!(chosen(&[5, 5, 5, 5, 5, 5, 5, 5, 45]), Some(0..8), "the large one has nothing to gain");
        assert_eq!(chosen(&[90, 80, 7, 7, 7, 90, 80, 70, 60]), Some(2..5));
        assert_eq!(chosen(&[0; 9]), Some(0..9));
    }

    #[test]
    fn runs_that_cannot_be_merged_part_the_others() {
        let mut runs = runs_of(&[5; 10]);
        runs[4].is_free = false;
        assert_eq!(choose(&runs, LIMITS).unwrap().runs, 5..10);
        runs[0].is_free = false;
        assert_eq!(choose(&runs, LIMITS), None, "of those that can be merged there are not too many");
        (1..9).step_by(2).for_each(|at| runs[at].is_free = false);
        assert_eq!(choose(&runs, LIMITS), None);
    }

    /// What is written for each byte that was added, over a long time: as many times as there are steps in the sizes of runs, not as there are runs.
    #[test]
    fn what_was_merged_is_not_merged_again_for_each_new_run() {
        let (mut runs, mut written) = (Vec::new(), 0);
        for _ in 0..400 {
            runs.insert(0, 1);
            while let Some(merged) = chosen(&runs) {
                let bytes: u64 = runs[merged.clone()].iter().sum();
                written += bytes;
                runs.splice(merged, [bytes]);
            }
            assert!(runs.len() <= LIMITS.runs_max);
        }
        assert!((1..=3 * 400 + 40).contains(&written), "{written} written for 400");
    }

    /// Where there is no room for a merge, the file that gives back the largest share is written anew, if it fits.
    #[test]
    fn room_is_made_by_files_that_are_shorter_when_they_are_written_anew() {
        let anew = |run, file_bytes, needed| WrittenAnew {
            run,
            keys: [Box::from(&b"a"[..]), Box::from(&b"z"[..])],
            file_bytes,
            needed,
        };
        let runs = |all: &[WrittenAnew], room| room_making(all, room).map(|choice| choice.runs);
        assert_eq!(runs(&[anew(0, 10, 10), anew(1, 40, 40), anew(2, 100, 99)], 1_000), None);
        let all = [anew(0, 10, 10), anew(1, 100, 40), anew(2, 20, 15), anew(3, 30, 28)];
        assert_eq!(runs(&all, 1_000), Some(1..2));
        assert_eq!(runs(&all, 39), Some(2..3), "there is no room for the other");
        assert_eq!(runs(&all[3..], 39), Some(3..4));
        assert_eq!(runs(&all[3..], 27), None);
    }

    /// What is left of a file is written anew for the room of the rest.
    #[test]
    fn what_counts_no_more_is_garbage() {
        let mut runs = runs_of(&[10, 10, 60]);
        runs[1].ranges[0].trimmed = 30;
        assert_eq!(choose(&runs, LIMITS), None, "30 of 110");
        runs[1].ranges[0].trimmed = 40;
        assert_eq!(choose(&runs, LIMITS).unwrap().runs, 1..2);
        runs[1].ranges[0].obsolete = 41;
        runs[1].ranges[0].bytes = 50;
        assert_eq!(choose(&runs, LIMITS).unwrap().runs, 0..2, "more of it is replaced");
    }

    /// Rows whose time has come need no newer run to go.
    #[test]
    fn what_has_expired_is_written_anew_alone() {
        let mut runs = runs_of(&[10, 10, 80]);
        runs[2].ranges[0].expired = 30;
        assert_eq!(choose(&runs, LIMITS), None, "30 of 100");
        runs[2].ranges[0].expired = 31;
        assert_eq!(choose(&runs, LIMITS).unwrap().runs, 2..3);
        runs[2].ranges[0].obsolete = 40;
        assert_eq!(choose(&runs, LIMITS).unwrap().runs, 0..3, "more of it is replaced");
        assert_eq!(backlog(&runs, LIMITS), 40.0 / 30.0, "what has expired holds nobody");
    }

    #[test]
    fn what_is_owed_is_what_there_is_beyond_the_limits() {
        let mut runs = runs_of(&[10; 12]);
        let limits = MergeLimits { garbage_percent_max: 25, ..LIMITS };
        assert_eq!(backlog(&runs, limits), 1.5);
        runs[3].ranges = vec![range(10, 10, 0)];
        runs[4].ranges = vec![range(50, 80, 30)];
        assert_eq!(
            backlog(&runs, limits),
            60.0 / 40.0,
            "of 160 there may be 40, and no more of a range is garbage than it has"
        );
        runs[5].ranges = vec![range(10, 0, 10)];
        assert_eq!(backlog(&runs, limits), 60.0 / 40.0, "what is of tables that are gone holds nobody");
        runs[4].is_free = false;
        assert_eq!(backlog(&runs, limits), 11.0 / 8.0, "what cannot be merged is not owed");
        assert_eq!(backlog(&[], limits), 0.0);
    }

    #[test]
    fn the_range_with_the_largest_share_of_garbage_is_merged_with_what_is_newer() {
        let mut runs = runs_of(&[10, 10, 10, 70]);
        runs[2].ranges = vec![range(4, 0, 0), range(6, 5, 0)];
        assert_eq!(choose(&runs, LIMITS), None, "5 of 100");
        runs[3].ranges = vec![range(35, 26, 0), range(35, 0, 0)];
        assert_eq!(choose(&runs, LIMITS).unwrap().runs, 0..3);
        assert_eq!(choose(&runs, MergeLimits { garbage_percent_max: 31, ..LIMITS }), None);
        runs[2].is_free = false;
        let limits = MergeLimits { garbage_percent_max: 28, ..LIMITS };
        assert_eq!(choose(&runs, limits).unwrap().runs, 3..4, "with nothing across one that is not free");
        assert_eq!(choose(&runs, LIMITS), None, "26 of the 90 that can be merged");
        runs[3].ranges[1].gone = 30;
        runs[2].is_free = true;
        assert_eq!(choose(&runs, LIMITS).unwrap().runs, 3..4, "what is gone goes without newer runs");
    }
}
