//! The request side of the Redis protocol: an incremental parser of commands, and a look ahead at those that are whole.
//!
//! Owns: the grammar of requests (`*N` arrays of `$N` bulk strings, and inline commands). Promises: it never panics, never
//! copies an argument out of the connection's buffer (inline commands, which may hold escapes, excepted), never
//! allocates from a declared length, and gives the same commands however the bytes are cut into reads. Must not know
//! what a command means.

use super::limits;

/// What a client may send. Lower before it has authenticated.
#[derive(Debug, Clone, Copy)]
pub struct RequestLimits {
    /// Arguments of one command.
    pub arguments_max: usize,
    /// Bytes of one argument.
    pub argument_bytes_max: usize,
    /// Whether these are the limits before authentication: the error says so.
    pub unauthenticated: bool,
}

impl RequestLimits {
    /// The limits of a client that may do everything.
    pub const AUTHENTICATED: RequestLimits = RequestLimits {
        arguments_max: limits::ARGUMENTS_MAX,
        argument_bytes_max: limits::ARGUMENT_BYTES_MAX,
        unauthenticated: false,
    };
    /// The limits of a client that has not authenticated yet (CVE-2021-32675).
    pub const UNAUTHENTICATED: RequestLimits = RequestLimits {
        arguments_max: limits::UNAUTHENTICATED_ARGUMENTS_MAX,
        argument_bytes_max: limits::UNAUTHENTICATED_ARGUMENT_BYTES_MAX,
        unauthenticated: true,
    };
}

/// Why a connection can not be understood any more. The text goes to the client before it is disconnected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtocolError(pub String);

impl ProtocolError {
    fn new(what: &str) -> ProtocolError {
        ProtocolError(format!("ERR Protocol error: {what}"))
    }
}

/// Where an argument is: offsets into the buffer, start and end.
pub type Span = (u32, u32);

/// The arguments of one command, the name first. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// Arguments at `spans` of `bytes`.
    pub fn new(bytes: &'a [u8], spans: &'a [Span]) -> Args<'a> {
        Args { bytes, spans }
    }

    /// How many there are, the command's name included.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let &(start, end) = self.spans.get(index)?;
        self.bytes.get(start as usize..end as usize)
    }

    /// Argument `index`, or nothing if there is none: for arguments whose presence the arity has proved.
    #[inline]
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or(&[])
    }

    /// The arguments from `index` on.
    pub fn from(&self, index: usize) -> Args<'a> {
        Args { bytes: self.bytes, spans: self.spans.get(index..).unwrap_or(&[]) }
    }

    /// The first `count` arguments.
    pub fn first(&self, count: usize) -> Args<'a> {
        Args { bytes: self.bytes, spans: self.spans.get(..count).unwrap_or(self.spans) }
    }

    /// All arguments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |&(start, end)| bytes.get(start as usize..end as usize).unwrap_or(&[]))
    }

    /// Copies the arguments so that they outlive the connection's buffer.
    pub fn to_owned(&self) -> OwnedArgs {
        let mut bytes = Vec::with_capacity(self.iter().map(<[u8]>::len).sum());
        let spans = self.iter().map(|argument| append(&mut bytes, argument)).collect();
        OwnedArgs { bytes, spans }
    }
}

fn append(bytes: &mut Vec<u8>, argument: &[u8]) -> Span {
    let start = bytes.len() as u32;
    bytes.extend_from_slice(argument);
    (start, bytes.len() as u32)
}

/// The arguments of a queued command.
#[derive(Debug, Clone, Default)]
pub struct OwnedArgs {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl OwnedArgs {
    /// Arguments given as words.
    #[cfg(test)]
    pub fn from_words(words: &[&[u8]]) -> OwnedArgs {
        let mut bytes = Vec::new();
        let spans = words.iter().map(|word| append(&mut bytes, word)).collect();
        OwnedArgs { bytes, spans }
    }

    /// The arguments, borrowed.
    pub fn borrow(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.spans)
    }

    /// Bytes of memory this takes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<Span>() + size_of::<OwnedArgs>()
    }
}

