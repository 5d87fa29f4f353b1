//! Shards that go from one device to another while sessions work.
//!
//! Owns [`Mover`], the steps of a move and their order. Promises that a key is, at each moment and after each crash, whole on the device that the map says, with its mark, and that nothing of it comes back elsewhere:
//!
//! 1. The shards that go from one device, and where to, are in the map in force before the first pair is copied. From then on each of their changes is made on both devices ([`Layout::answer`]); the one
//!    that they go from is the truth.
//! 2. Its keys are gone through once. Those of shards on the move are copied as they are by then, under the locks of both devices.
//! 3. The others are flushed, and the map is put in force that says that they have these shards.
//! 4. Only then what is left behind (strays) is deleted. That there may be some is in the map from step 3 on, until there are none, durably.
//!
//! A move that ends before step 3, by a refusal or a crash, leaves strays where they were going to: they are deleted before any shard is moved again, so that a copy begins with nothing. Must not know what sessions ask for.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use super::array_device::ArrayDevice;
use super::failure::{ArrayError, ArrayResult};
use super::layout::{Layout, device_failed};
use super::map::{ArrayMap, CopyMove, MapWork};
use super::{Array, MoveTurn};
use crate::code::Result as KvResult;
use crate::command::PairKey;

/// Bytes that are copied in one step, and one pair more.
const STEP_BYTES: u64 = 256 << 10;
/// Pairs that are copied, or deleted, in one step.
const STEP_PAIRS: usize = 32;

/// How far a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveProgress {
    /// Shards that were moved.
    pub shards_done: usize,
    /// All that are to be moved, as far as it is known: from the second step on.
    pub shards: usize,
    /// Pairs that were copied, those that sessions changed meanwhile not counted.
    pub pairs_copied: u64,
    /// Pairs that were deleted where they are no more.
    pub pairs_deleted: u64,
}

/// A move of shards, for whoever takes its steps. Each does a bounded part of the work, on the caller's thread, and holds up the devices that it is about for as long. One that is left before its end does no harm:
/// changes of shards on the move go to two devices until it is gone on with ([`KvssdBackend::unfinished_move`](super::KvssdBackend::unfinished_move)), or the array is opened anew.
pub struct Mover {
    turn: MoveTurn,
    work: MapWork,
    stage: MoverStage,
    progress: MoveProgress,
    step_pairs: usize,
    /// Why it ends as soon as what was copied is gone.
    failed: Option<ArrayError>,
}

/// What the next step does.
enum MoverStage {
    /// Says in the map what is to be done, and that nothing is on the move.
    Begin,
    /// Deletes what is on a device and not its own.
    Clean(Option<KeyWalk>),
    /// Chooses what goes next, and from where.
    Plan,
    Copy(KeyWalk),
    Switch,
    Finish,
    Done,
}

/// All keys of a device, as they are gone through.
struct KeyWalk {
    device: usize,
    iterator: u32,
    pending: VecDeque<PairKey>,
    is_last: bool,
}

impl fmt::Debug for Mover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mover({:?}, {:?})", self.work, self.progress)
    }
}

impl Mover {
    /// Of what was found out to be done in this turn.
    pub(super) fn new(turn: MoveTurn, work: MapWork) -> Mover {
        let (stage, progress) = (MoverStage::Begin, MoveProgress::default());
        Mover { turn, work, stage, progress, step_pairs: STEP_PAIRS, failed: None }
    }

    /// How far it is.
    pub fn progress(&self) -> MoveProgress {
        self.progress
    }

    /// For tests: so many pairs in one step.
    #[cfg(test)]
    pub(super) fn with_step_pairs(self, step_pairs: usize) -> Mover {
        Mover { step_pairs, ..self }
    }

    /// Takes all steps that are left.
    ///
    /// # Errors
    /// As [`Mover::step`].
    pub fn run(&mut self) -> Result<(), ArrayError> {
        while self.step()? {}
        Ok(())
    }

