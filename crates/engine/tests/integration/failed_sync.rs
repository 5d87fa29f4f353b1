//! A sync that fails: no write is acknowledged after it, in any mode, and nothing that was durable is lost, however the
//! store ends and is opened again.

use std::time::{Duration, Instant};

use hedgerow::{
    Batch, Change, Db, Durability, Error, ErrorKind, Expiry, Options, OwnedValue, Schema, Table, Type, Value,
};
use hedgerow_device::{
    CapacityTier, Clock, CrashModel, CrashSim, FastTier, Fault, FileCall, Refusal, Survivors,
};
use hedgerow_sim::{FORMATS, FaultCounts, Setup, Sweep, Taste, eventually, is_soaking, rounds};

const MODES: [Durability; 3] =
    [Durability::Immediate, Durability::Interval(Duration::from_millis(5)), Durability::Process];

fn options(durability: Durability, background: bool) -> Options {
    Options {
        durability,
        background,
        segment_bytes: 1 << 20,
        index_bytes_max: 64 << 20,
        ..Options::default()
    }
}

fn open(sim: &CrashSim, durability: Durability, background: bool) -> Db {
    Db::open_at(FastTier::simulated(sim), options(durability, background), Clock::manual(1_000)).unwrap()
}

fn value(bytes: &[u8]) -> [(&'static str, Value<'_>); 1] {
    [("value", Value::Bytes(bytes))]
}

/// Every kind of write, by name.
fn writes(db: &Db, flat: &Table, typed: &Table) -> Vec<(&'static str, Result<(), Error>)> {
    let number = |n| [("n", Value::Int(n))];
    let batch = || {
        let mut batch = Batch::new();
        batch.put(flat, b"in a batch", &value(b"v"))?;
        db.write(batch)
    };
    let change = Change::Put { fields: vec![("n".to_owned(), OwnedValue::Int(5))], expiry: Expiry::Never };
    vec![
        ("put", flat.put(b"new", &value(b"v"))),
        ("put over", flat.put(b"key", &value(b"v"))),
        ("put_expiring", flat.put_expiring(b"key", &value(b"v"), Expiry::at_unix_ms(5_000))),
        ("update", typed.update(b"key", &number(2))),
        ("update_existing", typed.update_existing(b"key", &number(2)).map(drop)),
        ("delete", flat.delete(b"key").map(drop)),
        ("expire", flat.expire(b"key", Expiry::at_unix_ms(5_000)).map(drop)),
        ("expire_fields", typed.expire_fields(b"key", &["n"], Expiry::at_unix_ms(5_000)).map(drop)),
        ("increment", typed.increment(b"key", "n", 1).map(drop)),
        ("compare_and_set", typed.compare_and_set(b"key", "n", Value::Int(1), Value::Int(2)).map(drop)),
        ("modify", typed.modify(b"key", |_| Ok((change.clone(), ())))),
        ("batch", batch()),
        ("clear", flat.clear()),
        ("add_field", typed.add_field("another", Type::U32)),
        ("create_table", db.create_table("another", Schema::flat()).map(drop)),
        ("drop_table", db.drop_table("flat").map(drop)),
        ("persist", db.persist()),
    ]
}

