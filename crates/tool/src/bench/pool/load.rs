//! What is asked of a pool, and whether the answers can be right.
//!
//! Owns the loads, keys and values. Promises that an answer which names another key, a value that nobody wrote or one that was certainly overwritten before the read began is noticed, whoever was asked. A necessary condition of
//! linearizability, at a cost that does not grow; tests check whole histories. Must not know how anybody is asked, nor whose time it is.

use std::collections::BTreeSet;

use hedgerow_device::Random;

use crate::bench::distribution::{Distribution, KeyChooser};

/// The least that a value has: whose it is, and which.
pub(super) const VALUE_BYTES_MIN: usize = 16;

/// Which calls, and to which keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolLoad {
    /// Of a hundred calls: reads.
    pub(super) reads: u64,
    /// The others are of new keys, not of those that are there.
    pub(super) inserts: bool,
    pub(super) distribution: Distribution,
}

impl PoolLoad {
    /// One of YCSB's: a, b, c or d.
    ///
    /// # Errors
    /// A sentence for a person.
    pub(super) fn find(name: &str, distribution: Distribution) -> Result<PoolLoad, String> {
        let (reads, inserts) = match name.to_ascii_lowercase().as_str() {
            "a" => (50, false),
            "b" => (95, false),
            "c" => (100, false),
            "d" => (95, true),
            _ => return Err(format!("there is no load '{name}': give a, b, c, d")),
        };
        // The newest are the most popular, whatever else is asked for.
        let distribution = if inserts { Distribution::Latest } else { distribution };
        Ok(PoolLoad { reads, inserts, distribution })
    }
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolAsk {
    Read(u64),
    Write(u64),
}

/// Draws calls.
#[derive(Debug)]
pub(super) struct PoolCaller {
    load: PoolLoad,
    random: Random,
    chooser: KeyChooser,
}

impl PoolCaller {
    /// Over `keys` that are there.
    pub(super) fn new(load: PoolLoad, keys: u64, seed: u64) -> PoolCaller {
        PoolCaller {
            load,
            random: Random::from_seed(seed),
            chooser: KeyChooser::new(load.distribution, keys, 0),
        }
    }

    /// The next call. Reads and updates are of keys that are known to be there; an insert is of the next new one.
    pub(super) fn next(&mut self, audit: &PoolAudit) -> PoolAsk {
        let is_read = self.random.below(100) < self.load.reads;
        if !is_read && self.load.inserts {
            return PoolAsk::Write(audit.keys());
        }
        let key = self.chooser.next(&mut self.random, audit.keys_there().max(1));
        if is_read { PoolAsk::Read(key) } else { PoolAsk::Write(key) }
    }
}

/// The bytes of a key.
pub(super) fn pool_key(number: u64) -> Vec<u8> {
    format!("user{number:012}").into_bytes()
}

/// The bytes of a value: of which key, by which write, and as many more as there are to be.
pub(super) fn pool_value(key: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![version as u8; bytes.max(VALUE_BYTES_MIN)];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[8..16].copy_from_slice(&version.to_le_bytes());
    value
}

/// One call as it was seen, for whoever checks whole histories.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), expect(dead_code, reason = "tests alone read it"))]
pub(super) struct PoolSeen {
    pub(super) key: u64,
    pub(super) what: PoolSeenEffect,
    pub(super) began: u64,
    pub(super) returned: u64,
}

/// What a call did, as far as its answer says.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), expect(dead_code, reason = "tests alone read it"))]
pub(super) enum PoolSeenEffect {
    Read(Option<u64>),
    Wrote(u64),
    MayWrite(u64),
}

/// A write, from its beginning on.
#[derive(Debug, Clone, Copy)]
struct PoolWrite {
    key: u64,
    began: u64,
    /// None: it did not return, or nobody knows what became of it.
    returned: Option<u64>,
}

/// What was written, and what a read may answer.
#[derive(Debug, Default)]
pub(super) struct PoolAudit {
    writes: Vec<PoolWrite>,
    /// Of each key the beginning of that write which began last, of those that have returned.
    newest: Vec<Option<u64>>,
    /// Keys that are there although one before them is not known to be, and how many there are without a gap.
    there_early: BTreeSet<u64>,
    there: u64,
    value_bytes: usize,
    seen: Option<Vec<PoolSeen>>,
}

impl PoolAudit {
    /// With values of so many bytes. `keeps` keeps all calls for [`seen`](PoolAudit::seen).
    pub(super) fn new(value_bytes: usize, keeps: bool) -> PoolAudit {
        PoolAudit { value_bytes, seen: keeps.then(Vec::new), ..PoolAudit::default() }
    }

    /// Keys that somebody began to put.
    pub(super) fn keys(&self) -> u64 {
        self.newest.len() as u64
    }

    /// Keys from the first one on that were put.
    pub(super) fn keys_there(&self) -> u64 {
        self.there
    }

    /// All calls, if they were kept.
    #[cfg(test)]
    pub(super) fn seen(&self) -> &[PoolSeen] {
        self.seen.as_deref().unwrap_or_default()
    }

    /// A write begins: its version, and its value.
    pub(super) fn begin_write(&mut self, key: u64, now: u64) -> (u64, Vec<u8>) {
        let version = self.writes.len() as u64;
        self.writes.push(PoolWrite { key, began: now, returned: None });
        let keys = self.newest.len().max(key as usize + 1);
        self.newest.resize(keys, None);
        (version, pool_value(key, version, self.value_bytes))
    }

