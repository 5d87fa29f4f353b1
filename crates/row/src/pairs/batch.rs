//! `PairBatch`: several changes of rows as one.
//!
//! Owns a list of changes that were asked for. Promises that all of them happen or none. Of a backend without [batches](crate::backend::Command::Batch) one of two
//! rows is refused before anything is done. Must not know how a change is made: that is [`Edit`].

use std::collections::HashMap;
use std::sync::Arc;

use super::edit::{Edit, borrowed};
use super::{PairDb, PairTable, Transaction};
use crate::schema::body::is_past;
use crate::schema::plan::FieldExpiries;
use crate::schema::unknown_field;
use crate::{Error, ErrorKind, Expiry, FieldId, FieldName, Key, OwnedValue, Result, Value};

/// Changes that happen together. A batch that is refused says for which of them ([`Error::failed_write`]).
#[derive(Clone, Default)]
pub struct PairBatch {
    steps: Vec<BatchStep>,
}

#[derive(Clone)]
struct BatchStep {
    table: PairTable,
    key: Arc<[u8]>,
    change: BatchChange,
}

#[derive(Clone)]
enum BatchChange {
    Put(OwnedFields, Option<u64>),
    Update(OwnedFields, Option<u64>),
    Expire(Option<u64>),
    Delete,
    Require(Option<u64>),
    UpdateExisting(OwnedFields),
    Increment(OwnedName, i64),
    /// What it must hold, and what then.
    CompareAndSet(OwnedName, OwnedValue, OwnedValue),
}

/// A field as it was given.
#[derive(Clone)]
enum OwnedName {
    Text(String),
    Id(FieldId),
}

/// Fields as they were given: by names, or resolved.
#[derive(Clone)]
enum OwnedFields {
    Named(Vec<(String, OwnedValue)>),
    Resolved(Vec<(FieldId, OwnedValue)>),
}

impl PairBatch {
    /// Nothing yet.
    pub fn new() -> PairBatch {
        PairBatch::default()
    }

    /// Adds a whole row, with when it expires, if it does.
    ///
    /// # Errors
    /// `Invalid` if the key cannot be; `NotFound` if there is no such field, where fields are given by their [`FieldId`]s.
    pub fn put<F: FieldName>(
        &mut self,
        table: &PairTable,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let bytes = key.key_bytes();
        let fields = owned(table, fields)?;
        self.push(table, bytes.as_ref(), BatchChange::Put(fields, table.unix_ms(expiry)))
    }

    /// Adds some fields, with when they expire on their own, if they do.
    ///
    /// # Errors
    /// As [`PairBatch::put`].
    pub fn update<F: FieldName>(
        &mut self,
        table: &PairTable,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let bytes = key.key_bytes();
        let fields = owned(table, fields)?;
        self.push(table, bytes.as_ref(), BatchChange::Update(fields, table.unix_ms(expiry)))
    }

    /// Adds when the row expires, or that it does not. Nothing if there is no row by then.
    ///
    /// # Errors
    /// `Invalid` if the key cannot be.
    pub fn expire(
        &mut self,
        table: &PairTable,
        key: &(impl Key + ?Sized),
        expiry: impl Into<Expiry>,
    ) -> Result<()> {
        let bytes = key.key_bytes();
        self.push(table, bytes.as_ref(), BatchChange::Expire(table.unix_ms(expiry)))
    }

    /// Adds the removal of a row.
    ///
    /// # Errors
    /// `Invalid` if the key cannot be.
    pub fn delete(&mut self, table: &PairTable, key: &(impl Key + ?Sized)) -> Result<()> {
        let bytes = key.key_bytes();
        self.push(table, bytes.as_ref(), BatchChange::Delete)
    }

