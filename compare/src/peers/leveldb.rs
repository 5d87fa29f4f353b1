//! LevelDB through its C interface, declared here. A get copies the value once inside LevelDB and once to the C caller; its
//! interface has no other.

// The declarations and calls below are the only way to it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

use hedgerow_tool::bench::store::mapping::{Cell, FlatSession, FlatStore, Stripes};

use super::{BLOOM_BITS, MEMTABLE_BYTES, Opening, Safety};

/// `leveldb/c.h` of LevelDB 1.23, as far as it is used. All handles are opaque.
mod c {
    use super::{c_char, c_int, c_uchar, c_void};

    unsafe extern "C" {
        pub(super) fn leveldb_open(
            options: *mut c_void,
            name: *const c_char,
            error: *mut *mut c_char,
        ) -> *mut c_void;
        pub(super) fn leveldb_close(db: *mut c_void);
        pub(super) fn leveldb_put(
            db: *mut c_void,
            options: *const c_void,
            key: *const c_char,
            key_bytes: usize,
            value: *const c_char,
            value_bytes: usize,
            error: *mut *mut c_char,
        );
        pub(super) fn leveldb_write(
            db: *mut c_void,
            options: *const c_void,
            batch: *mut c_void,
            error: *mut *mut c_char,
        );
        pub(super) fn leveldb_get(
            db: *mut c_void,
            options: *const c_void,
            key: *const c_char,
            key_bytes: usize,
            value_bytes: *mut usize,
            error: *mut *mut c_char,
        ) -> *mut c_char;
        pub(super) fn leveldb_compact_range(
            db: *mut c_void,
            start: *const c_char,
            start_bytes: usize,
            limit: *const c_char,
            limit_bytes: usize,
        );
        pub(super) fn leveldb_create_iterator(db: *mut c_void, options: *const c_void) -> *mut c_void;
        pub(super) fn leveldb_iter_destroy(iterator: *mut c_void);
        pub(super) fn leveldb_iter_valid(iterator: *const c_void) -> c_uchar;
        pub(super) fn leveldb_iter_seek(iterator: *mut c_void, key: *const c_char, key_bytes: usize);
        pub(super) fn leveldb_iter_next(iterator: *mut c_void);
        pub(super) fn leveldb_iter_key(iterator: *const c_void, bytes: *mut usize) -> *const c_char;
        pub(super) fn leveldb_iter_value(iterator: *const c_void, bytes: *mut usize) -> *const c_char;
        pub(super) fn leveldb_iter_get_error(iterator: *const c_void, error: *mut *mut c_char);
        pub(super) fn leveldb_writebatch_create() -> *mut c_void;
        pub(super) fn leveldb_writebatch_destroy(batch: *mut c_void);
        pub(super) fn leveldb_writebatch_clear(batch: *mut c_void);
        pub(super) fn leveldb_writebatch_put(
            batch: *mut c_void,
            key: *const c_char,
            key_bytes: usize,
            value: *const c_char,
            value_bytes: usize,
        );
        pub(super) fn leveldb_options_create() -> *mut c_void;
        pub(super) fn leveldb_options_destroy(options: *mut c_void);
        pub(super) fn leveldb_options_set_create_if_missing(options: *mut c_void, yes: c_uchar);
        pub(super) fn leveldb_options_set_write_buffer_size(options: *mut c_void, bytes: usize);
        pub(super) fn leveldb_options_set_max_open_files(options: *mut c_void, files: c_int);
        pub(super) fn leveldb_options_set_compression(options: *mut c_void, kind: c_int);
        pub(super) fn leveldb_options_set_cache(options: *mut c_void, cache: *mut c_void);
        pub(super) fn leveldb_options_set_filter_policy(options: *mut c_void, policy: *mut c_void);
        pub(super) fn leveldb_cache_create_lru(bytes: usize) -> *mut c_void;
        pub(super) fn leveldb_cache_destroy(cache: *mut c_void);
        pub(super) fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> *mut c_void;
        pub(super) fn leveldb_filterpolicy_destroy(policy: *mut c_void);
        pub(super) fn leveldb_readoptions_create() -> *mut c_void;
        pub(super) fn leveldb_readoptions_destroy(options: *mut c_void);
        pub(super) fn leveldb_writeoptions_create() -> *mut c_void;
        pub(super) fn leveldb_writeoptions_destroy(options: *mut c_void);
        pub(super) fn leveldb_writeoptions_set_sync(options: *mut c_void, yes: c_uchar);
        pub(super) fn leveldb_free(memory: *mut c_void);
    }
}

