//! Commands on hashes: field access to rows.

use std::collections::HashSet;

use hedgerow::Value;

use super::expiration::{
    Expiry, FieldsForm, expire_fields, fields_at, or_no_hash, parse_field_expiry, unit_of_option,
};
use super::is_word;
use super::key::scan_options;
use crate::serve::failure::{Failure, Outcome};
use crate::serve::glob;
use crate::serve::keyspace::cursor::{Position, Source};
use crate::serve::keyspace::text::write_text;
use crate::serve::keyspace::{FieldWrite, HashView};
use crate::serve::limits;
use crate::serve::number;
use crate::serve::reply::Reply;
use crate::serve::resp::Args;
use crate::serve::server::Context;

/// A field's value as a reply.
#[inline]
pub fn reply_value(reply: &mut Reply<'_>, value: Value<'_>) {
    match value {
        Value::Null => reply.null(),
        Value::Bytes(bytes) => reply.bulk(bytes),
        Value::Str(text) => reply.bulk(text.as_bytes()),
        other => {
            let mut text = Vec::with_capacity(24);
            write_text(&mut text, other);
            reply.bulk(&text);
        }
    }
}

/// The value as the text a client sees; None if there is none.
fn text_of(value: Value<'_>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    write_text(&mut text, value);
    (!value.is_null()).then_some(text)
}

fn pairs(args: Args<'_>) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    (0..args.len() / 2).map(move |index| (args.at(index * 2), args.at(index * 2 + 1)))
}

/// HSET key field value [field value ...]
pub fn hset(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    if !args.len().is_multiple_of(2) {
        return Err(Failure::text("ERR wrong number of arguments for 'hset' command"));
    }
    let (db, prefetched) = (context.db(), context.prefetched);
    let new = context.server.keyspace.hash_set_prefetched(db, args.at(1), prefetched, pairs(args.from(2)))?;
    context.reply.integer(new as i64);
    Ok(())
}

/// HMSET key field value [field value ...]
pub fn hmset(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    if !args.len().is_multiple_of(2) {
        return Err(Failure::text("ERR wrong number of arguments for 'hmset' command"));
    }
    let (db, prefetched) = (context.db(), context.prefetched);
    context.server.keyspace.hash_set_prefetched(db, args.at(1), prefetched, pairs(args.from(2)))?;
    context.reply.ok();
    Ok(())
}

/// HSETNX key field value
pub fn hsetnx(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let keyspace = &mut context.server.keyspace;
    let exists = keyspace.hash(db, args.at(1), |view| view.field(args.at(2), |value| !value.is_null()))?;
    let is_new = !exists.unwrap_or(false);
    if is_new {
        keyspace.hash_set(db, args.at(1), pairs(args.from(2)).map(FieldWrite::lasting))?;
    }
    context.reply.integer(i64::from(is_new));
    Ok(())
}

/// HGET key field
pub fn hget(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, prefetched) = (context.db(), context.prefetched);
    let reply = &mut context.reply;
    let found = context.server.keyspace.hash_prefetched(db, args.at(1), prefetched, |view| {
        view.field(args.at(2), |value| reply_value(reply, value))
    })?;
    context.count_look_up(found.is_some());
    if found.is_none() {
        context.reply.null();
    }
    Ok(())
}

/// HMGET key field [field ...]
pub fn hmget(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, prefetched) = (context.db(), context.prefetched);
    let names = args.from(2);
    context.reply.array(names.len());
    let reply = &mut context.reply;
    let found = context
        .server
        .keyspace
        .hash_prefetched(db, args.at(1), prefetched, |view| reply_values(reply, view, names, |_| true))?;
    context.count_look_up(found.is_some());
    if found.is_none() {
        (0..names.len()).for_each(|_| context.reply.null());
    }
    Ok(())
}

