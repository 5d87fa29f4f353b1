//! The bytes of a row body and of a delta body, row format v1. All numbers are little-endian.
//!
//! Owns these bytes and their two writers. It promises that a writer puts down every byte of its body exactly once, so that
//! the memory it writes to may hold anything before. It must not know where values come from.
//!
//! ```text
//! row body                                     of a layout with n fields, v of them variable
//! +-----------------------+----------------------------------------------------------------------------------+
//! | presence              | 8 * ceil(n / 64) bytes. Bit s (byte s / 8, bit s % 8) is set iff the field in    |
//! |                       | slot s is present (not null). Bits from n on are 0.                              |
//! +-----------------------+----------------------------------------------------------------------------------+
//! | fixed fields          | each at a constant offset, zeroed if absent. Slots: types of 8 bytes first, then |
//! |                       | 4, 2, 1, then bytes(N); by id within each. So numbers are naturally aligned      |
//! |                       | without padding, wherever the body itself is aligned to 8.                       |
//! +-----------------------+----------------------------------------------------------------------------------+
//! | heads                 | 12 bytes for each *present* variable field, in slot order (by id):               |
//! |                       |   u32 length                                                                     |
//! |                       |   length <= 8: the content, zero-padded to 8 bytes                               |
//! |                       |   length  > 8: u32 offset of the content from the start of the body, u32 zero    |
//! +-----------------------+----------------------------------------------------------------------------------+
//! | tail                  | the contents longer than 8 bytes, in slot order                                  |
//! +-----------------------+----------------------------------------------------------------------------------+
//! | field expiries        | only if the record's header says so:                                             |
//! |                       |   count x (u16 field id, u64 ms since 1970), ascending by id; u16 count >= 1     |
//! +-----------------------+----------------------------------------------------------------------------------+
//!
//! delta body
//! +-----------------------+----------------------------------------------------------------------------------+
//! | u16 count, u16 zero   | entries in this delta, at least 1                                                |
//! +-----------------------+----------------------------------------------------------------------------------+
//! | entries               | count x (u16 field id, u8 flags, u8 zero, u32 length), ascending by id.          |
//! |                       | flags: 1 = the field is removed (length 0), 2 = the field expires                |
//! +-----------------------+----------------------------------------------------------------------------------+
//! | expiries              | u64 ms since 1970 for each entry with flag 2, in their order                     |
//! +-----------------------+----------------------------------------------------------------------------------+
//! | contents              | of all entries, in their order; a fixed field's as it lies in a row              |
//! +-----------------------+----------------------------------------------------------------------------------+
//! ```
//!
//! A delta entry replaces the field's value *and* its expiry.

use super::layout::Layout;

/// Bytes in a variable field's head.
pub(super) const HEAD_BYTES: usize = 12;
/// Contents up to this long lie in the head.
pub(super) const INLINE_MAX: usize = 8;
/// Bytes in one entry of a row's field expiries.
pub(super) const ROW_EXPIRY_BYTES: usize = 10;
/// Bytes in the count that ends a row's field expiries.
pub(super) const ROW_EXPIRY_COUNT_BYTES: usize = 2;
/// Bytes before a delta's entries.
pub(super) const DELTA_HEADER_BYTES: usize = 4;
/// Bytes in a delta's entry.
pub(super) const DELTA_ENTRY_BYTES: usize = 8;
/// Bytes in a delta's expiry.
pub(super) const DELTA_EXPIRY_BYTES: usize = 8;
/// Flag of a delta entry: the field is removed.
pub(super) const DELTA_REMOVED: u8 = 1;
/// Flag of a delta entry: the field expires.
pub(super) const DELTA_EXPIRES: u8 = 2;

const _: () = {
    assert!(HEAD_BYTES == size_of::<u32>() + INLINE_MAX && INLINE_MAX == 2 * size_of::<u32>());
    assert!(
        ROW_EXPIRY_BYTES == size_of::<u16>() + size_of::<u64>() && ROW_EXPIRY_COUNT_BYTES == size_of::<u16>()
    );
    assert!(DELTA_HEADER_BYTES == 2 * size_of::<u16>());
    assert!(DELTA_ENTRY_BYTES == size_of::<u16>() + 2 * size_of::<u8>() + size_of::<u32>());
    assert!(DELTA_EXPIRY_BYTES == size_of::<u64>() && DELTA_REMOVED & DELTA_EXPIRES == 0);
};

/// Bytes of a head and of what it points to, for a content of `len` bytes.
#[inline]
pub(super) fn var_bytes(len: usize) -> usize {
    HEAD_BYTES + if len > INLINE_MAX { len } else { 0 }
}

/// Writes a row body, present fields in ascending order of slot.
pub(super) struct RowWriter<'d, 'l> {
    layout: &'l Layout,
    body: &'d mut [u8],
    /// Presence bits of the slots from `64 * word` on, not yet in the body; those before are.
    presence: u64,
    word: usize,
    /// Fixed fields are written up to here.
    fixed: usize,
    /// The next head goes here.
    head: usize,
    /// The next content goes here.
    tail: usize,
}

