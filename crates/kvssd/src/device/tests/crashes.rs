//! Crash sweeps: a script runs once on a medium that remembers every store; then, for many places in its log and several images at each, the device is opened and must have what it had after
//! some prefix of the script's changes: no change is half there, none is missing below those that had to be durable, and nothing is back that was deleted.

use hedgerow_device::{CrashWalk, Survivors};

use super::*;

/// So small that gc is at work throughout.
const TINY: Geometry = Geometry { page_bytes: 4096, block_bytes: 32 << 10, blocks: 9 };

/// With a capacitor the open page survives, and so does all that was stored to the medium.
const WITH_CAPACITOR: [Survivors; 2] = [Survivors::All, Survivors::ProcessKill];
const WITHOUT: [Survivors; 6] = [
    Survivors::None,
    Survivors::Random,
    Survivors::LastStore,
    Survivors::AllButLastStore,
    Survivors::HeadersOnly,
    Survivors::BodiesOnly,
];

/// The change that makes a key space, or takes its name away.
fn name_change(name: &[u8], id: Option<SpaceId>) -> KeyChange {
    ((0, name.to_vec()), id.map(|id| id.number().to_le_bytes().to_vec()))
}

/// A change of one key.
type KeyChange = ((u32, Vec<u8>), Option<Vec<u8>>);

struct Script {
    sim: CrashSim,
    options: DeviceOptions,
    geometry: Geometry,
    changes: Vec<KeyChange>,
    /// Of each command: where the medium's log was once it was complete, the changes by then, and those that were durable.
    steps: Vec<(u64, usize, usize)>,
    keys: u64,
    copied: u64,
    erased: u64,
    merges: u64,
}

impl Script {
    /// A sweep is of use only where blocks were collected.
    fn assert_gc_ran(&self) {
        let Script { erased, copied, .. } = self;
        assert!(*erased > 20 && *copied > 200, "{erased} erased, {copied} copied");
    }

    fn run(seed: u64, commands: usize, keys: u64, options: DeviceOptions, flushes: bool) -> Script {
        Script::run_on(CrashModel::Pages, TINY, seed, commands, keys, 0, options, flushes)
    }

    /// Runs random commands on a medium of this kind, after `filled` pairs were stored, which no crash of a sweep takes.
    #[expect(clippy::too_many_arguments, reason = "what a sweep is made of")]
    fn run_on(
        model: CrashModel,
        geometry: Geometry,
        seed: u64,
        commands: usize,
        keys: u64,
        filled: u64,
        options: DeviceOptions,
        flushes: bool,
    ) -> Script {
        let sim = CrashSim::new(model, geometry.bytes() + (1 << 20));
        let mut device = Device::format(FastTier::simulated(&sim), geometry, options.clone()).unwrap();
        let mut random = Random::from_seed(seed);
        let space = create_space(&mut device, b"one", 0);
        let mut script = Script {
            sim,
            options,
            geometry,
            changes: vec![name_change(b"one", Some(space))],
            steps: Vec::new(),
            keys,
            copied: 0,
            erased: 0,
            merges: 0,
        };
        let mut content = Content::new();
        for n in 0..filled {
            script.store(&mut device, &mut content, space, n.to_be_bytes().to_vec(), Vec::new());
        }
        let _ = answer(&mut device, KvCommand::Flush).unwrap();
        script.push(script.changes.len());
        let mut other = None;
        for _ in 0..commands {
            let flushed = script.command(&mut device, &mut content, &mut random, &mut other, flushes);
            script.push(if flushed { script.changes.len() } else { 0 });
        }
        script.copied = device.gc_counters().copied_records;
        script.erased = device.gc_counters().cycles;
        script.merges = device.index_counters().merges;
        script
    }

