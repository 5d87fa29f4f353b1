//! The memory that a memory node exports, and what lies where in it.
//!
//! Owns the layout of a region, that of block table entries, and which nodes have which region ([`PoolLayout`]). Promises that all replicas of a region
//! have everything at the same offset. Must not know what objects or slots say.
//!
//! ```text
//!  0          64                   index_at                        blocks_at
//!  +----------+--------------------+-------------------------------+---------+---------+----
//!  |  header  | block table: 8     | sub-tables of the partitions  | block 0 | block 1 | ...
//!  | 64 bytes | bytes a block      | whose index is in this region |         |         |
//!  +----------+--------------------+-------------------------------+---------+---------+----
//!
//!  header   0 "HGPOOLR1" | 8 region u16 | 10 copies u16 | 12 partition bits u32 | 16 groups u32 | 20 blocks u32
//!           24 block bytes u32 | 28 regions u32 | 32 zeros | 60 crc32c of bytes 0 to 60
//!  entry    session u16 | state u8 (0 free, 1 allotted) | 0 u8 | sequence u32
//!  block    bitmap of freed objects, one bit for each unit of 64 bytes of the block, filled up to 64 bytes | objects
//! ```
//!
//! * All integers are little-endian. All parts begin at multiples of 64.
//! * Region `k` of `n` is on the memory nodes `k`, `k + 1`, ... modulo `n`, as many as there are copies. Partition `p` has its index in region `p mod n`.
//! * An entry says which session a block was given to, and by which of that session's requests: a request that is repeated finds its block.
//! * A bit of the bitmap, that of an object's first unit, is set by whoever took the last reference to the object away, by a fetch-and-add on the first living
//!   replica (FUSEE, FAST 2023, section 4.4); the block's owner takes it back in the same way and only then may use the memory again. Others never write to a block.

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u16_at, u32_at, u64_at};

use crate::bucket::{BucketHeader, GROUPS_MAX, PARTITION_BITS_MAX, slot_offset, table_bytes};
use crate::error::{PoolError, Result};
use crate::word::{LogicalAddress, REGION_BYTES_MAX, UNIT_BYTES};

/// Bytes of a region's header.
pub const REGION_HEADER_BYTES: usize = 64;
/// Bytes of a block by default, as in FlexKV.
pub const BLOCK_BYTES: u32 = 16 << 20;
/// Memory nodes at most: a set of them is 32 bits.
pub const MEMORY_NODES_MAX: u8 = 32;

const MAGIC: &[u8; 8] = b"HGPOOLR1";
const CRC_AT: usize = 60;

/// The number of a memory node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemoryNode(pub u8);

/// Where on a memory node: bytes from the beginning of one of its regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteAddress {
    /// The region.
    pub region: u16,
    /// Bytes from its beginning.
    pub offset: u32,
}

impl From<LogicalAddress> for RemoteAddress {
    fn from(address: LogicalAddress) -> RemoteAddress {
        RemoteAddress { region: address.region, offset: address.offset }
    }
}

/// A slot of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    /// The partition.
    pub partition: u16,
    /// The slot's number in it.
    pub slot: u32,
}

/// A set of memory nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodeSet(pub u32);

impl NodeSet {
    /// All of `count` nodes.
    pub fn first(count: u8) -> NodeSet {
        NodeSet(u32::MAX.checked_shr(32 - u32::from(count)).unwrap_or(0))
    }

    /// Whether it has the node.
    pub fn has(self, node: MemoryNode) -> bool {
        self.0.checked_shr(node.0.into()).unwrap_or(0) & 1 == 1
    }

    /// The set without the node.
    pub fn without(self, node: MemoryNode) -> NodeSet {
        NodeSet(self.0 & !1u32.checked_shl(node.0.into()).unwrap_or(0))
    }
}

/// How the pool's memory is laid out: fixed when the pool is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolLayout {
    /// Memory nodes, 1 to 32. There are as many regions.
    pub memory_nodes: u8,
    /// Copies of everything, 1 to the number of memory nodes. The papers have 3.
    pub copies: u8,
    /// There are two to the power of this many partitions, 0 to 14.
    pub partition_bits: u32,
    /// Groups of three buckets of each partition. See [`groups_for`](crate::bucket::groups_for).
    pub groups: u32,
    /// Bytes of a block, a multiple of 4096.
    pub block_bytes: u32,
    /// Blocks of each region.
    pub blocks: u32,
}

