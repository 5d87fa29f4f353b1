//! Changes of tables and fields: writes like others. They cost no sync of their own, a crash leaves a prefix of them and of the
//! rows, and the stores of older builds are taken over.

use std::time::Instant;

use hedgerow::inspect::View;
use hedgerow::{
    Db, Durability, ErrorKind, FAST_TIER_FILE, Options, Schema, Table, TableChanges, Type, Value, repair,
};
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Image, Random, Survivors, crc32c};
use hedgerow_sim::Scratch;

const SEGMENT: u64 = 1 << 20;

fn options(durability: Durability) -> Options {
    Options {
        durability,
        background: false,
        segment_bytes: SEGMENT,
        recovery_threads: 1,
        index_bytes_max: 64 << 20,
        ..Options::default()
    }
}

fn try_open(sim: &CrashSim, durability: Durability) -> hedgerow::Result<Db> {
    Db::open_at(FastTier::simulated(sim), options(durability), Clock::manual(1_000))
}

fn open(sim: &CrashSim, durability: Durability) -> Db {
    try_open(sim, durability).unwrap()
}

fn crash(sim: &CrashSim, kind: Survivors, seed: u64) -> Image {
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    walk.image(kind, seed)
}

fn after(sim: &CrashSim, kind: Survivors, seed: u64) -> Db {
    open(&CrashSim::from_image(&crash(sim, kind, seed)), Durability::Process)
}

fn numbers() -> Schema {
    Schema::new().field("n", Type::U64)
}

fn put(table: &Table, key: &[u8], n: u64) {
    table.put(key, &[("n", Value::UInt(n))]).unwrap();
}

fn fields(table: &Table) -> Vec<String> {
    table.schema().fields().iter().map(|field| field.name().to_owned()).collect()
}

/// Every kind of change.
fn change_all(db: &Db) {
    let table = db.create_table("a", numbers()).unwrap();
    put(&table, b"key", 1);
    table.add_field("more", Type::Bytes).unwrap();
    table.rename_field("more", "further").unwrap();
    table.clear().unwrap();
    put(&table, b"key", 2);
    table.drop_field("further").unwrap();
    db.create_table("open", Schema::open()).unwrap().put(b"key", &[("x", Value::Bytes(b"1"))]).unwrap();
    db.create_table("b", numbers()).unwrap();
    assert!(db.drop_table("b").unwrap());
    let mut changes = TableChanges::new();
    changes
        .create("c", numbers())
        .add_field("c", "d", Type::Bool)
        .drop("open")
        .create("open", Schema::open());
    db.change_tables(&changes).unwrap();
}

/// They are as durable as the rows, and no more: nobody waits for the medium on their account.
#[test]
fn changes_cost_no_sync() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 64 << 20);
        let db = open(&sim, Durability::Process);
        put(&db.create_table("first", numbers()).unwrap(), b"key", 1);
        let before = sim.persist_points();
        change_all(&db);
        let begun = u64::from(model == CrashModel::CacheLines);
        assert!(sim.persist_points() - before <= begun, "{model:?}: a segment was begun, and no more");
        let unpersisted = after(&sim, Survivors::None, 1);
        assert_eq!(unpersisted.table_names(), Vec::<String>::new(), "{model:?}: nothing was synced");
        drop(unpersisted);
        db.persist().unwrap();
        assert_eq!(after(&sim, Survivors::None, 1).table_names(), ["a", "c", "first", "open"], "{model:?}");
    }
}

/// In `Immediate` they are durable when they return.
#[test]
fn changes_are_durable_at_once_where_rows_are() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 64 << 20);
        let db = open(&sim, Durability::Immediate);
        change_all(&db);
        let found = after(&sim, Survivors::None, 1);
        assert_eq!(found.table_names(), ["a", "c", "open"]);
        let table = found.table("a").unwrap();
        assert_eq!(fields(&table), ["n"]);
        assert_eq!(table.get(b"key").unwrap().unwrap().get("n").unwrap(), Value::UInt(2));
        assert_eq!(fields(&found.table("c").unwrap()), ["n", "d"]);
        assert!(found.table("open").unwrap().is_empty());
    }
}

