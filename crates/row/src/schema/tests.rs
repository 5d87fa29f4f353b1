//! The schema module against golden bytes and its limits; `model` has the random part.

mod fold;
mod model;

use super::body::{DeltaBody, FieldRead, RowBody};
use super::fold::DeltaFold;
use super::merge::MergePlan;
use super::plan::{DeltaPlan, FieldExpiries, PlanError, RowPlan};
use super::table::{LIFE_MAX, NewField, TableSchema};
use super::*;
use crate::limits::ROW_BYTES_MAX;
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
    let plan = DeltaPlan::new(schema, fields, FieldExpiries::All(expires)).expect("a valid delta");
    let mut body = vec![0xAA; plan.body_bytes()];
    plan.encode(&mut body);
    body
}

fn merged_body(plan: &MergePlan<'_>) -> Vec<u8> {
    let mut body = vec![0xAA; plan.body_bytes()];
    plan.encode(&mut body);
    body
}

fn folded_body(fold: &DeltaFold<'_>) -> Vec<u8> {
    let mut body = vec![0xAA; fold.body_bytes()];
    fold.encode(&mut body);
    body
}

fn position(schema: &TableSchema, name: &str) -> usize {
    name.find_near(schema.fields(), 0).expect("a field")
}

fn read<'a>(schema: &'a TableSchema, version: u16, body: &'a [u8], name: &str) -> Value<'a> {
    let row = RowBody::new(schema.layout(version).expect("a version"), body, false);
    row.read(schema, position(schema, name)).expect("a sound row").value
}

fn invalid<T>(result: std::result::Result<T, PlanError>) -> String {
    match result {
        Err(PlanError::Invalid(error)) => error.message().to_owned(),
        Err(PlanError::Unknown(names)) => panic!("unknown {names:?}"),
        Ok(_) => panic!("accepted"),
    }
}

fn every_type() -> TableSchema {
    let schema = Schema::new()
        .field("bool", Type::Bool)
        .field("bytes", Type::Bytes)
        .field("i8", Type::I8)
        .field("i16", Type::I16)
        .field("i32", Type::I32)
        .field("i64", Type::I64)
        .field("string", Type::String)
        .field("u8", Type::U8)
        .field("u16", Type::U16)
        .nullable("u32", Type::U32)
        .field("u64", Type::U64)
        .field("f32", Type::F32)
        .field("f64", Type::F64)
        .field("timestamp", Type::Timestamp)
        .nullable("bytes(3)", Type::FixedBytes(3))
        .nullable("none", Type::String)
        .nullable("note", Type::String);
    TableSchema::create(&schema).unwrap()
}

fn every_value() -> Vec<(&'static str, Value<'static>)> {
    row! {
        bool: true, bytes: b"12345678", i8: -2i8, i16: -3, i32: -4, i64: -5, string: "", u8: 6, u16: 0x0707, u32: None::<u32>,
        u64: 0x0809_0A0B_0C0D_0E0Fu64, f32: 1.5, f64: -2.5, timestamp: Value::Timestamp(0x1122), "bytes(3)": b"abc",
        note: "123456789"
    }
    .to_vec()
}

#[test]
fn golden_row() {
    let body = row_body(&every_type(), &every_value());
    // Slots: i64 u64 f64 timestamp, i32 u32 f32, i16 u16, bool i8 u8, bytes(3), then bytes string none note.
    let expected = [
        &[0b1101_1111, 0b0111_1111, 0b0000_0001, 0, 0, 0, 0, 0][..],
        &(-5i64).to_le_bytes(),
        &[0x0F, 0x0E, 0x0D, 0x0C, 0x0B, 0x0A, 0x09, 0x08],
        &[0, 0, 0, 0, 0, 0, 0x04, 0xC0],
        &[0x22, 0x11, 0, 0, 0, 0, 0, 0],
        &[0xFC, 0xFF, 0xFF, 0xFF],
        &[0, 0, 0, 0],
        &[0, 0, 0xC0, 0x3F],
        &[0xFD, 0xFF],
        &[0x07, 0x07],
        &[1, 0xFE, 6],
        b"abc",
        &[8, 0, 0, 0],
        b"12345678",
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[9, 0, 0, 0, 8 + 32 + 12 + 4 + 3 + 3 + 36, 0, 0, 0, 0, 0, 0, 0],
        b"123456789",
    ]
    .concat();
    assert_eq!(body, expected);
}

