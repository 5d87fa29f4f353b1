//! Merges of some groups of a table, where there is no room for all.

use super::*;
use crate::Key;
use crate::gc::sealing::is_held;
use crate::gc::victims::Need;

const TIER_BYTES: u64 = 56 << 20;

fn small_tier() -> Options {
    Options { fast_tier_bytes_max: TIER_BYTES, ..small_index() }
}

/// Keys of a group: of the first their leaves take more than half of an extent, of those that come later little.
const fn keys_of(group: u64) -> u64 {
    if group < 64 { 3_000 } else { 200 }
}

fn key_of(group: u64, n: u64) -> String {
    format!("{n:08}-{group:032}")
}

/// So many keys are written in each group.
const SHARED: u64 = 30;

/// A store with a table of 64 groups, in each a few keys that all have, and that are deleted or written again, and others.
fn held(shared: u64) -> (CrashSim, Db, Table) {
    let sim = CrashSim::new(CrashModel::Pages, TIER_BYTES);
    let db = open(&sim, small_tier());
    let table = table_of(&db);
    for group in 0..super::super::GROUPS_HELD_AT as u64 {
        add_group(&table, group, shared);
    }
    assert!(is_held(table.shared()));
    (sim, db, table)
}

/// Key `n` of the shared ones is written in all groups; each third of them is deleted in every other.
fn add_group(table: &Table, group: u64, shared: u64) {
    for n in 0..keys_of(group) {
        table.put(key_of(group, n).as_str(), &row! { n: n }).unwrap();
    }
    for n in 0..shared {
        match n % 3 == 0 && group % 2 == 1 {
            true => assert!(table.delete(format!("shared{n}").as_str()).unwrap()),
            false => table.put(format!("shared{n}").as_str(), &row! { n: group }).unwrap(),
        }
    }
    assert!(table.engine().seal_now(usize::MAX) >= keys_of(group));
}

/// What is there once so many groups have come.
fn check(table: &Table, groups: u64) {
    let number = |key: &str| table.get_field(key, "n").unwrap().and_then(|n| n.borrow().as_u64());
    for group in 0..groups {
        for n in (0..keys_of(group)).step_by(397) {
            assert_eq!(number(&key_of(group, n)), Some(n), "{n} of {group}");
        }
    }
    for n in 0..SHARED {
        let is_deleted = n % 3 == 0 && (groups - 1) % 2 == 1;
        assert_eq!(number(&format!("shared{n}")), Some(groups - 1).filter(|_| !is_deleted), "{n}");
    }
    let deleted = if (groups - 1) % 2 == 1 { 10 } else { 0 };
    assert_eq!(table.len(), (0..groups).map(keys_of).sum::<u64>() + SHARED - deleted);
}

/// Rows of another table, of so many bytes, take all room but so many extents.
fn leave_room_of(db: &Db, extents: u32, bytes: usize) {
    let filler = match db.table("filler") {
        Ok(filler) => filler,
        Err(_) => db.create_table("filler", Schema::new().field("text", Type::String)).unwrap(),
    };
    let text = "x".repeat(bytes);
    for key in filler.len().. {
        if filler.engine().room().available <= extents {
            return;
        }
        filler.put(&key, &row! { text: text.as_str() }).unwrap();
    }
}

#[test]
fn without_room_for_all_groups_some_are_merged_and_sealing_goes_on() {
    let (sim, db, table) = held(SHARED);
    let (engine, levels) = (table.engine(), &table.shared().levels);
    let mut groups = 64;
    check(&table, groups);
    for _ in 0..3 {
        leave_room_of(&db, 8, 50_000);
        assert!(engine.tables_to_seal().is_empty(), "it is held");
        assert!(!engine.has_room_to_merge(table.shared(), &levels.groups()));
        engine.merge_groups_where_wanted().unwrap();
        let l0 = levels.groups().l0().len();
        assert!((30..62).contains(&l0), "{l0} groups are left");
        assert_eq!((levels.groups().l1().entries(), engine.log.has_retired_leaves()), (0, false));
        check(&table, groups);
        db.table("filler").unwrap().clear().unwrap();
        (0..20).for_each(|_| assert!(engine.collect_once(Need::Idle).is_ok()));
        while !is_held(table.shared()) {
            add_group(&table, groups, SHARED);
            groups += 1;
        }
        check(&table, groups);
    }
    assert!(groups > 70, "{groups} groups came");
    assert_eq!(table.scan().count() as u64, table.len());
    db.check_counts().unwrap();
    let killed = CrashSim::from_image(&sim.process_kill());
    drop(table);
    db.close().unwrap();
    for (sim, is_saved) in [(sim, true), (killed, false)] {
        let db = open(&sim, small_tier());
        let table = db.table("t").unwrap();
        assert_eq!(db.metrics().index_was_saved, is_saved);
        assert!(!is_saved || table.shared().levels.groups().l0().len() == 64);
        check(&table, groups);
        db.check_counts().unwrap();
    }
}

