//! What is durable and what is pending, operation by operation.
//!
//! Owns [`Op`] (the log's entries), [`Pages`] (bytes shared between images) and [`Replay`] (the state that the fault model of
//! the parent module speaks of). Must not know tiers or handles.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{CrashModel, Survivors};
use crate::random::Random;

/// One logged operation.
#[derive(Debug, Clone)]
pub(super) enum Op {
    /// These bytes were stored; they are never empty.
    Store { offset: u64, bytes: Arc<[u8]> },
    /// A range was persisted, or the attempt failed.
    Persist { offset: u64, len: u64, failed: bool },
    /// The tier was lengthened to this.
    Grow { bytes: u64 },
    /// The byte at `offset` turned into this, at rest and in view.
    Corrupt { offset: u64, byte: u8 },
}

impl Op {
    pub(super) fn stored_bytes(&self) -> usize {
        match self {
            Op::Store { bytes, .. } => bytes.len(),
            Op::Persist { .. } | Op::Grow { .. } | Op::Corrupt { .. } => 0,
        }
    }
}

/// Bytes of one page of [`Pages`]; independent of the machine's.
const PAGE_BYTES: usize = 4096;

/// Bytes by the page, shared until written; pages never written are zero and take no room.
#[derive(Debug, Clone, Default)]
pub(super) struct Pages {
    pages: Vec<Option<Arc<[u8; PAGE_BYTES]>>>,
}

impl Pages {
    /// The pieces of `offset..offset + len`, none crossing a page: page, place in the page, place in the whole.
    fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == len {
                return None;
            }
            let at = offset + done as u64;
            let place = (at % PAGE_BYTES as u64) as usize;
            let step = (PAGE_BYTES - place).min(len - done);
            let piece = ((at / PAGE_BYTES as u64) as usize, place..place + step, done..done + step);
            done += step;
            Some(piece)
        })
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        for (page, place, part) in Pages::pieces(offset, bytes.len()) {
            match self.pages.get(page) {
                Some(Some(page)) => bytes[part].copy_from_slice(&page[place]),
                _ => bytes[part].fill(0),
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, place, part) in Pages::pieces(offset, bytes.len()) {
            if self.pages.len() <= page {
                self.pages.resize(page + 1, None);
            }
            let page = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[place].copy_from_slice(&bytes[part]);
        }
    }

    /// Forgets everything from `bytes` on.
    fn truncate(&mut self, bytes: u64) {
        let whole = (bytes / PAGE_BYTES as u64) as usize;
        let rest = (bytes % PAGE_BYTES as u64) as usize;
        self.pages.truncate(whole + usize::from(rest != 0));
        if rest != 0
            && let Some(Some(last)) = self.pages.get_mut(whole)
        {
            Arc::make_mut(last)[rest..].fill(0);
        }
    }

    /// The pages ever written, with their offsets.
    pub(super) fn filled(&self) -> impl Iterator<Item = (u64, &[u8; PAGE_BYTES])> {
        let place = |(n, page): (usize, _)| Option::as_ref(page).map(|page: &Arc<_>| (n as u64, &**page));
        self.pages.iter().enumerate().filter_map(place).map(|(n, page)| (n * PAGE_BYTES as u64, page))
    }
}

/// A store that is not durable yet, as one of its granules sees it.
#[derive(Debug, Clone)]
struct Pending {
    /// Number of the store, rising along the log.
    store: u64,
    offset: u64,
    bytes: Arc<[u8]>,
}

impl Pending {
    /// The store's bytes that lie in `within`, with their offset.
    fn part(&self, within: &Range<u64>) -> Option<(u64, &[u8])> {
        let from = self.offset.max(within.start);
        let to = (self.offset + self.bytes.len() as u64).min(within.end);
        (from < to).then(|| (from, &self.bytes[(from - self.offset) as usize..(to - self.offset) as usize]))
    }
}

/// A granule with pending stores.
#[derive(Debug, Clone, Default)]
struct Granule {
    /// In store order.
    stores: Vec<Pending>,
    /// A persist failed here and nothing was stored since: the page counts as clean and is not written again.
    forgotten: bool,
}