#[test]
fn golden_row_with_expiries_and_delta() {
    let schema = Schema::new().field("n", Type::U16).nullable("a", Type::Bytes).nullable("b", Type::Bytes);
    let schema = TableSchema::create(&schema).unwrap();
    let delta = delta_body(&schema, &row! { b: "bee", a: None::<&str>, n: 0x0102 }[..2], Some(0x0304));
    #[rustfmt::skip]
    let expected = [
        2, 0, 0, 0,
        1, 0, 1, 0, 0, 0, 0, 0,
        2, 0, 2, 0, 3, 0, 0, 0,
        4, 3, 0, 0, 0, 0, 0, 0,
        b'b', b'e', b'e',
    ];
    assert_eq!(delta, expected);
    let plain = delta_body(&schema, &row! { n: 0x0102 }, None);
    assert_eq!(plain, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 1]);

    let base = row_body(&schema, &row! { n: 1, a: "gone" });
    let base = RowBody::new(schema.current_layout(), &base[..], false);
    let deltas = [DeltaBody::new(&plain[..]), DeltaBody::new(&delta[..])];
    let merged = MergePlan::new(&schema, Some(&base), &deltas, 0x0303).unwrap();
    #[rustfmt::skip]
    let expected = [
        0b101, 0, 0, 0, 0, 0, 0, 0,
        2, 1,
        3, 0, 0, 0, b'b', b'e', b'e', 0, 0, 0, 0, 0,
        2, 0, 4, 3, 0, 0, 0, 0, 0, 0,
        1, 0,
    ];
    assert!(merged.has_field_expiry());
    assert_eq!(merged_body(&merged), expected);
    let later = MergePlan::new(&schema, Some(&base), &deltas, 0x0304).unwrap();
    assert!(!later.has_field_expiry());
    assert_eq!(merged_body(&later), [1, 0, 0, 0, 0, 0, 0, 0, 2, 1]);
}

#[test]
fn golden_catalog() {
    let schema = Schema::open().field_with_default("n", Type::I16, -2).nullable("k", Type::FixedBytes(300));
    let schema =
        TableSchema::create(&schema).unwrap().with_learned(&["seen"]).unwrap().with_dropped("k").unwrap();
    let mut bytes = Vec::new();
    catalog::encode(&schema, &mut bytes);
    #[rustfmt::skip]
    let expected = [
        1, 1, 3, 0, 3, 0, 3, 0,
        0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 1, 2, 0, b'n', 0xFE, 0xFF,
        1, 0, 1, 0, 3, 0, 13, 1, 44, 1, 1, 0, 0, b'k',
        2, 0, 2, 0, 0, 0, 14, 1, 0, 0, 4, 0, 0, b's', b'e', b'e', b'n',
    ];
    assert_eq!(bytes, expected);
    let again = catalog::decode(&bytes).unwrap();
    assert_eq!((again.version(), again.fields()), (3, schema.fields()));
    assert_eq!(again.layout(2).unwrap().len(), 3);
    bytes[0] = 2;
    assert_eq!(catalog::decode(&bytes).unwrap_err().kind(), ErrorKind::Version);
}

