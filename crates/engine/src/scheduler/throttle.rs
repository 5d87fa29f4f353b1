//! The write throttle: while room is short, writers are held to the rate at which gc makes room, a little each, so
//! that none has to wait for a cycle of it.
//!
//! Owns the rate at which all writers together may write. Promises that it follows what gc gets done, that there
//! is none while room is not short or nothing can be gained by waiting, and that no single delay is longer than
//! [`SLEEP_MAX_NS`]. Must not know how room is made.
//!
//! There are two ways to run out of room, and a rate for each; the lower counts.
//!
//! **Deltas.** Merging a row makes the deltas over it obsolete, but no segment free: those deltas lie in segments with others,
//! which a whole pass over the rows makes obsolete nearly all at once. A throttle that looks at free extents alone sees nothing come of
//! its delays for seconds, stops the writers, and then lets them fill all that came at once. So live deltas are held at the
//! level that passes can keep up with: writers may write as many bytes as merging makes obsolete, more below that level, less above.
//!
//! **Extents.** Whatever else takes room gives it back at once when a segment is emptied. Writers may write as many bytes as were
//! freed beyond what was copied, on the mean of a pass; more while many extents are left, less while few are.
//!
//! Where rows move to sorted tables they make room at a rate that is known, ns for each KiB. Writers are held to that rate where half of the room is missing that a move is to
//! find, to less where more is, by the square. So they slow down before there is none left, and none of them waits for a whole move. In the index each key takes as much room, however
//! short its record is: where that is what is short, each write takes a time of its own.

use std::ops::Sub;
use std::time::Duration;

use hedgerow_device::Clock;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Writers may be ahead of their rate by so much before they sleep, and no sleep is longer than the most.
const SLEEP_MIN_NS: u64 = 100_000;
const SLEEP_MAX_NS: u64 = 5_000_000;
/// What they did not use of it while they rested, and what one large write takes of the others' time, at most.
const SAVED_MAX_NS: u64 = 1_000_000;
const AHEAD_MAX_NS: u64 = 1_000_000_000;
/// The most that moving rows asks for 1 KiB.
const PACE_MAX_NS: u64 = 256_000;
/// The most that a write takes for its key's sake.
const KEY_MAX_NS: u64 = 64_000;
/// The least that all writers together may write, in bytes a second.
const RATE_MIN: f64 = 262_144.0;
/// How long what merging gains is averaged over, in seconds; what is freed, over a pass, within bounds.
const GAIN_SECONDS: f64 = 0.5;
const PASS_SECONDS: [f64; 2] = [0.5, 60.0];

/// The room there is for writers, and how much of it is spoken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpaceLeft {
    /// Extents that writers may have, and how few of them are few.
    pub(crate) available: u32,
    pub(crate) low: u32,
    /// Bytes of live deltas, or half of those that there are, and of how many live ones can be kept up with.
    ///
    /// Deltas come at random, and go as one pass after the other merges the rows below them: half of those in the log are
    /// obsolete then, at no place all. So live ones may come to half of what is not rows.
    pub(crate) deltas: u64,
    pub(crate) deltas_even: u64,
    /// Bytes of all that is live.
    pub(crate) live: u64,
}

impl SpaceLeft {
    pub(crate) fn is_low(self) -> bool {
        self.available < self.low || self.deltas * 2 > self.deltas_even
    }

    /// How much is left before nothing is, from one to zero.
    pub(crate) fn left(self) -> f64 {
        let extents = f64::from(self.available) / f64::from(self.low.max(1));
        let deltas = 2.0 - 2.0 * self.deltas as f64 / self.deltas_even.max(1) as f64;
        extents.min(deltas).clamp(0.0, 1.0)
    }
}

/// What gc has done: since the store was opened, or in a cycle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Segments given back, and bytes copied out of them before.
    pub(crate) segments: u64,
    pub(crate) copied: u64,
    /// Bytes that merging made obsolete beyond what it wrote.
    pub(crate) gained: u64,
}

impl Sub for Work {
    type Output = Work;

    fn sub(self, earlier: Work) -> Work {
        Work {
            segments: self.segments - earlier.segments,
            copied: self.copied - earlier.copied,
            gained: self.gained - earlier.gained,
        }
    }
}

impl Work {
    pub(crate) fn is_anything(self) -> bool {
        self.segments + self.copied > 0
    }
}

