//! Whether key-value devices are sound.
//!
//! Owns the lines about them. Promises that no byte of a file changes, and that all devices are gone through whatever is wrong with one. Must not know bytes: `hedgerow_kvssd` verifies them.

use std::path::{Path, PathBuf};

use hedgerow_kvssd::{ArrayError, ArrayPlace, DeviceCheck, check_places};
use indicatif::ProgressBar;

use super::verdict;
use crate::inspect::bytes;
use crate::inspect::devices::{open, refusal};

/// What a check of files found.
#[derive(Debug, Default)]
pub(crate) struct FilesReport {
    /// What was verified, a line each.
    pub(crate) verified: Vec<String>,
    /// What is wrong, a line each.
    pub(crate) problems: Vec<String>,
}

pub(super) fn run(files: &[PathBuf], is_array: bool, bar: &ProgressBar) -> Result<(), String> {
    let report = examine(files, is_array, |number, done, total| {
        bar.set_message(format!("device {number}"));
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    report.verified.iter().for_each(|line| println!("{line}"));
    report.problems.iter().for_each(|problem| eprintln!("{problem}"));
    verdict(report.problems.len())
}

/// The check itself: a file that is in use, or cannot be read, is a problem like others. `progress` is told the number of the device, and how many of its blocks were gone through.
pub(crate) fn examine(
    files: &[PathBuf],
    is_array: bool,
    mut progress: impl FnMut(usize, u64, u64),
) -> FilesReport {
    let (mut report, mut places) = (FilesReport::default(), Vec::new());
    for (number, file) in (1..).zip(files) {
        let mut view = match open(file) {
            Ok(view) => view,
            Err(error) => {
                report.problems.push(refusal(file, &error));
                continue;
            }
        };
        let check = view.check(|done, total| progress(number, done, total));
        match check {
            Ok(check) => report.tell(file, check),
            Err(error) => report.problems.push(refusal(file, &error)),
        }
        match ArrayPlace::of(number, view.device()) {
            Ok(place) => places.push(place),
            Err(ArrayError::Foreign { .. }) if !is_array => {}
            Err(error) => report.problems.push(format!("{}: {error}", file.display())),
        }
    }
    if is_array && places.len() == files.len() {
        let wrong = check_places(&places);
        report.problems.extend(wrong.iter().map(|error| format!("as an array: {error}")));
    }
    report
}

impl FilesReport {
    fn tell(&mut self, file: &Path, check: DeviceCheck) {
        let file = file.display();
        for place in check.older_words {
            let line =
                format!("{file}: a crash left an older word of a block at byte {place}; its copy is good");
            self.verified.push(line);
        }
        self.verified.push(format!(
            "{file}: verified {} blocks, {} records ({}), {} pairs",
            check.blocks,
            check.records,
            bytes(check.record_bytes),
            check.pairs
        ));
        self.problems.extend(check.problems.iter().map(|problem| format!("{file}: {problem}")));
    }
}

#[cfg(test)]
mod tests;
