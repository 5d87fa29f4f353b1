//! Measures the index alone: `cargo run --release -p hedgerow --example index_speed [keys]`.
//!
//! Keys are "user" and 20 digits. Gets marked "dependent" choose each key by the slot found before, so that they show
//! latency; others may overlap.
#![allow(clippy::disallowed_methods, reason = "tests and measurements use the machine as it is")]

use std::hint::black_box;
use std::ops::Bound;
use std::time::Instant;

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

fn in_order(index: &IndexProbe, count: usize) {
    measure("insert, ascending", count, |i| {
        index.set(format!("user{i:020}").as_bytes(), Some(slot(i))).expect("room");
    });
    println!("{:32} {:8.1} bytes", "memory a key, ascending", index.bytes() as f64 / count as f64);
}
