//! What sealing asks of others, and what it leaves to them.

use super::*;
use crate::gc::sealing::growth_to_seal;
use crate::gc::victims::Need;
use crate::scheduler::gc_state::MergeScope;

/// A store whose index is full to so many percent with keys that cannot be sealed, in segments of which three tenths are obsolete.
fn tight_with_expiring_keys(percent: u64) -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, small_index());
    let table = table_of(&db);
    let later = || Expiry::at_unix_ms(1_000_000_000);
    let put = |key: u64| table.put_expiring(&key, &row! { n: key }, later());
    let is_tight = || table.engine().arena.bytes() > INDEX_BYTES / 100 * percent;
    let keys = (0..).take_while(|key| !is_tight() && put(*key).is_ok()).count() as u64;
    (0..keys).filter(|key| key % 10 < 3).for_each(|key| put(key).unwrap());
    (sim, db, table)
}

#[test]
fn rows_are_not_copied_for_the_sake_of_keys_that_stay_young() {
    let (_sim, db, table) = tight_with_expiring_keys(80);
    let engine = table.engine();
    assert!(engine.is_index_tight() && engine.young_index_bytes() >= engine.seals_from());
    (0..20).for_each(|_| assert!(engine.run_gc(Need::Idle).is_ok()));
    assert_eq!(engine.gc.totals(), (0, 0), "nobody is short of room in the log");
    db.check_counts().unwrap();
}

/// A move has keys wait for it that a seal would make room for: it took out a GiB of the oldest rows, whose keys were sealed long ago, and writers stood still for twenty seconds.
#[test]
fn rows_move_for_the_index_where_seals_make_no_room_in_it() {
    let fill = |options: Options, expires: bool| {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let options = Options { capacity: Capacity::Beside, ..options };
        let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
        let table = table_of(&db);
        let expiry = if expires { Expiry::at_unix_ms(1_000_000_000) } else { Expiry::Never };
        let put = |key: u64| table.put_expiring(&key, &row! { n: key }, expiry).is_ok();
        let is_tight = || table.engine().arena.bytes() > INDEX_BYTES / 100 * 85;
        let keys = (0..).take_while(|key| !is_tight() && put(*key)).count() as u64;
        (db, table, keys)
    };
    let (db, table, keys) = fill(small_index(), false);
    let engine = table.engine();
    assert!(engine.is_index_tight() && engine.wants_seal());
    assert!(!engine.wants_move() && !engine.is_index_short(), "a seal makes room");
    // One is under way, of which nothing is known yet.
    let sealing = engine.gc.sealing.lock();
    assert!(!engine.wants_move() && !engine.awaits_index());
    drop(sealing);
    (0..3).for_each(|_| assert!(db.collect().is_ok()));
    assert_eq!((engine.gc.moves(), engine.gc.keys_sealed().0), (0, keys));

    let (db, table, _) = fill(small_index(), true);
    let engine = table.engine();
    (0..3).for_each(|_| assert!(db.collect().is_ok()));
    assert!(engine.gc.moves() > 0, "keys that expire are not sealed: they leave by a move alone");

    let (db, table, _) = fill(Options { seal: false, ..small_index() }, false);
    let engine = table.engine();
    assert!(engine.wants_move());
    db.collect().unwrap();
    assert!(engine.gc.moves() > 0);
}

/// A seal takes its extents at once: a writer that had not been held before stood still for half a second, until a move had ended.
#[test]
fn room_that_the_next_seal_takes_is_missed_before_it_takes_it() {
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
    let options = Options { capacity: Capacity::Beside, ..small_index() };
    let db = Db::open_at(tiers, options, Clock::manual(1_000)).unwrap();
    let table = table_of(&db);
    let engine = table.engine();
    let fill = |from: u64, until: u64| {
        let keys = (from..).take_while(|_| engine.young_index_bytes() < until);
        from + keys.map(|key| table.put(&key, &row! { n: key }).unwrap()).count() as u64
    };
    let halfway = fill(0, engine.seals_from() / 2 - 8192);
    assert_eq!(engine.leaf_extents_owed(), 0, "it is far");
    let keys = fill(halfway, engine.seals_from());
    assert!(engine.wants_seal());
    let wanted = || engine.landing_extents() + engine.leaf_extents_owed();

    let filler = db.create_table("filler", Schema::new().field("text", Type::String)).unwrap();
    let text = "x".repeat(60_000);
    for key in 0..1_000u64 {
        if engine.room().available <= wanted() {
            break;
        }
        filler.put(&key, &row! { text: text.as_str() }).unwrap();
    }
    assert_eq!(engine.missing_landing(), 0);
    filler.put(&1_000u64, &row! { text: text.as_str() }).unwrap();
    while engine.room().available == wanted() {
        filler.put(&1_000u64, &row! { text: text.as_str() }).unwrap();
    }
    assert!(engine.room().available >= engine.landing_extents() && engine.wants_move());

    let (before, owed) = (engine.room().available, engine.leaf_extents_owed());
    assert!(engine.seal_now(99) >= keys, "and those of the other table");
    let taken = before - engine.room().available;
    assert!((taken..=taken + 2).contains(&owed), "{owed} owed, {taken} taken");
    assert_eq!(engine.leaf_extents_owed(), 0);
}

