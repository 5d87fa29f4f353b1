use clap::Parser;
use hedgerow_kvssd::{Host, HostRequest, StoreMode};

use super::*;

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
}

/// What a device refuses is told as it says it, and not as an answer that was wrong.
#[test]
fn a_device_that_is_full_says_so() {
    let _alone = alone();
    let args = args("--keys 20000 --value-bytes 1000 --size 8mb --phases insert");
    let refused = Kvsb::new(&args).unwrap().run_phase("insert").unwrap_err();
    assert!(refused.contains("full") && !refused.contains("wrong"), "{refused}");
}
