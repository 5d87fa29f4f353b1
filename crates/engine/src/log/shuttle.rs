//! Interleavings of the log, explored by `shuttle`: appending, group commit, checkpoints, closing, and a sync that fails.
//!
//! Run as `index/shuttle.rs` says. Extents have 64 KiB here and take three of the larger records, so that segments are sealed and
//! begun while others sync. A sync of the medium is one step of the model: what is stored before it is durable, and what comes
//! after is not.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use ::shuttle::rand::{Rng, thread_rng};
use ::shuttle::{check_pct, check_random, thread};
use hedgerow_device::{CrashModel, CrashSim, Image, Survivors};

use super::format::{RecordKind, RecordSpec};
use super::segment::SegmentKind;
use super::*;
use crate::space::Claim;
use crate::{Durability, Options};

const ROUNDS: usize = 400;

/// Bytes of a row: many of one go into an extent, and three of the other.
const SMALL: usize = 100;
const LARGE: usize = 20_000;

fn explore(test: fn()) {
    check_random(test, ROUNDS);
    check_pct(test, ROUNDS, 3);
}

/// A log, and what was written to it.
struct Written {
    log: Log,
    sim: CrashSim,
    /// By sequence, where the record lies.
    records: Mutex<BTreeMap<u64, Range<u64>>>,
}

fn options() -> Options {
    Options {
        durability: Durability::Immediate,
        segment_bytes: 64 << 10,
        fast_tier_bytes_max: 2 << 20,
        recovery_threads: 1,
        ..Options::default()
    }
}

fn open(sim: &CrashSim) -> Result<(Log, OpenState)> {
    Log::open(std::sync::Arc::new(FastTier::simulated(sim)), &options(), Clock::manual(1_000_000))
}

impl Written {
    /// A new log with so many appenders. Where writers wait for syncs there is one, else each task has its own.
    fn with_appenders(count: usize) -> Arc<Written> {
        let sim = CrashSim::new(CrashModel::Pages, 2 << 20);
        let (mut log, found) = open(&sim).expect("a new store");
        log.appenders = (0..count).map(|_| CachePadded(Mutex::new(Appender::default()))).collect();
        log.appenders_in_use.store(count, Ordering::Relaxed);
        log.recovered(Vec::new(), found.watermark, &found, false, None).expect("nothing to recover");
        Arc::new(Written { log, sim, records: Mutex::new(BTreeMap::new()) })
    }

    /// Appends a row, as every write does (`db/append.rs`). What it is published in is `records`.
    fn append(&self, body_bytes: usize) -> Result<u64> {
        let spec = RecordSpec {
            kind: RecordKind::Row,
            flags: 0,
            table: 1,
            schema_version: 1,
            key: b"key",
            expires_at_ms: None,
            body_bytes,
        };
        let bytes = spec.record_bytes();
        let mut appender = self.log.appender();
        let reservation = appender
            .reserve(&self.log, SegmentKind::Row, bytes, Claim::Write)
            .map_err(|no_space| no_space.into_error(&self.log))?;
        let record = reservation.encode(&spec, |body| body.fill(7));
        let sequence = self.log.take_sequence();
        // Others may get a turn here, as anywhere: nothing in the sealing would give them one.
        thread::yield_now();
        record.seal(sequence, None);
        self.records.lock().insert(sequence, reservation.range());
        Ok(sequence)
    }

    /// What a power cut leaves now of what was not synced: nothing.
    fn crash(&self) -> Image {
        let mut walk = self.sim.walk();
        walk.seek(u64::MAX);
        walk.image(Survivors::None, 0)
    }

    /// The record of every sequence up to `last` is in what a crash leaves now.
    fn check_durable(&self, last: u64) {
        // Before anybody else gets a turn.
        let image = self.crash();
        let records = self.records.lock();
        for sequence in 1..=last {
            let Some(Range { start, end }) = records.get(&sequence).cloned() else {
                panic!("{sequence} is durable, and was not even written")
            };
            let bytes = (end - start) as usize;
            assert!(
                image.read(start, bytes) == self.log.tier.read(start, bytes),
                "{sequence} is lost, and was durable"
            );
        }
    }
}

/// The sequences that a store has which a crash left so.
fn sequences_in(image: &Image) -> BTreeSet<u64> {
    let (log, found) = open(&CrashSim::from_image(image)).expect("what a crash leaves can be opened");
    let mut sequences = BTreeSet::new();
    for extent in found.segments {
        let mut walk = log.walk(extent).expect("a segment in use");
        while let Some(record) = walk.next_record().expect("nothing is corrupted") {
            sequences.insert(record.sequence());
        }
    }
    sequences
}

fn has_all(sequences: &BTreeSet<u64>, last: u64) -> bool {
    (1..=last).all(|sequence| sequences.contains(&sequence))
}

/// Two threads that each append so many records.
fn two_writers(written: &Arc<Written>, records: usize, body_bytes: usize) -> [thread::JoinHandle<()>; 2] {
    [(); 2].map(|()| {
        let written = written.clone();
        thread::spawn(move || (0..records).for_each(|_| written.append(body_bytes).map(drop).expect("room")))
    })
}

