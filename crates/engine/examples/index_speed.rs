//! Measures the index alone: `cargo run --release -p hedgerow --example index_speed [keys]`.
//!
//! Keys are "user" and 20 digits. Gets marked "dependent" choose each key by the slot found before, so that they show
//! latency; others may overlap.
#![allow(clippy::disallowed_methods, reason = "tests and measurements use the machine as it is")]

use std::hint::black_box;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use hedgerow::parts::index::{Decision, Epoch, Index, LogSlot, NodeArena, ScanBatch, Slot, Tag};

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

fn main() {
    let count: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let arena = Arc::new(NodeArena::new(8 << 30).expect("address space"));
    if std::env::args().nth(2).is_some() {
        arena.prefer_huge_pages();
    }
    let epoch = Arc::new(Epoch::new());
    let mut keys = Keys(Vec::with_capacity(count * 24));
    for i in 0..count as u64 {
        keys.0.extend_from_slice(format!("user{:020}", scatter(i + 1)).as_bytes());
    }
    let slot = |i: usize| Slot::from(LogSlot::new(Tag::Row, i as u64 * 8, 1000));
    arena.populate_ahead(count as u64 * 64).expect("memory");
    let index = Index::new(arena.clone(), epoch.clone());
    let upsert = |index: &Index, i: usize| {
        let guard = epoch.pin();
        index.upsert(keys.get(i), &guard, |_| (Decision::Store(slot(i)), ())).expect("room");
    };
    measure("insert, random", count, |i| upsert(&index, i));
    println!("{:32} {:8.1} bytes", "memory a key", index.bytes() as f64 / count as f64);
    // The keys lie in random order, so going through them is random in the tree and costs no miss of its own.
    let pick = |i: usize| (i + 7) % count;
    measure("pin", count, |_| drop(black_box(epoch.pin())));
    let mut last = 0;
    measure("get, dependent", count, |i| {
        let guard = epoch.pin();
        let found = index.get(keys.get(pick(i + last)), &guard).expect("there");
        last = found.raw() as usize & 1;
    });
    measure("get, may overlap", count, |i| {
        black_box(index.get(keys.get(pick(i)), &epoch.pin()));
    });
    let (mut wanted, mut out) = (Vec::<&[u8]>::new(), [None; 16]);
    let group = |i: usize| {
        wanted.clear();
        wanted.extend((0..16).map(|j| keys.get(pick(i * 16 + j))));
        index.multi_get(&wanted, &epoch.pin(), &mut out);
        black_box(&out);
    };
    measure("multi_get of 16", count / 16, group);
    measure("update", count, |i| upsert(&index, pick(i)));
    let mut batch = ScanBatch::new();
    measure("scan of 100, random start", count / 20, |i| {
        index.scan_forward(
            Bound::Included(keys.get(pick(i))),
            Bound::Unbounded,
            100,
            &epoch.pin(),
            &mut batch,
        );
    });
    measure("scan of 100, warm", 20_000, |i| {
        index.scan_forward(Bound::Included(keys.get(i % 8)), Bound::Unbounded, 100, &epoch.pin(), &mut batch);
    });
    measure("scan of 100 back, warm", 20_000, |i| {
        index.scan_reverse(Bound::Unbounded, Bound::Included(keys.get(i % 8)), 100, &epoch.pin(), &mut batch);
    });
    build(&arena, &epoch, &index, count);
    in_order(&arena, &epoch, count);
    measure("remove", count, |i| {
        index.upsert(keys.get(i), &epoch.pin(), |_| (Decision::Remove, ())).expect("removes need no room");
    });
    println!("{:32} {:8} bytes", "left", index.bytes());
}

/// Builds a tree of the same entries in bulk, and puts it in place of the old.
fn build(arena: &Arc<NodeArena>, epoch: &Arc<Epoch>, index: &Index, count: usize) {
    let guard = epoch.pin();
    let (mut all, mut sorted) = (ScanBatch::new(), Vec::new());
    let start = Instant::now();
    index.scan_forward(Bound::Unbounded, Bound::Unbounded, count, &guard, &mut all);
    println!("{:32} {:8.1} ns", "whole scan, an entry", start.elapsed().as_nanos() as f64 / count as f64);
    drop(guard);
    sorted.extend(all.iter());
    arena.populate_ahead(count as u64 * 64).expect("memory");
    let start = Instant::now();
    let built = Index::bulk_build(arena.clone(), epoch.clone(), sorted.iter().copied(), 90).expect("room");
    println!(
        "{:32} {:8.1} ns",
        "bulk build at 90 %, a key",
        start.elapsed().as_nanos() as f64 / count as f64
    );
    println!("{:32} {:8.1} bytes", "memory a key, built", built.bytes() as f64 / count as f64);
    let start = Instant::now();
    index.replace_with(built);
    while epoch.collect() > 0 {}
    println!("{:32} {:8.1} ms", "replace and free", start.elapsed().as_secs_f64() * 1e3);
}

fn in_order(arena: &Arc<NodeArena>, epoch: &Arc<Epoch>, count: usize) {
    let index = Index::new(arena.clone(), epoch.clone());
    measure("insert, ascending", count, |i| {
        let key = format!("user{i:020}");
        let slot = Slot::from(LogSlot::new(Tag::Row, i as u64 * 8, 1000));
        index.upsert(key.as_bytes(), &epoch.pin(), |_| (Decision::Store(slot), ())).expect("room");
    });
    println!("{:32} {:8.1} bytes", "memory a key, ascending", index.bytes() as f64 / count as f64);
}
