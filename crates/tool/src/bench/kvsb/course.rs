//! The course of a phase: what clients and devices did, and had of processors, in one stretch after another.
//!
//! Owns [`Meter`], which threads are read by while they work, and [`KvsbCourse`], what was read. Promises no more than [`LOOKS_MAX`] looks however long a phase takes, the same stretches for all devices, and that operations and processor times
//! of all stretches together are those of the phase, up to what the last look missed. Must not know what operations are.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::running::{own_cpu, task_cpu};

/// Looks that are kept: where there would be more every second one is let go, and there are half as many from then on.
const LOOKS_MAX: usize = 120;
/// From one look to the next, to begin with.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// What an instance's threads have done in a phase.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Operations that the client has begun, or passed over.
    pub(super) done: AtomicU64,
    /// The client's thread, and what it had of a processor when it began.
    client: OnceLock<(String, Duration)>,
    /// What it had of one in the phase, once it has ended it.
    client_cpu: OnceLock<Duration>,
    device: String,
    device_before: Duration,
}

impl Meter {
    /// With the thread of the device, and what it had of a processor before.
    pub(super) fn new(device: String, device_before: Duration) -> Meter {
        Meter { device, device_before, ..Meter::default() }
    }

    /// The client's thread says so of itself.
    pub(super) fn begin_client(&self) {
        let task = rustix::thread::gettid().as_raw_nonzero().to_string();
        self.client.get_or_init(|| (task, own_cpu()));
    }

    /// The client's thread says so of itself; what it had of a processor since it began.
    pub(super) fn end_client(&self) -> Duration {
        let before = self.client.get().map_or(Duration::ZERO, |(_, before)| *before);
        *self.client_cpu.get_or_init(|| own_cpu().saturating_sub(before))
    }

    /// Operations, and ns of processors that client and device had; of one that cannot be read as much as at the last look.
    fn read(&self, last: [u64; 3]) -> [u64; 3] {
        let ns = |cpu: Duration| u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
        let running = || {
            self.client.get().and_then(|(task, before)| Some(task_cpu(task).ok()?.saturating_sub(*before)))
        };
        let client = self.client_cpu.get().copied().or_else(running).map_or(0, ns);
        let device = task_cpu(&self.device).map_or(0, |cpu| ns(cpu.saturating_sub(self.device_before)));
        let now = [self.done.load(Ordering::Relaxed), client, device];
        std::array::from_fn(|at| now[at].max(last[at]))
    }
}

/// One stretch of a phase, of one device or of all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct KvsbWindow {
    /// Seconds from the start of the phase to its end.
    pub(super) until_s: f64,
    /// Operations begun a second.
    pub(super) ops_per_s: f64,
    /// Processors that clients kept busy.
    pub(super) client_cores: f64,
    /// Processors that threads of devices kept busy.
    pub(super) device_cores: f64,
}

impl KvsbWindow {
    /// The same stretch of several devices, together.
    pub(super) fn plus(self, other: KvsbWindow) -> KvsbWindow {
        KvsbWindow {
            until_s: self.until_s,
            ops_per_s: self.ops_per_s + other.ops_per_s,
            client_cores: self.client_cores + other.client_cores,
            device_cores: self.device_cores + other.device_cores,
        }
    }
}

/// A look at all instances.
#[derive(Debug, Clone)]
struct Look {
    at: Duration,
    instances: Vec<[u64; 3]>,
}

/// What was seen of a phase.
#[derive(Debug)]
pub(super) struct KvsbCourse {
    start: Instant,
    every: Duration,
    looks: Vec<Look>,
}

impl KvsbCourse {
    /// From now on, of so many instances that have done nothing.
    pub(super) fn begin(instances: usize) -> KvsbCourse {
        let first = Look { at: Duration::ZERO, instances: vec![[0; 3]; instances] };
        KvsbCourse { start: Instant::now(), every: LOOK_EVERY, looks: vec![first] }
    }

    /// Looks, if it is time to.
    pub(super) fn go_on(&mut self, meters: &[Meter]) {
        self.look(self.start.elapsed(), meters, false);
    }

    /// Looks a last time: at the end. A stretch that would be short is one with that before it.
    pub(super) fn end(&mut self, meters: &[Meter]) {
        self.look(self.start.elapsed(), meters, true);
    }

    fn look(&mut self, at: Duration, meters: &[Meter], is_last: bool) {
        let Some(last) = self.looks.last() else { return };
        let since = at.saturating_sub(last.at);
        if since < self.every && !is_last {
            return;
        }
        let instances = meters.iter().zip(&last.instances).map(|(meter, last)| meter.read(*last)).collect();
        if since < self.every && self.looks.len() > 1 {
            self.looks.pop();
        }
        self.looks.push(Look { at, instances });
        if self.looks.len() > LOOKS_MAX && !is_last {
            let mut number = 0;
            self.looks.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// The stretches of an instance.
    pub(super) fn of(&self, instance: usize) -> Vec<KvsbWindow> {
        let window = |pair: &[Look]| {
            let [from, until] = pair else { return None };
            let (before, after) = (from.instances.get(instance)?, until.instances.get(instance)?);
            let seconds = until.at.saturating_sub(from.at).as_secs_f64().max(1e-9);
            let [ops, client, device] = std::array::from_fn(|at| (after[at] - before[at]) as f64 / seconds);
            Some(KvsbWindow {
                until_s: until.at.as_secs_f64(),
                ops_per_s: ops,
                client_cores: client / 1e9,
                device_cores: device / 1e9,
            })
        };
        self.looks.windows(2).filter_map(window).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_course_has_few_looks_and_loses_nothing() {
        let meters = [Meter::default(), Meter::default()];
        let mut course = KvsbCourse::begin(2);
        let steps = 10_000u64;
        for step in 1..=steps {
            meters[0].done.fetch_add(3, Ordering::Relaxed);
            meters[1].done.fetch_add(5, Ordering::Relaxed);
            course.look(LOOK_EVERY * step as u32, &meters, false);
            assert!(course.looks.len() <= LOOKS_MAX, "{}", course.looks.len());
        }
        course.look(LOOK_EVERY * steps as u32 + Duration::from_millis(1), &meters, true);
        for (instance, each) in [(0, 3), (1, 5)] {
            let windows = course.of(instance);
            assert!(windows.len() > LOOKS_MAX / 3, "{}", windows.len());
            let [.., before, last] = windows[..] else { panic!("{windows:?}") };
            assert!(
                last.until_s - before.until_s >= LOOK_EVERY.as_secs_f64(),
                "a short end is told with what was before"
            );
            let mut from = 0.0;
            let all: f64 = windows
                .iter()
                .map(|window| {
                    window.ops_per_s * (window.until_s - std::mem::replace(&mut from, window.until_s))
                })
                .sum();
            assert!((all - (steps * each) as f64).abs() < 1e-3, "{all}");
        }
    }

    #[test]
    fn the_end_of_a_short_phase_is_seen() {
        let meters = [Meter::default()];
        let mut course = KvsbCourse::begin(1);
        meters[0].done.store(7, Ordering::Relaxed);
        course.look(Duration::from_millis(1), &meters, false);
        assert!(course.of(0).is_empty(), "not time yet");
        course.look(Duration::from_millis(2), &meters, true);
        let [only] = course.of(0)[..] else { panic!("{:?}", course.of(0)) };
        assert!((only.ops_per_s - 3500.0).abs() < 1e-6 && only.client_cores == 0.0, "{only:?}");
    }
}
