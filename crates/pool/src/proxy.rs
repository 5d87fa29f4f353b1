//! The proxy of partitions, on a compute node: it alone changes their index, and answers from a copy in its own memory.
//!
//! Owns the words of its partitions, in one epoch. Promises that a word is answered only after all copies on memory nodes have it, that a request is executed once, and that a key is in one slot. Must not know keys or objects.
//!
//! Clients write objects themselves, say which slot they mean and what it must have, and ask which slots may have a key: FlexKV's proxied mode (arXiv 2512.16148, section 5), with repairs.
//!
//! * A change locks its slot, and if the key was absent the key's hash. What it expects is compared under the lock, before anything is written (holes 5 and 6).
//! * A key that was absent comes with the words of its fingerprint that the writer saw to be other keys'. If they are not what is there now, the key may be there: the writer looks again (hole 8).
//! * Then all copies are written, and once all are acknowledged the own word: this is when the change happens. While a memory node does not answer the slot stays locked, and the manager decides.
//! * Writers without a condition that wait for one slot and expect a word of the same key are *combined*: the last is done, the others count as done just before it and are answered after it (hole 10).
//! * Words are answered only while the lease holds: nobody takes a partition over before it is over (hole 13). Changes need no lease: where the session is fenced they are never acknowledged.
//! * Answers are kept until the session says that it has them (section 6 of the paper leaves repeated requests open).
//! * Requests of another epoch are passed over; nothing is kept from one epoch to the next.
//! * Pairs that are read more often than written are *granted* to caches of clients (`directory.rs`). While a slot is locked nothing of it is granted, and the change happens only once all sharers have dropped the pair (holes 1 and 2).

mod directory;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::bucket::KeyHash;
use crate::fabric::{Nanos, NodeId, OpResult, PostResult, RemoteOp, SessionId};
use crate::machine::Out;
use crate::region::{NodeSet, PoolLayout, SlotId};
use crate::repairs::Repairs;
use crate::rpc::{ANY_SLOT, IndexChange, IndexRpc, SlotAndWord, WriteStatus};
use crate::wire::Message;
use crate::word::SlotWord;
use directory::{Directory, Sharer};
use table::ProxyTable;

/// What tags of its posts begin with.
pub(crate) const PROXY_POST: u32 = u32::MAX - 1;
/// Requests that wait for one slot, or for one new key, at most; more are told so.
const WAITING_MAX: usize = 64;
/// Requests that wait, at most: each change that is done looks through them.
const WAITING_IN_ALL_MAX: usize = 1024;
/// Requests that cannot be answered yet, at most; more come again.
const EARLY_MAX: usize = 64;
/// Renewals of a lease that are sent within its length, at most.
const RENEWALS: Nanos = 8;
/// Requests of a session whose answers are kept, at most: more than it may have under way.
const KEPT_MAX: usize = 256;

/// In which epoch, as whom, with which memory nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) epoch: u32,
    pub(crate) session: SessionId,
    pub(crate) living: NodeSet,
}

/// A write that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WriteRequest {
    from: NodeId,
    session: u16,
    sequence: u32,
    hash: KeyHash,
    /// Its writer would keep the pair in its cache.
    caches: bool,
    change: IndexChange,
}

impl WriteRequest {
    fn sharer(&self) -> Option<Sharer> {
        self.caches.then_some((self.session, self.from))
    }
}

/// A change on its way to all copies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PendingChange {
    partition: u16,
    request: WriteRequest,
    slot: u32,
    old: SlotWord,
    new: SlotWord,
    /// Combined with it.
    absorbs: Vec<WriteRequest>,
    /// Words of the same key that the slot had, the present one last.
    lineage: Vec<SlotWord>,
    /// Copies that have not acknowledged it.
    missing: usize,
    /// Who has not said that the pair is in its cache no more, and under which number, and since when, they are asked.
    sharers: Vec<Sharer>,
    invalidation: u32,
    asked_at: Nanos,
    asked_again_at: Nanos,
}

impl PendingChange {
    fn is_through(&self) -> bool {
        self.missing == 0 && self.sharers.is_empty()
    }
}

/// What was answered to a session, or is on its way: by sequence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Served {
    acknowledged: u32,
    answers: BTreeMap<u32, Option<IndexRpc>>,
}

