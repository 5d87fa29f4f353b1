//! Crashes of stores that have hardly any room left: gc is at work all the time, and what a change needs may be refused.

use std::ops::Range;

use hedgerow::{Db, Durability, ErrorKind, Options, Schema, Table, Type, Value};
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Image, Random, Survivors};
use hedgerow_sim::{FORMATS, rounds};

const ROWS: u64 = 16_000;
const FIELDS: usize = 10;
const NAMES: [&str; FIELDS] = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9"];
/// Of a row with its key and checksums.
const RECORD_BYTES: u64 = 1_200;
/// The limit: a quarter more than the records.
const LIMIT: u64 = (ROWS * RECORD_BYTES * 5 / 4).next_multiple_of(FORMATS[0].segment_bytes);
/// All fields of a row that no update has touched.
const AT_FIRST: u32 = 0;

fn options(durability: Durability) -> Options {
    Options {
        durability,
        segment_bytes: FORMATS[0].segment_bytes,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 64 << 20,
        ..Options::default()
    }
}

fn open(sim: &CrashSim, durability: Durability) -> Db {
    Db::open_at(FastTier::simulated(sim), options(durability), Clock::manual(1_000)).unwrap()
}

/// What a field holds once update `number` has written it.
fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(25)
}

/// A store at its limit, of which each update writes its number, from 1 on, into one field of one row.
struct Tight {
    sim: CrashSim,
    durability: Durability,
    /// By row and field, rising: the updates that wrote it.
    updates: Vec<[Vec<u32>; FIELDS]>,
    /// By update: the medium's position when it had returned, and how many were durable by then.
    returned: Vec<(u64, u32)>,
    /// Positions between which gc was at work.
    collections: Vec<Range<u64>>,
}

/// Updates a field of any row, collecting when there is no room: then there must be something to collect.
fn update(
    db: &Db,
    table: &Table,
    (row, field, number): (u64, usize, u32),
    mut collected: impl FnMut(&Db) -> bool,
) {
    let value = value(number);
    while let Err(error) = table.update(&row.to_be_bytes(), &[(NAMES[field], Value::Bytes(&value))]) {
        assert_eq!(error.kind(), ErrorKind::Full, "update {number}: {error}");
        // What one round sets free may be had with the next.
        assert!((0..4).any(|_| collected(db)), "update {number}: {error}, and nothing to collect");
    }
}

impl Tight {
    fn run(model: CrashModel, durability: Durability, count: u32) -> Tight {
        let sim = CrashSim::new(model, LIMIT);
        let db = open(&sim, durability);
        let schema = NAMES.iter().fold(Schema::new(), |schema, name| schema.field(*name, Type::Bytes));
        let table = db.create_table("t", schema).unwrap();
        let first = value(AT_FIRST);
        let fields = NAMES.map(|name| (name, Value::Bytes(&first)));
        (0..ROWS).for_each(|row| table.put(&row.to_be_bytes(), &fields).unwrap());
        db.persist().unwrap();
        let live = db.metrics().live_bytes;
        assert!(live * 6 / 5 < LIMIT && LIMIT < live * 4 / 3, "{live} bytes of records in {LIMIT}");
        let mut tight = Tight {
            sim: sim.clone(),
            durability,
            updates: vec![Default::default(); ROWS as usize],
            returned: vec![(sim.ops(), 0)],
            collections: Vec::new(),
        };
        let (mut random, mut durable) = (Random::from_seed(7), 0);
        for number in 1..=count {
            let (row, field) = (random.below(ROWS), random.below(FIELDS as u64) as usize);
            update(&db, &table, (row, field, number), |db| {
                let begin = sim.ops();
                if db.collect().unwrap() == 0 {
                    return false;
                }
                // Nothing is freed before all is durable.
                durable = number - 1;
                tight.collections.push(begin..sim.ops());
                true
            });
            tight.updates[row as usize][field].push(number);
            if durability == Durability::Immediate {
                durable = number;
            }
            tight.returned.push((sim.ops(), durable));
        }
        tight
    }

