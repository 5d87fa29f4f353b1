//! `hedgerow kvssd`: arrays of key-value devices that nobody has open, and how their devices come and go.
//!
//! Owns the commands and what they say. Promises that nothing is changed of files that are not all of one array, in its order; that a command that was cut off, by whatever, can be given again and goes on; and that one whose work is
//! done already says so and is no error. Must not know how shards move: that is `hedgerow-kvssd`.

mod moving;
mod seen;
mod status;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use hedgerow_kvssd::{AckMode, ArrayMedium, ArrayPlace, ArrayWork, Geometry, KvssdBackend};
use hedgerow_row::backend::Backend;

use crate::inspect::{bytes, devices};
use crate::kvssd_store;
use crate::store_url::KvssdUrl;
use crate::units::parse_bytes;
use moving::Moving;
use seen::SeenArray;

/// Settings of `hedgerow kvssd`.
#[derive(Debug, clap::Args)]
pub struct KvssdArgs {
    #[command(subcommand)]
    command: KvssdCommand,
}

#[derive(Debug, Subcommand)]
enum KvssdCommand {
    /// Adds a device to an array, as its last. It has no keys until the array is rebalanced.
    Add(AddDeviceArgs),
    /// Moves all that is on a device of an array to the others; it is of the array no more then. Given again it goes on.
    Remove(RemoveDeviceArgs),
    /// Moves keys so that each device of an array has its share. Given again it goes on.
    Rebalance(RebalanceArgs),
    /// Shows the devices of an array: what is on each, and what is under way.
    Status(status::DeviceStatusArgs),
}

/// Which array is meant.
#[derive(Debug, clap::Args)]
struct ArrayArgs {
    /// The files of all devices of the array, in their order: FILE,FILE... or kvssd:FILE,FILE... No server may have it open.
    #[arg(value_name = "FILE,FILE", value_parser = parse_array)]
    array: KvssdUrl,
}

/// Settings of `hedgerow kvssd add`.
#[derive(Debug, clap::Args)]
struct AddDeviceArgs {
    #[command(flatten)]
    array: ArrayArgs,
    /// The file of the device; it is made if there is none.
    #[arg(long, value_name = "FILE")]
    device: PathBuf,
    /// Bytes of the device, as in 4gb, if it is made. As many as the longest of the array has, if nothing is said.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<Geometry>,
}

