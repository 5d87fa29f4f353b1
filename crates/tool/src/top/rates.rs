//! What two answers of a server say together: how much of everything happened in a second between them.
//!
//! Owns the arithmetic of rates. Promises that the time between two answers is that of the server where it tells it, not that of their way here; that no sum overflows; and that none is negative or taken across a beginning anew: where the server was started again, or its
//! counters were reset (`CONFIG RESETSTAT`), there is no rate. Must not know how a rate is shown.

use super::sample::{CommandTotals, ServerSample};
use crate::serve::command::Flag;
use crate::serve::commands::by_name;

/// Answers that are closer together say nothing.
const SECONDS_MIN: f64 = 0.01;
/// The server's clock was set if it says something so different from ours.
const SECONDS_APART_MAX: f64 = 10.0;

/// The server's own counters, which `CONFIG RESETSTAT` has begin anew together; those of the store go on.
const RESET_TOGETHER: &[&str] = &[
    "total_connections_received",
    "total_commands_processed",
    "total_net_input_bytes",
    "total_net_output_bytes",
    "rejected_connections",
    "expired_keys",
    "evicted_clients",
    "keyspace_hits",
    "keyspace_misses",
    "client_output_buffer_limit_disconnections",
    "total_error_replies",
    "waits_for_space",
    "waits_for_rows",
];

/// What a command does to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandClass {
    /// It reads some.
    Reads,
    /// It may change some.
    Writes,
    /// Neither, or nobody here knows it.
    Others,
}

impl CommandClass {
    /// By the command's name.
    pub fn of(name: &str) -> CommandClass {
        match by_name(name.as_bytes()) {
            // It reads no key, and where nobody else asks for it, it is ours.
            _ if name == "hr.metrics" => CommandClass::Others,
            Some(command) if command.is(Flag::Write) => CommandClass::Writes,
            Some(command) if command.is(Flag::Read) => CommandClass::Reads,
            _ => CommandClass::Others,
        }
    }
}

/// Calls of a command, or of several together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommandRate {
    /// Calls in a second.
    pub per_second: f64,
    /// Seconds that each took in the server, in the mean; none if there was no call.
    pub mean_seconds: Option<f64>,
}

/// Rates between two answers of one server.
#[derive(Debug, Clone)]
pub struct CounterRates {
    before: ServerSample,
    after: ServerSample,
    seconds: f64,
    was_reset: bool,
}

impl CounterRates {
    /// None if the two have nothing to do with each other.
    pub fn between(before: ServerSample, after: ServerSample) -> Option<CounterRates> {
        let seconds = seconds_between(&before, &after);
        if seconds < SECONDS_MIN || is_another_start(&before, &after) {
            return None;
        }
        let was_reset = was_reset(&before, &after);
        Some(CounterRates { before, after, seconds, was_reset })
    }

    /// How often in a second, or how many bytes.
    pub fn of(&self, name: &str) -> Option<f64> {
        Some(self.grown(name)? as f64 / self.seconds)
    }

    /// All of these together.
    pub fn sum(&self, names: &[&str]) -> Option<f64> {
        names.iter().map(|name| self.of(name)).sum()
    }

    /// The part that `hits` are of `hits` and `misses`; none if there were neither.
    pub fn hit_ratio(&self, hits: &str, misses: &str) -> Option<f64> {
        let (hits, misses) = (self.grown(hits)? as f64, self.grown(misses)? as f64);
        (hits + misses > 0.0).then(|| hits / (hits + misses))
    }

    /// How many of `what` came to one `of`; none if there was none.
    pub fn ratio(&self, what: &str, of: &str) -> Option<f64> {
        let (what, of) = (self.grown(what)?, self.grown(of)?);
        (of > 0).then(|| what as f64 / of as f64)
    }

    /// Calls of all commands of a class; none if the server does not count them.
    pub fn class(&self, class: CommandClass) -> Option<CommandRate> {
        self.knows_commands().then(|| {
            let of_class = self.changes().filter(|(name, _)| CommandClass::of(name) == class);
            self.rate(of_class.map(|(_, totals)| totals))
        })
    }

    /// The commands that were called, those that took the most time first.
    pub fn commands(&self) -> Vec<(&str, CommandRate)> {
        let mut found: Vec<_> = self.changes().filter(|(_, totals)| totals.calls > 0).collect();
        found.sort_by_key(|(_, totals)| std::cmp::Reverse((totals.microseconds, totals.calls)));
        found.into_iter().map(|(name, totals)| (name, self.rate([totals].into_iter()))).collect()
    }

