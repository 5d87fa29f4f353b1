//! The directory that a backup is made in.
//!
//! Owns the order of the steps there, so that whatever ends the process leaves a finished backup or an unfinished one that is
//! known as such and can be gone on with:
//!
//! 1. The file is called `fast.partial` from the first to the last: nothing opens that as a store. An earlier backup's `fast`
//!    is given that name first, durably.
//! 2. The manifest says which segments are in it already, whole. Before any of these is written over, it no longer says so.
//! 3. Segments are written, and synced; then the manifest names them.
//! 4. Sorted tables get their names, and whole, by `sorted_tables.rs`; then the manifest that says which of them count.
//! 5. The catalog, then the root, durably. All of it is read again from the device and verified.
//! 6. The manifest says what the root says, and the file is called `fast`, durably.
//!
//! Must not know where segments come from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hedgerow_device::{
    CapacityTier, CopyFile, DirectoryLock, FastTier, Random, append_to_file, crc32c, create_directories,
    names_in, read_small_file, remove_file, rename_file, replace_small_file,
};

use super::MANIFEST_FILE;
use super::manifest::{ImageId, Kept, Manifest};
use super::sorted_tables::{self, Placed, SortedTables};
use crate::db::FAST_TIER_FILE;
use crate::db::identity::PARTIAL_FILE;
use crate::db::inspect::{CheckProgress, Report, View};
use crate::log::segment::SEGMENT_HEADER_BYTES;
use crate::log::{Extract, Log, SegmentToCopy};
use crate::manifest::root::Root;
use crate::manifest::segment_list::SegmentEntry;
use crate::options::CAPACITY_DIRECTORY;
use crate::runs::RunsToCopy;
use crate::sst::Sst;
use crate::tier::bytes_of;
use crate::{Error, ErrorKind, Result};

/// Bytes written between two syncs: what a killed backup does again at most, and what the device is given at once.
const SYNC_STEP_BYTES: u64 = 32 << 20;
/// Bytes at the end of a segment that its manifest line has the checksum of.
const TAIL_BYTES: usize = 4096;

/// What a copy is once it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A later backup of the same store may go on with it.
    Backup,
    /// A store like any other.
    Store,
}

/// A backup in the making.
pub(super) struct Target {
    directory: PathBuf,
    file: CopyFile,
    manifest: Manifest,
    /// Written since the last sync.
    unsynced: Vec<(u32, Kept)>,
    unsynced_bytes: u64,
    /// Segments that the backup is to hold, and their ends in it.
    expected: Vec<(u32, u64, u64)>,
    /// An earlier backup into the directory, finished or not, left whole what it left.
    trusts: bool,
    purpose: Purpose,
    sorted_tables: Option<SortedTables>,
    _lock: DirectoryLock,
}

/// What makes a store of what was copied.
pub(super) struct Whole<'m> {
    pub(super) catalog: &'m [u8],
    pub(super) sequence: u64,
    pub(super) runs: &'m RunsToCopy,
}

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Added {
    Copied(u64),
    /// It was there already.
    Kept,
    /// All in it is younger than the backup.
    Nothing,
}

impl Target {
    /// Takes the directory for a copy of the store that `root` is of, making it if need be, or goes on with one.
    pub(super) fn open(directory: &Path, root: &Root, purpose: Purpose) -> Result<Target> {
        create_directories(directory).map_err(|error| {
            Error::io(format_args!("cannot make the directory {}", directory.display()), error)
        })?;
        let lock = DirectoryLock::take(directory)?;
        let [fast, partial, manifest] =
            [FAST_TIER_FILE, PARTIAL_FILE, MANIFEST_FILE].map(|name| directory.join(name));
        let names = names_in(directory)?;
        let has = |name: &str| names.iter().any(|n| n == name);
        let known = read_small_file(&manifest)?.as_deref().and_then(Manifest::decode);
        if has(FAST_TIER_FILE) {
            let image = known.as_ref().and_then(|known| known.image);
            let untouched = image.is_some_and(|image| is_as_it_was(&fast, image));
            if !untouched {
                return Err(taken(
                    directory,
                    "holds a store that is no backup, or was opened since it was one",
                ));
            }
        }
        let fits =
            known.as_ref().filter(|m| m.source == root.store_id && m.extent_bytes == root.extent_bytes);
        if known.is_some() && fits.is_none() {
            return Err(taken(directory, "holds a backup of another store"));
        }
        if known.is_none() && !has(PARTIAL_FILE) && sorted_tables::are_in(directory)? {
            return Err(sorted_tables::taken(directory));
        }
        let mut kept = fits.cloned().unwrap_or_else(|| Manifest::new(root.store_id, root.extent_bytes));
        kept.image = None;
        if has(FAST_TIER_FILE) {
            // PERSIST: no store is here any more before the first byte of it changes.
            drop(CopyFile::open(&fast)?);
            rename_file(&fast, &partial)?;
        }
        Ok(Target {
            directory: directory.to_path_buf(),
            file: CopyFile::open(&partial)?,
            manifest: kept,
            unsynced: Vec::new(),
            unsynced_bytes: 0,
            expected: Vec::new(),
            trusts: known.is_some(),
            purpose,
            sorted_tables: None,
            _lock: lock,
        })
    }

