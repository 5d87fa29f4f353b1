//! Finding a key.
//!
//! Owns the steps from a call to the slots whose objects have its key: the slot that the cache names, or both combined buckets and the objects of all slots with the key's
//! fingerprint. Promises that an address is followed only within half of the quarantine after the moment at which it was certainly in the index. Must not know what is done about what was found.

use std::collections::BTreeMap;

use super::cache::CachedSlot;
use super::operation::{Holder, Next, Operation, Outcome, Request, Step};
use super::{Client, bytes_of};
use crate::bucket::{COMBINED_BYTES, free_slot};
use crate::error::PoolError;
use crate::fabric::{Batch, Nanos, PostResult, RemoteOp};
use crate::object::{Generation, Object, ObjectKind};
use crate::region::MemoryNode;
use crate::word::SlotWord;
use hedgerow_row::le_bytes::u64_at;

impl Client {
    /// Begins, or begins again: writes the object if it is not written, and reads the index in the same round.
    pub(super) fn start(&mut self, operation: &mut Operation, now: Nanos) -> Next {
        if operation.deadline <= now {
            return Next::Finish(Outcome::Unavailable);
        }
        if let Request::Walk(from, _) = operation.call.request {
            return self.begin_walk(operation, from, now);
        }
        if operation.call.request == Request::Get
            && let Some(next) = self.read_cached(operation, now)
        {
            return next;
        }
        if let Request::Put(value, condition) = &operation.call.request
            && operation.object.is_none()
        {
            let kind = match condition {
                super::Condition::Any => ObjectKind::Put,
                _ => ObjectKind::ConditionalPut,
            };
            match self.new_object(&operation.call.key, value, kind, now) {
                Some(object) => operation.object = Some(object),
                None => return Next::AwaitSpace,
            }
        }
        if self.owner_of(operation).is_some() {
            return self.start_proxied(operation, now);
        }
        let id = self.slot_id(operation, 0);
        let table = self.layout.table_address(id.partition);
        let Some(&primary) = self.replicas(table.region).as_deref().and_then(<[_]>::first) else {
            return Next::Finish(Outcome::Unavailable);
        };
        operation.learnt_at = now;
        let cached = self.cached(operation);
        let mut batches = Vec::new();
        match cached {
            Some(cached) => {
                let at = self.layout.slot_address(self.slot_id(operation, cached.slot));
                batches.push((primary, vec![RemoteOp::Read(at, 8)]));
                if operation.call.request == Request::Get
                    && let Some(read) = self.read_object(cached.word)
                {
                    batches.push(read);
                }
                operation.step = Step::Probe(cached);
            }
            None => {
                let read = |combined: crate::bucket::Combined| {
                    let at =
                        crate::region::RemoteAddress { offset: table.offset + combined.offset(), ..table };
                    RemoteOp::Read(at, COMBINED_BYTES as u32)
                };
                batches.push((primary, operation.hash.combined(self.layout.groups).map(read).to_vec()));
                operation.step = Step::LookUp;
            }
        }
        match self.writes_of_object(operation) {
            Some(writes) => batches.extend(writes),
            None => return Next::Finish(Outcome::Unavailable),
        }
        Next::Post(batches)
    }

    /// What the cache has of the key, unless that has led nowhere.
    pub(super) fn cached(&self, operation: &Operation) -> Option<CachedSlot> {
        self.cache.get(operation.hash, &operation.call.key).filter(|_| !operation.passes_cache)
    }

    /// The writes of the operation's object, unless it is written in this epoch; none where it cannot be.
    pub(super) fn writes_of_object(&self, operation: &mut Operation) -> Option<Vec<(MemoryNode, Batch)>> {
        let epoch = self.view.map(|view| view.epoch);
        let Some(object) = operation.object.as_mut().filter(|object| object.written_in != epoch) else {
            return Some(Vec::new());
        };
        object.written_in = epoch;
        self.write_object(object)
    }

    /// The read of a word's object from the first living replica.
    pub(super) fn read_object(&self, word: SlotWord) -> Option<(MemoryNode, Batch)> {
        let live = word.as_live()?;
        let node = *self.replicas(live.address.region)?.first()?;
        Some((node, vec![RemoteOp::Read(live.address.into(), live.object_bytes() as u32)]))
    }

    /// Whether what was learnt may still be acted on.
    pub(super) fn is_fresh(&mut self, operation: &Operation, now: Nanos) -> bool {
        let is_fresh = now.saturating_sub(operation.learnt_at) <= self.options.quarantine_ns / 2;
        self.counters.late += u64::from(!is_fresh);
        is_fresh || !self.repairs.late_reads
    }

