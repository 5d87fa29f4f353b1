//! `Batch`: writes that happen together or not at all.
//!
//! All writers' lanes are locked while a batch is published, so that nobody takes a sequence between its parts: they share
//! one. Its records lie in one frame (`log/format.rs`), which counts only if it is whole. A snapshot, which waits for the
//! lanes, sees all of a batch or nothing; a reader without one may see its first rows before its last.

use std::collections::HashMap;
use std::sync::Arc;

use super::Table;
use super::metrics::Count;
use super::read::{Bodies, RowRef};
use super::store::{Store, TableShared, index_full, index_full_error};
use super::write::{Draft, EMPTY_DELTA, check_key, delta_draft, is_row, past_zero};
use crate::index::{Decision, Slot};
use crate::log::format::{END_BYTES, FLAG_BATCHED, RecordKind, RecordSpec};
use crate::log::segment::{Claim, SegmentKind};
use crate::log::{Lane, NoSpace, Reservation};
use crate::schema::body::is_past;
use crate::schema::plan::{DeltaPlan, FieldExpiries, RowPlan};
use crate::schema::table::TableSchema;
use crate::schema::unknown_field;
use crate::{Error, ErrorKind, FieldId, FieldName, OwnedValue, Result, Value};

/// Bytes of one batch's records, at most.
const BATCH_BYTES_MAX: usize = 256 << 20;

/// Writes to any rows of any tables of one store, to be written together by [`Db::write`](crate::Db::write).
///
/// Later writes of a batch go over earlier ones. Readers with a [`Snapshot`](crate::Snapshot), and what is left after a
/// crash, hold all of it or nothing.
#[derive(Default, Clone)]
pub struct Batch {
    writes: Vec<Write>,
    required: Vec<Required>,
    store: Option<Arc<Store>>,
    /// It was given tables of different stores.
    mixed: bool,
}

/// A row's table and key, and the version it must have.
type Required = (Arc<TableShared>, Box<[u8]>, Option<u64>);

#[derive(Clone)]
struct Write {
    table: Arc<TableShared>,
    key: Box<[u8]>,
    op: Op,
}

#[derive(Clone)]
enum Op {
    Put(Vec<FieldWrite>, Option<u64>),
    Update(Vec<FieldWrite>, Option<NewExpiry>),
    Expire(Option<u64>),
    Delete,
}

/// What a field is given.
#[derive(Clone)]
struct FieldWrite {
    name: Name,
    value: OwnedValue,
    /// When the field expires on its own, if it does.
    expires_at_ms: Option<u64>,
}

/// The expiry that an update of some fields gives the row by the way, folded out of two writes.
#[derive(Debug, Clone, Copy)]
struct NewExpiry {
    /// `None` takes it away.
    at_ms: Option<u64>,
    /// Whether a row that the update makes has it too: the expiry came after it.
    of_new_row: bool,
}

/// A field's name, owned.
#[derive(Debug, Clone)]
enum Name {
    Id(FieldId),
    Text(Box<str>),
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    fn add(&mut self, table: &Table, key: &[u8], op: Op) {
        self.belongs(table);
        self.writes.push(Write { table: Arc::clone(table.shared()), key: key.into(), op });
    }

    fn belongs(&mut self, table: &Table) {
        match &self.store {
            Some(store) => self.mixed |= !Arc::ptr_eq(store, table.store()),
            None => self.store = Some(Arc::clone(table.store())),
        }
    }

