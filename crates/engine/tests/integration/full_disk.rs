//! A disk that is full, with no limit set: reads, deletes and overwrites go on.

use hedgerow::{Db, Durability, ErrorKind, Options, Schema, Table, Value};
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Random};
use hedgerow_sim::{eventually, skip};

const DISK: u64 = 64 << 20;

fn options(durability: Durability) -> Options {
    Options { segment_bytes: 1 << 20, recovery_threads: 1, durability, ..Options::default() }
}

fn modes() -> [Durability; 3] {
    [Durability::Immediate, Durability::Interval(std::time::Duration::from_millis(50)), Durability::Process]
}

fn open(sim: &CrashSim, durability: Durability) -> Db {
    Db::open_at(FastTier::simulated(sim), options(durability), Clock::system()).unwrap()
}

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// A row that says which it is, and its version.
fn put(flat: &Table, i: u64, version: u64, bytes: usize) -> hedgerow::Result<()> {
    let mut value = vec![(i as u8) ^ (version as u8); bytes];
    value[..8].copy_from_slice(&i.to_le_bytes());
    value[8..16].copy_from_slice(&version.to_le_bytes());
    flat.put(&key(i), &[("value", Value::Bytes(&value))])
}

/// The version of the row, which is whole.
fn version(flat: &Table, i: u64) -> Option<u64> {
    let row = flat.get(&key(i)).unwrap()?;
    let value = row.get("value").unwrap().as_bytes().unwrap().to_vec();
    let version = u64::from_le_bytes(value[8..16].try_into().unwrap());
    assert_eq!(value[..8], i.to_le_bytes());
    assert!(value[16..].iter().all(|&b| b == (i as u8) ^ (version as u8)));
    Some(version)
}

/// Puts rows until one is refused; how many there are, and what the refusal said.
fn fill(flat: &Table, bytes: usize) -> (u64, hedgerow::Error) {
    for i in 0.. {
        if let Err(error) = put(flat, i, 0, bytes) {
            return (i, error);
        }
    }
    unreachable!("there is an end to every disk")
}

/// Deletes every other row of `steps`, overwrites the others; panics at the first that is refused.
fn delete_and_overwrite(flat: &Table, steps: std::ops::Range<u64>, rows: u64, bytes: usize) {
    let mut random = Random::from_seed(steps.start);
    for step in steps {
        if step % 5 == 0 {
            let i = random.next_u64() % rows;
            flat.delete(&key(i)).unwrap_or_else(|error| panic!("step {step}: {error}"));
        } else {
            let i = random.next_u64() % rows;
            if version(flat, i).is_some() {
                put(flat, i, step, bytes).unwrap_or_else(|error| panic!("step {step}: {error}"));
            }
        }
    }
}

#[test]
fn deletes_and_overwrites_go_on_when_the_disk_is_full() {
    for durability in modes() {
        let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
        sim.limit_disk(DISK);
        sim.limit_log(1 << 20);
        let db = open(&sim, durability);
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        let (rows, full) = fill(&flat, 4_000);
        assert_eq!(full.kind(), ErrorKind::Full);
        assert!(full.message().contains("the disk is full"), "{full}");
        assert!(rows * 4_000 > DISK / 2, "{rows} rows of 4,000 bytes on a disk of {DISK}");
        delete_and_overwrite(&flat, 0..10_000, rows, 4_000);
        assert!((0..rows).all(|i| version(&flat, i).is_none_or(|version| version < 10_000)));
    }
}

#[test]
fn a_store_killed_while_the_disk_is_full_goes_on() {
    for durability in modes() {
        let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
        sim.limit_disk(DISK);
        let db = open(&sim, durability);
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        let (rows, _) = fill(&flat, 4_000);
        let mut killed = CrashSim::from_image(&sim.process_kill());
        drop(db);
        for round in 0..3 {
            killed.limit_disk(DISK);
            let db = open(&killed, durability);
            let flat = db.table("flat").unwrap();
            assert!(!flat.is_empty());
            delete_and_overwrite(&flat, round * 1_000 + 1..round * 1_000 + 1_000, rows, 4_000);
            let next = CrashSim::from_image(&killed.process_kill());
            drop(db);
            killed = next;
        }
    }
}

/// Others have filled the disk, and the file has blocks for twice its rows: these are room, for whoever opens the store as for who had it open.
#[test]
fn blocks_of_free_segments_are_room_after_an_opening() {
    let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
    sim.limit_disk(DISK);
    let options = || Options { background: false, ..options(Durability::Process) };
    let db = Db::open_on(FastTier::simulated(&sim), options()).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let (rows, _) = fill(&flat, 4_000);
    flat.clear().unwrap();
    for _ in 0..100 {
        db.collect().unwrap();
    }
    db.persist().unwrap();
    let (image, taken) = (sim.process_kill(), db.metrics().fast_tier_bytes);
    let killed = CrashSim::from_image(&image);
    killed.limit_disk(taken);
    let db = Db::open_on(FastTier::simulated(&killed), options()).unwrap();
    let (again, full) = fill(&db.table("flat").unwrap(), 4_000);
    assert_eq!(full.kind(), ErrorKind::Full);
    assert!(again * 10 > rows * 9, "{rows} rows fitted, and after a kill {again}");
}

