//! Commands on the server itself.

use std::fmt::Write;

use super::docs;
use super::{all, by_name, is_word, subcommands};
use crate::serve::command::Command;
use crate::serve::failure::{Failure, Outcome, quote};
use crate::serve::glob;
use crate::serve::limits;
use crate::serve::number;
use crate::serve::resp::Args;
use crate::serve::server::{Context, Shutdown};
use crate::serve::settings::PARAMETERS;

mod info;

pub use info::{info, metrics};

/// The version of Redis whose commands these are: what clients go by.
pub const REDIS_VERSION: &str = "8.0.0";

/// A container called without a subcommand: its arity forbids that, so that nothing gets here.
pub fn container(_context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let name = String::from_utf8_lossy(args.at(0)).to_ascii_lowercase();
    Err(Failure::new(format!("ERR wrong number of arguments for '{name}' command")))
}

/// HELP of any container: its subcommands from the table.
pub fn help(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let Some(parent) = by_name(args.at(0)) else { return Err(Failure::SYNTAX) };
    let name = parent.full_name().to_ascii_uppercase();
    let mut lines = vec![format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")];
    for command in subcommands(parent) {
        let sub = command.full_name().split('|').next_back().unwrap_or("").to_ascii_uppercase();
        lines.push(format!("{sub} {}", command.syntax).trim_end().to_string());
        lines.push(format!("    {}", command.summary));
    }
    context.reply.array(lines.len());
    lines.iter().for_each(|line| context.reply.status(line));
    Ok(())
}

/// DBSIZE
pub fn dbsize(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let len = context.server.keyspace.len(context.db())?;
    context.reply.integer(len as i64);
    Ok(())
}

fn check_flush_mode(args: Args<'_>, at: usize) -> Outcome<()> {
    match (args.len() - at, args.get(at)) {
        (0, _) => Ok(()),
        (1, Some(word)) if is_word(word, "SYNC") || is_word(word, "ASYNC") => Ok(()),
        _ => Err(Failure::SYNTAX),
    }
}

/// FLUSHDB [ASYNC | SYNC]
pub fn flushdb(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    check_flush_mode(args, 1)?;
    let db = context.db();
    context.server.keyspace.clear(db..db + 1)?;
    context.reply.ok();
    Ok(())
}

/// FLUSHALL [ASYNC | SYNC]
pub fn flushall(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    check_flush_mode(args, 1)?;
    context.server.keyspace.clear(0..limits::DATABASES)?;
    context.reply.ok();
    Ok(())
}

/// FUNCTION FLUSH [ASYNC | SYNC]
pub fn function_flush(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    check_flush_mode(args, 2)?;
    context.reply.ok();
    Ok(())
}

/// ROLE
pub fn role(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.reply.array(3);
    context.reply.bulk(b"master");
    context.reply.integer(0);
    context.reply.array(0);
    Ok(())
}

/// TIME
pub fn time(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    context.reply.array(2);
    context.reply.bulk_display(now.as_secs());
    context.reply.bulk_display(now.subsec_micros());
    Ok(())
}

/// SAVE
pub fn save(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.server.check_durable()?;
    context.server.check_writable()?;
    context.session().reply_needs_sync = true;
    context.server.wants_save = true;
    context.reply.ok();
    Ok(())
}

/// BGSAVE [SCHEDULE]
pub fn bgsave(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    if args.len() > 2 || args.get(1).is_some_and(|word| !is_word(word, "SCHEDULE")) {
        return Err(Failure::SYNTAX);
    }
    context.server.check_durable()?;
    context.server.check_writable()?;
    context.server.wants_background_sync = true;
    context.reply.status("Background saving started");
    Ok(())
}

/// LASTSAVE
pub fn lastsave(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.reply.integer(context.server.last_save_s as i64);
    Ok(())
}

/// WAIT numreplicas timeout
pub fn wait(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    for text in [args.at(1), args.at(2)] {
        number::parse_i64(text).filter(|n| *n >= 0).ok_or(Failure::NOT_AN_INTEGER)?;
    }
    context.server.check_durable()?;
    context.server.check_writable()?;
    context.session().reply_needs_sync = true;
    context.reply.integer(0);
    Ok(())
}

/// WAITAOF numlocal numreplicas timeout
pub fn waitaof(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let local = number::parse_i64(args.at(1)).filter(|n| (0..=1).contains(n));
    local.ok_or(Failure::text("ERR value is out of range, value must between 0 and 1"))?;
    for text in [args.at(2), args.at(3)] {
        number::parse_i64(text).filter(|n| *n >= 0).ok_or(Failure::NOT_AN_INTEGER)?;
    }
    context.server.check_durable()?;
    context.server.check_writable()?;
    context.session().reply_needs_sync = true;
    context.reply.array(2);
    context.reply.integer(1);
    context.reply.integer(0);
    Ok(())
}

/// SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT]
pub fn shutdown(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    for word in args.from(1).iter() {
        if is_word(word, "ABORT") {
            return Err(Failure::text("ERR No shutdown in progress."));
        }
        if !["NOSAVE", "SAVE", "NOW", "FORCE"].iter().any(|known| is_word(word, known)) {
            return Err(Failure::SYNTAX);
        }
    }
    context.server.shutdown = Some(Shutdown::Orderly);
    context.session().is_closing = true;
    Ok(())
}

/// CONFIG GET parameter [parameter ...]
pub fn config_get(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    glob::check_bytes(args.from(2).iter().map(<[u8]>::len).sum())?;
    let patterns: Vec<Vec<u8>> = args.from(2).iter().map(<[u8]>::to_ascii_lowercase).collect();
    let is_wanted = |name: &&&str| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes()));
    let found: Vec<(&str, String)> = PARAMETERS
        .iter()
        .filter(is_wanted)
        .filter_map(|name| Some((*name, context.server.settings.get(name)?)))
        .collect();
    context.reply.map(found.len());
    for (name, value) in found {
        context.reply.bulk(name.as_bytes());
        context.reply.bulk(value.as_bytes());
    }
    Ok(())
}

