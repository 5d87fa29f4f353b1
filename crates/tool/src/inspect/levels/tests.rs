//! What is drawn of real stores, whole and damaged.

use std::path::Path;

use hedgerow::inspect::View;
use hedgerow::{Capacity, Db, Options, Schema, Type, row};

use super::*;
use crate::capacity::CapacityArgs;
use crate::inspect::{StorePlace, overview};

/// A directory that goes with the test.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hedgerow-levels-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn shown(dir: &Path) -> String {
    let mut out = Vec::new();
    overview(&StorePlace { dir, capacity: CapacityArgs::default() }, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The rest of the line that begins with `name`, whatever stands before its bar's end.
fn level<'t>(text: &'t str, name: &str) -> &'t str {
    let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).split(']').next_back().unwrap().trim()
}

fn spoil(file: &Path, at: u64) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at as usize] ^= 0x20;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn numbers_next_to_one_another_are_a_range() {
    assert_eq!(ranges(&[7, 3, 4, 5, 9, 10]), "3-5, 7, 9-10");
    assert_eq!((ranges(&[]).as_str(), ranges(&[u32::MAX]).as_str()), ("", "4294967295"));
}

#[test]
fn groups_and_the_saved_index_are_drawn_and_what_is_damaged_is_named() {
    let scratch = Scratch::new("groups");
    let options = || {
        let options = Options::new().segment_bytes(1 << 20).capacity(Capacity::None);
        options.index_bytes_max(1 << 20).saved_index_bytes_min(0)
    };
    let db = Db::open_with(&scratch.0, options()).unwrap();
    let table = db.create_table("users", Schema::new().field("n", Type::U64)).unwrap();
    for n in 0..90_000u64 {
        table.put(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15), &row! { n: n }).unwrap();
    }
    let sealed = db.metrics().sealed.keys_sealed;
    assert!(sealed > 10_000, "{sealed} keys have left memory");
    drop(table);
    db.close().unwrap();

    let saved = View::open(&scratch.0).unwrap().saved_index();
    let text = shown(&scratch.0);
    assert!(text.contains("the next opening goes by it\n"), "{text}");
    let all: u64 = saved.tables.iter().flat_map(|of| &of.groups).map(|group| group.entries).sum();
    assert_eq!(saved.tables[0].keys + saved.tables[0].sealed_rows, 90_000, "each key was written once");
    assert_eq!(all, saved.tables[0].sealed_rows);
    assert!(level(&text, "groups").contains("tables 1") && level(&text, "groups").ends_with("bytes a key"));
    assert!(level(&text, "saved").ends_with("opened by it") && level(&text, "sorted") == "none", "{text}");
    assert!(text.contains("hedgerow top") && level(&text, "log").contains("segments "), "{text}");
    let newest = saved.tables[0].groups.last().unwrap();
    let line = format!("{:>9} {:>9}", newest.leaves, newest.entries);
    assert!(text.lines().any(|shown| shown.contains(&line)), "no {line:?} in\n{text}");

    // A byte of the leaves of the newest group.
    let extent = newest.extents[0];
    let file = scratch.0.join(hedgerow::FAST_TIER_FILE);
    let leaf = u64::from(extent) * View::open(&scratch.0).unwrap().root().segment_bytes + 4096 + 300;
    spoil(&file, leaf);
    let text = shown(&scratch.0);
    assert!(text.contains(&format!("damaged: {extent}\n")), "{text}");
    assert!(text.contains("the next opening walks the log: the leaves of its keys"), "{text}");
    assert!(text.contains("users (id 1, schema version 1): 90000 rows"), "{text}");
    spoil(&file, leaf);

    // And one of the saved index itself.
    let piece = u64::from(saved.extents[0]) * View::open(&scratch.0).unwrap().root().segment_bytes;
    spoil(&file, piece + 4096 + 500);
    let text = shown(&scratch.0);
    assert!(level(&text, "saved").ends_with("passed over") && text.contains("is damaged\n"), "{text}");
    spoil(&file, piece + 4096 + 500);

    // It is gone by, and then of no use any more.
    let db = Db::open_with(&scratch.0, options()).unwrap();
    assert!(db.metrics().index_was_saved);
    drop(db);
}

