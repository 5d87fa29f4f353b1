//! Stored rows against golden bytes, every damage of one byte, and arbitrary bytes.

use proptest::prelude::*;

use super::*;
use crate::schema::body::RowBody;
use crate::schema::plan::RowPlan;
use crate::schema::table::TableSchema;
use crate::{Schema, Type, Value, row};

const TABLE: u32 = 7;
const KEY: &[u8] = b"user:42";

fn table_schema() -> TableSchema {
    TableSchema::create(&Schema::new().field("n", Type::U32).field("text", Type::String)).unwrap()
}

fn spec(body_bytes: usize, expires_at_ms: Option<u64>) -> StoredRowSpec<'static> {
    StoredRowSpec {
        table: TABLE,
        key: KEY,
        version: 3,
        schema_version: 1,
        has_field_expiry: false,
        expires_at_ms,
        body_bytes,
    }
}

/// Encodes over bytes that are not zero, as a buffer that is used again would hold.
fn stored(spec: &StoredRowSpec<'_>, fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut value = vec![0xAA; spec.stored_bytes()];
    spec.encode(&mut value, fill);
    value
}

fn stored_row(text: &str, expires_at_ms: Option<u64>) -> Vec<u8> {
    let (schema, fields) = (table_schema(), row! { n: 5, text: text });
    let plan = RowPlan::new(&schema, &fields).unwrap();
    stored(&spec(plan.body_bytes(), expires_at_ms), |body| plan.encode(body))
}

/// All that is read of a value: what of it is wrong is found.
fn read_all(table: u32, key: &[u8], value: &[u8]) -> Result<(u64, Option<u64>, Vec<u8>)> {
    let row = StoredRow::parse(table, key, value)?;
    let body = (&row).slice(0..(&row).len())?.to_vec();
    Ok((row.version(), row.expires_at_ms(), body))
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(8).map(|eight| eight.iter().map(|b| format!("{b:02x}")).collect::<String>() + " ").collect()
}

/// Computed by another program from the box at the top of the module.
#[test]
fn the_bytes_are_these() {
    let value = stored_row("", Some(0x0102_0304_0506));
    assert_eq!(
        hex(&value),
        "bc5a51a218000000 0300000000000000 0100010800000000 0605040302010000 \
         987ccf7b00000000 0300000000000000 0500000000000000 0000000000000000 "
    );
    let text: String = (0..300).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    let value = stored_row(&text, None);
    assert_eq!(
        hex(&value[..40]),
        "0a08b8b544010000 0300000000000000 0100000800000000 9484bab42ecc539c 0300000000000000 "
    );
    assert_eq!(value.len(), 356);
}

#[test]
fn a_row_reads_as_it_was_stored() {
    let schema = table_schema();
    for (text, expires_at_ms) in [("", None), ("short", Some(9)), (&*"long".repeat(20_000), Some(u64::MAX))] {
        let value = stored_row(text, expires_at_ms);
        let row = StoredRow::parse(TABLE, KEY, &value).unwrap();
        assert_eq!((row.version(), row.schema_version(), row.expires_at_ms()), (3, 1, expires_at_ms));
        let body = RowBody::new(schema.current_layout(), &row, row.has_field_expiry());
        assert_eq!(body.read(&schema, 0).unwrap().value, Value::UInt(5));
        assert_eq!(body.read(&schema, 1).unwrap().value, Value::Str(text));
    }
}

#[test]
fn every_bit_counts() {
    let value = stored_row(&"text".repeat(80), Some(1 << 40));
    let whole = read_all(TABLE, KEY, &value).unwrap();
    assert_eq!(whole.0, 3);
    for at in 0..value.len() {
        for bit in 0..8 {
            let mut damaged = value.clone();
            damaged[at] ^= 1 << bit;
            let error = read_all(TABLE, KEY, &damaged).expect_err("a flipped bit");
            assert_eq!(error.kind(), ErrorKind::Corrupted, "bit {bit} of byte {at}: {error}");
        }
    }
}

#[test]
fn a_value_that_is_cut_or_longer_is_none() {
    let value = stored_row(&"text".repeat(80), None);
    for length in 0..value.len() {
        let error = read_all(TABLE, KEY, &value[..length]).expect_err("a part of a value");
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{length} bytes: {error}");
    }
    let longer = [&value[..], &[0; 8]].concat();
    assert_eq!(read_all(TABLE, KEY, &longer).map_err(|error| error.kind()), Err(ErrorKind::Corrupted));
}

#[test]
fn a_value_under_another_key_or_table_is_found() {
    let value = stored_row("text", None);
    for (table, key) in [(TABLE + 1, KEY), (TABLE, b"user:43"), (TABLE, b"user:4"), (TABLE, b"")] {
        let error = read_all(table, key, &value).expect_err("a value of another key");
        assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    }
}

/// What a reader of one field touches is verified, and nothing else.
#[test]
fn blocks_are_verified_as_they_are_read() {
    let schema = table_schema();
    let mut value = stored_row(&"text".repeat(200), None);
    *value.last_mut().unwrap() ^= 1;
    let row = StoredRow::parse(TABLE, KEY, &value).unwrap();
    let body = RowBody::new(schema.current_layout(), &row, false);
    assert_eq!(body.read(&schema, 0).unwrap().value, Value::UInt(5));
    let error = body.read(&schema, 1).expect_err("a block that does not match");
    assert!(error.kind() == ErrorKind::Corrupted && error.message().contains("user:42"), "{error}");
}

#[test]
fn what_a_later_build_stores_is_refused_by_name() {
    for at in [18, 20] {
        let mut value = stored_row("text", None);
        value[at] |= 128;
        let end = value.len() - u32_at(&value, 4) as usize;
        let crc = crc32c(seed(TABLE, KEY), &value[4..end]);
        value[..4].copy_from_slice(&crc.to_le_bytes());
        let error = StoredRow::parse(TABLE, KEY, &value).expect_err("a flag that is not known");
        assert!(error.kind() == ErrorKind::Version && error.message().contains("128"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 2000 }, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_in_comes_out(
        table in any::<u32>(),
        key in prop::collection::vec(any::<u8>(), 1..40),
        version in any::<u64>(),
        expires_at_ms in prop::option::of(any::<u64>()),
        body in prop::collection::vec(any::<u8>(), 0..1200),
    ) {
        let spec = StoredRowSpec { table, key: &key, version, expires_at_ms, ..spec(body.len(), None) };
        let value = stored(&spec, |out| out.copy_from_slice(&body));
        prop_assert_eq!(read_all(table, &key, &value).unwrap(), (version, expires_at_ms, body));
    }

    /// Bytes that nobody stored: a typed error. Lengths are made to match in part of them, so that they come past the first look.
    #[test]
    fn arbitrary_bytes_are_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        flags in 0..4u8,
        lengths_match in any::<bool>(),
    ) {
        let matching = |body_bytes: &usize| Parts::new(flags, *body_bytes).body + body_bytes == bytes.len();
        if let Some(body_bytes) = (0..bytes.len()).find(matching).filter(|_| lengths_match) {
            bytes[4..8].copy_from_slice(&(body_bytes as u32).to_le_bytes());
            bytes[18..20].copy_from_slice(&[flags, block_shift(body_bytes)]);
        }
        let error = read_all(TABLE, KEY, &bytes).expect_err("nobody stored it");
        prop_assert_eq!(error.kind(), ErrorKind::Corrupted);
    }
}
