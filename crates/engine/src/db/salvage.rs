//! Indexes over a damaged log: every row whose newest version is whole, and who is not among them.
//!
//! Owns which version of a key may stand for it when others cannot be read. Promises never to let an older version pass for
//! the newest where it is known that there was a newer one; where that cannot be known, [`Salvage::doubtful_before`] says
//! of which rows. Writes nothing. Must not know what becomes of the rows: `db/repair.rs` copies them, `db/inspect.rs` shows them.

use std::collections::HashMap;

use hedgerow_device::Clock;
use smallvec::SmallVec;

use super::catalog::Catalog;
use super::catalog::replay::LoggedChange;
use super::engine::Engine;
use super::recover::{chain_below, slot_of};
use super::shared_table::TableShared;
use super::tiers::Tiers;
use crate::index::{LogSlot, Tag};
use crate::log::format::{CATALOG_TABLE, FLAG_RELOCATED};
use crate::log::{Log, LostRecord, OpenState};
use crate::runs::salvage::LeftRow;
use crate::sync::atomic::Ordering;
use crate::{Error, Options, Result};

/// What is known to be missing from a damaged store.
#[derive(Debug, Default)]
pub(super) struct Salvage {
    /// What is damaged, each with its place.
    pub(super) damage: Vec<Error>,
    /// Rows that were there and cannot be had.
    pub(super) lost: Vec<Lost>,
    /// Places of which nothing can be told: whoever had his only record there is not among the lost.
    pub(super) lost_places: u64,
    /// Of keys whose newest record in the log cannot be had, a tombstone perhaps, its sequence: what is older below the log does not count.
    hidden: HashMap<(u32, Vec<u8>), u64>,
    /// A row whose version is below this may have had a newer one, or none any more: its record is among what nothing can be
    /// told of.
    pub(super) doubtful_before: u64,
    /// Changes of the catalog that verify.
    changes: Vec<LoggedChange>,
    /// The greatest of a record that can be had.
    last_sequence: u64,
    /// Others may be lost.
    lacks_changes: bool,
}

impl Salvage {
    /// A change of the catalog may be lost, or any other record, with a sequence below `before`: perhaps a table was dropped by it,
    /// or a row deleted.
    fn lose_change(&mut self, before: u64) {
        self.lacks_changes = true;
        self.doubtful_before = self.doubtful_before.max(before);
    }

    /// Whether a damaged record of the log is newer than what sorted tables have of a key.
    pub(super) fn hides(&self, table: &TableShared, key: &[u8], left: &LeftRow) -> bool {
        // One that moved is there twice until its segment is free.
        let is_older =
            |sequence| left.found.records().first().is_none_or(|newest| newest.sequence() < sequence);
        self.sequence_over(table, key).is_some_and(is_older)
    }

    /// The sequence of the newest record of a key in the log, if that cannot be had.
    pub(super) fn sequence_over(&self, table: &TableShared, key: &[u8]) -> Option<u64> {
        match self.hidden.is_empty() {
            true => None,
            false => self.hidden.get(&(table.id.load(Ordering::Relaxed), key.to_vec())).copied(),
        }
    }

    /// Brings the catalog up to date with what is left of its changes.
    fn replay(&mut self, catalog: &mut Catalog, log: &Log) {
        if let Err(wrong) = catalog.replay_changes(log, &self.changes, self.last_sequence) {
            self.lacks_changes = true;
            self.damage.extend(wrong);
        }
        if !(self.lacks_changes && catalog.replays()) {
            catalog.is_sure();
        }
    }

    fn add_segment(
        &mut self,
        log: &Log,
        extent: u32,
        found: &OpenState,
        versions: &mut Vec<Version>,
        lost: &mut HashMap<(u32, Vec<u8>), LostRecord>,
    ) {
        let Some(segment) = log.salvage_segment(extent, found.power_cut) else { return };
        for record in &segment.records {
            let torn = record.verify_all().err().filter(|_| !record.is_mergeable());
            let is_whole = torn.is_none();
            self.damage.extend(torn);
            self.last_sequence = self.last_sequence.max(record.sequence());
            if record.changes_catalog() {
                match is_whole {
                    true => self.changes.push(LoggedChange::of(record)),
                    false => self.lose_change(record.sequence()),
                }
                continue;
            }
            versions.push(Version {
                table: record.table(),
                key: record.key().into(),
                version: record.version(),
                is_whole,
                slot: slot_of(record),
                is_copy: record.flags() & FLAG_RELOCATED != 0,
                schema: record.schema_version(),
            });
        }
        for gap in segment.gaps {
            self.damage.push(gap.error());
            match gap.record {
                Some(record) if record.changes_catalog => self.lose_change(record.sequence),
                Some(record) => {
                    let known = lost.entry((record.table, record.key.clone())).or_insert(record.clone());
                    if known.sequence < record.sequence {
                        *known = record;
                    }
                }
                None => {
                    self.lost_places += 1;
                    self.lose_change(gap.before_sequence);
                }
            }
        }
    }