/// The values of fields, as far as the reply may go; null of a field of whose name `counts` does not hold.
fn reply_values<'n>(
    reply: &mut Reply<'_>,
    view: &HashView<'_, '_, '_>,
    names: Args<'n>,
    mut counts: impl FnMut(&'n [u8]) -> bool,
) -> hedgerow::Result<()> {
    for name in names.iter() {
        if reply.is_over() {
            break;
        }
        match counts(name) {
            true => view.field(name, |value| reply_value(reply, value))?,
            false => reply.null(),
        }
    }
    Ok(())
}

/// What of each field a reply holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Names,
    Values,
    Both,
}

fn reply_all(context: &mut Context<'_>, args: Args<'_>, part: Part) -> Outcome<()> {
    let (db, prefetched) = (context.db(), context.prefetched);
    let reply = &mut context.reply;
    let place = reply.defer();
    let mut count = 0;
    let found = context.server.keyspace.hash_prefetched(db, args.at(1), prefetched, |view| {
        view.for_each(|name, value| {
            count += 1;
            if part != Part::Values {
                reply.bulk(name);
            }
            if part != Part::Names {
                reply_value(reply, value);
            }
            !reply.is_over()
        })
    })?;
    match part {
        Part::Both => context.reply.map_at(place, count),
        _ => context.reply.array_at(place, count),
    }
    context.count_look_up(found.is_some());
    Ok(())
}

/// HGETALL key
pub fn hgetall(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_all(context, args, Part::Both)
}

/// HKEYS key
pub fn hkeys(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_all(context, args, Part::Names)
}

/// HVALS key
pub fn hvals(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_all(context, args, Part::Values)
}

/// HDEL key field [field ...]
pub fn hdel(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let removed = context.server.keyspace.hash_delete(db, args.at(1), args.from(2).iter())?;
    context.reply.integer(removed as i64);
    Ok(())
}

/// HEXISTS key field
pub fn hexists(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let found = context
        .server
        .keyspace
        .hash(db, args.at(1), |view| view.field(args.at(2), |value| !value.is_null()))?;
    context.reply.integer(i64::from(found.unwrap_or(false)));
    Ok(())
}

/// HLEN key
pub fn hlen(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let len = context.server.keyspace.hash(db, args.at(1), |view| view.count())?;
    context.reply.integer(len.unwrap_or(0) as i64);
    Ok(())
}

/// HSTRLEN key field
pub fn hstrlen(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let text = context.server.keyspace.hash(db, args.at(1), |view| view.field(args.at(2), text_of))?;
    context.reply.integer(text.flatten().map_or(0, |text| text.len()) as i64);
    Ok(())
}

/// The text and the expiry of one field.
type Current = (Option<Vec<u8>>, Option<u64>);

fn current(context: &Context<'_>, db: usize, key: &[u8], name: &[u8]) -> Outcome<Current> {
    let current = context
        .server
        .keyspace
        .hash(db, key, |view| Ok((view.field(name, text_of)?, view.field_expiry(name)?.flatten())))?;
    Ok(current.unwrap_or_default())
}

/// Writes one field without losing its expiry.
fn rewrite(
    context: &mut Context<'_>,
    db: usize,
    args: Args<'_>,
    text: &[u8],
    expires_at_ms: Option<u64>,
) -> Outcome<()> {
    let write = FieldWrite { name: args.at(2), text, expires_at_ms };
    context.server.keyspace.hash_set(db, args.at(1), std::iter::once(write)).map(drop)
}

/// HINCRBY key field increment
pub fn hincrby(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let by = number::parse_i64(args.at(3)).ok_or(Failure::NOT_AN_INTEGER)?;
    let (text, expires) = current(context, db, args.at(1), args.at(2))?;
    let value = match text {
        None => 0,
        Some(text) => number::parse_i64(&text).ok_or(Failure::text("ERR hash value is not an integer"))?,
    };
    let sum = value.checked_add(by).ok_or(Failure::OVERFLOW)?;
    rewrite(context, db, args, itoa::Buffer::new().format(sum).as_bytes(), expires)?;
    context.reply.integer(sum);
    Ok(())
}

