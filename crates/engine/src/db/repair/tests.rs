//! Repairs of stores with rows in sorted tables: of whatever is damaged, nothing is lost in silence, and no older row passes for a newer one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use hedgerow_device::Random;

use super::{RepairEvent, RepairReport, repair_with};
use crate::db::backup::tests::{change, fill, moving, schema, sorted_tables};
use crate::db::fixture::{Scratch, options};
use crate::inspect::View;
use crate::manifest::catalog::{EMPTY_BYTES, entry_bytes};
use crate::manifest::root::CATALOG_START;
use crate::{Capacity, Db, ErrorKind, Expiry, Options, Result, Table, Type, row};

type Rows = BTreeMap<Vec<u8>, String>;

fn text_of(row: &crate::Row) -> (Vec<u8>, String) {
    let fields: Vec<_> = row.fields().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    (row.key().to_vec(), format!("{fields:?} {:?}", row.expires_at_ms()))
}

fn rows(table: &Table) -> Rows {
    table.scan().map(|row| text_of(&row.unwrap())).collect()
}

/// What a repair made, and what it told.
#[derive(Default)]
struct Repaired {
    rows: Rows,
    report: RepairReport,
    lost: BTreeSet<Vec<u8>>,
    doubtful: BTreeSet<Vec<u8>>,
    ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    damaged: Vec<String>,
}

fn repaired(from: &Path, capacity: impl Into<Capacity>, to: &Path) -> Result<Repaired> {
    std::fs::remove_dir_all(to).ok();
    let mut made = Repaired::default();
    made.report = repair_with(from, capacity, to, |event| match event {
        RepairEvent::Progress(seen, total) => assert!(seen <= total, "{seen} of {total}"),
        RepairEvent::Damaged(error) => made.damaged.push(error.to_string()),
        RepairEvent::Lost { table, key, why } => {
            let is_new = table == "t" && made.lost.insert(key.to_vec());
            assert!(is_new, "{table} {}: {why}", key.escape_ascii());
        }
        RepairEvent::Doubtful { key, .. } => assert!(made.doubtful.insert(key.to_vec())),
        RepairEvent::LostKeys { from, to, .. } => made.ranges.push((from.to_vec(), to.map(<[u8]>::to_vec))),
    })?;
    let report = View::open(to).unwrap().check(|_| ()).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    let db = Db::open_with(to, Options { create: false, segment_bytes: 0, ..moving() }).unwrap();
    made.rows = rows(&db.table("t").unwrap());
    let told = [made.rows.len(), made.lost.len(), made.doubtful.len(), made.ranges.len()];
    let RepairReport { rows, lost, doubtful, lost_ranges, .. } = made.report;
    assert_eq!(told.map(|count| count as u64), [rows, lost, doubtful, lost_ranges]);
    Ok(made)
}

impl Repaired {
    /// Nothing is lost in silence, and nothing comes back in silence.
    fn check(&self, expected: &Rows, place: &str) {
        for (key, row) in self.rows.iter().filter(|(key, _)| !self.doubtful.contains(*key)) {
            assert_eq!(Some(row), expected.get(key), "{place}: {}", key.escape_ascii());
        }
        for key in expected.keys().filter(|key| !self.rows.contains_key(*key)) {
            let in_range = |(from, to): &(Vec<u8>, Option<Vec<u8>>)| {
                from <= key && to.as_ref().is_none_or(|to| key < to)
            };
            let is_told = self.lost.contains(key) || self.ranges.iter().any(in_range);
            assert!(is_told, "{place}: {} is lost in silence", key.escape_ascii());
        }
    }
}