impl PoolLayout {
    /// Whether it can be.
    ///
    /// # Errors
    /// [`PoolError::OutOfBounds`] names the first setting that cannot.
    pub fn check(&self) -> Result<()> {
        let nodes = u64::from(self.memory_nodes);
        for (name, value, least, most) in [
            ("memory nodes", nodes, 1, u64::from(MEMORY_NODES_MAX)),
            ("copies", self.copies.into(), 1, nodes),
            ("partition bits", self.partition_bits.into(), 0, PARTITION_BITS_MAX.into()),
            ("groups", self.groups.into(), 1, GROUPS_MAX.into()),
            ("block bytes", self.block_bytes.into(), 4096, 1 << 30),
            ("blocks", self.blocks.into(), 1, 1 << 20),
            ("block bytes modulo 4096", u64::from(self.block_bytes) % 4096, 0, 0),
            ("region bytes", self.bytes_u64(), 0, REGION_BYTES_MAX),
        ] {
            if value < least || value > most {
                return Err(PoolError::OutOfBounds(name, value, least, most));
            }
        }
        Ok(())
    }

    /// Partitions in all.
    pub fn partitions(&self) -> u16 {
        1 << self.partition_bits
    }

    /// Bytes of a region; below 2 GiB once checked.
    pub fn region_bytes(&self) -> usize {
        self.bytes_u64() as usize
    }

    fn bytes_u64(&self) -> u64 {
        self.blocks_at() + u64::from(self.blocks) * u64::from(self.block_bytes)
    }

    fn index_at(&self) -> u64 {
        (REGION_HEADER_BYTES as u64 + 8 * u64::from(self.blocks)).next_multiple_of(64)
    }

    fn blocks_at(&self) -> u64 {
        let tables = u64::from(self.partitions()).div_ceil(u64::from(self.memory_nodes.max(1)));
        self.index_at() + tables * table_bytes(self.groups) as u64
    }

    /// The regions, by number.
    pub fn regions(&self) -> std::ops::Range<u16> {
        0..u16::from(self.memory_nodes)
    }

    /// The nodes that have a region, the first one first; none have one that is not there.
    pub fn replicas(&self, region: u16) -> impl Iterator<Item = MemoryNode> + use<> {
        let nodes = u16::from(self.memory_nodes);
        let copies = if region < nodes { self.copies.into() } else { 0 };
        (0..copies).map(move |copy| MemoryNode(((region + copy) % nodes) as u8))
    }

    /// Those of them that are in `living`.
    pub fn living_replicas(&self, region: u16, living: NodeSet) -> Vec<MemoryNode> {
        self.replicas(region).filter(|&node| living.has(node)).collect()
    }

    /// What each bucket of a partition begins with.
    pub fn bucket_header(&self, partition: u16) -> BucketHeader {
        BucketHeader { local_depth: self.partition_bits, suffix: partition.into() }
    }

    /// Where the index of a partition begins.
    pub fn table_address(&self, partition: u16) -> RemoteAddress {
        let nodes = u16::from(self.memory_nodes);
        let offset = self.index_at() + u64::from(partition / nodes) * table_bytes(self.groups) as u64;
        RemoteAddress { region: partition % nodes, offset: offset as u32 }
    }

    /// Where a slot is.
    pub fn slot_address(&self, id: SlotId) -> RemoteAddress {
        let table = self.table_address(id.partition);
        RemoteAddress { offset: table.offset + slot_offset(id.slot), ..table }
    }

    /// Where the entry of a block is.
    pub fn entry_address(&self, block: BlockId) -> RemoteAddress {
        RemoteAddress { region: block.region, offset: REGION_HEADER_BYTES as u32 + 8 * block.number }
    }

    /// Where a block begins, with its bitmap.
    pub fn block_address(&self, block: BlockId) -> RemoteAddress {
        let offset = self.blocks_at() + u64::from(block.number) * u64::from(self.block_bytes);
        RemoteAddress { region: block.region, offset: offset as u32 }
    }

    /// Bytes of a block's bitmap.
    pub fn bitmap_bytes(&self) -> u32 {
        (self.block_bytes / UNIT_BYTES as u32).div_ceil(8).next_multiple_of(UNIT_BYTES as u32)
    }

    /// The block that an address is in; none where there is no block.
    pub fn block_of(&self, address: LogicalAddress) -> Option<BlockId> {
        let inside = u64::from(address.offset).checked_sub(self.blocks_at())?;
        let number = (inside / u64::from(self.block_bytes)) as u32;
        let is_there = number < self.blocks && self.regions().contains(&address.region);
        is_there.then_some(BlockId { region: address.region, number })
    }

    /// The block that an object of so many bytes at an address is in, all of it and beside the bitmap; none where no object can be.
    pub fn block_of_object(&self, address: LogicalAddress, bytes: usize) -> Option<BlockId> {
        let block = self.block_of(address)?;
        let inside = u64::from(address.offset - self.block_address(block).offset);
        let is_in_it = inside >= self.bitmap_bytes().into()
            && inside.checked_add(bytes as u64).is_some_and(|end| end <= self.block_bytes.into());
        is_in_it.then_some(block)
    }

