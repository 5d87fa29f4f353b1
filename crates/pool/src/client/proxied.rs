//! Finding and changing a key of a partition that has a proxy.
//!
//! Owns the requests to proxies, and what follows from their answers. Promises that nothing is concluded from the index on memory nodes, which runs ahead of the proxy (hole 7 of FlexKV), and that a change is not asked for again
//! under another number unless the first one certainly did not happen. Must not know how a proxy decides.

use super::cache::CachedSlot;
use super::operation::{Holder, Next, Operation, Outcome, Request, Step};
use super::slot_change::Purpose;
use super::submission::Submission;
use super::{Client, ClientAnswer, Condition, bytes_of};
use crate::bucket::KeyHash;
use crate::fabric::{Batch, Nanos, NodeId, PostResult};
use crate::machine::Out;
use crate::object::{Generation, ObjectKind};
use crate::region::{MemoryNode, SlotId};
use crate::rpc::{ANY_SLOT, IndexChange, IndexRpc, SlotAndWord, WriteStatus};
use crate::wire::{Message, Owner, Verdict};
use crate::word::{LiveWord, SlotWord};

#[cfg(test)]
mod tests;

impl Client {
    pub(super) fn owner_of(&self, operation: &Operation) -> Option<Owner> {
        self.owners.get(&operation.hash.partition(self.layout.partition_bits)).copied()
    }

    /// None: all numbers of this epoch are used up. With one of them a request would be taken for an earlier one.
    fn next_sequence(&mut self) -> Option<u32> {
        self.next_sequence = self.next_sequence.checked_add(1)?;
        Some(self.next_sequence)
    }

    /// Begins an operation of a partition that has a proxy: a write that knows its slot writes its object, and asks for the change then; all others ask which slot it is.
    pub(super) fn start_proxied(&mut self, operation: &mut Operation, now: Nanos) -> Next {
        let place = self.cached_place(operation, now);
        if place.is_none() {
            operation.learnt_at = now;
        }
        match (self.writes_of_object(operation), place) {
            (None, _) => Next::Finish(Outcome::Unavailable),
            (Some(writes), None) => self.ask_index(operation, writes),
            (Some(writes), Some(cached)) => {
                operation.learnt_at = cached.learnt_at;
                operation.passes_cache = true;
                match writes.is_empty() {
                    true => self.object_is_written(operation, cached, now),
                    false => {
                        operation.step = Step::WriteObject(cached);
                        Next::Post(writes)
                    }
                }
            }
        }
    }

    /// The slot of a write that need not ask, since its condition holds if the word is still there. It was there not long ago, or is, as the proxy would have said when it changed: so the same word is no other key's (hole 9).
    fn cached_place(&self, operation: &Operation, now: Nanos) -> Option<CachedSlot> {
        let mut cached = self.cached(operation)?;
        let condition = match operation.call.request {
            Request::Put(_, condition) | Request::Delete(condition) => condition,
            Request::Get | Request::Walk(..) => return None,
        };
        if cached.is_granted && self.proxy.has_lease(now) {
            cached.learnt_at = now;
        }
        let is_fresh = now.saturating_sub(cached.learnt_at) <= self.options.quarantine_ns / 2;
        let holds = match condition {
            Condition::Any | Condition::Present => true,
            Condition::Absent => false,
            Condition::Same(generation) => generation == cached.generation,
        };
        (is_fresh && holds).then_some(cached)
    }

    /// All copies have the object of a write that knows its slot.
    pub(super) fn object_is_written(
        &mut self,
        operation: &mut Operation,
        cached: CachedSlot,
        now: Nanos,
    ) -> Next {
        self.counters.cache_hits += 1;
        let CachedSlot { slot, word, generation, .. } = cached;
        let holder = Holder { slot, word, kind: ObjectKind::Put, generation, value: Vec::new() };
        self.found(operation, vec![holder], None, now)
    }

