//! Writing a run: rows in rising order of their keys into as many files as they need.
//!
//! Owns [`RunWriter`]. Promises that a run which was finished is on the device with its names, and that files of one which was not are gone. Must not know
//! why a run is written.

use hedgerow_device::WritePath;

use super::Runs;
use super::garbage::ReplacedSample;
use super::store::RoomFor;
use crate::Result;
use crate::log::Log;
use crate::sst::{Sst, SstRecord, SstRecordKind, SstWriter};

/// So much is reserved for a file at a time, if there is so much.
const RESERVE_BYTES: u64 = 1 << 20;

/// A run that is being written. Nothing of it counts.
#[derive(Debug)]
pub(crate) struct RunWriter<'e> {
    runs: &'e Runs,
    log: &'e Log,
    path: WritePath,
    purpose: RoomFor,
    /// Bytes that a file has.
    target_bytes: u64,
    writer: Option<SstWriter>,
    /// For what it writes.
    reserved: u64,
    files: Vec<Sst>,
    /// Bytes of these.
    ended_bytes: u64,
    /// What it replaces in older runs, unless it is of those.
    replaced: Option<ReplacedSample>,
}

impl<'e> RunWriter<'e> {
    /// Of so many `records`, which may replace something in older runs. Makes no file before there is something to write.
    pub(crate) fn of_move(runs: &'e Runs, log: &'e Log, records: usize, purpose: RoomFor) -> RunWriter<'e> {
        let current = runs.current();
        // Rows that move are asked for as much as those beside which they come to lie.
        let path = runs.write_path(log, current.files().iter());
        let mut writer = RunWriter::on(path, runs, log, purpose);
        writer.replaced = Some(ReplacedSample::new(&current, records));
        writer
    }

    /// Of what is in these files. It replaces nothing.
    pub(super) fn of_merge<'s>(
        runs: &'e Runs,
        log: &'e Log,
        files: impl Iterator<Item = &'s Sst>,
    ) -> RunWriter<'e> {
        RunWriter::on(runs.write_path(log, files), runs, log, RoomFor::Merges)
    }

    /// Of a table that is in no run: it replaces nothing. No older file is held meanwhile, however long that is.
    pub(crate) fn of_load(runs: &'e Runs, log: &'e Log) -> RunWriter<'e> {
        RunWriter::on(WritePath::PastPageCache, runs, log, RoomFor::Rows)
    }

    fn on(path: WritePath, runs: &'e Runs, log: &'e Log, purpose: RoomFor) -> RunWriter<'e> {
        RunWriter {
            runs,
            log,
            path,
            purpose,
            target_bytes: runs.target_bytes(),
            writer: None,
            reserved: 0,
            files: Vec::new(),
            ended_bytes: 0,
            replaced: None,
        }
    }

    /// Appends a record, whose key is above all before it; `fill` writes its body.
    ///
    /// # Errors
    /// `Invalid` of a record that cannot be taken, and others may follow. `Full`; what the capacity tier refuses: then the run is of no use any more.
    pub(crate) fn push(&mut self, record: &SstRecord<'_>, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        if self
            .writer
            .as_ref()
            .is_some_and(|writer| writer.bytes() >= self.target_bytes || writer.is_full_for(record))
        {
            self.end_file()?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(self.runs.create_file(self.log, self.path)?),
        };
        let needed = writer.bytes() + (record.key.len() + record.body_bytes) as u64;
        if needed > self.reserved {
            let more = needed - self.reserved;
            self.reserved += match self.runs.reserve(more + RESERVE_BYTES, self.purpose) {
                Ok(()) => more + RESERVE_BYTES,
                Err(_) => self.runs.reserve(more, self.purpose).map(|()| more)?,
            };
        }
        writer.push(record, fill)?;
        if let Some(replaced) = &mut self.replaced {
            let is_delta = record.kind == SstRecordKind::Delta;
            replaced.count(record.table, record.key, is_delta.then_some(record.body_bytes as u64));
        }
        Ok(())
    }

    /// Bytes so far, about.
    pub(super) fn bytes(&self) -> u64 {
        self.ended_bytes + self.writer.as_ref().map_or(0, SstWriter::bytes)
    }

    fn end_file(&mut self) -> Result<()> {
        match self.writer.take() {
            // What was begun for a record that could not be taken.
            Some(writer) if writer.is_empty() => self.abandon(writer),
            Some(writer) => {
                let reserved = std::mem::take(&mut self.reserved);
                self.ended_bytes += writer.bytes();
                self.files.push(self.runs.finish_file(self.log, writer, reserved)?);
            }
            None => {}
        }
        Ok(())
    }

    fn abandon(&mut self, writer: SstWriter) {
        self.runs.abandon_file(writer);
        self.runs.release(std::mem::take(&mut self.reserved));
    }

    /// The files, durable, as they are. Whoever has them says whether they count, or [discards](Runs::discard) them.
    ///
    /// # Errors
    /// As [`RunWriter::push`].
    pub(crate) fn finish(mut self) -> Result<Vec<Sst>> {
        self.end_file()?;
        if let Some(replaced) = &self.replaced {
            self.runs.merges.count_replaced(replaced);
        }
        Ok(std::mem::take(&mut self.files))
    }
}

impl Drop for RunWriter<'_> {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.abandon(writer);
        }
        if !self.files.is_empty() {
            self.runs.discard(std::mem::take(&mut self.files));
        }
    }
}
