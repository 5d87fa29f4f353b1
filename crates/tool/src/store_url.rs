//! Where a store is, as `--store` says it.
//!
//! Owns the table of schemes: the one place that says what a URL of a store may be. Promises that a URL that names no store is refused
//! with those that would. Must not know how a store is opened or used.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::units::parse_bytes;

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

/// Key-value devices that keep rows together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvssdUrl {
    /// Their files, in the order that they were made in.
    pub files: Vec<PathBuf>,
    /// Bytes of each that is made; one that is there stays as long as it is. Default 1 GiB.
    pub bytes: Option<u64>,
    /// Copies of each key, 1 or 2. Default: as the array was made, and 1 where it is.
    pub copies: Option<usize>,
    /// Whether it is opened without devices that may have gone on without the others. Default: it is not.
    pub alone: bool,
}

impl fmt::Display for KvssdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        let size = self.bytes.map(|bytes| format!("size={bytes}"));
        let copies = self.copies.map(|copies| format!("copies={copies}"));
        let alone = self.alone.then(|| "alone=yes".to_owned());
        let options: Vec<String> = size.into_iter().chain(copies).chain(alone).collect();
        let mark = if options.is_empty() { "" } else { "?" };
        write!(f, "kvssd:{}{mark}{}", files.join(","), options.join("&"))
    }
}

impl KvssdUrl {
    /// Files with commas between them, with `kvssd:` before them or without; none if they are not that.
    pub(crate) fn of(text: &str) -> Option<KvssdUrl> {
        devices(text.strip_prefix("kvssd:").unwrap_or(text))
    }
}

/// A pool of memory that many nodes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUrl {
    /// Where its manager is, as host and port.
    pub manager: String,
    /// Where other nodes reach this process, as host and port; port 0 is one that the system chooses. Default 127.0.0.1:0.
    pub listen: Option<String>,
    /// Bytes of values that this process caches. Default 64 MiB; 0: it caches nothing, and remembers no slots.
    pub cache: Option<u64>,
}

impl fmt::Display for PoolUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listen = self.listen.as_ref().map(|listen| format!("listen={listen}"));
        let cache = self.cache.map(|cache| format!("cache={cache}"));
        let options: Vec<String> = listen.into_iter().chain(cache).collect();
        let mark = if options.is_empty() { "" } else { "?" };
        write!(f, "pool:{}{mark}{}", self.manager, options.join("&"))
    }
}

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A tiered store in a directory.
    Tiered(Medium, PathBuf),
    /// Pairs in memory of this process, which end with it.
    Memory,
    /// Pairs on key-value devices in software.
    Kvssd(KvssdUrl),
    /// Pairs in memory of several machines, which are gone with these.
    Pool(PoolUrl),
    /// Nothing: measures the harness.
    Null,
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Tiered(Medium::File, directory) => write!(f, "tiered:{}", directory.display()),
            StoreUrl::Tiered(Medium::Emulated, directory) => write!(f, "emulated:{}", directory.display()),
            StoreUrl::Memory => f.write_str("memory:"),
            StoreUrl::Kvssd(url) => url.fmt(f),
            StoreUrl::Pool(url) => url.fmt(f),
            StoreUrl::Null => f.write_str("null"),
        }
    }
}

/// What is looked at while nobody has it open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExaminedPlace {
    /// A store's directory.
    Directory(PathBuf),
    /// The file of one key-value device, of an array or not.
    DeviceFile(PathBuf),
    /// The files of all devices of an array, in their order.
    Array(Vec<PathBuf>),
}

impl ExaminedPlace {
    /// A directory, a file, or the URL of an array.
    ///
    /// # Errors
    /// A sentence for a person: what begins as a URL and is none.
    pub fn of(place: &Path) -> Result<ExaminedPlace, String> {
        if let Some(text) = place.to_str().filter(|text| text.starts_with("kvssd:")) {
            return match (KVSSD.parse)(text) {
                Some(StoreUrl::Kvssd(KvssdUrl { files, .. })) => Ok(ExaminedPlace::Array(files)),
                _ => Err(format!(
                    "'{text}' names no devices: give kvssd:FILE,FILE... (a directory of this name is ./{text})"
                )),
            };
        }
        Ok(match place.is_file() {
            true => ExaminedPlace::DeviceFile(place.to_owned()),
            false => ExaminedPlace::Directory(place.to_owned()),
        })
    }

