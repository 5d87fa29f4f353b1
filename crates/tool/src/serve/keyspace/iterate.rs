//! Keys in order: for `SCAN`, `KEYS`, `RANDOMKEY` and the sweep.

use std::ops::Bound;

use hedgerow::{RowRef, Table};

use super::cursor::{Position, Source};
use super::{Keyspace, Kind, TableIndex};
use crate::serve::failure::Outcome;
use crate::serve::glob;

/// Which keys a scan wants.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'f> {
    /// Only keys that match.
    pub pattern: Option<&'f [u8]>,
    /// Only keys of this type.
    pub kind: Option<Kind>,
}

impl Keyspace {
    /// Runs `visit` on keys of a database from a position on, passing at most `budget` rows; gives the position where to go
    /// on, None at the end.
    pub fn scan_keys(
        &self,
        space: usize,
        from: Option<&Position>,
        budget: usize,
        filter: Filter<'_>,
        mut visit: impl FnMut(&[u8]),
    ) -> Outcome<Option<Position>> {
        let literal = filter.pattern.map_or(&[][..], glob::literal_prefix);
        let mut remaining = budget.max(1);
        let mut next = from.cloned();
        let mut key = Vec::new();
        for source in self.sources(space) {
            let after = match &next {
                Some(position) if position.source > source => continue,
                Some(position) if position.source == source => Some(position.after.clone()),
                _ => None,
            };
            let kind = if source == Source::Strings { Kind::String } else { Kind::Hash };
            if filter.kind.is_some_and(|wanted| wanted != kind) {
                continue;
            }
            let Some(row_prefix) = row_prefix(&source, literal) else { continue };
            let mut last: Option<Box<[u8]>> = None;
            self.visit_rows(
                space,
                &source,
                after.as_deref(),
                row_prefix,
                remaining,
                |index, row_key, row| {
                    remaining -= 1;
                    if remaining == 0 {
                        last = Some(row_key.into());
                    }
                    self.key_of(index, row_key, &mut key);
                    let is_wanted = filter.pattern.is_none_or(|pattern| glob::matches(pattern, &key));
                    if is_wanted && self.has_fields(index, row)? {
                        visit(&key);
                    }
                    Ok(())
                },
            )?;
            if let Some(after) = last {
                return Ok(Some(Position { space, source, after }));
            }
            next = None;
        }
        Ok(None)
    }

    /// The tables of a database, in the order of scans.
    pub(super) fn sources(&self, space: usize) -> Vec<Source> {
        let here = self.space(space);
        let mut sources = vec![Source::Strings, Source::Plain, Source::Overflow];
        sources.extend(here.in_order.keys().cloned().map(Source::Prefix));
        sources
    }

    fn table_of(&self, space: usize, source: &Source) -> Option<(Option<TableIndex>, &Table)> {
        let here = self.space(space);
        let index = match source {
            Source::Strings => return here.strings.as_ref().map(|strings| (None, &strings.table)),
            Source::Plain => here.plain?,
            Source::Overflow => here.overflow?,
            Source::Prefix(prefix) => *here.in_order.get(prefix)?,
            Source::Fields(_) => return None,
        };
        Some((Some(index), self.tables[index].table()))
    }

    /// Whether fields of the rows of a source may expire on their own.
    pub(super) fn has_expiring_fields(&self, space: usize, source: &Source) -> bool {
        let index = self.table_of(space, source).and_then(|(index, _)| index);
        index.is_some_and(|index| self.tables[index].has_expiring_fields())
    }

