//! Looking into sorted tables without waiting, and reading together what many looks lacked.
//!
//! Owns [`BlockReads`]: which blocks looks lacked, and those that were read for them. Promises that after [`BlockReads::run`] the same looks lack nothing, whatever the
//! cache keeps, unless they need more than one may hold for who must not wait; that a block is asked for once, however many want it; and that an error is that of the looks which need the block. Must not know which files count.
//!
//! A look takes up to two blocks, one after the other: that of the index says where that of the data is. So it is done anew once the first is there:
//! [`BlockReads::run`] does so itself, all looks one step at a time, and each step's reads are under way together. [`BlockReads::run_beside`] lets each go on
//! by itself, and makes the next while others wait.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use hedgerow_device::{CapacityFile, FileRead, OwnedBytes, Random, ReadsInTurn};

use super::block::{AddressHasher, Block, BlockAddress};
use super::format::{EntryKind, PageRange, SstId};
use super::reader::{BlockSource, DataWay, FoundRecord, Sst, SstKey};
use crate::{Error, ErrorKind, Result};

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

/// What is known of a key without a read.
#[derive(Debug)]
pub(crate) enum CachedLook {
    /// The record of the key.
    Found(FoundRecord),
    /// The key has none.
    Absent,
    /// If it has one, this is where: [`Sst::find_at`] reads it.
    At(DataPages),
    /// A block of the index would have to be read to say more.
    Unknown,
}

/// Where in its file the record of a key lies if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataPages(PageRange);

/// A block of whatever file: the file, its page, what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HeldAddress {
    block: BlockAddress,
    store: u128,
    kind: EntryKind,
}

impl Hash for HeldAddress {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // The rest tells apart what nobody has at the same time.
        self.block.hash(hasher);
    }
}

fn held_address(sst: &Sst, pages: PageRange, kind: EntryKind) -> HeldAddress {
    let SstId { store, number } = sst.id();
    HeldAddress { block: BlockAddress { number, page: pages.first }, store, kind }
}

/// Blocks that are wanted of a file.
#[derive(Debug)]
struct Wanted {
    sst: Sst,
    blocks: WantedBlocks,
}

#[derive(Debug)]
enum WantedBlocks {
    /// Those on the way to a key (composite; may be the beginning of one).
    Of(Box<[u8]>),
    One(PageRange, EntryKind),
}

impl Wanted {
    fn block(sst: &Sst, pages: PageRange, kind: EntryKind) -> Wanted {
        Wanted { sst: sst.clone(), blocks: WantedBlocks::One(pages, kind) }
    }

    /// Whether all of them are there, or an error in their place.
    fn look(&self, source: &mut impl BlockSource<Refusal = NotAtHand>) -> Result<(), NotAtHand> {
        match &self.blocks {
            WantedBlocks::Of(key) => self.sst.data_block(key, source).map(drop),
            WantedBlocks::One(pages, kind) => source.block(&self.sst, *pages, *kind).map(drop),
        }
    }
}

/// So many bytes of blocks are held for who must not wait, and one block more: who needs more in one call waits for the rest.
const HELD_BYTES_MAX: usize = 64 << 20;
/// And so many of those are wanted for it at a time.
const WANTED_MAX: usize = 4096;
/// A walk that lacks a block wants no more behind it.
const WALK_AHEAD_MAX: usize = 64;

/// What looks lacked, and what was read for them, which is held until this is dropped: of so many looks as its owner makes by it.
///
/// A thread that must not wait makes its looks by one, has another thread [run](BlockReads::run) it, and makes them again. A thread that looks up many keys makes all
/// its looks by one, runs it, and makes those again that lacked something.
#[derive(Default)]
pub struct BlockReads {
    /// For a thread that must not wait: it takes what the page cache has.
    copies_at_once: bool,
    /// What it reads is not kept, nor does it count as asked for.
    for_nobody: bool,
    wanted: Vec<Wanted>,
    held: HashMap<HeldAddress, Result<Arc<Block>>, BuildHasherDefault<AddressHasher>>,
    held_bytes: usize,
    /// From files, whether it verified or not.
    bytes_read: u64,
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

    /// For a thread that looks at what nobody asked for: what it reads does not stay in memory, and is not taken for what is asked for.
    pub(crate) fn for_nobody() -> BlockReads {
        BlockReads { for_nobody: true, ..BlockReads::default() }
    }

