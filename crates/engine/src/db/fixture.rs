//! What the tests of the modules here open their stores with.
//!
//! Owns the options of a small store without threads of its own: rounds come when a test asks for them. Must not know what is
//! tested.

use crate::Options;

pub(super) fn options() -> Options {
    Options {
        segment_bytes: 1 << 20,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 16 << 20,
        ..Options::default()
    }
}
