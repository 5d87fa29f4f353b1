//! Both mappings, over a map and over Hedgerow itself.

use std::collections::BTreeMap;

use hedgerow::Options;
use hedgerow_device::Random;

use super::*;
use crate::bench::row::{RowSource, key_of};
use crate::bench::store::flat::FlatHedgerow;
use crate::store_url::Medium;

const SHAPE: RowShape = RowShape { fields: 10, field_bytes: 100 };

#[derive(Default)]
struct Map(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

impl FlatStore for Map {
    type Session<'a> = &'a Map;
    fn session(&self) -> Result<&Map, String> {
        Ok(self)
    }
    fn settle(&self) -> Result<(), String> {
        Ok(())
    }
    fn directory(&self) -> &Path {
        Path::new("/nonexistent")
    }
    fn values(&self) -> Result<u64, String> {
        Ok(self.0.lock().unwrap().len() as u64)
    }
}

impl FlatSession for &Map {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.0.lock().unwrap().insert(key.into(), value.into());
        Ok(())
    }
    fn put_all<'v>(&mut self, cells: impl Iterator<Item = (Cell, &'v [u8])>) -> Result<(), String> {
        self.0.lock().unwrap().extend(cells.map(|(cell, value)| (cell.to_vec(), value.to_vec())));
        Ok(())
    }
    fn get(&mut self, key: &[u8], visit: impl FnOnce(&[u8])) -> Result<(), String> {
        if let Some(value) = self.0.lock().unwrap().get(key) {
            visit(value);
        }
        Ok(())
    }
    fn change(&mut self, key: &[u8], change: impl FnOnce(&mut [u8])) -> Result<(), String> {
        if let Some(value) = self.0.lock().unwrap().get_mut(key) {
            change(value);
        }
        Ok(())
    }
    fn walk(&mut self, from: &[u8], mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), String> {
        let map = self.0.lock().unwrap();
        map.range(from.to_vec()..).all(|(key, value)| visit(key, value));
        Ok(())
    }
}

/// With the number of values that 300 rows of ten fields become.
const MAPPINGS: [(Mapping, u64); 3] =
    [(Mapping::Consolidated, 300), (Mapping::Scattered, 3000), (Mapping::Hybrid, 1200)];

/// 300 rows in, each operation once, and everything read back.
fn gives_back_what_was_written<S: FlatStore>(store: S, mapping: Mapping, values: u64) -> Mapped<S> {
    let store = Mapped::new(store, SHAPE, mapping).unwrap();
    let mut session = store.session().unwrap();
    let (mut source, mut random) = (RowSource::new(SHAPE, 1), Random::from_seed(1));
    for record in 0..300 {
        let key = key_of(record);
        session.insert(&key, source.row(&key, &mut random)).unwrap();
    }
    assert_eq!((store.store.values().unwrap(), store.rows().unwrap()), (values, 300));
    let key = key_of(7);
    let value = source.value(&key, 3, &mut random).to_vec();
    session.update(&key, 3, &value).unwrap();
    let mut sink = RowSink::new(SHAPE);
    session.read(&key, Columns::Some(&[3]), &mut sink).unwrap();
    sink.check_read(&key, 1).unwrap();
    assert_eq!(sink.last_row()[300..400], value);
    let value = source.value(&key, 9, &mut random).to_vec();
    sink.clear();
    session.read_modify_write(&key, 9, &value, &mut sink).unwrap();
    sink.check_read(&key, 10).unwrap();
    let several = source.values(&key, &[8, 0], &mut random).to_vec();
    session.update_fields(&key, &[8, 0], &several).unwrap();
    sink.clear();
    session.read(&key, Columns::All, &mut sink).unwrap();
    sink.check_read(&key, 10).unwrap();
    assert_eq!(sink.last_row()[900..], value);
    assert_eq!((&sink.last_row()[800..900], &sink.last_row()[..100]), several.split_at(100));
    let first = (0..300).map(key_of).min().unwrap();
    for (columns, count) in [(Columns::All, 10), (Columns::Some(&[4]), 1)] {
        sink.clear();
        session.scan(&first, 50, columns, &mut sink).unwrap();
        sink.check_scan(&first, 50, count, 300).unwrap();
    }
    sink.clear();
    session.read(&key_of(1000), Columns::All, &mut sink).unwrap();
    assert_eq!(sink.rows(), 0);
    drop(session);
    store
}

#[test]
fn all_mappings_give_back_what_was_written() {
    for (mapping, values) in MAPPINGS {
        gives_back_what_was_written(Map::default(), mapping, values);
    }
}

#[test]
fn all_mappings_run_over_hedgerow_on_both_media() {
    let base = std::env::temp_dir().join(format!("hedgerow-flat-{}", std::process::id()));
    for medium in [Medium::File, Medium::Emulated] {
        for (mapping, values) in MAPPINGS {
            let directory = base.join(format!("{}-{mapping:?}", medium.name()));
            let options = Options::new().segment_bytes(1 << 20);
            let store = FlatHedgerow::open(medium, &directory, options).unwrap();
            let mut store = gives_back_what_was_written(store, mapping, values);
            assert!(store.account().unwrap().log_bytes > 300 * 1000);
            store.clear().unwrap();
            assert_eq!(store.rows().unwrap(), 0);
        }
    }
    std::fs::remove_dir_all(&base).unwrap();
}

#[test]
fn rows_beyond_the_offsets_are_refused() {
    let shape = RowShape::new(64, 1024).unwrap();
    let refused = Mapped::new(Map::default(), shape, Mapping::Consolidated).err().unwrap();
    assert!(refused.contains("65535"), "{refused}");
}
