//! Tests of the index against a model, and under threads.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;

mod not_stored;
mod retired;

type Model = BTreeMap<Vec<u8>, Slot>;

fn slot(n: u64) -> Slot {
    Slot::from(LogSlot::new(Tag::Row, n % (1 << 40) * 8, 64))
}

fn fresh() -> (Arc<NodeArena>, Arc<Epoch>) {
    (Arc::new(NodeArena::new(1 << 30).unwrap()), Arc::new(Epoch::new()))
}

/// How much of `count` steps or keys a test takes: under `miri` a small part, which is enough for every path.
const fn sized(count: u64) -> u64 {
    if cfg!(miri) { count.div_ceil(100) } else { count }
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

fn bound_of(kind: u64, key: &[u8]) -> Bound<&[u8]> {
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
    for step in 0..sized(steps) {
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

/// The nodes of the one are others' in the other.
#[test]
#[should_panic(expected = "ranges of one arena")]
fn ranges_in_two_arenas_are_not_joined() {
    let builder = |low: Option<&[u8]>, end: Option<&[u8]>| {
        let (arena, epoch) = fresh();
        IndexBuilder::new(arena, epoch, 90).between(low.map(<[u8]>::to_vec), end.map(<[u8]>::to_vec))
    };
    _ = builder(None, Some(b"m")).join(builder(Some(b"m"), None));
}

/// Its length would run into where its suffix is said to be, and that would be taken for the address of a blob.
#[test]
#[should_panic(expected = "a key of 65537 bytes")]
fn no_tree_is_built_of_a_key_that_no_entry_has_room_for() {
    let (arena, epoch) = fresh();
    _ = Index::bulk_build(arena, epoch, [(vec![7; Index::KEY_BYTES_MAX + 1], slot(1))], 90);
}

#[test]
fn joined_of_ranges_it_is_the_same_tree() {
    for (i, family) in FAMILIES.iter().enumerate() {
        let rounds = (0..sized(8))
            .flat_map(|seed| [(2, 2), (40, 3), (300, 2), (3000, 5)].map(|(n, m)| (sized(n), m, seed)));
        for (count, parts, seed) in rounds {
            let (arena, epoch) = fresh();
            let mut r = Random(i as u64 + 300 + seed * 1000);
            let mut model: Model =
                (0..count).map(|step| (key_of(family, &mut r, step), slot(step))).collect();
            let sorted: Vec<(Vec<u8>, Slot)> = model.iter().map(|(key, slot)| (key.clone(), *slot)).collect();
            let mut builders: Vec<IndexBuilder> = Vec::new();
            let mut low: Option<Vec<u8>> = None;
            for part in 0..parts {
                let (from, to) = (sorted.len() * part / parts, sorted.len() * (part + 1) / parts);
                if from == to {
                    continue;
                }
                // Any bytes above the last key of the range, up to the first of the next, will do.
                let end = sorted.get(to).map(|(next, _)| {
                    let shared = super::tree::common_prefix(&sorted[to - 1].0, next);
                    next[..shared + 1 + r.below((next.len() - shared) as u64) as usize].to_vec()
                });
                let builder = IndexBuilder::new(arena.clone(), epoch.clone(), 90);
                let mut builder = builder.between(low.take(), end.clone());
                low = end;
                // A range may have no key.
                match r.below(3) {
                    0 => sorted[from..to].iter().for_each(|(key, _)| assert!(model.remove(key).is_some())),
                    _ => sorted[from..to].iter().for_each(|(key, slot)| builder.push(key, *slot).unwrap()),
                }
                builders.push(builder);
            }
            let whole = match r.below(2) {
                0 => builders.into_iter().reduce(|left, right| left.join(right).unwrap()),
                _ => builders.into_iter().rev().reduce(|right, left| left.join(right).unwrap()),
            };
            let index = whole.unwrap().finish().unwrap();
            check_whole(&index, &model);
            run(&index, &mut model, family, &mut r, 500, 10);
            drop(index);
            while epoch.collect() > 0 {}
            assert_eq!(arena.bytes(), 0);
        }
    }
}

#[test]
fn built_in_bulk_it_is_the_same_tree() {
    for (i, family) in FAMILIES.iter().enumerate() {
        for (count, fill) in [(0, 90), (1, 90), (30, 100), (400, 50), (2500, 100), (20_000, 90)] {
            let (arena, epoch) = fresh();
            let mut r = Random(i as u64 + 100);
            let mut model: Model =
                (0..sized(count)).map(|step| (key_of(family, &mut r, step), slot(step))).collect();
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(sized(64) as u32))]
    #[test]
    fn any_keys_sort_as_bytes(
        keys in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![0u8, 1, 0x7f, 0xfe, 0xff]), 1..90), 1..400),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        from in prop::collection::vec(any::<u8>(), 0..9),
        to in prop::collection::vec(any::<u8>(), 0..9),
        kinds: (u64, u64),
    ) {
        let (arena, epoch) = fresh();
        let index = Index::new(arena, epoch);
        let mut model = Model::new();
        for (n, key) in keys.iter().enumerate() {
            prop_assert_eq!(put(&index, key, slot(n as u64)), model.insert(key.clone(), slot(n as u64)));
        }
        for n in removed {
            let key = &keys[n.index(keys.len())];
            prop_assert_eq!(remove(&index, key), model.remove(key));
        }
        check_whole(&index, &model);
        let (from, to) = (bound_of(kinds.0, &from), bound_of(kinds.1, &to));
        for reverse in [false, true] {
            prop_assert_eq!(scan_all(&index, from, to, 7, reverse), model_scan(&model, from, to, reverse));
        }
    }
}

