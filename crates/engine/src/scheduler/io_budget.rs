//! The budget of background I/O: how many bytes a second moves and merges of sorted tables may take of the capacity tier.
//!
//! Owns what was taken, and when that is paid. Promises that who waits while it is spent takes no more than the rate over any time, but for the last piece; that nothing is saved up; and
//! that what was taken in spite of it is repaid for a while only. Must not know who takes, nor when somebody may not wait.
//!
//! Whoever takes does so at once, and of what he has used: he waits before the next piece, holding nothing that writers need. So no call here sleeps.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Error, Result};

/// With less a single file of sorted tables would take a minute.
const BYTES_PER_S_MIN: u64 = 64 << 10;
/// What was taken beyond the budget keeps others waiting no longer than this.
const OWED_NS_MAX: u64 = 10_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Bytes a second, and what was taken of them.
#[derive(Debug, Default)]
pub(crate) struct IoBudget {
    /// None: as many as there are.
    bytes_per_s: Option<u64>,
    /// When all that was taken is paid, on the monotonic clock.
    paid_at_ns: AtomicU64,
    taken: AtomicU64,
    /// Of these, those that were taken while it was spent.
    beyond: AtomicU64,
    /// How long merges waited for it, and moves were put off.
    waited_ns: AtomicU64,
    /// Since when moves are put off; 0: they are not.
    put_off_at_ns: AtomicU64,
}

/// What a budget came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IoTaken {
    pub(crate) bytes: u64,
    pub(crate) beyond: u64,
    pub(crate) waited_ns: u64,
}

impl IoBudget {
    /// # Errors
    /// A rate that is too low to get anything done.
    pub(crate) fn new(bytes_per_s: Option<u64>) -> Result<IoBudget> {
        match bytes_per_s {
            Some(bytes) if bytes < BYTES_PER_S_MIN => Err(Error::invalid(format!(
                "io_bytes_per_s is {bytes}; it must be at least {BYTES_PER_S_MIN}, or none"
            ))),
            _ => Ok(IoBudget { bytes_per_s, ..IoBudget::default() }),
        }
    }