/// However the store ends: what is there of tables, fields and rows is as it was after some number of calls.
#[test]
fn a_crash_leaves_a_prefix_of_changes_and_rows() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 64 << 20);
        sim.limit_log(usize::MAX);
        let db = open(&sim, Durability::Process);
        let mut states = vec![state(&db)];
        let table = db.create_table("t", Schema::open()).unwrap();
        states.push(state(&db));
        for n in 0..12u64 {
            // Rows that fill segments, so that others are begun: their pages survive one without the other.
            let name = format!("f{n}");
            table.add_field(&name, Type::U64).unwrap();
            states.push(state(&db));
            table.put(&[n as u8], &[(name.as_str(), Value::UInt(n)), ("f0", Value::UInt(n))]).unwrap();
            states.push(state(&db));
            let other = db.create_table(&format!("t{n}"), Schema::flat()).unwrap();
            states.push(state(&db));
            other.put(b"key", &[("value", Value::Bytes(&[n as u8; 150_000]))]).unwrap();
            states.push(state(&db));
            if n % 3 == 2 {
                db.drop_table(&format!("t{}", n - 1)).unwrap();
                states.push(state(&db));
            }
            if n == 7 {
                db.persist().unwrap();
            }
        }
        let (mut reached, mut random) = (std::collections::BTreeSet::new(), Random::from_seed(3));
        let mut places: Vec<u64> = (0..400).map(|_| random.below(sim.ops())).collect();
        places.sort_unstable();
        let mut walk = sim.walk();
        for (n, place) in places.into_iter().enumerate() {
            walk.seek(place);
            let kind = match n % 4 {
                0 => Survivors::ProcessKill,
                1 => Survivors::EACH[n / 4 % 8],
                _ => Survivors::Random,
            };
            let image = walk.image(kind, n as u64);
            let found = state(&open(&CrashSim::from_image(&image), Durability::Process));
            let Some(at) = states.iter().position(|state| *state == found) else {
                panic!("{model:?}, {kind:?} at {}: no state ever was {found:?}", walk.op_index())
            };
            reached.insert(at);
        }
        assert!(reached.len() > states.len() / 4, "only {} of {} states", reached.len(), states.len());
    }
}

/// All tables, their fields and their rows.
fn state(db: &Db) -> Vec<(String, Vec<String>, Vec<String>)> {
    let table = |name: String| {
        let table = db.table(&name).unwrap();
        let row = |row: hedgerow::Result<hedgerow::Row>| {
            let row = row.unwrap();
            let fields = row.fields().map(|(name, value)| match value {
                Value::Bytes(bytes) => format!("{name} {}x{:?}", bytes.len(), bytes.first()),
                value => format!("{name} {value}"),
            });
            format!("{:?}: {}", row.key(), fields.collect::<Vec<_>>().join(", "))
        };
        (name, fields(&table), table.scan().map(row).collect())
    };
    db.table_names().into_iter().map(table).collect()
}

