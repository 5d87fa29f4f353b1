//! Walks over runs that rest between two steps of a scan.
//!
//! Owns where they rest, and which do. Promises that none of them holds a file that does not count any more: somebody may have a scan for as long as he likes without a step of it, and the file would keep
//! its room. Must not know what is walked for.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;

use super::OpenRuns;
use super::cursor::RunsCursor;
use crate::sync::Mutex;

/// Those that are gone are looked for once there are so many, and once there are twice as many as were left.
const KNOWN_MIN: usize = 64;

/// Where one walk rests.
#[derive(Debug, Default)]
pub(crate) struct ParkedWalk(Mutex<Option<RunsCursor>>);

impl ParkedWalk {
    /// The walk that rests here, unless its runs have gone.
    pub(crate) fn take(&self) -> Option<RunsCursor> {
        self.0.lock().take()
    }

    fn let_go_unless(&self, current: &Arc<OpenRuns>) {
        let mut parked = self.0.lock();
        if parked.as_ref().is_some_and(|walk| !walk.is_of(current)) {
            *parked = None;
        }
    }
}

/// Where walks of one store rest.
#[derive(Debug, Default)]
pub(super) struct ParkedWalks(Mutex<KnownWalks>);

#[derive(Debug, Default)]
struct KnownWalks {
    all: Vec<Weak<ParkedWalk>>,
    looked_at: usize,
}

impl ParkedWalks {
    /// Has a walk rest at a place of its own, made when it first does.
    pub(super) fn park(
        &self,
        place: &mut Option<Arc<ParkedWalk>>,
        walk: RunsCursor,
        current: &ArcSwap<OpenRuns>,
    ) {
        let place = place.get_or_insert_with(|| {
            let place = Arc::default();
            let mut known = self.0.lock();
            if known.all.len() >= known.looked_at.max(KNOWN_MIN) {
                known.all.retain(|place| place.strong_count() > 0);
                known.looked_at = 2 * known.all.len();
            }
            known.all.push(Arc::downgrade(&place));
            place
        });
        *place.0.lock() = Some(walk);
        // Who changed the runs since has not seen it there.
        place.let_go_unless(&current.load());
    }

    /// Lets go of walks over other runs than these, the current ones.
    pub(super) fn let_go_unless(&self, current: &Arc<OpenRuns>) {
        let known: Vec<Arc<ParkedWalk>> = self.0.lock().all.iter().filter_map(Weak::upgrade).collect();
        known.iter().for_each(|place| place.let_go_unless(current));
    }
}
