//! Which shards are being written: a map of bits, as Linux md has one of regions.
//!
//! Owns its bytes, which shards it says, and when it says less, and whether a device is to be believed. Promises that as long as the two copies of a shard may differ after a crash, a bit on the device of the first copy says so, durably, and since before they could. Must not know what is written.
//!
//! It is the pair `writes` of the array's own key space on each device:
//!
//! ```text
//!  0   1         4
//!  +---+---------+-------- 128 ---------+
//!  | 1 |doubt 0 0| bit n % 8 of byte n / 8: shard n |
//!  +---+---------+----------------------+
//! ```
//!
//! * Byte 0 is the format. A bit says that the copies of a shard may differ; a device tells of the shards that it has the first copy of, and may tell of more.
//! * Byte 1, doubt, is 1 where the device may have lost changes to damage, and its copies were not compared since; else 0.
//!
//! A bit is stored before the first change of a shard, and stays while there are others. What makes everything durable ([`Command::Persist`](hedgerow_row::backend::Command::Persist)) removes those of shards that nobody has
//! written since the time before; so a shard that is written again and again costs nothing.

use super::array_device::ArrayDevice;
use super::map::{ArrayMap, SHARDS};
use crate::code::{KvError, Result};

/// Its key.
const KEY: &[u8] = b"writes";
const FORMAT: u8 = 1;
const DOUBT_AT: usize = 1;
const HEAD_BYTES: usize = 4;
const WRITES_BYTES: usize = HEAD_BYTES + SHARDS / 8;

/// A set of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShardSet([u64; SHARDS / 64]);

impl ShardSet {
    pub(super) const NONE: ShardSet = ShardSet([0; SHARDS / 64]);
    pub(super) const ALL: ShardSet = ShardSet([u64::MAX; SHARDS / 64]);

    pub(super) fn insert(&mut self, shard: u16) {
        self.0[usize::from(shard) / 64] |= 1 << (shard % 64);
    }

    pub(super) fn contains(&self, shard: u16) -> bool {
        self.0[usize::from(shard) / 64] >> (shard % 64) & 1 == 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == ShardSet::NONE.0
    }

    pub(super) fn with(self, other: &ShardSet) -> ShardSet {
        ShardSet(std::array::from_fn(|n| self.0[n] | other.0[n]))
    }

    pub(super) fn without(self, other: &ShardSet) -> ShardSet {
        ShardSet(std::array::from_fn(|n| self.0[n] & !other.0[n]))
    }

    fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..SHARDS as u16).filter(|&shard| self.contains(shard))
    }

    /// Those whose first copy is on a device.
    pub(super) fn of_device(&self, map: &ArrayMap, device: usize) -> ShardSet {
        let mut of = ShardSet::NONE;
        let is_of = |shard: &u16| usize::from(map.shards[usize::from(*shard)]) == device;
        self.iter().filter(is_of).for_each(|shard| of.insert(shard));
        of
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT, 0, 0, 0];
        self.0.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes
    }

    fn encode_doubted(&self) -> Vec<u8> {
        let mut bytes = self.encode();
        bytes[DOUBT_AT] = 1;
        bytes
    }

    /// With whether the device is doubted. None if these bytes are no such map.
    fn decode(bytes: &[u8]) -> Option<(ShardSet, bool)> {
        if bytes.len() != WRITES_BYTES
            || bytes[0] != FORMAT
            || bytes[DOUBT_AT] > 1
            || bytes[2..HEAD_BYTES] != [0, 0]
        {
            return None;
        }
        let mut shards = ShardSet::NONE;
        for shard in 0..SHARDS as u16 {
            if bytes[HEAD_BYTES + usize::from(shard) / 8] >> (shard % 8) & 1 == 1 {
                shards.insert(shard);
            }
        }
        Some((shards, bytes[DOUBT_AT] == 1))
    }
}

/// What a device is to say.
pub(super) struct SaidWrites(ShardSet);

impl SaidWrites {
    /// Durably.
    pub(super) fn store(&self, device: &mut ArrayDevice) -> Result<()> {
        device.store_own(KEY, self.0.encode())
    }
}

/// Shards that are being written, of an array that is open.
#[derive(Debug)]
pub(super) struct ShardWrites {
    /// Whose bits are stored. Nobody adds one but under the lock of the device that keeps it.
    marked: ShardSet,
    /// Those that somebody wrote since all was last made durable.
    recent: ShardSet,
}

impl ShardWrites {
    pub(super) const NONE: ShardWrites = ShardWrites { marked: ShardSet::NONE, recent: ShardSet::NONE };