pub(crate) struct LevelDb {
    directory: PathBuf,
    db: *mut c_void,
    cache: *mut c_void,
    filter: *mut c_void,
    read: *mut c_void,
    write: *mut c_void,
    stripes: Stripes,
}

// SAFETY: LevelDB's database, cache, filter policy and (unchanged) option handles may be used by many threads at once, as its
// documentation says; the rest is ordinary Rust.
unsafe impl Sync for LevelDb {}

/// Takes over the error a call left, if it left one.
fn taken(error: *mut c_char) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: LevelDB leaves a C string of its own, to be freed by the caller; it is not used after.
    let message = unsafe {
        let message = CStr::from_ptr(error).to_string_lossy().into_owned();
        c::leveldb_free(error.cast());
        message
    };
    Err(format!("leveldb: {message}"))
}

fn bytes(slice: &[u8]) -> *const c_char {
    slice.as_ptr().cast()
}

impl LevelDb {
    pub(crate) fn open(opening: Opening<'_>) -> Result<LevelDb, String> {
        let name = CString::new(opening.directory.as_os_str().as_encoded_bytes())
            .map_err(|_| "leveldb: a NUL in the directory's name")?;
        let mut error = ptr::null_mut();
        // SAFETY: handles are used for what they were created for; the options are not needed after opening, the cache and
        // the filter are kept until the database is closed, `name` outlives the call.
        let store = unsafe {
            let options = c::leveldb_options_create();
            let cache = c::leveldb_cache_create_lru(opening.cache_bytes as usize);
            let filter = c::leveldb_filterpolicy_create_bloom(BLOOM_BITS.into());
            c::leveldb_options_set_create_if_missing(options, 1);
            c::leveldb_options_set_write_buffer_size(options, MEMTABLE_BYTES as usize);
            c::leveldb_options_set_max_open_files(options, 10_000);
            c::leveldb_options_set_compression(options, 0);
            c::leveldb_options_set_cache(options, cache);
            c::leveldb_options_set_filter_policy(options, filter);
            let db = c::leveldb_open(options, name.as_ptr(), &mut error);
            c::leveldb_options_destroy(options);
            let write = c::leveldb_writeoptions_create();
            c::leveldb_writeoptions_set_sync(write, (opening.safety == Safety::Immediate).into());
            let read = c::leveldb_readoptions_create();
            let directory = opening.directory.to_path_buf();
            LevelDb { directory, db, cache, filter, read, write, stripes: Stripes::default() }
        };
        taken(error)?;
        Ok(store)
    }
}

impl Drop for LevelDb {
    fn drop(&mut self) {
        // SAFETY: sessions borrow the store, so that none is left; each handle is destroyed once, the database first.
        unsafe {
            if !self.db.is_null() {
                c::leveldb_close(self.db);
            }
            c::leveldb_cache_destroy(self.cache);
            c::leveldb_filterpolicy_destroy(self.filter);
            c::leveldb_readoptions_destroy(self.read);
            c::leveldb_writeoptions_destroy(self.write);
        }
    }
}

impl FlatStore for LevelDb {
    type Session<'a> = LevelSession<'a>;

