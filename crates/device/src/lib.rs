//! Bytes at rest.
//!
//! This crate is everything Hedgerow knows about the machine below it: the fast tier on its media, the files of the capacity tier, checksums, the clock,
//! random numbers and threads, and a medium that simulates crashes. It knows nothing of rows. Together with the engine's
//! index it is the only place with `unsafe` code, and every ordering that durability rests on is marked `PERSIST:`.
//!
//! # What the media promise
//!
//! A store is first *visible* (to this process), then *kept* (if the process is killed), then *durable* (if the power goes).
//! [`FastTier::persist`] makes durable what was stored to a range before it.
//!
//! | medium | a store is kept | a store is durable | what `persist` does | stores may become durable |
//! |---|---|---|---|---|
//! | [`Medium::PageCache`] | at once: the page cache outlives the process | with `persist` | `msync(MS_SYNC)` of the range, which is `fdatasync` limited to it: pages, file length and block map reach the device, whose cache is flushed | by the page, in any order, at any time; torn between 512-byte sectors |
//! | [`Medium::PersistentMemory`] | at once: processor caches outlive the process | with `persist` | `clwb` (or `clflushopt`, `clflush`; `dc cvap`) of the range's lines, then a fence; no system call | by the 64-byte line, in any order; within a line in store order; 8-byte aligned stores whole |
//! | [`Medium::Dram`] | never | never | nothing | never |
//! | [`Medium::Emulated`] | as its base | never for sure | write-back of the lines and a fence, for their cost; of everything stored, the time that this would take | as its base |
//! | [`Medium::Simulated`] | as [`CrashModel`] says | with `persist` | notes it | as [`CrashModel`] says |
//!
//! Assumed, and not checked: the device honours its flush command; the kernel reports a failed write-back to the next
//! sync of the same open file (Linux since 4.13); persistent memory has ADR, so that its write queue drains when the power
//! goes; no one cuts the file short while it is mapped (a read of the missing part would be a SIGBUS); allocated
//! blocks stay allocated (a copy-on-write file system with snapshots breaks this: a write-back may find it full, which
//! `persist` reports). A medium's read error also arrives as SIGBUS, as with every mapped file.
//!
//! After a failed `persist` the range's bytes may never become durable, however often one tries again: the kernel may have
//! dropped them as clean. So the first failure is final: every later `persist`, one that is under way, and growth are refused
//! ([`DeviceError::Closed`]), and what is on the medium is for the next process to recover.
//!
//! **A full disk** is found in [`FastTier::grow`], which allocates blocks before it maps them, and is
//! [`DeviceError::Full`]: below the grown length there is never a store without a block behind it. Of a file on disk, though, what
//! it held when it was opened may be a sparse copy, and what was [released](TierBytes::release) has no blocks: [`FastTier::allocate`]
//! comes first there.
//!
//! **A new file** has its directory synced when it is made, and so have the directories that [`create_directories`] makes, so
//! that a power cut cannot take the whole tier.
//!
//! **Files of the capacity tier** ([`CapacityTier`]) are written once, front to back, past the page cache, and then only read. A file is durable when it is
//! finished, its name when the names are synced. A failed sync of one says nothing of the others and closes nothing: the file is of no use, and that is all.
//! Simulated, they are in the log of the simulated fast tier: one crash cuts both at one moment.
//!
//! **Addresses are stable.** The tier reserves its whole address space at once and maps the file into it from the front.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use hedgerow_device::{FastTier, FastTierOptions, TierBytes};
//!
//! let directory = std::env::temp_dir().join(format!("hedgerow-doc-{}", std::process::id()));
//! std::fs::create_dir_all(&directory)?;
//! let tier = FastTier::open_file(&directory.join("fast"), &FastTierOptions::default(), true)?;
//! tier.grow(1 << 20)?;
//! // SAFETY: this thread alone uses the tier, and holds no slice of it while it writes.
//! let bytes = unsafe { TierBytes::new(Arc::new(tier)) }?;
//! bytes.write(4096, 5, |place| place.copy_from_slice(b"hedge"));
//! bytes.persist(4096, 5)?;
//! assert_eq!(bytes.read(4096, 5), b"hedge");
//! # drop(bytes);
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, reason = "this crate is the door that the ban list points to")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("hedgerow-device is written for 64-bit Linux");

mod agenda;
mod allocations;
mod arena;
mod capacity;
mod checksum;
mod clock;
mod copy;
mod emulate;
mod error;
mod event_fd;
mod fast;
mod fault;
mod faults;
mod file;
mod flush;
mod machine;
mod map;
mod memory;
mod pages;
mod prefetch;
mod random;
mod relaxed;
mod shared_copy;
mod sync;
mod zeroed;

pub use agenda::Agenda;
pub use allocations::{CountingAllocator, allocations};
pub use arena::Arena;
pub use capacity::{
    AllocatedFile, CAPACITY_PAGE_BYTES, CapacityFile, CapacityTier, FileRead, NewFile, ReadsInTurn, WritePath,
};
pub use checksum::{crc32c, crc32c_blocks};
pub use clock::Clock;
pub use copy::{
    CopyFile, CopyStep, CrashDirectory, DirectoryLock, append_to_file, link_file, make_directory, names_in,
    read_small_file, record_copy, remove_file, rename_file, replace_small_file,
};
pub use emulate::{EmulatedLatency, PersistentMemoryModel, any_emulated};
pub use error::{DeviceError, Result, SyncFailure};
pub use event_fd::EventFd;
pub use fast::{EmulatedBase, ExclusiveTier, FastTier, FastTierOptions, Medium, TierBytes};
pub use fault::{CrashModel, CrashSim, CrashWalk, Fault, FileCall, Image, Refusal, Survivors, SyncOf};
pub use faults::major_faults;
pub use file::create_directories;
pub use machine::{boot_id, limit_threads, make_parts, share_work, spawn};
pub use memory::{available_memory_bytes, memory_bytes};
pub use prefetch::prefetch;
pub use random::Random;
pub use relaxed::{CopiedBlocks, OwnedBytes, SharedBytes};
pub use shared_copy::SharedCopy;
pub use zeroed::zeroed_words;