    /// For a thread that must not wait: what the page cache has is copied from there at once, and only the rest lacks.
    pub fn at_hand() -> BlockReads {
        BlockReads { copies_at_once: true, ..BlockReads::default() }
    }

    /// Whether something is wanted that was not read yet.
    pub fn is_wanting(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Bytes that were read from files, whether they verified or not.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Whether something was read that it holds.
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Forgets what is wanted: somebody reads it by himself.
    pub(crate) fn want_nothing(&mut self) {
        self.wanted.clear();
    }

    /// Whether it holds as much as it may: looks by it that lack something still would do so again.
    pub(crate) fn is_full(&self) -> bool {
        self.copies_at_once && self.held_bytes >= HELD_BYTES_MAX
    }

    /// Asks for what is wanted as far as it is known where that is, and waits for none of it.
    pub(crate) fn ask(&self) {
        for wanted in &self.wanted {
            if let Err(NotAtHand::Lacking(pages, _)) = wanted.look(&mut HeldOrCached(self)) {
                wanted.sst.will_read(pages);
            }
        }
    }

    /// Reads all that is wanted, and holds it: of one for a thread that must not wait no more than that may hold. What could not be read is an error of the looks that
    /// need it, as long as this lives.
    pub fn run(&mut self) {
        let mut wanted = std::mem::take(&mut self.wanted);
        // Each time round a look has a block more of those that it needs.
        while !wanted.is_empty() && !self.is_full() {
            let mut lacking = Vec::with_capacity(wanted.len());
            wanted.retain(|wanted| match wanted.look(&mut Holding(self)) {
                Err(NotAtHand::Lacking(pages, kind)) => {
                    lacking.push((held_address(&wanted.sst, pages, kind), wanted.sst.clone(), pages));
                    // A block of records is the end of the way, unless there is no room for it.
                    self.copies_at_once || kind == EntryKind::Bound
                }
                // The look that is made again has the same error.
                Ok(()) | Err(NotAtHand::Failed(_)) => false,
            });
            lacking.sort_unstable_by_key(|(address, ..)| *address);
            lacking.dedup_by_key(|(address, ..)| *address);
            self.read(&lacking);
        }
    }

    /// Reads and verifies these blocks, each while others are under way; none once it is full.
    fn read(&mut self, lacking: &[(HeldAddress, Sst, PageRange)]) {
        let (mut reads, mut bytes) = (Vec::with_capacity(lacking.len()), self.held_bytes);
        for (HeldAddress { kind, .. }, sst, pages) in lacking {
            if self.copies_at_once && bytes >= HELD_BYTES_MAX {
                break;
            }
            bytes += pages.bytes();
            reads.push(self.file_read(*kind, sst, *pages));
        }
        CapacityFile::read_many(&reads, |n, bytes| {
            let (address, sst, pages) = &lacking[n];
            self.take(*address, sst, *pages, bytes);
        });
    }

    /// The read of a block of this kind.
    fn file_read<'s>(&self, kind: EntryKind, sst: &'s Sst, pages: PageRange) -> FileRead<'s> {
        // What was read for who must not wait is to be at hand for others of the kind, and blocks of the index are asked for again.
        let is_first = || !self.copies_at_once && kind == EntryKind::Record && sst.is_first_read(pages);
        let past_cache = self.for_nobody || is_first();
        sst.file_read(pages, past_cache)
    }

    /// Verifies and holds what was read of a block.
    fn take(
        &mut self,
        address: HeldAddress,
        sst: &Sst,
        pages: PageRange,
        bytes: hedgerow_device::Result<OwnedBytes>,
    ) {
        self.bytes_read += pages.bytes() as u64;
        let opened = |bytes| sst.open_block(bytes, pages, address.kind);
        let block = bytes.map_err(Error::from).and_then(opened);
        if let Ok(block) = &block
            && !self.for_nobody
        {
            sst.keep(pages, block);
        }
        self.hold(address, block);
    }

    /// Makes looks until there are no more, and reads what they lack while it makes the next, and goes on with those that lack nothing any more. Then it holds what they need, as after a
    /// [run](BlockReads::run). For who waits.
    pub(crate) fn run_beside(&mut self, looks: impl LooksBeside) {
        debug_assert!(!self.copies_at_once, "what is held for who must not wait is bounded by a run");
        let (asked, begun, waiting) = (HashSet::default(), Vec::new(), Vec::new());
        let mut beside = Beside { reads: self, looks, has_looks: true, asked, begun, waiting };
        CapacityFile::read_in_turn(&mut beside);
    }

    fn push(&mut self, wanted: Wanted) {
        // What came first is needed first; the look that is made again wants the rest anew.
        if !self.copies_at_once || self.wanted.len() < WANTED_MAX {
            self.wanted.push(wanted);
        }
    }

    /// Holds a block of the caches, unless it does.
    fn hold_once(&mut self, address: HeldAddress, block: &Arc<Block>) {
        if !self.held.contains_key(&address) {
            self.hold(address, Ok(Arc::clone(block)));
        }
    }

    fn hold(&mut self, address: HeldAddress, block: Result<Arc<Block>>) {
        self.held_bytes += block.as_ref().map_or(0, |block| block.memory_bytes());
        self.held.insert(address, block);
    }
}