/// A quota, say: nobody knows how much room there is before it is refused.
#[test]
fn a_growth_refused_out_of_the_blue_is_a_full_disk() {
    let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
    // The root's blocks are had by the first few.
    sim.fail_grow_after(12);
    let db = open(&sim, Durability::Process);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let (rows, full) = fill(&flat, 4_000);
    assert_eq!(full.kind(), ErrorKind::Full);
    assert!(full.message().contains("No space left on device (os error 28)"), "{full}");
    (0..rows).filter(|i| i % 4 == 0).for_each(|i| assert!(flat.delete(&key(i)).unwrap()));
    delete_and_overwrite(&flat, 0..2_000, rows, 4_000);
    (0..rows).for_each(|i| assert!(flat.delete(&key(i)).is_ok()));
}

/// Room that comes back, because somebody else frees some or the disk is made larger, is used.
#[test]
fn a_disk_that_is_made_larger_is_used() {
    let sim = CrashSim::new(CrashModel::Pages, 1 << 40);
    sim.limit_disk(DISK / 4);
    let db = open(&sim, Durability::Process);
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    let (rows, _) = fill(&flat, 4_000);
    sim.limit_disk(DISK);
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    (rows..2 * rows).for_each(|i| put(&flat, i, 0, 4_000).unwrap());
}

/// Waits until the file takes less than `bytes` of the disk.
fn until_it_takes(file: &std::path::Path, bytes: u64) {
    use std::os::unix::fs::MetadataExt;
    eventually("blocks are given back", || std::fs::metadata(file).unwrap().blocks() * 512 < bytes);
}

/// Blocks that were given back are had again, or refused, before anything is stored there; the simulated disk panics at a
/// store without them.
#[test]
fn what_a_full_disk_gave_back_is_taken_again() {
    for model in [CrashModel::Pages, CrashModel::CacheLines] {
        let sim = CrashSim::new(model, 1 << 40);
        sim.limit_disk(DISK / 2);
        sim.limit_log(1 << 20);
        let tier = || FastTier::simulated(&sim);
        let db = Db::open_at(tier(), options(Durability::Process), Clock::system()).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        let mut rows = Vec::new();
        for _ in 0..2 {
            rows.push(fill(&flat, 4_000).0);
            flat.clear().unwrap();
            eventually("blocks are given back", || db.metrics().fast_tier_allocated_bytes <= DISK / 6);
        }
        // Somebody else took what was given back.
        sim.limit_disk(db.metrics().fast_tier_allocated_bytes + (2 << 20));
        // Gc may be at work on what was cleared still.
        let mut filled = 0;
        eventually("there is room for a row", || {
            filled = fill(&flat, 4_000).0;
            filled > 0
        });
        rows.push(filled);
        assert!(rows[1] * 10 > rows[0] * 9 && rows[2] < rows[0] / 2 && rows[2] > 0, "{rows:?}");
        (0..rows[2]).for_each(|i| assert!(flat.delete(&key(i)).unwrap()));
    }
}

/// Where a test that started itself anew finds its store.
pub(crate) const DIRECTORY: &str = "HEDGEROW_SMALL_DISK";

/// Runs the test `name` in a process of its own, by `wrapper`, with a store in `directory`. False if the machine does not
/// let `wrapper` do what it is there for.
pub(crate) fn again(name: &str, wrapper: &[&str], directory: &std::path::Path) -> bool {
    let run = |program: &[&std::ffi::OsStr]| {
        let mut command = std::process::Command::new(wrapper[0]);
        command.args(&wrapper[1..]).args(program).env(DIRECTORY, directory);
        command.output().is_ok_and(|output| {
            if !output.status.success() {
                eprintln!("{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
            }
            output.status.success()
        })
    };
    if !run(&["true".as_ref()]) {
        return false;
    }
    let test = std::env::current_exe().unwrap();
    assert!(run(&[test.as_os_str(), "--exact".as_ref(), name.as_ref(), "--nocapture".as_ref()]), "{name}");
    true
}

fn full_and_back(directory: &std::path::Path, modes: &[Durability]) {
    for &durability in modes {
        let path = directory.join(format!("{durability:?}"));
        let db = Db::open_with(&path, options(durability)).unwrap();
        let flat = db.create_table("flat", Schema::flat()).unwrap();
        let (rows, full) = fill(&flat, 4_000);
        assert_eq!(full.kind(), ErrorKind::Full);
        assert!(full.message().contains("the disk is full"), "{full}");
        assert!(rows * 4_000 > DISK / 2, "{rows} rows of 4,000 bytes on a disk of {DISK}");
        delete_and_overwrite(&flat, 0..5_000, rows, 4_000);
        db.close().unwrap();
        drop(flat);
        let db = Db::open_with(&path, options(durability)).unwrap();
        let flat = db.table("flat").unwrap();
        delete_and_overwrite(&flat, 5_001..10_000, rows, 4_000);
        flat.clear().unwrap();
        until_it_takes(&path.join("fast"), DISK / 4);
        let (again, _) = fill(&flat, 4_000);
        assert!(again * 10 > rows * 9, "{rows} rows fitted, and now {again}");
        db.close().unwrap();
        drop(flat);
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn on_a_small_file_system() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return full_and_back(directory.as_ref(), &modes());
    }
    let directory = std::env::temp_dir().join(format!("hedgerow-small-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let script = format!("mount -t tmpfs -o size={DISK} none {} && exec \"$@\"", directory.display());
    let wrapper = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"];
    if !again("full_disk::on_a_small_file_system", &wrapper, &directory) {
        skip("this machine does not let a process mount a file system of its own");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn under_a_limit_of_file_size() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return full_and_back(directory.as_ref(), &[Durability::Process]);
    }
    let directory = std::env::temp_dir().join(format!("hedgerow-limited-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let limit = format!("--fsize={DISK}");
    if !again("full_disk::under_a_limit_of_file_size", &["prlimit", &limit], &directory) {
        skip("there is no prlimit");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