/// What gc and the writers share.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// What writing 1 KiB takes of the time of all writers. Zero while they are not held.
    ns_per_kib: AtomicU64,
    /// The greater of these: what gc asks for, and what moving rows does.
    by_gc: AtomicU64,
    by_moving: AtomicU64,
    /// What a write takes of that time at least, however short it is.
    ns_per_write: AtomicU64,
    /// Until when the time of all writers is taken, on the monotonic clock.
    taken_until_ns: AtomicU64,
    /// How long writers have slept, all together.
    slept_ns: AtomicU64,
    /// Gc's own.
    rates: Mutex<GcRates>,
}

/// How fast gc is: means in bytes a second.
#[derive(Debug, Clone, Copy, Default)]
struct GcRates {
    recorded_ns: u64,
    /// Seconds that they are the means of.
    seconds: f64,
    copied: f64,
    freed: f64,
    gained: f64,
}

impl Throttle {
    /// Whether writers are held to a rate.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.ns_per_kib.load(Ordering::Relaxed) != 0
    }

    /// Takes the time of so many writes, of so many bytes in all, and sleeps while the writers are ahead of their rate.
    #[cold]
    pub(crate) fn delay(&self, (writes, bytes): (u64, u64), clock: &Clock) {
        let now_ns = clock.monotonic_ns();
        let for_bytes_ns = (bytes * self.ns_per_kib.load(Ordering::Relaxed)) >> 10;
        let cost_ns = for_bytes_ns.max(writes * self.ns_per_write.load(Ordering::Relaxed));
        let after = |until_ns: u64| {
            let from_ns = until_ns.clamp(now_ns.saturating_sub(SAVED_MAX_NS), now_ns + AHEAD_MAX_NS);
            from_ns + cost_ns.min(AHEAD_MAX_NS)
        };
        let taken = self
            .taken_until_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until_ns| Some(after(until_ns)));
        let ahead_ns = after(taken.unwrap_or_default()).saturating_sub(now_ns);
        if ahead_ns >= SLEEP_MIN_NS {
            let sleep_ns = ahead_ns.min(SLEEP_MAX_NS);
            std::thread::sleep(Duration::from_nanos(sleep_ns));
            self.slept_ns.fetch_add(sleep_ns, Ordering::Relaxed);
        }
    }

    /// What writing 1 KiB takes of the time of all writers now, and how long they have slept for it, in ns.
    pub(crate) fn paid(&self) -> (u64, u64) {
        (self.ns_per_kib.load(Ordering::Relaxed), self.slept_ns.load(Ordering::Relaxed))
    }

    /// Sets the rate after a cycle that did `work` and left `room`.
    pub(crate) fn adjust(&self, room: SpaceLeft, work: Work, extent_bytes: u64, now_ns: u64) {
        let mut rates = self.rates.lock();
        if !room.is_low() {
            // What was done meanwhile was done for nobody in need.
            rates.recorded_ns = 0;
            return self.set(&self.by_gc, 0);
        }
        rates.record(room, work, extent_bytes, now_ns);
        let ns_per_kib = match work.is_anything() {
            true => rates.rate(room).map_or(0, |rate| (1024e9 / rate.max(RATE_MIN)) as u64),
            // Nothing is to be had by waiting.
            false => self.by_gc.load(Ordering::Relaxed) / 2,
        };
        self.set(&self.by_gc, ns_per_kib);
    }

    /// Sets the rate while rows move: of the room below which they do `missing` is gone, from 0 to 1, and to make 1 KiB of it takes `cost_ns`.
    pub(crate) fn pace(&self, missing: f64, cost_ns: u64) {
        self.set(&self.by_moving, paced(missing, cost_ns).min(PACE_MAX_NS));
    }

    /// Sets what each write takes at least while rows move: of the room for keys below which they do `missing` is gone, from 0 to 1, and to take one out takes `cost_ns`.
    pub(crate) fn pace_keys(&self, missing: f64, cost_ns: u64) {
        self.ns_per_write.store(paced(missing, cost_ns).min(KEY_MAX_NS), Ordering::Relaxed);
    }

    fn set(&self, part: &AtomicU64, ns_per_kib: u64) {
        part.store(ns_per_kib, Ordering::Relaxed);
        let of = |part: &AtomicU64| part.load(Ordering::Relaxed);
        self.ns_per_kib.store(of(&self.by_gc).max(of(&self.by_moving)), Ordering::Relaxed);
    }
}

