//! Some pairs of the table, whatever their keys are.
//!
//! Owns the steps of a walk: some buckets, then the objects that their slots lead to, then the parts of values that are in parts. Promises that a pair that is there throughout a walk comes at least once: as long as a key has a value it stays in one slot, and
//! that slot is read where look-ups read it, from the primary, or asked of the partition's proxy. Must not know what pairs are for.
//!
//! Of a partition that has a proxy memory nodes are not read: there the words run ahead of the change, so that a delete that is undone when its proxy crashes would hide a pair that nobody deleted, and a put show a value that never was.
//!
//! An object that does not verify proves nothing, so its slot is read again. One that never does is passed over in the end, and counted: its pair cannot be got either, and a walk that waited for it would never come to what is behind it.

use super::operation::{
    Next, Operation, Outcome, Request, Step, WalkRead, WalkStep, WalkedPair, WalkedParts,
};
use super::{Client, bytes_of};
use crate::bucket::{BUCKET_BYTES, BUCKET_SLOTS, slots_in_row, table_slots, walk_buckets};
use crate::fabric::{Batch, Nanos, PostResult, RemoteOp};
use crate::object::ObjectKind;
use crate::parts::PartList;
use crate::region::{MemoryNode, RemoteAddress, SlotId};
use crate::rpc::{IndexRpc, SlotAndWord, WORDS_MAX};

/// Objects that one step reads, and their bytes, at most, but one at least; half as much each time that they came too late.
const OBJECTS_MAX: usize = 128;
const OBJECT_BYTES_READ_MAX: usize = 256 << 10;
/// So often an object may not verify before it is passed over.
const UNVERIFIED_MAX: u32 = 16;

impl Client {
    /// Reads some buckets.
    pub(super) fn begin_walk(&mut self, operation: &mut Operation, from: SlotId, now: Nanos) -> Next {
        let buckets = walk_buckets(from.slot, self.layout.groups);
        if from.partition >= self.layout.partitions() || buckets.is_empty() {
            return Next::Finish(Outcome::Walked(Vec::new(), self.place(from.partition, u32::MAX)));
        }
        operation.learnt_at = now;
        if self.owner_of(operation).is_some() {
            return self.ask_range(operation, from);
        }
        let table = self.layout.table_address(from.partition);
        let Some(&primary) = self.replicas(table.region).as_deref().and_then(<[_]>::first) else {
            return Next::Finish(Outcome::Unavailable);
        };
        let at = RemoteAddress { offset: table.offset + buckets.start * BUCKET_BYTES as u32, ..table };
        let bytes = buckets.len() as u32 * BUCKET_BYTES as u32;
        operation.step = Step::WalkTable;
        Next::Post(vec![(primary, vec![RemoteOp::Read(at, bytes)])])
    }

    /// A slot of a partition, or the first of the next one; none at the end.
    fn place(&self, partition: u16, slot: u32) -> Option<SlotId> {
        if partition >= self.layout.partitions() {
            return None;
        }
        if slot < table_slots(self.layout.groups) {
            return Some(SlotId { partition, slot });
        }
        let next = partition + 1;
        (next < self.layout.partitions()).then_some(SlotId { partition: next, slot: 0 })
    }

    /// The buckets came, or the proxy's words.
    pub(super) fn table_came(
        &mut self,
        operation: &mut Operation,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        let Request::Walk(from, _) = operation.call.request else { return Next::Again };
        let buckets = walk_buckets(from.slot, self.layout.groups);
        let mut end = buckets.end * BUCKET_SLOTS as u32;
        let mut words: Vec<SlotAndWord> = if self.owner_of(operation).is_some() {
            let Some(IndexRpc::Words { words, .. }) = operation.reply.take() else {
                return self.again_soon(operation, now);
            };
            if let (WORDS_MAX.., Some((last, _))) = (words.len(), words.last()) {
                end = end.min(last.saturating_add(1));
            }
            words
        } else {
            let header = self.layout.bucket_header(from.partition);
            let bytes = bytes_of(results, 0, 0).unwrap_or_default();
            let Ok(slots) = slots_in_row(bytes, buckets.start, header) else {
                // Buckets of another partition, where this one's must be.
                self.counters.anomalies += 1;
                return Next::Finish(Outcome::Unavailable);
            };
            slots
        };
        words.retain(|(slot, word)| (from.slot..end).contains(slot) && word.as_live().is_some());
        let most = objects_in_step(&words, operation.attempts);
        if let Some((first_left, _)) = words.get(most) {
            end = *first_left;
            words.truncate(most);
        }
        let next = self.place(from.partition, end);
        let (reads, batches) = self.reads_of(&words);
        if reads.is_empty() {
            return Next::Finish(Outcome::Walked(Vec::new(), next));
        }
        operation.step = Step::WalkObjects(WalkStep { reads, next });
        Next::Post(batches)
    }

