//! What each verb of a fabric takes: `hedgerow bench pool primitives`.
//!
//! Owns the verbs, and their ends on both fabrics. Promises that each line says whether it is modelled or measured, and that what comes back is what must. Must not know what verbs are for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hedgerow_pool::fabric::nic::NicModel;
use hedgerow_pool::fabric::sim::{SimEvent, SimFabric, SimOptions};
use hedgerow_pool::fabric::tcp::{LOOPBACK, TcpFabric, TcpOptions};
use hedgerow_pool::fabric::{Batch, Fabric, FabricEvent, NodeId, OpResult, RemoteOp, SessionId};
use hedgerow_pool::region::{MemoryNode, RemoteAddress};
use serde::Serialize;
use serde_json::json;

use super::figures::{PoolLatencies, latency_histogram};
use super::page::{PoolOutput, PoolReport, PoolSection};
use crate::bench::chart::{Chart, Scale, Series, Shape, Unit};
use crate::bench::paper::finding::{Figure, FigureTable, Finding};
use crate::bench::paper::machine;
use crate::bench::process::{Neighbours, Usage};
use crate::bench::report::{count, latency};

const CALLER: NodeId = NodeId(0);
const MEMORY: MemoryNode = MemoryNode(0);
const SESSION: SessionId = SessionId(1);
const REGION_BYTES: usize = 1 << 20;
/// Nobody waits longer than this for what is under way.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(1);

/// Arguments of `hedgerow bench pool primitives`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PrimitivesArgs {
    /// How often each verb is carried out.
    #[arg(long, default_value_t = 5_000)]
    count: u64,
    /// Verbs under way, where rates are wanted.
    #[arg(long, default_value_t = 16)]
    depth: u64,
    #[command(flatten)]
    output: PoolOutput,
}

/// What is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Read(u32),
    Write(usize),
    CompareAndSwap,
    FetchAndAdd,
    /// So many reads of 64 bytes in one batch.
    Batch(u32),
    /// There and back.
    Datagram(usize),
}

impl Verb {
    const ALL: [Verb; 11] = [
        Verb::Read(8),
        Verb::Read(1024),
        Verb::Read(16_384),
        Verb::Write(8),
        Verb::Write(1024),
        Verb::Write(16_384),
        Verb::CompareAndSwap,
        Verb::FetchAndAdd,
        Verb::Batch(8),
        Verb::Datagram(64),
        Verb::Datagram(1024),
    ];

    fn name(self) -> String {
        match self {
            Verb::Read(bytes) => format!("read {bytes} B"),
            Verb::Write(bytes) => format!("write {bytes} B"),
            Verb::CompareAndSwap => "compare and swap".into(),
            Verb::FetchAndAdd => "fetch and add".into(),
            Verb::Batch(reads) => format!("batch of {reads} reads"),
            Verb::Datagram(bytes) => format!("datagram {bytes} B, and back"),
        }
    }

    /// The batch that carries it out; none of a datagram. Each of those under way has memory of its own.
    fn batch(self, slot: u64) -> Batch {
        let at = |n: u64| RemoteAddress { region: 0, offset: (n * 64) as u32 };
        match self {
            Verb::Read(bytes) => vec![RemoteOp::Read(at(slot), bytes)],
            Verb::Write(bytes) => vec![RemoteOp::Write(at(slot), vec![7; bytes])],
            Verb::CompareAndSwap => vec![RemoteOp::CompareAndSwap(at(slot), 0, 0)],
            Verb::FetchAndAdd => vec![RemoteOp::FetchAndAdd(at(slot), 1)],
            Verb::Batch(reads) => (0..reads).map(|n| RemoteOp::Read(at(slot + u64::from(n)), 64)).collect(),
            Verb::Datagram(_) => Vec::new(),
        }
    }

    /// Whether these are results of it.
    fn is_answered_by(self, results: &[OpResult]) -> bool {
        let is_read =
            |result: &OpResult, bytes: usize| matches!(result, OpResult::Bytes(read) if read.len() == bytes);
        match (self, results) {
            (Verb::Read(bytes), [one]) => is_read(one, bytes as usize),
            (Verb::Write(_), [OpResult::Written]) => true,
            (Verb::CompareAndSwap | Verb::FetchAndAdd, [OpResult::Before(_)]) => true,
            (Verb::Batch(reads), all) => {
                all.len() == reads as usize && all.iter().all(|one| is_read(one, 64))
            }
            _ => false,
        }
    }
}

/// A caller's end of a fabric whose other end is a memory node that sends datagrams back.
trait VerbEnd {
    fn now_ns(&self) -> u64;
    fn post(&mut self, batch: Batch, tag: u64);
    fn send(&mut self, bytes: Vec<u8>);
    /// What came next; none if nothing has, which may have taken a while.
    fn next(&mut self) -> Option<FabricEvent>;
}

/// In virtual time.
struct ModelledEnd(SimFabric);

