//! Small set-ups in which a compute node is the proxy of the partition, every order of which is tried.

use super::asked::{Ask, If};
use super::explored::{all_orders, some_history_is_wrong, some_order_is_wrong, twin, with_key, with_memory};
use super::world::Setup;
use crate::fabric::NodeId;
use crate::manager::ManagerCall;
use Ask::{Delete, Get, Put};
use If::{Absent, Any, Same};

/// The last client is the proxy, and asks nothing but what `programs` say.
fn proxied(before: Vec<(u16, Ask)>, programs: Vec<Vec<Ask>>) -> Setup {
    let proxy = Some(programs.len() as u16 - 1);
    Setup { proxy, early_ticks: 0, ..Setup::new(before, programs) }
}

fn two_writers() -> Setup {
    proxied(with_key(3), vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any)], vec![Get(0), Get(0)]])
}

#[test]
fn two_writers_of_one_key() {
    all_orders("two writers", two_writers(), 10);
}

/// The third waits with the second, and one of them is done.
fn three_writers() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any), Get(0)], vec![Put(0, 12, Any)]];
    proxied(with_key(3), programs)
}

#[test]
fn three_writers_of_one_key() {
    all_orders("three writers", three_writers(), 10);
}

#[test]
fn without_waiting_combined_writers_answer_before_they_are_done() {
    let mut setup = three_writers();
    setup.repairs.absorb_after = false;
    some_history_is_wrong("answering after the change", setup);
}

#[test]
fn a_condition_beside_a_put() {
    let programs = vec![vec![Put(0, 10, Same)], vec![Put(0, 11, Any)], vec![Get(0), Get(0)]];
    all_orders("condition", proxied(with_key(3), programs), 10);
}

fn two_keys() -> Setup {
    proxied(with_memory(3), vec![vec![Put(0, 10, Any)], vec![Put(twin(), 11, Any)], vec![Get(0)]])
}

#[test]
fn two_keys_and_one_slot() {
    all_orders("two keys", two_keys(), 10);
}

#[test]
fn without_slot_locks_two_keys_take_one_slot() {
    let mut setup = two_keys();
    setup.repairs.slot_lock = false;
    some_history_is_wrong("the lock of a slot", setup);
}

fn two_inserts() -> Setup {
    proxied(with_memory(3), vec![vec![Put(0, 10, Absent)], vec![Put(0, 11, Absent)], vec![Get(0)]])
}

#[test]
fn two_inserts_of_one_key() {
    all_orders("two inserts", two_inserts(), 10);
}

#[test]
fn without_hash_locks_a_key_is_in_two_slots() {
    let mut setup = two_inserts();
    setup.repairs.hash_lock = false;
    some_order_is_wrong("the lock of a key", setup);
}

#[test]
fn without_what_was_seen_a_key_is_in_two_slots() {
    let mut setup = two_inserts();
    setup.repairs.negative_set = false;
    some_order_is_wrong("comparing what was seen", setup);
}

#[test]
fn a_delete_beside_puts() {
    let programs = vec![vec![Delete(0, Any)], vec![Put(0, 11, Any)], vec![Get(0), Get(0)]];
    all_orders("delete and put", proxied(with_key(3), programs), 10);
}

/// A request is sent again before it is answered.
fn a_repeated_put() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any), Get(0)], vec![]];
    Setup { rpc_retry_ns: 1_000, early_ticks: 1, ..proxied(with_key(3), programs) }
}

#[test]
fn a_put_that_is_asked_for_twice() {
    all_orders("repeated", a_repeated_put(), 10);
}

#[test]
fn without_kept_answers_a_put_is_done_twice() {
    let mut setup = a_repeated_put();
    setup.repairs.once = false;
    some_history_is_wrong("executing a request once", setup);
}

/// The proxy crashes.
fn a_proxy_crashes() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0), Get(0)], vec![]];
    Setup { crashes: vec![2], ..proxied(with_key(3), programs) }
}

#[test]
fn a_proxy_crashes_at_every_point_of_a_put() {
    all_orders("proxy crashes", a_proxy_crashes(), 10);
}

