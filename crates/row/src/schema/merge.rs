//! A row and its deltas as one: for reading whole rows and for rewriting them.
//!
//! Owns the rule of merging: the newest delta that names a field decides its value and expiry, then the row itself, then the
//! field's default; what has expired is absent. It promises not to touch the bytes of fields that something newer replaces.
//! It must not know how versions of a row are found.

use smallvec::SmallVec;

use super::body::{BodyBytes, DeltaBody, FieldRead, RowBody, expiry_in, is_past};
use super::format::{ROW_EXPIRY_BYTES, ROW_EXPIRY_COUNT_BYTES, RowWriter, var_bytes};
use super::layout::Layout;
use super::plan::{INLINE_FIELDS, row_too_long};
use super::table::TableSchema;
use crate::Result;
use crate::le_bytes::u64_at;
use crate::limits::{FIELDS_MAX, ROW_BYTES_MAX};

/// A present field of a merged row.
#[derive(Debug, Clone, Copy)]
struct Merged<'a> {
    slot: u16,
    raw: &'a [u8],
    expires_at_ms: Option<u64>,
}

/// A whole row under its table's current schema version.
#[derive(Debug)]
pub struct MergePlan<'a> {
    schema: &'a TableSchema,
    /// Ascending by slot.
    fields: SmallVec<[Merged<'a>; INLINE_FIELDS]>,
    variable: usize,
    expiring: usize,
    value_bytes: usize,
    body_bytes: usize,
}

/// The slots that are decided.
pub(super) struct Decided([u64; FIELDS_MAX / 64]);

impl Decided {
    #[inline]
    pub(super) fn none() -> Decided {
        Decided([0; FIELDS_MAX / 64])
    }

    /// Whether `slot` was decided before; it is from now on.
    #[inline]
    pub(super) fn test_and_set(&mut self, slot: usize) -> bool {
        let (word, bit) = (&mut self.0[slot / 64], 1 << (slot % 64));
        let was = *word & bit != 0;
        *word |= bit;
        was
    }

    #[inline]
    fn is_set(&self, slot: usize) -> bool {
        self.0[slot / 64] & (1 << (slot % 64)) != 0
    }
}

