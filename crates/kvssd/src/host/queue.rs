//! A queue pair that somebody else drives.
//!
//! Owns [`QueuePair`]. Promises that its memory is set aside at its opening, `depth` times a key and a value buffer; that each command has one completion, a refusal where the driver is gone; that a
//! time-out loses nothing: the command stays under way, and its completion comes; and that the file descriptor is readable while a poll would hand out something. Must not know where the driver runs.

use std::collections::VecDeque;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hedgerow_device::{Clock, EventFd};

use super::locks::Arc;
use super::rings::{Doorbell, QueueRings, RingCompletion};
use super::{HostRequest, HostTicket, QueueSlot, command_of};
use crate::code::{KvError, Result};
use crate::command::{KEY_BYTES_MAX, KvAnswer};

/// Longest sleep before a look at the clock.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// A queue pair over a device that a [`QueueDriver`](crate::QueueDriver) or a [`DeviceThread`](crate::DeviceThread) drives. For one thread at a time; may be handed to another.
#[derive(Debug)]
pub struct QueuePair {
    rings: Arc<QueueRings>,
    doorbell: Arc<Doorbell>,
    slots: Vec<QueueSlot>,
    free: Vec<u32>,
    /// Slots whose commands are complete and were not handed out, in that order.
    complete: VecDeque<u32>,
    /// What was taken from the ring: empty between calls.
    taken: VecDeque<RingCompletion>,
    event: Option<Arc<EventFd>>,
    buffer_bytes: usize,
    value_bytes_max: u64,
    last_ticket: u64,
}

impl QueuePair {
    pub(super) fn new(
        rings: Arc<QueueRings>,
        doorbell: Arc<Doorbell>,
        depth: usize,
        buffer_bytes: usize,
        value_bytes_max: u64,
    ) -> QueuePair {
        let slot = || QueueSlot { buffer: Vec::with_capacity(buffer_bytes), ticket: None, result: None };
        QueuePair {
            rings,
            doorbell,
            slots: (0..depth).map(|_| slot()).collect(),
            free: (0..depth as u32).rev().collect(),
            complete: VecDeque::with_capacity(depth),
            taken: VecDeque::with_capacity(depth),
            event: None,
            buffer_bytes,
            value_bytes_max,
            last_ticket: 0,
        }
    }

    /// Bytes set aside for keys and values, those of commands that are under way among them.
    pub fn buffer_bytes(&self) -> usize {
        self.slots.len() * (KEY_BYTES_MAX + self.buffer_bytes)
    }

    /// Commands that were started and not handed out.
    pub fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Gives a command to the device, and does not wait.
    ///
    /// # Errors
    /// Only what is known at once, and nothing was started then: [`KvError::QueueFull`]; a key or a value that is too long for the device or for this queue's buffers; [`KvError::Closed`].
    pub fn submit(&mut self, request: HostRequest<'_>) -> Result<HostTicket> {
        let depth = self.slots.len();
        let Some(&slot) = self.free.last() else { return Err(KvError::QueueFull { depth }) };
        let buffer = std::mem::take(&mut self.slots[slot as usize].buffer);
        let (command, kept) = match command_of(request, buffer, self.buffer_bytes) {
            Ok(made) => made,
            Err((error, buffer)) => {
                self.slots[slot as usize].buffer = buffer;
                return Err(error);
            }
        };
        let refused = match command.check(self.value_bytes_max) {
            Err(error) => Some((error, command)),
            Ok(()) => {
                let mut state = self.rings.lock();
                let closed = state.closed.clone();
                match closed {
                    Some(error) => Some((error, command)),
                    None if state.is_refusing => {
                        Some((KvError::Closed { why: "its driver was told to stop".into() }, command))
                    }
                    None => {
                        state.submitted.push_back((slot, command));
                        None
                    }
                }
            }
        };
        let at = &mut self.slots[slot as usize];
        at.buffer = kept;
        if let Some((error, command)) = refused {
            let of_command = command.into_buffer();
            if of_command.capacity() > 0 {
                at.buffer = of_command;
            }
            return Err(error);
        }
        self.doorbell.ring();
        self.last_ticket += 1;
        let ticket = HostTicket(self.last_ticket);
        at.ticket = Some(ticket);
        self.free.pop();
        Ok(ticket)
    }

    /// Takes what is complete from the ring, and answers what has no driver any more.
    fn take(&mut self) {
        let mut state = self.rings.lock();
        std::mem::swap(&mut state.complete, &mut self.taken);
        // Under the lock: a completion that is pushed after it has its notice after it.
        if let Some(event) = &self.event {
            event.clear();
        }
        let closed = state.closed.clone();
        drop(state);
        for (slot, result, buffer) in self.taken.drain(..) {
            let at = &mut self.slots[slot as usize];
            match buffer.capacity() {
                0 => at.buffer.clear(),
                _ => at.buffer = buffer,
            }
            at.result = Some(result);
            self.complete.push_back(slot);
        }
        if let Some(error) = closed {
            for (slot, at) in (0..).zip(&mut self.slots) {
                if at.ticket.is_some() && at.result.is_none() {
                    at.buffer.clear();
                    at.result = Some(Err(error.clone()));
                    self.complete.push_back(slot);
                }
            }
        }
    }