    /// Reads a pair that is granted to the cache: it is what the key has now, since whoever changes it waits for this node to say that it has dropped it, or for the end of its lease.
    pub(super) fn read_cached(&mut self, operation: &mut Operation, now: Nanos) -> Option<Next> {
        let cached = self.cached(operation).filter(|cached| cached.is_granted)?;
        if !self.proxy.has_lease(now) {
            return None;
        }
        if let Some(value) = self.cache.hit(operation.hash) {
            self.counters.value_hits += 1;
            return Some(Next::Finish(Outcome::Value(value.to_vec(), cached.generation)));
        }
        let read = self.read_object(cached.word)?;
        operation.learnt_at = now;
        operation.passes_cache = true;
        operation.step = Step::ReadGranted(cached);
        Some(Next::Post(vec![read]))
    }

    /// The object of a pair that was granted when its read began: that is when it was the key's.
    pub(super) fn granted_came(
        &mut self,
        operation: &mut Operation,
        cached: CachedSlot,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        if !self.is_fresh(operation, now) {
            return Next::Again;
        }
        let bytes = bytes_of(results, 0, 0).unwrap_or_default();
        let generation = cached.generation;
        let found = self.value_of_version(operation, generation, bytes);
        let Some((kind, value)) = found else { return Next::Again };
        self.counters.address_hits += 1;
        if !kind.is_indirect() {
            self.cache.insert_value(operation.hash, generation, &value);
        }
        self.got(operation, Holder { slot: cached.slot, word: cached.word, kind, generation, value }, now)
    }

    /// Whether a pair that was granted may come into the cache: it has not changed since. The change by which a writer was granted what it wrote told it to drop what was there before.
    pub(super) fn may_keep(&self, operation: &Operation) -> bool {
        operation.granted_by.is_some_and(|change| operation.tainted_by <= change || !self.repairs.taint)
    }

    /// A key is about to change: it goes out of the cache, and what is on its way does not come into it. Then the proxy is told so.
    pub(super) fn invalidate(
        &mut self,
        proxy: NodeId,
        (epoch, session, sequence): (u32, u16, u32),
        hash: KeyHash,
        out: &mut Vec<Out<ClientAnswer>>,
    ) {
        // Of another epoch nothing is granted, and nobody waits.
        if self.view.is_none_or(|view| (view.epoch, view.session.0) != (epoch, session)) {
            return;
        }
        self.counters.invalidated += 1;
        let hits = self.cache.remove(hash).unwrap_or(0);
        for operation in self.operations.values_mut().filter(|operation| operation.hash == hash) {
            operation.tainted_by = operation.tainted_by.max(sequence);
        }
        let rpc = IndexRpc::Invalidated { epoch, session, sequence, hits };
        out.push(Out::Send { to: proxy, bytes: Message::Index(rpc).encode(self.node.0) });
    }

    /// Asks the proxy which slots may have the key, and writes the object meanwhile.
    pub(super) fn ask_index(&mut self, operation: &mut Operation, writes: Vec<(MemoryNode, Batch)>) -> Next {
        let (epoch, session) = self.view.map_or((0, 0), |view| (view.epoch, view.session.0));
        let Some(sequence) = self.next_sequence() else { return Next::Finish(Outcome::Unavailable) };
        operation.step = Step::Ask;
        (operation.granted_by, operation.tainted_by) = (None, 0);
        let (hash, caches) = (operation.hash, self.cache.is_used());
        Next::Ask(IndexRpc::Read { epoch, session, sequence, hash, caches }, writes)
    }

    /// Asks the proxy for words of its table, from a slot on.
    pub(super) fn ask_range(&mut self, operation: &mut Operation, from: SlotId) -> Next {
        let (epoch, session) = self.view.map_or((0, 0), |view| (view.epoch, view.session.0));
        let Some(sequence) = self.next_sequence() else { return Next::Finish(Outcome::Unavailable) };
        operation.step = Step::WalkTable;
        Next::Ask(IndexRpc::Range { epoch, session, sequence, from }, Vec::new())
    }

