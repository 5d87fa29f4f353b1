//! One client's socket and its two buffers.
//!
//! Owns: reading into the input buffer, writing out of the output buffer. Promises: an idle connection holds no buffer; a buffer grows
//! only as bytes arrive, never because of a declared length. Must not know commands.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::time::Duration;

use mio::net::TcpStream;

use super::limits;
use super::reply::Reply;
use super::resp::Parser;
use super::session::Buffers;

/// Buffers between uses.
#[derive(Debug, Default)]
pub struct Pool {
    /// Empty ones, to be appended to.
    free: Vec<Vec<u8>>,
    /// Those that sockets are read into keep their length: what is there will be written over, and need not be zeroed anew.
    filled: Vec<Vec<u8>>,
}

impl Pool {
    /// An empty buffer.
    fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    fn put(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        keep(&mut self.free, buffer);
    }

    /// A buffer with bytes to be written over.
    fn take_filled(&mut self) -> Vec<u8> {
        self.filled.pop().unwrap_or_else(|| vec![0; limits::BUFFER_BYTES])
    }

    fn put_filled(&mut self, buffer: Vec<u8>) {
        keep(&mut self.filled, buffer);
    }
}

/// Puts a buffer by, unless there are enough or it is one of the large ones.
fn keep(buffers: &mut Vec<Vec<u8>>, buffer: Vec<u8>) {
    let is_worth_it = buffer.capacity() > 0 && buffer.capacity() <= limits::BUFFER_BYTES * 4;
    if is_worth_it && buffers.len() < limits::POOLED_BUFFERS_MAX {
        buffers.push(buffer);
    }
}

/// Bytes read and not yet understood. The vector's length is memory that was written once; `start..end` is what counts.
#[derive(Debug, Default)]
pub struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or(&[])
    }

    /// Drops bytes from the front.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Makes room for more: moves what is there to the front, and doubles the buffer if that is not enough.
    fn make_room(&mut self, pool: &mut Pool) {
        if self.buffer.is_empty() {
            self.buffer = pool.take_filled();
        }
        if self.end < self.buffer.len() {
            return;
        }
        if self.start >= self.buffer.len() / 2 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        } else {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
    }

    fn release(&mut self, pool: &mut Pool) {
        if self.start == self.end && !self.buffer.is_empty() {
            pool.put_filled(std::mem::take(&mut self.buffer));
            (self.start, self.end) = (0, 0);
        }
    }
}

/// What became of a read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing more can be done until the socket is ready again.
    Blocked,
    /// There may be more at once.
    More,
    /// The other side closed.
    Closed,
}

