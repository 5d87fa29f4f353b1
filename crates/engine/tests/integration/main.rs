//! The engine through its public surface. One binary: each file is a room.
#![allow(clippy::disallowed_methods, reason = "tests and measurements use the machine as it is")]
#![allow(clippy::unwrap_used)]

mod allocations;
mod api;
mod backup;
mod backup_faults;
mod capacity;
mod catalog;
mod concurrency;
mod corruption;
mod crash;
mod crash_when_full;
mod damage;
mod failed_sync;
mod formats;
mod full_disk;
mod kill;
mod limit;
mod long_rows;
mod missing;
mod model;
mod moving;
mod pairs;
mod reclaim;
mod reopen;
mod rot;
mod slow_medium;
mod small;
mod tear;
mod tight;
mod typed;
