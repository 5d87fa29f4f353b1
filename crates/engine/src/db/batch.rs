//! `Batch`: writes that happen together or not at all.
//!
//! All writers' lanes are locked while a batch is published, so that nobody takes a sequence between its parts: they share
//! one. Its records lie in one frame (`log/format.rs`), which counts only if it is whole. A snapshot, which waits for the
//! lanes, sees all of a batch or nothing; a reader without one may see its first rows before its last.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Table;
use super::metrics::Count;
use super::read::{Bodies, GROUP, RowRef};
use super::store::{Store, TableShared, index_full, index_full_error};
use super::write::{Draft, EMPTY_DELTA, check_key, delta_draft, is_row, past_zero};
use crate::index::{Decision, Guard, LeafPosition, Located, Slot};
use crate::log::format::{END_BYTES, FLAG_BATCHED, RecordKind, RecordSpec};
use crate::log::segment::{Claim, SegmentKind};
use crate::log::{Lane, NoSpace, Reservation};
use crate::schema::body::is_past;
use crate::schema::plan::{DeltaPlan, FieldExpiries, RowPlan};
use crate::schema::table::TableSchema;
use crate::schema::unknown_field;
use crate::{Error, ErrorKind, FieldId, FieldName, Result, Value};

/// With no more fields a write takes no memory of its own while it is encoded.
const INLINE_FIELDS: usize = 12;

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
    /// The key, and behind it what its values hold in bytes.
    bytes: Vec<u8>,
    key_bytes: usize,
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
    value: Held,
    /// When the field expires on its own, if it does.
    expires_at_ms: Option<u64>,
}

impl FieldWrite {
    /// The field's name, if it was given by name.
    fn text(&self) -> Option<&str> {
        match &self.name {
            Name::Text(text) => Some(text),
            Name::Id(_) => None,
        }
    }
}

/// The expiry that an update of some fields gives the row by the way, folded out of two writes.
#[derive(Debug, Clone, Copy)]
struct NewExpiry {
    /// `None` takes it away.
    at_ms: Option<u64>,
    /// Whether a row that the update makes has it too: the expiry came after it.
    of_new_row: bool,
}

/// A field's value; what it has of bytes is in those of the write.
#[derive(Debug, Clone)]
enum Held {
    Plain(Value<'static>),
    Bytes(Range<usize>),
    Str(Range<usize>),
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
        self.add_bytes(table, key.len(), key.to_vec(), op);
    }

    /// Adds a write to the key that `bytes` begin with.
    fn add_bytes(&mut self, table: &Table, key_bytes: usize, bytes: Vec<u8>, op: Op) {
        self.belongs(table);
        self.writes.push(Write { table: Arc::clone(table.shared()), bytes, key_bytes, op });
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
        let (bytes, fields) = owned(table, key, fields, None)?;
        self.add_bytes(table, key.len(), bytes, Op::Put(fields, None));
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
        let (bytes, fields) = owned(table, key, fields, None)?;
        self.add_bytes(table, key.len(), bytes, Op::Put(fields, Some(expires_at_ms)));
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
        let (bytes, fields) = owned(table, key, fields, None)?;
        self.add_bytes(table, key.len(), bytes, Op::Update(fields, None));
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
        let (bytes, fields) = owned(table, key, fields, Some(at_ms))?;
        self.add_bytes(table, key.len(), bytes, Op::Update(fields, None));
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

/// The bytes of a write's key and values, all in one piece, and its fields.
fn owned<F: FieldName>(
    table: &Table,
    key: &[u8],
    fields: &[(F, Value<'_>)],
    expires_at_ms: Option<u64>,
) -> Result<(Vec<u8>, Vec<FieldWrite>)> {
    let of_values: usize = fields.iter().map(|(_, value)| bytes_of(value).len()).sum();
    let mut bytes = Vec::with_capacity(key.len() + of_values);
    bytes.extend_from_slice(key);
    let mut own = Vec::with_capacity(fields.len());
    for &(field, value) in fields {
        let name = match field.name() {
            Some(name) => Name::Text(name.into()),
            None => Name::Id(table.field_id(field)?),
        };
        own.push(FieldWrite { name, value: Held::new(value, &mut bytes), expires_at_ms });
    }
    Ok((bytes, own))
}

fn bytes_of<'v>(value: &Value<'v>) -> &'v [u8] {
    match *value {
        Value::Bytes(bytes) => bytes,
        Value::Str(text) => text.as_bytes(),
        _ => &[],
    }
}

impl Held {
    /// Puts a value's bytes behind `bytes`.
    fn new(value: Value<'_>, bytes: &mut Vec<u8>) -> Held {
        let from = bytes.len();
        bytes.extend_from_slice(bytes_of(&value));
        match value {
            Value::Bytes(_) => Held::Bytes(from..bytes.len()),
            Value::Str(_) => Held::Str(from..bytes.len()),
            Value::Null => Held::Plain(Value::Null),
            Value::Bool(b) => Held::Plain(Value::Bool(b)),
            Value::Int(n) => Held::Plain(Value::Int(n)),
            Value::UInt(n) => Held::Plain(Value::UInt(n)),
            Value::Float(x) => Held::Plain(Value::Float(x)),
            Value::Timestamp(n) => Held::Plain(Value::Timestamp(n)),
        }
    }

    fn value<'b>(&self, bytes: &'b [u8]) -> Value<'b> {
        match self {
            Held::Plain(value) => *value,
            Held::Bytes(range) => Value::Bytes(&bytes[range.clone()]),
            Held::Str(range) => {
                Value::Str(std::str::from_utf8(&bytes[range.clone()]).expect("taken from a string"))
            }
        }
    }