/// Most stores that a granule remembers one by one. Beyond, the oldest is taken to have been written back, which is
/// always legal; it only makes the set of images smaller.
const STORES_MAX: usize = 256;

/// What is durable and what is pending at one place in the log.
#[derive(Debug, Clone)]
pub(super) struct Replay {
    model: CrashModel,
    durable: Pages,
    durable_bytes: u64,
    /// Lengths grown to and not yet durable, rising.
    pending_lengths: Vec<u64>,
    pending: BTreeMap<u64, Granule>,
    stores: u64,
}

/// What one granule keeps.
enum Keep {
    Nothing,
    Everything,
    /// For each atom drawn anew where `torn`, else for the granule as a whole.
    Prefix {
        torn: bool,
    },
}

impl Replay {
    /// An empty medium.
    pub(super) fn new(model: CrashModel) -> Replay {
        Replay::settled(model, Pages::default(), 0)
    }

    /// A medium on which everything is durable.
    pub(super) fn settled(model: CrashModel, durable: Pages, durable_bytes: u64) -> Replay {
        let (pending_lengths, pending) = (Vec::new(), BTreeMap::new());
        Replay { model, durable, durable_bytes, pending_lengths, pending, stores: 0 }
    }

    pub(super) fn model(&self) -> CrashModel {
        self.model
    }

