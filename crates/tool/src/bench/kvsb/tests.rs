use clap::Parser;
use hedgerow_kvssd::{Host, HostRequest, StoreMode};

use super::*;
use crate::bench::paper::tests::elements;

/// The thread of a device is known by being new: so one benchmark at a time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[derive(Debug, Parser)]
struct Parsed {
    #[command(flatten)]
    args: KvsbArgs,
}

fn args(given: &str) -> KvsbArgs {
    Parsed::try_parse_from(format!("kvsb {given}").split_whitespace()).unwrap().args
}

#[test]
fn each_phase_does_what_it_says() {
    let _alone = alone();
    let args = args(
        "--devices 2 --keys 500 --operations 300 --value-bytes uniform:24-900 --phases insert,read,update,mixed,delete --mix 40:30:20:10 --depth 8 --distribution latest",
    );
    let mut bench = Kvsb::new(&args).unwrap();
    let mut phases: Vec<KvsbPhaseFigures> = Vec::new();
    for name in &args.phases {
        phases.push(bench.run_phase(name).unwrap());
    }
    let [insert, read, update, mixed, delete] = &phases[..] else { panic!("{phases:?}") };
    let kinds = |phase: &KvsbPhaseFigures| -> Vec<(String, u64)> {
        phase.all.latencies.iter().map(|one| (one.operation.clone(), one.operations)).collect()
    };
    assert_eq!(kinds(insert), [("insert".into(), 1000)]);
    assert_eq!(kinds(read), [("read".into(), 600)]);
    assert_eq!(kinds(update), [("update".into(), 600)]);
    assert_eq!(kinds(delete), [("delete".into(), 600)]);
    assert_eq!(kinds(mixed).len(), 4);
    assert_eq!(mixed.all.operations, 600);
    let of_mixed = |name: &str| kinds(mixed).into_iter().find(|(of, _)| of == name).unwrap().1;
    assert_eq!(insert.all.pairs, 1000);
    assert_eq!(delete.all.pairs, 1000 + of_mixed("insert") - of_mixed("delete") - 600);
    for phase in &phases {
        let writes = phase.phase != "read" && phase.phase != "delete";
        let all = &phase.all;
        assert_eq!(
            (all.wrong, all.stored_bytes > 0, all.amplification >= 1.0),
            (0, writes, writes),
            "{phase:?}"
        );
        assert_eq!(all.host_amplification, f64::from(u8::from(writes)), "each pair goes to its device once");
        assert_eq!(all.host_bytes, all.stored_bytes);
        // What the stretches have together is what the phase has.
        for figures in phase.devices.iter().chain([all]) {
            let mut from = 0.0;
            let stretch = |window: &course::KvsbWindow| {
                window.ops_per_s * (window.until_s - std::mem::replace(&mut from, window.until_s))
            };
            let begun: f64 = figures.course.iter().map(stretch).sum();
            assert!((begun - figures.operations as f64).abs() < 1e-3, "{begun} of {}", figures.operations);
            let cores = |window: &course::KvsbWindow| window.client_cores + window.device_cores;
            assert!(figures.course.iter().map(cores).sum::<f64>() > 0.0, "{figures:?}");
        }
        assert!(all.flash_bytes_written >= all.stored_bytes && all.client_cpu_s > 0.0, "{phase:?}");
        assert_eq!(all.operations, phase.devices.iter().map(|device| device.operations).sum::<u64>());
        assert_eq!(phase.devices.len(), 2);
    }
    // Text and JSON are made of the same numbers.
    let text = figures::tables(&phases);
    let again: Vec<KvsbPhaseFigures> =
        serde_json::from_str(&serde_json::to_string(&phases).unwrap()).unwrap();
    assert_eq!(again, phases);
    assert_eq!(figures::tables(&again), text);
    for line in ["insert 1", "mixed all", "delete 2"] {
        assert!(text.contains(line), "{text}");
    }
    bench.close().unwrap();
}

#[test]
fn a_device_that_answers_with_something_else_is_noticed() {
    let _alone = alone();
    let args = args("--keys 50 --operations 2000 --phases insert,read");
    for wrong in [&b"another value, which is long enough for a head"[..], b""] {
        let mut bench = Kvsb::new(&args).unwrap();
        bench.run_phase("insert").unwrap();
        assert_eq!(bench.run_phase("read").unwrap().wrong(), 0);
        let Instance { device, client } = &mut bench.instances[0];
        let mut host = Host::new(device.take().unwrap());
        let queue = host.open_queue(1, 1024);
        let space = host.find_space(queue, SPACE).unwrap().id;
        let key = client.key(7);
        let store = HostRequest::Store { space, key: &key, value: wrong, mode: StoreMode::Post };
        host.call(queue, store).unwrap();
        *device = Some(host.into_device());
        let refused = bench.run_phase("read").unwrap_err();
        assert!(refused.contains("answers were wrong"), "{refused}");
    }
}

