//! A caller's way to an array of devices.
//!
//! Owns what a session has under way. Promises that what is wrong with a command by itself is said as it is started, and that a poll answers everything: it carries out what was started, each device's
//! share under that device's lock, so a device that is slow or broken holds up its share alone. Must not know how a device keeps pairs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hedgerow_row::backend::{
    Answer, Becomes, Capabilities, Command, Cursor, GROUP_BYTES, Pair, PairChange, Session, Ticket,
    check_batch,
};
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};
use hedgerow_row::{Error, ErrorKind, Result};

use super::Array;
use super::array_device::{ArrayDevice, KeyedChange, KeyedCommand, MARK_BYTES, PairAnswers};
use super::batch::{ExpectedChange, KeyedBatch, KeyedBecomes};
use super::copies::failing;
use super::failure::closed;
use super::layout::{Layout, LockedDevices};
use super::outcome::Outcome;
use crate::command::{KEY_BYTES_MAX, KeyPlace, LIST_KEYS_MAX, PairKey};

/// Commands that a session may have under way.
pub(super) const DEPTH_MAX: usize = 256;

/// A session; for one thread at a time.
pub(super) struct KvssdSession {
    array: Arc<Array>,
    pairs: Vec<KeyedCommand>,
    batches: Vec<KeyedBatch>,
    others: Vec<(Ticket, GroupCommand)>,
    tickets: u64,
}

/// A command that is for all devices, or for one after the other.
#[derive(Clone)]
enum GroupCommand {
    Walk(u32, WalkPlace, usize),
    Count(u32),
    Clear(u32),
    Persist,
}

/// Where a walk goes on: at this place of this device.
#[derive(Clone)]
struct WalkPlace {
    device: usize,
    at: KeyPlace,
    /// How often shards had changed their device as it began; none where it begins.
    switches: Option<u64>,
}

/// Group, device, hash and switches of a cursor; the key behind them is as long as it is.
const CURSOR_BYTES: usize = 22;

impl WalkPlace {
    const START: WalkPlace =
        WalkPlace { device: 0, at: KeyPlace { hash: 0, after: Vec::new() }, switches: None };

    /// From a cursor's bytes: group (4), device (2), hash (8), switches (8), little-endian, and then a key.
    fn of(cursor: &Cursor, group: u32) -> Result<WalkPlace> {
        let Some(bytes) = cursor.place() else { return Ok(WalkPlace::START) };
        if bytes.len() < CURSOR_BYTES || u32_at(bytes, 0) != group {
            return Err(Error::invalid("the cursor is of a walk of another group, or of another backend"));
        }
        let at = KeyPlace { hash: u64_at(bytes, 6), after: bytes[CURSOR_BYTES..].to_vec() };
        let switches = Some(u64_at(bytes, 14));
        Ok(WalkPlace { device: usize::from(u16_at(bytes, 4)), at, switches })
    }

    fn cursor(&self, group: u32, switches: u64) -> Cursor {
        let mut bytes = group.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(self.device as u16).to_le_bytes());
        bytes.extend_from_slice(&self.at.hash.to_le_bytes());
        bytes.extend_from_slice(&switches.to_le_bytes());
        bytes.extend_from_slice(&self.at.after);
        Cursor::at(bytes.into())
    }
}

impl KvssdSession {
    pub(super) fn new(array: Arc<Array>) -> KvssdSession {
        KvssdSession { array, pairs: Vec::new(), batches: Vec::new(), others: Vec::new(), tickets: 0 }
    }

    fn is_idle(&self) -> bool {
        self.under_way() == 0
    }

    fn under_way(&self) -> usize {
        self.pairs.len() + self.batches.len() + self.others.len()
    }
}

impl Array {
    /// Carries out commands.
    fn answer(&self, pairs: Vec<KeyedCommand>, batches: Vec<KeyedBatch>, answered: &mut PairAnswers) {
        // No shard changes its device until these are answered.
        let layout = self.layout.read();
        if layout.map().copies() > 1 {
            drop(layout);
            self.answer_copied(pairs, batches, answered);
            return;
        }
        let mut outcome = Outcome::default();
        self.answer_pairs(&layout, pairs, &mut outcome);
        self.answer_batches(&layout, batches, &mut outcome);
        answered.append(&mut outcome.answered);
    }

    /// Carries out commands on pairs, each device's under its lock.
    pub(super) fn answer_pairs(&self, layout: &Layout, commands: Vec<KeyedCommand>, outcome: &mut Outcome) {
        let mut left = commands;
        while !left.is_empty() {
            left = self.answer_free(layout, left, outcome);
            if left.is_empty() {
                return;
            }
            let settled = self.settle_intents(layout);
            let failing = match (&settled, layout.map().copies()) {
                (Err(_), 2) => failing(layout).into_iter().next(),
                _ => None,
            };
            for command in std::mem::take(&mut left) {
                match self.may_be_removed(&settled, |key| key == command.key.bytes()) {
                    Ok(()) => left.push(command),
                    Err(error) => match failing {
                        Some(device) => outcome.begin_again(device, command),
                        None => outcome.answered.push((command.ticket, Err(error))),
                    },
                }
            }
        }
    }

