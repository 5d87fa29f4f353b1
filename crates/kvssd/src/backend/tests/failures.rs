//! Devices that fail, are damaged or are full.

use super::*;

/// Keys of each device, of the first so many.
fn keys_by_device(backend: &KvssdBackend, keys: u64) -> Vec<Vec<u64>> {
    let mut of = vec![Vec::new(); backend.array.layout.read().numbers().count()];
    (0..keys).for_each(|n| of[owner(backend, &key(n))].push(n));
    of
}

/// A sync that fails takes the device's keys away, with errors that say what may have happened, and no others; opened anew it has all that was acknowledged.
#[test]
fn a_device_that_fails_takes_its_share_alone() {
    let sims = sims(3);
    let options = options(AckMode::Immediate);
    let backend = KvssdBackend::open(&media(&sims), &options).unwrap();
    let mut session = backend.session().unwrap();
    let session = &mut *session;
    for n in 0..60 {
        put(session, &key(n), b"before", Expect::Any).unwrap();
    }
    let of = keys_by_device(&backend, 60);
    assert!(of.iter().all(|keys| keys.len() > 4));
    sims[1].fail_persist_after(0, true);
    let first = put(session, &key(of[1][0]), b"after", Expect::Any);
    assert_eq!(kind(first), ErrorKind::Indeterminate, "it is in the open page, and perhaps on the medium");
    assert_eq!(kind(put(session, &key(of[1][1]), b"after", Expect::Any)), ErrorKind::Unavailable);
    assert_eq!(kind(get(session, &key(of[1][1]))), ErrorKind::Unavailable);
    let all: Vec<Vec<u8>> = (0..60).map(key).collect();
    let puts: Vec<_> =
        all.iter().map(|key| Command::Put { key, value: b"after", expect: Expect::Present }).collect();
    for (n, stored) in ask(session, &puts).into_iter().enumerate() {
        match of[1].contains(&(n as u64)) {
            true => assert_eq!(kind(stored), ErrorKind::Unavailable),
            false => assert!(matches!(stored, Ok(Answer::Stored(_))), "{n}: {stored:?}"),
        }
    }
    assert_eq!(kind(answer(session, Command::Persist)), ErrorKind::Unavailable);
    assert_eq!(kind(answer(session, Command::Count { group: GROUP })), ErrorKind::Unavailable);
    let walked = answer(session, Command::Walk { group: GROUP, from: Cursor::START, pairs: 1_000 });
    let Ok(Answer::Walked(pairs, Some(_))) = walked else { panic!("the first device's come: {walked:?}") };
    assert_eq!(pairs.len(), of[0].len());
    assert_eq!(kind(backend.close()), ErrorKind::Unavailable);
    sims[1].clear_faults();
    drop(backend);
    let backend = KvssdBackend::open(&media(&sims), &options).unwrap();
    let session = &mut *backend.session().unwrap();
    for n in 0..60 {
        let value = get(session, &key(n)).unwrap().unwrap().value;
        let expected: &[&[u8]] = match () {
            () if n == of[1][0] => &[b"before", b"after"],
            () if of[1].contains(&n) => &[b"before"],
            () => &[b"after"],
        };
        assert!(expected.contains(&&value[..]), "{n}: {value:?}");
    }
}

/// A full device refuses, and loses nothing; what is deleted makes room, and everything can be overwritten for ever.
#[test]
fn a_full_device_refuses_and_loses_nothing() {
    let backend = in_memory(2);
    let mut session = backend.session().unwrap();
    let session = &mut *session;
    let (mut there, mut refused) = (Vec::new(), 0);
    for n in 0.. {
        match put(session, &key(n), &[n as u8; 1_000], Expect::Absent) {
            Ok(_) => there.push(n),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                refused += 1;
            }
        }
        // Until both are full.
        if refused == 40 {
            break;
        }
    }
    let used = |backend: &KvssdBackend, n| backend.with_device(n, |device| device.info().utilization());
    assert!([0, 1].iter().all(|&n| used(&backend, n).unwrap() > 9_000));
    for round in 0..20 {
        for &n in &there {
            put(session, &key(n), &[n as u8 ^ round; 1_000], Expect::Present).unwrap();
        }
    }
    for &n in &there {
        assert_eq!(get(session, &key(n)).unwrap().unwrap().value[..], [n as u8 ^ 19; 1_000]);
    }
    assert_eq!(walk(session, GROUP, 64).len(), there.len());
    // All at once, and then as much again: a refusal that gc can help is not told.
    answer(session, Command::Clear { group: GROUP }).unwrap();
    for &n in &there {
        put(session, &key(n), &[1; 1_000], Expect::Absent).unwrap();
    }
}

/// A pair that cannot be read is told of as damaged, by a read and by a walk, and the walk goes on behind it.
#[test]
fn a_pair_that_cannot_be_read_is_told_of_and_walked_by() {
    let sims = sims(1);
    let backend = KvssdBackend::open(&media(&sims), &options(AckMode::Buffered)).unwrap();
    let session = &mut *backend.session().unwrap();
    for n in 0..20 {
        put(session, &key(n), &[n as u8; 3_000], Expect::Any).unwrap();
    }
    let blocks = backend.with_device(0, |device| device.blocks_in_use()).unwrap();
    let start = blocks[0].0.start;
    backend.with_device(0, |device| device.fail_reads(start + 8_000..start + 8_100));
    let damaged = (0..20).filter(|&n| get(session, &key(n)).is_err_and(|e| e.kind() == ErrorKind::Corrupted));
    assert_eq!(damaged.count(), 1);
    let walked = walk(session, GROUP, 3);
    assert_eq!(walked.len(), 20);
    assert_eq!(walked.iter().filter(|pair| pair.value.is_empty()).count(), 1);
    assert_eq!(answer(session, Command::Count { group: GROUP }).unwrap(), Answer::Counted(20));
}
