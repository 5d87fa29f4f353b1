//! A machine with many drives, as the model has it: `hedgerow bench kvsb --model`.
//!
//! Owns the model's options, its inputs and what it says. Promises that what was measured and what was put in stand apart and that neither is told without the other: each value size is run for real, on one device and on two, right before
//! the model takes its processor time from there. Must not know what a report looks like.

use hedgerow_device::{FastTier, FastTierOptions, Random};
use hedgerow_kvssd::{
    Device, DeviceOptions, DriveModel, Geometry, KvAnswer, KvCommand, KvError, NodeLoad, NodeModel, PairKey,
    SimCompletion, SimHost, SpaceId, StoreMode,
};
use serde::Serialize;

use super::figures::KvsbPhaseFigures;
use super::sizes::ValueSizes;
use super::{Kvsb, KvsbArgs, SPACE};
use crate::bench::distribution::Distribution;
use crate::bench::paper::machine;
use crate::units::parse_bytes;

/// Bytes of values.
const VALUE_BYTES: [usize; 3] = [64, 4 << 10, 64 << 10];
/// How many devices.
const DEVICES: [u32; 8] = [1, 2, 4, 6, 9, 12, 15, 18];
/// How many of them are run for real.
const REAL_DEVICES: [usize; 2] = [1, 2];
const PHASES: [&str; 2] = ["insert", "read"];
/// Hardware threads, and bytes a second over the memory's bus, of half of the machine that such drives were shown on (Kang et al. 2019).
const CORES: u32 = 48;
const BUS_BYTES_A_SECOND: u64 = 24_000_000_000;
/// Bytes of values that a device is given, and pairs, at most.
const DATA_BYTES: u64 = 256 << 20;
const PAIRS_MAX: u64 = 60_000;
/// Commands of each device of a machine.
const COMMANDS: u32 = 3_000;
const CORES_MAX: u32 = 4_096;
const CPU_NS_MAX: u64 = 1_000_000_000;
/// Of 32 MiB: 48 of them have room for what is stored.
const BLOCKS: u32 = 48;

/// What the model is given on the command line.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct ModelArgs {
    /// Says, too, what 1 to 18 drives would do in one machine, in virtual time, for values of 64 bytes, 4 KiB and 64 KiB; one device and two are run
    /// for real beside it, and what they take of processors goes into the model.
    #[arg(long)]
    model: bool,
    /// Nanoseconds of a core that the model is to take an operation for, instead of what is measured.
    #[arg(long, requires = "model")]
    cpu_ns: Option<u64>,
    /// Cores of the machines of the model [default: as many as here, and 48].
    #[arg(long, value_delimiter = ',', requires = "model")]
    cores: Vec<u32>,
    /// Bytes a second over the bus that the drives of the model share, as in 24gb [default: 24,000,000,000].
    #[arg(long, requires = "model", value_parser = |text: &str| parse_bytes(text).ok_or("give bytes, as in 24gb"))]
    bus: Option<u64>,
}

impl ModelArgs {
    pub(super) fn is_asked(&self) -> bool {
        self.model
    }

    /// # Errors
    /// A sentence for a person.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.cores.iter().any(|cores| !(1..=CORES_MAX).contains(cores)) {
            return Err(format!("--cores must be 1 to {CORES_MAX}"));
        }
        if self.cpu_ns.is_some_and(|ns| !(1..=CPU_NS_MAX).contains(&ns)) {
            return Err(format!("--cpu-ns must be 1 to {CPU_NS_MAX}"));
        }
        if self.bus == Some(0) {
            return Err("--bus must be 1 at least".into());
        }
        Ok(())
    }

    fn cores(&self) -> Vec<u32> {
        let mut cores = self.cores.clone();
        if cores.is_empty() {
            cores = vec![u32::try_from(machine::processors()).unwrap_or(CORES_MAX), CORES];
        }
        cores.dedup();
        cores
    }
}

/// What the model was given that nobody measured here.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ModelInputs {
    /// The drive, number by number.
    pub(super) drive: String,
    /// Of machines.
    pub(super) cores: Vec<u32>,
    pub(super) bus_bytes_a_second: u64,
    /// Commands under way on each device.
    pub(super) depth: u32,
    pub(super) key_bytes: usize,
    /// What an operation is to take of a core; none: what was measured.
    pub(super) cpu_ns_given: Option<u64>,
}

