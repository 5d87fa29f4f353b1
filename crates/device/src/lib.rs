//! Bytes at rest. INTERIM.
/// The fast tier.
pub struct FastTier(());
