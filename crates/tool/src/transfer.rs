//! `hedgerow export` and `hedgerow import`: a table as lines of JSON, and back.
//!
//! Owns the lines and their order: a schema, one line for each row in key order, an end. Promises that every value comes back as it was:
//! integers exactly, floats to the bit but for the payload of a NaN, bytes, expiries of rows and fields. Memory does not grow with the
//! table. [`json`] has the form of a line.

pub mod json;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hedgerow::{Batch, Db, Durability, Error, ErrorKind, Expiry, Loader, Options, Schema, Table};
use indicatif::{ProgressBar, ProgressStyle};

use json::{Line, StoredRow};

use crate::capacity::CapacityArgs;

/// Bytes in a line of an import: the largest row, escaped.
const LINE_BYTES_MAX: u64 = 512 << 20;
/// Rows, and bytes of lines, that an import writes at once.
const BATCH_ROWS_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;

/// Arguments of `hedgerow export`.
#[derive(Debug, clap::Args)]
pub struct ExportArgs {
    /// The store's directory. No server may have it open; a backup of it will do.
    dir: PathBuf,
    #[command(flatten)]
    capacity: CapacityArgs,
    /// The table, as `hedgerow inspect DIR` names it.
    #[arg(long)]
    table: String,
    /// The form: only jsonl, lines of JSON.
    #[arg(long, default_value = "jsonl", value_parser = ["jsonl"])]
    format: String,
    /// The file to write, which must not exist; standard output unless given.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Arguments of `hedgerow import`.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// The store's directory; created if there is none. No server may have it open.
    dir: PathBuf,
    /// The file to read; standard input unless given.
    file: Option<PathBuf>,
    #[command(flatten)]
    capacity: CapacityArgs,
    /// The table to write, instead of the one that was exported. It is made if there is none, and must have the schema of the file
    /// if there is.
    #[arg(long)]
    table: Option<String>,
    /// The rows come in rising order of their keys, as `hedgerow export` writes them, into a table that has none: they are loaded into sorted tables at once, all or none,
    /// without a look at the log. Nothing is sorted: the first line that is out of order is refused, and so is one with fields that expire.
    #[arg(long)]
    sorted: bool,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Writes a table as lines of JSON.
pub fn run_export(args: ExportArgs) -> Result<(), String> {
    let capacity = args.capacity.place();
    let options = Options { read_only: true, capacity, ..Options::default() };
    let db = Db::open_with(&args.dir, options).map_err(|error| match error.kind() {
        ErrorKind::Locked => format!("{error}; export from a backup of it (HR.BACKUP START)"),
        _ => error.to_string(),
    })?;
    let table = db
        .table(&args.table)
        .map_err(|error| format!("{error}; there are: {}", db.table_names().join(", ")))?;
    let bar = progress_bar(args.quiet || args.output.is_none(), table.len(), "{pos}/{len} rows {eta}");
    let rows = match &args.output {
        None => export(&table, BufWriter::new(io::stdout().lock()), &bar)?.0,
        Some(path) => export_to(&table, path, &bar)?,
    };
    bar.finish_and_clear();
    eprintln!("exported {rows} rows of {}", args.table);
    drop(table);
    db.close().map_err(|error| error.to_string())
}

/// Writes a file that did not exist, whole or not at all.
fn export_to(table: &Table, path: &Path, bar: &ProgressBar) -> Result<u64, String> {
    let refused = |error| format!("{} can not be written: {error}", path.display());
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(refused)?;
    let exported = export(table, BufWriter::new(file), bar).and_then(|(rows, out)| {
        let file = out.into_inner().map_err(|error| refused(error.into_error()))?;
        file.sync_all().map_err(refused).map(|()| rows)
    });
    // Where it cannot be removed, why it is not whole is still what is to be told; and it has no end line.
    exported.inspect_err(|_| drop(std::fs::remove_file(path)))
}

fn export<W: Write>(table: &Table, mut out: W, bar: &ProgressBar) -> Result<(u64, W), String> {
    let failed = |error: io::Error| format!("the export can not be written: {error}");
    let mut rows = 0;
    writeln!(out, "{}", json::schema_line(table.name(), &table.schema())).map_err(failed)?;
    let mut refused = None;
    let scanned = table.scan().for_each(|key, row| {
        let line = json::row_line(key, row)?;
        rows += 1;
        bar.set_position(rows);
        refused = writeln!(out, "{line}").err();
        Ok(refused.is_none())
    });
    scanned.map_err(|error| format!("after {rows} rows: {error}"))?;
    refused.map_or(Ok(()), |error| Err(failed(error)))?;
    writeln!(out, "{}", json::end_line(rows)).and_then(|()| out.flush()).map_err(failed)?;
    Ok((rows, out))
}

/// Reads a table from lines of JSON.
pub fn run_import(args: ImportArgs) -> Result<(), String> {
    let bytes = args.file.as_deref().map_or(0, |path| path.metadata().map_or(0, |file| file.len()));
    let input = open_input(args.file.as_deref())?;
    let capacity = args.capacity.place();
    let options = Options { durability: Durability::Process, capacity, ..Options::default() };
    let db = Db::open_with(&args.dir, options).map_err(|error| error.to_string())?;
    let bar = progress_bar(args.quiet || bytes == 0, bytes, "{bytes}/{total_bytes} {eta}");
    let outcome = Import::new(&db, input, &bar).run(args.table.as_deref(), args.sorted);
    bar.finish_and_clear();
    let closed = db.close().map_err(|error| format!("closing the store failed: {error}"));
    let (table, rows, has_end) = outcome?;
    closed?;
    if !has_end {
        eprintln!("hedgerow: the file has no end line: if it was exported, it was cut short");
    }
    println!("imported {rows} rows into {table}");
    Ok(())
}

fn open_input(path: Option<&Path>) -> Result<Box<dyn BufRead>, String> {
    match path {
        None => Ok(Box::new(BufReader::new(io::stdin()))),
        Some(path) => {
            let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
        }
    }
}

/// An import under way.
struct Import<'i> {
    db: &'i Db,
    input: Box<dyn BufRead>,
    bar: &'i ProgressBar,
    line: u64,
    rows: u64,
    /// What is to be written, the lines it is from, and their bytes.
    waiting: Vec<StoredRow>,
    first_waiting: u64,
    waiting_bytes: usize,
}