    /// What was taken and not handed out: the descriptor goes on saying so.
    fn keep_readable(&self) {
        if let Some(event) = &self.event
            && !self.complete.is_empty()
        {
            event.notify();
        }
    }

    /// Hands all that is complete to `done`, with what was read. Never waits. Whether anything is still under way.
    pub fn poll(&mut self, mut done: impl FnMut(HostTicket, Result<KvAnswer>, &[u8])) -> bool {
        self.take();
        while let Some(slot) = self.complete.pop_front() {
            let at = &mut self.slots[slot as usize];
            if let (Some(ticket), Some(result)) = (at.ticket.take(), at.result.take()) {
                self.free.push(slot);
                done(ticket, result, &at.buffer);
            }
        }
        self.under_way() > 0
    }

    /// Waits for one command, so long at most, and hands its result and what was read to `done`. Completions of others stay for [`QueuePair::poll`]. None: the time is up. The command is still under way then: the device
    /// may have carried it out, or may yet, and its completion comes to a later call.
    ///
    /// # Errors
    /// [`KvError::Param`]: nothing under this ticket is under way.
    pub fn wait<R>(
        &mut self,
        ticket: HostTicket,
        timeout: Duration,
        done: impl FnOnce(Result<KvAnswer>, &[u8]) -> R,
    ) -> Result<Option<R>> {
        let (clock, limit_ns) = (Clock::system(), u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let start_ns = clock.monotonic_ns();
        loop {
            self.take();
            let slot = self.slots.iter().position(|slot| slot.ticket == Some(ticket));
            let Some(slot) = slot else {
                self.keep_readable();
                return Err(KvError::Param { what: "nothing is under way under this ticket" });
            };
            let at = &mut self.slots[slot];
            if let Some(result) = at.result.take() {
                at.ticket = None;
                self.complete.retain(|&complete| complete as usize != slot);
                self.free.push(slot as u32);
                self.keep_readable();
                return Ok(Some(done(result, &self.slots[slot].buffer)));
            }
            let left_ns = limit_ns.saturating_sub(clock.monotonic_ns() - start_ns);
            if left_ns == 0 {
                self.keep_readable();
                return Ok(None);
            }
            let state = self.rings.lock();
            if state.complete.is_empty() && state.closed.is_none() {
                drop(self.rings.wait(state, Duration::from_nanos(left_ns).min(SLEEP_MAX)));
            }
        }
    }

    /// Starts a command and waits for it, however long it takes. Somebody else must drive the device.
    ///
    /// # Errors
    /// Those of [`QueuePair::submit`], and the command's own.
    pub fn call(&mut self, request: HostRequest<'_>) -> Result<KvAnswer> {
        let ticket = self.submit(request)?;
        self.wait_for(ticket, |result, _| result)
    }

    /// Waits for one command, however long it takes.
    pub(super) fn wait_for(
        &mut self,
        ticket: HostTicket,
        mut done: impl FnMut(Result<KvAnswer>, &[u8]) -> Result<KvAnswer>,
    ) -> Result<KvAnswer> {
        loop {
            if let Some(result) = self.wait(ticket, SLEEP_MAX, &mut done)? {
                return result;
            }
        }
    }

    /// A descriptor that is readable while [`QueuePair::poll`] would hand out something, and now and then when it would not.
    ///
    /// # Errors
    /// [`KvError::Medium`]: the process has no descriptors left.
    pub fn ready_fd(&mut self) -> Result<BorrowedFd<'_>> {
        if self.event.is_none() {
            let event = Arc::new(EventFd::new()?);
            let mut state = self.rings.lock();
            state.event = Some(event.clone());
            if !state.complete.is_empty() || !self.complete.is_empty() || state.closed.is_some() {
                event.notify();
            }
            drop(state);
            self.event = Some(event);
        }
        match &self.event {
            Some(event) => Ok(event.as_fd()),
            None => Err(KvError::Param { what: "a queue without a descriptor" }),
        }
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) fn event_for_tests(&self) -> Option<Arc<EventFd>> {
        self.event.clone()
    }

    /// A future that is done when [`QueuePair::poll`] would hand out something, or nothing is under way. It needs no runtime: whoever drives the device wakes its task.
    pub fn ready(&mut self) -> QueueReady<'_> {
        QueueReady { queue: self }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let mut state = self.rings.lock();
        state.is_abandoned = true;
        state.submitted.clear();
        state.complete.clear();
        drop(state);
        self.doorbell.ring();
    }
}

/// See [`QueuePair::ready`].
#[derive(Debug)]
pub struct QueueReady<'a> {
    queue: &'a mut QueuePair,
}

impl Future for QueueReady<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let queue = &mut *self.queue;
        queue.take();
        queue.keep_readable();
        if !queue.complete.is_empty() || queue.under_way() == 0 {
            return Poll::Ready(());
        }
        let mut state = queue.rings.lock();
        // Whatever came since is seen here, and whatever comes from now on finds the waker.
        if !state.complete.is_empty() || state.closed.is_some() {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
