//! The picture of a server: which figures are shown, in which order, and what gives way where there is little room.
//!
//! Owns that choice. Promises that a picture has as many rows and places as it is asked for, whatever is known of the server, and that what is not known is `-`.
//! Must not know where the figures come from, nor of terminals.

use std::time::{Duration, Instant};

use super::canvas::{Canvas, Tone};
use super::figures::{UNKNOWN, age, bytes, bytes_per_second, count, per_second, percent, took};
use super::monitor::{Curve, Monitor};
use super::rates::{CommandClass, CommandRate, CounterRates};
use super::sample::ServerSample;
use super::strip::{Fill, Strip};

/// A limit from here on is none.
const NO_LIMIT: u64 = 1 << 60;
/// Parts of a level that are to be looked at.
const FULL_WARN: f64 = 0.85;
const FULL_BAD: f64 = 0.97;
/// Commands that get a row of their own where there is room.
const COMMANDS_MAX: usize = 6;
/// An answer is old when it is late by this.
const LATE: Duration = Duration::from_secs(2);

/// All that is known, and the keys, in a canvas of this size.
pub fn draw(monitor: &Monitor, now: Instant, width: usize, height: usize) -> Canvas {
    let footer = "q quit  p pause  h help  + - interval";
    let footer_rows = usize::from(height > 3);
    let strips = if monitor.shows_help() { help(monitor, now) } else { strips(monitor, now) };
    let mut canvas = drawn(fitting(strips, height - footer_rows), width, height);
    if footer_rows > 0 {
        canvas.put(0, height - 1, footer, Tone::Dim);
    }
    canvas
}

/// All that is known, as lines of text.
pub fn text(monitor: &Monitor, now: Instant, width: usize) -> String {
    let strips = strips(monitor, now);
    let height = strips.len();
    drawn(strips, width, height).text()
}

fn drawn(strips: Vec<Strip>, width: usize, height: usize) -> Canvas {
    let mut canvas = Canvas::new(width, height);
    strips.iter().enumerate().for_each(|(y, strip)| strip.draw(&mut canvas, y));
    canvas
}

/// Those that have room: of the highest rank the last goes first.
fn fitting(mut strips: Vec<Strip>, height: usize) -> Vec<Strip> {
    while strips.len() > height {
        let highest = strips.iter().map(|strip| strip.rank).max().unwrap_or_default();
        let last = strips.iter().rposition(|strip| strip.rank == highest).unwrap_or_default();
        strips.remove(last);
    }
    strips
}

fn strips(monitor: &Monitor, now: Instant) -> Vec<Strip> {
    let mut strips = vec![title(monitor, now)];
    strips.extend(troubles(monitor, now));
    if let Some(sample) = monitor.latest() {
        let view = ServerView { monitor, sample };
        strips.extend(view.server());
        strips.extend(view.rates());
        strips.extend(view.levels());
        strips.extend(view.queues());
    }
    strips
}

fn title(monitor: &Monitor, now: Instant) -> Strip {
    let sample = monitor.latest();
    let version = sample.and_then(|sample| sample.text("hedgerow_version")).unwrap_or(UNKNOWN);
    let uptime = sample.and_then(|sample| sample.number("uptime_in_seconds"));
    let uptime = uptime.map_or(UNKNOWN.to_string(), |seconds| age(Duration::from_secs(seconds)));
    let strip = Strip::unnamed(0).toned(format!("hedgerow {version}"), Tone::Strong);
    let strip = strip.text(monitor.server());
    let late = sample.map(|sample| now.saturating_duration_since(sample.at()));
    let late = late.filter(|late| *late > 2 * monitor.interval() + LATE);
    let strip = match (monitor.is_paused(), late) {
        (true, _) => strip.toned("paused", Tone::Warn),
        (false, Some(late)) => strip.toned(format!("{} old", age(late)), Tone::Warn),
        (false, None) => strip,
    };
    strip.text(format!("up {uptime}")).text(format!("every {}", interval_text(monitor.interval())))
}

