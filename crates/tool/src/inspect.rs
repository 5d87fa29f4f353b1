//! `hedgerow inspect`: what is in a store, or on key-value devices, printed. Never writes.
//!
//! Owns the words and columns on the screen. Promises to print what it could read before it reports what it could not.
//! Must not know bytes: `hedgerow::inspect` reads them. `inspect/levels.rs` draws what lies where; `inspect/devices.rs` is about devices.

pub(crate) mod devices;
mod levels;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;

use hedgerow::inspect::{RecordInfo, RunsInfo, ShutdownState, SortedTableInfo, SortedTablePart, View};
use hedgerow::{ErrorKind, RowRef, Value};

use levels::LevelsView;

use crate::capacity::CapacityArgs;
use crate::store_url::ExaminedPlace;

/// Of longer keys the beginning is shown, where they are no more than a bound.
const KEY_SHOWN_BYTES: usize = 40;

/// Arguments of `hedgerow inspect`.
#[derive(Debug, clap::Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// The store's directory; or the file of a key-value device, or all of an array, in their order: kvssd:FILE,FILE. No server may have it open.
    #[arg(required = true)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    capacity: CapacityArgs,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Lists the records of a segment, in the order they were written.
    Log {
        /// The store's directory.
        dir: PathBuf,
        #[command(flatten)]
        capacity: CapacityArgs,
        /// The first extent of the segment, as `hedgerow inspect DIR` lists it.
        #[arg(long)]
        segment: u32,
        /// The most records to list.
        #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
        limit: usize,
    },
    /// Shows rows and their fields.
    Rows {
        /// The store's directory.
        dir: PathBuf,
        #[command(flatten)]
        capacity: CapacityArgs,
        /// The table.
        #[arg(long)]
        table: String,
        /// The row to show; without it, all from the first on.
        #[arg(long)]
        key: Option<String>,
        /// The most rows to show.
        #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
        limit: usize,
    },
}

/// Prints what was asked for.
pub fn run(args: Args) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match (args.part, args.dir) {
        (Some(Part::Log { dir, capacity, segment, limit }), _) => {
            log(&StorePlace { dir: &dir, capacity }, segment, limit, &mut out)
        }
        (Some(Part::Rows { dir, capacity, table, key, limit }), _) => {
            rows(&StorePlace { dir: &dir, capacity }, &table, key.as_deref(), limit, &mut out)
        }
        (None, Some(dir)) => match ExaminedPlace::of(&dir)?.device_files() {
            Err(dir) => overview(&StorePlace { dir: &dir, capacity: args.capacity }, &mut out),
            Ok(_) if args.capacity.is_given() => Err(crate::capacity::NO_SORTED_TABLES.into()),
            Ok((files, is_array)) => devices::overview(&files, is_array, &mut out),
        },
        (None, None) => Err("name the store's directory".into()),
    }
}

/// Where a store is, and its sorted tables.
struct StorePlace<'d> {
    dir: &'d std::path::Path,
    capacity: CapacityArgs,
}

/// The store; or, with what is wrong with it on standard error, what is left of it.
fn open(place: &StorePlace<'_>) -> Result<View, String> {
    match View::open_with(place.dir, place.capacity.place()) {
        Err(error) if error.kind() == ErrorKind::Corrupted => open_damaged(place, &error),
        Err(error) if error.kind() == ErrorKind::Locked => {
            Err(format!("{error}: stop it first, or see what it does by hedgerow top"))
        }
        opened => opened.map_err(|error| error.to_string()),
    }
}

fn open_damaged(place: &StorePlace<'_>, error: &hedgerow::Error) -> Result<View, String> {
    let view = View::open_damaged_with(place.dir, place.capacity.place()).map_err(|_| error.to_string())?;
    eprintln!("hedgerow: {error}; what follows is what is left (hedgerow repair lists what is lost)");
    Ok(view)
}

/// Opened, and its rows known.
fn open_with_rows(place: &StorePlace<'_>) -> Result<View, String> {
    let view = open(place)?;
    match view.replay() {
        Err(error) if error.kind() == ErrorKind::Corrupted => {
            drop(view);
            open_damaged(place, &error)
        }
        replayed => replayed.map(|()| view).map_err(|error| error.to_string()),
    }
}

fn rows(
    place: &StorePlace<'_>,
    table: &str,
    key: Option<&str>,
    limit: usize,
    out: &mut impl Write,
) -> Result<(), String> {
    let view = open_with_rows(place)?;
    let from = key.unwrap_or_default().as_bytes();
    let (mut left, mut failed, mut seen) = (limit, Ok(()), false);
    let walked = view.rows(table, from, |found, row| {
        if key.is_some_and(|key| key.as_bytes() != found) {
            return false;
        }
        let Some(fewer) = left.checked_sub(1) else { return false };
        (left, seen) = (fewer, true);
        failed = print(out, &row_text(found, row));
        failed.is_ok()
    });
    failed?;
    walked.map_err(|error| error.to_string())?;
    match key {
        Some(key) if !seen && limit > 0 => Err(format!("there is no row {key:?} in the table {table:?}")),
        _ => Ok(()),
    }
}

