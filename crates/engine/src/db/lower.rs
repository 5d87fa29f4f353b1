//! The lower part of a row: what sorted tables have of its key.
//!
//! Owns when that is looked for, and how it is held for whoever reads it: [`LowerRecords`], in a [`LowerLooks`] that a view has. Promises that a look is at what counted after
//! the index was asked, that it costs nothing before somebody needs its answer, and that what it found stays where it is for as long as the view. Must not know slots, nor what a
//! record's body says.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use hedgerow_row::schema::table::TableSchema;

use super::lacked::look_below;
use crate::runs::{FoundVersions, OpenRuns, RunsLook};
use crate::sst::{SstKey, not_at_hand};
use crate::{Error, ErrorKind, Result};

mod seen;

pub(crate) use seen::SeenBelow;

/// What sorted tables have of one key, looked up when it is asked for.
#[derive(Debug)]
pub(crate) struct LowerRecords {
    look: LowerLook,
    found: OnceCell<FoundVersions>,
    /// Loaded after the runs: it knows the version of every record in them.
    schema: Arc<TableSchema>,
}

/// How what there is comes to be known.
#[derive(Debug)]
enum LowerLook {
    /// It is known.
    Known,
    /// It is looked up in the runs.
    InRuns(RunsPlace),
    /// It was looked up before, and could not be read.
    Failed(Error),
    /// It was not looked up before, and nobody may wait for that now. Whether it was asked for.
    Unseen(SstKey, Cell<bool>),
}

/// Where something is looked for.
#[derive(Debug)]
struct RunsPlace {
    runs: Arc<OpenRuns>,
    key: SstKey,
    /// What is younger was not there yet.
    upto: u64,
    /// [`DiskWaits::store_id`](super::disk_waits::DiskWaits::store_id).
    store: u64,
}

impl RunsPlace {
    /// What there is, read from the disk if need be, and if the thread waits for that.
    fn find(&self) -> Result<FoundVersions> {
        let looked = look_below(self.store, |reads| match self.runs.look(&self.key, self.upto, reads)? {
            RunsLook::Found(found) => Ok(found),
            RunsLook::Lacking => Err(not_at_hand()),
        });
        let found = looked.unwrap_or_else(|| self.runs.find(&self.key, self.upto))?;
        self.runs.was_found(&self.key, self.upto, &found);
        Ok(found)
    }
}

/// What these runs have of each of these keys, as of the sequence `upto`, read from the disk together if need be. Of a thread of the store `store` that does not
/// wait for the disk all of it is refused where one lacks something.
pub(crate) fn find_many_below(
    store: u64,
    runs: &OpenRuns,
    keys: &[SstKey],
    upto: u64,
) -> Result<Vec<Result<FoundVersions>>> {
    let looked = look_below(store, |reads| {
        let (mut found, mut is_lacking) = (Vec::with_capacity(keys.len()), false);
        for key in keys {
            match runs.look(key, upto, reads) {
                Ok(RunsLook::Found(versions)) => found.push(Ok(versions)),
                Ok(RunsLook::Lacking) => is_lacking = true,
                Err(error) => found.push(Err(error)),
            }
        }
        if is_lacking { Err(not_at_hand()) } else { Ok(found) }
    });
    let found = looked.unwrap_or_else(|| Ok(runs.find_many(keys, upto)))?;
    for (key, found) in keys.iter().zip(&found) {
        if let Ok(found) = found {
            runs.was_found(key, upto, found);
        }
    }
    Ok(found)
}

impl LowerRecords {
    /// A look into `runs` of the store `store`, as of the sequence `upto`. `schema` was loaded after them.
    pub(crate) fn new(
        runs: Arc<OpenRuns>,
        key: SstKey,
        (upto, store): (u64, u64),
        schema: Arc<TableSchema>,
    ) -> LowerRecords {
        let place = RunsPlace { runs, key, upto, store };
        LowerRecords { look: LowerLook::InRuns(place), found: OnceCell::new(), schema }
    }

    /// What was seen before. `schema` was loaded after `runs`, which count now.
    fn seen(seen: &SeenBelow, runs: &OpenRuns, key: SstKey, schema: Arc<TableSchema>) -> LowerRecords {
        let look = match seen.find(runs, &key) {
            Some(Ok(found)) => return LowerRecords::walked(found, schema),
            Some(Err(error)) => LowerLook::Failed(error),
            None => LowerLook::Unseen(key, Cell::new(false)),
        };
        LowerRecords { look, found: OnceCell::new(), schema }
    }

    /// What a walk over the runs came by. `schema` was loaded after them.
    pub(crate) fn walked(found: FoundVersions, schema: Arc<TableSchema>) -> LowerRecords {
        LowerRecords { look: LowerLook::Known, found: OnceCell::from(found), schema }
    }

