//! The log to whoever holds a guard.
//!
//! Owns the way from a place to the record there: through a view, which a guard of the log's own epoch lends. Promises that no such record outlives
//! its guard, and that the guard is of this store, which the signatures say. Who walks a segment (`log/segments.rs`) holds no guard and keeps it from
//! being freed, as gc does its victims. Must not know who asked the index, nor for what.

use std::marker::PhantomData;
use std::ops::Deref;

use super::format::{self, RawRecord, Record, RecordRef};
use super::{Log, not_a_record};
use crate::Result;
use crate::epoch::Guard;
use crate::sync::atomic::Ordering;
use hedgerow_row::le_bytes::u32_at;

/// A guard of the epoch of a store, made by its log, which it lends with it. To the index it is a guard as any.
#[derive(Debug)]
pub(crate) struct LogGuard<'e> {
    log: &'e Log,
    guard: Guard<'e>,
}

/// The log to whoever holds a guard. What the index led to since it was pinned stays where it is as long as it is held: gc frees a segment once
/// nobody is left who could know a place in it. Records are borrowed from the guard, and cannot outlive it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogView<'p> {
    log: &'p Log,
    guard: PhantomData<&'p Guard<'p>>,
}

/// What became of a record to which somebody was led before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceState {
    /// It is where it was.
    There,
    /// It is, or may be, elsewhere. With the number of the last segment that was emptied there: whoever finds another one the next time looked between two changes.
    Gone(u64),
}

impl Log {
    /// Pins the epoch of the store: before the index is asked where a record is.
    #[inline]
    pub(crate) fn pin(&self) -> LogGuard<'_> {
        LogGuard { log: self, guard: self.epoch.pin() }
    }
}

impl LogGuard<'_> {
    /// The log under it.
    #[inline]
    pub(crate) fn view(&self) -> LogView<'_> {
        LogView { log: self.log, guard: PhantomData }
    }
}

impl<'e> Deref for LogGuard<'e> {
    type Target = Guard<'e>;

    #[inline(always)]
    fn deref(&self) -> &Guard<'e> {
        &self.guard
    }
}

impl Deref for LogView<'_> {
    type Target = Log;

    #[inline(always)]
    fn deref(&self) -> &Log {
        self.log
    }
}

impl<'p> LogView<'p> {
    /// The record at `offset`, its prefix verified.
    #[inline]
    pub(crate) fn record(self, offset: u64) -> Result<Record<'p>> {
        self.raw_record(offset)?.record(self.verify_reads).map_err(|why| why.error(offset))
    }

    /// The same, to be verified even if reads are not: for whoever changes it.
    pub(crate) fn verified_record(self, offset: u64) -> Result<Record<'p>> {
        self.raw_record(offset)?.record(true).map_err(|why| why.error(offset))
    }

    /// Whether the record at `offset` is still there, for as long as the guard, of whoever was led to it before segments had the number `below`
    /// ([`Log::next_segment_number`]): neither may the index lead elsewhere by now and the record be gone, nor another be there.
    ///
    /// Of a place that was taken from the index under this guard that is always so.
    #[inline]
    pub(crate) fn kept(self, offset: u64, below: u64) -> PlaceState {
        let Some(extent) = self.log.extents.get(offset >> self.log.space.extent_shift()) else {
            return PlaceState::Gone(0);
        };
        // In this order: where a segment is begun meanwhile, the one that was here has been emptied.
        let segment_number = extent.segment_number.load(Ordering::Acquire);
        let emptied_number = extent.emptied_number.load(Ordering::Acquire);
        match segment_number < below && emptied_number < segment_number {
            true => PlaceState::There,
            false => PlaceState::Gone(emptied_number),
        }
    }

    /// The bytes that should be the record at `offset`.
    #[inline]
    pub(crate) fn raw_record(self, offset: u64) -> Result<RawRecord<'p>> {
        let log = self.log;
        // A place that is not verified may be anywhere.
        let Some(extent) = log.extents.get(offset >> log.space.extent_shift()) else {
            return Err(not_a_record(offset));
        };
        let segment_number = extent.segment_number.load(Ordering::Relaxed);
        let Some(header) = log.tier.try_read(offset, 8) else { return Err(not_a_record(offset)) };
        let bytes = u32_at(header, 4) as usize;
        // Who looks into the record is charged for the blocks it looks at, some of which may be being merged into.
        let Some(bytes) = log.tier.try_view(offset, bytes) else { return Err(not_a_record(offset)) };
        Ok(RawRecord { bytes, offset, segment_number })
    }

    /// What the delta at `offset` goes over in the log, unverified: good enough to prefetch it.
    #[inline]
    pub(crate) fn peek_previous(self, offset: u64) -> Option<RecordRef> {
        self.log.tier.try_read(offset, format::HEADER_BYTES).and_then(format::base_of)
    }
}
