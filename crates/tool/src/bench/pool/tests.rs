use clap::Parser;
use hedgerow_sim::{Call, Effect, History, Precondition};

use super::experiments::PoolExperiment;
use super::load::{PoolAudit, PoolSeenEffect};
use super::measured::{MeasuredMode, MeasuredScale, MeasuredSetting, measure};
use super::setting::PoolStep;
use super::*;
use crate::bench::paper::tests::{elements, unique_directory};

#[derive(Debug, Parser)]
struct Parsed {
    #[command(flatten)]
    args: PoolBenchArgs,
}

fn args(given: &str) -> PoolBenchArgs {
    Parsed::try_parse_from(format!("pool {given}").split_whitespace()).unwrap().args
}

const SCALE: PoolScale = PoolScale {
    keys: 300,
    calls: 2_000,
    threads: 2,
    depth: 4,
    partition_bits: 4,
    cached_bytes: 1 << 20,
    call_ns: 500,
    period_ns: 200_000,
};

fn setting(step: PoolStep, load: &str) -> PoolSetting {
    let load = PoolLoad::find(load, Distribution::Zipfian).unwrap();
    PoolSetting { step, load, value_bytes: 128, compute_nodes: 3, memory_nodes: 3, cost: None }
}

fn run_of(setting: PoolSetting, scale: PoolScale, seed: u64) -> PoolFigures {
    ModelledRun::new(setting, scale, seed, false).unwrap().run(seed).unwrap().0
}

/// All that was seen, in the words of whoever checks histories.
fn check_history(audit: &PoolAudit) -> usize {
    let mut history = History::default();
    for seen in audit.seen() {
        let effect = match seen.what {
            PoolSeenEffect::Read(version) => Effect::Read(version),
            PoolSeenEffect::Wrote(version) => Effect::WriteIf(Precondition::Any, version),
            PoolSeenEffect::MayWrite(version) => Effect::MayWriteIf(Precondition::Any, version),
        };
        history.push(Call { key: seen.key, effect, began: seen.began, returned: seen.returned });
    }
    history.check().unwrap();
    history.len()
}

