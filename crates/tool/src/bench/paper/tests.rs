//! What every suite's report must be, whatever is in it.

use std::path::PathBuf;

use serde_json::{Value, json};

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