    /// Adds a [`PairTable::update_existing`]: without a row by then the batch fails with `Conflict`.
    ///
    /// # Errors
    /// As [`PairBatch::put`].
    pub fn update_existing<F: FieldName>(
        &mut self,
        table: &PairTable,
        key: &(impl Key + ?Sized),
        fields: &[(F, Value<'_>)],
    ) -> Result<()> {
        let fields = owned(table, fields)?;
        self.push(table, key.key_bytes().as_ref(), BatchChange::UpdateExisting(fields))
    }

    /// Adds a [`PairTable::increment`]: to what the field holds then, earlier changes of the batch included.
    ///
    /// # Errors
    /// As [`PairBatch::put`].
    pub fn increment<F: FieldName>(
        &mut self,
        table: &PairTable,
        key: &(impl Key + ?Sized),
        field: F,
        by: i64,
    ) -> Result<()> {
        let field = owned_name(table, field)?;
        self.push(table, key.key_bytes().as_ref(), BatchChange::Increment(field, by))
    }

    /// Adds a [`PairTable::compare_and_set`]: unless the field then is what `expected` would make it, earlier changes of the batch included, the batch fails
    /// with `Conflict`.
    ///
    /// # Errors
    /// As [`PairBatch::put`].
    pub fn compare_and_set<F: FieldName>(
        &mut self,
        table: &PairTable,
        key: &(impl Key + ?Sized),
        field: F,
        expected: Value<'_>,
        new: Value<'_>,
    ) -> Result<()> {
        let field = owned_name(table, field)?;
        let change = BatchChange::CompareAndSet(field, expected.to_owned(), new.to_owned());
        self.push(table, key.key_bytes().as_ref(), change)
    }

    /// Has the batch fail with `Conflict` unless the row has this version before it; `None`: unless there is no row.
    ///
    /// # Errors
    /// `Invalid` if the key cannot be.
    pub fn require_version(
        &mut self,
        table: &PairTable,
        key: &(impl Key + ?Sized),
        version: Option<u64>,
    ) -> Result<()> {
        let bytes = key.key_bytes();
        self.push(table, bytes.as_ref(), BatchChange::Require(version))
    }

    fn push(&mut self, table: &PairTable, key: &[u8], change: BatchChange) -> Result<()> {
        table.check_key(key)?;
        self.steps.push(BatchStep { table: table.clone(), key: key.into(), change });
        Ok(())
    }

    /// Which of the changes count. Of several of a row only what they come to does: what stands before one that leaves nothing of it is not even looked at.
    fn which_count(&self, now_ms: u64) -> Vec<bool> {
        let mut rows: HashMap<(u32, &[u8]), Vec<usize>> = HashMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            rows.entry((step.table.number(), &step.key)).or_default().push(at);
        }
        let mut counts = vec![true; self.steps.len()];
        for steps in rows.values() {
            let first = self.first_that_counts(steps, now_ms);
            steps[..first].iter().for_each(|&at| counts[at] = false);
        }
        counts
    }

    /// Of the changes of one row, by their places.
    fn first_that_counts(&self, steps: &[usize], now_ms: u64) -> usize {
        use BatchChange::{CompareAndSet, Increment, UpdateExisting};
        let change = |&at: &usize| &self.steps[at].change;
        let looks = |step| matches!(change(step), CompareAndSet(..) | Increment(..) | UpdateExisting(..));
        if steps.iter().any(looks) {
            return 0;
        }
        let is_last = |at| at + 1 == steps.len();
        let replaces = |at: &usize| match change(&steps[*at]) {
            BatchChange::Put(..) | BatchChange::Delete => true,
            BatchChange::Expire(at_ms) => is_past(*at_ms, now_ms) && !is_last(*at),
            _ => false,
        };
        (0..steps.len()).rfind(replaces).unwrap_or(0)
    }

    /// `Unsupported` if it is about more than one row.
    fn check_one_row(&self) -> Result<()> {
        let row = |step: &BatchStep| (step.table.number(), Arc::clone(&step.key));
        let is_other = |(_, step): &(usize, &BatchStep)| row(step) != row(&self.steps[0]);
        match self.steps.iter().enumerate().find(is_other) {
            Some((at, step)) => {
                let message = "a batch of more than one row; this store changes one row at a time";
                Err(step.blame(at, Error::new(ErrorKind::Unsupported, message)))
            }
            None => Ok(()),
        }
    }
}

impl PairDb {
    /// Writes all of a batch, or nothing. What it requires is looked at first.
    ///
    /// # Errors
    /// `Unsupported` if it is about more than one row, of a backend without [batches](crate::backend::Command::Batch); `Invalid` if one of them is of another store,
    /// or all come to more than the backend takes; `Conflict` if what it requires is not so; those of the single changes.
    pub fn write(&self, batch: &PairBatch) -> Result<()> {
        if batch.steps.iter().any(|step| !step.table.is_of(self)) {
            return Err(Error::invalid("a batch writes to tables of one store, the one it is given to"));
        }
        if self.capabilities().batch_bytes_max == 0 {
            batch.check_one_row()?;
        }
        self.transact(|transaction| {
            for (at, step) in batch.steps.iter().enumerate() {
                step.check(transaction).map_err(|error| step.blame(at, error))?;
            }
            let counts = batch.which_count(transaction.now_ms());
            let mut steps = batch.steps.iter().enumerate().filter(|(at, _)| counts[*at]);
            steps.try_for_each(|(at, step)| step.apply(transaction).map_err(|error| step.blame(at, error)))
        })
    }
}

impl BatchStep {
    fn blame(&self, at: usize, error: Error) -> Error {
        error.in_batch(self.table.name(), &self.key, at)
    }

