//! The cache joined with the index: what a test from outside cannot time. Each protection has a test that fails without it.

use hedgerow_device::{Clock, FastTierOptions};

use super::*;
use crate::cache::check_options;
use crate::db::chain::replaced_by;
use crate::db::fixture;
use crate::log::segment::SegmentKind;
use crate::options::CachePolicy;
use crate::space::Claim;
use crate::{Batch, Db, Expiry, Options, Schema, Table, Type, Value, row};

fn options() -> Options {
    Options { cache_bytes: 1 << 20, cache_mode: CacheMode::On, ..fixture::options() }
}

fn open_with(options: Options) -> Db {
    let tier = FastTierOptions { bytes_max: 64 << 20, ..FastTierOptions::default() };
    Db::open_at(hedgerow_device::FastTier::dram(&tier).unwrap(), options, Clock::manual(1_000)).unwrap()
}

fn open() -> (Db, Table) {
    let db = open_with(options());
    let schema = Schema::new().field("a", Type::U64).nullable("b", Type::U64).nullable("text", Type::String);
    let table = db.create_table("rows", schema).unwrap();
    (db, table)
}

fn put(table: &Table, key: &[u8], a: u64) {
    let text = "t".repeat(a as usize % 50);
    table.put(key, &row! { a: a, b: a, text: text.as_str() }).unwrap();
}

fn a_of(table: &Table, key: &[u8]) -> Option<u64> {
    table.read(key, |row| Ok(row.get("a")?.as_u64().unwrap())).unwrap()
}

/// The key's slot in the index, as it is.
fn slot(table: &Table, key: &[u8]) -> Slot {
    table.shared().levels.locate_version(key, &table.engine().log.pin()).unwrap()
}

/// Reads the row and has it cached.
fn cache(db: &Db, table: &Table, key: &[u8]) -> u64 {
    table.get(key).unwrap();
    db.tend_cache();
    let slot = slot(table, key);
    slot.in_cache().unwrap_or_else(|| panic!("{} is not cached", key.escape_ascii()))
}

fn rounds(db: &Db) {
    (0..4).for_each(|_| db.tend_cache());
}

#[test]
fn a_row_that_was_read_is_cached_and_reads_the_same() {
    let (db, table) = open();
    put(&table, b"k", 7);
    table.update(b"k", &row! { b: 8 }).unwrap();
    table.update(b"k", &row! { text: "new" }).unwrap();
    let (log_slot, before) = (slot(&table, b"k"), table.get(b"k").unwrap().unwrap());
    assert_eq!(log_slot.depth(), 2);
    cache(&db, &table, b"k");
    let after = table.get(b"k").unwrap().unwrap();
    assert_eq!(before.version(), after.version());
    assert_eq!(before.fields().collect::<Vec<_>>(), after.fields().collect::<Vec<_>>());
    let engine = table.engine();
    let guard = engine.log.pin();
    let cached = table.shared().levels.locate(b"k", &guard).unwrap();
    assert_eq!(*engine.cache.log_slot(cached, &guard), log_slot);
    assert_eq!((cached.depth(), cached.expires()), (2, false));
    drop(guard);
    let metrics = db.metrics();
    assert_eq!((metrics.cache_rows, metrics.cache_admissions, metrics.cache_hits), (1, 1, 1));
    assert!(metrics.cache_active && metrics.cache_bytes > 0 && metrics.cache_bytes_max == 1 << 20);
    assert!(table.exists(b"k").unwrap());
    assert_eq!(
        table.multi_get(&[b"k"]).unwrap()[0].as_ref().unwrap().get("text").unwrap(),
        Value::Str("new")
    );
    assert_eq!(
        table.scan().map(|row| row.unwrap().get("b").unwrap() == Value::UInt(8)).collect::<Vec<_>>(),
        [true]
    );
    db.check_counts().unwrap();
}

