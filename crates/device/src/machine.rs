//! The machine and its threads.
//!
//! Owns the boot's identity and the one door through which threads are started. Promises that work which several threads share is done
//! however few of them the operating system gives.

use std::cell::Cell;
use std::io;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Tells this boot of the machine from every other; 0 where it is unknown.
///
/// A store that finds the boot id it wrote was left by a killed process: the page cache still has every store. Another id
/// means a power cut or a reboot: only what was persisted is sure.
pub fn boot_id() -> u128 {
    static BOOT: OnceLock<u128> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        parse_boot_id(&text)
    })
}

fn parse_boot_id(text: &str) -> u128 {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Starts a thread called `name` (the kernel keeps the first 15 bytes).
///
/// # Errors
/// The operating system may refuse another thread.
pub fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(f)
}

thread_local!(static THREADS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) });

/// The operating system gives the calling thread no more than so many threads from now on, for work that it shares: for tests. Returns how many
/// were left of the number before.
#[doc(hidden)]
pub fn limit_threads(most: usize) -> usize {
    THREADS_LEFT.replace(most)
}

/// `std::thread::Scope::spawn` panics where this fails.
fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    f: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let left = THREADS_LEFT.get().checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
    THREADS_LEFT.set(left);
    Builder::new().name(name.to_owned()).spawn_scoped(scope, f)
}

/// Has `work` done by this thread and, beside it, by `threads - 1` others called `name`, or as many as the operating system gives: each
/// takes of what there is to do, and all have ended when this returns.
///
/// # Panics
/// If `work` does.
pub fn share_work(name: &str, threads: usize, work: impl Fn() + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if spawn_scoped(scope, name, work).is_err() {
                break;
            }
        }
        work();
    });
}

/// What `make` makes of each number below `count`, in their order: of the last on this thread, of each other on one of its own called
/// `name`, or on this one where the operating system gives none.
///
/// # Panics
/// If `make` does.
pub fn make_parts<T: Send>(name: &str, count: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let Some(last) = count.checked_sub(1) else { return Vec::new() };
    let make = &make;
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..last).map(|i| spawn_scoped(scope, name, move || make(i))).collect();
        let right = make(last);
        let made = others.into_iter().enumerate().map(|(i, other)| match other {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => make(i),
        });
        made.chain([right]).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::ThreadId;

    use super::*;

    /// Which threads did what.
    fn shared_by(threads: usize) -> Vec<ThreadId> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        share_work("share", threads, || {
            while next.fetch_add(1, Ordering::Relaxed) < 100 {
                done.lock().unwrap().push(std::thread::current().id());
            }
        });
        done.into_inner().unwrap()
    }

    #[test]
    fn work_is_done_by_as_many_threads_as_there_are() {
        let mine = std::thread::current().id();
        for left in [usize::MAX, 2, 1, 0] {
            limit_threads(left);
            let done = shared_by(4);
            assert!(done.len() == 100 && (left > 0 || done.iter().all(|&id| id == mine)));
            assert_eq!(limit_threads(left), left.saturating_sub(3), "{left}");
            let made = make_parts("make", 4, |i| (i, std::thread::current().id() == mine));
            assert!(made.iter().map(|(i, _)| *i).eq(0..4));
            assert_eq!(made.iter().filter(|(_, is_mine)| !is_mine).count(), left.min(3));
        }
        limit_threads(usize::MAX);
        assert!(make_parts("make", 0, |i| i).is_empty());
        assert_eq!(shared_by(0).len(), 100);
    }

    #[test]
    fn boot_id_is_read_as_one_number() {
        let id = parse_boot_id("0f0e0d0c-0b0a-0908-0706-050403020100\n");
        assert_eq!(id, 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
        assert_eq!(parse_boot_id("nonsense"), 0);
        assert_ne!(boot_id(), 0, "Linux has a boot id");
        assert_eq!(boot_id(), boot_id());
    }

    #[test]
    fn threads_carry_their_name() {
        let (send, receive) = std::sync::mpsc::channel();
        let thread = spawn("seal", move || {
            send.send(std::thread::current().name().map(str::to_owned)).unwrap();
        });
        thread.unwrap().join().unwrap();
        assert_eq!(receive.recv().unwrap().as_deref(), Some("seal"));
    }
}
