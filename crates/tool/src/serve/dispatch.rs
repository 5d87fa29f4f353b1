//! The way a command goes: look up, check, queue or do, account.
//!
//! Promises: whatever a command does, exactly one reply (or none, where the client asked for none) is appended for it, and a
//! failed command leaves no half reply. Must not know sockets.

use std::time::{Duration, Instant};

use super::command::{Command, Flag};
use super::commands::{self, Lookup};
use super::failure::{Failure, Outcome};
use super::keyspace::pairs::attempt::Step;
use super::keyspace::wants::{Tries, Wants};
use super::keyspace::{Keyspace, check_key};
use super::limits;
use super::pipeline_peek::PeekedCommand;
use super::reply::Reply;
use super::resp::Args;
use super::server::{Context, Server};
use super::session::{HeldReply, Multi, Queued, ReplyMode, Session};

/// Does one command of `client`, of which something may be known already, and appends its reply to `out`; says when it
/// ended, given when it started. With `waits_for` set by it, nothing was done, and the command is to be given again.
pub fn execute(
    server: &mut Server,
    client: usize,
    args: Args<'_>,
    peeked: PeekedCommand<'_>,
    out: &mut Vec<u8>,
    started: Instant,
) -> Instant {
    let session = &mut server.sessions[client];
    if session.held.is_some() {
        return tell_held(server, client, args, out);
    }
    let start = out.len();
    session.reply_needs_sync = false;
    let resp3 = session.resp3;
    let at_hand_only =
        server.keyspace.begin_command(session.tries, &mut session.brought, &mut session.attempt);
    let reply = Reply::bounded(out, resp3, server.settings.output.hard);
    let mut context = Context { server: &mut *server, client, reply, prefetched: peeked.prefetched };
    let ran = run(&mut context, peeked.command, args);
    drop(at_hand_only);
    if let Some(wants) = context.server.keyspace.end_command(|| ran.is_ok()) {
        return put_off(server, client, wants, ran, out, (start, started));
    }
    let done = match ran {
        Ok(done) => done,
        Err(Failed { command, ran, failure }) => {
            context.reply.truncate(start);
            if failure == Failure::CROSS_PROTOCOL {
                server.refuse_cross_protocol(client);
                return Instant::now();
            }
            context.reply.error(failure.as_str());
            server.counters.errors.count(failure.as_str());
            if let Some(command) = command {
                let calls = &mut server.calls[command.index()];
                *(if ran { &mut calls.failed } else { &mut calls.rejected }) += 1;
            }
            command.filter(|_| ran)
        }
    };
    let ended = Instant::now();
    let wrote = server.keyspace.finish_command();
    complete(server, client, args, Completed { command: done, took: ended - started, wrote, start }, out);
    ended
}

/// Has a command wait for what it wants: its reply, which began at `start`, is held, or forgotten if the command is to be given again. Apart from
/// the way of a command that lacks nothing, which is not to pay for it.
#[cold]
#[inline(never)]
fn put_off(
    server: &mut Server,
    client: usize,
    wants: Wants,
    ran: Result<Option<&'static Command>, Failed>,
    out: &mut Vec<u8>,
    (start, started): (usize, Instant),
) -> Instant {
    let ended = Instant::now();
    let before = server.look_ups_before.take();
    let look_ups = before.map(|before| server.take_back_look_ups(before)).unwrap_or_default();
    if matches!(wants, Wants::Step(_, Step::Commit | Step::Check)) {
        let session = &mut server.sessions[client];
        let (command, failure) = match ran {
            Ok(command) => (command, None),
            Err(Failed { command, failure, .. }) => (command, Some(failure)),
        };
        if let Some(failure) = &failure {
            // It saw what another is about to store.
            out.truncate(start);
            Reply::new(out, session.resp3).error(failure.as_str());
        }
        let (reply, exec, took) = (out.split_off(start), session.ran.take(), ended - started);
        session.held = Some(HeldReply { reply, command, took, failure, exec, look_ups });
    } else {
        out.truncate(start);
    }
    server.put_off(client, wants);
    ended
}

