//! One operation of a client, between two of its steps.
//!
//! Owns what is remembered of it, and the words in which it is asked and answered. Must not know how a step is made.

use std::hash::{Hash, Hasher};

use super::cache::CachedSlot;
use super::slot_change::SlotChange;
use super::submission::Submission;
use crate::bucket::KeyHash;
use crate::fabric::{Batch, Nanos, PostResult};
use crate::object::{Generation, ObjectKind};
use crate::parts::PartList;
use crate::region::{MemoryNode, SlotId};
use crate::rpc::{IndexRpc, SlotAndWord};
use crate::word::{LogicalAddress, SlotWord};

/// What must be there for a write to take place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Whatever is there.
    Any,
    /// Nothing.
    Absent,
    /// Something.
    Present,
    /// The version with this generation.
    Same(Generation),
}

/// What is asked of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientCall {
    /// Comes back with the answer.
    pub id: u64,
    /// The key, of at most 1,024 bytes; of a walk what keys begin with.
    pub key: Vec<u8>,
    /// What about it.
    pub request: Request,
}

/// What about a key, or what keys begin with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Its value.
    Get,
    /// A new value.
    Put(Vec<u8>, Condition),
    /// No value any more.
    Delete(Condition),
    /// Some pairs whose keys begin so, from this slot on: at most so many, and one where that is 0. A pair that is there throughout a walk from the first slot of partition 0 to the end comes at least once.
    Walk(SlotId, usize),
}

/// What a client answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClientAnswer {
    /// The call's.
    pub id: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The value, and its version.
    Value(Vec<u8>, Generation),
    /// There is none.
    Absent,
    /// The value was put; this is its version.
    Stored(Generation),
    /// The key was deleted; whether there was a value.
    Deleted(bool),
    /// Pairs, perhaps none, and the slot at which the walk goes on; none at the end.
    Walked(Vec<WalkedPair>, Option<SlotId>),
    /// The condition did not hold, and nothing happened.
    Conflict,
    /// There is no room for it in the index or in memory, and nothing happened.
    Full,
    /// Key or value are longer than the limits, and nothing happened.
    TooLong,
    /// The pool did not answer in time, and nothing happened.
    Unavailable,
    /// The pool did not answer in time: it may have happened, and may still happen.
    Indeterminate,
}

/// A pair as a walk came by it: it was its key's at a moment of the call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WalkedPair {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// Its version.
    pub generation: Generation,
}

/// An object that this session wrote, or is about to, and that nobody else knows of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnObject {
    pub(super) address: LogicalAddress,
    pub(super) generation: Generation,
    pub(super) units: u8,
    pub(super) bytes: Vec<u8>,
    /// Those of its value, where it is in parts.
    pub(super) parts: Vec<OwnPart>,
    /// The epoch in which it was written to all replicas; none: it is not written yet.
    pub(super) written_in: Option<u32>,
}

/// A part of such an object's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnPart {
    pub(super) address: LogicalAddress,
    pub(super) bytes: Vec<u8>,
}

/// A slot whose object has the key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub(super) slot: u32,
    pub(super) word: SlotWord,
    pub(super) kind: ObjectKind,
    pub(super) generation: Generation,
    /// Of an indirect object the list of its parts.
    pub(super) value: Vec<u8>,
}

/// A value in parts, and where each of them comes: with which batch, as which operation of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PartReads {
    pub(super) generation: Generation,
    pub(super) list: PartList,
    pub(super) reads: Vec<(usize, usize)>,
}

/// Pairs that a walk came by, and the values of some of them that are in parts, by the pairs' places.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WalkedParts {
    pub(super) pairs: Vec<WalkedPair>,
    pub(super) long: Vec<(usize, PartReads)>,
    pub(super) next: Option<SlotId>,
}

/// A slot, and where its object comes: with which batch, as which operation of it.
pub(super) type WalkRead = (u32, usize, usize);

