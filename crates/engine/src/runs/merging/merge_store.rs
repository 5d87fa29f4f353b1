//! What a merge asks of the store whose runs they are, and how often.
//!
//! Owns [`MergeStore`] and [`Looks`]. Promises that it is asked after so many keys or bytes, however long rows are. Must not know what is merged.

use std::sync::Arc;

use hedgerow_row::schema::table::TableSchema;

use crate::Result;

/// So many keys, or bytes, are merged between two looks at whether others are to go first, or the store is being closed.
const KEYS_BETWEEN_LOOKS: u32 = 256;
const BYTES_BETWEEN_LOOKS: u64 = 256 << 10;

/// What a merge asks of the store whose runs they are.
pub(crate) trait MergeStore {
    /// How rows of the table of this number are written now; `None` if it is gone.
    fn schema(&self, table: u32) -> Option<Arc<TableSchema>>;

    /// The time, in ms since 1970.
    fn now_ms(&self) -> u64;

    /// The sequence as of which the oldest live snapshot reads.
    fn oldest_snapshot(&self) -> Option<u64>;

    /// Makes durable which tables there are, and their schemas.
    ///
    /// # Errors
    /// What the log refuses.
    fn persist_tables(&self) -> Result<()>;

    /// So many bytes were read and written since this was last said.
    fn took(&self, bytes: u64);

    /// Waits where others need what a merge uses more than it does, now and then asked. False if the store is being closed: a slice is abandoned then.
    fn goes_on(&self) -> bool;
}

/// When it was asked last.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The most bytes by then: a block that is compressed takes fewer than while it was filled.
    said: u64,
}

impl Looks {
    /// Says how much was taken, after so many keys and bytes of a slice, if it is time to; whether to go on.
    pub(super) fn go_on<S: MergeStore>(&mut self, store: &S, (keys, bytes): (u32, u64)) -> bool {
        let is_due =
            keys.is_multiple_of(KEYS_BETWEEN_LOOKS) || bytes.saturating_sub(self.said) >= BYTES_BETWEEN_LOOKS;
        if !is_due {
            return true;
        }
        self.end(store, bytes);
        store.goes_on()
    }

    /// Says the rest.
    pub(super) fn end<S: MergeStore>(&mut self, store: &S, bytes: u64) {
        store.took(bytes.saturating_sub(self.said));
        self.said = self.said.max(bytes);
    }
}