    /// Gives one random command. Whether it was a flush.
    fn command(
        &mut self,
        device: &mut Device,
        content: &mut Content,
        random: &mut Random,
        other: &mut Option<SpaceId>,
        flushes: bool,
    ) -> bool {
        let space = other.filter(|_| random.below(4) == 0).unwrap_or(SpaceId(1));
        let of = key_of(random.below(self.keys));
        let at = (space.number(), of.clone());
        match random.below(64) {
            0..=39 => {
                let value = value_of(random, 900);
                self.store(device, content, space, of, value);
            }
            40..=43 => {
                let value = value_of(random, 100);
                let new = [content.get(&at).cloned().unwrap_or_default(), value.clone()].concat();
                let mode = StoreMode::Append;
                if answer(device, KvCommand::Store { space, key: key(&of), value, mode }).is_ok() {
                    content.insert(at.clone(), new.clone());
                    self.changes.push((at, Some(new)));
                }
            }
            44..=47 if flushes => {
                answer(device, KvCommand::Flush).unwrap();
                return true;
            }
            48..=51 => {
                let buffer = vec![0; 4096];
                let command = KvCommand::Retrieve { space, key: key(&of), offset: 0, buffer, delete: true };
                if run(device, command).result.is_ok() {
                    content.remove(&at);
                    self.changes.push((at, None));
                }
            }
            52 if random.below(4) == 0 => {
                self.delete_group(device, content, space, KeyPattern::prefix(&of[..2]), None);
            }
            53 if random.below(4) == 0 => *other = self.change_space(device, content, *other),
            _ => {
                if delete(device, space, &of).unwrap() == KvAnswer::Deleted(true) {
                    content.remove(&at);
                    self.changes.push((at, None));
                }
            }
        }
        false
    }

