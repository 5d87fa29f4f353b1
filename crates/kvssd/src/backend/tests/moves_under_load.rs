//! Threads that work while devices come and go.

use super::*;

const KEYS: u64 = 64;
const COUNTERS: u64 = 4;

/// Keys of its own, each value another one: a read has what was written last. And numbers that all of them add to.
fn work(session: &mut dyn Session, worker: u64, is_over: &AtomicBool) -> u64 {
    let of = |n: u64| key(1_000 * (worker + 1) + n);
    let mut random = Random::from_seed(worker);
    let mut last: Vec<Option<u64>> = vec![None; KEYS as usize];
    let mut value = 0u64;
    let mut additions = 0;
    while !is_over.load(Ordering::Acquire) {
        let n = random.below(KEYS);
        let expected = &mut last[n as usize];
        let got = get(session, &of(n)).unwrap();
        let seen = got.as_ref().map(|pair| u64::from_le_bytes(pair.value[..8].try_into().unwrap()));
        assert_eq!(seen, *expected, "worker {worker}, key {n}");
        if random.below(3) == 0 {
            let deleted = answer(session, Command::Delete { key: &of(n), expect: Expect::Any }).unwrap();
            assert_eq!(deleted, Answer::Deleted(expected.take().is_some()));
        } else {
            value += 1;
            let bytes = [&value.to_le_bytes()[..], &vec![worker as u8; random.below(200) as usize]].concat();
            let expect = got.map_or(Expect::Absent, |pair| Expect::Same(pair.mark));
            put(session, &of(n), &bytes, expect).unwrap();
            *expected = Some(value);
        }
        let counter = key(random.below(COUNTERS));
        let pair = get(session, &counter).unwrap();
        let number = pair.as_ref().map_or(0, |pair| u64::from_le_bytes(pair.value[..].try_into().unwrap()));
        let expect = pair.map_or(Expect::Absent, |pair| Expect::Same(pair.mark));
        match put(session, &counter, &(number + 1).to_le_bytes(), expect) {
            Ok(_) => additions += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
        }
    }
    additions
}

/// Pairs that stay come in each walk; those of a group that is cleared are gone then, and stay away.
fn look(session: &mut dyn Session, is_over: &AtomicBool, walks: &AtomicU64) {
    let (stays, goes) = (GROUP + 1, GROUP + 2);
    for n in 0..100u64 {
        put(session, &pair_key(stays, &n.to_be_bytes()), b"stays", Expect::Any).unwrap();
    }
    while !is_over.load(Ordering::Acquire) {
        let keys: std::collections::BTreeSet<_> =
            walk(session, stays, 9).into_iter().map(|pair| pair.key).collect();
        assert_eq!(keys.len(), 100);
        assert_eq!(answer(session, Command::Count { group: stays }).unwrap(), Answer::Counted(100));
        for n in 0..20u64 {
            put(session, &pair_key(goes, &n.to_be_bytes()), b"goes", Expect::Absent).unwrap();
        }
        assert_eq!(answer(session, Command::Count { group: goes }).unwrap(), Answer::Counted(20));
        answer(session, Command::Clear { group: goes }).unwrap();
        assert_eq!(walk(session, goes, 9).len(), 0);
        walks.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn threads_have_what_they_wrote_while_devices_come_and_go() {
    let geometry = Some(Geometry { blocks: 64, ..SMALL });
    let options = KvssdOptions { geometry, ..KvssdOptions::ack(AckMode::Buffered) };
    let backend = KvssdBackend::open(&[ArrayMedium::Memory, ArrayMedium::Memory], &options).unwrap();
    let (is_over, walks) = (AtomicBool::new(false), AtomicU64::new(0));
    let additions = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let mut session = backend.session().unwrap();
                let is_over = &is_over;
                scope.spawn(move || work(&mut *session, worker, is_over))
            })
            .collect();
        let mut session = backend.session().unwrap();
        let (over, walked) = (&is_over, &walks);
        let looker = scope.spawn(move || look(&mut *session, over, walked));
        // As many as the others need to have met moves, whichever thread is slow; one that has failed ends it.
        for round in 0.. {
            // Each device that is not the last leaves a number behind, of which there are 1,024.
            let is_enough = round >= 200 && walks.load(Ordering::Relaxed) >= 50 || round == 1_200;
            if is_enough || looker.is_finished() || workers.iter().any(|worker| worker.is_finished()) {
                break;
            }
            backend.add_device(&ArrayMedium::Memory).unwrap();
            backend.rebalance().unwrap().with_step_pairs(2).run().unwrap();
            backend.remove_device(2 - round % 3).unwrap().with_step_pairs(2).run().unwrap();
        }
        is_over.store(true, Ordering::Release);
        looker.join().unwrap();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u64>()
    });
    assert!(additions > 100, "{additions}");
    let session = &mut *backend.session().unwrap();
    let number = |n| get(session, &key(n)).unwrap().unwrap().value;
    let sum: u64 =
        (0..COUNTERS).map(number).map(|value| u64::from_le_bytes(value[..].try_into().unwrap())).sum();
    assert_eq!(sum, additions, "no addition is lost, nor done twice");
}
