//! Folds against the deltas that they are made of, over random rows and over none.

use proptest::prelude::*;

use super::model::{Op, Row, ops};
use super::*;

fn bodies(deltas: &[Vec<u8>]) -> Vec<DeltaBody<&[u8]>> {
    deltas.iter().map(|delta| DeltaBody::new(&delta[..])).collect()
}

fn fold(schema: &TableSchema, deltas: &[Vec<u8>], now: u64) -> Vec<u8> {
    folded_body(&DeltaFold::new(schema, &bodies(deltas), now).unwrap())
}

/// The row that `deltas` make of that of `row`, or of none, and whether a field of it expires.
fn merged(row: &Row, over_row: bool, deltas: &[Vec<u8>], now: u64) -> (Vec<u8>, bool) {
    let base = row.row_body().filter(|_| over_row);
    let (schema, deltas) = (&row.schema, bodies(deltas));
    let plan = MergePlan::new(schema, base.as_ref(), &deltas, now).unwrap();
    (merged_body(&plan), plan.has_field_expiry())
}

/// What a reader finds of each field in the deltas alone: what they say at `now`, or that they say nothing.
fn read_each<'a>(schema: &'a TableSchema, deltas: &'a [Vec<u8>], now: u64) -> Vec<Option<Value<'a>>> {
    let bodies = bodies(deltas);
    let find = |position| {
        let found = bodies.iter().find_map(|delta| delta.find(schema, position).unwrap());
        found.map(|read| read.at(now))
    };
    (0..schema.fields().fields().len()).map(find).collect()
}

/// Over no row the deltas make one with all that a row written whole has of fields that are newer than it: each reads as it is merged.
fn check_over_none(schema: &TableSchema, deltas: &[Vec<u8>], now: u64) {
    let bodies = bodies(deltas);
    let mut seen = Vec::new();
    let plan = MergePlan::new(schema, None::<&RowBody<'_, &[u8]>>, &bodies, now).unwrap();
    plan.for_each(|position, read| seen.push((position, read))).unwrap();
    let walk = |position| {
        let found = bodies.iter().find_map(|delta| delta.find(schema, position).unwrap());
        (position, found.unwrap_or_else(|| FieldRead::default_of(schema, position)))
    };
    let walked = (0..schema.fields().fields().len()).map(walk);
    assert_eq!(seen, walked.filter(|(_, read)| !read.at(now).is_null()).collect::<Vec<_>>(), "at {now}");
}

/// Whether `folded`, made at `then`, is to readers and to merges what `deltas` are, from then on.
fn check_same(row: &Row, folded: &[Vec<u8>], deltas: &[Vec<u8>], then: u64) {
    for now in [then, then + 1, then + 30, 100, 1000].into_iter().filter(|now| *now >= then) {
        for over_row in [true, false] {
            assert_eq!(merged(row, over_row, folded, now), merged(row, over_row, deltas, now), "at {now}");
        }
        assert_eq!(read_each(&row.schema, folded, now), read_each(&row.schema, deltas, now), "at {now}");
        check_over_none(&row.schema, folded, now);
        check_over_none(&row.schema, deltas, now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 400 }, ..ProptestConfig::default() })]

    /// All deltas, those above a place and those below it, at some time; and folds of folds, later, under a later schema.
    #[test]
    fn a_fold_does_what_its_deltas_do(
        ops in ops(),
        last in prop::collection::vec((any::<u16>(), any::<u64>(), prop::option::of(0..100u64)), 1..4),
        later in ops(),
        from in any::<usize>(),
        then in 0..100u64,
        after in 0..50u64,
    ) {
        let mut row = Row::new(true);
        ops.iter().for_each(|op| row.apply(op));
        last.iter().for_each(|&(field, seed, expires)| row.apply(&Op::Update(vec![(field, seed)], expires)));
        let deltas = row.deltas.clone();
        if deltas.is_empty() {
            // The table has no field, or none that can expire.
            return Ok(());
        }
        let (newer, older) = deltas.split_at(from % deltas.len());
        let of_all = vec![fold(&row.schema, &deltas, then)];
        let mut upper: Vec<Vec<u8>> = Vec::new();
        if !newer.is_empty() {
            upper.push(fold(&row.schema, newer, then));
        }
        let lower = [newer, &[fold(&row.schema, older, then)]].concat();
        let of_folds = vec![fold(&row.schema, &[upper.as_slice(), &lower[newer.len()..]].concat(), then)];
        upper.extend_from_slice(older);
        prop_assert_eq!(&of_folds, &of_all, "one after the other or all at once");
        prop_assert_eq!(fold(&row.schema, &of_all, then), &of_all[0][..], "again");
        for folded in [&of_all, &upper, &lower] {
            check_same(&row, folded, &deltas, then);
        }
        let changes_schema = |op: &&Op| !matches!(op, Op::Put(_) | Op::Update(..) | Op::Consolidate(_));
        later.iter().filter(changes_schema).for_each(|op| row.apply(op));
        check_same(&row, &of_all, &deltas, then);
        for folded in [&of_all, &upper, &lower] {
            check_same(&row, &[fold(&row.schema, folded, then + after)], &deltas, then + after);
        }
    }
}

