//! RocksDB through its crate. Reads pin the block in the cache and hand it on without a copy of their own.

use std::path::{Path, PathBuf};

use hedgerow_tool::bench::store::mapping::{Cell, FlatSession, FlatStore, Stripes};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Options, ReadOptions, WaitForCompactOptions, WriteBatch,
    WriteOptions,
};

use super::{BLOOM_BITS, CACHE_BYTES, MEMTABLE_BYTES, Opening, Safety};

pub(crate) struct RocksDb {
    directory: PathBuf,
    db: DB,
    stripes: Stripes,
    safety: Safety,
}

fn text(error: rocksdb::Error) -> String {
    format!("rocksdb: {error}")
}

impl RocksDb {
    pub(crate) fn open(opening: Opening<'_>) -> Result<RocksDb, String> {
        let mut tables = BlockBasedOptions::default();
        tables.set_block_cache(&Cache::new_lru_cache(CACHE_BYTES as usize));
        tables.set_bloom_filter(f64::from(BLOOM_BITS), false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_block_based_table_factory(&tables);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(MEMTABLE_BYTES as usize);
        let db = DB::open(&options, opening.directory).map_err(text)?;
        let directory = opening.directory.to_path_buf();
        Ok(RocksDb { directory, db, stripes: Stripes::default(), safety: opening.safety })
    }
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
