//! Two copies: removals that cannot come to their end, and closings that are refused.

use super::copies::{same_copies, two_copies};
use super::*;

fn opened(sims: &[CrashSim], rows: u64) -> KvssdBackend {
    let backend = KvssdBackend::open(&media(sims), &two_copies(AckMode::Buffered)).unwrap();
    fill(&backend, rows);
    backend
}

fn fill(backend: &KvssdBackend, rows: u64) {
    let session = &mut *backend.session().unwrap();
    for n in 0..rows {
        put(session, &key(n), &[1; 100], Expect::Any).unwrap();
    }
    answer(session, Command::Persist).unwrap();
}

fn take_steps(mover: &mut Mover, steps: usize) {
    for _ in 0..steps {
        mover.step().unwrap();
    }
}

fn all_are_there(backend: &KvssdBackend, rows: u64) {
    let session = &mut *backend.session().unwrap();
    assert!((0..rows).all(|n| get(session, &key(n)).unwrap().unwrap().value[..] == [1; 100]));
}

/// A device goes out after the removal of another has begun: what the two had is on the third alone, and the one that was to go stays.
#[test]
fn a_removal_that_has_nowhere_to_go_ends_in_an_error() {
    for after in [0, 1, 3, 5, 9] {
        let sims = sims(3);
        let backend = opened(&sims, 90);
        let mut mover = backend.remove_device(2).unwrap();
        take_steps(&mut mover, after);
        sims[1].fail_persist_after(0, true);
        fill(&backend, 90);
        assert_eq!(backend.copies_state().out, [2]);
        let error = mover.run().unwrap_err();
        assert!(
            matches!(error, ArrayError::Copies { copies: 2, devices: 1 } | ArrayError::Closed),
            "{error}"
        );
        drop(mover);
        all_are_there(&backend, 90);
        let sims: Vec<CrashSim> = sims.iter().map(copied).collect();
        drop(backend);
        let backend = KvssdBackend::open(&media(&sims), &two_copies(AckMode::Buffered))
            .unwrap_or_else(|error| panic!("{after}: {error}"));
        all_are_there(&backend, 90);
        // What was begun ends so, too.
        if let Some(mut mover) = backend.unfinished_move().unwrap() {
            assert!(matches!(mover.run(), Err(ArrayError::Copies { .. })), "{after}");
        }
        assert!(backend.unfinished_move().unwrap().is_none(), "{after}");
        backend.rebuild().unwrap().run().unwrap();
        assert_eq!(backend.copies_state().shards_alone, 0);
        same_copies(&backend, "rebuilt");
        all_are_there(&backend, 90);
    }
}

/// An opening without a device goes on with a removal that began with it.
#[test]
fn a_removal_that_lost_a_device_meanwhile_ends_in_an_error() {
    let mut sims = sims(3);
    let backend = opened(&sims, 90);
    let mut mover = backend.remove_device(2).unwrap();
    take_steps(&mut mover, 3);
    drop(mover);
    sims = sims.iter().map(copied).collect();
    drop(backend);
    sims[1] = super::sims(1).remove(0);
    let options = two_copies(AckMode::Buffered);
    let backend = KvssdBackend::open(&media(&sims), &options).unwrap();
    assert_eq!(backend.copies_state().out, [2]);
    let error = backend.unfinished_move().unwrap().unwrap().run().unwrap_err();
    assert!(matches!(error, ArrayError::Copies { copies: 2, devices: 1 }), "{error}");
    all_are_there(&backend, 90);
    backend.close().unwrap();
    let sims: Vec<CrashSim> = sims.iter().map(copied).collect();
    all_are_there(&KvssdBackend::open(&media(&sims), &options).unwrap(), 90);
}

/// Whatever is refused as it is closed, its devices are in use no more.
#[test]
fn a_closing_that_is_refused_closes() {
    let mut refused = 0;
    for after in 0..6 {
        let sims = sims(3);
        let backend = opened(&sims, 30);
        put(&mut *backend.session().unwrap(), &key(1), b"again", Expect::Any).unwrap();
        sims[0].fail_persist_after(after, true);
        refused += usize::from(backend.close().is_err());
        assert!((0..3).all(|place| backend.with_device(place, |_| ()).is_none()), "{after}");
    }
    assert!(refused > 1);
}
