//! Random tables, rows and changes of schema against a model; random bytes against the readers.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::schema::table::FieldAccess;

#[derive(Debug, Clone)]
pub(super) enum Op {
    Put(Vec<(u16, u64)>),
    Update(Vec<(u16, u64)>, Option<u64>),
    Consolidate(u64),
    Add(u8, bool, u64),
    Rename(u16),
    Drop(u16),
    Learn(Vec<u8>),
    Reopen,
}

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let values = || prop::collection::vec((any::<u16>(), any::<u64>()), 0..12);
    let op = prop_oneof![
        3 => values().prop_map(Op::Put),
        6 => (values(), prop::option::of(0..100u64)).prop_map(|(values, ms)| Op::Update(values, ms)),
        2 => (0..100u64).prop_map(Op::Consolidate),
        3 => (any::<u8>(), any::<bool>(), any::<u64>()).prop_map(|(kind, null, seed)| Op::Add(kind, null, seed)),
        1 => any::<u16>().prop_map(Op::Rename),
        1 => any::<u16>().prop_map(Op::Drop),
        1 => prop::collection::vec(any::<u8>(), 1..80).prop_map(Op::Learn),
        1 => Just(Op::Reopen),
    ];
    prop::collection::vec(op, 1..40)
}

fn kind(seed: u8) -> Type {
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
        Type::FixedBytes(1),
        Type::FixedBytes(77),
        Type::Bytes,
        Type::String,
    ];
    KINDS[seed as usize % KINDS.len()]
}

/// Some value of the type, none of them a NaN.
fn value(kind: Type, seed: u64) -> OwnedValue {
    let bytes =
        |n: usize| -> Vec<u8> { (0..n).map(|i| b'a' + ((seed >> 3) as usize + i) as u8 % 26).collect() };
    let length = [0, 1, 8, 9, 300][(seed >> 8) as usize % 5];
    match kind {
        Type::FixedBytes(n) => OwnedValue::Bytes(bytes(n as usize).into()),
        Type::Bytes => OwnedValue::Bytes(bytes(length).into()),
        Type::String => OwnedValue::Str(String::from_utf8(bytes(length)).unwrap().into()),
        Type::Bool => OwnedValue::Bool(seed & 1 == 1),
        Type::F32 | Type::F64 => OwnedValue::Float(f64::from(seed as i16) / 4.0),
        _ => {
            let raw = seed.to_le_bytes();
            kind.decode(&raw[..kind.width().unwrap()]).unwrap().to_owned()
        }
    }
}

/// One row, as bodies and as the model has it.
pub(super) struct Row {
    pub(super) schema: TableSchema,
    base: Option<(u16, Vec<u8>, bool)>,
    /// Newest first.
    pub(super) deltas: Vec<Vec<u8>>,
    model: BTreeMap<FieldId, (OwnedValue, Option<u64>)>,
    names: u32,
}

