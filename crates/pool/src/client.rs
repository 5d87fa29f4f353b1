//! A compute node's client: it finds, reads and changes everything by one-sided operations, but for the index of partitions that have a proxy. It has its node's proxy, too.
//!
//! Owns the operations of one session, from call to answer. Promises that answers are linearizable key by key as long as its messages, posts and fences
//! are carried as `fabric.rs` says; a write of which it cannot say whether it happens is answered `Indeterminate`. Must not know who else works on the pool.
//!
//! | file | what of an operation |
//! |---|---|
//! | `operation.rs` | what is remembered of it |
//! | `lookup.rs` | finding a key: cache, buckets, objects |
//! | `write.rs` | what a write does about what was found, and changing slots |
//! | `slot_change.rs` | who wins a slot |
//! | `space.rs`, `slab.rs` | memory for objects: blocks from agents, what is freed and by whom |
//! | `proxied.rs`, `submission.rs` | finding and changing where a proxy has the partition |
//! | `parts.rs` | values in parts |
//! | `walk.rs` | some pairs of the table, whatever their keys |
//! | `cache.rs` | where a key was last seen, and what its proxy granted of it |
//!
//! A look-up finds the slots whose objects have the key. There are three kinds of changes. *Store*: a live word, or a claim, gives way to the word of the new value. *Delete*: a
//! live word gives way to a tombstone. *Claim*: a new key takes a free slot by an object that reads as absent; only who has then looked the key up again, and found no other slot of it, may
//! store over the claim. So two writers that put one new key at the same time cannot leave it in two slots, and readers never see a value that is taken back (the tentative
//! entries of FASTER, SIGMOD 2018, do the same for one process).

mod cache;
mod lookup;
mod operation;
mod parts;
mod proxied;
mod slab;
mod slot_change;
mod space;
mod submission;
mod walk;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use self::operation::{
    ClientAnswer, ClientCall, ClientCounters, Condition, Outcome, Request, WalkedPair,
};
#[cfg(test)]
pub(crate) use self::slab::Slab;
use crate::accesses::AccessCounts;
use crate::fabric::{Batch, Nanos, NodeId, OpResult, PostError, PostResult, SessionId};
use crate::machine::{In, Machine, Out};
use crate::object::{Generation, OBJECT_BYTES_MAX};
use crate::parts::ObjectSizes;
use crate::proxy::{Grant, PROXY_POST, Proxy, ProxyCounters};
use crate::region::{MemoryNode, NodeSet, PoolLayout, SlotId};
use crate::repairs::Repairs;
use crate::rpc::IndexRpc;
use crate::wire::{DOUBTS_MAX, Doubt, Message, Owner, Verdict};
pub(crate) use cache::CacheReader;
use cache::PairCache;
use operation::{Next, Operation, Step};
#[cfg(not(test))]
use slab::Slab;
use slot_change::Phase;
use space::Space;

/// Settings of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientOptions {
    /// How long freed memory is not used again. Whoever has an address finishes with it in half of that. 200 ms by default, for RDMA.
    pub quarantine_ns: Nanos,
    /// A call is answered after this time at the latest. A second by default.
    pub timeout_ns: Nanos,
    /// Between two looks of a loser at the primary, at first. 2 us by default.
    pub poll_ns: Nanos,
    /// Between two rounds of what has no other occasion: repeated messages, freed objects. 1 ms by default.
    pub housekeeping_ns: Nanos,
    /// Operations under way at most, 1 to 128. 64 by default; further calls wait.
    pub depth: usize,
    /// Keys whose slots are remembered. 65,536 by default; 0: none, and no values.
    pub cached_keys: usize,
    /// Bytes of values that are cached, of keys whose partitions have a proxy; each has at most an eighth of it. 64 MiB by default, as in FlexKV (arXiv 2512.16148).
    pub cached_bytes: usize,
    /// A proxy that does not answer is asked again after this time. 1 ms by default.
    pub rpc_retry_ns: Nanos,
    /// Units of 64 bytes, 1 to 255, of an object with its value in it, at most, and of a part of a value that is longer; no more than a block has. 255 by default.
    pub part_units: u8,
    /// How long a proxy may answer after it asked the manager: what [`ManagerOptions`](crate::manager::ManagerOptions) has, too. 50 ms by default, for RDMA.
    pub lease_ns: Nanos,
}

