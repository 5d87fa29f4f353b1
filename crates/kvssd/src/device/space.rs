//! Key spaces: names, numbers, limits, and what is in each.
//!
//! Owns [`Spaces`] and the bytes of a key space's pair in the directory. Promises that the counts are those of the live pairs, and that no number is given twice: so whatever of a key space that was
//! deleted comes back after damage, its name or pairs, meets no newer one. Must not know where pairs lie.
//!
//! ```text
//!  directory pair, under the name:  0    1          4        8               16
//!                                   +----+----------+--------+----------------+
//!                                   | 2  |  zeros   | number |   bytes max    |
//!                                   +----+----------+--------+----------------+
//! ```
//!
//! Byte 0 is the format. `bytes max` is the limit of keys and values together; 0 is none.

use std::collections::BTreeMap;

use hedgerow_row::le_bytes::{u32_at, u64_at};

use crate::code::{KvError, Result};
use crate::command::{SPACES_MAX, SpaceId, SpaceInfo, group_of};
use crate::flash::footer::FooterEntry;
use crate::flash::record::RecordHeader;

const DIRECTORY_BYTES: usize = 16;
const FORMAT: u8 = 2;

/// What the directory keeps of a key space.
pub(super) fn encode(id: SpaceId, bytes_max: u64) -> Vec<u8> {
    let mut bytes = vec![0; DIRECTORY_BYTES];
    bytes[0] = FORMAT;
    bytes[4..8].copy_from_slice(&id.number().to_le_bytes());
    bytes[8..].copy_from_slice(&bytes_max.to_le_bytes());
    bytes
}

/// A key space's number and limit.
pub(super) fn decode(bytes: &[u8]) -> Option<(SpaceId, u64)> {
    let known = bytes.len() == DIRECTORY_BYTES && bytes[0] == FORMAT;
    let id = SpaceId(u32_at(bytes.get(..DIRECTORY_BYTES)?, 4));
    (known && id != SpaceId::DIRECTORY).then(|| (id, u64_at(bytes, 8)))
}

/// What the directory says of a key space.
#[derive(Debug)]
struct SpaceName {
    /// Empty where it cannot be read.
    name: Vec<u8>,
    bytes_max: u64,
    /// The sequence of its record.
    made_at: u64,
}

/// What there is under a number.
#[derive(Debug, Default)]
struct KnownSpace {
    /// None of the directory itself.
    named: Option<SpaceName>,
    pairs: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Spaces {
    /// By number; the directory itself is the first.
    spaces: BTreeMap<u32, KnownSpace>,
    /// The last number that was given.
    last: u32,
    /// Records of the directory of which only the footer can be read, by their places.
    unreadable: BTreeMap<u64, FooterEntry>,
}

impl Spaces {
    fn named(&self) -> impl Iterator<Item = (u32, &KnownSpace, &SpaceName)> {
        self.spaces
            .iter()
            .filter_map(|(&number, known)| known.named.as_ref().map(|named| (number, known, named)))
    }

    /// A key space that is new. Of two with one number, which only a forged file has, the newer one counts.
    pub(super) fn add(&mut self, id: SpaceId, name: Vec<u8>, bytes_max: u64, made_at: u64) {
        self.note_number(id);
        let known = self.spaces.entry(id.number()).or_default();
        if known.named.as_ref().is_none_or(|named| named.made_at < made_at) {
            known.named = Some(SpaceName { name, bytes_max, made_at });
        }
    }

    /// A record of the directory whose name cannot be read.
    pub(super) fn add_unreadable(&mut self, place: u64, entry: &FooterEntry) {
        self.unreadable.insert(place, *entry);
    }

    /// What the footer says of an unreadable record of the directory, if it may be that of `name`, whose hash it has. A name that was lost is given again over it: that two names have one hash of 64
    /// bits, one length and the same first bytes does not happen.
    pub(super) fn unreadable_name(&self, place: u64, name: &[u8]) -> Option<RecordHeader> {
        let entry = self.unreadable.get(&place)?;
        let is_like = entry.group == group_of(name) && usize::from(entry.header.key_bytes) == name.len();
        is_like.then_some(entry.header)
    }

    /// Adds those that have pairs and no name, which cannot be read. Their numbers.
    pub(super) fn add_unnamed(&mut self) -> Vec<SpaceId> {
        let is_unnamed = |(_, known): &(&u32, &mut KnownSpace)| known.named.is_none() && known.pairs > 0;
        let unnamed = self.spaces.iter_mut().skip_while(|(number, _)| **number == 0).filter(is_unnamed);
        let name = || SpaceName { name: Vec::new(), bytes_max: 0, made_at: 0 };
        unnamed
            .map(|(&number, known)| {
                known.named = Some(name());
                SpaceId(number)
            })
            .collect()
    }

    pub(super) fn remove(&mut self, id: SpaceId) {
        self.spaces.remove(&id.number());
    }

    /// No number up to this one is given again.
    pub(super) fn note_number(&mut self, id: SpaceId) {
        self.last = self.last.max(id.number());
    }

