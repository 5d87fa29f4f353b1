//! Copies of shards that are made the same again as an array is opened.
//!
//! Owns which copy has the last word. Promises that afterwards both copies of each shard are the same, pair by pair, as often as this is begun, or cut off, before that; and that no pair of a shard that was not being written
//! is compared or changed. Must not know why they differ.
//!
//! The first copy has the last word: both have all that was durable when somebody was told so, and what is on the first one is a prefix of the commands on its device. The marks of pairs tell whether two
//! of them are the same: each is given once. Where the device of the first copy may have lost changes to damage the second one has it, and all shards of that device are compared. The device says of itself that it is such a one until that is done ([`is_doubted`](super::writes::is_doubted)).

use std::collections::BTreeSet;

use super::array_device::{ArrayDevice, MemberDevices};
use super::failure::{ArrayError, ArrayResult};
use super::layout::device_failed;
use super::map::{ArrayMap, SHARDS};
use super::writes::{ShardSet, clear_marks, marked_on};
use crate::code::{KvError, Result as KvResult};
use crate::command::PairKey;

/// Keys whose marks are looked at together.
const TOGETHER: usize = 64;

/// Shards whose copies may differ. Those of damaged devices are of the other copy from now on, if that is whole.
pub(super) fn suspected(
    map: &mut ArrayMap,
    members: &mut MemberDevices,
    damaged: &BTreeSet<u16>,
) -> ArrayResult<ShardSet> {
    let mut shards = ShardSet::NONE;
    for device in members.values_mut() {
        let marked = marked_on(device).map_err(|error| device_failed(device, error))?;
        shards = shards.with(&marked);
    }
    for shard in 0..SHARDS {
        let Some(second) = map.second(shard) else { continue };
        let (first_damaged, second_damaged) =
            (damaged.contains(&map.shards[shard]), damaged.contains(&second));
        if first_damaged || second_damaged {
            shards.insert(shard as u16);
        }
        if first_damaged && !second_damaged {
            map.swap(shard);
            map.switches += 1;
        }
    }
    Ok(shards)
}

/// Makes the copies of these shards the same, and says durably that they are.
pub(super) fn resync(map: &ArrayMap, members: &mut MemberDevices, shards: &ShardSet) -> ArrayResult<()> {
    if !shards.is_empty() {
        let numbers: Vec<usize> = members.keys().copied().collect();
        // What is to go first: it may be needed for what comes.
        for is_first in [false, true] {
            for &number in &numbers {
                for key in suspected_keys(map, members, number, is_first, shards)?.chunks(TOGETHER) {
                    resync_some(map, members, number, key)?;
                }
            }
        }
        each(members, ArrayDevice::flush)?;
    }
    // PERSIST: the copies are the same durably before no bit says that they may not be.
    each(members, clear_marks)
}

fn each(members: &mut MemberDevices, step: impl Fn(&mut ArrayDevice) -> KvResult<()>) -> ArrayResult<()> {
    members.values_mut().try_for_each(|device| step(device).map_err(|error| device_failed(device, error)))
}

/// The keys of a device that are of these shards, and of which it has the first copy, or the second.
fn suspected_keys(
    map: &ArrayMap,
    members: &mut MemberDevices,
    number: usize,
    is_first: bool,
    shards: &ShardSet,
) -> ArrayResult<Vec<PairKey>> {
    let device = members.get_mut(&number).ok_or(ArrayError::Closed)?;
    let is_wanted = |key: &PairKey| {
        let of = if is_first { Some(map.device_of(key.bytes())) } else { map.second_of(key.bytes()) };
        of == Some(number) && map.second_of(key.bytes()).is_some() && shards.contains(map.shard(key.bytes()))
    };
    let mut list = || {
        let iterator = device.begin_keys()?;
        let mut wanted = Vec::new();
        loop {
            let (keys, is_last) = device.next_keys(iterator)?;
            wanted.extend(keys.into_iter().filter(is_wanted));
            if is_last {
                device.end_keys()?;
                return Ok(wanted);
            }
        }
    };
    let listed: KvResult<Vec<PairKey>> = list();
    listed.map_err(|error| device_failed(device, error))
}

/// Has the second copies of some keys, which one of their two devices has, be as the first ones.
fn resync_some(
    map: &ArrayMap,
    members: &mut MemberDevices,
    number: usize,
    keys: &[PairKey],
) -> ArrayResult<()> {
    for key in keys {
        let Some(second) = map.second_of(key.bytes()) else { continue };
        let first = map.device_of(key.bytes());
        let other = if number == first { second } else { first };
        let mut mark = |number: usize| {
            let device = members.get_mut(&number).ok_or(ArrayError::Closed)?;
            let mark = device.marks_of(vec![key.clone()]).pop().unwrap_or(Ok(None));
            match mark {
                Ok(mark) => Ok(Ok(mark)),
                // A pair that nobody can read: what the other one has is as good as there is.
                Err(KvError::Damaged { .. } | KvError::ReadFault { .. }) => Ok(Err(())),
                Err(error) => Err(device_failed(device, error)),
            }
        };
        let (of_this, of_other) = (mark(number)?, mark(other)?);
        if of_this == of_other || of_this.is_err() || of_other.is_err() {
            continue;
        }
        let source = members.get_mut(&first).ok_or(ArrayError::Closed)?;
        let value = match source.marked_value(key) {
            Err(KvError::Damaged { .. } | KvError::ReadFault { .. }) => continue,
            value => value.map_err(|error| device_failed(source, error))?,
        };
        let target = members.get_mut(&second).ok_or(ArrayError::Closed)?;
        target.set_marked(key, value).map_err(|error| device_failed(target, error))?;
    }
    Ok(())
}
