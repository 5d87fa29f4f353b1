//! What every operation must do: a store of rows in ordinary maps.
//!
//! Values are kept by the field's number, which is never used twice, so that renaming and dropping need not touch a row.
//! A row whose expiry has passed stays in the map as the engine's does in its index, until something writes over it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use hedgerow::{ErrorKind, OwnedValue, Schema, Type, Value};

mod batch;

use crate::op::{self, Content, Expected, Given, NAMES, Op, SNAPSHOTS, TABLES};

/// What an operation answers.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Answer {
    Done,
    Bool(bool),
    Int(i64),
    /// One row for each key.
    Rows(Vec<Option<ReadRow>>),
    /// One of these errors, and nothing is changed.
    Fails(Vec<ErrorKind>),
}

/// A row as it is read.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadRow {
    /// Its key.
    pub key: Vec<u8>,
    /// Names and values of the fields that are there, in order.
    pub fields: Vec<(String, Arc<OwnedValue>)>,
    /// When each of them expires, if it does.
    pub field_expiries: Vec<Option<u64>>,
    /// Its expiry.
    pub expires_at_ms: Option<u64>,
    /// Changes with every write.
    pub version: u64,
}

#[derive(Debug, Clone)]
struct ModelField {
    id: u32,
    name: String,
    kind: Type,
    nullable: bool,
    default: Arc<OwnedValue>,
}

#[derive(Debug, Clone)]
struct Cell {
    /// `Null`: taken away.
    value: Arc<OwnedValue>,
    expires_at_ms: Option<u64>,
}

/// A row at rest.
#[derive(Debug, Clone, Default)]
pub struct ModelRow {
    cells: BTreeMap<u32, Cell>,
    expires_at_ms: Option<u64>,
    version: u64,
}

impl ModelRow {
    fn is_live(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_none_or(|ms| ms > now_ms)
    }
}

type Rows = BTreeMap<Vec<u8>, Arc<ModelRow>>;

#[derive(Debug, Clone)]
struct ModelTable {
    open: bool,
    fields: Vec<ModelField>,
    next_id: u32,
    rows: Rows,
    /// Changes when all rows go at once.
    epoch: u64,
    /// Rows were loaded: those of them that were written or deleted since are counted twice.
    loaded: bool,
    /// Rows were given an expiry: of those that expired and were taken out, a record may be in the log still, and count again once the store was killed.
    expires: bool,
}

#[derive(Debug, Clone)]
struct ModelSnapshot {
    tables: Vec<(u64, Rows)>,
}

/// All tables, the time, and the snapshots held.
#[derive(Debug, Clone)]
pub struct Model {
    tables: Vec<ModelTable>,
    snapshots: Vec<Option<ModelSnapshot>>,
    /// The time.
    pub now_ms: u64,
    /// Rows move to sorted tables: those of them that were written or deleted since are counted twice.
    pub(crate) rows_move: bool,
    writes: u64,
}

/// The table that learns.
pub(crate) const OPEN_TABLE: usize = 1;

/// The schema a table begins with.
pub(crate) fn first_schema(table: usize) -> Schema {
    match table {
        0 => Schema::new()
            .field("name", Type::String)
            .field("age", Type::U32)
            .field_with_default("count", Type::I64, -7)
            .nullable("mail", Type::String)
            .nullable("blob", Type::Bytes)
            .field("tag", Type::FixedBytes(5))
            .nullable("score", Type::F64)
            .field("flag", Type::Bool)
            .nullable("seen", Type::Timestamp),
        1 => Schema::open(),
        _ => Schema::flat(),
    }
}

/// The type of a number in [`Op::AddField`].
pub(crate) fn kind_of(number: u8) -> Type {
    const KINDS: [Type; 16] = [
        Type::Bool,
        Type::I8,
        Type::I16,
        Type::I32,
        Type::I64,
        Type::U8,
        Type::U16,
        Type::U32,
        Type::U64,
        Type::F32,
        Type::F64,
        Type::Timestamp,
        Type::FixedBytes(3),
        Type::FixedBytes(300),
        Type::Bytes,
        Type::String,
    ];
    KINDS[usize::from(number) % KINDS.len()]
}

