//! What is compared with what, in virtual time.
//!
//! Owns the experiments: which runs each takes, and what is told of them. Promises that where the order that the paper claims does not hold a note says so. Must not know how a run is run.

use hedgerow_pool::fabric::nic::CostFactor;

use super::figures::{PoolFigures, PoolLatencies, QUANTILES, RUN_COLUMNS};
use super::load::PoolLoad;
use super::page::PoolSection;
use super::setting::{PoolCost, PoolSetting, PoolStep, distribution_name, factor_name};
use crate::bench::chart::{Chart, Point, Scale, Series, Shape, Unit};
use crate::bench::distribution::Distribution;
use crate::bench::paper::finding::{Factor, Figure, FigureTable, Finding, median, median_and_range};
use crate::bench::report::{count, latency};

const WIDTH: u32 = 500;
const SEE_RATES: &str = "Calls a second of virtual time, of all compute nodes together.";
/// Of every number of the paper.
const DIFFERS: &str = "real cards and processors, 20 compute nodes, 10 million pairs, periods of a second; which load a step's number is of we do not know";

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolExperiment {
    Loads,
    Ablation,
    Values,
    Updates,
    Nodes,
    Costs,
}

/// What experiments go over.
#[derive(Debug, Clone)]
pub(super) struct ModelledPlan {
    /// By their names.
    pub(super) loads: Vec<String>,
    pub(super) distributions: Vec<Distribution>,
    /// The first one is that of all experiments but the one over them.
    pub(super) value_bytes: Vec<usize>,
    /// Percents of updates.
    pub(super) updates: Vec<u64>,
    /// Compute and memory nodes; the first pair is that of all experiments but the one over them.
    pub(super) nodes: Vec<(u16, u8)>,
    pub(super) rounds: usize,
}

/// What came of each setting, round by round.
pub(super) struct ModelledResults(pub(super) Vec<(PoolSetting, Vec<PoolFigures>)>);

impl ModelledResults {
    fn of(&self, setting: &PoolSetting) -> &[PoolFigures] {
        self.0.iter().find(|(other, _)| other == setting).map_or(&[], |(_, rounds)| rounds)
    }

    fn rate(&self, setting: &PoolSetting, round: usize) -> f64 {
        self.of(setting).get(round).map_or(f64::NAN, |figures| figures.calls_per_s)
    }
}

/// A line of a table: what it is called, and the run that it is of.
type ComparedLine = (Vec<String>, PoolSetting);

/// What is compared wherever steps are not.
const COMPARED: [PoolStep; 3] = [PoolStep::Direct, PoolStep::Split, PoolStep::Owners];
const COMPARED_OF_LOADS: [PoolStep; 4] = [PoolStep::Direct, PoolStep::Split, PoolStep::All, PoolStep::Owners];

impl ModelledPlan {
    fn setting(&self, step: PoolStep, load: PoolLoad) -> PoolSetting {
        let (compute_nodes, memory_nodes) = self.nodes.first().copied().unwrap_or((1, 1));
        let value_bytes = self.value_bytes.first().copied().unwrap_or(128);
        PoolSetting { step, load, value_bytes, compute_nodes, memory_nodes, cost: None }
    }

    /// A load of YCSB's; its name was checked.
    fn load(&self, name: &str, distribution: Distribution) -> Option<PoolLoad> {
        PoolLoad::find(name, distribution).ok()
    }

    fn loads(&self, distribution: Distribution) -> impl Iterator<Item = (String, PoolLoad)> {
        self.loads.iter().filter_map(move |name| Some((name.to_uppercase(), self.load(name, distribution)?)))
    }

    /// Half reads, half updates, and so that some are hot.
    fn load_a(&self) -> PoolLoad {
        PoolLoad { reads: 50, inserts: false, distribution: Distribution::Zipfian }
    }
}

