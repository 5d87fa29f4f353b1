//! The `hedgerow` command, as a library: `serve`, `bench`, `inspect`, `check`, `backup`, `restore`, `repair`, `export`, `import`, `top`, `pool`, `kvssd`.
#![allow(
    clippy::disallowed_methods,
    reason = "clocks, threads and files of the server and the benchmark are never simulated"
)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod backup;
pub mod bench;
pub mod capacity;
pub mod check;
pub mod cli;
pub mod inspect;
pub mod kvssd;
pub mod kvssd_store;
pub mod open_files;
pub mod pool;
pub mod pool_store;
pub mod printing;
pub mod process;
pub mod repair;
pub mod serve;
pub mod store_url;
pub mod top;
pub mod transfer;
pub mod units;
