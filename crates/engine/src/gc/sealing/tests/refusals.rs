//! A medium that refuses room for leaves, at each moment: the store goes on, and nothing is lost.

use hedgerow_device::{Fault, Refusal};

use super::*;
use crate::group::LeafExtents;
use crate::log::LeafWriter;

const KEYS: u64 = 5_000;
const EXTENT_BYTES: u64 = 256 << 10;

/// Of these an extent of leaves has a thousand.
fn long_key(n: u64) -> Vec<u8> {
    let mut random = Random::from_seed(n);
    (0..24).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

/// What the medium is about to refuse.
#[derive(Debug, Clone, Copy)]
enum Refused {
    /// Beyond so many extents more the disk is full.
    DiskBeyond(u64),
    Growth(Fault),
    Sync(Fault),
}

impl Refused {
    /// At the first such call, the second, and so on.
    fn each() -> Vec<Refused> {
        let mut each: Vec<Refused> = (0..9).map(Refused::DiskBeyond).collect();
        for (after, sticky) in (0..5).flat_map(|after| [(after, false), (after, true)]) {
            for refusal in [Refusal::Io, Refusal::NoSpace] {
                each.push(Refused::Growth(Fault { after, sticky, refusal }));
            }
        }
        each
    }

    /// Of a medium that has so many bytes now.
    fn begin(self, sim: &CrashSim, bytes: u64) {
        match self {
            Refused::DiskBeyond(extents) => sim.limit_disk(bytes + extents * EXTENT_BYTES),
            Refused::Growth(fault) => sim.fail_grows(fault),
            Refused::Sync(fault) => sim.fail_persists(fault),
        }
    }
}

/// Nothing is sealed but by hand.
fn large_index() -> Options {
    Options { index_bytes_max: 8 << 20, ..small_index() }
}

/// A store, and what it should have.
struct Store {
    sim: CrashSim,
    clock: Clock,
    db: Db,
    table: Table,
    model: BTreeMap<Vec<u8>, u64>,
}

impl Store {
    fn filled() -> Store {
        let (sim, clock) = (CrashSim::new(CrashModel::Pages, 32 << 20), Clock::manual(1_000));
        let db = Db::open_at(FastTier::simulated(&sim), large_index(), clock.clone()).unwrap();
        let table = table_of(&db);
        let mut store = Store { sim, clock, db, table, model: BTreeMap::new() };
        store.put_all(0..KEYS, 0);
        store
    }

    fn put_all(&mut self, keys: std::ops::Range<u64>, more: u64) {
        for n in keys {
            self.table.put(long_key(n).as_slice(), &row! { n: n + more }).unwrap();
            self.model.insert(long_key(n), n + more);
        }
    }

    fn bytes(&self) -> u64 {
        self.db.metrics().fast_tier_bytes
    }

    /// Takes what is free without a growth, but for what is held back.
    fn take_free_extents(&self) -> LeafWriter<'_> {
        self.sim.limit_disk(self.bytes());
        let mut taken = self.table.engine().log.leaf_writer(0);
        while taken.take().is_ok() {}
        self.refused_no_more();
        taken
    }

    /// The medium refuses nothing any more, and some time has passed.
    fn refused_no_more(&self) {
        self.sim.clear_faults();
        self.clock.advance_ms(60_000);
    }

    /// All rows are there, and all extents of leaves are those of groups.
    fn check(&self, when: &str) {
        check_rows(&self.db, &self.model, when);
        let (levels, log) = (&self.table.shared().levels, &self.table.engine().log);
        log.free_retired_leaves();
        let of_groups: usize = levels.groups().newest_first().map(|group| group.extents().len()).sum();
        assert_eq!(log.leaf_extents() as usize, of_groups, "{when}: extents that no group has");
    }

    /// It goes on as if nothing had been refused, and opens as it is, killed or closed.
    fn check_goes_on(mut self, when: &str) {
        self.refused_no_more();
        self.put_all(0..200, 10_000);
        self.put_all(KEYS..KEYS + 200, 10_000);
        for n in 200..300 {
            assert!(self.table.delete(long_key(n).as_slice()).unwrap());
            self.model.remove(&long_key(n));
        }
        let engine = self.table.engine();
        engine.seal_now(0);
        assert!(self.table.shared().levels.sealed_rows() == self.model.len() as u64, "{when}");
        assert!(self.table.shared().levels.groups().l0().is_empty(), "{when}");
        engine.seal_all_and_collect();
        self.check(when);
        let open = |sim: &CrashSim| Db::open_at(FastTier::simulated(sim), large_index(), self.clock.clone());
        check_rows(&open(&CrashSim::from_image(&self.sim.process_kill())).unwrap(), &self.model, when);
        drop(self.table);
        self.db.close().unwrap();
        check_rows(&open(&self.sim).unwrap(), &self.model, when);
    }
}

