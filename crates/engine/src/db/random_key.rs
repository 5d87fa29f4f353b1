//! `Table::random_key`: a row chosen at random, of the log or of sorted tables.
//!
//! Owns how it is chosen. Promises that a row which is in both, or in several runs, is no more likely for that. Must not know how the index or a file is laid out.

use std::sync::Arc;

use hedgerow_device::Random;

use super::Table;
use super::deleted::is_row;
use super::lacked::look_below;
use crate::Result;
use crate::runs::OpenRuns;
use crate::sst::{BlockReads, FoundRecord, SstLook, not_at_hand};
use crate::sync::atomic::Ordering;

/// Slots that are looked at in search of one that is a row.
const SAMPLES_MAX: usize = 1_000;
/// Records below that are looked at in search of one that counts: each may cost a read of the disk.
const SAMPLES_BELOW_MAX: usize = 12;

impl Table {
    /// The key of a row chosen at random, every one of the log as likely as any other, and of those in sorted tables nearly so: one in a block of many is less likely than one in a block of few.
    /// `None` if there is none, if the one chosen has expired, or after 1,000 tries in a table of few rows among many deleted ones. Where most of what sorted tables have was
    /// written over or deleted since, it may be the first row.
    ///
    /// # Errors
    /// `Corrupted`; for rows in sorted tables what the capacity tier refuses, or `NotInMemory` for a thread that does not wait for it; then `random` is what it was.
    pub fn random_key(&self, random: &mut Random) -> Result<Option<Vec<u8>>> {
        let before = random.clone();
        let chosen = match self.shared().below() {
            true => self.random_key_of_both(random),
            false if self.is_empty() => Ok(None),
            false => self.random_key_of_log(random),
        };
        // The call that is made again has to come by the same rows and blocks, or it would lack others.
        chosen.inspect_err(|_| *random = before)
    }

    fn random_key_of_log(&self, random: &mut Random) -> Result<Option<Vec<u8>>> {
        let mut key = Vec::new();
        for _ in 0..SAMPLES_MAX {
            let view = self.engine().read_view();
            match self.shared().levels.sample(random, view.guard(), &mut key) {
                Some(slot) if slot.expires() => {
                    let schema = self.shared().schema.load();
                    let row = view.row_at((self.shared(), &key), &schema, Some(slot))?;
                    return Ok(row.is_some().then_some(key));
                }
                slot if is_row(slot) => return Ok(Some(key)),
                _ => {}
            }
        }
        Ok(None)
    }

    fn random_key_of_both(&self, random: &mut Random) -> Result<Option<Vec<u8>>> {
        for _ in 0..SAMPLES_BELOW_MAX {
            let runs = Arc::clone(&self.engine().runs.current());
            let id = self.shared().id.load(Ordering::Acquire);
            let (in_log, below) = (self.shared().rows(), runs.records_of(id));
            if in_log + below == 0 {
                return Ok(None);
            }
            let place = random.below(in_log + below);
            let Some(nth) = place.checked_sub(in_log) else {
                match self.random_key_of_log(random)? {
                    Some(key) => return Ok(Some(key)),
                    None => continue,
                }
            };
            let Some(found) = self.sample_below(&runs, (id, nth), random)? else { continue };
            // Of all records of a key the newest stands for it.
            if self.version(found.key())? == Some(found.sequence()) {
                return Ok(Some(found.key().to_vec()));
            }
        }
        Ok(self.scan().limit(1).next().transpose()?.map(|row| row.key().to_vec()))
    }

    fn sample_below(
        &self,
        runs: &OpenRuns,
        place: (u32, u64),
        random: &mut Random,
    ) -> Result<Option<FoundRecord>> {
        let mut sample = |reads: &mut BlockReads| -> Result<Option<Option<FoundRecord>>> {
            let mut ahead = random.clone();
            let looked = runs.sample(place, &mut ahead, reads)?;
            if !matches!(looked, SstLook::Lacking) {
                *random = ahead;
            }
            match looked {
                SstLook::Found(record) => Ok(Some(Some(record))),
                SstLook::Absent => Ok(Some(None)),
                SstLook::Lacking => Ok(None),
            }
        };
        let store = self.engine().disk_waits.store_id();
        if let Some(looked) = look_below(store, |reads| sample(reads)?.ok_or_else(not_at_hand)) {
            return looked;
        }
        let mut reads = BlockReads::new();
        loop {
            match sample(&mut reads)? {
                Some(found) => return Ok(found),
                None => reads.run(),
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use std::collections::BTreeMap;

    use hedgerow_device::{CapacityTier, Clock, CrashModel, CrashSim, FastTier, Random};

    use crate::db::fixture::options;
    use crate::{Db, Schema, Type, row};

    /// 300 rows below, a third of them written over or deleted since, and 100 more in the log.
    fn rows_of_both(table: &crate::Table) {
        table
            .load(|loader| (0..300u64).try_for_each(|n| loader.push(&n.to_be_bytes(), &[("n", n.into())])))
            .unwrap();
        for n in 0..50u64 {
            table.put(&n.to_be_bytes(), &row! { n: n }).unwrap();
            table.update(&(50 + n).to_be_bytes(), &row! { n: n }).unwrap();
            table.delete(&(100 + n).to_be_bytes()).unwrap();
        }
        (300..400u64).for_each(|n| table.put(&n.to_be_bytes(), &row! { n: n }).unwrap());
    }

    #[test]
    fn rows_below_are_as_likely_as_those_of_the_log() {
        let sim = CrashSim::new(CrashModel::Pages, 16 << 20);
        let tiers = (FastTier::simulated(&sim), CapacityTier::simulated(&sim));
        let db = Db::open_at(tiers, options(), Clock::manual(1_000)).unwrap();
        let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
        let mut random = Random::from_seed(7);
        assert_eq!(table.random_key(&mut random).unwrap(), None);
        rows_of_both(&table);
        let (mut seen, draws) = (BTreeMap::new(), 14_000);
        for _ in 0..draws {
            let key = table.random_key(&mut random).unwrap().unwrap();
            *seen.entry(u64::from_be_bytes(key[..].try_into().unwrap())).or_insert(0) += 1;
        }
        let there: Vec<u64> = (0..100).chain(150..400).collect();
        assert!(seen.keys().copied().eq(there.iter().copied()), "each row comes, and no other: {seen:?}");
        // 40 of each are to be expected. The first ones stand for what many tries in vain end with.
        let of = |keys: std::ops::Range<u64>| {
            keys.clone().map(|n| seen[&n]).sum::<u32>() as f64 / (keys.end - keys.start) as f64
        };
        for part in [(1..50), (50..100), (150..300), (300..400)] {
            let mean = of(part.clone());
            assert!((30.0..50.0).contains(&mean), "{part:?}: {mean}");
        }
        table.clear().unwrap();
        assert_eq!(table.random_key(&mut random).unwrap(), None);
    }
}
