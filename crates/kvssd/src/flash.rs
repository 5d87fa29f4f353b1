//! The flash of a device: its bytes on a medium, read, written and made durable.
//!
//! Owns [`Flash`] and, in its modules, every persisted layout. Promises that a pair is written once, to the place it stays at until gc copies it: the open page on
//! the medium is the request buffer; and that what comes back from a read was verified, or is an error. Must not know what is looked up, or when a
//! block is erased.

pub(crate) mod drive_model;
pub(crate) mod footer;
pub(crate) mod geometry;
pub(crate) mod record;
pub(crate) mod secret;
pub(crate) mod seed;
pub(crate) mod superblock;
pub(crate) mod timeline;

use std::cell::Cell;
use std::ops::Range;

use hedgerow_device::{CrashSim, ExclusiveTier, FastTier};
use hedgerow_row::le_bytes::u64_at;

use crate::code::{KvError, Result};
use crate::command::SpaceId;
use footer::{BlockFooter, FooterEntry, FooterRepair, TRAILER_BYTES};
use geometry::{Geometry, SECTOR_BYTES};
use record::{END_BYTES, HEADER_BYTES, PREFIX_BYTES_MAX, RecordHeader, UNIT_BYTES};
use secret::HashSecret;
use seed::{BlockSeed, GENERATION_MAX, SeedSecret, block_word, generation_of};
use superblock::{SUPERBLOCK_BYTES, Superblock};

/// Bytes of a record that are asked for ahead.
const PREFETCH_BYTES: u64 = 192;

/// What was done to the flash since the device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlashCounters {
    /// Bytes that were read, headers for comparing keys among them.
    pub bytes_read: u64,
    /// Bytes of records that were written, copies by gc among them.
    pub bytes_written: u64,
    /// Syncs of the medium.
    pub syncs: u64,
    /// Blocks that were erased.
    pub erases: u64,
}

/// What of all that there are two copies of is not as it was written: one of the two, or there would be no [`Flash`].
#[derive(Debug, Clone, Default)]
pub(crate) struct SpoiledCopies {
    /// Where copies of the superblock are that do not verify, or are no neighbour of the newer one.
    pub(crate) superblocks: Vec<u64>,
    /// Where words of blocks are that do not verify, and whose.
    pub(crate) words: Vec<(u64, u32)>,
    /// Where words are that are one generation behind, as a crash between the two leaves them.
    pub(crate) older_words: Vec<u64>,
}

