//! Looks that do not wait, and many at a time: the answers of those that do, whatever is in memory and whatever fails.

use super::*;
use crate::sst::format::EntryKind;

/// Caches that keep all, and nothing.
const CACHE_BYTES: [u64; 2] = [16 << 20, 1];

fn on_a_cold_disk() -> (CrashSim, CapacityTier) {
    let sim = sim();
    sim.files_at_hand(false);
    let tier = CapacityTier::simulated(&sim);
    (sim, tier)
}

/// A file on a disk of which nothing is in memory, opened with a cache of so many bytes.
fn cold(records: &Records, cache_bytes: u64) -> (CrashSim, Sst) {
    let (sim, tier) = on_a_cold_disk();
    write(&tier, records, EACH[0]).unwrap();
    let sst = Sst::open(&tier, ID, &BlockCache::new(cache_bytes)).unwrap();
    (sim, sst)
}

fn refuse_reads(sim: &CrashSim, after: u64) {
    sim.fail_file_calls(FileCall::Read, Fault { after, sticky: true, refusal: Refusal::Io });
}

fn found(sst: &Sst, table: u32, key: &[u8], reads: &mut BlockReads) -> Option<Model> {
    match sst.look(&SstKey::new(table, key), reads).unwrap() {
        SstLook::Found(record) => Some(model_of(&record).1),
        SstLook::Absent => None,
        SstLook::Lacking => panic!("what was read is held"),
    }
}

#[test]
fn what_a_look_lacks_another_thread_brings() {
    let records = far_apart(700);
    for cache_bytes in CACHE_BYTES {
        let (_sim, sst) = cold(&records, cache_bytes);
        let mut put_off = 0;
        for ((table, key), model) in &records {
            let mut reads = BlockReads::at_hand();
            let looked = sst.look(&SstKey::new(*table, key), &mut reads).unwrap();
            if let SstLook::Lacking = looked {
                put_off += 1;
                assert!(reads.is_wanting());
                std::thread::scope(|scope| scope.spawn(|| reads.run()).join().unwrap());
            }
            assert!(!reads.is_wanting());
            assert_eq!(found(&sst, *table, key, &mut reads).as_ref(), Some(model));
            assert!(!reads.is_wanting(), "the second time it lacks nothing");
            let absent = [key.as_slice(), b"\0"].concat();
            if let SstLook::Found(_) = sst.look(&SstKey::new(*table, &absent), &mut reads).unwrap() {
                panic!("nobody wrote it")
            }
        }
        let expected = if cache_bytes == 1 { records.len()..=records.len() } else { 20..=records.len() / 2 };
        assert!(expected.contains(&put_off), "{put_off} of {} with {cache_bytes}", records.len());
    }
}

#[test]
fn what_the_page_cache_has_is_taken_by_who_must_not_wait() {
    let records = far_apart(300);
    for cache_bytes in CACHE_BYTES {
        let (sim, sst) = cold(&records, cache_bytes);
        sim.files_at_hand(true);
        let mut reads = BlockReads::at_hand();
        for ((table, key), model) in &records {
            assert_eq!(found(&sst, *table, key, &mut reads).as_ref(), Some(model));
        }
        sim.fail_file_calls(FileCall::Read, Fault { after: 0, sticky: true, refusal: Refusal::Io });
        let ((table, key), _) = records.first_key_value().unwrap();
        let again = sst.look(&SstKey::new(*table, key), &mut BlockReads::at_hand());
        assert_eq!(again.is_ok(), cache_bytes > 1, "it stays in the block cache");
    }
    let (sim, sst) = cold(&records, 16 << 20);
    sim.files_at_hand(true);
    let ((table, key), _) = records.first_key_value().unwrap();
    let looked = sst.look(&SstKey::new(*table, key), &mut BlockReads::new()).unwrap();
    assert!(matches!(looked, SstLook::Lacking), "{looked:?}: who will wait reads all together");
}