#[test]
fn devices_on_files_are_made_and_none_is_overwritten() {
    let _alone = alone();
    let directory = std::env::temp_dir().join(format!("hedgerow-kvsb-{}", std::process::id()));
    hedgerow_device::create_directories(&directory).unwrap();
    let (device, json) = (directory.join("device"), directory.join("out.json"));
    let given = format!(
        "--files {} --json {} --keys 200 --rate 20000 --immediate --no-pin --phases insert,mixed",
        device.display(),
        json.display()
    );
    run(&args(&given)).unwrap();
    let written: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(written["settings"]["suite"], "kvsb");
    assert_eq!(written["results"][0]["all"]["operations"], 200);
    // At 20,000 a second 200 take 10 ms.
    assert!(written["results"][0]["all"]["seconds"].as_f64().unwrap() >= 0.00995, "{written}");
    let refused = run(&args(&given)).unwrap_err();
    assert!(refused.contains("no device can be made of") && refused.contains("not empty"), "{refused}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let _alone = alone();
    for (given, said) in [
        ("--devices 0", "--devices must be 1"),
        ("--keys 0", "--keys must be 1"),
        ("--depth 0", "--depth must be 1"),
        ("--depth 65536", "65535 at most, not 65536"),
        ("--depth 65535 --value-bytes 2097152", "the limit is 4294967296"),
        ("--rounds 0", "--rounds must be 1"),
        ("--model --cores 0", "--cores must be 1 to 4096"),
        ("--model --cpu-ns 0", "--cpu-ns must be 1"),
        ("--model --bus 0b", "--bus must be 1"),
        ("--key-bytes 15", "16 to 255, not 15"),
        ("--key-bytes 256", "16 to 255, not 256"),
        ("--value-bytes 3000000", "2097152 at most"),
        ("--rate 0", "--rate"),
        ("--mix 50:50", "four percents"),
        ("--mix 50:50:1:0", "100 together"),
        ("--phases read", "put insert in front"),
        ("--phases insert,reed", "no phase 'reed'"),
        ("--size 8mb --value-bytes 40000", "values of up to 32768 bytes"),
        ("--size 1mb", "8388608 bytes at least"),
    ] {
        let refused = Kvsb::new(&args(given)).unwrap_err();
        assert!(refused.contains(said), "{given}: {refused}");
    }
    assert!(Parsed::try_parse_from(["kvsb", "--value-bytes", "many"]).is_err());
    assert!(Parsed::try_parse_from(["kvsb", "--size", "many"]).is_err());
    assert!(Parsed::try_parse_from(["kvsb", "--cpu-ns", "5"]).is_err(), "what is for the model alone");
}

/// What a device refuses is told as it says it, and not as an answer that was wrong.
#[test]
fn a_device_that_is_full_says_so() {
    let _alone = alone();
    let args = args("--keys 20000 --value-bytes 1000 --size 8mb --phases insert");
    let refused = Kvsb::new(&args).unwrap().run_phase("insert").unwrap_err();
    assert!(refused.contains("full") && !refused.contains("wrong"), "{refused}");
}

/// A page and its JSON, of several devices and rounds.
#[test]
fn the_report_tells_all_that_was_measured() {
    let _alone = alone();
    let directory = crate::bench::paper::tests::unique_directory("kvsb-report");
    let path = |name: &str| directory.join(name).display().to_string();
    let given = format!(
        "--files {},{} --keys 300 --rounds 3 --depth 4 --html {} --json {} --phases insert,update,mixed,update,delete",
        path("one"),
        path("two"),
        path("out.html"),
        path("out.json")
    );
    let args = args(&given);
    run(&args).unwrap();
    let refused = run(&args).unwrap_err();
    assert!(refused.contains("one is there already"), "{refused}");
    assert!(directory.join("one").is_file(), "it is not removed");
    let page = std::fs::read_to_string(directory.join("out.html")).unwrap();
    let document: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(directory.join("out.json")).unwrap()).unwrap();
    let charts = elements(&page).iter().filter(|element| *element == "svg").count();
    // Throughput 2, latencies 5 and one for each operation of each phase (8), processors 3, courses 10, amplification 2, space 3.
    assert_eq!(charts, 33);
    for said in [
        "Measured. 2 devices on ",
        "Nothing here was measured on a drive",
        "Latency: mixed",
        "Latency: update 2",
        "Over time: delete",
        "at the host",
        "logical: keys and values",
        "in several rounds",
        "rounds: 3",
        "All phases in numbers",
    ] {
        assert!(page.contains(said), "{said}");
    }
    assert!(!page.contains("href=\"#model\"") && document.get("model").is_none(), "nobody asked the model");
    for name in ["machine", "place", "version"] {
        assert!(document["settings"][name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    let results = document["results"].as_array().unwrap();
    let rounds: Vec<u64> = results.iter().map(|phase| phase["round"].as_u64().unwrap()).collect();
    assert_eq!(rounds, [[1; 5], [2; 5], [3; 5]].concat());
    // The middle of three, and both ends, as the table has them.
    let mut rates: Vec<f64> = [0, 5, 10].map(|at| results[at]["all"]["ops_per_s"].as_f64().unwrap()).into();
    rates.sort_by(f64::total_cmp);
    let [least, middle, most] = [0, 1, 2].map(|at| crate::bench::report::count(rates[at]));
    let phases: Vec<KvsbPhaseFigures> = serde_json::from_value(document["results"].clone()).unwrap();
    let text = page::text(&phases, None);
    let line = text.lines().find(|line| line.starts_with("insert all")).unwrap();
    assert!(line.contains(&format!("{middle} ({least} to {most})")), "{line}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn the_model_stands_beside_what_went_into_it() {
    let _alone = alone();
    let args = args("--keys 400 --depth 8 --phases insert --model --cores 1");
    let model = KvsbModel::run(&args).unwrap();
    let of = |curve: &&model::ModelCurve| (curve.operation == "insert", curve.value_bytes) == (true, 64);
    let [host, both, twice] = model.curves.iter().filter(of).collect::<Vec<_>>()[..] else {
        panic!("{model:?}")
    };
    let measured = model.measured.iter().find(|one| one.devices == 1 && one.value_bytes == 64).unwrap();
    assert_eq!(host.cpu_ns, measured.client_ns.round() as u64);
    assert_eq!(both.cpu_ns, (measured.client_ns + measured.device_ns).round() as u64);
    assert!(twice.cpu_ns.abs_diff(2 * both.cpu_ns) <= 1);
    // One core for 18 drives: it is full, so twice the processor time is half the operations.
    let last = |curve: &model::ModelCurve| curve.points.last().unwrap().clone();
    assert!((last(twice).cores_busy - 1.0).abs() < 0.02, "{twice:?}");
    assert!((last(twice).ops_per_s * 1e-9 * twice.cpu_ns as f64 - 1.0).abs() < 0.02, "{twice:?}");
    assert!(last(twice).times_one < 0.6 * last(both).times_one, "{both:?} {twice:?}");
    // Three sizes, insertions and reads, one device and two, by themselves and in the page.
    assert_eq!((model.measured.len(), model.curves.len()), (12, 18));
    let phases = run_round(&args, 1).unwrap();
    let page = page::html(&args, &phases, Some(&model));
    let charts = elements(&page).iter().filter(|element| *element == "svg").count();
    let without =
        elements(&page::html(&args, &phases, None)).iter().filter(|element| *element == "svg").count();
    assert_eq!(charts, without + 6);
    for said in
        ["Put into the model", "Measured for it, in this run", "Of the model, but for", "measured, real time"]
    {
        assert!(page.contains(said), "{said}");
    }
    let text = page::text(&phases, Some(&model));
    assert!(
        text.contains("Measured for the model") && text.contains("Of the model: drives in virtual time"),
        "{text}"
    );
}

#[test]
fn a_processor_time_that_is_given_goes_into_the_model_beside_what_was_measured() {
    let _alone = alone();
    let args = args("--keys 100 --phases insert --model --cpu-ns 70000 --cores 2,3");
    let model = KvsbModel::run(&args).unwrap();
    assert_eq!((model.measured.len(), model.curves.len()), (12, 24));
    assert!(model.curves.iter().all(|curve| [70_000, 140_000].contains(&curve.cpu_ns)), "{model:?}");
    assert!(
        model.measured.iter().all(|one| one.client_ns > 0.0 && one.client_ns < 70_000.0 * 20.0),
        "{model:?}"
    );
    // Two cores at 70 us are 28,571 operations a second, less than one drive.
    let first = &model.curves[0].points[0];
    assert!((first.ops_per_s * 70e-6 / 2.0 - 1.0).abs() < 0.02, "{first:?}");
}
