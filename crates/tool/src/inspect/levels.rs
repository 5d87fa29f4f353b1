//! The levels of a store as they lie on the media, drawn as `hedgerow top` draws them.
//!
//! Owns the picture. Promises that what could not be read is one line beside what could, and that what is not known is `-`. Must not know bytes, nor how they are read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use hedgerow::inspect::{
    GarbageInfo, GroupInfo, MergeInfo, MergesInfo, RootInfo, RunsInfo, SavedIndexInfo, SavedTableInfo,
    SegmentInfo, SortedTableInfo,
};

use crate::top::canvas::{Canvas, Tone};
use crate::top::figures::{UNKNOWN, bytes, count, percent};
use crate::top::strip::{Fill, Strip};

/// How wide the picture is.
const WIDTH: usize = 100;
const LIVE: char = '█';
const OBSOLETE: char = '▓';
const UNUSED: char = '░';
const LEAVES: char = '▒';
const SAVED: char = '▖';

/// What there is of a store.
pub(super) struct LevelsView {
    pub(super) root: RootInfo,
    pub(super) segments: Vec<SegmentInfo>,
    /// Which bytes of them are obsolete is known.
    pub(super) is_replayed: bool,
    /// It is what is left of a store: nothing is merged in it.
    pub(super) is_damaged: bool,
    pub(super) saved: SavedIndexInfo,
    /// Or why they cannot be read.
    pub(super) runs: Result<RunsInfo, String>,
    pub(super) merges: MergesInfo,
    pub(super) names: HashMap<u32, String>,
}

/// Bytes of the fast tier, by what they are used for.
#[derive(Debug, Default)]
struct FastTierShares {
    live: u64,
    obsolete: u64,
    /// Behind the records of segments.
    unused: u64,
    leaves: u64,
    saved: u64,
    root: u64,
    all: u64,
}

impl FastTierShares {
    fn of(view: &LevelsView) -> FastTierShares {
        let extent_bytes = view.root.segment_bytes;
        let mut shares = FastTierShares {
            all: view.root.fast_tier_bytes,
            root: view.root.root_bytes,
            ..FastTierShares::default()
        };
        for segment in &view.segments {
            let obsolete = segment.obsolete_bytes.min(segment.durable_bytes);
            shares.obsolete += obsolete;
            shares.live += segment.durable_bytes - obsolete;
            shares.unused +=
                (u64::from(segment.extents) * extent_bytes).saturating_sub(segment.durable_bytes);
        }
        // Groups of few keys share extents.
        let extents: BTreeSet<u32> =
            groups(&view.saved).flat_map(|(_, group)| group.extents.iter().copied()).collect();
        shares.leaves = extents.len() as u64 * extent_bytes;
        shares.saved = view.saved.extents.len() as u64 * extent_bytes;
        shares
    }

    fn log(&self) -> u64 {
        self.live + self.obsolete + self.unused
    }

    /// What a store that is opened can write to: a saved index is of no use once it was taken over.
    fn free(&self) -> u64 {
        self.all.saturating_sub(self.log() + self.leaves + self.root)
    }

    fn part(&self, bytes: u64) -> f64 {
        bytes as f64 / self.all.max(1) as f64
    }

    fn fill(&self, bytes: u64, letter: char) -> Fill {
        (self.part(bytes), letter, Tone::Plain)
    }
}

fn groups(saved: &SavedIndexInfo) -> impl Iterator<Item = (u32, &GroupInfo)> {
    saved.tables.iter().flat_map(|of| of.groups.iter().map(move |group| (of.table, group)))
}

/// All of it, as lines of text.
pub(super) fn text(view: &LevelsView) -> String {
    let strips = [view.fast_tier(), view.log(), view.groups(), view.saved(), view.sorted()];
    let mut canvas = Canvas::new(WIDTH, strips.len());
    strips.iter().enumerate().for_each(|(y, strip)| strip.draw(&mut canvas, y));
    let mut text = String::from("levels\n");
    canvas.text().lines().for_each(|line| {
        let _ = writeln!(text, "  {line}");
    });
    let _ = writeln!(
        text,
        "  ({LIVE} live, {OBSOLETE} obsolete, {UNUSED} unused, {LEAVES} leaves of groups, {SAVED} saved index, · free)"
    );
    text.push_str("  What memory holds and what waits in queues, a process knows that has the store open: hedgerow top\n");
    text.push_str(&view.groups_text());
    text.push_str(&view.runs_text());
    text
}

