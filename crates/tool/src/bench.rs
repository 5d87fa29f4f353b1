//! Measurements of a store.

/// Arguments of `hedgerow bench`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the benchmark.
pub fn run(_args: Args) -> Result<(), String> {
    Err("not built yet".into())
}