    /// Opens what a crash left: there is one number up to which all updates are there, and none above it. Then the store goes on.
    fn recover(&self, image: &Image, random: &mut Random) {
        let place = image.op_index;
        let returned = self.returned.partition_point(|(end, _)| *end <= place) - 1;
        let lowest = if image.same_boot { returned as u32 } else { self.returned[returned].1 };
        let context = format!("{:?} at {place}, after {returned} updates", image.survivors);
        let sim = CrashSim::from_image(image);
        let db = Db::open_at(FastTier::simulated(&sim), options(self.durability), Clock::manual(1_000));
        let db = db.unwrap_or_else(|error| panic!("{context}: {error}"));
        let table = db.table("t").unwrap();
        let found = read(&table, &context);
        let last = found.iter().flatten().copied().max().unwrap_or_default();
        assert!(
            (lowest..=returned as u32 + 1).contains(&last),
            "{context}: the last update there is {last}, and {lowest} were durable"
        );
        for (row, (found, updates)) in found.iter().zip(&self.updates).enumerate() {
            for (field, (found, updates)) in found.iter().zip(updates).enumerate() {
                let through = updates.partition_point(|number| *number <= last);
                let expected = through.checked_sub(1).map_or(AT_FIRST, |newest| updates[newest]);
                assert_eq!(*found, expected, "{context}: row {row}, field {field}, of {last} updates");
            }
        }
        db.check_counts().unwrap_or_else(|error| panic!("{context}: {error}"));
        go_on(db, table, found, random);
        let again = read(&open(&sim, self.durability).table("t").unwrap(), &context);
        assert!(again.iter().flatten().any(|number| *number > 1 << 20), "{context}: what came later is gone");
    }
}

/// By row and field, which update wrote what is there.
fn read(table: &Table, context: &str) -> Vec<[u32; FIELDS]> {
    let rows: Vec<[u32; FIELDS]> = (0..ROWS)
        .map(|row| {
            let found = table.get(&row.to_be_bytes()).unwrap_or_else(|error| panic!("{context}: {error}"));
            let found = found.unwrap_or_else(|| panic!("{context}: row {row} is lost"));
            NAMES.map(|name| {
                let bytes = found.get(name).unwrap().as_bytes().unwrap();
                let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
                assert!(bytes == value(number), "{context}: row {row}, {name}: a value of two versions");
                number
            })
        })
        .collect();
    assert_eq!(table.len(), ROWS, "{context}");
    rows
}

/// The store takes as many updates as it must collect for, closes, and has them.
fn go_on(db: Db, table: Table, mut found: Vec<[u32; FIELDS]>, random: &mut Random) {
    for number in (1 << 20)..(1 << 20) + 600 {
        let (row, field) = (random.below(ROWS), random.below(FIELDS as u64) as usize);
        update(&db, &table, (row, field, number), |db| db.collect().unwrap() > 0);
        found[row as usize][field] = number;
    }
    assert!(read(&table, "going on") == found, "what was written after the crash is not there");
    db.close().unwrap();
}

/// The limit is a quarter above the records, so gc is always at work; and the power is cut anywhere.
#[test]
fn a_tight_tier_survives() {
    let setups = [
        (CrashModel::Pages, Durability::Immediate),
        (CrashModel::CacheLines, Durability::Process),
        (CrashModel::Pages, Durability::Process),
        (CrashModel::CacheLines, Durability::Immediate),
    ];
    for (model, durability) in setups.into_iter().take(rounds(2, 4) as usize) {
        let tight = Tight::run(model, durability, 30_000);
        let (begin, end) = (tight.returned[0].0, tight.sim.ops());
        let within = tight.collections.len() as u64;
        assert!(within > 2, "gc was at work {within} times only");
        let mut random = Random::from_seed(8);
        // Three of four while gc is at work.
        let mut places: Vec<u64> = (0..rounds(6, 200))
            .map(|n| match n % 4 {
                0 => begin + random.below(end - begin),
                _ => {
                    let at = &tight.collections[random.below(within) as usize];
                    at.start + random.below(at.end - at.start)
                }
            })
            .collect();
        places.sort_unstable();
        let mut walk = tight.sim.walk();
        for (n, place) in places.into_iter().enumerate() {
            walk.seek(place);
            tight.recover(&walk.image(Survivors::EACH[n % Survivors::EACH.len()], place), &mut random);
            tight.recover(&walk.image(Survivors::Random, place), &mut random);
        }
        println!("{model:?}, {durability:?}: {} updates, {within} collections", tight.returned.len() - 1);
    }
}

/// What a table of many fields is called, and has.
fn wide_table(number: u64) -> (String, Schema) {
    let fields =
        (0..40).map(|field| format!("a field with a rather long name, number {field} of table {number}"));
    let schema = fields.fold(Schema::new(), |schema, name| schema.nullable(name, Type::Bytes));
    (format!("table {number}"), schema)
}

/// Tables made on a full disk, until the root gets no more room for them.
struct Refused {
    sim: CrashSim,
    durability: Durability,
    rows: u64,
    /// The medium's position when a table had been made.
    made: Vec<u64>,
}

