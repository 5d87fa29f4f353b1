//! What the log does by the clock, and with records of a kind that this build does not know.

use std::sync::Arc;

use hedgerow_device::{CrashModel, CrashSim, Survivors};

use super::format::{RecordKind, RecordSpec};
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
    let before = log.commit.lock().headers_at;
    append(log, 0);
    let stores = log.tier().crash_sim().unwrap().ops();
    log.persist_to(log.last_sequence()).unwrap();
    let stores = log.tier().crash_sim().unwrap().ops() - stores;
    let written = log.commit.lock().headers_at != before;
    assert_eq!(written, stores > 1, "a sync, and the headers if they were written: {stores}");
    written
}

/// What lies behind the last byte that an offset can say would be taken for what lies at the beginning.
#[test]
fn a_tier_that_is_too_long_is_refused() {
    open::check_length(format::RecordRef::OFFSET_END).unwrap();
    let refused = open::check_length(format::RecordRef::OFFSET_END + 1).unwrap_err();
    assert_eq!(refused.kind(), crate::ErrorKind::Invalid);
    assert!(refused.message().contains("35184372088832"), "{refused}");
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

/// Others who sync have headers written, and that puts off no checkpoint: who syncs at intervals writes the root as often as ever, and no more often.
#[test]
fn syncs_of_others_put_off_no_checkpoint() {
    let clock = Clock::manual(1_000_000);
    let log = open(&clock);
    let synced = || {
        assert!(!writes_headers(&log), "they were just written");
        log.persist_at_interval(log.last_sequence()).unwrap();
        log.checkpointed_sequence() == log.last_sequence()
    };
    for _ in 0..3 {
        clock.advance_ms(CHECKPOINT_INTERVAL.as_millis() as u64);
        assert!(writes_headers(&log), "by another, in time");
        assert!(log.checkpointed_sequence() < log.last_sequence());
        assert!(synced(), "now");
        assert!((0..20).all(|_| !synced()), "and not again");
    }
}

/// A root that could not be stored covers nobody: neither who wrote it, nor who waited for him.
#[test]
fn a_checkpoint_whose_root_was_refused_is_none() {
    let log = open(&Clock::manual(1_000_000));
    append(&log, 0);
    let last = log.last_sequence();
    // The sync is not refused; that of the root is.
    log.tier().crash_sim().unwrap().fail_persist_after(1, false);
    let kinds = [(); 2].map(|()| log.persist_checkpointed(last).unwrap_err().kind());
    assert_eq!((kinds, log.durable_sequence()), ([ErrorKind::Io, ErrorKind::Closed], last));
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

/// Of a row with these flags.
fn spec(flags: u8) -> RecordSpec<'static> {
    RecordSpec {
        kind: RecordKind::Row,
        flags,
        table: 1,
        schema_version: 1,
        key: b"key",
        expires_at_ms: None,
        body_bytes: 100,
    }
}

fn reserve<'a>(log: &'a Log, appender: &'a mut Appender, bytes: usize) -> Reservation<'a> {
    appender.reserve(log, segment::SegmentKind::Row, bytes, crate::space::Claim::Write).unwrap()
}

/// Appends a row with these flags; returns where it lies.
fn append(log: &Log, flags: u8) -> Range<u64> {
    let (spec, mut appender) = (spec(flags), log.appender());
    let reservation = reserve(log, &mut appender, spec.record_bytes());
    reservation.encode(&spec, |body| body.fill(1)).seal(log.take_sequence(), None);
    reservation.range()
}

/// What is sealed may be found, whether or not all that was reserved came to be.
#[test]
fn what_was_sealed_is_not_written_over_and_all_else_is() {
    let log = open(&Clock::manual(1_000_000));
    let (spec, mut appender) = (spec(0), log.appender());
    let bytes = spec.record_bytes() as u64;
    let reservation = reserve(&log, &mut appender, 3 * spec.record_bytes());
    let start = reservation.range().start;
    let sealed = reservation.encode(&spec, |body| body.fill(1)).seal(log.take_sequence(), None);
    let not_sealed = reservation.encode(&spec, |body| body.fill(2));
    assert_eq!((sealed.offset(), not_sealed.offset()), (start, start + bytes));
    let next = reserve(&log, &mut appender, spec.record_bytes());
    assert_eq!(next.range(), start + bytes..start + 2 * bytes);
    let unwritten = reserve(&log, &mut appender, spec.record_bytes());
    assert_eq!(unwritten.range().start, start + bytes);
}

/// Else the next segment could be written over.
#[test]
#[should_panic(expected = "no longer than what was reserved")]
fn no_record_goes_beyond_what_was_reserved() {
    let log = open(&Clock::manual(1_000_000));
    let (spec, mut appender) = (spec(0), log.appender());
    let reservation = reserve(&log, &mut appender, 2 * spec.record_bytes() - 8);
    _ = reservation.encode(&spec, |body| body.fill(1));
    _ = reservation.encode(&spec, |body| body.fill(2));
}

/// Else it would be written over the one that is being written.
#[test]
#[should_panic(expected = "no longer than what was reserved")]
fn no_record_is_encoded_within_another() {
    let log = open(&Clock::manual(1_000_000));
    let (spec, mut appender) = (spec(0), log.appender());
    let reservation = reserve(&log, &mut appender, 4 * spec.record_bytes());
    _ = reservation.encode(&spec, |_| {
        _ = reservation.encode(&spec, |body| body.fill(1));
    });
}

/// Else the first would count, torn.
#[test]
#[should_panic(expected = "in the order that they lie in")]
fn no_record_is_sealed_before_those_in_front_of_it() {
    let log = open(&Clock::manual(1_000_000));
    let (spec, mut appender) = (spec(0), log.appender());
    let reservation = reserve(&log, &mut appender, 2 * spec.record_bytes());
    let _first = reservation.encode(&spec, |body| body.fill(1));
    _ = reservation.encode(&spec, |body| body.fill(2)).seal(log.take_sequence(), None);
}

#[test]
#[should_panic(expected = "may have found a record that was sealed")]
fn nothing_that_was_sealed_is_cleared() {
    let log = open(&Clock::manual(1_000_000));
    let (spec, mut appender) = (spec(0), log.appender());
    let reservation = reserve(&log, &mut appender, spec.record_bytes());
    _ = reservation.encode(&spec, |body| body.fill(1)).seal(log.take_sequence(), None);
    _ = reservation.clear(&spec);
}

/// A log that ends with a record that is torn, and after it one with a flag that this build does not know; and where that lies.
fn with_unknown() -> (Log, u64) {
    let log = open(&Clock::manual(1_000_000));
    let torn = append(&log, 0);
    let unknown = append(&log, 64);
    log.tier.write(torn.start + 60, 8, |bytes| bytes.fill(0xEE));
    (log, unknown.start)
}

/// It is no end of the log that a crash has torn: what else there is behind it would be cut off.
#[test]
fn a_record_that_is_not_known_is_told_behind_a_torn_one() {
    let (log, at) = with_unknown();
    let (extent, ..) = log.segments()[0];
    let mut walk = log.walk(extent).unwrap();
    assert!(walk.next_record().unwrap().is_none(), "the first is torn");
    let error = walk.end().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Version);
    assert!(error.message().contains(&format!("at byte {at} of the fast tier has flags 64")), "{error}");
}

