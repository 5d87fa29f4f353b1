//! The root: the first extents of the fast tier, which say what the rest is.
//!
//! They hold the root record twice (at 0 and at 4096), two areas for the catalog (tables and schemas) from 64 KiB on, and
//! in their last quarter two areas for the list of segments (`manifest/segment_list.rs`):
//!
//! ```text
//!  0        8       12  16         24         32          48        64      72         80
//!  +--------+-------+---+----------+----------+-----------+---------+-------+----------+
//!  | magic  |version| n |generation|extent    | store id  | boot id | opens |watermark |
//!  |        |       |   |          | bytes    |           |         |       |          |
//!  +--------+-------+---+----------+----------+-----------+---------+-------+----------+
//!  80      81     82  84        88       96       104   108     112   120         124  128
//!  +-------+------+---+---------+--------+--------+-----+-------+-----+-----------+----+
//!  | clean | list | 0 | listed  |catalog |catalog |crc  |extents|mani-| crc of    |crc |
//!  |       | area |   |segments | offset | bytes  |     |       |fest | the list  |    |
//!  +-------+------+---+---------+--------+--------+-----+-------+-----+-----------+----+
//! ```
//!
//! * `n`: how many extents the root takes, in versions 2 and 3. In version 1 it is 0, and the root takes one.
//! * In version 3 the checksums of segment headers and records know the place they belong to (`log/format.rs`). A store keeps
//!   the version that it was made with.
//! * Of the root's bytes beyond the first 64 KiB only those have disk blocks that something was written to.
//! * Of two valid copies the one with the higher `generation` counts. A change writes the new catalog into the area not
//!   in use, then one copy, then the other, each durable before the next is begun; the copy that counts comes last. In a
//!   new store the first copy is written first.
//! * `version`: 1 to 3, with bit 16 set from opening the store until it is closed in order. While it is set the log may hold
//!   records that change the catalog: those with higher sequences than the catalog says it is whole as of, count. Where it is
//!   not set the catalog is whole, and none counts. A build that knows no such records refuses the bit.
//! * `manifest`: the number of the manifest that says which sorted tables count (`manifest/edits.rs`), and bit 17 of `version` with it: a
//!   build that knows no sorted tables would miss their rows, and refuses the bit. 0, and no bit, where the store has none.
//! * `watermark`: every record with a sequence up to this one was durable when the root was written.
//! * `boot id` tells, after an unclean end, a killed process (same boot: every store survived) from a power cut.
//! * A change of the catalog that is durable is followed by a copy of it into the other area: if one rots, the other serves.
//! * `extents`: the tier has had at least so many, durably. A shorter one was cut short.
//! * `list area`: 0 for none (older builds write none), else 1 or 2. Every record with a sequence up to the watermark lies
//!   below the listed end of a listed segment, unless that was freed since: then its header has that segment number or a
//!   younger one, or a younger segment covers it. A list is durable before the root that names it, and it is written into
//!   the area that the root on the medium does not name. Where the catalog takes more than is left before the lists, there
//!   is none.
//! * `opens` counts openings and is the high half of every segment number of that opening (less the highest bit, `log/segment.rs`).

use hedgerow_device::{TierBytes, crc32c};
use hedgerow_row::le_bytes::{u32_at, u64_at, u128_at};

use super::segment_list::{self, ENTRY_BYTES, SegmentEntry};
use crate::{Error, ErrorKind, Result};

/// Set in the numbers of all segments of a store whose checksums know their place, and of no other store's.
pub(crate) const PLACED: u64 = 1 << 63;
/// Bytes before the first record of a segment.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 128;

