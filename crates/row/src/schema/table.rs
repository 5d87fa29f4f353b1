//! The schema of a table over time.
//!
//! Owns which field was there at which version, and the layouts of all versions. A `TableSchema` is an immutable value: each
//! change makes a new one, which shares the layouts known so far, for the engine to swap in. It promises that ids are never used
//! twice, so that no row of any age shows one field's bytes as another's. It must not know where it is kept.
//!
//! A version stands for a set of fields, so adding and dropping make a new one and renaming does not.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use super::layout::Layout;
use super::{Field, FieldId, OwnedValue, Schema, Type, Value, too_many_fields, validate_name};
use crate::limits::FIELDS_MAX;
use crate::{Error, ErrorKind, Result};

/// Fields in the whole life of a table, dropped ones included, and versions of its schema.
pub(crate) const LIFE_MAX: usize = u16::MAX as usize;

/// A field and the versions it is in: from `added` up to but not including `dropped`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FieldLife {
    pub(super) field: Field,
    pub(super) added: u16,
    /// 0 while it lives.
    pub(super) dropped: u16,
}

impl FieldLife {
    pub(super) fn is_in(&self, version: u16) -> bool {
        self.added <= version && (self.dropped == 0 || version < self.dropped)
    }
}

/// What a new field holds in rows written without it.
#[derive(Debug, Clone)]
pub enum NewField<'v> {
    /// Nothing; rows may be without it.
    Nullable,
    /// This; `None` for the type's zero.
    Default(Option<Value<'v>>),
}

/// A table's schema with its history.
#[derive(Debug)]
pub struct TableSchema {
    /// Ascending by id.
    history: Vec<FieldLife>,
    /// The id of the next field.
    next_id: u16,
    /// Of the current schema; from 1.
    version: u16,
    current: Arc<Schema>,
    layout: Arc<Layout>,
    /// Layouts of versions 1 to `version - 1`, made when first asked for.
    older: Box<[OnceLock<Arc<Layout>>]>,
    /// The bytes of the current fields' defaults, by position; empty for nullable fields.
    defaults: Box<[Box<[u8]>]>,
    access: FieldAccess,
}

/// How readers get at fields. Nothing of it is persisted, and whatever it is, they find the same: it is for measuring what
/// either is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldAccess {
    /// Fixed fields at their constant offsets; else by walking the fields before them.
    pub by_offset: bool,
    /// Down a chain of deltas no farther than to the newest that names the field; else to its end.
    pub early_stop: bool,
}

impl Default for FieldAccess {
    fn default() -> FieldAccess {
        FieldAccess { by_offset: true, early_stop: true }
    }
}

impl TableSchema {
    /// Version 1 of a new table's schema.
    pub fn create(schema: &Schema) -> Result<TableSchema> {
        schema.validate()?;
        let life = |(id, field): (usize, &Field)| {
            let mut field = Field { id: FieldId(id as u16), ..field.clone() };
            field.normalise();
            FieldLife { field, added: 1, dropped: 0 }
        };
        let history: Vec<FieldLife> = schema.fields().iter().enumerate().map(life).collect();
        let next_id = history.len() as u16;
        Ok(TableSchema::assemble(history, next_id, 1, schema.is_open(), Vec::new()))
    }

    /// `history` must be valid, `older` no longer than `version - 1`.
    pub(super) fn assemble(
        history: Vec<FieldLife>,
        next_id: u16,
        version: u16,
        open: bool,
        mut older: Vec<OnceLock<Arc<Layout>>>,
    ) -> TableSchema {
        let fields: Vec<Field> =
            history.iter().filter(|life| life.dropped == 0).map(|life| life.field.clone()).collect();
        let layout = Arc::new(Layout::new(version, fields.iter(), false));
        let raw = |field: &Field| match field.default() {
            Value::Null => Box::default(),
            default => field.kind().raw(&default, &mut [0; 8]).into(),
        };
        let defaults = fields.iter().map(raw).collect();
        older.resize_with(version as usize - 1, OnceLock::new);
        let current = Arc::new(Schema::from_valid(fields, open));
        let access = FieldAccess::default();
        TableSchema { history, next_id, version, current, layout, older: older.into(), defaults, access }
    }