impl LevelsView {
    fn fast_tier(&self) -> Strip {
        let shares = FastTierShares::of(self);
        let fills = vec![
            shares.fill(shares.root + shares.live, LIVE),
            shares.fill(shares.obsolete, OBSOLETE),
            shares.fill(shares.unused, UNUSED),
            shares.fill(shares.leaves, LEAVES),
            shares.fill(shares.saved, SAVED),
        ];
        Strip::new(0, "fast")
            .bar(Some(fills))
            .text(bytes(shares.all))
            .text(format!("free {}", bytes(shares.free())))
            .text(format!("root {}", bytes(shares.root)))
    }

    fn log(&self) -> Strip {
        let shares = FastTierShares::of(self);
        let known = |number: u64| if self.is_replayed { bytes(number) } else { UNKNOWN.to_owned() };
        let fills = vec![
            shares.fill(shares.live, LIVE),
            shares.fill(shares.obsolete, OBSOLETE),
            shares.fill(shares.unused, UNUSED),
        ];
        Strip::new(0, "log")
            .bar(Some(fills))
            .text(bytes(shares.log()))
            .text(format!("live {}", known(shares.live)))
            .text(format!("obsolete {}", known(shares.obsolete)))
            .text(format!("unused {}", bytes(shares.unused)))
            .text(format!("segments {}", self.segments.len()))
    }

    fn groups(&self) -> Strip {
        let shares = FastTierShares::of(self);
        let strip = Strip::new(0, "groups");
        if groups(&self.saved).next().is_none() {
            let why = if self.saved.refused.is_some() { "none that count" } else { "none" };
            return strip.bar(Some(Vec::new())).text(why);
        }
        let of_all =
            |number: fn(&GroupInfo) -> u64| groups(&self.saved).map(|(_, group)| number(group)).sum();
        let (leaf_bytes, entries): (u64, u64) = (of_all(|group| group.bytes), of_all(|group| group.entries));
        let tables: BTreeSet<u32> = groups(&self.saved).map(|(table, _)| table).collect();
        strip
            .bar(Some(vec![shares.fill(shares.leaves, LEAVES)]))
            .text(bytes(shares.leaves))
            .text(format!("tables {}", tables.len()))
            .text(format!("groups {}", groups(&self.saved).count()))
            .text(format!("entries {}", count(entries)))
            .text(each(leaf_bytes, entries, "bytes a key"))
    }

    fn saved(&self) -> Strip {
        let (shares, saved) = (FastTierShares::of(self), &self.saved);
        let strip = Strip::new(0, "saved").bar(Some(vec![shares.fill(shares.saved, SAVED)]));
        if saved.extents.is_empty() {
            return strip.text("no index that counts");
        }
        let keys: u64 = saved.tables.iter().map(|of| of.keys).sum();
        let outcome = match &saved.refused {
            None => "opened by it",
            Some(_) => "passed over",
        };
        strip
            .text(bytes(saved.bytes))
            .text(format!("keys {}", count(keys)))
            .text(each(saved.tables.iter().map(|of| of.bytes).sum(), keys, "bytes a key"))
            .text(outcome)
    }

    fn sorted(&self) -> Strip {
        let strip = Strip::new(0, "sorted");
        let runs = match &self.runs {
            Ok(runs) if !runs.ranges.is_empty() => runs,
            Ok(runs) if !runs.unreadable.is_empty() => return strip.bar(None).text("cannot be read"),
            Ok(_) => return strip.bar(Some(Vec::new())).text("none"),
            Err(_) => return strip.bar(None).text("cannot be read"),
        };
        let all = RunShares::of(self.with_garbage(runs));
        strip
            .bar(Some(all.fills(all.file_bytes)))
            .text(bytes(all.file_bytes))
            .text(format!("runs {}", by_run(self.with_garbage(runs)).len()))
            .text(format!("files {}", all.files.len()))
            .text(format!("rows {}", count(all.rows)))
            .text(format!("garbage {}", all.garbage_text()))
    }

    fn name(&self, table: u32) -> &str {
        self.names.get(&table).map_or("(dropped)", String::as_str)
    }

