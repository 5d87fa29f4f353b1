//! What a map says of arrays that have two copies of each shard.
//!
//! Owns the bytes of second copies in a map, which devices have a key, what becomes of a map as a device goes out, and which copies are to be made where. Promises that the two copies of a shard are on different devices, and
//! that none is on one that is out. Must not know how pairs are copied.

use std::collections::{BTreeMap, BTreeSet};

use super::{ArrayMap, DEVICE_BITS, MapWork, SHARDS, shard_of};

const SECOND_BIT: u32 = 1 << 10;
const TARGET_BIT: u32 = 1 << 11;
const FIELD_BITS: u32 = (1 << 12) - 1;
/// 12 bits a shard.
pub(super) const SECONDS_BYTES: usize = SHARDS / 2 * 3;

/// A copy that is to be made of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend) struct CopyMove {
    pub(in crate::backend) shard: u16,
    /// The device whose copy goes for it; none where there was one copy.
    pub(in crate::backend) goes: Option<u16>,
    pub(in crate::backend) to: u16,
}

impl ArrayMap {
    /// With a second copy of each shard, on the other devices in turn.
    pub(in crate::backend) fn with_copies(self) -> ArrayMap {
        let devices = self.members.len();
        let second = |shard: usize| {
            let first = usize::from(self.shards[shard]);
            let others = devices.saturating_sub(1).max(1);
            ((first + 1 + shard / devices % others) % devices) as u16
        };
        let seconds = (0..SHARDS).map(|shard| Some(second(shard))).collect();
        ArrayMap { seconds: Some(seconds), ..self }
    }

    /// Of each shard, where no device is out.
    pub(in crate::backend) fn copies(&self) -> usize {
        if self.seconds.is_some() { 2 } else { 1 }
    }

    pub(in crate::backend) fn shard(&self, key: &[u8]) -> u16 {
        shard_of(self.array_id, key) as u16
    }

    /// Where the second copy of a shard is.
    pub(in crate::backend) fn second(&self, shard: usize) -> Option<u16> {
        self.seconds.as_ref().and_then(|seconds| seconds[shard])
    }

    /// Which device has the second copy of a key.
    pub(in crate::backend) fn second_of(&self, key: &[u8]) -> Option<usize> {
        self.seconds.as_ref()?[shard_of(self.array_id, key)].map(usize::from)
    }

    /// The devices that have a key, the first copy's first.
    pub(in crate::backend) fn copies_of(&self, key: &[u8]) -> impl Iterator<Item = usize> + use<> {
        [Some(self.device_of(key)), self.second_of(key)].into_iter().flatten()
    }

    /// Whether a device has a copy of a key.
    pub(in crate::backend) fn has_copy(&self, device: usize, key: &[u8]) -> bool {
        self.copies_of(key).any(|of| of == device)
    }

    /// Whether a device has the first or the second copy of any shard.
    pub(in crate::backend) fn has_shards(&self, device: u16) -> bool {
        (0..SHARDS).any(|shard| self.shards[shard] == device || self.second(shard) == Some(device))
    }

