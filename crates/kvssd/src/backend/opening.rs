//! Making and opening an array.
//!
//! Owns the order of what is stored for it. Promises that an array is opened only with all of its devices, each in its place and none older than the others; that one whose making was cut off is made again, since nothing
//! was stored in it; and that no pair is lost to a device that was taken for a new one. Must not know what sessions do.
//!
//! An array with two copies is opened without devices that are missing, broken or older than the others, if there is another copy of each of their shards: they are put out in the map that the opening raises, before any pair
//! is stored. A device that was put out before is not looked at. Whether the newest map that was found is the newest that there is, and no device is older than it says, nobody knows who has not all of its devices: but those that are not there
//! can have gone on without these only if they have a copy of each shard. Then the opening is refused, unless the options say that these are right ([`KvssdOptions::alone`]).
//!
//! An array is made in two steps: a map of generation 0 on every device, and then, once all of them are durable, one of generation 1. So where any map has a generation above 0 every device had one, and a
//! device without is not the one that was there. Each opening first gives all devices the highest generation that one has, and then raises it twice, on one device after the other; no pair is stored before. So what an opening that
//! was cut off leaves is one generation apart, and whatever was there before an opening is two behind, a copy of a device among it.

use std::collections::{BTreeMap, BTreeSet};

use hedgerow_device::{DeviceError, FastTier, FastTierOptions, Random};

use super::array_device::{ArrayDevice, MemberDevices};
use super::failure::{ArrayError, ArrayResult};
use super::intent::Intents;
use super::layout::device_failed;
use super::map::{ArrayMap, DEVICES_MAX, NoMap};
use super::redo::redo;
use super::resync::{resync, suspected};
use super::writes::{ShardSet, clear_marks, is_doubted, say_doubted};
use super::{ArrayMedium, KvssdOptions, MARKS_RESERVED};
use crate::code::{KvError, Result as KvResult};
use crate::command::{KvAnswer, KvCommand, PairKey, SpaceId, SpaceInfo};
use crate::device::{Completion, Device, Out};
use crate::flash::geometry::Geometry;

/// Where rows are on a device.
const ROWS: &[u8] = b"hedgerow.rows";
/// Where what the array says of itself is.
const OWN: &[u8] = b"hedgerow.array";
/// The key of the map there.
const MAP_KEY: &[u8] = b"map";
/// More than a map of any format that is known.
const MAP_BYTES_READ: usize = 4 << 10;
const DEVICE_BYTES: u64 = 1 << 30;
/// Marks that are passed over where a device may have lost the map that says which were set aside.
const MARKS_PERHAPS_GIVEN: u64 = MARKS_RESERVED << 16;

/// What is in the place of a device.
pub(super) enum MetDevice {
    /// Nothing, or a device whose making was cut off.
    Nothing,
    /// A device without the key spaces of an array: new, or its making was cut off.
    Unfinished(Box<Device>),
    /// A device, and its map if it has one.
    Device(Box<ArrayDevice>, Option<ArrayMap>),
}

impl MetDevice {
    fn map(&self) -> Option<&ArrayMap> {
        match self {
            MetDevice::Device(_, map) => map.as_ref(),
            MetDevice::Nothing | MetDevice::Unfinished(_) => None,
        }
    }
}

/// What a device has of an array.
pub(super) enum FoundMap {
    /// Not the key spaces of one.
    Unfinished,
    /// The key spaces of one, for rows and for what the array says of itself, and the map if it is there.
    Spaces([SpaceId; 2], Option<ArrayMap>),
}

/// Opens the array, or makes it where none is; with what is left of batches that could not be finished.
pub(super) fn open(
    media: &[ArrayMedium],
    options: &KvssdOptions,
) -> ArrayResult<(ArrayMap, MemberDevices, Intents)> {
    let given = media.len();
    if given == 0 || given > DEVICES_MAX {
        return Err(ArrayError::Count { given, max: DEVICES_MAX });
    }
    if let Some(copies) = options.copies.filter(|&copies| copies == 0 || copies > 2.min(given)) {
        return Err(ArrayError::Copies { copies, devices: given });
    }
    // Devices that failed as they were opened.
    let mut failed: BTreeMap<usize, ArrayError> = BTreeMap::new();
    loop {
        let (map, members) = find(media, options, &failed)?;
        let has_copies = map.copies() > 1;
        match begin(map, members) {
            Err(error) if has_copies => {
                let place = broken_place(&error).filter(|place| !failed.contains_key(place));
                let Some(place) = place else { return Err(error) };
                failed.insert(place, error);
            }
            begun => return begun,
        }
    }
}