    /// So many numbers may have been given of which there is no trace.
    pub(super) fn skip_numbers(&mut self, count: u64) {
        self.last = self.last.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// The last number that was given.
    pub(super) fn last_id(&self) -> SpaceId {
        SpaceId(self.last)
    }

    /// A number that no key space ever had.
    ///
    /// # Errors
    /// [`KvError::SpacesMax`], [`KvError::NumbersSpent`].
    pub(super) fn next_id(&self) -> Result<SpaceId> {
        if self.named().count() >= SPACES_MAX {
            return Err(KvError::SpacesMax { max: SPACES_MAX });
        }
        let spent = KvError::NumbersSpent { what: "key spaces", max: u64::from(u32::MAX) };
        self.last.checked_add(1).map(SpaceId).ok_or(spent)
    }

    /// # Errors
    /// [`KvError::SpaceMissing`].
    pub(super) fn get(&self, id: SpaceId) -> Result<SpaceInfo> {
        let known = self.spaces.get(&id.number()).ok_or(KvError::SpaceMissing)?;
        let named = known.named.as_ref().ok_or(KvError::SpaceMissing)?;
        Ok(info_of(id.number(), known, named))
    }

    pub(super) fn check(&self, id: SpaceId) -> Result<()> {
        let known = self.spaces.get(&id.number());
        if known.is_some_and(|known| known.named.is_some()) { Ok(()) } else { Err(KvError::SpaceMissing) }
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<SpaceInfo> {
        let found = self.named().find(|(_, _, named)| named.name == name);
        found.map(|(number, known, named)| info_of(number, known, named))
    }

    pub(super) fn all(&self) -> Vec<SpaceInfo> {
        self.named().map(|(number, known, named)| info_of(number, known, named)).collect()
    }

    /// Pairs and their bytes, of all key spaces but the directory.
    pub(super) fn totals(&self) -> (u64, u64) {
        let counted = self.spaces.range(1..).map(|(_, known)| (known.pairs, known.bytes));
        counted.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Pairs and their bytes under each number, the directory's among them.
    pub(super) fn counts(&self) -> impl Iterator<Item = (SpaceId, u64, u64)> {
        self.spaces.iter().map(|(&number, known)| (SpaceId(number), known.pairs, known.bytes))
    }

    /// Refuses a pair that a limit has no room for, in the place of one of `old` bytes.
    pub(super) fn check_room(&self, id: SpaceId, old: u64, new: u64) -> Result<()> {
        let Some(known) = self.spaces.get(&id.number()) else { return Ok(()) };
        let Some(SpaceName { bytes_max, .. }) = known.named else { return Ok(()) };
        let rest = known.bytes.saturating_sub(old);
        if bytes_max > 0 && new > old && rest + new > bytes_max {
            return Err(KvError::SpaceFull {
                needed: new - old,
                free: bytes_max.saturating_sub(known.bytes),
            });
        }
        Ok(())
    }

    /// A pair of so many bytes came.
    pub(super) fn count(&mut self, id: SpaceId, bytes: u64) {
        let known = self.spaces.entry(id.number()).or_default();
        (known.pairs, known.bytes) = (known.pairs + 1, known.bytes + bytes);
    }

    /// A pair of so many bytes went.
    pub(super) fn uncount(&mut self, id: SpaceId, bytes: u64) {
        if let Some(known) = self.spaces.get_mut(&id.number()) {
            known.pairs = known.pairs.saturating_sub(1);
            known.bytes = known.bytes.saturating_sub(bytes);
        }
    }
}

fn info_of(number: u32, known: &KnownSpace, named: &SpaceName) -> SpaceInfo {
    SpaceInfo {
        id: SpaceId(number),
        name: named.name.clone(),
        bytes_max: named.bytes_max,
        bytes: known.bytes,
        pairs: known.pairs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_pair_keeps_its_bytes() {
        let bytes = encode(SpaceId(0x0304_0506), 0x0102);
        assert_eq!(bytes, [2, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode(&bytes), Some((SpaceId(0x0304_0506), 0x0102)));
        let mut of_none = bytes.clone();
        of_none[4..8].fill(0);
        for spoiled in [&bytes[..15], &[1; 16], &of_none, &[]] {
            assert_eq!(decode(spoiled), None);
        }
    }

    #[test]
    fn a_limit_counts_what_goes() {
        let mut spaces = Spaces::default();
        let id = spaces.next_id().unwrap();
        spaces.add(id, b"a".to_vec(), 100, 1);
        spaces.count(id, 90);
        assert!(spaces.check_room(id, 0, 10).is_ok());
        assert!(matches!(spaces.check_room(id, 0, 11), Err(KvError::SpaceFull { needed: 11, free: 10 })));
        assert!(spaces.check_room(id, 90, 100).is_ok() && spaces.check_room(id, 90, 101).is_err());
        spaces.uncount(id, 90);
        assert_eq!((spaces.get(id).unwrap().pairs, spaces.get(id).unwrap().bytes), (0, 0));
    }

    #[test]
    fn no_number_is_given_twice_and_the_last_is_the_end() {
        let mut spaces = Spaces::default();
        let id = spaces.next_id().unwrap();
        spaces.add(id, b"a".to_vec(), 0, 1);
        spaces.remove(id);
        assert_eq!(spaces.next_id().unwrap(), SpaceId(2));
        spaces.note_number(SpaceId(u32::MAX - 1));
        spaces.add(spaces.next_id().unwrap(), b"b".to_vec(), 0, 2);
        assert!(matches!(spaces.next_id(), Err(KvError::NumbersSpent { .. })));
        spaces.skip_numbers(u64::MAX);
        assert_eq!(spaces.last_id(), SpaceId(u32::MAX));
        // Of two with one number the newer one counts, whichever is met first.
        for (name, made_at) in [(&b"c"[..], 5), (b"d", 3)] {
            spaces.add(SpaceId(9), name.to_vec(), 0, made_at);
        }
        assert_eq!(spaces.get(SpaceId(9)).unwrap().name, b"c");
    }
}
