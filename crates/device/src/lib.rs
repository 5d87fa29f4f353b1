//! Bytes at rest. INTERIM.
/// The fast tier.
pub struct FastTier(());
mod arena;
pub use arena::Arena;
