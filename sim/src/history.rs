//! Checking what threads saw against one order of all calls.
//!
//! Owns [`History`]: calls with the moments they began and returned. Promises to find an order in which each call sees
//! what a single register would show and which respects those moments (linearizability, Herlihy and Wing 1990), or to say
//! for which key there is none. The search is that of Wing and Gong (1993) with the memory of Lowe (2017), one key at a
//! time, for linearizability is local. Must not know where the calls went.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// What had to be there for a call with a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// Whatever was.
    Any,
    /// Nothing.
    Absent,
    /// Something.
    Present,
    /// This value.
    Value(u64),
}

impl Precondition {
    fn holds(self, there: Option<u64>) -> bool {
        match self {
            Precondition::Any => true,
            Precondition::Absent => there.is_none(),
            Precondition::Present => there.is_some(),
            Precondition::Value(value) => there == Some(value),
        }
    }
}

/// What a call did to its key, and what it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Saw this value; `None`: nothing was there.
    Read(Option<u64>),
    /// Wrote this value over whatever was there.
    Write(u64),
    /// Removed what was there, and said whether something was.
    Remove(bool),
    /// Removed what was there, and did not say whether something was.
    Clear,
    /// Added to what was there (0 if nothing) and answered the sum.
    Add(u64, u64),
    /// Wrote the second value if the first was there; said whether it was.
    Swap(Option<u64>, u64, bool),
    /// Wrote this value if something was there; said whether something was.
    WriteIfThere(u64, bool),
    /// Wrote this value, since what was expected was there.
    WriteIf(Precondition, u64),
    /// Removed what was there, since it was what was expected, and said whether something was.
    RemoveIf(Precondition, bool),
    /// Did nothing, since what was expected was not there.
    Refused(Precondition),
    /// Failed in a way that leaves open whether it wrote this value, or still will.
    MayWrite(u64),
    /// The same, if something was there.
    MayWriteIfThere(u64),
    /// The same, if what was expected is there.
    MayWriteIf(Precondition, u64),
    /// The same of a removal.
    MayRemove,
    /// The same of a removal of what was expected.
    MayRemoveIf(Precondition),
    /// The same of an addition.
    MayAdd(u64),
}

impl Effect {
    /// What is there afterwards, if the call could answer so.
    fn apply(self, there: Option<u64>) -> Option<Option<u64>> {
        let (answered, after) = match self {
            Effect::Read(seen) => (seen == there, there),
            Effect::Write(value) => (true, Some(value)),
            Effect::Remove(was) => (was == there.is_some(), None),
            Effect::Add(by, sum) => (there.unwrap_or(0).wrapping_add(by) == sum, Some(sum)),
            Effect::Swap(expected, value, swapped) => {
                (swapped == (there == expected), if swapped { Some(value) } else { there })
            }
            Effect::WriteIfThere(value, was) => (was == there.is_some(), there.map(|_| value)),
            Effect::MayWrite(value) => (true, Some(value)),
            Effect::MayWriteIfThere(value) => (true, there.map(|_| value)),
            Effect::Clear | Effect::MayRemove => (true, None),
            Effect::WriteIf(expected, value) | Effect::MayWriteIf(expected, value) => {
                (expected.holds(there), Some(value))
            }
            Effect::RemoveIf(expected, was) => (expected.holds(there) && was == there.is_some(), None),
            Effect::MayRemoveIf(expected) => (expected.holds(there), None),
            Effect::Refused(expected) => (!expected.holds(there), there),
            Effect::MayAdd(by) => (true, Some(there.unwrap_or(0).wrapping_add(by))),
        };
        answered.then_some(after)
    }

    /// Whether it leaves what is there, wherever in an order it comes. A removal of nothing that did not say so does not: a moment later it may have removed something.
    fn only_looks(self) -> bool {
        use Effect::{Read, Refused, Remove, RemoveIf, Swap, WriteIfThere};
        let did_nothing =
            matches!(self, Remove(false) | RemoveIf(_, false) | WriteIfThere(_, false) | Swap(.., false));
        did_nothing || matches!(self, Read(_) | Refused(_))
    }

