//! Keys that are hashes: rows of tables, and the overflow fields some of them have.

use std::collections::{BTreeMap, HashSet};

use hedgerow::{FieldId, OwnedValue, RowHandle, RowRef, Value};

use super::overflow_fields::{self, OverflowFields, OverflowFieldsTable};
use super::prefetch::PrefetchedKey;
use super::table::{HashTable, Slot, is_reserved};
use super::{Place, TableIndex, TieredKeyspace, check_key, limits, naming};
use crate::serve::failure::{Failure, Outcome};
use crate::serve::keyspace::FieldWrite;

/// Overflow fields that are looked at between two looks at the clock.
const LOOKS_PER_CLOCK: u64 = 64;

/// When a hash will have no field left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastExpiry {
    /// One does not expire.
    Never,
    /// Then, in ms since 1970; 0 if there is none.
    At(u64),
    /// It has so many that there was no time to look at all of them.
    Unknown,
}

/// A hash in place: its row, and its overflow fields if it has any.
pub struct TieredHashView<'v, 'r> {
    table: &'v HashTable,
    row: &'v RowRef<'r>,
    overflow_fields: Option<(OverflowFields, &'v OverflowFieldsTable)>,
}

impl TieredHashView<'_, '_> {
    /// Runs `read` on the value of a field (`Null` if it has none) and on its expiry.
    #[inline]
    pub fn field<R>(&self, name: &[u8], read: impl FnOnce(Value<'_>) -> R) -> hedgerow::Result<R> {
        if let Some(slot) = self.table.slot(name) {
            return Ok(read(self.row.get(slot.id)?));
        }
        if let Some((overflow_fields, table)) = &self.overflow_fields {
            let mut read = Some(read);
            let found = table.read(*overflow_fields, name, |value, _| read.take().map(|read| read(value)))?;
            return match (found.flatten(), read) {
                (Some(result), _) => Ok(result),
                (None, Some(read)) => Ok(read(Value::Null)),
                (None, None) => unreachable!("`read` is taken only to give a result"),
            };
        }
        Ok(read(Value::Null))
    }

    /// The expiry of a field: None if there is no such field, else its time if it has one.
    pub fn field_expiry(&self, name: &[u8]) -> hedgerow::Result<Option<Option<u64>>> {
        if let Some(slot) = self.table.slot(name) {
            return match self.row.get(slot.id)?.is_null() {
                true => Ok(None),
                false => Ok(Some(self.row.field_expires_at_ms(slot.id)?)),
            };
        }
        match &self.overflow_fields {
            Some((overflow_fields, table)) => table.read(*overflow_fields, name, |_, expires| expires),
            None => Ok(None),
        }
    }

    /// Runs `visit` on each field's name and value, until it says false.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(&[u8], Value<'_>) -> bool) -> hedgerow::Result<()> {
        let mut goes_on = true;
        self.for_each_own(|name, value| goes_on = goes_on && visit(name, value))?;
        match goes_on {
            true => self.for_each_overflow(None, visit),
            false => Ok(()),
        }
    }

    /// Whether there is a field: a row whose fields have all expired is no key.
    pub fn has_fields(&self) -> hedgerow::Result<bool> {
        for slot in self.table.slots() {
            if self.row.has(slot.id)? {
                return Ok(true);
            }
        }
        let mut found = false;
        self.for_each_overflow(None, |_, _| {
            found = true;
            false
        })?;
        Ok(found)
    }

    /// When the last field expires, if that is known by the time that `is_time_up`, which is asked now and then.
    pub(super) fn last_expiry(&self, is_time_up: impl Fn() -> bool) -> hedgerow::Result<LastExpiry> {
        let (mut last, mut looks, mut is_cut) = (Some(0), 0, false);
        let mut latest = |expiry: Option<u64>| {
            last = last.zip(expiry).map(|(last, expiry)| last.max(expiry));
            last.is_some()
        };
        let mut own: Vec<Vec<u8>> = Vec::new();
        self.for_each_own(|name, _| own.push(name.to_vec()))?;
        for name in own {
            if !latest(self.field_expiry(&name)?.flatten()) {
                return Ok(LastExpiry::Never);
            }
        }
        if let Some((overflow_fields, table)) = &self.overflow_fields {
            table.for_each(*overflow_fields, None, |_, _, expiry| {
                looks += 1;
                is_cut = looks % LOOKS_PER_CLOCK == 0 && is_time_up();
                latest(expiry) && !is_cut
            })?;
        }
        Ok(match last {
            None => LastExpiry::Never,
            Some(_) if is_cut => LastExpiry::Unknown,
            Some(at_ms) => LastExpiry::At(at_ms),
        })
    }

