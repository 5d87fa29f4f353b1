//! Prints what a drive would take, in virtual time: `cargo run --release -p hedgerow-kvssd --example kv_timeline [name=value ...]`.
//!
//! | argument | what | default |
//! |---|---|---|
//! | `ops` | operations of each row, fewer of long values | 60000 |
//! | `blocks` | blocks of 32 MiB of the device that gc works on; 0 leaves that part out | 40 |
//! | `writes` | how many times the device's bytes are written over there | 5 |
//! | `full` | percent of its capacity that is in use there | 90 |
//! | `value` | bytes of a value there | 4096 |
//! | `depth` | commands under way there | 64 |
//! | `seed` | of all choices | 1 |
//! | `cpu` | what a command takes of a core, in ns, as measured; 0 leaves out the machine with many devices | 0 |
//! | `cores` | cores of that machine | 48 |
//! | `bus` | MB a second over its bus | 24000 |
//!
//! First what goes into the model, then what comes out of it. Nothing here is measured on a drive: the one figure of a drive is printed beside its row and was not fitted. Nothing depends on the machine, either:
//! one seed prints the same each time.

use hedgerow_device::{FastTier, FastTierOptions, Random};
use hedgerow_kvssd::{
    Device, DeviceOptions, DriveModel, FrontKind, Geometry, KvAnswer, KvCommand, NodeLoad, NodeModel,
    PairKey, SimHost, SpaceId, StoreMode,
};

/// What the shipped emulator's performance model says of values of so many bytes, thousands a second: insert, retrieve, update.
const TABLE: [(usize, [f64; 3]); 5] = [
    (64, [139.0, 148.0, 89.0]),
    (512, [135.0, 146.0, 87.0]),
    (4096, [108.0, 125.0, 75.0]),
    (8192, [76.0, 103.0, 60.0]),
    (16384, [16.0, 69.0, 25.0]),
];
/// Of a user's log of a drive: 4 KiB, half reads and half writes (OpenMPDK/KVSSD, issue 13).
const DRIVE_LOG_KOPS: f64 = 78.0;
const SIZES: [usize; 6] = [64, 512, 4096, 8192, 65536, 1 << 20];
const DEPTHS: [usize; 3] = [1, 8, 64];

fn argument(name: &str, default: u64) -> u64 {
    let given = std::env::args().skip(1).find_map(|argument| {
        let (given, value) = argument.split_once('=').expect("arguments are name=value");
        (given == name).then(|| value.parse().expect("a number"))
    });
    given.unwrap_or(default)
}

fn key(n: u64) -> PairKey {
    let spread = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&spread.to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    PairKey::new(&key).expect("a key of 16 bytes")
}

