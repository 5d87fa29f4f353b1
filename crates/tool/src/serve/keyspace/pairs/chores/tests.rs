//! Many tables: what is asked of the store for each, and in how many steps.

use std::sync::Arc;

use hedgerow_device::Clock;
use hedgerow_row::backend::memory::MemoryBackend;
use hedgerow_row::pairs::Edit;
use hedgerow_sim::FailingBackend;

use super::*;
use crate::serve::keyspace::cursor::KeyWalk;
use crate::serve::keyspace::pairs::scan::PairSweep;

const TABLES: usize = 3_000;

/// A store with so many tables, each of one row, whose commands are counted.
fn store() -> (PairDb, FailingBackend, Clock) {
    let clock = Clock::manual(1_000);
    let backend = FailingBackend::new(Arc::new(MemoryBackend::default()), |_| None);
    let db = PairDb::open_at(Arc::new(backend.clone()), clock.clone());
    for table in 0..TABLES {
        let name = format!("t{table}");
        db.create_table(&name, Schema::open().nullable("@string", Type::Bytes)).unwrap();
        let fields = [("@string", hedgerow::Value::Bytes(b"v"))];
        let expires_at_ms = (table % 2 == 1).then_some(2_000);
        db.transact(|transaction| transaction.edit(&name, b"k", &Edit::Put(&fields, expires_at_ms))).unwrap();
    }
    (db, backend, clock)
}

/// Does a chore; says in how many steps, and how many commands the longest of them took.
fn done(chore: Chore, db: &PairDb, backend: &FailingBackend) -> (Done, usize, u64) {
    let (mut work, mut steps, mut longest) = (Work::new(chore), 0, 0);
    loop {
        let before = backend.commands();
        let done = work.step(db);
        (steps, longest) = (steps + 1, longest.max(backend.commands() - before));
        if let Some(done) = done {
            return (done.unwrap(), steps, longest);
        }
    }
}

#[test]
fn each_table_takes_few_commands_and_each_step_few_tables() {
    let (db, backend, _) = store();
    let limit = |per_table: usize| (per_table * TABLES) as u64;
    let before = backend.commands();
    let (counted, steps, longest) = done(Chore::Count, &db, &backend);
    assert!(matches!(&counted, Done::Counted(counts) if counts[0] == TABLES as u64), "{counted:?}");
    assert!(steps >= TABLES / 64 && longest <= 300, "{steps} steps, {longest} commands in one");
    assert!(backend.commands() - before < limit(4));
    let (told, _, longest) = done(Chore::Summaries(0), &db, &backend);
    assert!(matches!(&told, Done::Summaries(tables) if tables.len() == TABLES));
    assert!(longest <= 300, "{longest}");
    let (rows, bytes) = (usize::MAX, usize::MAX);
    let scan = KeyScan { space: 0, from: KeyWalk::START, rows, bytes, pattern: None, kind: None };
    let (scanned, _, longest) = done(Chore::Scan(scan), &db, &backend);
    assert!(matches!(&scanned, Done::Scanned(keys) if keys.keys.len() == TABLES && keys.next.is_none()));
    assert!(longest <= 10, "{longest}");
    let before = backend.commands();
    let (_, steps, longest) = done(Chore::Clear(0..16), &db, &backend);
    assert!(steps >= TABLES && longest <= 10, "{steps} steps, {longest} commands in one");
    assert!(backend.commands() - before < limit(8));
    assert!(db.table_names().unwrap().is_empty());
}

#[test]
fn a_round_of_the_sweep_looks_at_each_table_once() {
    let (db, backend, clock) = store();
    clock.advance_ms(1_000);
    let (before, mut sweep, mut steps) = (backend.commands(), PairSweep::default(), 0);
    while sweep.step(&db).unwrap() {
        steps += 1;
    }
    let commands = backend.commands() - before;
    assert!(commands < 6 * TABLES as u64, "{commands} commands for {TABLES} tables in {steps} steps");
    let (counted, ..) = done(Chore::Count, &db, &backend);
    assert!(matches!(&counted, Done::Counted(counts) if counts[0] == TABLES as u64 / 2), "{counted:?}");
    assert!(sweep.step(&db).unwrap(), "the next round begins");
}
