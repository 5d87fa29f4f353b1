//! What a table's keys are built from when a store is opened.
//!
//! Owns [`LevelsBuilder`], which takes them in order, and where each of them goes: to the young level, or, where that has no room, to a group. Promises that what is built of ranges of keys, by a thread each, is what one would have built. Must not know where the keys come from.

use std::mem;

use super::{index_full, is_sealable};
use crate::Result;
use crate::epoch::Epoch;
use crate::group::{Group, GroupWriter, LeafExtent};
use crate::index::{Index, IndexBuilder, LogSlot, NodeArena, Tag};
use crate::log::{LeafWriter, Log};
use crate::sync::Arc;

/// How full the leaves of a tree are that was built from the log.
const FILL_PERCENT: u32 = 90;
/// Keys are sealed once the index takes so many eighths of what it may: leaves are fuller than they were, so that most tables that were not sealed before are not.
const OPENING_SEALS_FROM: u64 = 3;
/// About so many bytes of leaves for a key, besides what it has itself.
pub(crate) const LEAF_BYTES_OF_KEY: u64 = 24;

/// A table with fewer bytes of leaves keeps its keys in memory: a group takes about as much there as they do.
const LEAF_BYTES_MIN: u64 = 4 << 10;
/// Or with less than this share of the index, where that is small.
const LEAF_BYTES_SHARE: u64 = 32;

/// A table with fewer bytes of leaves keeps its keys in memory.
pub(crate) fn leaf_bytes_min(index_bytes_max: u64) -> u64 {
    LEAF_BYTES_MIN.min(index_bytes_max / LEAF_BYTES_SHARE)
}

/// Whether keys are sealed while the index is built of a store that is being opened.
#[derive(Clone, Copy)]
pub(crate) struct SealAtOpening<'e> {
    pub(crate) log: &'e Log,
    /// The most that the index may take; `None` where nothing is sealed.
    pub(crate) index_bytes_max: Option<u64>,
    /// So many extents are left to writers.
    pub(crate) left: u32,
}

impl<'e> SealAtOpening<'e> {
    /// Of a table whose keys would take so many bytes of leaves, for each of so many that write a part of them: of few a group is not worth its memory.
    pub(crate) fn of_table(self, leaf_bytes: u64, parts: u64) -> Option<SealBeyond<'e>> {
        let most = self.index_bytes_max.filter(|most| leaf_bytes >= leaf_bytes_min(*most))?;
        let leaves = match is_worth_leaves(leaf_bytes / parts.max(1), self.log, most) {
            true => self.log.leaf_writer(self.left),
            false => self.log.shared_leaf_writer(self.left),
        };
        Some(SealBeyond { bytes: most / 8 * OPENING_SEALS_FROM, leaves })
    }

    /// Of keys that have so many records in the log.
    pub(crate) fn of_records(self, records: u64, parts: u64) -> Option<SealBeyond<'e>> {
        self.of_table(records * LEAF_BYTES_OF_KEY, parts)
    }
}

/// Whether so many bytes of leaves are worth an extent of their own: half of one are, and what is a sixteenth of the index where that is small.
pub(crate) fn is_worth_leaves(leaf_bytes: u64, log: &Log, index_bytes_max: u64) -> bool {
    leaf_bytes * 2 >= log.leaf_bytes_max().min(index_bytes_max / 8)
}

/// Where keys go that the young level has no room for.
#[derive(Debug)]
pub(crate) struct SealBeyond<'l> {
    /// As soon as all young levels take so many bytes.
    pub(crate) bytes: u64,
    pub(crate) leaves: LeafWriter<'l>,
}

/// What a table's keys are built from on opening: pushed in order, each with the slot of its newest version.
pub(crate) struct LevelsBuilder<'l> {
    arena: Arc<NodeArena>,
    rows: IndexBuilder,
    tombstones: IndexBuilder,
    /// Tombstones among the rows.
    hiding: u64,
    sealing: Sealing<'l>,
}

