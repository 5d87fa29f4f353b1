//! The bytes of a row in a backend that keeps pairs, stored row v1: the value of the pair whose key is the table's number and the row's key.
//!
//! Owns these bytes. Promises that a value which parses is, whole, what was stored under this table and key: its head is verified
//! at once, the blocks of the body as they are read. Arbitrary bytes end in `Corrupted` or `Version`, never in a panic. Must not
//! know where pairs are kept, nor what a body says.
//!
//! ```text
//!  0        4        8                16   18 19 20       24
//!  +--------+--------+----------------+----+--+--+--------+
//!  |  head  |  body  |    version     |sch.|fl|bl|   0    |
//!  |  crc   |  bytes |                |ver.|ag|sh|        |
//!  +--------+--------+----------------+----+--+--+--------+
//!  24: expiry, 8 bytes, ms since 1970, only with flag EXPIRES
//!      one crc32c for each block of the body, 4 bytes each, then zeros to a multiple of 8
//!      body (a row's: see `schema/format.rs`), up to the end of the value
//! ```
//!
//! * All integers are little-endian. All that is before the body is the **head**.
//! * `head crc` is the crc32c of bytes 4 up to the body, seeded with the crc32c of the table's number (4 bytes, big-endian) and the
//!   key: a value that comes with another key's pair does not match.
//! * A block has `1 << block shift` bytes, which follows from the length of the body (`body_blocks.rs`). Its checksum is a
//!   crc32c that begins with 0.
//! * `version` is the row's: who stores it says what it counts. `schema version` is the table's at the time.
//! * Flags: 1 the row expires, 2 the body ends with a section of per-field expiries. The others, and bytes 20 to 24, are 0. A value
//!   that matches its checksum and has anything else there is refused by name; so a later format must leave the head as long as
//!   it is.

use std::cell::Cell;
use std::ops::Range;

use hedgerow_device::{crc32c, crc32c_blocks};

use crate::body_blocks::{BLOCKS_MAX, block_shift};
use crate::le_bytes::{u16_at, u32_at, u64_at};
use crate::schema::body::BodyBytes;
use crate::{Error, ErrorKind, Result};

/// Bytes of the fixed part of a head.
const HEAD_BYTES: usize = 24;
const EXPIRY_BYTES: usize = 8;

const FLAG_EXPIRES: u8 = 1;
const FLAG_FIELD_EXPIRY: u8 = 2;
const FLAGS_KNOWN: u8 = FLAG_EXPIRES | FLAG_FIELD_EXPIRY;

/// Where the parts of a value lie.
#[derive(Debug, Clone, Copy)]
struct Parts {
    checksums: usize,
    body: usize,
    shift: u8,
}

impl Parts {
    const fn new(flags: u8, body_bytes: usize) -> Parts {
        let shift = block_shift(body_bytes);
        let checksums = HEAD_BYTES + if flags & FLAG_EXPIRES != 0 { EXPIRY_BYTES } else { 0 };
        let body = (checksums + 4 * body_bytes.div_ceil(1 << shift)).next_multiple_of(8);
        Parts { checksums, body, shift }
    }
}

/// The box at the top, with an expiry and 3 blocks.
const _: () = {
    assert!(HEAD_BYTES == 2 * size_of::<u32>() + size_of::<u64>() + size_of::<u16>() + 2 + size_of::<u32>());
    let parts = Parts::new(FLAG_EXPIRES, 700);
    assert!(parts.checksums == HEAD_BYTES + EXPIRY_BYTES && parts.body == parts.checksums + 16);
    assert!(Parts::new(0, 0).body == HEAD_BYTES, "a body of nothing has no blocks");
};

/// A row about to be stored.
#[derive(Debug, Clone, Copy)]
pub struct StoredRowSpec<'k> {
    /// The number of the row's table.
    pub table: u32,
    /// The row's key.
    pub key: &'k [u8],
    /// The row's version.
    pub version: u64,
    /// The version of its table's schema that the body is laid out by.
    pub schema_version: u16,
    /// Whether the body ends with a section of per-field expiries.
    pub has_field_expiry: bool,
    /// When the row expires, in ms since 1970, if it does.
    pub expires_at_ms: Option<u64>,
    /// The length of the body: what a plan of it says.
    pub body_bytes: usize,
}

