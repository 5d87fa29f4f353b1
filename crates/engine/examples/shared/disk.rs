//! What the machine and its disk did, and what `fio` gets of the same files: what no engine can beat.

use std::path::{Path, PathBuf};
use std::process::Command;

/// User and system time of this process so far, in seconds.
pub(super) fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

/// Reads that the disk has done, for whomever.
pub(super) fn disk_reads(disk: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/sys/block/{disk}/stat")).unwrap_or_default();
    stat.split_whitespace().next().map_or(0, |reads| reads.parse().unwrap())
}

/// The sorted tables of a store in `directory`, in order.
pub(super) fn sorted_table_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory.join("capacity"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "sst"))
        .collect();
    files.sort();
    files
}

/// The page cache forgets the files.
pub(super) fn forget(files: &[PathBuf]) {
    for file in files {
        let input = format!("if={}", file.display());
        let dropped = Command::new("dd").args([&input, "iflag=nocache", "count=0", "status=none"]).status();
        assert!(dropped.unwrap().success());
    }
}

/// How `fio` reads.
#[derive(Clone, Copy)]
pub(super) struct Fio {
    pub(super) request_bytes: u32,
    pub(super) depth: usize,
    pub(super) jobs: usize,
    pub(super) engine: &'static str,
    /// Past the page cache.
    pub(super) is_direct: bool,
    pub(super) seconds: u64,
}

impl Fio {
    pub(super) fn name(self) -> String {
        let direct = if self.is_direct { "-direct" } else { "" };
        format!("fio-{}-{}{direct}", self.engine, self.depth * self.jobs)
    }

    /// Random reads all over the files, which the page cache has forgotten before: what it says of them, and how many a second. Nothing where it is not installed.
    pub(super) fn read(self, files: &[PathBuf]) -> Option<(String, f64)> {
        forget(files);
        // By their names alone: it takes 4 KiB of them.
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        let directory = files.first()?.parent().unwrap();
        let mut fio = Command::new("fio");
        fio.args(["--name=cold", "--readonly", "--rw=randread", "--minimal", "--group_reporting"]);
        fio.args(["--thread", "--time_based", "--randrepeat=0", "--fadvise_hint=random"]);
        fio.args([format!("--bs={}", self.request_bytes), format!("--runtime={}", self.seconds)]);
        fio.args([format!("--ioengine={}", self.engine), format!("--iodepth={}", self.depth)]);
        fio.args([format!("--numjobs={}", self.jobs), format!("--direct={}", u8::from(self.is_direct))]);
        fio.args([format!("--directory={}", directory.display()), format!("--filename={}", names.join(":"))]);
        let output = fio.output().ok()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let text = String::from_utf8(output.stdout).unwrap();
        let fields: Vec<&str> = text.trim().split(';').collect();
        let number = |n: usize| fields[n].trim_end_matches('%').parse::<f64>().unwrap();
        // The third version of its terse lines: requests a second, then percentiles by name, and shares of a processor near the end.
        let percentile = |name: &str| {
            let found = fields.iter().find_map(|field| field.strip_prefix(name)).unwrap();
            found.parse::<f64>().unwrap()
        };
        let told = format!(
            "{:<16} {:>8.0}/s {:>6.2} us of CPU; a request p50 {:>7.1} p99 {:>7.1} p99.9 {:>7.1} us",
            self.name(),
            number(7),
            (number(87) + number(88)) / 100.0 * self.jobs as f64 * 1e6 / number(7),
            percentile("50.000000%="),
            percentile("99.000000%="),
            percentile("99.900000%=")
        );
        Some((told, number(7)))
    }
}
