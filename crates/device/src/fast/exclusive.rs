//! The bytes of a tier that one owner has to himself.
//!
//! Owns [`ExclusiveTier`], the way to a tier's bytes for code without `unsafe`. Promises that the rules of [`TierBytes::new`] are kept whatever its owner
//! does: the borrow checker keeps them. Must not know what the bytes mean.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::sync::Arc;

use super::{FastTier, TierBytes};
use crate::error::Result;

/// A tier whose bytes nobody else has: slices of it borrow it, and whoever stores borrows it alone. So all its methods are safe, where those of
/// [`TierBytes`] rest on a promise. For stores that one thread works on at a time.
#[derive(Debug)]
pub struct ExclusiveTier {
    bytes: TierBytes,
}

impl ExclusiveTier {
    /// Takes the bytes of `tier`.
    ///
    /// # Errors
    /// [`DeviceError::Locked`](crate::DeviceError::Locked) where another tier over the same simulated medium has them.
    pub fn new(tier: FastTier) -> Result<ExclusiveTier> {
        // SAFETY: the rules of `TierBytes::new`, by their numbers. The bytes are in a private field, are never cloned or lent, and of their methods
        // only those below are called.
        // 1. Who stores has `&mut self`: no other thread, and no slice, has any of the bytes then.
        // 2. Slices borrow `self`, and end before the next `&mut self` begins.
        // 3., 4. Nobody reads while a word is stored: `store_u64` takes `&mut self`, too. `patch` and `store_u32` are not called.
        // 5. A file has a lock, which every tier asks for. Against programs that ask for none there is no help.
        // 6. `load_u64` is not called.
        let bytes = unsafe { TierBytes::new(Arc::new(tier)) }?;
        Ok(ExclusiveTier { bytes })
    }

    /// The `len` bytes at `offset`; `None` where they do not all exist.
    #[inline]
    pub fn try_read(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.bytes.try_read(offset, len)
    }

    /// Hands the `len` bytes at `offset` to `fill`, to be written in place; they hold whatever was there. Durable with the next persist.
    ///
    /// # Panics
    /// They all exist, and the tier was not opened for reading only.
    #[inline]
    pub fn write<R>(&mut self, offset: u64, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        self.bytes.write(offset, len, fill)
    }

    /// Stores `value`, little-endian, as the word at `offset`: one store that no crash tears, after all that was stored before it.
    ///
    /// # Panics
    /// The word exists, `offset` is a multiple of 8 and the tier was not opened for reading only.
    #[inline]
    pub fn store_u64(&mut self, offset: u64, value: u64) {
        self.bytes.store_u64(offset, value);
    }

    /// Has the next persist write all of the pages, changing nothing: what an earlier process left is durable only then.
    ///
    /// # Panics
    /// The tier was not opened for reading only.
    pub fn rewrite(&mut self, offset: u64, len: u64) {
        self.bytes.rewrite(offset, len);
    }
}

/// What needs none of the bytes: length, growth, persisting, the medium.
impl Deref for ExclusiveTier {
    type Target = FastTier;

    #[inline(always)]
    fn deref(&self) -> &FastTier {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{CrashModel, CrashSim};
    use crate::{DeviceError, FastTierOptions};

    #[test]
    fn an_owner_reads_what_he_stored() {
        let mut tier = ExclusiveTier::new(FastTier::dram(&FastTierOptions::default()).unwrap()).unwrap();
        tier.grow(8192).unwrap();
        tier.write(4096, 3, |bytes| bytes.copy_from_slice(b"row"));
        tier.store_u64(4104, 7);
        tier.rewrite(4096, 16);
        assert_eq!(tier.try_read(4096, 3), Some(&b"row"[..]));
        assert_eq!(tier.try_read(4104, 8), Some(&7u64.to_le_bytes()[..]));
        assert_eq!(tier.try_read(8190, 3), None);
        tier.persist(4096, 16).unwrap();
    }

    #[test]
    fn of_two_owners_one_is_refused() {
        let sim = CrashSim::new(CrashModel::Pages, 1 << 20);
        let first = ExclusiveTier::new(FastTier::simulated(&sim)).unwrap();
        let second = ExclusiveTier::new(FastTier::simulated(&sim));
        assert!(matches!(second, Err(DeviceError::Locked { .. })), "{second:?}");
        drop(first);
        ExclusiveTier::new(FastTier::simulated(&sim)).unwrap();
    }
}
