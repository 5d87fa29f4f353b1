//! What a node has for others: its memory, and who may not work on it.
//!
//! Owns the memory and the fences of one node. Promises that a batch is executed whole, or not at all, and nothing of a session once that is fenced: one thread has both, so nothing is
//! in between. Where it has a lease it promises that nothing is told that was done after that. Must not know who asks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hedgerow_device::Clock;

use crate::fabric::memory::{NodeMemory, Piece, room_for};
use crate::fabric::{Batch, PostError, PostResult, SessionId};

/// Memory and fences. At most as many fences as there are session numbers.
#[derive(Debug, Default)]
pub(super) struct Exports {
    memory: NodeMemory,
    fenced: BTreeSet<SessionId>,
    /// Until when it may serve, by the clock.
    lease: Option<(Clock, Arc<AtomicU64>)>,
    is_out_of_lease: bool,
}

impl Exports {
    /// Adds a region.
    pub(super) fn add(&mut self, region: u16, bytes: Vec<u8>) {
        self.memory.export(region, bytes);
    }

    /// The memory of a region.
    pub(super) fn region(&self, region: u16) -> Option<&[u8]> {
        self.memory.region(region)
    }

    /// It serves until a time that somebody else sets, and never again once that has come.
    pub(super) fn serve_until(&mut self, clock: Clock, until: Arc<AtomicU64>) {
        self.lease = Some((clock, until));
    }

    /// Whether its time to serve is over. Asked after something was executed, and before that is told, this says whether it may be: what was executed before that time is as good as told then.
    pub(super) fn is_out_of_lease(&mut self) -> bool {
        if let Some((clock, until)) = &self.lease {
            self.is_out_of_lease |= clock.monotonic_ns() >= until.load(Ordering::Acquire);
        }
        self.is_out_of_lease
    }

    /// Nothing of the session is executed from now on.
    pub(super) fn fence(&mut self, session: SessionId) {
        self.fenced.insert(session);
    }

    /// Executes a batch, its operations in their order.
    pub(super) fn execute(&mut self, session: SessionId, batch: &Batch) -> PostResult {
        if self.fenced.contains(&session) {
            return Err(PostError::Fenced);
        }
        // Before memory is set aside for what is read: the limit is on all of it.
        if !self.memory.has_all(batch) {
            return Err(PostError::OutOfBounds);
        }
        let execute = |op| {
            let mut result = room_for(op);
            self.memory.execute(op, Piece::whole(op), &mut result);
            result
        };
        Ok(batch.iter().map(execute).collect())
    }
}
