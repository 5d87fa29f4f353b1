//! MULTI, EXEC, WATCH.
//!
//! One thread does all commands, so that nothing comes between those of a transaction. Against crashes a transaction is whole when all its
//! writes can go into one batch of the engine: every writing command is one marked `Batch` in the table, and no key that one
//! command wrote is touched by a later one (a batch can not be read before it is written), unless that one is marked `Follows`.
//! Others are written one by one.

use std::collections::HashSet;
use std::time::Instant;

use super::call;
use crate::serve::command::{Command, Flag};
use crate::serve::failure::{Failure, Outcome};
use crate::serve::keyspace::{Keyspace, Kind};
use crate::serve::limits;
use crate::serve::resp::Args;
use crate::serve::server::Context;
use crate::serve::session::{Multi, Queued, Ran};
use crate::serve::stats::Tally;

/// MULTI
pub fn multi(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let session = context.session();
    if session.multi.is_some() {
        return Err(Failure::text("ERR MULTI calls can not be nested"));
    }
    session.multi = Some(Multi::default());
    context.reply.ok();
    Ok(())
}

/// DISCARD
pub fn discard(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let session = context.session();
    if session.multi.take().is_none() {
        return Err(Failure::text("ERR DISCARD without MULTI"));
    }
    context.server.unwatch(context.client);
    context.reply.ok();
    Ok(())
}

/// WATCH key [key ...]
pub fn watch(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    if context.session().multi.is_some() {
        return Err(Failure::text("ERR WATCH inside MULTI is not allowed"));
    }
    for (n, key) in args.from(1).iter().enumerate() {
        let watched = &context.session().watched;
        if watched.contains(db, key) {
            continue;
        }
        if watched.len() >= limits::WATCHED_KEYS_MAX {
            return Err(Failure::text("ERR too many keys watched by one client"));
        }
        let watched = context.server.keyspace.watch(db, key).inspect_err(|_| {
            // If it is that something lacks, what the others lack is brought with it.
            context.server.keyspace.look_ahead(db, args.from(n + 2).iter()).ok();
        })?;
        context.session().watched.insert(db, key, watched);
    }
    context.reply.ok();
    Ok(())
}

/// UNWATCH
pub fn unwatch(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    context.server.unwatch(context.client);
    context.reply.ok();
    Ok(())
}

/// EXEC
pub fn exec(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let session = context.session();
    let Some(multi) = session.multi.take() else {
        return Err(Failure::text("ERR EXEC without MULTI"));
    };
    if multi.is_broken {
        context.server.unwatch(context.client);
        return Err(Failure::text("EXECABORT Transaction discarded because of previous errors."));
    }
    if let Some(refusal) = refusal_over_pairs(context, &multi) {
        context.server.unwatch(context.client);
        return Err(refusal);
    }
    match has_watched_change(context) {
        Ok(false) => {}
        Err(failure) if context.server.keyspace.wants_again() => {
            context.session().multi = Some(multi);
            return Err(failure);
        }
        changed => {
            context.server.unwatch(context.client);
            changed?;
            context.reply.null_array();
            return Ok(());
        }
    }
    let db = context.db();
    // A command of the transaction may be UNWATCH.
    let watched = std::mem::take(&mut context.session().watched);
    let (mut tally, look_ups) = (Tally::default(), context.server.look_ups());
    let done = run_all(context, &multi, &mut tally);
    let wants_again = context.server.keyspace.wants_again();
    context.server.keyspace.check_reads();
    let may_run_again = done.is_ok() && context.server.keyspace.waits_to_be_answered();
    let session = context.session();
    session.watched = watched;
    if wants_again {
        // Nothing was changed: EXEC will be given again, and counts then.
        (session.multi, session.db) = (Some(multi), db);
        context.server.take_back_look_ups(look_ups);
    } else if may_run_again {
        // It may be.
        session.ran = Some(Ran { multi, db, tally });
    } else {
        context.server.count_tally(&tally);
        context.server.unwatch(context.client);
    }
    done
}

