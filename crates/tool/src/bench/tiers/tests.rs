//! The whole of `bench tiers` at a tiny size.

use std::path::Path;

use hedgerow::Durability;
use serde_json::Value;

use super::*;
use crate::bench::paper::tests::{check_results, unique_directory};
use crate::bench::setting::EngineArgs;
use crate::store_url::{Medium, StoreUrl};

/// So many that a fast tier of the least size does not hold them.
const RECORDS: u64 = 4500;
const SEGMENT_BYTES: u64 = 512 << 10;

fn args(directory: &Path) -> TiersArgs {
    let paper = PaperArgs {
        store: StoreUrl::Tiered(Medium::File, directory.join("stores")),
        capacity: None,
        media: vec![Medium::File],
        experiments: vec![],
        records: RECORDS,
        seconds: 0.02,
        rounds: 1,
        threads: vec![],
        engine: EngineArgs { durability: Durability::Process, set: vec![] },
        seed: 7,
        html: Some(directory.join("tiers.html")),
        json: Some(directory.join("tiers.json")),
    };
    TiersArgs { paper, quick: true }
}

/// Runs it and removes what it wrote: the figures and the page.
fn report_of(args: TiersArgs, directory: &Path) -> (Value, String) {
    run(args).unwrap();
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let report = (serde_json::from_str(&read("tiers.json")).unwrap(), read("tiers.html"));
    for place in ["stores", "capacity"].map(|name| directory.join(name)) {
        let left = std::fs::read_dir(&place).map_or(0, |entries| entries.count());
        assert_eq!(left, 0, "stores in {} are removed", place.display());
    }
    std::fs::remove_dir_all(directory).unwrap();
    report
}

fn phases(document: &Value) -> impl Iterator<Item = &Value> {
    document["results"].as_array().unwrap().iter().flat_map(|result| result["phases"].as_array().unwrap())
}

fn result<'a>(document: &'a Value, experiment: &str) -> &'a Value {
    let results = document["results"].as_array().unwrap();
    results.iter().find(|result| result["experiment"] == experiment).unwrap()
}

