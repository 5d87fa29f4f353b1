//! A control connection: frames out of a stream, and into it.
//!
//! Owns the buffers of one connection. Promises that memory for what comes is bounded by the largest frame and one read, and for what is to go out by [`UNSENT_MAX`]: whoever reads less ends.
//! Must not know what frames say. Whether it waits, and how long, is the stream's own setting.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::control::{ControlFrame, take_frame};
use crate::error::Result;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// Bytes that wait to go out at most.
const UNSENT_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct ControlStream {
    stream: TcpStream,
    came: Vec<u8>,
    unsent: Vec<u8>,
    is_over: bool,
}

impl ControlStream {
    /// Over a stream that waits for a while at most, or not at all.
    pub(super) fn new(stream: TcpStream) -> ControlStream {
        // Small frames go out at once. Where that cannot be had they are late.
        let _ = stream.set_nodelay(true);
        ControlStream { stream, came: Vec::new(), unsent: Vec::new(), is_over: false }
    }

    /// Whether it has ended, or failed, or what came is no frame.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Ends it.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Says something, as far as that goes now.
    pub(super) fn say(&mut self, frame: &ControlFrame) {
        if self.is_over {
            return;
        }
        frame.append_to(&mut self.unsent);
        self.flush();
        self.is_over |= self.unsent.len() > UNSENT_MAX;
    }

    /// Sends what is still to go out, as far as that goes now.
    pub(super) fn flush(&mut self) {
        while !self.is_over && !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => self.is_over = true,
                Ok(count) => {
                    self.unsent.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_not_yet(error.kind()) => return,
                Err(_) => self.is_over = true,
            }
        }
    }

    /// Reads once.
    pub(super) fn fill(&mut self) {
        if self.is_over {
            return;
        }
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.is_over = true,
            Ok(count) => self.came.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted || is_not_yet(error.kind()) => {}
            Err(_) => self.is_over = true,
        }
    }

    /// The next frame that has come. What came before the end is still there.
    ///
    /// # Errors
    /// What came is none. Nothing after it can be understood, and the connection is over.
    pub(super) fn next(&mut self) -> Result<Option<ControlFrame>> {
        let frame = take_frame(&mut self.came);
        if frame.is_err() {
            self.is_over = true;
            self.came.clear();
        }
        frame
    }
}

/// Whether nothing went on only because there is nothing, or no room, yet.
fn is_not_yet(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