/// What writers are held to of something that takes `cost_ns` to make room for, where of the room `missing` is gone: as much where that is half, and less and more by the square.
fn paced(missing: f64, cost_ns: u64) -> u64 {
    // The last quarter is for what was not foreseen: a disk that hesitates, rows that are long.
    let urgent = (0.25 / (1.0 - missing).max(0.01)).max(1.0);
    (4.0 * cost_ns as f64 * missing * missing * urgent) as u64
}

impl GcRates {
    fn record(&mut self, room: SpaceLeft, work: Work, extent_bytes: u64, now_ns: u64) {
        let before_ns = std::mem::replace(&mut self.recorded_ns, now_ns);
        if before_ns == 0 || before_ns >= now_ns {
            return;
        }
        let seconds = (now_ns - before_ns) as f64 / 1e9;
        self.seconds += seconds;
        let over = |span: f64| (seconds / self.seconds.min(span)).min(1.0);
        let blend = |mean: &mut f64, bytes: f64, weight: f64| *mean += (bytes / seconds - *mean) * weight;
        let brief = over(GAIN_SECONDS);
        let pass = over((room.live as f64 / self.copied.max(1.0)).clamp(PASS_SECONDS[0], PASS_SECONDS[1]));
        blend(&mut self.gained, work.gained as f64, brief);
        blend(&mut self.copied, work.copied as f64, brief);
        blend(&mut self.freed, (work.segments * extent_bytes) as f64 - work.copied as f64, pass);
    }

    /// Bytes a second that all writers together may write; `None`: as many as they like.
    fn rate(&self, room: SpaceLeft) -> Option<f64> {
        let deltas = room.deltas as f64 / room.deltas_even.max(1) as f64;
        let extents = f64::from(room.available) / f64::from(room.low);
        // One at the level to be held, nothing where no room is left, without bound where there is enough.
        let by_deltas =
            (deltas > 0.5).then(|| self.gained * ((2.0 - deltas).max(0.0) / (2.0 * deltas - 1.0)));
        // The mean of a pass is not known before its end. So much is gained if it is as bad as it may be.
        let freed = self.freed.max(self.copied / 16.0);
        let by_extents = (extents < 1.0).then(|| freed * (3.0 * extents / (1.0 - extents)));
        [by_deltas, by_extents].into_iter().flatten().reduce(f64::min)
    }
}

