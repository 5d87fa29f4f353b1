//! LMDB through heed: a transaction per operation; reads look at the mapped pages in place.

// Opening a map is unsafe: the file must not be changed by others.
#![allow(unsafe_code)]

use std::ops::Bound;
use std::path::{Path, PathBuf};

use hedgerow_tool::bench::store::mapping::{Cell, FlatSession, FlatStore};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions};

use super::{Opening, Safety};

pub(crate) struct Lmdb {
    directory: PathBuf,
    env: Env,
    rows: Database<'static, Bytes, Bytes>,
}

fn text(error: heed::Error) -> String {
    format!("lmdb: {error}")
}

impl Lmdb {
    pub(crate) fn open(opening: Opening<'_>) -> Result<Lmdb, String> {
        let data = opening.records as usize * (opening.shape.row_bytes() + 100);
        let mut options = EnvOpenOptions::new();
        options.map_size((16usize << 30).max(data * 8).next_multiple_of(1 << 21));
        if opening.safety == Safety::Process {
            // SAFETY: without syncs a power cut may corrupt the file; a killed process does not, and that is what is
            // measured.
            unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC) };
        }
        // SAFETY: the directory was made for this process and nobody else opens it.
        let env = unsafe { options.open(opening.directory) }.map_err(text)?;
        let transaction = env.write_txn().map_err(text)?;
        let rows = env.create_databases_and_commit(transaction, |opener, transaction| {
            opener.create_database::<Bytes, Bytes>(transaction, None).map(CommitOrAbort::<_, ()>::Commit)
        });
        let rows = rows.map_err(text)?.unwrap_commit();
        Ok(Lmdb { directory: opening.directory.to_path_buf(), env, rows })
    }
}

impl FlatStore for Lmdb {
    type Session<'a> = LmdbSession<'a>;

    fn session(&self) -> Result<LmdbSession<'_>, String> {
        Ok(LmdbSession { store: self, value: Vec::new() })
    }

    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(crate) struct LmdbSession<'a> {
    store: &'a Lmdb,
    value: Vec<u8>,
}

impl FlatSession for LmdbSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let mut transaction = self.store.env.write_txn().map_err(text)?;
        self.store.rows.put(&mut transaction, key, value).map_err(text)?;
        transaction.commit().map_err(text)
    }

    fn put_all<'v>(&mut self, cells: impl Iterator<Item = (Cell, &'v [u8])>) -> Result<(), String> {
        let mut transaction = self.store.env.write_txn().map_err(text)?;
        for (cell, value) in cells {
            self.store.rows.put(&mut transaction, &cell, value).map_err(text)?;
        }
        transaction.commit().map_err(text)
    }

    fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String> {
        let transaction = self.store.env.read_txn().map_err(text)?;
        if let Some(value) = self.store.rows.get(&transaction, key).map_err(text)? {
            visit(value);
        }
        Ok(())
    }

    fn change(&mut self, key: &[u8], change: impl FnOnce(&mut [u8])) -> Result<(), String> {
        let mut transaction = self.store.env.write_txn().map_err(text)?;
        match self.store.rows.get(&transaction, key).map_err(text)? {
            Some(value) => {
                self.value.clear();
                self.value.extend_from_slice(value);
            }
            None => return Ok(()),
        }
        change(&mut self.value);
        self.store.rows.put(&mut transaction, key, &self.value).map_err(text)?;
        transaction.commit().map_err(text)
    }

    fn walk(&mut self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), String> {
        let transaction = self.store.env.read_txn().map_err(text)?;
        let range = (Bound::Included(from), Bound::Unbounded);
        for entry in self.store.rows.range(&transaction, &range).map_err(text)? {
            let (key, value) = entry.map_err(text)?;
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}
