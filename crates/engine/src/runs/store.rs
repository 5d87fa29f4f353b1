//! The runs of an open store: its directory of sorted tables, and which of them count.
//!
//! Owns [`Runs`]: the files on the capacity tier, the manifest that says which of them count, and the [`OpenRuns`] that readers load. Promises that an edit is
//! durable before anybody sees what it says; that a file goes only when an edit without it is durable and nobody looks into it; that no number is given twice; and that
//! a directory of another store, or one that is newer than the log, is refused and left as it is. Must not know what a table is, nor why an edit is made.
//!
//! The directory is made when the first file is: a store that has nothing below its log has none.

mod held_off;
mod room;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use hedgerow_device::{CapacityTier, WritePath, available_memory_bytes};

pub(crate) use self::held_off::RunsToCopy;
pub(crate) use self::room::RoomFor;
use super::cursor::RunsCursor;
use super::merges::{MergeNumbers, Merges};
use super::parked::{ParkedWalk, ParkedWalks};
use super::{FoundVersions, OpenRun, OpenRuns};
use crate::epoch::Guard as EpochGuard;
use crate::log::Log;
use crate::manifest::edits::{SstManifest, pair_in, store_of_copy};
use crate::manifest::version::{FileOrigin, FileRange, SstChange, SstVersion, TakenRecords, store_of_file};
use crate::options::CacheMode;
use crate::sst::{
    BlockCache, RecordCache, Sst, SstId, SstKey, SstOptions, SstWriter, is_foreign_header, store_in_header,
};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{Error, ErrorKind, Options, Result};

/// A file takes no more records once it has so many bytes.
pub(super) const TARGET_BYTES: u64 = if cfg!(test) { 256 << 10 } else { 64 << 20 };
/// And where there is little room for all of them, it is this many at least.
const TARGET_BYTES_MIN: u64 = 64 << 10;
/// So many numbers of files are taken by one edit.
const NUMBERS_STEP: u64 = 64;
/// The cache of blocks has no less.
const BLOCK_CACHE_BYTES_MIN: u64 = 8 << 20;

/// Where sorted tables are, or would be.
#[derive(Debug, Clone, Default)]
pub(crate) enum CapacityPlace {
    /// Nobody said.
    #[default]
    Nowhere,
    /// In this directory, which is made when it is needed.
    Directory(PathBuf),
    /// On a tier that was opened by whoever opens the store.
    Opened(CapacityTier),
}

/// How sorted tables are kept.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RunsSettings {
    /// The most bytes that they may take.
    pub(crate) bytes_max: u64,
    pub(crate) sst: SstOptions,
    pub(crate) block_cache_bytes: u64,
    /// For blocks of the index.
    pub(crate) index_cache_bytes: u64,
    /// For single records.
    pub(crate) record_cache_bytes: u64,
    /// For single records besides, while nobody else takes these.
    pub(crate) lent_bytes: u64,
}

impl RunsSettings {
    /// What `options` ask for.
    pub(crate) fn of(options: &Options) -> RunsSettings {
        let block_cache_bytes = (options.cache_bytes / 4).max(BLOCK_CACHE_BYTES_MIN);
        RunsSettings {
            bytes_max: options.capacity_bytes_max,
            sst: SstOptions { compression: options.compression, ..SstOptions::default() },
            // Of what is asked for again and again, single records save more than their blocks do, and take less.
            block_cache_bytes: block_cache_bytes / 2,
            record_cache_bytes: block_cache_bytes / 2,
            // Whoever wants no cache of rows, or always one, lends nothing.
            lent_bytes: if options.cache_mode == CacheMode::Auto { options.cache_bytes } else { 0 },
            // Of these a file needs little, but a look that does not find them costs two reads of the disk.
            index_cache_bytes: block_cache_bytes,
        }
    }

    /// For readers of `log`; none of a store that is opened to be read only: it has no threads, and nobody would fill it.
    fn record_cache(&self, log: &Log) -> Option<Arc<RecordCache>> {
        if log.tier().is_read_only() {
            return None;
        }
        let epoch = log.epoch().clone();
        Some(Arc::new(RecordCache::new(epoch, self.record_cache_bytes, self.lent_bytes)))
    }
}

/// The files of one store.
#[derive(Debug, Clone)]
struct SstFiles {
    tier: CapacityTier,
    store: u128,
    /// Of a copy: who wrote which of its files.
    origins: Arc<[FileOrigin]>,
    cache: BlockCache,
}

/// Whether a file of this name is a store's.
fn is_of_a_store(name: &str) -> bool {
    pair_in(name).is_some() || SstId::number_in(name).is_some()
}

