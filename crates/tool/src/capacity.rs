//! Where a store's sorted tables are, as the command line says it.
//!
//! Owns the option `--capacity` of the commands that open a store. Promises that it means the same to all of them. Must not know what is in the directory.

use std::path::{Path, PathBuf};

/// The option.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CapacityArgs {
    /// The directory of the store's sorted tables; `capacity` in the store's own directory unless given.
    #[arg(long = "capacity", value_name = "DIR", id = "capacity")]
    directory: Option<PathBuf>,
}

impl CapacityArgs {
    /// The directory, if one was named.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}
