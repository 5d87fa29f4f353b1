//! Servers over one pool are endpoints of one data set: what clients of different ones do to one key comes to what one server would have made of it.

use std::collections::HashSet;
use std::thread;

use rustix::process::Signal;

use super::client::{Client, Program};
use super::pool::{Up, signal};

const ENDPOINTS: usize = 3;

fn endpoints(up: &Up) -> [Program; ENDPOINTS] {
    [(); ENDPOINTS].map(|()| Program::spawn_over(&up.address(), &[]))
}

/// What each endpoint's client, on a thread of its own and given the endpoint's number, came to.
fn on_all<T: Send>(programs: &[Program; ENDPOINTS], run: impl Fn(usize, &mut Client) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let start = |(n, program): (usize, &Program)| {
            let mut client = program.client();
            scope.spawn(move || run(n, &mut client))
        };
        let threads: Vec<_> = programs.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn each_of_many_increments_at_three_servers_counts_once() {
    const CLIENTS: usize = 50;
    const EACH: usize = 200;
    let up = Up::start();
    let programs = endpoints(&up);
    let told = on_all(&programs, |n, _| {
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| programs[n].client()).collect();
        for client in &mut clients {
            (0..EACH).for_each(|_| client.send(&[b"INCR", b"counter"]));
        }
        let mut told: Vec<u64> = Vec::with_capacity(CLIENTS * EACH);
        for client in &mut clients {
            let first = told.len();
            told.extend((0..EACH).map(|_| client.reply().parse::<u64>().unwrap()));
            assert!(told[first..].is_sorted(), "a connection's commands follow one another");
        }
        told
    });
    let told: HashSet<u64> = told.into_iter().flatten().collect();
    let all = ENDPOINTS * CLIENTS * EACH;
    assert_eq!(told, (1..=all as u64).collect(), "each number is told once");
    let last = on_all(&programs, |_, client| client.run("GET counter"));
    assert!(last.iter().all(|count| *count == format!("\"{all}\"")), "{last:?}");
}

#[test]
fn a_field_is_new_at_one_of_three_servers() {
    const FIELDS: usize = 150;
    let up = Up::start();
    let programs = endpoints(&up);
    let new = on_all(&programs, |n, client| {
        let set = |i: usize| {
            let field = (i + n * FIELDS / ENDPOINTS) % FIELDS;
            client.run(&format!("HSET h f{field} {n}")).parse::<usize>().unwrap()
        };
        (0..FIELDS).map(set).sum::<usize>()
    });
    assert_eq!(new.iter().sum::<usize>(), FIELDS, "{new:?}");
    let fields = on_all(&programs, |_, client| client.run("HLEN h"));
    assert!(fields.iter().all(|count| *count == FIELDS.to_string()), "{fields:?}");
    let gone = on_all(&programs, |_, client| {
        (0..FIELDS).map(|i| client.run(&format!("HDEL h f{i}")).parse::<usize>().unwrap()).sum::<usize>()
    });
    assert_eq!(gone.iter().sum::<usize>(), FIELDS, "{gone:?}");
    assert_eq!(programs[0].client().run("EXISTS h"), "0");
}

#[test]
fn a_key_that_two_servers_make_has_one_type() {
    const KEYS: usize = 100;
    let up = Up::start();
    let programs = endpoints(&up);
    let replies = on_all(&programs, |n, client| {
        let line = |i: usize| match n {
            0 => format!("SET k{i} v NX"),
            1 => format!("HSET k{i} f v"),
            _ => format!("TYPE k{i}"),
        };
        (0..KEYS).map(|i| client.run(&line(i))).collect::<Vec<_>>()
    });
    let mut client = programs[2].client();
    for (i, seen) in replies[2].iter().enumerate() {
        let of_key = client.run(&format!("TYPE k{i}"));
        let (set, hash) = (&*replies[0][i], &*replies[1][i]);
        match &*of_key {
            "string" => assert!(set == "OK" && hash.starts_with("(WRONGTYPE"), "{i}: {set} {hash}"),
            "hash" => assert!(set == "nil" && hash == "1", "{i}: {set} {hash}"),
            other => panic!("{i}: {other}"),
        }
        assert!(*seen == of_key || seen == "none", "{i}: {seen} before {of_key}");
    }
}

#[test]
fn transactions_at_three_servers_lose_no_change() {
    const EACH: usize = 60;
    let up = Up::start();
    let programs = endpoints(&up);
    assert_eq!(programs[0].client().run("SET balance 0"), "OK");
    let lost = on_all(&programs, |_, client| {
        let (mut done, mut lost) = (0, 0);
        while done < EACH {
            assert_eq!(client.run("WATCH balance"), "OK");
            let balance: u64 = client.run("GET balance").trim_matches('"').parse().unwrap();
            assert_eq!(client.run("MULTI"), "OK");
            assert_eq!(client.run(&format!("SET balance {}", balance + 1)), "QUEUED");
            match &*client.run("EXEC") {
                "[OK]" => done += 1,
                "nil" => lost += 1,
                other => panic!("{other}"),
            }
        }
        lost
    });
    let balance = programs[1].client().run("GET balance");
    assert_eq!(
        balance,
        format!("\"{}\"", ENDPOINTS * EACH),
        "{lost:?} transactions were told that they lost"
    );
}

/// What is answered counts, what was told to be in doubt may, and all else does not.
#[test]
fn a_memory_node_that_ends_takes_no_increment_with_it() {
    const WANTED: usize = 400;
    let up = Up::start();
    let programs = endpoints(&up);
    let lost = up.processes()[1];
    let told = on_all(&programs, |n, client| {
        let (mut counted, mut in_doubt, mut is_killed) = (0, 0, n > 0);
        while counted < WANTED {
            if counted == WANTED / 4 && !std::mem::replace(&mut is_killed, true) {
                signal(lost, Signal::KILL);
            }
            let reply = client.run("INCR counter");
            match reply.parse::<u64>() {
                Ok(_) => counted += 1,
                Err(_) if reply.starts_with("(ERR it may have been done, or not:") => in_doubt += 1,
                Err(_) => assert!(reply.starts_with("(ERR "), "{reply}"),
            }
        }
        (counted, in_doubt)
    });
    let (counted, in_doubt) = told.iter().fold((0, 0), |sum, told| (sum.0 + told.0, sum.1 + told.1));
    for program in &programs {
        let count: usize = program.client().run("GET counter").trim_matches('"').parse().unwrap();
        assert!(
            (counted..=counted + in_doubt).contains(&count),
            "{count}: {counted} counted, {in_doubt} in doubt"
        );
    }
}
