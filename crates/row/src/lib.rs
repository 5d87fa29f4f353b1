//! What a row is, whatever store keeps it.
//!
//! This crate owns what a row means and its bytes: values and their types, schemas and how they evolve, the body of a row and of a
//! change to one, and the errors that all stores share; and the seam for those stores that keep a row as a pair. It knows nothing of
//! logs, indexes, files or threads, and has no `unsafe`. Arrows run one way: `hedgerow-device <- hedgerow-row <- hedgerow`.
//!
//! # Who uses what
//!
//! **People who use a store** find all they need in `hedgerow`, which re-exports what is at the root of this crate ([`Schema`], [`Value`],
//! [`Error`], [`row!`], [`limits`] and so on). Those names are stable as `hedgerow`'s own are.
//!
//! **Stores** use the modules as well: [`schema`] and [`stored_row`] for the bytes of rows, [`body_blocks`] for what of them is
//! verified, [`le_bytes`] for numbers in bytes at rest. `hedgerow` does not re-export them. Some methods of types at the root are
//! for stores, too (`Error::new`, `Type::decode`): the documentation hides them. No promise is made about either: they change with
//! the stores of the same version.
//!
//! | module | owns |
//! |---|---|
//! | [`schema`] | what a row means: fields, types, evolution, and the bytes of a row's body |
//! | [`row_expiry`] | what a write makes of the expiry of its row |
//! | [`body_blocks`] | the blocks of a body, each under a checksum |
//! | [`backend`] | the seam for backends that keep pairs, and the one in memory that others are held against |
//! | [`stored_row`] | the bytes of a row in a backend that keeps pairs |
//! | [`pairs`] | rows over such a backend: tables, attempts, edits |
//! | [`increment`] | what adding to a field comes to |
//! | [`comparison`] | what comparing one with a value does |
//! | [`key`] | the bytes of keys that are strings, integers, tuples |
//! | [`limits`] | how long keys and rows may be, and how many fields a table has |
//! | `owned_row`, `change`, [`expiry`] | a row as callers keep it, what they may make of one, and when it is to be gone |
//! | [`field_value`], `typed_row` | Rust's types as values of fields, and structs as rows |
//! | `error` | what the caller should do about an error |
//! | [`le_bytes`] | numbers in bytes at rest |
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests use the machine as it is"))]

pub mod backend;
pub mod body_blocks;
mod change;
pub mod comparison;
mod error;
pub mod expiry;
pub mod field_value;
pub mod increment;
pub mod key;
pub mod le_bytes;
pub mod limits;
mod owned_row;
pub mod pairs;
pub mod row_expiry;
pub mod schema;
pub mod stored_row;
mod sync;
pub mod transaction_bytes;
mod typed_row;

pub use change::Change;
pub use error::{Error, ErrorKind, FailedWrite, Result};
pub use expiry::Expiry;
pub use field_value::{FieldValue, FromValue};
pub use key::{FromKey, Key};
pub use owned_row::Row;
pub use schema::{Field, FieldId, FieldName, OwnedValue, Schema, Type, Value};
pub use typed_row::{ReadFields, TypedRow};
