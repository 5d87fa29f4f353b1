//! What a store is opened on.
//!
//! Owns [`Tiers`]: the fast tier and, if there is one, the capacity tier. Promises nothing. Must not know what is on them.

use std::sync::Arc;

use hedgerow_device::{CapacityTier, FastTier};

/// A fast tier, alone or with a capacity tier. Whoever opens a store gives either: `tier.into()`, or `(tier, capacity).into()`.
#[derive(Debug, Clone)]
pub struct Tiers {
    /// What the log is on.
    pub fast: Arc<FastTier>,
    /// What sorted tables are on; `None` as [`Options::capacity`](crate::Options::capacity) says.
    pub capacity: Option<CapacityTier>,
}

impl From<FastTier> for Tiers {
    fn from(fast: FastTier) -> Tiers {
        Tiers::from(Arc::new(fast))
    }
}

impl From<Arc<FastTier>> for Tiers {
    fn from(fast: Arc<FastTier>) -> Tiers {
        Tiers { fast, capacity: None }
    }
}

impl From<(FastTier, CapacityTier)> for Tiers {
    fn from((fast, capacity): (FastTier, CapacityTier)) -> Tiers {
        Tiers { fast: Arc::new(fast), capacity: Some(capacity) }
    }
}

impl From<(Arc<FastTier>, CapacityTier)> for Tiers {
    fn from((fast, capacity): (Arc<FastTier>, CapacityTier)) -> Tiers {
        Tiers { fast, capacity: Some(capacity) }
    }
}
