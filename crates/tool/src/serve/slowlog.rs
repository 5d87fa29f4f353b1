//! The slow log: the latest commands that took long.
//!
//! Owns: its entries, and how much of a command they show. Promises: bounded memory, however many entries the settings allow and
//! whatever the commands were. Must not know what is slow.

use std::collections::VecDeque;

use super::limits;
use super::resp::Args;

/// Arguments of a command that are shown.
const ARGUMENTS_MAX: usize = 32;
/// Bytes of an argument that are shown.
const ARGUMENT_BYTES_MAX: usize = 128;

/// An entry of the slow log.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Slow {
    pub id: u64,
    pub at_s: u64,
    pub microseconds: u64,
    pub args: Vec<Vec<u8>>,
    pub address: String,
    pub name: Vec<u8>,
}

impl Slow {
    /// Bytes of memory it takes.
    fn bytes(&self) -> usize {
        let args: usize = self.args.iter().map(|argument| size_of::<Vec<u8>>() + argument.len()).sum();
        size_of::<Slow>() + args + self.address.len() + self.name.len()
    }
}

/// The slow log.
#[derive(Debug, Default)]
pub struct SlowLog {
    /// Newest first.
    entries: VecDeque<Slow>,
    bytes: usize,
    next_id: u64,
}

impl SlowLog {
    /// Adds what becomes of `entry` with a number and as much of `args` as is shown, and forgets the oldest entries beyond `len_max`.
    pub fn add(&mut self, entry: Slow, args: Args<'_>, len_max: usize) {
        if len_max == 0 {
            return;
        }
        let entry = Slow { id: self.next_id, args: shown(args), ..entry };
        self.next_id += 1;
        self.bytes += entry.bytes();
        self.entries.push_front(entry);
        self.truncate(len_max);
    }

    /// Forgets the oldest entries beyond `len_max`, and those that there is no room for.
    pub fn truncate(&mut self, len_max: usize) {
        while self.entries.len() > len_max || self.bytes > limits::SLOWLOG_BYTES_MAX {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.bytes -= oldest.bytes();
        }
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// The entries, newest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Slow> {
        self.entries.iter()
    }
}

fn shown(args: Args<'_>) -> Vec<Vec<u8>> {
    let cut = |argument: &[u8]| match argument.get(..ARGUMENT_BYTES_MAX) {
        Some(head) if argument.len() > ARGUMENT_BYTES_MAX => {
            let more = format!("... ({} more bytes)", argument.len() - ARGUMENT_BYTES_MAX);
            [head, more.as_bytes()].concat()
        }
        _ => argument.to_vec(),
    };
    let count = if args.len() > ARGUMENTS_MAX { ARGUMENTS_MAX - 1 } else { args.len() };
    let mut shown: Vec<Vec<u8>> = args.iter().take(count).map(cut).collect();
    if args.len() > count {
        shown.push(format!("... ({} more arguments)", args.len() - count).into_bytes());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::resp::OwnedArgs;

    fn slow(name_bytes: usize) -> Slow {
        let name = vec![b'n'; name_bytes];
        Slow { id: 0, at_s: 0, microseconds: 0, args: Vec::new(), address: String::new(), name }
    }

    #[test]
    fn shows_what_redis_shows() {
        let long = [b'x'; 129];
        let mut words: Vec<&[u8]> = vec![b"SET", &long, &long[..128]];
        let args = OwnedArgs::from_words(&words);
        let mut log = SlowLog::default();
        log.add(slow(0), args.borrow(), 10);
        words.resize(33, b"a");
        log.add(slow(0), OwnedArgs::from_words(&words).borrow(), 10);
        words.truncate(32);
        log.add(slow(0), OwnedArgs::from_words(&words).borrow(), 10);
        let entries: Vec<&Slow> = log.entries().collect();
        assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(entries[2].args[1], [&long[..128], b"... (1 more bytes)"].concat());
        assert_eq!(entries[2].args[2], &long[..128]);
        assert_eq!((entries[1].args.len(), &entries[1].args[31][..]), (32, &b"... (2 more arguments)"[..]));
        assert_eq!((entries[0].args.len(), &entries[0].args[31][..]), (32, &b"a"[..]));
    }

    #[test]
    fn memory_is_bounded_whatever_the_settings() {
        let long = [b'x'; 1000];
        let args = OwnedArgs::from_words(&[&long[..]; 100]);
        let mut log = SlowLog::default();
        for _ in 0..10_000 {
            log.add(slow(limits::CLIENT_NAME_BYTES_MAX), args.borrow(), 1_000_000);
        }
        let taken: usize = log.entries().map(Slow::bytes).sum();
        assert_eq!(taken, log.bytes);
        assert!((limits::SLOWLOG_BYTES_MAX / 2..=limits::SLOWLOG_BYTES_MAX).contains(&taken), "{taken}");
        assert_eq!(log.entries().next().map(|entry| entry.id), Some(9_999));
        log.truncate(3);
        assert_eq!(log.entries().len(), 3);
        log.clear();
        assert_eq!((log.entries().len(), log.bytes), (0, 0));
        log.add(slow(0), args.borrow(), 0);
        assert_eq!(log.entries().len(), 0);
    }
}
