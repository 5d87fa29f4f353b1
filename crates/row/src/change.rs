//! `Change`: what is to become of one row.
//!
//! Owns what a caller who has looked at a row may ask of its store. It must not know how a store writes it.

use crate::OwnedValue;

/// What a step on one row writes: `modify` of a table is given it by a function that has seen the row.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Nothing.
    Keep,
    /// The whole row, with its expiry in ms since 1970.
    Put {
        /// Names and values; the other fields take their defaults.
        fields: Vec<(String, OwnedValue)>,
        /// When the row expires, if it does.
        expires_at_ms: Option<u64>,
    },
    /// Some fields; makes the row if there is none.
    Update {
        /// Names and values; `Null` removes a nullable field.
        fields: Vec<(String, OwnedValue)>,
        /// When these fields expire, if they do.
        expires_at_ms: Option<u64>,
    },
    /// The row's expiry; nothing if there is no row.
    Expire(Option<u64>),
    /// Removes the row.
    Delete,
}
