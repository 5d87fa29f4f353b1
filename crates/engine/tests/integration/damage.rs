//! Files damaged in every way a disk, a file system or a hasty copy may: nothing wrong is read, nothing is lost in silence,
//! and repair brings back all that was not touched.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hedgerow::inspect::View;
use hedgerow::{
    Batch, Db, Durability, ErrorKind, Expiry, FAST_TIER_FILE, Options, RepairEvent, Row, Schema, Type, Value,
    repair, row,
};
use hedgerow_device::Random;

const ROOT: usize = 1 << 20;
/// Bytes of segments that are shorter than the root.
const SMALL: u64 = 256 << 10;
const PAGE: usize = 4096;
const TABLES: [&str; 3] = ["users", "open", "flat"];

/// By table and key: the row, as text.
type Rows = BTreeMap<(String, Vec<u8>), String>;

/// A directory that is removed at the end; in memory, where there is a file system for that.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let shared = Path::new("/dev/shm");
        let top = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
        let path = top.join(format!("hedgerow-damage-{name}-{}-{number}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn fast(&self) -> PathBuf {
        self.0.join(FAST_TIER_FILE)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Of a store whose segments are as long as the root, or to be opened.
fn options() -> Options {
    Options {
        segment_bytes: ROOT as u64,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 64 << 20,
        durability: Durability::Process,
        ..Options::default()
    }
}

/// A store as it lay on the disk, and what was in it.
struct Base {
    name: String,
    segment_bytes: usize,
    bytes: Vec<u8>,
    /// The same file some time before.
    earlier: Vec<u8>,
    witness: Vec<u8>,
    /// What had been persisted.
    saved: Rows,
    /// Rows that were inserted after that.
    late: Rows,
    /// Bytes of each row's records.
    places: BTreeMap<(String, Vec<u8>), Vec<Range<usize>>>,
}

fn text(row: &Row) -> String {
    let mut text = format!("{:?}", row.expires_at_ms());
    row.fields().filter(|(_, value)| !value.is_null()).for_each(|(name, value)| {
        text.push_str(&format!(" {name}={value:?}"));
    });
    text
}

fn write(db: &Db, random: &mut Random, rounds: u32, late: bool) {
    let [users, open, flat] = TABLES.map(|name| db.table(name).unwrap());
    for n in 0..rounds {
        let pick = if late { 1_000_000 + u64::from(n) } else { random.next_u64() % 400 };
        let key = format!("key:{pick}");
        let key = key.as_bytes();
        let value = vec![random.next_u64() as u8; (random.next_u64() % 3000) as usize];
        match if late { random.next_u64() % 3 } else { random.next_u64() % 12 } {
            0 => users.put(key, &row! { name: "Ada Lovelace", age: n }).unwrap(),
            1 => open.put(key, &row! { color: &value[..value.len() / 8], size: b"large" }).unwrap(),
            2 => flat.put(key, &[("value", Value::Bytes(&value))]).unwrap(),
            3 | 4 => drop(users.update_existing(key, &row! { age: 1000 + n }).unwrap()),
            5 => drop(open.update_existing(key, &row! { size: &n.to_be_bytes() }).unwrap()),
            6 => drop(users.delete(key).unwrap()),
            7 => drop(flat.delete(key).unwrap()),
            8 => drop(users.expire(key, Expiry::at_unix_ms(1 << 50)).unwrap()),
            9 => drop(users.expire_fields(key, &["mail"], Expiry::at_unix_ms(1 << 50)).unwrap()),
            10 => {
                let mut batch = Batch::new();
                batch.put(&users, key, &row! { name: "Bo", age: n, mail: "bo@example.org" }).unwrap();
                batch.put(&flat, key, &[("value", Value::Bytes(&value))]).unwrap();
                batch.delete(&open, key).unwrap();
                db.write(batch).unwrap();
            }
            _ => flat.put(key, &[("value", Value::Bytes(&value[..value.len() / 10]))]).unwrap(),
        }
    }
}

fn read(db: &Db) -> hedgerow::Result<Rows> {
    let mut rows = Rows::new();
    for name in TABLES {
        let Ok(table) = db.table(name) else { continue };
        for row in table.scan() {
            let row = row?;
            rows.insert((name.to_owned(), row.key().to_vec()), text(&row));
        }
    }
    Ok(rows)
}

impl Base {
    fn new(seed: u64, segment_bytes: u64, closed: bool) -> Base {
        let scratch = Scratch::new(&format!("base-{seed}"));
        let mut random = Random::from_seed(seed);
        let db = Db::open_with(&scratch.0, Options { segment_bytes, ..options() }).unwrap();
        let schema =
            Schema::new().field("name", Type::String).field("age", Type::U32).nullable("mail", Type::String);
        db.create_table("users", schema).unwrap();
        db.create_table("open", Schema::open()).unwrap();
        db.create_table("flat", Schema::flat()).unwrap();
        write(&db, &mut random, 3000, false);
        db.collect().unwrap();
        db.table("users").unwrap().add_field("city", Type::String).unwrap();
        db.persist().unwrap();
        let earlier = std::fs::read(scratch.fast()).unwrap();
        write(&db, &mut random, 2500, false);
        db.collect().unwrap();
        write(&db, &mut random, 500, false);
        db.persist().unwrap();
        let saved = read(&db).unwrap();
        let mut late = Rows::new();
        if !closed {
            write(&db, &mut random, 60, true);
            late = read(&db).unwrap();
            late.retain(|key, _| !saved.contains_key(key));
        }
        let db = if closed { db.close().map(|()| None).unwrap() } else { Some(db) };
        let bytes = std::fs::read(scratch.fast()).unwrap();
        drop(db);
        let witness = std::fs::read(scratch.0.join("fast.id")).unwrap();
        let end = if closed { "closed" } else { "killed" };
        let name = format!("seed {seed}, segments of {segment_bytes} bytes, {end}");
        let segment_bytes = segment_bytes as usize;
        let mut base =
            Base { name, segment_bytes, bytes, earlier, witness, saved, late, places: BTreeMap::new() };
        base.places = base.find_places();
        base
    }

    fn find_places(&self) -> BTreeMap<(String, Vec<u8>), Vec<Range<usize>>> {
        let scratch = self.spoiled("places", &self.bytes);
        let view = View::open(&scratch.0).unwrap();
        let tables: BTreeMap<u32, String> = view.tables().into_iter().map(|t| (t.id, t.name)).collect();
        let mut places: BTreeMap<_, Vec<Range<usize>>> = BTreeMap::new();
        for segment in view.segments() {
            let visit = |record: hedgerow::inspect::RecordInfo<'_>| {
                if let Some(name) = tables.get(&record.table) {
                    let start = record.offset as usize;
                    let key = (name.clone(), record.key.to_vec());
                    places.entry(key).or_default().push(start..start + record.bytes);
                }
                true
            };
            view.records(segment.extent, visit).unwrap();
        }
        places
    }

    /// A store with these bytes in place of its own.
    fn spoiled(&self, name: &str, bytes: &[u8]) -> Scratch {
        let scratch = Scratch::new(name);
        std::fs::write(scratch.fast(), bytes).unwrap();
        std::fs::write(scratch.0.join("fast.id"), &self.witness).unwrap();
        scratch
    }

    /// What is read must be what was written; returns the saved rows that are missing.
    fn missing<'b>(
        &'b self,
        found: &Rows,
        may_be_old: impl Fn(&(String, Vec<u8>)) -> bool,
    ) -> Vec<&'b (String, Vec<u8>)> {
        for (key, row) in found.iter().filter(|(key, _)| !may_be_old(key)) {
            let expected = self.saved.get(key).or_else(|| self.late.get(key));
            let shown = (&key.0, key.1.escape_ascii().to_string());
            assert!(expected.is_some(), "{shown:?} is there, and was not: {row}");
            assert_eq!(expected, Some(row), "{shown:?} is not what was written");
        }
        self.saved.keys().filter(|key| !found.contains_key(*key)).collect()
    }
}

