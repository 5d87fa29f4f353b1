use hedgerow_device::{Clock, CrashModel, CrashSim, Random};

use super::super::UNCOUNTED_MAX;
use super::super::tests::{Busy, FAST_BYTES, fields, opened, slots_of, small};
use super::*;
use crate::db::deleted::is_droppable_tombstone;
use crate::index::{LogSlot, Tag};
use crate::{Db, Options, Schema, Table, Type, row};

/// Of keys of which few are in memory.
fn with_checkpoints(index_bytes_max: u64, threads: usize) -> Options {
    let index_checkpoint_bytes = 512 << 10;
    Options { recovery_threads: threads, index_bytes_max, index_checkpoint_bytes, ..small() }
}

fn tables_of(db: &Db) -> Vec<Table> {
    (0..3).filter_map(|n| db.table(&format!("t{n}")).ok()).collect()
}

/// Opened by a checkpoint and by a walk a store is the same, with counts of what is there: however much was written, collected, moved and cleared since.
#[test]
fn a_store_that_was_killed_is_opened_as_by_a_walk() {
    let (mut checkpointed, mut exact) = (0, 0);
    for (seed, threads, index_bytes_max) in
        [(1, 1, 24 << 10), (2, 3, 32 << 10), (3, 2, 48 << 10), (4, 2, 20 << 10)]
    {
        let mut sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
        let clock = Clock::manual(1_000);
        let options = || with_checkpoints(index_bytes_max, threads);
        let walked_options = || Options { index_checkpoint_bytes: u64::MAX, ..options() };
        let db = Some(opened(&sim, &clock, options()));
        let mut busy = Busy { db, clock: clock.clone(), random: Random::from_seed(seed), next_table: 0 };
        for round in 0..40 {
            let steps = 200 + busy.random.below(2_000) as u32;
            busy.work(steps);
            let what = format!("seed {seed}, round {round}");
            let db = busy.db.take().unwrap();
            let before: Vec<_> = tables_of(&db).iter().map(fields).collect();
            let image = sim.process_kill();
            drop(db);
            let walked_sim = CrashSim::from_image(&image);
            let walked = opened(&walked_sim, &clock, walked_options());
            sim = CrashSim::from_image(&image);
            let db = opened(&sim, &clock, options());
            assert!(!walked.metrics().index_was_checkpointed);
            let is_checkpointed = db.metrics().index_was_checkpointed;
            checkpointed += u32::from(is_checkpointed);
            assert!(tables_of(&walked).iter().map(fields).eq(before.iter().cloned()), "walked: {what}");
            assert!(tables_of(&db).iter().map(fields).eq(before), "{what}");
            let (slots, of_walk) = (slots_of(&db), slots_of(&walked));
            let mut forgotten = BTreeMap::<u32, u64>::new();
            for (key, other) in &of_walk {
                let Some(slot) = slots.get(key) else {
                    // A walk finds again what had left the index without a trace.
                    let is_row = other.tag() == Tag::Row && other.expires();
                    assert!(is_row || is_droppable_tombstone(*other), "{what}: {key:?} {other:?} by a walk");
                    *forgotten.entry(key.0).or_default() += u64::from(is_row);
                    continue;
                };
                let (one, two) = (slot.in_log().unwrap(), other.in_log().unwrap());
                // A tombstone may be to hide what a group has, which a walk knows nothing of.
                let depth = |slot: LogSlot| if slot.tag() == Tag::Tombstone { 0 } else { slot.depth() };
                let of = |slot: LogSlot| (slot.offset(), slot.tag(), depth(slot), slot.expires());
                // Of two copies of a record a walk takes either.
                let number =
                    |slot: LogSlot| db.engine().log.pin().view().record(slot.offset()).unwrap().sequence();
                let places = (of(one), of(two));
                assert!(places.0 == places.1 || number(one) == number(two), "{what}: {places:?}");
                // A walk counts records that had left the index, too; `check_counts` knows of these.
                assert!(slot.older_versions() <= other.older_versions(), "{what}: {slot:?}, {other:?}");
                exact += u64::from(is_checkpointed && slot == other);
            }
            assert!(slots.keys().all(|key| of_walk.contains_key(key)), "{what}");
            for (one, other) in tables_of(&db).iter().zip(tables_of(&walked)) {
                let forgotten = forgotten.get(&one.shared().id.load(Ordering::Relaxed)).copied().unwrap_or(0);
                assert_eq!(one.len() + forgotten, other.len(), "rows, {what}");
                assert_eq!(one.expiring().rows + forgotten, other.expiring().rows, "{what}");
            }
            db.check_counts().unwrap();
            busy.db = Some(db);
        }
    }
    assert!(
        checkpointed > 20 && exact > 10_000,
        "{checkpointed} opened by checkpoints, {exact} slots the same"
    );
}

/// Where rows are all of one length a record comes to lie where another of its key lay, and its slot is the same word.
#[test]
fn a_record_in_the_place_of_one_of_its_key_stays() {
    let sim = CrashSim::new(CrashModel::Pages, FAST_BYTES);
    let clock = Clock::manual(1_000);
    let options = || with_checkpoints(1 << 20, 1);
    let db = opened(&sim, &clock, options());
    let table = db.create_table("t0", Schema::new().field("n", Type::I64).field("s", Type::String)).unwrap();
    let (text, mut checkpointed) = ("x".repeat(1_000), 0);
    for round in 0..120i64 {
        // As many as a segment takes, about, so that places come again.
        for key in 0..(40 + round as u64 % 3 * 90) {
            table.put(&key, &row! { n: round, s: text.as_str() }).unwrap();
        }
        db.collect().unwrap();
        let killed = opened(&CrashSim::from_image(&sim.process_kill()), &clock, options());
        checkpointed += u32::from(killed.metrics().index_was_checkpointed);
        assert_eq!(fields(&killed.table("t0").unwrap()), fields(&table), "round {round}");
        assert_eq!(killed.table("t0").unwrap().len(), table.len(), "round {round}");
        killed.check_counts().unwrap();
    }
    assert!(checkpointed > 60, "{checkpointed} opened by a checkpoint");
}