    /// The same, read in another way.
    pub fn with_access(self, access: FieldAccess) -> TableSchema {
        if access == self.access {
            return self;
        }
        let layout = Arc::new(Layout::new(self.version, self.current.fields().iter(), !access.by_offset));
        let older = self.older.iter().map(|_| OnceLock::new()).collect();
        TableSchema { layout, older, access, ..self }
    }

    /// How readers get at fields.
    #[inline]
    pub fn access(&self) -> FieldAccess {
        self.access
    }

    /// The version rows are written under now.
    #[inline]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The current schema.
    #[inline]
    pub fn fields(&self) -> &Schema {
        &self.current
    }

    /// The current schema, to keep.
    pub fn shared(&self) -> Arc<Schema> {
        Arc::clone(&self.current)
    }

    /// The layout of the current version.
    #[inline]
    pub fn current_layout(&self) -> &Layout {
        &self.layout
    }

    /// The layout of `version`; `None` if there is no such version *here*: look at the table's newest schema before calling the row
    /// corrupted.
    #[inline]
    pub fn layout(&self, version: u16) -> Option<&Arc<Layout>> {
        if version == self.version {
            return Some(&self.layout);
        }
        let cell = self.older.get((version as usize).checked_sub(1)?)?;
        Some(cell.get_or_init(|| {
            let fields = self.history.iter().filter(|life| life.is_in(version));
            Arc::new(Layout::new(version, fields.map(|life| &life.field), !self.access.by_offset))
        }))
    }

    /// The bytes of the default of the field at `position`, which is not nullable.
    #[inline]
    pub(super) fn default_raw(&self, position: usize) -> &[u8] {
        &self.defaults[position]
    }

    pub(super) fn history(&self) -> &[FieldLife] {
        &self.history
    }

    pub(super) fn next_id(&self) -> u16 {
        self.next_id
    }

    /// Whether a table with this schema may be opened as one with `schema`: equal definitions, or, for an open table, equal
    /// but for fields it has learned since.
    pub fn accepts(&self, schema: &Schema) -> bool {
        let current = self.fields();
        let learned = |field: &Field| field.nullable && field.kind == Type::Bytes;
        *current == Schema { fields: schema.fields.iter().map(normalised).collect(), ..schema.clone() }
            || (current.is_open()
                && schema.is_open()
                && schema
                    .fields()
                    .iter()
                    .all(|field| current.field_by_name(field.name()) == Some(&normalised(field)))
                && current
                    .fields()
                    .iter()
                    .all(|field| learned(field) || schema.field_by_name(field.name()).is_some()))
    }

    /// With the fields of `schema` that are missing here, in one version. Fields that `schema` does not name stay.
    ///
    /// # Errors
    /// `Exists`, with all that differs, if a field has another definition here, or one of the two learns fields and the other does not.
    pub fn with_ensured(&self, table: &str, schema: &Schema) -> Result<TableSchema> {
        schema.validate()?;
        let mut different = Vec::new();
        if self.current.is_open() != schema.is_open() {
            let kind = |open| if open { "open" } else { "not open" };
            different.push(format!(
                "it is {} there and {} here",
                kind(self.current.is_open()),
                kind(schema.is_open())
            ));
        }
        let mut missing = Vec::new();
        for field in schema.fields().iter().map(normalised) {
            match self.current.field_by_name(&field.name) {
                Some(there) if *there == field => {}
                Some(there) => different.push(format!(
                    "field {:?} is {} there and {} here",
                    field.name,
                    definition(there),
                    definition(&field)
                )),
                None => missing.push(field),
            }
        }
        match different.is_empty() {
            true => self.with_fields(missing),
            false => {
                let message = format!("the table {table:?} differs: {}", different.join("; "));
                Err(Error::new(ErrorKind::Exists, message))
            }
        }
    }

    /// With one more field.
    pub fn with_added(&self, name: &str, kind: Type, new: NewField<'_>) -> Result<TableSchema> {
        if self.current.field_by_name(name).is_some() {
            return Err(exists(name));
        }
        let (nullable, default) = match new {
            NewField::Nullable => (true, OwnedValue::Null),
            NewField::Default(None) => (false, kind.zero()),
            NewField::Default(Some(value)) => (false, value.to_owned()),
        };
        self.with_fields(vec![Field { id: FieldId(0), name: name.to_owned(), kind, nullable, default }])
    }

