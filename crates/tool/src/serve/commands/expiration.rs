//! Times to live: of keys and of fields, and the options of other commands that set them.

use std::collections::HashMap;

use super::is_word;
use crate::serve::failure::{Failure, Outcome};
use crate::serve::keyspace::Keyspace;
use crate::serve::number;
use crate::serve::resp::Args;
use crate::serve::server::Context;

/// How a time is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// From now.
    Seconds,
    /// From now.
    Milliseconds,
    /// Since 1970.
    UnixSeconds,
    /// Since 1970.
    UnixMilliseconds,
}

/// When something expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// In the past: it is gone at once.
    Past,
    /// At this time, ms since 1970.
    At(u64),
}

/// The latest time that is accepted for fields, ms since 1970: what fits the 46 bits Redis keeps for them.
const AT_MAX: i64 = (1 << 46) - 1;

/// The unit of an option `EX`, `PX`, `EXAT`, `PXAT`.
pub fn unit_of_option(word: &[u8]) -> Option<Unit> {
    match word {
        _ if is_word(word, "EX") => Some(Unit::Seconds),
        _ if is_word(word, "PX") => Some(Unit::Milliseconds),
        _ if is_word(word, "EXAT") => Some(Unit::UnixSeconds),
        _ if is_word(word, "PXAT") => Some(Unit::UnixMilliseconds),
        _ => None,
    }
}

fn invalid(command: &str) -> Failure {
    Failure::new(format!("ERR invalid expire time in '{command}' command"))
}

/// The time `text` says, if it is an integer and does not overflow.
fn absolute(unit: Unit, text: &[u8], now_ms: u64, command: &str) -> Outcome<i64> {
    let value = number::parse_i64(text).ok_or(Failure::NOT_AN_INTEGER)?;
    let scale = if matches!(unit, Unit::Seconds | Unit::UnixSeconds) { 1000 } else { 1 };
    let base = if matches!(unit, Unit::Seconds | Unit::Milliseconds) { now_ms as i64 } else { 0 };
    value.checked_mul(scale).and_then(|time| time.checked_add(base)).ok_or_else(|| invalid(command))
}

fn as_expiry(at: i64, now_ms: u64) -> Expiry {
    match u64::try_from(at) {
        Ok(at) if at > now_ms => Expiry::At(at),
        _ => Expiry::Past,
    }
}

/// The time of an option: it must be positive.
pub fn parse_expiry(unit: Unit, text: &[u8], now_ms: u64, command: &str) -> Outcome<Expiry> {
    let at = absolute(unit, text, now_ms, command)?;
    if text.first() == Some(&b'-') || text == b"0" {
        return Err(invalid(command));
    }
    Ok(as_expiry(at, now_ms))
}

/// The time of fields, ms since 1970: it may be now, and no later than Redis has bits for.
fn field_time(unit: Unit, text: &[u8], now_ms: u64, command: &str) -> Outcome<i64> {
    if number::parse_i64(text).is_some_and(i64::is_negative) {
        return Err(Failure::text("ERR invalid expire time, must be >= 0"));
    }
    let at = absolute(unit, text, now_ms, command)?;
    if at > AT_MAX { Err(invalid(command)) } else { Ok(at) }
}

/// The time of an option for fields.
pub fn parse_field_expiry(unit: Unit, text: &[u8], now_ms: u64, command: &str) -> Outcome<Expiry> {
    Ok(as_expiry(field_time(unit, text, now_ms, command)?, now_ms))
}

/// NX, XX, GT, LT.
#[derive(Debug, Clone, Copy, Default)]
struct Condition {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Condition {
    fn add(&mut self, word: &[u8]) -> bool {
        match word {
            _ if is_word(word, "NX") => self.nx = true,
            _ if is_word(word, "XX") => self.xx = true,
            _ if is_word(word, "GT") => self.gt = true,
            _ if is_word(word, "LT") => self.lt = true,
            _ => return false,
        }
        true
    }