const MAGIC: &[u8; 8] = b"HEDGEROW";
/// Of a root that takes one extent; of one that takes several; of a store whose checksums know their place, whatever its root
/// takes.
const VERSIONS: [u32; 3] = [1, 2, 3];
/// Stores are made with this version, if no other is asked for.
pub(crate) const VERSION_NEWEST: u32 = 3;
/// Or with this, for builds that know no newer one; it is 1 where the root takes one extent.
pub(crate) const VERSION_OLDER: u32 = 2;
/// In the version: the log may hold changes of the catalog that the catalog here does not.
const CHANGES_IN_LOG: u32 = 1 << 16;
/// In the version: rows may be in sorted tables, which the manifest names.
const HAS_MANIFEST: u32 = 1 << 17;
/// Bytes of one copy of the root.
const ROOT_BYTES: usize = 128;
const COPY_OFFSETS: [u64; 2] = [0, 4096];
/// Extents are no smaller, and their sizes are multiples of it. Small under `shuttle`, so that a few records fill one.
pub(crate) const EXTENT_BYTES_MIN: u64 = if cfg!(shuttle) { 64 << 10 } else { 256 << 10 };
/// The root takes no less.
pub(crate) const ROOT_BYTES_MIN: u64 = if cfg!(shuttle) { 256 << 10 } else { 1 << 20 };
/// Blocks for catalogs and lists are had by so many bytes.
const ROOM_STEP: u64 = 64 << 10;
/// Where the first catalog area begins.
pub(crate) const CATALOG_START: u64 = 64 << 10;

/// No block of 4096 bytes holds two of: a copy, the other, a catalog.
const _: () = {
    assert!(ROOT_BYTES == 128 && COPY_OFFSETS[0] == 0 && COPY_OFFSETS[1] == 4096);
    assert!(COPY_OFFSETS[1] + 4096 <= CATALOG_START && CATALOG_START.is_multiple_of(4096));
    assert!(ROOT_BYTES_MIN.is_multiple_of(EXTENT_BYTES_MIN) && EXTENT_BYTES_MIN.is_multiple_of(ROOM_STEP));
    assert!(VERSIONS[0] == 1 && VERSIONS[2] == VERSION_NEWEST && VERSION_NEWEST < CHANGES_IN_LOG);
};

/// Where a list of segments lies, and what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentList {
    /// 0 or 1.
    area: u8,
    count: u32,
    crc: u32,
}

/// The root record, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) generation: u64,
    pub(crate) extent_bytes: u64,
    /// Extents that the root takes.
    pub(crate) root_extents: u32,
    /// Checksums know their place: version 3.
    placed: bool,
    pub(crate) store_id: u128,
    pub(crate) boot_id: u128,
    pub(crate) opens: u64,
    pub(crate) watermark: u64,
    pub(crate) clean: bool,
    /// The log may hold changes of the catalog that the catalog here does not.
    pub(crate) changes_in_log: bool,
    pub(crate) catalog_offset: u64,
    pub(crate) catalog_bytes: u64,
    pub(crate) catalog_crc: u32,
    pub(crate) extents: u32,
    /// The list of segments, if one was written.
    pub(crate) list: Option<SegmentList>,
    /// Number of the manifest of sorted tables; 0 if there is none.
    pub(crate) manifest: u64,
    /// Which copy on the medium is whole for sure. Not persisted.
    whole_copy: usize,
    /// Each of the two areas for catalogs has disk blocks for so many bytes. Not persisted.
    catalog_room: u64,
}

impl Root {
    pub(crate) fn new(
        extent_bytes: u64,
        root_extents: u32,
        placed: bool,
        (store_id, boot_id): (u128, u128),
    ) -> Root {
        Root {
            generation: 0,
            extent_bytes,
            root_extents,
            placed,
            store_id,
            boot_id,
            opens: 0,
            watermark: 0,
            clean: true,
            changes_in_log: false,
            catalog_offset: CATALOG_START,
            catalog_bytes: 0,
            catalog_crc: crc32c(0, &[]),
            extents: root_extents,
            list: None,
            manifest: 0,
            whole_copy: 1,
            catalog_room: 0,
        }
    }

    /// The root of a copy of the store, closed in order, that ends at `sequence` and has `catalog`, whole as of then, and names the pair `manifest` of its own.
    pub(crate) fn of_copy(
        &self,
        (store_id, manifest): (u128, u64),
        sequence: u64,
        extents: u32,
        catalog: &[u8],
    ) -> Root {
        Root {
            generation: self.generation + 1,
            store_id,
            watermark: sequence,
            clean: true,
            changes_in_log: false,
            catalog_offset: CATALOG_START,
            catalog_bytes: catalog.len() as u64,
            catalog_crc: crc32c(0, catalog),
            extents,
            list: None,
            manifest,
            ..self.clone()
        }
    }

