//! Writing: from named values to the body of a row or of a delta.
//!
//! Owns the first of the two steps: a plan checks everything that can be wrong and knows the body's length, so that the
//! log can reserve it; the second step, `encode`, cannot fail and copies each value once. No allocation up to 32 fields.
//! It must not know where bodies go.

use smallvec::SmallVec;

use super::format::{
    DELTA_ENTRY_BYTES, DELTA_EXPIRY_BYTES, DELTA_HEADER_BYTES, DeltaWriter, RowWriter, var_bytes,
};
use super::table::TableSchema;
use super::{Field, FieldName, Value, misfit_error, unknown_field};
use crate::Error;
use crate::limits::ROW_BYTES_MAX;

/// Fields a plan holds without allocating.
pub(super) const INLINE_FIELDS: usize = 32;

/// Why there is no plan.
#[derive(Debug)]
pub(crate) enum PlanError {
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

/// Which given value goes where, in ascending order of place, at most one for each place.
type Places = SmallVec<[Place; INLINE_FIELDS]>;

/// `place << 32 | index of the value`: sorts by place, then by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place(u64);

impl Place {
    /// Instead of an index: the field's default.
    const DEFAULT: u32 = u32::MAX;

    fn new(place: usize, index: u32) -> Place {
        Place((place as u64) << 32 | u64::from(index))
    }

    fn place(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn index(self) -> u32 {
        self.0 as u32
    }
}

/// Resolves `fields` and gives each a place; of several values for one field, the last counts.
#[inline]
fn place<F: FieldName>(
    schema: &TableSchema,
    fields: &[(F, Value<'_>)],
    place_of: impl Fn(usize) -> usize,
) -> PlanResult<Places> {
    if fields.len() >= Place::DEFAULT as usize {
        return Err(Error::invalid(format!("{} values in one write", fields.len())).into());
    }
    let mut places = Places::with_capacity(fields.len());
    let (mut hint, mut sorted) = (0, true);
    for (index, (name, _)) in fields.iter().enumerate() {
        let Some(position) = name.find_near(schema.fields(), hint) else {
            return Err(unknown(schema, fields, *name));
        };
        hint = position + 1;
        let next = place_of(position);
        sorted &= places.last().is_none_or(|last: &Place| last.place() < next);
        places.push(Place::new(next, index as u32));
    }
    if !sorted {
        places.sort_unstable();
        // `dedup_by` drops its first argument, the later element: hence last wins once the index is carried over.
        places.dedup_by(|later, kept| {
            let same = later.place() == kept.place();
            if same {
                *kept = *later;
            }
            same
        });
    }
    Ok(places)
}

#[cold]
fn unknown<F: FieldName>(schema: &TableSchema, fields: &[(F, Value<'_>)], name: F) -> PlanError {
    if !schema.fields().is_open() || name.name().is_none() {
        return unknown_field(name).into();
    }
    let mut names: Vec<String> = Vec::new();
    for (name, _) in fields.iter().filter(|(name, _)| name.find(schema.fields()).is_none()) {
        match name.name() {
            Some(text) if !names.iter().any(|known| known == text) => names.push(text.to_owned()),
            Some(_) => {}
            None => return unknown_field(*name).into(),
        }
    }
    PlanError::Unknown(names)
}

#[cold]
fn null_error(field: &Field) -> PlanError {
    Error::invalid(format!("field {:?} is not nullable", field.name())).into()
}

pub(super) fn row_too_long(bytes: usize) -> Error {
    Error::invalid(format!("values of {bytes} bytes in one row; a row has at most {ROW_BYTES_MAX}"))
}

/// The length of `value` as a value of `field`.
#[inline]
fn check(field: &Field, value: &Value<'_>) -> PlanResult<usize> {
    field.kind().check(value).map_err(|misfit| misfit_error(field, value, misfit).into())
}

/// A row about to be written.
#[derive(Debug)]
pub(crate) struct RowPlan<'p, 'v, F> {
    schema: &'p TableSchema,
    fields: &'p [(F, Value<'v>)],
    /// By slot; present fields only.
    places: Places,
    variable: usize,
    body_bytes: usize,
}

impl<'p, 'v, F: FieldName> RowPlan<'p, 'v, F> {
    /// A row of `fields`, the rest taking their defaults, under the schema's current version.
    #[inline]
    pub(crate) fn new(
        schema: &'p TableSchema,
        fields: &'p [(F, Value<'v>)],
    ) -> PlanResult<RowPlan<'p, 'v, F>> {
        let layout = schema.current_layout();
        let places = place(schema, fields, |position| layout.slot_of(position))?;
        let mut plan = RowPlan { schema, fields, places, variable: 0, body_bytes: layout.fixed_end() };
        if plan.places.len() < layout.len() && !layout.required().is_empty() {
            plan.add_defaults();
        }
        let (mut value_bytes, mut nulls) = (0usize, false);
        for at in &plan.places {
            let slot = layout.slot(at.place());
            let field = &schema.fields().fields()[slot.position as usize];
            let value = plan.value(*at, field);
            if value.is_null() {
                if !field.is_nullable() {
                    return Err(null_error(field));
                }
                nulls = true;
                continue;
            }
            let bytes = check(field, &value)?;
            value_bytes = value_bytes.saturating_add(bytes);
            if at.place() >= layout.fixed_slots() {
                plan.variable += 1;
                plan.body_bytes = plan.body_bytes.saturating_add(var_bytes(bytes));
            }
        }
        if value_bytes > ROW_BYTES_MAX {
            return Err(row_too_long(value_bytes).into());
        }
        if nulls {
            let fields = plan.fields;
            plan.places.retain(|at| at.index() == Place::DEFAULT || !fields[at.index() as usize].1.is_null());
        }
        Ok(plan)
    }

    /// Gives the required fields that were not given their defaults.
    fn add_defaults(&mut self) {
        let given = self.places.len();
        let mut next = 0;
        for &slot in self.schema.current_layout().required() {
            while next < given && self.places[next].place() < slot as usize {
                next += 1;
            }
            if next == given || self.places[next].place() != slot as usize {
                self.places.push(Place::new(slot as usize, Place::DEFAULT));
            }
        }
        if self.places.len() > given {
            self.places.sort_unstable();
        }
    }

    #[inline]
    fn value<'f>(&self, at: Place, field: &'f Field) -> Value<'f>
    where
        'v: 'f,
    {
        match at.index() {
            Place::DEFAULT => field.default(),
            index => self.fields[index as usize].1,
        }
    }

