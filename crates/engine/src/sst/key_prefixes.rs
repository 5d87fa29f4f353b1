//! A search among keys in order that lie anywhere in memory.
//!
//! Owns [`KeyPrefixes`]: eight bytes of each key, side by side. Promises the answer that a search of the keys themselves gives. Must not know what the keys are of.
//!
//! Each step of a search of the keys themselves waits for two lines of memory, of the list and of the key. Of the keys of a sorted table, or of a run's, the first bytes are alike (the
//! table's number at least); the eight behind these tell most of them apart, and eight keys have theirs in one line.

/// Of keys in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyPrefixes {
    /// What all keys begin with.
    common: Box<[u8]>,
    /// The next eight bytes of each, filled up with zeros.
    next: Box<[u64]>,
}

impl KeyPrefixes {
    /// Of these, which are in order.
    pub(crate) fn of<'k>(keys: impl DoubleEndedIterator<Item = &'k [u8]> + Clone) -> KeyPrefixes {
        let mut ends = keys.clone();
        let (Some(first), last) = (ends.next(), ends.next_back()) else { return KeyPrefixes::default() };
        let common =
            last.map_or(first.len(), |last| first.iter().zip(last).take_while(|(a, b)| a == b).count());
        KeyPrefixes {
            common: first[..common].into(),
            next: keys.map(|key| next_bytes(&key[common..])).collect(),
        }
    }

    /// Of how many keys, from the first on, `is_before` holds, which holds of none after the first of which it does not: of all that are below `key`, of none above it,
    /// and of `key` itself it may. Told their places.
    #[inline]
    pub(crate) fn partition(&self, key: &[u8], is_before: impl Fn(usize) -> bool) -> usize {
        let shared = key.len().min(self.common.len());
        match key[..shared].cmp(&self.common[..shared]) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.next.len(),
            std::cmp::Ordering::Equal if shared < self.common.len() => return 0,
            std::cmp::Ordering::Equal => {}
        }
        let target = next_bytes(&key[shared..]);
        let mut from = self.next.partition_point(|next| *next < target);
        // Those that are alike here: most of the time none, or one.
        let alike = match self.next.get(from) == Some(&target) {
            true => self.next[from..].partition_point(|next| *next == target),
            false => 0,
        };
        let mut to = from + alike;
        while from < to {
            let middle = from + (to - from) / 2;
            match is_before(middle) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.common.len() + size_of_val(&*self.next)
    }
}

/// Of two keys the one with the lower number is below the other; with the same either may be.
#[inline]
fn next_bytes(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(bytes)
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Keys of few letters and a common beginning: many are alike in their first eight bytes, or end there.
        #[test]
        fn finds_what_a_search_of_the_keys_finds(
            begin in "[a-c]{0,3}",
            mut keys in prop::collection::vec("[\u{0}a]{0,10}", 0..40),
            target in "[a-c]{0,3}[\u{0}a]{0,10}",
        ) {
            for key in &mut keys {
                key.insert_str(0, &begin);
            }
            keys.sort();
            keys.dedup();
            let prefixes = KeyPrefixes::of(keys.iter().map(String::as_bytes));
            for key in keys.iter().chain([&target, &begin]) {
                let key = key.as_bytes();
                let below = prefixes.partition(key, |n| keys[n].as_bytes() < key);
                prop_assert_eq!(below, keys.partition_point(|other| other.as_bytes() < key));
                let not_above = prefixes.partition(key, |n| keys[n].as_bytes() <= key);
                prop_assert_eq!(not_above, keys.partition_point(|other| other.as_bytes() <= key));
            }
        }
    }
}