    /// The word of the bitmap that has the bit of an object, and the bit.
    pub fn free_bit(&self, address: LogicalAddress) -> Option<(RemoteAddress, u64)> {
        let block = self.block_address(self.block_of(address)?);
        let unit = (address.offset - block.offset) / UNIT_BYTES as u32;
        let word = RemoteAddress { offset: block.offset + unit / 64 * 8, ..block };
        Some((word, 1 << (unit % 64)))
    }

    /// A region as it is exported first: its header, an empty index, no block given to anybody.
    pub fn empty_region(&self, region: u16) -> Vec<u8> {
        let mut bytes = vec![0; self.region_bytes()];
        bytes[..REGION_HEADER_BYTES].copy_from_slice(&RegionHeader { region, layout: *self }.encode());
        for partition in 0..self.partitions() {
            let at = self.table_address(partition);
            if at.region == region {
                let table = self.bucket_header(partition).empty_table(self.groups);
                bytes[at.offset as usize..][..table.len()].copy_from_slice(&table);
            }
        }
        bytes
    }
}

/// The first 64 bytes of a region: by them a node says how its memory is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionHeader {
    /// The region's number.
    pub region: u16,
    /// How everything is laid out.
    pub layout: PoolLayout,
}

impl RegionHeader {
    /// Its bytes.
    pub fn encode(&self) -> [u8; REGION_HEADER_BYTES] {
        let mut bytes = [0; REGION_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&self.region.to_le_bytes());
        bytes[10..12].copy_from_slice(&u16::from(self.layout.copies).to_le_bytes());
        let layout = &self.layout;
        let numbers = [
            layout.partition_bits,
            layout.groups,
            layout.blocks,
            layout.block_bytes,
            layout.memory_nodes.into(),
        ];
        for (at, number) in numbers.into_iter().enumerate() {
            bytes[12 + 4 * at..16 + 4 * at].copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c(0, &bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// What `bytes` say.
    ///
    /// # Errors
    /// Bytes that are not a header, or that say what cannot be.
    pub fn decode(bytes: &[u8]) -> Result<RegionHeader> {
        if bytes.len() < REGION_HEADER_BYTES {
            return Err(PoolError::TooShort("region header", bytes.len(), REGION_HEADER_BYTES));
        }
        if &bytes[..8] != MAGIC {
            return Err(PoolError::Unknown("region's magic", u64_at(bytes, 0)));
        }
        let (stored, crc) = (u32_at(bytes, CRC_AT), crc32c(0, &bytes[..CRC_AT]));
        if stored != crc {
            return Err(PoolError::Checksum("region header", stored, crc));
        }
        let byte = |name, value: u32| {
            u8::try_from(value)
                .map_err(|_| PoolError::OutOfBounds(name, value.into(), 1, u64::from(MEMORY_NODES_MAX)))
        };
        let layout = PoolLayout {
            copies: byte("copies", u16_at(bytes, 10).into())?,
            partition_bits: u32_at(bytes, 12).min(PARTITION_BITS_MAX + 1),
            groups: u32_at(bytes, 16),
            blocks: u32_at(bytes, 20),
            block_bytes: u32_at(bytes, 24),
            memory_nodes: byte("memory nodes", u32_at(bytes, 28))?,
        };
        layout.check()?;
        let region = u16_at(bytes, 8);
        if !layout.regions().contains(&region) {
            let most = u64::from(layout.memory_nodes) - 1;
            return Err(PoolError::OutOfBounds("region", region.into(), 0, most));
        }
        Ok(RegionHeader { region, layout })
    }
}

/// A block of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// The region.
    pub region: u16,
    /// The block's number in it.
    pub number: u32,
}

/// An entry of a block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockEntry {
    /// Nobody has the block.
    Free,
    /// A session has it.
    Allotted {
        /// Which session.
        session: u16,
        /// By which of its requests.
        sequence: u32,
    },
}

impl BlockEntry {
    /// Its 8 bytes, as a number.
    pub fn encode(self) -> u64 {
        match self {
            BlockEntry::Free => 0,
            BlockEntry::Allotted { session, sequence } => {
                u64::from(session) | 1 << 16 | u64::from(sequence) << 32
            }
        }
    }

