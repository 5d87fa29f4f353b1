//! A benchmark of key-value devices: `hedgerow bench kvsb`.
//!
//! Owns the command's options, the instances (a device, its thread and a client's thread each) and the order of phases. Promises that in each phase all instances begin at once and that no figure is of a run with an answer that
//! was wrong: such a run ends in an error. [`sizes`] says how long values are, [`client`] what is asked and checked, [`figures`] how it is told.

mod client;
mod figures;
mod sizes;

use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hedgerow_device::{FastTier, FastTierOptions};
use hedgerow_kvssd::{
    AckMode, Device, DeviceOptions, DeviceThread, HostRequest, KvAnswer, KvCommand, PairKey, QUEUE_DEPTH_MAX,
    QueuePair, SpaceId,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::json;

use super::distribution::Distribution;
use super::driver::Progress;
use super::{advance, phase_bar, report};
use crate::kvssd_store::geometry_of;
use crate::process::read;
use crate::units::parse_bytes;
use client::{KvsbClient, KvsbOutcome, KvsbPlan};
use figures::{KvsbDeviceFigures, KvsbPhaseFigures, Spent};
use sizes::ValueSizes;

/// Of a device that is made for so much, this part is to be taken.
const FULL_SHARE: f64 = 0.6;
/// A value is an eighth of a block at most, and a block a 64th of a device at least.
const VALUES_A_DEVICE: u64 = 512;
const DEVICE_BYTES_MIN: u64 = 8 << 20;
/// What a record takes beside key and value, filled up.
const RECORD_EXTRA_BYTES: u64 = 24 + 32 + 32;
/// The key has its number in it.
const KEY_BYTES_MIN: usize = 16;
const SPACE: &[u8] = b"kvsb";
/// What threads of devices are called.
const DEVICE_THREAD: &str = "hedgerow-kvssd";
const THREAD_START_MAX: Duration = Duration::from_secs(10);
/// What the buffers of one device's queue may take.
const BUFFER_BYTES_MAX: u64 = 4 << 30;
/// Operations a second, at least: with less of them a phase has no end.
const RATE_MIN: f64 = 0.01;

/// Arguments of `hedgerow bench kvsb`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct KvsbArgs {
    /// Files of devices, which are made and must not be there [default: devices in memory].
    #[arg(long, value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// Devices in memory.
    #[arg(long, default_value_t = 1, conflicts_with = "files")]
    devices: usize,
    /// Bytes of each device, as in 4gb [default: so that six tenths are taken].
    #[arg(long, value_parser = |text: &str| parse_bytes(text).ok_or("give bytes, as in 4gb"))]
    size: Option<u64>,
    /// Which, in order: insert, read, update, delete, mixed.
    #[arg(long, value_delimiter = ',', default_value = "insert,read,update,mixed,delete")]
    phases: Vec<String>,
    /// Pairs that the phase insert brings to each device.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Operations on each device in each of the other phases [default: as many as keys].
    #[arg(long)]
    operations: Option<u64>,
    /// Percents of read, update, insert and delete in the phase mixed. Deletions take the oldest pairs.
    #[arg(long, default_value = "50:40:5:5")]
    mix: String,
    /// Bytes in a key.
    #[arg(long, default_value_t = KEY_BYTES_MIN)]
    key_bytes: usize,
    /// Bytes in a value: 100, uniform:24-4096, normal:MEAN,DEVIATION or SIZExSHARE,SIZExSHARE.
    #[arg(long, default_value = "100")]
    value_bytes: ValueSizes,
    /// How pairs are chosen that are read and updated.
    #[arg(long, value_enum, default_value_t = Distribution::Uniform)]
    distribution: Distribution,
    /// Commands under way on each device.
    #[arg(long, default_value_t = 64)]
    depth: usize,
    /// Operations a second on each device, begun on schedule, late ones charged with their wait [default: as fast as it goes].
    #[arg(long)]
    rate: Option<f64>,
    /// Acknowledges what is durable only.
    #[arg(long)]
    immediate: bool,
    /// Leaves threads on whichever processors they get; else each has one, as far as there are enough and the system lets it.
    #[arg(long)]
    no_pin: bool,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the results there.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A device and its client.
#[derive(Debug)]
struct Instance {
    /// Taken while a phase is on.
    device: Option<Device>,
    client: KvsbClient,
}

/// What a client did, and what its thread had of a processor.
type ClientOutcome = Result<(KvsbOutcome, Duration), String>;

/// Runs the benchmark.
pub(super) fn run(args: &KvsbArgs) -> Result<(), String> {
    let mut bench = Kvsb::new(args)?;
    let mut phases = Vec::new();
    for name in &args.phases {
        let phase = bench.run_phase(name)?;
        eprintln!("{}", phase.progress_line());
        phases.push(phase);
    }
    bench.close()?;
    print!("{}", figures::tables(&phases));
    if let Some(path) = &args.json {
        report::write_json(path, args.to_json(), &phases)?;
    }
    Ok(())
}

impl KvsbArgs {
    /// # Errors
    /// A sentence for a person: what makes no sense.
    fn check(&self) -> Result<[u64; 4], String> {
        let wrong = |what: &str| Err(format!("{what} must be 1 at least"));
        match self {
            KvsbArgs { devices: 0, .. } => return wrong("--devices"),
            KvsbArgs { keys: 0, .. } => return wrong("--keys"),
            KvsbArgs { depth: 0, .. } => return wrong("--depth"),
            _ => {}
        }
        if !(KEY_BYTES_MIN..=hedgerow_kvssd::KEY_BYTES_MAX).contains(&self.key_bytes) {
            let max = hedgerow_kvssd::KEY_BYTES_MAX;
            return Err(format!("--key-bytes must be {KEY_BYTES_MIN} to {max}, not {}", self.key_bytes));
        }
        if self.value_bytes.most() > hedgerow_kvssd::VALUE_BYTES_MAX {
            let max = hedgerow_kvssd::VALUE_BYTES_MAX;
            return Err(format!(
                "--value-bytes may be up to {}, and a value has {max} at most",
                self.value_bytes.most()
            ));
        }
        if self.rate.is_some_and(|rate| !(rate >= RATE_MIN && rate.is_finite())) {
            return Err(format!("--rate must be {RATE_MIN} at least"));
        }
        if self.depth > QUEUE_DEPTH_MAX {
            return Err(format!("--depth may be {QUEUE_DEPTH_MAX} at most, not {}", self.depth));
        }
        let buffers = self.depth as u64 * self.value_bytes.most() as u64;
        if buffers > BUFFER_BYTES_MAX {
            return Err(format!(
                "--depth values of the longest --value-bytes take {buffers} bytes of memory for each device; the limit is {BUFFER_BYTES_MAX}"
            ));
        }
        let percents: Option<Vec<u64>> = self.mix.split(':').map(|part| part.parse().ok()).collect();
        let mix = percents.and_then(|percents| <[u64; 4]>::try_from(percents).ok());
        let mix = mix.filter(|mix| mix.iter().try_fold(0u64, |all, one| all.checked_add(*one)) == Some(100));
        let mix = mix.ok_or_else(|| {
            format!("--mix must be four percents that are 100 together, as 50:40:5:5, not {}", self.mix)
        })?;
        for (at, name) in self.phases.iter().enumerate() {
            if self.phase(name, mix).is_none() {
                return Err(format!("there is no phase '{name}': give insert, read, update, delete, mixed"));
            }
            if name != "insert" && !self.phases[..at].iter().any(|before| before == "insert") {
                return Err(format!("nothing is there for the phase {name}: put insert in front of it"));
            }
        }
        Ok(mix)
    }

    /// Percents and operations of a phase.
    fn phase(&self, name: &str, mix: [u64; 4]) -> Option<([u64; 4], u64)> {
        let operations = self.operations.unwrap_or(self.keys);
        Some(match name {
            "read" => ([100, 0, 0, 0], operations),
            "update" => ([0, 100, 0, 0], operations),
            "insert" => ([0, 0, 100, 0], self.keys),
            "delete" => ([0, 0, 0, 100], operations),
            "mixed" => (mix, operations),
            _ => return None,
        })
    }

    /// Bytes of each device.
    fn device_bytes(&self, mix: [u64; 4]) -> u64 {
        let inserted = |name: &String| {
            self.phase(name, mix)
                .map_or(0, |(percents, operations)| operations.saturating_mul(percents[2]) / 100)
        };
        let pairs: u64 = self.phases.iter().map(inserted).fold(0, u64::saturating_add);
        let charge = self.key_bytes as f64 + self.value_bytes.mean() + RECORD_EXTRA_BYTES as f64;
        let wanted = (pairs as f64 * charge / FULL_SHARE) as u64;
        let least = DEVICE_BYTES_MIN.max(VALUES_A_DEVICE * self.value_bytes.most() as u64);
        self.size.unwrap_or(wanted.max(least))
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "suite": "kvsb",
            "devices": if self.files.is_empty() { self.devices } else { self.files.len() },
            "files": self.files,
            "keys": self.keys,
            "operations": self.operations.unwrap_or(self.keys),
            "mix": self.mix,
            "key_bytes": self.key_bytes,
            "value_bytes": self.value_bytes.to_string(),
            "distribution": format!("{:?}", self.distribution).to_lowercase(),
            "depth": self.depth,
            "rate": self.rate,
            "immediate": self.immediate,
            "no_pin": self.no_pin,
            "phases": self.phases,
            "size": self.size,
            "seed": self.seed,
        })
    }
}

