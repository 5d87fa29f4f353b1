//! Bringing rows nearer before they are read: into the processor's caches, and where memory is smaller than the data, into memory.
//!
//! **Caches.** All of a row, or of a fixed layout only the lines in which the wanted fields lie, with those that verify them. A row of
//! 1,104 bytes has 18 lines, one field of it four to six. Only hints: a row of an older schema version lies elsewhere, and is read all the same.
//!
//! **Memory.** A thread that touches a page which is not in memory waits for the disk, and for the next page it waits again. Who is about
//! to touch many asks for all of them first. Asking is a system call a row, too dear where everything is in memory. So each thread
//! looks now and then how often it had to wait for the disk lately, and asks only if it had to.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use hedgerow_device::memory_bytes;
use smallvec::SmallVec;

use super::engine::Engine;
use crate::FieldId;
use crate::index::{Slot, Tag};
use crate::log::PAGE_BYTES;
use crate::log::format::{FLAG_EXPIRES, RecordRef};
use crate::schema::table::TableSchema;

/// A thread looks at how often it waited for the disk after so many single reads; a group or a step of a scan counts as some.
const READS_A_LOOK: u32 = 64;
const READS_A_GROUP: u32 = 8;
/// While it asks, it waits no more: it goes on asking for so many looks.
const LOOKS_ASKING: u32 = 32;
/// Who waited so often has less memory than data, and did not just begin to read: each of these read the rows beside one as well. Where the data
/// is more than the process may have of memory at all, one wait is enough.
const WAITS_OF_LITTLE_MEMORY: u64 = 256;
/// Taken for the length of a record that may be longer.
const UNKNOWN_BYTES: u64 = 2 << 20;

/// Whether a thread had to wait for the disk lately.
#[derive(Debug, Clone, Copy)]
struct Lately {
    faults: u64,
    reads_before_look: u32,
    looks_asking: u32,
}

thread_local!(static LATELY: Cell<Lately> =
    const { Cell::new(Lately { faults: 0, reads_before_look: 0, looks_asking: 0 }) });

impl Lately {
    /// Records what the thread's count of faults has become; how many are new.
    fn record_faults(&mut self, faults: u64) -> u64 {
        let new = faults.saturating_sub(std::mem::replace(&mut self.faults, faults));
        self.reads_before_look = READS_A_LOOK;
        self.looks_asking = if new > 0 { LOOKS_ASKING } else { self.looks_asking.saturating_sub(1) };
        new
    }
}

/// Whether the calling thread had to wait for the disk lately, or would have.
#[inline]
pub(super) fn has_waited_lately() -> bool {
    LATELY.get().looks_asking > 0
}

impl Engine {
    /// Counts so many reads that did not wait for the disk, though they would have.
    pub(super) fn count_refused_waits(&self, rows: u64) {
        LATELY.set(Lately { looks_asking: LOOKS_ASKING, ..LATELY.get() });
        self.count_waits(rows);
    }

    /// Counts so many reads; whether what they will touch is to be asked for.
    #[inline]
    fn waits_for_disk(&self, reads: u32) -> bool {
        let mut lately = LATELY.get();
        match lately.reads_before_look.checked_sub(reads) {
            Some(left) => lately.reads_before_look = left,
            None => self.count_waits(lately.record_faults(hedgerow_device::major_faults())),
        }
        LATELY.set(lately);
        lately.looks_asking > 0
    }

    #[cold]
    fn count_waits(&self, new: u64) {
        if new == 0 {
            return;
        }
        let waits = self.waits_for_disk.fetch_add(new, Ordering::Relaxed) + new;
        if self.reads_ahead.load(Ordering::Relaxed)
            && self.has_little_memory(waits, memory_bytes)
            && self.reads_ahead.swap(false, Ordering::Relaxed)
        {
            self.log.tier().read_nothing_ahead();
        }
    }

    /// Whether there is less memory than data, after so many waits. The segments in use are the data: the file may be longer, and all
    /// that was freed of it holes.
    ///
    /// A read asks for this: while others have hold of the extents, as they do for as long as the tier grows, it does not wait to be
    /// told. It is asked again with the next wait.
    fn has_little_memory(&self, waits: u64, memory_bytes: impl FnOnce() -> Option<u64>) -> bool {
        let is_less_than_data =
            |bytes| self.log.try_bytes_used().is_some_and(|(used_bytes, _)| used_bytes > bytes);
        waits >= WAITS_OF_LITTLE_MEMORY || memory_bytes().is_some_and(is_less_than_data)
    }

    /// Has the rows at `slots` read from the disk, all at once, if this thread had to wait for it lately; under deltas, what they were
    /// written over, too.
    #[inline]
    pub(super) fn ask_for(&self, slots: &[Option<Slot>]) {
        if self.waits_for_disk(READS_A_GROUP) {
            self.ask_for_chains(slots);
        }
    }