/// One or two devices in memory on this machine, in real time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ModelMeasured {
    /// insert or read.
    pub(super) operation: String,
    pub(super) value_bytes: usize,
    pub(super) devices: usize,
    pub(super) ops_per_s: f64,
    /// Ns of a core an operation: client, and thread of the device.
    pub(super) client_ns: f64,
    pub(super) device_ns: f64,
    /// Others used the machine meanwhile.
    pub(super) disturbed: bool,
    /// Each thread had a processor of its own.
    pub(super) pinned: bool,
}

/// What a machine would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ModelPoint {
    pub(super) devices: u32,
    pub(super) ops_per_s: f64,
    /// In terms of one drive that waits for nobody.
    pub(super) times_one: f64,
    pub(super) cores_busy: f64,
    /// A part of the time.
    pub(super) bus_busy: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// A machine with more and more drives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ModelCurve {
    pub(super) operation: String,
    pub(super) value_bytes: usize,
    pub(super) cores: u32,
    /// Whose processor time goes in: host, host and device, given, or one of these twice.
    pub(super) cpu: String,
    /// What an operation takes of a core.
    pub(super) cpu_ns: u64,
    /// Operations a second of one drive that waits for nobody.
    pub(super) drive_ops_per_s: f64,
    pub(super) points: Vec<ModelPoint>,
}

/// The inputs, what was measured, and what the model makes of both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct KvsbModel {
    pub(super) inputs: ModelInputs,
    pub(super) measured: Vec<ModelMeasured>,
    pub(super) curves: Vec<ModelCurve>,
}

impl KvsbModel {
    /// Measures, and then models.
    ///
    /// # Errors
    /// A sentence for a person: wrong arguments, or a device that failed or answered wrongly.
    pub(super) fn run(args: &KvsbArgs) -> Result<KvsbModel, String> {
        let depth = u32::try_from(args.depth).map_err(|_| "--depth is too large for the model")?;
        let inputs = ModelInputs {
            drive: format!("{:?}", DriveModel::default()),
            cores: args.model.cores(),
            bus_bytes_a_second: args.model.bus.unwrap_or(BUS_BYTES_A_SECOND),
            depth,
            key_bytes: args.key_bytes,
            cpu_ns_given: args.model.cpu_ns,
        };
        let (mut measured, mut curves) = (Vec::new(), Vec::new());
        for bytes in VALUE_BYTES {
            let pairs = args.keys.min(PAIRS_MAX).min(DATA_BYTES / bytes as u64);
            let real = measure(args, bytes, pairs)?;
            let rates =
                drive(args, bytes, pairs).map_err(|error| format!("the model of a drive: {error}"))?;
            for (phase, rate) in PHASES.into_iter().zip(rates) {
                let of_one = real.iter().find(|one| one.operation == phase && one.devices == 1);
                let Some(of_one) = of_one else { continue };
                for (cpu, cpu_ns) in processor_times(of_one, inputs.cpu_ns_given) {
                    for &cores in &inputs.cores {
                        let points = points(&inputs, (cores, cpu_ns), bytes, rate)?;
                        let (operation, drive_ops_per_s) = (phase.to_owned(), rate);
                        let cpu = cpu.to_owned();
                        curves.push(ModelCurve {
                            operation,
                            value_bytes: bytes,
                            cores,
                            cpu,
                            cpu_ns,
                            drive_ops_per_s,
                            points,
                        });
                    }
                }
            }
            measured.extend(real);
        }
        Ok(KvsbModel { inputs, measured, curves })
    }
}

/// What goes into the model: as measured or as given, and twice as much.
fn processor_times(of_one: &ModelMeasured, given: Option<u64>) -> Vec<(&'static str, u64)> {
    let ns = |ns: f64| (ns.round() as u64).clamp(1, CPU_NS_MAX);
    match given {
        Some(given) => vec![("given", given), ("twice that", 2 * given)],
        None => {
            let both = of_one.client_ns + of_one.device_ns;
            vec![
                ("host", ns(of_one.client_ns)),
                ("host and device", ns(both)),
                ("twice both", ns(2.0 * both)),
            ]
        }
    }
}

