//! `hedgerow check`: verifies every byte of a store, or of key-value devices. Never writes.
//!
//! Owns the progress bar and the verdict. Promises exit code 0 for a sound store and 1 for any other, with one line on
//! standard error for each thing that is wrong and where it is. Must not know bytes: `hedgerow::inspect` reads them, and of devices, `check/devices.rs`, `hedgerow_kvssd`.

mod devices;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hedgerow::inspect::{CheckProgress, Report, View};
use hedgerow::{Capacity, ErrorKind};
use indicatif::{ProgressBar, ProgressStyle};

use crate::capacity::CapacityArgs;
use crate::inspect::bytes;
use crate::store_url::ExaminedPlace;

/// Arguments of `hedgerow check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store's directory; or the file of a key-value device, or all of an array, in their order: kvssd:FILE,FILE. No server may have it open.
    dir: PathBuf,
    #[command(flatten)]
    capacity: CapacityArgs,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Checks; `Err` if anything is wrong.
pub fn run(args: Args) -> Result<(), String> {
    let bar = if args.quiet { ProgressBar::hidden() } else { progress_bar() };
    match ExaminedPlace::of(&args.dir)?.device_files() {
        Err(dir) => check_store(&dir, args.capacity.place(), &bar),
        Ok(_) if args.capacity.is_given() => Err(crate::capacity::NO_SORTED_TABLES.into()),
        Ok((files, is_array)) => devices::run(&files, is_array, &bar),
    }
}

fn check_store(dir: &Path, capacity: Capacity, bar: &ProgressBar) -> Result<(), String> {
    let report = examine(dir, capacity, |progress| show(bar, progress))?;
    bar.finish_and_clear();
    for place in &report.spoiled_copies {
        println!("a crash left a spoiled copy at byte {place}; the copy beside it is good");
    }
    for name in &report.left_over {
        println!("a crash left {name} of the sorted tables: nothing names it, or the copy beside it is good");
    }
    if report.sorted_tables > 0 {
        println!("verified {} sorted tables", report.sorted_tables);
    }
    println!(
        "verified {} segments, {} records ({}), {} rows",
        report.segments,
        report.records,
        bytes(report.record_bytes),
        report.rows
    );
    report.problems.iter().for_each(|problem| eprintln!("{problem}"));
    verdict(report.problems.len())
}

/// The last line.
fn verdict(problems: usize) -> Result<(), String> {
    match problems {
        0 => {
            println!("no problem found");
            Ok(())
        }
        1 => Err("1 problem found".into()),
        more => Err(format!("{more} problems found")),
    }
}

/// The check itself. Where opening stops at the first thing that is wrong, the rest is looked for as a repair does.
pub(crate) fn examine(
    dir: &Path,
    capacity: Capacity,
    progress: impl FnMut(CheckProgress),
) -> Result<Report, String> {
    let view = match View::open_with(dir, capacity.clone()) {
        Err(error) if error.kind() == ErrorKind::Corrupted => {
            let mut report = Report::default();
            if let Ok(view) = View::open_damaged_with(dir, capacity) {
                report.problems.extend(view.damage().iter().cloned());
            }
            if !report.problems.iter().any(|problem| problem.message() == error.message()) {
                report.problems.insert(0, error);
            }
            return Ok(report);
        }
        opened => opened.map_err(|error| error.to_string())?,
    };
    view.check(progress).map_err(|error| error.to_string())
}

pub(crate) fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg:<10} [{bar:40}] {percent:>3}% {elapsed_precise}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn show(bar: &ProgressBar, progress: CheckProgress) {
    let (message, done, total) = match progress {
        CheckProgress::Log(done, total) => ("log", done, total),
        CheckProgress::Replay => ("replay", 0, 0),
        CheckProgress::Rows(done, total) => ("rows", done, total),
        CheckProgress::SortedTables(done, total) => ("tables", done, total),
    };
    bar.set_message(message);
    bar.set_length(total);
    bar.set_position(done);
}