    /// What is on the fast tier of the index.
    fn groups_text(&self) -> String {
        let mut text = String::from("\nsaved index\n");
        let outcome = match &self.saved.refused {
            None if self.saved.is_for_unbounded => {
                "  a store without bounds is opened by it; one that may move rows has its log walked"
            }
            None => "  the next opening goes by it",
            Some(why) => &format!("  the next opening walks the log: {why}"),
        };
        let _ = writeln!(text, "{outcome}");
        if !self.saved.extents.is_empty() {
            let _ =
                writeln!(text, "  {} in extents {}", bytes(self.saved.bytes), ranges(&self.saved.extents));
        }
        for SavedTableInfo { table, keys, bytes: saved, sealed_rows, groups, .. } in &self.saved.tables {
            let _ = writeln!(
                text,
                "  {} (id {table}): {keys} keys with their slots, {}{}",
                self.name(*table),
                each(*saved, *keys, "bytes each"),
                if groups.is_empty() {
                    String::new()
                } else {
                    format!("; {sealed_rows} rows in groups alone")
                }
            );
            if !groups.is_empty() {
                text.push_str("    group   extents    leaves   entries      bytes  a key  where\n");
            }
            // L0 is counted from the oldest, as they come.
            let mut l0 = 0;
            for group in groups {
                l0 += u32::from(!group.is_l1);
                let name = if group.is_l1 { "L1".to_owned() } else { format!("L0 {l0}") };
                text.push_str(&group_line(&name, group));
            }
        }
        text
    }

    fn with_garbage<'r>(
        &'r self,
        runs: &'r RunsInfo,
    ) -> impl Iterator<Item = (&'r SortedTableInfo, Option<GarbageInfo>)> {
        let garbage = self.merges.garbage.iter().copied().map(Some).chain(std::iter::repeat(None));
        runs.ranges.iter().zip(garbage)
    }

    /// The sorted tables by run, and what is merged next.
    fn runs_text(&self) -> String {
        let mut text = String::new();
        let runs = match &self.runs {
            Ok(runs) if runs.ranges.is_empty() && runs.unreadable.is_empty() => return text,
            Ok(runs) => runs,
            Err(why) => return format!("\nsorted tables cannot be read: {why}\n"),
        };
        let _ = writeln!(text, "\nruns of sorted tables, the newest first");
        let all = by_run(self.with_garbage(runs));
        let most = all.iter().map(|(_, run)| run.file_bytes).max().unwrap_or(0);
        for (number, run) in &all {
            let strip = Strip::new(0, "")
                .bar(Some(run.fills(most)))
                .text(bytes(run.file_bytes))
                .text(format!("files {}", run.files.len()))
                .text(format!("blocks {}", run.blocks.map_or(UNKNOWN.to_owned(), count)))
                .text(format!("garbage {}", run.garbage_text()));
            let mut canvas = Canvas::new(WIDTH, 1);
            strip.draw(&mut canvas, 0);
            let _ = writeln!(text, "  run {number:<4}{}", canvas.text().trim());
            let _ = writeln!(
                text,
                "      filters {}, {}",
                bytes(run.filter_bytes),
                each(run.filter_bytes * 8, run.records(), "bits a key")
            );
            for (table, [rows, deltas, tombstones, record_bytes]) in &run.tables {
                let _ = writeln!(
                    text,
                    "      {}: {rows} rows, {deltas} deltas, {tombstones} tombstones, {} before they were compressed",
                    self.name(*table),
                    bytes(*record_bytes)
                );
            }
        }
        runs.unreadable.iter().for_each(|why| {
            let _ = writeln!(text, "  cannot be read: {why}");
        });
        if !self.is_damaged {
            text.push_str(&self.merges_text(all.len()));
        }
        text
    }

    fn merges_text(&self, runs: usize) -> String {
        let (merges, mut text) = (&self.merges, String::new());
        let of_state = merges.next.iter().zip(merges.garbage_percent_max);
        for (state, (next, percent_max)) in
            ["while somebody writes", "while nobody does"].iter().zip(of_state)
        {
            let next = match next {
                Some(merge) => merge_text(merge),
                None => {
                    let max = merges.runs_max;
                    format!("nothing (runs: {runs} of {max}; up to {percent_max}% garbage may be there)")
                }
            };
            let _ = writeln!(text, "  merged next {state}: {next}");
        }
        text
    }
}

