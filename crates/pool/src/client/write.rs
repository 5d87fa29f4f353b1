//! What a call does about what was found, and the rounds of a change.
//!
//! Owns the decisions of reads and writes, and what follows from each round of a [`SlotChange`]. Promises that a write is answered `Stored` or `Deleted` only once the primary has changed. Must not know how a key is found.
//!
//! Who loses a change to another writer may count as done just before it: it was there before the winner's word was, and nobody can tell the difference, *if the winner would have done the same either way*. A conditional
//! put would not: it found what it asked for, and would not have after ours. So a loser reads the winner's object and begins again unless that is a put without a condition, of the same key.

use super::cache::CachedSlot;
use super::operation::{Holder, Next, Operation, Outcome, Request, Step};
use super::slot_change::{Decision, Phase, Purpose, SlotChange};
use super::{Client, Condition, before_of, bytes_of};
use crate::fabric::{Nanos, PostError, PostResult, RemoteOp};
use crate::object::{Generation, ObjectKind};
use crate::wire::Verdict;
use crate::word::SlotWord;
use hedgerow_row::le_bytes::u64_at;

impl Purpose {
    /// Whether the change is what the call asks for, and not something on the way to it.
    pub(super) fn is_the_calls(self) -> bool {
        matches!(self, Purpose::Store | Purpose::Delete)
    }
}

impl Client {
    /// The slots whose objects have the key, and a free one for it.
    pub(super) fn found(
        &mut self,
        operation: &mut Operation,
        holders: Vec<Holder>,
        free: Option<(u32, SlotWord)>,
        now: Nanos,
    ) -> Next {
        let (live, claims): (Vec<Holder>, Vec<Holder>) =
            holders.into_iter().partition(|holder| holder.kind != ObjectKind::Claim);
        // A claim of ours, where somebody else was quicker: it goes before anything else, or it would stay.
        let own = operation
            .claim
            .filter(|&(slot, word)| claims.iter().any(|claim| (claim.slot, claim.word) == (slot, word)));
        if let (Some((slot, word)), 1..) = (own, live.len()) {
            return self.release(operation, slot, word, now);
        }
        let condition = match &operation.call.request {
            Request::Get => {
                // Of two that were both read, each was the key's value when it was: the key moved in between.
                return match live.into_iter().next() {
                    Some(holder) => self.got(operation, holder, now),
                    None => Next::Finish(Outcome::Absent),
                };
            }
            Request::Put(_, condition) | Request::Delete(condition) => *condition,
            // It looks nothing up.
            Request::Walk(..) => return Next::Again,
        };
        let present = live.first().map(|holder| holder.generation);
        let holds = match condition {
            Condition::Any => true,
            Condition::Absent => present.is_none(),
            Condition::Present => present.is_some(),
            Condition::Same(generation) => present == Some(generation),
        };
        if !holds {
            return Next::Finish(Outcome::Conflict);
        }
        let is_delete = matches!(operation.call.request, Request::Delete(_));
        match live.as_slice() {
            [] if is_delete => Next::Finish(Outcome::Deleted(false)),
            [] => self.put_new(operation, claims, free, now),
            [holder] => {
                let purpose = if is_delete { Purpose::Delete } else { Purpose::Store };
                self.change(operation, purpose, (holder.slot, holder.word), now)
            }
            _ => self.again_soon(operation, now),
        }
    }

    /// A put of a key that is nowhere, or that has claims only.
    fn put_new(
        &mut self,
        operation: &mut Operation,
        claims: Vec<Holder>,
        free: Option<(u32, SlotWord)>,
        now: Nanos,
    ) -> Next {
        let claim = claims.iter().map(|claim| (claim.slot, claim.word)).max();
        if self.owner_of(operation).is_some() {
            // The proxy sees to it that there is one slot: no claim is needed, and one that is there is stored over.
            return match (claims.len(), claim.or(free)) {
                (2.., Some((slot, word))) => self.release(operation, slot, word, now),
                (_, None) => Next::Finish(Outcome::Full),
                (_, Some(_)) if !self.is_fresh(operation, now) => Next::Again,
                (_, Some(place)) => self.submit(operation, Purpose::Store, place, true),
            };
        }
        match (claims.len(), claim) {
            (1, Some(claim)) if operation.claim == Some(claim) => {
                self.change(operation, Purpose::Store, claim, now)
            }
            (1, Some(claim)) => {
                operation.claim = Some(claim);
                Next::Again
            }
            // Of several claims the one in the highest slot goes, whoever's it is: all agree on which one stays.
            (2.., Some((slot, word))) => self.release(operation, slot, word, now),
            _ => match free {
                None => Next::Finish(Outcome::Full),
                Some(free) if self.repairs.claim => self.write_claim(operation, free, now),
                Some(free) => self.change(operation, Purpose::Store, free, now),
            },
        }
    }

