//! Tests of the index against a model, and under threads.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;

type Model = BTreeMap<Vec<u8>, Slot>;

fn slot(n: u64) -> Slot {
    Slot::new(Tag::Row, n % (1 << 40) * 8, 64)
}

fn fresh() -> (Arc<NodeArena>, Arc<Epoch>) {
    (Arc::new(NodeArena::new(1 << 30).unwrap()), Arc::new(Epoch::new()))
}

/// A small generator of its own, so that a failing seed is one number.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Key families, each hard on some part of the layout.
const FAMILIES: [&str; 10] = [
    "random",
    "ascending",
    "descending",
    "zeros",
    "ones",
    "prefixes",
    "same-middle",
    "long",
    "few-bytes",
    "mixed",
];

fn key_of(family: &str, r: &mut Random, step: u64) -> Vec<u8> {
    let n = r.below(3000);
    match family {
        "random" => format!("user{:020}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes(),
        "ascending" => format!("user{step:020}").into_bytes(),
        "descending" => format!("user{:020}", 1_000_000 - step).into_bytes(),
        "zeros" => [vec![0; (n % 60 + 1) as usize], vec![1; (n / 60 % 3) as usize]].concat(),
        "ones" => [vec![0xff; (n % 60 + 1) as usize], vec![0; (n / 60 % 3) as usize]].concat(),
        "prefixes" => b"abcabcabc".repeat(30)[..(n % 200 + 1) as usize].to_vec(),
        "same-middle" => [&n.to_be_bytes()[6..7], &[b'm'; 100], &n.to_be_bytes()[7..]].concat(),
        "long" => [
            vec![b'x'; (n % 7 * 300) as usize],
            n.to_string().into_bytes(),
            vec![b'y'; (n % 3 * 400) as usize],
        ]
        .concat(),
        "few-bytes" => (0..r.below(6) + 1).map(|_| [0, 1, b'a', 0xff][r.below(4) as usize]).collect(),
        _ => {
            let family = FAMILIES[r.below(9) as usize];
            key_of(family, r, step)
        }
    }
}

fn bound_of<'a>(kind: u64, key: &'a [u8]) -> Bound<&'a [u8]> {
    match kind % 3 {
        0 => Bound::Included(key),
        1 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    }
}

/// Scans a whole range in pieces of `limit`.
fn scan_all(
    index: &Index,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    limit: usize,
    reverse: bool,
) -> Vec<(Vec<u8>, Slot)> {
    let guard = index.epoch.pin();
    let (mut batch, mut all) = (ScanBatch::new(), Vec::<(Vec<u8>, Slot)>::new());
    loop {
        let last = all.last().map(|(key, _)| key.clone());
        let end = match (&last, reverse) {
            (None, false) => index.scan_forward(from, to, limit, &guard, &mut batch),
            (None, true) => index.scan_reverse(from, to, limit, &guard, &mut batch),
            (Some(last), false) => index.scan_forward(Bound::Excluded(last), to, limit, &guard, &mut batch),
            (Some(last), true) => index.scan_reverse(from, Bound::Excluded(last), limit, &guard, &mut batch),
        };
        assert!(batch.len() <= limit);
        all.extend(batch.iter().map(|(key, slot)| (key.to_vec(), slot)));
        if end == ScanEnd::Done {
            return all;
        }
        assert!(batch.len() == limit, "more may follow only a full batch");
    }
}

fn model_scan(model: &Model, from: Bound<&[u8]>, to: Bound<&[u8]>, reverse: bool) -> Vec<(Vec<u8>, Slot)> {
    let inside = |key: &[u8]| {
        let above = match from {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        };
        above
            && match to {
                Bound::Included(to) => key <= to,
                Bound::Excluded(to) => key < to,
                Bound::Unbounded => true,
            }
    };
    let mut all: Vec<_> =
        model.iter().filter(|(key, _)| inside(key)).map(|(key, slot)| (key.clone(), *slot)).collect();
    if reverse {
        all.reverse();
    }
    all
}

