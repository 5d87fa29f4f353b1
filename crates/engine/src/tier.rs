//! How the engine comes by the bytes of a tier.
//!
//! Owns the one promise that the engine gives for all loads from a tier and all stores to it, and the reasons why it is kept. Promises that the
//! bytes have one holder at a time. Must not know what the bytes mean.
#![allow(unsafe_code)]

use std::sync::Arc;

use hedgerow_device::{FastTier, TierBytes};

use crate::Result;

/// The bytes of `tier`. Only the log, with the root that it stores and the space that it takes, and the cache, of its own memory, ask for them while a store is open, and
/// they lend them to nobody: what others want of the bytes is a method of theirs. Beside them, whoever looks for the identity of a store, or at the root of a backup that is to
/// be gone on with, has the bytes for that look alone, and stores nothing (`db/identity.rs`, `db/backup/target.rs`).
///
/// # Errors
/// `Locked` while another store, or another look at one, has them.
pub(crate) fn bytes_of(tier: Arc<FastTier>) -> Result<TierBytes> {
    // SAFETY: the rules of `TierBytes::new`, by their numbers:
    // 1. The log writes records where a reservation, which one appender has, says (`log/appender.rs`), and headers of segments and the root under
    //    their locks (`log/segments.rs`, `log.rs`); before anybody can find them, or while all who could are kept out. The space gives back what
    //    its pool says is free (`space.rs`). Leaves of groups are written to extents that were taken for them, before any group leads there (`log/leaves.rs`). The cache writes to places that its pages gave it, and no slot leads to (`cache.rs`). What a killed
    //    process left is stored again by whoever opens the store, before anybody else knows of it (`log/open.rs`).
    // 2. Records are lent from a guard (`log/view.rs`, `Cache::raw_record`), and a segment, an entry or an extent of leaves is free only once no guard from before
    //    is held. Who walks a segment without a guard keeps it from being freed: gc its victims, a backup what it copies.
    // 3. The words of the cache's entries, the first words of records that are invalidated, and the words of a merge in place are the ones.
    // 4. A merge in place (`consolidate/in_place.rs`) changes rows that say so in their flags (`log/format/mergeable.rs` has which of their bytes) and have
    //    deltas over them. Who reads one with its deltas reads copies (`db/chain.rs`); who saw it without has a guard that keeps merges from it, or keeps
    //    them out altogether, as gc, sweeps and backups do. Records are held as `SharedBytes`, so that no slice outlives a look.
    // 5. The file has a name of its own in the store's directory, and a lock, which another store, a copy and a repair ask for. Against programs that ask for
    //    none there is no help.
    // 6. Words are loaded where a record may be invalidated or merged, and in the cache: a store that was opened for reading does neither and has none.
    Ok(unsafe { TierBytes::new(tier) }?)
}

/// Flips bits of a byte under an open store, as a decayed medium would: for a test, on the thread that alone uses the store.
#[cfg(test)]
pub(crate) fn rot(medium: &hedgerow_device::CrashSim, offset: u64, xor: u8) {
    // SAFETY: that thread is here. The store has no loops of its own (`Options::background` is off), and a test holds no row or record meanwhile.
    unsafe { medium.corrupt(offset, xor) };
}
