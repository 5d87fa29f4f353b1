//! Figures of a phase: as JSON and as tables.
//!
//! Owns the names and units of what is reported. Promises that text and JSON are made of the same numbers; microseconds for latencies, bytes for sizes, seconds for times. Must not know how they were measured.

use std::time::Duration;

use hdrhistogram::Histogram;
use hedgerow_kvssd::{Device, DeviceInfo};
use serde::{Deserialize, Serialize};

use super::client::{KvsbOperation, KvsbOutcome, histograms};
use super::course::KvsbWindow;
use crate::bench::paper::finding::median_and_range;
use crate::bench::report::{count, latency, table};

/// From here on others' use of the machine is worth a warning.
const NEIGHBOURS_NOTABLE: f64 = 0.2;

/// What a phase took of a device and of processors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) client_cpu: Duration,
    pub(super) device_cpu: Duration,
    pub(super) flash_bytes_written: u64,
    pub(super) gc_copied_bytes: u64,
}

impl Spent {
    /// Since the device was opened.
    pub(super) fn of(device: &Device) -> Spent {
        let (flash, gc) = (device.flash_counters(), device.gc_counters());
        Spent {
            flash_bytes_written: flash.bytes_written,
            gc_copied_bytes: gc.copied_bytes,
            ..Spent::default()
        }
    }

    /// Without what was spent before.
    pub(super) fn since(self, before: &Spent) -> Spent {
        Spent {
            flash_bytes_written: self.flash_bytes_written - before.flash_bytes_written,
            gc_copied_bytes: self.gc_copied_bytes - before.gc_copied_bytes,
            ..self
        }
    }
}

/// Latencies of one kind of operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KvsbLatencies {
    /// read, update, insert or delete.
    pub(super) operation: String,
    /// Operations done.
    pub(super) operations: u64,
    /// Of them a second.
    pub(super) ops_per_s: f64,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) p9999_us: f64,
    pub(super) max_us: f64,
}

/// Figures of one device in a phase, or of all together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KvsbDeviceFigures {
    /// From 1; 0 stands for all.
    pub(super) device: usize,
    /// Wall time.
    pub(super) seconds: f64,
    /// Operations done.
    pub(super) operations: u64,
    /// Of them a second.
    pub(super) ops_per_s: f64,
    pub(super) latencies: Vec<KvsbLatencies>,
    /// Answers that were wrong.
    pub(super) wrong: u64,
    /// Processor time of clients.
    pub(super) client_cpu_s: f64,
    /// Processor time of the threads of devices, which a drive would not take.
    pub(super) device_cpu_s: f64,
    /// Bytes of keys and values that were stored.
    pub(super) stored_bytes: u64,
    /// Bytes of keys and values that queues took from clients to store them.
    pub(super) host_bytes: u64,
    /// Bytes of records written to flash, copies by gc among them.
    pub(super) flash_bytes_written: u64,
    /// Of them copies.
    pub(super) gc_copied_bytes: u64,
    /// Bytes that queues took for each that was stored; 0 where none was.
    pub(super) host_amplification: f64,
    /// Bytes written to flash for each that was stored; 0 where none was.
    pub(super) amplification: f64,
    /// Pairs at the end.
    pub(super) pairs: u64,
    /// Bytes of keys and values at the end.
    pub(super) logical_bytes: u64,
    /// What they take of the capacity.
    pub(super) used_bytes: u64,
    pub(super) capacity_bytes: u64,
    /// Stretch after stretch; the same ones of all devices.
    pub(super) course: Vec<KvsbWindow>,
    #[serde(skip)]
    counted: Counted,
}

/// The histograms that latencies were read from; not compared.
#[derive(Debug, Clone, Default)]
struct Counted(Vec<Histogram<u64>>);

impl PartialEq for Counted {
    fn eq(&self, _: &Counted) -> bool {
        true
    }
}

impl KvsbDeviceFigures {
    pub(super) fn new(
        device: usize,
        outcome: &KvsbOutcome,
        spent: &Spent,
        info: &DeviceInfo,
    ) -> KvsbDeviceFigures {
        let mut figures = KvsbDeviceFigures {
            device,
            seconds: outcome.seconds,
            operations: 0,
            ops_per_s: 0.0,
            latencies: Vec::new(),
            wrong: outcome.wrong,
            client_cpu_s: spent.client_cpu.as_secs_f64(),
            device_cpu_s: spent.device_cpu.as_secs_f64(),
            stored_bytes: outcome.stored_bytes,
            host_bytes: outcome.host_bytes,
            flash_bytes_written: spent.flash_bytes_written,
            gc_copied_bytes: spent.gc_copied_bytes,
            host_amplification: 0.0,
            amplification: 0.0,
            pairs: info.pairs,
            logical_bytes: info.logical_bytes,
            used_bytes: info.used_bytes,
            capacity_bytes: info.capacity_bytes,
            course: Vec::new(),
            counted: Counted(outcome.latencies.to_vec()),
        };
        figures.derive();
        figures
    }