/// HINCRBYFLOAT key field increment
pub fn hincrbyfloat(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let by = number::parse_f64(args.at(3)).ok_or(Failure::NOT_A_FLOAT)?;
    if by.is_infinite() {
        return Err(Failure::text("ERR value is NaN or Infinity"));
    }
    let (text, expires) = current(context, db, args.at(1), args.at(2))?;
    let text = text.as_deref().unwrap_or(b"0");
    if number::parse_f64(text).is_none() {
        return Err(Failure::text("ERR hash value is not a float"));
    }
    let sum = number::add_decimal(text, args.at(3))
        .ok_or(Failure::text("ERR increment would produce NaN or Infinity"))?;
    rewrite(context, db, args, &sum, expires)?;
    context.reply.bulk(&sum);
    Ok(())
}

/// HRANDFIELD key [count [WITHVALUES]]
pub fn hrandfield(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let with_values = match args.get(3) {
        None => false,
        Some(word) if is_word(word, "WITHVALUES") && args.len() == 4 => true,
        Some(_) => return Err(Failure::SYNTAX),
    };
    let count = match args.get(2) {
        None => None,
        Some(text) => Some(number::parse_i64(text).ok_or(Failure::NOT_AN_INTEGER)?),
    };
    if count == Some(i64::MIN) {
        return Err(Failure::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    const COUNT_MAX: i64 = 1 << 30;
    if count.is_some_and(|count| !(-COUNT_MAX..=i64::MAX).contains(&count)) {
        return Err(Failure::text("ERR value is out of range"));
    }
    // How many fields there are, and how large all of them are as a reply.
    let (mut len, mut bytes) = (0usize, 0u64);
    context.server.keyspace.hash(db, args.at(1), |view| {
        view.for_each(|name, value| {
            len += 1;
            bytes += (name.len() + ELEMENT_BYTES) as u64;
            bytes += if with_values { (text_len(value) + ELEMENT_BYTES) as u64 } else { 0 };
            true
        })
    })?;
    let wanted = count.unwrap_or(1);
    if len == 0 {
        match count {
            None => context.reply.null(),
            Some(_) => context.reply.array(0),
        }
        return Ok(());
    }
    let elements = if wanted < 0 { wanted.unsigned_abs() } else { (wanted as u64).min(len as u64) };
    // Before any is chosen: a billion of them would take the memory and the time of all.
    let expected = u128::from(bytes) * u128::from(elements) / len as u128;
    context.reply.check(u64::try_from(expected).unwrap_or(u64::MAX))?;
    let drawn = choose(context, len, elements as usize, wanted < 0);
    let fields = drawn_fields(context, db, args.at(1), &drawn, with_values)?;
    match count {
        None => fields.get(0).into_iter().for_each(|(name, _)| context.reply.bulk(name)),
        Some(_) => reply_drawn(context, &drawn, &fields, with_values),
    }
    Ok(())
}

/// Bytes of a short string in a reply beside its own.
const ELEMENT_BYTES: usize = 6;

fn text_len(value: Value<'_>) -> usize {
    match value {
        Value::Bytes(bytes) => bytes.len(),
        other => text_of(other).map_or(0, |text| text.len()),
    }
}

/// Which fields of a hash are to be told.
enum Drawn {
    /// Those at these positions, in this order: no more than there are fields.
    At(Vec<usize>),
    /// So many, each any of them: they are drawn as they are told. However many they are, nothing is remembered of them.
    AnyOfAll(usize),
}

/// `count` of `len` fields: any, or different ones, of which there are enough.
fn choose(context: &mut Context<'_>, len: usize, count: usize, may_repeat: bool) -> Drawn {
    let mut below = |end: usize| context.server.random.below(end as u64) as usize;
    if may_repeat && count >= len {
        return Drawn::AnyOfAll(count);
    }
    if may_repeat {
        return Drawn::At((0..count).map(|_| below(len)).collect());
    }
    // Floyd's algorithm: every set of positions is as likely as any other, and nothing is made of those not chosen.
    let mut seen = HashSet::with_capacity(count);
    let positions = (len - count..len).map(|last| {
        let drawn = below(last + 1);
        let position = if seen.insert(drawn) { drawn } else { last };
        seen.insert(position);
        position
    });
    Drawn::At(positions.collect())
}

/// Fields that were read, each once, in the order of their positions.
#[derive(Default)]
struct DrawnFields {
    /// Where they were, unless they are all there are.
    positions: Vec<usize>,
    /// Names and values, one after the other.
    text: Vec<u8>,
    /// Where in that the name of each ends, and its value behind it.
    ends: Vec<(usize, usize)>,
}

impl DrawnFields {
    fn push(&mut self, name: &[u8], value: Option<Value<'_>>) {
        self.text.extend_from_slice(name);
        let name_end = self.text.len();
        if let Some(value) = value {
            write_text(&mut self.text, value);
        }
        self.ends.push((name_end, self.text.len()));
    }

    /// The name and the value of one.
    fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let start = if index == 0 { 0 } else { self.ends.get(index - 1)?.1 };
        let &(name_end, end) = self.ends.get(index)?;
        Some((self.text.get(start..name_end)?, self.text.get(name_end..end)?))
    }
}

/// The fields that were drawn, or all.
fn drawn_fields(
    context: &Context<'_>,
    db: usize,
    key: &[u8],
    drawn: &Drawn,
    with_values: bool,
) -> Outcome<DrawnFields> {
    let mut fields = DrawnFields::default();
    if let Drawn::At(positions) = drawn {
        fields.positions.clone_from(positions);
        fields.positions.sort_unstable();
        fields.positions.dedup();
    }
    let mut position = 0;
    context.server.keyspace.hash(db, key, |view| {
        view.for_each(|name, value| {
            let is_drawn = match drawn {
                Drawn::At(_) => fields.positions.get(fields.ends.len()) == Some(&position),
                Drawn::AnyOfAll(_) => true,
            };
            if is_drawn {
                fields.push(name, with_values.then_some(value));
            }
            position += 1;
            // Those chosen may be larger than the others: each of them is to be told.
            context.reply.check(fields.text.len() as u64).is_ok()
        })
    })?;
    context.reply.check(fields.text.len() as u64)?;
    Ok(fields)
}

/// Replies with the fields that were drawn.
fn reply_drawn(context: &mut Context<'_>, drawn: &Drawn, fields: &DrawnFields, with_values: bool) {
    let Context { server, reply, .. } = context;
    let is_nested = reply.is_resp3() && with_values;
    let count = match drawn {
        Drawn::At(positions) => positions.len(),
        Drawn::AnyOfAll(count) => *count,
    };
    reply.array(count * if with_values && !is_nested { 2 } else { 1 });
    for n in 0..count {
        let index = match drawn {
            Drawn::At(positions) => {
                positions.get(n).and_then(|position| fields.positions.binary_search(position).ok())
            }
            Drawn::AnyOfAll(_) => Some(server.random.below(fields.ends.len() as u64) as usize),
        };
        let Some((name, value)) = index.and_then(|index| fields.get(index)) else { continue };
        if is_nested {
            reply.array(2);
        }
        reply.bulk(name);
        if with_values {
            reply.bulk(value);
        }
    }
}

/// HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]
pub fn hscan(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, key) = (context.db(), args.at(1));
    let cursor = number::parse_u64(args.at(2)).ok_or(Failure::text("ERR invalid cursor"))?;
    let options = scan_options(args.from(3), true)?;
    let source = Source::Fields(key.into());
    let position =
        context.server.cursors.get(cursor).filter(|at| at.space == db && at.source == source).cloned();
    let mut shown: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    context.server.keyspace.hash(db, key, |view| {
        let mut bytes = 0;
        let mut show = |name: &[u8], value: Value<'_>| {
            if options.pattern.is_none_or(|pattern| glob::matches(pattern, name)) {
                let text = if options.no_values { None } else { text_of(value) };
                bytes += name.len() + text.as_ref().map_or(0, Vec::len);
                shown.push((name.to_vec(), text));
            }
            bytes < limits::SCAN_BYTES_MAX
        };
        // A row's own fields come all at once, as those of a small hash do in Redis; overflow fields come by and by.
        if position.is_none() {
            view.for_each_own(|name, value| _ = show(name, value))?;
        }
        let mut remaining = options.count;
        view.for_each_overflow(position.as_ref().map(|at| &at.after[..]), |name, value| {
            remaining -= 1;
            let goes_on = show(name, value) && remaining > 0;
            if !goes_on {
                last = Some(name.to_vec());
            }
            goes_on
        })
    })?;
    let next = last.map(|after| Position { space: db, source, after: after.into(), walk: None });
    let next = context.server.cursors.go_on(position.is_some().then_some(cursor), next);
    context.reply.array(2);
    context.reply.bulk_display(next);
    context.reply.array(shown.len() * if options.no_values { 1 } else { 2 });
    for (name, value) in shown {
        context.reply.bulk(&name);
        if let Some(value) = value {
            context.reply.bulk(&value);
        }
    }
    Ok(())
}