/// A closed store with rows in the log and in several runs, and what it has.
fn store(at: &Path) -> Rows {
    let db = Db::open_with(at, moving()).unwrap();
    let table = fill(&db);
    change(&table, 3);
    table.engine().move_now();
    change(&table, 4);
    let expected = rows(&table);
    drop(table);
    db.close().unwrap();
    expected
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

fn files_of(at: &Path) -> Vec<PathBuf> {
    sorted_tables(at).into_iter().map(|(name, _)| at.join("capacity").join(name)).collect()
}

#[test]
fn a_whole_store_is_repaired_to_the_same_rows() {
    let scratch = Scratch::new("repair-whole");
    let [at, copy, to] = ["store", "copy", "to"].map(|name| scratch.at(name));
    let expected = store(&at);
    let made = repaired(&at, Capacity::Beside, &to).unwrap();
    assert!(made.report.is_complete() && made.report.damaged == 0, "{:?}", made.report);
    assert_eq!(made.rows, expected);
    assert!(!sorted_tables(&to).is_empty(), "rows of sorted tables go into such");
    // One with files of another store, and what lies elsewhere.
    crate::backup::restore(&at, &copy, |_| Ok(())).unwrap();
    let elsewhere = scratch.at("elsewhere");
    std::fs::rename(copy.join("capacity"), &elsewhere).unwrap();
    assert_eq!(repaired(&copy, &elsewhere, &to).unwrap().rows, expected);
}

/// One byte after the other of a sorted table decays, or the file is gone.
#[test]
fn a_damaged_sorted_table_loses_what_it_had_and_no_more() {
    let scratch = Scratch::new("repair-sst");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let expected = store(&at);
    let files = files_of(&at);
    assert!(files.len() > 2, "{files:?}");
    let (mut random, mut partly, mut doubtful, mut whole) = (Random::from_seed(5), 0, 0, 0);
    for round in 0..40 {
        let path = &files[round % files.len()];
        let bytes = std::fs::read(path).unwrap();
        let place = match round < files.len() {
            true => {
                std::fs::remove_file(path).unwrap();
                format!("{path:?} is gone")
            }
            false => {
                let at = random.below(bytes.len() as u64) as usize;
                flip(path, at);
                format!("byte {at} of {path:?}")
            }
        };
        let made = repaired(&at, Capacity::Beside, &to).unwrap_or_else(|error| panic!("{place}: {error}"));
        made.check(&expected, &place);
        assert_eq!(made.report.is_complete(), made.rows == expected, "{place}: {:?}", made.report);
        partly += u64::from(made.report.lost_ranges > 0 && made.rows.len() > expected.len() / 2);
        doubtful += made.report.doubtful;
        whole += u64::from(made.report.is_complete());
        assert!(round >= files.len() || made.damaged.len() == 1, "{place}: {:?}", made.damaged);
        std::fs::write(path, bytes).unwrap();
    }
    assert!(
        partly > 10 && doubtful > 10,
        "{partly} lost a part, {doubtful} rows were doubtful, {whole} whole"
    );
}

/// Without either copy of the manifest nothing is sure but what the log has; without the directory nothing is done.
#[test]
fn a_lost_manifest_makes_rows_doubtful_and_a_lost_directory_is_told() {
    let scratch = Scratch::new("repair-manifest");
    let [at, to, empty, gone] = ["store", "to", "empty", "gone"].map(|name| scratch.at(name));
    let expected = store(&at);
    let pair = View::open(&at).unwrap().runs().unwrap().manifest;
    let copies = crate::manifest::edits::pair_names(pair).map(|name| at.join("capacity").join(name));
    flip(&copies[0], 4096 + 9);
    let made = repaired(&at, Capacity::Beside, &to).unwrap();
    assert!(made.rows == expected && made.report.is_complete(), "the other copy serves");
    flip(&copies[1], 20);
    flip(&copies[0], 20);
    let made = repaired(&at, Capacity::Beside, &to).unwrap();
    made.check(&expected, "no manifest");
    let is_as_it_was = made.rows.iter().filter(|(key, row)| expected.get(*key) == Some(*row)).count();
    assert!(is_as_it_was > expected.len() * 9 / 10 && !made.doubtful.is_empty(), "{:?}", made.report);
    assert!(made.doubtful.len() < made.rows.len() && !made.report.is_complete(), "{:?}", made.report);
    // The files are gone: what the log has whole is there, and what it has deltas of is lost by name.
    std::fs::create_dir_all(&empty).unwrap();
    let made = repaired(&at, &empty, &to).unwrap();
    made.check(&expected, "no files");
    assert!(made.doubtful.is_empty() && made.rows.len() > 100 && made.lost.len() > 100, "{:?}", made.report);
    assert!(!made.report.is_complete());
    std::fs::rename(at.join("capacity"), &gone).unwrap();
    std::fs::remove_dir_all(&to).unwrap();
    let error = repaired(&at, Capacity::Beside, &to).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("empty directory"), "{error}");
    assert!(!to.join("fast").exists());
}

