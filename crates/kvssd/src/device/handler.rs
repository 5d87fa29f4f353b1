//! The request handler: what each command does.
//!
//! Owns the meaning of commands on pairs, iterators and key spaces. Promises that a command that is refused has changed nothing, and that a key is compared in full with the record's at
//! every look. Must not know how records get to flash.

use super::block::WriteStream;
use super::bucket::{OpenIterator, WalkPosition};
use super::event::Stage;
use super::group::GroupDelete;
use super::local::LOCAL_ENTRIES;
use super::manager::{LocatedEntry, one_more};
use super::page::IndexEntry;
use super::{Answered, Device, space};
use crate::code::{KvError, Result};
use crate::command::{
    IteratorContent, KEY_BYTES_MAX, KvAnswer, KvCommand, PairKey, SpaceId, StoreMode, entry_bytes, group_of,
    push_entry,
};
use crate::flash::footer::ENTRY_BYTES;
use crate::flash::record::{RecordHeader, RecordKind, SEQUENCE_MAX, UNIT_BYTES, record_bytes};

/// Hashes that one batch of an iterator looks up, and groups that it passes over.
const BATCH_LOOKS: usize = 4096;
/// Hashes that are taken from the buckets at once: a small buffer takes no more.
const HASHES_AT_ONCE: usize = 32;

/// Keys that share a hash, and why there may be others.
type KeysOfHash = (Vec<(Vec<u8>, FoundRecord)>, Option<KvError>);

/// The newest record of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundRecord {
    pub(super) entry: IndexEntry,
    located: LocatedEntry,
    /// Of the index when it was found: while it stays, so does the entry's place.
    changes: u64,
    pub(super) header: RecordHeader,
}

impl FoundRecord {
    /// Bytes of key and value.
    fn logical_bytes(&self) -> u64 {
        u64::from(self.header.key_bytes) + u64::from(self.header.value_bytes)
    }

    /// What it counts as on the device: nothing, if it hides nothing.
    fn charge(&self) -> u64 {
        let is_droppable_tombstone = self.entry.is_tombstone && self.entry.older == 0;
        if is_droppable_tombstone { 0 } else { (self.header.record_bytes() + ENTRY_BYTES) as u64 }
    }
}

/// A record that is about to be written.
struct NewRecord<'a> {
    space: SpaceId,
    key: &'a [u8],
    value: &'a [u8],
    kind: RecordKind,
}

impl Device {
    /// None: the command takes more steps.
    pub(super) fn carry_out(&mut self, command: KvCommand) -> Option<Answered> {
        let answer = match command {
            KvCommand::Store { space, key, value, mode } => {
                self.record_stage(Stage::Fetched, 0, (key.bytes().len() + value.len()) as u64);
                return Some((self.store(space, key.bytes(), &value, mode), value));
            }
            KvCommand::Retrieve { space, key, offset, mut buffer, delete } => {
                self.record_stage(Stage::Fetched, 0, key.bytes().len() as u64);
                let result = self.retrieve(space, key.bytes(), offset, &mut buffer, delete);
                return Some((result, buffer));
            }
            KvCommand::IterateNext { iterator, mut buffer } => {
                let result = self.iterate_next(iterator, &mut buffer);
                return Some((result, buffer));
            }
            KvCommand::Delete { space, key, must_exist } => self.delete(space, key.bytes(), must_exist),
            KvCommand::Exist { space, keys } => self.exist(space, &keys),
            KvCommand::PairInfo { space, key } => self.pair_info(space, key.bytes()),
            KvCommand::OpenIterator { space, selected, content, owner } => self
                .spaces
                .check(space)
                .and_then(|()| self.iterators.open(space, selected, content, owner))
                .map(KvAnswer::Iterator),
            KvCommand::CloseIterator { iterator } => self
                .iterators
                .get(iterator)
                .map(|_| ())
                .map(|()| KvAnswer::Closed(self.iterators.close(|open| open.handle == iterator))),
            KvCommand::CloseIterators { owner } => {
                Ok(KvAnswer::Closed(self.iterators.close(|open| open.owner == owner)))
            }
            KvCommand::ListKeys { space, group, from, keys } => self.list_keys(space, group, &from, keys),
            KvCommand::ListFrom { space, from, keys } => self.list_from(space, &from, keys),
            KvCommand::CountKeys { space, group, from } => self.count_keys(space, group, &from),
            KvCommand::DeleteGroup { space, selected } => match self.spaces.check(space) {
                Ok(()) => {
                    self.group_delete = Some(GroupDelete::new(self.tag, space, selected));
                    return None;
                }
                Err(error) => Err(error),
            },
            KvCommand::DeleteSpace { name } => match self.spaces.find(name.bytes()) {
                Some(info) => {
                    self.group_delete = Some(GroupDelete::of_space(self.tag, info.id, Some(name)));
                    return None;
                }
                None => Err(KvError::SpaceMissing),
            },
            KvCommand::DeleteSpaceNumber { space } => match self.spaces.get(space) {
                Ok(info) => {
                    let name = PairKey::new(&info.name).ok();
                    self.group_delete = Some(GroupDelete::of_space(self.tag, space, name));
                    return None;
                }
                Err(error) => Err(error),
            },
            KvCommand::CreateSpace { name, bytes_max } => self.create_space(&name, bytes_max),
            KvCommand::FindSpace { name } => {
                self.spaces.find(name.bytes()).map(KvAnswer::Space).ok_or(KvError::SpaceMissing)
            }
            KvCommand::ListSpaces => Ok(KvAnswer::Spaces(self.spaces.all())),
            KvCommand::DeviceInfo => Ok(KvAnswer::Info(self.info())),
            KvCommand::Flush => self.sync_stream(WriteStream::Hot).map(|()| KvAnswer::Flushed),
        };
        Some((answer, Vec::new()))
    }

