//! Random commands against a map.

use super::*;

struct Modelled {
    device: Device,
    sim: CrashSim,
    options: DeviceOptions,
    spaces: Vec<SpaceId>,
    content: Content,
    full: u64,
}

impl Modelled {
    fn new(geometry: Geometry, options: DeviceOptions) -> Modelled {
        let (sim, mut device) = simulated(geometry, &options);
        sim.limit_log(1 << 20);
        let spaces = [b"one", b"two"].map(|name| create_space(&mut device, name, 0)).into();
        Modelled { device, sim, options, spaces, content: Content::new(), full: 0 }
    }

    fn step(&mut self, random: &mut Random, keys: u64) {
        let space = self.spaces[random.below(2) as usize];
        let of = key_of(random.below(keys));
        let at = (space.number(), of.clone());
        let old = self.content.get(&at).cloned();
        match random.below(20) {
            0..=9 => self.store(random, space, of),
            10..=12 => {
                let expected = KvAnswer::Deleted(old.is_some());
                assert_eq!(delete(&mut self.device, space, &of).unwrap(), expected);
                self.content.remove(&at);
            }
            13 => {
                let buffer = vec![0; 4096];
                let command = KvCommand::Retrieve { space, key: key(&of), offset: 0, buffer, delete: true };
                let done = run(&mut self.device, command);
                assert_eq!(done.result.is_ok(), old.is_some());
                assert_eq!(done.result.ok().map(|_| done.buffer), self.content.remove(&at));
            }
            14 if random.below(20) == 0 => {
                let selected = KeyPattern::prefix(&of[..2]);
                let gone = |(number, key): &(u32, Vec<u8>)| {
                    *number == space.number() && selected.selects(crate::command::group_of(key))
                };
                let before = self.content.len();
                self.content.retain(|at, _| !gone(at));
                let answered = answer(&mut self.device, KvCommand::DeleteGroup { space, selected });
                let deleted = (before - self.content.len()) as u64;
                assert_eq!(answered.unwrap(), KvAnswer::GroupDeleted(deleted));
            }
            _ => assert_eq!(retrieve(&mut self.device, space, &of).ok(), old),
        }
    }

    fn store(&mut self, random: &mut Random, space: SpaceId, of: Vec<u8>) {
        let at = (space.number(), of.clone());
        let old = self.content.get(&at).cloned();
        let modes = [
            StoreMode::Post,
            StoreMode::Post,
            StoreMode::UpdateOnly,
            StoreMode::NoOverwrite,
            StoreMode::Append,
        ];
        let mode = modes[random.below(5) as usize];
        let value = value_of(random, 1000);
        let command = KvCommand::Store { space, key: key(&of), value: value.clone(), mode };
        let new = match (mode, &old) {
            (StoreMode::UpdateOnly, None) | (StoreMode::NoOverwrite, Some(_)) => None,
            (StoreMode::Append, Some(old)) => {
                Some([&old[..], &value].concat()).filter(|new| new.len() <= 4096)
            }
            _ => Some(value),
        };
        match (answer(&mut self.device, command), new) {
            (Ok(KvAnswer::Stored), Some(new)) => {
                self.content.insert(at, new);
            }
            (Err(KvError::DeviceFull { .. }), Some(_)) => self.full += 1,
            (Err(KvError::KeyMissing | KvError::KeyExists | KvError::ValueLength { .. }), None) => {}
            (answered, new) => panic!("{answered:?} for {mode:?}, and the model has {}", new.is_some()),
        }
    }

    /// Opens it again: after a close, or a killed process, or what a capacitor is for.
    fn reopen(&mut self, random: &mut Random) {
        let placeholder = in_memory(SMALL, DeviceOptions::default());
        let device = std::mem::replace(&mut self.device, placeholder);
        if random.below(2) == 0 {
            device.close().unwrap();
        } else {
            drop(device);
        }
        if random.below(2) == 0 {
            let mut walk = self.sim.walk();
            walk.seek(u64::MAX);
            self.sim = CrashSim::from_image(&walk.image(hedgerow_device::Survivors::All, 0));
            self.sim.limit_log(1 << 20);
        }
        self.device = Device::open(FastTier::simulated(&self.sim), self.options.clone()).unwrap();
    }

    fn compare(&mut self) {
        assert_eq!(content_of(&mut self.device), self.content);
        let used = self.device.used_bytes;
        let live: u64 = self.device.blocks_in_use().iter().map(|(_, live)| live).sum();
        assert_eq!(used, live, "what the device counts is what its blocks count");
    }
}

/// Two key spaces, all modes, group deletions, gc at work, and openings of every kind; with hashes of few bits, too, which keys share.
#[test]
fn random_commands_are_those_of_a_map() {
    let cases = [
        (1, u64::MAX, GcPolicy::CostBenefit, AckMode::Buffered, 300),
        (2, u64::MAX, GcPolicy::Greedy, AckMode::Immediate, 900),
        (3, 0x3F, GcPolicy::CostBenefit, AckMode::Buffered, 300),
        (4, 0x3, GcPolicy::Greedy, AckMode::Buffered, 60),
    ];
    for (seed, hash_mask, gc_policy, ack, keys) in cases {
        let mut random = Random::from_seed(seed);
        let options = DeviceOptions { hash_mask, gc_policy, ack, ..DeviceOptions::default() };
        let mut modelled = Modelled::new(SMALL, options);
        let mut gc = GcCounters::default();
        for n in 0..12_000 {
            modelled.step(&mut random, keys);
            if n % 1000 == 999 {
                modelled.compare();
                gc.cycles += modelled.device.gc_counters().cycles;
                gc.tombstones_dropped += modelled.device.gc_counters().tombstones_dropped;
                modelled.reopen(&mut random);
                modelled.compare();
            }
        }
        assert!(gc.cycles > 20, "{seed}: gc had work: {gc:?}");
        // With few keys each tombstone is replaced before gc comes by.
        assert!(gc.tombstones_dropped > 20 || keys < 100, "{seed}: tombstones went: {gc:?}");
    }
}
