//! Values in parts: reading and writing them.
//!
//! Owns the batches that parts come and go with, and what a reader makes of them. Promises that a value is put together only of the parts that its object lists, each whole and of that object's generation, and only within half of the
//! quarantine after the moment at which the object was certainly in the index: parts wait as long as the object does. Must not know how an object is found.
//!
//! Nothing of a value is read before the object that lists its parts: a read takes one round more than that of a value in its object. A write takes none more, since all parts are written beside the object, and no slot leads to it before
//! all copies have everything.
//!
//! So many parts are read at a time that they come in time: whoever finds a list while others read as much as there may be waits for its turn, in the order of the calls, and looks at the slot again then, since what the list says is too old. Where parts came too late
//! it is half as much from then on, and more again with each value that came.

use super::operation::{Holder, Next, Operation, Outcome, OwnObject, OwnPart, PartReads, Step};
use super::{Client, ClientAnswer, LONG_BYTES_MAX, bytes_of};
use crate::fabric::{Batch, Nanos, PostResult, RemoteOp};
use crate::machine::Out;
use crate::object::{Generation, Object, ObjectKind};
use crate::parts::{ListedPart, PartList, ValuePlace, bytes_of_part};
use crate::region::MemoryNode;

/// A batch reads and writes about so many bytes at most, so that nobody else waits for long at a memory node.
const BATCH_AIM_BYTES: usize = 256 << 10;

/// Adds an operation to the last batch for its node, or to a new one if that has enough; which batch, and which operation of it.
fn push_op(batches: &mut Vec<(MemoryNode, Batch)>, node: MemoryNode, op: RemoteOp) -> (usize, usize) {
    let bytes = |batch: &Batch| batch.iter().map(|op| op.extent().1).sum::<usize>();
    let room = BATCH_AIM_BYTES.saturating_sub(op.extent().1);
    let last = batches.iter().rposition(|(to, _)| *to == node);
    let at = last.filter(|&at| bytes(&batches[at].1) <= room).unwrap_or(batches.len());
    if at == batches.len() {
        batches.push((node, Batch::new()));
    }
    batches[at].1.push(op);
    (at, batches[at].1.len() - 1)
}

impl Client {
    /// An object with memory of its own, and its parts with theirs, not written yet. None: there is not enough memory, and nothing of it is taken.
    pub(super) fn new_object(
        &mut self,
        key: &[u8],
        value: &[u8],
        kind: ObjectKind,
        now: Nanos,
    ) -> Option<OwnObject> {
        let units = match self.sizes.place(key.len(), value.len()).ok()? {
            ValuePlace::Parts(units) => {
                return self.new_indirect_object(key, value, kind.with_parts(), units, now);
            }
            ValuePlace::Inside(units) => units,
        };
        let address = self.slab.allocate(units, now)?;
        let generation = self.next_generation();
        let bytes = Object { kind, generation, slot: 0, key, value }.encode().ok()?;
        Some(OwnObject { address, generation, units, bytes, parts: Vec::new(), written_in: None })
    }

    fn new_indirect_object(
        &mut self,
        key: &[u8],
        value: &[u8],
        kind: ObjectKind,
        units: u8,
        now: Nanos,
    ) -> Option<OwnObject> {
        let values = self.sizes.parts(value);
        let sizes =
            values.clone().map(|value| crate::object::object_units(0, value.len()).unwrap_or(u8::MAX));
        let (address, places) = self.slab.allocate_with_parts(units, sizes.clone(), now)?;
        let generation = self.next_generation();
        let mut parts = Vec::with_capacity(places.len());
        for ((slot, value), &address) in (0..).zip(values).zip(&places) {
            let part = Object { kind: ObjectKind::Part, generation, slot, key: &[], value };
            parts.push(OwnPart { address, bytes: part.encode().ok()? });
        }
        let listed = places.into_iter().zip(sizes).map(|(address, units)| ListedPart { address, units });
        let list = PartList { value_bytes: value.len(), parts: listed.collect() }.encode();
        let bytes = Object { kind, generation, slot: 0, key, value: &list }.encode().ok()?;
        self.counters.long_writes += 1;
        Some(OwnObject { address, generation, units, bytes, parts, written_in: None })
    }

