//! Which keys clients watch, and when they last changed.
//!
//! Owns: an entry for each key that somebody watches, and so a bounded number. Promises: a change of a key is seen even if what it made
//! is gone again, and only changes of a command that was done count. Must not know clients.

use std::collections::HashMap;

use super::TieredKeyspace;
use super::table::Seeded;
use crate::serve::failure::Outcome;
use crate::serve::keyspace::Watched;
use crate::serve::limits;

/// The watched keys of all databases.
pub struct Watches {
    spaces: Vec<HashMap<Box<[u8]>, Entry, Seeded>>,
    count: usize,
    /// Changes of watched keys so far.
    changes: u64,
    /// What the command under way has changed.
    touched: Vec<(usize, Box<[u8]>)>,
}

#[derive(Default)]
struct Entry {
    watchers: usize,
    /// The number of its last change.
    changed: u64,
}

impl Default for Watches {
    fn default() -> Watches {
        let spaces = (0..limits::DATABASES).map(|_| HashMap::default()).collect();
        Watches { spaces, count: 0, changes: 0, touched: Vec::new() }
    }
}

impl Watches {
    /// How many keys are watched.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One more client watches a key; give the result to [`Watches::has_changed`].
    pub fn add(&mut self, space: usize, key: &[u8]) -> u64 {
        let entry = self.spaces[space].entry(key.into()).or_default();
        self.count += usize::from(entry.watchers == 0);
        entry.watchers += 1;
        self.changes
    }

    /// One client less watches a key.
    pub fn remove(&mut self, space: usize, key: &[u8]) {
        let Some(entry) = self.spaces[space].get_mut(key) else { return };
        entry.watchers -= 1;
        if entry.watchers == 0 {
            self.spaces[space].remove(key);
            self.count -= 1;
        }
    }

    /// Whether a watched key has changed since it was added.
    pub fn has_changed(&self, space: usize, key: &[u8], since: u64) -> bool {
        self.spaces[space].get(key).is_some_and(|entry| entry.changed > since)
    }

    /// The command under way changes a key.
    #[inline]
    pub fn touch(&mut self, space: usize, key: &[u8]) {
        if self.count > 0 && self.spaces[space].contains_key(key) {
            self.touched.push((space, key.into()));
        }
    }

    /// The command under way may change any key of a database.
    pub fn touch_all(&mut self, space: usize) {
        self.touched.extend(self.spaces[space].keys().map(|key| (space, key.clone())));
    }

    /// The command under way is done.
    #[inline]
    pub fn commit(&mut self) {
        if !self.touched.is_empty() {
            self.changes += 1;
            for (space, key) in self.touched.drain(..) {
                if let Some(entry) = self.spaces[space].get_mut(&key) {
                    entry.changed = self.changes;
                }
            }
        }
    }

    /// The command under way was not done: it will be given again.
    pub fn forget(&mut self) {
        self.touched.clear();
    }
}

impl TieredKeyspace {
    /// One more client watches a key, which is as what is returned says.
    pub fn watch(&mut self, space: usize, key: &[u8]) -> Outcome<Watched> {
        let existed = self.exists(space, key)?;
        let first_field_expiry_ms = self.first_field_expiry_ms(space, key)?;
        Ok(Watched { existed, first_field_expiry_ms, since: Some(self.watches.add(space, key)) })
    }

    fn first_field_expiry_ms(&self, space: usize, key: &[u8]) -> Outcome<Option<u64>> {
        let Some((index, row)) = self.locate(space, key) else { return Ok(None) };
        if !self.tables[index].has_expiring_fields() {
            return Ok(None);
        }
        Ok(self.hash_at(index, row, |view| view.first_expiry_ms())?.flatten())
    }

    /// Whether a watched key was changed, or has expired, or a field of it, since.
    pub fn has_changed(&self, space: usize, key: &[u8], watched: Watched) -> Outcome<bool> {
        Ok(self.watches.has_changed(space, key, watched.since.unwrap_or(0))
            || watched.has_lost_field(self.now_ms)
            || watched.existed && !self.exists(space, key)?)
    }

    /// Whether one of these watched keys has. Once something lacks of one all are looked at, so that it is brought together.
    pub fn has_any_changed<'k>(
        &self,
        watched: impl Iterator<Item = (usize, &'k [u8], Watched)>,
    ) -> Outcome<bool> {
        let mut lacking = None;
        for (space, key, watched) in watched {
            match self.has_changed(space, key, watched) {
                // Else the command is to be given again, whatever is known of others.
                Ok(true) if lacking.is_none() => return Ok(true),
                Ok(_) => {}
                Err(failure) => lacking = lacking.or(Some(failure)),
            }
        }
        lacking.map_or(Ok(false), Err)
    }

    /// Records that the command under way changes a key.
    #[inline]
    pub(super) fn touch(&mut self, space: usize, key: &[u8]) {
        self.watches.touch(space, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_count_once_their_command_is_done() {
        let mut watches = Watches::default();
        watches.touch(0, b"a");
        watches.commit();
        let (one, two) = (watches.add(0, b"a"), watches.add(0, b"b"));
        watches.touch(0, b"a");
        watches.forget();
        watches.touch(1, b"a");
        watches.commit();
        assert!(!watches.has_changed(0, b"a", one));
        watches.touch(0, b"a");
        assert!(!watches.has_changed(0, b"a", one), "the command is under way");
        watches.commit();
        assert!(watches.has_changed(0, b"a", one) && !watches.has_changed(0, b"b", two));
        let later = watches.add(0, b"a");
        assert!(!watches.has_changed(0, b"a", later));
        [b"a", b"b", b"a"].into_iter().for_each(|key| watches.remove(0, key));
        assert_eq!((watches.count, watches.spaces[0].len()), (0, 0));
    }
}