    /// The length of the body.
    #[inline]
    pub(crate) fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Writes the body over `body`, which is `body_bytes` long and may hold anything. It has no field expiries.
    #[inline]
    pub(crate) fn encode(&self, body: &mut [u8]) {
        let layout = self.schema.current_layout();
        let mut writer = RowWriter::new(layout, body, self.variable);
        for at in &self.places {
            let slot = layout.slot(at.place());
            let value = self.value(*at, &self.schema.fields().fields()[slot.position as usize]);
            writer.field(at.place(), slot.kind.raw(&value, &mut [0; 8]));
        }
        writer.finish(std::iter::empty());
    }
}

/// A delta about to be written.
#[derive(Debug)]
pub(crate) struct DeltaPlan<'p, 'v, F> {
    schema: &'p TableSchema,
    fields: &'p [(F, Value<'v>)],
    /// By position, hence by id.
    places: Places,
    expires_at_ms: Option<u64>,
    expiring: usize,
    body_bytes: usize,
}

impl<'p, 'v, F: FieldName> DeltaPlan<'p, 'v, F> {
    /// A delta that sets `fields`, `Null` removing a field. What is set expires at `expires_at_ms` (ms since 1970), if given; only
    /// nullable fields can. At least one field.
    #[inline]
    pub(crate) fn new(
        schema: &'p TableSchema,
        fields: &'p [(F, Value<'v>)],
        expires_at_ms: Option<u64>,
    ) -> PlanResult<DeltaPlan<'p, 'v, F>> {
        if fields.is_empty() {
            return Err(Error::invalid("an update of no fields; it needs at least one").into());
        }
        let places = place(schema, fields, |position| position)?;
        let (mut value_bytes, mut expiring) = (0usize, 0);
        for at in &places {
            let field = &schema.fields().fields()[at.place()];
            let value = &fields[at.index() as usize].1;
            if !field.is_nullable() && (value.is_null() || expires_at_ms.is_some()) {
                return Err(null_error(field));
            }
            if !value.is_null() {
                value_bytes = value_bytes.saturating_add(check(field, value)?);
                expiring += usize::from(expires_at_ms.is_some());
            }
        }
        if value_bytes > ROW_BYTES_MAX {
            return Err(row_too_long(value_bytes).into());
        }
        let body_bytes = DELTA_HEADER_BYTES
            + places.len() * DELTA_ENTRY_BYTES
            + expiring * DELTA_EXPIRY_BYTES
            + value_bytes;
        Ok(DeltaPlan { schema, fields, places, expires_at_ms, expiring, body_bytes })
    }

    /// The length of the body.
    #[inline]
    pub(crate) fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Writes the body over `body`, which is `body_bytes` long and may hold anything.
    #[inline]
    pub(crate) fn encode(&self, body: &mut [u8]) {
        let mut writer = DeltaWriter::new(body, self.places.len(), self.expiring);
        for at in &self.places {
            let field = &self.schema.fields().fields()[at.place()];
            match &self.fields[at.index() as usize].1 {
                Value::Null => writer.entry(field.id.0, None, None),
                value => {
                    writer.entry(field.id.0, Some(field.kind.raw(value, &mut [0; 8])), self.expires_at_ms);
                }
            }
        }
        writer.finish();
    }
}
