//! What a write costs in a batch, and what alone: ns for each of 100 updates of one field, and of 100 puts.
//!
//! `cargo run --release -p hedgerow --example batches -- [name=value ...]`: `rows` (1000000), `of` writes to a batch (100),
//! `rounds` (9) of each in turn, `writes` to a round (200000), `threads` that do so at once (1), `dir` (memory if there is
//! none), `limit` of the store in MiB (4096), `way`
//! (each; `alone` or `together`: this one only, for a profile),
//! `reuse` (no; `yes`: one batch, cleared each time). Rows are of 10 x 100 bytes. Per write the time that passed and the writer's own
//! time on a processor, which others at work do not lengthen: the median of the rounds, the least and the most.
#![allow(clippy::disallowed_methods, reason = "measures the machine as it is")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "shared/arguments.rs"]
mod arguments;
#[path = "shared/rows.rs"]
mod rows;

use std::time::Instant;

use arguments::Arguments;
use hedgerow::{Batch, Db, Durability, FieldId, Options, Table, Value};
use hedgerow_device::Random;
use rows::{FIELD_BYTES, FIELDS, key, make_table};

/// What is written, and how.
struct Bench<'a> {
    db: &'a Db,
    table: &'a Table,
    ids: &'a [FieldId],
    value: &'a [u8],
    rows: u64,
    of: u64,
    /// One batch is cleared and filled again, instead of a new one each time.
    reuses: bool,
}

impl Bench<'_> {
    fn row(&self) -> [(FieldId, Value<'_>); FIELDS] {
        std::array::from_fn(|field| (self.ids[field], Value::Bytes(self.value)))
    }

    fn field(&self, i: u64) -> [(FieldId, Value<'_>); 1] {
        [(self.ids[i as usize % FIELDS], Value::Bytes(self.value))]
    }

    /// ns for each of `writes`: passed, and on a processor.
    fn round(&self, seed: u64, writes: u64, whole: bool, together: bool) -> [f64; 2] {
        let mut random = Random::from_seed(seed);
        let (began, worked) = (Instant::now(), worked_ns());
        let mut batch = Batch::new();
        for _ in 0..writes / self.of {
            match self.reuses {
                true => batch.clear(),
                false => batch = Batch::new(),
            }
            for i in 0..self.of {
                let key = key(random.below(self.rows));
                match (together, whole) {
                    (true, true) => batch.put(self.table, &key, &self.row()).unwrap(),
                    (true, false) => batch.update(self.table, &key, &self.field(i)).unwrap(),
                    (false, true) => self.table.put(&key, &self.row()).unwrap(),
                    (false, false) => self.table.update(&key, &self.field(i)).map(drop).unwrap(),
                }
            }
            if together {
                self.db.write(&batch).unwrap();
            }
        }
        let ns = [began.elapsed().as_nanos() as f64, worked_ns() - worked];
        ns.map(|ns| ns / writes as f64)
    }

    fn at_once(&self, threads: u64, seed: u64, writes: u64, whole: bool, together: bool) -> [f64; 2] {
        std::thread::scope(|scope| {
            let run = |thread| scope.spawn(move || self.round(seed * 64 + thread, writes, whole, together));
            let all: Vec<_> = (0..threads).map(run).collect();
            let all: Vec<[f64; 2]> = all.into_iter().map(|thread| thread.join().unwrap()).collect();
            [0, 1].map(|of| all.iter().map(|ns| ns[of]).sum::<f64>() / threads as f64)
        })
    }
}

/// The calling thread's time on a processor so far, in ns.
fn worked_ns() -> f64 {
    // So that what it was given of the present slice is counted.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn median(mut ns: Vec<f64>) -> [f64; 3] {
    ns.sort_by(f64::total_cmp);
    let at = |at: usize| ns.get(at).copied().unwrap_or(f64::NAN);
    [at(ns.len() / 2), at(0), at(ns.len().saturating_sub(1))]
}

fn report(what: &str, rounds: &[[f64; 2]]) -> [f64; 2] {
    let [passed, worked] = [0, 1].map(|of| median(rounds.iter().map(|ns| ns[of]).collect()));
    println!(
        "{what:<16} {:>7.0} ns ({:.0} to {:.0}), on a processor {:>7.0} ns ({:.0} to {:.0})",
        passed[0], passed[1], passed[2], worked[0], worked[1], worked[2]
    );
    [passed[0], worked[0]]
}

fn main() {
    let args = Arguments::given();
    let bytes_max = args.number("limit", 4096) << 20;
    let options = Options { durability: Durability::Process, ..Options::default() };
    let db = args.make_store("batches", options, bytes_max);
    let (table, ids) = make_table(&db);
    let (rows, of, value) = (args.number("rows", 1_000_000), args.number("of", 100), [b'v'; FIELD_BYTES]);
    let reuses = args.text("reuse") == Some("yes");
    let bench = Bench { db: &db, table: &table, ids: &ids, value: &value, rows, of, reuses };
    (0..rows).for_each(|i| table.put(&key(i), &bench.row()).unwrap());
    let (writes, threads) = (args.number("writes", 200_000), args.number("threads", 1));
    for (what, whole) in [("updates of one field", false), ("puts", true)] {
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        for seed in 0..args.number("rounds", 9) {
            if args.text("way") != Some("together") {
                alone.push(bench.at_once(threads, 2 * seed, writes, whole, false));
            }
            if args.text("way") != Some("alone") {
                together.push(bench.at_once(threads, 2 * seed + 1, writes, whole, true));
            }
        }
        println!("{what}, {of} at a time, {threads} threads:");
        let alone = report("  one by one", &alone);
        let together = report("  in a batch", &together);
        println!("  ratio {:.2}, on a processor {:.2}", together[0] / alone[0], together[1] / alone[1]);
    }
}