    /// When the first field expires, if one does, in ms since 1970.
    pub(super) fn first_expiry_ms(&self) -> hedgerow::Result<Option<u64>> {
        let mut first: Option<u64> = None;
        let mut add = |expiry: Option<u64>| first = first.into_iter().chain(expiry).min();
        for slot in self.table.slots() {
            if self.row.has(slot.id)? {
                add(self.row.field_expires_at_ms(slot.id)?);
            }
        }
        if let Some((overflow_fields, table)) =
            self.overflow_fields.as_ref().filter(|(of_row, _)| of_row.expiring)
        {
            table.for_each(*overflow_fields, None, |_, _, expiry| {
                add(expiry);
                true
            })?;
        }
        Ok(first)
    }

    /// When fields expire, in ms since 1970, without those of overflow fields, which may be many.
    fn own_expiries_ms(&self) -> hedgerow::Result<Vec<u64>> {
        let mut at_ms = Vec::new();
        for slot in self.table.slots() {
            if self.row.has(slot.id)? {
                at_ms.extend(self.row.field_expires_at_ms(slot.id)?);
            }
        }
        Ok(at_ms)
    }

    /// Like [`TieredHashView::for_each`], without the overflow fields.
    #[inline]
    pub fn for_each_own(&self, mut visit: impl FnMut(&[u8], Value<'_>)) -> hedgerow::Result<()> {
        self.row.for_each(|name, value| {
            if !is_reserved(name.as_bytes()) {
                visit(name.as_bytes(), value);
            }
        })
    }

    /// Runs `visit` on the overflow fields after `after`, until it says false.
    pub fn for_each_overflow(
        &self,
        after: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], Value<'_>) -> bool,
    ) -> hedgerow::Result<()> {
        match &self.overflow_fields {
            Some((overflow_fields, table)) => {
                table.for_each(*overflow_fields, after, |name, value, _| visit(name, value))
            }
            None => Ok(()),
        }
    }

    /// Those of these fields that exist, each once.
    fn present<'n>(&self, names: impl Iterator<Item = &'n [u8]>) -> hedgerow::Result<Present<'n>> {
        let mut present = Present {
            overflow_fields: self.overflow_fields.as_ref().map(|(overflow_fields, _)| *overflow_fields),
            ..Present::default()
        };
        let mut seen = HashSet::new();
        for name in names {
            // A value is copied once, however often its field is named.
            if !seen.insert(name) {
                continue;
            }
            if let Some(slot) = self.table.slot(name) {
                let value = self.row.get(slot.id)?;
                if !value.is_null() {
                    present.own.push((name, slot, value.to_owned()));
                }
            } else if let Some((overflow_fields, table)) = &self.overflow_fields
                && table.has(*overflow_fields, name)?
            {
                present.overflow_names.push(name);
            }
        }
        Ok(present)
    }

    /// How many fields there are.
    pub fn count(&self) -> hedgerow::Result<u64> {
        let mut count = 0;
        self.for_each_own(|_, _| count += 1)?;
        if let Some((overflow_fields, table)) = &self.overflow_fields {
            count += table.count(*overflow_fields)?;
        }
        Ok(count)
    }

    /// When the key expires.
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.row.expires_at_ms()
    }
}

/// Fields of a hash that exist.
#[derive(Default)]
struct Present<'n> {
    /// Those in its row, with their values.
    own: Vec<(&'n [u8], Slot, OwnedValue)>,
    /// The others.
    overflow_names: Vec<&'n [u8]>,
    overflow_fields: Option<OverflowFields>,
}