    /// The proxy said which.
    pub(super) fn words_came(&mut self, operation: &mut Operation, now: Nanos) -> Next {
        let Some(IndexRpc::Words { words, all, free, grant, .. }) = operation.reply.take() else {
            return self.again_soon(operation, now);
        };
        operation.granted_by = grant.then_some(0);
        operation.seen.clone_from(&words);
        let is_put = matches!(operation.call.request, Request::Put(..));
        let free = free.then_some((ANY_SLOT, SlotWord::NEVER_USED));
        if words.is_empty() || all && !is_put {
            return self.found(operation, Vec::new(), free, now);
        }
        self.post_candidates(operation, words, free, all)
    }

    /// Asks for a change. `was_absent`: no slot had the key.
    pub(super) fn submit(
        &mut self,
        operation: &mut Operation,
        purpose: Purpose,
        (slot, expected): SlotAndWord,
        was_absent: bool,
    ) -> Next {
        let word = match (&operation.object, purpose) {
            (Some(own), Purpose::Store) => SlotWord::live(LiveWord {
                fingerprint: operation.hash.fingerprint(),
                units: own.units,
                address: own.address,
                version: 0,
            }),
            _ => SlotWord::NEVER_USED,
        };
        let combines = matches!(operation.call.request, Request::Put(_, Condition::Any))
            && purpose == Purpose::Store
            && !was_absent;
        let seen = was_absent.then(|| operation.seen.clone());
        let change = IndexChange { slot, expected, word, combines, seen };
        let (epoch, session) = self.view.map_or((0, 0), |view| (view.epoch, view.session.0));
        let Some(sequence) = self.next_sequence() else { return Next::Finish(Outcome::Unavailable) };
        let partition = operation.hash.partition(self.layout.partition_bits);
        operation.step = Step::Submit(Submission { purpose, partition, change: change.clone() });
        (operation.granted_by, operation.tainted_by) = (None, 0);
        let (hash, caches) = (operation.hash, self.cache.is_used());
        // What is acknowledged is said when it is sent.
        let rpc = IndexRpc::Write { epoch, session, sequence, acknowledged: 0, hash, caches, change };
        let late = operation.object.as_ref().filter(|_| !self.repairs.parts_first);
        Next::Ask(rpc, late.and_then(|own| self.writes_of_parts(own)).unwrap_or_default())
    }

    /// The proxy said what became of it.
    pub(super) fn was_submitted(
        &mut self,
        operation: &mut Operation,
        submission: &Submission,
        now: Nanos,
    ) -> Next {
        let Some(IndexRpc::Written { status, slot, old, new, granted_by, .. }) = operation.reply.take()
        else {
            return self.again_soon(operation, now);
        };
        operation.granted_by = (granted_by != 0).then_some(granted_by);
        match status {
            WriteStatus::Done => self.has_changed(operation, submission.purpose, (slot, old, new), now),
            WriteStatus::Absorbed => self.absorbed(operation),
            WriteStatus::Conflict => {
                self.counters.lost += 1;
                self.cache.remove(operation.hash);
                Next::Again
            }
            WriteStatus::Full => Next::Finish(Outcome::Full),
            WriteStatus::Busy => self.again_soon(operation, now),
        }
    }

    /// An answer of a proxy.
    pub(super) fn proxy_answered(&mut self, rpc: IndexRpc, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        let identity = rpc.identity();
        let is_ours = |operation: &Operation| {
            operation.reply.is_none()
                && operation.rpc.as_ref().is_some_and(|asked| asked.identity() == identity)
        };
        let found = self.operations.iter_mut().find(|(_, operation)| is_ours(operation));
        let Some((&id, operation)) = found else { return };
        if rpc.grants() {
            self.proxy.begin_lease(now, out);
        }
        operation.reply = Some(rpc);
        if !operation.is_waiting() {
            operation.is_held = true;
            if !self.is_paused() {
                self.advance(id, now, out);
            }
        }
    }