#[test]
fn a_short_log_says_that_none_was_saved() {
    let scratch = Scratch::new("short");
    let db = Db::open_with(&scratch.0, Options::new().segment_bytes(1 << 20)).unwrap();
    db.create_table("users", Schema::open()).unwrap().put(b"1", &row! { n: "1" }).unwrap();
    db.close().unwrap();
    let text = shown(&scratch.0);
    assert!(text.contains("the next opening walks the log: none was saved"), "{text}");
    assert_eq!((level(&text, "saved"), level(&text, "sorted")), ("no index that counts", "none"));
    assert_eq!(level(&text, "groups"), "none that count", "{text}");
    assert!(!text.contains("runs of sorted tables"), "{text}");
}

#[test]
fn runs_are_drawn_with_their_garbage_and_the_next_merge() {
    let scratch = Scratch::new("runs");
    let options = || Options { background: false, ..Options::new().segment_bytes(1 << 18) };
    let bounded = options().fast_tier_bytes_max(8 << 20);
    let db = Db::open_with(&scratch.0, bounded).unwrap();
    let schema = Schema::new().field("n", Type::U64).field("text", Type::String);
    let table = db.create_table("users", schema).unwrap();
    let text = "x".repeat(500);
    for n in 0..36_000u64 {
        // Some of those that moved first are replaced by what moves later.
        let key = (n % 30_000).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        table.put(&key, &row! { n: n, text: text.as_str() }).unwrap();
        if n % 1_000 == 999 {
            db.collect().unwrap();
        }
    }
    let lower = db.metrics().sorted_tables;
    assert!(lower.runs > 1, "{lower:?}");
    drop(table);
    db.close().unwrap();

    let view = View::open(&scratch.0).unwrap();
    let (runs, merges) = (view.runs().unwrap(), view.merges());
    drop(view);
    assert_eq!(runs.ranges.len(), merges.garbage.len());
    let garbage: u64 = merges.garbage.iter().map(GarbageInfo::bytes).sum();
    let records: u64 = runs.ranges.iter().flat_map(|range| &range.tables).map(|part| part.record_bytes).sum();
    assert!(garbage <= records, "{garbage} of {records}");
    assert!(runs.ranges.iter().all(|range| range.blocks.is_some_and(|blocks| blocks > 0)));
    let before = std::fs::read(scratch.0.join(hedgerow::FAST_TIER_FILE)).unwrap();
    let text = shown(&scratch.0);
    assert!(before == std::fs::read(scratch.0.join(hedgerow::FAST_TIER_FILE)).unwrap(), "it was changed");
    assert!(level(&text, "sorted").contains(&format!("runs {}  files ", lower.runs)), "{text}");
    for run in runs.ranges.iter().map(|range| range.run) {
        assert!(text.contains(&format!("  run {run:<4}[")), "no run {run} in\n{text}");
    }
    assert!(text.contains("12.0 bits a key"), "{text}");
    let states = ["merged next while somebody writes: ", "merged next while nobody does: "];
    for (state, next) in states.iter().zip(&merges.next) {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(state)).unwrap();
        assert_eq!(line.starts_with("nothing"), next.is_none(), "{line}");
    }

    // Without one of its files the others are shown, and that it is missing.
    let gone = &runs.ranges[0].file;
    std::fs::remove_file(scratch.0.join(hedgerow::CAPACITY_DIRECTORY).join(gone)).unwrap();
    let text = shown(&scratch.0);
    assert!(text.contains(&format!("  cannot be read: the sorted table {gone}, which")), "{text}");
    assert!(level(&text, "log").contains("live -") && !text.contains("merged next"), "{text}");
    let left = runs.ranges.iter().filter(|range| range.file != *gone).map(|range| &range.file);
    assert!(left.clone().all(|file| text.contains(file.as_str())) && left.count() > 0, "{text}");
}
