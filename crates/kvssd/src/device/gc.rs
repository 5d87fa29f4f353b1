//! Gc: blocks of records that were mostly replaced are emptied and erased.
//!
//! Owns the choice of a victim, the copying, and the erasing. Promises that a block is erased only when all that replaced its records is durable; that counts of older records go down only
//! after a block is durably erased, and a tombstone that hides something stays (decision 0004); and that a store copies no more than in proportion to what it writes, but where free
//! blocks, or the room for tombstones, have run out. Must not know commands.
//!
//! 1. **Choose** the sealed block with the least live bytes, or with the best of cost and benefit (Rosenblum and Ousterhout 1992).
//! 2. **Copy** what is live to the cold stream, some with every store. A tombstone without older records is left behind; its entry stays until 5.
//! 3. **Sync** both streams: the copies, and what commands wrote over the rest.
//! 4. **Erase**: superblock, then the block's word.
//! 5. **Count**, some with every store: of each record's key one older record fewer. What hides nothing any more is obsolete. Until then the block is not free:
//!    its places are those of no other records.

use super::Device;
use super::block::{GAIN_SHARE_MIN, WriteStream};
use super::event::Stage;
use super::manager::{LocatedEntry, one_fewer, one_more};
use super::page::IndexEntry;
use crate::code::{KvError, Result};
use crate::flash::footer::{BlockFooter, ENTRY_BYTES, FooterEntry};
use crate::flash::record::{RecordHeader, RecordKind, UNIT_BYTES};

/// Gc works while fewer blocks are free.
const FREE_WANTED: usize = 3;
/// The least that a command leaves to gc.
const FREE_FOR_GC: usize = 1;
/// Work beyond what the victim's share asks for, in eighths; twice and four times as much while there are many tombstones.
const PACE_EIGHTHS: u64 = 10;
/// What a look at a record that is not copied counts as, in bytes of copying.
const LOOK_BYTES: u64 = 8;

/// How gc chooses a victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GcPolicy {
    /// The block with the least live bytes.
    Greedy,
    /// The block with the most to gain for what it costs, older ones first. The default.
    #[default]
    CostBenefit,
}

/// What gc did since the device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GcCounters {
    /// Blocks emptied and erased.
    pub cycles: u64,
    /// Records copied.
    pub copied_records: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Tombstones that hid nothing any more and were left behind.
    pub tombstones_dropped: u64,
    /// Times that all blocks were gone through for one to empty.
    pub choices: u64,
    /// Commands that had to wait for a whole block.
    pub stalls: u64,
    /// Blocks with a live record that cannot be read: they are kept as they are.
    pub damaged_blocks: u64,
}

/// A victim that is being emptied, and then counted off.
#[derive(Debug)]
pub(super) struct GcCycle {
    block: u32,
    entries: Vec<FooterEntry>,
    next: usize,
    is_erased: bool,
}

#[derive(Debug, Default)]
pub(super) struct Gc {
    pub(super) cycle: Option<GcCycle>,
    pub(super) counters: GcCounters,
    /// Key and value of a record that is copied: kept, so that none asks for memory.
    copied: Vec<u8>,
}

impl Device {
    /// Sees to it that commands may open a block: two are free. Gc has one of them.
    pub(super) fn ensure_free(&mut self, record_bytes: usize) -> Result<()> {
        let geometry = self.flash.geometry();
        let fits = |device: &Device| {
            device.blocks.open(WriteStream::Hot).is_some_and(|open| open.has_room(&geometry, record_bytes))
        };
        if fits(self) || self.blocks.free_count() > FREE_FOR_GC {
            return Ok(());
        }
        self.gc.counters.stalls += 1;
        while self.blocks.free_count() <= FREE_FOR_GC {
            if !self.collect(u64::MAX)? {
                return Err(KvError::DeviceFull { needed: record_bytes as u64, free: self.free_bytes() });
            }
        }
        Ok(())
    }

