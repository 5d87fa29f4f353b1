//! A thread beside the event loop: a queue to it, answers from it, and the wake-up of the loop when there is one.
//!
//! Owns: starting, waking, stopping and joining. Promises: what was asked for before it is stopped is done before it has stopped, unless it is
//! not waited for; the loop is woken after each answer that is to wake it. Must not know what is asked or answered.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;

/// What the loop and the thread share: requests and answers, of which a `Q` is the queue.
#[derive(Debug, Default)]
struct State<Q> {
    queue: Q,
    stopping: bool,
    has_ended: bool,
}

/// The state, and how the thread hears of requests.
#[derive(Debug, Default)]
struct Channel<Q> {
    state: Mutex<State<Q>>,
    requested: Condvar,
    /// The thread has ended.
    ended: Condvar,
}

/// Tells that the thread has ended, however it does.
struct TellsEnd<Q>(Arc<Channel<Q>>);

impl<Q> Drop for TellsEnd<Q> {
    fn drop(&mut self) {
        self.0.with(|state| state.has_ended = true);
        self.0.ended.notify_all();
    }
}

impl<Q> Channel<Q> {
    fn with<R>(&self, access: impl FnOnce(&mut State<Q>) -> R) -> R {
        access(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for a job. None once there is none and the worker is to stop.
    fn next_job<J>(&self, take: &mut impl FnMut(&mut Q) -> Option<J>) -> Option<J> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match take(&mut state.queue) {
                Some(job) => return Some(job),
                None if state.stopping => return None,
                None => state = self.requested.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// The way of answers to the loop.
pub struct Answers<'w, Q> {
    channel: &'w Channel<Q>,
    waker: &'w Waker,
}

impl<Q> Answers<'_, Q> {
    /// Looks at the queue.
    pub fn with<R>(&self, access: impl FnOnce(&mut Q) -> R) -> R {
        self.channel.with(|state| access(&mut state.queue))
    }

    /// Whether the loop waits for the worker to end, and does nothing else meanwhile.
    pub fn is_stopping(&self) -> bool {
        self.channel.with(|state| state.stopping)
    }

    /// Waits for a request, or so long.
    pub fn wait(&self, most: Duration) {
        let state = self.channel.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.channel.requested.wait_timeout(state, most));
    }

    /// Puts an answer into the queue; `put` says whether that is to wake the loop. Fails if it can not be woken any more.
    pub fn put(&self, put: impl FnOnce(&mut Q) -> bool) -> io::Result<()> {
        match self.channel.with(|state| put(&mut state.queue)) {
            true => self.waker.wake(),
            false => Ok(()),
        }
    }
}

/// The loop's side of the thread.
#[derive(Debug)]
pub struct Worker<Q> {
    channel: Arc<Channel<Q>>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Default + Send + 'static> Worker<Q> {
    /// Starts a thread that takes jobs out of the queue with `take` and does them with `work`, until that fails.
    pub fn start<J>(
        name: &str,
        waker: Arc<Waker>,
        mut take: impl FnMut(&mut Q) -> Option<J> + Send + 'static,
        mut work: impl FnMut(J, &Answers<'_, Q>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Worker<Q>> {
        let channel: Arc<Channel<Q>> = Arc::default();
        let own = channel.clone();
        let run = move || {
            let _ended = TellsEnd(own.clone());
            let answers = Answers { channel: &own, waker: &waker };
            while let Some(job) = own.next_job(&mut take) {
                if work(job, &answers).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Worker { channel, thread: Some(thread) })
    }
}

impl<Q> Worker<Q> {
    /// Changes the queue, and has the thread look at it.
    pub fn request<R>(&self, ask: impl FnOnce(&mut Q) -> R) -> R {
        let asked = self.channel.with(|state| ask(&mut state.queue));
        self.channel.requested.notify_one();
        asked
    }

    /// Looks at the queue, or takes answers out of it.
    pub fn with<R>(&self, access: impl FnOnce(&mut Q) -> R) -> R {
        self.channel.with(|state| access(&mut state.queue))
    }

    /// [`Worker::stop`] that waits no longer than this for what is under way. After that the thread is left to itself: it ends with what it is about, if
    /// that ever ends. Says whether it has ended.
    pub fn stop_within(&mut self, patience: Duration) -> bool {
        self.ask_to_stop();
        let state = self.channel.state.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = |state: &mut State<Q>| !state.has_ended;
        let waited = self.channel.ended.wait_timeout_while(state, patience, goes_on);
        let has_ended = waited.unwrap_or_else(PoisonError::into_inner).0.has_ended;
        if !has_ended {
            drop(self.thread.take());
        }
        self.stop();
        has_ended
    }

    fn ask_to_stop(&self) {
        self.channel.with(|state| state.stopping = true);
        self.channel.requested.notify_one();
    }

    /// Stops the thread once it has done what was asked of it.
    pub fn stop(&mut self) {
        self.ask_to_stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already; there is nothing to add here.
            drop(thread.join());
        }
    }
}

impl<Q> Drop for Worker<Q> {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use mio::{Events, Poll, Token};

    use super::*;

    #[derive(Default)]
    struct Sums {
        asked: Vec<u64>,
        sum: u64,
    }

    fn adder(poll: &Poll) -> Worker<Sums> {
        let waker = Arc::new(Waker::new(poll.registry(), Token(7)).unwrap());
        let take = |sums: &mut Sums| (!sums.asked.is_empty()).then(|| std::mem::take(&mut sums.asked));
        Worker::start("add", waker, take, |numbers, answers| {
            answers.put(|sums| {
                sums.sum += numbers.iter().sum::<u64>();
                sums.sum > 10
            })
        })
        .unwrap()
    }

    #[test]
    fn what_was_asked_is_done_before_it_stops() {
        for _ in 0..200 {
            let poll = Poll::new().unwrap();
            let mut worker = adder(&poll);
            (1..=4).for_each(|number| worker.request(|sums| sums.asked.push(number)));
            worker.stop();
            assert_eq!(worker.with(|sums| sums.sum), 10);
        }
    }

    #[test]
    fn one_that_does_not_end_is_not_waited_for() {
        let poll = Poll::new().unwrap();
        let waker = Arc::new(Waker::new(poll.registry(), Token(7)).unwrap());
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let take = |sums: &mut Sums| sums.asked.pop();
        let mut worker: Worker<Sums> = Worker::start("stuck", waker, take, move |_, answers| {
            held.recv().ok();
            answers.put(|sums| {
                sums.sum += 1;
                false
            })
        })
        .unwrap();
        worker.request(|sums| sums.asked.push(1));
        assert!(!worker.stop_within(Duration::from_millis(1)));
        worker.stop();
        assert_eq!(worker.with(|sums| sums.sum), 0);
        let_go.send(()).unwrap();
        assert!(worker.stop_within(Duration::from_secs(60)), "it ends by itself");
        assert_eq!(worker.with(|sums| sums.sum), 1);
    }

    #[test]
    fn an_answer_wakes_the_loop_if_it_is_to() {
        let mut poll = Poll::new().unwrap();
        let mut events = Events::with_capacity(8);
        let mut worker = adder(&poll);
        worker.request(|sums| sums.asked.push(11));
        poll.poll(&mut events, Some(std::time::Duration::from_secs(60))).unwrap();
        assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(7)]);
        assert_eq!(worker.with(|sums| std::mem::take(&mut sums.sum)), 11);
        worker.request(|sums| sums.asked.push(1));
        worker.stop();
        poll.poll(&mut events, Some(std::time::Duration::ZERO)).unwrap();
        assert!(events.is_empty(), "nobody was to be woken");
    }
}