/// Of values, by default.
pub const CACHED_BYTES: usize = 64 << 20;

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            quarantine_ns: 200_000_000,
            timeout_ns: 1_000_000_000,
            poll_ns: 2_000,
            housekeeping_ns: 1_000_000,
            depth: 64,
            cached_keys: 65_536,
            cached_bytes: CACHED_BYTES,
            rpc_retry_ns: 1_000_000,
            part_units: u8::MAX,
            lease_ns: 50_000_000,
        }
    }
}

/// Bytes of long values that are being put at most, and of parts that are being read: more wait. A fabric holds so many for each memory node.
const LONG_BYTES_MAX: usize = 16 << 20;

/// The configuration that a client works in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ClientView {
    epoch: u32,
    living: NodeSet,
    session: SessionId,
}

/// The number that tags of what is no operation's begin with.
const NO_OPERATION: u32 = u32::MAX;
// Those of its proxy begin with the one below.
const _: () = assert!(PROXY_POST == NO_OPERATION - 1);

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    node: NodeId,
    boot: u64,
    layout: PoolLayout,
    options: ClientOptions,
    repairs: Repairs,
    view: Option<ClientView>,
    /// The epoch that is prepared: nothing is begun.
    preparing: Option<u32>,
    /// It said so, and not so long ago that it must again.
    was_reported: bool,
    is_fenced: bool,
    /// Posts that are not completed.
    outstanding: u32,
    operations: BTreeMap<u32, Operation>,
    next_operation: u32,
    next_generation: u64,
    calls: VecDeque<(ClientCall, Nanos)>,
    /// Puts of long values that wait for others of them: whoever comes after them passes.
    long_puts: VecDeque<(ClientCall, Nanos)>,
    timers: BTreeSet<(Nanos, u32)>,
    sizes: ObjectSizes,
    slab: Slab,
    space: Space,
    cache: PairCache,
    /// Partitions that have a proxy.
    owners: BTreeMap<u16, Owner>,
    /// Numbers requests to proxies, in each epoch from 1.
    next_sequence: u32,
    proxy: Proxy,
    housekeeping_at: Nanos,
    /// The earliest tick that was asked for and did not come yet.
    asked_for: Option<Nanos>,
    counters: ClientCounters,
    accesses: AccessCounts,
    /// Bytes of parts that are read at a time, at most, but those of one call.
    turn_bytes_max: usize,
}

impl Client {
    /// The client of a compute node. `boot` tells the lives of the node apart: no two have the same.
    pub fn new(node: NodeId, boot: u64, layout: PoolLayout, options: ClientOptions) -> Client {
        Client::with_repairs(node, boot, layout, options, Repairs::ALL)
    }

    pub(crate) fn with_repairs(
        node: NodeId,
        boot: u64,
        layout: PoolLayout,
        options: ClientOptions,
        repairs: Repairs,
    ) -> Client {
        let quarantine_ns = if repairs.quarantine { options.quarantine_ns } else { 0 };
        Client {
            node,
            boot,
            layout,
            options: ClientOptions { depth: options.depth.clamp(1, DOUBTS_MAX), ..options },
            repairs,
            view: None,
            preparing: None,
            was_reported: false,
            is_fenced: false,
            outstanding: 0,
            operations: BTreeMap::new(),
            next_operation: 0,
            next_generation: 0,
            calls: VecDeque::new(),
            long_puts: VecDeque::new(),
            timers: BTreeSet::new(),
            sizes: ObjectSizes::new(&layout, options.part_units),
            slab: Slab::new(layout, quarantine_ns, repairs.parts_quarantine),
            space: Space::default(),
            cache: PairCache::new(options.cached_keys, options.cached_bytes, layout.partition_bits),
            owners: BTreeMap::new(),
            next_sequence: 0,
            proxy: Proxy::new(node, layout, options.lease_ns, repairs),
            housekeeping_at: 0,
            asked_for: None,
            counters: ClientCounters::default(),
            accesses: AccessCounts::new(layout.partitions()),
            turn_bytes_max: LONG_BYTES_MAX,
        }
    }

