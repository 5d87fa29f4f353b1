//! Two copies where more than one thing goes wrong: a device that fails and comes back, another one that fails as one is put out, damage beside a failure.

use hedgerow_row::backend::{Becomes, PairChange};

use super::copies::two_copies;
use super::moments::Moments;
use super::moves_cut::POWER_CUTS;
use super::*;

fn open(sims: &[CrashSim], options: &KvssdOptions) -> std::result::Result<KvssdBackend, ArrayError> {
    KvssdBackend::open(&media(sims), options)
}

/// A key whose copies are on these devices, the first one's first.
fn key_on(map: &ArrayMap, first: usize, second: usize) -> Vec<u8> {
    let is_there = |key: &Vec<u8>| map.copies_of(key).eq([first, second]);
    (0..).map(key).find(is_there).unwrap()
}

/// The device of the first of two changes fails as it keeps the intent, and is there again after a power cut, wherever that comes before it is out: of the batch there is all or nothing.
#[test]
fn a_batch_is_whole_where_a_device_fails_and_comes_back() {
    let (sims, options) = (sims(3), two_copies(AckMode::Immediate));
    let backend = open(&sims, &options).unwrap();
    let session = &mut *backend.session().unwrap();
    let keys = [key_on(&map_of(&backend), 0, 1), key_on(&map_of(&backend), 1, 2)];
    for key in &keys {
        // From here on devices say that the shards are being written.
        put(session, key, b"before", Expect::Any).unwrap();
    }
    sims[0].fail_persist_after(0, true);
    let moments = Moments::watch(&sims);
    let changes = keys
        .iter()
        .map(|key| PairChange { key, expect: Expect::Any, becomes: Becomes::Value(b"after") })
        .collect();
    assert!(matches!(answer(session, Command::Batch { changes }), Ok(Answer::Batched(_))));
    assert_eq!(backend.copies_state().out, [1]);
    let (mut before, mut after) = (0, 0);
    for (_, ops) in moments.take() {
        for (seed, kind) in POWER_CUTS.into_iter().enumerate() {
            let sims: Vec<CrashSim> =
                (0..3).map(|n| crashed(&sims[n], ops[n], kind, (seed + n) as u64)).collect();
            let backend = open(&sims, &options).unwrap();
            let session = &mut *backend.session().unwrap();
            let values = keys.each_ref().map(|key| get(session, key).unwrap().unwrap().value.to_vec());
            assert_eq!(values[0], values[1], "{kind:?} at {ops:?}: some of a batch");
            *(if values[0] == b"before" { &mut before } else { &mut after }) += 1;
        }
    }
    assert!(before > 0 && after > 0, "{before} before, {after} after");
    // The intent goes once the device is out.
    for key in &keys {
        answer(session, Command::Delete { key, expect: Expect::Present }).unwrap();
    }
    assert_eq!(backend.array.intents.lock().len(), 0);
}
