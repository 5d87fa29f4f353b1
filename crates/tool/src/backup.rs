//! `hedgerow backup` and `hedgerow restore`: a verified copy of a store that no server has open, and a store from such a copy.
//!
//! Owns the progress bar and the sentences. Promises exit code 0 only when the copy is whole, verified and on the disk. A store that a
//! server has open is backed up by the server: `HR.BACKUP`. Must not know bytes: `hedgerow::backup` copies them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hedgerow::backup::{Progress, Summary};
use hedgerow::{Db, ErrorKind, Options};
use indicatif::{ProgressBar, ProgressStyle};

use crate::capacity::CapacityArgs;
use crate::inspect::bytes;

/// Arguments of `hedgerow backup`.
#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// The store's directory. No server may have it open: a server makes backups by HR.BACKUP.
    dir: PathBuf,
    #[command(flatten)]
    capacity: CapacityArgs,
    /// The backup's directory: new, or of an earlier backup of this store, which is then brought up to date.
    #[arg(long)]
    to: PathBuf,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Arguments of `hedgerow restore`.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// The backup's directory.
    from: PathBuf,
    #[command(flatten)]
    capacity: CapacityArgs,
    /// The directory of the new store: missing or empty, or of a restore that was interrupted.
    #[arg(long)]
    to: PathBuf,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Makes a backup of a closed store.
pub fn run_backup(args: BackupArgs) -> Result<(), String> {
    let capacity = args.capacity.place();
    let options = Options { create: false, background: false, capacity, ..Options::default() };
    let db = Db::open_with(&args.dir, options).map_err(|error| match error.kind() {
        ErrorKind::Locked => {
            format!("{error}; a server backs up the store it serves: HR.BACKUP START (needs --backup-dir)")
        }
        _ => error.to_string(),
    })?;
    let (bar, start) = (progress_bar(args.quiet), Instant::now());
    let outcome = db.backup_with(&args.to, |progress| {
        show(&bar, progress);
        Ok(())
    });
    bar.finish_and_clear();
    let summary = outcome.map_err(|error| error.to_string())?;
    db.close().map_err(|error| format!("the backup is made, but closing the store failed: {error}"))?;
    report("backed up", &summary, start.elapsed());
    Ok(())
}

/// Makes a store of a backup.
pub fn run_restore(args: RestoreArgs) -> Result<(), String> {
    let (bar, start) = (progress_bar(args.quiet), Instant::now());
    let outcome = hedgerow::backup::restore_with(&args.from, args.capacity.place(), &args.to, |progress| {
        show(&bar, progress);
        Ok(())
    });
    bar.finish_and_clear();
    report("restored", &outcome.map_err(|error| error.to_string())?, start.elapsed());
    Ok(())
}

fn report(what: &str, summary: &Summary, took: Duration) {
    println!(
        "{what} {} records in {} segments, up to sequence {}: {} copied, {} segments were there, {:.1} s",
        summary.records,
        summary.segments,
        summary.sequence,
        bytes(summary.bytes_copied),
        summary.segments_kept,
        took.as_secs_f64()
    );
    if let Some(line) = sorted_tables(summary) {
        println!("{line}");
    }
}

/// What was done about sorted tables, of a store that has some.
fn sorted_tables(summary: &Summary) -> Option<String> {
    let Summary { sorted_tables: all, sorted_tables_linked: linked, sorted_tables_kept: kept, .. } = *summary;
    (all > 0).then(|| {
        format!(
            "sorted tables: linked {linked} files ({}), copied {}, {kept} were there",
            bytes(summary.bytes_linked),
            all - linked - kept
        )
    })
}

fn progress_bar(quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    let style =
        ProgressStyle::with_template("{msg:<10} [{bar:40}] {percent:>3}% {bytes}/{total_bytes} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn show(bar: &ProgressBar, progress: Progress) {
    let (message, done, total) = match progress {
        Progress::Copying(done, total) => ("copying", done, total),
        Progress::Verifying(done, total) => ("verifying", done, total),
    };
    bar.set_message(message);
    bar.set_length(total);
    bar.set_position(done);
}
