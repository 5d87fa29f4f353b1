//! `Batch`: writes that happen together or not at all.
//!
//! All writers' appenders are locked while a batch is published, so that nobody takes a sequence between its parts: they share
//! one. Its records lie in one frame (`log/format.rs`), which counts only if it is whole. A snapshot, which waits for the
//! appenders, sees all of a batch or nothing; a reader without one may see its first rows before its last.

use std::ops::Range;
use std::sync::Arc;

use hedgerow_row::row_expiry::{OldRow, RowExpiry};
use hedgerow_row::schema::plan::{DeltaPlan, FieldExpiries, RowPlan};
use hedgerow_row::schema::table::TableSchema;
use smallvec::SmallVec;

use super::Table;
use super::append::{
    Draft, EMPTY_DELTA, IndexEntry, Published, Seal, blind_draft, delta_draft, delta_expiry,
};
use super::at_hand::check_at_hand;
use super::counters::Count;
use super::deleted::is_row;
use super::engine::{Engine, TableShared};
use super::lower::SeenBelow;
use super::prefetch::prefetch_row;
use super::read::{Bodies, GROUP, ReadView, RowRef, folded};
use super::write::{SpaceWaits, UNSEEN_BYTES, UNSEEN_ROW_BYTES_MAX, check_key};
use crate::epoch::Guard;
use crate::index::{Budget, Decision, IndexFull, IndexReservation, Located, LogSlot, Slot, Tag};
use crate::levels::index_full;
use crate::log::format::{FLAG_BATCHED, RecordKind, RecordRef, RecordSpec};
use crate::log::segment::SegmentKind;
use crate::log::{EncodedRecord, LockedAppender, LogGuard, NoSpace, Reservation, SealedRecord};
use crate::space::Claim;
use crate::sst::SstKey;
use crate::sync::atomic::Ordering;
use crate::{Error, ErrorKind, Expiry, FieldName, Key, Result, TypedRow, Value};

use below::Unseen;
use staged::{Dependence, FieldWrite, Op, Staged, StagedWrite};

mod below;
mod blame;
mod dependent;
mod staged;

/// Bytes of one batch's records, at most.
const BATCH_BYTES_MAX: usize = 256 << 20;
/// Bytes of the blocks of sorted tables in which the rows lie that one batch has to see, at most.
const SEEN_BYTES_MAX: usize = 256 << 20;

/// Writes to any rows of any tables of one store, to be written together by [`Db::write`](crate::Db::write).
///
/// Later writes of a batch go over earlier ones. Readers with a [`Snapshot`](crate::Snapshot), and what is left after a
/// crash, hold all of it or nothing. A batch that is refused says for which part of it ([`Error::failed_write`]).
#[derive(Default, Clone)]
pub struct Batch {
    staged: Staged,
    engine: Option<Arc<Engine>>,
    /// It was given tables of different stores.
    mixed: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Takes all writes and requirements out, and keeps the memory for the next.
    pub fn clear(&mut self) {
        self.staged.clear();
        (self.engine, self.mixed) = (None, false);
    }

    fn belongs(&mut self, table: &Table) {
        match &self.engine {
            Some(engine) => self.mixed |= !Arc::ptr_eq(engine, table.engine()),
            None => self.engine = Some(Arc::clone(table.engine())),
        }
    }

    /// Adds a [`Table::put`].
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn put<F: FieldName>(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
    ) -> Result<()> {
        let key = key.key_bytes();
        let key = checked(key.as_ref())?;
        self.staged.add_put(table, key, fields, None)?;
        self.belongs(table);
        Ok(())
    }

    /// Adds a [`Table::put_row`].
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn put_row<T: TypedRow>(&mut self, table: &Table, key: &(impl Key + ?Sized), row: &T) -> Result<()> {
        self.put(table, key, row.to_fields().as_ref())
    }

