//! Whether threads wait for the disk, and what is done about it.
//!
//! A thread that touches a page which is not in memory waits for the disk, and for the next page it waits again. Who is about
//! to touch many asks for all of them first. Asking is a system call a row, too dear where everything is in memory. So each thread
//! looks now and then how often it had to wait for the disk lately, and asks only if it had to.
//!
//! Owns: these looks, and what they came to for the store. Promises: a thread that never waits pays for a count of its own a read. Must not know who
//! reads, nor what.

use std::cell::Cell;

use hedgerow_device::memory_bytes;
use smallvec::SmallVec;

use crate::index::{LogSlot, Slot};
use crate::log::format::RecordRef;
use crate::log::{Log, LogView, PAGE_BYTES};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A thread looks at how often it waited for the disk after so many single reads; a group or a step of a scan counts as some. Its first looks come after
/// 1, 2, 4 and so on: while nobody looked, each wait reads the rows beside one as well, up to 8 MiB on some disks.
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
    reads_a_look: u32,
    looks_asking: u32,
}

thread_local!(static LATELY: Cell<Lately> = const { Cell::new(Lately::FIRST) });

impl Lately {
    /// Of a thread that has not looked yet: what it waited for before, such as the program itself, was no row.
    const FIRST: Lately = Lately { faults: u64::MAX, reads_before_look: 0, reads_a_look: 1, looks_asking: 0 };

    /// Records what the thread's count of faults has become; how many are new.
    fn record_faults(&mut self, faults: u64) -> u64 {
        let new = faults.saturating_sub(std::mem::replace(&mut self.faults, faults));
        // The first looks come too soon to be counted.
        let counted = u32::from(self.reads_a_look == READS_A_LOOK);
        self.reads_before_look = self.reads_a_look - 1;
        self.reads_a_look = READS_A_LOOK.min(2 * self.reads_a_look);
        self.looks_asking = if new > 0 { LOOKS_ASKING } else { self.looks_asking.saturating_sub(counted) };
        new
    }
}

/// Whether the calling thread had to wait for the disk lately, or would have.
#[inline]
pub(super) fn has_waited_lately() -> bool {
    LATELY.get().looks_asking > 0
}

/// A number for each store that is opened. Not one of [`crate::sync`]'s atomics: no schedule depends on it.
fn next_store_id() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// What all threads of a store know of waiting for the disk.
pub(crate) struct DiskWaits {
    /// Of no other store of this process, not even of one that is gone.
    store_id: u64,
    /// How often readers found what they touched not in memory, as far as they looked.
    pub(super) counted: AtomicU64,
    /// The tier reads ahead of who waits: until memory turns out to be less than the data.
    reads_ahead: AtomicBool,
}

impl Default for DiskWaits {
    fn default() -> DiskWaits {
        DiskWaits {
            store_id: next_store_id(),
            counted: AtomicU64::new(0),
            reads_ahead: AtomicBool::new(true),
        }
    }
}

impl DiskWaits {
    /// Tells the stores of a process apart, for what threads keep of several.
    pub(super) fn store_id(&self) -> u64 {
        self.store_id
    }

    /// Whether any thread had to wait.
    pub(super) fn are_any(&self) -> bool {
        self.counted.load(Ordering::Relaxed) > 0
    }

    /// Counts so many reads that did not wait for the disk, though they would have.
    pub(super) fn count_refused(&self, log: &Log, rows: u64) {
        LATELY.set(Lately { looks_asking: LOOKS_ASKING, ..LATELY.get() });
        self.count(log, rows);
    }

    /// Counts so many reads; whether what they will touch is to be asked for.
    #[inline]
    fn is_to_ask(&self, log: &Log, reads: u32) -> bool {
        let mut lately = LATELY.get();
        match lately.reads_before_look.checked_sub(reads) {
            Some(left) => lately.reads_before_look = left,
            None => self.count(log, lately.record_faults(hedgerow_device::major_faults())),
        }
        LATELY.set(lately);
        lately.looks_asking > 0
    }

    #[cold]
    fn count(&self, log: &Log, new: u64) {
        if new == 0 {
            return;
        }
        let waits = self.counted.fetch_add(new, Ordering::Relaxed) + new;
        if self.reads_ahead.load(Ordering::Relaxed)
            && has_little_memory(log, waits, memory_bytes)
            && self.reads_ahead.swap(false, Ordering::Relaxed)
        {
            log.tier().read_nothing_ahead();
        }
    }

    /// Has the rows at `slots` read from the disk, all at once, if this thread had to wait for it lately; under deltas, what they were
    /// written over, too.
    #[inline]
    pub(super) fn ask_for(&self, log: LogView<'_>, slots: &[Option<Slot>]) {
        if self.is_to_ask(&log, READS_A_GROUP) {
            ask_for_chains(log, slots);
        }
    }

