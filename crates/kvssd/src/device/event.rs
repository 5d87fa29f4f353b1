//! What a step of a device did, for whoever times it.
//!
//! Owns [`Out`], [`Completion`] and [`Event`]. Promises that the stages of a command are in the order in which they happened. Must not know how long they take.

use crate::code::Result;
use crate::command::KvAnswer;

/// The end of a command.
#[derive(Debug)]
pub struct Completion {
    /// The number that the command was given with.
    pub tag: u64,
    /// What came of it.
    pub result: Result<KvAnswer>,
    /// The buffer that the command came with, as long as what was read into it.
    pub buffer: Vec<u8>,
}

/// A part of a command's way, or of what the device does beside commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// The command was fetched; `bytes` are those of key and value.
    Fetched,
    /// Its key was looked up, and `bytes` were read to compare it.
    LookedUp,
    /// A record was read; `bytes` are those of the record.
    Read,
    /// A record is whole in the open page.
    Buffered,
    /// A local table was merged into the global one; `bytes` are those of its entries.
    Merged,
    /// Pages were programmed, and are durable.
    Programmed,
    /// A block was ended with a footer: `place` is the end of its records, `bytes` are those of the footer, which ends with the block.
    Sealed,
    /// Gc copied a record; `place` is the old one.
    Copied,
    /// A block was erased; `place` is its first.
    Erased,
    /// The command is complete.
    Answered,
}

/// One part, when it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Of which command, or caused by it.
    pub tag: u64,
    /// `now` of the step, in ns.
    pub at_ns: u64,
    /// Which part.
    pub stage: Stage,
    /// Where on the flash, in units of 32 bytes; 0 where that means nothing.
    pub place: u64,
    /// How much.
    pub bytes: u64,
}

/// What steps gave. Steps append; the caller takes.
#[derive(Debug, Default)]
pub struct Out {
    /// Commands that are complete.
    pub completions: Vec<Completion>,
    /// What was done, if [`DeviceOptions::events`](crate::DeviceOptions::events) is on.
    pub events: Vec<Event>,
}
