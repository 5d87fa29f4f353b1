//! The run: who takes part, in which order, and where.
//!
//! Owns the command line, the worker processes and the order of turns. Promises that every phase is run by all engines one
//! after the other, that a turn begins when the engine before has come to rest and its dirty pages are written, that the
//! order of turns rotates from phase to phase and from round to round, and that directories are removed at the end. Only
//! under a ballast, which leaves one piece of memory for all, each engine runs all its phases before the next one begins.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use hedgerow_tool::bench::distribution::Distribution;
use hedgerow_tool::bench::report::PhaseReport;
use hedgerow_tool::bench::row::RowShape;
use hedgerow_tool::bench::setting::Setting;
use hedgerow_tool::bench::store::mapping::Mapping;
use hedgerow_tool::bench::workload::{FIELDS, Workload};
use hedgerow_tool::bench::{advance, driver::Progress, phase_bar};
use hedgerow_tool::store_url::Medium;

use crate::bound::Bound;
use crate::bound::group::Group as ControlGroup;
use crate::peers::{CACHE_BYTES, Engine, Packing, Safety};
use crate::results::{self, Run};
use crate::worker::{ARGUMENT, Answer, Assignment, Command, Phase, Skew};

/// Hedgerow beside its peers: the same workloads, in one run, in turns.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "compare", version)]
pub(crate) struct Args {
    /// ycsb: load, A to F. fields: single fields against whole rows. fill: random writes by the second.
    #[arg(long, value_enum, default_value_t = Suite::Ycsb)]
    suite: Suite,
    /// Some phases of the suite only, in this order.
    #[arg(long, value_delimiter = ',')]
    phases: Vec<String>,
    /// Who takes part beside Hedgerow. rocksdb-cache has a cache larger than the data, rocksdb-mapped reads its files through
    /// mappings, rocksdb-universal merges runs of like size, rocksdb-merge updates without reading. flat is Hedgerow itself as a store of flat values.
    #[arg(long, value_delimiter = ',', default_value = "rocksdb,lmdb,leveldb,fjall")]
    peers: Vec<String>,
    /// How the peers map rows to values. Each mapping is a group of its own, with Hedgerow in both, so that memory holds
    /// all data of a group.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "consolidated,scattered")]
    mappings: Vec<Mapping>,
    /// Rows of the data set.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Operations a phase at most [default: as many as records].
    #[arg(long)]
    operations: Option<u64>,
    /// Seconds a phase at most; load and fill take as long as they need.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Times the whole is repeated on fresh stores; results are medians, with least and most.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// What zipfian workloads draw from: ycsb, ten thousand million items folded onto the records; records, as many as there
    /// are. With both, such a phase is run twice.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ycsb")]
    skews: Vec<Skew>,
    /// Memory of each engine at most, in bytes, its share of the page cache included: by a control group, or where none can be
    /// had by locking all other memory [default: as much as there is].
    #[arg(long, value_name = "BYTES")]
    memory_max: Option<u64>,
    /// Bytes of cache for the peers that have one.
    #[arg(long, value_name = "BYTES", default_value_t = CACHE_BYTES)]
    cache: u64,
    /// Fields in a row.
    #[arg(long, default_value_t = 10)]
    fields: usize,
    /// Bytes in a field.
    #[arg(long, default_value_t = 100)]
    field_bytes: usize,
    /// Operations a second, begun on schedule, late ones charged with their wait [default: as fast as it goes].
    #[arg(long)]
    rate: Option<f64>,
    /// What a write survives when it returns, for all engines.
    #[arg(long, value_enum, default_value_t = Safety::Process)]
    durability: Safety,
    /// How files of sorted rows are compressed, by all engines that have some but LevelDB.
    #[arg(long, value_enum, default_value_t = Packing::None)]
    compression: Packing,
    /// What Hedgerow rests on, with rows and flat: a file, or the same slowed to persistent memory. The peers rest on files
    /// either way: they cannot be slowed alike, which is to their advantage.
    #[arg(long, value_enum, default_value_t = Medium::File)]
    hedgerow_media: Medium,
    /// Sets an option of Hedgerow, with rows and flat, otherwise: NAME=VALUE, more than once. A wrong name lists all.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<Setting>,
    /// Where the stores are made and removed.
    #[arg(long, default_value = "compare-data")]
    dir: PathBuf,
    /// Writes the results there.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    Ycsb,
    Fields,
    Fill,
}

/// Said above figures that are no like for like.
const EMULATED: &str = "Hedgerow, with rows and flat, was slowed to persistent memory; the other peers ran on files, in this machine's DRAM.";