/// Objects that a walk reads, in the order of their slots.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WalkStep {
    pub(super) reads: Vec<WalkRead>,
    /// Where the walk goes on behind them.
    pub(super) next: Option<SlotId>,
}

/// What an operation waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// To begin, or to begin again.
    Start,
    /// Memory for its object.
    AwaitSpace,
    /// The slot that the cache names, and of a read its object.
    Probe(CachedSlot),
    /// The object of a pair that is granted to the cache.
    ReadGranted(CachedSlot),
    /// Its own object to be written, for the slot that the cache names.
    WriteObject(CachedSlot),
    /// Both combined buckets.
    LookUp,
    /// The objects of these slots. `free`: a slot for a new key, `all`: these are all slots, not only those with the fingerprint.
    Candidates { words: Vec<(u32, SlotWord)>, free: Option<(u32, SlotWord)>, all: bool },
    /// A claim's object to be written, for this slot and the word it has.
    WriteClaim(u32, SlotWord),
    /// A slot to change.
    Change(SlotChange),
    /// A proxy's words.
    Ask,
    /// A proxy to change a slot.
    Submit(Submission),
    /// Some buckets of the table, or a proxy's words of them.
    WalkTable,
    /// The objects of these words.
    WalkObjects(WalkStep),
    /// Its turn to read parts, of so many bytes.
    AwaitTurn(usize),
    /// The parts of a value.
    Parts(PartReads),
    /// The parts of the values of what a walk came by.
    WalkParts(WalkedParts),
}

impl Step {
    /// Whether what the call asks for may happen, or have happened.
    pub(super) fn may_happen(&self) -> bool {
        match self {
            Step::Change(change) => change.purpose.is_the_calls(),
            Step::Submit(submission) => submission.purpose.is_the_calls(),
            _ => false,
        }
    }

    /// Whether something is being changed, and goes on whatever the caller was told.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self, Step::Change(_) | Step::Submit(_))
    }
}

/// One operation under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    pub(super) call: ClientCall,
    pub(super) hash: KeyHash,
    pub(super) deadline: Nanos,
    /// It was answered, since its time was over; what is under way goes on.
    pub(super) is_answered: bool,
    pub(super) step: Step,
    /// Numbers what was posted, so that late completions are known.
    pub(super) round: u16,
    pub(super) results: Vec<Option<PostResult>>,
    /// All results are there, and wait for the next configuration.
    pub(super) is_held: bool,
    /// Not before this time.
    pub(super) timer: Option<Nanos>,
    /// When the words were read that it acts on: just before.
    pub(super) learnt_at: Nanos,
    pub(super) object: Option<OwnObject>,
    pub(super) claim_object: Option<OwnObject>,
    /// A claim for the key that was seen before the present look-up began.
    pub(super) claim: Option<(u32, SlotWord)>,
    pub(super) attempts: u32,
    pub(super) passes_cache: bool,
    /// The proxy granted the pair to the cache, in answer to what was asked last: by the change of this number, or by none, 0.
    pub(super) granted_by: Option<u32>,
    /// Since that was asked the cache was told to drop the pair, by the change of this number at last; 0: it was not.
    pub(super) tainted_by: u32,
    /// What a proxy was asked, and what it answered.
    pub(super) rpc: Option<IndexRpc>,
    pub(super) reply: Option<IndexRpc>,
    /// When to ask again.
    pub(super) resend_at: Option<Nanos>,
    /// The words that a proxy said last.
    pub(super) seen: Vec<SlotAndWord>,
    /// How often an object did not verify that a walk came by.
    pub(super) unverified: u32,
    /// It has its turn: so many bytes of parts it may read.
    pub(super) turn_bytes: usize,
}

