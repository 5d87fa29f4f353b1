//! Measures the index alone, and beside it groups of leaves in memory: `cargo run --release -p hedgerow --example index_speed [keys]`.
//!
//! Keys are "user" and 20 digits. Gets marked "dependent" choose each key by the slot found before, so that they show
//! latency; others may overlap.
#![allow(clippy::disallowed_methods, reason = "tests and measurements use the machine as it is")]

use std::convert::Infallible;
use std::hint::black_box;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::time::Instant;

use hedgerow::parts::group::{
    Group, GroupCursor, GroupFilter, GroupLevels, GroupWriter, LeafBytes, LeafExtents, LeafPlace,
    MergedEntries, NumberedGroup, hash_of,
};
use hedgerow::parts::index::{IndexProbe, LogSlot, ScanBatch, Slot, Tag};

fn scatter(n: u64) -> u64 {
    let z = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

struct Keys(Vec<u8>);

impl Keys {
    fn get(&self, i: usize) -> &[u8] {
        &self.0[i * 24..i * 24 + 24]
    }
}

/// Nanoseconds per operation of `run`, called `times` times.
fn measure(name: &str, times: usize, mut run: impl FnMut(usize)) {
    let start = Instant::now();
    for i in 0..times {
        run(i);
    }
    println!("{name:32} {:8.1} ns", start.elapsed().as_nanos() as f64 / times as f64);
}

fn slot(i: usize) -> Slot {
    Slot::from(LogSlot::new(Tag::Row, i as u64 * 8, 1000))
}

fn main() {
    let count: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let index = IndexProbe::new(8 << 30).expect("address space");
    if std::env::args().nth(2).is_some() {
        index.prefer_huge_pages();
    }
    let mut keys = Keys(Vec::with_capacity(count * 24));
    for i in 0..count as u64 {
        keys.0.extend_from_slice(format!("user{:020}", scatter(i + 1)).as_bytes());
    }
    index.populate_ahead(count as u64 * 64).expect("memory");
    let set = |i: usize| index.set(keys.get(i), Some(slot(i))).expect("room");
    measure("insert, random", count, set);
    println!("{:32} {:8.1} bytes", "memory a key", index.bytes() as f64 / count as f64);
    // The keys lie in random order, so going through them is random in the tree and costs no miss of its own.
    let pick = |i: usize| (i + 7) % count;
    measure("pin", count, |_| index.pin());
    let mut last = 0;
    measure("get, dependent", count, |i| {
        let found = index.get(keys.get(pick(i + last))).expect("there");
        last = found.raw() as usize & 1;
    });
    measure("get, may overlap", count, |i| {
        black_box(index.get(keys.get(pick(i))));
    });
    let (mut wanted, mut out) = (Vec::<&[u8]>::new(), [None; 16]);
    let group = |i: usize| {
        wanted.clear();
        wanted.extend((0..16).map(|j| keys.get(pick(i * 16 + j))));
        index.multi_get(&wanted, &mut out);
        black_box(&out);
    };
    measure("multi_get of 16", count / 16, group);
    measure("update", count, |i| set(pick(i)));
    let mut batch = ScanBatch::new();
    measure("scan of 100, random start", count / 20, |i| {
        index.scan((Bound::Included(keys.get(pick(i))), Bound::Unbounded), false, 100, &mut batch);
    });
    measure("scan of 100, warm", 20_000, |i| {
        index.scan((Bound::Included(keys.get(i % 8)), Bound::Unbounded), false, 100, &mut batch);
    });
    measure("scan of 100 back, warm", 20_000, |i| {
        index.scan((Bound::Unbounded, Bound::Included(keys.get(i % 8))), true, 100, &mut batch);
    });
    build(&index, count);
    groups(&keys, count);
    in_order(&index.beside(), count);
    measure("remove", count, |i| index.set(keys.get(i), None).expect("removes need no room"));
    println!("{:32} {:8} bytes", "left", index.bytes());
}

/// Builds a tree of the same entries in bulk, and puts it in place of the old.
fn build(index: &IndexProbe, count: usize) {
    let (mut all, mut sorted) = (ScanBatch::new(), Vec::new());
    let start = Instant::now();
    index.scan((Bound::Unbounded, Bound::Unbounded), false, count, &mut all);
    println!("{:32} {:8.1} ns", "whole scan, an entry", start.elapsed().as_nanos() as f64 / count as f64);
    sorted.extend(all.iter());
    index.populate_ahead(count as u64 * 64).expect("memory");
    let start = Instant::now();
    let built = index.built(&sorted, 90).expect("room");
    println!(
        "{:32} {:8.1} ns",
        "bulk build at 90 %, a key",
        start.elapsed().as_nanos() as f64 / count as f64
    );
    println!("{:32} {:8.1} bytes", "memory a key, built", built.bytes() as f64 / count as f64);
    let start = Instant::now();
    index.replace_with(built);
    println!("{:32} {:8.1} ms", "replace and free", start.elapsed().as_secs_f64() * 1e3);
}

/// Extents of leaves in memory, by number, which is their place, too.
struct InMemory(Vec<Vec<u8>>);

impl LeafBytes for InMemory {
    fn leaf_bytes(&self, at: u64, range: Range<usize>) -> Option<&[u8]> {
        self.0.get(at as usize)?.get(range)
    }
}

impl LeafExtents for InMemory {
    type Error = Infallible;

    fn take(&mut self) -> Result<(LeafPlace, usize), Infallible> {
        let number = self.0.len() as u64;
        Ok((LeafPlace { number, at: number }, (1 << 20) - 4096))
    }

    fn write(&mut self, _: LeafPlace, leaves: &[u8]) -> Result<(), Infallible> {
        self.0.push(leaves.to_vec());
        Ok(())
    }
}

fn group_of<'k>(extents: &mut InMemory, sorted: impl Iterator<Item = (&'k [u8], u64)>) -> Group {
    let mut writer = GroupWriter::new(extents);
    sorted.for_each(|(key, slot)| writer.push(key, slot).expect("memory"));
    writer.finish().expect("memory")
}

