//! The circles of imports and the names of several types that there are still.
//!
//! Owns both lists. Promises that they only shrink: `cargo xtask tidy` refuses what is not in them, and what is in them and no
//! longer there. Must not gain an entry.

/// Files that may import each other in circles, without their `.rs`; each stands for its folder, too.
pub(super) const CIRCLES: &[&[&str]] = &[];

/// Types that share a name, and the files that define them.
pub(super) const TYPES_DEFINED_TWICE: &[(&str, &[&str])] = &[
    (
        "Args",
        &[
            "crates/tool/src/bench",
            "crates/tool/src/bench/focus",
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