#[test]
fn the_longest_keys_fit_and_find_each_other() {
    let (arena, epoch) = fresh();
    let index = Index::new(arena, epoch);
    let mut model = Model::new();
    for n in 0..100u64 {
        let mut key = vec![b'k'; Index::KEY_BYTES_MAX - (n % 3) as usize];
        let at = key.len() - 9 + (n % 3) as usize;
        key[at] = n as u8;
        put(&index, &key, slot(n));
        model.insert(key, slot(n));
    }
    check_whole(&index, &model);
}

#[test]
fn a_full_index_refuses_new_keys_before_deciding_and_goes_on_with_the_old() {
    let (arena, epoch) = (Arc::new(NodeArena::new(40 << 10).unwrap()), Arc::new(Epoch::new()));
    let index = Index::new(arena.clone(), epoch);
    let guard = index.epoch.pin();
    let (mut model, mut r) = (Model::new(), Random(5));
    let refused = loop {
        let key = key_of("long", &mut r, 0);
        let mut decided = false;
        let done = index.upsert(&key, &guard, |_| {
            decided = true;
            (Decision::Store(slot(9)), ())
        });
        match done {
            Ok(()) => model.insert(key, slot(9)),
            Err(full) => {
                assert!(!decided && full.bytes_max == 40 << 10);
                break key;
            }
        };
    };
    assert!(arena.bytes() <= 40 << 10);
    assert_eq!(index.get(&refused, &guard), None);
    drop(guard);
    check_whole(&index, &model);
    for key in model.keys().skip(1) {
        remove(&index, key);
    }
    while index.epoch.collect() > 0 {}
    put(&index, &refused, slot(1));
    let sorted = (0..100_000u64).map(|n| (n.to_be_bytes(), slot(n)));
    assert!(Index::bulk_build(arena.clone(), index.epoch.clone(), sorted, 90).is_err());
    assert_eq!(arena.bytes(), index.bytes(), "a build that failed gives all back");
}

/// Keys that come in order and share much: at the right edge of the tree, where nodes have no prefix, few fill a node.
fn tall_key(n: u64) -> Vec<u8> {
    format!("{:x<46}{n:010}", "").into_bytes()
}