    /// The object in `bytes`, if it is whole, and one that a slot may lead to.
    pub(super) fn verified<'b>(&mut self, bytes: &'b [u8]) -> Option<Object<'b>> {
        let object = match self.repairs.checksum {
            true => Object::decode(bytes),
            false => Object::decode_unchecked(bytes),
        };
        self.counters.unverified += u64::from(matches!(object, Err(PoolError::Checksum(..))));
        object.ok().filter(|object| object.kind != ObjectKind::Part)
    }

    /// The kind and the value in `bytes`, if they are the whole object of this version of the operation's key.
    pub(super) fn value_of_version(
        &mut self,
        operation: &Operation,
        generation: Generation,
        bytes: &[u8],
    ) -> Option<(ObjectKind, Vec<u8>)> {
        let object = self.verified(bytes)?;
        let is_it = object.key == operation.call.key && object.generation == generation;
        is_it.then(|| (object.kind, object.value.to_vec()))
    }

    /// The slot that the cache named was read.
    pub(super) fn probed(
        &mut self,
        operation: &mut Operation,
        cached: CachedSlot,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        let word = bytes_of(results, 0, 0).map(|bytes| SlotWord(u64_at(bytes, 0)));
        operation.passes_cache = true;
        if word != Some(cached.word) || !self.is_fresh(operation, now) {
            self.cache.remove(operation.hash);
            return Next::Again;
        }
        let mut holder = Holder {
            slot: cached.slot,
            word: cached.word,
            kind: ObjectKind::Put,
            generation: cached.generation,
            value: Vec::new(),
        };
        if operation.call.request == Request::Get {
            // The object and its slot were read beside one another: the slot says that the object was current between post and completion.
            let bytes = bytes_of(results, 1, 0).unwrap_or_default();
            match self.value_of_version(operation, cached.generation, bytes) {
                Some((kind, value)) => (holder.kind, holder.value) = (kind, value),
                None => return Next::Again,
            }
        }
        self.counters.cache_hits += 1;
        self.found(operation, vec![holder], None, now)
    }

    /// Both combined buckets were read.
    pub(super) fn looked_up(
        &mut self,
        operation: &mut Operation,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        let Some(slots) = self.slots_in(operation, results) else {
            // Buckets of another partition, where ours must be: nothing can be done about it here.
            self.counters.anomalies += 1;
            return Next::Finish(Outcome::Unavailable);
        };
        let fingerprint = operation.hash.fingerprint();
        let free = free_slot(&slots);
        let unique: BTreeMap<u32, SlotWord> = slots.iter().flatten().copied().collect();
        let is_put = matches!(operation.call.request, Request::Put(..));
        let live = |word: SlotWord| word.as_live();
        let mut words: Vec<(u32, SlotWord)> = unique
            .iter()
            .filter(|(_, word)| live(**word).is_some_and(|live| live.fingerprint == fingerprint))
            .map(|(&slot, &word)| (slot, word))
            .collect();
        // Where there is no room for a new key, claims of others that were left behind may be in the way.
        let all = words.is_empty() && free.is_none() && is_put;
        if all {
            words = unique.into_iter().filter(|(_, word)| live(*word).is_some()).collect();
        }
        if words.is_empty() {
            return self.found(operation, Vec::new(), free, now);
        }
        self.post_candidates(operation, words, free, all)
    }

    /// Asks for the objects that these slots lead to.
    pub(super) fn post_candidates(
        &self,
        operation: &mut Operation,
        words: Vec<(u32, SlotWord)>,
        free: Option<(u32, SlotWord)>,
        all: bool,
    ) -> Next {
        let mut reads = Vec::with_capacity(words.len());
        for &(_, word) in &words {
            match self.read_object(word) {
                Some(read) => reads.push(read),
                None => return Next::Finish(Outcome::Unavailable),
            }
        }
        operation.step = Step::Candidates { words, free, all };
        Next::Post(reads)
    }

    fn slots_in(&self, operation: &Operation, results: &[PostResult]) -> Option<[Vec<(u32, SlotWord)>; 2]> {
        let header = self.layout.bucket_header(operation.hash.partition(self.layout.partition_bits));
        let [first, second] = operation.hash.combined(self.layout.groups);
        let decode = |at, combined: crate::bucket::Combined| {
            bytes_of(results, 0, at).and_then(|bytes| combined.decode(bytes, header).ok())
        };
        Some([decode(0, first)?, decode(1, second)?])
    }

    /// The objects of all slots that may be the key's were read.
    pub(super) fn read_candidates(
        &mut self,
        operation: &mut Operation,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        let Step::Candidates { words, free, all } = std::mem::replace(&mut operation.step, Step::Start)
        else {
            return Next::Again;
        };
        if !self.is_fresh(operation, now) {
            return Next::Again;
        }
        let mut holders = Vec::new();
        let (mut seen, learnt_at) = (None, operation.learnt_at);
        let is_granted = self.may_keep(operation);
        for (at, (slot, word)) in words.into_iter().enumerate() {
            let bytes = bytes_of(results, at, 0).unwrap_or_default();
            // An object that does not verify proves nothing, neither that the key is there nor that it is not.
            let Some(object) = self.verified(bytes) else { return self.again_soon(operation, now) };
            let (kind, generation) = (object.kind, object.generation);
            if object.key == operation.call.key {
                if kind != ObjectKind::Claim {
                    seen = Some(CachedSlot { slot, word, generation, learnt_at, is_granted });
                }
                holders.push(Holder { slot, word, kind, generation, value: object.value.to_vec() });
            } else if all && kind == ObjectKind::Claim {
                return self.release(operation, slot, word, now);
            }
        }
        if let (Some(seen), [holder]) = (seen, holders.as_slice()) {
            self.cache.insert(operation.hash, &operation.call.key, seen);
            // A value in parts comes later.
            if !holder.kind.is_indirect() {
                self.cache.insert_value(operation.hash, seen.generation, &holder.value);
            }
        }
        self.found(operation, holders, free, now)
    }

    /// Begins again, after a while that grows.
    pub(super) fn again_soon(&self, operation: &mut Operation, now: Nanos) -> Next {
        operation.step = Step::Start;
        operation.attempts += 1;
        Next::Wait(now.saturating_add(self.backoff_ns(operation.attempts, operation.hash.0)))
    }

    /// Doubles up to 64 times `poll_ns`; told apart by node and key, so that rivals do not keep step.
    pub(super) fn backoff_ns(&self, attempts: u32, salt: u64) -> Nanos {
        let most = self.options.poll_ns << attempts.min(6);
        let mixed =
            (salt ^ u64::from(self.node.0) << 32 ^ u64::from(attempts)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        most / 2 + (mixed >> 32) % (most / 2 + 1)
    }
}