impl PoolExperiment {
    pub(super) const ALL: [PoolExperiment; 6] = [
        PoolExperiment::Loads,
        PoolExperiment::Ablation,
        PoolExperiment::Values,
        PoolExperiment::Updates,
        PoolExperiment::Nodes,
        PoolExperiment::Costs,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            PoolExperiment::Loads => "loads",
            PoolExperiment::Ablation => "ablation",
            PoolExperiment::Values => "values",
            PoolExperiment::Updates => "updates",
            PoolExperiment::Nodes => "nodes",
            PoolExperiment::Costs => "costs",
        }
    }

    fn title(self) -> &'static str {
        match self {
            PoolExperiment::Loads => "Loads of YCSB",
            PoolExperiment::Ablation => "Step by step",
            PoolExperiment::Values => "Sizes of values",
            PoolExperiment::Updates => "Parts of updates",
            PoolExperiment::Nodes => "Compute nodes and memory nodes",
            PoolExperiment::Costs => "Costs that are assumed",
        }
    }

    /// All runs that it takes, by what they are called: a group is what one chart has across.
    fn groups(self, plan: &ModelledPlan) -> Vec<(String, Vec<(String, PoolSetting)>)> {
        let direct = |load| plan.setting(PoolStep::Direct, load);
        let over = |points: Vec<(String, PoolSetting)>| vec![("zipfian".to_owned(), points)];
        let a = direct(plan.load_a());
        match self {
            PoolExperiment::Loads => {
                let group = |&distribution: &Distribution| {
                    let points = plan.loads(distribution).map(|(name, load)| (name, direct(load)));
                    (distribution_name(distribution).to_owned(), points.collect())
                };
                plan.distributions.iter().map(group).collect()
            }
            PoolExperiment::Ablation => {
                over(plan.loads(Distribution::Zipfian).map(|(name, load)| (name, direct(load))).collect())
            }
            PoolExperiment::Values => over(
                plan.value_bytes
                    .iter()
                    .map(|&value_bytes| (format!("{value_bytes} B"), PoolSetting { value_bytes, ..a }))
                    .collect(),
            ),
            PoolExperiment::Updates => {
                let load = |&updates: &u64| PoolLoad { reads: 100 - updates, ..plan.load_a() };
                over(plan.updates.iter().map(|one| (format!("{one} %"), direct(load(one)))).collect())
            }
            PoolExperiment::Nodes => over(
                plan.nodes
                    .iter()
                    .map(|&(compute_nodes, memory_nodes)| {
                        let setting = PoolSetting { compute_nodes, memory_nodes, ..a };
                        (format!("{compute_nodes}:{memory_nodes}"), setting)
                    })
                    .collect(),
            ),
            PoolExperiment::Costs => {
                let mut points = vec![("as assumed".to_owned(), a)];
                for cost in PoolCost::ALL {
                    points.extend([CostFactor::Half, CostFactor::Double].map(|factor| {
                        let name = format!("{} {}", cost.name(), factor_name(factor));
                        (name, PoolSetting { cost: Some((cost, factor)), ..a })
                    }));
                }
                over(points)
            }
        }
    }

    fn steps(self) -> &'static [PoolStep] {
        match self {
            PoolExperiment::Ablation => &PoolStep::ABLATION,
            PoolExperiment::Loads => &COMPARED_OF_LOADS,
            // There are many of them.
            PoolExperiment::Costs => &COMPARED[..2],
            _ => &COMPARED,
        }
    }

    /// All runs that it takes.
    pub(super) fn settings(self, plan: &ModelledPlan) -> Vec<PoolSetting> {
        let points = self.groups(plan).into_iter().flat_map(|(_, points)| points);
        points
            .flat_map(|(_, setting)| self.steps().iter().map(move |&step| PoolSetting { step, ..setting }))
            .collect()
    }

    /// What is told of it.
    pub(super) fn section(self, plan: &ModelledPlan, results: &ModelledResults) -> PoolSection {
        let groups = self.groups(plan);
        let rounds = (0..plan.rounds).map(|round| self.round(&groups, results, round)).collect();
        let mut finding = Finding::of_rounds(rounds);
        for (group, points) in &groups {
            let lines = |(name, setting): &(String, PoolSetting)| {
                let line = |&step: &PoolStep| {
                    (vec![name.clone(), step.name().to_owned()], PoolSetting { step, ..*setting })
                };
                self.steps().iter().map(line).collect::<Vec<ComparedLine>>()
            };
            let lines: Vec<ComparedLine> = points.iter().flat_map(lines).collect();
            let settings = describe(group, plan, &lines);
            finding.tables.push(self.rate_table(group, &settings, &lines, results));
            if matches!(self, PoolExperiment::Loads | PoolExperiment::Ablation) {
                finding.tables.push(breakdown_table(group, &settings, &lines, results));
                finding.tables.push(path_table(group, &settings, &lines, results));
            }
        }
        let mut notes = notes(&finding.factors, &groups, self.steps(), results);
        if self.steps().contains(&PoolStep::All) {
            notes.extend(missed(&groups, results));
        }
        PoolSection { name: self.name(), title: self.title().into(), finding, notes }
    }

    /// Charts and factors of one round.
    fn round(
        self,
        groups: &[(String, Vec<(String, PoolSetting)>)],
        results: &ModelledResults,
        round: usize,
    ) -> Finding {
        let mut finding = Finding::default();
        for (group, points) in groups {
            let names: Vec<String> = points.iter().map(|(name, _)| name.clone()).collect();
            let rates = self.steps().iter().map(|&step| {
                let rate = |(_, setting): &(String, PoolSetting)| {
                    Some(results.rate(&PoolSetting { step, ..*setting }, round))
                };
                Series::over_names(step.name(), points.iter().map(rate))
            });
            let y = ("calls/s", Unit::Rate);
            let across = (self.title(), names);
            let chart = Chart::over_names(
                format!("Throughput, {group}"),
                across,
                y,
                (Shape::Bars, 2 * WIDTH),
                rates.collect(),
            );
            let mut charts = vec![chart];
            charts.extend(self.latency_charts(points, results, round));
            finding.figures.push(Figure {
                title: format!("{}, {group}", self.title()),
                see: SEE_RATES.into(),
                settings: "Modelled, in virtual time; whiskers from the least round to the most".into(),
                paper: None,
                charts,
            });
            points
                .iter()
                .for_each(|point| finding.factors.extend(self.factors(group, point, results, round)));
        }
        finding
    }

    /// At which latency how many of the calls are done.
    fn latency_charts(
        self,
        points: &[(String, PoolSetting)],
        results: &ModelledResults,
        round: usize,
    ) -> Vec<Chart> {
        if self != PoolExperiment::Loads {
            return Vec::new();
        }
        let of = |(name, setting): &(String, PoolSetting)| {
            let series = self.steps().iter().filter_map(|&step| {
                let figures = results.of(&PoolSetting { step, ..*setting }).get(round)?;
                let all = figures.latency("all")?;
                // What takes no time is below every power of ten.
                let point = |(at, &ns): (usize, &u64)| Point::new(at as f64, ns.max(1) as f64 / 1e3);
                let points = all.at.iter().enumerate().map(point).collect();
                Some(Series { name: step.name().into(), points })
            });
            let across = ("of all calls at or below", QUANTILES.map(|(name, _)| name.to_owned()).into());
            let y = ("latency", Unit::Microseconds);
            let title = format!("Latency, {name}");
            let chart = Chart::over_names(title, across, y, (Shape::Lines, WIDTH), series.collect());
            Chart { scale: Scale::Log, ..chart }
        };
        points.iter().map(of).collect()
    }

    fn factors(
        self,
        group: &str,
        (name, setting): &(String, PoolSetting),
        results: &ModelledResults,
        round: usize,
    ) -> Vec<Factor> {
        let rate = |step| results.rate(&PoolSetting { step, ..*setting }, round);
        let times = |one: PoolStep, other: PoolStep, paper| {
            let what = format!("{name}, {group}: {} in terms of {}", one.name(), other.name());
            Factor::times(what, rate(one), rate(other), paper).beside(DIFFERS)
        };
        if self == PoolExperiment::Ablation {
            let pairs = PoolStep::ABLATION.windows(2);
            return pairs.map(|pair| times(pair[1], pair[0], pair[1].paper())).collect();
        }
        let paper = (self == PoolExperiment::Loads).then_some("up to 2.94x of its baselines");
        let owners = (self == PoolExperiment::Loads).then_some("owners cost 24.9 %: 1.33x");
        let mut factors = vec![times(PoolStep::Split, PoolStep::Direct, paper)];
        if self.steps().contains(&PoolStep::Owners) {
            factors.push(times(PoolStep::Split, PoolStep::Owners, owners));
        }
        factors
    }

    fn rate_table(
        self,
        group: &str,
        settings: &str,
        lines: &[ComparedLine],
        results: &ModelledResults,
    ) -> FigureTable {
        let rows = lines.iter().map(|(names, setting)| {
            let rounds = results.of(setting);
            let mut row = vec![names.join(" ")];
            row.push(cell(rounds, |figures| Some(figures.calls_per_s), count));
            for (path, quantile) in ["read", "write"]
                .into_iter()
                .flat_map(|path| ["p50", "p99", "p99.9"].map(|quantile| (path, quantile)))
            {
                let ns = |figures: &PoolFigures| Some(figures.latency(path)?.ns(quantile) as f64 / 1e3);
                row.push(cell(rounds, ns, latency));
            }
            row.push(cell(rounds, |figures| figures.load_variation, |number| format!("{number:.2}")));
            row
        });
        FigureTable {
            title: format!("{}, {group}", self.title()),
            settings: settings.into(),
            head: [&RUN_COLUMNS[..], &["variation of load"]].concat(),
            rows: rows.collect(),
        }
    }
}