    /// Takes a step; whether there is another.
    ///
    /// # Errors
    /// What a device refused: where the shards go there is no room ([`KvError::DeviceFull`](crate::KvError::DeviceFull)), a pair cannot be read, a device failed. By then shards are where they were before the map last changed, and what was copied of others is deleted, unless that was
    /// refused, too. No further step does anything.
    pub fn step(&mut self) -> Result<bool, ArrayError> {
        let stage = std::mem::replace(&mut self.stage, MoverStage::Done);
        let is_copying = matches!(stage, MoverStage::Copy(_) | MoverStage::Switch);
        let next = match stage {
            MoverStage::Begin => self.begin(),
            MoverStage::Clean(walk) => self.clean(walk),
            MoverStage::Plan => self.plan(),
            MoverStage::Copy(walk) => self.copy(walk),
            MoverStage::Switch => self.switch(),
            MoverStage::Finish => self.finish(),
            MoverStage::Done => Ok(MoverStage::Done),
        };
        match next {
            Ok(stage) => self.stage = stage,
            Err(error) if is_copying => {
                self.turn.array.put_out_failed(&error);
                self.failed = Some(error);
                // It is begun again, so that nothing is on the move, and ends once that is clean.
                self.stage = MoverStage::Begin;
            }
            Err(error) => {
                self.turn.array.put_out_failed(&error);
                return Err(self.failed.take().unwrap_or(error));
            }
        }
        match (&self.stage, self.failed.take()) {
            (MoverStage::Done, Some(error)) => Err(error),
            (stage, failed) => {
                self.failed = failed;
                Ok(!matches!(stage, MoverStage::Done))
            }
        }
    }

    fn array(&self) -> &Array {
        &self.turn.array
    }

    fn begin(&mut self) -> ArrayResult<MoverStage> {
        let work = self.work;
        self.array().change_map(None, |map| {
            map.cancel_moves();
            map.work = work;
        })?;
        if self.failed.is_none() {
            let layout = self.array().layout.read();
            let left = match layout.map().copies() {
                1 => layout.map().moves_left().len(),
                _ => layout.map().copies_left().len(),
            };
            drop(layout);
            self.progress.shards = left;
        }
        Ok(MoverStage::Clean(None))
    }

    /// Deletes some pairs that are not the device's own, of all devices that may have such.
    fn clean(&mut self, walk: Option<KeyWalk>) -> ArrayResult<MoverStage> {
        let array = Arc::clone(&self.turn.array);
        let layout = array.layout.read();
        let map = layout.map();
        let Some(mut walk) = walk else {
            let Some(&number) = map.strays.first() else { return Ok(self.cleaned()) };
            return Ok(MoverStage::Clean(Some(KeyWalk::begin(&layout, usize::from(number))?)));
        };
        let number = walk.device;
        let own = |key: &PairKey| map.has_copy(number, key.bytes());
        let most = self.step_pairs;
        let deleted = on_device(&layout, number, |device| {
            if walk.pending.is_empty() {
                walk.list(device)?;
                walk.pending.retain(|key| !own(key));
            }
            let strays: Vec<PairKey> = walk.pending.drain(..most.min(walk.pending.len())).collect();
            let deleted = strays.len() as u64;
            device.delete_pairs(strays).map(|()| deleted)
        })?;
        self.progress.pairs_deleted += deleted;
        if !walk.is_last || !walk.pending.is_empty() {
            return Ok(MoverStage::Clean(Some(walk)));
        }
        // PERSIST: what was deleted is durably so before a map says that nothing is there.
        on_device(&layout, number, |device| device.end_keys().and_then(|()| device.flush()))?;
        drop(layout);
        array.change_map(None, |map| {
            map.strays.remove(&(number as u16));
        })?;
        Ok(MoverStage::Clean(None))
    }

    fn cleaned(&self) -> MoverStage {
        if self.failed.is_some() { MoverStage::Finish } else { MoverStage::Plan }
    }

    fn plan(&mut self) -> ArrayResult<MoverStage> {
        let array = Arc::clone(&self.turn.array);
        let map = array.layout.read().map().clone();
        if map.copies() > 1 {
            return self.plan_copies(&map);
        }
        let mut moves = map.moves_left();
        let owner = |shard: u16| map.shards[usize::from(shard)];
        // All of one device at once: its keys are gone through once.
        let Some(source) = moves.keys().next().map(|&shard| owner(shard)) else {
            return Ok(MoverStage::Finish);
        };
        moves.retain(|&shard, _| owner(shard) == source);
        array.change_map(None, |map| map.moves = moves)?;
        self.begin_copying(source)
    }

    /// The same where there are two copies: what goes is a second copy, or becomes one before that, or there was none.
    fn plan_copies(&mut self, map: &ArrayMap) -> ArrayResult<MoverStage> {
        let left = map.copies_left();
        let first = |copy: &CopyMove| {
            let shard = usize::from(copy.shard);
            match copy.goes == Some(map.shards[shard]) {
                true => map.second(shard).unwrap_or(map.shards[shard]),
                false => map.shards[shard],
            }
        };
        let Some((source, goes)) = left.first().map(|copy| (first(copy), copy.goes)) else {
            return Ok(MoverStage::Finish);
        };
        let chosen: Vec<CopyMove> =
            left.into_iter().filter(|copy| first(copy) == source && copy.goes == goes).collect();
        self.array().change_map(None, |map| {
            for copy in &chosen {
                if goes == Some(map.shards[usize::from(copy.shard)]) {
                    // Both are flushed before a map changes, and nobody writes meanwhile.
                    map.swap(usize::from(copy.shard));
                    map.switches += 1;
                }
                map.moves.insert(copy.shard, copy.to);
            }
        })?;
        self.begin_copying(source)
    }

