//! The steps of an attempt that wait: what it lacks is fetched, what it changed is stored.
//!
//! Owns the commands of a step, the order of its exchanges with the backend, and what becomes of the answers. Promises that attempts whose steps go
//! on in one exchange do not matter to each other: each step ends as it could have ended alone, and what goes wrong with a command is told to those who asked
//! it, and to no others. Must not know who makes attempts.
//!
//! A step is begun, then goes on by an exchange until it has ended: most fetches and changes take one, the first of a row that was absent two. Others may
//! join in between two exchanges, so nobody waits for the steps of others to end. What several attempts get is got once: each began before the
//! exchange, so the answer is as new as any of them may ask. Of several changes of one row that depend on what was read, one is tried, the one that came
//! first; the others could only fail, and are told so.

mod cached;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{FetchRoom, NewValue, RowAtHand, Transaction, WalkAtHand, WalkCursor, Want};
use crate::backend::{
    Answer, Becomes, Command, Cursor, Expect, GROUP_BYTES, Mark, Pair, PairChange, Session, check_batch,
    pair_key,
};
use crate::pairs::catalog::entry_key;
use crate::pairs::exchange::{AskRoom, ask_within, unexpected};
use crate::pairs::{NAMES_STEP, walk_of_names};
use crate::schema::body::is_past;
use crate::schema::table::TableSchema;
use crate::stored_row::StoredRow;
use crate::transaction_bytes::TransactionBytes;
use crate::{Error, ErrorKind, Result};

/// Exchanges in which tables change under one fetch, before that is told as a conflict.
const LOOKS_MAX: usize = 64;

/// What an attempt waits for.
pub(super) enum Step {
    /// What is wanted, by these commands.
    Fetch { wanted: Vec<Want>, commands: Vec<PairCommand>, looks: usize },
    /// That the row under this key is as it is to be.
    Store { pair_key: Vec<u8>, row: RowAtHand },
    /// That the rows and tables which were read are what they were, and those that were changed as they are to be.
    StoreAll { changes: Vec<RowChange> },
    /// Whether the table of a row that was stored where none had been still has this group.
    LookAgain { table: Box<str>, entry_key: Vec<u8>, group: u32 },
    /// Whether these pairs are still what was read.
    Check { seen: Vec<(Vec<u8>, Expect)> },
}

/// How a step has ended, if it has.
type Ended = Option<Result<()>>;

/// What callers call.
impl Transaction {
    /// Brings what was wanted, and forgets what was changed: the run begins again. Blocks; the session is this attempt's alone meanwhile.
    ///
    /// # Errors
    /// Those of the backend; of what was to be done to the catalog: `Exists`, `Invalid`, `NotFound`. `Conflict` if tables change so quickly that no
    /// row could be got.
    pub fn fetch(&mut self, session: &mut dyn Session) -> Result<()> {
        let begun = self.begin_fetch(session);
        self.finish(begun, session)
    }

    /// Stores the rows that were changed, if all that was read is what it was. Blocks; the session is this attempt's alone meanwhile. Does nothing if none was
    /// changed.
    ///
    /// # Errors
    /// `Conflict` if something is not any more what was read: [restart](Transaction::restart), and try again. `Unsupported` if rows were walked; and, of a
    /// backend without [batches](Command::Batch), if more than one row was changed, or rows were looked at beside the one that was, or a table that is not there.
    /// `Invalid` if an edit was refused because all of them took too much memory, or they are more than a batch may have. Those of the backend; after
    /// `Indeterminate` the change may have happened.
    pub fn commit(&mut self, session: &mut dyn Session) -> Result<()> {
        let begun = self.begin_commit();
        self.finish(begun, session)
    }

    /// Begins a step of each of these and goes on until all have ended; says how.
    pub(in crate::pairs) fn finish_all(
        session: &mut dyn Session,
        attempts: &mut [Transaction],
        mut begin: impl FnMut(&mut Transaction, &mut dyn Session) -> Option<Result<()>>,
    ) -> Vec<Result<()>> {
        let mut ended: Vec<Ended> = attempts.iter_mut().map(|attempt| begin(attempt, session)).collect();
        while ended.iter().any(Option::is_none) {
            let going = attempts.iter_mut().zip(&ended).filter(|(_, ended)| ended.is_none());
            let mut going: Vec<&mut Transaction> = going.map(|(attempt, _)| attempt).collect();
            let now = Transaction::advance(session, &mut going);
            let waiting = ended.iter_mut().filter(|ended| ended.is_none());
            waiting.zip(now).for_each(|(ended, now)| *ended = now);
        }
        ended.into_iter().flatten().collect()
    }

