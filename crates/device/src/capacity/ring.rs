//! Many reads of files under way at the same time, by io_uring; by advice and one after the other where that is not to be had.
//!
//! Owns the rings. Promises that each read is answered once, in whatever order, with what [`OpenedFile::read_owned`] would say of it; and that memory which the kernel
//! may still write to is not freed, whatever fails or panics. Must not know what is read.
//!
//! # One ring a thread
//!
//! A thread that reads many at once has a ring of its own, made when it first needs one and closed when it ends: a few pages of memory and a descriptor. Shared ones
//! would be fewer, but then a lock stands around each step, and the kernel must be told that others may come: of a ring that one thread alone uses it finishes reads
//! when that thread asks for them, and interrupts nobody.
//!
//! # What is never left to the ring
//!
//! A ring that cannot be made (an old kernel, a sandbox, no descriptor left) is asked for anew by the next call, which costs a system call. A read that it refuses, or
//! does in part, is done or finished by `pread`, whose answer counts. A ring that takes no more entries is given up with its call.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use io_uring::{EnterFlags, IoUring, opcode, types};

use super::directory::OpenedFile;
use crate::error::Result;
use crate::relaxed::{OwnedBytes, UnfilledBytes};

/// Reads under way at once, at most: what keeps a device busy, and bounds the memory of those that nobody has looked at yet.
pub(super) const UNDER_WAY_MAX: usize = 64;
/// So many are handed to the kernel together while more can be begun: the device has work early, and its notice, which is the dear part of a request, is shared by many.
const SUBMITTED_TOGETHER: usize = 8;
/// The kernel cuts longer reads off; the rest of one is read by `pread`.
const READ_BYTES_MAX: usize = 1 << 30;

thread_local! {
    /// The calling thread's, while no call uses it.
    static RING: Cell<Option<IoUring>> = const { Cell::new(None) };
}

/// A read to be done, and what its caller knows it by.
#[derive(Debug)]
pub(super) struct NumberedRead {
    pub(super) number: usize,
    pub(super) file: Arc<OpenedFile>,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// Past the page cache: [`OpenedFile::can_pass_cache`] said so.
    pub(super) is_direct: bool,
}

impl NumberedRead {
    fn read(&self) -> Result<OwnedBytes> {
        self.file.read_owned(self.offset, self.bytes, self.is_direct)
    }
}

/// Where reads come from, and their answers go.
pub(super) trait ReadSource {
    /// The next, if there is one now: once one that is under way was answered there may be another.
    fn next(&mut self) -> Option<NumberedRead>;

    /// What became of the read of this number.
    fn done(&mut self, number: usize, answer: Result<OwnedBytes>);

    /// Does a little of what else there is to do while reads are under way; false if that is nothing now. There may be another read then.
    fn meanwhile(&mut self) -> bool {
        false
    }
}

/// Does all reads of `source`, and tells it of each as it comes, while others are under way and while it thinks of the next.
pub(super) fn read_all(source: &mut impl ReadSource) {
    let mut is_by_ring = true;
    loop {
        let Some(first) = source.next() else {
            if source.meanwhile() {
                continue;
            }
            return;
        };
        let Some(second) = source.next() else {
            // One alone is a system call either way, and the shorter one is `pread`.
            source.done(first.number, first.read());
            continue;
        };
        match is_by_ring.then(take_ring).flatten() {
            Some(ring) => is_by_ring = read_by_ring(ring, source, [first, second]),
            None => read_by_advice(source, [first, second]),
        }
    }
}

/// Does some of the reads of `source`, with these before them.
fn read_by_advice(source: &mut impl ReadSource, first: [NumberedRead; 2]) {
    let mut part = Vec::from(first);
    while part.len() < UNDER_WAY_MAX
        && let Some(next) = source.next()
    {
        part.push(next);
    }
    let through_cache = part.iter().filter(|read| !read.is_direct);
    through_cache.for_each(|read| read.file.will_read(read.offset, read.bytes as u64));
    part.iter().for_each(|read| source.done(read.number, read.read()));
}