    fn store(
        &mut self,
        device: &mut Device,
        content: &mut Content,
        space: SpaceId,
        of: Vec<u8>,
        value: Vec<u8>,
    ) {
        match store(device, space, &of, &value) {
            Ok(_) => {
                let at = (space.number(), of);
                content.insert(at.clone(), value.clone());
                self.changes.push((at, Some(value)));
            }
            Err(KvError::DeviceFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Deletes a group, or a key space with its name: a change for each pair, in the order of buckets.
    fn delete_group(
        &mut self,
        device: &mut Device,
        content: &mut Content,
        space: SpaceId,
        selected: KeyPattern,
        name: Option<&[u8]>,
    ) {
        let group_of = crate::command::group_of;
        let is_selected = |at: &&(u32, Vec<u8>)| at.0 == space.number() && selected.selects(group_of(&at.1));
        let mut gone: Vec<_> = content.keys().filter(is_selected).cloned().collect();
        gone.sort_by_key(|(_, key)| (group_of(key), device.hash(space, key), key.clone()));
        let command = match name {
            Some(name) => KvCommand::DeleteSpace { name: key(name) },
            None => KvCommand::DeleteGroup { space, selected },
        };
        assert_eq!(answer(device, command).unwrap(), KvAnswer::GroupDeleted(gone.len() as u64));
        for at in gone {
            content.remove(&at);
            self.changes.push((at, None));
        }
        self.changes.extend(name.map(|name| name_change(name, None)));
    }

    /// Makes the second key space, or deletes it with what is in it.
    fn change_space(
        &mut self,
        device: &mut Device,
        content: &mut Content,
        other: Option<SpaceId>,
    ) -> Option<SpaceId> {
        if let Some(space) = other {
            self.delete_group(device, content, space, KeyPattern::ALL, Some(b"two"));
            return None;
        }
        match answer(device, KvCommand::CreateSpace { name: key(b"two"), bytes_max: 0 }) {
            Ok(KvAnswer::Space(info)) => {
                self.changes.push(name_change(b"two", Some(info.id)));
                Some(info.id)
            }
            Err(KvError::DeviceFull { .. }) => None,
            other => panic!("{other:?}"),
        }
    }

    fn push(&mut self, durable: usize) {
        let before = self.steps.last().map_or(0, |step| step.2);
        let durable = match self.options.ack {
            AckMode::Immediate => self.changes.len(),
            AckMode::Buffered => durable.max(before),
        };
        self.steps.push((self.sim.ops(), self.changes.len(), durable));
    }

    /// The fewest and the most changes that may be left of a crash here.
    fn allowed(&self, place: u64, kind: Survivors) -> (usize, usize) {
        let returned = self.steps.partition_point(|step| step.0 <= place);
        let (_, acknowledged, durable) = self.steps[returned.saturating_sub(1)];
        let most = self.steps.get(returned).map_or(acknowledged, |step| step.1);
        (if WITH_CAPACITOR.contains(&kind) { acknowledged } else { durable }, most)
    }

    fn content_after(&self, changes: usize) -> Content {
        let mut content = Content::new();
        for (at, value) in &self.changes[..changes] {
            match value {
                Some(value) => content.insert(at.clone(), value.clone()),
                None => content.remove(at),
            };
        }
        content
    }

    /// Opens an image; what it has must be what the script had after some of the allowed changes. Gives the device and the number back.
    fn open(&self, sim: &CrashSim, (least, most): (usize, usize), told: &str) -> (Device, usize) {
        let mut device = Device::open(FastTier::simulated(sim), self.options.clone())
            .unwrap_or_else(|error| panic!("{told}: {error}"));
        assert!(device.open_report().is_whole(), "{told}: a crash is no damage: {:?}", device.open_report());
        let found = all_of(&mut device);
        let mut content = self.content_after(least);
        for changes in least..=most {
            if changes > least {
                let (at, value) = &self.changes[changes - 1];
                match value {
                    Some(value) => content.insert(at.clone(), value.clone()),
                    None => content.remove(at),
                };
            }
            if content == found {
                return (device, changes);
            }
        }
        let least = self.content_after(least);
        let missing: Vec<_> =
            least.iter().filter(|(at, value)| found.get(*at) != Some(value)).map(|(at, _)| at).collect();
        let more: Vec<_> = found.keys().filter(|at| !least.contains_key(*at)).collect();
        panic!(
            "{told}: {least_len} pairs expected at least, {} found; other or missing {missing:?}, more {more:?}",
            found.len(),
            least_len = least.len()
        );
    }

    /// What was left takes commands, is closed and opened again, and is still that; and crashes of the opening itself leave the same.
    fn go_on(&self, walk: &CrashWalk, kind: Survivors, seed: u64, told: &str, deeply: bool) -> usize {
        let image = walk.image(kind, seed);
        let allowed = self.allowed(walk.op_index(), kind);
        let sim = CrashSim::from_image(&image);
        let (mut device, changes) = self.open(&sim, allowed, told);
        if !deeply {
            return 1;
        }
        let words = sim.process_kill();
        for [a, b] in (0..self.geometry.blocks).map(|block| self.geometry.word_offsets(block)) {
            assert_eq!(words.read(a, 8), words.read(b, 8), "{told}: both words of a block are alike");
        }
        let mut images = 1;
        let mut second = sim.walk();
        let ends = sim.ops();
        while second.next_op() {
            if second.op_index() > ends {
                break;
            }
            let kinds = [Survivors::None, Survivors::Random, Survivors::All, Survivors::ProcessKill];
            let again_kind = kinds[second.op_index() as usize % kinds.len()];
            let again = CrashSim::from_image(&second.image(again_kind, seed));
            // What a killed process left is durable only when the opening has made it so: the power may take it until then.
            let is_pending = image.same_boot && !WITH_CAPACITOR.contains(&again_kind);
            let least = if is_pending { self.allowed(walk.op_index(), Survivors::None).0 } else { changes };
            let told = format!("{told}, and {again_kind:?} at {} of opening", second.op_index());
            self.open(&again, (least, changes), &told);
            images += 1;
        }
        let mut content = self.content_after(changes);
        let space = SpaceId(1);
        for n in 0..40u64 {
            let of = key_of(n * 3 % self.keys);
            if n % 4 == 3 {
                delete(&mut device, space, &of).unwrap();
                content.remove(&(1, of));
            } else if store(&mut device, space, &of, &n.to_le_bytes()).is_ok() {
                content.insert((1, of), n.to_le_bytes().to_vec());
            }
        }
        assert_eq!(all_of(&mut device), content, "{told}, going on");
        device.close().unwrap();
        let mut device = Device::open(FastTier::simulated(&sim), self.options.clone()).unwrap();
        assert_eq!(all_of(&mut device), content, "{told}, opened again");
        images
    }

    /// Crashes at one in `every` places of the log, and at all where something is made durable if `points`. How many images were opened.
    fn sweep(&self, kinds: &[Survivors], every: u64, deep_every: usize) -> usize {
        let mut random = Random::from_seed(9);
        let (mut images, mut places) = (0, 0);
        let mut walk = self.sim.walk();
        walk.seek(self.steps[0].0);
        while walk.next_op() {
            if random.below(every) != 0 {
                continue;
            }
            let kind = kinds[places % kinds.len()];
            places += 1;
            let told = format!("{kind:?} at {}", walk.op_index());
            images += self.go_on(&walk, kind, random.next_u64(), &told, places % deep_every == 0);
        }
        images
    }
}

#[test]
fn with_a_capacitor_nothing_that_was_acknowledged_is_lost() {
    let mut images = 0;
    for (seed, ack, keys) in
        [(1, AckMode::Buffered, 300), (2, AckMode::Buffered, 900), (3, AckMode::Immediate, 300)]
    {
        let script = Script::run(seed, 4000, keys, DeviceOptions { ack, ..DeviceOptions::default() }, true);
        script.assert_gc_ran();
        images += script.sweep(&WITH_CAPACITOR, 10, 40);
    }
    assert!(images >= 1500, "{images} images");
}

#[test]
fn without_one_a_prefix_of_the_commands_is_left() {
    let mut images = 0;
    let mut lost = 0;
    for (seed, keys, hash_mask) in [(4, 300, u64::MAX), (5, 900, u64::MAX), (6, 300, 0x3F)] {
        let options = DeviceOptions { hash_mask, ..DeviceOptions::default() };
        let script = Script::run(seed, 4000, keys, options, true);
        script.assert_gc_ran();
        images += script.sweep(&WITHOUT, 10, 40);
        // The sweep is of use only if something is lost at all.
        let mut walk = script.sim.walk();
        walk.seek(script.sim.ops());
        let allowed = script.allowed(walk.op_index(), Survivors::None);
        let sim = CrashSim::from_image(&walk.image(Survivors::None, 0));
        lost += allowed.1 - script.open(&sim, allowed, "the end").1;
    }
    assert!(images >= 1500, "{images} images");
    assert!(lost > 0, "the last page was not durable, and yet nothing was lost");
}

#[test]
fn in_immediate_mode_nothing_that_was_acknowledged_is_lost_without_one() {
    let mut images = 0;
    for (seed, keys) in [(7, 300), (8, 900)] {
        let options = DeviceOptions { ack: AckMode::Immediate, ..DeviceOptions::default() };
        let script = Script::run(seed, 4000, keys, options, false);
        script.assert_gc_ran();
        images += script.sweep(&WITHOUT, 10, 40);
    }
    assert!(images >= 1000, "{images} images");
}

/// Just before each sync takes effect the most is pending.
#[test]
fn at_every_sync_every_kind_of_crash_is_survived() {
    let script = Script::run(9, 2500, 500, DeviceOptions::default(), true);
    let mut images = 0;
    let mut walk = script.sim.walk();
    walk.seek(script.steps[0].0);
    while walk.next_point() {
        for kind in Survivors::EACH {
            let told = format!("{kind:?} at {}", walk.op_index());
            images += script.go_on(&walk, kind, walk.op_index(), &told, false);
        }
        // Killed, opened, and then the power is cut: what the opening found is durable.
        let sim = CrashSim::from_image(&walk.image(Survivors::ProcessKill, 0));
        let allowed = script.allowed(walk.op_index(), Survivors::ProcessKill);
        let told = format!("killed at {}", walk.op_index());
        let (device, changes) = script.open(&sim, allowed, &told);
        drop(device);
        let mut after = sim.walk();
        after.seek(u64::MAX);
        let sim = CrashSim::from_image(&after.image(Survivors::None, 0));
        script.open(&sim, (changes, changes), &format!("{told}, then cut"));
        images += 2;
    }
    assert!(images >= 1000, "{images} images");
}

/// A device whose making was cut off is none, or is empty; never half a one.
#[test]
fn a_device_is_made_or_not() {
    let (sim, device) = simulated(SMALL, &DeviceOptions::default());
    drop(device);
    let mut walk = sim.walk();
    let (mut none, mut empty) = (0, 0);
    while walk.next_op() {
        for kind in Survivors::EACH {
            let image = CrashSim::from_image(&walk.image(kind, walk.op_index()));
            match Device::open(FastTier::simulated(&image), DeviceOptions::default()) {
                Ok(mut device) => {
                    assert!(content_of(&mut device).is_empty());
                    empty += 1;
                }
                // A superblock that is torn is that of no device yet: it was not made, and is made anew.
                Err(KvError::NoDevice | KvError::Truncated { .. }) => {
                    let tier = FastTier::simulated(&image);
                    let again = Device::format(tier, SMALL, DeviceOptions::default());
                    assert!(content_of(&mut again.unwrap()).is_empty());
                    none += 1;
                }
                Err(error) => panic!("{kind:?} at {}: {error}", walk.op_index()),
            }
        }
    }
    assert!(none > 0 && empty > 0);
}

/// A sync that fails ends the device: no later command is acknowledged, and what was durable is there when it is opened again.
#[test]
fn a_failed_sync_is_the_last() {
    let options = DeviceOptions { ack: AckMode::Immediate, ..DeviceOptions::default() };
    let (sim, mut device) = simulated(SMALL, &options);
    let space = create_space(&mut device, b"one", 0);
    store(&mut device, space, b"first", b"1").unwrap();
    sim.fail_persist_after(0, false);
    assert!(matches!(store(&mut device, space, b"second", b"2"), Err(KvError::Medium(_))));
    let command = KvCommand::Flush;
    let refused = device.submit(1, command).unwrap_err();
    assert!(matches!(refused.error, KvError::Closed { .. }));
    assert!(matches!(device.close(), Err(KvError::Closed { .. })));
    let walk = {
        let mut walk = sim.walk();
        walk.seek(u64::MAX);
        walk
    };
    let sim = CrashSim::from_image(&walk.image(Survivors::None, 0));
    let mut device = Device::open(FastTier::simulated(&sim), options).unwrap();
    assert_eq!(retrieve(&mut device, space, b"first").unwrap(), b"1");
}

/// The kernel failed to write back what a process then left: it takes the pages for clean. Opening stores them again, or a power cut after it would take what was there.
#[test]
fn what_a_killed_process_left_is_durable_once_it_is_opened() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(TINY, &options);
    let space = create_space(&mut device, b"one", 0);
    for n in 0..30u64 {
        store(&mut device, space, &key_of(n), &[n as u8; 50]).unwrap();
    }
    let content = content_of(&mut device);
    sim.fail_write_back();
    drop(device);
    let sim = CrashSim::from_image(&sim.process_kill());
    let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
    assert_eq!(content_of(&mut device), content);
    drop(device);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let sim = CrashSim::from_image(&walk.image(Survivors::None, 0));
    let mut device = Device::open(FastTier::simulated(&sim), options).unwrap();
    assert_eq!(content_of(&mut device), content);
}

/// A record that does not follow on the one before it: after a killed process one is missing, and that is told; a power cut is cut there, and what lay behind is gone for good.
#[test]
fn a_gap_in_the_sequences_is_a_cut_or_damage() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(TINY, &options);
    let space = create_space(&mut device, b"one", 0);
    store(&mut device, space, b"before", b"1").unwrap();
    device.sequence += 1;
    store(&mut device, space, b"behind", b"2").unwrap();
    drop(device);
    let mut killed = Device::open(FastTier::from_image(&sim.process_kill()), options.clone()).unwrap();
    let [range] = &killed.open_report().lost[..] else { panic!("{:?}", killed.open_report()) };
    assert_eq!((range.bytes, range.sequences.clone()), (0, Some(3..4)));
    assert_eq!(retrieve(&mut killed, space, b"behind").unwrap(), b"2");
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let sim = CrashSim::from_image(&walk.image(Survivors::All, 0));
    for _ in 0..2 {
        let mut device = Device::open(FastTier::simulated(&sim), options.clone()).unwrap();
        assert_eq!(retrieve(&mut device, space, b"before").unwrap(), b"1");
        assert!(matches!(retrieve(&mut device, space, b"behind"), Err(KvError::KeyMissing)));
    }
}

/// What gc copied is durable before it erases, and the superblock says so: damage there is told as what it is, after a power cut, too, and what lies behind it is there: it is no silent cut.
#[test]
fn damage_below_what_gc_relied_on_is_no_cut() {
    let options = DeviceOptions::default();
    let (sim, mut device) = simulated(TINY, &options);
    let space = create_space(&mut device, b"one", 0);
    let mut random = Random::from_seed(1);
    let is_relied_on = |device: &Device| {
        let open = device.blocks.open(WriteStream::Cold);
        let erased = device.gc_counters().cycles > 0;
        erased && open.is_some_and(|open| open.end > 0 && open.durable == open.end && open.block > 0)
    };
    let mut keys = std::collections::BTreeSet::new();
    while !is_relied_on(&device) {
        let n = random.below(300);
        store(&mut device, space, &key_of(n), &value_of(&mut random, 900)).unwrap();
        keys.insert(n);
    }
    let open = device.blocks.open(WriteStream::Cold).unwrap();
    let (block, end) = (open.block, open.end);
    drop(device);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    for at in [0, u64::from(end) - 32] {
        let mut image = walk.image(Survivors::All, 0);
        image.corrupt(TINY.block_offset(block) + at + 9, 1);
        let mut opened = Device::open(FastTier::from_image(&image), options.clone()).unwrap();
        let report = opened.open_report();
        let (known, lost) = (report.values_damaged, report.lost.len());
        assert_eq!(known as usize + lost, 1, "{at} of {end}: {report:?}");
        assert!(report.lost.iter().all(|range| range.offset == TINY.block_offset(block) + at), "{report:?}");
        let found = keys.iter().filter(|&&n| retrieve(&mut opened, space, &key_of(n)).is_ok()).count();
        assert!(found + 1 >= keys.len(), "{found} of {} pairs", keys.len());
    }
}

/// Killed while a superblock was stored and not yet durable, then the power is cut while the next process opens the device: of two copies one is whole, and nothing is missing.
#[test]
fn one_superblock_is_whole_after_a_kill_and_then_a_cut() {
    let options = DeviceOptions::default();
    let script = Script::run(11, 700, 300, options.clone(), true);
    let (mut walk, mut images) = (script.sim.walk(), 0);
    walk.seek(script.steps[0].0);
    let superblocks = |walk: &CrashWalk| walk.image(Survivors::ProcessKill, 0).read(0, 8192);
    let mut before = superblocks(&walk);
    while walk.next_op() {
        let now = superblocks(&walk);
        if std::mem::replace(&mut before, now.clone()) == now {
            continue;
        }
        let killed = CrashSim::from_image(&walk.image(Survivors::ProcessKill, 0));
        drop(Device::open(FastTier::simulated(&killed), options.clone()).unwrap());
        let mut opening = killed.walk();
        let (mut before, mut place) = (superblocks(&opening), opening.op_index());
        while opening.next_op() {
            let now = superblocks(&opening);
            let store = std::mem::replace(&mut place, opening.op_index());
            if std::mem::replace(&mut before, now.clone()) == now {
                continue;
            }
            // Into the store of the opening's own superblock, which may be torn then: the other copy must be durable, with what the killed process made of it.
            let mut torn = killed.walk();
            torn.seek(store);
            let durable = torn.image(Survivors::None, 0).read(0, 8192);
            assert!(durable == superblocks(&torn), "killed at {}", walk.op_index());
            for seed in 0..20 {
                let cut = CrashSim::from_image(&torn.image(Survivors::Random, seed));
                let allowed = script.allowed(walk.op_index(), Survivors::None);
                let told = format!("killed at {}, cut at {store} of opening", walk.op_index());
                script.open(&cut, allowed, &told);
                images += 1;
            }
        }
    }
    assert!(images >= 60, "{images} images");
}

/// A store waits for the medium when its block is full, and not before; in immediate mode once a step.
#[test]
fn pages_that_fill_up_are_not_waited_for() {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 4 << 20, blocks: 8 };
    for (ack, syncs) in [(AckMode::Buffered, 0), (AckMode::Immediate, 1)] {
        let mut device = in_memory(geometry, DeviceOptions { ack, ..DeviceOptions::default() });
        let space = create_space(&mut device, b"one", 0);
        let before = device.flash_counters().syncs;
        for n in 0..10_000u64 {
            store(&mut device, space, &n.to_le_bytes(), &[7; 200]).unwrap();
        }
        assert_eq!(device.flash_counters().syncs - before, syncs * 10_000);
        answer(&mut device, KvCommand::Flush).unwrap();
        assert_eq!(device.flash_counters().syncs - before, syncs * 10_000 + 1 - syncs);
    }
}

