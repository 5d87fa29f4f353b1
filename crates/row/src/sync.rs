//! The door to locks and atomics.
//!
//! Owns the choice of them. Few have one: the backend in memory, and what the attempts at a store of pairs share.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use parking_lot::Mutex;