fn is_of_another_store(name: &str) -> Error {
    Error::invalid(format!(
        "the directory of sorted tables has some of another store ({name}): give each store one of its own (Options::capacity)"
    ))
}

impl SstFiles {
    fn open(&self, number: u64) -> Result<Sst> {
        Sst::open(&self.tier, self.id(number), &self.cache)
    }

    /// What the file of this number says that it is.
    fn id(&self, number: u64) -> SstId {
        SstId { store: store_of_file(&self.origins, number, self.store), number }
    }

    /// Opens what counts.
    fn open_all(&self, version: &SstVersion) -> Result<OpenRuns> {
        let there: BTreeSet<String> = self.tier.names()?.into_iter().collect();
        OpenRuns::of(version, 0, |number| {
            let name = self.id(number).file_name();
            match there.contains(&name) {
                true => self.open(number),
                false => Err(Error::corrupted(format!(
                    "the sorted table {name}, which the manifest names, is missing"
                ))),
            }
        })
    }

    /// The store that the file of this name says it is of; `None` if it is not whole, as a crash may leave one.
    ///
    /// # Errors
    /// `Invalid` of a file that is something else under such a name; what the capacity tier refuses.
    fn store_of(&self, name: &str) -> Result<Option<u128>> {
        if pair_in(name).is_some() {
            return store_of_copy(&self.tier, name);
        }
        let (file, mut page) = (self.tier.open_file(name)?, [0; 4096]);
        let bytes = file.bytes()?.min(page.len() as u64) as usize;
        file.read_at(0, &mut page[..bytes])?;
        match is_foreign_header(&page) {
            false => Ok(store_in_header(&page)),
            true => Err(Error::invalid(format!(
                "the file {name} in the directory of sorted tables is none: nothing of it is removed or written over, move it elsewhere"
            ))),
        }
    }
}

/// What is known while the runs change.
#[derive(Debug, Default)]
struct Changing {
    files: Option<SstFiles>,
    manifest: Option<SstManifest>,
    /// What it said, where nothing is to be changed.
    read: Option<SstVersion>,
    /// Of the next pair of the manifest.
    next_pair: u64,
    /// Of the next file. Below `numbers_end` they are taken in the manifest, durably.
    next_number: u64,
    numbers_end: u64,
    /// Tables to be: what counts of them no table has yet.
    loading: BTreeSet<u32>,
    /// Files that do not count any more, and may be looked into still.
    dropped: Vec<Sst>,
}

/// The runs of a store.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    current: ArcSwap<OpenRuns>,
    place: CapacityPlace,
    settings: RunsSettings,
    changing: Mutex<Changing>,
    /// Of all files with a name, and what was reserved for those that are written.
    bytes: AtomicU64,
    /// See [`Runs::is_exceeded`].
    excess: AtomicU64,
    /// A table was dropped or cleared since files were last looked at for rows of such.
    tables_gone: AtomicBool,
    /// The files, once they are opened, to whoever must not wait while they change.
    opened: ArcSwapOption<SstFiles>,
    /// None in a store that is only read, or too damaged to be.
    records: Option<Arc<RecordCache>>,
    /// Bytes of files that were brought into memory because much of them was read.
    brought: AtomicU64,
    pub(super) merges: Merges,
    parked: ParkedWalks,
}

/// What is left of a file in a run when some of its keys went elsewhere.
#[derive(Debug)]
pub(super) struct Trimmed {
    pub(super) run: u64,
    pub(super) number: u64,
    /// All ranges that count in it from then on.
    pub(super) left: Vec<FileRange>,
    /// Ranges that count in the run which has what was merged from then on.
    pub(super) handed_down: Vec<FileRange>,
}

