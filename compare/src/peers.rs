//! The engines that can take part, and how each is opened.
//!
//! Owns the settings common to the peers (peers.md's): the cache, the memory table, the filter, the compression.

#[cfg(feature = "bf-tree")]
mod bf_tree;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(all(feature = "leveldb", leveldb_installed))]
mod leveldb;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use std::path::Path;

use hedgerow::{Compression, Durability, Options};
use hedgerow_tool::bench::row::RowShape;
use hedgerow_tool::bench::setting::Setting;
use hedgerow_tool::bench::store::BenchStore;
use hedgerow_tool::bench::store::flat::FlatHedgerow;
use hedgerow_tool::bench::store::hedgerow::HedgerowStore;
use hedgerow_tool::bench::store::mapping::{FlatStore, Mapped, Mapping};
use hedgerow_tool::bench::store::null::NullStore;
use hedgerow_tool::store_url::Medium;
use serde::{Deserialize, Serialize};

/// Bytes of cache for the engines that have one, unless the command line says otherwise.
pub(crate) const CACHE_BYTES: u64 = 500 << 20;
/// Bytes in a memory table for the engines that have one.
const MEMTABLE_BYTES: u64 = 64 << 20;
/// Bits per key in a Bloom filter for the engines that have one.
const BLOOM_BITS: u8 = 10;

/// Who takes part.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub(crate) enum Engine {
    Null,
    Hedgerow,
    /// Hedgerow as a store of flat values: what rows of fields are worth over the same engine.
    Flat,
    RocksDb,
    /// RocksDB with a cache that holds all data.
    #[serde(rename = "rocksdb-cache")]
    RocksDbCache,
    /// RocksDB that reads its files through mappings.
    #[serde(rename = "rocksdb-mapped")]
    RocksDbMapped,
    /// RocksDB that merges whole runs of like size, and writes less for it.
    #[serde(rename = "rocksdb-universal")]
    RocksDbUniversal,
    /// RocksDB with a merge operator, so that an update reads nothing.
    #[serde(rename = "rocksdb-merge")]
    RocksDbMerge,
    Lmdb,
    LevelDb,
    Fjall,
    #[serde(rename = "bf-tree")]
    BfTree,
}

/// All that `--peers` can name.
const PEERS: [Engine; 10] = [
    Engine::RocksDb,
    Engine::RocksDbCache,
    Engine::RocksDbMapped,
    Engine::RocksDbUniversal,
    Engine::RocksDbMerge,
    Engine::Lmdb,
    Engine::LevelDb,
    Engine::Fjall,
    Engine::BfTree,
    Engine::Flat,
];