#[test]
fn many_looks_are_read_for_together_and_each_block_once() {
    let records = far_apart(700);
    for cache_bytes in CACHE_BYTES {
        let (sim, sst) = cold(&records, cache_bytes);
        let mut reads = BlockReads::new();
        for _ in 0..2 {
            for (table, key) in records.keys() {
                let looked = sst.look(&SstKey::new(*table, key), &mut reads).unwrap();
                assert!(matches!(looked, SstLook::Lacking));
            }
        }
        let blocks = sst.index_blocks() as u64 + {
            let all = (0..sst.index_blocks())
                .map(|n| sst.read_block(sst.index_pages(n), EntryKind::Bound).unwrap().len() as u64);
            all.sum::<u64>()
        };
        refuse_reads(&sim, blocks);
        reads.run();
        for ((table, key), model) in &records {
            assert_eq!(found(&sst, *table, key, &mut reads).as_ref(), Some(model));
        }
        // One less does not do.
        sim.clear_faults();
        let again = open_again(&sim);
        let mut reads = BlockReads::new();
        records.keys().for_each(|(table, key)| again.want(&composite_key(*table, key), &mut reads));
        refuse_reads(&sim, blocks - 1);
        reads.run();
        let looks = records.keys().map(|(table, key)| again.look(&SstKey::new(*table, key), &mut reads));
        let failed = looks.filter(|look| look.as_ref().is_err_and(|error| error.kind() == ErrorKind::Io));
        assert!((1..40).contains(&failed.count()), "those in one block");
    }
}

/// As a run: each block is read once, by whomever it is wanted; and what cannot be read is an error of the looks that need it.
#[test]
fn looks_are_made_while_what_others_lack_is_read() {
    let records = far_apart(700);
    for cache_bytes in CACHE_BYTES {
        for after in [None, Some(0), Some(1), Some(40)] {
            let (sim, sst) = cold(&records, cache_bytes);
            let index_blocks = (0..sst.index_blocks())
                .map(|n| sst.read_block(sst.index_pages(n), EntryKind::Bound).unwrap().len() as u64);
            let blocks = sst.index_blocks() as u64 + index_blocks.sum::<u64>();
            match after {
                None => refuse_reads(&sim, blocks),
                Some(after) => {
                    let fault = Fault { after, sticky: false, refusal: Refusal::Io };
                    sim.fail_file_calls(FileCall::Read, fault);
                }
            }
            let (mut reads, mut keys, mut looked) =
                (BlockReads::new(), records.keys().chain(records.keys()), 0);
            reads.run_beside(|reads: &mut BlockReads| {
                let Some((table, key)) = keys.next() else { return false };
                looked += 1;
                let _ = sst.look(&SstKey::new(*table, key), reads);
                true
            });
            assert_eq!(looked, 2 * records.len());
            refuse_reads(&sim, 0);
            let mut failed = 0;
            for ((table, key), model) in &records {
                match sst.look(&SstKey::new(*table, key), &mut reads) {
                    Ok(SstLook::Found(record)) => assert_eq!(model_of(&record).1, *model),
                    Ok(other) => panic!("{other:?}: what was read is held"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                        failed += 1;
                    }
                }
            }
            assert_eq!(failed > 0, after.is_some(), "{failed} failed");
            assert!(failed < records.len());
        }
    }
}

fn open_again(sim: &CrashSim) -> Sst {
    open(&CapacityTier::simulated(sim)).unwrap()
}

/// Each read of all can fail: that is an error of whoever needs the block, and of nobody else, and the next who comes reads it.
#[test]
fn an_error_is_that_of_the_looks_which_need_the_block() {
    let records = far_apart(120);
    for after in 0.. {
        let (sim, sst) = cold(&records, 1);
        let mut reads = BlockReads::new();
        records.keys().for_each(|(table, key)| sst.want(&composite_key(*table, key), &mut reads));
        sim.fail_file_calls(FileCall::Read, Fault { after, sticky: false, refusal: Refusal::Io });
        reads.run();
        sim.clear_faults();
        let mut failed = 0;
        for ((table, key), model) in &records {
            match sst.look(&SstKey::new(*table, key), &mut reads) {
                Ok(SstLook::Found(record)) => assert_eq!(model_of(&record).1, *model),
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                    failed += 1;
                    let mut later = BlockReads::new();
                    sst.want(&composite_key(*table, key), &mut later);
                    later.run();
                    assert_eq!(found(&sst, *table, key, &mut later).as_ref(), Some(model));
                }
            }
        }
        assert!(failed < records.len(), "a failure of one read at {after} spoils all");
        if failed == 0 {
            assert!(after > 5, "{after} reads");
            break;
        }
    }
}