/// What was done to a file: for the message, and the bytes that are not what they were.
struct Damage {
    what: String,
    touched: Vec<Range<usize>>,
}

/// A page that means something, most of the time.
fn page(base: &Base, random: &mut Random) -> usize {
    loop {
        let page = (random.next_u64() as usize % (base.bytes.len() / PAGE)) * PAGE;
        let is_used = base.bytes[page..page + PAGE].iter().any(|byte| *byte != 0);
        let is_first = page.is_multiple_of(base.segment_bytes);
        if is_first || is_used || random.next_u64().is_multiple_of(64) {
            return page;
        }
    }
}

fn damage(base: &Base, bytes: &mut Vec<u8>, random: &mut Random) -> Damage {
    let at = page(base, random);
    let done = |what: String, touched: Range<usize>| Damage { what, touched: vec![touched] };
    match random.next_u64() % 10 {
        0 | 1 => {
            let mut touched = Vec::new();
            for _ in 0..=random.next_u64() % 3 {
                let byte = at + random.next_u64() as usize % PAGE;
                bytes[byte] ^= 1 << (random.next_u64() % 8);
                touched.push(byte..byte + 1);
            }
            Damage { what: format!("bits flipped at {touched:?}"), touched }
        }
        2 => {
            let sector = at + 512 * (random.next_u64() as usize % 8);
            bytes[sector..sector + 512].fill(0);
            done(format!("a sector of zeros at {sector}"), sector..sector + 512)
        }
        3 => {
            bytes[at..at + PAGE].fill(0);
            done(format!("a page of zeros at {at}"), at..at + PAGE)
        }
        4 => {
            bytes[at..at + PAGE].iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
            done(format!("a page of noise at {at}"), at..at + PAGE)
        }
        5 => {
            let of_segment = (at / base.segment_bytes + 1) * base.segment_bytes;
            let end = (at + PAGE * (1 + random.next_u64() as usize % 64)).min(of_segment);
            bytes[at..end].fill(0);
            done(format!("zeros at {at}..{end}"), at..end)
        }
        6 => {
            let keep = match random.next_u64() % 4 {
                0 => at,
                1 => at / base.segment_bytes * base.segment_bytes,
                2 => random.next_u64() as usize % bytes.len(),
                _ => 0,
            };
            let whole = bytes.len();
            bytes.truncate(keep);
            done(format!("cut to {keep} bytes of {whole}"), keep..whole)
        }
        7 => {
            let other = page(base, random);
            let (one, two) = (bytes[at..at + PAGE].to_vec(), bytes[other..other + PAGE].to_vec());
            bytes[at..at + PAGE].copy_from_slice(&two);
            bytes[other..other + PAGE].copy_from_slice(&one);
            Damage {
                what: format!("pages swapped: {at} and {other}"),
                touched: vec![at..at + PAGE, other..other + PAGE],
            }
        }
        8 => {
            let other = page(base, random);
            bytes.copy_within(other..other + PAGE, at);
            done(format!("the page at {other} also at {at}"), at..at + PAGE)
        }
        _ => {
            let old = base.earlier.get(at..at + PAGE).map_or_else(|| vec![0; PAGE], <[u8]>::to_vec);
            bytes[at..at + PAGE].copy_from_slice(&old);
            done(format!("an old version of the page at {at}"), at..at + PAGE)
        }
    }
}

