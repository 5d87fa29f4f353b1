//! Tables as the commands of our own see them: declared, extended, dropped, scanned.

use hedgerow::{Scan, Type};

use super::table::{HashTable, is_reserved};
use super::{TableIndex, TieredKeyspace};
use crate::serve::failure::{Failure, Outcome, quote};
use crate::serve::keyspace::naming::{self, Place, TableName};
use crate::serve::keyspace::{Declared, TableSummary};

impl TieredKeyspace {
    /// Declares the table of a prefix.
    pub fn declare(&mut self, space: usize, prefix: &[u8], fields: &[Declared]) -> Outcome<()> {
        naming::check_prefix(space, prefix)?;
        if self.space(space).by_prefix.contains_key(prefix) {
            return Err(Failure::new(format!("ERR table '{}' exists already", quote(prefix))));
        }
        if self.has_overflown(space, prefix)? {
            return Err(Failure::new(format!(
                "ERR keys that start with '{}:' are in the shared table of further prefixes; remove them first",
                quote(prefix)
            )));
        }
        let schema = Declared::schema(fields);
        let name = TableName { space, place: Place::Prefix(prefix.into()) };
        let table = self.writer.prepare(|| self.db.create_table(&name.to_string(), schema.clone()))?;
        self.writer.record_change();
        self.attach(name, table)
    }

    /// The table of a prefix.
    pub fn table(&self, space: usize, prefix: &[u8]) -> Outcome<&HashTable> {
        Ok(&self.tables[self.table_index(space, prefix)?])
    }

    fn table_index(&self, space: usize, prefix: &[u8]) -> Outcome<TableIndex> {
        let found = self.space(space).by_prefix.get(prefix);
        found.copied().ok_or_else(|| Failure::new(format!("ERR no such table '{}'", quote(prefix))))
    }

    /// The fields of the table of a prefix.
    pub fn fields(&self, space: usize, prefix: &[u8]) -> Outcome<Vec<Declared>> {
        let schema = self.table(space, prefix)?.table().schema();
        let own = schema.fields().iter().filter(|field| !is_reserved(field.name().as_bytes()));
        let declared = own.map(|field| Declared {
            name: field.name().to_owned(),
            kind: field.kind(),
            nullable: field.is_nullable(),
        });
        Ok(declared.collect())
    }

    /// The prefixes that have tables, in order.
    pub fn summaries(&self, space: usize) -> Vec<TableSummary> {
        let prefixes = self.space(space).in_order.iter();
        let summaries = prefixes.map(|(prefix, &index)| {
            let table = &self.tables[index];
            let schema = table.table().schema();
            let own = schema.fields().iter().filter(|field| !is_reserved(field.name().as_bytes()));
            TableSummary {
                prefix: prefix.to_vec(),
                rows: table.table().len(),
                fields: own.count(),
                is_open: table.is_open(),
            }
        });
        summaries.collect()
    }

    /// Adds a nullable field to a table.
    pub fn add_field(&mut self, space: usize, prefix: &[u8], name: &str, kind: Type) -> Outcome<()> {
        self.check_has_no_overflow_fields(space, prefix)?;
        self.evolve(space, prefix, |table| table.table().add_field(name, kind))
    }

    /// Gives a field another name.
    pub fn rename_field(&mut self, space: usize, prefix: &[u8], name: &str, to: &str) -> Outcome<()> {
        self.check_has_no_overflow_fields(space, prefix)?;
        self.evolve(space, prefix, |table| table.table().rename_field(name, to))
    }

    /// Removes a field from a table and so from all its rows.
    pub fn drop_field(&mut self, space: usize, prefix: &[u8], name: &str) -> Outcome<()> {
        let index = self.table_index(space, prefix)?;
        // Rows that had no other are no keys any more, like those whose fields have expired. What tells to look for such rows comes as the field goes:
        // a table with as many fields as there may be has room for it then.
        let marks = self.tables[index].may_leave_no_field(name.as_bytes());
        let db = self.db.clone();
        self.evolve(space, prefix, |table| match marks {
            true => table.drop_field_and_mark(&db, name),
            false => table.table().drop_field(name),
        })?;
        self.expiries.sweep_all();
        Ok(())
    }

    /// A hash may have an overflow field of the name that the table is to have, which nobody would find any more.
    fn check_has_no_overflow_fields(&self, space: usize, prefix: &[u8]) -> Outcome<()> {
        match self.table(space, prefix)?.overflow_fields() {
            None => Ok(()),
            Some(_) => Err(Failure::new(format!(
                "ERR hashes of table '{}' have fields beside those of the table, one of which may have that name; move them into a table with a declared schema (HR.CREATE)",
                quote(prefix)
            ))),
        }
    }

    fn evolve(
        &mut self,
        space: usize,
        prefix: &[u8],
        change: impl Fn(&HashTable) -> hedgerow::Result<()>,
    ) -> Outcome<()> {
        let index = self.table_index(space, prefix)?;
        let (table, before) = (&self.tables[index], self.tables[index].schema_bytes());
        self.writer.prepare(|| change(table))?;
        self.writer.record_change();
        self.watches.touch_all(space);
        self.tables[index].reload()?;
        self.schema_bytes = self.schema_bytes.saturating_sub(before) + self.tables[index].schema_bytes();
        Ok(())
    }

    /// Drops the table of a prefix, its schema and its rows; says whether there was one.
    pub fn drop_table(&mut self, space: usize, prefix: &[u8]) -> Outcome<bool> {
        let Some(&index) = self.space(space).by_prefix.get(prefix) else { return Ok(false) };
        let name = self.tables[index].name();
        self.writer.prepare(|| self.db.drop_table(&name))?;
        self.writer.record_change();
        if self.detach(index).has_expiring_fields() {
            self.expiries.forget_table(space, prefix);
        }
        self.expiries.sweep_all();
        Ok(true)
    }

    /// A scan of the rows of a prefix.
    pub fn scan_rows(&self, space: usize, prefix: &[u8]) -> Outcome<(Scan, &HashTable)> {
        let table = self.table(space, prefix)?;
        Ok((table.table().scan(), table))
    }
}