    /// Names a list of the segments of a copy, and says where in it that belongs.
    pub(crate) fn list_copied(&mut self, entries: Vec<SegmentEntry>) -> (u64, Vec<u8>) {
        if self.catalog_bytes > self.catalog_bytes_beside_lists() {
            return (self.list_offset(0), Vec::new());
        }
        let bytes = segment_list::encode(entries, self.list_bytes_max() as usize);
        let count = (bytes.len() / ENTRY_BYTES) as u32;
        self.list = Some(SegmentList { area: 0, count, crc: crc32c(0, &bytes) });
        (self.list_offset(0), bytes)
    }

    /// Both copies, and where they lie.
    pub(crate) fn copies(&self) -> [(u64, [u8; ROOT_BYTES]); 2] {
        COPY_OFFSETS.map(|offset| (offset, self.encode()))
    }

    fn encode(&self) -> [u8; ROOT_BYTES] {
        let mut bytes = [0; ROOT_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        let changes = if self.changes_in_log { CHANGES_IN_LOG } else { 0 };
        let manifest = if self.manifest != 0 { HAS_MANIFEST } else { 0 };
        bytes[8..12].copy_from_slice(&(self.version() | changes | manifest).to_le_bytes());
        let root_extents = if self.version() == 1 { 0 } else { self.root_extents };
        bytes[12..16].copy_from_slice(&root_extents.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.extent_bytes.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.store_id.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.boot_id.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.opens.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.watermark.to_le_bytes());
        bytes[80] = u8::from(self.clean);
        if let Some(list) = self.list {
            bytes[81] = list.area + 1;
            bytes[84..88].copy_from_slice(&list.count.to_le_bytes());
            bytes[120..124].copy_from_slice(&list.crc.to_le_bytes());
        }
        bytes[88..96].copy_from_slice(&self.catalog_offset.to_le_bytes());
        bytes[96..104].copy_from_slice(&self.catalog_bytes.to_le_bytes());
        bytes[104..108].copy_from_slice(&self.catalog_crc.to_le_bytes());
        bytes[108..112].copy_from_slice(&self.extents.to_le_bytes());
        bytes[112..120].copy_from_slice(&self.manifest.to_le_bytes());
        let crc = crc32c(0, &bytes[..124]);
        bytes[124..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<(u32, Root)> {
        if bytes[..8] != MAGIC[..] || crc32c(0, &bytes[..124]) != u32_at(bytes, 124) {
            return None;
        }
        let version = u32_at(bytes, 8) & !(CHANGES_IN_LOG | HAS_MANIFEST);
        let root = Root {
            generation: u64_at(bytes, 16),
            extent_bytes: u64_at(bytes, 24),
            root_extents: u32_at(bytes, 12).max(1),
            placed: version == 3,
            store_id: u128_at(bytes, 32),
            boot_id: u128_at(bytes, 48),
            opens: u64_at(bytes, 64),
            watermark: u64_at(bytes, 72),
            clean: bytes[80] == 1,
            changes_in_log: u32_at(bytes, 8) & CHANGES_IN_LOG != 0,
            catalog_offset: u64_at(bytes, 88),
            catalog_bytes: u64_at(bytes, 96),
            catalog_crc: u32_at(bytes, 104),
            extents: u32_at(bytes, 108),
            list: matches!(bytes[81], 1 | 2).then(|| SegmentList {
                area: bytes[81] - 1,
                count: u32_at(bytes, 84),
                crc: u32_at(bytes, 120),
            }),
            manifest: u64_at(bytes, 112),
            whole_copy: 0,
            catalog_room: 0,
        };
        Some((version, root))
    }

    /// Reads the root of a tier; `None` if the tier has never held a store.
    pub(crate) fn load(tier: &TierBytes) -> Result<Option<Root>> {
        if tier.bytes() < CATALOG_START {
            let empty = tier.read(0, tier.bytes() as usize).iter().all(|&b| b == 0);
            return if empty { Ok(None) } else { Err(cut_short(tier.bytes(), CATALOG_START)) };
        }
        let copies = COPY_OFFSETS.map(|offset| tier.read(offset, ROOT_BYTES));
        let decoded = copies.iter().enumerate().filter_map(|(copy, bytes)| {
            let (version, root) = Root::decode(bytes)?;
            Some((version, Root { whole_copy: copy, ..root }))
        });
        let best = decoded.max_by_key(|(_, root)| root.generation);
        match best {
            Some((version, root)) if VERSIONS.contains(&version) => {
                let bytes = u64::from(root.extents).saturating_mul(root.extent_bytes);
                if tier.bytes() < bytes { Err(cut_short(tier.bytes(), bytes)) } else { Ok(Some(root)) }
            }
            Some((version, _)) => Err(Error::new(
                ErrorKind::Version,
                format!("the store has format version {version}; this build knows versions {VERSIONS:?}"),
            )),
            // The second copy is written only when the first is durable, so a store that was ever used has one; and
            // before there is a segment. Behind a root that was lost the segments are still there.
            None if copies[1].iter().all(|&b| b == 0) && !holds_segments(tier) => Ok(None),
            None => Err(Error::corrupted(
                "both copies of the root (bytes 0 and 4096 of the fast tier) are corrupted: their checksums do not match",
            )),
        }
    }

    /// The root of a tier that may be damaged, and what is wrong with it: the copy that verifies, however short the tier
    /// is; or where none does one that says no more than how long an extent is and how often the store was opened, as the segments'
    /// headers say: `number_at` knows the number of the segment that begins at an offset, if one does, with checksums that know their
    /// place or not.
    pub(crate) fn salvage(
        tier: &TierBytes,
        number_at: impl Fn(u64, bool) -> Option<u64>,
    ) -> Result<(Root, Vec<Error>)> {
        let copies = COPY_OFFSETS.map(|offset| tier.try_read(offset, ROOT_BYTES).and_then(Root::decode));
        let best = copies.into_iter().enumerate().filter_map(|(copy, root)| Some((copy, root?)));
        if let Some((copy, (version, root))) = best.max_by_key(|(_, (_, root))| root.generation) {
            if !VERSIONS.contains(&version) {
                return Root::load(tier).map(|_| (root, Vec::new()));
            }
            let mut damage: Vec<Error> = Root::spoiled_copies(tier).into_iter().map(spoiled_copy).collect();
            let bytes = u64::from(root.extents).saturating_mul(root.extent_bytes);
            damage.extend((tier.bytes() < bytes).then(|| cut_short(tier.bytes(), bytes)));
            return Ok((Root { whole_copy: copy, ..root }, damage));
        }
        let starts = (ROOT_BYTES_MIN..tier.bytes()).step_by(EXTENT_BYTES_MIN as usize);
        let headers = |placed: bool| {
            let number_at = &number_at;
            starts.clone().filter_map(move |start| Some((start, number_at(start, placed)?)))
        };
        // A store of another version may have left some on the same blocks.
        let placed = headers(true).count() >= headers(false).count();
        let (mut first, mut together, mut opens) = (u64::MAX, 0, 0);
        for (start, number) in headers(placed) {
            (first, together) = (first.min(start), together | start);
            opens = opens.max(Root::opening_of(number));
        }
        if together == 0 {
            return Err(Error::corrupted(
                "both copies of the root are lost, and there is no segment: nothing of a store can be found",
            ));
        }
        let extent_bytes = 1 << together.trailing_zeros().min(30);
        // The lowest free extent is taken first.
        let root_extents = (first / extent_bytes) as u32;
        let damage = Error::corrupted(format!(
            "both copies of the root (bytes 0 and 4096 of the fast tier) are lost; going by the segments' headers, a segment has {extent_bytes} bytes"
        ));
        let root = Root::new(extent_bytes, root_extents, placed, (0, tier.boot_id()));
        Ok((Root { clean: false, opens, ..root }, vec![damage]))
    }

    /// Where a copy of the root of a store that has one is spoiled.
    pub(crate) fn spoiled_copies(tier: &TierBytes) -> Vec<u64> {
        let is_bad = |offset: &u64| {
            tier.try_read(*offset, ROOT_BYTES).is_none_or(|bytes| Root::decode(bytes).is_none())
        };
        COPY_OFFSETS.into_iter().filter(is_bad).collect()
    }

    /// Makes the copies durable as they are.
    pub(crate) fn persist(&self, tier: &TierBytes) -> Result<()> {
        Ok(tier.persist(0, CATALOG_START)?)
    }

    /// Writes the root, durably.
    pub(crate) fn store(&mut self, tier: &TierBytes) -> Result<()> {
        self.generation += 1;
        let bytes = self.encode();
        for copy in [self.whole_copy ^ 1, self.whole_copy] {
            let offset = COPY_OFFSETS[copy];
            tier.write_apart(offset, &bytes);
            // PERSIST: one copy is whole at any moment, because the other is not touched until this one is durable. A crash
            // may have torn either, so the one that was read is the last to go.
            tier.persist(offset, ROOT_BYTES as u64)?;
            self.whole_copy = copy;
        }
        Ok(())
    }

    /// Where the catalog that counts lies: offset and bytes.
    pub(crate) fn catalog_place(&self) -> (u64, u64) {
        (self.catalog_offset, self.catalog_bytes)
    }

    /// The same of the list of segments.
    pub(crate) fn list_place(&self) -> (u64, u64) {
        self.list
            .map_or((0, 0), |list| (self.list_offset(list.area), u64::from(list.count) * ENTRY_BYTES as u64))
    }

    /// Bytes that the root takes, what it names included.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.root_extents).saturating_mul(self.extent_bytes)
    }

    pub(crate) fn version(&self) -> u32 {
        match (self.placed, self.root_extents) {
            (true, _) => 3,
            (false, 1) => 1,
            (false, _) => 2,
        }
    }

    /// Of the segments that opening number `opening` begins.
    pub(crate) fn first_segment_number(&self, opening: u64) -> u64 {
        opening << 32 | if self.placed { PLACED } else { 0 }
    }

    /// The number of the opening that began a segment.
    fn opening_of(segment_number: u64) -> u64 {
        (segment_number & !PLACED) >> 32
    }

    /// Whether checksums know their place, and the segment numbers say so.
    pub(crate) fn is_placed(&self) -> bool {
        self.placed
    }

    /// The most bytes that all tables' schemas may take together.
    fn catalog_bytes_max(&self) -> u64 {
        (self.bytes() - CATALOG_START) / 2
    }

    /// The most bytes of a catalog that leaves the lists of segments their room, in either area.
    fn catalog_bytes_beside_lists(&self) -> u64 {
        self.catalog_bytes_max() - 2 * self.list_bytes_max()
    }

    fn list_bytes_max(&self) -> u64 {
        self.bytes() / 8
    }

    fn list_offset(&self, area: u8) -> u64 {
        self.bytes() - (2 - u64::from(area)) * self.list_bytes_max()
    }

    /// Writes a list of segments into the area that is not in use; not durable by itself. `None` where there is no room.
    pub(crate) fn write_list(&self, tier: &TierBytes, entries: Vec<SegmentEntry>) -> Option<SegmentList> {
        if self.catalog_bytes > self.catalog_bytes_beside_lists() {
            return None;
        }
        let bytes = segment_list::encode(entries, self.list_bytes_max() as usize);
        let area = self.list.map_or(0, |list| list.area ^ 1);
        tier.allocate(self.list_offset(area), bytes.len() as u64).ok()?;
        tier.write(self.list_offset(area), bytes.len(), |out| out.copy_from_slice(&bytes));
        Some(SegmentList { area, count: (bytes.len() / ENTRY_BYTES) as u32, crc: crc32c(0, &bytes) })
    }

    /// The list that counts; empty where none was written.
    pub(crate) fn load_list(&self, tier: &TierBytes) -> Result<Vec<SegmentEntry>> {
        let Some(list) = self.list else { return Ok(Vec::new()) };
        let (offset, bytes) = (self.list_offset(list.area), list.count as usize * ENTRY_BYTES);
        let fits = bytes as u64 <= self.list_bytes_max();
        match tier.try_read(offset, bytes).filter(|bytes| fits && crc32c(0, bytes) == list.crc) {
            Some(bytes) => Ok(segment_list::decode(bytes)),
            None => Err(Error::corrupted(format!(
                "the list of segments at byte {offset} of the fast tier ({bytes} bytes) is corrupted: its checksum does not match"
            ))),
        }
    }

    /// Makes `list`, which is durable, the one that the next [`Root::store`] names. Not one that a large catalog was
    /// written over since.
    pub(crate) fn name_list(&mut self, tier: &TierBytes, list: Option<SegmentList>) {
        let named = Root { list, ..self.clone() };
        self.list = list.filter(|_| named.load_list(tier).is_ok());
    }

    /// Sees to it that a catalog of `bytes` can be stored whatever becomes of the disk: what is freed waits for that.
    pub(crate) fn make_room_for_catalog(&mut self, tier: &TierBytes, bytes: u64) -> Result<()> {
        let most = self.catalog_bytes_max();
        check_catalog_bytes(bytes, most)?;
        if bytes > self.catalog_room {
            let room = bytes.next_multiple_of(ROOM_STEP).min(most);
            tier.allocate(CATALOG_START, room)?;
            tier.allocate(CATALOG_START + most, room)?;
            self.catalog_room = room;
        }
        Ok(())
    }

    /// A catalog of so many bytes has room.
    pub(crate) fn catalog_room(&self) -> u64 {
        self.catalog_room
    }

    /// The same for lists of a small store, and for the catalog that there is.
    pub(crate) fn make_room(&mut self, tier: &TierBytes) -> Result<()> {
        let lists = ROOM_STEP.min(self.list_bytes_max());
        (0..2).try_for_each(|area| tier.allocate(self.list_offset(area), lists))?;
        self.make_room_for_catalog(tier, self.catalog_bytes.max(1))
    }

    /// Writes `catalog` and makes it the one that counts, durably.
    pub(crate) fn store_catalog(&mut self, tier: &TierBytes, catalog: &[u8]) -> Result<()> {
        self.make_room_for_catalog(tier, catalog.len() as u64)?;
        if catalog.len() as u64 > self.catalog_bytes_beside_lists() && self.list.take().is_some() {
            // PERSIST: no root names a list that the catalog is written over.
            self.store(tier)?;
        }
        let offset = self.other_catalog_offset();
        if !catalog.is_empty() {
            tier.write(offset, catalog.len(), |out| out.copy_from_slice(catalog));
            // PERSIST: the catalog is durable before the root that points to it.
            tier.persist(offset, catalog.len() as u64)?;
        }
        let before = self.clone();
        self.catalog_offset = offset;
        self.catalog_bytes = catalog.len() as u64;
        self.catalog_crc = crc32c(0, catalog);
        self.store(tier).inspect_err(|_| {
            *self = before;
        })?;
        // PERSIST: only now does no copy of the root name what was there.
        self.copy_catalog(tier);
        Ok(())
    }

    /// The area for catalogs that the root does not name.
    fn other_catalog_offset(&self) -> u64 {
        let second = CATALOG_START + self.catalog_bytes_max();
        if self.catalog_offset == CATALOG_START { second } else { CATALOG_START }
    }

    /// Puts a copy of the catalog into the area that is not in use, where the next catalog will be written over it. Durable
    /// with the next sync; until then, and where a large catalog leaves no room, there is one.
    pub(crate) fn copy_catalog(&self, tier: &TierBytes) {
        if self.catalog_bytes > 0
            && self.catalog_bytes <= self.catalog_bytes_beside_lists().min(self.catalog_room)
            && let Ok(catalog) = self.catalog_at(tier, self.catalog_offset)
        {
            tier.write(self.other_catalog_offset(), catalog.len(), |out| out.copy_from_slice(catalog));
        }
    }

    /// The catalog that counts: where the root says that it is, or if that is spoiled its copy.
    pub(crate) fn load_catalog<'t>(&self, tier: &'t TierBytes) -> Result<&'t [u8]> {
        let copy = || self.catalog_at(tier, self.other_catalog_offset());
        self.catalog_at(tier, self.catalog_offset).or_else(|error| copy().map_err(|_| error))
    }

