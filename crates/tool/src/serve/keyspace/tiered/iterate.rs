//! Keys in order: for `SCAN`, `KEYS`, `RANDOMKEY` and the sweep.

use hedgerow::{RowRef, Table};
use hedgerow_device::Random;

use super::{Kind, TableIndex, TieredKeyspace};
use crate::serve::failure::Outcome;
use crate::serve::glob;
use crate::serve::keyspace::Filter;
use crate::serve::keyspace::cursor::{Position, Source};

/// Choices of a random key that may be of rows that have expired, after which the first keys have to do.
const RANDOM_TRIES: usize = 100;
/// And how many rows are passed in search of one.
const RANDOM_SCAN_ROWS: usize = 1_000;

impl TieredKeyspace {
    /// Runs `visit` on keys of a database from a position on, passing at most `budget` rows, until it says false; gives the
    /// position where to go on, None at the end.
    pub fn scan_keys(
        &self,
        space: usize,
        from: Option<&Position>,
        budget: usize,
        filter: Filter<'_>,
        mut visit: impl FnMut(&[u8]) -> bool,
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
                    self.key_of(index, row_key, &mut key);
                    let is_wanted = filter.pattern.is_none_or(|pattern| glob::matches(pattern, &key));
                    if is_wanted && self.has_fields(index, row)? && !visit(&key) {
                        remaining = 0;
                    }
                    if remaining == 0 {
                        last = Some(row_key.into());
                    }
                    Ok(remaining > 0)
                },
            )?;
            if let Some(after) = last {
                return Ok(Some(Position { space, source, after, walk: None }));
            }
            next = None;
        }
        Ok(None)
    }

    /// The tables of a database, in the order of scans.
    pub(super) fn sources(&self, space: usize) -> Vec<Source> {
        let here = self.space(space);
        let mut sources = vec![Source::Plain, Source::Overflow];
        sources.extend(here.in_order.keys().cloned().map(Source::Prefix));
        sources.push(Source::Strings);
        sources
    }

    fn table_of(&self, space: usize, source: &Source) -> Option<(Option<TableIndex>, &Table)> {
        let here = self.space(space);
        let index = match source {
            Source::Strings => return here.strings.as_ref().map(|strings| (None, &strings.table)),
            Source::Plain => here.plain?,
            Source::Overflow => here.overflow?,
            Source::Prefix(prefix) => *here.in_order.get(prefix)?,
            Source::Fields(_) | Source::Tables => return None,
        };
        Some((Some(index), self.tables[index].table()))
    }

    /// Whether fields of the rows of a source may expire on their own.
    pub(super) fn has_expiring_fields(&self, space: usize, source: &Source) -> bool {
        let index = self.table_of(space, source).and_then(|(index, _)| index);
        index.is_some_and(|index| self.tables[index].has_expiring_fields())
    }

    /// Runs `visit` on at most `limit` rows of one table that start with `prefix`, after the row `after`, until it says false.
    pub(super) fn visit_rows(
        &self,
        space: usize,
        source: &Source,
        after: Option<&[u8]>,
        prefix: &[u8],
        limit: usize,
        mut visit: impl FnMut(Option<TableIndex>, &[u8], &RowRef<'_>) -> hedgerow::Result<bool>,
    ) -> Outcome<()> {
        let Some((index, table)) = self.table_of(space, source) else { return Ok(()) };
        if limit == 0 || table.is_known_to_be_empty() {
            return Ok(());
        }
        let mut scan = table.scan().limit(limit);
        if !prefix.is_empty() {
            scan = scan.prefix(prefix);
        }
        if let Some(after) = after.filter(|after| *after >= prefix) {
            scan = scan.after(after);
        }
        Ok(scan.for_each(|row_key, row| visit(index, row_key, row))?)
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
                self.view(&self.tables[index], row)?.has_fields()
            }
            _ => Ok(true),
        }
    }

    /// A key chosen by `random`, every one as likely as any other.
    pub fn random_key(&self, space: usize, random: &mut Random) -> Outcome<Option<Vec<u8>>> {
        let before = random.clone();
        // A command that is given again for what it lacked has to come by the same rows.
        self.choose_key(space, random).inspect_err(|_| *random = before)
    }

    fn choose_key(&self, space: usize, random: &mut Random) -> Outcome<Option<Vec<u8>>> {
        let total = self.len(space);
        // What was chosen may have expired; then the table is chosen anew, too, or its other rows would be too likely.
        for _ in 0..if total == 0 { 0 } else { RANDOM_TRIES } {
            let mut place = random.below(total);
            let chosen = self.tables_of(space).find(|(_, table)| match place.checked_sub(table.len()) {
                Some(rest) => {
                    place = rest;
                    false
                }
                None => true,
            });
            let Some((index, table)) = chosen else { continue };
            let Some(row) = table.random_key(random)? else { continue };
            if self.is_key(index, &row)? {
                let mut key = Vec::new();
                self.key_of(index, &row, &mut key);
                return Ok(Some(key));
            }
        }
        let mut found = None;
        self.scan_keys(space, None, RANDOM_SCAN_ROWS, Filter::default(), |key| {
            found = Some(key.to_vec());
            false
        })?;
        Ok(found)
    }

    /// The tables that a database's keys are in.
    pub(super) fn tables_of(&self, space: usize) -> impl Iterator<Item = (Option<TableIndex>, &Table)> {
        let here = self.space(space);
        let strings = here.strings.iter().map(|strings| (None, &strings.table));
        let hashes = here.plain.iter().chain(&here.overflow).chain(here.by_prefix.values());
        strings.chain(hashes.map(|&index| (Some(index), self.tables[index].table())))
    }

    /// Whether a row that is there is a key; see [`TieredKeyspace::has_fields`].
    fn is_key(&self, index: Option<TableIndex>, row: &[u8]) -> Outcome<bool> {
        match index {
            Some(index) if self.tables[index].has_expiring_fields() => {
                Ok(self.hash_at(index, row, |view| view.has_fields())?.unwrap_or(false))
            }
            _ => Ok(true),
        }
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
}
