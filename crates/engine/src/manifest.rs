//! What is live: the bytes that say which segments, which tables and which sorted tables a store has.
//!
//! Owns the root record, the list of segments that it names, the catalog, which is also the body of the records that change it, and the edits that say which
//! sorted tables count.
//! Promises that the bytes are sorted: the same state gives the same bytes. Must not know records, trees, or when any of it is
//! written.

pub(crate) mod catalog;
pub(crate) mod edits;
pub(crate) mod root;
pub(crate) mod saved_index;
pub(crate) mod segment_list;
pub(crate) mod version;
