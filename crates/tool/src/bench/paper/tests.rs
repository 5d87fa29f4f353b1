//! What every suite's report must be, whatever is in it, and what becomes of failures.

use std::path::{Path, PathBuf};

use hedgerow::Durability;
use serde_json::{Value, json};

use super::rig::{Layout, SHAPE};
use super::*;

/// A new directory of a test.
pub(in crate::bench) fn unique_directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("hedgerow-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The elements of a document in their order; fails where they are not nested properly or an entity is none.
pub(in crate::bench) fn elements(document: &str) -> Vec<String> {
    let body = document.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let (mut open, mut seen, mut rest) = (Vec::<String>::new(), Vec::new(), body);
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at]);
        let end = at + rest[at..].find('>').unwrap_or_else(|| panic!("unclosed tag: {:.60}", &rest[at..]));
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed in the wrong order");
            continue;
        }
        let name: String = tag.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        assert!(!name.is_empty(), "no tag: {tag}");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes: {tag}");
        seen.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "left open: {open:?}");
    seen
}

fn check_text(text: &str) {
    assert!(!text.contains('>'), "a stray > in {text:.80}");
    for entity in text.split('&').skip(1) {
        let name = entity.split(';').next().unwrap();
        assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "the entity {name}");
    }
}

/// Checks a report in both its forms, and counts its charts.
pub(in crate::bench) fn check_results(document: &Value, page: &str, count: usize) -> usize {
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), count);
    let settings = &document["settings"];
    for name in ["machine", "place", "capacity", "version", "durability"] {
        assert!(settings[name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    assert!(settings["emulation"].as_str().unwrap().contains("305 ns"));
    let charts: usize = results.iter().map(check_result).sum();
    let seen = elements(page);
    assert_eq!(seen.iter().filter(|name| *name == "svg").count(), charts);
    assert!(!seen.iter().any(|name| ["script", "link", "img", "iframe"].contains(&name.as_str())));
    assert!(
        !page.contains("http") && !page.contains("url(") && !page.contains("NaN"),
        "nothing from outside"
    );
    charts
}

fn check_result(result: &Value) -> usize {
    let name = result["experiment"].as_str().unwrap();
    assert_eq!(result["failures"], json!([]), "{name}");
    assert!(["file", "emulated"].contains(&result["medium"].as_str().unwrap()), "{name}");
    let phases = result["phases"].as_array().unwrap();
    assert!(!phases.is_empty(), "{name}");
    phases.iter().for_each(|phase| check_phase(name, phase));
    for factor in result["factors"].as_array().unwrap() {
        let [here, least, most] = ["here", "least", "most"].map(|field| factor[field].as_f64());
        assert!(
            here.is_some_and(|here| here.is_finite()) && least <= here && here <= most,
            "{name}: {factor}"
        );
    }
    assert!(!result["factors"].as_array().unwrap().is_empty(), "{name}");
    let figures = result["figures"].as_array().unwrap();
    figures.iter().map(|figure| check_figure(name, figure)).sum()
}

fn check_phase(name: &str, phase: &Value) {
    assert!(
        phase["operations"].as_u64().unwrap() > 0 && phase["ops_per_s"].as_f64().unwrap() > 0.0,
        "{name}"
    );
    for field in ["log_bytes", "below_log_bytes", "bytes_written", "bytes_read", "disk_bytes", "rss_bytes"] {
        assert!(phase[field].is_u64(), "{name}: {field}");
    }
    for field in ["mean_us", "cpu_s", "settle_s", "neighbours_cpus"] {
        assert!(phase[field].as_f64().is_some_and(|number| number >= 0.0), "{name}: {field}");
    }
    assert!(phase["variant"].is_string() && phase["round"].as_u64().unwrap() > 0, "{name}");
    let percentiles = ["p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "p9999_us", "max_us"];
    let percentiles = percentiles.map(|field| phase[field].as_f64().unwrap());
    assert!(percentiles.is_sorted(), "{name}: {percentiles:?}");
}

fn check_figure(name: &str, figure: &Value) -> usize {
    assert!(figure["see"].as_str().unwrap().ends_with('.') && figure["settings"].is_string(), "{name}");
    let charts = figure["charts"].as_array().unwrap();
    for chart in charts {
        let series = chart["series"].as_array().unwrap();
        assert!(!series.is_empty(), "{name}: {}", chart["title"]);
        for one in series {
            let points = one["points"].as_array().unwrap();
            let shown = format!("{name}: {}: {}", chart["title"], one["name"]);
            assert!(!points.is_empty() && points.iter().all(|point| point["y"].is_f64()), "{shown}");
        }
    }
    charts.len()
}

/// Loads, and fails thereafter.
const FAILS_LATE: Experiment = Experiment {
    name: "late",
    title: "Fails late",
    paper: "none",
    run: |rig| {
        let mut subject = rig.open(Layout::Rows, SHAPE, rig.options()?)?;
        subject.load(&mut Finding::default())?;
        Err("the second phase".into())
    },
};

/// Loads, and is whole.
const WORKS: Experiment = Experiment {
    name: "works",
    run: |rig| {
        let mut finding = Finding::default();
        let mut subject = rig.open(Layout::Rows, SHAPE, rig.options()?)?;
        subject.call(rig.in_turn(["a", "b"])[0]);
        subject.load(&mut finding)?;
        subject.remove()?;
        Ok(finding)
    },
    ..FAILS_LATE
};

const SUITE: PaperSuite = PaperSuite {
    name: "made-up",
    title: "Made up",
    caution: "",
    threads: &[1],
    experiments: &[FAILS_LATE, Experiment { name: "blocked", ..WORKS }, WORKS],
};

fn args(directory: &Path) -> PaperArgs {
    PaperArgs {
        store: StoreUrl::Tiered(Medium::File, directory.join("stores")),
        // The same place by another name.
        capacity: Some(directory.join("stores/../stores")),
        media: vec![Medium::File],
        experiments: vec![],
        records: 100,
        seconds: 0.01,
        rounds: 2,
        threads: vec![],
        engine: EngineArgs { durability: Durability::Process, set: vec![] },
        seed: 7,
        html: Some(directory.join("page.html")),
        json: Some(directory.join("figures.json")),
    }
}

#[test]
fn a_failure_is_that_of_its_experiment_and_keeps_what_was_measured() {
    let directory = unique_directory("paper-failures");
    let taken = directory.join(format!("stores/made-up-{}-file-blocked", std::process::id()));
    std::fs::create_dir_all(&taken).unwrap();
    let failure = run(&SUITE, args(&directory)).unwrap_err();
    assert_eq!(failure, "late on file: the second phase");
    let text = std::fs::read_to_string(directory.join("figures.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let found = |at: usize| {
        let result = &document["results"][at];
        (result["failures"].as_array().unwrap().len(), result["phases"].as_array().unwrap().len())
    };
    assert_eq!([found(0), found(1), found(2)], [(2, 2), (2, 0), (0, 2)], "{text}");
    let blocked = document["results"][1]["failures"][0].as_str().unwrap();
    assert!(blocked.starts_with("making ") && blocked.contains("blocked"), "{blocked}");
    let first = |round: usize| &document["results"][2]["phases"][round]["variant"];
    assert_eq!((first(0), first(1)), (&json!("a"), &json!("b")), "turns go with the rounds");
    elements(&std::fs::read_to_string(directory.join("page.html")).unwrap());
    let left: Vec<_> =
        std::fs::read_dir(directory.join("stores")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [taken], "all but what was there before is removed");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn reports_that_cannot_be_written_are_told_before_anything_is_measured() {
    let directory = unique_directory("paper-reports");
    let nowhere = |name: &str| Some(directory.join("nowhere").join(name));
    let wrong = [
        PaperArgs { json: nowhere("figures.json"), ..args(&directory) },
        PaperArgs { html: nowhere("page.html"), ..args(&directory) },
    ];
    for wrong in wrong {
        let failure = run(&SUITE, wrong).unwrap_err();
        assert!(failure.starts_with("writing ") && failure.contains("nowhere"), "{failure}");
        assert!(!directory.join("stores").exists(), "nothing was measured");
    }
    std::fs::write(directory.join("figures.json"), "of yesterday").unwrap();
    check_writable(&directory.join("figures.json")).unwrap();
    assert_eq!(std::fs::read(directory.join("figures.json")).unwrap(), b"of yesterday");
    // One that has become a directory since.
    let lost = PaperArgs { json: Some(directory.clone()), ..args(&directory) };
    let failure = write_reports(&SUITE, &lost, lost.to_json(&SUITE, &directory), &[]).unwrap_err();
    assert!(failure.starts_with("writing "), "{failure}");
    elements(&std::fs::read_to_string(directory.join("page.html")).unwrap());
    std::fs::remove_dir_all(&directory).unwrap();
}
