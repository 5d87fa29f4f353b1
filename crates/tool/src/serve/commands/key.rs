//! Commands on keys of any type.

use super::is_word;
use crate::serve::failure::{Failure, Outcome};
use crate::serve::glob;
use crate::serve::keyspace::text::write_text;
use crate::serve::keyspace::{Filter, Kind};
use crate::serve::limits;
use crate::serve::number;
use crate::serve::resp::Args;
use crate::serve::server::Context;

/// DEL key [key ...], UNLINK key [key ...]
pub fn del(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    if args.len() > 2 {
        // After the first key is gone the command can not be given again, and would have the loop wait for what it lacks of the others.
        context.server.keyspace.look_ahead(db, args.from(1).iter())?;
    }
    let mut removed = 0;
    for key in args.from(1).iter() {
        removed += i64::from(context.server.keyspace.delete(db, key)?);
    }
    context.reply.integer(removed);
    Ok(())
}

/// EXISTS key [key ...], TOUCH key [key ...]
pub fn exists(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let found = context.server.keyspace.count_existing(db, args.from(1).iter())?;
    context.reply.integer(found as i64);
    Ok(())
}

/// TYPE key
pub fn type_of(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let kind = context.server.keyspace.kind(db, args.at(1))?;
    context.reply.status(kind.map_or("none", Kind::name));
    Ok(())
}

/// RENAME key newkey
pub fn rename(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    context.server.keyspace.copy((db, args.at(1)), (db, args.at(2)), true)?;
    context.reply.ok();
    Ok(())
}

/// RENAMENX key newkey
pub fn renamenx(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    if !context.server.keyspace.exists(db, args.at(1))? {
        return Err(Failure::NO_SUCH_KEY);
    }
    let is_free = !context.server.keyspace.exists(db, args.at(2))?;
    if is_free {
        context.server.keyspace.copy((db, args.at(1)), (db, args.at(2)), true)?;
    }
    context.reply.integer(i64::from(is_free));
    Ok(())
}

/// COPY source destination [DB destination-db] [REPLACE]
pub fn copy(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let (mut to, mut replace, mut index) = (db, false, 3);
    while let Some(word) = args.get(index) {
        if is_word(word, "REPLACE") {
            replace = true;
        } else if let Some(number) = args.get(index + 1).filter(|_| is_word(word, "DB")) {
            let number = number::parse_i64(number).ok_or(Failure::NOT_AN_INTEGER)?;
            to =
                usize::try_from(number).ok().filter(|db| *db < limits::DATABASES).ok_or(Failure::DB_INDEX)?;
            index += 1;
        } else {
            return Err(Failure::SYNTAX);
        }
        index += 1;
    }
    let (source, destination) = ((db, args.at(1)), (to, args.at(2)));
    if source == destination {
        return Err(Failure::text("ERR source and destination objects are the same"));
    }
    let keyspace = &mut context.server.keyspace;
    let is_copied = keyspace.exists(db, args.at(1))? && (replace || !keyspace.exists(to, args.at(2))?);
    if is_copied {
        keyspace.copy(source, destination, false)?;
    }
    context.reply.integer(i64::from(is_copied));
    Ok(())
}

/// RANDOMKEY
pub fn randomkey(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let server = &mut *context.server;
    match server.keyspace.random_key(db, &mut server.random)? {
        Some(key) => context.reply.bulk(&key),
        None => context.reply.null(),
    }
    Ok(())
}

/// KEYS pattern
pub fn keys(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let filter = Filter { pattern: Some(glob::checked(args.at(1))?), kind: None };
    let reply = &mut context.reply;
    let place = reply.defer();
    let mut count = 0;
    context.server.keyspace.scan_keys(db, None, usize::MAX, filter, |key| {
        reply.bulk(key);
        count += 1;
        !reply.is_over()
    })?;
    context.reply.array_at(place, count);
    Ok(())
}

/// The options of SCAN and HSCAN.
pub(super) struct ScanOptions<'a> {
    pub(super) pattern: Option<&'a [u8]>,
    pub(super) count: usize,
    pub(super) kind: Option<&'a [u8]>,
    pub(super) no_values: bool,
}

