//! A drive's flash in virtual time: when commands are complete.
//!
//! Owns [`Timeline`]: the serial front stage, the request buffer, channels and dies. Promises that it does the same again from the same tasks at the same times; that whatever was begun ends; and that the
//! request buffer is never over its size while a program is under way that will make room. Must not know commands, nor what is in records: it is told of places and bytes.
//!
//! ```text
//!              one at a time             in the order of commands            a thing at a time each
//!  task -----> [ front stage ] --+-----> [ request buffer ] ---- pages ---> [ channel ]-[ die ] x 8 x 8
//!                                +----------- reads of pages that are not in the buffer --^
//! ```
//!
//! * A store is complete when its bytes have room in the buffer and the read is done that compares its key with the old record's. Room is given in the order of commands, to gc's copies, too: when they
//!   cannot be programmed quickly enough, stores wait.
//! * A page is programmed when it is full, and leaves the buffer then. Reads of it are free until then: gc's copies count as buffered from when they have room.
//! * Pages of a block lie on the dies in turn. A die does reads first, then programs and erases in their order. A program is not interrupted; an erase is, if the model says so, and goes on later.
//! * A read takes the die, then the channel; a program the channel, then the die. What gc reads is the whole page, once for all its records.
//! * The buffer outlives a power cut, as a drive's with a capacitor does. So nothing waits for a page that is not full, for a flush, or for the copies of a block before it is erased. Superblocks and words of
//!   blocks cost nothing: a drive has memory for these.

use std::collections::VecDeque;
use std::ops::Range;

use hedgerow_device::Agenda;

use super::drive_model::DriveModel;
use super::geometry::Geometry;
use super::record::UNIT_BYTES;
use crate::code::{KvError, Result};

/// What is done on the flash for a command, in the order in which the device did it. Places are in units of 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlashWork {
    /// Bytes are read, and the command waits for them.
    Read { place: u64, bytes: u64 },
    /// A record is written, and the command waits for room.
    Store { place: u64, bytes: u64 },
    /// Gc copies a record.
    Copy { from: u64, place: u64, bytes: u64 },
    /// A block is ended: behind its records, and with a footer of so many bytes.
    Seal { end: u64, footer_bytes: u64 },
    /// A block is erased.
    Erase { place: u64 },
}

/// What the timeline did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimelineCounters {
    /// Pages read from dies for commands.
    pub page_reads: u64,
    /// Pages that commands found in the buffer.
    pub buffer_hits: u64,
    /// Pages read from dies by gc.
    pub copy_reads: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Erases, a die's part of a block each.
    pub die_erases: u64,
    /// Of them, those that a program waited for.
    pub erases_hurried: u64,
    /// Times that an erase made way for reads.
    pub erase_suspends: u64,
    /// Stores that waited for room.
    pub stores_waited: u64,
    /// The most bytes that were in the buffer.
    pub buffered_bytes_max: u64,
    /// Time that dies spent on programs, on reads and on erases, in ns, of all dies together.
    pub die_ns: [u64; 3],
}

/// Whose a read of a page is.
#[derive(Debug, Clone, Copy)]
enum PageReader {
    Task(usize),
    Copies(usize),
}

