//! How many rows of a table have an expiry, and when they expire on the mean.
//!
//! Owns: the count, kept where slots are replaced and counted anew by recovery, and the mean that the sweeper finds.
//! Promises: while nobody writes, the count is that of the rows whose newest expiry is a time; reading either
//! walks nothing. Must not know records.

use crate::index::LogSlot;
use crate::levels::Cursor;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a table knows of the expiry of its rows; see [`Table::expiring`](crate::Table::expiring).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expiring {
    /// Rows with an expiry, those that have expired and are not swept yet included. Exact.
    pub rows: u64,
    /// When they expire on the mean, in ms since 1970, as the sweeper found in its last pass over the table; `None` before
    /// the first pass that met one.
    pub mean_at_ms: Option<u64>,
}

/// The numbers of one table.
#[derive(Debug, Default)]
pub(crate) struct TableExpiry {
    rows: AtomicU64,
    /// 0 while it is not known.
    mean_at_ms: AtomicU64,
}

impl TableExpiry {
    /// Counts a slot that now says `expires` in the place of `old`. With an appender locked: clearing a table locks all appenders.
    #[inline]
    pub(crate) fn replaced(&self, old: Option<LogSlot>, expires: bool) {
        match (old.is_some_and(|old| old.expires()), expires) {
            (false, true) => drop(self.rows.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.rows.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Rows with an expiry.
    #[inline]
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Takes the count that recovery found, or zero for a table without rows.
    pub(crate) fn reset(&self, rows: u64) {
        self.rows.store(rows, Ordering::Relaxed);
        self.mean_at_ms.store(0, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Expiring {
        let mean_at_ms = Some(self.mean_at_ms.load(Ordering::Relaxed)).filter(|&at_ms| at_ms != 0);
        Expiring { rows: self.rows(), mean_at_ms }
    }
}

/// Where a pass of the sweeper over a table is, and what it has met.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) cursor: Cursor,
    /// The same for tombstones among the rows.
    pub(crate) tombstones: Cursor,
    rows: u64,
    /// Of the times at which they expire.
    sum_ms: u128,
}

impl Pass {
    /// Records a row that expires at `at_ms`.
    pub(crate) fn met(&mut self, at_ms: u64) {
        self.rows += 1;
        self.sum_ms += u128::from(at_ms);
    }

    /// Tells the table what a whole pass has found, and begins another.
    pub(crate) fn finish(&mut self, table: &TableExpiry) {
        let mean = self.sum_ms.checked_div(u128::from(self.rows)).unwrap_or(0) as u64;
        table.mean_at_ms.store(mean, Ordering::Relaxed);
        let tombstones = std::mem::take(&mut self.tombstones);
        *self = Pass { tombstones, ..Pass::default() };
    }
}

#[cfg(test)]
mod tests;
