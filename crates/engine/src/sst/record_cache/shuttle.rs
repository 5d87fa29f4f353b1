//! Interleavings of looks, offers and moves, explored by `shuttle`. Run as `index/shuttle.rs` says.

use ::shuttle::thread;

use super::*;
use crate::log::format::{RecordKind, RecordSpec};
use crate::sync::explore_store;

/// The row of the key, of this sequence.
fn row(sequence: u64) -> FoundRecord {
    let spec = RecordSpec {
        kind: RecordKind::Row,
        flags: 0,
        table: 1,
        schema_version: 1,
        key: b"a",
        expires_at_ms: None,
        body_bytes: 8,
    };
    let mut bytes = vec![0; spec.record_bytes()];
    spec.encode_without_checksums(&mut bytes, sequence, |body| body.fill(0));
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight")));
    FoundRecord::first_of(SharedCopy::of(SharedBytes::of(&mut words.collect::<Vec<u64>>())))
}

/// What runs have of the key, and their generation; and what the index has let go of last.
struct Below {
    records: RecordCache,
    runs: Mutex<u64>,
    forgotten: AtomicU64,
}

impl Below {
    /// Step by step as `gc/moving.rs` does it.
    fn move_newer(&self) {
        let now = {
            let mut runs = self.runs.lock();
            *runs += 1;
            *runs
        };
        self.records.rise_to(now);
        if self.records.is_in_use() {
            self.records.forget(&SstKey::new(1, b"a"));
        }
        self.forgotten.store(now, Ordering::SeqCst);
    }

    /// As who asked the index first, and found nothing there.
    fn look(&self, epoch: &Epoch) {
        let key = SstKey::new(1, b"a");
        let guard = epoch.pin();
        let least = self.forgotten.load(Ordering::SeqCst);
        match self.records.get(&key, &guard) {
            Some(found) => {
                assert!(found[0].sequence() >= least, "{} of {least}", found[0].sequence());
            }
            None => {
                let runs = *self.runs.lock();
                self.records.offer(&key, &[row(runs)], runs);
            }
        }
    }
}

#[test]
fn a_key_that_left_the_index_is_answered_by_nothing_older() {
    explore_store(2000, || {
        let epoch = Arc::new(Epoch::new());
        let records = RecordCache::new(Arc::clone(&epoch), 1 << 20, 0);
        let below = Arc::new(Below { records, runs: Mutex::new(0), forgotten: AtomicU64::new(0) });
        let threads: Vec<_> = (0..4)
            .map(|who| {
                let (below, epoch) = (Arc::clone(&below), Arc::clone(&epoch));
                thread::spawn(move || match who {
                    0 => (0..2).for_each(|_| below.move_newer()),
                    1 => {
                        for _ in 0..3 {
                            below.records.take_in();
                        }
                    }
                    _ => (0..4).for_each(|_| below.look(&epoch)),
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("nothing fails"));
    });
}