/// They are one gap, however many they are, and not looked into for what they might have been.
#[test]
fn what_a_newer_build_wrote_is_told_once() {
    let log = open(&Clock::manual(1_000_000));
    let first = append(&log, 64);
    let others: Vec<_> = (0..2_000).map(|_| append(&log, 64)).collect();
    let (extent, ..) = log.segments()[0];
    let salvaged = log.salvage_segment(extent, false).unwrap();
    let told: Vec<_> = salvaged.gaps.iter().filter(|gap| gap.unknown.is_some()).collect();
    assert_eq!(told.len(), 1, "{} gaps", told.len());
    assert_eq!(told[0].offset, first.start);
    assert!(told[0].bytes >= others.last().unwrap().start - first.start);
    assert!(salvaged.records.is_empty() && salvaged.gaps.iter().all(|gap| gap.record.is_none()));
}

/// Nor is it damage.
#[test]
fn what_is_not_known_of_a_damaged_log_is_told_as_that() {
    let (log, at) = with_unknown();
    let (extent, ..) = log.segments()[0];
    for power_cut in [false, true] {
        let salvaged = log.salvage_segment(extent, power_cut).unwrap();
        let errors: Vec<_> = salvaged.gaps.iter().map(|gap| gap.error()).collect();
        let told: Vec<_> = errors.iter().filter(|error| error.kind() == ErrorKind::Version).collect();
        assert_eq!(told.len(), 1, "{errors:?}");
        assert!(
            told[0].message().contains(&format!("byte {at} of the fast tier has flags 64")),
            "{}",
            told[0]
        );
    }
}

