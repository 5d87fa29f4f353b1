//! The read path, top to bottom.
//!
//! 1. **Pin** the epoch: what is reachable now stays where it is until the read ends. Nothing shared is written.
//! 2. **Look up** the key's slot in the table's index. No slot, or a tombstone: there is no row.
//! 3. A **cached** slot leads to the whole row in DRAM: go on with 4 (`cached.rs`). Else **walk** from the newest record down the chain of deltas to the base row; verify each record's prefix. For a snapshot, go
//!    on down `previous` to the first version that is not younger than it.
//!    What lies below the newest record is only touched once it is asked for.
//!    Of a key that the index does not have, and under deltas whose row nobody looked at, the records of **sorted tables** count, where the table has
//!    any (`lower.rs`): the index is asked first, then what counts below (a row of it that is in memory by itself, else the runs), and of a key with deltas then the index again, in case that it has moved in between.
//! 4. **Answer** fields from the newest delta that names them, else from the base row, else from the schema's default. Only the
//!    blocks that hold the fields asked for are touched and verified (`log/format.rs`).
//!
//! While deltas are being merged into the base row in place (`consolidate/in_place.rs`), a block of it may not match its checksum; the deltas at hand
//! explain it then. So the base row under deltas is read by copies, where it is one that may be merged.
//!
//! Invariant: the schema is loaded after the slot, so that it knows the version of every record the slot leads to. [`ReadView`] keeps that order:
//! it owns the pin, looks up under it, and lends rows for as long as it lives.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use hedgerow_row::expiry::time_of_unix_ms;
use hedgerow_row::field_value::read_as;
use hedgerow_row::key::read_key;
use hedgerow_row::schema::body::{DeltaBody, FieldRead, RowBody, is_past};
use hedgerow_row::schema::table::TableSchema;
use hedgerow_row::schema::unknown_field;
use smallvec::SmallVec;

use super::at_hand::{check_all_at_hand, check_at_hand};
use super::chain::{Chain, version_before};
use super::counters::{Count, Counters};
use super::engine::{Engine, TableShared};
use super::lower::{LowerLooks, LowerRecords, SeenBelow};
use super::prefetch::{RowPrefetch, prefetch_row};
use crate::cache::{self, Cache};
use crate::index::{LogSlot, Slot, SlotTarget, Tag};
use crate::log::format::{CACHED_OFFSET, RawRecord, Record, RecordKind};
use crate::log::{self, LogGuard, LogView};
use crate::runs::FoundVersions;
use crate::sst::SstKey;
use crate::sync::Backoff;
use crate::sync::atomic::Ordering;
use crate::{Error, FieldId, FieldName, FromKey, FromValue, Key, ReadFields, Result, Row, Schema, Value};

mod bodies;
mod many;

use bodies::{Base, row_body};
pub(crate) use bodies::{Bodies, folded};

/// Keys or rows that are looked at together, so that their misses overlap.
pub(crate) const GROUP: usize = 16;

/// A table's schema, as it was when it was loaded.
pub(super) type LoadedSchema = arc_swap::Guard<Arc<TableSchema>>;

/// What one thread reads together, under one pin. Rows are borrowed from it, and cannot outlive the pin; nor can it be taken after
/// the look-up that led to them, for the same view looks up.
pub(crate) struct ReadView<'e> {
    engine: &'e Engine,
    guard: LogGuard<'e>,
    /// What was looked up in sorted tables.
    lower: OnceCell<Box<LowerLooks>>,
}

