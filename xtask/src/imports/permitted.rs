//! The circles of imports and the names of several types that there are still.
//!
//! Owns both lists. Promises that they only shrink: `cargo xtask tidy` refuses what is not in them, and what is in them and no
//! longer there. Must not gain an entry.

/// Files that may import each other in circles, without their `.rs`; each stands for its folder, too.
pub(super) const CIRCLES: &[&[&str]] = &[];

/// Types that share a name, and the files that define them.
pub(super) const TYPES_DEFINED_TWICE: &[(&str, &[&str])] = &[
    ("Medium", &["crates/device/src/fast", "crates/device/src/fault"]),
    ("After", &["crates/engine/src/db/catalog/plan", "crates/engine/src/index/build"]),
    ("Batch", &["crates/engine/src/cache", "crates/engine/src/db/batch"]),
    ("Body", &["crates/engine/src/db/batch", "crates/engine/src/db/read"]),
    ("Change", &["crates/engine/src/db/catalog/format", "crates/engine/src/db/table"]),
    ("Claim", &["crates/engine/src/index/epoch", "crates/engine/src/log/segment"]),
    ("Entry", &["crates/engine/src/db/catalog/format", "crates/engine/src/index/edit"]),
    (
        "Held",
        &[
            "crates/engine/src/db/batch/staged",
            "crates/engine/src/db/inspect/counts",
            "crates/engine/src/db/row",
        ],
    ),
    ("Merged", &["crates/engine/src/db/recover", "crates/engine/src/schema/merge"]),
    ("Padded", &["crates/engine/src/cache", "crates/engine/src/cache/ring", "crates/engine/src/log"]),
    ("Planned", &["crates/engine/src/db/catalog/plan", "crates/engine/src/schema/layout"]),
    ("Progress", &["crates/engine/src/db/backup", "crates/engine/src/db/inspect"]),
    ("Slot", &["crates/engine/src/index/slot", "crates/engine/src/schema/layout"]),
    ("State", &["crates/engine/src/db/catalog", "crates/engine/src/db/scan"]),
    ("Step", &["crates/engine/src/db/catalog/plan", "crates/engine/src/db/write"]),
    ("Stripe", &["crates/engine/src/db/counters", "crates/engine/src/index/tree"]),
    ("View", &["crates/engine/src/db/inspect", "crates/engine/src/index/tree"]),
    ("Write", &["crates/engine/src/db/batch/staged", "crates/engine/src/index"]),
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
