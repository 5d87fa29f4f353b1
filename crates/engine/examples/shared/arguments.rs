//! What is asked of an example: `name=value`, in any order; and the store it works on.

use std::path::Path;

use hedgerow::{Capacity, Db, Options};
use hedgerow_device::{FastTier, FastTierOptions};

pub(super) struct Arguments(Vec<(String, String)>);

impl Arguments {
    /// Those that the program was started with.
    pub(super) fn given() -> Arguments {
        let split = |argument: String| {
            let (name, value) = argument.split_once('=').expect("arguments are name=value");
            (name.to_owned(), value.to_owned())
        };
        Arguments(std::env::args().skip(1).map(split).collect())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn number(&self, name: &str, default: u64) -> u64 {
        self.text(name).map_or(default, |text| text.parse().unwrap())
    }

    /// A store of at most `bytes_max` bytes, all of them in the log: in the directory `name` of `dir`, which is not there yet, or in memory if no `dir` was given.
    pub(super) fn make_store(&self, name: &str, options: Options, bytes_max: u64) -> Db {
        let options = Options { fast_tier_bytes_max: bytes_max, capacity: Capacity::None, ..options };
        match self.text("dir") {
            Some(dir) => {
                let dir = Path::new(dir).join(name);
                assert!(!dir.exists(), "{} is there already", dir.display());
                Db::open_with(dir, options).unwrap()
            }
            None => {
                let tier = FastTierOptions { bytes_max, reserve_bytes: bytes_max };
                Db::open_on(FastTier::dram(&tier).unwrap(), options).unwrap()
            }
        }
    }
}