/// The map that is in force and the devices that have it, or a new one.
fn find(
    media: &[ArrayMedium],
    options: &KvssdOptions,
    failed: &BTreeMap<usize, ArrayError>,
) -> ArrayResult<(ArrayMap, MemberDevices)> {
    let meet = |(place, medium)| match failed.get(&place) {
        Some(error) => Err(error.clone()),
        None => meet(place, medium, options),
    };
    let met: Vec<ArrayResult<MetDevice>> = media.iter().enumerate().map(meet).collect();
    let is_made = |met: &ArrayResult<MetDevice>| matches!(met, Ok(MetDevice::Device(_, Some(map))) if map.generation > 0);
    let maps = met.iter().map(|met| met.as_ref().ok().and_then(MetDevice::map));
    let has_copies = newest_of(maps.flatten()).is_some_and(|map| map.copies() > 1);
    if met.iter().any(is_made) && has_copies {
        return copied_members(met, options);
    }
    let is_made = met.iter().any(is_made);
    let met = met.into_iter().collect::<ArrayResult<Vec<MetDevice>>>()?;
    let (map, members) = match is_made {
        true => members(met)?,
        false => make(media, met, options)?,
    };
    check_copies(&map, options)?;
    Ok((map, members))
}

/// Refuses to open an array as one that it is not.
fn check_copies(map: &ArrayMap, options: &KvssdOptions) -> ArrayResult<()> {
    match options.copies {
        Some(asked) if asked != map.copies() => Err(ArrayError::CopiesDiffer { asked, has: map.copies() }),
        _ => Ok(()),
    }
}

/// Raises the map, and has everything be as if nothing had been cut off.
fn begin(map: ArrayMap, members: MemberDevices) -> ArrayResult<(ArrayMap, MemberDevices, Intents)> {
    let (map, mut members, suspected) = raise(map, members)?;
    if map.copies() > 1 {
        // Before what is left of batches, which is made on both copies.
        resync(&map, &mut members, &suspected)?;
    }
    let intents = redo(&map, &mut members)?;
    Ok((map, members, intents))
}

/// The device that cannot be used, by its place, where another copy may be.
fn broken_place(error: &ArrayError) -> Option<usize> {
    let is_broken = |error: &KvError| match error {
        KvError::Medium(error) => {
            !matches!(**error, DeviceError::Locked { .. } | DeviceError::ReadOnly { .. })
        }
        KvError::Damaged { .. }
        | KvError::ReadFault { .. }
        | KvError::Truncated { .. }
        | KvError::Closed { .. }
        | KvError::DeviceFull { .. }
        | KvError::NoDevice => true,
        _ => false,
    };
    match error {
        ArrayError::Device { device, error } if is_broken(error) => Some(device - 1),
        ArrayError::Missing { device } | ArrayError::Map { device } | ArrayError::Stale { device, .. } => {
            Some(device - 1)
        }
        ArrayError::Foreign { device, what } if *what == NO_ARRAY => Some(device - 1),
        _ => None,
    }
}

/// The device on a medium, as far as there is one.
pub(super) fn meet(number: usize, medium: &ArrayMedium, options: &KvssdOptions) -> ArrayResult<MetDevice> {
    let device = number + 1;
    let failed = |error| ArrayError::Device { device, error };
    let Some(tier) = tier_of(medium, None, false).map_err(failed)? else { return Ok(MetDevice::Nothing) };
    let mut opened = match Device::open(tier, options.device.clone()) {
        Ok(opened) => opened,
        Err(KvError::NoDevice) => return Ok(MetDevice::Nothing),
        Err(error) => return Err(failed(error)),
    };
    Ok(match find_map(device, &mut opened)? {
        FoundMap::Unfinished => MetDevice::Unfinished(Box::new(opened)),
        FoundMap::Spaces(spaces, map) => {
            let mut device = ArrayDevice::new(number, opened, spaces);
            device.set_generation(map.as_ref().map_or(0, |map| map.generation));
            let has_copies = map.as_ref().is_some_and(|map| map.copies() > 1);
            if has_copies && device.device().open_report().may_undo_changes() {
                // PERSIST: a device tells of damage once. That it is not to be believed it says itself from here on, until its copies were compared (`resync`): however often an opening is cut off, refused, or begun anew without another device.
                say_doubted(&mut device).map_err(failed)?;
            }
            MetDevice::Device(Box::new(device), map)
        }
    })
}

