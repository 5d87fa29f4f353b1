use super::*;
use crate::fast::{EmulatedBase, FastTier, FastTierOptions};
use crate::relaxed::SharedBytes;

/// A machine on which DRAM takes what it took where Optane was measured.
const THERE: Machine = Machine { dram_line_ns: 81.0, line_flush_ns: 10.0, clock_ns: 0 };
/// Addresses that are no tier's: nothing there is looked at.
const FAR: u64 = 1 << 50;

fn processor<R>(f: impl FnOnce(&mut Processor) -> R) -> R {
    PROCESSOR.with_borrow_mut(f)
}

/// Nanoseconds from now until the bytes arrive.
fn fetched(emulation: &Emulation, address: u64, len: u64) -> u64 {
    emulation.with_processor(|processor| {
        let ready = emulation.fetch(processor, address, len);
        ready.saturating_sub(processor.seen_ns)
    })
}

/// Lets all that is under way arrive.
fn come_to_rest() {
    processor(|processor| {
        processor.in_flight = [0; LINES_IN_FLIGHT_MAX];
        processor.last_read = NO_UNIT;
    });
}

#[test]
fn optane_is_as_published_and_scaled_to_this_machine() {
    let model = PersistentMemoryModel::optane();
    let there = Emulation::new(&model, &THERE);
    assert_eq!((there.random_ns, there.sequential_ns), (305, 169), "in all, DRAM's own time included");
    assert_eq!(there.reads.cost_ns(256), 39, "256 bytes at 6.6 GB/s");
    assert_eq!(there.writes.cost_ns(2560), 1113, "2560 bytes at 2.3 GB/s");
    assert_eq!((there.slots, there.lines_in_flight), (4096, 10));
    let slower = Emulation::new(&model, &Machine { dram_line_ns: 162.0, ..THERE });
    assert_eq!((slower.random_ns, slower.sequential_ns), (610, 338), "as much longer than DRAM as there");
    let here = model.latency_here();
    let ratio = here.random_ns as f64 / here.dram_ns as f64;
    assert!((3.6..3.95).contains(&ratio), "{here:?}");
}

#[test]
fn a_random_read_takes_in_all_what_the_model_says_over_dram() {
    const READS: u64 = 64;
    let model = PersistentMemoryModel { read_latency_ns: 810, ..PersistentMemoryModel::optane() };
    let options = FastTierOptions { bytes_max: 4 << 20, ..FastTierOptions::default() };
    let tier = FastTier::emulated(EmulatedBase::Dram, model.clone(), &options).unwrap().into_bytes();
    tier.grow(4 << 20).unwrap();
    tier.populate(0, 4 << 20);
    // Each place depends on the byte read before it, which is zero, so that no two reads overlap.
    let read_all = || {
        let place = |n: u64| (n * 97 + 13) % 1024 * 4096;
        (0..READS).for_each(|n| tier.cool(place(n), 8));
        let begun = monotonic_ns();
        let mut zero = 0;
        for n in 0..READS {
            zero = u64::from(tier.read(place(n) + zero, 8)[0]);
        }
        std::hint::black_box(zero);
        (monotonic_ns() - begun) as f64 / READS as f64
    };
    let took = (0..200).map(|_| read_all()).fold(f64::INFINITY, f64::min);
    let wanted = model.latency_here().random_ns as f64;
    assert!(
        (0.95..1.12).contains(&(took / wanted)),
        "{took} ns where {:?} says {wanted}",
        model.latency_here()
    );
}

#[test]
fn lines_overlap_up_to_those_that_can_be_in_flight() {
    let model = PersistentMemoryModel { read_bandwidth: u64::MAX, ..PersistentMemoryModel::optane() };
    let emulation = Emulation::new(&model, &THERE);
    come_to_rest();
    assert_eq!(fetched(&emulation, FAR, 64), 305, "one line");
    come_to_rest();
    assert_eq!(fetched(&emulation, FAR + 4096, 640), 305, "ten lines, of three units in order");
    come_to_rest();
    assert_eq!(fetched(&emulation, FAR + 8192, 704), 305 + 169, "the eleventh waits for the first");
    come_to_rest();
    let now = monotonic_ns() + 1_000_000;
    let one = |_| processor(|processor| emulation.fetch_unit(processor, now, 1, false) - now);
    let arrive: Vec<u64> = (0..11).map(one).collect();
    assert!(arrive[..10].iter().all(|&after| after == 305), "ten places at once: {arrive:?}");
    assert_eq!(arrive[10], 610);
    come_to_rest();
}

#[test]
fn a_unit_in_order_is_cheaper_and_one_in_the_cache_is_free() {
    let emulation = Emulation::new(&PersistentMemoryModel::optane(), &THERE);
    come_to_rest();
    emulation.read(FAR + (1 << 22), 8);
    assert_eq!(fetched(&emulation, FAR + (1 << 22) + 248, 8), 0, "the same unit");
    assert_eq!(fetched(&emulation, FAR + (1 << 22) + 256, 8), 169);
    emulation.forget(FAR + (1 << 22), 512);
    come_to_rest();
    assert_eq!(fetched(&emulation, FAR + (1 << 22), 8), 305);
}