/// CONFIG SET parameter value [parameter value ...]
pub fn config_set(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    if !args.len().is_multiple_of(2) {
        return Err(Failure::text("ERR wrong number of arguments for 'config|set' command"));
    }
    let mut changed = context.server.settings.clone();
    for index in (2..args.len()).step_by(2) {
        let name = String::from_utf8_lossy(args.at(index)).to_ascii_lowercase();
        if (2..index).step_by(2).any(|earlier| args.at(earlier).eq_ignore_ascii_case(args.at(index))) {
            return Err(Failure::new(format!(
                "ERR CONFIG SET failed (possibly related to argument '{}') - duplicate parameter",
                quote(args.at(index))
            )));
        }
        changed.set(&name, args.at(index + 1)).map_err(|reason| {
            let name = quote(args.at(index));
            Failure::new(match reason.as_str() {
                "unknown" => {
                    format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
                }
                reason => format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}"),
            })
        })?;
    }
    context.server.settings = changed;
    let len = context.server.settings.slowlog_len;
    context.server.slowlog.truncate(len);
    context.reply.ok();
    Ok(())
}

/// CONFIG RESETSTAT
pub fn config_resetstat(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.server.reset_counters();
    context.reply.ok();
    Ok(())
}

/// CONFIG REWRITE
pub fn config_rewrite(_context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    Err(Failure::text("ERR The server is running without a config file"))
}

/// SLOWLOG GET [count]
pub fn slowlog_get(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let count = match args.get(2) {
        None => 10,
        Some(text) => match number::parse_i64(text) {
            Some(-1) => usize::MAX,
            Some(count) if count >= 0 => count as usize,
            _ => return Err(Failure::text("ERR count should be greater than or equal to -1")),
        },
    };
    let log = &context.server.slowlog;
    context.reply.array(log.entries().len().min(count));
    for entry in log.entries().take(count) {
        context.reply.array(6);
        context.reply.integer(entry.id as i64);
        context.reply.integer(entry.at_s as i64);
        context.reply.integer(entry.microseconds as i64);
        context.reply.array(entry.args.len());
        entry.args.iter().for_each(|argument| context.reply.bulk(argument));
        context.reply.bulk(entry.address.as_bytes());
        context.reply.bulk(&entry.name);
    }
    Ok(())
}

/// SLOWLOG LEN
pub fn slowlog_len(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.reply.integer(context.server.slowlog.entries().len() as i64);
    Ok(())
}

/// SLOWLOG RESET
pub fn slowlog_reset(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.server.slowlog.clear();
    context.reply.ok();
    Ok(())
}

/// LATENCY LATEST
pub fn latency_latest(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let latency = &context.server.latency;
    match latency.samples.back() {
        None => context.reply.array(0),
        Some(&(at_s, ms)) => {
            context.reply.array(1);
            context.reply.array(4);
            context.reply.bulk(b"command");
            context.reply.integer(at_s as i64);
            context.reply.integer(ms as i64);
            context.reply.integer(latency.max_ms as i64);
        }
    }
    Ok(())
}

/// LATENCY HISTORY event
pub fn latency_history(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    if !is_word(args.at(2), "command") {
        context.reply.array(0);
        return Ok(());
    }
    let samples = &context.server.latency.samples;
    context.reply.array(samples.len());
    for &(at_s, ms) in samples {
        context.reply.array(2);
        context.reply.integer(at_s as i64);
        context.reply.integer(ms as i64);
    }
    Ok(())
}

