//! The manifest of a backup: the file `backup` beside `fast`, lines of text.
//!
//! ```text
//! hedgerow-backup 1                              CRC
//! source STORE-ID EXTENT-BYTES                     CRC
//! segment EXTENT EXTENTS SEGMENT-NUMBER END TAIL-CRC    CRC     one for each segment that a later backup need not copy again
//! image STORE-ID GENERATION SEQUENCE             CRC     last, of a finished backup: what its root says
//! ```
//!
//! * Words are parted by single spaces; store ids and checksums are hexadecimal, other numbers decimal. `CRC` is the crc32c
//!   of the line before it, without the space.
//! * `segment` lines are appended as segments become durable. The first line that is torn or spoiled ends the manifest: what
//!   it and those behind it said is copied again.
//! * `TAIL-CRC` is the crc32c of the segment's last bytes, at most 4096: two stores that were one once, by a copy made by
//!   hand, are not taken for one another.
//!
//! Owns the text. Must not know segments or files.

use std::collections::BTreeMap;
use std::fmt::Write;

use hedgerow_device::crc32c;

/// The first line.
const HEADING: &str = "hedgerow-backup 1";

/// What is known of a backup in a directory, finished or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Id of the store that was backed up.
    pub(super) source: u128,
    pub(super) extent_bytes: u64,
    /// By first extent.
    pub(super) segments: BTreeMap<u32, Kept>,
    /// Of a finished backup.
    pub(super) image: Option<ImageId>,
}

/// A segment that is in the backup, whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) extents: u32,
    pub(super) segment_number: u64,
    pub(super) end: u64,
    pub(super) tail_crc: u32,
}

/// What the root of a finished backup says. A store that was opened there since has another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImageId {
    pub(super) store_id: u128,
    pub(super) generation: u64,
    pub(super) sequence: u64,
}

impl Manifest {
    pub(super) fn new(source: u128, extent_bytes: u64) -> Manifest {
        Manifest { source, extent_bytes, segments: BTreeMap::new(), image: None }
    }

    pub(super) fn encode(&self) -> String {
        let mut text = line(HEADING);
        text += &line(&format!("source {:032x} {}", self.source, self.extent_bytes));
        self.segments.iter().for_each(|(&extent, kept)| text += &Manifest::segment_line(extent, kept));
        if let Some(image) = &self.image {
            text += &line(&format!("image {:032x} {} {}", image.store_id, image.generation, image.sequence));
        }
        text
    }

    /// What is appended when a segment has become durable.
    pub(super) fn segment_line(extent: u32, kept: &Kept) -> String {
        let Kept { extents, segment_number, end, tail_crc } = kept;
        line(&format!("segment {extent} {extents} {segment_number} {end} {tail_crc:08x}"))
    }

    /// Reads a manifest as far as it is whole; `None` if not even the first two lines are.
    pub(super) fn decode(bytes: &[u8]) -> Option<Manifest> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split_inclusive('\n').map_while(content);
        if lines.next()? != HEADING {
            return None;
        }
        let mut words = lines.next()?.strip_prefix("source ")?.split(' ');
        let source = u128::from_str_radix(words.next()?, 16).ok()?;
        let mut manifest = Manifest::new(source, words.next()?.parse().ok()?);
        for line in lines {
            if manifest.take(line).is_none() {
                break;
            }
        }
        Some(manifest)
    }

    fn take(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        match words.next()? {
            "segment" => {
                let extent = words.next()?.parse().ok()?;
                let (extents, segment_number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                let end = words.next()?.parse().ok()?;
                let tail_crc = u32::from_str_radix(words.next()?, 16).ok()?;
                self.segments.insert(extent, Kept { extents, segment_number, end, tail_crc });
            }
            "image" => {
                let store_id = u128::from_str_radix(words.next()?, 16).ok()?;
                let (generation, sequence) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                self.image = Some(ImageId { store_id, generation, sequence });
            }
            _ => return None,
        }
        words.next().is_none().then_some(())
    }
}

fn line(content: &str) -> String {
    let mut line = content.to_owned();
    let crc = crc32c(0, content.as_bytes());
    writeln!(line, " {crc:08x}").expect("a string takes whatever is written");
    line
}

/// What a whole line says.
fn content(line: &str) -> Option<&str> {
    let (content, crc) = line.strip_suffix('\n')?.rsplit_once(' ')?;
    (u32::from_str_radix(crc, 16).ok()? == crc32c(0, content.as_bytes())).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let kept = |n: u32| Kept { extents: n, segment_number: 1 << 32 | 5, end: 4096, tail_crc: 0xabc };
        Manifest {
            source: 0x1234,
            extent_bytes: 1 << 20,
            segments: [(1, kept(1)), (7, kept(2))].into(),
            image: Some(ImageId { store_id: 0x77, generation: 9, sequence: 12 }),
        }
    }

    #[test]
    fn golden_bytes() {
        let text = manifest().encode();
        let golden = concat!(
            "hedgerow-backup 1 131e2d52\n",
            "source 00000000000000000000000000001234 1048576 4e0b93cc\n",
            "segment 1 1 4294967301 4096 00000abc a0bff52b\n",
            "segment 7 2 4294967301 4096 00000abc 1405d891\n",
            "image 00000000000000000000000000000077 9 12 e43a2827\n",
        );
        assert_eq!(text, golden);
        assert_eq!(Manifest::decode(text.as_bytes()), Some(manifest()));
    }

    #[test]
    fn a_torn_or_spoiled_line_ends_it() {
        let text = manifest().encode();
        let whole: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        for cut in 0..=text.len() {
            let read = Manifest::decode(&text.as_bytes()[..cut]);
            let lines = whole.iter().filter(|&&end| end <= cut).count();
            assert_eq!(read.is_some(), lines >= 2, "cut at {cut}");
            let Some(read) = read else { continue };
            assert_eq!((read.segments.len(), read.image.is_some()), ((lines - 2).min(2), lines == 5));
        }
        for at in whole[1]..text.len() {
            let mut spoiled = text.clone().into_bytes();
            spoiled[at] ^= 1;
            let read = Manifest::decode(&spoiled).unwrap();
            assert!(read.image.is_none() && read.segments.iter().all(|(n, k)| manifest().segments[n] == *k));
        }
        assert_eq!(Manifest::decode(b""), None);
        assert_eq!(Manifest::decode(&[0xff; 100]), None);
    }
}
