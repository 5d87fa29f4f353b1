//! What a write costs in a batch, and what alone: ns for each of 100 updates of one field, and of 100 puts.
//!
//! `cargo run --release -p hedgerow --example batches -- [name=value ...]`: `rows` (1000000), `of` writes to a batch (100),
//! `rounds` (9), `writes` of each way to a round (200000), `threads` that do so at once (1), `dir` (memory if there is
//! none), `limit` of the store in MiB (4096), `way` (each; `alone` or `together`: this one only, for a profile),
//! `reuse` (no; `yes`: one batch, cleared each time). Rows are of 10 x 100 bytes.
//!
//! A round writes a batch, then as many alone, then as many alone and a batch, and so on: whatever the machine and the store's
//! background threads do meanwhile, they do to both. Of a round it takes the median batch and the median of as many alone, and all of
//! them together (with new segments and what gc takes); of the rounds the median, the least and the most.
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

    /// `of` writes, one by one or in a batch.
    fn write(&self, random: &mut Random, batch: &mut Batch, whole: bool, way: Way) {
        match self.reuses {
            true => batch.clear(),
            false => *batch = Batch::new(),
        }
        for i in 0..self.of {
            let key = key(random.below(self.rows));
            match (way, whole) {
                (Way::Together, true) => batch.put(self.table, &key, &self.row()).unwrap(),
                (Way::Together, false) => batch.update(self.table, &key, &self.field(i)).unwrap(),
                (Way::Alone, true) => self.table.put(&key, &self.row()).unwrap(),
                (Way::Alone, false) => self.table.update(&key, &self.field(i)).map(drop).unwrap(),
            }
        }
        if way == Way::Together {
            self.db.write(batch).unwrap();
        }
    }

    /// ns for each write, of every `of` writes, alone and together.
    fn round(&self, seed: u64, writes: u64, whole: bool, only: Option<Way>) -> [Vec<f64>; 2] {
        let (mut random, mut batch, mut ns) =
            (Random::from_seed(seed), Batch::new(), [Vec::new(), Vec::new()]);
        for turn in 0..writes / self.of {
            let ways = if turn % 2 == 0 { [Way::Together, Way::Alone] } else { [Way::Alone, Way::Together] };
            for way in ways.into_iter().filter(|way| only.is_none_or(|only| only == *way)) {
                let began = Instant::now();
                self.write(&mut random, &mut batch, whole, way);
                ns[way as usize].push(began.elapsed().as_nanos() as f64 / self.of as f64);
            }
        }
        ns
    }

    fn at_once(&self, threads: u64, seed: u64, writes: u64, whole: bool, only: Option<Way>) -> [Vec<f64>; 2] {
        std::thread::scope(|scope| {
            let run = |thread| scope.spawn(move || self.round(seed * 64 + thread, writes, whole, only));
            let all: Vec<_> = (0..threads).map(run).collect();
            let all: Vec<[Vec<f64>; 2]> = all.into_iter().map(|thread| thread.join().unwrap()).collect();
            [0, 1].map(|way| all.iter().flat_map(|ns: &[Vec<f64>; 2]| ns[way].iter().copied()).collect())
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    Together,
}

/// The median, the least, the most.
fn spread(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_by(f64::total_cmp);
    let at = |at: usize| of.get(at).copied().unwrap_or(f64::NAN);
    [at(of.len() / 2), at(0), at(of.len().saturating_sub(1))]
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

/// Prints one figure of the rounds, alone and together, and their ratio.
fn report(what: &str, rounds: &[[f64; 2]]) {
    let shown = |way: usize| {
        let [median, least, most] = spread(rounds.iter().map(|round| round[way]).collect());
        format!("{median:>6.0} ns ({least:.0} to {most:.0})")
    };
    let [ratio, least, most] = spread(rounds.iter().map(|round| round[1] / round[0]).collect());
    println!("  {what:<8} alone {}, in a batch {}: {ratio:.2} ({least:.2} to {most:.2})", shown(0), shown(1));
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
    let only = args.text("way").map(|way| if way == "alone" { Way::Alone } else { Way::Together });
    for (what, whole) in [("updates of one field", false), ("puts", true)] {
        let (mut medians, mut means) = (Vec::new(), Vec::new());
        for seed in 0..args.number("rounds", 9) {
            let round = bench.at_once(threads, seed, writes, whole, only);
            means.push([0, 1].map(|way| mean(&round[way])));
            medians.push(round.map(|ns| spread(ns)[0]));
        }
        println!("{what}, {of} at a time, {threads} threads:");
        report("median", &medians);
        report("mean", &means);
    }
}
