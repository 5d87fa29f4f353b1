//! What INFO shows that has to be kept between calls of it: errors by their code, rates, the peak of memory.
//!
//! Owns: these numbers and what they mean. Promises: counting one more is cheap, and bounded whatever clients do; nothing here
//! looks at the data. Must not know commands or sockets.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Error codes counted apart. Further ones are counted together.
const CODES_MAX: usize = 128;
/// Where errors are counted whose code is no code, or is one too many.
const OTHER: &str = "OTHER";
/// Bytes of the longest code.
const CODE_BYTES_MAX: usize = 32;
/// What rates are taken over, at least.
const WINDOW: Duration = Duration::from_millis(1600);

/// Error replies by their code, the word they begin with.
#[derive(Debug, Default)]
pub struct Errors {
    counts: BTreeMap<Box<str>, u64>,
    /// All of them.
    pub total: u64,
}

impl Errors {
    /// Counts an error reply of this text.
    pub fn count(&mut self, text: &str) {
        self.total += 1;
        let code = text.split(' ').next().unwrap_or_default();
        let is_code = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let is_code = (1..=CODE_BYTES_MAX).contains(&code.len()) && code.bytes().all(is_code);
        let code = if is_code { code } else { OTHER };
        if let Some(count) = self.counts.get_mut(code) {
            *count += 1;
        } else {
            let code = if self.counts.len() < CODES_MAX { code } else { OTHER };
            *self.counts.entry(code.into()).or_default() += 1;
        }
    }

    /// Counts what was counted apart.
    pub fn add(&mut self, others: &Errors) {
        self.total += others.total;
        for (code, count) in others.counts() {
            let code =
                if self.counts.contains_key(code) || self.counts.len() < CODES_MAX { code } else { OTHER };
            *self.counts.entry(code.into()).or_default() += count;
        }
    }

    /// The codes met so far and how often, in the order of their letters.
    pub fn counts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(code, count)| (&**code, *count))
    }
}

/// Calls of one command.
#[derive(Debug, Default, Clone, Copy)]
#[allow(missing_docs)]
pub struct Calls {
    pub calls: u64,
    pub microseconds_x1000: u64,
    pub rejected: u64,
    pub failed: u64,
}

impl Calls {
    /// Counts what was counted apart.
    pub fn add(&mut self, others: &Calls) {
        self.calls += others.calls;
        self.microseconds_x1000 += others.microseconds_x1000;
        self.rejected += others.rejected;
        self.failed += others.failed;
    }
}

/// What the commands of a transaction count for once it is answered: until then it may run again.
#[derive(Debug, Default)]
pub struct Tally {
    /// By the command's number.
    pub calls: BTreeMap<usize, Calls>,
    /// Their error replies.
    pub errors: Errors,
}

impl Tally {
    /// Counts a call of a command that took so long, and why it failed, if it did.
    pub fn count(&mut self, command: usize, took: Duration, failure: Option<&str>) {
        let failed = u64::from(failure.is_some());
        let call = Calls { calls: 1, microseconds_x1000: took.as_nanos() as u64, rejected: 0, failed };
        self.calls.entry(command).or_default().add(&call);
        if let Some(failure) = failure {
            self.errors.count(failure);
        }
    }
}

/// Keys that were looked up, and were there or not.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LookUps {
    pub hits: u64,
    pub misses: u64,
}

/// Totals at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Commands done.
    pub commands: u64,
    /// Bytes read from clients.
    pub input_bytes: u64,
    /// Bytes sent to them.
    pub output_bytes: u64,
}

/// Totals over the last seconds, from which rates are taken.
#[derive(Debug, Default)]
pub struct Rates(VecDeque<(Instant, Totals)>);

impl Rates {
    /// Records the totals of `now`. Samples older than are needed are dropped, so that there are few.
    pub fn sample(&mut self, now: Instant, totals: Totals) {
        self.0.push_back((now, totals));
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.0.pop_front();
        }
    }

    /// Forgets everything: the totals begin anew.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Per second, from the oldest sample to `now`: commands, KiB read, KiB sent.
    pub fn per_second(&self, now: Instant, totals: Totals) -> (f64, f64, f64) {
        let Some((at, before)) = self.0.front() else { return (0.0, 0.0, 0.0) };
        let seconds = now.duration_since(*at).as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        (
            rate(totals.commands, before.commands),
            rate(totals.input_bytes, before.input_bytes) / 1024.0,
            rate(totals.output_bytes, before.output_bytes) / 1024.0,
        )
    }
}

/// Bytes for a person, as Redis writes them: `967.48K`.
pub fn human(bytes: u64) -> String {
    let units = ["K", "M", "G", "T", "P"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let power = (bytes.ilog2() / 10).min(units.len() as u32);
    let unit = units.get(power as usize - 1).copied().unwrap_or("P");
    format!("{:.2}{unit}", bytes as f64 / 1024f64.powi(power as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_code_within_bounds() {
        let mut errors = Errors::default();
        errors.count("WRONGTYPE Operation against a key");
        errors.count("ERR syntax error");
        errors.count("ERR");
        errors.count("no code");
        errors.count("");
        let counts: Vec<_> = errors.counts().collect();
        assert_eq!(counts, [("ERR", 2), ("OTHER", 2), ("WRONGTYPE", 1)]);
        (0..1000).for_each(|i| errors.count(&format!("CODE{i} text")));
        assert_eq!(errors.counts().count(), CODES_MAX);
        assert_eq!(errors.total, 1005);
        assert_eq!(errors.counts().map(|(_, count)| count).sum::<u64>(), 1005);
        let mut others = Errors::default();
        others.count("ERR syntax error");
        (0..1000).for_each(|i| others.count(&format!("OTHERCODE{i} text")));
        errors.add(&others);
        assert_eq!(errors.counts().count(), CODES_MAX);
        assert_eq!(
            (errors.total, errors.counts().find(|(code, _)| *code == "ERR")),
            (2006, Some(("ERR", 3)))
        );
        assert_eq!(errors.counts().map(|(_, count)| count).sum::<u64>(), 2006);
    }

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let (start, mut rates) = (Instant::now(), Rates::default());
        let totals = |n: u64| Totals { commands: n, input_bytes: n * 1024, output_bytes: n * 2048 };
        assert_eq!(rates.per_second(start, totals(5)), (0.0, 0.0, 0.0));
        let at = |tenth: u64| start + Duration::from_millis(100 * tenth);
        // A hundred a tenth of a second, then ten.
        (0..=100).for_each(|tenth| rates.sample(at(tenth), totals(100 * tenth)));
        assert_eq!(rates.per_second(at(100), totals(10_000)), (1000.0, 1000.0, 2000.0));
        (1..=100).for_each(|tenth| rates.sample(at(100 + tenth), totals(10_000 + 10 * tenth)));
        assert_eq!(rates.per_second(at(200), totals(11_000)), (100.0, 100.0, 200.0));
        assert!(rates.0.len() < 20, "{}", rates.0.len());
        rates.clear();
        assert_eq!(rates.per_second(at(201), totals(1)), (0.0, 0.0, 0.0));
    }

    #[test]
    fn bytes_are_written_as_redis_does() {
        assert_eq!(human(0), "0B");
        assert_eq!(human(1023), "1023B");
        assert_eq!(human(990_696), "967.48K");
        assert_eq!(human(25_276_502_016), "23.54G");
        assert_eq!(human(u64::MAX), "16384.00P");
    }
}
