//! Small set-ups in which clients have caches, and a proxy grants pairs to them, every order of which is tried.

use super::asked::{Ask, If};
use super::explored::{all_orders, some_history_is_wrong, twin, with_key};
use super::world::Setup;
use Ask::{Delete, Get, Put};
use If::{Any, Same};

/// The last client is the proxy; all have caches.
fn cached(programs: Vec<Vec<Ask>>) -> Setup {
    let proxy = Some(programs.len() as u16 - 1);
    let before = with_key(programs.len() as u16);
    Setup { proxy, early_ticks: 0, cached_keys: 4, ..Setup::new(before, programs) }
}

fn a_reader_and_a_writer() -> Setup {
    cached(vec![vec![Put(0, 10, Any)], vec![Get(0), Get(0)], vec![]])
}

#[test]
fn a_cache_beside_a_put() {
    all_orders("cache", a_reader_and_a_writer(), 10);
}

/// No value is kept: what is granted is read where it is.
#[test]
fn a_granted_address_beside_a_put() {
    all_orders("address", Setup { cached_bytes: 0, ..a_reader_and_a_writer() }, 10);
}

#[test]
fn without_waiting_for_caches_a_cache_says_what_was() {
    let mut setup = a_reader_and_a_writer();
    setup.repairs.invalidate = false;
    some_history_is_wrong("waiting for caches", setup);
}

#[test]
fn without_a_lock_on_grants_a_cache_says_what_was() {
    let mut setup = a_reader_and_a_writer();
    setup.repairs.grant_unlocked = false;
    some_history_is_wrong("granting nothing while a slot changes", setup);
}

#[test]
fn without_taint_what_was_on_its_way_comes_into_the_cache() {
    let mut setup = a_reader_and_a_writer();
    setup.repairs.taint = false;
    some_history_is_wrong("the taint", setup);
}

/// The reader is taken for dead and is not; nobody tells it. The proxy writes.
fn a_suspected_reader() -> Setup {
    Setup { suspects: vec![0], ..cached(vec![vec![Get(0), Get(0)], vec![Put(0, 10, Any)]]) }
}

#[test]
fn a_reader_is_suspected_at_every_point_of_a_put() {
    all_orders("reader suspected", a_suspected_reader(), 10);
}

#[test]
fn without_leases_a_suspected_reader_says_what_was() {
    let mut setup = a_suspected_reader();
    setup.repairs.lease = false;
    some_history_is_wrong("the lease of caches", setup);
}

#[test]
fn a_proxy_crashes_with_pairs_granted() {
    let setup = Setup { crashes: vec![2], ..a_reader_and_a_writer() };
    all_orders("proxy crashes", setup, 10);
}

#[test]
fn a_reader_crashes_with_a_pair_granted() {
    all_orders("reader crashes", Setup { crashes: vec![1], ..a_reader_and_a_writer() }, 10);
}

#[test]
fn the_proxy_has_a_cache_of_its_own() {
    all_orders("own", cached(vec![vec![Put(0, 10, Any)], vec![Get(0), Get(0)]]), 10);
}

#[test]
fn writers_that_know_the_slot() {
    all_orders(
        "places",
        cached(vec![vec![Get(0), Put(0, 10, Any)], vec![Get(0), Put(0, 11, Any)], vec![]]),
        10,
    );
}

#[test]
fn conditions_on_a_cached_version() {
    let programs = vec![vec![Get(0), Put(0, 10, Same)], vec![Get(0), Put(0, 11, Same)], vec![]];
    all_orders("same", cached(programs), 10);
}

/// The slot that was seen has another key of the same fingerprint by then.
#[test]
fn the_slot_that_is_known_is_another_keys() {
    let programs = vec![vec![Get(0), Put(0, 10, Any)], vec![Delete(0, Any), Put(twin(), 11, Any)], vec![]];
    all_orders("another key", cached(programs), 10);
}

/// Read so often that the writer keeps what it wrote, while another one writes.
#[test]
fn a_writer_keeps_what_it_wrote() {
    let mut programs = vec![vec![Get(0); 6], vec![Put(0, 11, Any)]];
    programs[0].extend([Put(0, 10, Any), Get(0)]);
    all_orders("kept", cached(programs), 10);
}