/// What a device, by its place from 1, has of an array.
pub(super) fn find_map(device: usize, opened: &mut Device) -> ArrayResult<FoundMap> {
    let failed = |error| ArrayError::Device { device, error };
    let spaces = spaces(opened).map_err(failed)?;
    if spaces.iter().any(|space| space.name.is_empty()) {
        return Err(failed(KvError::Damaged { offset: 0, what: "the name of a key space" }));
    }
    if spaces.iter().any(|space| space.name != ROWS && space.name != OWN) {
        return Err(ArrayError::Foreign { device, what: "another program: it has other key spaces" });
    }
    let has_rows = spaces.iter().any(|space| space.name == ROWS && space.pairs > 0);
    let id = |name: &[u8]| spaces.iter().find(|space| space.name == name).map(|space| space.id);
    let (Some(rows), Some(own)) = (id(ROWS), id(OWN)) else {
        return match has_rows {
            true => Err(ArrayError::Map { device }),
            false => Ok(FoundMap::Unfinished),
        };
    };
    let map = map_bytes(opened, own).map_err(failed)?;
    match map.as_deref().map(ArrayMap::decode) {
        None if has_rows => Err(ArrayError::Map { device }),
        None => Ok(FoundMap::Spaces([rows, own], None)),
        // Rows are stored once a map is in force: that one is damaged, and this is what was there before it.
        Some(Ok(map)) if map.generation == 0 && has_rows => Err(ArrayError::Map { device }),
        Some(Ok(map)) => Ok(FoundMap::Spaces([rows, own], Some(map))),
        Some(Err(NoMap::Version(found))) => Err(ArrayError::Version { device, found }),
        Some(Err(NoMap::Damaged)) => Err(ArrayError::Map { device }),
    }
}

/// The devices of an array that was made, checked against each other; and the newest map.
fn members(met: Vec<MetDevice>) -> ArrayResult<(ArrayMap, MemberDevices)> {
    let maps: Vec<Option<ArrayMap>> = met.iter().map(|met| met.map().cloned()).collect();
    let newest = newest_of(maps.iter().flatten()).cloned();
    let Some(newest) = newest else { return Err(ArrayError::Missing { device: 1 }) };
    check_removed(maps.iter().map(Option::as_ref), &newest)?;
    for (place, map) in maps.iter().enumerate() {
        check_member(place, map.as_ref(), &newest, maps.len())?;
    }
    let mut members = MemberDevices::new();
    for (place, met) in met.into_iter().enumerate() {
        let (number, device) = member(place, met)?;
        members.insert(number, device);
    }
    Ok((newest, members))
}

/// A device with its number.
fn member(place: usize, met: MetDevice) -> ArrayResult<(usize, ArrayDevice)> {
    match met {
        MetDevice::Device(device, Some(map)) => Ok((usize::from(map.device), *device)),
        MetDevice::Device(_, None) | MetDevice::Unfinished(_) => {
            Err(ArrayError::Foreign { device: place + 1, what: NO_ARRAY })
        }
        MetDevice::Nothing => Err(ArrayError::Missing { device: place + 1 }),
    }
}

/// The same of an array with two copies: those that can be used, with a map in which the others are out.
fn copied_members(
    met: Vec<ArrayResult<MetDevice>>,
    options: &KvssdOptions,
) -> ArrayResult<(ArrayMap, MemberDevices)> {
    let maps: Vec<Option<ArrayMap>> =
        met.iter().map(|met| met.as_ref().ok().and_then(MetDevice::map).cloned()).collect();
    let newest = newest_of(maps.iter().flatten()).cloned();
    let Some(newest) = newest else { return Err(ArrayError::Missing { device: 1 }) };
    check_copies(&newest, options)?;
    let found = met.iter().enumerate().map(|(place, met)| found_map(place, met)).collect();
    let (map, _) = chosen(found, newest, options.alone)?;
    let mut members = MemberDevices::new();
    for (place, met) in met.into_iter().enumerate() {
        // What cannot be used is out.
        let Ok((number, device)) = met.and_then(|met| member(place, met)) else { continue };
        if !map.out.contains(&(number as u16)) {
            members.insert(number, device);
        }
    }
    Ok((map, members))
}