/// Every way to change a row, over a cached one: the new version is seen at once, the entry goes, the counts stay right,
/// and the record written last leads to the log.
#[test]
fn every_write_replaces_the_cached_row() {
    type Write = fn(&Db, &Table);
    let writes: [(&str, Write, Option<u64>); 8] = [
        ("put", |_, t| put(t, b"k", 9), Some(9)),
        ("update", |_, t| t.update(b"k", &row! { a: 9 }).unwrap(), Some(9)),
        ("delete", |_, t| assert!(t.delete(b"k").unwrap()), None),
        ("increment", |_, t| assert_eq!(t.increment(b"k", "a", 2).unwrap(), 9), Some(9)),
        (
            "compare_and_set",
            |_, t| assert!(t.compare_and_set(b"k", "a", Value::UInt(7), Value::UInt(9)).unwrap()),
            Some(9),
        ),
        ("expire", |_, t| assert!(t.expire(b"k", Expiry::at_unix_ms(5_000)).unwrap()), Some(7)),
        (
            "batch",
            |db, t| {
                let mut batch = Batch::new();
                batch.require_version(t, b"k", t.version(b"k").unwrap()).unwrap();
                batch.update(t, b"k", &row! { a: 9 }).unwrap();
                db.write(batch).unwrap();
            },
            Some(9),
        ),
        (
            "merge",
            |_, t| {
                let (engine, guard) = (t.engine(), t.engine().log.pin());
                let log_slot = engine.cache.log_slot(t.shared().levels.locate(b"k", &guard).unwrap(), &guard);
                let chain = Chain::of(guard.view(), log_slot).unwrap();
                assert!(
                    engine
                        .write_merged(t.shared(), log_slot, &chain, SegmentKind::Row, Claim::Write)
                        .unwrap()
                        .is_some()
                );
            },
            Some(7),
        ),
    ];
    for (name, write, wanted) in writes {
        let (db, table) = open();
        put(&table, b"k", 7);
        table.update(b"k", &row! { b: 1 }).unwrap();
        let place = cache(&db, &table, b"k");
        write(&db, &table);
        assert_eq!(a_of(&table, b"k"), wanted, "{name}");
        let now = slot(&table, b"k");
        let now = now.in_log().expect(name);
        let previous = {
            let view = table.engine().read_view();
            replaced_by(&view.log().record(now.offset()).unwrap()).unwrap().unwrap()
        };
        assert!(previous.offset() != place, "{name}: {previous:?}");
        std::iter::from_fn(|| table.engine().cache.next_request()).for_each(drop);
        rounds(&db);
        assert_eq!(
            (db.metrics().cache_rows, db.metrics().cache_bytes),
            (0, 0),
            "{name}: the entry is left over"
        );
        db.check_counts().unwrap();
    }
}

/// A cached row is whole, what is in the log may be a full chain: deltas over it must not make it longer.
#[test]
fn chains_under_cached_rows_stay_bounded() {
    for (kind, n) in (0..3).flat_map(|kind| (1..20).map(move |n| (kind, n))) {
        let (db, table) = open();
        put(&table, b"k", 0);
        (1..n).for_each(|n| drop(table.update(b"k", &row! { a: n - 1 })));
        table.update(b"k", &row! { a: n - 1 }).unwrap();
        cache(&db, &table, b"k");
        match kind {
            0 => table.update(b"k", &row! { a: n }).unwrap(),
            1 => assert_eq!(table.increment(b"k", "a", 1).unwrap(), n as i64),
            _ => {
                let mut batch = Batch::new();
                batch.update(&table, b"k", &row! { a: n }).unwrap();
                db.write(batch).unwrap();
            }
        }
        assert_eq!(a_of(&table, b"k"), Some(n));
        assert!(slot(&table, b"k").depth() <= 5, "{:?}", slot(&table, b"k"));
        db.check_counts().unwrap();
    }
}

#[test]
fn snapshots_see_through_cached_rows() {
    let (db, table) = open();
    put(&table, b"k", 1);
    let old = db.snapshot();
    table.update(b"k", &row! { a: 2 }).unwrap();
    let new = db.snapshot();
    cache(&db, &table, b"k");
    let seen =
        |snapshot: &crate::Snapshot| snapshot.get(&table, b"k").unwrap().unwrap().get("a").unwrap().as_u64();
    assert_eq!((seen(&old), seen(&new)), (Some(1), Some(2)));
    table.update(b"k", &row! { a: 3 }).unwrap();
    cache(&db, &table, b"k");
    assert_eq!((seen(&old), seen(&new), a_of(&table, b"k")), (Some(1), Some(2), Some(3)));
}

