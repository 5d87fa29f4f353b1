//! Hedgerow under measurement, through its public interface.
//!
//! Owns the mapping of benchmark rows to a table: ten (or as asked) `FixedBytes` fields, resolved to ids once. Reads run in
//! place and the sink copies each value once, as it does for every store.

use std::path::{Path, PathBuf};

use hedgerow::{
    CAPACITY_DIRECTORY, Capacity, Db, FAST_TIER_FILE, FieldId, Options, RowRef, Schema, Table, Type, Value,
};
use hedgerow_device::{EmulatedBase, FastTier, FastTierOptions, PersistentMemoryModel};

use super::{BenchStore, Columns, Session, StoreAccount};
use crate::bench::row::{FIELDS_MAX, Key, RowShape, RowSink};
use crate::store_url::Medium;

/// YCSB's name for its table.
pub(super) const TABLE: &str = "usertable";
/// Rows of up to this many fields are put together on the stack.
const STACK_FIELDS: usize = 16;
const _: () = assert!(STACK_FIELDS <= FIELDS_MAX);

/// See the module.
pub struct HedgerowStore {
    directory: PathBuf,
    db: Db,
    table: Table,
    shape: RowShape,
    ids: Vec<FieldId>,
}

impl HedgerowStore {
    /// Opens or creates the store in `directory` and the benchmark's table in it.
    pub fn open(directory: &Path, shape: RowShape, options: Options) -> Result<HedgerowStore, String> {
        HedgerowStore::open_on(Medium::File, directory, shape, options)
    }

    /// [`HedgerowStore::open`], on a medium.
    pub fn open_on(
        medium: Medium,
        directory: &Path,
        shape: RowShape,
        options: Options,
    ) -> Result<HedgerowStore, String> {
        let db = open_db(medium, directory, options)?;
        let table = create(&db, shape)?;
        let ids = field_ids(&table, shape)?;
        Ok(HedgerowStore { directory: directory.to_path_buf(), db, table, shape, ids })
    }

    /// Persists and closes the store.
    pub fn close(self) -> Result<(), String> {
        drop(self.table);
        self.db.close().map_err(text)
    }
}

pub(super) fn text(error: hedgerow::Error) -> String {
    error.to_string()
}

/// Opens or creates the store in `directory` on a medium. Its sorted tables are files in any case.
pub(super) fn open_db(medium: Medium, directory: &Path, mut options: Options) -> Result<Db, String> {
    let refused = |error: &dyn std::fmt::Display| format!("opening {}: {error}", directory.display());
    match medium {
        Medium::File => Db::open_with(directory, options).map_err(|error| refused(&error)),
        Medium::Emulated => {
            std::fs::create_dir_all(directory).map_err(|error| refused(&error))?;
            let base = EmulatedBase::File(directory.join(FAST_TIER_FILE));
            let tier_options =
                FastTierOptions { bytes_max: options.fast_tier_bytes_max, ..FastTierOptions::default() };
            let tier = FastTier::emulated(base, PersistentMemoryModel::optane(), &tier_options)
                .map_err(|error| refused(&error))?;
            // Beside a medium that is no file the engine finds no directory.
            if options.capacity == Capacity::Beside {
                options.capacity = Capacity::At(directory.join(CAPACITY_DIRECTORY));
            }
            Db::open_on(tier, options).map_err(|error| refused(&error))
        }
    }
}

/// What `db` has done since it was opened.
pub(super) fn account(db: &Db) -> StoreAccount {
    let metrics = db.metrics();
    StoreAccount {
        // What is in segments, and what was in those that were freed. What open ones have room for is among it: else a segment would count for more when it is freed than while it is there.
        log_bytes: metrics.live_bytes
            + metrics.obsolete_bytes
            + metrics.unused_bytes
            + metrics.segments_collected * metrics.segment_bytes,
        below_log_bytes: metrics.bytes_moved + metrics.sorted_tables.bytes_merged,
        cache_reads: (metrics.cache_hits, metrics.cache_misses),
        keys_sealed: metrics.sealed.keys_sealed,
    }
}

pub(super) fn field_name(field: usize) -> String {
    format!("field{field}")
}

/// The schema of the benchmark's table.
pub(super) fn schema_of(shape: RowShape) -> Schema {
    let width = shape.field_bytes as u16;
    (0..shape.fields)
        .fold(Schema::new(), |schema, field| schema.field(field_name(field), Type::FixedBytes(width)))
}

fn create(db: &Db, shape: RowShape) -> Result<Table, String> {
    db.create_table(TABLE, schema_of(shape)).map_err(|error| {
        format!("table {TABLE}: {error} (another --fields or --field-bytes needs another directory)")
    })
}

fn field_ids(table: &Table, shape: RowShape) -> Result<Vec<FieldId>, String> {
    (0..shape.fields).map(|field| table.field(&field_name(field)).map_err(text)).collect()
}