    fn finish(&mut self, mut ended: Ended, session: &mut dyn Session) -> Result<()> {
        loop {
            if let Some(ended) = ended {
                return ended;
            }
            ended = Transaction::advance(session, &mut [self]).pop().flatten();
        }
    }

    /// [`Transaction::fetch`] that goes on by [`Transaction::advance`], together with others; says how it ended, if it has. Blocks only if tables are to be
    /// made, cleared or taught names.
    pub fn begin_fetch(&mut self, session: &mut dyn Session) -> Option<Result<()>> {
        let wanted = std::mem::take(self.wanted.get_mut()).all;
        if wanted.is_empty() {
            return Some(Ok(()));
        }
        self.expired.clear();
        self.changes = TransactionBytes::default();
        self.forget_changes();
        match self.change_catalog(session, &wanted) {
            Err(error) => Some(Err(error)),
            Ok(true) => {
                // An error of what is still to be got would say that nothing was changed: the run wants it again.
                self.forget_other_groups();
                Some(Ok(()))
            }
            Ok(false) => self.fetch_on(wanted, 0),
        }
    }

    /// [`Transaction::commit`] that goes on by [`Transaction::advance`], together with others; says how it ended, if it has. Never blocks.
    pub fn begin_commit(&mut self) -> Option<Result<()>> {
        if let Err(error) = self.check_changes() {
            return Some(Err(error));
        }
        let Some(pair_key) =
            self.rows.iter().find(|(_, row)| row.change.is_some()).map(|(key, _)| key.clone())
        else {
            return Some(Ok(()));
        };
        // A table that is looked at and is not there stands for the row that was wanted of it.
        let lacks_a_table = self.tables.values().any(Option::is_none);
        if self.rows.len() > 1 || lacks_a_table || !self.walks.is_empty() {
            return self.begin_batch();
        }
        let mut row = self.rows.remove(&pair_key)?;
        if row.seen == Expect::Absent && row.change == Some(None) {
            // It was not there, and is not to be.
            row.change = None;
            self.rows.insert(pair_key, row);
            return Some(Ok(()));
        }
        self.step = Some(Step::Store { pair_key, row });
        None
    }

    /// [`Transaction::begin_commit`] of what depends on more than one row.
    fn begin_batch(&mut self) -> Option<Result<()>> {
        let bytes_max = self.store.backend.capabilities().batch_bytes_max;
        if bytes_max == 0 || !self.walks.is_empty() {
            let message = "a change that depends on more than one row; this store changes one row at a time";
            return Some(Err(Error::new(ErrorKind::Unsupported, message)));
        }
        let mut changes: Vec<RowChange> =
            self.rows.iter().map(|(key, row)| RowChange::of(key, row)).collect();
        if changes.iter().all(|change| change.change.is_none()) {
            // They were not there, and are not to be: what remains is that all of it was so at one time.
            self.rows.values_mut().for_each(|row| row.change = None);
            return self.begin_check();
        }
        // That the tables are the ones that were looked at is a condition, too: what is stored is then theirs, and `look_again` is not needed.
        changes.extend(self.tables.iter().map(|(name, seen)| RowChange {
            pair_key: entry_key(name),
            seen: seen.as_ref().map_or(Expect::Absent, |seen| Expect::Same(seen.mark)),
            change: None,
        }));
        if let Err(error) = check_batch(&changes.iter().map(RowChange::asked).collect::<Vec<_>>(), bytes_max)
        {
            return Some(Err(error));
        }
        self.step = Some(Step::StoreAll { changes });
        None
    }

    /// Begins to check that several rows that were read are still the same: then all of them were there together, as they were read, at one time. It goes on by
    /// [`Transaction::advance`], and ends with `Conflict` if one is not. Of a row that was absent it cannot be told whether it came and went meanwhile. Never
    /// blocks.
    pub fn begin_check(&mut self) -> Option<Result<()>> {
        if !self.has_read_several() {
            return Some(Ok(()));
        }
        let rows = self.rows.iter().map(|(key, row)| (key.clone(), row.seen));
        let tables = self.tables.iter().map(|(name, seen)| {
            (entry_key(name), seen.as_ref().map_or(Expect::Absent, |seen| Expect::Same(seen.mark)))
        });
        self.step = Some(Step::Check { seen: rows.chain(tables).collect() });
        None
    }