    /// The files, and whether they are to be those of an array; none of a store's directory.
    pub fn device_files(self) -> Result<(Vec<PathBuf>, bool), PathBuf> {
        match self {
            ExaminedPlace::Directory(dir) => Err(dir),
            ExaminedPlace::DeviceFile(file) => Ok((vec![file], false)),
            ExaminedPlace::Array(files) => Ok((files, true)),
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

const KVSSD: Scheme = Scheme {
    form: "kvssd:FILE,FILE...?size=BYTES&copies=1|2&alone=yes",
    meaning: "pairs on key-value devices in software, a file each; size, as in 4gb, is that of files that are made, copies how many devices have each key, alone opens what is given where missing devices may have gone on without it",
    parse: |url| devices(url.strip_prefix("kvssd:")?).map(StoreUrl::Kvssd),
};

/// Files with commas between them, and what of a question mark comes behind them.
fn devices(text: &str) -> Option<KvssdUrl> {
    // What follows a question mark is no part of a name: a wrong word there is refused.
    let (files, options) = match text.split_once('?') {
        Some((files, options)) => (files, Some(options)),
        None => (text, None),
    };
    let files: Vec<PathBuf> = files.split(',').map(PathBuf::from).collect();
    let mut url = KvssdUrl { files, bytes: None, copies: None, alone: false };
    for option in options.into_iter().flat_map(|options| options.split('&')) {
        // Each at most once.
        match option.split_once('=')? {
            ("size", bytes) if url.bytes.is_none() => url.bytes = Some(parse_bytes(bytes)?),
            ("copies", "1") if url.copies.is_none() => url.copies = Some(1),
            ("copies", "2") if url.copies.is_none() => url.copies = Some(2),
            ("alone", "yes") if !url.alone => url.alone = true,
            _ => return None,
        }
    }
    let is_file = |file: &PathBuf| !file.as_os_str().is_empty();
    url.files.iter().all(is_file).then_some(url)
}

const POOL: Scheme = Scheme {
    form: "pool:HOST:PORT?listen=HOST:PORT&cache=BYTES",
    meaning: "pairs in a pool's memory, of the manager that listens there; listen is where others reach this process, for a pool of several machines, cache the memory for what it reads often",
    parse: |url| pool(url.strip_prefix("pool:")?).map(StoreUrl::Pool),
};

/// A host and a port, and what of a question mark comes behind them.
fn pool(text: &str) -> Option<PoolUrl> {
    let has_port = |place: &str| {
        let (host, port) = place.rsplit_once(':')?;
        (!host.is_empty() && port.parse::<u16>().is_ok()).then(|| place.to_owned())
    };
    let (manager, options) =
        text.split_once('?').map_or((text, None), |(manager, rest)| (manager, Some(rest)));
    let mut url = PoolUrl { manager: has_port(manager)?, listen: None, cache: None };
    for option in options.into_iter().flat_map(|options| options.split('&')) {
        // Each once.
        match option.split_once('=')? {
            ("listen", place) if url.listen.is_none() => url.listen = Some(has_port(place)?),
            ("cache", bytes) if url.cache.is_none() => url.cache = Some(parse_bytes(bytes)?),
            _ => return None,
        }
    }
    Some(url)
}

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
        parse_among(&[&TIERED, &EMULATED, &MEMORY, &KVSSD, &POOL, &NULL], url)
    }

    /// A store to be served.
    pub fn served(url: &str) -> Result<StoreUrl, String> {
        parse_among(&[&TIERED, &MEMORY, &KVSSD, &POOL], url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_examined_is_a_directory_a_file_or_an_array() {
        let of = |text: &str| ExaminedPlace::of(Path::new(text));
        let array = |files: &[&str]| Ok(ExaminedPlace::Array(files.iter().map(PathBuf::from).collect()));
        assert_eq!(of("kvssd:a,/b?size=1gb"), array(&["a", "/b"]));
        assert!(of("kvssd:").unwrap_err().contains("kvssd:FILE"));
        let file = std::env::current_exe().unwrap();
        assert_eq!(ExaminedPlace::of(&file), Ok(ExaminedPlace::DeviceFile(file.clone())));
        let directory = file.parent().unwrap();
        assert_eq!(ExaminedPlace::of(directory), Ok(ExaminedPlace::Directory(directory.into())));
        assert_eq!(of("./kvssd:a"), Ok(ExaminedPlace::Directory("./kvssd:a".into())));
    }

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
        let devices = |files: &[&str], bytes| {
            let files = files.iter().map(PathBuf::from).collect();
            Ok(StoreUrl::Kvssd(KvssdUrl { files, bytes, copies: None, alone: false }))
        };
        let copied = |bytes, copies, alone| {
            Ok(StoreUrl::Kvssd(KvssdUrl { files: vec!["a".into(), "b".into()], bytes, copies, alone }))
        };
        assert_eq!(StoreUrl::served("kvssd:a,b?copies=2"), copied(None, Some(2), false));
        assert_eq!(StoreUrl::served("kvssd:a,b?alone=yes&copies=1"), copied(None, Some(1), true));
        assert_eq!(StoreUrl::served("kvssd:a,b?copies=2&size=2gb"), copied(Some(2 << 30), Some(2), false));
        assert_eq!(StoreUrl::served("kvssd:a"), devices(&["a"], None));
        assert_eq!(StoreUrl::measured("kvssd:/x/a,b?size=2gb"), devices(&["/x/a", "b"], Some(2 << 30)));
        let pool = |manager: &str, listen: Option<&str>, cache| {
            Ok(StoreUrl::Pool(PoolUrl { manager: manager.into(), listen: listen.map(Into::into), cache }))
        };
        let both = "pool:a:1?cache=2mb&listen=b:0";
        assert_eq!(StoreUrl::served(both), pool("a:1", Some("b:0"), Some(2 << 20)));
        assert_eq!(StoreUrl::served("pool:localhost:7400"), pool("localhost:7400", None, None));
        assert_eq!(
            StoreUrl::measured("pool:[::1]:7400?listen=10.0.0.2:0"),
            pool("[::1]:7400", Some("10.0.0.2:0"), None)
        );
        for wrong in
            ["pool:", "pool:a", "pool::1", "pool:a:b", "pool:a:70000", "pool:a:1?listen=b", "pool:a:1?x=b:1"]
                .into_iter()
                .chain([
                    "pool:a:1?cache=",
                    "pool:a:1?cache=1mb&cache=2mb",
                    "pool:a:1?",
                    "pool:a:1?listen=b:0&",
                ])
        {
            assert!(StoreUrl::served(wrong).unwrap_err().contains("pool:HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_nothing_else_is() {
        for url in [
            "tiered:/tmp/a:b",
            "emulated:/x",
            "null",
            "kvssd:a",
            "kvssd:a,/b?size=65536",
            "kvssd:a,/b?size=65536&copies=2&alone=yes",
            "kvssd:a,/b?copies=1",
            "pool:a:1",
            "pool:a:1?listen=b:0",
            "pool:a:1?cache=0",
            "pool:a:1?listen=b:0&cache=65536",
        ] {
            assert_eq!(StoreUrl::measured(url).unwrap().to_string(), url);
        }
        for wrong in ["", "tiered:", "tiered", "emulated:", "/tmp/x", "rocksdb:/x", "tieredx:y", "memory:x"] {
            assert!(StoreUrl::measured(wrong).unwrap_err().contains("tiered:DIRECTORY"), "{wrong}");
        }
        for wrong in [
            "kvssd:",
            "kvssd",
            "kvssd:a,",
            "kvssd:a,,b",
            "kvssd:a?size=",
            "kvssd:a?size=much",
            "kvssd:a?Size=1gb",
            "kvssd:a?size=1gb,b",
            "kvssd:a,b?",
            "kvssd:a,b?copies=3",
            "kvssd:a,b?copies=2&copies=2",
            "kvssd:a,b?alone=no",
            "kvssd:a,b?copies=2&",
        ] {
            assert!(StoreUrl::served(wrong).unwrap_err().contains("kvssd:FILE"), "{wrong}");
        }
        let refused = StoreUrl::served("null").unwrap_err();
        assert!(refused.contains("tiered:DIRECTORY") && !refused.contains("harness"), "{refused}");
    }
}