/// What became of damaged files.
#[derive(Debug, Default)]
struct Outcomes {
    told: u32,
    refused: u32,
    intact: u32,
    late_only: u32,
    repaired: u32,
    rows_lost: u64,
    rows_doubtful: u64,
}

fn look(base: &Base, bytes: &[u8], outcomes: &mut Outcomes) {
    let scratch = base.spoiled("look", bytes);
    let told = match View::open(&scratch.0).and_then(|view| view.check(|_| ())) {
        Ok(report) => !report.problems.is_empty(),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Version), "{error}");
            true
        }
    };
    outcomes.told += u32::from(told);
    assert!(std::fs::read(scratch.fast()).unwrap() == bytes, "check has written to the store");
    match Db::open_with(&scratch.0, options()).and_then(|db| read(&db)) {
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Version), "{error}");
            assert!(told, "refused, and check found nothing: {error}");
            outcomes.refused += 1;
        }
        Ok(found) => {
            let missing = base.missing(&found, |_| false);
            assert!(
                missing.is_empty() || told,
                "{} saved rows are missing, and check found nothing",
                missing.len()
            );
            match found.len() == base.saved.len() + base.late.len() {
                true => outcomes.intact += 1,
                false => outcomes.late_only += 1,
            }
        }
    }
}

fn mend(base: &Base, bytes: &[u8], damage: &Damage, outcomes: &mut Outcomes) {
    let scratch = base.spoiled("from", bytes);
    let target = Scratch::new("to");
    let (mut lost, mut doubtful, mut damaged) = (BTreeSet::new(), BTreeSet::new(), 0);
    let outcome = repair(&scratch.0, &target.0, |event| match event {
        RepairEvent::Lost { table, key, .. } => drop(lost.insert((table.to_owned(), key.to_vec()))),
        RepairEvent::Doubtful { table, key } => drop(doubtful.insert((table.to_owned(), key.to_vec()))),
        RepairEvent::Damaged(_) => damaged += 1,
        _ => {}
    });
    assert!(std::fs::read(scratch.fast()).unwrap() == bytes, "repair has written to the damaged store");
    let report = match outcome {
        Ok(report) => report,
        Err(error) => {
            let all_gone =
                damage.touched.iter().any(|touched| touched.start == 0 && touched.end > base.bytes.len() / 2);
            let is_short = bytes.len() <= ROOT;
            assert!(all_gone || is_short, "nothing was found: {error}");
            return;
        }
    };
    let found = read(&Db::open_with(&target.0, options()).unwrap()).unwrap();
    assert_eq!(report.rows, found.len() as u64);
    let missing = base.missing(&found, |key| doubtful.contains(key));
    for key in missing {
        let places = base.places.get(key).map_or(&[][..], Vec::as_slice);
        let overlaps = |a: &Range<usize>| damage.touched.iter().any(|b| a.start < b.end && b.start < a.end);
        let shown = (&key.0, key.1.escape_ascii().to_string());
        assert!(places.iter().any(overlaps), "{shown:?} was not touched, and is lost: {places:?}");
        assert!(lost.contains(key) || damaged > 0, "{shown:?} is lost, and that is not said");
        assert!(
            !report.is_complete(),
            "{shown:?} is lost, and the report says that all is there: {report:?}"
        );
    }
    assert!(damaged > 0 || lost.is_empty(), "rows are lost, but nothing is damaged");
    outcomes.repaired += 1;
    outcomes.rows_lost += lost.len() as u64;
    outcomes.rows_doubtful += doubtful.len() as u64;
}

