//! Persistent memory as published measurements describe it, played over memory that is faster.
//!
//! Owns [`PersistentMemoryModel`] and its delays. Promises that an access takes at least what the model says; it cannot
//! make the base faster. Must not know what the bytes mean. A figure measured here is the model's figure and says so.
//!
//! **Reads** cost per 256-byte unit, the granule in which the media read internally. A unit that this thread touched
//! lately is taken to be in its processor cache and costs nothing. Of the units of one read, the first costs the random
//! latency and the following ones the sequential latency. A prefetch starts the clock of its unit; a later read waits only
//! for what is left, so overlapping pays as it does on the real thing.
//!
//! **Writes** cost bandwidth, per 256-byte unit, shared by all threads: a write into the unit that the thread wrote last
//! is combined with it, as the media's write buffer does; writers wait only once the buffer is full.

use std::cell::{Cell, RefCell};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::monotonic_ns;

/// Bytes of the media's internal read and write granule.
const UNIT_BYTES: u64 = 256;

/// What the emulated persistent memory costs. Fields are public: an experiment states its own.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistentMemoryModel {
    /// Nanoseconds to read a unit that does not follow the one before.
    pub read_latency_ns: u64,
    /// Nanoseconds to read the next unit in order.
    pub sequential_read_latency_ns: u64,
    /// Nanoseconds that the memory underneath takes by itself; taken off both latencies.
    pub base_latency_ns: u64,
    /// Bytes per second that all threads together can write.
    pub write_bandwidth: u64,
    /// Bytes that may wait in the media's write buffer before a writer waits.
    pub write_buffer_bytes: u64,
    /// Bytes of processor cache in front of the media, per thread; units touched lately are read free of charge.
    pub cache_bytes: u64,
}

