//! Writing a file behind its writer's back: while the device takes one step, the next is filled.
//!
//! Owns the thread that writes a file, and the steps under way. Promises that steps reach the file one after the other, in the order in which they were handed over; that
//! nothing is written behind one which failed; and that nothing is under way once it is gone. Must not know what a step holds, nor the file system.
//!
//! A thread a file, begun with the first whole step and ended with the file: a run of files of 64 MiB begins one in tens of milliseconds, which costs nothing beside them.
//! io_uring would not do without one: a direct write that makes a file longer is done by a thread of the kernel's, under the file's lock.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread::JoinHandle;

use super::Step;
use super::directory::FileWriter;
use crate::error::{DeviceError, Result};
use crate::machine::spawn;

/// Steps under way, at most: one that the device takes, and one that waits.
const UNDER_WAY_MAX: usize = 2;

/// What writes a step.
pub(super) trait WriteStep: Send + 'static {
    /// Writes `bytes` at `offset`, which is where the step before ended.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
}

impl WriteStep for FileWriter {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        FileWriter::write(self, offset, bytes)
    }
}

/// A file that is written step by step.
#[derive(Debug)]
pub(super) struct WriteBehind<W: WriteStep> {
    path: PathBuf,
    by: Writing<W>,
}

/// Who writes it.
#[derive(Debug)]
enum Writing<W: WriteStep> {
    /// Nobody yet; or the caller himself, where no thread is to be had.
    Here(W),
    Thread(WriterThread<W>),
    /// The thread went without handing it back.
    Lost,
}

/// The thread, and what it was given.
#[derive(Debug)]
struct WriterThread<W> {
    /// `None` once there are no more.
    steps: Option<Sender<(u64, Step)>>,
    written: Receiver<(Step, Result<()>)>,
    under_way: usize,
    /// What writes, when the thread has ended.
    writer: Receiver<W>,
    thread: Option<JoinHandle<()>>,
}

impl<W: WriteStep> WriteBehind<W> {
    /// Of the file at `path`, which is named in errors.
    pub(super) fn new(writer: W, path: PathBuf) -> WriteBehind<W> {
        WriteBehind { path, by: Writing::Here(writer) }
    }

    /// What writes, before the first step.
    #[cfg(test)]
    pub(super) fn writer(&mut self) -> &mut W {
        let Writing::Here(writer) = &mut self.by else { panic!("it has steps") };
        writer
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Has `step` written at `offset`, behind all before it, and leaves an empty one in its place. Waits while two are under way.
    ///
    /// # Errors
    /// What this or an earlier step was refused: then none is written any more, and `step` is as it was.
    pub(super) fn write(&mut self, offset: u64, step: &mut Step) -> Result<()> {
        if let Writing::Here(_) = self.by {
            self.start();
        }
        match &mut self.by {
            Writing::Here(writer) => {
                writer.write(offset, step.bytes())?;
                step.clear();
                Ok(())
            }
            Writing::Thread(thread) => thread.write(offset, step, &self.path),
            Writing::Lost => Err(ended(&self.path)),
        }
    }

    /// Starts the thread, if there can be one.
    fn start(&mut self) {
        let Writing::Here(writer) = std::mem::replace(&mut self.by, Writing::Lost) else { return };
        self.by = match WriterThread::start(writer) {
            Ok(thread) => Writing::Thread(thread),
            Err(writer) => Writing::Here(writer),
        };
    }

    /// Waits for all steps, and hands back what writes: all that it was given is written.
    ///
    /// # Errors
    /// As [`WriteBehind::write`].
    pub(super) fn finish(self) -> Result<W> {
        match self.by {
            Writing::Here(writer) => Ok(writer),
            Writing::Thread(thread) => thread.finish(&self.path),
            Writing::Lost => Err(ended(&self.path)),
        }
    }
}

impl<W: WriteStep> WriterThread<W> {
    /// `writer` is handed back if there can be no thread.
    fn start(writer: W) -> std::result::Result<WriterThread<W>, W> {
        let (steps, to_write) = channel::<(u64, Step)>();
        let (answers, written) = channel();
        let (hand_back, handed_back) = channel();
        let (hand_over, handed_over) = channel::<W>();
        let thread = spawn("capacity", move || {
            let Ok(mut writer) = handed_over.recv() else { return };
            for (offset, step) in to_write {
                let answer = writer.write(offset, step.bytes());
                let has_failed = answer.is_err();
                // Nobody listens any more when the file was given up.
                let _ = answers.send((step, answer));
                if has_failed {
                    break;
                }
            }
            let _ = hand_back.send(writer);
        });
        let Ok(thread) = thread else { return Err(writer) };
        // Only now: a thread that cannot be had would keep what it was to have.
        let _ = hand_over.send(writer);
        let steps = Some(steps);
        Ok(WriterThread { steps, written, under_way: 0, writer: handed_back, thread: Some(thread) })
    }