/// Looks that come one after the other, for [`BlockReads::run_beside`].
pub(crate) trait LooksBeside {
    /// Makes some more by `reads`; false if there are none now.
    fn next(&mut self, reads: &mut BlockReads) -> bool;

    /// Goes on with what was read, a little at a time, while other blocks are; false if nothing is whole yet that comes next. There may be more looks then.
    fn meanwhile(&mut self, _reads: &mut BlockReads) -> bool {
        false
    }
}

impl<L: FnMut(&mut BlockReads) -> bool> LooksBeside for L {
    fn next(&mut self, reads: &mut BlockReads) -> bool {
        self(reads)
    }
}

/// Looks that are made while what those before them lack is read.
struct Beside<'r, L> {
    reads: &'r mut BlockReads,
    looks: L,
    has_looks: bool,
    /// What was read or is, by whomever it is wanted.
    asked: HashSet<HeldAddress, BuildHasherDefault<AddressHasher>>,
    begun: Vec<(HeldAddress, Sst, PageRange)>,
    /// Ways that go on behind a block that is being read.
    waiting: Vec<(HeldAddress, Wanted)>,
}

impl<L> Beside<'_, L> {
    /// Begins to read what the way to `wanted` lacks, unless that was done or nothing is.
    fn begin(&mut self, wanted: Wanted) -> Option<usize> {
        let lacks = match &wanted.blocks {
            // The look that just wanted it found it neither held nor in the cache.
            WantedBlocks::One(pages, kind) => Err(NotAtHand::Lacking(*pages, *kind)),
            WantedBlocks::Of(_) => wanted.look(&mut Holding(self.reads)),
        };
        // The look that is made again has the same error.
        let Err(NotAtHand::Lacking(pages, kind)) = lacks else { return None };
        let address = held_address(&wanted.sst, pages, kind);
        let is_new = self.asked.insert(address);
        if is_new {
            self.begun.push((address, wanted.sst.clone(), pages));
        }
        if matches!(wanted.blocks, WantedBlocks::Of(_)) && kind == EntryKind::Bound {
            self.waiting.push((address, wanted));
        }
        is_new.then(|| self.begun.len() - 1)
    }
}

impl<L: LooksBeside> ReadsInTurn for Beside<'_, L> {
    fn next(&mut self) -> Option<(usize, FileRead<'_>)> {
        let number = loop {
            match self.reads.wanted.pop() {
                Some(wanted) => {
                    if let Some(number) = self.begin(wanted) {
                        break number;
                    }
                }
                None if self.has_looks => self.has_looks = self.looks.next(self.reads),
                None => return None,
            }
        };
        let (HeldAddress { kind, .. }, sst, pages) = &self.begun[number];
        Some((number, self.reads.file_read(*kind, sst, *pages)))
    }

    fn done(&mut self, number: usize, answer: hedgerow_device::Result<OwnedBytes>) {
        let (address, sst, pages) = &self.begun[number];
        self.reads.take(*address, sst, *pages, answer);
        let goes_on = self.waiting.extract_if(.., |(waited, _)| waited == address);
        self.reads.wanted.extend(goes_on.map(|(_, wanted)| wanted));
    }

    fn meanwhile(&mut self) -> bool {
        let has_gone_on = self.looks.meanwhile(self.reads);
        self.has_looks |= has_gone_on;
        has_gone_on
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
        let at_hand = if reads.copies_at_once { sst.read_block_at_hand(pages, kind, true)? } else { None };
        at_hand.ok_or(NotAtHand::Lacking(pages, kind))
    }
}