/// A checkpoint ends the segments of rows and of deltas that are open, two here: the next is due after eight times as many, and so is the one before of use until then.
#[test]
fn a_checkpoint_counts_until_the_next_is_due() {
    const BYTES: u64 = 16 << 20;
    let (sim, clock) = (CrashSim::new(CrashModel::Pages, BYTES), Clock::manual(1_000));
    let options = || Options { fast_tier_bytes_max: BYTES, ..with_checkpoints(1 << 20, 1) };
    let db = opened(&sim, &clock, options());
    let table = db.create_table("t0", Schema::new().field("n", Type::I64).field("s", Type::String)).unwrap();
    let (engine, text) = (table.engine(), "x".repeat(20_000));
    (0..30u64).for_each(|key| table.put(&key, &row! { n: 1, s: text.as_str() }).unwrap());
    table.update(&1u64, &row! { n: 2 }).unwrap();
    assert_eq!(engine.log.open_segments(), 2);
    db.collect().unwrap();
    assert!(engine.log.has_checkpoint());
    let (begun, next) = (engine.log.next_segment_number(), engine.next_checkpoint.load(Ordering::Relaxed));
    assert!(next > begun + 8, "four times 512 KiB are 8 segments; {next} is due, and {begun} was");
    let mut key = 30u64;
    while engine.log.next_segment_number() < next {
        assert!(!engine.checkpoint_index_if_due().unwrap());
        assert!(engine.log.has_checkpoint(), "{} of {next}", engine.log.next_segment_number());
        table.put(&key, &row! { n: 1, s: text.as_str() }).unwrap();
        key += 1;
    }
    let killed = opened(&CrashSim::from_image(&sim.process_kill()), &clock, options());
    assert!(killed.metrics().index_was_checkpointed);
    assert_eq!(fields(&killed.table("t0").unwrap()), fields(&table));
    killed.check_counts().unwrap();
    assert!(engine.checkpoint_index_if_due().unwrap(), "it is due");
}

/// Where more keys have lost count of their older records than may, a walk is to count them: nothing is ended for a checkpoint that would not count, and it is not tried soon again.
#[test]
fn no_segment_ends_for_a_checkpoint_in_vain() {
    const BYTES: u64 = 64 << 20;
    let (sim, clock) = (CrashSim::new(CrashModel::Pages, BYTES), Clock::manual(1_000));
    let db = opened(&sim, &clock, Options { fast_tier_bytes_max: BYTES, ..with_checkpoints(4 << 20, 1) });
    let table = db.create_table("t0", Schema::new().field("n", Type::I64)).unwrap();
    let engine = table.engine();
    let heat = |key: u64| (0..256i64).for_each(|n| table.put(&key, &row! { n: n }).unwrap());
    (0..UNCOUNTED_MAX).for_each(heat);
    assert!(engine.checkpoint_index_if_due().unwrap(), "so many may");
    heat(UNCOUNTED_MAX);
    engine.next_checkpoint.store(0, Ordering::Relaxed);
    let (open, begun) = (engine.log.open_segments(), engine.log.next_segment_number());
    assert!(open > 0 && engine.is_index_checkpoint_due());
    assert!(!engine.checkpoint_index_if_due().unwrap());
    assert_eq!((engine.log.open_segments(), engine.log.next_segment_number()), (open, begun));
    assert_eq!(engine.next_checkpoint.load(Ordering::Relaxed), begun + 8 * open, "as after one that counts");
}

/// Keys of 200 bytes take six times as much in the index as short ones: what was written since is not replayed where it has no room, and fewer of them are.
#[test]
fn long_keys_that_have_no_room_are_walked() {
    const BYTES: u64 = 64 << 20;
    for (rounds, fits) in [(100, false), (50, true)] {
        let (sim, clock) = (CrashSim::new(CrashModel::Pages, BYTES), Clock::manual(1_000));
        let options = || Options {
            fast_tier_bytes_max: BYTES,
            index_checkpoint_bytes: 8 << 20,
            ..with_checkpoints(1 << 20, 1)
        };
        let db = opened(&sim, &clock, options());
        let table = db.create_table("t0", Schema::new().field("n", Type::I64)).unwrap();
        let engine = table.engine();
        let put = |n: i64| {
            (0..700).for_each(|key| table.put(&format!("{key:0200}").into_bytes(), &row! { n: n }).unwrap());
        };
        // As long as one checkpoint and the next are apart.
        while !engine.is_index_checkpoint_due() {
            put(0);
        }
        assert!(engine.checkpoint_index_if_due().unwrap());
        (1..=rounds).for_each(put);
        assert!(engine.log.has_checkpoint());
        let killed = opened(&CrashSim::from_image(&sim.process_kill()), &clock, options());
        assert_eq!(killed.metrics().index_was_checkpointed, fits, "{rounds} rounds");
        assert_eq!(fields(&killed.table("t0").unwrap()), fields(&table));
        killed.check_counts().unwrap();
    }
}