    /// The hash of a key of a key space, under the device's secret. On the flash, in footers.
    pub(super) fn hash(&self, space: SpaceId, key: &[u8]) -> u64 {
        self.flash.superblock().secret.hash(space, key) & self.options.hash_mask
    }

    /// The newest record of a key, if there is one: a tombstone, too.
    pub(super) fn look_up(&mut self, space: SpaceId, key: &[u8]) -> Result<(u64, Option<FoundRecord>)> {
        let hash = self.hash(space, key);
        let found = self.find_record(hash, space, key)?;
        let (place, bytes) =
            found.map_or((0, 0), |found| (found.entry.place, u64::from(found.header.key_bytes)));
        self.record_stage(Stage::LookedUp, place, bytes);
        Ok((hash, found))
    }

    fn find_record(&self, hash: u64, space: SpaceId, key: &[u8]) -> Result<Option<FoundRecord>> {
        for located in self.index.find(hash) {
            let (header, of) = match self.prefix(located.entry.place) {
                Ok(read) => read,
                Err(error) => match self.spaces.unreadable_name(located.entry.place, key) {
                    Some(header) if space == SpaceId::DIRECTORY => {
                        return Ok(Some(self.found_record(located, header)));
                    }
                    _ => return Err(error),
                },
            };
            if header.space == space && of == key {
                self.check_kind(&located, &header)?;
                return Ok(Some(self.found_record(located, header)));
            }
            // Another key of the same hash, or one that is not listed as it is.
            if self.hash(header.space, of) != hash {
                let offset = located.entry.place * UNIT_BYTES as u64;
                return Err(KvError::Damaged { offset, what: "a record as its footer lists it" });
            }
        }
        Ok(None)
    }

    /// Refuses a record that is something else than the footer of its block said: with checksums that are right only a forged one is.
    fn check_kind(&self, located: &LocatedEntry, header: &RecordHeader) -> Result<()> {
        let offset = located.entry.place * UNIT_BYTES as u64;
        let is_same = located.entry.is_tombstone == (header.kind == RecordKind::Tombstone);
        if is_same {
            Ok(())
        } else {
            Err(KvError::Damaged { offset, what: "a record as its footer lists it" })
        }
    }

    fn found_record(&self, located: LocatedEntry, header: RecordHeader) -> FoundRecord {
        FoundRecord { entry: located.entry, located, changes: self.index.changes(), header }
    }

