//! Whole pools under test.

mod asked;
mod explore;
mod explored;
mod explored_cached;
mod explored_long;
mod explored_proxied;
mod long_values;
mod memory_check;
mod placed;
mod run;
mod runs;
pub(crate) mod tcp_pool;
mod world;
