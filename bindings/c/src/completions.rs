//! Commands that are under way without anybody who waits, and the thread that calls back.
//!
//! Owns [`Completions`]: one queue pair of a device, and what to do when each of its commands is complete. Promises that each command that was started is called back for exactly once, by the device's own thread for that, also when the device is closed meanwhile or fails; that one that was refused is not; and that at most
//! [`ASYNC_DEPTH`] are under way. Must not know of handles.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread::{JoinHandle, Thread};

use hedgerow_device::spawn;
use hedgerow_kvssd::{HostRequest, HostTicket, KvAnswer, KvError, QueuePair, ResultCode};
use parking_lot::{Condvar, Mutex};

use crate::boundary::{CodeResult, code_of, required_mut, write_bytes};
use crate::layout::{ASYNC_DEPTH, KvsPostprocessContext, KvsPostprocessFunction, KvsValue};

thread_local! {
    /// Whether this thread calls back, of whatever device.
    static CALLS_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is a callback. It may not wait for what other callbacks have to make way for.
pub(crate) fn is_callback() -> bool {
    CALLS_BACK.get()
}

/// What is done when a command is complete.
#[derive(Debug)]
pub(crate) struct Callback {
    /// All but the result.
    pub(crate) context: KvsPostprocessContext,
    pub(crate) function: KvsPostprocessFunction,
    /// Whether what was read goes to the value.
    pub(crate) reads: bool,
}

// SAFETY: what its pointers lead to belongs to the library until the callback, on whichever thread, as the header says of each asynchronous function.
unsafe impl Send for Callback {}

impl Callback {
    /// What was read goes where it belongs, and the result is known.
    fn complete(&mut self, result: Result<KvAnswer, KvError>, read: &[u8]) {
        let outcome = if self.reads {
            // SAFETY: the value and its buffer are the library's until the callback.
            unsafe { deliver(self.context.value, result, read) }
        } else {
            result.map(drop).map_err(code_of)
        };
        self.context.result = outcome.err().unwrap_or(ResultCode::Success) as u32;
    }

    fn call(mut self) {
        if let Some(function) = self.function {
            // SAFETY: the header says what a callback is, and that it must not unwind; the context lives until it returns.
            unsafe { function(&raw mut self.context) };
        }
    }
}

/// What a retrieve read goes to the caller's buffer, with BUFFER_SMALL as much of it as there is room for. With any other error the value stays as it is.
///
/// # Safety
/// `value` leads to a value whose buffer has room for `length` bytes; nobody else reads or changes either.
pub(crate) unsafe fn deliver(
    value: *mut KvsValue,
    result: Result<KvAnswer, KvError>,
    read: &[u8],
) -> CodeResult<()> {
    let (whole, outcome) = match result {
        Ok(KvAnswer::Retrieved { value_bytes }) => (value_bytes, Ok(())),
        Err(KvError::BufferSmall { needed, .. }) => (needed, Err(ResultCode::BufferSmall)),
        Err(error) => return Err(code_of(error)),
        Ok(_) => return Err(ResultCode::SystemIo),
    };
    // SAFETY: by this function's own condition. No more was read than `length` bytes: the request asked for no more.
    unsafe {
        let value = required_mut(value)?;
        write_bytes(value.value.cast(), read)?;
        value.length = read.len() as u32;
        value.actual_value_size = whole as u32;
    }
    outcome
}

#[derive(Debug)]
struct UnderWay {
    queue: QueuePair,
    callbacks: HashMap<HostTicket, Callback>,
    is_closing: bool,
}

#[derive(Debug)]
struct SharedUnderWay {
    state: Mutex<UnderWay>,
    /// There may be room for another.
    room: Condvar,
}

/// Commands of a device that are under way without anybody who waits.
#[derive(Debug)]
pub(crate) struct Completions {
    shared: Arc<SharedUnderWay>,
    thread: Thread,
    join: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Completions {
    /// Starts the thread that calls back for this queue.
    pub(crate) fn start(queue: QueuePair) -> CodeResult<Completions> {
        let state = UnderWay { queue, callbacks: HashMap::new(), is_closing: false };
        let shared = Arc::new(SharedUnderWay { state: Mutex::new(state), room: Condvar::new() });
        let its = shared.clone();
        let join = spawn("hedgerow-kvssd-c", move || its.run()).map_err(|_| ResultCode::SystemIo)?;
        Ok(Completions { shared, thread: join.thread().clone(), join: Mutex::new(Some(join)) })
    }

    /// Starts a command. Where so many are under way as may be it waits for room, in a callback it is refused with SYS_IO.
    pub(crate) fn submit(&self, request: HostRequest<'_>, callback: Callback) -> CodeResult<()> {
        let mut state = self.shared.state.lock();
        while state.queue.under_way() >= ASYNC_DEPTH && !state.is_closing {
            if is_callback() {
                return Err(ResultCode::SystemIo);
            }
            self.shared.room.wait(&mut state);
        }
        if state.is_closing {
            return Err(ResultCode::DeviceNotOpened);
        }
        let is_first = state.queue.under_way() == 0;
        let ticket = state.queue.submit(request).map_err(code_of)?;
        state.callbacks.insert(ticket, callback);
        drop(state);
        // While something is under way the device wakes the thread.
        if is_first {
            self.thread.unpark();
        }
        Ok(())
    }

    /// Refuses more, and returns when each command that is under way was called back for. Somebody must carry them out, or have ended.
    pub(crate) fn close(&self) {
        self.shared.state.lock().is_closing = true;
        self.shared.room.notify_all();
        self.thread.unpark();
        if let Some(join) = self.join.lock().take() {
            join.join().ok();
        }
    }
}

impl SharedUnderWay {
    fn run(&self) {
        CALLS_BACK.set(true);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut done = Vec::with_capacity(ASYNC_DEPTH);
        loop {
            let is_over = self.take(&waker, &mut done);
            if !done.is_empty() {
                self.room.notify_all();
                done.drain(..).for_each(Callback::call);
            } else if is_over {
                return;
            } else {
                std::thread::park();
            }
        }
    }

    /// Takes what is complete. If nothing is, the waker is told when something may be. Whether there is nothing to come any more.
    fn take(&self, waker: &Waker, done: &mut Vec<Callback>) -> bool {
        let UnderWay { queue, callbacks, is_closing } = &mut *self.state.lock();
        loop {
            let is_left = queue.poll(|ticket, result, read| {
                if let Some(mut callback) = callbacks.remove(&ticket) {
                    callback.complete(result, read);
                    done.push(callback);
                }
            });
            if !done.is_empty() || !is_left {
                return !is_left && *is_closing;
            }
            if pin!(queue.ready()).poll(&mut Context::from_waker(waker)).is_pending() {
                return false;
            }
        }
    }
}
