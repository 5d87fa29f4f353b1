//! Servers over one pool: every process is real, and some are killed.

use std::io::Read;

use hedgerow_sim::eventually;
use rustix::process::Signal;

use super::client::{Client, Program};
use super::pool::{Up, is_there, signal};

/// Nobody fails meanwhile: each is answered with a number.
fn increments(program: &Program, wanted: u64) {
    let mut client = program.client();
    for _ in 0..wanted {
        let reply = client.run("INCR shared");
        assert!(reply.parse::<u64>().is_ok(), "{reply}");
    }
}

#[test]
fn servers_over_one_pool_have_the_same_rows() {
    let up = Up::start();
    let [one, two] = [(); 2].map(|()| Program::spawn_over(&up.address(), &[]));
    let (mut first, mut second) = (one.client(), two.client());
    assert_eq!(first.run("HSET user:1 name Ada age 36"), "2");
    assert_eq!(second.run("HGET user:1 name"), "\"Ada\"");
    assert_eq!(second.run("HINCRBY user:1 age 1"), "37");
    assert_eq!(first.run("HGET user:1 age"), "\"37\"");
    assert_eq!(first.run("SET user:1x v"), "OK");
    assert!(second.run("HGET user:1x name").contains("WRONGTYPE"));
    assert_eq!(second.run("DBSIZE"), "2");
    for line in ["SAVE", "BGSAVE", "WAIT 0 0", "WAITAOF 1 0 0"] {
        assert!(second.run(line).contains("not made durable"), "{line}");
    }
    std::thread::scope(|scope| {
        for program in [&one, &two, &one] {
            scope.spawn(|| increments(program, 300));
        }
    });
    assert_eq!(first.run("GET shared"), "\"900\"");
    // A transaction whose key somebody else changed.
    assert_eq!(first.run("WATCH shared"), "OK");
    assert_eq!(second.run("INCR shared"), "901");
    assert_eq!(first.run("MULTI"), "OK");
    assert_eq!(first.run("INCR shared"), "QUEUED");
    assert_eq!(first.run("EXEC"), "nil");

    // A server is killed: what it had answered the other has.
    one.kill();
    eventually("its session is fenced", || second.run("GET shared") == "\"901\"");
    let processes = up.processes();
    signal(processes[1], Signal::KILL);
    eventually("writes go on in two copies", || second.run("SET later 1") == "OK");
    assert_eq!(second.run("HGET user:1 age"), "\"37\"");
    let three = Program::spawn_over(&up.address(), &[]);
    assert_eq!(three.client().run("GET later"), "\"1\"");

    // Where the pool ends its servers do.
    drop(up);
    for mut program in [two, three] {
        assert_eq!(program.child.wait().unwrap().code(), Some(1));
        let mut said = String::new();
        program.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("everything is persisted"), "{said}");
    }
}

#[test]
fn one_command_runs_a_pool_with_its_servers() {
    let mut up = Up::start_with(&["--serve", "127.0.0.1:0", "--serve", "127.0.0.1:0"]);
    let addresses = || {
        let lines = up.lines().into_iter();
        let of_line = |line: String| line.strip_prefix("hedgerow: listening on ")?.parse().ok();
        lines.filter_map(of_line).collect::<Vec<_>>()
    };
    eventually("both listen", || addresses().len() == 2);
    let both = addresses();
    let [mut one, mut two] = [0, 1].map(|n| Client::connect(both[n]));
    assert_eq!(one.run("SET k v"), "OK");
    assert_eq!(two.run("GET k"), "\"v\"");
    let processes = up.processes();
    assert_eq!(processes.len(), 6, "{:?}", up.lines());
    // One of them ends, and the rest goes on.
    signal(processes[4], Signal::KILL);
    let of_them = format!("process {}, ended (signal: 9", processes[4]);
    eventually("it is named", || up.lines().iter().any(|line| line.contains(&of_them)));
    let lives = |address| std::net::TcpStream::connect(address).is_ok();
    eventually("one is gone", || addresses().into_iter().filter(|&address| lives(address)).count() == 1);
    let rest = addresses().into_iter().find(|&address| lives(address)).unwrap();
    assert_eq!(Client::connect(rest).run("GET k"), "\"v\"");
    signal(up.child.id() as i32, Signal::INT);
    assert!(up.child.wait().unwrap().success(), "{:?}", up.lines());
    assert!(processes.iter().all(|&process| !is_there(process)), "{processes:?}");
}

/// Long values, at two servers, of which one is killed: what it wrote is there, and its blocks are not taken back from under it.
#[test]
fn values_of_a_mebibyte_are_everybodys() {
    let up = Up::start();
    let [one, two] = [(); 2].map(|()| Program::spawn_over(&up.address(), &[]));
    let (mut first, mut second) = (one.client(), two.client());
    let (long, longer) = (vec![b'a'; 100_000], vec![b'b'; 1 << 20]);
    let quoted = |value: &[u8]| format!("\"{}\"", String::from_utf8_lossy(value));
    assert_eq!(first.run_words(&[b"SET", b"longer", &longer]), "OK");
    assert!(second.run("GET longer") == quoted(&longer));
    assert_eq!(first.run_words(&[b"HSET", b"hash", b"long", &long, b"count", b"1"]), "2");
    assert_eq!(second.run("HINCRBY hash count 41"), "42");
    assert_eq!(first.run("HGET hash count"), "\"42\"");
    assert!(first.run("HGET hash long") == quoted(&long));
    assert_eq!(second.run("STRLEN longer"), (1 << 20).to_string());
    assert_eq!(first.run("GETRANGE longer 1048574 -1"), "\"bb\"");
    assert_eq!(second.run_words(&[b"APPEND", b"longer", b"c"]), ((1 << 20) + 1).to_string());
    let refused = first.run_words(&[b"SET", b"longest", &vec![b'd'; 3 << 20]]);
    assert!(refused.contains("this store keeps at most"), "{refused}");
    // Blocks of the killed one into which no slot leads are taken back, but for those that lists of parts lead into.
    one.kill();
    eventually("its session is fenced", || second.run("SET later 1") == "OK");
    assert!(second.run("HGET hash long") == quoted(&long));
    let three = Program::spawn_over(&up.address(), &[]);
    let mut third = three.client();
    assert_eq!(third.run_words(&[b"SET", b"more", &long]), "OK");
    assert!(third.run("GET longer") == quoted(&[&longer[..], b"c"].concat()));
    assert!(third.run("HGET hash long") == quoted(&long) && second.run("GET more") == quoted(&long));
    assert_eq!(third.run("DBSIZE"), "4");
}
