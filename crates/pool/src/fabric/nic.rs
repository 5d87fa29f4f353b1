//! What operations cost on a network of RDMA cards: the parameters of the simulation's cost model, all of them.
//!
//! Owns the numbers and their sources. Promises nothing about real cards: no number here was measured by us, and none may be quoted as a measurement. Where a
//! source is given from memory it says so; calibrate on a card before a figure that rests on it is published.

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
    /// What a datagram costs beyond its way: two processors that handle it.
    pub datagram_ns: Nanos,
}

impl NicModel {
    /// A card of the papers' kind: ConnectX-3, 56 Gbit/s (the testbed of FlexKV, arXiv 2512.16148, section 5.1, and of FUSEE).
    pub const CONNECTX3: NicModel = NicModel {
        // Small reads take about 2 us there and back: HERD (Kalia and others, SIGCOMM 2014), section 3. From memory.
        one_way_ns: 1_000,
        // Inbound reads: 26 million a second, inbound writes: 35 million, of 32 bytes: HERD, figure 3. From memory; one number for both, the lower rate.
        access_ns: 38,
        // Atomics: 2.7 million a second: "Design guidelines for high performance RDMA systems" (Kalia and others, USENIX ATC 2016), section 3. From memory.
        atomic_ns: 370,
        // 56 Gbit/s with 64b/66b coding and headers: about 6.0 GB/s. Derived.
        link_bytes_per_us: 6_000,
        // Outbound small operations: about 20 million a second and card: HERD, figure 4. From memory.
        issue_ns: 50,
        // Our assumption: half a microsecond of processor time at each end.
        datagram_ns: 1_000,
    };

    /// Time for `bytes` on a link.
    pub fn bytes_ns(&self, bytes: usize) -> Nanos {
        (bytes as u64).saturating_mul(1_000) / self.link_bytes_per_us.max(1)
    }

    /// Time that a memory node's card is taken for one operation.
    pub fn service_ns(&self, bytes: usize, is_atomic: bool) -> Nanos {
        if is_atomic { self.atomic_ns } else { self.access_ns.max(self.bytes_ns(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_accesses_cost_their_bytes_and_small_ones_the_card() {
        let nic = NicModel::CONNECTX3;
        assert_eq!(nic.service_ns(8, false), 38);
        assert_eq!(nic.service_ns(6_000_000, false), 1_000_000);
        assert_eq!(nic.service_ns(8, true), 370);
    }
}
