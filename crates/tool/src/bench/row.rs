//! Keys and rows of the benchmark: how they are made and how they are checked.
//!
//! Owns the key format, the stamps in field values and [`RowSink`], which takes what a store reads. Promises that
//! making and checking cost little beside any store (a copy and one multiplication a field), and that a value read for
//! the wrong row or field, of the wrong length, or out of order is found. Must not know any store.

use hedgerow_device::Random;

use super::distribution::fnv64;

/// Bytes in a key.
pub const KEY_BYTES: usize = 24;
/// `user` and twenty digits.
pub type Key = [u8; KEY_BYTES];

/// The most fields the benchmark gives a row.
pub const FIELDS_MAX: usize = 64;
/// The most bytes it gives a field.
pub const FIELD_BYTES_MAX: usize = 4096;

/// `user` and the twenty digits of the record's hash, as YCSB with zero padding: record order is not key order.
#[inline]
pub fn key_of(record: u64) -> Key {
    let mut key = *b"user00000000000000000000";
    let mut rest = fnv64(record);
    let mut at = KEY_BYTES;
    while at > 4 {
        let pair = rest % 100;
        rest /= 100;
        key[at - 1] = b'0' + (pair % 10) as u8;
        key[at - 2] = b'0' + (pair / 10) as u8;
        at -= 2;
    }
    key
}

/// The number in a key's digits.
fn key_number(key: &[u8]) -> u64 {
    key.iter()
        .skip(4)
        .fold(0u64, |n, &digit| n.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0'))))
}

/// Mixes a key into 64 bits for the stamps.
#[inline]
fn key_hash(key: &Key) -> u64 {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&key[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product >> 64) as u64 ^ product as u64
    };
    fold(word(0) ^ word(8) ^ 0xA076_1D64_78BD_642F, word(16) ^ 0xE703_7ED1_A0B4_28DB)
        ^ word(8).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Eight printable bytes that name a row and a field: 48 bits of hash.
#[inline]
fn stamp_of(key_hash: u64, field: usize) -> u64 {
    let mixed = (key_hash ^ (field as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93))
        .wrapping_mul(0xFF51_AFD7_ED55_8CCD)
        .rotate_right(29);
    (mixed & 0x3F3F_3F3F_3F3F_3F3F) + 0x3030_3030_3030_3030
}

/// How many fields of how many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowShape {
    /// Fields in a row, 1 to [`FIELDS_MAX`].
    pub fields: usize,
    /// Bytes in each field, 1 to [`FIELD_BYTES_MAX`].
    pub field_bytes: usize,
}

impl RowShape {
    /// Checks the limits.
    pub fn new(fields: usize, field_bytes: usize) -> Result<RowShape, String> {
        if !(1..=FIELDS_MAX).contains(&fields) {
            return Err(format!("--fields must be 1 to {FIELDS_MAX}, not {fields}"));
        }
        if !(1..=FIELD_BYTES_MAX).contains(&field_bytes) {
            return Err(format!("--field-bytes must be 1 to {FIELD_BYTES_MAX}, not {field_bytes}"));
        }
        Ok(RowShape { fields, field_bytes })
    }

    /// Bytes in all fields together.
    pub fn row_bytes(&self) -> usize {
        self.fields * self.field_bytes
    }

    fn stamp_bytes(&self) -> usize {
        self.field_bytes.min(8)
    }
}

/// Bytes in the pool that values are cut from: stays in the second-level cache, repeats too far apart to compress.
const POOL_BYTES: usize = 256 << 10;

/// Makes rows and values: a stamp, then printable bytes cut from a random pool at a random place.
#[derive(Debug)]
pub struct RowSource {
    shape: RowShape,
    pool: Box<[u8]>,
    row: Box<[u8]>,
}

impl RowSource {
    /// A source of its own for one thread.
    pub fn new(shape: RowShape, seed: u64) -> RowSource {
        let mut random = Random::from_seed(seed);
        let pool = (0..POOL_BYTES + shape.row_bytes()).map(|_| b' ' + random.below(95) as u8).collect();
        RowSource { shape, pool, row: vec![0; shape.row_bytes()].into() }
    }

    /// The fields of a row one after the other, new at every call.
    #[inline]
    pub fn row(&mut self, key: &Key, random: &mut Random) -> &[u8] {
        let from = random.below(POOL_BYTES as u64) as usize;
        self.row.copy_from_slice(&self.pool[from..from + self.shape.row_bytes()]);
        let hash = key_hash(key);
        for (field, value) in self.row.chunks_exact_mut(self.shape.field_bytes).enumerate() {
            put_stamp(value, stamp_of(hash, field));
        }
        &self.row
    }

