//! The codecs as fuzz targets see them: arbitrary bytes in, a value or `Corrupted` out.
//!
//! Owns the checks that hold for any input: what decodes encodes to something that decodes to the same; a merged row reads
//! back as it was merged. They panic where that fails. Must not be used by anything but tests.

use super::body::{DeltaBody, RowBody};
use super::catalog;
use super::merge::MergePlan;
use super::table::TableSchema;
use crate::{OwnedValue, Result};

/// A table's schema from its bytes in the catalog.
#[derive(Debug)]
pub struct Probe(TableSchema);

impl Probe {
    /// Decodes a schema, and checks that it survives another round.
    ///
    /// # Errors
    /// `Corrupted`, `Version`.
    pub fn new(bytes: &[u8]) -> Result<Probe> {
        let schema = catalog::decode(bytes)?;
        let mut once = Vec::new();
        catalog::encode(&schema, &mut once);
        let mut twice = Vec::new();
        catalog::encode(&catalog::decode(&once)?, &mut twice);
        assert_eq!(once, twice, "a schema changes as it is written and read");
        Ok(Probe(schema))
    }

    /// The schema's version: rows may be of this one or an earlier one.
    pub fn version(&self) -> u16 {
        self.0.version()
    }

    /// Reads every field of a row with deltas over it (newest first), one by one and merged; rewrites the row and reads it
    /// again. Returns how many fields are present.
    ///
    /// # Errors
    /// `Corrupted`; `Invalid` if the merged row is longer than a row may be.
    pub fn read(
        &self,
        version: u16,
        row: &[u8],
        has_field_expiry: bool,
        deltas: &[&[u8]],
        now_ms: u64,
    ) -> Result<usize> {
        let Some(layout) = self.0.layout(version) else { return Ok(0) };
        let deltas: Vec<DeltaBody<&[u8]>> = deltas.iter().map(|bytes| DeltaBody::new(*bytes)).collect();
        let row = RowBody::new(layout, row, has_field_expiry);
        for position in 0..self.0.fields().fields().len() {
            for delta in &deltas {
                drop(delta.find(&self.0, position));
            }
            drop(row.read(&self.0, position));
        }
        drop(row.for_each(&self.0, |_, _| ()));
        let plan = MergePlan::new(&self.0, Some(&row), &deltas, now_ms)?;
        let mut merged: Vec<(usize, OwnedValue, Option<u64>)> = Vec::new();
        plan.for_each(|position, field| {
            merged.push((position, field.value.to_owned(), field.expires_at_ms))
        })?;
        let mut body = vec![0xA5; plan.body_bytes()];
        plan.encode(&mut body);
        let again = RowBody::new(self.0.current_layout(), body.as_slice(), plan.has_field_expiry());
        let mut seen = merged.iter();
        again.for_each(&self.0, |position, field| {
            let (wanted, value, expires_at_ms) =
                seen.next().expect("a rewritten row has no more fields than it was given");
            let same = *value == field.value.to_owned() || is_nan(value) && is_nan(&field.value.to_owned());
            assert!(
                *wanted == position && same && *expires_at_ms == field.expires_at_ms,
                "a row changes as it is rewritten"
            );
        })?;
        assert!(seen.next().is_none(), "a rewritten row lacks a field");
        Ok(merged.len())
    }
}

fn is_nan(value: &OwnedValue) -> bool {
    matches!(value, OwnedValue::Float(x) if x.is_nan())
}
