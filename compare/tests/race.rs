//! The program as it is called.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::PathBuf;
use std::process::{Command, Output};

fn compare(home: &PathBuf, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_hedgerow-compare");
    let common =
        ["--records", "2000", "--seconds", "0.2", "--peers", "flat", "--mappings", "consolidated", "--dir"];
    Command::new(program).args(common).arg(home).args(arguments).output().unwrap()
}

#[test]
fn rounds_and_skews_are_reported_with_their_range() {
    let home = std::env::temp_dir().join(format!("hedgerow-compare-race-{}", std::process::id()));
    std::fs::create_dir_all(&home).unwrap();
    let json = home.join("figures.json");
    let path = json.to_str().unwrap().to_owned();
    let output =
        compare(&home, &["--phases", "load,c,read-full", "--skews", "ycsb,records", "--json", &path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("Memory is not bounded.") && text.contains("Medians of 3 rounds"), "{text}");
    let document: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let results = document["results"].as_array().unwrap();
    let phases: Vec<_> = results.iter().map(|result| result["phase"].as_str().unwrap()).collect();
    for (phase, engines) in [("load", 3), ("c", 3), ("c-records", 3), ("read-full", 3)] {
        assert_eq!(phases.iter().filter(|&&name| name == phase).count(), engines, "{phases:?}");
    }
    assert_eq!(phases.len(), 12, "what is not zipfian has one skew");
    for result in results {
        assert_eq!(result["runs"], 3, "{result}");
        let [least, median, most] =
            ["least", "median", "most"].map(|name| result["rate"][name].as_f64().unwrap());
        assert!(0.0 < least && least <= median && median <= most, "{result}");
    }
    assert_eq!(document["settings"]["memory_bound"], "none");
    std::fs::remove_file(&json).unwrap();
    assert_eq!(std::fs::read_dir(&home).map_or(0, Iterator::count), 0, "stores are removed");
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_bound_too_small_is_refused() {
    let home = std::env::temp_dir().join(format!("hedgerow-compare-small-{}", std::process::id()));
    let output = compare(&home, &["--memory-max", "1000"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("--memory-max must be at least"), "{said}");
}
