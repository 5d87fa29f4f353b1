//! What is left of a damaged sorted table.
//!
//! Owns [`SstSalvage`], a walk that goes on behind what does not verify. Promises each record that can be read, in the order of keys, and in the place of those that
//! cannot the keys between which they were; nothing that does not verify passes for a record. Must not know other files.

use std::sync::Arc;

use super::block::Block;
use super::format::{EntryKind, PageRange};
use super::reader::{FoundRecord, Sst};
use crate::Error;

/// What is asked for ahead of a block.
const AHEAD_PAGES: u32 = 32;

/// What a walk comes to.
#[derive(Debug)]
pub(crate) enum SstLeft {
    Record(FoundRecord),
    Gap(KeyGap),
}

/// Keys (composite) of which it is not known what there was: from the first on, below the second.
#[derive(Debug, Clone)]
pub(crate) struct KeyGap {
    pub(crate) keys: [Vec<u8>; 2],
    pub(crate) why: Error,
}

impl KeyGap {
    /// The part of it between two keys, if there is any.
    pub(crate) fn within(mut self, [from, end]: &[Vec<u8>; 2]) -> Option<KeyGap> {
        let [first, last] = &mut self.keys;
        if *first < *from {
            first.clone_from(from);
        }
        if *last > *end {
            last.clone_from(end);
        }
        (self.keys[0] < self.keys[1]).then_some(self)
    }
}

/// A walk over what is left between two keys.
#[derive(Debug)]
pub(crate) struct SstSalvage {
    sst: Sst,
    /// Composite: from the first on, below the second.
    span: [Vec<u8>; 2],
    index_number: usize,
    index: Option<Arc<Block>>,
    /// Of the next data block in `index`; `None` before the first one.
    bound: Option<usize>,
    block: Option<(Arc<Block>, usize)>,
}

impl SstSalvage {
    pub(crate) fn new(sst: &Sst, span: [Vec<u8>; 2]) -> SstSalvage {
        let index_number = sst.index_of(&span[0]);
        SstSalvage { sst: sst.clone(), span, index_number, index: None, bound: None, block: None }
    }

    /// What comes next; nothing behind the last.
    pub(crate) fn next(&mut self) -> Option<SstLeft> {
        loop {
            if let Some(record) = self.next_record() {
                return (record.composite() < self.span[1]).then_some(SstLeft::Record(record));
            }
            let index = match self.index_block()? {
                Ok(index) => index,
                Err(gap) => match gap.within(&self.span) {
                    Some(gap) => return Some(SstLeft::Gap(gap)),
                    None => continue,
                },
            };
            let bound = *self.bound.get_or_insert_with(|| index.bounds().at_or_below(&self.span[0]));
            if bound == index.len() {
                (self.index, self.bound, self.index_number) = (None, Some(0), self.index_number + 1);
                continue;
            }
            self.bound = Some(bound + 1);
            if index.bounds().bound(bound) >= self.span[1] {
                return None;
            }
            match self.data_block(&index, bound) {
                Ok(block) => self.block = Some((block, 0)),
                Err(why) => {
                    let keys = [index.bounds().bound(bound), self.next_bound(&index, bound)];
                    if let Some(gap) = (KeyGap { keys, why }).within(&self.span) {
                        return Some(SstLeft::Gap(gap));
                    }
                }
            }
        }
    }

    /// The next record of the block that it is at, from the first key on.
    fn next_record(&mut self) -> Option<FoundRecord> {
        let (block, n) = self.block.as_mut()?;
        while *n < block.len() {
            let record = FoundRecord::new(block, *n);
            *n += 1;
            if record.composite() >= self.span[0] {
                return Some(record);
            }
        }
        self.block = None;
        None
    }

    /// The index block that it is at, or what its keys were; nothing behind the last.
    fn index_block(&mut self) -> Option<Result<Arc<Block>, KeyGap>> {
        if let Some(index) = &self.index {
            return Some(Ok(Arc::clone(index)));
        }
        if self.index_number == self.sst.index_blocks() {
            return None;
        }
        let number = self.index_number;
        Some(match self.sst.read_block(self.sst.index_pages(number), EntryKind::Bound) {
            Ok(index) => {
                self.index = Some(Arc::clone(&index));
                Ok(index)
            }
            Err(why) => {
                (self.index_number, self.bound) = (number + 1, Some(0));
                let from = self.sst.index_bound(number).map_or_else(Vec::new, <[u8]>::to_vec);
                Err(KeyGap { keys: [from, self.index_end(number)], why })
            }
        })
    }

    fn data_block(&self, index: &Block, bound: usize) -> crate::Result<Arc<Block>> {
        let pages = self.sst.bound_at(index, bound)?;
        self.sst.will_read(PageRange { first: pages.first, count: AHEAD_PAGES });
        self.sst.read_block(pages, EntryKind::Record)
    }

    /// The first key behind the data block of this bound.
    fn next_bound(&self, index: &Block, bound: usize) -> Vec<u8> {
        match bound + 1 < index.len() {
            true => index.bounds().bound(bound + 1),
            false => self.index_end(self.index_number),
        }
    }

    /// The first key behind those of an index block.
    fn index_end(&self, number: usize) -> Vec<u8> {
        self.sst.index_bound(number + 1).map_or_else(|| after(&self.sst.keys()[1]), <[u8]>::to_vec)
    }
}

/// The least key above `key`.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