impl ModelledEnd {
    fn new() -> ModelledEnd {
        let mut fabric = SimFabric::new(SimOptions::modelled(NicModel::CONNECTX3), 1);
        fabric.export(MEMORY, 0, vec![0; REGION_BYTES]);
        fabric.start(CALLER);
        fabric.start(NodeId::agent(MEMORY));
        ModelledEnd(fabric)
    }
}

impl VerbEnd for ModelledEnd {
    fn now_ns(&self) -> u64 {
        self.0.now()
    }

    fn post(&mut self, batch: Batch, tag: u64) {
        self.0.post(CALLER, SESSION, MEMORY, batch, tag);
    }

    fn send(&mut self, bytes: Vec<u8>) {
        self.0.send(CALLER, NodeId::agent(MEMORY), bytes);
    }

    fn next(&mut self) -> Option<FabricEvent> {
        match self.0.step()? {
            (CALLER, SimEvent::Fabric(event)) => Some(event),
            (other, SimEvent::Fabric(FabricEvent::Received(bytes))) => {
                self.0.send(other, CALLER, bytes);
                None
            }
            _ => None,
        }
    }
}

/// On this machine, in real time.
struct MeasuredEnd {
    fabric: TcpFabric,
    start: Instant,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MeasuredEnd {
    fn new() -> std::io::Result<MeasuredEnd> {
        let agent = NodeId::agent(MEMORY);
        let mut fabric = TcpFabric::bind(CALLER, 0, LOOPBACK, TcpOptions::default())?;
        let mut memory = TcpFabric::bind(agent, 1, LOOPBACK, TcpOptions::default())?;
        memory.export(0, vec![0; REGION_BYTES]);
        fabric.meet(agent, memory.address()?, 1);
        memory.meet(CALLER, fabric.address()?, 0);
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = hedgerow_device::spawn("pool-verbs", move || {
            while !is_over.load(Ordering::Acquire) {
                while let Some(event) = memory.poll() {
                    if let FabricEvent::Received(bytes) = event {
                        memory.send(CALLER, bytes);
                    }
                }
                memory.flush();
                memory.wait(STEP);
            }
        })?;
        Ok(MeasuredEnd { fabric, start: Instant::now(), stop, thread: Some(thread) })
    }
}

impl Drop for MeasuredEnd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // It fails where the thread panicked: then nothing came back, and that was said.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl VerbEnd for MeasuredEnd {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn post(&mut self, batch: Batch, tag: u64) {
        self.fabric.post(SESSION, MEMORY, batch, tag);
    }

    fn send(&mut self, bytes: Vec<u8>) {
        self.fabric.send(NodeId::agent(MEMORY), bytes);
    }

    fn next(&mut self) -> Option<FabricEvent> {
        let next = self.fabric.poll();
        if next.is_none() {
            self.fabric.flush();
            self.fabric.wait(STEP);
        }
        next
    }
}

/// One verb on one fabric.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct VerbFigures {
    /// `modelled` or `measured`.
    kind: &'static str,
    verb: String,
    depth: u64,
    calls_per_s: f64,
    latencies: PoolLatencies,
    /// Of all threads of this process; none where nothing was measured.
    cpu_us_per_call: Option<f64>,
}

/// Carries a verb out so many times, so many of them at a time.
fn carry_out(
    end: &mut dyn VerbEnd,
    verb: Verb,
    (depth, count): (u64, u64),
) -> Result<(f64, Histogram<u64>), String> {
    let (mut latencies, mut under_way) = (latency_histogram(), BTreeMap::new());
    let (start, mut begun, patience) = (end.now_ns(), 0, Instant::now());
    let failed = |what: &str| format!("{}: {what}", verb.name());
    while latencies.len() < count {
        while begun < count && (under_way.len() as u64) < depth {
            under_way.insert(begun, end.now_ns());
            match verb {
                Verb::Datagram(bytes) => {
                    let mut datagram = vec![7; bytes];
                    datagram[..8].copy_from_slice(&begun.to_le_bytes());
                    end.send(datagram);
                }
                _ => end.post(verb.batch(begun % depth), begun),
            }
            begun += 1;
        }
        let tag = match end.next() {
            Some(FabricEvent::Done(tag, Ok(results))) if verb.is_answered_by(&results) => tag,
            Some(FabricEvent::Done(_, result)) => return Err(failed(&format!("{result:?}"))),
            Some(FabricEvent::Received(bytes)) => {
                bytes.first_chunk().map_or(u64::MAX, |tag| u64::from_le_bytes(*tag))
            }
            None if patience.elapsed() > PATIENCE => return Err(failed("nothing comes back")),
            None => continue,
        };
        let Some(began) = under_way.remove(&tag) else { return Err(failed("what came was not asked for")) };
        latencies.saturating_record(end.now_ns() - began);
    }
    Ok((count as f64 * 1e9 / (end.now_ns() - start).max(1) as f64, latencies))
}

