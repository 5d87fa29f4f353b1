//! What is known of the server that is looked at, and how it came to be.
//!
//! Owns the last answer, the rates between it and the one before, what rates were for a while, and whether the server answers. Promises that a
//! rate is taken between two answers that follow each other, never across a pause or a time without an answer. Must not know how it is shown, nor who asks.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::rates::{CommandClass, CounterRates};
use super::sample::ServerSample;

/// As much of the past as the widest screen shows.
const PAST_LEN: usize = 600;
/// What `+` and `-` go through.
const INTERVAL_STEPS_MS: [u64; 9] = [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];

/// What there is a past of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// Commands a second.
    Commands,
    /// Those that read.
    Reads,
    /// Those that write.
    Writes,
    /// Bytes a second from clients.
    Input,
    /// Bytes a second to them.
    Output,
    /// Seconds that a `PING` took.
    RoundTrip,
}

const CURVES: [Curve; 6] =
    [Curve::Commands, Curve::Reads, Curve::Writes, Curve::Input, Curve::Output, Curve::RoundTrip];

/// Why there is no answer, and since when.
#[derive(Debug, Clone)]
pub struct Silence {
    /// One line.
    pub reason: String,
    /// When it was first missed.
    pub since: Instant,
}

/// How long a `PING` took, of those that are remembered.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct RoundTrips {
    pub last: f64,
    pub median: f64,
    pub p99: f64,
    pub worst: f64,
}

/// One server over a while.
pub struct Monitor {
    server: String,
    interval: Duration,
    latest: Option<ServerSample>,
    /// What the next answer is compared with.
    baseline: Option<ServerSample>,
    rates: Option<CounterRates>,
    past: [VecDeque<Option<f64>>; CURVES.len()],
    silence: Option<Silence>,
    is_paused: bool,
    shows_help: bool,
}

impl Monitor {
    /// Of a server that has answered nothing yet.
    pub fn new(server: String, interval: Duration) -> Monitor {
        let past = Default::default();
        let (latest, baseline, rates, silence) = (None, None, None, None);
        Monitor {
            server,
            interval,
            latest,
            baseline,
            rates,
            past,
            silence,
            is_paused: false,
            shows_help: false,
        }
    }

    /// Takes an answer.
    pub fn take(&mut self, sample: ServerSample) {
        let before = self.baseline.replace(sample.clone());
        self.rates = before.and_then(|before| CounterRates::between(before, sample.clone()));
        self.silence = None;
        let round_trip = sample.round_trip().as_secs_f64();
        self.latest = Some(sample);
        self.remember(Some(round_trip));
    }

    /// There was no answer, for this reason.
    pub fn miss(&mut self, reason: String, now: Instant) {
        let since = self.silence.take().map_or(now, |silence| silence.since);
        self.silence = Some(Silence { reason, since });
        self.forget_baseline();
        self.remember(None);
    }

    fn forget_baseline(&mut self) {
        (self.baseline, self.rates) = (None, None);
    }

    fn remember(&mut self, round_trip: Option<f64>) {
        for curve in CURVES {
            let value = match curve {
                Curve::RoundTrip => round_trip,
                of_rates => self.rates.as_ref().and_then(|rates| value_of(rates, of_rates)),
            };
            let past = &mut self.past[curve as usize];
            past.push_back(value);
            if past.len() > PAST_LEN {
                past.pop_front();
            }
        }
    }

    /// Stops asking, or begins again.
    pub fn toggle_pause(&mut self) {
        self.is_paused = !self.is_paused;
        if !self.is_paused {
            self.forget_baseline();
        }
    }

    /// Shows the keys, or the figures again.
    pub fn toggle_help(&mut self) {
        self.shows_help = !self.shows_help;
    }

    /// Asks less often, or more often.
    pub fn change_interval(&mut self, longer: bool) {
        let steps = INTERVAL_STEPS_MS.map(Duration::from_millis);
        let next = match longer {
            true => steps.into_iter().find(|step| *step > self.interval),
            false => steps.into_iter().rfind(|step| *step < self.interval),
        };
        self.interval = next.unwrap_or(self.interval);
    }

    /// Where the server is.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// How often it is asked.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether it is not asked for now.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Whether the user wants to know the keys.
    pub fn shows_help(&self) -> bool {
        self.shows_help
    }

    /// The last answer.
    pub fn latest(&self) -> Option<&ServerSample> {
        self.latest.as_ref()
    }

    /// What happened between it and the one before; none if they cannot be compared.
    pub fn rates(&self) -> Option<&CounterRates> {
        self.rates.as_ref()
    }

    /// That there is no answer, if so.
    pub fn silence(&self) -> Option<&Silence> {
        self.silence.as_ref()
    }