    /// Adds a [`Table::put_expiring`]. A `Duration` counts from now, not from when the batch is written.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn put_expiring<F: FieldName>(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let key = key.key_bytes();
        let key = checked(key.as_ref())?;
        self.staged.add_put(table, key, fields, table.unix_ms(expiry.into()))?;
        self.belongs(table);
        Ok(())
    }

    /// Adds a [`Table::update`].
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn update<F: FieldName>(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
    ) -> Result<()> {
        let key = key.key_bytes();
        let key = checked(key.as_ref())?;
        self.staged.add_update(table, key, fields, None)?;
        self.belongs(table);
        Ok(())
    }

    /// Adds a [`Table::update_expiring`]. A `Duration` counts from now, not from when the batch is written.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn update_expiring<F: FieldName>(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let key = key.key_bytes();
        let key = checked(key.as_ref())?;
        self.staged.add_update(table, key, fields, table.unix_ms(expiry.into()))?;
        self.belongs(table);
        Ok(())
    }

    /// Adds a [`Table::expire`]: the row's expiry is set or taken away, its fields stay. Does nothing if there is no row by
    /// then. A `Duration` counts from now, not from when the batch is written.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn expire(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let key = key.key_bytes();
        let key = checked(key.as_ref())?;
        self.belongs(table);
        self.staged.add(table, key, Op::Expire(table.unix_ms(expiry.into())));
        Ok(())
    }

    /// Adds a [`Table::remove`].
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn delete(&mut self, table: &Table, key: &(impl Key + ?Sized)) -> Result<()> {
        let key = key.key_bytes();
        let key = checked(key.as_ref())?;
        self.belongs(table);
        self.staged.add(table, key, Op::Delete);
        Ok(())
    }

    /// Adds a [`Table::update_existing`]: without a row by then the batch fails with `Conflict`.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn update_existing<F: FieldName>(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
    ) -> Result<()> {
        let key = key.key_bytes();
        self.staged.add_update_existing(table, checked(key.as_ref())?, fields)?;
        self.belongs(table);
        Ok(())
    }

    /// Adds a [`Table::increment`]: to what the field holds when the batch is written, earlier writes of the batch included.
    ///
    /// ```
    /// # use hedgerow::{Batch, Db, Result, Table};
    /// /// Moves points from one player to another: both counts change, or none.
    /// fn give(db: &Db, players: &Table, from: &str, to: &str, points: i64) -> Result<()> {
    ///     let mut batch = Batch::new();
    ///     batch.increment(players, from, "points", -points)?; // an unsigned field goes below 0 for nobody
    ///     batch.increment(players, to, "points", points)?;
    ///     db.write(batch)
    /// }
    /// ```
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn increment<F: FieldName>(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        field: F,
        by: i64,
    ) -> Result<()> {
        let key = key.key_bytes();
        self.staged.add_increment(table, checked(key.as_ref())?, field, by)?;
        self.belongs(table);
        Ok(())
    }

    /// Adds a [`Table::compare_and_set`]: unless the field then is what `expected` would make it, earlier writes of the batch included, the batch fails with
    /// `Conflict`.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn compare_and_set<F: FieldName>(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        field: F,
        expected: Value<'_>,
        new: Value<'_>,
    ) -> Result<()> {
        let key = key.key_bytes();
        self.staged.add_compare_and_set(table, checked(key.as_ref())?, field, [expected, new])?;
        self.belongs(table);
        Ok(())
    }

    /// Lets the batch fail with `Conflict`, nothing written, unless the row's [`version`](Table::version) is still this one.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn require_version(
        &mut self,
        table: &Table,
        key: &(impl Key + ?Sized),
        version: Option<u64>,
    ) -> Result<()> {
        let key = key.key_bytes();
        let key = checked(key.as_ref())?;
        self.belongs(table);
        self.staged.add_version(table, key, version);
        Ok(())
    }

    /// Writes in the batch.
    pub fn len(&self) -> usize {
        let dependents = self.staged.dependents.iter().filter(|dependent| dependent.what.writes());
        self.staged.writes.len() + dependents.count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn checked(key: &[u8]) -> Result<&[u8]> {
    check_key(key).map(|()| key)
}

/// A record of the batch.
struct Part<'b> {
    table: &'b TableShared,
    draft: Draft,
    spec: RecordSpec<'b>,
    /// Of the whole record.
    bytes: usize,
    body: EncodedBody<'b>,
    /// What it goes over. While all appenders are locked a row stays one, though gc may move it.
    old: Option<LogSlot>,
    /// Where in the index it is.
    found: Located<'b>,
}

