//! The place of a device in its array, for looking at it.
//!
//! Owns [`ArrayPlace`], what a device's copy of the map says of all of them, and the comparison of those of several devices. Promises that what it finds wrong is what opening would refuse, all of it at once. Must not know how devices are opened.

use std::collections::BTreeMap;

use hedgerow_device::DeviceError;

use super::failure::ArrayError;
use super::map::{ArrayMap, MapWork};
use super::opening::{
    FoundMap, NO_ARRAY, check_diverged, check_member, check_removed, chosen, find_map, newest_of,
};
use crate::code::KvError;
use crate::device::Device;

/// What is under way in an array: it was begun, and did not come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayWork {
    /// Nothing.
    Nothing,
    /// Each device is to have its share of the shards.
    Rebalance,
    /// Shards that have one copy are to have two.
    Rebuild,
    /// A device is to have no shard, and then to go.
    Remove {
        /// Which, by its place from 1.
        device: usize,
    },
}

/// A device of an array, as a copy of the map has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayMember {
    /// Its number, which stays while it is of the array.
    pub number: usize,
    /// Shards of keys that it has.
    pub shards: usize,
    /// Shards of which it has the second copy; 0 where there is one copy.
    pub second_copies: usize,
    /// Shards that nobody else has a copy of, where there are to be two; 0 where there is one copy.
    pub alone: usize,
    /// Those of them that are on the move to others; where there are two copies it is second ones that go.
    pub going: usize,
    /// Shards that are on the move to it.
    pub coming: usize,
    /// Whether it may have pairs that are another device's, which the next move of shards deletes.
    pub has_strays: bool,
    /// Whether it is out: it failed, or was missing.
    pub is_out: bool,
}

/// What a device says of the array that it is of.
#[derive(Clone, PartialEq, Eq)]
pub struct ArrayPlace {
    map: ArrayMap,
}

impl std::fmt::Debug for ArrayPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArrayPlace({} of {}, generation {})", self.device(), self.devices(), self.generation())
    }
}

impl ArrayPlace {
    /// Of a device that was given as this one of several, from 1; none if it is of no array, or of one whose making was cut off.
    ///
    /// # Errors
    /// [`ArrayError::Map`], [`ArrayError::Version`]; [`ArrayError::Foreign`] where other key spaces are on it, as of any other program; [`ArrayError::Device`] if it cannot be read.
    pub fn of(given: usize, device: &mut Device) -> Result<Option<ArrayPlace>, ArrayError> {
        match find_map(given, device)? {
            FoundMap::Unfinished | FoundMap::Spaces(_, None) => Ok(None),
            FoundMap::Spaces(_, Some(map)) => Ok(Some(ArrayPlace { map })),
        }
    }

    /// The array's number, which no other array has.
    pub fn array_id(&self) -> u128 {
        self.map.array_id
    }

    /// Which of its devices this one is, from 1; 0 if it was removed.
    pub fn device(&self) -> usize {
        self.map.place_of(self.map.device).map_or(0, |place| place + 1)
    }

    /// So many devices it has.
    pub fn devices(&self) -> usize {
        self.map.members.len()
    }

    /// All devices of the array, by their places, as this device's copy of the map has them. Where copies differ the one of the highest [`ArrayPlace::generation`] counts.
    pub fn members(&self) -> Vec<ArrayMember> {
        let map = &self.map;
        let count = |of: &mut dyn Iterator<Item = u16>, number| of.filter(|&device| device == number).count();
        let member = |&number: &u16| ArrayMember {
            number: usize::from(number),
            shards: count(&mut map.shards.iter().copied(), number),
            second_copies: self.seconds_of(number),
            alone: self.alone_on(number),
            going: count(&mut self.sources(), number),
            coming: count(&mut map.moves.values().copied(), number),
            has_strays: map.strays.contains(&number),
            is_out: map.out.contains(&number),
        };
        map.members.iter().map(member).collect()
    }

    /// What is under way, as this device's copy of the map has it.
    pub fn work(&self) -> ArrayWork {
        match self.map.work {
            MapWork::Nothing => ArrayWork::Nothing,
            MapWork::Spread => ArrayWork::Rebalance,
            MapWork::Rebuild => ArrayWork::Rebuild,
            MapWork::Remove(number) => {
                ArrayWork::Remove { device: self.map.place_of(number).map_or(0, |place| place + 1) }
            }
        }
    }

    /// Shards of keys that go from this device, and that go to it, as long as a move is under way.
    pub fn moving(&self) -> (usize, usize) {
        let (own, moves) = (self.map.device, &self.map.moves);
        let from = self.sources().filter(|&device| device == own).count();
        (from, moves.values().filter(|&&to| to == own).count())
    }

