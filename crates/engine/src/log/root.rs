//! The root: the first unit of the fast tier, which says what the rest is.
//!
//! Unit 0 holds the root record twice (at 0 and at 4096) and two areas for the catalog (tables and schemas):
//!
//! ```text
//!  0        8       12  16         24         32          48        64      72         80    81 88       96       104   108   112 124  128
//!  +--------+-------+---+----------+----------+-----------+---------+-------+----------+-----+--+--------+--------+-----+-----+---+----+
//!  | magic  |version| 0 |generation|unit bytes| store id  | boot id | opens |watermark |clean| 0|catalog |catalog |crc  |units| 0 |crc |
//!  |        |       |   |          |          |           |         |       |          |     |  | offset | bytes  |     |     |   |    |
//!  +--------+-------+---+----------+----------+-----------+---------+-------+----------+-----+--+--------+--------+-----+-----+---+----+
//! ```
//!
//! * Of two valid copies the one with the higher `generation` counts. A change writes the new catalog into the area not
//!   in use, then one copy, then the other, each durable before the next is begun; the copy that counts comes last. In a
//!   new store the first copy is written first.
//! * `watermark`: every record with a sequence up to this one was durable when the root was written.
//! * `boot id` tells, after an unclean end, a killed process (same boot: every store survived) from a power cut.
//! * `units`: the tier has had at least so many, durably. A shorter one was cut short.
//! * `opens` counts openings and is the high half of every segment incarnation of that opening.

use hedgerow_device::{FastTier, crc32c};

use super::segment::SEGMENT_HEADER_BYTES;
use crate::words::{u32_at, u64_at, u128_at};
use crate::{Error, ErrorKind, Result};

const MAGIC: &[u8; 8] = b"HEDGEROW";
const VERSION: u32 = 1;
/// Bytes of one copy of the root.
const ROOT_BYTES: usize = 128;
const COPY_OFFSETS: [u64; 2] = [0, 4096];
/// Units are no smaller, and their sizes are multiples of it.
const UNIT_BYTES_MIN: u64 = 1 << 20;
/// Where the first catalog area begins.
pub(super) const CATALOG_START: u64 = 64 << 10;

/// The root record, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) generation: u64,
    pub(crate) unit_bytes: u64,
    pub(crate) store_id: u128,
    pub(crate) boot_id: u128,
    pub(crate) opens: u64,
    pub(crate) watermark: u64,
    pub(crate) clean: bool,
    pub(crate) catalog_offset: u64,
    pub(crate) catalog_bytes: u64,
    pub(crate) catalog_crc: u32,
    pub(crate) units: u32,
    /// Which copy on the medium is whole for sure. Not persisted.
    whole_copy: usize,
}

impl Root {
    pub(crate) fn new(unit_bytes: u64, store_id: u128, boot_id: u128) -> Root {
        Root {
            generation: 0,
            unit_bytes,
            store_id,
            boot_id,
            opens: 0,
            watermark: 0,
            clean: true,
            catalog_offset: CATALOG_START,
            catalog_bytes: 0,
            catalog_crc: crc32c(0, &[]),
            units: 1,
            whole_copy: 1,
        }
    }

    /// The root of a copy of the store, closed in order, that ends at `sequence` and has `catalog`.
    pub(crate) fn of_copy(&self, store_id: u128, sequence: u64, units: u32, catalog: &[u8]) -> Root {
        Root {
            generation: self.generation + 1,
            store_id,
            watermark: sequence,
            clean: true,
            catalog_offset: CATALOG_START,
            catalog_bytes: catalog.len() as u64,
            catalog_crc: crc32c(0, catalog),
            units,
            ..self.clone()
        }
    }

    /// Both copies, and where they lie.
    pub(crate) fn copies(&self) -> [(u64, [u8; ROOT_BYTES]); 2] {
        COPY_OFFSETS.map(|offset| (offset, self.encode()))
    }