/// The record of a part. Where records are made durable in place it is sealed ahead of being published, with all the others.
enum PartRecord<'r> {
    Encoded(EncodedRecord<'r>),
    Sealed(SealedRecord<'r>),
}

impl PartRecord<'_> {
    fn offset(&self) -> u64 {
        match self {
            PartRecord::Encoded(record) => record.offset(),
            PartRecord::Sealed(record) => record.offset(),
        }
    }

    /// Sealed as over what is there.
    fn sealed(self, sequence: u64, part: &Part<'_>) -> Self {
        match self {
            PartRecord::Encoded(record) => {
                PartRecord::Sealed(record.seal(sequence, part.old.map(RecordRef::from)))
            }
            sealed @ PartRecord::Sealed(_) => sealed,
        }
    }
}

/// Where the body of a record is.
enum EncodedBody<'b> {
    /// Encoded when the write was added.
    Staged(&'b [u8]),
    /// Among those that were made when the batch was written.
    Made(Range<usize>),
}

impl EncodedBody<'_> {
    fn bytes<'m>(&'m self, made: &'m [u8]) -> &'m [u8] {
        match self {
            EncodedBody::Staged(bytes) => bytes,
            EncodedBody::Made(range) => &made[range.clone()],
        }
    }
}

impl Engine {
    /// Writes a batch.
    pub(super) fn write_batch(self: &Arc<Self>, batch: &Batch) -> Result<()> {
        if batch.mixed || batch.engine.as_ref().is_some_and(|engine| !Arc::ptr_eq(engine, self)) {
            return Err(Error::invalid("a batch writes to tables of one store, the one it is given to"));
        }
        // What depends on rows is folded when they can not change.
        let folded = (!batch.staged.depends()).then(|| batch.staged.folded(self.clock.now_ms()));
        let prepared = self.prepare(&batch.staged, folded.as_deref())?;
        self.write_prepared(batch, folded.as_deref(), prepared)
    }

    /// What a batch needs before all writers wait for it. Returns the versions of its tables' schemas as they were before.
    fn prepare(&self, staged: &Staged, folded: Option<&[StagedWrite]>) -> Result<SmallVec<[u16; 4]>> {
        let versions = staged.schema_versions();
        match folded {
            Some(writes) => self.learn_names(staged, writes)?,
            None => self.prepare_dependents(staged)?,
        }
        Ok(versions)
    }

    fn write_prepared(
        self: &Arc<Self>,
        batch: &Batch,
        folded: Option<&[StagedWrite]>,
        mut prepared: SmallVec<[u16; 4]>,
    ) -> Result<()> {
        let (mut waits, mut unseen) = (SpaceWaits::default(), Unseen::default());
        loop {
            let tried = self.see_and_try(batch, folded, &unseen);
            let lacks_name = tried.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
            if lacks_name && batch.staged.schema_versions() != prepared {
                // A field may have been dropped since its name was looked up. An open table learns it once more, as for a single write.
                prepared = self.prepare(&batch.staged, folded)?;
                continue;
            }
            match tried? {
                Attempt::Done(sequence, bytes) => {
                    self.make_durable(sequence)?;
                    self.throttle((batch.len(), bytes));
                    return Ok(());
                }
                Attempt::NoSpace(bytes, no_space) => self.wait_for_space(bytes, no_space, &mut waits)?,
                Attempt::Unseen(keys) => unseen.add(keys),
            }
        }
    }

    /// Reads what the batch has to see of rows in sorted tables, while nobody waits for it; then tries it.
    fn see_and_try(&self, batch: &Batch, folded: Option<&[StagedWrite]>, unseen: &Unseen) -> Result<Attempt> {
        if !batch.staged.may_be_below() {
            return self.try_batch(batch, folded, None);
        }
        let _still = unseen.holds_off_edits().then(|| self.runs.hold_off_edits());
        let runs = Arc::clone(&self.runs.current());
        let mut keys = unseen.keys.clone();
        let must_see = |table| runs.must_see_rows_of(table, UNSEEN_ROW_BYTES_MAX);
        for (table, rows) in batch.staged.rows_to_see(folded, must_see) {
            let id = table.id.load(Ordering::Acquire);
            for group in rows.chunks(GROUP) {
                self.look_up_rows(table, group, |n, slot| {
                    let key = SstKey::new(id, group[n]);
                    if slot.is_none_or(|slot| slot.tag() == Tag::Blind) && runs.may_hold(&key) {
                        keys.push(key);
                    }
                });
            }
        }
        let seen = SeenBelow::read((self.disk_waits.store_id(), &runs), keys, SEEN_BYTES_MAX)?;
        self.try_batch(batch, folded, Some(Arc::new(seen)))
    }

