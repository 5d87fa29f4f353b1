//! What the table says about its commands: COMMAND INFO, COMMAND DOCS and `docs/commands.md`.
//!
//! Owns: the parser of the argument notation of Redis's manual, from which the argument trees of COMMAND DOCS are made.

use std::fmt::Write;

use super::{all, subcommands};
use crate::serve::command::{Command, Flag};
use crate::serve::reply::Reply;

/// An argument, or a group of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// What the manual calls it.
    pub name: String,
    /// A word before it, or all it is.
    pub token: Option<String>,
    /// What it is.
    pub kind: Kind,
    /// Whether it may be left out.
    pub optional: bool,
    /// Whether it may be repeated.
    pub multiple: bool,
}

/// What an argument is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A value of a type: `key`, `string`, `integer`, `double`, `pattern`, `unix-time`.
    Value(&'static str),
    /// Only its token.
    Token,
    /// One of these.
    OneOf(Vec<Argument>),
    /// All of these.
    Block(Vec<Argument>),
}

/// Parses the notation: words in capitals are tokens, others values; `[x]` is optional, `<a | b>` one of several, `x [x ...]` repeated.
pub fn parse(syntax: &str) -> Vec<Argument> {
    let spaced = syntax.replace('[', " [ ").replace(']', " ] ").replace('<', " < ").replace('>', " > ");
    let words: Vec<&str> = spaced.split_ascii_whitespace().collect();
    let mut position = 0;
    sequence(&words, &mut position)
}

fn sequence(words: &[&str], position: &mut usize) -> Vec<Argument> {
    let mut found: Vec<Argument> = Vec::new();
    while let Some(&word) = words.get(*position) {
        match word {
            "]" | ">" | "|" => break,
            "[" | "<" => {
                *position += 1;
                let mut group = alternatives(words, position);
                *position += 1;
                if is_repetition(&group, &mut found) {
                    continue;
                }
                group.optional = word == "[";
                found.push(group);
            }
            _ => {
                *position += 1;
                found.push(plain(word));
            }
        }
        join_tokens(&mut found);
    }
    found
}

/// Whether a group is the `[x ...]` after `x`: then the arguments before it are marked.
fn is_repetition(group: &Argument, found: &mut Vec<Argument>) -> bool {
    let Kind::Block(parts) = &group.kind else { return ends_repetition(group, found) };
    if parts.last().is_none_or(|last| last.name != "...") {
        return false;
    }
    let repeated = parts.len() - 1;
    let start = found.len().saturating_sub(repeated.max(1));
    let mut tail = found.split_off(start);
    if tail.len() == 1 {
        tail[0].multiple = true;
        found.append(&mut tail);
    } else {
        let name = tail.iter().map(|part| part.name.as_str()).take(2).collect::<Vec<_>>().join("-");
        found.push(Argument { name, token: None, kind: Kind::Block(tail), optional: false, multiple: true });
    }
    true
}

/// `[...]` after a group.
fn ends_repetition(group: &Argument, found: &mut [Argument]) -> bool {
    let is_dots = group.name == "...";
    if let (true, Some(last)) = (is_dots, found.last_mut()) {
        last.multiple = true;
    }
    is_dots
}

fn alternatives(words: &[&str], position: &mut usize) -> Argument {
    let mut options = vec![sequence(words, position)];
    while words.get(*position) == Some(&"|") {
        *position += 1;
        options.push(sequence(words, position));
    }
    let mut options: Vec<Argument> = options.into_iter().map(block).collect();
    match options.len() {
        1 => options.swap_remove(0),
        _ => {
            let name = options.first().map_or(String::new(), |first| first.name.clone());
            Argument { name, token: None, kind: Kind::OneOf(options), optional: false, multiple: false }
        }
    }
}

fn block(mut parts: Vec<Argument>) -> Argument {
    match parts.len() {
        1 => parts.swap_remove(0),
        _ => {
            let name = parts.first().map_or(String::new(), |first| first.name.clone());
            Argument { name, token: None, kind: Kind::Block(parts), optional: false, multiple: false }
        }
    }
}

/// Gives a token to the value after it.
fn join_tokens(found: &mut Vec<Argument>) {
    let [.., token, value] = found.as_slice() else { return };
    let joins = token.kind == Kind::Token
        && !token.optional
        && matches!(value.kind, Kind::Value(_))
        && value.token.is_none();
    if joins
        && let Some(value) = found.pop()
        && let Some(token) = found.pop()
    {
        found.push(Argument { token: token.token, ..value });
    }
}

