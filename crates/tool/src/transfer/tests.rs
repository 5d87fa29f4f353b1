//! Imports that are killed, and lines that are refused.

use std::io::Cursor;

use hedgerow::Schema;
use hedgerow_device::{Clock, CrashModel, CrashSim, FastTier, Survivors};

use super::*;

/// An import that is killed anywhere leaves no row without the expiries of its fields.
#[test]
fn rows_are_never_there_without_the_expiries_of_their_fields() {
    const ROWS: usize = 20;
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let options = || Options { background: false, durability: Durability::Process, ..Options::default() };
    let db = Db::open_at(FastTier::simulated(&sim), options(), Clock::system()).unwrap();
    let mut lines = String::from(
        r#"{"hedgerow":1,"table":"t","open":false,"fields":[{"name":"a","type":"bytes","nullable":true},{"name":"b","type":"u8","nullable":true}]}"#,
    );
    for row in 0..ROWS {
        lines.push_str(&format!(
            "\n{{\"key\":\"{row}\",\"fields\":{{\"a\":\"x\",\"b\":{row}}},\"field_expires_at_ms\":{{\"b\":4000000000000}}}}"
        ));
    }
    let from = sim.ops();
    let bar = ProgressBar::hidden();
    let imported =
        Import::new(&db, Box::new(Cursor::new(lines.into_bytes())), &bar).run(None, false).unwrap();
    assert_eq!(imported, ("t".to_string(), ROWS as u64, false));
    let mut walk = sim.walk();
    walk.seek(from);
    let mut most = 0;
    while walk.next_op() {
        let image = CrashSim::from_image(&walk.image(Survivors::ProcessKill, 0));
        let db = Db::open_at(FastTier::simulated(&image), options(), Clock::system()).unwrap();
        let Ok(table) = db.table("t") else { continue };
        let mut rows = 0;
        let scan = table.scan();
        scan.for_each(|key, row| {
            rows += 1;
            assert_eq!(row.field_expires_at_ms("b")?, Some(4_000_000_000_000), "{}", key.escape_ascii());
            assert!(row.has("a")?);
            Ok(true)
        })
        .unwrap();
        most = most.max(rows);
    }
    assert_eq!(most, ROWS);
}

/// A row that has expired by the time it is imported is not there, whatever its fields say; nor is the one that had its key.
#[test]
fn rows_that_have_expired_are_not_imported() {
    let sim = CrashSim::new(CrashModel::Pages, 64 << 20);
    let options = Options { background: false, ..Options::default() };
    let db = Db::open_at(FastTier::simulated(&sim), options, Clock::system()).unwrap();
    let lines = [
        r#"{"hedgerow":1,"table":"t","open":false,"fields":[{"name":"a","type":"bytes","nullable":true},{"name":"b","type":"u8","nullable":true}]}"#,
        r#"{"key":"was there","fields":{"a":"x"}}"#,
        r#"{"key":"was there","fields":{"a":"y","b":1},"expires_at_ms":1000,"field_expires_at_ms":{"b":4000000000000}}"#,
        r#"{"key":"its field later","fields":{"a":"x","b":2},"expires_at_ms":1000,"field_expires_at_ms":{"b":4000000000000}}"#,
        r#"{"key":"its field as well","fields":{"a":"x","b":3},"expires_at_ms":1000,"field_expires_at_ms":{"b":1000}}"#,
        r#"{"key":"its field only","fields":{"a":"x","b":4},"expires_at_ms":4000000000000,"field_expires_at_ms":{"b":1000}}"#,
        r#"{"key":"neither","fields":{"a":"x","b":5},"expires_at_ms":4000000000001,"field_expires_at_ms":{"b":4000000000000}}"#,
    ];
    let bar = ProgressBar::hidden();
    Import::new(&db, Box::new(Cursor::new(lines.join("\n").into_bytes())), &bar).run(None, false).unwrap();
    let table = db.table("t").unwrap();
    let mut found = Vec::new();
    let scan = table.scan();
    scan.for_each(|key, row| {
        let key = key.escape_ascii().to_string();
        found.push((key, row.expires_at_ms(), row.has("a")?, row.field_expires_at_ms("b")?));
        Ok(true)
    })
    .unwrap();
    let rows = [
        ("its field only", Some(4_000_000_000_000), true, None),
        ("neither", Some(4_000_000_000_001), true, Some(4_000_000_000_000)),
    ];
    assert_eq!(found, rows.map(|(key, row, has_a, field)| (key.to_owned(), row, has_a, field)));
}

#[test]
fn an_expiry_of_no_field_is_refused() {
    let schema = Schema::open();
    for line in [
        r#"{"key":"1","fields":{"a":"x"},"field_expires_at_ms":{"b":4000000000000}}"#,
        r#"{"key":"1","fields":{"a":"x","b":null},"field_expires_at_ms":{"b":4000000000000}}"#,
        r#"{"key":"1","field_expires_at_ms":{"b":4000000000000}}"#,
    ] {
        let error = json::parse_line(line.as_bytes(), Some(&schema)).unwrap_err();
        assert_eq!(error, "field \"b\" has an expiry and no value");
    }
}
