//! The server from outside: over sockets, in this process and as the program itself.
#![allow(clippy::disallowed_methods, reason = "tests and measurements use the machine as it is")]
#![allow(clippy::unwrap_used)]

mod backup;
mod bounds;
mod client;
mod commands;
mod crash;
mod device_saves;
mod edges;
mod failed_sync;
mod full_disk;
mod group_commit;
mod info;
mod kill;
mod kvssd;
mod kvssd_arrays;
mod kvssd_copies;
mod lifecycle;
mod limits;
mod little_memory;
mod pair_batches;
mod pair_edges;
mod pairs;
mod pool;
mod pool_endpoints;
mod pool_served;
mod read_only;
mod semantics;
mod slow_pairs;
mod sorted_tables;
mod top;
mod transactions;
mod transfer;
