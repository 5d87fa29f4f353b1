//! A table as all its handles share it.
//!
//! Owns what is known of a table in memory: its number, its schema as it is now, its index, and how many of its rows expire. Promises
//! that who writes sees a table that was dropped as such. Must not know the other tables, nor the log.

pub(crate) mod expiring;

use std::sync::Arc;

use arc_swap::ArcSwap;
use expiring::TableExpiry;
use hedgerow_row::schema::table::TableSchema;

use crate::cache::Traffic;
use crate::levels::Levels;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::{Error, ErrorKind, Result};

/// A table as all its handles share it.
pub(crate) struct TableShared {
    /// Of the table's rows in the log. Changes when the table is cleared.
    pub(crate) id: AtomicU32,
    pub(crate) name: Arc<str>,
    pub(crate) schema: ArcSwap<TableSchema>,
    pub(crate) levels: Levels,
    /// Of its rows with an expiry.
    pub(crate) expiry: TableExpiry,
    pub(crate) dropped: AtomicBool,
    /// Some of its rows may be in sorted tables.
    below: AtomicBool,
    /// Rows of it are on their way there.
    moving: AtomicBool,
    /// How often its content began or ended to be replaced.
    replacements: AtomicU32,
    /// For the cache's policy.
    pub(crate) traffic: Traffic,
}

impl TableShared {
    pub(crate) fn new(id: u32, name: &str, schema: TableSchema, levels: Levels) -> TableShared {
        TableShared {
            id: AtomicU32::new(id),
            name: name.into(),
            schema: ArcSwap::from_pointee(schema),
            levels,
            expiry: TableExpiry::default(),
            dropped: AtomicBool::new(false),
            below: AtomicBool::new(false),
            moving: AtomicBool::new(false),
            replacements: AtomicU32::new(0),
            traffic: Traffic::default(),
        }
    }

    /// The table's id in the log, for a write. Call with an appender locked: clearing and dropping lock all appenders.
    #[inline]
    pub(crate) fn id_for_write(&self) -> Result<u32> {
        self.check_there()?;
        Ok(self.id.load(Ordering::Acquire))
    }

    /// `NotFound` for a table that was dropped.
    #[inline]
    pub(crate) fn check_there(&self) -> Result<()> {
        if self.dropped.load(Ordering::Acquire) { Err(self.gone()) } else { Ok(()) }
    }

    #[cold]
    fn gone(&self) -> Error {
        Error::new(ErrorKind::NotFound, format!("the table {:?} has been dropped", self.name))
    }

    /// Whether some of its rows may be in sorted tables: what its index does not have may be there.
    #[inline]
    pub(crate) fn below(&self) -> bool {
        self.below.load(Ordering::Acquire)
    }

    /// Says so, or that none are. Call with every appender locked, or before anybody has the table.
    pub(crate) fn set_below(&self, below: bool) {
        self.below.store(below, Ordering::Release);
    }

    /// Whether rows of it are on their way to sorted tables: what no file has of it yet, one may have soon.
    #[inline]
    pub(crate) fn is_moving(&self) -> bool {
        self.moving.load(Ordering::Acquire)
    }

    /// Says that rows of it are on their way to sorted tables. Who wrote before without knowing has published when all appenders have been locked once.
    pub(crate) fn begin_move(&self) {
        self.levels.begin_move();
        self.moving.store(true, Ordering::SeqCst);
        self.below.store(true, Ordering::SeqCst);
    }

    /// What was on its way has come there, or stays.
    pub(crate) fn end_move(&self) {
        self.moving.store(false, Ordering::Release);
        self.levels.end_move();
    }

    /// Tells its content from those before and after it: the number, the index and whether rows are below belong together if this was the same before and after all of
    /// them were looked at. `None` while one takes the place of another, for no longer than it takes to empty the index.
    pub(crate) fn content(&self) -> Option<u32> {
        let replacements = self.replacements.load(Ordering::Acquire);
        replacements.is_multiple_of(2).then_some(replacements)
    }

    /// Another content begins to take the place of this one: before anything says so. Call with every appender locked, as what ends it.
    pub(crate) fn begin_replacing(&self) {
        self.replacements.fetch_add(1, Ordering::AcqRel);
    }

    /// It has taken its place.
    pub(crate) fn end_replacing(&self) {
        self.replacements.fetch_add(1, Ordering::AcqRel);
    }

    /// Rows, as the index counts them.
    pub(crate) fn rows(&self) -> u64 {
        self.levels.rows()
    }
}