impl<'i> Import<'i> {
    fn new(db: &'i Db, input: Box<dyn BufRead>, bar: &'i ProgressBar) -> Import<'i> {
        Import { db, input, bar, line: 0, rows: 0, waiting: Vec::new(), first_waiting: 0, waiting_bytes: 0 }
    }

    /// The table's name, how many rows there were, and whether the end was there.
    fn run(mut self, rename: Option<&str>, sorted: bool) -> Result<(String, u64, bool), String> {
        let first = self.next_line()?.ok_or("the file is empty: its first line is the table's schema")?;
        let at_first = |error: String| format!("line 1: {error}");
        let Line::Schema { table, schema } = json::parse_line(&first, None).map_err(at_first)? else {
            return Err("line 1 is not the schema of a table".into());
        };
        let name = rename.map_or(table, str::to_owned);
        let table =
            self.db.create_table(&name, schema.clone()).map_err(|error| at_first(error.to_string()))?;
        let has_end = if sorted { self.load(&table, &schema)? } else { self.put(&table, &schema)? };
        Ok((name, self.rows, has_end))
    }

    /// Puts the rows, some at a time, over what the table has. Whether the end was there.
    fn put(&mut self, table: &Table, schema: &Schema) -> Result<bool, String> {
        let end = self.each_row(schema, |import, row, bytes| import.add(table, row, bytes))?;
        self.write(table)?;
        self.check_end(end)
    }

    /// Loads the rows in bulk, all of them or none. Whether the end was there.
    fn load(&mut self, table: &Table, schema: &Schema) -> Result<bool, String> {
        if !table.is_empty() {
            return Err(format!(
                "the table {} has rows, which a bulk load would replace: import without --sorted, or into another table",
                table.name()
            ));
        }
        let mut refused = None;
        let loaded = table.load(|loader| {
            let pushed = self.each_row(schema, |import, row, _| import.push(loader, &row));
            let has_end = pushed.and_then(|end| self.check_end(end));
            has_end.map_err(|why| {
                refused = Some(why);
                Error::invalid("the load is given up")
            })
        });
        loaded.map_err(|error| refused.unwrap_or_else(|| error.to_string()))
    }

    fn push(&mut self, loader: &mut Loader<'_>, row: &StoredRow) -> Result<(), String> {
        let line = self.line;
        if row.expiring().next().is_some() {
            return Err(format!(
                "line {line}: fields that expire can not be loaded in bulk: import without --sorted"
            ));
        }
        let fields = row.lasting();
        let pushed = match row.expires_at_ms {
            Some(at) => loader.push_expiring(&row.key, &fields, Expiry::at_unix_ms(at)),
            None => loader.push(&row.key, &fields),
        };
        self.rows += 1;
        pushed.map_err(|error| format!("line {line}: {error}"))
    }

    /// Calls `take` with each row and the bytes of its line; returns how many rows the end line tells, if there is one.
    fn each_row(
        &mut self,
        schema: &Schema,
        mut take: impl FnMut(&mut Self, StoredRow, usize) -> Result<(), String>,
    ) -> Result<Option<u64>, String> {
        let mut end = None;
        while let Some(text) = self.next_line()? {
            let line = self.line;
            let at_line = |error: String| format!("line {line}: {error}");
            match json::parse_line(&text, Some(schema)).map_err(at_line)? {
                _ if end.is_some() => return Err(at_line("there is more after the end line".into())),
                Line::Row(row) => take(self, row, text.len())?,
                Line::End(rows) => end = Some(rows),
                Line::Schema { .. } => return Err(at_line("another schema".into())),
            }
        }
        Ok(end)
    }

    /// Whether there was an end line; then it tells as many rows as there were.
    fn check_end(&self, end: Option<u64>) -> Result<bool, String> {
        match end {
            Some(rows) if rows != self.rows => {
                Err(format!("the end line says {rows} rows; there were {}", self.rows))
            }
            _ => Ok(end.is_some()),
        }
    }

    fn next_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            let mut text = Vec::new();
            let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
            self.line += 1;
            let line = self.line;
            let read = read.map_err(|error| format!("line {line} can not be read: {error}"))?;
            self.bar.inc(read as u64);
            match text.last() {
                None => return Ok(None),
                Some(b'\n') => {}
                Some(_) if read as u64 == LINE_BYTES_MAX => {
                    return Err(format!("line {line} is longer than {LINE_BYTES_MAX} bytes"));
                }
                Some(_) => {}
            }
            if !text.trim_ascii().is_empty() {
                return Ok(Some(text));
            }
        }
    }

    fn add(&mut self, table: &Table, row: StoredRow, bytes: usize) -> Result<(), String> {
        if self.waiting.is_empty() {
            self.first_waiting = self.line;
        }
        self.waiting.push(row);
        self.waiting_bytes += bytes;
        if self.waiting.len() >= BATCH_ROWS_MAX || self.waiting_bytes >= BATCH_BYTES_MAX {
            self.write(table)?;
        }
        Ok(())
    }

    /// Writes what waits, all of it or nothing: no row is ever there without the expiries of its fields.
    fn write(&mut self, table: &Table) -> Result<(), String> {
        let lines = format!("lines {} to {}", self.first_waiting, self.line);
        let failed = |error: hedgerow::Error| format!("{lines}: {error}");
        let mut batch = Batch::new();
        for row in &self.waiting {
            let lasting = row.lasting();
            batch.put(table, &row.key, &lasting).map_err(failed)?;
            for (name, value, at) in row.expiring() {
                batch
                    .update_expiring(table, &row.key, &[(name, value)], Expiry::at_unix_ms(at))
                    .map_err(failed)?;
            }
            // Last: to write a field of a row that has expired is to make a new one.
            if let Some(at) = row.expires_at_ms {
                batch.expire(table, &row.key, Expiry::at_unix_ms(at)).map_err(failed)?;
            }
        }
        self.db.write(batch).map_err(failed)?;
        self.rows += self.waiting.len() as u64;
        self.waiting.clear();
        self.waiting_bytes = 0;
        Ok(())
    }
}

fn progress_bar(hidden: bool, total: u64, counts: &str) -> ProgressBar {
    if hidden {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template(&format!("[{{bar:40}}] {{percent:>3}}% {counts}"));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests;
