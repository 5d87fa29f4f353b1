//! A move of shards, from the command line.
//!
//! Owns the progress bar, the signals that end a move in between, and what is said of how it ended. Promises that a signal ends it after the step that is under way, with the array closed in order. Must not know why shards move.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hedgerow_kvssd::{ArrayWork, MoveProgress, Mover};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::kvssd_store::named;

/// A move of an array of these files.
pub(super) struct Moving<'f> {
    files: &'f [PathBuf],
    work: ArrayWork,
}

impl<'f> Moving<'f> {
    pub(super) fn new(files: &'f [PathBuf], work: ArrayWork) -> Moving<'f> {
        Moving { files, work }
    }

    /// Takes all steps. `expected` says how many pairs are on so many shards that are to be moved, about.
    ///
    /// # Errors
    /// A sentence for a person: what ended it, and how far it came.
    pub(super) fn run(
        &self,
        mut mover: Mover,
        is_quiet: bool,
        expected: impl Fn(usize) -> u64,
    ) -> Result<(), String> {
        let stop = stopper()?;
        let bar = if is_quiet { ProgressBar::hidden() } else { progress_bar() };
        let ended = self.take_steps(&mut mover, &stop, |progress| {
            show(&bar, progress, self.steps(expected(progress.shards)))
        });
        bar.finish_and_clear();
        ended?;
        let MoveProgress { shards_done, pairs_copied, pairs_deleted, .. } = mover.progress();
        let done = if self.is_rebuild() { "made second copies of" } else { "moved" };
        println!(
            "{done} {shards_done} shards: {pairs_copied} pairs were copied, and {pairs_deleted} deleted where they are no more"
        );
        Ok(())
    }

    fn is_rebuild(&self) -> bool {
        self.work == ArrayWork::Rebuild
    }

    /// Each pair is copied, and then deleted where it was; but where there was one copy.
    fn steps(&self, pairs: u64) -> u64 {
        if self.is_rebuild() { pairs } else { 2 * pairs }
    }

    fn take_steps(
        &self,
        mover: &mut Mover,
        stop: &AtomicBool,
        show: impl Fn(MoveProgress),
    ) -> Result<(), String> {
        let mut is_told = false;
        loop {
            let goes_on = mover.step().map_err(|error| {
                self.failed(mover.progress(), named(self.files, "the move failed", &error))
            })?;
            if !is_told {
                is_told = true;
                self.tell_begun(mover.progress());
            }
            if !goes_on {
                return Ok(());
            }
            if stop.load(Ordering::Acquire) {
                return Err(self.failed(mover.progress(), "stopped".into()));
            }
            show(mover.progress());
        }
    }

    /// From here on whoever opens the array knows of it.
    fn tell_begun(&self, progress: MoveProgress) {
        let shards = progress.shards;
        let what = match self.work {
            ArrayWork::Remove { device } => {
                format!("moving {shards} shards from {}", self.files[device - 1].display())
            }
            ArrayWork::Rebuild => format!("making second copies of {shards} shards"),
            _ => format!("moving {shards} shards so that each device has its share"),
        };
        let mut out = std::io::stdout();
        // Whether or not anybody reads it.
        let _ = writeln!(out, "{what}");
        let _ = out.flush();
    }

    fn failed(&self, progress: MoveProgress, why: String) -> String {
        let MoveProgress { shards_done, shards, .. } = progress;
        if self.is_rebuild() {
            return format!(
                "{why}; {shards_done} of {shards} shards have two copies again, and no pair is lost: the same command goes on with it"
            );
        }
        format!(
            "{why}; {shards_done} of {shards} shards are moved, the others are where they were, and no pair is lost: the same command goes on with it"
        )
    }
}

/// Set by a signal that ends processes.
fn stopper() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| format!("signals can not be handled: {error}"))?;
    }
    Ok(stop)
}

fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent:>3}% {elapsed_precise}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// `all` is how many pairs are to be copied or deleted, about.
fn show(bar: &ProgressBar, progress: MoveProgress, all: u64) {
    let MoveProgress { shards_done, shards, pairs_copied, pairs_deleted } = progress;
    bar.set_message(format!("{shards_done} of {shards} shards, {pairs_copied} pairs copied"));
    bar.set_length(all);
    // What was cut off before leaves pairs to be deleted that are in no estimate.
    bar.set_position((pairs_copied + pairs_deleted).min(all.saturating_sub(1)));
}
