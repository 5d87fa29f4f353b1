//! Tables' schemas: fields, types, how they evolve, and the bytes of a row (design section 3; FOCUS section V-A).
//!
//! Owns what a row means: which fields it has, where each lies in the body of a row or delta record, and how bodies written
//! under one version of a schema read under a later one. It promises that a plan which could be made encodes without
//! failing, each value copied once, and that reading arbitrary bytes ends in a value or `Corrupted`, never in a panic. It
//! must not know about keys, record headers, checksums, logs or indexes.
//!
//! [`types`] has the types, `format` the bytes, [`layout`] the offsets, [`plan`] the writing, [`body`] the reading, [`merge`] the
//! consolidation of a row with its deltas, [`fold`] that of deltas without their row, [`table`] the evolution of a table's schema
//! and [`catalog`] its bytes.

pub mod body;
pub mod catalog;
pub mod fold;
mod format;
pub mod layout;
pub mod merge;
pub mod names;
pub mod plan;
pub mod probe;
pub mod table;
pub mod types;
mod value;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use names::NameIndex;
use types::Misfit;

pub use types::Type;
pub(crate) use value::time_of_micros;
pub use value::{OwnedValue, Value};

use crate::limits::FIELDS_MAX;
use crate::{Error, ErrorKind, Result};

/// Bytes in a field's name: 1 to this.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Bytes in a field's default: 0 to this.
pub(crate) const DEFAULT_BYTES_MAX: usize = 4096;

/// A field, resolved once: a position in the schema it came from, cheap to copy, for hot paths.
/// Stable for the life of the table: renaming a field does not change it, and no later field gets the id of a dropped one.
/// It means nothing in another table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldId(pub(crate) u16);

impl FieldId {
    /// A small number that no other field of its table has or will have: for tables by field, and sets of bits.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// One field of a schema.
#[derive(Debug, Clone)]
pub struct Field {
    pub(crate) id: FieldId,
    pub(crate) name: String,
    pub(crate) kind: Type,
    pub(crate) nullable: bool,
    /// As `kind.decode` would give it; `Null` iff `nullable`.
    pub(crate) default: OwnedValue,
}

impl Field {
    /// The field, resolved.
    #[inline]
    pub fn id(&self) -> FieldId {
        self.id
    }

    /// 1 to 255 bytes.
    #[inline]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The field's type.
    #[inline]
    pub fn kind(&self) -> Type {
        self.kind
    }

    /// Whether a row may be without it.
    #[inline]
    pub fn is_nullable(&self) -> bool {
        self.nullable
    }

    /// What it holds in rows that were written without it: `Null` if nullable.
    #[inline]
    pub fn default(&self) -> Value<'_> {
        self.default.borrow()
    }

    fn validate(&self) -> Result<()> {
        validate_name(&self.name)?;
        self.kind.validate()?;
        if self.default == OwnedValue::Null {
            let reason = "needs a default, for it is not nullable";
            return if self.nullable {
                Ok(())
            } else {
                Err(Error::invalid(format!("field {:?} {reason}", self.name)))
            };
        }
        let default = self.default.borrow();
        let bytes = self.kind.check(&default).map_err(|misfit| misfit_error(self, &default, misfit))?;
        if bytes > DEFAULT_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the default of field {:?} has {bytes} bytes; a default has at most {DEFAULT_BYTES_MAX}",
                self.name
            )));
        }
        Ok(())
    }

    /// Gives the default the form in which reading gives values (`default` must have passed `validate`).
    fn normalise(&mut self) {
        if self.default != OwnedValue::Null {
            let mut buffer = [0; 8];
            let default = self.default.clone();
            let raw = self.kind.raw(&default.borrow(), &mut buffer).to_vec();
            self.default = self.kind.decode(&raw).map_or_else(|_| self.kind.zero(), |value| value.to_owned());
        }
    }
}