/// The value of type `kind` that shows `stamp`.
pub(crate) fn value_of(kind: Type, stamp: u32, size: u32) -> OwnedValue {
    let n = u64::from(stamp);
    match kind {
        Type::Bool => OwnedValue::Bool(stamp & 1 == 1),
        Type::I8 => OwnedValue::Int((n % 256) as i64 - 128),
        Type::I16 => OwnedValue::Int((n % 65_536) as i64 - 32_768),
        Type::I32 | Type::I64 => OwnedValue::Int(-(n as i64 % (1 << 31))),
        Type::U8 => OwnedValue::UInt(n % 256),
        Type::U16 => OwnedValue::UInt(n % 65_536),
        Type::U32 | Type::U64 => OwnedValue::UInt(n),
        Type::F32 => OwnedValue::Float((n % (1 << 20)) as f64 / 4.0),
        Type::F64 => OwnedValue::Float(n as f64 + 0.125),
        Type::Timestamp => OwnedValue::Timestamp(n as i64 * 1_000_000),
        Type::FixedBytes(len) => OwnedValue::Bytes(pattern(stamp, usize::from(len)).into()),
        Type::Bytes => OwnedValue::Bytes(pattern(stamp, size as usize).into()),
        Type::String => {
            let text = pattern(stamp, size as usize)
                .into_iter()
                .map(|b| char::from(b'0' + b % 64))
                .collect::<String>();
            OwnedValue::Str(text.into())
        }
    }
}

fn misfit_of(kind: Type) -> OwnedValue {
    match kind {
        Type::FixedBytes(len) => OwnedValue::Bytes(vec![1; usize::from(len) + 1].into()),
        Type::Bytes | Type::String => OwnedValue::Bool(true),
        Type::U8 => OwnedValue::Int(256),
        Type::U64 => OwnedValue::Int(-1),
        _ => OwnedValue::Str("no number".into()),
    }
}

/// Bytes that show the stamp in every place.
fn pattern(stamp: u32, len: usize) -> Vec<u8> {
    let mut bytes = stamp.to_le_bytes().to_vec();
    let step = (stamp.wrapping_mul(0x9E37_79B9) >> 24) as u8 | 1;
    let mut byte = step;
    bytes.resize_with(len.max(4), || {
        byte = byte.wrapping_add(step);
        byte
    });
    bytes.truncate(len);
    bytes
}

impl Model {
    /// All tables empty, as they begin.
    pub fn new(now_ms: u64) -> Model {
        let tables = (0..TABLES).map(|table| ModelTable::new(table, 0)).collect();
        Model { tables, snapshots: vec![None; SNAPSHOTS], now_ms, rows_move: false, writes: 0 }
    }

    /// Does `op` and says what it must answer. What only a store can do (collecting, reopening) changes nothing here.
    pub fn apply(&mut self, op: &Op) -> Answer {
        self.writes += 1;
        let now_ms = self.now_ms;
        let at = |expires_in: &Option<u64>| expires_in.map(|ms| now_ms + ms);
        match op {
            Op::Put { table, key, fields, expires_in } | Op::ModifyPut { table, key, fields, expires_in } => {
                self.put(*table, *key, fields, at(expires_in))
            }
            Op::Update { table, key, fields, only_existing } => {
                self.update(*table, *key, fields, *only_existing, None)
            }
            Op::ModifyUpdate { table, key, fields, expires_in } => {
                match self.update(*table, *key, fields, false, at(expires_in)) {
                    Answer::Bool(_) => Answer::Done,
                    fails => fails,
                }
            }
            Op::ModifyDelete { table, key } => self.modify_delete(*table, *key),
            Op::Delete { table, key } => {
                let removed = self.table_mut(*table).rows.remove(&op::key(*key));
                Answer::Bool(removed.is_some_and(|row| row.is_live(now_ms)))
            }
            Op::Increment { table, key, field, by } => self.increment(*table, *key, *field, *by),
            Op::CompareAndSet { table, key, field, expected, new } => {
                self.compare_and_set(*table, *key, *field, *expected, *new)
            }
            Op::Expire { table, key, expires_in } => self.expire(*table, *key, at(expires_in)),
            Op::ExpireFields { table, key, fields, expires_in } => {
                self.expire_fields(*table, *key, fields, at(expires_in))
            }
            Op::Batch { parts, require } => self.batch(parts, *require),
            Op::AddField { .. } | Op::RenameField { .. } | Op::DropField { .. } => self.evolve(op),
            Op::Clear { table } => {
                self.table_mut(*table).clear();
                Answer::Done
            }
            Op::Load { table, keys, fields, expires_in } => self.load(*table, keys, fields, *expires_in),
            Op::Recreate { table } => {
                let epoch = self.table(*table).epoch + 1;
                *self.table_mut(*table) = ModelTable::new(usize::from(*table), epoch);
                Answer::Done
            }
            Op::Advance { ms } => {
                self.now_ms += u64::from(*ms);
                Answer::Done
            }
            Op::SnapshotTake { slot } => {
                let tables = self.tables.iter().map(|t| (t.epoch, t.rows.clone())).collect();
                self.snapshots[usize::from(*slot)] = Some(ModelSnapshot { tables });
                Answer::Done
            }
            Op::SnapshotDrop { slot } => {
                self.snapshots[usize::from(*slot)] = None;
                Answer::Done
            }
            Op::Reopen(_) => {
                self.drop_snapshots();
                Answer::Done
            }
            Op::Collect | Op::Persist => Answer::Done,
            read => self.read(read),
        }
    }