/// What a table was found with.
fn describe(group: &str, plan: &ModelledPlan, lines: &[ComparedLine]) -> String {
    let Some((_, first)) = lines.first() else { return String::new() };
    let alike = |of: fn(&PoolSetting) -> String, otherwise: &str| {
        let all_alike = lines.iter().all(|(_, setting)| of(setting) == of(first));
        if all_alike { of(first) } else { otherwise.to_owned() }
    };
    let nodes = alike(
        |setting| format!("{} compute and {} memory nodes", setting.compute_nodes, setting.memory_nodes),
        "compute:memory nodes",
    );
    let values = alike(|setting| format!("values of {} bytes", setting.value_bytes), "values as in the line");
    let asked = alike(PoolSetting::asked, group);
    let rounds = if plan.rounds > 1 { "; medians of rounds, and their ranges" } else { "" };
    format!("{asked}; {nodes}, {values}{rounds}")
}

/// A number of all rounds; `-` where there is none.
fn cell(
    rounds: &[PoolFigures],
    of: impl Fn(&PoolFigures) -> Option<f64>,
    show: impl Fn(f64) -> String,
) -> String {
    let numbers: Vec<f64> = rounds.iter().filter_map(of).collect();
    if numbers.is_empty() { "-".into() } else { median_and_range(&numbers, show) }
}

