//! How rows are put into stores of flat values (FOCUS section III-A).
//!
//! Consolidated: one value per row, an offset per field and then the fields; changing a field reads and writes the row.
//! Scattered: one value per field under the row's key and one byte more; reading a row walks its cells. Hybrid: fields in
//! groups, each as a consolidated row under a cell of its own. Owns the encodings and what an operation becomes under each.
//! Knows flat stores by a trait only.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};

use super::{BenchStore, Columns, Session, StoreAccount};
use crate::bench::row::{KEY_BYTES, Key, RowShape, RowSink};

/// How rows become flat values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mapping {
    /// One value per row.
    Consolidated,
    /// One value per field.
    Scattered,
    /// One value per group of neighbouring fields, about as many groups as a group has fields: three of ten, ten of a hundred.
    Hybrid,
}

/// A store of flat values.
pub trait FlatStore: Sync {
    /// One thread's handle.
    type Session<'a>: FlatSession + 'a
    where
        Self: 'a;

    /// A handle for one thread.
    fn session(&self) -> Result<Self::Session<'_>, String>;

    /// Brings a freshly loaded data set to rest.
    fn settle(&self) -> Result<(), String>;

    /// Where it keeps its files.
    fn directory(&self) -> &Path;

    /// Values in it when it was opened.
    fn values(&self) -> Result<u64, String> {
        Ok(0)
    }

    /// Removes all values. A store that cannot is loaded once, when it is new.
    fn clear(&mut self) -> Result<(), String> {
        Err("this store is loaded once, when it is new".into())
    }

    /// As [`BenchStore::account`].
    fn account(&self) -> Option<StoreAccount> {
        None
    }
}

/// One thread's handle on a store of flat values.
pub trait FlatSession {
    /// Writes one value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String>;

    /// Writes several values, all or none.
    fn put_all<'v>(&mut self, cells: impl Iterator<Item = (Cell, &'v [u8])>) -> Result<(), String>;

    /// Shows the value to `visit`, in place if the store can.
    fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String>;

    /// Replaces a value by what `change` makes of it, with no other write in between.
    fn change(&mut self, key: &[u8], change: impl FnOnce(&mut [u8])) -> Result<(), String>;

    /// Writes `new` over a part of a value, from `at` on. A store that can do so without reading the value first overrides it.
    fn overwrite(&mut self, key: &[u8], at: usize, new: &[u8]) -> Result<(), String> {
        self.change(key, |value| value[at..at + new.len()].copy_from_slice(new))
    }

    /// Shows keys and values in key order from `from` on, until `visit` returns false.
    fn walk(&mut self, from: &[u8], visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), String>;
}

/// A row's key and a field.
pub type Cell = [u8; KEY_BYTES + 1];

fn cell_of(key: &Key, field: usize) -> Cell {
    let mut cell = [0; KEY_BYTES + 1];
    cell[..KEY_BYTES].copy_from_slice(key);
    cell[KEY_BYTES] = field as u8;
    cell
}

/// A flat store as the benchmark sees it.
pub struct Mapped<S> {
    store: S,
    shape: RowShape,
    mapping: Mapping,
    used: bool,
}

impl<S: FlatStore> Mapped<S> {
    /// Rows of `shape` in `store`.
    ///
    /// # Errors
    /// Rows longer than the offsets of a consolidated value reach, 65,535 bytes.
    pub fn new(store: S, shape: RowShape, mapping: Mapping) -> Result<Mapped<S>, String> {
        match shape.row_bytes() {
            0..=CONSOLIDATED_BYTES_MAX => Ok(Mapped { store, shape, mapping, used: false }),
            bytes => Err(format!("flat rows are at most {CONSOLIDATED_BYTES_MAX} bytes long, not {bytes}")),
        }
    }
}

/// Bytes of fields in a consolidated value: its offsets are 16 bits wide.
const CONSOLIDATED_BYTES_MAX: usize = u16::MAX as usize;