#[test]
fn what_tombstones_of_a_tight_index_hide_is_freed() {
    let (_sim, db, table) = tight_with_expiring_keys(80);
    let engine = table.engine();
    let keys = table.len();
    (0..keys).filter(|key| key % 2 == 0).for_each(|key| assert!(table.delete(&key).unwrap()));
    let before = table.shared().levels.tombstones();
    assert!(engine.tombstones_wait_for_gc(), "{before} tombstones");
    (0..60).for_each(|_| assert!(engine.run_gc(Need::Idle).is_ok()));
    let after = table.shared().levels.tombstones();
    assert!(after < before / 2, "{after} of {before} tombstones are left");
    db.check_counts().unwrap();
}

/// It is in the log as a whole: what lies before the leaf's keys can be freed, and is.
#[test]
fn a_damaged_leaf_keeps_nothing_from_being_collected_by_hand() {
    let (sim, db, table) = few_sealed();
    let engine = table.engine();
    // A second group, and damage in each: merging them fails.
    (1_000..2_000u64).for_each(|key| table.put(&key, &row! { n: key }).unwrap());
    engine.seal_now(9);
    (0..30).for_each(|round| {
        (2_000..2_010u64).for_each(|key| table.put(&key, &row! { n: key + round }).unwrap());
        engine.seal_now(99);
    });
    for of in table.shared().levels.groups().newest_first() {
        let place = of.extents()[0].place();
        crate::tier::rot(&sim, place.at + 700, 0x10);
    }
    // Segments with nothing live in them.
    let other = db.create_table("other", Schema::new().field("text", Type::String)).unwrap();
    let text = "x".repeat(50_000);
    (0..40).for_each(|_| other.put(&1u64, &row! { text: text.as_str() }).unwrap());
    let free = engine.room().available;
    let told = db.collect().map(drop).map_err(|error| error.kind());
    assert_eq!(told, Err(ErrorKind::Corrupted), "the leaf is told of");
    assert!(engine.room().available > free, "and {free} free extents have become more");
}

/// Writers have what is left of the room, and are not told that the store is full while leaves are about to be free.
#[test]
fn a_merge_of_groups_leaves_writers_their_room() {
    let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
    let db = open(&sim, small_index());
    let table = table_of(&db);
    let engine = table.engine();
    // Leaves fill their extents: merged they take as many.
    let a_thousand = few_sealed().2.shared().levels.groups().l0()[0].group.bytes();
    let per_extent = engine.log.leaf_bytes_max() * 950 / a_thousand;
    for group in 0..3u64 {
        let keys = group * per_extent..(group + 1) * per_extent;
        keys.for_each(|key| with_room(&db, || table.put(&key, &row! { n: key })));
        engine.seal_now(99);
    }
    let groups = || table.shared().levels.groups().newest_first().count();
    assert_eq!(groups(), 3);
    let (text, low) = ("x".repeat(60_000), engine.room().low);
    let filler = db.create_table("filler", Schema::new().field("text", Type::String)).unwrap();
    for key in 0..1_000u64 {
        if engine.room().available <= low {
            break;
        }
        filler.put(&key, &row! { text: text.as_str() }).unwrap();
    }
    engine.merge_groups_where_wanted().unwrap();
    assert_eq!(groups(), 3, "there is room, but it is not for that");
    filler.clear().unwrap();
    while engine.room().available < low + 4 {
        assert!(db.collect().unwrap() > 0, "there is nothing in those segments");
    }
    engine.merge_groups_where_wanted().unwrap();
    assert_eq!(groups(), 1, "there is room for all of it");
    db.check_counts().unwrap();
}

#[test]
fn leaves_that_readers_hold_are_room_that_a_writer_may_wait_for() {
    let (_sim, _db, table) = few_sealed();
    let engine = table.engine();
    table.put(&5_000u64, &row! { n: 1u64 }).unwrap();
    engine.seal_now(9);
    assert!(!engine.may_gain_space());
    let guard = engine.log.pin();
    engine.seal_now(0);
    assert!(engine.may_gain_space(), "what was merged waits for a reader");
    drop(guard);
    engine.log.free_retired_leaves();
    assert!(!engine.may_gain_space());
    let merging = engine.gc.merging_groups.lock();
    assert!(engine.may_gain_space(), "a merge gives back what it takes");
    drop(merging);
}

