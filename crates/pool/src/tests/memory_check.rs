//! What must hold of the memory of a pool in which nothing is under way.

use std::collections::BTreeSet;

use hedgerow_row::le_bytes::u64_at;

use crate::bucket::{KeyHash, slot_offset, table_slots};
use crate::client::{Client, Slab};
use crate::object::{Object, ObjectKind};
use crate::parts::{PartList, bytes_of_part};
use crate::region::{BlockEntry, BlockId, MemoryNode, NodeSet, PoolLayout, SlotId};
use crate::word::{LogicalAddress, SlotWord};

/// A pool's memory, and the slabs of those who are up.
struct PoolMemory<'c, M> {
    layout: &'c PoolLayout,
    living: NodeSet,
    memory: M,
    slabs: &'c [&'c Slab],
}

impl<'m, M: Fn(MemoryNode, u16) -> Option<&'m [u8]>> PoolMemory<'_, M> {
    fn nodes_of(&self, region: u16) -> Vec<MemoryNode> {
        self.layout.living_replicas(region, self.living)
    }

    fn bytes_at(&self, node: MemoryNode, (region, offset): (u16, u32), len: usize) -> &'m [u8] {
        let bytes = (self.memory)(node, region).unwrap_or_default();
        &bytes[offset as usize..][..len]
    }

    fn word(&self, node: MemoryNode, id: SlotId) -> SlotWord {
        let table = self.layout.table_address(id.partition);
        let bytes = self.bytes_at(node, (table.region, table.offset + slot_offset(id.slot)), 8);
        SlotWord(u64_at(bytes, 0))
    }

    fn is_free(&self, block: BlockId) -> bool {
        let at = (block.region, self.layout.entry_address(block).offset);
        let entry = self.nodes_of(block.region).first().map(|&node| u64_at(self.bytes_at(node, at, 8), 0));
        entry.unwrap_or(0) == BlockEntry::Free.encode()
    }

    /// No bit is set in a block that is nobody's.
    fn check_free_blocks(&self) -> Result<(), String> {
        let numbers = |region| (0..self.layout.blocks).map(move |number| BlockId { region, number });
        for block in self.layout.regions().flat_map(numbers).filter(|block| self.is_free(*block)) {
            let Some(&node) = self.nodes_of(block.region).first() else { continue };
            let at = (block.region, self.layout.block_address(block).offset);
            if self.bytes_at(node, at, self.layout.bitmap_bytes() as usize).iter().any(|&byte| byte != 0) {
                return Err(format!("{block:?} is nobody's, and an object in it was freed"));
            }
        }
        Ok(())
    }

    /// Where something leads, somebody has memory, and whoever is up and has it has given it out.
    fn check_place(&self, what: &str, address: LogicalAddress, units: u8) -> Result<(), String> {
        if self.layout.block_of(address).is_none_or(|block| self.is_free(block)) {
            return Err(format!("{what} leads to {address:?}, where nobody has memory"));
        }
        let mut owners = self.slabs.iter().filter(|slab| slab.owns(address));
        match owners.any(|slab| slab.units_at(address) != Some(units)) {
            true => Err(format!("{address:?} is free, and {what} leads to it")),
            false => Ok(()),
        }
    }

    /// The parts that an object lists: they are its own, and whole on all copies.
    fn check_parts(&self, object: &Object<'_>, seen: &mut BTreeSet<LogicalAddress>) -> Result<(), String> {
        let list = PartList::decode(object.value).map_err(|error| format!("{:?}: {error}", object.key))?;
        for (number, part) in list.parts.iter().enumerate() {
            let what = format!("the list of {:?}, part {number},", object.key);
            self.check_place(&what, part.address, part.units)?;
            for node in self.nodes_of(part.address.region) {
                let at = (part.address.region, part.address.offset);
                let bytes = self.bytes_at(node, at, part.object_bytes());
                if bytes_of_part(bytes, object.generation, number).is_none() {
                    return Err(format!("{what} leads to what is not whole at {node:?}"));
                }
            }
            if !seen.insert(part.address) {
                return Err(format!("{what} leads to a part of another object"));
            }
        }
        Ok(())
    }
}

/// All copies agree, no key is in two slots, neither a slot nor a list of parts leads into a block that is nobody's, no bit is set in such a block, parts are whole on all copies and each is that of one object, and nothing that a slot or a list leads to is free, by any of the slabs of those who are up.
pub(super) fn check_memory<'m>(
    layout: &PoolLayout,
    living: NodeSet,
    memory: impl Fn(MemoryNode, u16) -> Option<&'m [u8]>,
    slabs: &[&Slab],
) -> Result<(), String> {
    let pool = PoolMemory { layout, living, memory, slabs };
    pool.check_free_blocks()?;
    let (mut keys, mut parts) = (BTreeSet::new(), BTreeSet::new());
    let slots = |partition| (0..table_slots(layout.groups)).map(move |slot| SlotId { partition, slot });
    for id in (0..layout.partitions()).flat_map(slots) {
        let nodes = pool.nodes_of(layout.table_address(id.partition).region);
        let words: Vec<SlotWord> = nodes.iter().map(|&node| pool.word(node, id)).collect();
        if words.iter().any(|word| *word != words[0]) {
            return Err(format!("the copies of {id:?} are {words:?}"));
        }
        let Some(live) = words.first().and_then(|word| word.as_live()) else { continue };
        pool.check_place(&format!("{id:?}"), live.address, live.units)?;
        for (copy, node) in pool.nodes_of(live.address.region).into_iter().enumerate() {
            let at = (live.address.region, live.address.offset);
            let bytes = pool.bytes_at(node, at, live.object_bytes());
            let object = Object::decode(bytes).map_err(|error| format!("{id:?}: {error}"))?;
            if KeyHash::of(object.key).partition(layout.partition_bits) != id.partition {
                return Err(format!("{id:?} has a key of another partition"));
            }
            if object.kind != ObjectKind::Claim && !keys.insert((node, object.key.to_vec())) {
                return Err(format!("{:?} is in two slots", object.key));
            }
            if object.kind.is_indirect() && copy == 0 {
                pool.check_parts(&object, &mut parts)?;
            }
        }
    }
    slabs.iter().try_for_each(|slab| slab.check_parts())?;
    let mut blocks = BTreeSet::new();
    match slabs.iter().flat_map(|slab| slab.blocks()).find(|block| !blocks.insert(*block)) {
        Some(block) => Err(format!("{block:?} is two clients'")),
        None => Ok(()),
    }
}

/// What a proxy answers from is what memory nodes have.
pub(super) fn check_proxy<'m>(
    layout: &PoolLayout,
    living: NodeSet,
    memory: impl Fn(MemoryNode, u16) -> Option<&'m [u8]>,
    client: &Client,
) -> Result<(), String> {
    for (partition, bytes) in client.proxy_tables() {
        let table = layout.table_address(partition);
        let node = layout.living_replicas(table.region, living).first().copied();
        let there = node.and_then(|node| memory(node, table.region)?.get(table.offset as usize..));
        if there.and_then(|there| there.get(..bytes.len())) != Some(bytes) {
            return Err(format!("the proxy of partition {partition} has other words than memory nodes"));
        }
    }
    Ok(())
}
