//! Rows over a backend that keeps pairs under measurement, through the interface of `hedgerow-row`.
//!
//! Owns a handle on the benchmark's table there: the schema is the one of [`super::hedgerow`]. Promises the paths that every caller who waits
//! has: each operation is attempts until one is committed, by the thread that called. Must not know which backend it is.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use hedgerow::{FieldId, Value};
use hedgerow_row::backend::Backend;
use hedgerow_row::pairs::{HeldRow, PairDb, PairTable};

use super::hedgerow::{TABLE, field_name, schema_of, text};
use super::{BenchStore, Columns, Session};
use crate::bench::row::{Key, RowShape, RowSink};

/// See the module.
pub struct PairsStore {
    table: PairTable,
    shape: RowShape,
    ids: Vec<FieldId>,
}

impl PairsStore {
    /// The benchmark's table over a backend, made if need be.
    pub fn open(backend: Arc<dyn Backend>, shape: RowShape) -> Result<PairsStore, String> {
        let table = PairDb::open(backend).create_table(TABLE, schema_of(shape)).map_err(text)?;
        let ids = (0..shape.fields).map(|field| table.field(&field_name(field)).map_err(text));
        let ids = ids.collect::<Result<_, _>>()?;
        Ok(PairsStore { table, shape, ids })
    }

    fn fields<'v>(&self, values: &'v [u8]) -> impl Iterator<Item = Value<'v>> {
        values.chunks_exact(self.shape.field_bytes).map(Value::Bytes)
    }

    fn deliver(&self, row: &HeldRow<'_>, columns: Columns<'_>, sink: &mut RowSink) -> hedgerow::Result<()> {
        // What is no byte string is handed on as an empty one, which the sink refuses.
        match columns {
            Columns::All => {
                // No field of the table can be null, so that the order of the fields is their number.
                let mut field = 0;
                row.for_each(|_, value| {
                    sink.value(field, value.as_bytes().unwrap_or_default());
                    field += 1;
                })
            }
            Columns::Some(fields) => fields.iter().try_for_each(|&field| {
                sink.value(field, row.get(self.ids[field])?.as_bytes().unwrap_or_default());
                Ok(())
            }),
        }
    }
}

impl BenchStore for PairsStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(self))
    }

    fn clear(&mut self) -> Result<(), String> {
        self.table.clear().map_err(text)
    }

    fn rows(&self) -> Result<u64, String> {
        self.table.len().map_err(text)
    }

    fn directory(&self) -> Option<&Path> {
        None
    }

    fn has_order(&self) -> bool {
        false
    }
}

impl Session for &PairsStore {
    fn insert(&mut self, key: &Key, row: &[u8]) -> Result<(), String> {
        let fields: Vec<_> = self.ids.iter().copied().zip(self.fields(row)).collect();
        self.table.put(key, &fields).map_err(text)
    }

    fn read(&mut self, key: &Key, columns: Columns<'_>, sink: &mut RowSink) -> Result<(), String> {
        let sink = RefCell::new(sink);
        let read = self.table.read(key, |row| {
            let mut sink = sink.borrow_mut();
            // An attempt may be made again, and delivers the row anew.
            sink.clear();
            sink.begin_row(key);
            self.deliver(row, columns, &mut sink)
        });
        read.map(|_| ()).map_err(text)
    }

    fn update(&mut self, key: &Key, field: usize, value: &[u8]) -> Result<(), String> {
        self.table.update(key, &[(self.ids[field], Value::Bytes(value))]).map_err(text)
    }

    fn update_fields(&mut self, key: &Key, fields: &[usize], values: &[u8]) -> Result<(), String> {
        let ids = fields.iter().map(|&field| self.ids[field]);
        let fields: Vec<_> = ids.zip(self.fields(values)).collect();
        self.table.update(key, &fields).map_err(text)
    }

    fn scan(&mut self, _: &Key, _: usize, _: Columns<'_>, _: &mut RowSink) -> Result<(), String> {
        Err("a store of pairs has no order of rows to scan".into())
    }
}
