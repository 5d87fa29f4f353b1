//! The hot spot moves (section VI-C, figure 14).
//!
//! Owns the experiment's entry. Must not know how phases are run.

use crate::bench::chart::{Across, Chart, Mark, Point, Scale, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::driver::Window;
use crate::bench::paper::experiment::Experiment;
use crate::bench::paper::finding::{Factor, Figure, Finding};
use crate::bench::paper::rig::{Layout, Rig, Run, SHAPE, Subject};
use crate::bench::setting::Setting;
use crate::bench::workload::Workload;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "hotspot",
    title: "The hot spot moves",
    paper: "Section VI-C, figure 14: after other rows become the hot ones, SeaCache needs 0.5 s to a hit ratio above 0.6 and \
            2.0 s to a steady one. On a plain file the row cache is bypassed: what moves there is what the processor's caches hold.",
    run,
};

const PHASES: [(&str, &str); 3] = [("c", "C: reads"), ("a", "A: reads and updates"), ("e", "E: scans")];
/// Those whose reads the cache counts: it does not count scans.
const COUNTED: [&str; 2] = ["c", "a"];
/// A cache for half of the rows.
const CACHE_PERCENT: u64 = 60;
/// The cache is filled first, in so many times the seconds of a phase.
const WARM_UP: f64 = 3.0;
/// The course of a phase is looked at in windows of so many seconds.
const WINDOW: f64 = 0.1;
/// Short phases have so many windows all the same.
const WINDOWS_MIN: f64 = 10.0;
/// Throughput, or the hit ratio, is back where it reached this share of what it was.
const BACK: f64 = 0.95;

/// What is evicted and whether there is a cache; the first is the default.
const POLICIES: [(&str, &str); 3] =
    [("lifetimes", "cache-policy=focus"), ("LRU", "cache-policy=lru"), ("no cache", "cache-mode=off")];

/// One phase under one policy, before the move and after it.
struct Course {
    policy: &'static str,
    phase: &'static str,
    before: Vec<Window>,
    after: Vec<Window>,
}

fn run(rig: &Rig<'_>) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let mut courses = Vec::new();
    for (policy, setting) in POLICIES {
        let mut options = rig.options_with_cache(SHAPE, CACHE_PERCENT)?;
        setting.parse::<Setting>()?.apply(&mut options)?;
        let mut subject = rig.open(Layout::Rows, SHAPE, options)?;
        subject.call(policy);
        subject.load(&mut finding)?;
        for (phase, _) in PHASES {
            courses.push(follow(rig, &mut subject, policy, phase, &mut finding)?);
        }
        subject.remove()?;
    }
    let (mut throughput, mut hits) = (Vec::new(), Vec::new());
    for (phase, title) in PHASES {
        let of_phase: Vec<&Course> = courses.iter().filter(|course| course.phase == phase).collect();
        let [default, lru, none] = of_phase[..] else { return Err("a course is missing".into()) };
        finding.factors.extend(dip(phase, &default.before, &default.after));
        finding.factors.extend(kept(phase, default, lru, none));
        throughput.push(chart(title, THROUGHPUT, &of_phase, rig.seconds()));
        if COUNTED.contains(&phase) {
            finding.factors.extend(recovery(phase, &default.before, &default.after, window(rig)));
            hits.push(chart(title, HITS, &[default, lru], rig.seconds()));
        }
    }
    let settings =
        rig.settings(SHAPE, "zipfian 0.99; a cache for half of the rows; by 100 ms, or a tenth of a phase");
    finding.figures = vec![
        Figure {
            title: "Throughput while the hot spot moves".into(),
            see: "Right of the mark other rows are the hot ones; the depth and the length of the dip there are what it costs to \
                  follow them."
                .into(),
            settings: settings.clone(),
            paper: Some("after the move 49.6 % more reads and 49.1 % more scans than without the policy"),
            charts: throughput,
        },
        Figure {
            title: "The hit ratio while the hot spot moves".into(),
            see: "The row cache has followed the hot rows where the line is as high as left of the mark; it is 0 where the cache \
                  is bypassed."
                .into(),
            settings,
            paper: Some("hit ratio above 0.6 after 0.5 s, steady after 2.0 s"),
            charts: hits,
        },
    ];
    Ok(finding)
}

fn follow(
    rig: &Rig<'_>,
    subject: &mut Subject<'_>,
    policy: &'static str,
    phase: &'static str,
    finding: &mut Finding,
) -> Result<Course, String> {
    let mut course = |when: &str, distribution, seconds| {
        subject.call(format!("{policy}, {when}"));
        let run = Run {
            distribution: Some(distribution),
            window: Some(window(rig)),
            seconds: Some(seconds),
            restless: true,
            ..Run::default()
        };
        subject.run(Workload::find(phase)?, run, finding)?;
        Ok::<_, String>(finding.phases.last().map(|measured| measured.windows.clone()).unwrap_or_default())
    };
    course("warming up", Distribution::Zipfian, WARM_UP * rig.seconds())?;
    let before = course("before", Distribution::Zipfian, rig.seconds())?;
    let after = course("after", Distribution::Moved, rig.seconds())?;
    Ok(Course { policy, phase, before, after })
}