    /// The same, whose cache others read: it is emptied first.
    pub(crate) fn with_cache(
        node: NodeId,
        boot: u64,
        layout: PoolLayout,
        options: ClientOptions,
        reader: &CacheReader,
    ) -> Client {
        Client { cache: PairCache::of_reader(reader), ..Client::new(node, boot, layout, options) }
    }

    /// What it did.
    pub fn counters(&self) -> ClientCounters {
        self.counters
    }

    /// What it did as a proxy.
    pub fn proxy_counters(&self) -> ProxyCounters {
        self.proxy.counters
    }

    /// Whether memory nodes refuse this session: it answers nothing but `Unavailable` any more, and the node needs a new client.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// Whether it has a session.
    pub fn is_ready(&self) -> bool {
        self.view.is_some()
    }

    /// The copies of the index that it answers from as a proxy.
    #[cfg(test)]
    pub(crate) fn proxy_tables(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.proxy.tables()
    }

    /// Whether it waits for another configuration.
    #[cfg(test)]
    pub(crate) fn is_preparing(&self) -> bool {
        self.preparing.is_some()
    }

    /// Its session, once it has one.
    #[cfg(test)]
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.view.map(|view| view.session)
    }

    /// Calls that are not answered yet.
    pub fn pending(&self) -> usize {
        let waiting = self.calls.len() + self.long_puts.len();
        waiting + self.operations.values().filter(|operation| !operation.is_answered).count()
    }

    /// The addresses of all that it was given out and has not freed.
    #[cfg(test)]
    pub(crate) fn slab(&self) -> &Slab {
        &self.slab
    }

    /// Takes in what happened, and says what is to be done.
    pub fn on(&mut self, now: Nanos, input: In<ClientCall>, out: &mut Vec<Out<ClientAnswer>>) {
        match input {
            In::Call(call) => self.call(now, call, out),
            In::Message(bytes) => {
                // A datagram that does not decode is as good as lost.
                if let Ok((from, message)) = Message::decode(&bytes) {
                    self.message(now, NodeId(from), message, out);
                }
            }
            In::Done(tag, result) => self.done(now, tag, result, out),
            In::Tick => {
                self.asked_for = self.asked_for.filter(|&at| at > now);
                self.tick(now, out);
            }
        }
        if !self.is_paused() {
            self.begin_calls(now, out);
            self.give_turns(now, out);
        }
        // Before anybody is told anything.
        let valid_until = if self.is_paused() { 0 } else { self.proxy.lease_until() };
        self.cache.set_valid_until(valid_until);
        // Before it says that it is prepared: the blocks may be given to somebody else then.
        self.flush_frees(out);
        self.report_prepared(out);
        self.ask_for_tick(now, out);
    }

    fn is_paused(&self) -> bool {
        self.preparing.is_some() || self.view.is_none() || self.is_fenced
    }

    fn call(&mut self, now: Nanos, call: ClientCall, out: &mut Vec<Out<ClientAnswer>>) {
        let outcome = match &call.request {
            _ if self.is_fenced => Some(Outcome::Unavailable),
            Request::Put(value, _) => {
                self.sizes.place(call.key.len(), value.len()).err().map(|_| Outcome::TooLong)
            }
            _ => self.sizes.place(call.key.len(), 0).err().map(|_| Outcome::TooLong),
        };
        match outcome {
            Some(outcome) => out.push(Out::Answer(ClientAnswer { id: call.id, outcome })),
            None => {
                self.calls.push_back((call, now.saturating_add(self.options.timeout_ns)));
            }
        }
    }

    fn begin_calls(&mut self, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        while !self.is_paused() && self.operations.len() < self.options.depth {
            let Some((call, deadline)) = self.next_call() else { return };
            let id = self.next_operation;
            // The last two numbers are those of what is no operation's.
            self.next_operation = (id + 1) % PROXY_POST;
            let is_write = matches!(call.request, Request::Put(..) | Request::Delete(_));
            let operation = Operation::new(call, deadline, self.layout.partition_bits);
            // A walk comes by whole partitions for whoever looks after them, and says nothing of which are hot.
            if !matches!(operation.call.request, Request::Walk(..)) {
                self.count_access(operation.hash.partition(self.layout.partition_bits), is_write);
            }
            self.operations.insert(id, operation);
            self.timers.insert((deadline, id));
            self.advance(id, now, out);
        }
    }

    /// The call that begins next. Puts of long values wait for others of them, in their order.
    fn next_call(&mut self) -> Option<(ClientCall, Nanos)> {
        if self.long_puts.front().is_some_and(|(call, _)| self.may_begin(call)) {
            return self.long_puts.pop_front();
        }
        while let Some(next) = self.calls.pop_front() {
            if long_bytes(&next.0) == 0 || self.long_puts.is_empty() && self.may_begin(&next.0) {
                return Some(next);
            }
            self.long_puts.push_back(next);
        }
        None
    }

    /// Whether there is room for the value of a put beside those that are under way, wait for memory among them.
    fn may_begin(&self, call: &ClientCall) -> bool {
        let under_way = self.long_bytes_under_way();
        under_way == 0 || under_way + long_bytes(call) <= LONG_BYTES_MAX
    }

    /// Bytes of long values that are being put.
    pub(crate) fn long_bytes_under_way(&self) -> usize {
        self.operations.values().map(|operation| long_bytes(&operation.call)).sum()
    }

    /// One more call reads something in a partition, or writes. What is done for it counts for nothing: it is how often callers ask that makes a partition hot.
    fn count_access(&mut self, partition: u16, is_write: bool) {
        self.accesses.count(partition, is_write);
    }

    fn tell_accesses(&mut self, session: u16, round: u32, out: &mut Vec<Out<ClientAnswer>>) {
        for (partition, reads) in self.cache.take_reads() {
            self.accesses.count_reads(partition, reads);
        }
        for report in self.accesses.answer(session, round) {
            let bytes = Message::Accesses(report).encode(self.node.0);
            out.push(Out::Send { to: NodeId::MANAGER, bytes });
        }
    }

    fn message(&mut self, now: Nanos, from: NodeId, message: Message, out: &mut Vec<Out<ClientAnswer>>) {
        match message {
            Message::View { epoch, living, session, boot, verdicts, owners } if boot == self.boot => {
                let view = ClientView { epoch, living, session: SessionId(session) };
                self.install(now, view, (&verdicts, &owners), out);
            }
            Message::Index(
                rpc @ (IndexRpc::Read { .. }
                | IndexRpc::Write { .. }
                | IndexRpc::Range { .. }
                | IndexRpc::Invalidated { .. }),
            ) if !self.is_fenced => {
                let posts = self.proxy.asked(now, from, rpc, out);
                self.proxy_posted(posts);
            }
            Message::Index(IndexRpc::Invalidate { epoch, session, sequence, hash }) => {
                self.invalidate(from, (epoch, session, sequence), hash, out);
            }
            Message::Index(rpc) => self.proxy_answered(rpc, now, out),
            Message::Renewed { session, sequence }
                if self.view.is_some_and(|view| view.session.0 == session) =>
            {
                let posts = self.proxy.renewed(now, sequence, out);
                self.proxy_posted(posts);
            }
            Message::Prepare { epoch } if self.view.is_some_and(|view| view.epoch < epoch) => {
                self.preparing = Some(self.preparing.map_or(epoch, |other| other.max(epoch)));
                self.was_reported = false;
                self.proxy.stop(out);
            }
            Message::Accesses(question)
                if from == NodeId::MANAGER
                    && self.view.is_some_and(|view| view.session.0 == question.session) =>
            {
                self.tell_accesses(question.session, question.round, out);
            }
            Message::GivenUp { session } if self.view.is_some_and(|view| view.session.0 == session) => {
                self.be_fenced(out);
            }
            Message::Allocated { session, region, sequence, block }
                if self.view.is_some_and(|view| view.session.0 == session)
                    && self.block_came(region, sequence, block) =>
            {
                self.wake_those_without_space(now, out);
            }
            _ => {}
        }
    }

    /// The manager says what holds from now on.
    fn install(
        &mut self,
        now: Nanos,
        view: ClientView,
        (verdicts, owners): (&[Verdict], &[Owner]),
        out: &mut Vec<Out<ClientAnswer>>,
    ) {
        if self.is_fenced || self.view.is_some_and(|own| own.epoch >= view.epoch) {
            return;
        }
        self.view = Some(view);
        // A request is known by its epoch, too.
        self.next_sequence = 0;
        self.preparing = self.preparing.filter(|&epoch| epoch > view.epoch);
        // Who is asked for the next epoch already said what does not count: that it works in the one before.
        self.was_reported = false;
        self.cache.clear();
        self.owners = owners.iter().map(|owner| (owner.partition, *owner)).collect();
        let ids: Vec<u32> = self.operations.keys().copied().collect();
        for &id in &ids {
            let Some(mut operation) = self.operations.remove(&id) else { continue };
            operation.granted_by = None;
            let outcome = self.resolve_doubt(&mut operation, verdicts, now);
            operation.is_held = false;
            operation.timer = None;
            operation.passes_cache = false;
            operation.results.clear();
            (operation.rpc, operation.reply, operation.resend_at) = (None, None, None);
            operation.round = operation.round.wrapping_add(1);
            for own in [&mut operation.object, &mut operation.claim_object].into_iter().flatten() {
                own.written_in = None;
            }
            match outcome {
                Some(outcome) => self.finish(id, operation, outcome, now, out),
                None => {
                    operation.step = Step::Start;
                    self.operations.insert(id, operation);
                }
            }
        }
        let own = owners.iter().filter(|owner| owner.session == view.session.0);
        let own = own.map(|owner| owner.partition).collect();
        let grant = Grant { epoch: view.epoch, session: view.session, living: view.living };
        let posts = self.proxy.install(now, grant, own, out);
        self.proxy_posted(posts);
        match self.is_paused() {
            true => self.proxy.stop(out),
            false => ids.into_iter().for_each(|id| self.advance(id, now, out)),
        }
    }

    fn proxy_posted(&mut self, posts: u32) {
        self.outstanding += posts;
        self.counters.posts += u64::from(posts);
    }

    /// Says that nothing is under way any more, once.
    fn report_prepared(&mut self, out: &mut Vec<Out<ClientAnswer>>) {
        let (Some(epoch), Some(view)) = (self.preparing, self.view) else { return };
        if self.outstanding > 0 && self.repairs.drain || self.was_reported || self.is_fenced {
            return;
        }
        self.was_reported = true;
        let doubts = self.operations.values().filter_map(|operation| match &operation.step {
            Step::Change(change) => Some(Doubt { slot: change.id, old: change.old, new: change.new }),
            Step::Submit(submission) => Some(submission.doubt()),
            _ => None,
        });
        let message = Message::Prepared {
            epoch,
            installed: view.epoch,
            session: view.session.0,
            doubts: doubts.take(DOUBTS_MAX).collect(),
        };
        out.push(Out::Send { to: NodeId::MANAGER, bytes: message.encode(self.node.0) });
    }

    fn done(&mut self, now: Nanos, tag: u64, result: PostResult, out: &mut Vec<Out<ClientAnswer>>) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if result == Err(PostError::Fenced) {
            self.be_fenced(out);
            return;
        }
        let (id, round, at) = ((tag >> 32) as u32, (tag >> 16) as u16, usize::from(tag as u16));
        if id == NO_OPERATION {
            self.background_done(now, tag as u32, result, out);
            return;
        }
        if id == PROXY_POST {
            let posts = self.proxy.done(now, tag as u32, result, out);
            self.proxy_posted(posts);
            return;
        }
        let Some(operation) = self.operations.get_mut(&id).filter(|operation| operation.round == round)
        else {
            return;
        };
        if let Some(place) = operation.results.get_mut(at) {
            *place = Some(result);
        }
        if !operation.is_waiting() {
            operation.is_held = true;
            if !self.is_paused() {
                self.advance(id, now, out);
            }
        }
    }

    /// Memory nodes refuse the session: whatever was being changed may have changed.
    fn be_fenced(&mut self, out: &mut Vec<Out<ClientAnswer>>) {
        self.is_fenced = true;
        self.proxy.stop(out);
        for operation in std::mem::take(&mut self.operations).into_values() {
            let outcome = match operation.step.may_happen() {
                true => Outcome::Indeterminate,
                false => Outcome::Unavailable,
            };
            if !operation.is_answered {
                out.push(Out::Answer(ClientAnswer { id: operation.call.id, outcome }));
            }
        }
        for (call, _) in
            std::mem::take(&mut self.long_puts).into_iter().chain(std::mem::take(&mut self.calls))
        {
            out.push(Out::Answer(ClientAnswer { id: call.id, outcome: Outcome::Unavailable }));
        }
        self.timers.clear();
    }

    fn tick(&mut self, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        let is_paused = self.is_paused();
        while let Some(&(at, id)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            let Some(operation) = self.operations.get_mut(&id) else { continue };
            if operation.resend_at == Some(at) {
                self.resend(id, at, now, out);
            }
            let Some(operation) = self.operations.get_mut(&id) else { continue };
            if operation.deadline <= now {
                self.time_is_over(id, now, out);
            } else if operation.timer == Some(at) && !is_paused {
                operation.timer = None;
                self.advance(id, now, out);
            }
        }
        // Calls that never began.
        for calls in [&mut self.calls, &mut self.long_puts] {
            while let Some((call, _)) = calls.pop_front_if(|(_, deadline)| *deadline <= now) {
                out.push(Out::Answer(ClientAnswer { id: call.id, outcome: Outcome::Unavailable }));
            }
        }
        if now >= self.housekeeping_at {
            self.housekeeping_at = now.saturating_add(self.options.housekeeping_ns);
            self.housekeep(now, out);
        }
    }

    fn housekeep(&mut self, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        if self.is_fenced {
            return;
        }
        if self.view.is_none() {
            let bytes = Message::Join { boot: self.boot }.encode(self.node.0);
            out.push(Out::Send { to: NodeId::MANAGER, bytes });
        }
        self.was_reported = false;
        if !self.is_paused() {
            self.wake_those_without_space(now, out);
            self.ask_for_block(out);
            self.collect_next(out);
            self.proxy.housekeep(now, self.cache.has_granted(), out);
        }
    }

    /// A call is answered although it is not done.
    fn time_is_over(&mut self, id: u32, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        let Some(mut operation) = self.operations.remove(&id) else { return };
        let outcome = match &operation.step {
            step if step.may_happen() => Outcome::Indeterminate,
            Step::AwaitSpace => Outcome::Full,
            _ => Outcome::Unavailable,
        };
        let goes_on = operation.is_waiting() || operation.step.goes_on();
        if !goes_on {
            self.finish(id, operation, outcome, now, out);
            return;
        }
        if !operation.is_answered {
            operation.is_answered = true;
            out.push(Out::Answer(ClientAnswer { id: operation.call.id, outcome }));
        }
        let mut again = None;
        if operation.timer.take().is_some() {
            again = Some(now.saturating_add(self.options.poll_ns.max(1)));
        }
        // Its deadline is past; what is left of it goes by the timer alone.
        operation.deadline = Nanos::MAX;
        operation.timer = again;
        again.map(|at| self.timers.insert((at, id)));
        self.operations.insert(id, operation);
    }

    /// Lets an operation go on until it waits for something.
    fn advance(&mut self, id: u32, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        let Some(mut operation) = self.operations.remove(&id) else { return };
        let Some(view) = self.view.filter(|_| !operation.is_waiting() && operation.timer.is_none()) else {
            self.operations.insert(id, operation);
            return;
        };
        let mut results = Vec::new();
        if operation.is_held {
            results = operation.results.iter().flatten().cloned().collect();
        }
        let mut next = self.next_step(&mut operation, results, now);
        while matches!(next, Next::Again) {
            operation.step = Step::Start;
            operation.attempts += 1;
            next = self.next_step(&mut operation, Vec::new(), now);
        }
        if !matches!(next, Next::Hold) {
            operation.is_held = false;
            operation.results.clear();
            (operation.rpc, operation.reply, operation.resend_at) = (None, None, None);
        }
        match next {
            Next::Post(batches) => self.post(id, &mut operation, view.session, batches, out),
            Next::Ask(rpc, batches) => {
                operation.rpc = Some(rpc);
                self.post(id, &mut operation, view.session, batches, out);
                self.send_rpc(id, &mut operation, now, out);
            }
            Next::Wait(until) => {
                operation.timer = Some(until);
                self.timers.insert((until, id));
            }
            Next::AwaitSpace => {
                operation.step = Step::AwaitSpace;
                self.operations.insert(id, operation);
                self.ask_for_block(out);
                return;
            }
            Next::Finish(outcome) => return self.finish(id, operation, outcome, now, out),
            Next::Hold | Next::Again | Next::AwaitTurn => {}
        }
        self.operations.insert(id, operation);
    }

    fn post(
        &mut self,
        id: u32,
        operation: &mut Operation,
        session: SessionId,
        batches: Vec<(MemoryNode, Batch)>,
        out: &mut Vec<Out<ClientAnswer>>,
    ) {
        operation.round = operation.round.wrapping_add(1);
        operation.results = vec![None; batches.len()];
        for (at, (to, batch)) in batches.into_iter().enumerate() {
            let tag = u64::from(id) << 32 | u64::from(operation.round) << 16 | at as u64;
            self.outstanding += 1;
            self.counters.posts += 1;
            out.push(Out::Post { session, to, batch, tag });
        }
    }

    /// What follows from the results of what was posted.
    fn next_step(&mut self, operation: &mut Operation, results: Vec<PostResult>, now: Nanos) -> Next {
        if operation.is_answered && !operation.step.goes_on() {
            return Next::Finish(Outcome::Unavailable);
        }
        let is_commit = matches!(&operation.step, Step::Change(change) if change.phase == Phase::Commit);
        if results.contains(&Err(PostError::OutOfBounds)) {
            self.counters.anomalies += 1;
            return Next::Hold;
        }
        // A memory node is gone: the manager will say what holds then. What a primary answered counts, though.
        if !is_commit && results.iter().any(Result::is_err) {
            return Next::Hold;
        }
        match &operation.step {
            Step::Start | Step::AwaitSpace | Step::AwaitTurn(_) => self.start(operation, now),
            Step::Probe(cached) => self.probed(operation, *cached, &results, now),
            Step::ReadGranted(cached) => self.granted_came(operation, *cached, &results, now),
            Step::WriteObject(cached) => self.object_is_written(operation, *cached, now),
            Step::LookUp => self.looked_up(operation, &results, now),
            Step::Candidates { .. } => self.read_candidates(operation, &results, now),
            Step::WriteClaim(slot, word) => self.claim_is_written(operation, *slot, *word, now),
            Step::Change(change) => {
                let change = change.clone();
                self.change_goes_on(operation, change, &results, now)
            }
            Step::Ask => self.words_came(operation, now),
            Step::Submit(submission) => {
                let submission = submission.clone();
                self.was_submitted(operation, &submission, now)
            }
            Step::WalkTable => self.table_came(operation, &results, now),
            Step::WalkObjects(step) => {
                let step = step.clone();
                self.came_by(operation, &step, &results, now)
            }
            Step::Parts(parts) => {
                let parts = parts.clone();
                self.parts_came(operation, &parts, &results, now)
            }
            Step::WalkParts(parts) => {
                let parts = parts.clone();
                self.walked_parts_came(operation, parts, &results, now)
            }
        }
    }

    fn finish(
        &mut self,
        id: u32,
        mut operation: Operation,
        outcome: Outcome,
        now: Nanos,
        out: &mut Vec<Out<ClientAnswer>>,
    ) {
        // What nobody else ever saw is this session's again.
        for own in [operation.object.take(), operation.claim_object.take()].into_iter().flatten() {
            self.slab.release(own.address, now);
        }
        self.timers.remove(&(operation.deadline, id));
        if !operation.is_answered {
            out.push(Out::Answer(ClientAnswer { id: operation.call.id, outcome }));
        }
    }

    fn ask_for_tick(&mut self, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        let housekeeping = (!self.is_fenced).then_some(self.housekeeping_at);
        let call = [&self.calls, &self.long_puts].map(VecDeque::front).into_iter().flatten();
        let call = call.map(|(_, deadline)| *deadline).min();
        let timer = self.timers.first().map(|(at, _)| *at);
        let Some(earliest) = [housekeeping, call, timer].into_iter().flatten().min() else { return };
        let at = earliest.max(now + 1);
        if self.asked_for.is_none_or(|asked| asked > at) {
            self.asked_for = Some(at);
            out.push(Out::At(at));
        }
    }

    fn next_generation(&mut self) -> Generation {
        self.next_generation += 1;
        Generation::new(self.view.map_or(0, |view| view.session.0), self.next_generation)
    }

    fn living(&self) -> NodeSet {
        self.view.map_or(NodeSet(0), |view| view.living)
    }

    /// The living replicas of a region, the primary first; none where all are lost.
    fn replicas(&self, region: u16) -> Option<Vec<MemoryNode>> {
        let replicas = self.layout.living_replicas(region, self.living());
        (!replicas.is_empty()).then_some(replicas)
    }

    fn slot_id(&self, operation: &Operation, slot: u32) -> SlotId {
        SlotId { partition: operation.hash.partition(self.layout.partition_bits), slot }
    }
}

impl Machine for Client {
    type Call = ClientCall;
    type Answer = ClientAnswer;

    fn on(&mut self, now: Nanos, input: In<ClientCall>, out: &mut Vec<Out<ClientAnswer>>) {
        Client::on(self, now, input, out);
    }
}

/// Bytes of a value that is being put, if it is longer than an object.
fn long_bytes(call: &ClientCall) -> usize {
    match &call.request {
        Request::Put(value, _) if value.len() > OBJECT_BYTES_MAX => value.len(),
        _ => 0,
    }
}

/// The bytes that were read by operation `op` of batch `batch`.
fn bytes_of(results: &[PostResult], batch: usize, op: usize) -> Option<&[u8]> {
    match results.get(batch)?.as_ref().ok()?.get(op)? {
        OpResult::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// What a word was before the only operation of batch `batch`.
fn before_of(results: &[PostResult], batch: usize) -> Option<u64> {
    match results.get(batch)?.as_ref().ok()?.first()? {
        OpResult::Before(word) => Some(*word),
        _ => None,
    }
}