    /// The same, but of those that remove a pair of an intent, which are given back: not before that is settled.
    fn answer_free(
        &self,
        layout: &Layout,
        commands: Vec<KeyedCommand>,
        outcome: &mut Outcome,
    ) -> Vec<KeyedCommand> {
        let mut shares: BTreeMap<usize, Vec<KeyedCommand>> = BTreeMap::new();
        for command in commands {
            shares.entry(layout.map().device_of(command.key.bytes())).or_default().push(command);
        }
        if let Err(error) = self.reserve_marks(layout) {
            // Without a mark nothing can be stored; reads go on.
            for share in shares.values_mut() {
                let (puts, rest) = std::mem::take(share)
                    .into_iter()
                    .partition(|one| matches!(one.change, KeyedChange::Put(..)));
                let puts: Vec<KeyedCommand> = puts;
                outcome.answered.extend(puts.iter().map(|put| (put.ticket, Err(error.clone()))));
                *share = rest;
            }
        }
        let mut held = Vec::new();
        for (number, share) in shares {
            let is_held = |command: &KeyedCommand| {
                matches!(command.change, KeyedChange::Delete(_))
                    && self.intents.lock().has_key(command.key.bytes())
            };
            held.extend(match layout.map().copies() {
                1 => layout.answer(&self.marks, number, share, is_held, &mut outcome.answered),
                _ => self.answer_share(layout, number, share, is_held, outcome),
            });
        }
        held
    }
}

impl Session for KvssdSession {
    fn start(&mut self, command: Command<'_>) -> Result<Ticket> {
        let ticket = Ticket::new(self.tickets + 1);
        let started = started(command, ticket, &self.array.capabilities)?;
        self.array.check_open()?;
        if self.under_way() == DEPTH_MAX {
            let message = format!("{DEPTH_MAX} commands are under way in this session, as many as may be");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        self.tickets += 1;
        match started {
            Started::Pair(command) => self.pairs.push(command),
            Started::Batch(changes) => self.batches.push(KeyedBatch { ticket, changes }),
            Started::Group(command) => self.others.push((ticket, command)),
        }
        Ok(ticket)
    }

    fn poll(&mut self, answered: &mut Vec<(Ticket, Result<Answer>)>) {
        if !self.pairs.is_empty() || !self.batches.is_empty() {
            let (pairs, batches) = (std::mem::take(&mut self.pairs), std::mem::take(&mut self.batches));
            self.array.answer(pairs, batches, answered);
        }
        for (ticket, command) in self.others.drain(..) {
            answered.push((ticket, self.array.answer_group(command)));
        }
    }

    fn wait(&mut self, _timeout: Duration) -> Result<()> {
        // What is under way is answered by the next poll, also once the backend is closed.
        if self.is_idle() { self.array.check_open() } else { Ok(()) }
    }
}

enum Started {
    Pair(KeyedCommand),
    Batch(Vec<ExpectedChange>),
    Group(GroupCommand),
}

/// A command that borrows nothing, if it can be.
fn started(command: Command<'_>, ticket: Ticket, capabilities: &Capabilities) -> Result<Started> {
    let pair =
        |key: &[u8], change| Ok(Started::Pair(KeyedCommand { ticket, key: checked_key(key)?, change }));
    match command {
        Command::Get { key } => pair(key, KeyedChange::Get),
        Command::Put { key, value, expect } => {
            check_value(value, capabilities)?;
            let value = [&[0; MARK_BYTES], value].concat();
            pair(key, KeyedChange::Put(value, expect))
        }
        Command::Delete { key, expect } => pair(key, KeyedChange::Delete(expect)),
        Command::Batch { changes } => {
            check_batch(&changes, capabilities.batch_bytes_max)?;
            let expected = changes.into_iter().map(|change| expected(change, capabilities));
            Ok(Started::Batch(expected.collect::<Result<_>>()?))
        }
        Command::Walk { group, from, pairs } => {
            let from = WalkPlace::of(&from, group)?;
            Ok(Started::Group(GroupCommand::Walk(group, from, pairs.clamp(1, LIST_KEYS_MAX))))
        }
        Command::Count { group } => Ok(Started::Group(GroupCommand::Count(group))),
        Command::Clear { group } => Ok(Started::Group(GroupCommand::Clear(group))),
        Command::Persist => Ok(Started::Group(GroupCommand::Persist)),
    }
}

fn expected(change: PairChange<'_>, capabilities: &Capabilities) -> Result<ExpectedChange> {
    let becomes = match change.becomes {
        Becomes::Unchanged => KeyedBecomes::Unchanged,
        Becomes::Value(value) => {
            check_value(value, capabilities)?;
            KeyedBecomes::Value(value.to_vec())
        }
        Becomes::Nothing => KeyedBecomes::Nothing,
    };
    Ok(ExpectedChange { key: checked_key(change.key)?, expect: change.expect, becomes })
}

fn check_value(value: &[u8], capabilities: &Capabilities) -> Result<()> {
    let (bytes, max) = (value.len(), capabilities.value_bytes_max);
    match bytes <= max {
        true => Ok(()),
        false => Err(Error::invalid(format!("a value of {bytes} bytes; here it has at most {max}"))),
    }
}

fn checked_key(key: &[u8]) -> Result<PairKey> {
    let wrong = || {
        let bytes = key.len();
        Error::invalid(format!("a pair's key of {bytes} bytes; here it has {GROUP_BYTES} to {KEY_BYTES_MAX}"))
    };
    if key.len() < GROUP_BYTES {
        return Err(wrong());
    }
    PairKey::new(key).map_err(|_| wrong())
}

impl Array {
    fn answer_group(&self, command: GroupCommand) -> Result<Answer> {
        loop {
            match self.answer_group_once(command.clone()) {
                // Where there are two copies it is given again without the device that failed.
                Err(error) if self.put_out_failing(&error) => {}
                answer => return answer,
            }
        }
    }