#[test]
fn a_key_takes_no_more_than_is_reserved_for_it() {
    // Nodes that one key took, at most, and for how many keys what is reserved was all taken.
    let (mut nodes_max, mut exact) = (0, 0);
    for family in FAMILIES.into_iter().chain(["tall"]) {
        let (arena, epoch) = fresh();
        let index = Index::new(arena.clone(), epoch.clone());
        let mut r = Random(7);
        let steps = sized(if family == "tall" { 40_000 } else { 6000 });
        for step in 0..steps {
            let key = if family == "tall" { tall_key(step) } else { key_of(family, &mut r, step) };
            let (guard, before) = (epoch.pin(), arena.bytes());
            let foreseen = index.bytes_for([key.len()], &guard);
            put(&index, &key, slot(step));
            let taken = arena.bytes() - before;
            assert!(taken <= foreseen, "{family}, step {step}: {taken} bytes for {foreseen}");
            nodes_max = nodes_max.max(taken / arena::NODE_BYTES);
            exact += u64::from(taken == foreseen);
            drop(guard);
            if family != "tall" && r.below(3) == 0 {
                remove(&index, &key_of(family, &mut r, step));
                epoch.collect();
            }
        }
    }
    assert!(
        cfg!(miri) || nodes_max >= 5 && exact > 0,
        "{nodes_max} nodes at most, {exact} times all of them"
    );
}

#[test]
fn keys_take_no_more_than_is_reserved_for_all_of_them() {
    for (family, n) in
        FAMILIES.into_iter().chain(["tall"]).flat_map(|family| (0..4).map(move |n| (family, n)))
    {
        let (arena, epoch) = fresh();
        let index = Index::new(arena.clone(), epoch.clone());
        let mut r = Random(n);
        let mut step = 0;
        for round in 0..if cfg!(miri) { 6 } else { 12 } {
            let key = |r: &mut Random, step| match family {
                "tall" => tall_key(step),
                family => key_of(family, r, step),
            };
            let keys: Vec<_> = (step..step + (1 << round) * n).map(|step| key(&mut r, step)).collect();
            step += keys.len() as u64;
            let (guard, before) = (epoch.pin(), arena.bytes());
            let foreseen = index.bytes_for(keys.iter().map(Vec::len), &guard);
            for key in &keys {
                put(&index, key, slot(1));
            }
            assert!(arena.bytes() - before <= foreseen, "{family}, round {round}");
        }
    }
}

#[test]
fn one_long_key_does_not_make_others_dear() {
    let (arena, epoch) = fresh();
    let index = Index::new(arena, epoch.clone());
    for n in 0..sized(20_000) {
        put(&index, &n.to_be_bytes(), slot(n));
    }
    let long = vec![b'l'; Index::KEY_BYTES_MAX];
    let foreseen = |lens: &[usize]| index.bytes_for(lens.iter().copied(), &epoch.pin());
    let (before, with_long) = (foreseen(&[8; 10]), foreseen(&[8, long.len()]));
    assert!(with_long < 2 * foreseen(&[8]) + long.len() as u64 + 64, "{with_long} bytes");
    // It is no longer for being there a second time.
    for _ in 0..2 {
        put(&index, &long, slot(1));
        assert_eq!(foreseen(&[8; 10]), before);
        remove(&index, &long);
        assert_eq!(foreseen(&[8; 10]), before);
    }
    put(&index, &long, slot(1));
    assert!(foreseen(&[long.len()]) > 2 * long.len() as u64, "two that are long may share as much");
}

#[test]
fn a_separator_longer_than_every_key_goes_with_its_tree() {
    let (arena, epoch) = fresh();
    let index = Index::new(arena.clone(), epoch.clone());
    // Not too long for a node by a byte.
    let key = |n: u64| format!("{:x<46}{n:010}", "").into_bytes();
    let last = (0..).find(|&n| {
        put(&index, &key(n), slot(n));
        let longer = [&key(n)[..], b"y"].concat();
        let nodes = index.bytes();
        // There is no such row: nothing is written, but its leaf is split first if it is full.
        index.upsert(&longer, &epoch.pin(), |_| (Decision::Keep, ())).unwrap();
        index.bytes() > nodes
    });
    assert!(last.is_some());
    index.clear();
    while epoch.collect() > 0 {}
    assert_eq!((arena.bytes(), index.bytes()), (0, 0));
}