/// Room in the open segments is no reason to go on: every write, in every mode, is refused at once, with the cause.
#[test]
fn no_write_is_acknowledged_after_a_failed_sync() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        for durability in MODES {
            let sim = CrashSim::new(model, 64 << 20);
            let db = open(&sim, durability, false);
            let flat = db.create_table("flat", Schema::flat()).unwrap();
            let typed = db.create_table("typed", Schema::new().nullable("n", Type::I64)).unwrap();
            flat.put(b"key", &value(b"old")).unwrap();
            typed.put(b"key", &[("n", Value::Int(1))]).unwrap();
            db.persist().unwrap();
            sim.fail_persist_after(0, false);
            let first = flat.put(b"lost", &value(b"v")).and_then(|()| db.persist()).unwrap_err();
            // On persistent memory a record is persisted before it is published, and then found to be refused.
            let kinds = [ErrorKind::Io, ErrorKind::Closed];
            assert!(kinds.contains(&first.kind()), "{model:?}, {durability:?}: {first}");
            let failure = db.sync_failure().unwrap();
            assert!(failure.message.contains("Input/output error (os error 5)"), "{failure:?}");
            assert!(failure.at_ms > 1_600_000_000_000, "{failure:?}");
            assert_eq!(db.metrics().sync_failure.as_ref(), Some(&failure));
            let closed = db.write_failure().unwrap();
            assert_eq!(closed.message, format!("a sync failed: {}", failure.message));
            assert_eq!((closed.at_ms, db.metrics().write_failure.as_ref()), (failure.at_ms, Some(&closed)));
            for (name, outcome) in writes(&db, &flat, &typed) {
                let place = format!("{model:?}, {durability:?}, {name}");
                let error = outcome.err().unwrap_or_else(|| panic!("{place}: acknowledged"));
                assert_eq!(error.kind(), ErrorKind::Closed, "{place}: {error}");
                assert!(error.message().contains("Input/output error (os error 5)"), "{place}: {error}");
            }
            assert_eq!(
                flat.get(b"key").unwrap().unwrap().get("value").unwrap(),
                Value::Bytes(b"old"),
                "reads go on"
            );
            assert_eq!(typed.get(b"key").unwrap().unwrap().get("n").unwrap(), Value::Int(1));
            let close = || db.clone().close().unwrap_err().kind();
            assert_eq!(
                [close(), close()],
                [ErrorKind::Closed; 2],
                "closing makes nothing durable, however often"
            );
        }
    }
}

/// Whether the store was closed for writing by the second load of a table, where the call `after` so many syncs of files is refused. If it was,
/// every write is refused at once, with the cause, and the store says so, though no sync of the log has failed.
fn is_closed_by_a_load(durability: Durability, after: u64) -> bool {
    let place = format!("{durability:?}, sync {after}");
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let db = Db::open_at(tiers, options(durability, false), Clock::manual(1_000)).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let typed = db.create_table("typed", Schema::new().nullable("n", Type::I64)).unwrap();
    let loaded = db.create_table("loaded", Schema::flat()).unwrap();
    flat.put(b"key", &value(b"old")).unwrap();
    typed.put(b"key", &[("n", Value::Int(1))]).unwrap();
    loaded.load(|loader| loader.push(b"key", &value(b"old"))).unwrap();
    sim.fail_file_calls(FileCall::Sync, Fault { after, sticky: false, refusal: Refusal::Io });
    // It may have loaded the rows, and failed to take the old ones off.
    drop(loaded.load(|loader| loader.push(b"key", &value(b"new"))));
    assert_eq!((db.sync_failure(), db.metrics().sync_failure), (None, None), "{place}");
    assert_eq!(db.write_failure(), db.metrics().write_failure, "{place}");
    let Some(failure) = db.write_failure() else {
        flat.put(b"new", &value(b"v")).unwrap_or_else(|error| panic!("{place}: {error}"));
        return false;
    };
    assert!(failure.message.contains("Input/output error"), "{place}: {failure:?}");
    assert!(failure.at_ms > 1_600_000_000_000, "{place}: {failure:?}");
    for (name, outcome) in writes(&db, &flat, &typed) {
        let error = outcome.err().unwrap_or_else(|| panic!("{place}, {name}: acknowledged"));
        assert_eq!(error.kind(), ErrorKind::Closed, "{place}, {name}: {error}");
        assert_eq!(error.message(), failure.message, "{place}, {name}");
    }
    assert_eq!(flat.get(b"key").unwrap().unwrap().get("value").unwrap(), Value::Bytes(b"old"), "reads go on");
    assert!(loaded.exists(b"key").unwrap(), "{place}");
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::Closed, "{place}");
    true
}

