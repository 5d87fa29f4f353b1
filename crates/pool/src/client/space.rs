//! Where a session's memory comes from, and where what it frees goes.
//!
//! Owns the requests for blocks, the bits of freed objects in blocks of others, and the bits that others set in ours. Promises that a bit is set once for each object, after the last reference to it is gone from
//! the index, and that memory is taken back only after its bit is cleared. Must not know why an object is freed.

use std::collections::{BTreeMap, VecDeque};

use super::operation::Step;
use super::{Client, ClientAnswer, NO_OPERATION};
use crate::fabric::{Nanos, NodeId, OpResult, PostResult, RemoteOp};
use crate::machine::Out;
use crate::region::{BlockId, MemoryNode};
use crate::wire::Message;
use crate::word::{LogicalAddress, UNIT_BYTES};
use hedgerow_row::le_bytes::u64_at;

/// What a post that is no operation's is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Background {
    /// Bits of freed objects in blocks of others.
    Frees,
    /// A bitmap of ours.
    Bitmap(BlockId),
    /// Clearing bits of these objects of ours.
    Clearing(Vec<LogicalAddress>),
}

/// What is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Space {
    /// Of what region a block is asked for, and by which request.
    request: Option<(u16, u32)>,
    next_request: u32,
    next_region: u16,
    posts: BTreeMap<u32, Background>,
    next_post: u32,
    /// Objects in blocks of others whose bits are to be set.
    frees: VecDeque<LogicalAddress>,
    /// The block whose bitmap was read last.
    collected: Option<BlockId>,
}

impl Client {
    /// Frees an object that no slot leads to any more.
    pub(super) fn free(&mut self, address: LogicalAddress, now: Nanos) {
        if self.slab.owns(address) {
            self.slab.release(address, now);
        } else {
            self.space.frees.push_back(address);
        }
    }

    /// Asks for a block, or asks again.
    pub(super) fn ask_for_block(&mut self, out: &mut Vec<Out<ClientAnswer>>) {
        let is_short = self.operations.values().any(|operation| operation.step == Step::AwaitSpace);
        let Some(view) = self.view.filter(|_| is_short && !self.is_paused()) else { return };
        let (region, sequence) = match self.space.request {
            Some(request) => request,
            None => {
                let region =
                    self.space.next_region.wrapping_add(view.session.0) % u16::from(self.layout.memory_nodes);
                self.space.next_request += 1;
                (region, self.space.next_request)
            }
        };
        self.space.request = Some((region, sequence));
        // A region that is lost is passed over at the next answer or round of housekeeping.
        let Some(&primary) = self.replicas(region).as_deref().and_then(<[_]>::first) else {
            self.space.next_region = self.space.next_region.wrapping_add(1);
            self.space.request = None;
            return;
        };
        let message = Message::Allocate { session: view.session.0, region, sequence };
        out.push(Out::Send { to: NodeId::agent(primary), bytes: message.encode(self.node.0) });
    }

    /// An answer to a request; whether there is a new block.
    pub(super) fn block_came(&mut self, region: u16, sequence: u32, number: Option<u32>) -> bool {
        if self.space.request != Some((region, sequence)) {
            return false;
        }
        self.space.request = None;
        self.space.next_region = self.space.next_region.wrapping_add(1);
        match number {
            Some(number) if number < self.layout.blocks => {
                self.slab.add_block(BlockId { region, number });
                true
            }
            _ => false,
        }
    }

