//! Commands on strings.

use super::expiration::{self, Expiry, parse_expiry};
use super::is_word;
use crate::serve::failure::{Failure, Outcome};
use crate::serve::keyspace::{Kind, check_key};
use crate::serve::limits;
use crate::serve::number;
use crate::serve::resp::Args;
use crate::serve::server::Context;
use crate::serve::stats::LookUps;

/// GET key
pub fn get(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, prefetched) = (context.db(), context.prefetched);
    let reply = &mut context.reply;
    let found = context
        .server
        .keyspace
        .string_prefetched(db, args.at(1), prefetched, |value, _| reply.bulk(value))?;
    context.count_look_up(found.is_some());
    if found.is_none() {
        context.reply.null();
    }
    Ok(())
}

/// MGET key [key ...]
pub fn mget(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    context.reply.array(args.len() - 1);
    // Counted at the end: a command that lacks something is given again.
    let (mut hits, mut misses) = (0, 0);
    for (n, key) in args.from(1).iter().enumerate() {
        let reply = &mut context.reply;
        let found = match context.server.keyspace.string(db, key, |value, _| reply.bulk(value)) {
            Err(failure) if failure == Failure::WRONG_TYPE => None,
            Err(failure) => {
                // If it is that something lacks, what the others lack is brought with it.
                let rest = args.from(n + 2);
                context.server.keyspace.look_ahead_at(db, Some(Kind::String), rest.iter());
                return Err(failure);
            }
            Ok(found) => found,
        };
        *(if found.is_some() { &mut hits } else { &mut misses }) += 1;
        if found.is_none() {
            context.reply.null();
        }
        context.reply.check(0)?;
    }
    context.server.count_look_ups(LookUps { hits, misses });
    Ok(())
}

/// STRLEN key
pub fn strlen(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let len = context.server.keyspace.string(db, args.at(1), |value, _| value.len())?;
    context.reply.integer(len.unwrap_or(0) as i64);
    Ok(())
}

