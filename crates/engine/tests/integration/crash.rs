//! Crash sweeps on the simulated medium: every persist point of a long script, several survivor images each.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hedgerow::{
    Change, Db, Durability, ErrorKind, Expiry, Options, OwnedValue, PersistGranule, Schema, Table, Type,
    Value,
};
use hedgerow_device::{CrashModel, CrashSim, CrashWalk, FastTier, Random, Survivors};
use hedgerow_sim::{FORMATS, Format, Lie, Op, Setup, Sweep, SweepCounts, Taste, is_soaking};

const TIER_BYTES: u64 = 16 << 20;

fn taste() -> Taste {
    Taste {
        keys: 90,
        value_bytes_max: 80_000,
        // Chains that reads find, `Db::collect` merges: rows that are not durable, under deltas that may be.
        reads: true,
        reopens: false,
        persist_one_in: 25,
        ..Taste::default()
    }
}

/// Many chains that can be merged in place.
fn in_place() -> Taste {
    Taste { fixed_updates: true, keys: 60, value_bytes_max: 3_000, ..taste() }
}

/// Sweeps scripts of `count` operations, halves of it with the newest and the oldest format. `HEDGEROW_SEED=n` chooses another than that of
/// seed 1; `cargo xtask soak` sweeps several seeds, of whole scripts, the versions in turn.
fn sweep(
    model: CrashModel,
    durability: Durability,
    count: usize,
    images: usize,
    between: u64,
) -> SweepCounts {
    let counts = sweep_of(&taste(), setup_of(model, durability), count, images, between);
    assert!(counts.segments_freed > 0, "the scripts collected nothing");
    counts
}

fn setup_of(model: CrashModel, durability: Durability) -> Setup {
    Setup { model, durability, tier_bytes: TIER_BYTES, ..Setup::default() }
}

fn sweep_of(taste: &Taste, setup: Setup, count: usize, images: usize, between: u64) -> SweepCounts {
    let first = std::env::var("HEDGEROW_SEED").map_or(1, |seed| seed.parse().unwrap());
    let scripts: Vec<(u64, Format, usize)> = match is_soaking() {
        true => (first..first + SOAK_SEEDS)
            .map(|seed| (seed, FORMATS[seed as usize % FORMATS.len()], count))
            .collect(),
        // What the one between adds is the root of the first with the checksums of the last.
        false => [FORMATS[0], FORMATS[2]].map(|format| (first, format, count / 2)).to_vec(),
    };
    let (mut all, mut distinct) = (SweepCounts::default(), HashSet::new());
    for (seed, format, count) in scripts {
        let start = Instant::now();
        let setup = Setup { format, ..setup };
        let mut sweep = Sweep::run(seed, count, setup, taste).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
        if is_soaking() {
            sweep.keep_fingerprints();
        }
        sweep.crash_everywhere(images, between).unwrap_or_else(|d| panic!("{d}"));
        distinct.extend(sweep.fingerprints().iter().copied());
        println!(
            "seed {seed}, {:?}, {:?}, {format}: {:?} in {:.1?}",
            setup.model,
            setup.durability,
            sweep.counts,
            start.elapsed()
        );
        if is_soaking() {
            println!("{} distinct images so far", distinct.len());
        }
        assert!(setup.moving || sweep.counts.merged.chains > 0, "the script merged nothing");
        all += sweep.counts;
    }
    all
}

/// Seeds of each sweep under `cargo xtask soak`.
const SOAK_SEEDS: u64 = 6;

/// A violation that was seen once can be looked at: the script, the places and the images are those of the seed.
#[test]
fn a_seed_repeats_its_images() {
    for (model, durability) in
        [(CrashModel::Pages, Durability::Immediate), (CrashModel::CacheLines, Durability::Process)]
    {
        let images = || {
            let mut sweep =
                Sweep::run(3, 300, setup_of(model, durability), &taste()).unwrap_or_else(|d| panic!("{d}"));
            sweep.keep_fingerprints();
            sweep.crash_everywhere(2, 100).unwrap_or_else(|d| panic!("{d}"));
            sweep.fingerprints().to_vec()
        };
        let (once, again) = (images(), images());
        let alike = once.iter().zip(&again).filter(|(one, other)| one == other).count();
        assert!(once.len() > 100, "{model:?}: only {} images", once.len());
        assert!(once == again, "{model:?}: {alike} of {} images are alike", once.len());
    }
}