/// A machine of so many cores whose operations take so much of one, with more and more drives.
fn points(
    inputs: &ModelInputs,
    (cores, cpu_ns): (u32, u64),
    value_bytes: usize,
    drive_ops_per_s: f64,
) -> Result<Vec<ModelPoint>, String> {
    let node = NodeModel { cores, cpu_ns, bus_bytes_a_second: inputs.bus_bytes_a_second };
    let device_ns = (1e9 / drive_ops_per_s.max(1e-9)).round() as u64;
    let bytes = (inputs.key_bytes + value_bytes) as u64;
    let point = |devices| {
        let load = NodeLoad { devices, depth: inputs.depth, device_ns, latency_ns: 0, bytes };
        let figures = node.run(load, COMMANDS.max(8 * inputs.depth)).map_err(|error| error.to_string())?;
        Ok(ModelPoint {
            devices,
            ops_per_s: figures.a_second,
            times_one: figures.a_second / drive_ops_per_s,
            cores_busy: figures.cores_busy,
            bus_busy: figures.bus_busy,
            p50_us: figures.latency_ns[0] as f64 / 1e3,
            p99_us: figures.latency_ns[1] as f64 / 1e3,
        })
    };
    DEVICES.into_iter().map(point).collect()
}

/// One device and two, on this machine and in memory: what they do and take of processors.
fn measure(args: &KvsbArgs, bytes: usize, pairs: u64) -> Result<Vec<ModelMeasured>, String> {
    let mut measured = Vec::new();
    for devices in REAL_DEVICES {
        let args = KvsbArgs {
            files: Vec::new(),
            devices,
            size: None,
            phases: PHASES.map(str::to_owned).into(),
            keys: pairs,
            operations: None,
            value_bytes: ValueSizes::Fixed(bytes),
            distribution: Distribution::Uniform,
            rate: None,
            ..args.clone()
        };
        let mut bench = Kvsb::new(&args)?;
        for phase in PHASES {
            let figures = bench.run_phase(phase)?;
            eprintln!("{bytes} bytes, {devices} devices: {}", figures.progress_line());
            measured.push(told(&figures, bytes));
        }
        bench.close()?;
    }
    Ok(measured)
}

fn told(figures: &KvsbPhaseFigures, value_bytes: usize) -> ModelMeasured {
    let KvsbPhaseFigures { phase, all, devices, pinned, .. } = figures;
    ModelMeasured {
        operation: phase.clone(),
        value_bytes,
        devices: devices.len(),
        ops_per_s: all.ops_per_s,
        client_ns: all.us_per_op(all.client_cpu_s) * 1e3,
        device_ns: all.us_per_op(all.device_cpu_s) * 1e3,
        disturbed: figures.is_disturbed(),
        pinned: *pinned,
    }
}

/// Operations a second of one drive in virtual time: inserts, and reads of what was inserted.
fn drive(args: &KvsbArgs, value_bytes: usize, pairs: u64) -> hedgerow_kvssd::Result<[f64; 2]> {
    let geometry = Geometry { page_bytes: 32 << 10, block_bytes: 32 << 20, blocks: BLOCKS };
    let options = FastTierOptions { reserve_bytes: geometry.bytes(), ..FastTierOptions::default() };
    let secret = Some(u128::from(args.seed));
    let options_of_device = DeviceOptions { hash_secret: secret, ..DeviceOptions::default() };
    let device = Device::format(FastTier::dram(&options)?, geometry, options_of_device)?;
    let mut host = SimHost::new(device, DriveModel::default())?;
    let made = host.call(KvCommand::CreateSpace { name: PairKey::new(SPACE)?, bytes_max: 0 })?;
    let KvAnswer::Space(info) = made.result? else {
        return Err(KvError::Param { what: "a key space that is not made" });
    };
    let mut random = Random::from_seed(args.seed);
    let insert = course(&mut host, args.depth, pairs, |number, mut value| {
        value.resize(value_bytes, number as u8);
        Ok(KvCommand::Store { space: info.id, key: key(args, number)?, value, mode: StoreMode::Post })
    })?;
    let read = course(&mut host, args.depth, pairs, |_, mut buffer| {
        buffer.resize(value_bytes, 0);
        retrieve(info.id, key(args, random.below(pairs))?, buffer)
    })?;
    Ok([insert, read])
}

