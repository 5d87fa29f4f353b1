//! The segment list: which segments there were when the root was last written, and how far each was durable.
//!
//! Owns the bytes of the list. Promises that of a list that is read back every entry is what was written. Must not know
//! what is in a segment. The root (`manifest/root.rs`) names the list that counts; opening (`log/open.rs`) holds the file
//! against it: a segment that is missing, or that ends before its records did, is then no store that was written less.
//!
//! The last quarter of the root's extents holds two areas for lists, each an eighth of them. A list is entries of 16 bytes, by extent:
//!
//! ```text
//!  0        4         8                16
//!  +--------+---------+----------------+
//!  | extent | end / 8 | segment number |
//!  +--------+---------+----------------+
//! ```
//!
//! All little-endian; the checksum over all entries is in the root. A list that does not fit leaves out the oldest segments.

use hedgerow_row::le_bytes::{u32_at, u64_at};

/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 16;
const _: () = assert!(ENTRY_BYTES == 2 * size_of::<u32>() + size_of::<u64>());

/// A segment as a list knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    /// Its first extent.
    pub(crate) extent: u32,
    pub(crate) segment_number: u64,
    /// Bytes from its start up to which its records were durable; a multiple of 8.
    pub(crate) end: u64,
}

/// The bytes of a list in at most `bytes_max`, the youngest segments first to get a place.
pub(crate) fn encode(mut entries: Vec<SegmentEntry>, bytes_max: usize) -> Vec<u8> {
    let most = bytes_max / ENTRY_BYTES;
    if entries.len() > most {
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.segment_number));
        entries.truncate(most);
    }
    entries.sort_unstable_by_key(|entry| entry.extent);
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        bytes.extend(entry.extent.to_le_bytes());
        bytes.extend(((entry.end / 8) as u32).to_le_bytes());
        bytes.extend(entry.segment_number.to_le_bytes());
    }
    bytes
}

/// What [`encode`] wrote.
pub(crate) fn decode(bytes: &[u8]) -> Vec<SegmentEntry> {
    let entry = |bytes: &[u8]| SegmentEntry {
        extent: u32_at(bytes, 0),
        end: u64::from(u32_at(bytes, 4)) * 8,
        segment_number: u64_at(bytes, 8),
    };
    bytes.chunks_exact(ENTRY_BYTES).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let entries = [(9, 3, 4096), (2, 1 << 32 | 5, 136)]
            .map(|(extent, segment_number, end)| SegmentEntry { extent, segment_number, end });
        let bytes = encode(entries.to_vec(), 1 << 10);
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "020000001100000005000000010000000900000000020000".to_owned() + "0300000000000000");
        assert_eq!(decode(&bytes), [entries[1], entries[0]]);
    }

    #[test]
    fn what_does_not_fit_is_the_oldest() {
        let entries: Vec<SegmentEntry> = (0..10)
            .map(|extent| SegmentEntry { extent, segment_number: 100 - u64::from(extent), end: 128 })
            .collect();
        let kept = decode(&encode(entries.clone(), 4 * ENTRY_BYTES + 15));
        assert_eq!(kept, entries[..4]);
    }
}
