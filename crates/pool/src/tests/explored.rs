//! Small set-ups, every order of which is tried. With all repairs no history is wrong; with one left out some is.

use super::asked::{Ask, If};
use super::explore::{Explored, Wrong, explore};
use super::run::{key_bytes, value_bytes};
use super::world::{Setup, World};
use crate::bucket::KeyHash;
use crate::fabric::{Nanos, NodeId};
use Ask::{Delete, Get, Put};
use If::{Absent, Any, Present, Same};

/// More states than any set-up here has.
const STATES_MAX: u64 = 3_000_000;
const QUARANTINE_NS: Nanos = 1_000_000_000;

/// A key with the fingerprint of key 0. In a sub-table of one group all keys have the same buckets.
pub(super) fn twin() -> u64 {
    let fingerprint = |key: u64| KeyHash::of(&key_bytes(key)).fingerprint();
    (1..).find(|&key| fingerprint(key) == fingerprint(0)).unwrap()
}

/// What each client asks before, so that it has memory: a put of a key of its own.
pub(super) fn with_memory(clients: u16) -> Vec<(u16, Ask)> {
    (0..clients)
        .map(|client| (client, Put(1_000_000 + u64::from(client), 900 + u64::from(client), Any)))
        .collect()
}

/// The same, and key 0 is there, in client 0's memory.
pub(super) fn with_key(clients: u16) -> Vec<(u16, Ask)> {
    let mut before = with_memory(clients);
    before.push((0, Put(0, 1, Any)));
    before
}

pub(super) fn try_all(setup: Setup) -> Result<Explored, Wrong> {
    explore(World::new(setup).unwrap(), STATES_MAX)
}

/// No order is wrong, and there are at least so many ends.
pub(super) fn all_orders(what: &str, setup: Setup, ends: u64) {
    match try_all(setup) {
        Ok(explored) => {
            assert!(explored.ends >= ends && explored.endless == 0, "{what}: {explored:?}");
        }
        Err(wrong) => panic!("{what}: {}\n{:?}", wrong.what, wrong.way),
    }
}

/// Some order is wrong: what a repair that was left out is for.
pub(super) fn some_history_is_wrong(what: &str, setup: Setup) {
    some_order_is_wrong(what, Setup { is_history_all: true, ..setup });
}

/// Some history is wrong, or what is in memory at the end.
pub(super) fn some_order_is_wrong(what: &str, setup: Setup) {
    match try_all(setup) {
        Ok(explored) => panic!("{what} is left out, and nothing is wrong: {explored:?}"),
        // Somebody who waits for ever is no wrong answer.
        Err(wrong) => {
            let is_wrong = !wrong.way.is_empty() && !wrong.what.contains("was never answered");
            assert!(is_wrong, "{what}: {}", wrong.what);
        }
    }
}

fn two_writers() -> Setup {
    Setup::new(with_key(3), vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any)], vec![Get(0), Get(0)]])
}

#[test]
fn two_writers_of_one_key() {
    all_orders("two writers", two_writers(), 10);
}

#[test]
fn three_writers_of_one_key() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any)], vec![Put(0, 12, Any)]];
    let setup = Setup { early_ticks: 0, ..Setup::new(with_key(3), programs) };
    all_orders("three writers", setup, 10);
}

#[test]
fn two_inserts_of_one_key() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any)], vec![Get(0)]];
    all_orders("two inserts", Setup { early_ticks: 0, ..Setup::new(with_memory(3), programs) }, 10);
}

/// Client 2 makes room, so that what was the emptier bucket for one of the others is not for the other: they take different slots.
fn inserts_into_two_slots(third: Vec<Ask>) -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any)], third];
    Setup { early_ticks: 0, ..Setup::new(with_memory(3), programs) }
}

#[test]
fn two_inserts_of_one_key_into_two_slots() {
    all_orders("two inserts into two slots", inserts_into_two_slots(vec![Delete(1_000_000, Any)]), 10);
}

#[test]
fn two_inserts_and_a_delete_of_one_key() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any)], vec![Delete(0, Any)]];
    let setup = Setup { early_ticks: 0, ..Setup::new(with_memory(3), programs) };
    all_orders("two inserts and a delete", setup, 10);
}

#[test]
fn two_keys_of_one_fingerprint_and_one_free_slot() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(twin(), 11, Any)], vec![Get(0), Get(twin())]];
    all_orders("two keys", Setup { early_ticks: 0, ..Setup::new(with_memory(3), programs) }, 10);
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(twin(), 11, Any), Delete(twin(), Any)], vec![Get(0)]];
    all_orders(
        "two keys, one of which goes",
        Setup { early_ticks: 0, ..Setup::new(with_key(3), programs) },
        10,
    );
}

#[test]
fn a_delete_beside_a_put() {
    let programs = vec![vec![Delete(0, Any)], vec![Put(0, 11, Any)], vec![Get(0), Get(0)]];
    all_orders("delete and put", Setup::new(with_key(3), programs), 10);
    let programs = vec![vec![Delete(0, Any)], vec![Delete(0, Any)], vec![Put(0, 12, Any)]];
    all_orders("two deletes and a put", Setup { early_ticks: 0, ..Setup::new(with_key(3), programs) }, 10);
}