/// Gc moves the row under the cached slot, and takes its obsolete records off its older-version count.
#[test]
fn collection_under_a_cached_row_keeps_row_and_counts() {
    let (db, table) = open();
    let filler = |n: u32| format!("filler{n}").into_bytes();
    let big = "x".repeat(15_000);
    put(&table, b"k", 7);
    (0..120).for_each(|n| table.put(&filler(n), &row! { a: 1, text: big.as_str() }).unwrap());
    for round in 0..6u64 {
        table.update(b"k", &row! { b: round }).unwrap();
        cache(&db, &table, b"k");
        (0..120).for_each(|n| table.put(&filler(n), &row! { a: round, text: big.as_str() }).unwrap());
        assert!(slot(&table, b"k").is_cached());
        (0..3).for_each(|_| assert!(db.collect().is_ok()));
        assert_eq!(a_of(&table, b"k"), Some(7));
        db.check_counts().unwrap();
    }
    assert!(db.metrics().segments_collected > 0);
}

#[test]
fn an_older_version_count_is_that_of_the_cached_slot() {
    let (db, table) = open();
    put(&table, b"k", 1);
    put(&table, b"k", 2);
    put(&table, b"k", 3);
    cache(&db, &table, b"k");
    let (engine, guard) = (table.engine(), table.engine().log.pin());
    let levels = &table.shared().levels;
    assert_eq!(engine.cache.log_slot(levels.locate(b"k", &guard).unwrap(), &guard).older_versions(), 2);
    let fewer = levels.replace(b"k", &guard, |now| Some(now.subtract_older_versions(1)));
    let cached = levels.locate(b"k", &guard).unwrap();
    assert_eq!(fewer, Some(cached));
    assert!(cached.is_cached());
    assert_eq!(engine.cache.log_slot(cached, &guard).older_versions(), 1);
    let mut state = engine.cache.state.lock();
    assert!(engine.cache_worker().evict(&mut state, table.shared(), cached.in_cache().unwrap()));
    assert_eq!(levels.locate(b"k", &guard).unwrap().older_versions(), 1);
    // Both are in the log still, as the store is to say when it is closed.
    levels.replace(b"k", &guard, |now| Some(now.in_log()?.add_older_versions(1).into()));
}

/// The worker comes late to an entry that was replaced, while the row is cached anew somewhere else.
#[test]
fn an_eviction_leaves_the_rows_next_entry_alone() {
    let (db, table) = open();
    put(&table, b"k", 1);
    let engine = table.engine();
    let guard = engine.log.pin();
    let first = cache(&db, &table, b"k");
    put(&table, b"k", 2);
    let second = cache(&db, &table, b"k");
    assert_ne!(first, second, "the first is not free while the guard lives");
    let mut state = engine.cache.state.lock();
    assert!(!engine.cache_worker().evict(&mut state, table.shared(), first));
    assert!(!engine.cache_worker().move_row(&mut state, table.shared(), first));
    assert_eq!(slot(&table, b"k").in_cache(), Some(second));
    drop(guard);
}

/// A table that is read more than written gets its rows back without another read of them.
#[test]
fn a_written_row_comes_back_where_most_calls_are_reads() {
    let (db, table) = open();
    put(&table, b"k", 1);
    for writes in [0, 2_000u64] {
        // A few times, since it is an average that moves.
        for _ in 0..8 {
            (0..writes).for_each(|n| put(&table, b"w", n));
            (0..1_000).for_each(|_| assert!(a_of(&table, b"k").is_some()));
            (0..20).for_each(|_| db.tend_cache());
        }
        assert!(slot(&table, b"k").is_cached());
        put(&table, b"k", writes);
        db.tend_cache();
        assert_eq!(slot(&table, b"k").is_cached(), writes == 0, "{writes} writes");
    }
}

