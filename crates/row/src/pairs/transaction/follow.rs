//! Attempts at one row that are stored together: group commit.
//!
//! Owns how one attempt goes on from what another is about to store. Promises that it does so only where both have read the same pair of the same
//! table, so that the one write which stores what the last of them leaves, under the condition that all of them share, is as if each had been made
//! after the one before it. Must not know who makes attempts, nor when they are told how that write ended.

use crate::backend::{Expect, GROUP_BYTES};
use crate::pairs::transaction::{RowAtHand, Transaction};
use crate::schema::body::is_past;
use crate::stored_row::StoredRow;

impl Transaction {
    /// The key of the pair that this attempt is all about: it has one row at hand, which was read, and nothing else but that row's table.
    pub fn only_row(&self) -> Option<&[u8]> {
        self.only().map(|(key, _)| key)
    }

    fn only(&self) -> Option<(&[u8], &RowAtHand)> {
        let (key, row) = self.rows.iter().next()?;
        let is_only = self.rows.len() == 1 && self.tables.len() == 1 && self.walks.is_empty();
        (is_only && row.seen != Expect::Any && self.check_changes().is_ok()).then_some((key.as_slice(), row))
    }

    /// Whether there is a change of [one row](Transaction::only_row), and nothing else, to commit.
    pub fn changes_only_row(&self) -> bool {
        self.only().is_some_and(|(_, row)| row.change.is_some())
    }

    /// Goes on from what another attempt is about to store, if both have read the same pair of the same table, and this one has changed nothing: from here on the
    /// row is as the other leaves it. Then the other is not to be committed: this one's commit stores what both of them made of the row, also if
    /// this one makes nothing of it, and how it ends is so for both. Says whether it does.
    pub fn follow(&mut self, other: &Transaction) -> bool {
        let Some((change, pair_key)) = self.followable(other) else { return false };
        let Some(row) = self.rows.get_mut(pair_key) else { return false };
        row.change = Some(change.clone());
        self.followed = Some(change);
        self.count_bytes();
        true
    }

    fn followable<'o>(&self, other: &'o Transaction) -> Option<(super::NewValue, &'o [u8])> {
        let ((own_key, own), (pair_key, row)) = (self.only()?, other.only()?);
        let change = row.change.clone()?;
        let is_same = own_key == pair_key && own.seen == row.seen && own.change.is_none();
        let (own_tables, tables) = (self.tables.iter().next()?, other.tables.iter().next()?);
        let mark = |seen: &Option<super::SeenEntry>| seen.as_ref().map(|seen| seen.mark);
        let is_same_table = own_tables.0 == tables.0 && mark(own_tables.1) == mark(tables.1);
        if !is_same || !is_same_table || mark(tables.1).is_none() {
            return None;
        }
        if let Some(value) = &change {
            // What has expired by this attempt's clock is not for it to see.
            let (group, key) = (pair_key.first_chunk()?, pair_key.get(GROUP_BYTES..)?);
            let stored = StoredRow::parse(u32::from_be_bytes(*group), key, value).ok()?;
            if is_past(stored.expires_at_ms(), self.now_ms) {
                return None;
            }
        }
        Some((change, pair_key))
    }

    /// Forgets what this attempt made of the row that it found as another leaves it: its commit stores what the other made of it, and nothing more. False if it
    /// followed none, or is refused already.
    pub fn keep_followed(&mut self) -> bool {
        let Some(followed) = self.followed.clone().filter(|_| self.only_row().is_some()) else {
            return false;
        };
        self.edited = None;
        self.rows.values_mut().for_each(|row| row.change = Some(followed.clone()));
        self.count_bytes();
        true
    }
}