impl<S: FlatStore> BenchStore for Mapped<S> {
    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        let (flat, shape) = (self.store.session()?, self.shape);
        Ok(match self.mapping {
            Mapping::Consolidated => Box::new(Consolidated { flat, shape, value: Vec::new() }),
            Mapping::Scattered => Box::new(Scattered { flat, shape }),
            Mapping::Hybrid => Box::new(Hybrid { flat, groups: Groups::of(shape), values: Vec::new() }),
        })
    }

    fn clear(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.used, true) || self.rows()? > 0 {
            self.store.clear()?;
        }
        Ok(())
    }

    fn rows(&self) -> Result<u64, String> {
        let values = self.store.values()?;
        Ok(match self.mapping {
            Mapping::Consolidated => values,
            Mapping::Scattered => values / self.shape.fields as u64,
            Mapping::Hybrid => values / Groups::of(self.shape).count() as u64,
        })
    }

    fn settle(&self) -> Result<(), String> {
        self.store.settle()
    }

    fn directory(&self) -> Option<&Path> {
        Some(self.store.directory())
    }

    fn account(&self) -> Option<StoreAccount> {
        self.store.account()
    }
}

/// ```text
/// 0            2 * fields                    2 * fields + row bytes
/// | end: u16 LE per field | the fields one after the other |
/// ```
struct Consolidated<F> {
    flat: F,
    shape: RowShape,
    value: Vec<u8>,
}

/// Where a field lies in a consolidated value.
fn field_range(shape: RowShape, value: &[u8], field: usize) -> std::ops::Range<usize> {
    let end = |field: usize| usize::from(u16::from_le_bytes([value[2 * field], value[2 * field + 1]]));
    let base = 2 * shape.fields;
    let from = if field == 0 { 0 } else { end(field - 1) };
    base + from..base + end(field)
}

/// The same without the value: fields are of one length.
fn place_of(shape: RowShape, field: usize) -> usize {
    2 * shape.fields + field * shape.field_bytes
}

fn consolidate(shape: RowShape, fields: &[u8], out: &mut Vec<u8>) {
    for field in 1..=shape.fields {
        out.extend_from_slice(&((field * shape.field_bytes) as u16).to_le_bytes());
    }
    out.extend_from_slice(fields);
}

fn set_field(shape: RowShape, value: &mut [u8], field: usize, new: &[u8]) {
    let range = field_range(shape, value, field);
    value[range].copy_from_slice(new);
}

fn deliver(shape: RowShape, value: &[u8], columns: Columns<'_>, sink: &mut RowSink) {
    match columns {
        Columns::All => {
            (0..shape.fields).for_each(|field| sink.value(field, &value[field_range(shape, value, field)]));
        }
        Columns::Some(fields) => {
            fields.iter().for_each(|&field| sink.value(field, &value[field_range(shape, value, field)]));
        }
    }
}

impl<F: FlatSession> Session for Consolidated<F> {
    fn insert(&mut self, key: &Key, row: &[u8]) -> Result<(), String> {
        self.value.clear();
        consolidate(self.shape, row, &mut self.value);
        self.flat.put(key, &self.value)
    }

    fn read(&mut self, key: &Key, columns: Columns<'_>, sink: &mut RowSink) -> Result<(), String> {
        let shape = self.shape;
        self.flat.get(key, |value| {
            sink.begin_row(key);
            deliver(shape, value, columns, sink);
        })
    }

    fn update(&mut self, key: &Key, field: usize, new: &[u8]) -> Result<(), String> {
        self.flat.overwrite(key, place_of(self.shape, field), new)
    }

    fn update_fields(&mut self, key: &Key, fields: &[usize], values: &[u8]) -> Result<(), String> {
        let shape = self.shape;
        self.flat.change(key, |value| {
            for (&field, new) in fields.iter().zip(values.chunks_exact(shape.field_bytes)) {
                set_field(shape, value, field, new);
            }
        })
    }

    fn read_modify_write(
        &mut self,
        key: &Key,
        field: usize,
        new: &[u8],
        sink: &mut RowSink,
    ) -> Result<(), String> {
        let shape = self.shape;
        self.flat.change(key, |value| {
            sink.begin_row(key);
            deliver(shape, value, Columns::All, sink);
            set_field(shape, value, field, new);
        })
    }

