//! The commands of our own: tables with declared schemas, and ordered scans of chosen fields.

use super::hash::reply_value;
use super::{is_word, server};
use crate::serve::backups::Status;
use crate::serve::failure::{Failure, Outcome, quote};
use crate::serve::keyspace::Declared;
use crate::serve::keyspace::text::{parse_type, type_name};
use crate::serve::number;
use crate::serve::reply::Reply;
use crate::serve::resp::Args;
use crate::serve::server::Context;

fn field_name(name: &[u8]) -> Outcome<&str> {
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_empty() && !text.starts_with('@') => Ok(text),
        _ => Err(Failure::new(format!(
            "ERR invalid field name '{}': names are UTF-8 text that does not start with '@'",
            quote(name)
        ))),
    }
}

fn field_type(name: &[u8]) -> Outcome<hedgerow::Type> {
    parse_type(name).ok_or_else(|| {
        Failure::new(format!(
            "ERR unknown type '{}': types are bool, i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, timestamp, bytes, \
             bytes(N), string",
            quote(name)
        ))
    })
}

/// HR.CREATE table field type [NULLABLE] [field type [NULLABLE] ...]
pub fn create(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let mut fields: Vec<Declared> = Vec::new();
    let mut index = 2;
    while let Some(name) = args.get(index) {
        let name = field_name(name)?;
        let kind = field_type(args.get(index + 1).ok_or(Failure::SYNTAX)?)?;
        let nullable = args.get(index + 2).is_some_and(|word| is_word(word, "NULLABLE"));
        fields.push(Declared { name: name.to_string(), kind, nullable });
        index += 2 + usize::from(nullable);
    }
    let db = context.db();
    context.server.keyspace.declare(db, args.at(1), &fields)?;
    context.reply.ok();
    Ok(())
}

/// HR.ADDFIELD table field type
pub fn addfield(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    if args.len() != 4 {
        return Err(Failure::SYNTAX);
    }
    let (name, kind) = (field_name(args.at(2))?, field_type(args.at(3))?);
    let db = context.db();
    context.server.keyspace.add_field(db, args.at(1), name, kind)?;
    context.reply.ok();
    Ok(())
}

/// HR.RENAMEFIELD table field newname
pub fn renamefield(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let (name, to) = (field_name(args.at(2))?, field_name(args.at(3))?);
    let db = context.db();
    context.server.keyspace.rename_field(db, args.at(1), name, to)?;
    context.reply.ok();
    Ok(())
}

/// HR.DROPFIELD table field
pub fn dropfield(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let name = field_name(args.at(2))?;
    let db = context.db();
    context.server.keyspace.drop_field(db, args.at(1), name)?;
    context.reply.ok();
    Ok(())
}

/// HR.DROP table
pub fn drop_table(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let existed = context.server.keyspace.drop_table(db, args.at(1))?;
    context.reply.integer(i64::from(existed));
    Ok(())
}

/// HR.SCHEMA table
pub fn schema(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let fields = context.server.keyspace.fields(db, args.at(1))?;
    context.reply.array(fields.len());
    for field in fields {
        context.reply.map(3);
        context.reply.bulk(b"name");
        context.reply.bulk(field.name.as_bytes());
        context.reply.bulk(b"type");
        context.reply.bulk(type_name(field.kind).as_bytes());
        context.reply.bulk(b"nullable");
        context.reply.boolean(field.nullable);
    }
    Ok(())
}

/// HR.TABLES
pub fn tables(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let db = context.db();
    let summaries = context.server.keyspace.summaries(db)?;
    context.reply.map(summaries.len());
    for table in summaries {
        let reply = &mut context.reply;
        reply.bulk(&table.prefix);
        reply.map(3);
        reply.bulk(b"rows");
        reply.integer(table.rows as i64);
        reply.bulk(b"fields");
        reply.integer(table.fields as i64);
        reply.bulk(b"open");
        reply.boolean(table.is_open);
    }
    Ok(())
}

