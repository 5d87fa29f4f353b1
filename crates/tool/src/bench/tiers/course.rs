//! A fill as time goes by: throughput, processors, bytes, and the slots in which hardly anything was done.
//!
//! Owns the experiment's entry, and what counts as a stall. Must not know how phases are run.

use super::bound::{Bound, PAIRS, row_bytes};
use super::drawing::uniform;
use crate::bench::chart::{Across, Chart, Point, Scale, Series, Shape, Unit};
use crate::bench::driver::{Window, WindowUsage};
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding, Measured};
use crate::bench::paper::machine;
use crate::bench::paper::rig::{Layout, Rig, Run};
use crate::bench::workload::LOAD;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "course",
    title: "A fill as time goes by",
    paper: "DecouKV, measured on RocksDB: work that sorts alternates between 94 % of the processor with 48 % of the disk and 21 % with 88 %. \
            Abstract: DecouKV uses 25.4 % to 32.3 % more of the processor than others and takes 74.3 % to 91.4 % off the tail where much is \
            written. Write stalls are those of RocksDB's rules there; here a stall is a slot with less than a tenth of the mean \
            throughput, and counts by its length.",
    run,
};

const BOUNDS: [Bound; 2] = [Bound::All, Bound::Percent(10)];
/// A slot, by how many records are filled: so that a fill has many.
const SLOTS: [(u64, f64); 3] = [(500_000, 0.01), (10_000_000, 0.1), (u64::MAX, 1.0)];
/// A slot with less than this share of the mean throughput is a stall.
const STALLED: f64 = 0.1;

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let records = rig.records(PAIRS);
    let slot = slot_seconds(records);
    for bound in rig.in_turn(BOUNDS) {
        let mut subject = rig.open(Layout::Rows, PAIRS, bound.options(rig, PAIRS, records)?)?;
        subject.call(bound.name());
        subject.run(&LOAD, Run { window: Some(slot), ..Run::default() }, &mut finding)?;
        // What was filled is there.
        uniform(&mut subject, "read-full", &mut finding)?;
        subject.remove()?;
    }
    for bound in BOUNDS {
        if let Some(measured) = finding.phase(&bound.name(), "load").cloned() {
            finding.factors.extend(factors(&measured, &bound.name()));
        }
    }
    let bound = BOUNDS[1].describe(PAIRS, records);
    let settings =
        rig.settings(PAIRS, &format!("each key once, in random order; slots of {slot} s; {bound}"));
    finding.figures = BOUNDS.iter().filter_map(|bound| figure(&finding, &bound.name(), &settings)).collect();
    Ok(finding)
}

fn slot_seconds(records: u64) -> f64 {
    let found = SLOTS.iter().find(|(most, _)| records <= *most);
    found.map_or(SLOTS[0].1, |(_, seconds)| *seconds)
}

/// The share of the time that is in slots with less than a tenth of the mean.
fn stalled(windows: &[Window], mean: f64) -> f64 {
    let is_stall = |window: &&Window| window.ops_per_s < mean * STALLED;
    let seconds = |window: &Window| window.length_s;
    let in_stalls: f64 = windows.iter().filter(is_stall).map(seconds).sum();
    in_stalls / windows.iter().map(seconds).sum::<f64>().max(1e-9)
}

/// Processors kept busy, over all the time that was looked at.
fn mean_processors(windows: &[Window]) -> f64 {
    let used = || windows.iter().filter_map(|window| Some((window.used?.processors, window.length_s)));
    let busy: f64 = used().map(|(processors, seconds)| processors * seconds).sum();
    busy / used().map(|(_, seconds)| seconds).sum::<f64>().max(1e-9)
}

fn factors(measured: &Measured, name: &str) -> Vec<Factor> {
    let report = &measured.report;
    let of = |what: &str| format!("{what}, fast tier of {name}");
    let differs =
        "persistent memory over a SATA SSD, 4 cores and 4 background threads, against other engines";
    let user_bytes = (report.operations * row_bytes(PAIRS)) as f64;
    let written = (measured.log_bytes + measured.below_log_bytes) as f64;
    let processors = mean_processors(&measured.windows);
    let most = measured.windows.iter().map(|window| window.ops_per_s).fold(0.0, f64::max);
    let stalled = stalled(&measured.windows, report.ops_per_s);
    vec![
        Factor::new(of("time of a fill that was stalled"), stalled, Unit::Share, None),
        Factor::new(
            of("processors busy during a fill, of all"),
            processors / machine::processors() as f64,
            Unit::Share,
            Some("25.4 % to 32.3 % more than others"),
        )
        .beside(differs),
        Factor::times(of("best slot of a fill against its mean"), most, report.ops_per_s, None),
        Factor::times(of("bytes written a user byte, by the store's account"), written, user_bytes, None),
        Factor::new(
            of("p99 of an insert"),
            report.p99_us,
            Unit::Microseconds,
            Some("3.2ms (RocksDB 37.6ms, MatrixKV 12.5ms, ADOC 17.9ms)"),
        )
        .beside(differs),
    ]
}