    /// The reads of the objects of all words, a batch for each memory node. Of what has no copy left nothing is read.
    fn reads_of(&self, words: &[SlotAndWord]) -> (Vec<WalkRead>, Vec<(MemoryNode, Batch)>) {
        let (mut reads, mut batches) = (Vec::new(), Vec::<(MemoryNode, Batch)>::new());
        for &(slot, word) in words {
            let Some((node, read)) = self.read_object(word) else { continue };
            let batch = batches.iter().position(|(to, _)| *to == node).unwrap_or(batches.len());
            if batch == batches.len() {
                batches.push((node, Batch::new()));
            }
            reads.push((slot, batch, batches[batch].1.len()));
            batches[batch].1.extend(read);
        }
        (reads, batches)
    }

    /// The objects came.
    pub(super) fn came_by(
        &mut self,
        operation: &mut Operation,
        step: &WalkStep,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        let Request::Walk(from, most) = operation.call.request else { return Next::Again };
        if !self.is_fresh(operation, now) {
            return self.again_soon(operation, now);
        }
        let mut walked = WalkedParts { pairs: Vec::new(), long: Vec::new(), next: step.next };
        let mut batches = Vec::new();
        let mut left = halved(OBJECT_BYTES_READ_MAX, operation.attempts);
        for &(slot, batch, op) in &step.reads {
            if walked.pairs.len() >= most.max(1) {
                walked.next = self.place(from.partition, slot);
                break;
            }
            let Some(object) = self.verified(bytes_of(results, batch, op).unwrap_or_default()) else {
                if operation.unverified < UNVERIFIED_MAX {
                    operation.unverified += 1;
                    return self.again_soon(operation, now);
                }
                self.counters.passed_over += 1;
                continue;
            };
            if object.kind == ObjectKind::Claim || !object.key.starts_with(&operation.call.key) {
                continue;
            }
            let (kind, generation) = (object.kind, object.generation);
            let (key, value) = (object.key.to_vec(), object.value.to_vec());
            if kind.is_indirect() {
                let bytes = PartList::decode(&value).map_or(0, |list| list.value_bytes);
                if bytes > left && !walked.long.is_empty() {
                    walked.next = self.place(from.partition, slot);
                    break;
                }
                left = left.saturating_sub(bytes);
                // It has no copy left.
                let Some(parts) = self.reads_of_parts(generation, &value, &mut batches) else {
                    self.counters.passed_over += 1;
                    continue;
                };
                walked.long.push((walked.pairs.len(), parts));
            }
            walked.pairs.push(WalkedPair { key, value, generation });
        }
        if walked.long.is_empty() {
            return Next::Finish(Outcome::Walked(walked.pairs, walked.next));
        }
        let bytes = walked.long.iter().map(|(_, parts)| parts.list.value_bytes).sum();
        if !self.takes_turn(operation, bytes) {
            return Next::AwaitTurn;
        }
        operation.step = Step::WalkParts(walked);
        Next::Post(batches)
    }

    /// The parts of the long values came. A pair whose parts never come whole is passed over like an object that never does.
    pub(super) fn walked_parts_came(
        &mut self,
        operation: &mut Operation,
        walked: WalkedParts,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        if !self.parts_are_fresh(operation, now) {
            return self.again_soon(operation, now);
        }
        let WalkedParts { mut pairs, long, next } = walked;
        let mut passed_over = Vec::new();
        for (at, parts) in &long {
            match self.put_together(parts, results) {
                Some(value) => pairs[*at].value = value,
                None if operation.unverified < UNVERIFIED_MAX => {
                    operation.unverified += 1;
                    return self.again_soon(operation, now);
                }
                None => passed_over.push(*at),
            }
        }
        self.counters.passed_over += passed_over.len() as u64;
        passed_over.into_iter().rev().for_each(|at| drop(pairs.remove(at)));
        Next::Finish(Outcome::Walked(pairs, next))
    }
}

/// A limit after so many attempts that came too late.
fn halved(most: usize, attempts: u32) -> usize {
    (most >> attempts.min(16)).max(1)
}

/// How many objects, of those that the words lead to, one step reads after so many attempts.
fn objects_in_step(words: &[SlotAndWord], attempts: u32) -> usize {
    let (objects, mut left) = (halved(OBJECTS_MAX, attempts), halved(OBJECT_BYTES_READ_MAX, attempts));
    let has_room = |(_, word): &&SlotAndWord| {
        let bytes = word.as_live().map_or(0, |live| live.object_bytes());
        let is_within = bytes <= left;
        left = left.saturating_sub(bytes);
        is_within
    };
    words.iter().take(objects).take_while(has_room).count().max(1)
}
