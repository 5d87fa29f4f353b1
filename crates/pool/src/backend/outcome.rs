//! What the pool's outcomes are to rows.
//!
//! Owns which [`ErrorKind`] each refusal is. Promises that a change that may have happened is told as such, and that no other one is. Must not know which command it was.

use hedgerow_row::backend::{Mark, Pair};
use hedgerow_row::{Error, ErrorKind};

use crate::client::{Outcome, WalkedPair};

/// A walked pair as rows have it.
pub(super) fn pair_of(walked: WalkedPair) -> Pair {
    let mark = Mark::new(walked.generation.0);
    Pair { key: walked.key.into(), value: walked.value.into(), mark }
}

/// Why there is no answer.
pub(super) fn refused(outcome: &Outcome) -> Error {
    let (kind, message) = match outcome {
        Outcome::Conflict => (ErrorKind::Conflict, "what is under the key is not what was expected"),
        Outcome::Full => (ErrorKind::Full, "the pool has no room for it in its memory, or none in its index"),
        Outcome::TooLong => (ErrorKind::Invalid, "the key or the value is longer than the pool takes"),
        Outcome::Unavailable => (ErrorKind::Unavailable, "the pool did not answer in time; nothing happened"),
        Outcome::Indeterminate => {
            let message = "the pool did not answer in time: it may have happened, or may still";
            (ErrorKind::Indeterminate, message)
        }
        _ => (ErrorKind::Io, "the pool answered something else than it was asked"),
    };
    Error::new(kind, message)
}
