//! Where a store's sorted tables are, as the command line says it.
//!
//! Owns the option `--capacity` of the commands that open a store, and how the place is written. Promises that it means the same to all of them. Must not know what is in the directory.

use std::convert::Infallible;
use std::path::Path;

use hedgerow::{CAPACITY_DIRECTORY, Capacity};

/// Why the option is refused for devices.
pub const NO_SORTED_TABLES: &str =
    "key-value devices have no sorted tables: --capacity is for a store's directory";

/// What stands for no place at all.
const NONE: &str = "none";

/// The option.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CapacityArgs {
    /// The directory of the store's sorted tables, or `none`: it has none, and no row leaves its log. `capacity` in the store's own directory unless
    /// given. (One of that name is ./none.)
    #[arg(long = "capacity", value_name = "DIR|none", id = "capacity", value_parser = place)]
    given: Option<Capacity>,
}

impl CapacityArgs {
    /// Where they are.
    pub fn place(&self) -> Capacity {
        self.given.clone().unwrap_or_default()
    }

    /// Whether anything was said.
    pub fn is_given(&self) -> bool {
        self.given.is_some()
    }
}

fn place(text: &str) -> Result<Capacity, Infallible> {
    Ok(if text == NONE { Capacity::None } else { Capacity::from(text) })
}

/// The place of the sorted tables of a store in the directory `store`, as [`CapacityArgs`] would be given it.
pub fn place_text(place: &Capacity, store: &Path) -> String {
    match place {
        Capacity::Beside => store.join(CAPACITY_DIRECTORY).display().to_string(),
        Capacity::At(directory) => directory.display().to_string(),
        Capacity::None => NONE.to_owned(),
    }
}
