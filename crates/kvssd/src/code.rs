//! What a device refuses, and with which result code.
//!
//! Owns [`KvError`], what was wrong and what the limit is, and [`ResultCode`], the numbers of the SNIA KV storage API v1.1. Promises that every
//! error has one code and that codes keep their numbers. Must not know where pairs lie.

use std::fmt;
use std::sync::Arc;

use hedgerow_device::DeviceError;

/// The result of whatever a device may refuse.
pub type Result<T> = std::result::Result<T, KvError>;

/// A result as the SNIA KV storage API v1.1 numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the standard's; docs/kvssd.md has the table")]
pub enum ResultCode {
    Success = 0x00,
    BufferSmall = 0x01,
    DeviceCapacity = 0x02,
    DeviceNotExist = 0x03,
    KeySpaceCapacity = 0x04,
    KeySpaceExist = 0x05,
    KeySpaceIndex = 0x06,
    KeySpaceName = 0x07,
    KeySpaceNotExist = 0x08,
    KeySpaceNotOpen = 0x09,
    KeySpaceOpen = 0x0A,
    IteratorFilterInvalid = 0x0B,
    IteratorMax = 0x0C,
    IteratorNotExist = 0x0D,
    IteratorOpen = 0x0E,
    KeyLengthInvalid = 0x0F,
    KeyNotExist = 0x10,
    OptionInvalid = 0x11,
    ParamInvalid = 0x12,
    SystemIo = 0x13,
    ValueLengthInvalid = 0x14,
    ValueOffsetInvalid = 0x15,
    ValueOffsetMisaligned = 0x16,
    ValueUpdateNotAllowed = 0x17,
    DeviceNotOpened = 0x18,
}

/// Why a command was refused, or a device could not be opened. Nothing happened then, but where a variant says otherwise.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum KvError {
    /// The buffer does not hold what was asked for. Of a value its beginning was delivered, and nothing was deleted.
    BufferSmall {
        /// Bytes of the whole value, or of the next entry of an iterator.
        needed: u64,
        /// Bytes of the buffer.
        given: u64,
    },
    /// The device has no room.
    DeviceFull {
        /// Bytes that the command would take, with what the device adds.
        needed: u64,
        /// Bytes that are left.
        free: u64,
    },
    /// The key space has no room: the limit it was made with.
    SpaceFull {
        /// Bytes of key and value that the command would add.
        needed: u64,
        /// Bytes that are left.
        free: u64,
    },
    /// There is a key space of this name.
    SpaceExists,
    /// There are as many key spaces as there may be.
    SpacesMax {
        /// So many.
        max: usize,
    },
    /// All numbers are given that there are: no key space can be made any more, or nothing be changed. Reading goes on.
    NumbersSpent {
        /// Numbers of what.
        what: &'static str,
        /// The last of them.
        max: u64,
    },
    /// The name of a key space is too short or too long.
    SpaceName {
        /// Bytes of it.
        bytes: usize,
        /// At most; at least 1.
        max: usize,
    },
    /// There is no such key space.
    SpaceMissing,
    /// As many iterators are open as may be.
    IteratorMax {
        /// So many.
        max: usize,
    },
    /// There is no such iterator: never, or it was closed.
    IteratorMissing {
        /// The handle.
        iterator: u32,
    },
    /// An iterator over the same keys is open.
    IteratorOpen {
        /// Its handle.
        iterator: u32,
    },
    /// The key is too short or too long.
    KeyLength {
        /// Bytes of it.
        bytes: usize,
        /// At most; at least 1.
        max: usize,
    },
    /// There is no such pair.
    KeyMissing,
    /// There is such a pair already.
    KeyExists,
    /// A parameter makes no sense.
    Param {
        /// Which, and why.
        what: &'static str,
    },
    /// The value is too long, or would be.
    ValueLength {
        /// Bytes of it.
        bytes: u64,
        /// At most.
        max: u64,
    },
    /// The offset is beyond the value.
    ValueOffset {
        /// The offset.
        offset: u64,
        /// Bytes of the value.
        value_bytes: u64,
    },
    /// So many commands are under way as may be: take completions first.
    QueueFull {
        /// So many.
        depth: usize,
    },
    /// What is on the medium is not what was written.
    Damaged {
        /// Where, in bytes from the start of the tier.
        offset: u64,
        /// What should be there.
        what: &'static str,
    },
    /// The medium could not be read there.
    ReadFault {
        /// Where, in bytes from the start of the tier.
        offset: u64,
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// The medium is shorter than the device that was made on it.
    Truncated {
        /// Bytes that there are.
        bytes: u64,
        /// Bytes that there must be.
        needed: u64,
    },
    /// There is no device on this medium.
    NoDevice,
    /// The device was made by a build that this one does not know.
    Version {
        /// Its version.
        found: u32,
        /// The one that this build reads.
        known: u32,
    },
    /// The device takes no more commands: it was closed, or failed. The text says why.
    Closed {
        /// Why.
        why: String,
    },
    /// The medium refused. Commands under way may or may not have happened.
    Medium(Arc<DeviceError>),
}

