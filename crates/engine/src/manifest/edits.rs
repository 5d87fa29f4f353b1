//! The manifest of sorted tables: edits, one after the other, in two copies.
//!
//! Owns the bytes of an edit and of the file's head, and [`SstManifest`], which has both copies. Promises that an edit is durable in both when it was appended; that after a crash one
//! which was not is there whole or not at all; and that one copy may rot anywhere. Must not know sorted tables, nor when an edit is due.
//!
//! Both copies, `manifest-NNNNNNNN.a` and `.b`, are the same bytes. All numbers are little-endian:
//!
//! ```text
//!  0        8          24        32      36        4096    4100    4104
//!  +--------+----------+---------+-------+---------+-------+-------+-----------+-------+----
//!  | magic  | store id | number  |crc32c | zeros   | bytes |crc32c | operations| bytes | ...   zeros
//!  +--------+----------+---------+-------+---------+-------+-------+-----------+-------+----
//! ```
//!
//! * `number` is that of the pair, the one in the names. `crc32c` of the head is over the 32 bytes before it.
//! * An edit: how many bytes its operations have (never 0), their checksum, they. The checksum begins with one of the pair's number and the edit's, counted from 0. The first
//!   edit of a pair makes its version of nothing.
//! * An operation is a number (u8) and what belongs to it: 1 add: run (u64), file (u64), least key, greatest key, each after its length (u32). 2 remove: run, file. 3 next: file,
//!   run. 4 watermark: sequence. 5 origin, of a copy: the file (u64) below which this store's files are, and the id (u128) of the store that they carry.
//!   6 taken: the file, the table (u64), rows and deltas (u64 each) of it that are in none of the file's ranges any more, besides those of earlier operations.
//!
//! **Why two copies.** An edit is synced in one before it is written to the other: a crash can tear one of them, and the other is whole. Without the second nobody could tell an edit that was torn, and does not count, from
//! one that counted and has rotted.
//!
//! **Why files of a fixed length.** An edit that cannot be written for want of room would come when room is to be made. When half of a pair is used, what lives is written into the next; if there is no room for that, the other half is left.

use hedgerow_device::{AllocatedFile, CapacityTier, crc32c};
use hedgerow_row::le_bytes::{u32_at, u64_at, u128_at};

use super::version::{FileOrigin, FileRange, SstChange, SstVersion, TakenRecords};
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"HDGMANI1";
const HEAD_BYTES: usize = 32;
/// Where the first edit begins.
const EDITS_START: u64 = 4096;
/// Bytes before an edit's operations.
const EDIT_HEAD_BYTES: usize = 8;
/// A pair has no fewer bytes.
const PAIR_BYTES_MIN: u64 = 256 << 10;
/// A pair is so many times as long as what it begins with.
const TIMES_LIVE: u64 = 4;

/// The names of both copies of the pair of this number.
pub(crate) fn pair_names(number: u64) -> [String; 2] {
    ["a", "b"].map(|copy| format!("manifest-{number:08}.{copy}"))
}

/// The number of the pair that a file of this name is a copy of, if it is one.
pub(crate) fn pair_in(name: &str) -> Option<u64> {
    let number = name.strip_prefix("manifest-")?.rsplit_once('.')?.0.parse().ok()?;
    pair_names(number).iter().any(|known| known == name).then_some(number)
}

/// The store that the copy of this name is of, as its head says; `None` if that is not whole.
///
/// # Errors
/// `Invalid` if it is something else; what the capacity tier refuses.
pub(crate) fn store_of_copy(tier: &CapacityTier, name: &str) -> Result<Option<u128>> {
    let (file, mut head) = (tier.open_file(name)?, [0; HEAD_BYTES + 4]);
    let bytes = file.bytes()?.min(head.len() as u64) as usize;
    file.read_at(0, &mut head[..bytes])?;
    if head[..7] != MAGIC[..7] && head[..8].iter().any(|&byte| byte != 0) {
        return Err(Error::invalid(format!(
            "the file {name} among the sorted tables is no copy of their manifest: nothing of it is removed or written over, move it elsewhere"
        )));
    }
    let is_whole = u32_at(&head, HEAD_BYTES) == crc32c(0, &head[..HEAD_BYTES]) && head[..8] == *MAGIC;
    Ok(is_whole.then(|| u128_at(&head, 8)))
}