    /// Learns the names of fields that open tables do not have.
    fn learn_names(&self, staged: &Staged, writes: &[StagedWrite]) -> Result<()> {
        for (table, writes) in staged.by_table(writes) {
            let mut schema = table.schema.load_full();
            for write in writes {
                let (Op::Put(fields, _) | Op::Update(fields, _)) = &write.op else { continue };
                if !schema.fields().is_open() || staged.body(write, fields, &schema).is_some() {
                    continue;
                }
                let learned = self.learn(table, &staged.fields(write, fields));
                learned.map_err(|error| staged.blame(write, error))?;
                schema = table.schema.load_full();
            }
        }
        Ok(())
    }

    /// Learns those of the names that an open table does not have.
    fn learn(&self, table: &TableShared, fields: &[FieldWrite]) -> Result<()> {
        let schema = table.schema.load_full();
        let names: SmallVec<[&str; GROUP]> = fields.iter().filter_map(FieldWrite::text).collect();
        let is_new = |name: &&str| FieldName::find(*name, schema.fields()).is_none();
        match schema.fields().is_open() && names.iter().any(is_new) {
            true => self.evolve(table, |schema| schema.with_learned(&names)),
            false => Ok(()),
        }
    }

    /// What parts that depend on rows need before all writers wait for them: names that are known, and rows that are at hand.
    fn prepare_dependents(&self, staged: &Staged) -> Result<()> {
        staged.for_each_given(|table, fields| self.learn(table, fields))?;
        for (table, keys) in staged.dependent_rows() {
            self.prefetch_rows(table, &keys);
        }
        Ok(())
    }

    /// `folded`: the writes of the batch, if they do not depend on rows. `seen`: what was read of those of its rows that are in sorted tables. What was not, or may have
    /// changed, is not waited for here, with all writers locked out.
    fn try_batch(
        &self,
        batch: &Batch,
        folded: Option<&[StagedWrite]>,
        seen: Option<Arc<SeenBelow>>,
    ) -> Result<Attempt> {
        let mut appenders = self.log.all_appenders();
        // What is sealed before it is published must not be moved in between.
        let _unmoved = self.persists_in_place.then(|| self.log.gc_appender());
        // Until all is published: the index need not be searched again.
        let view = match seen {
            Some(seen) => self.read_view_of(seen),
            // A table was loaded meanwhile: none is from here on.
            None if batch.staged.may_be_below() => return Ok(Attempt::Unseen(Vec::new())),
            // Rows of its tables may begin to move in this moment. None has before all appenders were passed, but looks would go to the runs.
            None if self.may_move() => self.read_view_of(Arc::new(SeenBelow::nothing(&self.runs.current()))),
            None => self.read_view(),
        };
        let tried = self.write_locked(batch, folded, &mut appenders, &view);
        if tried.is_err() {
            let wanted = view.wanted_below();
            if !wanted.is_empty() {
                return Ok(Attempt::Unseen(wanted));
            }
        }
        tried
    }

