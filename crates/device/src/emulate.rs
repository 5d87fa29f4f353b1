//! Persistent memory as published measurements describe it, played over memory that is faster.
//!
//! Owns [`PersistentMemoryModel`] and its delays. Promises that a read takes as much longer than one of DRAM on this machine
//! as the model says, the time of the memory underneath included: what DRAM takes here is measured first ([`calibrate`]).
//! Must not know what the bytes mean. A figure measured here is the model's figure and says so.
//!
//! **Reads** cost per 256-byte unit, the granule in which the media read internally. A unit that this thread touched
//! lately is taken to be in its processor cache and costs nothing. A unit costs the sequential latency where it follows the one
//! this thread read before, else the random one. The units of one read overlap as the lines of them do that a processor
//! can have in flight, and all threads together read no faster than the media's bandwidth. A prefetch starts the clock
//! of its units; a later read waits only for what is left, so overlapping pays as it does on the real thing.
//!
//! **Writes** cost bandwidth, per 256-byte unit, shared by all threads: a write into the unit that the thread wrote last
//! is combined with it, as the media's write buffer does; writers wait only once the buffer is full. Making everything
//! durable writes back each line stored since, and waits for the buffer to drain.
//!
//! Bytes are charged to whoever looks at them: [`touch`] finds by their address what medium they lie on, so that a reader of
//! one field of a row is not charged for the others.

mod bucket;
mod calibrate;

use std::cell::{Cell, RefCell};
use std::hint::spin_loop;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::clock::monotonic_ns;
use crate::flush::{self, LINE_BYTES};
use bucket::TokenBucket;
use calibrate::Machine;

/// Bytes of the media's internal read and write granule.
const UNIT_BYTES: u64 = 256;
/// The most lines in flight that are told apart.
const LINES_IN_FLIGHT_MAX: usize = 64;
/// Units that are asked for before the first of them is waited for, so that one long read does not take the bandwidth of the
/// next millisecond away from other threads.
const UNITS_AT_ONCE: usize = 16;

/// What the emulated persistent memory costs. Fields are public: an experiment states its own.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistentMemoryModel {
    /// Nanoseconds to read a unit that does not follow the one before.
    pub read_latency_ns: u64,
    /// Nanoseconds to read the next unit in order.
    pub sequential_read_latency_ns: u64,
    /// Nanoseconds that DRAM took where these latencies were measured. Here both take as much longer than DRAM as there.
    pub base_latency_ns: u64,
    /// Bytes per second that all threads together can read.
    pub read_bandwidth: u64,
    /// Lines of 64 bytes that a thread can have under way from the media at a time.
    pub lines_in_flight: usize,
    /// Bytes per second that all threads together can write.
    pub write_bandwidth: u64,
    /// Bytes that may wait in the media's write buffer before a writer waits.
    pub write_buffer_bytes: u64,
    /// Bytes of processor cache in front of the media, per thread; units touched lately are read free of charge.
    pub cache_bytes: u64,
}

/// What a read takes on this machine, in nanoseconds, under a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmulatedLatency {
    /// A random line of this machine's DRAM, as measured.
    pub dram_ns: u64,
    /// A unit that does not follow the one before.
    pub random_ns: u64,
    /// The next unit in order.
    pub sequential_ns: u64,
}

impl PersistentMemoryModel {
    /// Intel Optane DC persistent memory, one DIMM, first generation.
    ///
    /// Random read 305 ns and sequential read 169 ns against 81 ns for local DRAM, 256-byte media granule, 16 KB write
    /// buffer, 6.6 GB/s of read and 2.3 GB/s of write bandwidth per DIMM: Izraelevitz et al., "Basic Performance
    /// Measurements of the Intel Optane DC Persistent Memory Module" (2019); Yang et al., "An Empirical Guide to the Behavior
    /// and Use of Scalable Persistent Memory" (FAST 2020). The 81 ns are DRAM's sequential reads; against its random ones
    /// (101 ns) the random ratio is 3.0 instead of 3.8. The cache is the 1 MiB L2 of the processors measured there, and their
    /// cores have ten lines of the first level under way.
    pub fn optane() -> PersistentMemoryModel {
        PersistentMemoryModel {
            read_latency_ns: 305,
            sequential_read_latency_ns: 169,
            base_latency_ns: 81,
            read_bandwidth: 6_600_000_000,
            lines_in_flight: 10,
            write_bandwidth: 2_300_000_000,
            write_buffer_bytes: 16 << 10,
            cache_bytes: 1 << 20,
        }
    }