#[derive(Debug, Clone, Copy)]
struct DieRead {
    reader: PageReader,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
enum DieWrite {
    Program(usize),
    Erase,
}

#[derive(Debug, Clone, Copy)]
enum DieJob {
    Read(DieRead),
    Program(usize),
    Erase {
        until_ns: u64,
    },
    /// Until an erase has made way.
    Suspend,
}

#[derive(Debug, Default)]
struct DieState {
    reads: VecDeque<DieRead>,
    writes: VecDeque<DieWrite>,
    running: Option<DieJob>,
    /// What an erase that made way has left, in ns.
    suspended: Option<u64>,
    /// Of the job that is running: an end with another number is that of one that was interrupted.
    job: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct PageState {
    /// Bytes that were in it before, and that take no room.
    base: u32,
    /// Bytes that are in it.
    filled: u32,
    /// It is not programmed yet.
    is_buffered: bool,
}

/// What waits for room, in order.
#[derive(Debug, Clone, Copy)]
enum RoomFor {
    Store { task: usize, place: u64, bytes: u64, asked_ns: u64 },
    Copy { from: u64, place: u64, bytes: u64 },
    Rest { offset: u64, bytes: u64 },
    Erase { place: u64 },
}

impl RoomFor {
    fn bytes(&self) -> u64 {
        match *self {
            RoomFor::Store { bytes, .. } | RoomFor::Copy { bytes, .. } | RoomFor::Rest { bytes, .. } => bytes,
            RoomFor::Erase { .. } => 0,
        }
    }
}

/// A page that gc reads, and where the records go that wait for it: places and bytes.
#[derive(Debug, Default)]
struct CopyRead {
    targets: Vec<(u64, u64)>,
    is_done: bool,
}

#[derive(Debug, Default)]
struct FlashTask {
    tag: u64,
    work: Vec<FlashWork>,
    /// Reads and rooms that it waits for.
    waits: u32,
}

#[derive(Debug, Clone, Copy)]
enum Due {
    FrontDone(usize),
    DieDone { die: usize, job: u64 },
    PageArrived(PageReader),
}

#[derive(Debug)]
pub(crate) struct Timeline {
    model: DriveModel,
    geometry: Geometry,
    agenda: Agenda<Due>,
    front_free_ns: u64,
    dies: Vec<DieState>,
    channel_free_ns: Vec<u64>,
    pages: Vec<PageState>,
    room: VecDeque<RoomFor>,
    buffered_bytes: u64,
    /// Pages that are full and not programmed.
    programs_due: u64,
    tasks: Vec<FlashTask>,
    free_tasks: Vec<usize>,
    copy_reads: Vec<CopyRead>,
    free_copy_reads: Vec<usize>,
    /// The page that gc read last, and which of `copy_reads` that is.
    last_copied: Option<(usize, usize)>,
    /// Blocks and dies whose erases have not been given to the dies, in order.
    erases: VecDeque<(u32, usize)>,
    /// Erases that have, and are not done.
    erases_given: u32,
    ended: VecDeque<u64>,
    counters: TimelineCounters,
}

impl Timeline {
    /// Of a device with this geometry, whatever is on it.
    pub(crate) fn new(model: DriveModel, geometry: Geometry) -> Result<Timeline> {
        model.check()?;
        geometry.check()?;
        if geometry.page_bytes != model.program_bytes {
            return Err(KvError::Param {
                what: "the device's pages are not what the model programs at once",
            });
        }
        let pages = u64::from(geometry.blocks) * u64::from(geometry.block_bytes / geometry.page_bytes);
        Ok(Timeline {
            model,
            geometry,
            agenda: Agenda::default(),
            front_free_ns: 0,
            dies: (0..model.dies()).map(|_| DieState::default()).collect(),
            channel_free_ns: vec![0; model.channels as usize],
            pages: vec![PageState::default(); pages as usize],
            room: VecDeque::new(),
            buffered_bytes: 0,
            programs_due: 0,
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            copy_reads: Vec::new(),
            free_copy_reads: Vec::new(),
            last_copied: None,
            erases: VecDeque::new(),
            erases_given: 0,
            ended: VecDeque::new(),
            counters: TimelineCounters::default(),
        })
    }

    pub(crate) fn model(&self) -> &DriveModel {
        &self.model
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.agenda.now_ns()
    }

    pub(crate) fn counters(&self) -> TimelineCounters {
        self.counters
    }

    /// Begins a task now: its time in the front stage, and what is done on the flash then. `work` is left empty.
    pub(crate) fn start(&mut self, tag: u64, front_ns: u64, work: &mut Vec<FlashWork>) {
        let task = self.free_tasks.pop().unwrap_or_else(|| {
            self.tasks.push(FlashTask::default());
            self.tasks.len() - 1
        });
        let at = &mut self.tasks[task];
        (at.tag, at.waits) = (tag, 1);
        std::mem::swap(&mut at.work, work);
        work.clear();
        self.front_free_ns = self.front_free_ns.max(self.agenda.now_ns()) + front_ns;
        self.agenda.put(self.front_free_ns, Due::FrontDone(task));
    }

    /// Lets time go by until a task is complete; its tag. None: nothing is under way.
    pub(crate) fn run_to_next(&mut self) -> Option<u64> {
        loop {
            if let Some(tag) = self.ended.pop_front() {
                return Some(tag);
            }
            match self.agenda.take_next()? {
                Due::FrontDone(task) => self.begin_work(task),
                Due::DieDone { die, job } => self.end_job(die, job),
                Due::PageArrived(PageReader::Task(task)) => self.end_wait(task),
                Due::PageArrived(PageReader::Copies(read)) => self.end_copy_read(read),
            }
        }
    }

