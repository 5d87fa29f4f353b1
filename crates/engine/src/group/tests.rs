//! Groups beside maps.

use std::collections::BTreeMap;
use std::convert::Infallible;

use super::*;

type Model = BTreeMap<Vec<u8>, u64>;

/// Extents in memory, by number, which is their place, too.
#[derive(Debug)]
struct InMemory {
    bytes_max: usize,
    extents: BTreeMap<u64, Vec<u8>>,
}

impl LeafBytes for InMemory {
    fn leaf_bytes(&self, at: u64, range: Range<usize>) -> Option<&[u8]> {
        self.extents.get(&at)?.get(range)
    }
}

impl LeafExtents for InMemory {
    type Error = Infallible;

    fn take(&mut self) -> Result<(LeafPlace, usize), Infallible> {
        let number = self.extents.len() as u64 + 1;
        Ok((LeafPlace { number, at: number }, self.bytes_max))
    }

    fn write(&mut self, LeafPlace { number, .. }: LeafPlace, leaves: &[u8]) -> Result<(), Infallible> {
        assert!(self.extents.insert(number, leaves.to_vec()).is_none() && leaves.len() <= self.bytes_max);
        Ok(())
    }
}

impl InMemory {
    fn new(bytes_max: usize) -> InMemory {
        InMemory { bytes_max, extents: BTreeMap::new() }
    }

    /// What some groups have together.
    fn merged(&mut self, levels: &GroupLevels, which: &MergedGroups) -> Arc<Group> {
        let merging: Vec<&Group> = levels.merging(which).into_iter().map(|group| &**group).collect();
        let mut entries = Model::new();
        let mut merged = MergedEntries::new(&merging, &*self, b"").expect("whole leaves");
        while let Some((key, slot)) = merged.entry() {
            entries.insert(key.to_vec(), slot);
            merged.advance(|_, _| ()).expect("whole leaves");
        }
        Arc::new(self.group_of(&entries))
    }

    fn group_of(&mut self, model: &Model) -> Group {
        let mut writer = GroupWriter::new(self);
        model.iter().for_each(|(key, slot)| writer.push(key, *slot).unwrap());
        writer.finish().unwrap()
    }
}

fn keys(count: u64) -> Model {
    let scattered = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 40);
    (1..=count).map(|n| (scattered(n).to_be_bytes()[(n % 3) as usize..].to_vec(), n)).collect()
}

fn entry(cursor: &GroupCursor<'_, InMemory>) -> Option<(Vec<u8>, u64)> {
    cursor.entry().map(|(key, slot)| (key.to_vec(), slot))
}

#[test]
fn a_group_answers_like_a_map() {
    for count in [0, 1, 40, 5_000] {
        let (mut bytes, model) = (InMemory::new(16 << 10), keys(count));
        let group = bytes.group_of(&model);
        assert_eq!(group.entries(), model.len() as u64);
        assert!(count < 5_000 || group.extents().len() > 5);
        let asked = model.keys().cloned().chain(keys(7_000).into_keys()).chain([vec![], vec![0xff; 12]]);
        let mut cursor = GroupCursor::new(&group, &bytes);
        for key in asked {
            assert_eq!(group.get(&key, hash_of(&key), &bytes), Ok(model.get(&key).copied()));
            let expected = |at: Option<(&Vec<u8>, &u64)>| at.map(|(key, slot)| (key.clone(), *slot));
            cursor.seek(&key).unwrap();
            assert_eq!(entry(&cursor), expected(model.range(key.clone()..).next()));
            cursor.advance().unwrap();
            assert_eq!(entry(&cursor), expected(model.range(key.clone()..).nth(1)));
            cursor.seek_below(&key).unwrap();
            assert_eq!(entry(&cursor), expected(model.range(..key.clone()).next_back()));
            cursor.go_back().unwrap();
            assert_eq!(entry(&cursor), expected(model.range(..key.clone()).rev().nth(1)));
        }
        cursor.seek(b"").unwrap();
        for at in &model {
            assert_eq!(cursor.entry(), Some((at.0.as_slice(), *at.1)));
            cursor.advance().unwrap();
        }
        assert_eq!(cursor.entry(), None);
        cursor.seek_last().unwrap();
        for at in model.iter().rev() {
            assert_eq!(cursor.entry(), Some((at.0.as_slice(), *at.1)));
            cursor.go_back().unwrap();
        }
        assert_eq!(cursor.entry(), None);
    }
}

