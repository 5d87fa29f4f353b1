//! What is known of a command without doing it: its name, arity, properties, and which of its arguments are keys.
//!
//! Owns [`Command`], by which everybody below [`commands`](super::commands) names a command: a queue of a transaction,
//! counters of calls. Must not know what commands there are, nor what does them.

use super::resp::Args;

/// A property of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Changes keys.
    Write,
    /// Reads keys.
    Read,
    /// Takes the same time whatever the data.
    Fast,
    /// Of interest to the operator.
    Admin,
    /// Allowed before authentication.
    NoAuth,
    /// Done at once inside MULTI, not queued.
    NoQueue,
    /// Not allowed inside MULTI.
    NoMulti,
    /// Never in the slow log: its arguments are secrets.
    SkipSlowlog,
    /// Its writes can be part of one atomic batch.
    Batch,
    /// It looks at no more of its key than whether it exists and when it expires, which is known of staged writes: so it
    /// can follow another write of the key in a batch.
    Follows,
    /// It looks one key up, and changes the store once or not at all: it never waits for space, so that what was looked up
    /// ahead for it and its neighbours in a pipeline can stay pinned until all of them are done.
    Pinned,
}

/// A command, or a subcommand (`config|get`).
pub struct Command {
    /// In lower case, a subcommand with its parent before a `|`.
    pub(super) name: &'static str,
    /// Arguments, the name included; negative: at least that many.
    pub arity: i32,
    /// Properties.
    pub flags: &'static [Flag],
    /// First and last key (negative: from the end) and step; zeros if it has no keys.
    pub keys: (i32, i32, i32),
    /// The group COMMAND DOCS puts it in.
    pub group: &'static str,
    /// The version of Redis (or of Hedgerow, for commands of our own) that had it first.
    pub since: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The arguments in the notation of Redis's manual.
    pub syntax: &'static str,
    /// The position in the table.
    pub(super) index: usize,
    /// A bit for each of `flags`.
    pub(super) flag_bits: u32,
    /// Whether it has subcommands.
    pub(super) is_container: bool,
}

impl Command {
    /// The name with its parent.
    #[inline]
    pub fn full_name(&self) -> &'static str {
        self.name
    }

    /// The position in the table.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether it has a property.
    #[inline]
    pub fn is(&self, flag: Flag) -> bool {
        self.flag_bits & (1 << flag as u32) != 0
    }

    /// Whether it can have so many arguments, the name included.
    #[inline]
    pub fn accepts(&self, count: usize) -> bool {
        match self.arity {
            arity if arity >= 0 => count == arity as usize,
            arity => count >= arity.unsigned_abs() as usize,
        }
    }

    /// The command this is a subcommand of.
    pub fn parent(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(parent, _)| parent)
    }

    /// The keys among the arguments.
    pub fn keys_of<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { args.len() as i32 + last } else { last };
        let positions = if first > 0 { first..last + 1 } else { 0..0 };
        positions.step_by(step.max(1) as usize).filter_map(move |index| args.get(index as usize))
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