/// Where a seal leaves much, what came since is looked at before new keys are refused; where it leaves all, not at each key.
#[test]
fn a_seal_comes_again_before_the_index_is_full() {
    let most = 1 << 20;
    for left in (0..most).step_by(1_000) {
        let growth = growth_to_seal(left, most);
        assert!((most / 256..=most / 16).contains(&growth));
        assert!(left + growth < most || left > most - most / 128, "{left}");
    }
    let state = crate::scheduler::gc_state::GcState::default();
    let left = |young_bytes| {
        let left = state.left_by_seal(young_bytes);
        (left.young_bytes, left.growth)
    };
    state.sealed(1_000, 100, 7);
    assert_eq!(left(1_500), (1_000, 100));
    assert_eq!(left(400), (400, 100), "a table was cleared");
    assert_eq!(left(1_500), (400, 100), "what came since is new");
    // Of a hundred bytes it takes out ten, then all.
    state.sealed(490, 100, 7);
    assert_eq!(left(1_500), (490, 200));
    state.sealed(690, 100, 7);
    assert_eq!(left(1_500), (690, 400));
    state.sealed(700, 100, 7);
    assert_eq!(left(1_500), (700, 100), "one that paid");
}

#[test]
fn a_merge_that_found_no_room_asks_for_more() {
    let state = crate::scheduler::gc_state::GcState::default();
    let lacked = |scope, table, emptied| state.merge_of_groups_lacked(scope, table, emptied);
    assert_eq!(lacked(MergeScope::All, 1, 5), None);
    state.record_merge_of_groups_lacked(MergeScope::All, 1, 20, (5, 12));
    assert_eq!((lacked(MergeScope::All, 1, 5), lacked(MergeScope::All, 2, 5)), (Some((20, 12)), None));
    assert_eq!(lacked(MergeScope::Some, 1, 5), None, "of fewer groups nothing is known");
    assert_eq!(lacked(MergeScope::All, 1, 6), None, "less may count by now");
}

/// As many groups as a table may have are merged, though as many may wait.
#[test]
fn a_table_that_gets_no_more_groups_has_them_merged() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, Options { groups_max: Some(64), ..small_index() });
    let table = table_of(&db);
    for key in 0..64u64 {
        table.put(&key, &row! { n: key }).unwrap();
        table.engine().seal_now(usize::MAX);
    }
    let groups = || table.shared().levels.groups().l0().len();
    assert_eq!(groups(), 64);
    table.engine().merge_groups_where_wanted().unwrap();
    assert_eq!(groups(), 0);
    let wrong = Db::open_at(
        FastTier::simulated(&sim),
        Options { groups_max: Some(65), ..small_index() },
        Clock::manual(1),
    );
    assert_eq!(wrong.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
}

/// However many groups it has, and however many young keys.
#[test]
fn a_table_that_cannot_be_merged_holds_up_no_other() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let db = open(&sim, small_index());
    let (held, other) =
        (table_of(&db), db.create_table("other", Schema::new().field("n", Type::U64)).unwrap());
    let engine = held.engine();
    for key in 0..64u64 {
        held.put(&key, &row! { n: key }).unwrap();
        engine.seal_now(usize::MAX);
    }
    let place = held.shared().levels.groups().l0()[0].group.extents()[0].place();
    crate::tier::rot(&sim, place.at + 700, 0x10);
    let (mut keys, bytes) = (1_000u64.., |table: &Table| table.shared().levels.young_bytes());
    while bytes(&held) < INDEX_BYTES * 7 / 20 {
        keys.by_ref().take(100).for_each(|key| held.put(&key, &row! { n: key }).unwrap());
    }
    while bytes(&other) < INDEX_BYTES * 6 / 20 {
        keys.by_ref().take(100).for_each(|key| other.put(&key, &row! { n: key }).unwrap());
    }
    assert_eq!(engine.merge_groups_where_wanted().unwrap_err().kind(), ErrorKind::Corrupted);
    engine.seal_if_wanted().unwrap();
    assert!(other.shared().levels.sealed_rows() > 0 && held.shared().levels.groups().l0().len() == 64);
}

/// Keys that cannot be sealed, more than half of the index: those that can are, and none of them is refused.
#[test]
fn keys_are_sealed_beside_many_that_cannot_be() {
    let (_sim, db, table) = tight_with_expiring_keys(96);
    let engine = table.engine();
    let refused = (1_000_000..1_060_000u64)
        .filter(|key| {
            let refused = table.put(key, &row! { n: *key }).is_err();
            engine.seal_if_wanted().unwrap();
            engine.merge_groups_where_wanted().unwrap();
            refused
        })
        .count();
    assert_eq!(refused, 0, "{} bytes of {INDEX_BYTES}", engine.arena.bytes());
    assert!(table.shared().levels.sealed_rows() > 40_000, "{}", table.shared().levels.sealed_rows());
    db.check_counts().unwrap();
}