/// Reads the options of SCAN, or of HSCAN.
pub(super) fn scan_options(args: Args<'_>, is_hscan: bool) -> Outcome<ScanOptions<'_>> {
    let mut options = ScanOptions { pattern: None, count: 10, kind: None, no_values: false };
    let mut index = 0;
    while let Some(word) = args.get(index) {
        let value = args.get(index + 1);
        match value {
            Some(value) if is_word(word, "COUNT") => {
                let count = number::parse_i64(value).ok_or(Failure::NOT_AN_INTEGER)?;
                let count = usize::try_from(count).ok().filter(|c| *c > 0).ok_or(Failure::SYNTAX)?;
                // A hint, in Redis, too: everybody else waits for the answer.
                options.count = count.min(limits::SCAN_ROWS_MAX);
            }
            Some(value) if is_word(word, "MATCH") => options.pattern = Some(glob::checked(value)?),
            Some(value) if is_word(word, "TYPE") && !is_hscan => options.kind = Some(value),
            _ if is_word(word, "NOVALUES") && is_hscan => {
                options.no_values = true;
                index += 1;
                continue;
            }
            _ => return Err(Failure::SYNTAX),
        }
        index += 2;
    }
    Ok(options)
}

/// SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]
pub fn scan(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let cursor = number::parse_u64(args.at(1)).ok_or(Failure::text("ERR invalid cursor"))?;
    let options = scan_options(args.from(2), false)?;
    let kind = match options.kind {
        None => None,
        Some(name) if is_word(name, "string") => Some(Kind::String),
        Some(name) if is_word(name, "hash") => Some(Kind::Hash),
        Some(_) => {
            // Types this server has no keys of.
            context.reply.array(2);
            context.reply.bulk(b"0");
            context.reply.array(0);
            return Ok(());
        }
    };
    let filter = Filter { pattern: options.pattern.filter(|pattern| *pattern != b"*"), kind };
    let from = context.server.cursors.get(cursor).filter(|position| position.space == db).cloned();
    let (mut found, mut bytes): (Vec<Vec<u8>>, usize) = (Vec::new(), 0);
    let next = context.server.keyspace.scan_keys(db, from.as_ref(), options.count, filter, |key| {
        found.push(key.to_vec());
        bytes += key.len();
        bytes < limits::SCAN_BYTES_MAX
    })?;
    let next = context.server.cursors.go_on(from.is_some().then_some(cursor), next);
    context.reply.array(2);
    context.reply.bulk_display(next);
    context.reply.array(found.len());
    found.iter().for_each(|key| context.reply.bulk(key));
    Ok(())
}

/// OBJECT ENCODING key
pub fn object_encoding(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, key) = (context.db(), args.at(2));
    let entries = context.server.settings.listpack_entries as u64;
    let value_max = context.server.settings.listpack_value;
    let keyspace = &context.server.keyspace;
    let encoding = match keyspace.kind(db, key)? {
        None => None,
        Some(Kind::String) => keyspace.string(db, key, |value, _| match value {
            value if number::parse_i64(value).is_some() => "int",
            value if value.len() <= 44 => "embstr",
            _ => "raw",
        })?,
        Some(Kind::Hash) => keyspace.hash(db, key, |view| {
            let (mut is_small, mut count, mut text) = (true, 0, Vec::new());
            view.for_each(|name, value| {
                text.clear();
                write_text(&mut text, value);
                count += 1;
                is_small &= name.len() <= value_max && text.len() <= value_max && count <= entries;
                is_small
            })?;
            Ok(if is_small { "listpack" } else { "hashtable" })
        })?,
    };
    match encoding {
        Some(encoding) => context.reply.bulk(encoding.as_bytes()),
        None => context.reply.null(),
    }
    Ok(())
}

fn reply_if_exists(context: &mut Context<'_>, key: &[u8], answer: i64) -> Outcome<()> {
    let db = context.db();
    match context.server.keyspace.exists(db, key)? {
        true => context.reply.integer(answer),
        false => context.reply.null(),
    }
    Ok(())
}

/// OBJECT REFCOUNT key
pub fn object_refcount(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_if_exists(context, args.at(2), 1)
}

/// OBJECT IDLETIME key
pub fn object_idletime(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_if_exists(context, args.at(2), 0)
}

/// OBJECT FREQ key
pub fn object_freq(_context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    Err(Failure::text(
        "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
         switching between policies at runtime LRU and LFU data will take some time to adjust.",
    ))
}

/// MEMORY USAGE key [SAMPLES count]
pub fn memory_usage(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    match (args.len(), args.get(3), args.get(4)) {
        (3, _, _) => {}
        (5, Some(word), Some(count)) if is_word(word, "SAMPLES") => {
            number::parse_i64(count).filter(|count| *count >= 0).ok_or(Failure::NOT_AN_INTEGER)?;
        }
        _ => return Err(Failure::SYNTAX),
    }
    let (db, key) = (context.db(), args.at(2));
    // Two tags and a head of the record, a slot and a key's head in the index.
    const RECORD_AND_SLOT: usize = 32 + 44;
    let keyspace = &context.server.keyspace;
    let bytes = match keyspace.kind(db, key)? {
        None => None,
        Some(Kind::String) => keyspace.string(db, key, |value, _| value.len())?,
        Some(Kind::Hash) => keyspace.hash(db, key, |view| {
            let (mut bytes, mut text) = (0, Vec::new());
            view.for_each(|_, value| {
                text.clear();
                write_text(&mut text, value);
                bytes += text.len() + 8;
                true
            })?;
            Ok(bytes)
        })?,
    };
    match bytes {
        Some(bytes) => context.reply.integer((bytes + key.len() + RECORD_AND_SLOT) as i64),
        None => context.reply.null(),
    }
    Ok(())
}