    fn pair(&mut self, space: SpaceId, key: &[u8]) -> Result<FoundRecord> {
        self.spaces.check(space)?;
        let (_, found) = self.look_up(space, key)?;
        found.filter(|found| !found.entry.is_tombstone).ok_or(KvError::KeyMissing)
    }

    /// Stores a pair; of whatever key space, the directory, too.
    pub(super) fn store(
        &mut self,
        space: SpaceId,
        key: &[u8],
        value: &[u8],
        mode: StoreMode,
    ) -> Result<KvAnswer> {
        if space != SpaceId::DIRECTORY {
            self.spaces.check(space)?;
        }
        let (hash, found) = self.look_up(space, key)?;
        let pair = found.filter(|found| !found.entry.is_tombstone);
        match (mode, pair) {
            (StoreMode::UpdateOnly, None) => return Err(KvError::KeyMissing),
            (StoreMode::NoOverwrite, Some(_)) => return Err(KvError::KeyExists),
            (StoreMode::Append, Some(pair)) => {
                let joined = self.joined(&pair, value)?;
                let record = NewRecord { space, key, value: &joined, kind: RecordKind::Pair };
                self.write(hash, found, &record)?;
                return Ok(KvAnswer::Stored);
            }
            _ => {}
        }
        self.write(hash, found, &NewRecord { space, key, value, kind: RecordKind::Pair })?;
        Ok(KvAnswer::Stored)
    }

    /// The value of a pair and what is appended to it.
    fn joined(&mut self, pair: &FoundRecord, more: &[u8]) -> Result<Vec<u8>> {
        let max = self.flash.geometry().value_bytes_max();
        let bytes = u64::from(pair.header.value_bytes) + more.len() as u64;
        if bytes > max {
            return Err(KvError::ValueLength { bytes, max });
        }
        let value = self.flash.value(pair.entry.place, &pair.header)?;
        let joined = [value, more].concat();
        self.record_stage(Stage::Read, pair.entry.place, pair.header.record_bytes() as u64);
        Ok(joined)
    }

    /// Writes a record over the one that was found, and has everything know of it.
    fn write(&mut self, hash: u64, mut found: Option<FoundRecord>, new: &NewRecord<'_>) -> Result<()> {
        let len = record_bytes(new.key.len(), new.value.len());
        if self.sequence + 1 >= SEQUENCE_MAX {
            return Err(KvError::NumbersSpent { what: "changes", max: SEQUENCE_MAX - 1 });
        }
        let old_pair = found.filter(|found| !found.entry.is_tombstone);
        let is_pair = new.kind == RecordKind::Pair;
        let logical = (new.key.len() + new.value.len()) as u64;
        let old_logical = old_pair.map_or(0, |old| old.logical_bytes());
        if is_pair {
            self.spaces.check_room(new.space, old_logical, logical)?;
            found = self.check_room((len + ENTRY_BYTES) as u64, hash, found, new)?;
        }
        self.ensure_free(len)?;
        let found = self.found_now(hash, found, new)?;
        let header = RecordHeader {
            sequence: self.sequence + 1,
            value_bytes: new.value.len() as u32,
            key_bytes: new.key.len() as u8,
            kind: new.kind,
            space: new.space,
            relocated: false,
        };
        let place = self.append(WriteStream::Hot, hash, &header, new.key, new.value)?;
        self.sequence += 1;
        self.used_bytes += (len + ENTRY_BYTES) as u64;
        if !is_pair {
            self.tombstone_bytes += (len + ENTRY_BYTES) as u64;
        }
        if let Some(found) = found.filter(|found| found.charge() > 0) {
            self.release(found.entry.place, &found.header);
        }
        let entry = IndexEntry {
            hash,
            place,
            older: found.map_or(0, |found| one_more(found.entry.older)),
            is_tombstone: !is_pair,
        };
        match found {
            Some(found) => self.index.set(&found.located, &entry),
            None => {
                if self.index.insert(&entry) {
                    let merged = LOCAL_ENTRIES * super::page::ENTRY_BYTES;
                    self.record_stage(Stage::Merged, 0, merged as u64);
                }
            }
        }
        self.count_change(hash, new, old_pair.map(|old| old.logical_bytes()), logical);
        self.collect_for((len + ENTRY_BYTES) as u64)
    }

