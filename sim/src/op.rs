//! The operations, and how they are drawn.
//!
//! An operation names tables, keys and fields by small numbers, and values by a stamp and a size, so that the same list
//! means the same to every run. What a value is (text, number, bytes) follows from the type its field has by then.

use std::ops::Bound;

use crate::Source;

/// Table 0 has declared fields of many types, table 1 is open, table 2 is flat.
pub const TABLES: usize = 3;
/// Snapshots held at a time.
pub const SNAPSHOTS: usize = 3;
/// All names a field can have.
pub const NAMES: [&str; 20] = [
    "name",
    "age",
    "count",
    "mail",
    "blob",
    "tag",
    "score",
    "flag",
    "seen",
    "value",
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "g",
    "h",
    "a rather long name of a field, as people give them",
    "né",
];

/// One operation on a store.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Op {
    Put {
        table: u8,
        key: u16,
        fields: Vec<Given>,
        expires_in: Option<u64>,
    },
    Update {
        table: u8,
        key: u16,
        fields: Vec<Given>,
        only_existing: bool,
    },
    /// By `modify`: the whole row, with an expiry.
    ModifyPut {
        table: u8,
        key: u16,
        fields: Vec<Given>,
        expires_in: Option<u64>,
    },
    /// By `modify`: some fields, with an expiry of the fields.
    ModifyUpdate {
        table: u8,
        key: u16,
        fields: Vec<Given>,
        expires_in: Option<u64>,
    },
    ModifyDelete {
        table: u8,
        key: u16,
    },
    Delete {
        table: u8,
        key: u16,
    },
    Increment {
        table: u8,
        key: u16,
        field: u8,
        by: i64,
    },
    CompareAndSet {
        table: u8,
        key: u16,
        field: u8,
        expected: Expected,
        new: Content,
    },
    Expire {
        table: u8,
        key: u16,
        expires_in: Option<u64>,
    },
    ExpireFields {
        table: u8,
        key: u16,
        fields: Vec<u8>,
        expires_in: Option<u64>,
    },
    Get {
        table: u8,
        key: u16,
    },
    GetFields {
        table: u8,
        key: u16,
        fields: Vec<u8>,
    },
    MultiGet {
        table: u8,
        keys: Vec<u16>,
    },
    Exists {
        table: u8,
        key: u16,
    },
    Scan {
        table: u8,
        from: Bound<u16>,
        to: Bound<u16>,
        reverse: bool,
        limit: Option<u8>,
        fields: Option<Vec<u8>>,
    },
    Prefix {
        table: u8,
        key: u16,
        bytes: u8,
        reverse: bool,
    },
    Batch {
        parts: Vec<Part>,
        require: Require,
    },
    SnapshotTake {
        slot: u8,
    },
    SnapshotGet {
        slot: u8,
        table: u8,
        key: u16,
    },
    SnapshotScan {
        slot: u8,
        table: u8,
        reverse: bool,
    },
    SnapshotDrop {
        slot: u8,
    },
    AddField {
        table: u8,
        field: u8,
        kind: u8,
        with_default: Option<u32>,
    },
    RenameField {
        table: u8,
        from: u8,
        to: u8,
    },
    DropField {
        table: u8,
        field: u8,
    },
    Clear {
        table: u8,
    },
    /// Replaces all rows by one for each of these keys, each of the same fields; every other one expires. Straight into sorted tables.
    Load {
        table: u8,
        keys: Vec<u16>,
        fields: Vec<Given>,
        expires_in: Option<u64>,
    },
    /// Drops the table and makes it anew as it was in the beginning.
    Recreate {
        table: u8,
    },
    Advance {
        ms: u16,
    },
    Collect,
    Persist,
    Reopen(How),
}

/// How a store is closed before it is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By `close`.
    Closed,
    /// Its process is killed.
    Killed,
    /// The power is cut just after a `persist`.
    PowerCut,
}

/// A field and what it is given.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Given {
    pub field: u8,
    pub content: Content,
}

