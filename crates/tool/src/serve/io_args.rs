//! How the store writes to its media: the persist granule, and the budget of background I/O.
//!
//! Owns these options of the command line, and what CONFIG shows of them. Must not know what they do.

use hedgerow::{Options, PersistGranule};

use crate::units::parse_bytes;

/// These options of `hedgerow serve`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct IoArgs {
    /// In what pieces writers write the log back, ahead of the syncs: `sync`, in none; `segment`, by the segment; or so many bytes, a power of two from 4kb, as in 16kb. Nothing is safer for it; with
    /// --durability immediate it does nothing.
    #[arg(long, value_parser = granule, default_value = "sync")]
    pub persist_granule: PersistGranule,
    /// How many bytes a second moving rows and merging sorted tables may take of their disk, as in 50mb, where no writer waits for that; no bound unless given.
    #[arg(long, value_parser = rate)]
    pub io_bytes_per_s: Option<u64>,
}

impl IoArgs {
    /// Whether one of them was given that only a tiered store has.
    pub fn is_given(&self) -> bool {
        *self != IoArgs::default()
    }

    /// Options with these in them.
    pub fn apply(&self, options: Options) -> Options {
        options.persist_granule(self.persist_granule).io_bytes_per_s(self.io_bytes_per_s)
    }

    /// The granule as CONFIG shows it.
    pub fn granule_text(&self) -> String {
        match self.persist_granule {
            PersistGranule::Sync => "sync".into(),
            PersistGranule::Segment => "segment".into(),
            PersistGranule::Block(bytes) => bytes.to_string(),
        }
    }
}

fn granule(text: &str) -> Result<PersistGranule, String> {
    match text {
        "sync" => Ok(PersistGranule::Sync),
        "segment" => Ok(PersistGranule::Segment),
        _ => match parse_bytes(text) {
            Some(bytes) => Ok(PersistGranule::Block(bytes)),
            None => Err(format!("'{text}' is no granule: sync, segment, or bytes, such as 16kb")),
        },
    }
}

fn rate(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| format!("'{text}' is no number of bytes, such as 50mb"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_granule_is_read_and_shown_alike() {
        for (text, granule_read, shown) in [
            ("sync", PersistGranule::Sync, "sync"),
            ("segment", PersistGranule::Segment, "segment"),
            ("16kb", PersistGranule::Block(16 << 10), "16384"),
        ] {
            let persist_granule = granule(text).unwrap();
            assert_eq!(persist_granule, granule_read);
            let args = IoArgs { persist_granule, io_bytes_per_s: None };
            assert_eq!((args.granule_text().as_str(), args.is_given()), (shown, text != "sync"));
        }
        assert!(granule("some").unwrap_err().contains("16kb") && rate("fast").is_err());
        assert_eq!(rate("50mb"), Ok(50 << 20));
    }
}