/// Opening.
impl Runs {
    /// Opens what the root of `log` names, and changes nothing but copies of the manifest that lack something.
    ///
    /// # Errors
    /// `Invalid` if sorted tables count and nobody said where they are, or the place has another store's; `Corrupted` if something of them is missing or damaged, or
    /// newer than the log.
    pub(crate) fn open(log: &Log, place: CapacityPlace, settings: RunsSettings) -> Result<Runs> {
        let root = log.root();
        let is_read_only = log.tier().is_read_only();
        let tier = match &place {
            CapacityPlace::Opened(tier) => Some(tier.clone()),
            CapacityPlace::Directory(path) if CapacityTier::is_there(path) => Some(match is_read_only {
                true => CapacityTier::open_read_only(path)?,
                false => CapacityTier::open(path)?,
            }),
            CapacityPlace::Directory(_) | CapacityPlace::Nowhere => None,
        };
        let Some(tier) = tier else {
            return match root.manifest {
                0 => Ok(Runs { place, settings, records: settings.record_cache(log), ..Runs::default() }),
                _ => Err(not_given(&place)),
            };
        };
        // Where no rows are kept by themselves, blocks have their share.
        let rows_bytes = if is_read_only { settings.record_cache_bytes } else { 0 };
        let block_cache_bytes = settings.block_cache_bytes + rows_bytes;
        let mut files = SstFiles {
            tier,
            store: root.store_id,
            origins: Arc::default(),
            cache: BlockCache::with_index(block_cache_bytes, settings.index_cache_bytes),
        };
        let mut changing = Changing { next_pair: root.manifest + 1, ..Changing::default() };
        let mut version = SstVersion::default();
        if root.manifest != 0 {
            let pair = (files.store, root.manifest);
            match is_read_only {
                true => {
                    version = SstManifest::read(&files.tier, pair)?;
                    changing.read = Some(version.clone());
                }
                false => {
                    let manifest = SstManifest::open(&files.tier, pair)?;
                    version = manifest.version().clone();
                    changing.manifest = Some(manifest);
                }
            }
            check_age(version.watermark, root.watermark)?;
            files.origins = version.origins().into();
        }
        let opened = files.open_all(&version)?;
        let bytes: Result<Vec<u64>> = opened.files().iter().map(Sst::file_bytes).collect();
        let bytes = bytes?.iter().sum();
        (changing.next_number, changing.numbers_end) = (version.next_number, version.next_number);
        let opened_files = ArcSwapOption::from_pointee(files.clone());
        changing.files = Some(files);
        let records = settings.record_cache(log);
        let opened = OpenRuns { records: records.clone(), ..opened };
        Ok(Runs {
            brought: AtomicU64::new(0),
            merges: Merges::of_opened(&opened),
            parked: ParkedWalks::default(),
            current: ArcSwap::from_pointee(opened),
            place,
            settings,
            changing: Mutex::new(changing),
            tables_gone: AtomicBool::new(false),
            bytes: AtomicU64::new(bytes),
            excess: AtomicU64::new(Runs::excess_of(bytes, settings.bytes_max)),
            opened: opened_files,
            records,
        })
    }

    /// Removes what an earlier process left and nothing names, by its name: files of others stay. The root is durable by now: whatever it named before, it does
    /// not any more.
    ///
    /// # Errors
    /// As [`Runs::open`]; what the capacity tier refuses.
    pub(crate) fn remove_unnamed(&self, log: &Log) -> Result<()> {
        let mut changing = self.changing.lock();
        let Some(files) = changing.files.clone() else { return Ok(()) };
        let unnamed = self.unnamed(&changing, &files, log.root().manifest)?;
        for name in &unnamed {
            let (store, number) = (files.store_of(name)?, SstId::number_in(name));
            let expected = number.map_or(files.store, |number| files.id(number).store);
            if store.is_some_and(|store| store != expected) {
                return Err(is_of_another_store(name));
            }
            let pair = pair_in(name);
            changing.next_pair = changing.next_pair.max(pair.map_or(0, |pair| pair + 1));
            match pair.map(|pair| SstManifest::read(&files.tier, (files.store, pair))) {
                Some(Ok(left)) => check_age(left.watermark, log.checkpointed_sequence())?,
                // A crash left a part of it.
                Some(Err(error)) if error.kind() == ErrorKind::Corrupted => {}
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        for name in &unnamed {
            // PERSIST: the root that names none of them is durable.
            files.tier.remove(name)?;
        }
        if unnamed.is_empty() { Ok(()) } else { Ok(files.tier.sync_names()?) }
    }

    /// Names of sorted tables and copies of manifests that do not count.
    fn unnamed(&self, changing: &Changing, files: &SstFiles, manifest: u64) -> Result<Vec<String>> {
        let current = self.current();
        let is_unnamed = |name: &String| {
            let number = SstId::number_in(name);
            let counts = |number| {
                current.file(number).is_some() || changing.dropped.iter().any(|sst| sst.id().number == number)
            };
            pair_in(name).is_some_and(|pair| pair != manifest) || number.is_some_and(|number| !counts(number))
        };
        Ok(files.tier.names()?.into_iter().filter(is_unnamed).collect())
    }
}

/// Looking, for whoever reports.
impl Runs {
    /// Up to where all was durable when the last edit was made.
    pub(crate) fn watermark(&self) -> Option<u64> {
        self.changing.lock().version().map(|version| version.watermark)
    }

    /// Bytes of all files with a name, and how many they may have.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.settings.bytes_max)
    }

    /// Single records may take so many bytes of memory besides what is theirs.
    pub(crate) fn lend_memory(&self, bytes: u64) {
        if let Some(records) = &self.records {
            records.set_bytes_max(self.settings.record_cache_bytes.saturating_add(bytes));
        }
    }

    /// The cache of blocks, if there are files. Waits for no edit.
    pub(crate) fn block_cache(&self) -> Option<BlockCache> {
        self.opened.load().as_ref().map(|files| files.cache.clone())
    }

    /// Names of files that nothing names: a crash may have left them, and who opens the store to write removes them.
    ///
    /// # Errors
    /// What the capacity tier refuses.
    pub(crate) fn left_over(&self, log: &Log) -> Result<Vec<String>> {
        let changing = self.changing.lock();
        match &changing.files {
            Some(files) => self.unnamed(&changing, files, log.root().manifest),
            None => Ok(Vec::new()),
        }
    }

    /// Names of copies of the manifest that lack something, and whose other copy serves.
    ///
    /// # Errors
    /// `Corrupted`; what the capacity tier refuses.
    pub(crate) fn lagging_copies(&self, log: &Log) -> Result<Vec<String>> {
        match (&self.changing.lock().files, log.root().manifest) {
            (None, _) | (_, 0) => Ok(Vec::new()),
            (Some(files), pair) => SstManifest::lagging(&files.tier, (files.store, pair)),
        }
    }

    /// What was merged since the store was opened.
    pub(crate) fn merged(&self) -> MergeNumbers {
        self.merges.numbers()
    }

    /// Bytes of files that were brought into memory since the store was opened.
    pub(crate) fn bytes_brought(&self) -> u64 {
        self.brought.load(Ordering::Relaxed)
    }

    /// Every file that counts, once, by its number.
    pub(crate) fn files_once(&self) -> Vec<Sst> {
        self.current().files().to_vec()
    }
}

/// Reading.
impl Runs {
    /// What counts now. Whoever asks the index too asks it before.
    #[inline]
    pub(crate) fn current(&self) -> Guard<Arc<OpenRuns>> {
        self.current.load()
    }