    /// Builds one table's index from all its versions, by key and newest first.
    fn index(
        &mut self,
        catalog: &Catalog,
        log: &Log,
        versions: &[Version],
        lost: &mut HashMap<(u32, Vec<u8>), LostRecord>,
    ) -> Result<()> {
        let id = versions[0].table;
        let Some(table) = catalog.by_id(id) else {
            if !catalog.is_gone(id) {
                for row in
                    versions.chunk_by(|a, b| a.key == b.key).filter(|row| row[0].slot.tag() != Tag::Tombstone)
                {
                    let why = || "the schema of its table is lost".to_owned();
                    self.lost.extend(lost_row(catalog, id, &row[0].key, why));
                }
            }
            return Ok(());
        };
        let mut levels = catalog.levels_builder((None, None));
        for of_key in versions.chunk_by(|a, b| a.key == b.key) {
            let newest = &of_key[0];
            let gone = lost.remove(&(id, newest.key.to_vec()));
            if let Some(gone) = gone.filter(|gone| gone.sequence > newest.version) {
                self.hidden.insert((id, newest.key.to_vec()), gone.sequence);
                let row = if gone.is_tombstone { None } else { Some(newest_is_lost(gone.sequence)) };
                self.lost.extend(row.and_then(|why| lost_row(catalog, id, &newest.key, || why)));
                continue;
            }
            let mut chain = SmallVec::<[u64; 8]>::from_slice(&[newest.slot.offset()]);
            let mut is_blind = newest.slot.tag() == Tag::Blind;
            if newest.slot.tag() == Tag::Delta {
                match chain_below(log.pin().view(), &mut chain) {
                    Ok(found) => is_blind = found.is_blind,
                    Err(error) => {
                        self.hidden.insert((id, newest.key.to_vec()), newest.version);
                        self.lost.extend(lost_row(catalog, id, &newest.key, || error.to_string()));
                        continue;
                    }
                }
            }
            let expires = of_key.iter().any(|v| v.slot.expires() && chain.contains(&v.slot.offset()));
            let slot = match is_blind {
                true => newest.slot.blind().with_depth(chain.len() as u8),
                // What sorted tables have still is not known here: whoever walks the rows is to meet it.
                false if newest.slot.tag() == Tag::Tombstone => newest.slot.with_hides_below(true),
                false => newest.slot.with_depth((chain.len() - 1) as u8),
            };
            let slot = slot.with_expires(expires);
            levels.push(&newest.key, slot)?;
        }
        table.levels.build(levels)
    }
}

/// A row that was there and cannot be had.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) id: u32,
    pub(super) table: String,
    pub(super) key: Vec<u8>,
    pub(super) why: String,
}

/// One version of a row that verifies.
struct Version {
    table: u32,
    key: Box<[u8]>,
    version: u64,
    /// Its body verifies, or may once its deltas are looked at.
    is_whole: bool,
    slot: LogSlot,
    /// Written by gc, in the place of several perhaps.
    is_copy: bool,
    /// The version of the schema that it was written under.
    schema: u16,
}

/// Opens what is left of a store for reading.
pub(super) fn open_damaged(tiers: Tiers, options: Options) -> Result<(Engine, OpenState, Salvage)> {
    let (mut engine, found, damage) = Engine::load_damaged(tiers, options, Clock::system())?;
    let lacks_changes = found.lacks_segments;
    let lost_places = u64::from(found.lacks_segments);
    let mut salvage = Salvage { damage, lacks_changes, lost_places, ..Salvage::default() };
    let (mut versions, mut lost) = (Vec::new(), HashMap::new());
    for &extent in &found.segments {
        salvage.add_segment(&engine.log, extent, &found, &mut versions, &mut lost);
    }
    salvage.replay(&mut engine.catalog, &engine.log);
    if found.lacks_segments || !engine.catalog.is_whole() {
        // Any row may have had a younger version there; any table may have been dropped since.
        salvage.doubtful_before = u64::MAX;
    }
    let schemas: HashMap<u32, u16> = engine
        .catalog
        .all()
        .iter()
        .map(|t| (t.id.load(Ordering::Relaxed), t.schema.load().version()))
        .collect();
    // Under a change of the catalog that is lost a copy cannot be read. What it was made of is older than the change, and there still perhaps.
    let is_ahead = |v: &Version| v.is_copy && schemas.get(&v.table).is_some_and(|&known| v.schema > known);
    let rank = |v: &Version| (v.is_whole, !is_ahead(v), v.slot.tag() == Tag::Row, v.is_copy);
    versions.sort_unstable_by(|a, b| {
        // Of one version that is there twice, for a page may lie in two places, the whole one.
        let newest_first = b.version.cmp(&a.version).then_with(|| rank(b).cmp(&rank(a)));
        (a.table, &a.key).cmp(&(b.table, &b.key)).then(newest_first)
    });
    for of_table in versions.chunk_by(|a, b| a.table == b.table) {
        salvage.index(&engine.catalog, &engine.log, of_table, &mut lost)?;
    }
    let of_rest = lost.values().map(|lost| ((lost.table, lost.key.clone()), lost.sequence));
    salvage.hidden.extend(of_rest);
    let mut rest: Vec<LostRecord> = lost.into_values().filter(|lost| !lost.is_tombstone).collect();
    rest.sort_unstable_by(|a, b| (a.table, &a.key).cmp(&(b.table, &b.key)));
    for lost in rest {
        salvage
            .lost
            .extend(lost_row(&engine.catalog, lost.table, &lost.key, || newest_is_lost(lost.sequence)));
    }
    Ok((engine, found, salvage))
}

/// Nothing for a table that was dropped.
fn lost_row(catalog: &Catalog, table: u32, key: &[u8], why: impl FnOnce() -> String) -> Option<Lost> {
    let name = match catalog.by_id(table) {
        Some(table) => table.name.to_string(),
        None if table == CATALOG_TABLE || catalog.is_gone(table) => return None,
        None => format!("(table {table})"),
    };
    Some(Lost { id: table, table: name, key: key.to_vec(), why: why() })
}

fn newest_is_lost(sequence: u64) -> String {
    format!("its newest version (sequence {sequence}) is damaged; no older one was put in its place")
}
