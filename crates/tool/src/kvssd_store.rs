//! Rows on key-value devices in software, as a URL names them.
//!
//! Owns how long devices are that are made, and the thread that makes durable what was stored, now and then. Promises that what cannot be opened is told in one sentence, with the file. Must not know who uses
//! the rows.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use hedgerow_kvssd::{AckMode, ArrayError, ArrayMedium, Geometry, KvssdBackend, KvssdOptions};
use hedgerow_row::backend::{Answer, Backend, Command};
use hedgerow_row::{Error, ErrorKind};

use crate::printing::report;
use crate::store_url::KvssdUrl;

/// Blocks of a device, at least: with less of them what is kept free is a large part of it.
const BLOCKS_MIN: u64 = 32;
const BLOCK_BYTES_MAX: u64 = 32 << 20;
const PAGE_BYTES: u64 = 32 << 10;
/// A device takes no less: 32 blocks of eight pages.
const DEVICE_BYTES_MIN: u64 = BLOCKS_MIN * 8 * PAGE_BYTES;
/// How long a thread waits for an answer before it looks again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens the devices, or makes them where there are none.
///
/// # Errors
/// A sentence for a person.
pub fn open(url: &KvssdUrl, ack: AckMode) -> Result<KvssdBackend, String> {
    open_with(url, ack, url.bytes.map(geometry_of).transpose()?)
}

/// The same; devices that are made, now or as they are added, are of this geometry.
///
/// # Errors
/// A sentence for a person.
pub(crate) fn open_with(
    url: &KvssdUrl,
    ack: AckMode,
    geometry: Option<Geometry>,
) -> Result<KvssdBackend, String> {
    let media: Vec<ArrayMedium> = url.files.iter().cloned().map(ArrayMedium::File).collect();
    let (copies, alone) = (url.copies, url.alone);
    let options = KvssdOptions { geometry, copies, alone, ..KvssdOptions::ack(ack) };
    KvssdBackend::open(&media, &options).map_err(|error| told(url, &error))
}

/// Blocks as long as may be, as long as there are enough of them: a value takes an eighth of one at most.
///
/// # Errors
/// A sentence for a person: less bytes, or more, than a device has.
pub(crate) fn geometry_of(bytes: u64) -> Result<Geometry, String> {
    if bytes < DEVICE_BYTES_MIN {
        return Err(format!("a key-value device has {DEVICE_BYTES_MIN} bytes at least, not {bytes}"));
    }
    let mut block_bytes = BLOCK_BYTES_MAX;
    while bytes / block_bytes < BLOCKS_MIN {
        block_bytes /= 2;
    }
    let blocks = u32::try_from(bytes / block_bytes).unwrap_or(u32::MAX);
    let geometry = Geometry { page_bytes: PAGE_BYTES as u32, block_bytes: block_bytes as u32, blocks };
    geometry.check().map_err(|error| format!("a key-value device of {bytes} bytes: {error}"))?;
    Ok(geometry)
}

/// With the file that it is about.
fn told(url: &KvssdUrl, error: &ArrayError) -> String {
    match file_of(&url.files, error) {
        Some(file) => format!("{} can not be opened: {error}", file.display()),
        None if matches!(error, ArrayError::Undecided { .. }) => {
            format!("the key-value devices can not be opened: {error} (here: ?alone=yes)")
        }
        None => format!("the key-value devices can not be opened: {error}"),
    }
}

/// What went wrong, of an array of these files, with the one that it is about.
pub(crate) fn named(files: &[PathBuf], what: &str, error: &ArrayError) -> String {
    match file_of(files, error) {
        Some(file) => format!("{}: {what}: {error}", file.display()),
        None => format!("{what}: {error}"),
    }
}

/// Which of the files of an array this is about.
fn file_of<'f>(files: &'f [PathBuf], error: &ArrayError) -> Option<&'f PathBuf> {
    let number = match error {
        ArrayError::Device { device, .. }
        | ArrayError::Missing { device }
        | ArrayError::Foreign { device, .. }
        | ArrayError::Stale { device, .. }
        | ArrayError::Map { device }
        | ArrayError::Removed { device }
        | ArrayError::Version { device, .. } => *device,
        ArrayError::Order { given, .. } => *given,
        _ => return None,
    };
    files.get(number - 1)
}

/// What opening found damaged of devices in these files, and which are out, in lines for a person; empty if nothing is.
pub fn damage_text(files: &[PathBuf], backend: &KvssdBackend) -> String {
    let mut text = String::new();
    let state = backend.copies_state();
    for device in &state.out {
        let file = files.get(device - 1).map(|file| format!(" ({})", file.display())).unwrap_or_default();
        text.push_str(&format!(
            "hedgerow: device {device}{file} is out: it failed, was missing or is older than the others\n"
        ));
    }
    if state.shards_alone > 0 {
        text.push_str(&format!(
            "hedgerow: {} of 1024 shards of keys have one copy: see hedgerow kvssd status\n",
            state.shards_alone
        ));
    }
    for (number, report) in backend.open_reports().iter().enumerate() {
        let (lost, values) = (report.lost.len(), report.values_damaged);
        if lost > 0 || values > 0 {
            text.push_str(&format!(
                "hedgerow: device {}: {lost} stretches of records are lost and {values} values are damaged{}\n",
                number + 1,
                if report.may_undo_changes() { "; keys there may show what they had before" } else { "" },
            ));
        }
    }
    text
}

/// Makes durable what was answered before.
///
/// # Errors
/// Those of the backend.
pub fn persist(backend: &dyn Backend) -> Result<(), Error> {
    let mut session = backend.session()?;
    session.start(Command::Persist)?;
    let mut answered = Vec::new();
    while answered.is_empty() {
        session.wait(PATIENCE)?;
        session.poll(&mut answered);
    }
    match answered.pop() {
        Some((_, Ok(Answer::Persisted))) => Ok(()),
        Some((_, Err(error))) => Err(error),
        _ => Err(Error::new(ErrorKind::Io, "the backend answered something else than that it is durable")),
    }
}

/// A thread that makes durable what was stored, at intervals.
pub struct IntervalPersister {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IntervalPersister {
    /// From now on, until it is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(backend: Arc<dyn Backend>, interval: Duration) -> std::io::Result<IntervalPersister> {
        let (stop, stopped) = channel::<()>();
        let thread = hedgerow_device::spawn("persist", move || {
            let mut has_failed = false;
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let persisted = persist(&*backend);
                if let (Err(error), false) = (&persisted, has_failed) {
                    report(format_args!("what was stored could not be made durable: {error}"));
                }
                has_failed = persisted.is_err();
            }
        })?;
        Ok(IntervalPersister { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for IntervalPersister {
    fn drop(&mut self) {
        self.stop = None;
        // It ends by itself; what went wrong there was told.
        self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_any_size_has_enough_blocks() {
        for bytes in [8 << 20, 100 << 20, 1 << 30, 3 << 30, 1 << 40] {
            let geometry = geometry_of(bytes).unwrap();
            assert!(geometry.blocks >= 32, "{bytes}: {geometry:?}");
            let taken = geometry.bytes();
            assert!(taken <= bytes + (64 << 20) && taken > bytes / 16 * 15, "{bytes}: {taken}");
        }
        assert_eq!(geometry_of(1 << 30).unwrap().value_bytes_max(), 2 << 20);
        assert!(geometry_of((8 << 20) - 1).unwrap_err().contains("8388608"));
        assert!(geometry_of(1 << 50).unwrap_err().contains("1048576 blocks"));
    }
}