    /// Forgets what is not to be in this backup as it stands, before anything is written over it.
    pub(super) fn begin(&mut self, log: &Log, segments: &[SegmentToCopy], files: &[Sst]) -> Result<()> {
        let root_extents = log.root().root_extents;
        let found = std::mem::take(&mut self.manifest.segments);
        for segment in segments {
            let Some(kept) = found.get(&segment.extent) else { continue };
            if *kept == kept_as(log, segment, segment.end)? {
                self.manifest.segments.insert(segment.extent, *kept);
            }
        }
        // PERSIST: durable on return.
        replace_small_file(&self.directory.join(MANIFEST_FILE), self.manifest.encode().as_bytes())?;
        self.sorted_tables = Some(SortedTables::begin(&self.directory, files, self.trusts)?);
        let extents =
            segments.iter().map(|segment| segment.extent + segment.extents).max().unwrap_or(root_extents);
        Ok(self.file.set_bytes(u64::from(extents) * self.manifest.extent_bytes)?)
    }

    /// Adds of a segment what belongs to the state at `sequence`.
    pub(super) fn add(&mut self, log: &Log, segment: &SegmentToCopy, sequence: u64) -> Result<Added> {
        if self.manifest.segments.contains_key(&segment.extent) {
            self.expected.push((segment.extent, segment.segment_number, segment.end));
            return Ok(Added::Kept);
        }
        let extract = log.examine(segment, sequence)?;
        if extract.end <= SEGMENT_HEADER_BYTES {
            return Ok(Added::Nothing);
        }
        self.write(log, segment, &extract)?;
        self.expected.push((segment.extent, segment.segment_number, extract.end));
        if extract.is_final {
            self.unsynced.push((segment.extent, kept_as(log, segment, extract.end)?));
        }
        self.unsynced_bytes += extract.end;
        if self.unsynced_bytes >= SYNC_STEP_BYTES {
            self.sync()?;
        }
        Ok(Added::Copied(extract.end))
    }

    /// Adds a sorted table.
    pub(super) fn add_sorted_table(&self, sst: &Sst) -> Result<Placed> {
        self.sorted_tables.as_ref().expect("it has begun").add(sst)
    }

    fn write(&self, log: &Log, segment: &SegmentToCopy, extract: &Extract) -> Result<()> {
        const STEP: usize = 4 << 20;
        let start = u64::from(segment.extent) * self.manifest.extent_bytes;
        let records = log.segment_bytes(segment)?.frozen(SEGMENT_HEADER_BYTES as usize..extract.end as usize);
        for (step, part) in records.chunks(STEP).enumerate() {
            self.file.write_at(start + SEGMENT_HEADER_BYTES + (step * STEP) as u64, part)?;
        }
        for &(offset, word) in &extract.invalidated {
            self.file.write_at(offset, &word.to_le_bytes())?;
        }
        Ok(self.file.write_at(start, &segment.header(start, extract))?)
    }

    /// Makes durable what was written, and says so.
    pub(super) fn sync(&mut self) -> Result<()> {
        if self.unsynced_bytes == 0 {
            return Ok(());
        }
        // PERSIST: the segments before the lines that say they are there.
        self.file.sync()?;
        self.file.let_go();
        let mut lines = String::new();
        for (extent, kept) in self.unsynced.drain(..) {
            lines += &Manifest::segment_line(extent, &kept);
            self.manifest.segments.insert(extent, kept);
        }
        self.unsynced_bytes = 0;
        Ok(append_to_file(&self.directory.join(MANIFEST_FILE), lines.as_bytes())?)
    }