/// Whether a failed edit of the manifest of sorted tables counts nobody knows: the store is closed for writing, as by a failed sync, whatever room
/// its open segments have.
#[test]
fn no_write_is_acknowledged_after_a_failed_edit() {
    for durability in MODES {
        let closed = (0..12).filter(|&after| is_closed_by_a_load(durability, after)).count();
        assert!(closed > 1, "{durability:?}: {closed} of the syncs were of an edit");
    }
}

/// The sync of the interval fails in the background, where nobody waits for it.
#[test]
fn a_failed_background_sync_is_noticed_by_the_next_writes() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Durability::Interval(Duration::from_millis(5)), true);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    sim.fail_persist_after(0, true);
    let mut refused = None;
    eventually("writes are refused", || {
        refused = flat.put(b"key", &value(b"v")).err();
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert_eq!(refused.kind(), ErrorKind::Closed, "{refused}");
    let written = sim.ops();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sim.ops(), written, "some thread of the store goes on writing");
}

/// The kernel has failed to write a row back; gc, which syncs the header of a segment that it frees, is told. Whoever
/// asks before gc knows must not be told that the row is durable.
#[test]
fn gc_takes_no_error_away_from_others() {
    const SEGMENT: u64 = 1 << 20;
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Durability::Process, false);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    for n in 0..40u8 {
        flat.put(&[n % 2], &value(&[n; 100_000])).unwrap();
    }
    let pin = db.pin();
    assert_eq!(db.collect().unwrap(), 0, "a reader keeps what was emptied");
    drop(pin);
    flat.put(b"acknowledged", &value(b"v")).unwrap();
    let says = std::sync::Arc::new(std::sync::Mutex::new(None));
    let (other, answer) = (db.clone(), says.clone());
    sim.fail_write_back_at(
        |offset, len| offset >= SEGMENT && len != u64::MAX,
        move || *answer.lock().unwrap() = Some(other.persist()),
    );
    db.collect().unwrap_err();
    let says = says.lock().unwrap().take().expect("gc freed a segment");
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let cut = CrashSim::from_image(&walk.image(Survivors::None, 1));
    let is_there =
        open(&cut, Durability::Process, false).table("flat").unwrap().exists(b"acknowledged").unwrap();
    assert!(!is_there, "the fault took nothing: the test proves nothing");
    assert!(says.is_err(), "persist says that a lost row is durable");
}

/// What a crash right now leaves.
fn crash(sim: &CrashSim, kind: Survivors, seed: u64) -> CrashSim {
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    CrashSim::from_image(&walk.image(kind, seed))
}

/// The pages of a failed write-back count as clean, and the next process finds them in the page cache as if they were safe. Once
/// its sync says that they are, a power cut must not take them: rows, headers of segments taken and freed, and the catalog.
#[test]
fn what_a_failed_sync_left_in_the_page_cache_is_written_again() {
    // Told to the process by its sync; or to nobody, who is killed without knowing.
    for (told, background) in [(true, false), (false, false), (false, true)] {
        for durability in [Durability::Process, Durability::Immediate] {
            let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
            let db = open(&sim, Durability::Process, false);
            let flat = db.create_table("flat", Schema::flat()).unwrap();
            let numbers = 0..60u8;
            for n in numbers.clone() {
                flat.put(&[n], &value(&[n; 60_000])).unwrap();
                if n == 20 {
                    db.persist().unwrap();
                }
            }
            flat.delete(&[0]).unwrap();
            sim.fail_write_back();
            if told {
                assert_eq!(db.persist().unwrap_err().kind(), ErrorKind::Io);
            }
            let next = CrashSim::from_image(&sim.process_kill());
            let db = open(&next, durability, background);
            db.table("flat").unwrap().put(b"next", &value(b"v")).unwrap();
            db.persist().unwrap();
            for seed in 0..20 {
                let kind = if seed == 0 { Survivors::None } else { Survivors::Random };
                let place = format!("told: {told}, {durability:?}, {kind:?}, image {seed}");
                let db = Db::open_at(
                    FastTier::simulated(&crash(&next, kind, seed)),
                    options(durability, false),
                    Clock::manual(1_000),
                );
                let db = db.unwrap_or_else(|error| panic!("{place}: {error}"));
                let flat = db.table("flat").unwrap();
                for n in numbers.clone() {
                    let found = flat.get(&[n]).unwrap_or_else(|error| panic!("{place}: {error}"));
                    let wanted = (n > 0).then(|| vec![n; 60_000]);
                    let found = found.map(|row| match row.get("value").unwrap() {
                        Value::Bytes(bytes) => bytes.to_vec(),
                        other => panic!("{place}: {other:?}"),
                    });
                    assert!(found == wanted, "{place}: row {n} is lost, or back");
                }
                assert!(flat.exists(b"next").unwrap(), "{place}");
            }
        }
    }
}