    /// Bytes a second, if there is a bound.
    pub(crate) fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }

    /// So many bytes were read or written.
    pub(crate) fn take(&self, bytes: u64, now_ns: u64) {
        self.take_up_to(bytes, now_ns, u64::MAX);
    }

    /// The same of who did not ask whether they were there: however many they are, they keep others waiting for a while only.
    pub(crate) fn take_in_spite(&self, bytes: u64, now_ns: u64) {
        self.take_up_to(bytes, now_ns, now_ns.saturating_add(OWED_NS_MAX));
    }

    fn take_up_to(&self, bytes: u64, now_ns: u64, latest_ns: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        let Some(bytes_per_s) = self.bytes_per_s else { return };
        let cost_ns = u128::from(bytes) * u128::from(SECOND_NS) / u128::from(bytes_per_s);
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX);
        let after = |paid_at_ns: u64| {
            let from_ns = paid_at_ns.clamp(now_ns, now_ns.saturating_add(OWED_NS_MAX));
            Some(from_ns.saturating_add(cost_ns).min(latest_ns))
        };
        // The closure always answers a value.
        let (Ok(before) | Err(before)) =
            self.paid_at_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        if before > now_ns {
            self.beyond.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// How long it takes until all that was taken is paid.
    pub(crate) fn owed_ns(&self, now_ns: u64) -> u64 {
        self.paid_at_ns.load(Ordering::Relaxed).saturating_sub(now_ns)
    }

    /// Somebody waited for so long until it was paid.
    pub(crate) fn waited(&self, ns: u64) {
        self.waited_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// A move is wanted, and waits from now on.
    pub(crate) fn put_off(&self, now_ns: u64) {
        let _ = self.put_off_at_ns.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Moves wait no longer.
    pub(crate) fn go_on(&self, now_ns: u64) {
        if self.put_off_at_ns.load(Ordering::Relaxed) != 0 {
            let since_ns = self.put_off_at_ns.swap(0, Ordering::Relaxed);
            self.waited(if since_ns == 0 { 0 } else { now_ns.saturating_sub(since_ns) });
        }
    }

    pub(crate) fn taken(&self) -> IoTaken {
        let [bytes, beyond, waited_ns] =
            [&self.taken, &self.beyond, &self.waited_ns].map(|count| count.load(Ordering::Relaxed));
        IoTaken { bytes, beyond, waited_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;

    fn of_mib(mib: u64) -> IoBudget {
        IoBudget::new(Some(mib * MIB)).unwrap()
    }

    /// Takes pieces whenever nothing is owed, looking every `look_ns`, for `seconds`; returns how much was taken.
    fn taken_in(budget: &IoBudget, seconds: u64, (pieces, look_ns): (&[u64], u64)) -> u64 {
        let (mut now_ns, mut pieces) = (7 * SECOND_NS, pieces.iter().cycle());
        let end_ns = now_ns + seconds * SECOND_NS;
        while now_ns < end_ns {
            if budget.owed_ns(now_ns) == 0 {
                budget.take(*pieces.next().unwrap(), now_ns);
            }
            now_ns += look_ns;
        }
        budget.taken().bytes
    }

    #[test]
    fn no_more_is_taken_than_the_rate_over_any_few_seconds() {
        for (pieces, look_ns) in [(&[256 << 10][..], MS), (&[MIB, 3, 2 * MIB], MS), (&[64 << 10], 7 * MS)] {
            let budget = of_mib(10);
            let longest = pieces.iter().max().unwrap();
            let taken = taken_in(&budget, 5, (pieces, look_ns));
            assert!(taken <= 50 * MIB + longest, "{taken} in pieces of {pieces:?}");
            assert!(taken >= 25 * MIB, "{taken}: it is there to be used, in pieces of {pieces:?}");
            assert_eq!(budget.taken().beyond, 0);
        }
    }

    #[test]
    fn rest_is_not_saved_up() {
        let budget = of_mib(1);
        budget.take(MIB, 0);
        assert_eq!(
            [0, SECOND_NS / 4, 60 * SECOND_NS].map(|now_ns| budget.owed_ns(now_ns)),
            [SECOND_NS, SECOND_NS / 4 * 3, 0]
        );
        budget.take(MIB, 60 * SECOND_NS);
        assert_eq!(budget.owed_ns(60 * SECOND_NS), SECOND_NS);
    }

    #[test]
    fn what_goes_beyond_is_counted_and_repaid_for_a_while() {
        let budget = of_mib(1);
        budget.take(4 * MIB, SECOND_NS);
        assert_eq!(budget.taken().beyond, 0, "nothing was owed");
        budget.take(40 * MIB, SECOND_NS);
        budget.take(MIB, SECOND_NS);
        assert_eq!(budget.taken(), IoTaken { bytes: 45 * MIB, beyond: 41 * MIB, waited_ns: 0 });
        assert_eq!(budget.owed_ns(SECOND_NS), OWED_NS_MAX + SECOND_NS, "and not 45 s");
    }

    #[test]
    fn without_a_bound_nobody_waits_and_all_is_counted() {
        let budget = IoBudget::new(None).unwrap();
        budget.take(u64::MAX / 2, 5);
        assert_eq!((budget.owed_ns(5), budget.taken().bytes), (0, u64::MAX / 2));
        let least = IoBudget::new(Some(BYTES_PER_S_MIN)).unwrap();
        (0..3).for_each(|_| least.take(u64::MAX, u64::MAX));
        assert_eq!(least.owed_ns(u64::MAX), 0, "no time overflows");
        let refused = IoBudget::new(Some(0)).unwrap_err();
        assert!(refused.message().contains("io_bytes_per_s is 0; it must be at least 65536"), "{refused}");
    }

    #[test]
    fn the_time_that_moves_are_put_off_is_counted_once() {
        let budget = of_mib(1);
        budget.go_on(3);
        [10, 20, 30].into_iter().for_each(|now_ns| budget.put_off(now_ns));
        [50, 60].into_iter().for_each(|now_ns| budget.go_on(now_ns));
        budget.waited(5);
        assert_eq!(budget.taken().waited_ns, 45);
    }
}