/// Why a store of pairs does not do a transaction, whatever its rows are.
fn refusal_over_pairs(context: &Context<'_>, multi: &Multi) -> Option<Failure> {
    let Keyspace::Pairs(keys) = &context.server.keyspace else { return None };
    match keys.has_batches() {
        true => mixes_up_rows(&multi.queue).then_some(Failure::MIXES_ROWS),
        false => (would_be_refused_late(context, multi) || mixes_up_rows(&multi.queue))
            .then_some(Failure::CROSS_SLOT),
    }
}

/// Whether a transaction at a store of pairs that changes one row at a time changes tables, which happens as it runs, and would then be refused for its keys: so it is refused before.
fn would_be_refused_late(context: &Context<'_>, multi: &Multi) -> bool {
    let changes_tables = |queued: &Queued| queued.command.is(Flag::Write) && queued.command.keys.0 == 0;
    if !multi.queue.iter().any(changes_tables) {
        return false;
    }
    let session = &context.server.sessions[context.client];
    let watched = session.watched.iter().map(|(space, key, _)| (space, key));
    let mut keys: HashSet<(usize, &[u8])> = watched.collect();
    let (mut space, mut changes_rows) = (session.db, false);
    for (position, Queued { command, args }) in multi.queue.iter().enumerate() {
        if command.full_name() == "select" {
            // One that nobody has: which it will be is not looked at.
            space = usize::MAX - position;
        }
        changes_rows |= command.is(Flag::Write) && command.keys.0 != 0;
        keys.extend(command.keys_of(args.borrow()).map(|key| (space, key)));
    }
    changes_rows && keys.len() > 1
}

/// Whether a key that the client watches was changed, or has expired, since.
fn has_watched_change(context: &Context<'_>) -> Outcome<bool> {
    context.server.keyspace.has_any_changed(context.server.sessions[context.client].watched.iter())
}

/// Looks at the keys of all commands of a transaction that has lacked rows before: each would have it put off for its own, and after a few times the loop would wait. It begins
/// once they lack nothing. A command that only writes a row, or asks whether there is one, has it brought for nothing.
fn look_ahead(context: &mut Context<'_>, multi: &Multi) -> Outcome<()> {
    let session = &context.server.sessions[context.client];
    if !session.tries.lacks_rows() {
        return Ok(());
    }
    // Of which database the keys behind a SELECT are is known only then.
    for Queued { command, args } in
        multi.queue.iter().take_while(|queued| queued.command.full_name() != "select")
    {
        let kind = match command.group {
            "string" => Some(Kind::String),
            "hash" => Some(Kind::Hash),
            _ => None,
        };
        context.server.keyspace.look_ahead_at(session.db, kind, command.keys_of(args.borrow()));
    }
    match context.server.keyspace.wants_again() {
        true => Err(Failure::NOT_YET),
        false => Ok(()),
    }
}

fn run_all(context: &mut Context<'_>, multi: &Multi, tally: &mut Tally) -> Outcome<()> {
    look_ahead(context, multi)?;
    let is_batch = fits_a_batch(&multi.queue) && context.server.keyspace.begin();
    let start = context.reply.len();
    context.reply.array(multi.queue.len());
    for queued in &multi.queue {
        run_queued(context, queued, tally);
        if context.server.keyspace.wants_again() {
            context.server.keyspace.abandon(is_batch);
            return Err(Failure::NOT_YET);
        }
        if context.server.keyspace.has_staged_too_much() {
            break;
        }
    }
    if let Err(failure) = context.server.keyspace.end(is_batch) {
        context.reply.truncate(start);
        return Err(Failure::new(format!(
            "EXECABORT Transaction discarded, nothing was written: {}",
            failure.as_str()
        )));
    }
    Ok(())
}

fn run_queued(context: &mut Context<'_>, queued: &Queued, tally: &mut Tally) {
    let start = context.reply.len();
    let Queued { command, args } = queued;
    let started = Instant::now();
    context.server.keyspace.begin_part();
    let outcome = call(context, command, args.borrow());
    if context.server.keyspace.wants_again() {
        return;
    }
    if outcome.is_err() {
        context.server.keyspace.undo_part();
    }
    let failure = outcome.as_ref().err().map(Failure::as_str);
    tally.count(command.index(), started.elapsed(), failure);
    if let Some(failure) = failure {
        context.reply.truncate(start);
        context.reply.error(failure);
    }
}

