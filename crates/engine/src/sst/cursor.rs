//! Walking a sorted table, in either direction.
//!
//! Owns [`SstCursor`]. Promises that from where it stands it meets each record once in the order of keys, and that whoever goes on in one direction has what comes next asked for
//! before it is needed, once something was not in memory. Must not know other files.

use std::borrow::Cow;
use std::sync::Arc;

use super::block::Block;
use super::block_reads::WalkBlocks;
use super::format::{EntryKind, PageRange};
use super::reader::{BlockSource, FoundRecord, Sst, records_below};
use crate::{ErrorKind, Result};

/// What is asked for ahead when a walk leaves its first block, and at most: twice as much each time.
const AHEAD_PAGES: [u32; 2] = [8, 128];
/// Kernels cut a longer request off.
const ASKED_AT_ONCE: u32 = 32;

/// A place in a sorted table: at a record, or at none.
#[derive(Debug)]
pub struct SstCursor {
    sst: Sst,
    place: Option<CursorPlace>,
    /// It came by a block that is on the disk alone: from then on it asks ahead.
    has_left_memory: bool,
    /// The next request ahead.
    ahead: u32,
    /// Pages that were asked for, those of the present block included.
    asked: [u32; 2],
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

/// How a data block comes to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Going {
    /// By a look for a key.
    There,
    Forward,
    Back,
}

impl SstCursor {
    /// At no record yet.
    pub fn new(sst: &Sst) -> SstCursor {
        SstCursor { sst: sst.clone(), place: None, has_left_memory: false, ahead: 0, asked: [0; 2] }
    }

    /// The record it stands at.
    pub fn record(&self) -> Option<FoundRecord> {
        self.place.as_ref().map(|place| FoundRecord::new(&place.block, place.n))
    }

    /// If it has just come into a block, going forward or back: the record there that it would come to last.
    pub(crate) fn end_of_block_entered(&self, reverse: bool) -> Option<FoundRecord> {
        let CursorPlace { block, n, .. } = self.place.as_ref()?;
        let (first, last) = (0, block.len() - 1);
        let (from, to) = if reverse { (last, first) } else { (first, last) };
        (*n == from).then(|| FoundRecord::new(block, to))
    }

    /// Goes to the first record whose key is not below `key` (composite; may be the beginning of one).
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses. The cursor stands at no record then.
    pub fn seek(&mut self, key: &[u8], blocks: &mut WalkBlocks<'_>) -> Result<()> {
        self.place = None;
        let index_number = self.sst.index_of(key);
        let index = self.first_index_block(index_number, key, blocks)?;
        let bound = index.bounds().at_or_below(key);
        let place = self.look_for(key, (index_number, index, bound), blocks)?;
        self.place =
            if place.n < place.block.len() { Some(place) } else { self.after(place, Going::There, blocks)? };
        Ok(())
    }

    /// Goes to the last record whose key is below `key` (composite; may be the beginning of one).
    ///
    /// # Errors
    /// As [`SstCursor::seek`].
    pub fn seek_below(&mut self, key: &[u8], blocks: &mut WalkBlocks<'_>) -> Result<()> {
        self.place = None;
        let index_number = self.sst.index_below(key);
        let index = self.first_index_block(index_number, key, blocks)?;
        let bound = index.bounds().below(key);
        let place = self.look_for(key, (index_number, index, bound), blocks)?;
        self.place = self.before(place, Going::There, blocks)?;
        Ok(())
    }

    /// Goes to the last record of all.
    ///
    /// # Errors
    /// As [`SstCursor::seek`].
    pub fn seek_last(&mut self, blocks: &mut WalkBlocks<'_>) -> Result<()> {
        self.place = None;
        self.place = Some(self.last_of(self.sst.index_blocks() - 1, Going::There, blocks)?);
        Ok(())
    }

    /// Goes to the next record; behind the last, and from none, to none.
    ///
    /// # Errors
    /// As [`SstCursor::seek`].
    pub fn advance(&mut self, blocks: &mut WalkBlocks<'_>) -> Result<()> {
        let Some(mut place) = self.place.take() else { return Ok(()) };
        place.n += 1;
        self.place = if place.n < place.block.len() {
            Some(place)
        } else {
            self.after(place, Going::Forward, blocks)?
        };
        Ok(())
    }

    /// Goes to the previous record; before the first, and from none, to none.
    ///
    /// # Errors
    /// As [`SstCursor::seek`].
    pub fn step_back(&mut self, blocks: &mut WalkBlocks<'_>) -> Result<()> {
        let Some(place) = self.place.take() else { return Ok(()) };
        self.place = self.before(place, Going::Back, blocks)?;
        Ok(())
    }

    /// Where the first record whose key is not below `key` is in a block, or would be.
    fn look_for(
        &mut self,
        key: &[u8],
        (index_number, index, bound): (usize, Arc<Block>, usize),
        blocks: &mut WalkBlocks<'_>,
    ) -> Result<CursorPlace> {
        let block = self.data_block(&index, bound, Going::There, blocks)?;
        let n = records_below(&block, &with_table(key));
        Ok(CursorPlace { index_number, index, bound, block, n })
    }