/// Does these and then the reads of `source` until it has none, unless the ring fails, which is `false`: those that were begun are answered then.
fn read_by_ring(mut ring: IoUring, source: &mut impl ReadSource, first: [NumberedRead; 2]) -> bool {
    let mut under_way = UnderWay::new(&mut ring);
    first.into_iter().for_each(|read| under_way.push(read));
    loop {
        let mut has_more = true;
        while has_more && under_way.has_room() && under_way.waiting() < SUBMITTED_TOGETHER {
            match source.next() {
                Some(read) => under_way.push(read),
                None => has_more = false,
            }
        }
        if under_way.is_empty() {
            break;
        }
        let is_full = !has_more || !under_way.has_room();
        // The device has its work before something else is done.
        let submitted =
            if is_full && under_way.waiting() == 0 { Ok(()) } else { under_way.submit_and_wait(0) };
        let waited = submitted.and_then(|()| match is_full {
            false => Ok(()),
            true if source.meanwhile() => under_way.submit_and_wait(0),
            // A quarter of all, so that neither the device runs out of work meanwhile nor each answer costs a system call.
            true => under_way.submit_and_wait((under_way.len() / 4).max(1)),
        });
        if waited.is_err() {
            under_way.give_up(source);
            return false;
        }
        while let Some((number, answer)) = under_way.take_done() {
            source.done(number, answer);
        }
    }
    drop(under_way);
    // After the thread's own values are gone there is no place for it.
    let _ = RING.try_with(|place| place.set(Some(ring)));
    true
}

fn take_ring() -> Option<IoUring> {
    #[cfg(test)]
    if injected::refuses_rings() {
        return None;
    }
    let kept = RING.try_with(Cell::take).ok().flatten();
    kept.or_else(|| {
        // Finishing reads when they are asked for is known since 6.1.
        let quiet = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(UNDER_WAY_MAX as u32);
        quiet.or_else(|_| IoUring::builder().dontfork().build(UNDER_WAY_MAX as u32)).ok()
    })
}

/// A read whose entry is in the ring, and the memory that it is for.
struct Begun {
    read: NumberedRead,
    memory: UnfilledBytes,
}

/// Reads whose entries are in a ring: some taken by the kernel, which writes to their memory, and some not yet.
struct UnderWay<'r> {
    ring: &'r mut IoUring,
    /// An entry says in which of these its read is.
    slots: Vec<Option<Begun>>,
    /// Those without a read.
    free: Vec<usize>,
}

