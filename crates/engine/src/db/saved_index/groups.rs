//! Groups in a saved index: by where their leaves are, which stay as they lie.
//!
//! Owns what a saved index has of a group, and the way back to one. Promises that a group which is taken over is the one that was saved: each of its leaves is read, and verified. Must not know what an entry leads to.
//!
//! A section is of one table. It has parts of groups, one behind the other, in the order in which the groups came, that of L1 first; all numbers are little-endian:
//!
//! ```text
//!  0              8        16       20        24
//!  +--------------+--------+--------+---------+-------------------------------------
//!  | rows of the  | stamp  | which  | extents | of each: where its leaves begin and
//!  | table, sealed|        | group  |         | number of its use (u64 each), bytes (u32)
//!  +--------------+--------+--------+---------+-------------------------------------
//! ```

use std::collections::BTreeMap;
use std::sync::OnceLock;

use hedgerow_device::share_work;
use hedgerow_row::le_bytes::{u32_at, u64_at};

use super::{LIST_MAX, SectionWriter};
use crate::Result;
use crate::group::{Group, GroupLevels, LeafExtent, LeafPlace, NumberedGroup};
use crate::log::{LeafWriter, Log};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The kind of section.
pub(super) const GROUPS: u32 = 8;
const HEAD_BYTES: usize = 24;
const EXTENT_BYTES: usize = 20;

/// Leaves of one extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SavedLeaves {
    pub(super) place: LeafPlace,
    pub(super) bytes: u32,
}

/// What is saved of a table's groups.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SavedGroups {
    /// Rows that only groups have.
    pub(super) rows: u64,
    /// By the order in which they came, 0 for L1: stamp, and extents.
    pub(super) groups: BTreeMap<u32, (u64, Vec<SavedLeaves>)>,
}

/// Groups that were taken over.
pub(super) struct OpenedGroups {
    pub(super) rows: u64,
    pub(super) groups: GroupLevels,
}

impl SectionWriter<'_> {
    /// Writes where the groups of a table are, and how many rows they alone have.
    pub(super) fn groups(&mut self, table: u32, groups: &GroupLevels, rows: u64) -> Result<()> {
        let in_order = [groups.l1()].into_iter().chain(groups.l0().iter().rev().map(|of| &of.group));
        for (which, group) in in_order.enumerate() {
            for extents in group.extents().chunks(LIST_MAX) {
                let out = self.entry((GROUPS, table), HEAD_BYTES + extents.len() * EXTENT_BYTES)?;
                [rows, group.stamp()].iter().for_each(|word| out.extend(word.to_le_bytes()));
                [which as u32, extents.len() as u32].iter().for_each(|word| out.extend(word.to_le_bytes()));
                for extent in extents {
                    out.extend(extent.place().at.to_le_bytes());
                    out.extend(extent.place().number.to_le_bytes());
                    out.extend(extent.bytes().to_le_bytes());
                }
            }
        }
        Ok(())
    }
}

impl SavedGroups {
    /// Adds what a section has; `None` if it ends too soon.
    pub(super) fn add(&mut self, mut section: &[u8]) -> Option<()> {
        while !section.is_empty() {
            let (head, rest) = section.split_at_checked(HEAD_BYTES)?;
            let (extents, rest) = rest.split_at_checked(u32_at(head, 20) as usize * EXTENT_BYTES)?;
            self.rows = u64_at(head, 0);
            let (stamp, leaves) = self.groups.entry(u32_at(head, 16)).or_default();
            *stamp = u64_at(head, 8);
            leaves.extend(extents.chunks_exact(EXTENT_BYTES).map(|extent| SavedLeaves {
                place: LeafPlace { number: u64_at(extent, 8), at: u64_at(extent, 0) },
                bytes: u32_at(extent, 16),
            }));
            section = rest;
        }
        Some(())
    }

    fn leaves(&self) -> impl Iterator<Item = &SavedLeaves> {
        self.groups.values().flat_map(|(_, leaves)| leaves)
    }

    /// The groups, of extents that were read, in the same order.
    pub(super) fn opened(
        &self,
        read: &mut impl Iterator<Item = Arc<LeafExtent>>,
        next_segment_number: u64,
    ) -> Option<OpenedGroups> {
        let (mut groups, mut entries) = (GroupLevels::default(), 0);
        for (which, (stamp, leaves)) in &self.groups {
            let extents: Vec<_> = read.by_ref().take(leaves.len()).collect();
            let is_in_order = extents.is_sorted_by(|one, next| one.keys()[1] < next.keys()[0]);
            if !is_in_order || *stamp > next_segment_number {
                return None;
            }
            entries += extents.iter().map(|extent| extent.entries()).sum::<u64>();
            let group = Arc::new(Group::of(extents).stamped(*stamp));
            groups = match which {
                0 => groups.merged(0, group),
                number => groups.with_group(NumberedGroup { number: u64::from(*number), group }),
            };
        }
        (self.rows <= entries).then_some(OpenedGroups { rows: self.rows, groups })
    }
}

/// Where all leaves lie in the tier, and how many bytes of them.
pub(super) fn leaf_ranges(saved: &BTreeMap<u32, SavedGroups>) -> Vec<(u64, u64)> {
    saved.values().flat_map(SavedGroups::leaves).map(|of| (of.place.at, u64::from(of.bytes))).collect()
}

/// Takes over the groups of all tables, whose extents are from now on those of the leaves that are returned with them; `None` if an extent is not free, or a leaf is not what was written.
pub(super) fn take_over<'l>(
    saved: &BTreeMap<u32, SavedGroups>,
    log: &'l Log,
    threads: usize,
) -> Option<(BTreeMap<u32, OpenedGroups>, LeafWriter<'l>)> {
    let leaves: Vec<SavedLeaves> = saved.values().flat_map(SavedGroups::leaves).copied().collect();
    let held = log.hold_leaves(leaves.iter().map(|of| of.place))?;
    let (next, are_whole) = (AtomicUsize::new(0), AtomicBool::new(true));
    let read: Vec<OnceLock<Arc<LeafExtent>>> = leaves.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        while are_whole.load(Ordering::Relaxed)
            && let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(of) = leaves.get(at)
        {
            leaves.get(at + 1).into_iter().for_each(|of| log.will_need_leaves(of.place, of.bytes));
            match log.read_leaves(of.place, of.bytes) {
                Some(extent) => drop(read[at].set(Arc::new(extent))),
                None => are_whole.store(false, Ordering::Relaxed),
            }
        }
    };
    share_work("open", threads.min(leaves.len()), work);
    let read: Option<Vec<_>> = read.into_iter().map(OnceLock::into_inner).collect();
    let mut read = read?.into_iter();
    let next = log.next_segment_number();
    let opened = saved.iter().map(|(table, saved)| Some((*table, saved.opened(&mut read, next)?)));
    Some((opened.collect::<Option<_>>()?, held))
}
