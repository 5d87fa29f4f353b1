//! The circles of imports and the names of several types that there are still, and the files that work on the whole engine.
//!
//! Owns these lists. Promises that they say what is there: `cargo xtask tidy` refuses what is not in them, and what is in them and no
//! longer there. The first two must not gain an entry.

/// Files that may import each other in circles, without their `.rs`; each stands for its folder, too.
pub(super) const CIRCLES: &[&[&str]] = &[];

/// Types that share a name, and the files that define them.
pub(super) const TYPES_DEFINED_TWICE: &[(&str, &[&str])] = &[
    (
        "Args",
        &[
            "crates/tool/src/bench",
            "crates/tool/src/check",
            "crates/tool/src/inspect",
            "crates/tool/src/repair",
            "crates/tool/src/serve",
            "crates/tool/src/serve/resp",
        ],
    ),
    ("Command", &["crates/tool/src/cli", "crates/tool/src/serve/command"]),
    ("Kind", &["crates/tool/src/serve/commands/docs", "crates/tool/src/serve/keyspace"]),
    ("Part", &["crates/tool/src/inspect", "crates/tool/src/serve/commands/hash"]),
    ("Progress", &["crates/tool/src/bench/driver", "crates/tool/src/serve/connection"]),
    ("ScanOptions", &["crates/tool/src/serve/commands/key", "crates/tool/src/serve/commands/table"]),
    ("Session", &["crates/tool/src/bench/store", "crates/tool/src/serve/session"]),
    ("Settings", &["crates/tool/src/bench", "crates/tool/src/serve/settings"]),
    ("Unit", &["crates/tool/src/bench/chart", "crates/tool/src/serve/commands/expiration"]),
];

/// Files of the engine that have methods of `Engine`, or functions that borrow one, each with what it is that takes all of
/// a store. What needs only parts of one says which, and takes them.
pub(super) const WHOLE_ENGINE: &[(&str, &str)] = &[
    ("crates/engine/src/consolidate", "merging deltas into rows, as long as nobody else needs them"),
    ("crates/engine/src/db/append", "how a record comes to count, in the log, the index and the cache"),
    ("crates/engine/src/db/batch", "several writes as one"),
    ("crates/engine/src/db/catalog_changes", "a change of tables: a record in the log like a row"),
    ("crates/engine/src/db/engine", "what a store is made of, how it is opened, made durable and closed"),
    ("crates/engine/src/db/expiry", "rows that have expired leave"),
    ("crates/engine/src/db/load", "rows loaded in bulk: files, an edit and a change of tables"),
    ("crates/engine/src/db/loops", "the background loops, and what each is given"),
    ("crates/engine/src/db/metrics", "what all parts count"),
    ("crates/engine/src/db/read", "one read"),
    (
        "crates/engine/src/db/read/many",
        "the reads of one call: the index, sorted tables and rows beside one another",
    ),
    ("crates/engine/src/db/saved_index", "all that a walk would find, saved and taken over"),
    (
        "crates/engine/src/db/saved_index/checkpoint",
        "the same of an open store: keeping everybody out, and when there is need",
    ),
    ("crates/engine/src/db/saved_index/since", "all that was saved, and all that is walked, put over it"),
    ("crates/engine/src/db/refused", "what must not compile"),
    ("crates/engine/src/db/write", "one write"),
    ("crates/engine/src/gc", "freeing segments: copies are writes"),
    (
        "crates/engine/src/gc/moving",
        "rows that leave the log: freeing segments, reading the index and writing files",
    ),
    (
        "crates/engine/src/gc/moving/pressure",
        "when rows move: what is missing in the log, in the index and of merges",
    ),
    ("crates/engine/src/gc/many", "keys counted anew: their slots against all of the log"),
    ("crates/engine/src/gc/needed", "what of a victim the snapshots still need"),
    ("crates/engine/src/gc/reorder", "rows scanned together brought together: copies again"),
    ("crates/engine/src/gc/resting", "tombstones moved while nobody writes: a move, and when"),
    (
        "crates/engine/src/gc/sealing",
        "keys that leave memory: reading the index, writing leaves, and when there is need",
    ),
    (
        "crates/engine/src/gc/sealing/merging",
        "groups made one: reading leaves, writing others, and when there is need and room",
    ),
    (
        "crates/engine/src/gc/sealing/small_tables",
        "which of all tables share extents of leaves, and when these are written anew",
    ),
    ("crates/engine/src/gc/victims", "which segments to free"),
];
