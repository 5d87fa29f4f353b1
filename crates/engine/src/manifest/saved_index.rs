//! The saved index: what a store that was closed in order need not read its log for when it is opened again.
//!
//! Owns the bytes of it: the reference to it, and pieces of payload one after the other. Promises that what is read back is what was written, for this root of this store, or that there is nothing. Must
//! not know what is in a payload.
//!
//! **The reference** is 64 bytes at 8192, beside the copies of the root (`manifest/root.rs`):
//!
//! ```text
//!  0        8       12       16           24         40       44       48         56          60    64
//!  +--------+-------+--------+------------+----------+--------+--------+----------+-----------+-----+
//!  | magic  |version| first  | generation | store id | pieces |   0    | payload  | sequence  | crc |
//!  |        |       | extent | of the root|          |        |        | bytes    | (low half)|     |
//!  +--------+-------+--------+------------+----------+--------+--------+----------+-----------+-----+
//! ```
//!
//! A *checkpoint* of the index, which is written while the store is open, has its own reference at 8704, of the same bytes but for the magic; in the place of the generation it has the root's count of openings, and no sequence.
//!
//! That of a store that was closed counts for the root of exactly this generation. Each opening for writing, and each close, stores another, so that it need never be taken away: a saved index is of no use once anything was written,
//! by this build or by one that knows of none. Such a build passes it over, and so it passes over what it leads to.
//!
//! **A piece** lies in an extent that is free on the medium, behind the page that is kept of it for a segment's header:
//!
//! ```text
//!  4096         4104      4108     4112     4116     4120      4124  4128
//!  +------------+---------+--------+--------+--------+---------+-----+---------------
//!  | generation | next    | number | payload| crc of | 0       | crc | payload ...
//!  |            | extent  |        | bytes  | payload|         |     |
//!  +------------+---------+--------+--------+--------+---------+-----+---------------
//! ```
//!
//! `next extent` is 0 in the last. All numbers are little-endian; checksums are crc32c of what stands before them.

use hedgerow_device::{TierBytes, crc32c};
use hedgerow_row::le_bytes::{u32_at, u64_at, u128_at};

use crate::Result;
use crate::space::KEPT_BYTES;

/// Of the reference, the pieces, what is in them and what they lead to: the layout of a slot's word (`index/slot.rs`), that of a leaf of a group
/// (`group/leaf.rs`) and the journal of what was freed (`log/freed.rs`) are part of it.
const VERSION: u32 = 1;
const REFERENCE_BYTES: usize = 64;
const HEADER_BYTES: usize = 32;
/// No piece has a longer payload, however long extents are: it is held in memory while it is made.
const PAYLOAD_MAX: u64 = 16 << 20;

/// When an index was saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavedAs {
    /// When the store was closed in order.
    Closed,
    /// While it was open: what was written since is in the log.
    Checkpoint,
}

impl SavedAs {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            SavedAs::Closed => b"HGSAVIDX",
            SavedAs::Checkpoint => b"HGIDXCHK",
        }
    }

    /// Where the reference is.
    fn offset(self) -> u64 {
        match self {
            SavedAs::Closed => 8192,
            SavedAs::Checkpoint => 8192 + 512,
        }
    }
}

/// Where a saved index is, and of which root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SavedIndex {
    /// The root's, or of a checkpoint how often the store had been opened by its root.
    pub(crate) generation: u64,
    pub(crate) store_id: u128,
    pub(crate) first_extent: u32,
    pub(crate) pieces: u32,
    pub(crate) payload_bytes: u64,
    /// The last that was given to a record; its low half, which is held against the root's watermark. 0 of a checkpoint.
    pub(crate) sequence: u32,
}

/// How long the payload of a piece in an extent of so many bytes may be.
pub(crate) fn payload_max(extent_bytes: u64) -> usize {
    (extent_bytes - KEPT_BYTES - HEADER_BYTES as u64).min(PAYLOAD_MAX) as usize
}

