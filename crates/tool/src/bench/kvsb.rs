//! A benchmark of key-value devices: `hedgerow bench kvsb`.
//!
//! Owns the command's options, the instances (a device, its thread and a client's thread each) and the order of phases. Promises that in each phase all instances begin at once and that no figure is of a run with an answer that
//! was wrong: such a run ends in an error. [`sizes`] says how long values are, [`client`] what is asked and checked, [`figures`] how it is told.

mod client;
mod cores;
mod course;
mod figures;
mod model;
mod page;
mod running;
mod sizes;

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hedgerow_device::{FastTier, FastTierOptions};
use hedgerow_kvssd::{
    AckMode, Device, DeviceOptions, DeviceThread, HostRequest, KvAnswer, KvCommand, PairKey, QUEUE_DEPTH_MAX,
    QueuePair, SpaceId,
};
use serde_json::json;

use super::distribution::Distribution;
use super::driver::Progress;
use super::paper::{check_writable, machine};
use super::process::Neighbours;
use super::{advance, phase_bar};
use crate::kvssd_store::geometry_of;
use crate::units::parse_bytes;
use client::{KvsbClient, KvsbOutcome, KvsbPlan};
use cores::Cores;
use course::{KvsbCourse, Meter};
use figures::{KvsbDeviceFigures, KvsbPhaseFigures, Spent};
use model::{KvsbModel, ModelArgs};
use running::Running;
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
    /// How often all of it is run, on new devices each time: medians and ranges are told. Files of the rounds before are removed.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    #[command(flatten)]
    model: ModelArgs,
    /// Writes the report there: one file, with its charts.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Writes all figures there.
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
    args.check()?;
    [&args.json, &args.html].into_iter().flatten().try_for_each(|path| check_writable(path))?;
    args.check_files_are_new()?;
    let mut phases = Vec::new();
    for round in 1..=args.rounds {
        if round > 1 {
            args.remove_files()?;
        }
        phases.extend(run_round(args, round)?);
    }
    let model = args.model.is_asked().then(|| KvsbModel::run(args)).transpose()?;
    print!("{}", page::text(&phases, model.as_ref()));
    page::write_reports(args, &phases, model.as_ref())
}

/// All phases on new devices.
fn run_round(args: &KvsbArgs, round: usize) -> Result<Vec<KvsbPhaseFigures>, String> {
    let mut bench = Kvsb::new(args)?;
    let mut phases = Vec::new();
    for name in &args.phases {
        let phase = KvsbPhaseFigures { round, ..bench.run_phase(name)? };
        eprintln!("{}", phase.progress_line());
        phases.push(phase);
    }
    bench.close()?;
    Ok(phases)
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
            KvsbArgs { rounds: 0, .. } => return wrong("--rounds"),
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
        self.model.check()?;
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

    fn device_count(&self) -> usize {
        if self.files.is_empty() { self.devices } else { self.files.len() }
    }

    /// What devices lie on.
    fn place(&self) -> String {
        let directory = |file: &PathBuf| {
            let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            machine::place(parent.unwrap_or(Path::new(".")))
        };
        let mut places: Vec<String> = self.files.iter().map(directory).collect();
        places.dedup();
        if places.is_empty() { "memory".into() } else { places.join(", ") }
    }

    /// Files that are made anew for each round are removed before it: none that somebody else made, nor a link to one.
    fn check_files_are_new(&self) -> Result<(), String> {
        let there = self.files.iter().find(|file| self.rounds > 1 && file.symlink_metadata().is_ok());
        match there {
            Some(file) => {
                Err(format!("{} is there already; with --rounds each file is made anew", file.display()))
            }
            None => Ok(()),
        }
    }

    /// Those of a round that is over: this run made them.
    fn remove_files(&self) -> Result<(), String> {
        let removed = |file: &PathBuf| {
            std::fs::remove_file(file).map_err(|error| format!("removing {}: {error}", file.display()))
        };
        self.files.iter().try_for_each(removed)
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "suite": "kvsb",
            "devices": self.device_count(),
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
            "rounds": self.rounds,
            "machine": machine::machine(),
            "memory_nodes": cores::node_count(),
            "place": self.place(),
            "version": env!("CARGO_PKG_VERSION"),
            "seed": self.seed,
        })
    }
}

