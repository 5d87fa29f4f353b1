//! The bytes of the superblock: what a device is, and how far it was when this was last written.
//!
//! Owns the layout. Promises that one of two copies is whole whatever ended the process: they are written in turn, each while the other is durable. Must
//! not know what is made of it.
//!
//! ```text
//!  0        4        8                16               24               40               56       60       64       68
//!  +--------+--------+----------------+----------------+----- 16 -------+----- 16 -------+--------+--------+--------+-------+
//!  |  crc   | version|   "HGKVSSD1"   |   generation   |   device id    |    boot id     |  page  | block  | blocks | flags |
//!  |        |        |                |                |                |                |  bytes | bytes  |        |       |
//!  +--------+--------+----------------+----------------+----------------+----------------+--------+--------+--------+-------+
//!  72               80               88       92      96               104      108      112             128
//!  +----------------+----------------+--------+--------+----------------+--------+--------+---------------+
//!  |   watermark    |   commands' open block           |   gc's open block                |               |
//!  |                |   generation   | block  |  end   |   generation   | block  |  end   |  hash secret  |
//!  +----------------+----------------+--------+--------+----------------+--------+--------+---------------+
//!  128      132      136
//!  +--------+--------+
//!  |  last  | repair |
//!  | space  |        |
//!  +--------+--------+
//! ```
//!
//! * `crc` is the crc32c of bytes 4 to the end. `generation` counts the writes; an even one is written to copy A at 0, an odd one to copy B at 4096.
//! * `watermark`: every sequence up to here is durable, or was replaced by what is. What opening finds above it is cut at the first gap.
//! * Of each open block: its generation, its number, and how many of its bytes were durable. Number `0xFFFF_FFFF` is none.
//! * `hash secret`: what hashes of keys begin with (see `secret.rs`). Seeds of checksums follow from it, too. Version 1 had none, and version 2 seeds that anybody could foretell.
//! * `last space` is the highest number that a key space was given by then.
//! * `repair`: 0, or the number of a repair that was begun: from here on footers are made anew of damaged records. An opening that finds it tells again of those footers that have it, since the one that made them
//!   was cut short before anybody was told. The boot id, the flags and the marks of open blocks are those of before.
//! * `flags`: 1, the device was closed in order. `boot id` is that of the machine when this was written: another one tells a power cut from a
//!   killed process.

use hedgerow_device::crc32c;
use hedgerow_row::le_bytes::{u32_at, u64_at, u128_at};

use super::geometry::Geometry;
use super::record::SEQUENCE_MAX;
use super::secret::HashSecret;
use crate::code::{KvError, Result};
use crate::command::SpaceId;

/// Bytes of a copy.
pub(crate) const SUPERBLOCK_BYTES: usize = 136;
const MAGIC: &[u8; 8] = b"HGKVSSD1";
/// The only version that this build knows.
pub(crate) const VERSION: u32 = 3;
const FLAG_CLEAN: u32 = 1;
const NO_BLOCK: u32 = u32::MAX;
/// So many superblocks no device writes; half of the numbers that there are, so that none needs a look before it is written.
const GENERATION_MAX: u64 = 1 << 63;

/// How far an open block was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenMark {
    pub(crate) generation: u64,
    pub(crate) block: u32,
    /// Bytes of it that were durable.
    pub(crate) end: u32,
}