    /// Lets go of all snapshots.
    pub fn drop_snapshots(&mut self) {
        self.snapshots.iter_mut().for_each(|snapshot| *snapshot = None);
    }

    /// Whether the snapshot is held.
    pub fn has_snapshot(&self, slot: u8) -> bool {
        self.snapshots[usize::from(slot)].is_some()
    }

    /// Whether there is such a row now.
    pub fn has(&self, table: u8, key: u16) -> bool {
        self.live(table, key).is_some()
    }

    /// Rows of a table, expired ones included.
    pub fn rows(&self, table: usize) -> u64 {
        self.tables[table].rows.len() as u64
    }

    /// Whether a table with these rows may count so many. One that has expired goes when somebody collects, or when sorted tables are merged; what is in these may be counted twice, and what expired and went may be back after a kill, as an expired row that others do not see.
    pub fn may_count(&self, table: usize, rows: u64) -> bool {
        let live = self.dump(table, self.now_ms).count() as u64;
        let ModelTable { loaded, expires, .. } = self.tables[table];
        let may_be_more = self.rows_move || loaded || expires;
        rows >= live && (may_be_more || rows == self.rows(table))
    }

    /// Keys of a table's rows, expired ones included.
    pub fn keys(&self, table: usize) -> Vec<Vec<u8>> {
        self.tables[table].rows.keys().cloned().collect()
    }

    /// Removes a row.
    pub fn remove(&mut self, table: usize, key: &[u8]) {
        self.tables[table].rows.remove(key);
    }

    /// About what all rows take.
    pub fn live_bytes(&self) -> u64 {
        let value = |value: &OwnedValue| value.borrow().as_bytes().map_or(8, <[u8]>::len);
        let row = |(key, row): (&Vec<u8>, &Arc<ModelRow>)| {
            key.len() + 64 + row.cells.values().map(|cell| 8 + value(&cell.value)).sum::<usize>()
        };
        self.tables.iter().flat_map(|t| t.rows.iter()).map(row).sum::<usize>() as u64
    }

    /// The rows of a table that are live at `now_ms`, whole, in key order.
    pub fn dump(&self, table: usize, now_ms: u64) -> impl Iterator<Item = ReadRow> {
        let table = &self.tables[table];
        table
            .rows
            .iter()
            .filter(move |(_, row)| row.is_live(now_ms))
            .map(move |(key, row)| table.read(key, row, None, now_ms))
    }

    /// A table's fields: name, type and nullability, in order.
    pub fn schema(&self, table: usize) -> Vec<(String, Type, bool)> {
        self.tables[table].fields.iter().map(|f| (f.name.clone(), f.kind, f.nullable)).collect()
    }