    /// What reads take on this machine. The first call in a process measures its DRAM, in some milliseconds.
    pub fn latency_here(&self) -> EmulatedLatency {
        self.latency_over(calibrate::machine().dram_line_ns)
    }

    /// The same where a line of DRAM takes `dram_ns`.
    fn latency_over(&self, dram_ns: f64) -> EmulatedLatency {
        let scaled = |ns: u64| (ns as f64 * dram_ns / self.base_latency_ns.max(1) as f64).round() as u64;
        EmulatedLatency {
            dram_ns: dram_ns.round() as u64,
            random_ns: scaled(self.read_latency_ns),
            sequential_ns: scaled(self.sequential_read_latency_ns),
        }
    }
}

impl Default for PersistentMemoryModel {
    fn default() -> PersistentMemoryModel {
        PersistentMemoryModel::optane()
    }
}

/// A unit in a thread's cache, and when its bytes arrive.
#[derive(Clone, Copy)]
struct CachedUnit {
    unit: u64,
    ready_ns: u64,
}

/// No address has this unit number.
const NO_UNIT: u64 = u64::MAX - 1;

/// What the emulation knows of the processor that a thread runs on. Units are addresses, so that all emulated tiers share it as they
/// would a cache.
struct Processor {
    /// Direct-mapped by unit number.
    cache: Vec<CachedUnit>,
    /// When each of the lines asked for last arrives: a ring.
    in_flight: [u64; LINES_IN_FLIGHT_MAX],
    oldest: usize,
    last_read: u64,
    /// What the clock showed last.
    seen_ns: u64,
}

impl Processor {
    /// The moment from which one more line can be asked for, and where to say when it arrives.
    fn next_line(&mut self, lines_max: usize) -> &mut u64 {
        self.oldest = (self.oldest + 1) % lines_max;
        &mut self.in_flight[self.oldest]
    }

    fn look_at_clock(&mut self) -> u64 {
        self.seen_ns = monotonic_ns();
        self.seen_ns
    }
}

thread_local! {
    static PROCESSOR: RefCell<Processor> = const {
        RefCell::new(Processor {
            cache: Vec::new(),
            in_flight: [0; LINES_IN_FLIGHT_MAX],
            oldest: 0,
            last_read: NO_UNIT,
            seen_ns: 0,
        })
    };
    static LAST_WRITTEN: Cell<u64> = const { Cell::new(NO_UNIT) };
}

/// The delays of one tier.
#[derive(Debug)]
pub(crate) struct Emulation {
    random_ns: u64,
    sequential_ns: u64,
    lines_in_flight: usize,
    slots: usize,
    /// What of a wait goes by unnoticed: reading the clock before it and after it.
    clock_ns: u64,
    line_flush_ns: f64,
    buffered_ns: u64,
    reads: TokenBucket,
    writes: TokenBucket,
    /// Lines stored to and not made durable since.
    unflushed_lines: AtomicU64,
}

impl Emulation {
    pub(crate) fn new(model: &PersistentMemoryModel, machine: &Machine) -> Emulation {
        let latency = model.latency_over(machine.dram_line_ns);
        let slots = (model.cache_bytes / UNIT_BYTES).clamp(1, 1 << 20);
        let writes = TokenBucket::new(model.write_bandwidth);
        Emulation {
            random_ns: latency.random_ns,
            sequential_ns: latency.sequential_ns,
            lines_in_flight: model.lines_in_flight.clamp(1, LINES_IN_FLIGHT_MAX),
            slots: slots.next_power_of_two() as usize,
            clock_ns: machine.clock_ns,
            line_flush_ns: machine.line_flush_ns,
            buffered_ns: writes.cost_ns(model.write_buffer_bytes),
            reads: TokenBucket::new(model.read_bandwidth),
            writes,
            unflushed_lines: AtomicU64::new(0),
        }
    }