#[test]
fn where_no_merge_is_possible_nobody_waits_for_one() {
    let (_sim, db, table) = held(0);
    let engine = table.engine();
    // They fill segments, so that nothing is gained by emptying these.
    const BYTES: usize = 10_180;
    leave_room_of(&db, 12, BYTES);
    let put = |n: u64| table.put(format!("{n:08}{:x<190}", "").as_str(), &row! { n: n });
    (0..).take_while(|n| engine.arena.bytes() < INDEX_BYTES / 100 * 96 && put(*n).is_ok()).count();
    assert!(engine.waits_for_merge() && engine.may_gain_index_by_seal());
    leave_room_of(&db, 1, BYTES);
    assert!(!engine.may_gain_space(), "the test proves nothing where there is garbage in the log");
    engine.free_garbage();
    let waits = (engine.waits_for_merge(), engine.wants_seal(), engine.may_gain_index_by_seal());
    assert_eq!(waits, (false, false, false));
    engine.merge_groups_where_wanted().unwrap();
    assert_eq!(table.shared().levels.groups().l0().len(), 64);
    let refused = (100_000..).find_map(|n| put(n).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::Full);
    for part in ["table \"t\" has 64 groups", "takes 2 extents of 262144 bytes", "1048576", " are free"] {
        assert!(refused.to_string().contains(part), "{part:?} is not in: {refused}");
    }
}

/// A record that is older than one which is gone, and not hidden by the tombstone that came after it.
#[test]
fn what_is_gone_from_newer_groups_is_not_found_in_older_ones() {
    let sim = CrashSim::new(CrashModel::Pages, TIER_BYTES);
    let db = open(&sim, small_tier());
    let table = table_of(&db);
    let engine = table.engine();
    let fill = |from: u64| (from..from + 8_000).for_each(|n| table.put(&n, &row! { n: n }).unwrap());
    let is_in = |slot: crate::index::Slot, extent: u32| {
        slot.in_log().is_some_and(|slot| (slot.offset() / engine.log.extent_bytes()) as u32 == extent)
    };
    table.put("key", &row! { n: 1u64 }).unwrap();
    fill(0);
    engine.seal_now(usize::MAX);
    table.put("key", &row! { n: 2u64 }).unwrap();
    fill(20_000);
    engine.seal_now(usize::MAX);
    // What the newer group leads to is emptied, and the copy is deleted.
    let newer = table.shared().levels.locate("key".key_bytes().as_ref(), &engine.log.pin()).unwrap();
    engine.empty_segments(|extent| is_in(newer, extent));
    let copy = table.shared().levels.locate("key".key_bytes().as_ref(), &engine.log.pin()).unwrap();
    assert!(copy != newer && table.delete("key").unwrap());
    assert_eq!(table.shared().levels.tombstones_apart(), 1, "nothing is hidden by it");
    table.put(&0u64, &row! { n: 0u64 }).unwrap();
    engine.seal_now(usize::MAX);
    assert_eq!(table.shared().levels.groups().l0().len(), 3);
    engine.merge_in_l0_now(0..2);
    assert_eq!(table.shared().levels.groups().l0().len(), 2);
    assert!(table.get("key").unwrap().is_none());
    assert_eq!((table.len(), table.scan().count()), (16_000, 16_000));
    table.put("key", &row! { n: 3u64 }).unwrap();
    assert_eq!(table.len(), 16_001);
    engine.merge_groups_where_wanted().unwrap();
    engine.seal_now(0);
    assert_eq!((table.len(), table.scan().count()), (16_001, 16_001));
    db.check_counts().unwrap();
}