/// A sync lists what was written beside it, and what came before that is lost with the power: the opening that cuts the log there may be cut itself, anywhere.
#[test]
fn an_opening_that_cuts_below_the_list_may_be_cut_itself() {
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let options = || Options {
        durability: Durability::Process,
        segment_bytes: 1 << 20,
        background: false,
        ..Options::default()
    };
    let open = |sim: &CrashSim| crate::Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000));
    let db = open(&sim).unwrap();
    let table = db.create_table("t", crate::Schema::new().field("n", crate::Type::I64)).unwrap();
    let put = |table: &crate::Table, key: u64| table.put(&key, &crate::row! { n: key as i64 }).unwrap();
    (0..10).for_each(|key| put(&table, key));
    db.persist().unwrap();
    let log = &table.engine().log;
    // It has begun and asked for the last sequence; one write takes a sequence and gets no further, and the next is listed.
    log.take_sequence();
    put(&table, 10);
    let list = log.write_list();
    log.tier.persist_all().unwrap();
    {
        let mut root = log.root.lock();
        root.name_list(&log.tier, list);
        root.store(&log.tier).unwrap();
    }
    let image =
        sim.images_at(sim.ops(), 1, 4).into_iter().find(|image| image.survivors != Survivors::ProcessKill);
    let sim = CrashSim::from_image(&image.unwrap());
    drop((table, db));
    let reopened = open(&sim).unwrap();
    assert_eq!(reopened.table("t").unwrap().len(), 10, "what is behind the missing one is cut off");
    let mut walk = sim.walk();
    loop {
        for image in walk.images(&Survivors::EACH, 5) {
            let place = format!("after {} operations, {:?}", image.op_index, image.survivors);
            let again =
                open(&CrashSim::from_image(&image)).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(again.table("t").unwrap().len(), 10, "{place}");
        }
        if !walk.next_op() {
            break;
        }
    }
    drop(reopened);
}

/// The first sync after a kill seals what was found. Where it cannot, though the medium refuses nothing, no later one passes for it: the log takes no more writes, and says why.
#[test]
fn what_a_kill_left_is_sealed_or_nothing_is_synced() {
    let options = || Options {
        durability: Durability::Process,
        segment_bytes: 1 << 20,
        background: false,
        ..Options::default()
    };
    let open = |sim: &CrashSim| {
        let db = crate::Db::open_at(FastTier::simulated(sim), options(), Clock::manual(1_000)).unwrap();
        let schema = crate::Schema::new().field("n", crate::Type::I64);
        let table = db.table("t").or_else(|_| db.create_table("t", schema)).unwrap();
        (db, table)
    };
    let put = |table: &crate::Table, key: u64| table.put(&key, &crate::row! { n: key as i64 });
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let (db, table) = open(&sim);
    (0..10).for_each(|key| put(&table, key).unwrap());
    db.persist().unwrap();
    put(&table, 10).unwrap();
    let killed = CrashSim::from_image(&sim.process_kill());
    let (db, table) = open(&killed);
    put(&table, 11).unwrap();
    let log = &table.engine().log;
    let (list_at, bytes) = log.root().list_place();
    let list = log.tier.read(list_at, bytes as usize).to_vec();
    assert!(log.awaits_first_sync() && !list.is_empty(), "nothing is tested");
    log.tier.write(list_at, list.len(), |out| out.fill(0));
    let durable = log.durable_sequence();
    let first = log.persist_to(log.last_sequence()).unwrap_err();
    assert!(
        first.kind() == ErrorKind::Corrupted && first.message().contains("the list of segments"),
        "{first}"
    );
    assert_eq!((log.durable_sequence(), db.sync_failure()), (durable, None));
    let failure = db.write_failure().unwrap();
    assert!(failure.message.contains(first.message()), "{failure:?}");
    let refused = [db.sync(), db.persist(), put(&table, 12), log.persist_to(log.last_sequence())];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!((error.kind(), error.message()), (ErrorKind::Closed, failure.message.as_str()));
    }
    assert!(log.awaits_first_sync() && table.get(&11u64).unwrap().is_some());
    assert_eq!(db.clone().close().unwrap_err().kind(), ErrorKind::Closed);
    // It was read wrong, and is right.
    log.tier.write(list_at, list.len(), |out| out.copy_from_slice(&list));
    let (db, table) = open(&CrashSim::from_image(&killed.process_kill()));
    assert_eq!(table.len(), 12);
    db.persist().unwrap();
    assert!(!table.engine().log.awaits_first_sync());
    db.close().unwrap();
}

/// The root's lock is held while the root becomes durable, which takes as long as the disk likes.
#[test]
fn a_catalog_that_has_room_waits_for_nobody() {
    let log = open(&Clock::manual(1_000));
    log.make_room_for_catalog(10_000).unwrap();
    let root = log.root.lock();
    log.make_room_for_catalog(9_000).unwrap();
    log.make_room_for_catalog(10_000).unwrap();
    drop(root);
    let refused = log.make_room_for_catalog(1 << 40).unwrap_err();
    assert!(refused.message().contains("schemas take"), "{refused}");
}
