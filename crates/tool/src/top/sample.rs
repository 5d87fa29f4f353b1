//! What a server told about itself at one moment.
//!
//! Owns the reading of INFO's text. Promises that what is not there, or is no number where a number is wanted, is `None`, and no other field suffers by it; that
//! texts hold nothing a terminal would take for anything but a letter. Must not know what the fields mean.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What the name of a command is told behind.
const COMMAND_PREFIX: &str = "cmdstat_";
/// Letters of a text that are kept: the rest is nothing for a screen.
const TEXT_CHARS_MAX: usize = 400;

/// The fields of INFO and of HR.METRICS by their names.
#[derive(Debug, Clone)]
pub struct ServerSample {
    fields: BTreeMap<String, String>,
    at: Instant,
    round_trip: Duration,
}

/// All calls of one command until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandTotals {
    /// How many.
    pub calls: u64,
    /// How long they took, all together.
    pub microseconds: u64,
}

impl ServerSample {
    /// INFO's answer, which came at this moment; a `PING` took so long.
    pub fn parse(info: &str, at: Instant, round_trip: Duration) -> ServerSample {
        let pairs =
            info.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'));
        let fields = pairs.map(|(name, value)| (name.to_string(), printable(value.trim_end()))).collect();
        ServerSample { fields, at, round_trip }
    }

    /// Adds what HR.METRICS told, unless INFO has told it.
    pub fn add_metric(&mut self, name: &str, value: i64) {
        // Numbers beyond 63 bits come as negative ones.
        self.fields.entry(name.to_string()).or_insert_with(|| (value as u64).to_string());
    }

    /// When it was told.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// How long a `PING` took, there and back.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// A field as it was told, unless it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// A field that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// The commands that were called since the server counts, in the order of their names.
    pub fn commands(&self) -> impl Iterator<Item = (&str, CommandTotals)> {
        let from = self.fields.range(COMMAND_PREFIX.to_string()..);
        from.map_while(|(name, value)| Some((name.strip_prefix(COMMAND_PREFIX)?, value)))
            .filter_map(|(name, value)| Some((name, CommandTotals::parse(value)?)))
    }

    /// One of them.
    pub fn command(&self, name: &str) -> Option<CommandTotals> {
        CommandTotals::parse(self.text(&format!("{COMMAND_PREFIX}{name}"))?)
    }
}

impl CommandTotals {
    fn parse(text: &str) -> Option<CommandTotals> {
        let part = |name: &str| {
            let parts = text.split(',').filter_map(|part| part.split_once('='));
            parts.into_iter().find(|(part, _)| *part == name)?.1.parse().ok()
        };
        Some(CommandTotals { calls: part("calls")?, microseconds: part("usec")? })
    }
}

/// Letters that take one place each, and that no terminal obeys.
fn printable(text: &str) -> String {
    let shown = |letter: char| if letter == ' ' || letter.is_ascii_graphic() { letter } else { '?' };
    text.chars().take(TEXT_CHARS_MAX).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(info: &str) -> ServerSample {
        ServerSample::parse(info, Instant::now(), Duration::from_micros(80))
    }

    #[test]
    fn fields_are_found_by_name_or_are_none() {
        let sample = sample(
            "# Server\r\nhedgerow_version:0.1.0\r\nuptime_in_seconds:7\r\n\r\n# Hedgerow\r\nstore:tiered:/a:b\r\n\
             sync_failure:\r\nfast_tier_bytes_max:18446744073709551615\r\nrows:many\r\nno pair\r\n",
        );
        assert_eq!(sample.text("hedgerow_version"), Some("0.1.0"));
        assert_eq!(sample.text("store"), Some("tiered:/a:b"));
        assert_eq!(sample.number("uptime_in_seconds"), Some(7));
        assert_eq!(sample.number("fast_tier_bytes_max"), Some(u64::MAX));
        for name in ["rows", "sync_failure", "tables", "hedgerow_version"] {
            assert_eq!(sample.number(name), None, "{name}");
        }
        assert_eq!(sample.text("sync_failure"), None);
    }

    #[test]
    fn metrics_add_what_info_lacks() {
        let mut sample = sample("rows:5\r\n");
        sample.add_metric("rows", 6);
        sample.add_metric("puts", 7);
        sample.add_metric("sorted_bytes_max", -1);
        assert_eq!(["rows", "puts"].map(|name| sample.number(name)), [Some(5), Some(7)]);
        assert_eq!(sample.number("sorted_bytes_max"), Some(u64::MAX));
    }

    #[test]
    fn commands_are_told_with_their_totals() {
        let sample = sample(
            "cluster_enabled:0\r\ncmdstat_get:calls=10,usec=25,usec_per_call=2.50,rejected_calls=0,failed_calls=1\r\n\
             cmdstat_config|set:calls=1,usec=4,usec_per_call=4.00\r\ncmdstat_odd:calls=x\r\ndb0:keys=1\r\n",
        );
        let found: Vec<_> = sample.commands().map(|(name, totals)| (name, totals.calls)).collect();
        assert_eq!(found, [("config|set", 1), ("get", 10)]);
        assert_eq!(sample.command("get"), Some(CommandTotals { calls: 10, microseconds: 25 }));
        assert_eq!(sample.command("odd"), None);
        assert_eq!(sample.command("set"), None);
    }

    #[test]
    fn a_terminal_is_told_nothing_by_a_server() {
        let sample = sample("move_failure:\x1b[2Jdisk \u{4e16}full\u{7}\r\n");
        assert_eq!(sample.text("move_failure"), Some("?[2Jdisk ?full?"));
        let long = super::tests::sample(&format!("store:{}\r\n", "x".repeat(10_000)));
        assert_eq!(long.text("store").map(str::len), Some(TEXT_CHARS_MAX));
    }
}
