//! Making and opening an array.
//!
//! Owns the order of what is stored for it. Promises that an array is opened only with all of its devices, each in its place and none older than the others; that one whose making was cut off is made again, since nothing
//! was stored in it; and that no pair is lost to a device that was taken for a new one. Must not know what sessions do.
//!
//! An array is made in two steps: a map of generation 0 on every device, and then, once all of them are durable, one of generation 1. So where any map has a generation above 0 every device had one, and a
//! device without is not the one that was there. Each opening raises the generation on one device after the other; only when all have the same does it raise the highest.

use hedgerow_device::{DeviceError, FastTier, FastTierOptions, Random};

use super::array_device::ArrayDevice;
use super::failure::ArrayError;
use super::map::{ArrayMap, DEVICES_MAX, NoMap};
use super::{ArrayMedium, KvssdOptions, MARKS_RESERVED};
use crate::code::{KvError, Result as KvResult};
use crate::command::{KvAnswer, KvCommand, PairKey, SpaceId, SpaceInfo};
use crate::device::{Device, Out};
use crate::flash::geometry::Geometry;

/// Where rows are on a device.
const ROWS: &[u8] = b"hedgerow.rows";
/// Where what the array says of itself is.
const OWN: &[u8] = b"hedgerow.array";
/// The key of the map there.
const MAP_KEY: &[u8] = b"map";
/// More than a map of any format that is known.
const MAP_BYTES_READ: usize = 3 << 10;
const DEVICE_BYTES: u64 = 1 << 30;

/// What is in the place of a device.
enum MetDevice {
    /// Nothing, or a device whose making was cut off.
    Nothing,
    /// A device, and its map if it has one.
    Device(Box<ArrayDevice>, Option<ArrayMap>),
}

/// A device, and the generation of the map on it.
type MemberDevice = (ArrayDevice, u64);

type ArrayResult<T> = Result<T, ArrayError>;

/// Opens the array, or makes it where none is.
pub(super) fn open(
    media: &[ArrayMedium],
    options: &KvssdOptions,
) -> ArrayResult<(ArrayMap, Vec<ArrayDevice>)> {
    let given = media.len();
    if given == 0 || given > DEVICES_MAX {
        return Err(ArrayError::Count { given, max: DEVICES_MAX });
    }
    let met = media.iter().enumerate().map(|(number, medium)| meet(number, medium, options));
    let met = met.collect::<ArrayResult<Vec<MetDevice>>>()?;
    let is_made = |met: &MetDevice| matches!(met, MetDevice::Device(_, Some(map)) if map.generation > 0);
    let (map, members) = match met.iter().any(is_made) {
        true => members(met)?,
        false => make(media, met, options)?,
    };
    raise(map, members)
}

/// The device on a medium, as far as there is one.
fn meet(number: usize, medium: &ArrayMedium, options: &KvssdOptions) -> ArrayResult<MetDevice> {
    let device = number + 1;
    let failed = |error| ArrayError::Device { device, error };
    let Some(tier) = tier_of(medium, false).map_err(failed)? else { return Ok(MetDevice::Nothing) };
    let mut opened = match Device::open(tier, options.device.clone()) {
        Ok(opened) => opened,
        Err(KvError::NoDevice) => return Ok(MetDevice::Nothing),
        Err(error) => return Err(failed(error)),
    };
    let spaces = spaces(&mut opened).map_err(failed)?;
    if spaces.iter().any(|space| space.name.is_empty()) {
        return Err(failed(KvError::Damaged { offset: 0, what: "the name of a key space" }));
    }
    if spaces.iter().any(|space| space.name != ROWS && space.name != OWN) {
        return Err(ArrayError::Foreign { device, what: "another program: it has other key spaces" });
    }
    let has_rows = spaces.iter().any(|space| space.name == ROWS && space.pairs > 0);
    // Where its making was cut off one of them may not be there yet.
    let ids = [ROWS, OWN].map(|name| space_id(&mut opened, &spaces, name));
    let [Ok(rows), Ok(own)] = ids else {
        let refused = ids.into_iter().find_map(Result::err);
        return Err(failed(refused.unwrap_or(KvError::SpaceMissing)));
    };
    let mut opened = ArrayDevice::new(number, opened, [rows, own]);
    let map = opened.own_value(MAP_KEY, MAP_BYTES_READ).map_err(failed)?;
    match map.as_deref().map(ArrayMap::decode) {
        None if has_rows => Err(ArrayError::Map { device }),
        None => Ok(MetDevice::Device(Box::new(opened), None)),
        Some(Ok(map)) => Ok(MetDevice::Device(Box::new(opened), Some(map))),
        Some(Err(NoMap::Version(found))) => Err(ArrayError::Version { device, found }),
        Some(Err(NoMap::Damaged)) => Err(ArrayError::Map { device }),
    }
}

