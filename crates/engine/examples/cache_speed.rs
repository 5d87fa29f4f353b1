//! What the row cache gains, on emulated persistent memory: reads from the fast tier and from the cache, the hit ratio of a skewed
//! load under both policies, and how soon it is back after the hot spot has moved.
//!
//! `cargo run --release -p hedgerow --example cache_speed [rows]`
#![allow(clippy::print_stdout, clippy::disallowed_methods)]

use std::time::{Duration, Instant};

use hedgerow::{CacheMode, CachePolicy, Db, Durability, Options, Result, Schema, Table, Type, Value};
use hedgerow_device::{EmulatedBase, FastTier, FastTierOptions, PersistentMemoryModel, Random};

const FIELDS: usize = 10;
const FIELD_BYTES: u16 = 100;
const SKEW: f64 = 0.99;

fn key(n: u64) -> [u8; 24] {
    let mut key = *b"user00000000000000000000";
    let digits = format!("{:020}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    key[4..].copy_from_slice(digits.as_bytes());
    key
}

fn store(rows: u64, options: Options) -> Result<(Db, Table)> {
    let tier = FastTierOptions { bytes_max: rows * 4096, ..FastTierOptions::default() };
    let tier = FastTier::emulated(EmulatedBase::Dram, PersistentMemoryModel::optane(), &tier)?;
    let db = Db::open_on(tier, Options { durability: Durability::Process, ..options })?;
    let schema = (0..FIELDS).fold(Schema::new(), |schema, field| {
        schema.field(format!("field{field}"), Type::FixedBytes(FIELD_BYTES))
    });
    let table = db.create_table("rows", schema)?;
    let names: Vec<String> = (0..FIELDS).map(|field| format!("field{field}")).collect();
    for n in 0..rows {
        let value = [n as u8; FIELD_BYTES as usize];
        let fields: Vec<(&str, Value<'_>)> =
            names.iter().map(|name| (&**name, Value::Bytes(&value))).collect();
        table.put(&key(n), &fields)?;
    }
    Ok((db, table))
}

/// Rows by popularity, drawn ahead so that drawing is not timed.
fn zipfian(rows: u64, draws: usize) -> Vec<u64> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=rows)
        .map(|rank| {
            sum += (rank as f64).powf(-SKEW);
            sum
        })
        .collect();
    let mut random = Random::from_seed(7);
    let draw = |_| {
        let at = random.next_u64() as f64 / u64::MAX as f64 * sum;
        sums.partition_point(|&sum| sum < at) as u64
    };
    (0..draws).map(draw).collect()
}

/// Reads for a while, going on in `rows` from `next`; returns ns a read and the hit ratio.
fn run(
    (db, table): (&Db, &Table),
    rows: &[u64],
    next: &mut usize,
    shift: u64,
    whole: bool,
    time: Duration,
) -> Result<(f64, f64)> {
    let before = db.metrics();
    let field = table.field("field3")?;
    let (start, mut reads) = (Instant::now(), 0u64);
    let mut sum = 0u64;
    while start.elapsed() < time {
        for _ in 0..256 {
            let n = rows[*next % rows.len()];
            *next += 1;
            table.read(&key(n ^ shift), |row| {
                if whole {
                    return row
                        .for_each(|_, value| sum += u64::from(value.as_bytes().unwrap_or_default()[0]));
                }
                sum += u64::from(row.get(field)?.as_bytes().unwrap_or_default()[0]);
                Ok(())
            })?;
            reads += 1;
        }
    }
    std::hint::black_box(sum);
    let ns = start.elapsed().as_nanos() as f64 / reads as f64;
    let after = db.metrics();
    let (hits, misses) = (after.cache_hits - before.cache_hits, after.cache_misses - before.cache_misses);
    Ok((ns, hits as f64 / (hits + misses).max(1) as f64))
}

fn main() -> Result<()> {
    let rows: u64 = std::env::args().nth(1).and_then(|rows| rows.parse().ok()).unwrap_or(1 << 18);
    let second = Duration::from_secs(1);
    let variants = [
        ("off", Options { cache_mode: CacheMode::Off, ..Options::default() }),
        ("focus", Options::default()),
        ("lru", Options { cache_policy: CachePolicy::Lru, ..Options::default() }),
    ];
    let skewed = zipfian(rows, 1 << 20);
    let mut random = Random::from_seed(3);
    let hot: Vec<u64> = (0..1 << 18).map(|_| random.below(20_000)).collect();
    for (name, options) in variants {
        let (db, table) = store(rows, options)?;
        std::thread::sleep(second / 2);
        let (on, mut next) = ((&db, &table), 0);
        let metrics = db.metrics();
        println!(
            "{name}: active {}, fast tier / DRAM {} %",
            metrics.cache_active, metrics.cache_benefit_percent
        );
        for (what, keys) in [("20,000 rows", &hot), ("zipfian 0.99", &skewed)] {
            for whole in [true, false] {
                run(on, keys, &mut next, 0, whole, second)?;
                let (ns, ratio) = run(on, keys, &mut next, 0, whole, second)?;
                let part = if whole { "whole rows" } else { "one field" };
                println!("  {what}, {part}: {ns:.0} ns a read, hit ratio {ratio:.3}");
            }
        }
        // Other rows are the hot ones now.
        let course: Vec<String> = (0..20)
            .map(|_| run(on, &skewed, &mut next, rows / 2 + 12_345, true, second / 10))
            .map(|window| window.map(|(ns, ratio)| format!("{ratio:.2} ({ns:.0})")))
            .collect::<Result<_>>()?;
        println!("  hot spot moved, by 100 ms, hit ratio (ns): {}", course.join(" "));
        let m = db.metrics();
        println!(
            "  {} rows, {} admissions, {} evictions",
            m.cache_rows, m.cache_admissions, m.cache_evictions
        );
    }
    Ok(())
}
