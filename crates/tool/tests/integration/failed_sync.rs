//! A sync that fails beneath the server: who is told what.

use std::time::Duration;

use hedgerow::{Db, Schema, Type};
use hedgerow_device::{CapacityTier, CrashModel, CrashSim, FastTier, Fault, FileCall, Refusal};
use hedgerow_sim::eventually;

use crate::client::{Client, Server};

const CAUSE: &str = "could not fdatasync the simulated medium: Input/output error (os error 5)";

fn is_refused(reply: &str) -> bool {
    reply.starts_with("(MISCONF ") && reply.contains(CAUSE)
}

fn field(client: &mut Client, section: &str, name: &str) -> String {
    let info = client.run(&format!("INFO {section}"));
    let (_, rest) = info.split_once(&format!("{name}:")).unwrap_or_else(|| panic!("no {name} in {info}"));
    rest[..rest.find("\\r\\n").unwrap()].to_string()
}

/// The first reply that refuses, to `command` given again and again.
fn first_refusal(client: &mut Client, command: &str) -> String {
    let mut reply = String::new();
    eventually("it is acknowledged no more", || {
        reply = client.run(command);
        reply.starts_with('(')
    });
    reply
}

/// Whoever waits for a sync that fails is told so; so is everybody after him, at once, and nobody is left waiting.
#[test]
fn everybody_is_told_of_a_failed_sync() {
    for (durability, first) in [
        ("immediate", "SET a 2"),
        ("interval:20ms", "SET a 2"),
        ("process", "SAVE"),
        ("process", "WAITAOF 1 0 0"),
    ] {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let server = Server::start_over(&sim, &["--durability", durability]);
        let mut client = server.client();
        client.script(&[("SET a 1", "OK"), ("SAVE", "OK")]);
        assert_eq!(field(&mut client, "persistence", "aof_last_write_status"), "ok");
        client.run("SET b 1");
        sim.fail_persist_after(0, true);
        let place = format!("{durability}, {first}");
        let refusal = first_refusal(&mut client, first);
        assert!(is_refused(&refusal), "{place}: {refusal}");
        for command in
            ["SET c 1", "DEL a", "HSET h f 1", "SAVE", "BGSAVE", "WAIT 0 0", "WAITAOF 0 0 0", "WAITAOF 1 0 0"]
        {
            let reply = client.run(command);
            assert!(is_refused(&reply), "{place}, then {command}: {reply}");
        }
        // A reply that depends on no sync comes through, among others that do.
        client.send_raw(b"GET b\r\nSET a 3\r\nSAVE\r\nGET b\r\n");
        let replies = [(); 4].map(|()| client.reply());
        assert_eq!((replies[0].as_str(), replies[3].as_str()), ("\"1\"", "\"1\""), "{place}: reads go on");
        assert!(is_refused(&replies[1]) && is_refused(&replies[2]), "{place}: {replies:?}");
        for name in ["aof_last_write_status", "rdb_last_bgsave_status"] {
            assert_eq!(field(&mut client, "persistence", name), "err", "{place}: {name}");
        }
        // The first refusal, those of eight commands, and two among four; whether the command was done before or not.
        assert_eq!(field(&mut client, "errorstats", "errorstat_MISCONF"), "count=11", "{place}");
        assert_eq!(field(&mut client, "hedgerow", "sync_failure"), CAUSE, "{place}");
        assert!(field(&mut client, "hedgerow", "sync_failed_at_ms").len() >= 13, "{place}");
        let says = server.stop_failed();
        assert!(says.contains(CAUSE), "{place}: {says}");
    }
}