    fn write(&mut self, offset: u64, step: &mut Step, path: &Path) -> Result<()> {
        let mut spare = None;
        while self.under_way == UNDER_WAY_MAX {
            spare = Some(self.wait_for_one(path)?);
        }
        let full = std::mem::replace(step, spare.unwrap_or_else(Step::new));
        let steps = self.steps.as_ref().expect("there is no step behind the last");
        if let Err(SendError((_, full))) = steps.send((offset, full)) {
            // The thread has ended, with an answer that says why.
            *step = full;
            self.wait_for_all(path)?;
            return Err(ended(path));
        }
        self.under_way += 1;
        Ok(())
    }

    fn wait_for_one(&mut self, path: &Path) -> Result<Step> {
        let (mut step, answer) = self.written.recv().map_err(|_| ended(path))?;
        self.under_way -= 1;
        step.clear();
        answer.map(|()| step)
    }

    fn wait_for_all(&mut self, path: &Path) -> Result<()> {
        while self.under_way > 0 {
            self.wait_for_one(path)?;
        }
        Ok(())
    }

    fn finish(mut self, path: &Path) -> Result<W> {
        self.steps = None;
        self.wait_for_all(path)?;
        self.writer.recv().map_err(|_| ended(path))
    }
}

/// The thread went without an answer: it panicked.
fn ended(path: &Path) -> DeviceError {
    DeviceError::io("write", path, io::Error::other("the thread that writes it has ended"))
}

impl<W> Drop for WriterThread<W> {
    /// Waits for what is under way: whoever takes the directory, or removes the file, finds nobody writing to it.
    fn drop(&mut self) {
        self.steps = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    type Steps = Arc<Mutex<Vec<(u64, u8)>>>;

    /// Notes what it writes, and refuses one step.
    #[derive(Debug)]
    struct Noting {
        steps: Steps,
        refuses: Option<u64>,
        _alive: Arc<()>,
    }

    impl WriteStep for Noting {
        fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            if self.refuses == Some(offset) {
                return Err(ended(Path::new("it")));
            }
            std::thread::yield_now();
            self.steps.lock().unwrap().push((offset, bytes[0]));
            Ok(())
        }
    }

    /// Has `n` written as the step at `n`.
    fn write(behind: &mut WriteBehind<Noting>, n: u64) -> Result<()> {
        let mut step = Step::new();
        step.fill(&[n as u8]);
        let written = behind.write(n, &mut step);
        assert_eq!(step.bytes().is_empty(), written.is_ok(), "what is to be filled next is empty");
        written
    }

    fn noting(refuses: Option<u64>) -> (WriteBehind<Noting>, Steps, Arc<()>) {
        let (steps, alive) = (Steps::default(), Arc::new(()));
        let writer = Noting { steps: Arc::clone(&steps), refuses, _alive: Arc::clone(&alive) };
        (WriteBehind::new(writer, "it".into()), steps, alive)
    }

    #[test]
    fn steps_are_written_in_their_order_and_all_before_the_end() {
        let (mut behind, steps, _) = noting(None);
        (0..50).for_each(|n| write(&mut behind, n).unwrap());
        behind.finish().unwrap();
        let expected: Vec<(u64, u8)> = (0..50).map(|n| (n, n as u8)).collect();
        assert_eq!(*steps.lock().unwrap(), expected);
    }

    #[test]
    fn nothing_is_written_behind_a_step_that_failed_and_it_is_told() {
        for refused in 0..6 {
            let (mut behind, steps, _) = noting(Some(refused));
            let told = (0..6).any(|n| write(&mut behind, n).is_err());
            let told = behind.finish().is_err() || told;
            assert!(told, "step {refused}");
            assert_eq!(
                steps.lock().unwrap().len() as u64,
                refused,
                "the steps before it are there, and no other"
            );
        }
    }

    #[test]
    fn nothing_is_under_way_once_it_is_gone() {
        let (mut behind, steps, alive) = noting(None);
        (0..2).for_each(|n| write(&mut behind, n).unwrap());
        drop(behind);
        assert_eq!(Arc::strong_count(&alive), 1, "the file is closed");
        assert_eq!(steps.lock().unwrap().len(), 2);
    }
}
