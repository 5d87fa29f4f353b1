//! Where nodes live: 1 KiB pieces of one reserved range, named by `u32`.
//!
//! Owns: the range, which nodes are free, and the budget in bytes that nodes and key blobs share. Promises: any id may
//! be looked at at any time, even a wrong one (readers follow ids before they know them to be right). Must not know:
//! what is in a node.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::io;

use super::node::Node;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The id that names no node.
pub(super) const NULL: u32 = 0;
/// Bytes of one node.
pub(super) const NODE_BYTES: u64 = 1024;

/// The index has no room for another key within its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexFull {
    /// The budget, in bytes.
    pub bytes_max: u64,
}

impl fmt::Display for IndexFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the index is full: it may take {} bytes of memory", self.bytes_max)
    }
}

impl std::error::Error for IndexFull {}

/// A part of the budget in so many is kept for deletes: of a row that the index knows nothing of, one below, a tombstone says that it is gone.
const KEPT_ONE_IN: u64 = 64;

/// What memory is charged to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Budget<'r> {
    /// The budget, but for what is kept for deletes.
    Writes,
    /// All of the budget.
    Deletes,
    /// What was reserved, and after that the budget as for writes.
    Reserved(&'r IndexReservation<'r>),
    /// Nothing: what cannot be sealed is indexed when a store is opened, however much the budget was when it came, and however full its leaves were. New keys are refused until it is less.
    Beyond,
}

/// Nodes for any number of trees.
pub(crate) struct NodeArena {
    memory: memory::Memory,
    /// The first node id never given out.
    next: AtomicU32,
    free: Mutex<Vec<u32>>,
    /// Bytes of nodes in use and of key blobs, and those reserved for such.
    taken: AtomicU64,
    /// Bytes of `taken` that are only reserved.
    reserved: AtomicU64,
    bytes_max: u64,
    /// Those of them that are kept for deletes.
    kept: u64,
    /// What was taken when the store had been opened: beyond the budget deletes have as much room as within it.
    opened_with: AtomicU64,
    /// Nodes whose memory is known to be there, for [`NodeArena::populate_ahead`] alone.
    populated: Mutex<u64>,
}

impl NodeArena {
    /// An arena of at most `bytes_max` bytes, at least one node, and what goes [beyond](Budget::Beyond): 64 GiB, or as much of it as the system has address space for. That is reserved, memory is not.
    ///
    /// # Errors
    /// When the system gives not even 1 GiB of address space, or `bytes_max` if that is less.
    pub(crate) fn new(bytes_max: u64) -> io::Result<NodeArena> {
        let memory = memory::Memory::reserve(bytes_max)?;
        // Whoever has a node's bytes has a node: what there is no address space for is no part of the budget.
        let bytes_max = bytes_max.min(u64::from(memory.nodes() - 1) * NODE_BYTES);
        Ok(NodeArena {
            memory,
            next: AtomicU32::new(NULL + 1),
            free: Mutex::new(Vec::new()),
            taken: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            bytes_max,
            kept: bytes_max / KEPT_ONE_IN / NODE_BYTES * NODE_BYTES,
            opened_with: AtomicU64::new(0),
            populated: Mutex::new(0),
        })
    }

    /// Asks for 2 MiB pages: gets become about 15 % quicker, memory is taken in larger steps.
    pub(crate) fn prefer_huge_pages(&self) {
        self.memory.prefer_huge_pages();
    }

    /// What was there when the store was opened is indexed.
    pub(crate) fn is_opened(&self) {
        self.opened_with.store(self.taken.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Bytes in use by all trees: nodes and key blobs. Not what is only reserved, which is no memory yet.
    pub(crate) fn bytes(&self) -> u64 {
        let reserved = self.reserved.load(Ordering::Relaxed);
        self.taken.load(Ordering::Relaxed).saturating_sub(reserved)
    }

    /// Takes `bytes` out of the budget for whoever must not be refused half-way.
    ///
    /// # Errors
    /// `IndexFull` if there is less; then nothing is taken.
    pub(crate) fn reserve(&self, bytes: u64, budget: Budget<'_>) -> Result<IndexReservation<'_>, IndexFull> {
        self.charge(bytes, budget)?;
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        Ok(IndexReservation { arena: self, left: Cell::new(bytes) })
    }

    /// The node of `id`. Ids beyond the range name the null node, which is never written.
    #[inline]
    pub(super) fn node(&self, id: u32) -> &Node {
        self.memory.node(id)
    }

    /// A node nobody else knows, or `IndexFull`.
    pub(super) fn allocate(&self, budget: Budget<'_>) -> Result<u32, IndexFull> {
        self.charge(NODE_BYTES, budget)?;
        if let Some(id) = self.free.lock().pop() {
            return Ok(id);
        }
        let fresh = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < self.memory.nodes()).then_some(next + 1)
        });
        fresh.map_err(|_| {
            self.discharge(NODE_BYTES);
            self.full()
        })
    }

