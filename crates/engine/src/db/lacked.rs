//! What a thread lacked that reads only what is at hand.
//!
//! Owns: whether the calling thread is such a one ([`AtHandOnly`]), and what its reads lacked, of each store: places of its log, and blocks of its sorted tables with those that
//! were brought before. Promises: all of it is of bounded length. Must not know how anything is brought.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use crate::sst::BlockReads;
use crate::{ErrorKind, Result};

thread_local! {
    /// How many [`AtHandOnly`] live that have not been ended early.
    static ONLY: Cell<u32> = const { Cell::new(0) };
    /// How often [`AtHandOnly::end_early`] was called: those from before count no more.
    static ENDS: Cell<u64> = const { Cell::new(0) };
    /// What reads of this thread lacked, of whatever store.
    static LACKED: RefCell<Lacked> = const { RefCell::new(Lacked { places: Vec::new(), below: Vec::new() }) };
}

/// So many places are recorded at most. Who never takes them loses the older half; a call that is made again says anew what it lacks.
pub(super) const LACKED_MAX: usize = 4096;
/// Of so many stores what was looked for below the log is held. One more has the first forgotten.
const STORES_MAX: usize = 16;

/// Where the log was not in memory: offset and bytes.
pub(super) type Places = Vec<(u64, u64)>;

/// What a thread lacked.
#[derive(Debug)]
struct Lacked {
    /// Of logs, the oldest first.
    places: Vec<Lack>,
    /// Blocks of sorted tables.
    below: Vec<LackedBelow>,
}

/// What a thread lacked of a store's sorted tables, and what was brought for it.
#[derive(Debug)]
struct LackedBelow {
    /// [`DiskWaits::store_id`](super::disk_waits::DiskWaits::store_id).
    store: u64,
    reads: BlockReads,
    /// Somebody was refused for it.
    is_refused: bool,
}

impl Lacked {
    /// Takes in what is held of one more store.
    fn hold(&mut self, store: u64, reads: BlockReads) -> &mut LackedBelow {
        self.below.retain(|known| known.store != store);
        self.below.drain(..usize::from(self.below.len() == STORES_MAX));
        self.below.push(LackedBelow { store, reads, is_refused: false });
        self.below.last_mut().expect("it was pushed")
    }
}

/// Bytes that a read lacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lack {
    /// [`DiskWaits::store_id`](super::disk_waits::DiskWaits::store_id).
    pub(super) store: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

pub(super) fn record_lack(lack: Lack) {
    LACKED.with_borrow_mut(|Lacked { places, .. }| {
        if places.len() == LACKED_MAX {
            places.drain(..LACKED_MAX / 2);
        }
        places.push(lack);
    });
}

/// Has `look` look below the log by what is at hand, and by what was brought, where the calling thread reads nothing else: it fails with `NotInMemory` if something lacks
/// that it wants of what it is given. `None` where the thread waits: if it may, and what was brought does not answer; or if the call has had as much brought as may be held for one.
pub(super) fn look_below<R>(
    store: u64,
    look: impl FnOnce(&mut BlockReads) -> Result<R>,
) -> Option<Result<R>> {
    match reads_at_hand_only() {
        true => look_at_hand(store, look),
        false => look_at_brought(store, look),
    }
}

/// The same without what was brought for a thread that waits: for a look that cannot be made again from where it failed.
pub(super) fn look_at_hand<R>(
    store: u64,
    look: impl FnOnce(&mut BlockReads) -> Result<R>,
) -> Option<Result<R>> {
    if !reads_at_hand_only() {
        return None;
    }
    LACKED.with_borrow_mut(|lacked| {
        let known = match lacked.below.iter().position(|known| known.store == store) {
            Some(at) => &mut lacked.below[at],
            None => lacked.hold(store, BlockReads::at_hand()),
        };
        if known.reads.is_full() {
            return None;
        }
        let looked = look(&mut known.reads);
        known.is_refused |= looked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotInMemory);
        Some(looked)
    })
}

/// The same for a thread that waits, and for which something was brought before it began to: `None` if that is not enough.
fn look_at_brought<R>(store: u64, look: impl FnOnce(&mut BlockReads) -> Result<R>) -> Option<Result<R>> {
    LACKED.with_borrow_mut(|lacked| {
        let known = lacked.below.iter_mut().find(|known| known.store == store && known.reads.is_holding())?;
        let looked = look(&mut known.reads);
        match looked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotInMemory) {
            true => {
                known.reads.want_nothing();
                None
            }
            false => Some(looked),
        }
    })
}

/// What reads of the calling thread lacked of a store since it was last asked, if any was refused; what was brought before goes with that, or goes.
pub(super) fn take_lacked(store: u64) -> Option<(Places, Option<BlockReads>)> {
    let (mut places, mut below) = (Vec::new(), None);
    LACKED.with_borrow_mut(|lacked| {
        lacked.places.retain(|lack| {
            if lack.store == store {
                places.push((lack.offset, lack.bytes));
            }
            lack.store != store
        });
        if let Some(at) = lacked.below.iter().position(|known| known.store == store) {
            below = Some(lacked.below.remove(at));
        }
    });
    let is_refused = !places.is_empty() || below.as_ref().is_some_and(|below| below.is_refused);
    is_refused.then(|| (places, below.map(|below| below.reads)))
}

/// Has the calling thread's looks into sorted tables of a store find what was read for `reads`.
pub(super) fn hold_below(store: u64, reads: BlockReads) {
    LACKED.with_borrow_mut(|lacked| {
        lacked.hold(store, reads);
    });
}

/// Whether the calling thread reads only what is at hand.
#[inline]
pub(super) fn reads_at_hand_only() -> bool {
    ONLY.get() != 0
}

/// While it lives, the reads of its thread do not wait for the disk: see [`Db::at_hand_only`](super::Db::at_hand_only).
#[derive(Debug)]
#[must_use = "dropped at once it does nothing"]
pub struct AtHandOnly {
    /// [`ENDS`] when it was made.
    ends: u64,
    /// It is of the thread it was made by.
    stays: PhantomData<*const ()>,
}

impl AtHandOnly {
    pub(super) fn new() -> AtHandOnly {
        ONLY.set(ONLY.get() + 1);
        AtHandOnly { ends: ENDS.get(), stays: PhantomData }
    }

    /// Has the calling thread wait for the disk again, though some of these live: its caller has begun what it cannot begin anew.
    pub fn end_early() {
        ONLY.set(0);
        ENDS.set(ENDS.get() + 1);
    }
}

impl Drop for AtHandOnly {
    fn drop(&mut self) {
        if self.ends == ENDS.get() {
            ONLY.set(ONLY.get() - 1);
        }
    }
}