fn check_whole(index: &Index, model: &Model) {
    let all: Vec<_> = model.iter().map(|(key, slot)| (key.clone(), *slot)).collect();
    assert_eq!(scan_all(index, Bound::Unbounded, Bound::Unbounded, 37, false), all);
    let mut reversed = all;
    reversed.reverse();
    assert_eq!(scan_all(index, Bound::Unbounded, Bound::Unbounded, 41, true), reversed);
    assert_eq!(index.len(), model.len() as u64);
    let guard = index.epoch.pin();
    let keys: Vec<&[u8]> = model.keys().map(Vec::as_slice).collect();
    let mut out = vec![None; keys.len()];
    index.multi_get(&keys, &guard, &mut out);
    assert!(keys.iter().zip(out).all(|(key, slot)| slot == model.get(*key).copied()));
}

fn put(index: &Index, key: &[u8], to: Slot) -> Option<Slot> {
    index.upsert(key, &index.epoch.pin(), |old| (Decision::Store(to), old)).unwrap()
}

fn remove(index: &Index, key: &[u8]) -> Option<Slot> {
    index.upsert(key, &index.epoch.pin(), |old| (Decision::Remove, old)).unwrap()
}

/// Runs random operations of one family on both, from what they hold; `growth` of 10 are inserts.
fn run(index: &Index, model: &mut Model, family: &str, r: &mut Random, steps: u64, growth: u64) {
    for step in 0..steps {
        let key = key_of(family, r, step);
        match r.below(20) {
            op if op < growth => {
                assert_eq!(put(index, &key, slot(step)), model.insert(key, slot(step)), "{family}")
            }
            op if op < 16 => {
                // Half of the time a key that is there.
                let key = if op % 2 == 0 {
                    model.range(key.clone()..).next().map_or(key, |(k, _)| k.clone())
                } else {
                    key
                };
                assert_eq!(remove(index, &key), model.remove(&key), "{family}");
            }
            16..18 => {
                let guard = index.epoch.pin();
                assert_eq!(index.get(&key, &guard), model.get(&key).copied(), "{family}");
                let kept = index.upsert(&key, &guard, |old| (Decision::Keep, old)).unwrap();
                assert_eq!(kept, model.get(&key).copied());
            }
            _ if step % 8 == 0 => {
                let other = key_of(family, r, step);
                let (from, to) = (bound_of(r.next(), &key), bound_of(r.next(), &other));
                let (limit, reverse) = (r.below(50) as usize + 1, r.below(2) == 0);
                assert_eq!(
                    scan_all(index, from, to, limit, reverse),
                    model_scan(model, from, to, reverse),
                    "{family} {from:?} {to:?} {limit} {reverse}"
                );
            }
            _ => {}
        }
    }
    check_whole(index, model);
}

#[test]
fn behaves_like_a_sorted_map_for_all_key_families() {
    for (i, family) in FAMILIES.iter().enumerate() {
        let (arena, epoch) = fresh();
        let index = Index::new(arena.clone(), epoch.clone());
        let (mut model, mut r) = (Model::new(), Random(i as u64));
        run(&index, &mut model, family, &mut r, 6000, 14);
        run(&index, &mut model, family, &mut r, 6000, 4);
        run(&index, &mut model, family, &mut r, 4000, 14);
        for key in model.keys() {
            assert!(remove(&index, key).is_some());
        }
        check_whole(&index, &Model::new());
        assert!(
            index.bytes() <= 1024,
            "{family}: an empty tree keeps a root at most, not {} bytes",
            index.bytes()
        );
        drop(index);
        while epoch.collect() > 0 {}
        assert_eq!(arena.bytes(), 0, "{family}: all memory is given back");
    }
}

#[test]
fn built_in_bulk_it_is_the_same_tree() {
    for (i, family) in FAMILIES.iter().enumerate() {
        for (count, fill) in [(0, 90), (1, 90), (30, 100), (400, 50), (2500, 100), (20_000, 90)] {
            let (arena, epoch) = fresh();
            let mut r = Random(i as u64 + 100);
            let mut model: Model =
                (0..count).map(|step| (key_of(family, &mut r, step), slot(step))).collect();
            let sorted = model.iter().map(|(key, slot)| (key, *slot));
            let index = Index::bulk_build(arena.clone(), epoch.clone(), sorted, fill).unwrap();
            check_whole(&index, &model);
            run(&index, &mut model, family, &mut r, 2000, 10);
            index.clear();
            check_whole(&index, &Model::new());
            drop(index);
            while epoch.collect() > 0 {}
            assert_eq!(arena.bytes(), 0);
        }
    }
}
