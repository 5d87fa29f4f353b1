//! Walking a sorted table, in either direction.
//!
//! Owns [`SstCursor`]. Promises that from where it stands it meets each record once in the order of keys, and asks for what comes next before it is needed. Must not
//! know other files.

use std::borrow::Cow;
use std::sync::Arc;

use super::block::{Block, EntryKind};
use super::format::PageRange;
use super::reader::{FoundRecord, Sst, bound_for, records_below};
use crate::Result;

/// What is asked for ahead of a walk.
const AHEAD_PAGES: u32 = 128;

/// A place in a sorted table: at a record, or at neither end.
#[derive(Debug)]
pub struct SstCursor {
    sst: Sst,
    place: Option<CursorPlace>,
    /// Whether what is read stays in the cache.
    keeps_blocks: bool,
    /// Asked for up to here.
    asked_to: u32,
}

#[derive(Debug)]
struct CursorPlace {
    index_number: usize,
    index: Arc<Block>,
    /// Of the data block in `index`.
    bound: usize,
    block: Arc<Block>,
    n: usize,
}

impl SstCursor {
    /// At no record yet. `keeps_blocks`: what it reads stays in the cache, as for readers; not as for a merge, which reads all once.
    pub fn new(sst: &Sst, keeps_blocks: bool) -> SstCursor {
        SstCursor { sst: sst.clone(), place: None, keeps_blocks, asked_to: 0 }
    }

    /// The record it stands at.
    pub fn record(&self) -> Option<FoundRecord> {
        self.place.as_ref().map(|place| FoundRecord::new(&place.block, place.n))
    }

    /// Goes to the first record whose key is not below `key` (composite; may be the beginning of one).
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses. The cursor stands at no record then.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.place = None;
        self.asked_to = 0;
        let index_number = self.sst.index_of(key);
        let index = self.sst.index_block(index_number)?;
        let bound = bound_for(&index, key);
        let block = self.data_block(&index, bound)?;
        let n = records_below(&block, &with_table(key));
        let place = CursorPlace { index_number, index, bound, block, n };
        match n < place.block.len() {
            true => self.place = Some(place),
            false => self.place = self.block_after(place)?,
        }
        Ok(())
    }

    /// Goes to the last record whose key is below `key` (composite; may be the beginning of one).
    ///
    /// # Errors
    /// As [`SstCursor::seek`].
    pub fn seek_below(&mut self, key: &[u8]) -> Result<()> {
        self.seek(key)?;
        match self.place {
            Some(_) => self.step_back(),
            None => self.seek_last(),
        }
    }

    /// Goes to the last record of all.
    ///
    /// # Errors
    /// As [`SstCursor::seek`].
    pub fn seek_last(&mut self) -> Result<()> {
        self.place = None;
        self.place = Some(self.last_of(self.sst.index_blocks() - 1)?);
        Ok(())
    }

    /// Goes to the next record; behind the last it stands at none.
    ///
    /// # Errors
    /// As [`SstCursor::seek`].
    pub fn advance(&mut self) -> Result<()> {
        let Some(mut place) = self.place.take() else { return Ok(()) };
        place.n += 1;
        self.place = if place.n < place.block.len() { Some(place) } else { self.block_after(place)? };
        Ok(())
    }

    /// Goes to the previous record; before the first it stands at none.
    ///
    /// # Errors
    /// As [`SstCursor::seek`].
    pub fn step_back(&mut self) -> Result<()> {
        let Some(mut place) = self.place.take() else { return Ok(()) };
        if place.n > 0 {
            place.n -= 1;
        } else if place.bound > 0 {
            place.bound -= 1;
            place.block = self.data_block(&place.index, place.bound)?;
            place.n = place.block.len() - 1;
        } else if place.index_number > 0 {
            place = self.last_of(place.index_number - 1)?;
        } else {
            return Ok(());
        }
        self.place = Some(place);
        Ok(())
    }

    /// The last record under an index block.
    fn last_of(&mut self, index_number: usize) -> Result<CursorPlace> {
        let index = self.sst.index_block(index_number)?;
        let bound = index.len() - 1;
        let block = self.data_block(&index, bound)?;
        let n = block.len() - 1;
        Ok(CursorPlace { index_number, index, bound, block, n })
    }

    /// The first record of the block behind that of `place`.
    fn block_after(&mut self, mut place: CursorPlace) -> Result<Option<CursorPlace>> {
        place.bound += 1;
        if place.bound == place.index.len() {
            place.index_number += 1;
            if place.index_number == self.sst.index_blocks() {
                return Ok(None);
            }
            (place.index, place.bound) = (self.sst.index_block(place.index_number)?, 0);
        }
        place.block = self.data_block(&place.index, place.bound)?;
        place.n = 0;
        Ok(Some(place))
    }

    fn data_block(&mut self, index: &Block, bound: usize) -> Result<Arc<Block>> {
        let pages = self.sst.bound_at(index, bound)?;
        self.ask_ahead(pages);
        match self.keeps_blocks {
            true => self.sst.block(pages, EntryKind::Record),
            false => Ok(Arc::new(self.sst.read_block(pages, EntryKind::Record)?)),
        }
    }

    /// Has the device read what follows, a good deal at once, as soon as half of what was asked for is used up. Data blocks follow one another; a little
    /// beyond the last does no harm.
    fn ask_ahead(&mut self, pages: PageRange) {
        let after = pages.first + pages.count;
        let is_walk =
            self.asked_to != 0 && after + AHEAD_PAGES / 2 > self.asked_to && pages.first <= self.asked_to;
        if is_walk {
            let first = self.asked_to.max(after);
            self.sst.will_read(PageRange { first, count: after + AHEAD_PAGES - first });
            self.asked_to = after + AHEAD_PAGES;
        } else if self.asked_to == 0 {
            // The first block alone: whoever looks at one record asks for no more.
            self.asked_to = after;
        }
    }
}

/// The least key that is not below `key`, which may be too short to have a table.
fn with_table(key: &[u8]) -> Cow<'_, [u8]> {
    match key.len() {
        0..4 => [key, &[0; 4][key.len()..]].concat().into(),
        _ => key.into(),
    }
}
