//! Looking at loaded tables: the rows are those that an open store has.

use crate::db::fixture::{Scratch, options};
use crate::inspect::View;
use crate::{Db, Row, Schema, Table, Type, row};

fn fields(row: &Row) -> (Vec<u8>, u64, u64) {
    (row.key().to_vec(), row.get_as("n").unwrap(), row.get_as("m").unwrap())
}

fn scanned(table: &Table) -> Vec<(Vec<u8>, u64, u64)> {
    table.scan().map(|row| fields(&row.unwrap())).collect()
}

fn looked_at(view: &View, from: &[u8]) -> Vec<(Vec<u8>, u64, u64)> {
    let mut rows = Vec::new();
    view.rows("t", from, |key, row| {
        let row = row.unwrap();
        assert_eq!(row.key(), key);
        rows.push(fields(&row.to_row().unwrap()));
        true
    })
    .unwrap();
    rows
}

#[test]
fn rows_of_sorted_tables_are_among_those_that_are_looked_at() {
    let scratch = Scratch::new("rows-of-runs");
    let dir = scratch.at("store");
    let db = Db::open_with(&dir, options()).unwrap();
    let schema = Schema::new().field("n", Type::U64).field("m", Type::U64);
    let table = db.create_table("t", schema.clone()).unwrap();
    let empty = db.create_table("empty", schema).unwrap();
    empty.load(|_| Ok(())).unwrap();
    table.load(|loader| (10..900u64).try_for_each(|n| loader.push(&n, &row! { n: n, m: 1u64 }))).unwrap();
    for n in (0..1_000u64).step_by(7) {
        table.put(&n, &row! { n: n, m: 2u64 }).unwrap();
    }
    for n in (11..890u64).step_by(9) {
        table.update(&n, &row! { m: 3u64 }).unwrap();
    }
    for n in (10..300u64).step_by(5) {
        table.delete(&n).unwrap();
    }
    let expected = scanned(&table);
    assert!(expected.len() > 800);
    drop((table, empty));
    db.close().unwrap();
    let view = View::open(&dir).unwrap();
    let report = view.check(|_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.rows, expected.len() as u64, "each row is read");
    assert_eq!(looked_at(&view, &[]), expected);
    let middle = expected[expected.len() / 2].0.clone();
    assert_eq!(looked_at(&view, &middle), expected[expected.len() / 2..]);
    let mut seen = 0;
    view.rows("t", &[], |_, _| {
        seen += 1;
        seen < 5
    })
    .unwrap();
    assert_eq!(seen, 5);
}
