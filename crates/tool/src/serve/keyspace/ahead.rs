//! Keys looked up ahead of their commands, together, so that their misses overlap.
//!
//! Owns: which row a key found ahead is, and the look-ups. Promises: what was found stays readable while the pin is held. It is
//! for the caller to know that nothing has written the key since. Must not know commands.

use hedgerow::{ReadGuard, RowHandle, Table};

use super::{Keyspace, TableIndex};

/// Keys looked up in one go.
pub const KEYS_MAX: usize = 16;
/// With fewer rows the caches have them anyway.
const ROWS_MIN: u64 = 2_000;

/// Where a key was found.
#[derive(Debug, Clone, Copy)]
pub struct Ahead<'p> {
    found: RowHandle<'p>,
    /// The table and the bytes of the row's key, which ends the key, if it was looked up as a hash.
    hash: Option<(TableIndex, usize)>,
}

impl<'p> Ahead<'p> {
    /// As a hash: its table, its row, where that was.
    #[inline]
    pub(super) fn hash<'k>(&self, key: &'k [u8]) -> Option<(TableIndex, &'k [u8], RowHandle<'p>)> {
        let (table, row_bytes) = self.hash?;
        Some((table, key.get(key.len().checked_sub(row_bytes)?..)?, self.found))
    }

    /// As a string.
    #[inline]
    pub(super) fn string(&self) -> Option<RowHandle<'p>> {
        Some(self.found).filter(|_| self.hash.is_none())
    }
}

/// Keys to look up together, each with the position of its command.
#[derive(Default)]
pub struct Sought<'k> {
    keys: [&'k [u8]; KEYS_MAX],
    positions: [usize; KEYS_MAX],
    count: usize,
}

impl<'k> Sought<'k> {
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

impl Keyspace {
    /// Brings the rows of these keys into the processor's caches.
    pub fn fetch(&self, space: usize, strings: &Sought<'_>, hashes: &Sought<'_>) {
        let fetch = |table: &Table, sought: &Sought<'_>| {
            if sought.count > 0 && table.len() >= ROWS_MIN {
                table.prefetch(sought.keys());
            }
        };
        if let Some(table) = &self.space(space).strings {
            fetch(&table.table, strings);
        }
        self.by_table(space, hashes, |index, rows| fetch(self.tables[index].table(), rows));
    }

    /// Looks these keys up, and brings their rows into the processor's caches; `tell` is called with the position of each that
    /// has a table, and what was found.
    pub fn find<'p>(
        &self,
        space: usize,
        pin: &'p ReadGuard<'_>,
        strings: &Sought<'_>,
        hashes: &Sought<'_>,
        mut tell: impl FnMut(usize, Ahead<'p>),
    ) {
        if let Some(table) = &self.space(space).strings {
            table.table.look_up(pin, strings.keys(), |at, found| {
                tell(strings.positions[at], Ahead { found, hash: None });
            });
        }
        self.by_table(space, hashes, |index, rows| {
            self.tables[index].table().look_up(pin, rows.keys(), |at, found| {
                tell(rows.positions[at], Ahead { found, hash: Some((index, rows.keys[at].len())) });
            });
        });
    }

    /// Calls `visit` with each table and rows of it, in the order of the keys: most pipelines stay with one table.
    fn by_table<'k>(
        &self,
        space: usize,
        hashes: &Sought<'k>,
        mut visit: impl FnMut(TableIndex, &Sought<'k>),
    ) {
        // The table of the keys so far, and the prefix with its colon that says that a key is of it.
        let (mut table, mut prefix): (_, &[u8]) = (None, &[]);
        let mut rows = Sought::default();
        for (position, key) in hashes.iter() {
            let same = table.filter(|_| !prefix.is_empty() && key.len() > prefix.len());
            let located = match same.filter(|_| key.starts_with(prefix)) {
                Some(index) => Some((index, &key[prefix.len()..])),
                None => self.locate(space, key),
            };
            let Some((index, row)) = located else { continue };
            if let Some(table) = table.filter(|&table| table != index) {
                visit(table, &rows);
                rows = Sought::default();
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