impl Operation {
    pub(super) fn new(call: ClientCall, deadline: Nanos, partition_bits: u32) -> Operation {
        let hash = match &call.request {
            // All that is asked of it is its partition.
            Request::Walk(from, _) => KeyHash::in_partition(from.partition, partition_bits),
            _ => KeyHash::of(&call.key),
        };
        Operation {
            hash,
            call,
            deadline,
            is_answered: false,
            step: Step::Start,
            round: 0,
            results: Vec::new(),
            is_held: false,
            timer: None,
            learnt_at: 0,
            object: None,
            claim_object: None,
            claim: None,
            attempts: 0,
            passes_cache: false,
            granted_by: None,
            tainted_by: 0,
            rpc: None,
            reply: None,
            resend_at: None,
            seen: Vec::new(),
            unverified: 0,
            turn_bytes: 0,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.results.iter().any(Option::is_none) || self.is_waiting_for_reply()
    }

    pub(super) fn is_waiting_for_reply(&self) -> bool {
        self.rpc.is_some() && self.reply.is_none()
    }
}

/// What an operation does next.
#[derive(Debug)]
pub(super) enum Next {
    /// Posts these, and waits for all of them.
    Post(Vec<(MemoryNode, Batch)>),
    /// Asks a proxy, posts these, and waits for all of them.
    Ask(IndexRpc, Vec<(MemoryNode, Batch)>),
    /// Goes on at a time.
    Wait(Nanos),
    /// Begins again, now.
    Again,
    /// Waits for memory.
    AwaitSpace,
    /// Waits for its turn to read parts.
    AwaitTurn,
    /// Waits for another configuration.
    Hold,
    /// Is done.
    Finish(Outcome),
}

/// Counts of what a client did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCounters {
    /// Batches posted.
    pub posts: u64,
    /// Changes of slots that were won, and lost.
    pub won: u64,
    /// See `won`.
    pub lost: u64,
    /// Lost changes that were answered as done just before the winner.
    pub absorbed: u64,
    /// Changes that were decided by the smallest word.
    pub arbitrated: u64,
    /// Look-ups that the slot was enough for which the cache named.
    pub cache_hits: u64,
    /// Reads of pairs that are granted to the cache: of their objects, and without any.
    pub address_hits: u64,
    /// See `address_hits`.
    pub value_hits: u64,
    /// Pairs that the cache was told to drop.
    pub invalidated: u64,
    /// Objects that did not verify, and parts.
    pub unverified: u64,
    /// Values that were written in parts, and read in them.
    pub long_writes: u64,
    /// See `long_writes`.
    pub long_reads: u64,
    /// Results thrown away because they came too late.
    pub late: u64,
    /// Claims taken away because there were several.
    pub released: u64,
    /// Objects whose memory came back by their bit in a bitmap.
    pub collected: u64,
    /// Objects that a walk passed over since they never verified.
    pub passed_over: u64,
    /// Outcomes told by the manager: changes it completed, and changes it did not.
    pub verdicts_applied: u64,
    /// See `verdicts_applied`.
    pub verdicts_refused: u64,
    /// What the protocol says cannot be. Always 0.
    pub anomalies: u64,
}

impl ClientCounters {
    /// The sums of both.
    pub fn plus(self, other: ClientCounters) -> ClientCounters {
        ClientCounters {
            posts: self.posts + other.posts,
            won: self.won + other.won,
            lost: self.lost + other.lost,
            absorbed: self.absorbed + other.absorbed,
            arbitrated: self.arbitrated + other.arbitrated,
            cache_hits: self.cache_hits + other.cache_hits,
            address_hits: self.address_hits + other.address_hits,
            value_hits: self.value_hits + other.value_hits,
            invalidated: self.invalidated + other.invalidated,
            unverified: self.unverified + other.unverified,
            long_writes: self.long_writes + other.long_writes,
            long_reads: self.long_reads + other.long_reads,
            late: self.late + other.late,
            released: self.released + other.released,
            collected: self.collected + other.collected,
            passed_over: self.passed_over + other.passed_over,
            verdicts_applied: self.verdicts_applied + other.verdicts_applied,
            verdicts_refused: self.verdicts_refused + other.verdicts_refused,
            anomalies: self.anomalies + other.anomalies,
        }
    }
}

// Counters tell no states apart: an exploration would never come to an end.
impl Hash for ClientCounters {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