/// Whoever opens the store stores again what the kernel may have forgotten, while nobody else knows of it. The first sync has
/// readers beside it, who read keys by plain loads: it stores to no record, though what it stored would change nothing.
#[test]
fn what_a_killed_process_left_is_stored_again_before_anybody_reads_it() {
    const PAGES: u64 = 60 * 60_000 / 4096;
    for durability in [Durability::Process, Durability::Immediate] {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let db = open(&sim, Durability::Process, false);
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        for n in 0..60u8 {
            flat.put(&[n], &value(&[n; 60_000])).unwrap();
        }
        let next = CrashSim::from_image(&sim.process_kill());
        let db = open(&next, durability, false);
        let opened = next.ops();
        assert!(opened > PAGES, "{opened} operations: not each page was stored to");
        db.persist().unwrap();
        let synced = next.ops() - opened;
        assert!(synced < PAGES / 4, "the first sync stores to records: {synced} operations");
        // After a sync nothing is in doubt.
        let third = CrashSim::from_image(&next.process_kill());
        drop(open(&third, durability, false));
        assert!(third.ops() < PAGES / 4, "{} operations", third.ops());
    }
}

/// Closing a store with changes of the catalog asks for at least so many.
const CLOSING_SYNCS: u64 = 8;

/// Every sync of a script is refused in turn, whatever it was for: rows, the header of a segment, the root, the catalog. Under
/// `HEDGEROW_SOAK` each of them in every way; else a part of them, in one way each. Which version of the root a medium and mode has
/// with an odd `HEDGEROW_SEED`, it has not with an even one.
mod each_sync_of_a_script_is_refused {
    use super::*;

    #[test]
    fn page_cache_immediate() {
        refuse_each(CrashModel::Pages, MODES[0], 0);
    }

    #[test]
    fn page_cache_interval() {
        refuse_each(CrashModel::Pages, MODES[1], 2);
    }

    #[test]
    fn page_cache_process() {
        refuse_each(CrashModel::Pages, MODES[2], 1);
    }

    #[test]
    fn persistent_memory_immediate() {
        refuse_each(CrashModel::CacheLines, MODES[0], 2);
    }

    #[test]
    fn persistent_memory_interval() {
        refuse_each(CrashModel::CacheLines, MODES[1], 0);
    }

    #[test]
    fn persistent_memory_process() {
        refuse_each(CrashModel::CacheLines, MODES[2], 1);
    }
}

