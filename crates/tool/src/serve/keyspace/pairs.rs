//! Redis keys as rows of a store of pairs, which others may write, too: which row a key is, what type it has, and every change of it.
//!
//! Owns: the mapping below, and the attempt of the command under way. Promises: what a key is, one row says, so that whoever writes, it has
//! one type; a command changes one row, if that still is what the command saw, or none. Nothing waits here: what is not at hand is recorded, and the command
//! is given again ([`Attempt`]). Must not know replies or connections.
//!
//! | key | table of database 0 | row |
//! |---|---|---|
//! | `users:42` (split at the first `:`) | `users` | `42` |
//! | one without `:`, or with nothing before or after it | `@plain` | the whole key |
//! | one whose prefix is too long for a table's name | `@overflow` | the whole key |
//!
//! A string is the field `@string` of its row, a field of a hash the field of its name, spelt as [`field_names`] says; a row with neither is no
//! key. Database `n` above 0 has `@n/` before each name. Where a key is follows from the key alone: all who serve the store agree on it.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hedgerow::{ErrorKind, FieldName, Schema, Type, Value};
use hedgerow_device::{Clock, Random};
use hedgerow_row::pairs::{Edit, HeldRow, PairDb};
use hedgerow_row::schema::table::TableSchema;

use super::copied::{Copied, CopiedField};
use super::cursor::{KeyWalk, Position, Source};
use super::naming::{self, Place, TableName};
use super::{Declared, Filter, Kind, TIME_STEP, TableSummary, Watched};
use crate::serve::failure::{Failure, Outcome, quote};
use crate::serve::limits;

pub mod attempt;
pub mod chores;
pub mod field_names;
pub mod hashes;
pub mod scan;
mod tables;

use attempt::{Attempt, Step};
use chores::{Chore, Done, FieldChange};
use field_names::STRING;
use scan::{KeyScan, ScannedKeys};

/// Rows among which a random key is chosen.
const RANDOM_ROWS: usize = 1_000;

/// All databases of one store of pairs.
pub struct PairKeyspace {
    db: PairDb,
    /// Shared with the store.
    clock: Clock,
    now_ms: u64,
    /// When it last looked at the clock.
    refreshed: Instant,
    /// Of the command under way.
    attempt: Box<Attempt>,
    watched: usize,
}

/// The value of a field; `Null` if the table has none of that name.
fn value<'r>(row: &'r HeldRow<'_>, name: &str) -> hedgerow::Result<Value<'r>> {
    match row.get(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Value::Null),
        other => other,
    }
}

/// Which type of key a row is, if it is one.
fn kind_of(row: &HeldRow<'_>) -> hedgerow::Result<Option<Kind>> {
    if !value(row, STRING)?.is_null() {
        return Ok(Some(Kind::String));
    }
    let mut has_fields = false;
    row.for_each(|name, _| has_fields |= field_names::decoded(name).is_some())?;
    Ok(has_fields.then_some(Kind::Hash))
}

/// A field as tables have it.
fn spelt(name: &str) -> String {
    field_names::encoded(name.as_bytes()).into_owned()
}

/// The table and the row of a key.
fn locate(space: usize, key: &[u8]) -> (String, &[u8]) {
    let (place, row) = match naming::split(key) {
        None => (Place::Plain, key),
        Some((prefix, row)) if naming::fits(space, prefix) => (Place::Prefix(prefix.into()), row),
        Some(_) => (Place::Overflow, key),
    };
    (TableName { space, place }.to_string(), row)
}

/// What commands begin and end with.
impl PairKeyspace {
    /// The keys of a store, which goes by `clock`.
    pub fn new(db: PairDb, clock: Clock) -> PairKeyspace {
        let now_ms = clock.refresh();
        let attempt = Box::new(Attempt::new(&db));
        PairKeyspace { db, clock, now_ms, refreshed: Instant::now(), attempt, watched: 0 }
    }

