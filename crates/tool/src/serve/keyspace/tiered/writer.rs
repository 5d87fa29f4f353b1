//! Where changes of rows go: to the store at once, or into a batch.
//!
//! Owns: the batch being staged, and what the rows it names will be once it is written. Promises: a change that finds no room, or a read
//! of a row that is not in memory, makes the whole command fail for now ([`Wants`]), so that nobody sleeps on the event loop; only a command
//! that has changed something by then sleeps, and upkeep never does. Must not know keys or tables' places.

use std::collections::HashMap;

use hedgerow::{AtHandOnly, Batch, Db, Error, ErrorKind, Expiry, FieldId, Missing, Table, Value};
use hedgerow_row::transaction_bytes::TransactionBytes;

use crate::serve::failure::Outcome;
use crate::serve::keyspace::wants::{FETCHES_MAX, Tries, Wants};
use crate::serve::waiter;

/// Makes changes of rows, or stages them.
pub(super) struct Writer {
    db: Db,
    staged: Option<Staged>,
    /// The command under way has changed something: it can not be tried again from its start.
    has_changed: bool,
    is_last_try: bool,
    is_upkeep: bool,
    wants: Option<Wants>,
    /// Reads do not wait for the disk.
    at_hand_only: bool,
    /// What was brought for the command is held for its thread.
    holds_brought: bool,
}

/// Writes that wait for the others of their batch.
#[derive(Default)]
struct Staged {
    batch: Batch,
    /// By the table's name and the row's key.
    rows: HashMap<(String, Box<[u8]>), PendingState>,
    /// Of all writes: the batch has each of them, what a later one overwrites as well.
    bytes: TransactionBytes,
}

/// What a row will be, as far as expiry goes.
#[derive(Debug, Clone, Copy)]
enum PendingState {
    /// It will not be there.
    Absent,
    /// It will be there, and expire then, or not at all.
    Expires(Option<u64>),
    /// It will be there, and expire as it would have.
    AsBefore,
}

impl Writer {
    pub(super) fn new(db: Db) -> Writer {
        Writer {
            db,
            staged: None,
            has_changed: false,
            is_last_try: false,
            is_upkeep: false,
            wants: None,
            at_hand_only: false,
            holds_brought: false,
        }
    }

    /// See [`TieredKeyspace::begin_command`](super::TieredKeyspace::begin_command).
    #[inline]
    pub(super) fn begin_command(
        &mut self,
        tries: Tries,
        brought: &mut Option<Missing>,
    ) -> Option<AtHandOnly> {
        (self.has_changed, self.wants) = (false, None);
        self.is_last_try = tries.idle_waits >= waiter::IDLE_ROUNDS_MAX;
        self.is_upkeep = tries.is_upkeep;
        self.at_hand_only = tries.fetches == 0 || self.goes_on_at_hand(tries, brought.take());
        self.at_hand_only.then(|| self.db.at_hand_only())
    }

    /// See [`TieredKeyspace::end_command`](super::TieredKeyspace::end_command).
    #[inline]
    pub(super) fn end_command(&mut self) -> Option<Wants> {
        self.look_for_missing();
        self.at_hand_only = false;
        if self.holds_brought {
            self.let_go_of_brought();
        }
        // What most commands want is nothing, which is not to be moved.
        if self.wants.is_none() { None } else { self.wants.take() }
    }

    /// Whether a command for which something was brought goes on without waiting for the disk; then that is there for it.
    #[cold]
    fn goes_on_at_hand(&mut self, tries: Tries, brought: Option<Missing>) -> bool {
        let goes_on = tries.fetches < FETCHES_MAX;
        if goes_on && let Some(brought) = brought {
            brought.hold();
            self.holds_brought = true;
        }
        goes_on
    }

    /// The command has ended that it was brought for. One that has changed something asks no more what it lacked, and what it had would stay for as long as only such commands come.
    #[cold]
    fn let_go_of_brought(&mut self) {
        self.holds_brought = false;
        drop(self.db.take_missing());
    }