fn refuse_each(model: CrashModel, durability: Durability, format: usize) {
    let taste = Taste {
        keys: 60,
        value_bytes_max: 60_000,
        wrong_calls: false,
        reopens: false,
        persist_one_in: 12,
        ..Taste::default()
    };
    let ways: Vec<Fault> = [Refusal::Io, Refusal::NoSpace]
        .into_iter()
        .flat_map(|refusal| [false, true].map(|sticky| Fault { after: 0, sticky, refusal }))
        .collect();
    let seed: u64 = std::env::var("HEDGEROW_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = rounds(240, 600) as usize;
    let format = FORMATS[(seed as usize - 1 + format) % FORMATS.len()];
    let setup = Setup { model, durability, tier_bytes: 16 << 20, format, ..Setup::default() };
    let syncs = Sweep::syncs_of(seed, count, setup, &taste).unwrap_or_else(|d| panic!("{d}"));
    let place = format!("{model:?}, {durability:?}, {format}");
    assert!(syncs > 30, "{place}: {syncs} syncs in all");
    let (begin, mut counts) = (Instant::now(), FaultCounts::default());
    // A stride that has no factor in common with the ways: all of them meet all kinds of syncs.
    let stride = if is_soaking() { 1 } else { (syncs / 40).max(1) | 1 };
    // And each of those of closing the store.
    let closing = syncs.saturating_sub(CLOSING_SYNCS)..syncs;
    for (n, after) in (0..syncs).step_by(stride as usize).chain(closing).enumerate() {
        let ways = if is_soaking() { &ways[..] } else { &ways[n % ways.len()..][..1] };
        for fault in ways {
            Sweep::refuse(seed, count, setup, &taste, Fault { after, ..*fault }, &mut counts)
                .unwrap_or_else(|d| panic!("{d}"));
        }
    }
    println!("{place}: {syncs} syncs, {counts:?} in {:.1?}", begin.elapsed());
    assert!(counts.refused_after > counts.refused, "hardly any call was tried after the failure");
}

/// A growth that is refused is no failed sync: the write that needed it gets the cause, all else goes on, and so does that write
/// once there is room.
#[test]
fn each_growth_of_a_store_is_refused() {
    let fault = |after, sticky, refusal| Fault { after, sticky, refusal };
    let ways = [
        (Refusal::Io, ErrorKind::Io, "Input/output error"),
        (Refusal::NoSpace, ErrorKind::Full, "No space left"),
    ];
    for (refusal, kind, cause) in ways {
        for (after, sticky) in (0..4).flat_map(|after| [(after, false), (after, true)]) {
            let place = format!("{refusal:?} after {after}, sticky: {sticky}");
            let (sim, clock) = (CrashSim::new(CrashModel::Pages, 64 << 20), Clock::manual(1_000));
            let options = options(Durability::Process, false);
            let db = Db::open_at(FastTier::simulated(&sim), options, clock.clone()).unwrap();
            let flat = db.create_table("flat", Schema::flat()).unwrap();
            flat.put(b"first", &value(b"v")).unwrap();
            sim.fail_grows(fault(after, sticky, refusal));
            let refused =
                (0..60u8).find_map(|n| flat.put(&[n], &value(&[n; 300_000])).err().map(|error| (n, error)));
            assert!(refused.is_some() || !sticky, "{place}: it grew all the same");
            let (count, error) = refused.unzip();
            if let Some(error) = error {
                assert_eq!(error.kind(), kind, "{place}: {error}");
                assert!(error.message().contains(cause), "{place}: {error}");
            }
            let count = count.unwrap_or(60);
            assert_eq!(db.sync_failure(), None, "{place}");
            flat.put(b"first", &value(b"over"))
                .unwrap_or_else(|error| panic!("{place}: overwriting: {error}"));
            assert!(
                count == 0 || flat.delete(&[0]).unwrap_or_else(|error| panic!("{place}: deleting: {error}"))
            );
            sim.clear_faults();
            // A medium that was full is not asked again at once.
            clock.advance_ms(1_000);
            flat.put(b"later", &value(&[9; 300_000]))
                .unwrap_or_else(|error| panic!("{place}: there is room and it is not used: {error}"));
            db.persist().unwrap();
            let db = open(&crash(&sim, Survivors::None, 1), Durability::Process, false);
            let flat = db.table("flat").unwrap();
            assert_eq!(flat.len(), u64::from(count.max(1)) + 1, "{place}");
            assert_eq!(
                flat.get(b"first").unwrap().unwrap().get("value").unwrap(),
                Value::Bytes(b"over"),
                "{place}"
            );
        }
    }
}

/// Each sync of making a store, and of opening one that a killed process left, is refused in turn: the next opening finds all
/// that was durable.
#[test]
fn each_sync_of_an_opening_is_refused() {
    let mut formats = FORMATS.into_iter().cycle();
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        for durability in MODES {
            let format = formats.next().unwrap();
            let make = |sim: &CrashSim| {
                let options = format.with(options(durability, false));
                let db = Db::open_at(FastTier::simulated(sim), options, Clock::manual(1_000))?;
                let flat = db.create_table("flat", Schema::flat())?;
                db.persist()?;
                Ok::<_, Error>((db, flat))
            };
            let whole = CrashSim::new(model, 64 << 20);
            let (db, flat) = make(&whole).unwrap();
            for n in 0..30u8 {
                flat.put(&[n], &value(&[n; 60_000])).unwrap();
                if n == 20 {
                    db.persist().unwrap();
                }
            }
            let killed = whole.process_kill();
            // Made of nothing, and opened after a kill: rows that are durable, and all.
            let begins = [(None, 0, 0), (Some(&killed), 21, 30)];
            for (image, durable, all) in begins {
                for after in 0.. {
                    let place = format!("{model:?}, {durability:?}, {all} rows, sync {after}");
                    let sim = image.map_or_else(|| CrashSim::new(model, 64 << 20), CrashSim::from_image);
                    sim.fail_persist_after(after, false);
                    match make(&sim) {
                        Ok(_) => {
                            assert!(after > 3, "{place}: hardly any sync was asked for");
                            break;
                        }
                        Err(error) => {
                            assert!(error.message().contains("Input/output error"), "{place}: {error}")
                        }
                    }
                    for kind in [Survivors::ProcessKill, Survivors::None, Survivors::Random, Survivors::All] {
                        let next = crash(&sim, kind, after);
                        let (db, flat) =
                            make(&next).unwrap_or_else(|error| panic!("{place}, {kind:?}: {error}"));
                        let least = if kind == Survivors::ProcessKill { all } else { durable };
                        assert!(
                            (least..=all).contains(&flat.len()),
                            "{place}, {kind:?}: {} rows",
                            flat.len()
                        );
                        for n in 0..flat.len() as u8 {
                            let row = flat
                                .get(&[n])
                                .unwrap()
                                .unwrap_or_else(|| panic!("{place}, {kind:?}: row {n}"));
                            assert_eq!(
                                row.get("value").unwrap(),
                                Value::Bytes(&[n; 60_000]),
                                "{place}, {kind:?}"
                            );
                        }
                        flat.put(b"next", &value(b"v")).unwrap();
                        drop((db, flat));
                    }
                }
            }
        }
    }
}