fn encode_head(store: u128, number: u64) -> [u8; HEAD_BYTES + 4] {
    let mut head = [0; HEAD_BYTES + 4];
    head[..8].copy_from_slice(MAGIC);
    head[8..24].copy_from_slice(&store.to_le_bytes());
    head[24..32].copy_from_slice(&number.to_le_bytes());
    let checksum = crc32c(0, &head[..HEAD_BYTES]);
    head[HEAD_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    head
}

fn put_key(key: &[u8], out: &mut Vec<u8>) {
    out.extend((key.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
}

fn put_op(op: &SstChange, out: &mut Vec<u8>) {
    let (tag, numbers) = match op {
        SstChange::Add { run, range } => (1, vec![*run, range.number]),
        SstChange::Remove { run, number } => (2, vec![*run, *number]),
        SstChange::Next { number, run } => (3, vec![*number, *run]),
        SstChange::Watermark { sequence } => (4, vec![*sequence]),
        SstChange::Origin(origin) => {
            (5, vec![origin.before, origin.store as u64, (origin.store >> 64) as u64])
        }
        SstChange::Taken(TakenRecords { number, table, rows, deltas }) => {
            (6, vec![*number, u64::from(*table), *rows, *deltas])
        }
    };
    out.push(tag);
    numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
    if let SstChange::Add { range, .. } = op {
        range.keys.iter().for_each(|key| put_key(key, out));
    }
}

/// An edit as it is written.
fn encode_edit(pair: u64, edit: u64, ops: &[SstChange]) -> Vec<u8> {
    let mut out = vec![0; EDIT_HEAD_BYTES];
    ops.iter().for_each(|op| put_op(op, &mut out));
    let bytes = (out.len() - EDIT_HEAD_BYTES) as u32;
    let checksum = sum(pair, edit, &out[EDIT_HEAD_BYTES..]);
    out[..4].copy_from_slice(&bytes.to_le_bytes());
    out[4..8].copy_from_slice(&checksum.to_le_bytes());
    out
}

fn sum(pair: u64, edit: u64, ops: &[u8]) -> u32 {
    let seed = crc32c(crc32c(0, &pair.to_le_bytes()), &edit.to_le_bytes());
    crc32c(seed, ops)
}

/// All bytes of a copy of the pair of this number that begins with `version`.
pub(crate) fn encode_copy((store, pair): (u128, u64), version: &SstVersion) -> Vec<u8> {
    let first = encode_edit(pair, 0, &version.ops());
    let mut bytes = vec![0; pair_bytes(&first) as usize];
    let head = encode_head(store, pair);
    bytes[..head.len()].copy_from_slice(&head);
    bytes[EDITS_START as usize..][..first.len()].copy_from_slice(&first);
    bytes
}

/// Bytes of a copy of a pair whose first edit this is.
fn pair_bytes(first: &[u8]) -> u64 {
    (TIMES_LIVE * (EDITS_START + first.len() as u64)).max(PAIR_BYTES_MIN)
}

/// The edit at the beginning of `bytes`, with its head, if it is whole.
fn whole_edit(bytes: &[u8], pair: u64, edit: u64) -> Option<&[u8]> {
    let head = bytes.get(..EDIT_HEAD_BYTES)?;
    let len = u32_at(head, 0) as usize;
    let whole = bytes.get(..EDIT_HEAD_BYTES.checked_add(len)?)?;
    (len > 0 && sum(pair, edit, &whole[EDIT_HEAD_BYTES..]) == u32_at(head, 4)).then_some(whole)
}

/// Takes operations off the beginning of an edit's bytes.
struct TakingOps<'b>(&'b [u8]);

impl TakingOps<'_> {
    fn u64(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_at_checked(8)?;
        self.0 = rest;
        Some(u64_at(number, 0))
    }

    fn key(&mut self) -> Option<Box<[u8]>> {
        let (len, rest) = self.0.split_at_checked(4)?;
        let (key, rest) = rest.split_at_checked(u32_at(len, 0) as usize)?;
        self.0 = rest;
        Some(key.into())
    }

    fn op(&mut self) -> Option<SstChange> {
        let (tag, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(match tag {
            1 => {
                let (run, number) = (self.u64()?, self.u64()?);
                SstChange::Add { run, range: FileRange { number, keys: [self.key()?, self.key()?] } }
            }
            2 => SstChange::Remove { run: self.u64()?, number: self.u64()? },
            3 => SstChange::Next { number: self.u64()?, run: self.u64()? },
            4 => SstChange::Watermark { sequence: self.u64()? },
            5 => {
                let (before, low, high) = (self.u64()?, self.u64()?, self.u64()?);
                SstChange::Origin(FileOrigin { before, store: u128::from(high) << 64 | u128::from(low) })
            }
            6 => {
                let (number, table) = (self.u64()?, u32::try_from(self.u64()?).ok()?);
                SstChange::Taken(TakenRecords { number, table, rows: self.u64()?, deltas: self.u64()? })
            }
            _ => return None,
        })
    }
}

/// The operations of a whole edit.
fn decode_edit(whole: &[u8], pair: u64) -> Result<Vec<SstChange>> {
    let mut taking = TakingOps(&whole[EDIT_HEAD_BYTES..]);
    let mut ops = Vec::new();
    while !taking.0.is_empty() {
        let Some(op) = taking.op() else {
            let what = "has an edit with an operation that this build does not know";
            return Err(Error::new(crate::ErrorKind::Version, format!("manifest {pair} {what}")));
        };
        ops.push(op);
    }
    Ok(ops)
}

/// What one copy has.
struct CopyRead {
    bytes: Vec<u8>,
    /// Where its whole edits end.
    end: usize,
    edits: u64,
}

/// Reads a copy; `None` if there is none, or its head is not whole.
fn read_copy(tier: &CapacityTier, name: &str, (store, pair): (u128, u64)) -> Result<Option<CopyRead>> {
    if !tier.names()?.iter().any(|there| there == name) {
        return Ok(None);
    }
    let file = tier.open_file(name)?;
    let mut bytes = vec![0; file.bytes()? as usize];
    file.read_at(0, &mut bytes)?;
    let has_head = bytes.len() as u64 > EDITS_START
        && u32_at(&bytes, HEAD_BYTES) == crc32c(0, &bytes[..HEAD_BYTES])
        && bytes[..8] == *MAGIC
        && u64_at(&bytes, 24) == pair;
    if !has_head {
        return Ok(None);
    }
    if u128_at(&bytes, 8) != store {
        return Err(Error::corrupted(format!("manifest {pair} is that of another store")));
    }
    let (mut end, mut edits) = (EDITS_START as usize, 0);
    while let Some(whole) = whole_edit(&bytes[end..], pair, edits) {
        (end, edits) = (end + whole.len(), edits + 1);
    }
    Ok(Some(CopyRead { bytes, end, edits }))
}

/// Both copies of a pair, to be appended to.
#[derive(Debug)]
pub(crate) struct SstManifest {
    pair: u64,
    copies: [AllocatedFile; 2],
    /// Where the next edit goes.
    end: u64,
    edits: u64,
    version: SstVersion,
    /// An append failed: what the copies hold is for the next opening to find out.
    has_failed: bool,
}

impl SstManifest {
    /// Makes the pair of this number, which begins with `version`: durable, names and all, on return. Nothing counts of it before the root names it. If it fails what it has made is removed, as
    /// far as that goes; what was there before is not its own.
    pub(crate) fn create(
        tier: &CapacityTier,
        (store, pair): (u128, u64),
        version: SstVersion,
    ) -> Result<SstManifest> {
        let first = encode_edit(pair, 0, &version.ops());
        let end = EDITS_START + first.len() as u64;
        let bytes = pair_bytes(&first);
        let (names, mut made) = (pair_names(pair), 0);
        let mut create = |name: &str| tier.create_allocated(name, bytes).inspect(|_| made += 1);
        let mut written = || -> Result<[AllocatedFile; 2]> {
            let copies = [create(&names[0])?, create(&names[1])?];
            for copy in &copies {
                copy.write_at(0, &encode_head(store, pair))?;
                copy.write_at(EDITS_START, &first)?;
                copy.sync()?;
            }
            // PERSIST: the names before the root that leads to them.
            tier.sync_names()?;
            Ok(copies)
        };
        match written() {
            Ok(copies) => Ok(SstManifest { pair, copies, end, edits: 1, version, has_failed: false }),
            Err(error) => {
                // Nothing names it. If it stays, opening removes it.
                names[..made].iter().for_each(|name| drop(tier.remove(name)));
                Err(error)
            }
        }
    }

    /// Reads the pair of this number, and changes nothing.
    ///
    /// # Errors
    /// `Corrupted` if no copy has its beginning, or the copies differ.
    pub(crate) fn read(tier: &CapacityTier, (store, pair): (u128, u64)) -> Result<SstVersion> {
        Ok(SstManifest::whole(tier, (store, pair))?.1)
    }

    /// The names of copies of the pair that lack something which the other has, or have a torn edit behind the last: a crash may leave one, and opening mends it.
    pub(crate) fn lagging(tier: &CapacityTier, (store, pair): (u128, u64)) -> Result<Vec<String>> {
        let (whole, _) = SstManifest::whole(tier, (store, pair))?;
        let mut lagging = Vec::new();
        for name in pair_names(pair) {
            let copy = read_copy(tier, &name, (store, pair))?;
            let is_whole = copy.is_some_and(|copy| {
                copy.end == whole.end && copy.bytes[copy.end..].iter().all(|&byte| byte == 0)
            });
            lagging.extend(Some(name).filter(|_| !is_whole));
        }
        Ok(lagging)
    }

    /// The bytes up to the last edit that is whole in either copy and what they come to.
    fn whole(tier: &CapacityTier, (store, pair): (u128, u64)) -> Result<(CopyRead, SstVersion)> {
        let damaged = |why: &str| Error::corrupted(format!("manifest {pair} is damaged: {why}"));
        let [a, b] = pair_names(pair);
        let copies = [read_copy(tier, &a, (store, pair))?, read_copy(tier, &b, (store, pair))?];
        let ends = copies.each_ref().map(|copy| copy.as_ref().map_or(0, |copy| copy.end));
        let common = ends[0].min(ends[1]);
        if let [Some(a), Some(b)] = &copies
            && a.bytes[EDITS_START as usize..common] != b.bytes[EDITS_START as usize..common]
        {
            return Err(damaged("its copies differ"));
        }
        let [a, b] = copies;
        let longest = [a, b].into_iter().flatten().max_by_key(|copy| copy.end);
        let Some(longest) = longest.filter(|copy| copy.edits > 0) else {
            return Err(damaged("neither copy has its beginning"));
        };
        let (mut version, mut at) = (SstVersion::default(), EDITS_START as usize);
        for edit in 0..longest.edits {
            let whole = whole_edit(&longest.bytes[at..], pair, edit).expect("it was whole just now");
            version = version.after(&decode_edit(whole, pair)?)?;
            at += whole.len();
        }
        Ok((longest, version))
    }

    /// Opens the pair of this number to append to it: a copy that lacks what the other has gets it, and what is torn is wiped out.
    ///
    /// # Errors
    /// As [`SstManifest::read`].
    pub(crate) fn open(tier: &CapacityTier, (store, pair): (u128, u64)) -> Result<SstManifest> {
        let (whole, version) = SstManifest::whole(tier, (store, pair))?;
        let mut bytes = whole.bytes;
        bytes[whole.end..].fill(0);
        bytes[..HEAD_BYTES + 4].copy_from_slice(&encode_head(store, pair));
        let copy = |name: &str| -> Result<AllocatedFile> {
            let file = match tier.open_allocated(name) {
                Ok(file) if file.bytes() == bytes.len() as u64 => file,
                opened => {
                    if opened.is_ok() || tier.names()?.iter().any(|there| there == name) {
                        tier.remove(name)?;
                    }
                    tier.create_allocated(name, bytes.len() as u64)?
                }
            };
            // All of it, though most is there: what an earlier process wrote and could not sync the page cache may show, and count as clean.
            file.write_at(0, &bytes)?;
            // PERSIST: one copy before the other is touched, and before anything rests on what it says.
            file.sync()?;
            tier.sync_names()?;
            Ok(file)
        };
        let [a, b] = pair_names(pair);
        let copies = [copy(&a)?, copy(&b)?];
        Ok(SstManifest {
            pair,
            copies,
            end: whole.end as u64,
            edits: whole.edits,
            version,
            has_failed: false,
        })
    }

    /// What counts.
    pub(crate) fn version(&self) -> &SstVersion {
        &self.version
    }

    /// Whether the next pair is to be begun, if there is room for it.
    pub(crate) fn is_half_used(&self) -> bool {
        2 * self.end > self.copies[0].bytes()
    }

    /// Whether an edit of these operations still fits: else what lives goes into the next pair, with them.
    pub(crate) fn has_room(&self, ops: &[SstChange]) -> bool {
        self.end + encode_edit(self.pair, self.edits, ops).len() as u64 <= self.copies[0].bytes()
    }

    /// Appends an edit: durable in both copies on return. What it does not fit is refused, and changes nothing.
    ///
    /// # Errors
    /// `Corrupted` of operations that do not fit the version; `Full` without room; what the disk refuses: after that nothing more is appended, and whether the edit
    /// counts is for the next opening to find out.
    pub(crate) fn append(&mut self, ops: &[SstChange]) -> Result<()> {
        if self.has_failed {
            return Err(Error::new(
                crate::ErrorKind::Io,
                "an edit of the manifest failed; the store takes no more writes until it is opened again",
            ));
        }
        let next = self.version.after(ops)?;
        let edit = encode_edit(self.pair, self.edits, ops);
        if !self.has_room(ops) {
            let room = self.copies[0].bytes() - self.end;
            return Err(Error::new(
                crate::ErrorKind::Full,
                format!(
                    "an edit of {} bytes does not fit the {room} that manifest {} has left",
                    edit.len(),
                    self.pair
                ),
            ));
        }
        self.has_failed = true;
        for copy in &self.copies {
            copy.write_at(self.end, &edit)?;
            // PERSIST: whole in one copy before the other is touched.
            copy.sync()?;
        }
        self.has_failed = false;
        (self.end, self.edits, self.version) = (self.end + edit.len() as u64, self.edits + 1, next);
        Ok(())
    }

    /// Removes the pair of this number, which the root names no more.
    pub(crate) fn remove(tier: &CapacityTier, pair: u64) -> Result<()> {
        let there = tier.names()?;
        pair_names(pair)
            .iter()
            .filter(|name| there.contains(name))
            .try_for_each(|name| Ok(tier.remove(name)?))
    }
}

#[cfg(test)]
mod tests;