#[test]
fn all_threads_share_the_read_bandwidth() {
    let model = PersistentMemoryModel { read_bandwidth: 256_000_000, ..PersistentMemoryModel::optane() };
    let emulation = &Emulation::new(&model, &THERE);
    let begun = monotonic_ns();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || emulation.read(FAR + (thread << 30), 256 * 1000));
        }
    });
    let took = monotonic_ns() - begun;
    assert!(took >= 1_990_000, "2,000 units at a microsecond each took {took} ns");
}

#[test]
fn writes_into_the_same_unit_are_combined() {
    let emulation = Emulation::new(&PersistentMemoryModel::optane(), &THERE);
    let fresh = |address, len| emulation.record_written(address, len);
    assert_eq!(fresh(1 << 40, 1), 1, "a whole unit, however little of it is written");
    assert_eq!(fresh((1 << 40) + 100, 156), 0, "the rest of it is combined");
    assert_eq!(fresh((1 << 40) + 250, 8), 1, "across a border only the next unit is new");
    assert_eq!(fresh((1 << 40) + 256, 1024), 3, "the first of four was just written");
    assert_eq!(fresh(1 << 40, 0), 0);
}

#[test]
fn making_everything_durable_costs_a_write_back_of_what_was_stored() {
    let slow_flush = Machine { line_flush_ns: 1_000.0, ..THERE };
    let emulation = Emulation::new(&PersistentMemoryModel::optane(), &slow_flush);
    let timed = || {
        let begun = monotonic_ns();
        emulation.persist_all();
        monotonic_ns() - begun
    };
    emulation.write(FAR, 64 * 1000);
    emulation.persisted(FAR, 64 * 400);
    let (first, second) = (timed(), (0..50).map(|_| timed()).min());
    assert!(first >= 600_000, "600 lines at a microsecond: {first}");
    assert!(second.unwrap() < 100_000, "nothing was stored since");

    let narrow = PersistentMemoryModel { write_bandwidth: 10_000_000, ..PersistentMemoryModel::optane() };
    let emulation = Emulation::new(&narrow, &THERE);
    emulation.write(FAR + (1 << 30), 8 << 10);
    let begun = monotonic_ns();
    emulation.persist_all();
    assert!(monotonic_ns() - begun >= 700_000, "the buffer's 8 KiB at 10 MB/s");
}

#[test]
fn who_looks_at_bytes_is_charged_for_those() {
    let model = PersistentMemoryModel { read_latency_ns: 40_000_000, ..PersistentMemoryModel::optane() };
    let options = FastTierOptions { bytes_max: 1 << 20, ..FastTierOptions::default() };
    let tier = FastTier::emulated(EmulatedBase::Dram, model.clone(), &options).unwrap().into_bytes();
    tier.grow(1 << 20).unwrap();
    let timed = |f: &dyn Fn()| {
        let begun = monotonic_ns();
        f();
        monotonic_ns() - begun
    };
    let slow = model.latency_here().random_ns;
    tier.cool(0, 1 << 20);
    let view = tier.try_view(0, 1 << 20).unwrap();
    assert!(timed(&|| view.touch(4096..4104)) >= slow * 9 / 10, "a unit from the medium");
    assert!((0..9).map(|_| timed(&|| view.touch(4096..4104))).min().unwrap() < slow / 2, "from the cache");
    assert!(
        timed(&|| assert!(tier.try_read(8192, 8).is_some())) >= slow * 9 / 10,
        "a read is charged at once"
    );
    let mut own = [7; 8];
    let own = SharedBytes::of(&mut own);
    assert!((0..9).map(|_| timed(&|| own.touch(0..64))).min().unwrap() < slow / 2, "memory of nobody's");
    let address = view.frozen(0..1).as_ptr() as u64;
    drop(tier);
    assert!(!TIERS.read().unwrap().iter().any(|(range, _)| range.contains(&address)), "gone with the tier");
}

#[test]
fn extreme_models_do_not_overflow() {
    let model = PersistentMemoryModel {
        read_bandwidth: u64::MAX,
        write_bandwidth: 0,
        write_buffer_bytes: u64::MAX,
        cache_bytes: 0,
        lines_in_flight: 0,
        base_latency_ns: u64::MAX,
        ..PersistentMemoryModel::optane()
    };
    let emulation = Emulation::new(&model, &THERE);
    assert_eq!((emulation.random_ns, emulation.sequential_ns, emulation.slots), (0, 0, 1));
    assert_eq!(emulation.lines_in_flight, 1);
    emulation.write(0, 256);
    emulation.read(0, 512);
    emulation.prefetch(u64::MAX - 512, 100);
    let zero = PersistentMemoryModel { base_latency_ns: 0, ..model };
    assert!(Emulation::new(&zero, &THERE).random_ns > 0);
}
