//! What this machine's memory takes by itself.
//!
//! Owns three measurements: a random line of DRAM, writing a line back, and reading the clock. Promises to take them once in
//! a process, in some milliseconds, and to answer with the least of a few goes, since others on the machine can only make
//! them longer. Must not know what they are for.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::OnceLock;

use crate::clock::monotonic_ns;
use crate::flush::{self, LINE_BYTES};
use crate::random::Random;

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// Nanoseconds until a line that is in no cache has arrived from DRAM.
    pub(super) dram_line_ns: f64,
    /// Nanoseconds to write a line back that was stored to.
    pub(super) line_flush_ns: f64,
    /// Nanoseconds to read the clock.
    pub(super) clock_ns: u64,
}

/// Measured by the first who asks.
pub(super) fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(Machine::measure)
}

/// Lines that are gone through: 4 MiB, whose translations a processor has at hand.
const LINES: usize = 1 << 16;
const WORDS_PER_LINE: usize = LINE_BYTES as usize / 8;
/// Lines that one go reads, each at the place that the one before names.
const STEPS: usize = 4096;
const GOES: usize = 9;
const CLOCK_LOOKS: u64 = 1000;

impl Machine {
    fn measure() -> Machine {
        let mut words = ring_of_lines();
        let least = |one: &mut dyn FnMut() -> f64| (0..GOES).map(|_| one()).fold(f64::INFINITY, f64::min);
        let mut start = 0;
        let dram_line_ns = least(&mut || line_ns(&words, &mut start));
        let line_flush_ns = least(&mut || line_flush_ns(&mut words));
        let clock_ns = least(&mut clock_ns) as u64;
        Machine { dram_line_ns: dram_line_ns.max(1.0), line_flush_ns, clock_ns }
    }
}

/// The first word of each line is the place of the next one's, in one ring through all of them in random order.
fn ring_of_lines() -> Vec<u64> {
    let mut order: Vec<usize> = (0..LINES).collect();
    let mut random = Random::from_seed(1);
    // Sattolo's shuffle: one cycle.
    for at in (1..LINES).rev() {
        order.swap(at, random.below(at as u64) as usize);
    }
    let mut words = vec![0; LINES * WORDS_PER_LINE];
    for (line, next) in order.into_iter().enumerate() {
        words[line * WORDS_PER_LINE] = (next * WORDS_PER_LINE) as u64;
    }
    words
}

/// Nanoseconds a line, read from `start` on after all were dropped from the caches.
fn line_ns(words: &[u64], start: &mut u64) -> f64 {
    // SAFETY: the bytes of a slice.
    unsafe { flush::evict(words.as_ptr() as u64, (words.len() * 8) as u64) };
    let begun = monotonic_ns();
    for _ in 0..STEPS {
        *start = words[*start as usize];
    }
    black_box(*start);
    (monotonic_ns() - begun) as f64 / STEPS as f64
}

/// Nanoseconds a line that was just stored to.
fn line_flush_ns(words: &mut [u64]) -> f64 {
    let words = &mut words[..STEPS * WORDS_PER_LINE];
    words.iter_mut().skip(1).step_by(WORDS_PER_LINE).for_each(|word| *word = black_box(*word + 1));
    let begun = monotonic_ns();
    // SAFETY: the bytes of a slice.
    unsafe { flush::write_back(words.as_ptr() as u64, (words.len() * 8) as u64) };
    flush::fence();
    (monotonic_ns() - begun) as f64 / STEPS as f64
}

fn clock_ns() -> f64 {
    let begun = monotonic_ns();
    (0..CLOCK_LOOKS).for_each(|_| {
        black_box(monotonic_ns());
    });
    (monotonic_ns() - begun) as f64 / CLOCK_LOOKS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_goes_through_every_line() {
        let words = ring_of_lines();
        let (mut at, mut steps) = (words[0], 1);
        while at != 0 {
            at = words[at as usize];
            steps += 1;
        }
        assert_eq!(steps, LINES);
    }

    #[test]
    fn memory_is_slower_than_the_clock_is_fine() {
        let Machine { dram_line_ns, line_flush_ns, clock_ns } = *machine();
        assert!((20.0..5_000.0).contains(&dram_line_ns), "{dram_line_ns} ns a line");
        assert!((0.1..5_000.0).contains(&line_flush_ns), "{line_flush_ns} ns a line written back");
        assert!(clock_ns < 5_000, "{clock_ns} ns for the clock");
    }
}