    /// The same for the rows of a step of a scan.
    #[inline]
    pub(super) fn ask_for_all(&self, slots: &[Slot]) {
        if self.waits_for_disk(READS_A_GROUP) {
            let slots: SmallVec<[Option<Slot>; 64]> = slots.iter().copied().map(Some).collect();
            self.ask_for_chains(&slots);
        }
    }

    /// The same for a single row: a row that lies in one page is asked for by touching it.
    #[inline]
    pub(super) fn ask_for_one(&self, slot: Slot) {
        if self.waits_for_disk(1) && slot.offset() % PAGE_BYTES + slot.bytes() > PAGE_BYTES {
            self.ask_for_chains(&[Some(slot)]);
        }
    }

    #[cold]
    fn ask_for_chains(&self, slots: &[Option<Slot>]) {
        let in_log = slots.iter().flatten().filter(|slot| !slot.is_cached());
        let mut level: SmallVec<[RecordRef; 64]> = in_log.map(|&slot| slot.into()).collect();
        for _ in 0..=Slot::DEPTH_MAX {
            self.log.will_read(level.iter().map(|&record| (record.offset(), bytes_to_ask_for(record))));
            level.retain(|record| record.is_delta());
            if level.is_empty() {
                return;
            }
            level = level.iter().filter_map(|delta| self.log.peek_previous(delta.offset())).collect();
        }
    }
}

/// How much of a record to ask for that may be in no memory.
pub(super) fn bytes_to_ask_for(record: RecordRef) -> u64 {
    if record.bytes_unknown() { UNKNOWN_BYTES } else { record.bytes() }
}

/// What is prefetched of each row before it is visited.
pub(super) struct RowPrefetch {
    /// Of a row's body; nothing: all of it.
    parts: SmallVec<[Range<usize>; 4]>,
    body_bytes: usize,
    /// Of rows written now.
    flags: u8,
}

impl RowPrefetch {
    /// For whoever will ask for the fields `ids`, if it said so.
    #[inline]
    pub(super) fn new(engine: &Engine, schema: &TableSchema, ids: Option<&[FieldId]>) -> RowPrefetch {
        let layout = schema.current_layout();
        let flags = engine.mergeable_flag(layout);
        let place = |&id| layout.fixed_reach(id);
        let parts = ids.and_then(|ids| ids.iter().map(place).collect::<Option<SmallVec<_>>>());
        match (layout.body_bytes(), parts) {
            (Some(body_bytes), Some(parts)) if parts.len() <= 4 => RowPrefetch { parts, body_bytes, flags },
            _ => RowPrefetch { parts: SmallVec::new(), body_bytes: 0, flags },
        }
    }

    /// The newest record of a row.
    #[inline]
    pub(super) fn newest(&self, engine: &Engine, slot: Slot, key: &[u8]) {
        let expires = if slot.expires() { FLAG_EXPIRES } else { 0 };
        if self.parts.is_empty() || slot.tag() != Tag::Row {
            engine.prefetch(slot);
        } else {
            engine.log.prefetch_parts(
                slot.offset(),
                (self.flags | expires, key.len()),
                self.body_bytes,
                &self.parts,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier};

    use super::*;
    use crate::db::fixture::options;
    use crate::{Db, Schema, Value};

    /// A store that was larger once reads ahead like any other that fits into memory.
    #[test]
    fn what_was_freed_of_a_long_file_takes_no_memory() {
        let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
        let db = Db::open_at(FastTier::simulated(&sim), options(), Clock::manual(1_000)).unwrap();
        let table = db.create_table("t", Schema::flat()).unwrap();
        let (engine, memory) = (table.engine(), || Some(16 << 20));
        assert!(!engine.has_little_memory(1, memory));
        (0..30_000u64)
            .for_each(|n| table.put(&n.to_be_bytes(), &[("value", Value::Bytes(&[1; 1000]))]).unwrap());
        assert!(engine.has_little_memory(1, memory), "30 MB of rows");
        table.clear().unwrap();
        for _ in 0..100 {
            db.collect().unwrap();
        }
        db.persist().unwrap();
        assert!(engine.log.tier().bytes() > 16 << 20, "the file stays as long");
        assert!(!engine.has_little_memory(1, memory), "{} bytes are in use", engine.log.bytes_used().0);
        assert!(engine.has_little_memory(WAITS_OF_LITTLE_MEMORY, memory), "they wait all the same");
        assert!(!engine.has_little_memory(1, || None), "nothing says how much there is");
    }

    #[test]
    fn a_thread_asks_while_it_waited_for_the_disk_lately() {
        let mut lately = Lately { faults: 7, reads_before_look: 0, looks_asking: 0 };
        assert_eq!((lately.record_faults(7), lately.looks_asking), (0, 0));
        assert_eq!(lately.record_faults(9), 2);
        assert!(lately.looks_asking > 0);
        // What it asks for it does not wait for.
        (1..LOOKS_ASKING).for_each(|_| assert_eq!(lately.record_faults(9), 0));
        assert!(lately.looks_asking > 0);
        assert_eq!((lately.record_faults(9), lately.looks_asking), (0, 0));
    }
}
