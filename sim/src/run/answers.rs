//! What a store answers, beside what its model does.
//!
//! Owns the comparison. Must not know which store it is, nor how it came to its answers.

use std::collections::HashMap;
use std::fmt;

use hedgerow::{Error, Result, Row, RowView, Schema, StoreTable, Type, Value};

use super::{Divergence, table_name};
use crate::model::{Answer, Model, ReadRow};
use crate::op::{Op, TABLES};

/// What the store answered.
#[derive(Debug)]
pub(super) enum Got {
    Done,
    Bool(bool),
    Int(i64),
    Rows(Vec<Option<Row>>),
}

/// Versions last seen, by table and key: the model's and the store's.
#[derive(Default)]
pub(super) struct Versions(HashMap<(u8, Vec<u8>), (u64, u64)>);

impl Versions {
    /// Compares what the store answered with what the model does.
    pub(super) fn compare(
        &mut self,
        op: &Op,
        wanted: &Answer,
        done: Result<Got>,
    ) -> std::result::Result<(), Divergence> {
        let differ = |got: &dyn fmt::Debug| {
            Err(Divergence(format!("the store answers {got:?}, the model {wanted:?}")))
        };
        match (wanted, done) {
            (Answer::Fails(kinds), Err(error)) if kinds.contains(&error.kind()) => Ok(()),
            (_, Err(error)) => differ(&(error.kind(), error.message())),
            (Answer::Done, Ok(Got::Done)) => Ok(()),
            (Answer::Bool(wanted), Ok(Got::Bool(got))) if *wanted == got => Ok(()),
            (Answer::Int(wanted), Ok(Got::Int(got))) if *wanted == got => Ok(()),
            (Answer::Rows(wanted), Ok(Got::Rows(got))) => {
                if wanted.len() != got.len() {
                    let got: Vec<&[u8]> = got.iter().flatten().map(Row::key).collect();
                    let missing = wanted.iter().flatten().filter(|row| !got.contains(&row.key.as_slice()));
                    let missing: Vec<String> = missing.map(|r| r.key.escape_ascii().to_string()).collect();
                    return Err(Divergence(format!(
                        "{} rows in the store, {} in the model; missing: {missing:?}",
                        got.len(),
                        wanted.len()
                    )));
                }
                for (wanted, got) in wanted.iter().zip(&got) {
                    same_row(wanted.as_ref(), got.as_ref())?;
                    if let (Some(wanted), Some(got), Some(table)) = (wanted, got, table_of(op)) {
                        self.same_version(table, wanted, got)?;
                    }
                }
                Ok(())
            }
            (_, Ok(got)) => differ(&got),
        }
    }

    fn same_version(
        &mut self,
        table: u8,
        wanted: &ReadRow,
        got: &Row,
    ) -> std::result::Result<(), Divergence> {
        let now = (wanted.version, got.version());
        match self.0.insert((table, wanted.key.clone()), now) {
            Some(before) if (before.0 == now.0) != (before.1 == now.1) => Err(Divergence(format!(
                "the row {} had version {} and has {}, though it was {}written meanwhile",
                wanted.key.escape_ascii(),
                before.1,
                now.1,
                if before.0 == now.0 { "not " } else { "" }
            ))),
            _ => Ok(()),
        }
    }
}

/// Compares fields; takes over what an open table learned before it refused a write.
pub(super) fn compare_schemas(
    model: &mut Model,
    tables: &[StoreTable],
    failed: bool,
) -> std::result::Result<(), Divergence> {
    for (table, handle) in tables.iter().enumerate().take(TABLES) {
        let schema = handle.schema().map_err(|error| unexpected("looking at a schema", &error))?;
        let theirs = fields_of(&schema);
        if theirs == model.schema(table) {
            continue;
        }
        if !failed || !model.adopt(table, &schema) {
            let ours = model.schema(table);
            let name = table_name(table);
            return Err(Divergence(format!("table {name} has the fields {theirs:?}, the model {ours:?}")));
        }
    }
    Ok(())
}