fn interval_text(interval: Duration) -> String {
    if interval.subsec_millis() == 0 { age(interval) } else { format!("{}ms", interval.as_millis()) }
}

/// What is so wrong that it stands above all else.
fn troubles(monitor: &Monitor, now: Instant) -> Vec<Strip> {
    let bad = |text: String| Strip::unnamed(0).toned(text, Tone::Bad);
    let silence = monitor.silence().map(|silence| {
        let missed = age(now.saturating_duration_since(silence.since));
        bad(format!("no answer for {missed}, trying again: {}", silence.reason))
    });
    let of_server = |name: &str| monitor.latest().and_then(|sample| sample.text(name));
    let writes = of_server("write_failure").map(|why| bad(format!("takes no more writes: {why}")));
    let moves = of_server("move_failure").map(|why| bad(format!("the last move failed: {why}")));
    silence.into_iter().chain(writes).chain(moves).collect()
}

fn heading(text: &str) -> Strip {
    Strip::unnamed(5).toned(format!("── {text} {}", "─".repeat(500)), Tone::Dim)
}

fn help(monitor: &Monitor, now: Instant) -> Vec<Strip> {
    let mut strips = vec![title(monitor, now)];
    strips.extend(troubles(monitor, now));
    let lines = [
        ("q", "quits; so do Esc and Ctrl-C"),
        ("p", "pauses: the server is not asked until p is pressed again"),
        ("+ -", "asks less often, more often"),
        ("h ?", "shows this, and the figures again; Ctrl-L paints all anew, Ctrl-Z stops until fg"),
        ("", ""),
        ("-", "the server does not tell, or there is nothing yet to compare with"),
        ("index", "memory that finds keys, of what it may take"),
        ("groups", "keys that left memory for the fast tier (sealed keys)"),
        ("log", "rows on the fast tier: █ live, ▓ obsolete, ░ unused"),
        ("sorted", "rows below the log: █ needed, ▓ garbage"),
        ("reads", "commands that read keys, and the mean time of one in the server"),
        ("ping", "a PING from here and back: the last, and of the last 600 at most"),
    ];
    strips.extend(lines.map(|(name, text)| Strip::new(1, name).text(text)));
    strips
}

/// An answer, with all that came before.
struct ServerView<'m> {
    monitor: &'m Monitor,
    sample: &'m ServerSample,
}

impl<'m> ServerView<'m> {
    fn number(&self, name: &str) -> Option<u64> {
        self.sample.number(name)
    }

    fn count(&self, name: &str) -> String {
        shown(self.number(name), count)
    }

    fn bytes(&self, name: &str) -> String {
        shown(self.number(name), bytes)
    }

    fn rate(&self, name: &str) -> String {
        shown(self.monitor.rates().and_then(|rates| rates.of(name)), per_second)
    }

    fn bytes_rate(&self, name: &str) -> String {
        shown(self.monitor.rates().and_then(|rates| rates.of(name)), bytes_per_second)
    }