/// What a call took, and which way.
fn breakdown_table(
    group: &str,
    settings: &str,
    lines: &[ComparedLine],
    results: &ModelledResults,
) -> FigureTable {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let plain = |number: f64| format!("{number:.2}");
    let rows = lines.iter().map(|(names, setting)| {
        let rounds = results.of(setting);
        let share =
            |of: fn(&PoolFigures) -> u64| cell(rounds, |figures| Some(figures.a_call(of(figures))), percent);
        let number =
            |of: fn(&PoolFigures) -> u64| cell(rounds, |figures| Some(figures.a_call(of(figures))), plain);
        vec![
            names.join(" "),
            cell(rounds, |figures| Some(figures.proxied_partitions), percent),
            share(|figures| figures.counts.proxied),
            share(|figures| figures.counts.value_hits),
            share(|figures| figures.counts.address_hits),
            share(|figures| figures.counts.slot_hits),
            number(|figures| figures.counts.asked),
            number(|figures| figures.counts.changes),
            share(|figures| figures.counts.combined),
            number(|figures| figures.counts.invalidated),
            number(|figures| figures.counts.batches),
            number(|figures| figures.counts.operations),
            number(|figures| figures.counts.atomics),
            number(|figures| figures.counts.datagrams),
            cell(rounds, |figures| Some(figures.a_call(figures.counts.bytes)), |bytes| format!("{bytes:.0}")),
            cell(rounds, |figures| Some(figures.counts.refused as f64), count),
        ]
    });
    FigureTable {
        title: format!("A call, {group}"),
        settings: format!(
            "{settings}; of partitions, calls that began in one with a proxy, and hits in parts of all calls; the others for each call; refused in all"
        ),
        head: vec![
            "",
            "partitions with a proxy",
            "calls there",
            "value hits",
            "address hits",
            "slot hits",
            "look-ups of proxies",
            "changes",
            "combined",
            "dropped pairs",
            "batches",
            "operations",
            "atomic",
            "datagrams",
            "bytes",
            "refused",
        ],
        rows: rows.collect(),
    }
}