impl<'a> MergePlan<'a> {
    /// The row made of `base` and, over it, `deltas`, newest first. Fields that have expired by `now_ms` are absent.
    pub fn new<B: BodyBytes<'a>>(
        schema: &'a TableSchema,
        base: Option<&RowBody<'a, B>>,
        deltas: &[DeltaBody<B>],
        now_ms: u64,
    ) -> Result<MergePlan<'a>> {
        let layout = schema.current_layout();
        let body_bytes = layout.fixed_end();
        let mut plan = MergePlan {
            schema,
            fields: SmallVec::new(),
            variable: 0,
            expiring: 0,
            value_bytes: 0,
            body_bytes,
        };
        let mut decided = Decided::none();
        for delta in deltas {
            for entry in delta.entries()? {
                let entry = entry?;
                let Some(slot) = layout.slot_of_id(entry.id) else { continue };
                if decided.test_and_set(slot) || is_past(entry.expires_at_ms, now_ms) {
                    continue;
                }
                let Some(raw) = entry.raw else { continue };
                layout.slot(slot).kind.check_raw(raw)?;
                plan.fields.push(Merged { slot: slot as u16, raw, expires_at_ms: entry.expires_at_ms });
            }
        }
        if let Some(base) = base {
            plan.add_base(base, &mut decided, now_ms)?;
        }
        for &slot in layout.required() {
            if !decided.is_set(slot as usize) {
                let position = layout.slot(slot as usize).position as usize;
                let raw = schema.default_raw(position);
                plan.fields.push(Merged { slot, raw, expires_at_ms: None });
            }
        }
        if !plan.fields.is_sorted_by_key(|field| field.slot) {
            plan.fields.sort_unstable_by_key(|field| field.slot);
        }
        plan.measure(layout);
        Ok(plan)
    }

    fn add_base<B: BodyBytes<'a>>(
        &mut self,
        base: &RowBody<'a, B>,
        decided: &mut Decided,
        now_ms: u64,
    ) -> Result<()> {
        let (layout, from) = (self.schema.current_layout(), base.layout());
        let same = from.version() == layout.version();
        let bitmap = base.bitmap()?;
        let expiries = base.expiries()?;
        let mut rank = 0;
        for word in 0..bitmap.len() / 8 {
            let mut bits = u64_at(bitmap, word * 8);
            while bits != 0 {
                let old = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if old >= from.len() {
                    return Err(crate::Error::corrupted(format!("field {old} in a row of {}", from.len())));
                }
                let fixed = old < from.fixed_slots();
                let head = rank;
                rank += usize::from(!fixed);
                let id = from.slot(old).id;
                let Some(slot) = (if same { Some(old) } else { layout.slot_of_id(id) }) else { continue };
                if decided.test_and_set(slot) {
                    continue;
                }
                let expires_at_ms = if expiries.is_empty() { None } else { expiry_in(expiries, id) };
                if !is_past(expires_at_ms, now_ms) {
                    let raw = if fixed { base.fixed(old)? } else { base.variable(head)? };
                    self.fields.push(Merged { slot: slot as u16, raw, expires_at_ms });
                }
            }
        }
        Ok(())
    }

    fn measure(&mut self, layout: &Layout) {
        for field in &self.fields {
            self.value_bytes += field.raw.len();
            self.expiring += usize::from(field.expires_at_ms.is_some());
            if field.slot as usize >= layout.fixed_slots() {
                self.variable += 1;
                self.body_bytes += var_bytes(field.raw.len());
            }
        }
        if self.expiring > 0 {
            self.body_bytes += self.expiring * ROW_EXPIRY_BYTES + ROW_EXPIRY_COUNT_BYTES;
        }
    }

    /// `Invalid` if the row is longer than a row may be: for whoever makes it so. What is in the log is read and moved
    /// whatever its length: defaults of fields that came later may have made it longer than any write could.
    pub fn check_length(&self) -> Result<()> {
        if self.value_bytes > ROW_BYTES_MAX { Err(row_too_long(self.value_bytes)) } else { Ok(()) }
    }

    /// The length of the body.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Whether the record's header must say that there are field expiries.
    #[inline]
    pub fn has_field_expiry(&self) -> bool {
        self.expiring > 0
    }

    /// Writes the body over `body`, which is `body_bytes` long and may hold anything.
    pub fn encode(&self, body: &mut [u8]) {
        let layout = self.schema.current_layout();
        let mut writer = RowWriter::new(layout, body, self.variable);
        for field in &self.fields {
            writer.field(field.slot as usize, field.raw);
        }
        let mut expiries: SmallVec<[(u16, u64); INLINE_FIELDS]> = SmallVec::new();
        if self.expiring > 0 {
            let of = |field: &Merged<'_>| Some((layout.slot(field.slot as usize).id.0, field.expires_at_ms?));
            expiries.extend(self.fields.iter().filter_map(of));
            expiries.sort_unstable();
        }
        writer.finish(expiries.into_iter());
    }

    /// Calls `visit` with the position in the current schema and the contents of each present field, in the schema's order.
    pub fn for_each(&self, mut visit: impl FnMut(usize, FieldRead<'a>)) -> Result<()> {
        let layout = self.schema.current_layout();
        let visit_field = |field: &Merged<'a>| {
            let slot = layout.slot(field.slot as usize);
            let value = slot.kind.decode(field.raw)?;
            visit(slot.position as usize, FieldRead { value, expires_at_ms: field.expires_at_ms });
            Ok(())
        };
        if layout.in_order() {
            return self.fields.iter().try_for_each(visit_field);
        }
        let mut fields: SmallVec<[&Merged<'a>; INLINE_FIELDS]> = self.fields.iter().collect();
        fields.sort_unstable_by_key(|field| layout.slot(field.slot as usize).position);
        fields.into_iter().try_for_each(visit_field)
    }
}
