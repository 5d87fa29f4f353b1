//! Checking what clients were answered against one order of all calls.
//!
//! Owns [`History`]: calls with the moments at which they began and were answered. Promises to find, for each key, an order in which each call sees what a register
//! that can be absent would show, and that respects those moments (linearizability, Herlihy and Wing 1990), or to say for which key there is none. The search is that of
//! Wing and Gong (1993) with the memory of Lowe (2017): a set of calls done with the value they leave is tried once. Must not know where the calls went.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use crate::fabric::Nanos;

/// What had to be there for a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expected {
    /// Whatever was.
    Any,
    /// Nothing.
    Absent,
    /// Something.
    Present,
    /// This value.
    Value(u64),
}

impl Expected {
    fn holds(self, there: Option<u64>) -> bool {
        match self {
            Expected::Any => true,
            Expected::Absent => there.is_none(),
            Expected::Present => there.is_some(),
            Expected::Value(value) => there == Some(value),
        }
    }
}

/// What a call did, and what it was answered. Values are numbers; no two writes of a history have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Saw this.
    Read(Option<u64>),
    /// Wrote this.
    Write(Expected, u64),
    /// Wrote nothing, since what was expected was not there.
    NotWritten(Expected),
    /// Deleted what was there, and said whether something was.
    Delete(Expected, bool),
    /// May have written this, or may still.
    MayWrite(Expected, u64),
    /// May have deleted what was there, or may still.
    MayDelete(Expected),
}

impl Effect {
    /// What is there afterwards, if the call could do and answer so.
    fn apply(self, there: Option<u64>) -> Option<Option<u64>> {
        let (could, after) = match self {
            Effect::Read(seen) => (seen == there, there),
            Effect::Write(expected, value) | Effect::MayWrite(expected, value) => {
                (expected.holds(there), Some(value))
            }
            Effect::NotWritten(expected) => (!expected.holds(there), there),
            Effect::Delete(expected, was) => (expected.holds(there) && was == there.is_some(), None),
            Effect::MayDelete(expected) => (expected.holds(there), None),
        };
        could.then_some(after)
    }

    /// Whether it need not have happened.
    fn is_open(self) -> bool {
        matches!(self, Effect::MayWrite(..) | Effect::MayDelete(_))
    }
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// About which key.
    pub key: u64,
    /// What it did.
    pub effect: Effect,
    /// When it was made, and when it was answered, on one clock. What may happen still has no end, whatever is said here.
    pub began: Nanos,
    /// See `began`.
    pub ended: Nanos,
}

impl Call {
    fn latest(&self) -> Nanos {
        if self.effect.is_open() { Nanos::MAX } else { self.ended }
    }
}

/// Calls, in any order.
#[derive(Debug, Clone, Default)]
pub struct History {
    calls: BTreeMap<u64, Vec<Call>>,
}

/// A key whose calls no order explains.
#[derive(Debug, Clone)]
pub struct NotLinearizable {
    /// The key.
    pub key: u64,
    /// The longest order that was found.
    pub longest: Vec<Call>,
    /// The first calls of which none could come next.
    pub stuck: Vec<Call>,
}

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = &self.longest[self.longest.len().saturating_sub(6)..];
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

    /// Whether there is an order for each key, from absent on.
    ///
    /// # Errors
    /// The first key without one.
    pub fn check(&self) -> Result<(), NotLinearizable> {
        self.calls.iter().try_for_each(|(&key, calls)| check_key(key, calls))
    }
}

/// Which calls are done: all before `from`, and some after it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct DoneCalls {
    from: usize,
    beyond: Vec<usize>,
}

impl DoneCalls {
    fn has(&self, call: usize) -> bool {
        call < self.from || self.beyond.binary_search(&call).is_ok()
    }

    fn with(&self, call: usize) -> DoneCalls {
        let mut done = self.clone();
        if let Err(at) = done.beyond.binary_search(&call) {
            done.beyond.insert(at, call);
        }
        let mut passed = 0;
        while done.beyond.get(passed) == Some(&done.from) {
            passed += 1;
            done.from += 1;
        }
        done.beyond.drain(..passed);
        done
    }
}

fn check_key(key: u64, calls: &[Call]) -> Result<(), NotLinearizable> {
    let mut calls = calls.to_vec();
    calls.sort_unstable_by_key(|call| (call.began, call.latest()));
    let certain = calls.iter().filter(|call| !call.effect.is_open()).count();
    let mut seen: HashSet<(DoneCalls, Option<u64>)> = HashSet::new();
    let (mut order, mut longest) = (Vec::new(), Vec::new());
    let first = DoneCalls::default();
    let next = candidates(&calls, &first, None);
    // Of each step: what was done before it, what was there, how many certain calls were done, and what is still to be tried.
    let mut stack = vec![(first, None, 0, next)];
    while let Some((done, there, sure, next)) = stack.last_mut() {
        if *sure == certain {
            return Ok(());
        }
        let Some(call) = next.pop() else {
            stack.pop();
            order.pop();
            continue;
        };
        let Some(after) = calls[call].effect.apply(*there) else { continue };
        let sure = *sure + usize::from(!calls[call].effect.is_open());
        let done = done.with(call);
        if !seen.insert((done.clone(), after)) {
            continue;
        }
        order.push(call);
        if order.len() > longest.len() {
            longest.clone_from(&order);
        }
        let next = candidates(&calls, &done, after);
        stack.push((done, after, sure, next));
    }
    let left = (0..calls.len()).filter(|call| !longest.contains(call) && !calls[*call].effect.is_open());
    let stuck = left.take(8).map(|call| calls[call]).collect();
    Err(NotLinearizable { key, longest: longest.into_iter().map(|call| calls[call]).collect(), stuck })
}