    /// The part of gc's work that goes with a store of so many bytes.
    pub(super) fn collect_for(&mut self, bytes: u64) -> Result<()> {
        // From half of what tombstones may take on gc is ahead of the deletions: of a device that is full that is what is kept for them beside the capacity. As long as there is room they may take half of
        // it, too: copying then would gain what nobody needs, and stores that take the room have gc begin before it is gone.
        let room_for_tombstones = self.tombstones_beside() + self.free_bytes() / 2;
        let quarters = 4 * self.tombstone_bytes / room_for_tombstones.max(1);
        let pace = match quarters {
            0 | 1 if self.blocks.free_count() >= FREE_WANTED => return Ok(()),
            0 | 1 => PACE_EIGHTHS,
            2 => 2 * PACE_EIGHTHS,
            _ => 4 * PACE_EIGHTHS,
        };
        let usable = self.flash.geometry().usable_bytes();
        let victim = self.gc.cycle.as_ref().map(|cycle| cycle.block);
        let victim = match victim {
            None => self.choose_victim(),
            under_way => under_way,
        };
        let Some(victim) = victim else { return Ok(()) };
        // To gain what is dead in the victim all of it is gone through once.
        let gain = usable.saturating_sub(self.blocks.info(victim).live).max(1);
        let budget = (u128::from(bytes) * u128::from(usable) * u128::from(pace)) / (8 * u128::from(gain));
        match self.collect(u64::try_from(budget).unwrap_or(u64::MAX)) {
            Err(error @ KvError::Medium(_)) => Err(error),
            // The store that this went with is done. What gc lacks is met again by whoever needs a block.
            _ => Ok(()),
        }
    }

    /// Works on a victim, by about so many bytes. False: there is none.
    pub(super) fn collect(&mut self, budget: u64) -> Result<bool> {
        if self.gc.cycle.is_none() && !self.begin_cycle()? {
            return Ok(false);
        }
        let mut spent = 0;
        while spent < budget {
            let Some(cycle) = &self.gc.cycle else { break };
            let (block, is_erased) = (cycle.block, cycle.is_erased);
            let Some(entry) = cycle.entries.get(cycle.next).copied() else {
                if is_erased {
                    self.end_cycle(block);
                    break;
                }
                self.erase(block)?;
                continue;
            };
            spent += match is_erased {
                true => self.uncount(block, &entry)?,
                false => self.collect_record(block, &entry)?,
            };
            // Only now: one that could not be copied is met again.
            if let Some(cycle) = &mut self.gc.cycle {
                cycle.next += 1;
            }
        }
        Ok(true)
    }

    /// Seals what is open, so that it can be a victim, too: what a last tombstone hides may lie there. False, and nothing happens, where that gains nothing, or there
    /// are too few free blocks to go on with.
    pub(super) fn seal_for_gc(&mut self) -> Result<bool> {
        let usable = self.flash.geometry().usable_bytes();
        let mut sealed = false;
        for stream in WriteStream::BOTH {
            let Some(open) = self.blocks.open(stream) else { continue };
            let written: u64 = open.entries.iter().map(FooterEntry::charge).sum();
            let live = self.blocks.info(open.block).live;
            let gains = live < written && live + usable / GAIN_SHARE_MIN <= usable;
            if gains && self.blocks.free_count() >= FREE_WANTED {
                self.seal(stream)?;
                sealed = true;
            }
        }
        Ok(sealed)
    }

    fn choose_victim(&mut self) -> Option<u32> {
        // Most often there is none: then no block is looked at.
        if self.blocks.victims() == 0 {
            return None;
        }
        self.gc.counters.choices += 1;
        let usable = self.flash.geometry().usable_bytes();
        let candidates = self.blocks.all().filter(|(_, info)| self.blocks.is_victim(info));
        // Without a free block only what is left of a cycle that a crash ended surely fits in the open one: no block has less.
        let policy = if self.blocks.free_count() == 0 { GcPolicy::Greedy } else { self.options.gc_policy };
        let chosen = match policy {
            GcPolicy::Greedy => candidates.min_by_key(|(_, info)| info.live),
            GcPolicy::CostBenefit => candidates.max_by_key(|(_, info)| {
                // (1 - u) * age / (1 + u), in whole numbers.
                let age = u128::from(self.sequence.saturating_sub(info.sealed_at)) + 1;
                u128::from(usable - info.live) * age * 1024 / u128::from(usable + info.live)
            }),
        };
        chosen.map(|(block, _)| block)
    }