/// Counts of what a proxy did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProxyCounters {
    /// Look-ups answered.
    pub reads: u64,
    /// Steps of walks answered.
    pub ranges: u64,
    /// Changes done.
    pub changes: u64,
    /// Changes that counted as done just before another one.
    pub combined: u64,
    /// Requests that came again.
    pub repeated: u64,
    /// Requests of another epoch.
    pub stale: u64,
    /// Pairs granted to caches.
    pub granted: u64,
    /// Sharers that were told to drop a pair.
    pub invalidated: u64,
}

impl ProxyCounters {
    /// The sums of both.
    pub fn plus(self, other: ProxyCounters) -> ProxyCounters {
        ProxyCounters {
            reads: self.reads + other.reads,
            ranges: self.ranges + other.ranges,
            changes: self.changes + other.changes,
            combined: self.combined + other.combined,
            repeated: self.repeated + other.repeated,
            stale: self.stale + other.stale,
            granted: self.granted + other.granted,
            invalidated: self.invalidated + other.invalidated,
        }
    }
}

// Counters tell no states apart.
impl std::hash::Hash for ProxyCounters {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// The machine, which is part of its node's client: they share session, epoch and lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Proxy {
    node: NodeId,
    layout: PoolLayout,
    lease_ns: Nanos,
    repairs: Repairs,
    grant: Option<Grant>,
    /// Nothing is answered any more but changes that are under way.
    is_stopped: bool,
    /// None: it is being read.
    tables: BTreeMap<u16, Option<ProxyTable>>,
    loading: BTreeMap<u16, u16>,
    pending: BTreeMap<u16, PendingChange>,
    /// From where a free number is looked for.
    next_post: u16,
    waiting: VecDeque<WriteRequest>,
    served: BTreeMap<u16, Served>,
    /// What cannot be answered yet: of an epoch to come, of a table that is not read yet, without a lease.
    early: VecDeque<(NodeId, IndexRpc)>,
    lease_until: Nanos,
    /// Renewals that are not answered, and when they were sent, less than a lease ago.
    renewals: VecDeque<(u32, Nanos)>,
    next_renewal: u32,
    directory: Directory,
    next_invalidation: u32,
    pub(crate) counters: ProxyCounters,
}

impl Proxy {
    pub(crate) fn new(node: NodeId, layout: PoolLayout, lease_ns: Nanos, repairs: Repairs) -> Proxy {
        Proxy {
            node,
            layout,
            lease_ns,
            repairs,
            grant: None,
            is_stopped: true,
            tables: BTreeMap::new(),
            loading: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_post: 0,
            waiting: VecDeque::new(),
            served: BTreeMap::new(),
            early: VecDeque::new(),
            lease_until: 0,
            renewals: VecDeque::new(),
            next_renewal: 0,
            directory: Directory::default(),
            next_invalidation: 0,
            counters: ProxyCounters::default(),
        }
    }

    /// A new epoch: these partitions are its own, and nothing is left of the last one. Returns how many posts there are.
    pub(crate) fn install<A>(
        &mut self,
        now: Nanos,
        grant: Grant,
        partitions: Vec<u16>,
        out: &mut Vec<Out<A>>,
    ) -> u32 {
        self.refuse_waiting(out);
        self.grant = Some(grant);
        self.is_stopped = false;
        self.tables = partitions.iter().map(|&partition| (partition, None)).collect();
        self.loading.clear();
        self.pending.clear();
        self.served.clear();
        self.lease_until = 0;
        self.renewals.clear();
        self.directory.clear();
        self.next_invalidation = 0;
        let mut posts = 0;
        for partition in partitions {
            let at = self.layout.table_address(partition);
            let replicas = self.layout.living_replicas(at.region, grant.living);
            // Where all copies are lost nobody is answered.
            let Some(&to) = replicas.first() else { continue };
            let bytes = crate::bucket::table_bytes(self.layout.groups) as u32;
            // There are fewer partitions than numbers.
            let Some(number) = self.free_number() else { continue };
            self.loading.insert(number, partition);
            let tag = tag(number, 0);
            let batch = vec![RemoteOp::Read(at, bytes)];
            out.push(Out::Post { session: grant.session, to, batch, tag });
            posts += 1;
        }
        if !self.tables.is_empty() {
            self.renew(now, out);
        }
        posts + self.try_early(now, out)
    }

