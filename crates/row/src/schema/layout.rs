//! Where each field of one schema version lies in a row body.
//!
//! Owns the offsets, computed once per version and never per row. It promises that slots are numbered as
//! `format` orders the fields. It must not know about names, defaults' values or rows.

use super::types::Type;
use super::{Field, FieldId};

/// One field in its slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldSlot {
    pub(crate) id: FieldId,
    /// The field's position in the schema of this version.
    pub(crate) position: u16,
    /// From the start of the body; of a fixed field only.
    pub(crate) offset: u32,
    /// Of a fixed field; else 0.
    pub(crate) width: u16,
    pub(crate) kind: Type,
}

/// What planning a write needs to know of a field: eight bytes, so that the plan of a row touches a line or two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    pub(super) kind: Type,
    pub(super) slot: u16,
    pub(super) nullable: bool,
}

/// The layout of one schema version.
#[derive(Debug)]
pub struct Layout {
    version: u16,
    /// Positions below this are the ids of their fields.
    dense: u16,
    /// Slots below this are of fixed fields.
    fixed_slots: u16,
    /// Slots below this are read at their constant offsets: all of fixed fields, or none where readers walk.
    direct_slots: u16,
    /// Whether slots are numbered as positions are.
    in_order: bool,
    bitmap_bytes: u32,
    fixed_end: u32,
    slots: Box<[FieldSlot]>,
    /// By position, hence in ascending order of id.
    planned: Box<[Planned]>,
    /// Slots of fields that no row is without, ascending.
    required: Box<[u16]>,
}

impl Layout {
    /// The layout of `fields`, which are in ascending order of id and no more than 65,535. With `walked`, readers go by the
    /// fields before the one they want, as in a row that has no schema: for experiments.
    pub(crate) fn new<'f>(version: u16, fields: impl Iterator<Item = &'f Field>, walked: bool) -> Layout {
        let fields: Vec<&Field> = fields.collect();
        let mut slots: Vec<FieldSlot> = fields
            .iter()
            .enumerate()
            .map(|(position, field)| FieldSlot {
                id: field.id,
                position: position as u16,
                offset: 0,
                width: field.kind.width().unwrap_or(0) as u16,
                kind: field.kind,
            })
            .collect();
        // Stable: by id, which is by position, within each class.
        slots.sort_by_key(|slot| slot.kind.rank());
        let fixed_slots = slots.iter().filter(|slot| slot.kind.width().is_some()).count();
        let bitmap_bytes = 8 * slots.len().div_ceil(64);
        let mut offset = bitmap_bytes;
        for slot in &mut slots[..fixed_slots] {
            slot.offset = offset as u32;
            offset += usize::from(slot.width);
        }
        let plan = |field: &&Field| Planned { kind: field.kind, slot: 0, nullable: field.nullable };
        let mut planned: Box<[Planned]> = fields.iter().map(plan).collect();
        for (number, slot) in slots.iter().enumerate() {
            planned[slot.position as usize].slot = number as u16;
        }
        let required = (0..slots.len()).filter(|&s| !fields[slots[s].position as usize].nullable);
        Layout {
            version,
            fixed_slots: fixed_slots as u16,
            direct_slots: if walked { 0 } else { fixed_slots as u16 },
            dense: super::dense(fields.iter().map(|field| field.id)) as u16,
            in_order: planned.is_sorted_by_key(|planned| planned.slot),
            bitmap_bytes: bitmap_bytes as u32,
            fixed_end: offset as u32,
            required: required.map(|slot| slot as u16).collect(),
            planned,
            slots: slots.into(),
        }
    }

    /// The schema version this is the layout of.
    #[inline]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The number of fields.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(super) fn slot(&self, slot: usize) -> &FieldSlot {
        &self.slots[slot]
    }

    #[inline]
    pub(super) fn planned(&self, position: usize) -> Planned {
        self.planned[position]
    }

    #[inline]
    pub(super) fn slot_of(&self, position: usize) -> usize {
        self.planned[position].slot as usize
    }

    #[inline]
    pub(super) fn in_order(&self) -> bool {
        self.in_order
    }

    #[inline]
    pub(super) fn required(&self) -> &[u16] {
        &self.required
    }

    #[inline]
    pub(super) fn bitmap_bytes(&self) -> usize {
        self.bitmap_bytes as usize
    }

    #[inline]
    pub(super) fn fixed_end(&self) -> usize {
        self.fixed_end as usize
    }

    #[inline]
    pub(super) fn fixed_slots(&self) -> usize {
        self.fixed_slots as usize
    }

    /// Fixed fields in slots below this are read at [`Layout::fixed_offset`].
    #[inline]
    pub(super) fn direct_slots(&self) -> usize {
        self.direct_slots as usize
    }

    #[inline]
    pub(super) fn fixed_offset(&self, slot: usize) -> usize {
        self.slots[slot].offset as usize
    }

    /// The slot of the field with this id, if this version has it. At once for fields before any dropped one, else by bisection.
    #[inline]
    pub(super) fn slot_of_id(&self, id: FieldId) -> Option<usize> {
        if id.0 < self.dense {
            return Some(self.slot_of(id.0 as usize));
        }
        let id_of = |planned: &Planned| self.slots[planned.slot as usize].id;
        self.planned.binary_search_by_key(&id, id_of).ok().map(|position| self.slot_of(position))
    }

    /// The slot of the field at `position`, if it is found by its offset and no row is without it.
    #[inline]
    pub(super) fn in_place(&self, position: usize) -> Option<&FieldSlot> {
        let planned = self.planned.get(position)?;
        (usize::from(planned.slot) < self.direct_slots() && !planned.nullable)
            .then(|| &self.slots[usize::from(planned.slot)])
    }

    /// The slots by position, if all are found by their offsets and numbered as the positions are: most tables of devices, counters
    /// and features.
    #[inline]
    pub(super) fn all_fixed_in_order(&self) -> Option<&[FieldSlot]> {
        (self.in_order && self.direct_slots() == self.slots.len()).then_some(&self.slots)
    }

    /// The bytes of every row body of this version without field expiries, if that is the same for all.
    #[inline]
    pub fn body_bytes(&self) -> Option<usize> {
        (self.fixed_slots() == self.slots.len()).then_some(self.fixed_end())
    }

    /// Whether there are fixed fields.
    #[inline]
    pub fn has_fixed(&self) -> bool {
        self.fixed_slots > 0
    }

    /// Bytes of the presence bitmap, with which every row body begins.
    #[inline]
    pub fn presence_bytes(&self) -> usize {
        self.bitmap_bytes()
    }

    /// Where in every row body of this version the field with this id lies, and which presence bit is its (byte and mask), if it
    /// is a fixed field: for merging in place.
    #[inline]
    pub fn fixed_place(&self, id: FieldId) -> Option<(std::ops::Range<usize>, usize, u8)> {
        let slot = self.slot_of_id(id)?;
        let width = self.slots[slot].kind.width()?;
        let at = self.fixed_offset(slot);
        Some((at..at + width, slot / 8, 1 << (slot % 8)))
    }

    /// Which bytes of a row body of this version a reader of the field with this id touches beside the presence bitmap, if it
    /// is a fixed field.
    #[inline]
    pub fn fixed_reach(&self, id: FieldId) -> Option<std::ops::Range<usize>> {
        let place = self.fixed_place(id)?.0;
        Some(if self.direct_slots > 0 { place } else { self.bitmap_bytes()..place.end })
    }
}