    fn session(&self) -> Result<LevelSession<'_>, String> {
        // SAFETY: creates a handle that the session owns.
        let batch = unsafe { c::leveldb_writebatch_create() };
        Ok(LevelSession { store: self, batch, value: Vec::new() })
    }

    /// LevelDB's C interface can flush the memory table only by compacting a range; one that holds no key flushes and
    /// rewrites nothing else.
    fn settle(&self) -> Result<(), String> {
        let after_all = [0xFF_u8; 4];
        // SAFETY: both bounds live through the call.
        unsafe { c::leveldb_compact_range(self.db, bytes(&after_all), 4, bytes(&after_all), 4) };
        Ok(())
    }

    fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(crate) struct LevelSession<'a> {
    store: &'a LevelDb,
    batch: *mut c_void,
    value: Vec<u8>,
}

impl Drop for LevelSession<'_> {
    fn drop(&mut self) {
        // SAFETY: the session owns the batch.
        unsafe { c::leveldb_writebatch_destroy(self.batch) };
    }
}

impl LevelSession<'_> {
    /// A value as LevelDB hands it out, freed when `visit` is done.
    fn visit(&self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<bool, String> {
        let (mut length, mut error) = (0, ptr::null_mut());
        // SAFETY: all pointers live through the call.
        let value = unsafe {
            c::leveldb_get(self.store.db, self.store.read, bytes(key), key.len(), &mut length, &mut error)
        };
        taken(error)?;
        if value.is_null() {
            return Ok(false);
        }
        // SAFETY: LevelDB gave `length` bytes that are ours until freed; `visit` cannot keep them.
        unsafe {
            visit(std::slice::from_raw_parts(value.cast(), length));
            c::leveldb_free(value.cast());
        }
        Ok(true)
    }
}

impl FlatSession for LevelSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let (store, mut error) = (self.store, ptr::null_mut());
        // SAFETY: all pointers live through the call.
        unsafe {
            let (key_bytes, value_bytes) = (key.len(), value.len());
            c::leveldb_put(
                store.db,
                store.write,
                bytes(key),
                key_bytes,
                bytes(value),
                value_bytes,
                &mut error,
            );
        }
        taken(error)
    }

    fn put_all<'v>(&mut self, cells: impl Iterator<Item = (Cell, &'v [u8])>) -> Result<(), String> {
        let mut error = ptr::null_mut();
        // SAFETY: the batch is this session's; it copies what is put into it.
        unsafe {
            c::leveldb_writebatch_clear(self.batch);
            for (cell, value) in cells {
                c::leveldb_writebatch_put(self.batch, bytes(&cell), cell.len(), bytes(value), value.len());
            }
            c::leveldb_write(self.store.db, self.store.write, self.batch, &mut error);
        }
        taken(error)
    }

    fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String> {
        self.visit(key, visit).map(|_| ())
    }

    fn change(&mut self, key: &[u8], change: impl FnOnce(&mut [u8])) -> Result<(), String> {
        let _guard = self.store.stripes.lock(key);
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        let found = self.visit(key, |old| value.extend_from_slice(old));
        let outcome = match found {
            Ok(true) => {
                change(&mut value);
                self.put(key, &value)
            }
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        self.value = value;
        outcome
    }

    fn walk(&mut self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), String> {
        let mut error = ptr::null_mut();
        // SAFETY: the iterator lives until the end of the block; key and value are valid until it moves, and `visit` cannot
        // keep them.
        unsafe {
            let iterator = c::leveldb_create_iterator(self.store.db, self.store.read);
            c::leveldb_iter_seek(iterator, bytes(from), from.len());
            while c::leveldb_iter_valid(iterator) != 0 {
                let (mut key_bytes, mut value_bytes) = (0, 0);
                let key = c::leveldb_iter_key(iterator, &mut key_bytes).cast();
                let value = c::leveldb_iter_value(iterator, &mut value_bytes).cast();
                let key = std::slice::from_raw_parts(key, key_bytes);
                if !visit(key, std::slice::from_raw_parts(value, value_bytes)) {
                    break;
                }
                c::leveldb_iter_next(iterator);
            }
            c::leveldb_iter_get_error(iterator, &mut error);
            c::leveldb_iter_destroy(iterator);
        }
        taken(error)
    }
}