impl StoredRowSpec<'_> {
    fn flags(&self) -> u8 {
        let expires = if self.expires_at_ms.is_some() { FLAG_EXPIRES } else { 0 };
        expires | if self.has_field_expiry { FLAG_FIELD_EXPIRY } else { 0 }
    }

    /// Bytes of the whole value.
    pub fn stored_bytes(&self) -> usize {
        Parts::new(self.flags(), self.body_bytes).body + self.body_bytes
    }

    /// Writes the value over `out`, which may hold anything; `fill` writes the body.
    ///
    /// # Panics
    /// `out` is `stored_bytes` long, and the body shorter than 4 GiB, which what makes bodies sees to.
    pub fn encode(&self, out: &mut [u8], fill: impl FnOnce(&mut [u8])) {
        assert_eq!(out.len(), self.stored_bytes(), "the place of a stored row");
        let body_bytes = u32::try_from(self.body_bytes).expect("a body is shorter than 4 GiB");
        let (flags, parts) = (self.flags(), Parts::new(self.flags(), self.body_bytes));
        let (head, body) = out.split_at_mut(parts.body);
        fill(body);
        head[4..8].copy_from_slice(&body_bytes.to_le_bytes());
        head[8..16].copy_from_slice(&self.version.to_le_bytes());
        head[16..18].copy_from_slice(&self.schema_version.to_le_bytes());
        head[18..HEAD_BYTES].copy_from_slice(&[flags, parts.shift, 0, 0, 0, 0]);
        if let Some(at_ms) = self.expires_at_ms {
            head[HEAD_BYTES..parts.checksums].copy_from_slice(&at_ms.to_le_bytes());
        }
        let mut checksums = [0; BLOCKS_MAX];
        let checksums = &mut checksums[..self.body_bytes.div_ceil(1 << parts.shift)];
        crc32c_blocks(body, 1 << parts.shift, checksums);
        head[parts.checksums..].fill(0);
        for (bytes, checksum) in head[parts.checksums..].chunks_exact_mut(4).zip(checksums) {
            bytes.copy_from_slice(&checksum.to_le_bytes());
        }
        let head_crc = crc32c(seed(self.table, self.key), &head[4..]);
        head[..4].copy_from_slice(&head_crc.to_le_bytes());
    }
}

/// What the checksum of a head begins with.
fn seed(table: u32, key: &[u8]) -> u32 {
    crc32c(crc32c(0, &table.to_be_bytes()), key)
}

/// A row as it was stored. Its head has been verified; blocks of the body are verified as they are read.
#[derive(Debug, Clone)]
pub struct StoredRow<'a> {
    value: &'a [u8],
    parts: Parts,
    table: u32,
    key: &'a [u8],
    /// A bit for each block that has been verified.
    verified: Cell<u128>,
}

impl<'a> StoredRow<'a> {
    /// Takes the value of the pair of this table and key.
    ///
    /// # Errors
    /// `Corrupted` if it is not what was stored under them; `Version` if a later build stored it.
    pub fn parse(table: u32, key: &'a [u8], value: &'a [u8]) -> Result<StoredRow<'a>> {
        let wrong = |what: &str| Err(Error::corrupted(format!("{}: {what}", shown(table, key))));
        if value.len() < HEAD_BYTES {
            return wrong("its value is shorter than the head of a row");
        }
        let (body_bytes, flags) = (u32_at(value, 4) as usize, value[18]);
        let parts = Parts::new(flags, body_bytes);
        if value.len() != parts.body + body_bytes || value[19] != parts.shift {
            return wrong("the lengths in its value do not match");
        }
        if u32_at(value, 0) != crc32c(seed(table, key), &value[4..parts.body]) {
            return wrong("the head of its value does not match its checksum, or is of another key");
        }
        let (unknown, reserved) = (flags & !FLAGS_KNOWN, u32_at(value, 20));
        if unknown != 0 || reserved != 0 {
            let message = format!(
                "{}: its value has flags {unknown} and {reserved} at byte 20, which this build does not know",
                shown(table, key)
            );
            return Err(Error::new(ErrorKind::Version, message));
        }
        Ok(StoredRow { value, parts, table, key, verified: Cell::new(0) })
    }

    /// The row's key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The row's version.
    pub fn version(&self) -> u64 {
        u64_at(self.value, 8)
    }

    /// The version of the table's schema that the body is laid out by.
    pub fn schema_version(&self) -> u16 {
        u16_at(self.value, 16)
    }

    /// Whether the body ends with a section of per-field expiries.
    pub fn has_field_expiry(&self) -> bool {
        self.value[18] & FLAG_FIELD_EXPIRY != 0
    }

    /// When the row expires, in ms since 1970, if it does.
    pub fn expires_at_ms(&self) -> Option<u64> {
        (self.value[18] & FLAG_EXPIRES != 0).then(|| u64_at(self.value, HEAD_BYTES))
    }

    fn verify_block(&self, block: usize) -> Result<()> {
        if self.verified.get() & 1 << block != 0 {
            return Ok(());
        }
        let body = &self.value[self.parts.body..];
        let start = block << self.parts.shift;
        let end = (start + (1 << self.parts.shift)).min(body.len());
        if crc32c(0, &body[start..end]) != u32_at(self.value, self.parts.checksums + 4 * block) {
            let shown = shown(self.table, self.key);
            return Err(Error::corrupted(format!(
                "{shown}: the {} bytes at byte {start} of its body do not match their checksum",
                end - start
            )));
        }
        self.verified.set(self.verified.get() | 1 << block);
        Ok(())
    }
}

impl<'a> BodyBytes<'a> for &StoredRow<'a> {
    fn len(&self) -> usize {
        self.value.len() - self.parts.body
    }

    fn slice(&self, range: Range<usize>) -> Result<&'a [u8]> {
        let Some(slice) = self.value[self.parts.body..].get(range.clone()) else {
            let shown = shown(self.table, self.key);
            return Err(Error::corrupted(format!("{shown}: it points outside its own {} bytes", self.len())));
        };
        if !slice.is_empty() {
            (range.start >> self.parts.shift..=(range.end - 1) >> self.parts.shift)
                .try_for_each(|block| self.verify_block(block))?;
        }
        Ok(slice)
    }
}

/// Which row, for a person.
fn shown(table: u32, key: &[u8]) -> String {
    format!("the stored row of table {table}, key {}", key.escape_ascii())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