/// What is measured.
#[derive(Debug)]
struct Kvsb<'a> {
    args: &'a KvsbArgs,
    mix: [u64; 4],
    instances: Vec<Instance>,
}

impl<'a> Kvsb<'a> {
    fn new(args: &'a KvsbArgs) -> Result<Kvsb<'a>, String> {
        let mix = args.check()?;
        let geometry = geometry_of(args.device_bytes(mix))?;
        let max = geometry.value_bytes_max();
        if args.value_bytes.most() as u64 > max {
            return Err(format!(
                "a device of this size has values of up to {max} bytes, and --value-bytes may be up to {}",
                args.value_bytes.most()
            ));
        }
        let ack = if args.immediate { AckMode::Immediate } else { AckMode::Buffered };
        let options = DeviceOptions { ack, ..DeviceOptions::default() };
        let bytes = geometry.bytes();
        let tier_options = FastTierOptions { reserve_bytes: bytes, ..FastTierOptions::default() };
        let count = if args.files.is_empty() { args.devices } else { args.files.len() };
        let mut instances = Vec::with_capacity(count);
        for number in 0..count {
            let name = args.files.get(number).map_or("memory".into(), |file| file.display().to_string());
            let told = |error: &dyn std::fmt::Display| format!("no device can be made of {name}: {error}");
            let tier = match args.files.get(number) {
                Some(file) => FastTier::open_file(file, &tier_options, true),
                None => FastTier::dram(&tier_options),
            };
            let tier = tier.map_err(|error| told(&error))?;
            let device = Device::format(tier, geometry, options.clone()).map_err(|error| told(&error))?;
            let (device, space) = with_space(device).map_err(|error| told(&error))?;
            let seed = args.seed.wrapping_add(number as u64);
            let client = KvsbClient::new(space, args.key_bytes, args.value_bytes.clone(), seed);
            instances.push(Instance { device: Some(device), client });
        }
        Ok(Kvsb { args, mix, instances })
    }

    /// All instances at once.
    fn run_phase(&mut self, name: &str) -> Result<KvsbPhaseFigures, String> {
        let Some((mix, operations)) = self.args.phase(name, self.mix) else {
            return Err(format!("no phase {name}"));
        };
        let (rate, distribution) = (self.args.rate, self.args.distribution);
        let plan = KvsbPlan { mix, operations, rate, distribution };
        let cores = if self.args.no_pin { None } else { Cores::enough_for(2 * self.instances.len()) };
        let (mut running, mut queues) = (Vec::new(), Vec::new());
        for (number, instance) in self.instances.iter_mut().enumerate() {
            let device = instance.device.take().ok_or("a device was lost in an earlier phase")?;
            let before = Spent::of(&device);
            let thread = Running::start(device, cores.as_ref().map(|cores| (cores, 2 * number + 1)))?;
            let opened = thread.thread.opener().open(self.args.depth, self.args.value_bytes.most());
            queues.push(opened.map_err(|error| error.to_string())?);
            running.push((thread, before));
        }
        let outcomes = self.run_clients(name, &plan, queues, cores.as_ref());
        let mut figures = Vec::with_capacity(running.len());
        for (number, ((thread, before), outcome)) in running.into_iter().zip(outcomes).enumerate() {
            let (device, device_cpu) = thread.stop()?;
            let (outcome, client_cpu) =
                outcome.map_err(|error| format!("{name}, device {}: {error}", number + 1))?;
            let spent = Spent { client_cpu, device_cpu, ..Spent::of(&device).since(&before) };
            figures.push(KvsbDeviceFigures::new(number + 1, &outcome, &spent, &device.info()));
            self.instances[number].device = Some(device);
        }
        let phase = KvsbPhaseFigures::new(name, cores.is_some_and(|cores| cores.hold_all()), figures);
        match phase.wrong() {
            0 => Ok(phase),
            wrong => Err(format!("{name}: {wrong} answers were wrong")),
        }
    }

    /// A thread each; they begin at once. What each did, and what its thread had of a processor.
    fn run_clients(
        &mut self,
        name: &str,
        plan: &KvsbPlan,
        queues: Vec<QueuePair>,
        cores: Option<&Cores>,
    ) -> Vec<ClientOutcome> {
        let (done, barrier) = (AtomicU64::new(0), Barrier::new(queues.len()));
        let (done, barrier) = (&done, &barrier);
        std::thread::scope(|scope| {
            let mut clients = Vec::with_capacity(queues.len());
            for (number, (instance, mut queue)) in self.instances.iter_mut().zip(queues).enumerate() {
                clients.push(scope.spawn(move || -> ClientOutcome {
                    if let Some(cores) = cores {
                        cores.pin(2 * number);
                    }
                    barrier.wait();
                    let before = own_cpu();
                    let outcome = instance.client.run(&mut queue, plan, done);
                    Ok((outcome.map_err(|error| error.to_string())?, own_cpu() - before))
                }));
            }
            let all = plan.operations.saturating_mul(clients.len() as u64);
            watch(name, all, done, || clients.iter().all(|client| client.is_finished()));
            let ended = |joined: std::thread::Result<ClientOutcome>| {
                joined.unwrap_or_else(|_| Err("a client panicked".into()))
            };
            clients.into_iter().map(|client| ended(client.join())).collect()
        })
    }

    fn close(self) -> Result<(), String> {
        for device in self.instances.into_iter().filter_map(|instance| instance.device) {
            device.close().map_err(|error| format!("closing a device failed: {error}"))?;
        }
        Ok(())
    }
}

/// The device with the benchmark's key space.
fn with_space(device: Device) -> hedgerow_kvssd::Result<(Device, SpaceId)> {
    let thread = DeviceThread::start(device)?;
    let name = PairKey::new(SPACE)?;
    let made = thread
        .opener()
        .open(1, 64)?
        .call(HostRequest::Other(KvCommand::CreateSpace { name, bytes_max: 0 }))?;
    let device = thread.stop()?;
    match made {
        KvAnswer::Space(info) => Ok((device, info.id)),
        other => Err(hedgerow_kvssd::KvError::Closed { why: format!("it answered {other:?}") }),
    }
}

/// A device with its thread.
struct Running {
    thread: DeviceThread,
    /// The kernel's number of it.
    task: String,
    cpu_before: Duration,
}

impl Running {
    /// A thread begins on the processors of the one that starts it.
    fn start(device: Device, core: Option<(&Cores, usize)>) -> Result<Running, String> {
        let own = sched_getaffinity(None).ok();
        if let Some((cores, number)) = core {
            cores.pin(number);
        }
        let before = device_tasks()?;
        let thread = DeviceThread::start(device).map_err(|error| error.to_string());
        if let (Some(own), Some((cores, _))) = (own, core) {
            cores.keep(&own);
        }
        let thread = thread?;
        let task = new_task(&before)?;
        let cpu_before = task_cpu(&task)?;
        Ok(Running { thread, task, cpu_before })
    }

