//! Pairs in memory that many nodes share.
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bucket;
mod error;
pub mod fabric;
pub mod object;
pub mod region;
pub mod wire;
pub mod word;

pub use error::{PoolError, Result};