/// A client's connection.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: TcpStream,
    /// What it said.
    pub input: Input,
    /// What to answer.
    pub output: Vec<u8>,
    /// Bytes of `output` already sent.
    sent: usize,
    /// Where in a command the input is.
    pub parser: Parser,
    /// The sync its replies wait for.
    pub held_until: Option<u64>,
    /// Whether it is in the list of connections to serve in this turn or the next.
    pub is_listed: bool,
    /// Whether the socket may have bytes to read.
    pub is_readable: bool,
    /// Whether the last write did not go through.
    pub is_write_blocked: bool,
    /// Whether the other side will send no more: what it has sent is still to be read.
    pub is_read_closed: bool,
    /// Whether nobody is there to read replies.
    pub is_gone: bool,
    /// While it is closing: since when how many bytes have been waiting to be sent. Times are of [`Keyspace::uptime`](super::keyspace::Keyspace::uptime).
    pub closing: Option<(Duration, usize)>,
    /// Whether it is not read on before some of its output is sent.
    pub is_held_back: bool,
    /// Since when the output is over the soft limit.
    pub over_soft_since: Option<Duration>,
    /// Memory counted in the budget of all clients.
    pub counted_bytes: usize,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            input: Input::default(),
            output: Vec::new(),
            sent: 0,
            parser: Parser::default(),
            held_until: None,
            is_listed: false,
            is_readable: true,
            is_write_blocked: false,
            is_read_closed: false,
            is_gone: false,
            closing: None,
            is_held_back: false,
            over_soft_since: None,
            counted_bytes: 0,
        }
    }

    /// Reads once.
    pub fn read(&mut self, pool: &mut Pool) -> Result<(Progress, usize)> {
        self.input.make_room(pool);
        let room = self.input.buffer.get_mut(self.input.end..).unwrap_or(&mut []);
        let wanted = room.len();
        loop {
            return match self.stream.read(room) {
                Ok(0) => Ok((Progress::Closed, 0)),
                Ok(count) => {
                    self.input.end += count;
                    // A short read has emptied the socket: no need to be told so by one more call.
                    Ok((if count < wanted { Progress::Blocked } else { Progress::More }, count))
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok((Progress::Blocked, 0)),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Makes `output` ready to be appended to.
    pub fn prepare_output(&mut self, pool: &mut Pool) {
        if self.output.capacity() == 0 {
            self.output = pool.take();
        }
    }

    /// Bytes not sent yet.
    #[inline]
    pub fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Sends what can be sent; the number of bytes sent.
    pub fn flush(&mut self, pool: &mut Pool) -> Result<usize> {
        let before = self.sent;
        self.is_write_blocked = false;
        while self.unsent() > 0 {
            match self.stream.write(self.output.get(self.sent..).unwrap_or(&[])) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_write_blocked = true;
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let count = self.sent - before;
        if self.unsent() == 0 {
            self.sent = 0;
            pool.put(std::mem::take(&mut self.output));
        } else if self.sent > self.output.len() / 2 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        Ok(count)
    }

    /// Says that all was sent, and takes what came and will not be answered, a bounded part of it: a socket that is closed with bytes unread cuts its other side off at once, and what was sent last may be lost with
    /// that.
    pub fn finish(&mut self) {
        // Whatever fails, the connection ends.
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut unread = [0; 4096];
        for _ in 0..limits::UNREAD_BYTES_MAX / unread.len() {
            match self.stream.read(&mut unread) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }

    /// Puts an error in the place of each of `replies`: where it lies in the output.
    pub fn refuse_replies(&mut self, replies: &[Range<usize>], error: &str) {
        let mut output = Vec::with_capacity(self.output.len());
        let mut kept = 0;
        for reply in replies.iter().filter(|reply| !reply.is_empty()) {
            output.extend_from_slice(self.output.get(kept..reply.start).unwrap_or(&[]));
            Reply::new(&mut output, false).error(error);
            kept = reply.end;
        }
        output.extend_from_slice(self.output.get(kept..).unwrap_or(&[]));
        self.output = output;
    }

    /// Sends some of what there is while there will be more, if the client takes it; the number of bytes sent. Whether that
    /// failed will be seen when the rest is sent.
    pub fn flush_early(&mut self, pool: &mut Pool) -> u64 {
        if self.is_write_blocked {
            return 0;
        }
        let count = self.flush(pool).unwrap_or(0);
        self.prepare_output(pool);
        count as u64
    }

    /// Gives an empty input buffer back.
    pub fn release_input(&mut self, pool: &mut Pool) {
        self.input.release(pool);
    }

    /// What its buffers hold and take, with the most that was ever waiting to be sent.
    pub fn buffers(&self, output_peak: usize) -> Buffers {
        Buffers {
            input_bytes: self.input.bytes().len(),
            input_free: self.input.memory_bytes() - self.input.bytes().len(),
            output_bytes: self.unsent(),
            output_memory: self.output.capacity(),
            output_peak,
            is_write_blocked: self.is_write_blocked,
            memory: self.memory_bytes(),
        }
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.input.memory_bytes() + self.output.capacity() + self.parser.memory_bytes()
    }
}