/// HGETDEL key FIELDS numfields field [field ...]
pub fn hgetdel(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let fields = or_no_hash(context, args.at(1), fields_at(args, 2, &FieldsForm::OF_OTHERS))?;
    let mut seen = HashSet::new();
    // One that is named again is gone by then.
    reply_fields(context, db, args.at(1), fields, |name| seen.insert(name))?;
    context.server.keyspace.hash_delete(db, args.at(1), fields.iter()).map(drop)
}

/// The values of these fields, null where there is no such field, or `counts` does not hold of its name.
fn reply_fields<'n>(
    context: &mut Context<'_>,
    db: usize,
    key: &[u8],
    fields: Args<'n>,
    counts: impl FnMut(&'n [u8]) -> bool,
) -> Outcome<()> {
    context.reply.array(fields.len());
    let reply = &mut context.reply;
    let found = context.server.keyspace.hash(db, key, |view| reply_values(reply, view, fields, counts))?;
    if found.is_none() {
        (0..fields.len()).for_each(|_| context.reply.null());
    }
    // What can not be told is not removed.
    context.reply.check(0)
}

/// What HGETEX is to do to expiries, if anything, and of which fields.
fn hgetex_arguments(args: Args<'_>, now_ms: u64) -> Outcome<(Option<Option<Expiry>>, Args<'_>)> {
    let (change, at) = match args.at(2) {
        word if is_word(word, "PERSIST") => (Some(None), 3),
        word => match unit_of_option(word) {
            Some(unit) => (Some(Some(parse_field_expiry(unit, args.at(3), now_ms, "hgetex")?)), 4),
            None => (None, 2),
        },
    };
    Ok((change, fields_at(args, at, &FieldsForm::OF_OTHERS)?))
}

