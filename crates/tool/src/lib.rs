//! The `hedgerow` command, as a library: `serve`, `bench`, `inspect`, `check`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench;
pub mod cli;
pub mod serve;
