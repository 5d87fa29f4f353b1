//! The one table of commands: name, arity, flags, keys, documentation, handler.
//!
//! Owns: what commands there are. Dispatch, COMMAND, COMMAND DOCS and `docs/commands.md` are all made from the table, so that they can
//! not differ. Handlers are in the modules below, by group. Must not know connections, nor who calls: [`dispatch`](super::dispatch).
#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in a command's syntax are no links")]

use std::sync::LazyLock;

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
pub fn all() -> &'static [Command] {
    &TABLE.commands
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
    TABLE.handlers[command.index](context, args)?;
    match context.reply.is_over() {
        true => context.reply.check(0),
        false => Ok(()),
    }
}

struct Table {
    commands: Vec<Command>,
    /// By position in `commands`.
    handlers: Vec<Handler>,
    /// Open addressing: position in `commands` plus 1, 0 where there is none.
    slots: Vec<u16>,
    /// By position: whether there are subcommands.
    is_container: Vec<bool>,
}

const SLOTS: usize = 2048;
/// The longest name with its parent.
const NAME_BYTES_MAX: usize = 32;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let (mut commands, handlers) = registry::commands();
    let mut slots = vec![0u16; SLOTS];
    for (index, command) in commands.iter_mut().enumerate() {
        command.index = index;
        command.flag_bits = command.flags.iter().fold(0, |bits, flag| bits | 1 << *flag as u32);
        let mut slot = hash(command.name.as_bytes()) % SLOTS;
        while slots[slot] != 0 {
            slot = (slot + 1) % SLOTS;
        }
        slots[slot] = index as u16 + 1;
    }
    let parents: Vec<&str> = commands.iter().filter_map(Command::parent).collect();
    let is_container = commands.iter().map(|command| parents.contains(&command.name)).collect();
    Table { commands, handlers, slots, is_container }
});

#[inline]
fn hash(name: &[u8]) -> usize {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let (words, rest) = name.as_chunks::<8>();
    let hash = words.iter().fold(name.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let rest = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    (mix(hash, rest) >> 20) as usize
}

#[inline]
fn find(name: &[u8]) -> Option<&'static Command> {
    let mut slot = hash(name) % SLOTS;
    loop {
        match TABLE.slots[slot] {
            0 => return None,
            index => {
                let command = &TABLE.commands[usize::from(index) - 1];
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
    if !TABLE.is_container[command.index] {
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