    /// What may be catalogs in a tier whose root is lost, or knows none that is whole.
    pub(crate) fn catalog_areas<'t>(&self, tier: &'t TierBytes) -> impl Iterator<Item = &'t [u8]> {
        let bytes = self.catalog_bytes_max();
        [CATALOG_START, CATALOG_START + bytes].into_iter().filter_map(move |offset| {
            let bytes = bytes.min(tier.bytes().saturating_sub(offset));
            tier.try_read(offset, bytes as usize)
        })
    }

    /// Where the catalog is spoiled, if its copy serves in its place.
    pub(crate) fn spoiled_catalog(&self, tier: &TierBytes) -> Option<u64> {
        self.catalog_at(tier, self.catalog_offset).is_err().then_some(self.catalog_offset)
    }

    /// Makes two whole copies of the catalog of what opening has found. Durable where one of them was spoiled.
    pub(crate) fn mend_catalog(&mut self, tier: &TierBytes) -> Result<()> {
        if self.spoiled_catalog(tier).is_none() {
            self.copy_catalog(tier);
            return Ok(());
        }
        let catalog = self.load_catalog(tier)?.to_vec();
        // It is written over its whole copy, with the same bytes: whatever a crash leaves of that is whole.
        self.store_catalog(tier, &catalog)
    }

    fn catalog_at<'t>(&self, tier: &'t TierBytes, offset: u64) -> Result<&'t [u8]> {
        let fits = self.catalog_bytes <= self.catalog_bytes_max()
            && offset + self.catalog_bytes <= self.bytes().min(tier.bytes());
        if fits {
            let bytes = tier.read(offset, self.catalog_bytes as usize);
            if crc32c(0, bytes) == self.catalog_crc {
                return Ok(bytes);
            }
        }
        Err(Error::corrupted(format!(
            "the catalog of tables at byte {} of the fast tier ({} bytes) is corrupted: its checksum does not match",
            self.catalog_offset, self.catalog_bytes
        )))
    }
}