    /// The store under the keys.
    pub fn db(&self) -> &PairDb {
        &self.db
    }

    /// See [`Keyspace::refresh_time`](super::Keyspace::refresh_time).
    pub fn refresh_time(&mut self, now: Instant) {
        self.now_ms = self.clock.refresh();
        self.refreshed = now;
    }

    /// See [`Keyspace::refresh_old_time`](super::Keyspace::refresh_old_time).
    pub fn refresh_old_time(&mut self, now: Instant) {
        if now.saturating_duration_since(self.refreshed) >= TIME_STEP {
            self.refresh_time(now);
        }
    }

    /// See [`Keyspace::uptime`](super::Keyspace::uptime).
    pub fn uptime(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_ns())
    }

    /// See [`Keyspace::now_ms`](super::Keyspace::now_ms).
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Tells that a command begins: with what was fetched for it, if it was given before.
    #[cold]
    pub fn begin_command(&mut self, parked: &mut Option<Box<Attempt>>) {
        self.attempt = parked.take().unwrap_or_else(|| Box::new(Attempt::new(&self.db)));
        self.attempt.begin();
    }

    /// Tells that it has ended, and whether well: then its changes wait to be made, or what it read to be checked.
    #[cold]
    pub fn end_command(&mut self, is_done: bool) -> Option<(Box<Attempt>, Step)> {
        let Some(step) = self.attempt.next_step(is_done) else {
            // What it had at hand is in memory no longer than it is needed.
            *self.attempt = Attempt::new(&self.db);
            return None;
        };
        let next = Box::new(Attempt::new(&self.db));
        Some((std::mem::replace(&mut self.attempt, next), step))
    }

    /// The attempt of the command under way.
    pub fn attempt_mut(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    /// Begins a command of several that are done together.
    pub fn begin_part(&mut self) {
        self.attempt.transaction.begin_part();
    }

    /// What the command that was begun last has changed it has not.
    pub fn undo_part(&mut self) {
        self.attempt.transaction.undo_part();
    }

    /// Whether all changes of the attempt are there to be made: they were not too much to be in memory at once.
    pub fn check_changes(&self) -> Outcome<()> {
        Ok(self.attempt.transaction.check_changes()?)
    }

    /// Whether the command lacks something.
    pub fn wants_again(&self) -> bool {
        self.attempt.has_missed()
    }

    /// Whether the command, done well, waits for a step before it is answered.
    pub fn waits_to_be_answered(&self) -> bool {
        self.attempt.last_step().is_some()
    }

    /// What the command reads is to have been there at one time.
    pub fn check_reads(&mut self) {
        self.attempt.check_reads();
    }

    /// Why the command can not be done, if that was found out since it was given before.
    pub fn take_failure(&mut self) -> Option<Failure> {
        self.attempt.take_failure()
    }

    /// Has the rows of keys fetched with what the command will be found to lack.
    pub fn prefetch<'k>(&self, space: usize, keys: impl Iterator<Item = &'k [u8]>) {
        let range = self.attempt.next_keys();
        for key in keys.skip(range.start).take(range.len()) {
            let (table, row) = locate(space, key);
            self.attempt.transaction.prefetch(&table, row);
        }
    }

    /// Whether several keys may change together.
    pub fn has_batches(&self) -> bool {
        self.db.capabilities().batch_bytes_max > 0
    }

    /// How many keys are watched.
    pub fn watched(&self) -> usize {
        self.watched
    }

    /// See [`Keyspace::watch`](super::Keyspace::watch).
    pub fn watch(&mut self, space: usize, key: &[u8]) -> Outcome<Watched> {
        let kind = self.kind(space, key)?;
        let first_field_expiry_ms = match kind {
            Some(Kind::Hash) => self.hash(space, key, |view| view.first_expiry_ms())?.flatten(),
            _ => None,
        };
        let since = self.mark(space, key)?;
        let watched = Watched { existed: kind.is_some(), first_field_expiry_ms, since };
        self.watched += 1;
        Ok(watched)
    }

    /// One client less watches a key.
    pub fn unwatch(&mut self) {
        self.watched = self.watched.saturating_sub(1);
    }

    /// Whether a watched key was changed, or has expired, or a field of it, since.
    pub fn has_changed(&self, space: usize, key: &[u8], watched: Watched) -> Outcome<bool> {
        Ok(self.mark(space, key)? != watched.since
            || watched.has_lost_field(self.now_ms)
            || watched.existed && !self.exists(space, key)?)
    }

    /// What tells the row of a key from all that were there before it; none if there is no row.
    fn mark(&self, space: usize, key: &[u8]) -> Outcome<Option<u64>> {
        let (table, row) = locate(space, key);
        let transaction = &self.attempt.transaction;
        let mark = match transaction.schema(&table) {
            Ok(None) => Ok(None),
            Ok(Some(_)) => transaction.seen(&table, row),
            Err(error) => Err(error),
        };
        Ok(self.attempt.checked(mark)?.map(|mark| mark.number()))
    }
}

