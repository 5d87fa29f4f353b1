//! What must hold of the memory of a pool in which nothing is under way.

use std::collections::BTreeSet;

use crate::bucket::{KeyHash, slot_offset, table_slots};
use crate::client::{Client, Slab};
use crate::object::{Object, ObjectKind};
use crate::region::{BlockEntry, BlockId, MemoryNode, NodeSet, PoolLayout, SlotId};
use crate::word::SlotWord;

/// All copies agree, no key is in two slots, no slot leads into a block that is nobody's, no bit is set in such a block, and nothing that a slot leads to is free, by any of the slabs of those who are up.
pub(super) fn check_memory<'m>(
    layout: &PoolLayout,
    living: NodeSet,
    memory: impl Fn(MemoryNode, u16) -> Option<&'m [u8]>,
    slabs: &[&Slab],
) -> Result<(), String> {
    let word = |node: MemoryNode, id: SlotId| {
        let table = layout.table_address(id.partition);
        let at = table.offset as usize + slot_offset(id.slot) as usize;
        let bytes = memory(node, table.region).and_then(|bytes| bytes[at..].first_chunk());
        SlotWord(bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    };
    let is_free = |block: BlockId| {
        let node = layout.living_replicas(block.region, living).first().copied();
        let at = layout.entry_address(block).offset as usize;
        let bytes = node.and_then(|node| memory(node, block.region)?[at..].first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)) == BlockEntry::Free.encode()
    };
    let all =
        layout.regions().flat_map(|region| (0..layout.blocks).map(move |n| BlockId { region, number: n }));
    for block in all.filter(|block| is_free(*block)) {
        let node = layout.living_replicas(block.region, living).first().copied();
        let at = layout.block_address(block).offset as usize;
        let bitmap = node.and_then(|node| memory(node, block.region));
        if bitmap.is_some_and(|bytes| bytes[at..at + layout.bitmap_bytes() as usize].iter().any(|&b| b != 0))
        {
            return Err(format!("{block:?} is nobody's, and an object in it was freed"));
        }
    }
    let mut keys = BTreeSet::new();
    let slots = || 0..table_slots(layout.groups);
    for id in
        (0..layout.partitions()).flat_map(|partition| slots().map(move |slot| SlotId { partition, slot }))
    {
        let region = layout.table_address(id.partition).region;
        let nodes = layout.living_replicas(region, living);
        let words: Vec<SlotWord> = nodes.iter().map(|&node| word(node, id)).collect();
        if words.iter().any(|word| *word != words[0]) {
            return Err(format!("the copies of {id:?} are {words:?}"));
        }
        let Some(live) = words.first().and_then(|word| word.as_live()) else { continue };
        if layout.block_of(live.address).is_none_or(is_free) {
            return Err(format!("{id:?} leads to {:?}, where nobody has memory", live.address));
        }
        for node in layout.living_replicas(live.address.region, living) {
            let bytes = memory(node, live.address.region).unwrap_or_default();
            let bytes = bytes.get(live.address.offset as usize..).unwrap_or_default();
            let object =
                Object::decode(&bytes[..live.object_bytes()]).map_err(|error| format!("{id:?}: {error}"))?;
            if KeyHash::of(object.key).partition(layout.partition_bits) != id.partition {
                return Err(format!("{id:?} has a key of another partition"));
            }
            if object.kind != ObjectKind::Claim && !keys.insert((node, object.key.to_vec())) {
                return Err(format!("{:?} is in two slots", object.key));
            }
        }
        for slab in slabs.iter().filter(|slab| slab.owns(live.address)) {
            if slab.units_at(live.address) != Some(live.units) {
                return Err(format!("{:?} is free, and {id:?} leads to it", live.address));
            }
        }
    }
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