    /// Writes a batch. With all appenders locked.
    fn write_locked(
        &self,
        batch: &Batch,
        folded: Option<&[StagedWrite]>,
        appenders: &mut [LockedAppender<'_>],
        view: &ReadView<'_>,
    ) -> Result<Attempt> {
        // One moment for all of it: what a part finds, the next has not seen expire.
        let now_ms = self.clock.now_ms();
        self.check_versions(&batch.staged, (view, now_ms))?;
        let worked_out;
        let writes = match folded {
            Some(writes) => writes,
            None => {
                worked_out = self.work_out(&batch.staged, (view, now_ms))?;
                &worked_out
            }
        };
        let (parts, made) = self.parts(&batch.staged, writes, (view, now_ms))?;
        if parts.is_empty() {
            return Ok(Attempt::Done(0, 0));
        }
        let records: usize = parts.iter().map(|part| part.bytes).sum();
        if records > BATCH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the batch takes {records} bytes; the limit is {BATCH_BYTES_MAX}"
            )));
        }
        let frame = frame_spec();
        let bytes = frame.record_bytes() + records;
        let reserved = match self.reserve_index(&parts, view.guard()) {
            Ok(reserved) => reserved,
            Err(full) => return Ok(Attempt::NoSpace(bytes, NoSpace::Failed(index_full(full)))),
        };
        let is_deletion = |part: &Part<'_>| part.draft.kind == RecordKind::Tombstone;
        let claim = match parts.iter().all(is_deletion) {
            true => Claim::Delete,
            false if parts.iter().all(|part| is_row(part.old)) => Claim::Overwrite,
            false => Claim::Write,
        };
        let reservation = match appenders[0].reserve(&self.log, SegmentKind::Row, bytes, claim) {
            Ok(reservation) => reservation,
            Err(no_space) => return Ok(Attempt::NoSpace(bytes, no_space)),
        };
        match self.publish_batch(reservation, (&parts, &made), &reserved, view) {
            Ok(sequence) => Ok(Attempt::Done(sequence, bytes)),
            Err(IndexFull { .. }) => Err(self.log.halt(appenders)),
        }
    }

    /// Fails unless all rows that must have a version have it. With all appenders locked.
    fn check_versions(&self, staged: &Staged, (view, now_ms): (&ReadView<'_>, u64)) -> Result<()> {
        for (at, dependent) in staged.dependents.iter().enumerate() {
            let Dependence::Version(version) = dependent.what else { continue };
            let (table, key) = staged.row_of(dependent);
            let (slot, schema) = view.locate_version(table, key);
            let row = view.row_as_of((table, key), &schema, slot, || now_ms);
            let blame = |error| staged.blame_dependent(at, error);
            if row.map_err(blame)?.map(|row| row.version()) != version {
                return Err(blame(Error::new(ErrorKind::Conflict, "the row has changed")));
            }
        }
        Ok(())
    }

    /// What a batch comes to that depends on rows. With all appenders locked.
    fn work_out(&self, staged: &Staged, (view, now_ms): (&ReadView<'_>, u64)) -> Result<Vec<StagedWrite>> {
        staged.worked_out(now_ms, |asked| {
            let (slot, schema) = view.locate_version(asked.table, asked.key);
            let entry = (asked.table, asked.key);
            let Some(row) = view.row_as_of(entry, &schema, slot, || now_ms)? else { return Ok(None) };
            let value = asked.field.map_or(Ok(Value::Null), |field| row.get(field))?;
            Ok(Some(value.to_owned()))
        })
    }

    /// Memory of the index for all new keys, so that publishing does not stop half-way: gc takes some meanwhile. Tombstones
    /// have none of it, for they can do without.
    fn reserve_index(
        &self,
        parts: &[Part<'_>],
        guard: &Guard<'_>,
    ) -> std::result::Result<IndexReservation<'_>, IndexFull> {
        let new = |part: &&Part<'_>| part.found.is_sealed || !is_row(part.old);
        let of_tables = parts.chunk_by(|one, next| std::ptr::eq(one.table, next.table));
        let bytes = of_tables.map(|parts| {
            let lens = parts.iter().filter(new).map(|part| part.spec.key.len());
            parts[0].table.levels.bytes_for(lens, guard)
        });
        let is_deletion = |part: &Part<'_>| part.draft.kind == RecordKind::Tombstone;
        let budget = if parts.iter().filter(new).all(is_deletion) { Budget::Deletes } else { Budget::Writes };
        self.arena.reserve(bytes.fold(0, u64::saturating_add), budget)
    }

    /// What the writes put into the log, and the bodies that were made for it. The keys of a group are looked up together, so
    /// that their misses overlap; and where the row will be looked at, so are they.
    fn parts<'b>(
        &self,
        staged: &'b Staged,
        writes: &'b [StagedWrite],
        (view, now_ms): (&'b ReadView<'_>, u64),
    ) -> Result<(Vec<Part<'b>>, Vec<u8>)> {
        let (mut parts, mut made) = (Vec::with_capacity(writes.len()), Vec::new());
        for (table, of_one) in staged.by_table(writes) {
            let id = table.id_for_write().map_err(|error| staged.blame(&of_one[0], error))?;
            for group in of_one.chunks(GROUP) {
                let keys: SmallVec<[&[u8]; GROUP]> = group.iter().map(|write| staged.key(write)).collect();
                let mut found = [Located::default(); GROUP];
                table.levels.locate_to_publish(&keys, view.guard(), &mut found);
                for (write, found) in group.iter().zip(&found) {
                    if let Some(slot) = found.slot.filter(|&slot| self.looks_at_row(&write.op, slot)) {
                        prefetch_row(&self.log, &self.cache, slot);
                    }
                }
                // After the slots, so that it knows the version of every record that they lead to.
                let schema = table.schema.load();
                for ((write, found), key) in group.iter().zip(found).zip(keys) {
                    let old = found.slot.map(|slot| self.cache.log_slot(slot, view.guard()));
                    if let Some(chain) = old.filter(|&old| replaces_chain(&write.op, old)) {
                        check_at_hand(view.log(), &self.disk_waits, *chain)?;
                    }
                    let found_at = (view, found.slot, now_ms);
                    let part = self.part((table, &schema), (staged, write), found_at, &mut made);
                    let Some((draft, body)) = part.map_err(|error| staged.blame(write, error))? else {
                        continue;
                    };
                    let mut spec = draft.spec(id, key);
                    spec.flags |= FLAG_BATCHED;
                    let bytes = spec.record_bytes();
                    parts.push(Part { table, draft, spec, bytes, body, old, found });
                }
            }
        }
        Ok((parts, made))
    }

    /// Whether a write most likely needs more of the row than its slot.
    fn looks_at_row(&self, op: &Op, slot: Slot) -> bool {
        match op {
            Op::Update(..) => !self.takes_delta_unseen(slot, 0),
            Op::Expire(_) => true,
            Op::Put(..) | Op::Delete => false,
        }
    }

    /// Writes the frame and the records under one sequence, and publishes them one after the other. Where it is refused memory, which
    /// what is `reserved` is there against, it has stopped half-way.
    fn publish_batch(
        &self,
        reservation: Reservation<'_>,
        (parts, made): (&[Part<'_>], &[u8]),
        reserved: &IndexReservation<'_>,
        view: &ReadView<'_>,
    ) -> std::result::Result<u64, IndexFull> {
        let (sequence, mut records) = self.encode_batch(&reservation, (parts, made));
        if self.persists_in_place {
            let sealed = records.into_iter().zip(parts).map(|(record, part)| record.sealed(sequence, part));
            records = sealed.collect();
            let range = reservation.range();
            // PERSIST: all of it is durable before anyone can see some of it. A failure closes the log for writing.
            self.log.persist_range(range.start, range.end - range.start);
        }
        let mut replaced: Vec<Option<LogSlot>> = Vec::with_capacity(parts.len());
        for (part, record) in parts.iter().zip(records) {
            let offset = record.offset();
            replaced.push(self.publish_part(part, (record, sequence), reserved, view.guard())?);
            part.draft.record_expiry(&self.log, offset);
        }
        for (part, old) in parts.iter().zip(replaced) {
            part.table.expiry.replaced(old, part.draft.expires_over(old));
            self.count_replaced(&part.draft, old, view.log());
            let chain_max = self.options.delta_chain_max;
            let is_delta = part.draft.kind == RecordKind::Delta;
            if is_delta && old.is_some_and(|old| old.depth() + 1 == chain_max) {
                // Else the next update of the row would write all of it.
                self.merge_queue.filled(&part.table.id, part.spec.key, chain_max);
            }
        }
        Ok(sequence)
    }

    /// Publishes a record of a batch; returns what it replaced.
    fn publish_part(
        &self,
        part: &Part<'_>,
        (record, sequence): (PartRecord<'_>, u64),
        reserved: &IndexReservation<'_>,
        guard: &LogGuard<'_>,
    ) -> std::result::Result<Option<LogSlot>, IndexFull> {
        let Part { table, found, .. } = *part;
        let entry = IndexEntry::reserved((table, part.spec.key), found.at, reserved);
        let offset = record.offset();
        let hides = part.draft.kind == RecordKind::Tombstone && self.must_hide((table, part.spec.key), guard);
        let slot = |old| {
            let slot = part.draft.slot(offset, part.bytes, old);
            if hides { slot.with_hides_below(true) } else { slot }
        };
        match record {
            PartRecord::Encoded(record) => {
                let published = self.publish_record(entry, record, guard, |old| {
                    let seal = Seal { sequence, previous: old.map(RecordRef::from) };
                    Some((Published { slot: slot(old), seal }, old))
                });
                published.map(Option::flatten)
            }
            PartRecord::Sealed(_) => self.publish(entry, guard, |old| {
                // But for the older-version count, which is nothing to the log.
                let is_same = old.map(LogSlot::offset) == part.old.map(LogSlot::offset);
                debug_assert!(is_same, "it was moved");
                (Decision::Store(slot(old).into()), old)
            }),
        }
    }

    /// Writes a batch, all but the seals of its records; returns its sequence, and the records.
    fn encode_batch<'r>(
        &self,
        reservation: &'r Reservation<'_>,
        (parts, made): (&[Part<'_>], &[u8]),
    ) -> (u64, Vec<PartRecord<'r>>) {
        let bytes: usize = parts.iter().map(|part| part.bytes).sum();
        let fill = |body: &mut [u8]| body.copy_from_slice(&(bytes as u32).to_le_bytes());
        let frame = reservation.encode(&frame_spec(), fill);
        let sequence = self.log.take_sequence();
        frame.seal(sequence, None);
        let encode = |part: &Part<'_>| {
            let body = part.body.bytes(made);
            PartRecord::Encoded(reservation.encode(&part.spec, |out| out.copy_from_slice(body)))
        };
        (sequence, parts.iter().map(encode).collect())
    }

    /// What one write of a batch puts into the log; nothing for the deletion of what is not there. All appenders are locked, so the
    /// row in `slot` stays as it is (gc may move it, no more).
    fn part<'b>(
        &self,
        (table, schema): (&TableShared, &Arc<TableSchema>),
        (staged, write): (&'b Staged, &'b StagedWrite),
        (view, slot, now_ms): (&ReadView<'_>, Option<Slot>, u64),
        made: &mut Vec<u8>,
    ) -> Result<Option<(Draft, EncodedBody<'b>)>> {
        let log_slot = |slot| self.cache.log_slot(slot, view.guard());
        let (entry, from) = ((table, staged.key(write)), made.len());
        let draft = match &write.op {
            Op::Delete => {
                self.counters.add(Count::Delete);
                if !is_row(slot) && (slot.is_some() || !self.may_be_below(table, entry.1)) {
                    return Ok(None);
                }
                Draft::tombstone()
            }
            Op::Put(fields, expires_at_ms) => {
                self.counters.add(Count::Put);
                if let Some(body) = staged.body(write, fields, schema) {
                    let draft = self.row_draft(schema, *expires_at_ms, body.len(), false);
                    return Ok(Some((draft, EncodedBody::Staged(body))));
                }
                self.put_given(
                    schema,
                    (staged, &staged.fields(write, fields)),
                    (*expires_at_ms, now_ms),
                    made,
                )?
            }
            Op::Update(fields, expiry) => {
                self.counters.add(Count::Update);
                let body = staged.body(write, fields, schema);
                let unseen = |bytes| match (slot.map(log_slot), *expiry == RowExpiry::Keep) {
                    (Some(old), true) if self.takes_delta_unseen(*old, bytes) => {
                        Some(delta_draft(schema, None, bytes))
                    }
                    (None, true) if self.takes_blind_delta(entry, bytes) => Some(blind_draft(schema, bytes)),
                    _ => None,
                };
                match body {
                    Some(body) if let Some(draft) = unseen(body.len()) => {
                        return Ok(Some((draft, EncodedBody::Staged(body))));
                    }
                    Some(body) => made.extend_from_slice(body),
                    None => encode_delta(schema, (staged, &staged.fields(write, fields)), made)?,
                }
                if body.is_none()
                    && let Some(draft) = unseen(made.len() - from)
                {
                    draft
                } else {
                    let row = view.row_as_of(entry, schema, slot, || now_ms)?;
                    self.with_delta(schema, (slot.map(log_slot), row, now_ms), (made, from), *expiry)?
                }
            }
            Op::Expire(at_ms) => {
                self.counters.add(Count::Update);
                let Some(row) = view.row_as_of(entry, schema, slot, || now_ms)? else { return Ok(None) };
                let expiry = RowExpiry::SetOfOld(*at_ms);
                made.extend(EMPTY_DELTA);
                self.with_delta(schema, (slot.map(log_slot), Some(row), now_ms), (made, from), expiry)?
            }
        };
        Ok(Some((draft, EncodedBody::Made(from..made.len()))))
    }

    /// Makes a row of fields that were given one by one.
    fn put_given(
        &self,
        schema: &Arc<TableSchema>,
        (staged, fields): (&Staged, &[FieldWrite]),
        (expires_at_ms, now_ms): (Option<u64>, u64),
        made: &mut Vec<u8>,
    ) -> Result<Draft> {
        if fields.iter().any(|field| field.expires_at_ms.is_some()) {
            // Such a row is what the fields make as a delta over no row at all.
            let from = made.len();
            encode_delta(schema, (staged, fields), made)?;
            return self.with_delta(
                schema,
                (None, None, now_ms),
                (made, from),
                RowExpiry::Set(expires_at_ms),
            );
        }
        let fields = staged.resolved(schema, fields)?;
        let plan = RowPlan::new(schema, &fields).map_err(Error::from)?;
        plan.encode(appended(made, plan.body_bytes()));
        Ok(self.row_draft(schema, expires_at_ms, plan.body_bytes(), false))
    }

    /// What puts the delta at the end of `bodies`, from `from` on, over a row: itself, or where there is no row or the chain is
    /// full, the whole row that results, which takes its place.
    fn with_delta(
        &self,
        schema: &Arc<TableSchema>,
        (slot, row, now_ms): (Option<LogSlot>, Option<RowRef<'_>>, u64),
        (bodies, from): (&mut Vec<u8>, usize),
        expiry: RowExpiry,
    ) -> Result<Draft> {
        let bytes = bodies.len() - from;
        if self.takes_delta(slot, row.as_ref(), expiry, bytes)? {
            return Ok(delta_draft(schema, delta_expiry(expiry), bytes));
        }
        let delta = bodies.split_off(from);
        if let (Some(slot), Some(row)) = (slot, &row)
            && self.folds(slot, expiry)
        {
            let fold = folded(schema, row.chain(), Some(&delta), now_ms)?;
            if fold.body_bytes() <= UNSEEN_BYTES {
                fold.encode(appended(bodies, fold.body_bytes()));
                return Ok(blind_draft(schema, fold.body_bytes()));
            }
        }
        let schema: &Arc<TableSchema> = match &row {
            Some(row) => row.table_schema(),
            None => schema,
        };
        let of_row = Bodies::new(schema, row.as_ref().map(|row| row.chain()), Some(&delta))?;
        let changed = of_row.merge(schema, now_ms)?;
        let old = row.as_ref().map(|row| OldRow { expires_at_ms: row.expires_at_ms() });
        let draft = self.changed_row_draft(schema, &changed, old, expiry)?;
        changed.encode(appended(bodies, changed.body_bytes()));
        Ok(draft)
    }
}

enum Attempt {
    /// Its sequence, and the bytes it wrote.
    Done(u64, usize),
    NoSpace(usize, NoSpace),
    /// Rows in sorted tables are to be seen first, those of these keys among them.
    Unseen(Vec<SstKey>),
}

/// Whether a write goes over deltas without looking at them: to count their records as obsolete they are walked.
fn replaces_chain(op: &Op, old: LogSlot) -> bool {
    matches!(op, Op::Put(..) | Op::Delete) && matches!(old.tag(), Tag::Delta | Tag::Blind)
}

fn frame_spec() -> RecordSpec<'static> {
    RecordSpec {
        kind: RecordKind::Batch,
        flags: FLAG_BATCHED,
        table: 0,
        schema_version: 0,
        key: &[0],
        expires_at_ms: None,
        body_bytes: 4,
    }
}

/// `bytes` more at the end of `bodies`.
fn appended(bodies: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    let from = bodies.len();
    bodies.resize(from + bytes, 0);
    &mut bodies[from..]
}

/// Appends the body of a delta that sets these fields.
fn encode_delta(
    schema: &TableSchema,
    (staged, fields): (&Staged, &[FieldWrite]),
    bodies: &mut Vec<u8>,
) -> Result<()> {
    let expiries: SmallVec<[Option<u64>; GROUP]> = fields.iter().map(|field| field.expires_at_ms).collect();
    let fields = staged.resolved(schema, fields)?;
    let plan = DeltaPlan::new(schema, &fields, FieldExpiries::Each(&expiries)).map_err(Error::from)?;
    plan.encode(appended(bodies, plan.body_bytes()));
    Ok(())
}

#[cfg(test)]
mod index_full;
#[cfg(test)]
mod tests;