    /// A number that rises with each change that may change an answer: who looked while it was the same has looked at what counts.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.current().generation()
    }

    /// Whether any file may hold the key of a table.
    pub(crate) fn may_hold(&self, table: u32, key: &[u8]) -> bool {
        self.current().may_hold(&SstKey::new(table, key))
    }

    /// How much of what deltas cover counts as garbage, in percent: by how much was read below since the store was opened, and so many `writes` were made by now.
    pub(crate) fn covered_percent(&self, now_ns: u64, writes: u64) -> u64 {
        let looks = self.block_cache().map_or(0, |cache| cache.counts().looks() + cache.counts().walked());
        self.merges.covered.lock().percent(now_ns, [looks, writes])
    }

    /// The row that counts of a key, if it is in memory by itself.
    #[inline]
    pub(crate) fn row_in_memory(&self, key: &SstKey, guard: &EpochGuard<'_>) -> Option<FoundVersions> {
        self.records.as_ref()?.get(key, guard).map(FoundVersions::of)
    }

    /// The records that are in memory by themselves.
    pub(crate) fn record_cache(&self) -> Option<&RecordCache> {
        self.records.as_deref()
    }

    /// Takes into memory by themselves rows that were found and may be asked for again; whether there were any.
    pub(crate) fn take_in_rows(&self) -> bool {
        self.record_cache().is_some_and(|records| records.take_in() > 0)
    }

