//! Tables as they were seen last: where to look, never what to believe.
//!
//! Owns a bounded memory of them, for all attempts. Promises that those used last are in it, and that remembering one takes no longer for all others.
//! Must not know what is made of them.
//!
//! There are two generations. What is used is in the young one, or moves there; once that is full it is the old one, and what was in the old one
//! and not used since is forgotten.

use std::collections::HashMap;

use super::catalog::SeenEntry;

/// Tables of a generation.
const TABLES_MAX: usize = 4_096;

/// Bytes of their entries as they are stored.
const BYTES_MAX: usize = 8 << 20;

/// See [the module](self).
#[derive(Default)]
pub(super) struct Hints {
    young: HashMap<Box<str>, SeenEntry>,
    young_bytes: usize,
    old: HashMap<Box<str>, SeenEntry>,
}

impl Hints {
    /// A table as it was seen last, if that is remembered.
    pub(super) fn get(&mut self, table: &str) -> Option<&SeenEntry> {
        if !self.young.contains_key(table) {
            let (name, seen) = self.old.remove_entry(table)?;
            self.add(name, seen);
        }
        self.young.get(table)
    }

    /// Remembers a table.
    pub(super) fn insert(&mut self, table: &str, seen: SeenEntry) {
        self.remove(table);
        self.add(table.into(), seen);
    }

    /// Forgets a table.
    pub(super) fn remove(&mut self, table: &str) {
        self.young_bytes -= self.young.remove(table).map_or(0, |seen| seen.bytes);
        self.old.remove(table);
    }

    fn add(&mut self, name: Box<str>, seen: SeenEntry) {
        if self.young.len() >= TABLES_MAX || self.young_bytes + seen.bytes > BYTES_MAX {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += seen.bytes;
        self.young.insert(name, seen);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Schema;
    use crate::backend::Mark;
    use crate::pairs::catalog::CatalogEntry;
    use crate::schema::table::TableSchema;

    fn seen(number: u32, bytes: usize) -> SeenEntry {
        let schema = Arc::new(TableSchema::create(&Schema::open()).unwrap());
        SeenEntry {
            entry: CatalogEntry { table: number, group: number, schema },
            mark: Mark::new(number.into()),
            bytes,
        }
    }

    #[test]
    fn those_used_last_are_remembered_and_no_more() {
        let mut hints = Hints::default();
        for number in 0..100_000 {
            hints.insert(&format!("t{number}"), seen(number, 100));
            assert_eq!(hints.get("t0").map(|seen| seen.entry.table), Some(0), "it is used all the while");
            assert!(hints.young.len() + hints.old.len() <= 2 * TABLES_MAX);
        }
        let known = (0..100_000).filter(|number| hints.get(&format!("t{number}")).is_some()).count();
        assert!((TABLES_MAX..=2 * TABLES_MAX).contains(&known), "{known}");
        hints.insert("t99999", seen(7, 100));
        assert_eq!(hints.get("t99999").map(|seen| seen.entry.table), Some(7));
        hints.remove("t99999");
        assert!(hints.get("t99999").is_none());
    }

    #[test]
    fn long_entries_are_fewer() {
        let mut hints = Hints::default();
        (0..100).for_each(|number| hints.insert(&format!("t{number}"), seen(number, BYTES_MAX / 4)));
        let kept: usize = hints.young.values().chain(hints.old.values()).map(|seen| seen.bytes).sum();
        assert!((BYTES_MAX / 2..=2 * BYTES_MAX).contains(&kept), "{kept}");
        hints.insert("huge", seen(1, 2 * BYTES_MAX));
        assert!(hints.get("huge").is_some());
    }
}
