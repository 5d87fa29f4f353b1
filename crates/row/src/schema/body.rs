//! Reading: single fields out of the bodies of rows and deltas.
//!
//! Owns the way from a field to its bytes. It promises to touch no more than the presence bitmap, the field's head and the
//! field itself (for a delta: its entries and the field), to bounds-check every offset and length it reads, and to answer
//! `Corrupted` where one is wrong. It must not know where bytes come from or how they are verified: that is [`BodyBytes`].

use std::ops::Range;

use super::format::{
    DELTA_ENTRY_BYTES, DELTA_EXPIRES, DELTA_EXPIRY_BYTES, DELTA_HEADER_BYTES, DELTA_REMOVED, HEAD_BYTES,
    INLINE_MAX, ROW_EXPIRY_BYTES, ROW_EXPIRY_COUNT_BYTES,
};
use super::layout::{FieldSlot, Layout};
use super::table::TableSchema;
use super::types::Type;
use super::{FieldId, Value};
use crate::le_bytes::{u16_at, u32_at, u64_at};
use crate::{Error, Result};

/// The bytes of one body.
#[expect(
    clippy::len_without_is_empty,
    reason = "readers check ranges; whether there is nothing at all matters to none"
)]
pub trait BodyBytes<'a> {
    /// The body's length.
    fn len(&self) -> usize;
    /// The bytes of `range`, which lies within `len`, once they are known to be what was written; else `Corrupted`.
    fn slice(&self, range: Range<usize>) -> Result<&'a [u8]>;
}

/// Bytes that have been verified already.
impl<'a> BodyBytes<'a> for &'a [u8] {
    #[inline]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn slice(&self, range: Range<usize>) -> Result<&'a [u8]> {
        let bytes: &'a [u8] = self;
        bytes.get(range).ok_or_else(|| Error::corrupted("a body shorter than it says"))
    }
}

/// A field as one record holds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FieldRead<'a> {
    /// `Null` if absent.
    pub value: Value<'a>,
    /// In ms since 1970.
    pub expires_at_ms: Option<u64>,
}

impl<'a> FieldRead<'a> {
    const ABSENT: FieldRead<'static> = FieldRead { value: Value::Null, expires_at_ms: None };

    /// What a field is that no record of its row could name, be it that the row is older than the field, or that deltas are all there is of it: its default,
    /// which is `Null` where it may be absent ([`Field::default`](super::Field::default)).
    #[inline]
    pub fn default_of(schema: &'a TableSchema, position: usize) -> FieldRead<'a> {
        match schema.fields().fields().get(position) {
            Some(field) => FieldRead { value: field.default(), expires_at_ms: None },
            None => FieldRead::ABSENT,
        }
    }

    /// The value as of `now_ms`: `Null` once it has expired.
    #[inline]
    pub fn at(self, now_ms: u64) -> Value<'a> {
        if is_past(self.expires_at_ms, now_ms) { Value::Null } else { self.value }
    }
}

/// Whether something with this expiry is gone: from its very millisecond on.
#[inline]
pub fn is_past(expires_at_ms: Option<u64>, now_ms: u64) -> bool {
    expires_at_ms.is_some_and(|ms| ms <= now_ms)
}

#[inline]
fn slice<'a, B: BodyBytes<'a>>(bytes: &B, start: usize, len: usize) -> Result<&'a [u8]> {
    match start.checked_add(len) {
        Some(end) if end <= bytes.len() => bytes.slice(start..end),
        _ => Err(outside(start, len, bytes.len())),
    }
}

#[cold]
fn outside(start: usize, len: usize, body: usize) -> Error {
    Error::corrupted(format!("{len} bytes at {start} of a body of {body}"))
}

/// The body of a row.
#[derive(Debug, Clone, Copy)]
pub struct RowBody<'a, B> {
    layout: &'a Layout,
    bytes: B,
    has_field_expiry: bool,
}