    /// These keys of a table moved, and the index is about to forget them.
    pub(crate) fn forget_rows_in_memory<'k>(&self, table: u32, keys: impl Iterator<Item = &'k [u8]>) {
        if let Some(records) = self.record_cache().filter(|records| records.is_in_use()) {
            keys.for_each(|key| records.forget(&SstKey::new(table, key)));
        }
    }

    /// Brings a file into the page cache of which much is read, as long as `goes_on`, if there is one and if `is_room` for all files. Whether there was.
    ///
    /// A read of one block takes nearly as long as one of a hundred that lie together. So where all files fit in memory, reading each once as a whole is much
    /// sooner done than reading its blocks one by one as they are asked for; and they are read once at most. Where they do not fit, nothing is read that nobody asked for.
    pub(crate) fn bring_what_is_read(&self, is_room: impl Fn() -> bool, goes_on: impl Fn() -> bool) -> bool {
        let sst = self.current().files().iter().find(|sst| sst.is_to_be_brought()).cloned();
        let Some(sst) = sst.filter(|_| is_room()) else { return false };
        // Whoever reads what cannot be read is told so.
        let brought = sst.bring(goes_on).unwrap_or(0);
        self.brought.fetch_add(brought, Ordering::Relaxed);
        true
    }

    /// Has a walk rest at a place of its own, made when it first does.
    pub(crate) fn park(&self, place: &mut Option<Arc<ParkedWalk>>, walk: RunsCursor) {
        self.parked.park(place, walk, &self.current);
    }

    /// Has the generation rise: what was found of a key, or not found, may not be so any more.
    pub(crate) fn raise_generation(&self) {
        self.publish(None, true);
    }

    fn publish(&self, next: Option<OpenRuns>, rises: bool) {
        self.current.rcu(|before| {
            let of = next.as_ref().unwrap_or(before);
            let (runs, files) = (Arc::clone(&of.runs), Arc::clone(&of.files));
            let records = self.records.clone();
            OpenRuns { generation: before.generation + u64::from(rises), runs, files, records }
        });
        if let Some(records) = &self.records {
            records.rise_to(self.generation());
        }
    }
}

/// Writing files.
impl Runs {
    /// Which path files take that are written of these, or of what is asked for as much: through the page cache if most of what is there is read from files, and memory has room
    /// for all.
    pub(crate) fn write_path<'s>(&self, log: &Log, files: impl Iterator<Item = &'s Sst>) -> WritePath {
        let (mut read, mut all) = (0, 0);
        for sst in files {
            let bytes = sst.counts().bytes;
            (read, all) = (read + if sst.is_read_much() { bytes } else { 0 }, all + bytes);
        }
        match all > 0 && 2 * read >= all && self.has_memory_for_all(log) {
            true => WritePath::ThroughPageCache,
            false => WritePath::PastPageCache,
        }
    }

    /// Whether memory has room for all files and for the fast tier.
    pub(crate) fn has_memory_for_all(&self, log: &Log) -> bool {
        let all = self.bytes().0.saturating_add(log.tier().bytes());
        available_memory_bytes().is_some_and(|available| all < available / 4 * 3)
    }

    /// A file to be written on this path, under a number that no other has.
    ///
    /// # Errors
    /// `Invalid` if nobody said where; `Full`; what the capacity tier refuses.
    pub(crate) fn create_file(&self, log: &Log, path: WritePath) -> Result<SstWriter> {
        let mut changing = self.changing.lock();
        let files = self.files(&mut changing, log)?;
        if changing.next_number == changing.numbers_end {
            let (number, run) =
                changing.version().map_or((0, 0), |version| (version.next_number, version.next_run));
            let end = number + NUMBERS_STEP;
            self.apply(&mut changing, log, &[SstChange::Next { number: end, run }])?;
            changing.numbers_end = end;
        }
        let number = changing.next_number;
        changing.next_number += 1;
        drop(changing);
        let id = SstId { store: files.store, number };
        let options = SstOptions { path, ..self.settings.sst };
        SstWriter::create(&files.tier, id, options)
    }

    /// Removes a file that will not be finished.
    pub(crate) fn abandon_file(&self, writer: SstWriter) {
        let name = writer.id().file_name();
        drop(writer);
        if let Some(files) = &self.changing.lock().files {
            // If it stays, opening removes it.
            let _ = files.tier.remove(&name);
        }
    }

    /// Ends a file, for which so many bytes are reserved: it is on the device, with its name, and takes what it has.
    ///
    /// # Errors
    /// `Full` if it would take more than all may; what the capacity tier refuses. The file is gone then.
    pub(crate) fn finish_file(&self, log: &Log, writer: SstWriter, mut reserved: u64) -> Result<Sst> {
        let files = self.files(&mut self.changing.lock(), log).inspect_err(|_| self.release(reserved))?;
        let name = writer.id().file_name();
        let sst = writer.finish(&files.cache).and_then(|sst| {
            let bytes = sst.file_bytes()?;
            // Its index and its filter come last.
            self.reserve(bytes.saturating_sub(reserved), RoomFor::Merges)?;
            self.release(reserved.saturating_sub(bytes));
            reserved = bytes;
            // PERSIST: the name before the edit that gives it.
            files.tier.sync_names()?;
            Ok(sst)
        });
        if sst.is_err() {
            self.release(reserved);
            // What there is of it is of no use. If it stays, opening removes it.
            let _ = files.tier.remove(&name);
        }
        sst
    }

    /// Whether files may be made.
    pub(crate) fn has_place(&self) -> bool {
        !matches!(self.place, CapacityPlace::Nowhere)
    }

    /// `Invalid` if nobody said where files may be; `Full` if there are to be none.
    pub(crate) fn check_place(&self) -> Result<()> {
        match &self.place {
            CapacityPlace::Nowhere => Err(not_given(&self.place)),
            _ if self.settings.bytes_max == 0 => Err(not_wanted()),
            CapacityPlace::Directory(_) | CapacityPlace::Opened(_) => Ok(()),
        }
    }

    /// Removes files that were finished and never counted.
    pub(crate) fn discard(&self, files: Vec<Sst>) {
        let mut changing = self.changing.lock();
        changing.dropped.extend(files);
        self.remove_dropped_files(&mut changing);
    }

    /// Removes the files that do not count any more, and that nobody looks into.
    pub(crate) fn remove_dropped(&self) -> bool {
        self.remove_dropped_files(&mut self.changing.lock())
    }

    fn remove_dropped_files(&self, changing: &mut Changing) -> bool {
        let Some(files) = &changing.files else { return false };
        let before = changing.dropped.len();
        if before > 0 {
            self.parked.let_go_unless(&self.current());
        }
        changing.dropped.retain(|sst| {
            let (is_held, bytes) = (sst.is_held_elsewhere(), sst.file_bytes().unwrap_or(0));
            // One that cannot be removed now stays on the list.
            let is_removed = !is_held && files.tier.remove(&sst.id().file_name()).is_ok();
            if is_removed {
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            !is_removed
        });
        self.lower_excess();
        changing.dropped.len() < before
    }

    /// The files, made ready if there are none yet.
    fn files(&self, changing: &mut Changing, log: &Log) -> Result<SstFiles> {
        if let Some(files) = &changing.files {
            return Ok(files.clone());
        }
        let CapacityPlace::Directory(path) = &self.place else { return Err(not_given(&self.place)) };
        let tier = CapacityTier::open(path)?;
        // It was not there when the store was opened, so nothing in it is of this one.
        if let Some(name) = tier.names()?.iter().find(|name| is_of_a_store(name)) {
            return Err(is_of_another_store(name));
        }
        let RunsSettings { block_cache_bytes, index_cache_bytes, .. } = self.settings;
        let cache = BlockCache::with_index(block_cache_bytes, index_cache_bytes);
        let files = SstFiles { tier, store: log.root().store_id, origins: Arc::default(), cache };
        self.opened.store(Some(Arc::new(files.clone())));
        changing.next_pair = changing.next_pair.max(1);
        changing.files = Some(files.clone());
        Ok(files)
    }
}

