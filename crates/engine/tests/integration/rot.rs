//! Bytes that rot under an open store.
//!
//! Owns the one store to a medium that no store on it knows of. Must not be called but on the thread that alone uses the store.
#![allow(unsafe_code)]

use hedgerow_device::CrashSim;

/// Flips bits of a byte, as a decayed medium would: for a test, on the thread that alone uses the store.
pub(crate) fn rot(medium: &CrashSim, offset: u64, xor: u8) {
    // SAFETY: that thread is here. The store has no loops of its own (`Options::background` is off), and a test holds no row meanwhile.
    unsafe { medium.corrupt(offset, xor) };
}