    /// Takes back a node that nobody can reach any more.
    pub(super) fn release(&self, id: u32) {
        debug_assert_ne!(id, NULL, "the null node is nobody's");
        self.free.lock().push(id);
        self.discharge(NODE_BYTES);
    }

    /// Takes `bytes` from what is reserved here, or else from the budget. Who is refused was never counted, so that nobody else is for
    /// his sake.
    pub(super) fn charge(&self, bytes: u64, budget: Budget<'_>) -> Result<(), IndexFull> {
        // Who wants nothing has it where there is more than there may be, too.
        if bytes == 0 {
            return Ok(());
        }
        let most = match budget {
            Budget::Reserved(reserved) if std::ptr::eq(reserved.arena, self) && reserved.take(bytes) => {
                return Ok(());
            }
            Budget::Writes | Budget::Reserved(_) => self.bytes_max - self.kept,
            Budget::Deletes => self.bytes_max.max(self.opened_with.load(Ordering::Relaxed) + self.kept),
            Budget::Beyond => u64::MAX,
        };
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            taken.checked_add(bytes).filter(|&taken| taken <= most)
        });
        taken.map(drop).map_err(|_| self.full())
    }

    /// Gives `bytes` back to the budget.
    pub(super) fn discharge(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn full(&self) -> IndexFull {
        IndexFull { bytes_max: self.bytes_max }
    }

    /// Has the kernel give memory to the nodes that will be used next, `lead` bytes ahead, so that inserts do not
    /// fault. For a background thread, every few milliseconds under load; returns the bytes it populated.
    ///
    /// # Errors
    /// What the kernel says; nothing is lost but the head start.
    pub(crate) fn populate_ahead(&self, lead: u64) -> io::Result<u64> {
        /// Bytes per call into the kernel, which holds the address-space lock meanwhile.
        const STEP: u64 = 2 << 20;
        let Some(mut populated) = self.populated.try_lock() else { return Ok(0) };
        let from = *populated;
        let used = u64::from(self.next.load(Ordering::Relaxed)) * NODE_BYTES;
        // Not what lies beyond the budget.
        let until = (used + lead).min(self.bytes_max.saturating_add(NODE_BYTES).max(used));
        while *populated < until {
            self.memory.populate(*populated, STEP)?;
            *populated += STEP;
        }
        Ok(*populated - from)
    }
}

/// Bytes of an arena's budget that are kept for one writer, so that what it began it can end: made by [`NodeArena::reserve`]. What is
/// left of them goes back when it is dropped.
#[derive(Debug)]
pub(crate) struct IndexReservation<'a> {
    arena: &'a NodeArena,
    left: Cell<u64>,
}

impl IndexReservation<'_> {
    /// Whether there were as many.
    fn take(&self, bytes: u64) -> bool {
        let Some(left) = self.left.get().checked_sub(bytes) else { return false };
        self.left.set(left);
        self.arena.reserved.fetch_sub(bytes, Ordering::Relaxed);
        true
    }
}

impl Drop for IndexReservation<'_> {
    fn drop(&mut self) {
        self.arena.reserved.fetch_sub(self.left.get(), Ordering::Relaxed);
        self.arena.discharge(self.left.get());
    }
}

impl fmt::Debug for NodeArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeArena").field("bytes", &self.bytes()).field("bytes_max", &self.bytes_max).finish()
    }
}

#[cfg(not(shuttle))]
mod memory {
    use std::io;

    use hedgerow_device::Arena;

    use super::{NODE_BYTES, Node};