/// Editing.
impl Runs {
    /// Has `files`, whose keys rise from each to the next, count as the newest run. Nobody sees it as of a sequence below the one in what is returned.
    ///
    /// # Errors
    /// `Full`; what the capacity tier or the log refuses. Where the log takes no more writes afterwards it is not known whether they count.
    pub(crate) fn add_run(&self, log: &Log, files: &[Sst]) -> Result<Arc<AtomicU64>> {
        let run = self.add_newest(log, files, false)?;
        let current = self.current();
        let added = current.runs.iter().find(|added| added.number == run);
        Ok(added.map_or_else(Arc::default, |added| Arc::clone(&added.visible_from)))
    }

    /// Has `files` count as [`Runs::add_run`], of rows that the index has as well until they have left it: everybody sees them, and the generation rises with them.
    ///
    /// # Errors
    /// As [`Runs::add_run`].
    pub(crate) fn add_moved(&self, log: &Log, files: &[Sst]) -> Result<()> {
        self.add_newest(log, files, true).map(drop)
    }

    /// Returns the number of the run.
    fn add_newest(&self, log: &Log, files: &[Sst], rises: bool) -> Result<u64> {
        let mut changing = self.changing.lock();
        let version = changing.version();
        let (number, run) = version.map_or((0, 0), |version| (version.next_number, version.next_run));
        let mut changes = vec![SstChange::Next { number, run: run + 1 }];
        changes.extend(files.iter().map(|sst| SstChange::Add {
            run,
            range: FileRange { number: sst.id().number, keys: sst.keys().clone() },
        }));
        self.edit_locked(&mut changing, log, &changes, (files, rises))?;
        Ok(run)
    }