impl<'d, 'l> RowWriter<'d, 'l> {
    /// `body` is as long as the body will be; `variable` fields will be present.
    #[inline]
    pub(super) fn new(layout: &'l Layout, body: &'d mut [u8], variable: usize) -> RowWriter<'d, 'l> {
        let (fixed, head) = (layout.bitmap_bytes(), layout.fixed_end());
        let tail = head + variable * HEAD_BYTES;
        RowWriter { layout, body, presence: 0, word: 0, fixed, head, tail }
    }

    /// The field in `slot` is present and `raw` are its bytes.
    #[inline]
    pub(super) fn field(&mut self, slot: usize, raw: &[u8]) {
        while slot / 64 > self.word {
            self.next_word();
        }
        self.presence |= 1 << (slot % 64);
        if slot < self.layout.fixed_slots() {
            let at = self.layout.fixed_offset(slot);
            if at > self.fixed {
                self.body[self.fixed..at].fill(0);
            }
            self.fixed = at + raw.len();
            self.body[at..self.fixed].copy_from_slice(raw);
        } else {
            self.variable(raw);
        }
    }

    #[inline]
    fn next_word(&mut self) {
        self.body[self.word * 8..self.word * 8 + 8].copy_from_slice(&self.presence.to_le_bytes());
        self.presence = 0;
        self.word += 1;
    }

    #[inline]
    fn variable(&mut self, raw: &[u8]) {
        let head = &mut self.body[self.head..self.head + HEAD_BYTES];
        head[..4].copy_from_slice(&(raw.len() as u32).to_le_bytes());
        if raw.len() <= INLINE_MAX {
            head[4..].fill(0);
            head[4..4 + raw.len()].copy_from_slice(raw);
        } else {
            head[4..].copy_from_slice(&(self.tail as u64).to_le_bytes());
            self.body[self.tail..self.tail + raw.len()].copy_from_slice(raw);
            self.tail += raw.len();
        }
        self.head += HEAD_BYTES;
    }

    /// Ends the fields. `expiries` are ascending by id; none at all if there are none.
    #[inline]
    pub(super) fn finish(mut self, expiries: impl Iterator<Item = (u16, u64)>) {
        while self.word * 8 < self.layout.bitmap_bytes() {
            self.next_word();
        }
        let fixed_end = self.layout.fixed_end();
        if self.fixed < fixed_end {
            self.body[self.fixed..fixed_end].fill(0);
        }
        let (mut at, mut count) = (self.tail, 0u16);
        for (id, ms) in expiries {
            self.body[at..at + 2].copy_from_slice(&id.to_le_bytes());
            self.body[at + 2..at + ROW_EXPIRY_BYTES].copy_from_slice(&ms.to_le_bytes());
            at += ROW_EXPIRY_BYTES;
            count += 1;
        }
        if count > 0 {
            self.body[at..at + ROW_EXPIRY_COUNT_BYTES].copy_from_slice(&count.to_le_bytes());
            at += ROW_EXPIRY_COUNT_BYTES;
        }
        debug_assert_eq!(at, self.body.len(), "a plan knows its body's length");
    }
}

/// Writes a delta body, entries in ascending order of id.
pub(super) struct DeltaWriter<'d> {
    body: &'d mut [u8],
    entry: usize,
    expiry: usize,
    content: usize,
}

impl<'d> DeltaWriter<'d> {
    /// `body` is as long as the body will be; `count` entries will come, `expiring` of them with an expiry.
    #[inline]
    pub(super) fn new(body: &'d mut [u8], count: usize, expiring: usize) -> DeltaWriter<'d> {
        body[..2].copy_from_slice(&(count as u16).to_le_bytes());
        body[2..DELTA_HEADER_BYTES].fill(0);
        let expiry = DELTA_HEADER_BYTES + count * DELTA_ENTRY_BYTES;
        let content = expiry + expiring * DELTA_EXPIRY_BYTES;
        DeltaWriter { body, entry: DELTA_HEADER_BYTES, expiry, content }
    }

    /// The next entry: the field's bytes and expiry, or its removal.
    #[inline]
    pub(super) fn entry(&mut self, id: u16, raw: Option<&[u8]>, expires_at_ms: Option<u64>) {
        let content = raw.unwrap_or(&[]);
        let removed = if raw.is_none() { DELTA_REMOVED } else { 0 };
        let expires = if expires_at_ms.is_some() { DELTA_EXPIRES } else { 0 };
        let entry = &mut self.body[self.entry..self.entry + DELTA_ENTRY_BYTES];
        entry[..2].copy_from_slice(&id.to_le_bytes());
        entry[2] = removed | expires;
        entry[3] = 0;
        entry[4..].copy_from_slice(&(content.len() as u32).to_le_bytes());
        self.entry += DELTA_ENTRY_BYTES;
        if let Some(ms) = expires_at_ms {
            self.body[self.expiry..self.expiry + DELTA_EXPIRY_BYTES].copy_from_slice(&ms.to_le_bytes());
            self.expiry += DELTA_EXPIRY_BYTES;
        }
        self.body[self.content..self.content + content.len()].copy_from_slice(content);
        self.content += content.len();
    }

    /// Ends the delta.
    #[inline]
    pub(super) fn finish(self) {
        debug_assert_eq!(self.content, self.body.len(), "a plan knows its body's length");
    }
}