    const _: () = assert!(size_of::<Node>() as u64 == NODE_BYTES, "the memory holds so many nodes");

    /// The most address space asked for, and the least that will do.
    const RESERVE_MOST: u64 = 1 << 40;
    const RESERVE_LEAST: u64 = 1 << 30;
    /// What is asked for beyond the budget, and the least that is worth it. All keys of a store are young when it is opened where there is no room for leaves. (Under Miri address space is memory.)
    const BEYOND: [u64; 2] = if cfg!(miri) { [0, 0] } else { [64 << 30, 64 << 20] };

    pub(super) struct Memory {
        arena: Arena,
        nodes: u32,
    }

    impl Memory {
        pub(super) fn reserve(bytes_max: u64) -> io::Result<Memory> {
            // One more node than the budget holds: the null node takes the first place.
            let mut bytes = bytes_max.clamp(NODE_BYTES, RESERVE_MOST) + NODE_BYTES;
            let (mut beyond, mut is_scarce) = (BEYOND[0], false);
            loop {
                match Arena::reserve(usize::try_from(bytes + beyond).unwrap_or(isize::MAX as usize / 2)) {
                    // Where addresses are scarce others need them, too.
                    Ok(_) if is_scarce && beyond > BEYOND[1] => {
                        (beyond, is_scarce) = ((beyond / 4).max(BEYOND[1]), false);
                    }
                    Ok(arena) => {
                        let nodes = (arena.len() as u64 / NODE_BYTES).min(u64::from(u32::MAX)) as u32;
                        return Ok(Memory { arena, nodes });
                    }
                    Err(_) if beyond > BEYOND[1] => {
                        (beyond, is_scarce) = ((beyond / 2).max(BEYOND[1]), true);
                    }
                    Err(_) if beyond > 0 => beyond = 0,
                    Err(_) if bytes > RESERVE_LEAST * 2 => bytes /= 2,
                    Err(e) => return Err(e),
                }
            }
        }

        pub(super) fn nodes(&self) -> u32 {
            self.nodes
        }

        #[inline]
        pub(super) fn node(&self, id: u32) -> &Node {
            let id = if id < self.nodes { id } else { super::NULL };
            // SAFETY: the range holds `nodes` nodes and lives as long as `self`; it is page-aligned and so is fit for
            // nodes; a node is nothing but atomics, for which any bytes, and zeroes at first, are valid.
            unsafe { self.arena.base().cast::<Node>().add(id as usize).as_ref() }
        }

        pub(super) fn populate(&self, from: u64, bytes: u64) -> io::Result<()> {
            self.arena.populate(from as usize, bytes as usize)
        }

        pub(super) fn prefer_huge_pages(&self) {
            self.arena.prefer_huge_pages();
        }
    }
}

/// Under `shuttle` an atomic is more than its bytes, so nodes are made one by one and are few.
#[cfg(shuttle)]
mod memory {
    use std::io;

    use super::Node;

    const NODES: usize = 96;

    pub(super) struct Memory(Vec<Node>);

    impl Memory {
        pub(super) fn reserve(_: u64) -> io::Result<Memory> {
            Ok(Memory((0..NODES).map(|_| Node::zeroed()).collect()))
        }

        pub(super) fn nodes(&self) -> u32 {
            self.0.len() as u32
        }

        pub(super) fn node(&self, id: u32) -> &Node {
            self.0.get(id as usize).unwrap_or(&self.0[0])
        }

        pub(super) fn populate(&self, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }

        pub(super) fn prefer_huge_pages(&self) {}
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_recycled_and_the_budget_holds() {
        let arena = NodeArena::new(3 * NODE_BYTES).unwrap();
        let ids: Vec<u32> = (0..3).map(|_| arena.allocate(Budget::Writes).unwrap()).collect();
        assert_eq!(arena.allocate(Budget::Writes), Err(IndexFull { bytes_max: 3 * NODE_BYTES }));
        arena.release(ids[1]);
        assert_eq!(arena.bytes(), 2 * NODE_BYTES);
        assert_eq!(arena.allocate(Budget::Writes), Ok(ids[1]));
        assert!(arena.charge(1, Budget::Writes).is_err());
        assert_eq!(arena.bytes(), 3 * NODE_BYTES);
    }