/// Keys of any type, and strings.
impl PairKeyspace {
    /// Runs `read` on the row of a key, or on `None`.
    fn row<R>(
        &self,
        space: usize,
        key: &[u8],
        read: impl FnOnce(Option<&HeldRow<'_>>) -> hedgerow::Result<R>,
    ) -> Outcome<R> {
        self.attempt.checked(self.read(space, key, read))
    }

    fn read<R>(
        &self,
        space: usize,
        key: &[u8],
        read: impl FnOnce(Option<&HeldRow<'_>>) -> hedgerow::Result<R>,
    ) -> hedgerow::Result<R> {
        let (table, row) = locate(space, key);
        let transaction = &self.attempt.transaction;
        match transaction.schema(&table) {
            Ok(Some(_)) => transaction.read(&table, row, read),
            Ok(None) => read(None),
            Err(error) => {
                transaction.prefetch(&table, row);
                Err(error)
            }
        }
    }

    /// The schema of the table of a key, which is made if there is none.
    fn schema(&self, table: &str) -> Outcome<Arc<TableSchema>> {
        let transaction = &self.attempt.transaction;
        match self.attempt.checked(transaction.schema(table))? {
            Some(schema) => Ok(Arc::clone(schema)),
            None => {
                // The names of a hash's fields are not to take the last place from strings.
                let schema = Schema::open().nullable(STRING, Type::Bytes);
                self.attempt.checked(transaction.create_table(table, &schema))?;
                // Only if it came and went.
                Err(Failure::text("ERR the table of this key was dropped"))
            }
        }
    }

    fn edit<F: FieldName>(&mut self, table: &str, row: &[u8], edit: &Edit<'_, F>) -> Outcome<bool> {
        let edited = self.attempt.transaction.edit(table, row, edit);
        self.attempt.checked(edited)
    }

    /// See [`Keyspace::kind`](super::Keyspace::kind).
    pub fn kind(&self, space: usize, key: &[u8]) -> Outcome<Option<Kind>> {
        self.row(space, key, |row| Ok(row.map(kind_of).transpose()?.flatten()))
    }

    /// Whether a key exists.
    pub fn exists(&self, space: usize, key: &[u8]) -> Outcome<bool> {
        Ok(self.kind(space, key)?.is_some())
    }

    /// How many of these keys exist.
    pub fn count_existing<'k>(&self, space: usize, mut keys: impl Iterator<Item = &'k [u8]>) -> Outcome<u64> {
        keys.try_fold(0, |count, key| Ok(count + u64::from(self.exists(space, key)?)))
    }

    /// Removes a key; says whether it existed.
    pub fn delete(&mut self, space: usize, key: &[u8]) -> Outcome<bool> {
        let (table, row) = locate(space, key);
        let existed = match self.read(space, key, |row| row.map(kind_of).transpose()) {
            // What is damaged can be removed, and was something.
            Err(error) if error.kind() == ErrorKind::Corrupted => true,
            kind => self.attempt.checked(kind)?.flatten().is_some(),
        };
        if existed {
            self.edit(&table, row, &Edit::<&str>::Delete)?;
        }
        Ok(existed)
    }

    /// See [`Keyspace::expiry`](super::Keyspace::expiry).
    pub fn expiry(&self, space: usize, key: &[u8]) -> Outcome<Option<Option<u64>>> {
        self.row(space, key, |row| {
            let Some(row) = row else { return Ok(None) };
            Ok(kind_of(row)?.map(|_| row.expires_at_ms()))
        })
    }

    /// Sets or clears the expiry of a key; false if it does not exist.
    pub fn set_expiry(&mut self, space: usize, key: &[u8], at_ms: Option<u64>) -> Outcome<bool> {
        let existed = self.exists(space, key)?;
        let (table, row) = locate(space, key);
        if existed {
            self.edit(&table, row, &Edit::<&str>::Expire(at_ms))?;
        }
        Ok(existed)
    }

    /// See [`Keyspace::copy`](super::Keyspace::copy). Of a store that changes one row at a time only a key onto itself.
    pub fn copy(&mut self, from: (usize, &[u8]), to: (usize, &[u8]), is_move: bool) -> Outcome<()> {
        let expires_at_ms = self.expiry(from.0, from.1)?.ok_or(Failure::NO_SUCH_KEY)?;
        if from == to {
            return Ok(());
        }
        if !self.has_batches() {
            return Err(Failure::CROSS_SLOT);
        }
        match self.copied(from.0, from.1)? {
            Copied::String(value) => self.string_put(to.0, to.1, &value, expires_at_ms)?,
            Copied::Hash(fields) => {
                let (table, row) = locate(to.0, to.1);
                self.schema(&table)?;
                // Whatever was there goes whole, with its expiry.
                self.edit(&table, row, &Edit::<&str>::Delete)?;
                self.hash_set(to.0, to.1, fields.iter().map(CopiedField::write))?;
                self.set_expiry(to.0, to.1, expires_at_ms)?;
            }
        }
        match is_move {
            true => self.delete(from.0, from.1).map(drop),
            false => Ok(()),
        }
    }

    fn copied(&self, space: usize, key: &[u8]) -> Outcome<Copied> {
        if self.kind(space, key)? == Some(Kind::String) {
            let value = self.string(space, key, |value, _| value.to_vec())?;
            return value.map(Copied::String).ok_or(Failure::NO_SUCH_KEY);
        }
        Copied::of_hash(|fields| {
            self.hash(space, key, |view| {
                view.for_each(|name, value| fields.push(name, value))?;
                fields.set_expiries(|name| view.field_expiry(name))
            })
        })
    }

    /// Runs `read` on a string and its expiry. None if the key does not exist; WRONGTYPE if it is a hash.
    pub fn string<R>(
        &self,
        space: usize,
        key: &[u8],
        read: impl FnOnce(&[u8], Option<u64>) -> R,
    ) -> Outcome<Option<R>> {
        let found = self.row(space, key, |row| {
            let Some(row) = row else { return Ok(Ok(None)) };
            if let Some(value) = value(row, STRING)?.as_bytes() {
                return Ok(Ok(Some(read(value, row.expires_at_ms()))));
            }
            Ok(match kind_of(row)? {
                None => Ok(None),
                Some(_) => Err(Failure::WRONG_TYPE),
            })
        });
        found?
    }

    /// Writes a string over whatever the key was, with a new expiry or none.
    pub fn string_put(
        &mut self,
        space: usize,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Outcome<()> {
        let (table, row) = locate(space, key);
        self.check_takes_strings(&table)?;
        self.edit(&table, row, &Edit::Put(&[(STRING, Value::Bytes(value))], expires_at_ms)).map(drop)
    }

    /// Changes a string, keeping its expiry. The caller knows that the key is a string, or does not exist.
    pub fn string_update(&mut self, space: usize, key: &[u8], value: &[u8]) -> Outcome<()> {
        let expires_at_ms = self.expiry(space, key)?.flatten();
        self.string_put(space, key, value, expires_at_ms)
    }

    fn check_takes_strings(&self, table: &str) -> Outcome<()> {
        let schema = self.schema(table)?;
        match schema.fields().is_open() || schema.fields().field_by_name(STRING).is_some() {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "ERR the schema of table '{table}' is declared, and has no field for strings: its keys are hashes"
            ))),
        }
    }
}

