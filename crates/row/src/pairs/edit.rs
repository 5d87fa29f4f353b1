//! What an edit makes of a row that is kept whole.
//!
//! Owns the way from the row that is there and the edit to the bytes of the row that will be. What becomes of the fields is
//! [`MergePlan`]'s to say, of the row's expiry [`RowExpiry`]'s, as in every store. Must not know where rows are kept.

use std::ops::Range;
use std::sync::Arc;

use super::held_row::HeldRow;
use crate::row_expiry::{OldRow, RowExpiry};
use crate::schema::body::{BodyBytes, DeltaBody, is_past};
use crate::schema::merge::MergePlan;
use crate::schema::plan::{DeltaPlan, FieldExpiries, PlanError, RowPlan};
use crate::schema::table::TableSchema;
use crate::stored_row::{StoredRow, StoredRowSpec};
use crate::{Error, FieldName, OwnedValue, Result, Value};

/// A change of one row.
#[derive(Debug, Clone, Copy)]
pub enum Edit<'e, F> {
    /// The whole row over whatever there was, with its expiry in ms since 1970, if it has one.
    Put(&'e [(F, Value<'e>)], Option<u64>),
    /// Some fields, with when they expire on their own. Makes the row if there is none, and keeps the expiry of one that is there.
    Update(&'e [(F, Value<'e>)], FieldExpiries<'e>),
    /// The row's expiry; `None` takes it away. Without a row it changes nothing.
    Expire(Option<u64>),
    /// Removes the row.
    Delete,
}

/// Fields that are owned, as edits take them.
pub(super) fn borrowed<N>(fields: &[(N, OwnedValue)]) -> Vec<(&N, Value<'_>)> {
    fields.iter().map(|(name, value)| (name, value.borrow())).collect()
}

/// Where a row is to be stored, and by what time.
#[derive(Clone, Copy)]
pub(super) struct Target<'p> {
    pub(super) group: u32,
    pub(super) key: &'p [u8],
    pub(super) schema: &'p Arc<TableSchema>,
    pub(super) now_ms: u64,
    /// Bytes in a pair's value, at most.
    pub(super) value_bytes_max: usize,
}

impl<F: FieldName> Edit<'_, F> {
    /// Whether what it makes depends on the row that is there.
    pub(super) fn needs_row(&self) -> bool {
        !matches!(self, Edit::Put(..))
    }

    /// Whether it looks at the row that is there, and not only at whether there is one.
    pub(super) fn looks_at_row(&self) -> bool {
        matches!(self, Edit::Update(..) | Edit::Expire(_))
    }

    /// The value of the pair afterwards; `None` if there is to be none.
    pub(super) fn apply(
        &self,
        target: Target<'_>,
        old: Option<&HeldRow<'_>>,
    ) -> Result<Option<Vec<u8>>, PlanError> {
        match *self {
            Edit::Delete => Ok(None),
            Edit::Put(fields, expires_at_ms) => {
                let plan = RowPlan::new(target.schema, fields)?;
                let shape = (plan.body_bytes(), false);
                Ok(target.stored(shape, expires_at_ms, |body| plan.encode(body))?)
            }
            Edit::Update(fields, expiries) => {
                let plan = DeltaPlan::new(target.schema, fields, expiries)?;
                let mut newest = vec![0; plan.body_bytes()];
                plan.encode(&mut newest);
                Ok(target.merged(old, Some(&newest), RowExpiry::Keep)?)
            }
            Edit::Expire(_) if old.is_none() => Ok(None),
            Edit::Expire(at_ms) => Ok(target.merged(old, None, RowExpiry::Set(at_ms))?),
        }
    }
}

impl Target<'_> {
    fn merged(
        &self,
        old: Option<&HeldRow<'_>>,
        newest: Option<&[u8]>,
        expiry: RowExpiry,
    ) -> Result<Option<Vec<u8>>> {
        let base = match old {
            Some(old) => Some(old.body_as(Body::Stored)?),
            None => None,
        };
        let newest = newest.map(|bytes| DeltaBody::new(Body::Bytes(bytes)));
        let plan = MergePlan::new(self.schema, base.as_ref(), newest.as_slice(), self.now_ms)?;
        plan.check_length()?;
        let expires_at_ms = expiry.after(old.map(|old| OldRow { expires_at_ms: old.expires_at_ms() }));
        let shape = (plan.body_bytes(), plan.has_field_expiry());
        self.stored(shape, expires_at_ms, |body| plan.encode(body))
    }

    /// The value of a row; `None` if it has expired by now.
    fn stored(
        &self,
        (body_bytes, has_field_expiry): (usize, bool),
        expires_at_ms: Option<u64>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Option<Vec<u8>>> {
        if is_past(expires_at_ms, self.now_ms) {
            return Ok(None);
        }
        let spec = StoredRowSpec {
            table: self.group,
            key: self.key,
            // Pairs are told from each other by their marks.
            version: 0,
            schema_version: self.schema.version(),
            has_field_expiry,
            expires_at_ms,
            body_bytes,
        };
        let (bytes, max) = (spec.stored_bytes(), self.value_bytes_max);
        if bytes > max {
            return Err(Error::invalid(format!(
                "a row that takes {bytes} bytes; this store keeps at most {max}"
            )));
        }
        let mut value = vec![0; bytes];
        spec.encode(&mut value, fill);
        Ok(Some(value))
    }
}

/// The body of a row that is stored, or of a change that is not.
#[derive(Debug, Clone, Copy)]
enum Body<'b, 's> {
    Stored(&'b StoredRow<'s>),
    Bytes(&'b [u8]),
}

impl<'b, 's: 'b> BodyBytes<'b> for Body<'b, 's> {
    fn len(&self) -> usize {
        match self {
            Body::Stored(stored) => BodyBytes::len(stored),
            Body::Bytes(bytes) => BodyBytes::len(bytes),
        }
    }

    fn slice(&self, range: Range<usize>) -> Result<&'b [u8]> {
        match self {
            Body::Stored(stored) => stored.slice(range),
            Body::Bytes(bytes) => bytes.slice(range),
        }
    }
}