    /// Looks whether what it requires is so.
    fn check(&self, transaction: &Transaction) -> Result<()> {
        let BatchChange::Require(version) = self.change else { return Ok(()) };
        let found = self.table.held(transaction, &self.key, |row| Ok(row.map(|row| row.version())))?;
        match found == version {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Conflict, "the row has changed")),
        }
    }

    fn apply(&self, transaction: &mut Transaction) -> Result<()> {
        use OwnedFields::{Named, Resolved};
        match &self.change {
            BatchChange::Put(Named(fields), at_ms) => {
                self.edit(transaction, &Edit::Put(&borrowed(fields), *at_ms))
            }
            BatchChange::Put(Resolved(fields), at_ms) => {
                self.edit(transaction, &Edit::Put(&borrowed(fields), *at_ms))
            }
            BatchChange::Update(Named(fields), at_ms) => {
                self.edit(transaction, &Edit::Update(&borrowed(fields), FieldExpiries::All(*at_ms)))
            }
            BatchChange::Update(Resolved(fields), at_ms) => {
                self.edit(transaction, &Edit::Update(&borrowed(fields), FieldExpiries::All(*at_ms)))
            }
            BatchChange::Expire(at_ms) => self.edit(transaction, &Edit::<&str>::Expire(*at_ms)),
            BatchChange::Delete => self.edit(transaction, &Edit::<&str>::Delete),
            BatchChange::Require(_) => Ok(()),
            BatchChange::UpdateExisting(Named(fields)) => self.update_existing(transaction, fields),
            BatchChange::UpdateExisting(Resolved(fields)) => self.update_existing(transaction, fields),
            BatchChange::Increment(OwnedName::Text(field), by) => self.increment(transaction, field, *by),
            BatchChange::Increment(OwnedName::Id(field), by) => self.increment(transaction, field, *by),
            BatchChange::CompareAndSet(OwnedName::Text(field), expected, new) => {
                self.compare_and_set(transaction, field, [expected.borrow(), new.borrow()])
            }
            BatchChange::CompareAndSet(OwnedName::Id(field), expected, new) => {
                self.compare_and_set(transaction, field, [expected.borrow(), new.borrow()])
            }
        }
    }

    fn update_existing<N>(&self, transaction: &mut Transaction, fields: &[(N, OwnedValue)]) -> Result<()>
    where
        for<'n> &'n N: FieldName,
    {
        let edit = Edit::Update(&borrowed(fields), FieldExpiries::All(None));
        match self.table.update_existing_in(transaction, &self.key, &edit)? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Conflict, "there is no such row")),
        }
    }

    fn increment(&self, transaction: &mut Transaction, field: impl FieldName, by: i64) -> Result<()> {
        self.table.increment_in(transaction, &self.key, field, by).map(drop)
    }

    fn compare_and_set(
        &self,
        transaction: &mut Transaction,
        field: impl FieldName,
        values: [Value<'_>; 2],
    ) -> Result<()> {
        match self.table.compare_and_set_in(transaction, &self.key, field, values)? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Conflict, "the field holds another value")),
        }
    }

    fn edit<F: FieldName>(&self, transaction: &mut Transaction, edit: &Edit<'_, F>) -> Result<()> {
        self.table.edit_in(transaction, &self.key, edit).map(drop)
    }
}

fn owned_name<F: FieldName>(table: &PairTable, field: F) -> Result<OwnedName> {
    if let Some(name) = field.name() {
        return Ok(OwnedName::Text(name.to_owned()));
    }
    let schema = table.schema()?;
    let position = field.find(&schema).ok_or_else(|| unknown_field(field))?;
    Ok(OwnedName::Id(schema.fields()[position].id()))
}

/// Fields that borrow nothing.
fn owned<F: FieldName>(table: &PairTable, fields: &[(F, Value<'_>)]) -> Result<OwnedFields> {
    let named = |(field, value): &(F, Value<'_>)| Some((field.name()?.to_owned(), value.to_owned()));
    if let Some(named) = fields.iter().map(named).collect() {
        return Ok(OwnedFields::Named(named));
    }
    let schema = table.schema()?;
    let resolved = |(field, value): &(F, Value<'_>)| {
        let position = field.find(&schema).ok_or_else(|| unknown_field(*field))?;
        Ok((schema.fields()[position].id(), value.to_owned()))
    };
    Ok(OwnedFields::Resolved(fields.iter().map(resolved).collect::<Result<_>>()?))
}
