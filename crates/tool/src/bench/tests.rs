//! The benchmark end to end, on the null store and on stores that are wrong.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hedgerow::{Durability, Options};

use super::driver::{PhaseOutcome, run_phase, run_phase_by_window};
use super::row::{Key, RowSink};
use super::store::{Columns, Session};
use super::*;
use crate::store_url::Medium;

const SHAPE: RowShape = RowShape { fields: 10, field_bytes: 100 };

fn plan(name: &str, threads: usize) -> Plan {
    Plan {
        workload: Workload::find(name).unwrap(),
        records: 2000,
        operations: 5000,
        seconds: 10.0,
        threads,
        distribution: None,
        rate: None,
        seed: 1,
        rest_max: Duration::ZERO,
    }
}

fn outcome(store: &mut dyn BenchStore, population: &Population, plan: &Plan) -> Result<PhaseOutcome, String> {
    run_phase(store, SHAPE, population, plan, &mut |_| {})
}

#[test]
fn every_workload_runs_on_the_null_store() {
    let mut store = NullStore::new(SHAPE, 0);
    let population = Population::new(0);
    for threads in [1, 3] {
        for name in ["load", "a", "b", "c", "d", "e", "f", "read-full", "read-partial", "scan-full"] {
            let outcome = outcome(&mut store, &population, &plan(name, threads)).unwrap();
            let expected = if name == "load" { 2000 } else { 5000 };
            assert_eq!((outcome.operations, outcome.latencies.len()), (expected, expected), "{name}");
            assert!(outcome.elapsed > Duration::ZERO);
        }
        assert!((2300..2700).contains(&population.existing(threads)), "d and e insert about 250 each");
    }
    for name in ["scan-partial", "update", "insert", "fill"] {
        outcome(&mut store, &population, &plan(name, 2)).unwrap();
    }
}