/// What [`Parser::parse`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// The command is not whole yet: read more and call again with a longer buffer.
    Incomplete,
    /// A command; see [`Parser::args`]. It may have no arguments: then there is nothing to do or answer.
    Command,
}

/// Parses one command after the other from a buffer that grows at its end. Call [`Parser::parse`] with the unconsumed
/// bytes until it gives a command; use the command; drop [`Parser::consumed`] bytes; call [`Parser::next`].
#[derive(Debug, Default)]
pub struct Parser {
    spans: Vec<Span>,
    /// Arguments still to come; None before the head of the command was read.
    remaining: Option<usize>,
    /// The length of the argument being read, once its head was read.
    argument_bytes: Option<usize>,
    /// Bytes of this command understood so far.
    position: usize,
    /// The unescaped arguments of an inline command.
    inline: Option<Vec<u8>>,
}

/// The longest line that can hold a length: a marker, a sign, 19 digits and the line end.
const LENGTH_LINE_BYTES_MAX: usize = 32;

impl Parser {
    /// Goes on with the command at the start of `bytes`.
    pub fn parse(&mut self, bytes: &[u8], limits: &RequestLimits) -> Result<Parsed, ProtocolError> {
        if self.remaining.is_none() {
            match bytes.first() {
                None => return Ok(Parsed::Incomplete),
                Some(b'*') => {
                    if !self.parse_head(bytes, limits)? {
                        return Ok(Parsed::Incomplete);
                    }
                }
                Some(_) => return self.parse_inline(bytes, limits),
            }
        }
        while self.remaining.is_some_and(|count| count > 0) {
            if !self.parse_argument(bytes, limits)? {
                return Ok(Parsed::Incomplete);
            }
        }
        Ok(Parsed::Command)
    }

    /// The arguments of the command just found; `bytes` as given to [`Parser::parse`].
    pub fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        Args::new(self.inline.as_deref().unwrap_or(bytes), &self.spans)
    }

    /// Bytes of the command just found.
    pub fn consumed(&self) -> usize {
        self.position
    }

    /// Makes ready for the next command, keeping the memory.
    pub fn next(&mut self) {
        self.spans.clear();
        if self.spans.capacity() > 1024 {
            self.spans.shrink_to(1024);
        }
        self.remaining = None;
        self.argument_bytes = None;
        self.position = 0;
        self.inline = None;
    }

    /// Whether a command has been begun and not finished.
    pub fn is_between_commands(&self) -> bool {
        self.remaining.is_none()
    }

    /// Bytes of memory the parser holds beside the connection's buffer.
    pub fn memory_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.inline.as_ref().map_or(0, Vec::capacity)
    }

    /// How many bytes the unfinished argument still needs: what a reader may make room for, bounded by itself.
    pub fn wanted(&self, available: usize) -> usize {
        self.argument_bytes.map_or(0, |length| (self.position + length + 2).saturating_sub(available))
    }

    fn parse_head(&mut self, bytes: &[u8], limits: &RequestLimits) -> Result<bool, ProtocolError> {
        let Some((count, after)) =
            parse_length(bytes, 0, "too big mbulk count string", "invalid multibulk length")?
        else {
            return Ok(false);
        };
        if count > limits.arguments_max as i64 {
            return Err(ProtocolError::new(match limits.unauthenticated {
                true => "unauthenticated multibulk length",
                false => "invalid multibulk length",
            }));
        }
        self.position = after;
        self.remaining = Some(count.max(0) as usize);
        Ok(true)
    }

    #[inline]
    fn parse_argument(&mut self, bytes: &[u8], limits: &RequestLimits) -> Result<bool, ProtocolError> {
        let length = match self.argument_bytes {
            Some(length) => length,
            None => match self.parse_argument_head(bytes, limits)? {
                Some(length) => length,
                None => return Ok(false),
            },
        };
        let end = self.position + length;
        if bytes.len() < end + 2 {
            return Ok(false);
        }
        if bytes.get(end..end + 2) != Some(b"\r\n") {
            return Err(ProtocolError::new("expected the end of a line after an argument"));
        }
        self.spans.push((self.position as u32, end as u32));
        self.position = end + 2;
        self.argument_bytes = None;
        self.remaining = self.remaining.map(|count| count - 1);
        Ok(true)
    }

    #[inline]
    fn parse_argument_head(
        &mut self,
        bytes: &[u8],
        limits: &RequestLimits,
    ) -> Result<Option<usize>, ProtocolError> {
        match bytes.get(self.position) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&other) => {
                return Err(ProtocolError::new(&format!(
                    "expected '$', got '{}'",
                    (other as char).escape_default()
                )));
            }
        }
        let Some((length, after)) =
            parse_length(bytes, self.position, "too big bulk count string", "invalid bulk length")?
        else {
            return Ok(None);
        };
        if length < 0 || length > limits.argument_bytes_max as i64 {
            return Err(ProtocolError::new(match limits.unauthenticated && length > 0 {
                true => "unauthenticated bulk length",
                false => "invalid bulk length",
            }));
        }
        if after + length as usize > limits::COMMAND_BYTES_MAX {
            return Err(ProtocolError::new("too big command"));
        }
        self.position = after;
        self.argument_bytes = Some(length as usize);
        Ok(Some(length as usize))
    }

    fn parse_inline(&mut self, bytes: &[u8], limits: &RequestLimits) -> Result<Parsed, ProtocolError> {
        let window = bytes.get(..limits::INLINE_BYTES_MAX).unwrap_or(bytes);
        let Some(end) = window.iter().position(|&byte| byte == b'\n') else {
            return match bytes.len() >= limits::INLINE_BYTES_MAX {
                true => Err(ProtocolError::new("too big inline request")),
                false => Ok(Parsed::Incomplete),
            };
        };
        let line = bytes.get(..end).unwrap_or(&[]);
        let mut unescaped = Vec::with_capacity(line.len());
        self.spans.clear();
        if !split_inline(line.strip_suffix(b"\r").unwrap_or(line), &mut unescaped, &mut self.spans) {
            return Err(ProtocolError::new("unbalanced quotes in request"));
        }
        if self.spans.len() > limits.arguments_max {
            return Err(ProtocolError::new("unauthenticated multibulk length"));
        }
        self.inline = Some(unescaped);
        self.position = end + 1;
        self.remaining = Some(0);
        Ok(Parsed::Command)
    }
}

