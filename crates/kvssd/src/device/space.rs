//! Key spaces: names, limits, and what is in each.
//!
//! Owns [`Spaces`] and the bytes of a key space's pair in the directory. Promises that the counts are those of the live pairs. Must not know where pairs lie.
//!
//! ```text
//!  directory pair, under the name:  0    1    2          8               16
//!                                   +----+----+----------+----------------+
//!                                   | 1  | id |  zeros   |   bytes max    |
//!                                   +----+----+----------+----------------+
//! ```
//!
//! Byte 0 is the format. `bytes max` is the limit of keys and values together; 0 is none.

use hedgerow_row::le_bytes::u64_at;

use crate::code::{KvError, Result};
use crate::command::{SPACES_MAX, SpaceId, SpaceInfo};

const DIRECTORY_BYTES: usize = 16;
const FORMAT: u8 = 1;

/// What the directory keeps of a key space.
pub(super) fn encode(id: SpaceId, bytes_max: u64) -> Vec<u8> {
    let mut bytes = vec![0; DIRECTORY_BYTES];
    (bytes[0], bytes[1]) = (FORMAT, id.number());
    bytes[8..].copy_from_slice(&bytes_max.to_le_bytes());
    bytes
}

/// A key space's number and limit.
pub(super) fn decode(bytes: &[u8]) -> Option<(SpaceId, u64)> {
    let known = bytes.len() == DIRECTORY_BYTES && bytes[0] == FORMAT;
    let id = SpaceId(*bytes.get(1)?);
    (known && (1..=SPACES_MAX).contains(&usize::from(id.number()))).then(|| (id, u64_at(bytes, 8)))
}

#[derive(Debug, Default)]
pub(super) struct Spaces {
    /// By number.
    spaces: [Option<SpaceInfo>; SPACES_MAX + 1],
    /// Pairs and their bytes, by number; those of the directory itself first.
    pairs: [(u64, u64); SPACES_MAX + 1],
}

impl Spaces {
    fn index(id: SpaceId) -> usize {
        usize::from(id.number()) % (SPACES_MAX + 1)
    }

    pub(super) fn add(&mut self, id: SpaceId, name: Vec<u8>, bytes_max: u64) {
        self.spaces[Spaces::index(id)] = Some(SpaceInfo { id, name, bytes_max, bytes: 0, pairs: 0 });
    }

    /// Adds those that have pairs and no name, which cannot be read. Their numbers.
    pub(super) fn add_unnamed(&mut self) -> Vec<SpaceId> {
        let is_unnamed = |&n: &usize| self.spaces[n].is_none() && self.pairs[n].0 > 0;
        let unnamed: Vec<SpaceId> = (1..=SPACES_MAX).filter(is_unnamed).map(|n| SpaceId(n as u8)).collect();
        for &id in &unnamed {
            self.add(id, Vec::new(), 0);
        }
        unnamed
    }

    pub(super) fn remove(&mut self, id: SpaceId) {
        self.spaces[Spaces::index(id)] = None;
    }

    /// A number that no key space has.
    pub(super) fn free_id(&self) -> Result<SpaceId> {
        let free = (1..=SPACES_MAX).find(|&n| self.spaces[n].is_none());
        free.map(|n| SpaceId(n as u8)).ok_or(KvError::SpacesMax { max: SPACES_MAX })
    }

    /// # Errors
    /// [`KvError::SpaceMissing`].
    pub(super) fn get(&self, id: SpaceId) -> Result<SpaceInfo> {
        let info = self.spaces[Spaces::index(id)].clone().ok_or(KvError::SpaceMissing)?;
        Ok(self.counted(info))
    }

    pub(super) fn check(&self, id: SpaceId) -> Result<()> {
        if self.spaces[Spaces::index(id)].is_some() { Ok(()) } else { Err(KvError::SpaceMissing) }
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<SpaceInfo> {
        let found = self.spaces.iter().flatten().find(|info| info.name == name);
        found.cloned().map(|info| self.counted(info))
    }

    pub(super) fn all(&self) -> Vec<SpaceInfo> {
        self.spaces.iter().flatten().cloned().map(|info| self.counted(info)).collect()
    }

    fn counted(&self, info: SpaceInfo) -> SpaceInfo {
        let (pairs, bytes) = self.pairs[Spaces::index(info.id)];
        SpaceInfo { pairs, bytes, ..info }
    }

    /// Pairs and their bytes, of all key spaces but the directory.
    pub(super) fn totals(&self) -> (u64, u64) {
        self.pairs[1..].iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Refuses a pair that a limit has no room for, in the place of one of `old` bytes.
    pub(super) fn check_room(&self, id: SpaceId, old: u64, new: u64) -> Result<()> {
        let Some(info) = &self.spaces[Spaces::index(id)] else { return Ok(()) };
        let (_, bytes) = self.pairs[Spaces::index(id)];
        let rest = bytes.saturating_sub(old);
        if info.bytes_max > 0 && new > old && rest + new > info.bytes_max {
            return Err(KvError::SpaceFull { needed: new - old, free: info.bytes_max.saturating_sub(bytes) });
        }
        Ok(())
    }

    /// A pair of so many bytes came.
    pub(super) fn count(&mut self, id: SpaceId, bytes: u64) {
        let (pairs, all) = &mut self.pairs[Spaces::index(id)];
        (*pairs, *all) = (*pairs + 1, *all + bytes);
    }

    /// A pair of so many bytes went.
    pub(super) fn uncount(&mut self, id: SpaceId, bytes: u64) {
        let (pairs, all) = &mut self.pairs[Spaces::index(id)];
        (*pairs, *all) = (pairs.saturating_sub(1), all.saturating_sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_pair_keeps_its_bytes() {
        let bytes = encode(SpaceId(3), 0x0102);
        assert_eq!(bytes, [1, 3, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode(&bytes), Some((SpaceId(3), 0x0102)));
        for spoiled in [&bytes[..15], &[2; 16], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]] {
            assert_eq!(decode(spoiled), None);
        }
    }

    #[test]
    fn a_limit_counts_what_goes() {
        let mut spaces = Spaces::default();
        let id = spaces.free_id().unwrap();
        spaces.add(id, b"a".to_vec(), 100);
        spaces.count(id, 90);
        assert!(spaces.check_room(id, 0, 10).is_ok());
        assert!(matches!(spaces.check_room(id, 0, 11), Err(KvError::SpaceFull { needed: 11, free: 10 })));
        assert!(spaces.check_room(id, 90, 100).is_ok() && spaces.check_room(id, 90, 101).is_err());
        spaces.uncount(id, 90);
        assert_eq!((spaces.get(id).unwrap().pairs, spaces.get(id).unwrap().bytes), (0, 0));
    }
}