    fn write_claim(&mut self, operation: &mut Operation, free: (u32, SlotWord), now: Nanos) -> Next {
        if operation.claim_object.is_none() {
            let object = self.new_object(&operation.call.key, &[], ObjectKind::Claim, now);
            match object {
                Some(object) => operation.claim_object = Some(object),
                None => return Next::AwaitSpace,
            }
        }
        let epoch = self.view.map(|view| view.epoch);
        let Some(object) = &mut operation.claim_object else { return Next::AwaitSpace };
        if object.written_in == epoch {
            return self.change(operation, Purpose::Claim, free, now);
        }
        object.written_in = epoch;
        operation.step = Step::WriteClaim(free.0, free.1);
        let writes = operation.claim_object.as_ref().and_then(|object| self.write_object(object));
        writes.map_or(Next::Finish(Outcome::Unavailable), Next::Post)
    }

    pub(super) fn claim_is_written(
        &mut self,
        operation: &mut Operation,
        slot: u32,
        word: SlotWord,
        now: Nanos,
    ) -> Next {
        self.change(operation, Purpose::Claim, (slot, word), now)
    }

    /// Takes a claim away.
    pub(super) fn release(
        &mut self,
        operation: &mut Operation,
        slot: u32,
        word: SlotWord,
        now: Nanos,
    ) -> Next {
        self.change(operation, Purpose::Release, (slot, word), now)
    }

    /// Begins to change a slot from the word that was found in it.
    fn change(
        &mut self,
        operation: &mut Operation,
        purpose: Purpose,
        (slot, old): (u32, SlotWord),
        now: Nanos,
    ) -> Next {
        if !self.is_fresh(operation, now) {
            return Next::Again;
        }
        if self.owner_of(operation).is_some() {
            return self.submit(operation, purpose, (slot, old), false);
        }
        let own = match purpose {
            Purpose::Store => operation.object.as_ref(),
            Purpose::Claim => operation.claim_object.as_ref(),
            Purpose::Delete | Purpose::Release => None,
        };
        let new = match own {
            Some(own) => SlotWord::live_after(old, operation.hash.fingerprint(), own.units, own.address),
            None => SlotWord::tombstone_after(old, now / 1_000_000),
        };
        let id = self.slot_id(operation, slot);
        let at = self.layout.slot_address(id);
        let Some(replicas) = self.replicas(at.region) else { return Next::Finish(Outcome::Unavailable) };
        let (primary, backups) = (replicas[0], replicas[1..].to_vec());
        let mut swaps: Vec<_> =
            backups.iter().map(|&node| (node, vec![RemoteOp::CompareAndSwap(at, old.0, new.0)])).collect();
        let has_backups = !swaps.is_empty();
        if let Some(own) = own.filter(|_| !self.repairs.parts_first) {
            swaps.extend(self.writes_of_parts(own).unwrap_or_default());
        }
        let change = SlotChange {
            id,
            old,
            new,
            purpose,
            phase: if has_backups { Phase::Backups } else { Phase::Commit },
            primary,
            backups,
            seen: Vec::new(),
            looks: 0,
        };
        let commit = vec![(primary, vec![RemoteOp::CompareAndSwap(at, old.0, new.0)])];
        operation.step = Step::Change(change);
        Next::Post(if has_backups { swaps } else { commit })
    }