    /// The writes of an object and of its parts to all living replicas.
    pub(super) fn write_object(&self, object: &OwnObject) -> Option<Vec<(MemoryNode, Batch)>> {
        let mut batches = if self.repairs.parts_first { self.writes_of_parts(object)? } else { Vec::new() };
        for node in self.replicas(object.address.region)? {
            push_op(&mut batches, node, RemoteOp::Write(object.address.into(), object.bytes.clone()));
        }
        Some(batches)
    }

    /// The writes of its parts alone.
    pub(super) fn writes_of_parts(&self, object: &OwnObject) -> Option<Vec<(MemoryNode, Batch)>> {
        let mut batches = Vec::new();
        for part in &object.parts {
            for node in self.replicas(part.address.region)? {
                push_op(&mut batches, node, RemoteOp::Write(part.address.into(), part.bytes.clone()));
            }
        }
        Some(batches)
    }

    /// Adds the reads of all parts that an object's value lists, each from the first living replica. None: it is no list, or one that leads out of the pool, or a part has no copy left; then nothing is added.
    pub(super) fn reads_of_parts(
        &self,
        generation: Generation,
        value: &[u8],
        batches: &mut Vec<(MemoryNode, Batch)>,
    ) -> Option<PartReads> {
        let list = PartList::decode(value).ok()?;
        let place = |part: &ListedPart| {
            self.layout.block_of_object(part.address, part.object_bytes())?;
            self.replicas(part.address.region)?.first().copied()
        };
        let nodes: Vec<MemoryNode> = list.parts.iter().map(place).collect::<Option<_>>()?;
        let mut reads = Vec::with_capacity(list.parts.len());
        for (part, node) in list.parts.iter().zip(nodes) {
            let read = RemoteOp::Read(part.address.into(), part.object_bytes() as u32);
            reads.push(push_op(batches, node, read));
        }
        Some(PartReads { generation, list, reads })
    }

    /// A value, if all of its parts came whole.
    pub(super) fn put_together(&mut self, parts: &PartReads, results: &[PostResult]) -> Option<Vec<u8>> {
        let mut value = Vec::with_capacity(parts.list.value_bytes);
        for (number, &(batch, op)) in parts.reads.iter().enumerate() {
            let bytes = bytes_of(results, batch, op).unwrap_or_default();
            let found = match self.repairs.parts_bound {
                true => bytes_of_part(bytes, parts.generation, number),
                false => Object::decode_unchecked(bytes).ok().map(|part| part.value),
            };
            let Some(bytes) = found else {
                self.counters.unverified += 1;
                return None;
            };
            value.extend_from_slice(bytes);
        }
        self.counters.long_reads += 1;
        Some(value)
    }

    /// A read found the key's object: its value, or the parts of it that are to be read first.
    pub(super) fn got(&mut self, operation: &mut Operation, holder: Holder, now: Nanos) -> Next {
        let Holder { kind, generation, value, .. } = holder;
        if !kind.is_indirect() {
            return Next::Finish(Outcome::Value(value, generation));
        }
        let mut batches = Vec::new();
        match self.reads_of_parts(generation, &value, &mut batches) {
            Some(parts) if self.takes_turn(operation, parts.list.value_bytes) => {
                operation.step = Step::Parts(parts);
                Next::Post(batches)
            }
            Some(_) => Next::AwaitTurn,
            None => {
                operation.turn_bytes = 0;
                self.again_soon(operation, now)
            }
        }
    }

    /// Whether an operation may read parts of so many bytes now: it has its turn until it is done. Else it is to wait.
    pub(super) fn takes_turn(&self, operation: &mut Operation, bytes: usize) -> bool {
        let waits = |other: &Operation| matches!(other.step, Step::AwaitTurn(_));
        // Whoever was given a turn is before those who wait, also where there is more to read than it was.
        let is_next = operation.turn_bytes > 0 || !self.operations.values().any(waits);
        if operation.turn_bytes < bytes && !(is_next && self.has_turn(bytes)) {
            operation.turn_bytes = 0;
            operation.step = Step::AwaitTurn(bytes);
            return false;
        }
        operation.turn_bytes = operation.turn_bytes.max(bytes);
        true
    }

