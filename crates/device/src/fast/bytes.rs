//! The bytes of a tier, to whoever may load and store them.
//!
//! Owns [`TierBytes`]: all ways to a tier's bytes but the mapping itself. Promises that a tier has one at a time, so that what its holder
//! promised is promised for all bytes of the tier. Must not know what the bytes mean.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Backing, FastTier, Medium, PAGE_BYTES_MIN, out_of_range};
use crate::error::{DeviceError, Result};
use crate::fault::CrashModel;
use crate::relaxed::SharedBytes;

/// The bytes of a tier, to whoever may load and store them: [`FastTier`] itself has no way to them. There is one at a time, and its clones.
///
/// Its methods are safe, though wrong offsets would be undefined behaviour: that they are right was promised once, to [`TierBytes::new`].
/// Whoever made it lends it to nobody who does not keep the rules.
#[derive(Debug, Clone)]
pub struct TierBytes {
    tier: Arc<FastTier>,
    /// Last: it ends when nobody can load or store any more.
    _lease: Arc<Lease>,
}

/// That a tier's bytes are given out.
#[derive(Debug)]
struct Lease(Arc<FastTier>);

impl Drop for Lease {
    fn drop(&mut self) {
        // What was done with the bytes comes before what the next holder does.
        self.0.backing.mapping().lease().store(false, Ordering::Release);
    }
}

impl TierBytes {
    /// The way to the bytes of `tier`.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] while there is another, or a clone of it: of `tier`, or of another tier over the same simulated medium.
    ///
    /// # Safety
    /// Slices of the tier are handed out, and so the holder keeps these rules, for as long as a clone or a slice is used:
    /// 1. Whoever calls [`TierBytes::write`], [`TierBytes::write_apart`], [`TierBytes::release`],
    ///    [`TierBytes::populate_for_small_syncs`] or [`TierBytes::rewrite`] (which takes the whole page that its range begins in) owns the
    ///    range: no other thread reads or writes any byte of it until the writer has
    ///    published it by some release operation (an index slot, a queue, [`TierBytes::store_u64`] elsewhere).
    /// 2. A slice from [`TierBytes::read`] and its like is dropped before its bytes are handed to such a call again (epochs see to that).
    /// 3. A word that changes while others look at it is touched only by [`TierBytes::load_u64`] and [`TierBytes::store_u64`].
    /// 4. [`TierBytes::patch`] and [`TierBytes::store_u32`] change bytes that others look at, word by word. They look at them as [`SharedBytes`]
    ///    ([`TierBytes::try_view`]) and believe none of them before a checksum has been compared; a slice of such bytes, from [`TierBytes::read`] and its like or
    ///    [`SharedBytes::frozen`], nobody has.
    /// 5. What is under the tier, a file, is stored to in no other way, by no process, and not cut short.
    /// 6. Of a tier that was opened for reading only nobody calls [`TierBytes::load_u64`]: the language has no acquire loads of such memory.
    pub unsafe fn new(tier: Arc<FastTier>) -> Result<TierBytes> {
        if tier.backing.mapping().lease().swap(true, Ordering::Acquire) {
            let path = tier.path().unwrap_or(Path::new("memory")).to_path_buf();
            return Err(DeviceError::Locked { path, holder: "another store of this process".into() });
        }
        Ok(TierBytes { _lease: Arc::new(Lease(Arc::clone(&tier))), tier })
    }
}

/// Where the pages begin that `offset..end` lies in.
fn pages_of(offset: u64, end: u64) -> impl Iterator<Item = u64> {
    (offset - offset % PAGE_BYTES_MIN..end).step_by(PAGE_BYTES_MIN as usize)
}

#[cfg(test)]
impl FastTier {
    /// For tests, which keep the rules each for itself.
    pub(crate) fn into_bytes(self) -> TierBytes {
        // SAFETY: a test uses its tier on one thread, or says what the others may touch.
        unsafe { TierBytes::new(Arc::new(self)) }.expect("a tier that was just opened")
    }
}

impl Deref for TierBytes {
    type Target = FastTier;

    #[inline(always)]
    fn deref(&self) -> &FastTier {
        &self.tier
    }
}