/// What is in a place, as a map or as why there is none that counts.
fn found_map(place: usize, met: &ArrayResult<MetDevice>) -> ArrayResult<&ArrayMap> {
    match met {
        Ok(MetDevice::Device(_, Some(map))) => Ok(map),
        Ok(MetDevice::Device(_, None) | MetDevice::Unfinished(_)) => {
            Err(ArrayError::Foreign { device: place + 1, what: NO_ARRAY })
        }
        Ok(MetDevice::Nothing) => Err(ArrayError::Missing { device: place + 1 }),
        Err(error) => Err(error.clone()),
    }
}

/// The newest map, with all devices out that an array with two copies is opened without; and why each of these goes out that was not before, by its place from 1.
pub(super) fn chosen(
    found: Vec<ArrayResult<&ArrayMap>>,
    mut newest: ArrayMap,
    alone: bool,
) -> ArrayResult<(ArrayMap, BTreeMap<usize, ArrayError>)> {
    let maps = || found.iter().map(|found| found.as_ref().ok().copied());
    check_removed(maps(), &newest)?;
    check_diverged(maps(), &newest)?;
    let (given, has) = (found.len(), newest.members.len());
    if given != has {
        return Err(ArrayError::Devices { given, has });
    }
    let numbers: Vec<u16> = newest.members.iter().copied().collect();
    let mut lost = BTreeMap::new();
    for ((place, found), number) in found.into_iter().enumerate().zip(numbers) {
        let checked = found.and_then(|map| check_member(place, Some(map), &newest, given));
        match checked {
            Ok(()) => {}
            Err(error) => match broken_place(&error) {
                Some(_) if newest.out.contains(&number) => {}
                Some(_) => drop(lost.insert(number, error)),
                None => return Err(error),
            },
        }
    }
    let place_of = |number: &u16| newest.place_of(*number).map_or(0, |place| place + 1);
    let reasons = lost.iter().map(|(number, error)| (place_of(number), error.clone())).collect();
    put_out_lost(&mut newest, lost, alone)?;
    Ok((newest, reasons))
}

/// Opens without the devices that cannot be used, if there is a copy of everything on the others.
fn put_out_lost(map: &mut ArrayMap, lost: BTreeMap<u16, ArrayError>, alone: bool) -> ArrayResult<()> {
    let numbers: BTreeSet<u16> = lost.keys().copied().collect();
    let Some(why) = lost.into_values().next().map(Box::new) else { return Ok(()) };
    let shards = map.shards_only_on(&numbers);
    let places =
        |map: &ArrayMap| numbers.iter().filter_map(|number| Some(map.place_of(*number)? + 1)).collect();
    if shards > 0 {
        return Err(ArrayError::NoCopy { shards, devices: places(map), why });
    }
    if map.may_have_all(&numbers) && !alone {
        return Err(ArrayError::Undecided { devices: places(map), why });
    }
    numbers.iter().for_each(|number| map.put_out(*number));
    Ok(())
}

/// Refuses devices of which each went on without the other: nobody knows which of them is right.
pub(super) fn check_diverged<'m>(
    maps: impl Iterator<Item = Option<&'m ArrayMap>>,
    newest: &ArrayMap,
) -> ArrayResult<()> {
    for (place, map) in maps.enumerate() {
        let Some(map) = map.filter(|map| map.array_id == newest.array_id) else { continue };
        let mut left = map.in_members();
        let is_alone = left.next() == Some(map.device) && left.next().is_none();
        if is_alone && newest.out.contains(&map.device) {
            return Err(ArrayError::Diverged { device: place + 1 });
        }
    }
    Ok(())
}

/// The map that is in force. Among those of several arrays the one that most are of is meant.
pub(super) fn newest_of<'m>(maps: impl Iterator<Item = &'m ArrayMap> + Clone) -> Option<&'m ArrayMap> {
    let of_id = |id: u128| maps.clone().filter(move |map| map.array_id == id);
    let id = maps.clone().map(|map| map.array_id).max_by_key(|&id| of_id(id).count());
    id.and_then(|id| of_id(id).max_by_key(|map| (map.generation, map.marks)))
}

/// What a device without a map is of.
pub(super) const NO_ARRAY: &str = "no array: it is new, and not the one that was in its place";