    /// Takes the files off that have nothing but rows of tables which are gone, but those of tables that are being loaded. `tables` is asked under the lock of edits for
    /// what tells a table that is there, and for the sequence up to which all must be durable that made it so. Whether any was removed by then, of these or of others that nobody holds any more.
    ///
    /// # Errors
    /// As [`Runs::add_run`].
    pub(crate) fn remove_tables<L: Fn(u32) -> bool>(
        &self,
        log: &Log,
        tables: impl FnOnce() -> (L, u64),
    ) -> Result<bool> {
        if self.current().is_empty() {
            return Ok(false);
        }
        let mut changing = self.changing.lock();
        let (lives, sequence) = tables();
        let is_gone = |sst: &Sst| {
            sst.tables().iter().all(|known| !lives(known.table) && !changing.loading.contains(&known.table))
        };
        let mut changes = Vec::new();
        for run in self.current().runs.iter() {
            let gone = run.ranges.iter().filter(|range| is_gone(&range.sst));
            let numbers: BTreeSet<u64> = gone.map(|range| range.sst.id().number).collect();
            changes.extend(numbers.iter().map(|&number| SstChange::Remove { run: run.number, number }));
        }
        if !changes.is_empty() {
            // PERSIST: a table that a power cut brings back has all its rows still.
            log.persist_to(sequence)?;
            self.edit_locked(&mut changing, log, &changes, (&[], false))?;
        }
        Ok(self.remove_dropped_files(&mut changing))
    }

    /// Nobody changes the files until what is returned is dropped.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn hold_edits(&self) -> impl Sized + '_ {
        self.changing.lock()
    }

    /// A table was dropped or cleared: files may have nothing but rows of it.
    pub(crate) fn record_tables_gone(&self) {
        self.tables_gone.store(true, Ordering::Release);
    }

    /// Whether one was since this was last asked.
    pub(crate) fn take_tables_gone(&self) -> bool {
        self.tables_gone.swap(false, Ordering::AcqRel)
    }

    /// The table of this number is being loaded until the guard goes: what counts of it is no garbage, though no table has the number.
    pub(crate) fn loading(&self, table: u32) -> LoadingTable<'_> {
        self.changing.lock().loading.insert(table);
        LoadingTable { runs: self, table }
    }

    /// Whether any of these files has something of a table that is being loaded.
    pub(super) fn is_loading<'s>(&self, files: impl Iterator<Item = &'s Sst>) -> bool {
        let changing = self.changing.lock();
        let is_loading = |sst: &Sst| sst.tables().iter().any(|known| changing.loading.contains(&known.table));
        !changing.loading.is_empty() && files.into_iter().any(is_loading)
    }

    /// Puts merged files into a run, which is visible from a sequence on, and takes from it and from newer ones what they were merged of, by one edit; with them, or instead of them, what newer ones
    /// have that changes its run. Of files of which something is left `taken` says what went. Answers stay as they are; but what was found counts no more if a row that has expired
    /// is not among the files, so that the generation rises: deltas are written without a look then, and would go with the row for who folds them over it.
    ///
    /// # Errors
    /// As [`Runs::add_run`].
    pub(super) fn replace_merged(
        &self,
        log: &Log,
        (run, visible_from): (u64, u64),
        (files, rises): (&[Sst], bool),
        (trimmed, taken): (&[Trimmed], &[TakenRecords]),
    ) -> Result<()> {
        let mut changing = self.changing.lock();
        let before = Arc::clone(&self.current());
        // What no table has may have been taken off meanwhile.
        let counts = |trimmed: &&Trimmed| {
            let run = before.runs.iter().find(|run| run.number == trimmed.run);
            run.is_some_and(|run| run.ranges.iter().any(|range| range.sst.id().number == trimmed.number))
        };
        let trimmed: Vec<&Trimmed> = trimmed.iter().filter(counts).collect();
        let removed = trimmed.iter().map(|of| SstChange::Remove { run: of.run, number: of.number });
        let mut changes: Vec<SstChange> = removed.collect();
        for Trimmed { run: of, left, handed_down, .. } in trimmed {
            let add = |run: u64, range: &FileRange| SstChange::Add { run, range: range.clone() };
            changes.extend(left.iter().map(|range| add(*of, range)));
            changes.extend(handed_down.iter().map(|range| add(run, range)));
        }
        changes.extend(files.iter().map(|sst| SstChange::Add {
            run,
            range: FileRange { number: sst.id().number, keys: sst.keys().clone() },
        }));
        changes.extend(taken.iter().copied().map(SstChange::Taken));
        self.edit_locked(&mut changing, log, &changes, (files, rises))?;
        if let Some(merged) = self.current().runs.iter().find(|known| known.number == run) {
            merged.visible_from.fetch_max(visible_from, Ordering::Release);
        }
        Ok(())
    }

    fn edit_locked(
        &self,
        changing: &mut Changing,
        log: &Log,
        changes: &[SstChange],
        (new, rises): (&[Sst], bool),
    ) -> Result<()> {
        self.apply(changing, log, changes)?;
        let before = self.current();
        let version = changing.version().expect("an edit has been made");
        let file = |number: u64| {
            let known = before.file(number).or_else(|| new.iter().find(|sst| sst.id().number == number));
            Ok(known.expect("what an edit adds is given with it").clone())
        };
        let mut next = OpenRuns::of(version, 0, file)?;
        keep_visibility(&mut next, &before);
        let gone = before.files().iter().filter(|sst| next.file(sst.id().number).is_none());
        let gone: Vec<Sst> = gone.cloned().collect();
        self.publish(Some(next), rises);
        changing.dropped.extend(gone);
        Ok(())
    }

    /// Makes an edit durable. One that was begun and failed closes the store for writing, and removes nothing: whether it counts is for the next opening to find
    /// out.
    fn apply(&self, changing: &mut Changing, log: &Log, changes: &[SstChange]) -> Result<()> {
        // In this order: a root whose writing failed is the last, and the log says so.
        let watermark = log.checkpointed_sequence();
        log.check_writable()?;
        let mut changes = changes.to_vec();
        changes.push(SstChange::Watermark { sequence: watermark });
        let next = changing.version().cloned().unwrap_or_default().after(&changes)?;
        // Ahead of need: what is left of a pair is for edits that make room, where the disk has none for another.
        let is_early = changing.manifest.as_ref().is_some_and(|manifest| manifest.has_room(&changes));
        if !is_early || changing.manifest.as_ref().is_some_and(SstManifest::is_half_used) {
            match self.switch_manifest(changing, log, next) {
                // There was no need yet.
                Err(_) if is_early && log.check_writable().is_ok() => {}
                switched => return switched,
            }
        }
        let manifest = changing.manifest.as_mut().expect("it has room");
        manifest.append(&changes).inspect_err(|error| log.halt_after_edit(error))
    }

    /// Puts what counts into the next pair of the manifest, and has the root name it.
    fn switch_manifest(&self, changing: &mut Changing, log: &Log, version: SstVersion) -> Result<()> {
        let files = self.files(changing, log)?;
        let pair = changing.next_pair;
        changing.next_pair += 1;
        let manifest = SstManifest::create(&files.tier, (files.store, pair), version)?;
        let before = log.root().manifest;
        // PERSIST: the pair is durable, names and all; and it counts on return.
        log.name_manifest(pair).inspect_err(|error| log.halt_after_edit(error))?;
        changing.manifest = Some(manifest);
        if before != 0 {
            // PERSIST: no copy of the root names it any more.
            let _ = SstManifest::remove(&files.tier, before);
        }
        Ok(())
    }
}

