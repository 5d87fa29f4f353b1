//! `hedgerow kvssd`: arrays of key-value devices that nobody has open, and how their devices come and go.
//!
//! Owns the commands and what they say. Promises that nothing is changed of files that are not all of one array, in its order; that a command that was cut off, by whatever, can be given again and goes on; and that one whose work is
//! done already says so and is no error. Must not know how shards move: that is `hedgerow-kvssd`.

mod copies;
mod moving;
mod seen;
mod status;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use hedgerow_kvssd::{AckMode, ArrayError, ArrayMedium, ArrayPlace, ArrayWork, Geometry, KvssdBackend};
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
    /// Puts another device in the place of one, of an array with two copies, and copies everything to it that is to be there. Given again it goes on.
    Replace(copies::ReplaceArgs),
    /// Makes second copies of all keys that have one, on the devices that are there. Given again it goes on.
    Rebuild(copies::RebuildArgs),
    /// Shows the devices of an array: what is on each, and what is under way.
    Status(status::DeviceStatusArgs),
}

/// Which array is meant.
#[derive(Debug, clap::Args)]
struct ArrayArgs {
    /// The files of all devices of the array, in their order: FILE,FILE... or kvssd:FILE,FILE... No server may have it open.
    #[arg(value_name = "FILE,FILE", value_parser = parse_array)]
    array: KvssdUrl,
    /// Believe the devices that are there, of two copies, where those that are not may have gone on without them.
    #[arg(long)]
    alone: bool,
}

impl ArrayArgs {
    fn files(&self) -> &[PathBuf] {
        &self.array.files
    }

    fn is_alone(&self) -> bool {
        self.alone || self.array.alone
    }

    fn look(&self) -> Result<SeenArray, String> {
        SeenArray::look(self.files(), self.is_alone())
    }

    /// Opens an array of these files that was looked at before: nothing is made. Devices that are added may be.
    fn open(&self, files: &[PathBuf], added: Option<Geometry>) -> Result<KvssdBackend, String> {
        let url = KvssdUrl { copies: self.array.copies, alone: self.is_alone(), ..url(files) };
        let backend = kvssd_store::open_with(&url, AckMode::Buffered, added)?;
        eprint!("{}", kvssd_store::damage_text(files, &backend));
        Ok(backend)
    }
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
        KvssdCommand::Replace(args) => copies::replace(&args),
        KvssdCommand::Rebuild(args) => copies::rebuild(&args),
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

fn close(backend: &KvssdBackend) -> Result<(), String> {
    backend.close().map_err(|error| format!("the array was not closed in order: {error}"))
}

/// What a device that is made is to have, refused where it could not be used: else it would be made, and refused then.
fn new_geometry(array: &SeenArray, size: Option<Geometry>, file: &Path) -> Result<Geometry, String> {
    let geometry = size.or_else(|| array.longest()).ok_or("no device of the array can be used")?;
    let (takes, needs) = (geometry.value_bytes_max(), array.value_bytes_max());
    if takes < needs && !file.exists() {
        return Err(format!(
            "a device of {} takes values of {takes} bytes at most, and those of the array have up to {needs}: give a greater --size",
            bytes(geometry.bytes())
        ));
    }
    Ok(geometry)
}

fn add(args: &AddDeviceArgs) -> Result<(), String> {
    let (files, device) = (args.array.files(), &args.device);
    if files.contains(device) {
        return Err(format!("{} is named among the devices of the array already", device.display()));
    }
    let all: Vec<PathBuf> = files.iter().chain([device]).cloned().collect();
    let is_there =
        || SeenArray::look(&all, args.array.is_alone()).is_ok_and(|array| array.is_in(files.len()));
    match args.array.look() {
        // Whoever gives the command again after it was cut off may not know how far it came.
        Err(_) if device.exists() && is_there() => {
            println!("{} was added before", device.display());
        }
        Err(refused) => return Err(refused),
        Ok(array) => {
            array.check_all_there(None)?;
            let geometry = new_geometry(&array, args.size, device)?;
            let backend = args.array.open(files, Some(geometry))?;
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
    let (files, device) = (args.array.files(), &args.device);
    let Some(place) = files.iter().position(|file| file == device) else {
        return Err(format!("{} is none of the devices {}", device.display(), url(files)));
    };
    let left: Vec<PathBuf> = files.iter().filter(|file| *file != device).cloned().collect();
    match args.array.look() {
        Err(_) if was_removed(device, &left, args.array.is_alone()) => {
            let what = if device.exists() { "was removed before" } else { "is not there, nor of the array" };
            println!("{} {what}", device.display());
        }
        Err(refused) => return Err(refused),
        Ok(array) => {
            array.check_all_there(Some(device))?;
            check_enough(&array, place)?;
            let work = ArrayWork::Remove { device: place + 1 };
            tell_given_up(&array, work);
            let backend = args.array.open(files, None)?;
            let mover = backend.remove_device(place).map_err(|error| error.to_string());
            let pairs = array.devices()[place].info.as_ref().map_or(0, |info| info.pairs);
            let moved = mover.and_then(|mover| Moving::new(files, work).run(mover, args.quiet, |_| pairs));
            let state = backend.copies_state();
            moved.and(close(&backend))?;
            println!("{} is of the array no more", device.display());
            copies::tell_alone(&state, &left);
        }
    }
    println!("from now on it is {}", url(&left));
    Ok(())
}

/// Refuses to take a device from an array that would have less than it has copies, before the opening puts it out.
fn check_enough(array: &SeenArray, place: usize) -> Result<(), String> {
    let copies = array.newest().copies();
    let devices = array.working() - usize::from(array.is_in(place));
    match copies > 1 && devices < copies {
        true => Err(ArrayError::Copies { copies, devices }.to_string()),
        false => Ok(()),
    }
}

/// Whether a device was removed from the array that the others are. One whose file is gone cannot say so, but is none of its devices in any case.
fn was_removed(device: &Path, others: &[PathBuf], alone: bool) -> bool {
    let Ok(array) = SeenArray::look(others, alone) else { return false };
    if !device.exists() {
        return true;
    }
    let Ok(mut view) = devices::open(device) else { return false };
    let place = ArrayPlace::of(1, view.device()).ok().flatten();
    place.is_some_and(|place| place.array_id() == array.newest().array_id())
}

fn rebalance(args: &RebalanceArgs) -> Result<(), String> {
    let files = args.array.files();
    let array = args.array.look()?;
    array.check_all_there(None)?;
    let work = ArrayWork::Rebalance;
    tell_given_up(&array, work);
    let backend = args.array.open(files, None)?;
    let mover = backend.rebalance().map_err(|error| error.to_string());
    let expected = |moving: usize| array.pairs_of(moving);
    let moved = mover.and_then(|mover| Moving::new(files, work).run(mover, args.quiet, expected));
    let state = backend.copies_state();
    moved.and(close(&backend))?;
    println!("each device has its share of the shards");
    copies::tell_alone(&state, files);
    Ok(())
}

/// What was begun before, and is something else, does not go on.
fn tell_given_up(array: &SeenArray, work: ArrayWork) {
    let before = array.newest().work();
    // A rebalance makes second copies, too.
    let goes_on = before == work || (before, work) == (ArrayWork::Rebuild, ArrayWork::Rebalance);
    if !goes_on && before != ArrayWork::Nothing {
        eprintln!("hedgerow: {}, which was under way, is given up", array.work_text(before));
    }
}