    /// Runs `visit` on at most `limit` rows of one table that start with `prefix`, after the row `after`.
    pub(super) fn visit_rows(
        &self,
        space: usize,
        source: &Source,
        after: Option<&[u8]>,
        prefix: &[u8],
        limit: usize,
        mut visit: impl FnMut(Option<TableIndex>, &[u8], &RowRef<'_>) -> hedgerow::Result<()>,
    ) -> Outcome<()> {
        let Some((index, table)) = self.table_of(space, source) else { return Ok(()) };
        if limit == 0 || table.is_empty() {
            return Ok(());
        }
        let mut scan = table.scan().limit(limit);
        if !prefix.is_empty() {
            scan = scan.prefix(prefix);
        }
        if let Some(after) = after.filter(|after| *after >= prefix) {
            scan = scan.from(Bound::Excluded(after));
        }
        Ok(scan.for_each(|row_key, row| visit(index, row_key, row).map(|()| true))?)
    }

    pub(super) fn key_of(&self, index: Option<TableIndex>, row_key: &[u8], key: &mut Vec<u8>) {
        match index {
            Some(index) => self.tables[index].key_of(row_key, key),
            None => {
                key.clear();
                key.extend_from_slice(row_key);
            }
        }
    }

    /// Whether a row is a key: one whose fields have all expired is none.
    pub(super) fn has_fields(&self, index: Option<TableIndex>, row: &RowRef<'_>) -> hedgerow::Result<bool> {
        match index {
            Some(index) if self.tables[index].has_expiring_fields() => {
                Ok(self.view(&self.tables[index], row)?.count()? > 0)
            }
            _ => Ok(true),
        }
    }

    /// A key chosen with `random`: a table by its number of rows, then one of the rows near a random place.
    pub fn random_key(&self, space: usize, random: u64) -> Outcome<Option<Vec<u8>>> {
        let total = self.len(space);
        if total == 0 {
            return Ok(None);
        }
        let mut place = random % total;
        for source in self.sources(space) {
            let Some((_, table)) = self.table_of(space, &source) else { continue };
            if place >= table.len() {
                place -= table.len();
                continue;
            }
            if let Some(key) = self.random_row(space, &source, random)? {
                return Ok(Some(key));
            }
        }
        // The chosen table had only rows that are about to be removed.
        let mut found = None;
        self.scan_keys(space, None, 1000, Filter::default(), |key| {
            found.get_or_insert_with(|| key.to_vec());
        })?;
        Ok(found)
    }

    fn random_row(&self, space: usize, source: &Source, random: u64) -> Outcome<Option<Vec<u8>>> {
        let Some((_, table)) = self.table_of(space, source) else { return Ok(None) };
        let (mut first, mut last) = (Vec::new(), Vec::new());
        table.scan().limit(1).for_each(|key, _| {
            first = key.to_vec();
            Ok(false)
        })?;
        table.scan().reverse().limit(1).for_each(|key, _| {
            last = key.to_vec();
            Ok(false)
        })?;
        let start = between(&first, &last, random);
        let mut rows: Vec<Vec<u8>> = Vec::new();
        for from in [Bound::Included(&start[..]), Bound::Unbounded] {
            table.scan().from(from).limit(16).for_each(|key, row| {
                let index = self.table_of(space, source).and_then(|(index, _)| index);
                if self.has_fields(index, row)? {
                    let mut name = Vec::new();
                    self.key_of(index, key, &mut name);
                    rows.push(name);
                }
                Ok(true)
            })?;
            if !rows.is_empty() {
                break;
            }
        }
        let chosen = (random >> 32) as usize % rows.len().max(1);
        Ok((chosen < rows.len()).then(|| rows.swap_remove(chosen)))
    }
}

/// What the rows of `source` start with if their keys start with `literal`; None if no key can.
fn row_prefix<'l>(source: &Source, literal: &'l [u8]) -> Option<&'l [u8]> {
    let Source::Prefix(prefix) = source else { return Some(literal) };
    match literal.strip_prefix(&prefix[..]) {
        Some([b':', rest @ ..]) => Some(rest),
        Some([]) => Some(&[]),
        Some(_) => None,
        None => prefix.starts_with(literal).then_some(&[]),
    }
}

/// A string between two others, by replacing the first bytes in which they differ.
fn between(first: &[u8], last: &[u8], random: u64) -> Vec<u8> {
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(key.get(common..).unwrap_or(&[])) {
            *to = *from;
        }
        u64::from_be_bytes(bytes)
    };
    let (low, high) = (number(first), number(last));
    let chosen = low + random.rotate_left(17) % (high.saturating_sub(low)).saturating_add(1).max(1);
    [first.get(..common).unwrap_or(&[]), &chosen.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrows_tables_by_the_pattern() {
        let users = Source::Prefix((*b"users").into());
        assert_eq!(row_prefix(&users, b"users:4"), Some(&b"4"[..]));
        assert_eq!(row_prefix(&users, b"us"), Some(&b""[..]));
        assert_eq!(row_prefix(&users, b""), Some(&b""[..]));
        assert_eq!(row_prefix(&users, b"usersx"), None);
        assert_eq!(row_prefix(&users, b"items:"), None);
        assert_eq!(row_prefix(&Source::Strings, b"a"), Some(&b"a"[..]));
    }

    #[test]
    fn picks_between() {
        for random in [0, 1, u64::MAX, 0x1234_5678_9ABC_DEF0] {
            let chosen = between(b"user1", b"user9", random);
            assert!(chosen.starts_with(b"user"));
            assert!(chosen.as_slice() >= b"user1".as_slice());
            assert!(chosen.as_slice() <= [&b"user9"[..], &[0xFF; 8]].concat().as_slice());
        }
        assert!(between(b"same", b"same", 7).starts_with(b"same"));
    }
}