    /// Writes what makes a store of the segments that were added: a new one, with an id of its own. Verifies all of it.
    pub(super) fn finish(
        mut self,
        source: &Root,
        Whole { catalog, sequence, runs }: Whole<'_>,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<u64> {
        self.clear_free_extents(source.root_extents)?;
        self.sync()?;
        let mut random = Random::from_entropy();
        let store_id = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        let extents = (self.file.bytes()? / self.manifest.extent_bytes) as u32;
        let tables = self.sorted_tables.as_mut().expect("it has begun");
        let manifest = tables.name(store_id, &runs.version)?;
        tables.unlock();
        let mut root = source.of_copy((store_id, manifest), sequence, extents, catalog);
        self.file.write_at(root.catalog_offset, catalog)?;
        let entry =
            |&(extent, segment_number, end): &(u32, u64, u64)| SegmentEntry { extent, segment_number, end };
        let (list_offset, list) = root.list_copied(self.expected.iter().map(entry).collect());
        self.file.write_at(list_offset, &list)?;
        // PERSIST: all that the root leads to, before the root.
        self.file.sync()?;
        for (offset, bytes) in root.copies() {
            self.file.write_at(offset, &bytes)?;
        }
        self.file.sync()?;
        self.file.let_go();
        let report = self.verify(progress).inspect_err(|error| {
            if error.kind() == ErrorKind::Corrupted {
                // What it was is not known: the next one begins anew. A failure to say so is one to write, and no worse.
                drop(remove_file(&self.directory.join(MANIFEST_FILE)));
            }
        })?;
        self.manifest.image = Some(ImageId { store_id, generation: root.generation, sequence });
        let [fast, partial, manifest] =
            [FAST_TIER_FILE, PARTIAL_FILE, MANIFEST_FILE].map(|name| self.directory.join(name));
        match self.purpose {
            Purpose::Backup => replace_small_file(&manifest, self.manifest.encode().as_bytes())?,
            // PERSIST: before it has its name, or a crash would leave what a later backup of its source may write over.
            Purpose::Store => remove_file(&manifest)?,
        }
        // PERSIST: the name that makes a store of it comes last, and is durable on return.
        rename_file(&partial, &fast)?;
        Ok(report.records)
    }

    /// Takes away the headers of segments of an earlier backup where there is none now.
    fn clear_free_extents(&self, root_extents: u32) -> Result<()> {
        let extent_bytes = self.manifest.extent_bytes;
        let extents = self.file.bytes()? / extent_bytes;
        let ends: BTreeMap<u64, u64> =
            self.expected.iter().map(|&(extent, _, end)| (extent.into(), end)).collect();
        for extent in u64::from(root_extents)..extents {
            // Extents inside a segment have no header of their own.
            let below = ends.range(..=extent).next_back();
            if below.is_some_and(|(first, end)| extent < first + end.div_ceil(extent_bytes)) {
                continue;
            }
            let mut header = [0; SEGMENT_HEADER_BYTES as usize];
            self.file.read_at(extent * extent_bytes, &mut header)?;
            if header.iter().any(|&byte| byte != 0) {
                self.file.write_at(extent * extent_bytes, &[0; SEGMENT_HEADER_BYTES as usize])?;
                self.file.punch_hole(extent * extent_bytes, extent_bytes);
            }
        }
        Ok(())
    }

    /// Reads the whole copy as a store is read, every record to its last byte.
    fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<Report> {
        let fast = FastTier::open_file_read_only(&self.directory.join(PARTIAL_FILE))?;
        let capacity = self.directory.join(CAPACITY_DIRECTORY);
        let view = match CapacityTier::is_there(&capacity) {
            true => View::open_on((fast, CapacityTier::open_read_only(&capacity)?))?,
            false => View::open_on(fast)?,
        };
        let below = view.sorted_table_bytes()?;
        let mut report = Report::default();
        let (mut stopped, mut log_bytes) = (Ok(()), 0);
        view.check_log(&mut report, &mut |at| {
            if let (CheckProgress::Log(done, total), Ok(())) = (at, &stopped) {
                log_bytes = total;
                stopped = progress(done, total + below);
            }
        });
        stopped?;
        if let Some(problem) = report.problems.first() {
            return Err(Error::corrupted(format!(
                "the backup was read again and is not what was written, it must be made anew: {problem}"
            )));
        }
        view.verify_sorted_tables(&mut |done| progress(log_bytes + done, log_bytes + below))?;
        let found: Vec<_> = view.segments().iter().map(|s| (s.extent, s.number, s.durable_bytes)).collect();
        let mut expected = self.expected.clone();
        expected.sort_unstable();
        if found != expected {
            return Err(Error::corrupted(
                "the backup was read again and does not hold the segments that were copied",
            ));
        }
        Ok(report)
    }
}

fn kept_as(log: &Log, segment: &SegmentToCopy, end: u64) -> Result<Kept> {
    let end_at = end as usize;
    // Not the header, which is written anew as the store goes on.
    let from = (end_at - end_at.min(TAIL_BYTES)).max(SEGMENT_HEADER_BYTES as usize);
    let tail = log.segment_bytes(segment)?.frozen(from.min(end_at)..end_at);
    Ok(Kept {
        extents: segment.extents,
        segment_number: segment.segment_number,
        end,
        tail_crc: crc32c(0, tail),
    })
}

/// Whether the root is the one that the backup was finished with. What cannot be read was not.
fn is_as_it_was(fast: &Path, image: ImageId) -> bool {
    let tier = FastTier::open_file_read_only(fast).map_err(Error::from);
    let root = tier.and_then(|tier| Root::load(&bytes_of(Arc::new(tier))?));
    root.is_ok_and(|root| {
        root.is_some_and(|root| (root.store_id, root.generation) == (image.store_id, image.generation))
    })
}

fn taken(directory: &Path, why: &str) -> Error {
    let place = directory.display();
    Error::new(ErrorKind::Exists, format!("the directory {place} {why}; choose another for the backup"))
}