impl Engine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Null => "null",
            Engine::Hedgerow => "hedgerow",
            Engine::Flat => "flat",
            Engine::RocksDb => "rocksdb",
            Engine::RocksDbCache => "rocksdb-cache",
            Engine::RocksDbMapped => "rocksdb-mapped",
            Engine::RocksDbUniversal => "rocksdb-universal",
            Engine::RocksDbMerge => "rocksdb-merge",
            Engine::Lmdb => "lmdb",
            Engine::LevelDb => "leveldb",
            Engine::Fjall => "fjall",
            Engine::BfTree => "bf-tree",
        }
    }

    /// The engine that `--peers` calls so.
    pub(crate) fn peer(name: &str) -> Result<Engine, String> {
        let name = name.trim();
        PEERS.iter().copied().find(|peer| peer.name() == name).ok_or_else(|| {
            let names: Vec<_> = PEERS.iter().map(|peer| peer.name()).collect();
            format!("no peer is called {name}; there are {}", names.join(", "))
        })
    }

    /// Whether it was built in.
    pub(crate) fn is_built(self) -> bool {
        matches!(self, Engine::Null | Engine::Hedgerow) || self.opener().is_some()
    }

    /// How a peer is opened, if it was built in.
    fn opener(self) -> Option<Opener> {
        match self {
            Engine::Flat => Some(|opening, mapping| {
                let flat = FlatHedgerow::open(opening.medium, opening.directory, options(opening)?)?;
                mapped(flat, opening, mapping)
            }),
            #[cfg(feature = "rocksdb")]
            Engine::RocksDb => Some(|opening, mapping| {
                mapped(rocksdb::RocksDb::open(opening, rocksdb::Variant::Plain)?, opening, mapping)
            }),
            #[cfg(feature = "rocksdb")]
            Engine::RocksDbCache => Some(|opening, mapping| {
                mapped(rocksdb::RocksDb::open(opening, rocksdb::Variant::CachesAll)?, opening, mapping)
            }),
            #[cfg(feature = "rocksdb")]
            Engine::RocksDbMapped => Some(|opening, mapping| {
                mapped(rocksdb::RocksDb::open(opening, rocksdb::Variant::Mapped)?, opening, mapping)
            }),
            #[cfg(feature = "rocksdb")]
            Engine::RocksDbUniversal => Some(|opening, mapping| {
                mapped(rocksdb::RocksDb::open(opening, rocksdb::Variant::Universal)?, opening, mapping)
            }),
            #[cfg(feature = "rocksdb")]
            Engine::RocksDbMerge => Some(|opening, mapping| {
                mapped(rocksdb::RocksDb::open(opening, rocksdb::Variant::Merges)?, opening, mapping)
            }),
            #[cfg(feature = "lmdb")]
            Engine::Lmdb => Some(|opening, mapping| mapped(lmdb::Lmdb::open(opening)?, opening, mapping)),
            #[cfg(all(feature = "leveldb", leveldb_installed))]
            Engine::LevelDb => {
                Some(|opening, mapping| mapped(leveldb::LevelDb::open(opening)?, opening, mapping))
            }
            #[cfg(feature = "fjall")]
            Engine::Fjall => Some(|opening, mapping| mapped(fjall::Fjall::open(opening)?, opening, mapping)),
            #[cfg(feature = "bf-tree")]
            Engine::BfTree => Some(|opening, mapping| mapped(bf_tree::BfTree::open(opening)?, opening, mapping)),
            _ => None,
        }
    }
}

type Opener = fn(Opening<'_>, Mapping) -> Result<Box<dyn BenchStore>, String>;

/// What a write survives when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Safety {
    /// A killed process.
    Process,
    /// A power cut: a sync per write, shared where the engine groups them.
    Immediate,
}

/// How files of sorted rows are compressed, by those engines that have some: LMDB and LevelDB store rows as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Packing {
    /// As they are.
    None,
    /// By LZ4.
    Lz4,
}

/// How a store is to be opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) shape: RowShape,
    pub(crate) records: u64,
    pub(crate) safety: Safety,
    pub(crate) packing: Packing,
    /// Of the engines that have a cache of their own, Hedgerow excepted.
    pub(crate) cache_bytes: u64,
    /// Of Hedgerow, with rows and flat. The peers rest on files.
    pub(crate) medium: Medium,
    /// Of Hedgerow.
    pub(crate) set: &'a [String],
}

/// Hedgerow's options.
fn options(opening: Opening<'_>) -> Result<Options, String> {
    let durability = match opening.safety {
        Safety::Process => Durability::Process,
        Safety::Immediate => Durability::Immediate,
    };
    let compression = match opening.packing {
        Packing::None => Compression::None,
        Packing::Lz4 => Compression::Lz4,
    };
    let mut options = Options::new().durability(durability).compression(compression);
    opening.set.iter().try_for_each(|text| text.parse::<Setting>()?.apply(&mut options))?;
    Ok(options)
}

/// Opens an engine in an empty directory.
pub(crate) fn open(
    engine: Engine,
    mapping: Option<Mapping>,
    opening: Opening<'_>,
) -> Result<Box<dyn BenchStore>, String> {
    match engine {
        Engine::Null => Ok(Box::new(NullStore::new(opening.shape, 0))),
        Engine::Hedgerow => {
            let (directory, shape) = (opening.directory, opening.shape);
            Ok(Box::new(HedgerowStore::open_on(opening.medium, directory, shape, options(opening)?)?))
        }
        peer => {
            let opener = peer.opener().ok_or_else(|| format!("built without {}", peer.name()))?;
            opener(opening, mapping.ok_or("a peer needs a mapping")?)
        }
    }
}