/// A store that lost both copies of its root has its sorted tables still.
#[test]
fn sorted_tables_are_found_without_a_root() {
    let scratch = Scratch::new("repair-root");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let expected = store(&at);
    let mut bytes = std::fs::read(at.join("fast")).unwrap();
    bytes[..8192].fill(0);
    std::fs::write(at.join("fast"), bytes).unwrap();
    let made = repaired(&at, Capacity::Beside, &to).unwrap();
    made.check(&expected, "no root");
    let is_as_it_was = made.rows.iter().filter(|(key, row)| expected.get(*key) == Some(*row)).count();
    assert!(
        is_as_it_was > expected.len() * 9 / 10,
        "{is_as_it_was} of {}: {:?}",
        expected.len(),
        made.report
    );
}

/// A load takes its table's id when it begins. A clear meanwhile takes a greater one, and is the older of the two all the same: with the catalog as it was before both, after both, and where nothing says
/// when it is of.
#[test]
fn a_load_that_met_a_clear_is_found_without_a_root() {
    let scratch = Scratch::new("repair-load");
    for (name, is_closed, is_claimed) in
        [("before", false, true), ("after", true, true), ("unknown", false, false)]
    {
        let [at, killed, to] = ["store", "killed", "to"].map(|part| scratch.at(&format!("{name}-{part}")));
        let db = Db::open_with(&at, moving()).unwrap();
        let table = db.create_table("t", schema()).unwrap();
        let log = &table.engine().log;
        table.engine().catalog.checkpoint(log).unwrap();
        let catalog_bytes = EMPTY_BYTES + entry_bytes("t", &table.shared().schema.load());
        let areas = [CATALOG_START, CATALOG_START + log.catalog_areas()[0].len() as u64];
        let load = table.load(|loader| {
            table.clear()?;
            (0..40u64).try_for_each(|n| loader.push(&n, &row! { n: n, text: "loaded" }))
        });
        load.unwrap();
        table.put(&40u64, &row! { n: 40u64, text: "after" }).unwrap();
        db.persist().unwrap();
        let expected = rows(&table);
        assert_eq!(expected.len(), 41);
        copy_as_killed(&at, &killed);
        drop(table);
        db.close().unwrap();
        let from = if is_closed { at } else { killed };
        let mut bytes = std::fs::read(from.join("fast")).unwrap();
        bytes[..8192].fill(0);
        for area in areas.into_iter().filter(|_| !is_claimed) {
            bytes[(area + catalog_bytes - 8) as usize..][..8].fill(0);
        }
        std::fs::write(from.join("fast"), bytes).unwrap();
        let made = repaired(&from, Capacity::Beside, &to).unwrap();
        assert_eq!(made.rows, expected, "{name}");
    }
}

/// What a kill of a store that is open would leave now.
fn copy_as_killed(at: &Path, killed: &Path) {
    std::fs::create_dir_all(killed.join("capacity")).unwrap();
    for name in ["", "capacity"] {
        for entry in std::fs::read_dir(at.join(name)).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_file() {
                std::fs::copy(&entry, killed.join(entry.strip_prefix(at).unwrap())).unwrap();
            }
        }
    }
}

/// Where `bytes` are in a file, once.
fn only_place(path: &Path, bytes: &[u8]) -> usize {
    let all = std::fs::read(path).unwrap();
    let places: Vec<usize> =
        (0..all.len() - bytes.len()).filter(|&at| all[at..].starts_with(bytes)).collect();
    assert_eq!(places.len(), 1);
    places[0]
}