/// Those of the caches alone.
struct Cached;

impl BlockSource for Cached {
    type Refusal = NotAtHand;

    #[inline]
    fn block(&mut self, sst: &Sst, pages: PageRange, kind: EntryKind) -> Result<Arc<Block>, NotAtHand> {
        sst.cached_block(pages, kind).ok_or(NotAtHand::Lacking(pages, kind))
    }
}

/// The same, and those of the caches are held from now on: they may be gone from there when the look is made again.
struct Holding<'r>(&'r mut BlockReads);

impl BlockSource for Holding<'_> {
    type Refusal = NotAtHand;

    fn block(&mut self, sst: &Sst, pages: PageRange, kind: EntryKind) -> Result<Arc<Block>, NotAtHand> {
        let block = HeldOrCached(self.0).block(sst, pages, kind)?;
        self.0.hold_once(held_address(sst, pages, kind), &block);
        Ok(block)
    }
}

/// Where a walk has its blocks from.
#[derive(Debug)]
pub enum WalkBlocks<'r> {
    /// The cache, or the disk, for which it waits. `keeps`: what it reads stays in the cache, as for readers; not as for a merge, which reads all once.
    Disk {
        /// See there.
        keeps: bool,
    },
    /// What was read for these, and what is in memory. What lacks is wanted of them, and the walk fails with [`NotInMemory`](ErrorKind::NotInMemory): it is
    /// made again after they were [run](BlockReads::run).
    AtHand(&'r mut BlockReads),
}

impl WalkBlocks<'_> {
    pub(super) fn waits(&self) -> bool {
        matches!(self, WalkBlocks::Disk { .. })
    }

    /// Of one that waits: a block of records that is in memory, so that nothing has to be asked for.
    pub(super) fn block_at_hand(&self, sst: &Sst, pages: PageRange) -> Result<Option<Arc<Block>>> {
        let WalkBlocks::Disk { keeps } = self else { return Ok(None) };
        match sst.cached_block(pages, EntryKind::Record) {
            Some(block) => Ok(Some(block)),
            None => sst.read_block_at_hand(pages, EntryKind::Record, *keeps),
        }
    }

    /// Of one that was refused a block: wants the way to this key.
    pub(super) fn want(&mut self, sst: &Sst, key: &[u8]) {
        if let WalkBlocks::AtHand(reads) = self {
            sst.want(key, reads);
        }
    }

    /// Of one that was refused a block: wants those that it comes to next, the more of them the more it has had.
    pub(super) fn want_next(&mut self, sst: &Sst, next: impl Iterator<Item = PageRange>) {
        if let WalkBlocks::AtHand(reads) = self {
            let count = reads.held.len().min(WALK_AHEAD_MAX);
            next.take(count).for_each(|pages| reads.push(Wanted::block(sst, pages, EntryKind::Record)));
        }
    }
}

impl BlockSource for WalkBlocks<'_> {
    type Refusal = Error;

    fn block(&mut self, sst: &Sst, pages: PageRange, kind: EntryKind) -> Result<Arc<Block>> {
        match self {
            WalkBlocks::Disk { keeps } => sst.block(pages, kind, *keeps),
            WalkBlocks::AtHand(reads) => match HeldOrCached(reads).block(sst, pages, kind) {
                Ok(block) => Ok(block),
                Err(NotAtHand::Failed(error)) => Err(error),
                Err(NotAtHand::Lacking(..)) => {
                    reads.push(Wanted::block(sst, pages, kind));
                    Err(not_at_hand())
                }
            },
        }
    }
}

/// The error of who does not wait.
#[cold]
pub(crate) fn not_at_hand() -> Error {
    Error::new(
        ErrorKind::NotInMemory,
        "a block of a sorted table is not in memory, and this thread does not wait for the disk",
    )
}

