//! One connection: frames out of a stream that does not wait, and into it.
//!
//! Owns the buffers of a connection. Promises that nothing waits; that memory for what comes grows with what came, to one frame and [`READ_BYTES`] at most; and that who looks at
//! [`TcpConnection::unsent`] before adding more bounds what is to go out. Must not know what frames say.

use std::io::{ErrorKind, Read, Write};

use mio::net::TcpStream;

use super::frame::{Frame, Parsed};
use crate::error::Result;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Memory of an empty buffer that is kept.
const KEPT_BYTES: usize = 1 << 20;

/// A stream and its buffers.
#[derive(Debug)]
pub(super) struct TcpConnection {
    stream: TcpStream,
    input: Vec<u8>,
    /// What of `input` came, and what of that was parsed.
    filled: usize,
    parsed: usize,
    /// Bytes of the frame that is coming.
    needed: usize,
    output: Vec<u8>,
    sent: usize,
    can_read: bool,
    can_write: bool,
    may_have_frame: bool,
    /// Bytes came since this was last asked.
    has_heard: bool,
    is_over: bool,
}

impl TcpConnection {
    /// Over a stream that is registered for readiness.
    pub(super) fn new(stream: TcpStream) -> TcpConnection {
        // Small frames go out at once. Where that cannot be had they are late.
        let _ = stream.set_nodelay(true);
        TcpConnection {
            stream,
            input: Vec::new(),
            filled: 0,
            parsed: 0,
            needed: 0,
            output: Vec::new(),
            sent: 0,
            can_read: false,
            can_write: false,
            may_have_frame: false,
            has_heard: false,
            is_over: false,
        }
    }

    /// The stream is ready, or over.
    pub(super) fn is_ready(&mut self, readable: bool, writable: bool) {
        self.can_read |= readable;
        self.can_write |= writable;
    }

    /// Whether the stream came about; none while that is open.
    pub(super) fn is_connected(&mut self) -> Option<std::io::Result<()>> {
        if !self.can_write {
            return None;
        }
        match self.stream.take_error() {
            Ok(None) => match self.stream.peer_addr() {
                Ok(_) => Some(Ok(())),
                Err(error) if error.kind() == ErrorKind::NotConnected => None,
                Err(error) => Some(Err(error)),
            },
            Ok(Some(error)) | Err(error) => Some(Err(error)),
        }
    }

    /// Whether the stream has ended, or failed. What came before and was not looked at is lost.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether anything came since this was last asked.
    pub(super) fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.has_heard)
    }

    /// Bytes that are still to go out.
    pub(super) fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Whether there is something to do here without anything new having happened.
    pub(super) fn has_work(&self) -> bool {
        self.may_have_frame || self.can_read || self.is_over
    }

    /// Where frames are appended, to go out with the next [`flush`](TcpConnection::flush).
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Sends what can be sent.
    pub(super) fn flush(&mut self) {
        while self.can_write && !self.is_over && self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => self.is_over = true,
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_write = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_over = true,
            }
        }
        if self.sent == self.output.len() {
            self.sent = 0;
            self.output.clear();
            if self.output.capacity() > KEPT_BYTES {
                self.output = Vec::new();
            }
        } else if self.sent > KEPT_BYTES {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Reads once, as much as there is room for; nothing while frames that came are still to be dealt with, so that no more of them wait than were read at once.
    pub(super) fn fill(&mut self) {
        if !self.can_read || self.is_over || self.may_have_frame {
            return;
        }
        self.make_room();
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => self.is_over = true,
            Ok(bytes) => {
                self.filled += bytes;
                self.may_have_frame = true;
                self.has_heard = true;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.can_read = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.is_over = true,
        }
    }

    /// Has room at the end of `input`: to the end of the frame that is coming, but never more than as much again as came.
    fn make_room(&mut self) {
        if self.parsed > 0 {
            self.input.copy_within(self.parsed..self.filled, 0);
            self.filled -= self.parsed;
            self.parsed = 0;
        }
        let room = self.needed.saturating_sub(self.filled).min(self.filled).max(READ_BYTES);
        let is_too_large = self.filled == 0 && self.input.len() > KEPT_BYTES;
        if is_too_large {
            self.input = Vec::new();
        }
        if self.input.len() < self.filled + room {
            self.input.resize(self.filled + room, 0);
        }
    }

    /// The next frame that has come.
    ///
    /// # Errors
    /// What came is none. Nothing after it can be understood.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>> {
        if !self.may_have_frame {
            return Ok(None);
        }
        match Parsed::of(&self.input[self.parsed..self.filled])? {
            Parsed::Whole(frame, bytes) => {
                self.parsed += bytes;
                Ok(Some(frame))
            }
            Parsed::Part(needed) => {
                self.needed = needed;
                self.may_have_frame = false;
                Ok(None)
            }
        }
    }

    /// Ends both ways. What came before, and was not read, is lost.
    #[cfg(test)]
    pub(super) fn cut(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        (self.may_have_frame, self.is_over) = (false, true);
    }

    /// Says no more, and throws away what still comes: a peer that is refused gets to read why.
    pub(super) fn end(&mut self) {
        self.flush();
        if self.unsent() == 0 {
            let _ = self.stream.shutdown(std::net::Shutdown::Write);
        }
        (self.filled, self.parsed, self.may_have_frame) = (0, 0, false);
        self.fill();
        (self.filled, self.may_have_frame) = (0, false);
    }
}