/// Fills the cache to the last slot with other rows.
fn crowd(db: &Db, table: &Table) {
    for n in 0..3_000u64 {
        let key = n.to_be_bytes();
        put(table, &key, 3);
        table.get(&key).unwrap();
        if n % 100 == 0 {
            db.tend_cache();
        }
    }
    db.tend_cache();
}

/// A reader that found the cached row before it was replaced goes on reading it.
#[test]
fn an_entry_outlives_the_guards_that_may_see_it() {
    for end in ["overwritten", "evicted", "cleared", "dropped"] {
        let (db, table) = open();
        let other = db
            .create_table(
                "others",
                Schema::new().field("a", Type::U64).nullable("b", Type::U64).nullable("text", Type::String),
            )
            .unwrap();
        put(&table, b"k", 7);
        cache(&db, &table, b"k");
        let engine = table.engine();
        let view = engine.read_view();
        let found = table.shared().levels.locate(b"k", view.guard());
        let place = found.unwrap().in_cache().unwrap();
        match end {
            "overwritten" => put(&table, b"k", 8),
            "evicted" => assert!({
                let mut state = engine.cache.state.lock();
                let evicted = engine.cache_worker().evict(&mut state, table.shared(), place);
                let epoch = engine.epoch.current();
                state.retire(epoch, vec![place], Vec::new());
                evicted
            }),
            "cleared" => table.clear().unwrap(),
            _ => assert!(db.drop_table("rows").unwrap()),
        }
        crowd(&db, &other);
        let schema = table.shared().schema.load();
        let row = view.row_at((table.shared(), b"k"), &schema, found).unwrap().unwrap();
        assert_eq!(row.key(), b"k", "{end}: the entry was given to another row");
        assert_eq!(row.get("a").unwrap(), Value::UInt(7), "{end}");
        assert_eq!(engine.cache.log_slot(found.unwrap(), view.guard()).tag(), Tag::Row);
        drop(row);
        drop(view);
        rounds(&db);
        crowd(&db, &other);
        let reused = engine.cache.owner(place).unwrap();
        assert_ne!(reused.key(), b"k", "{end}: the entry was never freed");
    }
}

/// A reader reads, the row changes, and only then the worker comes by the request: what it copies must be the new version.
#[test]
fn a_late_admission_loses_to_a_write() {
    let (db, table) = open();
    put(&table, b"k", 1);
    let engine = table.engine();
    let guard = engine.log.pin();
    let log_slot = table.shared().levels.locate(b"k", &guard).and_then(Slot::in_log).unwrap();
    put(&table, b"k", 2);
    let mut state = engine.cache.state.lock();
    let id = table.shared().id.load(std::sync::atomic::Ordering::Relaxed);
    assert!(!engine.cache_worker().admit(&mut state, table.shared(), id, log_slot, &guard).unwrap());
    assert_eq!((state.pages.rows(), state.pages.used_bytes()), (0, 0));
    drop(state);
    assert_eq!(a_of(&table, b"k"), Some(2));
    drop(db);
}

#[test]
fn expired_rows_are_absent_and_not_admitted() {
    let clock = Clock::manual(1_000);
    let tier = hedgerow_device::FastTier::dram(&FastTierOptions {
        bytes_max: 64 << 20,
        ..FastTierOptions::default()
    });
    let db = Db::open_at(tier.unwrap(), options(), clock.clone()).unwrap();
    let table = db.create_table("rows", Schema::new().field("a", Type::U64)).unwrap();
    table.put_expiring(b"k", &row! { a: 1 }, Expiry::at_unix_ms(2_000)).unwrap();
    cache(&db, &table, b"k");
    assert_eq!(a_of(&table, b"k"), Some(1));
    clock.advance_ms(1_000);
    assert_eq!(a_of(&table, b"k"), None);
    assert!(!table.exists(b"k").unwrap());
    assert_eq!(table.increment(b"k", "a", 1).unwrap(), 1, "a new row");
    db.check_counts().unwrap();
}

