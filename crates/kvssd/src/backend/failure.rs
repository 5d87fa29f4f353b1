//! What goes wrong with an array of devices, and what rows make of it.
//!
//! Owns [`ArrayError`], why an array cannot be opened, and which [`ErrorKind`] each refusal of a device is. Promises that a change that may have happened is told as such, and that no other one is.
//! Must not know where pairs lie.

use std::fmt;

use hedgerow_row::{Error, ErrorKind};

use crate::code::KvError;

/// Why devices are not opened as an array, or an array is not changed. Where it is not opened no device was changed, but for [`ArrayError::Device`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ArrayError {
    /// No device, or more than there may be.
    Count {
        /// So many were given.
        given: usize,
        /// At most.
        max: usize,
    },
    /// A device could not be opened or made, or refused what opening stores on it.
    Device {
        /// Which, by its place among those that were given, from 1.
        device: usize,
        /// Why.
        error: KvError,
    },
    /// There is nothing in the place of a device of the array that the others are of.
    Missing {
        /// Which, from 1.
        device: usize,
    },
    /// The device is of another array, or of none.
    Foreign {
        /// Which, from 1.
        device: usize,
        /// Of what it is.
        what: &'static str,
    },
    /// The device has another number in its array.
    Order {
        /// The place where it was given, from 1.
        given: usize,
        /// Its place in the array.
        is: usize,
    },
    /// The array has more or fewer devices.
    Devices {
        /// So many were given.
        given: usize,
        /// So many it has.
        has: usize,
    },
    /// The device is older than the others: a copy of it was put back, or it was left out when the array was opened by something else than this.
    Stale {
        /// Which, from 1.
        device: usize,
        /// Its generation, two more with each opening of the array at least.
        generation: u64,
        /// The highest.
        newest: u64,
    },
    /// The map on the device is not what was written.
    Map {
        /// Which, from 1.
        device: usize,
    },
    /// The device was removed from the array, or its adding was cut off: nothing of the array is on it.
    Removed {
        /// Which, from 1.
        device: usize,
    },
    /// The one device of an array cannot be removed.
    LastDevice,
    /// The array has no such device.
    NoDevice {
        /// Which was named, from 1.
        device: usize,
        /// So many there are.
        has: usize,
    },
    /// All numbers of devices are given: the last one of the array has the highest, and must be removed before another can be added.
    NumbersSpent {
        /// So many there are.
        max: usize,
    },
    /// A device that is to be added takes shorter values than the array does.
    ValueBytes {
        /// What it takes at most.
        takes: usize,
        /// What it must take.
        needs: usize,
    },
    /// An array is made with so many copies of each shard, one or two, each on another device.
    Copies {
        /// So many were asked for.
        copies: usize,
        /// So many devices were given.
        devices: usize,
    },
    /// The array was made with another number of copies.
    CopiesDiffer {
        /// So many were asked for.
        asked: usize,
        /// So many it has.
        has: usize,
    },
    /// What was asked for is for arrays with two copies.
    OneCopy,
    /// Shards have no current copy on any device but those that cannot be used.
    NoCopy {
        /// How many of 1,024.
        shards: usize,
        /// Those devices, from 1.
        devices: Vec<usize>,
        /// Why the first of them cannot be used.
        why: Box<ArrayError>,
    },
    /// The devices that are there have a copy of everything, and so have those that are not: which may have gone on without these, and have what these have not ([`KvssdOptions::alone`](super::KvssdOptions::alone)).
    Undecided {
        /// Those that are not there, or cannot be used, from 1.
        devices: Vec<usize>,
        /// Why the first of them cannot be used.
        why: Box<ArrayError>,
    },
    /// The device went on without the others, and they without it: each has changes that the other one has not.
    Diverged {
        /// Which, from 1.
        device: usize,
    },
    /// The device is out: it failed, or was missing, and others have the second copies of what it had. Or nobody has, until it is replaced.
    Out {
        /// Which, from 1.
        device: usize,
    },
    /// A change of several keys was cut short by a device that failed: the array is to be opened anew before shards are moved.
    HalfDone,
    /// Shards are moved by somebody else: one at a time.
    Moving,
    /// The backend was closed.
    Closed,
    /// The map is in a format that this build does not know.
    Version {
        /// Which device, from 1.
        device: usize,
        /// Its format.
        found: u8,
    },
}

pub(super) type ArrayResult<T> = Result<T, ArrayError>;

impl fmt::Display for ArrayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrayError::Count { given, max } => {
                write!(f, "an array has 1 to {max} devices, and {given} were given")
            }
            ArrayError::Device { device, error } => write!(f, "device {device}: {error}"),
            ArrayError::Missing { device } => {
                write!(f, "device {device} of the array is missing: there is nothing in its place")
            }
            ArrayError::Foreign { device, what } => write!(f, "device {device} is of {what}"),
            ArrayError::Order { given, is } => {
                write!(f, "device {is} of the array was given as device {given}: give them in their order")
            }
            ArrayError::Devices { given, has } => {
                write!(f, "the array has {has} devices, and {given} were given")
            }
            ArrayError::Stale { device, generation, newest } => write!(
                f,
                "device {device} is older than the others: its generation is {generation} and theirs {newest}"
            ),
            ArrayError::Map { device } => write!(f, "device {device}: the map of the array is damaged"),
            ArrayError::Removed { device } => write!(
                f,
                "device {device} is of the array no more: it was removed, or its adding was cut off; leave it out"
            ),
            ArrayError::LastDevice => write!(f, "the one device of an array cannot be removed"),
            ArrayError::NoDevice { device, has } => {
                write!(f, "there is no device {device}: the array has {has}")
            }
            ArrayError::NumbersSpent { max } => write!(
                f,
                "no device can be added behind the last one, which has the highest of {max} numbers: remove it first"
            ),
            ArrayError::ValueBytes { takes, needs } => write!(
                f,
                "the device takes values of {takes} bytes at most, and those of the array have up to {needs}"
            ),
            ArrayError::HalfDone => {
                write!(f, "a change of several keys was cut short: open the array anew, which finishes it")
            }
            ArrayError::Moving => write!(f, "shards of the array are being moved already"),
            ArrayError::Closed => write!(f, "the backend was closed"),
            ArrayError::Version { device, found } => {
                write!(
                    f,
                    "device {device}: the map of the array is in format {found}, and this build knows 1 to 3"
                )
            }
            of_copies => of_copies.fmt_of_copies(f),
        }
    }
}