    /// Whether it need not have happened at all.
    pub fn is_open(self) -> bool {
        use Effect::{MayAdd, MayRemove, MayRemoveIf, MayWrite, MayWriteIf, MayWriteIfThere};
        let may_write = matches!(self, MayWrite(_) | MayWriteIf(..) | MayWriteIfThere(_) | MayAdd(_));
        may_write || matches!(self, MayRemove | MayRemoveIf(_))
    }
}

/// One call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// What it was about.
    pub key: u64,
    /// What it did.
    pub effect: Effect,
    /// Moments on one clock: before it was made, and after it had returned.
    pub began: u64,
    /// See `began`. Of a call of which it is open whether it happened it does not count: it may happen at any time after it began.
    pub returned: u64,
}

impl Call {
    /// The last moment at which it can have happened.
    fn latest(&self) -> u64 {
        if self.effect.is_open() { u64::MAX } else { self.returned }
    }
}

/// Calls of all threads, in any order.
#[derive(Debug, Clone, Default)]
pub struct History {
    calls: BTreeMap<u64, Vec<Call>>,
}

/// A key whose calls no single order explains.
#[derive(Debug, Clone)]
pub struct NotLinearizable {
    /// The key.
    pub key: u64,
    /// The longest order that was found, and then the calls of which none could come next.
    pub longest: Vec<Call>,
    /// See `longest`.
    pub stuck: Vec<Call>,
}

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = &self.longest[self.longest.len().saturating_sub(5)..];
        write!(f, "key {}: after {last:?}, none of {:?} can come next", self.key, self.stuck)
    }
}

impl std::error::Error for NotLinearizable {}

impl History {
    /// Adds a call.
    pub fn push(&mut self, call: Call) {
        self.calls.entry(call.key).or_default().push(call);
    }

    /// Calls in all.
    pub fn len(&self) -> usize {
        self.calls.values().map(Vec::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether there is one order for each key, from nothing there.
    ///
    /// # Errors
    /// The first key without one.
    pub fn check(&self) -> Result<(), NotLinearizable> {
        self.calls.iter().try_for_each(|(&key, calls)| check_key(key, calls))
    }
}

/// Depth first through the orders; a set of calls done with the value they leave is never tried twice.
fn check_key(key: u64, calls: &[Call]) -> Result<(), NotLinearizable> {
    let mut calls = calls.to_vec();
    calls.sort_unstable_by_key(|call| (call.began, call.latest()));
    let mut search = Search {
        calls: &calls,
        done: Done::default(),
        seen: HashSet::new(),
        order: Vec::new(),
        longest: Vec::new(),
    };
    if search.run() {
        return Ok(());
    }
    let longest: Vec<Call> = search.longest.iter().map(|&i| calls[i]).collect();
    let left = (0..calls.len()).filter(|i| !search.longest.contains(i));
    let stuck = left.take(8).map(|i| calls[i]).collect();
    Err(NotLinearizable { key, longest, stuck })
}

/// Which calls are done: all before `from`, and some after it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Done {
    from: usize,
    beyond: Vec<usize>,
}

impl Done {
    fn has(&self, call: usize) -> bool {
        call < self.from || self.beyond.binary_search(&call).is_ok()
    }

    fn with(&self, call: usize) -> Done {
        let mut done = self.clone();
        if let Err(at) = done.beyond.binary_search(&call) {
            done.beyond.insert(at, call);
        }
        while done.beyond.first() == Some(&done.from) {
            done.beyond.remove(0);
            done.from += 1;
        }
        done
    }
}

struct Search<'c> {
    calls: &'c [Call],
    done: Done,
    seen: HashSet<(Done, Option<u64>)>,
    order: Vec<usize>,
    longest: Vec<usize>,
}

