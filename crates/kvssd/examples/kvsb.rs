//! The beginning of a benchmark of key-value devices: `cargo run --release -p hedgerow-kvssd --example kvsb [name=value ...]`.
//!
//! | argument | what | default |
//! |---|---|---|
//! | `devices` | instances: a device in memory, its thread, and a client's thread each | 1 |
//! | `keys` | pairs that each is loaded with | 100000 |
//! | `ops` | operations of each client | 500000 |
//! | `mix` | percents of retrieve, update, insert, delete | 50:50:0:0 |
//! | `key`, `value` | bytes; a value has 24 at least | 16, 100 |
//! | `choose` | `uniform` or `zipfian` | uniform |
//! | `depth` | commands under way of each client | 64 |
//! | `rate` | operations a second of each client that are begun whether or not others are complete; 0: a closed loop | 0 |
//! | `seed` | of all choices | 1 |
//! | `csv` | 1: rows for a program | 0 |
//!
//! All instances are loaded, then wait for each other, and begin at once. The mix is drawn for each operation. Every operation's latency is counted, from when it was to begin: one that waited for its turn has waited (coordinated
//! omission, Tene 2013). A value says its key, version, length and checksum, and a read must find the version that was stored last before it: commands of a queue are carried out in its order. What the threads had of a
//! core is said by operation: the client's is what `cpu` of `kv_timeline` wants, the device's is what the device in software takes, which a drive does not.
#![allow(clippy::disallowed_methods, reason = "measurements use the machine as it is")]

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hedgerow_device::{FastTier, FastTierOptions, Random, crc32c, spawn};
use hedgerow_kvssd::{
    Device, DeviceOptions, DeviceThread, Geometry, HostRequest, HostTicket, KvAnswer, KvCommand, KvError,
    PairKey, QueuePair, Result, SpaceId, StoreMode,
};

const KINDS: [&str; 4] = ["retrieve", "update", "insert", "delete"];
const VALUE_HEAD_BYTES: usize = 24;

fn text(name: &str) -> Option<String> {
    std::env::args().skip(1).find_map(|argument| {
        let (given, value) = argument.split_once('=').expect("arguments are name=value");
        (given == name).then(|| value.to_owned())
    })
}

