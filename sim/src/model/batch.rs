//! Batches: what several writes of one batch to one row come to, and what that does.
//!
//! Owns: folding them into one part for each row, or where parts depend on their rows, doing them one by one. Promises: of several writes to a row only what
//! they come to counts, as for the store.

use hedgerow::{ErrorKind, OwnedValue};

use super::{Answer, Model};
use crate::op::{self, Given, Part, PartKind, Require};

/// The parts of a batch that are of one row, as one.
struct Folded {
    part: Part,
    /// When each of its fields expires, counted from now, if it does.
    fields_expire_in: Vec<Option<u64>>,
    expiry: Option<NewExpiry>,
}

/// An expiry of the row that comes with the update of a batch, before it or after it.
#[derive(Clone, Copy)]
struct NewExpiry {
    expires_in: Option<u64>,
    /// After it: a row that the update makes expires, too.
    of_new_row: bool,
}

impl Folded {
    fn new(part: &Part) -> Folded {
        Folded { part: part.clone(), fields_expire_in: fields_expire_in(&part.kind), expiry: None }
    }

    fn then(&mut self, later: &Part) {
        if self.lapses() {
            *self = Folded::new(&Part { kind: PartKind::Delete, ..self.part });
        }
        match (&mut self.part.kind, &later.kind) {
            (PartKind::Put(fields, _) | PartKind::Update(fields, _), PartKind::Update(more, _)) => {
                fields.extend(more);
                self.fields_expire_in.extend(fields_expire_in(&later.kind));
            }
            (PartKind::Delete, PartKind::Update(fields, _)) => {
                self.part.kind = PartKind::Put(fields.clone(), None);
                self.fields_expire_in = fields_expire_in(&later.kind);
            }
            (PartKind::Expire(expires_in), PartKind::Update(..)) => {
                let expiry = Some(NewExpiry { expires_in: *expires_in, of_new_row: false });
                *self = Folded { expiry, ..Folded::new(later) };
            }
            (PartKind::Put(_, expires_in), PartKind::Expire(new)) => *expires_in = *new,
            (PartKind::Update(..), PartKind::Expire(new)) => {
                self.expiry = Some(NewExpiry { expires_in: *new, of_new_row: true });
            }
            (PartKind::Delete, PartKind::Expire(_)) => {}
            _ => *self = Folded::new(later),
        }
    }

    /// Whether it leaves a row that has expired already.
    fn lapses(&self) -> bool {
        let expires_in = match &self.part.kind {
            PartKind::Put(_, expires_in) | PartKind::Expire(expires_in) => *expires_in,
            PartKind::Update(..) => self.expiry.and_then(|expiry| expiry.expires_in),
            _ => None,
        };
        expires_in == Some(0)
    }
}

fn fields_expire_in(kind: &PartKind) -> Vec<Option<u64>> {
    match kind {
        PartKind::Put(fields, _) => vec![None; fields.len()],
        PartKind::Update(fields, expires_in) => vec![*expires_in; fields.len()],
        _ => Vec::new(),
    }
}

/// One part for each row of a batch. All of it happens at one moment: what an expiry of that moment leaves is gone for
/// the parts after it.
fn folded(parts: &[Part]) -> Vec<Folded> {
    let mut folded: Vec<Folded> = Vec::new();
    for part in parts {
        let is_same =
            |earlier: &&mut Folded| (earlier.part.table, earlier.part.key) == (part.table, part.key);
        match folded.iter_mut().find(is_same) {
            None => folded.push(Folded::new(part)),
            Some(earlier) => earlier.then(part),
        }
    }
    folded
}

fn same_row(one: &Part, other: &Part) -> bool {
    (one.table, one.key) == (other.table, other.key)
}

impl Model {
    pub(super) fn batch(&mut self, parts: &[Part], require: Require) -> Answer {
        if parts.iter().any(|part| part.kind.depends()) {
            return self.batch_in_steps(parts, require);
        }
        let folded = folded(parts);
        let mut errors = Vec::new();
        if require == Require::AnotherVersion {
            errors.push(ErrorKind::Conflict);
        }
        let known: Vec<usize> = self.tables.iter().map(|table| table.fields.len()).collect();
        for Folded { part, fields_expire_in, .. } in &folded {
            let (PartKind::Put(fields, _) | PartKind::Update(fields, _)) = &part.kind else { continue };
            let (key, given) = (op::key(part.key), self.given(part.table, fields));
            let update = matches!(part.kind, PartKind::Update(..));
            errors.extend(self.table_mut(part.table).check(&key, &given, update, fields_expire_in));
        }
        if !errors.is_empty() {
            self.tables.iter_mut().zip(known).for_each(|(table, known)| table.fields.truncate(known));
            return Answer::Fails(errors);
        }
        for folded in &folded {
            self.apply_folded(folded);
        }
        Answer::Done
    }

