//! Hedgerow: an embedded store for rows.

mod db;
mod error;
mod index;
mod log;
mod options;
mod schema;
mod sync;

pub use db::inspect;
pub use db::{Batch, Change, Db, FAST_TIER_FILE, Metrics, Row, RowRef, Scan, Snapshot, Table};
pub use error::{Error, ErrorKind, Result};
pub use options::{Durability, Options};
pub use schema::{Field, FieldId, FieldName, OwnedValue, Schema, Type, Value};

/// The limits of one row.
pub mod limits {
    /// Bytes in a key: 1 to this.
    pub const KEY_BYTES_MAX: usize = 64 << 10;
    /// Bytes in one value and in one row's values together.
    pub const ROW_BYTES_MAX: usize = 64 << 20;
    /// Fields in a table.
    pub const FIELDS_MAX: usize = 1024;
}

/// Parts for measuring from outside. Unstable: no promise is made about anything in here.
#[doc(hidden)]
pub mod parts {
    /// The index.
    pub mod index {
        pub use crate::index::*;
    }
}