    /// What there was of something, the last one last; none where nobody knows.
    pub fn past(&self, curve: Curve) -> &VecDeque<Option<f64>> {
        &self.past[curve as usize]
    }

    /// How long the server took to answer.
    pub fn round_trips(&self) -> Option<RoundTrips> {
        let past = self.past(Curve::RoundTrip);
        let mut known: Vec<f64> = past.iter().flatten().copied().collect();
        known.sort_by(f64::total_cmp);
        let at = |part: f64| known.get((part * known.len() as f64).ceil() as usize - 1).copied();
        let last = past.iter().rev().flatten().next().copied()?;
        Some(RoundTrips { last, median: at(0.5)?, p99: at(0.99)?, worst: *known.last()? })
    }
}

fn value_of(rates: &CounterRates, curve: Curve) -> Option<f64> {
    let class = |class| rates.class(class).map(|rate| rate.per_second);
    match curve {
        Curve::Commands => rates.of("total_commands_processed"),
        Curve::Reads => class(CommandClass::Reads),
        Curve::Writes => class(CommandClass::Writes),
        Curve::Input => rates.of("total_net_input_bytes"),
        Curve::Output => rates.of("total_net_output_bytes"),
        Curve::RoundTrip => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose answers come a second apart.
    struct Course {
        monitor: Monitor,
        start: Instant,
    }

    impl Course {
        fn new() -> Course {
            let monitor = Monitor::new("127.0.0.1:6379".into(), Duration::from_secs(1));
            Course { monitor, start: Instant::now() }
        }

        fn take(&mut self, second: u64, run: &str, commands: u64) {
            let text = format!("run_id:{run}\ntotal_commands_processed:{commands}\n");
            let at = self.start + Duration::from_secs(second);
            self.monitor.take(ServerSample::parse(&text, at, Duration::from_millis(second + 1)));
        }

        fn commands(&self) -> Vec<Option<f64>> {
            self.monitor.past(Curve::Commands).iter().copied().collect()
        }
    }

    #[test]
    fn the_past_has_a_rate_for_each_answer_but_the_first_and_that_of_another_start() {
        let mut course = Course::new();
        course.take(0, "a", 100);
        course.take(1, "a", 150);
        course.take(2, "b", 9_000);
        course.take(3, "b", 9_010);
        assert_eq!(course.commands(), [None, Some(50.0), None, Some(10.0)]);
    }

    #[test]
    fn no_rate_is_taken_across_a_silence_or_a_pause() {
        let mut course = Course::new();
        course.take(0, "a", 100);
        course.take(1, "a", 150);
        let missed = course.start + Duration::from_secs(2);
        course.monitor.miss("closed".into(), missed);
        course.monitor.miss("refused".into(), missed + Duration::from_secs(1));
        let silence = course.monitor.silence().unwrap();
        assert_eq!((silence.reason.as_str(), silence.since), ("refused", missed));
        assert!(course.monitor.rates().is_none() && course.monitor.latest().is_some());
        course.take(4, "a", 500);
        assert!(course.monitor.silence().is_none() && course.monitor.rates().is_none());
        course.take(5, "a", 503);
        course.monitor.toggle_pause();
        assert!(course.monitor.is_paused() && course.monitor.rates().is_some());
        course.monitor.toggle_pause();
        course.take(60, "a", 900);
        assert_eq!(course.commands(), [None, Some(50.0), None, None, None, Some(3.0), None]);
    }

    #[test]
    fn the_past_is_bounded_and_its_round_trips_are_told() {
        let mut course = Course::new();
        assert_eq!(course.monitor.round_trips(), None);
        course.take(0, "a", 0);
        assert_eq!(course.monitor.round_trips().unwrap().p99, 1e-3);
        (1..200).for_each(|second| course.take(second, "a", second));
        let found = course.monitor.round_trips().unwrap();
        let found = [found.last, found.median, found.p99, found.worst].map(|seconds| (seconds * 1e3).round());
        assert_eq!(found, [200.0, 100.0, 198.0, 200.0]);
        (200..2 * PAST_LEN as u64).for_each(|second| course.take(second, "a", second));
        assert_eq!(course.commands().len(), PAST_LEN);
    }

    #[test]
    fn the_interval_goes_through_its_steps_and_no_further() {
        let mut monitor = Monitor::new("x".into(), Duration::from_millis(700));
        monitor.change_interval(true);
        assert_eq!(monitor.interval(), Duration::from_secs(1));
        (0..20).for_each(|_| monitor.change_interval(true));
        assert_eq!(monitor.interval(), Duration::from_secs(60));
        (0..20).for_each(|_| monitor.change_interval(false));
        assert_eq!(monitor.interval(), Duration::from_millis(100));
    }
}
