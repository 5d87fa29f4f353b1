//! The queue from readers to the cache's worker: bounded, and nobody waits in it.
//!
//! Owns fixed-size requests, a table and a key each. Promises that [`Ring::push`] takes one attempt, that what cannot be
//! put in at once is dropped, and that what comes out is what one caller put in. Must not know what is asked for.
//!
//! A ring of cells with a turn number each (Vyukov's bounded queue; the paper asks for a lock-free ring, FOCUS section
//! V-C3). A cell whose turn is `t` is free for the push at position `t`; at `t + 1` it holds what was pushed there. Pushing
//! takes a position by compare-and-swap, fills the cell and gives it its next turn; there is one consumer.

use crate::sync::CachePadded;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Words of a key in a request.
const KEY_WORDS: usize = if cfg!(shuttle) { 1 } else { 7 };

/// Longer keys are not asked for.
pub(crate) const KEY_BYTES_MAX: usize = 8 * KEY_WORDS;

#[derive(Debug)]
struct Cell {
    turn: AtomicU64,
    /// Table in the upper half, bytes of the key in the lower.
    head: AtomicU64,
    key: [AtomicU64; KEY_WORDS],
}

/// A request: the row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) table: u32,
    key_bytes: u8,
    key: [u8; KEY_BYTES_MAX],
}

impl Request {
    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.key_bytes)]
    }
}

/// A lock-free ring; see the module.
#[derive(Debug)]
pub(crate) struct Ring {
    cells: Box<[Cell]>,
    pushed: CachePadded<AtomicU64>,
    /// Of the one consumer.
    popped: CachePadded<AtomicU64>,
}

impl Ring {
    /// An empty ring of `capacity` requests, a power of two from 2 on: with one cell, full and free would look alike.
    pub(crate) fn new(capacity: usize) -> Ring {
        assert!(capacity.is_power_of_two() && capacity > 1, "a capacity of {capacity}");
        let cell = |turn| Cell {
            turn: AtomicU64::new(turn),
            head: AtomicU64::new(0),
            key: [const { AtomicU64::new(0) }; KEY_WORDS],
        };
        Ring {
            cells: (0..capacity as u64).map(cell).collect(),
            pushed: CachePadded(AtomicU64::new(0)),
            popped: CachePadded(AtomicU64::new(0)),
        }
    }

    fn cell(&self, position: u64) -> &Cell {
        &self.cells[position as usize & (self.cells.len() - 1)]
    }

    /// Puts a request in; false if it was dropped: the ring is full, the key too long, or somebody else is at it.
    #[inline]
    pub(crate) fn push(&self, table: u32, key: &[u8]) -> bool {
        if key.len() > KEY_BYTES_MAX {
            return false;
        }
        let position = self.pushed.0.load(Ordering::Relaxed);
        let cell = self.cell(position);
        if cell.turn.load(Ordering::Acquire) != position {
            return false;
        }
        let taken =
            self.pushed.0.compare_exchange(position, position + 1, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_err() {
            return false;
        }
        cell.head.store(u64::from(table) << 32 | key.len() as u64, Ordering::Relaxed);
        for (word, bytes) in cell.key.iter().zip(key.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        cell.turn.store(position + 1, Ordering::Release);
        true
    }

    /// Takes the oldest request out. For one thread at a time.
    pub(crate) fn pop(&self) -> Option<Request> {
        let position = self.popped.0.load(Ordering::Relaxed);
        let cell = self.cell(position);
        if cell.turn.load(Ordering::Acquire) != position + 1 {
            return None;
        }
        let head = cell.head.load(Ordering::Relaxed);
        let mut request = Request { table: (head >> 32) as u32, key_bytes: head as u8, key: [0; _] };
        for (word, bytes) in cell.key.iter().zip(request.key.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        request.key[usize::from(request.key_bytes)..].fill(0);
        cell.turn.store(position + self.cells.len() as u64, Ordering::Release);
        self.popped.0.store(position + 1, Ordering::Relaxed);
        Some(request)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order_and_too_much_is_dropped() {
        let ring = Ring::new(4);
        assert_eq!(ring.pop(), None);
        for round in 0..10u32 {
            for i in 0..4 {
                assert!(ring.push(round, &[i; 3]));
            }
            assert!(!ring.push(round, b"one too many"));
            for i in 0..4 {
                let request = ring.pop().unwrap();
                assert_eq!((request.table, request.key()), (round, &[i; 3][..]));
            }
            assert_eq!(ring.pop(), None);
        }
    }

    #[test]
    fn keys_of_every_length_that_fits_are_kept() {
        let ring = Ring::new(2);
        for bytes in 1..=KEY_BYTES_MAX {
            let key: Vec<u8> = (0..bytes as u8).map(|i| i ^ 0xA5).collect();
            assert!(ring.push(u32::MAX, &key));
            assert_eq!(ring.pop().unwrap().key(), key);
        }
        assert!(!ring.push(1, &[0; KEY_BYTES_MAX + 1]));
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn threads_lose_and_tear_nothing_that_was_taken() {
        let ring = Ring::new(64);
        let put: u64 = std::thread::scope(|scope| {
            let pushers: Vec<_> = (1..4u32)
                .map(|table| {
                    let ring = &ring;
                    scope.spawn(move || {
                        let push = |n: u64| {
                            u64::from(
                                ring.push(table, &[n * u64::from(table); 5].map(u64::to_le_bytes).concat()),
                            )
                        };
                        (0..if cfg!(miri) { 20 } else { 20_000 }).map(push).sum::<u64>()
                    })
                })
                .collect();
            let mut popped = 0;
            let mut count = |request: Request| {
                let words: Vec<u64> =
                    request.key().chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
                assert!(words.iter().all(|&word| word == words[0]), "{words:?}");
                assert!(words[0].is_multiple_of(u64::from(request.table)));
                popped += 1;
            };
            while pushers.iter().any(|pusher| !pusher.is_finished()) {
                ring.pop().into_iter().for_each(&mut count);
            }
            // Only who joined them sees all that they did.
            let put: u64 = pushers.into_iter().map(|pusher| pusher.join().unwrap()).sum();
            std::iter::from_fn(|| ring.pop()).for_each(&mut count);
            assert_eq!(popped, put);
            put
        });
        assert!(put > 0);
    }
}
