//! The whole of `bench focus` at a tiny size.

use std::time::Duration;

use hedgerow::Durability;

use super::*;

fn args(directory: &Path, media: Vec<Medium>) -> Args {
    Args {
        store: StoreUrl::Tiered(Medium::File, directory.join("stores")),
        media,
        experiments: vec![],
        records: 3000,
        seconds: 0.05,
        rounds: 1,
        threads: vec![1, 2],
        engine: EngineArgs { durability: Durability::Process, set: vec![] },
        seed: 7,
        html: directory.join("focus.html"),
        json: directory.join("focus.json"),
    }
}

/// The elements of a document in their order; fails where they are not nested properly or an entity is none.
fn elements(document: &str) -> Vec<String> {
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

#[test]
fn all_experiments_run_and_are_told() {
    let directory = std::env::temp_dir().join(format!("hedgerow-focus-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let args = args(&directory, vec![Medium::File, Medium::Emulated]);
    run(args.clone()).unwrap();
    let page = std::fs::read_to_string(&args.html).unwrap();
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&args.json).unwrap()).unwrap();
    assert_eq!(std::fs::read_dir(directory.join("stores")).unwrap().count(), 0, "stores are removed");
    std::fs::remove_dir_all(&directory).unwrap();

    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * EXPERIMENTS.len());
    assert!(document["settings"]["emulation"].as_str().unwrap().contains("305 ns"));
    let mut charts = 0;
    for result in results {
        let name = result["experiment"].as_str().unwrap();
        assert_eq!(result["failures"], json!([]), "{name}");
        for phase in result["phases"].as_array().unwrap() {
            assert!(phase["operations"].as_u64().unwrap() > 0 && phase["ops_per_s"].as_f64().unwrap() > 0.0);
            assert!(phase["log_bytes"].is_u64() && phase["variant"].is_string(), "{name}");
        }
        for factor in result["factors"].as_array().unwrap() {
            assert!(factor["here"].as_f64().is_some_and(|f| f.is_finite()), "{name}: {factor}");
        }
        assert!(!result["factors"].as_array().unwrap().is_empty(), "{name}");
        for figure in result["figures"].as_array().unwrap() {
            assert!(figure["see"].as_str().unwrap().ends_with('.') && figure["settings"].is_string());
            for chart in figure["charts"].as_array().unwrap() {
                charts += 1;
                let series = chart["series"].as_array().unwrap();
                assert!(!series.is_empty(), "{name}: {}", chart["title"]);
                for one in series {
                    let points = one["points"].as_array().unwrap();
                    assert!(!points.is_empty(), "{name}: {}: {}", chart["title"], one["name"]);
                    assert!(
                        points.iter().all(|p| p["y"].is_f64()),
                        "{name}: {}: {}",
                        chart["title"],
                        one["name"]
                    );
                }
            }
        }
    }
    let seen = elements(&page);
    assert_eq!(seen.iter().filter(|name| *name == "svg").count(), charts);
    assert_eq!(charts, 2 * (7 + 4 + 4 + 3 + 2 + 3 + 1 + 3 + 5 + 5 + 4));
    assert!(!seen.iter().any(|name| ["script", "link", "img", "iframe"].contains(&name.as_str())));
    assert!(
        !page.contains("http") && !page.contains("url(") && !page.contains("NaN"),
        "nothing from outside"
    );
}

#[test]
fn a_failure_is_told_and_fails_the_command() {
    let directory = std::env::temp_dir().join(format!("hedgerow-focus-failed-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let bounded = ["fast_tier_bytes_max=8388608", "capacity=none"].map(|set| set.parse().unwrap());
    let experiments = vec!["hotspot".into()];
    let engine = EngineArgs { durability: Durability::Process, set: bounded.to_vec() };
    let args = Args { engine, records: 30_000, experiments, ..args(&directory, vec![Medium::File]) };
    let failure = run(args.clone()).unwrap_err();
    let page = std::fs::read_to_string(&args.html).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(failure.starts_with("hotspot on file: "), "{failure}");
    assert!(page.contains("<b>Failed:</b>"));
    elements(&page);
}

#[test]
fn experiments_are_chosen_by_name() {
    assert_eq!(parse_experiment("hotspot").unwrap(), "hotspot");
    assert!(parse_experiment("swum").unwrap_err().contains("overwrite"));
    let mut names: Vec<_> = EXPERIMENTS.iter().map(|experiment| experiment.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), EXPERIMENTS.len());
}

#[test]
fn stores_and_lists_that_cannot_be_are_refused() {
    let directory = std::env::temp_dir();
    let wrong = Args { store: StoreUrl::Null, ..args(&directory, vec![Medium::File]) };
    assert!(run(wrong).unwrap_err().contains("tiered:DIRECTORY"));
    assert!(run(args(&directory, vec![])).unwrap_err().contains("--media"));
    let never = Args { rounds: 0, ..args(&directory, vec![Medium::File]) };
    assert!(run(never).unwrap_err().contains("--rounds"));
    let interval = Durability::Interval(Duration::from_millis(5));
    let engine = EngineArgs { durability: interval, set: vec![] };
    let settings = Args { engine, ..args(&directory, vec![]) };
    assert!(settings.to_json()["durability"].as_str().unwrap().contains("interval"));
}