    /// Whether more than one row is at hand.
    pub fn has_read_several(&self) -> bool {
        // A table that is not there stands for the row that was wanted of it.
        self.rows.len() + self.tables.values().filter(|table| table.is_none()).count() > 1
    }

    /// Has the steps that were begun of these attempts go on by one exchange, all together. Says of each how its step has ended, if it has; else
    /// it goes on by the next. Blocks; the session is theirs alone meanwhile.
    pub fn advance(session: &mut dyn Session, attempts: &mut [&mut Transaction]) -> Vec<Option<Result<()>>> {
        Transaction::advance_within(session, attempts, FetchRoom { bytes: usize::MAX, first_goes: true })
    }

    /// [`Transaction::advance`] that gets no more than there is room for. What was left out is got by one of the next; a step may go on for several.
    pub fn advance_within(
        session: &mut dyn Session,
        attempts: &mut [&mut Transaction],
        room: FetchRoom,
    ) -> Vec<Option<Result<()>>> {
        let (mut union, mut always) = (Union::default(), 0);
        let mut asked: Vec<CommandNumbers> = Vec::with_capacity(attempts.len());
        for attempt in attempts.iter() {
            asked.push(union.ask(attempt.step.as_ref()));
            if asked.len() == 1 && room.first_goes {
                always = union.commands.len();
            }
        }
        let backend = attempts.first().map(|attempt| attempt.store.backend.capabilities());
        let value_bytes_max = backend.map_or(0, |capabilities| capabilities.value_bytes_max);
        let room = AskRoom { value_bytes_max, bytes: room.bytes, always };
        let mut answers = Answers::new(ask_within(session, &union.commands, room), union.askers);
        let take = |(attempt, asked): (&mut &mut Transaction, CommandNumbers)| {
            let ended = attempt.go_on(session, asked.into_iter().map(|command| answers.take(command)));
            attempt.count_bytes();
            ended
        };
        attempts.iter_mut().zip(asked).map(take).collect()
    }

    /// Goes on with answers; `None` where a command was left out.
    fn go_on(
        &mut self,
        session: &mut dyn Session,
        mut answers: impl Iterator<Item = Option<Result<Taken>>>,
    ) -> Ended {
        match self.step.take() {
            None => Some(Ok(())),
            Some(Step::Fetch { wanted, commands, looks }) => {
                let (mut taken, mut is_whole) = (commands.into_iter().zip(answers), true);
                let taken = taken.try_for_each(|(command, answer)| match answer {
                    Some(answer) => self.take(command, answer, session),
                    None => {
                        is_whole = false;
                        Ok(())
                    }
                });
                match taken {
                    Ok(()) => {
                        let wanted = wanted.into_iter().filter(|want| !self.is_at_hand(want)).collect();
                        self.fetch_on(wanted, looks + usize::from(is_whole))
                    }
                    Err(error) => Some(Err(not_read(error))),
                }
            }
            Some(Step::Store { pair_key, row }) => {
                self.stored(pair_key, row, answers.next().flatten().unwrap_or_else(no_answer))
            }
            Some(Step::StoreAll { changes }) => {
                Some(self.stored_all(changes, answers.next().flatten().unwrap_or_else(no_answer)))
            }
            Some(Step::LookAgain { table, entry_key, group }) => match answers.next() {
                Some(None) => {
                    self.step = Some(Step::LookAgain { table, entry_key, group });
                    None
                }
                answer => {
                    let answer = answer.flatten().unwrap_or_else(no_answer);
                    Some(self.looked_again(&table, &entry_key, group, answer))
                }
            },
            Some(Step::Check { seen }) => self.checked(seen, answers),
        }
    }