/// Appends the reply that waited for the changes of its command.
#[cold]
#[inline(never)]
fn tell_held(server: &mut Server, client: usize, args: Args<'_>, out: &mut Vec<u8>) -> Instant {
    let start = out.len();
    if let Some(held) = server.sessions[client].held.take() {
        out.extend_from_slice(&held.reply);
        server.count_look_ups(held.look_ups);
        if let Some(failure) = &held.failure {
            server.counters.errors.count(failure.as_str());
            held.command.iter().for_each(|command| server.calls[command.index()].failed += 1);
        }
        if let Some(ran) = &held.exec {
            server.count_tally(&ran.tally);
            server.unwatch(client);
        }
        let completed = Completed { command: held.command, took: held.took, wrote: true, start };
        complete(server, client, args, completed, out);
    }
    Instant::now()
}

/// A command that has been answered.
struct Completed {
    /// If it was done.
    command: Option<&'static Command>,
    took: Duration,
    wrote: bool,
    /// Where its reply begins.
    start: usize,
}

/// Accounts for a command, and sees to what becomes of its reply. A call of it costs as much as a third of what it does.
#[inline(always)]
fn complete(server: &mut Server, client: usize, args: Args<'_>, completed: Completed, out: &mut Vec<u8>) {
    let Completed { command, took, wrote, start } = completed;
    server.counters.commands += 1;
    if let Some(command) = command {
        server.account(client, command, args, took);
    }
    let session = &mut server.sessions[client];
    session.tries = Tries::default();
    let needs_sync = session.reply_needs_sync || wrote && server.settings.sync_writes;
    match session.reply_mode {
        ReplyMode::On => {}
        ReplyMode::Off => out.truncate(start),
        ReplyMode::SkipNext => {
            session.reply_mode = ReplyMode::Skip;
            out.truncate(start);
        }
        ReplyMode::Skip => {
            session.reply_mode = ReplyMode::On;
            out.truncate(start);
        }
    }
    if needs_sync {
        session.unsynced.push(start..out.len());
    }
}

/// Whether this command of a client waits while the server is paused.
pub fn pauses(server: &Server, client: usize, args: Args<'_>) -> bool {
    let Some(pause) = server.paused else { return false };
    match commands::look_up(args) {
        Lookup::Found(command) if command.full_name().starts_with("client") => false,
        Lookup::Found(command) if pause.writes_only && command.full_name() == "exec" => {
            let multi = server.sessions[client].multi.as_ref();
            multi.is_some_and(|multi| multi.queue.iter().any(|queued| queued.command.is(Flag::Write)))
        }
        Lookup::Found(command) => !pause.writes_only || command.is(Flag::Write),
        _ => false,
    }
}

/// Records which command a client waits with.
pub fn record_waiting(server: &mut Server, client: usize, args: Args<'_>) {
    if let Lookup::Found(command) = commands::look_up(args) {
        server.sessions[client].last_command = command.full_name();
    }
}

/// A command that ended in an error.
struct Failed {
    /// If there is such a command.
    command: Option<&'static Command>,
    /// Whether it was tried, and not refused before.
    ran: bool,
    failure: Failure,
}

/// Does or queues a command; which one it was, if it was done.
fn run(
    context: &mut Context<'_>,
    peeked: Option<&'static Command>,
    args: Args<'_>,
) -> Result<Option<&'static Command>, Failed> {
    let unknown = |failure| Failed { command: None, ran: false, failure };
    let command = match commands::look_up_peeked(peeked, args) {
        Lookup::Found(command) => command,
        Lookup::Unknown if commands::is_http(args) => return Err(unknown(Failure::CROSS_PROTOCOL)),
        Lookup::Unknown => return Err(unknown(refuse(context, commands::unknown_command(args)))),
        Lookup::UnknownSub(parent) => {
            return Err(unknown(refuse(context, commands::unknown_subcommand(parent, args))));
        }
    };
    context.session().last_command = command.full_name();
    let failed = |ran| move |failure| Failed { command: Some(command), ran, failure };
    check(context, command, args).map_err(failed(false))?;
    if context.server.sessions[context.client].multi.is_some() && !command.is(Flag::NoQueue) {
        queue(context, command, args).map_err(failed(false))?;
        return Ok(None);
    }
    if let Keyspace::Pairs(_) = context.server.keyspace {
        prepare_attempt(context, command, args).map_err(failed(true))?;
    }
    commands::call(context, command, args).map_err(failed(true))?;
    Ok(Some(command))
}

