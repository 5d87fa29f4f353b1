//! The `hedgerow` command, as a library: `serve`, `bench`, `inspect`, `check`.

pub mod bench;
pub mod check;
pub mod cli;
pub mod inspect;
pub mod serve;