/// GETRANGE key start end, SUBSTR key start end
pub fn getrange(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let start = number::parse_i64(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let end = number::parse_i64(args.at(3)).ok_or(Failure::NOT_AN_INTEGER)?;
    let db = context.db();
    let reply = &mut context.reply;
    let found = context.server.keyspace.string(db, args.at(1), |value, _| {
        let len = value.len() as i64;
        let from_start = |index: i64| if index < 0 { (len + index).max(0) } else { index };
        // Both before the start and in the wrong order: nothing, even though both are then cut to the first byte.
        let is_backwards = start < 0 && end < 0 && start > end;
        let (first, last) = (from_start(start), from_start(end).min(len - 1));
        match !is_backwards && first <= last {
            true => reply.bulk(value.get(first as usize..=last as usize).unwrap_or(&[])),
            false => reply.bulk(b""),
        }
    })?;
    if found.is_none() {
        context.reply.bulk(b"");
    }
    Ok(())
}

/// The options of SET.
#[derive(Default)]
struct SetOptions {
    if_absent: bool,
    if_present: bool,
    get: bool,
    keep_ttl: bool,
    expiry: Option<Expiry>,
}

fn set_options(args: Args<'_>, now_ms: u64) -> Outcome<SetOptions> {
    let mut options = SetOptions::default();
    // What it says is looked at last: an option too many is a matter of syntax whatever times are given.
    let mut time = None;
    let mut index = 3;
    while let Some(word) = args.get(index) {
        if is_word(word, "NX") && !options.if_present {
            options.if_absent = true;
        } else if is_word(word, "XX") && !options.if_absent {
            options.if_present = true;
        } else if is_word(word, "GET") {
            options.get = true;
        } else if is_word(word, "KEEPTTL") && time.is_none() {
            options.keep_ttl = true;
        } else if let Some(unit) = expiration::unit_of_option(word)
            && time.is_none()
            && !options.keep_ttl
            && let Some(text) = args.get(index + 1)
        {
            time = Some((unit, text));
            index += 1;
        } else {
            return Err(Failure::SYNTAX);
        }
        index += 1;
    }
    if let Some((unit, text)) = time {
        options.expiry = Some(parse_expiry(unit, text, now_ms, "set")?);
    }
    Ok(options)
}

/// SET key value [...]
pub fn set(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let (key, value) = (args.at(1), args.at(2));
    if args.len() == 3 {
        context.server.keyspace.string_put(db, key, value, None)?;
        context.reply.ok();
        return Ok(());
    }
    let options = set_options(args, context.server.keyspace.now_ms())?;
    let mark = context.reply.len();
    if options.get {
        let reply = &mut context.reply;
        let found = context.server.keyspace.string(db, key, |value, _| reply.bulk(value))?;
        if found.is_none() {
            context.reply.null();
        }
        // What can not be told is not replaced.
        context.reply.check(0)?;
    }
    let is_done = if options.if_absent || options.if_present {
        context.server.keyspace.exists(db, key)? == options.if_present
    } else {
        true
    };
    if is_done {
        write_string(context, db, key, value, &options).inspect_err(|_| context.reply.truncate(mark))?;
    }
    match (options.get, is_done) {
        (true, _) => {}
        (false, true) => context.reply.ok(),
        (false, false) => context.reply.null(),
    }
    Ok(())
}

fn write_string(
    context: &mut Context<'_>,
    db: usize,
    key: &[u8],
    value: &[u8],
    options: &SetOptions,
) -> Outcome<()> {
    let keyspace = &mut context.server.keyspace;
    match options.expiry {
        Some(Expiry::Past) => keyspace.delete(db, key).map(drop),
        Some(Expiry::At(at)) => keyspace.string_put(db, key, value, Some(at)),
        None if options.keep_ttl => {
            let expires = keyspace.expiry(db, key)?.flatten();
            keyspace.string_put(db, key, value, expires)
        }
        None => keyspace.string_put(db, key, value, None),
    }
}

/// SETNX key value
pub fn setnx(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let is_new = !context.server.keyspace.exists(db, args.at(1))?;
    if is_new {
        context.server.keyspace.string_put(db, args.at(1), args.at(2), None)?;
    }
    context.reply.integer(i64::from(is_new));
    Ok(())
}

/// SETEX key seconds value
pub fn setex(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_expiring(context, args, expiration::Unit::Seconds, "setex")
}

/// PSETEX key milliseconds value
pub fn psetex(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_expiring(context, args, expiration::Unit::Milliseconds, "psetex")
}

fn set_expiring(
    context: &mut Context<'_>,
    args: Args<'_>,
    unit: expiration::Unit,
    command: &str,
) -> Outcome<()> {
    let expiry = parse_expiry(unit, args.at(2), context.server.keyspace.now_ms(), command)?;
    let options = SetOptions { expiry: Some(expiry), ..SetOptions::default() };
    let db = context.db();
    write_string(context, db, args.at(1), args.at(3), &options)?;
    context.reply.ok();
    Ok(())
}

/// Replies with a string, or null; says whether there was one.
fn reply_string(context: &mut Context<'_>, key: &[u8]) -> Outcome<bool> {
    let db = context.db();
    let reply = &mut context.reply;
    let found = context.server.keyspace.string(db, key, |value, _| reply.bulk(value))?.is_some();
    context.count_look_up(found);
    if !found {
        context.reply.null();
    }
    context.reply.check(0)?;
    Ok(found)
}

/// GETSET key value
pub fn getset(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    reply_string(context, args.at(1))?;
    context.server.keyspace.string_put(db, args.at(1), args.at(2), None)
}

/// GETDEL key
pub fn getdel(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    if reply_string(context, args.at(1))? {
        context.server.keyspace.delete(db, args.at(1))?;
    }
    Ok(())
}

/// GETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]
pub fn getex(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, key) = (context.db(), args.at(1));
    let change = match (args.len(), args.get(2)) {
        (2, _) => None,
        (3, Some(word)) if is_word(word, "PERSIST") => Some(None),
        (4, Some(word)) => Some(Some(expiration::unit_of_option(word).ok_or(Failure::SYNTAX)?)),
        _ => return Err(Failure::SYNTAX),
    };
    if !reply_string(context, key)? {
        return Ok(());
    }
    // Only now, as in Redis: of a key that is not there any time will do.
    let now_ms = context.server.keyspace.now_ms();
    let expiry = |unit| parse_expiry(unit, args.at(3), now_ms, "getex");
    let change = match change {
        Some(Some(unit)) => Some(Some(expiry(unit)?)),
        Some(None) => Some(None),
        None => None,
    };
    let keyspace = &mut context.server.keyspace;
    match change {
        None => {}
        Some(None) if keyspace.expiry(db, key)?.flatten().is_some() => {
            keyspace.set_expiry(db, key, None)?;
        }
        Some(None) => {}
        Some(Some(Expiry::Past)) => {
            keyspace.delete(db, key)?;
        }
        Some(Some(Expiry::At(at))) => {
            keyspace.set_expiry(db, key, Some(at))?;
        }
    }
    Ok(())
}