    /// Takes over fields that an open table has learned on the way to a refusal. False if `schema` is not that.
    pub fn adopt(&mut self, table: usize, schema: &Schema) -> bool {
        let table = &mut self.tables[table];
        let known =
            |f: &ModelField| schema.field_by_name(&f.name).is_some_and(|theirs| theirs.kind() == f.kind);
        if !table.fields.iter().all(known) {
            return false;
        }
        let mut fields = Vec::new();
        for theirs in schema.fields() {
            match table.fields.iter().find(|f| f.name == theirs.name()) {
                Some(field) => fields.push(field.clone()),
                None if table.open && theirs.is_nullable() && theirs.kind() == Type::Bytes => {
                    fields.push(ModelField::learned(table.next_id, theirs.name()));
                    table.next_id += 1;
                }
                None => return false,
            }
        }
        table.fields = fields;
        true
    }

    fn table(&self, table: u8) -> &ModelTable {
        &self.tables[usize::from(table)]
    }

    fn table_mut(&mut self, table: u8) -> &mut ModelTable {
        &mut self.tables[usize::from(table)]
    }

    /// The names and values that an operation gives.
    pub fn given(&self, table: u8, fields: &[Given]) -> Vec<(&'static str, OwnedValue)> {
        let value =
            |given: &Given| (NAMES[usize::from(given.field)], self.value(table, given.field, given.content));
        fields.iter().map(value).collect()
    }

    /// The value that `content` means for a field.
    pub fn value(&self, table: u8, field: u8, content: Content) -> OwnedValue {
        let kind = self.table(table).by_name(NAMES[usize::from(field)]).map_or(Type::Bytes, |f| f.kind);
        match content {
            Content::Null => OwnedValue::Null,
            Content::Misfit => misfit_of(kind),
            Content::Fit { stamp, size } => value_of(kind, stamp, size),
        }
    }

    /// The value that a comparison expects.
    pub fn expected(&self, table: u8, key: u16, field: u8, expected: Expected) -> OwnedValue {
        match expected {
            Expected::Null => OwnedValue::Null,
            Expected::Given(content) => self.value(table, field, content),
            Expected::Other { stamp } => self.value(table, field, Content::Fit { stamp: !stamp, size: 9 }),
            Expected::Current => {
                self.current(table, key, field).map_or(OwnedValue::Null, |value| (*value).clone())
            }
        }
    }

    /// `None`: there is no row, or no such field.
    fn current(&self, table: u8, key: u16, field: u8) -> Option<Arc<OwnedValue>> {
        let row = self.live(table, key)?;
        let table = self.table(table);
        Some(table.value(row, table.by_name(NAMES[usize::from(field)])?, self.now_ms))
    }

    fn live(&self, table: u8, key: u16) -> Option<&Arc<ModelRow>> {
        self.table(table).rows.get(&op::key(key)).filter(|row| row.is_live(self.now_ms))
    }

    fn put(&mut self, table: u8, key: u16, fields: &[Given], expires_at_ms: Option<u64>) -> Answer {
        let values = self.given(table, fields);
        let version = self.writes;
        let errors = self.table_mut(table).check(&op::key(key), &values, false, &[]);
        if errors.is_empty() {
            self.table_mut(table).put(op::key(key), &values, &[], expires_at_ms, version);
            Answer::Done
        } else {
            Answer::Fails(errors)
        }
    }

    fn load(&mut self, table: u8, keys: &[u16], fields: &[Given], expires_in: Option<u64>) -> Answer {
        let (values, version, now_ms) = (self.given(table, fields), self.writes, self.now_ms);
        let (rows, table) = (op::loaded(keys, expires_in), self.table_mut(table));
        let errors = rows.first().map_or_else(Vec::new, |(key, _)| table.check(key, &values, false, &[]));
        if !errors.is_empty() {
            return Answer::Fails(errors);
        }
        table.clear();
        table.loaded = !rows.is_empty();
        for (key, expires_in) in rows {
            table.put(key, &values, &[], expires_in.map(|ms| now_ms + ms), version);
        }
        Answer::Done
    }

    fn update(
        &mut self,
        table: u8,
        key: u16,
        fields: &[Given],
        only_existing: bool,
        expires_at_ms: Option<u64>,
    ) -> Answer {
        let values = self.given(table, fields);
        let (version, now_ms, expiries) = (self.writes, self.now_ms, vec![expires_at_ms; values.len()]);
        let errors = self.table_mut(table).check(&op::key(key), &values, true, &expiries);
        if !errors.is_empty() {
            return Answer::Fails(errors);
        }
        let exists = self.live(table, key).is_some();
        if exists || !only_existing {
            self.table_mut(table).update(op::key(key), &values, &expiries, version, now_ms);
        }
        Answer::Bool(exists)
    }