fn plain(word: &str) -> Argument {
    let is_token = word.chars().any(|c| c.is_ascii_uppercase());
    let kind = match word {
        _ if is_token => Kind::Token,
        "key" | "newkey" | "source" | "destination" => Kind::Value("key"),
        "pattern" => Kind::Value("pattern"),
        "unix-time-seconds" | "unix-time-milliseconds" => Kind::Value("unix-time"),
        "seconds" | "milliseconds" | "count" | "numfields" | "offset" | "start" | "end" | "cursor"
        | "index" | "decrement" | "timeout" | "numreplicas" | "numlocal" | "protover" | "client-id"
        | "destination-db" => Kind::Value("integer"),
        _ => Kind::Value("string"),
    };
    Argument {
        name: word.to_ascii_lowercase(),
        token: is_token.then(|| word.to_string()),
        kind,
        optional: false,
        multiple: false,
    }
}

fn reply_argument(reply: &mut Reply<'_>, argument: &Argument) {
    let flags: Vec<&str> = [(argument.optional, "optional"), (argument.multiple, "multiple")]
        .into_iter()
        .filter_map(|(has, flag)| has.then_some(flag))
        .collect();
    let (kind, children) = match &argument.kind {
        Kind::Value(kind) => (*kind, None),
        Kind::Token => ("pure-token", None),
        Kind::OneOf(children) => ("oneof", Some(children)),
        Kind::Block(children) => ("block", Some(children)),
    };
    let shows_text = children.is_none() && kind != "pure-token";
    let pairs = 2
        + usize::from(shows_text)
        + usize::from(kind == "key")
        + usize::from(argument.token.is_some())
        + usize::from(!flags.is_empty())
        + usize::from(children.is_some());
    reply.map(pairs);
    let mut text = |name: &str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    text("name", &argument.name);
    text("type", kind);
    if shows_text {
        text("display_text", &argument.name);
    }
    if let Some(token) = &argument.token {
        text("token", token);
    }
    if kind == "key" {
        reply.bulk(b"key_spec_index");
        reply.integer(0);
    }
    if !flags.is_empty() {
        reply.bulk(b"flags");
        reply.array(flags.len());
        flags.iter().for_each(|flag| reply.status(flag));
    }
    if let Some(children) = children {
        reply.bulk(b"arguments");
        reply.array(children.len());
        children.iter().for_each(|child| reply_argument(reply, child));
    }
}

/// The map of COMMAND DOCS.
pub fn reply_docs(reply: &mut Reply<'_>, command: &Command) {
    let arguments = parse(command.syntax);
    let subcommands: Vec<&Command> = subcommands(command).collect();
    reply.map(3 + usize::from(!arguments.is_empty()) + usize::from(!subcommands.is_empty()));
    for (name, value) in [("summary", command.summary), ("since", command.since), ("group", command.group)] {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    if !arguments.is_empty() {
        reply.bulk(b"arguments");
        reply.array(arguments.len());
        arguments.iter().for_each(|argument| reply_argument(reply, argument));
    }
    if !subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(subcommands.len());
        for sub in subcommands {
            reply.bulk(sub.full_name().as_bytes());
            reply_docs(reply, sub);
        }
    }
}

/// The flags COMMAND INFO shows.
fn flags(command: &Command) -> Vec<&'static str> {
    let shown = [
        (Flag::Write, "write"),
        (Flag::Read, "readonly"),
        (Flag::Fast, "fast"),
        (Flag::Admin, "admin"),
        (Flag::NoAuth, "no_auth"),
        (Flag::NoMulti, "no_multi"),
        (Flag::SkipSlowlog, "skip_slowlog"),
    ];
    shown.into_iter().filter_map(|(flag, name)| command.is(flag).then_some(name)).collect()
}

/// The ACL categories of a command, without the `@`.
pub fn categories(command: &Command) -> Vec<&'static str> {
    let mut found = Vec::new();
    for (flag, name) in [(Flag::Write, "write"), (Flag::Read, "read"), (Flag::Admin, "admin")] {
        if command.is(flag) {
            found.push(name);
        }
    }
    if command.is(Flag::Admin) {
        found.push("dangerous");
    }
    found.push(if command.is(Flag::Fast) { "fast" } else { "slow" });
    match command.group {
        "generic" => found.push("keyspace"),
        "transactions" => found.push("transaction"),
        "connection" | "string" | "hash" => found.push(command.group),
        _ => {}
    }
    found
}

