//! What a device is asked and what it answers.
//!
//! Owns [`KvCommand`] and [`KvAnswer`], keys and their limits, what selects a group of keys, and the bytes of an iterator's batch. After the SNIA KV
//! storage API v1.1; docs/kvssd.md says where this device differs. Promises that what is wrong with a command by itself is found by
//! [`KvCommand::check`], before anything is done. Must not know where pairs lie.

use std::fmt;

use hedgerow_row::le_bytes::u32_at;

use crate::code::{KvError, Result};

/// Bytes in a key: 1 to this.
pub const KEY_BYTES_MAX: usize = 255;
/// Bytes in a value: 0 to this, or to what the blocks of the device hold ([`crate::Geometry::value_bytes_max`]).
pub const VALUE_BYTES_MAX: usize = 2 << 20;
/// Bytes of a key that a group is selected by.
pub const GROUP_KEY_BYTES: usize = 4;
/// Iterators that may be open.
pub const ITERATORS_MAX: usize = 16;
/// Key spaces that a device may have at once.
pub const SPACES_MAX: usize = 15;
/// Keys in one [`KvCommand::Exist`].
pub const EXIST_KEYS_MAX: usize = 4096;

/// Keys in one [`KvCommand::ListKeys`].
pub const LIST_KEYS_MAX: usize = 4096;

/// Bytes of a key that lie in the command.
const KEY_BYTES_IN_PLACE: usize = 30;

/// A key. One of up to 30 bytes is in place, so that commands are short; a longer one has memory of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct PairKey(KeyBytes);

#[derive(Clone, PartialEq, Eq)]
enum KeyBytes {
    InPlace { len: u8, bytes: [u8; KEY_BYTES_IN_PLACE] },
    Apart(Box<[u8]>),
}

impl PairKey {
    /// A copy of `key`.
    ///
    /// # Errors
    /// [`KvError::KeyLength`].
    pub fn new(key: &[u8]) -> Result<PairKey> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(KvError::KeyLength { bytes: key.len(), max: KEY_BYTES_MAX });
        }
        if key.len() > KEY_BYTES_IN_PLACE {
            return Ok(PairKey(KeyBytes::Apart(key.into())));
        }
        let mut bytes = [0; KEY_BYTES_IN_PLACE];
        bytes[..key.len()].copy_from_slice(key);
        Ok(PairKey(KeyBytes::InPlace { len: key.len() as u8, bytes }))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            KeyBytes::InPlace { len, bytes } => &bytes[..usize::from(*len)],
            KeyBytes::Apart(bytes) => bytes,
        }
    }
}

impl fmt::Debug for PairKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PairKey({})", self.bytes().escape_ascii())
    }
}

/// The first four bytes of a key as a number, the first byte the most significant; a shorter key is filled up with zeros.
pub fn group_of(key: &[u8]) -> u32 {
    let mut bytes = [0; GROUP_KEY_BYTES];
    let len = key.len().min(GROUP_KEY_BYTES);
    bytes[..len].copy_from_slice(&key[..len]);
    u32::from_be_bytes(bytes)
}

/// Selects the keys whose first four bytes, where `mask` has ones, are those of `pattern`. Any mask will do; of all zeros selects every key. A key
/// shorter than four bytes is filled up with zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyPattern {
    /// Which bits count; the first byte is the first of a key.
    pub mask: [u8; GROUP_KEY_BYTES],
    /// What they must be.
    pub pattern: [u8; GROUP_KEY_BYTES],
}

impl KeyPattern {
    /// Every key.
    pub const ALL: KeyPattern = KeyPattern { mask: [0; GROUP_KEY_BYTES], pattern: [0; GROUP_KEY_BYTES] };

    /// The keys that begin with `prefix`, of which four bytes count.
    pub fn prefix(prefix: &[u8]) -> KeyPattern {
        let len = prefix.len().min(GROUP_KEY_BYTES);
        let mut selected = KeyPattern::ALL;
        selected.mask[..len].fill(0xFF);
        selected.pattern[..len].copy_from_slice(&prefix[..len]);
        selected
    }

    /// Whether keys of the group ([`group_of`]) are selected.
    pub fn selects(&self, group: u32) -> bool {
        (group ^ u32::from_be_bytes(self.pattern)) & u32::from_be_bytes(self.mask) == 0
    }