    fn scan(
        &mut self,
        start: &Key,
        rows: usize,
        columns: Columns<'_>,
        sink: &mut RowSink,
    ) -> Result<(), String> {
        let shape = self.shape;
        self.flat.walk(start, |key, value| {
            sink.begin_row(key);
            deliver(shape, value, columns, sink);
            sink.rows() < rows
        })
    }
}

struct Scattered<F> {
    flat: F,
    shape: RowShape,
}

impl<F: FlatSession> Session for Scattered<F> {
    fn insert(&mut self, key: &Key, row: &[u8]) -> Result<(), String> {
        let values = row.chunks_exact(self.shape.field_bytes);
        self.flat.put_all(values.enumerate().map(|(field, value)| (cell_of(key, field), value)))
    }

    fn read(&mut self, key: &Key, columns: Columns<'_>, sink: &mut RowSink) -> Result<(), String> {
        match columns {
            Columns::All => walk_row(&mut self.flat, key, self.shape.fields, sink, |field, value, sink| {
                sink.value(field, value);
            }),
            Columns::Some(fields) => {
                sink.begin_row(key);
                for &field in fields {
                    self.flat.get(&cell_of(key, field), |value| sink.value(field, value))?;
                }
                Ok(())
            }
        }
    }

    fn update(&mut self, key: &Key, field: usize, value: &[u8]) -> Result<(), String> {
        self.flat.put(&cell_of(key, field), value)
    }

    fn scan(
        &mut self,
        start: &Key,
        rows: usize,
        columns: Columns<'_>,
        sink: &mut RowSink,
    ) -> Result<(), String> {
        walk_rows(&mut self.flat, start, (rows, self.shape.fields), sink, |field, value, sink| {
            if match columns {
                Columns::All => true,
                Columns::Some(fields) => fields.contains(&field),
            } {
                sink.value(field, value);
            }
        })
    }
}

/// Shows the `cells` cells of a row to `visit`, by their number, if it is there.
fn walk_row(
    flat: &mut impl FlatSession,
    key: &Key,
    cells: usize,
    sink: &mut RowSink,
    mut visit: impl FnMut(usize, &[u8], &mut RowSink),
) -> Result<(), String> {
    let mut left = cells;
    flat.walk(&cell_of(key, 0), |cell, value| {
        if cell.len() != KEY_BYTES + 1 || cell[..KEY_BYTES] != *key {
            return false;
        }
        if sink.rows() == 0 {
            sink.begin_row(key);
        }
        visit(usize::from(cell[KEY_BYTES]), value, sink);
        left -= 1;
        left > 0
    })
}

/// The same for `rows` rows from `start` on.
fn walk_rows(
    flat: &mut impl FlatSession,
    start: &Key,
    (rows, cells): (usize, usize),
    sink: &mut RowSink,
    mut visit: impl FnMut(usize, &[u8], &mut RowSink),
) -> Result<(), String> {
    let mut left = rows;
    flat.walk(&cell_of(start, 0), |cell, value| {
        let Some((&at, key)) = cell.split_last() else { return false };
        let at = usize::from(at);
        if at == 0 {
            sink.begin_row(key);
        }
        visit(at, value, sink);
        left -= usize::from(at == cells - 1);
        left > 0
    })
}

/// The groups that the fields of rows are in.
#[derive(Debug, Clone, Copy)]
struct Groups {
    shape: RowShape,
    /// Fields in each but the last, which has what is left.
    fields: usize,
}

impl Groups {
    fn of(shape: RowShape) -> Groups {
        Groups { shape, fields: shape.fields.isqrt().max(1) }
    }

    fn count(self) -> usize {
        self.shape.fields.div_ceil(self.fields)
    }

    /// The field's group, and its place among that group's fields.
    fn place(self, field: usize) -> (usize, usize) {
        (field / self.fields, field % self.fields)
    }

    /// A group as a row of its own.
    fn shape(self, group: usize) -> RowShape {
        let fields = self.fields.min(self.shape.fields - group * self.fields);
        RowShape { fields, ..self.shape }
    }