    fn modify_delete(&mut self, table: u8, key: u16) -> Answer {
        if key == 0 {
            return Answer::Fails(vec![ErrorKind::Invalid]);
        }
        if self.live(table, key).is_some() {
            self.table_mut(table).rows.remove(&op::key(key));
        }
        Answer::Done
    }

    fn increment(&mut self, table: u8, key: u16, field: u8, by: i64) -> Answer {
        let invalid = Answer::Fails(vec![ErrorKind::Invalid]);
        let name = NAMES[usize::from(field)];
        let Some(kind) = self.table(table).by_name(name).map(|f| f.kind) else {
            return Answer::Fails(if key == 0 {
                vec![ErrorKind::Invalid, ErrorKind::NotFound]
            } else {
                vec![ErrorKind::NotFound]
            });
        };
        let (lowest, highest) = match kind {
            Type::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
            Type::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
            Type::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
            Type::I64 | Type::Timestamp => (i64::MIN, i64::MAX),
            Type::U8 => (0, i64::from(u8::MAX)),
            Type::U16 => (0, i64::from(u16::MAX)),
            Type::U32 => (0, i64::from(u32::MAX)),
            Type::U64 => (0, i64::MAX),
            _ => return invalid,
        };
        let base = self.current(table, key, field).and_then(|value| value.borrow().as_i64()).unwrap_or(0);
        let Some(sum) = base.checked_add(by).filter(|sum| (lowest..=highest).contains(sum) && key != 0)
        else {
            return invalid;
        };
        let value = match kind {
            Type::Timestamp => OwnedValue::Timestamp(sum),
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => OwnedValue::UInt(sum as u64),
            _ => OwnedValue::Int(sum),
        };
        let (version, now_ms) = (self.writes, self.now_ms);
        self.table_mut(table).update(op::key(key), &[(name, value)], &[], version, now_ms);
        Answer::Int(sum)
    }

    fn compare_and_set(
        &mut self,
        table: u8,
        key: u16,
        field: u8,
        expected: Expected,
        new: Content,
    ) -> Answer {
        let name = NAMES[usize::from(field)];
        if self.table(table).by_name(name).is_none() {
            return Answer::Fails(vec![ErrorKind::NotFound, ErrorKind::Invalid]);
        }
        if key == 0 {
            return Answer::Fails(vec![ErrorKind::Invalid]);
        }
        let wanted = self.expected(table, key, field, expected);
        self.compare_with(table, key, field, &wanted, new)
    }

    fn compare_with(&mut self, table: u8, key: u16, field: u8, wanted: &OwnedValue, new: Content) -> Answer {
        let current = self.current(table, key, field);
        if current.map_or(!wanted.borrow().is_null(), |value| value.borrow() != wanted.borrow()) {
            return Answer::Bool(false);
        }
        match self.update(table, key, &[Given { field, content: new }], false, None) {
            Answer::Bool(_) => Answer::Bool(true),
            fails => fails,
        }
    }

    fn expire(&mut self, table: u8, key: u16, expires_at_ms: Option<u64>) -> Answer {
        if key == 0 {
            return Answer::Fails(vec![ErrorKind::Invalid]);
        }
        let Some(row) = self.live(table, key) else { return Answer::Bool(false) };
        let row = ModelRow { expires_at_ms, version: self.writes, ..(**row).clone() };
        let table = self.table_mut(table);
        table.expires |= expires_at_ms.is_some();
        table.rows.insert(op::key(key), Arc::new(row));
        Answer::Bool(true)
    }

    fn expire_fields(&mut self, table: u8, key: u16, fields: &[u8], expires_at_ms: Option<u64>) -> Answer {
        if key == 0 {
            return Answer::Fails(vec![ErrorKind::Invalid]);
        }
        let Some(row) = self.live(table, key) else { return Answer::Bool(false) };
        let table_ref = self.table(table);
        let mut values = Vec::new();
        for &field in fields {
            let name = NAMES[usize::from(field)];
            let Some(found) = table_ref.by_name(name) else {
                return Answer::Fails(vec![ErrorKind::NotFound]);
            };
            let value = table_ref.value(row, found, self.now_ms);
            if *value != OwnedValue::Null {
                values.push((name, (*value).clone()));
            }
        }
        if values.is_empty() {
            return Answer::Bool(true);
        }
        let (version, now_ms, expiries) = (self.writes, self.now_ms, vec![expires_at_ms; values.len()]);
        let errors = self.table_mut(table).check(&op::key(key), &values, true, &expiries);
        if !errors.is_empty() {
            return Answer::Fails(errors);
        }
        self.table_mut(table).update(op::key(key), &values, &expiries, version, now_ms);
        Answer::Bool(true)
    }

