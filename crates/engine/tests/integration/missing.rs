//! What is missing is missed: files cut short, zeroed or put together wrongly after all in them was persisted.

use std::path::Path;

use hedgerow::inspect::View;
use hedgerow::{Db, Durability, ErrorKind, Options, Schema, Value};
use hedgerow_sim::Scratch;

const SEGMENT: usize = 1 << 20;
const ROWS: u32 = 300;

fn options() -> Options {
    Options {
        segment_bytes: SEGMENT as u64,
        background: false,
        recovery_threads: 1,
        index_bytes_max: 16 << 20,
        durability: Durability::Process,
        ..Options::default()
    }
}

fn value(i: u32) -> Vec<u8> {
    (0..20_000 + i % 97).map(|n| (n + i) as u8).collect()
}

/// A copy of what a process killed now would leave of the store in `from`, its data file as `change` leaves it.
fn killed(name: &str, from: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Scratch {
    let scratch = Scratch::made(name);
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), scratch.join(file.file_name())).unwrap();
    }
    let mut bytes = std::fs::read(scratch.fast()).unwrap();
    change(&mut bytes);
    std::fs::write(scratch.fast(), bytes).unwrap();
    scratch
}

/// A store of some segments, persisted, and open.
fn saved(scratch: &Scratch) -> Db {
    let db = Db::open_with(&scratch.0, options()).unwrap();
    let flat = db.create_table("flat", Schema::flat()).unwrap();
    (0..ROWS).for_each(|i| flat.put(&i.to_be_bytes(), &[("value", Value::Bytes(&value(i)))]).unwrap());
    db.persist().unwrap();
    db
}

/// The store is refused, and `check` says why; or every row is there and right, and there is nothing to say.
fn is_refused(scratch: &Scratch) -> bool {
    let report = View::open(&scratch.0).and_then(|view| view.check(|_| ()));
    let told = report.map_or_else(
        |error| {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            true
        },
        |report| !report.problems.is_empty(),
    );
    match Db::open_with(&scratch.0, options()).and_then(|db| db.table("flat")) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
            assert!(told, "refused, but check found nothing: {error}");
            true
        }
        Ok(flat) => {
            for i in 0..ROWS {
                let row = flat.get(&i.to_be_bytes()).unwrap().unwrap_or_else(|| panic!("row {i} is gone"));
                assert_eq!(row.get("value").unwrap(), Value::Bytes(&value(i)));
            }
            told
        }
    }
}

#[test]
fn a_killed_store_cut_short_after_it_was_persisted() {
    let scratch = Scratch::new("cut");
    let db = saved(&scratch);
    let whole = std::fs::metadata(scratch.fast()).unwrap().len() as usize;
    let lengths =
        (1..whole / SEGMENT).map(|extent| extent * SEGMENT).chain([SEGMENT / 2, whole - 1, whole - 4096]);
    for length in lengths {
        let cut = killed("cut-copy", &scratch.0, |bytes| bytes.truncate(length));
        assert!(is_refused(&cut), "cut to {length} bytes of {whole}");
    }
    drop(db);
}

#[test]
fn pages_and_segments_zeroed_after_it_was_persisted() {
    let scratch = Scratch::new("zeros");
    let db = saved(&scratch);
    let whole = std::fs::read(scratch.fast()).unwrap();
    let used = |page: &usize| whole[*page..*page + 4096].iter().any(|&byte| byte != 0);
    let pages: Vec<usize> = (0..whole.len()).step_by(4096).filter(used).collect();
    let mut missed = 0;
    // Every page of headers, some in between, and the last ones, where the log ends.
    for &page in
        pages.iter().filter(|page| **page % SEGMENT == 0 || **page % 37 == 0).chain(&pages[pages.len() - 6..])
    {
        let zeroed = killed("zeros-copy", &scratch.0, |bytes| bytes[page..page + 4096].fill(0));
        missed += u32::from(is_refused(&zeroed));
    }
    assert!(missed > 10, "{missed}");
    for extent in 1..whole.len() / SEGMENT {
        let range = extent * SEGMENT..(extent + 1) * SEGMENT;
        let zeroed = killed("zeros-copy", &scratch.0, |bytes| bytes[range.clone()].fill(0));
        assert_eq!(is_refused(&zeroed), whole[range.start] != 0, "extent {extent}");
    }
    drop(db);
}

/// The same of a store that was closed in order.
#[test]
fn headers_zeroed_in_a_closed_store() {
    let scratch = Scratch::new("closed");
    saved(&scratch).close().unwrap();
    let whole = std::fs::read(scratch.fast()).unwrap();
    for extent in (1..whole.len() / SEGMENT).filter(|extent| whole[extent * SEGMENT] != 0) {
        let zeroed = killed("closed-copy", &scratch.0, |bytes| bytes[extent * SEGMENT..][..4096].fill(0));
        assert!(is_refused(&zeroed), "extent {extent}");
    }
}

