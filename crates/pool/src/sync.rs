//! The door to locks and atomics.
//!
//! Owns the choice of them. Only a compute node's callers share anything with its thread: machines have one owner.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};