    fn evolve(&mut self, op: &Op) -> Answer {
        let name = |field: &u8| NAMES[usize::from(*field)];
        match op {
            Op::AddField { table, field, kind, with_default } => {
                let table = self.table_mut(*table);
                if table.by_name(name(field)).is_some() {
                    return Answer::Fails(vec![ErrorKind::Exists]);
                }
                let (id, kind) = (table.next_id, kind_of(*kind));
                table.next_id += 1;
                let default = with_default.map_or(OwnedValue::Null, |stamp| value_of(kind, stamp, 12));
                let (name, nullable) = (name(field).to_owned(), with_default.is_none());
                table.fields.push(ModelField { id, name, kind, nullable, default: Arc::new(default) });
            }
            Op::RenameField { table, from, to } => {
                let table = self.table_mut(*table);
                if table.by_name(name(from)).is_none() {
                    return Answer::Fails(vec![ErrorKind::NotFound]);
                }
                if from != to && table.by_name(name(to)).is_some() {
                    return Answer::Fails(vec![ErrorKind::Exists]);
                }
                let found = table.fields.iter_mut().filter(|f| f.name == name(from));
                found.for_each(|f| f.name = name(to).to_owned());
            }
            Op::DropField { table, field } => {
                let table = self.table_mut(*table);
                if table.by_name(name(field)).is_none() {
                    return Answer::Fails(vec![ErrorKind::NotFound]);
                }
                table.fields.retain(|f| f.name != name(field));
            }
            _ => {}
        }
        Answer::Done
    }

    /// Teaches the open table names that it does not know: a write that was refused may have done so before it was.
    pub fn learn(&mut self, names: &[String]) {
        let open = &mut self.tables[OPEN_TABLE];
        for name in names {
            if open.fields.iter().all(|field| field.name != *name) {
                open.fields.push(ModelField::learned(open.next_id, name));
                open.next_id += 1;
            }
        }
    }

    fn read(&self, op: &Op) -> Answer {
        let one = |table: u8, key: u16, fields: Option<&[u8]>| {
            let row = self.live(table, key);
            Answer::Rows(vec![row.map(|row| self.table(table).read(&op::key(key), row, fields, self.now_ms))])
        };
        match op {
            Op::Get { table, key } => one(*table, *key, None),
            Op::GetFields { table, key, fields } if self.table(*table).has_all(fields) => {
                one(*table, *key, Some(fields))
            }
            Op::MultiGet { table, keys } => {
                let table_ref = self.table(*table);
                let read = |&key: &u16| {
                    self.live(*table, key).map(|row| table_ref.read(&op::key(key), row, None, self.now_ms))
                };
                Answer::Rows(keys.iter().map(read).collect())
            }
            Op::Exists { table, key } => Answer::Bool(self.live(*table, *key).is_some()),
            Op::Scan { table, from, to, reverse, limit, fields }
                if fields.as_ref().is_none_or(|fields| self.table(*table).has_all(fields)) =>
            {
                let (from, to) = (from.map(op::key), to.map(op::key));
                let above = |key: &Vec<u8>| match &from {
                    Bound::Unbounded => true,
                    Bound::Included(from) => key >= from,
                    Bound::Excluded(from) => key > from,
                };
                let below = |key: &Vec<u8>| match &to {
                    Bound::Unbounded => true,
                    Bound::Included(to) => key <= to,
                    Bound::Excluded(to) => key < to,
                };
                let rows = &self.table(*table).rows;
                self.range(*table, rows, |key| above(key) && below(key), *reverse, *limit, fields.as_deref())
            }
            Op::Prefix { table, key, bytes, reverse } => {
                let key = op::key(*key);
                let prefix = &key[..usize::from(*bytes).min(key.len())];
                self.range(
                    *table,
                    &self.table(*table).rows,
                    |key| key.starts_with(prefix),
                    *reverse,
                    None,
                    None,
                )
            }
            Op::SnapshotGet { slot, table, key } => {
                let found = self.snapshot_rows(*slot, *table).and_then(|rows| rows.get(&op::key(*key)));
                let found = found.filter(|row| row.is_live(self.now_ms));
                Answer::Rows(vec![
                    found.map(|row| self.table(*table).read(&op::key(*key), row, None, self.now_ms)),
                ])
            }
            Op::SnapshotScan { slot, table, reverse } => match self.snapshot_rows(*slot, *table) {
                Some(rows) => self.range(*table, rows, |_| true, *reverse, None, None),
                None => Answer::Rows(Vec::new()),
            },
            _ => Answer::Fails(vec![ErrorKind::NotFound]),
        }
    }

