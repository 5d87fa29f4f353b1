//! What an experiment answers with.
//!
//! Owns the shape of the JSON's results. Promises the units that [`PhaseReport`] and [`Window`] promise. Must not know how
//! anything was measured.

use serde::Serialize;

use crate::bench::chart::{Across, Chart, Point, Unit};
use crate::bench::driver::Window;
use crate::bench::report::PhaseReport;
use crate::store_url::Medium;

/// What an experiment found.
#[derive(Debug, Default)]
pub(in crate::bench) struct Finding {
    /// For the eye.
    pub(in crate::bench) figures: Vec<Figure>,
    /// For the eye, too.
    pub(in crate::bench) tables: Vec<FigureTable>,
    /// To compare with the paper.
    pub(in crate::bench) factors: Vec<Factor>,
    /// Everything that was measured.
    pub(in crate::bench) phases: Vec<Measured>,
    /// What went wrong: the rest is told all the same.
    pub(in crate::bench) failures: Vec<String>,
}

/// One or several charts about one thing.
#[derive(Debug, Clone, Serialize)]
pub(in crate::bench) struct Figure {
    /// Its name.
    pub(in crate::bench) title: String,
    /// What to see in it, in one sentence.
    pub(in crate::bench) see: String,
    /// What it was measured with.
    pub(in crate::bench) settings: String,
    /// What the paper says to it, if it does.
    pub(in crate::bench) paper: Option<&'static str>,
    /// The charts.
    pub(in crate::bench) charts: Vec<Chart>,
}

/// A table beside one of the paper's, ready to read.
#[derive(Debug, Clone, Serialize)]
pub(in crate::bench) struct FigureTable {
    /// Its name.
    pub(in crate::bench) title: String,
    /// What it was measured with, and what of it is the paper's.
    pub(in crate::bench) settings: String,
    /// Its columns.
    pub(in crate::bench) head: Vec<&'static str>,
    /// Its lines.
    pub(in crate::bench) rows: Vec<Vec<String>>,
}

/// One number to compare with the paper's.
#[derive(Debug, Clone, Serialize)]
pub(in crate::bench) struct Factor {
    /// Of what.
    pub(in crate::bench) what: String,
    /// What it came to here: the median of the rounds, of an even number the mean of the two in the middle.
    pub(in crate::bench) here: f64,
    /// The least of them.
    pub(in crate::bench) least: f64,
    /// The most.
    pub(in crate::bench) most: f64,
    /// How many there were.
    pub(in crate::bench) rounds: usize,
    /// In how many of them others used the machine in some phase of the experiment.
    pub(in crate::bench) disturbed: usize,
    /// Times, or seconds.
    pub(in crate::bench) unit: Unit,
    /// What the paper has, as it says it.
    pub(in crate::bench) paper: Option<&'static str>,
    /// What was otherwise there, where that is to be told number by number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::bench) differs: Option<&'static str>,
}

impl Factor {
    /// A number of one round.
    pub(in crate::bench) fn new(
        what: impl Into<String>,
        here: f64,
        unit: Unit,
        paper: Option<&'static str>,
    ) -> Factor {
        let what = what.into();
        Factor { what, here, least: here, most: here, rounds: 1, disturbed: 0, unit, paper, differs: None }
    }

    /// The same, with what was otherwise where the paper measured.
    pub(in crate::bench) fn beside(self, differs: &'static str) -> Factor {
        Factor { differs: Some(differs), ..self }
    }

    /// The same number of several rounds; at least one.
    fn of_rounds(same: &[&Factor]) -> Factor {
        Factor {
            here: median(same.iter().map(|factor| factor.here)).unwrap_or(f64::NAN),
            least: same.iter().map(|factor| factor.least).fold(f64::INFINITY, f64::min),
            most: same.iter().map(|factor| factor.most).fold(f64::NEG_INFINITY, f64::max),
            rounds: same.iter().map(|factor| factor.rounds).sum(),
            disturbed: same.iter().map(|factor| factor.disturbed).sum(),
            ..same[0].clone()
        }
    }

    /// What a person reads: the median, the range of several rounds, and a star where others used the machine.
    pub(in crate::bench) fn text(&self) -> String {
        let show = |number| self.unit.show(number);
        let range = match self.rounds {
            0 | 1 => String::new(),
            _ => format!(" ({} to {})", show(self.least), show(self.most)),
        };
        let star = if self.disturbed > 0 { "*" } else { "" };
        format!("{}{range}{star}", show(self.here))
    }

    /// One thing in terms of another.
    pub(in crate::bench) fn times(
        what: impl Into<String>,
        one: f64,
        other: f64,
        paper: Option<&'static str>,
    ) -> Factor {
        Factor::new(what, one / other.max(1e-9), Unit::Times, paper)
    }
}