/// The capacity tier refuses something while rows move, tables are loaded, or either is read: the call says so and has done nothing, or the store takes no more writes; nothing is
/// lost.
#[test]
fn each_call_on_files_is_refused() {
    use hedgerow_device::FileCall::{Create, Read, Remove, Sync, SyncNames, Write};
    let mut counts = FaultCounts::default();
    for (n, call) in [Create, Write, Sync, SyncNames, Remove, Read].into_iter().enumerate() {
        let durability = MODES[[0, 2][n % 2]];
        let model = [CrashModel::Pages, CrashModel::CacheLines][n / 2 % 2];
        let setup = Setup { model, durability, tier_bytes: 16 << 20, moving: true, ..Setup::default() };
        let mut told = 0;
        for after in 0..rounds(24, 300) {
            let taste = Taste {
                keys: 200,
                value_bytes_max: 2_000,
                wrong_calls: false,
                reopens: false,
                loads: after.is_multiple_of(2),
                snapshots: after.is_multiple_of(3),
                collect_one_in: 10,
                ..Taste::default()
            };
            let fault = Fault { after, sticky: after.is_multiple_of(2), refusal: Refusal::Io };
            let refused = Sweep::refuse_on_files(after, 240, setup, &taste, (call, fault), &mut counts);
            told += u64::from(refused.unwrap_or_else(|d| panic!("{d}")));
        }
        println!("{call:?}: told {told} times, {counts:?} in all");
        // A file that cannot be removed is left for the next opening.
        assert!(told > 8 || call == Remove, "{call:?}: told {told} times");
    }
}
