//! Bf-Tree through its crate (VLDB 2024): a B-tree that caches records in mini pages, not pages. A value is copied to the caller's buffer by each read.
//!
//! Its log makes each write wait for the next flush, a millisecond at most: with `Process` durability it runs **without**, so that nothing survives a killed process, which is to
//! its advantage. Several cells of a row are written one by one: it has no batches.

use std::path::{Path, PathBuf};

use bf_tree::{BfTree as Tree, Config, LeafInsertResult, LeafReadResult, ScanReturnField};
use hedgerow_tool::bench::row::KEY_BYTES;
use hedgerow_tool::bench::store::mapping::{Cell, FlatSession, FlatStore, Stripes};

use super::{Opening, Safety};

/// What its pages may be, at least and at most.
const PAGE_BYTES: [usize; 2] = [4096, 32768];
/// What a page holds besides two of the longest records.
const PAGE_ROOM: usize = 512;
/// The longest key, of a cell; and the shortest record that the largest page may hold.
const CELL_BYTES: usize = KEY_BYTES + 1;
const RECORD_BYTES_MIN: usize = 16;
/// Bytes of offsets and names beside the fields of a row that is one value, for each field and in all.
const OFFSET_BYTES: [usize; 2] = [2, 64];
/// Records that one step of a walk asks for.
const STEP: usize = 128;

pub(crate) struct BfTree {
    directory: PathBuf,
    tree: Tree,
    record_bytes_max: usize,
    stripes: Stripes,
}

impl BfTree {
    pub(crate) fn open(opening: Opening<'_>) -> Result<BfTree, String> {
        let [each, all] = OFFSET_BYTES;
        let record_bytes_max = CELL_BYTES + opening.shape.row_bytes() + each * opening.shape.fields + all;
        let page_bytes = (2 * record_bytes_max + PAGE_ROOM).next_multiple_of(PAGE_BYTES[0]);
        if page_bytes > PAGE_BYTES[1] {
            return Err(format!("Bf-Tree takes records of {} bytes at most", (PAGE_BYTES[1] - PAGE_ROOM) / 2));
        }
        // A power of two: no less than it is given.
        let cache_bytes = (opening.cache_bytes as usize).next_power_of_two();
        let mut config = Config::new(opening.directory.join("bf-tree"), cache_bytes);
        config
            .cb_max_key_len(CELL_BYTES)
            .cb_min_record_size(RECORD_BYTES_MIN)
            .cb_max_record_size(record_bytes_max)
            .leaf_page_size(page_bytes);
        if opening.safety == Safety::Immediate {
            config.enable_write_ahead_log_default();
        }
        let tree = Tree::with_config(config, None).map_err(|error| format!("Bf-Tree: {error:?}"))?;
        let directory = opening.directory.to_path_buf();
        Ok(BfTree { directory, tree, record_bytes_max, stripes: Stripes::default() })
    }

    fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match self.tree.insert(key, value) {
            LeafInsertResult::Success => Ok(()),
            LeafInsertResult::InvalidKV(why) => Err(format!("Bf-Tree: {why}")),
        }
    }
}

impl FlatStore for BfTree {
    type Session<'a> = BfTreeSession<'a>;

    fn session(&self) -> Result<BfTreeSession<'_>, String> {
        Ok(BfTreeSession { store: self, value: vec![0; self.record_bytes_max] })
    }

    /// It has no background work.
    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(crate) struct BfTreeSession<'a> {
    store: &'a BfTree,
    value: Vec<u8>,
}

impl BfTreeSession<'_> {
    /// Reads a value into `value`, and says how long it is.
    fn read(&mut self, key: &[u8]) -> Result<Option<usize>, String> {
        match self.store.tree.read(key, &mut self.value) {
            LeafReadResult::Found(bytes) => Ok(Some(bytes as usize)),
            LeafReadResult::NotFound | LeafReadResult::Deleted => Ok(None),
            LeafReadResult::InvalidKey => Err("Bf-Tree: a key that it does not take".into()),
        }
    }
}

impl FlatSession for BfTreeSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.store.insert(key, value)
    }

    fn put_all<'v>(&mut self, cells: impl Iterator<Item = (Cell, &'v [u8])>) -> Result<(), String> {
        cells.into_iter().try_for_each(|(cell, value)| self.store.insert(&cell, value))
    }

    fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String> {
        if let Some(bytes) = self.read(key)? {
            visit(&self.value[..bytes]);
        }
        Ok(())
    }

    fn change(&mut self, key: &[u8], change: impl FnOnce(&mut [u8])) -> Result<(), String> {
        let _guard = self.store.stripes.lock(key);
        let Some(bytes) = self.read(key)? else { return Ok(()) };
        change(&mut self.value[..bytes]);
        self.store.insert(key, &self.value[..bytes])
    }

    fn walk(&mut self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), String> {
        let mut from = from.to_vec();
        loop {
            let scan = self.store.tree.scan_with_count(&from, STEP, ScanReturnField::KeyAndValue);
            let mut scan = scan.map_err(|error| format!("Bf-Tree: {error:?}"))?;
            let mut seen = 0;
            while let Some((key_bytes, value_bytes)) = scan.next(&mut self.value) {
                let (key, rest) = self.value.split_at(key_bytes);
                if !visit(key, &rest[..value_bytes]) {
                    return Ok(());
                }
                seen += 1;
                from.clear();
                from.extend_from_slice(key);
            }
            if seen < STEP {
                return Ok(());
            }
            // Not longer than the longest key: the next one that is as long.
            if !increment(&mut from) {
                return Ok(());
            }
        }
    }
}

/// The next key of as many bytes, if there is one.
fn increment(key: &mut [u8]) -> bool {
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return true;
        }
    }
    false
}
