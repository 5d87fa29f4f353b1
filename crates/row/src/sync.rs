//! The door to locks.
//!
//! Owns the choice of them. Only the backend in memory has one; all else here that threads share never changes.

pub(crate) use parking_lot::Mutex;
