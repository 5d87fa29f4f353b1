//! The device: commands in, completions out, a step at a time.
//!
//! Owns [`Device`] and the order of its parts. Promises that commands happen one after another, in the order they were given, each whole or not at all; and that it has no
//! thread, lock, clock or I/O of its own: [`Device::step`] does all there is to do, and is told the time. Must not know who gives commands.
//!
//! `handler` carries commands out over the index ([`manager`], with its `local` and `global` tables of [`page`]s) and the iterator [`bucket`]s; `append` writes records to
//! open [`block`]s; `gc` empties others; `recover` makes all of this anew from the flash.

mod append;
mod block;
mod bucket;
mod check;
mod damage;
mod event;
mod gc;
mod global;
mod group;
mod handler;
mod list;
mod local;
mod manager;
mod page;
mod recover;
mod space;
mod view;

use std::collections::VecDeque;
use std::ops::Range;

use hedgerow_device::{CrashSim, FastTier};

use crate::code::{KvError, Result};
use crate::command::{DeviceInfo, KvAnswer, KvCommand};
use crate::flash::geometry::Geometry;
use crate::flash::{Flash, FlashCounters};
use block::{Blocks, WriteStream};
use bucket::{Buckets, Iterators};
pub use check::{DeviceCheck, DeviceProblem};
pub use damage::{LostRange, OpenReport};
pub use event::{Completion, Event, Out, Stage};
use gc::Gc;
pub use gc::{GcCounters, GcPolicy};
use group::GroupDelete;
use manager::Index;
pub use manager::IndexCounters;
use space::Spaces;
pub use view::{BlockCounts, DeviceOverview, DeviceShutdown, DeviceView};

/// When a store is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AckMode {
    /// When it is whole in the open page. A killed process loses nothing, nor does a simulated power cut with a capacitor. A power cut of the machine may take
    /// the last stores: a file has no capacitor. What is left is a prefix of the commands. The default.
    #[default]
    Buffered,
    /// When it is durable. Nothing that was acknowledged is ever lost. Commands of one step are made durable together.
    Immediate,
}

/// How a device is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// When a store is acknowledged. Default [`AckMode::Buffered`].
    pub ack: AckMode,
    /// How gc chooses a victim. Default [`GcPolicy::CostBenefit`].
    pub gc_policy: GcPolicy,
    /// Commands that may wait for a step. Default 64.
    pub depth: usize,
    /// Commands in a step, at most. Default 32.
    pub commands_a_step: usize,
    /// Whether steps tell of their parts ([`Out::events`]). Default off.
    pub events: bool,
    /// For tests: which bits of hashes count. With few, keys share hashes. Part of what is on the flash: the same for all openings.
    #[doc(hidden)]
    pub hash_mask: u64,
    /// For tests: the secret that hashes of keys begin with, of a device that is made. None, and it is drawn at random.
    #[doc(hidden)]
    pub hash_secret: Option<u128>,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            ack: AckMode::default(),
            gc_policy: GcPolicy::default(),
            depth: 64,
            commands_a_step: 32,
            events: false,
            hash_mask: u64::MAX,
            hash_secret: None,
        }
    }
}

/// A command that was not taken, and its buffer.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: KvError,
    /// The command, as it was given.
    pub command: KvCommand,
}

/// A key-value SSD.
#[derive(Debug)]
pub struct Device {
    flash: Flash,
    options: DeviceOptions,
    index: Index,
    blocks: Blocks,
    buckets: Buckets,
    iterators: Iterators,
    spaces: Spaces,
    gc: Gc,
    /// The last sequence that a record has.
    sequence: u64,
    /// Every sequence up to here is durable.
    durable_sequence: u64,
    /// What pairs take, and tombstones that hide something.
    used_bytes: u64,
    /// Of them, what those tombstones take.
    tombstone_bytes: u64,
    queue: VecDeque<(u64, KvCommand)>,
    /// Room for the hashes of the commands of a step.
    next_hashes: Vec<u64>,
    group_delete: Option<GroupDelete>,
    /// Why it takes no more commands.
    failed: Option<KvError>,
    events: Vec<Event>,
    /// Of the command that is carried out.
    tag: u64,
    now_ns: u64,
    report: OpenReport,
}

impl Device {
    /// Makes a device on an empty medium, and opens it.
    ///
    /// # Errors
    /// [`KvError::Param`]: the geometry is out of bounds, or the medium is not empty. [`KvError::Medium`]: it has no room, among others.
    pub fn format(tier: FastTier, geometry: Geometry, options: DeviceOptions) -> Result<Device> {
        let flash = Flash::format(tier, geometry, options.hash_secret)?;
        Device::recover(flash, options)
    }