/// Equal by definition (name, type, nullability, default); the id does not count.
impl PartialEq for Field {
    fn eq(&self, other: &Field) -> bool {
        let same_default = match (&self.default, &other.default) {
            (OwnedValue::Float(a), OwnedValue::Float(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a.borrow() == b.borrow(),
        };
        (&self.name, self.kind, self.nullable) == (&other.name, other.kind, other.nullable) && same_default
    }
}

/// The fields of a table, in the order they were declared or learned.
///
/// ```
/// # use hedgerow_row as hedgerow;
/// use hedgerow::{Schema, Type};
/// let schema = Schema::new()
///     .field("name", Type::String)
///     .nullable("email", Type::String)
///     .field_with_default("logins", Type::U32, 1u32);
/// assert_eq!(schema.field_by_name("email").map(|field| field.is_nullable()), Some(true));
/// ```
///
/// Names, types and defaults are checked when a table is created from it: names are 1 to 255 bytes and differ, there are at most
/// [`FIELDS_MAX`] fields, fixed-length bytes are 1 to 4096 long, defaults are of their field's type and at most 4096 bytes long.
#[derive(Debug, Clone)]
pub struct Schema {
    /// In ascending order of id.
    fields: Vec<Field>,
    /// Positions below this are the ids of their fields.
    dense: usize,
    open: bool,
    names: NameIndex,
}

impl Default for Schema {
    fn default() -> Schema {
        Schema::new()
    }
}

/// Equal if they have equal fields in the same order and are both open or both not.
impl PartialEq for Schema {
    fn eq(&self, other: &Schema) -> bool {
        self.open == other.open && self.fields == other.fields
    }
}

impl Schema {
    /// No fields yet.
    pub fn new() -> Schema {
        Schema { fields: Vec::new(), dense: 0, open: false, names: NameIndex::default() }
    }

    /// Plain key-value: one field `value` of type `Bytes`, empty by default.
    pub fn flat() -> Schema {
        Schema::new().field("value", Type::Bytes)
    }

    /// Learns fields as they appear in writes: each new name becomes a nullable field of type `Bytes`. Fields may be declared
    /// beforehand too.
    pub fn open() -> Schema {
        Schema { open: true, ..Schema::new() }
    }

    /// Adds a field that every row has: false, zero or empty in rows that are written without it.
    pub fn field(self, name: impl Into<String>, kind: Type) -> Schema {
        self.push(name.into(), kind, false, kind.zero())
    }

    /// Adds a field that rows may be without.
    pub fn nullable(self, name: impl Into<String>, kind: Type) -> Schema {
        self.push(name.into(), kind, true, OwnedValue::Null)
    }

    /// Adds a field that every row has: `default` in rows that are written without it.
    pub fn field_with_default<'v>(
        self,
        name: impl Into<String>,
        kind: Type,
        default: impl Into<Value<'v>>,
    ) -> Schema {
        self.push(name.into(), kind, false, default.into().to_owned())
    }

    fn push(mut self, name: String, kind: Type, nullable: bool, default: OwnedValue) -> Schema {
        // Too many fields are refused when the table is created; until then an id need not be unique.
        let id = FieldId(u16::try_from(self.fields.len()).unwrap_or(u16::MAX));
        self.fields.push(Field { id, name, kind, nullable, default });
        self.dense = self.fields.len().min(u16::MAX as usize);
        self
    }

    /// Whether new names in writes are learned.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The fields in order.
    #[inline]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The field of that name.
    pub fn field_by_name(&self, name: &str) -> Option<&Field> {
        self.position_of_name(name).map(|position| &self.fields[position])
    }

    /// Checks what [`Schema`] says is checked.
    pub fn validate(&self) -> Result<()> {
        if self.fields.len() > FIELDS_MAX {
            return Err(too_many_fields(self.fields.len()));
        }
        let mut names: Vec<&str> = self.fields.iter().map(Field::name).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!("two fields are called {:?}", pair[0])));
        }
        self.fields.iter().try_for_each(Field::validate)
    }

    /// A schema of fields that have been validated and are in ascending order of id, with its names indexed.
    fn from_valid(fields: Vec<Field>, open: bool) -> Schema {
        let names = NameIndex::new(fields.iter().map(Field::name));
        let dense = dense(fields.iter().map(Field::id));
        Schema { fields, dense, open, names }
    }

    /// The position of the field with this id. Ids are as good as dense: a field that comes after `d` dropped ones is found by
    /// bisection, all others at once.
    #[inline]
    #[doc(hidden)]
    pub fn position_of(&self, id: FieldId) -> Option<usize> {
        if (id.0 as usize) < self.dense {
            return Some(id.0 as usize);
        }
        self.fields.binary_search_by_key(&id, |field| field.id).ok()
    }

    fn position_of_name(&self, name: &str) -> Option<usize> {
        if self.names.is_empty() {
            return self.fields.iter().position(|field| field.name == name);
        }
        self.names.find(name, |position| self.fields[position].name == name)
    }
}

/// How many of `ids`, which ascend, equal their position: those before any gap.
fn dense(ids: impl Iterator<Item = FieldId>) -> usize {
    ids.enumerate().take_while(|(position, id)| *position == id.0 as usize).count()
}