impl<'r> UnderWay<'r> {
    fn new(ring: &'r mut IoUring) -> UnderWay<'r> {
        UnderWay { ring, slots: Vec::new(), free: Vec::new() }
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < UNDER_WAY_MAX
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those whose entries the kernel has not taken yet.
    fn waiting(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// Reads that the kernel has taken and not answered yet: their memory is not ours.
    fn in_kernel(&mut self) -> usize {
        self.len() - self.waiting()
    }

    fn push(&mut self, read: NumberedRead) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let memory = UnfilledBytes::new(read.bytes);
        let bytes = read.bytes.min(READ_BYTES_MAX) as u32;
        let entry = opcode::Read::new(types::Fd(read.file.as_raw_fd(read.is_direct)), memory.as_ptr(), bytes)
            .offset(read.offset)
            .build()
            .user_data(slot as u64);
        self.slots[slot] = Some(Begun { read, memory });
        // SAFETY: the kernel may write to the memory from the time that it takes the entry, in a later call of `enter`, to the time that it answers. Till then it stays in its
        // slot: `take_done` alone takes it from there, with the answer in hand; and `drop` waits for all answers, or never frees it. The descriptor is open now; of a read
        // that was taken the kernel holds the file itself, and of one that was not the file is held in the slot until `self` goes, behind which nobody submits it any more.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("a ring has an entry for each slot");
    }

    /// Hands the kernel what it does not have yet, and waits until so many of all are answered.
    fn submit_and_wait(&mut self, wanted: usize) -> io::Result<()> {
        let waiting = self.waiting();
        #[cfg(test)]
        let (waiting, wanted) = injected::submitted(waiting, wanted, self.in_kernel())?;
        self.enter(waiting, wanted)
    }

    fn enter(&mut self, submitted: usize, wanted: usize) -> io::Result<()> {
        let (flags, no_signals) = (EnterFlags::GETEVENTS.bits(), None::<&libc::sigset_t>);
        // SAFETY: numbers; what the entries lead to is as `push` says.
        let entered =
            unsafe { self.ring.submitter().enter(submitted as u32, wanted as u32, flags, no_signals) };
        match entered {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
            entered => entered.map(drop),
        }
    }

    /// The next read that the kernel has answered, if one is there, and what became of it.
    fn take_done(&mut self) -> Option<(usize, Result<OwnedBytes>)> {
        let entry = self.ring.completion().next()?;
        let slot = entry.user_data() as usize;
        let Begun { read, memory } = self.slots[slot].take().expect("a read is answered once");
        self.free.push(slot);
        // What it says of an error, `pread` will say better.
        let there = usize::try_from(entry.result()).unwrap_or(0);
        #[cfg(test)]
        let there = injected::answered(there, &memory);
        Some((read.number, read.file.read_rest(read.offset, memory, there)))
    }

    /// Answers all that is under way, and submits nothing any more: what the kernel has not taken is read without it.
    fn give_up(mut self, source: &mut impl ReadSource) {
        loop {
            while let Some((number, answer)) = self.take_done() {
                source.done(number, answer);
            }
            if self.in_kernel() == 0 || self.enter(0, 1).is_err() {
                break;
            }
        }
        self.slots.iter().flatten().for_each(|Begun { read, .. }| source.done(read.number, read.read()));
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        while self.in_kernel() > 0 {
            if self.ring.completion().next().is_some_and(|entry| {
                let slot = entry.user_data() as usize;
                self.free.push(slot);
                self.slots[slot].take().is_some()
            }) {
                continue;
            }
            if self.enter(0, 1).is_err() {
                // Nobody says any more when the kernel is done with it: it is never freed.
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
        }
    }
}

/// What tests have the kernel say.
#[cfg(test)]
pub(super) mod injected {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;

    /// In this thread, from now on; when they are used up all goes as it does.
    #[derive(Debug, Default)]
    pub(crate) struct Injected {
        /// No ring is to be had.
        pub(crate) no_rings: bool,
        /// Of each call that submits: how many entries the kernel takes, or an error.
        pub(crate) submits: VecDeque<Option<std::result::Result<usize, i32>>>,
        /// Of each answer: so many bytes were read and no more.
        pub(crate) answers: VecDeque<Option<usize>>,
        /// How many reads were answered by a ring so far.
        pub(crate) answered: usize,
    }

    thread_local! {
        static INJECTED: RefCell<Injected> = RefCell::default();
    }

    pub(crate) fn set(injected: Injected) -> Injected {
        INJECTED.replace(injected)
    }

    pub(super) fn refuses_rings() -> bool {
        INJECTED.with_borrow(|injected| injected.no_rings)
    }

    pub(super) fn submitted(waiting: usize, wanted: usize, in_kernel: usize) -> io::Result<(usize, usize)> {
        match INJECTED.with_borrow_mut(|injected| injected.submits.pop_front()).flatten() {
            None => Ok((waiting, wanted)),
            Some(Ok(taken)) => Ok((waiting.min(taken), wanted.min(in_kernel + waiting.min(taken)))),
            Some(Err(code)) => Err(io::Error::from_raw_os_error(code)),
        }
    }

    pub(super) fn answered(there: usize, memory: &UnfilledBytes) -> usize {
        let injected = INJECTED.with_borrow_mut(|injected| {
            injected.answered += 1;
            injected.answers.pop_front()
        });
        let Some(cut) = injected.flatten().filter(|&cut| cut < there) else { return there };
        // SAFETY: bytes of it, which the kernel is done with.
        unsafe { memory.as_ptr().add(cut).write_bytes(0xEE, there - cut) };
        cut
    }
}