    /// The least selected group from `from` on. No group is gone through for it.
    pub(crate) fn next_group(&self, from: u32) -> Option<u32> {
        let mask = u32::from_be_bytes(self.mask);
        let pattern = u32::from_be_bytes(self.pattern) & mask;
        let differs = (from ^ pattern) & mask;
        if differs == 0 {
            return Some(from);
        }
        // From this bit on downwards everything is as small as may be.
        let bit = differs.ilog2();
        let upper = u32::MAX.checked_shl(bit + 1).unwrap_or(0);
        if pattern >> bit & 1 != 0 {
            return Some(from & upper | pattern & !upper);
        }
        // It must be less there, so what is above must be more: one is added to the bits that no mask fixes.
        let raised = ((from | mask) & upper).checked_add(1u32.checked_shl(bit + 1)?)?;
        Some(raised & upper & !mask | pattern)
    }

    /// Whether both select the same keys.
    pub(crate) fn is_same(&self, other: &KeyPattern) -> bool {
        self.mask == other.mask && self.selects(u32::from_be_bytes(other.pattern))
    }
}

/// Which key space, by its number: 1 for the first that a device is given, and one more for each. No number is given twice, so a command for a key space that was deleted meets no other one; but where a power cut takes back that one was made, its number is given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub(crate) u32);

impl SpaceId {
    /// Where the device itself keeps what key spaces there are.
    pub(crate) const DIRECTORY: SpaceId = SpaceId(0);

    /// The number.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// What must be there for a pair to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreMode {
    /// Anything or nothing. The default.
    #[default]
    Post,
    /// The pair; else [`KvError::KeyMissing`].
    UpdateOnly,
    /// No pair; else [`KvError::KeyExists`].
    NoOverwrite,
    /// Anything or nothing: the value is appended to what is there. Written whole, in one piece with what was there.
    Append,
}

/// What an iterator gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IteratorContent {
    /// Keys. The default.
    #[default]
    Keys,
    /// Keys and values.
    Pairs,
}

/// Where a list of a group's keys goes on: behind this key, among those of its hash. The same for all openings of a device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyPlace {
    /// Hashes below this one are behind it. 0 is the start.
    pub hash: u64,
    /// Of that hash, keys up to this one are, too. Empty, and none is.
    pub after: Vec<u8>,
}

/// Where a list of all keys of a key space begins or goes on. The same for all openings of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpacePlace {
    /// At this key, or where it would be if it were there.
    Key(PairKey),
    /// In a group, at a place.
    Group {
        /// The first four bytes of the keys, as a number ([`group_of`]).
        group: u32,
        /// From where on.
        place: KeyPlace,
    },
}

impl SpacePlace {
    /// Before every key.
    pub const START: SpacePlace =
        SpacePlace::Group { group: 0, place: KeyPlace { hash: 0, after: Vec::new() } };
}