/// HGETEX key [...] FIELDS numfields field [field ...]
pub fn hgetex(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, key) = (context.db(), args.at(1));
    let read = hgetex_arguments(args, context.server.keyspace.now_ms());
    let (change, fields) = or_no_hash(context, key, read)?;
    reply_fields(context, db, key, fields, |_| true)?;
    let keyspace = &mut context.server.keyspace;
    let present = keyspace.hash(db, key, |view| {
        let mut present = Vec::new();
        for name in fields.iter() {
            if !view.field(name, |value| value.is_null())? {
                present.push(name);
            }
        }
        Ok(present)
    })?;
    let present = present.unwrap_or_default();
    match change {
        Some(expiry) if !present.is_empty() => match expiry {
            None => keyspace.hash_expire_fields(db, key, present.iter().copied(), None),
            Some(expiry) => expire_fields(keyspace, db, key, present.iter().copied(), expiry),
        },
        _ => Ok(()),
    }
}

/// The options of HSETEX before FIELDS.
#[derive(Default)]
struct SetExOptions {
    if_none: bool,
    if_all: bool,
    keep_ttl: bool,
    expiry: Option<Expiry>,
    /// Where FIELDS is.
    fields_at: usize,
}

fn hsetex_options(args: Args<'_>, now_ms: u64) -> Outcome<SetExOptions> {
    let mut options = SetExOptions { fields_at: 2, ..SetExOptions::default() };
    while let Some(word) = args.get(options.fields_at).filter(|word| !is_word(word, "FIELDS")) {
        let (if_none, if_all) = (is_word(word, "FNX"), is_word(word, "FXX"));
        let (keep_ttl, unit) = (is_word(word, "KEEPTTL"), unit_of_option(word));
        if if_none || if_all {
            if options.if_none || options.if_all {
                return Err(Failure::text("ERR Only one of FXX or FNX arguments can be specified"));
            }
            (options.if_none, options.if_all) = (if_none, if_all);
        } else if keep_ttl || unit.is_some() {
            if options.keep_ttl || options.expiry.is_some() {
                return Err(Failure::text(
                    "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified",
                ));
            }
            options.keep_ttl = keep_ttl;
            if let Some(unit) = unit {
                let time = args.get(options.fields_at + 1).ok_or(Failure::text("ERR missing expire time"))?;
                options.expiry = Some(parse_field_expiry(unit, time, now_ms, "hsetex")?);
                options.fields_at += 1;
            }
        } else {
            return Err(Failure::new(format!(
                "ERR unknown argument: {}",
                crate::serve::failure::quote(word)
            )));
        }
        options.fields_at += 1;
    }
    // Before the number of fields is looked at: `FIELDS`, that number, a field and its value.
    match args.len() < options.fields_at + 4 {
        true => Err(Failure::text("ERR wrong number of arguments for 'hsetex' command")),
        false => Ok(options),
    }
}