/// Has the keys of a command at a store of pairs fetched together, unless it is known that it can not be done. One that changes one key goes together with
/// others that do.
#[cold]
#[inline(never)]
fn prepare_attempt(context: &mut Context<'_>, command: &'static Command, args: Args<'_>) -> Outcome<()> {
    context.server.look_ups_before = Some(context.server.look_ups());
    let Server { keyspace, group_commit, sessions, .. } = &mut *context.server;
    let session = &sessions[context.client];
    let (space, changed) = (session.db, changed_key(session, command, args));
    if let Keyspace::Pairs(keys) = keyspace {
        if let Some(key) = changed
            && !group_commit.enter(space, key, keys.attempt_mut())
        {
            return Err(Failure::NOT_YET);
        }
        match &session.multi {
            // Those of its commands, which must not be looked for in other databases than they are in.
            Some(multi) if command.full_name() == "exec" && !multi.selects() => {
                keys.prefetch(space, multi.keys());
            }
            _ => keys.prefetch(space, command.keys_of(args)),
        }
    }
    // A transaction has its turn, but goes on from what is stored: it may have to find out that a watched key was changed, or be refused as a whole.
    let may_follow = changed.is_some() && command.is(Flag::Write);
    if let Some(failure) = context.server.take_failure(context.client, command) {
        return Err(failure);
    }
    if let (true, Keyspace::Pairs(keys)) = (may_follow, &mut context.server.keyspace) {
        context.server.group_commit.follow(keys.attempt_mut());
    }
    Ok(())
}

/// The key that a command or transaction of a client changes, if it has one key only, watched ones included.
fn changed_key<'a>(session: &'a Session, command: &Command, args: Args<'a>) -> Option<&'a [u8]> {
    let key = match &session.multi {
        Some(multi) if command.full_name() == "exec" => {
            let writes = multi.queue.iter().any(|queued| queued.command.is(Flag::Write));
            let is_of_db = !multi.selects() && session.watched.iter().all(|(space, ..)| space == session.db);
            let watched = session.watched.iter().map(|(_, key, _)| key);
            // One without a key is about tables, and takes its time.
            let is_long = |queued: &Queued| {
                queued.command.is(Flag::Write)
                    && queued.command.keys_of(queued.args.borrow()).next().is_none()
            };
            let is_short = !multi.queue.iter().any(is_long);
            only(multi.keys().chain(watched)).filter(|_| writes && is_of_db && is_short)
        }
        _ if command.is(Flag::Write) => only(command.keys_of(args)),
        _ => None,
    };
    // One that cannot be is refused by the command, and not remembered.
    key.filter(|key| check_key(key).is_ok())
}

/// The one key, however often it comes.
fn only<'a>(mut keys: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let key = keys.next()?;
    keys.all(|other| other == key).then_some(key)
}

/// Marks an open transaction as broken by a command that could not be queued.
fn refuse(context: &mut Context<'_>, failure: Failure) -> Failure {
    if let Some(multi) = &mut context.session().multi {
        multi.is_broken = true;
    }
    failure
}

/// Whether a command may be done.
#[inline]
fn check(context: &mut Context<'_>, command: &'static Command, args: Args<'_>) -> Outcome<()> {
    if !command.accepts(args.len()) {
        let name = command.full_name();
        return Err(refuse(
            context,
            Failure::new(format!("ERR wrong number of arguments for '{name}' command")),
        ));
    }
    if !context.server.sessions[context.client].is_authenticated() && !command.is(Flag::NoAuth) {
        return Err(refuse(context, Failure::text("NOAUTH Authentication required.")));
    }
    if command.is(Flag::Write)
        && let Err(failure) = context.server.check_writable()
    {
        return Err(refuse(context, failure));
    }
    Ok(())
}

fn queue(context: &mut Context<'_>, command: &'static Command, args: Args<'_>) -> Outcome<()> {
    if command.is(Flag::NoMulti) {
        return Err(refuse(context, Failure::text("ERR Command not allowed inside a transaction")));
    }
    let Some(multi) = &mut context.session().multi else { return Ok(()) };
    // A broken one will never run: nothing of it is kept.
    if !multi.is_broken {
        let args = args.to_owned();
        let bytes = multi.bytes + args.bytes();
        if multi.queue.len() >= limits::QUEUED_COMMANDS_MAX || bytes > limits::COMMAND_BYTES_MAX {
            *multi = Multi { is_broken: true, ..Multi::default() };
            return Err(Failure::new(format!(
                "ERR a transaction has at most {} commands, of {} bytes together",
                limits::QUEUED_COMMANDS_MAX,
                limits::COMMAND_BYTES_MAX
            )));
        }
        multi.bytes = bytes;
        multi.queue.push(Queued { command, args });
    }
    context.reply.status("QUEUED");
    Ok(())
}

#[cfg(test)]
mod tests;