/// More rows than fit, of three sizes and two tables: rows are evicted, pages change hands, the budget holds.
#[test]
fn a_cache_that_overflows_stays_within_its_budget() {
    for policy in [CachePolicy::Focus, CachePolicy::Lru] {
        let db = open_with(Options { cache_policy: policy, ..options() });
        let schema = || Schema::new().field("a", Type::U64).nullable("text", Type::String);
        let tables = ["one", "two"].map(|name| db.create_table(name, schema()).unwrap());
        let texts = [100, 1_000, 7_000].map(|bytes| "x".repeat(bytes));
        let key = |n: u64| n.to_be_bytes();
        for n in 0..2_000u64 {
            let text = texts[(n % 3) as usize].as_str();
            tables[(n % 2) as usize].put(&key(n), &row! { a: n, text: text }).unwrap();
        }
        for round in 0..6u64 {
            for n in 0..2_000u64 {
                // A hot tenth among the rest.
                let n = if n % 2 == 0 { n / 2 % 200 } else { n };
                let row = tables[(n % 2) as usize].get(&key(n)).unwrap().unwrap();
                assert_eq!(
                    (row.get("a").unwrap(), row.get("text").unwrap()),
                    (Value::UInt(n), Value::Str(&texts[(n % 3) as usize]))
                );
                if (n + round) % 40 == 0 {
                    db.tend_cache();
                    assert!(db.metrics().cache_bytes <= db.metrics().cache_bytes_max);
                }
            }
        }
        let metrics = db.metrics();
        assert!(metrics.cache_evictions > 100 && metrics.cache_hits > 1_000, "{policy:?}: {metrics:?}");
        assert!(metrics.cache_rows > 50, "{policy:?}: {metrics:?}");
        db.check_counts().unwrap();
    }
}

/// A table of rows of a kilobyte.
fn wide(db: &Db, name: &str, rows: u64) -> Table {
    let table = db.create_table(name, Schema::new().field("wide", Type::FixedBytes(1_000))).unwrap();
    (0..rows)
        .for_each(|n| table.put(&n.to_be_bytes(), &[("wide", Value::Bytes(&[n as u8; 1_000]))]).unwrap());
    table
}

/// Reads a row; whether it was cached.
fn hit(table: &Table, row: u64) -> bool {
    let hit = slot(table, &row.to_be_bytes()).is_cached();
    assert!(
        table.read(&row.to_be_bytes(), |row| Ok(row.get("wide")?.as_bytes().is_some())).unwrap().unwrap()
    );
    hit
}

/// Rows that are read again and again, but not in every tick, are not those that make room for others.
#[test]
fn an_eviction_leaves_what_is_read_again_and_again() {
    for policy in [CachePolicy::Focus, CachePolicy::Lru] {
        let db = open_with(Options { cache_policy: policy, ..options() });
        let table = wide(&db, "rows", 20_000);
        let (mut next, mut hits) = (1_000, 0);
        for tick in 0..250u64 {
            // A third of 300 rows, and 60 that are not read again.
            hits += (0..300).filter(|n| n % 3 == tick % 3 && hit(&table, *n)).count();
            for row in next..next + 60 {
                hit(&table, row);
            }
            next += 60;
            db.tend_cache();
        }
        let evicted = db.metrics().cache_evictions;
        assert!(evicted > 8_000 && hits > 24_000, "{policy:?}: {hits} of 25,000 hits, {evicted} evicted");
    }
}

/// Two tables, one of few rows that are read often, one of many that are read once in a while, and more calls on that: it
/// must not drive out the other (FOCUS section V-C2).
#[test]
fn a_table_without_hits_does_not_drive_out_another() {
    let [focus, lru] = [CachePolicy::Focus, CachePolicy::Lru].map(|policy| {
        let db = open_with(Options { cache_policy: policy, ..options() });
        let (hot, cold) = (wide(&db, "hot", 500), wide(&db, "cold", 20_000));
        let mut random = hedgerow_device::Random::from_seed(3);
        let mut hits = 0;
        for tick in 0..400 {
            let found = (0..100).filter(|_| hit(&hot, random.below(500))).count();
            hits += if tick < 200 { 0 } else { found };
            for _ in 0..200 {
                hit(&cold, random.below(20_000));
            }
            db.tend_cache();
        }
        hits as f64 / 20_000.0
    });
    // Pages are of one table, so a few of the hot rows may find none.
    assert!(focus > 0.85 && lru < 0.6, "{focus} {lru}");
}

