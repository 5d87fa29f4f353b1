//! A process killed half-way through a segment header or the root: `memcpy` is not atomic, so any word of the copy may
//! be new and any other old. Opening must find what was there.

use hedgerow::{Db, ErrorKind, Options, OwnedValue, Schema, Table, Value};
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Image, Survivors};

const SEGMENT: u64 = 1 << 20;
const ROOT_COPIES: [u64; 2] = [0, 4096];

fn open(sim: &CrashSim) -> hedgerow::Result<Db> {
    let options = Options {
        segment_bytes: SEGMENT,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 16 << 20,
        ..Options::default()
    };
    Db::open_at(FastTier::simulated(sim), options, Clock::manual(1_000))
}

fn put(flat: &Table, key: &[u8], bytes: usize) {
    flat.put(key, &[("value", Value::Bytes(&vec![key[0]; bytes]))]).unwrap();
}

fn fill(flat: &Table, bytes: usize) {
    (0..9u8).for_each(|i| put(flat, &[b'f', i], bytes));
}

/// Segments are opened, checkpointed, sealed, freed, used again; one of several extents among them; the last recovery is synced.
fn first_life(sim: &CrashSim) -> Db {
    let db = open(sim).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    put(&flat, b"deleted", 100);
    fill(&flat, 120_000);
    flat.delete(b"deleted").unwrap();
    fill(&flat, 120_000);
    db.collect().unwrap();
    put(&flat, b"big", 2_200_000);
    fill(&flat, 120_000);
    put(&flat, b"big", 10);
    db.collect().unwrap();
    fill(&flat, 120_000);
    db.persist().unwrap();
    db
}

/// Goes on where a killed process stopped: syncs what was recovered, and closes in order.
fn second_life(sim: &CrashSim) {
    let db = open(sim).unwrap();
    let flat = db.table("flat").unwrap();
    put(&flat, b"second", 100);
    db.persist().unwrap();
    fill(&flat, 120_000);
    db.collect().unwrap();
    db.close().unwrap();
}

type Rows = Vec<(Vec<u8>, OwnedValue)>;

fn rows(db: &Db) -> Option<Rows> {
    let table = db.table("flat").ok()?;
    Some(
        table
            .scan()
            .map(|row| row.unwrap())
            .map(|r| (r.key().to_vec(), r.get("value").unwrap().to_owned()))
            .collect(),
    )
}

/// The copies of headers and of the root in a tier of so many bytes: place and length.
fn copies(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let headers =
        (1..bytes / SEGMENT).flat_map(|extent| [(extent * SEGMENT, 64), (extent * SEGMENT + 64, 64)]);
    ROOT_COPIES.into_iter().map(|offset| (offset, 128)).chain(headers)
}

/// `before` with the words of a copy that `is_new` picks as in `after`; `None` if that is no tear.
fn torn(
    before: &Image,
    after: &Image,
    (offset, len): (u64, usize),
    is_new: impl Fn(usize) -> bool,
) -> Option<Image> {
    let (old, new) = (before.read(offset, len), after.read(offset, len));
    let mut image = before.clone();
    for (i, (old, new)) in old.iter().zip(&new).enumerate().filter(|(i, _)| is_new(i / 8)) {
        if old != new {
            image.corrupt(offset + i as u64, old ^ new);
        }
    }
    let result = image.read(offset, len);
    (result != old && result != new).then_some(image)
}