    /// Whether the command has changed something.
    #[inline]
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// See [`TieredKeyspace::wants_again`](super::TieredKeyspace::wants_again).
    #[inline]
    pub(super) fn wants_again(&mut self) -> bool {
        self.look_for_missing();
        self.wants.is_some()
    }

    #[inline]
    fn look_for_missing(&mut self) {
        if self.at_hand_only
            && let Some(missing) = self.db.take_missing()
        {
            self.wants = Some(Wants::Rows(missing));
        }
    }

    /// From now on the command is not given again.
    #[inline]
    fn record_changed(&mut self) {
        self.has_changed = true;
        if std::mem::take(&mut self.at_hand_only) {
            AtHandOnly::end_early();
        }
    }

    /// Makes one change.
    #[inline]
    pub(super) fn attempt<R>(&mut self, change: impl Fn() -> hedgerow::Result<R>) -> Outcome<R> {
        match change() {
            Ok(result) => {
                self.record_changed();
                Ok(result)
            }
            Err(error) if error.kind() == ErrorKind::Busy => self.without_room(error, change),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a change of tables that the command needs before it changes any row: one that it may find done when it is tried again.
    pub(super) fn prepare<R>(&mut self, change: impl Fn() -> hedgerow::Result<R>) -> Outcome<R> {
        match change() {
            Err(error) if error.kind() == ErrorKind::Busy => self.without_room(error, change),
            other => Ok(other?),
        }
    }

    /// Gives the command up for now; or, if a part of it is done, waits for gc here and now.
    #[cold]
    fn without_room<R>(&mut self, busy: Error, change: impl Fn() -> hedgerow::Result<R>) -> Outcome<R> {
        if self.is_upkeep {
            return Err(busy.into());
        }
        if !self.has_changed {
            self.wants = (!self.is_last_try).then_some(Wants::Space);
            return Err(busy.into());
        }
        let mut idle_rounds = 0;
        while idle_rounds < waiter::IDLE_ROUNDS_MAX {
            idle_rounds += u32::from(!self.db.wait_for_space(waiter::ROUND));
            match change() {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                other => return Ok(other?),
            }
        }
        Err(busy.into())
    }

    /// Starts staging, unless that was done already; says whether it did.
    pub(super) fn begin(&mut self) -> bool {
        let starts = self.staged.is_none();
        if starts {
            self.staged = Some(Staged::default());
        }
        starts
    }

    /// Whether changes are being staged.
    #[inline]
    pub(super) fn is_staging(&self) -> bool {
        self.staged.is_some()
    }

    /// Whether so much was to be staged that nothing of it will be written.
    pub(super) fn has_staged_too_much(&self) -> bool {
        self.staged.as_ref().is_some_and(|staged| staged.bytes.check().is_err())
    }

    /// Makes the staged changes, all or none, and stops staging.
    pub(super) fn end(&mut self) -> Outcome<()> {
        let Some(staged) = self.staged.take() else { return Ok(()) };
        staged.bytes.check()?;
        let batch = staged.batch;
        if batch.is_empty() {
            return Ok(());
        }
        let db = self.db.clone();
        self.attempt(|| db.write(&batch))
    }

    /// Forgets the staged changes.
    pub(super) fn abandon(&mut self) {
        self.staged = None;
    }

    /// Tells of a change that was made without the writer.
    pub(super) fn record_change(&mut self) {
        self.record_changed();
    }

    #[inline]
    pub(super) fn update(
        &mut self,
        table: &Table,
        row: &[u8],
        fields: &[(FieldId, Value<'_>)],
    ) -> Outcome<()> {
        match &mut self.staged {
            None => self.attempt(|| table.update(row, fields)),
            Some(staged) => {
                staged.count(row, fields)?;
                staged.batch.update(table, row, fields)?;
                staged.record(table, row, PendingState::AsBefore);
                Ok(())
            }
        }
    }

    /// Writes fields that expire on their own; with others, where writes are staged.
    pub(super) fn update_expiring(
        &mut self,
        table: &Table,
        row: &[u8],
        fields: &[(FieldId, Value<'_>)],
        at_ms: u64,
    ) -> Outcome<()> {
        let Some(staged) = &mut self.staged else {
            return self.attempt(|| table.update_expiring(row, fields, Expiry::at_unix_ms(at_ms)));
        };
        staged.count(row, fields)?;
        staged.batch.update_expiring(table, row, fields, Expiry::at_unix_ms(at_ms))?;
        staged.record(table, row, PendingState::AsBefore);
        Ok(())
    }

    pub(super) fn put(
        &mut self,
        table: &Table,
        row: &[u8],
        fields: &[(FieldId, Value<'_>)],
        expires_at_ms: Option<u64>,
    ) -> Outcome<()> {
        let Some(staged) = &mut self.staged else {
            return self.attempt(|| match expires_at_ms {
                None => table.put(row, fields),
                Some(at) => table.put_expiring(row, fields, Expiry::at_unix_ms(at)),
            });
        };
        staged.count(row, fields)?;
        match expires_at_ms {
            None => staged.batch.put(table, row, fields)?,
            Some(at) => staged.batch.put_expiring(table, row, fields, Expiry::at_unix_ms(at))?,
        }
        staged.record(table, row, PendingState::Expires(expires_at_ms));
        Ok(())
    }

    /// Whether there was a row.
    pub(super) fn delete(&mut self, table: &Table, row: &[u8]) -> Outcome<bool> {
        let Some(staged) = &mut self.staged else { return self.attempt(|| table.delete(row)) };
        let existed = table.exists(row)?;
        if existed {
            staged.count(row, &[])?;
            staged.batch.delete(table, row)?;
            staged.record(table, row, PendingState::Absent);
        }
        Ok(existed)
    }

    /// Sets or clears the expiry of a row that is there, or will be.
    pub(super) fn expire(&mut self, table: &Table, row: &[u8], at_ms: Option<u64>) -> Outcome<bool> {
        let Some(staged) = &mut self.staged else {
            return self.attempt(|| table.expire(row, Expiry::at_unix_ms(at_ms)));
        };
        staged.count(row, &[])?;
        staged.batch.expire(table, row, Expiry::at_unix_ms(at_ms))?;
        staged.record(table, row, PendingState::Expires(at_ms));
        Ok(true)
    }

    /// What the staged writes make of a row: None if they leave it as it is, else its expiry if it will be there.
    pub(super) fn staged_expiry(&self, table: &Table, row: &[u8]) -> Outcome<Option<Option<Option<u64>>>> {
        let Some(staged) = &self.staged else { return Ok(None) };
        Ok(match staged.rows.get(&(table.name().to_owned(), row.into())) {
            None => None,
            Some(PendingState::Absent) => Some(None),
            Some(PendingState::Expires(at_ms)) => Some(Some(*at_ms)),
            Some(PendingState::AsBefore) => {
                Some(Some(table.read(row, |row| Ok(row.expires_at_ms()))?.flatten()))
            }
        })
    }
}

impl Staged {
    /// Counts what is about to be staged. Beyond the limit nothing stays, and nothing more is taken.
    fn count(&mut self, row: &[u8], fields: &[(FieldId, Value<'_>)]) -> Outcome<()> {
        let bytes = fields.iter().map(|(_, value)| value.as_bytes().map_or(0, <[u8]>::len)).sum::<usize>();
        if let Err(error) = self.bytes.hold(TransactionBytes::of_write(row.len(), bytes)) {
            (self.batch, self.rows) = (Batch::new(), HashMap::new());
            return Err(error.into());
        }
        Ok(())
    }

    fn record(&mut self, table: &Table, row: &[u8], pending: PendingState) {
        let was = self.rows.entry((table.name().to_owned(), row.into())).or_insert(pending);
        *was = match (*was, pending) {
            // An update keeps what was staged before; after a removal it makes the row anew.
            (PendingState::Expires(at_ms), PendingState::AsBefore) => PendingState::Expires(at_ms),
            (PendingState::Absent, PendingState::AsBefore) => PendingState::Expires(None),
            _ => pending,
        };
    }
}