    fn checked(
        &mut self,
        seen: Vec<(Vec<u8>, Expect)>,
        answers: impl Iterator<Item = Option<Result<Taken>>>,
    ) -> Ended {
        let mut left_out = Vec::new();
        let checked = seen.into_iter().zip(answers).try_for_each(|(seen, answer)| match answer {
            Some(answer) => check(seen.1, answer.map_err(not_read)?),
            None => {
                left_out.push(seen);
                Ok(())
            }
        });
        if checked.is_err() || left_out.is_empty() {
            return Some(checked);
        }
        self.step = Some(Step::Check { seen: left_out });
        None
    }
}

/// What is fetched.
impl Transaction {
    /// Goes on with what is wanted and not at hand, until that is nothing.
    fn fetch_on(&mut self, wanted: Vec<Want>, looks: usize) -> Ended {
        if wanted.is_empty() {
            self.forget_other_groups();
            return Some(Ok(()));
        }
        if looks == LOOKS_MAX {
            return Some(Err(Error::new(ErrorKind::Conflict, "the tables change all the while")));
        }
        let mut commands = Commands::default();
        wanted.iter().for_each(|want| self.plan(want, &mut commands));
        self.step = Some(Step::Fetch { wanted, commands: commands.all, looks });
        None
    }

    /// Rows that were got where a table had been before it was cleared are none of its.
    fn forget_other_groups(&mut self) {
        let groups = self.tables.values().flatten().map(|seen| seen.entry.group.to_be_bytes());
        let groups: HashSet<[u8; GROUP_BYTES]> = groups.collect();
        self.rows.retain(|key, _| key.first_chunk().is_some_and(|group| groups.contains(group)));
    }

    /// Does what was asked for to the catalog; says whether that was something.
    fn change_catalog(&mut self, session: &mut dyn Session, wanted: &[Want]) -> Result<bool> {
        let (store, mut did) = (Arc::clone(&self.store), false);
        for want in wanted {
            let (name, seen) = match want {
                Want::Create(name, schema) => (name, store.create(session, name, schema)?),
                Want::Learn(name, table, names) => {
                    let learned = |schema: &TableSchema| schema.with_learned(names);
                    (name, store.evolve(session, name, Some(*table), learned)?)
                }
                Want::Clear(name) => {
                    let seen = store.clear(session, name, None)?;
                    self.cleared.push(name.clone());
                    (name, seen)
                }
                _ => continue,
            };
            self.tables.insert(name.clone(), Some(seen));
            did = true;
        }
        Ok(did)
    }

    /// Where the rows of a table are, as far as is known.
    fn group_of(&self, table: &str) -> Option<u32> {
        match self.tables.get(table) {
            Some(seen) => seen.as_ref().map(|seen| seen.entry.group),
            None => self.store.hints.lock().get(table).map(|seen| seen.entry.group),
        }
    }

    fn plan(&self, want: &Want, commands: &mut Commands) {
        let (Want::Table(table) | Want::Row(table, _) | Want::Walk(table, ..) | Want::Count(table)) = want
        else {
            if *want == Want::Names {
                commands.push(PairCommand::Names);
            }
            return;
        };
        if !self.tables.contains_key(table) {
            commands.push_once(entry_key(table), |key| PairCommand::Table(table.clone(), key));
        }
        let Some(group) = self.group_of(table) else { return };
        match want {
            Want::Row(_, key) if self.store.check_key(key).is_ok() => {
                let key = pair_key(group, key);
                let mark = self.expired.get(&key).copied();
                commands.push_once(key, |key| match mark {
                    Some(mark) => PairCommand::Remove(key, mark, None),
                    None => PairCommand::Row(group, key),
                });
            }
            Want::Walk(_, from, rows) if from.group == 0 || from.group == group => {
                match self.walks.iter().position(|walk| walk.is(table, from, *rows, group)) {
                    Some(at) => self.plan_rest(at, commands),
                    None => {
                        commands.push(PairCommand::Walk(table.clone(), group, from.clone(), *rows));
                    }
                }
            }
            Want::Count(_) => commands.push(PairCommand::Count(table.clone(), group)),
            _ => {}
        }
    }

    /// What is left of a step of a walk: rows that had expired.
    fn plan_rest(&self, at: usize, commands: &mut Commands) {
        let Some(walk) = self.walks.get(at) else { return };
        for (key, mark) in &walk.expired {
            let key = key.to_vec();
            commands.push(match mark {
                Some(mark) => PairCommand::Remove(key, *mark, Some(at)),
                None => PairCommand::RowOfWalk(at, key),
            });
        }
    }