/// Opens a torn image, and again after whatever happens next.
fn survive(image: &Image, wanted: &Option<Rows>, go_on: bool, place: &str) {
    let sim = CrashSim::from_image(image);
    let db = open(&sim).unwrap_or_else(|error| panic!("{place}: {error}"));
    assert!(rows(&db) == *wanted, "{place}: other rows");
    db.check_counts().unwrap();
    if !go_on || wanted.is_none() {
        return;
    }
    let flat = db.table("flat").unwrap();
    fill(&flat, 110_000);
    db.collect().unwrap();
    fill(&flat, 110_000);
    let (last, mut walk) = (rows(&db), sim.walk());
    walk.seek(u64::MAX);
    let was_deleted = flat.get(b"deleted").unwrap().is_none();
    for kind in [Survivors::ProcessKill, Survivors::None, Survivors::LastStore, Survivors::HeadersOnly] {
        let db = open(&CrashSim::from_image(&walk.image(kind, 0)))
            .unwrap_or_else(|error| panic!("{place}, then {kind:?}: {error}"));
        db.check_counts().unwrap();
        assert!(kind != Survivors::ProcessKill || rows(&db) == last, "{place}, then killed: other rows");
        let is_deleted = db.table("flat").unwrap().get(b"deleted").unwrap().is_none();
        assert!(is_deleted || !was_deleted, "{place}, then {kind:?}: a deleted row is back");
    }
}

/// Tears every copy that is written, at every word; returns how many tears there were of headers and of the root.
fn tear_all(sim: &CrashSim) -> (u32, u32) {
    let mut walk = sim.walk();
    let (mut headers, mut roots) = (0, 0);
    let mut before = walk.image(Survivors::ProcessKill, 0);
    while walk.next_op() {
        let after = walk.image(Survivors::ProcessKill, 0);
        let changed = |&(offset, len): &(u64, usize)| before.read(offset, len) != after.read(offset, len);
        // What is not a header is a record in an extent that is not a segment's first.
        let is_header = |&(offset, _): &(u64, usize)| {
            offset < SEGMENT || [&b"HDGSEG01"[..], &[0; 8]].contains(&&after.read(offset, 8)[..])
        };
        for copy in copies(after.bytes()).filter(changed).filter(is_header) {
            let wanted = rows(&open(&CrashSim::from_image(&before)).unwrap());
            let words = copy.1 / 8;
            for k in 1..words {
                let place = format!("operation {}, byte {}, word {k}", walk.op_index(), copy.0);
                let images =
                    [torn(&before, &after, copy, |w| w < k), torn(&before, &after, copy, |w| w >= k)];
                for image in images.iter().flatten() {
                    survive(image, &wanted, k % 4 == 1, &place);
                    if copy.0 < SEGMENT { roots += 1 } else { headers += 1 }
                }
            }
        }
        before = after;
    }
    (headers, roots)
}

#[test]
fn any_copy_torn_by_a_kill_is_survived() {
    // To a killed process all media are alike.
    let sim = CrashSim::new(CrashModel::Pages, 24 << 20);
    let _db = first_life(&sim);
    let second = CrashSim::from_image(&sim.process_kill());
    second_life(&second);
    let (first, second) = (tear_all(&sim), tear_all(&second));
    println!("tears of headers and of the root: {first:?}, {second:?}");
    assert!(first.0 > 100 && first.1 > 50 && second.0 > 100 && second.1 > 50);
}

#[test]
fn both_copies_spoiled_are_corruption() {
    let sim = CrashSim::new(CrashModel::Pages, 24 << 20);
    let db = first_life(&sim);
    let used: Vec<u64> = {
        let image = sim.process_kill();
        let is_used = |extent: &u64| {
            let [first, second] = [0, 64].map(|at| image.read(extent * SEGMENT + at, 64));
            first[..8] == *b"HDGSEG01" && first[36] != 0 && (second[36] != 0 || second[8..16] < first[8..16])
        };
        (1..image.bytes() / SEGMENT).filter(is_used).collect()
    };
    assert!(used.len() > 2, "{used:?}");
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    for kind in [Survivors::ProcessKill, Survivors::All] {
        for extent in &used {
            let mut image = walk.image(kind, 0);
            image.corrupt(extent * SEGMENT + 20, 1);
            image.corrupt(extent * SEGMENT + 64 + 20, 1);
            let error = open(&CrashSim::from_image(&image)).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{kind:?}, extent {extent}");
        }
    }
    drop(db);
}
