//! A host in virtual time: what a drive would take for what the device does.
//!
//! Owns [`SimHost`]: a closed loop of commands over a device and the timeline of its flash. Promises that one seed makes one run, to the nanosecond; and that what the device does, and answers, is what it does
//! without a timeline. Must not know how long anything takes: [`DriveModel`] says it.
//!
//! The device carries each command out at the time at which it arrives, and the timeline says from the device's events when it would be complete. A drive with a capacitor is meant, so both modes of
//! acknowledgement take the same.

use crate::code::{KvError, Result};
use crate::command::{KvAnswer, KvCommand};
use crate::device::{Completion, Device, Event, Out, Stage};
use crate::flash::drive_model::{DriveModel, FrontKind};
use crate::flash::record::HEADER_BYTES;
use crate::flash::timeline::{FlashWork, Timeline, TimelineCounters};

/// A command that is complete, and when.
#[derive(Debug)]
pub struct SimCompletion {
    /// What it was to the front stage: a deletion of nothing is a look, any other one an update.
    pub kind: FrontKind,
    /// When it was given, in ns.
    pub started_ns: u64,
    /// When it was complete, in ns.
    pub ended_ns: u64,
    /// What came of it.
    pub result: Result<KvAnswer>,
    /// The buffer that it came with.
    pub buffer: Vec<u8>,
}

/// What the front stage is told of a command before it is carried out.
#[derive(Debug, Clone, Copy)]
enum FrontShape {
    Store { key_bytes: usize, value_bytes: u64 },
    Delete { key_bytes: usize },
    Read { key_bytes: usize },
    Exist { keys: u64 },
    Group,
}

impl FrontShape {
    fn of(command: &KvCommand) -> FrontShape {
        let key_bytes = command.key().map_or(0, |(_, key)| key.bytes().len());
        match command {
            KvCommand::Store { value, .. } => {
                FrontShape::Store { key_bytes, value_bytes: value.len() as u64 }
            }
            KvCommand::Delete { .. } => FrontShape::Delete { key_bytes },
            KvCommand::Exist { keys, .. } => FrontShape::Exist { keys: keys.len() as u64 },
            KvCommand::DeleteGroup { .. }
            | KvCommand::DeleteSpace { .. }
            | KvCommand::DeleteSpaceNumber { .. } => FrontShape::Group,
            _ => FrontShape::Read { key_bytes },
        }
    }

    /// What it is to the front stage, and how long it takes there: of a command that found a record of its key or not, and was complete like this.
    fn cost(&self, model: &DriveModel, has_found: bool, completion: &Completion) -> (FrontKind, u64) {
        let one = |kind, key_bytes, bytes| (kind, model.front_ns(kind, key_bytes, bytes));
        let written = if has_found { FrontKind::Update } else { FrontKind::Insert };
        match *self {
            FrontShape::Store { key_bytes, value_bytes } => one(written, key_bytes, value_bytes),
            FrontShape::Delete { key_bytes } => {
                one(if has_found { FrontKind::Update } else { FrontKind::Retrieve }, key_bytes, 0)
            }
            FrontShape::Read { key_bytes } => {
                one(FrontKind::Retrieve, key_bytes, completion.buffer.len() as u64)
            }
            FrontShape::Exist { keys } => {
                (FrontKind::Retrieve, keys * model.front_ns(FrontKind::Retrieve, 0, 0))
            }
            FrontShape::Group => {
                let deleted =
                    if let Ok(KvAnswer::GroupDeleted(deleted)) = completion.result { deleted } else { 0 };
                let kind = FrontKind::Update;
                (kind, model.front_ns(FrontKind::Retrieve, 0, 0) + deleted * model.front_ns(kind, 0, 0))
            }
        }
    }
}

/// A command that is under way.
#[derive(Debug)]
struct SimSlot {
    kind: FrontKind,
    started_ns: u64,
    completion: Option<Completion>,
}

/// A device in virtual time, and whoever gives it commands.
#[derive(Debug)]
pub struct SimHost {
    device: Device,
    timeline: Timeline,
    slots: Vec<SimSlot>,
    free: Vec<usize>,
    out: Out,
    work: Vec<FlashWork>,
}

impl SimHost {
    /// A host of this device, at time 0. What is on the device counts as programmed.
    ///
    /// # Errors
    /// [`KvError::Param`]: [`DriveModel::check`]; or the device's pages are not [`DriveModel::program_bytes`] long.
    pub fn new(mut device: Device, model: DriveModel) -> Result<SimHost> {
        let timeline = Timeline::new(model, device.geometry())?;
        device.record_events();
        let (slots, free, work) = (Vec::new(), Vec::new(), Vec::new());
        Ok(SimHost { device, timeline, slots, free, out: Out::default(), work })
    }

