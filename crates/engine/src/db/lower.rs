//! The lower part of a row: what sorted tables have of its key.
//!
//! Owns when that is looked for, and how it is held for whoever reads it: [`LowerRecords`], in a [`LowerLooks`] that a view has. Promises that a look is at what counted after
//! the index was asked, that it costs nothing before somebody needs its answer, and that what it found stays where it is for as long as the view. Must not know slots, nor what a
//! record's body says.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use hedgerow_row::schema::table::TableSchema;

use crate::Result;
use crate::runs::{FoundVersions, OpenRuns};
use crate::sst::SstKey;

/// What sorted tables have of one key, looked up when it is asked for.
#[derive(Debug)]
pub(crate) struct LowerRecords {
    table: u32,
    /// Unless it is known what there is.
    look: Option<LowerLook>,
    found: OnceCell<FoundVersions>,
    /// Loaded after the runs: it knows the version of every record in them.
    schema: Arc<TableSchema>,
}

/// Where something is looked for.
#[derive(Debug)]
struct LowerLook {
    runs: Arc<OpenRuns>,
    key: SstKey,
    /// What is younger was not there yet.
    upto: u64,
}

impl LowerRecords {
    /// A look into `runs`, as of the sequence `upto`. `schema` was loaded after them.
    pub(crate) fn new(
        runs: Arc<OpenRuns>,
        (table, key): (u32, &[u8]),
        upto: u64,
        schema: Arc<TableSchema>,
    ) -> LowerRecords {
        let look = Some(LowerLook { runs, key: SstKey::new(table, key), upto });
        LowerRecords { table, look, found: OnceCell::new(), schema }
    }

    /// What a walk over the runs came by. `schema` was loaded after them.
    pub(crate) fn walked(found: FoundVersions, table: u32, schema: Arc<TableSchema>) -> LowerRecords {
        LowerRecords { table, look: None, found: OnceCell::from(found), schema }
    }

    /// What there is, read from the disk if need be.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn found(&self) -> Result<&FoundVersions> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let look = self.look.as_ref().map(|look| look.runs.find(&look.key, look.upto));
        let found = look.transpose()?.unwrap_or_default();
        Ok(self.found.get_or_init(|| found))
    }

    /// The number of the table that was looked for.
    pub(crate) fn table(&self) -> u32 {
        self.table
    }

    /// The table's schema.
    pub(crate) fn schema(&self) -> &Arc<TableSchema> {
        &self.schema
    }
}

/// What was found for looks to come, the blocks of many keys read together.
#[derive(Debug)]
pub(crate) struct LowerAhead {
    runs: Arc<OpenRuns>,
    upto: u64,
    /// In the order of the looks.
    found: VecDeque<(SstKey, FoundVersions)>,
}

impl LowerAhead {
    /// What these runs have of these keys, as of the sequence `upto`. What cannot be read is not among it: the look that needs it has the error.
    pub(crate) fn find(runs: &Arc<OpenRuns>, keys: Vec<SstKey>, upto: u64) -> LowerAhead {
        let found = runs.find_many(&keys, upto).into_iter();
        let found = keys.into_iter().zip(found).filter_map(|(key, found)| Some((key, found.ok()?)));
        LowerAhead { runs: Arc::clone(runs), upto, found: found.collect() }
    }

    /// What was found for this look, and not for those before it any more.
    fn take(&mut self, look: &LowerLook) -> Option<FoundVersions> {
        if !Arc::ptr_eq(&self.runs, &look.runs) || self.upto != look.upto {
            return None;
        }
        let at = self.found.iter().position(|(key, _)| key.bytes() == look.key.bytes())?;
        self.found.drain(..at);
        self.found.pop_front().map(|(_, found)| found)
    }
}

/// Looks that are held together, each at its place until all go.
#[derive(Debug, Default)]
pub(crate) struct LowerLooks {
    ahead: RefCell<Option<LowerAhead>>,
    len: Cell<usize>,
    /// Of 1, 2, 4 and so on.
    chunks: [OnceCell<Box<[OnceCell<LowerRecords>]>>; 32],
}

impl LowerLooks {
    /// With what was found for looks that will be held.
    pub(crate) fn with_ahead(ahead: LowerAhead) -> LowerLooks {
        LowerLooks { ahead: RefCell::new(Some(ahead)), ..LowerLooks::default() }
    }

    /// What was found and not taken.
    pub(crate) fn into_ahead(self) -> Option<LowerAhead> {
        self.ahead.into_inner()
    }

    /// Holds one more.
    pub(crate) fn hold(&self, look: LowerRecords) -> &LowerRecords {
        if let (Some(ahead), Some(of)) = (&mut *self.ahead.borrow_mut(), &look.look)
            && let Some(found) = ahead.take(of)
        {
            let _ = look.found.set(found);
        }
        let n = self.len.get() + 1;
        self.len.set(n);
        let chunk = n.ilog2() as usize;
        let places =
            self.chunks[chunk].get_or_init(|| (0..1usize << chunk).map(|_| OnceCell::new()).collect());
        places[n - (1 << chunk)].get_or_init(|| look)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
