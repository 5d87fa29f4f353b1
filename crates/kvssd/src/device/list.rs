//! Keys of a group, or of a key space, listed and counted without an iterator.
//!
//! Owns how such a list goes on: the places are hashes, in their order, and keys within one. So nothing of it is kept in the device, and it goes on after the device was opened anew. Promises that a
//! key that is there throughout comes, and that a command looks at so many hashes and no more. Must not know who lists.

use super::Device;
use super::bucket::WalkPosition;
use crate::code::Result;
use crate::command::{KeyPattern, KeyPlace, KvAnswer, PairKey, SpaceId, SpacePlace, group_of};

/// Hashes that are counted by one command.
const COUNTED_AT_ONCE: usize = 65_536;

/// The hashes of a group, from a place on, and where they go on.
type GroupHashes = (Vec<u64>, Option<KeyPlace>);

impl Device {
    pub(super) fn list_keys(
        &mut self,
        space: SpaceId,
        group: u32,
        from: &KeyPlace,
        most: usize,
    ) -> Result<KvAnswer> {
        let (hashes, mut next) = self.group_hashes(space, group, from, most)?;
        let (mut listed, mut unreadable) = (Vec::new(), 0);
        'hashes: for hash in hashes {
            let after = if hash == from.hash { &from.after[..] } else { &[] };
            let (keys, error) = self.keys_of(space, group, hash, after)?;
            unreadable += u32::from(error.is_some());
            for (key, _) in keys {
                if listed.len() == most {
                    // Several keys share a hash.
                    let after = listed.last().map_or_else(Vec::new, |last: &PairKey| last.bytes().to_vec());
                    let is_within = self.hash(space, &after) == hash;
                    next = Some(KeyPlace { hash, after: if is_within { after } else { Vec::new() } });
                    break 'hashes;
                }
                listed.push(PairKey::new(&key)?);
            }
        }
        Ok(KvAnswer::Keys { keys: listed, unreadable, next })
    }

    pub(super) fn list_from(&mut self, space: SpaceId, from: &SpacePlace, most: usize) -> Result<KvAnswer> {
        self.spaces.check(space)?;
        let (position, first_key) = match from {
            SpacePlace::Key(key) => {
                let (group, hash) = (group_of(key.bytes()), self.hash(space, key.bytes()));
                (WalkPosition { group, hash, after: Vec::new() }, key.bytes())
            }
            SpacePlace::Group { group, place } => {
                let after = place.after.clone();
                (WalkPosition { group: *group, hash: place.hash, after }, &[][..])
            }
        };
        // A look for each hash, and one for each group that begins.
        let batch = self.buckets.hashes(space, &KeyPattern::ALL, &position, most, 2 * most + 1);
        let place_of = |group, hash, after| SpacePlace::Group { group, place: KeyPlace { hash, after } };
        let mut next = batch.next.map(|next| place_of(next.group, next.hash, Vec::new()));
        let (mut listed, mut unreadable) = (Vec::<PairKey>::new(), 0);
        'hashes: for (group, hash) in batch.hashes {
            let is_first = (group, hash) == (position.group, position.hash);
            let after = if is_first { &position.after[..] } else { &[] };
            let (keys, error) = self.keys_of(space, group, hash, after)?;
            unreadable += u32::from(error.is_some());
            let mut is_within = false;
            for (key, _) in keys {
                if is_first && &key[..] < first_key {
                    continue;
                }
                if listed.len() == most {
                    // Several keys share a hash.
                    let last = listed.last().filter(|_| is_within);
                    next =
                        Some(place_of(group, hash, last.map_or_else(Vec::new, |last| last.bytes().to_vec())));
                    break 'hashes;
                }
                listed.push(PairKey::new(&key)?);
                is_within = true;
            }
        }
        Ok(KvAnswer::KeysFrom { keys: listed, unreadable, next })
    }

    pub(super) fn count_keys(&mut self, space: SpaceId, group: u32, from: &KeyPlace) -> Result<KvAnswer> {
        let (hashes, next) = self.group_hashes(space, group, from, COUNTED_AT_ONCE)?;
        let mut counted = 0;
        for hash in hashes {
            let mut entries = self.index.find(hash);
            let first = entries.next();
            if entries.next().is_none() {
                // A hash of one key is in its bucket as long as that key is there, or another of that hash has not gone yet.
                counted += u64::from(first.is_some_and(|first| !first.entry.is_tombstone));
                continue;
            }
            let (keys, error) = self.keys_of(space, group, hash, &[])?;
            counted += keys.len() as u64 + u64::from(error.is_some());
        }
        Ok(KvAnswer::Counted { keys: counted, next })
    }

    fn group_hashes(&self, space: SpaceId, group: u32, from: &KeyPlace, most: usize) -> Result<GroupHashes> {
        self.spaces.check(space)?;
        let selected = KeyPattern::prefix(&group.to_be_bytes());
        let position = WalkPosition { group, hash: from.hash, after: Vec::new() };
        let batch = self.buckets.hashes(space, &selected, &position, most, most);
        let next = batch.next.filter(|next| next.group == group);
        let next = next.map(|next| KeyPlace { hash: next.hash, after: Vec::new() });
        Ok((batch.hashes.into_iter().map(|(_, hash)| hash).collect(), next))
    }
}