    /// Opens the device on a medium, after whatever end it had.
    ///
    /// # Errors
    /// [`KvError::NoDevice`], [`KvError::Version`], [`KvError::Truncated`]; [`KvError::Damaged`] where both copies are damaged of a superblock or a block's word; [`KvError::Medium`].
    /// What else is damaged refuses nothing: see [`Device::open_report`].
    pub fn open(tier: FastTier, options: DeviceOptions) -> Result<Device> {
        let flash = Flash::open(tier)?;
        Device::recover(flash, options)
    }

    /// Takes a command, which a later step carries out. `tag` comes back with its completion.
    ///
    /// # Errors
    /// With the command: what is wrong with it by itself ([`KvCommand::check`]); [`KvError::QueueFull`]; [`KvError::Closed`].
    pub fn submit(&mut self, tag: u64, command: KvCommand) -> std::result::Result<(), Box<Refused>> {
        let refusal = match &self.failed {
            Some(error) => Err(KvError::Closed { why: error.to_string() }),
            None if self.queue.len() >= self.options.depth => {
                Err(KvError::QueueFull { depth: self.options.depth })
            }
            None => command.check(self.flash.geometry().value_bytes_max()),
        };
        match refusal {
            Ok(()) => {
                self.queue.push_back((tag, command));
                Ok(())
            }
            Err(error) => Err(Box::new(Refused { error, command })),
        }
    }

    /// Drops what no step has carried out.
    pub(crate) fn drop_queued(&mut self) {
        self.queue.clear();
        self.group_delete = None;
    }

    /// Carries commands out, some of those that were taken, in their order. True: there are more. `now_ns` is the time, which nothing depends on: events say it.
    pub fn step(&mut self, now_ns: u64, out: &mut Out) -> bool {
        self.now_ns = now_ns;
        self.prefetch_step();
        let first = out.completions.len();
        for _ in 0..self.options.commands_a_step.max(1) {
            let Some(completion) = self.next_completion() else { break };
            out.completions.push(completion);
            if self.group_delete.is_some() {
                break;
            }
        }
        // PERSIST: in this mode completions are given out only when what they say is durable: refusals, too. That a pair is not there may rest on a deletion, one of a group's that ended in an error among
        // them.
        let is_told = out.completions.len() > first;
        if is_told && self.options.ack == AckMode::Immediate && self.failed.is_none() {
            let synced = self.sync_stream(WriteStream::Hot);
            self.fail_on_medium(&synced);
        }
        if let Some(error) = &self.failed {
            for completion in &mut out.completions[first..] {
                completion.result = Err(error.clone());
            }
        }
        for completion in &out.completions[first..] {
            self.tag = completion.tag;
            self.record_stage(Stage::Answered, 0, completion.buffer.len() as u64);
        }
        out.events.append(&mut self.events);
        !self.queue.is_empty() || self.group_delete.is_some()
    }

    /// Has what the next commands will look up come to the processor's caches, for all of them at once: one by one they would wait for each page and each record.
    fn prefetch_step(&mut self) {
        let mut hashes = std::mem::take(&mut self.next_hashes);
        hashes.clear();
        let commands = self.queue.iter().take(self.options.commands_a_step.max(1));
        hashes.extend(commands.filter_map(|(_, command)| {
            let (space, key) = command.key()?;
            Some(self.hash(space, key.bytes()))
        }));
        if hashes.len() > 1 {
            let touched = hashes.iter().fold(0, |all, &hash| all ^ self.index.touch(hash));
            std::hint::black_box(touched);
            for place in hashes.iter().filter_map(|&hash| self.index.peek(hash)) {
                self.flash.prefetch(place);
            }
        }
        self.next_hashes = hashes;
    }

    /// Carries the next command out, or goes on with one that takes several steps; none if there is nothing to answer.
    fn next_completion(&mut self) -> Option<Completion> {
        if self.group_delete.is_some() {
            let (tag, result) = self.step_group_delete()?;
            self.fail_on_medium(&result);
            return Some(Completion { tag, result, buffer: Vec::new() });
        }
        let (tag, command) = self.queue.pop_front()?;
        self.tag = tag;
        if let Some(error) = &self.failed {
            let result = Err(KvError::Closed { why: error.to_string() });
            return Some(Completion { tag, result, buffer: command.into_buffer() });
        }
        let (result, buffer) = self.carry_out(command)?;
        self.fail_on_medium(&result);
        Some(Completion { tag, result, buffer })
    }

