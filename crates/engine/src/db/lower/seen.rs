//! What was found below of some keys before anybody had to wait for it.
//!
//! Owns [`SeenBelow`]. Promises that it answers without a read of the disk, and only with what counts still: of a key that nobody looked up it says so, and of all keys once
//! the runs may answer otherwise. Must not know who asks, nor which locks he holds.

use std::collections::{HashMap, HashSet};

use super::find_many_below;
use crate::runs::{FoundVersions, OpenRuns};
use crate::sst::{FoundRecord, SstKey};
use crate::{Error, Result};

/// No more keys are read before it is looked how much that was, and no more than are sure to be held.
const READ_TOGETHER: usize = 256;

/// What the runs had of some keys.
#[derive(Debug)]
pub(crate) struct SeenBelow {
    /// Of the runs.
    generation: u64,
    /// By the composite key.
    found: HashMap<Box<[u8]>, Result<FoundVersions>>,
}

impl SeenBelow {
    /// Looks `keys` up in runs of the store `store`. What could not be read of one is an error of that key.
    ///
    /// # Errors
    /// `Invalid` if what is found lies in blocks of more than `bytes_max` bytes; `NotInMemory` for a thread that does not wait for the disk.
    pub(crate) fn read(
        (store, runs): (u64, &OpenRuns),
        mut keys: Vec<SstKey>,
        bytes_max: usize,
    ) -> Result<SeenBelow> {
        keys.sort_unstable_by(|one, other| one.bytes().cmp(other.bytes()));
        keys.dedup_by(|one, other| one.bytes() == other.bytes());
        let (mut blocks, mut held) = (HashSet::new(), 0);
        let mut seen = SeenBelow::nothing(runs);
        let mut left = keys.as_slice();
        while !left.is_empty() {
            let together = read_together(runs, left, bytes_max.saturating_sub(held));
            let keys = left.split_off(..together).unwrap_or_default();
            for (key, found) in keys.iter().zip(find_many_below(store, runs, keys, u64::MAX)?) {
                let records = found.iter().flat_map(FoundVersions::records);
                let is_new = |record: &&FoundRecord| blocks.insert(record.block_address());
                held += records.filter(is_new).map(FoundRecord::block_bytes).sum::<usize>();
                seen.found.insert(key.bytes().into(), found);
            }
            if held > bytes_max {
                return Err(too_much(seen.found.len(), bytes_max));
            }
        }
        Ok(seen)
    }

    /// Nothing was looked up in these runs.
    pub(crate) fn nothing(runs: &OpenRuns) -> SeenBelow {
        SeenBelow { generation: runs.generation(), found: HashMap::new() }
    }

    /// What `runs`, which count now, have of a key. `None` if that was not looked up.
    pub(super) fn find(&self, runs: &OpenRuns, key: &SstKey) -> Option<Result<FoundVersions>> {
        if self.generation != runs.generation() {
            return None;
        }
        match self.found.get(key.bytes()) {
            None if !runs.may_hold(key) => Some(Ok(FoundVersions::default())),
            found => found.cloned(),
        }
    }
}

/// How many of these keys are read together, of which no more than so many bytes of blocks are to be held: one at least.
fn read_together(runs: &OpenRuns, keys: &[SstKey], bytes_max: usize) -> usize {
    let mut held = 0;
    let are_held = |key: &&SstKey| {
        held += runs.bytes_of_look(key.table());
        held <= bytes_max as u64
    };
    keys.iter().take(READ_TOGETHER).take_while(are_held).count().max(1)
}

#[cold]
fn too_much(rows: usize, bytes_max: usize) -> Error {
    Error::invalid(format!(
        "the first {rows} rows in sorted tables that the batch has to see lie in blocks of more bytes together than are held; the limit is {bytes_max}"
    ))
}
