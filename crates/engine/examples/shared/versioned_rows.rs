//! Rows that say of which key and of which write they are, and what there should be of each key: so each read can be told right from wrong while others write.

use std::sync::atomic::{AtomicU64, Ordering};

use hedgerow::{Db, FieldId, Result, Schema, Table, Type, Value};

pub(super) const FIELDS: usize = 10;

/// The key of the row `n`: rows are in the order of their numbers.
pub(super) fn key_of(n: u64) -> [u8; 24] {
    let mut key = *b"user0000000000000000    ";
    key[16..].copy_from_slice(&n.to_be_bytes());
    key
}

/// The number of the row of this key.
pub(super) fn number_of(key: &[u8]) -> u64 {
    u64::from_be_bytes(key[16..].try_into().unwrap())
}

/// What there is of a key: the version of the last write, and whether that left a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyState {
    pub(super) version: u32,
    pub(super) is_there: bool,
}

impl KeyState {
    pub(super) fn from_bits(bits: u32) -> KeyState {
        KeyState { version: bits >> 1, is_there: bits & 1 == 1 }
    }

    pub(super) fn bits(self) -> u32 {
        self.version << 1 | u32::from(self.is_there)
    }

    /// What the next write of the key makes of it.
    pub(super) fn next(self, is_there: bool) -> KeyState {
        KeyState { version: self.version + 1, is_there }
    }
}

/// A key's state before the write that is under way, and after it: the same where there is none.
pub(super) type KeyStates = [KeyState; 2];

/// What there should be of each key. Of each key one thread writes, one write after the other.
pub(super) struct Model(Vec<AtomicU64>);

impl Model {
    pub(super) fn of(states: &[u32]) -> Model {
        Model(states.iter().map(|&bits| AtomicU64::new(u64::from(bits) << 32 | u64::from(bits))).collect())
    }

    pub(super) fn keys(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn states(&self, n: u64) -> KeyStates {
        let bits = self.0[n as usize].load(Ordering::SeqCst);
        [KeyState::from_bits((bits >> 32) as u32), KeyState::from_bits(bits as u32)]
    }

    /// The state of a key that nobody writes now.
    pub(super) fn state(&self, n: u64) -> KeyState {
        self.states(n)[0]
    }

    fn set(&self, n: u64, [before, after]: KeyStates) {
        self.0[n as usize].store(u64::from(before.bits()) << 32 | u64::from(after.bits()), Ordering::SeqCst);
    }

    /// Writes a key by `write`, which is told the state that it is to make. Where it returns nothing it was refused, and all is as it was.
    pub(super) fn write<R>(
        &self,
        n: u64,
        is_there: bool,
        write: impl FnOnce(KeyState) -> Option<R>,
    ) -> Option<R> {
        let before = self.state(n);
        let after = before.next(is_there);
        self.set(n, [before, after]);
        let result = write(after);
        let now = if result.is_some() { after } else { before };
        self.set(n, [now, now]);
        result
    }

    pub(super) fn there(&self) -> u64 {
        (0..self.keys()).filter(|&n| self.state(n).is_there).count() as u64
    }

    pub(super) fn bits(&self) -> Vec<u32> {
        (0..self.keys()).map(|n| self.state(n).bits()).collect()
    }
}

/// What was found of a key that is not as it may be; `seen` is the version of the row that was found.
pub(super) fn wrong(n: u64, before: KeyStates, after: KeyStates, seen: Option<u32>) -> Option<String> {
    let (first, last) = (before[0], after[1]);
    let is_right = match seen {
        _ if first == last && first.is_there => seen == Some(first.version),
        _ if first == last => seen.is_none(),
        Some(version) => (first.version..=last.version).contains(&version),
        // One write in between may have been a delete.
        None => !first.is_there || !last.is_there || last.version > first.version + 1,
    };
    (!is_right).then(|| format!("row {n}: found {seen:?}, and not {first:?} to {last:?}"))
}

/// A table whose rows show their versions.
pub(super) struct VersionedRows {
    pub(super) table: Table,
    version: FieldId,
    /// The version of the write that made the row: each later one changed one of the fields.
    base: FieldId,
    fields: Vec<FieldId>,
    field_bytes: usize,
}

/// What the field has since this version of its row: no two are alike, and none can be compressed.
fn fill(out: &mut [u8], n: u64, version: u32, field: usize) {
    let mut state = n << 36 ^ u64::from(version) << 4 ^ field as u64;
    for chunk in out.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(word ^ word >> 31).to_le_bytes()[..chunk.len()]);
    }
}