/// The calls that may come next, the likeliest last: those that began before every other one that is left was answered.
fn candidates(calls: &[Call], done: &DoneCalls, there: Option<u64>) -> Vec<usize> {
    let mut next = Vec::new();
    let mut earliest_end = Nanos::MAX;
    for (at, call) in calls.iter().enumerate().skip(done.from) {
        if done.has(at) {
            continue;
        }
        if call.began > earliest_end {
            break;
        }
        earliest_end = earliest_end.min(call.latest());
        next.push(at);
    }
    // A call that may come next, fits and changes nothing can as well come now: no other order is lost by that.
    let changes_nothing = |at: &&usize| {
        let effect = calls[**at].effect;
        !effect.is_open() && effect.apply(there) == Some(there)
    };
    if let Some(&at) = next.iter().find(changes_nothing) {
        return vec![at];
    }
    // What was answered first is tried first; what may not have happened at all, last.
    next.sort_unstable_by_key(|&at| std::cmp::Reverse(calls[at].latest()));
    next
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    fn check(calls: &[(Effect, Nanos, Nanos)]) -> bool {
        let mut history = History::default();
        for &(effect, began, ended) in calls {
            history.push(Call { key: 1, effect, began, ended });
        }
        history.check().is_ok()
    }

    const ANY: Expected = Expected::Any;

    #[test]
    fn good_histories_pass() {
        assert!(check(&[]));
        assert!(check(&[
            (Effect::Read(None), 0, 1),
            (Effect::Write(ANY, 7), 2, 3),
            (Effect::Read(Some(7)), 4, 5)
        ]));
        // Two writes at one time, in either order.
        for last in [7, 8] {
            let writes = [(Effect::Write(ANY, 7), 0, 9), (Effect::Write(ANY, 8), 0, 9)];
            assert!(check(&[writes[0], writes[1], (Effect::Read(Some(last)), 10, 11)]));
        }
        // What may have happened happens, late or never.
        let may = (Effect::MayWrite(ANY, 7), 0, 1);
        assert!(check(&[may, (Effect::Read(None), 5, 6), (Effect::Read(Some(7)), 8, 9)]));
        assert!(check(&[may, (Effect::Read(None), 5, 6), (Effect::Read(None), 8, 9)]));
        let first = (Effect::Write(Expected::Absent, 7), 0, 1);
        let swap = (Effect::Write(Expected::Value(7), 8), 2, 3);
        assert!(check(&[first, swap, (Effect::Delete(ANY, true), 4, 5), (Effect::Delete(ANY, false), 6, 7)]));
        assert!(check(&[
            first,
            (Effect::NotWritten(Expected::Absent), 2, 3),
            (Effect::MayDelete(ANY), 2, 3)
        ]));
    }

    #[test]
    fn bad_histories_are_refused() {
        let write = (Effect::Write(ANY, 7), 0, 1);
        for bad in [
            // Nobody wrote it.
            vec![(Effect::Read(Some(7)), 0, 1)],
            // It is forgotten, or comes too late.
            vec![write, (Effect::Read(None), 2, 3)],
            vec![(Effect::Write(ANY, 7), 5, 6), (Effect::Read(Some(7)), 2, 3)],
            // Old after new.
            vec![
                write,
                (Effect::Write(ANY, 8), 2, 9),
                (Effect::Read(Some(8)), 3, 4),
                (Effect::Read(Some(7)), 5, 6),
            ],
            // An old value comes back.
            vec![write, (Effect::Delete(ANY, true), 2, 3), (Effect::Read(Some(7)), 4, 5)],
            // Two deletes of one value.
            vec![write, (Effect::Delete(ANY, true), 2, 9), (Effect::Delete(ANY, true), 2, 9)],
            // Two conditional writes over one value.
            vec![
                write,
                (Effect::Write(Expected::Value(7), 8), 2, 9),
                (Effect::Write(Expected::Value(7), 9), 2, 9),
            ],
            // Refused though it held, done though it did not.
            vec![write, (Effect::NotWritten(Expected::Present), 2, 3)],
            vec![write, (Effect::Write(Expected::Absent, 8), 2, 3)],
            // What may have happened happened twice.
            vec![
                (Effect::MayWrite(ANY, 7), 0, 1),
                (Effect::Write(ANY, 8), 2, 3),
                (Effect::Read(Some(7)), 4, 5),
                (Effect::Read(Some(8)), 6, 7),
            ],
        ] {
            assert!(!check(&bad), "{bad:?}");
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
                    0 => Effect::Write(ANY, at),
                    1 => Effect::Delete(ANY, there.is_some()),
                    2 if random.below(16) == 0 => Effect::MayWrite(ANY, at),
                    _ => Effect::Read(there),
                };
                // What may happen happens half of the time.
                if !effect.is_open() || random.below(2) == 0 {
                    there = effect.apply(there).unwrap();
                }
                calls.push(Call { key: 1, effect, began, ended });
            }
            calls.iter().for_each(|call| history.push(*call));
            history.check().unwrap();
            let reads: Vec<usize> =
                (0..calls.len()).filter(|&at| matches!(calls[at].effect, Effect::Read(_))).collect();
            let at = reads[random.below(reads.len() as u64) as usize];
            let other = calls.iter().filter_map(|call| match call.effect {
                Effect::Write(_, value) if call.began > calls[at].ended + 100 => Some(value),
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