impl SavedIndex {
    fn encode(&self, saved_as: SavedAs) -> [u8; REFERENCE_BYTES] {
        let mut bytes = [0; REFERENCE_BYTES];
        bytes[0..8].copy_from_slice(saved_as.magic());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.first_extent.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.store_id.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.pieces.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.sequence.to_le_bytes());
        let crc = crc32c(0, &bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], saved_as: SavedAs) -> Option<SavedIndex> {
        let is_whole = bytes[..8] == saved_as.magic()[..] && crc32c(0, &bytes[..60]) == u32_at(bytes, 60);
        (is_whole && u32_at(bytes, 8) == VERSION).then(|| SavedIndex {
            generation: u64_at(bytes, 16),
            store_id: u128_at(bytes, 24),
            first_extent: u32_at(bytes, 12),
            pieces: u32_at(bytes, 40),
            payload_bytes: u64_at(bytes, 48),
            sequence: u32_at(bytes, 56),
        })
    }

    /// Names the index of a store that was closed, whose pieces are durable.
    ///
    /// # Errors
    /// What the tier refuses: then it may count or not.
    pub(crate) fn store(&self, tier: &TierBytes) -> Result<()> {
        let offset = SavedAs::Closed.offset();
        tier.write_apart(offset, &self.encode(SavedAs::Closed));
        Ok(tier.persist(offset, REFERENCE_BYTES as u64)?)
    }

    /// Names a checkpoint, in the place of the one before; none, if there is none. Nothing of it need be durable: it counts after a process was killed, which leaves all that was stored.
    pub(crate) fn name_checkpoint(checkpoint: Option<&SavedIndex>, tier: &TierBytes) {
        let reference = checkpoint.map_or([0; REFERENCE_BYTES], |saved| saved.encode(SavedAs::Checkpoint));
        tier.write_apart(SavedAs::Checkpoint.offset(), &reference);
    }

    /// What counts for the root of this generation of a store; of a checkpoint, of so many openings.
    pub(crate) fn load(
        tier: &TierBytes,
        saved_as: SavedAs,
        (generation, store_id): (u64, u128),
    ) -> Option<SavedIndex> {
        let bytes = tier.try_read(saved_as.offset(), REFERENCE_BYTES)?;
        let saved = SavedIndex::decode(bytes, saved_as)?;
        (saved.generation == generation && saved.store_id == store_id).then_some(saved)
    }

    /// The payloads of all pieces, in order, none of which was verified; `None` if one is not where it should be.
    pub(crate) fn pieces<'t>(&self, tier: &'t TierBytes, extent_bytes: u64) -> Option<Vec<SavedPiece<'t>>> {
        let (mut pieces, mut extent, mut bytes) = (Vec::new(), self.first_extent, 0);
        while extent != 0 {
            let offset = u64::from(extent) * extent_bytes + KEPT_BYTES;
            let header = tier.try_read(offset, HEADER_BYTES)?;
            let is_this = u64_at(header, 0) == self.generation && u32_at(header, 12) as usize == pieces.len();
            let payload_bytes = u32_at(header, 16) as usize;
            let fits = payload_bytes <= payload_max(extent_bytes) && (pieces.len() as u32) < self.pieces;
            if !is_this || !fits || crc32c(0, &header[..28]) != u32_at(header, 28) {
                return None;
            }
            let at = offset + HEADER_BYTES as u64;
            pieces.push(SavedPiece { bytes: tier.try_read(at, payload_bytes)?, crc: u32_at(header, 20), at });
            bytes += payload_bytes as u64;
            extent = u32_at(header, 8);
        }
        (pieces.len() == self.pieces as usize && bytes == self.payload_bytes).then_some(pieces)
    }
}

/// A payload as it is on the medium.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SavedPiece<'t> {
    pub(crate) bytes: &'t [u8],
    crc: u32,
    /// Where it begins in the tier.
    pub(crate) at: u64,
}

impl SavedPiece<'_> {
    /// Whether it is what was written.
    pub(crate) fn is_whole(&self) -> bool {
        crc32c(0, self.bytes) == self.crc
    }
}

/// Writes a piece into an extent that the caller has taken.
pub(crate) fn write_piece(
    tier: &TierBytes,
    extent_offset: u64,
    (generation, number, next_extent): (u64, u32, u32),
    payload: &[u8],
) {
    let mut header = [0; HEADER_BYTES];
    header[0..8].copy_from_slice(&generation.to_le_bytes());
    header[8..12].copy_from_slice(&next_extent.to_le_bytes());
    header[12..16].copy_from_slice(&number.to_le_bytes());
    header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[20..24].copy_from_slice(&crc32c(0, payload).to_le_bytes());
    let crc = crc32c(0, &header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    let (at, bytes) = (extent_offset + KEPT_BYTES, HEADER_BYTES + payload.len());
    tier.write(at, bytes, |out| {
        out[..HEADER_BYTES].copy_from_slice(&header);
        out[HEADER_BYTES..].copy_from_slice(payload);
    });
    tier.start_write_back(at, bytes as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a reference never change.
    #[test]
    fn golden_reference() {
        let saved = SavedIndex {
            generation: 7,
            store_id: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
            first_extent: 33,
            pieces: 2,
            payload_bytes: 1 << 20,
            sequence: 99,
        };
        let bytes = saved.encode(SavedAs::Closed);
        assert_eq!(SavedIndex::decode(&bytes, SavedAs::Closed), Some(saved));
        assert_eq!(SavedIndex::decode(&bytes, SavedAs::Checkpoint), None);
        let checkpoint = saved.encode(SavedAs::Checkpoint);
        assert_eq!(SavedIndex::decode(&checkpoint, SavedAs::Checkpoint), Some(saved));
        assert_eq!((&checkpoint[..8], &checkpoint[8..60]), (&b"HGIDXCHK"[..], &bytes[8..60]));
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "484753415649445801000000210000000700000000000000100f0e0d0c0b0a09\
             080706050403020102000000000000000000100000000000630000008f9b4cd2"
        );
        for at in 0..bytes.len() {
            let mut flipped = bytes;
            flipped[at] ^= 1;
            assert_eq!(SavedIndex::decode(&flipped, SavedAs::Closed), None, "byte {at}");
        }
    }
}