/// Tables are loaded, written, and loaded again: what a crash leaves of sorted tables and log together is one state.
#[test]
fn loaded_tables() {
    let taste = Taste { loads: true, keys: 40, value_bytes_max: 2_000, ..taste() };
    for (model, durability) in
        [(CrashModel::Pages, Durability::Process), (CrashModel::CacheLines, Durability::Immediate)]
    {
        let counts = sweep_of(&taste, setup_of(model, durability), 1_200, 3, 200);
        assert!(counts.loads > 2, "the scripts load little: {counts:?}");
    }
}

/// Rows move to sorted tables with every collection, out of open segments with every other; some tables are loaded, too.
#[test]
fn rows_that_move() {
    for (model, durability, loads, snapshots) in [
        (CrashModel::Pages, Durability::Process, false, false),
        (CrashModel::Pages, Durability::Immediate, true, true),
        (CrashModel::CacheLines, Durability::Process, true, true),
        (CrashModel::CacheLines, Durability::Immediate, false, false),
    ] {
        let taste =
            Taste { loads, snapshots, keys: 400, value_bytes_max: 2_000, collect_one_in: 20, ..taste() };
        let setup = Setup { moving: true, ..setup_of(model, durability) };
        let counts = sweep_of(&taste, setup, 1_200, 3, 100);
        assert!(counts.moved > 100, "the scripts move little: {counts:?}");
    }
}

/// Keys leave memory with collections and with each opening; what a crash leaves does not depend on it.
#[test]
fn keys_that_are_sealed() {
    let mut all = SweepCounts::default();
    // With a checkpoint of the index for each half MiB, and with none.
    let checkpoints = 512 << 10;
    for (model, durability, moving, index_checkpoint_bytes) in [
        (CrashModel::Pages, Durability::Process, false, checkpoints),
        (CrashModel::Pages, Durability::Immediate, true, checkpoints),
        (CrashModel::Pages, Durability::Process, false, u64::MAX),
        (CrashModel::CacheLines, Durability::Process, false, u64::MAX),
        (CrashModel::CacheLines, Durability::Immediate, false, u64::MAX),
    ] {
        let taste = Taste { keys: 1_200, value_bytes_max: 1_000, collect_one_in: 10, ..taste() };
        let index_bytes_max = 22 << 10;
        let setup = Setup { moving, index_bytes_max, index_checkpoint_bytes, ..setup_of(model, durability) };
        all += sweep_of(&taste, setup, 1_600, 2, 200);
    }
    assert!(all.sealed > 300, "the scripts seal little: {all:?}");
}

#[test]
fn page_cache_with_persists_now_and_then() {
    let counts = sweep(CrashModel::Pages, Durability::Process, 2_000, 4, 50);
    assert!(counts.lost > 0, "no crash lost anything that was not durable: the medium loses nothing");
}

#[test]
fn persistent_memory_with_persists_now_and_then() {
    let counts = sweep(CrashModel::CacheLines, Durability::Process, 2_000, 4, 50);
    assert!(counts.lost > 0, "no crash lost anything that was not durable: the medium loses nothing");
}