    /// Whether every power cut would leave the same.
    pub(super) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.pending_lengths.is_empty()
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        self.pending.len() as u64 * self.model.granule_bytes()
    }

    /// The granules that `len` bytes at `offset` touch.
    fn granules(&self, offset: u64, len: u64) -> Range<u64> {
        let granule = self.model.granule_bytes();
        offset / granule..offset.saturating_add(len).div_ceil(granule)
    }

    fn extent(&self, granule: u64) -> Range<u64> {
        let bytes = self.model.granule_bytes();
        granule * bytes..(granule + 1) * bytes
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::Store { offset, bytes } => self.store(*offset, bytes),
            Op::Persist { offset, len, failed: false } => self.persist(*offset, *len),
            Op::Persist { offset, len, failed: true } => self.fail_persist(*offset, *len),
            Op::Grow { bytes } => match self.model {
                CrashModel::CacheLines => self.durable_bytes = *bytes,
                CrashModel::Pages => self.pending_lengths.push(*bytes),
            },
            Op::Corrupt { offset, byte } => {
                self.durable.write(*offset, &[*byte]);
                if let Some(granule) = self.pending.get_mut(&(offset / self.model.granule_bytes())) {
                    // Whatever survives of the granule, the byte stays spoilt.
                    for pending in &mut granule.stores {
                        if let Some(at) = offset.checked_sub(pending.offset)
                            && (at as usize) < pending.bytes.len()
                        {
                            Arc::make_mut(&mut pending.bytes)[at as usize] = *byte;
                        }
                    }
                }
            }
        }
    }

    fn store(&mut self, offset: u64, bytes: &Arc<[u8]>) {
        self.stores += 1;
        for number in self.granules(offset, bytes.len() as u64) {
            let extent = self.extent(number);
            let granule = self.pending.entry(number).or_default();
            granule.forgotten = false;
            granule.stores.push(Pending { store: self.stores, offset, bytes: Arc::clone(bytes) });
            if granule.stores.len() > STORES_MAX {
                let oldest = granule.stores.remove(0);
                if let Some((at, part)) = oldest.part(&extent) {
                    self.durable.write(at, part);
                }
            }
        }
    }

    fn persist(&mut self, offset: u64, len: u64) {
        if let Some(&length) = self.pending_lengths.last() {
            self.durable_bytes = length;
            self.pending_lengths.clear();
        }
        let covered = self.granules(offset, len);
        let numbers: Vec<u64> =
            self.pending.range(covered).filter(|(_, granule)| !granule.forgotten).map(|(&n, _)| n).collect();
        for number in numbers {
            let extent = self.extent(number);
            for pending in self.pending.remove(&number).unwrap_or_default().stores {
                if let Some((at, part)) = pending.part(&extent) {
                    self.durable.write(at, part);
                }
            }
        }
    }

    fn fail_persist(&mut self, offset: u64, len: u64) {
        // Cache lines have no error to report; there the fault only stands for any medium's refusal.
        if self.model == CrashModel::Pages {
            let covered = self.granules(offset, len);
            for (_, granule) in self.pending.range_mut(covered) {
                granule.forgotten = true;
            }
        }
    }

    /// What a crash of this kind leaves: its bytes and its length.
    pub(super) fn survive(&self, kind: Survivors, random: &mut Random) -> (Pages, u64) {
        let mut pages = self.durable.clone();
        let grown = self.pending_lengths.last().copied().unwrap_or(self.durable_bytes);
        let bytes = match kind {
            Survivors::None => self.durable_bytes,
            Survivors::Random => match random.below(self.pending_lengths.len() as u64 + 1) {
                0 => self.durable_bytes,
                n => self.pending_lengths[n as usize - 1],
            },
            _ => grown,
        };
        // Drawn once per image: nearly nothing, half, or nearly everything survives.
        let density = [10, 50, 90][random.below(3) as usize];
        for (&number, granule) in &self.pending {
            let keep = match kind {
                Survivors::None => Keep::Nothing,
                Survivors::All | Survivors::ProcessKill => Keep::Everything,
                Survivors::LastStore => Keep::from(self.is_of_last_store(granule)),
                Survivors::AllButLastStore => Keep::from(!self.is_of_last_store(granule)),
                Survivors::HeadersOnly => Keep::from(self.is_head(number, granule)),
                Survivors::BodiesOnly => Keep::from(!self.is_head(number, granule)),
                Survivors::Random if random.below(100) < density => Keep::Everything,
                Survivors::Random => match random.below(4) {
                    0 | 1 => Keep::Nothing,
                    n => Keep::Prefix { torn: n == 3 },
                },
            };
            self.keep(&mut pages, number, granule, &keep, random);
        }
        pages.truncate(bytes);
        (pages, bytes)
    }

    fn is_of_last_store(&self, granule: &Granule) -> bool {
        granule.stores.last().is_some_and(|last| last.store == self.stores)
    }

    /// Whether some pending store begins in this granule.
    fn is_head(&self, number: u64, granule: &Granule) -> bool {
        granule.stores.iter().any(|pending| pending.offset / self.model.granule_bytes() == number)
    }

    fn keep(&self, pages: &mut Pages, number: u64, granule: &Granule, keep: &Keep, random: &mut Random) {
        let extent = self.extent(number);
        let stores = granule.stores.len() as u64;
        match keep {
            Keep::Nothing => {}
            Keep::Everything => settle(pages, &extent, &granule.stores, None),
            Keep::Prefix { torn: false } => {
                let whole = random.below(stores + 1) as usize;
                settle(pages, &extent, &granule.stores[..whole], None);
            }
            Keep::Prefix { torn: true } => {
                let atom = self.model.atom_bytes();
                let mut from = extent.start;
                while from < extent.end {
                    let whole = random.below(stores) as usize;
                    let (kept, rest) = granule.stores.split_at(whole);
                    settle(pages, &(from..from + atom), kept, rest.first().map(|torn| (torn, &mut *random)));
                    from += atom;
                }
            }
        }
    }
}

impl From<bool> for Keep {
    fn from(keep: bool) -> Keep {
        if keep { Keep::Everything } else { Keep::Nothing }
    }
}

/// Writes to `pages` what `stores` put into `extent`, and then some words of the store `torn`.
fn settle(pages: &mut Pages, extent: &Range<u64>, stores: &[Pending], torn: Option<(&Pending, &mut Random)>) {
    for pending in stores {
        if let Some((at, part)) = pending.part(extent) {
            pages.write(at, part);
        }
    }
    let Some((pending, random)) = torn else { return };
    let mut word = extent.start;
    while word < extent.end {
        if let Some((at, part)) = pending.part(&(word..word + 8))
            && random.below(2) == 0
        {
            pages.write(at, part);
        }
        word += 8;
    }
}