    /// An open table's, with those of `names` that are new as nullable fields of type `Bytes`; one version for all of them.
    pub fn with_learned(&self, names: &[impl AsRef<str>]) -> Result<TableSchema> {
        if !self.current.is_open() {
            let name = names.first().map_or("", AsRef::as_ref);
            return Err(super::unknown_field(name));
        }
        let (mut new, mut seen) = (Vec::new(), HashSet::new());
        for name in names.iter().map(AsRef::as_ref) {
            if self.current.field_by_name(name).is_none() && seen.insert(name) {
                let (name, default) = (name.to_owned(), OwnedValue::Null);
                new.push(Field { id: FieldId(0), name, kind: Type::Bytes, nullable: true, default });
            }
        }
        self.with_fields(new)
    }

    fn with_fields(&self, new: Vec<Field>) -> Result<TableSchema> {
        let fields = self.current.fields().len() + new.len();
        if fields > FIELDS_MAX {
            return Err(too_many_fields(fields));
        }
        if self.next_id as usize + new.len() > LIFE_MAX {
            return Err(Error::invalid(format!(
                "a table has at most {LIFE_MAX} fields in its life, dropped ones included"
            )));
        }
        let version = if new.is_empty() { self.version } else { self.next_version()? };
        let mut history = self.history.clone();
        let mut next_id = self.next_id;
        for mut field in new {
            field.validate()?;
            field.normalise();
            field.id = FieldId(next_id);
            next_id += 1;
            history.push(FieldLife { field, added: version, dropped: 0 });
        }
        Ok(self.successor(history, next_id, version))
    }

    /// With a field under another name.
    pub fn with_renamed(&self, name: &str, to: &str) -> Result<TableSchema> {
        let id = self.field(name)?.id;
        validate_name(to)?;
        if name != to && self.current.field_by_name(to).is_some() {
            return Err(exists(to));
        }
        let mut history = self.history.clone();
        if let Some(life) = history.iter_mut().find(|life| life.field.id == id) {
            to.clone_into(&mut life.field.name);
        }
        Ok(self.successor(history, self.next_id, self.version))
    }

    /// Without a field. Its name is free again; an open table may learn it anew, as another field.
    pub fn with_dropped(&self, name: &str) -> Result<TableSchema> {
        let id = self.field(name)?.id;
        let version = self.next_version()?;
        let mut history = self.history.clone();
        if let Some(life) = history.iter_mut().find(|life| life.field.id == id) {
            life.dropped = version;
        }
        Ok(self.successor(history, self.next_id, version))
    }

    fn field(&self, name: &str) -> Result<&Field> {
        self.current.field_by_name(name).ok_or_else(|| super::unknown_field(name))
    }

    fn next_version(&self) -> Result<u16> {
        self.version.checked_add(1).ok_or_else(|| {
            Error::invalid(format!("a table's schema changes at most {LIFE_MAX} times in its life"))
        })
    }

    fn successor(&self, history: Vec<FieldLife>, next_id: u16, version: u16) -> TableSchema {
        let mut older = self.older.to_vec();
        if version > self.version {
            older.push(OnceLock::from(Arc::clone(&self.layout)));
        }
        TableSchema::assemble(history, next_id, version, self.current.is_open(), older)
            .with_access(self.access)
    }
}

fn normalised(field: &Field) -> Field {
    let mut field = field.clone();
    if field.validate().is_ok() {
        field.normalise();
    }
    field
}

/// A field but for its name, for a person.
fn definition(field: &Field) -> String {
    match (field.nullable, field.default.borrow()) {
        (true, _) => format!("{} and nullable", field.kind),
        (false, default) if default == field.kind.zero().borrow() => field.kind.to_string(),
        (false, default) => format!("{} with default {default}", field.kind),
    }
}

fn exists(name: &str) -> Error {
    Error::new(ErrorKind::Exists, format!("there is a field {name:?} already"))
}
