//! `hedgerow kvssd status`: the devices of an array, as a table or as JSON.
//!
//! Owns how they are shown. Promises that no byte of a file is changed. Must not know how they are found out.

use std::fmt::Write as _;
use std::io::Write as _;

use hedgerow_kvssd::{ArrayMember, ArrayWork};

use super::ArrayArgs;
use super::seen::{SeenArray, SeenDevice};
use crate::inspect::bytes;

/// Settings of `hedgerow kvssd status`.
#[derive(Debug, clap::Args)]
pub(super) struct DeviceStatusArgs {
    #[command(flatten)]
    array: ArrayArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &DeviceStatusArgs) -> Result<(), String> {
    let array = SeenArray::look(&args.array.array.files)?;
    let text = if args.json { format!("{:#}\n", as_json(&array)) } else { as_table(&array) };
    // It may be read by nobody.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// What is still to be done, in a line.
fn next_text(array: &SeenArray) -> String {
    let newest = array.newest();
    let members = newest.members();
    let url = super::url(&array.devices().iter().map(|seen| seen.file.clone()).collect::<Vec<_>>());
    let shares = members.iter().map(|member| member.shards);
    let is_uneven = shares.clone().max().unwrap_or(0) > shares.min().unwrap_or(0) + 1;
    match newest.work() {
        ArrayWork::Remove { device } => {
            let file = array.devices().get(device.wrapping_sub(1)).map(|seen| seen.file.display());
            let file = file.map(|file| format!(" --device {file}")).unwrap_or_default();
            let what = array.work_text(newest.work());
            format!("under way: {what}; hedgerow kvssd remove {url}{file} goes on with it")
        }
        ArrayWork::Rebalance => {
            format!("under way: a rebalance; hedgerow kvssd rebalance {url} goes on with it")
        }
        // Whoever opens the array in a program goes on with it.
        ArrayWork::Rebuild => format!("under way: {}", array.work_text(newest.work())),
        ArrayWork::Nothing if members.iter().any(|member| member.has_strays) => {
            format!("nothing is under way; hedgerow kvssd rebalance {url} deletes the strays")
        }
        ArrayWork::Nothing if is_uneven => {
            format!("nothing is under way; hedgerow kvssd rebalance {url} gives each device its share")
        }
        ArrayWork::Nothing => "nothing is under way".into(),
    }
}

fn as_table(array: &SeenArray) -> String {
    let newest = array.newest();
    let mut text = String::new();
    let (devices, shards) = (newest.devices(), newest.shards().1);
    // Writing to a text cannot fail.
    let _ = writeln!(
        text,
        "array {:032x}, {devices} devices, {shards} shards of keys, generation {}",
        newest.array_id(),
        newest.generation()
    );
    let _ = writeln!(text, "{}", next_text(array));
    let _ = writeln!(
        text,
        "{:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>10} {:>10} {:>10} {:>6}  file",
        "device", "number", "shards", "going", "coming", "strays", "pairs", "taken", "capacity", "%"
    );
    for (place, (SeenDevice { file, info, .. }, member)) in (1..).zip(members_of(array)) {
        let ArrayMember { number, shards, going, coming, has_strays } = member;
        let strays = if has_strays { "yes" } else { "no" };
        let (taken, capacity) = (bytes(info.used_bytes), bytes(info.capacity_bytes));
        let share = f64::from(info.utilization()) / 100.0;
        let _ = writeln!(
            text,
            "{place:>6} {number:>6} {shards:>6} {going:>6} {coming:>6} {strays:>6} {:>10} {taken:>10} {capacity:>10} {share:>6.2}  {}",
            info.pairs,
            file.display()
        );
    }
    text
}

/// Each device, and what the map in force says of it.
fn members_of(array: &SeenArray) -> impl Iterator<Item = (&SeenDevice, ArrayMember)> {
    array.devices().iter().zip(array.newest().members())
}

fn as_json(array: &SeenArray) -> serde_json::Value {
    let newest = array.newest();
    let (work, removed) = match newest.work() {
        ArrayWork::Nothing => ("nothing", None),
        ArrayWork::Rebalance => ("rebalance", None),
        ArrayWork::Rebuild => ("rebuild", None),
        ArrayWork::Remove { device } => ("remove", Some(device)),
    };
    let devices: Vec<_> = members_of(array)
        .map(|(SeenDevice { file, info, .. }, member)| {
            serde_json::json!({
                "file": file.display().to_string(),
                "number": member.number,
                "shards": member.shards,
                "shards_going": member.going,
                "shards_coming": member.coming,
                "strays": member.has_strays,
                "pairs": info.pairs,
                "used_bytes": info.used_bytes,
                "capacity_bytes": info.capacity_bytes,
            })
        })
        .collect();
    serde_json::json!({
        "array": format!("{:032x}", newest.array_id()),
        "generation": newest.generation(),
        "shards": newest.shards().1,
        "under_way": work,
        "removed_device": removed,
        "devices": devices,
    })
}