    /// A batch of which parts depend on their rows: one part after the other, or none.
    fn batch_in_steps(&mut self, parts: &[Part], require: Require) -> Answer {
        let before = self.tables.clone();
        // As the caller knows the rows, who makes the batch before any of it happens.
        let expected: Vec<OwnedValue> = parts.iter().map(|part| self.expected_of(part)).collect();
        // Names are learned before anything is looked at.
        for Part { table, key, kind } in parts {
            use PartKind::{Put, Update, UpdateExisting};
            let (Put(fields, _) | Update(fields, _) | UpdateExisting(fields)) = kind else { continue };
            let given = self.given(*table, fields);
            let (update, expiries) = (!matches!(kind, Put(..)), fields_expire_in(kind));
            self.table_mut(*table).check(&op::key(*key), &given, update, &expiries);
        }
        let mut errors = Vec::new();
        if require == Require::AnotherVersion {
            errors.push(ErrorKind::Conflict);
        }
        for (at, part) in parts.iter().enumerate() {
            if errors.is_empty() {
                let is_last = !parts[at + 1..].iter().any(|later| same_row(later, part));
                errors.extend(self.step(part, &expected[at], is_last));
            }
        }
        match errors.is_empty() {
            true => Answer::Done,
            false => {
                self.tables = before;
                Answer::Fails(errors)
            }
        }
    }

    fn expected_of(&self, part: &Part) -> OwnedValue {
        match part.kind {
            PartKind::CompareAndSet { field, expected, .. } => {
                self.expected(part.table, part.key, field, expected)
            }
            _ => OwnedValue::Null,
        }
    }

    /// Does one part, or says what is wrong with it.
    fn step(&mut self, part: &Part, expected: &OwnedValue, is_last: bool) -> Vec<ErrorKind> {
        let (table, key, now_ms) = (part.table, part.key, self.now_ms);
        let at = |expires_in: &Option<u64>| expires_in.map(|ms| now_ms + ms);
        let answer = match &part.kind {
            PartKind::Put(fields, expires_in) => self.put(table, key, fields, at(expires_in)),
            PartKind::Update(fields, expires_in) => {
                match self.update(table, key, fields, false, at(expires_in)) {
                    Answer::Bool(_) => Answer::Done,
                    fails => fails,
                }
            }
            PartKind::Expire(expires_in) => {
                self.expire(table, key, at(expires_in));
                Answer::Done
            }
            PartKind::Delete => {
                self.table_mut(table).rows.remove(&op::key(key));
                Answer::Done
            }
            PartKind::UpdateExisting(fields) => self.update_existing(table, key, fields),
            PartKind::Increment { field, by } => self.increment(table, key, *field, *by),
            PartKind::CompareAndSet { field, new, .. } => {
                match self.table(table).by_name(op::NAMES[usize::from(*field)]) {
                    Some(_) => self.compare_with(table, key, *field, expected, *new),
                    None => Answer::Fails(vec![ErrorKind::NotFound]),
                }
            }
        };
        let lapses = matches!(part.kind, PartKind::Put(_, Some(0)) | PartKind::Expire(Some(0)));
        if lapses && !is_last {
            // Nothing of it is left to the parts after it.
            self.table_mut(table).rows.remove(&op::key(key));
        }
        match answer {
            Answer::Fails(errors) => errors,
            Answer::Bool(false) => vec![ErrorKind::Conflict],
            _ => Vec::new(),
        }
    }

    /// What is wrong with the fields may be told, or that there is no row.
    fn update_existing(&mut self, table: u8, key: u16, fields: &[Given]) -> Answer {
        let exists = self.live(table, key).is_some();
        match self.update(table, key, fields, true, None) {
            Answer::Fails(mut errors) if !exists => {
                errors.push(ErrorKind::Conflict);
                Answer::Fails(errors)
            }
            answer => answer,
        }
    }

    fn apply_folded(&mut self, Folded { part, fields_expire_in, expiry }: &Folded) {
        let (version, now_ms, key) = (self.writes, self.now_ms, op::key(part.key));
        let existed = self.live(part.table, part.key).is_some();
        let expires_at = |expires_in: Option<u64>| expires_in.map(|ms| now_ms + ms);
        let expiries: Vec<Option<u64>> = fields_expire_in.iter().copied().map(expires_at).collect();
        let given = match &part.kind {
            PartKind::Put(fields, _) | PartKind::Update(fields, _) => self.given(part.table, fields),
            _ => Vec::new(),
        };
        let table = self.table_mut(part.table);
        match &part.kind {
            PartKind::Put(_, expires_in) => {
                table.put(key, &given, &expiries, expires_at(*expires_in), version)
            }
            PartKind::Update(..) => {
                table.update(key.clone(), &given, &expiries, version, now_ms);
                if let Some(expiry) = expiry.filter(|expiry| existed || expiry.of_new_row) {
                    table.expire(&key, expires_at(expiry.expires_in), version);
                }
            }
            PartKind::Expire(expires_in) if existed => table.expire(&key, expires_at(*expires_in), version),
            PartKind::Expire(_) => {}
            _ => drop(table.rows.remove(&key)),
        }
    }
}
