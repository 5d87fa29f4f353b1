//! The store that does nothing: what remains is the cost of the harness itself.
//!
//! Owns canned rows that pass every check, hot in the cache. Promises the work of generation, delivery and checking and
//! no other; whatever is written is looked at by nobody.

use std::hint::black_box;
use std::path::Path;

use hedgerow_device::Random;

use super::{BenchStore, Columns, Session};
use crate::bench::row::{Key, RowShape, RowSink, RowSource, key_of};

/// Rows at hand, as many as the longest scan of the workloads.
const CANNED_ROWS: u64 = 100;

/// See the module.
#[derive(Debug)]
pub struct NullStore {
    shape: RowShape,
    records: u64,
    /// In key order.
    canned: Vec<(Key, Box<[u8]>)>,
}

impl NullStore {
    /// A null store that claims to hold `records` rows.
    pub fn new(shape: RowShape, records: u64) -> NullStore {
        let (mut source, mut random) = (RowSource::new(shape, 1), Random::from_seed(1));
        let mut keys: Vec<_> = (0..CANNED_ROWS).map(key_of).collect();
        keys.sort();
        let canned = keys.into_iter().map(|key| (key, source.row(&key, &mut random).into())).collect();
        NullStore { shape, records, canned }
    }

    #[inline]
    fn deliver(&self, name: &Key, row: &[u8], columns: Columns<'_>, sink: &mut RowSink) {
        sink.begin_row(name);
        match columns {
            Columns::All => sink.values(black_box(row)),
            Columns::Some(fields) => {
                let width = self.shape.field_bytes;
                fields.iter().for_each(|&f| sink.value(f, &black_box(row)[f * width..(f + 1) * width]));
            }
        }
    }
}

impl BenchStore for NullStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(self))
    }

    fn clear(&mut self) -> Result<(), String> {
        self.records = 0;
        Ok(())
    }

    fn rows(&self) -> Result<u64, String> {
        Ok(self.records)
    }

    fn directory(&self) -> Option<&Path> {
        None
    }
}

impl Session for &NullStore {
    fn insert(&mut self, key: &Key, row: &[u8]) -> Result<(), String> {
        black_box((key, row));
        Ok(())
    }

    fn read(&mut self, key: &Key, columns: Columns<'_>, sink: &mut RowSink) -> Result<(), String> {
        black_box(key);
        let (name, row) = &self.canned[0];
        self.deliver(name, row, columns, sink);
        Ok(())
    }

    fn look_up(&mut self, key: &Key) -> Result<bool, String> {
        Ok(!black_box(key).is_empty())
    }

    fn update(&mut self, key: &Key, field: usize, value: &[u8]) -> Result<(), String> {
        black_box((key, field, value));
        Ok(())
    }

    fn scan(
        &mut self,
        start: &Key,
        rows: usize,
        columns: Columns<'_>,
        sink: &mut RowSink,
    ) -> Result<(), String> {
        black_box(start);
        for (name, row) in self.canned.iter().take(rows) {
            self.deliver(name, row, columns, sink);
        }
        sink.starts_at(start);
        Ok(())
    }
}