    fn begin_cycle(&mut self) -> Result<bool> {
        while let Some(block) = self.choose_victim() {
            match self.flash.read_footer(block) {
                Ok(Some(BlockFooter { entries, .. })) => {
                    self.gc.cycle = Some(GcCycle { block, entries, next: 0, is_erased: false });
                    return Ok(true);
                }
                Ok(None) | Err(KvError::ReadFault { .. }) => self.keep_damaged(block),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn keep_damaged(&mut self, block: u32) {
        self.blocks.set_damaged(block);
        self.gc.counters.damaged_blocks += 1;
        self.gc.cycle = None;
    }

    /// The header and the key of a record that an entry of the index leads to. In a block that was erased and is not counted off those are tombstones that hid
    /// nothing.
    pub(super) fn prefix(&self, place: u64) -> Result<(RecordHeader, &[u8])> {
        let erased = self.gc.cycle.as_ref().filter(|cycle| cycle.is_erased);
        match erased.is_some_and(|cycle| cycle.block == self.block_of(place)) {
            true => self.flash.prefix_before_erase(place),
            false => self.flash.prefix(place),
        }
    }

    fn place_of(&self, block: u32, entry: &FooterEntry) -> u64 {
        self.flash.geometry().block_offset(block) / UNIT_BYTES as u64 + u64::from(entry.unit)
    }

    /// Copies a record if it is live: the newest of its key, and no tombstone that hides nothing. What that costs.
    fn collect_record(&mut self, block: u32, entry: &FooterEntry) -> Result<u64> {
        let place = self.place_of(block, entry);
        let located = self.index.entry_at(entry.hash, place);
        let is_live = |found: &LocatedEntry| !(found.entry.is_tombstone && found.entry.older == 0);
        let Some(located) = located.filter(is_live) else { return Ok(LOOK_BYTES) };
        let mut copied = std::mem::take(&mut self.gc.copied);
        let read = self.read_whole(place, &mut copied);
        let copy = read.and_then(|header| {
            let (key, value) = copied.split_at(usize::from(header.key_bytes));
            if header != entry.header || self.hash(header.space, key) != entry.hash {
                let offset = place * UNIT_BYTES as u64;
                return Err(KvError::Damaged { offset, what: "a record as its footer lists it" });
            }
            let header = RecordHeader { relocated: true, ..header };
            Ok((header, self.append(WriteStream::Cold, entry.hash, &header, key, value)?))
        });
        self.gc.copied = copied;
        let (header, copy) = match copy {
            Ok(copy) => copy,
            Err(KvError::Damaged { .. } | KvError::ReadFault { .. } | KvError::Truncated { .. }) => {
                self.keep_damaged(block);
                return Ok(entry.charge());
            }
            Err(error) => return Err(error),
        };
        let older = one_more(located.entry.older);
        self.index.set(&located, &IndexEntry { place: copy, older, ..located.entry });
        self.blocks.remove_live(block, entry.charge());
        self.gc.counters.copied_records += 1;
        self.gc.counters.copied_bytes += header.record_bytes() as u64;
        self.record_stage(Stage::Copied, place, header.record_bytes() as u64);
        Ok(entry.charge())
    }

    /// The header of a record, and its key and value in `bytes`.
    fn read_whole(&self, place: u64, bytes: &mut Vec<u8>) -> Result<RecordHeader> {
        let (header, key) = self.flash.prefix(place)?;
        bytes.clear();
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(self.flash.value(place, &header)?);
        Ok(header)
    }

    /// Erases a victim that was gone through.
    fn erase(&mut self, block: u32) -> Result<()> {
        if self.blocks.info(block).live > 0 || !self.flash.has_next_life(block) {
            // A tombstone that hides nothing, and could not be read when that came to be known; or a block whose numbers are at their end, which only a forged file has.
            self.keep_damaged(block);
            return Ok(());
        }
        // No entry has a place in the block any more, but for tombstones that hide nothing.
        // PERSIST: all copies, and all that commands wrote over the victim's records, before the erase that takes these away.
        self.sync_stream(WriteStream::Cold)?;
        self.sync_stream(WriteStream::Hot)?;
        // PERSIST: the superblock says how far both streams must be whole from now on: before the erase, too.
        self.write_superblock(false)?;
        self.flash.turn_block(block)?;
        // The erase is durable: from here on the records are older ones no longer.
        if let Some(cycle) = &mut self.gc.cycle {
            (cycle.next, cycle.is_erased) = (0, true);
        }
        let first = self.flash.geometry().block_offset(block) / UNIT_BYTES as u64;
        self.record_stage(Stage::Erased, first, u64::from(self.flash.geometry().block_bytes));
        Ok(())
    }

    /// All records of an erased block are counted off.
    fn end_cycle(&mut self, block: u32) {
        self.gc.cycle = None;
        self.gc.counters.cycles += 1;
        self.blocks.set_free(block, self.flash.generation(block));
    }

    /// A record of an erased block is gone: an older one of its key, or a tombstone that hid nothing. What that costs.
    fn uncount(&mut self, block: u32, gone: &FooterEntry) -> Result<u64> {
        let place = self.place_of(block, gone);
        let newest = self.newest_of(place, gone);
        // Of a record that cannot be read nobody knows whose it was: a count that is too high keeps a tombstone too long, and nothing else.
        let Some(newest) = newest else { return Ok(LOOK_BYTES) };
        if newest.entry.place == place {
            self.index.remove(&newest);
            self.gc.counters.tombstones_dropped += 1;
            return Ok(LOOK_BYTES);
        }
        let older = one_fewer(newest.entry.older);
        self.index.set(&newest, &IndexEntry { older, ..newest.entry });
        if newest.entry.is_tombstone && older == 0 && newest.entry.older > 0 {
            self.release_tombstone(&newest.entry)?;
        }
        Ok(LOOK_BYTES)
    }

    /// The entry of the key of a record of an erased block: its own, if it is a tombstone that hid nothing.
    fn newest_of(&self, place: u64, gone: &FooterEntry) -> Option<LocatedEntry> {
        let mut candidates = self.index.find(gone.hash);
        let first = candidates.next()?;
        let Some(second) = candidates.next() else { return Some(first) };
        let all = || [first, second].into_iter().chain(self.index.find(gone.hash).skip(2));
        let own = all().find(|found| found.entry.place == place);
        own.or_else(|| {
            let (_, key) = self.flash.prefix_before_erase(place).ok()?;
            all().find(|found| {
                let of_key = self.prefix(found.entry.place);
                of_key.is_ok_and(|(header, of)| header.space == gone.header.space && of == key)
            })
        })
    }

    /// A tombstone hides nothing any more: its record is obsolete.
    fn release_tombstone(&mut self, tombstone: &IndexEntry) -> Result<()> {
        match self.flash.prefix(tombstone.place) {
            Ok((header, _)) if header.kind == RecordKind::Tombstone => {
                self.release(tombstone.place, &header);
                Ok(())
            }
            // It stays counted as live: its block is kept, too.
            Ok(_) | Err(KvError::Damaged { .. } | KvError::ReadFault { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A record counts no more.
    pub(super) fn release(&mut self, place: u64, header: &RecordHeader) {
        let charge = (header.record_bytes() + ENTRY_BYTES) as u64;
        self.blocks.remove_live(self.block_of(place), charge);
        if header.kind == RecordKind::Tombstone {
            self.tombstone_bytes = self.tombstone_bytes.saturating_sub(charge);
        }
        self.used_bytes = self.used_bytes.saturating_sub(charge);
    }
}