    fn of_rates<T>(&self, what: impl FnOnce(&'m CounterRates) -> Option<T>) -> Option<T> {
        self.monitor.rates().and_then(what)
    }

    fn server(&self) -> Vec<Strip> {
        let clients = Strip::new(3, "clients").text(self.count("connected_clients"));
        let clients = clients
            .text(format!("memory {}", self.bytes("used_memory")))
            .text(format!("peak {}", self.bytes("used_memory_peak")))
            .text(format!("resident {}", self.bytes("used_memory_rss")))
            .text(format!("rows {}", self.count("rows")))
            .text(format!("tables {}", self.count("tables")));
        let text = |name: &str| self.sample.text(name).unwrap_or(UNKNOWN).to_string();
        let is_read_only = (self.number("read_only") == Some(1)).then_some("read only");
        let store = Strip::new(5, "store").text(text("store"));
        let store = store
            .text(format!("durability {}", text("durability")))
            .given(is_read_only, |strip, text| strip.toned(text, Tone::Warn));
        vec![clients, store]
    }

    fn rates(&self) -> Vec<Strip> {
        let commands = Strip::new(1, "commands")
            .text(format!("{:>8}", self.rate("total_commands_processed")))
            .text(" ".repeat(8))
            .course(self.monitor.past(Curve::Commands));
        let class = |name, class, curve| {
            let rate = self.of_rates(|rates| rates.class(class));
            let mean = rate.and_then(|rate: CommandRate| rate.mean_seconds);
            Strip::new(2, name)
                .text(format!("{:>8}", shown(rate.map(|rate| rate.per_second), per_second)))
                .text(format!("{:>8}", shown(mean, took)))
                .course(self.monitor.past(curve))
        };
        let network = Strip::new(6, "network")
            .text(format!("in {}", self.bytes_rate("total_net_input_bytes")))
            .text(format!("out {}", self.bytes_rate("total_net_output_bytes")))
            .text(format!("connections {}", self.rate("total_connections_received")))
            .text(format!("errors {}", self.rate("total_error_replies")));
        let mut strips = vec![
            heading("rates, and the mean time of a command in the server"),
            commands,
            class("reads", CommandClass::Reads, Curve::Reads),
            class("writes", CommandClass::Writes, Curve::Writes),
            self.rows(),
            network,
            self.round_trips(),
        ];
        strips.extend(self.busiest());
        strips
    }

    /// What the engine does, whoever asked for it.
    fn rows(&self) -> Strip {
        let found = self.of_rates(|rates| rates.hit_ratio("keyspace_hits", "keyspace_misses"));
        Strip::new(7, "rows")
            .text(format!("get {}", self.rate("gets")))
            .text(format!("put {}", self.rate("puts")))
            .text(format!("update {}", self.rate("updates")))
            .text(format!("delete {}", self.rate("deletes")))
            .text(format!("scan {}", self.rate("scans")))
            .text(format!("keys found {}", shown(found, percent)))
    }

    fn round_trips(&self) -> Strip {
        let found = self.monitor.round_trips();
        let time = |part: fn(&super::monitor::RoundTrips) -> f64| shown(found.as_ref().map(part), took);
        Strip::new(4, "ping")
            .text(format!("{:>8}", time(|found| found.last)))
            .text(format!("median {}", time(|found| found.median)))
            .text(format!("p99 {}", time(|found| found.p99)))
            .text(format!("worst {}", time(|found| found.worst)))
            .course(self.monitor.past(Curve::RoundTrip))
    }

    /// The commands that take the most time: in one row, and one by one where there is room.
    fn busiest(&self) -> Vec<Strip> {
        let commands = self.monitor.rates().map(CounterRates::commands).unwrap_or_default();
        let figures = |rate: &CommandRate| (per_second(rate.per_second), shown(rate.mean_seconds, took));
        let mut all = Strip::new(4, "busiest");
        if commands.is_empty() {
            return vec![all.text(UNKNOWN)];
        }
        for (name, rate) in commands.iter().take(COMMANDS_MAX) {
            let (often, long) = figures(rate);
            all = all.text(format!("{name} {often} {long}"));
        }
        let seconds = |rate: &CommandRate| rate.per_second * rate.mean_seconds.unwrap_or_default();
        let each = commands.iter().take(COMMANDS_MAX).map(|(name, rate)| {
            let (often, long) = figures(rate);
            let strip = Strip::new(8, "").text(format!("{name:<20}{often:>8}{long:>10}"));
            // The time of EXEC is that of the commands in it, which have their own shares.
            let share = (*name != "exec").then(|| percent(seconds(rate)));
            strip.given(share, |strip, share| strip.text(format!("{share} of the server's time")))
        });
        std::iter::once(all).chain(each).collect()
    }

    fn levels(&self) -> Vec<Strip> {
        let mut strips = vec![heading("levels"), self.index(), self.groups(), self.log(), self.sorted()];
        strips.extend([self.cache(), self.blocks(), self.records(), self.looks()]);
        strips
    }

    fn index(&self) -> Strip {
        let full = fraction(self.number("index_bytes"), self.number("index_bytes_max"));
        level("index", full.map(|part| vec![(part, '█', Tone::Accent)]), shown(full, percent), full)
            .text(self.bytes("index_bytes"))
            .near(format!("of {}", self.bytes("index_bytes_max")))
            .text(format!("finds groups {}", self.bytes("sealed_memory_bytes")))
    }

    fn groups(&self) -> Strip {
        let (whole, _) = self.fast_tier();
        let full = fraction(self.number("sealed_fast_tier_bytes"), whole);
        level("groups", full.map(|part| vec![(part, '█', Tone::Accent)]), shown(full, percent), None)
            .text(self.bytes("sealed_fast_tier_bytes"))
            .text(format!("keys {}", self.count("sealed_rows")))
            .text(format!("groups {}", self.count("sealed_groups")))
    }

    /// The log and the groups share the fast tier, and its bound.
    fn log(&self) -> Strip {
        let (whole, limit) = self.fast_tier();
        let parts = [("live_bytes", '█'), ("obsolete_bytes", '▓'), ("unused_bytes", '░')];
        let fill = |(name, letter)| Some((fraction(self.number(name), whole)?, letter, Tone::Accent));
        let fills: Option<Vec<Fill>> = parts.into_iter().map(fill).collect();
        let used = total(parts.map(|(name, _)| self.number(name)));
        let full = fraction(used, whole).filter(|_| limit.is_some());
        let groups = fraction(self.number("sealed_fast_tier_bytes"), whole).unwrap_or_default();
        let figure = if whole.is_some() && limit.is_none() { String::new() } else { shown(full, percent) };
        level("log", fills, figure, full.map(|full| full + groups))
            .text(shown(used, bytes))
            .near(limit.map_or("without limit".to_string(), |limit| format!("of {limit}")))
            .text(format!("live {}", self.bytes("live_bytes")))
            .text(format!("file {}", self.bytes("fast_tier_allocated_bytes")))
    }

    /// What a bar of the fast tier is full of, and the limit as a text; without a limit it is as long as the file is now.
    fn fast_tier(&self) -> (Option<u64>, Option<String>) {
        match self.number("maxmemory") {
            Some(0) => (self.number("fast_tier_bytes"), None),
            _ => (self.number("fast_tier_bytes_max"), Some(self.bytes("fast_tier_bytes_max"))),
        }
    }

    fn sorted(&self) -> Strip {
        let (used, limit) = (self.number("sorted_bytes"), self.number("sorted_bytes_max"));
        let is_bounded = limit.is_none_or(|limit| limit < NO_LIMIT);
        let full = fraction(used, limit).filter(|_| is_bounded);
        let part = if is_bounded { full } else { used.map(|used| if used > 0 { 1.0 } else { 0.0 }) };
        let garbage = fraction(self.number("sorted_garbage_bytes"), self.number("sorted_record_bytes"));
        let garbage = garbage.unwrap_or_default().min(1.0);
        let fills = part.map(|part| {
            vec![(part * (1.0 - garbage), '█', Tone::Accent), (part * garbage, '▓', Tone::Accent)]
        });
        let figure = if is_bounded { shown(full, percent) } else { String::new() };
        let limit =
            if is_bounded { format!("of {}", shown(limit, bytes)) } else { "without limit".to_string() };
        level("sorted", fills, figure, full)
            .text(shown(used, bytes))
            .near(limit)
            .text(format!("rows {}", self.count("sorted_rows")))
            .text(format!("runs {}", self.count("sorted_runs")))
    }

    fn cache(&self) -> Strip {
        let hits = self.of_rates(|rates| rates.hit_ratio("cache_hits", "cache_misses"));
        let state = match self.number("cache_active") {
            Some(0) => "bypassed".to_string(),
            Some(_) => format!("hits {}", shown(hits, percent)),
            None => UNKNOWN.to_string(),
        };
        let strip = self.of_memory(3, "cache", "cache_bytes", "cache_bytes_max");
        strip.text(state).text(format!("rows {}", self.count("cache_rows")))
    }

    fn blocks(&self) -> Strip {
        let hits = self.of_rates(|rates| rates.hit_ratio("block_cache_hits", "block_cache_misses"));
        self.of_memory(7, "blocks", "block_cache_bytes", "block_cache_bytes_max")
            .text(format!("hits {}", shown(hits, percent)))
            .text(format!("read {}", self.rate("block_cache_misses")))
    }

    fn records(&self) -> Strip {
        self.of_memory(7, "records", "record_cache_bytes", "record_cache_bytes_max")
            .text(format!("hits {}", self.rate("record_cache_hits")))
            .text(format!("runs looked into {}", self.rate("sorted_looks")))
    }

    fn of_memory(&self, rank: u8, name: &'static str, used: &str, most: &str) -> Strip {
        let full = fraction(self.number(used), self.number(most));
        let fills = full.map(|part| vec![(part, '█', Tone::Accent)]);
        let mut strip = level(name, fills, shown(full, percent), None);
        strip.rank = rank;
        strip.text(self.bytes(used)).near(format!("of {}", self.bytes(most)))
    }

    /// What looking for sealed keys costs.
    fn looks(&self) -> Strip {
        let leaves = self.of_rates(|rates| rates.ratio("sealed_leaves_read", "sealed_looks"));
        Strip::new(8, "sealed")
            .text(format!("looked for {}", self.rate("sealed_looks")))
            .text(format!("leaves a look {}", shown(leaves, |leaves| format!("{leaves:.2}"))))
            .text(format!("sealed {}", self.rate("sealed_keys")))
            .text(format!("merged {}", self.rate("sealed_keys_merged")))
    }

    fn queues(&self) -> Vec<Strip> {
        let mut strips =
            vec![heading("still to do, and how fast it goes"), self.gc(), self.moves(), self.merges()];
        strips.extend([self.throttle(), self.syncs(), self.waits(), self.knobs(), self.snapshots()]);
        strips.extend(self.backup());
        strips
    }

    fn gc(&self) -> Strip {
        let quarantined = self.number("segments_quarantined").filter(|count| *count > 0);
        let to_read = ["live_bytes", "obsolete_bytes"].map(|name| self.number(name));
        let part = fraction(to_read[1], total(to_read)).map(|part| part.min(1.0));
        Strip::new(3, "gc")
            .text(format!("obsolete {}", self.bytes("obsolete_bytes")))
            .near(shown(part, percent))
            .text(format!("segments {}", self.rate("segments_collected")))
            .text(format!("copied {}", self.bytes_rate("bytes_collected")))
            .text(format!("chains merged {}", self.rate("chains_merged")))
            .given(quarantined, |strip, count| strip.toned(format!("{count} quarantined"), Tone::Bad))
    }

    fn moves(&self) -> Strip {
        let waiting = self.number("bytes_to_move");
        let tone = if waiting.is_some_and(|bytes| bytes > 0) { Tone::Warn } else { Tone::Plain };
        Strip::new(3, "moves")
            .toned(format!("to move {}", shown(waiting, bytes)), tone)
            .text(format!("records {}", self.rate("records_moved")))
            .text(format!("out of the log {}", self.bytes_rate("bytes_moved")))
    }

    fn merges(&self) -> Strip {
        let failed = self.number("merges_failed").filter(|count| *count > 0);
        Strip::new(3, "merges")
            .text(format!("garbage {}", self.bytes("sorted_garbage_bytes")))
            .text(format!("slices {}", self.rate("merges")))
            .text(format!("written {}", self.bytes_rate("bytes_merged")))
            .given(failed, |strip, count| strip.toned(format!("{count} failed"), Tone::Bad))
    }

    fn throttle(&self) -> Strip {
        let price = self.number("write_throttle_ns_per_kib");
        let tone = if price.is_some_and(|price| price > 0) { Tone::Warn } else { Tone::Plain };
        let price = shown(price, |price| match price {
            0 => "none".to_string(),
            price => format!("{} a KiB", took(price as f64 / 1e9)),
        });
        let slept = self.of_rates(|rates| rates.of("write_throttle_ns"));
        let slept = shown(slept, |slept| format!("{}/s", took(slept / 1e9)));
        Strip::new(2, "throttle").toned(price, tone).text(format!("writers slept {slept}"))
    }

    fn syncs(&self) -> Strip {
        Strip::new(4, "syncs")
            .text(format!("not durable {} writes", self.count("rdb_changes_since_last_save")))
            .text(format!("syncs {}", self.rate("syncs")))
    }

    fn waits(&self) -> Strip {
        Strip::new(5, "waits")
            .text(format!("clients {}", self.count("blocked_clients")))
            .text(format!("for space {}", self.rate("waits_for_space")))
            .text(format!("for rows on the disk {}", self.rate("waits_for_rows")))
    }

    /// How much may wait to be merged, and how much does; and how often the engine has changed its mind about that.
    fn knobs(&self) -> Strip {
        let owed = self.number("groups_owed_percent").map(|percents| percents as f64 / 100.0);
        Strip::new(7, "queues")
            .text(format!("groups at most {}", self.count("groups_max")))
            .text(format!("owed {}", shown(owed, percent)))
            .text(format!("runs at most {}", self.count("runs_max")))
            .text(format!("knobs turned {} times", self.count("knob_turns")))
    }

    fn snapshots(&self) -> Strip {
        let oldest = shown(self.number("oldest_snapshot_age_ms"), |ms| match ms {
            0 => "none".to_string(),
            ms => age(Duration::from_millis(ms)),
        });
        Strip::new(6, "snapshot").text(format!("oldest {oldest}"))
    }

    /// Nothing unless one was asked for.
    fn backup(&self) -> Option<Strip> {
        let status = self.sample.text("backup_status").filter(|status| *status != "none")?;
        let strip = Strip::new(6, "backup").text(status).text(self.bytes("backup_bytes_copied"));
        Some(strip.near(format!("of {}", self.bytes("backup_bytes"))))
    }
}

fn shown<T>(what: Option<T>, how: impl FnOnce(T) -> String) -> String {
    what.map_or_else(|| UNKNOWN.to_string(), how)
}

/// All together, as far as they can be counted; none if one is not known.
fn total<const N: usize>(parts: [Option<u64>; N]) -> Option<u64> {
    parts.into_iter().try_fold(0u64, |sum, part| Some(sum.saturating_add(part?)))
}

/// None where there is nothing to be a part of.
fn fraction(part: Option<u64>, of: Option<u64>) -> Option<f64> {
    let (part, of) = (part?, of.filter(|of| *of > 0)?);
    Some(part as f64 / of as f64)
}

/// A level with its bar; `full` is what is looked at to warn.
fn level(name: &'static str, fills: Option<Vec<Fill>>, figure: String, full: Option<f64>) -> Strip {
    let tone = match full {
        Some(full) if full >= FULL_BAD => Tone::Bad,
        Some(full) if full >= FULL_WARN => Tone::Warn,
        _ => Tone::Plain,
    };
    Strip::new(1, name).bar(fills).toned(format!("{figure:>4}"), tone)
}

#[cfg(test)]
mod tests;
