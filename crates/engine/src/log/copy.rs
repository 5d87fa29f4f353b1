//! What a copy of the log holds: which segments, up to where, and which of their records.
//!
//! Owns the choice of the records that make up the state at one sequence. Promises that whoever lists the segments while
//! none is freed, and copies of each what [`Log::examine`] says, has that state: a store that ends there. Must not know
//! where the copy goes.
//!
//! A segment is copied to the place that it has, since records lead to one another by their places, and their checksums know them. Of what was written
//! after the sequence nothing is copied: in an appender's segment it comes last, and is cut off; copies that gc made of it lie
//! anywhere in gc's segments, and are invalidated, as recovery does after a power cut.

use std::collections::HashMap;

use hedgerow_device::SharedBytes;

use super::format::FLAG_RELOCATED;
use super::segment::{HEADER_COPY_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentKind, SegmentState};
use super::{Log, SegmentWalk};
use crate::Result;

/// A segment to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentToCopy {
    /// Its first extent.
    pub(crate) extent: u32,
    pub(crate) extents: u32,
    pub(crate) kind: SegmentKind,
    pub(crate) segment_number: u64,
    /// Bytes from its start to where the records end that were committed when it was listed.
    pub(crate) end: u64,
}

/// What of a segment belongs to the state at a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extract {
    /// Bytes from its start; beyond lies what was written later.
    pub(crate) end: u64,
    pub(crate) max_sequence: u64,
    pub(crate) records: u64,
    /// Places in the tier of the records that are invalidated in the copy, and the first word of each there.
    pub(crate) invalidated: Vec<(u64, u64)>,
    /// The copy is all of the segment, which holds nothing that could still change: a later copy of it is the same if it is
    /// as long.
    pub(crate) is_final: bool,
}

impl SegmentToCopy {
    /// Both copies of its header in the copy, `start` bytes into the tier, where it ends with `extract`.
    pub(crate) fn header(&self, start: u64, extract: &Extract) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let header = SegmentHeader {
            state: SegmentState::Sealed,
            kind: self.kind,
            extents: self.extents,
            segment_number: self.segment_number,
            durable_end: extract.end,
            max_sequence: extract.max_sequence,
        };
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        bytes
            .chunks_exact_mut(HEADER_COPY_BYTES)
            .for_each(|copy| copy.copy_from_slice(&header.encode(start)));
        bytes
    }
}

impl Log {
    /// The segments that hold records, each as far as it is committed. Everything up to a sequence that a [`Log::barrier`]
    /// before the call returned is in them, if no segment is freed from before the barrier on.
    pub(crate) fn segments_to_copy(&self) -> Vec<SegmentToCopy> {
        let mut open: HashMap<(u32, u64), u64> = HashMap::new();
        for appender in self.appenders.iter().map(|appender| &appender.0).chain([&self.gc_appender]) {
            open.extend(
                appender
                    .lock()
                    .ends()
                    .map(|(extent, segment_number, end, _)| ((extent, segment_number), end)),
            );
        }
        let segments = self.segments.lock();
        let listed = segments.used.iter().filter_map(|(&extent, segment)| {
            // One that is neither sealed nor known was begun since: all in it is younger, or a copy of what is listed.
            let end = match segment.sealed {
                true => segment.end,
                false => *open.get(&(extent, segment.segment_number))?,
            };
            let (extents, kind, segment_number) = (segment.extents, segment.kind, segment.segment_number);
            (end > SEGMENT_HEADER_BYTES).then_some(SegmentToCopy {
                extent,
                extents,
                kind,
                segment_number,
                end,
            })
        });
        listed.collect()
    }

    /// Whether all segments are sealed, as a store leaves them that was closed in order.
    pub(crate) fn is_all_sealed(&self) -> bool {
        self.segments.lock().used.values().all(|segment| segment.sealed)
    }

    /// The bytes of a segment up to its end. Nobody merges into its rows as long as the backup holds it.
    pub(crate) fn segment_bytes(&self, segment: &SegmentToCopy) -> Result<&SharedBytes> {
        let start = self.extent_offset(segment.extent);
        self.tier.will_need(start, segment.end);
        let bytes = self.tier.try_view(start, segment.end as usize);
        bytes.ok_or_else(|| super::not_a_record(start))
    }

    /// Verifies every record of a segment to its last byte, and says what of it belongs to the state at `sequence`.
    pub(crate) fn examine(&self, segment: &SegmentToCopy, sequence: u64) -> Result<Extract> {
        let (bytes, start) = (self.segment_bytes(segment)?, self.extent_offset(segment.extent));
        let mut walk = SegmentWalk::new(bytes, start, segment.segment_number, segment.end, true, 0);
        let mut extract = Extract {
            end: segment.end,
            max_sequence: 0,
            records: 0,
            invalidated: Vec::new(),
            is_final: true,
        };
        while let Some(record) = walk.next_record()? {
            if record.is_mergeable() {
                // Fields may yet be merged into it.
                extract.is_final = false;
            }
            if record.version() <= sequence {
                extract.max_sequence = extract.max_sequence.max(record.sequence());
                extract.records += 1;
                continue;
            }
            extract.is_final = false;
            if record.flags() & FLAG_RELOCATED == 0 {
                extract.end = walk.write_start();
                return Ok(extract);
            }
            let word = self.tier.load_u64(record.offset());
            extract.invalidated.push((record.offset(), super::format::invalidated_word(word)));
        }
        match walk.end()?.end {
            end if end == segment.end => Ok(extract),
            end => Err(walk.corrupted(end as usize)),
        }
    }
}
