//! What is the same for keys of every type: existence, removal, expiry, copies.

use std::collections::HashSet;
use std::ops::Range;

use hedgerow::{Table, TableChanges};

use super::{Kind, TieredKeyspace};
use crate::serve::failure::{Failure, Outcome};
use crate::serve::keyspace::copied::{Copied, CopiedField};

/// A key's type and expiry, if it exists.
type TypeAndExpiry = Option<(Kind, Option<u64>)>;

impl TieredKeyspace {
    /// The type of a key, if it exists.
    pub fn kind(&self, space: usize, key: &[u8]) -> Outcome<Option<Kind>> {
        if self.string_exists(space, key)? {
            return Ok(Some(Kind::String));
        }
        Ok(self.hash_exists(space, key)?.then_some(Kind::Hash))
    }

    /// Whether a key exists.
    pub fn exists(&self, space: usize, key: &[u8]) -> Outcome<bool> {
        Ok(self.kind(space, key)?.is_some())
    }

    /// How many of these keys exist. All are looked at, whatever one lacks: so what any of them lacks is brought together.
    pub fn count_existing<'k>(&self, space: usize, keys: impl Iterator<Item = &'k [u8]>) -> Outcome<u64> {
        let mut counted = Ok(0);
        for key in keys {
            match self.exists(space, key) {
                Ok(exists) => counted = counted.map(|count| count + u64::from(exists)),
                Err(failure) => counted = counted.and(Err(failure)),
            }
        }
        counted
    }

    /// Looks at the rows of keys, as those of this type if it is known, and tells nothing: whatever one of them lacks, all are looked at, so that it is brought together. To ask
    /// whether they exist is no such look: of most that is known without their rows.
    pub fn look_at<'k>(&self, space: usize, kind: Option<Kind>, keys: impl Iterator<Item = &'k [u8]>) {
        for key in keys {
            // What is wrong with one the command tells that comes to it.
            match kind {
                Some(Kind::String) => self.look_at_string(space, key),
                Some(Kind::Hash) => drop(self.hash(space, key, |_| Ok(()))),
                None => drop(self.expiry(space, key)),
            }
        }
    }

    /// Looks at the row of a string, but not at what is in it; where there is none, whether the key is a hash.
    fn look_at_string(&self, space: usize, key: &[u8]) {
        let strings = self.space(space).strings.as_ref();
        let found = strings.map_or(Ok(None), |strings| strings.table.read(key, |_| Ok(())));
        if let Ok(None) = found {
            drop(self.hash_exists(space, key));
        }
    }

    /// Removes a key; says whether it existed.
    pub fn delete(&mut self, space: usize, key: &[u8]) -> Outcome<bool> {
        Ok(self.string_delete_key(space, key)? || self.hash_delete_key(space, key)?)
    }

    pub(super) fn string_delete_key(&mut self, space: usize, key: &[u8]) -> Outcome<bool> {
        let Some(strings) = &self.spaces[space].strings else { return Ok(false) };
        if strings.table.is_known_to_be_empty() || !strings.table.exists(key)? {
            return Ok(false);
        }
        self.watches.touch(space, key);
        self.writer.delete(&strings.table, key)
    }

    /// When a key expires: None if it does not exist, else its time if it has one. Sees staged writes.
    pub fn expiry(&self, space: usize, key: &[u8]) -> Outcome<Option<Option<u64>>> {
        if let Some(staged) = self.staged(space, key)? {
            return Ok(staged.map(|(_, at_ms)| at_ms));
        }
        match self.kind(space, key)? {
            None => Ok(None),
            Some(Kind::String) => self.string(space, key, |_, expires| expires),
            Some(Kind::Hash) => self.hash(space, key, |view| Ok(view.expires_at_ms())),
        }
    }

    /// What the staged writes make of a key: None if they leave it as it is. One that expires as soon as it is there is none.
    fn staged(&self, space: usize, key: &[u8]) -> Outcome<Option<TypeAndExpiry>> {
        let mut found = None;
        for kind in [Kind::String, Kind::Hash] {
            let Ok((table, row)) = self.row_of(space, key, kind) else { continue };
            match self.writer.staged_expiry(table, row)? {
                Some(Some(at_ms)) if at_ms.is_none_or(|at_ms| at_ms > self.now_ms) => {
                    return Ok(Some(Some((kind, at_ms))));
                }
                Some(_) => found = Some(None),
                None => {}
            }
        }
        Ok(found)
    }

    /// Sets or clears the expiry of a key; false if it does not exist. Sees staged writes.
    pub fn set_expiry(&mut self, space: usize, key: &[u8], at_ms: Option<u64>) -> Outcome<bool> {
        let kind = match self.staged(space, key)? {
            Some(staged) => staged.map(|(kind, _)| kind),
            None => self.kind(space, key)?,
        };
        let Some(kind) = kind else { return Ok(false) };
        self.touch(space, key);
        let (table, row) = self.row_of(space, key, kind)?;
        let table = table.clone();
        if kind == Kind::Hash
            && let Some(at_ms) = at_ms
            && let Some((index, _)) = self.locate(space, key)
        {
            self.will_expire(index, at_ms);
        }
        self.writer.expire(&table, row, at_ms)
    }

    /// Removes a key that exists because its time has come; staged writes of it go, too.
    pub fn expire_now(&mut self, space: usize, key: &[u8]) -> Outcome<bool> {
        match self.staged(space, key)? {
            // Its row may not be there yet, so that there is nothing to delete: it expires as soon as it is.
            Some(_) => self.set_expiry(space, key, Some(self.now_ms)),
            None => self.delete(space, key),
        }
    }

    fn row_of<'k>(&self, space: usize, key: &'k [u8], kind: Kind) -> Outcome<(&Table, &'k [u8])> {
        let found = match kind {
            Kind::String => self.space(space).strings.as_ref().map(|strings| (&strings.table, key)),
            Kind::Hash => self.locate(space, key).map(|(index, row)| (self.tables[index].table(), row)),
        };
        found.ok_or(Failure::NO_SUCH_KEY)
    }

    /// Copies a key over whatever is at the other, expiries included, in one change, removing the first if it is a move. `NO_SUCH_KEY` if there is
    /// nothing to copy.
    pub fn copy(&mut self, from: (usize, &[u8]), to: (usize, &[u8]), is_move: bool) -> Outcome<()> {
        let expires = self.expiry(from.0, from.1)?.ok_or(Failure::NO_SUCH_KEY)?;
        if from == to {
            return Ok(());
        }
        let copied = self.copied(from.0, from.1)?;
        self.together(|keyspace| {
            match &copied {
                Copied::String(value) => keyspace.string_put(to.0, to.1, value, expires)?,
                Copied::Hash(fields) => {
                    keyspace.hash_replace(to.0, to.1, fields.iter().map(CopiedField::write), expires)?;
                }
            }
            match is_move {
                true => keyspace.delete(from.0, from.1).map(drop),
                false => Ok(()),
            }
        })
    }

    fn copied(&self, space: usize, key: &[u8]) -> Outcome<Copied> {
        if let Some(Kind::String) = self.kind(space, key)? {
            let value = self.string(space, key, |value, _| value.to_vec())?;
            return value.map(Copied::String).ok_or(Failure::NO_SUCH_KEY);
        }
        Copied::of_hash(|fields| {
            self.hash(space, key, |view| {
                view.for_each(|name, value| fields.push(name, value))?;
                fields.set_expiries(|name| view.field_expiry(name))
            })
        })
    }

    /// Keys in a database; expired ones that were not removed yet are counted.
    pub fn len(&self, space: usize) -> u64 {
        self.tables_of(space).map(|(_, table)| table.len()).sum()
    }

    /// How many of them have an expiry, and the mean time until then in ms; 0 if it is not known. That of a table is as the
    /// engine's sweeper found it in its last pass.
    pub fn expiring(&self, space: usize) -> (u64, u64) {
        let (mut keys, mut known, mut sum_ms) = (0, 0, 0);
        for expiring in self.tables_of(space).map(|(_, table)| table.expiring()) {
            keys += expiring.rows;
            if let Some(at_ms) = expiring.mean_at_ms {
                known += u128::from(expiring.rows);
                sum_ms += u128::from(expiring.rows) * u128::from(at_ms.saturating_sub(self.now_ms));
            }
        }
        (keys, sum_ms.checked_div(known).unwrap_or(0) as u64)
    }

    /// Removes all keys of some databases, in one change of the store's tables. Those with a declared schema keep it; the others go.
    pub fn clear(&mut self, spaces: Range<usize>) -> Outcome<()> {
        let mut changes = TableChanges::new();
        let mut dropped = HashSet::new();
        for here in &self.spaces[spaces.clone()] {
            if let Some(strings) = &here.strings {
                changes.clear(strings.table.name());
            }
            for &index in here.plain.iter().chain(&here.overflow).chain(here.by_prefix.values()) {
                let table = &self.tables[index];
                if table.is_open() {
                    changes.drop(table.name());
                    dropped.insert(index);
                } else {
                    changes.clear(table.name());
                }
            }
        }
        if let Some(overflow_fields) = &self.overflow_fields
            && self
                .tables
                .iter()
                .all(|(index, table)| table.overflow_fields().is_none() || dropped.contains(&index))
        {
            changes.clear(overflow_fields.table().name());
        }
        self.writer.prepare(|| self.db.change_tables(&changes))?;
        self.writer.record_change();
        dropped.into_iter().for_each(|index| drop(self.detach(index)));
        self.expiries.forget(spaces);
        self.expiries.sweep_all();
        Ok(())
    }
}
