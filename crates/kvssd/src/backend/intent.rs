//! What a batch is about to do, kept until all of it is done.
//!
//! Owns the bytes of an intent, and which intents there are. Promises that bytes which decode are, whole, what was encoded. Must not know how it is done.
//!
//! A batch of several changes is first kept as one pair of the array's own, on the device of its first change (on both that have it, where an array has two copies), under `intent` and the mark of its first change, big-endian:
//!
//! ```text
//!  0   1        4        8                16
//!  +---+--------+--------+----------------+------------ each change: ------------------------------+
//!  | 1 |  zeros | count  |   first mark   | 1 or 2 | key bytes | 0 0 | value bytes |  key  | value  |
//!  +---+--------+--------+----------------+--------+-----------+-----+-------------+-------+--------+
//! ```
//!
//! * All integers are little-endian. Byte 0 is the format. `count` changes of pairs, each of another one, four bytes; `first mark` is that of the first, and each next one is one more.
//! * Of a change: 1 if the pair is to have the value that follows, 2 if it is to go; one byte of its key's length, two of zeros, four of the value's length, then key and value, without its mark.
//!
//! Whoever opens the array does what is left to be done of each intent: a change is there already if the pair under its key has its mark, or a later one.

use std::collections::{BTreeMap, HashMap};

use hedgerow_row::backend::GROUP_BYTES;
use hedgerow_row::le_bytes::{u32_at, u64_at};

use crate::command::PairKey;

/// What keys of intents begin with.
const KEY_HEAD: &[u8; 6] = b"intent";
/// Their group, among the keys of the array's own.
pub(super) const INTENT_GROUP: u32 = u32::from_be_bytes(*b"inte");

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 16;
const CHANGE_HEAD_BYTES: usize = 8;
const STORED: u8 = 1;
const GONE: u8 = 2;

/// What an intent takes beside its changes, and each of these beside its key and its value, at most: no more than a batch counts for it.
pub(super) const INTENT_BYTES: usize = HEAD_BYTES;
const _: () = assert!(CHANGE_HEAD_BYTES <= hedgerow_row::backend::CHANGE_BYTES);

/// A change of one pair, with the mark that it gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MarkedChange {
    pub(super) key: PairKey,
    /// Without the mark; none if the pair is to go.
    pub(super) value: Option<Vec<u8>>,
}

/// What a batch is about to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Intent {
    /// Of the first change; each next one has one more.
    pub(super) first_mark: u64,
    pub(super) changes: Vec<MarkedChange>,
}

impl Intent {
    /// A change, with its mark.
    pub(super) fn change(&self, place: usize) -> (&MarkedChange, u64) {
        (&self.changes[place], self.first_mark + place as u64)
    }

    /// The key that an intent is kept under.
    pub(super) fn key_of(first_mark: u64) -> Vec<u8> {
        [&KEY_HEAD[..], &first_mark.to_be_bytes()].concat()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT, 0, 0, 0];
        bytes.extend_from_slice(&(self.changes.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.first_mark.to_le_bytes());
        for MarkedChange { key, value } in &self.changes {
            let (kind, value) = value.as_deref().map_or((GONE, &[][..]), |value| (STORED, value));
            bytes.extend_from_slice(&[kind, key.bytes().len() as u8, 0, 0]);
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(key.bytes());
            bytes.extend_from_slice(value);
        }
        bytes
    }

    /// None if these bytes are no intent.
    pub(super) fn decode(bytes: &[u8]) -> Option<Intent> {
        if bytes.len() < HEAD_BYTES || bytes[..4] != [FORMAT, 0, 0, 0] {
            return None;
        }
        let (count, first_mark, mut rest) = (u32_at(bytes, 4), u64_at(bytes, 8), &bytes[HEAD_BYTES..]);
        let mut changes = Vec::new();
        for _ in 0..count {
            let head = rest.get(..CHANGE_HEAD_BYTES)?;
            let (kind, key_bytes, value_bytes) = (head[0], usize::from(head[1]), u32_at(head, 4) as usize);
            let key = rest.get(CHANGE_HEAD_BYTES..)?.get(..key_bytes)?;
            let value = rest[CHANGE_HEAD_BYTES + key_bytes..].get(..value_bytes)?;
            let is_whole = head[2..4] == [0, 0] && key_bytes >= GROUP_BYTES;
            let value = match kind {
                STORED if is_whole => Some(value.to_vec()),
                GONE if is_whole && value.is_empty() => None,
                _ => return None,
            };
            changes.push(MarkedChange { key: PairKey::new(key).ok()?, value });
            rest = &rest[CHANGE_HEAD_BYTES + key_bytes + value_bytes..];
        }
        first_mark.checked_add(u64::from(count))?;
        rest.is_empty().then_some(Intent { first_mark, changes })
    }
}

/// An intent that is kept.
#[derive(Debug)]
pub(super) struct KeptIntent {
    /// The devices that have it: those of its first change.
    pub(super) homes: Vec<usize>,
    /// The devices of its changes.
    pub(super) devices: Vec<usize>,
    pub(super) keys: Vec<PairKey>,
    /// Whether it was cut short by something that failed: only an opening does what is left of it.
    pub(super) is_half_done: bool,
}