    fn take(&mut self, command: PairCommand, answer: Result<Taken>, session: &mut dyn Session) -> Result<()> {
        let answer = match (&command, answer) {
            (PairCommand::Remove(key, _, walk), answer) => return self.removed(key, *walk, answer),
            (_, answer) => answer?,
        };
        match (command, answer) {
            (PairCommand::Table(name, key), Taken::Pair(pair)) => {
                let seen = pair.map(|pair| self.store.seen_entry(&name, &key, &pair)).transpose()?;
                self.tables.insert(name, seen);
            }
            (PairCommand::Row(group, pair_key), Taken::Pair(pair)) => {
                match self.expired_mark(group, pair.as_deref()) {
                    Some(mark) => drop(self.expired.insert(pair_key, mark)),
                    None => drop(self.rows.insert(pair_key, RowAtHand::got(pair))),
                }
            }
            (PairCommand::Walk(table, group, from, rows), Taken::Other(Answer::Walked(walked, next))) => {
                let (mut pairs, mut expired) = (Vec::with_capacity(walked.len()), HashMap::new());
                for pair in walked {
                    check_group(&pair, group)?;
                    match self.expired_mark(group, Some(&pair)) {
                        Some(mark) => drop(expired.insert(pair.key, Some(mark))),
                        None => pairs.push(pair),
                    }
                }
                self.walks.push(WalkAtHand { table, from, rows, group, pairs, next, expired });
            }
            (PairCommand::RowOfWalk(at, key), Taken::Pair(pair)) => {
                let group = self.walks.get(at).map_or(0, |walk| walk.group);
                let mark = self.expired_mark(group, pair.as_deref());
                let Some(walk) = self.walks.get_mut(at) else { return Ok(()) };
                match mark {
                    Some(mark) => drop(walk.expired.insert(key.into(), Some(mark))),
                    None => {
                        walk.expired.remove(&*key);
                        walk.pairs.extend(pair.map(Arc::unwrap_or_clone));
                    }
                }
            }
            (PairCommand::Count(table, group), Taken::Other(Answer::Counted(count))) => {
                self.counts.insert(table, (group, count));
            }
            (PairCommand::Names, Taken::Other(Answer::Walked(pairs, next))) => {
                self.names = Some(self.store.names_from(session, pairs, next)?);
            }
            _ => return Err(unexpected("what it was asked for")),
        }
        Ok(())
    }

    /// The mark of a pair whose row has expired: it is to be removed, and what is there afterwards counts. What is no row is told to whoever
    /// reads it.
    fn expired_mark(&self, group: u32, pair: Option<&Pair>) -> Option<Mark> {
        let pair = pair?;
        let row = StoredRow::parse(group, pair.key.get(GROUP_BYTES..)?, &pair.value).ok()?;
        is_past(row.expires_at_ms(), self.now_ms).then_some(pair.mark)
    }

    /// A row that had expired is gone, or somebody came first: then what is there now is to be got.
    fn removed(&mut self, key: &[u8], walk: Option<usize>, answer: Result<Taken>) -> Result<()> {
        let is_gone = match answer {
            Ok(Taken::Other(Answer::Deleted(_))) => true,
            Ok(_) => return Err(unexpected("whether it was removed")),
            Err(error) if error.kind() == ErrorKind::Conflict => false,
            Err(error) => return Err(error),
        };
        let Some(at) = walk else {
            self.expired.remove(key);
            if is_gone {
                self.rows.insert(key.to_vec(), RowAtHand::got(None));
            }
            return Ok(());
        };
        if let Some(walk) = self.walks.get_mut(at) {
            match is_gone {
                true => drop(walk.expired.remove(key)),
                false => drop(walk.expired.insert(key.into(), None)),
            }
        }
        Ok(())
    }