fn retrieve(space: SpaceId, key: PairKey, buffer: Vec<u8>) -> hedgerow_kvssd::Result<KvCommand> {
    Ok(KvCommand::Retrieve { space, key, offset: 0, buffer, delete: false })
}

/// A key of as many bytes as those that are measured have.
fn key(args: &KvsbArgs, number: u64) -> hedgerow_kvssd::Result<PairKey> {
    PairKey::new(&super::client::key_of(number, args.key_bytes))
}

/// Commands in a closed loop; how many a second of virtual time.
fn course(
    host: &mut SimHost,
    depth: usize,
    count: u64,
    mut command: impl FnMut(u64, Vec<u8>) -> hedgerow_kvssd::Result<KvCommand>,
) -> hedgerow_kvssd::Result<f64> {
    let (start_ns, mut given, mut failed) = (host.now_ns(), 0, None);
    let mut wrong = None;
    let next = |buffer: Vec<u8>| {
        if given == count || failed.is_some() {
            return None;
        }
        given += 1;
        command(given - 1, buffer).map_err(|error| failed = Some(error)).ok()
    };
    let done = |completion: &SimCompletion| {
        if let Err(error) = &completion.result {
            wrong.get_or_insert_with(|| error.clone());
        }
    };
    host.run(depth, next, done)?;
    match failed.or(wrong) {
        Some(error) => Err(error),
        None => Ok(count as f64 * 1e9 / (host.now_ns() - start_ns).max(1) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> ModelInputs {
        ModelInputs {
            drive: String::new(),
            cores: vec![4],
            bus_bytes_a_second: BUS_BYTES_A_SECOND,
            depth: 64,
            key_bytes: 16,
            cpu_ns_given: None,
        }
    }

    fn measured(client_ns: f64, device_ns: f64) -> ModelMeasured {
        ModelMeasured {
            operation: "insert".into(),
            value_bytes: 64,
            devices: 1,
            ops_per_s: 1e6,
            client_ns,
            device_ns,
            disturbed: false,
            pinned: true,
        }
    }

    /// Four cores do 18 drives of 100,000 a second at 2 us an operation, and not at 4.
    #[test]
    fn twice_the_measured_time_of_a_processor_bends_the_curve() {
        let of = |measured: &ModelMeasured| {
            let times = processor_times(measured, None);
            assert_eq!(
                times.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
                ["host", "host and device", "twice both"]
            );
            let curve = |&(_, ns): &(&str, u64)| points(&inputs(), (4, ns), 64, 100_000.0).unwrap();
            times.iter().map(curve).collect::<Vec<_>>()
        };
        let curves = of(&measured(500.0, 1500.0));
        for (at, devices) in DEVICES.into_iter().enumerate() {
            let linear = f64::from(devices);
            for curve in &curves[..2] {
                assert!((curve[at].times_one / linear - 1.0).abs() < 0.05, "{:?}", curve[at]);
            }
            // 4 cores at 4 us are a million a second: ten drives.
            let bent = linear.min(10.0);
            assert!((curves[2][at].times_one / bent - 1.0).abs() < 0.05, "{:?}", curves[2][at]);
        }
        // What was measured is what goes in.
        let twice = of(&measured(1000.0, 3000.0));
        assert_eq!(twice[1], curves[2]);
        assert!(twice[2][7].times_one < 5.3, "{:?}", twice[2][7]);
    }

    #[test]
    fn a_given_time_of_a_processor_replaces_what_was_measured() {
        assert_eq!(processor_times(&measured(1.0, 2.0), Some(700)), [("given", 700), ("twice that", 1400)]);
    }

    #[test]
    fn a_full_bus_bends_the_curve_whatever_processors_do() {
        let all = points(&inputs(), (48, 100), 64 << 10, 24_000.0).unwrap();
        let last = all.last().unwrap();
        assert!(last.bus_busy > 0.98 && (14.0..15.6).contains(&last.times_one), "{last:?}");
    }
}