/// Runs the comparison and prints it.
pub(crate) fn run(args: Args) -> Result<(), String> {
    let phases = phases(&args)?;
    let peers = peers(&args)?;
    let shape = RowShape::new(args.fields, args.field_bytes)?;
    if shape.row_bytes() > usize::from(u16::MAX) {
        return Err(format!("a row must be at most {} bytes", u16::MAX));
    }
    if args.rounds == 0 || args.mappings.is_empty() {
        return Err("at least one round and one mapping are needed".into());
    }
    let bound = Bound::new(args.memory_max)?;
    let home = Home::new(&args.dir)?;
    let mut runs = Vec::new();
    for round in 0..args.rounds {
        for &mapping in &args.mappings {
            let group = Group { args: &args, home: &home.0, bound: &bound, peers: &peers, mapping, round };
            runs.extend(group.run(&phases)?);
        }
    }
    if args.hedgerow_media == Medium::Emulated {
        println!("{EMULATED}");
    }
    println!("{}", bound.sentence());
    print!("{}", results::tables(&runs));
    if let Some(path) = &args.json {
        results::write_json(path, settings(&args, &bound), &runs)?;
        eprintln!("results are in {}", path.display());
    }
    Ok(())
}

fn phases(args: &Args) -> Result<Vec<Phase>, String> {
    let suite: Vec<&str> = match args.suite {
        // D and E insert, so that they come last, as YCSB advises; F rewrites what A did.
        Suite::Ycsb => vec!["load", "a", "b", "c", "f", "d", "e"],
        Suite::Fields => std::iter::once("load").chain(FIELDS.iter().map(|workload| workload.name)).collect(),
        Suite::Fill => vec!["fill"],
    };
    let chosen = args.phases.iter().map(String::as_str);
    let names: Vec<&str> = if args.phases.is_empty() { suite } else { chosen.collect() };
    let phases = names.into_iter().map(Workload::find).collect::<Result<Vec<_>, _>>()?;
    match phases.split_first() {
        Some((first, rest)) if first.builds() && !rest.iter().any(|phase| phase.builds()) => {}
        _ => return Err("--phases must begin with load or fill, once".into()),
    }
    Ok(phases.into_iter().flat_map(|workload| with_skews(workload, &args.skews)).collect())
}

/// A zipfian workload once with each skew, another once.
fn with_skews(workload: &Workload, skews: &[Skew]) -> Vec<Phase> {
    let is_zipfian = workload.distribution == Distribution::Zipfian;
    let skews = if is_zipfian && !skews.is_empty() { skews } else { &[Skew::Ycsb] };
    skews.iter().map(|&skew| Phase { workload: workload.name.into(), skew }).collect()
}

fn peers(args: &Args) -> Result<Vec<Engine>, String> {
    let named = args.peers.iter().filter(|name| !name.trim().is_empty());
    let peers = named.map(|name| Engine::peer(name)).collect::<Result<Vec<_>, _>>()?;
    match peers.iter().find(|peer| !peer.is_built()) {
        None => Ok(peers),
        Some(peer) => Err(format!(
            "this build has no {}: see docs/benchmarks.md for what it needs, or leave it out of --peers",
            peer.name()
        )),
    }
}

fn settings(args: &Args, bound: &Bound) -> serde_json::Value {
    serde_json::json!({
        "suite": format!("{:?}", args.suite).to_lowercase(),
        "records": args.records,
        "operations": args.operations.unwrap_or(args.records),
        "seconds": args.seconds,
        "threads": args.threads,
        "rounds": args.rounds,
        "skews": args.skews,
        "memory_max": args.memory_max,
        "memory_bound": bound.kind(),
        "cache": args.cache,
        "fields": args.fields,
        "field_bytes": args.field_bytes,
        "rate": args.rate,
        "durability": args.durability,
        "compression": args.compression,
        "hedgerow_media": args.hedgerow_media,
        "set": set_names(args),
        "seed": args.seed,
    })
}

/// What was set otherwise, as it was given.
fn set_names(args: &Args) -> Vec<String> {
    args.set.iter().map(ToString::to_string).collect()
}

/// The directory of a run; gone when the run is.
struct Home(PathBuf);

impl Home {
    fn new(path: &Path) -> Result<Home, String> {
        // One of our own below the one named: whatever else lies there stays.
        let path = path.join(format!("run-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("making {}: {error}", path.display()))?;
        path.canonicalize().map(Home).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes what is dirty in the file system, so that one engine's pages are not written in another's turn.
    fn write_back(path: &Path) -> Result<(), String> {
        let directory = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        rustix::fs::syncfs(&directory).map_err(|error| format!("syncing {}: {error}", path.display()))
    }
}

/// Bytes written so far, by whomever, to the device that a path is on; none where the kernel does not tell. What a process is said to have written are pages that
/// became dirty, and a mapped one may several times before it is written once.
fn device_bytes_written(path: &Path) -> Option<u64> {
    let device = std::fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    let sectors: u64 = stat.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512)
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
        if let Some(parent) = self.0.parent() {
            // Only if it is empty.
            let _ = std::fs::remove_dir(parent);
        }
    }
}

/// The engines that run together: the null store, Hedgerow, and the peers under one mapping.
struct Group<'a> {
    args: &'a Args,
    home: &'a Path,
    bound: &'a Bound,
    peers: &'a [Engine],
    mapping: Mapping,
    round: usize,
}