/// The row a key is: its table and key there, and where it was, if it was looked up already.
#[derive(Clone, Copy)]
struct Target<'k, 'p> {
    index: TableIndex,
    row: &'k [u8],
    found: Option<RowHandle<'p>>,
}

/// What a write gives the fields that lie in the hash's row.
#[derive(Default)]
struct OwnFields<'v> {
    values: Vec<(FieldId, Value<'v>)>,
    /// Of those that expire on their own.
    expiries: Vec<(FieldId, u64)>,
    /// Whether any field of the write does, those included that lie elsewhere.
    any_expires: bool,
}

/// What a write has to know about the row before it.
#[derive(Default, Clone, Copy)]
struct Before {
    exists: bool,
    /// There is a row whose fields have all expired, and which nobody has removed yet: no key.
    is_left_over: bool,
    /// How many of the fields to be written the row does not have.
    new: usize,
    overflow_fields: Option<OverflowFields>,
    expires_at_ms: Option<u64>,
}

impl TieredKeyspace {
    /// Runs `read` on a hash in place. None if the key does not exist; WRONGTYPE if it is a string.
    #[inline]
    pub fn hash<R>(
        &self,
        space: usize,
        key: &[u8],
        read: impl FnOnce(&TieredHashView<'_, '_>) -> hedgerow::Result<R>,
    ) -> Outcome<Option<R>> {
        self.hash_prefetched(space, key, None, read)
    }

    /// [`TieredKeyspace::hash`] of a key that may have been looked up already.
    #[inline]
    pub fn hash_prefetched<R>(
        &self,
        space: usize,
        key: &[u8],
        prefetched: Option<PrefetchedKey<'_>>,
        read: impl FnOnce(&TieredHashView<'_, '_>) -> hedgerow::Result<R>,
    ) -> Outcome<Option<R>> {
        if let Some(target) = self.target(space, key, prefetched)
            && let Some(result) = self.read_target(target, |table, row| read(&self.view(table, row)?))?
        {
            return Ok(Some(result));
        }
        match self.string_exists(space, key)? {
            true => Err(Failure::WRONG_TYPE),
            false => Ok(None),
        }
    }

    /// The row that a hash of this key is or would be, if its table exists.
    #[inline]
    fn target<'k, 'p>(
        &self,
        space: usize,
        key: &'k [u8],
        prefetched: Option<PrefetchedKey<'p>>,
    ) -> Option<Target<'k, 'p>> {
        if let Some((index, row, found)) = prefetched.and_then(|prefetched| prefetched.hash(key)) {
            return Some(Target { index, row, found: Some(found) });
        }
        let (index, row) = self.locate(space, key)?;
        Some(Target { index, row, found: None })
    }