impl<'a, B: BodyBytes<'a>> RowBody<'a, B> {
    /// `layout` is that of the version the row was written under; `has_field_expiry` is in the record's header.
    #[inline]
    pub fn new(layout: &'a Layout, bytes: B, has_field_expiry: bool) -> RowBody<'a, B> {
        RowBody { layout, bytes, has_field_expiry }
    }

    /// The field at `position` of the reader's `schema`: the table's, of the row's version or a later one. Its default if it is
    /// younger than the row. The expiry is told, not heeded.
    #[inline]
    pub fn read(&self, schema: &'a TableSchema, position: usize) -> Result<FieldRead<'a>> {
        let Some(slot) = self.slot(schema, position) else {
            return Ok(FieldRead::default_of(schema, position));
        };
        // A field that is not nullable is in every row whose layout has it: no need to look at the bitmap.
        let raw = match schema.fields().fields()[position].is_nullable() || slot >= self.layout.direct_slots()
        {
            true => self.raw(self.bitmap()?, slot)?,
            false => Some(self.fixed(slot)?),
        };
        self.decode(slot, raw)
    }

    /// The bytes and type of a field that every row of this version has, without an expiry, at one and the same place: the quick
    /// way to most fields. `None` if it has to be looked for ([`RowBody::read`]).
    #[inline(always)]
    pub fn in_place(&self, schema: &TableSchema, position: usize) -> Result<Option<(&'a [u8], Type)>> {
        if self.has_field_expiry || schema.version() != self.layout.version() {
            return Ok(None);
        }
        match self.layout.in_place(position) {
            Some(slot) => {
                let raw = slice(&self.bytes, slot.offset as usize, usize::from(slot.width))?;
                Ok(Some((raw, slot.kind)))
            }
            None => Ok(None),
        }
    }

    /// Calls `visit` with the position and contents of each present field, in the order of the reader's schema. Reads, and
    /// so verifies, the whole body first.
    #[inline]
    pub fn for_each(
        &self,
        schema: &'a TableSchema,
        mut visit: impl FnMut(usize, FieldRead<'a>),
    ) -> Result<()> {
        let bytes = slice(&self.bytes, 0, self.bytes.len())?;
        let body = RowBody { layout: self.layout, bytes, has_field_expiry: self.has_field_expiry };
        let (bitmap, direct) = (body.bitmap()?, self.layout.direct_slots());
        if let Some(slots) = self.layout.all_fixed_in_order()
            && schema.version() == self.layout.version()
            && !self.has_field_expiry
        {
            for (position, slot) in slots.iter().enumerate() {
                if is_set(bitmap, position) {
                    visit(position, read_fixed(slot, bytes)?);
                }
            }
            return Ok(());
        }
        let mut walk = FieldWalk::new(self.layout);
        for (position, field) in schema.fields().fields().iter().enumerate() {
            match body.slot(schema, position) {
                Some(slot) if slot < direct && !self.has_field_expiry => {
                    if is_set(bitmap, slot) {
                        visit(position, read_fixed(self.layout.slot(slot), bytes)?);
                    }
                }
                Some(slot) => {
                    let read = body.decode(slot, body.raw_from(bitmap, slot, &mut walk)?)?;
                    if !read.value.is_null() {
                        visit(position, read);
                    }
                }
                None if field.default().is_null() => {}
                None => visit(position, FieldRead { value: field.default(), expires_at_ms: None }),
            }
        }
        Ok(())
    }

    #[inline]
    fn decode(&self, slot: usize, raw: Option<&'a [u8]>) -> Result<FieldRead<'a>> {
        let Some(raw) = raw else { return Ok(FieldRead::ABSENT) };
        let Slotted { id, kind } = self.slotted(slot);
        let expires_at_ms = if self.has_field_expiry { self.expiry_of(id)? } else { None };
        Ok(FieldRead { value: kind.decode(raw)?, expires_at_ms })
    }

    /// Whether `read` would give anything but `Null`, touching the presence bitmap only.
    #[inline]
    pub fn is_present(&self, schema: &'a TableSchema, position: usize) -> Result<bool> {
        match self.slot(schema, position) {
            Some(slot) => Ok(is_set(self.bitmap()?, slot)),
            None => Ok(schema.fields().fields().get(position).is_some_and(|field| !field.is_nullable())),
        }
    }

    /// When the field expires (ms since 1970), if it is there and does.
    pub fn expiry(&self, schema: &'a TableSchema, position: usize) -> Result<Option<u64>> {
        match self.slot(schema, position) {
            Some(slot) if self.has_field_expiry && is_set(self.bitmap()?, slot) => {
                self.expiry_of(self.slotted(slot).id)
            }
            _ => Ok(None),
        }
    }

    #[inline]
    fn slot(&self, schema: &TableSchema, position: usize) -> Option<usize> {
        let field = schema.fields().fields().get(position)?;
        if schema.version() == self.layout.version() {
            return Some(self.layout.slot_of(position));
        }
        self.layout.slot_of_id(field.id)
    }

    fn slotted(&self, slot: usize) -> Slotted {
        let slot = self.layout.slot(slot);
        Slotted { id: slot.id, kind: slot.kind }
    }

    #[inline]
    pub(super) fn layout(&self) -> &'a Layout {
        self.layout
    }

    #[inline]
    pub(super) fn bitmap(&self) -> Result<&'a [u8]> {
        slice(&self.bytes, 0, self.layout.bitmap_bytes())
    }

    /// The field's bytes, if it is present.
    #[inline]
    fn raw(&self, bitmap: &[u8], slot: usize) -> Result<Option<&'a [u8]>> {
        self.raw_from(bitmap, slot, &mut FieldWalk::new(self.layout))
    }

    /// [`RowBody::raw`], where the fields before it have to be walked from where `walk` has come to.
    #[inline]
    fn raw_from(&self, bitmap: &[u8], slot: usize, walk: &mut FieldWalk) -> Result<Option<&'a [u8]>> {
        if !is_set(bitmap, slot) {
            return Ok(None);
        }
        let (fixed, direct) = (self.layout.fixed_slots(), self.layout.direct_slots());
        if slot < direct {
            return self.fixed(slot).map(Some);
        }
        if direct < fixed {
            walk.to(self, slot)?;
        }
        if slot < fixed {
            self.fixed(slot).map(Some)
        } else {
            self.variable(rank(bitmap, fixed, slot)).map(Some)
        }
    }

    /// The bytes of the fixed field in `slot`.
    #[inline]
    pub(super) fn fixed(&self, slot: usize) -> Result<&'a [u8]> {
        let slot = self.layout.slot(slot);
        slice(&self.bytes, slot.offset as usize, usize::from(slot.width))
    }

    /// The bytes of the present variable field that has `rank` others before it.
    #[inline]
    pub(super) fn variable(&self, rank: usize) -> Result<&'a [u8]> {
        let head = slice(&self.bytes, self.layout.fixed_end() + rank * HEAD_BYTES, HEAD_BYTES)?;
        let len = u32_at(head, 0) as usize;
        if len <= INLINE_MAX {
            Ok(&head[4..4 + len])
        } else {
            slice(&self.bytes, u32_at(head, 4) as usize, len)
        }
    }

    /// The expiries of all fields, for [`expiry_in`]; empty if there are none.
    pub(super) fn expiries(&self) -> Result<&'a [u8]> {
        if !self.has_field_expiry {
            return Ok(&[]);
        }
        let len = self.bytes.len();
        let count_at = len.checked_sub(ROW_EXPIRY_COUNT_BYTES).ok_or_else(|| outside(0, 2, len))?;
        let count = u16_at(slice(&self.bytes, count_at, ROW_EXPIRY_COUNT_BYTES)?, 0) as usize;
        match count_at.checked_sub(count * ROW_EXPIRY_BYTES) {
            Some(at) if count > 0 && at >= self.layout.fixed_end() => {
                slice(&self.bytes, at, count * ROW_EXPIRY_BYTES)
            }
            _ => Err(Error::corrupted(format!("{count} field expiries in a row of {len} bytes"))),
        }
    }

    fn expiry_of(&self, id: FieldId) -> Result<Option<u64>> {
        Ok(expiry_in(self.expiries()?, id))
    }
}