    /// Whether a time may be set where `current` is set now; no time is later than any.
    fn allows(&self, current: Option<u64>, at: i64) -> bool {
        let current = current.map_or(i64::MAX, |current| current as i64);
        let is_set = current != i64::MAX;
        !(self.nx && is_set || self.xx && !is_set || self.gt && at <= current || self.lt && at >= current)
    }
}

fn set_key_expiry(context: &mut Context<'_>, args: Args<'_>, unit: Unit, command: &str) -> Outcome<()> {
    let (db, key) = (context.db(), args.at(1));
    let mut condition = Condition::default();
    for word in args.from(3).iter() {
        if !condition.add(word) {
            return Err(Failure::new(format!(
                "ERR Unsupported option {}",
                crate::serve::failure::quote(word)
            )));
        }
    }
    if condition.nx && (condition.xx || condition.gt || condition.lt) {
        return Err(Failure::text("ERR NX and XX, GT or LT options at the same time are not compatible"));
    }
    if condition.gt && condition.lt {
        return Err(Failure::text("ERR GT and LT options at the same time are not compatible"));
    }
    let now_ms = context.server.keyspace.now_ms();
    let at = absolute(unit, args.at(2), now_ms, command)?;
    let keyspace = &mut context.server.keyspace;
    let is_set = match keyspace.expiry(db, key)? {
        Some(current) if condition.allows(current, at) => match as_expiry(at, now_ms) {
            Expiry::Past => keyspace.expire_now(db, key)?,
            Expiry::At(at) => keyspace.set_expiry(db, key, Some(at))?,
        },
        _ => false,
    };
    context.reply.integer(i64::from(is_set));
    Ok(())
}

/// EXPIRE key seconds [NX | XX | GT | LT]
pub fn expire(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_key_expiry(context, args, Unit::Seconds, "expire")
}

/// PEXPIRE key milliseconds [NX | XX | GT | LT]
pub fn pexpire(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_key_expiry(context, args, Unit::Milliseconds, "pexpire")
}

/// EXPIREAT key unix-time-seconds [NX | XX | GT | LT]
pub fn expireat(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_key_expiry(context, args, Unit::UnixSeconds, "expireat")
}

/// PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]
pub fn pexpireat(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_key_expiry(context, args, Unit::UnixMilliseconds, "pexpireat")
}

/// The time in `unit`: what is left of it, or the time itself; seconds by `to_seconds`.
fn in_unit(at: u64, unit: Unit, now_ms: u64, to_seconds: fn(u64) -> u64) -> i64 {
    let left = at.saturating_sub(now_ms);
    (match unit {
        Unit::Seconds => to_seconds(left),
        Unit::Milliseconds => left,
        Unit::UnixSeconds => to_seconds(at),
        Unit::UnixMilliseconds => at,
    }) as i64
}

/// As Redis rounds the times of keys: to the nearest second.
fn nearest_second(ms: u64) -> u64 {
    (ms + 500) / 1000
}

/// And those of fields: up, so that none that is there has nothing left.
fn next_second(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

fn reply_key_expiry(context: &mut Context<'_>, args: Args<'_>, unit: Unit) -> Outcome<()> {
    let db = context.db();
    let now_ms = context.server.keyspace.now_ms();
    let answer = match context.server.keyspace.expiry(db, args.at(1))? {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => in_unit(at, unit, now_ms, nearest_second),
    };
    context.reply.integer(answer);
    Ok(())
}

/// TTL key
pub fn ttl(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_key_expiry(context, args, Unit::Seconds)
}

/// PTTL key
pub fn pttl(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_key_expiry(context, args, Unit::Milliseconds)
}

/// EXPIRETIME key
pub fn expiretime(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_key_expiry(context, args, Unit::UnixSeconds)
}

/// PEXPIRETIME key
pub fn pexpiretime(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_key_expiry(context, args, Unit::UnixMilliseconds)
}

/// PERSIST key
pub fn persist(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let keyspace = &mut context.server.keyspace;
    let is_cleared =
        keyspace.expiry(db, args.at(1))?.flatten().is_some() && keyspace.set_expiry(db, args.at(1), None)?;
    context.reply.integer(i64::from(is_cleared));
    Ok(())
}

/// How a command takes `FIELDS numfields`, and what it says where they are wrong.
pub struct FieldsForm {
    /// Arguments of each field.
    width: usize,
    count_max: i64,
    /// No such number of fields can be meant.
    not_a_count: &'static str,
    /// There is another number of them.
    mismatch: &'static str,
}

impl FieldsForm {
    /// `HEXPIRE` and its kin, which give fields a time.
    pub const OF_HEXPIRE: FieldsForm = FieldsForm {
        width: 1,
        count_max: i64::MAX,
        not_a_count: "ERR Parameter `numFields` should be greater than 0",
        mismatch: "ERR The `numfields` parameter must match the number of arguments",
    };
    /// `HSETEX`, with a value to each field.
    pub const OF_HSETEX: FieldsForm = FieldsForm {
        width: 2,
        count_max: i32::MAX as i64,
        not_a_count: "ERR invalid number of fields",
        mismatch: "ERR wrong number of arguments for 'hsetex' command",
    };
    /// All others.
    pub const OF_OTHERS: FieldsForm = FieldsForm {
        not_a_count: "ERR Number of fields must be a positive integer",
        ..FieldsForm::OF_HEXPIRE
    };
}

/// The fields after `FIELDS numfields`, which must be at `index`.
pub fn fields_at<'a>(args: Args<'a>, index: usize, form: &FieldsForm) -> Outcome<Args<'a>> {
    if !args.get(index).is_some_and(|word| is_word(word, "FIELDS")) {
        return Err(Failure::text("ERR Mandatory argument FIELDS is missing or not at the right position"));
    }
    let count = args.get(index + 1).and_then(number::parse_i64);
    let count = count.filter(|count| (1..=form.count_max).contains(count));
    let count = count.ok_or(Failure::text(form.not_a_count))?;
    let fields = args.from(index + 2);
    if !fields.len().is_multiple_of(form.width) || (fields.len() / form.width) as i64 != count {
        return Err(Failure::text(form.mismatch));
    }
    Ok(fields)
}

