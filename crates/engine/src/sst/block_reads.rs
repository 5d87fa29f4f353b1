//! Looking into sorted tables without waiting, and reading together what many looks lacked.
//!
//! Owns [`BlockReads`]: which blocks looks lacked, and those that were read for them. Promises that after [`BlockReads::run`] the same looks lack nothing, whatever the
//! cache keeps; that a block is asked for once, however many want it; and that an error is that of the looks which need the block. Must not know which files count.
//!
//! A look takes up to two blocks, one after the other: that of the index says where that of the data is. So it is done anew once the first is there:
//! [`BlockReads::run`] does so itself, all looks one step at a time, and each step's reads are under way together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hedgerow_device::{CapacityFile, FileRead};

use super::block::Block;
use super::format::{EntryKind, PageRange, SstId};
use super::reader::{BlockSource, FoundRecord, Sst, SstKey};
use crate::{Error, Result};

/// What a look found that does not wait.
#[derive(Debug, Clone)]
pub enum SstLook {
    /// The record of the key.
    Found(FoundRecord),
    /// The key has none.
    Absent,
    /// Blocks would have to be read: by [`BlockReads::run`], then the look is made again.
    Lacking,
}

/// A block of whatever file: the file, its page, what it holds.
type HeldAddress = (SstId, u32, EntryKind);

fn held_address(sst: &Sst, pages: PageRange, kind: EntryKind) -> HeldAddress {
    (sst.id(), pages.first, kind)
}

/// A key whose block is wanted (composite; may be the beginning of one).
#[derive(Debug)]
struct WantedKey {
    sst: Sst,
    key: Box<[u8]>,
}

/// What looks lacked, and what was read for them, which is held until this is dropped: of so many looks as its owner makes by it.
///
/// A thread that must not wait makes its looks by one, has another thread [run](BlockReads::run) it, and makes them again. A thread that looks up many keys makes all
/// its looks by one, runs it, and makes those again that lacked something.
#[derive(Default)]
pub struct BlockReads {
    /// For a thread that must not wait: it takes what the page cache has.
    copies_at_once: bool,
    wanted: Vec<WantedKey>,
    held: BTreeMap<HeldAddress, Result<Arc<Block>>>,
}

impl fmt::Debug for BlockReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wanted, held) = (self.wanted.len(), self.held.len());
        f.debug_struct("BlockReads").field("wanted", &wanted).field("held", &held).finish_non_exhaustive()
    }
}

impl BlockReads {
    /// For a thread that will wait: what the block cache does not have is read by [`BlockReads::run`], all together.
    pub fn new() -> BlockReads {
        BlockReads::default()
    }

    /// For a thread that must not wait: what the page cache has is copied from there at once, and only the rest lacks.
    pub fn at_hand() -> BlockReads {
        BlockReads { copies_at_once: true, ..BlockReads::default() }
    }

    /// Whether something is wanted that was not read yet.
    pub fn is_wanting(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Reads all that is wanted, and holds it. What could not be read is an error of the looks that need it, as long as this lives.
    pub fn run(&mut self) {
        let mut wanted = std::mem::take(&mut self.wanted);
        // Each time round a look has a block more of those that it needs.
        while !wanted.is_empty() {
            let mut lacking = BTreeMap::new();
            wanted.retain(|WantedKey { sst, key }| match sst.data_block(key, &mut HeldOrCached(self)) {
                Err(NotAtHand::Lacking(pages, kind)) => {
                    lacking.insert(held_address(sst, pages, kind), (sst.clone(), pages));
                    true
                }
                // The look that is made again has the same error.
                Ok(_) | Err(NotAtHand::Failed(_)) => false,
            });
            self.read(lacking);
        }
    }

    /// Reads and verifies these blocks, each while others are under way.
    fn read(&mut self, lacking: BTreeMap<HeldAddress, (Sst, PageRange)>) {
        let lacking: Vec<(HeldAddress, (Sst, PageRange))> = lacking.into_iter().collect();
        let mut reads = Vec::with_capacity(lacking.len());
        for (_, (sst, pages)) in &lacking {
            reads.push(FileRead { file: sst.file(), offset: pages.offset(), bytes: pages.bytes() });
        }
        CapacityFile::read_many(&reads, |n, bytes| {
            let (address, (sst, pages)) = &lacking[n];
            let (.., kind) = *address;
            let block = bytes.map_err(Error::from).and_then(|bytes| sst.open_block(bytes, *pages, kind));
            if let Ok(block) = &block {
                sst.keep(*pages, block);
            }
            self.held.insert(*address, block);
        });
    }
}

/// Why a look ended that does not wait.
enum NotAtHand {
    /// It needs this block.
    Lacking(PageRange, EntryKind),
    Failed(Error),
}

impl From<Error> for NotAtHand {
    fn from(error: Error) -> NotAtHand {
        NotAtHand::Failed(error)
    }
}

/// Blocks that were read, and those of the caches.
struct HeldOrCached<'r>(&'r BlockReads);

impl BlockSource for HeldOrCached<'_> {
    type Refusal = NotAtHand;

    fn block(&mut self, sst: &Sst, pages: PageRange, kind: EntryKind) -> Result<Arc<Block>, NotAtHand> {
        let reads = self.0;
        if let Some(held) = reads.held.get(&held_address(sst, pages, kind)) {
            return Ok(held.clone()?);
        }
        if let Some(block) = sst.cached_block(pages, kind) {
            return Ok(block);
        }
        let at_hand = if reads.copies_at_once { sst.read_block_at_hand(pages, kind)? } else { None };
        at_hand.ok_or(NotAtHand::Lacking(pages, kind))
    }
}

/// Looks that do not wait.
impl Sst {
    /// The record of a key, of what was read for `reads`, and of what is in memory; what lacks is wanted of it from now on.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub fn look(&self, key: &SstKey, reads: &mut BlockReads) -> Result<SstLook> {
        if !self.may_hold(key) {
            return Ok(SstLook::Absent);
        }
        match self.find(key.bytes(), &mut HeldOrCached(reads)) {
            Ok(Some(found)) => Ok(SstLook::Found(found)),
            Ok(None) => Ok(SstLook::Absent),
            Err(NotAtHand::Lacking(..)) => {
                self.want(key.bytes(), reads);
                Ok(SstLook::Lacking)
            }
            Err(NotAtHand::Failed(error)) => Err(error),
        }
    }

    /// Has `reads` read the blocks where a key is, or would be (composite; may be the beginning of one), as for a cursor that goes there.
    pub fn want(&self, key: &[u8], reads: &mut BlockReads) {
        reads.wanted.push(WantedKey { sst: self.clone(), key: key.into() });
    }
}