/// A fixed field of a row without field expiries. Nothing passes through memory here.
#[inline(always)]
fn read_fixed<'a>(slot: &FieldSlot, bytes: &'a [u8]) -> Result<FieldRead<'a>> {
    let (start, width) = (slot.offset as usize, usize::from(slot.width));
    let Some(raw) = bytes.get(start..start + width) else { return Err(outside(start, width, bytes.len())) };
    Ok(FieldRead { value: slot.kind.decode_fixed(raw)?, expires_at_ms: None })
}

/// A reader of rows without a schema on its way to a field ([`FieldAccess`](super::table::FieldAccess)): it cannot know where
/// the next field begins before it has looked at the head of the one before. Our rows have no such heads, so it looks at the first
/// byte of each field where theirs would be, and takes the width from the schema.
struct FieldWalk {
    slot: usize,
    at: usize,
}

impl FieldWalk {
    #[inline]
    fn new(layout: &Layout) -> FieldWalk {
        FieldWalk { slot: 0, at: layout.bitmap_bytes() }
    }

    /// Goes on to `slot`, or to the end of the fixed fields before it.
    #[cold]
    fn to<'a, B: BodyBytes<'a>>(&mut self, body: &RowBody<'a, B>, slot: usize) -> Result<()> {
        let layout = body.layout;
        if slot < self.slot {
            *self = FieldWalk::new(layout);
        }
        while self.slot < slot.min(layout.fixed_slots()) {
            let head = slice(&body.bytes, self.at, 1)?;
            let width = layout.slot(self.slot).kind.width().unwrap_or(0);
            // The width, and not known before the byte was read, as a length in it would not be.
            self.at += width.max(std::hint::black_box(usize::from(head[0]).min(width)));
            self.slot += 1;
        }
        debug_assert!(slot >= layout.fixed_slots() || self.at == layout.fixed_offset(slot));
        Ok(())
    }
}

