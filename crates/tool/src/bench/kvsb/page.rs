//! The report for a person: one HTML file with charts; text for the terminal; and the JSON of the same.
//!
//! Owns what is drawn of which figures, and the sentences to it. Promises that each figure says whether it was measured or is of the model, and that charts over names show medians and ranges of the rounds. Must not know how anything
//! was measured; how charts and pages look is [`page`]'s.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::KvsbArgs;
use super::course::KvsbWindow;
use super::figures::{self, KvsbDeviceFigures, KvsbLatencies, KvsbPhaseFigures};
use super::model::{KvsbModel, ModelCurve, ModelMeasured};
use crate::bench::chart::{Across, Chart, Point, Scale, Series, Shape, Unit, escape};
use crate::bench::paper::finding::{Figure, Finding};
use crate::bench::paper::page;
use crate::bench::report::{count, table};

const TITLE: &str = "Key-value devices in software";
const WIDTH: u32 = 500;
/// Lines of single devices, beside that of all of them, that a chart has colours for.
const DEVICES_DRAWN: usize = 5;
const NO_DRIVE: &str = "Nothing here was measured on a drive. Devices are programs on this machine: how quick they are says what they take of it, and \
    not what a drive would do. Figures that are called of the model come from a drive's timeline in virtual time and from the processor time that was measured.";

/// Names of phases in their order; of one that is run again with a number.
fn names(phases: &[KvsbPhaseFigures]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (at, phase) in phases.iter().enumerate() {
        let before = phases[..at].iter().filter(|other| other.phase == phase.phase).count();
        names.push(if before == 0 { phase.phase.clone() } else { format!("{} {}", phase.phase, before + 1) });
    }
    names
}

/// A chart over names whose vertical axis is divided by powers of ten.
fn in_decades(chart: Chart) -> Chart {
    Chart { scale: Scale::Log, ..chart }
}

/// A number of a phase; none where there is none.
type OfPhase<'a> = dyn Fn(&KvsbPhaseFigures) -> Option<f64> + 'a;

/// A number of latencies.
type OfLatencies = fn(&KvsbLatencies) -> f64;

/// What is drawn of one round.
struct Drawing<'a> {
    phases: &'a [KvsbPhaseFigures],
    names: Vec<String>,
    settings: String,
}