impl KvError {
    /// The standard's code for it.
    pub fn code(&self) -> ResultCode {
        match self {
            KvError::BufferSmall { .. } => ResultCode::BufferSmall,
            KvError::DeviceFull { .. } | KvError::NumbersSpent { .. } => ResultCode::DeviceCapacity,
            KvError::SpaceFull { .. } | KvError::SpacesMax { .. } => ResultCode::KeySpaceCapacity,
            KvError::SpaceExists => ResultCode::KeySpaceExist,
            KvError::SpaceName { .. } => ResultCode::KeySpaceName,
            KvError::SpaceMissing => ResultCode::KeySpaceNotExist,
            KvError::IteratorMax { .. } => ResultCode::IteratorMax,
            KvError::IteratorMissing { .. } => ResultCode::IteratorNotExist,
            KvError::IteratorOpen { .. } => ResultCode::IteratorOpen,
            KvError::KeyLength { .. } => ResultCode::KeyLengthInvalid,
            KvError::KeyMissing => ResultCode::KeyNotExist,
            KvError::KeyExists => ResultCode::ValueUpdateNotAllowed,
            KvError::Param { .. } => ResultCode::ParamInvalid,
            KvError::ValueLength { .. } => ResultCode::ValueLengthInvalid,
            KvError::ValueOffset { .. } => ResultCode::ValueOffsetInvalid,
            KvError::NoDevice => ResultCode::DeviceNotExist,
            KvError::Closed { .. } => ResultCode::DeviceNotOpened,
            KvError::QueueFull { .. }
            | KvError::Damaged { .. }
            | KvError::ReadFault { .. }
            | KvError::Truncated { .. }
            | KvError::Version { .. }
            | KvError::Medium(_) => ResultCode::SystemIo,
        }
    }
}

impl From<DeviceError> for KvError {
    fn from(error: DeviceError) -> KvError {
        KvError::Medium(Arc::new(error))
    }
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvError::BufferSmall { needed, given } => {
                write!(f, "{needed} bytes do not fit in a buffer of {given}")
            }
            KvError::DeviceFull { needed, free } => {
                write!(f, "the device is full: {needed} bytes wanted, {free} are free")
            }
            KvError::SpaceFull { needed, free } => {
                write!(f, "the key space is full: {needed} bytes wanted, {free} are free")
            }
            KvError::SpaceExists => f.write_str("there is a key space of this name"),
            KvError::SpacesMax { max } => write!(f, "a device has at most {max} key spaces"),
            KvError::NumbersSpent { what, max } => write!(f, "all numbers of {what} are given, up to {max}"),
            KvError::SpaceName { bytes, max } => {
                write!(f, "the name of a key space has 1 to {max} bytes, and this one {bytes}")
            }
            KvError::SpaceMissing => f.write_str("there is no such key space"),
            KvError::IteratorMax { max } => write!(f, "{max} iterators are open, and more may not be"),
            KvError::IteratorMissing { iterator } => write!(f, "there is no iterator {iterator}"),
            KvError::IteratorOpen { iterator } => write!(f, "iterator {iterator} is open over the same keys"),
            KvError::KeyLength { bytes, max } => {
                write!(f, "a key has 1 to {max} bytes, and this one {bytes}")
            }
            KvError::KeyMissing => f.write_str("there is no such key"),
            KvError::KeyExists => f.write_str("there is such a key already"),
            KvError::Param { what } => f.write_str(what),
            KvError::ValueLength { bytes, max } => {
                write!(f, "a value has at most {max} bytes, and this one {bytes}")
            }
            KvError::ValueOffset { offset, value_bytes } => {
                write!(f, "offset {offset} is beyond a value of {value_bytes} bytes")
            }
            KvError::QueueFull { depth } => write!(f, "{depth} commands are under way, and more may not be"),
            KvError::Damaged { offset, what } => write!(f, "the medium is damaged at {offset}: {what}"),
            KvError::ReadFault { offset, bytes } => {
                write!(f, "the medium could not be read: {bytes} bytes at {offset}")
            }
            KvError::Truncated { bytes, needed } => {
                write!(f, "the medium has {bytes} bytes, and the device on it {needed}")
            }
            KvError::NoDevice => f.write_str("there is no key-value device on this medium"),
            KvError::Version { found, known } => {
                write!(f, "the device has format version {found}, and this build reads version {known}")
            }
            KvError::Closed { why } => write!(f, "the device takes no commands: {why}"),
            KvError::Medium(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KvError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KvError::Medium(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some numbers of the standard's table, and the limits in the texts.
    #[test]
    fn codes_keep_their_numbers_and_texts_say_the_limit() {
        let errors: [(KvError, u16, &str); 6] = [
            (KvError::BufferSmall { needed: 9, given: 4 }, 0x01, "9 bytes do not fit in a buffer of 4"),
            (KvError::KeyLength { bytes: 256, max: 255 }, 0x0F, "1 to 255 bytes, and this one 256"),
            (KvError::KeyMissing, 0x10, "no such key"),
            (KvError::ValueLength { bytes: 5, max: 4 }, 0x14, "at most 4 bytes, and this one 5"),
            (KvError::KeyExists, 0x17, "already"),
            (KvError::Closed { why: "it was closed".into() }, 0x18, "it was closed"),
        ];
        for (error, code, text) in errors {
            assert_eq!(error.code() as u16, code, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        assert_eq!(ResultCode::IteratorNotExist as u16, 0x0D);
        assert_eq!(ResultCode::SystemIo as u16, 0x13);
    }
}
