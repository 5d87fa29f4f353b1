//! `Change`: what is to become of one row.
//!
//! Owns what a caller who has looked at a row may ask of its store. It must not know how a store writes it.

use crate::{Expiry, OwnedValue, Value};

/// What a step on one row writes: `modify` of a table is given it by a function that has seen the row.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Nothing.
    Keep,
    /// The whole row.
    Put {
        /// Names and values; the other fields take their defaults.
        fields: Vec<(String, OwnedValue)>,
        /// When the row expires.
        expiry: Expiry,
    },
    /// Some fields; makes the row if there is none.
    Update {
        /// Names and values; `Null` removes a nullable field.
        fields: Vec<(String, OwnedValue)>,
        /// When these fields expire; the row's own expiry stays.
        expiry: Expiry,
    },
    /// When the row expires; nothing if there is no row.
    Expire(Expiry),
    /// Removes the row.
    Delete,
}

impl Change {
    /// The whole row, which does not expire. For fields as [`row!`](crate::row!) makes them.
    pub fn put(fields: &[(&str, Value<'_>)]) -> Change {
        Change::Put { fields: owned(fields), expiry: Expiry::Never }
    }

    /// Some fields, which do not expire. For fields as [`row!`](crate::row!) makes them.
    pub fn update(fields: &[(&str, Value<'_>)]) -> Change {
        Change::Update { fields: owned(fields), expiry: Expiry::Never }
    }
}

fn owned(fields: &[(&str, Value<'_>)]) -> Vec<(String, OwnedValue)> {
    fields.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}