    /// The task waits for one thing less.
    fn end_wait(&mut self, task: usize) {
        let at = &mut self.tasks[task];
        at.waits -= 1;
        if at.waits == 0 {
            self.ended.push_back(at.tag);
            self.free_tasks.push(task);
        }
    }

    fn begin_work(&mut self, task: usize) {
        let mut work = std::mem::take(&mut self.tasks[task].work);
        let mut last_read = None;
        for part in work.drain(..) {
            match part {
                FlashWork::Read { place, bytes } => self.read_pages(task, place, bytes, &mut last_read),
                FlashWork::Store { place, bytes } => {
                    self.tasks[task].waits += 1;
                    let asked_ns = self.agenda.now_ns();
                    self.room.push_back(RoomFor::Store { task, place, bytes, asked_ns });
                }
                FlashWork::Copy { from, place, bytes } => {
                    self.room.push_back(RoomFor::Copy { from, place, bytes });
                }
                FlashWork::Seal { end, footer_bytes } => self.seal(end, footer_bytes),
                FlashWork::Erase { place } => self.room.push_back(RoomFor::Erase { place }),
            }
        }
        self.tasks[task].work = work;
        self.give_room();
        self.end_wait(task);
    }

    /// The pages that a range of the medium touches, and how much of each.
    fn pages_of(&self, offset: u64, bytes: u64) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
        let (page_bytes, start) = (u64::from(self.geometry.page_bytes), self.geometry.block_offset(0));
        let (from, end) = (offset.saturating_sub(start), (offset + bytes).saturating_sub(start));
        let count = self.pages.len() as u64;
        (from / page_bytes..end.div_ceil(page_bytes).min(count)).map(move |page| {
            let first = page * page_bytes;
            (page as usize, from.max(first) - first..end.min(first + page_bytes) - first)
        })
    }

    fn die_of(&self, page: usize) -> usize {
        page % self.dies.len()
    }

    fn read_pages(&mut self, task: usize, place: u64, bytes: u64, last: &mut Option<usize>) {
        for (page, range) in self.pages_of(place * UNIT_BYTES as u64, bytes) {
            // The key that is compared and the value are one read.
            if *last == Some(page) {
                continue;
            }
            *last = Some(page);
            if self.pages[page].is_buffered {
                self.counters.buffer_hits += 1;
                continue;
            }
            self.counters.page_reads += 1;
            self.tasks[task].waits += 1;
            let bytes = range.end - range.start;
            self.read_page(page, DieRead { reader: PageReader::Task(task), bytes });
        }
    }

    fn read_page(&mut self, page: usize, read: DieRead) {
        let die = self.die_of(page);
        let at = &mut self.dies[die];
        at.reads.push_back(read);
        if let (Some(DieJob::Erase { until_ns }), Some(suspend_ns)) =
            (at.running, self.model.erase_suspend_ns)
        {
            let now_ns = self.agenda.now_ns();
            if until_ns > now_ns + suspend_ns {
                at.suspended = Some(until_ns - now_ns);
                self.counters.erase_suspends += 1;
                self.run(die, DieJob::Suspend, now_ns + suspend_ns);
            }
        }
        self.begin_job(die);
    }

    /// What waits for room and has it now.
    fn give_room(&mut self) {
        while let Some(&next) = self.room.front() {
            let bytes = next.bytes();
            // Where nothing is programmed nothing makes room, either: it is that, or to wait for ever.
            if bytes > 0 && self.buffered_bytes + bytes > self.model.buffer_bytes && self.programs_due > 0 {
                break;
            }
            self.room.pop_front();
            self.buffered_bytes += bytes;
            self.counters.buffered_bytes_max = self.counters.buffered_bytes_max.max(self.buffered_bytes);
            match next {
                RoomFor::Store { task, place, bytes, asked_ns } => {
                    self.counters.stores_waited += u64::from(asked_ns < self.agenda.now_ns());
                    let offset = place * UNIT_BYTES as u64;
                    self.begin_pages(offset, bytes);
                    self.fill(offset, bytes);
                    self.end_wait(task);
                }
                RoomFor::Rest { offset, bytes } => {
                    self.begin_pages(offset, bytes);
                    self.fill(offset, bytes);
                }
                RoomFor::Copy { from, place, bytes } => {
                    self.begin_pages(place * UNIT_BYTES as u64, bytes);
                    self.begin_copy(from, place, bytes);
                }
                RoomFor::Erase { place } => self.erase(place),
            }
        }
    }

