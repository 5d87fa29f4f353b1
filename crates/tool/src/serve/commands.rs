//! The one table of commands: name, arity, flags, keys, documentation, handler.
//!
//! Owns: what commands there are. Dispatch, COMMAND, COMMAND DOCS and `docs/commands.md` are all made from the table, so
//! that they can not differ. The compiler hashes the names, so that nothing is made when the server starts; the crate
//! `phf` would do the same with a hash that takes longer (SipHash), and wants all rows in one macro. Handlers are in the
//! modules below, by group. Must not know connections, nor who calls: [`dispatch`](super::dispatch).
#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in a command's syntax are no links")]

use super::command::Command;
use super::failure::{Failure, Outcome, quote};
use super::resp::Args;
use super::server::Context;

pub mod connection;
pub mod docs;
pub mod expiration;
pub mod hash;
pub mod key;
pub mod server;
pub mod string;
pub mod table;
pub mod transaction;

mod registry;

/// Does a command.
pub type Handler = fn(&mut Context<'_>, Args<'_>) -> Outcome<()>;

/// All commands and subcommands.
#[inline]
pub fn all() -> &'static [Command] {
    &registry::COMMANDS
}

/// How many they are.
pub fn count() -> usize {
    all().len()
}

/// The subcommands of a command.
pub fn subcommands(parent: &Command) -> impl Iterator<Item = &'static Command> + use<> {
    let name = parent.name;
    all().iter().filter(move |command| command.parent() == Some(name))
}

/// Does a command. A reply that is too large is an error.
#[inline]
pub fn call(context: &mut Context<'_>, command: &'static Command, args: Args<'_>) -> Outcome<()> {
    registry::HANDLERS[command.index](context, args)?;
    match context.reply.is_over() {
        true => context.reply.check(0),
        false => Ok(()),
    }
}

/// A power of two, several times the number of commands.
const SLOTS: usize = 2048;
/// The longest name with its parent.
const NAME_BYTES_MAX: usize = 32;

/// Open addressing by [`hash`] of the name: position in the table plus 1, 0 where there is none.
static POSITIONS: [u16; SLOTS] = {
    let mut positions = [0; SLOTS];
    let mut index = 0;
    while index < registry::COUNT {
        let mut slot = hash(registry::COMMANDS[index].name.as_bytes()) % SLOTS;
        while positions[slot] != 0 {
            slot = (slot + 1) % SLOTS;
        }
        index += 1;
        positions[slot] = index as u16;
    }
    positions
};

#[inline]
const fn hash(name: &[u8]) -> usize {
    let (words, rest) = name.as_chunks::<8>();
    let mut hash = name.len() as u64;
    let mut index = 0;
    while index < words.len() {
        hash = mix(hash, u64::from_le_bytes(words[index]));
        index += 1;
    }
    let (mut last, mut index) = (0, 0);
    while index < rest.len() {
        last = last << 8 | rest[index] as u64;
        index += 1;
    }
    (mix(hash, last) >> 20) as usize
}

#[inline]
const fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

#[inline]
fn find(name: &[u8]) -> Option<&'static Command> {
    let mut slot = hash(name) % SLOTS;
    loop {
        match POSITIONS[slot] {
            0 => return None,
            index => {
                let command = &registry::COMMANDS[usize::from(index) - 1];
                if command.name.as_bytes() == name {
                    return Some(command);
                }
            }
        }
        slot = (slot + 1) % SLOTS;
    }
}

/// The command of that name in any case, a subcommand with its parent before a `|`.
pub fn by_name(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0u8; NAME_BYTES_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    find(lower)
}

/// What a command's name and subcommand say.
pub enum Lookup {
    /// This command or subcommand.
    Found(&'static Command),
    /// No command.
    Unknown,
    /// This command has no such subcommand.
    UnknownSub(&'static Command),
}

/// [`look_up`], if the command is probably this one, which has no subcommands.
#[inline]
pub fn look_up_peeked(peeked: Option<&'static Command>, args: Args<'_>) -> Lookup {
    match peeked {
        Some(command) if is_word(args.at(0), command.name) => Lookup::Found(command),
        _ => look_up(args),
    }
}

/// Finds the command of some arguments.
#[inline]
pub fn look_up(args: Args<'_>) -> Lookup {
    let Some(command) = by_name(args.at(0)) else { return Lookup::Unknown };
    if command.parent().is_some() {
        return Lookup::Unknown;
    }
    if !command.is_container {
        return Lookup::Found(command);
    }
    let Some(sub) = args.get(1) else { return Lookup::Found(command) };
    let mut full = [0u8; NAME_BYTES_MAX];
    let parent = command.name.as_bytes();
    let len = parent.len() + 1 + sub.len();
    if let Some(name) = full.get_mut(..len) {
        name[..parent.len()].copy_from_slice(parent);
        name[parent.len()] = b'|';
        name[parent.len() + 1..].copy_from_slice(sub);
        name.make_ascii_lowercase();
        if let Some(command) = find(name) {
            return Lookup::Found(command);
        }
    }
    // COMMAND alone is a command; with an argument that is no subcommand it is an error.
    Lookup::UnknownSub(command)
}

/// Whether this is the first line of an HTTP request with a body, or the header that is in every request: what browsers send
/// before anything that a web page can choose.
pub fn is_http(args: Args<'_>) -> bool {
    is_word(args.at(0), "POST") || is_word(args.at(0), "Host:")
}

/// Redis's own words for a command that does not exist.
pub fn unknown_command(args: Args<'_>) -> Failure {
    let mut shown = String::new();
    for argument in args.from(1).iter() {
        if shown.len() >= 128 {
            break;
        }
        let room = 128 - shown.len();
        shown.push('\'');
        shown.push_str(&quote(argument.get(..room).unwrap_or(argument)));
        shown.push_str("' ");
    }
    Failure::new(format!("ERR unknown command '{}', with args beginning with: {shown}", quote(args.at(0))))
}

/// And for a subcommand.
pub fn unknown_subcommand(parent: &Command, args: Args<'_>) -> Failure {
    Failure::new(format!(
        "ERR unknown subcommand '{}'. Try {} HELP.",
        quote(args.at(1)),
        parent.name.to_ascii_uppercase()
    ))
}

/// Whether an argument is this keyword, in any case.
#[inline]
pub fn is_word(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

#[cfg(test)]
mod tests;