#[test]
fn reads_every_type() {
    let schema = every_type();
    let body = row_body(&schema, &every_value());
    for (name, value) in every_value() {
        assert_eq!(read(&schema, 1, &body, name), value, "{name}");
    }
    assert_eq!(read(&schema, 1, &body, "none"), Value::Null);
    let defaults = row_body::<&str>(&schema, &[]);
    for field in schema.fields().fields() {
        assert_eq!(read(&schema, 1, &defaults, field.name()), field.default(), "{}", field.name());
    }
    let by_id: Vec<(FieldId, Value<'_>)> = every_value()
        .into_iter()
        .rev()
        .map(|(name, v)| (schema.fields().field_by_name(name).unwrap().id(), v))
        .collect();
    assert_eq!(row_body(&schema, &by_id), body, "the order of the values does not matter");
}

#[test]
fn fixed_numbers_are_aligned_and_placed() {
    let schema = every_type();
    let body = row_body(&schema, &every_value());
    for field in schema.fields().fields() {
        let Some(width) = field.kind().width() else { continue };
        let (range, byte, mask) = schema.current_layout().fixed_place(field.id()).unwrap();
        assert_eq!(range.len(), width);
        if !matches!(field.kind(), Type::FixedBytes(_)) {
            assert_eq!(range.start % width, 0, "{}", field.name());
        }
        let value = read(&schema, 1, &body, field.name());
        assert_eq!(body[byte] & mask != 0, !value.is_null());
        if !value.is_null() {
            assert_eq!(field.kind().decode(&body[range]).unwrap(), value);
        }
    }
    assert!(
        schema.current_layout().fixed_place(schema.fields().field_by_name("string").unwrap().id()).is_none()
    );
}

#[test]
fn what_a_type_takes() {
    let takes = |kind: Type, value: Value<'_>| kind.check(&value);
    assert_eq!(takes(Type::I8, Value::UInt(127)), Ok(1));
    assert_eq!(takes(Type::I8, Value::UInt(128)), Err(types::Misfit::Range));
    assert_eq!(takes(Type::I8, Value::Int(-129)), Err(types::Misfit::Range));
    assert_eq!(takes(Type::U64, Value::Int(-1)), Err(types::Misfit::Range));
    assert_eq!(takes(Type::U64, Value::UInt(u64::MAX)), Ok(8));
    assert_eq!(takes(Type::I64, Value::UInt(1 << 63)), Err(types::Misfit::Range));
    assert_eq!(takes(Type::F32, Value::Float(1e39)), Err(types::Misfit::Range));
    assert_eq!(takes(Type::F32, Value::Float(f64::INFINITY)), Ok(4));
    assert_eq!(takes(Type::F64, Value::Int(1 << 53)), Ok(8));
    assert_eq!(takes(Type::F64, Value::Int((1 << 53) + 1)), Err(types::Misfit::Range));
    assert_eq!(takes(Type::F64, Value::Int(i64::MIN)), Err(types::Misfit::Range));
    assert_eq!(takes(Type::Bool, Value::Int(1)), Err(types::Misfit::Kind));
    assert_eq!(takes(Type::U32, Value::Timestamp(1)), Err(types::Misfit::Kind));
    assert_eq!(takes(Type::Bytes, Value::Null), Err(types::Misfit::Kind));
    assert_eq!(takes(Type::FixedBytes(2), Value::Bytes(b"abc")), Err(types::Misfit::Length(3)));
    assert_eq!(takes(Type::FixedBytes(3), Value::Str("abc")), Ok(3));
    assert_eq!(takes(Type::String, Value::Bytes(b"\xFF")), Err(types::Misfit::Utf8));
    assert_eq!(takes(Type::String, Value::Bytes("é".as_bytes())), Ok(2));
    assert_eq!(Type::Bool.decode(&[2]).unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!(Type::String.decode(b"\xFF").unwrap_err().kind(), ErrorKind::Corrupted);
    assert_eq!(Type::U32.decode(&[0; 3]).unwrap_err().kind(), ErrorKind::Corrupted);
}

#[test]
fn types_in_text() {
    for field in every_type().fields().fields() {
        let kind = field.kind();
        assert_eq!(kind.to_string().parse::<Type>().unwrap(), kind);
        let (tag, width) = kind.to_tag();
        assert_eq!(Type::from_tag(tag, width), Some(kind));
    }
    assert_eq!("BYTES( 4096 )".parse::<Type>().unwrap(), Type::FixedBytes(4096));
    for wrong in
        ["", "int", "bytes(", "bytes()", "bytes(0)", "bytes(4097)", "bytes(99999999)", "u32(4)", "bytes(-1)"]
    {
        assert_eq!(wrong.parse::<Type>().unwrap_err().kind(), ErrorKind::Invalid, "{wrong}");
    }
    assert!(
        Type::from_tag(0, 0).is_none() && Type::from_tag(16, 0).is_none() && Type::from_tag(8, 1).is_none()
    );
}

#[test]
fn schemas_have_limits() {
    let refuse = |schema: Schema| TableSchema::create(&schema).unwrap_err().message().to_owned();
    assert!(refuse(Schema::new().field("", Type::U8)).contains("1 to 255"));
    assert!(refuse(Schema::new().field("n".repeat(256), Type::U8)).contains("1 to 255"));
    assert!(refuse(Schema::new().field("a", Type::U8).nullable("a", Type::Bytes)).contains("\"a\""));
    assert!(refuse(Schema::new().field("a", Type::FixedBytes(0))).contains("1 to 4096"));
    assert!(refuse(Schema::new().nullable("a", Type::FixedBytes(4097))).contains("1 to 4096"));
    assert!(refuse(Schema::new().field_with_default("a", Type::U8, 256)).contains("cannot hold 256"));
    assert!(refuse(Schema::new().field_with_default("a", Type::U8, Value::Null)).contains("nullable"));
    assert!(
        refuse(Schema::new().field_with_default("a", Type::Bytes, &vec![0; 4097])).contains("at most 4096")
    );
    let many = |n: usize| (0..n).fold(Schema::new(), |schema, i| schema.field(format!("f{i}"), Type::U8));
    assert!(refuse(many(1025)).contains("at most 1024"));
    let full = TableSchema::create(&many(1024)).unwrap();
    assert!(
        full.with_added("x", Type::U8, NewField::Nullable).unwrap_err().message().contains("at most 1024")
    );
    assert_eq!(full.with_added("f0", Type::U8, NewField::Nullable).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(full.with_renamed("f0", "f1").unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(full.with_renamed("x", "y").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(full.with_dropped("x").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(full.with_learned(&["x"]).unwrap_err().kind(), ErrorKind::NotFound);
    for i in 0..1024 {
        let name = format!("f{i}");
        assert_eq!(full.fields().field_by_name(&name).map(Field::id), Some(FieldId(i)));
        assert_eq!(name.as_str().find_near(full.fields(), i as usize), Some(i as usize));
    }
    assert!(full.fields().field_by_name("f1024").is_none());
}

#[test]
fn ids_and_versions_run_out_with_an_error() {
    let history = Vec::new();
    let worn = TableSchema::assemble(history, u16::MAX, 7, true, Vec::new());
    let error = worn.with_learned(&["x"]).unwrap_err();
    assert!(error.message().contains(&LIFE_MAX.to_string()), "{error}");
    let field = table::FieldLife { field: Schema::flat().fields()[0].clone(), added: 1, dropped: 0 };
    let worn = TableSchema::assemble(vec![field], 1, u16::MAX, true, Vec::new());
    assert_eq!(worn.with_dropped("value").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(worn.with_learned(&["x"]).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(worn.with_renamed("value", "v").is_ok());
}

#[test]
fn plans_refuse_what_is_wrong() {
    let schema = every_type();
    let refuse = |fields: &[(&str, Value<'_>)]| invalid(RowPlan::new(&schema, fields));
    assert!(refuse(&row! { u8: 256 }).contains("cannot hold 256"));
    assert!(refuse(&row! { u8: "x" }).contains("takes no string"));
    assert!(refuse(&row! { "bytes(3)": "xy" }).contains("2 bytes"));
    assert!(refuse(&row! { string: b"\xFF" }).contains("UTF-8"));
    assert!(refuse(&row! { u8: Value::Null }).contains("not nullable"));
    assert!(refuse(&row! { what: 1 }).contains("no field \"what\""));
    let half = vec![0u8; ROW_BYTES_MAX / 2 + 1];
    assert!(refuse(&row! { bytes: &half, note: std::str::from_utf8(&half).unwrap() }).contains("67108864"));
    assert!(invalid(RowPlan::new(&schema, &[(FieldId(17), Value::Null)])).contains("number 17"));
    assert!(invalid(DeltaPlan::<&str>::new(&schema, &[], FieldExpiries::All(None))).contains("at least one"));
    assert!(
        invalid(DeltaPlan::new(&schema, &row! { u8: Value::Null }, FieldExpiries::All(None)))
            .contains("not nullable")
    );
    assert!(
        invalid(DeltaPlan::new(&schema, &row! { u8: 1 }, FieldExpiries::All(Some(5))))
            .contains("not nullable")
    );
    assert!(
        invalid(DeltaPlan::new(
            &schema,
            &row! { bytes: &half, note: std::str::from_utf8(&half).unwrap() },
            FieldExpiries::All(None)
        ))
        .contains("67108864")
    );
}

#[test]
fn the_last_of_several_values_counts() {
    let schema = every_type();
    let twice = [row! { u8: 1, u16: 2 }, row! { u8: 3, u16: 4 }].concat();
    let body = row_body(&schema, &twice);
    assert_eq!(
        (read(&schema, 1, &body, "u8"), read(&schema, 1, &body, "u16")),
        (Value::UInt(3), Value::UInt(4))
    );
    assert_eq!(delta_body(&schema, &twice, None), delta_body(&schema, &row! { u16: 4, u8: 3 }, None));
    let long_then_short = row_body(&schema, &row! { note: "long enough for the tail", note: "", note: "n" });
    assert_eq!(long_then_short, row_body(&schema, &row! { note: "n" }));
    assert_eq!(row_body(&schema, &row! { note: "n", note: None::<&str> }), row_body::<&str>(&schema, &[]));
    assert!(
        invalid(RowPlan::new(&schema, &row! { u8: 999, u8: 3 })).contains("999"),
        "all values are checked"
    );
}

#[test]
fn open_tables_learn_and_sparse_rows_stay_small() {
    let open = TableSchema::create(&Schema::open()).unwrap();
    let fields = row! { a: "1", b: "2", a: "3" };
    let Err(PlanError::Unknown(names)) = RowPlan::new(&open, &fields) else { panic!("planned") };
    assert_eq!(names, ["a", "b"]);
    assert!(matches!(DeltaPlan::new(&open, &fields, FieldExpiries::All(None)), Err(PlanError::Unknown(_))));
    assert!(matches!(RowPlan::new(&open, &[(FieldId(0), Value::Null)]), Err(PlanError::Invalid(_))));
    let taught = open.with_learned(&names).unwrap();
    assert_eq!((taught.version(), taught.fields().fields().len()), (2, 2));
    assert_eq!(taught.with_learned(&names).unwrap().version(), 2, "nothing new, no new version");
    assert_eq!(read(&taught, 2, &row_body(&taught, &fields), "a"), Value::Bytes(b"3"));

    let names: Vec<String> = (0..1000).map(|i| format!("field {i}")).collect();
    let wide = open.with_learned(&names).unwrap();
    let body =
        row_body(&wide, &[("field 998", Value::from("12345678")), ("field 70", Value::from("123456789"))]);
    assert_eq!(body.len(), 128 + 2 * 12 + 9);
    assert_eq!(read(&wide, 2, &body, "field 998"), Value::Bytes(b"12345678"));
    assert_eq!(read(&wide, 2, &body, "field 70"), Value::Bytes(b"123456789"));
    assert_eq!(read(&wide, 2, &body, "field 999"), Value::Null);
    let delta = delta_body(&wide, &[("field 5", Value::from("x"))], None);
    let delta = DeltaBody::new(&delta[..]);
    assert_eq!(
        delta.find(&wide, 5).unwrap(),
        Some(FieldRead { value: Value::Bytes(b"x"), expires_at_ms: None })
    );
    assert_eq!(delta.find(&wide, 6).unwrap(), None);
    assert_eq!(
        (delta.sets(FieldId(5)).unwrap(), delta.sets(FieldId(6)).unwrap()),
        (Some((true, None)), None)
    );
}

#[test]
fn old_rows_read_under_newer_schemas() {
    let first = TableSchema::create(&Schema::new().field("a", Type::U8).field("b", Type::String)).unwrap();
    let body = row_body(&first, &row! { a: 1, b: "bee" });
    let second = first.with_added("c", Type::U64, NewField::Default(Some(Value::Int(9)))).unwrap();
    let third = second.with_dropped("a").unwrap().with_renamed("b", "a").unwrap();
    let fourth = third.with_added("b", Type::String, NewField::Nullable).unwrap();
    assert_eq!(fourth.version(), 4);
    assert_eq!(read(&second, 1, &body, "c"), Value::UInt(9));
    assert_eq!(read(&third, 1, &body, "a"), Value::Str("bee"));
    assert_eq!(read(&fourth, 1, &body, "b"), Value::Null, "a new field of an old name");
    assert!(fourth.layout(0).is_none() && fourth.layout(5).is_none());
    let base = RowBody::new(fourth.layout(1).unwrap(), &body[..], false);
    let merged = MergePlan::new(&fourth, Some(&base), &[], 0).unwrap();
    let body = merged_body(&merged);
    assert_eq!(read(&fourth, 4, &body, "a"), Value::Str("bee"));
    assert_eq!(read(&fourth, 4, &body, "c"), Value::UInt(9));
    assert_eq!(body, row_body(&fourth, &row! { a: "bee", c: 9 }));
}

#[test]
fn which_definitions_open_a_table() {
    let closed = Schema::new().field("a", Type::U8).field_with_default("b", Type::I8, 3u8);
    let table = TableSchema::create(&closed).unwrap();
    assert!(table.accepts(&closed));
    assert!(!table.accepts(&closed.clone().nullable("c", Type::U8)));
    assert!(!table.accepts(&Schema::new().field("a", Type::U8).field_with_default("b", Type::I8, 4)));
    let changed = table.with_dropped("a").unwrap();
    assert!(!changed.accepts(&closed));
    assert!(changed.accepts(changed.fields()));
    let open =
        TableSchema::create(&Schema::open().field("a", Type::U8)).unwrap().with_learned(&["x"]).unwrap();
    assert!(open.accepts(&Schema::open().field("a", Type::U8)));
    assert!(!open.accepts(&Schema::open()));
    assert!(!open.accepts(&Schema::new().field("a", Type::U8)));
}
