use super::*;

/// Two channels of two dies, and round numbers: a page goes over a channel in 32,768 ns.
const MODEL: DriveModel = DriveModel {
    retrieve: crate::FrontCost { ns: 10, ps_per_byte: 0 },
    insert: crate::FrontCost { ns: 10, ps_per_byte: 0 },
    update: crate::FrontCost { ns: 10, ps_per_byte: 0 },
    long_key_ns: 0,
    channels: 2,
    dies_a_channel: 2,
    program_bytes: 32 << 10,
    program_ns: 1_000_000,
    read_ns: 50_000,
    erase_ns: 4_000_000,
    channel_ps_per_byte: 1_000,
    buffer_bytes: (2 << 20) + (128 << 10),
    erases_at_once: 4,
    erase_suspend_ns: None,
};
const PAGE: u64 = 32 << 10;
const TRANSFER: u64 = PAGE;

fn timeline(model: DriveModel) -> (Timeline, u64) {
    let geometry = Geometry { page_bytes: PAGE as u32, block_bytes: 512 << 10, blocks: 16 };
    (Timeline::new(model, geometry).unwrap(), geometry.block_offset(0) / UNIT_BYTES as u64)
}

fn start(timeline: &mut Timeline, tag: u64, work: &[FlashWork]) {
    timeline.start(tag, 10, &mut work.to_vec());
}

/// The tags that are complete, and when, until nothing is under way.
fn ends(timeline: &mut Timeline) -> Vec<(u64, u64)> {
    let mut ends = Vec::new();
    while let Some(tag) = timeline.run_to_next() {
        ends.push((tag, timeline.now_ns()));
    }
    ends
}

/// Units of a page.
fn page(first: u64, n: u64) -> u64 {
    first + n * PAGE / UNIT_BYTES as u64
}

#[test]
fn a_read_takes_the_die_and_the_channel_and_what_is_buffered_is_free() {
    let (mut timeline, first) = timeline(MODEL);
    let read = |n, bytes| FlashWork::Read { place: page(first, n), bytes };
    // Dies 0 and 2 share a channel; the third read waits for die 0, the last for both.
    for (tag, n) in [(1, 0), (2, 2), (3, 4), (4, 1)] {
        start(&mut timeline, tag, &[read(n, 1000)]);
    }
    assert_eq!(ends(&mut timeline), [(1, 51_010), (4, 51_040), (2, 52_010), (3, 101_010)]);
    start(&mut timeline, 5, &[FlashWork::Store { place: page(first, 8), bytes: 3200 }]);
    start(&mut timeline, 6, &[read(8, 3200)]);
    let now = timeline.now_ns();
    assert_eq!(ends(&mut timeline), [(5, now + 10), (6, now + 20)]);
    assert_eq!((timeline.counters().buffer_hits, timeline.counters().page_reads), (1, 4));
    // One that spans two pages waits for both.
    start(&mut timeline, 7, &[read(2, PAGE + 100)]);
    let now = timeline.now_ns();
    assert_eq!(ends(&mut timeline), [(7, now + 10 + 50_000 + PAGE)]);
}

#[test]
fn stores_are_complete_when_buffered_and_wait_when_programs_cannot_keep_up() {
    let (mut timeline, first) = timeline(MODEL);
    let pages = MODEL.buffer_bytes / PAGE;
    for n in 0..pages + 8 {
        start(&mut timeline, n, &[FlashWork::Store { place: page(first, n), bytes: PAGE }]);
    }
    let ends = ends(&mut timeline);
    assert!((0..pages + 8).eq(ends.iter().map(|&(tag, _)| tag)), "in the order of commands");
    for &(tag, at) in &ends[..pages as usize] {
        assert_eq!(at, (tag + 1) * 10);
    }
    // The first page is over the channel and programmed: then there is room for the next.
    assert_eq!(ends[pages as usize].1, 10 + TRANSFER + 1_000_000);
    assert_eq!(timeline.counters().stores_waited, 8);
    assert_eq!(timeline.counters().buffered_bytes_max, MODEL.buffer_bytes);
    while timeline.run_to_next().is_some() {}
    assert_eq!((timeline.counters().programs, timeline.buffered_bytes), (pages + 8, 0));
}