fn row_text(key: &[u8], row: hedgerow::Result<RowRef<'_>>) -> String {
    let mut text = format!("{}", key.escape_ascii());
    let shown = row.and_then(|row| {
        text.push_str(&row.expires_at_ms().map_or(String::new(), |ms| format!(" expires-at-ms={ms}")));
        text.push('\n');
        row.for_each(|name, value| {
            let _ = writeln!(text, "  {name:<24} {}", shown(&value));
        })
    });
    if let Err(error) = shown {
        let _ = write!(text, "\n  cannot be read: {error}\n");
    }
    text
}

fn shown(value: &Value<'_>) -> String {
    match value {
        Value::Bytes(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Str(text) => format!("{text:?}"),
        other => format!("{other:?}"),
    }
}

fn overview(place: &StorePlace<'_>, out: &mut impl Write) -> Result<(), String> {
    // What is obsolete is known only after a replay. A store too damaged for that is still worth a look.
    let view = open(place)?;
    let saved = view.saved_index();
    let replayed = view.replay();
    let (known, is_damaged) = (replayed.is_ok(), !view.damage().is_empty());
    let text = format!("{}\n{}\n", root(&view), tables(&view, known));
    print(out, &text)?;
    let of_levels = LevelsView {
        root: view.root(),
        segments: view.segments(),
        is_replayed: known && !is_damaged,
        is_damaged,
        saved,
        runs: view.runs().map_err(|error| error.to_string()),
        merges: view.merges(),
        names: names(&view),
    };
    let files = of_levels.runs.as_ref().map(|runs| files(runs, &of_levels.names)).unwrap_or_default();
    print(out, &format!("{}{files}\n{}", levels::text(&of_levels), segments(&view, known && !is_damaged)))?;
    replayed.map_err(|error| format!("{error} (so rows and obsolete bytes are not known)"))
}

/// The tables' names, by id.
fn names(view: &View) -> HashMap<u32, String> {
    view.tables().into_iter().map(|table| (table.id, table.name)).collect()
}

fn root(view: &View) -> String {
    let root = view.root();
    let shutdown = match root.shutdown {
        ShutdownState::Closed => "closed in order",
        ShutdownState::Killed => "not closed; the process was killed, the machine stayed up",
        ShutdownState::PowerCut => "not closed; the machine has been down since",
    };
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<16} {value}");
    };
    line("store", format!("{:032x}, format version {}", root.store_id, root.format_version));
    line("shutdown", shutdown.into());
    line(
        "fast tier",
        format!("{} in segments of {}", bytes(root.fast_tier_bytes), bytes(root.segment_bytes)),
    );
    line("opened", format!("{} times", root.opens));
    line("root", format!("written {} times, durable up to sequence {}", root.generation, root.watermark));
    line("catalog", format!("{} at byte {}", bytes(root.catalog_bytes), root.catalog_offset));
    text
}

/// The files of sorted tables; nothing of a store that has none.
fn files(runs: &RunsInfo, names: &HashMap<u32, String>) -> String {
    let mut text = String::new();
    if runs.manifest != 0 || !runs.ranges.is_empty() {
        let _ = writeln!(
            text,
            "\nsorted tables: {}, by manifest {} as of sequence {}",
            runs.ranges.len(),
            runs.manifest,
            runs.watermark
        );
        text.push_str("  run file              bytes      rows   deltas tombstones keys\n");
    }
    for range in &runs.ranges {
        let _ = writeln!(
            text,
            "  {:>3} {:<14} {:>8} {:>9} {:>8} {:>10} {}",
            range.run,
            range.file,
            bytes(range.bytes),
            range.rows,
            range.deltas,
            range.tombstones,
            keys_text(range)
        );
        for part in &range.tables {
            let name = names.get(&part.table).map_or("(dropped)", String::as_str);
            let SortedTablePart { rows, deltas, tombstones, record_bytes, .. } = *part;
            let _ = writeln!(
                text,
                "      {:<14} {:>8} {rows:>9} {deltas:>8} {tombstones:>10}",
                name,
                bytes(record_bytes)
            );
        }
    }
    runs.left_over.iter().for_each(|name| {
        let _ = writeln!(text, "  {name}: nothing names it");
    });
    text
}