    /// Where it is once its write's bytes were put behind others.
    fn shift(&mut self, by: usize) {
        if let Held::Bytes(range) | Held::Str(range) = self {
            *range = range.start + by..range.end + by;
        }
    }
}

impl Write {
    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_bytes]
    }

    /// Folds a later write of the same row into this.
    fn then(&mut self, mut later: Write) {
        let by = self.bytes.len() - later.key_bytes;
        self.bytes.extend_from_slice(&later.bytes[later.key_bytes..]);
        if let Op::Put(fields, _) | Op::Update(fields, _) = &mut later.op {
            fields.iter_mut().for_each(|field| field.value.shift(by));
        }
        self.op.then(later.op);
    }
}

/// A record of the batch.
struct Part<'b> {
    write: &'b Write,
    draft: Draft,
    /// Its place among the encoded bodies.
    body: Range<usize>,
    /// What it goes over, a home slot. While all lanes are locked a row stays one, though the collector may move it.
    old: Option<Slot>,
    /// Where in the index it is.
    at: Option<LeafPosition<'b>>,
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
            let named = || fields.iter().filter_map(FieldWrite::text);
            if named().next().is_none() {
                continue;
            }
            let schema = write.table.schema.load();
            if schema.fields().is_open()
                && named().any(|name| FieldName::find(name, schema.fields()).is_none())
            {
                let names: Vec<&str> = named().collect();
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
        // Until all is published: the index need not be searched again.
        let guard = self.pin();
        let (mut parts, mut bodies) = (Vec::with_capacity(batch.writes.len()), Vec::new());
        self.each_located(&batch.writes, &guard, |write, found| {
            write.table.id_for_write()?;
            parts.extend(self.part(write, found, &mut bodies)?);
            Ok(())
        })?;
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
        if !self.arena.has_room(new().count(), new().map(|part| part.write.key_bytes).sum()) {
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
        let sequence = self.publish_batch(&mut lanes[0], reservation, (&parts, &bodies), &specs, &guard)?;
        Ok(Attempt::Done(sequence, bytes))
    }

    /// Calls `visit` with the writes and where in the index their rows are. Those of a group are looked up together, so that
    /// their misses overlap; and where the row will be looked at, so are they.
    fn each_located<'b>(
        &self,
        writes: &'b [Write],
        guard: &'b Guard<'_>,
        mut visit: impl FnMut(&'b Write, Located<'b>) -> Result<()>,
    ) -> Result<()> {
        for of_one in writes.chunk_by(|one, next| Arc::ptr_eq(&one.table, &next.table)) {
            for group in of_one.chunks(GROUP) {
                let keys: SmallVec<[&[u8]; GROUP]> = group.iter().map(Write::key).collect();
                let mut found = [Located::default(); GROUP];
                group[0].table.index.multi_locate(&keys, guard, &mut found);
                for (write, found) in group.iter().zip(found) {
                    if let Some(slot) = found.slot.filter(|&slot| self.looks_at_row(&write.op, slot)) {
                        self.prefetch(slot);
                    }
                }
                group.iter().zip(found).try_for_each(|(write, found)| visit(write, found))?;
            }
        }
        Ok(())
    }

    /// Whether a write most likely needs more of the row than its slot.
    fn looks_at_row(&self, op: &Op, slot: Slot) -> bool {
        match op {
            Op::Update(..) => !self.takes_delta_unseen(slot, 0),
            Op::Expire(_) => true,
            Op::Put(..) | Op::Delete => false,
        }
    }

    /// Writes the frame and the records under one sequence, and publishes them one after the other.
    fn publish_batch(
        &self,
        lane: &mut Lane,
        reservation: Reservation,
        (parts, bodies): (&[Part<'_>], &[u8]),
        specs: &[RecordSpec<'_>],
        guard: &Guard<'_>,
    ) -> Result<u64> {
        let Reservation { offset: start, incarnation, .. } = reservation;
        let sequence = self.write_frame_and_records(&reservation, (parts, bodies), specs);
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
        let mut replaced: Vec<Option<Slot>> = Vec::with_capacity(parts.len());
        let mut offset = first;
        for (part, spec) in parts.iter().zip(specs) {
            let bytes = spec.record_bytes();
            let place = (part.write.key(), part.at);
            let old = self.publish_at(&part.write.table, place, guard, |old| {
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
            let chain_max = self.options.delta_chain_max;
            let is_delta = part.draft.kind == RecordKind::Delta;
            if is_delta && old.is_some_and(|old| old.depth() + 1 == chain_max) {
                // Else the next update of the row would write all of it.
                self.merging.filled(&part.write.table, part.write.key(), chain_max);
            }
        }
        Ok(sequence)
    }

    /// Writes a batch, all but the seals of its records; returns its sequence.
    fn write_frame_and_records(
        &self,
        reservation: &Reservation,
        (parts, bodies): (&[Part<'_>], &[u8]),
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
            frame
                .encode(out, reservation.seed_at(start), |body| body.copy_from_slice(&records.to_le_bytes()));
        });
        let sequence = self.log.take_sequence();
        self.seal_with(&frame, start, incarnation, sequence, None);
        let mut offset = start + frame.record_bytes() as u64;
        for (part, spec) in parts.iter().zip(specs) {
            let bytes = spec.record_bytes();
            tier.write(offset, with_end(offset, bytes), |out| {
                spec.encode(out, reservation.seed_at(offset), |body| {
                    body.copy_from_slice(&bodies[part.body.clone()])
                });
            });
            offset += bytes as u64;
        }
        sequence
    }

    /// What one write of a batch puts into the log, its body at the end of `bodies`; nothing for the deletion of what is not
    /// there. All lanes are locked, so the row stays as it is (the collector may move it, no more).
    fn part<'b>(
        &self,
        write: &'b Write,
        Located { slot, at }: Located<'b>,
        bodies: &mut Vec<u8>,
    ) -> Result<Option<Part<'b>>> {
        let schema = write.table.schema.load();
        let old = slot.map(|slot| self.home(slot));
        let from = bodies.len();
        let draft = match &write.op {
            Op::Delete => {
                self.counters.add(Count::Delete);
                if !is_row(slot) {
                    return Ok(None);
                }
                Draft::tombstone()
            }
            Op::Put(fields, at_ms) if fields.iter().any(|field| field.expires_at_ms.is_some()) => {
                self.counters.add(Count::Put);
                // Such a row is what the fields make as a delta over no row at all.
                encode_delta(&schema, write, fields, bodies)?;
                let expiry = Some(NewExpiry { at_ms: *at_ms, of_new_row: true });
                self.with_delta(&schema, (None, None), (bodies, from), expiry)?
            }
            Op::Put(fields, expires_at_ms) => {
                self.counters.add(Count::Put);
                let fields = resolved(&schema, write, fields)?;
                let plan = RowPlan::new(&schema, &fields).map_err(Error::from)?;
                plan.encode(appended(bodies, plan.body_bytes()));
                self.row_draft(&schema, *expires_at_ms, plan.body_bytes(), false)
            }
            Op::Update(fields, expiry) => {
                self.counters.add(Count::Update);
                encode_delta(&schema, write, fields, bodies)?;
                let bytes = bodies.len() - from;
                if expiry.is_none() && old.is_some_and(|old| self.takes_delta_unseen(old, bytes)) {
                    delta_draft(&schema, None, bytes)
                } else {
                    let row = self.row_at(&schema, slot)?;
                    self.with_delta(&schema, (slot, row), (bodies, from), *expiry)?
                }
            }
            Op::Expire(at_ms) => {
                self.counters.add(Count::Update);
                let Some(row) = self.row_at(&schema, slot)? else { return Ok(None) };
                let expiry = Some(NewExpiry { at_ms: *at_ms, of_new_row: false });
                bodies.extend(EMPTY_DELTA);
                self.with_delta(&schema, (slot, Some(row)), (bodies, from), expiry)?
            }
        };
        Ok(Some(Part { write, draft, body: from..bodies.len(), old, at }))
    }

    /// What puts the delta at the end of `bodies`, from `from` on, over a row: itself, or where there is no row or the chain is
    /// full, the whole row that results, which takes its place.
    fn with_delta(
        &self,
        schema: &Arc<TableSchema>,
        (slot, row): (Option<Slot>, Option<RowRef<'_>>),
        (bodies, from): (&mut Vec<u8>, usize),
        expiry: Option<NewExpiry>,
    ) -> Result<Draft> {
        let bytes = bodies.len() - from;
        if self.takes_delta(slot.map(|slot| self.home(slot)), row.as_ref(), bytes)? {
            // In a delta's header 0 takes the row's expiry away.
            let expires_at_ms = expiry.map(|expiry| expiry.at_ms.map_or(0, past_zero));
            return Ok(delta_draft(schema, expires_at_ms, bytes));
        }
        let delta = bodies.split_off(from);
        let of_row = Bodies::new(schema, row.as_ref().map(|row| row.chain()), Some(&delta))?;
        let merged = of_row.merge(schema, self.clock.now_ms())?;
        merged.check_length()?;
        let expires_at_ms = match (expiry, &row) {
            (Some(expiry), row) if row.is_some() || expiry.of_new_row => expiry.at_ms,
            (_, row) => row.as_ref().and_then(|row| row.expires_at_ms()),
        };
        merged.encode(appended(bodies, merged.body_bytes()));
        Ok(self.row_draft(schema, expires_at_ms, merged.body_bytes(), merged.has_field_expiry()))
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
            self.draft.spec(self.write.table.id.load(std::sync::atomic::Ordering::Acquire), self.write.key());
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

/// `bytes` more at the end of `bodies`.
fn appended(bodies: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    let from = bodies.len();
    bodies.resize(from + bytes, 0);
    &mut bodies[from..]
}

/// Appends the body of a delta that sets these fields.
fn encode_delta(
    schema: &TableSchema,
    write: &Write,
    fields: &[FieldWrite],
    bodies: &mut Vec<u8>,
) -> Result<()> {
    let expiries: SmallVec<[Option<u64>; INLINE_FIELDS]> =
        fields.iter().map(|field| field.expires_at_ms).collect();
    let fields = resolved(schema, write, fields)?;
    let plan = DeltaPlan::new(schema, &fields, FieldExpiries::Each(&expiries)).map_err(Error::from)?;
    plan.encode(appended(bodies, plan.body_bytes()));
    Ok(())
}

/// Whether no two writes are to the same row, as far as the hashes of their keys tell.
fn are_distinct(writes: &[Write]) -> bool {
    // Keys that were chosen to collide are compared, and no worse off than others that are the same.
    let state = BuildHasherDefault::<DefaultHasher>::default();
    let hash = |write: &Write| state.hash_one((Arc::as_ptr(&write.table) as usize, write.key()));
    let mut hashes: Vec<u64> = writes.iter().map(hash).collect();
    hashes.sort_unstable();
    hashes.windows(2).all(|two| two[0] != two[1])
}

/// One write for each row: later writes folded into earlier ones, as of `now_ms`.
fn folded(writes: Vec<Write>, now_ms: u64) -> Vec<Write> {
    if are_distinct(&writes) {
        return writes;
    }
    let mut at: HashMap<(usize, Box<[u8]>), usize> = HashMap::with_capacity(writes.len());
    let mut folded: Vec<Write> = Vec::with_capacity(writes.len());
    for write in writes {
        let place = (Arc::as_ptr(&write.table) as usize, Box::from(write.key()));
        match at.get(&place) {
            None => {
                at.insert(place, folded.len());
                folded.push(write);
            }
            Some(&i) => {
                folded[i].op.lapse(now_ms);
                folded[i].then(write);
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

type Resolved<'f> = SmallVec<[(FieldId, Value<'f>); INLINE_FIELDS]>;

/// `fields`, those of `write`, by their ids, in the order they were given. Their names have been learned.
fn resolved<'f>(schema: &TableSchema, write: &'f Write, fields: &'f [FieldWrite]) -> Result<Resolved<'f>> {
    let mut resolved = Resolved::with_capacity(fields.len());
    for FieldWrite { name, value, .. } in fields {
        let id = match name {
            Name::Id(id) => *id,
            Name::Text(text) => {
                let found = FieldName::find(&**text, schema.fields());
                let position = found.ok_or_else(|| unknown_field(&**text))?;
                schema.fields().fields()[position].id()
            }
        };
        resolved.push((id, value.value(&write.bytes)));
    }
    Ok(resolved)
}

#[cfg(test)]
mod tests;
