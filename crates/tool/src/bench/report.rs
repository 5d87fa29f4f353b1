//! Results: as JSON and as a table.
//!
//! Owns the names and units of what is reported. Promises microseconds for latencies, bytes for sizes, seconds for times.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::driver::PhaseOutcome;
use crate::process::Memory;

/// The results of one phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    /// The workload's name.
    pub phase: String,
    /// Threads.
    pub threads: usize,
    /// Operations done.
    pub operations: u64,
    /// Wall time of the operations.
    pub seconds: f64,
    /// Operations a second, all threads together.
    pub ops_per_s: f64,
    /// Latency: median.
    pub p50_us: f64,
    /// Latency: mean.
    pub mean_us: f64,
    /// Latency: 9 of 10 are at or below.
    pub p90_us: f64,
    /// Latency: 95 of 100.
    pub p95_us: f64,
    /// Latency: 99 of 100.
    pub p99_us: f64,
    /// Latency: 999 of 1,000.
    pub p999_us: f64,
    /// Latency: 9,999 of 10,000.
    pub p9999_us: f64,
    /// Latency: the longest.
    pub max_us: f64,
    /// Processor time, user and system, of all threads, until background work ended.
    pub cpu_s: f64,
    /// Bytes the process dirtied in files until background work ended.
    pub bytes_written: u64,
    /// Bytes the process had fetched from storage until background work ended.
    pub bytes_read: u64,
    /// Disk the store occupies at the end.
    pub disk_bytes: u64,
    /// Resident memory at the end, mapped files included.
    pub rss_bytes: u64,
    /// Resident anonymous memory at the end.
    pub rss_anon_bytes: u64,
    /// How long background work went on after the last operation.
    pub settle_s: f64,
    /// Processors that others kept busy during the operations, the kernel's write-back among them.
    pub neighbours_cpus: f64,
    /// Operations in each full second.
    pub ops_in_second: Vec<u64>,
}

/// From here on others' use of the machine is worth a warning.
const NEIGHBOURS_NOTABLE: f64 = 0.2;

impl PhaseReport {
    /// Puts a phase's outcome and the sizes at its end together.
    pub fn new(
        phase: &str,
        threads: usize,
        outcome: &PhaseOutcome,
        memory: Memory,
        disk_bytes: u64,
    ) -> PhaseReport {
        let microseconds = |quantile| outcome.latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let seconds = outcome.elapsed.as_secs_f64();
        PhaseReport {
            phase: phase.to_string(),
            threads,
            operations: outcome.operations,
            seconds,
            ops_per_s: outcome.operations as f64 / seconds.max(1e-9),
            p50_us: microseconds(0.5),
            mean_us: outcome.latencies.mean() / 1000.0,
            p90_us: microseconds(0.9),
            p95_us: microseconds(0.95),
            p99_us: microseconds(0.99),
            p999_us: microseconds(0.999),
            p9999_us: microseconds(0.9999),
            max_us: outcome.latencies.max() as f64 / 1000.0,
            cpu_s: outcome.cpu.as_secs_f64(),
            bytes_written: outcome.bytes_written,
            bytes_read: outcome.bytes_read,
            disk_bytes,
            rss_bytes: memory.rss,
            rss_anon_bytes: memory.anonymous,
            settle_s: outcome.settled.as_secs_f64(),
            neighbours_cpus: outcome.neighbours,
            ops_in_second: outcome.per_second.clone(),
        }
    }

    /// A line for standard error while the run goes on.
    pub fn progress_line(&self, engine: &str) -> String {
        let rate = count(self.ops_per_s);
        let warning = match self.neighbours_cpus {
            cpus if cpus >= NEIGHBOURS_NOTABLE => format!("  (others used {cpus:.1} processors meanwhile)"),
            _ => String::new(),
        };
        format!("{:<13} {engine:<13} {rate:>8} ops/s{warning}", self.phase)
    }

    /// Whether others used the machine so much meanwhile that the figures are theirs too.
    pub fn is_disturbed(&self) -> bool {
        self.neighbours_cpus >= NEIGHBOURS_NOTABLE
    }

    /// Wall time of one operation on one thread, in microseconds.
    pub fn us_per_op(&self) -> f64 {
        self.threads as f64 * 1e6 / self.ops_per_s.max(1e-9)
    }
}

/// Writes `results` to `path` as `{"settings": ..., "results": [...]}`.
pub fn write_json(path: &Path, settings: serde_json::Value, results: &impl Serialize) -> Result<(), String> {
    let document = serde_json::json!({ "settings": settings, "results": results });
    let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("writing {}: {error}", path.display()))
}

/// The table for a person.
pub fn phase_table(reports: &[PhaseReport]) -> String {
    let rows = reports.iter().map(|report| {
        let per_op = |total: f64| total / report.operations.max(1) as f64;
        vec![
            report.phase.clone(),
            report.threads.to_string(),
            count(report.operations as f64),
            count(report.ops_per_s),
            latency(report.p50_us),
            latency(report.p99_us),
            latency(report.p999_us),
            latency(report.p9999_us),
            latency(report.max_us),
            format!("{:.2}", per_op(report.cpu_s * 1e6)),
            format!("{:.2}", per_op(report.bytes_written as f64 / 1e3)),
            megabytes(report.disk_bytes),
            megabytes(report.rss_bytes),
        ]
    });
    let head = [
        "phase",
        "thr",
        "ops",
        "ops/s",
        "p50",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "cpu us/op",
        "KB/op",
        "disk MB",
        "rss MB",
    ];
    table(&head, rows)
}

/// Aligns columns: the first to the left, the others to the right.
pub fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut lines = vec![head.iter().map(|name| name.to_string()).collect::<Vec<_>>()];
    lines.extend(rows);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        for (column, cell) in line.iter().enumerate().take(widths.len()) {
            let _ = match column {
                0 => write!(text, "{cell:<0$}", widths[0]),
                _ => write!(text, "  {cell:>0$}", widths[column]),
            };
        }
        text.push('\n');
    }
    text
}

/// `950`, `12.3k`, `1.25M`.
pub fn count(number: f64) -> String {
    match number {
        n if n < 1000.0 => format!("{n:.0}"),
        n if n < 99_950.0 => format!("{:.1}k", n / 1e3),
        n if n < 999_500.0 => format!("{:.0}k", n / 1e3),
        n => format!("{:.2}M", n / 1e6),
    }
}

/// `0.42us`, `12us`, `3.1ms`, `1.20s`.
pub fn latency(microseconds: f64) -> String {
    match microseconds {
        us if us < 9.95 => format!("{us:.2}us"),
        us if us < 999.5 => format!("{us:.0}us"),
        us if us < 999_500.0 => format!("{:.1}ms", us / 1e3),
        us => format!("{:.2}s", us / 1e6),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            [count(999.0), count(12_345.0), count(123_456.0), count(1.254e6)],
            ["999", "12.3k", "123k", "1.25M"]
        );
        assert_eq!([latency(0.42), latency(12.2), latency(3_140.0)], ["0.42us", "12us", "3.1ms"]);
    }

    #[test]
    fn columns_align() {
        let text = table(&["a", "b"], [vec!["long".into(), "1".into()], vec!["x".into(), "222".into()]]);
        assert_eq!(text, "a       b\nlong    1\nx     222\n");
    }
}