/// What a field is given.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Content {
    /// A value of the field's type that shows the stamp; of about this size where the type leaves it open.
    Fit {
        stamp: u32,
        size: u32,
    },
    Null,
    /// A value that no field of the type takes.
    Misfit,
}

/// What a comparison expects.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Expected {
    Current,
    Null,
    Other {
        stamp: u32,
    },
    /// What an earlier part of the batch gives.
    Given(Content),
}

/// One write of a batch.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Part {
    pub table: u8,
    pub key: u16,
    pub kind: PartKind,
}

/// What it does.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum PartKind {
    /// With an expiry of the row.
    Put(Vec<Given>, Option<u64>),
    /// With an expiry of the fields.
    Update(Vec<Given>, Option<u64>),
    Expire(Option<u64>),
    Delete,
    /// Depends on the row, as the next two do.
    UpdateExisting(Vec<Given>),
    Increment {
        field: u8,
        by: i64,
    },
    CompareAndSet {
        field: u8,
        expected: Expected,
        new: Content,
    },
}

impl PartKind {
    /// The fields that it gives, if it does whatever the row is.
    pub(crate) fn given(&self) -> Option<&[Given]> {
        match self {
            PartKind::Put(fields, _) | PartKind::Update(fields, _) => Some(fields),
            _ => None,
        }
    }

    /// Whether what it comes to depends on its row.
    pub(crate) fn depends(&self) -> bool {
        use PartKind::{CompareAndSet, Increment, UpdateExisting};
        matches!(self, UpdateExisting(_) | Increment { .. } | CompareAndSet { .. })
    }
}

/// What a batch requires of the row of its first part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Require {
    Nothing,
    CurrentVersion,
    AnotherVersion,
}

/// The key of a number: of all lengths, with and without common prefixes; number 0 is the empty key, which is refused.
pub fn key(number: u16) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        1 => vec![0],
        2 => vec![0xFF; 9],
        3 => vec![b'k'; 700],
        _ => match number % 5 {
            0 => number.to_be_bytes().to_vec(),
            1 | 2 => format!("user:{number:08}").into_bytes(),
            3 => format!("a-long-common-prefix-of-many-bytes/{number}").into_bytes(),
            _ => {
                let mut key = vec![b'p'; 8 + usize::from(number % 3)];
                key.extend(number.to_le_bytes());
                key
            }
        },
    }
}

/// The rows of an [`Op::Load`] as they are pushed: their keys, rising, and when each expires.
pub(crate) fn loaded(keys: &[u16], expires_in: Option<u64>) -> Vec<(Vec<u8>, Option<u64>)> {
    let mut keys: Vec<Vec<u8>> = keys.iter().map(|&number| key(number)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().enumerate().map(|(n, key)| (key, expires_in.filter(|_| n.is_multiple_of(2)))).collect()
}

/// What kind of operations are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Taste {
    /// Keys are drawn below this number.
    pub keys: u64,
    /// Values are up to this long, most far shorter.
    pub value_bytes_max: u32,
    /// Wrong calls are drawn too: misfits, unknown names, empty keys.
    pub wrong_calls: bool,
    /// Reads are drawn too.
    pub reads: bool,
    /// Snapshots are taken, too: what was written since the oldest does not move.
    pub snapshots: bool,
    /// Reopening is drawn too.
    pub reopens: bool,
    /// One in so many operations is a `persist`.
    pub persist_one_in: u64,
    /// One in so many is a collection, besides those that are drawn anyway. Default 0: none.
    pub collect_one_in: u64,
    /// Most writes update fixed fields that every row has, so that chains can be merged in place.
    pub fixed_updates: bool,
    /// Tables are loaded, too: their rows are in sorted tables then.
    pub loads: bool,
}

impl Default for Taste {
    fn default() -> Taste {
        Taste {
            keys: 96,
            value_bytes_max: 40_000,
            wrong_calls: true,
            reads: true,
            snapshots: true,
            reopens: true,
            persist_one_in: 60,
            collect_one_in: 0,
            fixed_updates: false,
            loads: false,
        }
    }
}