/// What was read of a command's arguments. Where they are wrong, and the key is no hash, that is what is told: Redis looks at the key first.
pub fn or_no_hash<T>(context: &Context<'_>, key: &[u8], read: Outcome<T>) -> Outcome<T> {
    if read.is_err() {
        context.server.keyspace.hash(context.db(), key, |_| Ok(()))?;
    }
    read
}

/// Gives fields an expiry, or removes those that have it in the past.
pub fn expire_fields<'v>(
    keyspace: &mut Keyspace,
    db: usize,
    key: &[u8],
    names: impl Iterator<Item = &'v [u8]> + Clone,
    expiry: Expiry,
) -> Outcome<()> {
    match expiry {
        Expiry::Past => keyspace.hash_delete(db, key, names).map(drop),
        Expiry::At(at) => keyspace.hash_expire_fields(db, key, names, Some(at)),
    }
}

fn set_field_expiry(context: &mut Context<'_>, args: Args<'_>, unit: Unit, command: &str) -> Outcome<()> {
    let (db, key) = (context.db(), args.at(1));
    let now_ms = context.server.keyspace.now_ms();
    let mut condition = Condition::default();
    let read = field_time(unit, args.at(2), now_ms, command).and_then(|at| {
        let has_condition = condition.add(args.at(3));
        Ok((at, fields_at(args, 3 + usize::from(has_condition), &FieldsForm::OF_HEXPIRE)?))
    });
    let (at, fields) = or_no_hash(context, key, read)?;
    let keyspace = &mut context.server.keyspace;
    let current =
        keyspace.hash(db, key, |view| fields.iter().map(|name| view.field_expiry(name)).collect())?;
    let current: Vec<Option<Option<u64>>> = current.unwrap_or_else(|| vec![None; fields.len()]);
    let expiry = as_expiry(at, now_ms);
    let (mut names, mut fields_after) = (Vec::new(), FieldsAfter::default());
    let mut answer = |(name, before): (_, Option<Option<u64>>)| {
        let field = fields_after.of(name, before);
        match (*field, expiry) {
            (None, _) => -2,
            (Some(current), _) if !condition.allows(current, at) => 0,
            (Some(_), after) => {
                names.push(name);
                *field = match after {
                    Expiry::Past => None,
                    Expiry::At(at_ms) => Some(Some(at_ms)),
                };
                if after == Expiry::Past { 2 } else { 1 }
            }
        }
    };
    let answers: Vec<i64> = fields.iter().zip(current).map(&mut answer).collect();
    if !names.is_empty() {
        expire_fields(keyspace, db, key, names.iter().copied(), expiry)?;
    }
    context.reply.array(answers.len());
    answers.into_iter().for_each(|answer| context.reply.integer(answer));
    Ok(())
}

/// What fields that a command names will be, as far as it got: one that is named again is answered by that. None if there will be no such field, else when it expires.
#[derive(Default)]
struct FieldsAfter<'n>(HashMap<&'n [u8], Option<Option<u64>>>);

impl<'n> FieldsAfter<'n> {
    /// Of a field that was so before the command.
    fn of(&mut self, name: &'n [u8], before: Option<Option<u64>>) -> &mut Option<Option<u64>> {
        self.0.entry(name).or_insert(before)
    }
}

/// HEXPIRE key seconds [...] FIELDS numfields field [field ...]
pub fn hexpire(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_field_expiry(context, args, Unit::Seconds, "hexpire")
}

/// HPEXPIRE key milliseconds [...] FIELDS numfields field [field ...]
pub fn hpexpire(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_field_expiry(context, args, Unit::Milliseconds, "hpexpire")
}