/// What stands at a place of a block that is walked.
#[derive(Debug)]
pub(crate) enum Walked<'a> {
    /// A whole record: its header and its key.
    Record(RecordHeader, &'a [u8]),
    /// A header and a key that verify, before a value that does not.
    ValueDamaged(RecordHeader, &'a [u8]),
    /// The zeros after the last one.
    End,
    /// Neither.
    Torn,
}

#[derive(Debug)]
pub(crate) struct Flash {
    tier: ExclusiveTier,
    geometry: Geometry,
    /// Of each block.
    generations: Vec<u64>,
    superblock: Superblock,
    seed_secret: SeedSecret,
    /// Ranges of the tier that cannot be read, for tests.
    faults: Vec<Range<u64>>,
    bytes_read: Cell<u64>,
    counters: FlashCounters,
}

impl Flash {
    /// Makes a device on an empty medium.
    pub(crate) fn format(tier: FastTier, geometry: Geometry, secret: Option<u128>) -> Result<Flash> {
        geometry.check()?;
        let mut tier = exclusive(tier)?;
        if !is_blank(&tier) {
            return Err(KvError::Param { what: "the medium is not empty" });
        }
        tier.grow(geometry.bytes())?;
        for block in 0..geometry.blocks {
            for at in geometry.word_offsets(block) {
                tier.store_u64(at, block_word(block, 0));
            }
        }
        // PERSIST: the block words are durable before a superblock says that there is a device.
        tier.persist_all()?;
        let superblock = Superblock {
            generation: 0,
            device_id: tier.new_id(),
            boot_id: tier.boot_id(),
            geometry,
            // Two draws: of each the half that the device's id does not say.
            secret: HashSecret(secret.unwrap_or_else(|| tier.new_id() ^ tier.new_id().rotate_left(64))),
            clean: true,
            watermark: 0,
            open: [None, None],
            last_space: SpaceId::DIRECTORY,
            repair: 0,
        };
        let generations = vec![0; geometry.blocks as usize];
        let mut flash = Flash::over(tier, generations, superblock);
        flash.write_superblock(superblock)?;
        Ok(flash)
    }

    /// Opens the device on a medium: its newer superblock, and the words of its blocks.
    pub(crate) fn open(tier: FastTier) -> Result<Flash> {
        let tier = exclusive(tier)?;
        let superblock = read_superblock(&tier)?;
        let geometry = superblock.geometry;
        if tier.bytes() < geometry.bytes() {
            return Err(KvError::Truncated { bytes: tier.bytes(), needed: geometry.bytes() });
        }
        let mut generations = Vec::with_capacity(geometry.blocks as usize);
        for block in 0..geometry.blocks {
            let offsets = geometry.word_offsets(block);
            let word = |at: u64| generation_of(block, u64_at(tier.try_read(at, 8)?, 0));
            let generation = offsets.into_iter().filter_map(word).max();
            generations.push(
                generation.ok_or(KvError::Damaged { offset: offsets[0], what: "the words of a block" })?,
            );
        }
        Ok(Flash::over(tier, generations, superblock))
    }

    fn over(tier: ExclusiveTier, generations: Vec<u64>, superblock: Superblock) -> Flash {
        Flash {
            tier,
            geometry: superblock.geometry,
            generations,
            superblock,
            seed_secret: superblock.secret.seed_secret(),
            faults: Vec::new(),
            bytes_read: Cell::new(0),
            counters: FlashCounters::default(),
        }
    }

    /// Of the flash as it was opened.
    pub(crate) fn spoiled_copies(&self) -> SpoiledCopies {
        let mut spoiled = SpoiledCopies::default();
        let newest = self.superblock.generation;
        for at in [0, SECTOR_BYTES] {
            let bytes = self.tier.try_read(at, SUPERBLOCK_BYTES).unwrap_or_default();
            let found = Superblock::decode(bytes).ok().flatten().map(|superblock| superblock.generation);
            // The first one of a device has no neighbour.
            let is_first = newest == 1 && bytes.iter().all(|&byte| byte == 0);
            if !is_first && !found.is_some_and(|found| found == newest || found + 1 == newest) {
                spoiled.superblocks.push(at);
            }
        }
        for block in 0..self.geometry.blocks {
            let newest = self.generation(block);
            for at in self.geometry.word_offsets(block) {
                let word = self.tier.try_read(at, 8).map_or(0, |bytes| u64_at(bytes, 0));
                match generation_of(block, word) {
                    Some(found) if found == newest => {}
                    Some(found) if found + 1 == newest => spoiled.older_words.push(at),
                    _ => spoiled.words.push((at, block)),
                }
            }
        }
        spoiled
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether the machine is up since the superblock was written.
    pub(crate) fn is_same_boot(&self) -> bool {
        self.superblock.boot_id == self.tier.boot_id()
    }

    pub(crate) fn counters(&self) -> FlashCounters {
        FlashCounters { bytes_read: self.bytes_read.get(), ..self.counters }
    }

    pub(crate) fn crash_sim(&self) -> Option<&CrashSim> {
        self.tier.crash_sim()
    }

    /// From now on reads of this range of the tier fail.
    pub(crate) fn fail_reads(&mut self, range: Range<u64>) {
        self.faults.push(range);
    }

    pub(crate) fn clear_faults(&mut self) {
        self.faults.clear();
    }

    pub(crate) fn generation(&self, block: u32) -> u64 {
        self.generations[block as usize]
    }

    /// Whether a block that is in use may be erased: its next generation would be read again.
    pub(crate) fn has_next_life(&self, block: u32) -> bool {
        self.generation(block) + 1 < GENERATION_MAX
    }

    /// Whether the block is in use.
    pub(crate) fn is_in_use(&self, block: u32) -> bool {
        !self.generation(block).is_multiple_of(2)
    }

    fn seed(&self, block: u32, offset: u64) -> BlockSeed {
        BlockSeed::new(self.seed_secret, self.generation(block), offset)
    }

    fn read(&self, offset: u64, len: usize) -> Result<&[u8]> {
        let end = offset.saturating_add(len as u64);
        if self.faults.iter().any(|fault| fault.start < end && offset < fault.end) {
            return Err(KvError::ReadFault { offset, bytes: len });
        }
        self.bytes_read.set(self.bytes_read.get() + len as u64);
        let bytes = self.tier.bytes();
        self.tier.try_read(offset, len).ok_or(KvError::Truncated { bytes, needed: end })
    }

    /// What stands `end` bytes into a block.
    pub(crate) fn walk(&self, block: u32, end: u32) -> Result<Walked<'_>> {
        let block_bytes = self.geometry.block_bytes;
        let offset = self.geometry.block_offset(block) + u64::from(end);
        let left = block_bytes.saturating_sub(end) as usize;
        if left < HEADER_BYTES + TRAILER_BYTES {
            return Ok(Walked::End);
        }
        let seed = self.seed(block, offset);
        let prefix = self.read(offset, left.min(PREFIX_BYTES_MAX))?;
        let Some((header, key)) = RecordHeader::decode(prefix, seed) else {
            return Ok(if prefix[..END_BYTES] == [0; END_BYTES] { Walked::End } else { Walked::Torn });
        };
        if header.record_bytes() > left {
            return Ok(Walked::Torn);
        }
        let record = self.read(offset, header.record_bytes())?;
        Ok(match header.value(record, seed) {
            Some(_) => Walked::Record(header, key),
            None => Walked::ValueDamaged(header, key),
        })
    }

    /// The header and the key of the record at a place, in units from the start of the tier.
    pub(crate) fn prefix(&self, place: u64) -> Result<(RecordHeader, &[u8])> {
        self.prefix_in(place, 0)
    }

    /// Of so many generations before this one.
    fn prefix_in(&self, place: u64, before: u64) -> Result<(RecordHeader, &[u8])> {
        let offset = place * UNIT_BYTES as u64;
        let damaged = || KvError::Damaged { offset, what: "the header of a record" };
        let block = self.geometry.block_of(place).ok_or_else(damaged)?;
        let block_end = self.geometry.block_offset(block) + u64::from(self.geometry.block_bytes);
        if block_end - offset < HEADER_BYTES as u64 {
            return Err(damaged());
        }
        let len = record::prefix_bytes_of(self.read(offset, HEADER_BYTES)?);
        let seed = BlockSeed::new(self.seed_secret, self.generation(block).wrapping_sub(before), offset);
        let decoded = RecordHeader::decode(self.read(offset, len)?, seed);
        decoded.filter(|(header, _)| offset + header.record_bytes() as u64 <= block_end).ok_or_else(damaged)
    }

    /// What [`Flash::prefix`] gave until the block was erased, as long as nothing was written over it.
    pub(crate) fn prefix_before_erase(&self, place: u64) -> Result<(RecordHeader, &[u8])> {
        self.prefix_in(place, 1)
    }

    /// The value of the record at a place, with this header.
    pub(crate) fn value(&self, place: u64, header: &RecordHeader) -> Result<&[u8]> {
        let offset = place * UNIT_BYTES as u64;
        let damaged = || KvError::Damaged { offset, what: "the value of a record" };
        let block = self.geometry.block_of(place).ok_or_else(damaged)?;
        let record = self.read(offset, header.record_bytes())?;
        header.value(record, self.seed(block, offset)).ok_or_else(damaged)
    }

    /// Writes a record at a place in an open block, and the zeros that end the block for now. It is whole once this returns, and durable with the next sync.
    pub(crate) fn write_record(&mut self, place: u64, header: &RecordHeader, key: &[u8], value: &[u8]) {
        let offset = place * UNIT_BYTES as u64;
        let block = self.geometry.block_of(place).unwrap_or(0);
        let seed = self.seed(block, offset);
        let len = header.record_bytes();
        let word = self.tier.write(offset, len + END_BYTES, |out| header.encode(out, seed, key, value));
        // The word says that the rest is whole: a process killed before this store leaves zeros.
        self.tier.store_u64(offset, word);
        self.counters.bytes_written += len as u64;
    }

    /// Writes zeros where the first record of a block will begin.
    pub(crate) fn begin_block(&mut self, block: u32) {
        self.tier.store_u64(self.geometry.block_offset(block), 0);
    }

    /// Where a block's footer of so many entries lies, and what it is seeded with.
    fn footer_place(&self, block: u32, entries: usize) -> (u64, BlockSeed) {
        let end = self.geometry.block_offset(block) + u64::from(self.geometry.block_bytes);
        (end - footer::footer_bytes(entries) as u64, self.seed(block, end - TRAILER_BYTES as u64))
    }

    /// Writes the footer of a block, whose records are durable, and makes it durable.
    pub(crate) fn write_footer(
        &mut self,
        block: u32,
        entries: &[FooterEntry],
        repair: FooterRepair,
    ) -> Result<()> {
        let (offset, seed) = self.footer_place(block, entries.len());
        let (len, generation) = (footer::footer_bytes(entries.len()), self.generation(block));
        self.tier.write(offset, len, |out| footer::encode(out, entries, repair, generation, seed));
        self.persist(offset, len as u64)
    }

    /// The footer of a block in use, if it has a whole one.
    pub(crate) fn read_footer(&self, block: u32) -> Result<Option<BlockFooter>> {
        let (trailer, seed) = self.footer_place(block, 0);
        let trailer = self.read(trailer, TRAILER_BYTES)?;
        let Some(entries) = footer::entries_of(trailer, self.generation(block)) else { return Ok(None) };
        if footer::footer_bytes(entries) > self.geometry.block_bytes as usize {
            return Ok(None);
        }
        let (offset, _) = self.footer_place(block, entries);
        let listed = footer::decode(self.read(offset, footer::footer_bytes(entries))?, seed);
        let records_end = offset - self.geometry.block_offset(block);
        let fits = |entry: &FooterEntry| {
            u64::from(entry.unit) * UNIT_BYTES as u64 + entry.header.record_bytes() as u64 <= records_end
        };
        // Records lie one behind another: whatever lists one twice, or two that overlap, was not written by a device.
        let end = |entry: &FooterEntry| entry.unit as usize + entry.header.record_bytes() / UNIT_BYTES;
        let in_order =
            |listed: &BlockFooter| listed.entries.windows(2).all(|two| end(&two[0]) <= two[1].unit as usize);
        Ok(listed.filter(|listed| listed.entries.iter().all(fits) && in_order(listed)))
    }

    /// Writes zeros to a block behind its records, durably: what a power cut left there is never found again.
    pub(crate) fn clear_rest(&mut self, block: u32, end: u32) -> Result<()> {
        let offset = self.geometry.block_offset(block) + u64::from(end);
        let len = u64::from(self.geometry.block_bytes - end);
        self.tier.write(offset, len as usize, |out| out.fill(0));
        self.persist(offset, len)
    }

    /// Stores over itself what a killed process left of a block, so that the next sync makes it durable.
    pub(crate) fn rewrite_block(&mut self, block: u32, end: u32) {
        self.tier.rewrite(self.geometry.block_offset(block), u64::from(end) + END_BYTES as u64);
    }

    /// Stores both superblocks over themselves and makes them durable. What a killed process stored is in the page cache only: without this the next one would be written over the
    /// one copy that is durable, and a power cut could tear both.
    pub(crate) fn restore_superblocks(&mut self) -> Result<()> {
        self.tier.rewrite(0, 2 * SECTOR_BYTES);
        self.persist(0, 2 * SECTOR_BYTES)
    }

    /// Asks for the cache lines of a record's header and key, and of a short value.
    pub(crate) fn prefetch(&self, place: u64) {
        self.tier.prefetch(place * UNIT_BYTES as u64, PREFETCH_BYTES);
    }

    /// Has the medium begin to write what was stored to a range of the tier, where it can; a later sync has less to wait for.
    pub(crate) fn start_write_back(&self, offset: u64, len: u64) {
        self.tier.start_write_back(offset, len);
    }

    /// Makes durable what was stored to a range of the tier.
    pub(crate) fn persist(&mut self, offset: u64, len: u64) -> Result<()> {
        self.counters.syncs += 1;
        Ok(self.tier.persist(offset, len)?)
    }

    /// Gives a block its next generation, durably: takes a free one into use, or erases one that is in use.
    pub(crate) fn turn_block(&mut self, block: u32) -> Result<()> {
        let generation = self.generation(block) + 1;
        let offsets = self.geometry.word_offsets(block);
        for at in offsets {
            self.tier.store_u64(at, block_word(block, generation));
        }
        self.generations[block as usize] = generation;
        self.counters.erases += u64::from(generation.is_multiple_of(2));
        for at in offsets {
            self.persist(at, 8)?;
        }
        Ok(())
    }

    /// Stores all block words again, both tables alike, and makes them durable: a crash may have left one of two.
    pub(crate) fn restore_words(&mut self) -> Result<()> {
        for block in 0..self.geometry.blocks {
            let word = block_word(block, self.generation(block));
            for at in self.geometry.word_offsets(block) {
                let stored = self.tier.try_read(at, 8).map(|bytes| u64_at(bytes, 0));
                if stored != Some(word) {
                    self.tier.store_u64(at, word);
                }
            }
        }
        let (offset, len) = self.geometry.words_range();
        self.tier.rewrite(offset, len);
        self.persist(offset, len)
    }

    /// Writes the superblock, in the place of the older copy, and makes it durable. Its generation is set here.
    pub(crate) fn write_superblock(&mut self, superblock: Superblock) -> Result<()> {
        self.store_superblock(Superblock { boot_id: self.tier.boot_id(), ..superblock })
    }

    /// Says durably that a repair is begun, if none is; its number. What else the superblock says, the boot id too, stays as it was: an opening after this one, should it be cut short, must come to the
    /// same records.
    pub(crate) fn begin_repair(&mut self) -> Result<u32> {
        let found = self.superblock;
        // Of the generation the lower half: no footer has it from an earlier repair.
        let begun = (found.generation as u32).max(1);
        let repair = if found.repair > 0 { found.repair } else { begun };
        self.store_superblock(Superblock { repair, ..found })?;
        Ok(repair)
    }

    fn store_superblock(&mut self, superblock: Superblock) -> Result<()> {
        let superblock = Superblock { generation: self.superblock.generation + 1, ..superblock };
        let generation = superblock.generation;
        let offset = generation % 2 * SECTOR_BYTES;
        self.tier.write(offset, SUPERBLOCK_BYTES, |out| out.copy_from_slice(&superblock.encode()));
        // PERSIST: the other copy is durable since it was written, or since this device was opened (`restore_superblocks`); only then may this one be torn.
        self.persist(offset, SUPERBLOCK_BYTES as u64)?;
        self.superblock = superblock;
        Ok(())
    }
}

fn exclusive(tier: FastTier) -> Result<ExclusiveTier> {
    if tier.is_read_only() {
        return Err(KvError::Param {
            what: "the medium was opened for reading only, and a device writes to it",
        });
    }
    Ok(ExclusiveTier::new(tier)?)
}

/// Bytes of a medium that are looked at for the words of blocks.
const WORDS_LOOKED_AT: u64 = 1 << 20;

/// Whether there is nothing on the medium, or a device whose making was cut off: its first superblock, copy B, is not whole, and there was no other.
fn is_blank(tier: &ExclusiveTier) -> bool {
    let len = tier.bytes().min(2 * SECTOR_BYTES) as usize;
    let head = tier.try_read(0, len).unwrap_or_default();
    let (first, second) = head.split_at(len.min(SECTOR_BYTES as usize));
    let (copy, rest) = second.split_at(second.len().min(SUPERBLOCK_BYTES));
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    // Where the words of blocks are, none has been in use: a device that has lost both of its superblocks is not blank.
    let words = tier.bytes().clamp(len as u64, WORDS_LOOKED_AT) - len as u64;
    let words = tier.try_read(len as u64, words as usize).unwrap_or_default();
    let is_unused = words.chunks_exact(8).all(|word| is_zero(&word[..6]));
    let is_torn = is_zero(copy) || matches!(Superblock::decode(copy), Ok(None));
    is_zero(first) && is_zero(rest) && is_torn && is_unused
}

/// The newer of the two superblocks that are whole.
fn read_superblock(tier: &ExclusiveTier) -> Result<Superblock> {
    let truncated = KvError::Truncated { bytes: tier.bytes(), needed: 2 * SECTOR_BYTES };
    if tier.bytes() == 0 {
        return Err(KvError::NoDevice);
    }
    let (mut newest, mut refused): (Option<Superblock>, Option<KvError>) = (None, None);
    for at in [0, SECTOR_BYTES] {
        let bytes = tier.try_read(at, SUPERBLOCK_BYTES).ok_or(truncated.clone())?;
        match Superblock::decode(bytes) {
            Ok(found) => {
                newest = [newest, found].into_iter().flatten().max_by_key(|superblock| superblock.generation);
            }
            Err(error) => refused = Some(error),
        }
    }
    // A copy of a later version beside one that is known was written by a newer build: the device is its.
    match (refused, newest) {
        (Some(error), _) => Err(error),
        (None, Some(superblock)) => Ok(superblock),
        (None, None) if is_blank(tier) => Err(KvError::NoDevice),
        (None, None) => Err(KvError::Damaged { offset: 0, what: "both superblocks" }),
    }
}