/// As in a directory, rows that have no room on the emulated medium go on beside it.
#[test]
fn more_rows_than_the_emulated_fast_tier_takes_are_kept() {
    let directory = std::env::temp_dir().join(format!("hedgerow-emulated-{}", std::process::id()));
    let options = Options::new().segment_bytes(1 << 18).fast_tier_bytes_max(8 << 20);
    let mut store = HedgerowStore::open_on(Medium::Emulated, &directory, SHAPE, options).unwrap();
    let plan = Plan { records: 20_000, operations: 20_000, ..plan("load", 1) };
    outcome(&mut store, &Population::new(0), &plan).unwrap();
    // Of rows in sorted tables the number is an estimate, and never too low.
    assert!(store.rows().unwrap() >= 20_000);
    let account = store.account().unwrap();
    assert!(account.log_bytes > 20_000 * 1000 && account.below_log_bytes > 8 << 20, "{account:?}");
    store.close().unwrap();
    assert!(directory.join(hedgerow::CAPACITY_DIRECTORY).is_dir());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn rows_over_pairs_are_measured_but_in_no_order() {
    let backend = Arc::new(MemoryBackend::default());
    let mut store = PairsStore::open(backend.clone(), SHAPE).unwrap();
    let population = Population::new(0);
    for name in ["load", "a", "b", "c", "d", "f", "read-partial", "update", "insert"] {
        let operations = outcome(&mut store, &population, &plan(name, 2)).unwrap().operations;
        assert_eq!(operations, if name == "load" { 2000 } else { 5000 }, "{name}");
    }
    assert_eq!(store.rows().unwrap(), population.existing(2), "each row is one pair");
    assert_eq!(PairsStore::open(backend, SHAPE).unwrap().rows().unwrap(), store.rows().unwrap());
    let refused = outcome(&mut store, &population, &plan("e", 1)).unwrap_err();
    assert!(refused.contains("no order of rows"), "{refused}");
    store.clear().unwrap();
    assert_eq!(store.rows().unwrap(), 0);
}

#[test]
fn a_scan_of_what_has_no_order_is_refused_before_anything_is_loaded() {
    let ycsb = |workloads: &[&str]| {
        let workloads = workloads.iter().map(|name| name.to_string()).collect();
        let settings = Settings {
            store: StoreUrl::Memory,
            records: 100,
            operations: None,
            seconds: 1.0,
            threads: 1,
            fields: 2,
            field_bytes: 16,
            distribution: None,
            rate: None,
            engine: EngineArgs { durability: Durability::Process, set: Vec::new() },
            seed: 1,
            json: None,
        };
        run(Args { suite: Suite::Ycsb { workloads, settings } })
    };
    let refused = ycsb(&["load", "a", "e"]).unwrap_err();
    assert!(refused.contains("memory: has no order of rows, and e scans"), "{refused}");
    ycsb(&[]).unwrap();
}

#[test]
fn the_clock_ends_a_phase() {
    let mut store = NullStore::new(SHAPE, 2000);
    let plan = Plan { operations: u64::MAX / 2, seconds: 1.25, ..plan("c", 2) };
    let outcome = outcome(&mut store, &Population::new(2000), &plan).unwrap();
    assert!((1.2..30.0).contains(&outcome.elapsed.as_secs_f64()), "{:?}", outcome.elapsed);
    assert!(!outcome.per_second.is_empty() && outcome.per_second[0] > 1000);
}

#[test]
fn windows_hold_every_operation() {
    let mut store = NullStore::new(SHAPE, 2000);
    let plan = Plan { operations: u64::MAX / 2, seconds: 0.33, ..plan("c", 2) };
    let length = Some(Duration::from_millis(50));
    let population = Population::new(2000);
    let outcome = run_phase_by_window(&mut store, SHAPE, &population, &plan, length, &mut |_| {}).unwrap();
    assert_eq!(outcome.latencies.len(), outcome.operations);
    // However late a thread is, it goes on for 330 ms. What each window holds is tested at times made up: `driver/tests.rs`.
    assert!(outcome.windows.len() >= 6, "{:?}", outcome.windows);
    let elapsed = outcome.elapsed.as_secs_f64();
    let counted: f64 = outcome.windows.iter().map(|w| w.ops_per_s * (elapsed - w.from_s).min(0.05)).sum();
    let left_out = outcome.operations as f64 - counted;
    let covered = outcome.windows.last().unwrap().from_s + 0.05;
    assert!(left_out > -0.5, "{counted} operations in windows, of {}", outcome.operations);
    assert!(left_out < 0.5 || elapsed > covered, "{left_out} operations are in no window");
    assert!(outcome.windows.iter().all(|w| w.p50_us <= w.p99_us && w.p99_us <= w.max_us));
    assert!(outcome.windows.iter().all(|w| (w.ops_per_s > 0.0) == (w.max_us > 0.0)));
    assert!((outcome.windows[5].from_s - 0.25).abs() < 1e-9);
    assert!(outcome.windows.iter().all(|w| w.hit_ratio.is_none()), "this store has no cache");
}

#[test]
fn a_mix_needs_rows_and_sane_options() {
    let mut store = NullStore::new(SHAPE, 0);
    let error = outcome(&mut store, &Population::new(0), &plan("a", 1)).unwrap_err();
    assert!(error.contains("run load before"), "{error}");
    for wrong in [
        Plan { threads: 0, ..plan("load", 1) },
        Plan { threads: 257, ..plan("load", 1) },
        Plan { records: 0, ..plan("load", 1) },
        Plan { seconds: 0.0, ..plan("load", 1) },
        Plan { seconds: f64::NAN, ..plan("load", 1) },
        Plan { rate: Some(0.0), ..plan("load", 1) },
    ] {
        assert!(outcome(&mut store, &Population::new(0), &wrong).unwrap_err().starts_with("--"), "{wrong:?}");
    }
}

/// Counts what is asked of it; stalls once; can lie.
#[derive(Default)]
struct Recorder {
    inserts: Mutex<Vec<Key>>,
    reads: AtomicU64,
    stall_at: u64,
    forgets: bool,
}

impl BenchStore for Recorder {
    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(self))
    }
    fn clear(&mut self) -> Result<(), String> {
        self.inserts.lock().unwrap().clear();
        Ok(())
    }
    fn rows(&self) -> Result<u64, String> {
        Ok(0)
    }
    fn directory(&self) -> Option<&Path> {
        None
    }
}