/// Rows of a size for which there is no page move others together, or push them out.
#[test]
fn pages_are_found_for_another_size() {
    let (db, table) = open();
    for n in 0..900u64 {
        put(&table, &n.to_be_bytes(), 40);
        table.get(&n.to_be_bytes()).unwrap();
        db.tend_cache();
    }
    let text = "x".repeat(20_000);
    for n in 0..40u64 {
        let key = [b'l', n as u8];
        table.put(&key, &row! { a: n, text: text.as_str() }).unwrap();
        (0..4).for_each(|_| {
            table.get(&key).unwrap();
            db.tend_cache();
        });
    }
    let large = (0..40u8).filter(|&n| slot(&table, &[b'l', n]).is_cached()).count();
    assert!(large > 10, "{large} large rows are cached");
    db.check_counts().unwrap();
}

#[test]
fn a_cache_switched_off_takes_no_memory_and_one_without_gain_lets_go() {
    let db = open_with(Options { cache_mode: CacheMode::Off, ..options() });
    assert_eq!((db.metrics().cache_bytes_max, db.metrics().cache_active), (0, false));
    let (db, table) = open();
    put(&table, b"k", 7);
    cache(&db, &table, b"k");
    let engine = table.engine();
    let (mut state, mut unlinked) = (engine.cache.state.lock(), Unlinked::default());
    engine.cache_worker().let_all_go(&mut state, &mut unlinked);
    assert_eq!((unlinked.places.len(), state.pages.rows()), (1, 0));
    assert!(!slot(&table, b"k").is_cached());
    assert_eq!(a_of(&table, b"k"), Some(7));
}

#[test]
fn options_out_of_bounds_are_refused() {
    for options in [
        Options { cache_hit_threshold: 1.5, ..options() },
        Options { cache_hit_threshold: f64::NAN, ..options() },
        Options { cache_rw: Some(0.0), ..options() },
        Options { cache_rw: Some(f64::INFINITY), ..options() },
    ] {
        let error = check_options(&options).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(error.message().contains("cache_"), "{error}");
    }
}

/// Measured, the page cache came out slower than the cache's memory now and then, and writers paid for a cache that gained nothing.
#[test]
fn on_the_page_cache_it_is_bypassed_without_a_measurement() {
    let scratch = fixture::Scratch::new("cached-bypassed");
    let options = Options { cache_mode: CacheMode::Auto, background: true, ..options() };
    let db = Db::open_with(scratch.at("store"), options).unwrap();
    let table = db
        .create_table(
            "rows",
            Schema::new().field("a", Type::U64).nullable("b", Type::U64).nullable("text", Type::String),
        )
        .unwrap();
    (0..20_000u64).for_each(|i| put(&table, &i.to_be_bytes(), i));
    // It was looked at when the store was opened and with each row that came; and now again.
    table.engine().cache.state.lock().probe_at_ns = 0;
    table.engine().tend_cache();
    (0..20_000u64).for_each(|i| assert_eq!(a_of(&table, &i.to_be_bytes()), Some(i)));
    table.engine().tend_cache();
    let metrics = db.metrics();
    assert_eq!((metrics.cache_active, metrics.cache_benefit_percent, metrics.cache_rows), (false, 0, 0));
}