    /// Has gc work until there is room for so many more bytes of records with their entries, over nothing that is there. What the medium refuses ends the device, as of a command.
    ///
    /// # Errors
    /// `DeviceFull` if there is none to be had; `Closed`; those of the medium.
    pub(crate) fn make_room(&mut self, bytes: u64) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(KvError::Closed { why: error.to_string() });
        }
        let made = self.gain_room(bytes);
        self.fail_on_medium(&made);
        made
    }

    /// After the medium refused nobody knows what it holds: no more commands.
    fn fail_on_medium<T>(&mut self, result: &Result<T>) {
        if let Err(error @ KvError::Medium(_)) = result
            && self.failed.is_none()
        {
            self.failed = Some(error.clone());
        }
    }

    fn record_stage(&mut self, stage: Stage, place: u64, bytes: u64) {
        if self.options.events {
            self.events.push(Event { tag: self.tag, at_ns: self.now_ns, stage, place, bytes });
        }
    }

    /// Closes the device in order: all that was answered is durable. Commands that no step has carried out are dropped.
    ///
    /// # Errors
    /// [`KvError::Medium`], [`KvError::Closed`]: what was not durable may be lost.
    pub fn close(mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(KvError::Closed { why: error.to_string() });
        }
        // PERSIST: records before the superblock that says that all of them are whole.
        for stream in WriteStream::BOTH {
            self.sync_stream(stream)?;
        }
        self.write_superblock(true)
    }

    /// What opening found damaged.
    pub fn open_report(&self) -> &OpenReport {
        &self.report
    }

    /// Pages, blocks and limits.
    pub fn geometry(&self) -> Geometry {
        self.flash.geometry()
    }

    /// Capacity, and how much of it is taken.
    pub fn info(&self) -> DeviceInfo {
        let (pairs, logical_bytes) = self.spaces.totals();
        let geometry = self.flash.geometry();
        DeviceInfo {
            capacity_bytes: self.capacity_bytes(),
            used_bytes: self.charged_bytes(self.used_bytes, self.tombstone_bytes),
            tombstone_bytes: self.tombstone_bytes,
            logical_bytes,
            pairs,
            value_bytes_max: geometry.value_bytes_max(),
        }
    }

    /// What pairs may take: blocks that are damaged count for what is in them.
    fn capacity_bytes(&self) -> u64 {
        let (damaged, live) = self.blocks.damaged();
        self.flash.geometry().capacity_without(damaged) + live
    }

    /// Bytes of tombstones that are not counted against the capacity.
    fn tombstones_beside(&self) -> u64 {
        self.flash.geometry().tombstones_beside(self.blocks.damaged().0)
    }

    /// What counts against the capacity, of so much in use with so much of it tombstones.
    fn charged_bytes(&self, used: u64, tombstones: u64) -> u64 {
        used.saturating_sub(tombstones.min(self.tombstones_beside()))
    }

    fn free_bytes(&self) -> u64 {
        let charged = self.charged_bytes(self.used_bytes, self.tombstone_bytes);
        self.capacity_bytes().saturating_sub(charged)
    }

    /// What gc did.
    pub fn gc_counters(&self) -> GcCounters {
        self.gc.counters
    }

    /// What the index did.
    pub fn index_counters(&self) -> IndexCounters {
        self.index.counters()
    }

    /// Entries of the global table, and bytes of its pages.
    pub fn index_size(&self) -> (u64, u64) {
        (self.index.entries_merged(), self.index.bytes())
    }

    /// What was done to the flash.
    pub fn flash_counters(&self) -> FlashCounters {
        self.flash.counters()
    }

    /// How often the most worn block was erased.
    pub fn erases_max(&self) -> u64 {
        (0..self.flash.geometry().blocks).map(|block| self.flash.generation(block) / 2).max().unwrap_or(0)
    }

    /// From now on steps tell of their parts.
    pub(crate) fn record_events(&mut self) {
        self.options.events = true;
    }

    /// The simulated medium, where the device is on one.
    pub fn crash_sim(&self) -> Option<&CrashSim> {
        self.flash.crash_sim()
    }

    /// From now on reads of this range of the medium fail, as of pages that have worn out.
    pub fn fail_reads(&mut self, range: Range<u64>) {
        self.flash.fail_reads(range);
    }

    /// Reads fail no more.
    pub fn clear_read_faults(&mut self) {
        self.flash.clear_faults();
    }

    /// Where on the medium the blocks are that are in use, and how many of their bytes count: for looking at them, and for tests.
    pub fn blocks_in_use(&self) -> Vec<(Range<u64>, u64)> {
        let geometry = self.flash.geometry();
        let in_use = self.blocks.all().filter(|(block, _)| self.flash.is_in_use(*block));
        let range = |block| geometry.block_offset(block)..geometry.block_offset(block + 1);
        in_use.map(|(block, info)| (range(block), info.live)).collect()
    }
}

/// What a command that is complete says.
type Answered = (Result<KvAnswer>, Vec<u8>);

#[cfg(test)]
mod tests;