fn number(name: &str, default: u64) -> u64 {
    text(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Zipfian ranks with an exponent of 0.99 (Gray et al. 1994), spread over the keys.
struct Zipfian {
    keys: u64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    const THETA: f64 = 0.99;

    fn new(keys: u64) -> Zipfian {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-Zipfian::THETA)).sum::<f64>();
        let all = zeta(keys);
        let eta = (1.0 - (2.0 / keys as f64).powf(1.0 - Zipfian::THETA)) / (1.0 - zeta(2) / all);
        Zipfian { keys, zeta: all, eta }
    }

    fn pick(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let rank = match unit * self.zeta {
            scaled if scaled < 1.0 => 0,
            scaled if scaled < 1.0 + 0.5f64.powf(Zipfian::THETA) => 1,
            _ => {
                let share = (self.eta * unit - self.eta + 1.0).powf(1.0 / (1.0 - Zipfian::THETA));
                (self.keys as f64 * share) as u64
            }
        };
        rank.min(self.keys - 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.keys
    }
}

/// Nanoseconds of a core that a thread of this process had, by its folder in `/proc`.
fn core_ns(task: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{task}/schedstat")).unwrap_or_default();
    stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// The same of all threads that drive devices.
fn devices_core_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let name =
        |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let drives = tasks.flatten().filter(|task| name(task).trim() == "hedgerow-kvssd");
    drives.map(|task| core_ns(&format!("self/task/{}", task.file_name().to_string_lossy()))).sum()
}

/// What a read must find: nothing, or this version.
type Expected = Option<u64>;

/// One client of one device.
struct Client {
    queue: QueuePair,
    space: SpaceId,
    random: Random,
    zipfian: Option<Zipfian>,
    key_bytes: usize,
    value: Vec<u8>,
    /// Of each key, the version that was stored last; none: it was deleted, or not inserted yet.
    versions: Vec<Expected>,
    version: u64,
    pending: Pending,
}

/// What is under way, and what came of what is not.
struct Pending {
    /// Kind, when it was to begin, key, and what there was of it.
    under_way: BTreeMap<HostTicket, (usize, Instant, u64, Expected)>,
    latencies: [Histogram<u64>; 4],
    wrong: u64,
}

impl Pending {
    fn end(&mut self, ticket: HostTicket, result: &Result<KvAnswer>, read: &[u8]) {
        let Some((kind, due, n, expected)) = self.under_way.remove(&ticket) else {
            self.wrong += 1;
            return;
        };
        self.latencies[kind].saturating_record(due.elapsed().as_nanos() as u64);
        let is_right = match (result, kind) {
            (Ok(KvAnswer::Retrieved { .. }), 0) => is_value(read, n, expected),
            (Err(KvError::KeyMissing), 0) => expected.is_none(),
            (Ok(KvAnswer::Stored), 1 | 2) => true,
            (Ok(KvAnswer::Deleted(existed)), 3) => *existed == expected.is_some(),
            _ => false,
        };
        self.wrong += u64::from(!is_right);
    }
}

impl Client {
    fn key(&self, n: u64) -> Vec<u8> {
        let spread = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut key = vec![b'.'; self.key_bytes];
        let bytes = [spread.to_be_bytes(), n.to_be_bytes()].concat();
        let len = self.key_bytes.min(bytes.len());
        key[..len].copy_from_slice(&bytes[..len]);
        key
    }

    /// Starts an operation that was to begin at that time, once the queue has room.
    fn start(&mut self, kind: usize, n: u64, due: Instant) -> Result<()> {
        let key = self.key(n);
        let expected = self.versions[n as usize];
        if kind == 1 || kind == 2 {
            self.version += 1;
            let len = self.value.len() as u32;
            self.value[..8].copy_from_slice(&n.to_le_bytes());
            self.value[8..16].copy_from_slice(&self.version.to_le_bytes());
            self.value[16..20].copy_from_slice(&len.to_le_bytes());
            let sum = sum_of(&self.value);
            self.value[20..24].copy_from_slice(&sum.to_le_bytes());
        }
        let ticket = loop {
            let request = match kind {
                0 => {
                    let bytes = self.value.len();
                    HostRequest::Retrieve { space: self.space, key: &key, offset: 0, bytes, delete: false }
                }
                3 => {
                    let key = PairKey::new(&key)?;
                    HostRequest::Other(KvCommand::Delete { space: self.space, key, must_exist: false })
                }
                _ => {
                    let mode = StoreMode::Post;
                    HostRequest::Store { space: self.space, key: &key, value: &self.value, mode }
                }
            };
            match self.queue.submit(request) {
                Ok(ticket) => break ticket,
                Err(KvError::QueueFull { .. }) => self.take(true),
                Err(error) => return Err(error),
            }
        };
        match kind {
            0 => {}
            3 => self.versions[n as usize] = None,
            _ => self.versions[n as usize] = Some(self.version),
        }
        self.pending.under_way.insert(ticket, (kind, due, n, expected));
        Ok(())
    }

    /// Takes what is complete; where there is nothing, waits for the oldest, if told so.
    fn take(&mut self, waits: bool) {
        let Client { queue, pending, .. } = self;
        let before = pending.under_way.len();
        queue.poll(|ticket, result, read| pending.end(ticket, &result, read));
        let waits = waits && pending.under_way.len() == before;
        if let Some(ticket) = pending.under_way.keys().next().copied().filter(|_| waits) {
            let limit = Duration::from_secs(60);
            let ended = queue.wait(ticket, limit, |result, read| pending.end(ticket, &result, read));
            assert!(matches!(ended, Ok(Some(()))), "an answer within a minute: {ended:?}");
        }
    }

    /// Loads the keys, waits for all others, and runs the operations.
    fn run(mut self, load: &Load, barrier: &Barrier) -> Result<Report> {
        for n in 0..load.keys {
            self.start(2, n, Instant::now())?;
        }
        while !self.pending.under_way.is_empty() {
            self.take(true);
        }
        assert_eq!(self.pending.wrong, 0, "the load went in");
        self.pending.latencies = histograms();
        barrier.wait();
        let (core, start) = (core_ns("thread-self"), Instant::now());
        let (mut next_new, mut oldest_new) = (load.keys, load.keys);
        for op in 0..load.ops {
            let due = match load.rate {
                0 => Instant::now(),
                rate => start + Duration::from_nanos((op as u128 * 1_000_000_000 / u128::from(rate)) as u64),
            };
            while Instant::now() < due {
                self.take(false);
            }
            let mut percent = self.random.below(100);
            let mut kind = 0;
            while percent >= load.mix[kind] {
                percent -= load.mix[kind];
                kind += 1;
            }
            let any = match &self.zipfian {
                Some(zipfian) => zipfian.pick(&mut self.random),
                None => self.random.below(load.keys),
            };
            // Deletions take what insertions brought, as long as there is some of it.
            let n = match kind {
                2 => next_new,
                3 if oldest_new < next_new => oldest_new,
                _ => any,
            };
            next_new += u64::from(kind == 2);
            oldest_new += u64::from(kind == 3 && oldest_new < next_new);
            self.start(kind, n, due)?;
            if op % 8 == 0 {
                self.take(false);
            }
        }
        while !self.pending.under_way.is_empty() {
            self.take(true);
        }
        let (seconds, core) = (start.elapsed().as_secs_f64(), core_ns("thread-self") - core);
        let Pending { latencies, wrong, .. } = self.pending;
        let buffer_bytes = self.queue.buffer_bytes();
        Ok(Report { seconds, core_ns: core, latencies, wrong, buffer_bytes })
    }
}

fn is_value(read: &[u8], n: u64, version: Expected) -> bool {
    let Some(version) = version else { return false };
    read.len() >= VALUE_HEAD_BYTES
        && read[..8] == n.to_le_bytes()
        && read[8..16] == version.to_le_bytes()
        && read[16..20] == (read.len() as u32).to_le_bytes()
        && read[20..24] == sum_of(read).to_le_bytes()
}

/// Of a value, but for where it stands.
fn sum_of(value: &[u8]) -> u32 {
    crc32c(crc32c(0, &value[..20]), &value[VALUE_HEAD_BYTES..])
}

fn histograms() -> [Histogram<u64>; 4] {
    // Up to a minute, to three digits.
    [(); 4].map(|()| Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds of a histogram"))
}

/// What each client does.
#[derive(Debug, Clone)]
struct Load {
    keys: u64,
    ops: u64,
    rate: u64,
    mix: [u64; 4],
}

struct Report {
    seconds: f64,
    core_ns: u64,
    latencies: [Histogram<u64>; 4],
    wrong: u64,
    buffer_bytes: usize,
}

fn print(of: &str, report: &Report, is_csv: bool) {
    let ops: u64 = report.latencies.iter().map(|histogram| histogram.len()).sum();
    for (kind, histogram) in
        KINDS.iter().zip(&report.latencies).filter(|(_, histogram)| !histogram.is_empty())
    {
        let rate = histogram.len() as f64 / report.seconds / 1e3;
        let us = [50.0, 99.0, 99.9, 100.0].map(|share| histogram.value_at_percentile(share) as f64 / 1e3);
        let [p50, p99, p999, most] = us;
        if is_csv {
            println!(
                "{of},{kind},{},{rate:.3},{p50:.1},{p99:.1},{p999:.1},{most:.1},{}",
                histogram.len(),
                report.wrong
            );
        } else {
            println!(
                "{of:>8} {kind:8} {rate:9.1} k/s  p50 {p50:8.1}  p99 {p99:8.1}  p99.9 {p999:8.1}  max {most:9.1} us"
            );
        }
    }
    if !is_csv {
        println!(
            "{of:>8} {:.0} ns of a core an operation in the client, {} bytes of buffers, {} wrong answers",
            report.core_ns as f64 / ops.max(1) as f64,
            report.buffer_bytes,
            report.wrong,
        );
    }
}

fn device(load: &Load, key_bytes: usize, value_bytes: usize) -> Result<Device> {
    let charge = (24 + key_bytes + value_bytes).next_multiple_of(32) as u64 + 28;
    let inserted = load.ops * load.mix[2].saturating_sub(load.mix[3]) / 100;
    let wanted = (load.keys + inserted) * charge * 100 / 60;
    // A block of 32 MiB counts for about 28 MiB.
    let geometry = Geometry::with_bytes((wanted.div_ceil(28 << 20) + 6) << 25);
    let bytes = geometry.bytes() + (1 << 20);
    let tier = FastTier::dram(&FastTierOptions { bytes_max: bytes, reserve_bytes: bytes })?;
    Device::format(tier, geometry, DeviceOptions::default())
}

fn load_of() -> Load {
    let given = text("mix").unwrap_or_else(|| "50:50:0:0".to_owned());
    let mix: Vec<u64> = given.split(':').map(|part| part.parse().expect("a percent")).collect();
    let mix: [u64; 4] = mix.try_into().expect("four percents");
    assert_eq!(mix.iter().sum::<u64>(), 100, "the percents of a mix are 100 together");
    Load { keys: number("keys", 100_000).max(1), ops: number("ops", 500_000), rate: number("rate", 0), mix }
}

/// Closes the devices, and says what they did: a thread had so many ns of a core for an operation.
fn end_devices(threads: Vec<DeviceThread>, core_ns: f64, is_csv: bool) -> Result<()> {
    let (mut written, mut copied) = (0, 0);
    for thread in threads {
        let device = thread.stop()?;
        written += device.flash_counters().bytes_written;
        copied += device.gc_counters().copied_bytes;
        device.close()?;
    }
    if !is_csv {
        println!("     all {:.0} ns of a core an operation in devices, which a drive does not take", core_ns);
        println!(
            "     all {:.2} bytes written to flash for each that is not a copy, the load among them",
            written as f64 / (written - copied).max(1) as f64
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let load = load_of();
    let (devices, depth) = (number("devices", 1).max(1), number("depth", 64) as usize);
    let key_bytes = number("key", 16).clamp(8, 255) as usize;
    let value_bytes = (number("value", 100) as usize).max(VALUE_HEAD_BYTES);
    let is_csv = number("csv", 0) == 1;
    let barrier = Arc::new(Barrier::new(devices as usize + 1));
    let (send, receive) = std::sync::mpsc::channel();
    let mut threads = Vec::new();
    for n in 0..devices {
        let thread = DeviceThread::start(device(&load, key_bytes, value_bytes)?)?;
        let mut queue = thread.opener().open(depth, value_bytes)?;
        threads.push(thread);
        let name = PairKey::new(b"container1")?;
        let made = queue.call(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: 0 }))?;
        let KvAnswer::Space(info) = made else { panic!("{made:?}") };
        let is_zipfian = text("choose").as_deref() == Some("zipfian");
        let pending = Pending { under_way: BTreeMap::new(), latencies: histograms(), wrong: 0 };
        let client = Client {
            queue,
            space: info.id,
            random: Random::from_seed(number("seed", 1) + n),
            zipfian: is_zipfian.then(|| Zipfian::new(load.keys)),
            key_bytes,
            value: vec![7; value_bytes],
            versions: vec![None; (load.keys + load.ops) as usize],
            version: 0,
            pending,
        };
        let (load, barrier, send) = (load.clone(), barrier.clone(), send.clone());
        spawn("client", move || send.send((n, client.run(&load, &barrier))).expect("somebody who counts"))
            .expect("a thread");
    }
    drop(send);
    barrier.wait();
    let (core, start) = (devices_core_ns(), Instant::now());
    let mut reports: Vec<(u64, Report)> = Vec::new();
    for (n, report) in receive {
        reports.push((n, report?));
    }
    let (seconds, core) = (start.elapsed().as_secs_f64(), devices_core_ns() - core);
    reports.sort_by_key(|(n, _)| *n);
    if is_csv {
        println!("instance,kind,count,kops,p50_us,p99_us,p999_us,max_us,wrong");
    }
    let mut all = Report { seconds, core_ns: 0, latencies: histograms(), wrong: 0, buffer_bytes: 0 };
    for (n, report) in &reports {
        print(&format!("device {n}"), report, is_csv);
        for (all, one) in all.latencies.iter_mut().zip(&report.latencies) {
            all.add(one).expect("histograms of one kind");
        }
        (all.core_ns, all.wrong) = (all.core_ns + report.core_ns, all.wrong + report.wrong);
        all.buffer_bytes += report.buffer_bytes;
    }
    print("all", &all, is_csv);
    end_devices(threads, core as f64 / (devices * load.ops).max(1) as f64, is_csv)?;
    assert_eq!(all.wrong, 0, "answers that were wrong");
    Ok(())
}