impl fmt::Debug for ReadView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl<'e> ReadView<'e> {
    /// What keeps it, for who asks the index or publishes in it.
    #[inline]
    pub(crate) fn guard(&self) -> &LogGuard<'e> {
        &self.guard
    }

    /// The log under it.
    #[inline]
    pub(crate) fn log(&self) -> LogView<'_> {
        self.guard.view()
    }

    /// Whether it is of this store.
    pub(super) fn is_of(&self, engine: &Engine) -> bool {
        std::ptr::eq(self.engine, engine)
    }

    /// The slot of `key`, for whoever reads it, and the schema: loaded after it, so that it knows the version of every record that the
    /// slot leads to.
    #[inline(always)]
    pub(super) fn locate(&self, table: &TableShared, key: &[u8]) -> (Option<Slot>, LoadedSchema) {
        let slot = table.levels.locate(key, &self.guard);
        (slot, table.schema.load())
    }

    /// [`ReadView::locate`] for whoever changes the row: a tombstone's slot wherever that is kept.
    #[inline]
    pub(super) fn locate_version(&self, table: &TableShared, key: &[u8]) -> (Option<Slot>, LoadedSchema) {
        let slot = table.levels.locate_version(key, &self.guard);
        (slot, table.schema.load())
    }

    /// The row that `slot`, of a key of a table, stands for now; `None` if it is absent or has expired. `schema` was loaded after the slot.
    #[inline(always)]
    pub(super) fn row_at<'v>(
        &'v self,
        entry: (&TableShared, &[u8]),
        schema: &'v Arc<TableSchema>,
        slot: Option<Slot>,
    ) -> Result<Option<RowRef<'v>>> {
        self.row_as_of(entry, schema, slot, || self.engine.clock.now_ms())
    }

    /// [`ReadView::row_at`] at another moment than this one.
    #[inline(always)]
    pub(super) fn row_as_of<'v>(
        &'v self,
        entry: (&TableShared, &[u8]),
        schema: &'v Arc<TableSchema>,
        slot: Option<Slot>,
        now_ms: impl FnOnce() -> u64,
    ) -> Result<Option<RowRef<'v>>> {
        let Some(found) = slot.filter(|slot| slot.tag() != Tag::Tombstone) else {
            // A tombstone hides what is below, too.
            return if slot.is_none() && entry.0.below() {
                self.row_below(entry, None, now_ms())
            } else {
                Ok(None)
            };
        };
        if found.tag() == Tag::Blind {
            return self.row_below(entry, Some(found), now_ms());
        }
        self.row_in_log(schema, found, now_ms)
    }

    /// The row of a version that is in the log, or in the cache, with its base.
    #[inline(always)]
    fn row_in_log<'v>(
        &'v self,
        schema: &'v Arc<TableSchema>,
        slot: Slot,
        now_ms: impl FnOnce() -> u64,
    ) -> Result<Option<RowRef<'v>>> {
        let (engine, log) = (self.engine, self.log());
        check_at_hand(log, &engine.disk_waits, slot)?;
        let raw = match slot.leads_to() {
            SlotTarget::Log(slot) => log.raw_record(slot.offset())?,
            SlotTarget::Cache(place) => engine.cache.raw_record(place, &self.guard)?,
        };
        let Ok(newest) = raw.record(log.verifies_reads()) else { return Err(not_a_record(&raw)) };
        let now_ms = now_ms();
        // A row's expiry is in its prefix. Under deltas it may be in any of them; that it may be anywhere is in the slot.
        let expires_at_ms = match newest.kind() {
            RecordKind::Row => newest.expires_at_ms().filter(|&ms| ms != 0),
            _ if slot.expires() => {
                slot.in_log().map_or(Ok(None), |slot| Chain::of(log, slot)?.expires_at_ms())?
            }
            _ => None,
        };
        if is_past(expires_at_ms, now_ms) {
            return Ok(None);
        }
        Ok(Some(RowRef { schema, chain: Chain::new(log, newest, slot)?, now_ms, expires_at_ms }))
    }

    /// The row of a key whose slot was `slot`, none or a blind one.
    #[cold]
    #[inline(never)]
    fn row_below<'v>(
        &'v self,
        entry: (&TableShared, &[u8]),
        slot: Option<Slot>,
        now_ms: u64,
    ) -> Result<Option<RowRef<'v>>> {
        let (mut slot, mut backoff) = (slot, Backoff::new());
        loop {
            let look = match self.look_below(entry, slot, u64::MAX) {
                Ok(look) => look,
                Err(Moved(now)) => match now {
                    Some(now) if now.tag() == Tag::Tombstone => return Ok(None),
                    Some(now) if now.tag() != Tag::Blind => {
                        // The schema that the caller has may be older than this slot.
                        let schema = self.hold(entry, u64::MAX).schema();
                        return self.row_in_log(schema, now, || now_ms);
                    }
                    now => {
                        slot = now;
                        backoff.wait();
                        continue;
                    }
                },
            };
            return self.row_of(look, slot.and_then(Slot::in_log), now_ms);
        }
    }

    /// [`ReadView::row_at`], or [`ReadView::row_before`] of a snapshot.
    #[inline(always)]
    pub(super) fn row_at_or_before<'v>(
        &'v self,
        entry: (&TableShared, &[u8]),
        schema: &'v Arc<TableSchema>,
        slot: Option<Slot>,
        before: Option<u64>,
    ) -> Result<Option<RowRef<'v>>> {
        match before {
            None => self.row_at(entry, schema, slot),
            Some(before) => self.row_before(entry, schema, slot, before),
        }
    }

    /// [`ReadView::row_at`] as it was when the sequence `before` was the last.
    #[inline(never)]
    pub(super) fn row_before<'v>(
        &'v self,
        entry: (&TableShared, &[u8]),
        schema: &'v Arc<TableSchema>,
        slot: Option<Slot>,
        before: u64,
    ) -> Result<Option<RowRef<'v>>> {
        let (mut now, mut backoff) = (slot, Backoff::new());
        loop {
            let log_slot = now.map(|slot| self.engine.cache.log_slot(slot, &self.guard));
            let version = log_slot.map_or(Ok(None), |slot| version_before(self.log(), slot, before))?;
            let schema = if now == slot { schema } else { self.hold(entry, before).schema() };
            match version {
                None if !entry.0.below() => return Ok(None),
                Some(version) if version.tag() == Tag::Tombstone => return Ok(None),
                Some(version) if version.tag() != Tag::Blind => {
                    return self.row_in_log(schema, version.into(), || self.engine.clock.now_ms());
                }
                version => match self.look_below(entry, now, before) {
                    Ok(look) => return self.row_of(look, version, self.engine.clock.now_ms()),
                    Err(Moved(slot)) => {
                        now = slot;
                        backoff.wait();
                    }
                },
            }
        }
    }

    /// The row of a key of which the index has `slot` and the runs `found`, both of one moment: as it is, or as it was when the sequence `before` was the last. `schema`
    /// was loaded after both.
    pub(super) fn row_over<'v>(
        &'v self,
        schema: &'v Arc<TableSchema>,
        slot: Option<Slot>,
        found: Option<FoundVersions>,
        before: Option<u64>,
    ) -> Result<Option<RowRef<'v>>> {
        let now_ms = || self.engine.clock.now_ms();
        let version = match (slot, before) {
            (Some(slot), Some(before)) => {
                version_before(self.log(), self.engine.cache.log_slot(slot, &self.guard), before)?
                    .map(Slot::from)
            }
            (slot, _) => slot,
        };
        match version.map(Slot::tag) {
            Some(Tag::Tombstone) => Ok(None),
            Some(Tag::Blind) | None => {
                let looks = self.lower.get_or_init(Box::default);
                let look = LowerRecords::walked(found.unwrap_or_default(), Arc::clone(schema));
                self.row_of(looks.hold(look), version.and_then(Slot::in_log), now_ms())
            }
            Some(_) => version.map_or(Ok(None), |slot| self.row_in_log(schema, slot, now_ms)),
        }
    }

    /// A look into what counts below now, of a key whose slot is still `slot` after that was chosen. If it is another by now, the look would be at
    /// what came of the key while it moved: the other one is returned. While a table is cleared or loaded its number is another before its index is empty: the look is none
    /// either until both are of one content. Of a key that had no slot the index is not asked again, but for a snapshot.
    fn look_below(
        &self,
        entry: (&TableShared, &[u8]),
        slot: Option<Slot>,
        upto: u64,
    ) -> Result<&LowerRecords, Moved> {
        let (table, key) = entry;
        let Some(content) = table.content() else { return Err(Moved(slot)) };
        let look = self.hold(entry, upto);
        if slot.is_none() && upto == u64::MAX && table.content() == Some(content) {
            // The index had nothing, so what was below then is what counted then: what is there now counted since.
            return Ok(look);
        }
        let now = table.levels.locate(key, &self.guard);
        let place = |slot: Slot| (slot.tag(), slot.in_log().map(LogSlot::offset));
        let is_same = now.map(place) == slot.map(place) && table.content() == Some(content);
        if is_same { Ok(look) } else { Err(Moved(now)) }
    }

    /// Runs `read` on the blind chain of `slot`, with what is below; false if the key has another slot by now.
    pub(crate) fn with_lower(
        &self,
        entry: (&TableShared, &[u8]),
        slot: LogSlot,
        read: impl FnOnce(&Chain<'_>) -> Result<bool>,
    ) -> Result<bool> {
        match self.look_below(entry, Some(slot.into()), u64::MAX) {
            Ok(look) => read(&Chain::of(self.log(), slot)?.over(Some(look))),
            Err(Moved(_)) => Ok(false),
        }
    }

    /// Takes what counts below now, and the schema after it.
    fn hold(&self, (table, key): (&TableShared, &[u8]), upto: u64) -> &LowerRecords {
        let id = table.id.load(Ordering::Acquire);
        let looks = self.lower.get_or_init(Box::default);
        if !table.below() {
            // Of a table that was dropped: it keeps its number.
            return looks.hold(LowerRecords::walked(FoundVersions::default(), table.schema.load_full()));
        }
        let (key, store) = (SstKey::new(id, key), self.engine.disk_waits.store_id());
        if upto == u64::MAX
            && let Some(row) = self.engine.runs.row_in_memory(&key, &self.guard)
        {
            return looks.hold(LowerRecords::walked(row, table.schema.load_full()));
        }
        let runs = Arc::clone(&self.engine.runs.current());
        looks.look(runs, key, (upto, store), table.schema.load_full())
    }

    /// Keys of which it had to be known what is below, and of which that was not [seen](Engine::read_view_of) before.
    pub(super) fn wanted_below(&self) -> Vec<SstKey> {
        self.lower.get().map_or_else(Vec::new, |looks| looks.wanted().cloned().collect())
    }

    /// The row of what is below, under the blind deltas of `slot` if there are any.
    fn row_of<'v>(
        &'v self,
        look: &'v LowerRecords,
        slot: Option<LogSlot>,
        now_ms: u64,
    ) -> Result<Option<RowRef<'v>>> {
        let log = self.log();
        let chain = match slot {
            Some(slot) => {
                check_at_hand(log, &self.engine.disk_waits, *slot)?;
                Chain::of(log, slot)?.over(Some(look))
            }
            None => match Chain::of_lower(log, look.found()?) {
                Some(chain) => chain,
                None => return Ok(None),
            },
        };
        let expires_at_ms = if slot.is_none() { chain.expires_at_ms()? } else { None };
        let row = RowRef { schema: look.schema(), chain, now_ms, expires_at_ms };
        Ok(Some(row).filter(|_| !is_past(expires_at_ms, now_ms)))
    }
}