    /// The values of some fields one after the other, new at every call.
    #[inline]
    pub fn values(&mut self, key: &Key, fields: &[usize], random: &mut Random) -> &[u8] {
        let width = self.shape.field_bytes;
        let bytes = (fields.len() * width).min(self.row.len());
        let from = random.below(POOL_BYTES as u64) as usize;
        self.row[..bytes].copy_from_slice(&self.pool[from..from + bytes]);
        let hash = key_hash(key);
        for (&field, value) in fields.iter().zip(self.row[..bytes].chunks_exact_mut(width)) {
            put_stamp(value, stamp_of(hash, field));
        }
        &self.row[..bytes]
    }

    /// One field's value, new at every call.
    #[inline]
    pub fn value(&mut self, key: &Key, field: usize, random: &mut Random) -> &[u8] {
        let from = random.below(POOL_BYTES as u64) as usize;
        let value = &mut self.row[..self.shape.field_bytes];
        value.copy_from_slice(&self.pool[from..from + self.shape.field_bytes]);
        put_stamp(value, stamp_of(key_hash(key), field));
        value
    }
}

#[inline]
fn put_stamp(value: &mut [u8], stamp: u64) {
    let bytes = stamp.to_le_bytes();
    let count = value.len().min(8);
    value[..count].copy_from_slice(&bytes[..count]);
}

/// Takes what a store reads: copies every value to the reader's own memory, as a caller who keeps it would, and checks
/// it. The same for all stores.
#[derive(Debug)]
pub struct RowSink {
    shape: RowShape,
    /// The values of the row being read.
    row: Box<[u8]>,
    hash: u64,
    first_key: Key,
    last_key: Key,
    rows: usize,
    values: usize,
    fault: Option<String>,
}

impl RowSink {
    /// An empty sink.
    pub fn new(shape: RowShape) -> RowSink {
        RowSink {
            shape,
            row: vec![0; shape.row_bytes()].into(),
            hash: 0,
            first_key: [0; KEY_BYTES],
            last_key: [0; KEY_BYTES],
            rows: 0,
            values: 0,
            fault: None,
        }
    }

    /// Forgets the rows of the operation before.
    #[inline]
    pub fn clear(&mut self) {
        self.rows = 0;
        self.values = 0;
    }

    /// The values that follow belong to this row. Rows must come in key order.
    #[inline]
    pub fn begin_row(&mut self, key: &[u8]) {
        let Ok(key) = <&Key>::try_from(key) else {
            self.fail(|| format!("read a key of {} bytes", key.len()));
            return;
        };
        if self.rows == 0 {
            self.first_key = *key;
        } else if *key <= self.last_key {
            let last = self.last_key;
            self.fail(|| format!("{} came after {}", key.escape_ascii(), last.escape_ascii()));
        }
        self.last_key = *key;
        self.hash = key_hash(key);
        self.rows += 1;
    }

    /// A value of the row begun.
    #[inline]
    pub fn value(&mut self, field: usize, value: &[u8]) {
        let (width, count) = (self.shape.field_bytes, self.shape.stamp_bytes());
        if field >= self.shape.fields || value.len() != width {
            self.fail(|| format!("read field {field} of {} bytes", value.len()));
            return;
        }
        let kept = &mut self.row[field * width..(field + 1) * width];
        kept.copy_from_slice(value);
        let mut stamp = stamp_of(self.hash, field).to_le_bytes();
        if count == 8 {
            stamp = u64::from_le_bytes(stamp).wrapping_sub(first_word(kept)).to_le_bytes();
        } else {
            stamp.iter_mut().zip(kept).for_each(|(stamp, byte)| *stamp ^= *byte);
        }
        if stamp[..count].iter().any(|&byte| byte != 0) {
            let key = self.last_key;
            self.fail(|| format!("field {field} of {} holds another value", key.escape_ascii()));
        }
        self.values += 1;
    }

    /// All values of the row begun, one after the other.
    #[inline]
    pub fn values(&mut self, row: &[u8]) {
        if row.len() != self.shape.row_bytes() {
            self.fail(|| format!("read a row of {} bytes", row.len()));
            return;
        }
        for (field, value) in row.chunks_exact(self.shape.field_bytes).enumerate() {
            self.value(field, value);
        }
    }

    /// Lets a scan of canned rows pass for one from `start`.
    #[inline]
    pub(crate) fn starts_at(&mut self, start: &Key) {
        self.first_key = *start;
    }

    /// Rows since `clear`.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The values of the last row, where the fields that were read are valid.
    #[inline]
    pub fn last_row(&self) -> &[u8] {
        &self.row
    }

    /// Whether one row was read, with `values` values.
    #[inline]
    pub fn check_read(&self, key: &Key, values: usize) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.rows != 1 || self.values != values {
            let (rows, read) = (self.rows, self.values);
            return Err(format!("reading {} gave {rows} rows with {read} values", key.escape_ascii()));
        }
        Ok(())
    }

    /// Whether a scan of `limit` rows from `start`, in a table of `records`, gave what it should.
    #[inline]
    pub fn check_scan(&self, start: &Key, limit: usize, values: usize, records: u64) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let complete = self.rows == limit || (self.rows < limit && near_end(start, limit, records));
        if !complete || self.rows == 0 || self.first_key != *start || self.values != self.rows * values {
            let (rows, read) = (self.rows, self.values);
            return Err(format!(
                "scanning {limit} rows from {} gave {rows} rows with {read} values",
                start.escape_ascii()
            ));
        }
        Ok(())
    }

    #[cold]
    fn fail(&mut self, fault: impl FnOnce() -> String) {
        if self.fault.is_none() {
            self.fault = Some(fault());
        }
    }
}

