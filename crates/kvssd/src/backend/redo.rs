//! What is left to be done of batches that were cut off.
//!
//! Owns the end of each intent as an array is opened. Promises that afterwards each batch happened whole, as often as this is begun, or cut off, before that. Must not know how a batch began.

use std::collections::BTreeMap;

use super::array_device::{ArrayDevice, MARK_BYTES, MemberDevices};
use super::failure::{ArrayError, ArrayResult};
use super::intent::{Intent, Intents, KeptIntent};
use super::layout::device_failed;
use super::map::ArrayMap;
use crate::code::KvError;

/// Does what is left of each intent, and removes it; those that a device has no room for stay, and are given back.
pub(super) fn redo(map: &ArrayMap, devices: &mut MemberDevices) -> ArrayResult<Intents> {
    // By their marks: of two that change one pair the later one has the last word. Where there are two copies two devices have each.
    let mut found: BTreeMap<u64, (Intent, Vec<usize>)> = BTreeMap::new();
    for (&number, device) in devices.iter_mut() {
        let intents = device.intents().map_err(|error| device_failed(device, error))?;
        for intent in intents {
            found.entry(intent.first_mark).or_insert_with(|| (intent, Vec::new())).1.push(number);
        }
    }
    let mut left = Intents::default();
    if found.is_empty() {
        return Ok(left);
    }
    let mut done: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for (mark, (intent, homes)) in found {
        match redo_one(map, devices, &intent)? {
            true => homes.into_iter().for_each(|home| done.entry(home).or_default().push(mark)),
            false => left.add(mark, kept(map, homes, intent)),
        }
    }
    // PERSIST: all that was left is durable before the intents go, and these are gone before a pair of theirs may be removed.
    flush_all(devices)?;
    for (number, marks) in done {
        let Some(device) = devices.get_mut(&number) else { continue };
        let dropped: Result<(), KvError> = device.drop_intents(&marks).into_iter().collect();
        dropped.map_err(|error| device_failed(device, error))?;
    }
    flush_all(devices)?;
    Ok(left)
}

/// Makes the changes of an intent that are not there; false if there is no room for one.
fn redo_one(map: &ArrayMap, devices: &mut MemberDevices, intent: &Intent) -> ArrayResult<bool> {
    let mut is_whole = true;
    let copies = (0..intent.changes.len()).flat_map(|place| {
        let (change, mark) = intent.change(place);
        map.copies_of(change.key.bytes()).map(move |number| (change, mark, number))
    });
    for (change, mark, number) in copies {
        let device = devices.get_mut(&number).ok_or(ArrayError::Closed)?;
        let seen = device.marks_of(vec![change.key.clone()]).pop();
        let is_there = match seen {
            Some(Ok(seen)) => seen.is_some_and(|seen| seen.number() >= mark),
            // Nobody can read what is there, nor replace it.
            Some(Err(KvError::Damaged { .. })) | None => true,
            Some(Err(error)) => return Err(device_failed(device, error)),
        };
        if is_there {
            continue;
        }
        // As much as there is to be had: what it says of that, the change says.
        let bytes = ArrayDevice::charge(
            change.key.bytes().len(),
            change.value.as_ref().map_or(0, Vec::len) + MARK_BYTES,
        );
        match device.make_room(bytes) {
            Ok(()) | Err(KvError::DeviceFull { .. }) => {}
            Err(error) => return Err(device_failed(device, error)),
        }
        match device.make_changes(vec![(change, mark)]).pop() {
            Some(Ok(())) | None => {}
            Some(Err(KvError::DeviceFull { .. })) => is_whole = false,
            Some(Err(error)) => return Err(device_failed(device, error)),
        }
    }
    Ok(is_whole)
}

fn kept(map: &ArrayMap, homes: Vec<usize>, intent: Intent) -> KeptIntent {
    let keys = intent.changes.into_iter().map(|change| change.key);
    let keys: Vec<_> = keys.collect();
    let devices = keys.iter().flat_map(|key| map.copies_of(key.bytes())).collect();
    KeptIntent { homes, devices, keys, is_half_done: true }
}

fn flush_all(devices: &mut MemberDevices) -> ArrayResult<()> {
    devices.values_mut().try_for_each(|device| device.flush().map_err(|error| device_failed(device, error)))
}