    /// Of all devices together; the longest time.
    fn of_all(devices: &[KvsbDeviceFigures]) -> KvsbDeviceFigures {
        let outcome = KvsbOutcome {
            seconds: devices.iter().map(|device| device.seconds).fold(0.0, f64::max),
            latencies: histograms(),
            wrong: devices.iter().map(|device| device.wrong).sum(),
            stored_bytes: devices.iter().map(|device| device.stored_bytes).sum(),
            host_bytes: devices.iter().map(|device| device.host_bytes).sum(),
        };
        let sum = |of: fn(&KvsbDeviceFigures) -> u64| devices.iter().map(of).sum::<u64>();
        let cpu = |of: fn(&KvsbDeviceFigures) -> f64| Duration::from_secs_f64(devices.iter().map(of).sum());
        let spent = Spent {
            client_cpu: cpu(|device| device.client_cpu_s),
            device_cpu: cpu(|device| device.device_cpu_s),
            flash_bytes_written: sum(|device| device.flash_bytes_written),
            gc_copied_bytes: sum(|device| device.gc_copied_bytes),
        };
        let info = DeviceInfo {
            capacity_bytes: sum(|device| device.capacity_bytes),
            used_bytes: sum(|device| device.used_bytes),
            tombstone_bytes: 0,
            logical_bytes: sum(|device| device.logical_bytes),
            pairs: sum(|device| device.pairs),
            value_bytes_max: 0,
        };
        let mut all = KvsbDeviceFigures::new(0, &outcome, &spent, &info);
        for device in devices {
            for (all, one) in all.counted.0.iter_mut().zip(&device.counted.0) {
                // Histograms of the same bounds.
                all.add(one).ok();
            }
        }
        let courses = devices.iter().map(|device| device.course.clone());
        all.course = courses
            .reduce(|all, one| all.into_iter().zip(one).map(|(all, one)| all.plus(one)).collect())
            .unwrap_or_default();
        all.derive();
        all
    }

    /// Microseconds an operation of so many seconds.
    pub(super) fn us_per_op(&self, seconds: f64) -> f64 {
        seconds * 1e6 / self.operations.max(1) as f64
    }

    /// The part of the capacity that is taken.
    pub(super) fn taken(&self) -> f64 {
        self.used_bytes as f64 / self.capacity_bytes.max(1) as f64
    }

    /// What follows from the rest.
    fn derive(&mut self) {
        let seconds = self.seconds.max(1e-9);
        self.operations = self.counted.0.iter().map(Histogram::len).sum();
        self.ops_per_s = self.operations as f64 / seconds;
        let for_each_stored = |bytes: u64| match self.stored_bytes {
            0 => 0.0,
            stored => bytes as f64 / stored as f64,
        };
        self.host_amplification = for_each_stored(self.host_bytes);
        self.amplification = for_each_stored(self.flash_bytes_written);
        let kinds = KvsbOperation::ALL.into_iter().zip(&self.counted.0);
        let done = kinds.filter(|(_, histogram)| !histogram.is_empty());
        self.latencies = done
            .map(|(operation, histogram)| {
                let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
                KvsbLatencies {
                    operation: operation.name().to_owned(),
                    operations: histogram.len(),
                    ops_per_s: histogram.len() as f64 / seconds,
                    mean_us: histogram.mean() / 1e3,
                    p50_us: us(0.5),
                    p90_us: us(0.9),
                    p99_us: us(0.99),
                    p999_us: us(0.999),
                    p9999_us: us(0.9999),
                    max_us: histogram.max() as f64 / 1e3,
                }
            })
            .collect();
    }
}

/// Figures of a phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KvsbPhaseFigures {
    /// Its name.
    pub(super) phase: String,
    /// Of which round, from 1.
    pub(super) round: usize,
    /// Whether each thread had a processor of its own.
    pub(super) pinned: bool,
    /// Processors that others kept busy meanwhile, the kernel's write-back among them.
    pub(super) neighbours_cpus: f64,
    /// One by one.
    pub(super) devices: Vec<KvsbDeviceFigures>,
    /// Together.
    pub(super) all: KvsbDeviceFigures,
}

impl KvsbPhaseFigures {
    pub(super) fn new(phase: &str, pinned: bool, devices: Vec<KvsbDeviceFigures>) -> KvsbPhaseFigures {
        let all = KvsbDeviceFigures::of_all(&devices);
        KvsbPhaseFigures { phase: phase.to_owned(), round: 1, pinned, neighbours_cpus: 0.0, devices, all }
    }

    /// Answers that were wrong.
    pub(super) fn wrong(&self) -> u64 {
        self.all.wrong
    }

    /// A line for standard error while the run goes on.
    pub(super) fn progress_line(&self) -> String {
        let warning = match self.is_disturbed() {
            true => format!("  (others used {:.1} processors meanwhile)", self.neighbours_cpus),
            false => String::new(),
        };
        format!("{:<13} {:>8} ops/s{warning}", self.phase, count(self.all.ops_per_s))
    }

