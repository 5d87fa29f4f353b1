//! What is on key-value devices that nobody has open, printed.
//!
//! Owns the words and columns, and how a device's file is opened to be looked at. Promises that no byte of a file changes, whatever is found: what opening would repair is repaired in a copy in memory. Must not
//! know bytes: `hedgerow_kvssd` reads them.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use hedgerow_device::{DeviceError, FastTier};
use hedgerow_kvssd::{
    ArrayError, ArrayPlace, DeviceOverview, DeviceShutdown, DeviceView, KEY_BYTES_MAX, KvError, check_places,
};

use super::{bytes, print};

/// A device's file, opened as a copy in memory.
///
/// # Errors
/// Of the device. [`KvError::Medium`]: the file is in use, or cannot be read.
pub(crate) fn open(file: &Path) -> Result<DeviceView, KvError> {
    DeviceView::open(FastTier::open_file_copy(file)?)
}

/// Why a device cannot be looked at, with its file.
pub(crate) fn refusal(file: &Path, error: &KvError) -> String {
    let advice = match error {
        KvError::Medium(error) if matches!(**error, DeviceError::Locked { .. }) => {
            ": stop it first, or see what it does by hedgerow top"
        }
        _ => "",
    };
    format!("{} can not be opened: {error}{advice}", file.display())
}