    /// What there is, read from the disk if need be.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses; `NotInMemory` for a thread that does not wait for it; `Busy` if nobody may now.
    pub(crate) fn found(&self) -> Result<&FoundVersions> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let found = match &self.look {
            LowerLook::Known => FoundVersions::default(),
            LowerLook::InRuns(place) => place.find()?,
            LowerLook::Failed(error) => return Err(error.clone()),
            LowerLook::Unseen(_, is_wanted) => {
                is_wanted.set(true);
                return Err(Error::new(ErrorKind::Busy, "a row in sorted tables has to be read first"));
            }
        };
        Ok(self.found.get_or_init(|| found))
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
    /// What these runs of the store `store` have of these keys, as of the sequence `upto`. What cannot be read is not among it: the look that needs it has the error.
    ///
    /// # Errors
    /// `NotInMemory` for a thread that does not wait for the disk.
    pub(crate) fn find(store: u64, runs: &Arc<OpenRuns>, keys: Vec<SstKey>, upto: u64) -> Result<LowerAhead> {
        let found = find_many_below(store, runs, &keys, upto)?.into_iter();
        let found = keys.into_iter().zip(found).filter_map(|(key, found)| Some((key, found.ok()?)));
        Ok(LowerAhead { runs: Arc::clone(runs), upto, found: found.collect() })
    }

    /// What was found in these runs, as of the sequence `upto`, in the order of the looks to come.
    pub(crate) fn of(
        runs: &Arc<OpenRuns>,
        found: VecDeque<(SstKey, FoundVersions)>,
        upto: u64,
    ) -> LowerAhead {
        found.iter().for_each(|(key, found)| runs.was_found(key, upto, found));
        LowerAhead { runs: Arc::clone(runs), upto, found }
    }

    /// What was found for this look, and not for those before it any more.
    fn take(&mut self, look: &LowerLook) -> Option<FoundVersions> {
        let LowerLook::InRuns(place) = look else { return None };
        if !Arc::ptr_eq(&self.runs, &place.runs) || self.upto != place.upto {
            return None;
        }
        let at = self.found.iter().position(|(key, _)| key.bytes() == place.key.bytes())?;
        self.found.drain(..at);
        self.found.pop_front().map(|(_, found)| found)
    }
}

/// Looks that are held together, each at its place until all go.
#[derive(Debug, Default)]
pub(crate) struct LowerLooks {
    ahead: RefCell<Option<LowerAhead>>,
    /// What all are answered by, where nobody may wait.
    seen: Option<Arc<SeenBelow>>,
    len: Cell<usize>,
    /// Most hold one.
    first: OnceCell<LowerRecords>,
    /// The others.
    more: OnceCell<Box<Chunks>>,
}

/// Of 1, 2, 4 and so on.
type Chunks = [OnceCell<Box<[OnceCell<LowerRecords>]>>; 32];

impl LowerLooks {
    /// With what was found for looks that will be held.
    pub(crate) fn with_ahead(ahead: LowerAhead) -> LowerLooks {
        LowerLooks { ahead: RefCell::new(Some(ahead)), ..LowerLooks::default() }
    }

    /// What was found and not taken.
    pub(crate) fn into_ahead(self) -> Option<LowerAhead> {
        self.ahead.into_inner()
    }

    /// To be answered by what was seen before: what was not is [wanted](LowerLooks::wanted).
    pub(crate) fn only_of(seen: Arc<SeenBelow>) -> LowerLooks {
        LowerLooks { seen: Some(seen), ..LowerLooks::default() }
    }

    /// A look into `runs` of the store `store`, as of the sequence `upto`, held. `schema` was loaded after them.
    pub(crate) fn look(
        &self,
        runs: Arc<OpenRuns>,
        key: SstKey,
        (upto, store): (u64, u64),
        schema: Arc<TableSchema>,
    ) -> &LowerRecords {
        self.hold(match &self.seen {
            None => LowerRecords::new(runs, key, (upto, store), schema),
            Some(seen) => LowerRecords::seen(seen, &runs, key, schema),
        })
    }

    /// Keys of which was asked what there is, though nobody had looked it up.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &SstKey> {
        let more = self.more.get().map_or(&[][..], |chunks| &chunks[..]);
        let more = more.iter().filter_map(OnceCell::get).flatten().filter_map(OnceCell::get);
        self.first.get().into_iter().chain(more).filter_map(|records| match &records.look {
            LowerLook::Unseen(key, is_wanted) if is_wanted.get() => Some(key),
            _ => None,
        })
    }

    /// Holds one more.
    pub(crate) fn hold(&self, look: LowerRecords) -> &LowerRecords {
        if let Some(ahead) = &mut *self.ahead.borrow_mut()
            && let Some(found) = ahead.take(&look.look)
        {
            let _ = look.found.set(found);
        }
        let n = self.len.get();
        self.len.set(n + 1);
        if n == 0 {
            return self.first.get_or_init(|| look);
        }
        let (chunks, chunk) = (self.more.get_or_init(Box::default), n.ilog2() as usize);
        let places = chunks[chunk].get_or_init(|| (0..1usize << chunk).map(|_| OnceCell::new()).collect());
        places[n - (1 << chunk)].get_or_init(|| look)
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
pub(crate) mod tests;
