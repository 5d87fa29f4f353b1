//! Moments of several devices together, so that one crash can cut them all.

use std::cell::RefCell;
use std::rc::Rc;

use hedgerow_device::CrashSim;

use super::super::array_device::WATCHER;

/// The lengths of the logs of devices that are watched, before and after each time that one of them does anything.
pub(super) struct Moments(Rc<RefCell<Vec<Vec<u64>>>>);

impl Moments {
    /// Watches these devices from now on.
    pub(super) fn watch(sims: &[CrashSim]) -> Moments {
        let lengths = |sims: &[CrashSim]| sims.iter().map(CrashSim::ops).collect::<Vec<u64>>();
        let (moments, sims) = (Rc::new(RefCell::new(vec![lengths(sims)])), sims.to_vec());
        let told = Rc::clone(&moments);
        WATCHER.set(Some(Box::new(move || told.borrow_mut().push(lengths(&sims)))));
        Moments(moments)
    }

    /// How many there were.
    pub(super) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// One for each operation of a medium: the lengths of all logs. With each, which of those that were told it comes before, or is. Watches no more.
    pub(super) fn take(self) -> Vec<(usize, Vec<u64>)> {
        WATCHER.set(None);
        let told = self.0.take();
        let mut moments: Vec<(usize, Vec<u64>)> = Vec::new();
        let mut now = told.first().cloned().unwrap_or_default();
        for (step, next) in told.into_iter().enumerate() {
            for device in 0..now.len() {
                while now[device] < next[device] {
                    now[device] += 1;
                    moments.push((step, now.clone()));
                }
            }
        }
        moments
    }
}