/// Prints each device, and then what is wrong with any, or with all of them as an array.
pub(crate) fn overview(files: &[PathBuf], is_array: bool, out: &mut impl Write) -> Result<(), String> {
    let (mut places, mut wrong) = (Vec::new(), Vec::new());
    for (number, file) in files.iter().enumerate() {
        let mut view = match open(file) {
            Ok(view) => view,
            Err(error) => {
                wrong.push(refusal(file, &error));
                continue;
            }
        };
        let place = ArrayPlace::of(number + 1, view.device());
        print(out, &text(file, &view.overview(), &place))?;
        match place {
            Ok(place) => places.push(place),
            Err(ArrayError::Foreign { .. }) if !is_array => {}
            Err(error) => wrong.push(format!("{}: {error}", file.display())),
        }
    }
    if is_array && places.len() == files.len() {
        wrong.extend(check_places(&places).iter().map(|error| format!("as an array: {error}")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\nhedgerow: ")) }
}

fn text(file: &Path, device: &DeviceOverview, place: &Result<Option<ArrayPlace>, ArrayError>) -> String {
    let (geometry, info) = (device.geometry, &device.info);
    let shutdown = match device.shutdown {
        DeviceShutdown::Closed => "closed in order",
        DeviceShutdown::Killed => "not closed; the process was killed, the machine stayed up",
        DeviceShutdown::PowerCut => "not closed; the machine has been down since",
    };
    let repair = if device.repair_begun { "; a repair was begun and not ended" } else { "" };
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<16} {value}");
    };
    line("file", file.display().to_string());
    line("device", format!("{:032x}, format version {}", device.device_id, device.format_version));
    line("shutdown", format!("{shutdown}{repair}"));
    line(
        "superblock",
        format!("written {} times, durable up to change {}", device.generation, device.durable_sequence),
    );
    let (block, page) = (bytes(geometry.block_bytes.into()), bytes(geometry.page_bytes.into()));
    let all = bytes(geometry.bytes());
    line("geometry", format!("{all} in {} blocks of {block}, pages of {page}", geometry.blocks));
    line(
        "limits",
        format!("keys of 1 to {KEY_BYTES_MAX} bytes, values up to {}", bytes(info.value_bytes_max)),
    );
    line("array", place_text(place));
    let share = f64::from(info.utilization()) / 100.0;
    let (used, capacity) = (bytes(info.used_bytes), bytes(info.capacity_bytes));
    line(
        "taken",
        format!("{used} of {capacity} ({share:.2} %), {} for deletions", bytes(info.tombstone_bytes)),
    );
    line("pairs", format!("{}, {} of keys and values", info.pairs, bytes(info.logical_bytes)));
    let blocks = &device.blocks;
    line(
        "blocks",
        format!(
            "{} free, {} open, {} full, {} damaged",
            blocks.free, blocks.open, blocks.full, blocks.damaged
        ),
    );
    let [first, second, third, fourth] = device.live_quarters;
    line(
        "live",
        format!("{first} blocks up to a quarter, {second} to half, {third} to three, {fourth} more"),
    );
    line("erases", format!("{}, {} of the most worn block", device.erases.1, device.erases.0));
    text.push_str(&spaces_text(device));
    text.push_str(&damage_text(device));
    text
}

fn place_text(place: &Result<Option<ArrayPlace>, ArrayError>) -> String {
    match place {
        Ok(Some(place)) if place.device() == 0 => {
            format!("removed from array {:032x}, generation {}", place.array_id(), place.generation())
        }
        Ok(Some(place)) => {
            let (own, shards) = place.shards();
            let (go, come) = place.moving();
            let moving =
                if go + come > 0 { format!(", {go} going and {come} coming") } else { String::new() };
            let strays = if place.has_strays() { ", pairs of others to be deleted" } else { "" };
            let copies = copies_text(place);
            format!(
                "device {} of {} of array {:032x}, generation {}, {own} of {shards} shards of keys{copies}{moving}{strays}",
                place.device(),
                place.devices(),
                place.array_id(),
                place.generation()
            )
        }
        Ok(None) => "none".into(),
        Err(ArrayError::Foreign { .. }) => "none: it is another program's".into(),
        Err(error) => error.to_string(),
    }
}

/// What there is of second copies; nothing where an array has one.
fn copies_text(place: &ArrayPlace) -> String {
    if place.copies() == 1 {
        return String::new();
    }
    let mut text = format!(" and second copies of {}", place.second_copies());
    for device in place.out() {
        text.push_str(&format!(", device {device} is out"));
    }
    match place.shards_alone() {
        0 => text,
        alone => text + &format!(", {alone} shards with one copy"),
    }
}

fn spaces_text(device: &DeviceOverview) -> String {
    let mut text =
        format!("key spaces: {}, the last number given is {}\n", device.spaces.len(), device.last_space);
    if !device.spaces.is_empty() {
        text.push_str("  number      pairs      bytes      limit name\n");
    }
    for space in &device.spaces {
        let limit = if space.bytes_max == 0 { "none".into() } else { bytes(space.bytes_max) };
        let name = match space.name.as_slice() {
            [] => "(cannot be read)".into(),
            name => name.escape_ascii().to_string(),
        };
        let (number, held) = (space.id.number(), bytes(space.bytes));
        let _ = writeln!(text, "  {number:>6} {:>10} {held:>10} {limit:>10} {name}", space.pairs);
    }
    text
}

/// What the next opening will find damaged.
fn damage_text(device: &DeviceOverview) -> String {
    let report = &device.report;
    if report.is_whole() {
        return "damage: opening finds none (hedgerow check verifies every record)\n\n".into();
    }
    let mut text = String::from("damage that the next opening will find\n");
    if report.footers_rebuilt > 0 {
        let _ =
            writeln!(text, "  {} footers of blocks are made anew from their records", report.footers_rebuilt);
    }
    if report.values_damaged > 0 {
        let _ = writeln!(text, "  {} values cannot be read", report.values_damaged);
    }
    for lost in &report.lost {
        let _ = write!(text, "  byte {}: records are lost, in {} bytes at most", lost.offset, lost.bytes);
        if let Some(changes) = &lost.sequences {
            let _ = write!(text, ", changes {} to {}", changes.start, changes.end.saturating_sub(1));
        }
        text.push('\n');
    }
    for space in &report.spaces_unnamed {
        let _ = writeln!(text, "  the name of key space {} cannot be read", space.number());
    }
    if report.may_undo_changes() {
        text.push_str("  keys of lost records may show what they had before\n");
    }
    text.push('\n');
    text
}