    fn with_processor<R>(&self, f: impl FnOnce(&mut Processor) -> R) -> R {
        PROCESSOR.with_borrow_mut(|processor| {
            if processor.cache.len() < self.slots {
                processor.cache = vec![CachedUnit { unit: NO_UNIT, ready_ns: 0 }; self.slots];
            }
            f(processor)
        })
    }

    /// Waits as long as reading `len` bytes at `address` takes. They are mapped.
    #[cold]
    pub(crate) fn read(&self, address: u64, len: u64) {
        let end = address + len;
        let mut from = address;
        while from < end {
            let until = end.min((from / UNIT_BYTES + UNITS_AT_ONCE as u64) * UNIT_BYTES);
            self.with_processor(|processor| {
                let ready = self.fetch(processor, from, until - from);
                self.wait(processor, ready);
            });
            from = until;
        }
    }

    /// Starts the read of the units of the range.
    #[cold]
    pub(crate) fn prefetch(&self, address: u64, len: u64) {
        self.with_processor(|processor| self.fetch(processor, address, len));
    }

    /// Asks for the units of the range that are not in the cache. Returns when the last of the range arrives.
    fn fetch(&self, processor: &mut Processor, address: u64, len: u64) -> u64 {
        let (mut ready, mut now) = (0, 0);
        for unit in units(address, len) {
            let at = unit as usize & (self.slots - 1);
            if processor.cache[at].unit != unit {
                if now == 0 {
                    now = processor.look_at_clock();
                }
                let start = address.max(unit * UNIT_BYTES);
                let end = (address + len).min((unit + 1) * UNIT_BYTES);
                // The bytes themselves come meanwhile: what they take is in the latency.
                flush::fetch(start, end - start);
                let lines = end.div_ceil(LINE_BYTES) - start / LINE_BYTES;
                let follows = unit == processor.last_read.wrapping_add(1);
                let ready_ns = self.fetch_unit(processor, now, lines, follows);
                processor.cache[at] = CachedUnit { unit, ready_ns };
            }
            ready = ready.max(processor.cache[at].ready_ns);
            processor.last_read = unit;
        }
        ready
    }

    /// When so many lines of a unit that is asked for now will have arrived.
    fn fetch_unit(&self, processor: &mut Processor, now: u64, lines: u64, follows: bool) -> u64 {
        let latency = if follows { self.sequential_ns } else { self.random_ns };
        let begun = self.reads.take(now, UNIT_BYTES);
        let mut ready = 0;
        for _ in 0..lines {
            let line = processor.next_line(self.lines_in_flight);
            *line = begun.max(*line).saturating_add(latency);
            ready = ready.max(*line);
        }
        ready
    }

    /// Takes the range out of this thread's cache.
    pub(crate) fn forget(&self, address: u64, len: u64) {
        self.with_processor(|processor| {
            for unit in units(address, len) {
                let slot = &mut processor.cache[unit as usize & (self.slots - 1)];
                if slot.unit == unit {
                    slot.unit = NO_UNIT;
                }
            }
            processor.last_read = NO_UNIT;
        });
    }

    /// Waits as long as the media need before they can take the `len` bytes just stored at `address`.
    #[cold]
    pub(crate) fn write(&self, address: u64, len: u64) {
        let fresh = self.record_written(address, len);
        self.unflushed_lines.fetch_add(lines(address, len), Ordering::Relaxed);
        if fresh == 0 {
            return;
        }
        self.with_processor(|processor| {
            let now = processor.look_at_clock();
            let bytes = fresh * UNIT_BYTES;
            let written = self.writes.take(now, bytes).saturating_add(self.writes.cost_ns(bytes));
            self.wait(processor, written.saturating_sub(self.buffered_ns));
        });
    }

    /// How many units of the range the media have to write; the unit this thread wrote last is combined and costs nothing.
    fn record_written(&self, address: u64, len: u64) -> u64 {
        let mut fresh: u64 = 0;
        self.with_processor(|processor| {
            for unit in units(address, len) {
                fresh += u64::from(LAST_WRITTEN.replace(unit) != unit);
                processor.cache[unit as usize & (self.slots - 1)] = CachedUnit { unit, ready_ns: 0 };
            }
        });
        fresh
    }