    /// Whether, beside the operations that are there, one more may read so many bytes.
    fn has_turn(&self, bytes: usize) -> bool {
        let taken: usize = self.operations.values().map(|operation| operation.turn_bytes).sum();
        taken == 0 || taken + bytes <= self.turn_bytes_max
    }

    /// Lets those go on that wait for their turn, as many as may. They begin again.
    pub(super) fn give_turns(&mut self, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        while !self.is_paused() {
            let waits = |(&id, operation): (&u32, &Operation)| match operation.step {
                Step::AwaitTurn(bytes) => Some((id, bytes)),
                _ => None,
            };
            let Some((id, bytes)) = self.operations.iter().find_map(waits) else { return };
            if !self.has_turn(bytes) {
                return;
            }
            if let Some(operation) = self.operations.get_mut(&id) {
                (operation.turn_bytes, operation.step) = (bytes, Step::Start);
            }
            self.advance(id, now, out);
        }
    }

    /// Whether parts came in time. If not, the turn is over, and fewer are read at a time.
    pub(super) fn parts_are_fresh(&mut self, operation: &mut Operation, now: Nanos) -> bool {
        let is_fresh = self.is_fresh(operation, now);
        self.turn_bytes_max = match is_fresh {
            true => LONG_BYTES_MAX.min(self.turn_bytes_max + BATCH_AIM_BYTES),
            false => BATCH_AIM_BYTES.max(self.turn_bytes_max / 2),
        };
        if !is_fresh {
            operation.turn_bytes = 0;
        }
        is_fresh
    }

