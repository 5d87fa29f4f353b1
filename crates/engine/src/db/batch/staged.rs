//! What a batch holds of its writes until they are written.
//!
//! Owns the memory of keys and values, all in one piece, and what later writes of a row make of earlier ones. Promises: the
//! fields of a write are encoded as it is added, under the schema that its table had when the first of a run of writes to it was added,
//! and only if that is the schema still when the batch is written are those bytes taken; else the values are read out of them and encoded anew. Must not know: the log,
//! the index, what is in the store.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use hedgerow_row::row_expiry::RowExpiry;
use hedgerow_row::schema::body::{DeltaBody, DeltaEntry, RowBody, is_past};
use hedgerow_row::schema::names;
use hedgerow_row::schema::plan::{DeltaPlan, FieldExpiries, RowPlan};
use hedgerow_row::schema::table::TableSchema;
use hedgerow_row::schema::unknown_field;
use smallvec::SmallVec;

use crate::db::Table;
use crate::db::engine::TableShared;
use crate::{FieldId, FieldName, Result, Type, Value};

/// With no more fields a write takes no memory of its own while it is encoded.
const INLINE_FIELDS: usize = 12;

/// Places looked at for a hash before keys are compared instead: they may have been chosen to meet.
const PROBES_MAX: usize = 64;

/// Writes in the order they were added.
#[derive(Default, Clone)]
pub(super) struct Staged {
    pub(super) writes: Vec<StagedWrite>,
    /// Parts that depend on their rows, in the order they were added.
    pub(super) dependents: Vec<Dependent>,
    runs: Vec<TableRun>,
    /// Keys, bodies and values.
    bytes: Vec<u8>,
}

/// A part that depends on its row.
#[derive(Clone)]
pub(super) struct Dependent {
    pub(super) run: usize,
    pub(super) key: Span,
    /// How many writes were added before it.
    pub(super) writes_before: usize,
    pub(super) what: Dependence,
}

/// What it depends on, and what it comes to.
#[derive(Clone)]
pub(super) enum Dependence {
    /// The row has this version before the batch.
    Version(Option<u64>),
    /// There is a row; then these fields are written.
    Existing(Vec<FieldWrite>),
    /// The field holds a number; then it holds so much more.
    Sum(Name, i64),
    /// The field holds the first value; then it holds the second.
    Value(Name, StagedValue, StagedValue),
}

impl Dependence {
    /// Whether it writes something, and does not only require.
    pub(super) fn writes(&self) -> bool {
        !matches!(self, Dependence::Version(_))
    }
}

/// Writes one after the other to one table.
#[derive(Clone)]
pub(super) struct TableRun {
    pub(super) table: Arc<TableShared>,
    /// As it was when the first of them was added.
    schema: Arc<TableSchema>,
}

#[derive(Clone)]
pub(super) struct StagedWrite {
    run: usize,
    key: Span,
    pub(super) op: Op,
}

impl StagedWrite {
    pub(super) fn new(run: usize, key: Span, op: Op) -> StagedWrite {
        StagedWrite { run, key, op }
    }
}

/// A part of what [`Staged`] holds in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    start: usize,
    len: usize,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

#[derive(Clone)]
pub(super) enum Op {
    Put(Fields, Option<u64>),
    Update(Fields, RowExpiry),
    Expire(Option<u64>),
    Delete,
}

/// The fields of one write.
#[derive(Clone)]
pub(super) enum Fields {
    /// The body of a row or delta under the schema of the write's run.
    Encoded(Encoded),
    /// One by one: those of several writes to a row; or they did not fit the schema when they were added.
    Given(Vec<FieldWrite>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Encoded {
    body: Span,
    /// The positions of a row's fields that were given, 2 bytes each, if not all were: the body has defaults for others, and
    /// nothing for those that were given null.
    given: Option<Span>,
    is_named: bool,
}

/// What a field is given.
#[derive(Clone)]
pub(super) struct FieldWrite {
    name: Name,
    pub(super) value: StagedValue,
    /// When the field expires on its own, if it does.
    pub(super) expires_at_ms: Option<u64>,
}

impl FieldWrite {
    /// Of a field that does not expire on its own.
    pub(super) fn new(name: &Name, value: StagedValue) -> FieldWrite {
        FieldWrite { name: name.clone(), value, expires_at_ms: None }
    }

    /// The field's name, if it was given by name.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.name {
            Name::Text(text) => Some(text),
            Name::Id(_) => None,
        }
    }

