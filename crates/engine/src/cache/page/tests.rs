//! Pages against a plain set; marks.

use std::collections::HashMap;

use hedgerow_device::Random;

use super::*;

#[test]
fn slots_are_large_enough_and_waste_little() {
    for bytes in (1..=SLOT_BYTES_MAX).step_by(if cfg!(miri) { 331 } else { 1 }) {
        let slot = slot_bytes(bytes).unwrap();
        assert!(slot >= bytes && slot.is_multiple_of(GRANULE_BYTES));
        assert!(slot - bytes < (bytes / 8).max(64), "{bytes} in {slot}");
    }
    assert_eq!(slot_bytes(SLOT_BYTES_MAX + 1), None);
    assert_eq!(slot_bytes(0), Some(64));
}

#[test]
fn bits_are_found() {
    assert_eq!(bits(0, 5).count(), 0);
    assert_eq!(bits(u64::MAX, 0).collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
    assert_eq!(bits(1 << 63 | 0b101, 64).collect::<Vec<_>>(), [64, 66, 127]);
}

/// No two rows overlap, rows of two tables or sizes share no page, and the counts are right at every moment.
#[test]
fn random_allocation_keeps_rows_apart() {
    let mut random = Random::from_seed(11);
    let mut pages = Pages::new(12);
    let mut live: Vec<(u64, u32, u64)> = Vec::new();
    let mut refused = 0;
    let (steps, wave) = if cfg!(miri) { (150, 50) } else { (60_000, 5_000) };
    for step in 0..steps {
        // Waves, so that pages fill and come free.
        if random.below(100) < if step / wave % 2 == 0 { 60 } else { 40 } {
            let (table, bytes) = (random.below(3) as u32, [100, 1_200, 9_000][random.below(3) as usize]);
            match pages.allocate(table, bytes) {
                Some(place) => live.push((place, table, bytes)),
                None => refused += 1,
            }
        } else if !live.is_empty() {
            let (place, ..) = live.swap_remove(random.below(live.len() as u64) as usize);
            let before = pages.rows();
            pages.leave(place);
            assert_eq!(pages.rows(), before - 1);
            pages.free(place);
        }
        assert_eq!(pages.rows(), live.len() as u64);
        if step % 500 == 0 {
            check(&pages, &live);
        }
    }
    assert!(cfg!(miri) || refused > 0, "the pool never ran dry");
    live.drain(..).for_each(|(place, ..)| remove(&mut pages, place));
    assert_eq!((pages.free_pages(), pages.usage()), (12, 0.0));
}

fn remove(pages: &mut Pages, place: u64) {
    pages.leave(place);
    pages.free(place);
}

#[test]
fn a_slot_whose_row_is_on_its_way_out_is_not_given_out() {
    let mut pages = Pages::new(1);
    let places: Vec<u64> = (0..4).map(|_| pages.allocate(1, SLOT_BYTES_MAX).unwrap()).collect();
    pages.leave(places[2]);
    pages.leave(places[2]);
    assert_eq!((pages.rows(), pages.usage()), (3, 0.75));
    assert_eq!(pages.rows_in(0), [places[0], places[1], places[3]]);
    assert_eq!(pages.allocate(1, SLOT_BYTES_MAX), None);
    pages.free(places[2]);
    assert_eq!(pages.allocate(1, SLOT_BYTES_MAX), Some(places[2]));
}

fn check(pages: &Pages, live: &[(u64, u32, u64)]) {
    let mut sorted = live.to_vec();
    sorted.sort_unstable();
    let mut owners: HashMap<u64, (u32, u64)> = HashMap::new();
    for pair in sorted.windows(2) {
        assert!(pair[0].0 + pair[0].2 <= pair[1].0, "{pair:?} overlap");
    }
    for &(place, table, bytes) in &sorted {
        let owner = *owners.entry(place / PAGE_BYTES).or_insert((table, bytes));
        assert_eq!(owner, (table, bytes), "the page of {place}");
    }
    let mut sampled: Vec<u64> =
        pages.tables().into_iter().flat_map(|t| pages.of_table(t)).flat_map(|p| pages.rows_in(p)).collect();
    sampled.sort_unstable();
    assert_eq!(sampled, sorted.iter().map(|row| row.0).collect::<Vec<_>>());
    assert_eq!(owners.len(), (pages.used_bytes() / PAGE_BYTES) as usize);
}

#[test]
fn occupancy_and_usage_are_shares() {
    let mut pages = Pages::new(4);
    let places: Vec<u64> = (0..4).map(|_| pages.allocate(1, SLOT_BYTES_MAX).unwrap()).collect();
    assert_eq!((pages.usage(), pages.occupancy(0)), (0.25, 1.0));
    remove(&mut pages, places[1]);
    assert_eq!(pages.occupancy(0), 0.75);
    assert_eq!(pages.allocate(1, SLOT_BYTES_MAX), Some(places[1]), "the slot that came free");
    assert_eq!(pages.allocate(1, SLOT_BYTES_MAX + 1), None);
}

#[test]
fn a_detached_table_takes_its_pages_along() {
    let mut pages = Pages::new(4);
    let kept = pages.allocate(1, 1_000).unwrap();
    let gone: Vec<u64> = (0..3).map(|i| pages.allocate(2, 1_000 * (i + 1)).unwrap()).collect();
    let detached = pages.detach(2);
    assert_eq!((detached.len(), pages.rows(), pages.free_pages()), (3, 1, 0));
    // A row that was retired before is freed late: nothing may come of it.
    remove(&mut pages, gone[0]);
    assert_eq!((pages.rows(), pages.free_pages()), (1, 0));
    detached.into_iter().for_each(|page| pages.give_back(page));
    assert_eq!(pages.free_pages(), 3);
    remove(&mut pages, kept);
    assert_eq!(pages.free_pages(), 4);
}

#[test]
fn a_spare_page_is_one_whose_rows_fit_elsewhere() {
    let mut pages = Pages::new(4);
    let places: Vec<u64> = (0..12).map(|_| pages.allocate(1, SLOT_BYTES_MAX).unwrap()).collect();
    assert_eq!(pages.spare(), None, "all are full");
    remove(&mut pages, places[0]);
    remove(&mut pages, places[5]);
    assert_eq!(pages.spare(), None, "two are free, no page has so few rows");
    remove(&mut pages, places[4]);
    remove(&mut pages, places[6]);
    assert_eq!(pages.spare(), Some(1), "its one row fits into the first page");
    pages.close(1);
    assert_eq!(pages.allocate(1, SLOT_BYTES_MAX), Some(places[0]));
}

#[test]
fn marks_are_taken_once() {
    const PAGES: u64 = if cfg!(miri) { 9 } else { 200 };
    let marks = Marks::new(PAGES as u32);
    let mut set: Vec<u64> = (0..PAGES).map(|page| page * PAGE_BYTES + page % 7 * GRANULE_BYTES).collect();
    set.iter().for_each(|&place| marks.set(place));
    let mut taken = Vec::new();
    marks.take(&mut taken);
    set.sort_unstable();
    taken.sort_unstable();
    assert_eq!(taken, set);
    marks.take(&mut taken);
    assert_eq!(taken.len(), set.len());
}
