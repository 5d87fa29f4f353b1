//! Parts of a batch that depend on the rows they find: versions that are required, sums, comparisons, updates of rows that must be there.
//!
//! Owns what such parts come to: updates of fields, by the row as the parts before them leave it. Promises that this is what the same calls, one
//! after the other and at one moment, would come to; or the error of the first part that cannot be. Must not know: the log, the index, how a
//! row is read, which whoever works a batch out lends.

use std::sync::Arc;

use hedgerow_row::comparison::is_equal;
use hedgerow_row::increment::incremented;
use hedgerow_row::row_expiry::RowExpiry;
use hedgerow_row::schema::body::is_past;
use hedgerow_row::schema::plan::{DeltaPlan, FieldExpiries};
use hedgerow_row::schema::table::TableSchema;
use hedgerow_row::schema::unknown_field;

use super::staged::{
    Dependence, Dependent, FieldWrite, Fields, Fold, Name, Op, Staged, StagedValue, StagedWrite,
};
use crate::db::Table;
use crate::db::engine::TableShared;
use crate::{Error, ErrorKind, FieldId, FieldName, OwnedValue, Result, Value};

#[cfg(test)]
mod tests;

/// What is asked of a row in the store.
pub(super) struct Asked<'a> {
    pub(super) table: &'a TableShared,
    pub(super) key: &'a [u8],
    /// A field, if its value matters.
    pub(super) field: Option<FieldId>,
}

/// Adding parts.
impl Staged {
    pub(super) fn add_version(&mut self, table: &Table, key: &[u8], version: Option<u64>) {
        self.depend(table, key, Dependence::Version(version));
    }

    pub(super) fn add_update_existing<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        fields: &[(F, Value<'_>)],
    ) -> Result<()> {
        let fields = self.given_fields(table, fields, None)?;
        self.depend(table, key, Dependence::Existing(fields));
        Ok(())
    }

    pub(super) fn add_increment<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        field: F,
        by: i64,
    ) -> Result<()> {
        let field = Name::of(table, field)?;
        self.depend(table, key, Dependence::Sum(field, by));
        Ok(())
    }

    pub(super) fn add_compare_and_set<F: FieldName>(
        &mut self,
        table: &Table,
        key: &[u8],
        field: F,
        [expected, new]: [Value<'_>; 2],
    ) -> Result<()> {
        let field = Name::of(table, field)?;
        let (expected, new) = (self.staged_value(expected), self.staged_value(new));
        self.depend(table, key, Dependence::Value(field, expected, new));
        Ok(())
    }

    fn depend(&mut self, table: &Table, key: &[u8], what: Dependence) {
        let (run, key, writes_before) = (self.run_of(table), self.append(key), self.writes.len());
        self.dependents.push(Dependent { run, key, writes_before, what });
    }
}

/// Working them out.
impl Staged {
    /// The row that a part is about.
    pub(super) fn row_of(&self, dependent: &Dependent) -> (&Arc<TableShared>, &[u8]) {
        (self.table_of_run(dependent.run), self.bytes_of(dependent.key))
    }

    /// Whether what it writes depends on rows.
    pub(super) fn depends(&self) -> bool {
        self.dependents.iter().any(|dependent| dependent.what.writes())
    }

    /// Tables, each with keys of parts that depend on its rows.
    pub(super) fn dependent_rows(&self) -> impl Iterator<Item = (&Arc<TableShared>, Vec<&[u8]>)> {
        self.dependents.chunk_by(|one, next| one.run == next.run).map(|of_one| {
            (self.table_of_run(of_one[0].run), of_one.iter().map(|one| self.bytes_of(one.key)).collect())
        })
    }

    /// Calls `visit` with each part that gives fields, in order, and them: names among them may have to be learned.
    pub(super) fn for_each_given(
        &self,
        mut visit: impl FnMut(&Arc<TableShared>, &[FieldWrite]) -> Result<()>,
    ) -> Result<()> {
        let mut dependents = self.dependents.iter().enumerate().peekable();
        for at in 0..=self.writes.len() {
            while let Some((n, dependent)) = dependents.next_if(|(_, one)| one.writes_before <= at) {
                if let Dependence::Existing(fields) = &dependent.what {
                    let visited = visit(self.row_of(dependent).0, fields);
                    visited.map_err(|error| self.blame_dependent(n, error))?;
                }
            }
            if let Some(write) = self.writes.get(at)
                && let Op::Put(fields, _) | Op::Update(fields, _) = &write.op
            {
                let visited = visit(self.table(write), &self.fields(write, fields));
                visited.map_err(|error| self.blame(write, error))?;
            }
        }
        Ok(())
    }