    /// Somebody is about to write these shards, whose first copy is on a device: what that is to say before, if it says less.
    pub(super) fn begin(&mut self, map: &ArrayMap, number: usize, shards: &ShardSet) -> Option<SaidWrites> {
        self.recent = self.recent.with(shards);
        let is_said = shards.without(&self.marked).is_empty();
        (!is_said).then(|| SaidWrites(self.marked.with(shards).of_device(map, number)))
    }

    /// It says so.
    pub(super) fn mark(&mut self, shards: &ShardSet) {
        self.marked = self.marked.with(shards);
    }

    /// Before everything is made durable: what was written by now.
    pub(super) fn begin_flush(&mut self) -> ShardSet {
        std::mem::replace(&mut self.recent, ShardSet::NONE)
    }

    /// After everything was made durable since these were taken: of the others no copy differs, and a device needs not say so any more. What it says is not flushed: too many bits do no harm.
    pub(super) fn end_flush(
        &mut self,
        device: &mut ArrayDevice,
        number: usize,
        map: &ArrayMap,
        written: &ShardSet,
    ) -> Result<()> {
        let own = self.marked.of_device(map, number);
        let quiet = own.without(written).without(&self.recent);
        if quiet.is_empty() {
            return Ok(());
        }
        device.put_own(KEY, own.without(&quiet).encode())?;
        self.marked = self.marked.without(&quiet);
        Ok(())
    }

    /// All devices were flushed, and nobody writes.
    pub(super) fn forget(&mut self) {
        *self = ShardWrites::NONE;
    }
}

/// What a device says: the shards of which the copies may differ, all of them where nobody can read it; and whether the device is doubted.
fn said_on(device: &mut ArrayDevice) -> Result<(ShardSet, bool)> {
    let unread = (ShardSet::ALL, false);
    match device.own_value(KEY, WRITES_BYTES) {
        Ok(bytes) => {
            Ok(bytes.map_or((ShardSet::NONE, false), |bytes| ShardSet::decode(&bytes).unwrap_or(unread)))
        }
        Err(KvError::Damaged { .. } | KvError::ReadFault { .. } | KvError::BufferSmall { .. }) => Ok(unread),
        Err(error) => Err(error),
    }
}

/// Shards of which a device says that their copies may differ; all of them where nobody can read what it says.
pub(super) fn marked_on(device: &mut ArrayDevice) -> Result<ShardSet> {
    said_on(device).map(|(shards, _)| shards)
}

/// Whether a device may have lost changes to damage, and its copies were not compared since.
pub(super) fn is_doubted(device: &mut ArrayDevice) -> Result<bool> {
    said_on(device).map(|(_, is_doubted)| is_doubted)
}

/// A device says durably that it is, with the shards that it told of.
pub(super) fn say_doubted(device: &mut ArrayDevice) -> Result<()> {
    let shards = marked_on(device)?;
    device.store_own(KEY, shards.encode_doubted())
}

/// A device says that no copies differ, and that nobody doubts it, durably; also one that has said nothing so far, so that it has room to say more when it is full.
pub(super) fn clear_marks(device: &mut ArrayDevice) -> Result<()> {
    let none = ShardSet::NONE.encode();
    match device.own_value(KEY, WRITES_BYTES) {
        Ok(Some(said)) if said == none => Ok(()),
        _ => device.store_own(KEY, none),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut shards = ShardSet::NONE;
        [0, 9, 1_023].into_iter().for_each(|shard| shards.insert(shard));
        let bytes = shards.encode();
        assert_eq!(bytes.len(), 132);
        assert_eq!(bytes[..7], [1, 0, 0, 0, 1, 2, 0]);
        assert_eq!(bytes[131], 0x80);
        assert_eq!(ShardSet::decode(&bytes), Some((shards, false)));
        let doubted = shards.encode_doubted();
        assert_eq!((&doubted[..4], &doubted[4..]), (&[1, 1, 0, 0][..], &bytes[4..]));
        assert_eq!(ShardSet::decode(&doubted), Some((shards, true)));
        assert_eq!(ShardSet::decode(&[&[1, 2][..], &bytes[2..]].concat()), None);
        assert_eq!(ShardSet::decode(&bytes[1..]), None);
        assert_eq!(ShardSet::decode(&[&[2][..], &bytes[1..]].concat()), None);
        assert_eq!(shards.iter().collect::<Vec<_>>(), [0, 9, 1_023]);
        assert!(ShardSet::ALL.without(&ShardSet::ALL).is_empty());
    }
}