    /// The same for the rows of a step of a scan.
    #[inline]
    pub(super) fn ask_for_all(&self, log: LogView<'_>, slots: &[Slot]) {
        if self.is_to_ask(&log, READS_A_GROUP) {
            let slots: SmallVec<[Option<Slot>; 64]> = slots.iter().copied().map(Some).collect();
            ask_for_chains(log, &slots);
        }
    }

    /// The same for a single row: a row that lies in one page is asked for by touching it.
    #[inline]
    pub(super) fn ask_for_one(&self, log: LogView<'_>, slot: Slot) {
        if self.is_to_ask(&log, 1) && slot.in_log().is_some_and(lies_in_two_pages) {
            ask_for_chains(log, &[Some(slot)]);
        }
    }
}

/// Whether there is less memory than data, after so many waits. The segments in use are the data: the file may be longer, and all
/// that was freed of it holes.
///
/// A read asks for this: while others have hold of the extents, as they do for as long as the tier grows, it does not wait to be
/// told. It is asked again with the next wait.
fn has_little_memory(log: &Log, waits: u64, memory_bytes: impl FnOnce() -> Option<u64>) -> bool {
    let is_less_than_data =
        |bytes| log.space().try_bytes_used().is_some_and(|(used_bytes, _)| used_bytes > bytes);
    waits >= WAITS_OF_LITTLE_MEMORY || memory_bytes().is_some_and(is_less_than_data)
}

fn lies_in_two_pages(slot: LogSlot) -> bool {
    slot.offset() % PAGE_BYTES + slot.bytes() > PAGE_BYTES
}

#[cold]
fn ask_for_chains(log: LogView<'_>, slots: &[Option<Slot>]) {
    let in_log = slots.iter().flatten().filter_map(|slot| slot.in_log());
    let mut level: SmallVec<[RecordRef; 64]> = in_log.map(RecordRef::from).collect();
    for _ in 0..=Slot::DEPTH_MAX {
        log.will_read(level.iter().map(|&record| (record.offset(), bytes_to_ask_for(record))));
        level.retain(|record| record.is_delta());
        if level.is_empty() {
            return;
        }
        level = level.iter().filter_map(|delta| log.peek_previous(delta.offset())).collect();
    }
}

/// How much of a record to ask for that may be in no memory.
pub(super) fn bytes_to_ask_for(record: RecordRef) -> u64 {
    if record.bytes_unknown() { UNKNOWN_BYTES } else { record.bytes() }
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
        assert!(!has_little_memory(&engine.log, 1, memory));
        (0..30_000u64)
            .for_each(|n| table.put(&n.to_be_bytes(), &[("value", Value::Bytes(&[1; 1000]))]).unwrap());
        assert!(has_little_memory(&engine.log, 1, memory), "30 MB of rows");
        table.clear().unwrap();
        for _ in 0..100 {
            db.collect().unwrap();
        }
        db.persist().unwrap();
        assert!(engine.log.tier().bytes() > 16 << 20, "the file stays as long");
        assert!(
            !has_little_memory(&engine.log, 1, memory),
            "{} bytes are in use",
            engine.log.space().bytes_used().0
        );
        assert!(has_little_memory(&engine.log, WAITS_OF_LITTLE_MEMORY, memory), "they wait all the same");
        assert!(!has_little_memory(&engine.log, 1, || None), "nothing says how much there is");
    }

    /// The first waits after loading read 8 MiB each, until somebody looks.
    #[test]
    fn a_thread_looks_often_at_first() {
        let mut lately = Lately::FIRST;
        assert_eq!((lately.record_faults(9), lately.looks_asking), (0, 0), "before the first read");
        lately.reads_a_look = 1;
        let mut reads_between = Vec::new();
        for _ in 0..9 {
            lately.record_faults(9);
            reads_between.push(lately.reads_before_look + 1);
        }
        assert_eq!(reads_between, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        // Who has to wait at once asks as long as anybody.
        let mut lately = Lately { faults: 0, ..Lately::FIRST };
        lately.record_faults(1);
        (0..LOOKS_ASKING).for_each(|_| assert_eq!(lately.record_faults(1), 0));
        assert!(lately.looks_asking > 0);
    }

    #[test]
    fn a_thread_asks_while_it_waited_for_the_disk_lately() {
        let mut lately =
            Lately { faults: 7, reads_before_look: 0, reads_a_look: READS_A_LOOK, looks_asking: 0 };
        assert_eq!((lately.record_faults(7), lately.looks_asking), (0, 0));
        assert_eq!(lately.record_faults(9), 2);
        assert!(lately.looks_asking > 0);
        // What it asks for it does not wait for.
        (1..LOOKS_ASKING).for_each(|_| assert_eq!(lately.record_faults(9), 0));
        assert!(lately.looks_asking > 0);
        assert_eq!((lately.record_faults(9), lately.looks_asking), (0, 0));
    }
}
