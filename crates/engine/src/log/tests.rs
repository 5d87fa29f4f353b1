//! What the log does by the clock.

use std::sync::Arc;

use hedgerow_device::{CrashModel, CrashSim};

use super::*;
use crate::{Durability, Options};

fn open(clock: &Clock) -> Log {
    let options = Options { durability: Durability::Immediate, segment_bytes: 1 << 20, ..Options::default() };
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let (log, found) = Log::open(Arc::new(FastTier::simulated(&sim)), &options, clock.clone()).unwrap();
    log.recovered(Vec::new(), found.watermark, &found, false, None).unwrap();
    // The first record takes a segment into use.
    log.appender().reserve(&log, segment::SegmentKind::Row, 512, crate::space::Claim::Write).unwrap();
    log
}

/// Has the next sequence synced, as a write in `Immediate` does; whether headers were brought up to date with it.
fn writes_headers(log: &Log) -> bool {
    let before = log.commit.lock().checkpointed_at;
    let stores = log.tier().crash_sim().unwrap().ops();
    let mut appender = log.appender();
    let reservation =
        appender.reserve(log, segment::SegmentKind::Row, 512, crate::space::Claim::Write).unwrap();
    let sequence = log.take_sequence();
    appender.commit(reservation, sequence);
    drop(appender);
    log.persist_to(sequence).unwrap();
    let stores = log.tier().crash_sim().unwrap().ops() - stores;
    let written = log.commit.lock().checkpointed_at != before;
    assert_eq!(written, stores > 1, "a sync, and the headers if they were written: {stores}");
    written
}

#[test]
fn headers_are_checkpointed_by_the_clock_of_the_store() {
    let clock = Clock::manual(1_000_000);
    let log = open(&clock);
    let interval = CHECKPOINT_INTERVAL.as_millis() as u64;
    assert!((0..20).all(|_| !writes_headers(&log)), "the clock stands");
    clock.advance_ms(interval - 1);
    assert!(!writes_headers(&log), "not yet");
    clock.advance_ms(1);
    assert!(writes_headers(&log), "now");
    assert!((0..20).all(|_| !writes_headers(&log)), "and not again");
}

/// Set back by an hour, the clock puts nothing off for an hour.
#[test]
fn a_clock_that_steps_back_does_no_harm() {
    let clock = Clock::manual(10_000_000);
    let log = open(&clock);
    clock.advance_ms(3_600_000u64.wrapping_neg());
    assert!(writes_headers(&log), "what was written is of another time");
    assert!(!writes_headers(&log));
    clock.advance_ms(CHECKPOINT_INTERVAL.as_millis() as u64);
    assert!(writes_headers(&log));
    // By less than the interval: put off by no more than that.
    clock.advance_ms(500u64.wrapping_neg());
    assert!(!writes_headers(&log));
    clock.advance_ms(500 + CHECKPOINT_INTERVAL.as_millis() as u64);
    assert!(writes_headers(&log));
}
