//! The reply side of the Redis protocol: one writer for RESP2 and RESP3.
//!
//! Owns: the shape of every kind of reply in both versions. Promises: it only appends to the buffer it was given, and an error or
//! status never breaks the framing whatever text it carries. Nothing that would take a reply over its limit is appended. Must not
//! know commands.

use std::io::Write;

use super::failure::{Failure, Outcome};

/// Appends replies to a connection's output.
#[derive(Debug)]
pub struct Reply<'b> {
    out: &'b mut Vec<u8>,
    resp3: bool,
    /// The most bytes a reply may have.
    limit: usize,
    /// Bytes of `out` from which on this reply is over its limit.
    end: usize,
    is_over: bool,
}

/// Room for the head of an aggregate whose length is known only after its elements: a marker, 20 digits, a line end.
const HEAD_BYTES_MAX: usize = 23;

/// A place in the output where the head of an aggregate will go.
#[derive(Debug)]
#[must_use]
pub struct Deferred(usize);

impl<'b> Reply<'b> {
    /// A writer to the end of `out`.
    pub fn new(out: &'b mut Vec<u8>, resp3: bool) -> Reply<'b> {
        Reply::bounded(out, resp3, usize::MAX)
    }

    /// A writer of a reply of at most `limit` bytes, and what little comes in between its strings.
    pub fn bounded(out: &'b mut Vec<u8>, resp3: bool, limit: usize) -> Reply<'b> {
        let end = out.len().saturating_add(limit);
        Reply { out, resp3, limit, end, is_over: false }
    }

    /// Whether strings were left out because the reply would have been over its limit: it is not to be sent.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Fails if the reply is over its limit, or with `more` bytes would be.
    #[inline]
    pub fn check(&self, more: u64) -> Outcome<()> {
        match self.is_over || self.out.len() as u64 + more > self.end as u64 {
            true => Err(Failure::new(format!(
                "ERR the reply would take more than {} bytes, the hard limit of client-output-buffer-limit",
                self.limit
            ))),
            false => Ok(()),
        }
    }

    /// Whether there is room for `bytes` more.
    #[inline]
    fn has_room(&mut self, bytes: usize) -> bool {
        self.is_over |= bytes > self.end.saturating_sub(self.out.len());
        !self.is_over
    }

    /// Whether the client asked for RESP3.
    pub fn is_resp3(&self) -> bool {
        self.resp3
    }

    /// Changes the version, as HELLO does.
    pub fn set_resp3(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }

    /// Bytes in the output so far.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Takes back all that was written after the output had `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.is_over = false;
        self.out.truncate(len);
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A status.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error: a code in capitals, then a sentence.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    fn line(&mut self, marker: u8, text: &str) {
        self.out.push(marker);
        self.out.extend(text.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        match value {
            0 => self.out.extend_from_slice(b":0\r\n"),
            1 => self.out.extend_from_slice(b":1\r\n"),
            _ => self.head(b':', value),
        }
    }

    /// A boolean; an integer before RESP3.
    pub fn boolean(&mut self, value: bool) {
        match (self.resp3, value) {
            (true, true) => self.out.extend_from_slice(b"#t\r\n"),
            (true, false) => self.out.extend_from_slice(b"#f\r\n"),
            (false, value) => self.integer(i64::from(value)),
        }
    }

    #[inline]
    fn head(&mut self, marker: u8, value: i64) {
        let mut digits = itoa::Buffer::new();
        self.out.push(marker);
        self.out.extend_from_slice(digits.format(value).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A binary string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.has_room(bytes.len()) {
            return;
        }
        self.head(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A string made of what `write!` is given, up to 256 bytes without allocation.
    pub fn bulk_display(&mut self, value: impl std::fmt::Display) {
        let mut stack = [0u8; 256];
        let mut cursor = std::io::Cursor::new(&mut stack[..]);
        if write!(cursor, "{value}").is_ok() {
            let len = cursor.position() as usize;
            self.bulk(stack.get(..len).unwrap_or(&[]));
        } else {
            self.bulk(value.to_string().as_bytes());
        }
    }

    /// A text of a format: `txt` in RESP3, a plain string before.
    pub fn verbatim(&mut self, text: &[u8]) {
        if !self.resp3 {
            return self.bulk(text);
        }
        if !self.has_room(text.len()) {
            return;
        }
        self.head(b'=', text.len() as i64 + 4);
        self.out.extend_from_slice(b"txt:");
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A floating-point number; a string before RESP3.
    pub fn double(&mut self, value: f64) {
        let mut text = Vec::with_capacity(24);
        super::number::write_f64(&mut text, value);
        if !self.resp3 {
            return self.bulk(&text);
        }
        self.out.push(b',');
        self.out.extend_from_slice(&text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// No value.
    #[inline]
    pub fn null(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// No array.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// The head of an array of `len` elements.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.head(b'*', len as i64);
    }

    /// The head of a map of `len` pairs; an array of twice as many before RESP3.
    #[inline]
    pub fn map(&mut self, len: usize) {
        match self.resp3 {
            true => self.head(b'%', len as i64),
            false => self.head(b'*', len as i64 * 2),
        }
    }

    /// The head of a set of `len` elements; an array before RESP3.
    pub fn set(&mut self, len: usize) {
        self.head(if self.resp3 { b'~' } else { b'*' }, len as i64);
    }

    /// Leaves room for the head of an aggregate; give the result to [`Reply::array_at`] or [`Reply::map_at`].
    #[inline]
    pub fn defer(&mut self) -> Deferred {
        let start = self.out.len();
        self.out.resize(start + HEAD_BYTES_MAX, 0);
        Deferred(start)
    }

    /// Writes the head of an array of `len` elements to the place left for it.
    pub fn array_at(&mut self, place: Deferred, len: usize) {
        self.head_at(place, b'*', len as i64);
    }

    /// Writes the head of a map of `len` pairs to the place left for it.
    #[inline]
    pub fn map_at(&mut self, place: Deferred, len: usize) {
        match self.resp3 {
            true => self.head_at(place, b'%', len as i64),
            false => self.head_at(place, b'*', len as i64 * 2),
        }
    }

    /// Closes the gap between the head, which is short, and the elements: one move of the elements.
    fn head_at(&mut self, Deferred(start): Deferred, marker: u8, value: i64) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(value).as_bytes();
        let mut head = [0u8; HEAD_BYTES_MAX];
        let len = digits.len() + 3;
        head[0] = marker;
        head[1..=digits.len()].copy_from_slice(digits);
        head[len - 2..len].copy_from_slice(b"\r\n");
        self.out.copy_within(start + HEAD_BYTES_MAX.., start + len);
        let total = self.out.len() - (HEAD_BYTES_MAX - len);
        self.out.truncate(total);
        self.out[start..start + len].copy_from_slice(&head[..len]);
    }

    /// Appends bytes that are a reply already.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests;
