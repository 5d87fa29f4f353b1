//! Interleavings of a background thread's sleep and of those who wake and stop it, explored by `shuttle`.
//!
//! Run as `index/shuttle.rs` says. A sleep may last for ever unless it is ended (`sync.rs`), so that a wake-up which is lost ends the
//! model.

use ::shuttle::{check_pct, check_random, thread};

use super::*;
use crate::sync::Arc as SharedArc;
use crate::sync::atomic::{AtomicBool, Ordering};

const ROUNDS: usize = 2_000;

fn explore(test: fn()) {
    check_random(test, ROUNDS);
    check_pct(test, ROUNDS, 3);
}

/// Who looks for work, finds none and sleeps is woken by whoever brings some after the look.
#[test]
fn nobody_sleeps_over_a_wake_up_after_its_look() {
    explore(|| {
        let shared = SharedArc::new((Scheduler::default(), AtomicBool::new(false)));
        let sleeper = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (scheduler, has_looked) = &*shared;
                let mut backoff = IdleBackoff::new(Duration::from_millis(2));
                let goes_on = scheduler.back_off(&mut backoff, || {
                    has_looked.store(true, Ordering::SeqCst);
                    false
                });
                assert!(goes_on, "nobody stopped it");
            })
        };
        let (scheduler, has_looked) = &*shared;
        while !has_looked.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        scheduler.wake();
        sleeper.join().expect("who sleeps");
    });
}

/// A stop ends every sleep, and there is none after it.
#[test]
fn nobody_sleeps_over_a_stop() {
    explore(|| {
        let scheduler = SharedArc::new(Scheduler::default());
        let sleepers: Vec<_> = (0..2)
            .map(|n| {
                let scheduler = scheduler.clone();
                thread::spawn(move || match n {
                    0 => while scheduler.sleep(Duration::from_secs(3600)) {},
                    _ => while scheduler.sleep_or_wake(Duration::from_secs(3600)) {},
                })
            })
            .collect();
        thread::yield_now();
        scheduler.stop();
        sleepers.into_iter().for_each(|sleeper| sleeper.join().expect("who sleeps"));
        assert!(scheduler.is_stopped());
    });
}