/// One damage, by its number: what comes of looking at the file, and of repairing it.
fn damage_one(base: &Base, n: u64, mends: bool, outcomes: &mut Outcomes) {
    let mut random = Random::from_seed(0xDA_0000 + n);
    let mut bytes = base.bytes.clone();
    let damage = damage(base, &mut bytes, &mut random);
    let run = catch_unwind(AssertUnwindSafe(|| {
        look(base, &bytes, outcomes);
        if mends {
            mend(base, &bytes, &damage, outcomes);
        }
    }));
    if run.is_err() {
        panic!("damage {n} ({}): {}", base.name, damage.what);
    }
}

fn damage_many(count: u64, mended: u64) -> Outcomes {
    let bases: Vec<Base> = (0..4u64)
        .map(|seed| Base::new(100 + seed, [ROOT as u64, SMALL][seed as usize / 2], seed % 2 == 0))
        .collect();
    let mut outcomes = Outcomes::default();
    for n in 0..count {
        let base = &bases[n as usize % bases.len()];
        damage_one(base, n, n.is_multiple_of(count / mended), &mut outcomes);
    }
    outcomes
}

#[test]
fn nothing_is_lost_in_silence() {
    let outcomes = damage_many(hedgerow_sim::rounds(150, 3_000), hedgerow_sim::rounds(30, 300));
    println!("{outcomes:?}");
    assert!(outcomes.refused > 20 && outcomes.intact > 2 && outcomes.repaired > 20, "{outcomes:?}");
}

/// A page of whole records over another of the same segment, of records in the same places.
#[test]
fn a_page_in_the_place_of_another_is_found() {
    let mut outcomes = Outcomes::default();
    damage_one(&Base::new(102, SMALL, true), 2_810, true, &mut outcomes);
    assert_eq!((outcomes.told, outcomes.refused, outcomes.repaired), (1, 1, 1), "{outcomes:?}");
}

/// The sector of a segment's header in the place of another's, which then looks as if it had been freed since, or as if it were
/// another segment.
#[test]
fn a_header_in_the_place_of_another_is_found() {
    const SECTOR: usize = 512;
    let base = Base::new(102, SMALL, true);
    let starts = (ROOT..base.bytes.len()).step_by(base.segment_bytes);
    let headers: Vec<usize> = starts.filter(|&at| base.bytes[at..].starts_with(b"HDGSEG01")).collect();
    let (free, used): (Vec<usize>, Vec<usize>) = headers.iter().partition(|&&at| base.bytes[at + 36] == 0);
    assert!(free.len() > 2 && used.len() > 4, "{} free headers, {} used ones", free.len(), used.len());
    for (n, &at) in used.iter().enumerate() {
        for from in [free[n % free.len()], used[(n + 1) % used.len()]] {
            let mut bytes = base.bytes.clone();
            bytes.copy_within(from..from + SECTOR, at);
            let what = format!("the header at {from} also at {at}");
            let segment = at..at + base.segment_bytes;
            let damage = Damage { what, touched: vec![segment] };
            let mut outcomes = Outcomes::default();
            look(&base, &bytes, &mut outcomes);
            assert_eq!((outcomes.told, outcomes.refused), (1, 1), "{}: {outcomes:?}", damage.what);
            mend(&base, &bytes, &damage, &mut outcomes);
        }
    }
}
