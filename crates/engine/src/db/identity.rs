//! The witness of a store: a small file beside its data that says that there is one.
//!
//! ```text
//! hedgerow store 0123456789abcdef0123456789abcdef
//! ```
//!
//! Owns `fast.id`, text: the store's id in hexadecimal. Promises that it is there, durably, before a store that was made
//! or opened in a directory takes its first write. So a data file that is empty, zeroed or gone beside it was lost, and is
//! no store that is yet to be made. Must not know what is in the data file. Nothing else rests on it: a store without one
//! (made by an older build, or copied without it) is opened, and gets it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hedgerow_device::{FastTier, read_small_file, replace_small_file};

use super::FAST_TIER_FILE;
use crate::manifest::root::Root;
use crate::tier::bytes_of;
use crate::{Error, ErrorKind, Result};

/// Its name in a store's directory.
const FILE: &str = "fast.id";

/// The fast tier's file of a backup that is not finished.
pub(super) const PARTIAL_FILE: &str = "fast.partial";

/// The witness in one directory.
pub(super) struct Witness {
    path: PathBuf,
    found: Option<Vec<u8>>,
}

impl Witness {
    /// Reads the witness in `directory`, if there is one; without a data file beside it, it is all that is left of a store.
    pub(super) fn read(directory: &Path) -> Result<Witness> {
        let path = directory.join(FILE);
        let found = read_small_file(&path)?;
        let witness = Witness { path, found };
        match super::exists(&directory.join(FAST_TIER_FILE)) {
            true => Ok(witness),
            false => witness.lost("is gone").map(|()| witness),
        }
    }

    /// Whether there is one.
    pub(super) fn is_there(&self) -> bool {
        self.found.is_some()
    }

    /// `Corrupted` if the data file is empty or zero and was not always so.
    pub(super) fn check(&self, tier: &Arc<FastTier>) -> Result<()> {
        if self.found.is_some() && Root::load(&bytes_of(Arc::clone(tier))?)?.is_none() {
            return self.lost("is empty, or nothing but zeros");
        }
        Ok(())
    }

    fn lost(&self, how: &str) -> Result<()> {
        let Some(found) = &self.found else { return Ok(()) };
        Err(Error::corrupted(format!(
            "the data file {FAST_TIER_FILE} {how}, but {} is the witness of a store here ({}); delete it, too, to begin anew",
            self.path.display(),
            String::from_utf8_lossy(found).trim()
        )))
    }

    /// Makes the witness say what store there is. For a store that was there before, as well as can be done.
    pub(super) fn keep(&self, store_id: u128, is_new: bool) -> Result<()> {
        let text = format!("hedgerow store {store_id:032x}\n");
        if self.found.as_deref() == Some(text.as_bytes()) {
            return Ok(());
        }
        // PERSIST: the root is durable. The witness is, too, before the caller gets a store to write to.
        match replace_small_file(&self.path, text.as_bytes()) {
            Err(error) if is_new => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// The error for a directory without a store but with a backup that was not finished; `None` if it has none.
pub(super) fn unfinished(directory: &Path) -> Option<Error> {
    let is_unfinished =
        !super::exists(&directory.join(FAST_TIER_FILE)) && super::exists(&directory.join(PARTIAL_FILE));
    is_unfinished.then(|| {
        let place = directory.display();
        let message = format!("{place} holds a backup that was not finished: make it again, and it goes on");
        Error::new(ErrorKind::NotFound, message)
    })
}