impl Row {
    pub(super) fn new(by_offset: bool) -> Row {
        let schema = TableSchema::create(&Schema::open().field("first", Type::U32)).unwrap();
        let schema = schema.with_access(FieldAccess { by_offset, ..FieldAccess::default() });
        Row { schema, base: None, deltas: Vec::new(), model: BTreeMap::new(), names: 0 }
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(values) => self.put(values),
            Op::Update(values, expires) => self.update(values, *expires),
            Op::Consolidate(now) => self.consolidate(*now),
            Op::Add(seed, nullable, default) => {
                let (kind, default) = (kind(*seed), value(kind(*seed), *default));
                let new = match nullable {
                    true => NewField::Nullable,
                    false => NewField::Default(Some(default.borrow())),
                };
                self.names += 1;
                self.schema = self.schema.with_added(&format!("added {}", self.names), kind, new).unwrap();
            }
            Op::Rename(seed) => {
                self.names += 1;
                if let Some(name) = self.name(*seed) {
                    self.schema =
                        self.schema.with_renamed(&name, &format!("renamed {}", self.names)).unwrap();
                }
            }
            Op::Drop(seed) => {
                if let Some(name) = self.name(*seed) {
                    self.schema = self.schema.with_dropped(&name).unwrap();
                }
            }
            Op::Learn(seeds) => {
                let names: Vec<String> = seeds.iter().map(|seed| format!("learned {seed}")).collect();
                self.schema = self.schema.with_learned(&names).unwrap();
            }
            Op::Reopen => {
                let mut bytes = Vec::new();
                catalog::encode(&self.schema, &mut bytes);
                let again = catalog::decode(&bytes).unwrap();
                assert_eq!((again.version(), again.fields()), (self.schema.version(), self.schema.fields()));
                self.schema = again;
            }
        }
    }

    fn name(&self, seed: u16) -> Option<String> {
        let fields = self.schema.fields().fields();
        Some(fields[(seed as usize).checked_rem(fields.len())?].name().to_owned())
    }

    fn values(
        &self,
        seeds: &[(u16, u64)],
        nulls_only_if_nullable: bool,
    ) -> Vec<(String, FieldId, OwnedValue)> {
        let fields = self.schema.fields().fields();
        let of = |&(field, seed): &(u16, u64)| {
            let field = &fields[(field as usize).checked_rem(fields.len())?];
            if nulls_only_if_nullable && !field.is_nullable() {
                return None;
            }
            let value = if field.is_nullable() && seed % 5 == 0 {
                OwnedValue::Null
            } else {
                value(field.kind(), seed)
            };
            Some((field.name().to_owned(), field.id(), value))
        };
        seeds.iter().filter_map(of).collect()
    }

    fn put(&mut self, seeds: &[(u16, u64)]) {
        let values = self.values(seeds, false);
        let named: Vec<(&String, Value<'_>)> = values.iter().map(|(name, _, v)| (name, v.borrow())).collect();
        let resolved: Vec<(FieldId, Value<'_>)> = values.iter().map(|(_, id, v)| (*id, v.borrow())).collect();
        let body = row_body(&self.schema, &named);
        assert_eq!(row_body(&self.schema, &resolved), body);
        self.base = Some((self.schema.version(), body, false));
        self.deltas.clear();
        let defaults = self.schema.fields().fields().iter();
        self.model = defaults.map(|field| (field.id(), (field.default().to_owned(), None))).collect();
        self.model.extend(values.into_iter().map(|(_, id, value)| (id, (value, None))));
    }

    fn update(&mut self, seeds: &[(u16, u64)], expires: Option<u64>) {
        let values = self.values(seeds, expires.is_some());
        if values.is_empty() {
            return;
        }
        if self.deltas.len() == 7 {
            self.consolidate(0);
        }
        let resolved: Vec<(FieldId, Value<'_>)> = values.iter().map(|(_, id, v)| (*id, v.borrow())).collect();
        self.deltas.insert(0, delta_body(&self.schema, &resolved, expires));
        for (_, id, value) in values {
            let expires = if value == OwnedValue::Null { None } else { expires };
            self.model.insert(id, (value, expires));
        }
    }

    fn consolidate(&mut self, now: u64) {
        let (body, has_field_expiry) = {
            let merged = self.merge(now);
            (merged_body(&merged), merged.has_field_expiry())
        };
        self.base = Some((self.schema.version(), body, has_field_expiry));
        self.deltas.clear();
        self.model.retain(|_, (value, expires)| {
            if body::is_past(*expires, now) {
                (*value, *expires) = (OwnedValue::Null, None);
            }
            true
        });
    }

    pub(super) fn row_body(&self) -> Option<RowBody<'_, &[u8]>> {
        let (version, body, expiry) = self.base.as_ref()?;
        Some(RowBody::new(self.schema.layout(*version).unwrap(), &body[..], *expiry))
    }

    fn delta_bodies(&self) -> Vec<DeltaBody<&[u8]>> {
        self.deltas.iter().map(|delta| DeltaBody::new(&delta[..])).collect()
    }

    fn merge(&self, now: u64) -> MergePlan<'_> {
        MergePlan::new(&self.schema, self.row_body().as_ref(), &self.delta_bodies(), now).unwrap()
    }

    /// The field as a reader finds it that walks the chain.
    fn walk(&self, position: usize) -> FieldRead<'_> {
        for delta in &self.delta_bodies() {
            let found = delta.find(&self.schema, position).unwrap();
            let id = self.schema.fields().fields()[position].id();
            assert_eq!(delta.sets(id).unwrap(), found.map(|r| (!r.value.is_null(), r.expires_at_ms)));
            if let Some(read) = found {
                return read;
            }
        }
        let field = &self.schema.fields().fields()[position];
        match self.row_body() {
            Some(base) => {
                let read = base.read(&self.schema, position).unwrap();
                assert_eq!(base.is_present(&self.schema, position).unwrap(), !read.value.is_null());
                assert_eq!(base.expiry(&self.schema, position).unwrap(), read.expires_at_ms);
                read
            }
            None => FieldRead { value: field.default(), expires_at_ms: None },
        }
    }

    fn expected<'r>(&'r self, field: &'r Field) -> FieldRead<'r> {
        match self.model.get(&field.id()) {
            Some((value, expires)) => FieldRead { value: value.borrow(), expires_at_ms: *expires },
            None => FieldRead { value: field.default(), expires_at_ms: None },
        }
    }

    fn check(&self) {
        for (position, field) in self.schema.fields().fields().iter().enumerate() {
            assert_eq!(self.walk(position), self.expected(field), "{}", field.name());
        }
        for now in [0, 50] {
            let mut seen = Vec::new();
            self.merge(now).for_each(|position, read| seen.push((position, read))).unwrap();
            let fields = self.schema.fields().fields().iter().map(|field| self.expected(field)).enumerate();
            let expected: Vec<_> = fields.filter(|(_, read)| !read.at(now).is_null()).collect();
            assert_eq!(seen, expected);
        }
    }
}