impl BenchStore for HedgerowStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(HedgerowSession {
            table: &self.table,
            shape: self.shape,
            ids: &self.ids,
            chosen: Vec::new(),
        }))
    }

    fn clear(&mut self) -> Result<(), String> {
        if self.table.is_empty() {
            return Ok(());
        }
        self.db.drop_table(TABLE).map_err(text)?;
        self.table = create(&self.db, self.shape)?;
        self.ids = field_ids(&self.table, self.shape)?;
        Ok(())
    }

    fn rows(&self) -> Result<u64, String> {
        Ok(self.table.len())
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }

    fn account(&self) -> Option<StoreAccount> {
        Some(account(&self.db))
    }
}

struct HedgerowSession<'a> {
    table: &'a Table,
    shape: RowShape,
    ids: &'a [FieldId],
    /// The ids a partial read or scan asks for, kept to allocate nothing for each.
    chosen: Vec<FieldId>,
}

impl HedgerowSession<'_> {
    /// Hands `write` the fields with their values, which follow each other in `values`.
    #[inline]
    fn pairs(
        &self,
        fields: impl ExactSizeIterator<Item = usize>,
        values: &[u8],
        write: impl FnOnce(&Table, &[(FieldId, Value<'_>)]) -> hedgerow::Result<()>,
    ) -> Result<(), String> {
        let count = fields.len();
        let pairs = fields.map(|field| self.ids[field]).zip(values.chunks_exact(self.shape.field_bytes));
        let mut pairs = pairs.map(|(id, value)| (id, Value::Bytes(value)));
        if count <= STACK_FIELDS {
            let mut stack = [(self.ids[0], Value::Null); STACK_FIELDS];
            stack.iter_mut().zip(&mut pairs).for_each(|(place, pair)| *place = pair);
            write(self.table, &stack[..count]).map_err(text)
        } else {
            write(self.table, &pairs.collect::<Vec<_>>()).map_err(text)
        }
    }

    #[inline]
    fn deliver(
        ids: &[FieldId],
        row: &RowRef<'_>,
        columns: Columns<'_>,
        sink: &mut RowSink,
    ) -> hedgerow::Result<()> {
        // What is no byte string is handed on as an empty one, which the sink refuses.
        match columns {
            Columns::All => {
                // No field of the table can be null, so that the order of the fields is their number.
                let mut field = 0;
                row.for_each(|_, value| {
                    sink.value(field, value.as_bytes().unwrap_or_default());
                    field += 1;
                })?;
            }
            Columns::Some(fields) => {
                for &field in fields {
                    sink.value(field, row.get(ids[field])?.as_bytes().unwrap_or_default());
                }
            }
        }
        Ok(())
    }
}

impl Session for HedgerowSession<'_> {
    fn insert(&mut self, key: &Key, row: &[u8]) -> Result<(), String> {
        self.pairs(0..self.ids.len(), row, |table, pairs| table.put(key, pairs))
    }

    fn read(&mut self, key: &Key, columns: Columns<'_>, sink: &mut RowSink) -> Result<(), String> {
        let ids = self.ids;
        let read = |row: &RowRef<'_>| {
            sink.begin_row(key);
            Self::deliver(ids, row, columns, sink)
        };
        let read = match columns {
            Columns::All => self.table.read(key, read),
            Columns::Some(fields) => {
                self.chosen.clear();
                self.chosen.extend(fields.iter().map(|&field| ids[field]));
                self.table.read_fields(key, &self.chosen, read)
            }
        };
        read.map(|_| ()).map_err(text)
    }

    fn look_up(&mut self, key: &Key) -> Result<bool, String> {
        self.table.exists(key).map_err(text)
    }

    fn update(&mut self, key: &Key, field: usize, value: &[u8]) -> Result<(), String> {
        self.table.update(key, &[(self.ids[field], Value::Bytes(value))]).map_err(text)
    }

    fn update_fields(&mut self, key: &Key, fields: &[usize], values: &[u8]) -> Result<(), String> {
        self.pairs(fields.iter().copied(), values, |table, pairs| table.update(key, pairs))
    }

    fn scan(
        &mut self,
        start: &Key,
        rows: usize,
        columns: Columns<'_>,
        sink: &mut RowSink,
    ) -> Result<(), String> {
        let mut scan = self.table.scan().from(start).limit(rows);
        if let Columns::Some(fields) = columns {
            self.chosen.clear();
            self.chosen.extend(fields.iter().map(|&field| self.ids[field]));
            scan = scan.fields(&self.chosen).map_err(text)?;
        }
        let ids = self.ids;
        scan.for_each(|key, row| {
            sink.begin_row(key);
            Self::deliver(ids, row, columns, sink)?;
            Ok(true)
        })
        .map_err(text)
    }
}
