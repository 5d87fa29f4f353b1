//! What came of commands that were carried out together.
//!
//! Owns [`Outcome`]: what is answered, and what waits for devices to be out, where there are two copies. Promises nothing of itself. Must not know how devices are put out.

use std::collections::BTreeSet;

use hedgerow_row::Result;
use hedgerow_row::backend::{Answer, Ticket};

use super::array_device::{KeyedCommand, PairAnswers};

/// What came of commands.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) answered: PairAnswers,
    /// Answers that hold once these devices are out.
    pub(super) relying: Vec<(Ticket, Result<Answer>, BTreeSet<usize>)>,
    /// Commands that are to be begun again once a device is out.
    pub(super) again: Vec<(usize, KeyedCommand)>,
}

impl Outcome {
    pub(super) fn tell(&mut self, ticket: Ticket, answer: Result<Answer>, relies_on: BTreeSet<usize>) {
        match relies_on.is_empty() {
            true => self.answered.push((ticket, answer)),
            false => self.relying.push((ticket, answer, relies_on)),
        }
    }

    pub(super) fn begin_again(&mut self, device: usize, command: KeyedCommand) {
        self.again.push((device, command));
    }
}