/// HSETEX key [FNX | FXX] [...] FIELDS numfields field value [field value ...]
pub fn hsetex(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (db, key) = (context.db(), args.at(1));
    let options = hsetex_options(args, context.server.keyspace.now_ms())?;
    let fields = fields_at(args, options.fields_at, &FieldsForm::OF_HSETEX)?;
    let keyspace = &mut context.server.keyspace;
    let before = keyspace.hash(db, key, |view| {
        pairs(fields).map(|(name, _)| view.field_expiry(name)).collect::<hedgerow::Result<Vec<_>>>()
    })?;
    let before = before.unwrap_or_else(|| vec![None; fields.len() / 2]);
    let present = before.iter().filter(|expiry| expiry.is_some()).count();
    if options.if_none && present > 0 || options.if_all && present < before.len() {
        context.reply.integer(0);
        return Ok(());
    }
    match options.expiry {
        // They would be gone as soon as they were there.
        Some(Expiry::Past) => drop(keyspace.hash_delete(db, key, pairs(fields).map(|(name, _)| name))?),
        expiry => {
            let expiry_of = |before: &Option<Option<u64>>| match expiry {
                Some(Expiry::At(at_ms)) => Some(at_ms),
                _ if options.keep_ttl => before.flatten(),
                _ => None,
            };
            let writes = pairs(fields).zip(&before).map(|((name, text), before)| FieldWrite {
                name,
                text,
                expires_at_ms: expiry_of(before),
            });
            keyspace.hash_set(db, key, writes)?;
        }
    }
    context.reply.integer(1);
    Ok(())
}