impl Group<'_> {
    fn run(&self, phases: &[Phase]) -> Result<Vec<Run>, String> {
        let engines: Vec<_> = [Engine::Null, Engine::Hedgerow].iter().chain(self.peers).copied().collect();
        if self.bound.allows_turns() {
            return self.run_in_turns(&engines, phases);
        }
        let mut runs = Vec::new();
        for turn in 0..engines.len() {
            let engine = engines[(turn + self.round) % engines.len()];
            runs.extend(self.run_in_turns(&[engine], phases)?);
        }
        Ok(runs)
    }

    fn run_in_turns(&self, engines: &[Engine], phases: &[Phase]) -> Result<Vec<Run>, String> {
        let workers = engines.iter().map(|&engine| self.start(engine));
        let mut workers = workers.collect::<Result<Vec<_>, _>>()?;
        let mut runs = Vec::new();
        for (number, phase) in phases.iter().enumerate() {
            for turn in 0..workers.len() {
                let count = workers.len();
                let worker = &mut workers[(turn + number + self.round) % count];
                let seed = self.args.seed.wrapping_add((self.round * 100 + number) as u64);
                let before = device_bytes_written(self.home);
                let report = worker.phase(phase, seed)?;
                Home::write_back(self.home)?;
                let device_bytes = device_bytes_written(self.home).zip(before);
                runs.push(Run {
                    engine: worker.engine,
                    mapping: worker.mapping,
                    group: self.mapping,
                    round: self.round,
                    report,
                    device_bytes: device_bytes.map(|(after, before)| after - before),
                });
            }
        }
        for worker in workers {
            worker.finish()?;
        }
        Ok(runs)
    }

    fn start(&self, engine: Engine) -> Result<Worker, String> {
        let args = self.args;
        let mapping = (engine != Engine::Null && engine != Engine::Hedgerow).then_some(self.mapping);
        let directory = self.home.join(format!("{}-{:?}-{}", engine.name(), self.mapping, self.round));
        std::fs::create_dir_all(&directory)
            .map_err(|error| format!("making {}: {error}", directory.display()))?;
        let assignment = Assignment {
            engine,
            mapping,
            directory,
            records: args.records,
            operations: args.operations.unwrap_or(args.records),
            seconds: args.seconds,
            threads: args.threads,
            fields: args.fields,
            field_bytes: args.field_bytes,
            rate: args.rate,
            safety: args.durability,
            packing: args.compression,
            cache_bytes: args.cache,
            medium: args.hedgerow_media,
            set: set_names(args),
        };
        Worker::start(assignment, self.bound)
    }
}

/// A worker process; ended when dropped.
struct Worker {
    engine: Engine,
    mapping: Option<Mapping>,
    directory: PathBuf,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Where its memory is bounded; removed after the process has ended.
    _group: Option<ControlGroup>,
}

impl Worker {
    fn start(assignment: Assignment, bound: &Bound) -> Result<Worker, String> {
        let program = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
        let mut child = std::process::Command::new(program)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a worker: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().ok_or("a worker has no output")?);
        let (engine, mapping, directory) =
            (assignment.engine, assignment.mapping, assignment.directory.clone());
        let output = BufReader::new(output);
        let mut worker = Worker { engine, mapping, directory, child, input, output, _group: None };
        // It waits for its assignment, so that all it touches later is under the bound.
        worker._group = bound.admit(worker.child.id())?;
        worker.tell(&assignment)?;
        Ok(worker)
    }

    fn name(&self) -> String {
        results::name_of(self.engine, self.mapping)
    }

    fn tell(&mut self, message: &impl serde::Serialize) -> Result<(), String> {
        let name = self.name();
        let line = serde_json::to_string(message).map_err(|error| error.to_string())?;
        let input = self.input.as_mut().ok_or("the worker was told to end")?;
        writeln!(input, "{line}").map_err(|error| format!("{name}: {error}"))
    }

    fn phase(&mut self, phase: &Phase, seed: u64) -> Result<PhaseReport, String> {
        let (name, phase_name) = (self.name(), phase.name());
        self.tell(&Command { phase: phase.clone(), seed })?;
        let bar = phase_bar(&format!("{phase_name} {name}"));
        let report = loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).map_err(|error| format!("{name}: {error}"))?;
            if read == 0 {
                // Killed, most likely: by the kernel where memory is bounded.
                let status = self.child.wait().map_err(|error| error.to_string())?;
                return Err(format!("{name}: the worker ended in phase {phase_name} ({status})"));
            }
            match serde_json::from_str(&line).map_err(|error| format!("{name} said {line:?}: {error}"))? {
                Answer::Progress { fraction, per_second } => {
                    advance(&bar, Progress { operations: 0, fraction, per_second });
                }
                Answer::Done(report) => break *report,
                Answer::Failed(error) => return Err(format!("{name}, phase {phase_name}: {error}")),
            }
        };
        bar.finish_and_clear();
        eprintln!("{}", report.progress_line(&name));
        Ok(report)
    }

    /// Lets the worker close its store, and removes that.
    fn finish(mut self) -> Result<(), String> {
        drop(self.input.take());
        let status = self.child.wait().map_err(|error| error.to_string())?;
        let _ = std::fs::remove_dir_all(&self.directory);
        if status.success() { Ok(()) } else { Err(format!("{}: ended with {status}", self.name())) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.input.take());
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