/// One phase.
#[derive(Debug, Clone, Serialize)]
pub(in crate::bench) struct Measured {
    /// The store it ran on, or what was set otherwise.
    pub(in crate::bench) variant: String,
    /// Of how many times it was run, this is one; from 1.
    pub(in crate::bench) round: usize,
    /// Others used the machine meanwhile.
    pub(in crate::bench) disturbed: bool,
    #[serde(flatten)]
    pub(in crate::bench) report: PhaseReport,
    /// Bytes of the segments that the log took meanwhile, by the engine's account. What went into a segment that was open before is not among them, and all of one is that was open in the end: a phase that writes little may have
    /// none, or more than it wrote.
    pub(in crate::bench) log_bytes: u64,
    /// Bytes written below the log, by the engine's account: of rows that moved there, and of files that merges wrote.
    pub(in crate::bench) below_log_bytes: u64,
    /// Keys that had left memory for the fast tier when it was over, since the store was opened, by the engine's account: they may leave between phases,
    /// too.
    pub(in crate::bench) keys_sealed: u64,
    /// Reads that found their row in the cache, of those there were while it was in use.
    pub(in crate::bench) hit_ratio: Option<f64>,
    /// Its course, where that was looked at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::bench) windows: Vec<Window>,
}

impl Finding {
    /// The findings of several rounds as one: medians and ranges, the courses of the round that was disturbed least. Rounds may be
    /// of several rounds themselves.
    pub(in crate::bench) fn of_rounds(rounds: Vec<Finding>) -> Finding {
        let disturbed = |finding: &Finding| finding.phases.iter().filter(|phase| phase.disturbed).count();
        let mut whole = Finding::default();
        if let Some(calmest) =
            rounds.iter().min_by_key(|finding| (finding.failures.len(), disturbed(finding)))
        {
            whole.figures.clone_from(&calmest.figures);
            whole.tables.clone_from(&calmest.tables);
        }
        whole.figures.iter_mut().for_each(|figure| spread(figure, &rounds));
        let disturbed_rounds = rounds.iter().filter(|finding| disturbed(finding) > 0).count();
        for factor in rounds.iter().flat_map(|finding| &finding.factors) {
            if whole.factors.iter().any(|other| other.what == factor.what) {
                continue;
            }
            let all = rounds.iter().flat_map(|finding| &finding.factors);
            let same: Vec<&Factor> = all.filter(|other| other.what == factor.what).collect();
            let mut whole_factor = Factor::of_rounds(&same);
            whole_factor.disturbed = whole_factor.disturbed.max(disturbed_rounds);
            whole.factors.push(whole_factor);
        }
        for (at, finding) in rounds.into_iter().enumerate() {
            whole.failures.extend(finding.failures);
            let inner = finding.phases.iter().map(|phase| phase.round).max().unwrap_or(1);
            let numbered = |phase: Measured| Measured { round: at * inner + phase.round, ..phase };
            whole.phases.extend(finding.phases.into_iter().map(numbered));
        }
        whole
    }

    /// The phase of a variant, which was run.
    pub(in crate::bench) fn phase(&self, variant: &str, phase: &str) -> Option<&Measured> {
        self.phases.iter().find(|measured| measured.variant == variant && measured.report.phase == phase)
    }

    /// Operations a second of a phase; no number if it was not run.
    pub(in crate::bench) fn rate(&self, variant: &str, phase: &str) -> f64 {
        self.phase(variant, phase).map_or(f64::NAN, |measured| measured.report.ops_per_s)
    }
}

/// Gives the points of a figure's charts the median of several rounds and their range. Courses over time stay those of one round.
fn spread(figure: &mut Figure, rounds: &[Finding]) {
    let title = figure.title.clone();
    let same_figure =
        || rounds.iter().flat_map(|finding| &finding.figures).filter(|other| other.title == title);
    let over_names = |chart: &&mut Chart| matches!(chart.across, Across::Names(_));
    for chart in figure.charts.iter_mut().filter(over_names) {
        let title = chart.title.clone();
        let same_chart =
            || same_figure().flat_map(|figure| &figure.charts).filter(|other| other.title == title);
        for series in &mut chart.series {
            let name = series.name.clone();
            let others = || {
                let all = same_chart().flat_map(|chart| &chart.series).filter(|other| other.name == name);
                all.flat_map(|series| &series.points)
            };
            for point in &mut series.points {
                let at = point.x;
                if let Some(middle) = middle(others().filter(|other| other.x == at)) {
                    *point = middle;
                }
            }
        }
    }
}

/// The middle one of numbers, or the mean of the two in the middle: of all that is told of several rounds. None of none.
pub(in crate::bench) fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    let above = *numbers.get(numbers.len() / 2)?;
    Some((numbers[(numbers.len() - 1) / 2] + above) / 2.0)
}

/// The median of several rounds, and their range where there is one.
pub(in crate::bench) fn median_and_range(numbers: &[f64], show: impl Fn(f64) -> String) -> String {
    let middle = show(median(numbers.iter().copied()).unwrap_or(f64::NAN));
    if numbers.len() < 2 {
        return middle;
    }
    let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{middle} ({} to {})", show(least), show(most))
}