impl ArrayError {
    /// Of those that there are because of two copies.
    fn fmt_of_copies(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrayError::Copies { copies, devices } => write!(
                f,
                "{copies} copies on {devices} devices: an array has one copy of each key, or two on at least two devices"
            ),
            ArrayError::CopiesDiffer { asked, has } => {
                write!(f, "the array was made with {has} copies of each key, and {asked} were asked for")
            }
            ArrayError::OneCopy => {
                write!(f, "the array has one copy of each key: no device of it can be replaced")
            }
            ArrayError::NoCopy { shards, devices, why } => write!(
                f,
                "{shards} of 1024 shards of keys have no current copy but on devices {}, which cannot be used: {why}",
                listed(devices)
            ),
            ArrayError::Undecided { devices, why } => write!(
                f,
                "devices {} cannot be used, and may have gone on without the others: {why}; if they did not, open the array with `alone`",
                listed(devices)
            ),
            ArrayError::Diverged { device } => write!(
                f,
                "device {device} went on without the others, and they without it: give one side alone, and replace the other"
            ),
            ArrayError::Out { device } => {
                write!(f, "device {device} is out since it failed or was missing: replace it")
            }
            _ => Ok(()),
        }
    }
}

fn listed(devices: &[usize]) -> String {
    devices.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

impl std::error::Error for ArrayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ArrayError::Device { error, .. } => Some(error),
            ArrayError::NoCopy { why, .. } | ArrayError::Undecided { why, .. } => Some(why),
            _ => None,
        }
    }
}

impl From<ArrayError> for Error {
    fn from(error: ArrayError) -> Error {
        let kind = match &error {
            ArrayError::Device { error, .. } => kind_of(error),
            ArrayError::Missing { .. } => ErrorKind::Unavailable,
            ArrayError::Map { .. } | ArrayError::Stale { .. } => ErrorKind::Corrupted,
            ArrayError::Version { .. } => ErrorKind::Version,
            ArrayError::Closed => ErrorKind::Closed,
            ArrayError::HalfDone | ArrayError::NoCopy { .. } | ArrayError::Undecided { .. } => {
                ErrorKind::Unavailable
            }
            ArrayError::Diverged { .. } => ErrorKind::Corrupted,
            ArrayError::Out { .. } => ErrorKind::Unavailable,
            ArrayError::Copies { .. } | ArrayError::CopiesDiffer { .. } | ArrayError::OneCopy => {
                ErrorKind::Invalid
            }
            ArrayError::Moving => ErrorKind::Busy,
            ArrayError::NumbersSpent { .. } => ErrorKind::Full,
            ArrayError::Removed { .. }
            | ArrayError::LastDevice
            | ArrayError::NoDevice { .. }
            | ArrayError::ValueBytes { .. }
            | ArrayError::Count { .. }
            | ArrayError::Foreign { .. }
            | ArrayError::Order { .. }
            | ArrayError::Devices { .. } => ErrorKind::Invalid,
        };
        Error::new(kind, error.to_string())
    }
}

/// What a refusal of a device is to rows, where it changed nothing.
fn kind_of(error: &KvError) -> ErrorKind {
    use hedgerow_device::DeviceError as Medium;
    match error {
        KvError::DeviceFull { .. } | KvError::SpaceFull { .. } | KvError::SpacesMax { .. } => ErrorKind::Full,
        KvError::NumbersSpent { .. } => ErrorKind::Full,
        KvError::Damaged { .. } | KvError::Truncated { .. } => ErrorKind::Corrupted,
        KvError::Version { .. } => ErrorKind::Version,
        KvError::Closed { .. } => ErrorKind::Unavailable,
        KvError::Medium(error) => match **error {
            Medium::Full { .. } | Medium::TargetFull { .. } => ErrorKind::Full,
            Medium::Locked { .. } => ErrorKind::Locked,
            Medium::ReadOnly { .. } => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        },
        KvError::ReadFault { .. } => ErrorKind::Io,
        KvError::KeyMissing | KvError::KeyExists => ErrorKind::Conflict,
        KvError::QueueFull { .. } => ErrorKind::Busy,
        _ => ErrorKind::Invalid,
    }
}

/// Of a command that reads, or of one that was refused before it did anything.
pub(super) fn refused(device: usize, error: &KvError) -> Error {
    Error::new(kind_of(error), format!("device {}: {error}", device + 1))
}

/// Of a command that changes something: where the medium refused, nobody knows what it holds.
pub(super) fn refused_change(device: usize, error: &KvError) -> Error {
    match error {
        KvError::Medium(_) => {
            let message = format!("device {}: {error}: it may have been stored, or not", device + 1);
            Error::new(ErrorKind::Indeterminate, message)
        }
        error => refused(device, error),
    }
}

pub(super) fn conflict() -> Error {
    Error::new(ErrorKind::Conflict, "what is under the key is not what was expected")
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the backend was closed")
}
