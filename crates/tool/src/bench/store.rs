//! What a store must do to be measured.
//!
//! Owns the traits that Hedgerow and its peers are driven through. Promises nothing about how a store works inside: a
//! [`Session`] is one thread's handle, errors are sentences. Must not know workloads or clocks.

pub mod flat;
pub mod hedgerow;
pub mod mapping;
pub mod null;
pub mod pairs;

use std::path::Path;

use super::row::{Key, RowSink};

/// The fields a read asks for.
#[derive(Debug, Clone, Copy)]
pub enum Columns<'a> {
    /// All of them.
    All,
    /// These, ascending.
    Some(&'a [usize]),
}

/// A store under measurement, shared by all threads.
pub trait BenchStore: Sync {
    /// A handle for one thread.
    fn session(&self) -> Result<Box<dyn Session + '_>, String>;

    /// Removes all rows: a load starts from nothing. Called while there is no session.
    fn clear(&mut self) -> Result<(), String>;

    /// Rows in the store when it was opened.
    fn rows(&self) -> Result<u64, String>;

    /// Brings a freshly loaded data set to rest, as the engine's own means allow (flushing memory tables). The wait for
    /// background work is the driver's.
    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    /// Where it keeps its files, if it does.
    fn directory(&self) -> Option<&Path>;

    /// Whether its rows have an order, in which they can be scanned.
    fn has_order(&self) -> bool {
        true
    }

    /// What it has done since it was opened; none where it has no such account.
    fn account(&self) -> Option<StoreAccount> {
        None
    }
}

/// What a store has done since it was opened, by its own account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreAccount {
    /// Bytes of the segments that its log took, open ones among them as if they were full: what goes into one that is open already adds nothing.
    pub log_bytes: u64,
    /// Bytes written below its log: rows that moved there, and files that merges wrote.
    pub below_log_bytes: u64,
    /// Reads that found their row in its row cache, and that did not, while that was in use.
    pub cache_reads: (u64, u64),
    /// Keys that left memory for groups on the fast tier.
    pub keys_sealed: u64,
}

/// One thread's handle on a store. Every row and value read is handed to the sink, which copies and checks it.
pub trait Session {
    /// Writes a whole row; `row` is its fields one after the other.
    fn insert(&mut self, key: &Key, row: &[u8]) -> Result<(), String>;

    /// Reads the row's columns. A missing row leaves the sink empty.
    fn read(&mut self, key: &Key, columns: Columns<'_>, sink: &mut RowSink) -> Result<(), String>;

    /// Whether the row is there, by the index alone.
    fn look_up(&mut self, _key: &Key) -> Result<bool, String> {
        Err("this store does not look rows up without reading them".into())
    }

    /// Writes one field of an existing row.
    fn update(&mut self, key: &Key, field: usize, value: &[u8]) -> Result<(), String>;

    /// Writes several fields of an existing row; `values` are theirs one after the other. A store that can do it at once
    /// overrides it.
    fn update_fields(&mut self, key: &Key, fields: &[usize], values: &[u8]) -> Result<(), String> {
        let width = values.len() / fields.len().max(1);
        fields
            .iter()
            .enumerate()
            .try_for_each(|(at, &field)| self.update(key, field, &values[at * width..(at + 1) * width]))
    }

    /// Reads all fields of a row, then writes one, as YCSB's read-modify-write does. A store that can do both for less
    /// overrides it.
    fn read_modify_write(
        &mut self,
        key: &Key,
        field: usize,
        value: &[u8],
        sink: &mut RowSink,
    ) -> Result<(), String> {
        self.read(key, Columns::All, sink)?;
        self.update(key, field, value)
    }

    /// Reads the columns of at most `rows` rows in key order from `start` on.
    fn scan(
        &mut self,
        start: &Key,
        rows: usize,
        columns: Columns<'_>,
        sink: &mut RowSink,
    ) -> Result<(), String>;
}