/// Refuses devices that are of the array no more: by the newest map, or by their own copy, since another device may have the number by now.
pub(super) fn check_removed<'m>(
    maps: impl Iterator<Item = Option<&'m ArrayMap>>,
    newest: &ArrayMap,
) -> ArrayResult<()> {
    let is_of = |map: &ArrayMap, of: &ArrayMap| of.members.contains(&map.device);
    for (place, map) in maps.enumerate() {
        let Some(map) = map.filter(|map| map.array_id == newest.array_id) else { continue };
        if !is_of(map, newest) || !is_of(map, map) {
            return Err(ArrayError::Removed { device: place + 1 });
        }
    }
    Ok(())
}

/// Refuses a device that is not what the newest map says.
pub(super) fn check_member(
    place: usize,
    map: Option<&ArrayMap>,
    newest: &ArrayMap,
    given: usize,
) -> ArrayResult<()> {
    let has = newest.members.len();
    let Some(map) = map else {
        // How many there are is told first.
        return if has == given { Ok(()) } else { Err(ArrayError::Devices { given, has }) };
    };
    let device = place + 1;
    if map.array_id != newest.array_id {
        return Err(ArrayError::Foreign { device, what: "another array" });
    }
    if has != given {
        return Err(ArrayError::Devices { given, has });
    }
    let is = newest.place_of(map.device);
    if is != Some(place) {
        return Err(ArrayError::Order { given: device, is: is.unwrap_or_default() + 1 });
    }
    if map.generation + 1 < newest.generation {
        let (generation, newest) = (map.generation, newest.generation);
        return Err(ArrayError::Stale { device, generation, newest });
    }
    Ok(())
}

/// A map that is not in force yet on every device, those that are not there made.
fn make(
    media: &[ArrayMedium],
    met: Vec<MetDevice>,
    options: &KvssdOptions,
) -> ArrayResult<(ArrayMap, MemberDevices)> {
    let failed = |number| move |error| ArrayError::Device { device: number + 1, error };
    // All of them are there and ours before one is made: what is given twice, or where none can be, is refused then. And those that are there before a file is
    // made: where one of them is refused there is no more than before.
    let mut tiers: Vec<Option<FastTier>> = media.iter().map(|_| None).collect();
    for creates in [false, true] {
        for (number, tier) in tiers.iter_mut().enumerate() {
            if matches!(met[number], MetDevice::Nothing) && tier.is_none() {
                let geometry = new_geometry(options);
                *tier = tier_of(&media[number], Some(geometry), creates).map_err(failed(number))?;
            }
        }
    }
    let mut devices = MemberDevices::new();
    for (number, (met, tier)) in met.into_iter().zip(tiers).enumerate() {
        let made = match met {
            MetDevice::Device(device, _) => Ok(*device),
            MetDevice::Unfinished(device) => finish(number, *device),
            MetDevice::Nothing => {
                tier.ok_or(KvError::NoDevice).and_then(|tier| format(number, tier, options))
            }
        };
        devices.insert(number, made.map_err(failed(number))?);
    }
    let map = ArrayMap::new(new_id(media), media.len() as u16);
    let map = if options.copies == Some(2) { map.with_copies() } else { map };
    for (&number, device) in &mut devices {
        store_map(number, device, &map)?;
    }
    Ok((map, devices))
}

/// Stores the map on each device, with a generation that is two above all that there were, and with marks that are set aside. Shards that were on the move are where they went from.
fn raise(map: ArrayMap, mut members: MemberDevices) -> ArrayResult<(ArrayMap, MemberDevices, ShardSet)> {
    for (&number, device) in &mut members {
        if device.generation() != map.generation {
            store_map(number, device, &map)?;
        }
    }
    // A damaged device may have shown an older map than it had, after which marks were given. And pairs that had been deleted as others' are there again.
    let mut older: BTreeSet<u16> = BTreeSet::new();
    for (&number, device) in &mut members {
        let has_lost = device.device().open_report().may_undo_changes();
        let is_older = match map.copies() {
            1 => has_lost,
            _ => has_lost || is_doubted(device).map_err(|error| device_failed(device, error))?,
        };
        older.extend(is_older.then_some(number as u16));
    }
    let given = if older.is_empty() { 0 } else { MARKS_PERHAPS_GIVEN };
    let marks = map.marks.saturating_add(given).saturating_add(MARKS_RESERVED);
    let mut map = ArrayMap { marks, ..map };
    map.cancel_moves();
    if map.members.len() > 1 {
        map.strays.extend(&older);
    }
    let suspected = match map.copies() {
        1 => ShardSet::NONE,
        _ => suspected(&mut map, &mut members, &older)?,
    };
    // PERSIST: on one device after the other, each durable (`ArrayDevice::store_own`) before the next and all before any pair is stored: so no device is behind another by more than
    // one generation, unless it was left out, and no mark is given that an opening may give again.
    for _ in 0..2 {
        map.generation += 1;
        for (&number, device) in &mut members {
            store_map(number, device, &map)?;
        }
    }
    Ok((map, members, suspected))
}