/// Latencies by how calls began.
fn path_table(group: &str, settings: &str, lines: &[ComparedLine], results: &ModelledResults) -> FigureTable {
    let mut rows = Vec::new();
    for (names, setting) in lines {
        let rounds = results.of(setting);
        let mut paths: Vec<&str> = Vec::new();
        for path in rounds.iter().flat_map(|figures| &figures.latencies).map(|one| one.path.as_str()) {
            if path.contains(',') && !paths.contains(&path) {
                paths.push(path);
            }
        }
        for path in paths {
            let of = |of: fn(&PoolLatencies) -> f64, show: fn(f64) -> String| {
                cell(rounds, |figures| figures.latency(path).map(of), show)
            };
            let share = |figures: &PoolFigures| {
                let calls = figures.latency(path).map_or(0, |one| one.calls);
                Some(figures.a_call(calls))
            };
            rows.push(vec![
                format!("{}: {path}", names.join(" ")),
                cell(rounds, share, |share| format!("{:.1} %", share * 100.0)),
                of(|one| one.ns("p50") as f64 / 1e3, latency),
                of(|one| one.ns("p99") as f64 / 1e3, latency),
                of(|one| one.ns("p99.9") as f64 / 1e3, latency),
            ]);
        }
    }
    FigureTable {
        title: format!("Latency by path, {group}"),
        settings: format!("{settings}; a path is how a call began: what misses there goes on by another"),
        head: vec!["", "of all calls", "p50", "p99", "p99.9"],
        rows,
    }
}

/// Where the share that throughput says is worse than all.
fn missed(groups: &[(String, Vec<(String, PoolSetting)>)], results: &ModelledResults) -> Vec<String> {
    let mut notes = Vec::new();
    for (group, (name, setting)) in
        groups.iter().flat_map(|(group, points)| points.iter().map(move |point| (group, point)))
    {
        let of = |step, of: fn(&PoolFigures) -> f64| {
            median(results.of(&PoolSetting { step, ..*setting }).iter().map(of)).unwrap_or(f64::NAN)
        };
        let rate = |step| of(step, |figures| figures.calls_per_s);
        let times = rate(PoolStep::All) / rate(PoolStep::Split);
        if times > 1.02 {
            let share = of(PoolStep::Split, |figures| figures.proxied_partitions * 100.0);
            notes.push(format!(
                "{name}, {group}: by throughput {share:.0} % of the partitions have a proxy, and with all of them it is {times:.2}x of that [modelled]."
            ));
        }
    }
    notes
}

/// Where what the paper claims does not hold, and what did not come to rest.
fn notes(
    factors: &[Factor],
    groups: &[(String, Vec<(String, PoolSetting)>)],
    steps: &[PoolStep],
    results: &ModelledResults,
) -> Vec<String> {
    let mut notes = Vec::new();
    for factor in factors {
        let what = &factor.what;
        if factor.here <= 1.0 {
            notes.push(format!("The paper's order does not hold: {what} is {} [modelled].", factor.text()));
        } else if factor.least <= 1.0 {
            notes.push(format!(
                "The paper's order holds in some rounds alone: {what} is {} [modelled].",
                factor.text()
            ));
        }
    }
    for (name, setting) in groups.iter().flat_map(|(_, points)| points) {
        for &step in steps {
            let rounds = results.of(&PoolSetting { step, ..*setting });
            let restless = rounds.iter().filter(|figures| !figures.is_settled).count();
            if restless > 0 {
                notes.push(format!(
                    "{name}, {}: the choice of proxies had not come to rest in {restless} of {} rounds [modelled].",
                    step.name(),
                    rounds.len()
                ));
            }
        }
    }
    notes
}