/// What is measured.
#[derive(Debug)]
struct Kvsb<'a> {
    args: &'a KvsbArgs,
    mix: [u64; 4],
    /// None: threads go where they like.
    cores: Option<Cores>,
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
        let count = args.device_count();
        let cores = if args.no_pin { None } else { Cores::enough_for(count) };
        let mut instances = Vec::with_capacity(count);
        for number in 0..count {
            let made = || {
                let name = args.files.get(number).map_or("memory".into(), |file| file.display().to_string());
                let told =
                    |error: &dyn std::fmt::Display| format!("no device can be made of {name}: {error}");
                let tier = match args.files.get(number) {
                    Some(file) => FastTier::open_file(file, &tier_options, true),
                    None => FastTier::dram(&tier_options),
                };
                let tier = tier.map_err(|error| told(&error))?;
                let device = Device::format(tier, geometry, options.clone()).map_err(|error| told(&error))?;
                let (device, space) = with_space(device).map_err(|error| told(&error))?;
                let seed = args.seed.wrapping_add(number as u64);
                let client = KvsbClient::new(space, args.key_bytes, args.value_bytes.clone(), seed);
                Ok::<_, String>(Instance { device: Some(device), client })
            };
            // There, so that what is touched now lies where it is used.
            instances.push(Cores::on(cores.as_ref(), number, made)?);
        }
        Ok(Kvsb { args, mix, cores, instances })
    }

    /// All instances at once.
    fn run_phase(&mut self, name: &str) -> Result<KvsbPhaseFigures, String> {
        let Some((mix, operations)) = self.args.phase(name, self.mix) else {
            return Err(format!("no phase {name}"));
        };
        let (rate, distribution) = (self.args.rate, self.args.distribution);
        let plan = KvsbPlan { mix, operations, rate, distribution };
        let (cores, neighbours) = (self.cores.as_ref(), Neighbours::watch()?);
        let (mut running, mut queues, mut meters) = (Vec::new(), Vec::new(), Vec::new());
        for (number, instance) in self.instances.iter_mut().enumerate() {
            let device = instance.device.take().ok_or("a device was lost in an earlier phase")?;
            let before = Spent::of(&device);
            let thread = Running::start(device, cores, number)?;
            let opener = thread.thread.opener();
            let (depth, bytes) = (self.args.depth, self.args.value_bytes.most());
            let opened = Cores::on(cores, number, || opener.open(depth, bytes));
            queues.push(opened.map_err(|error| error.to_string())?);
            meters.push(Meter::new(thread.task.clone(), thread.cpu_before));
            running.push((thread, before));
        }
        let clients = self.instances.iter_mut().map(|instance| &mut instance.client).zip(queues).collect();
        let (outcomes, course) = run_clients(name, &plan, clients, &meters, cores);
        let mut figures = Vec::with_capacity(running.len());
        for (number, ((thread, before), outcome)) in running.into_iter().zip(outcomes).enumerate() {
            let (device, device_cpu) = thread.stop()?;
            let (outcome, client_cpu) =
                outcome.map_err(|error| format!("{name}, device {}: {error}", number + 1))?;
            let spent = Spent { client_cpu, device_cpu, ..Spent::of(&device).since(&before) };
            let mut own = KvsbDeviceFigures::new(number + 1, &outcome, &spent, &device.info());
            own.course = course.of(number);
            figures.push(own);
            self.instances[number].device = Some(device);
        }
        let phase = KvsbPhaseFigures::new(name, cores.is_some_and(Cores::hold_all), figures);
        let phase = KvsbPhaseFigures { neighbours_cpus: neighbours.processors()?, ..phase };
        match phase.wrong() {
            0 => Ok(phase),
            wrong => Err(format!("{name}: {wrong} answers were wrong")),
        }
    }

    fn close(self) -> Result<(), String> {
        for device in self.instances.into_iter().filter_map(|instance| instance.device) {
            device.close().map_err(|error| format!("closing a device failed: {error}"))?;
        }
        Ok(())
    }
}

/// A thread each; they begin at once. What each did, what its thread had of a processor, and the course of it all.
fn run_clients(
    name: &str,
    plan: &KvsbPlan,
    clients: Vec<(&mut KvsbClient, QueuePair)>,
    meters: &[Meter],
    cores: Option<&Cores>,
) -> (Vec<ClientOutcome>, KvsbCourse) {
    let barrier = Barrier::new(clients.len());
    let barrier = &barrier;
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(clients.len());
        for (number, ((client, mut queue), meter)) in clients.into_iter().zip(meters).enumerate() {
            threads.push(scope.spawn(move || -> ClientOutcome {
                if let Some(cores) = cores {
                    cores.pin_client(number);
                }
                barrier.wait();
                meter.begin_client();
                let outcome = client.run(&mut queue, plan, &meter.done);
                let cpu = meter.end_client();
                Ok((outcome.map_err(|error| error.to_string())?, cpu))
            }));
        }
        let all = plan.operations.saturating_mul(threads.len() as u64);
        let course = watch(name, all, meters, || threads.iter().all(|thread| thread.is_finished()));
        let ended = |joined: std::thread::Result<ClientOutcome>| {
            joined.unwrap_or_else(|_| Err("a client panicked".into()))
        };
        (threads.into_iter().map(|thread| ended(thread.join())).collect(), course)
    })
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

/// Moves a bar until all is done, and looks at how it goes.
fn watch(name: &str, all: u64, meters: &[Meter], is_done: impl Fn() -> bool) -> KvsbCourse {
    let (bar, start, mut course) = (phase_bar(name), Instant::now(), KvsbCourse::begin(meters.len()));
    while !is_done() {
        let operations = meters.iter().map(|meter| meter.done.load(Ordering::Relaxed)).sum();
        let so_far = operations as f64;
        let per_second = so_far / start.elapsed().as_secs_f64().max(1e-9);
        advance(&bar, Progress { operations, fraction: so_far / all.max(1) as f64, per_second });
        course.go_on(meters);
        std::thread::sleep(Duration::from_millis(20));
    }
    course.end(meters);
    bar.finish_and_clear();
    course
}

#[cfg(test)]
mod tests;
