//! What there is of a saved index, for who only looks.
//!
//! Owns [`SavedIndexInfo`]. Promises to tell as much as can be read and to change nothing; and that what is said to be refused is refused by an opening, too. Must not know how it is shown.
//!
//! An opening stops at the first thing that is wrong, and walks the log. A look goes on where it can, so that a person sees which of many leaves is damaged.

use std::collections::BTreeSet;

use super::groups::SavedGroups;
use super::{Sections, take_number};
use crate::db::catalog::Catalog;
use crate::group::LeafExtent;
use crate::log::Log;
use crate::manifest::saved_index::SavedPiece;
use crate::sync::Arc;

/// The index that was saved when a store was closed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedIndexInfo {
    /// The extents that it is in, which are free to everybody else.
    pub extents: Vec<u32>,
    /// Bytes of it.
    pub bytes: u64,
    /// What it has of each table, by rising id.
    pub tables: Vec<SavedTableInfo>,
    /// Only a store from which no rows move is opened by it: it lacks what others need to know.
    pub is_for_unbounded: bool,
    /// Why the next opening does not go by it, but walks the log.
    pub refused: Option<String>,
}

/// What a saved index has of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedTableInfo {
    /// The table's id.
    pub table: u32,
    /// Keys with the slots of their newest versions: those that were in memory.
    pub keys: u64,
    /// Bytes that these take.
    pub bytes: u64,
    /// Rows that groups alone have.
    pub sealed_rows: u64,
    /// L1 first, then those of L0, the oldest first.
    pub groups: Vec<GroupInfo>,
}

/// A group: keys that left memory for leaves on the fast tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupInfo {
    /// It is L1: what all older groups were merged into.
    pub is_l1: bool,
    /// The extents that its leaves are in, in the order of keys.
    pub extents: Vec<u32>,
    /// Leaves that verify.
    pub leaves: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Entries of these, one for each key of the group.
    pub entries: u64,
    /// The extents whose leaves are not what was written there.
    pub damaged: Vec<u32>,
}

/// Looks at the saved index of a store that was closed in order, or was not.
pub(in crate::db) fn look(log: &Log, catalog: &Catalog, is_closed: bool) -> SavedIndexInfo {
    let (mut info, looking) = (SavedIndexInfo::default(), Looking { log, catalog });
    let looked = if is_closed {
        looking.fill_in(&mut info)
    } else {
        Err("the store was not closed in order".to_owned())
    };
    info.refused = looked.err();
    info
}

struct Looking<'l> {
    log: &'l Log,
    catalog: &'l Catalog,
}

impl Looking<'_> {
    /// All that can be read; or why it is not gone by.
    fn fill_in(&self, info: &mut SavedIndexInfo) -> Result<(), String> {
        let pieces = self.pieces()?;
        info.extents = pieces.iter().map(|piece| self.extent_at(piece.at)).collect();
        info.bytes = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        if let Some(damaged) = pieces.iter().find(|piece| !piece.is_whole()) {
            return Err(format!("its part at byte {} of the fast tier is damaged", damaged.at));
        }
        let sections = Sections::of(&pieces).ok_or("it has what this build does not know")?;
        info.is_for_unbounded = !sections.keys_known && !sections.dropped.is_empty();
        let is_known = self.fill_in_tables(&sections, info);
        if !self.log.has_exactly(&sections.segments) {
            return Err("it is not of the segments that there are".to_owned());
        }
        is_known
    }

    fn pieces(&self) -> Result<Vec<SavedPiece<'_>>, String> {
        match self.log.saved_index() {
            Some(pieces) => Ok(pieces),
            None if self.log.names_saved_index() => Err("a part of it is not where it should be".to_owned()),
            None => Err(
                "none was saved: the log is short, something in it was not done with, or there was no room"
                    .to_owned(),
            ),
        }
    }

    fn fill_in_tables(&self, sections: &Sections<'_>, info: &mut SavedIndexInfo) -> Result<(), String> {
        let ids: BTreeSet<u32> = sections.versions.keys().chain(sections.groups.keys()).copied().collect();
        let (mut wrong, in_use) = (None, self.extents_of_segments());
        for table in ids {
            let mut of_table = SavedTableInfo { table, ..SavedTableInfo::default() };
            if self.catalog.by_id(table).is_none() {
                wrong.get_or_insert_with(|| format!("it has a table {table}, and there is none"));
            }
            for section in sections.versions.get(&table).into_iter().flatten() {
                of_table.bytes += section.len() as u64;
                match count_keys(section) {
                    Some(keys) => of_table.keys += keys,
                    None => drop(wrong.get_or_insert_with(|| "it has keys that cannot be read".to_owned())),
                }
            }
            if let Some(groups) = sections.groups.get(&table)
                && let Err(why) = self.fill_in_groups(groups, &in_use, &mut of_table)
            {
                wrong.get_or_insert(why);
            }
            info.tables.push(of_table);
        }
        wrong.map_or(Ok(()), Err)
    }

    fn fill_in_groups(
        &self,
        saved: &SavedGroups,
        in_use: &BTreeSet<u32>,
        info: &mut SavedTableInfo,
    ) -> Result<(), String> {
        let mut read: Vec<Arc<LeafExtent>> = Vec::new();
        for (which, (_, leaves)) in &saved.groups {
            let mut group = GroupInfo { is_l1: *which == 0, ..GroupInfo::default() };
            for of in leaves {
                let extent = self.extent_at(of.place.at);
                self.log.will_need_leaves(of.place, of.bytes);
                group.extents.push(extent);
                match self.log.read_leaves(of.place, of.bytes).filter(|_| !in_use.contains(&extent)) {
                    Some(known) => {
                        group.leaves += u64::from(known.leaves());
                        group.bytes += u64::from(known.bytes());
                        group.entries += known.entries();
                        read.push(Arc::new(known));
                    }
                    None => group.damaged.push(extent),
                }
            }
            // L1 may be none.
            if !leaves.is_empty() {
                info.groups.push(group);
            }
        }
        info.sealed_rows = saved.rows;
        if let Some(damaged) = info.groups.iter().flat_map(|group| &group.damaged).next() {
            return Err(format!("the leaves of its keys in the extent {damaged} are damaged"));
        }
        let opened = saved.opened(&mut read.into_iter(), self.log.next_segment_number());
        opened.map(drop).ok_or_else(|| "the leaves of its keys are not in order".to_owned())
    }

    fn extents_of_segments(&self) -> BTreeSet<u32> {
        let segments = self.log.segments();
        segments.iter().flat_map(|(extent, segment, _)| *extent..extent + segment.extents).collect()
    }

    fn extent_at(&self, offset: u64) -> u32 {
        (offset / self.log.extent_bytes()) as u32
    }
}

/// How many keys a section has; `None` if it ends too soon.
fn count_keys(mut section: &[u8]) -> Option<u64> {
    let mut keys = 0;
    while !section.is_empty() {
        let (_shared, bytes) = (take_number(&mut section)?, take_number(&mut section)?);
        section = section.split_at_checked(bytes.checked_add(8)?)?.1;
        keys += 1;
    }
    Some(keys)
}