/// The slot of a key is another by now.
struct Moved(Option<Slot>);

impl Engine {
    /// Pins the epoch: what is found under the view stays where it is as long as that lives.
    #[inline]
    pub(crate) fn read_view(&self) -> ReadView<'_> {
        ReadView { engine: self, guard: self.log.pin(), lower: OnceCell::new() }
    }

    /// The same for a thread that must not wait: of what is below it knows what was `seen` before.
    pub(super) fn read_view_of(&self, seen: Arc<SeenBelow>) -> ReadView<'_> {
        let lower = OnceCell::from(Box::new(LowerLooks::only_of(seen)));
        ReadView { lower, ..self.read_view() }
    }

    /// What to prefetch of rows of which the fields `ids` will be asked for, if that is known.
    #[inline]
    pub(super) fn row_prefetch(&self, schema: &TableSchema, ids: Option<&[FieldId]>) -> RowPrefetch {
        RowPrefetch::new(self.mergeable_flag(schema.current_layout()), schema, ids)
    }

    /// Leaves the key of a row that was found with deltas to consolidation.
    #[inline]
    pub(super) fn enqueue_chain(&self, table: &TableShared, row: &RowRef<'_>) {
        if row.chain.depth() > 0 {
            self.merge_queue.found(&table.id, row.key());
        }
    }

    /// Whether there is a row. The row itself is looked at only if it may have expired.
    pub(super) fn exists(&self, table: &TableShared, key: &[u8]) -> Result<bool> {
        self.counters.add(Count::Get);
        let view = self.read_view();
        match view.locate(table, key) {
            (Some(slot), schema) if slot.expires() => {
                Ok(view.row_at((table, key), &schema, Some(slot))?.is_some())
            }
            (None, schema) if table.below() => Ok(view.row_at((table, key), &schema, None)?.is_some()),
            (slot, _) => Ok(super::deleted::is_row(slot)),
        }
    }

    /// Brings rows into the processor's caches; the look-ups overlap.
    pub(super) fn prefetch_rows(&self, table: &TableShared, keys: &[&[u8]]) {
        for group in keys.chunks(GROUP) {
            self.look_up_rows(table, group, |_, _| ());
        }
    }

    /// Looks up to [`GROUP`] keys up together, brings their rows into the processor's caches, and calls `visit` with the slot of each
    /// key, which leads to a row for as long as a guard is held.
    pub(super) fn look_up_rows(
        &self,
        table: &TableShared,
        keys: &[&[u8]],
        mut visit: impl FnMut(usize, Option<Slot>),
    ) {
        let mut found = [None; GROUP];
        {
            let guard = self.log.pin();
            table.levels.locate_many(keys, &guard, &mut found);
            // Reads the deltas that were found, to ask for what is under them: not a record that was freed since.
            self.disk_waits.ask_for(guard.view(), &found[..keys.len()]);
        }
        for (index, slot) in found.into_iter().enumerate().take(keys.len()) {
            if let Some(slot) = slot {
                prefetch_row(&self.log, &self.cache, slot);
            }
            visit(index, slot);
        }
    }

    /// [`Engine::read`] of a key that was looked up under a view that still lives.
    #[inline]
    pub(super) fn read_handle<R>(
        &self,
        table: &TableShared,
        key: &[u8],
        (view, slot): (&ReadView<'_>, Option<Slot>),
        read: impl FnOnce(&RowRef<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        self.counters.add(Count::Get);
        let schema = table.schema.load();
        let row = view.row_at((table, key), &schema, slot)?;
        if let Some(row) = &row {
            self.enqueue_chain(table, row);
            record_read(&self.cache, &self.counters, table, key, slot);
        }
        row.map(|row| read(&row)).transpose()
    }

    /// Some keys of a call that reads many, whose look-ups overlap.
    fn read_group<K: Key>(
        &self,
        table: &TableShared,
        group: &[K],
        (view, before): (&ReadView<'_>, Option<u64>),
        read: &mut impl FnMut(Option<&RowRef<'_>>) -> Result<()>,
    ) -> Result<()> {
        let mut found = [None; GROUP];
        let encoded: SmallVec<[K::Bytes<'_>; GROUP]> = group.iter().map(Key::key_bytes).collect();
        let keys: SmallVec<[&[u8]; GROUP]> = encoded.iter().map(AsRef::as_ref).collect();
        table.levels.locate_many(&keys, view.guard(), &mut found);
        let slots = &found[..keys.len()];
        self.disk_waits.ask_for(view.log(), slots);
        check_all_at_hand(view.log(), &self.disk_waits, slots.iter().flatten().copied())?;
        slots.iter().flatten().for_each(|&slot| prefetch_row(&self.log, &self.cache, slot));
        let schema = table.schema.load();
        for (&slot, key) in slots.iter().zip(&keys) {
            self.counters.add(Count::Get);
            let row = view.row_at_or_before((table, key), &schema, slot, before)?;
            if let Some(row) = &row {
                self.enqueue_chain(table, row);
                if before.is_none() {
                    record_read(&self.cache, &self.counters, table, key, slot);
                }
            }
            read(row.as_ref())?;
        }
        Ok(())
    }

    /// Runs `read` on the row of `key`, in place: as it is, or as it was when the sequence `before` was the last. It will ask for
    /// the fields `ids`, if that is known.
    #[inline]
    pub(super) fn read<R>(
        &self,
        table: &TableShared,
        key: &[u8],
        before: Option<u64>,
        ids: Option<&[FieldId]>,
        read: impl FnOnce(&RowRef<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        self.counters.add(Count::Get);
        let view = self.read_view();
        let (slot, schema) = view.locate(table, key);
        if let Some(slot) = slot {
            self.disk_waits.ask_for_one(view.log(), slot);
        }
        match (slot, ids) {
            (Some(slot), None) => prefetch_row(&self.log, &self.cache, slot),
            (Some(slot), ids) => self.row_prefetch(&schema, ids).newest(&self.log, &self.cache, slot, key),
            _ => {}
        }
        let row = view.row_at_or_before((table, key), &schema, slot, before)?;
        if let Some(row) = &row {
            self.enqueue_chain(table, row);
            if before.is_none() {
                record_read(&self.cache, &self.counters, table, key, slot);
            }
        }
        row.map(|row| read(&row)).transpose()
    }
}

/// Lets the cache know of a row that was read through `slot`.
#[inline]
fn record_read(cache: &Cache, counters: &Counters, table: &TableShared, key: &[u8], slot: Option<Slot>) {
    let tick = cache.tick();
    if let Some(slot) = slot
        && tick != 0
    {
        record_read_at((cache, tick), counters, table, key, slot);
    }
}

#[inline(never)]
fn record_read_at(
    (cache, tick): (&Cache, u32),
    counters: &Counters,
    table: &TableShared,
    key: &[u8],
    slot: Slot,
) {
    let sampled = cache.is_sampled();
    if let Some(place) = slot.in_cache() {
        counters.add(Count::CacheHit);
        cache.touch(place, tick);
        if sampled {
            table.traffic.hits.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    counters.add(Count::CacheMiss);
    if sampled {
        table.traffic.misses.fetch_add(1, Ordering::Relaxed);
    }
    if sampled || !table.traffic.steady.load(Ordering::Relaxed) {
        cache.request(table.id.load(Ordering::Relaxed), key);
    }
}

#[cold]
fn not_a_record(raw: &RawRecord<'_>) -> Error {
    match raw.offset & CACHED_OFFSET {
        0 => {
            raw.record(true).err().map_or_else(|| log::not_a_record(raw.offset), |why| why.error(raw.offset))
        }
        _ => cache::broken(raw.offset ^ CACHED_OFFSET),
    }
}

/// A row in place: borrowed from the log. What is read from it is verified as it is read.
#[derive(Debug)]
pub struct RowRef<'a> {
    schema: &'a Arc<TableSchema>,
    chain: Chain<'a>,
    now_ms: u64,
    expires_at_ms: Option<u64>,
}

impl ReadFields for RowRef<'_> {
    fn value(&self, field: &str) -> Result<Value<'_>> {
        self.get(field)
    }
}

impl<'a> RowRef<'a> {
    /// The table's fields.
    pub fn schema(&self) -> &Schema {
        self.schema.fields()
    }

    /// The same with what older rows of the table need to be read.
    pub(super) fn table_schema(&self) -> &'a Arc<TableSchema> {
        self.schema
    }

    /// The row's key.
    pub fn key(&self) -> &'a [u8] {
        self.chain.newest().key()
    }

    /// The row's key as a Rust type: `row.key_as::<(u32, String)>()?`.
    ///
    /// # Errors
    /// `Invalid` if it is the key of none.
    pub fn key_as<T: FromKey>(&self) -> Result<T> {
        read_key(self.key())
    }

    /// The field's value; `Null` if it is absent or has expired.
    ///
    /// # Errors
    /// `NotFound` if the table has no such field, `Corrupted` if its bytes are not what was written.
    #[inline]
    pub fn get<F: FieldName>(&self, field: F) -> Result<Value<'_>> {
        let Some(position) = field.find(self.schema.fields()) else { return Err(unknown_field(field)) };
        if self.chain.depth() == 0
            && let Some((raw, kind)) = self.whole()?.in_place(self.schema, position)?
        {
            return kind.decode_fixed(raw);
        }
        self.value(position)
    }

    /// The field's value as a Rust type, an `Option` of one where it may be absent: `row.get_as::<u32>("age")?`.
    ///
    /// # Errors
    /// As [`RowRef::get`]; `Invalid` if the value is none of that type: another kind, out of its range, or absent.
    #[inline]
    pub fn get_as<'r, T: FromValue<'r>>(&'r self, field: impl FieldName) -> Result<T> {
        read_as(field, self.get(field)?)
    }

    /// Whether the field is there, without touching its bytes.
    ///
    /// # Errors
    /// As [`RowRef::get`].
    pub fn has<F: FieldName>(&self, field: F) -> Result<bool> {
        let fields = self.schema.fields();
        let Some(position) = field.find(fields) else { return Err(unknown_field(field)) };
        let id = fields.fields()[position].id();
        if let Some((sets, expires_at_ms)) =
            self.chain.find_in_deltas(|delta| DeltaBody::new(delta).sets(id))?
        {
            return Ok(sets && !is_past(expires_at_ms, self.now_ms));
        }
        let Some(row) = self.base()? else { return Ok(!self.absent(position).at(self.now_ms).is_null()) };
        Ok(row.is_present(self.schema, position)?
            && !is_past(row.expiry(self.schema, position)?, self.now_ms))
    }

    /// Calls `visit` with the name and value of each field that is there, in the schema's order. For whole rows this is
    /// quicker than one [`get`](RowRef::get) after the other.
    ///
    /// # Errors
    /// `Corrupted` if bytes are not what was written.
    pub fn for_each(&self, mut visit: impl FnMut(&str, Value<'_>)) -> Result<()> {
        let fields = self.schema.fields().fields();
        self.for_each_position(|position, value| visit(fields[position].name(), value))
    }

    pub(super) fn for_each_position(&self, mut visit: impl FnMut(usize, Value<'_>)) -> Result<()> {
        if self.chain.depth() == 0 {
            // All blocks at once: their checksums interleave.
            self.chain.newest().verify_all()?;
            let body = self.whole()?;
            return body.for_each(self.schema, |position, field| {
                let value = field.at(self.now_ms);
                if !value.is_null() {
                    visit(position, value);
                }
            });
        }
        self.for_each_of_chain(visit)
    }

    /// The same of a row with deltas.
    #[inline(never)]
    fn for_each_of_chain(&self, mut visit: impl FnMut(usize, Value<'_>)) -> Result<()> {
        // The blocks of the base row at once. What does not match is looked at again as its fields are read, and told or explained then.
        let _ = Base::new(&self.chain, self.schema)?.map(|base| base.verify_all());
        let bodies = Bodies::new(self.schema, Some(&self.chain), None)?;
        bodies.merge(self.schema, self.now_ms)?.for_each(|position, field| visit(position, field.value))
    }

    /// When the row expires, if it does.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at_ms().map(time_of_unix_ms)
    }

    /// [`expires_at`](Self::expires_at), in ms since 1970.
    #[doc(hidden)]
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }

    /// When the field expires, if it is there and does.
    ///
    /// # Errors
    /// As [`RowRef::get`].
    pub fn field_expires_at<F: FieldName>(&self, field: F) -> Result<Option<SystemTime>> {
        Ok(self.field_expires_at_ms(field)?.map(time_of_unix_ms))
    }

    /// [`field_expires_at`](RowRef::field_expires_at), in ms since 1970.
    ///
    /// # Errors
    /// As [`RowRef::get`].
    #[doc(hidden)]
    pub fn field_expires_at_ms<F: FieldName>(&self, field: F) -> Result<Option<u64>> {
        match field.find(self.schema.fields()) {
            Some(position) => {
                let field = self.read(position)?;
                Ok(if field.at(self.now_ms).is_null() { None } else { field.expires_at_ms })
            }
            None => Err(unknown_field(field)),
        }
    }

    /// A number that changes with every write of the row.
    pub fn version(&self) -> u64 {
        self.chain.newest().version()
    }

    pub(super) fn chain(&self) -> &Chain<'a> {
        &self.chain
    }

    /// Copies the row.
    ///
    /// # Errors
    /// As [`RowRef::get`].
    pub fn to_row(&self) -> Result<Row> {
        self.copy(None)
    }

    /// Copies the row, or only some fields; one dropped meanwhile is left out.
    pub(super) fn copy(&self, ids: Option<&[FieldId]>) -> Result<Row> {
        let fields = self.schema.fields();
        let room = match ids {
            // Deltas left out.
            None => (fields.fields().len(), self.chain.base_row()?.map_or(0, Record::body_len)),
            Some(ids) => (ids.len(), 64),
        };
        let mut copy = Row::new(self.schema, self.key(), (self.version(), self.expires_at_ms), room);
        match ids {
            None => self.for_each_position(|position, value| copy.push(position, value))?,
            Some(ids) => {
                copy = copy.in_part();
                for position in ids.iter().filter_map(|id| id.find(fields)) {
                    copy.push(position, self.value(position)?);
                }
            }
        }
        Ok(copy)
    }

    /// The body of the row under the deltas. `None` where they are over nothing.
    #[inline(always)]
    fn base(&self) -> Result<Option<RowBody<'_, Base<'_, 'a>>>> {
        let base = Base::new(&self.chain, self.schema)?;
        base.map(|base| row_body(self.schema, base.row, base)).transpose()
    }

    /// The body of a row without deltas.
    #[inline(always)]
    fn whole(&self) -> Result<RowBody<'_, Base<'_, 'a>>> {
        let row = self.chain.newest();
        row_body(self.schema, row, Base::whole(&self.chain, self.schema))
    }

    /// What a field is that deltas over nothing do not name.
    #[cold]
    fn absent(&self, position: usize) -> FieldRead<'_> {
        FieldRead::default_of(self.schema, position)
    }

    #[inline]
    pub(super) fn read(&self, position: usize) -> Result<FieldRead<'_>> {
        let base = if self.chain.depth() == 0 {
            Some(self.whole()?)
        } else if let Some(field) = self.read_delta(position)? {
            return Ok(field);
        } else {
            self.base()?
        };
        match base {
            Some(base) => base.read(self.schema, position),
            None => Ok(self.absent(position)),
        }
    }

    /// What the deltas say of a field.
    #[inline(never)]
    fn read_delta(&self, position: usize) -> Result<Option<FieldRead<'_>>> {
        if !self.schema.access().early_stop {
            return self.read_all_deltas(position);
        }
        self.chain.find_in_deltas(|delta| DeltaBody::new(delta).find(self.schema, position))
    }

    /// The same, every record of the chain walked and every delta looked into: what stopping early is measured against.
    #[cold]
    fn read_all_deltas(&self, position: usize) -> Result<Option<FieldRead<'_>>> {
        let mut found = None;
        for delta in self.chain.deltas()? {
            let read = DeltaBody::new(delta).find(self.schema, position)?;
            found = found.or(read);
        }
        Ok(found)
    }

    /// The field's value as of now.
    fn value(&self, position: usize) -> Result<Value<'_>> {
        Ok(self.read(position)?.at(self.now_ms))
    }
}

#[cfg(test)]
mod tests;
