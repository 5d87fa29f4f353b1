//! The whole of `bench focus` at a tiny size.

use std::path::Path;
use std::time::Duration;

use hedgerow::Durability;

use super::*;
use crate::bench::paper::tests::{check_results, elements, unique_directory};
use crate::bench::setting::EngineArgs;
use crate::store_url::{Medium, StoreUrl};

fn args(directory: &Path, media: Vec<Medium>) -> PaperArgs {
    PaperArgs {
        store: StoreUrl::Tiered(Medium::File, directory.join("stores")),
        capacity: None,
        media,
        experiments: vec![],
        records: 3000,
        seconds: 0.05,
        rounds: 1,
        threads: vec![],
        engine: EngineArgs { durability: Durability::Process, set: vec![] },
        seed: 7,
        html: Some(directory.join("focus.html")),
        json: Some(directory.join("focus.json")),
    }
}

#[test]
fn all_experiments_run_and_are_told() {
    let directory = unique_directory("focus");
    let args = args(&directory, vec![Medium::File, Medium::Emulated]);
    run(args.clone()).unwrap();
    let page = std::fs::read_to_string(directory.join("focus.html")).unwrap();
    let document =
        serde_json::from_str(&std::fs::read_to_string(directory.join("focus.json")).unwrap()).unwrap();
    assert_eq!(std::fs::read_dir(directory.join("stores")).unwrap().count(), 0, "stores are removed");
    std::fs::remove_dir_all(&directory).unwrap();
    let charts = check_results(&document, &page, 2 * SUITE.experiments.len());
    assert_eq!(charts, 2 * (7 + 4 + 4 + 3 + 2 + 3 + 1 + 3 + 5 + 5 + 4));
}

#[test]
fn a_failure_is_told_and_fails_the_command() {
    let directory = unique_directory("focus-failed");
    let bounded = ["fast_tier_bytes_max=8388608", "capacity=none"].map(|set| set.parse().unwrap());
    let experiments = vec!["hotspot".into()];
    let engine = EngineArgs { durability: Durability::Process, set: bounded.to_vec() };
    let args = PaperArgs { engine, records: 30_000, experiments, ..args(&directory, vec![Medium::File]) };
    let failure = run(args).unwrap_err();
    let page = std::fs::read_to_string(directory.join("focus.html")).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(failure.starts_with("hotspot on file: "), "{failure}");
    assert!(page.contains("<b>Failed:</b>"));
    elements(&page);
}

#[test]
fn experiments_are_chosen_by_name() {
    assert_eq!(SUITE.find("hotspot").unwrap().name, "hotspot");
    let wrong =
        PaperArgs { experiments: vec!["swum".into()], ..args(&std::env::temp_dir(), vec![Medium::File]) };
    assert!(run(wrong).unwrap_err().contains("overwrite"));
    let mut names: Vec<_> = SUITE.experiments.iter().map(|experiment| experiment.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), SUITE.experiments.len());
}

#[test]
fn stores_and_lists_that_cannot_be_are_refused() {
    let directory = std::env::temp_dir();
    let wrong = PaperArgs { store: StoreUrl::Null, ..args(&directory, vec![Medium::File]) };
    assert!(run(wrong).unwrap_err().contains("tiered:DIRECTORY"));
    assert!(run(args(&directory, vec![])).unwrap_err().contains("--media"));
    let never = PaperArgs { rounds: 0, ..args(&directory, vec![Medium::File]) };
    assert!(run(never).unwrap_err().contains("--rounds"));
    let interval = Durability::Interval(Duration::from_millis(5));
    let engine = EngineArgs { durability: interval, set: vec![] };
    let settings = PaperArgs { engine, ..args(&directory, vec![]) }.to_json(&SUITE, &directory);
    assert!(settings["durability"].as_str().unwrap().contains("interval"));
}
