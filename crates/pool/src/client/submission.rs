//! A change that a proxy was asked for.
//!
//! Owns what is remembered of it, and what the manager is told if it is in doubt. Must not know how it is asked for.

use super::slot_change::Purpose;
use crate::region::SlotId;
use crate::rpc::IndexChange;
use crate::wire::Doubt;

/// The change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Submission {
    pub(super) purpose: Purpose,
    pub(super) partition: u16,
    pub(super) change: IndexChange,
}

impl Submission {
    /// For the manager: the version of the new word is not known, nor the slot of a new key.
    pub(super) fn doubt(&self) -> Doubt {
        let slot = SlotId { partition: self.partition, slot: self.change.slot };
        Doubt { slot, old: self.change.expected, new: self.change.word }
    }
}