impl VersionedRows {
    /// The table, which is made if it is not there; its rows have about `row_bytes`.
    pub(super) fn ensure(db: &Db, row_bytes: usize) -> Result<VersionedRows> {
        let field_bytes = (row_bytes / FIELDS).max(8);
        let schema = Schema::new().field("version", Type::U64).field("base", Type::U64);
        let schema = (0..FIELDS).fold(schema, |schema, field| {
            schema.field(format!("field{field}"), Type::FixedBytes(field_bytes as u16))
        });
        let table = db.ensure_table("usertable", schema)?;
        let ids: Result<Vec<FieldId>> =
            (0..FIELDS).map(|field| table.field(&format!("field{field}"))).collect();
        Ok(VersionedRows {
            version: table.field("version")?,
            base: table.field("base")?,
            fields: ids?,
            field_bytes,
            table,
        })
    }

    pub(super) fn put(&self, n: u64, version: u32) -> Result<()> {
        let mut bytes = vec![0; FIELDS * self.field_bytes];
        let fields = bytes.chunks_mut(self.field_bytes).enumerate();
        fields.for_each(|(field, out)| fill(out, n, version, field));
        let numbers = [self.version, self.base].map(|id| (id, Value::UInt(version.into())));
        let fields = self.fields.iter().zip(bytes.chunks(self.field_bytes));
        let all: Vec<_> = numbers.into_iter().chain(fields.map(|(&id, of)| (id, Value::Bytes(of)))).collect();
        self.table.put(&key_of(n), &all)
    }

    /// Writes one field, and the version.
    pub(super) fn update(&self, n: u64, version: u32) -> Result<()> {
        let field = version as usize % FIELDS;
        let mut bytes = vec![0; self.field_bytes];
        fill(&mut bytes, n, version, field);
        let fields =
            [(self.version, Value::UInt(version.into())), (self.fields[field], Value::Bytes(&bytes))];
        self.table.update(&key_of(n), &fields)
    }

    /// The version of a row, of which `get` gives the fields, if each of its bytes is that of the write that should have been the last to that field.
    pub(super) fn version_of<'r>(
        &self,
        n: u64,
        get: impl Fn(FieldId) -> Result<Value<'r>>,
    ) -> Result<Result<u32, String>> {
        let [Value::UInt(version), Value::UInt(base)] = [get(self.version)?, get(self.base)?] else {
            return Ok(Err(format!("row {n} has no version")));
        };
        let (version, base) = (version as u32, base as u32);
        let mut expected = [0; 256];
        let expected = &mut expected[..self.field_bytes];
        for (field, &id) in self.fields.iter().enumerate() {
            // The last write of this field.
            let since = (version as usize + FIELDS - field) % FIELDS;
            let written = version.checked_sub(since as u32).map_or(base, |last| last.max(base));
            fill(expected, n, written, field);
            if get(id)? != Value::Bytes(expected) {
                return Ok(Err(format!(
                    "row {n} of version {version}, made by {base}: field {field} is of another write than {written}"
                )));
            }
        }
        Ok(Ok(version))
    }

    /// Reads a row and compares it; what is wrong with it, if anything is.
    pub(super) fn check(&self, model: &Model, n: u64) -> Result<Option<String>> {
        let before = model.states(n);
        let seen = self.table.read(&key_of(n), |row| self.version_of(n, |id| row.get(id)))?;
        let after = model.states(n);
        Ok(match seen {
            Some(Err(problem)) => Some(problem),
            Some(Ok(version)) => wrong(n, before, after, Some(version)),
            None => wrong(n, before, after, None),
        })
    }

    /// Scans `limit` rows from the row `n` on, each compared; and that of those in between none is missing.
    pub(super) fn check_scan(&self, model: &Model, n: u64, limit: usize) -> Result<Option<String>> {
        // Enough for a store half of whose keys are deleted; what is behind is compared by other scans.
        let window = (4 * limit as u64).min(model.keys() - n);
        let before: Vec<KeyStates> = (n..n + window).map(|n| model.states(n)).collect();
        let (mut seen, mut problem) = (Vec::with_capacity(limit), None);
        self.table.scan().from(&key_of(n)).limit(limit).for_each(|key, row| {
            let number = number_of(key);
            match self.version_of(number, |id| row.get(id))? {
                Ok(version) => seen.push((number, version)),
                Err(found) => problem = Some(found),
            }
            Ok(true)
        })?;
        let upto = match seen.last() {
            Some(&(last, _)) if seen.len() == limit => last + 1,
            _ => n + window,
        };
        let mut found = seen.iter().peekable();
        for number in n..upto.min(n + window) {
            let version = found.next_if(|(of, _)| *of == number).map(|(_, version)| *version);
            let missed = wrong(number, before[(number - n) as usize], model.states(number), version);
            problem = problem.or(missed.map(|missed| format!("by a scan from {n}: {missed}")));
        }
        Ok(problem)
    }
}
