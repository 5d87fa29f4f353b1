//! Interleavings of queue pairs, a driver, its sleep and its end, explored by `shuttle`: `RUSTFLAGS="--cfg shuttle" cargo test -p hedgerow-kvssd --lib --target-dir target/shuttle shuttle`.
//!
//! A notice that is missed is a deadlock, which `shuttle` reports: its waits have no time-outs.

use std::time::Duration;

use ::shuttle::{check_pct, check_random, thread};
use hedgerow_device::{FastTier, FastTierOptions};

use super::*;
use crate::command::KvCommand;
use crate::device::DeviceOptions;
use crate::flash::geometry::Geometry;
use crate::host::HostRequest;

const LONG: Duration = Duration::from_secs(3600);

fn device() -> Device {
    let geometry = Geometry { page_bytes: 4096, block_bytes: 32 << 10, blocks: 8 };
    let tier = FastTier::dram(&FastTierOptions::default()).unwrap();
    Device::format(tier, geometry, DeviceOptions { depth: 2, ..DeviceOptions::default() }).unwrap()
}

fn info() -> HostRequest<'static> {
    HostRequest::Other(KvCommand::DeviceInfo)
}

/// Two threads, a queue each, of which one waits and one is handed on half-way; then the driver is stopped.
fn all_is_complete_and_the_driver_ends() {
    let driver = QueueDriver::new(device());
    let opener = driver.opener();
    let doorbell = opener.doorbell.clone();
    let driving = thread::spawn(move || drop(driver.run()));
    let mut first = opener.open(3, 16).unwrap();
    let waits = thread::spawn(move || {
        for _ in 0..3 {
            let tickets = [first.submit(info()).unwrap(), first.submit(info()).unwrap()];
            for ticket in tickets {
                assert_eq!(first.wait(ticket, LONG, |result, _| result.is_ok()).unwrap(), Some(true));
            }
        }
    });
    let mut second = opener.open(2, 16).unwrap();
    let starts = thread::spawn(move || {
        second.submit(info()).unwrap();
        second.submit(info()).unwrap();
        second
    });
    let mut second = starts.join().unwrap();
    let third = second.submit(info()).or_else(|_| {
        let mut done = 0;
        while done == 0 {
            second.poll(|_, result, _| done += u32::from(result.is_ok()));
            thread::yield_now();
        }
        second.submit(info())
    });
    assert_eq!(second.wait(third.unwrap(), LONG, |result, _| result.is_ok()).unwrap(), Some(true));
    waits.join().unwrap();
    doorbell.stop();
    driving.join().unwrap();
    assert!(matches!(second.submit(info()), Err(KvError::Closed { .. })));
}

/// A driver ends while commands come: each has one answer, and nobody waits for ever.
fn an_end_is_told_to_all() {
    let driver = QueueDriver::new(device());
    let opener = driver.opener();
    let doorbell = opener.doorbell.clone();
    let driving = thread::spawn(move || drop(driver.run()));
    let waits = thread::spawn(move || {
        let Ok(mut queue) = opener.open(2, 16) else { return };
        // A few: an unfair schedule may have the stop wait for as long as commands come.
        for _ in 0..6 {
            let Ok(ticket) = queue.submit(info()) else { break };
            let ended = queue.wait(ticket, LONG, |result, _| result).unwrap().unwrap();
            if ended.is_err() {
                assert!(matches!(ended, Err(KvError::Closed { .. })), "{ended:?}");
                break;
            }
        }
        assert_eq!(queue.under_way(), 0);
    });
    doorbell.stop();
    driving.join().unwrap();
    waits.join().unwrap();
}

#[test]
fn shuttle_queues_and_their_driver() {
    check_random(all_is_complete_and_the_driver_ends, 1500);
    check_pct(all_is_complete_and_the_driver_ends, 1500, 3);
}

#[test]
fn shuttle_the_end_of_a_driver() {
    check_random(an_end_is_told_to_all, 1500);
    check_pct(an_end_is_told_to_all, 1500, 3);
}