#[test]
fn a_damaged_leaf_is_told_and_no_other() {
    let (mut bytes, model) = (InMemory::new(16 << 10), keys(5_000));
    let group = bytes.group_of(&model);
    let extent = group.extents()[1].place();
    bytes.extents.get_mut(&extent.number).unwrap()[3 * LEAF_BYTES + 700] ^= 1;
    let mut damaged = model.keys().filter(|key| {
        let got = group.get(key, hash_of(key), &bytes);
        assert!(got.is_ok() || got == Err(DamagedLeaf { extent, place: 3 }));
        got.is_err()
    });
    let first = damaged.next().unwrap();
    assert!((10..200).contains(&damaged.count()));
    let mut cursor = GroupCursor::new(&group, &bytes);
    assert_eq!(cursor.seek(first), Err(DamagedLeaf { extent, place: 3 }));
    assert_eq!(cursor.entry(), None);
    bytes.extents.remove(&extent.number);
    let gone = group.get(first, hash_of(first), &bytes);
    assert_eq!(gone, Err(DamagedLeaf { extent, place: 3 }), "nothing is there");
}

/// Numbers that look random.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn of_each_key_the_newest_entry_is_given_and_the_others_are_told() {
    let state = &mut 1;
    for count in 0..7 {
        let mut bytes = InMemory::new(8 << 10);
        let key = |n: u64| n.to_be_bytes()[5..].to_vec();
        let model = |of: u64, state: &mut u64| -> Model {
            let count = random(state, 4) * random(state, 1_500);
            (0..count).map(|at| (key(random(state, 2_000)), of << 32 | at)).collect()
        };
        let models: Vec<Model> = (0..count).map(|of| model(of, state)).collect();
        let groups: Vec<Group> = models.iter().map(|model| bytes.group_of(model)).collect();
        for from in [vec![], key(random(state, 2_000)), vec![0xff; 9]] {
            let mut expected: BTreeMap<Vec<u8>, Vec<u64>> = BTreeMap::new();
            for (key, slot) in models.iter().flat_map(|model| model.range(from.clone()..)) {
                expected.entry(key.clone()).or_default().push(*slot);
            }
            let newest_first: Vec<&Group> = groups.iter().collect();
            let mut merged = MergedEntries::new(&newest_first, &bytes, &from).unwrap();
            let mut found: Vec<(Vec<u8>, Vec<u64>)> = Vec::new();
            while let Some((key, slot)) = merged.entry() {
                found.push((key.to_vec(), vec![slot]));
                let (last, slots) = found.last_mut().unwrap();
                let older = |key: &[u8], slot| {
                    assert_eq!(last, key);
                    slots.push(slot);
                };
                merged.advance(older).unwrap();
            }
            assert!(found.into_iter().eq(expected), "{count} groups from {from:?}");
        }
    }
}

#[test]
fn what_several_groups_have_is_written_as_one() {
    let mut bytes = InMemory::new(16 << 10);
    let model = |step: u64| -> Model {
        (0..9_000).step_by(step as usize).map(|n: u64| (n.to_be_bytes().to_vec(), n + step)).collect()
    };
    let groups = [5, 3, 1].map(|step| bytes.group_of(&model(step)));
    let mut one = InMemory::new(32 << 10);
    let mut writer = GroupWriter::new(&mut one);
    let mut merged = MergedEntries::new(&groups.each_ref(), &bytes, b"").unwrap();
    let mut older = 0;
    while let Some((key, slot)) = merged.entry() {
        writer.push(key, slot).unwrap();
        merged.advance(|_, _| older += 1).unwrap();
    }
    let group = writer.finish().unwrap();
    assert_eq!((older, group.entries()), (1_800 + 3_000, 9_000));
    for n in 0..9_000u64 {
        let step = [5, 3, 1].into_iter().find(|step| n.is_multiple_of(*step)).unwrap();
        let key = n.to_be_bytes();
        assert_eq!(group.get(&key, hash_of(&key), &one), Ok(Some(n + step)));
    }
}