/// The table whose rows, as they are now, an operation reads.
fn table_of(op: &Op) -> Option<u8> {
    match op {
        Op::Get { table, .. } | Op::GetFields { table, .. } | Op::MultiGet { table, .. } => Some(*table),
        Op::Scan { table, .. } | Op::Prefix { table, .. } => Some(*table),
        _ => None,
    }
}

pub(super) fn unexpected(doing: &str, error: &Error) -> Divergence {
    Divergence(format!("{doing}: {:?}: {error}", error.kind()))
}

/// A table's fields: name, type and nullability, in order.
pub(crate) fn fields_of(schema: &Schema) -> Vec<(String, Type, bool)> {
    schema.fields().iter().map(|f| (f.name().to_owned(), f.kind(), f.is_nullable())).collect()
}

/// Whether a row read is the row wanted, to the last field.
pub(crate) fn same_row(wanted: Option<&ReadRow>, got: Option<&Row>) -> std::result::Result<(), Divergence> {
    let (wanted, got) = match (wanted, got) {
        (None, None) => return Ok(()),
        (Some(wanted), Some(got)) => (wanted, got),
        (wanted, got) => {
            let key = wanted.map(|w| w.key.as_slice()).or(got.map(Row::key)).unwrap_or_default();
            let says = |there: bool| if there { "has" } else { "has not" };
            return Err(Divergence(format!(
                "the store {} the row {}, the model {} it",
                says(got.is_some()),
                key.escape_ascii(),
                says(wanted.is_some())
            )));
        }
    };
    let fields: Vec<(&str, Value<'_>)> = got.fields().collect();
    let same_fields = fields.len() == wanted.fields.len()
        && fields
            .iter()
            .zip(&wanted.fields)
            .all(|(got, wanted)| got.0 == wanted.0 && got.1 == wanted.1.borrow());
    if got.key() != wanted.key || !same_fields || got.expires_at_ms() != wanted.expires_at_ms {
        return Err(Divergence(format!(
            "the row {} is {} in the store (expiry {:?}), {} in the model (expiry {:?})",
            wanted.key.escape_ascii(),
            show(fields.into_iter()),
            got.expires_at_ms(),
            show(wanted.fields.iter().map(|(name, value)| (name.as_str(), value.borrow()))),
            wanted.expires_at_ms
        )));
    }
    Ok(())
}

/// Whether a table holds these rows, which are in the order of their keys, and no other.
pub(super) fn same_table(wanted: &[ReadRow], table: &StoreTable) -> std::result::Result<(), Divergence> {
    let Ok(mut scan) = table.scan() else { return same_walk(wanted, table) };
    let mut wanted = wanted.iter();
    loop {
        let got = scan.next().transpose().map_err(|error| unexpected("scanning", &error))?;
        let want = wanted.next();
        if got.is_none() && want.is_none() {
            return Ok(());
        }
        same_row(want, got.as_ref())?;
    }
}

/// The same, of a store that has no order.
fn same_walk(wanted: &[ReadRow], table: &StoreTable) -> std::result::Result<(), Divergence> {
    let (mut rows, mut from) = (HashMap::new(), None);
    loop {
        // A walk may come by a row twice.
        let look = |row: RowView<'_, '_>| {
            rows.insert(row.key().to_vec(), row.to_row()?);
            Ok(())
        };
        from = table.walk(from.as_ref(), WALK_ROWS, look).map_err(|error| unexpected("walking", &error))?;
        if from.is_none() {
            break;
        }
    }
    for want in wanted {
        same_row(Some(want), rows.remove(&want.key).as_ref())?;
    }
    rows.values().try_for_each(|row| same_row(None, Some(row)))
}

/// Rows of one step of a walk: few, so that there are many steps.
const WALK_ROWS: usize = 7;

fn show<'v>(fields: impl Iterator<Item = (&'v str, Value<'v>)>) -> String {
    let short = |(name, value): (&str, Value<'_>)| {
        let text = value.to_string();
        let head: String = text.chars().take(24).collect();
        if head.len() < text.len() {
            format!("{name}: {head}.. ({})", text.len())
        } else {
            format!("{name}: {head}")
        }
    };
    format!("{{{}}}", fields.map(short).collect::<Vec<_>>().join(", "))
}