/// The median of points, and that of their labels, with the range of all; none where there are not several.
fn middle<'a>(points: impl Iterator<Item = &'a Point>) -> Option<Point> {
    let points: Vec<&Point> = points.collect();
    let ends = |point: &&Point| point.spread.unwrap_or([point.y; 2]);
    let least = points.iter().map(|point| ends(point)[0]).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|point| ends(point)[1]).fold(f64::NEG_INFINITY, f64::max);
    let x = points.get(1)?.x;
    let y = median(points.iter().map(|point| point.y))?;
    Some(Point {
        x,
        y,
        label: median(points.iter().filter_map(|point| point.label)),
        spread: Some([least, most]),
    })
}

/// An experiment's finding on a medium.
#[derive(Debug, Serialize)]
pub(in crate::bench) struct Result {
    pub(in crate::bench) experiment: &'static str,
    pub(in crate::bench) title: &'static str,
    #[serde(skip)]
    pub(in crate::bench) paper: &'static str,
    pub(in crate::bench) medium: Medium,
    pub(in crate::bench) failures: Vec<String>,
    pub(in crate::bench) factors: Vec<Factor>,
    pub(in crate::bench) figures: Vec<Figure>,
    pub(in crate::bench) tables: Vec<FigureTable>,
    pub(in crate::bench) phases: Vec<Measured>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::chart::{Scale, Series, Shape};

    fn round(here: f64) -> Finding {
        Finding { factors: vec![Factor::new("reads", here, Unit::Times, Some("2x"))], ..Finding::default() }
    }

    #[test]
    fn rounds_become_a_median_with_its_range() {
        let whole = Finding::of_rounds([1.5, 1.1, 4.0].map(round).into());
        assert_eq!((whole.factors.len(), whole.factors[0].rounds), (1, 3));
        assert_eq!(whole.factors[0].text(), "1.50x (1.10x to 4.00x)");
        let two = Finding::of_rounds([1.0, 2.0].map(round).into());
        assert_eq!((two.factors[0].here, two.factors[0].paper), (1.5, Some("2x")));
        assert_eq!(Finding::of_rounds(vec![round(1.5)]).factors[0].text(), "1.50x");
        let nested = Finding::of_rounds(vec![
            Finding::of_rounds([1.0, 2.0, 9.0].map(round).into()),
            Finding::of_rounds([3.0, 4.0, 5.0].map(round).into()),
        ]);
        assert_eq!(nested.factors[0].text(), "3.00x (1.00x to 9.00x)");
        assert_eq!(nested.factors[0].rounds, 6);
        let disturbed = Factor { disturbed: 1, ..Factor::new("hits", 0.5, Unit::Share, None) };
        assert_eq!(disturbed.text(), "50 %*");
    }

    fn drawn(y: f64, across: Across) -> Finding {
        let series = vec![Series { name: "rows".into(), points: vec![Point::new(0.0, y).labelled(y * 1e6)] }];
        let chart = Chart {
            title: "chart".into(),
            x_label: String::new(),
            across,
            y_label: String::new(),
            unit: Unit::Rate,
            scale: Scale::Linear,
            shape: Shape::Bars,
            series,
            marks: vec![],
            width: 100,
            height: 100,
        };
        let (title, see, settings) = ("figure".into(), String::new(), String::new());
        let figure = Figure { title, see, settings, paper: None, charts: vec![chart] };
        Finding { figures: vec![figure], ..Finding::default() }
    }

    #[test]
    fn charts_over_names_show_the_spread_and_courses_one_round() {
        let names = || Across::Names(vec!["a".into()]);
        let point = |finding: &Finding| finding.figures[0].charts[0].series[0].points[0].clone();
        let of = |rounds: &[f64], across: &dyn Fn() -> Across| {
            Finding::of_rounds(rounds.iter().map(|&y| drawn(y, across())).collect())
        };
        let three = of(&[7.0, 1.0, 3.0], &names);
        assert_eq!((point(&three).y, point(&three).spread), (3.0, Some([1.0, 7.0])));
        assert_eq!(point(&three).label, Some(3e6), "its own median");
        let both = Finding::of_rounds(vec![three, of(&[2.0, 2.0, 9.0], &names)]);
        // As factors: of an even number the mean of the two in the middle.
        assert_eq!((point(&both).y, point(&both).spread), (2.5, Some([1.0, 9.0])));
        assert_eq!(point(&both).label, Some(2.5e6));
        let alone = Point::new(0.0, 7.0).labelled(7e6);
        assert_eq!(point(&of(&[7.0], &names)), alone);
        let course = of(&[7.0, 1.0], &|| Across::Numbers(Unit::Seconds));
        assert_eq!(point(&course), alone, "the first of those that were not disturbed");
    }
}