/// A damaged record of the log hides what is below it, a row or a tombstone; but not itself, where it has moved.
#[test]
fn an_older_row_below_the_log_stands_for_no_damaged_one() {
    let scratch = Scratch::new("repair-hidden");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let db = Db::open_with(&at, moving()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    let text = |n: u64, what: &str| format!("{what} {n:08}");
    let key = |n: u64| format!("the key of row {n:06}");
    table
        .load(|loader| {
            (0..40).try_for_each(|n| loader.push(&key(n), &row! { n: n, text: text(n, "loaded").as_str() }))
        })
        .unwrap();
    table.put(&key(7), &row! { n: 7u64, text: text(7, "newer").as_str() }).unwrap();
    assert!(table.delete(&key(8)).unwrap());
    let expected = rows(&table);
    drop(table);
    db.close().unwrap();
    let fast = at.join("fast");
    flip(&fast, only_place(&fast, text(7, "newer").as_bytes()) + 3);
    let made = repaired(&at, Capacity::Beside, &to).unwrap();
    made.check(&expected, "a row");
    assert!(made.lost.len() == 1 && made.lost.contains(key(7).as_bytes()) && made.rows.len() == 38);
    // The tombstone's key: which of its bytes is wrong is found, and so which key it is of.
    flip(&fast, only_place(&fast, key(8).as_bytes()) + 3);
    let made = repaired(&at, Capacity::Beside, &to).unwrap();
    made.check(&expected, "a tombstone");
    assert!(!made.rows.contains_key(key(8).as_bytes()) || made.doubtful.contains(key(8).as_bytes()));
}

/// The change of its fields under which a row was copied is lost with its record: what was copied is there still, and is no lost row.
#[test]
fn a_row_that_was_copied_under_a_lost_change_of_fields_is_not_lost() {
    let scratch = Scratch::new("repair-ahead");
    let [at, killed, to] = ["store", "killed", "to"].map(|name| scratch.at(name));
    let db = Db::open_with(&at, options()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    for n in 0..20u64 {
        table.put(&n, &row! { n: n, text: "row" }).unwrap();
    }
    db.persist().unwrap();
    for round in 1..=u64::from(options().delta_chain_max) {
        (0..10u64).for_each(|n| table.update(&n, &row! { m: n + round }).unwrap());
    }
    let expected = rows(&table);
    table.add_field("another", Type::U64).unwrap();
    db.collect().unwrap();
    assert_eq!(db.metrics().chains_merged, 10);
    std::fs::create_dir(&killed).unwrap();
    for name in std::fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()) {
        std::fs::copy(at.join(&name), killed.join(&name)).unwrap();
    }
    drop((table, db));
    let fast = killed.join("fast");
    flip(&fast, only_place(&fast, b"another") + 1);
    let made = repaired(&killed, Capacity::Beside, &to).unwrap();
    assert!(!made.damaged.is_empty(), "the change of fields is whole: the test proves nothing");
    assert_eq!((made.rows, made.lost), (expected, BTreeSet::new()));
}

/// A row that has moved is in its segment still while a backup needs that: it is not lost with what is there.
#[test]
fn a_moved_row_is_not_lost_with_the_record_that_it_was() {
    let scratch = Scratch::new("repair-moved");
    let [at, killed, to, backup] = ["store", "killed", "to", "backup"].map(|name| scratch.at(name));
    let db = Db::open_with(&at, moving()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    for n in 0..40u64 {
        let key = format!("the key of row {n:06}");
        table.put(&key, &row! { n: n, text: format!("moved {n:08}").as_str() }).unwrap();
    }
    let expected = rows(&table);
    let mut has_moved = false;
    db.backup_with(&backup, |_| {
        if !std::mem::replace(&mut has_moved, true) {
            table.engine().move_now();
            copy_as_killed(&at, &killed);
        }
        Ok(())
    })
    .unwrap();
    let fast = killed.join("fast");
    for bytes in [&b"moved 00000017"[..], b"the key of row 000018"] {
        flip(&fast, only_place(&fast, bytes) + 3);
        let made = repaired(&killed, Capacity::Beside, &to).unwrap();
        assert!(
            made.report.damaged > 0 && made.lost.is_empty() && made.rows == expected,
            "{:?}",
            made.report
        );
    }
}

/// What of a row expires stays so, by whichever way it goes.
#[test]
fn expiries_stay() {
    let scratch = Scratch::new("repair-expiry");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let db = Db::open_with(&at, moving()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    let later = Expiry::at_unix_ms(u64::MAX >> 12);
    table
        .load(|loader| {
            (0..20u64).try_for_each(|n| loader.push_expiring(&n, &row! { n: n, text: "below" }, later))
        })
        .unwrap();
    for n in 15..25u64 {
        table.put(&n, &row! { n: n, text: "above" }).unwrap();
        table.expire_fields(&n, &["text"], later).unwrap();
    }
    table.engine().move_now();
    let of_field =
        |table: &Table, n: u64| table.read(&n, |row| row.field_expires_at_ms("text")).unwrap().flatten();
    let expected = rows(&table);
    let expiry = of_field(&table, 17);
    assert!(expiry.is_some());
    drop(table);
    db.close().unwrap();
    let made = repaired(&at, Capacity::Beside, &to).unwrap();
    assert!(made.report.is_complete() && made.rows == expected, "{:?}", made.report);
    let db = Db::open_with(&to, Options { create: false, segment_bytes: 0, ..moving() }).unwrap();
    let table = db.table("t").unwrap();
    assert!((15..25).all(|n| of_field(&table, n) == expiry));
}

/// A page of the log is lost, and nothing tells what was on it; all that is left was written later.
#[test]
fn a_page_of_which_nothing_is_left_is_no_complete_store() {
    let scratch = Scratch::new("repair-page");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let db = Db::open_with(&at, moving()).unwrap();
    let table = db.create_table("t", crate::Schema::open()).unwrap();
    (0..300u64).for_each(|n| table.put(&n, &row! { text: "of the log" }).unwrap());
    let (extent, ..) = table.engine().log.segments()[0];
    let start = (u64::from(extent) * table.engine().log.extent_bytes()) as usize;
    drop(table);
    db.close().unwrap();
    let fast = at.join(crate::db::FAST_TIER_FILE);
    let mut bytes = std::fs::read(&fast).unwrap();
    bytes[start + 128..start + 4096].fill(0);
    std::fs::write(&fast, bytes).unwrap();
    let made = repaired(&at, Capacity::Beside, &to).unwrap();
    assert!((100..299).contains(&made.rows.len()), "{:?}", made.report);
    assert_eq!((made.report.lost, made.report.doubtful, made.report.lost_places), (0, 0, 1));
    assert!(!made.report.is_complete());
}

/// A recovery cut a row off, because one before it was missing; later the header of its segment is lost: the row does not come back.
#[test]
fn what_a_recovery_cut_off_does_not_come_back() {
    use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Survivors};

    let scratch = Scratch::new("repair-cut");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let options = || Options { durability: crate::Durability::Process, ..crate::db::fixture::options() };
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let put = |table: &Table, key: u64, n: i64| table.put(&key, &row! { n: n }).unwrap();
    let get = |table: &Table, key: u64| table.get(&key).unwrap().map(|row| row.get_as::<i64>("n").unwrap());
    let open =
        |sim: &CrashSim| Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000)).unwrap();
    let db = open(&sim);
    let table = db.create_table("t", crate::Schema::new().field("n", crate::Type::I64)).unwrap();
    (0..10).for_each(|key| put(&table, key, 1));
    db.persist().unwrap();
    // A write that is lost, and one behind it that is not.
    put(&table, 30, 1);
    put(&table, 3, 2);
    table.engine().log.tier().persist_all().unwrap();
    let lost = {
        let guard = table.engine().log.pin();
        table.shared().levels.locate(crate::Key::key_bytes(&30u64).as_ref(), &guard).unwrap().log_offset()
    };
    let image =
        sim.images_at(sim.ops(), 1, 4).into_iter().find(|image| image.survivors != Survivors::ProcessKill);
    let mut image = image.unwrap();
    image.corrupt(lost + 8, 0x10);
    let cut = CrashSim::from_image(&image);
    drop((table, db));
    for closes in [true, false] {
        let sim = CrashSim::from_image(&cut.process_kill());
        let db = open(&sim);
        let table = db.table("t").unwrap();
        assert_eq!((get(&table, 3), table.len()), (Some(1), 10), "it was cut off");
        put(&table, 20, 1);
        let log = &table.engine().log;
        let start =
            log.segments().iter().map(|(extent, ..)| u64::from(*extent) * log.extent_bytes()).min().unwrap();
        drop(table);
        match closes {
            true => db.close().unwrap(),
            false => {
                db.persist().unwrap();
                drop(db);
            }
        }
        std::fs::remove_dir_all(&at).ok();
        std::fs::create_dir_all(&at).unwrap();
        let image = sim.process_kill();
        let mut bytes = image.read(0, image.bytes() as usize);
        bytes[start as usize..][..128].fill(0);
        std::fs::write(at.join(crate::db::FAST_TIER_FILE), bytes).unwrap();
        let made = repaired(&at, Capacity::Beside, &to).unwrap();
        let key = crate::Key::key_bytes(&3u64).as_ref().to_vec();
        let text = &made.rows[&key];
        assert!(text.contains("1)") || made.doubtful.contains(&key), "{text}");
        assert_eq!(made.rows.len(), 11, "{:?}", made.report);
    }
}