/// Zipfian ranks (Gray et al. 1994), spread over the keys.
struct Zipfian {
    keys: u64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    fn new(keys: u64, theta: f64) -> Zipfian {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let all = zeta(keys);
        let eta = (1.0 - (2.0 / keys as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / all);
        Zipfian { keys, theta, zeta: all, eta }
    }

    fn pick(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            let share = (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
            (self.keys as f64 * share) as u64
        };
        rank.min(self.keys - 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.keys
    }
}

struct Drive {
    host: SimHost,
    space: SpaceId,
    random: Random,
    keys: u64,
    value_bytes: usize,
}

/// Of one kind of operation, latencies in us.
struct Figures {
    a_second: f64,
    /// p50, p99, p99.9 and the greatest.
    us: [f64; 4],
}

impl Drive {
    fn new(blocks: u32, value_bytes: usize, model: DriveModel, seed: u64) -> Drive {
        let geometry = Geometry { page_bytes: 32 << 10, block_bytes: 32 << 20, blocks };
        let bytes = geometry.bytes() + (1 << 20);
        let tier = FastTier::dram(&FastTierOptions { bytes_max: bytes, reserve_bytes: bytes });
        let options = DeviceOptions { hash_secret: Some(u128::from(seed)), ..DeviceOptions::default() };
        let device = Device::format(tier.expect("memory"), geometry, options).expect("a device");
        let mut host = SimHost::new(device, model).expect("a model of a drive");
        let name = PairKey::new(b"timeline").expect("a name");
        let made = host.call(KvCommand::CreateSpace { name, bytes_max: 0 }).expect("a key space");
        let Ok(KvAnswer::Space(info)) = made.result else { panic!("{made:?}") };
        Drive { host, space: info.id, random: Random::from_seed(seed), keys: 0, value_bytes }
    }

    /// Runs so many operations: `pick` says for which key each is, and whether it stores. Figures of stores, or of all.
    fn phase(
        &mut self,
        depth: usize,
        ops: u64,
        only_stores: bool,
        mut pick: impl FnMut(&mut Random, u64) -> (u64, bool),
    ) -> Figures {
        let (space, value_bytes, random) = (self.space, self.value_bytes, &mut self.random);
        let (mut given, mut latencies, start_ns) = (0, Vec::new(), self.host.now_ns());
        let next = |mut buffer: Vec<u8>| {
            if given == ops {
                return None;
            }
            let (n, is_store) = pick(random, given);
            given += 1;
            buffer.resize(value_bytes, n as u8);
            Some(if is_store {
                KvCommand::Store { space, key: key(n), value: buffer, mode: StoreMode::Post }
            } else {
                KvCommand::Retrieve { space, key: key(n), offset: 0, buffer, delete: false }
            })
        };
        let mut end_ns = start_ns;
        let done = |completion: &hedgerow_kvssd::SimCompletion| {
            assert!(completion.result.is_ok(), "{completion:?}");
            end_ns = completion.ended_ns;
            if !only_stores || completion.kind != FrontKind::Retrieve {
                latencies.push(completion.ended_ns - completion.started_ns);
            }
        };
        self.host.run(depth, next, done).expect("commands that are right by themselves");
        latencies.sort_unstable();
        let part = |share: f64| {
            let at = ((latencies.len() as f64 * share) as usize).min(latencies.len() - 1);
            latencies[at] as f64 / 1000.0
        };
        let us = [part(0.5), part(0.99), part(0.999), part(1.0)];
        Figures { a_second: ops as f64 * 1e9 / (end_ns - start_ns).max(1) as f64, us }
    }

    fn insert(&mut self, depth: usize, ops: u64) -> Figures {
        let first = self.keys;
        self.keys += ops;
        self.phase(depth, ops, false, |_, n| (first + n, true))
    }
}

fn print_inputs(model: &DriveModel) {
    println!("# What goes in");
    println!("{model:#?}");
    println!("device: pages of 32 KiB, blocks of 32 MiB over all dies; keys of 16 bytes; a closed loop");
}

fn print_row(kind: &str, bytes: usize, depth: usize, figures: &Figures, beside: &str) {
    let [p50, p99, p999, most] = figures.us;
    println!(
        "| {kind:9} | {bytes:7} | {depth:3} | {:7.1} | {:7.1} | {p50:8.1} | {p99:8.1} | {p999:8.1} | {most:8.1} | {beside} |",
        figures.a_second / 1e3,
        figures.a_second * bytes as f64 / 1e6,
    );
}

fn print_rows(ops: u64, seed: u64) {
    println!("\n# What comes out: a drive with room, no gc");
    println!("| kind | value | depth | k/s | MB/s | p50 us | p99 us | p99.9 us | max us | beside |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for bytes in SIZES {
        let ops = ops.min((384 << 20) / bytes as u64);
        for depth in DEPTHS {
            let mut drive = Drive::new(48, bytes, DriveModel::default(), seed);
            let beside = |column: usize| {
                let row = TABLE.iter().find(|(of, _)| *of == bytes && depth == 64);
                let fitted = if matches!(bytes, 64 | 4096) { "fitted to" } else { "not fitted to" };
                row.map_or(String::new(), |(_, row)| format!("{fitted} {} k/s", row[column]))
            };
            let figures = drive.insert(depth, ops);
            print_row("insert", bytes, depth, &figures, &beside(0));
            let keys = drive.keys;
            let figures = drive.phase(depth, ops, false, |random, _| (random.below(keys), false));
            print_row("retrieve", bytes, depth, &figures, &beside(1));
            let figures = drive.phase(depth, ops, false, |random, _| (random.below(keys), true));
            print_row("update", bytes, depth, &figures, &beside(2));
            let half = |random: &mut Random, _| (random.below(keys), random.below(2) == 0);
            let figures = drive.phase(depth, ops, false, half);
            let log = match (bytes, depth) {
                (4096, 64) => format!("a drive's log, not fitted: {DRIVE_LOG_KOPS} k/s"),
                _ => String::new(),
            };
            print_row("half half", bytes, depth, &figures, &log);
        }
    }
}

/// The amplification of a log whose oldest block is always the next to be emptied, of pairs overwritten evenly, when so much of it is in use (Desnoyers 2012).
fn amplification_of_a_log(in_use: f64) -> f64 {
    // The share that is live of a block when it is emptied: u = exp(-(1 - u) / in_use), by iteration.
    let mut live = 0.5f64;
    for _ in 0..10_000 {
        live = (-(1.0 - live) / in_use).exp();
    }
    1.0 / (1.0 - live)
}

fn print_gc(seed: u64) {
    let (blocks, writes) = (argument("blocks", 40), argument("writes", 5));
    let (value, depth) = (argument("value", 4096) as usize, argument("depth", 64) as usize);
    if blocks == 0 {
        return;
    }
    println!(
        "\n# What comes out: gc, {} % of the capacity in use, {writes} device writes",
        argument("full", 90)
    );
    let with = DriveModel::default();
    let whole = DriveModel { erase_suspend_ns: None, ..with };
    let all_at_once = DriveModel { erases_at_once: with.dies(), ..with };
    for (name, theta, stores, model) in [
        ("update, uniform", 0.0, 10, with),
        ("update, zipfian 0.99", 0.99, 10, with),
        ("half half, uniform", 0.0, 5, with),
        ("update, uniform, erases not interrupted", 0.0, 10, whole),
        ("update, uniform, all dies erase at once", 0.0, 10, all_at_once),
    ] {
        let mut drive = Drive::new(blocks as u32, value, model, seed);
        let info = drive.host.device().info();
        let charge = ((24 + 16 + value).next_multiple_of(32) + 28) as u64;
        let keys = info.capacity_bytes / 100 * argument("full", 90) / charge;
        drive.insert(depth, keys);
        let (gc, flash) = (drive.host.device().gc_counters(), drive.host.counters());
        let ops = writes * drive.host.device().geometry().bytes() / charge * 10 / stores;
        let zipfian = Zipfian::new(keys, if theta == 0.0 { 0.5 } else { theta });
        let pick = |random: &mut Random, _| {
            let n = if theta == 0.0 { random.below(keys) } else { zipfian.pick(random) };
            (n, random.below(10) < stores)
        };
        let figures = drive.phase(depth, ops, true, pick);
        let (device, after) = (drive.host.device(), drive.host.counters());
        let written = ops * stores / 10 * charge;
        let copied = device.gc_counters().copied_bytes - gc.copied_bytes;
        let raw = device.geometry().bytes() - 4 * u64::from(device.geometry().block_bytes);
        let in_use = device.info().used_bytes as f64 / raw as f64;
        print_row(name, value, depth, &figures, "latencies of stores");
        println!(
            "  amplification {:.2} (a log with {:.1} % of its blocks in use: {:.2}), {} stalls, {} stores waited for room; dies {:.0} % busy: programs {:.0}, reads {:.0}, erases {:.0}; {} erases made way, {} hurried",
            1.0 + copied as f64 / written as f64,
            in_use * 100.0,
            amplification_of_a_log(in_use),
            device.gc_counters().stalls - gc.stalls,
            after.stores_waited - flash.stores_waited,
            busy(&after.die_ns, &flash.die_ns, &figures, ops, 0..3),
            busy(&after.die_ns, &flash.die_ns, &figures, ops, 0..1),
            busy(&after.die_ns, &flash.die_ns, &figures, ops, 1..2),
            busy(&after.die_ns, &flash.die_ns, &figures, ops, 2..3),
            after.erase_suspends - flash.erase_suspends,
            after.erases_hurried - flash.erases_hurried,
        );
    }
}

/// Percent of the dies' time.
fn busy(now: &[u64; 3], before: &[u64; 3], of: &Figures, ops: u64, parts: std::ops::Range<usize>) -> f64 {
    let spent: u64 = parts.map(|part| now[part] - before[part]).sum();
    let all = ops as f64 / of.a_second * 1e9 * f64::from(DriveModel::default().dies());
    spent as f64 * 100.0 / all
}

/// A machine with many devices, each as `SimHost` says of one: inserts, 64 under way on each.
fn print_node(ops: u64, seed: u64) {
    let (cpu_ns, cores) = (argument("cpu", 0), argument("cores", 48) as u32);
    let bus_bytes_a_second = argument("bus", 24_000) * 1_000_000;
    if cpu_ns == 0 {
        return;
    }
    println!(
        "\n# What comes out: a machine of {cores} cores, {cpu_ns} ns of them a command (given, not modelled), {bus_bytes_a_second} bytes a second"
    );
    println!("| insert of | devices | k/s | MB/s | of one device | cores busy | bus busy |");
    println!("|---|---|---|---|---|---|---|");
    for bytes in [64, 4096, 65536, 1 << 20] {
        let mut drive = Drive::new(48, bytes, DriveModel::default(), seed);
        let one = drive.insert(64, ops.min((384 << 20) / bytes as u64)).a_second;
        for devices in [1, 2, 4, 6, 9, 12, 15, 18] {
            let load = NodeLoad {
                devices,
                depth: 64,
                device_ns: (1e9 / one) as u64,
                latency_ns: 0,
                bytes: bytes as u64,
            };
            let node = NodeModel { cores, cpu_ns, bus_bytes_a_second };
            let figures = node.run(load, 5_000).expect("a node that may be");
            println!(
                "| {bytes:7} | {devices:2} | {:8.1} | {:8.1} | {:5.2} | {:5.1} | {:3.0} % |",
                figures.a_second / 1e3,
                figures.a_second * bytes as f64 / 1e6,
                figures.a_second / one,
                figures.cores_busy,
                figures.bus_busy * 100.0,
            );
        }
    }
}

fn main() {
    let seed = argument("seed", 1);
    print_inputs(&DriveModel::default());
    print_rows(argument("ops", 60_000), seed);
    print_gc(seed);
    print_node(argument("ops", 60_000), seed);
}