    pub(super) fn wake_those_without_space(&mut self, now: Nanos, out: &mut Vec<Out<ClientAnswer>>) {
        if self.is_paused() {
            return;
        }
        let waiting: Vec<u32> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.step == Step::AwaitSpace)
            .map(|(&id, _)| id)
            .collect();
        waiting.into_iter().for_each(|id| self.advance(id, now, out));
    }

    fn post_background(
        &mut self,
        to: MemoryNode,
        batch: Vec<RemoteOp>,
        what: Background,
        out: &mut Vec<Out<ClientAnswer>>,
    ) {
        let Some(view) = self.view else { return };
        let number = self.space.next_post;
        self.space.next_post = number.wrapping_add(1);
        self.space.posts.insert(number, what);
        self.outstanding += 1;
        self.counters.posts += 1;
        let tag = u64::from(NO_OPERATION) << 32 | u64::from(number);
        out.push(Out::Post { session: view.session, to, batch, tag });
    }

    /// Sets the bits of freed objects. Of a region without living replicas nobody needs them.
    pub(super) fn flush_frees(&mut self, out: &mut Vec<Out<ClientAnswer>>) {
        if self.view.is_none() || self.is_fenced {
            return;
        }
        let mut batches: BTreeMap<MemoryNode, Vec<RemoteOp>> = BTreeMap::new();
        while let Some(address) = self.space.frees.pop_front() {
            let node = self.replicas(address.region).and_then(|replicas| replicas.first().copied());
            if let (Some(node), Some((at, bit))) = (node, self.layout.free_bit(address)) {
                batches.entry(node).or_default().push(RemoteOp::FetchAndAdd(at, bit));
            }
        }
        for (node, batch) in batches {
            self.post_background(node, batch, Background::Frees, out);
        }
    }

    /// Reads the bitmap of the next of our blocks, one at a time.
    pub(super) fn collect_next(&mut self, out: &mut Vec<Out<ClientAnswer>>) {
        let is_busy = self.space.posts.values().any(|post| *post != Background::Frees);
        if is_busy {
            return;
        }
        let after = self.space.collected;
        let next =
            self.slab.blocks().find(|block| Some(*block) > after).or_else(|| self.slab.blocks().next());
        self.space.collected = next;
        let Some(block) = next else { return };
        let Some(&node) = self.replicas(block.region).as_deref().and_then(<[_]>::first) else { return };
        let read = RemoteOp::Read(self.layout.block_address(block), self.layout.bitmap_bytes());
        self.post_background(node, vec![read], Background::Bitmap(block), out);
    }

    /// A post that is no operation's is done. What a lost memory node had of it is lost: bits that were set there free nothing any more.
    pub(super) fn background_done(
        &mut self,
        now: Nanos,
        number: u32,
        result: PostResult,
        out: &mut Vec<Out<ClientAnswer>>,
    ) {
        match (self.space.posts.remove(&number), result) {
            (Some(Background::Bitmap(block)), Ok(results)) if !self.is_paused() => {
                if let Some(OpResult::Bytes(bitmap)) = results.first() {
                    self.clear_bits(block, bitmap, out);
                }
            }
            (Some(Background::Clearing(objects)), Ok(_)) => {
                self.counters.collected += objects.len() as u64;
                objects.into_iter().for_each(|address| self.slab.release(address, now));
            }
            _ => {}
        }
    }

    fn clear_bits(&mut self, block: BlockId, bitmap: &[u8], out: &mut Vec<Out<ClientAnswer>>) {
        let start = self.layout.block_address(block);
        let (mut batch, mut objects) = (Vec::new(), Vec::new());
        for at in (0..bitmap.len()).step_by(8) {
            let word = u64_at(bitmap, at);
            let mut mask = 0;
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                let unit = at as u32 * 8 + bit;
                let offset = start.offset + unit * UNIT_BYTES as u32;
                let address = LogicalAddress { region: block.region, offset };
                if self.slab.units_at(address).is_some() {
                    mask |= 1u64 << bit;
                    objects.push(address);
                }
            }
            if mask != 0 {
                let at = crate::region::RemoteAddress { offset: start.offset + at as u32, ..start };
                // All of these bits are set: taking them away borrows from no other.
                batch.push(RemoteOp::FetchAndAdd(at, mask.wrapping_neg()));
            }
        }
        let node = self.replicas(block.region).and_then(|replicas| replicas.first().copied());
        if let (Some(node), false) = (node, batch.is_empty()) {
            self.post_background(node, batch, Background::Clearing(objects), out);
        }
    }
}