/// A row's copy under a younger schema, which overtook the schema on its way to the medium, is no row.
#[test]
fn a_copy_under_a_schema_that_was_lost_is_invalidated() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Durability::Process);
    let table = db.create_table("t", numbers().nullable("text", Type::String)).unwrap();
    for key in 0..40u8 {
        put(&table, &[key], 7);
        table.update(&[key], &[("text", Value::Str("first"))]).unwrap();
    }
    db.persist().unwrap();
    table.add_field("late", Type::U32).unwrap();
    for key in 20..40u8 {
        table.update(&[key], &[("text", Value::Str("second"))]).unwrap();
    }
    // Consolidation copies rows that are read with deltas.
    for _ in 0..4 {
        for key in 0..40u8 {
            table.get(&[key]).unwrap();
        }
        db.collect().unwrap();
    }
    assert!(db.metrics().chains_merged > 0, "nothing was copied");
    let (mut with, mut without) = (0, 0);
    for seed in 0..200 {
        let left = CrashSim::from_image(&crash(&sim, Survivors::Random, seed));
        let found = open(&left, Durability::Process);
        let table = found.table("t").unwrap();
        match fields(&table).len() {
            2 => without += 1,
            _ => with += 1,
        }
        for key in 0..40u8 {
            let row = table.get(&[key]).unwrap_or_else(|error| panic!("seed {seed}: {error}")).unwrap();
            let may_be_second = key >= 20 && fields(&table).len() == 3;
            assert_eq!(row.get("n").unwrap(), Value::UInt(7));
            assert!(row.get("text").unwrap() == Value::Str("first") || may_be_second, "seed {seed}: {row:?}");
        }
        found.check_counts().unwrap();
        // Whoever opens it after a kill finds the same: nothing that was invalidated has come back.
        let again = open(&CrashSim::from_image(&left.process_kill()), Durability::Process);
        assert_eq!(state(&again), state(&found), "seed {seed}");
    }
    assert!(with > 10 && without > 10, "{with} images with the field, {without} without");
}

/// What was in a segment that is freed is in the root by then.
#[test]
fn changes_outlive_the_segments_they_were_written_to() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Durability::Process);
    change_all(&db);
    let table = db.table("c").unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    for n in 0..60u64 {
        flat.put(b"key", &[("value", Value::Bytes(&[n as u8; 100_000]))]).unwrap();
        put_c(&table, n);
    }
    assert!(db.collect().unwrap() > 0);
    let found = open(&CrashSim::from_image(&sim.process_kill()), Durability::Process);
    assert_eq!(state(&found), state(&db));
    let found = after(&sim, Survivors::All, 1);
    assert_eq!(state(&found), state(&db));
}

fn put_c(table: &Table, n: u64) {
    table.put(b"key", &[("n", Value::UInt(n)), ("d", Value::Bool(true))]).unwrap();
}

/// One write to the log, however many tables it makes; and one that takes them all away.
#[test]
fn thousands_of_tables_in_one_change() {
    let sim = CrashSim::new(CrashModel::Pages, 256 << 20);
    let db = Db::open_at(
        FastTier::simulated(&sim),
        Options { segment_bytes: 8 << 20, ..options(Durability::Process) },
        Clock::manual(1_000),
    )
    .unwrap();
    let names: Vec<String> = (0..5_000).map(|n| format!("table {n:04}")).collect();
    let (mut made, mut dropped) = (TableChanges::new(), TableChanges::new());
    for name in &names {
        made.create(name, numbers());
        dropped.drop(name);
    }
    let begin = Instant::now();
    db.change_tables(&made).unwrap();
    println!("{} tables in {:.1?}", names.len(), begin.elapsed());
    assert_eq!(db.table_names(), names);
    put(&db.table("table 4711").unwrap(), b"key", 1);
    let killed = CrashSim::from_image(&sim.process_kill());
    let found = open(&killed, Durability::Process);
    assert_eq!(found.table_names(), names);
    assert!(found.table("table 4711").unwrap().exists(b"key").unwrap());
    let none = after(&sim, Survivors::None, 1);
    assert!(none.table_names().is_empty(), "all or nothing");
    let begin = Instant::now();
    db.change_tables(&dropped).unwrap();
    println!("dropped in {:.1?}", begin.elapsed());
    assert!(db.table_names().is_empty());
    let scratch = Scratch::new("thousands");
    let db = Db::open_with(&scratch.0, options(Durability::Immediate)).unwrap();
    let begin = Instant::now();
    db.change_tables(&made).unwrap();
    println!("durable on a file in {:.1?}", begin.elapsed());
    assert_eq!(db.table_names(), names);
    db.close().unwrap();
    assert_eq!(Db::open_with(&scratch.0, options(Durability::Immediate)).unwrap().table_names(), names);
}

