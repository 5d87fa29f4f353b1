//! Tables as lines of JSON and back: every value as it was, and errors that name the line.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use hedgerow::{Db, Expiry, Options, OwnedValue, Schema, Type, Value, row};

use crate::client::{Server, TempDir};

fn run(args: &[&str], input: Option<&str>) -> (bool, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_hedgerow"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.unwrap_or_default().as_bytes()).ok();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

const FAR_MS: u64 = 4_000_000_000_000;

/// A table with every type and values at their edges.
fn fill(db: &Db) {
    let schema = Schema::new()
        .field("flag", Type::Bool)
        .field("small", Type::I8)
        .field("int", Type::I64)
        .field("uint", Type::U64)
        .nullable("single", Type::F32)
        .nullable("double", Type::F64)
        .nullable("at", Type::Timestamp)
        .nullable("id", Type::FixedBytes(3))
        .nullable("raw", Type::Bytes)
        .nullable("text", Type::String)
        .field_with_default("rank", Type::U16, Value::UInt(7));
    let table = db.create_table("all types", schema).unwrap();
    let doubles =
        [0.1, -0.0, f64::MIN_POSITIVE / 2.0, f64::MAX, 1e21, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for (n, double) in (0u64..).zip(doubles) {
        let key = [&b"key\xff\0"[..], &n.to_be_bytes()].concat();
        let single = f64::from(0.1f32 * n as f32);
        table
            .put(
                &key,
                &row! { flag: n % 2 == 0, small: -128, int: i64::MIN + n as i64, uint: u64::MAX - n, single: single,
                double: double, at: Value::Timestamp(-1 - n as i64), raw: &[0xff, n as u8],
                id: &[n as u8, 0x80, 0], text: "a \"quoted\" \u{1F600} line\nand\0more" },
            )
            .unwrap();
    }
    table.put(b"bare", &row! { flag: true }).unwrap();
    table.put_expiring(b"fades", &row! { text: "soon" }, Expiry::at_unix_ms(FAR_MS)).unwrap();
    table.put(b"loses one", &row! { text: "kept", raw: b"lost" }).unwrap();
    table.expire_fields(b"loses one", &["raw"], Expiry::at_unix_ms(FAR_MS + 1)).unwrap();
    table.put_expiring(b"gone", &row! { text: "x" }, Expiry::at_unix_ms(1)).unwrap();
}

type Fields = Vec<(String, OwnedValue)>;
type Row = (Vec<u8>, Option<u64>, Fields, Option<u64>);

/// Key, expiry, fields, expiry of the field "raw": of all rows.
fn rows(db: &Db, table: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let scan = db.table(table).unwrap().scan();
    scan.for_each(|key, row| {
        let mut fields = Fields::new();
        row.for_each(|name, value| fields.push((name.to_owned(), value.to_owned())))?;
        rows.push((key.to_vec(), row.expires_at_ms(), fields, row.field_expires_at_ms("raw")?));
        Ok(true)
    })
    .unwrap();
    rows
}

/// Equal to the bit, a NaN to a NaN.
fn assert_same(left: &Db, right: &Db, right_table: &str) {
    let (left, right) = (rows(left, "all types"), rows(right, right_table));
    assert_eq!(left.len(), right.len());
    for (a, b) in left.iter().zip(&right) {
        assert_eq!((&a.0, a.1, a.3), (&b.0, b.1, b.3));
        assert_eq!(a.2.len(), b.2.len());
        for ((name, x), (_, y)) in a.2.iter().zip(&b.2) {
            match (x, y) {
                (OwnedValue::Float(x), OwnedValue::Float(y)) => {
                    assert!(x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan(), "{name}: {x} and {y}");
                }
                _ => assert_eq!(x, y, "{name}"),
            }
        }
    }
}

#[test]
fn every_value_comes_back_as_it_was() {
    let scratch = TempDir::new();
    let [from, to, file] = ["from", "to", "rows.jsonl"].map(|name| scratch.path().join(name));
    let db = Db::open(&from).unwrap();
    fill(&db);
    db.close().unwrap();
    let export = ["export", text(&from), "--table", "all types", "-o", text(&file), "--quiet"];
    let (done, _, said) = run(&export, None);
    assert!(done && said.contains("exported 11 rows"), "{said}");
    let (done, _, said) = run(&export, None);
    assert!(!done && said.contains("exists"), "a file is not written over: {said}");
    let (done, lines, _) = run(&["export", text(&from), "--table", "all types"], None);
    assert!(done && lines == std::fs::read_to_string(&file).unwrap());
    // Twice: the second time changes nothing.
    for _ in 0..2 {
        let (done, said, error) = run(&["import", text(&to), text(&file), "--quiet"], None);
        assert!(done && said.contains("imported 11 rows into all types"), "{said} {error}");
    }
    let (done, said, error) = run(&["import", text(&to), "--table", "other", "--quiet"], Some(&lines));
    assert!(done && said.contains("into other"), "{said} {error}");
    let (from, to) = (Db::open(&from).unwrap(), Db::open(&to).unwrap());
    assert_same(&from, &to, "all types");
    assert_same(&from, &to, "other");
    assert_eq!(*from.table("all types").unwrap().schema(), *to.table("other").unwrap().schema());
}

#[test]
fn open_tables_and_hand_written_lines_are_read() {
    let scratch = TempDir::new();
    let dir = scratch.path().join("store");
    let lines = concat!(
        "{\"hedgerow\":1,\"table\":\"t\",\"open\":true,\"fields\":[]}\n\n",
        "{\"key\":\"a\",\"fields\":{\"colour\":\"red\",\"size\":{\"hex\":\"00fF\"}}}\n",
        "{\"key\":{\"hex\":\"ff\"}}"
    );
    let (done, said, error) = run(&["import", text(&dir)], Some(lines));
    assert!(done && said.contains("imported 2 rows") && error.contains("no end line"), "{said} {error}");
    let db = Db::open(&dir).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(table.get(b"a").unwrap().unwrap().get("size").unwrap(), Value::Bytes(&[0, 0xff]));
    assert!(table.exists(&[0xff]).unwrap());
}

#[test]
fn errors_name_the_line() {
    let scratch = TempDir::new();
    let dir = scratch.path().join("store");
    let schema =
        "{\"hedgerow\":1,\"table\":\"t\",\"fields\":[{\"name\":\"n\",\"type\":\"u8\",\"nullable\":true}]}\n";
    for (lines, expected) in [
        ("", "is empty"),
        ("{}", "line 1: no schema"),
        ("{\"hedgerow\":2}", "version 2"),
        (
            "{\"hedgerow\":1,\"table\":\"t\",\"fields\":[{\"name\":\"n\",\"type\":\"u9\"}]}",
            "line 1: field \"n\"",
        ),
    ] {
        let (done, _, said) = run(&["import", text(&dir)], Some(lines));
        assert!(!done && said.contains(expected), "{lines}: {said}");
    }
    for (line, expected) in [
        ("nonsense", "line 3: no JSON"),
        ("[1]", "line 3: no JSON object"),
        ("{\"fields\":{}}", "line 3: the row has no \"key\""),
        ("{\"key\":\"k\",\"fields\":{\"n\":-1}}", "line 3: field \"n\": -1 is no u8"),
        ("{\"key\":\"k\",\"fields\":{\"n\":1.5}}", "line 3: field \"n\": 1.5 is no u8"),
        ("{\"key\":\"k\",\"fields\":{\"n\":256}}", "lines 2 to "),
        ("{\"key\":\"k\",\"fields\":{\"unknown\":\"x\"}}", "lines 2 to "),
        ("{\"key\":\"\"}", "lines 2 to "),
        ("{\"key\":{\"hex\":\"0\"}}", "line 3: {\"hex\":\"0\"} is neither"),
        ("{\"key\":\"k\",\"field\":{}}", "line 3: \"field\" is not part of a row"),
        ("{\"end\":true,\"rows\":5}", "says 5 rows; there were 1"),
        ("{\"end\":true,\"rows\":1}\n{\"key\":\"k\"}", "line 4: there is more"),
    ] {
        let lines = format!("{schema}{{\"key\":\"first\",\"fields\":{{\"n\":1}}}}\n{line}\n");
        let (done, _, said) = run(&["import", text(&dir)], Some(&lines));
        assert!(!done && said.contains(expected), "{line}: {said}");
    }
    let other = "{\"hedgerow\":1,\"table\":\"t\",\"fields\":[{\"name\":\"n\",\"type\":\"i64\"}]}\n";
    let (done, _, said) = run(&["import", text(&dir)], Some(other));
    assert!(!done && said.contains("exists with another schema"), "{said}");
    let (done, _, said) = run(&["export", text(&dir), "--table", "none"], None);
    assert!(!done && said.contains("there are: t"), "{said}");
}

/// Sorted tables that are not in the store's own directory are found where the command line says.
#[test]
fn a_store_with_its_sorted_tables_elsewhere_is_exported_and_served() {
    let scratch = TempDir::new();
    let [dir, capacity, to, far] = ["store", "large", "to", "far"].map(|name| scratch.path().join(name));
    let db = Db::open_with(&dir, Options::new().capacity(&capacity)).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    table.load(|loader| (0..500u64).try_for_each(|n| loader.push(&n, &row! { n: n }))).unwrap();
    table.put(&7u64, &row! { n: 1_007u64 }).unwrap();
    drop(table);
    db.close().unwrap();
    let export = ["export", text(&dir), "--table", "t"];
    let (done, _, said) = run(&export, None);
    assert!(!done && said.contains("sorted tables"), "{said}");
    let (done, lines, said) = run(&[&export[..], &["--capacity", text(&capacity)]].concat(), None);
    assert!(done && said.contains("exported 500 rows"), "{said}");
    assert_eq!(lines.lines().count(), 502, "a schema, the rows, the end");
    let elsewhere = ["--capacity", text(&capacity)];
    let (done, said, error) = run(&[&["check", text(&dir), "--quiet"][..], &elsewhere].concat(), None);
    assert!(done && said.contains("500 rows") && said.contains("1 sorted tables"), "{said} {error}");
    let (done, _, error) = run(&["check", text(&dir), "--quiet"], None);
    assert!(!done && error.contains("sorted tables"), "{error}");
    let (done, said, error) = run(&[&["inspect", text(&dir)][..], &elsewhere].concat(), None);
    assert!(done && said.contains("sorted tables: 1"), "{said} {error}");
    let mut lines_of = said.lines().skip_while(|line| !line.contains(".sst"));
    assert!(lines_of.next().is_some_and(|line| line.ends_with(r" 2/\x14 to 2/\x16\x01\xf3")), "{said}");
    assert!(
        lines_of.next().is_some_and(|line| line.starts_with("      t ") && line.contains(" 500 ")),
        "{said}"
    );
    let rows = ["inspect", "rows", text(&dir), "--table", "t"];
    let (done, said, error) = run(&[&rows[..], &elsewhere].concat(), None);
    assert!(done && said.contains("1007") && said.matches("  n ").count() == 500, "{said} {error}");
    let import = ["import", text(&to), "--capacity", text(&far), "--quiet"];
    let (done, said, error) = run(&import, Some(&lines));
    assert!(done && said.contains("imported 500 rows"), "{said} {error}");
    assert!(!far.exists(), "nothing is in sorted tables, so there is no directory");
    let to = Db::open(&to).unwrap();
    assert_eq!(to.table("t").unwrap().get(&7u64).unwrap().unwrap().get_as::<u64>("n").unwrap(), 1_007);
    let server = crate::client::Server::start_on(
        &dir,
        &["--capacity", text(&capacity), "--capacity-bytes-max", "1gb", "--compression", "none"],
    );
    assert_eq!(server.client().run("PING"), "PONG");
    server.stop();
}

/// What comes in order is loaded; what does not leaves the table as it was, and names the line.
#[test]
fn rows_in_order_are_loaded_in_bulk() {
    let scratch = TempDir::new();
    let [from, to] = ["from", "to"].map(|name| scratch.path().join(name));
    let db = Db::open(&from).unwrap();
    let table = db.create_table("t", Schema::new().field("n", Type::U64)).unwrap();
    (0..500u64).for_each(|n| table.put(&n.to_be_bytes(), &row! { n: n }).unwrap());
    let far = hedgerow::Expiry::at_unix_ms(4_000_000_000_000);
    table.put_expiring(&7u64.to_be_bytes(), &row! { n: 1_007u64 }, far).unwrap();
    drop(table);
    db.close().unwrap();
    let (done, lines, said) = run(&["export", text(&from), "--table", "t"], None);
    assert!(done, "{said}");
    let import = ["import", text(&to), "--sorted", "--quiet"];
    let mut swapped: Vec<&str> = lines.lines().collect();
    swapped.swap(100, 101);
    let (done, _, said) = run(&import, Some(&swapped.join("\n")));
    assert!(!done && said.contains("line 102: ") && said.contains("key"), "{said}");
    let short: Vec<&str> = lines.lines().filter(|line| !line.contains("\"n\":77")).collect();
    let (done, _, said) = run(&import, Some(&short.join("\n")));
    assert!(!done && said.contains("says 500 rows; there were"), "{said}");
    let (done, said, error) = run(&import, Some(&lines));
    assert!(done && said.contains("imported 500 rows into t"), "{said} {error}");
    let (done, _, said) = run(&import, Some(&lines));
    assert!(!done && said.contains("has rows"), "{said}");
    let (from, to) = (Db::open(&from).unwrap(), Db::open(&to).unwrap());
    let rows = |db: &Db| -> Vec<(Vec<u8>, Option<u64>, u64)> {
        let rows = db.table("t").unwrap().scan().map(Result::unwrap);
        rows.map(|row| (row.key().to_vec(), row.expires_at_ms(), row.get_as("n").unwrap())).collect()
    };
    assert_eq!(rows(&from), rows(&to));
    assert_eq!(to.metrics().sorted_tables.rows, 500, "and they take no room in the log");
}

#[test]
fn fields_that_expire_are_not_loaded_in_bulk() {
    let scratch = TempDir::new();
    let [from, to] = ["from", "to"].map(|name| scratch.path().join(name));
    let db = Db::open(&from).unwrap();
    fill(&db);
    db.close().unwrap();
    let (done, lines, said) = run(&["export", text(&from), "--table", "all types"], None);
    assert!(done, "{said}");
    let (done, _, said) = run(&["import", text(&to), "--sorted"], Some(&lines));
    assert!(!done && said.contains("line ") && said.contains("fields that expire"), "{said}");
    assert!(Db::open(&to).unwrap().table("all types").unwrap().is_empty());
}

/// What leads to them would mean fields of another hash where it is imported.
#[test]
fn a_hash_with_fields_elsewhere_is_refused() {
    let scratch = TempDir::new();
    let [from, to, file] = ["from", "to", "rows.jsonl"].map(|name| scratch.path().join(name));
    let server = Server::start_on(&from, &[]);
    let mut client = server.client();
    client.script(&[("HSET users:1 name Ada", "1"), ("HSET users:2 name Eve", "1")]);
    assert_eq!(client.run_words(&[b"HSET", b"users:2", b"\xff", b"secret"]), "1");
    drop(client);
    server.stop();
    let (ok, _, why) = run(&["export", text(&from), "--table", "users", "-o", text(&file)], None);
    assert!(
        !ok && why.contains("after 1 rows") && why.contains("row 2 is a hash with 1 fields more"),
        "{why}"
    );
    assert!(!file.exists(), "half an export is left");
    std::fs::write(&file, "somebody's").unwrap();
    let (ok, _, why) = run(&["export", text(&from), "--table", "users", "-o", text(&file)], None);
    assert!(!ok && why.contains("can not be written"), "{why}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "somebody's");
    // Nor is what an older build exported.
    let line = r#"{"key":"2","fields":{"name":"Eve","@more":{"hex":"0000000000000001010000000000000000"}}}"#;
    let schema = r#"{"hedgerow":1,"table":"users","open":true,"fields":[{"name":"name","type":"bytes","nullable":true},{"name":"@more","type":"bytes","nullable":true}]}"#;
    let lines = format!("{schema}\n{line}\n");
    let (ok, _, why) = run(&["import", text(&to)], Some(&lines));
    assert!(!ok && why.contains("line 2") && why.contains("\"@more\" leads to fields of the hash"), "{why}");
    // Those that it had once are none.
    let lines = lines.replace("0000000000000001010000000000000000", "0000000000000001000000000000000000");
    let (ok, out, why) = run(&["import", text(&to)], Some(&lines));
    assert!(ok && out.contains("imported 1 rows"), "{why}");
    let db = Db::open(&to).unwrap();
    let row = db.table("users").unwrap().get(b"2").unwrap().unwrap();
    assert!(row.get("@more").unwrap().is_null());
}
