//! Measures a key-value device and its host together, on one thread: `cargo run --release -p hedgerow-kvssd --example kv_speed [name=value ...]`.
//!
//! | argument | what | default |
//! |---|---|---|
//! | `keys` | pairs | 1000000 |
//! | `ops` | operations of each phase | `keys` |
//! | `value` | bytes of a value | 100 |
//! | `depth` | commands under way | 64 |
//! | `full` | percent of the capacity that the pairs take | 60 |
//! | `groups` | `few`: all keys begin with the same four bytes; `many`: none of them do | many |
//! | `file` | a file to make the device on, removed at the end | in memory |
//! | `only` | phases that are run after the insertion, of `overwrite`, `retrieve`, `mixed` | all |
//!
//! Keys have 16 bytes. Each phase chooses among all keys at random, evenly, and ends with a flush. A figure is completed commands by the time that went by and, where the
//! system says it, by the time that the process had of a core, the kernel's work for it among it.
#![allow(clippy::disallowed_methods, reason = "tests and measurements use the machine as it is")]

use std::path::Path;
use std::time::Instant;

use hedgerow_device::{FastTier, FastTierOptions, Random};
use hedgerow_kvssd::{
    Device, DeviceOptions, Geometry, Host, HostRequest, KvAnswer, KvCommand, QueueId, SpaceId, StoreMode,
};

struct Arguments(Vec<(String, String)>);

impl Arguments {
    fn given() -> Arguments {
        let split = |argument: String| {
            let (name, value) = argument.split_once('=').expect("arguments are name=value");
            (name.to_owned(), value.to_owned())
        };
        Arguments(std::env::args().skip(1).map(split).collect())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.text(name).map_or(default, |text| text.parse().expect("a number"))
    }
}

/// The key of the pair `n`.
fn key(n: u64, many_groups: bool) -> [u8; 16] {
    let spread = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = *b"user000000000000";
    key[8..].copy_from_slice(&spread.to_be_bytes());
    if many_groups {
        key[..8].copy_from_slice(&(spread ^ spread >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9).to_be_bytes());
    }
    key
}

/// Seconds of a core that this process had, user and system.
fn core_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

struct Load {
    host: Host,
    queue: QueueId,
    space: SpaceId,
    random: Random,
    keys: u64,
    many_groups: bool,
    value: Vec<u8>,
    done: u64,
}

impl Load {
    /// Runs a phase: `is_store` says what each operation is, `pick` which key it is for.
    fn phase(
        &mut self,
        name: &str,
        ops: u64,
        is_store: impl Fn(&mut Random) -> bool,
        pick: impl Fn(&mut Random, u64) -> u64,
    ) {
        let (start, core) = (Instant::now(), core_seconds());
        let gc = self.host.device().gc_counters();
        self.done = 0;
        for n in 0..ops {
            let key = key(pick(&mut self.random, n), self.many_groups);
            let store = is_store(&mut self.random);
            if store {
                self.value[..8].copy_from_slice(&n.to_le_bytes());
            }
            loop {
                let request = if store {
                    let mode = StoreMode::Post;
                    HostRequest::Store { space: self.space, key: &key, value: &self.value, mode }
                } else {
                    let bytes = self.value.len();
                    HostRequest::Retrieve { space: self.space, key: &key, offset: 0, bytes, delete: false }
                };
                if self.host.start(self.queue, request).is_ok() {
                    break;
                }
                self.poll();
            }
        }
        while self.poll() {}
        assert_eq!(self.done, ops, "each command has one completion");
        self.host.call(self.queue, HostRequest::Other(KvCommand::Flush)).expect("flushed");
        let seconds = start.elapsed().as_secs_f64();
        let of_core = core_seconds().zip(core).map_or(seconds, |(end, start)| end - start);
        let copied = self.host.device().gc_counters().copied_records - gc.copied_records;
        println!(
            "{name:10} {:6.3} M/s  {:6.3} M/s a core  {:5.2} records copied an operation",
            ops as f64 / seconds / 1e6,
            ops as f64 / of_core.max(0.01) / 1e6,
            copied as f64 / ops as f64,
        );
    }

    fn poll(&mut self) -> bool {
        let done = &mut self.done;
        self.host.poll(self.queue, |_, result, read| {
            match result.expect("no refusals") {
                KvAnswer::Retrieved { value_bytes } => assert_eq!(value_bytes as usize, read.len()),
                KvAnswer::Stored => {}
                other => panic!("{other:?}"),
            }
            *done += 1;
        })
    }
}

fn main() {
    let arguments = Arguments::given();
    let keys = arguments.number("keys", 1_000_000);
    let ops = arguments.number("ops", keys);
    let value = vec![7; arguments.number("value", 100).max(8) as usize];
    let charge = (24 + 16 + value.len()).next_multiple_of(32) as u64 + 28;
    // So many blocks of 32 MiB that the pairs take that share of what they hold.
    let wanted = keys * charge * 100 / arguments.number("full", 60).clamp(1, 100);
    // A block of 32 MiB counts for about 28 MiB: see `Geometry::capacity_bytes`.
    let geometry = Geometry::with_bytes((wanted.div_ceil(28 << 20) + 4) << 25);
    let bytes = geometry.bytes() + (1 << 20);
    let tier = FastTierOptions { bytes_max: bytes, reserve_bytes: bytes };
    let path = arguments.text("file").map(Path::new);
    let tier = match path {
        Some(path) => FastTier::open_file(path, &tier, true),
        None => FastTier::dram(&tier),
    };
    let device = Device::format(tier.expect("a tier"), geometry, DeviceOptions::default()).expect("a device");
    let mut host = Host::new(device);
    let queue = host.open_queue(arguments.number("depth", 64) as usize, value.len());
    let space = host.create_space(queue, b"speed", 0).expect("a key space");
    let many_groups = arguments.text("groups") != Some("few");
    let random = Random::from_seed(1);
    let mut load = Load { host, queue, space, random, keys, many_groups, value, done: 0 };
    println!(
        "{keys} keys, {} blocks of 32 MiB, {}",
        geometry.blocks,
        path.map_or("in memory", |_| "on a file")
    );
    load.phase("insert", keys, |_| true, |_, n| n);
    let info = load.host.device().info();
    println!("{} % full", info.utilization() / 100);
    let only = arguments.text("only");
    let any = move |random: &mut Random, _| random.below(keys);
    for name in
        ["overwrite", "retrieve", "mixed"].into_iter().filter(|name| only.is_none_or(|only| only == *name))
    {
        match name {
            "overwrite" => load.phase(name, ops, |_| true, any),
            "retrieve" => load.phase(name, ops, |_| false, any),
            _ => load.phase(name, ops, |random| random.below(2) == 0, any),
        }
    }
    assert_eq!(load.host.device().info().pairs, load.keys);
    load.host.into_device().close().expect("closed");
    if let Some(path) = path {
        std::fs::remove_file(path).expect("removed");
    }
}
