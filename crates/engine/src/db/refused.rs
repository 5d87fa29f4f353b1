//! What must not compile: rules that signatures keep, each broken once.
//!
//! Owns these few functions, which are compiled in the step `refused` of the checks only. Promises that each line marked `//~` is refused with
//! that error, and nothing else is. Must not hold what does compile.

/// What is made without asking whoever alone makes it.
#[cfg(refused = "names")]
mod names {
    use crate::index::{LogSlot, Slot};

    /// Only who asks where a slot leads gets a log slot.
    fn a_log_slot_of_any_slot(slot: Slot) -> LogSlot {
        LogSlot(slot) //~ E0423
    }
}

/// What is borrowed, or given away, and used after.
#[cfg(refused = "borrows")]
mod borrows {
    use std::sync::Arc;

    use hedgerow_device::{CrashSim, FastTier, TierBytes};

    use super::super::engine::{Engine, TableShared};
    use super::super::read::ReadView;
    use super::super::table::ReadGuard;
    use crate::cache::Cache;
    use crate::epoch::Epoch;
    use crate::log::format::RecordSpec;
    use crate::log::segment::SegmentKind;
    use crate::log::{Appender, Log, Reservation};
    use crate::space::Claim;
    use crate::{Db, Result, Table};

    /// Gc may have freed its segment.
    fn a_record_beyond_its_guard(log: &Log) -> Result<u64> {
        let guard = log.pin();
        let record = guard.view().record(0)?;
        drop(guard); //~ E0505
        Ok(record.sequence())
    }

    /// Its entry may have been given to another row.
    fn a_cached_row_beyond_its_guard(cache: &Cache, epoch: &Epoch) -> Result<usize> {
        let raw = cache.raw_record(0, &epoch.pin())?; //~ E0716
        Ok(raw.bytes.len())
    }

    fn a_row_beyond_its_view(engine: &Engine, table: &TableShared) -> Result<()> {
        let view = engine.read_view();
        let (slot, schema) = view.locate(table, b"key");
        let row = view.row_at((table, b"key"), &schema, slot)?;
        drop(view); //~ E0505
        drop(row);
        Ok(())
    }

    fn a_row_beyond_its_schema(view: &ReadView<'_>, table: &TableShared) -> Result<()> {
        let (slot, schema) = view.locate(table, b"key");
        let row = view.row_at((table, b"key"), &schema, slot)?;
        drop(schema); //~ E0505
        drop(row);
        Ok(())
    }

    /// What callers of the library could do wrong with what they looked up.
    fn a_handle_beyond_its_guard(db: &Db, table: &Table) -> Result<()> {
        let guard: ReadGuard<'_> = db.pin();
        let mut found = None;
        table.look_up(&guard, &[b"key"], |_, row| found = Some(row));
        drop(guard); //~ E0505
        found.map(|row| table.read_handle(b"key", row, |_| Ok(()))).transpose().map(drop)
    }

    /// Somebody may read it by then.
    fn a_record_sealed_twice(reservation: &Reservation<'_>, spec: &RecordSpec<'_>) {
        let record = reservation.encode(spec, |_| ());
        record.seal(1, None);
        record.seal(2, None); //~ E0382
    }

    /// The same.
    fn a_record_cleared_that_is_to_be_published(reservation: Reservation<'_>, spec: &RecordSpec<'_>) {
        let record = reservation.encode(spec, |_| ());
        _ = reservation.clear(spec); //~ E0505
        record.seal(1, None);
    }

    /// Both would have the same bytes.
    fn two_reservations_of_one_appender(log: &Log, appender: &mut Appender) {
        let one = appender.reserve(log, SegmentKind::Row, 64, Claim::Write);
        let other = appender.reserve(log, SegmentKind::Row, 64, Claim::Write); //~ E0499
        drop((one, other));
    }

    /// Another thread would reserve its bytes.
    fn an_appender_unlocked_under_a_reservation(log: &Log) {
        let mut appender = log.appender();
        let reserved = appender.reserve(log, SegmentKind::Row, 64, Claim::Write);
        drop(appender); //~ E0505
        drop(reserved);
    }

    /// The bytes of a tier without the promise to keep their rules (`tier.rs` gives it once).
    fn bytes_without_a_promise(tier: Arc<FastTier>) -> Option<TierBytes> {
        TierBytes::new(tier).ok() //~ E0133
    }

    /// It may lie under a slice of whoever has the bytes.
    fn a_byte_that_rots_under_an_open_store(medium: &CrashSim) {
        medium.corrupt(0, 1); //~ E0133
    }
}

/// What one type stands for, given as another.
#[cfg(refused = "types")]
mod types {
    use hedgerow_device::{FastTier, SharedBytes, crc32c};

    use crate::Result;
    use crate::db::chain::Chain;
    use crate::index::Slot;
    use crate::log::format::RecordRef;
    use crate::log::{Log, LogView};

    /// The slot may be a cached one, and a place in DRAM would get into the log.
    fn what_a_record_replaced_by_a_slot_of_anything(slot: Slot) -> RecordRef {
        RecordRef::from(slot) //~ E0277
    }

    /// The records of the log at a place in DRAM.
    fn a_chain_under_a_slot_of_anything<'l>(log: LogView<'l>, slot: Slot) -> Result<Chain<'l>> {
        Chain::of(log, slot) //~ E0308
    }

    /// Behind a slice they would not change as they are looked at.
    fn bytes_that_others_store_into_as_a_slice(bytes: &SharedBytes) -> u32 {
        crc32c(0, bytes) //~ E0308
    }

    /// Only `TierBytes` leads to them.
    fn bytes_of_a_tier_that_were_not_asked_for(tier: &FastTier) {
        tier.store_u64(0, 1); //~ E0599
        tier.write(0, 8, |bytes| bytes.fill(1)); //~ E0599
        tier.patch(0, &[1]); //~ E0599
        tier.read(0, 8); //~ E0599
        tier.release(0, 8); //~ E0599
    }

    /// What others want of them is a method of the log.
    fn bytes_of_the_log_to_somebody_else(log: &Log) {
        log.tier.store_u64(0, 1); //~ E0616
    }

    fn an_offset_of_a_slot_of_anything(slot: Slot) -> u64 {
        slot.offset() //~ E0599
    }
}

/// Who may name what is looked at last, and only where all else is right.
#[cfg(refused = "privacy")]
mod privacy {
    use crate::epoch::Guard;
    use crate::log::{EncodedRecord, Log, LogGuard};

    /// The guard may be of another store, for which gc does not wait here: only [`Log::pin`] makes one that lends the log.
    fn the_log_under_any_guard<'p>(log: &'p Log, guard: Guard<'p>) -> LogGuard<'p> {
        LogGuard { log, guard } //~ E0451
    }

    /// Without a reservation there is no record to seal: only [`Reservation::encode`](crate::log::Reservation::encode) makes one.
    fn a_record_that_nobody_encoded(like: EncodedRecord<'static>) {
        let made_up = EncodedRecord { offset: 8, ..like }; //~ E0451
        made_up.seal(1, None);
    }
}