    /// Delivers what of the fields that are asked for is in a group's value.
    fn deliver(self, group: usize, value: &[u8], columns: Columns<'_>, sink: &mut RowSink) {
        let shape = self.shape(group);
        let first = group * self.fields;
        let mut show = |at: usize| sink.value(first + at, &value[field_range(shape, value, at)]);
        match columns {
            Columns::All => (0..shape.fields).for_each(show),
            Columns::Some(fields) => {
                let own = fields.iter().filter_map(|&field| field.checked_sub(first));
                own.filter(|&at| at < shape.fields).for_each(&mut show);
            }
        }
    }
}

struct Hybrid<F> {
    flat: F,
    groups: Groups,
    /// Of the row that is written, group by group.
    values: Vec<u8>,
}

impl<F: FlatSession> Session for Hybrid<F> {
    fn insert(&mut self, key: &Key, row: &[u8]) -> Result<(), String> {
        let (groups, mut ends) = (self.groups, Vec::with_capacity(self.groups.count()));
        self.values.clear();
        for (group, fields) in row.chunks(groups.fields * groups.shape.field_bytes).enumerate() {
            consolidate(groups.shape(group), fields, &mut self.values);
            ends.push(self.values.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let values = starts.zip(&ends).map(|(start, &end)| &self.values[start..end]);
        self.flat.put_all(values.enumerate().map(|(group, value)| (cell_of(key, group), value)))
    }

    fn read(&mut self, key: &Key, columns: Columns<'_>, sink: &mut RowSink) -> Result<(), String> {
        let groups = self.groups;
        let Columns::Some(fields) = columns else {
            return walk_row(&mut self.flat, key, groups.count(), sink, |group, value, sink| {
                groups.deliver(group, value, columns, sink);
            });
        };
        sink.begin_row(key);
        // Fields of one group that follow each other come out of one value.
        for of_one in fields.chunk_by(|&one, &next| groups.place(one).0 == groups.place(next).0) {
            let group = groups.place(of_one[0]).0;
            let deliver = |value: &[u8]| groups.deliver(group, value, Columns::Some(of_one), sink);
            self.flat.get(&cell_of(key, group), deliver)?;
        }
        Ok(())
    }

    fn update(&mut self, key: &Key, field: usize, value: &[u8]) -> Result<(), String> {
        let (group, at) = self.groups.place(field);
        self.flat.overwrite(&cell_of(key, group), place_of(self.groups.shape(group), at), value)
    }

    fn update_fields(&mut self, key: &Key, fields: &[usize], values: &[u8]) -> Result<(), String> {
        let (groups, width) = (self.groups, self.groups.shape.field_bytes);
        let mut values = values.chunks_exact(width);
        for of_one in fields.chunk_by(|&one, &next| groups.place(one).0 == groups.place(next).0) {
            let group = groups.place(of_one[0]).0;
            self.flat.change(&cell_of(key, group), |value| {
                for (&field, new) in of_one.iter().zip(&mut values) {
                    set_field(groups.shape(group), value, groups.place(field).1, new);
                }
            })?;
        }
        Ok(())
    }

    fn scan(
        &mut self,
        start: &Key,
        rows: usize,
        columns: Columns<'_>,
        sink: &mut RowSink,
    ) -> Result<(), String> {
        let groups = self.groups;
        walk_rows(&mut self.flat, start, (rows, groups.count()), sink, |group, value, sink| {
            groups.deliver(group, value, columns, sink);
        })
    }
}

/// Locks for engines that have no cheap read-modify-write of their own: a write to a row waits for another to the same
/// stripe only.
#[derive(Debug)]
pub struct Stripes(Vec<Mutex<()>>);

impl Default for Stripes {
    fn default() -> Stripes {
        Stripes((0..1024).map(|_| Mutex::new(())).collect())
    }
}

impl Stripes {
    /// Waits until no other write to the key's stripe is under way.
    pub fn lock(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let hash =
            key.iter().fold(0usize, |hash, &byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
        match self.0[hash % self.0.len()].lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

#[cfg(test)]
mod tests;