/// The devices of an array that was made, checked against each other; and the newest map.
fn members(met: Vec<MetDevice>) -> ArrayResult<(ArrayMap, Vec<MemberDevice>)> {
    let maps: Vec<Option<ArrayMap>> = met
        .iter()
        .map(|met| match met {
            MetDevice::Device(_, map) => map.clone(),
            MetDevice::Nothing => None,
        })
        .collect();
    // Among those of several arrays the one that most are of is meant.
    let of_id = |id: u128| maps.iter().flatten().filter(move |map| map.array_id == id);
    let id = maps.iter().flatten().map(|map| map.array_id).max_by_key(|&id| of_id(id).count());
    let newest = id.and_then(|id| of_id(id).max_by_key(|map| (map.generation, map.marks))).cloned();
    let Some(newest) = newest else { return Err(ArrayError::Missing { device: 1 }) };
    for (number, map) in maps.iter().enumerate() {
        check_member(number, map.as_ref(), &newest, maps.len())?;
    }
    let mut members = Vec::with_capacity(met.len());
    for (number, met) in met.into_iter().enumerate() {
        match met {
            MetDevice::Device(device, Some(map)) => members.push((*device, map.generation)),
            MetDevice::Device(_, None) => {
                return Err(ArrayError::Foreign { device: number + 1, what: NO_ARRAY });
            }
            MetDevice::Nothing => return Err(ArrayError::Missing { device: number + 1 }),
        }
    }
    Ok((newest, members))
}

/// What a device without a map is of.
const NO_ARRAY: &str = "no array: it is new, and not the one that was in its place";

/// Refuses a device that is not what the newest map says.
fn check_member(number: usize, map: Option<&ArrayMap>, newest: &ArrayMap, given: usize) -> ArrayResult<()> {
    let Some(map) = map else {
        // How many there are is told first.
        let has = usize::from(newest.devices);
        return if has == given { Ok(()) } else { Err(ArrayError::Devices { given, has }) };
    };
    let device = number + 1;
    if map.array_id != newest.array_id {
        return Err(ArrayError::Foreign { device, what: "another array" });
    }
    if usize::from(map.devices) != given {
        return Err(ArrayError::Devices { given, has: usize::from(map.devices) });
    }
    if usize::from(map.device) != number {
        return Err(ArrayError::Order { given: device, is: usize::from(map.device) + 1 });
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
) -> ArrayResult<(ArrayMap, Vec<MemberDevice>)> {
    let mut devices = Vec::with_capacity(media.len());
    for (number, (medium, met)) in media.iter().zip(met).enumerate() {
        let failed = |error| ArrayError::Device { device: number + 1, error };
        devices.push(match met {
            MetDevice::Device(device, _) => *device,
            MetDevice::Nothing => format(number, medium, options).map_err(failed)?,
        });
    }
    let map = ArrayMap::new(new_id(media), media.len() as u16);
    for (number, device) in devices.iter_mut().enumerate() {
        store_map(number, device, &map)?;
    }
    Ok((map, devices.into_iter().map(|device| (device, 0)).collect()))
}

/// Stores the map with the next generation on each device, and with marks that are set aside.
fn raise(map: ArrayMap, members: Vec<MemberDevice>) -> ArrayResult<(ArrayMap, Vec<ArrayDevice>)> {
    let is_same = members.iter().all(|(_, generation)| *generation == map.generation);
    let generation = if is_same { map.generation + 1 } else { map.generation };
    let map = ArrayMap { generation, marks: map.marks.saturating_add(MARKS_RESERVED), ..map };
    let mut devices = Vec::with_capacity(members.len());
    // PERSIST: on one device after the other, each durable (`ArrayDevice::store_own`) before the next and all before any pair is stored: so no device is behind another by more than
    // one generation, unless it was left out, and no mark is given that an opening may give again.
    for (number, (mut device, _)) in members.into_iter().enumerate() {
        store_map(number, &mut device, &map)?;
        devices.push(device);
    }
    Ok((map, devices))
}

fn store_map(number: usize, device: &mut ArrayDevice, map: &ArrayMap) -> ArrayResult<()> {
    let map = ArrayMap { device: number as u16, ..map.clone() };
    device.store_map(&map).map_err(|error| ArrayError::Device { device: number + 1, error })
}

impl ArrayDevice {
    /// Stores this copy of the map, durably.
    pub(super) fn store_map(&mut self, map: &ArrayMap) -> KvResult<()> {
        self.store_own(MAP_KEY, map.encode())
    }
}

/// A new device, with the key spaces of an array.
fn format(number: usize, medium: &ArrayMedium, options: &KvssdOptions) -> KvResult<ArrayDevice> {
    let tier = tier_of(medium, true)?.ok_or(KvError::NoDevice)?;
    let geometry = options.geometry.unwrap_or_else(|| Geometry::with_bytes(DEVICE_BYTES));
    let mut device = Device::format(tier, geometry, options.device.clone())?;
    let ids = [space_id(&mut device, &[], ROWS)?, space_id(&mut device, &[], OWN)?];
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

fn call(device: &mut Device, command: KvCommand) -> KvResult<KvAnswer> {
    let mut out = Out::default();
    device.submit(0, command).map_err(|refused| refused.error)?;
    while device.step(0, &mut out) {}
    out.completions.pop().map_or(Err(KvError::SpaceMissing), |completion| completion.result)
}

/// What is there, or, with `create`, may be written to.
fn tier_of(medium: &ArrayMedium, create: bool) -> KvResult<Option<FastTier>> {
    let options = FastTierOptions::default();
    match medium {
        ArrayMedium::File(path) => match FastTier::open_file(path, &options, create) {
            Ok(tier) => Ok(Some(tier)),
            Err(DeviceError::Io { source, .. })
                if !create && source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        },
        ArrayMedium::Simulated(sim) => Ok(Some(FastTier::simulated(sim))),
        ArrayMedium::Memory => Ok(Some(FastTier::dram(&options)?)),
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