    /// The device, and what its thread had of a processor.
    fn stop(self) -> Result<(Device, Duration), String> {
        let cpu = task_cpu(&self.task)?.saturating_sub(self.cpu_before);
        Ok((self.thread.stop().map_err(|error| error.to_string())?, cpu))
    }
}

/// The processors that this process may run on.
#[derive(Debug)]
struct Cores {
    numbers: Vec<usize>,
    /// The system refused one of them to a thread: figures are the noisier.
    is_refused: AtomicBool,
}

impl Cores {
    /// None if there are less.
    fn enough_for(threads: usize) -> Option<Cores> {
        let own = sched_getaffinity(None).ok()?;
        let numbers: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| own.is_set(core)).collect();
        (numbers.len() >= threads).then_some(Cores { numbers, is_refused: AtomicBool::new(false) })
    }

    /// Leaves this thread one of them.
    fn pin(&self, number: usize) {
        let mut set = CpuSet::new();
        set.set(self.numbers[number % self.numbers.len()]);
        self.keep(&set);
    }

    /// Leaves this thread these processors.
    fn keep(&self, set: &CpuSet) {
        if sched_setaffinity(None, set).is_err() {
            self.is_refused.store(true, Ordering::Relaxed);
        }
    }

    /// Whether each thread got what it was to have.
    fn hold_all(&self) -> bool {
        !self.is_refused.load(Ordering::Relaxed)
    }
}