    /// The parts of a read's value came. It was the key's when the object was.
    pub(super) fn parts_came(
        &mut self,
        operation: &mut Operation,
        parts: &PartReads,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        if !self.parts_are_fresh(operation, now) {
            return self.again_soon(operation, now);
        }
        let Some(value) = self.put_together(parts, results) else { return self.again_soon(operation, now) };
        // If the pair was granted, and has not changed since.
        self.cache.insert_value(operation.hash, parts.generation, &value);
        Next::Finish(Outcome::Value(value, parts.generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{ClientOptions, ClientView};
    use crate::fabric::{NodeId, OpResult, SessionId, is_within_limits};
    use crate::parts::VALUE_BYTES_MAX;
    use crate::region::{BlockId, NodeSet, PoolLayout};
    use crate::word::LogicalAddress;

    const LAYOUT: PoolLayout = PoolLayout {
        memory_nodes: 3,
        copies: 3,
        partition_bits: 0,
        groups: 1,
        block_bytes: 1 << 20,
        blocks: 4,
    };

    fn client() -> Client {
        client_with(ClientOptions::default(), 3)
    }

    fn client_with(options: ClientOptions, blocks: u32) -> Client {
        let mut client = Client::new(NodeId(0), 1, LAYOUT, options);
        let view = ClientView { epoch: 1, living: NodeSet::first(3), session: SessionId(1) };
        client.install(0, view, (&[], &[]), &mut Vec::new());
        for number in 0..blocks {
            client.slab.add_block(BlockId { region: 0, number });
        }
        client
    }

    /// A slot never leads to a part, also where a key is as empty as a part's.
    #[test]
    fn a_part_is_no_pair() {
        let part = |kind| Object { kind, generation: Generation::new(1, 1), slot: 0, key: b"", value: b"v" };
        let mut client = client();
        assert!(client.verified(&part(ObjectKind::Put).encode().unwrap()).is_some());
        assert!(client.verified(&part(ObjectKind::Part).encode().unwrap()).is_none());
    }

    /// To each copy everything goes, in batches that are short, and its list behind its parts; and it comes back so.
    #[test]
    fn the_longest_value_goes_and_comes_in_short_batches() {
        let mut client = client();
        let value = vec![7; VALUE_BYTES_MAX];
        let own = client.new_object(b"key", &value, ObjectKind::Put, 0).unwrap();
        assert_eq!(own.parts.len(), 129);
        let is_short = |(_, batch): &(MemoryNode, Batch)| {
            let bytes: usize = batch.iter().map(|op| op.extent().1).sum();
            is_within_limits(batch) && bytes <= 256 << 10
        };
        let batches = client.write_object(&own).unwrap();
        assert!(batches.iter().all(is_short) && batches.len() >= 3 * 9, "{}", batches.len());
        for node in (0..3).map(MemoryNode) {
            let ops: Vec<&RemoteOp> =
                batches.iter().filter(|(to, _)| *to == node).flat_map(|(_, batch)| batch).collect();
            assert_eq!(ops.len(), 130);
            assert_eq!(ops.last().unwrap().extent().0, own.address.into());
        }
        let list = Object::decode(&own.bytes).unwrap();
        let mut batches = Vec::new();
        let parts = client.reads_of_parts(list.generation, list.value, &mut batches).unwrap();
        assert!(batches.iter().all(is_short) && batches.iter().all(|(node, _)| *node == MemoryNode(0)));
        assert_eq!(batches.iter().map(|(_, batch)| batch.len()).sum::<usize>(), 129);
        // There is room for one such value only, and a second one takes nothing.
        let used = client.slab.counts();
        assert!(client.new_object(b"key", &value, ObjectKind::Put, 0).is_none());
        assert_eq!(client.slab.counts(), used);
        let bytes = |at: RemoteOp| {
            let is_it = |part: &&OwnPart| RemoteOp::Read(part.address.into(), part.bytes.len() as u32) == at;
            OpResult::Bytes(own.parts.iter().find(is_it).unwrap().bytes.clone())
        };
        let mut results: Vec<PostResult> =
            batches.into_iter().map(|(_, batch)| Ok(batch.into_iter().map(bytes).collect())).collect();
        assert_eq!(client.put_together(&parts, &results), Some(value));
        if let Ok(results) = &mut results[2] {
            results.swap(0, 1);
        }
        assert_eq!(client.put_together(&parts, &results), None, "two parts have changed places");
    }

    /// A list that is well formed, and leads to where no object can be: it is none, and nothing of it is read.
    #[test]
    fn a_list_that_leads_out_of_the_pool_is_none() {
        let client = client();
        let block = BlockId { region: 1, number: 3 };
        let start = client.layout.block_address(block).offset;
        let end = start + client.layout.block_bytes;
        let reads = |region, offset, units: u8| {
            let part = |offset, units| ListedPart { address: LogicalAddress { region, offset }, units };
            let first =
                ListedPart { address: LogicalAddress { region: 0, offset: start + 4096 }, units: 255 };
            let value_bytes = 16_288 + usize::from(units) * 64 - 32;
            let list = PartList { value_bytes, parts: vec![first, part(offset, units)] }.encode();
            assert!(PartList::decode(&list).is_ok());
            let mut batches = Vec::new();
            let parts = client.reads_of_parts(Generation::new(1, 1), &list, &mut batches);
            assert_eq!(parts.is_some(), !batches.is_empty());
            parts.is_some()
        };
        assert!(reads(1, end - 64 * 255, 255) && reads(1, end - 64, 1));
        assert!(!reads(1, end - 64, 2), "beyond the last block");
        assert!(!reads(1, start - 64, 2), "from one block into another");
        assert!(!reads(1, start, 1), "a bitmap");
        assert!(!reads(1, 64, 1), "the index");
        assert!(!reads(1, u32::MAX - 63, 1), "beyond the region");
        assert!(!reads(3, start + 4096, 1) && !reads(u16::MAX, start + 4096, 1), "no region");
    }

    /// Values of all lengths, one after the other, in a block that has room for sixty of them: what one had another one has.
    #[test]
    fn memory_of_ends_of_values_comes_back_to_values_of_other_lengths() {
        let mut client = client_with(ClientOptions::default(), 1);
        let one = |client: &mut Client, bytes: usize, now| {
            let own = client.new_object(b"key", &vec![7; bytes], ObjectKind::Put, now);
            client.slab.release(own.unwrap_or_else(|| panic!("no room for {bytes} bytes")).address, now);
        };
        for (round, units) in (0..).zip((1..=255_usize).chain((1..=255).rev())) {
            one(&mut client, 16_288 + units * 64 - 32, round * 1_000_000_000);
        }
        // Lists of one to 250 units, of parts of one.
        let mut client = client_with(ClientOptions { part_units: 1, ..ClientOptions::default() }, 1);
        for (round, parts) in (0..).zip((8..2000).step_by(8)) {
            one(&mut client, 32 * parts, round * 1_000_000_000);
        }
    }
}