/// What of a slot a reader needs.
struct Slotted {
    id: FieldId,
    kind: Type,
}

/// The expiry of a field among a row's.
pub(super) fn expiry_in(expiries: &[u8], id: FieldId) -> Option<u64> {
    let (mut from, mut to) = (0, expiries.len() / ROW_EXPIRY_BYTES);
    while from < to {
        let middle = (from + to) / 2;
        let entry = &expiries[middle * ROW_EXPIRY_BYTES..][..ROW_EXPIRY_BYTES];
        match u16_at(entry, 0).cmp(&id.0) {
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Greater => to = middle,
            std::cmp::Ordering::Equal => return Some(u64_at(entry, 2)),
        }
    }
    None
}

#[inline]
fn is_set(bitmap: &[u8], slot: usize) -> bool {
    bitmap[slot / 8] & (1 << (slot % 8)) != 0
}

/// The bits set from `from` up to but not including `to`.
#[inline]
fn rank(bitmap: &[u8], from: usize, to: usize) -> usize {
    let mut ones = 0;
    for word in from / 64..to.div_ceil(64) {
        let mut bits = u64_at(bitmap, word * 8);
        if word == from / 64 {
            bits &= !0 << (from % 64);
        }
        if word == to / 64 {
            bits &= (1 << (to % 64)) - 1;
        }
        ones += bits.count_ones();
    }
    ones as usize
}

/// The body of a delta.
#[derive(Debug, Clone, Copy)]
pub struct DeltaBody<B> {
    bytes: B,
}

/// One entry of a delta.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaEntry<'a> {
    /// The field it says something of.
    pub id: FieldId,
    /// The field's bytes; `None` if it is removed.
    pub raw: Option<&'a [u8]>,
    /// In ms since 1970.
    pub expires_at_ms: Option<u64>,
}

impl<'a, B: BodyBytes<'a>> DeltaBody<B> {
    /// A delta of any version.
    #[inline]
    pub fn new(bytes: B) -> DeltaBody<B> {
        DeltaBody { bytes }
    }