impl TierBytes {
    /// The `len` bytes at `offset`, to which nobody stores while they are looked at (rules 1 and 4 of [`TierBytes::new`]); `None` where they
    /// do not all exist.
    #[inline]
    pub fn try_read(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let end = offset.checked_add(len as u64)?;
        if end > self.bytes() {
            return None;
        }
        // SAFETY: offset..end is mapped, since it lies below the grown length, and stays so while `self` lives. No one
        // writes it meanwhile, by rules 1, 2 and 4 of `TierBytes::new`.
        let bytes = unsafe { slice::from_raw_parts(self.base.as_ptr().add(offset as usize), len) };
        if self.slow_reads {
            self.delay_read(bytes);
        }
        Some(bytes)
    }

    /// The words in the `len` bytes at `offset`, some of which others may store to ([`TierBytes::patch`], [`TierBytes::store_u32`]) while they
    /// are looked at; `None` where the bytes do not all exist, or `offset` is no multiple of 8. Who looks at some of them is charged for those on a
    /// slow medium, as it says that it does ([`SharedBytes::touch`]).
    #[inline]
    pub fn try_view(&self, offset: u64, len: usize) -> Option<&SharedBytes> {
        let end = offset.checked_add(len as u64)?;
        if end > self.bytes() || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: offset..end is mapped, since it lies below the grown length, and stays so while `self` lives; the base is page-aligned. By rules 1
        // to 4 of `TierBytes::new` others store there by atomics only, of 4 bytes only where they are read as 4, and what is asked for as frozen is.
        Some(unsafe { SharedBytes::from_raw(self.base.as_ptr().add(offset as usize).cast(), len / 8) })
    }

    #[cold]
    fn delay_read(&self, bytes: &[u8]) {
        if let Some(emulation) = &self.emulation {
            emulation.read(bytes.as_ptr() as u64, bytes.len() as u64);
        }
    }

    /// The `len` bytes at `offset`.
    ///
    /// # Panics
    /// They all exist. Where that is not sure, use [`TierBytes::try_read`].
    #[inline]
    pub fn read(&self, offset: u64, len: usize) -> &[u8] {
        match self.try_read(offset, len) {
            Some(bytes) => bytes,
            None => out_of_range(offset, len as u64, self.bytes()),
        }
    }

    /// Hands the `len` bytes at `offset` to `fill`, to be written in place; they hold whatever was there. The caller owns
    /// the range (rule 1 of [`TierBytes::new`]) and publishes it after `write` has returned. Durable with the next `persist`.
    ///
    /// # Panics
    /// They all exist, and the tier was not opened for reading only.
    #[inline]
    pub fn write<R>(&self, offset: u64, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        self.check_writable(offset, len as u64);
        // SAFETY: offset..offset + len is mapped for writing (checked above) while `self` lives; by rules 1 and 2 of
        // `TierBytes::new` no other slice over these bytes is alive.
        let bytes = unsafe { slice::from_raw_parts_mut(self.base.as_ptr().add(offset as usize), len) };
        let result = fill(bytes);
        if self.watched_writes {
            self.watch_write(offset, bytes);
        }
        result
    }

    /// [`TierBytes::write`] of a few bytes that lie among others which do not change, as a header does: on a file in the page cache
    /// the next sync writes the block they lie in, and not what else of the file the kernel holds in one piece with it.
    ///
    /// # Panics
    /// As [`TierBytes::write`].
    pub fn write_apart(&self, offset: u64, bytes: &[u8]) {
        self.check_writable(offset, bytes.len() as u64);
        if let Backing::File(file) = &self.backing
            && self.medium == Medium::PageCache
            && !self.watched_writes
            && file.store_apart(offset, bytes)
        {
            return;
        }
        self.write(offset, bytes.len(), |out| out.copy_from_slice(bytes));
    }

    #[cold]
    fn watch_write(&self, offset: u64, bytes: &[u8]) {
        if let Backing::Simulated(sim) = &self.backing {
            sim.record_store(offset, bytes);
        }
        if let Some(emulation) = &self.emulation {
            emulation.write(bytes.as_ptr() as u64, bytes.len() as u64);
        }
    }