/// Writers write back what they filled: nothing rests on it, and it takes nothing away.
#[test]
fn written_back_ahead_of_the_syncs() {
    for (model, granule, moving) in [
        (CrashModel::CacheLines, PersistGranule::Block(4 << 10), false),
        (CrashModel::CacheLines, PersistGranule::Block(16 << 10), true),
        (CrashModel::CacheLines, PersistGranule::Segment, false),
        (CrashModel::Pages, PersistGranule::Block(16 << 10), true),
    ] {
        let taste = if moving { Taste { keys: 400, value_bytes_max: 2_000, ..taste() } } else { in_place() };
        let setup = setup_of(model, Durability::Process);
        let counts = sweep_of(&taste, Setup { persist_granule: granule, moving, ..setup }, 1_200, 2, 200);
        assert!(counts.lost > 0, "{granule:?}: no crash lost anything that was not durable");
    }
}

#[test]
fn page_cache_durable_at_once() {
    let counts = sweep(CrashModel::Pages, Durability::Immediate, 2_000, 2, 0);
    assert!(counts.places > 700);
}

#[test]
fn persistent_memory_durable_at_once() {
    let counts = sweep(CrashModel::CacheLines, Durability::Immediate, 2_000, 2, 0);
    assert!(counts.places > 700);
}

/// Rows merged in place, torn at every step of it.
#[test]
fn merging_in_place_survives() {
    for durability in [Durability::Process, Durability::Immediate] {
        let counts = sweep_of(&in_place(), setup_of(CrashModel::CacheLines, durability), 1_500, 3, 15);
        assert!(counts.merged.in_place > 20, "only {} chains were merged in place", counts.merged.in_place);
    }
}

/// With one protection switched off, some crash must show it: else the sweep would prove nothing.
fn must_be_noticed(model: CrashModel, durability: Durability, lie: Lie) {
    // Large writes, so that what was freed is soon written over.
    let taste = Taste { persist_one_in: 40, reads: false, keys: 40, value_bytes_max: 300_000, ..taste() };
    must_be_noticed_by(&taste, model, durability, lie);
}

fn must_be_noticed_by(taste: &Taste, model: CrashModel, durability: Durability, lie: Lie) {
    // The newest version and the one before have their shares.
    let format = FORMATS[usize::from(model == CrashModel::Pages)];
    let setup = Setup { format, ..setup_of(model, durability) };
    for seed in 1..12 {
        let Ok(mut sweep) = Sweep::run_lying(seed, 1_200, setup, taste, Some(lie)) else { continue };
        if let Err(violation) = sweep.crash_everywhere(3, 40) {
            let text = violation.to_string();
            println!("seed {seed}: {}", text.split(": ").skip(2).collect::<Vec<_>>().join(": "));
            return;
        }
    }
    panic!("no sweep noticed {lie:?}");
}

/// Of either version.
const ROOT: u64 = 1 << 20;

/// Whether a segment may begin there.
fn is_start(offset: u64) -> bool {
    offset >= ROOT && FORMATS.iter().any(|format| offset.is_multiple_of(format.segment_bytes))
}

fn is_everything(offset: u64, len: u64) -> bool {
    (offset, len) == (0, u64::MAX)
}

fn stores_catalog(op: &Op) -> bool {
    matches!(op, Op::Persist | Op::Collect)
}

#[test]
fn without_the_sync_of_persist_the_sweep_fails() {
    let lie = Lie { during: |op| *op == Op::Persist, ranges: |_, _| true };
    must_be_noticed(CrashModel::Pages, Durability::Process, lie);
    must_be_noticed(CrashModel::CacheLines, Durability::Process, lie);
}

#[test]
fn without_the_persist_of_each_record_the_sweep_fails() {
    let lie = Lie { during: |_| true, ranges: |offset, len| offset >= ROOT && !is_everything(offset, len) };
    must_be_noticed(CrashModel::CacheLines, Durability::Immediate, lie);
}

/// Merging in place: the checksums before the fields, the fields before the word that says so, the word before the deltas go.
#[test]
fn without_the_persists_of_merging_in_place_the_sweep_fails() {
    // Everything smaller than a header, in the segments, during collections: the lines of merges.
    let merge = |offset: u64, len: u64| offset >= ROOT && len.is_multiple_of(64) && !is_start(offset);
    let lie = Lie { during: |op| *op == Op::Collect, ranges: merge };
    must_be_noticed_by(&in_place(), CrashModel::CacheLines, Durability::Process, lie);
}