    /// Where the schema has the field; or its name, if it does not.
    pub(super) fn identity(&self, schema: &TableSchema) -> std::result::Result<usize, &Name> {
        let found = match &self.name {
            Name::Id(id) => schema.fields().position_of(*id),
            Name::Text(text) => FieldName::find(&**text, schema.fields()),
        };
        found.ok_or(&self.name)
    }
}

/// A field's value; what it has of bytes is among those of [`Staged`].
#[derive(Debug, Clone)]
pub(super) enum StagedValue {
    Plain(Value<'static>),
    Bytes(Span),
    Str(Span),
}

/// A field's name, owned.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Name {
    Id(FieldId),
    Text(Box<str>),
}

impl Name {
    pub(super) fn of<F: FieldName>(table: &Table, field: F) -> Result<Name> {
        Ok(match field.name() {
            Some(name) => Name::Text(name.into()),
            None => Name::Id(table.field_id(field)?),
        })
    }
}

/// Adding writes.
impl Staged {
    pub(super) fn clear(&mut self) {
        self.writes.clear();
        self.dependents.clear();
        self.runs.clear();
        self.bytes.clear();
    }

    /// Adds a write that names no fields.
    pub(super) fn add(&mut self, table: &Table, key: &[u8], op: Op) {
        let (run, key) = (self.run_of(table), self.append(key));
        self.writes.push(StagedWrite { run, key, op });
    }