#[test]
fn a_damaged_block_is_damage_to_its_keys_alone() {
    let records = far_apart(120);
    let (sim, sst) = cold(&records, 16 << 20);
    sim.corrupt_file(NAME, 3 * 4096 + 100, 1);
    let mut reads = BlockReads::new();
    records.keys().for_each(|(table, key)| sst.want(&composite_key(*table, key), &mut reads));
    reads.run();
    let damaged = records.keys().filter(|(table, key)| {
        let looked = sst.look(&SstKey::new(*table, key), &mut reads);
        looked
            .is_err_and(|error| error.kind() == ErrorKind::Corrupted && error.to_string().contains("page 3"))
    });
    assert!((1..20).contains(&damaged.count()));
}

/// Two stores have files of one number.
#[test]
fn blocks_of_one_store_are_not_those_of_another() {
    let (a, b) = (far_apart(10), records(5, 10, 100));
    let (_, a_sst) = cold(&a, 1);
    let tier = CapacityTier::simulated(&sim());
    let id = SstId { store: 1, ..ID };
    let mut writer = SstWriter::create(&tier, id, EACH[0]).unwrap();
    push_all(&mut writer, &b).unwrap();
    let b_sst = writer.finish(&BlockCache::new(1)).unwrap();
    let mut reads = BlockReads::new();
    for (sst, records) in [(&a_sst, &a), (&b_sst, &b)] {
        records.keys().for_each(|(table, key)| sst.want(&composite_key(*table, key), &mut reads));
    }
    reads.run();
    for (sst, records) in [(&a_sst, &a), (&b_sst, &b)] {
        for ((table, key), model) in records {
            assert_eq!(found(sst, *table, key, &mut reads).as_ref(), Some(model));
        }
    }
}

#[test]
fn a_cursor_finds_what_was_read_for_it() {
    let records = far_apart(700);
    let (sim, sst) = cold(&records, 16 << 20);
    let keys: Vec<Vec<u8>> =
        records.keys().step_by(90).map(|(table, key)| composite_key(*table, key)).collect();
    let mut reads = BlockReads::new();
    // A beginning is before all that begin so.
    sst.want(&[0, 0], &mut reads);
    keys.iter().for_each(|key| sst.want(key, &mut reads));
    reads.run();
    refuse_reads(&sim, 0);
    for key in &keys {
        let (mut cursor, blocks) = (SstCursor::new(&sst), &mut WalkBlocks::Disk { keeps: true });
        cursor.seek(key, blocks).unwrap();
        let record = cursor.record().unwrap();
        assert_eq!(composite_key(record.table(), record.key()), *key);
    }
    let (mut cursor, blocks) = (SstCursor::new(&sst), &mut WalkBlocks::Disk { keeps: true });
    cursor.seek(&[0, 0], blocks).unwrap();
    assert!(cursor.record().is_some());
}

/// A walk asks ahead from the first block on that is not in memory, and not before; and keeps what it reads only if it is to.
#[test]
fn a_walk_over_what_is_in_memory_waits_for_nothing() {
    let (records, cache) = (far_apart(700), BlockCache::new(16 << 20));
    let (sim, tier) = on_a_cold_disk();
    write(&tier, &records, EACH[0]).unwrap();
    let sst = Sst::open(&tier, ID, &cache).unwrap();
    let waits_of_a_walk = |keeps: bool| {
        let before = sim.file_waits();
        assert_eq!(walked(&sst, keeps).unwrap(), records);
        sim.file_waits() - before
    };
    let blocks = waits_of_a_walk(false);
    sim.files_at_hand(true);
    let index_blocks = waits_of_a_walk(false);
    assert_eq!(index_blocks, sst.index_blocks() as u64, "of {blocks} blocks");
    assert!(blocks > 4 * index_blocks && cache.bytes() == 0, "what is read once is not kept");
    waits_of_a_walk(true);
    assert!(cache.bytes() > 0 && waits_of_a_walk(true) == 0);
    // What is gone from memory in the middle of a walk is waited for.
    let (mut cursor, blocks) = (SstCursor::new(&sst), &mut WalkBlocks::Disk { keeps: false });
    cursor.seek(&[], blocks).unwrap();
    sim.files_at_hand(false);
    let mut count = 0;
    while cursor.record().is_some() {
        cursor.advance(blocks).unwrap();
        count += 1;
    }
    assert_eq!(count, records.len());
}