/// The longest length that needs no check for overflow, in digits. No limit allows one that is longer.
const SHORT_LENGTH_DIGITS: usize = 9;

/// The length in a whole line of at most [`SHORT_LENGTH_DIGITS`] digits, and what follows the line. Both who parses and who
/// looks ahead go by it.
#[inline(always)]
fn short_length(line: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0;
    for (index, &byte) in line.iter().take(SHORT_LENGTH_DIGITS + 1).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let rest = line.get(index..)?.strip_prefix(b"\r\n")?;
            return (index > 0).then_some((value, rest));
        }
        value = value * 10 + usize::from(digit);
    }
    None
}

/// The number in the line that starts at `start` with a one-byte marker, and where the next line starts. None while the line
/// is not whole.
#[inline]
fn parse_length(
    bytes: &[u8],
    start: usize,
    too_long: &str,
    invalid: &str,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let line = bytes.get(start + 1..).unwrap_or(&[]);
    match short_length(line) {
        Some((value, rest)) => Ok(Some((value as i64, bytes.len() - rest.len()))),
        None => parse_odd_length(line, start, too_long, invalid),
    }
}

/// [`parse_length`] of a line that is negative, long, not whole or wrong.
#[cold]
fn parse_odd_length(
    line: &[u8],
    start: usize,
    too_long: &str,
    invalid: &str,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let mut value = 0i64;
    let mut negative = false;
    for (index, &byte) in line.iter().take(LENGTH_LINE_BYTES_MAX).enumerate() {
        match byte {
            b'0'..=b'9' => {
                let digit = i64::from(byte - b'0');
                value = value
                    .checked_mul(10)
                    .and_then(|value| value.checked_add(digit))
                    .ok_or_else(|| ProtocolError::new(invalid))?;
            }
            b'-' if index == 0 => negative = true,
            b'\r' if index > usize::from(negative) => {
                return match line.get(index + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((if negative { -value } else { value }, start + index + 3))),
                    Some(_) => Err(ProtocolError::new(invalid)),
                };
            }
            _ => return Err(ProtocolError::new(invalid)),
        }
    }
    match line.len() >= LENGTH_LINE_BYTES_MAX {
        true => Err(ProtocolError::new(too_long)),
        false => Ok(None),
    }
}