impl Drawing<'_> {
    fn device_names(&self) -> Vec<String> {
        let devices = self.phases.first().map_or(0, |phase| phase.devices.len());
        (1..=devices).map(|device| device.to_string()).collect()
    }

    fn has_several(&self) -> bool {
        self.device_names().len() > 1
    }

    fn figure(&self, title: impl Into<String>, see: &str, charts: Vec<Chart>) -> Figure {
        let settings = format!("Measured. {}", self.settings);
        Figure { title: title.into(), see: see.into(), settings, paper: None, charts }
    }

    /// Bars over phases.
    fn by_phase(&self, title: &str, y: (&str, Unit), series: &[(&str, &OfPhase)]) -> Chart {
        let series =
            series.iter().map(|(name, of)| Series::over_names(name, self.phases.iter().map(of))).collect();
        Chart::over_names(title, ("phase", self.names.clone()), y, (Shape::Bars, WIDTH), series)
    }

    /// Dots over devices, a colour for each phase.
    fn by_device(&self, title: &str, y: (&str, Unit), of: &dyn Fn(&KvsbDeviceFigures) -> f64) -> Chart {
        let series = self.phases.iter().zip(&self.names);
        let series = series
            .map(|(phase, name)| Series::over_names(name, phase.devices.iter().map(|one| Some(of(one)))));
        let names = ("device", self.device_names());
        Chart::over_names(title, names, y, (Shape::Dots, WIDTH), series.collect())
    }

    fn throughput(&self) -> Figure {
        let y = ("operations/s", Unit::Rate);
        let mut charts =
            vec![self.by_phase("All devices together", y, &[("all", &|phase| Some(phase.all.ops_per_s))])];
        if self.has_several() {
            charts.push(self.by_device("Each device", y, &|one| one.ops_per_s));
        }
        self.figure("Throughput", "Devices that share nothing are as quick as each other.", charts)
    }

    fn latencies(&self, phase: &KvsbPhaseFigures, name: &str) -> Figure {
        let y = ("latency", Unit::Microseconds);
        let shares: [(&str, OfLatencies); 6] = [
            ("p50", |one| one.p50_us),
            ("p90", |one| one.p90_us),
            ("p99", |one| one.p99_us),
            ("p99.9", |one| one.p999_us),
            ("p99.99", |one| one.p9999_us),
            ("max", |one| one.max_us),
        ];
        let across = ("of all operations at or below", shares.map(|(name, _)| name.to_owned()).into());
        let line =
            |one: &KvsbLatencies| Series::over_names(&one.operation, shares.map(|(_, of)| Some(of(one))));
        let all = phase.all.latencies.iter().map(line).collect();
        let title = "All devices, by operation";
        let mut charts = vec![in_decades(Chart::over_names(title, across, y, (Shape::Lines, WIDTH), all))];
        let operations = phase.all.latencies.iter().map(|one| &one.operation).filter(|_| self.has_several());
        charts.extend(operations.map(|operation| {
            let of = |of: fn(&KvsbLatencies) -> f64| {
                phase.devices.iter().map(move |device| {
                    device.latencies.iter().find(|one| one.operation == *operation).map(of)
                })
            };
            let drawn = [shares[0], shares[2], shares[3], shares[5]];
            let series = drawn.map(|(name, share)| Series::over_names(name, of(share))).into();
            let names = ("device", self.device_names());
            let title = format!("Each device: {operation}");
            in_decades(Chart::over_names(title, names, y, (Shape::Dots, WIDTH), series))
        }));
        let see = "A line that rises late has a short tail: the right end is the slowest operation of all.";
        self.figure(format!("Latency: {name}"), see, charts)
    }

    fn processors(&self) -> Figure {
        let y = ("processor time an operation", Unit::Microseconds);
        let client = |one: &KvsbDeviceFigures| one.us_per_op(one.client_cpu_s);
        let device = |one: &KvsbDeviceFigures| one.us_per_op(one.device_cpu_s);
        let mut charts = vec![self.by_phase(
            "All devices",
            y,
            &[("client", &|phase| Some(client(&phase.all))), ("device", &|phase| Some(device(&phase.all)))],
        )];
        if self.has_several() {
            charts.push(self.by_device("Client of each device", y, &client));
            charts.push(self.by_device("Thread of each device", y, &device));
        }
        let see = "What the client takes a program would take with drives, too, its own checks among it; what the device takes a drive would do by itself.";
        self.figure("Processor time", see, charts)
    }

    fn amplification(&self) -> Figure {
        let stored = |phase: &KvsbPhaseFigures, of: f64| (phase.all.stored_bytes > 0).then_some(of);
        let chart = self.by_phase(
            "Bytes for each byte that was stored",
            ("amplification", Unit::Times),
            &[
                ("at the host", &|phase| stored(phase, phase.all.host_amplification)),
                ("inside, to flash", &|phase| stored(phase, phase.all.amplification)),
                ("of these copies of gc", &|phase| {
                    let copied = phase.all.gc_copied_bytes as f64 / phase.all.stored_bytes.max(1) as f64;
                    stored(phase, copied)
                }),
            ],
        );
        let written = self.by_phase(
            "Bytes of each phase",
            ("bytes", Unit::Bytes),
            &[
                ("stored", &|phase| Some(phase.all.stored_bytes as f64)),
                ("written to flash", &|phase| Some(phase.all.flash_bytes_written as f64)),
                ("copied by gc", &|phase| Some(phase.all.gc_copied_bytes as f64)),
            ],
        );
        let see = "At the host it is 1 where a pair goes to the device once and nothing else does. Inside there are heads of records and what fills them up, which weigh the more the shorter values are, and copies of gc. Footers of blocks are not among it. Phases that store nothing have none.";
        self.figure("Amplification", see, vec![chart, written])
    }

    fn space(&self) -> Figure {
        let bytes = self.by_phase(
            "Bytes at the end of each phase",
            ("bytes", Unit::Bytes),
            &[
                ("logical: keys and values", &|phase| Some(phase.all.logical_bytes as f64)),
                ("physical: what they take", &|phase| Some(phase.all.used_bytes as f64)),
            ],
        );
        let share: (&str, Unit) = ("of the capacity", Unit::Share);
        let mut charts = vec![
            bytes,
            self.by_phase("How full all devices are", share, &[("taken", &|phase| Some(phase.all.taken()))]),
        ];
        if self.has_several() {
            charts.push(self.by_device("How full each device is", share, &KvsbDeviceFigures::taken));
        }
        self.figure(
            "Space",
            "What is between logical and physical bytes is of heads, footers, filling up and tombstones.",
            charts,
        )
    }

    fn course(&self, phase: &KvsbPhaseFigures, name: &str) -> Figure {
        let line = |name: &str, windows: &[KvsbWindow], of: fn(&KvsbWindow) -> f64| {
            let points = windows.iter().map(|window| Point::new(window.until_s, of(window))).collect();
            Series { name: name.into(), points }
        };
        let chart = |title: &str, y_label: &str, unit, series| Chart {
            title: title.into(),
            x_label: "seconds from the start of the phase".into(),
            across: Across::Numbers(Unit::Seconds),
            y_label: y_label.into(),
            unit,
            scale: Scale::Linear,
            shape: Shape::Lines,
            series,
            marks: vec![],
            width: WIDTH,
            height: 260,
        };
        let ops: fn(&KvsbWindow) -> f64 = |window| window.ops_per_s;
        let mut rates = vec![line("all", &phase.all.course, ops)];
        let mut cores = vec![
            line("clients", &phase.all.course, |window| window.client_cores),
            line("devices", &phase.all.course, |window| window.device_cores),
        ];
        if self.has_several() && phase.devices.len() <= DEVICES_DRAWN {
            let each = phase.devices.iter();
            rates.extend(each.clone().map(|one| line(&format!("device {}", one.device), &one.course, ops)));
        }
        if phase.devices.len() == 2 {
            cores.extend(phase.devices.iter().map(|one| {
                line(&format!("device {}", one.device), &one.course, |window| window.device_cores)
            }));
        }
        let charts = vec![
            chart("Throughput", "operations/s", Unit::Rate, rates),
            chart("Processors kept busy", "processors", Unit::Number, cores),
        ];
        let see = "What is steady is a level line; what gc does shows as dents. Operations are counted as they begin.";
        let mut figure = self.figure(format!("Over time: {name}"), see, charts);
        figure.settings.push_str("; the first round");
        figure
    }

    fn figures(&self) -> Vec<Figure> {
        let each = || self.phases.iter().zip(&self.names);
        let mut figures = vec![self.throughput()];
        figures.extend(each().map(|(phase, name)| self.latencies(phase, name)));
        figures.push(self.processors());
        figures.extend(each().map(|(phase, name)| self.course(phase, name)));
        figures.extend([self.amplification(), self.space()]);
        figures
    }
}