/// Draws one operation; `stamp` goes into all values it writes.
pub fn generate(source: &mut Source<'_>, taste: &Taste, stamp: u32) -> Op {
    let mut draw = Draw { source, taste, stamp };
    if draw.source.one_in(taste.persist_one_in) {
        return Op::Persist;
    }
    if taste.collect_one_in > 0 && draw.source.one_in(taste.collect_one_in) {
        return Op::Collect;
    }
    let reads = if taste.reads { 30 } else { 0 };
    match draw.source.below(70 + reads) {
        at @ 0..60 => draw.write(at),
        60..66 => draw.maintain(),
        66..70 => draw.evolve(),
        _ => draw.read(),
    }
}

struct Draw<'d, 'b> {
    source: &'d mut Source<'b>,
    taste: &'d Taste,
    stamp: u32,
}

impl Draw<'_, '_> {
    fn table(&mut self) -> u8 {
        // The tables of rows more often than the flat one.
        [0, 0, 0, 1, 1, 2][self.source.below(6) as usize]
    }

    fn key(&mut self) -> u16 {
        let lowest = u64::from(!self.taste.wrong_calls || !self.source.one_in(64));
        (lowest + self.source.below(self.taste.keys)) as u16
    }

    fn size(&mut self) -> u32 {
        let max = u64::from(self.taste.value_bytes_max);
        let size = match self.source.below(16) {
            0..10 => self.source.below(24),
            10..13 => self.source.below(300),
            13..15 => self.source.below(5_000),
            _ => self.source.below(max.max(1)),
        };
        size.min(max) as u32
    }

    fn content(&mut self) -> Content {
        match self.source.below(24) {
            0 => Content::Null,
            1 if self.taste.wrong_calls && self.source.one_in(3) => Content::Misfit,
            _ => Content::Fit { stamp: self.stamp, size: self.size() },
        }
    }

    /// A name the table is likely to have.
    fn field(&mut self, table: u8) -> u8 {
        if self.taste.wrong_calls && self.source.one_in(40) {
            return self.source.below(NAMES.len() as u64) as u8;
        }
        match table {
            0 => self.source.below(9) as u8,
            1 => 10 + self.source.below(10) as u8,
            _ => 9,
        }
    }

    fn fields(&mut self, table: u8, most: u64) -> Vec<Given> {
        let count = 1 + self.source.below(most);
        let mut fields = Vec::with_capacity(count as usize);
        for _ in 0..count {
            fields.push(Given { field: self.field(table), content: self.content() });
        }
        // A field may be given twice, and the last value counts; but then no value may be wrong.
        let repeats = |fields: &[Given]| {
            (1..fields.len()).any(|i| fields[..i].iter().any(|f| f.field == fields[i].field))
        };
        if repeats(&fields) {
            self.make_fit(&mut fields);
        }
        fields
    }

    /// Fields of the first table that are fixed and not nullable.
    fn fixed_fields(&mut self) -> Vec<Given> {
        const FIXED: [u8; 4] = [1, 2, 5, 7];
        let count = 1 + self.source.below(2);
        let content = Content::Fit { stamp: self.stamp, size: 5 };
        (0..count).map(|_| Given { field: FIXED[self.source.below(4) as usize], content }).collect()
    }

    fn make_fit(&mut self, fields: &mut [Given]) {
        for given in fields {
            if !matches!(given.content, Content::Fit { .. }) {
                given.content = Content::Fit { stamp: self.stamp, size: 7 };
            }
        }
    }

    fn field_list(&mut self, table: u8) -> Vec<u8> {
        (0..1 + self.source.below(3)).map(|_| self.field(table)).collect()
    }

    fn expires_in(&mut self) -> Option<u64> {
        // Some are past at once.
        let most_ms = if self.source.one_in(5) { 1 } else { 3_000 };
        if self.source.one_in(8) { Some(self.source.below(most_ms)) } else { None }
    }