    /// Whether a want is served, by a table that is at hand and not older than the rows that were got with it.
    fn is_at_hand(&mut self, want: &Want) -> bool {
        let (Want::Table(table) | Want::Row(table, _) | Want::Walk(table, ..) | Want::Count(table)) = want
        else {
            return true;
        };
        let (entry, mark) = match self.tables.get(table) {
            None => return false,
            // The call will be told.
            Some(None) => return true,
            Some(Some(seen)) => (&seen.entry, seen.mark),
        };
        let (group, version) = (entry.group, entry.schema.version());
        let is_newer = |pair_key: &[u8], value: &[u8]| {
            let row = StoredRow::parse(group, &pair_key[GROUP_BYTES..], value);
            row.is_ok_and(|row| row.schema_version() > version)
        };
        let has_newer = match want {
            Want::Row(_, key) if self.store.check_key(key).is_ok() => {
                let key = pair_key(group, key);
                match self.rows.get(&key) {
                    None => return false,
                    Some(row) => row.got.as_ref().is_some_and(|pair| is_newer(&key, &pair.value)),
                }
            }
            Want::Walk(_, from, _) if from.group != 0 && from.group != group => false,
            Want::Walk(_, from, rows) => {
                match self.walks.iter().find(|walk| walk.is(table, from, *rows, group)) {
                    None => return false,
                    Some(walk) if !walk.expired.is_empty() => return false,
                    Some(walk) => walk.pairs.iter().any(|pair| is_newer(&pair.key, &pair.value)),
                }
            }
            Want::Count(_) => return self.counts.get(table).is_some_and(|(counted, _)| *counted == group),
            _ => false,
        };
        // A row that is still newer than what was looked at again for it is damaged, or the table is: who reads it is told.
        if has_newer && self.looked_again.insert(table.clone(), mark) != Some(mark) {
            self.tables.remove(table);
            self.walks.retain(|walk| walk.table != *table);
            return false;
        }
        true
    }
}

/// What is stored.
impl Transaction {
    /// Goes on after a row was stored, or was not.
    fn stored(&mut self, pair_key: Vec<u8>, mut row: RowAtHand, answer: Result<Taken>) -> Ended {
        let is_put = matches!(row.change, Some(Some(_)));
        let seen = match answer {
            Ok(Taken::Other(Answer::Stored(mark))) if is_put => Ok(Some(mark)),
            Ok(Taken::Other(Answer::Deleted(_))) if !is_put => Ok(None),
            Ok(_) => Err(unexpected("whether it was stored")),
            Err(error) => Err(error),
        };
        let was_absent = row.seen == Expect::Absent;
        let ended = match seen {
            Ok(mark) => {
                let key = pair_key.as_slice();
                let value = row.change.take().flatten();
                let pair = |(mark, value): (Mark, Arc<Vec<u8>>)| {
                    let value = Arc::unwrap_or_clone(value).into_boxed_slice();
                    Arc::new(Pair { key: key.into(), value, mark })
                };
                let stored = mark.zip(value).map(pair);
                row = RowAtHand::got(stored);
                match was_absent && is_put {
                    true => self.look_again(&pair_key),
                    false => Some(Ok(())),
                }
            }
            Err(error) => Some(Err(error)),
        };
        self.rows.insert(pair_key, row);
        ended
    }

    /// Goes on after rows were stored together, or were not.
    fn stored_all(&mut self, changes: Vec<RowChange>, answer: Result<Taken>) -> Result<()> {
        let marks = match answer? {
            Taken::Other(Answer::Batched(marks)) if marks.len() == changes.len() => marks,
            _ => return Err(unexpected("whether they were stored")),
        };
        for (RowChange { pair_key, change, .. }, mark) in changes.into_iter().zip(marks) {
            let Some(value) = change else {
                // It was not there, and was not to be.
                self.rows.entry(pair_key).and_modify(|row| row.change = None);
                continue;
            };
            let got = match (value, mark) {
                (Some(value), Some(mark)) => Some(Arc::new(Pair {
                    key: pair_key.as_slice().into(),
                    value: value.as_slice().into(),
                    mark,
                })),
                (None, None) => None,
                _ => return Err(unexpected("whether they were stored")),
            };
            self.rows.insert(pair_key, RowAtHand::got(got));
        }
        Ok(())
    }

    /// That a row was absent may be because its table was cleared, and its group freed, since the attempt began. If so, nobody can say whether the
    /// row was stored before that or comes after it, where others would not see it.
    fn look_again(&mut self, pair_key: &[u8]) -> Ended {
        let mut groups =
            self.tables.iter().filter_map(|(name, seen)| Some((name, seen.as_ref()?.entry.group)));
        let Some((table, group)) = groups.find(|(_, group)| pair_key.starts_with(&group.to_be_bytes()))
        else {
            return Some(Err(may_be_gone()));
        };
        self.step = Some(Step::LookAgain { table: table.clone(), entry_key: entry_key(table), group });
        None
    }