    #[inline]
    fn read_target<R>(
        &self,
        Target { index, row, found }: Target<'_, '_>,
        read: impl FnOnce(&HashTable, &RowRef<'_>) -> hedgerow::Result<R>,
    ) -> Outcome<Option<R>> {
        let table = &self.tables[index];
        Ok(match found {
            Some(found) => table.table().read_handle(row, found, |row| read(table, row))?,
            None => table.table().read(row, |row| read(table, row))?,
        })
    }

    #[inline]
    pub(super) fn hash_at<R>(
        &self,
        index: TableIndex,
        row: &[u8],
        read: impl FnOnce(&TieredHashView<'_, '_>) -> hedgerow::Result<R>,
    ) -> Outcome<Option<R>> {
        let table = &self.tables[index];
        Ok(table.table().read(row, |row| read(&self.view(table, row)?))?)
    }

    /// A row as a hash.
    #[inline]
    pub fn view<'v, 'r>(
        &'v self,
        table: &'v HashTable,
        row: &'v RowRef<'r>,
    ) -> hedgerow::Result<TieredHashView<'v, 'r>> {
        let overflow_fields = match table.overflow_fields() {
            Some(field) => OverflowFields::decode(row.get(field)?).zip(self.overflow_fields.as_ref()),
            None => None,
        };
        Ok(TieredHashView { table, row, overflow_fields })
    }

    /// Whether the key is a hash with a field in it.
    #[inline]
    pub fn hash_exists(&self, space: usize, key: &[u8]) -> Outcome<bool> {
        let Some((index, row)) = self.locate(space, key) else { return Ok(false) };
        let table = &self.tables[index];
        if table.table().is_known_to_be_empty() {
            return Ok(false);
        }
        if table.has_expiring_fields() {
            return Ok(self.hash_at(index, row, |view| view.has_fields())?.unwrap_or(false));
        }
        Ok(table.table().exists(row)?)
    }

    /// Whether there is a row of a hash whose fields have all expired, if the key is known to be no hash.
    #[inline]
    pub(super) fn has_left_over_row(&self, space: usize, key: &[u8]) -> Outcome<bool> {
        let Some((index, row)) = self.locate(space, key) else { return Ok(false) };
        let table = &self.tables[index];
        let may_have = table.has_expiring_fields() && !table.table().is_known_to_be_empty();
        Ok(may_have && table.table().exists(row)?)
    }

    /// Whether there is a row of a hash, perhaps without a field in it.
    #[inline]
    pub(super) fn has_hash_row(&self, space: usize, key: &[u8]) -> Outcome<bool> {
        let Some((index, row)) = self.locate(space, key) else { return Ok(false) };
        let table = self.tables[index].table();
        Ok(!table.is_known_to_be_empty() && table.exists(row)?)
    }

    /// Writes fields of a hash, making it if need be; says how many of them it did not have. The last value of a name
    /// wins. Keeps the key's expiry; that of the fields is as given. The store changes once or not at all.
    pub fn hash_set<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        writes: impl Iterator<Item = FieldWrite<'v>> + Clone,
    ) -> Outcome<usize> {
        self.hash_write(space, key, None, writes, None)
    }