    /// The rows of a table as a snapshot has them; nothing once the table was cleared.
    fn snapshot_rows(&self, slot: u8, table: u8) -> Option<&Rows> {
        let (epoch, rows) = &self.snapshots[usize::from(slot)].as_ref()?.tables[usize::from(table)];
        (*epoch == self.table(table).epoch).then_some(rows)
    }

    fn range(
        &self,
        table: u8,
        rows: &Rows,
        within: impl Fn(&Vec<u8>) -> bool,
        reverse: bool,
        limit: Option<u8>,
        fields: Option<&[u8]>,
    ) -> Answer {
        let table = self.table(table);
        let mut found: Vec<Option<ReadRow>> = rows
            .iter()
            .filter(|(key, row)| within(key) && row.is_live(self.now_ms))
            .map(|(key, row)| Some(table.read(key, row, fields, self.now_ms)))
            .collect();
        if reverse {
            found.reverse();
        }
        found.truncate(limit.map_or(usize::MAX, usize::from));
        Answer::Rows(found)
    }
}

impl ModelField {
    fn learned(id: u32, name: &str) -> ModelField {
        let default = Arc::new(OwnedValue::Null);
        ModelField { id, name: name.to_owned(), kind: Type::Bytes, nullable: true, default }
    }
}

impl ModelTable {
    fn new(table: usize, epoch: u64) -> ModelTable {
        let schema = first_schema(table);
        let field = |(id, field): (usize, &hedgerow::Field)| ModelField {
            id: id as u32,
            name: field.name().to_owned(),
            kind: field.kind(),
            nullable: field.is_nullable(),
            default: Arc::new(field.default().to_owned()),
        };
        let fields: Vec<ModelField> = schema.fields().iter().enumerate().map(field).collect();
        ModelTable {
            open: schema.is_open(),
            next_id: fields.len() as u32,
            fields,
            rows: Rows::new(),
            epoch,
            loaded: false,
            expires: false,
        }
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.epoch += 1;
        (self.loaded, self.expires) = (false, false);
    }

    fn by_name(&self, name: &str) -> Option<&ModelField> {
        self.fields.iter().find(|f| f.name == name)
    }

    fn has_all(&self, fields: &[u8]) -> bool {
        fields.iter().all(|&field| self.by_name(NAMES[usize::from(field)]).is_some())
    }

