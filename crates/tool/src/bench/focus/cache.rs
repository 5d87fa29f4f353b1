//! The row cache: what it gains, and its two parameters (section VI-C, figures 13 and 16).
//!
//! Owns the experiment's entry. Must not know how phases are run, or what the cache does.

use crate::bench::chart::{Across, Chart, Point, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{Layout, Rig, Run, SHAPE};
use crate::bench::setting::Setting;
use crate::bench::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "cache",
    title: "The row cache",
    paper: "Section VI-C, figures 13 and 16: with SeaCache reads are 51.5 % and scans 54.1 % better, and reads of cached rows \
            take 74.6 % less time; hit_threshold pays from 0.5 on; the best RW depends on the hit ratio. On a plain file the cache \
            is bypassed: the variants then differ by chance.",
    run,
};

/// What most charts have on their vertical axis, and how wide they are.
const RATE: (&str, Unit) = ("reads/s", Unit::Rate);
const WIDTH: u32 = 480;
/// What the cache may take, as a share of the rows' bytes in percent, and what else is set.
const SIZES: [(&str, u64, &str); 4] = [
    (OFF, 0, "cache-mode=off"),
    ("half", 60, "cache-policy=focus"),
    ("half, LRU", 60, "cache-policy=lru"),
    (ALL, 200, "cache-policy=focus"),
];
const OFF: &str = "no cache";
const ALL: &str = "all rows";
const PHASES: [(&str, &str); 2] = [("c", "C: reads"), ("scan-full", "scans of 100 rows")];
/// The same for an eighth of the rows.
const SMALL_PERCENT: u64 = 15;
const THRESHOLDS: [&str; 5] = ["0", "0.25", "0.5", "0.75", "1"];
const LIFETIMES: [&str; 6] = ["0.1", "0.5", "2", "10", "60", "auto"];
/// The cache's size where its worth is looked at by the hit ratio: reads are uniform, so that this is about the share of rows.
const SHARES: [(&str, u64); 6] = [
    ("a 20th", 6),
    ("a fifth", 24),
    ("two fifths", 48),
    ("three fifths", 72),
    ("four fifths", 96),
    ("all", 200),
];
const SPREADS: [(&str, Distribution); 2] =
    [("zipfian", Distribution::Zipfian), ("uniform", Distribution::Uniform)];

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    gains(rig, &mut finding)?;
    let crossing = crossing(rig, &mut finding)?;
    sensitivity(rig, &mut finding)?;
    for (phase, what, paper) in [
        ("c", "reads: a cache for half of the rows against none", "1.52x"),
        ("scan-full", "scans: a cache for half of the rows against none", "1.54x"),
    ] {
        let factor = Factor::times(what, finding.rate("half", phase), finding.rate(OFF, phase), Some(paper));
        finding.factors.push(factor);
    }
    let median = |variant| finding.phase(variant, "c").map_or(f64::NAN, |measured| measured.report.p50_us);
    let what = "time of a read, all rows cached against none (median)";
    finding.factors.push(Factor::times(what, median(ALL), median(OFF), Some("0.25x")));
    let settings = rig.settings(SHAPE, "zipfian 0.99, each phase after a warm-up of the same");
    let small = rig.settings(SHAPE, "C; a cache for an eighth of the rows");
    let uniform = rig.settings(SHAPE, "uniform; caches for a 20th to all of the rows, every row admitted");
    finding.figures = vec![gained(&finding, settings), crossing.figure(uniform), swept(&finding, small)];
    Ok(finding)
}

/// One store, opened anew with each size of the cache.
fn gains(rig: &Rig<'_>, finding: &mut Finding) -> Result<(), String> {
    let mut subject = rig.open(Layout::Rows, SHAPE, options(rig, SIZES[0].1, SIZES[0].2)?)?;
    subject.call("loading");
    subject.load(finding)?;
    for (name, percent, setting) in SIZES {
        subject = rig.reopen(subject, Layout::Rows, options(rig, percent, setting)?)?;
        for (phase, _) in PHASES {
            let run = Run { distribution: Some(Distribution::Zipfian), ..Run::default() };
            for variant in ["warming up", name] {
                subject.call(variant);
                subject.run(Workload::find(phase)?, run, finding)?;
            }
        }
    }
    subject.remove()
}