    /// A round of a change is done.
    pub(super) fn change_goes_on(
        &mut self,
        operation: &mut Operation,
        mut change: SlotChange,
        results: &[PostResult],
        now: Nanos,
    ) -> Next {
        let at = self.layout.slot_address(change.id);
        let read_primary = || Next::Post(vec![(change.primary, vec![RemoteOp::Read(at, 8)])]);
        let next = match change.phase {
            Phase::Backups => {
                let before: Vec<SlotWord> =
                    (0..results.len()).filter_map(|batch| before_of(results, batch)).map(SlotWord).collect();
                change.backups_had(&before);
                self.decided(change.decide(), &mut change)
            }
            Phase::Arbitrate => {
                self.counters.arbitrated += 1;
                let primary = bytes_of(results, 0, 0).map_or(0, |bytes| u64_at(bytes, 0));
                self.decided(change.arbitrate(SlotWord(primary)), &mut change)
            }
            Phase::Align => {
                for (batch, (_, seen)) in change.to_align().into_iter().enumerate() {
                    let before = before_of(results, batch);
                    // A delete with the same word may have been through already, and others after it.
                    let is_tie = change.new.as_live().is_none();
                    let is_expected = before == Some(seen.0) || before == Some(change.new.0) || is_tie;
                    self.counters.anomalies += u64::from(!is_expected);
                }
                self.decided(Decision::Won, &mut change)
            }
            Phase::Commit => match results.first() {
                Some(Err(PostError::Lost)) => Next::Hold,
                _ if before_of(results, 0) == Some(change.old.0) => return self.won(operation, &change, now),
                _ => {
                    // Two deletes with the same word: the other one was first, and the slot may have gone on since. Nothing else can be in between.
                    let is_tie = change.new.as_live().is_none();
                    self.counters.anomalies += u64::from(!is_tie && !change.backups.is_empty());
                    self.counters.lost += 1;
                    return Next::Again;
                }
            },
            // The time to look again has come, or the look is done.
            Phase::Await if results.is_empty() => read_primary(),
            Phase::Await => {
                let word = bytes_of(results, 0, 0).map_or(0, |bytes| u64_at(bytes, 0));
                return self.looked_at_primary(operation, change, SlotWord(word), now);
            }
            Phase::Winner(_) => return self.read_winner(operation, results, now),
        };
        operation.step = Step::Change(change);
        next
    }

    /// Goes on to the next phase of a change.
    fn decided(&mut self, decision: Decision, change: &mut SlotChange) -> Next {
        let at = self.layout.slot_address(change.id);
        let swap = |old: SlotWord| vec![RemoteOp::CompareAndSwap(at, old.0, change.new.0)];
        let read = vec![(change.primary, vec![RemoteOp::Read(at, 8)])];
        let (phase, batches) = match decision {
            Decision::Won => (Phase::Commit, vec![(change.primary, swap(change.old))]),
            Decision::WonOnceAligned => {
                let swaps = change.to_align().into_iter().map(|(node, seen)| (node, swap(seen)));
                (Phase::Align, swaps.collect())
            }
            Decision::AskPrimary => (Phase::Arbitrate, read),
            Decision::Lost => {
                self.counters.lost += 1;
                (Phase::Await, read)
            }
        };
        change.phase = phase;
        Next::Post(batches)
    }

    /// A loser looked at the primary.
    fn looked_at_primary(
        &mut self,
        operation: &mut Operation,
        mut change: SlotChange,
        word: SlotWord,
        now: Nanos,
    ) -> Next {
        let is_absorbable = change.purpose == Purpose::Store
            && matches!(operation.call.request, Request::Put(_, Condition::Any))
            && change.old.as_live().is_some();
        let answers_early = is_absorbable && !self.repairs.losers_wait;
        if word == change.old && !answers_early {
            change.looks += 1;
            let until = now.saturating_add(self.backoff_ns(change.looks, operation.hash.0));
            operation.step = Step::Change(change);
            return Next::Wait(until);
        }
        // From here on nothing of the change is left on any copy: the winner has brought all backups along.
        operation.step = Step::Start;
        if !is_absorbable {
            return Next::Again;
        }
        if !self.repairs.losers_wait || !self.repairs.absorb_unconditional {
            return self.absorbed(operation);
        }
        let is_same = word.as_live().is_some_and(|live| live.fingerprint == operation.hash.fingerprint());
        match self.read_object(word).filter(|_| is_same) {
            Some(read) => {
                operation.learnt_at = now;
                change.phase = Phase::Winner(word);
                operation.step = Step::Change(change);
                Next::Post(vec![read])
            }
            None => Next::Again,
        }
    }

    fn read_winner(&mut self, operation: &mut Operation, results: &[PostResult], now: Nanos) -> Next {
        operation.step = Step::Start;
        let bytes = bytes_of(results, 0, 0).unwrap_or_default();
        let is_fresh = self.is_fresh(operation, now);
        let object = self.verified(bytes);
        match object.filter(|object| is_fresh && object.key == operation.call.key) {
            Some(object) if object.kind.is_unconditional() => self.absorbed(operation),
            _ => Next::Again,
        }
    }