fn check_pairs(args: Args<'_>, command: &str) -> Outcome<()> {
    match args.len() % 2 {
        1 => Ok(()),
        _ => Err(Failure::new(format!("ERR wrong number of arguments for '{command}' command"))),
    }
}

fn put_pairs(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    (1..args.len()).step_by(2).try_for_each(|index| check_key(args.at(index)))?;
    context.server.keyspace.together(|keyspace| {
        for index in (1..args.len()).step_by(2) {
            keyspace.string_put(db, args.at(index), args.at(index + 1), None)?;
        }
        Ok(())
    })
}

/// MSET key value [key value ...]
pub fn mset(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    check_pairs(args, "mset")?;
    put_pairs(context, args)?;
    context.reply.ok();
    Ok(())
}

/// MSETNX key value [key value ...]
pub fn msetnx(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    check_pairs(args, "msetnx")?;
    let db = context.db();
    for index in (1..args.len()).step_by(2) {
        if context.server.keyspace.exists(db, args.at(index))? {
            context.reply.integer(0);
            return Ok(());
        }
    }
    put_pairs(context, args)?;
    context.reply.integer(1);
    Ok(())
}

/// APPEND key value
pub fn append(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, key, tail) = (context.db(), args.at(1), args.at(2));
    let keyspace = &mut context.server.keyspace;
    let joined = keyspace.string(db, key, |value, _| {
        (value.len() + tail.len() <= limits::ARGUMENT_BYTES_MAX).then(|| [value, tail].concat())
    })?;
    let len = match joined {
        None => {
            keyspace.string_update(db, key, tail)?;
            tail.len()
        }
        Some(joined) => {
            let joined = joined.ok_or(Failure::TOO_LONG)?;
            keyspace.string_update(db, key, &joined)?;
            joined.len()
        }
    };
    context.reply.integer(len as i64);
    Ok(())
}

/// SETRANGE key offset value
pub fn setrange(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, key, patch) = (context.db(), args.at(1), args.at(3));
    let offset = number::parse_i64(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let offset = usize::try_from(offset).map_err(|_| Failure::text("ERR offset is out of range"))?;
    let keyspace = &mut context.server.keyspace;
    let mut value = keyspace.string(db, key, |value, _| value.to_vec())?.unwrap_or_default();
    if !patch.is_empty() {
        let end = offset.saturating_add(patch.len());
        if end > limits::ARGUMENT_BYTES_MAX {
            return Err(Failure::TOO_LONG);
        }
        if value.len() < end {
            value.resize(end, 0);
        }
        value[offset..end].copy_from_slice(patch);
        keyspace.string_update(db, key, &value)?;
    }
    context.reply.integer(value.len() as i64);
    Ok(())
}

fn increment(context: &mut Context<'_>, key: &[u8], by: i64) -> Outcome<()> {
    let db = context.db();
    let keyspace = &mut context.server.keyspace;
    let value = match keyspace.string(db, key, |value, _| number::parse_i64(value))? {
        None => 0,
        Some(value) => value.ok_or(Failure::NOT_AN_INTEGER)?,
    };
    let sum = value.checked_add(by).ok_or(Failure::OVERFLOW)?;
    keyspace.string_update(db, key, itoa::Buffer::new().format(sum).as_bytes())?;
    context.reply.integer(sum);
    Ok(())
}

/// INCR key
pub fn incr(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    increment(context, args.at(1), 1)
}

/// DECR key
pub fn decr(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    increment(context, args.at(1), -1)
}

/// INCRBY key increment
pub fn incrby(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let by = number::parse_i64(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    increment(context, args.at(1), by)
}

/// DECRBY key decrement
pub fn decrby(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let by = number::parse_i64(args.at(2)).ok_or(Failure::NOT_AN_INTEGER)?;
    let by = by.checked_neg().ok_or(Failure::text("ERR decrement would overflow"))?;
    increment(context, args.at(1), by)
}

/// INCRBYFLOAT key increment
pub fn incrbyfloat(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, key) = (context.db(), args.at(1));
    let keyspace = &mut context.server.keyspace;
    let value = keyspace.string(db, key, |value, _| value.to_vec())?;
    let value = value.as_deref().unwrap_or(b"0");
    if number::parse_f64(args.at(2)).is_none() || number::parse_f64(value).is_none() {
        return Err(Failure::NOT_A_FLOAT);
    }
    let sum = number::add_decimal(value, args.at(2))
        .ok_or(Failure::text("ERR increment would produce NaN or Infinity"))?;
    keyspace.string_update(db, key, &sum)?;
    context.reply.bulk(&sum);
    Ok(())
}
