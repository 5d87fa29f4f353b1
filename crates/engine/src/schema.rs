//! Tables' schemas: fields, types, and how they evolve.

mod value;

pub use value::{OwnedValue, Value};

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Type {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    /// Microseconds since 1970-01-01 UTC.
    Timestamp,
    /// Exactly this many bytes, 1 to 4096.
    FixedBytes(u16),
    /// Bytes of any length up to the row limit.
    Bytes,
    /// UTF-8 text of any length up to the row limit.
    String,
}

/// A field, resolved once: a position in the schema it came from, cheap to copy, for hot paths.
/// Stable for the life of the table: renaming a field does not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldId(pub(crate) u16);

/// One field of a schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    pub(crate) id: FieldId,
    pub(crate) name: String,
    pub(crate) kind: Type,
    pub(crate) nullable: bool,
    pub(crate) default: OwnedValue,
}

/// The fields of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Schema {
    fields: Vec<Field>,
    open: bool,
}

/// Names a field: by `&str`, or by [`FieldId`] where the look-up should be paid once.
pub trait FieldName: Copy {
    /// The field's position in `schema`, if it has one.
    fn find(self, schema: &Schema) -> Option<usize>;
    /// How to call the field in an error.
    fn describe(self) -> String;
}