fn validate_name(name: &str) -> Result<()> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        n => Err(Error::invalid(format!("a field name of {n} bytes; a name has 1 to {NAME_BYTES_MAX}"))),
    }
}

fn too_many_fields(fields: usize) -> Error {
    Error::invalid(format!("{fields} fields; a table has at most {FIELDS_MAX}"))
}

#[cold]
fn misfit_error(field: &Field, value: &Value<'_>, misfit: Misfit) -> Error {
    let (name, kind) = (field.name(), field.kind());
    Error::invalid(match misfit {
        Misfit::Kind => format!("field {name:?} is of type {kind}, which takes no {}", value.kind_name()),
        Misfit::Range => format!("field {name:?} is of type {kind}, which cannot hold {value}"),
        Misfit::Length(bytes) => {
            format!("field {name:?} is of type {kind}, which takes no value of {bytes} bytes")
        }
        Misfit::Utf8 => format!("field {name:?} is of type {kind}, which takes UTF-8 only"),
    })
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for &str {}
    impl Sealed for &String {}
    impl Sealed for super::FieldId {}
    impl<T: Sealed> Sealed for &T {}
}

/// Names a field: by `&str`, or by [`FieldId`] where the look-up should be paid once.
pub trait FieldName: Copy + sealed::Sealed {
    /// The field's position in `schema`, if it has one.
    fn find(self, schema: &Schema) -> Option<usize>;
    /// Like `find`, but looks at position `hint` first: fields are most often named in the schema's order.
    fn find_near(self, schema: &Schema, hint: usize) -> Option<usize>;
    /// How to call the field in an error.
    fn describe(self) -> String;
    /// The name, if this is a name and not an id.
    fn name(&self) -> Option<&str>;
}

impl FieldName for &str {
    fn find(self, schema: &Schema) -> Option<usize> {
        schema.position_of_name(self)
    }

    #[inline]
    fn find_near(self, schema: &Schema, hint: usize) -> Option<usize> {
        match schema.fields.get(hint) {
            Some(field) if field.name == self => Some(hint),
            _ => schema.position_of_name(self),
        }
    }

    fn describe(self) -> String {
        format!("{self:?}")
    }

    fn name(&self) -> Option<&str> {
        Some(self)
    }
}

impl FieldName for &String {
    fn find(self, schema: &Schema) -> Option<usize> {
        schema.position_of_name(self)
    }

    fn find_near(self, schema: &Schema, hint: usize) -> Option<usize> {
        self.as_str().find_near(schema, hint)
    }

    fn describe(self) -> String {
        self.as_str().describe()
    }

    fn name(&self) -> Option<&str> {
        Some(self.as_str())
    }
}

impl FieldName for FieldId {
    #[inline]
    fn find(self, schema: &Schema) -> Option<usize> {
        schema.position_of(self)
    }

    #[inline]
    fn find_near(self, schema: &Schema, _hint: usize) -> Option<usize> {
        schema.position_of(self)
    }

    fn describe(self) -> String {
        format!("number {}", self.0)
    }

    fn name(&self) -> Option<&str> {
        None
    }
}

impl<T: FieldName> FieldName for &T {
    fn find(self, schema: &Schema) -> Option<usize> {
        (*self).find(schema)
    }

    fn find_near(self, schema: &Schema, hint: usize) -> Option<usize> {
        (*self).find_near(schema, hint)
    }

    fn describe(self) -> String {
        (*self).describe()
    }

    fn name(&self) -> Option<&str> {
        (**self).name()
    }
}

/// The error for a field a table does not have.
#[cold]
pub fn unknown_field(name: impl FieldName) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no field {}", name.describe()))
}

/// The fields of a row, as `put` and `update` take them. Names are identifiers, or strings where they are none.
///
/// ```
/// # use hedgerow_row as hedgerow;
/// use hedgerow::{row, Value};
/// let fields = row! { name: "Ada", age: 36, "e-mail": None::<&str> };
/// assert_eq!(fields, [("name", Value::Str("Ada")), ("age", Value::Int(36)), ("e-mail", Value::Null)]);
/// ```
#[macro_export]
macro_rules! row {
    (@name $name:ident) => { ::core::stringify!($name) };
    (@name $name:literal) => { $name };
    () => { [] as [(&'static str, $crate::Value<'static>); 0] };
    ($($name:tt : $value:expr),+ $(,)?) => { [$(($crate::row!(@name $name), $crate::Value::from($value))),+] };
}