    /// Takes note that the range was written back.
    pub(crate) fn persisted(&self, address: u64, len: u64) {
        let flushed = lines(address, len);
        let less = |unflushed: u64| Some(unflushed.saturating_sub(flushed));
        // The closure always answers a value.
        let _ = self.unflushed_lines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Waits as long as it takes to write back every line stored to and not persisted since, and the media to take them all.
    pub(crate) fn persist_all(&self) {
        let unflushed = self.unflushed_lines.swap(0, Ordering::Relaxed);
        self.with_processor(|processor| {
            let now = processor.look_at_clock();
            let issued = now.saturating_add((unflushed as f64 * self.line_flush_ns) as u64);
            self.wait(processor, issued.max(self.writes.take(now, 0)));
        });
    }

    /// Spins, since sleeping takes fifty times longer than the delays to be played.
    fn wait(&self, processor: &mut Processor, until_ns: u64) {
        let until_ns = until_ns.saturating_sub(self.clock_ns);
        while processor.seen_ns < until_ns {
            spin_loop();
            processor.look_at_clock();
        }
    }
}

/// The units that the `len` bytes at `address` touch.
fn units(address: u64, len: u64) -> Range<u64> {
    address / UNIT_BYTES..(address + len).div_ceil(UNIT_BYTES)
}

/// How many lines they touch.
fn lines(address: u64, len: u64) -> u64 {
    (address + len).div_ceil(LINE_BYTES) - address / LINE_BYTES
}

/// The address ranges of all emulated tiers. `COUNT` says whether there are any, `CHANGES` how often that changed.
static TIERS: RwLock<Vec<(Range<u64>, Arc<Emulation>)>> = RwLock::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);
static CHANGES: AtomicU64 = AtomicU64::new(0);

type Tiers = (u64, Vec<(Range<u64>, Arc<Emulation>)>);
thread_local! {
    /// This thread's copy of `TIERS`, and the number of changes it has seen: a lock on every read would be what is measured.
    static SEEN: RefCell<Tiers> = const { RefCell::new((0, Vec::new())) };
}

/// A tier's emulation, found by [`touch`] while this lives.
#[derive(Debug)]
pub(crate) struct EmulatedTier(Arc<Emulation>);

impl EmulatedTier {
    /// The delays of `model` for the addresses in `range`.
    pub(crate) fn new(model: &PersistentMemoryModel, range: Range<u64>) -> EmulatedTier {
        let emulation = Arc::new(Emulation::new(model, calibrate::machine()));
        let mut tiers = TIERS.write().unwrap_or_else(PoisonError::into_inner);
        tiers.push((range, Arc::clone(&emulation)));
        COUNT.store(tiers.len(), Ordering::Relaxed);
        CHANGES.fetch_add(1, Ordering::Release);
        EmulatedTier(emulation)
    }
}

impl std::ops::Deref for EmulatedTier {
    type Target = Emulation;

    fn deref(&self) -> &Emulation {
        &self.0
    }
}

impl Drop for EmulatedTier {
    fn drop(&mut self) {
        let mut tiers = TIERS.write().unwrap_or_else(PoisonError::into_inner);
        tiers.retain(|(_, emulation)| !Arc::ptr_eq(emulation, &self.0));
        COUNT.store(tiers.len(), Ordering::Relaxed);
        CHANGES.fetch_add(1, Ordering::Release);
    }
}

/// Waits, where the bytes of `range` from `base` on lie in an emulated tier, as long as reading them takes there.
#[inline(always)]
pub(crate) fn touch(base: *const u8, range: Range<usize>) {
    if any_emulated() {
        touch_emulated(base as u64 + range.start as u64, range.len() as u64);
    }
}

/// Whether any emulated tier is open in this process.
#[inline(always)]
pub fn any_emulated() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

#[cold]
#[inline(never)]
fn touch_emulated(address: u64, bytes: u64) {
    SEEN.with_borrow_mut(|(changes, tiers)| {
        let now = CHANGES.load(Ordering::Acquire);
        if *changes != now {
            tiers.clone_from(&TIERS.read().unwrap_or_else(PoisonError::into_inner));
            *changes = now;
        }
        if let Some((_, emulation)) = tiers.iter().find(|(range, _)| range.contains(&address)) {
            emulation.read(address, bytes);
        }
    });
}

#[cfg(test)]
mod tests;
