//! What the processes of a pool print, from a thread of its own.
//!
//! Owns the lines that wait to be printed. Promises that who says something never waits for who reads it: a manager that stood still would end its pool's memory. What does not fit is dropped. Must not know what is
//! said.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use hedgerow_device::{Clock, spawn};

/// Lines that wait at most.
const LINES_MAX: usize = 256;
/// How long the last of them may take.
const FINISH: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// This process' own, which prints to standard output.
static TELLER: OnceLock<Teller> = OnceLock::new();

/// What its thread is to do next.
enum TellerTask {
    Line(String),
    /// Drops what it has, which tells whoever waits.
    Flushed(Sender<()>),
}

struct Teller {
    lines: SyncSender<TellerTask>,
}

impl Teller {
    /// Prints to `out`. Where there is no thread for it nothing is printed: no node works then, either.
    fn new(mut out: impl Write + Send + 'static) -> Teller {
        let (lines, told): (_, Receiver<TellerTask>) = sync_channel(LINES_MAX);
        let run = move || {
            for told in told {
                match told {
                    // It fails where nobody reads any more: a pool goes on without.
                    TellerTask::Line(line) => drop(writeln!(out, "{line}").and_then(|()| out.flush())),
                    TellerTask::Flushed(waiting) => drop(waiting),
                }
            }
        };
        drop(spawn("pool-teller", run));
        Teller { lines }
    }

    fn say(&self, line: &str) {
        // It fails where too many wait.
        let _ = self.lines.try_send(TellerTask::Line(line.to_owned()));
    }

    /// Waits until all that was said is printed, for `at_most`.
    fn finish(&self, at_most: Duration) {
        let clock = Clock::system();
        let until = clock.monotonic_ns().saturating_add(at_most.as_nanos() as u64);
        let left = || Duration::from_nanos(until.saturating_sub(clock.monotonic_ns()));
        let (waiting, flushed) = channel();
        let mut last = TellerTask::Flushed(waiting);
        while let Err(TrySendError::Full(back)) = self.lines.try_send(last) {
            if left().is_zero() {
                return;
            }
            last = back;
            std::thread::sleep(PAUSE);
        }
        // Nothing is ever sent: it ends when the other end is dropped.
        let _ = flushed.recv_timeout(left());
    }
}

/// Prints a line soon, if anybody still reads what this process prints.
pub(super) fn say(line: &str) {
    TELLER.get_or_init(|| Teller::new(std::io::stdout())).say(line);
}

/// Waits until what was said is printed, but not for long.
pub(super) fn finish() {
    if let Some(teller) = TELLER.get() {
        teller.finish(FINISH);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Prints a line only where it is let: each takes a permit, until there will be none any more.
    struct PermittedWriter {
        permits: Receiver<()>,
        printed: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for PermittedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.printed.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            let _ = self.permits.recv();
            Ok(())
        }
    }

    #[test]
    fn who_speaks_waits_for_nobody_who_reads() {
        let (permit, permits) = channel::<()>();
        let printed: Arc<Mutex<Vec<u8>>> = Arc::default();
        let teller = Teller::new(PermittedWriter { permits, printed: Arc::clone(&printed) });
        teller.say("0");
        while printed.lock().unwrap().is_empty() {
            std::thread::sleep(PAUSE);
        }
        // None of this returns if it waits for the reader, who is at the first.
        (1..10 * LINES_MAX).for_each(|number| teller.say(&number.to_string()));
        teller.finish(Duration::from_millis(50));
        assert!(printed.lock().unwrap().len() < 10, "the reader reads");
        // He reads on: what was kept comes whole and in order, and the rest never.
        drop(permit);
        teller.finish(Duration::from_secs(60));
        let text = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
        let numbers: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(numbers.iter().copied().eq(0..=LINES_MAX), "{numbers:?}");
        teller.say("the end");
        teller.finish(Duration::from_secs(60));
        assert!(printed.lock().unwrap().ends_with(b"the end\n"));
    }
}