/// What a device is asked. What it takes of buffers comes back with the [completion](crate::Completion).
#[derive(Debug, Clone)]
pub enum KvCommand {
    /// Stores a pair: [`KvAnswer::Stored`].
    Store {
        /// Where.
        space: SpaceId,
        /// Under which key.
        key: PairKey,
        /// The value.
        value: Vec<u8>,
        /// What must be there.
        mode: StoreMode,
    },
    /// Reads a value, from an offset on, into the buffer: [`KvAnswer::Retrieved`]. A buffer that is too short gets the beginning, with
    /// [`KvError::BufferSmall`], and then nothing is deleted.
    Retrieve {
        /// Where.
        space: SpaceId,
        /// Under which key.
        key: PairKey,
        /// From which byte on; 0 is always there.
        offset: u64,
        /// Takes as many bytes as it is long; comes back as long as what was read.
        buffer: Vec<u8>,
        /// Deletes the pair in the same step.
        delete: bool,
    },
    /// Deletes a pair: [`KvAnswer::Deleted`].
    Delete {
        /// Where.
        space: SpaceId,
        /// Under which key.
        key: PairKey,
        /// Where there is none, [`KvError::KeyMissing`].
        must_exist: bool,
    },
    /// Which of some keys there are: [`KvAnswer::Exist`].
    Exist {
        /// Where.
        space: SpaceId,
        /// At most [`EXIST_KEYS_MAX`].
        keys: Vec<PairKey>,
    },
    /// How long a pair's value is: [`KvAnswer::PairInfo`].
    PairInfo {
        /// Where.
        space: SpaceId,
        /// Under which key.
        key: PairKey,
    },
    /// Opens an iterator: [`KvAnswer::Iterator`]. What is there from then on until the end comes exactly once; what comes or goes meanwhile may.
    OpenIterator {
        /// Where.
        space: SpaceId,
        /// Over which keys.
        selected: KeyPattern,
        /// Keys, or pairs.
        content: IteratorContent,
        /// Whose it is: [`KvCommand::CloseIterators`].
        owner: u64,
    },
    /// The next entries: [`KvAnswer::Batch`]. An entry that does not fit comes with the next batch.
    IterateNext {
        /// The handle.
        iterator: u32,
        /// Takes as many bytes as it is long; comes back as long as what was read ([`batch_entries`]).
        buffer: Vec<u8>,
    },
    /// Closes an iterator: [`KvAnswer::Closed`].
    CloseIterator {
        /// The handle.
        iterator: u32,
    },
    /// Closes all iterators of an owner, as after its end: [`KvAnswer::Closed`].
    CloseIterators {
        /// Whose.
        owner: u64,
    },
    /// Some keys of a group, from a place on, without an iterator that stays open: [`KvAnswer::Keys`]. What is there throughout comes, once for each time that its place
    /// is gone by. Not in the standard: for who goes on later, or in another process.
    ListKeys {
        /// Where.
        space: SpaceId,
        /// The first four bytes of the keys, as a number ([`group_of`]).
        group: u32,
        /// From where on.
        from: KeyPlace,
        /// So many at most: 1 to [`LIST_KEYS_MAX`].
        keys: usize,
    },
    /// Some keys of a key space, from a key or a place on, in an order that does not change: [`KvAnswer::KeysFrom`]. What is there throughout comes. Not in the standard: NVMe's List.
    ListFrom {
        /// Where.
        space: SpaceId,
        /// From where on.
        from: SpacePlace,
        /// So many at most: 1 to [`LIST_KEYS_MAX`].
        keys: usize,
    },
    /// How many keys a group has, from a place on: [`KvAnswer::Counted`]. Not in the standard.
    CountKeys {
        /// Where.
        space: SpaceId,
        /// The first four bytes of the keys, as a number ([`group_of`]).
        group: u32,
        /// From where on.
        from: KeyPlace,
    },
    /// Deletes the pairs with selected keys, one by one: [`KvAnswer::GroupDeleted`]. Each is deleted whole; a crash may leave some.
    DeleteGroup {
        /// Where.
        space: SpaceId,
        /// Which keys.
        selected: KeyPattern,
    },
    /// Makes a key space: [`KvAnswer::Space`].
    CreateSpace {
        /// 1 to 255 bytes.
        name: PairKey,
        /// Most bytes of its keys and values together; 0 is no limit.
        bytes_max: u64,
    },
    /// Deletes a key space: its pairs, as [`KvCommand::DeleteGroup`] does, and then its name. [`KvAnswer::GroupDeleted`].
    DeleteSpace {
        /// Its name.
        name: PairKey,
    },
    /// The same by its number: the only way for one whose name cannot be read ([`OpenReport::spaces_unnamed`](crate::OpenReport::spaces_unnamed)). [`KvAnswer::GroupDeleted`].
    DeleteSpaceNumber {
        /// Its number.
        space: SpaceId,
    },
    /// The key space of a name: [`KvAnswer::Space`].
    FindSpace {
        /// Its name.
        name: PairKey,
    },
    /// All key spaces, by their numbers: [`KvAnswer::Spaces`].
    ListSpaces,
    /// What the device is: [`KvAnswer::Info`].
    DeviceInfo,
    /// Makes durable what was completed before: [`KvAnswer::Flushed`].
    Flush,
}

impl KvCommand {
    /// Refuses what is wrong whatever the device has.
    ///
    /// # Errors
    /// [`KvError::ValueLength`], [`KvError::Param`].
    pub fn check(&self, value_bytes_max: u64) -> Result<()> {
        match self {
            KvCommand::Store { value, .. } if value.len() as u64 > value_bytes_max => {
                Err(KvError::ValueLength { bytes: value.len() as u64, max: value_bytes_max })
            }
            KvCommand::Exist { keys, .. } if keys.is_empty() || keys.len() > EXIST_KEYS_MAX => {
                Err(KvError::Param { what: "exist takes 1 to 4096 keys" })
            }
            KvCommand::ListKeys { keys, .. } | KvCommand::ListFrom { keys, .. }
                if *keys == 0 || *keys > LIST_KEYS_MAX =>
            {
                Err(KvError::Param { what: "a list takes 1 to 4096 keys" })
            }
            _ => Ok(()),
        }
    }

    /// The one key that it looks up, if it is one.
    pub(crate) fn key(&self) -> Option<(SpaceId, &PairKey)> {
        match self {
            KvCommand::Store { space, key, .. }
            | KvCommand::Retrieve { space, key, .. }
            | KvCommand::Delete { space, key, .. }
            | KvCommand::PairInfo { space, key } => Some((*space, key)),
            _ => None,
        }
    }

    /// The buffer that it came with, for whoever gives it back.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        match self {
            KvCommand::Store { value: buffer, .. }
            | KvCommand::Retrieve { buffer, .. }
            | KvCommand::IterateNext { buffer, .. } => buffer,
            _ => Vec::new(),
        }
    }
}