    /// What all parts come to, one write for each row, as of `now_ms`. `read` says what is in the store: `None` if there is no row, `Null` if
    /// the field is absent.
    pub(super) fn worked_out(
        &self,
        now_ms: u64,
        mut read: impl FnMut(Asked<'_>) -> Result<Option<OwnedValue>>,
    ) -> Result<Vec<StagedWrite>> {
        let mut fold = Fold::new(self, now_ms);
        let mut dependents = self.dependents.iter().enumerate().peekable();
        for at in 0..=self.writes.len() {
            while let Some((n, dependent)) = dependents.next_if(|(_, one)| one.writes_before <= at) {
                if !dependent.what.writes() {
                    continue;
                }
                let (table, key) = self.row_of(dependent);
                let row = RowBefore {
                    staged: self,
                    table,
                    key,
                    schema: table.schema.load_full(),
                    earlier: fold.earlier(table, key),
                    now_ms,
                };
                let op = row.work_out(&dependent.what, &mut read);
                if let Some(op) = op.map_err(|error| self.blame_dependent(n, error))? {
                    fold.add(StagedWrite::new(dependent.run, dependent.key, op));
                }
            }
            if let Some(write) = self.writes.get(at) {
                // Of its own, and in its order, as of those that depend on rows.
                self.check_at(at)?;
                fold.add(write.clone());
            }
        }
        Ok(fold.finish())
    }
}

/// A row before one part of a batch: what is in the store, and what the parts before make of it.
struct RowBefore<'b> {
    staged: &'b Staged,
    table: &'b TableShared,
    key: &'b [u8],
    schema: Arc<TableSchema>,
    earlier: Option<&'b StagedWrite>,
    now_ms: u64,
}

impl RowBefore<'_> {
    /// The write that a part comes to; nothing if it only requires what is looked at elsewhere.
    fn work_out(
        &self,
        what: &Dependence,
        mut read: impl FnMut(Asked<'_>) -> Result<Option<OwnedValue>>,
    ) -> Result<Option<Op>> {
        let fields = match what {
            Dependence::Version(_) => return Ok(None),
            Dependence::Existing(fields) => {
                if self.value(None, &mut read)?.is_none() {
                    return Err(Error::new(ErrorKind::Conflict, "there is no such row"));
                }
                fields.clone()
            }
            Dependence::Sum(field, by) => {
                let old = || {
                    let field = Some(field.id_in(&self.schema)?);
                    Ok(self.value(field, &mut read)?.unwrap_or(OwnedValue::Null))
                };
                let schema = self.schema.fields();
                let sum = match field {
                    Name::Id(id) => incremented(schema, *id, old, *by)?,
                    Name::Text(text) => incremented(schema, &**text, old, *by)?,
                };
                vec![FieldWrite::new(field, StagedValue::plain(Value::Int(sum)))]
            }
            Dependence::Value(field, expected, new) => {
                let now = self.value(Some(field.id_in(&self.schema)?), &mut read)?;
                let held = now.as_ref().map_or(Value::Null, OwnedValue::borrow);
                let (schema, expected) = (self.schema.fields(), self.staged.value_of(expected));
                let is_expected = match field {
                    Name::Id(id) => is_equal(schema, *id, held, expected)?,
                    Name::Text(text) => is_equal(schema, &**text, held, expected)?,
                };
                if !is_expected {
                    return Err(Error::new(ErrorKind::Conflict, "the field holds another value"));
                }
                vec![FieldWrite::new(field, new.clone())]
            }
        };
        self.check(&fields)?;
        Ok(Some(Op::Update(Fields::Given(fields), RowExpiry::Keep)))
    }

    fn check(&self, fields: &[FieldWrite]) -> Result<()> {
        let fields = self.staged.resolved(&self.schema, fields)?;
        DeltaPlan::new(&self.schema, &fields, FieldExpiries::All(None)).map(drop).map_err(Error::from)
    }

    /// A field of the row, `Null` if it is absent or none is asked for; `None` if there is no row.
    fn value(
        &self,
        field: Option<FieldId>,
        read: impl FnOnce(Asked<'_>) -> Result<Option<OwnedValue>>,
    ) -> Result<Option<OwnedValue>> {
        let stored = || read(Asked { table: self.table, key: self.key, field });
        let position = field.and_then(|field| self.schema.fields().position_of(field));
        let default = || match position {
            Some(position) => self.schema.fields().fields()[position].default().to_owned(),
            None => OwnedValue::Null,
        };
        Ok(match self.earlier.map(|earlier| (earlier, &earlier.op)) {
            None | Some((_, Op::Expire(_))) => stored()?,
            Some((_, Op::Delete)) => None,
            Some((earlier, Op::Put(fields, _))) => {
                Some(self.given(earlier, fields, position)?.unwrap_or_else(default))
            }
            Some((earlier, Op::Update(fields, _))) => match self.given(earlier, fields, position)? {
                Some(given) => Some(given),
                None => Some(stored()?.unwrap_or_else(default)),
            },
        })
    }

    /// What an earlier part gave the field at `position`, as reading would show it; `None` if nothing.
    fn given(
        &self,
        earlier: &StagedWrite,
        fields: &Fields,
        position: Option<usize>,
    ) -> Result<Option<OwnedValue>> {
        let Some(position) = position else { return Ok(None) };
        let fields = self.staged.fields(earlier, fields);
        let is_it = |field: &&FieldWrite| field.identity(&self.schema) == Ok(position);
        let Some(last) = fields.iter().rfind(is_it) else { return Ok(None) };
        if is_past(last.expires_at_ms, self.now_ms) {
            return Ok(Some(OwnedValue::Null));
        }
        let field = &self.schema.fields().fields()[position];
        let value = field.kind().as_stored(self.staged.value_of(&last.value));
        let value = value.map_err(|_| {
            Error::invalid(format!("field {:?} was given a value of another type", field.name()))
        })?;
        Ok(Some(value.to_owned()))
    }
}

impl Name {
    fn id_in(&self, schema: &TableSchema) -> Result<FieldId> {
        let found = match self {
            Name::Id(id) => schema.fields().position_of(*id).ok_or_else(|| unknown_field(*id)),
            Name::Text(text) => {
                FieldName::find(&**text, schema.fields()).ok_or_else(|| unknown_field(&**text))
            }
        };
        Ok(schema.fields().fields()[found?].id())
    }
}