    /// The device, to be looked at.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The device, without its time.
    pub fn into_device(self) -> Device {
        self.device
    }

    /// The time, in ns.
    pub fn now_ns(&self) -> u64 {
        self.timeline.now_ns()
    }

    /// What the flash did.
    pub fn counters(&self) -> TimelineCounters {
        self.timeline.counters()
    }

    /// A closed loop: `depth` commands, 1 at least, are under way, as long as `next` gives one; it is given a buffer that it may use. Each is handed to `done` when it is complete.
    ///
    /// # Errors
    /// What is wrong with a command by itself, and [`KvError::Closed`]: nothing more is given to the device then, and what was under way is lost to `done`.
    pub fn run(
        &mut self,
        depth: usize,
        mut next: impl FnMut(Vec<u8>) -> Option<KvCommand>,
        mut done: impl FnMut(&SimCompletion),
    ) -> Result<()> {
        for _ in 0..depth.max(1) {
            let Some(command) = next(Vec::new()) else { break };
            self.start(command)?;
        }
        while let Some(completion) = self.end_next() {
            done(&completion);
            if let Some(command) = next(completion.buffer) {
                self.start(command)?;
            }
        }
        Ok(())
    }

    /// One command, alone.
    ///
    /// # Errors
    /// Those of [`SimHost::run`].
    pub fn call(&mut self, command: KvCommand) -> Result<SimCompletion> {
        self.start(command)?;
        self.end_next().ok_or(KvError::Param { what: "a command that has no end" })
    }

    fn end_next(&mut self) -> Option<SimCompletion> {
        let slot = self.timeline.run_to_next()? as usize;
        let at = &mut self.slots[slot];
        let (kind, started_ns, ended_ns) = (at.kind, at.started_ns, self.timeline.now_ns());
        let Completion { result, buffer, .. } = at.completion.take()?;
        self.free.push(slot);
        Some(SimCompletion { kind, started_ns, ended_ns, result, buffer })
    }

    fn start(&mut self, command: KvCommand) -> Result<()> {
        let shape = FrontShape::of(&command);
        let started_ns = self.timeline.now_ns();
        self.device.submit(0, command).map_err(|refused| refused.error)?;
        self.out.events.clear();
        let completion = loop {
            let has_more = self.device.step(started_ns, &mut self.out);
            match self.out.completions.pop() {
                Some(completion) => break completion,
                None if has_more => {}
                None => return Err(KvError::Param { what: "a command that has no end" }),
            }
        };
        let has_found = work_of(&self.out.events, &mut self.work);
        let (kind, front_ns) = shape.cost(self.timeline.model(), has_found, &completion);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(SimSlot { kind, started_ns, completion: None });
            self.slots.len() - 1
        });
        self.slots[slot] = SimSlot { kind, started_ns, completion: Some(completion) };
        self.timeline.start(slot as u64, front_ns, &mut self.work);
        Ok(())
    }
}

/// What a command's events are on the flash, and whether it found a record of its key first.
fn work_of(events: &[Event], work: &mut Vec<FlashWork>) -> bool {
    work.clear();
    let mut has_found = None;
    let mut events = events.iter().peekable();
    while let Some(&Event { stage, place, bytes, .. }) = events.next() {
        match stage {
            Stage::LookedUp => {
                has_found.get_or_insert(place > 0);
                if place > 0 {
                    work.push(FlashWork::Read { place, bytes: bytes + HEADER_BYTES as u64 });
                }
            }
            Stage::Read => match work.last_mut() {
                // The key was compared with what was read here.
                Some(FlashWork::Read { place: at, bytes: len }) if *at == place => *len = bytes.max(*len),
                _ => work.push(FlashWork::Read { place, bytes }),
            },
            // Gc writes the copy, and says then what of.
            Stage::Buffered => match events.next_if(|next| next.stage == Stage::Copied) {
                Some(copied) => work.push(FlashWork::Copy { from: copied.place, place, bytes }),
                None => work.push(FlashWork::Store { place, bytes }),
            },
            Stage::Sealed => work.push(FlashWork::Seal { end: place, footer_bytes: bytes }),
            Stage::Erased => work.push(FlashWork::Erase { place }),
            _ => {}
        }
    }
    has_found.unwrap_or(false)
}

#[cfg(test)]
mod tests;