    /// The device whose copy goes, of each shard on the move that goes from one.
    fn sources(&self) -> impl Iterator<Item = u16> + '_ {
        let map = &self.map;
        map.moves.keys().map(|shard| usize::from(*shard)).filter_map(|shard| match map.copies() {
            1 => Some(map.shards[shard]),
            _ => map.second(shard),
        })
    }

    fn alone_on(&self, number: u16) -> usize {
        let map = &self.map;
        let is_alone =
            |&shard: &usize| map.copies() > 1 && map.shards[shard] == number && map.second(shard).is_none();
        (0..map.shards.len()).filter(is_alone).count()
    }

    fn seconds_of(&self, number: u16) -> usize {
        (0..self.map.shards.len()).filter(|&shard| self.map.second(shard) == Some(number)).count()
    }

    /// Shards that a rebalance would move, or make second copies of.
    pub fn rebalance_moves(&self) -> usize {
        let map = ArrayMap { work: MapWork::Spread, moves: BTreeMap::new(), ..self.map.clone() };
        if map.copies() == 1 { map.moves_left().len() } else { map.copies_left().len() }
    }

    /// Copies of each shard that the array was made with.
    pub fn copies(&self) -> usize {
        self.map.copies()
    }

    /// Devices of the array that are out, by their places from 1: they failed, or were missing as it was opened.
    pub fn out(&self) -> Vec<usize> {
        self.map.out.iter().filter_map(|number| Some(self.map.place_of(*number)? + 1)).collect()
    }

    /// Shards of which this device has the second copy; 0 where there is one copy.
    pub fn second_copies(&self) -> usize {
        self.seconds_of(self.map.device)
    }

    /// Shards of the array that have one copy where they are to have two.
    pub fn shards_alone(&self) -> usize {
        self.map.shards_alone()
    }

    /// Whether it may have pairs that are another device's by now, which the next move of shards deletes.
    pub fn has_strays(&self) -> bool {
        self.map.strays.contains(&self.map.device)
    }

    /// Of the map: 0 while the array is made, and two more with each opening at least.
    pub fn generation(&self) -> u64 {
        self.map.generation
    }

    /// Shards of keys that are on this device, and all that there are.
    pub fn shards(&self) -> (usize, usize) {
        let own = self.map.shards.iter().filter(|&&device| device == self.map.device).count();
        (own, self.map.shards.len())
    }
}

/// What keeps devices, given in this order, from being opened as an array; none stands for one that has no map. Of an array with two copies also which devices are out, or would be put out, without which it may be opened all the same.
pub fn check_places(places: &[Option<ArrayPlace>]) -> Vec<ArrayError> {
    let maps: Vec<Option<&ArrayMap>> =
        places.iter().map(|place| place.as_ref().map(|place| &place.map)).collect();
    let in_force = maps.iter().copied().flatten().any(|map| map.generation > 0);
    let Some(newest) = newest_of(maps.iter().copied().flatten()).filter(|_| in_force) else {
        // Nothing was stored yet: opening makes it anew.
        return Vec::new();
    };
    if let Err(removed) = check_removed(maps.iter().copied(), newest) {
        return vec![removed];
    }
    if let Err(diverged) = check_diverged(maps.iter().copied(), newest) {
        return vec![diverged];
    }
    let mut wrong = Vec::new();
    for (number, &map) in maps.iter().enumerate() {
        let is_out = |&member: &u16| newest.out.contains(&member) && newest.place_of(member) == Some(number);
        if maps.len() == newest.members.len() && newest.members.iter().any(is_out) {
            wrong.push(ArrayError::Out { device: number + 1 });
            continue;
        }
        match check_member(number, map, newest, maps.len()) {
            Err(count @ ArrayError::Devices { .. }) => {
                // It is the same of all of them.
                wrong = vec![count];
                break;
            }
            Err(error) => wrong.push(error),
            Ok(()) if map.is_none() => wrong.push(ArrayError::Foreign { device: number + 1, what: NO_ARRAY }),
            Ok(()) => {}
        }
    }
    wrong
}

/// The array of devices that were looked at, given in this order, as the next opening would have it: by the newest map, with those out that it would put out, and why each of these would go, by its place from 1. An array of one copy is opened with all of its devices.
///
/// # Errors
/// All that opening would refuse, as far as it is known; nothing if no array was made of them yet.
pub fn next_opening(
    found: Vec<Result<Option<ArrayPlace>, ArrayError>>,
    alone: bool,
) -> Result<(ArrayPlace, BTreeMap<usize, ArrayError>), Vec<ArrayError>> {
    let maps = found.iter().filter_map(|found| Some(&found.as_ref().ok()?.as_ref()?.map));
    let in_force = maps.clone().any(|map| map.generation > 0);
    let newest = newest_of(maps).filter(|_| in_force).cloned();
    if let Some(newest) = newest.clone().filter(|map| map.copies() > 1) {
        let no_array = |device| ArrayError::Foreign { device, what: NO_ARRAY };
        let maps = (1..).zip(&found).map(|(device, found)| match found {
            Ok(place) => place.as_ref().map(|place| &place.map).ok_or_else(|| no_array(device)),
            Err(error) => Err(as_opening_tells(error)),
        });
        let chosen = chosen(maps.collect(), newest, alone);
        return chosen.map(|(map, lost)| (ArrayPlace { map }, lost)).map_err(|error| vec![error]);
    }
    let (places, wrong): (Vec<_>, Vec<_>) = found.into_iter().partition(Result::is_ok);
    let mut wrong: Vec<ArrayError> = wrong.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() {
        let places: Vec<Option<ArrayPlace>> = places.into_iter().filter_map(Result::ok).collect();
        wrong = check_places(&places);
    }
    match newest {
        Some(map) if wrong.is_empty() => Ok((ArrayPlace { map }, BTreeMap::new())),
        _ => Err(wrong),
    }
}

/// An opening meets nothing where there is no file, or no device in it.
fn as_opening_tells(error: &ArrayError) -> ArrayError {
    let ArrayError::Device { device, error: why } = error else { return error.clone() };
    let is_nothing = match why {
        KvError::NoDevice => true,
        KvError::Medium(medium) => match &**medium {
            DeviceError::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            _ => false,
        },
        _ => false,
    };
    if is_nothing { ArrayError::Missing { device: *device } } else { error.clone() }
}