    fn write(&mut self, at: u64) -> Op {
        let (table, key) = (self.table(), self.key());
        if self.taste.fixed_updates && !self.source.one_in(6) {
            return Op::Update { table: 0, key, fields: self.fixed_fields(), only_existing: true };
        }
        match at {
            0..15 => Op::Put { table, key, fields: self.fields(table, 7), expires_in: self.expires_in() },
            15..32 => {
                let only_existing = self.source.one_in(3);
                Op::Update { table, key, fields: self.fields(table, 3), only_existing }
            }
            32..39 => Op::Delete { table, key },
            39..42 => {
                let by = [1, -1, 1000, i64::MAX, i64::MIN, 7][self.source.below(6) as usize];
                let field = [1, 2, 2, 1, 8, 0, 6][self.source.below(7) as usize];
                Op::Increment { table: 0, key, field, by }
            }
            42..45 => {
                let expected = match self.source.below(4) {
                    0 => Expected::Null,
                    1 => Expected::Other { stamp: self.stamp },
                    _ => Expected::Current,
                };
                let (field, new) = (self.field(table), self.content());
                Op::CompareAndSet { table, key, field, expected, new }
            }
            45..47 => Op::Expire { table, key, expires_in: self.expires_in() },
            47 => {
                let fields = self.field_list(table);
                Op::ExpireFields { table, key, fields, expires_in: self.expires_in() }
            }
            48 => Op::ModifyPut { table, key, fields: self.fields(table, 4), expires_in: self.expires_in() },
            49 => {
                Op::ModifyUpdate { table, key, fields: self.fields(table, 2), expires_in: self.expires_in() }
            }
            50 => Op::ModifyDelete { table, key },
            _ => self.batch(),
        }
    }

    fn batch(&mut self) -> Op {
        let mut parts: Vec<Part> = (0..1 + self.source.below(6)).map(|_| self.part()).collect();
        let place = |part: &Part| (part.table, part.key);
        if (1..parts.len()).any(|i| parts[..i].iter().any(|p| place(p) == place(&parts[i]))) {
            for part in &mut parts {
                use PartKind::{Put, Update, UpdateExisting};
                if let Put(fields, _) | Update(fields, _) | UpdateExisting(fields) = &mut part.kind {
                    self.make_fit(fields);
                }
            }
        }
        self.expect_given(&mut parts);
        let require = match self.source.below(8) {
            0 => Require::CurrentVersion,
            1 => Require::AnotherVersion,
            _ => Require::Nothing,
        };
        Op::Batch { parts, require }
    }

    /// Has some comparisons expect what an earlier part gives their row.
    fn expect_given(&mut self, parts: &mut [Part]) {
        for i in 1..parts.len() {
            let (earlier, later) = parts.split_at_mut(i);
            let later = &mut later[0];
            let PartKind::CompareAndSet { field, expected, .. } = &mut later.kind else { continue };
            let is_same = |part: &&Part| (part.table, part.key) == (later.table, later.key);
            let last = earlier.iter().filter(is_same).filter_map(|part| part.kind.given()).next_back();
            if let Some(given) = last.and_then(<[Given]>::last) {
                (*field, *expected) = (given.field, Expected::Given(given.content));
            }
        }
    }

    /// No comparison in the open table: it may not have learned the field.
    fn dependent_part(&mut self) -> Part {
        let (table, key) = (self.table(), self.key().max(1));
        let kind = match self.source.below(4) {
            0 => PartKind::UpdateExisting(self.fields(table, 3)),
            1 if table != 1 => {
                let expected = match self.source.one_in(3) {
                    true => Expected::Null,
                    false => Expected::Current,
                };
                PartKind::CompareAndSet { field: self.field(table), expected, new: self.content() }
            }
            _ => {
                let by = [1, 7, 1000, -1, i64::MAX][self.source.below(5) as usize];
                let field = [1, 2, 2, 8][self.source.below(4) as usize];
                return Part { table: 0, key, kind: PartKind::Increment { field, by } };
            }
        };
        Part { table, key, kind }
    }

