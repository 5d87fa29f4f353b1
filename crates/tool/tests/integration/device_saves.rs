//! `SAVE`, `BGSAVE`, `WAIT` and `WAITAOF` over key-value devices: what was answered before them is there after a power cut, and who cannot be told so is refused.

use hedgerow_device::{Clock, CrashModel, CrashSim, Survivors};
use hedgerow_kvssd::{ArrayMedium, Geometry, KvssdBackend, KvssdOptions};
use hedgerow_sim::eventually;

use crate::client::{Client, Server, clock};

const SMALL: Geometry = Geometry { page_bytes: 4096, block_bytes: 256 << 10, blocks: 24 };

fn open(sims: &[CrashSim]) -> KvssdBackend {
    let media: Vec<ArrayMedium> = sims.iter().cloned().map(ArrayMedium::Simulated).collect();
    let options = KvssdOptions { geometry: Some(SMALL), ..KvssdOptions::default() };
    KvssdBackend::open(&media, &options).unwrap()
}

fn sims() -> Vec<CrashSim> {
    (0..3).map(|_| CrashSim::new(CrashModel::Pages, SMALL.bytes() + (1 << 20))).collect()
}

/// How many of the keys are there after a power cut of now that keeps nothing which is not durable.
fn survivors(sims: &[CrashSim], prefix: &str, keys: u32) -> u32 {
    let cut = sims.iter().map(|sim| {
        let mut walk = sim.walk();
        walk.seek(sim.ops());
        CrashSim::from_image(&walk.image(Survivors::None, 0))
    });
    let server = Server::start_over_pairs(&open(&cut.collect::<Vec<_>>()), &Clock::system(), &[]);
    let mut client = server.client();
    let is_there = |n: &u32| client.run(&format!("GET {prefix}{n}")) == format!("\"{n}\"");
    (0..keys).filter(is_there).count() as u32
}

fn set(client: &mut Client, prefix: &str, keys: u32) {
    (0..keys).for_each(|n| assert_eq!(client.run(&format!("SET {prefix}{n} {n}")), "OK"));
}

/// A line of `INFO persistence`.
fn told(client: &mut Client, name: &str) -> String {
    let info = client.run("INFO persistence");
    let mut lines = info.split("\\r\\n").filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    lines.next().unwrap().to_owned()
}

#[test]
fn what_was_answered_before_is_durable_on_all_devices() {
    let sims = sims();
    let server = Server::start_over_pairs(&open(&sims), &Clock::system(), &[]);
    let mut client = server.client();
    for (line, answer) in [("SAVE", "OK"), ("WAIT 0 0", "0"), ("WAITAOF 1 0 0", "[1, 0]")] {
        let prefix = &line[..5.min(line.len())].trim().to_lowercase();
        let prefix = format!("{prefix}{}", line.len());
        set(&mut client, &prefix, 60);
        assert!(survivors(&sims, &prefix, 60) < 60, "{line}: the medium forgets what nobody made durable");
        // Those that come behind it in one pipeline wait for it.
        client.send_raw(format!("{line}\r\nGET {prefix}7\r\n").as_bytes());
        assert_eq!(client.reply(), answer);
        assert_eq!(survivors(&sims, &prefix, 60), 60, "{line}");
        assert_eq!(client.reply(), "\"7\"");
    }
}

#[test]
fn a_bgsave_ends_and_lastsave_tells_when() {
    let (sims, clock) = (sims(), clock());
    let server = Server::start_over_pairs(&open(&sims), &clock, &[]);
    let mut client = server.client();
    let began: u64 = client.run("LASTSAVE").parse().unwrap();
    set(&mut client, "k", 60);
    clock.advance_ms(5_000);
    assert_eq!(client.run("LASTSAVE"), began.to_string(), "nobody saved");
    assert_eq!(client.run("BGSAVE"), "Background saving started");
    eventually("it ends", || told(&mut client, "rdb_bgsave_in_progress") == "0");
    assert_eq!(survivors(&sims, "k", 60), 60);
    assert_eq!(client.run("LASTSAVE"), (began + 5).to_string());
    assert_eq!(told(&mut client, "rdb_last_bgsave_status"), "ok");
    assert_ne!(told(&mut client, "rdb_last_bgsave_time_sec"), "-1");
    clock.advance_ms(2_000);
    assert_eq!(client.run("BGSAVE SCHEDULE"), "Background saving started");
    eventually("it ends", || client.run("LASTSAVE") == (began + 7).to_string());
    clock.advance_ms(2_000);
    assert_eq!(client.run("SAVE"), "OK");
    assert_eq!(client.run("LASTSAVE"), (began + 9).to_string());
    assert!(client.run("MULTI") == "OK" && client.run("SAVE").starts_with("(ERR"));
}

/// A device that cannot say that something is durable: nobody is told that it is, and the keys of the others go on.
#[test]
fn a_device_that_fails_has_the_saves_refused() {
    let sims = sims();
    let server = Server::start_over_pairs(&open(&sims), &Clock::system(), &[]);
    let mut client = server.client();
    set(&mut client, "k", 30);
    assert_eq!(client.run("SAVE"), "OK");
    let saved = client.run("LASTSAVE");
    set(&mut client, "k", 30);
    sims[1].fail_persist_after(0, true);
    let refused = client.run("SAVE");
    assert!(refused.starts_with('(') && refused.contains("device 2"), "{refused}");
    assert_eq!(client.run("BGSAVE"), "Background saving started");
    eventually("it is told", || told(&mut client, "rdb_last_bgsave_status") == "err");
    assert_eq!(told(&mut client, "rdb_bgsave_in_progress"), "0");
    assert!(client.run("WAITAOF 1 0 0").contains("device 2"));
    assert_eq!(client.run("LASTSAVE"), saved);
    let stored = (0..30).filter(|n| client.run(&format!("SET k{n} {n}")) == "OK").count();
    assert!((5..30).contains(&stored), "{stored} of 30");
    drop(client);
    server.stop();
}
