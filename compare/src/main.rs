//! Hedgerow beside RocksDB, LMDB, LevelDB and fjall: the workloads, driver and checks of `hedgerow bench`, in one run.
//!
//! Every engine lives in a process of its own, so that its processor time, memory and bytes written are its own; they take
//! turns phase by phase, so that what drifts on the machine hits all alike. See `docs/benchmarks.md`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bound;
mod peers;
mod race;
mod results;
mod worker;

use std::process::ExitCode;

use clap::Parser;

/// For the Rust engines; the C and C++ ones keep the system's, which they are tuned for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        Some(worker::ARGUMENT) => worker::run(),
        _ => race::run(race::Args::parse()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("compare: {message}");
            ExitCode::FAILURE
        }
    }
}
