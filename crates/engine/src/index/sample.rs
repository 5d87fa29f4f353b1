//! Sampling: an entry chosen at random, every one as likely as any other.
//!
//! Owns: the walk. Promises: the same odds for every entry, whatever the keys and however full the nodes are. Must not know: records.
//!
//! A walk that took every child of a node with equal odds would come to the entries of nodes with few neighbours too often.
//! So it draws a place among as many as a node can have at most, and gives up where there is nothing: then every entry of a level
//! has the same odds. The root needs none of that, for all walks begin there.

use hedgerow_device::Random;

use super::arena::NULL;
use super::node::{HALVES, Meta, Retry};
use super::{Index, Slot};
use crate::epoch::Guard;

/// The most entries of a leaf, and the most children of an inner node.
const LEAF_PLACES: usize = most_entries(0);
const INNER_PLACES: usize = most_entries(1) + 1;

const fn most_entries(level: usize) -> usize {
    let mut cap = 1;
    while Meta::fixed_halves(level, cap + 1) <= HALVES {
        cap += 1;
    }
    cap
}

impl Index {
    /// Tries once to choose an entry, and puts its key into `key`, in place of what that held. `None` if the walk ended at no
    /// entry, as several of ten do: try again.
    pub(crate) fn sample(&self, random: &mut Random, guard: &Guard<'_>, key: &mut Vec<u8>) -> Option<Slot> {
        self.try_sample(random, guard, key).ok().flatten()
    }

    fn try_sample(
        &self,
        random: &mut Random,
        guard: &Guard<'_>,
        key: &mut Vec<u8>,
    ) -> Result<Option<Slot>, Retry> {
        // Holds the lower fence of the node, which starts with the node's prefix.
        key.clear();
        let view = self.view(guard);
        let Some((_, mut node, mut version)) = view.enter()? else { return Ok(None) };
        let mut is_root = true;
        loop {
            let meta = node.meta();
            let (places, most) = match meta.is_leaf() {
                true => (meta.count(), LEAF_PLACES),
                false => (meta.count() + 1, INNER_PLACES),
            };
            let at = random.below(if is_root { places } else { most } as u64) as usize;
            if at >= places {
                return Ok(None);
            }
            if meta.is_leaf() {
                let slot = Slot::from_raw(node.slot(meta, at)).ok_or(Retry)?;
                key.truncate(meta.prefix());
                node.append_tail(meta, at, version, key)?;
                node.check(version)?;
                return Ok(Some(slot));
            }
            if at > 0 {
                key.truncate(meta.prefix());
                node.append_tail(meta, at - 1, version, key)?;
            }
            let id = node.child(meta, at);
            if id == NULL {
                return Ok(None);
            }
            let child = view.arena.node(id);
            let child_version = child.stable();
            node.check(version)?;
            (node, version, is_root) = (child, child_version, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use super::super::{Decision, LogSlot, NodeArena, Tag};
    use super::*;
    use crate::epoch::Epoch;

    fn index_of(keys: &[Vec<u8>]) -> (Index, Arc<Epoch>) {
        let (arena, epoch) = (Arc::new(NodeArena::new(1 << 30).unwrap()), Arc::new(Epoch::new()));
        let index = Index::new(arena, Arc::clone(&epoch));
        for (n, key) in keys.iter().enumerate() {
            let slot = Slot::from(LogSlot::new(Tag::Row, (n as u64 + 1) * 8, 64));
            index.upsert(key, &epoch.pin(), |_| (Decision::Store(slot), ())).unwrap();
        }
        (index, epoch)
    }

    /// Pearson's test: the sum is near the number of keys less one, its deviation near the root of twice that.
    fn check_even(name: &str, keys: &[Vec<u8>]) {
        let (index, epoch) = index_of(keys);
        let mut random = Random::from_seed(5);
        let each = 60;
        let (mut counts, mut walks, mut key) = (HashMap::new(), 0u64, Vec::new());
        for _ in 0..keys.len() * each {
            let slot = loop {
                walks += 1;
                if let Some(slot) = index.sample(&mut random, &epoch.pin(), &mut key) {
                    break slot;
                }
            };
            assert_eq!(index.get(&key, &epoch.pin()), Some(slot), "{name}: {}", key.escape_ascii());
            *counts.entry(key.clone()).or_insert(0u64) += 1;
        }
        let sum: f64 = keys
            .iter()
            .map(|key| (*counts.get(key).unwrap_or(&0) as f64 - each as f64).powi(2) / each as f64)
            .sum();
        let free = (keys.len() - 1) as f64;
        assert!((sum - free).abs() < 6.0 * (2.0 * free).sqrt() + 1.0, "{name}: {sum} for {free}");
        let drawn = (keys.len() * each) as u64;
        assert!(walks < drawn * 100, "{name}: {walks} walks for {drawn} entries");
    }

    #[test]
    fn every_entry_is_as_likely_as_any_other() {
        let keys = |count: usize, key: &dyn Fn(usize) -> String| -> Vec<Vec<u8>> {
            (0..count).map(|n| key(n).into_bytes()).collect()
        };
        let mut far = keys(2_000, &|n| format!("user:{n:08}"));
        far.extend([b"a".to_vec(), b"zzzzzzzzzzzz".to_vec(), vec![0xff; 300]]);
        let mut random = Random::from_seed(9);
        let scattered: Vec<Vec<u8>> = (0..3_000).map(|_| random.next_u64().to_be_bytes().to_vec()).collect();
        check_even("one", &keys(1, &|n| format!("{n}")));
        check_even("two far apart", &[b"a".to_vec(), b"zzzzzzzz".to_vec()]);
        check_even("few", &keys(40, &|n| format!("{n}")));
        check_even("ascending", &keys(4_000, &|n| format!("{n:08}")));
        check_even("far", &far);
        check_even("scattered", &scattered);
        check_even("long", &keys(2_000, &|n| format!("{}{n}", "x".repeat(n % 90))));
    }
}