#[test]
fn a_leaf_that_another_planted_stays() {
    let (arena, epoch) = fresh();
    let index = Index::new(arena, epoch.clone());
    let guard = epoch.pin();
    let keep = |key: &[u8]| index.upsert(key, &guard, |_| (Decision::Keep, ())).unwrap();
    put(&index, b"first", slot(1));
    let first = index.bytes();
    for n in 0..1000u64 {
        put(&index, &n.to_be_bytes(), slot(n));
    }
    for n in 0..1000u64 {
        remove(&index, &n.to_be_bytes());
    }
    let planted = |key: &[u8]| matches!(index.view(&guard).leaf(key), Ok(Some(_)));
    let gap = (0..1000u64).map(u64::to_be_bytes).find(|key| !planted(key)).expect("unlinked leaves");
    keep(&gap);
    assert!(!planted(&gap), "one's own goes again");
    index.view(&guard).plant(&gap).unwrap();
    keep(&gap);
    assert!(planted(&gap));
    put(&index, &gap, slot(2));
    assert_eq!((index.get(&gap, &guard), index.len()), (Some(slot(2)), 2));
    remove(&index, &gap);
    assert!(!planted(&gap) && index.bytes() >= first);
}

#[test]
fn a_writer_takes_what_is_reserved_for_it_where_others_are_refused() {
    let (arena, epoch) = (Arc::new(NodeArena::new(40 << 10).unwrap()), Arc::new(Epoch::new()));
    let (mine, others) = (Index::new(arena.clone(), epoch.clone()), Index::new(arena.clone(), epoch.clone()));
    let guard = epoch.pin();
    let store = |n: u64| (Decision::Store(slot(n)), ());
    let bytes = mine.bytes_for([100; 4], &guard);
    let reserved = arena.reserve(bytes, Budget::Writes).unwrap();
    let put_others = |n: u64| others.upsert(&[b'o'; 90][..], &guard, |_| store(n));
    (0u64..).take_while(|n| others.upsert(&tall_key(*n), &guard, |_| store(*n)).is_ok()).for_each(drop);
    let rest = arena.reserve((40 << 10) - arena.bytes() - bytes, Budget::Deletes).unwrap();
    put_others(1).unwrap_err();
    for n in 0..4u8 {
        let key = [n; 100];
        mine.upsert_at(&key, None, NewKey::Stored(Budget::Reserved(&reserved)), &guard, |_| store(1))
            .unwrap();
    }
    drop((reserved, rest));
    put_others(1).unwrap();
    assert_eq!((arena.bytes(), mine.len()), (mine.bytes() + others.bytes(), 4));
}

#[test]
fn keys_in_order_fill_their_leaves() {
    const KEYS: u64 = sized(50_000);
    for descending in [false, true] {
        let (arena, epoch) = fresh();
        let index = Index::new(arena, epoch);
        for n in 0..KEYS {
            let n = if descending { KEYS - n } else { n };
            put(&index, format!("user{n:020}").as_bytes(), slot(n));
        }
        let per_key = index.bytes() / KEYS;
        assert!(per_key <= 44, "{per_key} bytes a key, descending: {descending}");
    }
}

#[test]
fn random_keys_take_less_than_their_budget() {
    const KEYS: u64 = sized(100_000);
    let (arena, epoch) = fresh();
    let index = Index::new(arena, epoch);
    let mut r = Random(1);
    for n in 0..KEYS {
        put(&index, format!("user{:020}", r.next()).as_bytes(), slot(n));
    }
    assert!(index.bytes() / KEYS <= 52, "{} bytes a key", index.bytes() / KEYS);
}

/// A key of the stress tests and the only slots it may have.
fn stress_key(n: u64) -> Vec<u8> {
    let scattered = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match n % 3 {
        0 => format!("k{scattered:020}").into_bytes(),
        1 => [&b"same-head-for-all"[..], &scattered.to_be_bytes()].concat(),
        _ => [&[b'z'; 70][..], &scattered.to_be_bytes()].concat(),
    }
}