/// Many keys.
impl PairKeyspace {
    /// About how many keys a database has.
    pub fn len(&self, space: usize) -> Outcome<u64> {
        match self.attempt.chore(Chore::Count)? {
            Done::Counted(counts) => Ok(counts.get(space).copied().unwrap_or(0)),
            _ => Err(Failure::NOT_YET),
        }
    }

    /// Removes all keys of some databases, table by table. Tables with a declared schema stay; the others go.
    pub fn clear(&mut self, spaces: Range<usize>) -> Outcome<()> {
        self.attempt.chore(Chore::Clear(spaces)).map(drop)
    }

    /// Runs `visit` on keys of a database from a position on, passing about `budget` rows, and gives the position where to go on. `visit`
    /// is told all that was passed, whatever it says.
    pub fn scan_keys(
        &self,
        space: usize,
        from: Option<&Position>,
        budget: usize,
        filter: Filter<'_>,
        mut visit: impl FnMut(&[u8]) -> bool,
    ) -> Outcome<Option<Position>> {
        let bytes = if budget == usize::MAX { limits::KEYS_BYTES_MAX } else { limits::SCAN_BYTES_MAX };
        let scanned = self.scan(KeyScan {
            space,
            from: from.and_then(|from| from.walk.clone()).unwrap_or(KeyWalk::START),
            rows: budget.max(1),
            bytes,
            pattern: filter.pattern.map(<[u8]>::to_vec),
            kind: filter.kind,
        })?;
        for key in &scanned.keys {
            visit(key);
        }
        let next = scanned.next.clone();
        if budget == usize::MAX && next.is_some() {
            return Err(Failure::new(format!(
                "ERR the keys have more than {} bytes together: SCAN tells them by and by",
                limits::KEYS_BYTES_MAX
            )));
        }
        Ok(next.map(|walk| Position {
            space,
            source: Source::Tables,
            after: Box::default(),
            walk: Some(walk),
        }))
    }

