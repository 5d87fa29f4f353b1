//! What a store is opened on.
//!
//! Owns [`Tiers`]: the fast tier and, if there is one, the capacity tier. Promises nothing. Must not know what is on them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hedgerow_device::{CapacityTier, FastTier};

/// A fast tier, alone or with a capacity tier. Whoever opens a store gives either: `tier.into()`, or `(tier, capacity).into()`.
#[derive(Debug, Clone)]
pub struct Tiers {
    /// What the log is on.
    pub fast: Arc<FastTier>,
    /// What sorted tables are on; `None` as [`Options::capacity`](crate::Options::capacity) says.
    pub capacity: Option<CapacityTier>,
    /// The store's own directory, if it has one.
    pub(super) directory: Option<PathBuf>,
}

impl Tiers {
    /// The fast tier of the store in `directory`, whose sorted tables are in a directory, too, if anywhere.
    pub(super) fn in_directory(fast: Arc<FastTier>, directory: &Path) -> Tiers {
        Tiers { directory: Some(directory.to_path_buf()), ..fast.into() }
    }
}

impl From<FastTier> for Tiers {
    fn from(fast: FastTier) -> Tiers {
        Tiers::from(Arc::new(fast))
    }
}

impl From<Arc<FastTier>> for Tiers {
    fn from(fast: Arc<FastTier>) -> Tiers {
        Tiers { fast, capacity: None, directory: None }
    }
}

impl From<(FastTier, CapacityTier)> for Tiers {
    fn from((fast, capacity): (FastTier, CapacityTier)) -> Tiers {
        Tiers::from((Arc::new(fast), capacity))
    }
}

impl From<(Arc<FastTier>, CapacityTier)> for Tiers {
    fn from((fast, capacity): (Arc<FastTier>, CapacityTier)) -> Tiers {
        Tiers { fast, capacity: Some(capacity), directory: None }
    }
}