/// `Invalid` for a catalog of more bytes than there is room for.
fn check_catalog_bytes(bytes: u64, limit: u64) -> Result<()> {
    if bytes <= limit {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the tables' schemas take {bytes} bytes together; the limit is {limit} (half of the root)"
    )))
}

/// Whether anything is written where the root may end and segments begin.
fn holds_segments(tier: &TierBytes) -> bool {
    let mut starts = (ROOT_BYTES_MIN..tier.bytes()).step_by(EXTENT_BYTES_MIN as usize);
    let is_used = |start| {
        let header = tier.try_read(start, SEGMENT_HEADER_BYTES as usize);
        header.is_some_and(|header| header.iter().any(|&b| b != 0))
    };
    starts.any(is_used)
}

#[cold]
fn cut_short(bytes: u64, bytes_min: u64) -> Error {
    Error::corrupted(format!(
        "the fast tier ends at byte {bytes}; it had at least {bytes_min} bytes and was cut short"
    ))
}

/// What is wrong with a copy whose other copy serves.
pub(crate) fn spoiled_copy(offset: u64) -> Error {
    Error::corrupted(format!(
        "the copy of the root, of the catalog or of a segment header at byte {offset} of the fast tier is corrupted: its checksum does not match (the other copy serves)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root {
        Root {
            generation: 7,
            opens: 3,
            watermark: 99,
            clean: false,
            catalog_bytes: 11,
            catalog_crc: 0x1234_5678,
            extents: 5,
            list: Some(SegmentList { area: 1, count: 4, crc: 0x9ABC_DEF0 }),
            ..Root::new(1 << 20, 1, false, (0x0102_0304, 0x0506_0708))
        }
    }

    #[test]
    fn root_golden_bytes() {
        let hex: String = root().encode().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "4845444745524f5701000000000000000700000000000000000010000000000004030201000000",
                "000000000000000000080706050000000000000000000000000300000000000000630000000000",
                "0000000200000400000000000100000000000b0000000000000078563412050000000000000000",
                "000000f0debc9a54fb6d95"
            )
        );
    }

    #[test]
    fn the_bit_of_changes_in_the_log_is_no_other_version() {
        let root = Root { changes_in_log: true, ..root() };
        let bytes = root.encode();
        assert_eq!(bytes[8..12], [1, 0, 1, 0], "a version that older builds refuse");
        assert_eq!(Root::decode(&bytes), Some((1, Root { whole_copy: 0, ..root })));
    }

    /// Bytes 112 to 120, and a version that builds which know no sorted tables refuse.
    #[test]
    fn golden_bytes_of_a_root_with_a_manifest() {
        for changes_in_log in [false, true] {
            let without = Root { changes_in_log, ..root() };
            let with = Root { manifest: 0x0102_0304_0506_0708, ..without.clone() };
            let (before, bytes) = (without.encode(), with.encode());
            assert_eq!(bytes[8..12], [1, 0, 2 + u8::from(changes_in_log), 0]);
            assert_eq!(bytes[112..120], [8, 7, 6, 5, 4, 3, 2, 1]);
            assert_eq!(
                (&bytes[..8], &bytes[12..112], &bytes[120..124]),
                (&before[..8], &before[12..112], &before[120..124])
            );
            assert_eq!(Root::decode(&bytes), Some((1, Root { whole_copy: 0, ..with })));
        }
        let crc = u32_at(&Root { manifest: 5, ..root() }.encode(), 124);
        assert_eq!(crc, 0x5B7D_1E6E, "{crc:#x}");
    }

    /// A copy of a store has a manifest of its own, or none.
    #[test]
    fn the_root_of_a_copy_names_its_own_manifest() {
        let of_copy = |manifest| Root { manifest: 5, ..root() }.of_copy((9, manifest), 99, 5, &[]);
        assert_eq!((of_copy(0).manifest, of_copy(1).manifest), (0, 1));
        assert_eq!(of_copy(0).encode()[8..12], [1, 0, 0, 0]);
        assert_eq!(Root::decode(&of_copy(1).encode()).unwrap().1.manifest, 1);
    }

    /// A store of a build that wrote no list: the bytes are zero.
    #[test]
    fn a_root_without_a_list_is_what_it_was() {
        let older = Root { list: None, ..root() };
        let bytes = older.encode();
        assert!(bytes[81..88].iter().chain(&bytes[112..124]).all(|&byte| byte == 0));
        for root in [root(), older] {
            assert_eq!(Root::decode(&root.encode()), Some((1, Root { whole_copy: 0, ..root })));
        }
    }

    /// Version 2: only the version and the number of extents differ, and the checksum.
    #[test]
    fn golden_bytes_of_a_root_of_several_extents() {
        let several = Root { root_extents: 4, ..root() };
        let (one, bytes) = (root().encode(), several.encode());
        assert_eq!(bytes[8..16], [2, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!((&bytes[..8], &bytes[16..124]), (&one[..8], &one[16..124]));
        assert_eq!(u32_at(&bytes, 124), 0x05B5_1C4E);
        assert_eq!(Root::decode(&bytes), Some((2, Root { whole_copy: 0, ..several })));
    }

    /// Version 3: the same, and the number of extents even where it is 1.
    #[test]
    fn golden_bytes_of_a_placed_root() {
        for (root_extents, crc) in [(1, 0x929C_0208), (4, 0x1321_6EF8)] {
            let placed = Root { root_extents, placed: true, ..root() };
            let (older, bytes) = (root().encode(), placed.encode());
            assert_eq!(bytes[8..16], [3, 0, 0, 0, root_extents as u8, 0, 0, 0]);
            assert_eq!((&bytes[..8], &bytes[16..124]), (&older[..8], &older[16..124]));
            assert_eq!(u32_at(&bytes, 124), crc);
            assert_eq!(Root::decode(&bytes), Some((3, Root { whole_copy: 0, ..placed })));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_root_is_found() {
        let mut bytes = root().encode();
        for bit in (0..8 * ROOT_BYTES).step_by(if cfg!(miri) { 31 } else { 1 }) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Root::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