    fn part(&mut self) -> Part {
        if self.source.one_in(5) {
            return self.dependent_part();
        }
        let (table, key) = (self.table(), self.key().max(1));
        let kind = match self.source.below(8) {
            0 | 1 => PartKind::Delete,
            5 => PartKind::Expire(self.stamp.is_multiple_of(2).then_some(u64::from(self.stamp) % 3_000)),
            2..4 => PartKind::Update(self.fields(table, 3), None),
            4 => PartKind::Update(self.fields(table, 3), self.expires_in()),
            _ => PartKind::Put(self.fields(table, 5), self.expires_in()),
        };
        Part { table, key, kind }
    }

    fn maintain(&mut self) -> Op {
        if self.taste.fixed_updates {
            // An old snapshot would keep chains from being merged in place.
            return match self.source.below(12) {
                0..9 => Op::Collect,
                9 if self.source.one_in(4) => Op::SnapshotTake { slot: 0 },
                _ => Op::SnapshotDrop { slot: 0 },
            };
        }
        match self.source.below(12) {
            0..4 => Op::Collect,
            4 | 5 if self.taste.snapshots => {
                Op::SnapshotTake { slot: self.source.below(SNAPSHOTS as u64) as u8 }
            }
            6 | 7 => Op::SnapshotDrop { slot: self.source.below(SNAPSHOTS as u64) as u8 },
            8..11 => Op::Advance { ms: self.source.below(700) as u16 },
            _ if !self.taste.reopens => Op::Collect,
            _ => Op::Reopen([How::Closed, How::Killed, How::PowerCut][self.source.below(3) as usize]),
        }
    }

    fn evolve(&mut self) -> Op {
        let table = self.table().min(1);
        let field = |draw: &mut Self| draw.source.below(NAMES.len() as u64) as u8;
        match self.source.below(40) {
            0..10 => {
                let kind = self.source.below(16) as u8;
                let with_default = if self.source.one_in(2) { Some(self.stamp) } else { None };
                Op::AddField { table, field: field(self), kind, with_default }
            }
            10..18 => Op::RenameField { table, from: field(self), to: field(self) },
            18..24 => Op::DropField { table, field: field(self) },
            24 => Op::Clear { table: self.table() },
            25 => Op::Recreate { table: self.table() },
            26..32 if self.taste.loads => self.load(),
            _ => self.write(0),
        }
    }

    fn load(&mut self) -> Op {
        let table = self.table();
        let count = self.source.below(self.taste.keys.min(60));
        let keys = (0..count).map(|_| self.key().max(1)).collect();
        Op::Load { table, keys, fields: self.fields(table, 5), expires_in: self.expires_in() }
    }

    fn read(&mut self) -> Op {
        let (table, key) = (self.table(), self.key());
        let slot = self.source.below(SNAPSHOTS as u64) as u8;
        match self.source.below(30) {
            0..12 => Op::Get { table, key },
            12..16 => Op::GetFields { table, key, fields: self.field_list(table) },
            16 => Op::MultiGet { table, keys: (0..self.source.below(40)).map(|_| self.key()).collect() },
            17 => Op::Exists { table, key },
            18..22 => {
                let (from, to) = (self.bound(), self.bound());
                let limit = if self.source.one_in(2) { Some(self.source.below(20) as u8) } else { None };
                let fields = if self.source.one_in(3) { Some(self.field_list(table)) } else { None };
                Op::Scan { table, from, to, reverse: self.source.one_in(2), limit, fields }
            }
            22 | 23 => {
                let bytes = self.source.below(8) as u8;
                Op::Prefix { table, key, bytes, reverse: self.source.one_in(2) }
            }
            24..28 => Op::SnapshotGet { slot, table, key },
            _ => Op::SnapshotScan { slot, table, reverse: self.source.one_in(2) },
        }
    }

    fn bound(&mut self) -> Bound<u16> {
        match self.source.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.key()),
            _ => Bound::Excluded(self.key()),
        }
    }
}