/// The keys of a part of a sorted table, each behind its table's id.
fn keys_text(range: &SortedTableInfo) -> String {
    let shown = |composite: &[u8]| match composite.split_first_chunk() {
        Some((id, key)) => format!("{}/{}", u32::from_be_bytes(*id), shortened(key)),
        None => String::new(),
    };
    let [least, greatest] = range.keys.each_ref().map(|key| shown(key));
    format!("{least} to {greatest}")
}

/// The beginning of a key.
fn shortened(key: &[u8]) -> String {
    match key.get(..KEY_SHOWN_BYTES) {
        Some(start) if key.len() > KEY_SHOWN_BYTES => format!("{}...", start.escape_ascii()),
        _ => key.escape_ascii().to_string(),
    }
}

fn tables(view: &View, known: bool) -> String {
    let mut text = String::from("tables\n");
    for table in view.tables() {
        let rows = if known { format!("{} rows", table.rows) } else { "rows not known".into() };
        let open = if table.schema.is_open() { ", open: learns fields as they come" } else { "" };
        let (id, version) = (table.id, table.schema_version);
        let _ = writeln!(text, "  {} (id {id}, schema version {version}{open}): {rows}", table.name);
        for field in table.schema.fields() {
            let nullable = if field.is_nullable() { ", nullable" } else { "" };
            let _ = writeln!(text, "    {:<24} {:?}{nullable}", field.name(), field.kind());
        }
    }
    text
}

fn segments(view: &View, known: bool) -> String {
    let segments = view.segments();
    let mut text = format!("segments: {}\n", segments.len());
    let (mut live, mut obsolete) = (0, 0);
    text.push_str("  extent extents kind      state       bytes obsolete  youngest sequence\n");
    for s in segments {
        let state = if s.sealed { "sealed" } else { "open" };
        let share = match known {
            true => format!("{}%", (s.obsolete_bytes * 100).checked_div(s.durable_bytes).unwrap_or(0)),
            false => "-".into(),
        };
        let _ = writeln!(
            text,
            "  {:>6} {:>7} {:<9} {state:<6} {:>10} {share:>8}  {}",
            s.extent, s.extents, s.kind, s.durable_bytes, s.max_sequence
        );
        obsolete += s.obsolete_bytes;
        live += s.durable_bytes - s.obsolete_bytes.min(s.durable_bytes);
    }
    if known {
        let _ = writeln!(text, "  live {}, obsolete {} (estimated)", bytes(live), bytes(obsolete));
    }
    text
}

fn log(place: &StorePlace<'_>, segment: u32, limit: usize, out: &mut impl Write) -> Result<(), String> {
    let view = open(place)?;
    let names = names(&view);
    print(out, "        byte    bytes   sequence kind      table            key\n")?;
    let (mut left, mut failed) = (limit, Ok(()));
    let walked = view.records(segment, |record| {
        let Some(fewer) = left.checked_sub(1) else { return false };
        left = fewer;
        failed = print(out, &record_line(&record, names.get(&record.table).map(String::as_str)));
        failed.is_ok()
    });
    failed?;
    walked.map_err(|error| error.to_string())
}

fn record_line(record: &RecordInfo<'_>, table: Option<&str>) -> String {
    let flags = [
        (record.batched, " batched"),
        (record.relocated, " relocated"),
        (record.field_expiry, " fields-expire"),
    ];
    let flags: String = flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect();
    let expiry = record.expires_at_ms.map_or(String::new(), |ms| format!(" expires-at-ms={ms}"));
    format!(
        "{:>12} {:>8} {:>10} {:<9} {:<16} {}{flags}{expiry}\n",
        record.offset,
        record.bytes,
        record.sequence,
        record.kind,
        table.unwrap_or("(dropped)"),
        record.key.escape_ascii(),
    )
}