    pub(super) fn absorbed(&mut self, operation: &Operation) -> Next {
        // What the slot has now was not heard.
        self.cache.remove(operation.hash);
        self.counters.absorbed += 1;
        let generation = operation.object.as_ref().map_or(Generation(0), |object| object.generation);
        Next::Finish(Outcome::Stored(generation))
    }

    /// The primary has the new word.
    fn won(&mut self, operation: &mut Operation, change: &SlotChange, now: Nanos) -> Next {
        self.has_changed(operation, change.purpose, (change.id.slot, change.old, change.new), now)
    }

    /// A slot has changed, for this operation.
    pub(super) fn has_changed(
        &mut self,
        operation: &mut Operation,
        purpose: Purpose,
        (slot, old, new): (u32, SlotWord, SlotWord),
        now: Nanos,
    ) -> Next {
        self.counters.won += 1;
        // Nobody else will free what the old word led to.
        if let Some(old) = old.as_live() {
            self.free(old.address, now);
        }
        match purpose {
            Purpose::Claim => {
                operation.claim_object = None;
                operation.claim = Some((slot, new));
                Next::Again
            }
            Purpose::Release => {
                self.counters.released += 1;
                operation.claim = None;
                Next::Again
            }
            Purpose::Delete => {
                self.cache.remove(operation.hash);
                Next::Finish(Outcome::Deleted(true))
            }
            Purpose::Store => {
                let generation = self.stored(operation);
                let is_granted = self.may_keep(operation);
                // It was there when this was heard of, or before: where it was granted that is now.
                let seen =
                    CachedSlot { slot, word: new, generation, learnt_at: operation.learnt_at, is_granted };
                self.cache.insert(operation.hash, &operation.call.key, seen);
                if let Request::Put(value, _) = &operation.call.request {
                    self.cache.insert_value(operation.hash, generation, value);
                }
                Next::Finish(Outcome::Stored(generation))
            }
        }
    }

    /// What became of a change that was under way when the configuration changed; an outcome if the call is done by it.
    ///
    /// A winner that had posted its last swap had its word on all backups. If the primary that was to answer is lost, the change took place: either the backups still
    /// have the word, and it was kept, or another writer has found it on the primary.
    pub(super) fn resolve_doubt(
        &mut self,
        operation: &mut Operation,
        verdicts: &[Verdict],
        now: Nanos,
    ) -> Option<Outcome> {
        let change = match std::mem::replace(&mut operation.step, Step::Start) {
            Step::Change(change) => change,
            Step::Submit(submission) => {
                return self.resolve_submission(operation, &submission, verdicts, now);
            }
            _ => return None,
        };
        if !self.repairs.verdicts {
            return None;
        }
        let verdict = verdicts.iter().find(|verdict| verdict.slot == change.id).map(|verdict| verdict.word);
        let answer =
            operation.results.first().and_then(Option::as_ref).filter(|_| change.phase == Phase::Commit);
        let is_applied = match answer {
            Some(Ok(_)) => {
                let results: Vec<PostResult> = operation.results.iter().flatten().cloned().collect();
                before_of(&results, 0) == Some(change.old.0)
            }
            Some(Err(_)) => {
                change.backups.iter().any(|&node| self.living().has(node)) || verdict == Some(change.new)
            }
            None => verdict == Some(change.new),
        };
        let is_certain = matches!(answer, Some(Ok(_)));
        if is_applied && !is_certain && change.new.as_live().is_none() {
            // The same tombstone may be another delete's: only the swap of the primary tells whose it is, and who frees the object.
            return (change.purpose == Purpose::Delete).then_some(Outcome::Indeterminate);
        }
        if is_applied {
            self.counters.verdicts_applied += 1;
            return match self.won(operation, &change, now) {
                Next::Finish(outcome) => Some(outcome),
                _ => None,
            };
        }
        self.counters.verdicts_refused += 1;
        // Without a verdict nothing is known, and doing it again could do it twice.
        let is_known = verdict.is_some() || is_certain;
        if is_known {
            return None;
        }
        operation.object = None;
        operation.claim_object = None;
        Some(Outcome::Indeterminate)
    }
}