/// The array of COMMAND INFO.
pub fn reply_info(reply: &mut Reply<'_>, command: &Command) {
    let (first, last, step) = command.keys;
    let subcommands: Vec<&Command> = subcommands(command).collect();
    reply.array(10);
    reply.bulk(command.full_name().as_bytes());
    reply.integer(command.arity.into());
    let flags = flags(command);
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.status(flag));
    reply.integer(first.into());
    reply.integer(last.into());
    reply.integer(step.into());
    let categories = categories(command);
    reply.set(categories.len());
    categories.iter().for_each(|category| reply.status(&format!("@{category}")));
    reply.array(0);
    match first {
        0 => reply.array(0),
        _ => {
            reply.array(1);
            reply_key_spec(reply, command);
        }
    }
    reply.array(subcommands.len());
    subcommands.into_iter().for_each(|sub| reply_info(reply, sub));
}

fn reply_key_spec(reply: &mut Reply<'_>, command: &Command) {
    let (first, last, step) = command.keys;
    let span = if last < 0 { last } else { last - first };
    reply.map(3);
    reply.bulk(b"flags");
    reply.set(1);
    reply.status(if command.is(Flag::Write) { "RW" } else { "RO" });
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.integer(first.into());
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    for (name, value) in [("lastkey", span), ("keystep", step), ("limit", 0)] {
        reply.bulk(name.as_bytes());
        reply.integer(value.into());
    }
}