/// Groups come, some are merged, and whoever holds levels of before finds what he found then.
#[test]
fn the_newest_entry_is_found_in_levels_of_every_age() {
    const KEYS: u64 = 3_000;
    let state = &mut 1;
    for has_filter in [true, false] {
        let mut bytes = InMemory::new(16 << 10);
        let filter = has_filter.then(|| Arc::new(GroupFilter::for_keys(8_000, 1)));
        let mut levels = GroupLevels::default().with_filter(filter);
        let mut ages: Vec<(GroupLevels, Model)> = vec![(levels.clone(), Model::new())];
        let key = |n: u64| format!("key{n:05}").into_bytes();
        for number in 1..=40u64 {
            let changed: Model = (0..600).map(|at| (key(random(state, KEYS)), number << 32 | at)).collect();
            if let Some(filter) = levels.filter() {
                changed.keys().for_each(|key| filter.insert(hash_of(key), number).unwrap());
            }
            let group = Arc::new(bytes.group_of(&changed));
            levels = levels.with_group(NumberedGroup { number, group });
            let mut model = ages.last().unwrap().1.clone();
            model.extend(changed);
            ages.push((levels.clone(), model));
            if number % 8 == 0 {
                // All but the newest.
                let upto = number - 1;
                let l1 = bytes.merged(&levels, &MergedGroups::IntoL1(upto));
                levels = levels.merged(upto, l1);
                levels.deletes(upto);
                let model = ages.last().unwrap().1.clone();
                ages.push((levels.clone(), model));
            } else if number % 3 == 0 {
                // Some that are next to one another.
                let numbers: Vec<u64> = levels.l0().iter().map(|of| of.number).collect();
                let [newest, oldest] = [0, 1].map(|_| random(state, numbers.len() as u64) as usize);
                let numbers = numbers[oldest.max(newest)]..=numbers[newest.min(oldest)];
                let merged = bytes.merged(&levels, &MergedGroups::OfL0(numbers.clone()));
                levels = levels.merged_in_l0(&numbers, merged);
                if number == 21 {
                    levels = levels.renumbered(number + 1);
                    assert!(levels.filter().is_none());
                }
                let model = ages.last().unwrap().1.clone();
                ages.push((levels.clone(), model));
            }
            if has_filter && levels.filter().is_none() {
                let filter = GroupFilter::for_keys(8_000, levels.l0().last().unwrap().number);
                for of in levels.l0().iter().rev() {
                    let mut cursor = GroupCursor::new(&of.group, &bytes);
                    cursor.seek(b"").unwrap();
                    while let Some(key) = cursor.key() {
                        filter.insert(hash_of(key), of.number).unwrap();
                        cursor.advance().unwrap();
                    }
                }
                levels = levels.with_filter(Some(Arc::new(filter)));
                ages.last_mut().unwrap().0 = levels.clone();
            }
            let (mut looks, mut asked) = (0, 0);
            for (age, (levels, model)) in ages.iter().rev().take(20).enumerate() {
                for n in (0..KEYS + 100).step_by(1 + 6 * age.min(2)) {
                    let look = levels.get(&key(n), &bytes).unwrap();
                    assert_eq!(look.slot, model.get(&key(n)).copied(), "{n}, {age} ages before {number}");
                    if age == 0 {
                        (looks, asked) = (looks + 1, asked + look.asked);
                    }
                }
            }
            assert!(!has_filter || asked * 10 <= looks * 11, "{asked} groups asked in {looks} looks");
        }
    }
}