impl Session for &Recorder {
    fn insert(&mut self, key: &Key, _row: &[u8]) -> Result<(), String> {
        self.inserts.lock().unwrap().push(*key);
        Ok(())
    }
    fn read(&mut self, key: &Key, _: Columns<'_>, sink: &mut RowSink) -> Result<(), String> {
        if self.reads.fetch_add(1, Ordering::Relaxed) + 1 == self.stall_at {
            std::thread::sleep(Duration::from_secs(1));
        }
        if !self.forgets {
            let (mut source, mut random) =
                (row::RowSource::new(SHAPE, 1), hedgerow_device::Random::from_seed(1));
            sink.begin_row(key);
            sink.values(source.row(key, &mut random));
        }
        Ok(())
    }
    fn update(&mut self, _: &Key, _: usize, _: &[u8]) -> Result<(), String> {
        Err("the disk is on fire".into())
    }
    fn scan(&mut self, _: &Key, _: usize, _: Columns<'_>, _: &mut RowSink) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn load_inserts_each_record_once() {
    let (mut store, population) = (Recorder::default(), Population::new(0));
    outcome(&mut store, &population, &plan("load", 3)).unwrap();
    let mut keys = store.inserts.lock().unwrap().clone();
    keys.sort();
    let mut expected: Vec<_> = (0..2000).map(row::key_of).collect();
    expected.sort();
    assert_eq!(keys, expected);
    assert_eq!(population.existing(3), 2000);
}

#[test]
fn a_pass_writes_each_row_once_more() {
    let population = Population::new(1234);
    for threads in [1, 3, 5] {
        let mut store = Recorder::default();
        // Neither the clock nor the number of operations asked for ends it.
        let plan = Plan { operations: 10, seconds: 1e-9, ..plan("overwrite-all", threads) };
        assert_eq!(outcome(&mut store, &population, &plan).unwrap().operations, 1234);
        let mut keys = store.inserts.lock().unwrap().clone();
        keys.sort();
        let mut expected: Vec<_> = (0..1234).map(row::key_of).collect();
        expected.sort();
        assert_eq!(keys, expected, "{threads} threads");
    }
    assert_eq!(population.existing(1), 1234, "no row is new");
}

#[test]
fn a_scan_of_keys_asks_for_no_field() {
    let directory = std::env::temp_dir().join(format!("hedgerow-bench-keys-{}", std::process::id()));
    let options = hedgerow::Options::new().durability(Durability::Process);
    let mut store = HedgerowStore::open(&directory, SHAPE, options).unwrap();
    let population = Population::new(0);
    // Each scan is checked for its rows, and for the number of fields that it was given: none.
    for name in ["load", "scan-keys", "mix-writes", "mix-reads"] {
        outcome(&mut store, &population, &plan(name, 2)).unwrap();
    }
    store.close().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn lost_rows_failed_writes_and_empty_scans_end_the_run() {
    let population = Population::new(2000);
    let mut store = Recorder { forgets: true, ..Recorder::default() };
    let error = outcome(&mut store, &population, &plan("c", 2)).unwrap_err();
    assert!(error.contains("gave 0 rows"), "{error}");
    let error = outcome(&mut Recorder::default(), &population, &plan("update", 2)).unwrap_err();
    assert_eq!(error, "the disk is on fire");
    assert!(outcome(&mut Recorder::default(), &population, &plan("scan-full", 1)).is_err());
}

#[test]
fn a_stall_is_charged_to_all_that_waited_when_there_is_a_rate() {
    let population = Population::new(2000);
    let stalled = |rate| {
        let mut store = Recorder { stall_at: 50, ..Recorder::default() };
        let plan = Plan { operations: 400, rate, ..plan("c", 1) };
        let outcome = outcome(&mut store, &population, &plan).unwrap();
        let slow = outcome.latencies.count_between(300_000_000, u64::MAX);
        (slow, outcome.elapsed)
    };
    let (closed, _) = stalled(None);
    assert!((1..=20).contains(&closed), "one operation was slow, the others did not come; {closed}");
    // At 200 a second, 200 operations fall due during the stall of a second; those of the last 300 ms wait less.
    let (open, elapsed) = stalled(Some(200.0));
    assert!(open >= 100, "{open} of about 140 operations waited over 300 ms");
    assert!(
        elapsed >= Duration::from_millis(1990),
        "400 operations at 200 a second take 2 s, not {elapsed:?}"
    );
}

#[test]
fn json_has_the_fields_promised() {
    let path = std::env::temp_dir().join(format!("hedgerow-bench-{}.json", std::process::id()));
    let mut store = NullStore::new(SHAPE, 2000);
    let outcome = outcome(&mut store, &Population::new(2000), &plan("a", 1)).unwrap();
    let report = PhaseReport::new("a", 1, &outcome, Memory::now().unwrap(), 0);
    report::write_json(&path, json!({"suite": "ycsb"}), &vec![report]).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let result = &document["results"][0];
    assert_eq!(result["phase"], "a");
    for name in [
        "threads",
        "operations",
        "seconds",
        "ops_per_s",
        "mean_us",
        "p50_us",
        "p90_us",
        "p95_us",
        "p99_us",
        "p999_us",
        "p9999_us",
        "max_us",
        "cpu_s",
        "bytes_written",
        "bytes_read",
        "disk_bytes",
        "rss_bytes",
    ] {
        assert!(result[name].is_number(), "{name}");
    }
}
