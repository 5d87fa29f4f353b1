//! RocksDB through its crate. Reads pin the block in the cache and hand it on without a copy of their own.
//!
//! Owns its variants, and the bytes of what its merge operator merges: patches one after the other, each
//!
//! ```text
//! 0            4             8
//! | at: u32 LE | bytes: u32 LE | the bytes |
//! ```

use std::path::{Path, PathBuf};

use hedgerow_tool::bench::store::mapping::{Cell, FlatSession, FlatStore, Stripes};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompactionStyle, DBCompressionType, MergeOperands, Options, ReadOptions,
    WaitForCompactOptions, WriteBatch, WriteOptions,
};

use super::{BLOOM_BITS, MEMTABLE_BYTES, Opening, Packing, Safety};

/// How it is set beside what all peers have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Plain,
    /// The cache is half as large again as the rows, so that nothing leaves it while files are rewritten.
    CachesAll,
    /// Blocks are read where the file is mapped, and not copied into the cache.
    Mapped,
    /// Runs of like size are merged whole.
    Universal,
    /// A part of a value is written over by a merge.
    Merges,
}

/// Merges of one key in a memory table before the next one is applied as it is written. Without a bound a read of a row that is
/// updated often would apply thousands.
const MERGES_MAX: usize = 8;

pub(crate) struct RocksDb {
    directory: PathBuf,
    db: DB,
    merges: bool,
    stripes: Stripes,
    safety: Safety,
}

fn text(error: rocksdb::Error) -> String {
    format!("rocksdb: {error}")
}

impl RocksDb {
    pub(crate) fn open(opening: Opening<'_>, variant: Variant) -> Result<RocksDb, String> {
        let rows = opening.records * opening.shape.row_bytes() as u64;
        let cache = if variant == Variant::CachesAll { rows + rows / 2 } else { opening.cache_bytes };
        let mut tables = BlockBasedOptions::default();
        tables.set_block_cache(&Cache::new_lru_cache(cache as usize));
        tables.set_bloom_filter(f64::from(BLOOM_BITS), false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&tables);
        options.set_compression_type(match opening.packing {
            Packing::None => DBCompressionType::None,
            Packing::Lz4 => DBCompressionType::Lz4,
        });
        if variant == Variant::Universal {
            options.set_compaction_style(DBCompactionStyle::Universal);
        }
        options.set_write_buffer_size(MEMTABLE_BYTES as usize);
        options.set_allow_mmap_reads(variant == Variant::Mapped);
        let merges = variant == Variant::Merges;
        if merges {
            options.set_merge_operator("patches", patched, joined);
            options.set_max_successive_merges(MERGES_MAX);
        }
        let db = DB::open(&options, opening.directory).map_err(text)?;
        let directory = opening.directory.to_path_buf();
        Ok(RocksDb { directory, db, merges, stripes: Stripes::default(), safety: opening.safety })
    }
}

/// A patch as it is handed to the merge operator.
fn patch(into: &mut Vec<u8>, at: usize, new: &[u8]) {
    into.clear();
    into.extend_from_slice(&(at as u32).to_le_bytes());
    into.extend_from_slice(&(new.len() as u32).to_le_bytes());
    into.extend_from_slice(new);
}

/// The value with all patches applied, oldest first. None, which RocksDB takes for corruption, where they do not fit it.
fn patched(_key: &[u8], value: Option<&[u8]>, patches: &MergeOperands) -> Option<Vec<u8>> {
    let mut value = value?.to_vec();
    for mut rest in patches {
        while !rest.is_empty() {
            let (at, after) = rest.split_first_chunk::<4>()?;
            let (bytes, after) = after.split_first_chunk::<4>()?;
            let (new, after) = after.split_at_checked(u32::from_le_bytes(*bytes) as usize)?;
            let at = u32::from_le_bytes(*at) as usize;
            value.get_mut(at..at + new.len())?.copy_from_slice(new);
            rest = after;
        }
    }
    Some(value)
}

/// Patches as one: one after the other.
fn joined(_key: &[u8], _none: Option<&[u8]>, patches: &MergeOperands) -> Option<Vec<u8>> {
    Some(patches.iter().flatten().copied().collect())
}

impl FlatStore for RocksDb {
    type Session<'a> = RocksSession<'a>;

    fn session(&self) -> Result<RocksSession<'_>, String> {
        let mut write = WriteOptions::default();
        write.set_sync(self.safety == Safety::Immediate);
        Ok(RocksSession { store: self, read: ReadOptions::default(), write, value: Vec::new() })
    }

    fn settle(&self) -> Result<(), String> {
        self.db.flush().map_err(text)?;
        self.db.wait_for_compact(&WaitForCompactOptions::default()).map_err(text)
    }

    fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(crate) struct RocksSession<'a> {
    store: &'a RocksDb,
    read: ReadOptions,
    write: WriteOptions,
    value: Vec<u8>,
}

impl FlatSession for RocksSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.store.db.put_opt(key, value, &self.write).map_err(text)
    }

    fn put_all<'v>(&mut self, cells: impl Iterator<Item = (Cell, &'v [u8])>) -> Result<(), String> {
        let mut batch = WriteBatch::default();
        cells.for_each(|(cell, value)| batch.put(cell, value));
        self.store.db.write_opt(batch, &self.write).map_err(text)
    }

    fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String> {
        if let Some(value) = self.store.db.get_pinned_opt(key, &self.read).map_err(text)? {
            visit(&value);
        }
        Ok(())
    }

    fn change(&mut self, key: &[u8], change: impl FnOnce(&mut [u8])) -> Result<(), String> {
        let _guard = self.store.stripes.lock(key);
        match self.store.db.get_pinned_opt(key, &self.read).map_err(text)? {
            Some(value) => {
                self.value.clear();
                self.value.extend_from_slice(&value);
            }
            None => return Ok(()),
        }
        change(&mut self.value);
        self.store.db.put_opt(key, &self.value, &self.write).map_err(text)
    }

    fn overwrite(&mut self, key: &[u8], at: usize, new: &[u8]) -> Result<(), String> {
        if !self.store.merges {
            return self.change(key, |value| value[at..at + new.len()].copy_from_slice(new));
        }
        // A change reads and then writes: no merge may come between.
        let _guard = self.store.stripes.lock(key);
        patch(&mut self.value, at, new);
        self.store.db.merge_opt(key, &self.value, &self.write).map_err(text)
    }

    fn walk(&mut self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), String> {
        let mut iterator = self.store.db.raw_iterator_opt(ReadOptions::default());
        iterator.seek(from);
        while let Some((key, value)) = iterator.item() {
            if !visit(key, value) {
                return Ok(());
            }
            iterator.next();
        }
        iterator.status().map_err(text)
    }
}