#[test]
fn what_a_group_commit_called_durable_survives() {
    explore(|| {
        let written = Written::with_appenders(1);
        let writers: Vec<_> = [SMALL, LARGE, LARGE]
            .map(|body_bytes| {
                let written = written.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let sequence = written.append(body_bytes).expect("room");
                        written.log.persist_to(sequence).expect("no sync fails");
                        written.check_durable(sequence);
                    }
                })
            })
            .into();
        let durable = written.log.durable_sequence();
        written.check_durable(durable);
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
        assert_eq!(written.log.durable_sequence(), 6);
        assert!(written.log.syncs() <= 7, "one each at most, and one of opening");
        assert!(has_all(&sequences_in(&written.crash()), 6));
    });
}

#[test]
fn a_failed_sync_is_told_to_all_who_wait_and_to_nobody_as_a_success() {
    explore(|| {
        let written = Written::with_appenders(1);
        written.sim.fail_persist_after(thread_rng().gen_range(0..3), false);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let written = written.clone();
                thread::spawn(move || {
                    let mut outcomes = Vec::new();
                    for _ in 0..2 {
                        let Ok(sequence) = written.append(SMALL) else { break };
                        let outcome = written.log.persist_to(sequence);
                        if outcome.is_ok() {
                            written.check_durable(sequence);
                        }
                        outcomes.push((sequence, outcome));
                    }
                    outcomes
                })
            })
            .collect();
        let outcomes: Vec<_> =
            writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect();
        let durable = written.log.durable_sequence();
        written.check_durable(durable);
        for (sequence, outcome) in outcomes {
            assert_eq!(outcome.is_ok(), sequence <= durable, "{sequence}: {outcome:?}, {durable}");
        }
        if written.log.tier().has_failed() {
            assert!(written.log.check_writable().is_err());
            assert!(written.log.persist_to(written.log.last_sequence() + 1).is_err());
        }
    });
}

#[test]
fn all_up_to_a_barrier_is_published() {
    explore(|| {
        let written = Written::with_appenders(3);
        let writers = two_writers(&written, 3, SMALL);
        for by_waiting in [false, true] {
            let last = if by_waiting { written.log.last_sequence() } else { written.log.barrier() };
            if by_waiting {
                written.log.wait_until_published(last).expect("no batch stopped");
            }
            let records = written.records.lock();
            assert!((1..=last).all(|sequence| records.contains_key(&sequence)), "not all up to {last}");
        }
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
        assert_eq!(written.log.barrier(), 6);
    });
}

#[test]
fn a_checkpoint_names_all_that_is_there() {
    explore(|| {
        let written = Written::with_appenders(3);
        let writers = two_writers(&written, 4, LARGE);
        let mut checkpointed = Vec::new();
        for _ in 0..2 {
            let last = written.log.checkpoint().expect("no sync fails");
            written.check_durable(last);
            checkpointed.push((written.sim.ops(), last));
        }
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
        // Wherever a crash falls, and whatever it leaves, the root does not promise more than there is.
        let ops = thread_rng().gen_range(1..=written.sim.ops());
        let kind = [Survivors::None, Survivors::Random, Survivors::All][thread_rng().gen_range(0..3)];
        let mut walk = written.sim.walk();
        walk.seek(ops);
        let last = checkpointed.iter().filter(|(by, _)| *by <= ops).map(|(_, last)| *last).max();
        if let Some(last) = last {
            assert!(
                has_all(&sequences_in(&walk.image(kind, ops)), last),
                "{kind:?} at {ops}: not all up to {last}"
            );
        }
    });
}

#[test]
fn what_was_written_when_the_log_is_closed_is_there_when_it_is_opened() {
    explore(|| {
        let written = Written::with_appenders(3);
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let written = written.clone();
                thread::spawn(move || {
                    let written = (0..3).map_while(|_| written.append(LARGE).ok());
                    written.last()
                })
            })
            .collect();
        written.log.close(|| false).expect("no sync fails");
        let image = written.crash();
        let last = writers.into_iter().filter_map(|writer| writer.join().expect("a writer")).max();
        let last = last.unwrap_or(0);
        assert!(written.append(LARGE).is_err(), "it is closed");
        assert_eq!(written.log.last_sequence(), last);
        assert!(has_all(&sequences_in(&image), last), "not all up to {last}");
        let (_, found) = open(&CrashSim::from_image(&image)).expect("a store");
        assert!(found.clean && found.watermark == last, "{found:?}, {last}");
    });
}

/// `Log::segments` is held over the space's pool: whoever looks at the segments in use finds each extent free, or in one of them.
#[test]
fn an_extent_is_free_or_in_one_segment_at_every_moment() {
    explore(|| {
        let written = Written::with_appenders(3);
        let writer = {
            let written = written.clone();
            thread::spawn(move || (0..7).for_each(|_| written.append(LARGE).map(drop).expect("room")))
        };
        let freer = {
            let written = written.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    for (extent, ..) in written.log.candidates() {
                        assert!(written.log.begin_gc(extent));
                        written.log.record_emptied([extent]);
                        written.log.free_segments(&[extent]).expect("no sync fails");
                        written.log.reuse(extent).expect("no sync fails");
                    }
                }
            })
        };
        for _ in 0..3 {
            let segments = written.log.segments.lock();
            let in_segments: u32 = segments.used.values().map(|segment| segment.extents).sum();
            assert_eq!(written.log.space.segment_extents(), in_segments);
            drop(segments);
            thread::yield_now();
        }
        writer.join().expect("a writer");
        freer.join().expect("who frees");
    });
}