/// Settings of `hedgerow kvssd remove`.
#[derive(Debug, clap::Args)]
struct RemoveDeviceArgs {
    #[command(flatten)]
    array: ArrayArgs,
    /// The file of the device, as it is named among those of the array.
    #[arg(long, value_name = "FILE")]
    device: PathBuf,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Settings of `hedgerow kvssd rebalance`.
#[derive(Debug, clap::Args)]
struct RebalanceArgs {
    #[command(flatten)]
    array: ArrayArgs,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Does what is asked.
pub fn run(args: KvssdArgs) -> Result<(), String> {
    match args.command {
        KvssdCommand::Add(args) => add(&args),
        KvssdCommand::Remove(args) => remove(&args),
        KvssdCommand::Rebalance(args) => rebalance(&args),
        KvssdCommand::Status(args) => status::run(&args),
    }
}

fn parse_array(text: &str) -> Result<KvssdUrl, String> {
    KvssdUrl::of(text).ok_or_else(|| format!("'{text}' names no devices: give FILE,FILE..."))
}

fn parse_size(text: &str) -> Result<Geometry, String> {
    let bytes = parse_bytes(text).ok_or_else(|| format!("{text} is no number of bytes, as 4gb is"))?;
    kvssd_store::geometry_of(bytes)
}

fn url(files: &[PathBuf]) -> KvssdUrl {
    KvssdUrl { files: files.to_vec(), bytes: None, copies: None, alone: false }
}

/// Opens an array that was looked at before: nothing is made. Devices that are added may be.
fn open(files: &[PathBuf], added: Option<Geometry>) -> Result<KvssdBackend, String> {
    let backend = kvssd_store::open_with(&url(files), AckMode::Buffered, added)?;
    eprint!("{}", kvssd_store::damage_text(&backend));
    Ok(backend)
}

fn close(backend: &KvssdBackend) -> Result<(), String> {
    backend.close().map_err(|error| format!("the array was not closed in order: {error}"))
}

fn add(args: &AddDeviceArgs) -> Result<(), String> {
    let (files, device) = (&args.array.array.files, &args.device);
    if files.contains(device) {
        return Err(format!("{} is named among the devices of the array already", device.display()));
    }
    let all: Vec<PathBuf> = files.iter().chain([device]).cloned().collect();
    match SeenArray::look(files) {
        // Whoever gives the command again after it was cut off may not know how far it came.
        Err(_) if device.exists() && SeenArray::look(&all).is_ok() => {
            println!("{} was added before", device.display());
        }
        Err(refused) => return Err(refused),
        Ok(array) => {
            let geometry = args.size.unwrap_or_else(|| array.longest());
            let (takes, needs) = (geometry.value_bytes_max(), array.value_bytes_max());
            if takes < needs && !device.exists() {
                // Else it would be made, and refused then.
                return Err(format!(
                    "a device of {} takes values of {takes} bytes at most, and those of the array have up to {needs}: give a greater --size",
                    bytes(geometry.bytes())
                ));
            }
            let backend = open(files, Some(geometry))?;
            let added = backend.add_device(&ArrayMedium::File(device.clone()));
            let added = added.map_err(|error| kvssd_store::named(&all, "not added", &error));
            added.and(close(&backend))?;
            println!("{} is device {} of the array", device.display(), all.len());
        }
    }
    let all = url(&all);
    println!("from now on it is {all}; hedgerow kvssd rebalance {all} gives each device its share");
    Ok(())
}

fn remove(args: &RemoveDeviceArgs) -> Result<(), String> {
    let (files, device) = (&args.array.array.files, &args.device);
    let Some(place) = files.iter().position(|file| file == device) else {
        return Err(format!("{} is none of the devices {}", device.display(), url(files)));
    };
    let left: Vec<PathBuf> = files.iter().filter(|file| *file != device).cloned().collect();
    match SeenArray::look(files) {
        Err(_) if was_removed(device, &left) => {
            println!("{} was removed before", device.display());
        }
        Err(refused) => return Err(refused),
        Ok(array) => {
            let work = ArrayWork::Remove { device: place + 1 };
            tell_given_up(&array, work);
            let backend = open(files, None)?;
            let mover = backend.remove_device(place).map_err(|error| error.to_string());
            let pairs = array.devices()[place].info.pairs;
            let moved = mover.and_then(|mover| Moving::new(files, work).run(mover, args.quiet, |_| pairs));
            moved.and(close(&backend))?;
            println!("{} is of the array no more", device.display());
        }
    }
    println!("from now on it is {}", url(&left));
    Ok(())
}

/// Whether a device was removed from the array that the others are.
fn was_removed(device: &Path, others: &[PathBuf]) -> bool {
    let Ok(array) = SeenArray::look(others) else { return false };
    let Ok(mut view) = devices::open(device) else { return false };
    let place = ArrayPlace::of(1, view.device()).ok().flatten();
    place.is_some_and(|place| place.array_id() == array.newest().array_id())
}

fn rebalance(args: &RebalanceArgs) -> Result<(), String> {
    let files = &args.array.array.files;
    let array = SeenArray::look(files)?;
    let work = ArrayWork::Rebalance;
    tell_given_up(&array, work);
    let backend = open(files, None)?;
    let mover = backend.rebalance().map_err(|error| error.to_string());
    let (pairs, shards) = array.pairs_and_shards();
    // As many as there are of each shard, more or less.
    let expected = |moving: usize| pairs * moving as u64 / shards.max(1) as u64;
    let moved = mover.and_then(|mover| Moving::new(files, work).run(mover, args.quiet, expected));
    moved.and(close(&backend))?;
    println!("each device has its share of the shards");
    Ok(())
}

/// What was begun before, and is something else, does not go on.
fn tell_given_up(array: &SeenArray, work: ArrayWork) {
    let before = array.newest().work();
    if before != work && before != ArrayWork::Nothing {
        eprintln!("hedgerow: {}, which was under way, is given up", array.work_text(before));
    }
}