#[test]
fn several_changes_happen_together_or_not_at_all() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Durability::Process);
    let table = db.create_table("a", numbers()).unwrap();
    put(&table, b"key", 1);
    let before = state(&db);
    let mut wrong = TableChanges::new();
    wrong.create("b", numbers()).clear("a").drop("a").add_field("a", "x", Type::Bool);
    assert_eq!(db.change_tables(&wrong).unwrap_err().kind(), ErrorKind::NotFound);
    let mut wrong = TableChanges::new();
    wrong.drop("a").create("c", numbers()).create("c", Schema::flat());
    assert_eq!(db.change_tables(&wrong).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(state(&db), before);
    db.change_tables(&TableChanges::new()).unwrap();
    let mut changes = TableChanges::new();
    changes.add_field("a", "x", Type::Bool).clear("a").create("b", numbers()).drop("none");
    changes.drop("b").create("b", Schema::flat());
    assert_eq!((changes.len(), changes.is_empty()), (6, false));
    db.change_tables(&changes).unwrap();
    assert_eq!(
        (db.table_names(), fields(&table)),
        (vec!["a".into(), "b".into()], vec!["n".into(), "x".into()])
    );
    assert!(table.is_empty());
    assert_eq!(fields(&db.table("b").unwrap()), ["value"]);
    // A handle of a table that was dropped changes none that has its name now.
    let mut again = TableChanges::new();
    again.drop("a").create("a", numbers());
    db.change_tables(&again).unwrap();
    assert_eq!(table.add_field("y", Type::Bool).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(table.clear().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fields(&db.table("a").unwrap()), ["n"]);
}

/// The bytes of an image's root, as a build of before would have left them.
fn as_before(image: &mut Image) {
    let catalog = {
        let root = image.read(0, 128);
        let at = |from: usize| u64::from_le_bytes(root[from..from + 8].try_into().unwrap());
        image.read(at(88), at(96) as usize - 8)
    };
    for copy in [0, 4096] {
        let old = image.read(copy, 128);
        let mut root = old.clone();
        root[10] = 0;
        root[96..104].copy_from_slice(&(catalog.len() as u64).to_le_bytes());
        root[104..108].copy_from_slice(&crc32c(0, &catalog).to_le_bytes());
        let crc = crc32c(0, &root[..124]);
        root[124..].copy_from_slice(&crc.to_le_bytes());
        for (n, (old, new)) in old.iter().zip(&root).enumerate() {
            image.corrupt(copy + n as u64, old ^ new);
        }
    }
}

/// A store of a build that wrote no changes into its log, closed or not: its catalog is whole, and whatever the log holds.
#[test]
fn a_store_of_an_older_build_is_taken_over() {
    for is_closed in [true, false] {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let db = open(&sim, Durability::Process);
        change_all(&db);
        put_c(&db.table("c").unwrap(), 4);
        db.persist().unwrap();
        let wanted = state(&db);
        if is_closed {
            db.close().unwrap();
        }
        let mut image = sim.process_kill();
        as_before(&mut image);
        let taken = CrashSim::from_image(&image);
        let db = open(&taken, Durability::Process);
        assert_eq!(state(&db), wanted, "closed: {is_closed}");
        db.create_table("new", numbers()).unwrap();
        let found = open(&CrashSim::from_image(&taken.process_kill()), Durability::Process);
        assert_eq!(found.table_names(), ["a", "c", "new", "open"]);
        drop(db);
        let db = open(&taken, Durability::Process);
        assert_eq!(db.table_names(), ["a", "c", "new", "open"]);
    }
}

/// Whoever looks at a store that was not closed sees its tables; older builds are kept from it, and not from one that was closed.
#[test]
fn a_store_that_was_not_closed_says_that_changes_are_in_its_log() {
    let (from, copy) = (Scratch::new("open"), Scratch::new("looked-at"));
    let older = Options { format_version: 2, ..options(Durability::Process) };
    let db = Db::open_with(&from.0, older).unwrap();
    change_all(&db);
    copy_store(&from, &copy);
    let root = |of: &Scratch| std::fs::read(of.0.join(FAST_TIER_FILE)).unwrap()[..128].to_vec();
    assert_eq!(root(&copy)[8..12], [1, 0, 1, 0]);
    assert_eq!(root(&copy)[96..104], [0; 8], "nothing was stored in the root");
    let view = View::open(&copy.0).unwrap();
    let names: Vec<String> = view.tables().into_iter().map(|table| table.name).collect();
    assert_eq!(names, ["a", "c", "open"]);
    assert!(view.check(|_| ()).unwrap().problems.is_empty());
    let wanted = state(&db);
    db.close().unwrap();
    assert_eq!(root(&from)[8..12], [1, 0, 0, 0]);
    assert_eq!(state(&Db::open_with(&from.0, options(Durability::Process)).unwrap()), wanted);
}

/// Copies what a killed process would leave.
fn copy_store(from: &Scratch, to: &Scratch) {
    std::fs::create_dir_all(&to.0).unwrap();
    for name in [FAST_TIER_FILE, "fast.id"] {
        std::fs::copy(from.0.join(name), to.0.join(name)).unwrap();
    }
}

/// The end of the file is gone, and with it the newer versions of rows: those that are left may be older, and repair says so.
#[test]
fn rows_of_a_file_cut_short_are_doubtful() {
    let (from, to) = (Scratch::new("cut"), Scratch::new("mended"));
    let db = Db::open_with(&from.0, options(Durability::Process)).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    for n in 0..2u8 {
        for key in 0..20u8 {
            flat.put(&[key], &[("value", Value::Bytes(&[n; 100_000]))]).unwrap();
        }
    }
    drop(flat);
    db.close().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(from.0.join(FAST_TIER_FILE)).unwrap();
    file.set_len(3 * SEGMENT).unwrap();
    let report = repair(&from.0, &to.0, |_| ()).unwrap();
    assert!(report.rows > 0, "{report:?}");
    assert_eq!(report.doubtful, report.rows, "{report:?}");
}

/// Where neither copy of the catalog verifies, what looks like one may be an older one: rows of it may be of tables that were dropped.
#[test]
fn rows_under_a_catalog_that_may_be_older_are_doubtful() {
    let (from, to) = (Scratch::new("spoiled"), Scratch::new("made-of-it"));
    let db = Db::open_with(&from.0, options(Durability::Process)).unwrap();
    change_all(&db);
    db.close().unwrap();
    let path = from.0.join(FAST_TIER_FILE);
    let mut bytes = std::fs::read(&path).unwrap();
    let catalog_bytes = u64::from_le_bytes(bytes[96..104].try_into().unwrap()) as usize;
    let first = 64 << 10;
    for area in [first, first + (SEGMENT as usize - first) / 2] {
        bytes[area + catalog_bytes - 1] ^= 1;
    }
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(View::open(&from.0).map(drop).unwrap_err().kind(), ErrorKind::Corrupted);
    let report = repair(&from.0, &to.0, |_| ()).unwrap();
    assert_eq!((report.rows, report.doubtful), (1, 1), "{report:?}");
}

/// Tables that were never stored in the root are found in the log by repair.
#[test]
fn repair_finds_tables_in_the_log() {
    let (from, to) = (Scratch::new("killed"), Scratch::new("repaired"));
    let db = Db::open_with(&from.0, options(Durability::Process)).unwrap();
    change_all(&db);
    let copy = Scratch::new("copy");
    copy_store(&from, &copy);
    let report = repair(&copy.0, &to.0, |_| ()).unwrap();
    assert!(report.is_complete(), "{report:?}");
    let mended = Db::open_with(&to.0, options(Durability::Process)).unwrap();
    assert_eq!(state(&mended), state(&db));
}