/// Throughput by the hit ratio.
struct Crossing {
    /// Hit ratio and reads a second, each with one size of the cache.
    with: Vec<(f64, f64)>,
    without: f64,
}

/// One store, opened anew with each size of the cache; every row that is read is admitted.
fn crossing(rig: &Rig<'_>, finding: &mut Finding) -> Result<Crossing, String> {
    let run = Run { distribution: Some(Distribution::Uniform), ..Run::default() };
    let mut subject = rig.open(Layout::Rows, SHAPE, options(rig, 0, "cache-mode=off")?)?;
    subject.call("loading");
    subject.load(finding)?;
    subject.call(UNIFORM_OFF);
    subject.run(Workload::find("c")?, run, finding)?;
    let mut with = Vec::new();
    for (share, percent) in SHARES {
        let mut options = options(rig, percent, "cache-mode=on")?;
        "hit-threshold=0".parse::<Setting>()?.apply(&mut options)?;
        subject = rig.reopen(subject, Layout::Rows, options)?;
        let name = format!("uniform, a cache for {share}");
        for variant in ["warming up", "warming up", &name] {
            subject.call(variant);
            subject.run(Workload::find("c")?, run, finding)?;
        }
        let hits = finding.phase(&name, "c").and_then(|measured| measured.hit_ratio).unwrap_or(0.0);
        with.push((hits, finding.rate(&name, "c")));
    }
    subject.remove()?;
    let crossing = Crossing { with, without: finding.rate(UNIFORM_OFF, "c") };
    if let Some(at) = crossing.hit_ratio() {
        let what = "hit ratio from which on the cache pays (by a line through the times)";
        finding.factors.push(Factor::new(what, at, Unit::Share, Some("50 %")));
    }
    Ok(crossing)
}

const UNIFORM_OFF: &str = "uniform, no cache";

impl Crossing {
    /// Where reads with the cache take as long as without: the time of a read is a line over the hit ratio. None where more
    /// hits did not make reads quicker.
    fn hit_ratio(&self) -> Option<f64> {
        let count = self.with.len() as f64;
        let mean = |number: fn(&(f64, f64)) -> f64| self.with.iter().map(number).sum::<f64>() / count;
        let (hits, time) = (mean(|(hits, _)| *hits), mean(|(_, rate)| 1.0 / rate));
        let spread: f64 = self.with.iter().map(|(h, _)| (h - hits).powi(2)).sum();
        let slope = self.with.iter().map(|(h, rate)| (h - hits) * (1.0 / rate - time)).sum::<f64>() / spread;
        (slope < 0.0 && slope.is_finite()).then(|| hits + (1.0 / self.without - time) / slope)
    }

    fn figure(&self, settings: String) -> Figure {
        let point = Point::new;
        let series = vec![
            Series {
                name: "with a cache".into(),
                points: self.with.iter().map(|&(x, y)| point(x, y)).collect(),
            },
            Series { name: OFF.into(), points: [0.0, 1.0].map(|x| point(x, self.without)).into() },
        ];
        Figure {
            title: "Throughput by hit ratio".into(),
            see: "Where the lines cross the cache begins to pay: left of it, asking for rows and copying them costs more than hits save."
                .into(),
            settings,
            paper: Some("they cross at a hit ratio of 0.5"),
            charts: vec![Chart {
                across: Across::Numbers(Unit::Share),
                ..Chart::over_names("C by hit ratio", ("hits a read", vec![]), RATE, (Shape::Lines, WIDTH), series)
            }],
        }
    }
}