#[test]
fn golden_fold() {
    let schema = Schema::new().field("n", Type::I16).nullable("a", Type::String).nullable("b", Type::String);
    let schema = TableSchema::create(&schema.nullable("c", Type::String)).unwrap();
    let newest = delta_body(&schema, &row! { a: Value::Null, b: "bee" }, Some(0x0304));
    let middle = delta_body(&schema, &row! { n: 0x0102 }, None);
    let oldest = delta_body(&schema, &row! { n: 1, c: "sea" }, None);
    let deltas = [newest, middle, oldest];
    #[rustfmt::skip]
    let expected = [
        4, 0, 0, 0,
        0, 0, 0, 0, 2, 0, 0, 0,
        1, 0, 1, 0, 0, 0, 0, 0,
        2, 0, 2, 0, 3, 0, 0, 0,
        3, 0, 0, 0, 3, 0, 0, 0,
        4, 3, 0, 0, 0, 0, 0, 0,
        2, 1, b'b', b'e', b'e', b's', b'e', b'a',
    ];
    assert_eq!(fold(&schema, &deltas, 0x0303), expected);
    // Expired, it is removed: an older value of it must not come back.
    #[rustfmt::skip]
    let expected = [
        4, 0, 0, 0,
        0, 0, 0, 0, 2, 0, 0, 0,
        1, 0, 1, 0, 0, 0, 0, 0,
        2, 0, 1, 0, 0, 0, 0, 0,
        3, 0, 0, 0, 3, 0, 0, 0,
        2, 1, b's', b'e', b'a',
    ];
    assert_eq!(fold(&schema, &deltas, 0x0304), expected);
}

/// A delta over no row makes one, whatever has become of its fields.
#[test]
fn a_fold_of_dropped_fields_is_a_delta_still() {
    let schema = TableSchema::create(&Schema::open().field("n", Type::U8)).unwrap();
    let schema = schema.with_learned(&["a", "b"]).unwrap();
    let deltas =
        [delta_body(&schema, &row! { b: "x" }, Some(50)), delta_body(&schema, &row! { a: "y" }, None)];
    let dropped = schema.with_dropped("a").unwrap();
    assert_eq!(fold(&dropped, &deltas, 0), deltas[0], "only what is left of the schema");
    let dropped = dropped.with_dropped("b").unwrap();
    assert_eq!(fold(&dropped, &deltas, 0), [1, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0]);
    let again = dropped.with_learned(&["b"]).unwrap();
    let body = fold(&again, &[fold(&dropped, &deltas, 0)], 0);
    assert_eq!(DeltaBody::new(&body[..]).find(&again, 1).unwrap(), None, "a new field of an old name");
}

#[test]
fn what_cannot_be_folded_is_refused() {
    let schema = every_type();
    let fold = |deltas: &[Vec<u8>]| DeltaFold::new(&schema, &bodies(deltas), 0).map(|_| ()).unwrap_err();
    assert_eq!(fold(&[]).kind(), ErrorKind::Corrupted);
    assert_eq!(fold(&[vec![0; 4]]).kind(), ErrorKind::Corrupted);
    let delta = delta_body(&schema, &row! { u32: 7 }, None);
    assert_eq!(fold(&[delta[..delta.len() - 1].to_vec()]).kind(), ErrorKind::Corrupted);
    let (mut of_two_bytes, count_at) = (delta.clone(), 8);
    of_two_bytes[count_at] = 2;
    assert_eq!(fold(&[of_two_bytes]).kind(), ErrorKind::Corrupted, "no number of 32 bits");
}

/// Each delta may be as long as a row; their fold is refused where a row would be.
#[test]
#[cfg_attr(miri, ignore = "64 MiB")]
fn a_fold_keeps_to_the_limit_of_a_row() {
    let schema = Schema::new().nullable("a", Type::Bytes).nullable("b", Type::Bytes);
    let schema = TableSchema::create(&schema).unwrap();
    let long = vec![1; ROW_BYTES_MAX - 8];
    let delta = |bytes: &[u8]| delta_body(&schema, &row! { b: bytes }, None);
    let deltas = [delta_body(&schema, &row! { a: &long[..] }, None), delta(&[2; 8]), delta(&[3; 9])];
    DeltaFold::new(&schema, &bodies(&deltas), 0).unwrap().check_length().unwrap();
    let [first, _, last] = deltas;
    let too_long = [first, last];
    let error = DeltaFold::new(&schema, &bodies(&too_long), 0).unwrap().check_length().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("67108865") && error.message().contains("67108864"), "{error}");
}
