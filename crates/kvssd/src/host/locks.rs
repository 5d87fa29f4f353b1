//! The door to the locks of queues.
//!
//! Owns the choice between the standard library and `shuttle` (under `cfg(shuttle)`, where a scheduler picks every interleaving). Promises the same names and meaning in both. Must not know who uses it.

#[cfg(not(shuttle))]
pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(shuttle)]
pub(super) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};

pub(super) use std::sync::PoisonError;
