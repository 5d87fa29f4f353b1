//! Keys as rows, on a store of which the test holds the clock.

use hedgerow::{Options, row};
use hedgerow_device::{FastTier, FastTierOptions};

use super::*;
use crate::serve::keyspace::FieldWrite;

fn open(clock: &Clock) -> TieredKeyspace {
    let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
    let db = Db::open_at(tier, Options { background: false, ..Options::new() }, clock.clone()).unwrap();
    TieredKeyspace::new(db, clock.clone()).unwrap()
}

fn set(keyspace: &mut TieredKeyspace, key: &[u8], expires_at_ms: Option<u64>) {
    let write = FieldWrite { name: b"f", text: b"v", expires_at_ms };
    keyspace.hash_set(0, key, std::iter::once(write)).unwrap();
}

/// Only a look at the shared table tells that a prefix has keys there; but not one for each write.
#[test]
fn a_prefix_that_stays_in_the_shared_table_is_not_looked_for_at_each_write() {
    let clock = Clock::manual(1_000);
    let db = open(&clock).db.clone();
    let shared = db.create_table("@overflow", Schema::open()).unwrap();
    shared.put(b"p:1", &row! { f: b"v".as_slice() }).unwrap();
    let mut keyspace = TieredKeyspace::new(db, clock.clone()).unwrap();
    let has_table = |keyspace: &TieredKeyspace, prefix: &[u8]| keyspace.table(0, prefix).is_ok();
    set(&mut keyspace, b"p:2", None);
    assert!(!has_table(&keyspace, b"p") && shared.exists(b"p:2").unwrap());
    // Behind the back of the server.
    [b"p:1", b"p:2"].into_iter().for_each(|key| assert!(shared.delete(key).unwrap()));
    set(&mut keyspace, b"p:3", None);
    assert!(!has_table(&keyspace, b"p"), "nobody looked");
    assert!(shared.delete(b"p:3").unwrap());
    clock.advance_ms(1_000);
    keyspace.refresh_time(Instant::now());
    set(&mut keyspace, b"p:4", None);
    assert!(has_table(&keyspace, b"p"), "it was looked for again");
    // Whoever deletes the last may have a table at once.
    shared.put(b"q:1", &row! { f: b"v".as_slice() }).unwrap();
    set(&mut keyspace, b"q:1", None);
    assert!(!has_table(&keyspace, b"q") && keyspace.delete(0, b"q:1").unwrap());
    set(&mut keyspace, b"q:1", None);
    assert!(has_table(&keyspace, b"q"));
}

/// What is known of fields that were to expire goes with their hashes.
#[test]
fn times_of_hashes_that_are_gone_are_forgotten() {
    let mut keyspace = open(&Clock::manual(1_000));
    for n in 0..10u64 {
        set(&mut keyspace, format!("t:{n}").as_bytes(), Some(50_000 + n));
        set(&mut keyspace, format!("u:{n}").as_bytes(), Some(50_000));
    }
    assert!(keyspace.delete(0, b"t:3").unwrap() && !keyspace.delete(0, b"t:3").unwrap());
    assert_eq!(keyspace.expiries.due_count(), 19);
    // What is staged may come to nothing.
    let staging = keyspace.begin();
    assert!(keyspace.delete(0, b"t:4").unwrap());
    keyspace.abandon(staging);
    assert_eq!((keyspace.expiries.due_count(), keyspace.exists(0, b"t:4").unwrap()), (19, true));
    assert!(keyspace.drop_table(0, b"t").unwrap());
    assert_eq!(keyspace.expiries.due_count(), 10);
    (0..10).for_each(|n| assert!(keyspace.delete(0, format!("u:{n}").as_bytes()).unwrap()));
    assert!(!keyspace.expiries.has_due());
}
