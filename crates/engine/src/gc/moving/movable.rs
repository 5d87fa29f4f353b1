//! What may leave the log, and its order.
//!
//! Owns [`MovableRecords`]. Promises the order of tables and keys. Must not know what is done with what was found.

use crate::index::{LogSlot, head_of};

/// A record that may leave the log.
pub(super) struct Movable<'l> {
    pub(super) table: u32,
    /// Which of the victims it is in.
    pub(super) victim: u32,
    pub(super) key: &'l [u8],
    /// Of the key, from where keys may differ: it decides nearly always, and a key is in the log, out of the processor's caches since it was walked.
    head: u64,
    /// As it was found.
    pub(super) slot: LogSlot,
    /// Only a group had it, when that was last looked at.
    pub(super) is_sealed: bool,
    /// Of the record.
    pub(super) bytes: u32,
}

/// The records that may leave the log, in the order in which they were found until they are sorted.
#[derive(Default)]
pub(super) struct MovableRecords<'l> {
    records: Vec<Movable<'l>>,
    /// Bytes that all keys have alike.
    shared: usize,
}

impl<'l> MovableRecords<'l> {
    pub(super) fn push(
        &mut self,
        (table, key): (u32, &'l [u8]),
        victim: u32,
        (slot, bytes, is_sealed): (LogSlot, u32, bool),
    ) {
        self.share_prefix(key);
        let head = head_of(key, self.shared);
        self.records.push(Movable { table, victim, key, head, slot, is_sealed, bytes });
    }

    /// Takes heads from where they differ from `key`, too. They hardly ever have to be made anew.
    fn share_prefix(&mut self, key: &[u8]) {
        let Some(first) = self.records.first().map(|first| first.key) else {
            self.shared = key.len();
            return;
        };
        if key.get(..self.shared) == Some(&first[..self.shared]) {
            return;
        }
        self.shared = first.iter().zip(key).take_while(|(one, other)| one == other).count();
        for record in &mut self.records {
            record.head = head_of(record.key, self.shared);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Forgets what was found after the first so many.
    pub(super) fn truncate(&mut self, len: usize) {
        self.records.truncate(len);
    }

    /// In the order of tables and keys.
    pub(super) fn sorted(self) -> Vec<Movable<'l>> {
        let mut records = self.records;
        records.sort_unstable_by(|one, other| {
            (one.table, one.head, one.key).cmp(&(other.table, other.head, other.key))
        });
        records
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;

    use super::*;
    use crate::index::Tag;

    /// Keys of which some are the beginning of others, end in zeros, or share nothing with those before.
    #[test]
    fn records_are_in_the_order_of_tables_and_keys() {
        for seed in 0..200 {
            let mut random = Random::from_seed(seed);
            let prefix = vec![b'p'; random.below(12) as usize];
            let mut keys: Vec<(u32, Vec<u8>)> = (0..random.below(60))
                .map(|n| {
                    let prefix = if n > 40 { &prefix[..prefix.len() / 2] } else { &prefix[..] };
                    let tail = (0..random.below(12)).map(|_| [0, 1, 0xff][random.below(3) as usize]);
                    let key = prefix.iter().copied().chain(tail).collect();
                    (random.below(2) as u32, key)
                })
                .collect();
            let mut found = MovableRecords::default();
            for (n, (table, key)) in keys.iter().enumerate() {
                found.push((*table, key), n as u32, (LogSlot::new(Tag::Row, 8, 64), 64, false));
            }
            let sorted: Vec<(u32, Vec<u8>)> =
                found.sorted().iter().map(|movable| (movable.table, movable.key.to_vec())).collect();
            keys.sort();
            assert_eq!(sorted, keys, "seed {seed}");
        }
    }
}