/// The intents that are kept, by the marks of their first changes.
///
/// While one is, no pair of it may be removed: an opening that finds the intent and not the pair takes its change for one that is left to be done.
#[derive(Debug, Default)]
pub(super) struct Intents {
    kept: BTreeMap<u64, KeptIntent>,
    /// How many of them have a key.
    of_key: HashMap<Box<[u8]>, usize>,
}

impl Intents {
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn add(&mut self, first_mark: u64, intent: KeptIntent) {
        for key in &intent.keys {
            *self.of_key.entry(key.bytes().into()).or_default() += 1;
        }
        self.kept.insert(first_mark, intent);
    }

    pub(super) fn remove(&mut self, first_mark: u64) {
        let Some(intent) = self.kept.remove(&first_mark) else { return };
        for key in intent.keys {
            if let Some(count) = self.of_key.get_mut(key.bytes()) {
                *count -= 1;
                if *count == 0 {
                    self.of_key.remove(key.bytes());
                }
            }
        }
    }

    /// The batch was cut short.
    pub(super) fn set_half_done(&mut self, first_mark: u64) {
        if let Some(intent) = self.kept.get_mut(&first_mark) {
            intent.is_half_done = true;
        }
    }

    /// Whether a pair is of one.
    pub(super) fn has_key(&self, key: &[u8]) -> bool {
        self.of_key.contains_key(key)
    }

    /// Whether one of these pairs, of which one is of an intent, is of one that was cut short.
    pub(super) fn is_half_done(&self, mut is_of: impl FnMut(&[u8]) -> bool) -> bool {
        let mut half_done = self.kept.values().filter(|intent| intent.is_half_done);
        half_done.any(|intent| intent.keys.iter().any(|key| is_of(key.bytes())))
    }

    /// All pairs that are.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.of_key.keys().map(|key| &**key)
    }

    /// Whether a pair of a group is.
    pub(super) fn has_group(&self, group: u32) -> bool {
        self.of_key.keys().any(|key| key.starts_with(&group.to_be_bytes()))
    }

    /// Those of which everything is made: the mark, the homes and the devices of each.
    pub(super) fn made(&self) -> Vec<(u64, Vec<usize>, Vec<usize>)> {
        let made = self.kept.iter().filter(|(_, intent)| !intent.is_half_done);
        made.map(|(&mark, intent)| (mark, intent.homes.clone(), intent.devices.clone())).collect()
    }

    /// A device is out: what it had of intents is of no more use, and others have it.
    pub(super) fn forget_device(&mut self, device: usize) {
        for intent in self.kept.values_mut() {
            intent.homes.retain(|&home| home != device);
            intent.devices.retain(|&of| of != device);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn intent() -> Intent {
        let key = |key: &[u8]| PairKey::new(key).unwrap();
        let changes = vec![
            MarkedChange { key: key(b"\0\0\0\x01ab"), value: Some(b"xyz".to_vec()) },
            MarkedChange { key: key(b"\0\0\0\x02"), value: None },
        ];
        Intent { first_mark: 0x1122, changes }
    }

    #[test]
    fn golden_bytes() {
        let wanted: Vec<u8> = [
            &[1, 0, 0, 0, 2, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0][..],
            &[1, 6, 0, 0, 3, 0, 0, 0],
            b"\0\0\0\x01ab",
            b"xyz",
            &[2, 4, 0, 0, 0, 0, 0, 0],
            b"\0\0\0\x02",
        ]
        .concat();
        assert_eq!(intent().encode(), wanted);
        assert_eq!(Intent::key_of(0x1122), b"intent\0\0\0\0\0\0\x11\x22");
        assert!(Intent::key_of(7).starts_with(&INTENT_GROUP.to_be_bytes()));
    }

    #[test]
    fn what_was_encoded_is_decoded_and_what_is_cut_is_not() {
        let bytes = intent().encode();
        assert_eq!(Intent::decode(&bytes), Some(intent()));
        for at in 0..bytes.len() {
            assert_eq!(Intent::decode(&bytes[..at]), None, "cut at {at}");
        }
        assert_eq!(Intent::decode(&[&bytes[..], &[0]].concat()), None);
        for at in [0, 1, 4, 16, 18, 33] {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= 0x44;
            assert_eq!(Intent::decode(&spoiled), None, "byte {at}");
        }
    }

    #[test]
    fn keys_are_of_an_intent_until_the_last_of_theirs_is_gone() {
        let kept = |keys: &[&[u8]]| KeptIntent {
            homes: vec![0],
            devices: vec![0],
            keys: keys.iter().map(|key| PairKey::new(key).unwrap()).collect(),
            is_half_done: false,
        };
        let mut intents = Intents::default();
        intents.add(1, kept(&[b"\0\0\0\x01a", b"\0\0\0\x01b"]));
        intents.add(5, kept(&[b"\0\0\0\x01a"]));
        intents.remove(1);
        assert!(intents.has_key(b"\0\0\0\x01a") && !intents.has_key(b"\0\0\0\x01b"));
        assert!(intents.has_group(1) && !intents.has_group(2));
        assert_eq!(intents.made(), [(5, vec![0], vec![0])]);
        intents.set_half_done(5);
        assert!(intents.made().is_empty());
        assert!(
            intents.is_half_done(|key| key.ends_with(b"a"))
                && !intents.is_half_done(|key| key.ends_with(b"b"))
        );
        intents.remove(5);
        assert!(!intents.has_key(b"\0\0\0\x01a") && !intents.has_group(1));
        assert_eq!(intents.len(), 0);
    }
}
