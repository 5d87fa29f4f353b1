//! The door to locks and atomics.
//!
//! Owns the choice of them. Only the backend of rows has any: a device has one owner.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};