    /// A write returned; `happened` is false where nobody knows.
    pub(super) fn end_write(&mut self, version: u64, now: u64, happened: bool) {
        let Some(write) = self.writes.get_mut(version as usize) else { return };
        let PoolWrite { key, began, .. } = *write;
        if happened {
            write.returned = Some(now);
            let newest = &mut self.newest[key as usize];
            *newest = (*newest).max(Some(began));
            self.there_early.insert(key);
            while self.there_early.remove(&self.there) {
                self.there += 1;
            }
        }
        let what = if happened { PoolSeenEffect::Wrote(version) } else { PoolSeenEffect::MayWrite(version) };
        self.keep(PoolSeen { key, what, began, returned: now });
    }

    /// A read begins: what it may not be older than.
    pub(super) fn begin_read(&self, key: u64) -> Option<u64> {
        self.newest.get(key as usize).copied().flatten()
    }

    /// A read that began at `began`, with that floor, returned.
    ///
    /// # Errors
    /// What is wrong with the answer.
    pub(super) fn end_read(
        &mut self,
        key: u64,
        (began, floor): (u64, Option<u64>),
        now: u64,
        value: Option<&[u8]>,
    ) -> Result<(), String> {
        let version = match value {
            Some(value) => Some(self.version_of(key, value)?),
            None if floor.is_some() => return Err(format!("key {key} is there, and a read missed it")),
            None => None,
        };
        let returned = version.and_then(|version| self.writes[version as usize].returned);
        // That write returned before another one began, which returned before the read began.
        if returned.is_some() && returned < floor {
            return Err(format!("key {key}: a read answered a value that was overwritten before it began"));
        }
        self.keep(PoolSeen { key, what: PoolSeenEffect::Read(version), began, returned: now });
        Ok(())
    }

    fn version_of(&self, key: u64, value: &[u8]) -> Result<u64, String> {
        let word = |at: usize| value.get(at..at + 8).and_then(|word| word.try_into().ok());
        let words = (word(0).map(u64::from_le_bytes), word(8).map(u64::from_le_bytes));
        let (Some(of), Some(version)) = words else {
            return Err(format!("key {key}: a value of {} bytes, which nobody wrote", value.len()));
        };
        let is_known = of == key && self.writes.get(version as usize).is_some_and(|write| write.key == key);
        if !is_known || value != pool_value(key, version, self.value_bytes) {
            return Err(format!("key {key}: a value that nobody wrote to it"));
        }
        Ok(version)
    }

    fn keep(&mut self, one: PoolSeen) {
        if let Some(seen) = &mut self.seen {
            seen.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_cannot_be_right_are_noticed() {
        let mut audit = PoolAudit::new(32, false);
        let (first, one) = audit.begin_write(0, 10);
        let during = audit.begin_read(0);
        assert_eq!(audit.end_read(0, (11, during), 12, None), Ok(()));
        assert_eq!(audit.end_read(0, (11, during), 12, Some(&one)), Ok(()), "it may have happened");
        audit.end_write(first, 20, true);
        let after = audit.begin_read(0);
        assert!(audit.end_read(0, (21, after), 22, None).unwrap_err().contains("missed"));
        let (second, two) = audit.begin_write(0, 30);
        assert_eq!(audit.end_read(0, (31, audit.begin_read(0)), 32, Some(&one)), Ok(()));
        audit.end_write(second, 40, true);
        // One that began before the second write returned may still answer the first.
        assert_eq!(audit.end_read(0, (31, after), 41, Some(&one)), Ok(()));
        let floor = audit.begin_read(0);
        assert!(audit.end_read(0, (41, floor), 42, Some(&one)).unwrap_err().contains("overwritten"));
        assert_eq!(audit.end_read(0, (41, floor), 42, Some(&two)), Ok(()));
        let (_, other) = audit.begin_write(1, 50);
        for wrong in [&other[..], &two[..20], b"short", &pool_value(0, 9, 32)] {
            assert!(audit.end_read(0, (51, floor), 52, Some(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn writes_that_were_under_way_together_have_no_order() {
        let mut audit = PoolAudit::new(16, false);
        let (first, one) = audit.begin_write(0, 10);
        let (second, two) = audit.begin_write(0, 11);
        audit.end_write(first, 20, true);
        audit.end_write(second, 21, true);
        for value in [one, two] {
            assert_eq!(audit.end_read(0, (30, audit.begin_read(0)), 31, Some(&value)), Ok(()));
        }
    }

    #[test]
    fn only_keys_that_were_put_are_asked_for() {
        let mut audit = PoolAudit::new(16, false);
        let versions = [0, 1, 2].map(|key| audit.begin_write(key, 1).0);
        audit.end_write(versions[0], 2, true);
        audit.end_write(versions[2], 2, true);
        assert_eq!((audit.keys(), audit.keys_there()), (3, 1), "key 1 is not there yet");
        audit.end_write(versions[1], 3, true);
        assert_eq!(audit.keys_there(), 3);
        let load = PoolLoad::find("D", Distribution::Uniform).unwrap();
        let mut caller = PoolCaller::new(load, 3, 1);
        let asked: Vec<PoolAsk> = (0..1000).map(|_| caller.next(&audit)).collect();
        let inserts = asked.iter().filter(|ask| **ask == PoolAsk::Write(3)).count();
        assert!((20..90).contains(&inserts), "{inserts}");
        assert!(asked.iter().all(|ask| matches!(ask, PoolAsk::Write(3) | PoolAsk::Read(0..3))));
        assert!(PoolLoad::find("e", Distribution::Uniform).unwrap_err().contains("a, b, c, d"));
    }
}