/// What is drawn of all rounds.
fn drawn(args: &KvsbArgs, phases: &[KvsbPhaseFigures]) -> Vec<Figure> {
    let rounds = (1..=args.rounds).map(|round| {
        let phases: Vec<KvsbPhaseFigures> =
            phases.iter().filter(|phase| phase.round == round).cloned().collect();
        let drawing = Drawing { phases: &phases, names: names(&phases), settings: described(args) };
        Finding { figures: drawing.figures(), ..Finding::default() }
    });
    Finding::of_rounds(rounds.collect()).figures
}

/// What was measured, in half a line.
fn described(args: &KvsbArgs) -> String {
    let devices = match args.device_count() {
        1 => "1 device".to_owned(),
        devices => format!("{devices} devices"),
    };
    format!(
        "{devices} on {}; {} pairs each, keys of {} bytes, values of {}, {} under way, {}",
        args.place(),
        count(args.keys as f64),
        args.key_bytes,
        args.value_bytes,
        args.depth,
        format!("{:?}", args.distribution).to_lowercase()
    )
}

/// What devices, drives and machines are called in charts of the model.
fn size(bytes: usize) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} KiB", bytes >> 10) }
}

/// The curves of one chart: one operation, one size, one machine.
fn model_chart(model: &KvsbModel, first: &ModelCurve) -> Chart {
    let is_own = |curve: &&ModelCurve| {
        (&curve.operation, curve.value_bytes, curve.cores)
            == (&first.operation, first.value_bytes, first.cores)
    };
    let devices: Vec<u32> = first.points.iter().map(|point| point.devices).collect();
    let mut series =
        vec![Series::over_names("as many times as drives", devices.iter().map(|&n| Some(f64::from(n))))];
    series.extend(model.curves.iter().filter(is_own).map(|curve| {
        let name = format!("{} ({:.2} us)", curve.cpu, curve.cpu_ns as f64 / 1e3);
        let point = |(at, point): (usize, &super::model::ModelPoint)| {
            Point::new(at as f64, point.times_one).labelled(point.ops_per_s)
        };
        Series { name, points: curve.points.iter().enumerate().map(point).collect() }
    }));
    let real = |devices: u32| {
        let own =
            |one: &&ModelMeasured| (&one.operation, one.value_bytes) == (&first.operation, first.value_bytes);
        let of = |devices| model.measured.iter().filter(own).find(|one| one.devices == devices);
        Some((of(devices as usize)?.ops_per_s, of(1)?.ops_per_s))
    };
    let points = devices.iter().enumerate().filter_map(|(at, &devices)| {
        let (rate, one) = real(devices)?;
        Some(Point::new(at as f64, rate / one.max(1e-9)).labelled(rate))
    });
    series.push(Series { name: "measured, real time".into(), points: points.collect() });
    let title = format!("{} of {}, {} cores", first.operation, size(first.value_bytes), first.cores);
    let names = devices.iter().map(u32::to_string).collect();
    let y = ("times one device", Unit::Times);
    Chart::over_names(title, ("devices", names), y, (Shape::Lines, WIDTH), series)
}