    /// By how much a counter has grown.
    fn grown(&self, name: &str) -> Option<u64> {
        if self.was_reset && RESET_TOGETHER.contains(&name) {
            return None;
        }
        self.after.number(name)?.checked_sub(self.before.number(name)?)
    }

    fn knows_commands(&self) -> bool {
        !self.was_reset && self.after.commands().next().is_some()
    }

    /// What each command did meanwhile; nothing if nobody can tell.
    fn changes(&self) -> impl Iterator<Item = (&str, CommandTotals)> {
        let told = self.after.commands().filter(|_| !self.was_reset);
        told.map(|(name, after)| {
            let before = self.before.command(name).unwrap_or(CommandTotals { calls: 0, microseconds: 0 });
            let calls = after.calls.saturating_sub(before.calls);
            (
                name,
                CommandTotals { calls, microseconds: after.microseconds.saturating_sub(before.microseconds) },
            )
        })
    }

    fn rate(&self, totals: impl Iterator<Item = CommandTotals>) -> CommandRate {
        let (mut calls, mut microseconds) = (0u64, 0u64);
        for each in totals {
            (calls, microseconds) =
                (calls.saturating_add(each.calls), microseconds.saturating_add(each.microseconds));
        }
        let mean_seconds = (calls > 0).then(|| microseconds as f64 / calls as f64 / 1e6);
        CommandRate { per_second: calls as f64 / self.seconds, mean_seconds }
    }
}

/// By the clock of the server; by ours if it tells no time, or was set meanwhile.
fn seconds_between(before: &ServerSample, after: &ServerSample) -> f64 {
    let here = after.at().saturating_duration_since(before.at()).as_secs_f64();
    let time = |sample: &ServerSample| sample.number("server_time_usec");
    let there = time(before).zip(time(after)).and_then(|(before, after)| after.checked_sub(before));
    let there = there.map(|microseconds| microseconds as f64 / 1e6);
    let is_sound = |there: &f64| *there >= SECONDS_MIN && (there - here).abs() <= SECONDS_APART_MAX;
    there.filter(is_sound).unwrap_or(here)
}

/// The server was started between the two, or another one answers there now.
fn is_another_start(before: &ServerSample, after: &ServerSample) -> bool {
    let uptime = |sample: &ServerSample| sample.number("uptime_in_seconds");
    let is_younger = uptime(before).zip(uptime(after)).is_some_and(|(before, after)| after < before);
    is_younger || before.text("run_id") != after.text("run_id")
}