impl Search<'_> {
    fn run(&mut self) -> bool {
        // Of each step: what was done before it, the value then, and the calls still to be tried.
        let first = self.candidates(None);
        let mut stack: Vec<(Done, Option<u64>, Vec<usize>)> = vec![(self.done.clone(), None, first)];
        while let Some((done, there, candidates)) = stack.last_mut() {
            let Some(call) = candidates.pop() else {
                stack.pop();
                self.order.pop();
                continue;
            };
            let Some(after) = self.calls[call].effect.apply(*there) else { continue };
            let next = done.with(call);
            if !self.seen.insert((next.clone(), after)) {
                continue;
            }
            self.order.push(call);
            if self.order.len() > self.longest.len() {
                self.longest.clone_from(&self.order);
            }
            if self.is_all(&next) {
                return true;
            }
            self.done = next.clone();
            let candidates = self.candidates(after);
            stack.push((next, after, candidates));
        }
        self.is_all(&Done::default())
    }

    /// Whether the rest need not happen.
    fn is_all(&self, done: &Done) -> bool {
        (done.from..self.calls.len()).all(|call| self.calls[call].effect.is_open() || done.has(call))
    }

    /// The calls that may come next, the likeliest last: not done, and begun before any call that is not done had returned.
    fn candidates(&self, there: Option<u64>) -> Vec<usize> {
        let mut earliest_return = u64::MAX;
        let mut candidates = Vec::new();
        for (i, call) in self.calls.iter().enumerate().skip(self.done.from) {
            if call.began > earliest_return {
                break;
            }
            if !self.done.has(i) {
                earliest_return = earliest_return.min(call.latest());
                candidates.push(i);
            }
        }
        // What fits and never changes anything can as well come now: no other order is lost by that.
        let changes_nothing = |i: &&usize| {
            let effect = self.calls[**i].effect;
            effect.only_looks() && effect.apply(there).is_some()
        };
        if let Some(&i) = candidates.iter().find(changes_nothing) {
            return vec![i];
        }
        // What returned first is tried first; what may not have happened at all, last.
        candidates.sort_unstable_by_key(|&i| Reverse(self.calls[i].latest()));
        candidates
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    fn history(calls: &[(Effect, u64, u64)]) -> History {
        let mut history = History::default();
        calls
            .iter()
            .for_each(|&(effect, began, returned)| history.push(Call { key: 1, effect, began, returned }));
        history
    }

    #[test]
    fn overlapping_calls_may_come_in_either_order() {
        let read = |seen| {
            history(&[
                (Effect::Write(1), 0, 10),
                (Effect::Write(2), 5, 15),
                (Effect::Read(Some(seen)), 16, 20),
            ])
        };
        assert!(read(1).check().is_ok() && read(2).check().is_ok());
        assert!(read(3).check().is_err());
    }

    #[test]
    fn a_read_may_not_go_back_in_time() {
        let calls = [
            (Effect::Write(1), 0, 1),
            (Effect::Write(2), 2, 10),
            (Effect::Read(Some(2)), 3, 4),
            (Effect::Read(Some(1)), 5, 6),
        ];
        assert!(history(&calls).check().is_err());
        let calls = [
            (Effect::Write(1), 0, 1),
            (Effect::Write(2), 2, 10),
            (Effect::Read(Some(1)), 3, 4),
            (Effect::Read(Some(2)), 5, 6),
        ];
        assert!(history(&calls).check().is_ok());
    }

    #[test]
    fn a_lost_update_is_found() {
        let calls = [(Effect::Add(1, 1), 0, 10), (Effect::Add(1, 1), 5, 15)];
        assert!(history(&calls).check().is_err());
        let calls = [
            (Effect::Add(1, 1), 0, 10),
            (Effect::Add(1, 2), 5, 15),
            (Effect::Remove(true), 16, 17),
            (Effect::Read(None), 18, 19),
        ];
        assert!(history(&calls).check().is_ok());
    }

    #[test]
    fn a_call_of_unknown_outcome_happens_late_or_never_but_not_twice() {
        let read = |seen, began| (Effect::Read(seen), began, began + 1);
        let calls = |rest: &[(Effect, u64, u64)]| {
            let first = [(Effect::Write(1), 0, 1), (Effect::MayAdd(5), 2, 3)];
            history(&[&first[..], rest].concat()).check().is_ok()
        };
        assert!(calls(&[]) && calls(&[read(Some(1), 4)]) && calls(&[read(Some(6), 4)]));
        assert!(calls(&[read(Some(1), 4), read(Some(6), 6)]));
        assert!(!calls(&[read(Some(6), 4), read(Some(1), 6)]));
        assert!(!calls(&[read(Some(6), 4), read(Some(11), 6)]));
        assert!(!calls(&[read(None, 4)]));
        assert!(history(&[(Effect::MayRemove, 0, 1), (Effect::MayWrite(3), 2, 3)]).check().is_ok());
        assert!(history(&[(Effect::Read(Some(3)), 0, 1), (Effect::MayWrite(3), 2, 3)]).check().is_err());
    }

    #[test]
    fn clearing_removes_and_an_open_condition_makes_nothing() {
        let read = |seen| {
            let first = [(Effect::Write(1), 0, 1), (Effect::Clear, 2, 3), (Effect::MayWriteIfThere(2), 2, 4)];
            history(&[&first[..], &[(Effect::Read(seen), 5, 6)]].concat()).check().is_ok()
        };
        assert!(read(None));
        assert!(!read(Some(1)) && !read(Some(2)));
    }

    /// What would change nothing now may have changed something later.
    #[test]
    fn what_may_change_something_waits_for_its_turn() {
        for remove in [Effect::Clear, Effect::RemoveIf(ANY, true)] {
            let add = (Effect::Add(7, 7), 3, 4);
            assert!(is_linearizable(&[(remove, 1, 6), add, (Effect::Read(None), 7, 8)]));
        }
        let over = [(Effect::Write(1), 0, 1), (Effect::Write(1), 2, 9), (Effect::Write(2), 3, 4)];
        assert!(is_linearizable(&[&over[..], &[(Effect::Read(Some(1)), 10, 11)]].concat()));
        assert!(is_linearizable(&[&over[..], &[(Effect::Read(Some(2)), 10, 11)]].concat()));
    }

    #[test]
    fn a_stale_read_after_a_write_returned_is_found() {
        let calls = [(Effect::Write(1), 0, 1), (Effect::Write(2), 2, 3), (Effect::Read(Some(1)), 4, 5)];
        let error = history(&calls).check().unwrap_err();
        assert_eq!((error.longest.len(), error.stuck.len()), (2, 1));
    }

    fn is_linearizable(calls: &[(Effect, u64, u64)]) -> bool {
        history(calls).check().is_ok()
    }

    const ANY: Precondition = Precondition::Any;

    #[test]
    fn good_histories_with_conditions_pass() {
        assert!(is_linearizable(&[]));
        assert!(is_linearizable(&[
            (Effect::Read(None), 0, 1),
            (Effect::WriteIf(ANY, 7), 2, 3),
            (Effect::Read(Some(7)), 4, 5)
        ]));
        // Two writes at one time, in either order.
        for last in [7, 8] {
            let writes = [(Effect::WriteIf(ANY, 7), 0, 9), (Effect::WriteIf(ANY, 8), 0, 9)];
            assert!(is_linearizable(&[writes[0], writes[1], (Effect::Read(Some(last)), 10, 11)]));
        }
        // What may have happened happens, late or never.
        let may = (Effect::MayWriteIf(ANY, 7), 0, 1);
        assert!(is_linearizable(&[may, (Effect::Read(None), 5, 6), (Effect::Read(Some(7)), 8, 9)]));
        assert!(is_linearizable(&[may, (Effect::Read(None), 5, 6), (Effect::Read(None), 8, 9)]));
        let first = (Effect::WriteIf(Precondition::Absent, 7), 0, 1);
        let swap = (Effect::WriteIf(Precondition::Value(7), 8), 2, 3);
        assert!(is_linearizable(&[
            first,
            swap,
            (Effect::RemoveIf(ANY, true), 4, 5),
            (Effect::RemoveIf(ANY, false), 6, 7)
        ]));
        assert!(is_linearizable(&[
            first,
            (Effect::Refused(Precondition::Absent), 2, 3),
            (Effect::MayRemoveIf(ANY), 2, 3)
        ]));
    }

    #[test]
    fn bad_histories_with_conditions_are_refused() {
        let write = (Effect::WriteIf(ANY, 7), 0, 1);
        for bad in [
            // Nobody wrote it.
            vec![(Effect::Read(Some(7)), 0, 1)],
            // It is forgotten, or comes too late.
            vec![write, (Effect::Read(None), 2, 3)],
            vec![(Effect::WriteIf(ANY, 7), 5, 6), (Effect::Read(Some(7)), 2, 3)],
            // Old after new.
            vec![
                write,
                (Effect::WriteIf(ANY, 8), 2, 9),
                (Effect::Read(Some(8)), 3, 4),
                (Effect::Read(Some(7)), 5, 6),
            ],
            // An old value comes back.
            vec![write, (Effect::RemoveIf(ANY, true), 2, 3), (Effect::Read(Some(7)), 4, 5)],
            // Two deletes of one value.
            vec![write, (Effect::RemoveIf(ANY, true), 2, 9), (Effect::RemoveIf(ANY, true), 2, 9)],
            // Two conditional writes over one value.
            vec![
                write,
                (Effect::WriteIf(Precondition::Value(7), 8), 2, 9),
                (Effect::WriteIf(Precondition::Value(7), 9), 2, 9),
            ],
            // Refused though it held, done though it did not.
            vec![write, (Effect::Refused(Precondition::Present), 2, 3)],
            vec![write, (Effect::WriteIf(Precondition::Absent, 8), 2, 3)],
            // What may have happened happened twice.
            vec![
                (Effect::MayWriteIf(ANY, 7), 0, 1),
                (Effect::WriteIf(ANY, 8), 2, 3),
                (Effect::Read(Some(7)), 4, 5),
                (Effect::Read(Some(8)), 6, 7),
            ],
        ] {
            assert!(!is_linearizable(&bad), "{bad:?}");
        }
    }

    /// Calls of a real register at random points of their intervals, and the same with one answer spoiled.
    #[test]
    fn long_histories_are_checked_quickly_and_one_wrong_answer_is_found() {
        let mut refused = 0;
        for seed in 0..60 {
            let mut random = Random::from_seed(seed);
            let (mut there, mut history, mut calls) = (None, History::default(), Vec::new());
            for at in 0..400u64 {
                let moment = at * 10;
                let (began, ended) =
                    (moment - random.below(moment.min(25) + 1), moment + 1 + random.below(25));
                let effect = match random.below(4) {
                    0 => Effect::WriteIf(ANY, at),
                    1 => Effect::RemoveIf(ANY, there.is_some()),
                    2 if random.below(16) == 0 => Effect::MayWriteIf(ANY, at),
                    _ => Effect::Read(there),
                };
                // What may happen happens half of the time.
                if !effect.is_open() || random.below(2) == 0 {
                    there = effect.apply(there).unwrap();
                }
                calls.push(Call { key: 1, effect, began, returned: ended });
            }
            calls.iter().for_each(|call| history.push(*call));
            history.check().unwrap();
            let reads: Vec<usize> =
                (0..calls.len()).filter(|&at| matches!(calls[at].effect, Effect::Read(_))).collect();
            let at = reads[random.below(reads.len() as u64) as usize];
            let other = calls.iter().filter_map(|call| match call.effect {
                Effect::WriteIf(_, value) if call.began > calls[at].returned + 100 => Some(value),
                _ => None,
            });
            let Some(value) = other.max() else { continue };
            calls[at].effect = Effect::Read(Some(value));
            let mut spoiled = History::default();
            calls.iter().for_each(|call| spoiled.push(*call));
            assert!(spoiled.check().is_err(), "seed {seed}");
            refused += 1;
        }
        assert!(refused > 30);
    }
}