/// How far the group of a table is written.
enum Sealing<'l> {
    /// All keys are young: the table is not worth a group, or there is no room for one.
    Never,
    /// They are so far.
    Beyond(SealBeyond<'l>),
    /// Those that may be sealed go to a group.
    Into(Box<GroupWriter<LeafWriter<'l>>>),
    /// The medium has no room for more of them; those before are there.
    Ended(Vec<Arc<LeafExtent>>, LeafWriter<'l>),
}

/// The young level of a table, built.
pub(super) struct BuiltYoung {
    pub(super) rows: Index,
    pub(super) tombstones: Index,
    pub(super) hiding: u64,
}

impl<'l> LevelsBuilder<'l> {
    /// For the keys of a table from `low` on, to below `end`.
    pub(crate) fn new(
        arena: &Arc<NodeArena>,
        epoch: &Arc<Epoch>,
        (low, end): (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> LevelsBuilder<'l> {
        let builder = |low, end| {
            let builder = IndexBuilder::new(Arc::clone(arena), Arc::clone(epoch), FILL_PERCENT);
            builder.beyond_budget().between(low, end)
        };
        LevelsBuilder {
            arena: Arc::clone(arena),
            rows: builder(low.clone(), end.clone()),
            tombstones: builder(low, end),
            hiding: 0,
            sealing: Sealing::Never,
        }
    }

    /// The same that seals what it may as soon as the young levels of all tables are that large.
    #[must_use]
    pub(crate) fn sealing(mut self, beyond: Option<SealBeyond<'l>>) -> LevelsBuilder<'l> {
        self.sealing = beyond.map_or(Sealing::Never, Sealing::Beyond);
        self
    }

    /// Adds a key above all that were added.
    ///
    /// # Errors
    /// `Full`, of the index; what the medium of leaves says.
    pub(crate) fn push(&mut self, key: &[u8], slot: LogSlot) -> Result<()> {
        if self.seal(key, slot)? {
            return Ok(());
        }
        self.hiding += u64::from(slot.hides_below());
        let pushed = match slot.tag() {
            Tag::Tombstone if !slot.hides_below() => self.tombstones.push(key, *slot),
            _ => self.rows.push(key, *slot),
        };
        pushed.map_err(index_full)
    }

    /// Whether the key went to a group.
    #[inline]
    fn seal(&mut self, key: &[u8], slot: LogSlot) -> Result<bool> {
        if let Sealing::Beyond(beyond) = &self.sealing
            && self.arena.bytes() >= beyond.bytes
            && let Sealing::Beyond(beyond) = mem::replace(&mut self.sealing, Sealing::Never)
        {
            self.sealing = Sealing::Into(Box::new(GroupWriter::new(beyond.leaves)));
        }
        let Sealing::Into(group) = &mut self.sealing else { return Ok(false) };
        if !is_sealable(key, *slot) {
            return Ok(false);
        }
        match group.push(key, slot.raw()) {
            Ok(()) => Ok(true),
            Err(_) => {
                // What it had of an extent was written before the next was asked for; and what the medium refuses is told to whoever must have it.
                self.end_group()?;
                Ok(false)
            }
        }
    }

    /// The group has no more keys.
    fn end_group(&mut self) -> Result<()> {
        self.sealing = match mem::replace(&mut self.sealing, Sealing::Never) {
            Sealing::Into(group) => {
                let (extents, leaves) = group.finish_extents()?;
                Sealing::Ended(extents, leaves)
            }
            as_it_was => as_it_was,
        };
        Ok(())
    }

    /// With what was built of the keys that follow.
    ///
    /// # Errors
    /// As [`LevelsBuilder::push`].
    pub(crate) fn join(mut self, mut right: LevelsBuilder<'l>) -> Result<LevelsBuilder<'l>> {
        self.end_group()?;
        right.end_group()?;
        Ok(LevelsBuilder {
            arena: self.arena,
            rows: self.rows.join(right.rows).map_err(index_full)?,
            tombstones: self.tombstones.join(right.tombstones).map_err(index_full)?,
            hiding: self.hiding + right.hiding,
            sealing: self.sealing.join(right.sealing),
        })
    }

    /// The young level, and the group of the keys that it does not have, if there are any.
    pub(super) fn finish(mut self) -> Result<(BuiltYoung, Option<Group>)> {
        self.end_group()?;
        let tombstones = self.tombstones.finish().map_err(index_full)?;
        let rows = if tombstones.len() > 0 { self.rows.finish_with_leaf() } else { self.rows.finish() };
        let young = BuiltYoung { rows: rows.map_err(index_full)?, tombstones, hiding: self.hiding };
        Ok((young, self.sealing.finish()))
    }
}

impl<'l> Sealing<'l> {
    /// Of ranges of keys one after the other, of which no group is being written.
    fn join(self, right: Sealing<'l>) -> Sealing<'l> {
        match (self, right) {
            (Sealing::Ended(mut extents, leaves), Sealing::Ended(more, more_leaves)) => {
                extents.extend(more);
                Sealing::Ended(extents, leaves.join(more_leaves))
            }
            (ended @ Sealing::Ended(..), _) | (_, ended) => ended,
        }
    }

    fn finish(self) -> Option<Group> {
        let Sealing::Ended(extents, leaves) = self else { return None };
        // Of segments that are there now, whose numbers are below that of the next.
        let group = Group::of(extents).stamped(leaves.next_segment_number());
        leaves.keep();
        (group.entries() > 0).then_some(group)
    }
}