/// Groups of the same keys, all in memory: what they take, and what looking into them and merging them costs the processor.
fn groups(keys: &Keys, count: usize) {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_unstable_by_key(|&i| keys.get(i));
    let mut extents = InMemory(Vec::new());
    let start = Instant::now();
    let sorted = order.iter().map(|&i| (keys.get(i), slot(i).raw()));
    let group = group_of(&mut extents, sorted);
    println!("{:32} {:8.1} ns", "group, writing, a key", start.elapsed().as_nanos() as f64 / count as f64);
    println!("{:32} {:8.2} bytes", "group, leaves a key", group.bytes() as f64 / count as f64);
    println!("{:32} {:8.2} bytes", "group, memory a key", group.memory_bytes() as f64 / count as f64);
    let mut last = 0;
    measure("group, get, dependent", count, |i| {
        let key = keys.get((i + 7 + last) % count);
        last = group.get(key, hash_of(key), &extents).expect("verifies").expect("there") as usize & 1;
    });
    measure("group, get, may overlap", count, |i| {
        let key = keys.get((i + 7) % count);
        black_box(group.get(key, hash_of(key), &extents).expect("verifies"));
    });
    let mut cursor = GroupCursor::new(&group, &extents);
    cursor.seek(b"").expect("verifies");
    measure("group, walk, an entry", count, |_| {
        black_box(cursor.entry());
        cursor.advance().expect("verifies");
    });
    merge_and_filter(keys, &order);
}

/// Groups that come one after the other, and of how many keys of all each has one.
const GROUPS: usize = 8;
const ONE_IN: usize = 16;

/// Eight groups of an eighth of the keys each are made one, and eight of a sixteenth lie over one of all.
fn merge_and_filter(keys: &Keys, order: &[usize]) {
    let mut extents = InMemory(Vec::new());
    let entry = |&i: &usize| (keys.get(i), slot(i).raw());
    let mut some =
        |n: usize, step: usize| group_of(&mut extents, order.iter().skip(n).step_by(step).map(entry));
    let eighths: Vec<Group> = (0..GROUPS).map(|n| some(n, GROUPS)).collect();
    let l0: Vec<Group> = (0..GROUPS).map(|n| some(n, ONE_IN)).collect();
    let mut one = InMemory(Vec::new());
    let start = Instant::now();
    let mut writer = GroupWriter::new(&mut one);
    let mut merged =
        MergedEntries::new(&eighths.iter().collect::<Vec<_>>(), &extents, b"").expect("verifies");
    while let Some((key, slot)) = merged.entry() {
        writer.push(key, slot).expect("memory");
        merged.advance(|_, _| ()).expect("verifies");
    }
    let entries = writer.finish().expect("memory").entries();
    println!(
        "{:32} {:8.1} ns",
        "8 groups made one, a key",
        start.elapsed().as_nanos() as f64 / entries as f64
    );

    let of_l0 = |n: usize| order.iter().skip(n).step_by(ONE_IN).map(move |&i| (i, n as u64 + 1));
    let in_l0: Vec<(usize, u64)> = (0..GROUPS).flat_map(of_l0).collect();
    let filter = GroupFilter::for_keys(in_l0.len() as u64, 1);
    println!("{:32} {:8.2} bytes", "filter, memory a key", filter.bytes() as f64 / in_l0.len() as f64);
    measure("filter, insert", in_l0.len(), |i| {
        let (key, number) = in_l0[i];
        filter.insert(hash_of(keys.get(key)), number).expect("room");
    });
    let l1 = group_of(&mut extents, order.iter().map(entry));
    let levels = l0.into_iter().zip(1..).fold(
        GroupLevels::default().merged(0, Arc::new(l1)).with_filter(Some(Arc::new(filter))),
        |levels, (group, number)| levels.with_group(NumberedGroup { number, group: Arc::new(group) }),
    );
    let (count, mut asked, mut last) = (order.len(), 0, 0);
    measure("levels, get, dependent", count, |i| {
        let look = levels.get(keys.get((i + 7 + last) % count), &extents).expect("verifies");
        asked += look.asked;
        last = look.slot.expect("there") as usize & 1;
    });
    println!("{:32} {:8.3} groups", "levels, asked a get", f64::from(asked) / count as f64);
}

fn in_order(index: &IndexProbe, count: usize) {
    measure("insert, ascending", count, |i| {
        index.set(format!("user{i:020}").as_bytes(), Some(slot(i))).expect("room");
    });
    println!("{:32} {:8.1} bytes", "memory a key, ascending", index.bytes() as f64 / count as f64);
}