#[inline]
fn first_word(value: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&value[..8]);
    u64::from_le_bytes(word)
}

/// Whether a table of `records` evenly hashed keys may well end within `limit` rows of `start`.
fn near_end(start: &Key, limit: usize, records: u64) -> bool {
    let behind = (i64::MAX as u64 - key_number(start)) as f64 / i64::MAX as f64 * records as f64;
    behind < 2.0 * limit as f64 + 20.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: RowShape = RowShape { fields: 10, field_bytes: 100 };

    #[test]
    fn keys_are_ycsbs_padded() {
        assert_eq!(&key_of(0), b"user06284781860667377211");
        assert_eq!(key_number(&key_of(77)), fnv64(77));
    }

    #[test]
    fn what_is_made_is_accepted_and_new_each_time() {
        let (mut source, mut sink, mut random) =
            (RowSource::new(SHAPE, 1), RowSink::new(SHAPE), Random::from_seed(1));
        let key = key_of(5);
        let first = source.row(&key, &mut random).to_vec();
        assert!(first.iter().all(|byte| (b' '..=b'~').contains(byte)));
        sink.begin_row(&key);
        sink.values(&first);
        sink.check_read(&key, 10).unwrap();
        assert_eq!(sink.last_row(), first);
        assert_ne!(source.row(&key, &mut random), first);
        sink.clear();
        sink.begin_row(&key);
        sink.value(3, source.value(&key, 3, &mut random));
        sink.check_read(&key, 1).unwrap();
        let several = source.values(&key, &[9, 4], &mut random);
        sink.value(9, &several[..100]);
        sink.value(4, &several[100..]);
        sink.check_read(&key, 3).unwrap();
    }

    #[test]
    fn wrong_row_field_length_and_order_are_found() {
        let (mut source, mut random) = (RowSource::new(SHAPE, 1), Random::from_seed(1));
        let (key, other) = (key_of(5), key_of(6));
        let mut feed = |deliver: &dyn Fn(&mut RowSink, &[u8])| {
            let mut sink = RowSink::new(SHAPE);
            deliver(&mut sink, source.row(&key, &mut random));
            sink.check_read(&key, 1)
        };
        let value = |sink: &mut RowSink, key: &Key, field: usize, value: &[u8]| {
            sink.begin_row(key);
            sink.value(field, value);
        };
        feed(&|sink, row| value(sink, &key, 0, &row[..100])).unwrap();
        feed(&|sink, row| value(sink, &other, 0, &row[..100])).unwrap_err();
        feed(&|sink, row| value(sink, &key, 1, &row[..100])).unwrap_err();
        feed(&|sink, row| value(sink, &key, 0, &row[..99])).unwrap_err();
        feed(&|sink, row| value(sink, &key, 10, &row[..100])).unwrap_err();
        feed(&|sink, _| sink.begin_row(&key)).unwrap_err();
        feed(&|sink, _| sink.begin_row(&key[..20])).unwrap_err();
    }

    #[test]
    fn short_fields_are_stamped_too() {
        let shape = RowShape::new(3, 4).unwrap();
        let (mut source, mut sink, mut random) =
            (RowSource::new(shape, 1), RowSink::new(shape), Random::from_seed(1));
        let key = key_of(9);
        sink.begin_row(&key);
        sink.values(source.row(&key, &mut random));
        sink.check_read(&key, 3).unwrap();
        sink.value(0, b"????");
        assert!(sink.check_read(&key, 4).is_err());
    }

    #[test]
    fn scans_are_checked_for_order_start_and_end() {
        let mut keys: Vec<Key> = (0..1000).map(key_of).collect();
        keys.sort();
        let scan = |from: usize, keys: &[Key], limit: usize| {
            let mut sink = RowSink::new(SHAPE);
            let start = keys[from];
            keys[from..].iter().take(limit).for_each(|key| sink.begin_row(key));
            sink.check_scan(&start, limit, 0, 1000)
        };
        scan(0, &keys, 100).unwrap();
        scan(990, &keys, 100).unwrap();
        assert!(scan(10, &keys[..50], 100).is_err(), "a scan that ends in the middle");
        let mut swapped = keys.clone();
        swapped.swap(3, 4);
        assert!(scan(0, &swapped, 100).is_err());
        let mut sink = RowSink::new(SHAPE);
        sink.begin_row(&keys[1]);
        assert!(sink.check_scan(&keys[0], 1, 0, 1000).is_err(), "a scan that starts elsewhere");
    }
}