fn store_map(number: usize, device: &mut ArrayDevice, map: &ArrayMap) -> ArrayResult<()> {
    let map = ArrayMap { device: number as u16, ..map.clone() };
    device.store_map(&map).map_err(|error| device_failed(device, error))
}

/// A device for an array that is open, with nothing on it: it has no map yet, or that of a device which this array had.
pub(super) fn added(
    medium: &ArrayMedium,
    options: &KvssdOptions,
    array: &ArrayMap,
) -> ArrayResult<ArrayDevice> {
    let place = array.members.len();
    let failed = |error| ArrayError::Device { device: place + 1, error };
    let foreign = |what| Err(ArrayError::Foreign { device: place + 1, what });
    match meet(place, medium, options)? {
        MetDevice::Nothing => {
            let tier = tier_of(medium, Some(new_geometry(options)), true).map_err(failed)?;
            tier.ok_or(KvError::NoDevice).and_then(|tier| format(place, tier, options)).map_err(failed)
        }
        MetDevice::Unfinished(device) => finish(place, *device).map_err(failed),
        MetDevice::Device(_, Some(map)) if map.array_id != array.array_id => foreign("another array"),
        MetDevice::Device(mut device, map) => {
            let is_removed = |map: ArrayMap| {
                let is_own = map.members.contains(&map.device) && array.members.contains(&map.device);
                !is_own || map.generation + 1 < array.generation
            };
            let has_rows = device.has_rows().map_err(failed)?;
            match has_rows || !map.is_none_or(is_removed) {
                true => foreign("this array, or has pairs on it"),
                false => forget_intents(&mut device).map_err(failed).map(|()| *device),
            }
        }
    }
}

/// A device for the place of one that is out: with nothing of any array on it, or one that is out, or was removed, whose pairs are of no more use. With it whether there are such.
pub(super) fn replacement(
    medium: &ArrayMedium,
    options: &KvssdOptions,
    array: &ArrayMap,
    place: usize,
) -> ArrayResult<(ArrayDevice, bool)> {
    let failed = |error| ArrayError::Device { device: place + 1, error };
    match meet(place, medium, options)? {
        MetDevice::Device(_, Some(map)) if map.array_id != array.array_id => {
            Err(ArrayError::Foreign { device: place + 1, what: "another array" })
        }
        MetDevice::Device(_, Some(map)) if array.in_members().any(|number| number == map.device) => {
            Err(ArrayError::Foreign { device: place + 1, what: "this array, and in use" })
        }
        MetDevice::Device(mut device, _) => {
            forget_intents(&mut device).map_err(failed)?;
            clear_marks(&mut device).map_err(failed)?;
            let has_rows = device.has_rows().map_err(failed)?;
            Ok((*device, has_rows))
        }
        MetDevice::Unfinished(device) => Ok((with_no_marks(finish(place, *device)).map_err(failed)?, false)),
        MetDevice::Nothing => {
            let tier = tier_of(medium, Some(new_geometry(options)), true).map_err(failed)?;
            let made = tier.ok_or(KvError::NoDevice).and_then(|tier| format(place, tier, options));
            Ok((with_no_marks(made).map_err(failed)?, false))
        }
    }
}

/// Of a device that was of the array before.
///
/// PERSIST: what batches were about to do then is done, or was changed since: an opening is not to do it again.
fn forget_intents(device: &mut ArrayDevice) -> KvResult<()> {
    let marks: Vec<u64> = device.intents()?.iter().map(|intent| intent.first_mark).collect();
    device.drop_intents(&marks).into_iter().collect::<KvResult<()>>()?;
    device.flush()
}

/// Where shards that are written are told of from now on: it finds room for that whenever it is full.
fn with_no_marks(device: KvResult<ArrayDevice>) -> KvResult<ArrayDevice> {
    let mut device = device?;
    clear_marks(&mut device)?;
    Ok(device)
}