    /// Its devices that are not out.
    pub(in crate::backend) fn in_members(&self) -> impl Iterator<Item = u16> + '_ {
        self.members.difference(&self.out).copied()
    }

    /// How many shards have no copy but on these devices.
    pub(in crate::backend) fn shards_only_on(&self, devices: &BTreeSet<u16>) -> usize {
        let is_there = |device: Option<u16>| device.is_some_and(|device| !devices.contains(&device));
        (0..SHARDS)
            .filter(|&shard| !is_there(Some(self.shards[shard])) && !is_there(self.second(shard)))
            .count()
    }

    /// Whether these devices may have a copy of each shard. One on which a copy is being made has it by the next map, which they may have while the others do not.
    pub(in crate::backend) fn may_have_all(&self, devices: &BTreeSet<u16>) -> bool {
        let has = |shard: usize| {
            let target = self.moves.get(&(shard as u16)).copied();
            let copies = [Some(self.shards[shard]), self.second(shard), target];
            copies.into_iter().flatten().any(|device| devices.contains(&device))
        };
        (0..SHARDS).all(has)
    }

    /// Shards that have one copy where they are to have two.
    pub(in crate::backend) fn shards_alone(&self) -> usize {
        self.seconds.as_ref().map_or(0, |seconds| seconds.iter().filter(|second| second.is_none()).count())
    }

    /// A device has no copy of anything any more: the others' are all that there are. What was on the move stays where it was. For who knows that each shard has another copy.
    pub(in crate::backend) fn put_out(&mut self, device: u16) {
        self.cancel_moves();
        let Some(seconds) = &mut self.seconds else { return };
        for (first, second) in self.shards.iter_mut().zip(seconds.iter_mut()) {
            if *first == device {
                *first = second.take().unwrap_or(*first);
            } else if *second == Some(device) {
                *second = None;
            }
        }
        self.strays.remove(&device);
        self.out.insert(device);
        self.switches += 1;
    }

    /// The second copy of a shard becomes the first. For who knows that they are the same.
    pub(in crate::backend) fn swap(&mut self, shard: usize) {
        let Some(second) = self.seconds.as_mut().and_then(|seconds| seconds[shard].as_mut()) else { return };
        std::mem::swap(second, &mut self.shards[shard]);
    }

    /// All copies that are left to be made for what is under way.
    pub(in crate::backend) fn copies_left(&self) -> Vec<CopyMove> {
        let goes = match self.work {
            MapWork::Remove(device) => Some(device),
            _ => None,
        };
        let mut counts: BTreeMap<u16, usize> =
            self.in_members().filter(|device| Some(*device) != goes).map(|device| (device, 0)).collect();
        for shard in 0..SHARDS {
            for device in [Some(self.shards[shard]), self.second(shard)].into_iter().flatten() {
                if let Some(count) = counts.get_mut(&device) {
                    *count += 1;
                }
            }
        }
        let mut left = Vec::new();
        for shard in 0..SHARDS {
            let (first, second) = (self.shards[shard], self.second(shard));
            let (goes, stays) = match (self.work, second) {
                (MapWork::Spread | MapWork::Rebuild, None) => (None, first),
                (MapWork::Remove(device), None) if first == device => (None, first),
                (MapWork::Remove(device), Some(second)) if first == device => (Some(device), second),
                (MapWork::Remove(device), Some(second)) if second == device => (Some(device), first),
                _ => continue,
            };
            let others = counts.iter().filter(|(device, _)| **device != stays);
            let Some(to) = others.min_by_key(|(_, count)| **count).map(|(device, _)| *device) else {
                continue;
            };
            *counts.entry(to).or_default() += 1;
            left.push(CopyMove { shard: shard as u16, goes, to });
        }
        if self.work == MapWork::Spread {
            self.spread_copies(counts, &mut left);
        }
        left
    }

    /// Copies that go from the devices that have the most to those that have the least.
    fn spread_copies(&self, mut counts: BTreeMap<u16, usize>, left: &mut Vec<CopyMove>) {
        let mut chosen: BTreeSet<u16> = left.iter().map(|copy| copy.shard).collect();
        loop {
            let Some((&to, &least)) = counts.iter().min_by_key(|(_, count)| **count) else { return };
            let mut fuller: Vec<(usize, u16)> = counts
                .iter()
                .filter(|(_, count)| **count > least + 1)
                .map(|(&device, &count)| (count, device))
                .collect();
            fuller.sort_unstable_by(|a, b| b.cmp(a));
            let of = |device: u16| {
                (0..SHARDS).find(|&shard| {
                    let copies = [Some(self.shards[shard]), self.second(shard)];
                    copies[1].is_some()
                        && copies.contains(&Some(device))
                        && !copies.contains(&Some(to))
                        && !chosen.contains(&(shard as u16))
                })
            };
            let Some((from, shard)) = fuller.iter().find_map(|&(_, device)| Some((device, of(device)?)))
            else {
                return;
            };
            chosen.insert(shard as u16);
            left.push(CopyMove { shard: shard as u16, goes: Some(from), to });
            *counts.entry(from).or_default() -= 1;
            *counts.entry(to).or_default() += 1;
        }
    }

    /// Has each device be the first of about as many shards, as far as exchanging the two copies does that. For who knows that they are the same.
    pub(in crate::backend) fn balance_firsts(&mut self) {
        let mut counts = vec![0usize; SHARDS];
        self.shards.iter().for_each(|&first| counts[usize::from(first)] += 1);
        let mut has_changed = true;
        while std::mem::take(&mut has_changed) {
            for shard in 0..SHARDS {
                let Some(second) = self.second(shard).map(usize::from) else { continue };
                let first = usize::from(self.shards[shard]);
                if counts[first] > counts[second] + 1 {
                    self.swap(shard);
                    counts[first] -= 1;
                    counts[second] += 1;
                    has_changed = true;
                }
            }
        }
        self.switches += 1;
    }

    pub(super) fn encode_seconds(&self, bytes: &mut Vec<u8>) {
        let Some(seconds) = &self.seconds else { return };
        let field = |shard: usize| {
            let second = seconds[shard];
            let bits = if second.is_some() { SECOND_BIT } else { 0 };
            match self.moves.get(&(shard as u16)) {
                Some(to) => bits | TARGET_BIT | u32::from(*to),
                None => bits | u32::from(second.unwrap_or(0)),
            }
        };
        for shard in (0..SHARDS).step_by(2) {
            let two = field(shard) | field(shard + 1) << 12;
            bytes.extend_from_slice(&two.to_le_bytes()[..3]);
        }
    }

    /// None if this is nothing that is encoded.
    pub(super) fn decode_seconds(&mut self, bytes: &[u8], source: u16) -> Option<()> {
        let mut seconds: Vec<Option<u16>> = Vec::with_capacity(SHARDS);
        for three in bytes.chunks_exact(3) {
            let two = u32::from_le_bytes([three[0], three[1], three[2], 0]);
            for field in [two & FIELD_BITS, two >> 12] {
                let device = (field & u32::from(DEVICE_BITS)) as u16;
                let shard = seconds.len() as u16;
                let is_moving = field & TARGET_BIT != 0;
                if is_moving {
                    self.moves.insert(shard, device);
                }
                seconds.push(match (field & SECOND_BIT != 0, is_moving) {
                    (true, true) => Some(source),
                    (true, false) => Some(device),
                    (false, true) => None,
                    (false, false) if device == 0 => None,
                    (false, false) => return None,
                });
            }
        }
        self.seconds = Some(seconds.into());
        Some(())
    }

    /// Whether each second copy is on a device that has it, and is not on that of the first.
    pub(super) fn seconds_are_whole(&self, is_in: impl Fn(&u16) -> bool) -> bool {
        let Some(seconds) = &self.seconds else { return self.out.is_empty() };
        let is_apart = |(shard, second): (usize, &Option<u16>)| {
            second.is_none_or(|second| is_in(&second) && second != self.shards[shard])
        };
        seconds.iter().enumerate().all(is_apart)
            && self.moves.iter().all(|(&shard, to)| seconds[usize::from(shard)] != Some(*to))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn map(devices: u16) -> ArrayMap {
        ArrayMap { generation: 4, ..ArrayMap::new(77, devices).with_copies() }
    }

    fn decoded(map: &ArrayMap) -> ArrayMap {
        ArrayMap::decode(&map.encode()).ok().unwrap()
    }

    #[test]
    fn golden_bytes() {
        let mut map = map(3);
        map.put_out(1);
        map.work = MapWork::Rebuild;
        map.members.insert(5);
        map.moves = [(1, 5), (5, 5)].into();
        let bytes = map.encode();
        assert_eq!(bytes.len(), 3_636);
        assert_eq!(bytes[4..8], [3, 3, 0, 0]);
        // Shard 0 was on 0 and 1; 1 on 1 and 2; 2 on 2 and 0; 3 on 0 and 2; 4 on 1 and 0; 5 on 2 and 1.
        assert_eq!(bytes[44..56], [0, 0x40, 2, 0x50, 2, 0x40, 0, 0, 0, 0, 2, 0x40]);
        assert_eq!(bytes[2_100..2_109], [0x00, 0x50, 0x80, 0x00, 0x24, 0x40, 0x00, 0x50, 0x80]);
        assert!(decoded(&map) == map);
        map.moves.clear();
        map.seconds.as_mut().unwrap().iter_mut().for_each(|second| *second = second.or(Some(5)));
        map.shards.iter_mut().for_each(|first| *first = if *first == 2 { 0 } else { *first });
        map.seconds
            .as_mut()
            .unwrap()
            .iter_mut()
            .for_each(|second| *second = second.filter(|of| *of != 0).or(Some(2)));
        map.work = MapWork::Spread;
        map.moves = [(2, 5)].into();
        let bytes = map.encode();
        assert_eq!(bytes[4..8], [3, 1, 2, 0]);
        assert_eq!(bytes[2_103..2_105], [0x05, 0x2C], "5 in the place of 2, the source");
        assert!(decoded(&map) == map);
    }

    impl ArrayMap {
        /// Though it has shards.
        fn put_out_in_name(&mut self, device: u16) {
            self.out.insert(device);
        }
    }

    /// A device on which copies are made may have the next map, which says that they are there.
    #[test]
    fn where_copies_are_made_they_may_be() {
        let mut map = map(2);
        map.put_out(0);
        map.members.insert(5);
        assert!(!map.may_have_all(&[5].into()) && map.may_have_all(&[1].into()));
        map.work = MapWork::Rebuild;
        map.moves = (0..SHARDS as u16).map(|shard| (shard, 5)).collect();
        assert!(map.may_have_all(&[5].into()));
        map.moves.remove(&7);
        assert!(!map.may_have_all(&[5].into()));
    }

    #[test]
    fn what_is_no_map_is_refused() {
        let refused = |spoil: &dyn Fn(&mut ArrayMap)| {
            let mut map = map(3);
            spoil(&mut map);
            assert!(ArrayMap::decode(&map.encode()).is_err());
        };
        refused(&|map| map.seconds.as_mut().unwrap()[3] = Some(map.shards[3]));
        refused(&|map| map.seconds.as_mut().unwrap()[3] = Some(7));
        refused(&|map| map.put_out_in_name(1));
        refused(&|map| map.moves = [(0, map.second(0).unwrap())].into());
        let mut one = ArrayMap::new(77, 3);
        one.out.insert(7);
        assert!(ArrayMap::decode(&one.encode()).is_err());
    }

    /// Copies are on two devices, spread evenly, whichever go out, come and go; and none goes that need not.
    #[test]
    fn copies_are_spread_and_apart() {
        let carry_out = |map: &mut ArrayMap, work: MapWork| {
            map.work = work;
            let mut moved = 0;
            loop {
                let left = map.copies_left();
                if left.is_empty() {
                    map.strays.clear();
                    return moved;
                }
                for CopyMove { shard, goes, to } in left {
                    if goes == Some(map.shards[usize::from(shard)]) {
                        map.swap(usize::from(shard));
                    }
                    assert_eq!(map.second(usize::from(shard)), goes);
                    map.moves.insert(shard, to);
                    map.switch();
                    moved += 1;
                }
            }
        };
        let even = |map: &ArrayMap| {
            let count = |device: u16| {
                (0..SHARDS).filter(|&n| map.shards[n] == device || map.second(n) == Some(device)).count()
            };
            let counts: Vec<usize> = map.in_members().map(count).collect();
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 2, "{counts:?}");
            assert!(decoded(map).seconds == map.seconds && map.shards_alone() == 0);
        };
        for devices in [2, 3, 7] {
            let mut map = map(devices);
            even(&map);
            assert_eq!(carry_out(&mut map, MapWork::Spread), 0);
            let both = |map: &ArrayMap, shard: usize| {
                BTreeSet::from([Some(map.shards[shard]), map.second(shard)]) == [Some(0), Some(1)].into()
            };
            let of_both = (0..SHARDS).filter(|&shard| both(&map, shard)).count();
            assert_eq!(map.shards_only_on(&[0].into()), 0);
            map.put_out(1);
            let alone = map.shards_alone();
            assert!(alone.abs_diff(2 * SHARDS / usize::from(devices)) <= 2);
            assert_eq!(map.shards_only_on(&[0].into()), of_both);
            assert!(of_both > 20);
            if devices > 2 {
                assert_eq!(carry_out(&mut map, MapWork::Rebuild), alone);
                even(&map);
            }
            map.out.remove(&1);
            assert_eq!(carry_out(&mut map, MapWork::Rebuild), if devices > 2 { 0 } else { alone });
            carry_out(&mut map, MapWork::Spread);
            even(&map);
            map.balance_firsts();
            for device in map.members.iter() {
                let firsts = map.shards.iter().filter(|first| *first == device).count();
                assert!(firsts.abs_diff(SHARDS / usize::from(devices)) <= 3, "{firsts}");
            }
            if devices > 2 {
                carry_out(&mut map, MapWork::Remove(0));
                map.members.remove(&0);
                map.work = MapWork::Nothing;
                even(&map);
            }
        }
    }
}