/// Whoever looks at what is left sees what a repair would copy, and of a row that is lost no older version.
#[test]
fn what_is_left_is_looked_at_as_it_is_repaired() {
    let scratch = Scratch::new("repair-look");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let expected = store(&at);
    let (file, mut partly) = (at.join(crate::db::FAST_TIER_FILE), 0);
    let segments = View::open(&at).unwrap().segments();
    let places_of = |segment: &crate::inspect::SegmentInfo| {
        [1, 2, 3].map(|n| segment.offset + segment.durable_bytes * n / 4)
    };
    let places: Vec<u64> = segments.iter().take(6).flat_map(places_of).collect();
    for place in places.iter().map(|&place| place as usize) {
        flip(&file, place);
        let made = repaired(&at, Capacity::Beside, &to).unwrap();
        let view = View::open_damaged(&at).unwrap();
        let seen = |from: &[u8]| {
            let mut seen = Rows::new();
            let look = |key: &[u8], row: Result<crate::RowRef<'_>>| {
                match row {
                    Ok(row) => seen.extend([text_of(&row.to_row().unwrap())]),
                    Err(_) => assert!(made.lost.contains(key), "{}", key.escape_ascii()),
                }
                true
            };
            view.rows("t", from, look).unwrap();
            seen
        };
        assert_eq!(seen(&[]), made.rows, "byte {place}");
        let middle = made.rows.keys().nth(made.rows.len() / 2).unwrap();
        assert!(seen(middle).iter().eq(made.rows.range(middle.clone()..)), "byte {place}");
        assert!(view.tables()[0].rows >= made.rows.len() as u64);
        partly += u64::from(made.rows != expected);
        flip(&file, place);
    }
    assert!(partly > 3, "{partly} of {} places", places.len());
}