/// What the model says, a figure for each value size.
fn model_figures(model: &KvsbModel) -> Vec<Figure> {
    let mut figures: Vec<(usize, Figure)> = Vec::new();
    let mut seen = Vec::new();
    for curve in &model.curves {
        let of = (&curve.operation, curve.value_bytes, curve.cores);
        if seen.contains(&of) {
            continue;
        }
        seen.push(of);
        let chart = model_chart(model, curve);
        if let Some((_, figure)) = figures.iter_mut().find(|(bytes, _)| *bytes == curve.value_bytes) {
            figure.charts.push(chart);
            continue;
        }
        let settings = format!(
            "Of the model, but for the dots called measured: drives in virtual time, {} under way on each, a bus of {} MB/s, and the processor time in brackets an operation. Measured: that time, unless it was given, \
             and one device and two in memory on this machine, in real time, in terms of one of them",
            model.inputs.depth,
            model.inputs.bus_bytes_a_second / 1_000_000
        );
        let figure = Figure {
            title: format!("A machine with many drives: values of {}", size(curve.value_bytes)),
            see: "A curve leaves the straight one where the machine's cores or its bus are full: with twice the processor time in half as many drives, if it is the cores.".into(),
            settings,
            paper: None,
            charts: vec![chart],
        };
        figures.push((curve.value_bytes, figure));
    }
    figures.into_iter().map(|(_, figure)| figure).collect()
}