    /// These bytes are in the buffer, or will be.
    fn begin_pages(&mut self, offset: u64, bytes: u64) {
        for (page, range) in self.pages_of(offset, bytes) {
            let at = &mut self.pages[page];
            if !at.is_buffered {
                let base = range.start as u32;
                *at = PageState { base, filled: base, is_buffered: true };
            }
        }
    }

    /// These bytes are in the buffer: pages that are full are programmed.
    fn fill(&mut self, offset: u64, bytes: u64) {
        for (page, range) in self.pages_of(offset, bytes) {
            let before = self.pages[page].filled;
            self.pages[page].filled = before + (range.end - range.start) as u32;
            let full = self.geometry.page_bytes;
            if before < full && self.pages[page].filled >= full {
                self.programs_due += 1;
                let die = self.die_of(page);
                self.erase_before_program(page, die);
                self.dies[die].writes.push_back(DieWrite::Program(page));
                self.begin_job(die);
            }
        }
    }

    fn begin_copy(&mut self, from: u64, place: u64, bytes: u64) {
        // A record that spans pages is where its first byte is: the next page is read with the next record.
        let Some((page, _)) = self.pages_of(from * UNIT_BYTES as u64, bytes).next() else {
            return self.fill(place * UNIT_BYTES as u64, bytes);
        };
        if self.pages[page].is_buffered {
            return self.fill(place * UNIT_BYTES as u64, bytes);
        }
        if let Some((last, read)) = self.last_copied
            && last == page
        {
            match self.copy_reads[read].is_done {
                true => self.fill(place * UNIT_BYTES as u64, bytes),
                false => self.copy_reads[read].targets.push((place, bytes)),
            }
            return;
        }
        if let Some((_, read)) = self.last_copied.take()
            && self.copy_reads[read].is_done
        {
            self.free_copy_reads.push(read);
        }
        let read = self.free_copy_reads.pop().unwrap_or_else(|| {
            self.copy_reads.push(CopyRead::default());
            self.copy_reads.len() - 1
        });
        self.copy_reads[read].is_done = false;
        self.copy_reads[read].targets.push((place, bytes));
        self.last_copied = Some((page, read));
        self.counters.copy_reads += 1;
        let bytes = u64::from(self.geometry.page_bytes);
        self.read_page(page, DieRead { reader: PageReader::Copies(read), bytes });
    }

    fn end_copy_read(&mut self, read: usize) {
        let mut targets = std::mem::take(&mut self.copy_reads[read].targets);
        for (place, bytes) in targets.drain(..) {
            self.fill(place * UNIT_BYTES as u64, bytes);
        }
        self.copy_reads[read].targets = targets;
        self.copy_reads[read].is_done = true;
        if self.last_copied.is_none_or(|(_, last)| last != read) {
            self.free_copy_reads.push(read);
        }
    }

    /// The page that records end in, and those of the footer, are programmed. What lies between is not.
    fn seal(&mut self, end: u64, footer_bytes: u64) {
        let page_bytes = u64::from(self.geometry.page_bytes);
        let end = end * UNIT_BYTES as u64;
        let Some(block) = self.geometry.block_of((end / UNIT_BYTES as u64).saturating_sub(1)) else { return };
        let block_end = self.geometry.block_offset(block + 1);
        let start = self.geometry.block_offset(block);
        let records_end = end - start;
        let full = records_end.next_multiple_of(page_bytes);
        if full > records_end {
            self.room.push_back(RoomFor::Rest { offset: end, bytes: full - records_end });
        }
        let footer = (block_end - footer_bytes - start) / page_bytes * page_bytes;
        let mut at = start + footer.max(full);
        while at < block_end {
            self.room.push_back(RoomFor::Rest { offset: at, bytes: page_bytes });
            at += page_bytes;
        }
    }