#[test]
fn without_the_checkpoint_before_freeing_the_sweep_fails() {
    let lie = Lie { during: |op| *op == Op::Collect, ranges: is_everything };
    must_be_noticed(CrashModel::Pages, Durability::Process, lie);
}

#[test]
fn without_freeing_durably_before_reuse_the_sweep_fails() {
    let header = |offset: u64, len: u64| is_start(offset) && len == 128;
    must_be_noticed(
        CrashModel::Pages,
        Durability::Process,
        Lie { during: |op| *op == Op::Collect, ranges: header },
    );
}

#[test]
fn without_the_order_of_catalog_and_root_the_sweep_fails() {
    let catalog = |offset: u64, _| (65_536..ROOT).contains(&offset);
    must_be_noticed(CrashModel::Pages, Durability::Process, Lie { during: stores_catalog, ranges: catalog });
    let root = |offset: u64, len: u64| offset < 65_536 && len == 128;
    must_be_noticed(
        CrashModel::CacheLines,
        Durability::Process,
        Lie { during: stores_catalog, ranges: root },
    );
}

/// The record of a change goes with its segment: the catalog that holds it must be there before.
#[test]
fn without_the_catalog_before_freeing_the_sweep_fails() {
    let of_root = |offset: u64, len: u64| offset < ROOT && !is_everything(offset, len);
    let lie = Lie { during: |op| *op == Op::Collect, ranges: of_root };
    must_be_noticed(CrashModel::Pages, Durability::Process, lie);
}

/// Rows of which every write gives all fields one number, the next.
struct Counted {
    sim: CrashSim,
    table: Table,
    /// What was acknowledged: the medium's position by then, key, number.
    acknowledged: Mutex<Vec<(u64, u8, u64)>>,
}

const KEYS: u8 = 48;
const WIDE: usize = 3_000;

/// A key whose row's checksums begin a line of their own now and then.
fn key_of(key: u8) -> [u8; 24] {
    [key; 24]
}

fn counted_options(durability: Durability, background: bool) -> Options {
    // The newest version and the one before have one mode each.
    let format = FORMATS[usize::from(durability == Durability::Immediate)];
    let index_bytes_max = 16 << 20;
    format.with(Options {
        durability,
        background,
        index_bytes_max,
        recovery_threads: 1,
        ..Options::default()
    })
}

fn number_of(row: &hedgerow::Row) -> u64 {
    let number = row.get("a").unwrap().as_u64().unwrap();
    assert_eq!(row.get("b").unwrap(), Value::UInt(number));
    assert_eq!(row.get("wide").unwrap(), Value::Bytes(&[number as u8; WIDE]), "number {number}");
    number
}

