//! What operations cost on a network of RDMA cards: the parameters of the simulation's cost model, all of them.
//!
//! Owns the numbers, and where each is from. Promises nothing about real cards: no number here was measured by us, and none may be quoted as a measurement. Those for which no published source was found are
//! [`AssumedCost`]s: whoever shows a figure of the model shows it with each of them halved and doubled, too. Calibrate on a card before anything rests on a figure.

use super::Nanos;

/// Costs of operations, in nanoseconds of virtual time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NicModel {
    /// From a post to its execution at the memory node, and from there to the completion: half a round trip each.
    pub one_way_ns: Nanos,
    /// Time that a memory node's card takes for a read or write, whatever its size.
    pub access_ns: Nanos,
    /// Time that a memory node's card takes for an atomic operation.
    pub atomic_ns: Nanos,
    /// Bytes that a link carries in a microsecond.
    pub link_bytes_per_us: u64,
    /// Time that a compute node's card takes to issue an operation.
    pub issue_ns: Nanos,
    /// What a datagram costs beyond its way: two processors that handle it, half of it each.
    pub datagram_ns: Nanos,
    /// Threads of a node that handle the datagrams that come to it, one at a time each; 0: as many as there are datagrams. Who sends one does it on a thread of its own.
    pub handler_threads: usize,
}

impl NicModel {
    /// A card of the papers' kind: ConnectX-3, 56 Gbit/s (the testbed of FlexKV, arXiv 2512.16148, section 5.1, and of FUSEE).
    pub const CONNECTX3: NicModel = NicModel {
        // Assumed, 500 to 2,000.
        one_way_ns: 1_000,
        // HERD (Kalia and others, SIGCOMM 2014), abstract: 26 million requests a second from one server, about what the card gives for native reads. One number for reads and writes.
        access_ns: 38,
        // Assumed, 185 to 740. FlexKV avoids atomics since they cost more than reads on this card; by what factor we have no source for.
        atomic_ns: 370,
        // FDR 4x, four times 14.0625 Gbit/s with 64b/66b coding (InfiniBand Trade Association): 54.54 Gbit/s. Headers and the bus are not taken off, so it is an upper bound.
        link_bytes_per_us: 6_818,
        // Assumed, 25 to 100.
        issue_ns: 50,
        // Assumed, 500 to 2,000: half a microsecond of processor time at each end.
        datagram_ns: 1_000,
        // FlexKV's proxies have two threads (section 5.1 there).
        handler_threads: 2,
    };

    /// The model with an assumed cost made half of what it is, or twice of it.
    pub fn with(mut self, cost: AssumedCost, factor: CostFactor) -> NicModel {
        let field = match cost {
            AssumedCost::OneWay => &mut self.one_way_ns,
            AssumedCost::Atomic => &mut self.atomic_ns,
            AssumedCost::Issue => &mut self.issue_ns,
            AssumedCost::Datagram => &mut self.datagram_ns,
        };
        *field = match factor {
            CostFactor::Half => *field / 2,
            CostFactor::Double => field.saturating_mul(2),
        };
        self
    }

    /// Time for `bytes` on a link.
    pub fn bytes_ns(&self, bytes: usize) -> Nanos {
        (bytes as u64).saturating_mul(1_000) / self.link_bytes_per_us.max(1)
    }

    /// Time that a memory node's card is taken for one operation.
    pub fn service_ns(&self, bytes: usize, is_atomic: bool) -> Nanos {
        if is_atomic { self.atomic_ns } else { self.access_ns.max(self.bytes_ns(bytes)) }
    }
}

/// A cost for which no published source was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssumedCost {
    /// [`NicModel::one_way_ns`].
    OneWay,
    /// [`NicModel::atomic_ns`].
    Atomic,
    /// [`NicModel::issue_ns`].
    Issue,
    /// [`NicModel::datagram_ns`].
    Datagram,
}

impl AssumedCost {
    /// All of them.
    pub const ALL: [AssumedCost; 4] =
        [AssumedCost::OneWay, AssumedCost::Atomic, AssumedCost::Issue, AssumedCost::Datagram];
}

/// The bounds of an assumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostFactor {
    /// Half of it.
    Half,
    /// Twice of it.
    Double,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_accesses_cost_their_bytes_and_small_ones_the_card() {
        let nic = NicModel::CONNECTX3;
        assert_eq!(nic.service_ns(8, false), 38);
        assert_eq!(nic.service_ns(6_818_000, false), 1_000_000);
        assert_eq!(nic.service_ns(8, true), 370);
    }

    #[test]
    fn assumptions_change_one_cost_each() {
        let nic = NicModel::CONNECTX3;
        assert_eq!(nic.with(AssumedCost::Atomic, CostFactor::Half), NicModel { atomic_ns: 185, ..nic });
        for cost in AssumedCost::ALL {
            let doubled = nic.with(cost, CostFactor::Double);
            assert_eq!(doubled.with(cost, CostFactor::Half), nic);
            assert_ne!(doubled, nic);
        }
    }
}