    fn erase(&mut self, place: u64) {
        let Some(block) = self.geometry.block_of(place) else { return };
        let (offset, bytes) = (self.geometry.block_offset(block), u64::from(self.geometry.block_bytes));
        let mut dies: Vec<usize> = self.pages_of(offset, bytes).map(|(page, _)| self.die_of(page)).collect();
        dies.sort_unstable();
        dies.dedup();
        if self.last_copied.is_some_and(|(page, _)| self.pages_of(offset, bytes).any(|(of, _)| of == page))
            && let Some((_, read)) = self.last_copied.take()
            && self.copy_reads[read].is_done
        {
            self.free_copy_reads.push(read);
        }
        self.erases.extend(dies.into_iter().map(|die| (block, die)));
        self.give_erases();
    }

    /// Has dies erase, in turn: some at once, so that the others go on with programs.
    fn give_erases(&mut self) {
        while self.erases_given < self.model.erases_at_once
            && let Some((_, die)) = self.erases.pop_front()
        {
            self.give_erase(die);
        }
    }

    fn give_erase(&mut self, die: usize) {
        self.erases_given += 1;
        self.dies[die].writes.push_back(DieWrite::Erase);
        self.begin_job(die);
    }

    /// Nothing is programmed to what is not erased: whose turn has not come is erased now.
    fn erase_before_program(&mut self, page: usize, die: usize) {
        if self.erases.is_empty() {
            return;
        }
        let block = page as u32 / (self.geometry.block_bytes / self.geometry.page_bytes);
        if let Some(at) = self.erases.iter().position(|&waits| waits == (block, die)) {
            self.erases.remove(at);
            self.counters.erases_hurried += 1;
            self.give_erase(die);
        }
    }

    /// Has a die do a thing until then.
    fn run(&mut self, die: usize, job: DieJob, until_ns: u64) {
        let at = &mut self.dies[die];
        at.running = Some(job);
        at.job += 1;
        self.agenda.put(until_ns, Due::DieDone { die, job: at.job });
    }

    /// The next thing that an idle die does: reads first.
    fn begin_job(&mut self, die: usize) {
        let now_ns = self.agenda.now_ns();
        let at = &mut self.dies[die];
        if at.running.is_some() {
            return;
        }
        if let Some(read) = at.reads.pop_front() {
            self.counters.die_ns[1] += self.model.read_ns;
            return self.run(die, DieJob::Read(read), now_ns + self.model.read_ns);
        }
        if let Some(left_ns) = at.suspended.take() {
            let until_ns = now_ns + left_ns;
            return self.run(die, DieJob::Erase { until_ns }, until_ns);
        }
        match at.writes.pop_front() {
            Some(DieWrite::Program(page)) => {
                let arrived_ns = self.transfer(die, u64::from(self.model.program_bytes));
                let until_ns = arrived_ns + self.model.program_ns;
                self.counters.die_ns[0] += until_ns - now_ns;
                self.run(die, DieJob::Program(page), until_ns);
            }
            Some(DieWrite::Erase) => {
                let until_ns = now_ns + self.model.erase_ns;
                self.counters.die_ns[2] += self.model.erase_ns;
                self.counters.die_erases += 1;
                self.run(die, DieJob::Erase { until_ns }, until_ns);
            }
            None => {}
        }
    }

    /// When so many bytes are over the channel of a die.
    fn transfer(&mut self, die: usize, bytes: u64) -> u64 {
        let channel = die % self.channel_free_ns.len();
        let start_ns = self.channel_free_ns[channel].max(self.agenda.now_ns());
        self.channel_free_ns[channel] = start_ns + self.model.transfer_ns(bytes);
        self.channel_free_ns[channel]
    }

    fn end_job(&mut self, die: usize, job: u64) {
        if self.dies[die].job != job {
            return;
        }
        match self.dies[die].running.take() {
            Some(DieJob::Read(read)) => {
                let arrived_ns = self.transfer(die, read.bytes);
                self.agenda.put(arrived_ns, Due::PageArrived(read.reader));
            }
            Some(DieJob::Program(page)) => {
                self.counters.programs += 1;
                self.programs_due -= 1;
                let at = &mut self.pages[page];
                at.is_buffered = false;
                self.buffered_bytes -= u64::from(self.geometry.page_bytes - at.base);
                self.give_room();
            }
            Some(DieJob::Erase { .. }) => {
                self.erases_given -= 1;
                self.give_erases();
            }
            Some(DieJob::Suspend) | None => {}
        }
        self.begin_job(die);
    }
}

#[cfg(test)]
mod tests;