/// HEXPIREAT key unix-time-seconds [...] FIELDS numfields field [field ...]
pub fn hexpireat(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_field_expiry(context, args, Unit::UnixSeconds, "hexpireat")
}

/// HPEXPIREAT key unix-time-milliseconds [...] FIELDS numfields field [field ...]
pub fn hpexpireat(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    set_field_expiry(context, args, Unit::UnixMilliseconds, "hpexpireat")
}

fn reply_field_expiry(context: &mut Context<'_>, args: Args<'_>, unit: Unit) -> Outcome<()> {
    let db = context.db();
    let now_ms = context.server.keyspace.now_ms();
    let fields = or_no_hash(context, args.at(1), fields_at(args, 2, &FieldsForm::OF_OTHERS))?;
    let current = context
        .server
        .keyspace
        .hash(db, args.at(1), |view| fields.iter().map(|name| view.field_expiry(name)).collect())?;
    let current: Vec<Option<Option<u64>>> = current.unwrap_or_else(|| vec![None; fields.len()]);
    context.reply.array(current.len());
    for expiry in current {
        context.reply.integer(match expiry {
            None => -2,
            Some(None) => -1,
            Some(Some(at)) => in_unit(at, unit, now_ms, next_second),
        });
    }
    Ok(())
}

/// HTTL key FIELDS numfields field [field ...]
pub fn httl(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_field_expiry(context, args, Unit::Seconds)
}

/// HPTTL key FIELDS numfields field [field ...]
pub fn hpttl(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_field_expiry(context, args, Unit::Milliseconds)
}

/// HEXPIRETIME key FIELDS numfields field [field ...]
pub fn hexpiretime(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_field_expiry(context, args, Unit::UnixSeconds)
}

/// HPEXPIRETIME key FIELDS numfields field [field ...]
pub fn hpexpiretime(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    reply_field_expiry(context, args, Unit::UnixMilliseconds)
}

/// HPERSIST key FIELDS numfields field [field ...]
pub fn hpersist(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let fields = or_no_hash(context, args.at(1), fields_at(args, 2, &FieldsForm::OF_OTHERS))?;
    let keyspace = &mut context.server.keyspace;
    let current =
        keyspace.hash(db, args.at(1), |view| fields.iter().map(|name| view.field_expiry(name)).collect())?;
    let current: Vec<Option<Option<u64>>> = current.unwrap_or_else(|| vec![None; fields.len()]);
    let (mut set, mut fields_after) = (Vec::new(), FieldsAfter::default());
    let mut answer = |(name, before): (_, Option<Option<u64>>)| {
        let field = fields_after.of(name, before);
        match field {
            None => -2,
            Some(None) => -1,
            Some(expiry) => {
                set.push(name);
                *expiry = None;
                1
            }
        }
    };
    let answers: Vec<i64> = fields.iter().zip(current).map(&mut answer).collect();
    if !set.is_empty() {
        keyspace.hash_expire_fields(db, args.at(1), set.iter().copied(), None)?;
    }
    context.reply.array(answers.len());
    answers.into_iter().for_each(|answer| context.reply.integer(answer));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_checked() {
        let now = 1_800_000_000_000;
        assert_eq!(parse_expiry(Unit::Seconds, b"10", now, "set"), Ok(Expiry::At(now + 10_000)));
        assert_eq!(parse_expiry(Unit::UnixSeconds, b"10", now, "set"), Ok(Expiry::Past));
        for bad in ["0", "-1", "9223372036854775807"] {
            let failure = parse_expiry(Unit::Seconds, bad.as_bytes(), now, "set").unwrap_err();
            assert_eq!(failure.as_str(), "ERR invalid expire time in 'set' command", "{bad}");
        }
        assert_eq!(parse_expiry(Unit::Seconds, b"x", now, "set"), Err(Failure::NOT_AN_INTEGER));
    }

    #[test]
    fn conditions_hold_no_expiry_for_the_latest() {
        let only = |word: &str| {
            let mut condition = Condition::default();
            assert!(condition.add(word.as_bytes()));
            condition
        };
        assert!(only("nx").allows(None, 5) && !only("NX").allows(Some(9), 5));
        assert!(!only("XX").allows(None, 5) && only("XX").allows(Some(9), 5));
        assert!(
            !only("GT").allows(None, 5) && only("GT").allows(Some(4), 5) && !only("GT").allows(Some(5), 5)
        );
        assert!(only("LT").allows(None, 5) && !only("LT").allows(Some(4), 5));
    }
}