    fn scan(&self, scan: KeyScan) -> Outcome<&ScannedKeys> {
        match self.attempt.chore(Chore::Scan(scan))? {
            Done::Scanned(keys) => Ok(keys),
            _ => Err(Failure::NOT_YET),
        }
    }

    /// A key chosen by `random` among the first that a walk comes by.
    pub fn random_key(&self, space: usize, random: &mut Random) -> Outcome<Option<Vec<u8>>> {
        let mut scan = KeyScan {
            space,
            from: KeyWalk::START,
            rows: RANDOM_ROWS,
            bytes: limits::SCAN_BYTES_MAX,
            pattern: None,
            kind: None,
        };
        loop {
            let ScannedKeys { keys, next } = self.scan(scan.clone())?;
            match (keys.len(), next) {
                // What it came by were tables without keys, and rows that are none.
                (0, Some(next)) => scan.from = next.clone(),
                (0, None) => return Ok(None),
                (len, _) => return Ok(keys.get(random.below(len as u64) as usize).cloned()),
            }
        }
    }
}

/// Tables, as the commands of our own see them.
impl PairKeyspace {
    fn table_of(space: usize, prefix: &[u8]) -> String {
        TableName { space, place: Place::Prefix(prefix.into()) }.to_string()
    }

    fn existing(&self, space: usize, prefix: &[u8]) -> Outcome<(String, Arc<TableSchema>)> {
        let name = PairKeyspace::table_of(space, prefix);
        let schema = self.attempt.checked(self.attempt.transaction.schema(&name))?.cloned();
        let schema = schema.ok_or_else(|| Failure::new(format!("ERR no such table '{}'", quote(prefix))))?;
        Ok((name, schema))
    }