    fn encode(&self) -> [u8; ROOT_BYTES] {
        let mut bytes = [0; ROOT_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.unit_bytes.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.store_id.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.boot_id.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.opens.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.watermark.to_le_bytes());
        bytes[80] = u8::from(self.clean);
        bytes[88..96].copy_from_slice(&self.catalog_offset.to_le_bytes());
        bytes[96..104].copy_from_slice(&self.catalog_bytes.to_le_bytes());
        bytes[104..108].copy_from_slice(&self.catalog_crc.to_le_bytes());
        bytes[108..112].copy_from_slice(&self.units.to_le_bytes());
        let crc = crc32c(0, &bytes[..124]);
        bytes[124..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<(u32, Root)> {
        if bytes[..8] != MAGIC[..] || crc32c(0, &bytes[..124]) != u32_at(bytes, 124) {
            return None;
        }
        let root = Root {
            generation: u64_at(bytes, 16),
            unit_bytes: u64_at(bytes, 24),
            store_id: u128_at(bytes, 32),
            boot_id: u128_at(bytes, 48),
            opens: u64_at(bytes, 64),
            watermark: u64_at(bytes, 72),
            clean: bytes[80] == 1,
            catalog_offset: u64_at(bytes, 88),
            catalog_bytes: u64_at(bytes, 96),
            catalog_crc: u32_at(bytes, 104),
            units: u32_at(bytes, 108),
            whole_copy: 0,
        };
        Some((u32_at(bytes, 8), root))
    }

    /// Reads the root of a tier; `None` if the tier has never held a store.
    pub(crate) fn load(tier: &FastTier) -> Result<Option<Root>> {
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
            Some((VERSION, root)) => {
                let bytes = u64::from(root.units).saturating_mul(root.unit_bytes);
                if tier.bytes() < bytes { Err(cut_short(tier.bytes(), bytes)) } else { Ok(Some(root)) }
            }
            Some((version, _)) => Err(Error::new(
                ErrorKind::Version,
                format!("the store has format version {version}; this build knows version {VERSION}"),
            )),
            // The second copy is written only when the first is durable, so a store that was ever used has one; and
            // before there is a segment. Behind a root that was lost the segments are still there.
            None if copies[1].iter().all(|&b| b == 0) && !holds_segments(tier) => Ok(None),
            None => Err(Error::corrupted(
                "both copies of the root (bytes 0 and 4096 of the fast tier) are corrupted: their checksums do not match",
            )),
        }
    }

    /// Where a copy of the root of a store that has one is spoiled.
    pub(crate) fn spoiled_copies(tier: &FastTier) -> Vec<u64> {
        let is_bad = |offset: &u64| {
            tier.try_read(*offset, ROOT_BYTES).is_none_or(|bytes| Root::decode(bytes).is_none())
        };
        COPY_OFFSETS.into_iter().filter(is_bad).collect()
    }

    /// Makes the copies durable as they are.
    pub(crate) fn persist(&self, tier: &FastTier) -> Result<()> {
        Ok(tier.persist(0, CATALOG_START)?)
    }

    /// Writes the root, durably.
    pub(crate) fn store(&mut self, tier: &FastTier) -> Result<()> {
        self.generation += 1;
        let bytes = self.encode();
        for copy in [self.whole_copy ^ 1, self.whole_copy] {
            let offset = COPY_OFFSETS[copy];
            tier.write(offset, ROOT_BYTES, |out| out.copy_from_slice(&bytes));
            // PERSIST: one copy is whole at any moment, because the other is not touched until this one is durable. A crash
            // may have torn either, so the one that was read is the last to go.
            tier.persist(offset, ROOT_BYTES as u64)?;
            self.whole_copy = copy;
        }
        Ok(())
    }

    /// Where the catalog that counts lies: offset and bytes.
    pub(super) fn catalog_place(&self) -> (u64, u64) {
        (self.catalog_offset, self.catalog_bytes)
    }

    fn catalog_bytes_max(&self) -> u64 {
        (self.unit_bytes - CATALOG_START) / 2
    }

    /// Writes `catalog` and makes it the one that counts, durably.
    pub(crate) fn store_catalog(&mut self, tier: &FastTier, catalog: &[u8]) -> Result<()> {
        let limit = self.catalog_bytes_max();
        if catalog.len() as u64 > limit {
            return Err(Error::invalid(format!(
                "the tables' schemas take {} bytes together; the limit is {limit} (half a segment)",
                catalog.len()
            )));
        }
        let offset = if self.catalog_offset == CATALOG_START { CATALOG_START + limit } else { CATALOG_START };
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
        })
    }

    /// The catalog that counts.
    pub(crate) fn load_catalog<'t>(&self, tier: &'t FastTier) -> Result<&'t [u8]> {
        let fits = self.catalog_bytes <= self.catalog_bytes_max()
            && self.catalog_offset + self.catalog_bytes <= self.unit_bytes.min(tier.bytes());
        if fits {
            let bytes = tier.read(self.catalog_offset, self.catalog_bytes as usize);
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

/// Whether anything is written where the first unit, which is the root's, may end and others begin.
fn holds_segments(tier: &FastTier) -> bool {
    let mut starts = (UNIT_BYTES_MIN..tier.bytes()).step_by(UNIT_BYTES_MIN as usize);
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

impl From<hedgerow_device::DeviceError> for Error {
    fn from(error: hedgerow_device::DeviceError) -> Error {
        use hedgerow_device::DeviceError as E;
        let kind = match &error {
            E::Full { .. } | E::TargetFull { .. } => ErrorKind::Full,
            E::Locked { .. } => ErrorKind::Locked,
            E::Closed { .. } => ErrorKind::Closed,
            _ => ErrorKind::Io,
        };
        Error::new(kind, error.to_string())
    }
}