fn stress_slot(n: u64, version: u64) -> Slot {
    slot((n << 20) | (version % (1 << 20)))
}

#[test]
fn readers_find_what_stays_and_scans_are_in_order_under_writers() {
    const KEYS: u64 = sized(6000);
    let (arena, epoch) = fresh();
    let index = Arc::new(Index::new(arena.clone(), epoch.clone()));
    // Every fourth key stays for good; the others come and go, each by one writer.
    for n in (0..KEYS).step_by(4) {
        put(&index, &stress_key(n), stress_slot(n, 0));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (1..4u64)
        .map(|w| {
            let (index, stop) = (index.clone(), stop.clone());
            std::thread::spawn(move || {
                let (mut model, mut r, mut version) = (BTreeMap::new(), Random(w), 0);
                while !stop.load(Ordering::Relaxed) {
                    // Times of growth and of shrinking, so that leaves split and vanish.
                    let growing = version / 3000 % 2 == 0;
                    let n = r.below(KEYS / 4) * 4 + if r.below(8) == 0 { 0 } else { w };
                    version += 1;
                    if n.is_multiple_of(4) || r.below(10) < if growing { 8 } else { 1 } {
                        let old = put(&index, &stress_key(n), stress_slot(n, version));
                        if !n.is_multiple_of(4) {
                            assert_eq!(old, model.insert(n, stress_slot(n, version)));
                        }
                    } else {
                        assert_eq!(remove(&index, &stress_key(n)), model.remove(&n));
                    }
                }
                model
            })
        })
        .collect();
    let readers: Vec<_> = (0..2u64)
        .map(|reader| {
            let (index, stop) = (index.clone(), stop.clone());
            std::thread::spawn(move || read_under_stress(&index, &stop, reader, KEYS))
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    stop.store(true, Ordering::Relaxed);
    let rounds: u64 = readers.into_iter().map(|t| t.join().unwrap()).sum();
    assert!(rounds > 0);
    let mut model = Model::new();
    for writer in writers {
        model.extend(writer.join().unwrap().into_iter().map(|(n, slot)| (stress_key(n), slot)));
    }
    for n in (0..KEYS).step_by(4) {
        let guard = index.epoch.pin();
        model.insert(stress_key(n), index.get(&stress_key(n), &guard).unwrap());
    }
    check_whole(&index, &model);
    drop(index);
    while epoch.collect() > 0 {}
    assert_eq!(arena.bytes(), 0);
}

fn read_under_stress(index: &Index, stop: &AtomicBool, seed: u64, keys: u64) -> u64 {
    let (mut r, mut batch, mut rounds) = (Random(seed + 50), ScanBatch::new(), 0);
    while rounds == 0 || !stop.load(Ordering::Relaxed) {
        rounds += 1;
        let guard = index.epoch.pin();
        for _ in 0..sized(200) {
            let n = r.below(keys / 4) * 4;
            let found = index.get(&stress_key(n), &guard).expect("a key that stays");
            assert_eq!(found.log_offset() >> 23, n, "the slot of another key");
        }
        let wanted: Vec<Vec<u8>> = (0..40).map(|_| stress_key(r.below(keys))).collect();
        let wanted: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
        let mut out = vec![None; 40];
        index.multi_get(&wanted, &guard, &mut out);
        for (key, found) in wanted.iter().zip(out) {
            assert!(found.is_none_or(|found| stress_key(found.log_offset() >> 23) == **key));
        }
        let mut stays = 0;
        let reverse = rounds % 2 == 0;
        let mut last: Option<Vec<u8>> = None;
        loop {
            let resume = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let end = match reverse {
                false => index.scan_forward(resume, Bound::Unbounded, 300, &guard, &mut batch),
                true => index.scan_reverse(Bound::Unbounded, resume, 300, &guard, &mut batch),
            };
            for (key, found) in batch.iter() {
                if let Some(last) = &last {
                    assert!(if reverse { key < &last[..] } else { key > &last[..] }, "order");
                }
                let n = found.log_offset() >> 23;
                assert_eq!(key, stress_key(n), "the slot of another key");
                stays += u64::from(n.is_multiple_of(4));
                last = Some(key.to_vec());
            }
            if end == ScanEnd::Done {
                break;
            }
        }
        assert_eq!(stays, keys / 4, "a scan missed a key that stays");
    }
    rounds
}

#[test]
fn concurrent_increments_of_few_keys_lose_nothing() {
    const EACH: u64 = if cfg!(miri) { 60 } else { 20_000 };
    let (arena, epoch) = fresh();
    let index = Arc::new(Index::new(arena, epoch));
    let decided = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let (index, decided) = (index.clone(), decided.clone());
            std::thread::spawn(move || {
                for i in 0..EACH {
                    let key = [b'c', ((i + t) % 5) as u8];
                    let now = index.upsert(&key, &index.epoch.pin(), |old| {
                        decided.fetch_add(1, Ordering::Relaxed);
                        let now = old.map_or(0, |old| old.log_offset() / 8) + 1;
                        (Decision::Store(slot(now)), now)
                    });
                    assert!(now.unwrap() > 0);
                    if i % 16 == 0 {
                        put(&index, &[b'd', t as u8, (i / 16 % 200) as u8], slot(i));
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let guard = index.epoch.pin();
    let sum: u64 = (0..5).map(|n| index.get(&[b'c', n], &guard).unwrap().log_offset() / 8).sum();
    assert_eq!((sum, decided.load(Ordering::Relaxed)), (4 * EACH, 4 * EACH));
}

#[test]
fn a_replaced_tree_serves_its_readers_to_the_end() {
    const KEYS: u64 = sized(3000);
    let (arena, epoch) = fresh();
    let index = Arc::new(Index::new(arena.clone(), epoch.clone()));
    let build = |round: u64| {
        let sorted = (0..KEYS).map(move |n| ([n.to_be_bytes(), [b'k'; 8]].concat(), stress_slot(n, round)));
        Index::bulk_build(arena.clone(), epoch.clone(), sorted, 90).unwrap()
    };
    index.replace_with(build(0));
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (index, stop) = (index.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut r = Random(3);
            while !stop.load(Ordering::Relaxed) {
                let n = r.below(KEYS);
                let found = index.get(&[n.to_be_bytes(), [b'k'; 8]].concat(), &index.epoch.pin());
                assert_eq!(found.expect("in every tree").log_offset() >> 23, n);
            }
        })
    };
    for round in 1..sized(300) {
        index.replace_with(build(round));
        index.epoch.collect();
    }
    stop.store(true, Ordering::Relaxed);
    reader.join().unwrap();
    while index.epoch.collect() > 0 {}
    assert_eq!(arena.bytes(), index.bytes(), "all trees but the last are freed");
}

#[test]
fn a_decision_that_panics_leaves_the_key_as_it_was() {
    let (arena, epoch) = fresh();
    let index = Index::new(arena, epoch);
    put(&index, b"there", slot(1));
    for key in [&b"there"[..], b"new", &[b'n'; 200]] {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            index.upsert(key, &index.epoch.pin(), |_| -> (Decision, ()) { panic!("on purpose") })
        }));
        assert!(panicked.is_err());
    }
    put(&index, b"new", slot(2));
    assert_eq!(index.bytes(), 1024, "the long key's blob is gone");
    check_whole(&index, &Model::from([(b"new".to_vec(), slot(2)), (b"there".to_vec(), slot(1))]));
}

/// What was located is written where it is, whatever happened to its leaf in between: splits, keys gone, leaves gone, all gone.
#[test]
fn what_was_located_is_found_again_after_any_change() {
    for family in FAMILIES {
        for seed in 0..if cfg!(miri) { 3 } else { 6 } {
            let (arena, epoch) = fresh();
            let (index, mut model) = (Index::new(arena.clone(), epoch.clone()), Model::new());
            let mut r = Random(seed);
            run(&index, &mut model, family, &mut r, 3000, 15);
            let keys: Vec<Vec<u8>> = (0..sized(200)).map(|step| key_of(family, &mut r, step)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let guard = epoch.pin();
            let mut located = vec![Located::default(); keys.len()];
            index.multi_locate(&keys, &guard, &mut located);
            for (key, found) in keys.iter().zip(&located) {
                assert_eq!(found.slot, model.get(*key).copied(), "{family}, seed {seed}");
            }
            match seed % 3 {
                0 => run(&index, &mut model, family, &mut r, 1000, [1, 18][seed as usize / 3]),
                1 => {
                    index.replace_with(Index::new(arena, epoch.clone()));
                    model.clear();
                }
                _ => {}
            }
            for (n, (key, found)) in keys.iter().zip(located).enumerate() {
                let to = if n % 3 == 0 { None } else { Some(slot(n as u64)) };
                let decision = to.map_or(Decision::Remove, Decision::Store);
                let old = index
                    .upsert_at(key, found.at, NewKey::Stored(Budget::Writes), &guard, |old| (decision, old))
                    .unwrap();
                assert_eq!(old, model.get(*key).copied(), "{family}, seed {seed}");
                match to {
                    Some(to) => drop(model.insert(key.to_vec(), to)),
                    None => drop(model.remove(*key)),
                }
            }
            drop(guard);
            check_whole(&index, &model);
        }
    }
}

/// What is removed in order is what is there as given, in leaves that others share, empty or split meanwhile, and nothing else.
#[test]
fn removed_in_order_goes_what_is_as_given() {
    for (n, family) in FAMILIES.iter().enumerate() {
        for seed in 0..sized(20) {
            let mut r = Random(seed * 100 + n as u64);
            let (arena, epoch) = fresh();
            let (index, mut model) = (Index::new(arena, epoch), Model::new());
            run(&index, &mut model, family, &mut r, 2000, 10);
            let mut entries = model.clone();
            for step in 0..sized(200) {
                entries.entry(key_of(family, &mut r, step)).or_insert(slot(7));
            }
            let share = r.below(10) + 1;
            entries.retain(|_, _| r.below(10) < share);
            for known in entries.values_mut() {
                if r.below(8) == 0 {
                    *known = slot(1 << 39);
                }
            }
            let given: Vec<(&[u8], Slot)> = entries.iter().map(|(key, slot)| (&key[..], *slot)).collect();
            let mut removed = vec![false; given.len()];
            for (given, removed) in given.chunks(100).zip(removed.chunks_mut(100)) {
                index.remove_in_order(given, &index.epoch.pin(), removed);
            }
            for ((key, slot), removed) in given.iter().zip(removed) {
                assert_eq!(removed, model.get(*key) == Some(slot), "{family}, seed {seed}");
                if removed {
                    model.remove(*key);
                }
            }
            check_whole(&index, &model);
            run(&index, &mut model, family, &mut r, 200, 8);
        }
    }
}

/// A few keys that stay, one in each leaf, do not keep the memory of all.
#[test]
fn leaves_that_many_keys_left_are_joined() {
    let (arena, epoch) = fresh();
    let index = Index::new(arena, epoch);
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    let mut model: Model = (0..20_000).map(|n| (key(n), slot(n + 1))).collect();
    for (key, slot) in &model {
        index.upsert(key, &index.epoch.pin(), |_| (Decision::Store(*slot), ())).unwrap();
    }
    let before = index.bytes();
    let gone: Vec<(Vec<u8>, Slot)> = model
        .iter()
        .enumerate()
        .filter(|(n, _)| n % 20 > 0)
        .map(|(_, (key, slot))| (key.clone(), *slot))
        .collect();
    for gone in gone.chunks(100) {
        let given: Vec<(&[u8], Slot)> = gone.iter().map(|(key, slot)| (&key[..], *slot)).collect();
        index.remove_in_order(&given, &index.epoch.pin(), &mut vec![false; given.len()]);
    }
    gone.iter().for_each(|(key, _)| assert!(model.remove(key).is_some()));
    check_whole(&index, &model);
    assert!(index.bytes() * 8 < before, "{} bytes of {before}", index.bytes());
}
