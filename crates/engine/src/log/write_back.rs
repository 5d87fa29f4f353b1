//! Writing segments back as they fill, ahead of the syncs: the persist granule.
//!
//! Owns who writes what back, and when. Promises that all of it is sealed records, which do not change, and that nothing rests on it: the log is as durable
//! as its last sync, whatever was written back since. Must not know when there are syncs.
//!
//! On persistent memory the lines are flushed, and their writer waits for the fence: what a sync finds dirty then is little. On a file the kernel is told to begin,
//! and nobody waits. Where each write is durable before it returns there is nothing to write back ahead of that.

use super::Log;
use crate::options::{Durability, Options, PersistGranule};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Error, Result};

/// A block is at least a page, and no longer than the longest segment.
const BLOCK_BYTES: [u64; 2] = [4 << 10, 1 << 30];

/// How a log is written back.
#[derive(Debug)]
pub(super) struct WriteBack {
    granule: PersistGranule,
    /// How much was.
    bytes: AtomicU64,
}

impl WriteBack {
    /// # Errors
    /// A granule that is none.
    pub(super) fn new(options: &Options) -> Result<WriteBack> {
        check(options.persist_granule)?;
        let granule = match options.durability {
            Durability::Immediate => PersistGranule::Sync,
            Durability::Interval(_) | Durability::Process => options.persist_granule,
        };
        Ok(WriteBack { granule, bytes: AtomicU64::new(0) })
    }

    /// Where the block ends in which `offset` is, if blocks are written back.
    fn block_end(&self, offset: u64) -> u64 {
        match self.granule {
            PersistGranule::Block(bytes) => (offset / bytes + 1) * bytes,
            PersistGranule::Sync | PersistGranule::Segment => u64::MAX,
        }
    }

    /// Whether what is left of a segment is written back when it is full.
    fn ends_segments(&self) -> bool {
        self.granule != PersistGranule::Sync
    }
}

/// How far an open segment is written back.
#[derive(Debug)]
pub(super) struct WrittenBack {
    upto: u64,
    /// Once its records end here or behind, there is a whole block to be written back.
    block_end: u64,
}

impl WrittenBack {
    /// Of a segment whose records begin at `start`.
    pub(super) fn new(log: &Log, start: u64) -> WrittenBack {
        WrittenBack { upto: start, block_end: log.write_back.block_end(start) }
    }

    #[inline]
    pub(super) fn lacks_block(&self, end: u64) -> bool {
        end >= self.block_end
    }

    /// Writes back all whole blocks of records that end at `end`.
    #[cold]
    pub(super) fn write_blocks(&mut self, log: &Log, end: u64) {
        self.block_end = log.write_back.block_end(end);
        if let PersistGranule::Block(bytes) = log.write_back.granule {
            self.write_upto(log, end - end % bytes);
        }
    }

    /// Writes back the rest of a segment that takes no more records and ends at `end`.
    pub(super) fn write_rest(&mut self, log: &Log, end: u64) {
        if log.write_back.ends_segments() {
            self.write_upto(log, end);
        }
    }

    fn write_upto(&mut self, log: &Log, end: u64) {
        if self.upto < end {
            log.write_range_back(self.upto, end - self.upto);
            self.upto = end;
        }
    }
}

fn check(granule: PersistGranule) -> Result<()> {
    match granule {
        PersistGranule::Block(bytes)
            if !bytes.is_power_of_two() || !(BLOCK_BYTES[0]..=BLOCK_BYTES[1]).contains(&bytes) =>
        {
            Err(Error::invalid(format!(
                "persist_granule is {bytes} bytes; it must be a power of two from 4 KiB to 1 GiB"
            )))
        }
        _ => Ok(()),
    }
}

impl Log {
    /// Bytes that writers wrote back, or had the kernel begin to, since the store was opened.
    pub(crate) fn bytes_written_back(&self) -> u64 {
        self.write_back.bytes.load(Ordering::Relaxed)
    }

    fn write_range_back(&self, offset: u64, bytes: u64) {
        match self.tier.flush_is_cheap() {
            // PERSIST: nothing rests on this. A failure closes the log for writing, as that of a sync does.
            true => self.persist_range(offset, bytes),
            false => self.tier.start_write_back(offset, bytes),
        }
        self.write_back.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
