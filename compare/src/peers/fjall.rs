//! fjall through its crate. Values read are reference-counted slices of the cached block.

use std::path::{Path, PathBuf};

use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use hedgerow_tool::bench::store::mapping::{Cell, FlatSession, FlatStore, Stripes};

use super::{BLOOM_BITS, MEMTABLE_BYTES, Opening, Packing, Safety};

pub(crate) struct Fjall {
    directory: PathBuf,
    database: Database,
    rows: Keyspace,
    stripes: Stripes,
    safety: Safety,
}

fn text(error: fjall::Error) -> String {
    format!("fjall: {error}")
}

impl Fjall {
    pub(crate) fn open(opening: Opening<'_>) -> Result<Fjall, String> {
        let database =
            Database::builder(opening.directory).cache_size(opening.cache_bytes).open().map_err(text)?;
        let bloom = BloomConstructionPolicy::BitsPerKey(f32::from(BLOOM_BITS));
        let compression = match opening.packing {
            Packing::None => CompressionType::None,
            Packing::Lz4 => CompressionType::Lz4,
        };
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .data_block_compression_policy(CompressionPolicy::all(compression))
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(bloom)))
        };
        let rows = database.keyspace("rows", options).map_err(text)?;
        let directory = opening.directory.to_path_buf();
        Ok(Fjall { directory, database, rows, stripes: Stripes::default(), safety: opening.safety })
    }

    /// A write has reached the operating system when it returns; on disk it is after this.
    fn sync(&self) -> Result<(), String> {
        match self.safety {
            Safety::Process => Ok(()),
            Safety::Immediate => self.database.persist(PersistMode::SyncData).map_err(text),
        }
    }
}

impl FlatStore for Fjall {
    type Session<'a> = FjallSession<'a>;

    fn session(&self) -> Result<FjallSession<'_>, String> {
        Ok(FjallSession { store: self, value: Vec::new() })
    }

    fn settle(&self) -> Result<(), String> {
        self.rows.rotate_memtable_and_wait().map_err(text)
    }

    fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(crate) struct FjallSession<'a> {
    store: &'a Fjall,
    value: Vec<u8>,
}

impl FlatSession for FjallSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.store.rows.insert(key, value).map_err(text)?;
        self.store.sync()
    }

    fn put_all<'v>(&mut self, cells: impl Iterator<Item = (Cell, &'v [u8])>) -> Result<(), String> {
        let mut batch = self.store.database.batch();
        cells.for_each(|(cell, value)| batch.insert(&self.store.rows, cell, value));
        batch.commit().map_err(text)?;
        self.store.sync()
    }

    fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String> {
        if let Some(value) = self.store.rows.get(key).map_err(text)? {
            visit(&value);
        }
        Ok(())
    }

    fn change(&mut self, key: &[u8], change: impl FnOnce(&mut [u8])) -> Result<(), String> {
        let _guard = self.store.stripes.lock(key);
        match self.store.rows.get(key).map_err(text)? {
            Some(value) => {
                self.value.clear();
                self.value.extend_from_slice(&value);
            }
            None => return Ok(()),
        }
        change(&mut self.value);
        self.store.rows.insert(key, self.value.as_slice()).map_err(text)?;
        self.store.sync()
    }

    fn walk(&mut self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), String> {
        for entry in self.store.rows.range(from..) {
            let (key, value) = entry.into_inner().map_err(text)?;
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
