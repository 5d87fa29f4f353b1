//! `Snapshot`: the store as it was.

use std::sync::Arc;

use super::Table;
use super::engine::Engine;
use crate::{FieldName, Result, Row};

/// The store as it was at one moment: a sequence. Reads through it see every write up to then and none after, batches
/// whole. While it lives, the versions it may need keep their place in the fast tier. Rows that have expired since are
/// not shown; a table cleared or dropped since is empty.
pub struct Snapshot {
    engine: Arc<Engine>,
    sequence: u64,
}

impl Snapshot {
    pub(super) fn take(engine: Arc<Engine>) -> Snapshot {
        let sequence = engine.snapshots.take(&engine.log, engine.clock.now_ms());
        Snapshot { sequence, engine }
    }

    /// The last sequence it sees.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The whole row, copied.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Row>> {
        self.engine.read(table.shared(), key, Some(self.sequence), None, |row| row.to_row())
    }

    /// Some fields of the row, copied.
    ///
    /// # Errors
    /// As [`Table::get_fields`].
    pub fn get_fields<F: FieldName>(&self, table: &Table, key: &[u8], fields: &[F]) -> Result<Option<Row>> {
        let ids = table.field_ids(fields)?;
        self.engine.read(table.shared(), key, Some(self.sequence), Some(&ids), |row| row.copy(Some(&ids)))
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        self.engine.snapshots.retain(self.sequence);
        Snapshot { engine: Arc::clone(&self.engine), sequence: self.sequence }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.engine.snapshots.release(self.sequence);
    }
}
