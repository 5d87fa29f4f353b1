//! The `hedgerow` command, as a library: `serve`, `bench`, `inspect`, `check`.

pub mod bench;
pub mod cli;
pub mod serve;