/// Rows with fields that expire are copied after the others; one whose fields have expired by then is there all the same.
#[test]
fn a_row_whose_fields_expire_while_it_is_copied_is_not_lost() {
    let scratch = Scratch::new("repair-expires");
    let [at, to] = ["store", "to"].map(|name| scratch.at(name));
    let (clock, rows) = (hedgerow_device::Clock::system(), 9_000);
    let db = Db::open_with(&at, moving()).unwrap();
    let table = db.create_table("t", schema()).unwrap();
    table.load(|loader| (0..rows).try_for_each(|n: u64| loader.push(&n, &row! { n: n }))).unwrap();
    table.put(&1u64, &row! { n: 1u64, text: "x" }).unwrap();
    let at_ms = clock.now_ms() + 4_000;
    table.expire_fields(&1u64, &["text"], Expiry::at_unix_ms(at_ms)).unwrap();
    drop(table);
    db.close().unwrap();
    let wait = |event: RepairEvent<'_>| {
        while matches!(event, RepairEvent::Progress(4_096.., _)) && clock.now_ms() <= at_ms {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    assert!(clock.now_ms() < at_ms, "it has expired before it is copied");
    let report = repair_with(&at, Capacity::Beside, &to, wait).unwrap();
    assert!(report.is_complete() && report.rows == rows, "{report:?}");
    let table = Db::open(&to).unwrap().table("t").unwrap();
    let row = table.get(&1u64).unwrap().expect("it was lost");
    assert!(row.get("text").unwrap().is_null());
    assert_eq!(table.scan().count() as u64, rows);
}

/// By the defaults of fields that came later a row may be longer than one that is written may be.
#[test]
fn a_row_that_cannot_be_written_again_is_told_to_be_lost_alone() {
    for loaded in [false, true] {
        let scratch = Scratch::new("repair-long");
        let [at, to] = ["store", "to"].map(|name| scratch.at(name));
        let db = Db::open_with(&at, Options { fast_tier_bytes_max: 512 << 20, ..moving() }).unwrap();
        let table = db.create_table("t", schema()).unwrap();
        if loaded {
            table.load(|loader| (10..20u64).try_for_each(|n| loader.push(&n, &row! { n: n }))).unwrap();
        }
        let text = "x".repeat(crate::limits::ROW_BYTES_MAX - 200);
        table.put(&5u64, &row! { n: 5u64, text: text.as_str() }).unwrap();
        table.put(&6u64, &row! { n: 6u64, text: "x" }).unwrap();
        // Such rows are copied apart.
        table.expire_fields(&6u64, &["text"], std::time::Duration::from_secs(1_000)).unwrap();
        let default = "d".repeat(4_000);
        table.add_field_with_default("more", crate::Type::String, default.as_str()).unwrap();
        assert!(table.get(&5u64).unwrap().is_some());
        drop(table);
        db.close().unwrap();
        let made = repaired(&at, Capacity::Beside, &to).unwrap();
        assert_eq!((made.report.lost, made.report.rows), (1, if loaded { 11 } else { 1 }));
        assert!(made.lost.contains(crate::Key::key_bytes(&5u64).as_ref()));
    }
}