fn group_line(name: &str, group: &GroupInfo) -> String {
    let GroupInfo { extents, leaves, entries, .. } = group;
    let damaged = match group.damaged.as_slice() {
        [] => String::new(),
        damaged => format!(", damaged: {}", ranges(damaged)),
    };
    format!(
        "    {name:<7} {:>7} {leaves:>9} {entries:>9} {:>10} {:>6}  {}{damaged}\n",
        extents.len(),
        bytes(group.bytes),
        ratio(group.bytes, *entries),
        ranges(extents)
    )
}

fn merge_text(merge: &MergeInfo) -> String {
    let numbers: Vec<String> = merge.runs.iter().map(u64::to_string).collect();
    let what = match merge.keys {
        None => "all of them, for there are too many runs",
        Some(_) => "a range of keys, for its garbage",
    };
    let run = if numbers.len() == 1 { "run" } else { "runs" };
    format!("{run} {}: {what}, about {} read", numbers.join(", "), bytes(merge.bytes))
}

/// What some ranges of sorted tables have together. A file of several is counted once.
#[derive(Debug, Default)]
struct RunShares<'r> {
    files: BTreeSet<&'r str>,
    file_bytes: u64,
    /// None if that of one is not known.
    blocks: Option<u64>,
    filter_bytes: u64,
    rows: u64,
    record_bytes: u64,
    garbage: Option<u64>,
    /// Of each: rows, deltas, tombstones, bytes of records.
    tables: BTreeMap<u32, [u64; 4]>,
}

impl<'r> RunShares<'r> {
    fn of(ranges: impl Iterator<Item = (&'r SortedTableInfo, Option<GarbageInfo>)>) -> RunShares<'r> {
        let mut run = RunShares { blocks: Some(0), garbage: Some(0), ..RunShares::default() };
        ranges.for_each(|(range, garbage)| run.add(range, garbage));
        run
    }

    fn add(&mut self, range: &'r SortedTableInfo, garbage: Option<GarbageInfo>) {
        self.garbage = self.garbage.zip(garbage).map(|(sum, garbage)| sum + garbage.bytes());
        if !self.files.insert(&range.file) {
            return;
        }
        self.file_bytes += range.bytes;
        self.blocks = self.blocks.zip(range.blocks).map(|(sum, blocks)| sum + blocks);
        self.filter_bytes += range.filter_bytes;
        self.rows += range.rows;
        for part in &range.tables {
            let of = self.tables.entry(part.table).or_default();
            let parts = [part.rows, part.deltas, part.tombstones, part.record_bytes];
            of.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
            self.record_bytes += part.record_bytes;
        }
    }

    fn records(&self) -> u64 {
        self.tables.values().map(|[rows, deltas, tombstones, _]| rows + deltas + tombstones).sum()
    }

    fn garbage_share(&self) -> Option<f64> {
        Some((self.garbage? as f64 / self.record_bytes.max(1) as f64).min(1.0))
    }

    fn garbage_text(&self) -> String {
        self.garbage_share().map_or(UNKNOWN.to_owned(), percent)
    }

    fn fills(&self, whole: u64) -> Vec<Fill> {
        let (part, garbage) =
            (self.file_bytes as f64 / whole.max(1) as f64, self.garbage_share().unwrap_or(0.0));
        vec![(part * (1.0 - garbage), LIVE, Tone::Plain), (part * garbage, OBSOLETE, Tone::Plain)]
    }
}

/// Newest first.
fn by_run<'r>(
    ranges: impl Iterator<Item = (&'r SortedTableInfo, Option<GarbageInfo>)>,
) -> Vec<(u64, RunShares<'r>)> {
    let mut runs: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    ranges.for_each(|of| runs.entry(of.0.run).or_default().push(of));
    let shares = runs.into_iter().rev().map(|(run, ranges)| (run, RunShares::of(ranges.into_iter())));
    shares.collect()
}

fn ratio(part: u64, of: u64) -> String {
    if of == 0 { UNKNOWN.to_owned() } else { format!("{:.1}", part as f64 / of as f64) }
}

/// So many of something for each.
fn each(part: u64, of: u64, what: &str) -> String {
    format!("{} {what}", ratio(part, of))
}

/// Numbers that may be next to one another: `3-7, 12`.
fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let texts: Vec<String> = runs
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            run => run.iter().map(u32::to_string).collect(),
        })
        .collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests;
