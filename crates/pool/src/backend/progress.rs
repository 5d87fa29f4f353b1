//! Commands that take several calls.
//!
//! Owns how far walks, counts and clears are. Promises that each call of theirs is bounded, so that nobody else waits for long. Must not know how calls are carried.
//!
//! A clear deletes each pair that it came by only as it was then: a delete that is late cannot take away what was stored after the clear was answered.

use hedgerow_row::backend::{Answer, Cursor};
use hedgerow_row::le_bytes::{u16_at, u32_at};
use hedgerow_row::{Error, ErrorKind, Result};

use super::closed;
use super::outcome::{pair_of, refused};
use crate::client::{Condition, Outcome, Request, WalkedPair};
use crate::compute_node::CallEnd;
use crate::region::SlotId;

/// Calls of one walk that come by nothing, at most: then the caller is told where it goes on.
const EMPTY_STEPS_MAX: u32 = 16;
/// Pairs that a count comes by in one call, and those that a clear deletes at a time.
const COUNTED_STEP: usize = 128;
const CLEARED_STEP: usize = 32;

/// Bytes of a cursor: group (4), partition (2), slot (4), little-endian.
const CURSOR_BYTES: usize = 10;

/// The slot at which a walk goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WalkPlace(SlotId);

impl WalkPlace {
    pub(super) const START: WalkPlace = WalkPlace(SlotId { partition: 0, slot: 0 });

    /// Of a cursor. What is behind the end of the table is the end.
    pub(super) fn of(cursor: &Cursor, group: u32) -> Result<WalkPlace> {
        let Some(bytes) = cursor.place() else { return Ok(WalkPlace::START) };
        if bytes.len() != CURSOR_BYTES || u32_at(bytes, 0) != group {
            return Err(Error::invalid("the cursor is of a walk of another group, or of another backend"));
        }
        Ok(WalkPlace(SlotId { partition: u16_at(bytes, 4), slot: u32_at(bytes, 6) }))
    }

    fn cursor(self, group: u32) -> Cursor {
        let mut bytes = group.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.0.partition.to_le_bytes());
        bytes.extend_from_slice(&self.0.slot.to_le_bytes());
        Cursor::at(bytes.into())
    }
}

/// A command, and how far it is.
#[derive(Debug)]
pub(super) struct Progress {
    group: u32,
    what: Several,
}

#[derive(Debug)]
enum Several {
    Walk { pairs: usize, empty_steps: u32 },
    Count { counted: u64 },
    Clear(Clearing),
}

#[derive(Debug, Default)]
struct Clearing {
    next: Option<WalkPlace>,
    /// Deletes that are not answered.
    open: usize,
    /// Something was deleted, or may have been.
    has_changed: bool,
    failed: Option<Error>,
}

impl Progress {
    pub(super) fn walk(group: u32, pairs: usize) -> Progress {
        Progress { group, what: Several::Walk { pairs, empty_steps: 0 } }
    }

    pub(super) fn count(group: u32) -> Progress {
        Progress { group, what: Several::Count { counted: 0 } }
    }

    pub(super) fn clear(group: u32) -> Progress {
        Progress { group, what: Several::Clear(Clearing::default()) }
    }

    /// The call that comes by the pairs from here on.
    pub(super) fn step(&self, from: WalkPlace) -> (Vec<u8>, Request) {
        let pairs = match self.what {
            Several::Walk { pairs, .. } => pairs,
            Several::Count { .. } => COUNTED_STEP,
            Several::Clear(_) => CLEARED_STEP,
        };
        (self.group.to_be_bytes().to_vec(), Request::Walk(from.0, pairs))
    }

    /// One of its calls is done. The answer, or what is to be called next, if anything is.
    pub(super) fn came(
        &mut self,
        end: CallEnd,
        calls: &mut Vec<(Vec<u8>, Request)>,
    ) -> Option<Result<Answer>> {
        let outcome = match (end, &mut self.what) {
            (Ok(outcome), _) => outcome,
            (Err(_), Several::Clear(clearing)) => {
                clearing.failed.get_or_insert_with(closed);
                return self.clear_on(None, calls);
            }
            (Err(_), _) => return Some(Err(closed())),
        };
        let (pairs, next) = match (outcome, &self.what) {
            (Outcome::Walked(pairs, next), _) => (pairs, next.map(WalkPlace)),
            (other, Several::Clear(_)) => return self.clear_on(Some(other), calls),
            (other, _) => return Some(Err(refused(&other))),
        };
        match &mut self.what {
            Several::Walk { empty_steps, .. } => {
                *empty_steps += 1;
                if let (true, 0..EMPTY_STEPS_MAX, Some(next)) = (pairs.is_empty(), *empty_steps, next) {
                    calls.push(self.step(next));
                    return None;
                }
                let next = next.map(|next| next.cursor(self.group));
                Some(Ok(Answer::Walked(pairs.into_iter().map(pair_of).collect(), next)))
            }
            Several::Count { counted } => {
                *counted += pairs.len() as u64;
                match next {
                    Some(next) => calls.push(self.step(next)),
                    None => return Some(Ok(Answer::Counted(*counted))),
                }
                None
            }
            Several::Clear(clearing) => {
                (clearing.next, clearing.open) = (next, pairs.len());
                calls.extend(pairs.into_iter().map(delete));
                self.clear_goes_on(calls)
            }
        }
    }

    /// A delete is done, or was not even begun; or the walk failed.
    fn clear_on(
        &mut self,
        outcome: Option<Outcome>,
        calls: &mut Vec<(Vec<u8>, Request)>,
    ) -> Option<Result<Answer>> {
        let Several::Clear(clearing) = &mut self.what else { return None };
        clearing.open = clearing.open.saturating_sub(1);
        match outcome {
            Some(Outcome::Deleted(_)) => clearing.has_changed = true,
            // Another pair took its place: it was not there.
            None | Some(Outcome::Conflict) => {}
            Some(other) => {
                clearing.has_changed |= other == Outcome::Indeterminate;
                clearing.failed.get_or_insert_with(|| refused(&other));
            }
        }
        self.clear_goes_on(calls)
    }

    /// Once all deletes are answered: on with the walk, unless something failed.
    fn clear_goes_on(&mut self, calls: &mut Vec<(Vec<u8>, Request)>) -> Option<Result<Answer>> {
        let Several::Clear(clearing) = &mut self.what else { return None };
        if clearing.open > 0 {
            return None;
        }
        if let Some(error) = clearing.failed.take() {
            return Some(Err(match clearing.has_changed && error.kind() != ErrorKind::Closed {
                true => {
                    let message = format!("some of the group's pairs may be gone, and some not: {error}");
                    Error::new(ErrorKind::Indeterminate, message)
                }
                false => error,
            }));
        }
        match clearing.next.take() {
            Some(next) => {
                calls.push(self.step(next));
                None
            }
            None => Some(Ok(Answer::Cleared)),
        }
    }
}

/// The call that deletes a pair as it was come by.
fn delete(pair: WalkedPair) -> (Vec<u8>, Request) {
    (pair.key, Request::Delete(Condition::Same(pair.generation)))
}