/// LATENCY RESET [event [event ...]]
pub fn latency_reset(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let is_named = args.len() == 2 || args.from(2).iter().any(|event| is_word(event, "command"));
    let had_samples = !context.server.latency.samples.is_empty();
    if is_named {
        context.server.latency = Default::default();
    }
    context.reply.integer(i64::from(is_named && had_samples));
    Ok(())
}

/// LATENCY DOCTOR
pub fn latency_doctor(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let latency = &context.server.latency;
    let mut text = String::new();
    let written = match (context.server.settings.latency_ms, latency.samples.len()) {
        (0, _) => {
            writeln!(text, "Latency is not monitored. CONFIG SET latency-monitor-threshold <ms> starts it.")
        }
        (_, 0) => writeln!(text, "No command took longer than latency-monitor-threshold."),
        (ms, count) => {
            writeln!(text, "{count} commands took {ms} ms or longer, the worst {} ms.", latency.max_ms)
        }
    };
    debug_assert!(written.is_ok(), "a String takes every write");
    context.reply.verbatim(text.as_bytes());
    Ok(())
}

/// COMMAND
pub fn command(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let commands: Vec<&Command> = all().iter().filter(|command| command.parent().is_none()).collect();
    context.reply.array(commands.len());
    commands.into_iter().for_each(|command| docs::reply_info(&mut context.reply, command));
    Ok(())
}

/// COMMAND COUNT
pub fn command_count(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.reply.integer(all().iter().filter(|command| command.parent().is_none()).count() as i64);
    Ok(())
}

/// COMMAND INFO [command-name [command-name ...]]
pub fn command_info(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    if args.len() == 2 {
        return command(context, args);
    }
    context.reply.array(args.len() - 2);
    for name in args.from(2).iter() {
        match by_name(name) {
            Some(command) => docs::reply_info(&mut context.reply, command),
            None => context.reply.null_array(),
        }
        context.reply.check(0)?;
    }
    Ok(())
}

/// COMMAND DOCS [command-name [command-name ...]]
pub fn command_docs(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let commands: Vec<&Command> = match args.len() {
        2 => all().iter().filter(|command| command.parent().is_none()).collect(),
        _ => args.from(2).iter().filter_map(by_name).collect(),
    };
    context.reply.map(commands.len());
    for command in commands {
        context.reply.bulk(command.full_name().as_bytes());
        docs::reply_docs(&mut context.reply, command);
        context.reply.check(0)?;
    }
    Ok(())
}

/// COMMAND LIST [FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]
pub fn command_list(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (kind, value) = match args.len() {
        2 => (&b"PATTERN"[..], &b"*"[..]),
        5 if is_word(args.at(2), "FILTERBY") => (args.at(3), args.at(4)),
        _ => return Err(Failure::SYNTAX),
    };
    let is_wanted: Box<dyn Fn(&Command) -> bool> = match kind {
        _ if is_word(kind, "PATTERN") => {
            let pattern = glob::checked(value)?.to_ascii_lowercase();
            Box::new(move |command| glob::matches(&pattern, command.full_name().as_bytes()))
        }
        _ if is_word(kind, "ACLCAT") => {
            let category = value.to_ascii_lowercase();
            Box::new(move |command| docs::categories(command).iter().any(|has| has.as_bytes() == category))
        }
        _ if is_word(kind, "MODULE") => Box::new(|_| false),
        _ => return Err(Failure::SYNTAX),
    };
    let found: Vec<&Command> = all().iter().filter(|command| is_wanted(command)).collect();
    context.reply.array(found.len());
    found.into_iter().for_each(|command| context.reply.bulk(command.full_name().as_bytes()));
    Ok(())
}

/// COMMAND GETKEYS command [arg [arg ...]]
pub fn command_getkeys(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let inner = args.from(2);
    let super::Lookup::Found(command) = super::look_up(inner) else {
        return Err(Failure::text("ERR Invalid command specified"));
    };
    if command.keys.0 == 0 {
        return Err(Failure::text("ERR The command has no key arguments"));
    }
    if !command.accepts(inner.len()) {
        return Err(Failure::text("ERR Invalid number of arguments specified for command"));
    }
    let keys: Vec<&[u8]> = command.keys_of(inner).collect();
    context.reply.array(keys.len());
    keys.into_iter().for_each(|key| context.reply.bulk(key));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::command::Flag;

    #[test]
    fn secrets_stay_out_of_the_slow_log() {
        for name in ["auth", "hello", "config|set"] {
            assert!(by_name(name.as_bytes()).unwrap().is(Flag::SkipSlowlog), "{name}");
        }
    }
}