    fn looked_again(&self, table: &str, key: &[u8], group: u32, answer: Result<Taken>) -> Result<()> {
        let Ok(Taken::Pair(Some(pair))) = answer else { return Err(may_be_gone()) };
        match self.store.seen_entry(table, key, &pair) {
            Ok(now) if now.entry.group == group => Ok(()),
            _ => Err(may_be_gone()),
        }
    }
}

/// What is to become of a row, or of an entry of the catalog, in a batch.
pub(super) struct RowChange {
    pair_key: Vec<u8>,
    seen: Expect,
    /// As it is to be; `None` if it stays as it is.
    change: Option<NewValue>,
}

impl RowChange {
    fn of(pair_key: &[u8], row: &RowAtHand) -> RowChange {
        let (pair_key, seen) = (pair_key.to_vec(), row.seen);
        // What was not there, and is not to be, stays as it is.
        let is_none = seen == Expect::Absent && row.change == Some(None);
        RowChange { pair_key, seen, change: row.change.clone().filter(|_| !is_none) }
    }

    fn asked(&self) -> PairChange<'_> {
        let becomes = match &self.change {
            None => Becomes::Unchanged,
            Some(None) => Becomes::Nothing,
            Some(Some(value)) => Becomes::Value(value),
        };
        PairChange { key: &self.pair_key, expect: self.seen, becomes }
    }
}

/// An error of what was only to be read: it changed nothing that anybody sees.
fn not_read(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Indeterminate => Error::new(ErrorKind::Unavailable, error.to_string()),
        _ => error,
    }
}

fn check(seen: Expect, answer: Taken) -> Result<()> {
    let Taken::Pair(pair) = answer else { return Err(unexpected("a pair")) };
    match pair.map_or(Expect::Absent, |pair| Expect::Same(pair.mark)) == seen {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Conflict, "what was read is not what is there any more")),
    }
}

fn may_be_gone() -> Error {
    let message = "its table was cleared, or could not be looked at again: the row may have been stored, and may be gone";
    Error::new(ErrorKind::Indeterminate, message)
}

fn no_answer() -> Result<Taken> {
    Err(unexpected("nothing"))
}

/// Of each command of one attempt, which of the exchange's it is; `None` where one of another attempt is tried instead.
type CommandNumbers = Vec<Option<usize>>;

/// The commands of an exchange, and how many attempts ask each.
#[derive(Default)]
struct Union<'a> {
    commands: Vec<Command<'a>>,
    askers: Vec<usize>,
    /// Pairs that are got, with the commands that do.
    gets: HashMap<&'a [u8], usize>,
    /// Pairs whose rows have expired, with the commands that remove them.
    removals: HashMap<(&'a [u8], Mark), usize>,
    /// Pairs that are changed if they are what was read.
    changes: HashSet<&'a [u8]>,
}

impl<'a> Union<'a> {
    fn ask(&mut self, step: Option<&'a Step>) -> CommandNumbers {
        match step {
            None => CommandNumbers::new(),
            Some(Step::Fetch { commands, .. }) => {
                commands.iter().map(|command| Some(self.push_fetch(command))).collect()
            }
            Some(Step::Store { pair_key, row }) => {
                if row.seen != Expect::Any && !self.changes.insert(pair_key) {
                    return vec![None];
                }
                let (key, expect) = (pair_key, row.seen);
                vec![Some(self.push(match row.change.as_ref().and_then(Option::as_ref) {
                    Some(value) => Command::Put { key, value, expect },
                    None => Command::Delete { key, expect },
                }))]
            }
            Some(Step::StoreAll { changes }) => {
                let depends = |change: &&RowChange| change.change.is_some() && change.seen != Expect::Any;
                if changes.iter().filter(depends).any(|change| self.changes.contains(&*change.pair_key)) {
                    return vec![None];
                }
                self.changes.extend(changes.iter().filter(depends).map(|change| &*change.pair_key));
                let changes = changes.iter().map(RowChange::asked).collect();
                vec![Some(self.push(Command::Batch { changes }))]
            }
            Some(Step::LookAgain { entry_key, .. }) => vec![Some(self.push(Command::Get { key: entry_key }))],
            Some(Step::Check { seen }) => {
                seen.iter().map(|(key, _)| Some(self.push(Command::Get { key }))).collect()
            }
        }
    }