/// What a superblock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) generation: u64,
    pub(crate) device_id: u128,
    pub(crate) boot_id: u128,
    pub(crate) geometry: Geometry,
    pub(crate) secret: HashSecret,
    pub(crate) clean: bool,
    pub(crate) watermark: u64,
    /// Of commands, and of gc.
    pub(crate) open: [Option<OpenMark>; 2],
    pub(crate) last_space: SpaceId,
    /// 0 is none.
    pub(crate) repair: u32,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        out[4..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..16].copy_from_slice(MAGIC);
        out[16..24].copy_from_slice(&self.generation.to_le_bytes());
        out[24..40].copy_from_slice(&self.device_id.to_le_bytes());
        out[40..56].copy_from_slice(&self.boot_id.to_le_bytes());
        let Geometry { page_bytes, block_bytes, blocks } = self.geometry;
        let flags = if self.clean { FLAG_CLEAN } else { 0 };
        for (n, word) in [page_bytes, block_bytes, blocks, flags].into_iter().enumerate() {
            out[56 + 4 * n..60 + 4 * n].copy_from_slice(&word.to_le_bytes());
        }
        out[72..80].copy_from_slice(&self.watermark.to_le_bytes());
        for (mark, out) in self.open.iter().zip(out[80..112].chunks_exact_mut(16)) {
            let mark = mark.unwrap_or(OpenMark { generation: 0, block: NO_BLOCK, end: 0 });
            out[..8].copy_from_slice(&mark.generation.to_le_bytes());
            out[8..12].copy_from_slice(&mark.block.to_le_bytes());
            out[12..].copy_from_slice(&mark.end.to_le_bytes());
        }
        out[112..128].copy_from_slice(&self.secret.0.to_le_bytes());
        out[128..132].copy_from_slice(&self.last_space.0.to_le_bytes());
        out[132..].copy_from_slice(&self.repair.to_le_bytes());
        let crc = crc32c(0, &out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// What a copy says; none if it is not whole.
    ///
    /// # Errors
    /// [`KvError::Version`]; [`KvError::Damaged`] where it is whole and its numbers make no device.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Superblock>> {
        let is_one = bytes.len() == SUPERBLOCK_BYTES
            && &bytes[8..16] == MAGIC
            && crc32c(0, &bytes[4..]) == u32_at(bytes, 0);
        if !is_one {
            return Ok(None);
        }
        let found = u32_at(bytes, 4);
        if found != VERSION {
            return Err(KvError::Version { found, known: VERSION });
        }
        let geometry = Geometry {
            page_bytes: u32_at(bytes, 56),
            block_bytes: u32_at(bytes, 60),
            blocks: u32_at(bytes, 64),
        };
        geometry.check().map_err(|_| KvError::Damaged { offset: 0, what: "the geometry of a device" })?;
        if u64_at(bytes, 16) >= GENERATION_MAX || u64_at(bytes, 72) >= SEQUENCE_MAX {
            return Err(KvError::Damaged { offset: 0, what: "the numbers of a superblock" });
        }
        let mark = |at: usize| {
            let mark = OpenMark {
                generation: u64_at(bytes, at),
                block: u32_at(bytes, at + 8),
                end: u32_at(bytes, at + 12),
            };
            (mark.block < geometry.blocks && mark.end <= geometry.block_bytes).then_some(mark)
        };
        Ok(Some(Superblock {
            generation: u64_at(bytes, 16),
            device_id: u128_at(bytes, 24),
            boot_id: u128_at(bytes, 40),
            geometry,
            secret: HashSecret(u128_at(bytes, 112)),
            clean: u32_at(bytes, 68) & FLAG_CLEAN != 0,
            watermark: u64_at(bytes, 72),
            open: [mark(80), mark(96)],
            last_space: SpaceId(u32_at(bytes, 128)),
            repair: u32_at(bytes, 132),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            generation: 9,
            device_id: 0x1122,
            boot_id: 0x3344,
            geometry: Geometry { page_bytes: 4096, block_bytes: 65536, blocks: 16 },
            secret: HashSecret(0x0F0E_0D0C_0B0A_0908_0706_0504_0302_0100),
            clean: true,
            watermark: 77,
            open: [Some(OpenMark { generation: 3, block: 5, end: 4096 }), None],
            last_space: SpaceId(0x0102_0304),
            repair: 8,
        }
    }

    #[test]
    fn a_superblock_keeps_its_bytes_and_every_flipped_bit_is_found() {
        let bytes = superblock().encode();
        assert_eq!(bytes[..], GOLDEN[..]);
        assert_eq!(Superblock::decode(&bytes).unwrap(), Some(superblock()));
        for bit in 0..bytes.len() * 8 {
            let mut spoiled = bytes;
            spoiled[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Superblock::decode(&spoiled), Ok(None)), "bit {bit}");
        }
    }

    const GOLDEN: [u8; SUPERBLOCK_BYTES] = [
        253, 113, 126, 28, 3, 0, 0, 0, 72, 71, 75, 86, 83, 83, 68, 49, 9, 0, 0, 0, 0, 0, 0, 0, 34, 17, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 68, 51, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0,
        0, 1, 0, 16, 0, 0, 0, 1, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 16,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
        12, 13, 14, 15, 4, 3, 2, 1, 8, 0, 0, 0,
    ];

    /// Numbers that no device comes to would overflow.
    #[test]
    fn impossible_numbers_are_damage() {
        for spoiled in [
            Superblock { watermark: u64::MAX, ..superblock() },
            Superblock { watermark: SEQUENCE_MAX, ..superblock() },
            Superblock { generation: 1 << 63, ..superblock() },
        ] {
            assert!(matches!(Superblock::decode(&spoiled.encode()), Err(KvError::Damaged { .. })));
        }
    }

    #[test]
    fn what_another_build_made_is_refused_by_its_version() {
        for version in [1, 2, 4] {
            let mut bytes = superblock().encode();
            bytes[4] = version;
            let crc = crc32c(0, &bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            let refused = Superblock::decode(&bytes);
            assert!(
                matches!(refused, Err(KvError::Version { found, known: 3 }) if found == u32::from(version)),
                "{refused:?}"
            );
        }
    }
}