    /// Declares the table of a prefix.
    pub fn declare(&mut self, space: usize, prefix: &[u8], fields: &[Declared]) -> Outcome<()> {
        naming::check_prefix(space, prefix)?;
        let name = PairKeyspace::table_of(space, prefix);
        let spelt = |field: &Declared| Declared { name: spelt(&field.name), ..field.clone() };
        let fields: Vec<Declared> = fields.iter().map(spelt).collect();
        let create = Chore::Create(name.clone(), Declared::schema(&fields));
        if !self.attempt.has_done(&create)
            && self.attempt.checked(self.attempt.transaction.schema(&name))?.is_some()
        {
            return Err(Failure::new(format!("ERR table '{}' exists already", quote(prefix))));
        }
        self.attempt.chore(create).map(drop)
    }

    /// The fields of the table of a prefix.
    pub fn fields(&self, space: usize, prefix: &[u8]) -> Outcome<Vec<Declared>> {
        let (_, schema) = self.existing(space, prefix)?;
        let declared = schema.fields().fields().iter().filter_map(|field| {
            let name = String::from_utf8_lossy(&field_names::decoded(field.name())?).into_owned();
            Some(Declared { name, kind: field.kind(), nullable: field.is_nullable() })
        });
        Ok(declared.collect())
    }

    /// The tables of a database, in the order of their prefixes.
    pub fn summaries(&self, space: usize) -> Outcome<Vec<TableSummary>> {
        match self.attempt.chore(Chore::Summaries(space))? {
            Done::Summaries(summaries) => {
                let mut summaries = summaries.clone();
                summaries.sort_unstable_by(|a, b| a.prefix.cmp(&b.prefix));
                // A walk may come by a table twice.
                summaries.dedup_by(|a, b| a.prefix == b.prefix);
                Ok(summaries)
            }
            _ => Err(Failure::NOT_YET),
        }
    }

    /// Adds a nullable field to a table.
    pub fn add_field(&mut self, space: usize, prefix: &[u8], name: &str, kind: Type) -> Outcome<()> {
        self.evolve(space, prefix, FieldChange::Add(spelt(name), kind))
    }

    /// Gives a field another name.
    pub fn rename_field(&mut self, space: usize, prefix: &[u8], name: &str, to: &str) -> Outcome<()> {
        self.evolve(space, prefix, FieldChange::Rename(spelt(name), spelt(to)))
    }

    /// Removes a field from a table and so from all its rows.
    pub fn drop_field(&mut self, space: usize, prefix: &[u8], name: &str) -> Outcome<()> {
        self.evolve(space, prefix, FieldChange::Drop(spelt(name)))
    }

    fn evolve(&mut self, space: usize, prefix: &[u8], change: FieldChange) -> Outcome<()> {
        let (name, _) = self.existing(space, prefix)?;
        self.attempt.chore(Chore::Evolve(name, change)).map(drop)
    }

    /// Drops the table of a prefix, its schema and its rows; says whether there was one.
    pub fn drop_table(&mut self, space: usize, prefix: &[u8]) -> Outcome<bool> {
        match self.attempt.chore(Chore::Drop(PairKeyspace::table_of(space, prefix)))? {
            Done::Changed(changed) => Ok(*changed),
            _ => Err(Failure::NOT_YET),
        }
    }
}