    /// What the delta says of the field at `position` of the reader's `schema`; `None` if nothing.
    #[inline]
    pub fn find(&self, schema: &TableSchema, position: usize) -> Result<Option<FieldRead<'a>>> {
        let Some(field) = schema.fields().fields().get(position) else { return Ok(None) };
        let entries = self.entry_table()?;
        let mut places = EntryPlaces::new(entries);
        for entry in entries.chunks_exact(DELTA_ENTRY_BYTES) {
            let place = places.next(entry);
            if u16_at(entry, 0) == field.id.0 {
                let DeltaEntry { raw, expires_at_ms, .. } = self.entry(entry, place)?;
                let value = raw.map_or(Ok(Value::Null), |raw| field.kind.decode(raw))?;
                return Ok(Some(FieldRead { value, expires_at_ms }));
            }
        }
        Ok(None)
    }

    /// Whether the delta sets the field (or removes it), and its expiry in ms since 1970, without touching the field's
    /// bytes. `None` if it says nothing of it.
    pub fn sets(&self, id: FieldId) -> Result<Option<(bool, Option<u64>)>> {
        let entries = self.entry_table()?;
        let mut places = EntryPlaces::new(entries);
        for entry in entries.chunks_exact(DELTA_ENTRY_BYTES) {
            let (expiry_at, _) = places.next(entry);
            if u16_at(entry, 0) == id.0 {
                let expires_at_ms = match entry[2] & DELTA_EXPIRES {
                    0 => None,
                    _ => Some(u64_at(slice(&self.bytes, expiry_at, DELTA_EXPIRY_BYTES)?, 0)),
                };
                return Ok(Some((entry[2] & DELTA_REMOVED == 0, expires_at_ms)));
            }
        }
        Ok(None)
    }

    /// The entries, ascending by id.
    pub fn entries(&self) -> Result<impl Iterator<Item = Result<DeltaEntry<'a>>>> {
        let entries = self.entry_table()?;
        let mut places = EntryPlaces::new(entries);
        Ok(entries.chunks_exact(DELTA_ENTRY_BYTES).map(move |entry| self.entry(entry, places.next(entry))))
    }

    #[inline]
    fn entry_table(&self) -> Result<&'a [u8]> {
        let count = u16_at(slice(&self.bytes, 0, DELTA_HEADER_BYTES)?, 0);
        slice(&self.bytes, DELTA_HEADER_BYTES, count as usize * DELTA_ENTRY_BYTES)
    }

    #[inline]
    fn entry(&self, entry: &[u8], (expiry_at, content_at): (usize, usize)) -> Result<DeltaEntry<'a>> {
        let expires_at_ms = match entry[2] & DELTA_EXPIRES {
            0 => None,
            _ => Some(u64_at(slice(&self.bytes, expiry_at, DELTA_EXPIRY_BYTES)?, 0)),
        };
        let raw = match entry[2] & DELTA_REMOVED {
            0 => Some(slice(&self.bytes, content_at, u32_at(entry, 4) as usize)?),
            _ => None,
        };
        Ok(DeltaEntry { id: FieldId(u16_at(entry, 0)), raw, expires_at_ms })
    }
}

/// Walks the places of a delta's expiries and contents, entry by entry.
struct EntryPlaces {
    expiry: usize,
    content: usize,
}

impl EntryPlaces {
    #[inline]
    fn new(entries: &[u8]) -> EntryPlaces {
        let expiry = DELTA_HEADER_BYTES + entries.len();
        let expiring = entries.chunks_exact(DELTA_ENTRY_BYTES).filter(|entry| entry[2] & DELTA_EXPIRES != 0);
        EntryPlaces { expiry, content: expiry + expiring.count() * DELTA_EXPIRY_BYTES }
    }

    /// Where the expiry and the content of `entry`, the next one, are. 65,535 lengths of 32 bits do not overflow.
    #[inline]
    fn next(&mut self, entry: &[u8]) -> (usize, usize) {
        let place = (self.expiry, self.content);
        if entry[2] & DELTA_EXPIRES != 0 {
            self.expiry += DELTA_EXPIRY_BYTES;
        }
        self.content += u32_at(entry, 4) as usize;
        place
    }
}