/// A number of what was used, by slot.
type Used = (&'static str, fn(&WindowUsage) -> f64);

fn figure(finding: &Finding, name: &str, settings: &str) -> Option<Figure> {
    let measured = finding.phase(name, "load")?;
    let windows = &measured.windows;
    let used = |(name, number): Used| Series {
        name: name.into(),
        points: (windows.iter().filter_map(|w| Some(Point::new(w.from_s, number(&w.used?))))).collect(),
    };
    let throughput = Series {
        name: "puts".into(),
        points: windows.iter().map(|w| Point::new(w.from_s, w.ops_per_s)).collect(),
    };
    let chart = |title: &str, y_label: &str, unit, series: Vec<Series>| Chart {
        title: title.into(),
        x_label: "time (s)".into(),
        across: Across::Numbers(Unit::Seconds),
        y_label: y_label.into(),
        unit,
        scale: Scale::Linear,
        shape: Shape::Lines,
        // Of a fill of one slot nobody saw what was used.
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        marks: vec![],
        width: 316,
        height: 250,
    };
    let bytes: [Used; 4] = [
        ("log", |used| used.log_per_s),
        ("below the log", |used| used.below_log_per_s),
        ("kernel, written", |used| used.written_per_s),
        ("kernel, read", |used| used.read_per_s),
    ];
    Some(Figure {
        title: format!("Fast tier of {name}"),
        see: "Dips of the throughput while processors are idle and bytes are written are waits for the medium; dips while they are busy, for \
              work on rows; a flat line is the aim."
            .into(),
        settings: settings.into(),
        paper: Some("94 % of the processor with 48 % of the disk, and 21 % with 88 %, by turns, in RocksDB"),
        charts: vec![
            chart("Throughput", "puts/s", Unit::Rate, vec![throughput]),
            chart("Processors", "processors busy", Unit::Number, vec![used(("all threads", |used| used.processors))]),
            chart("Bytes", "bytes/s", Unit::Bytes, bytes.map(used).into()),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(rates: &[f64]) -> Vec<Window> {
        let window = |(at, &ops_per_s): (usize, &f64)| Window {
            from_s: at as f64 * 0.1,
            length_s: 0.1,
            ops_per_s,
            p50_us: 1.0,
            p99_us: 1.0,
            p999_us: 1.0,
            max_us: 1.0,
            hit_ratio: None,
            used: None,
        };
        rates.iter().enumerate().map(window).collect()
    }

    #[test]
    fn a_stall_is_a_slot_below_a_tenth_of_the_mean() {
        let mut slots = windows(&[100.0, 0.0, 9.0, 10.0, 381.0]);
        assert!((stalled(&slots, 100.0) - 0.4).abs() < 1e-9);
        assert_eq!(stalled(&windows(&[]), 100.0), 0.0);
        slots[1].length_s = 0.6;
        assert!((stalled(&slots, 100.0) - 0.7).abs() < 1e-9, "a long one counts for more");
    }

    #[test]
    fn processors_are_a_mean_over_time() {
        let mut slots = windows(&[1.0; 3]);
        for (slot, (processors, seconds)) in slots.iter_mut().zip([(2.0, 0.1), (0.5, 0.3)]) {
            let used = WindowUsage {
                processors,
                written_per_s: 0.0,
                read_per_s: 0.0,
                log_per_s: 0.0,
                below_log_per_s: 0.0,
            };
            (slot.used, slot.length_s) = (Some(used), seconds);
        }
        assert!((mean_processors(&slots) - 0.875).abs() < 1e-9, "of the third nobody knows");
        assert_eq!(mean_processors(&windows(&[1.0])), 0.0);
    }

    #[test]
    fn slots_grow_with_the_fill() {
        assert_eq!([1, 500_000, 500_001, 50_000_000].map(slot_seconds), [0.01, 0.01, 0.1, 1.0]);
    }
}
