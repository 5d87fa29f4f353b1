//! What is read to know what of the runs is garbage.
//!
//! Owns how much of that is done at once. Promises that no merge waits for more than a few files to be looked at, however many there are, but for the one estimate of a store that was opened, which is
//! bounded; and that what is read counts as what merges take. Must not know what is chosen by it.

use std::sync::Arc;

use super::MergeStore;
use crate::runs::Runs;
use crate::runs::garbage::SamplePace;

impl Runs {
    /// Reads some records of some files of which it is not known how much has expired, and once, in a store that was opened, of all what newer runs replace. Whether there are more such files.
    pub(crate) fn look_for_garbage<S: MergeStore>(&self, store: &S) -> bool {
        let (runs, took, goes_on) =
            (Arc::clone(&self.current()), |bytes| store.took(bytes), || store.goes_on());
        let pace = SamplePace { took: &took, goes_on: &goes_on };
        self.merges.estimate(&runs, &pace);
        self.merges.look_at_expiries(&runs, store.now_ms(), &pace)
    }
}
