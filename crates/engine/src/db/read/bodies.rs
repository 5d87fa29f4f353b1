//! The bodies of a row's records: of its base, on which deltas may be being merged, and of all of them together.
//!
//! Owns how their bytes are read: what may change meanwhile by copies, which the deltas at hand explain. Promises that what is read was verified. Must not know how a row's
//! records are found.

use std::ops::Range;

use hedgerow_row::schema::body::{BodyBytes, DeltaBody, RowBody};
use hedgerow_row::schema::fold::DeltaFold;
use hedgerow_row::schema::merge::MergePlan;
use hedgerow_row::schema::table::TableSchema;
use smallvec::SmallVec;

use super::super::chain::Chain;
use super::super::torn_blocks::mend;
use crate::log::format::{FLAG_FIELD_EXPIRY, Record};
use crate::{Error, Result};

#[inline(always)]
pub(super) fn row_body<'b, B: BodyBytes<'b>>(
    schema: &'b TableSchema,
    record: &Record<'_>,
    bytes: B,
) -> Result<RowBody<'b, B>> {
    let Some(layout) = schema.layout(record.schema_version()) else { return Err(unknown_version(record)) };
    Ok(RowBody::new(layout, bytes, record.flags() & FLAG_FIELD_EXPIRY != 0))
}

/// The body of a chain's base row, on which deltas may be being merged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Base<'b, 'r> {
    chain: &'b Chain<'r>,
    pub(super) row: &'b Record<'r>,
    schema: &'b TableSchema,
}

impl<'b, 'r> Base<'b, 'r> {
    /// `None` where the deltas are over nothing.
    #[inline(always)]
    pub(super) fn new(chain: &'b Chain<'r>, schema: &'b TableSchema) -> Result<Option<Base<'b, 'r>>> {
        Ok(chain.base_row()?.map(|row| Base { chain, row, schema }))
    }

    /// Of a row without deltas.
    #[inline(always)]
    pub(super) fn whole(chain: &'b Chain<'r>, schema: &'b TableSchema) -> Base<'b, 'r> {
        Base { chain, row: chain.newest(), schema }
    }

    pub(super) fn verify_all(&self) -> Result<()> {
        if self.chain.base_may_change(self.row) {
            return self.slice_copied(0..self.row.body_len()).map(drop);
        }
        self.row.verify_all()
    }

    /// [`BodyBytes::slice`] of a row that deltas may be being merged into.
    #[inline(never)]
    fn slice_copied(&self, range: Range<usize>) -> Result<&'b [u8]> {
        let copies = self.chain.base_copies(self.row)?;
        match self.row.slice_copied(copies, range.clone()) {
            Err(_) if self.is_being_merged() => self.row.slice_copied(copies, range),
            read => read,
        }
    }

    /// Whether the row's blocks match their checksums with some of the deltas laid over them: then they are as good as verified.
    #[cold]
    fn is_being_merged(&self) -> bool {
        let Some(layout) = self.schema.layout(self.row.schema_version()) else { return false };
        let Ok(deltas) = self.chain.deltas() else { return false };
        let explained = mend(self.row, deltas, layout).is_some();
        if explained {
            self.row.set_verified();
        }
        explained
    }
}

impl<'b, 'r: 'b> BodyBytes<'b> for Base<'b, 'r> {
    fn len(&self) -> usize {
        self.row.body_len()
    }

    #[inline(always)]
    fn slice(&self, range: Range<usize>) -> Result<&'b [u8]> {
        if self.chain.base_may_change(self.row) {
            return self.slice_copied(range);
        }
        self.row.slice(range)
    }
}

/// A body at rest, or one that is not in the log yet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body<'b, 'r> {
    Base(Base<'b, 'r>),
    Record(&'b Record<'r>),
    Bytes(&'b [u8]),
}

impl<'b, 'r: 'b> BodyBytes<'b> for Body<'b, 'r> {
    fn len(&self) -> usize {
        match self {
            Body::Base(base) => base.len(),
            Body::Record(record) => BodyBytes::len(record),
            Body::Bytes(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn slice(&self, range: Range<usize>) -> Result<&'b [u8]> {
        match self {
            Body::Base(base) => base.slice(range),
            Body::Record(record) => record.slice(range),
            Body::Bytes(bytes) => BodyBytes::slice(bytes, range),
        }
    }
}

/// The bodies of a chain, ready to be merged.
pub(crate) struct Bodies<'b, 'r> {
    row: Option<RowBody<'b, Body<'b, 'r>>>,
    deltas: SmallVec<[DeltaBody<Body<'b, 'r>>; 8]>,
}

impl<'b, 'r: 'b> Bodies<'b, 'r> {
    /// Of a chain, under a delta that is newer than it.
    pub(crate) fn new(
        schema: &'b TableSchema,
        chain: Option<&'b Chain<'r>>,
        newest: Option<&'b [u8]>,
    ) -> Result<Bodies<'b, 'r>> {
        let mut deltas: SmallVec<[_; 8]> =
            newest.into_iter().map(|bytes| DeltaBody::new(Body::Bytes(bytes))).collect();
        let Some(chain) = chain else { return Ok(Bodies { row: None, deltas }) };
        deltas.extend(chain.deltas()?.map(|record| DeltaBody::new(Body::Record(record))));
        let base = Base::new(chain, schema)?;
        let row = base.map(|base| row_body(schema, base.row, Body::Base(base))).transpose()?;
        Ok(Bodies { row, deltas })
    }

    /// The merged row, without what has expired by `now_ms`.
    pub(crate) fn merge(&self, schema: &'b TableSchema, now_ms: u64) -> Result<MergePlan<'b>> {
        MergePlan::new(schema, self.row.as_ref(), &self.deltas, now_ms)
    }
}

/// What the blind deltas of a chain come to, under one more that is `newest`: nobody looks at the row below.
pub(crate) fn folded<'b, 'r: 'b>(
    schema: &TableSchema,
    chain: &'b Chain<'r>,
    newest: Option<&'b [u8]>,
    now_ms: u64,
) -> Result<DeltaFold<'b>> {
    let newest = newest.into_iter().map(|bytes| DeltaBody::new(Body::Bytes(bytes)));
    let there = chain.deltas_in_log()?.map(|record| DeltaBody::new(Body::Record(record)));
    let deltas: SmallVec<[DeltaBody<Body<'b, 'r>>; 8]> = newest.chain(there).collect();
    DeltaFold::new(schema, &deltas, now_ms)
}

#[cold]
fn unknown_version(record: &Record<'_>) -> Error {
    Error::corrupted(format!(
        "the record at byte {} of the fast tier (key {}) has schema version {}, which its table never had",
        record.offset(),
        record.key().escape_ascii(),
        record.schema_version()
    ))
}