fn with_conditions() -> Setup {
    Setup::new(with_key(3), vec![vec![Put(0, 10, Same)], vec![Put(0, 11, Any)], vec![Get(0), Get(0)]])
}

#[test]
fn puts_with_conditions() {
    all_orders("one condition", with_conditions(), 10);
    let programs = vec![vec![Put(0, 10, Absent)], vec![Put(0, 11, Absent)], vec![Delete(0, Present)]];
    all_orders(
        "absent, absent, present",
        Setup { early_ticks: 0, ..Setup::new(with_memory(3), programs) },
        10,
    );
}

#[test]
fn a_cached_slot_beside_changes() {
    let programs = vec![vec![Put(0, 10, Any), Delete(0, Any)], vec![], vec![Get(0), Get(0)]];
    let mut before = with_key(3);
    before.push((2, Get(0)));
    all_orders("cached", Setup { cached_keys: 4, early_ticks: 0, ..Setup::new(before, programs) }, 10);
}

fn a_crash() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0), Put(0, 11, Any)]];
    Setup { crashes: vec![0], early_ticks: 0, ..Setup::new(with_key(2), programs) }
}

#[test]
fn a_crash_at_every_point_of_a_put() {
    all_orders("crash in a put", a_crash(), 10);
}

/// No slot but that which it is about to change leads into client 0's memory once the others are done: its block is taken back if it crashed before or after.
fn a_crash_of_who_has_nothing_else() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Delete(1_000_000, Any), Get(0)]];
    let mut before = with_memory(2);
    before.push((1, Put(0, 1, Any)));
    Setup { crashes: vec![0], early_ticks: 0, ..Setup::new(before, programs) }
}

#[test]
fn a_block_is_taken_back_at_every_point_of_a_put() {
    all_orders("taking back", a_crash_of_who_has_nothing_else(), 10);
}

#[test]
fn without_looking_at_slots_a_block_in_use_is_taken_back() {
    let mut setup = a_crash_of_who_has_nothing_else();
    setup.repairs.reclaim_unreferenced = false;
    some_order_is_wrong("that slots lead into blocks", setup);
}

#[test]
fn a_crash_at_every_point_of_an_insert() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0), Put(0, 11, Any)]];
    let setup = Setup { crashes: vec![0], early_ticks: 0, ..Setup::new(with_memory(2), programs) };
    all_orders("crash in an insert", setup, 10);
}

#[test]
fn a_crash_at_every_point_of_a_delete() {
    let programs = vec![vec![Delete(0, Any)], vec![Get(0), Put(0, 11, Any)]];
    let setup = Setup { crashes: vec![0], early_ticks: 0, ..Setup::new(with_key(2), programs) };
    all_orders("crash in a delete", setup, 10);
}

fn a_suspicion() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![Put(0, 11, Any), Get(0)]];
    Setup { suspects: vec![0], early_ticks: 0, ..Setup::new(with_key(2), programs) }
}

#[test]
fn a_wrong_suspicion_at_every_point_of_a_put() {
    all_orders("suspicion", a_suspicion(), 10);
}

#[test]
fn a_lost_memory_node_at_every_point_of_a_put() {
    for node in [0, 1] {
        let programs = vec![vec![Put(0, 10, Any)], vec![Get(0)]];
        let setup = Setup { losses: vec![node], early_ticks: 0, ..Setup::new(with_key(2), programs) };
        all_orders("loss", setup, 10);
    }
}

/// The repair after the first loss is begun again after the second one, and what it had posted may come late.
fn two_losses(losses: [u8; 2]) -> Setup {
    let programs = vec![vec![Put(0, 10, Any), Put(0, 11, Any)]];
    Setup { losses: losses.to_vec(), early_ticks: 0, ..Setup::new(with_key(1), programs) }
}

#[test]
fn two_lost_memory_nodes_at_every_point_of_two_puts() {
    for losses in [[0, 1], [0, 2], [1, 2]] {
        all_orders("two losses", two_losses(losses), 5);
    }
}

#[test]
fn without_settling_the_last_repair_overwrites_what_came_after_it() {
    let mut setup = two_losses([1, 2]);
    setup.repairs.settle = false;
    some_history_is_wrong("waiting for the posts of the last repair", setup);
}

#[test]
fn two_lost_memory_nodes_beside_a_reader() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0)]];
    let setup = Setup { losses: vec![0, 1], early_ticks: 0, ..Setup::new(with_key(2), programs) };
    all_orders("two losses and a reader", setup, 10);
}

#[test]
fn without_claims_a_key_is_in_two_slots() {
    let mut setup = inserts_into_two_slots(vec![Delete(1_000_000, Any)]);
    setup.repairs.claim = false;
    // Nobody can delete it any more: which of the two is meant?
    some_order_is_wrong("the claim of new keys", setup);
}