    /// What the 8 bytes say.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] for what nobody writes.
    pub fn decode(entry: u64) -> Result<BlockEntry> {
        match (entry, (entry >> 16) & 0xFFFF) {
            (0, _) => Ok(BlockEntry::Free),
            (_, 1) => Ok(BlockEntry::Allotted { session: entry as u16, sequence: (entry >> 32) as u32 }),
            _ => Err(PoolError::Unknown("block entry", entry)),
        }
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;

    const LAYOUT: PoolLayout =
        PoolLayout { memory_nodes: 4, copies: 3, partition_bits: 3, groups: 2, block_bytes: 8192, blocks: 5 };

    #[test]
    fn golden() {
        let header = RegionHeader { region: 2, layout: LAYOUT };
        let mut expected = b"HGPOOLR1".to_vec();
        expected
            .extend_from_slice(&[2, 0, 3, 0, 3, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 32, 0, 0, 4, 0, 0, 0]);
        expected.resize(CRC_AT, 0);
        expected.extend_from_slice(&0x5263d364_u32.to_le_bytes());
        assert_eq!(header.encode()[..], expected);
        assert_eq!(RegionHeader::decode(&header.encode()), Ok(header));
        let entry = BlockEntry::Allotted { session: 0x0203, sequence: 9 };
        assert_eq!(entry.encode(), 0x0000_0009_0001_0203);
        assert_eq!(BlockEntry::decode(entry.encode()), Ok(entry));
        assert_eq!(BlockEntry::decode(0x2_0000), Err(PoolError::Unknown("block entry", 0x2_0000)));
    }

    #[test]
    fn parts_do_not_overlap() {
        let (index, table) = (LAYOUT.index_at(), table_bytes(LAYOUT.groups) as u64);
        assert_eq!((index, LAYOUT.blocks_at()), (128, 128 + 2 * table));
        assert_eq!(LAYOUT.table_address(6), RemoteAddress { region: 2, offset: 128 + table as u32 });
        let last = BlockId { region: 0, number: 4 };
        assert_eq!(LAYOUT.block_address(last).offset as usize + 8192, LAYOUT.region_bytes());
        assert_eq!(LAYOUT.bitmap_bytes(), 64);
        let start = LAYOUT.block_address(last).offset;
        let inside = LogicalAddress { region: 0, offset: start + 64 * 70 };
        assert_eq!(LAYOUT.block_of(inside), Some(last));
        assert_eq!(LAYOUT.free_bit(inside), Some((RemoteAddress { region: 0, offset: start + 8 }, 1 << 6)));
        assert_eq!(LAYOUT.block_of(LogicalAddress { region: 0, offset: start + 8192 }), None);
        assert_eq!(LAYOUT.block_of(LogicalAddress { region: 4, offset: start }), None);
        assert_eq!(LAYOUT.block_of(LogicalAddress { region: 0, offset: 64 }), None);
        let object = |offset, bytes| LAYOUT.block_of_object(LogicalAddress { region: 0, offset }, bytes);
        assert_eq!(object(start + 64, 8192 - 64), Some(last));
        assert_eq!(
            (object(start + 64, 8192), object(start, 64), object(start - 64, 128)),
            (None, None, None)
        );
        assert_eq!(LAYOUT.replicas(4).chain(LAYOUT.replicas(u16::MAX)).count(), 0);
    }

    #[test]
    fn replicas_are_in_a_ring() {
        let nodes: Vec<u8> = LAYOUT.replicas(3).map(|node| node.0).collect();
        assert_eq!(nodes, [3, 0, 1]);
        let living = NodeSet::first(4).without(MemoryNode(3));
        assert_eq!(LAYOUT.living_replicas(3, living), [MemoryNode(0), MemoryNode(1)]);
        assert_eq!((NodeSet::first(32).0, NodeSet::first(0).0), (u32::MAX, 0));
    }

    #[test]
    fn hostile_headers_are_refused() {
        let good = RegionHeader { region: 2, layout: LAYOUT }.encode();
        for bit in 0..good.len() * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(RegionHeader::decode(&bytes).is_err(), "bit {bit}");
        }
        let mut random = Random::from_seed(5);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut bytes = good;
            bytes[8 + random.below(52) as usize] = random.next_u64() as u8;
            let crc = crc32c(0, &bytes[..CRC_AT]);
            bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            if let Ok(header) = RegionHeader::decode(&bytes) {
                accepted += 1;
                assert_eq!(header.layout.check(), Ok(()));
            }
        }
        assert!(accepted > 0);
    }

    #[test]
    fn limits_say_what_they_are() {
        let layout = PoolLayout { copies: 5, ..LAYOUT };
        assert_eq!(layout.check(), Err(PoolError::OutOfBounds("copies", 5, 1, 4)));
        let layout = PoolLayout { block_bytes: 1 << 30, ..LAYOUT };
        assert!(matches!(layout.check(), Err(PoolError::OutOfBounds("region bytes", ..))));
    }
}
