//! Where changes of rows go: to the store at once, or into a batch.
//!
//! Owns: the batch being gathered, and what the rows it names will be once it is written. Must not know keys or tables' places.

use std::collections::HashMap;

use hedgerow::{Batch, FieldId, Table, Value};

use crate::serve::failure::Outcome;

/// Makes changes of rows, or gathers them.
#[derive(Default)]
pub(super) struct Writer {
    gathered: Option<Gathered>,
    /// Changes made so far.
    count: u64,
}

/// Writes that wait for the others of their batch.
#[derive(Default)]
struct Gathered {
    batch: Batch,
    /// By the table's name and the row's key.
    rows: HashMap<(String, Box<[u8]>), Fate>,
}

/// What a row will be, as far as expiry goes.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// It will not be there.
    Absent,
    /// It will be there, and expire then, or not at all.
    Expires(Option<u64>),
    /// It will be there, and expire as it would have.
    AsBefore,
}

impl Writer {
    /// Starts gathering, unless that was done already; says whether it did.
    pub(super) fn begin(&mut self) -> bool {
        let starts = self.gathered.is_none();
        if starts {
            self.gathered = Some(Gathered::default());
        }
        starts
    }

    /// The writes gathered, and an end of gathering.
    pub(super) fn take(&mut self) -> Option<Batch> {
        self.gathered.take().map(|gathered| gathered.batch)
    }

    /// A number that grows with every change.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Counts a change that was made without the writer.
    pub(super) fn note_change(&mut self) {
        self.count += 1;
    }

    #[inline]
    pub(super) fn update(
        &mut self,
        table: &Table,
        row: &[u8],
        fields: &[(FieldId, Value<'_>)],
    ) -> Outcome<()> {
        self.count += 1;
        match &mut self.gathered {
            None => Ok(table.update(row, fields)?),
            Some(gathered) => {
                gathered.batch.update(table, row, fields)?;
                gathered.note(table, row, Fate::AsBefore);
                Ok(())
            }
        }
    }

    pub(super) fn put(
        &mut self,
        table: &Table,
        row: &[u8],
        fields: &[(FieldId, Value<'_>)],
        expires_at_ms: Option<u64>,
    ) -> Outcome<()> {
        self.count += 1;
        let Some(gathered) = &mut self.gathered else {
            return Ok(match expires_at_ms {
                None => table.put(row, fields)?,
                Some(at) => table.put_expiring(row, fields, at)?,
            });
        };
        match expires_at_ms {
            None => gathered.batch.put(table, row, fields)?,
            Some(at) => gathered.batch.put_expiring(table, row, fields, at)?,
        }
        gathered.note(table, row, Fate::Expires(expires_at_ms));
        Ok(())
    }

    /// Whether there was a row.
    pub(super) fn delete(&mut self, table: &Table, row: &[u8]) -> Outcome<bool> {
        self.count += 1;
        let Some(gathered) = &mut self.gathered else { return Ok(table.delete(row)?) };
        let existed = table.exists(row)?;
        if existed {
            gathered.batch.delete(table, row)?;
            gathered.note(table, row, Fate::Absent);
        }
        Ok(existed)
    }

    /// Sets or clears the expiry of a row that is there, or will be.
    pub(super) fn expire(&mut self, table: &Table, row: &[u8], at_ms: Option<u64>) -> Outcome<bool> {
        self.count += 1;
        let Some(gathered) = &mut self.gathered else { return Ok(table.expire(row, at_ms)?) };
        gathered.batch.set_expiry(table, row, at_ms)?;
        gathered.note(table, row, Fate::Expires(at_ms));
        Ok(true)
    }

    /// What the gathered writes make of a row: None if they leave it as it is, else its expiry if it will be there.
    pub(super) fn gathered_expiry(&self, table: &Table, row: &[u8]) -> Outcome<Option<Option<Option<u64>>>> {
        let Some(gathered) = &self.gathered else { return Ok(None) };
        Ok(match gathered.rows.get(&(table.name().to_owned(), row.into())) {
            None => None,
            Some(Fate::Absent) => Some(None),
            Some(Fate::Expires(at_ms)) => Some(Some(*at_ms)),
            Some(Fate::AsBefore) => Some(Some(table.read(row, |row| Ok(row.expires_at_ms()))?.flatten())),
        })
    }
}

impl Gathered {
    fn note(&mut self, table: &Table, row: &[u8], fate: Fate) {
        let was = self.rows.entry((table.name().to_owned(), row.into())).or_insert(fate);
        *was = match (*was, fate) {
            // An update keeps what was gathered before; after a removal it makes the row anew.
            (Fate::Expires(at_ms), Fate::AsBefore) => Fate::Expires(at_ms),
            (Fate::Absent, Fate::AsBefore) => Fate::Expires(None),
            _ => fate,
        };
    }
}