    /// [`TieredKeyspace::hash_set`] of a key that may have been looked up already, which is not waited for.
    #[inline]
    pub fn hash_set_prefetched<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        prefetched: Option<PrefetchedKey<'_>>,
        pairs: impl Iterator<Item = (&'v [u8], &'v [u8])> + Clone,
    ) -> Outcome<usize> {
        self.hash_write(space, key, prefetched, pairs.map(FieldWrite::lasting), None)
    }

    /// Writes a hash of these fields only over whatever the key was, with an expiry or none.
    pub fn hash_replace<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        writes: impl Iterator<Item = FieldWrite<'v>> + Clone,
        expires_at_ms: Option<u64>,
    ) -> Outcome<()> {
        self.together(|keyspace| {
            // First what may be refused: a transaction that goes on has what was staged before.
            keyspace.hash_write(space, key, None, writes, Some(expires_at_ms))?;
            if keyspace.string_exists(space, key)? {
                keyspace.string_delete_key(space, key)?;
            }
            Ok(())
        })
    }

    fn hash_write<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        prefetched: Option<PrefetchedKey<'_>>,
        writes: impl Iterator<Item = FieldWrite<'v>> + Clone,
        whole: Option<Option<u64>>,
    ) -> Outcome<usize> {
        // The row's key is shorter, and would be taken.
        check_key(key)?;
        let target = match self.target(space, key, prefetched) {
            Some(target) if Some(target.index) != self.space(space).overflow => target,
            // One in the shared table may have a table of its own since it was looked up, or may be given one now.
            located => {
                if whole.is_none() && self.string_exists(space, key)? {
                    return Err(Failure::WRONG_TYPE);
                }
                let (index, row) = self.locate_or_create(space, key)?;
                let found =
                    located.filter(|located| located.index == index).and_then(|located| located.found);
                Target { index, row, found }
            }
        };
        let mut own = OwnFields { values: self.take_fields(), ..OwnFields::default() };
        let outcome = self.hash_write_to(space, key, target, writes.clone(), whole, &mut own);
        self.return_fields(own.values);
        if outcome.is_ok() && own.any_expires {
            for at_ms in writes.filter_map(|write| write.expires_at_ms) {
                self.expiries.enqueue(at_ms, space, key);
            }
        }
        outcome
    }

    fn hash_write_to<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        target: Target<'_, '_>,
        writes: impl Iterator<Item = FieldWrite<'v>> + Clone,
        whole: Option<Option<u64>>,
        own: &mut OwnFields<'v>,
    ) -> Outcome<usize> {
        let Target { index, row, .. } = target;
        let has_overflow = self.stage(index, writes.clone(), own)?;
        let before = match whole {
            Some(_) => {
                self.enqueue_orphans(index, row)?;
                Before { new: own.values.len(), ..Before::default() }
            }
            None => self.before(target, &own.values)?,
        };
        if whole.is_none() && !before.exists && self.string_exists(space, key)? {
            return Err(Failure::WRONG_TYPE);
        }
        let mut whole = whole;
        if before.is_left_over {
            // Not onto what is left: that may expire, and has overflow fields of its own.
            self.enqueue_orphans(index, row)?;
            whole = Some(None);
        }
        self.touch(space, key);
        if has_overflow {
            return self.hash_write_overflow(space, key, index, row, writes, whole, own, before);
        }
        // Nobody else writes rows. So if it is known what the row will be, it is written as such: nothing has to be merged
        // later. Staged writes may be of the same row, and are not seen in it yet.
        let is_known =
            self.tables[index].is_whole(own.values.len(), before.exists) && !self.writer.is_staging();
        let whole = if is_known { whole.or(Some(before.expires_at_ms)) } else { whole };
        self.write_row(index, row, own, whole)?;
        Ok(before.new)
    }

    /// Writes fields of a row and when they expire, or the whole row with its expiry: one change.
    #[inline]
    fn write_row(
        &mut self,
        index: TableIndex,
        row: &[u8],
        own: &OwnFields<'_>,
        whole: Option<Option<u64>>,
    ) -> Outcome<()> {
        if let Some(Some(at_ms)) = whole {
            self.will_expire(index, at_ms);
        }
        if !own.expiries.is_empty() {
            return self.write_expiring(index, row, own, whole);
        }
        let table = self.tables[index].table();
        match whole {
            None => self.writer.update(table, row, &own.values),
            Some(expires) => self.writer.put(table, row, &own.values, expires),
        }
    }

    #[cold]
    fn write_expiring(
        &mut self,
        index: TableIndex,
        row: &[u8],
        own: &OwnFields<'_>,
        whole: Option<Option<u64>>,
    ) -> Outcome<()> {
        let expiring = own.expiries.iter().map(|(field, _)| field.index() + 1).max().unwrap_or(0);
        let mut expiries = vec![None; expiring];
        own.expiries.iter().for_each(|(field, at_ms)| expiries[field.index()] = Some(*at_ms));
        let mut by_expiry: BTreeMap<Option<u64>, Vec<(FieldId, Value<'_>)>> = BTreeMap::new();
        for (field, value) in &own.values {
            by_expiry
                .entry(expiries.get(field.index()).copied().flatten())
                .or_default()
                .push((*field, *value));
        }
        self.together(|keyspace| {
            let table = keyspace.tables[index].table();
            if let Some(expires) = whole {
                let lasting = by_expiry.remove(&None).unwrap_or_default();
                keyspace.writer.put(table, row, &lasting, expires)?;
            }
            for (expiry, fields) in &by_expiry {
                match expiry {
                    None => keyspace.writer.update(table, row, fields)?,
                    Some(at_ms) => keyspace.writer.update_expiring(table, row, fields, *at_ms)?,
                }
            }
            Ok(())
        })
    }

    /// Turns what is written into the fields of the table; says whether some have to be kept as rows of their own.
    #[inline]
    fn stage<'v>(
        &mut self,
        index: TableIndex,
        writes: impl Iterator<Item = FieldWrite<'v>> + Clone,
        own: &mut OwnFields<'v>,
    ) -> Outcome<bool> {
        let (mut has_overflow, mut has_learned) = (false, false);
        let names = writes.clone().map(|write| write.name);
        // A filter of the fields so far: where its bit is clear, the field is new to the list.
        let mut seen = 0u64;
        for FieldWrite { name, text, expires_at_ms } in writes {
            if expires_at_ms.is_some() && !std::mem::replace(&mut own.any_expires, true) {
                self.tables[index].record_expiring_fields(&mut self.writer)?;
            }
            let mut slot = self.tables[index].slot(name);
            if slot.is_none() && !has_learned {
                self.learn(index, names.clone())?;
                (slot, has_learned) = (self.tables[index].slot(name), true);
            }
            let table = &self.tables[index];
            let Some(slot) = slot else {
                if !table.is_open() {
                    return Err(table.unknown_field(name));
                }
                overflow_fields::check_name(name)?;
                has_overflow = true;
                continue;
            };
            let value = table.value_of(slot, name, text)?;
            let bit = 1u64 << (slot.id.index() & 63);
            let earlier = match seen & bit {
                0 => None,
                _ => own.values.iter_mut().find(|(id, _)| *id == slot.id),
            };
            match earlier {
                None => own.values.push((slot.id, value)),
                Some(earlier) => {
                    earlier.1 = value;
                    own.expiries.retain(|(id, _)| *id != slot.id);
                }
            }
            seen |= bit;
            if let Some(at_ms) = expires_at_ms {
                table.check_may_expire(slot, name)?;
                own.expiries.push((slot.id, at_ms));
            }
        }
        Ok(has_overflow)
    }

    /// Learns the names that the table does not have and can learn, all at once.
    #[cold]
    fn learn<'v>(&mut self, index: TableIndex, names: impl Iterator<Item = &'v [u8]>) -> Outcome<()> {
        let table = &self.tables[index];
        let unknown = names.filter(|name| table.slot(name).is_none());
        let unknown: Vec<&str> = unknown.filter_map(|name| table.learnable(name)).collect();
        if unknown.is_empty() || self.schema_bytes > limits::SCHEMA_BYTES_MAX {
            return Ok(());
        }
        self.schema_bytes += self.tables[index].learn(&unknown, &mut self.writer)?;
        Ok(())
    }

    #[inline]
    fn before(&self, target: Target<'_, '_>, fields: &[(FieldId, Value<'_>)]) -> Outcome<Before> {
        let before = self.read_target(target, |table, row| {
            let mut new = 0;
            for (id, _) in fields {
                new += usize::from(!row.has(*id)?);
            }
            if new == fields.len() && table.has_expiring_fields() && !self.view(table, row)?.has_fields()? {
                return Ok(Before { is_left_over: true, new, ..Before::default() });
            }
            let overflow_fields = match table.overflow_fields() {
                Some(field) => OverflowFields::decode(row.get(field)?),
                None => None,
            };
            let expires_at_ms = row.expires_at_ms();
            Ok(Before { exists: true, is_left_over: false, new, overflow_fields, expires_at_ms })
        })?;
        Ok(before.unwrap_or(Before { new: fields.len(), ..Before::default() }))
    }

    #[allow(clippy::too_many_arguments)]
    fn hash_write_overflow<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        index: TableIndex,
        row: &[u8],
        writes: impl Iterator<Item = FieldWrite<'v>>,
        whole: Option<Option<u64>>,
        own: &mut OwnFields<'v>,
        before: Before,
    ) -> Outcome<usize> {
        let pointer_field = self.tables[index].overflow_fields_or_create(&mut self.writer)?;
        // It may have been given its expiry before it had any of these.
        if let Some(at_ms) = whole.unwrap_or(before.expires_at_ms) {
            self.expiries.enqueue_round(at_ms);
        }
        let known = before.overflow_fields;
        let generation = match known {
            Some(overflow_fields) => overflow_fields.generation,
            None => self.overflow_fields_or_create()?.new_generation(),
        };
        let mut overflow_fields = known.unwrap_or(OverflowFields { generation, count: 0, expiring: false });
        let new = self.together(|keyspace| {
            let table = &keyspace.tables[index];
            let overflow_table = keyspace.overflow_fields.as_ref().ok_or(overflow_fields::LOST)?;
            let mut written = HashSet::new();
            for FieldWrite { name, text, expires_at_ms } in
                writes.filter(|write| table.slot(write.name).is_none())
            {
                let is_first = written.insert(name);
                if is_first && (known.is_none() || !overflow_table.has(overflow_fields, name)?) {
                    overflow_fields.count += 1;
                }
                overflow_fields.expiring |= expires_at_ms.is_some();
                let value = [(overflow_table.value(), Value::Bytes(text))];
                let field_key = overflow_fields::field_key(generation, name);
                keyspace.writer.put(overflow_table.table(), &field_key, &value, expires_at_ms)?;
            }
            if known.is_none() {
                let (owner, value) = OverflowFieldsTable::owner_row(space, key, generation);
                let value = [(overflow_table.value(), Value::Bytes(&value))];
                keyspace.writer.put(overflow_table.table(), &owner, &value, None)?;
            }
            let pointer = overflow_fields.encode();
            let mut values: Vec<(FieldId, Value<'_>)> = own.values.clone();
            values.push((pointer_field, Value::Bytes(&pointer)));
            let own = OwnFields {
                values,
                expiries: std::mem::take(&mut own.expiries),
                any_expires: own.any_expires,
            };
            keyspace.write_row(index, row, &own, whole)?;
            Ok(overflow_fields.count - known.map_or(0, |known| known.count))
        })?;
        Ok(before.new + new as usize)
    }

    /// Removes fields of a hash, and the hash with its last field; says how many it had.
    pub fn hash_delete<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        names: impl Iterator<Item = &'v [u8]> + Clone,
    ) -> Outcome<usize> {
        let mut own: Vec<Slot> = Vec::new();
        let mut overflow_names: HashSet<&'v [u8]> = HashSet::new();
        let seen = self.hash(space, key, |view| {
            for name in names {
                if let Some(slot) = view.table.slot(name) {
                    let is_listed = own.iter().any(|listed| listed.id == slot.id);
                    if !is_listed && !view.row.get(slot.id)?.is_null() {
                        own.push(slot);
                    }
                } else if let Some((overflow_fields, table)) = &view.overflow_fields
                    && table.has(*overflow_fields, name)?
                {
                    overflow_names.insert(name);
                }
            }
            let mut is_left = false;
            view.for_each(|name, _| {
                is_left = match view.table.slot(name) {
                    Some(slot) => !own.iter().any(|listed| listed.id == slot.id),
                    None => !overflow_names.contains(name),
                };
                !is_left
            })?;
            Ok((is_left, view.overflow_fields.as_ref().map(|(overflow_fields, _)| *overflow_fields)))
        })?;
        let Some((is_left, overflow_fields)) = seen else { return Ok(0) };
        let removed = own.len() + overflow_names.len();
        let Some((index, row)) = self.locate(space, key).filter(|_| removed > 0) else { return Ok(0) };
        if !is_left {
            self.hash_delete_key(space, key)?;
            return Ok(removed);
        }
        if own.iter().any(|slot| !slot.nullable) {
            return Err(Failure::text(
                "ERR a field of that table's schema is not NULLABLE: it can not be removed, see HR.SCHEMA",
            ));
        }
        self.touch(space, key);
        let fields: Vec<(FieldId, Value<'_>)> = own.iter().map(|slot| (slot.id, Value::Null)).collect();
        self.together(|keyspace| {
            let pointer;
            let mut fields = fields;
            if let (Some(mut overflow_fields), Some(table), Some(field), false) = (
                overflow_fields,
                &keyspace.overflow_fields,
                keyspace.tables[index].overflow_fields(),
                overflow_names.is_empty(),
            ) {
                for name in &overflow_names {
                    keyspace.writer.delete(
                        table.table(),
                        &overflow_fields::field_key(overflow_fields.generation, name),
                    )?;
                }
                overflow_fields.count = overflow_fields.count.saturating_sub(overflow_names.len() as u64);
                pointer = overflow_fields.encode();
                fields.push((field, Value::Bytes(&pointer)));
            }
            keyspace.writer.update(keyspace.tables[index].table(), row, &fields)
        })?;
        Ok(removed)
    }

    /// Removes a hash; says whether there was one.
    pub fn hash_delete_key(&mut self, space: usize, key: &[u8]) -> Outcome<bool> {
        let Some((index, row)) = self.locate(space, key) else { return Ok(false) };
        let table = &self.tables[index];
        if table.table().is_known_to_be_empty() {
            return Ok(false);
        }
        if let (Place::Overflow, Some((prefix, _))) = (table.place(), naming::split(key)) {
            // Its last key may go.
            self.spaces[space].overflown.forget(prefix);
        }
        if table.overflow_fields().is_none() && !table.has_expiring_fields() {
            // A blind delete would cost a log record where most often there is nothing to delete.
            if !table.table().exists(row)? {
                return Ok(false);
            }
            self.touch(space, key);
            return self.writer.delete(self.tables[index].table(), row);
        }
        self.enqueue_orphans(index, row)?;
        // What is staged may come to nothing, and the hash stays.
        let forgets = self.expiries.has_due() && !self.writer.is_staging();
        let found = self.hash_at(index, row, |view| {
            Ok((view.has_fields()?, if forgets { view.own_expiries_ms()? } else { Vec::new() }))
        })?;
        let Some((had_fields, at_ms)) = found else { return Ok(false) };
        self.touch(space, key);
        self.writer.delete(self.tables[index].table(), row)?;
        self.expiries.forget_hash(space, key, &at_ms);
        Ok(had_fields)
    }

    /// Remembers to remove the overflow fields of a row that goes away.
    pub(super) fn enqueue_orphans(&mut self, index: TableIndex, row: &[u8]) -> Outcome<()> {
        let table = &self.tables[index];
        let Some(field) = table.overflow_fields() else { return Ok(()) };
        let overflow_fields =
            table.table().read(row, |row| Ok(OverflowFields::decode(row.get(field)?)))?.flatten();
        if let Some(overflow_fields) = overflow_fields {
            self.expiries.enqueue_orphan(overflow_fields.generation);
        }
        Ok(())
    }

    /// Sets or clears the expiry of those of these fields that exist, all of them or none.
    pub fn hash_expire_fields<'v>(
        &mut self,
        space: usize,
        key: &[u8],
        names: impl Iterator<Item = &'v [u8]>,
        at_ms: Option<u64>,
    ) -> Outcome<()> {
        let found = self.hash(space, key, |view| view.present(names))?;
        let Some((Present { own, overflow_names, overflow_fields }, (index, row))) =
            found.zip(self.locate(space, key))
        else {
            return Ok(());
        };
        if at_ms.is_some() {
            for (name, slot, _) in &own {
                self.tables[index].check_may_expire(*slot, name)?;
            }
            self.tables[index].record_expiring_fields(&mut self.writer)?;
        }
        self.touch(space, key);
        let pointer = overflow_fields.filter(|overflow_fields| {
            at_ms.is_some() && !overflow_fields.expiring && !overflow_names.is_empty()
        });
        self.together(|keyspace| {
            let table = &keyspace.tables[index];
            if let (Some(overflow_fields), Some(table)) = (overflow_fields, &keyspace.overflow_fields) {
                for name in &overflow_names {
                    let field_key = overflow_fields::field_key(overflow_fields.generation, name);
                    keyspace.writer.expire(table.table(), &field_key, at_ms)?;
                }
            }
            if let (Some(overflow_fields), Some(field)) = (pointer, table.overflow_fields()) {
                let pointer = OverflowFields { expiring: true, ..overflow_fields }.encode();
                keyspace.writer.update(table.table(), row, &[(field, Value::Bytes(&pointer))])?;
            }
            let own: Vec<(FieldId, Value<'_>)> =
                own.iter().map(|(_, slot, value)| (slot.id, value.borrow())).collect();
            match at_ms {
                _ if own.is_empty() => Ok(()),
                None => keyspace.writer.update(table.table(), row, &own),
                Some(at_ms) => keyspace.writer.update_expiring(table.table(), row, &own, at_ms),
            }
        })?;
        if let Some(at) = at_ms {
            self.expiries.enqueue(at, space, key);
        }
        Ok(())
    }
}
