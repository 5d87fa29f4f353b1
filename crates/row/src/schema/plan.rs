//! Writing: from named values to the body of a row or of a delta.
//!
//! Owns the first of the two steps: a plan checks everything that can be wrong and knows the body's length, so that the
//! log can reserve it; the second step, `encode`, cannot fail and copies each value once. No allocation up to 32 fields.
//! It must not know where bodies go.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::format::{
    DELTA_ENTRY_BYTES, DELTA_EXPIRY_BYTES, DELTA_HEADER_BYTES, DeltaWriter, RowWriter, var_bytes,
};
use super::layout::FieldSlot;
use super::table::TableSchema;
use super::types::{Misfit, Type};
use super::{Field, FieldName, Value, misfit_error, unknown_field};
use crate::Error;
use crate::limits::ROW_BYTES_MAX;

/// Fields a plan holds without allocating.
pub(super) const INLINE_FIELDS: usize = 32;

/// Why there is no plan.
#[derive(Debug)]
pub enum PlanError {
    /// The table is open and has not learned these names yet: learn them and plan again.
    Unknown(Vec<String>),
    /// The call is wrong.
    Invalid(Error),
}

type PlanResult<T> = std::result::Result<T, PlanError>;

impl From<Error> for PlanError {
    fn from(error: Error) -> PlanError {
        PlanError::Invalid(error)
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Error {
        match error {
            PlanError::Invalid(error) => error,
            PlanError::Unknown(names) => unknown_field(names.first().map_or("", String::as_str)),
        }
    }
}

/// Values in one write: more than any table has fields, for a field may be given several times.
const VALUES_MAX: usize = SlotAndIndex::DEFAULT as usize;

/// Which given value goes where, in ascending order of slot, at most one for each slot. Plans are moved about, so this is
/// small; and nothing is stored where a whole row is given in order.
#[derive(Debug)]
enum ValueOrder {
    /// The value at index `i` goes to slot `i`, for so many values.
    InOrder(usize),
    Each(SmallVec<[SlotAndIndex; INLINE_FIELDS]>),
}

/// Slot and index of the value, in the upper and lower half: sorts by slot, then by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SlotAndIndex(u32);

impl SlotAndIndex {
    /// Instead of an index: the field's default.
    const DEFAULT: u16 = u16::MAX;

    #[inline]
    fn new(slot: usize, index: usize) -> SlotAndIndex {
        SlotAndIndex((slot as u32) << 16 | index as u32)
    }

    #[inline]
    fn slot(self) -> usize {
        (self.0 >> 16) as usize
    }

    #[inline]
    fn index(self) -> usize {
        self.0 as u16 as usize
    }

    #[inline]
    fn is_default(self) -> bool {
        self.0 as u16 == SlotAndIndex::DEFAULT
    }
}

impl ValueOrder {
    #[inline]
    fn len(&self) -> usize {
        match self {
            ValueOrder::InOrder(count) => *count,
            ValueOrder::Each(places) => places.len(),
        }
    }

    /// The places one by one, to be changed.
    #[inline]
    fn each(&mut self) -> &mut SmallVec<[SlotAndIndex; INLINE_FIELDS]> {
        if let ValueOrder::InOrder(count) = *self {
            *self = ValueOrder::Each((0..count).map(|index| SlotAndIndex::new(index, index)).collect());
        }
        match self {
            ValueOrder::Each(places) => places,
            ValueOrder::InOrder(_) => unreachable!("made one by one above"),
        }
    }

    #[inline(always)]
    fn for_each(&self, mut visit: impl FnMut(SlotAndIndex)) {
        match self {
            ValueOrder::InOrder(count) => {
                (0..*count).for_each(|index| visit(SlotAndIndex::new(index, index)))
            }
            ValueOrder::Each(places) => places.iter().for_each(|at| visit(*at)),
        }
    }
}

/// Sums over the values that are not null.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    present: usize,
    value_bytes: usize,
    variable: usize,
    variable_bytes: usize,
}