fn sensitivity(rig: &Rig<'_>, finding: &mut Finding) -> Result<(), String> {
    let first = options(rig, SMALL_PERCENT, "cache-rw=auto")?;
    let mut subject = rig.open(Layout::Rows, SHAPE, first)?;
    subject.call("loading");
    subject.load(finding)?;
    let thresholds = THRESHOLDS.map(|value| ("hit-threshold", value));
    let lifetimes = LIFETIMES.map(|value| ("cache-rw", value));
    for (setting, value) in thresholds.into_iter().chain(lifetimes) {
        let options = options(rig, SMALL_PERCENT, &format!("{setting}={value}"))?;
        subject = rig.reopen(subject, Layout::Rows, options)?;
        for (spread, distribution) in SPREADS {
            let run = Run { distribution: Some(distribution), ..Run::default() };
            for variant in ["warming up", &swept_name(setting, value, spread)] {
                subject.call(variant);
                subject.run(Workload::find("c")?, run, finding)?;
            }
        }
    }
    subject.remove()
}

fn swept_name(setting: &str, value: &str, spread: &str) -> String {
    format!("{setting} {value}, {spread}")
}

fn options(rig: &Rig<'_>, percent: u64, setting: &str) -> Result<hedgerow::Options, String> {
    let mut options = rig.options_with_cache(SHAPE, percent)?;
    setting.parse::<Setting>()?.apply(&mut options)?;
    Ok(options)
}

fn gained(finding: &Finding, settings: String) -> Figure {
    let times = SIZES.map(|(name, ..)| {
        let median = |(phase, _): &(&str, &str)| finding.phase(name, phase).map(|m| m.report.p50_us);
        Series::over_names(name, PHASES.iter().map(median))
    });
    // Only reads of single rows are counted.
    let ratio = |(name, ..): &(&str, u64, &str)| finding.phase(name, "c").map(|m| m.hit_ratio.unwrap_or(0.0));
    let hits = vec![Series::over_names("C", SIZES.iter().map(ratio))];
    let (phases, sizes) =
        (PHASES.map(|(_, shown)| shown.to_owned()), SIZES.map(|(name, ..)| name.to_owned()));
    Figure {
        title: "With a cache and without".into(),
        see: "A cache for all rows shows what a hit costs; one for half of them, how far the hot rows were found out."
            .into(),
        settings,
        paper: Some("reads 51.5 % and scans 54.1 % better, hits 74.6 % quicker"),
        charts: vec![
            Chart::over_names("Median time of an operation", ("workload", phases.into()), ("us", Unit::Microseconds), (Shape::Bars, WIDTH), times.into()),
            Chart::over_names("C: reads that found their row in the cache", ("the cache's size", sizes.into()), ("hits a read", Unit::Share), (Shape::Bars, WIDTH), hits),
        ],
    }
}

fn swept(finding: &Finding, settings: String) -> Figure {
    let chart = |title: &str, x_label: &str, setting: &str, values: &[&str]| {
        let series = SPREADS.map(|(spread, _)| {
            let rate = |value: &&str| Some(finding.rate(&swept_name(setting, value, spread), "c"));
            Series::over_names(spread, values.iter().map(rate))
        });
        let names = values.iter().map(|value| (*value).to_owned()).collect();
        Chart::over_names(title, (x_label, names), RATE, (Shape::Lines, WIDTH), series.into())
    };
    Figure {
        title: "Two parameters".into(),
        see: "Where the lines are level the cache finds its way whatever it is told; the defaults are 0.5 and auto.".into(),
        settings,
        paper: Some("the cache pays from a hit ratio of 0.5 on; RW by a table, kept up to date"),
        charts: vec![
            chart("Admission", "hit-threshold", "hit-threshold", &THRESHOLDS),
            chart("Lifetime", "cache-rw (s)", "cache-rw", &LIFETIMES),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cross_where_times_are_equal() {
        // A hit takes 1 us, a miss 3 us, a read without a cache 2 us.
        let with = [0.0, 0.25, 1.0].map(|hits| (hits, 1.0 / (3.0 - 2.0 * hits))).into();
        let crossing = Crossing { with, without: 0.5 };
        assert!((crossing.hit_ratio().unwrap() - 0.5).abs() < 1e-9);
        let flat = Crossing { with: vec![(0.2, 1.0), (0.8, 1.0)], without: 1.0 };
        assert_eq!(flat.hit_ratio(), None, "hits gain nothing");
        assert_eq!(
            Crossing { with: vec![(0.2, 1.0)], without: 1.0 }.hit_ratio(),
            None,
            "one point is no line"
        );
    }
}