    /// The first record of the block behind that of `place`.
    fn after(
        &mut self,
        mut place: CursorPlace,
        going: Going,
        blocks: &mut WalkBlocks<'_>,
    ) -> Result<Option<CursorPlace>> {
        place.bound += 1;
        if place.bound == place.index.len() {
            place.index_number += 1;
            if place.index_number == self.sst.index_blocks() {
                return Ok(None);
            }
            place.index = self.index_block(place.index_number, blocks)?;
            place.bound = 0;
        }
        place.block = self.data_block(&place.index, place.bound, going, blocks)?;
        place.n = 0;
        Ok(Some(place))
    }

    /// The record before that of `place`, of its block or the one before.
    fn before(
        &mut self,
        mut place: CursorPlace,
        going: Going,
        blocks: &mut WalkBlocks<'_>,
    ) -> Result<Option<CursorPlace>> {
        if place.n > 0 {
            place.n -= 1;
        } else if place.bound > 0 {
            place.bound -= 1;
            place.block = self.data_block(&place.index, place.bound, going, blocks)?;
            place.n = place.block.len() - 1;
        } else if place.index_number > 0 {
            place = self.last_of(place.index_number - 1, going, blocks)?;
        } else {
            return Ok(None);
        }
        Ok(Some(place))
    }

    /// The last record under an index block.
    fn last_of(
        &mut self,
        index_number: usize,
        going: Going,
        blocks: &mut WalkBlocks<'_>,
    ) -> Result<CursorPlace> {
        let index = self.index_block(index_number, blocks)?;
        let bound = index.len() - 1;
        let block = self.data_block(&index, bound, going, blocks)?;
        let n = block.len() - 1;
        Ok(CursorPlace { index_number, index, bound, block, n })
    }

    /// The index block where a walk begins, at this key.
    fn first_index_block(&self, n: usize, key: &[u8], blocks: &mut WalkBlocks<'_>) -> Result<Arc<Block>> {
        self.index_block(n, blocks).inspect_err(|error| {
            if error.kind() == ErrorKind::NotInMemory {
                blocks.want(&self.sst, key);
            }
        })
    }

    fn index_block(&self, n: usize, blocks: &mut WalkBlocks<'_>) -> Result<Arc<Block>> {
        blocks.block(&self.sst, self.sst.index_pages(n), EntryKind::Bound)
    }

    fn data_block(
        &mut self,
        index: &Block,
        bound: usize,
        going: Going,
        blocks: &mut WalkBlocks<'_>,
    ) -> Result<Arc<Block>> {
        let pages = self.sst.bound_at(index, bound)?;
        if blocks.waits() {
            if !self.has_left_memory {
                // To ask for what memory has takes as long as to copy it.
                if let Some(block) = blocks.block_at_hand(&self.sst, pages)? {
                    return Ok(block);
                }
                self.has_left_memory = true;
            }
            self.ask_ahead(pages, going);
        }
        let block = blocks.block(&self.sst, pages, EntryKind::Record);
        if block.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotInMemory) {
            let pages_at = |n| self.sst.bound_at(index, n).ok();
            match going {
                Going::Forward => blocks.want_next(&self.sst, (bound + 1..index.len()).map_while(pages_at)),
                Going::Back => blocks.want_next(&self.sst, (0..bound).rev().map_while(pages_at)),
                Going::There => {}
            }
        }
        block
    }

    /// Has the device read what a walk comes to next, as soon as half of what was asked for is used up. Data blocks follow one another.
    fn ask_ahead(&mut self, pages: PageRange, going: Going) {
        let (first, end) = (pages.first, pages.first + pages.count);
        let [from, to] = self.asked;
        let goes_on = match going {
            Going::There => false,
            Going::Forward => (from..=to).contains(&first),
            Going::Back => (from..=to).contains(&end),
        };
        if !goes_on {
            (self.ahead, self.asked) = (AHEAD_PAGES[0], [first, end]);
            if going == Going::There {
                return;
            }
        }
        let [from, to] = self.asked;
        let (left, wanted) = match going {
            Going::Back => {
                (first.saturating_sub(from), first.saturating_sub(self.ahead).max(1)..from.min(first))
            }
            _ => (to.saturating_sub(end), to.max(end)..(end + self.ahead).min(self.sst.blocks_end())),
        };
        if left > self.ahead / 2 || wanted.is_empty() {
            return;
        }
        for piece in wanted.clone().step_by(ASKED_AT_ONCE as usize) {
            let count = ASKED_AT_ONCE.min(wanted.end - piece);
            self.sst.will_read(PageRange { first: piece, count });
        }
        self.asked = [from.min(wanted.start), to.max(wanted.end)];
        self.ahead = (2 * self.ahead).min(AHEAD_PAGES[1]);
    }
}

/// The least key that is not below `key`, which may be too short to have a table.
fn with_table(key: &[u8]) -> Cow<'_, [u8]> {
    match key.len() {
        0..4 => [key, &[0; 4][key.len()..]].concat().into(),
        _ => key.into(),
    }
}
