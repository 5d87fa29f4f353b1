//! The schema module against golden bytes, a model, and arbitrary bytes.

use super::body::{DeltaBody, RowBody};
use super::merge::MergePlan;
use super::plan::{DeltaPlan, PlanError, RowPlan};
use super::table::{NewField, TableSchema};
use super::*;
use crate::row;

/// Encodes over bytes that are not zero, as a recycled log segment's would be.
fn row_body<F: FieldName>(schema: &TableSchema, fields: &[(F, Value<'_>)]) -> Vec<u8> {
    let plan = RowPlan::new(schema, fields).expect("a valid row");
    let mut body = vec![0xAA; plan.body_bytes()];
    plan.encode(&mut body);
    body
}

fn delta_body<F: FieldName>(
    schema: &TableSchema,
    fields: &[(F, Value<'_>)],
    expires: Option<u64>,
) -> Vec<u8> {
    let plan = DeltaPlan::new(schema, fields, expires).expect("a valid delta");
    let mut body = vec![0xAA; plan.body_bytes()];
    plan.encode(&mut body);
    body
}

fn read<'a>(schema: &'a TableSchema, version: u16, body: &'a [u8], name: &str) -> Value<'a> {
    let row = RowBody::new(schema.layout(version).expect("a version"), body, false);
    row.read(schema, schema.fields().position_of_name(name).expect("a field")).expect("a sound row").value
}

#[test]
fn reads_what_it_wrote() {
    let schema =
        Schema::new().field("name", Type::String).field("age", Type::U32).nullable("email", Type::String);
    let schema = TableSchema::create(&schema).unwrap();
    let body = row_body(&schema, &row! { age: 36, name: "Ada Lovelace" });
    assert_eq!(read(&schema, 1, &body, "name"), Value::Str("Ada Lovelace"));
    assert_eq!(read(&schema, 1, &body, "age"), Value::UInt(36));
    assert_eq!(read(&schema, 1, &body, "email"), Value::Null);

    let delta = delta_body(&schema, &row! { email: "ada@example.org" }, Some(1_000));
    let (base, deltas) =
        (RowBody::new(schema.current_layout(), &body[..], false), [DeltaBody::new(&delta[..])]);
    let merged = MergePlan::new(&schema, Some(&base), &deltas, 999).unwrap();
    let mut body = vec![0xAA; merged.body_bytes()];
    merged.encode(&mut body);
    let row = RowBody::new(schema.current_layout(), &body[..], merged.has_field_expiry());
    let email = row.read(&schema, 2).unwrap();
    assert_eq!((email.value, email.expires_at_ms), (Value::Str("ada@example.org"), Some(1_000)));
    assert_eq!((email.at(999), email.at(1_000)), (Value::Str("ada@example.org"), Value::Null));
}
