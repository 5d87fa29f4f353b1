//! What the tests of the modules here open their stores with.
//!
//! Owns the options of a small store without threads of its own (rounds come when a test asks for them), and directories for those
//! that need a file. Must not know what is tested.

use std::path::PathBuf;

use crate::Options;

/// A directory of a test's own.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("hedgerow-db-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub(crate) fn options() -> Options {
    Options {
        segment_bytes: 1 << 20,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 16 << 20,
        // Each store that is closed is opened by its saved index, in the place of a walk.
        saved_index_bytes_min: 0,
        ..Options::default()
    }
}
