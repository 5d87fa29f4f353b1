//! Keys that are not to be stored: they take no memory, however full the index is.

use super::super::*;
use super::slot;

/// What is kept apart is changed, and what is not there is found not to be, where no key more has room: in a full leaf, beside a key too long for one, and where no leaf is.
#[test]
#[cfg_attr(miri, ignore = "too slow")]
fn keys_that_are_not_stored_take_no_memory() {
    let (epoch, arena) = (Arc::new(Epoch::new()), Arc::new(NodeArena::new(256 << 10).unwrap()));
    let index = Index::new(Arc::clone(&arena), Arc::clone(&epoch));
    let store = |n: u64| (Decision::Store(slot(n)), ());
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().repeat(4);
    let mut last = 0;
    for n in 1.. {
        let guard = epoch.pin();
        match index.upsert(&key(n), &guard, |_| store(n)) {
            Ok(()) => last = n,
            Err(_) => break,
        }
    }
    // Whole leaves go.
    let removed: Vec<Vec<u8>> = (1..=last).map(key).filter(|key| key[0] < 64).collect();
    for key in &removed {
        let guard = epoch.pin();
        index.upsert(key, &guard, |_| (Decision::Remove, ())).unwrap();
    }
    let is_refused = |n: &u64| index.upsert(&key(*n), &epoch.pin(), |_| store(*n)).is_err();
    let refused = (last + 1..last + 4_000).filter(|n| key(*n)[0] >= 64).filter(is_refused).count();
    assert!(refused > 100, "{refused}");
    let (mut asked, mut without_leaf, before) = (0, 0, index.bytes());
    for n in 1..last + 4_000 {
        for key in [key(n), key(n).repeat(100)] {
            let guard = epoch.pin();
            let there = index.get(&key, &guard);
            let seen = index.upsert_at(&key, None, NewKey::NotStored, &guard, |now| (Decision::Keep, now));
            assert_eq!(seen, Ok(there));
            asked += u32::from(there.is_none());
            without_leaf += u32::from(matches!(index.view(&guard).leaf(&key), Ok(None)));
        }
    }
    assert!(asked > 4_000 && without_leaf > 100, "{asked}, {without_leaf} of them without a leaf");
    assert_eq!(index.bytes(), before);
    let guard = epoch.pin();
    let absent = &removed[0];
    assert_eq!(index.get(absent, &guard), None);
    let stored = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        _ = index.upsert_at(absent, None, NewKey::NotStored, &guard, |_| store(1));
    }));
    assert!(stored.is_err(), "it is not to be stored");
    let now = index.upsert_at(absent, None, NewKey::NotStored, &guard, |now| (Decision::Keep, now));
    assert_eq!(now, Ok(None), "nobody holds what was locked for it");
}

/// A tree of which all keys went has a leaf still, whatever it was built of and however they went: what is not to be stored in it finds something to lock.
#[test]
fn an_emptied_tree_takes_no_memory_to_look_into() {
    let (epoch, arena) = (Arc::new(Epoch::new()), Arc::new(NodeArena::new(256 << 10).unwrap()));
    let index = Index::new(Arc::clone(&arena), Arc::clone(&epoch));
    let built = IndexBuilder::new(Arc::clone(&arena), Arc::clone(&epoch), 100).finish_with_leaf().unwrap();
    for n in 0..1_000u64 {
        index.upsert(&n.to_be_bytes(), &epoch.pin(), |_| (Decision::Store(slot(n)), ())).unwrap();
    }
    for n in 0..1_000u64 {
        index.upsert(&n.to_be_bytes(), &epoch.pin(), |_| (Decision::Remove, ())).unwrap();
    }
    while epoch.collect() > 0 {}
    assert_eq!((index.len(), index.bytes()), (0, 1024));
    let all = arena.reserve((256 << 10) - arena.bytes(), Budget::Deletes).unwrap();
    for tree in [&index, &built] {
        let guard = epoch.pin();
        let look =
            |key: &[u8]| tree.upsert_at(key, None, NewKey::NotStored, &guard, |now| (Decision::Keep, now));
        assert_eq!(look(b"key"), Ok(None));
        assert!(
            tree.upsert(&[7; 300], &guard, |_| (Decision::Store(slot(1)), ())).is_err(),
            "there is no memory"
        );
    }
    drop(all);
    for tree in [&index, &built] {
        (0..1_000u64).for_each(|n| {
            tree.upsert(&n.to_be_bytes(), &epoch.pin(), |_| (Decision::Store(slot(n)), ())).unwrap();
        });
        assert_eq!(tree.len(), 1_000);
    }
}
