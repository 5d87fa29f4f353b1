//! Charts as SVG: bars and lines, drawn by nobody else.
//!
//! Owns the geometry, the ticks and the numbers on hover. Promises well-formed text that refers to nothing outside, with
//! all colours left to the classes `s0` to `s5` of the page that holds it ([`STYLE`]). Must not know what is measured.

use std::fmt::Write as _;

use serde::Serialize;

use super::report::{count, latency};

/// What the numbers of an axis are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Operations a second.
    Rate,
    /// Microseconds.
    Microseconds,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Times something.
    Times,
    /// A part of a whole, from 0 to 1.
    Share,
    /// Just so many.
    Number,
}

impl Unit {
    /// A number as a person reads it.
    pub fn show(self, number: f64) -> String {
        match self {
            Unit::Rate => count(number),
            Unit::Microseconds => latency(number),
            Unit::Bytes if number < 1000.0 => format!("{number:.0} B"),
            Unit::Bytes if number < 1e6 => format!("{} KB", plain(number / 1e3)),
            Unit::Bytes => format!("{} MB", plain(number / 1e6)),
            Unit::Seconds => format!("{} s", plain(number)),
            Unit::Number => plain(number),
            Unit::Times => format!("{number:.2}x"),
            Unit::Share => format!("{} %", plain((number * 1000.0).round() / 10.0)),
        }
    }

    /// A round number beside an axis.
    fn tick(self, number: f64) -> String {
        match self {
            Unit::Rate if number >= 1e6 => format!("{}M", plain(number / 1e6)),
            Unit::Rate if number >= 1e3 => format!("{}k", plain(number / 1e3)),
            Unit::Microseconds if number >= 1e6 => format!("{} s", plain(number / 1e6)),
            Unit::Microseconds if number >= 1e3 => format!("{} ms", plain(number / 1e3)),
            Unit::Microseconds => format!("{} us", plain(number)),
            Unit::Bytes | Unit::Share => self.show(number),
            Unit::Rate | Unit::Seconds | Unit::Times | Unit::Number => plain(number),
        }
    }
}

/// At most two decimals, and no more than it takes.
fn plain(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// From 0, or from the least number if that is below.
    Linear,
    /// By powers of ten.
    Log,
}

/// The horizontal axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Across {
    /// Names beside each other; a point's `x` is the number of its name.
    Names(Vec<String>),
    /// Numbers from 0 on.
    Numbers(Unit),
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Bars from 0, one group per name.
    Bars,
    /// Dots joined by lines.
    Lines,
    /// Dots alone, for things that do not follow each other.
    Dots,
}

/// A number to show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// Where across: a number, or the number of a name.
    pub x: f64,
    /// How high.
    pub y: f64,
    /// A number to write at a bar instead of `y`, and beside `y` on hover: a rate, where `y` is what that is in terms of another.
    pub label: Option<f64>,
    /// The least and the most of several measurements of `y`, drawn as a whisker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<[f64; 2]>,
}

impl Point {
    /// A number that was measured once.
    pub fn new(x: f64, y: f64) -> Point {
        Point { x, y, label: None, spread: None }
    }

    /// The same, with a rate to it.
    pub fn labelled(self, rate: f64) -> Point {
        Point { label: Some(rate), ..self }
    }
}

/// Points of one colour.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
}

impl Series {
    /// A series over names: the numbers in their order, those that are none left out.
    pub fn over_names(name: &str, numbers: impl IntoIterator<Item = Option<f64>>) -> Series {
        let point = |(x, y): (usize, Option<f64>)| y.map(|y| Point::new(x as f64, y));
        Series { name: name.into(), points: numbers.into_iter().enumerate().filter_map(point).collect() }
    }
}

/// A vertical line with a word to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    /// Where across.
    pub x: f64,
    /// What happened there.
    pub text: String,
}