    fn answer_group_once(&self, command: GroupCommand) -> Result<Answer> {
        // No shard changes its device until this is answered.
        let layout = self.layout.read();
        match command {
            GroupCommand::Walk(group, from, pairs) => walk(&layout, group, from, pairs),
            GroupCommand::Count(group) => count(&layout, group).map(Answer::Counted),
            GroupCommand::Clear(group) => self.clear(&layout, group).map(|()| Answer::Cleared),
            GroupCommand::Persist if layout.map().copies() > 1 => {
                self.persist_copied(&layout).map(|()| Answer::Persisted)
            }
            GroupCommand::Persist => {
                layout.on_each(ArrayDevice::persist)?;
                self.settle_intents(&layout).map_err(Error::from).map(|()| Answer::Persisted)
            }
        }
    }
}

impl Array {
    /// Removes the pairs of a group, once none of them is of an intent.
    fn clear(&self, layout: &Layout, group: u32) -> Result<()> {
        let begin = |locked: &mut LockedDevices<'_>| match layout.map().copies() {
            1 => Ok(()),
            _ => self.begin_all(layout, locked),
        };
        while !layout.clear(group, || self.intents.lock().has_group(group), begin)? {
            let settled = self.settle_intents(layout);
            self.may_be_removed(&settled, |key| key.starts_with(&group.to_be_bytes()))?;
        }
        Ok(())
    }
}

/// Each pair once, by the device that its shard is on.
fn count(layout: &Layout, group: u32) -> Result<u64> {
    let map = layout.map();
    let mut counted = 0;
    for number in layout.numbers() {
        let of_device = layout.with(number, |device| match map.may_have_others(number) {
            false => device.count(group),
            true => device.count_own(group, |key| map.device_of(key) == number),
        });
        counted += of_device.unwrap_or_else(|| Err(closed()))?;
    }
    Ok(counted)
}

/// Pairs of one device after the other, until so many were looked at. A walk that began before shards changed their device begins anew: what it has not come by may be where it was already.
fn walk(layout: &Layout, group: u32, from: WalkPlace, pairs: usize) -> Result<Answer> {
    let map = layout.map();
    let mut walked: Vec<Pair> = Vec::new();
    let is_old = from.switches.is_some_and(|switches| switches != map.switches);
    let WalkPlace { device, mut at, .. } = if is_old { WalkPlace::START } else { from };
    let mut left = pairs;
    let mut next = layout.numbers_from(device).next();
    // Of a device that is there no more there is no place.
    if next != Some(device) {
        at = KeyPlace::default();
    }
    while let Some(number) = next.filter(|_| left > 0) {
        let is_told = |key: &[u8]| map.device_of(key) == number;
        let step = layout.with(number, |device| device.walk(group, at.clone(), left, is_told));
        match step.unwrap_or_else(|| Err(closed())) {
            Ok(step) => {
                left -= step.looked_at.max(step.pairs.len()).min(left);
                walked.extend(step.pairs);
                (next, at) = match step.next {
                    Some(at) => (Some(number), at),
                    None => (layout.numbers_from(number + 1).next(), KeyPlace::default()),
                };
            }
            // It is told as the walk comes here again.
            Err(_) if left < pairs => break,
            Err(error) => return Err(error),
        }
    }
    let cursor = next.map(|device| WalkPlace { device, at, switches: None }.cursor(group, map.switches));
    Ok(Answer::Walked(walked, cursor))
}