    /// The key came, changed or went: its bucket and its key space.
    fn count_change(&mut self, hash: u64, new: &NewRecord<'_>, old: Option<u64>, logical: u64) {
        let group = group_of(new.key);
        if let Some(old) = old {
            self.spaces.uncount(new.space, old);
        }
        if new.kind == RecordKind::Pair {
            self.spaces.count(new.space, logical);
            if old.is_none() {
                self.buckets.insert(new.space, group, hash);
            }
        } else if self.index.find(hash).count() == 1 {
            // Of several keys with this hash others may be in the bucket, which keeps it then.
            self.buckets.remove(new.space, group, hash);
        }
    }

    /// What was found, as it is now: gc may have copied the record, or have dropped a tombstone.
    fn found_now(
        &self,
        hash: u64,
        found: Option<FoundRecord>,
        new: &NewRecord<'_>,
    ) -> Result<Option<FoundRecord>> {
        match found {
            Some(found) if found.changes != self.index.changes() => {
                self.find_record(hash, new.space, new.key)
            }
            unchanged => Ok(unchanged),
        }
    }

    /// Bytes that a write over what was found frees, and what of them are a tombstone's.
    fn freed_by(found: Option<FoundRecord>) -> (u64, u64) {
        match found {
            Some(found) if found.entry.is_tombstone => (found.charge(), found.charge()),
            Some(found) => (found.charge(), 0),
            None => (0, 0),
        }
    }

    /// Whether there is room for so many bytes over what was found.
    fn has_room(&self, needed: u64, found: Option<FoundRecord>) -> bool {
        let (freed, freed_tombstone) = Device::freed_by(found);
        let before = self.charged_bytes(self.used_bytes, self.tombstone_bytes);
        let tombstones = self.tombstone_bytes.saturating_sub(freed_tombstone);
        let used = (self.used_bytes + needed).saturating_sub(freed).max(tombstones);
        let after = self.charged_bytes(used, tombstones);
        after <= before || after <= self.capacity_bytes()
    }

    /// See [`Device::make_room`].
    pub(super) fn gain_room(&mut self, bytes: u64) -> Result<()> {
        for _ in 0..self.flash.geometry().blocks {
            if self.has_room(bytes, None) {
                return Ok(());
            }
            let pairs = self.used_bytes.saturating_sub(self.tombstone_bytes);
            if pairs + bytes > self.capacity_bytes() || !(self.collect(u64::MAX)? || self.seal_for_gc()?) {
                break;
            }
            self.gc.counters.stalls += 1;
        }
        Err(KvError::DeviceFull { needed: bytes.max(self.free_bytes() + 1), free: self.free_bytes() })
    }

    /// Refuses what the device has no room for. Gives back what was found, as it is then. Where deletions are in the way that gc has not come by yet, it works on one block before that, and no more: who comes again finds
    /// more room, until there is none to be had.
    fn check_room(
        &mut self,
        needed: u64,
        hash: u64,
        mut found: Option<FoundRecord>,
        new: &NewRecord<'_>,
    ) -> Result<Option<FoundRecord>> {
        if self.has_room(needed, found) {
            return Ok(found);
        }
        let more = needed.saturating_sub(Device::freed_by(found).0);
        let pairs = self.used_bytes.saturating_sub(self.tombstone_bytes);
        if pairs + more <= self.capacity_bytes() && (self.collect(u64::MAX)? || self.seal_for_gc()?) {
            self.gc.counters.stalls += 1;
            // A tombstone that gc has just freed is not freed again by this write.
            found = self.found_now(hash, found, new)?;
            if self.has_room(needed, found) {
                return Ok(found);
            }
        }
        Err(KvError::DeviceFull { needed: more.max(self.free_bytes() + 1), free: self.free_bytes() })
    }