/// One chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The name of the horizontal axis, with its unit.
    pub x_label: String,
    /// The horizontal axis.
    pub across: Across,
    /// The name of the vertical axis, with its unit.
    pub y_label: String,
    /// The unit of the vertical axis.
    pub unit: Unit,
    /// The division of the vertical axis.
    pub scale: Scale,
    /// Bars or lines.
    pub shape: Shape,
    /// What is drawn: up to six colours.
    pub series: Vec<Series>,
    /// Lines across all of it.
    pub marks: Vec<Mark>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

/// The style a page needs for these charts: colours in light and in dark, for readers who see fewer of them too.
pub const STYLE: &str = "
.chart{--s0:#1f6fb4;--s1:#d9761a;--s2:#2a9d74;--s3:#8a5cc2;--s4:#c43d5c;--s5:#6b7785;--ink:#1c2430;--soft:#5b6675;--rule:#dfe4ea}
@media(prefers-color-scheme:dark){.chart{--s0:#5aa9e6;--s1:#f0a04b;--s2:#4cc79a;--s3:#b391e6;--s4:#ef7d95;--s5:#9aa6b4;--ink:#e6eaf0;--soft:#9aa6b4;--rule:#2c3542}}
.chart{display:block;max-width:100%;height:auto;font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:11px}
.chart text{fill:var(--soft)}.chart .title{fill:var(--ink);font-size:13px;font-weight:600}.chart .name{fill:var(--ink)}.chart .value{fill:var(--ink);font-size:10px}
.chart .grid{stroke:var(--rule);stroke-width:1;fill:none}.chart .base{stroke:var(--soft);stroke-width:1;fill:none}
.chart .mark{stroke:var(--s4);stroke-width:1.5;stroke-dasharray:4 3;fill:none}.chart .line{fill:none;stroke-width:2;stroke-linejoin:round}
.chart .hit{fill:transparent;stroke:none}.chart .bar:hover,.chart g:hover .dot{opacity:.75}
.chart .s0{--c:var(--s0)}.chart .s1{--c:var(--s1)}.chart .s2{--c:var(--s2)}.chart .s3{--c:var(--s3)}.chart .s4{--c:var(--s4)}.chart .s5{--c:var(--s5)}
.chart .bar,.chart .dot{fill:var(--c)}.chart .line{stroke:var(--c)}.chart .spread{stroke:var(--ink);stroke-width:1.2;fill:none}
";

/// Colours there are.
const COLOURS: usize = 6;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 44.0;
/// Beyond so many points a line has dots to hover over, but none to see.
const DOTS_MAX: usize = 24;
/// The width of a letter, about.
const LETTER: f64 = 6.1;
/// The same in the numbers at bars.
const SMALL_LETTER: f64 = 5.6;
/// Lines of a legend, one below the other, that there is room for.
const LEGEND_STEP: f64 = 13.0;

/// Text as it may stand in markup, in quotation marks too.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // What markup cannot hold at all.
            letter if letter.is_control() && letter != '\n' => escaped.push('\u{FFFD}'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

impl Chart {
    /// A chart over names; its vertical axis begins at 0.
    pub fn over_names(
        title: impl Into<String>,
        (x_label, names): (&str, Vec<String>),
        (y_label, unit): (&str, Unit),
        (shape, width): (Shape, u32),
        series: Vec<Series>,
    ) -> Chart {
        Chart {
            title: title.into(),
            x_label: x_label.into(),
            across: Across::Names(names),
            y_label: y_label.into(),
            unit,
            scale: Scale::Linear,
            shape,
            series,
            marks: vec![],
            width,
            height: 260,
        }
    }

    /// The chart as one `<svg>` element.
    pub fn svg(&self) -> String {
        let plot = Plot::new(self);
        let mut svg = String::new();
        let (width, height, title) = (self.width, self.height, escape(&self.title));
        let _ = writeln!(
            svg,
            r#"<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{title}">"#
        );
        let _ = writeln!(svg, r#"<text class="title" x="2" y="14">{title}</text>"#);
        plot.legend(&mut svg);
        plot.down(&mut svg);
        plot.along(&mut svg);
        match self.shape {
            Shape::Bars => plot.bars(&mut svg),
            Shape::Lines | Shape::Dots => plot.lines(&mut svg),
        }
        plot.marks(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    /// All that is drawn, whiskers too.
    fn numbers(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let drawn = points.flat_map(|point| [point.y].into_iter().chain(point.spread.into_iter().flatten()));
        drawn.filter(|y| y.is_finite())
    }
}

/// A chart with its axes laid out.
struct Plot<'a> {
    chart: &'a Chart,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    /// Numbers across, or how many names.
    extent: f64,
}

impl Plot<'_> {
    fn new(chart: &Chart) -> Plot<'_> {
        let ticks = match chart.scale {
            Scale::Linear => linear_ticks(chart.numbers().fold(0.0, f64::max)),
            Scale::Log => log_ticks(chart.numbers().filter(|&y| y > 0.0)),
        };
        let extent = match &chart.across {
            Across::Names(names) => names.len().max(1) as f64,
            Across::Numbers(_) => {
                let points = chart.series.iter().flat_map(|series| &series.points);
                points.map(|point| point.x).fold(0.0, f64::max).max(1e-9)
            }
        };
        let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
        Plot { chart, low, high, ticks, extent }
    }

    fn width(&self) -> f64 {
        f64::from(self.chart.width) - LEFT - RIGHT
    }

    fn bottom(&self) -> f64 {
        f64::from(self.chart.height) - BOTTOM
    }

    fn y(&self, number: f64) -> f64 {
        let share = match self.chart.scale {
            Scale::Linear => (number - self.low) / (self.high - self.low),
            Scale::Log => (number.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        self.bottom() - share.clamp(0.0, 1.0) * (self.bottom() - TOP)
    }

    fn x(&self, at: f64) -> f64 {
        let share = match &self.chart.across {
            Across::Names(_) => (at + 0.5) / self.extent,
            Across::Numbers(_) => at / self.extent,
        };
        LEFT + share * self.width()
    }

    /// One name after the other, on a second line where the first is full; a single series needs none.
    fn legend(&self, svg: &mut String) {
        if self.chart.series.len() < 2 {
            return;
        }
        let (mut x, mut y) = (2.0, 24.0);
        for (at, series) in self.chart.series.iter().enumerate() {
            let name = escape(&series.name);
            let width = 28.0 + LETTER * series.name.chars().count() as f64;
            if x + width > f64::from(self.chart.width) && x > 2.0 {
                (x, y) = (2.0, y + LEGEND_STEP);
            }
            let _ = writeln!(
                svg,
                r#"<rect class="bar s{}" x="{x:.1}" y="{y}" width="10" height="10" rx="2"/><text class="name" x="{:.1}" y="{}">{name}</text>"#,
                at % COLOURS,
                x + 14.0,
                y + 9.0,
            );
            x += width;
        }
    }

    /// The vertical axis: its name, its ticks, a line across at each.
    fn down(&self, svg: &mut String) {
        let middle = (TOP + self.bottom()) / 2.0;
        let label = escape(&self.chart.y_label);
        let _ = writeln!(
            svg,
            r#"<text text-anchor="middle" transform="translate(11 {middle:.1}) rotate(-90)">{label}</text>"#
        );
        for (at, &tick) in self.ticks.iter().enumerate() {
            let (y, right) = (self.y(tick), LEFT + self.width());
            let class = if at == 0 { "base" } else { "grid" };
            let text = escape(&self.chart.unit.tick(tick));
            let _ = writeln!(
                svg,
                r#"<path class="{class}" d="M{LEFT} {y:.1}H{right:.1}"/><text text-anchor="end" x="{:.1}" y="{:.1}">{text}</text>"#,
                LEFT - 6.0,
                y + 4.0,
            );
        }
    }

    /// The horizontal axis: its name, and names or numbers.
    fn along(&self, svg: &mut String) {
        let (middle, y) = (LEFT + self.width() / 2.0, f64::from(self.chart.height) - 8.0);
        let label = escape(&self.chart.x_label);
        let _ = writeln!(svg, r#"<text text-anchor="middle" x="{middle:.1}" y="{y:.1}">{label}</text>"#);
        let ticks: Vec<(f64, String)> = match &self.chart.across {
            Across::Names(names) => {
                names.iter().enumerate().map(|(at, name)| (at as f64, name.clone())).collect()
            }
            Across::Numbers(unit) => {
                let ticks =
                    linear_ticks(self.extent).into_iter().filter(|&tick| tick <= self.extent * 1.0001);
                ticks.map(|tick| (tick, unit.tick(tick))).collect()
            }
        };
        for (at, text) in ticks {
            let (x, y, text) = (self.x(at), self.bottom() + 16.0, escape(&text));
            let _ = writeln!(svg, r#"<text text-anchor="middle" x="{x:.1}" y="{y:.1}">{text}</text>"#);
        }
    }

    /// What a point says on hover.
    fn hover(&self, series: &Series, point: &Point) -> String {
        let place = match &self.chart.across {
            Across::Names(names) => names.get(point.x as usize).cloned().unwrap_or_default(),
            Across::Numbers(unit) => unit.show(point.x),
        };
        let label = point.label.map_or(String::new(), |rate| format!(" ({})", count(rate)));
        let show = |number| self.chart.unit.show(number);
        let spread = point.spread.map_or(String::new(), |[least, most]| {
            format!(", {} to {} in several rounds", show(least), show(most))
        });
        escape(&format!("{place} \u{b7} {}: {}{label}{spread}", series.name, show(point.y)))
    }

    /// A whisker from the least to the most, where there is one.
    fn whisker(&self, svg: &mut String, x: f64, point: &Point) {
        let Some([least, most]) = point.spread.filter(|spread| spread.iter().all(|end| end.is_finite()))
        else {
            return;
        };
        let (low, high, left) = (self.y(least), self.y(most), x - 3.0);
        let _ = writeln!(
            svg,
            r#"<path class="spread" d="M{x:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}h6M{left:.1} {high:.1}h6"/>"#
        );
    }

    fn bars(&self, svg: &mut String) {
        let group = self.width() / self.extent * 0.8;
        let bar = (group / self.chart.series.len().max(1) as f64).min(46.0);
        let first = bar * self.chart.series.len() as f64 / -2.0;
        for (at, series) in self.chart.series.iter().enumerate() {
            for point in series.points.iter().filter(|point| point.y.is_finite()) {
                let (x, y) = (self.x(point.x) + first + bar * at as f64, self.y(point.y));
                let (height, hover) = ((self.bottom() - y).max(0.0), self.hover(series, point));
                let _ = writeln!(
                    svg,
                    r#"<rect class="bar s{}" x="{:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}" rx="1.5"><title>{hover}</title></rect>"#,
                    at % COLOURS,
                    x + 1.0,
                    bar - 2.0,
                );
                let text = point.label.map_or_else(|| self.chart.unit.show(point.y), count);
                self.whisker(svg, x + bar / 2.0, point);
                let top = point.spread.map_or(y, |[_, most]| self.y(most).min(y));
                self.bar_value(svg, &text, (x, top), bar);
            }
        }
    }

    /// The number above a bar; where it is wider than the bar, upright, and inside the bar where there is no room above.
    fn bar_value(&self, svg: &mut String, text: &str, (x, y): (f64, f64), bar: f64) {
        let length = text.chars().count() as f64 * SMALL_LETTER;
        let text = escape(text);
        let _ = if length <= bar + 4.0 {
            let (x, y) = (x + bar / 2.0, y - 4.0);
            writeln!(svg, r#"<text class="value" text-anchor="middle" x="{x:.1}" y="{y:.1}">{text}</text>"#)
        } else if bar >= 8.0 {
            let x = x + bar / 2.0 + 3.5;
            let y = if y - length - 4.0 > TOP - 12.0 { y - 4.0 } else { y + length + 4.0 };
            writeln!(
                svg,
                r#"<text class="value" transform="translate({x:.1} {y:.1}) rotate(-90)">{text}</text>"#
            )
        } else {
            Ok(())
        };
    }

    fn lines(&self, svg: &mut String) {
        for (at, series) in self.chart.series.iter().enumerate() {
            let points: Vec<&Point> = series.points.iter().filter(|point| point.y.is_finite()).collect();
            let path: Vec<String> =
                points.iter().map(|point| format!("{:.1},{:.1}", self.x(point.x), self.y(point.y))).collect();
            let colour = at % COLOURS;
            if self.chart.shape == Shape::Lines {
                let _ = writeln!(svg, r#"<polyline class="line s{colour}" points="{}"/>"#, path.join(" "));
            }
            for point in &points {
                self.whisker(svg, self.x(point.x), point);
                let (x, y, hover) = (self.x(point.x), self.y(point.y), self.hover(series, point));
                let dot = match points.len() {
                    0..=DOTS_MAX => {
                        format!(r#"<circle class="dot s{colour}" cx="{x:.1}" cy="{y:.1}" r="3.2"/>"#)
                    }
                    _ => String::new(),
                };
                let _ = writeln!(
                    svg,
                    r#"<g>{dot}<circle class="hit" cx="{x:.1}" cy="{y:.1}" r="7"/><title>{hover}</title></g>"#
                );
            }
        }
    }

    fn marks(&self, svg: &mut String) {
        for mark in &self.chart.marks {
            let (x, text) = (self.x(mark.x), escape(&mark.text));
            let room = LEFT + self.width() - x;
            // The word stands where there is room for it.
            let (anchor, text_x) = match room > LETTER * mark.text.chars().count() as f64 + 5.0 {
                true => ("start", x + 5.0),
                false => ("end", x - 5.0),
            };
            let (bottom, text_y) = (self.bottom(), self.bottom() - 6.0);
            let _ = writeln!(
                svg,
                r#"<path class="mark" d="M{x:.1} {TOP}V{bottom:.1}"/><text class="name" text-anchor="{anchor}" x="{text_x:.1}" y="{text_y:.1}">{text}</text>"#
            );
        }
    }
}

/// From 0 to at least `most`, in four to seven steps of 1, 2 or 5 times a power of ten.
fn linear_ticks(most: f64) -> Vec<f64> {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let raw = most / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|&step| step >= raw * 0.999).unwrap_or(power * 10.0);
    let count = (most / step * 0.9999).ceil().max(1.0) as usize;
    (0..=count).map(|at| step * at as f64).collect()
}

/// Around all numbers: whole powers of ten; where they would be but two, 1, 2 and 5 times them.
fn log_ticks(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let (least, most) = numbers.fold((f64::MAX, 0f64), |(least, most), y| (least.min(y), most.max(y)));
    let (least, most) = if most > 0.0 { (least, most) } else { (1.0, 1.0) };
    let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let to = to.max(from + 1);
    if to - from > 2 {
        return (from..=to).map(|power| 10f64.powi(power)).collect();
    }
    let fine: Vec<f64> =
        (from..=to).flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10f64.powi(power))).collect();
    let below = fine.iter().rposition(|&tick| tick <= least).unwrap_or(0);
    let above = fine.iter().position(|&tick| tick >= most).unwrap_or(fine.len() - 1);
    fine[below..=above.max(below + 1)].to_vec()
}

#[cfg(test)]
mod tests;