/// The threads of this process that drive devices.
fn device_tasks() -> Result<Vec<String>, String> {
    let failed = |error| format!("reading /proc/self/task: {error}");
    let entries = std::fs::read_dir("/proc/self/task").map_err(failed)?;
    let tasks = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    // One that has ended since has no name.
    let name = |task: &str| read(&format!("/proc/self/task/{task}/comm")).unwrap_or_default();
    Ok(tasks.filter(|task| name(task).trim() == DEVICE_THREAD).collect())
}

/// The one that has come since. It names itself, once it runs.
fn new_task(before: &[String]) -> Result<String, String> {
    let start = Instant::now();
    while start.elapsed() < THREAD_START_MAX {
        if let Some(task) = device_tasks()?.into_iter().find(|task| !before.contains(task)) {
            return Ok(task);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Err("the thread of a device did not begin".into())
}

/// Processor time that a thread of this process has had.
fn task_cpu(task: &str) -> Result<Duration, String> {
    let path = format!("/proc/self/task/{task}/schedstat");
    let text = read(&path)?;
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    ns.map(Duration::from_nanos).ok_or_else(|| format!("{path} has no time"))
}

fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Moves a bar until all is done.
fn watch(name: &str, all: u64, done: &AtomicU64, is_done: impl Fn() -> bool) {
    let (bar, start) = (phase_bar(name), Instant::now());
    while !is_done() {
        let operations = done.load(Ordering::Relaxed);
        let so_far = operations as f64;
        let per_second = so_far / start.elapsed().as_secs_f64().max(1e-9);
        advance(&bar, Progress { operations, fraction: so_far / all.max(1) as f64, per_second });
        std::thread::sleep(Duration::from_millis(20));
    }
    bar.finish_and_clear();
}

#[cfg(test)]
mod tests;