    /// The number of the write that an operation waits for this proxy to do.
    fn open_write(&self, operation: &Operation, owner: Owner) -> Option<u32> {
        let Some(IndexRpc::Write { sequence, .. }) = operation.rpc else { return None };
        let is_its = self.owner_of(operation).is_some_and(|other| other.session == owner.session);
        is_its.then_some(sequence)
    }

    /// Sends a request, and again while nothing is answered.
    pub(super) fn send_rpc(
        &mut self,
        id: u32,
        operation: &mut Operation,
        now: Nanos,
        out: &mut Vec<Out<ClientAnswer>>,
    ) {
        let (Some(mut rpc), Some(owner)) = (operation.rpc.clone(), self.owner_of(operation)) else { return };
        if let IndexRpc::Write { sequence, acknowledged, .. } = &mut rpc {
            let open = self.operations.values().filter_map(|other| self.open_write(other, owner));
            *acknowledged = open.fold(*sequence, u32::min);
        }
        out.push(Out::Send { to: owner.node, bytes: Message::Index(rpc).encode(self.node.0) });
        let at = now.saturating_add(self.options.rpc_retry_ns.max(1));
        operation.resend_at = Some(at);
        self.timers.insert((at, id));
    }

    /// The time has come to ask again.
    pub(super) fn resend(&mut self, id: u32, at: Nanos, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        let Some(mut operation) = self.operations.remove(&id) else { return };
        if operation.resend_at == Some(at) && operation.is_waiting_for_reply() {
            match self.is_paused() {
                // Nobody would answer.
                true => operation.resend_at = None,
                false => self.send_rpc(id, &mut operation, now, out),
            }
        }
        self.operations.insert(id, operation);
    }

    /// What became of a change that a proxy was asked for when the configuration changed; an outcome if the call is done by it.
    ///
    /// A slot that leads to the object says that it happened, one that has what was expected that it did not. Otherwise others have written since, before or after it, and nobody knows.
    pub(super) fn resolve_submission(
        &mut self,
        operation: &mut Operation,
        submission: &Submission,
        verdicts: &[Verdict],
        now: Nanos,
    ) -> Option<Outcome> {
        if let Some(reply) = &mut operation.reply {
            // What was granted was in the epoch before.
            if let IndexRpc::Written { granted_by, .. } = reply {
                *granted_by = 0;
            }
            // What a combined change replaced is no word that the doubt named: its block may be nobody's by now, and is not written to.
            if let IndexRpc::Written { old, .. } = reply
                && *old != submission.change.expected
            {
                *old = SlotWord::NEVER_USED;
            }
            return match self.was_submitted(operation, submission, now) {
                Next::Finish(outcome) => Some(outcome),
                _ => None,
            };
        }
        if !self.repairs.verdicts || !submission.purpose.is_the_calls() {
            return None;
        }
        let change = &submission.change;
        let address = change.word.as_live().map(|live| live.address);
        let of_partition =
            || verdicts.iter().filter(|verdict| verdict.slot.partition == submission.partition);
        let applied = of_partition()
            .find(|verdict| address.is_some() && verdict.word.as_live().map(|live| live.address) == address);
        if let Some(verdict) = applied {
            self.counters.verdicts_applied += 1;
            // A change that may have been combined may have replaced another word: whoever put that freed what was expected.
            let old = if change.combines { SlotWord::NEVER_USED } else { change.expected };
            let what = (verdict.slot.slot, old, verdict.word);
            return match self.has_changed(operation, submission.purpose, what, now) {
                Next::Finish(outcome) => Some(outcome),
                _ => None,
            };
        }
        let there = of_partition().find(|verdict| verdict.slot.slot == change.slot).map(|one| one.word);
        if there == Some(change.expected) {
            self.counters.verdicts_refused += 1;
            return None;
        }
        operation.object = None;
        operation.claim_object = None;
        Some(Outcome::Indeterminate)
    }

    pub(super) fn stored(&self, operation: &mut Operation) -> Generation {
        operation.object.take().map_or(Generation(0), |object| object.generation)
    }
}