/// One of the counters that are reset together has less than before. Each look of ours adds a call of INFO, so a reset shows by that one at least.
fn was_reset(before: &ServerSample, after: &ServerSample) -> bool {
    let fell = |name: &&str| {
        let numbers = before.number(name).zip(after.number(name));
        numbers.is_some_and(|(before, after)| after < before)
    };
    let is_gone = |(name, before): (&str, CommandTotals)| {
        after.command(name).is_none_or(|after| after.calls < before.calls)
    };
    RESET_TOGETHER.iter().any(fell) || before.commands().any(is_gone)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Two answers of one server, so many seconds apart.
    fn rates(before: &str, after: &str, seconds: u64) -> Option<CounterRates> {
        let start = Instant::now();
        let at = |text: &str, at| ServerSample::parse(text, at, Duration::ZERO);
        let (before, after) = (format!("run_id:a\n{before}"), format!("run_id:a\n{after}"));
        CounterRates::between(at(&before, start), at(&after, start + Duration::from_secs(seconds)))
    }

    #[test]
    fn rates_are_what_came_in_a_second() {
        let found = rates(
            "total_commands_processed:100\nputs:5\nupdates:0\ncache_hits:0\ncache_misses:10\n",
            "total_commands_processed:300\nputs:25\nupdates:6\ncache_hits:30\ncache_misses:20\ngets:3\n",
            2,
        );
        let found = found.unwrap();
        assert_eq!(found.of("total_commands_processed"), Some(100.0));
        assert_eq!(found.sum(&["puts", "updates"]), Some(13.0));
        assert_eq!(found.hit_ratio("cache_hits", "cache_misses"), Some(0.75));
        assert_eq!(found.ratio("cache_hits", "puts"), Some(1.5));
        // What was told once, or never, has no rate; nor does a sum with it.
        assert_eq!((found.of("gets"), found.of("deletes")), (None, None));
        assert_eq!(found.sum(&["puts", "gets"]), None);
    }

    #[test]
    fn the_time_between_is_that_of_the_server() {
        let told = |puts: u64, microseconds: u64| format!("puts:{puts}\nserver_time_usec:{microseconds}\n");
        let puts = |after: u64| rates(&told(0, 5_000_000), &told(10, after), 2).unwrap().of("puts");
        // The second answer was a second on its way.
        assert_eq!(puts(6_000_000), Some(10.0));
        // A clock that was set back or forth is not believed, nor one that stands.
        assert_eq!([4_000_000, 5_000_000, 3_600_000_000].map(puts), [Some(5.0); 3]);
        assert_eq!(rates("puts:0\n", &told(10, 1), 2).unwrap().of("puts"), Some(5.0));
    }

    #[test]
    fn sums_of_what_nobody_can_count_end_at_the_largest_number() {
        let huge = "cmdstat_get:calls=18446744073709551615,usec=18446744073709551615\n\
                    cmdstat_hget:calls=18446744073709551615,usec=18446744073709551615\n";
        let found = rates("cmdstat_get:calls=0,usec=0\n", huge, 1).unwrap();
        let rate = found.class(CommandClass::Reads).unwrap();
        assert_eq!((rate.per_second, rate.mean_seconds), (u64::MAX as f64, Some(1e-6)));
    }

    #[test]
    fn nothing_happened_is_a_rate_but_no_ratio() {
        let told = "puts:5\ncache_hits:1\ncache_misses:1\ncmdstat_get:calls=4,usec=8\n";
        let found = rates(told, told, 1).unwrap();
        assert_eq!((found.of("puts"), found.hit_ratio("cache_hits", "cache_misses")), (Some(0.0), None));
        assert_eq!(found.ratio("cache_hits", "puts"), None);
        let idle = Some(CommandRate { per_second: 0.0, mean_seconds: None });
        assert_eq!((found.class(CommandClass::Reads), found.commands().len()), (idle, 0));
    }

    #[test]
    fn a_server_that_was_started_again_has_no_rates() {
        let told = |run: &str, uptime: u64| format!("uptime_in_seconds:{uptime}\nrun_id:{run}\nputs:5\n");
        // The last of two fields of one name counts.
        assert!(rates(&told("x", 5), &told("x", 6), 1).is_some());
        assert!(rates(&told("x", 5), &told("y", 9), 1).is_none());
        assert!(rates("uptime_in_seconds:5\n", "uptime_in_seconds:1\n", 1).is_none());
        assert!(rates("puts:1\n", "puts:2\n", 0).is_none());
    }

    #[test]
    fn a_reset_takes_the_rates_of_the_server_and_leaves_those_of_the_store() {
        // More commands than before the reset: it shows by the calls of INFO alone.
        let before = "total_commands_processed:10\nkeyspace_hits:4\nputs:5\ncmdstat_info:calls=7,usec=70\n";
        let after = "total_commands_processed:90\nkeyspace_hits:8\nputs:9\ncmdstat_info:calls=1,usec=10\n";
        let found = rates(before, after, 1).unwrap();
        assert_eq!((found.of("total_commands_processed"), found.of("keyspace_hits")), (None, None));
        assert_eq!((found.class(CommandClass::Others), found.commands().len()), (None, 0));
        assert_eq!(found.of("puts"), Some(4.0));
        let found = rates(
            "total_error_replies:3\nwaits_for_rows:1\n",
            "total_error_replies:0\nwaits_for_rows:5\n",
            1,
        );
        assert_eq!(found.unwrap().of("waits_for_rows"), None);
        // A counter of the store that falls by itself has no rate, and takes nobody with it.
        let found = rates("puts:5\ngets:1\n", "puts:4\ngets:3\n", 1).unwrap();
        assert_eq!((found.of("puts"), found.of("gets")), (None, Some(2.0)));
    }

    #[test]
    fn commands_are_told_by_class_and_by_time() {
        let before = "cmdstat_get:calls=100,usec=200\ncmdstat_hset:calls=1,usec=50\n";
        let after = "cmdstat_get:calls=300,usec=500\ncmdstat_hset:calls=11,usec=950\ncmdstat_hmget:calls=100,usec=300\n\
                     cmdstat_hr.metrics:calls=2,usec=1\ncmdstat_module.x:calls=2,usec=1\n";
        let found = rates(before, after, 2).unwrap();
        let class = |class| found.class(class).unwrap();
        assert_eq!(class(CommandClass::Reads), CommandRate { per_second: 150.0, mean_seconds: Some(2e-6) });
        assert_eq!(class(CommandClass::Writes), CommandRate { per_second: 5.0, mean_seconds: Some(90e-6) });
        assert_eq!(class(CommandClass::Others).per_second, 2.0);
        let names: Vec<&str> = found.commands().iter().map(|(name, _)| *name).collect();
        assert_eq!(names[..3], ["hset", "get", "hmget"]);
        assert_eq!(rates("puts:1\n", "puts:1\n", 1).unwrap().class(CommandClass::Reads), None);
    }
}