    fn retrieve(
        &mut self,
        space: SpaceId,
        key: &[u8],
        offset: u64,
        buffer: &mut Vec<u8>,
        delete: bool,
    ) -> Result<KvAnswer> {
        let given = buffer.len();
        let pair = match self.pair(space, key) {
            Ok(pair) => pair,
            Err(error) => {
                buffer.clear();
                return Err(error);
            }
        };
        let value_bytes = u64::from(pair.header.value_bytes);
        if offset > 0 && offset >= value_bytes {
            buffer.clear();
            return Err(KvError::ValueOffset { offset, value_bytes });
        }
        let value = match self.flash.value(pair.entry.place, &pair.header) {
            Ok(value) => &value[offset as usize..],
            Err(error) => {
                buffer.clear();
                return Err(error);
            }
        };
        let copied = value.len().min(given);
        buffer[..copied].copy_from_slice(&value[..copied]);
        buffer.truncate(copied);
        let is_short = copied < value.len();
        self.record_stage(Stage::Read, pair.entry.place, pair.header.record_bytes() as u64);
        if is_short {
            return Err(KvError::BufferSmall { needed: value_bytes, given: given as u64 });
        }
        if delete {
            self.delete(space, key, true)?;
        }
        Ok(KvAnswer::Retrieved { value_bytes })
    }

    /// Deletes a pair; of whatever key space.
    pub(super) fn delete(&mut self, space: SpaceId, key: &[u8], must_exist: bool) -> Result<KvAnswer> {
        if space != SpaceId::DIRECTORY {
            self.spaces.check(space)?;
        }
        let (hash, found) = self.look_up(space, key)?;
        if found.is_none_or(|found| found.entry.is_tombstone) {
            return if must_exist { Err(KvError::KeyMissing) } else { Ok(KvAnswer::Deleted(false)) };
        }
        self.write(hash, found, &NewRecord { space, key, value: &[], kind: RecordKind::Tombstone })?;
        Ok(KvAnswer::Deleted(true))
    }

    fn exist(&mut self, space: SpaceId, keys: &[PairKey]) -> Result<KvAnswer> {
        self.spaces.check(space)?;
        let mut bits = vec![0; keys.len().div_ceil(8)];
        for (n, key) in keys.iter().enumerate() {
            let (_, found) = self.look_up(space, key.bytes())?;
            let exists = found.is_some_and(|found| !found.entry.is_tombstone);
            bits[n / 8] |= u8::from(exists) << (n % 8);
        }
        Ok(KvAnswer::Exist(bits))
    }

    fn pair_info(&mut self, space: SpaceId, key: &[u8]) -> Result<KvAnswer> {
        let pair = self.pair(space, key)?;
        Ok(KvAnswer::PairInfo { value_bytes: u64::from(pair.header.value_bytes) })
    }

    fn create_space(&mut self, name: &PairKey, bytes_max: u64) -> Result<KvAnswer> {
        if name.bytes().len() > KEY_BYTES_MAX {
            return Err(KvError::SpaceName { bytes: name.bytes().len(), max: KEY_BYTES_MAX });
        }
        if self.spaces.find(name.bytes()).is_some() {
            return Err(KvError::SpaceExists);
        }
        let id = self.spaces.next_id()?;
        // One record: there is a key space when it is whole. It goes over what is left of one with this name that cannot be read.
        self.store(SpaceId::DIRECTORY, name.bytes(), &space::encode(id, bytes_max), StoreMode::Post)?;
        self.spaces.add(id, name.bytes().to_vec(), bytes_max, self.sequence);
        Ok(KvAnswer::Space(self.spaces.get(id)?))
    }

    fn iterate_next(&mut self, iterator: u32, buffer: &mut Vec<u8>) -> Result<KvAnswer> {
        let given = buffer.len();
        buffer.clear();
        let mut open = self.iterators.get(iterator)?.clone();
        let (mut entries, mut looks) = (0, 0);
        while let Some(from) = open.position.take() {
            if looks == BATCH_LOOKS {
                open.position = Some(from);
                break;
            }
            let batch =
                self.buckets.hashes(open.space, &open.selected, &from, HASHES_AT_ONCE, BATCH_LOOKS - looks);
            looks += batch.looks;
            for &(group, hash) in &batch.hashes {
                let is_resumed = (group, hash) == (from.group, from.hash);
                let after = if is_resumed { from.after.clone() } else { Vec::new() };
                let mut position = WalkPosition { group, hash, after };
                match self.push_hash(buffer, given, &open, &mut position) {
                    Ok(pushed) => entries += pushed,
                    Err((pushed, error)) => {
                        return self.end_batch(iterator, position, entries + pushed, error);
                    }
                }
            }
            open.position = batch.next;
        }
        let end = open.position.is_none();
        self.iterators.set_position(iterator, open.position);
        Ok(KvAnswer::Batch { entries, end })
    }

