//! How a record gets to flash, and when it is durable.
//!
//! Owns appending to open blocks, sealing them, and what a sync makes durable. Promises the order of persistence: records, then the footer that lists them, then the superblock that
//! says so, and only then the next block. Must not know what is looked up.

use super::Device;
use super::block::{OpenBlock, WriteStream};
use super::event::Stage;
use crate::code::{KvError, Result};
use crate::command::group_of;
use crate::flash::footer::{FooterEntry, FooterRepair, footer_bytes};
use crate::flash::record::{END_BYTES, RecordHeader, UNIT_BYTES};
use crate::flash::superblock::Superblock;

/// So many bytes at least are given to the medium at once.
const WRITE_BACK_BYTES: u32 = 256 << 10;

impl Device {
    /// Writes a record behind the last one of a stream, and counts it as live there. Its place. There is a free block if one is needed, by `ensure_free`.
    pub(super) fn append(
        &mut self,
        stream: WriteStream,
        hash: u64,
        header: &RecordHeader,
        key: &[u8],
        value: &[u8],
    ) -> Result<u64> {
        let geometry = self.flash.geometry();
        let len = header.record_bytes();
        if !self.blocks.open(stream).is_some_and(|open| open.has_room(&geometry, len)) {
            self.open_next(stream)?;
        }
        let Some(open) = self.blocks.open_mut(stream) else {
            return Err(KvError::DeviceFull { needed: len as u64, free: 0 });
        };
        let unit = open.end / UNIT_BYTES as u32;
        let entry = FooterEntry { hash, group: group_of(key), unit, header: *header };
        open.entries.push(entry);
        open.end += len as u32;
        let block = open.block;
        let place = geometry.block_offset(block) / UNIT_BYTES as u64 + u64::from(unit);
        self.flash.write_record(place, header, key, value);
        self.blocks.add_live(block, entry.charge());
        self.record_stage(Stage::Buffered, place, len as u64);
        self.start_full_pages(stream);
        Ok(place)
    }

    /// Has the medium begin to write the pages of an open block that are full: nothing is written to them any more. Nobody waits for it before a sync.
    fn start_full_pages(&mut self, stream: WriteStream) {
        let geometry = self.flash.geometry();
        let Some(open) = self.blocks.open_mut(stream) else { return };
        let full = open.end - open.end % geometry.page_bytes;
        let from = open.started.max(open.durable);
        if full < from + geometry.page_bytes.max(WRITE_BACK_BYTES) {
            return;
        }
        open.started = full;
        let offset = geometry.block_offset(open.block) + u64::from(from);
        self.flash.start_write_back(offset, u64::from(full - from));
    }

    /// Makes durable all that was written to a stream.
    pub(super) fn sync_stream(&mut self, stream: WriteStream) -> Result<()> {
        let geometry = self.flash.geometry();
        if let Some(open) = self.blocks.open_mut(stream)
            && open.durable < open.end
        {
            let (from, end, block) = (open.durable, open.end, open.block);
            open.durable = end;
            let offset = geometry.block_offset(block) + u64::from(from);
            self.flash.persist(offset, u64::from(end - from) + END_BYTES as u64)?;
            self.record_stage(Stage::Programmed, offset / UNIT_BYTES as u64, u64::from(end - from));
        }
        if stream == WriteStream::Hot {
            // All blocks before this one were durable before it was begun.
            self.durable_sequence = self.sequence;
        }
        Ok(())
    }

    /// Seals the open block of a stream, if there is one, and opens the next.
    fn open_next(&mut self, stream: WriteStream) -> Result<()> {
        if self.blocks.free_count() == 0 {
            return Err(KvError::DeviceFull {
                needed: u64::from(self.flash.geometry().block_bytes),
                free: 0,
            });
        }
        self.seal(stream)?;
        let Some(block) = self.blocks.take_free() else { return Ok(()) };
        let generation = self.flash.generation(block) + 1;
        let open = OpenBlock { block, generation, end: 0, started: 0, durable: 0, entries: Vec::new() };
        self.blocks.set_open(stream, open);
        // PERSIST: the footer of the last block is durable (`seal`); the superblock, which no longer calls that one open, comes before the word of the new
        // one, and that before its first record: whatever is found in use is in the superblock or has a footer.
        self.write_superblock(false)?;
        self.flash.begin_block(block);
        self.flash.turn_block(block)
    }

    /// Ends the open block of a stream with a footer.
    pub(super) fn seal(&mut self, stream: WriteStream) -> Result<()> {
        // PERSIST: all records of the block before the footer that lists them.
        self.sync_stream(stream)?;
        let Some(open) = self.blocks.take_open(stream) else { return Ok(()) };
        self.flash.write_footer(open.block, &open.entries, FooterRepair::default())?;
        self.blocks.set_sealed(open.block, self.sequence);
        let end = self.flash.geometry().block_offset(open.block) + u64::from(open.end);
        self.record_stage(Stage::Sealed, end / UNIT_BYTES as u64, footer_bytes(open.entries.len()) as u64);
        Ok(())
    }

    /// Writes how far the device is.
    pub(super) fn write_superblock(&mut self, clean: bool) -> Result<()> {
        let superblock = Superblock {
            clean,
            watermark: self.durable_sequence,
            open: self.blocks.marks(),
            last_space: self.spaces.last_id(),
            // An opening that is through has told.
            repair: 0,
            ..*self.flash.superblock()
        };
        self.flash.write_superblock(superblock)
    }

    /// The block that a place is in.
    pub(super) fn block_of(&self, place: u64) -> u32 {
        self.flash.geometry().block_of(place).unwrap_or(0)
    }
}
