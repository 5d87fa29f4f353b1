//! The report of a suite for a person: one HTML file, and tables for the terminal.
//!
//! Owns the page's text and style. Promises well-formed markup that loads nothing, and that whatever is not ours to write
//! is escaped. Must not know how anything was measured.

use std::fmt::Write as _;

use serde_json::Value;

use super::experiment::PaperSuite;
use super::finding::{Factor, Figure, FigureTable, Measured, Result};
use crate::bench::chart::{STYLE, escape};
use crate::bench::report::{count, latency, table};
use crate::store_url::Medium;

/// The column of what was otherwise in the paper.
const DIFFERS: &str = "what differs there";
const PAGE_STYLE: &str = "
:root{color-scheme:light dark;--paper:#fbfcfd;--card:#fff;--ink:#1c2430;--soft:#5b6675;--rule:#dfe4ea;--accent:#1f6fb4}
@media(prefers-color-scheme:dark){:root{--paper:#12161c;--card:#191f27;--ink:#e6eaf0;--soft:#9aa6b4;--rule:#2c3542;--accent:#5aa9e6}}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:28px;margin:0 0 4px}h2{font-size:21px;margin:48px 0 6px;padding-top:16px;border-top:1px solid var(--rule)}
h3{font-size:16px;margin:0 0 2px}h4{font-size:13px;text-transform:uppercase;letter-spacing:.06em;color:var(--accent);margin:22px 0 8px}
p{margin:6px 0}.soft{color:var(--soft);font-size:13px}.see{font-size:14px}
.card{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:16px 18px;margin:0 0 14px}
.failed{border-left:4px solid #c43d5c;padding:6px 12px;font-size:14px}
.charts{display:flex;flex-wrap:wrap;gap:14px 24px;margin:12px 0 8px}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:4px 12px 4px 0;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}
td.text,th.text{text-align:left;white-space:normal}.wide{overflow-x:auto}
details{margin:8px 0 0;font-size:13px}summary{cursor:pointer;color:var(--accent)}
nav a{margin-right:14px;white-space:nowrap}a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
";

/// The media that were measured, in their order.
fn media(results: &[Result]) -> Vec<Medium> {
    let mut media = Vec::new();
    for result in results {
        if !media.contains(&result.medium) {
            media.push(result.medium);
        }
    }
    media
}

/// Each thing that is compared: the experiment, the factor, and what it came to on each medium.
fn compared(results: &[Result]) -> Vec<(&'static str, &Factor, Vec<String>)> {
    let media = media(results);
    let mut rows: Vec<(&'static str, &Factor, Vec<String>)> = Vec::new();
    for result in results {
        for factor in &result.factors {
            if rows
                .iter()
                .any(|(experiment, other, _)| *experiment == result.experiment && other.what == factor.what)
            {
                continue;
            }
            let on = |medium: &Medium| {
                let mut same = results
                    .iter()
                    .filter(|other| other.experiment == result.experiment && other.medium == *medium);
                let found = same.find_map(|other| other.factors.iter().find(|f| f.what == factor.what));
                found.map_or("-".to_owned(), Factor::text)
            };
            rows.push((result.experiment, factor, media.iter().map(on).collect()));
        }
    }
    rows
}

/// What the terminal shows.
pub(in crate::bench) fn text(settings: &Value, results: &[Result]) -> String {
    let word = |name: &str| settings[name].as_str().unwrap_or_default();
    let mut text = format!(
        "{}; stores on {}, sorted tables on {}; {} rows, {} s a phase, durability {}\n\n",
        word("machine"),
        word("place"),
        word("capacity"),
        settings["records"],
        settings["seconds"],
        word("durability"),
    );
    for result in results {
        for FigureTable { title, settings, head, rows } in &result.tables {
            let medium = result.medium.name();
            let table = table(head, rows.iter().cloned());
            let _ = writeln!(text, "{title}, {medium} ({settings})\n{table}");
        }
    }
    text + &factor_table(results)
}

/// The columns of what is compared: those that name it and those that follow, and whether anything is told to be otherwise.
fn columns(results: &[Result]) -> (Vec<&'static str>, bool) {
    let mut head: Vec<_> = media(results).iter().map(|medium| medium.name()).collect();
    head.push("paper");
    let differs = results.iter().flat_map(|result| &result.factors).any(|factor| factor.differs.is_some());
    if differs {
        head.push(DIFFERS);
    }
    (head, differs)
}

/// What follows its name in a line of what is compared.
fn cells(factor: &Factor, here: Vec<String>, differs: bool) -> Vec<String> {
    let mut row = here;
    row.push(factor.paper.unwrap_or("").to_owned());
    if differs {
        row.push(factor.differs.unwrap_or("").to_owned());
    }
    row
}

/// The table for the terminal.
fn factor_table(results: &[Result]) -> String {
    // What differs is in the page: lines are long enough.
    let (mut head, _) = columns(results);
    head.retain(|name| *name != DIFFERS);
    head.splice(0..0, ["experiment", "what"]);
    let rows = compared(results).into_iter().map(|(experiment, factor, here)| {
        let mut row = vec![experiment.to_owned(), factor.what.clone()];
        row.extend(cells(factor, here, false));
        row
    });
    let stars = results.iter().flat_map(|result| &result.factors).any(|factor| factor.disturbed > 0);
    let note = if stars { "* others used the machine in a phase of that experiment\n" } else { "" };
    table(&head, rows) + note
}

/// The page.
pub(in crate::bench) fn html(suite: &PaperSuite, settings: &Value, results: &[Result]) -> String {
    let mut page = opened(suite.title);
    head(&mut page, suite, settings, results);
    let mut names: Vec<&str> = Vec::new();
    for result in results {
        if !names.contains(&result.experiment) {
            names.push(result.experiment);
            section(&mut page, result, results);
        }
    }
    page.push_str(END);
    page
}

/// A page as far as its heading.
pub(in crate::bench) fn opened(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    )
}

/// What closes a page that was opened.
pub(in crate::bench) const END: &str = "</main>\n</body>\n</html>\n";

fn head(page: &mut String, suite: &PaperSuite, settings: &Value, results: &[Result]) {
    let text = |name: &str| {
        let value = &settings[name];
        if value.as_array().is_some_and(Vec::is_empty) {
            return "nothing".to_owned();
        }
        escape(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    let _ = writeln!(
        page,
        "<p class=\"soft\">Hedgerow {} on {}. {} rows, {} s a phase, durability {}, seed {}, set otherwise: {}. Throughput is with \
         the harness in it: making keys and values, the clock, and the check of every value that is read.</p>",
        text("version"),
        text("machine"),
        text("records"),
        text("seconds"),
        text("durability"),
        text("seed"),
        text("set"),
    );
    let _ = writeln!(
        page,
        "<p class=\"soft\"><b>file</b>: the store is a file in the directory given ({}; sorted tables, where there are any: {}). <b>emulated</b>: \
         the same file, slowed to {}</p>",
        text("place"),
        text("capacity"),
        text("emulation")
    );
    if let Some(note) = neighbours(results) {
        let _ = writeln!(page, "<p class=\"soft\"><b>Note:</b> {note}</p>");
    }
    let mut links = String::new();
    for (at, result) in results.iter().enumerate() {
        if !results[..at].iter().any(|other| other.experiment == result.experiment) {
            let (name, title) = (escape(result.experiment), escape(result.title));
            let _ = write!(links, "<a href=\"#{name}\">{title}</a> ");
        }
    }
    let _ = writeln!(page, "<nav>{links}</nav>\n<h2>Beside the paper</h2>");
    let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(suite.caution));
    let (mut head, differs) = columns(results);
    head.insert(0, "what");
    let rows = compared(results).into_iter().map(|(_, factor, here)| {
        let mut row = vec![factor.what.clone()];
        row.extend(cells(factor, here, differs));
        row
    });
    markup_table(page, &head, rows);
}

/// Whether others used the machine meanwhile.
fn neighbours(results: &[Result]) -> Option<String> {
    let phases = || results.iter().flat_map(|result| &result.phases);
    let disturbed = phases().filter(|phase| phase.disturbed).count();
    (disturbed > 0).then(|| {
        format!("in {disturbed} of {} phases, marked with a star, others kept 0.2 processors or more busy, the kernel's write-back among them.", phases().count())
    })
}

fn section(page: &mut String, result: &Result, results: &[Result]) {
    let (name, title, paper) = (escape(result.experiment), escape(result.title), escape(result.paper));
    let _ = writeln!(page, "<section>\n<h2 id=\"{name}\">{title}</h2>\n<p class=\"soft\">{paper}</p>");
    for result in results.iter().filter(|other| other.experiment == result.experiment) {
        let _ = writeln!(page, "<h4>{}</h4>", result.medium.name());
        for failure in &result.failures {
            let _ = writeln!(page, "<p class=\"failed\"><b>Failed:</b> {}</p>", escape(failure));
        }
        for FigureTable { title, settings, head, rows } in &result.tables {
            let (title, settings) = (escape(title), escape(settings));
            let _ =
                writeln!(page, "<div class=\"card\">\n<h3>{title}</h3>\n<p class=\"soft\">{settings}.</p>");
            markup_table(page, head, rows.iter().cloned());
            page.push_str("</div>\n");
        }
        result.figures.iter().for_each(|figure| card(page, figure));
        phases(page, &result.phases);
    }
    page.push_str("</section>\n");
}

/// A figure, with all of its charts.
pub(in crate::bench) fn card(page: &mut String, figure: &Figure) {
    let (title, see, settings) = (escape(&figure.title), escape(&figure.see), escape(&figure.settings));
    let _ = writeln!(
        page,
        "<div class=\"card\">\n<h3>{title}</h3>\n<p class=\"see\">{see}</p>\n<div class=\"charts\">"
    );
    figure.charts.iter().for_each(|chart| page.push_str(&chart.svg()));
    let paper = figure.paper.map_or(String::new(), |paper| format!(" <b>The paper:</b> {}.", escape(paper)));
    let _ = writeln!(page, "</div>\n<p class=\"soft\">{settings}.{paper}</p>\n</div>");
}

/// Everything that was measured, folded away.
fn phases(page: &mut String, phases: &[Measured]) {
    let head = [
        "store",
        "round",
        "phase",
        "threads",
        "operations",
        "ops/s",
        "mean",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "log B/op",
        "below log B/op",
        "file B/op",
    ];
    let rows = phases.iter().map(
        |Measured { variant, round, disturbed, report, log_bytes, below_log_bytes, .. }| {
            let per_op = |bytes: u64| format!("{:.0}", bytes as f64 / report.operations.max(1) as f64);
            let mut row =
                vec![variant.clone(), round.to_string(), report.phase.clone(), report.threads.to_string()];
            let star = if *disturbed { "*" } else { "" };
            row.extend([count(report.operations as f64), format!("{}{star}", count(report.ops_per_s))]);
            let r = report;
            let latencies = [r.mean_us, r.p50_us, r.p90_us, r.p99_us, r.p999_us, r.p9999_us, r.max_us];
            row.extend(latencies.map(latency));
            row.extend([per_op(*log_bytes), per_op(*below_log_bytes), per_op(report.bytes_written)]);
            row
        },
    );
    let _ = writeln!(page, "<details><summary>All {} phases in numbers</summary>", phases.len());
    markup_table(page, &head, rows);
    page.push_str("</details>\n");
}

/// A table, which is scrolled where it is wider than the page.
pub(in crate::bench) fn markup_table(
    page: &mut String,
    head: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) {
    let line = |cell: &str, tag: &str| format!("<{tag}>{}</{tag}>", escape(cell));
    let names: String = head.iter().map(|name| line(name, "th")).collect();
    let _ = writeln!(page, "<div class=\"wide\"><table>\n<thead><tr>{names}</tr></thead>\n<tbody>");
    for row in rows {
        let cells: String = row.iter().map(|cell| line(cell, "td")).collect();
        let _ = writeln!(page, "<tr>{cells}</tr>");
    }
    page.push_str("</tbody></table></div>\n");
}
