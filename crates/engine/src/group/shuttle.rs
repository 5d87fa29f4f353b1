//! Interleavings of who fills the filter of groups and who looks, explored by `shuttle`. Run as `index/shuttle.rs` says.

use ::shuttle::thread;

use super::{FilterLook, GroupFilter};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, explore_store};

/// Keys that are there from the beginning, in group 1, and how many come.
const OLD: u64 = 6;
const NEW: u64 = 4;

fn hash(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Slots move to make room, and those of a group that has gone are taken: nobody is told that a key is nowhere whose group he sees.
#[test]
fn no_key_is_denied_while_slots_move_and_are_taken() {
    explore_store(2000, || {
        let filter = Arc::new(GroupFilter::for_keys(OLD, 1));
        (0..OLD).for_each(|n| filter.insert(hash(n), 1).expect("room"));
        // How many of the new keys are in, each in the group of number 2.
        let came = Arc::new(AtomicU64::new(0));
        let writer = {
            let (filter, came) = (Arc::clone(&filter), Arc::clone(&came));
            thread::spawn(move || {
                for n in 0..NEW {
                    if n == NEW / 2 {
                        filter.raise_watermark(2);
                    }
                    if filter.insert(hash(OLD + n), 2).is_err() {
                        return;
                    }
                    came.store(n + 1, Ordering::SeqCst);
                }
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (filter, came) = (Arc::clone(&filter), Arc::clone(&came));
                thread::spawn(move || {
                    for n in 0..OLD {
                        // He sees group 1, whether it has gone since or not.
                        assert_ne!(filter.look(hash(n), 1, 2), FilterLook::Nowhere, "{n}");
                    }
                    for n in 0..came.load(Ordering::SeqCst) {
                        assert_eq!(filter.look(hash(OLD + n), 2, 2), FilterLook::UpTo(2), "{n} of the new");
                    }
                })
            })
            .collect();
        readers.into_iter().chain([writer]).for_each(|thread| thread.join().expect("nothing fails"));
    });
}
