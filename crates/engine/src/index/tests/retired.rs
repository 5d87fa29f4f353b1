//! What is freed by who removes keys, and what he holds meanwhile.

use super::*;

/// Keys in order, of so many bytes.
fn keys(count: u64, bytes: usize) -> Vec<Vec<u8>> {
    let mut random = Random(bytes as u64);
    let mut tail = || (8..bytes).map(|_| random.next() as u8).collect::<Vec<u8>>();
    (0..count).map(|n| [&n.to_be_bytes()[..], &tail()].concat()).collect()
}

fn filled(arena: &Arc<NodeArena>, epoch: &Arc<Epoch>, keys: &[Vec<u8>]) -> Index {
    let index = Index::new(Arc::clone(arena), Arc::clone(epoch));
    keys.iter().for_each(|key| _ = put(&index, key, slot(1)));
    index
}

/// Whoever empties leaves does so under locks that others wait for, and has nothing to do with a table that was cleared: he frees a part of its tree now and then, however
/// large it is, whether keys are in nodes or in blobs.
#[test]
#[cfg_attr(miri, ignore = "so many keys take minutes")]
fn a_tree_that_was_cleared_is_freed_in_parts() {
    // Twice what one removal has freed: so many pieces, so many parts, and what the last node has.
    const MOST: u64 = 1_500 * arena::NODE_BYTES;
    for (count, bytes) in [(200_000, 16), (40_000, 300)] {
        let (arena, epoch) = fresh();
        let cleared = filled(&arena, &epoch, &keys(count, bytes));
        let of_cleared = cleared.bytes();
        assert!(of_cleared > 2 * MOST, "nothing is tested: {of_cleared} bytes");
        let others = keys(30_000, 16);
        let index = filled(&arena, &epoch, &others);
        cleared.clear();
        for key in &others {
            let before = arena.bytes();
            assert!(remove(&index, key).is_some());
            let freed = before.saturating_sub(arena.bytes());
            assert!(freed <= MOST, "{freed} bytes at once, of keys of {bytes}");
        }
        // What waits of the other one is among it.
        let left = arena.bytes() - index.bytes();
        assert!(left + (256 << 10) < of_cleared, "{left} bytes of {of_cleared} are left");
        while epoch.collect() > 0 {}
        assert_eq!(arena.bytes(), index.bytes() + cleared.bytes(), "all of it is freed in the end");
    }
}

/// Among what is freed by who unlinks nodes there may be anything. He holds none of them meanwhile, and not their parents: readers of many keys would wait.
#[test]
#[cfg_attr(miri, ignore = "so many keys take minutes")]
fn no_node_is_locked_while_garbage_is_freed() {
    const NODES: u32 = 4_000;
    let (arena, epoch) = fresh();
    let (within, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let look = || {
        let (arena, within, looks) = (Arc::clone(&arena), Arc::clone(&within), Arc::clone(&looks));
        epoch.defer(Box::new(move || {
            let locked: Vec<u32> = (1..NODES).filter(|id| arena.node(*id).is_locked()).collect();
            assert!(locked.is_empty(), "{locked:?} are locked");
            looks.fetch_add(u64::from(within.load(Ordering::Relaxed)), Ordering::Relaxed);
        }));
    };
    let keys = keys(40_000, 16);
    for joins in [false, true] {
        let index = filled(&arena, &epoch, &keys);
        let before = looks.swap(0, Ordering::Relaxed);
        assert!(before > 10 || !joins, "{before} looks while leaves went that were empty");
        for keys in keys.chunks(100) {
            look();
            within.store(true, Ordering::Relaxed);
            if joins {
                // Some stay in each leaf.
                let gone = keys.iter().enumerate().filter(|(n, _)| n % 20 > 0);
                let gone: Vec<(&[u8], Slot)> = gone.map(|(_, key)| (&key[..], slot(1))).collect();
                index.remove_in_order(&gone, &epoch.pin(), &mut vec![false; gone.len()]);
            } else {
                keys.iter().for_each(|key| assert!(remove(&index, key).is_some()));
            }
            within.store(false, Ordering::Relaxed);
        }
    }
    let of_joins = looks.load(Ordering::Relaxed);
    assert!(of_joins > 10, "{of_joins} looks while leaves were joined");
}