    /// Adds a [`Table::put`].
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn put<F: FieldName>(&mut self, table: &Table, key: &[u8], fields: &[(F, Value<'_>)]) -> Result<()> {
        check_key(key)?;
        self.add(table, key, Op::Put(owned(table, fields, None)?, None));
        Ok(())
    }

    /// Adds a [`Table::put_expiring`].
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn put_expiring<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        fields: &[(F, Value<'_>)],
        expires_at_ms: u64,
    ) -> Result<()> {
        check_key(key)?;
        self.add(table, key, Op::Put(owned(table, fields, None)?, Some(expires_at_ms)));
        Ok(())
    }

    /// Adds a [`Table::update`].
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn update<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        fields: &[(F, Value<'_>)],
    ) -> Result<()> {
        check_key(key)?;
        self.add(table, key, Op::Update(owned(table, fields, None)?, None));
        Ok(())
    }

    /// Adds a [`Table::update_expiring`]: these fields, and the time, in ms since 1970, when they expire.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn update_expiring<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        fields: &[(F, Value<'_>)],
        at_ms: u64,
    ) -> Result<()> {
        check_key(key)?;
        self.add(table, key, Op::Update(owned(table, fields, Some(at_ms))?, None));
        Ok(())
    }

    /// Adds a [`Table::expire`]: the row's expiry (ms since 1970) is set or taken away, its fields stay. Does nothing if
    /// there is no row by then.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn set_expiry(&mut self, table: &Table, key: &[u8], at_ms: Option<u64>) -> Result<()> {
        check_key(key)?;
        self.add(table, key, Op::Expire(at_ms));
        Ok(())
    }

    /// Adds a [`Table::delete`].
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn delete(&mut self, table: &Table, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.add(table, key, Op::Delete);
        Ok(())
    }

    /// Lets the batch fail with `Conflict`, nothing written, unless the row's [`version`](Table::version) is still this one.
    ///
    /// # Errors
    /// `Invalid` for a bad key.
    pub fn require_version(&mut self, table: &Table, key: &[u8], version: Option<u64>) -> Result<()> {
        check_key(key)?;
        self.belongs(table);
        self.required.push((Arc::clone(table.shared()), key.into(), version));
        Ok(())
    }

    /// Writes in the batch.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

fn owned<F: FieldName>(
    table: &Table,
    fields: &[(F, Value<'_>)],
    expires_at_ms: Option<u64>,
) -> Result<Vec<FieldWrite>> {
    let own = |&(field, value): &(F, Value<'_>)| {
        let name = match field.name() {
            Some(name) => Name::Text(name.into()),
            None => Name::Id(table.field_id(field)?),
        };
        Ok(FieldWrite { name, value: value.to_owned(), expires_at_ms })
    };
    fields.iter().map(own).collect()
}

/// A record of the batch, its body encoded.
struct Part<'b> {
    write: &'b Write,
    draft: Draft,
    body: Vec<u8>,
    /// What it goes over, a home slot. While all lanes are locked a row stays one, though the collector may move it.
    old: Option<Slot>,
}

impl Store {
    /// Writes a batch.
    pub(super) fn write_batch(self: &Arc<Self>, mut batch: Batch) -> Result<()> {
        if batch.mixed || batch.store.as_ref().is_some_and(|store| !Arc::ptr_eq(store, self)) {
            return Err(Error::invalid("a batch writes to tables of one store, the one it is given to"));
        }
        batch.writes = folded(std::mem::take(&mut batch.writes), self.clock.now_ms());
        self.learn_names(&batch.writes)?;
        let mut waits = 0;
        loop {
            match self.try_batch(&batch)? {
                Attempt::Done(sequence, bytes) => {
                    self.make_durable(sequence)?;
                    self.pay(bytes);
                    return Ok(());
                }
                Attempt::NoSpace(bytes, no_space) => self.wait_for_space(bytes, no_space, &mut waits)?,
            }
        }
    }

    fn learn_names(&self, writes: &[Write]) -> Result<()> {
        for write in writes {
            let (Op::Put(fields, _) | Op::Update(fields, _)) = &write.op else { continue };
            let names: Vec<&str> = fields
                .iter()
                .filter_map(|field| match &field.name {
                    Name::Text(text) => Some(&**text),
                    Name::Id(_) => None,
                })
                .collect();
            let schema = write.table.schema.load();
            if schema.fields().is_open() && names.iter().any(|n| n.find(schema.fields()).is_none()) {
                self.evolve(&write.table, |schema| schema.with_learned(&names))?;
            }
        }
        Ok(())
    }

    fn try_batch(&self, batch: &Batch) -> Result<Attempt> {
        let mut lanes = self.log.all_lanes();
        // What is sealed before it is published must not be moved in between.
        let _unmoved = self.persists_in_place().then(|| self.log.collector_lane());
        for (table, key, version) in &batch.required {
            let now = self.read(table, key, None, None, |row| Ok(row.version()))?;
            if now != *version {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!("the row {} has changed", key.escape_ascii()),
                ));
            }
        }
        let mut parts = Vec::with_capacity(batch.writes.len());
        for write in &batch.writes {
            write.table.id_for_write()?;
            parts.extend(self.part(write)?);
        }
        if parts.is_empty() {
            return Ok(Attempt::Done(0, 0));
        }
        let specs: Vec<RecordSpec<'_>> = parts.iter().map(Part::spec).collect();
        let records: usize = specs.iter().map(RecordSpec::record_bytes).sum();
        if records > BATCH_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the batch takes {records} bytes; the limit is {BATCH_BYTES_MAX}"
            )));
        }
        let frame = frame_spec();
        let bytes = frame.record_bytes() + records;
        // Publishing cannot stop half-way, so there must be room in the index for all new keys, whatever splits they cause.
        let new = || parts.iter().filter(|part| !is_row(part.old));
        if !self.arena.has_room(new().count(), new().map(|part| part.write.key.len()).sum()) {
            return Ok(Attempt::NoSpace(bytes, NoSpace::Failed(index_full_error())));
        }
        let is_deletion = |part: &Part<'_>| part.draft.kind == RecordKind::Tombstone;
        let claim = match parts.iter().all(is_deletion) {
            true => Claim::Delete,
            false if parts.iter().all(|part| is_row(part.old)) => Claim::Overwrite,
            false => Claim::Write,
        };
        let reservation = match lanes[0].reserve(&self.log, SegmentKind::Row, bytes, claim) {
            Ok(reservation) => reservation,
            Err(no_space) => return Ok(Attempt::NoSpace(bytes, no_space)),
        };
        let sequence = self.publish_batch(&mut lanes[0], reservation, &parts, &specs)?;
        Ok(Attempt::Done(sequence, bytes))
    }

    /// Writes the frame and the records under one sequence, and publishes them one after the other.
    fn publish_batch(
        &self,
        lane: &mut Lane,
        reservation: Reservation,
        parts: &[Part<'_>],
        specs: &[RecordSpec<'_>],
    ) -> Result<u64> {
        let Reservation { offset: start, incarnation, .. } = reservation;
        let sequence = self.write_frame_and_records(&reservation, parts, specs);
        let first = start + frame_spec().record_bytes() as u64;
        let seal_ahead = self.persists_in_place();
        if seal_ahead {
            let mut offset = first;
            for (part, spec) in parts.iter().zip(specs) {
                self.seal_with(spec, offset, incarnation, sequence, part.old);
                offset += spec.record_bytes() as u64;
            }
            // PERSIST: all of it is durable before anyone can see some of it. A failure closes the log for writing.
            self.log.persist_range(start, reservation.bytes as u64);
        }
        let guard = self.pin();
        let mut replaced: Vec<Option<Slot>> = Vec::with_capacity(parts.len());
        let mut offset = first;
        for (part, spec) in parts.iter().zip(specs) {
            let bytes = spec.record_bytes();
            let old = self.publish(&part.write.table, &part.write.key, &guard, |old| {
                if seal_ahead {
                    // But for the count of stale records, which is nothing to the log.
                    debug_assert_eq!(old.map(Slot::offset), part.old.map(Slot::offset), "it was moved");
                } else {
                    self.seal_with(spec, offset, incarnation, sequence, old);
                }
                (Decision::Store(part.draft.slot(offset, bytes, old)), old)
            });
            replaced.push(old.map_err(index_full)?);
            part.draft.note_expiry(&self.log, offset);
            offset += bytes as u64;
        }
        lane.commit(reservation, sequence);
        let deltas = parts.iter().zip(specs).filter(|(part, _)| part.draft.kind == RecordKind::Delta);
        deltas.for_each(|(_, spec)| lane.count_delta(spec.record_bytes()));
        for (part, old) in parts.iter().zip(replaced) {
            part.write.table.expiry.replaced(old, part.draft.expires_over(old));
            self.count_replaced(part.draft.kind, old);
        }
        Ok(sequence)
    }

    /// Writes a batch, all but the seals of its records; returns its sequence.
    fn write_frame_and_records(
        &self,
        reservation: &Reservation,
        parts: &[Part<'_>],
        specs: &[RecordSpec<'_>],
    ) -> u64 {
        let Reservation { offset: start, incarnation, bytes, end_bytes, .. } = *reservation;
        let end = start + (bytes + end_bytes) as u64;
        // Each record is written with an end mark behind it, which the next one writes over.
        let with_end = |offset: u64, bytes: usize| (bytes + END_BYTES).min((end - offset) as usize);
        let tier = self.log.tier();
        let frame = frame_spec();
        let records = (bytes - frame.record_bytes()) as u32;
        tier.write(start, with_end(start, frame.record_bytes()), |out| {
            frame.encode(out, incarnation, |body| body.copy_from_slice(&records.to_le_bytes()));
        });
        let sequence = self.log.take_sequence();
        self.seal_with(&frame, start, incarnation, sequence, None);
        let mut offset = start + frame.record_bytes() as u64;
        for (part, spec) in parts.iter().zip(specs) {
            let bytes = spec.record_bytes();
            tier.write(offset, with_end(offset, bytes), |out| {
                spec.encode(out, incarnation, |body| body.copy_from_slice(&part.body));
            });
            offset += bytes as u64;
        }
        sequence
    }

    /// What one write of a batch puts into the log; nothing for the deletion of what is not there. All lanes are locked,
    /// so the row stays as it is (the collector may move it, no more).
    fn part<'b>(&self, write: &'b Write) -> Result<Option<Part<'b>>> {
        let guard = self.pin();
        let slot = write.table.index.find(&write.key, &guard);
        let schema = write.table.schema.load();
        let old = slot.map(|slot| self.home(slot));
        let part = |draft: Draft, body| Ok(Some(Part { write, draft, body, old }));
        match &write.op {
            Op::Delete => {
                self.counters.add(Count::Delete);
                if is_row(slot) { part(Draft::tombstone(), Vec::new()) } else { Ok(None) }
            }
            Op::Put(fields, at_ms) if fields.iter().any(|field| field.expires_at_ms.is_some()) => {
                self.counters.add(Count::Put);
                // Such a row is what the fields make as a delta over no row at all.
                let delta = encoded_delta(&schema, fields)?;
                let expiry = Some(NewExpiry { at_ms: *at_ms, of_new_row: true });
                let (draft, body) = self.with_delta(&schema, (None, None), delta, expiry)?;
                part(draft, body)
            }
            Op::Put(fields, expires_at_ms) => {
                self.counters.add(Count::Put);
                let fields = resolved(&schema, fields)?;
                let plan = RowPlan::new(&schema, &fields).map_err(Error::from)?;
                let draft = self.row_draft(&schema, *expires_at_ms, plan.body_bytes(), false);
                part(draft, encoded(plan.body_bytes(), |body| plan.encode(body)))
            }
            Op::Update(fields, expiry) => {
                self.counters.add(Count::Update);
                let delta = encoded_delta(&schema, fields)?;
                let (draft, body) =
                    self.with_delta(&schema, (slot, self.row_at(&schema, slot)?), delta, *expiry)?;
                part(draft, body)
            }
            Op::Expire(at_ms) => {
                self.counters.add(Count::Update);
                let Some(row) = self.row_at(&schema, slot)? else { return Ok(None) };
                let expiry = Some(NewExpiry { at_ms: *at_ms, of_new_row: false });
                let (draft, body) =
                    self.with_delta(&schema, (slot, Some(row)), EMPTY_DELTA.to_vec(), expiry)?;
                part(draft, body)
            }
        }
    }

    /// What puts `delta` over a row: itself, or where there is no row or the chain is full, the whole row that results.
    fn with_delta(
        &self,
        schema: &Arc<TableSchema>,
        (slot, row): (Option<Slot>, Option<RowRef<'_>>),
        delta: Vec<u8>,
        expiry: Option<NewExpiry>,
    ) -> Result<(Draft, Vec<u8>)> {
        if self.takes_delta(slot.map(|slot| self.home(slot)), row.as_ref(), delta.len())? {
            // In a delta's header 0 takes the row's expiry away.
            let expires_at_ms = expiry.map(|expiry| expiry.at_ms.map_or(0, past_zero));
            return Ok((delta_draft(schema, expires_at_ms, delta.len()), delta));
        }
        let bodies = Bodies::new(schema, row.as_ref().map(|row| row.chain()), Some(&delta))?;
        let merged = bodies.merge(schema, self.clock.now_ms())?;
        merged.check_length()?;
        let expires_at_ms = match (expiry, &row) {
            (Some(expiry), row) if row.is_some() || expiry.of_new_row => expiry.at_ms,
            (_, row) => row.as_ref().and_then(|row| row.expires_at_ms()),
        };
        let draft = self.row_draft(schema, expires_at_ms, merged.body_bytes(), merged.has_field_expiry());
        Ok((draft, encoded(merged.body_bytes(), |body| merged.encode(body))))
    }
}

enum Attempt {
    /// Its sequence, and the bytes it wrote.
    Done(u64, usize),
    NoSpace(usize, NoSpace),
}

impl Part<'_> {
    fn spec(&self) -> RecordSpec<'_> {
        let mut spec =
            self.draft.spec(self.write.table.id.load(std::sync::atomic::Ordering::Acquire), &self.write.key);
        spec.flags |= FLAG_BATCHED;
        spec
    }
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

fn encoded(bytes: usize, encode: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut body = vec![0; bytes];
    encode(&mut body);
    body
}

/// The body of a delta that sets these fields.
fn encoded_delta(schema: &TableSchema, fields: &[FieldWrite]) -> Result<Vec<u8>> {
    let expiries: Vec<Option<u64>> = fields.iter().map(|field| field.expires_at_ms).collect();
    let fields = resolved(schema, fields)?;
    let plan = DeltaPlan::new(schema, &fields, FieldExpiries::Each(&expiries)).map_err(Error::from)?;
    Ok(encoded(plan.body_bytes(), |body| plan.encode(body)))
}

/// One write for each row: later writes folded into earlier ones, as of `now_ms`.
fn folded(writes: Vec<Write>, now_ms: u64) -> Vec<Write> {
    let mut at: HashMap<(usize, Box<[u8]>), usize> = HashMap::with_capacity(writes.len());
    let mut folded: Vec<Write> = Vec::with_capacity(writes.len());
    for write in writes {
        let place = (Arc::as_ptr(&write.table) as usize, write.key.clone());
        match at.get(&place) {
            None => {
                at.insert(place, folded.len());
                folded.push(write);
            }
            Some(&i) => {
                folded[i].op.lapse(now_ms);
                folded[i].op.then(write.op);
            }
        }
    }
    folded
}

impl Op {
    /// What leaves a row that has expired leaves none to whatever comes after it.
    fn lapse(&mut self, now_ms: u64) {
        let at_ms = match self {
            Op::Put(_, at_ms) | Op::Expire(at_ms) => *at_ms,
            Op::Update(_, expiry) => expiry.and_then(|expiry| expiry.at_ms),
            Op::Delete => None,
        };
        if is_past(at_ms, now_ms) {
            *self = Op::Delete;
        }
    }

    fn then(&mut self, later: Op) {
        match (&mut *self, later) {
            (Op::Put(fields, _) | Op::Update(fields, _), Op::Update(more, _)) => fields.extend(more),
            (Op::Delete, Op::Update(fields, _)) => *self = Op::Put(fields, None),
            (Op::Expire(at_ms), Op::Update(fields, _)) => {
                *self = Op::Update(fields, Some(NewExpiry { at_ms: *at_ms, of_new_row: false }));
            }
            (Op::Put(_, expires_at_ms), Op::Expire(at_ms)) => *expires_at_ms = at_ms,
            (Op::Update(_, expiry), Op::Expire(at_ms)) => {
                *expiry = Some(NewExpiry { at_ms, of_new_row: true });
            }
            (Op::Delete, Op::Expire(_)) => {}
            (_, later) => *self = later,
        }
    }
}

/// The fields of a write by their ids, in the order they were given. Their names have been learned.
fn resolved<'f>(schema: &TableSchema, fields: &'f [FieldWrite]) -> Result<Vec<(FieldId, Value<'f>)>> {
    let resolve = |FieldWrite { name, value, .. }: &'f FieldWrite| {
        let id = match name {
            Name::Id(id) => *id,
            Name::Text(text) => {
                let found = FieldName::find(&**text, schema.fields());
                let position = found.ok_or_else(|| unknown_field(&**text))?;
                schema.fields().fields()[position].id()
            }
        };
        Ok((id, value.borrow()))
    };
    fields.iter().map(resolve).collect()
}