impl PersistentMemoryModel {
    /// Intel Optane DC persistent memory, one DIMM, first generation.
    ///
    /// Random read 305 ns and sequential read 169 ns against 81 ns for local DRAM, 256-byte media granule, 16 KB write
    /// buffer, 2.3 GB/s of write bandwidth per DIMM: Izraelevitz et al., "Basic Performance Measurements of the Intel
    /// Optane DC Persistent Memory Module" (2019); Yang et al., "An Empirical Guide to the Behavior and Use of Scalable
    /// Persistent Memory" (FAST 2020). The cache is the 1 MiB L2 of the processors measured there.
    pub fn optane() -> PersistentMemoryModel {
        PersistentMemoryModel {
            read_latency_ns: 305,
            sequential_read_latency_ns: 169,
            base_latency_ns: 81,
            write_bandwidth: 2_300_000_000,
            write_buffer_bytes: 16 << 10,
            cache_bytes: 1 << 20,
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
const NO_UNIT: u64 = u64::MAX;

thread_local! {
    /// Direct-mapped by unit number; unit numbers are addresses, so all emulated tiers share it as they would a cache.
    static CACHE: RefCell<Vec<CachedUnit>> = const { RefCell::new(Vec::new()) };
    static LAST_WRITTEN: Cell<u64> = const { Cell::new(NO_UNIT) };
}

/// The delays of one tier.
#[derive(Debug)]
pub(crate) struct Emulation {
    first_ns: u64,
    next_ns: u64,
    picoseconds_per_unit: u64,
    buffered_ns: u64,
    slots: usize,
    /// When the media will have written everything handed to it.
    written_ns: AtomicU64,
}

impl Emulation {
    pub(crate) fn new(model: &PersistentMemoryModel) -> Emulation {
        let bandwidth = model.write_bandwidth.max(1);
        let buffered = u128::from(model.write_buffer_bytes) * 1_000_000_000 / u128::from(bandwidth);
        let unit_ps = u128::from(UNIT_BYTES) * 1_000_000_000_000 / u128::from(bandwidth);
        let slots = (model.cache_bytes / UNIT_BYTES).clamp(1, 1 << 20);
        Emulation {
            first_ns: model.read_latency_ns.saturating_sub(model.base_latency_ns),
            next_ns: model.sequential_read_latency_ns.saturating_sub(model.base_latency_ns),
            picoseconds_per_unit: u64::try_from(unit_ps).unwrap_or(u64::MAX),
            buffered_ns: u64::try_from(buffered).unwrap_or(u64::MAX),
            slots: slots.next_power_of_two() as usize,
            written_ns: AtomicU64::new(0),
        }
    }

    fn with_cache<R>(&self, f: impl FnOnce(&mut [CachedUnit]) -> R) -> R {
        CACHE.with_borrow_mut(|cache| {
            if cache.len() < self.slots {
                *cache = vec![CachedUnit { unit: NO_UNIT, ready_ns: 0 }; self.slots];
            }
            f(&mut cache[..self.slots])
        })
    }

    /// Waits as long as reading `len` bytes at `address` takes.
    #[cold]
    pub(crate) fn read(&self, address: u64, len: u64) {
        let until = self.with_cache(|cache| {
            let mut until = 0;
            let mut now = 0;
            let mut latency = self.first_ns;
            for unit in units(address, len) {
                let slot = &mut cache[unit as usize & (self.slots - 1)];
                if slot.unit == unit {
                    until = until.max(slot.ready_ns);
                    continue;
                }
                if now == 0 {
                    now = monotonic_ns();
                }
                until = until.max(now) + latency;
                latency = self.next_ns;
                *slot = CachedUnit { unit, ready_ns: until };
            }
            until
        });
        spin_until(until);
    }

    /// Starts the read of the unit at `address`.
    #[cold]
    pub(crate) fn prefetch(&self, address: u64) {
        self.with_cache(|cache| {
            let unit = address / UNIT_BYTES;
            let slot = &mut cache[unit as usize & (self.slots - 1)];
            if slot.unit != unit {
                *slot = CachedUnit { unit, ready_ns: monotonic_ns() + self.first_ns };
            }
        });
    }

    /// Takes the range out of this thread's cache.
    pub(crate) fn forget(&self, address: u64, len: u64) {
        self.with_cache(|cache| {
            for unit in units(address, len) {
                let slot = &mut cache[unit as usize & (self.slots - 1)];
                if slot.unit == unit {
                    slot.unit = NO_UNIT;
                }
            }
        });
    }

    /// Waits as long as the media need before they can take the `len` bytes just stored at `address`.
    #[cold]
    pub(crate) fn write(&self, address: u64, len: u64) {
        let cost = self.write_cost_ns(address, len);
        if cost == 0 {
            return;
        }
        let now = monotonic_ns();
        let queue = |written: u64| Some(written.max(now).saturating_add(cost));
        let before = self
            .written_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, queue)
            .expect("the closure always answers a value");
        let written = before.max(now).saturating_add(cost);
        spin_until(written.saturating_sub(self.buffered_ns));
    }

    /// What writing the units of the range takes the media; the unit this thread wrote last is combined and costs nothing.
    fn write_cost_ns(&self, address: u64, len: u64) -> u64 {
        let mut fresh: u64 = 0;
        self.with_cache(|cache| {
            for unit in units(address, len) {
                fresh += u64::from(LAST_WRITTEN.replace(unit) != unit);
                cache[unit as usize & (self.slots - 1)] = CachedUnit { unit, ready_ns: 0 };
            }
        });
        fresh.saturating_mul(self.picoseconds_per_unit) / 1_000
    }
}

/// The units that the `len` bytes at `address` touch.
fn units(address: u64, len: u64) -> std::ops::Range<u64> {
    address / UNIT_BYTES..(address + len).div_ceil(UNIT_BYTES)
}

/// Spins, since sleeping takes fifty times longer than the delays to be played.
fn spin_until(until_ns: u64) {
    if until_ns == 0 {
        return;
    }
    while monotonic_ns() < until_ns {
        spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optane_is_as_published() {
        let model = PersistentMemoryModel::optane();
        assert_eq!(
            (model.read_latency_ns, model.sequential_read_latency_ns, model.base_latency_ns),
            (305, 169, 81)
        );
        let emulation = Emulation::new(&model);
        assert_eq!((emulation.first_ns, emulation.next_ns), (224, 88));
        assert_eq!(emulation.picoseconds_per_unit, 111_304, "256 bytes at 2.3 GB/s");
        assert_eq!(emulation.slots, 4096);
    }

    #[test]
    fn writes_into_the_same_unit_are_combined() {
        let model = PersistentMemoryModel { write_bandwidth: 256_000_000, ..PersistentMemoryModel::optane() };
        let emulation = Emulation::new(&model);
        let cost = |address, len| emulation.write_cost_ns(address, len);
        assert_eq!(cost(1 << 40, 1), 1_000, "a unit takes a microsecond, however little of it is written");
        assert_eq!(cost((1 << 40) + 100, 156), 0, "the rest of it is combined");
        assert_eq!(cost((1 << 40) + 250, 8), 1_000, "across a border only the next unit is new");
        assert_eq!(cost((1 << 40) + 256, 1024), 4_000 - 1_000, "the first of four was just written");
        assert_eq!(cost(1 << 40, 0), 0);
    }

    #[test]
    fn extreme_models_do_not_overflow() {
        let model = PersistentMemoryModel {
            write_bandwidth: 0,
            write_buffer_bytes: u64::MAX,
            cache_bytes: 0,
            base_latency_ns: u64::MAX,
            ..PersistentMemoryModel::optane()
        };
        let emulation = Emulation::new(&model);
        assert_eq!((emulation.first_ns, emulation.next_ns, emulation.slots), (0, 0, 1));
        emulation.write(0, 256);
        emulation.read(0, 512);
    }
}