impl Totals {
    #[inline]
    fn add(&mut self, kind: Type, bytes: usize) {
        self.present += 1;
        self.value_bytes += bytes;
        if kind.width().is_none() {
            self.variable += 1;
            self.variable_bytes += var_bytes(bytes);
        }
    }
}

/// Resolves and checks the fields of a whole row.
#[inline]
fn gather_row<F: FieldName>(
    schema: &TableSchema,
    fields: &[(F, Value<'_>)],
    places: &mut ValueOrder,
) -> PlanResult<Totals> {
    let (names, layout) = (schema.fields(), schema.current_layout());
    let mut totals = Totals::default();
    // In order and without nulls, as rows most often come, there is nothing to remember.
    for (index, (name, value)) in fields.iter().enumerate() {
        let Some(position) = name.find_near(names, index) else { break };
        let planned = layout.planned(position);
        let Ok(bytes) = planned.kind.check(value) else { break };
        if planned.slot as usize != index {
            break;
        }
        totals.add(planned.kind, bytes);
    }
    if totals.present == fields.len() {
        *places = ValueOrder::InOrder(fields.len());
        return checked(totals);
    }
    gather_each(schema, fields, true, places)
}

/// Resolves and checks `fields`; of several values for one field, the last counts. `by_slot` or else by position.
fn gather_each<F: FieldName>(
    schema: &TableSchema,
    fields: &[(F, Value<'_>)],
    by_slot: bool,
    places: &mut ValueOrder,
) -> PlanResult<Totals> {
    if fields.len() > VALUES_MAX {
        let given = fields.len();
        return Err(
            Error::invalid(format!("{given} values in one write; it takes at most {VALUES_MAX}")).into()
        );
    }
    let (names, layout) = (schema.fields(), schema.current_layout());
    let (places, mut totals) = (places.each(), Totals::default());
    // `bound` is the least slot that keeps the order: one more than the last.
    let (mut hint, mut bound, mut sorted) = (0, 0, true);
    for (index, (name, value)) in fields.iter().enumerate() {
        let Some(position) = name.find_near(names, hint) else {
            return Err(unknown(schema, fields, *name));
        };
        hint = position + 1;
        let planned = layout.planned(position);
        match planned.kind.check(value) {
            Ok(bytes) => totals.add(planned.kind, bytes),
            Err(_) if value.is_null() && planned.nullable => {}
            Err(misfit) => return Err(refused(schema, position, value, misfit)),
        }
        let slot = if by_slot { planned.slot as usize } else { position };
        sorted &= slot >= bound;
        bound = slot + 1;
        places.push(SlotAndIndex::new(slot, index));
    }
    if !sorted && sort(places) {
        totals = Totals::default();
        for at in places {
            let kind = if by_slot { layout.slot(at.slot()).kind } else { layout.planned(at.slot()).kind };
            if let Ok(bytes) = kind.check(&fields[at.index()].1) {
                totals.add(kind, bytes);
            }
        }
    }
    checked(totals)
}

/// Sorts the places and drops those that do not count; whether there were any.
fn sort(places: &mut SmallVec<[SlotAndIndex; INLINE_FIELDS]>) -> bool {
    places.sort_unstable();
    let all = places.len();
    // `dedup_by` drops its first argument, the later element: hence last wins once the index is carried over.
    places.dedup_by(|later, kept| {
        let same = later.slot() == kept.slot();
        if same {
            *kept = *later;
        }
        same
    });
    places.len() < all
}

#[inline]
fn checked(totals: Totals) -> PlanResult<Totals> {
    if totals.value_bytes > ROW_BYTES_MAX { Err(row_too_long(totals.value_bytes).into()) } else { Ok(totals) }
}

#[cold]
fn unknown<F: FieldName>(schema: &TableSchema, fields: &[(F, Value<'_>)], name: F) -> PlanError {
    if !schema.fields().is_open() || name.name().is_none() {
        return unknown_field(name).into();
    }
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for (name, _) in fields.iter().filter(|(name, _)| name.find(schema.fields()).is_none()) {
        match name.name() {
            Some(text) if seen.insert(text) => names.push(text.to_owned()),
            Some(_) => {}
            None => return unknown_field(*name).into(),
        }
    }
    PlanError::Unknown(names)
}

#[cold]
fn refused(schema: &TableSchema, position: usize, value: &Value<'_>, misfit: Misfit) -> PlanError {
    match &schema.fields().fields()[position] {
        field if value.is_null() => null_error(field),
        field => misfit_error(field, value, misfit).into(),
    }
}

#[cold]
fn null_error(field: &Field) -> PlanError {
    Error::invalid(format!("field {:?} is not nullable", field.name())).into()
}

#[cold]
pub(super) fn row_too_long(bytes: usize) -> Error {
    Error::invalid(format!("values of {bytes} bytes in one row; a row has at most {ROW_BYTES_MAX}"))
}

/// A row about to be written.
#[derive(Debug)]
pub struct RowPlan<'p, 'v, F> {
    schema: &'p TableSchema,
    fields: &'p [(F, Value<'v>)],
    /// By slot; present fields only.
    places: ValueOrder,
    variable: usize,
    body_bytes: usize,
}

impl<'p, 'v, F: FieldName> RowPlan<'p, 'v, F> {
    /// A row of `fields`, the rest taking their defaults, under the schema's current version.
    #[inline]
    pub fn new(schema: &'p TableSchema, fields: &'p [(F, Value<'v>)]) -> PlanResult<RowPlan<'p, 'v, F>> {
        let layout = schema.current_layout();
        let mut plan = RowPlan { schema, fields, places: ValueOrder::InOrder(0), variable: 0, body_bytes: 0 };
        let mut totals = gather_row(schema, fields, &mut plan.places)?;
        if totals.present < layout.len() {
            if totals.present < plan.places.len() {
                plan.places.each().retain(|at| !fields[at.index()].1.is_null());
            }
            if !layout.required().is_empty() {
                add_defaults(schema, plan.places.each(), &mut totals);
                totals = checked(totals)?;
            }
        }
        plan.variable = totals.variable;
        plan.body_bytes = layout.fixed_end() + totals.variable_bytes;
        Ok(plan)
    }

    /// The length of the body.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Whether every field of the schema was given a value that is not null.
    #[inline]
    pub fn gives_all(&self) -> bool {
        matches!(self.places, ValueOrder::InOrder(count) if count == self.schema.current_layout().len())
    }

    /// Writes the body over `body`, which is `body_bytes` long and may hold anything. It has no field expiries.
    #[inline]
    pub fn encode(&self, body: &mut [u8]) {
        let layout = self.schema.current_layout();
        let mut writer = RowWriter::new(layout, body, self.variable);
        self.places.for_each(|at| {
            let slot = layout.slot(at.slot());
            if at.is_default() {
                writer.field(at.slot(), self.schema.default_raw(slot.position as usize));
            } else {
                writer.field(at.slot(), slot.kind.raw(&self.fields[at.index()].1, &mut [0; 8]));
            }
        });
        writer.finish(std::iter::empty());
    }
}

/// Gives the required fields that were not given their defaults.
fn add_defaults(
    schema: &TableSchema,
    places: &mut SmallVec<[SlotAndIndex; INLINE_FIELDS]>,
    totals: &mut Totals,
) {
    let (layout, given) = (schema.current_layout(), places.len());
    let mut next = 0;
    for &slot in layout.required() {
        while next < given && places[next].slot() < slot as usize {
            next += 1;
        }
        if next == given || places[next].slot() != slot as usize {
            let &FieldSlot { position, kind, .. } = layout.slot(slot as usize);
            totals.add(kind, schema.default_raw(position as usize).len());
            places.push(SlotAndIndex::new(slot as usize, SlotAndIndex::DEFAULT as usize));
        }
    }
    if places.len() > given {
        places.sort_unstable();
    }
}

/// When the fields of a delta expire, in ms since 1970, if they do.
#[derive(Debug, Clone, Copy)]
pub enum FieldExpiries<'p> {
    /// All of them at the same time.
    All(Option<u64>),
    /// Each at its own: as many as there are fields.
    Each(&'p [Option<u64>]),
}

impl FieldExpiries<'_> {
    #[inline]
    fn of(self, index: usize) -> Option<u64> {
        match self {
            FieldExpiries::All(at_ms) => at_ms,
            FieldExpiries::Each(each) => each.get(index).copied().flatten(),
        }
    }

    #[inline]
    fn is_none(self) -> bool {
        match self {
            FieldExpiries::All(at_ms) => at_ms.is_none(),
            FieldExpiries::Each(each) => each.iter().all(Option::is_none),
        }
    }
}

/// A delta about to be written.
#[derive(Debug)]
pub struct DeltaPlan<'p, 'v, F> {
    schema: &'p TableSchema,
    fields: &'p [(F, Value<'v>)],
    /// With positions for slots: in the order of ids.
    places: ValueOrder,
    expiries: FieldExpiries<'p>,
    expiring: usize,
    body_bytes: usize,
}

impl<'p, 'v, F: FieldName> DeltaPlan<'p, 'v, F> {
    /// A delta that sets `fields`, `Null` removing a field. What is set expires as `expiries` says; only nullable fields can. At least
    /// one field.
    #[inline]
    pub fn new(
        schema: &'p TableSchema,
        fields: &'p [(F, Value<'v>)],
        expiries: FieldExpiries<'p>,
    ) -> PlanResult<DeltaPlan<'p, 'v, F>> {
        if fields.is_empty() {
            return Err(Error::invalid("an update of no fields; it needs at least one").into());
        }
        let places = ValueOrder::InOrder(0);
        let mut plan = DeltaPlan { schema, fields, places, expiries, expiring: 0, body_bytes: 0 };
        let totals = gather_each(schema, fields, false, &mut plan.places)?;
        if !expiries.is_none() {
            plan.expiring = plan.count_expiring()?;
        }
        plan.body_bytes = DELTA_HEADER_BYTES
            + plan.places.len() * DELTA_ENTRY_BYTES
            + plan.expiring * DELTA_EXPIRY_BYTES
            + totals.value_bytes;
        Ok(plan)
    }

    /// How many of the fields that are set expire. None that is given an expiry may be one that every row has.
    fn count_expiring(&self) -> PlanResult<usize> {
        let names = self.schema.fields();
        for (index, (name, _)) in self.fields.iter().enumerate() {
            if self.expiries.of(index).is_some()
                && let Some(at) = name.find(names)
                && !self.schema.current_layout().planned(at).nullable
            {
                return Err(null_error(&names.fields()[at]));
            }
        }
        let mut count = 0;
        self.places.for_each(|at| {
            let is_set = !self.fields[at.index()].1.is_null();
            count += usize::from(is_set && self.expiries.of(at.index()).is_some());
        });
        Ok(count)
    }

    /// The length of the body.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Writes the body over `body`, which is `body_bytes` long and may hold anything.
    #[inline]
    pub fn encode(&self, body: &mut [u8]) {
        let layout = self.schema.current_layout();
        let mut writer = DeltaWriter::new(body, self.places.len(), self.expiring);
        self.places.for_each(|at| {
            let slot = layout.slot(layout.slot_of(at.slot()));
            match &self.fields[at.index()].1 {
                Value::Null => writer.entry(slot.id.0, None, None),
                value => {
                    let expires_at_ms = self.expiries.of(at.index());
                    writer.entry(slot.id.0, Some(slot.kind.raw(value, &mut [0; 8])), expires_at_ms);
                }
            }
        });
        writer.finish();
    }
}
