//! The extent list: which segments there were when the root was last written, and how far each was durable.
//!
//! Owns the bytes of the list. Promises that of a list that is read back every entry is what was written. Must not know
//! what is in a segment. The root (`log/root.rs`) names the list that counts; opening (`log/open.rs`) holds the file
//! against it: a segment that is missing, or that ends before its records did, is then no store that was written less.
//!
//! The last quarter of the root's units holds two areas for lists, each an eighth of them. A list is entries of 16 bytes, by unit:
//!
//! ```text
//!  0      4         8             16
//!  +------+---------+-------------+
//!  | unit | end / 8 | incarnation |
//!  +------+---------+-------------+
//! ```
//!
//! All little-endian; the checksum over all entries is in the root. A list that does not fit leaves out the oldest segments.

use crate::words::{u32_at, u64_at};

/// Bytes of one entry.
pub(crate) const EXTENT_BYTES: usize = 16;

/// A segment as a list knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Its first unit.
    pub(crate) unit: u32,
    pub(crate) incarnation: u64,
    /// Bytes from its start up to which its records were durable; a multiple of 8.
    pub(crate) end: u64,
}

/// The bytes of a list in at most `bytes_max`, the youngest segments first to get a place.
pub(crate) fn encode(mut extents: Vec<Extent>, bytes_max: usize) -> Vec<u8> {
    let most = bytes_max / EXTENT_BYTES;
    if extents.len() > most {
        extents.sort_unstable_by_key(|extent| std::cmp::Reverse(extent.incarnation));
        extents.truncate(most);
    }
    extents.sort_unstable_by_key(|extent| extent.unit);
    let mut bytes = Vec::with_capacity(extents.len() * EXTENT_BYTES);
    for extent in extents {
        bytes.extend(extent.unit.to_le_bytes());
        bytes.extend(((extent.end / 8) as u32).to_le_bytes());
        bytes.extend(extent.incarnation.to_le_bytes());
    }
    bytes
}

/// What [`encode`] wrote.
pub(crate) fn decode(bytes: &[u8]) -> Vec<Extent> {
    let extent = |entry: &[u8]| Extent {
        unit: u32_at(entry, 0),
        end: u64::from(u32_at(entry, 4)) * 8,
        incarnation: u64_at(entry, 8),
    };
    bytes.chunks_exact(EXTENT_BYTES).map(extent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let extents = [(9, 3, 4096), (2, 1 << 32 | 5, 136)].map(|(unit, incarnation, end)| Extent {
            unit,
            incarnation,
            end,
        });
        let bytes = encode(extents.to_vec(), 1 << 10);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "020000001100000005000000010000000900000000020000".to_owned() + "0300000000000000");
        assert_eq!(decode(&bytes), [extents[1], extents[0]]);
    }

    #[test]
    fn what_does_not_fit_is_the_oldest() {
        let extents: Vec<Extent> =
            (0..10).map(|unit| Extent { unit, incarnation: 100 - u64::from(unit), end: 128 }).collect();
        let kept = decode(&encode(extents.clone(), 4 * EXTENT_BYTES + 15));
        assert_eq!(kept, extents[..4]);
    }
}