#[test]
fn all_experiments_run_and_are_told() {
    let directory = unique_directory("tiers");
    let mut args = args(&directory);
    args.paper.capacity = Some(directory.join("capacity"));
    let (document, page) = report_of(args, &directory);
    let charts = check_results(&document, &page, SUITE.experiments.len());
    assert_eq!(charts, 2 + 3 + 2 + 6 + 1 + 1 + 1 + 3 + 1 + 1 + 3);

    // What was loaded went through the log, which is counted by the segment, and of a bounded tier some of it below.
    let load = phases(&document).find(|phase| phase["variant"] == "20 %, 4 KiB").unwrap();
    let user_bytes = load["operations"].as_u64().unwrap() * 4096;
    assert!(load["log_bytes"].as_u64().unwrap() + (1 << 20) > user_bytes && user_bytes > 4 << 20, "{load}");
    assert!(load["disk_bytes"].as_u64().unwrap() > 3 << 20, "{load}");
    let moved = |variant: &str| -> u64 {
        let of_variant = phases(&document).filter(|phase| phase["variant"] == variant);
        of_variant.map(|phase| phase["below_log_bytes"].as_u64().unwrap()).sum()
    };
    assert_eq!(moved("all"), 0, "what is not bounded moves nothing");
    assert!(moved("20 %") > 0 && moved("20 %, 4 KiB") > 0, "what is bounded moves rows");

    let sealed = |variant: &str| -> u64 {
        let of_variant = phases(&document).filter(|phase| phase["variant"] == variant);
        of_variant.map(|phase| phase["keys_sealed"].as_u64().unwrap()).sum()
    };
    // Of a short index so many keys leave at once that one of these is sealed whoever gets a processor first: each has phases that write.
    let short = ["short index", "coupled", "knobs fixed"];
    assert!(short.iter().any(|variant| sealed(variant) > 0), "keys are sealed");
    // What the least index does not hold is sealed or moves, and which comes first is up to the machine. Rows of 4 KiB are so few that it holds
    // them, and those of 64 B may be sealed after the last look.
    let fill = "20 %, short index, 1 KiB";
    assert!(sealed(fill) > 0 || moved(fill) > 0, "keys leave the index");
    assert_eq!((sealed("no sealing"), sealed("as it is"), sealed("20 %, 1 KiB")), (0, 0, 0));

    let passes = result(&document, "passes")["phases"].as_array().unwrap();
    let over_all = passes.iter().filter(|phase| phase["phase"] == "overwrite-all");
    assert_eq!(over_all.map(|phase| phase["operations"].as_u64().unwrap()).collect::<Vec<_>>(), [RECORDS; 5]);
    let written = |factor: &&Value| factor["what"].as_str().unwrap().starts_with("bytes written a user byte");
    for (experiment, bounds) in [("passes", &[0.9][..]), ("course", &[0.5, 0.9])] {
        let factors = result(&document, experiment)["factors"].as_array().unwrap();
        let written: Vec<f64> = factors.iter().filter(written).map(|f| f["here"].as_f64().unwrap()).collect();
        let enough = written.iter().zip(bounds).all(|(written, bound)| written > bound);
        // A large segment, of which one was begun before, is a part of so few rows.
        assert!(written.len() == bounds.len() && enough, "{experiment}: {written:?}");
    }
    let tail = result(&document, "tail")["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(tail.len(), 2 * 3 + 7, "three operations on two stores, and the paper's seven stores");
    assert!(tail.iter().all(|row| row.as_array().unwrap().len() == 9));
    let granules = result(&document, "granule");
    assert_eq!(granules["tables"][0]["rows"].as_array().unwrap().len(), 2 * 2 * 3);
    assert_eq!(granules["factors"].as_array().unwrap().len(), 2 * 2 * 5);
    check_ablation(result(&document, "ablation"));
    assert!(page.contains("class=\"spread\""));
}

/// By turns, with a range.
fn check_ablation(ablation: &Value) {
    let factors = ablation["factors"].as_array().unwrap();
    assert!(factors.iter().all(|factor| factor["rounds"] == 2), "{factors:?}");
    assert!(factors.iter().any(|factor| factor["least"] != factor["most"]));
    let phases = ablation["phases"].as_array().unwrap();
    let rounds: Vec<u64> = phases.iter().map(|phase| phase["round"].as_u64().unwrap()).collect();
    assert!(rounds.is_sorted() && rounds[0] == 1 && rounds.last() == Some(&2), "{rounds:?}");
    let first = |round: u64| &phases.iter().find(|phase| phase["round"] == round).unwrap()["variant"];
    assert_ne!(first(1), first(2), "another one begins");
}

#[test]
fn a_course_says_what_was_used_in_each_slot() {
    let directory = unique_directory("tiers-course");
    let mut args = args(&directory);
    args.paper.experiments = vec!["course".into()];
    args.paper.records = 50_000;
    // What is counted by the segment is then known closely.
    args.paper.engine.set = vec![format!("segment_bytes={SEGMENT_BYTES}").parse().unwrap()];
    args.quick = false;
    let (document, _) = report_of(args, &directory);
    for load in phases(&document).filter(|phase| phase["phase"] == "load") {
        let windows = load["windows"].as_array().unwrap();
        assert!(windows.len() > 1, "{windows:?}");
        let used: Vec<&Value> = windows.iter().filter(|window| window["used"].is_object()).collect();
        assert!(!used.is_empty());
        for field in ["processors", "written_per_s", "read_per_s", "log_per_s", "below_log_per_s"] {
            assert!(used.iter().all(|window| window["used"][field].as_f64().unwrap() >= 0.0), "{field}");
        }
        let most = |field: &str| used.iter().map(|w| w["used"][field].as_f64().unwrap()).fold(0.0, f64::max);
        assert!(most("processors") > 0.0 && most("log_per_s") > 0.0, "{windows:?}");
        let seconds = |window: &Value| window["length_s"].as_f64().unwrap();
        let rate = |window: &Value| window["used"]["log_per_s"].as_f64().unwrap_or(0.0);
        let sum: f64 = windows.iter().map(|window| rate(window) * seconds(window)).sum();
        let total = load["log_bytes"].as_f64().unwrap();
        // What no window holds may have been as much as in the busiest one.
        let missing = load["seconds"].as_f64().unwrap() - windows.iter().map(seconds).sum::<f64>();
        let segments = 2.0 * SEGMENT_BYTES as f64;
        // And a machine that is busy with something else looks late.
        let least = total * 0.8 - segments - missing.max(0.0) * most("log_per_s");
        assert!((least..=total + segments).contains(&sum), "{sum} of {total} bytes of log: {windows:?}");
    }
}

#[test]
fn quick_takes_no_more_than_it_says() {
    let directory = unique_directory("tiers-quick");
    let mut args = args(&directory);
    args.paper.experiments = vec!["mix".into()];
    (args.paper.records, args.paper.seconds) = (u64::MAX, 1e6);
    let (document, _) = report_of(args, &directory);
    assert_eq!(document["settings"]["records"], QUICK_RECORDS);
    assert_eq!(document["settings"]["seconds"], QUICK_SECONDS);
}