fn figures(args: &PrimitivesArgs) -> Result<Vec<VerbFigures>, String> {
    let mut all = Vec::new();
    let mut measured = MeasuredEnd::new().map_err(|error| format!("a fabric can not begin: {error}"))?;
    for verb in Verb::ALL {
        for (kind, depth) in
            ["modelled", "measured"].into_iter().flat_map(|kind| [(kind, 1), (kind, args.depth)])
        {
            let mut modelled = ModelledEnd::new();
            let is_measured = kind == "measured";
            let end: &mut dyn VerbEnd = if is_measured { &mut measured } else { &mut modelled };
            // Connections are there, and caches warm.
            carry_out(end, verb, (depth, args.count / 10 + 1))?;
            let before = Usage::now()?.cpu;
            let (calls_per_s, latencies) = carry_out(end, verb, (depth, args.count))?;
            let cpu = (Usage::now()?.cpu - before).as_secs_f64() * 1e6 / args.count as f64;
            all.push(VerbFigures {
                kind,
                verb: verb.name(),
                depth,
                calls_per_s,
                latencies: PoolLatencies::new("all", &latencies),
                cpu_us_per_call: is_measured.then_some(cpu),
            });
        }
    }
    Ok(all)
}

fn section(args: &PrimitivesArgs, all: &[VerbFigures]) -> PoolSection {
    let us = |one: &VerbFigures, quantile| one.latencies.ns(quantile) as f64 / 1e3;
    let row = |one: &VerbFigures| {
        let cpu = one.cpu_us_per_call.map_or("-".into(), |us| format!("{us:.2}"));
        let [p50, p99, p999] = ["p50", "p99", "p99.9"].map(|quantile| latency(us(one, quantile)));
        let rate = count(one.calls_per_s);
        vec![one.verb.clone(), one.kind.to_owned(), one.depth.to_string(), rate, p50, p99, p999, cpu]
    };
    let table = FigureTable {
        title: "Verbs".into(),
        settings: format!("each {} times, alone and {} at a time", args.count, args.depth),
        head: vec!["verb", "kind", "under way", "a second", "p50", "p99", "p99.9", "cpu us/op"],
        rows: all.iter().map(row).collect(),
    };
    let names: Vec<String> = Verb::ALL.map(Verb::name).into();
    let series = |kind: &'static str, depth: u64, of: &dyn Fn(&VerbFigures) -> f64| {
        let own = all.iter().filter(|one| one.kind == kind && one.depth == depth);
        Series::over_names(kind, own.map(|one| Some(of(one))))
    };
    let chart = |title: String, y, depth: u64, of: &dyn Fn(&VerbFigures) -> f64| {
        let both = ["modelled", "measured"].map(|kind| series(kind, depth, of)).into();
        let chart = Chart::over_names(title, ("verb", names.clone()), y, (Shape::Dots, 1000), both);
        Chart { scale: Scale::Log, ..chart }
    };
    let charts = vec![
        chart("Latency, alone: p50".into(), ("latency", Unit::Microseconds), 1, &|one| us(one, "p50")),
        chart(format!("Rate, {} under way", args.depth), ("a second", Unit::Rate), args.depth, &|one| {
            one.calls_per_s
        }),
    ];
    let figure = Figure {
        title: "Verbs".into(),
        see: "What a card does away with is the way through two processors: over TCP an atomic costs what any message costs, by the model ten times a read.".into(),
        settings: "Modelled in virtual time, and measured over TCP on this machine, as each colour says".into(),
        paper: None,
        charts,
    };
    let finding = Finding { figures: vec![figure], tables: vec![table], ..Finding::default() };
    PoolSection { name: "primitives", title: "Verbs of both fabrics".into(), finding, notes: Vec::new() }
}

/// All verbs, carried out and told.
pub(super) fn report(args: &PrimitivesArgs) -> Result<PoolReport, String> {
    if args.count == 0 || args.depth == 0 || args.depth > 1_000 {
        return Err("--count must be 1 at least, and --depth 1 to 1000".into());
    }
    let neighbours = Neighbours::watch()?;
    let all = figures(args)?;
    let others = neighbours.processors()?;
    Ok(PoolReport {
        title: "Verbs of the pool's fabrics",
        kind: "modelled or measured, as each line says",
        about: vec![
            format!(
                "Modelled: one caller and one memory node in virtual time, by {:?}; nobody measured these costs.",
                NicModel::CONNECTX3
            ),
            format!(
                "Measured: two threads of one process over TCP on 127.0.0.1, on {}; others kept {others:.1} processors busy meanwhile. Processor time is that of both.",
                machine::machine()
            ),
        ],
        settings: json!({
            "suite": "pool primitives",
            "nic": format!("{:?}", NicModel::CONNECTX3),
            "machine": machine::machine(),
            "neighbours_cpus": others,
            "count": args.count,
            "depth": args.depth,
            "version": env!("CARGO_PKG_VERSION"),
        }),
        sections: vec![section(args, &all)],
        results: json!(all),
    })
}

/// Runs the benchmark.
pub(super) fn run(args: &PrimitivesArgs) -> Result<(), String> {
    args.output.check()?;
    report(args)?.tell(&args.output)
}