/// By the whole path, but for how much memory there is.
#[test]
fn on_the_page_cache_it_comes_into_use_in_little_memory_and_goes_when_the_store_shrinks() {
    const MEMORY: u64 = 24 << 20;
    let scratch = fixture::Scratch::new("cached-little-memory");
    let options =
        Options { cache_mode: CacheMode::Auto, cache_bytes: MEMORY / 2, background: true, ..options() };
    let db = Db::open_with(scratch.at("store"), options).unwrap();
    let table = db.create_table("rows", Schema::flat()).unwrap();
    let engine = table.engine();
    engine.cache.state.lock().memory_bytes = || Some(MEMORY);
    let is_used = || {
        engine.cache.state.lock().probe_at_ns = 0;
        engine.tend_cache();
        db.metrics().cache_active
    };
    let used = || engine.log.space().bytes_used().0;
    let keys = || (0..40_000u64).map(u64::to_be_bytes);
    keys().for_each(|key| table.put(&key, &[("value", Value::Bytes(&[7; 1000]))]).unwrap());
    assert!(used() > MEMORY && !is_used(), "no reader has waited for the disk");
    engine.disk_waits.counted.store(1, Ordering::Relaxed);
    assert!(is_used());
    for key in keys().take(100) {
        table.get(&key).unwrap().unwrap();
        engine.tend_cache();
    }
    assert!(db.metrics().cache_rows > 0);
    keys().skip(100).for_each(|key| assert!(table.delete(&key).unwrap()));
    for _ in 0..1000 {
        if used() <= MEMORY {
            break;
        }
        db.collect().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(used() <= MEMORY, "{} bytes are in use", used());
    assert!(!is_used());
    assert_eq!(db.metrics().cache_rows, 0, "all are where they were");
    assert!(keys().take(100).all(|key| table.get(&key).unwrap().is_some()));
}

/// A cache in use is not emptied because gc holds whatever could be looked at, as it does for as long as a snapshot lives.
#[test]
fn a_probe_that_finds_nothing_changes_nothing() {
    let sim = hedgerow_device::CrashSim::new(hedgerow_device::CrashModel::CacheLines, 16 << 20);
    let tier = hedgerow_device::FastTier::simulated(&sim);
    let db = Db::open_at(tier, options(), Clock::manual(1_000)).unwrap();
    let worker = db.engine.cache_worker();
    let mut state = db.engine.cache.state.lock();
    assert!(worker.sampled_place(&mut state).is_none());
    for beneficial in [true, false] {
        (state.probe_at_ns, state.beneficial) = (0, beneficial);
        assert_eq!(worker.is_beneficial(&mut state, 1), beneficial);
    }
}

/// Gc may free it and a writer fill it while it is looked at: the guard came too late.
#[test]
fn the_probe_leaves_a_segment_alone_that_gc_empties() {
    let (db, table) = open();
    (0..20_000u64).for_each(|n| put(&table, &n.to_be_bytes(), n));
    let engine = table.engine();
    let (worker, mut state) = (engine.cache_worker(), engine.cache.state.lock());
    let guard = engine.log.pin();
    assert!(worker.sampled_place(&mut state).is_some());
    let sealed: Vec<u32> = engine.log.candidates().iter().map(|(extent, ..)| *extent).collect();
    assert!(!sealed.is_empty());
    sealed.iter().for_each(|&extent| assert!(engine.log.begin_gc(extent)));
    let in_gc = |place: u64| sealed.contains(&((place / engine.log.extent_bytes()) as u32));
    for _ in 0..100 {
        assert!(!worker.sampled_place(&mut state).is_some_and(in_gc));
    }
    sealed.iter().for_each(|&extent| engine.log.abandon_gc(extent));
    drop((guard, state));
    db.check_counts().unwrap();
}

/// A table of which each row is read once has no hits at all. Its rows make room all the same, for itself and for others.
#[test]
fn rows_that_are_never_read_again_leave() {
    let db = open_with(options());
    let (once, table) = (wide(&db, "once", 12_000), wide(&db, "rows", 2_000));
    for tick in 0..200u64 {
        (tick * 60..tick * 60 + 60).for_each(|n| assert!(!hit(&once, n)));
        db.tend_cache();
    }
    assert!(db.metrics().cache_evictions > 100, "{} evictions", db.metrics().cache_evictions);
    for _ in 0..100 {
        for n in 0..50 {
            hit(&table, n);
        }
        db.tend_cache();
    }
    let cached = (0..50).filter(|&n| hit(&table, n)).count();
    assert!(cached > 40, "{cached} of 50 rows that are read again and again");
}
