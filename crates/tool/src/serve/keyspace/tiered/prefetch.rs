//! Keys looked up ahead of their commands, together, so that their misses overlap.
//!
//! Owns: which row a prefetched key is, and the look-ups. Promises: what was found stays readable while the guard is held. It is
//! for the caller to know that nothing has written the key since. Must not know commands.

use hedgerow::{ReadGuard, RowHandle, Table};

use super::{TableIndex, TieredKeyspace};

/// Keys looked up in one go.
pub const KEYS_MAX: usize = 16;
/// With fewer rows the caches have them anyway.
const ROWS_MIN: u64 = 2_000;

/// Where a key was found.
#[derive(Debug, Clone, Copy)]
pub struct PrefetchedKey<'p> {
    row: RowHandle<'p>,
    /// The table and the bytes of the row's key, which ends the key, if it was looked up as a hash.
    hash: Option<(TableIndex, usize)>,
}

impl<'p> PrefetchedKey<'p> {
    /// As a hash: its table, its row, where that was.
    #[inline]
    pub(super) fn hash<'k>(&self, key: &'k [u8]) -> Option<(TableIndex, &'k [u8], RowHandle<'p>)> {
        let (table, row_bytes) = self.hash?;
        Some((table, key.get(key.len().checked_sub(row_bytes)?..)?, self.row))
    }

    /// As a string.
    #[inline]
    pub(super) fn string(&self) -> Option<RowHandle<'p>> {
        Some(self.row).filter(|_| self.hash.is_none())
    }
}

/// Keys to look up together, each with the position of its command.
#[derive(Default)]
pub struct PrefetchBatch<'k> {
    keys: [&'k [u8]; KEYS_MAX],
    positions: [usize; KEYS_MAX],
    count: usize,
}

impl<'k> PrefetchBatch<'k> {
    /// Adds a key; one too many is left out.
    #[inline]
    pub fn push(&mut self, position: usize, key: &'k [u8]) {
        if let Some(place) = self.keys.get_mut(self.count) {
            *place = key;
            self.positions[self.count] = position;
            self.count += 1;
        }
    }

    fn keys(&self) -> &[&'k [u8]] {
        &self.keys[..self.count]
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &'k [u8])> {
        self.positions.iter().copied().zip(self.keys().iter().copied())
    }
}

impl TieredKeyspace {
    /// Brings the rows of these keys into the processor's caches.
    pub fn prefetch(&self, space: usize, strings: &PrefetchBatch<'_>, hashes: &PrefetchBatch<'_>) {
        let prefetch = |table: &Table, batch: &PrefetchBatch<'_>| {
            if batch.count > 0 && table.len() >= ROWS_MIN {
                table.prefetch(batch.keys());
            }
        };
        if let Some(table) = &self.space(space).strings {
            prefetch(&table.table, strings);
        }
        self.by_table(space, hashes, |index, rows| prefetch(self.tables[index].table(), rows));
    }

    /// Looks these keys up, and brings their rows into the processor's caches; `visit` is called with the position of each that
    /// has a table, and where its row is.
    pub fn look_up<'p>(
        &self,
        space: usize,
        guard: &'p ReadGuard<'_>,
        strings: &PrefetchBatch<'_>,
        hashes: &PrefetchBatch<'_>,
        mut visit: impl FnMut(usize, PrefetchedKey<'p>),
    ) {
        if let Some(table) = &self.space(space).strings {
            table.table.look_up(guard, strings.keys(), |at, row| {
                visit(strings.positions[at], PrefetchedKey { row, hash: None });
            });
        }
        self.by_table(space, hashes, |index, rows| {
            self.tables[index].table().look_up(guard, rows.keys(), |at, row| {
                visit(rows.positions[at], PrefetchedKey { row, hash: Some((index, rows.keys[at].len())) });
            });
        });
    }

    /// Calls `visit` with each table and rows of it, in the order of the keys: most pipelines stay with one table.
    fn by_table<'k>(
        &self,
        space: usize,
        hashes: &PrefetchBatch<'k>,
        mut visit: impl FnMut(TableIndex, &PrefetchBatch<'k>),
    ) {
        // The table of the keys so far, and the prefix with its colon that says that a key is of it.
        let (mut table, mut prefix): (_, &[u8]) = (None, &[]);
        let mut rows = PrefetchBatch::default();
        for (position, key) in hashes.iter() {
            let same = table.filter(|_| !prefix.is_empty() && key.len() > prefix.len());
            let located = match same.filter(|_| key.starts_with(prefix)) {
                Some(index) => Some((index, &key[prefix.len()..])),
                None => self.locate(space, key),
            };
            let Some((index, row)) = located else { continue };
            if let Some(table) = table.filter(|&table| table != index) {
                visit(table, &rows);
                rows = PrefetchBatch::default();
            }
            table = Some(index);
            prefix = &key[..key.len() - row.len()];
            rows.push(position, row);
        }
        if let Some(table) = table {
            visit(table, &rows);
        }
    }
}
