//! `hedgerow repair`: copies all that verifies of a damaged store into a new one, and lists what is lost.
//!
//! Owns the progress bar, the list and the verdict. Promises exit code 0 only if nothing is lost or doubtful. Must not know
//! bytes: `hedgerow::repair` reads and writes them.

use std::io::{self, Write};
use std::path::PathBuf;

use hedgerow::{RepairEvent, RepairReport};
use indicatif::ProgressBar;

use crate::capacity::CapacityArgs;
use crate::check::progress_bar;

/// Arguments of `hedgerow repair`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The damaged store's directory. It is not written to, and no server may have it open.
    from: PathBuf,
    #[command(flatten)]
    capacity: CapacityArgs,
    /// The directory of the new store; it must not hold one.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Repairs; `Err` if anything is lost.
pub fn run(args: Args) -> Result<(), String> {
    let bar = if args.quiet { ProgressBar::hidden() } else { progress_bar() };
    bar.set_message("rows");
    let mut out = io::stdout().lock();
    let report = hedgerow::repair_with(&args.from, args.capacity.place(), &args.to, |event| {
        report_event(&bar, &mut out, event);
    })
    .map_err(|error| error.to_string())?;
    bar.finish_and_clear();
    verdict(&report, &mut out)
}

/// One line for each thing: `damaged`, then `lost` or `doubtful` with table and key, or `lost keys` with the first and the one behind the last.
fn report_event(bar: &ProgressBar, out: &mut impl Write, event: RepairEvent<'_>) {
    // Whoever reads the list may stop reading it; the repair goes on.
    let _ = match event {
        RepairEvent::Progress(done, total) => {
            bar.set_length(total);
            bar.set_position(done);
            Ok(())
        }
        RepairEvent::Damaged(error) => writeln!(out, "damaged: {error}"),
        RepairEvent::Lost { table, key, why } => writeln!(out, "lost: {table} {}: {why}", key.escape_ascii()),
        RepairEvent::Doubtful { table, key } => writeln!(out, "doubtful: {table} {}", key.escape_ascii()),
        RepairEvent::LostKeys { table, from, to, why } => {
            let from = from.escape_ascii();
            match to {
                Some(to) => writeln!(out, "lost keys: {table} {from} to below {}: {why}", to.escape_ascii()),
                None => writeln!(out, "lost keys: {table} {from} to the last: {why}"),
            }
        }
        _ => Ok(()),
    };
}

fn verdict(report: &RepairReport, out: &mut impl Write) -> Result<(), String> {
    let RepairReport { rows, lost, doubtful, damaged, lost_ranges, lost_places, .. } = report;
    let _ = writeln!(out, "copied {rows} rows; {damaged} places are damaged");
    if *doubtful > 0 {
        let _ = writeln!(
            out,
            "{doubtful} of the rows were last written before something that nothing can be told of: they may have been \
             changed or deleted since"
        );
    }
    if *lost_ranges > 0 {
        let _ = writeln!(
            out,
            "{lost_ranges} parts of sorted tables cannot be read: rows that were there alone are lost, and nothing can tell which"
        );
    }
    if *lost_places > 0 {
        let _ = writeln!(
            out,
            "{lost_places} places of the log cannot be read: rows that had been written there alone are lost, and nothing can tell which"
        );
    }
    match report.is_complete() {
        true => {
            let _ = writeln!(out, "nothing is lost");
            Ok(())
        }
        false => {
            let others = match (lost_ranges, lost_places) {
                (0, 0) => String::new(),
                (ranges, 0) => format!(", and others are lost in {ranges} ranges of keys"),
                (0, places) => format!(", and others may be lost in {places} places of the log"),
                (ranges, places) => {
                    format!(", and others are lost in {ranges} ranges of keys and {places} places of the log")
                }
            };
            Err(format!("{lost} rows are lost, {doubtful} are doubtful{others}"))
        }
    }
}