fn measured_table(model: &KvsbModel) -> figures::Table {
    let row = |one: &ModelMeasured| {
        let us = |ns: f64| format!("{:.2}", ns / 1e3);
        let star = if one.disturbed { "*" } else { "" };
        vec![
            format!("{} of {}", one.operation, size(one.value_bytes)),
            one.devices.to_string(),
            format!("{}{star}", count(one.ops_per_s)),
            us(one.client_ns),
            us(one.device_ns),
            if one.pinned { "yes" } else { "no" }.to_owned(),
        ]
    };
    (
        &["measured", "devices", "ops/s", "client us/op", "device us/op", "pinned"],
        model.measured.iter().map(row).collect(),
    )
}

fn curve_table(model: &KvsbModel) -> figures::Table {
    let rows = model.curves.iter().flat_map(|curve| {
        curve.points.iter().map(move |point| {
            vec![
                format!("{} of {}", curve.operation, size(curve.value_bytes)),
                curve.cores.to_string(),
                format!("{}: {:.2}", curve.cpu, curve.cpu_ns as f64 / 1e3),
                point.devices.to_string(),
                count(point.ops_per_s),
                format!("{:.2}", point.times_one),
                format!("{:.1}", point.cores_busy),
                format!("{:.0} %", point.bus_busy * 100.0),
            ]
        })
    });
    (&["model", "cores", "us/op", "devices", "ops/s", "times one", "cores busy", "bus busy"], rows.collect())
}

/// What went into the model and was not measured, in a sentence.
fn model_inputs(model: &KvsbModel) -> String {
    let cores: Vec<String> = model.inputs.cores.iter().map(u32::to_string).collect();
    let cpu = match model.inputs.cpu_ns_given {
        Some(ns) => format!("{ns} ns of a core an operation, as given"),
        None => "what was measured of a core an operation".into(),
    };
    format!(
        "machines of {} cores, {} MB/s over the bus, {} commands under way, keys of {} bytes, {cpu}; the drive: {}",
        cores.join(" and "),
        model.inputs.bus_bytes_a_second / 1_000_000,
        model.inputs.depth,
        model.inputs.key_bytes,
        model.inputs.drive
    )
}

/// What the terminal shows.
pub(super) fn text(phases: &[KvsbPhaseFigures], model: Option<&KvsbModel>) -> String {
    let mut text = figures::tables(phases);
    if let Some(model) = model {
        let [measured, curves] =
            [measured_table(model), curve_table(model)].map(|(head, rows)| table(head, rows));
        let stars = model.measured.iter().any(|one| one.disturbed);
        let note = if stars { "* others used the machine meanwhile\n" } else { "" };
        let inputs = model_inputs(model);
        let _ = write!(
            text,
            "\nMeasured for the model: devices in memory on this machine, in real time\n{measured}{note}\nPut into the model: {inputs}\n\nOf the model: drives in virtual time\n{curves}"
        );
    }
    text
}

/// The page.
pub(super) fn html(args: &KvsbArgs, phases: &[KvsbPhaseFigures], model: Option<&KvsbModel>) -> String {
    let mut page = page::opened(TITLE);
    head(&mut page, args, phases);
    let mut links = String::from("<a href=\"#measured\">Measured</a> ");
    if model.is_some() {
        links.push_str("<a href=\"#model\">Of the model</a> ");
    }
    let _ =
        writeln!(page, "<nav>{links}</nav>\n<section>\n<h2 id=\"measured\">Measured on this machine</h2>");
    drawn(args, phases).iter().for_each(|figure| page::card(&mut page, figure));
    let _ = writeln!(page, "<details><summary>All phases in numbers</summary>");
    for (head, rows) in [figures::latency_table(phases), figures::cost_table(phases)] {
        page::markup_table(&mut page, head, rows.into_iter());
    }
    page.push_str("</details>\n</section>\n");
    if let Some(model) = model {
        model_section(&mut page, model);
    }
    page.push_str(page::END);
    page
}

