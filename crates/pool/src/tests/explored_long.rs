//! Small set-ups in which values are in parts, every order of which is tried.

use super::asked::{Ask, If};
use super::explored::{all_orders, some_history_is_wrong, some_order_is_wrong, with_memory};
use super::run::{LONG, value_bytes};
use super::world::{SMALL, Setup};
use crate::region::PoolLayout;
use Ask::{Delete, Get, Put};
use If::{Any, Same};

/// The values of two parts, where a part has one unit.
fn in_two_parts(number: usize) -> u64 {
    (2..).filter(|&value| (33..=64).contains(&value_bytes(value).len())).nth(number).unwrap()
}

/// Key 0 is there, in client 0's memory, and in two parts.
fn long(programs: Vec<Vec<Ask>>) -> Setup {
    let mut before = with_memory(programs.len() as u16);
    before.push((0, Put(0, in_two_parts(0), Any)));
    Setup { part_units: 1, early_ticks: 0, ..Setup::new(before, programs) }
}

fn put(number: usize) -> Ask {
    Put(0, in_two_parts(number), Any)
}

#[test]
fn two_writers_and_a_reader() {
    all_orders("writers", long(vec![vec![put(1)], vec![put(2)], vec![Get(0), Get(0)]]), 10);
}

#[test]
fn a_new_long_value_beside_a_delete() {
    all_orders("delete", long(vec![vec![Delete(0, Any), put(1)], vec![Get(0), Get(0)]]), 10);
}

#[test]
fn a_condition_beside_a_put() {
    let programs = vec![vec![Put(0, in_two_parts(1), Same)], vec![put(2)], vec![Get(0)]];
    all_orders("condition", long(programs), 10);
}

#[test]
fn a_short_value_follows_a_long_one_and_the_other_way() {
    // Of one unit, with its key.
    let short = (2..).find(|&value| value_bytes(value).len() < 24).unwrap();
    all_orders("short", long(vec![vec![Put(0, short, Any), put(1)], vec![Get(0), Get(0)]]), 10);
}

#[test]
fn a_cached_slot_beside_changes() {
    let setup = long(vec![vec![put(1)], vec![Get(0), Get(0), Get(0)]]);
    all_orders("cached", Setup { cached_keys: 4, ..setup }, 10);
}

fn a_crash() -> Setup {
    Setup { crashes: vec![0], ..long(vec![vec![put(1)], vec![Get(0), put(2)]]) }
}

#[test]
fn a_crash_at_every_point_of_a_put() {
    all_orders("crash", a_crash(), 10);
}

/// What is half done is completed: the slot leads to a list whose parts nobody wrote.
#[test]
fn without_parts_first_a_value_is_lost_in_a_crash() {
    let layout = PoolLayout { memory_nodes: 2, copies: 2, ..SMALL };
    let mut setup = Setup { layout, ..a_crash() };
    setup.programs[1] = vec![Get(0)];
    setup.repairs.parts_first = false;
    some_order_is_wrong("that parts are written first", setup);
}

#[test]
fn a_wrong_suspicion_at_every_point_of_a_put() {
    let programs = vec![vec![put(1)], vec![put(2), Get(0)]];
    all_orders("suspicion", Setup { suspects: vec![0], ..long(programs) }, 10);
}

#[test]
fn a_lost_memory_node_at_every_point_of_a_put() {
    for node in [0, 1] {
        let programs = vec![vec![put(1)], vec![Get(0)]];
        all_orders("loss", Setup { losses: vec![node], ..long(programs) }, 10);
    }
}

/// Client 0's value has a part in a block into which no slot leads, whether it crashed before or after its put was done.
fn a_block_with_a_part_only() -> Setup {
    let programs = vec![vec![Put(0, LONG, Any)], vec![Delete(1_000_000, Any), Get(0)]];
    let mut before = with_memory(2);
    before.push((1, Put(0, 1, Any)));
    Setup { part_units: 32, crashes: vec![0], early_ticks: 0, ..Setup::new(before, programs) }
}

#[test]
fn blocks_are_taken_back_at_every_point_of_a_put() {
    all_orders("taking back", a_block_with_a_part_only(), 10);
}

#[test]
fn without_looking_at_parts_a_block_in_use_is_taken_back() {
    let mut setup = a_block_with_a_part_only();
    setup.repairs.reclaim_sees_parts = false;
    some_order_is_wrong("that parts keep their blocks", setup);
}

/// Client 1 reads the list of a value; meanwhile the value is replaced, and the next one, too.
fn a_slow_read() -> Setup {
    let layout = PoolLayout { memory_nodes: 1, copies: 1, ..SMALL };
    Setup { layout, reuses: true, ..long(vec![vec![put(1), put(2)], vec![Get(0), Get(0)]]) }
}

/// Parts that are used again are seen to be: a reader looks again. Without either, it takes what is there.
#[test]
fn without_quarantine_and_binding_a_reader_takes_parts_of_another_value() {
    all_orders("slow read", a_slow_read(), 10);
    let mut setup = a_slow_read();
    setup.repairs.parts_quarantine = false;
    all_orders("slow read, parts that do not wait", setup.clone(), 10);
    setup.repairs.parts_bound = false;
    some_history_is_wrong("that parts wait, and say whose they are", setup);
}

/// The last client is the proxy.
fn proxied(programs: Vec<Vec<Ask>>) -> Setup {
    Setup { proxy: Some(programs.len() as u16 - 1), ..long(programs) }
}

#[test]
fn a_proxy_and_two_writers() {
    all_orders("proxied", proxied(vec![vec![put(1)], vec![put(2)], vec![Get(0), Get(0)]]), 10);
}

#[test]
fn a_proxy_crashes_at_every_point_of_a_put() {
    let setup = proxied(vec![vec![put(1)], vec![Get(0), Get(0)], vec![]]);
    all_orders("proxy crashes", Setup { crashes: vec![2], ..setup }, 10);
}

/// A reader beside a writer, with the value in the reader's cache, and with the place of its list alone.
#[test]
fn a_cache_beside_a_put() {
    for cached_bytes in [1024, 0] {
        let setup = proxied(vec![vec![put(1)], vec![Get(0), Get(0), Get(0)], vec![]]);
        all_orders("cache", Setup { cached_keys: 4, cached_bytes, ..setup }, 10);
    }
}

/// What came into the cache while the value's parts were on their way would stay there.
#[test]
fn without_taint_a_long_value_stays_in_the_cache() {
    let setup = proxied(vec![vec![put(1)], vec![Get(0), Get(0)], vec![]]);
    let mut setup = Setup { cached_keys: 4, ..setup };
    setup.repairs.taint = false;
    some_history_is_wrong("the taint", setup);
}