    /// The little-endian word at `offset`, with acquire ordering.
    ///
    /// # Panics
    /// The word exists and `offset` is a multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> u64 {
        let bytes = self.bytes();
        if !offset.is_multiple_of(8) || offset.saturating_add(8) > bytes {
            out_of_range(offset, 8, bytes);
        }
        let word = self.word(offset);
        if let Some(emulation) = &self.emulation {
            emulation.read(word.as_ptr() as u64, 8);
        }
        u64::from_le(word.load(Ordering::Acquire))
    }

    /// Stores `value`, little-endian, as the word at `offset`: one store that no crash tears, with release ordering.
    ///
    /// # Panics
    /// The word exists, `offset` is a multiple of 8 and the tier was not opened for reading only.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) {
        self.check_writable(offset, 8);
        if !offset.is_multiple_of(8) {
            out_of_range(offset, 8, self.bytes());
        }
        let word = self.word(offset);
        if self.watched_writes {
            self.watch_store_u64(offset, word, value);
        } else {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Writes `bytes` over those at `offset` in stores of whole words: whoever reads meanwhile, and whatever a crash
    /// leaves, has every aligned word either old or new. One caller at a time for the words touched; what else is in them is stored
    /// as it was. Durable with the next `persist`.
    ///
    /// # Panics
    /// As [`TierBytes::write`].
    pub fn patch(&self, offset: u64, bytes: &[u8]) {
        self.check_writable(offset, bytes.len() as u64);
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let (word, skip) = (at & !7, (at & 7) as usize);
            let (now, later) = rest.split_at(rest.len().min(8 - skip));
            let mut merged = self.word(word).load(Ordering::Relaxed).to_ne_bytes();
            merged[skip..skip + now.len()].copy_from_slice(now);
            self.store_u64(word, u64::from_le_bytes(merged));
            at += now.len() as u64;
            rest = later;
        }
    }

    /// Stores `value`, little-endian, in the four bytes at `offset`: one store that no crash tears, with release ordering. What else is
    /// in their word is left alone, and may be read by plain loads meanwhile.
    ///
    /// # Panics
    /// They exist, `offset` is a multiple of 4 and the tier was not opened for reading only.
    pub fn store_u32(&self, offset: u64, value: u32) {
        self.check_writable(offset, 4);
        if !offset.is_multiple_of(4) {
            out_of_range(offset, 4, self.bytes());
        }
        // SAFETY: mapped (checked above) while `self` lives; aligned, since the base is page-aligned and the offset a multiple of 4;
        // others touch the bytes meanwhile by atomics of this size only (see `TierBytes::new`).
        let half: &AtomicU32 = unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset as usize).cast()) };
        let store = || half.store(value.to_le(), Ordering::Release);
        match &self.backing {
            Backing::Simulated(sim) => sim.record_atomic(offset, &value.to_le_bytes(), store),
            _ => store(),
        }
        if let Some(emulation) = &self.emulation {
            emulation.write(self.base.as_ptr() as u64 + offset, 4);
        }
    }

    #[cold]
    fn watch_store_u64(&self, offset: u64, word: &AtomicU64, value: u64) {
        if let Backing::Simulated(sim) = &self.backing {
            sim.record_atomic(offset, &value.to_le_bytes(), || word.store(value.to_le(), Ordering::Release));
        } else {
            word.store(value.to_le(), Ordering::Release);
        }
        if let Some(emulation) = &self.emulation {
            emulation.write(self.base.as_ptr() as u64 + offset, 8);
        }
    }

    /// The callers checked that the word exists and is aligned.
    #[inline]
    fn word(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: mapped (checked by the callers) while `self` lives; aligned, since the base is page-aligned and the offset
        // a multiple of 8; by rule 3 of `TierBytes::new` the word is touched only as an atomic while it is shared.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset as usize).cast()) }
    }

    /// Has the next persist write all pages of `offset..offset + len`, as if they had been stored to; no value changes. The caller owns
    /// them (rule 1 of [`TierBytes::new`]): to whoever reads meanwhile a store is a store.
    /// After a write-back that failed the kernel takes a page for clean that never reached the medium:
    /// what an earlier process left is durable after a sync only if it was stored to again. Nothing at all where there is no
    /// page cache.
    ///
    /// # Panics
    /// The tier was not opened for reading only.
    pub fn rewrite(&self, offset: u64, len: u64) {
        if !self.rewrite_beside_readers(offset, len) {
            self.rewrite_words(offset, len, |_, _| false);
        }
    }

    /// [`TierBytes::rewrite`] that stores nothing, so that others may read the bytes meanwhile. False where the system cannot do it
    /// (Linux before 5.14): then some of the pages may be clean still.
    ///
    /// # Panics
    /// As [`TierBytes::rewrite`].
    pub fn rewrite_beside_readers(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len).min(self.bytes());
        if !self.has_page_cache() || offset >= end {
            return true;
        }
        self.check_writable(offset, end - offset);
        match &self.backing {
            Backing::File(file) => file.rewrite(offset, end),
            Backing::Simulated(sim) => {
                for page in pages_of(offset, end).filter(|page| page + 8 <= self.bytes()) {
                    sim.record_again(page, || self.word(page).load(Ordering::Relaxed).to_ne_bytes());
                }
                true
            }
            Backing::Dram(_) => true,
        }
    }

    /// [`TierBytes::rewrite`] of a few bytes at the beginning of a page, no more than a file system's smallest block, behind which the disk may have been given back what is there, as a header's: a store through the mapping takes blocks for all that the kernel holds in one piece with its
    /// page, and where a full disk has none, ends the process.
    ///
    /// # Panics
    /// As [`TierBytes::rewrite`].
    pub fn rewrite_apart(&self, offset: u64, len: u64) {
        self.rewrite_words(offset, len, |at, word| match &self.backing {
            Backing::File(file) if !self.watched_writes => file.store_apart(at, &word.to_le_bytes()),
            _ => false,
        });
    }

    /// Stores a word of every page over itself: by `apart` if that says that it did, else through the mapping.
    fn rewrite_words(&self, offset: u64, len: u64, apart: impl Fn(u64, u64) -> bool) {
        let end = offset.saturating_add(len).min(self.bytes());
        if !self.has_page_cache() || offset >= end {
            return;
        }
        self.check_writable(offset, end - offset);
        for page in pages_of(offset, end).filter(|page| page + 8 <= self.bytes()) {
            let word = self.word(page);
            let value = u64::from_le(word.load(Ordering::Relaxed));
            if apart(page, value) {
                continue;
            }
            if self.watched_writes {
                self.watch_store_u64(page, word, value);
            } else {
                // SAFETY: the place of an atomic that is borrowed, and nobody else's by rule 1. Volatile, or it might be left out: it
                // changes nothing.
                unsafe { word.as_ptr().write_volatile(value.to_le()) };
            }
        }
    }

    /// Whether [`TierBytes::rewrite_beside_readers`] does anything here: tries it with the first page.
    pub fn can_rewrite_beside_readers(&self) -> bool {
        self.rewrite_beside_readers(0, 1)
    }

    fn has_page_cache(&self) -> bool {
        match &self.backing {
            Backing::File(_) => self.medium == Medium::PageCache,
            Backing::Simulated(sim) => sim.model() == CrashModel::Pages,
            Backing::Dram(_) => false,
        }
    }

    /// Gives the disk or the memory behind `offset..offset + len`, whole pages, back; the bytes read as zeros from now on,
    /// and no one may store to them before [`FastTier::allocate`]. The caller owns the range (rule 1 of [`TierBytes::new`]). After a
    /// crash each page may hold what it held before, or zeros. False, and nothing happens, where the medium cannot do it.
    pub fn release(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len).min(self.bytes());
        if self.read_only || offset >= end {
            return false;
        }
        match &self.backing {
            Backing::File(file) => file.release(offset, end),
            // SAFETY: by rule 1 the range is the caller's, and nobody refers to it.
            Backing::Dram(mapping) => unsafe { mapping.release_memory(offset, end) },
            Backing::Simulated(sim) => {
                sim.release(offset, end);
                true
            }
        }
    }

    /// [`populate`](FastTier::populate) for bytes, which nobody refers to or stores to, where records will be synced one by one:
    /// nothing becomes dirty. With `anew` their blocks are written once, so that a sync need not tell the file system that they
    /// are, and a sync will write the pages that were stored to, and not the larger pieces in which the kernel reads a file ahead
    /// (what is on the medium is read again). On a file in the page cache; elsewhere it is `populate`.
    pub fn populate_for_small_syncs(&self, offset: u64, len: u64, anew: bool) {
        let end = offset.saturating_add(len).min(self.bytes());
        match &self.backing {
            Backing::File(file) if self.medium == Medium::PageCache && !self.read_only && offset < end => {
                if anew {
                    file.write_through(offset, end);
                    file.make_pages_small(offset, end);
                }
                file.mapping().populate_clean(offset, end);
            }
            _ => self.populate(offset, len),
        }
    }
}
