//! Many simulated runs, every history checked.

use super::run::{Plan, Run};

/// So many runs, or as many as the environment says.
fn runs(brief: u64) -> u64 {
    std::env::var("HEDGEROW_POOL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(brief)
}

#[test]
fn every_history_is_linearizable_whatever_fails() {
    let (mut calls, mut open, mut crashes, mut losses) = (0, 0, 0, 0);
    let mut client = crate::client::ClientCounters::default();
    let mut proxy = crate::ProxyCounters::default();
    let (mut completed, mut undone, mut posthumous, mut refused, mut reclaimed) = (0, 0, 0, 0, 0);
    for seed in 0..runs(2000) {
        let mut plan = Plan::new(seed);
        if seed % 4 == 0 {
            // So short that what comes late is late.
            plan.client.quarantine_ns = 60_000;
        }
        let report = Run::new(plan).run(false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        calls += report.calls;
        open += report.open;
        crashes += report.crashes;
        losses += report.losses;
        client = client.plus(report.client);
        proxy = proxy.plus(report.proxy);
        completed += report.manager.completed;
        undone += report.manager.undone;
        reclaimed += report.manager.reclaimed;
        posthumous += report.fabric.posthumous;
        refused += report.fabric.refused;
    }
    let all = format!(
        "{calls} calls, {open} open, {crashes} crashes, {losses} losses, {completed} completed, {undone} undone, \
         {posthumous} posthumous, {refused} refused, {reclaimed} reclaimed, {client:?}, {proxy:?}"
    );
    // What is to be survived has happened.
    assert!(calls > 1000 && open > 10 && crashes > 10 && losses > 10 && completed > 5, "{all}");
    assert!(posthumous > 100 && refused > 5 && reclaimed > 100, "{all}");
    assert!(
        client.absorbed > 10 && client.arbitrated > 10 && client.cache_hits > 100 && client.released > 5,
        "{all}"
    );
    assert!(proxy.reads > 1000 && proxy.changes > 1000 && proxy.repeated > 10, "{all}");
    assert!(proxy.combined > 10 && proxy.stale > 10, "{all}");
    assert!(client.late > 0 && client.collected > 100, "{all}");
    assert!(client.verdicts_applied > 5 && client.verdicts_refused > 5, "{all}");
}

/// Whatever fails meanwhile: what a walk comes by was there, and what is there throughout it comes by.
#[test]
fn walks_come_by_what_stays() {
    let (mut walked, mut ranges) = (0, 0);
    for seed in 0..runs(400) {
        let mut plan = Plan::new(seed);
        (plan.walk_one_in, plan.keys, plan.calls) = (6, 9, 260);
        let report = Run::new(plan).run(false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        walked += report.walked;
        ranges += report.proxy.ranges;
    }
    assert!(walked > 1000 && ranges > 1000, "{walked} walks, {ranges} steps by proxies");
}

/// A put that was combined was in doubt, and freed what it had replaced once that block had been taken back.
#[test]
fn what_a_combined_put_replaced_is_not_freed_too_late() {
    Run::new(Plan::new(6538)).run(false).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_byte() {
    for seed in [3, 4, 5] {
        let run = || Run::new(Plan::new(seed)).run(true).unwrap();
        let (first, second) = (run(), run());
        assert!(first.recorded.len() > 100_000);
        assert_eq!(first.trace, second.trace);
        assert!(first.recorded == second.recorded);
    }
    let trace = |seed| Run::new(Plan::new(seed)).run(false).unwrap().trace;
    assert_ne!(trace(3), trace(4));
}

/// Runs seeds until one fails, with a repair left out; how many runs that took.
fn runs_until_failure(what: &str, most: u64, plan: impl Fn(&mut Plan)) -> u64 {
    for seed in 0..most {
        let mut one = Plan::new(seed);
        one.memory_losses = 0;
        plan(&mut one);
        if Run::new(one).run(false).is_err() {
            return seed + 1;
        }
    }
    panic!("{what} is left out, and {most} runs notice nothing");
}

/// Each repair is needed: without it histories are wrong.
#[test]
fn each_repair_left_out_is_noticed() {
    let mut taken = Vec::new();
    let mut without = |what: &str, plan: &dyn Fn(&mut Plan)| {
        taken.push((what.to_owned(), runs_until_failure(what, 300, plan)))
    };
    without("the claim of new keys", &|plan| {
        plan.repairs.claim = false;
        plan.layout.partition_bits = 0;
        plan.deletes = 6;
        plan.keys = 8;
        plan.reads = 2;
    });
    without("the quarantine", &|plan| {
        plan.repairs.quarantine = false;
        plan.client.cached_keys = 0;
        plan.keys = 2;
    });
    without("that losers wait", &|plan| {
        plan.repairs.losers_wait = false;
        plan.keys = 1;
    });
    without("that losers count before winners without a condition only", &|plan| {
        plan.repairs.absorb_unconditional = false;
        plan.keys = 1;
        plan.conditional = 6;
    });
    without("the checksum", &|plan| {
        plan.repairs.checksum = false;
        plan.repairs.quarantine = false;
        plan.client.cached_keys = 0;
        plan.keys = 2;
    });
    without("making copies one", &|plan| {
        plan.repairs.align_copies = false;
        plan.compute_crash_one_in = 20;
    });
    without("verdicts", &|plan| {
        plan.repairs.verdicts = false;
        plan.suspicion_one_in = 15;
        plan.keys = 2;
    });
    without("that slots lead into blocks", &|plan| {
        plan.repairs.reclaim_unreferenced = false;
        plan.compute_crash_one_in = 20;
    });
    without("that who was given up is told", &|plan| {
        plan.repairs.tells_given_up = false;
        plan.suspicion_one_in = 15;
    });
    assert_eq!(taken.len(), 9, "{taken:?}");
}