/// The name and the first argument of each command that lies whole in some bytes, empty where there is none. Ends before the
/// first command that [`Parser::parse`] would wait for or refuse, that is an inline command, or that has too many arguments
/// to look past. It keeps nothing and allocates nothing.
pub struct NamesAndKeys<'i> {
    rest: &'i [u8],
    arguments_max: usize,
}

impl<'i> NamesAndKeys<'i> {
    /// The commands at the start of `input` up to the first with more than `arguments_max` arguments.
    pub fn of(input: &'i [u8], arguments_max: usize) -> NamesAndKeys<'i> {
        NamesAndKeys { rest: input, arguments_max }
    }
}

impl<'i> Iterator for NamesAndKeys<'i> {
    type Item = (&'i [u8], &'i [u8]);

    #[inline]
    fn next(&mut self) -> Option<(&'i [u8], &'i [u8])> {
        let (count, mut rest) = length_after(b'*', self.rest)?;
        if count > self.arguments_max {
            return None;
        }
        let mut first: [&[u8]; 2] = [&[]; 2];
        for index in 0..count {
            let (bytes, after) = length_after(b'$', rest)?;
            let (argument, end) = after.split_at_checked(bytes)?;
            rest = end.strip_prefix(b"\r\n")?;
            if let Some(place) = first.get_mut(index) {
                *place = argument;
            }
        }
        self.rest = rest;
        Some((first[0], first[1]))
    }
}

/// The length in the line that starts with `marker`, and what follows the line.
#[inline(always)]
fn length_after(marker: u8, bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes {
        [first, line @ ..] if *first == marker => short_length(line),
        _ => None,
    }
}

/// Splits an inline command the way a shell would: double quotes with escapes, single quotes without. False if the quotes are
/// not balanced.
fn split_inline(line: &[u8], unescaped: &mut Vec<u8>, spans: &mut Vec<Span>) -> bool {
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && (first.is_ascii_whitespace() || *first == 0)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return true;
        }
        let start = unescaped.len() as u32;
        loop {
            match rest {
                [] => break,
                [b'"', tail @ ..] => match unquote_double(tail, unescaped) {
                    Some(after) => rest = after,
                    None => return false,
                },
                [b'\'', tail @ ..] => match unquote_single(tail, unescaped) {
                    Some(after) => rest = after,
                    None => return false,
                },
                [byte, tail @ ..] if byte.is_ascii_whitespace() || *byte == 0 => {
                    rest = tail;
                    break;
                }
                [byte, tail @ ..] => {
                    unescaped.push(*byte);
                    rest = tail;
                }
            }
        }
        spans.push((start, unescaped.len() as u32));
    }
}

/// Whether an argument may end here: a closing quote must be followed by a space or nothing.
fn ends_argument(rest: &[u8]) -> bool {
    rest.first().is_none_or(u8::is_ascii_whitespace)
}

fn unquote_double<'a>(mut rest: &'a [u8], unescaped: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [] => return None,
            [b'"', tail @ ..] => return ends_argument(tail).then_some(tail),
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
                unescaped.push(digit(*high) << 4 | digit(*low));
                rest = tail;
            }
            [b'\\', byte, tail @ ..] => {
                unescaped.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = tail;
            }
            [byte, tail @ ..] => {
                unescaped.push(*byte);
                rest = tail;
            }
        }
    }
}

fn unquote_single<'a>(mut rest: &'a [u8], unescaped: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [] => return None,
            [b'\'', tail @ ..] => return ends_argument(tail).then_some(tail),
            [b'\\', b'\'', tail @ ..] => {
                unescaped.push(b'\'');
                rest = tail;
            }
            [byte, tail @ ..] => {
                unescaped.push(*byte);
                rest = tail;
            }
        }
    }
}

#[cfg(test)]
mod tests;
