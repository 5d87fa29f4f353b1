//! Peeking into a pipeline: the rows of its commands are brought into the processor's caches together.
//!
//! A command on a row that lies in memory alone waits three or four times for memory, one miss after the other. The
//! misses of a dozen commands can be waited for at once, if their keys are known: they stand in the connection's buffer.
//!
//! Owns: the peek at commands not yet parsed. Promises: a bounded amount of work, that it changes nothing, that bytes it cannot
//! make sense of are left to the parser, and that no key is said to have been found which a command before it may have
//! changed. Must not know what commands do, apart from where their keys lie and what their flags say.

use hedgerow::ReadGuard;

use super::command::{Command, Flag};
use super::commands;
use super::keyspace::tiered::TieredKeyspace;
use super::keyspace::tiered::prefetch::{KEYS_MAX, PrefetchBatch, PrefetchedKey};
use super::resp::NamesAndKeys;

/// Arguments of a command; one with more is not looked past.
const ARGUMENTS_MAX: usize = 64;

/// The commands at the start of some input that are peeked at together: all of them [`Flag::Pinned`], or none.
pub struct PipelinePeek<'i> {
    commands: [Option<(&'static Command, &'i [u8])>; KEYS_MAX],
    count: usize,
    is_pinned: bool,
}

impl<'i> PipelinePeek<'i> {
    /// The commands at the start of `input`.
    pub fn at(input: &'i [u8]) -> PipelinePeek<'i> {
        let mut peek = PipelinePeek { commands: [None; KEYS_MAX], count: 0, is_pinned: false };
        for (name, key) in NamesAndKeys::of(input, ARGUMENTS_MAX).take(KEYS_MAX) {
            let command = commands::by_name(name);
            let is_pinned = command.is_some_and(|command| command.is(Flag::Pinned));
            if peek.count > 0 && is_pinned != peek.is_pinned {
                break;
            }
            peek.is_pinned = is_pinned;
            // One whose first argument is a key has no subcommands, and is none.
            peek.commands[peek.count] = command.filter(|command| command.keys.0 == 1).map(|c| (c, key));
            peek.count += 1;
        }
        peek
    }

    /// Whether its keys can be looked up once and for all: then [`PipelinePeek::look_up`], else [`PipelinePeek::prefetch`].
    pub fn is_pinned(&self) -> bool {
        self.is_pinned && self.count > 1
    }

    /// Looks the keys up.
    pub fn look_up<'p>(
        &self,
        keyspace: &TieredKeyspace,
        space: usize,
        guard: &'p ReadGuard<'_>,
    ) -> PeekedRun<'p> {
        let mut run = self.run();
        // Keys that may have been changed by commands before: a bit for each, and for some others.
        let mut written = 0u128;
        let (strings, hashes) = self.batches(|command, key| {
            let bit = 1 << key_bits(key);
            let is_as_found = written & bit == 0;
            written |= if command.is(Flag::Write) { bit } else { 0 };
            is_as_found
        });
        keyspace.look_up(space, guard, &strings, &hashes, |position, key| {
            run.peeked[position].prefetched = Some(key)
        });
        run
    }

    /// Brings the rows of the keys nearer.
    pub fn prefetch(&self, keyspace: &TieredKeyspace, space: usize) -> PeekedRun<'static> {
        if self.count > 1 {
            let (strings, hashes) = self.batches(|_, _| true);
            keyspace.prefetch(space, &strings, &hashes);
        }
        self.run()
    }

    fn run(&self) -> PeekedRun<'static> {
        let mut run = PeekedRun::blind(self.count.max(1));
        for (peeked, command) in run.peeked.iter_mut().zip(&self.commands) {
            peeked.command = command.map(|(command, _)| command);
        }
        run
    }

    /// The keys to look up, as strings and as hashes.
    fn batches(
        &self,
        mut is_wanted: impl FnMut(&'static Command, &'i [u8]) -> bool,
    ) -> (PrefetchBatch<'i>, PrefetchBatch<'i>) {
        let (mut strings, mut hashes) = (PrefetchBatch::default(), PrefetchBatch::default());
        for (position, command) in self.commands[..self.count].iter().enumerate() {
            let Some((command, key)) = command.filter(|&(command, key)| is_wanted(command, key)) else {
                continue;
            };
            match command.group {
                "string" => strings.push(position, key),
                "hash" => hashes.push(position, key),
                _ => {}
            }
        }
        (strings, hashes)
    }
}

/// Commands to be done one after the other, and what is known of some.
pub struct PeekedRun<'p> {
    /// How many, at least 1.
    pub commands: usize,
    peeked: [PeekedCommand<'p>; KEYS_MAX],
}

/// What is known of a command before it is parsed.
#[derive(Debug, Clone, Copy, Default)]
pub struct PeekedCommand<'p> {
    /// Which one it is, if that was looked up.
    pub command: Option<&'static Command>,
    /// Where its key was found, if it was looked up and is as it was then.
    pub prefetched: Option<PrefetchedKey<'p>>,
}

impl<'p> PeekedRun<'p> {
    /// Commands of which nothing is known.
    pub fn blind(commands: usize) -> PeekedRun<'p> {
        PeekedRun { commands, peeked: [PeekedCommand::default(); KEYS_MAX] }
    }

    /// What is known of a command.
    #[inline]
    pub fn peeked(&self, position: usize) -> PeekedCommand<'p> {
        self.peeked.get(position).copied().unwrap_or_default()
    }
}

/// A number below 128 made of a key's end, where most keys differ.
#[inline]
fn key_bits(key: &[u8]) -> u32 {
    let tail = key.iter().rev().take(8).fold(0u64, |tail, byte| tail << 8 | u64::from(*byte));
    (tail.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) as u32
}