    /// Whether others used the machine so much meanwhile that the figures are theirs too.
    pub(super) fn is_disturbed(&self) -> bool {
        self.neighbours_cpus >= NEIGHBOURS_NOTABLE
    }

    /// Each device, and all of them where there are several.
    fn lines(&self) -> impl Iterator<Item = (String, &KvsbDeviceFigures)> {
        let all = (self.devices.len() > 1).then_some(&self.all);
        self.devices.iter().chain(all).map(|figures| {
            let of = if figures.device == 0 { "all".to_owned() } else { figures.device.to_string() };
            (format!("{} {of}", self.phase), figures)
        })
    }
}

/// A line of a phase in several rounds: what it is of, and the figures of each round.
type RoundsLine<'a> = (String, Vec<&'a KvsbDeviceFigures>);

/// The lines of all phases; the first of each round belong together, and so on.
fn lines(phases: &[KvsbPhaseFigures]) -> Vec<RoundsLine<'_>> {
    let rounds = phases.iter().map(|phase| phase.round).max().unwrap_or(1);
    let mut all: Vec<RoundsLine<'_>> = Vec::new();
    for round in 1..=rounds {
        let own = phases.iter().filter(|phase| phase.round == round).flat_map(KvsbPhaseFigures::lines);
        for (at, (of, figures)) in own.enumerate() {
            match all.get_mut(at) {
                Some((_, same)) => same.push(figures),
                None => all.push((of, vec![figures])),
            }
        }
    }
    all
}

/// A table: its columns and its lines.
pub(super) type Table = (&'static [&'static str], Vec<Vec<String>>);

/// Latencies by operation and device.
pub(super) fn latency_table(phases: &[KvsbPhaseFigures]) -> Table {
    let mut rows = Vec::new();
    for (of, rounds) in lines(phases) {
        for operation in KvsbOperation::ALL.map(KvsbOperation::name) {
            let own = |figures: &&KvsbDeviceFigures| {
                figures.latencies.iter().find(|one| one.operation == operation).cloned()
            };
            let own: Vec<KvsbLatencies> = rounds.iter().filter_map(own).collect();
            if own.is_empty() {
                continue;
            }
            let cell = |of: fn(&KvsbLatencies) -> f64, show: fn(f64) -> String| {
                median_and_range(&own.iter().map(of).collect::<Vec<_>>(), show)
            };
            let counts = [cell(|one| one.operations as f64, count), cell(|one| one.ops_per_s, count)];
            let of_us: [fn(&KvsbLatencies) -> f64; 6] = [
                |one| one.p50_us,
                |one| one.p90_us,
                |one| one.p99_us,
                |one| one.p999_us,
                |one| one.p9999_us,
                |one| one.max_us,
            ];
            let us = of_us.map(|of| cell(of, latency));
            rows.push([vec![of.clone(), operation.to_owned()], counts.to_vec(), us.to_vec()].concat());
        }
    }
    (&["phase, device", "operation", "ops", "ops/s", "p50", "p90", "p99", "p99.9", "p99.99", "max"], rows)
}

/// What it took, by device.
pub(super) fn cost_table(phases: &[KvsbPhaseFigures]) -> Table {
    let row = |(of, rounds): RoundsLine<'_>| {
        let cell = |of: fn(&KvsbDeviceFigures) -> f64, show: fn(f64) -> String| {
            median_and_range(&rounds.iter().map(|figures| of(figures)).collect::<Vec<_>>(), show)
        };
        let us: fn(f64) -> String = |us| format!("{us:.2}");
        let mb: fn(f64) -> String = |bytes| format!("{:.1}", bytes / 1e6);
        vec![
            of,
            cell(|figures| figures.us_per_op(figures.client_cpu_s), us),
            cell(|figures| figures.us_per_op(figures.device_cpu_s), us),
            cell(|figures| figures.stored_bytes as f64, mb),
            cell(|figures| figures.flash_bytes_written as f64, mb),
            cell(|figures| figures.gc_copied_bytes as f64, mb),
            cell(|figures| figures.host_amplification, us),
            cell(|figures| figures.amplification, us),
            cell(|figures| figures.pairs as f64, count),
            cell(|figures| figures.taken() * 100.0, |percent| format!("{percent:.1} %")),
        ]
    };
    (
        &[
            "phase, device",
            "client us/op",
            "device us/op",
            "stored MB",
            "flash MB",
            "copied MB",
            "at the host",
            "amplification",
            "pairs",
            "taken",
        ],
        lines(phases).into_iter().map(row).collect(),
    )
}

/// The tables for a person: latencies, and then what it took. Of several rounds medians and ranges.
pub(super) fn tables(phases: &[KvsbPhaseFigures]) -> String {
    let [latencies, costs] =
        [latency_table(phases), cost_table(phases)].map(|(head, rows)| table(head, rows));
    let stars = phases.iter().filter(|phase| phase.is_disturbed()).count();
    let note = match stars {
        0 => String::new(),
        stars => format!("others used the machine in {stars} of {} phases\n", phases.len()),
    };
    format!("{latencies}\n{costs}{note}")
}