    /// The errors that a write of `values`, which expire as `expiries` says (those it leaves out do not), may end in. If there are none, an open table has learned new names.
    fn check(
        &mut self,
        key: &[u8],
        values: &[(&'static str, OwnedValue)],
        update: bool,
        expiries: &[Option<u64>],
    ) -> Vec<ErrorKind> {
        let (mut errors, known) = (Vec::new(), self.fields.len());
        if key.is_empty() || (update && values.is_empty()) {
            errors.push(ErrorKind::Invalid);
        }
        for (name, _) in values {
            if self.by_name(name).is_some() {
                continue;
            }
            if self.open && !key.is_empty() {
                self.fields.push(ModelField::learned(self.next_id, name));
                self.next_id += 1;
            } else {
                errors.push(ErrorKind::NotFound);
            }
        }
        for field in &self.fields {
            // Of several values for one field the last counts.
            let Some((_, value)) = values.iter().rfind(|(name, _)| *name == field.name) else { continue };
            let mut given = values.iter().zip(expiries).filter(|((name, _), _)| *name == field.name);
            let expires = given.any(|(_, expiry)| expiry.is_some());
            let fits = match value {
                OwnedValue::Null => field.nullable,
                value => fits(field.kind, value) && (field.nullable || !expires),
            };
            if !fits {
                errors.push(ErrorKind::Invalid);
            }
        }
        if !errors.is_empty() {
            self.fields.truncate(known);
        }
        errors
    }

    fn put(
        &mut self,
        key: Vec<u8>,
        values: &[(&'static str, OwnedValue)],
        expiries: &[Option<u64>],
        expires_at_ms: Option<u64>,
        version: u64,
    ) {
        self.expires |= expires_at_ms.is_some();
        let mut row = ModelRow { cells: BTreeMap::new(), expires_at_ms, version };
        self.set(&mut row, values, expiries);
        self.rows.insert(key, Arc::new(row));
    }

    fn update(
        &mut self,
        key: Vec<u8>,
        values: &[(&'static str, OwnedValue)],
        expiries: &[Option<u64>],
        version: u64,
        now_ms: u64,
    ) {
        let mut row = match self.rows.get(&key) {
            Some(row) if row.is_live(now_ms) => (**row).clone(),
            _ => ModelRow::default(),
        };
        row.version = version;
        self.set(&mut row, values, expiries);
        self.rows.insert(key, Arc::new(row));
    }

    fn expire(&mut self, key: &[u8], expires_at_ms: Option<u64>, version: u64) {
        self.expires |= expires_at_ms.is_some();
        if let Some(row) = self.rows.get_mut(key) {
            let mut changed = (**row).clone();
            (changed.expires_at_ms, changed.version) = (expires_at_ms, version);
            *row = Arc::new(changed);
        }
    }

    fn set(&self, row: &mut ModelRow, values: &[(&'static str, OwnedValue)], expiries: &[Option<u64>]) {
        for (index, (name, value)) in values.iter().enumerate() {
            let expires_at_ms = expiries.get(index).copied().flatten();
            if let Some(field) = self.by_name(name) {
                row.cells.insert(field.id, Cell { value: Arc::new(value.clone()), expires_at_ms });
            }
        }
    }

    fn value(&self, row: &ModelRow, field: &ModelField, now_ms: u64) -> Arc<OwnedValue> {
        match row.cells.get(&field.id) {
            None => Arc::clone(&field.default),
            Some(cell) if cell.expires_at_ms.is_some_and(|ms| ms <= now_ms) => Arc::new(OwnedValue::Null),
            Some(cell) => Arc::clone(&cell.value),
        }
    }

    fn read(&self, key: &[u8], row: &ModelRow, fields: Option<&[u8]>, now_ms: u64) -> ReadRow {
        let wanted: Vec<&ModelField> = match fields {
            None => self.fields.iter().collect(),
            Some(fields) => {
                fields.iter().filter_map(|&field| self.by_name(NAMES[usize::from(field)])).collect()
            }
        };
        let (mut fields, mut field_expiries) = (Vec::new(), Vec::new());
        for field in wanted {
            let value = self.value(row, field, now_ms);
            if *value != OwnedValue::Null {
                fields.push((field.name.clone(), value));
                field_expiries.push(row.cells.get(&field.id).and_then(|cell| cell.expires_at_ms));
            }
        }
        let (key, expires_at_ms, version) = (key.to_vec(), row.expires_at_ms, row.version);
        ReadRow { key, fields, field_expiries, expires_at_ms, version }
    }
}

/// Whether a value that this crate makes is one of the type.
fn fits(kind: Type, value: &OwnedValue) -> bool {
    match (kind, value.borrow()) {
        (Type::FixedBytes(len), Value::Bytes(bytes)) => bytes.len() == usize::from(len),
        (Type::Bytes, Value::Bytes(_)) | (Type::String, Value::Str(_)) => true,
        (Type::Bool, Value::Bool(_)) | (Type::F32 | Type::F64, Value::Float(_)) => true,
        (Type::Timestamp, Value::Timestamp(_)) => true,
        (Type::I8 | Type::I16 | Type::I32 | Type::I64, Value::Int(_)) => true,
        (Type::U8 | Type::U16 | Type::U32 | Type::U64, Value::UInt(_)) => true,
        _ => false,
    }
}
