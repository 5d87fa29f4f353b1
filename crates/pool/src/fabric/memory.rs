//! A memory node's bytes, and operations on them, in pieces.
//!
//! Owns the memory of one node, simulated or not. Promises that pieces end at words of 8 aligned bytes. Must not know of time.

use std::collections::BTreeMap;

use hedgerow_device::Random;
use hedgerow_row::le_bytes::u64_at;

use crate::fabric::{Batch, OpResult, PostError, PostResult, RemoteOp, is_within_limits};

/// A part of an operation: bytes from its beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    from: usize,
    to: usize,
}

impl Piece {
    pub(crate) fn whole(op: &RemoteOp) -> Piece {
        Piece { from: 0, to: op.extent().1 }
    }

    /// Up to four pieces; one of 8 bytes and of atomics.
    pub(crate) fn by_chance(op: &RemoteOp, random: &mut Random) -> Vec<Piece> {
        let (at, len) = op.extent();
        let words = len / 8;
        if op.is_atomic() || words < 2 || !at.offset.is_multiple_of(8) {
            return vec![Piece::whole(op)];
        }
        let mut cuts: Vec<usize> =
            (0..random.below(4)).map(|_| 8 * random.below(words as u64) as usize).collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|pair| Piece { from: pair[0], to: pair[1] }).collect()
    }
}

/// What is to become the result of an operation.
pub(crate) fn room_for(op: &RemoteOp) -> OpResult {
    match op {
        RemoteOp::Read(_, len) => OpResult::Bytes(vec![0; *len as usize]),
        RemoteOp::Write(..) => OpResult::Written,
        RemoteOp::CompareAndSwap(..) | RemoteOp::FetchAndAdd(..) => OpResult::Before(0),
    }
}

/// The bytes of a result, for a trace.
pub(crate) fn result_bytes(result: &PostResult, out: &mut Vec<u8>) {
    match result {
        Err(PostError::Lost) => out.push(1),
        Err(PostError::Fenced) => out.push(2),
        Err(PostError::OutOfBounds) => out.push(3),
        Ok(results) => {
            for result in results {
                match result {
                    OpResult::Bytes(bytes) => out.extend_from_slice(bytes),
                    OpResult::Written => out.push(4),
                    OpResult::Before(word) => out.extend_from_slice(&word.to_le_bytes()),
                }
            }
        }
    }
}

#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct NodeMemory {
    regions: BTreeMap<u16, Vec<u8>>,
}

impl NodeMemory {
    pub(crate) fn export(&mut self, region: u16, bytes: Vec<u8>) {
        self.regions.insert(region, bytes);
    }

    pub(crate) fn region(&self, region: u16) -> Option<&[u8]> {
        self.regions.get(&region).map(Vec::as_slice)
    }

    /// Whether the operation is inside of the memory, and aligned.
    pub(crate) fn has(&self, op: &RemoteOp) -> bool {
        let (at, len) = op.extent();
        let is_aligned = !op.is_atomic() || at.offset.is_multiple_of(8);
        let end = u64::from(at.offset) + len as u64;
        is_aligned && self.regions.get(&at.region).is_some_and(|bytes| end <= bytes.len() as u64)
    }

    /// Whether all operations of a batch are, and it is not too long.
    pub(crate) fn has_all(&self, batch: &Batch) -> bool {
        is_within_limits(batch) && batch.iter().all(|op| self.has(op))
    }

    /// Executes a piece of an operation that [`has`](NodeMemory::has) accepted.
    pub(crate) fn execute(&mut self, op: &RemoteOp, piece: Piece, result: &mut OpResult) {
        let (at, _) = op.extent();
        let start = at.offset as usize;
        let Some(bytes) = self.regions.get_mut(&at.region) else { return };
        let range = start + piece.from..start + piece.to;
        match (op, result) {
            (RemoteOp::Read(..), OpResult::Bytes(out)) => {
                out[piece.from..piece.to].copy_from_slice(&bytes[range]);
            }
            (RemoteOp::Write(_, data), _) => bytes[range].copy_from_slice(&data[piece.from..piece.to]),
            (RemoteOp::CompareAndSwap(_, old, new), OpResult::Before(before)) => {
                *before = u64_at(bytes, start);
                if before == old {
                    bytes[range].copy_from_slice(&new.to_le_bytes());
                }
            }
            (RemoteOp::FetchAndAdd(_, add), OpResult::Before(before)) => {
                *before = u64_at(bytes, start);
                bytes[range].copy_from_slice(&before.wrapping_add(*add).to_le_bytes());
            }
            _ => {}
        }
    }
}