    /// The keys of one hash, as far as they fit; how many. Else how many, and why no more.
    fn push_hash(
        &mut self,
        buffer: &mut Vec<u8>,
        given: usize,
        open: &OpenIterator,
        position: &mut WalkPosition,
    ) -> std::result::Result<u32, (u32, KvError)> {
        let mut pushed = 0;
        let keys = self.keys_of(open.space, position.group, position.hash, &position.after);
        let (keys, unreadable) = keys.map_err(|error| (0, error))?;
        for (key, found) in keys {
            self.record_stage(Stage::LookedUp, found.entry.place, key.len() as u64);
            self.push_pair(buffer, given, open, &key, &found).map_err(|error| (pushed, error))?;
            position.after = key;
            pushed += 1;
        }
        unreadable.map_or(Ok(pushed), |error| Err((pushed, error)))
    }

    /// A batch that ends before its hashes do. What it has is given out first; else what is in the way is told, and the walk goes on behind a record that
    /// cannot be read.
    fn end_batch(
        &mut self,
        iterator: u32,
        position: WalkPosition,
        entries: u32,
        error: KvError,
    ) -> Result<KvAnswer> {
        let is_short = matches!(error, KvError::BufferSmall { .. });
        let next = if is_short || entries > 0 { Some(position) } else { position.behind() };
        self.iterators.set_position(iterator, next);
        if entries > 0 { Ok(KvAnswer::Batch { entries, end: false }) } else { Err(error) }
    }

    /// An entry of a batch, if the buffer has room for it: nothing is read or written that does not fit, so a buffer never grows.
    fn push_pair(
        &mut self,
        buffer: &mut Vec<u8>,
        given: usize,
        open: &OpenIterator,
        key: &[u8],
        found: &FoundRecord,
    ) -> Result<()> {
        let is_pairs = open.content == IteratorContent::Pairs;
        let value_bytes = if is_pairs { Some(u64::from(found.header.value_bytes)) } else { None };
        let needed = entry_bytes(key, value_bytes);
        if buffer.len() as u64 + needed > given as u64 {
            return Err(KvError::BufferSmall { needed, given: given as u64 });
        }
        if !is_pairs {
            push_entry(buffer, key, None);
            return Ok(());
        }
        let value = self.flash.value(found.entry.place, &found.header)?;
        push_entry(buffer, key, Some(value));
        self.record_stage(Stage::Read, found.entry.place, found.header.record_bytes() as u64);
        Ok(())
    }

    /// The keys that are there of a bucket's hash, behind `after`, in their order; and why others may be missing, if a record cannot be read.
    pub(super) fn keys_of(&self, space: SpaceId, group: u32, hash: u64, after: &[u8]) -> Result<KeysOfHash> {
        let (mut keys, mut unreadable) = (Vec::new(), None);
        for located in self.index.find(hash) {
            if located.entry.is_tombstone {
                continue;
            }
            match self.prefix(located.entry.place) {
                // Another key than the footer of its block said: it would come under its own hash, too.
                Ok((header, key)) if self.hash(header.space, key) != hash => {
                    let offset = located.entry.place * UNIT_BYTES as u64;
                    unreadable = Some(KvError::Damaged { offset, what: "a record as its footer lists it" });
                }
                Ok((header, key)) => {
                    if let Err(error) = self.check_kind(&located, &header) {
                        unreadable = Some(error);
                        continue;
                    }
                    if header.space == space && group_of(key) == group && (after.is_empty() || key > after) {
                        keys.push((key.to_vec(), self.found_record(located, header)));
                    }
                }
                Err(error @ (KvError::Damaged { .. } | KvError::ReadFault { .. })) => {
                    unreadable = Some(error)
                }
                Err(error) => return Err(error),
            }
        }
        keys.sort_by(|a, b| a.0.cmp(&b.0));
        Ok((keys, unreadable))
    }
}