impl ArrayDevice {
    /// Stores this copy of the map, durably.
    pub(super) fn store_map(&mut self, map: &ArrayMap) -> KvResult<()> {
        self.store_own(MAP_KEY, map.encode())?;
        self.set_generation(map.generation);
        Ok(())
    }

    /// Whether there is any pair of rows on it.
    fn has_rows(&mut self) -> KvResult<bool> {
        let spaces = spaces(self.device())?;
        Ok(spaces.iter().any(|space| space.name == ROWS && space.pairs > 0))
    }
}

/// A new device, with the key spaces of an array.
fn format(number: usize, tier: FastTier, options: &KvssdOptions) -> KvResult<ArrayDevice> {
    finish(number, Device::format(tier, new_geometry(options), options.device.clone())?)
}

fn new_geometry(options: &KvssdOptions) -> Geometry {
    options.geometry.unwrap_or_else(|| Geometry::with_bytes(DEVICE_BYTES))
}

/// A device with the key spaces of an array, those that are not there made.
fn finish(number: usize, mut device: Device) -> KvResult<ArrayDevice> {
    let there = spaces(&mut device)?;
    let ids = [space_id(&mut device, &there, ROWS)?, space_id(&mut device, &there, OWN)?];
    Ok(ArrayDevice::new(number, device, ids))
}

/// The number of a key space, which is made if it is not among these.
fn space_id(device: &mut Device, spaces: &[SpaceInfo], name: &[u8]) -> KvResult<SpaceId> {
    if let Some(info) = spaces.iter().find(|info| info.name == name) {
        return Ok(info.id);
    }
    match call(device, KvCommand::CreateSpace { name: PairKey::new(name)?, bytes_max: 0 })? {
        KvAnswer::Space(info) => Ok(info.id),
        _ => Err(KvError::SpaceMissing),
    }
}

fn spaces(device: &mut Device) -> KvResult<Vec<SpaceInfo>> {
    match call(device, KvCommand::ListSpaces)? {
        KvAnswer::Spaces(spaces) => Ok(spaces),
        _ => Err(KvError::SpaceMissing),
    }
}

/// The bytes of the map in the array's own key space, if there is one.
fn map_bytes(device: &mut Device, own: SpaceId) -> KvResult<Option<Vec<u8>>> {
    let (key, buffer) = (PairKey::new(MAP_KEY)?, vec![0; MAP_BYTES_READ]);
    let read = complete(device, KvCommand::Retrieve { space: own, key, offset: 0, buffer, delete: false })?;
    match read.result {
        Ok(_) => Ok(Some(read.buffer)),
        Err(KvError::KeyMissing) => Ok(None),
        Err(error) => Err(error),
    }
}

fn call(device: &mut Device, command: KvCommand) -> KvResult<KvAnswer> {
    complete(device, command)?.result
}

fn complete(device: &mut Device, command: KvCommand) -> KvResult<Completion> {
    let mut out = Out::default();
    device.submit(0, command).map_err(|refused| refused.error)?;
    while device.step(0, &mut out) {}
    out.completions.pop().ok_or(KvError::SpaceMissing)
}

/// What is there, or is made if there is nothing and it `creates`; with a geometry a device of that may be written to it.
fn tier_of(medium: &ArrayMedium, new: Option<Geometry>, creates: bool) -> KvResult<Option<FastTier>> {
    // A device does not grow: no more addresses are set aside than it takes, however many there are.
    let reserve_bytes = new.map_or(0, |geometry| geometry.bytes());
    let options = FastTierOptions { reserve_bytes, ..FastTierOptions::default() };
    match medium {
        ArrayMedium::File(path) => match FastTier::open_file(path, &options, creates) {
            Ok(tier) => Ok(Some(tier)),
            Err(DeviceError::Io { source, .. })
                if !creates && source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        },
        ArrayMedium::Simulated(sim) => Ok(Some(FastTier::simulated(sim))),
        ArrayMedium::Memory => Ok(creates.then(|| FastTier::dram(&options)).transpose()?),
    }
}

/// A number that no other array has. On a simulated medium the same one where the same was done.
fn new_id(media: &[ArrayMedium]) -> u128 {
    let mut random = match media.first() {
        Some(ArrayMedium::Simulated(sim)) => Random::from_seed(sim.ops()),
        _ => Random::from_entropy(),
    };
    u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
}