/// What else closes the store for writing is told as a failed sync is: an edit of the manifest of sorted tables fails, and no sync of the log.
#[test]
fn everybody_is_told_of_a_failed_edit() {
    for durability in ["immediate", "interval:20ms", "process"] {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let mut opened = None;
        let server = Server::start_with(&["--durability", durability], |options, clock| {
            let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
            let db = Db::open_at(tiers, options, clock)?;
            opened = Some(db.clone());
            Ok(db)
        });
        let mut client = server.client();
        client.script(&[("SET a 1", "OK"), ("SAVE", "OK")]);
        let db = opened.unwrap();
        let loaded = db.create_table("loaded", Schema::new().field("n", Type::U64)).unwrap();
        let load = |n: u64| loaded.load(|loader| loader.push(b"key", &hedgerow::row! { n: n }));
        // The first makes the manifest. Of every one after it one sync more comes through, until one of an edit does not.
        load(0).unwrap();
        let mut after = 0;
        while db.write_failure().is_none() {
            sim.fail_file_calls(FileCall::Sync, Fault { after, sticky: false, refusal: Refusal::Io });
            let outcome = load(after);
            sim.clear_faults();
            after += 1;
            assert!(after < 40, "no sync of an edit was refused: {outcome:?}");
        }
        let cause = "an edit of the manifest of sorted tables failed";
        let is_refused = |reply: &str| reply.starts_with("(MISCONF ") && reply.contains(cause);
        for command in ["SET c 1", "DEL a", "HSET h f 1", "SAVE", "BGSAVE", "WAIT 0 0", "WAITAOF 1 0 0"] {
            let reply = client.run(command);
            assert!(is_refused(&reply), "{durability}, {command}: {reply}");
        }
        assert_eq!(client.run("GET a"), "\"1\"", "reads go on");
        assert_eq!(field(&mut client, "persistence", "aof_last_write_status"), "err");
        assert_eq!(field(&mut client, "hedgerow", "sync_failure"), "");
        assert!(field(&mut client, "hedgerow", "write_failure").contains(cause));
        assert!(field(&mut client, "hedgerow", "write_failed_at_ms").len() >= 13);
        drop((loaded, db));
        let says = server.stop_failed();
        assert!(says.contains(cause), "{durability}: {says}");
    }
}

/// Commands sent together with the one whose sync fails: each that was to be durable is refused, in its place.
#[test]
fn replies_that_wait_for_a_failed_sync_become_errors() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let server = Server::start_over(&sim, &["--durability", "immediate"]);
    let mut client = server.client();
    client.script(&[("SET a 1", "OK"), ("HSET h f 1", "1")]);
    sim.fail_persist_after(0, true);
    client.send_raw(
        b"GET a\r\nSET a 2\r\nPING\r\nMULTI\r\nHSET h f 2\r\nGET a\r\nEXEC\r\nSAVE\r\nECHO end\r\n",
    );
    let replies = [(); 9].map(|()| client.reply());
    assert_eq!(
        [0, 2, 3, 4, 5, 8].map(|n: usize| replies[n].as_str()),
        ["\"1\"", "PONG", "OK", "QUEUED", "QUEUED", "\"end\""]
    );
    for n in [1, 6, 7] {
        assert!(is_refused(&replies[n]), "reply {n}: {}", replies[n]);
    }
    server.stop_failed();
}

/// A background save that fails is seen in INFO, and the next one is refused.
#[test]
fn a_failed_background_save_is_seen() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let server = Server::start_over(&sim, &["--durability", "process"]);
    let mut client = server.client();
    client.script(&[("SET a 1", "OK"), ("SAVE", "OK"), ("SET a 2", "OK")]);
    sim.fail_persist_after(0, false);
    assert_eq!(client.run("BGSAVE"), "Background saving started");
    let refusal = first_refusal(&mut client, "BGSAVE");
    assert!(is_refused(&refusal), "{refusal}");
    assert_eq!(field(&mut client, "persistence", "rdb_last_bgsave_status"), "err");
    assert_eq!(field(&mut client, "persistence", "rdb_bgsave_in_progress"), "0");
    // What was made durable before is noticed within a second.
    std::thread::sleep(Duration::from_millis(1_200));
    let saved = client.run("LASTSAVE");
    assert!(is_refused(&client.run("SAVE")));
    std::thread::sleep(Duration::from_millis(1_200));
    assert_eq!(client.run("LASTSAVE"), saved, "nothing was saved since");
    server.stop_failed();
}