    fn begin_copying(&mut self, source: u16) -> ArrayResult<MoverStage> {
        // From the map on: what is stored later goes to both.
        let begun = KeyWalk::begin(&self.array().layout.read(), usize::from(source));
        match begun {
            Ok(walk) => Ok(MoverStage::Copy(walk)),
            Err(error) => {
                self.failed = Some(error);
                Ok(MoverStage::Begin)
            }
        }
    }

    /// Copies some pairs.
    fn copy(&mut self, mut walk: KeyWalk) -> ArrayResult<MoverStage> {
        let array = Arc::clone(&self.turn.array);
        let layout = array.layout.read();
        if let Some(why) = layout.spoiled() {
            return Err(why);
        }
        if walk.pending.is_empty() && !walk.is_last {
            on_device(&layout, walk.device, |device| walk.list(device))?;
            walk.pending.retain(|key| layout.map().target_of(key.bytes()).is_some());
        }
        let some: Vec<(PairKey, usize)> = walk
            .pending
            .iter()
            .take(self.step_pairs)
            .filter_map(|key| Some((key.clone(), layout.map().target_of(key.bytes())?)))
            .collect();
        let mut locked = layout.lock(some.iter().map(|(_, to)| *to).chain([walk.device]));
        let mut bytes = 0;
        for (key, to) in &some {
            if bytes >= STEP_BYTES {
                break;
            }
            bytes += locked.copy(key, walk.device, *to)?;
            self.progress.pairs_copied += 1;
            walk.pending.pop_front();
        }
        match walk.is_last && walk.pending.is_empty() {
            true => Ok(MoverStage::Switch),
            false => Ok(MoverStage::Copy(walk)),
        }
    }

    fn switch(&mut self) -> ArrayResult<MoverStage> {
        let array = Arc::clone(&self.turn.array);
        let targets = |map: &ArrayMap| map.moves.values().map(|&to| usize::from(to)).collect::<BTreeSet<_>>();
        // Most of it while sessions go on.
        {
            let layout = array.layout.read();
            targets(layout.map()).into_iter().try_for_each(|number| layout.flush(number))?;
        }
        let mut layout = array.layout.write();
        if let Some(why) = layout.spoiled() {
            return Err(why);
        }
        // Nobody changes anything between the flush that comes before each change of a map and the map.
        let moved = layout.map().moves.len();
        array.change_layout(&mut layout, None, ArrayMap::switch)?;
        self.progress.shards_done += moved;
        Ok(MoverStage::Clean(None))
    }

    fn finish(&mut self) -> ArrayResult<MoverStage> {
        let array = Arc::clone(&self.turn.array);
        let mut layout = array.layout.write();
        let goes = match self.work {
            MapWork::Remove(number) if self.failed.is_none() => Some(number),
            _ => None,
        };
        // Of what it still has there was nowhere to go to: a device went out meanwhile.
        let stays = goes.filter(|&number| layout.map().has_shards(number));
        if let Some(number) = stays {
            let map = layout.map();
            let devices = map.in_members().filter(|member| *member != number).count();
            self.failed = Some(ArrayError::Copies { copies: map.copies(), devices });
        }
        let removed = goes.filter(|_| stays.is_none());
        let is_whole = self.failed.is_none();
        array.change_layout(&mut layout, None, |map| {
            map.work = MapWork::Nothing;
            if let Some(number) = removed {
                map.members.remove(&number);
                map.out.remove(&number);
            }
            if map.copies() > 1 && is_whole {
                map.balance_firsts();
            }
        })?;
        Ok(MoverStage::Done)
    }
}

impl KeyWalk {
    fn begin(layout: &Layout, device: usize) -> ArrayResult<KeyWalk> {
        let iterator = on_device(layout, device, ArrayDevice::begin_keys)?;
        Ok(KeyWalk { device, iterator, pending: VecDeque::new(), is_last: false })
    }

    fn list(&mut self, device: &mut ArrayDevice) -> KvResult<()> {
        let (keys, is_last) = device.next_keys(self.iterator)?;
        self.pending.extend(keys);
        self.is_last = is_last;
        Ok(())
    }
}

/// Runs `step` on a device, under its lock.
fn on_device<R>(
    layout: &Layout,
    number: usize,
    step: impl FnOnce(&mut ArrayDevice) -> KvResult<R>,
) -> ArrayResult<R> {
    let done = layout.with(number, |device| step(device).map_err(|error| device_failed(device, error)));
    done.unwrap_or(Err(ArrayError::Closed))
}