/// Throughput in the whole time after the move, in terms of what it is with another policy, and without a cache.
fn kept(name: &str, default: &Course, lru: &Course, none: &Course) -> Vec<Factor> {
    let rate = |course: &Course| {
        course.after.iter().map(|window| window.ops_per_s).sum::<f64>() / course.after.len().max(1) as f64
    };
    let paper = match name {
        "c" => Some("1.50x"),
        "e" => Some("1.49x"),
        _ => None,
    };
    let name = name.to_uppercase();
    vec![
        Factor::times(
            format!("{name}: after the move, lifetimes against LRU"),
            rate(default),
            rate(lru),
            paper,
        ),
        Factor::times(
            format!("{name}: after the move, lifetimes against no cache"),
            rate(default),
            rate(none),
            None,
        ),
    ]
}

fn window(rig: &Rig<'_>) -> f64 {
    WINDOW.min(rig.seconds() / WINDOWS_MIN)
}

/// The mean of the second half of a course; no number if there is nothing to take it of.
fn settled(course: &[Window], number: fn(&Window) -> Option<f64>) -> f64 {
    let late: Vec<f64> = course[course.len() / 2..].iter().filter_map(number).collect();
    late.iter().sum::<f64>() / late.len() as f64
}

/// The depth of the dip, and how long until throughput was back.
fn dip(name: &str, before: &[Window], after: &[Window]) -> Vec<Factor> {
    let (name, was) = (name.to_uppercase(), settled(before, |window| Some(window.ops_per_s)));
    let first = after.first().map_or(f64::NAN, |window| window.ops_per_s);
    let mut factors =
        vec![Factor::times(format!("{name}: first moment after the move against before"), first, was, None)];
    if let Some(back) = after.iter().find(|window| window.ops_per_s >= BACK * was) {
        let here = back.from_s;
        let what = format!("{name}: until 95 % of the throughput before the move");
        factors.push(Factor::new(what, here, Unit::Seconds, Some("2.0 s")));
    }
    factors
}

/// How far the hit ratio was back in the end, and how long until it was: to the end of the first window in which it was. The
/// second is left out where it never was, both where the cache was bypassed.
fn recovery(name: &str, before: &[Window], after: &[Window], window_s: f64) -> Vec<Factor> {
    let name = name.to_uppercase();
    let [was, is] = [before, after].map(|course| settled(course, |window| window.hit_ratio));
    if !(was > 0.0 && is.is_finite()) {
        return Vec::new();
    }
    let what = format!("{name}: hit ratio in the end against before the move");
    let mut factors = vec![Factor::times(what, is, was, None)];
    let is_back = |window: &&Window| window.hit_ratio.is_some_and(|ratio| ratio >= BACK * was);
    if let Some(back) = after.iter().find(is_back) {
        let what = format!("{name}: until 95 % of the hit ratio before the move");
        let here = back.from_s + window_s;
        factors.push(Factor::new(what, here, Unit::Seconds, Some("2.0 s")));
    }
    factors
}

/// What a chart shows of a window: the name of the axis, its unit, the number.
type Shown = (&'static str, Unit, fn(&Window) -> f64);
const THROUGHPUT: Shown = ("throughput (operations/s)", Unit::Rate, |window| window.ops_per_s);
const HITS: Shown = ("hits a read", Unit::Share, |window| window.hit_ratio.unwrap_or(0.0));

fn chart(title: &str, (y_label, unit, number): Shown, courses: &[&Course], seconds: f64) -> Chart {
    let line = |course: &&Course| {
        let point = |from: f64| move |w: &Window| Point::new(from + w.from_s, number(w));
        let points = course.before.iter().map(point(0.0)).chain(course.after.iter().map(point(seconds)));
        Series { name: course.policy.into(), points: points.collect() }
    };
    Chart {
        title: title.into(),
        x_label: "time (s)".into(),
        across: Across::Numbers(Unit::Seconds),
        y_label: y_label.into(),
        unit,
        scale: Scale::Linear,
        shape: Shape::Lines,
        series: courses.iter().map(line).collect(),
        marks: vec![Mark { x: seconds, text: "hot spot moves".into() }],
        width: 316,
        height: 240,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(ratios: &[Option<f64>]) -> Vec<Window> {
        let window = |(at, &hit_ratio): (usize, &Option<f64>)| Window {
            from_s: at as f64 * 0.1,
            length_s: 0.1,
            ops_per_s: 1e6,
            p50_us: 1.0,
            p99_us: 1.0,
            p999_us: 1.0,
            max_us: 1.0,
            hit_ratio,
            used: None,
        };
        ratios.iter().enumerate().map(window).collect()
    }

    #[test]
    fn the_hit_ratio_is_back_at_the_end_of_the_first_window_in_which_it_is() {
        let before = course(&[Some(0.1), Some(0.2), Some(0.8), Some(0.8)]);
        let after = course(&[Some(0.3), Some(0.7), Some(0.77), Some(0.79)]);
        let factors = recovery("c", &before, &after, 0.1);
        assert!((factors[0].here - 0.78 / 0.8).abs() < 1e-9 && factors.len() == 2);
        assert!((factors[1].here - 0.3).abs() < 1e-9, "{:?}", factors[1]);
        let never = recovery("c", &before, &course(&[Some(0.3), Some(0.4)]), 0.1);
        assert_eq!(never.len(), 1, "it never was");
        assert!((never[0].here - 0.5).abs() < 1e-9);
        assert!(recovery("c", &course(&[None; 4]), &after, 0.1).is_empty(), "the cache was bypassed");
    }
}
