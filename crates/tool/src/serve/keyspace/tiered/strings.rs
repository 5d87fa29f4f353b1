//! Keys that are strings.

use hedgerow::{RowRef, Value};

use super::TieredKeyspace;
use super::prefetch::PrefetchedKey;
use crate::serve::failure::{Failure, Outcome};

impl TieredKeyspace {
    /// Runs `read` on a string and its expiry. None if the key does not exist; WRONGTYPE if it is a hash.
    #[inline]
    pub fn string<R>(
        &self,
        space: usize,
        key: &[u8],
        read: impl FnOnce(&[u8], Option<u64>) -> R,
    ) -> Outcome<Option<R>> {
        self.string_prefetched(space, key, None, read)
    }

    /// [`TieredKeyspace::string`] of a key that may have been looked up already.
    #[inline]
    pub fn string_prefetched<R>(
        &self,
        space: usize,
        key: &[u8],
        prefetched: Option<PrefetchedKey<'_>>,
        read: impl FnOnce(&[u8], Option<u64>) -> R,
    ) -> Outcome<Option<R>> {
        if let Some(strings) = &self.space(space).strings {
            let read = |row: &RowRef<'_>| {
                let value = row.get(strings.value)?;
                Ok(read(value.as_bytes().unwrap_or(&[]), row.expires_at_ms()))
            };
            let found = match prefetched.and_then(|prefetched| prefetched.string()) {
                Some(found) => strings.table.read_handle(key, found, read)?,
                None => strings.table.read(key, read)?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        match self.hash_exists(space, key)? {
            true => Err(Failure::WRONG_TYPE),
            false => Ok(None),
        }
    }

    /// Whether the key is a string.
    pub fn string_exists(&self, space: usize, key: &[u8]) -> Outcome<bool> {
        match &self.space(space).strings {
            Some(strings) if !strings.table.is_known_to_be_empty() => Ok(strings.table.exists(key)?),
            _ => Ok(false),
        }
    }

    /// Writes a string over whatever the key was, with a new expiry or none, all at once.
    #[inline]
    pub fn string_put(
        &mut self,
        space: usize,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Outcome<()> {
        if self.space(space).strings.is_none() {
            self.strings_or_create(space)?;
        }
        if self.has_hash_row(space, key)? {
            return self.together(|keyspace| {
                // First what may be refused: a transaction that goes on has what was staged before.
                keyspace.string_put_row(space, key, value, expires_at_ms)?;
                keyspace.hash_delete_key(space, key).map(drop)
            });
        }
        self.string_put_row(space, key, value, expires_at_ms)
    }

    #[inline]
    fn string_put_row(
        &mut self,
        space: usize,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Outcome<()> {
        self.touch(space, key);
        let Some(strings) = &self.spaces[space].strings else { return Ok(()) };
        self.writer.put(&strings.table, key, &[(strings.value, Value::Bytes(value))], expires_at_ms)
    }

    /// Changes a string, keeping its expiry. The caller knows that the key is a string, or does not exist.
    pub fn string_update(&mut self, space: usize, key: &[u8], value: &[u8]) -> Outcome<()> {
        if self.space(space).strings.is_none() {
            self.strings_or_create(space)?;
        }
        if self.has_left_over_row(space, key)? {
            return self.together(|keyspace| {
                keyspace.string_update_row(space, key, value)?;
                keyspace.hash_delete_key(space, key).map(drop)
            });
        }
        self.string_update_row(space, key, value)
    }

    #[inline]
    fn string_update_row(&mut self, space: usize, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.touch(space, key);
        let Some(strings) = &self.spaces[space].strings else { return Ok(()) };
        self.writer.update(&strings.table, key, &[(strings.value, Value::Bytes(value))])
    }
}
