//! Chores. `cargo xtask check` runs what CI runs; `cargo xtask tidy` only the house rules; `cargo xtask STEP...` the named steps;
//! `cargo xtask soak` the tests' loops at full length.
//!
//! Owns the list of steps ([`steps`]), which `.ci/run` calls too, so that there is one list. Promises a time for each step
//! and a summary as the last line. Must not know how the product works.
#![allow(clippy::disallowed_methods, reason = "chores touch files and clocks")]

mod imports;
mod named_tests;
mod refused;
mod steps;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use steps::{SOAK, STEPS, Step};

fn main() -> ExitCode {
    let root = root();
    if let Err(error) = std::env::set_current_dir(&root) {
        eprintln!("cannot go to {}: {error}", root.display());
        return ExitCode::FAILURE;
    }
    let names: Vec<String> = std::env::args().skip(1).collect();
    let chosen: Option<Vec<&Step>> = match names.first().map(String::as_str) {
        Some("check") if names.len() == 1 => Some(STEPS.iter().collect()),
        Some("soak") if names.len() == 1 => Some(vec![&SOAK]),
        Some(_) => names.iter().map(|name| STEPS.iter().find(|step| step.name == *name)).collect(),
        None => None,
    };
    match chosen {
        Some(steps) => run(&steps, &root),
        None => usage(),
    }
}

/// The workspace's root: the parent of this package's.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

fn usage() -> ExitCode {
    eprintln!("cargo xtask check        all of these steps, as CI runs them");
    eprintln!("cargo xtask STEP...      some of them:");
    for step in STEPS {
        eprintln!("  {:<10} {}", step.name, step.what);
    }
    eprintln!("cargo xtask soak         {}", SOAK.what);
    ExitCode::from(2)
}

/// What became of a step.
enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

fn run(steps: &[&Step], root: &Path) -> ExitCode {
    let began = Instant::now();
    let mut lines = Vec::new();
    let (mut failed, mut skipped) = (Vec::new(), 0);
    for step in steps {
        println!("== {}: {}", step.name, step.what);
        let step_began = Instant::now();
        let verdict = match (step.run)(root) {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Skipped(why) => {
                skipped += 1;
                format!("skipped: {why}")
            }
            Outcome::Failed(why) => {
                failed.push(step.name);
                format!("FAILED: {why}")
            }
        };
        let line = format!("{:<10} {:>7} {verdict}", step.name, seconds(step_began.elapsed()));
        println!("-- {line}");
        lines.push(line);
    }
    println!("\n{}", lines.join("\n"));
    let passed = steps.len() - failed.len() - skipped;
    let summary =
        format!("{passed} passed, {} failed, {skipped} skipped, {}", failed.len(), seconds(began.elapsed()));
    match failed.is_empty() {
        true => println!("ok: {summary}"),
        false => println!("failed ({}): {summary}", failed.join(", ")),
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}
