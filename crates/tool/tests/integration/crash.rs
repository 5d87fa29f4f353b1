//! A process that is killed between any two stores of a command: what the command does is there as a whole, or not at all.

use std::collections::BTreeSet;

use hedgerow_device::{CrashModel, CrashSim, Survivors};

use crate::client::Server;

const OPTIONS: &[&str] = &["--durability", "process"];
/// Two times far away, ms since 1970.
const SOON: &str = "4000000000000";
const LATE: &str = "4100000000000";

/// What `looks` answer after a kill at each point of `commands`, which come after `before`.
fn states(before: &[&str], commands: &[&str], looks: &[&str]) -> BTreeSet<Vec<String>> {
    let filled = |line: &str| line.replace("SOON", SOON).replace("LATE", LATE);
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let server = Server::start_over(&sim, OPTIONS);
    let mut client = server.client();
    let mut run = |lines: &[&str]| {
        for line in lines {
            let reply = client.run(&filled(line));
            assert!(!reply.starts_with('('), "{line}: {reply}");
        }
        sim.ops()
    };
    let from = run(before);
    let to = run(commands);
    server.stop();
    let mut walk = sim.walk();
    walk.seek(from);
    let mut seen = BTreeSet::new();
    while walk.op_index() <= to {
        let image = CrashSim::from_image(&walk.image(Survivors::ProcessKill, 0));
        let server = Server::start_over(&image, OPTIONS);
        let mut client = server.client();
        seen.insert(looks.iter().map(|look| client.run(look)).collect());
        if !walk.next_op() {
            break;
        }
    }
    seen
}

/// There are two states: what was there before, and what is there afterwards.
fn is_one_change(before: &[&str], commands: &[&str], looks: &[&str], expected: [&[&str]; 2]) {
    let expected =
        expected.map(|state| state.iter().map(|text| text.replace("SOON", SOON).replace("LATE", LATE)));
    let expected: BTreeSet<Vec<String>> = expected.map(Iterator::collect).into();
    assert_eq!(states(before, commands, looks), expected, "{commands:?}");
}

#[test]
fn fields_are_written_with_their_expiry() {
    let looks = &["HMGET h:1 a b @c", "HPEXPIRETIME h:1 FIELDS 3 a b @c"];
    let before: &[&str] = &["[\"0\", nil, nil]", "[-1, -2, -2]"];
    is_one_change(
        &["HSET h:1 a 0"],
        &["HSETEX h:1 PXAT SOON FIELDS 3 a 1 b 2 @c 3"],
        looks,
        [before, &["[\"1\", \"2\", \"3\"]", "[SOON, SOON, SOON]"]],
    );
    is_one_change(
        &["HSET h:1 a 0 b 0 @c 0", "HPEXPIREAT h:1 SOON FIELDS 2 a @c", "HPEXPIREAT h:1 LATE FIELDS 1 b"],
        &["HSETEX h:1 KEEPTTL FIELDS 3 a 1 b 2 @c 3"],
        looks,
        [&["[\"0\", \"0\", \"0\"]", "[SOON, LATE, SOON]"], &["[\"1\", \"2\", \"3\"]", "[SOON, LATE, SOON]"]],
    );
    is_one_change(
        &["HSET h:1 a 0 b 0 @c 0"],
        &["HPEXPIREAT h:1 SOON FIELDS 3 a b @c"],
        looks,
        [&["[\"0\", \"0\", \"0\"]", "[-1, -1, -1]"], &["[\"0\", \"0\", \"0\"]", "[SOON, SOON, SOON]"]],
    );
    is_one_change(
        &["HSET h:1 a 0 b 0 @c 0", "HPEXPIREAT h:1 SOON FIELDS 3 a b @c"],
        &["HPERSIST h:1 FIELDS 3 a b @c"],
        looks,
        [&["[\"0\", \"0\", \"0\"]", "[SOON, SOON, SOON]"], &["[\"0\", \"0\", \"0\"]", "[-1, -1, -1]"]],
    );
}

#[test]
fn copies_have_the_expiries_of_their_fields() {
    let before = &[
        "HSET h:1 a 1 b 2 @c 3",
        "HPEXPIREAT h:1 SOON FIELDS 2 a @c",
        "HPEXPIREAT h:1 LATE FIELDS 1 b",
        "SET other:1 text",
    ];
    let looks = &["EXISTS h:1", "TYPE other:1", "HPEXPIRETIME other:1 FIELDS 3 a b @c"];
    let wrong = "(WRONGTYPE Operation against a key holding the wrong kind of value)";
    for (command, is_left) in [("COPY h:1 other:1 REPLACE", "1"), ("RENAME h:1 other:1", "0")] {
        is_one_change(
            before,
            &[command],
            looks,
            [&["1", "string", wrong], &[is_left, "hash", "[SOON, LATE, SOON]"]],
        );
    }
}

#[test]
fn transactions_with_expiries_of_fields_are_whole() {
    is_one_change(
        &["HSET h:1 n 1", "HPEXPIREAT h:1 SOON FIELDS 1 n", "HSET h:2 a 1", "HSET h:3 a 1"],
        &[
            "MULTI",
            "HINCRBY h:1 n 1",
            "HPEXPIREAT h:2 LATE FIELDS 1 a",
            "RENAME h:3 h:4",
            "HSETEX h:5 PXAT SOON FIELDS 1 a 1",
            "EXEC",
        ],
        &[
            "HGET h:1 n",
            "HPEXPIRETIME h:1 FIELDS 1 n",
            "HPEXPIRETIME h:2 FIELDS 1 a",
            "EXISTS h:3 h:4",
            "HPEXPIRETIME h:5 FIELDS 1 a",
        ],
        [&["\"1\"", "[SOON]", "[-1]", "1", "[-2]"], &["\"2\"", "[SOON]", "[LATE]", "1", "[SOON]"]],
    );
}