/// Whether the writes of these commands can be staged into one batch.
fn fits_a_batch(queue: &[Queued]) -> bool {
    let mut written: HashSet<&[u8]> = HashSet::new();
    let mut writes = 0;
    for Queued { command, args } in queue {
        let args = args.borrow();
        if command.is(Flag::Write) && !command.is(Flag::Batch) {
            return false;
        }
        // A command without keys that reads them all (KEYS, DBSIZE), or changes which database the keys are of.
        if writes > 0 && reads_everything(command) || command.full_name() == "select" {
            return false;
        }
        for key in command.keys_of(args) {
            if written.contains(key) && !command.is(Flag::Follows) {
                return false;
            }
            if command.is(Flag::Write) {
                written.insert(key);
                writes += 1;
            }
        }
    }
    writes > 1
}

/// Whether a command that is of no row in particular would be told, or change, something else at a store of pairs than in this order: one that reads does
/// not see what others of them change, and one that changes tables does so before all others.
fn mixes_up_rows(queue: &[Queued]) -> bool {
    let is_data = |command: &Command| command.is(Flag::Read) || command.is(Flag::Write);
    let has_keys = |command: &Command| is_data(command) && command.keys.0 != 0;
    let is_keyless = |command: &Command| is_data(command) && command.keys.0 == 0;
    let mut keys_before = false;
    let clears_late = queue.iter().any(|Queued { command, .. }| {
        keys_before |= has_keys(command);
        keys_before && is_keyless(command) && command.is(Flag::Write)
    });
    let writes = queue.iter().any(|queued| has_keys(queued.command) && queued.command.is(Flag::Write));
    let reads_all = queue.iter().any(|queued| is_keyless(queued.command) && queued.command.is(Flag::Read));
    clears_late || writes && reads_all
}

fn reads_everything(command: &Command) -> bool {
    command.is(Flag::Read) && command.keys.0 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::commands::by_name;
    use crate::serve::resp::{Parsed, Parser, RequestLimits};

    fn queue(lines: &[&str]) -> Vec<Queued> {
        let parse = |line: &&str| {
            let bytes = format!("{line}\n").into_bytes();
            let mut parser = Parser::default();
            assert_eq!(parser.parse(&bytes, &RequestLimits::AUTHENTICATED), Ok(Parsed::Command));
            let args = parser.args(&bytes).to_owned();
            let command = by_name(args.borrow().at(0)).unwrap();
            Queued { command, args }
        };
        lines.iter().map(parse).collect()
    }

    #[test]
    fn writes_of_different_keys_fit_a_batch() {
        assert!(fits_a_batch(&queue(&["SET a 1", "HSET b f v", "DEL c d", "GET e"])));
        assert!(fits_a_batch(&queue(&["GET a", "SET a 1", "SET b 1"])));
        assert!(fits_a_batch(&queue(&["HSET a f v", "EXPIRE a 10", "PERSIST b", "GETEX c EX 10"])));
        assert!(fits_a_batch(&queue(&["SET a 1", "HEXPIRE b 10 FIELDS 1 f", "RENAME c d", "COPY e f"])));
    }

    #[test]
    fn others_do_not() {
        for lines in [
            &["SET a 1"][..],
            &["SET a 1", "GET a", "SET b 1"],
            &["INCR a", "INCR a"],
            &["DEL a a"],
            &["MSET a 1 b 2 a 3"],
            &["SET a 1", "EXPIRE a 10", "GET a"],
            &["HSET a f v", "HEXPIRE a 10 FIELDS 1 f"],
            &["SET a 1", "RENAME a b"],
            &["SET a 1", "FLUSHALL"],
            &["SET a 1", "SET b 2", "DBSIZE"],
            &["SET a 1", "SELECT 1", "SET b 1"],
            &["PING", "PING"],
        ] {
            assert!(!fits_a_batch(&queue(lines)), "{lines:?}");
        }
    }
}
