//! A server over rows in sorted tables of which nothing is in memory: it answers as one over a store without, and its loop waits for none of them.

use hedgerow::{Compression, Db, Options, Row, Value};
use hedgerow_device::{CapacityTier, CrashModel, CrashSim, FastTier};

use crate::client::{Client, Server, TempDir};
use crate::info::info;

const KEYS: usize = 600;

/// Text that does not repeat.
fn text(n: usize) -> String {
    let mut x = n as u64;
    let mut word = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{x:016x}")
    };
    (0..30).map(|_| word()).collect()
}

/// Fills a store by commands.
fn filled(sim: &CrashSim) {
    let server = Server::start_over_tiers(sim, &[]);
    let mut client = server.client();
    for n in 0..KEYS {
        assert_eq!(client.run(&format!("HSET user:{n} n {n} text {}", text(n))), "2");
        assert_eq!(client.run(&format!("HSET h{n} a {n} text {}", text(n))), "2");
        assert_eq!(client.run(&format!("SET s{n} {}", text(n))), "OK");
    }
    server.stop();
}

/// Puts all rows of a store into sorted tables.
fn lowered(sim: &CrashSim) {
    let tiers = (FastTier::simulated(sim), CapacityTier::simulated(sim));
    let options = Options { compression: Compression::None, background: false, ..Options::new() };
    let db = Db::open_at(tiers, options, hedgerow_device::Clock::system()).unwrap();
    for name in db.table_names() {
        let table = db.table(&name).unwrap();
        let rows: Vec<Row> = table.scan().map(Result::unwrap).collect();
        if rows.is_empty() {
            continue;
        }
        table
            .load(|loader| {
                rows.iter().try_for_each(|row| {
                    let fields: Vec<(&str, Value<'_>)> = row.fields().collect();
                    loader.push(row.key(), &fields)
                })
            })
            .unwrap();
    }
    db.close().unwrap();
}

/// The same store, once with its rows in the log and once with all of them below and none in memory.
fn twins() -> [(CrashSim, Server); 2] {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    filled(&sim);
    let copy = CrashSim::from_image(&sim.process_kill());
    lowered(&copy);
    let copy = CrashSim::from_image(&copy.process_kill());
    copy.files_at_hand(false);
    [sim, copy].map(|sim| {
        let server = Server::start_over_tiers(&sim, &[]);
        (sim, server)
    })
}

/// A reply whose order means nothing, in order.
fn sorted(reply: &str) -> Vec<String> {
    let mut parts: Vec<String> =
        reply.split(", ").map(|part| part.trim_matches(['[', ']']).to_owned()).collect();
    parts.sort();
    parts
}

#[test]
fn commands_over_rows_below_answer_as_over_any_and_the_loop_waits_for_none() {
    let [(_, plain), (sim, lower)] = twins();
    let mut clients = [plain.client(), lower.client()];
    let mut both = |command: &str| {
        let [expected, reply] = clients.each_mut().map(|client| client.run(command));
        let same = reply == expected || command.starts_with("KEYS") && sorted(&reply) == sorted(&expected);
        assert!(same, "{command}: {reply:.300} and not {expected:.300}");
        reply
    };
    let many =
        |prefix: &str, from: usize| (from..from + 40).map(|n| format!(" {prefix}{n}")).collect::<String>();
    let commands = [
        "GET s1".to_owned(),
        "STRLEN s30".to_owned(),
        "TYPE s60".to_owned(),
        "TYPE user:60".to_owned(),
        "GET s999".to_owned(),
        "HGET user:1 n".to_owned(),
        "HGETALL h1".to_owned(),
        "HGETALL user:90".to_owned(),
        "HSET user:120 n 5 more 6".to_owned(),
        "HSET h120 a 5 more 6".to_owned(),
        "HGETALL h120".to_owned(),
        "HINCRBY user:150 n 7".to_owned(),
        "HDEL h150 a".to_owned(),
        "HGETALL h150".to_owned(),
        "DEL user:180".to_owned(),
        "DEL s180".to_owned(),
        "DEL h180".to_owned(),
        "EXISTS user:180 s180 h180 s181 h182".to_owned(),
        "EXPIRE s210 1000".to_owned(),
        "EXPIRE user:210 1000".to_owned(),
        "PERSIST s210".to_owned(),
        "TTL s240".to_owned(),
        "APPEND s270 more".to_owned(),
        "GET s270".to_owned(),
        "SETNX s300 x".to_owned(),
        "GETSET s330 x".to_owned(),
        "RENAME s360 t360".to_owned(),
        "COPY h360 h999".to_owned(),
        "HGETALL h999".to_owned(),
        format!("MGET{}", many("s", 400)),
        format!("EXISTS{}", many("user:", 400)),
        format!("EXISTS{}", many("h", 440)),
        format!("DEL{}{}{}", many("s", 480), many("h", 480), many("user:", 480)),
        format!("EXISTS{}{}{}", many("s", 470), many("h", 470), many("user:", 470)),
        "SCAN 0 COUNT 5".to_owned(),
        "KEYS user:5*".to_owned(),
        "KEYS *".to_owned(),
        "MULTI".to_owned(),
        "INCR c".to_owned(),
        "HGET user:510 n".to_owned(),
        "STRLEN s510".to_owned(),
        "HINCRBY h510 a 1".to_owned(),
        "DEL user:511".to_owned(),
        "EXPIRE h512 1000".to_owned(),
        "EXEC".to_owned(),
        "MGET c s511 s512".to_owned(),
        "WATCH user:513".to_owned(),
        "EXISTS user:511 h512".to_owned(),
    ];
    for command in &commands {
        both(command);
        // The loop's thread has no name.
        assert!(!sim.file_waiters().contains(""), "the loop waited for {command}");
    }
    let waiters = sim.file_waiters();
    assert!(waiters.contains("read"), "{waiters:?}");
}

/// Values of which no part of the cache of blocks takes one.
const LARGE: usize = 6 << 20;

fn number_in_info(client: &mut Client, name: &str) -> u64 {
    info(client, "hedgerow")[name].parse().unwrap()
}

/// What is brought for a command is there for all of it, also after it has changed something; and for no command after it.
#[test]
fn what_is_brought_for_a_command_is_held_for_it_alone() {
    let sim = CrashSim::new(CrashModel::Pages, 160 << 20);
    let server = Server::start_over_tiers(&sim, &[]);
    let mut client = server.client();
    for n in 0..5 {
        let value = text(n).repeat(LARGE / 480);
        assert_eq!(client.run(&format!("SET large{n} {value}")), "OK");
    }
    server.stop();
    lowered(&sim);
    let sim = CrashSim::from_image(&sim.process_kill());
    sim.files_at_hand(false);
    let server = Server::start_over_tiers(&sim, &[]);
    let mut client = server.client();
    let mut fetches_of = |commands: &[&str]| {
        let before = number_in_info(&mut client, "waits_for_rows");
        let replies: Vec<String> = commands.iter().map(|command| client.run(command)).collect();
        assert!(!sim.file_waiters().contains(""), "the loop waited for one of {commands:?}");
        (replies, number_in_info(&mut client, "waits_for_rows") - before)
    };
    let replied = |replies: &[&str]| replies.iter().map(|reply| reply.to_string()).collect::<Vec<_>>();
    let bytes = (text(0).repeat(LARGE / 480).len()).to_string();
    assert_eq!(fetches_of(&["STRLEN large4"]), (replied(&[&bytes]), 1));
    let copied = fetches_of(&["COPY large0 copy", "EXISTS large0"]);
    assert_eq!(copied, (replied(&["1", "1"]), 2), "what was brought for the copy was kept");
    assert_eq!(fetches_of(&["MGET large1 large2 large3"]).1, 1);
    assert_eq!(fetches_of(&["DEL large1 large2 large3"]), (replied(&["3"]), 1));
}

/// What the commands of a transaction lack, or watched keys, is brought together, however many they are, and the loop waits for none of it.
#[test]
fn what_many_keys_lack_is_brought_together() {
    let [_, (sim, lower)] = twins();
    let mut client = lower.client();
    // Each in a block of its own.
    let names = |prefix: &str| (0..40).map(|n| format!("{prefix}{}", n * 15)).collect::<Vec<String>>();
    let waits_of = |what: &str, client: &mut Client, expected: &str| {
        let mut watcher = lower.client();
        let before = number_in_info(&mut watcher, "waits_for_rows");
        assert_eq!(client.run(what), expected);
        let waited = number_in_info(&mut watcher, "waits_for_rows") - before;
        assert!((1..=3).contains(&waited), "{what:.40} waited {waited} times");
        assert!(!sim.file_waiters().contains(""), "the loop waited for {what:.40}");
    };
    waits_of(&format!("WATCH {}", names("h").join(" ")), &mut client, "OK");
    assert_eq!(client.run("MULTI"), "OK");
    names("s").iter().for_each(|name| assert_eq!(client.run(&format!("STRLEN {name}")), "QUEUED"));
    waits_of("EXEC", &mut client, &format!("[{}]", ["480"; 40].join(", ")));
}

#[test]
fn what_is_below_is_told() {
    let [(_, plain), (_, lower)] = twins();
    let [mut plain, mut lower] = [plain.client(), lower.client()];
    let numbers = |client: &mut Client, names: &[&str]| -> Vec<u64> {
        let told = info(client, "sortedtables");
        names.iter().map(|name| told[*name].parse().unwrap()).collect()
    };
    let names = ["sorted_runs", "sorted_files", "sorted_rows", "sorted_looks", "block_cache_misses"];
    assert_eq!(numbers(&mut plain, &names), [0; 5]);
    // Three tables were loaded, each with all of its rows.
    let told = numbers(&mut lower, &names);
    assert_eq!(told[..4], [3, 3, 3 * KEYS as u64, 0]);
    assert_eq!(lower.run("HGET user:1 n"), "\"1\"");
    let after = numbers(&mut lower, &names);
    assert!(after[3] == told[3] + 1 && after[4] > told[4], "{after:?} {told:?}");
    assert_eq!(info(&mut lower, "sortedtables")["move_failure"], "");
    // They are among the default sections, and among the store's metrics.
    assert_eq!(info(&mut lower, "")["sorted_rows"], (3 * KEYS).to_string());
    assert!(lower.run("HR.METRICS").contains("\"sorted_files\", 3, "));
}

#[test]
fn how_sorted_tables_are_kept_is_told() {
    let mut options = vec!["--capacity-bytes-max", "1gb", "--compression", "none"];
    options.extend(["--io-bytes-per-s", "50mb", "--persist-granule", "16kb"]);
    let server = Server::start(&options);
    let mut client = server.client();
    assert_eq!(info(&mut client, "")["background_io_bytes_per_s"], (50 << 20).to_string());
    client.script(&[
        ("CONFIG GET io-bytes-per-s", "[\"io-bytes-per-s\", \"52428800\"]"),
        ("CONFIG GET persist-granule", "[\"persist-granule\", \"16384\"]"),
        ("CONFIG GET capacity-bytes-max", "[\"capacity-bytes-max\", \"1073741824\"]"),
        ("CONFIG GET compression", "[\"compression\", \"none\"]"),
    ]);
    let [dir, capacity] = ["dir", "capacity"].map(|name| client.run(&format!("CONFIG GET {name}")));
    assert_eq!(capacity, dir.replace("\"dir\"", "\"capacity\"").replace("\"]", "/capacity\"]"));
}

#[test]
fn random_keys_are_of_all_rows_and_the_loop_waits_for_none() {
    let [(_, plain), (sim, lower)] = twins();
    let mut clients = [plain.client(), lower.client()];
    let mut chosen = std::collections::BTreeSet::new();
    for _ in 0..60 {
        let key = clients[1].run("RANDOMKEY");
        assert_eq!(clients[0].run(&format!("EXISTS {}", key.trim_matches('"'))), "1", "{key}");
        chosen.insert(key);
    }
    assert!(chosen.len() > 40, "of 1,800 keys few come twice: {chosen:?}");
    assert!(!sim.file_waiters().contains(""), "the loop waited for RANDOMKEY");
}

/// Rows that come to more than three times the fast tier of [`MANY_ON`].
const MANY: usize = 250_000;
const MANY_FAST_MIB: u64 = 32;
const MANY_ON: [&str; 4] = ["--fast-bytes-max", "32mb", "--durability", "process"];
/// Commands on their way at a time.
const PIPELINED: usize = 200;

/// Hashes in an order that is not that of their keys.
fn many_key(n: usize) -> String {
    format!("h:{}", n.wrapping_mul(7_919) % MANY)
}

/// Sends a command for each of many numbers, pipelined, and compares each reply.
fn for_many(client: &mut Client, send: impl Fn(&mut Client, usize), expected: impl Fn(usize) -> String) {
    for first in (0..MANY).step_by(PIPELINED) {
        (first..first + PIPELINED).for_each(|n| send(client, n));
        (first..first + PIPELINED).for_each(|n| assert_eq!(client.reply(), expected(n), "row {n}"));
    }
}

/// Writes them; now and then several writes are one.
fn fill_many(client: &mut Client) {
    for first in (0..MANY).step_by(PIPELINED) {
        client.send(&[b"MULTI"]);
        client.send(&[b"INCR", b"rounds"]);
        for n in first..first + PIPELINED {
            let (key, number, text) = (many_key(n), n.to_string(), text(n));
            client.send(&[b"HSET", key.as_bytes(), b"n", number.as_bytes(), b"text", text.as_bytes()]);
            if n % PIPELINED == 9 {
                client.send(&[b"EXEC"]);
            }
        }
        assert_eq!(client.reply(), "OK");
        (0..11).for_each(|_| assert_eq!(client.reply(), "QUEUED"));
        assert_eq!(client.reply(), format!("[{}{}]", first / PIPELINED + 1, ", 2".repeat(10)));
        (10..PIPELINED).for_each(|n| assert_eq!(client.reply(), "2", "row {}", first + n));
    }
}

/// Several times as much as the fast tier holds: nothing is refused, and all of it is answered, by the next server, too.
#[test]
fn a_server_takes_more_than_its_fast_tier_holds() {
    let dir = TempDir::new();
    let server = Server::start_on(dir.path(), &MANY_ON);
    let mut client = server.client();
    fill_many(&mut client);
    let told = info(&mut client, "sortedtables");
    let told = |name: &str| -> u64 { told[name].parse().unwrap() };
    assert!(told("sorted_runs") > 0 && told("sorted_rows") > MANY as u64 / 2);
    assert!(told("sorted_record_bytes") > 2 * (MANY_FAST_MIB << 20));
    assert!(number_in_info(&mut client, "fast_tier_bytes") <= MANY_FAST_MIB << 20);
    // Some go, some are changed, most of them below the log.
    let change = |client: &mut Client, n: usize| match n % 4 {
        0 => client.send(&[b"DEL", many_key(n).as_bytes()]),
        1 => client.send(&[b"HINCRBY", many_key(n).as_bytes(), b"n", b"1000000"]),
        _ => client.send(&[b"HGET", many_key(n).as_bytes(), b"n"]),
    };
    let changed = |n: usize| match n % 4 {
        0 => "1".to_owned(),
        1 => (n + 1_000_000).to_string(),
        _ => format!("\"{n}\""),
    };
    for_many(&mut client, change, changed);
    server.stop();

    let server = Server::start_on(dir.path(), &MANY_ON);
    let mut client = server.client();
    let get = |client: &mut Client, n: usize| client.send(&[b"HMGET", many_key(n).as_bytes(), b"n", b"text"]);
    let there = |n: usize| match n % 4 {
        0 => "[nil, nil]".to_owned(),
        1 => format!("[\"{}\", \"{}\"]", n + 1_000_000, text(n)),
        _ => format!("[\"{n}\", \"{}\"]", text(n)),
    };
    for_many(&mut client, get, there);
    server.stop();
}

/// What is left of a hash that was deleted is removed, though of one that was deleted before it that cannot be read.
#[test]
fn a_hash_that_cannot_be_read_keeps_nothing_else_from_being_removed() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let server = Server::start_over_tiers(&sim, &[]);
    let mut client = server.client();
    for (at, key) in [&b"bad"[..], b"good"].into_iter().enumerate() {
        assert_eq!(client.run_words(&[b"HSET", key, b"f", b"v"]), "1");
        for n in 0..40 {
            // No text: each is a row of its own.
            let name = [b"\xff", n.to_string().as_bytes()].concat();
            let value = text(1000 * (at + 1) + n);
            assert_eq!(client.run_words(&[b"HSET", key, &name, value.as_bytes()]), "1");
        }
    }
    drop(client);
    server.stop();
    lowered(&sim);
    let mut image = sim.process_kill();
    let place_of = |wanted: &str| {
        image.file_names().into_iter().find_map(|name| {
            let bytes = image.read_file(&name)?;
            let at = bytes.windows(wanted.len()).position(|part| part == wanted.as_bytes())?;
            Some((name, at as u64))
        })
    };
    // Of its first field, beside which it is noted whose they are.
    let (name, at) = place_of(&text(1000)).unwrap();
    image.corrupt_file(&name, at, 1);
    let sim = CrashSim::from_image(&image);
    let server = Server::start_over_tiers(&sim, &[]);
    let mut client = server.client();
    assert_eq!((client.run("DEL bad"), client.run("DEL good")), ("1".to_owned(), "1".to_owned()));
    // Some of it goes at each tick.
    std::thread::sleep(std::time::Duration::from_secs(2));
    drop(client);
    server.stop();
    let db = Db::open_at(
        (FastTier::simulated(&sim), CapacityTier::simulated(&sim)),
        Options { background: false, ..Options::new() },
        hedgerow_device::Clock::system(),
    )
    .unwrap();
    let left: Vec<Vec<u8>> = db
        .table_names()
        .iter()
        .flat_map(|name| db.table(name).unwrap().scan().reverse().map_while(Result::ok).collect::<Vec<_>>())
        .filter_map(|row| Some(row.get("value").ok()?.as_bytes()?.to_vec()))
        .collect();
    let is_left = |of: usize| (0..40).any(|n| left.iter().any(|value| value == text(of + n).as_bytes()));
    assert!(is_left(1000) && !is_left(2000), "of 80 fields {} rows are left", left.len());
}