fn check_rows(db: &Db, model: &BTreeMap<Vec<u8>, u64>, when: &str) {
    let table = db.table("t").unwrap();
    let rows: BTreeMap<Vec<u8>, u64> = table
        .scan()
        .map(|row| row.map(|row| (row.key().to_vec(), row.get_as::<u64>("n").unwrap())).unwrap())
        .collect();
    assert!(rows == *model && table.len() == model.len() as u64, "{when}: a scan");
    let is_right = |(key, n): (&Vec<u8>, &u64)| {
        table.get_field(key.as_slice(), "n").unwrap().and_then(|found| found.borrow().as_u64()) == Some(*n)
    };
    assert!(model.iter().all(is_right), "{when}: a row");
    db.check_counts().unwrap();
}

#[test]
fn a_seal_for_which_there_is_no_room_loses_nothing() {
    let (mut whole, mut partial, mut failed) = (0, 0, 0);
    for refused in Refused::each() {
        let (store, when) = (Store::filled(), format!("{refused:?}"));
        refused.begin(&store.sim, store.bytes());
        let engine = store.table.engine();
        let alone = engine.gc.sealing.lock();
        match engine.seal_table(store.table.shared()) {
            Ok(KEYS) => whole += 1,
            Ok(sealed) => partial += u32::from(sealed > 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{when}");
                failed += 1;
            }
        }
        drop(alone);
        store.check(&when);
        store.check_goes_on(&when);
    }
    assert!(whole > 0 && partial > 1 && failed > 1, "{whole} whole, {partial} in part, {failed} failed");
}

#[test]
fn a_merge_of_groups_for_which_there_is_no_room_changes_nothing() {
    let (mut merged, mut not_merged, mut failed) = (0, 0, 0);
    for refused in Refused::each() {
        let (mut store, when) = (Store::filled(), format!("{refused:?}"));
        store.table.engine().seal_now(9);
        store.put_all(KEYS / 2..KEYS, 1);
        store.table.engine().seal_now(9);
        let taken = store.take_free_extents();
        refused.begin(&store.sim, store.bytes());
        let engine = store.table.engine();
        let alone = engine.gc.merging_groups.lock();
        let told = engine.merge_groups(store.table.shared());
        drop((alone, taken));
        let groups = store.table.shared().levels.groups().newest_first().count();
        match told {
            Ok(()) if groups == 1 => merged += 1,
            Ok(()) => not_merged += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{when}");
                failed += 1;
            }
        }
        assert!(groups == 1 || groups == 2, "{when}: {groups} groups");
        store.check(&when);
        store.check_goes_on(&when);
    }
    let told = format!("{merged} merged, {not_merged} for which there was no room, {failed} failed");
    assert!(merged > 0 && not_merged > 1 && failed > 1, "{told}");
}

/// Leaves are written by an opening, or taken over by it: it fails, or it does not; and the next one has everything.
#[test]
fn an_opening_that_is_refused_room_loses_nothing() {
    let syncs = (0..8).flat_map(|after| [false, true].map(|sticky| (after, sticky)));
    let syncs = syncs.map(|(after, sticky)| Refused::Sync(Fault { after, sticky, refusal: Refusal::Io }));
    let each: Vec<Refused> = Refused::each().into_iter().chain(syncs).collect();
    for is_closed in [false, true] {
        let store = Store::filled();
        assert_eq!(store.table.engine().seal_now(9), KEYS);
        let Store { sim, clock, db, table, model } = store;
        let killed = sim.process_kill();
        drop(table);
        db.close().unwrap();
        let image = if is_closed { sim.process_kill() } else { killed };
        let (mut opened, mut sealed, mut refused_it) = (0, 0, 0);
        for refused in &each {
            let when = format!("closed: {is_closed}, {refused:?}");
            let sim = CrashSim::from_image(&image);
            let small = || Options { index_bytes_max: 256 << 10, ..small_index() };
            let open = || Db::open_at(FastTier::simulated(&sim), small(), clock.clone());
            refused.begin(&sim, image.bytes());
            match open() {
                Ok(db) => {
                    check_rows(&db, &model, &when);
                    sealed += u32::from(db.table("t").unwrap().shared().levels.has_groups());
                    opened += 1;
                    // What is stored when it is closed may be refused, too.
                    drop(db.close());
                }
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Full), "{when}: {error}");
                    refused_it += 1;
                }
            }
            sim.clear_faults();
            clock.advance_ms(60_000);
            let db = open().unwrap_or_else(|error| panic!("{when}: {error}"));
            check_rows(&db, &model, &when);
            let table = db.table("t").unwrap();
            table.put(b"anew", &row! { n: 1u64 }).unwrap();
            table.engine().seal_now(0);
            assert_eq!(table.len(), KEYS + 1, "{when}");
            db.check_counts().unwrap();
        }
        let told = format!("{opened} were opened, {sealed} with groups, {refused_it} were not");
        assert!(opened > 5 && sealed > 5 && refused_it > 1, "closed: {is_closed}: {told}");
    }
}