/// Whoever reads the output may stop reading it.
fn print(out: &mut impl Write, text: &str) -> Result<(), String> {
    match out.write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use hedgerow::{Capacity, Db, Options, Schema, Type, row};

    use super::*;

    use crate::check;

    /// A store with its sorted tables in its own directory.
    fn in_its_own(dir: &std::path::Path) -> StorePlace<'_> {
        StorePlace { dir, capacity: CapacityArgs::default() }
    }

    fn store(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("hedgerow-{name}-{}", std::process::id()));
        let db = Db::open_with(&dir, Options::new().segment_bytes(1 << 20)).unwrap();
        let schema = Schema::new().field("name", Type::String).nullable("age", Type::U32);
        let users = db.create_table("users", schema).unwrap();
        for i in 0..100u32 {
            users.put(&i.to_be_bytes(), &row! { name: "Ada", age: i }).unwrap();
        }
        users.update(&7u32.to_be_bytes(), &row! { age: 99 }).unwrap();
        users.delete(&8u32.to_be_bytes()).unwrap();
        db.close().unwrap();
        dir
    }

    #[test]
    fn a_store_is_shown_and_not_changed() {
        let dir = store("inspect");
        let file = dir.join(hedgerow::FAST_TIER_FILE);
        let before = std::fs::read(&file).unwrap();
        let mut out = Vec::new();
        overview(&in_its_own(&dir), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("closed in order") && text.contains("users (id 1"), "{text}");
        assert!(text.contains("99 rows") && text.contains("String"), "{text}");
        // Which threads wrote first, and so what the first segment holds, is chance.
        let view = View::open(&dir).unwrap();
        let records = |extent| {
            let mut records = 0;
            view.records(extent, |_| (records += 1, true).1).unwrap();
            records
        };
        let extent =
            view.segments().iter().map(|segment| segment.extent).max_by_key(|&n| records(n)).unwrap();
        drop(view);
        let mut out = Vec::new();
        log(&in_its_own(&dir), extent, 3, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 4);
        assert!(before == std::fs::read(&file).unwrap(), "inspecting changed the store");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn any_spoiled_byte_of_a_record_is_found_where_it_is() {
        let dir = store("check");
        assert!(check::examine(&dir, Capacity::Beside, |_| ()).unwrap().problems.is_empty());
        let view = View::open(&dir).unwrap();
        let mut places = Vec::new();
        for segment in view.segments() {
            view.records(segment.extent, |r| {
                places.push((r.offset, r.bytes));
                true
            })
            .unwrap();
        }
        drop(view);
        let file = dir.join(hedgerow::FAST_TIER_FILE);
        let sound = std::fs::read(&file).unwrap();
        for (offset, bytes) in places.iter().copied().step_by(9) {
            let mut spoiled = sound.clone();
            spoiled[offset as usize + bytes / 3] ^= 0x40;
            std::fs::write(&file, &spoiled).unwrap();
            let report = check::examine(&dir, Capacity::Beside, |_| ()).unwrap();
            let message = report.problems.first().map(ToString::to_string).unwrap_or_default();
            assert!(message.contains(&format!("byte {offset} of the fast tier")), "{offset}: {message}");
        }
        // Both copies of the root, one after the other: each is reported though the other serves.
        for copy in [0, 4096] {
            let mut spoiled = sound.clone();
            spoiled[copy + 20] ^= 1;
            std::fs::write(&file, &spoiled).unwrap();
            assert_eq!(check::examine(&dir, Capacity::Beside, |_| ()).unwrap().problems.len(), 1);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_is_left_of_a_damaged_store_is_shown_and_repaired() {
        let dir = store("damaged");
        let file = dir.join(hedgerow::FAST_TIER_FILE);
        let mut bytes = std::fs::read(&file).unwrap();
        let view = View::open(&dir).unwrap();
        let mut place = None;
        for segment in view.segments() {
            let visit = |r: RecordInfo<'_>| {
                place = place.or((r.key == 42u32.to_be_bytes()).then_some(r.offset));
                true
            };
            view.records(segment.extent, visit).unwrap();
        }
        drop(view);
        // A byte of the table's id, in the record of row 42: its key is still told.
        bytes[place.unwrap() as usize + 24] ^= 4;
        std::fs::write(&file, &bytes).unwrap();
        let mut out = Vec::new();
        rows(&in_its_own(&dir), "users", None, usize::MAX, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\"Ada\"").count(), 98, "{text}");
        assert!(text.contains("UInt(99)"), "{text}");
        assert!(rows(&in_its_own(&dir), "users", Some("none"), usize::MAX, &mut Vec::new()).is_err());

        let report = check::examine(&dir, Capacity::Beside, |_| ()).unwrap();
        let names = |part: &str| report.problems.iter().any(|problem| problem.message().contains(part));
        assert!(names(&format!("byte {} of the fast tier", place.unwrap())), "{:?}", report.problems);

        let mut lost = Vec::new();
        let to = dir.join("repaired");
        let report = hedgerow::repair(&dir, &to, |event| {
            if let hedgerow::RepairEvent::Lost { table, key, .. } = event {
                lost.push((table.to_owned(), key.to_vec()));
            }
        })
        .unwrap();
        assert_eq!((report.rows, report.lost, report.doubtful), (98, 1, 0));
        assert_eq!(lost, [("users".to_owned(), 42u32.to_be_bytes().to_vec())]);
        assert_eq!(check::examine(&to, Capacity::Beside, |_| ()).unwrap().rows, 98);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_store_that_is_in_use_is_shown_elsewhere() {
        let dir = store("in-use");
        let db = Db::open(&dir).unwrap();
        let refused = overview(&in_its_own(&dir), &mut Vec::new()).unwrap_err();
        assert!(refused.contains("is in use") && refused.ends_with("by hedgerow top"), "{refused}");
        db.close().unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(8 << 20), "8.0 MiB");
        assert_eq!(bytes(1536 << 30), "1.5 TiB");
    }
}
