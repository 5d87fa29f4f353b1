//! A file descriptor that is readable when something happened (Linux `eventfd`).
//!
//! Owns [`EventFd`]. Promises that it stays readable from [`EventFd::notify`] to [`EventFd::clear`], and that neither waits. Must not know what happened.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use crate::error::{DeviceError, Result};

/// Readable, in the eyes of `poll`, `epoll` and `io_uring`, from a notice until it is cleared.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A new one, of which there is no notice.
    ///
    /// # Errors
    /// The operating system has no more file descriptors for this process.
    pub fn new() -> Result<EventFd> {
        // SAFETY: the call takes two numbers, and no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            let source = std::io::Error::last_os_error();
            return Err(DeviceError::Io { what: "make an eventfd", path: PathBuf::from("eventfd"), source });
        }
        // SAFETY: the descriptor is new and is owned by nobody else.
        Ok(EventFd { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Makes it readable. It only fails where it is so already: the count is at its end.
    pub fn notify(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes, and a descriptor that is open as long as `self`.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it not readable, until the next notice. It only fails where it is so already.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes, and a descriptor that is open as long as `self`.
        unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Whether it is readable now.
    pub fn is_readable(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that may be written to; a timeout of 0 does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_readable_from_a_notice_until_it_is_cleared() {
        let event = EventFd::new().unwrap();
        assert!(!event.is_readable());
        event.clear();
        for _ in 0..3 {
            event.notify();
            event.notify();
            assert!(event.is_readable() && event.is_readable());
            event.clear();
            assert!(!event.is_readable());
        }
    }
}