#[test]
fn a_proxy_crashes_at_every_point_of_an_insert() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0)], vec![]];
    let setup = Setup { crashes: vec![2], ..proxied(with_memory(3), programs) };
    all_orders("proxy crashes in an insert", setup, 10);
}

#[test]
fn without_writing_all_copies_first_a_value_goes_away_again() {
    let mut setup = a_proxy_crashes();
    setup.repairs.write_through = false;
    some_history_is_wrong("writing all copies first", setup);
}

/// The proxy is taken for dead and is not; nobody tells it.
fn a_suspected_proxy() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0)]];
    Setup { suspects: vec![1], ..proxied(with_memory(2), programs) }
}

#[test]
fn a_proxy_is_suspected_at_every_point_of_a_put() {
    all_orders("proxy suspected", a_suspected_proxy(), 10);
}

#[test]
fn without_leases_a_suspected_proxy_says_what_was() {
    let mut setup = a_suspected_proxy();
    setup.repairs.lease = false;
    some_history_is_wrong("the lease", setup);
}

/// The partition gets a proxy while a swap of direct mode is under way.
fn a_proxy_begins() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0)]];
    let assigns = vec![ManagerCall::Assign(0, Some(NodeId(1)))];
    Setup { assigns, early_ticks: 0, ..Setup::new(with_key(2), programs) }
}

#[test]
fn a_swap_is_late_while_a_proxy_begins() {
    all_orders("a proxy begins", a_proxy_begins(), 10);
}

#[test]
fn without_draining_a_late_swap_changes_what_a_proxy_has() {
    let mut setup = a_proxy_begins();
    setup.repairs.drain = false;
    some_order_is_wrong("waiting for posts", setup);
}

/// The same, and who posted the swap crashes: only a fence keeps it from memory nodes.
fn a_proxy_begins_without_a_writer() -> Setup {
    Setup { crashes: vec![0], ..a_proxy_begins() }
}

#[test]
fn without_fences_a_late_swap_changes_what_a_proxy_has() {
    let mut setup = a_proxy_begins_without_a_writer();
    setup.repairs.fence = false;
    some_order_is_wrong("the fence", setup);
}

#[test]
fn a_proxy_ends_at_every_point_of_a_put() {
    let setup = Setup { assigns: vec![ManagerCall::Assign(0, None)], ..another_proxy() };
    all_orders("a proxy ends", setup, 10);
}

#[test]
fn a_proxy_and_a_memory_node_are_lost() {
    let programs = vec![vec![Put(0, 10, Any)], vec![]];
    let setup = Setup { losses: vec![0], crashes: vec![1], ..proxied(with_key(2), programs) };
    all_orders("proxy and memory node", setup, 10);
}

/// Two proxies, one after the other.
fn another_proxy() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0)]];
    let assigns = vec![ManagerCall::Assign(0, Some(NodeId(0)))];
    Setup { assigns, ..proxied(with_key(2), programs) }
}

#[test]
fn a_proxy_follows_another_at_every_point_of_a_put() {
    all_orders("another proxy", another_proxy(), 10);
}

/// Who asked is gone, its memory is taken back, and then its request comes.
fn a_late_request() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Delete(1_000_000, Any)]];
    let mut before = with_memory(2);
    before.push((1, Put(0, 1, Any)));
    Setup { crashes: vec![0], ..proxied(before, programs) }
}

#[test]
fn a_request_of_who_is_gone_comes_late() {
    all_orders("late request", a_late_request(), 10);
}

#[test]
fn without_epochs_a_late_request_is_executed() {
    let mut setup = a_late_request();
    setup.repairs.rpc_epoch = false;
    some_order_is_wrong("the epoch of requests", setup);
}

#[test]
fn a_lost_memory_node_at_every_point_of_a_put() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0)]];
    for node in [0, 1] {
        let setup = Setup { losses: vec![node], ..proxied(with_key(2), programs.clone()) };
        all_orders("loss", setup, 10);
    }
}