impl Counted {
    /// Reads a row and writes it with the next number, whole or in part. Others do so, too: then again.
    fn count(&self, key: u8, random: &mut Random) {
        let whole = random.below(4) == 0;
        let number = self.table.modify(&key_of(key), |row| {
            let last = row.map(|row| row.get("a").map(|a| a.as_u64().unwrap())).transpose()?;
            let number = last.unwrap_or(0) + 1;
            let wide = OwnedValue::Bytes(vec![number as u8; WIDE].into());
            let fields = [("a", OwnedValue::UInt(number)), ("b", OwnedValue::UInt(number)), ("wide", wide)];
            let fields = fields.map(|(name, value)| (name.to_owned(), value)).to_vec();
            let change = match whole || last.is_none() {
                true => Change::Put { fields, expiry: Expiry::Never },
                false => Change::Update { fields, expiry: Expiry::Never },
            };
            Ok((change, number))
        });
        let number = match number {
            Ok(number) => number,
            // A snapshot pins what was emptied under it: so small a tier may be full until it is dropped.
            Err(error) if error.kind() == ErrorKind::Full => {
                return std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        };
        self.acknowledged.lock().unwrap().push((self.sim.ops(), key, number));
    }

    fn run(&self, db: &Db, durability: Durability) {
        let end = Instant::now() + Duration::from_millis(700);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    let mut random = Random::from_seed(thread);
                    while Instant::now() < end {
                        self.count(random.below(u64::from(KEYS)) as u8, &mut random);
                        // So that chains age.
                        if random.below(8) == 0 {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                    }
                });
            }
            let mut random = Random::from_seed(9);
            while Instant::now() < end {
                let snapshot = (random.below(8) == 0).then(|| db.snapshot());
                for key in (0..KEYS).map(key_of) {
                    let first = snapshot.as_ref().and_then(|s| s.get(&self.table, &key).unwrap());
                    self.table.get(&key).unwrap().iter().for_each(|row| assert!(number_of(row) > 0));
                    let second = snapshot.as_ref().and_then(|s| s.get(&self.table, &key).unwrap());
                    assert_eq!(first.as_ref().map(number_of), second.as_ref().map(number_of));
                }
                if random.below(64) == 0 && durability == Durability::Process {
                    db.persist().unwrap();
                }
            }
        });
    }

    /// Opens what a crash left and looks at all rows.
    fn recover(&self, walk: &CrashWalk, kind: Survivors, durability: Durability) {
        let place = walk.op_index();
        let image = walk.image(kind, place);
        let all_there = image.same_boot || durability == Durability::Immediate;
        let tier = FastTier::simulated(&CrashSim::from_image(&image));
        let db = Db::open_on(tier, counted_options(durability, false));
        let db = db.unwrap_or_else(|error| panic!("{durability:?}, {kind:?} at {place}: {error}"));
        db.check_counts().unwrap();
        let table = db.table("counted").unwrap();
        for key in 0..KEYS {
            let found =
                table.get(&key_of(key)).unwrap_or_else(|error| panic!("{kind:?} at {place}: {error}"));
            let number = found.as_ref().map_or(0, number_of);
            let acknowledged = self.acknowledged.lock().unwrap();
            let least = acknowledged.iter().filter(|(by, k, _)| *by <= place && *k == key).map(|a| a.2).max();
            assert!(
                !all_there || number >= least.unwrap_or(0),
                "{kind:?} at {place}: {number}, not {least:?}"
            );
        }
    }
}

/// Threads that write the same rows, with consolidation and gc at work; then a crash anywhere in what they stored.
#[test]
fn threads_on_persistent_memory() {
    for durability in [Durability::Immediate, Durability::Process] {
        let sim = CrashSim::new(CrashModel::CacheLines, 12 << 20);
        let db = Db::open_on(FastTier::simulated(&sim), counted_options(durability, true)).unwrap();
        let schema = Schema::new()
            .field("a", Type::U64)
            .field("b", Type::U64)
            .field("wide", Type::FixedBytes(WIDE as u16));
        let table = db.create_table("counted", schema).unwrap();
        // A crash may take a table that nobody made durable, too.
        db.persist().unwrap();
        let begin = sim.ops();
        let counted = Counted { sim: sim.clone(), table, acknowledged: Mutex::default() };
        counted.run(&db, durability);
        let metrics = db.metrics();
        println!(
            "{durability:?}: {} writes, {} chains merged, {} in place, {} segments freed, {} stores",
            counted.acknowledged.lock().unwrap().len(),
            metrics.chains_merged,
            metrics.chains_merged_in_place,
            metrics.segments_collected,
            sim.ops() - begin
        );
        assert!(metrics.chains_merged_in_place > 0);
        let mut random = Random::from_seed(5);
        let mut places: Vec<u64> = (0..80).map(|_| begin + random.below(sim.ops() - begin)).collect();
        places.sort_unstable();
        let mut walk = sim.walk();
        for (n, place) in places.into_iter().enumerate() {
            walk.seek(place);
            counted.recover(&walk, Survivors::EACH[n % Survivors::EACH.len()], durability);
            counted.recover(&walk, Survivors::Random, durability);
        }
    }
}
