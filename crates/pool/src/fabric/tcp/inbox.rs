//! What a node is told next.
//!
//! Owns the queue between a node's connections and whoever polls. Promises that datagrams that nobody takes do not grow it for ever: there are at most [`DATAGRAMS_MAX`] of them. Completions are
//! as many as batches were posted. Must not know where anything comes from.

use std::collections::VecDeque;

use crate::fabric::{FabricEvent, PostResult};

/// Datagrams that wait at most; more are lost, as datagrams may be.
pub(super) const DATAGRAMS_MAX: usize = 4096;

/// Events in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    events: VecDeque<FabricEvent>,
    datagrams: usize,
    /// Datagrams that were lost here.
    pub(super) dropped: u64,
}

impl Inbox {
    /// A batch, or a fence, is done.
    pub(super) fn done(&mut self, tag: u64, result: PostResult) {
        self.events.push_back(FabricEvent::Done(tag, result));
    }

    /// A datagram came.
    pub(super) fn received(&mut self, bytes: Vec<u8>) {
        if self.datagrams >= DATAGRAMS_MAX {
            self.dropped += 1;
            return;
        }
        self.datagrams += 1;
        self.events.push_back(FabricEvent::Received(bytes));
    }

    /// The next event.
    pub(super) fn take(&mut self) -> Option<FabricEvent> {
        let event = self.events.pop_front()?;
        self.datagrams -= usize::from(matches!(event, FabricEvent::Received(_)));
        Some(event)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