/// Reads everything there is to read; only the absence of panics and of hangs is promised.
fn read_all(schema: &TableSchema, base: &RowBody<'_, &[u8]>, deltas: &[DeltaBody<&[u8]>]) {
    for position in 0..schema.fields().fields().len() + 1 {
        let _ = base.read(schema, position);
        let _ = base.is_present(schema, position);
        let _ = base.expiry(schema, position);
        for delta in deltas {
            let _ = delta.find(schema, position);
        }
    }
    if let Ok(merged) = MergePlan::new(schema, Some(base), deltas, 50) {
        let _ = merged.for_each(|_, _| ());
        merged_body(&merged);
    }
    if let Ok(fold) = DeltaFold::new(schema, deltas, 50) {
        folded_body(&fold);
    }
}

fn mutate(bytes: &mut Vec<u8>, mutations: &[(u32, u8)]) {
    for &(at, byte) in mutations {
        match (at as usize).checked_rem(bytes.len()) {
            Some(at) if byte == 255 => bytes.truncate(at),
            Some(at) => bytes[at] = byte,
            None => {}
        }
    }
}

fn mutations() -> impl Strategy<Value = Vec<(u32, u8)>> {
    // The head of a body steers its reading, so it is hit more often.
    prop::collection::vec((prop_oneof![0..64u32, any::<u32>()], prop_oneof![0..9u8, any::<u8>()]), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 400 }, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_as_the_model_says(ops in ops(), by_offset in any::<bool>()) {
        let mut row = Row::new(by_offset);
        for op in &ops {
            row.apply(op);
            row.check();
        }
    }

    #[test]
    fn mutated_bodies_are_refused_or_read(ops in ops(), mutations in mutations(), expiry in any::<bool>(), by_offset in any::<bool>()) {
        let mut row = Row::new(by_offset);
        ops.iter().for_each(|op| row.apply(op));
        let (version, body, has_expiry) = row.base.get_or_insert((1, Vec::new(), false));
        *version = (*version).min(row.schema.version());
        *has_expiry |= expiry;
        mutate(body, &mutations);
        row.deltas.iter_mut().for_each(|delta| mutate(delta, &mutations));
        read_all(&row.schema, &row.row_body().unwrap(), &row.delta_bodies());
    }

    #[test]
    fn arbitrary_bodies_are_refused_or_read(base in prop::collection::vec(any::<u8>(), 0..300),
                                            delta in prop::collection::vec(0..40u8, 0..200), expiry in any::<bool>()) {
        let schema = every_type();
        read_all(&schema, &RowBody::new(schema.current_layout(), &base, expiry), &[DeltaBody::new(&delta)]);
    }

    #[test]
    fn mutated_catalogs_are_refused_or_sound(ops in ops(), mutations in mutations()) {
        let mut row = Row::new(true);
        ops.iter().for_each(|op| row.apply(op));
        let mut bytes = Vec::new();
        catalog::encode(&row.schema, &mut bytes);
        mutate(&mut bytes, &mutations);
        match catalog::decode(&bytes) {
            Ok(schema) => {
                let mut again = Vec::new();
                catalog::encode(&schema, &mut again);
                prop_assert_eq!(again, bytes, "there is one encoding of a schema");
                row_body::<&str>(&schema, &[]);
                for version in 1..=schema.version().min(100) {
                    prop_assert!(schema.layout(version).is_some());
                }
            }
            Err(error) => prop_assert!(matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Version)),
        }
    }
}