fn model_section(page: &mut String, model: &KvsbModel) {
    let _ = writeln!(page, "<section>\n<h2 id=\"model\">A machine with many drives, by the model</h2>");
    let _ = writeln!(
        page,
        "<h4>Put into the model</h4>\n<p class=\"soft\">{}.</p>",
        escape(&model_inputs(model))
    );
    let _ = writeln!(page, "<h4>Measured for it, in this run</h4>");
    let (head, rows) = measured_table(model);
    page::markup_table(page, head, rows.into_iter());
    let stars = model.measured.iter().any(|one| one.disturbed);
    if stars {
        page.push_str("<p class=\"soft\">* Others used the machine meanwhile.</p>\n");
    }
    let _ = writeln!(page, "<h4>What comes out</h4>");
    model_figures(model).iter().for_each(|figure| page::card(page, figure));
    let _ = writeln!(page, "<details><summary>All of the model in numbers</summary>");
    let (head, rows) = curve_table(model);
    page::markup_table(page, head, rows.into_iter());
    page.push_str("</details>\n</section>\n");
}

fn head(page: &mut String, args: &KvsbArgs, phases: &[KvsbPhaseFigures]) {
    let settings = args.to_json();
    let text = |name: &str| {
        escape(&settings[name].as_str().map_or_else(|| settings[name].to_string(), str::to_owned))
    };
    let pinned = match phases.iter().all(|phase| phase.pinned) {
        true => "each thread had a processor of its own",
        false => "threads shared processors",
    };
    let rate = args
        .rate
        .map_or("as fast as it goes".into(), |rate| format!("{rate} operations a second on each device"));
    let ack = if args.immediate { "durable before they are acknowledged" } else { "buffered" };
    let _ = writeln!(
        page,
        "<p class=\"soft\">Hedgerow {} on {}, nodes of memory: {}; {pinned}. {}; phases {}, {} operations each but for insert, mix {}, {}, stores {ack}, seed {}, rounds: {}.</p>",
        text("version"),
        text("machine"),
        text("memory_nodes"),
        escape(&described(args)),
        escape(&args.phases.join(", ")),
        text("operations"),
        text("mix"),
        escape(&rate),
        text("seed"),
        text("rounds"),
    );
    let _ = writeln!(page, "<p class=\"soft\">{NO_DRIVE}</p>");
    let disturbed = phases.iter().filter(|phase| phase.is_disturbed()).count();
    if disturbed > 0 {
        let _ = writeln!(
            page,
            "<p class=\"soft\"><b>Note:</b> in {disturbed} of {} phases others kept 0.2 processors or more busy, the kernel's write-back among them.</p>",
            phases.len()
        );
    }
    if args.rounds > 1 {
        page.push_str("<p class=\"soft\">Charts show medians of the rounds, whiskers from the least to the most; courses over time are of the first round.</p>\n");
    }
}

/// All figures as JSON: those of phases under `results`, as ever, and those of the model under `model`.
fn document(args: &KvsbArgs, phases: &[KvsbPhaseFigures], model: Option<&KvsbModel>) -> Value {
    let mut document = json!({ "settings": args.to_json(), "results": phases });
    if let Some(model) = model {
        document["model"] = json!(model);
    }
    document
}

/// Writes both reports that were asked for, the one where the other cannot be.
///
/// # Errors
/// A sentence for a person.
pub(super) fn write_reports(
    args: &KvsbArgs,
    phases: &[KvsbPhaseFigures],
    model: Option<&KvsbModel>,
) -> Result<(), String> {
    let write = |path: &std::path::Path, what: &str, text: String| {
        std::fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))?;
        eprintln!("{what}: {}", path.display());
        Ok(())
    };
    let html = args.html.as_ref().map_or(Ok(()), |path| write(path, "report", html(args, phases, model)));
    let json = args.json.as_ref().map_or(Ok(()), |path| {
        let text =
            serde_json::to_string_pretty(&document(args, phases, model)).map_err(|error| error.to_string());
        write(path, "figures", text? + "\n")
    });
    let failures: Vec<String> = [json, html].into_iter().filter_map(Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}