impl Changing {
    /// What counts; `None` before the first edit.
    fn version(&self) -> Option<&SstVersion> {
        self.manifest.as_ref().map(SstManifest::version).or(self.read.as_ref())
    }
}

/// A table that is being loaded, as long as this lives.
#[derive(Debug)]
pub(crate) struct LoadingTable<'r> {
    runs: &'r Runs,
    table: u32,
}

impl Drop for LoadingTable<'_> {
    fn drop(&mut self) {
        self.runs.changing.lock().loading.remove(&self.table);
    }
}

/// Runs that were there before are visible to whom they were.
fn keep_visibility(next: &mut OpenRuns, before: &OpenRuns) {
    let kept = |run: &OpenRun| {
        let known = before.runs.iter().find(|known| known.number == run.number);
        let visible_from = Arc::clone(&known.unwrap_or(run).visible_from);
        OpenRun { visible_from, ..run.clone() }
    };
    next.runs = next.runs.iter().map(kept).collect();
}

/// `Corrupted` if the log is older than the last edit.
fn check_age(edit: u64, root: u64) -> Result<()> {
    if edit <= root {
        return Ok(());
    }
    Err(Error::corrupted(format!(
        "the sorted tables are newer than the fast tier: their manifest was last edited when all up to sequence {edit} was durable, and the root knows of {root}; an older copy of the fast tier was put beside them"
    )))
}

#[cold]
fn not_wanted() -> Error {
    Error::new(ErrorKind::Full, "the store takes no sorted tables: capacity_bytes_max is 0")
}

#[cold]
fn not_given(place: &CapacityPlace) -> Error {
    let place = match place {
        CapacityPlace::Directory(path) => format!("does not find their directory {}", path.display()),
        CapacityPlace::Nowhere | CapacityPlace::Opened(_) => "was opened without a place for them".to_owned(),
    };
    Error::invalid(format!(
        "the store has or needs sorted tables, and {place}: Options::capacity says where they are"
    ))
}