#[test]
fn a_spoiled_catalog_has_a_copy() {
    const CATALOG: usize = 64 << 10;
    let scratch = Scratch::new("catalog");
    let db = saved(&scratch);
    for n in 0..3 {
        // Whichever area the catalog lies in, the other one has the copy.
        db.create_table(&format!("more {n}"), Schema::flat()).unwrap();
        db.persist().unwrap();
        for spoiled in [CATALOG + 9, CATALOG + (SEGMENT - CATALOG) / 2 + 9] {
            let copy = killed("catalog-copy", &scratch.0, |bytes| bytes[spoiled] ^= 0x20);
            is_refused(&copy);
            assert!(!is_refused(&copy), "opening has made it whole");
            assert_eq!(Db::open_with(&copy.0, options()).unwrap().table_names().len(), n + 2);
        }
    }
}

/// Records whose lengths divide a page begin at the same places in each: only their order, and their checksums, tell one page
/// from another.
#[test]
fn pages_in_each_others_places() {
    page_in_the_place_of_another(3);
}

/// The same where their checksums do not tell them apart.
#[test]
fn pages_in_each_others_places_in_an_older_store() {
    page_in_the_place_of_another(2);
}

fn page_in_the_place_of_another(format_version: u32) {
    let scratch = Scratch::new(&format!("swap-{format_version}"));
    let db = Db::open_with(&scratch.0, Options { format_version, ..options() }).unwrap();
    let rows = db.create_table("rows", Schema::flat()).unwrap();
    let put = |i: u32, n: u64, bytes: usize| {
        // The end of a value is that of all others: a record that two pages share fits with either second page.
        let mut value = vec![7; bytes];
        value[..8].copy_from_slice(&n.to_le_bytes());
        rows.put(&(i % 40).to_be_bytes(), &[("value", Value::Bytes(&value))]).unwrap();
    };
    // The first record says what a value of 400 bytes takes; then each takes 512.
    put(0, 0, 400);
    let log = std::fs::read(scratch.fast()).unwrap();
    let taken = u32::from_le_bytes(log[SEGMENT + 132..SEGMENT + 136].try_into().unwrap()) as usize;
    let write = |i: u32, n: u64| put(i, n, 400 + 512 - taken);
    (0..400).for_each(|i| write(i, u64::from(i)));
    db.persist().unwrap();
    let expected: Vec<_> = rows.scan().map(|row| row.unwrap()).collect();
    let whole = std::fs::read(scratch.fast()).unwrap();
    let pages: Vec<usize> = (SEGMENT..whole.len())
        .step_by(4096)
        .filter(|page| whole[*page..*page + 4096].iter().any(|b| *b != 0))
        .collect();
    let mut told = 0;
    for (at, &page) in pages.iter().enumerate().skip(1) {
        for other in
            [pages[at / 2], pages[pages.len() - 1 - at / 2]].into_iter().filter(|other| *other != page)
        {
            let source = whole[page..page + 4096].to_vec();
            let spoiled = killed(&format!("swap-copy-{format_version}"), &scratch.0, |bytes| {
                bytes[other..other + 4096].copy_from_slice(&source);
            });
            let found = Db::open_with(&spoiled.0, options())
                .and_then(|db| db.table("rows")?.scan().collect::<hedgerow::Result<Vec<_>>>());
            match found {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
                    told += 1;
                }
                Ok(found) => {
                    let same = |(a, b): (&hedgerow::Row, &hedgerow::Row)| {
                        a.key() == b.key() && a.fields().eq(b.fields())
                    };
                    assert!(
                        found.len() == expected.len() && found.iter().zip(&expected).all(same),
                        "page {page} at {other}"
                    );
                }
            }
        }
    }
    assert!(told > 10, "{told}");
}

#[test]
fn an_empty_or_zeroed_or_missing_file_is_no_new_store() {
    let scratch = Scratch::new("witness");
    saved(&scratch).close().unwrap();
    let changes: [fn(&mut Vec<u8>); 3] =
        [|bytes| bytes.clear(), |bytes| bytes.fill(0), |bytes| bytes.truncate(SEGMENT / 2)];
    for change in changes {
        let lost = killed("witness-copy", &scratch.0, change);
        assert!(is_refused(&lost));
        // And again: the first refusal has made nothing of it.
        assert!(is_refused(&lost));
    }
    let lost = killed("witness-copy", &scratch.0, |_| ());
    std::fs::remove_file(lost.fast()).unwrap();
    let error = Db::open_with(&lost.0, options()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupted, "{error}");
    assert!(!lost.fast().exists(), "an empty file was left behind");
    // Without the witness, as an older build left it: opened, and given one.
    let old = killed("witness-copy", &scratch.0, |_| ());
    std::fs::remove_file(old.0.join("fast.id")).unwrap();
    assert!(!is_refused(&old));
    assert!(old.0.join("fast.id").exists());
    // With nothing left there is nothing to miss.
    std::fs::remove_dir_all(&old.0).unwrap();
    Db::open_with(&old.0, options()).unwrap().create_table("new", Schema::flat()).unwrap();
}