    /// Another epoch is prepared, or the session is given up: nothing more begins, and nothing more is answered from here but changes that are under way.
    pub(crate) fn stop<A>(&mut self, out: &mut Vec<Out<A>>) {
        self.is_stopped = true;
        self.refuse_waiting(out);
        self.early.clear();
    }

    /// Writers that wait need not be in doubt: nothing of what they asked for has begun.
    fn refuse_waiting<A>(&mut self, out: &mut Vec<Out<A>>) {
        for request in std::mem::take(&mut self.waiting) {
            self.refuse(&request, out);
        }
    }

    /// A number that completions of nothing under way have: a change may stay long where a memory node does not answer, and 65,536 others go by. None: all are in use.
    fn free_number(&mut self) -> Option<u16> {
        let is_free = |number: &u16| !self.pending.contains_key(number) && !self.loading.contains_key(number);
        let mut numbers = (0..=u16::MAX).map(|step| self.next_post.wrapping_add(step));
        let number = numbers.find(is_free)?;
        self.next_post = number.wrapping_add(1);
        Some(number)
    }

    /// The copies that it answers from.
    #[cfg(test)]
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let is_open = !self.is_stopped && self.pending.is_empty();
        let open = self.tables.iter().filter(move |_| is_open);
        open.filter_map(|(&partition, table)| Some((partition, table.as_ref()?.bytes())))
    }

    /// Whether what was granted to this session, or to others by it, holds now.
    pub(crate) fn has_lease(&self, now: Nanos) -> bool {
        now < self.lease_until || !self.repairs.lease
    }

    /// When its lease ends.
    pub(crate) fn lease_until(&self) -> Nanos {
        self.lease_until
    }

    /// Asks for a lease, unless there is one: something was granted.
    pub(crate) fn begin_lease<A>(&mut self, now: Nanos, out: &mut Vec<Out<A>>) {
        if !self.is_stopped && now >= self.lease_until {
            self.renew(now, out);
        }
    }

    /// Has its lease go on, if it has anything or `is_needed`, and asks sharers again that have not answered.
    pub(crate) fn housekeep<A>(&mut self, now: Nanos, is_needed: bool, out: &mut Vec<Out<A>>) {
        let is_needed = is_needed || !self.tables.is_empty();
        if !self.is_stopped && is_needed && now + self.lease_ns / 2 > self.lease_until {
            self.renew(now, out);
        }
        self.ask_sharers_again(now, out);
    }

    /// Asks sharers again that have not answered, an eighth of a lease after the last time. One that is silent for longer than its lease may come back, and would answer from its cache then: the manager is told, who can end that.
    fn ask_sharers_again<A>(&mut self, now: Nanos, out: &mut Vec<Out<A>>) {
        let Some(Grant { epoch, session: SessionId(by), .. }) = self.grant else { return };
        let is_due = |pending: &PendingChange| {
            !pending.sharers.is_empty() && now.saturating_sub(pending.asked_again_at) >= self.lease_ns / 8
        };
        let due: Vec<u16> =
            self.pending.iter().filter(|(_, pending)| is_due(pending)).map(|(&number, _)| number).collect();
        for number in due {
            let Some(pending) = self.pending.get_mut(&number) else { continue };
            pending.asked_again_at = now;
            let Some(pending) = self.pending.get(&number) else { continue };
            self.invalidate(pending, out);
            if now.saturating_sub(pending.asked_at) > 2 * self.lease_ns {
                for &(session, _) in &pending.sharers {
                    let bytes = Message::Silent { epoch, by, session }.encode(self.node.0);
                    out.push(Out::Send { to: NodeId::MANAGER, bytes });
                }
            }
        }
    }

    /// Tells all that may have the pair in a cache to drop it.
    fn invalidate<A>(&self, pending: &PendingChange, out: &mut Vec<Out<A>>) {
        let epoch = self.grant.map_or(0, |grant| grant.epoch);
        for &(session, to) in &pending.sharers {
            let (sequence, hash) = (pending.invalidation, pending.request.hash);
            self.answer(to, IndexRpc::Invalidate { epoch, session, sequence, hash }, out);
        }
    }

    /// A sharer has dropped a pair. Returns how many posts there are that follow.
    fn invalidated<A>(
        &mut self,
        now: Nanos,
        (session, sequence, hits): (u16, u32, u32),
        out: &mut Vec<Out<A>>,
    ) -> u32 {
        let asked = self.pending.iter_mut().find(|(_, pending)| pending.invalidation == sequence);
        let Some((&number, pending)) = asked.filter(|(_, pending)| !pending.sharers.is_empty()) else {
            return 0;
        };
        let before = pending.sharers.len();
        pending.sharers.retain(|(other, _)| *other != session);
        if pending.sharers.len() == before {
            return 0;
        }
        let (partition, slot, is_through) = (pending.partition, pending.slot, pending.is_through());
        self.directory.count_hits(partition, slot, hits);
        if is_through { self.commit(now, number, out) } else { 0 }
    }

    /// Asks for the lease, and again while nothing is answered: earlier answers count, too, since a round trip may be longer than the time between two.
    fn renew<A>(&mut self, now: Nanos, out: &mut Vec<Out<A>>) {
        let Some(grant) = self.grant else { return };
        self.renewals.retain(|&(_, sent_at)| now < sent_at.saturating_add(self.lease_ns));
        let step_ns = (self.lease_ns / RENEWALS).max(1);
        if self.renewals.back().is_some_and(|&(_, sent_at)| now < sent_at.saturating_add(step_ns)) {
            return;
        }
        self.next_renewal = self.next_renewal.wrapping_add(1);
        self.renewals.push_back((self.next_renewal, now));
        let message = Message::Renew { session: grant.session.0, sequence: self.next_renewal };
        out.push(Out::Send { to: NodeId::MANAGER, bytes: message.encode(self.node.0) });
    }

    /// The lease goes on, from when that was asked for.
    pub(crate) fn renewed<A>(&mut self, now: Nanos, sequence: u32, out: &mut Vec<Out<A>>) -> u32 {
        let Some(at) = self.renewals.iter().position(|(asked, _)| *asked == sequence) else { return 0 };
        let Some((_, sent_at)) = self.renewals.drain(..=at).next_back() else { return 0 };
        self.lease_until = self.lease_until.max(sent_at.saturating_add(self.lease_ns));
        self.try_early(now, out)
    }

    fn try_early<A>(&mut self, now: Nanos, out: &mut Vec<Out<A>>) -> u32 {
        let early = std::mem::take(&mut self.early);
        early.into_iter().map(|(from, rpc)| self.asked(now, from, rpc, out)).sum()
    }

    /// A request came. Returns how many posts there are.
    pub(crate) fn asked<A>(&mut self, now: Nanos, from: NodeId, rpc: IndexRpc, out: &mut Vec<Out<A>>) -> u32 {
        let (epoch, ..) = rpc.identity();
        let own = self.grant.map_or(0, |grant| grant.epoch);
        if epoch < own && self.repairs.rpc_epoch {
            self.counters.stale += 1;
            return 0;
        }
        if epoch > own {
            self.keep_for_later(from, rpc);
            return 0;
        }
        if let IndexRpc::Invalidated { session, sequence, hits, .. } = rpc {
            return self.invalidated(now, (session, sequence, hits), out);
        }
        if self.is_stopped {
            return 0;
        }
        match rpc {
            IndexRpc::Read { hash, .. } => {
                let partition = hash.partition(self.layout.partition_bits);
                self.read(now, from, partition, rpc, out)
            }
            IndexRpc::Range { from: place, .. } => self.read(now, from, place.partition, rpc, out),
            IndexRpc::Write { session, sequence, acknowledged, hash, caches, change, .. } => {
                let request = WriteRequest { from, session, sequence, hash, caches, change };
                self.write(now, acknowledged, request, out)
            }
            IndexRpc::Words { .. }
            | IndexRpc::Written { .. }
            | IndexRpc::Invalidate { .. }
            | IndexRpc::Invalidated { .. } => 0,
        }
    }

    fn keep_for_later(&mut self, from: NodeId, rpc: IndexRpc) {
        // What is acknowledged may be said anew.
        let is_same = |other: &IndexRpc| other.identity() == rpc.identity();
        if self.early.len() < EARLY_MAX && !self.early.iter().any(|(_, other)| is_same(other)) {
            self.early.push_back((from, rpc));
        }
    }

    fn answer<A>(&self, to: NodeId, rpc: IndexRpc, out: &mut Vec<Out<A>>) {
        out.push(Out::Send { to, bytes: Message::Index(rpc).encode(self.node.0) });
    }

    fn read<A>(
        &mut self,
        now: Nanos,
        from: NodeId,
        partition: u16,
        rpc: IndexRpc,
        out: &mut Vec<Out<A>>,
    ) -> u32 {
        let (epoch, session, sequence) = rpc.identity();
        let has_lease = self.has_lease(now);
        match self.tables.get(&partition) {
            None => return 0,
            Some(Some(table)) if has_lease => {
                let (words, free, all) = match rpc {
                    IndexRpc::Read { hash, .. } => table.candidates(hash),
                    IndexRpc::Range { from, .. } => (table.live_from(from.slot), false, true),
                    _ => return 0,
                };
                let grant = match rpc {
                    IndexRpc::Read { caches, .. } => {
                        self.counters.reads += 1;
                        self.grant(partition, &words, caches.then_some((session, from)))
                    }
                    _ => {
                        self.counters.ranges += 1;
                        false
                    }
                };
                self.answer(from, IndexRpc::Words { epoch, session, sequence, all, free, grant, words }, out);
                return 0;
            }
            Some(_) => {}
        }
        self.keep_for_later(from, rpc);
        if !has_lease {
            self.renew(now, out);
        }
        0
    }

    /// Counts a read of all slots that may be the key's, nearly always one, and whether the pair may be cached: if it may whichever it is, since words do not tell keys apart (hole 21). Not while it changes: whoever was a sharer then was told, and would not be told again (hole 1).
    fn grant(&mut self, partition: u16, words: &[SlotAndWord], sharer: Option<Sharer>) -> bool {
        let is_any = |pending: &PendingChange| {
            pending.partition == partition && words.iter().any(|(slot, _)| *slot == pending.slot)
        };
        let is_locked = self.repairs.grant_unlocked && self.pending.values().any(is_any);
        let sharer = sharer.filter(|_| !is_locked);
        let mut is_granted = !words.is_empty();
        for &(slot, _) in words {
            is_granted &= self.directory.read(partition, slot, sharer);
        }
        self.counters.granted += u64::from(is_granted);
        is_granted
    }

    fn write<A>(
        &mut self,
        now: Nanos,
        acknowledged: u32,
        request: WriteRequest,
        out: &mut Vec<Out<A>>,
    ) -> u32 {
        let partition = request.hash.partition(self.layout.partition_bits);
        let is_loaded = match self.tables.get(&partition) {
            None => return 0,
            Some(table) => table.is_some(),
        };
        if !is_loaded {
            let epoch = self.grant.map_or(0, |grant| grant.epoch);
            let WriteRequest { from, session, sequence, hash, caches, change } = request;
            self.keep_for_later(
                from,
                IndexRpc::Write { epoch, session, sequence, acknowledged, hash, caches, change },
            );
            return 0;
        }
        let served = self.served.entry(request.session).or_default();
        served.acknowledged = served.acknowledged.max(acknowledged);
        let least = served.acknowledged;
        served.answers.retain(|&sequence, _| sequence >= least);
        if self.repairs.once {
            if request.sequence < least {
                return 0;
            }
            if let Some(answer) = served.answers.get(&request.sequence) {
                self.counters.repeated += 1;
                if let Some(answer) = answer.clone() {
                    self.answer(request.from, answer, out);
                }
                return 0;
            }
            if served.answers.len() >= KEPT_MAX {
                return 0;
            }
        }
        served.answers.insert(request.sequence, None);
        self.consider(now, request, out)
    }

    fn written(
        &self,
        request: &WriteRequest,
        status: WriteStatus,
        slot: u32,
        old: SlotWord,
        new: SlotWord,
        granted_by: u32,
    ) -> IndexRpc {
        let epoch = self.grant.map_or(0, |grant| grant.epoch);
        let WriteRequest { session, sequence, .. } = *request;
        IndexRpc::Written { epoch, session, sequence, status, slot, old, new, granted_by }
    }

    /// Answers a write, and keeps the answer.
    fn conclude<A>(
        &mut self,
        request: &WriteRequest,
        status: WriteStatus,
        (slot, old, new): (u32, SlotWord, SlotWord),
        out: &mut Vec<Out<A>>,
    ) {
        self.conclude_with(request, self.written(request, status, slot, old, new, 0), out);
    }

    fn conclude_with<A>(&mut self, request: &WriteRequest, answer: IndexRpc, out: &mut Vec<Out<A>>) {
        if let Some(served) = self.served.get_mut(&request.session) {
            served.answers.insert(request.sequence, Some(answer.clone()));
        }
        self.answer(request.from, answer, out);
    }

    /// Says that nothing of a write has begun, nor will. Kept, too: were it executed when it comes again, its sender would have asked under another number.
    fn refuse<A>(&mut self, request: &WriteRequest, out: &mut Vec<Out<A>>) {
        let none = SlotWord::NEVER_USED;
        self.conclude(request, WriteStatus::Busy, (request.change.slot, none, none), out);
    }

    /// Whether there is no room for another request that waits for the same.
    fn has_no_room_for(&self, request: &WriteRequest) -> bool {
        let place = |one: &WriteRequest| {
            let partition = one.hash.partition(self.layout.partition_bits);
            (partition, one.change.slot, (one.change.slot == ANY_SLOT).then_some(one.hash))
        };
        let is_rival = |other: &&WriteRequest| place(other) == place(request);
        self.waiting.len() >= WAITING_IN_ALL_MAX
            || self.waiting.iter().filter(is_rival).count() >= WAITING_MAX
    }

    /// Begins a change, refuses it, or lets it wait.
    fn consider<A>(&mut self, now: Nanos, request: WriteRequest, out: &mut Vec<Out<A>>) -> u32 {
        let partition = request.hash.partition(self.layout.partition_bits);
        let in_it = || self.pending.values().filter(|pending| pending.partition == partition);
        let change = &request.change;
        let is_new = change.seen.is_some();
        let hash_is_locked = self.repairs.hash_lock
            && is_new
            && in_it().any(|other| other.request.change.seen.is_some() && other.request.hash == request.hash);
        let slot_is_locked = self.repairs.slot_lock && in_it().any(|other| other.slot == change.slot);
        if hash_is_locked || slot_is_locked {
            let answers_early = !self.repairs.absorb_after && change.combines && !is_new;
            if answers_early {
                let (slot, none) = (change.slot, SlotWord::NEVER_USED);
                self.conclude(&request, WriteStatus::Absorbed, (slot, none, none), out);
            } else if self.has_no_room_for(&request) {
                self.refuse(&request, out);
            } else {
                self.waiting.push_back(request);
            }
            return 0;
        }
        let taken: Vec<u32> =
            if self.repairs.slot_lock { in_it().map(|other| other.slot).collect() } else { Vec::new() };
        let Some(Some(table)) = self.tables.get(&partition) else { return 0 };
        let is_as_seen = change.seen.as_ref().is_none_or(|seen| *seen == table.of_fingerprint(request.hash));
        let slot = match change.slot {
            ANY_SLOT => table.free_slot(request.hash, &taken),
            slot => Some(slot),
        };
        let found = slot.and_then(|slot| table.word(request.hash, slot));
        let is_expected = change.slot == ANY_SLOT || found == Some(change.expected);
        match (slot, found) {
            _ if !is_as_seen && self.repairs.negative_set || !is_expected => {
                let none = SlotWord::NEVER_USED;
                self.conclude(&request, WriteStatus::Conflict, (change.slot, none, none), out);
                0
            }
            (Some(slot), Some(old)) => self.begin(now, request, (slot, old), (Vec::new(), vec![old]), out),
            _ => {
                let none = SlotWord::NEVER_USED;
                self.conclude(&request, WriteStatus::Full, (ANY_SLOT, none, none), out);
                0
            }
        }
    }

    /// Writes all copies.
    fn begin<A>(
        &mut self,
        now: Nanos,
        request: WriteRequest,
        (slot, old): (u32, SlotWord),
        (absorbs, mut lineage): (Vec<WriteRequest>, Vec<SlotWord>),
        out: &mut Vec<Out<A>>,
    ) -> u32 {
        let Some(grant) = self.grant else { return 0 };
        let Some(number) = self.free_number() else {
            absorbs.iter().chain([&request]).for_each(|one| self.refuse(one, out));
            return 0;
        };
        let partition = request.hash.partition(self.layout.partition_bits);
        let new = match request.change.word.as_live() {
            Some(live) => SlotWord::live_after(old, live.fingerprint, live.units, live.address),
            None => SlotWord::tombstone_after(old, now / 1_000_000),
        };
        lineage.push(new);
        let at = self.layout.slot_address(SlotId { partition, slot });
        let replicas = self.layout.living_replicas(at.region, grant.living);
        for (copy, &to) in replicas.iter().enumerate() {
            let batch = vec![RemoteOp::Write(at, new.0.to_le_bytes().to_vec())];
            out.push(Out::Post { session: grant.session, to, batch, tag: tag(number, copy) });
        }
        let missing = replicas.len();
        let sharers = self.directory.take_sharers(partition, slot);
        self.counters.invalidated += sharers.len() as u64;
        // 0 is none's; there are not so many changes in one epoch that they begin anew.
        self.next_invalidation = self.next_invalidation.wrapping_add(1).max(1);
        let invalidation = self.next_invalidation;
        let mut change = PendingChange {
            partition,
            request,
            slot,
            old,
            new,
            absorbs,
            lineage,
            missing,
            sharers,
            invalidation,
            asked_at: now,
            asked_again_at: now,
        };
        self.invalidate(&change, out);
        if !self.repairs.invalidate {
            change.sharers.clear();
        }
        self.pending.insert(number, change);
        if !self.repairs.write_through {
            self.commit(now, number, out);
        }
        missing as u32
    }

    /// A post is done. Returns how many there are that follow.
    pub(crate) fn done<A>(&mut self, now: Nanos, low: u32, result: PostResult, out: &mut Vec<Out<A>>) -> u32 {
        let number = (low >> 16) as u16;
        // What a lost memory node does not acknowledge is open until the manager has decided.
        let Ok(results) = result else { return 0 };
        if let Some(partition) = self.loading.remove(&number) {
            if let (Some(table), Some(OpResult::Bytes(bytes))) =
                (self.tables.get_mut(&partition), results.into_iter().next())
            {
                *table = Some(ProxyTable::new(&self.layout, partition, bytes));
            }
            return self.try_early(now, out);
        }
        let Some(pending) = self.pending.get_mut(&number) else { return 0 };
        pending.missing = pending.missing.saturating_sub(1);
        if pending.is_through() { self.commit(now, number, out) } else { 0 }
    }

    /// The change has happened: whether its writer may have the pair in its cache.
    fn grant_to_writer(
        &mut self,
        request: &WriteRequest,
        (partition, slot, new): (u16, u32, SlotWord),
    ) -> bool {
        if new.as_live().is_none() || request.change.seen.is_some() {
            self.directory.changed_key(partition, slot);
            return false;
        }
        // Another change of it may be about to begin, and it tells its sharers then.
        let is_granted = self.directory.written(partition, slot, request.sharer());
        self.counters.granted += u64::from(is_granted);
        is_granted
    }

    /// All copies have the new word: the change happens, and those that waited for it go on.
    fn commit<A>(&mut self, now: Nanos, number: u16, out: &mut Vec<Out<A>>) -> u32 {
        let Some(change) = self.pending.remove(&number) else { return 0 };
        let PendingChange { partition, request, slot, old, new, absorbs, mut lineage, invalidation, .. } =
            change;
        if let Some(Some(table)) = self.tables.get_mut(&partition) {
            table.set(slot, new);
        }
        self.counters.changes += 1;
        self.counters.combined += absorbs.len() as u64;
        for absorbed in &absorbs {
            self.conclude(absorbed, WriteStatus::Absorbed, (slot, old, new), out);
        }
        let is_granted = self.grant_to_writer(&request, (partition, slot, new));
        let granted_by = if is_granted { invalidation } else { 0 };
        self.conclude_with(
            &request,
            self.written(&request, WriteStatus::Done, slot, old, new, granted_by),
            out,
        );
        if self.is_stopped {
            return 0;
        }
        let is_store = new.as_live().is_some() && request.change.seen.is_none();
        let combines = |other: &WriteRequest| {
            let change = &other.change;
            let is_same_key = change.slot == slot
                && other.hash.partition(self.layout.partition_bits) == partition
                && lineage.contains(&change.expected);
            is_store && change.combines && change.seen.is_none() && is_same_key
        };
        let (mut group, rest): (Vec<WriteRequest>, Vec<WriteRequest>) =
            std::mem::take(&mut self.waiting).into_iter().partition(combines);
        let mut posts = 0;
        if let Some(last) = group.pop() {
            let oldest = lineage.len().saturating_sub(8);
            lineage.drain(..oldest);
            posts += self.begin(now, last, (slot, new), (group, lineage), out);
        }
        for other in rest {
            posts += self.consider(now, other, out);
        }
        posts
    }
}

fn tag(number: u16, copy: usize) -> u64 {
    u64::from(PROXY_POST) << 32 | u64::from(number) << 16 | copy as u64
}