/// In immediate mode an answer that rests on a deletion is given when that is durable, whatever the deletion's own answer was.
#[test]
fn what_is_answered_to_be_missing_stays_missing() {
    let options = DeviceOptions { ack: AckMode::Immediate, ..DeviceOptions::default() };
    let (sim, mut device) = simulated(SMALL, &options);
    let space = create_space(&mut device, b"one", 0);
    for n in 0..8u64 {
        store(&mut device, space, &n.to_le_bytes(), &[7; 100]).unwrap();
    }
    // Groups are gone through in their order: the first byte of a key is the number.
    let (first, last) = (0u64.to_le_bytes(), 7u64.to_le_bytes());
    let place = device.index.find_all(device.hash(space, &last))[0].place;
    device.fail_reads(place * 32..place * 32 + 1);
    let deleted = answer(&mut device, KvCommand::DeleteGroup { space, selected: KeyPattern::ALL });
    assert!(matches!(deleted, Err(KvError::ReadFault { .. })), "{deleted:?}");
    let missing = retrieve(&mut device, space, &first);
    assert!(matches!(missing, Err(KvError::KeyMissing)), "{missing:?}");
    drop(device);
    let mut walk = sim.walk();
    walk.seek(u64::MAX);
    let sim = CrashSim::from_image(&walk.image(Survivors::None, 0));
    let mut device = Device::open(FastTier::simulated(&sim), options).unwrap();
    let missing = retrieve(&mut device, space, &first);
    assert!(matches!(missing, Err(KvError::KeyMissing)), "{missing:?}");
}

/// The same on persistent memory, where lines of 64 bytes are what a crash leaves or takes.
#[test]
fn on_persistent_memory_every_kind_of_crash_is_survived() {
    let mut images = 0;
    for (seed, ack) in [(12, AckMode::Buffered), (13, AckMode::Immediate)] {
        let options = DeviceOptions { ack, ..DeviceOptions::default() };
        let script = Script::run_on(CrashModel::CacheLines, TINY, seed, 3600, 400, 0, options, true);
        script.assert_gc_ran();
        images += script.sweep(&Survivors::EACH, 12, 40);
    }
    assert!(images >= 700, "{images} images");
}

/// More keys than local tables take: merges are under way, and gc changes entries that were merged and such that were not.
#[test]
fn crashes_with_full_local_tables_are_survived() {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 64 << 10, blocks: 26 };
    let options = DeviceOptions::default();
    let filled = 17_000;
    let script = Script::run_on(CrashModel::Pages, geometry, 14, 2500, 400, filled, options, true);
    let merges = script.merges;
    assert!(merges >= 4 && script.erased > 0, "{merges} merges, {} erased", script.erased);
    let images = script.sweep(&Survivors::EACH, 300, 10);
    assert!(images >= 20, "{images} images");
}