#[test]
fn the_history_of_each_step_is_linearizable_the_owners_among_them() {
    let few = PoolScale { keys: 40, calls: 1_500, ..SCALE };
    for step in PoolStep::ABLATION.into_iter().chain([PoolStep::All, PoolStep::Owners]) {
        for load in ["a", "d"] {
            let run = ModelledRun::new(setting(step, load), few, 7, true).unwrap();
            let (figures, audit) = run.run(7).unwrap();
            assert!(check_history(&audit) >= 1_540, "{step:?}");
            // Where proxies are chosen the configuration may change meanwhile, and of a new key it is not always known then what became of it.
            let refused =
                if matches!(step, PoolStep::Direct | PoolStep::Proxies | PoolStep::Owners) { 0 } else { 30 };
            assert_eq!(
                (figures.counts.calls, figures.counts.refused.max(refused)),
                (1_500, refused),
                "{step:?}"
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_one_others() {
    for step in [PoolStep::Direct, PoolStep::Split, PoolStep::Owners] {
        let figures = run_of(setting(step, "a"), SCALE, 1);
        assert_eq!(figures, run_of(setting(step, "a"), SCALE, 1));
        assert_ne!(figures.took_ns, run_of(setting(step, "a"), SCALE, 2).took_ns);
    }
}

#[test]
fn each_step_has_what_it_adds_and_no_more() {
    let b = |step| run_of(setting(step, "b"), SCALE, 3);
    let [direct, proxies, ranks, pairs, split] = PoolStep::ABLATION.map(b);
    // Nobody is a proxy, and nothing is granted.
    assert_eq!((direct.counts.proxied, direct.counts.asked, direct.load_variation), (0, 0, None));
    assert_eq!((direct.counts.value_hits, direct.counts.address_hits), (0, 0));
    assert!(direct.counts.slot_hits > 0 && direct.counts.atomics > 0);
    // A fifth of 16 partitions, and the hottest ones have more of the calls.
    for figures in [&proxies, &ranks, &pairs] {
        assert!((0.15..0.4).contains(&figures.proxied_partitions), "{figures:?}");
        assert!(figures.counts.asked > 0 && figures.load_variation.is_some(), "{figures:?}");
    }
    assert_eq!((proxies.share, ranks.share), (None, Some(STATIC_SHARE)));
    assert!(ranks.counts.proxied > proxies.counts.proxied, "{ranks:?} {proxies:?}");
    // Without the cache of values no hit is counted.
    assert_eq!([&proxies, &ranks].map(|figures| figures.counts.value_hits), [0, 0]);
    assert!([&proxies, &ranks].iter().all(|figures| figures.counts.address_hits > 0));
    assert!(pairs.counts.value_hits > 100, "{pairs:?}");
    let of_path = |figures: &PoolFigures, path| figures.latency(path).map_or(0, |one| one.calls);
    let hits = of_path(&pairs, "read, value in the cache");
    assert!(hits.abs_diff(pairs.counts.value_hits) < 20, "{hits} {pairs:?}");
    // A value that is at hand takes its thread's time and nothing else.
    assert_eq!(pairs.latency("read, value in the cache").unwrap().ns("p1"), SCALE.call_ns);
    // Lists of five and six partitions are rounded up.
    let share = f64::from(split.share.unwrap()) / 100.0;
    assert!(split.is_settled && (0.0..0.13).contains(&(split.proxied_partitions - share)), "{split:?}");
    assert_eq!(b(PoolStep::All).proxied_partitions, 1.0);
    // An owner has all of its partitions for itself, and is sent what others want of them.
    let owners = b(PoolStep::Owners);
    assert!(owners.proxied_partitions == 1.0 && owners.counts.atomics < direct.counts.atomics, "{owners:?}");
    assert!(owners.counts.forwards > owners.counts.calls && owners.counts.value_hits > 500, "{owners:?}");
    assert!(owners.load_variation.is_some_and(|variation| variation > 0.0));
}

#[test]
fn costs_that_are_halved_and_doubled_cost_less_and_more() {
    use hedgerow_pool::fabric::nic::CostFactor;
    for cost in setting::PoolCost::ALL {
        let took = |cost| run_of(PoolSetting { cost, ..setting(PoolStep::Direct, "a") }, SCALE, 1).took_ns;
        let [half, as_assumed, double] =
            [Some((cost, CostFactor::Half)), None, Some((cost, CostFactor::Double))].map(took);
        let is_used = cost.name() != "datagram";
        assert!(
            !is_used || half < as_assumed && as_assumed < double,
            "{cost:?} {half} {as_assumed} {double}"
        );
    }
}

const SMALL: &str = "--loads a,c --distributions zipfian --value-bytes 128,512 --updates 0,50 --nodes 3:3,2:3 --keys 200 --calls 600 --depth 4 --period-us 200 --rounds 2";

#[test]
fn the_modelled_report_tells_every_run_as_modelled() {
    let directory = unique_directory("pool-modelled");
    hedgerow_device::create_directories(&directory).unwrap();
    let path = |name: &str| directory.join(name).display().to_string();
    run(&args(&format!("{SMALL} --html {} --json {}", path("out.html"), path("out.json")))).unwrap();
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let (page, document) = (read("out.html"), read("out.json"));
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["kind"], "modelled");
    let sections: Vec<&str> =
        document["sections"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(sections, PoolExperiment::ALL.map(PoolExperiment::name));
    let results = document["results"].as_array().unwrap();
    // Twice: two loads by four ways, three more steps of both, one more size and one more pair of nodes by three, ten costs by two. Updates of 0 and 50 % are loads C and A.
    assert_eq!(results.len(), 2 * (8 + 6 + 3 + 3 + 20));
    assert!(
        results.iter().all(|one| one["kind"] == "modelled" && one["calls_per_s"].as_f64().unwrap() > 0.0)
    );
    let seeds = |seed: u64| results.iter().filter(|one| one["seed"] == seed).count();
    assert_eq!((seeds(1), seeds(2)), (results.len() / 2, results.len() / 2));
    for figure in ["latencies", "counts", "load_variation", "share", "is_settled", "proxied_partitions"] {
        assert!(results[0].get(figure).is_some(), "{figure}");
    }
    assert_eq!(document["settings"]["scale"]["keys"], 200);
    // Throughput of six experiments, and latencies of two loads.
    assert_eq!(elements(&page).iter().filter(|element| *element == "svg").count(), 8);
    for said in [
        "Nothing here was measured",
        "+14.5 %",
        "Not built",
        "Beside the paper [modelled]",
        "what differs there",
    ] {
        assert!(page.contains(said), "{said}");
    }
    assert!(!page.contains("[measured]"));
    std::fs::remove_dir_all(&directory).unwrap();
}

/// What does not hold is said, and what holds is not called so.
#[test]
fn where_the_papers_order_does_not_hold_the_report_says_so() {
    let args = args(
        "--experiments ablation --loads a,c --keys 200 --calls 600 --depth 4 --period-us 200 --rounds 2",
    );
    let (experiments, plan, scale) = args.plan().unwrap();
    let report = report(&args, &experiments, &plan, scale).unwrap();
    let [section] = &report.sections[..] else { panic!("{report:?}") };
    let factors = &section.finding.factors;
    assert_eq!(factors.len(), 2 * 4);
    assert!(factors.iter().all(|factor| factor.paper.is_some() && factor.differs.is_some()));
    for factor in factors {
        let said = section.notes.iter().filter(|note| note.contains(&format!("{} is", factor.what)));
        assert_eq!(said.count(), usize::from(factor.least <= 1.0), "{factor:?} {:?}", section.notes);
        assert!(factor.least <= factor.here && factor.here <= factor.most);
    }
    let text = report.text();
    assert!(text.contains("Step by step, zipfian [modelled]") && text.contains("A + proxies"), "{text}");
}

#[test]
fn a_pool_over_tcp_is_measured_in_each_mode() {
    let scale = MeasuredScale {
        compute_nodes: 2,
        memory_nodes: 3,
        copies: 3,
        partition_bits: 2,
        keys: 60,
        seconds: 0.3,
        depth: 4,
    };
    let load = PoolLoad::find("b", Distribution::Zipfian).unwrap();
    for mode in MeasuredMode::ALL {
        let setting = MeasuredSetting { mode, load, value_bytes: 200 };
        let (figures, audit) = measure(setting, scale, 1, true).unwrap();
        check_history(&audit);
        assert!(figures.calls > 0 && figures.cpu_us_per_call > 0.0, "{figures:?}");
        assert_eq!(
            (figures.kind, figures.value_hits > 0),
            ("measured", mode == MeasuredMode::Pairs),
            "{figures:?}"
        );
        assert_eq!(figures.latency("all").unwrap().calls, figures.calls);
        assert!(figures.latency("read").unwrap().ns("p50") > 0);
    }
}

#[test]
fn the_measured_report_calls_itself_so() {
    let args = args(
        "measured --loads c --value-bytes 64 --keys 50 --seconds 0.05 --depth 2 --partition-bits 1 --memory-nodes 1 --compute-nodes 1",
    );
    let Some(PoolSuite::Measured(args)) = &args.suite else { panic!("{args:?}") };
    let report = measured_report::report(args).unwrap();
    let (text, document) = (report.text(), report.document());
    assert!(text.contains("Loads of YCSB [measured]") && !text.contains("[modelled]"), "{text}");
    assert_eq!(document["kind"], "measured");
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    assert!(results.iter().all(|one| one["kind"] == "measured" && one["cpu_us_per_call"].as_f64().is_some()));
    assert_eq!(elements(&report.html()).iter().filter(|element| *element == "svg").count(), 6);
}

#[test]
fn each_verb_is_modelled_and_measured() {
    let args = args("primitives --count 60 --depth 4");
    let Some(PoolSuite::Primitives(args)) = &args.suite else { panic!("{args:?}") };
    let report = primitives::report(args).unwrap();
    let results = report.results.as_array().unwrap();
    // Eleven verbs on two fabrics, alone and not.
    assert_eq!(results.len(), 44);
    let of = |kind: &str, verb: &str, depth: u64| {
        let is = |one: &&Value| one["kind"] == kind && one["verb"] == verb && one["depth"] == depth;
        results.iter().find(is).unwrap()["latencies"]["at"][2].as_f64().unwrap()
    };
    // By the model: issue, two ways and the card's time; a datagram two ways and two handlings.
    assert!((of("modelled", "read 8 B", 1) - 2_088.0).abs() < 5.0);
    assert!((of("modelled", "compare and swap", 1) - 2_420.0).abs() < 5.0);
    assert!((of("modelled", "datagram 64 B, and back", 1) - 4_018.0).abs() < 5.0);
    assert!(of("measured", "compare and swap", 1) > 0.0);
    let text = report.text();
    assert!(
        text.contains("modelled or measured, as each line says") && text.contains("  measured  "),
        "{text}"
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (given, said) in [
        ("--depth 0", "--depth must be 1 to 128, not 0"),
        ("--threads 17", "--threads must be 1 to 16, not 17"),
        ("--rounds 0", "--rounds must be 1"),
        ("--keys 0", "--keys must be 1"),
        ("--calls 0", "--calls must be 1"),
        ("--partition-bits 8", "0 to 7, not 8"),
        ("--call-ns 0", "--call-ns must be 1"),
        ("--period-us 9", "--period-us must be 10"),
        ("--value-bytes 15", "16 to 16000, not 15"),
        ("--updates 101", "0 to 100, not 101"),
        ("--nodes 4", "as 4:3, not 4"),
        ("--nodes 65:3", "1 to 64"),
        ("--nodes 4:17", "1 to 16"),
        ("--loads e", "no load 'e'"),
        ("--experiments all", "no experiment 'all'"),
    ] {
        let refused = args(given).plan().unwrap_err();
        assert!(refused.contains(said), "{given}: {refused}");
    }
    for (given, said) in [
        ("measured --copies 4", "--copies must be 1 to 3, not 4"),
        ("measured --seconds 0", "--seconds must be 0.01"),
        ("measured --loads e", "no load 'e'"),
        ("primitives --count 0", "--count must be 1"),
    ] {
        let refused = run(&args(given)).unwrap_err();
        assert!(refused.contains(said), "{given}: {refused}");
    }
    assert!(Parsed::try_parse_from(["pool", "--keys", "5", "measured"]).is_err());
    let (_, plan, scale) = args("--paper").plan().unwrap();
    assert_eq!((plan.nodes[0], scale.threads, scale.keys), ((20, 3), 10, 100_000));
}

/// The newest are the most popular, so that what is hot is always another partition.
#[test]
fn a_load_that_inserts_is_measured_before_its_pool_is_full() {
    let scale = PoolScale { keys: 100, calls: 1_000, partition_bits: 6, period_ns: 2_000_000, ..SCALE };
    for step in [PoolStep::Ranks, PoolStep::Split] {
        let figures = run_of(setting(step, "d"), scale, 1);
        assert_eq!((figures.counts.calls, figures.is_settled), (1_000, false), "{figures:?}");
    }
}

/// While partitions get their proxies puts are refused, those of keys that are loaded among them: each is there all the same, or loading would never end.
#[test]
fn keys_that_were_refused_are_loaded() {
    let scale = PoolScale {
        keys: 5_000,
        calls: 20_000,
        partition_bits: 7,
        period_ns: 1_000_000,
        threads: 2,
        depth: 8,
        ..SCALE
    };
    let four = PoolSetting { compute_nodes: 4, ..setting(PoolStep::Ranks, "d") };
    assert_eq!(run_of(four, scale, 1).counts.calls, 20_000);
}

/// A pool that lost a pair does not pass for one that works.
#[test]
fn a_run_with_a_wrong_answer_is_none() {
    let mut run = ModelledRun::new(setting(PoolStep::Direct, "c"), SCALE, 1, false).unwrap();
    let (version, _) = run.audit.begin_write(0, 0);
    run.audit.end_write(version, 0, true);
    let refused = run.run(1).unwrap_err();
    assert!(
        refused.contains("key 0 is there, and a read missed it") && refused.contains("seed 1"),
        "{refused}"
    );
}