#[cfg(all(test, shuttle))]
mod shuttle;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SECOND_NS: u64 = 1_000_000_000;

    fn room(available: u32, deltas: u64) -> SpaceLeft {
        SpaceLeft { available, low: 20, deltas: deltas * MIB, deltas_even: 100 * MIB, live: 1000 * MIB }
    }

    /// Ten cycles a second, each of which empties ten segments of rows that are half obsolete, and gains 1 MiB of deltas.
    fn rate_after(throttle: &Throttle, room: SpaceLeft) -> u64 {
        let work = Work { segments: 10, copied: 5 * MIB, gained: MIB };
        (1..=50).for_each(|tenth| throttle.adjust(room, work, MIB, tenth * SECOND_NS / 10));
        throttle.ns_per_kib.load(Ordering::Relaxed)
    }

    fn is_about(ns_per_kib: u64, bytes_per_second: u64) -> bool {
        let expected = 1024 * SECOND_NS / bytes_per_second;
        ns_per_kib.abs_diff(expected) * 20 < expected
    }

    #[test]
    fn writers_are_held_while_room_is_short_and_no_longer() {
        let throttle = Throttle::default();
        assert_eq!(rate_after(&throttle, room(20, 50)), 0);
        assert!(rate_after(&throttle, room(10, 0)) > 0);
        assert!(throttle.is_on());
        throttle.adjust(room(20, 50), Work::default(), MIB, 6 * SECOND_NS);
        assert!(!throttle.is_on());
    }

    #[test]
    fn writers_go_at_the_rate_of_a_move_when_half_its_room_is_missing() {
        let at = |missing| {
            let throttle = Throttle::default();
            throttle.pace(missing, 1_000);
            throttle.ns_per_kib.load(Ordering::Relaxed)
        };
        assert_eq!([0.0, 0.25, 0.5, 0.75].map(at), [0, 250, 1_000, 2_250]);
        assert!(at(0.9) > 8_000 && at(1.0) > 90_000, "{} and {}", at(0.9), at(1.0));
        let throttle = Throttle::default();
        throttle.pace(0.5, 1_000);
        throttle.adjust(room(20, 0), Work::default(), MIB, SECOND_NS);
        assert!(throttle.is_on(), "gc asks for nothing");
        throttle.pace(0.0, 1_000);
        assert!(!throttle.is_on());
    }

    /// A key takes its room in the index whatever its record takes in the log.
    #[test]
    fn where_keys_have_no_room_short_writes_are_held_too() {
        let clock = Clock::manual(10_000);
        let taken_by = |missing, writes| {
            let throttle = Throttle::default();
            throttle.pace(missing, 1);
            throttle.pace_keys(missing, 4_000);
            throttle.delay(writes, &clock);
            // What was saved before is taken first.
            throttle.taken_until_ns.load(Ordering::Relaxed) + SAVED_MAX_NS - clock.monotonic_ns()
        };
        assert_eq!(taken_by(0.5, (1, 40)), 4_000);
        assert_eq!(taken_by(0.75, (1, 40)), 9_000);
        assert_eq!(taken_by(1.0, (1, 40)), 64_000);
        assert_eq!(taken_by(1.0, (3, 120)), 3 * 64_000);
        assert_eq!(taken_by(1.0, (1, 8 << 20)), 819_200, "of a long one bytes take more");
    }

    #[test]
    fn deltas_are_written_at_the_rate_at_which_they_are_merged() {
        let at = |deltas| rate_after(&Throttle::default(), room(100, deltas));
        assert!(is_about(at(100), 10 * MIB), "{}", at(100));
        assert!(is_about(at(75), 25 * MIB), "{}", at(75));
        assert!(is_about(at(150), 10 * MIB / 4), "{}", at(150));
        assert!(is_about(at(200), RATE_MIN as u64), "{}", at(200));
    }

    #[test]
    fn extents_are_written_at_the_rate_at_which_they_are_freed() {
        let at = |available| rate_after(&Throttle::default(), room(available, 0));
        assert!(is_about(at(5), 50 * MIB), "{}", at(5));
        assert!(is_about(at(10), 150 * MIB), "{}", at(10));
        assert!(is_about(at(1), 50 * MIB * 3 / 19), "{}", at(1));
        assert!(is_about(at(0), RATE_MIN as u64), "{}", at(0));
    }

    /// A pass that has freed nothing yet does not stop them.
    #[test]
    fn a_pass_that_frees_at_its_end_is_not_taken_for_one_that_frees_nothing() {
        let throttle = Throttle::default();
        let work = Work { segments: 8, copied: 8 * MIB, gained: MIB };
        (1..=50).for_each(|tenth| throttle.adjust(room(5, 0), work, MIB, tenth * SECOND_NS / 10));
        let ns_per_kib = throttle.ns_per_kib.load(Ordering::Relaxed);
        assert!(is_about(ns_per_kib, 5 * MIB), "{ns_per_kib}");
    }

    /// All there is to be had: nobody is helped by a delay.
    #[test]
    fn nobody_is_held_for_nothing() {
        let throttle = Throttle::default();
        assert!(rate_after(&throttle, room(1, 150)) > 0);
        (0..40).for_each(|_| throttle.adjust(room(1, 150), Work::default(), MIB, 6 * SECOND_NS));
        assert!(!throttle.is_on());
    }

    #[test]
    fn time_is_taken_from_all_writers_together_and_not_for_ever() {
        let clock = Clock::manual(10_000);
        let throttle = Throttle::default();
        throttle.ns_per_kib.store(1_000_000, Ordering::Relaxed);
        let ahead = || throttle.taken_until_ns.load(Ordering::Relaxed) as i64 - clock.monotonic_ns() as i64;
        throttle.delay((1, 1024), &clock);
        assert_eq!(ahead(), 0, "rest of a millisecond is saved");
        throttle.delay((1, 1024), &clock);
        throttle.delay((1, 512), &clock);
        assert_eq!(ahead(), 1_500_000);
        clock.advance_ms(60_000);
        throttle.delay((1, 3 * 1024), &clock);
        assert_eq!(ahead(), 2_000_000);
        throttle.delay((1, 64 << 20), &clock);
        throttle.delay((1, 64 << 20), &clock);
        assert_eq!(ahead(), 2 * AHEAD_MAX_NS as i64, "what one write may take, after as much");
    }
}