#[test]
fn without_waiting_losers_answer_before_their_winner() {
    let mut setup = two_writers();
    setup.repairs.losers_wait = false;
    some_history_is_wrong("that losers wait", setup);
}

#[test]
fn without_asking_the_winner_a_loser_counts_before_a_condition() {
    let mut setup = with_conditions();
    setup.repairs.absorb_unconditional = false;
    some_history_is_wrong("that losers count before winners without a condition only", setup);
}

/// Client 1 looks a value up; meanwhile its memory is freed, and the next but one value goes there.
fn a_slow_read(time_passes: bool) -> Setup {
    let programs = vec![vec![Put(0, 10, Any), Put(0, 11, Any)], vec![Get(0), Get(0)]];
    let jumps = if time_passes { vec![QUARANTINE_NS] } else { Vec::new() };
    Setup { reuses: true, jumps, early_ticks: 0, ..Setup::new(with_key(2), programs) }
}

#[test]
fn a_read_that_is_slower_than_the_quarantine() {
    all_orders("slow read", a_slow_read(true), 10);
    let mut setup = a_slow_read(true);
    setup.repairs.late_reads = false;
    some_history_is_wrong("that what was learnt too long ago is thrown away", setup);
}

#[test]
fn without_a_quarantine_memory_is_used_again_while_it_is_read() {
    all_orders("quick read", a_slow_read(false), 10);
    let mut setup = a_slow_read(false);
    setup.repairs.quarantine = false;
    some_history_is_wrong("the quarantine", setup);
}

/// A swap of client 0, that of a put on the condition that nothing has changed, is under way while client 1 changes the slot 64 times: its version is what it was, and
/// without a quarantine its address is, too.
fn a_late_swap(quarantine: bool) -> World {
    // Objects of one unit.
    let mut values = (2u64..).filter(|&value| value_bytes(value).len() < 24);
    let mut before = with_memory(2);
    before.push((1, Put(0, values.next().unwrap(), Any)));
    let mut setup = Setup::new(before, vec![vec![Put(0, 1, Same)], vec![Get(0)]]);
    setup.repairs.quarantine = quarantine;
    setup.reuses = true;
    let mut world = World::new(setup).unwrap();
    world.hold_first_swap(NodeId(0)).unwrap();
    for value in values.take(64) {
        world.ask(NodeId(1), &Put(0, value, Any));
        world.run_on().unwrap();
    }
    world.let_go();
    world
}

#[test]
fn a_swap_that_is_late_finds_the_word_again_only_without_a_quarantine() {
    let explored = explore(a_late_swap(true), STATES_MAX).unwrap();
    assert!(explored.ends >= 2, "{explored:?}");
    let wrong = explore(a_late_swap(false), STATES_MAX).unwrap_err();
    assert!(wrong.what.contains("key 0"), "{}", wrong.what);
}

#[test]
fn without_fences_the_suspected_go_on() {
    let mut setup = a_suspicion();
    setup.programs[1] = vec![Get(0), Put(0, 11, Any), Get(0)];
    setup.repairs.fence = false;
    some_history_is_wrong("the fence", setup);
}

/// Two memory nodes are lost after a crash: what was half done is seen by one reader, and by the next one not.
#[test]
fn without_aligned_copies_a_value_goes_away_again() {
    let programs = vec![vec![Put(0, 10, Any)], vec![Get(0), Get(0)]];
    let mut setup =
        Setup { crashes: vec![0], losses: vec![0, 1], early_ticks: 0, ..Setup::new(with_key(2), programs) };
    setup.repairs.align_copies = false;
    some_history_is_wrong("making copies one", setup);
}

/// Client 0 puts, client 1 crashes.
fn somebody_else_crashes() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![], vec![Get(0), Put(0, 11, Any), Get(0)]];
    Setup { crashes: vec![1], early_ticks: 0, ..Setup::new(with_key(3), programs) }
}

#[test]
fn without_verdicts_a_put_is_done_twice() {
    let mut setup = somebody_else_crashes();
    setup.repairs.verdicts = false;
    some_history_is_wrong("verdicts", setup);
}

/// Client 0 puts and its time is soon over; two others crash, so that the configuration changes twice.
fn a_put_that_comes_to_its_deadline() -> Setup {
    let programs = vec![vec![Put(0, 10, Any)], vec![], vec![]];
    let mut setup = Setup::new(with_key(3), programs);
    setup.timeout_ns = QUARANTINE_NS / 8;
    Setup { crashes: vec![1, 2], jumps: vec![QUARANTINE_NS / 8], early_ticks: 0, ..setup }
}

#[test]
fn without_draining_what_was_unavailable_happens() {
    let mut setup = a_put_that_comes_to_its_deadline();
    setup.repairs.drain = false;
    some_history_is_wrong("waiting for posts", setup);
}

#[test]
fn a_put_that_comes_to_its_deadline_while_two_crash() {
    all_orders("deadline", a_put_that_comes_to_its_deadline(), 10);
}