    /// Adds a command of what is fetched. What many found expired is removed once.
    fn push_fetch(&mut self, command: &'a PairCommand) -> usize {
        let PairCommand::Remove(key, mark, _) = command else { return self.push(command.command()) };
        let next = self.commands.len();
        let known = *self.removals.entry((key, *mark)).or_insert(next);
        if known < next {
            self.askers[known] += 1;
            return known;
        }
        self.push(command.command())
    }

    /// Adds a command, unless it is one that gets what another does; says which it is.
    fn push(&mut self, command: Command<'a>) -> usize {
        let next = self.commands.len();
        if let Command::Get { key } = command {
            let known = *self.gets.entry(key).or_insert(next);
            if known < next {
                self.askers[known] += 1;
                return known;
            }
        }
        self.commands.push(command);
        self.askers.push(1);
        next
    }
}

/// An answer. A pair that several got is in memory once.
#[derive(Clone)]
enum Taken {
    Pair(Option<Arc<Pair>>),
    Other(Answer),
}

impl Taken {
    fn of(answer: Answer) -> Taken {
        match answer {
            Answer::Got(pair) => Taken::Pair(pair.map(Arc::new)),
            other => Taken::Other(other),
        }
    }
}

/// The answers of an exchange, each for as many as asked; `None` where a command was left out.
struct Answers(Vec<(Option<Result<Taken>>, usize)>);

impl Answers {
    fn new(answers: Vec<Option<Result<Answer>>>, askers: Vec<usize>) -> Answers {
        let taken = answers.into_iter().map(|answer| answer.map(|answer| answer.map(Taken::of)));
        Answers(taken.zip(askers).collect())
    }

    fn take(&mut self, command: Option<usize>) -> Option<Result<Taken>> {
        let Some(command) = command else {
            let message = "another change of the row came first";
            return Some(Err(Error::new(ErrorKind::Conflict, message)));
        };
        let Some((answer, askers)) = self.0.get_mut(command) else { return Some(no_answer()) };
        *askers -= 1;
        if *askers == 0 { answer.take() } else { answer.clone() }
    }
}

/// Commands of one exchange.
#[derive(Default)]
struct Commands {
    all: Vec<PairCommand>,
    /// Keys that are got.
    keys: HashSet<Vec<u8>>,
}

impl Commands {
    fn push(&mut self, command: PairCommand) {
        self.all.push(command);
    }

    /// Adds the command for a key unless it is there.
    fn push_once(&mut self, key: Vec<u8>, command: impl FnOnce(Vec<u8>) -> PairCommand) {
        if self.keys.insert(key.clone()) {
            self.all.push(command(key));
        }
    }
}

/// A command for something that is wanted.
pub(super) enum PairCommand {
    Table(Box<str>, Vec<u8>),
    Row(u32, Vec<u8>),
    /// Under this key and mark is a row that has expired: it was wanted itself, or came with this step of a walk.
    Remove(Vec<u8>, Mark, Option<usize>),
    Walk(Box<str>, u32, WalkCursor, usize),
    /// Under this key was a row that had expired and was written by somebody else since it came with this step of a walk.
    RowOfWalk(usize, Vec<u8>),
    Count(Box<str>, u32),
    Names,
}

impl PairCommand {
    fn command(&self) -> Command<'_> {
        match self {
            PairCommand::Table(_, key) | PairCommand::Row(_, key) | PairCommand::RowOfWalk(_, key) => {
                Command::Get { key }
            }
            PairCommand::Remove(key, mark, _) => Command::Delete { key, expect: Expect::Same(*mark) },
            PairCommand::Walk(_, group, from, pairs) => {
                Command::Walk { group: *group, from: from.at.clone(), pairs: *pairs }
            }
            PairCommand::Count(_, group) => Command::Count { group: *group },
            PairCommand::Names => walk_of_names(Cursor::START, NAMES_STEP),
        }
    }
}

fn check_group(pair: &Pair, group: u32) -> Result<()> {
    match pair.key.starts_with(&group.to_be_bytes()) {
        true => Ok(()),
        false => Err(unexpected("pairs of the group that it was asked for")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
