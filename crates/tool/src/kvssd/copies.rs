//! `hedgerow kvssd replace` and `rebuild`: the second copies of an array that lost a device.
//!
//! Owns the two commands. Promises that a device that cannot take the place is refused before anything changes, and that whoever gives a command again needs not know how far it came. Must not know how copies are made: that is `hedgerow-kvssd`.

use std::path::{Path, PathBuf};

use hedgerow_kvssd::{ArrayMedium, ArrayPlace, ArrayWork, CopiesState, Geometry, KvssdBackend, Mover};

use super::moving::Moving;
use super::seen::{SeenArray, lost_text};
use super::{ArrayArgs, close, new_geometry, parse_size, tell_given_up, url};
use crate::inspect::devices::{open, refusal};
use crate::kvssd_store::named;

/// Settings of `hedgerow kvssd replace`.
#[derive(Debug, clap::Args)]
pub(super) struct ReplaceArgs {
    #[command(flatten)]
    array: ArrayArgs,
    /// The file of the device that goes, as it is named among those of the array, also where it is gone.
    #[arg(long, value_name = "FILE")]
    device: PathBuf,
    /// The file of the device that takes its place. It is made if there is none; what is on it is deleted. The same file if nothing is said, where that device is out.
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    /// Bytes of the device, as in 4gb, if it is made. As many as the longest of the array has, if nothing is said.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    size: Option<Geometry>,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// Settings of `hedgerow kvssd rebuild`.
#[derive(Debug, clap::Args)]
pub(super) struct RebuildArgs {
    #[command(flatten)]
    array: ArrayArgs,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

pub(super) fn replace(args: &ReplaceArgs) -> Result<(), String> {
    let (files, device) = (args.array.files(), &args.device);
    let with = args.with.as_ref().unwrap_or(device);
    let Some(place) = files.iter().position(|file| file == device) else {
        return Err(format!("{} is none of the devices {}", device.display(), url(files)));
    };
    if with != device && files.contains(with) {
        return Err(format!("{} is named among the devices of the array already", with.display()));
    }
    let mut after = files.to_vec();
    after[place].clone_from(with);
    let replaced = SeenArray::look(&after, args.array.is_alone());
    // Whoever gives the command again after it was cut off may not know how far it came.
    match replaced {
        Ok(array) if array.is_in(place) && array.newest().copies() > 1 => {
            array.check_all_there(None)?;
            println!("{} is device {} of the array, and works", with.display(), place + 1);
            if is_left(&array) {
                run_rebuild(&args.array, &array, args.quiet)?;
            }
        }
        replaced => {
            let array = if with == device { replaced? } else { args.array.look()? };
            begin_replacing(args, &array, place, &after)?;
        }
    }
    let after = url(&after);
    println!("from now on it is {after}");
    let is_uneven = |array: SeenArray| array.newest().rebalance_moves() > 0;
    if SeenArray::look(&after.files, false).is_ok_and(is_uneven) {
        println!("hedgerow kvssd rebalance {after} gives each device its share");
    }
    Ok(())
}

fn begin_replacing(
    args: &ReplaceArgs,
    array: &SeenArray,
    place: usize,
    after: &[PathBuf],
) -> Result<(), String> {
    let (device, with) = (&args.device, &after[place]);
    if array.newest().copies() == 1 {
        return Err(hedgerow_kvssd::ArrayError::OneCopy.to_string()
            + ": hedgerow kvssd add and remove exchange one that works");
    }
    array.check_all_there(Some(device))?;
    let alone = array.devices()[place].member.alone;
    if alone > 0 {
        let (file, url) = (device.display(), url(&array.files()));
        return Err(format!(
            "{file} has the one copy of {alone} shards and cannot go: hedgerow kvssd rebuild {url} makes another of each first"
        ));
    }
    let geometry = new_geometry(array, args.size, with)?;
    check_replacement(array, place, with)?;
    tell_given_up(array, ArrayWork::Rebuild);
    if array.is_in(place) {
        eprintln!(
            "hedgerow: {} works, and is put out: until this is done its keys have one copy",
            device.display()
        );
    }
    let backend = args.array.open(&array.files(), Some(geometry))?;
    let mover = backend.replace_device(place, &ArrayMedium::File(with.clone()));
    let mover = mover.map_err(|error| named(after, "not replaced", &error));
    if mover.is_ok() {
        println!("{} is device {} of the array", with.display(), place + 1);
    }
    mover.and_then(|mover| finish(&backend, mover, array, after, args.quiet)).and(close(&backend))?;
    tell_alone(&backend.copies_state(), after);
    Ok(())
}

/// Refuses what could not take the place of a device, before one is put out for it.
fn check_replacement(array: &SeenArray, place: usize, with: &Path) -> Result<(), String> {
    if !with.exists() {
        let dir = with.parent().filter(|dir| !dir.as_os_str().is_empty());
        return match dir.is_none_or(Path::is_dir) {
            true => Ok(()),
            false => Err(format!("{} can not be made: its directory is not there", with.display())),
        };
    }
    let mut view = match open(with) {
        Ok(view) => view,
        // An empty file, or one whose making was cut off, is made a device.
        Err(hedgerow_kvssd::KvError::NoDevice) => return Ok(()),
        Err(error) => return Err(refusal(with, &error)),
    };
    let newest = array.newest();
    let not = |why: &str| Err(format!("{}: not replaced: it {why}", with.display()));
    let is_other = |seen: &ArrayPlace| {
        let number = seen.members().get(seen.device().wrapping_sub(1)).map(|member| member.number);
        let others = (0..).zip(array.devices()).filter(|(at, device)| *at != place && !device.member.is_out);
        others.map(|(_, device)| Some(device.member.number)).any(|other| other == number)
    };
    match ArrayPlace::of(1, view.device()) {
        Ok(Some(seen)) if seen.array_id() != newest.array_id() => return not("is of another array"),
        Ok(Some(seen)) if is_other(&seen) => return not("is a copy of another device of the array"),
        Err(error) => return not(&format!("cannot be used: {error}")),
        Ok(_) => {}
    }
    let (takes, needs) = (view.overview().geometry.value_bytes_max(), array.value_bytes_max());
    if takes < needs {
        return not(&format!(
            "takes values of {takes} bytes at most, and those of the array have up to {needs}"
        ));
    }
    Ok(())
}

pub(super) fn rebuild(args: &RebuildArgs) -> Result<(), String> {
    let array = args.array.look()?;
    if array.newest().copies() == 1 {
        return Err("the array has one copy of each key: there is nothing to be rebuilt from".into());
    }
    array.devices().iter().filter_map(lost_text).for_each(|line| eprintln!("hedgerow: {line}"));
    if !is_left(&array) {
        println!("every shard has two copies");
        return Ok(());
    }
    if array.working() < 2 {
        let url = url(args.array.files());
        return Err(format!(
            "one device of the array works, and second copies need another: hedgerow kvssd replace {url} puts one in the place of one that is out"
        ));
    }
    run_rebuild(&args.array, &array, args.quiet)
}

/// Whether there is anything for a rebuild to do.
fn is_left(array: &SeenArray) -> bool {
    array.newest().shards_alone() > 0 || array.newest().work() == ArrayWork::Rebuild
}

fn run_rebuild(args: &ArrayArgs, array: &SeenArray, is_quiet: bool) -> Result<(), String> {
    let files = array.files();
    tell_given_up(array, ArrayWork::Rebuild);
    let backend = args.open(&files, None)?;
    let mover = backend.rebuild().map_err(|error| error.to_string());
    mover.and_then(|mover| finish(&backend, mover, array, &files, is_quiet)).and(close(&backend))?;
    tell_alone(&backend.copies_state(), &files);
    Ok(())
}

fn finish(
    backend: &KvssdBackend,
    mover: Mover,
    array: &SeenArray,
    files: &[PathBuf],
    is_quiet: bool,
) -> Result<(), String> {
    let expected = |shards: usize| array.pairs_of(shards);
    Moving::new(files, ArrayWork::Rebuild).run(mover, is_quiet, expected)?;
    if backend.copies_state().shards_alone == 0 {
        println!("every shard has two copies");
    }
    Ok(())
}

/// Says that keys have one copy, if any have, and what makes another.
pub(super) fn tell_alone(state: &CopiesState, files: &[PathBuf]) {
    if state.copies > 1 && state.shards_alone > 0 {
        let url = url(files);
        println!(
            "{} shards have one copy: hedgerow kvssd rebuild {url} makes another of each",
            state.shards_alone
        );
    }
}
