//! The Redis-protocol server.

/// Arguments of `hedgerow serve`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Serves until asked to stop.
pub fn run(_args: Args) -> Result<(), String> {
    Err("not built yet".into())
}