/// Looks of who waits, for one key.
impl Sst {
    /// What the caches say of a key.
    ///
    /// # Errors
    /// `Corrupted`.
    #[inline]
    pub(crate) fn look_in_caches(&self, key: &SstKey) -> Result<CachedLook> {
        if !self.may_hold(key) {
            return Ok(CachedLook::Absent);
        }
        let pages = match self.data_pages(key.bytes(), &mut Cached) {
            Ok(way) => way.pages,
            Err(NotAtHand::Lacking(..)) => return Ok(CachedLook::Unknown),
            Err(NotAtHand::Failed(error)) => return Err(error),
        };
        Ok(match self.cached_block(pages, EntryKind::Record) {
            Some(block) => self.find_in(&block, key.bytes()).map_or(CachedLook::Absent, CachedLook::Found),
            None => CachedLook::At(DataPages(pages)),
        })
    }

    /// The record of a key, which lies in these pages if there is one: they are read, and stay in the cache.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn find_at(&self, key: &SstKey, DataPages(pages): DataPages) -> Result<Option<FoundRecord>> {
        let bytes = self.file_read(pages, self.is_first_read(pages)).alone()?;
        let block = self.open_block(bytes, pages, EntryKind::Record)?;
        self.keep(pages, &block);
        Ok(self.find_in(&block, key.bytes()))
    }

    fn file_read(&self, pages: PageRange, past_cache: bool) -> FileRead<'_> {
        FileRead { file: self.file(), offset: pages.offset(), bytes: pages.bytes(), past_cache }
    }
}

/// Looks that do not wait.
impl Sst {
    /// The record of a key, of what was read for `reads`, and of what is in memory; what lacks is wanted of it from now on.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub fn look(&self, key: &SstKey, reads: &mut BlockReads) -> Result<SstLook> {
        Ok(self.look_for_way(key, reads)?.0)
    }

    /// [`Sst::look`], and of one that lacks no more than the block of the record, where that lies.
    pub(crate) fn look_for_way(
        &self,
        key: &SstKey,
        reads: &mut BlockReads,
    ) -> Result<(SstLook, Option<DataPages>)> {
        if !self.may_hold(key) {
            return Ok((SstLook::Absent, None));
        }
        let DataWay { index, index_pages, pages } =
            match self.data_pages(key.bytes(), &mut HeldOrCached(reads)) {
                Ok(way) => way,
                Err(NotAtHand::Lacking(..)) => {
                    self.want(key.bytes(), reads);
                    return Ok((SstLook::Lacking, None));
                }
                Err(NotAtHand::Failed(error)) => return Err(error),
            };
        let look = self.look_at(key, DataPages(pages), reads)?;
        if matches!(look, SstLook::Lacking) {
            // The way to the block is known, and stays so for the look that is made again.
            reads.hold_once(held_address(self, index_pages, EntryKind::Bound), &index);
        }
        Ok((look, Some(DataPages(pages))))
    }

    /// [`Sst::look`] of a key whose record lies in these pages if there is one.
    pub(crate) fn look_at(&self, key: &SstKey, pages: DataPages, reads: &mut BlockReads) -> Result<SstLook> {
        match HeldOrCached(reads).block(self, pages.0, EntryKind::Record) {
            Ok(block) => Ok(self.find_in(&block, key.bytes()).map_or(SstLook::Absent, SstLook::Found)),
            Err(NotAtHand::Lacking(..)) => {
                reads.push(Wanted::block(self, pages.0, EntryKind::Record));
                Ok(SstLook::Lacking)
            }
            Err(NotAtHand::Failed(error)) => Err(error),
        }
    }

    /// A record of the table of this number, chosen at random among those of its blocks that are as likely as each other, and so of a block with many records each is less likely;
    /// of what was read for `reads`, and of what is in memory. What lacks is wanted of it from now on: the same `random` comes by the same blocks.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn sample(&self, table: u32, random: &mut Random, reads: &mut BlockReads) -> Result<SstLook> {
        match self.sample_from(table, random, &mut HeldOrCached(reads)) {
            Ok(found) => Ok(found.map_or(SstLook::Absent, SstLook::Found)),
            Err(NotAtHand::Lacking(pages, kind)) => {
                reads.push(Wanted::block(self, pages, kind));
                Ok(SstLook::Lacking)
            }
            Err(NotAtHand::Failed(error)) => Err(error),
        }
    }

    /// Has `reads` read the blocks where a key is, or would be (composite; may be the beginning of one), as for a cursor that goes there.
    pub fn want(&self, key: &[u8], reads: &mut BlockReads) {
        reads.push(Wanted { sst: self.clone(), blocks: WantedBlocks::Of(key.into()) });
    }
}
