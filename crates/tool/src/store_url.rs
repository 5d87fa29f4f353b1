//! Where a store is, as `--store` says it.
//!
//! Owns the table of schemes: the one place that says what a URL of a store may be. Promises that a URL that names no store is refused
//! with those that would. Must not know how a store is opened or used.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a store's bytes rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// A file in the directory.
    File,
    /// A file in the directory, slowed to persistent memory as published measurements describe it.
    Emulated,
}

impl Medium {
    /// As the command line writes it.
    pub fn name(self) -> &'static str {
        match self {
            Medium::File => "file",
            Medium::Emulated => "emulated",
        }
    }
}

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A tiered store in a directory.
    Tiered(Medium, PathBuf),
    /// Pairs in memory of this process, which end with it.
    Memory,
    /// Nothing: measures the harness.
    Null,
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Tiered(Medium::File, directory) => write!(f, "tiered:{}", directory.display()),
            StoreUrl::Tiered(Medium::Emulated, directory) => write!(f, "emulated:{}", directory.display()),
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Null => f.write_str("null"),
        }
    }
}

/// A kind of store.
struct Scheme {
    /// How its URLs look, for people.
    form: &'static str,
    meaning: &'static str,
    /// The URL, if it is of this scheme.
    parse: fn(&str) -> Option<StoreUrl>,
}

const TIERED: Scheme = Scheme {
    form: "tiered:DIRECTORY",
    meaning: "rows in a directory",
    parse: |url| Some(StoreUrl::Tiered(Medium::File, directory(url, "tiered")?)),
};

const EMULATED: Scheme = Scheme {
    form: "emulated:DIRECTORY",
    meaning: "the same at the speed of persistent memory",
    parse: |url| Some(StoreUrl::Tiered(Medium::Emulated, directory(url, "emulated")?)),
};

const MEMORY: Scheme = Scheme {
    form: "memory:",
    meaning: "pairs in memory, which end with the process",
    parse: |url| (url == "memory:").then_some(StoreUrl::Memory),
};

const NULL: Scheme = Scheme {
    form: "null",
    meaning: "the harness alone",
    parse: |url| (url == "null").then_some(StoreUrl::Null),
};

/// What comes after a scheme's name and a colon, if something does.
fn directory(url: &str, scheme: &str) -> Option<PathBuf> {
    let directory = url.strip_prefix(scheme)?.strip_prefix(':')?;
    (!directory.is_empty()).then(|| directory.into())
}

fn parse_among(schemes: &[&Scheme], url: &str) -> Result<StoreUrl, String> {
    schemes.iter().find_map(|scheme| (scheme.parse)(url)).ok_or_else(|| {
        let known = schemes.iter().map(|scheme| format!("{} for {}", scheme.form, scheme.meaning));
        format!("'{url}' names no store: give {}", known.collect::<Vec<_>>().join(", "))
    })
}

impl StoreUrl {
    /// A store to be measured.
    pub fn measured(url: &str) -> Result<StoreUrl, String> {
        parse_among(&[&TIERED, &EMULATED, &MEMORY, &NULL], url)
    }

    /// A store to be served.
    pub fn served(url: &str) -> Result<StoreUrl, String> {
        parse_among(&[&TIERED, &MEMORY], url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_store_or_is_refused_with_those_that_do() {
        let tiered = |medium, directory: &str| Ok(StoreUrl::Tiered(medium, directory.into()));
        assert_eq!(StoreUrl::measured("tiered:/tmp/a:b"), tiered(Medium::File, "/tmp/a:b"));
        assert_eq!(StoreUrl::measured("emulated:/x"), tiered(Medium::Emulated, "/x"));
        assert_eq!(StoreUrl::measured("null"), Ok(StoreUrl::Null));
        assert_eq!(StoreUrl::measured("memory:"), Ok(StoreUrl::Memory));
        assert_eq!(StoreUrl::served("memory:"), Ok(StoreUrl::Memory));
        assert_eq!(StoreUrl::served("memory:").unwrap().to_string(), "memory:");
        assert_eq!(StoreUrl::served("tiered:x"), tiered(Medium::File, "x"));
        for url in ["tiered:/tmp/a:b", "emulated:/x", "null"] {
            assert_eq!(StoreUrl::measured(url).unwrap().to_string(), url);
        }
        for wrong in ["", "tiered:", "tiered", "emulated:", "/tmp/x", "rocksdb:/x", "tieredx:y", "memory:x"] {
            assert!(StoreUrl::measured(wrong).unwrap_err().contains("tiered:DIRECTORY"), "{wrong}");
        }
        let refused = StoreUrl::served("null").unwrap_err();
        assert!(refused.contains("tiered:DIRECTORY") && !refused.contains("harness"), "{refused}");
    }
}