    #[test]
    fn what_is_reserved_is_nobody_elses_and_the_rest_goes_back() {
        let arena = NodeArena::new(4 * NODE_BYTES).unwrap();
        let other = arena.allocate(Budget::Writes).unwrap();
        assert!(arena.reserve(3 * NODE_BYTES + 1, Budget::Writes).is_err(), "more than there is");
        let reserved = arena.reserve(3 * NODE_BYTES, Budget::Writes).unwrap();
        assert_eq!(arena.bytes(), NODE_BYTES, "what is only reserved is not in use");
        assert!(arena.allocate(Budget::Writes).is_err() && arena.charge(1, Budget::Writes).is_err());
        let mine = arena.allocate(Budget::Reserved(&reserved)).unwrap();
        arena.charge(NODE_BYTES, Budget::Reserved(&reserved)).unwrap();
        assert_eq!(arena.bytes(), 3 * NODE_BYTES);
        // Where it does not suffice, what is free does.
        arena.release(other);
        arena.charge(NODE_BYTES + 1, Budget::Reserved(&reserved)).unwrap_err();
        arena.charge(NODE_BYTES, Budget::Reserved(&reserved)).unwrap();
        arena.charge(NODE_BYTES, Budget::Reserved(&reserved)).unwrap();
        assert!(arena.charge(1, Budget::Reserved(&reserved)).is_err());
        arena.discharge(3 * NODE_BYTES);
        drop(reserved);
        arena.release(mine);
        drop(arena.reserve(4 * NODE_BYTES, Budget::Writes).unwrap());
        assert_eq!(arena.bytes(), 0);
        // What is reserved elsewhere is nothing here.
        let other = NodeArena::new(4 * NODE_BYTES).unwrap();
        arena
            .charge(NODE_BYTES, Budget::Reserved(&other.reserve(NODE_BYTES, Budget::Writes).unwrap()))
            .unwrap();
        assert_eq!((arena.bytes(), other.bytes()), (NODE_BYTES, 0));
    }

    /// Deletes find room where writes do not, and what is there already where nothing does.
    #[test]
    #[cfg_attr(miri, ignore = "there is no address space beyond")]
    fn a_part_is_kept_for_deletes_and_an_opening_goes_beyond() {
        let arena = NodeArena::new(256 << 10).unwrap();
        let of_writes = std::iter::from_fn(|| arena.allocate(Budget::Writes).ok()).count();
        let of_deletes = std::iter::from_fn(|| arena.allocate(Budget::Deletes).ok()).count();
        assert_eq!((of_writes, of_deletes), (252, 4));
        assert!(arena.reserve(1, Budget::Deletes).is_err());
        let beyond: Vec<u32> = (0..300).map(|_| arena.allocate(Budget::Beyond).unwrap()).collect();
        assert!(arena.allocate(Budget::Deletes).is_err() && arena.charge(1, Budget::Writes).is_err());
        for id in beyond {
            arena.node(id).revive();
            arena.release(id);
        }
        assert_eq!(arena.bytes(), 256 << 10);
        assert!(arena.allocate(Budget::Deletes).is_err());
        // Of a store that was opened so.
        let beyond: Vec<u32> = (0..100).map(|_| arena.allocate(Budget::Beyond).unwrap()).collect();
        arena.is_opened();
        drop(arena.reserve(0, Budget::Writes).unwrap());
        assert!(arena.allocate(Budget::Writes).is_err());
        assert_eq!(std::iter::from_fn(|| arena.allocate(Budget::Deletes).ok()).count(), 4);
        beyond.into_iter().for_each(|id| arena.release(id));
        assert!(arena.allocate(Budget::Writes).is_err());
    }

    #[test]
    fn any_id_may_be_looked_at() {
        let arena = NodeArena::new(10 * NODE_BYTES).unwrap();
        assert!(std::ptr::eq(arena.node(u32::MAX), arena.node(NULL)));
    }

    #[test]
    fn memory_is_given_ahead_once() {
        let arena = NodeArena::new(1 << 30).unwrap();
        assert_eq!(arena.populate_ahead(4 << 20).unwrap(), 6 << 20);
        assert_eq!(arena.populate_ahead(4 << 20).unwrap(), 0);
    }
}