impl Refused {
    fn run(model: CrashModel, durability: Durability) -> Refused {
        let sim = CrashSim::new(model, 1 << 40);
        sim.limit_disk(12 << 20);
        let db = open(&sim, durability);
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        let put = |row: u64| flat.put(&row.to_be_bytes(), &[("value", Value::Bytes(&[row as u8; 4_000]))]);
        let rows = (0..).find(|&row| put(row).is_err()).unwrap();
        // Tables are made in the room that is left over for others than new rows.
        (0..rows / 4).for_each(|row| assert!(flat.delete(&row.to_be_bytes()).unwrap()));
        db.persist().unwrap();
        let mut refused = Refused { sim: sim.clone(), durability, rows, made: Vec::new() };
        let mut refusals = 0;
        while refusals < 3 {
            let (name, schema) = wide_table(refused.made.len() as u64);
            match db.create_table(&name, schema) {
                Ok(_) => refused.made.push(sim.ops()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    refusals += 1;
                    assert!(db.table(&name).is_err(), "a table that was refused is there");
                    put(rows - 1).unwrap_or_else(|error| panic!("it was the log that had no room: {error}"));
                    // Freeing a segment stores the catalog that there is.
                    db.collect().unwrap();
                }
            }
            if refused.made.len() % 8 == 7 {
                db.collect().unwrap();
            }
        }
        db.persist().unwrap();
        refused
    }

    /// Opens what a crash left: tables in the order in which they were made, and none that was refused. A dropped one makes room.
    fn recover(&self, image: &Image) {
        let returned = self.made.partition_point(|end| *end <= image.op_index);
        let context = format!("{:?} at {}, after {returned} tables", image.survivors, image.op_index);
        let sim = CrashSim::from_image(image);
        let disk = 12 << 20;
        sim.limit_disk(disk);
        let db = Db::open_at(FastTier::simulated(&sim), options(self.durability), Clock::manual(1_000));
        let db = db.unwrap_or_else(|error| panic!("{context}: {error}"));
        let flat = db.table("flat").unwrap();
        let all_there = image.same_boot || self.durability == Durability::Immediate;
        let tables = db.table_names().len() - 1;
        let least = if all_there { returned } else { 0 };
        let most = (returned + 1).min(self.made.len());
        assert!((least..=most).contains(&tables), "{context}: {tables} tables");
        for number in 0..tables as u64 {
            let (name, schema) = wide_table(number);
            let table = db.create_table(&name, schema).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(table.schema().fields().len(), 40, "{context}: {name}");
        }
        assert_eq!(flat.len(), self.rows - self.rows / 4, "{context}");
        for row in self.rows / 4..self.rows {
            let found = flat.get(&row.to_be_bytes()).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(found.unwrap().get("value").unwrap(), Value::Bytes(&[row as u8; 4_000]), "{context}");
        }
        // Deletes go on, and what they free is had for rows.
        let keys = self.rows / 4..self.rows / 2;
        for row in keys.clone() {
            flat.delete(&row.to_be_bytes()).unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        db.collect().unwrap_or_else(|error| panic!("{context}: {error}"));
        flat.put(b"later", &[("value", Value::Bytes(b"v"))]).unwrap_or_else(|e| panic!("{context}: {e}"));
        sim.clear_faults();
        let (name, schema) = wide_table(self.made.len() as u64);
        db.create_table(&name, schema).unwrap_or_else(|error| panic!("{context}: with room: {error}"));
        drop(flat);
        db.close().unwrap();
        let db = open(&sim, self.durability);
        assert!(db.table(&name).is_ok() && db.table("flat").unwrap().exists(b"later").unwrap(), "{context}");
    }
}

/// The catalog's room in the root is refused by the disk: the change is, too, and whatever was changed before is there after a crash
/// at any point since.
#[test]
fn a_catalog_change_without_room_in_the_root_survives() {
    for (model, durability) in
        [(CrashModel::Pages, Durability::Immediate), (CrashModel::CacheLines, Durability::Process)]
    {
        let refused = Refused::run(model, durability);
        let (begin, end) = (refused.made[0], refused.sim.ops());
        let (mut random, count) = (Random::from_seed(3), rounds(16, 400));
        let mut places: Vec<u64> =
            (1..count).map(|_| begin + random.below(end - begin)).chain([end]).collect();
        places.sort_unstable();
        let mut walk = refused.sim.walk();
        for (n, place) in places.into_iter().enumerate() {
            walk.seek(place);
            refused.recover(&walk.image(Survivors::EACH[n % Survivors::EACH.len()], place));
            refused.recover(&walk.image(Survivors::Random, place));
        }
        println!("{model:?}, {durability:?}: {} tables on a full disk", refused.made.len());
    }
}
