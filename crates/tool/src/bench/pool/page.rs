//! The report of a pool's benchmark for a person and for programs: text, one HTML file with charts, and JSON.
//!
//! Owns how sections stand in it. Promises that each table, chart and number beside the paper's has the word with it by which it is modelled or measured. Must not know how anything was found; how charts and pages look is
//! [`page`]'s.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bench::chart::escape;
use crate::bench::paper::finding::{Factor, FigureTable, Finding};
use crate::bench::paper::{check_writable, page};
use crate::bench::report::table;

/// Where reports go.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct PoolOutput {
    /// Writes the report there: one file, with its charts.
    #[arg(long)]
    pub(super) html: Option<PathBuf>,
    /// Writes all figures there.
    #[arg(long)]
    pub(super) json: Option<PathBuf>,
}

impl PoolOutput {
    /// A file that cannot be written is told before all the work.
    ///
    /// # Errors
    /// A sentence for a person.
    pub(super) fn check(&self) -> Result<(), String> {
        [&self.json, &self.html].into_iter().flatten().try_for_each(|path| check_writable(path))
    }
}

/// One question.
#[derive(Debug)]
pub(super) struct PoolSection {
    /// What it is called in the JSON, and where it is in the page.
    pub(super) name: &'static str,
    pub(super) title: String,
    pub(super) finding: Finding,
    /// What is to be said of it, a sentence each.
    pub(super) notes: Vec<String>,
}

/// All that was asked.
#[derive(Debug)]
pub(super) struct PoolReport {
    pub(super) title: &'static str,
    /// What figures are: `modelled` or `measured`; or `modelled or measured, as each line says`.
    pub(super) kind: &'static str,
    /// How they came about, a sentence each.
    pub(super) about: Vec<String>,
    pub(super) settings: Value,
    pub(super) sections: Vec<PoolSection>,
    /// Every run.
    pub(super) results: Value,
}

impl PoolReport {
    /// The columns of what is compared with a paper, and the lines.
    fn compared(&self, section: &PoolSection) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let row = |factor: &Factor| {
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            vec![factor.what.clone(), factor.text(), text(factor.paper), text(factor.differs)]
        };
        let head = vec!["what", self.kind, "paper", "what differs there"];
        (head, section.finding.factors.iter().map(row).collect())
    }

    /// What the terminal shows.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{} [{}]\n", self.title, self.kind);
        self.about.iter().for_each(|about| text.extend([about, "\n"]));
        for section in &self.sections {
            let _ = writeln!(text, "\n{} [{}]", section.title, self.kind);
            for FigureTable { title, settings, head, rows } in &section.finding.tables {
                let table = table(head, rows.iter().cloned());
                let _ = writeln!(text, "\n{title} [{}] ({settings})\n{table}", self.kind);
            }
            let (head, rows) = self.compared(section);
            if !rows.is_empty() {
                // What differs is in the page: lines are long enough.
                let rows = rows.into_iter().map(|row| row[..3].to_vec());
                let _ = writeln!(text, "\nBeside the paper [{}]\n{}", self.kind, table(&head[..3], rows));
            }
            section.notes.iter().for_each(|note| text.extend([note, "\n"]));
        }
        text
    }

    /// The page.
    pub(super) fn html(&self) -> String {
        let mut page = page::opened(self.title);
        for about in &self.about {
            let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(about));
        }
        let link =
            |section: &PoolSection| format!("<a href=\"#{}\">{}</a> ", section.name, escape(&section.title));
        let links: String = self.sections.iter().map(link).collect();
        let _ = writeln!(page, "<nav>{links}</nav>");
        for section in &self.sections {
            let PoolSection { name, title, finding, notes } = section;
            let (title, kind) = (escape(title), escape(self.kind));
            let _ = writeln!(page, "<section>\n<h2 id=\"{name}\">{title} [{kind}]</h2>");
            for note in notes {
                let _ = writeln!(page, "<p class=\"see\">{}</p>", escape(note));
            }
            let (head, rows) = self.compared(section);
            if !rows.is_empty() {
                let _ = writeln!(page, "<h4>Beside the paper [{kind}]</h4>");
                page::markup_table(&mut page, &head, rows.into_iter());
            }
            finding.figures.iter().for_each(|figure| page::card(&mut page, figure));
            for FigureTable { title, settings, head, rows } in &finding.tables {
                let (title, settings) = (escape(title), escape(settings));
                let _ = writeln!(
                    page,
                    "<div class=\"card\">\n<h3>{title} [{kind}]</h3>\n<p class=\"soft\">{settings}.</p>"
                );
                page::markup_table(&mut page, head, rows.iter().cloned());
                page.push_str("</div>\n");
            }
            page.push_str("</section>\n");
        }
        page.push_str(page::END);
        page
    }

    /// All figures.
    pub(super) fn document(&self) -> Value {
        let section = |section: &PoolSection| {
            let PoolSection { name, title, finding, notes } = section;
            let Finding { tables, factors, .. } = finding;
            json!({ "name": name, "title": title, "tables": tables, "factors": factors, "notes": notes })
        };
        json!({
            "kind": self.kind,
            "about": self.about,
            "settings": self.settings,
            "sections": self.sections.iter().map(section).collect::<Vec<_>>(),
            "results": self.results,
        })
    }

    /// Prints it, and writes both files that were asked for, the one where the other cannot be.
    ///
    /// # Errors
    /// A sentence for a person.
    pub(super) fn tell(&self, output: &PoolOutput) -> Result<(), String> {
        print!("{}", self.text());
        let write = |path: &Path, what: &str, text: String| {
            std::fs::write(path, text).map_err(|error| format!("writing {}: {error}", path.display()))?;
            eprintln!("{what}: {}", path.display());
            Ok(())
        };
        let html = output.html.as_ref().map_or(Ok(()), |path| write(path, "report", self.html()));
        let json = output.json.as_ref().map_or(Ok(()), |path| {
            let text = serde_json::to_string_pretty(&self.document()).map_err(|error| error.to_string());
            write(path, "figures", text? + "\n")
        });
        let failures: Vec<String> = [json, html].into_iter().filter_map(Result::err).collect();
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }
}