#[test]
fn a_read_waits_for_a_program_and_goes_before_the_next() {
    let (mut timeline, first) = timeline(MODEL);
    for n in [0, 4] {
        start(&mut timeline, n, &[FlashWork::Store { place: page(first, n), bytes: PAGE }]);
    }
    start(&mut timeline, 9, &[FlashWork::Read { place: page(first, 8), bytes: 100 }]);
    // Both programs and the read are for die 0.
    let ends = ends(&mut timeline);
    assert_eq!(ends.last(), Some(&(9, 10 + TRANSFER + 1_000_000 + 50_000 + 100)));
    // The second program has the channel after the read.
    assert_eq!(timeline.now_ns(), ends.last().unwrap().1 + TRANSFER + 1_000_000);
}

#[test]
fn an_erase_takes_its_dies_and_makes_way_for_reads_if_the_model_says_so() {
    for (suspend, expected, end) in [
        (None, 4_000_010 + 50_000 + 100, 4_050_010),
        (Some(20_000), 1_000_010 + 20_000 + 50_000 + 100, 4_000_010 + 70_000),
    ] {
        let (mut timeline, first) = timeline(DriveModel { erase_suspend_ns: suspend, ..MODEL });
        start(&mut timeline, 1, &[FlashWork::Erase { place: page(first, 16) }]);
        timeline.run_to_next();
        timeline.start(2, 1_000_000, &mut vec![FlashWork::Read { place: first, bytes: 100 }]);
        assert_eq!(timeline.run_to_next(), Some(2));
        assert_eq!(timeline.now_ns(), expected);
        assert_eq!(timeline.run_to_next(), None);
        assert_eq!(timeline.now_ns(), end.max(expected), "the erase has what it had left");
        assert_eq!(timeline.counters().die_erases, 4);
    }
}

/// A block's last page is filled up, and its footer's pages are programmed; what lies between is not. What gc copies from one page is one read.
#[test]
fn footers_and_copies_are_programmed() {
    let (mut timeline, first) = timeline(MODEL);
    let store = FlashWork::Store { place: first, bytes: PAGE + 320 };
    let end = page(first, 1) + 10;
    start(&mut timeline, 1, &[store, FlashWork::Seal { end, footer_bytes: PAGE + 1 }]);
    ends(&mut timeline);
    assert_eq!((timeline.counters().programs, timeline.buffered_bytes), (4, 0));
    let copy = |n| FlashWork::Copy { from: first + n, place: page(first, 16) + n, bytes: 32 };
    let copies: Vec<FlashWork> = (0..PAGE / 32).map(copy).collect();
    start(&mut timeline, 2, &copies);
    ends(&mut timeline);
    assert_eq!((timeline.counters().programs, timeline.counters().copy_reads), (5, 1));
    assert_eq!(timeline.buffered_bytes, 0);
}

#[test]
fn a_device_with_other_pages_is_refused() {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 512 << 10, blocks: 16 };
    assert!(matches!(Timeline::new(MODEL, geometry), Err(KvError::Param { .. })));
}

/// One die erases after another, so that three of four can be programmed; but a die that has a page of the block's next life to program erases at once.
#[test]
fn erases_of_a_block_go_from_die_to_die() {
    let (mut timeline, first) = timeline(DriveModel { erases_at_once: 1, ..MODEL });
    start(&mut timeline, 1, &[FlashWork::Erase { place: first }]);
    assert_eq!(timeline.run_to_next(), Some(1));
    assert_eq!((timeline.counters().die_erases, timeline.erases.len()), (1, 3));
    // Die 3 would have its turn after 12 ms. By the end of this front stage it has erased and programmed.
    start(&mut timeline, 2, &[FlashWork::Store { place: page(first, 3), bytes: PAGE }]);
    let front_ns = 4_000_000 + TRANSFER + 1_000_000 + 100;
    timeline.start(3, front_ns, &mut vec![FlashWork::Read { place: page(first, 3), bytes: 32 }]);
    assert_eq!(ends(&mut timeline).last(), Some(&(3, 20 + front_ns + 50_032)), "it is not buffered any more");
    assert_eq!((timeline.counters().die_erases, timeline.counters().erases_hurried), (4, 1));
    assert!(timeline.now_ns() > 12_000_000, "the others took their turns");
}