/// A key space as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Its number.
    pub id: SpaceId,
    /// Its name.
    pub name: Vec<u8>,
    /// Most bytes of its keys and values; 0 is no limit.
    pub bytes_max: u64,
    /// Bytes of its keys and values.
    pub bytes: u64,
    /// Its pairs.
    pub pairs: u64,
}

/// A device as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Bytes that pairs may take, with what the device adds to each.
    pub capacity_bytes: u64,
    /// Bytes that they take: records filled up to 32 bytes, their entries in footers, and of deletions that still have something to hide what is more than the room that is kept for
    /// them beside the capacity.
    pub used_bytes: u64,
    /// Bytes of all deletions that still have something to hide.
    pub tombstone_bytes: u64,
    /// Bytes of keys and values alone.
    pub logical_bytes: u64,
    /// Pairs.
    pub pairs: u64,
    /// Bytes in a value, at most.
    pub value_bytes_max: u64,
}

impl DeviceInfo {
    /// How full it is, in hundredths of a percent: 0 to 10,000.
    pub fn utilization(&self) -> u16 {
        let used = u128::from(self.used_bytes) * 10_000 / u128::from(self.capacity_bytes.max(1));
        used.min(10_000) as u16
    }
}

/// What a device answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvAnswer {
    /// The pair was stored.
    Stored,
    /// The value, or its end, is in the buffer.
    Retrieved {
        /// Bytes of the whole value, whatever the offset was.
        value_bytes: u64,
    },
    /// Whether there was a pair.
    Deleted(bool),
    /// Bit `i % 8` of byte `i / 8`, from the least on, says whether there is key `i`.
    Exist(Vec<u8>),
    /// Of a pair.
    PairInfo {
        /// Bytes of its value.
        value_bytes: u64,
    },
    /// The handle of an iterator.
    Iterator(u32),
    /// Entries are in the buffer. There may be none, and more to come: a batch looks at 4,096 keys, or groups of keys, at most.
    Batch {
        /// How many.
        entries: u32,
        /// Whether these were the last.
        end: bool,
    },
    /// Some keys.
    Keys {
        /// In no order that means anything.
        keys: Vec<PairKey>,
        /// So many beside them cannot be read, not even which keys they are.
        unreadable: u32,
        /// Where it goes on; none is the end.
        next: Option<KeyPlace>,
    },
    /// Some keys of a key space.
    KeysFrom {
        /// By group, and within one in no order that means anything.
        keys: Vec<PairKey>,
        /// So many beside them cannot be read, not even which keys they are.
        unreadable: u32,
        /// Where it goes on; none is the end. There may be no keys, and more to come.
        next: Option<SpacePlace>,
    },
    /// So many keys were counted, those that cannot be read among them.
    Counted {
        /// Up to `next`.
        keys: u64,
        /// Where it goes on; none is the end. A command goes by 65,536 hashes at most.
        next: Option<KeyPlace>,
    },
    /// So many iterators were closed.
    Closed(u32),
    /// So many pairs were deleted.
    GroupDeleted(u64),
    /// A key space.
    Space(SpaceInfo),
    /// Key spaces.
    Spaces(Vec<SpaceInfo>),
    /// The device.
    Info(DeviceInfo),
    /// It is durable.
    Flushed,
}

/// Bytes of an entry of a batch.
pub(crate) fn entry_bytes(key: &[u8], value_bytes: Option<u64>) -> u64 {
    4 + key.len() as u64 + value_bytes.map_or(0, |bytes| 4 + bytes)
}

/// Appends an entry of a batch, little-endian, without padding: u32 bytes of the key, the key, and with a value u32 bytes of it and the value.
pub(crate) fn push_entry(batch: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    for part in [Some(key), value].into_iter().flatten() {
        batch.extend_from_slice(&(part.len() as u32).to_le_bytes());
        batch.extend_from_slice(part);
    }
}

/// A key and, where there are values, its value.
pub type BatchEntry<'a> = (&'a [u8], Option<&'a [u8]>);

/// The entries of an iterator's batch.
///
/// # Errors
/// [`KvError::Param`]: these are not the bytes of such a batch.
pub fn batch_entries(batch: &[u8], content: IteratorContent) -> Result<Vec<BatchEntry<'_>>> {
    let mut rest = batch;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let key = take_part(&mut rest)?;
        let value = match content {
            IteratorContent::Keys => None,
            IteratorContent::Pairs => Some(take_part(&mut rest)?),
        };
        entries.push((key, value));
    }
    Ok(entries)
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let wrong = KvError::Param { what: "these bytes are no batch of an iterator" };
    let (len, after) = rest.split_at_checked(4).ok_or(wrong.clone())?;
    let (part, after) = after.split_at_checked(u32_at(len, 0) as usize).ok_or(wrong)?;
    *rest = after;
    Ok(part)
}

#[cfg(test)]
mod tests;
