//! What other crates can do with rows.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod backend;