    pub(super) fn add_put<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        fields: &[(F, Value<'_>)],
        expires_at_ms: Option<u64>,
    ) -> Result<()> {
        let run = self.run_of(table);
        let Staged { runs, bytes, writes, .. } = self;
        let schema: &TableSchema = &runs[run].schema;
        let Ok(plan) = RowPlan::new(schema, fields) else {
            let fields = self.given(table, fields, None)?;
            self.add(table, key, Op::Put(fields, expires_at_ms));
            return Ok(());
        };
        let (key, body) = append_body(bytes, key, plan.body_bytes());
        plan.encode(&mut bytes[body.range()]);
        let given = match plan.gives_all() {
            true => None,
            false => Some(append_positions(bytes, schema, fields)),
        };
        let fields = Fields::Encoded(Encoded { body, given, is_named: is_named(fields) });
        writes.push(StagedWrite { run, key, op: Op::Put(fields, expires_at_ms) });
        Ok(())
    }

    pub(super) fn add_update<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        fields: &[(F, Value<'_>)],
        expires_at_ms: Option<u64>,
    ) -> Result<()> {
        let run = self.run_of(table);
        let Staged { runs, bytes, writes, .. } = self;
        let Ok(plan) = DeltaPlan::new(&runs[run].schema, fields, FieldExpiries::All(expires_at_ms)) else {
            let fields = self.given(table, fields, expires_at_ms)?;
            self.add(table, key, Op::Update(fields, RowExpiry::Keep));
            return Ok(());
        };
        let (key, body) = append_body(bytes, key, plan.body_bytes());
        plan.encode(&mut bytes[body.range()]);
        let fields = Fields::Encoded(Encoded { body, given: None, is_named: is_named(fields) });
        writes.push(StagedWrite { run, key, op: Op::Update(fields, RowExpiry::Keep) });
        Ok(())
    }

    /// The run that a write to `table` belongs to.
    pub(super) fn run_of(&mut self, table: &Table) -> usize {
        let shared = table.shared();
        if !self.runs.last().is_some_and(|run| Arc::ptr_eq(&run.table, shared)) {
            self.runs.push(TableRun { table: Arc::clone(shared), schema: shared.schema.load_full() });
        }
        self.runs.len() - 1
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span { start, len: bytes.len() }
    }

    /// Takes fields over as they were given, to be looked at when the batch is written: what is wrong with them is found then.
    #[cold]
    fn given<F: FieldName>(
        &mut self,
        table: &Table,
        fields: &[(F, Value<'_>)],
        expires_at_ms: Option<u64>,
    ) -> Result<Fields> {
        Ok(Fields::Given(self.given_fields(table, fields, expires_at_ms)?))
    }

    pub(super) fn given_fields<F: FieldName>(
        &mut self,
        table: &Table,
        fields: &[(F, Value<'_>)],
        expires_at_ms: Option<u64>,
    ) -> Result<Vec<FieldWrite>> {
        let mut given = Vec::with_capacity(fields.len());
        for &(field, value) in fields {
            let (name, value) = (Name::of(table, field)?, self.staged_value(value));
            given.push(FieldWrite { name, value, expires_at_ms });
        }
        Ok(given)
    }

    pub(super) fn staged_value(&mut self, value: Value<'_>) -> StagedValue {
        match value {
            Value::Bytes(bytes) => StagedValue::Bytes(self.append(bytes)),
            Value::Str(text) => StagedValue::Str(self.append(text.as_bytes())),
            plain => StagedValue::plain(plain),
        }
    }
}

fn is_named<F: FieldName>(fields: &[(F, Value<'_>)]) -> bool {
    fields.first().is_some_and(|(name, _)| name.name().is_some())
}

/// Appends a key and room for a body.
fn append_body(bytes: &mut Vec<u8>, key: &[u8], body_bytes: usize) -> (Span, Span) {
    let key_at = bytes.len();
    bytes.extend_from_slice(key);
    let start = bytes.len();
    bytes.resize(start + body_bytes, 0);
    (Span { start: key_at, len: key.len() }, Span { start, len: body_bytes })
}

/// Appends the positions of `fields`, all of which the schema has.
#[cold]
fn append_positions<F: FieldName>(
    bytes: &mut Vec<u8>,
    schema: &TableSchema,
    fields: &[(F, Value<'_>)],
) -> Span {
    let start = bytes.len();
    for (hint, (name, _)) in fields.iter().enumerate() {
        let position = name.find_near(schema.fields(), hint).expect("it was planned");
        bytes.extend_from_slice(&(position as u16).to_le_bytes());
    }
    Span { start, len: bytes.len() - start }
}

/// Reading writes.
impl Staged {
    pub(super) fn key(&self, write: &StagedWrite) -> &[u8] {
        self.bytes_of(write.key)
    }

    pub(super) fn bytes_of(&self, span: Span) -> &[u8] {
        &self.bytes[span.range()]
    }

    pub(super) fn value_of(&self, value: &StagedValue) -> Value<'_> {
        value.value(&self.bytes)
    }

    pub(super) fn table_of_run(&self, run: usize) -> &Arc<TableShared> {
        &self.runs[run].table
    }

    pub(super) fn table(&self, write: &StagedWrite) -> &Arc<TableShared> {
        &self.runs[write.run].table
    }

    /// The versions that the tables' schemas have now.
    pub(super) fn schema_versions(&self) -> SmallVec<[u16; 4]> {
        self.runs.iter().map(|run| run.table.schema.load().version()).collect()
    }

    /// Whether some of the tables may have rows in sorted tables.
    pub(super) fn may_be_below(&self) -> bool {
        self.runs.iter().any(|run| run.table.below())
    }

    /// `writes`, those to one table that were added one after the other together.
    pub(super) fn by_table<'w>(
        &self,
        writes: &'w [StagedWrite],
    ) -> impl Iterator<Item = (&Arc<TableShared>, &'w [StagedWrite])> {
        let runs = writes.chunk_by(|one, next| one.run == next.run);
        runs.map(|of_one| (self.table(&of_one[0]), of_one))
    }

    /// The body of the write's fields, if they were encoded under `schema`.
    #[inline]
    pub(super) fn body(
        &self,
        write: &StagedWrite,
        fields: &Fields,
        schema: &Arc<TableSchema>,
    ) -> Option<&[u8]> {
        match fields {
            Fields::Encoded(encoded) if Arc::ptr_eq(schema, &self.runs[write.run].schema) => {
                Some(&self.bytes[encoded.body.range()])
            }
            _ => None,
        }
    }

    /// The fields one by one.
    pub(super) fn fields<'w>(&self, write: &StagedWrite, fields: &'w Fields) -> Cow<'w, [FieldWrite]> {
        match fields {
            Fields::Given(given) => Cow::Borrowed(given),
            Fields::Encoded(encoded) if matches!(write.op, Op::Put(..)) => {
                Cow::Owned(self.of_row(&self.runs[write.run].schema, *encoded))
            }
            Fields::Encoded(encoded) => Cow::Owned(self.of_delta(&self.runs[write.run].schema, *encoded)),
        }
    }

    /// What was given for a row that is encoded.
    fn of_row(&self, schema: &TableSchema, encoded: Encoded) -> Vec<FieldWrite> {
        let row = RowBody::new(schema.current_layout(), &self.bytes[encoded.body.range()], false);
        let field = |position: usize| {
            let read = row.read(schema, position).expect("a body as it was encoded");
            self.read_out((schema, position), encoded.is_named, read.value, None)
        };
        match encoded.given {
            None => (0..schema.fields().fields().len()).map(field).collect(),
            Some(given) => {
                let given = self.bytes[given.range()].chunks_exact(2);
                given
                    .map(|position| field(usize::from(u16::from_le_bytes([position[0], position[1]]))))
                    .collect()
            }
        }
    }

    /// What was given for a delta that is encoded.
    fn of_delta(&self, schema: &TableSchema, encoded: Encoded) -> Vec<FieldWrite> {
        let delta = DeltaBody::new(&self.bytes[encoded.body.range()]);
        let field = |entry: DeltaEntry<'_>| -> Result<FieldWrite> {
            let position = schema.fields().position_of(entry.id).expect("it was planned");
            let kind = schema.fields().fields()[position].kind();
            let value = entry.raw.map_or(Ok(Value::Null), |raw| kind.decode(raw))?;
            Ok(self.read_out((schema, position), encoded.is_named, value, entry.expires_at_ms))
        };
        let fields: Result<Vec<FieldWrite>> =
            delta.entries().and_then(|entries| entries.map(|entry| field(entry?)).collect());
        fields.expect("a delta as it was encoded")
    }

    /// A field whose value was read out of a body.
    fn read_out(
        &self,
        (schema, position): (&TableSchema, usize),
        is_named: bool,
        value: Value<'_>,
        expires_at_ms: Option<u64>,
    ) -> FieldWrite {
        let field = &schema.fields().fields()[position];
        let name = match is_named {
            true => Name::Text(field.name().into()),
            false => Name::Id(field.id()),
        };
        let span =
            |part: &[u8]| Span { start: part.as_ptr().addr() - self.bytes.as_ptr().addr(), len: part.len() };
        let value = match value {
            Value::Bytes(bytes) => StagedValue::Bytes(span(bytes)),
            Value::Str(text) => StagedValue::Str(span(text.as_bytes())),
            plain => StagedValue::plain(plain),
        };
        FieldWrite { name, value, expires_at_ms }
    }

    /// `fields` by their ids, in the order they were given. Their names have been learned.
    pub(super) fn resolved<'f>(
        &'f self,
        schema: &TableSchema,
        fields: &'f [FieldWrite],
    ) -> Result<SmallVec<[(FieldId, Value<'f>); INLINE_FIELDS]>> {
        let mut resolved = SmallVec::with_capacity(fields.len());
        for FieldWrite { name, value, .. } in fields {
            let id = match name {
                Name::Id(id) => *id,
                Name::Text(text) => {
                    let found = FieldName::find(&**text, schema.fields());
                    let position = found.ok_or_else(|| unknown_field(&**text))?;
                    schema.fields().fields()[position].id()
                }
            };
            resolved.push((id, value.value(&self.bytes)));
        }
        Ok(resolved)
    }
}

impl StagedValue {
    /// A value that has no bytes elsewhere.
    pub(super) fn plain(value: Value<'_>) -> StagedValue {
        StagedValue::Plain(match value {
            Value::Bool(b) => Value::Bool(b),
            Value::Int(n) => Value::Int(n),
            Value::UInt(n) => Value::UInt(n),
            Value::Float(x) => Value::Float(x),
            Value::Timestamp(n) => Value::Timestamp(n),
            Value::Null | Value::Bytes(_) | Value::Str(_) => Value::Null,
        })
    }

    fn value<'b>(&self, bytes: &'b [u8]) -> Value<'b> {
        match self {
            StagedValue::Plain(value) => *value,
            StagedValue::Bytes(span) => Value::Bytes(&bytes[span.range()]),
            StagedValue::Str(span) => {
                Value::Str(std::str::from_utf8(&bytes[span.range()]).expect("taken from a string"))
            }
        }
    }
}

/// Several writes to one row.
impl Staged {
    /// One write for each row: later writes folded into earlier ones, as of `now_ms`.
    pub(super) fn folded(&self, now_ms: u64) -> Cow<'_, [StagedWrite]> {
        if self.are_distinct() {
            return Cow::Borrowed(&self.writes);
        }
        let mut fold = Fold::new(self, now_ms);
        self.writes.iter().for_each(|write| fold.add(write.clone()));
        Cow::Owned(fold.finish())
    }

    /// Adds later fields to earlier ones. Before that takes memory, those that others go over make room: so any number of updates
    /// of a row take no more than a few times its fields.
    fn extend(&self, schema: &TableSchema, fields: &mut Vec<FieldWrite>, more: Vec<FieldWrite>) {
        if fields.capacity() - fields.len() < more.len() {
            self.drop_replaced(schema, fields);
            fields.reserve(fields.len() + more.len());
        }
        fields.extend(more);
    }

    /// Leaves the last of each field, in the place of the first: an open table learns names in the order they came. What does not
    /// fit the schema stays as well: the batch will be refused for it.
    fn drop_replaced(&self, schema: &TableSchema, fields: &mut Vec<FieldWrite>) {
        let mut given = HashMap::with_capacity(fields.len());
        let mut places = Vec::with_capacity(fields.len());
        for (i, field) in fields.iter().enumerate() {
            let (place, gives_way) = given.entry(field.identity(schema)).or_insert((i, true));
            if !*gives_way {
                *place = i;
            }
            *gives_way = self.fits(schema, field);
            places.push(*place);
        }
        for (i, &place) in places.iter().enumerate() {
            fields.swap(place, i);
        }
        let mut places = places.into_iter().enumerate();
        fields.retain(|_| places.next().is_some_and(|(i, place)| i == place));
    }

    /// Whether a field can be written, once its name has been learned.
    fn fits(&self, schema: &TableSchema, field: &FieldWrite) -> bool {
        let value = field.value.value(&self.bytes);
        let (kind, nullable) = match field.identity(schema) {
            Ok(position) => {
                let known = &schema.fields().fields()[position];
                (known.kind(), known.is_nullable())
            }
            Err(Name::Text(_)) if schema.fields().is_open() => (Type::Bytes, true),
            Err(_) => return false,
        };
        let may_expire = field.expires_at_ms.is_none() || nullable;
        may_expire && (kind.check(&value).is_ok() || value.is_null() && nullable)
    }

    /// Turns the fields of a write into fields one by one.
    fn give_fields(&self, write: &mut StagedWrite) {
        if let Op::Put(fields @ Fields::Encoded(_), _) | Op::Update(fields @ Fields::Encoded(_), _) =
            &write.op
        {
            let given = self.fields(write, fields).into_owned();
            if let Op::Put(fields, _) | Op::Update(fields, _) = &mut write.op {
                *fields = Fields::Given(given);
            }
        }
    }

    /// Whether no two writes are to the same row, as far as the hashes of their keys tell. Keys that were chosen to collide
    /// are compared, and no worse off than others that are the same.
    fn are_distinct(&self) -> bool {
        let mut seen = vec![0u64; (2 * self.writes.len()).next_power_of_two()];
        let mask = seen.len() - 1;
        let mut is_new = |write: &StagedWrite| {
            let table = Arc::as_ptr(self.table(write)).addr() as u64;
            // Not 0, which is where none is.
            let hash = (names::hash(self.key(write)) ^ table.rotate_left(32)) | 1;
            let mut places = (0..PROBES_MAX).map(|probe| ((hash >> 1) as usize + probe) & mask);
            match places.find(|&at| seen[at] == 0 || seen[at] == hash).map(|at| &mut seen[at]) {
                Some(free) if *free == 0 => {
                    *free = hash;
                    true
                }
                _ => false,
            }
        };
        self.writes.len() < 2 || self.writes.iter().all(&mut is_new)
    }
}

/// Writes folded into one for each row.
pub(super) struct Fold<'s> {
    staged: &'s Staged,
    now_ms: u64,
    /// Where the write to a row is: rows by their tables' addresses and their keys.
    at: HashMap<(usize, &'s [u8]), usize>,
    writes: Vec<StagedWrite>,
}

impl<'s> Fold<'s> {
    pub(super) fn new(staged: &'s Staged, now_ms: u64) -> Fold<'s> {
        let most = staged.writes.len();
        Fold { staged, now_ms, at: HashMap::with_capacity(most), writes: Vec::with_capacity(most) }
    }

    pub(super) fn add(&mut self, mut write: StagedWrite) {
        let (staged, now_ms) = (self.staged, self.now_ms);
        let row = (Arc::as_ptr(staged.table(&write)).addr(), staged.key(&write));
        let Some(&i) = self.at.get(&row) else {
            self.at.insert(row, self.writes.len());
            self.writes.push(write);
            return;
        };
        let earlier = &mut self.writes[i];
        earlier.op.lapse(now_ms);
        staged.give_fields(earlier);
        staged.give_fields(&mut write);
        let schema = staged.table(&write).schema.load();
        earlier.op.then(write.op, |fields, more| staged.extend(&schema, fields, more));
    }

    /// What was added for a row so far, if anything was.
    pub(super) fn earlier(&mut self, table: &Arc<TableShared>, key: &[u8]) -> Option<&StagedWrite> {
        let &i = self.at.get(&(Arc::as_ptr(table).addr(), key))?;
        self.writes[i].op.lapse(self.now_ms);
        // Else they would be read out of the body for each part that looks at them.
        self.staged.give_fields(&mut self.writes[i]);
        Some(&self.writes[i])
    }

    pub(super) fn finish(mut self) -> Vec<StagedWrite> {
        for write in &mut self.writes {
            let schema = self.staged.table(write).schema.load();
            if let Op::Put(Fields::Given(fields), _) | Op::Update(Fields::Given(fields), _) = &mut write.op {
                self.staged.drop_replaced(&schema, fields);
            }
        }
        self.writes
    }
}

impl Op {
    /// What leaves a row that has expired leaves none to whatever comes after it.
    fn lapse(&mut self, now_ms: u64) {
        let at_ms = match self {
            Op::Put(_, at_ms) | Op::Expire(at_ms) => *at_ms,
            Op::Update(_, RowExpiry::Set(at_ms) | RowExpiry::SetOfOld(at_ms)) => *at_ms,
            Op::Update(_, RowExpiry::Keep) => None,
            Op::Delete => None,
        };
        if is_past(at_ms, now_ms) {
            *self = Op::Delete;
        }
    }

    /// Folds a later write of the same row into this. The fields of both are given one by one; `extend` adds later ones to earlier.
    fn then(&mut self, later: Op, extend: impl FnOnce(&mut Vec<FieldWrite>, Vec<FieldWrite>)) {
        match (&mut *self, later) {
            (
                Op::Put(Fields::Given(fields), _) | Op::Update(Fields::Given(fields), _),
                Op::Update(Fields::Given(more), _),
            ) => extend(fields, more),
            (Op::Delete, Op::Update(fields, _)) => *self = Op::Put(fields, None),
            (Op::Expire(at_ms), Op::Update(fields, _)) => {
                *self = Op::Update(fields, RowExpiry::SetOfOld(*at_ms));
            }
            (Op::Put(_, expires_at_ms), Op::Expire(at_ms)) => *expires_at_ms = at_ms,
            (Op::Update(_, expiry), Op::Expire(at_ms)) => {
                *expiry = RowExpiry::Set(at_ms);
            }
            (Op::Delete, Op::Expire(_)) => {}
            (_, later) => *self = later,
        }
    }
}
