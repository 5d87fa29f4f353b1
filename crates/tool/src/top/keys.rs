//! Keys: what the terminal sends, and what is wished by it.
//!
//! Owns the thread that reads, and the few keys there are. Promises that the end of the terminal is told, that half an escape sequence delays nothing, and that Ctrl-C is
//! heard in the middle of one. Must not know what a wish does.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hedgerow_device::spawn;

/// A terminal that another program has set not to wait is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const ESCAPE: u8 = 0x1b;
const CONTROL_C: u8 = 0x03;
const CONTROL_L: u8 = 0x0c;
const CONTROL_Z: u8 = 0x1a;

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Wish {
    Quit,
    Pause,
    Help,
    Longer,
    Shorter,
    Repaint,
    Suspend,
}

/// How much of an escape sequence was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Escaped {
    #[default]
    Nothing,
    /// The key Esc, or the begin of a sequence.
    Begun,
    /// Another key's sequence, to its last letter.
    Within,
}

/// Makes wishes of bytes.
#[derive(Debug, Default)]
pub struct KeyReader {
    escaped: Escaped,
}

impl KeyReader {
    /// The next byte of the terminal.
    pub fn take(&mut self, byte: u8) -> Option<Wish> {
        let escaped = std::mem::take(&mut self.escaped);
        match (byte, escaped) {
            (CONTROL_C, _) | (ESCAPE, Escaped::Begun) => return Some(Wish::Quit),
            (ESCAPE, _) => self.escaped = Escaped::Begun,
            (b'[' | b'O', Escaped::Begun) => self.escaped = Escaped::Within,
            (_, Escaped::Nothing) => return plain(byte),
            // Alt with a key, or the last letter of a sequence.
            (_, Escaped::Begun) | (0x40..=0x7e, Escaped::Within) => {}
            (_, Escaped::Within) => self.escaped = Escaped::Within,
        }
        None
    }

    /// Nothing more came for a while: an Esc that stands alone is that key, and a sequence has no end.
    pub fn lapse(&mut self) -> Option<Wish> {
        (std::mem::take(&mut self.escaped) == Escaped::Begun).then_some(Wish::Quit)
    }
}

fn plain(byte: u8) -> Option<Wish> {
    match byte {
        b'q' => Some(Wish::Quit),
        b'p' => Some(Wish::Pause),
        b'h' | b'?' => Some(Wish::Help),
        b'+' | b'=' => Some(Wish::Longer),
        b'-' | b'_' => Some(Wish::Shorter),
        CONTROL_L => Some(Wish::Repaint),
        CONTROL_Z => Some(Wish::Suspend),
        _ => None,
    }
}

/// What the terminal sends from now on; the sender is gone when the terminal is.
pub fn listen() -> io::Result<Receiver<Vec<u8>>> {
    let stdin = io::stdin();
    let terminal = match stdin.is_terminal() {
        true => File::from(stdin.as_fd().try_clone_to_owned()?),
        false => File::open("/dev/tty")?,
    };
    listen_to(terminal)
}

fn listen_to(mut from: impl Read + Send + 'static) -> io::Result<Receiver<Vec<u8>>> {
    let (sender, keys) = channel();
    spawn("keys", move || {
        let mut bytes = [0; 256];
        loop {
            match from.read(&mut bytes) {
                Ok(0) => return,
                Ok(count) if sender.send(bytes[..count].to_vec()).is_err() => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK_EVERY),
                Err(_) => return,
            }
        }
    })?;
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;

    use super::*;

    fn wishes(bytes: &[u8]) -> Vec<Wish> {
        let mut reader = KeyReader::default();
        let mut found: Vec<Wish> = bytes.iter().filter_map(|byte| reader.take(*byte)).collect();
        found.extend(reader.lapse());
        assert_eq!(reader.lapse(), None);
        found
    }

    #[test]
    fn keys_mean_what_the_screen_says() {
        use Wish::{Help, Longer, Pause, Quit, Repaint, Shorter, Suspend};
        assert_eq!(wishes(b"qph?+-cx\x0c\x1a"), [Quit, Pause, Help, Help, Longer, Shorter, Repaint, Suspend]);
        assert_eq!((wishes(b"\x1b"), wishes(b"\x03")), (vec![Quit], vec![Quit]));
        assert_eq!(wishes("\u{e9}\u{4e16}".as_bytes()), []);
    }

    #[test]
    fn other_keys_and_halves_of_them_ask_for_nothing() {
        assert_eq!(wishes(b"\x1b[A\x1b[1;5q\x1bOp\x1bq"), []);
        assert_eq!(wishes(b"\x1b["), []);
        assert_eq!(wishes(b"\x1b[\x03"), [Wish::Quit]);
        assert_eq!(wishes(b"\x1b\x1b"), [Wish::Quit]);
        let mut reader = KeyReader::default();
        assert!(b"\x1b[1".iter().all(|byte| reader.take(*byte).is_none()) && reader.lapse().is_none());
        assert_eq!(reader.take(b'p'), Some(Wish::Pause));
    }

    #[test]
    fn the_end_of_the_terminal_is_told() {
        /// Two keys, and then nothing or a failure for ever.
        struct Gone(Vec<u8>, Option<ErrorKind>);
        impl Read for Gone {
            fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                match (self.0.pop(), self.1) {
                    (Some(byte), _) => bytes[0] = byte,
                    (None, Some(kind)) => return Err(kind.into()),
                    (None, None) => return Ok(0),
                }
                Ok(1)
            }
        }
        for end in [None, Some(ErrorKind::Other)] {
            let keys = listen_to(Gone(b"ba".to_vec(), end)).unwrap();
            let next = || keys.recv_timeout(Duration::from_secs(60));
            assert_eq!([next(), next()], [Ok(b"a".to_vec()), Ok(b"b".to_vec())]);
            assert_eq!(next(), Err(RecvTimeoutError::Disconnected));
        }
    }
}
