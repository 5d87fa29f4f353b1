//! Sorted tables: rows that left the log, in files of the capacity tier, written once and never changed.
//!
//! Owns the files' bytes, their writing, and looking keys up in them. Promises that what a reader gets was verified since it left the disk, and
//! that a file is either whole or refused by name. Must not know slots, the index, which files count, or what a row means.
//!
//! * `sst/format.rs`: every byte, with the picture.
//! * `sst/filter.rs`: the split-block Bloom filter.
//! * `sst/writer.rs`: a file from records in key order.
//! * `sst/block.rs`: blocks in memory, and the cache of those that were verified.
//! * `sst/reader.rs`: a file that is looked into. `sst/block_reads.rs`: without waiting, or many at a time. `sst/cursor.rs`: one that is walked. `sst/salvage.rs`: one that is damaged. `sst/look_counts.rs`: what looks cost. `sst/first_reads.rs`: which blocks are read for the first time. `sst/key_prefixes.rs`: a search among keys that lie anywhere. `sst/file_reads.rs`: which files memory is to have all of. `sst/record_cache.rs`: records that are found by their key, without a look into files.

pub use crate::options::Compression;
pub use block::BlockCache;
pub use block_reads::{BlockReads, SstLook, WalkBlocks};
pub(crate) use block_reads::{CachedLook, DataPages, LooksBeside, not_at_hand};
pub use cursor::SstCursor;
pub use format::{SstCounts, SstId, SstTable, composite_key};
pub(crate) use format::{is_foreign_header, store_in_header};
pub(crate) use key_prefixes::KeyPrefixes;
pub(crate) use look_counts::LookCounts;
pub(crate) use reader::FoundRecords;
pub use reader::{FoundRecord, Sst, SstKey};
pub(crate) use record_cache::RecordCache;
pub(crate) use salvage::{KeyGap, SstLeft, SstSalvage, after};
pub use writer::{SstOptions, SstRecord, SstRecordKind, SstWriter};

mod block;
mod block_reads;
mod bounds;
mod cursor;
mod file_reads;
mod filter;
mod first_reads;
mod format;
mod key_prefixes;
mod look_counts;
mod reader;
mod record_cache;
mod salvage;
mod writer;

#[cfg(test)]
mod tests;