fn mapped<S: FlatStore + 'static>(
    store: S,
    opening: Opening<'_>,
    mapping: Mapping,
) -> Result<Box<dyn BenchStore>, String> {
    Ok(Box::new(Mapped::new(store, opening.shape, mapping)?))
}

#[cfg(test)]
mod tests {
    use hedgerow_device::Random;
    use hedgerow_tool::bench::row::{RowSink, RowSource, key_of};
    use hedgerow_tool::bench::store::Columns;

    use super::*;

    /// Every operation of the benchmark on every engine that was built in.
    #[test]
    fn every_engine_gives_back_what_was_written() {
        let shape = RowShape::new(10, 100).unwrap();
        let home = std::env::temp_dir().join(format!("hedgerow-compare-{}", std::process::id()));
        let mappings = [Mapping::Consolidated, Mapping::Scattered, Mapping::Hybrid];
        let with_mapping = PEERS.into_iter().flat_map(|peer| mappings.map(|mapping| (peer, Some(mapping))));
        let all: Vec<_> = std::iter::once((Engine::Hedgerow, None)).chain(with_mapping).collect();
        let ways = [
            (Safety::Process, Medium::File),
            (Safety::Immediate, Medium::File),
            (Safety::Process, Medium::Emulated),
        ];
        for (engine, mapping) in all.into_iter().filter(|(engine, _)| engine.is_built()) {
            for (safety, medium) in ways {
                let directory = home.join(format!("{}-{mapping:?}-{safety:?}-{medium:?}", engine.name()));
                std::fs::create_dir_all(&directory).unwrap();
                let set = ["layout=off".to_owned()];
                let opening = Opening {
                    directory: &directory,
                    shape,
                    records: 300,
                    safety,
                    packing: if safety == Safety::Process { Packing::Lz4 } else { Packing::None },
                    cache_bytes: CACHE_BYTES,
                    medium,
                    set: &set,
                };
                let mut store = open(engine, mapping, opening).unwrap();
                store.clear().unwrap();
                exercise(&*store, shape);
                store.settle().unwrap();
                exercise(&*store, shape);
            }
        }
        std::fs::remove_dir_all(&home).unwrap();
    }

    #[test]
    fn peers_are_named_one_way() {
        for peer in PEERS {
            assert_eq!(Engine::peer(peer.name()), Ok(peer));
        }
        assert!(Engine::peer("rocks").unwrap_err().contains("rocksdb-merge, lmdb"));
    }

    fn exercise(store: &dyn BenchStore, shape: RowShape) {
        let mut session = store.session().unwrap();
        let (mut source, mut random) = (RowSource::new(shape, 1), Random::from_seed(1));
        for record in 0..300 {
            let key = key_of(record);
            session.insert(&key, source.row(&key, &mut random)).unwrap();
        }
        let (key, mut sink) = (key_of(7), RowSink::new(shape));
        let value = source.value(&key, 3, &mut random).to_vec();
        session.update(&key, 3, &value).unwrap();
        session.read(&key, Columns::Some(&[3]), &mut sink).unwrap();
        sink.check_read(&key, 1).unwrap();
        assert_eq!(sink.last_row()[300..400], value);
        // More than a merge operator may leave to a reader, and the newest wins.
        for _ in 0..30 {
            let value = source.value(&key, 5, &mut random).to_vec();
            session.update(&key, 5, &value).unwrap();
            sink.clear();
            session.read(&key, Columns::Some(&[5]), &mut sink).unwrap();
            assert_eq!(sink.last_row()[500..600], value);
        }
        let value = source.value(&key, 9, &mut random).to_vec();
        sink.clear();
        session.read_modify_write(&key, 9, &value, &mut sink).unwrap();
        sink.check_read(&key, 10).unwrap();
        sink.clear();
        session.read(&key, Columns::All, &mut sink).unwrap();
        sink.check_read(&key, 10).unwrap();
        assert_eq!(sink.last_row()[900..], value);
        let first = (0..300).map(key_of).min().unwrap();
        for (columns, values) in [(Columns::All, 10), (Columns::Some(&[4]), 1)] {
            sink.clear();
            session.scan(&first, 300, columns, &mut sink).unwrap();
            sink.check_scan(&first, 300, values, 300).unwrap();
        }
    }
}