/// What `docs/commands.md` says before its tables.
const HEAD: &str = "# Commands\n\n\
    Made from the table of commands in `crates/tool/src/serve/commands/registry.rs`; \
    `hedgerow commands > docs/commands.md` makes it again.\n\n\
    Replies and error texts are those of Redis 8 (RESP2 and RESP3). A hash `users:42` is row `42` of table `users`; \
    `HR.*` commands are Hedgerow's own.\n\n\
    Not supported, answered with Redis's `ERR unknown command`: lists, sets, sorted sets, streams, bitmaps, \
    HyperLogLog, geo, vector sets, pub/sub, scripts and functions (but `FUNCTION FLUSH`), ACL users, replication, cluster, modules, \
    `BGREWRITEAOF`, `DEBUG`, `DUMP`, `LCS`, `LOLWUT`, `MIGRATE`, `MONITOR`, `MOVE`, `RESTORE`, `SORT`, `SORT_RO`, `SWAPDB`; and with \
    `ERR unknown subcommand`: `COMMAND GETKEYSANDFLAGS`, `LATENCY GRAPH`, `LATENCY HISTOGRAM`, `MEMORY DOCTOR`, \
    `MEMORY MALLOC-STATS`, `MEMORY PURGE`, `MEMORY STATS`. `BGREWRITEAOF` would have nothing to do: the log is rewritten by itself, whatever `aof_enabled` says.\n\n\
    `INCRBYFLOAT` and `HINCRBYFLOAT` add decimals of up to 38 digits, at most 17 of them behind the point, exactly: 128 and 0.1 are `128.1`. Redis \
    computes in 80 bits and writes up to 17 digits behind the point: `128.10000000000000001`. Other numbers are added as 64-bit floating point, and their sum \
    has the fewest digits that read back as it, without an exponent (1e-20 is told as 0 by Redis); a sum beyond 1.8e308 is refused, and so is a \
    hexadecimal number.\n\n\
    `CONFIG SET` takes `client-output-buffer-limit`, `hash-max-listpack-entries`, `hash-max-listpack-value` (and \
    `hash-max-ziplist-entries`, `hash-max-ziplist-value`, which are the same), `latency-monitor-threshold`, `maxclients`, \
    `maxmemory-clients` (a number, 1,048,576 at the least), `requirepass`, `slowlog-log-slower-than`, `slowlog-max-len` and `timeout`, until the server ends; all else \
    that `CONFIG GET` shows was said on the command line, or is fixed. Of `client-output-buffer-limit` the class `normal` \
    counts, with limits above 0: there is no unlimited. `slave`, `replica` and `pubsub` are read and have no effect, for there are no such clients.\n\n\
    A key has 1 to 65,536 bytes, the name of a field up to 65,527, a string or a hash's row up to 64 MiB, a command up to 256 MiB and 1,048,576 \
    arguments, a transaction up to 256 MiB and 1,048,576 commands; one that would have more is refused by its `EXEC`. A client watches up to 16,384 keys, \
    and its name has up to 1,024 bytes. `WATCH` sees every change of a key, also one that is undone before `EXEC`, and its expiry and that of its fields.\n\n\
    A reply has at most the bytes of the hard limit of `client-output-buffer-limit` (256 MiB unless \
    set); a larger one is an error, and what the command would have changed stays as it is. `SCAN` and \
    `HSCAN` pass at most 16,384 keys or fields a call, whatever their `COUNT`, and end after 16 MiB of them. \
    A `SCAN` may miss a string that becomes a hash meanwhile (by `RENAME`, `COPY` or one `EXEC`), and no other key that is there throughout. A pattern \
    has at most 4,096 bytes, as have all of a `CONFIG GET` together. `COPY` and `RENAME` of a hash of more than 192 MiB are \
    refused, and an `EXEC` or `MSET` that would write more than 256 MiB at once.\n\n\
    Most commands take a time that does not depend on how many keys and fields there are, but for the \
    logarithm. `APPEND` and `SETRANGE` write the whole value again, however little is added to it. These look at all of what they name, while other clients wait: `KEYS` (all keys), \
    `HGETALL`, `HKEYS`, `HVALS`, `HRANDFIELD`, `MEMORY USAGE`, `RENAME` and `COPY` \
    (the fields of the hash), `HLEN` and `WATCH` of a hash whose fields may expire, \
    `HR.SCAN` (up to its `LIMIT`, and rows of which all fields have expired). \
    Use `SCAN`, `HSCAN` and a `LIMIT` on what is large. After 10 ms of commands of one connection the \
    others have their turn.\n\n\
    `EXEC` is atomic for other clients always. Against a crash it is atomic when each of its writes is marked *batch* \
    below and no command touches a key that an earlier one of the transaction wrote, but for `EXPIRE`, its kin and \
    `PERSIST`, which may; otherwise its writes are durable one by one, in order.\n\n\
    A server started with `--read-only` answers what writes, and `SAVE`, `BGSAVE`, `WAIT` and `WAITAOF`, with `READONLY`, \
    as a replica of Redis does. What has expired is hidden, not removed, and so still counted by `DBSIZE`.\n\n\
    Of a store with sorted tables `DBSIZE`, and `keys` in the keyspace of `INFO`, is an estimate: a key there that was \
    written again or deleted since counts, besides what was written, until both are merged. It is never too low, \
    and exact where nothing that had left the log was written again or deleted.\n\n\
    A store of pairs on key-value devices or in memory (`--store kvssd:`, `memory:`) changes the keys of a \
    command or an `EXEC` together, watched ones being conditions; one in a pool (`pool:`) changes one key at a \
    time: there a command or an `EXEC` that changes a key and has other keys, watched ones included, is refused \
    with `CROSSSLOT`, and nothing was changed. In all of them an `EXEC` is refused so that changes a key and has \
    `KEYS`, `SCAN`, `DBSIZE` or another command that reads no key in particular, or has `FLUSHALL` behind a \
    command with a key. \
    Commands of several clients that change one key at the \
    same time are stored together, so what goes wrong with that is told to each of them. `WATCH` compares there what is in the key: a change that leaves it absent as it was \
    is none. `HR.SCAN` and `HR.BACKUP` are refused; so are `SAVE`, `BGSAVE`, `WAIT` and `WAITAOF` in memory and in a pool, which keep \
    nothing: on devices they flush all of them, and `LASTSAVE` says when one of these commands last did, or when the server began.\n";

/// The text of `docs/commands.md`.
pub fn markdown() -> String {
    let mut text = HEAD.to_string();
    let mut group = "";
    for command in all() {
        if command.group != group {
            group = command.group;
            text.push_str(&format!("\n## {group}\n\n| command | arguments | since | |\n|---|---|---|---|\n"));
        }
        let is_container = subcommands(command).next().is_some();
        if is_container && command.syntax.is_empty() && command.full_name() != "command" {
            continue;
        }
        let name = command.full_name().replace('|', " ").to_ascii_uppercase();
        let syntax = command.syntax.replace('|', "\\|").replace('<', "&lt;");
        let batch = if command.is(Flag::Batch) { " *batch*" } else { "" };
        let line = writeln!(text, "| {name} | {syntax} | {} | {}{batch} |", command.since, command.summary);
        debug_assert!(line.is_ok(), "a String takes every write");
    }
    text
}

#[cfg(test)]
mod tests;