/// HR.METRICS
pub fn metrics(context: &mut Context<'_>, _args: Args<'_>) -> Outcome<()> {
    let metrics = server::metrics(context.server);
    context.reply.map(metrics.len());
    for (name, value) in metrics {
        context.reply.bulk(name.as_bytes());
        context.reply.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
    Ok(())
}

/// HR.BACKUP <START name | STATUS | CANCEL>
pub fn backup(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let refused = |reason: String| Failure::new(format!("ERR {reason}"));
    if is_word(args.at(1), "START") && args.len() == 3 {
        let db = context.server.keyspace.in_order()?.db().clone();
        context.server.backups.start(&db, args.at(2)).map_err(refused)?;
        context.reply.status("Backup started");
    } else if is_word(args.at(1), "STATUS") && args.len() == 2 {
        backup_status(&mut context.reply, &context.server.backups.status());
    } else if is_word(args.at(1), "CANCEL") && args.len() == 2 {
        let cancelled = context.server.backups.cancel();
        context.reply.integer(i64::from(cancelled));
    } else {
        return Err(Failure::SYNTAX);
    }
    Ok(())
}

fn backup_status(reply: &mut Reply<'_>, status: &Status) {
    let summary = status.summary;
    let numbers = [
        ("bytes", status.total),
        ("bytes_copied", status.copied),
        ("bytes_verified", status.verified),
        ("sequence", summary.map_or(0, |summary| summary.sequence)),
        ("segments", summary.map_or(0, |summary| summary.segments)),
        ("segments_kept", summary.map_or(0, |summary| summary.segments_kept)),
        ("records", summary.map_or(0, |summary| summary.records)),
        ("sorted_tables", summary.map_or(0, |summary| summary.sorted_tables)),
        ("sorted_tables_kept", summary.map_or(0, |summary| summary.sorted_tables_kept)),
        ("sorted_tables_linked", summary.map_or(0, |summary| summary.sorted_tables_linked)),
        ("ended_unix_seconds", status.ended_s),
        ("took_ms", status.took_ms),
    ];
    let words = [
        ("status", status.word()),
        ("name", status.name.as_str()),
        ("error", status.failure.as_deref().unwrap_or("")),
    ];
    reply.map(words.len() + numbers.len());
    for (name, value) in words {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (name, value) in numbers {
        reply.bulk(name.as_bytes());
        reply.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }
}

/// What HR.SCAN asks for.
struct ScanOptions<'a> {
    from: Option<&'a [u8]>,
    to: Option<&'a [u8]>,
    prefix: Option<&'a [u8]>,
    reverse: bool,
    limit: usize,
    fields: Option<Args<'a>>,
}

fn scan_options(args: Args<'_>) -> Outcome<ScanOptions<'_>> {
    let mut options =
        ScanOptions { from: None, to: None, prefix: None, reverse: false, limit: 100, fields: None };
    let mut index = 2;
    while let Some(word) = args.get(index) {
        if is_word(word, "REVERSE") {
            options.reverse = true;
            index += 1;
            continue;
        }
        let value = args.get(index + 1).ok_or(Failure::SYNTAX)?;
        index += 2;
        match word {
            _ if is_word(word, "FROM") => options.from = Some(value),
            _ if is_word(word, "TO") => options.to = Some(value),
            _ if is_word(word, "PREFIX") => options.prefix = Some(value),
            _ if is_word(word, "LIMIT") => {
                let limit = number::parse_i64(value).filter(|limit| *limit > 0);
                options.limit = limit.ok_or(Failure::NOT_AN_INTEGER)? as usize;
            }
            _ if is_word(word, "FIELDS") => {
                let count = number::parse_i64(value).filter(|count| *count > 0);
                let count = count.ok_or(Failure::NOT_AN_INTEGER)? as usize;
                let rest = args.from(index);
                if rest.len() < count {
                    return Err(Failure::SYNTAX);
                }
                options.fields = Some(rest.first(count));
                index += count;
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    Ok(options)
}

/// HR.SCAN table [...]
pub fn scan(context: &mut Context<'_>, args: Args<'_>) -> Outcome<()> {
    let options = scan_options(args)?;
    let db = context.db();
    let keyspace = context.server.keyspace.in_order()?;
    let (mut scan, table) = keyspace.scan_rows(db, args.at(1))?;
    if let Some(prefix) = options.prefix {
        scan = scan.prefix(prefix);
    }
    if let Some(from) = options.from {
        scan = scan.from(from);
    }
    if let Some(to) = options.to {
        scan = scan.range(..to);
    }
    if options.reverse {
        scan = scan.reverse();
    }
    // A row of which all fields have expired is none, so it is not known how many are to be looked at.
    let may_be_none = table.has_expiring_fields();
    if !may_be_none {
        scan = scan.limit(options.limit);
    }
    let reply = &mut context.reply;
    let place = reply.defer();
    let mut count = 0;
    scan.for_each(|row_key, row| {
        let view = keyspace.view(table, row)?;
        if may_be_none && !view.has_fields()? {
            return Ok(true);
        }
        count += 1;
        reply.array(2);
        reply.bulk(row_key);
        match options.fields {
            Some(fields) => {
                reply.map(fields.len());
                for name in fields.iter() {
                    if reply.is_over() {
                        break;
                    }
                    reply.bulk(name);
                    view.field(name, |value| reply_value(reply, value))?;
                }
            }
            None => {
                let place = reply.defer();
                let mut fields = 0;
                view.for_each(|name, value| {
                    fields += 1;
                    reply.bulk(name);
                    reply_value(reply, value);
                    !reply.is_over()
                })?;
                reply.map_at(place, fields);
            }
        }
        Ok(count < options.limit && !reply.is_over())
    })?;
    context.reply.array_at(place, count);
    Ok(())
}
