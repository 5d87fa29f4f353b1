//! `hedgerow kvssd status`: the devices of an array, as a table or as JSON.
//!
//! Owns how they are shown. Promises that no byte of a file is changed. Must not know how they are found out.

use std::fmt::Write as _;
use std::io::Write as _;

use hedgerow_kvssd::{ArrayMember, ArrayWork};

use super::ArrayArgs;
use super::seen::{SeenArray, SeenDevice, lost_text};
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
    let (array, refusal) = match args.array.look() {
        Ok(array) => (array, None),
        // What an opening wants to be told is no reason to show nothing.
        Err(refused) => match SeenArray::look(args.array.files(), true) {
            Ok(array) => (array, Some(refused)),
            Err(_) => return Err(refused),
        },
    };
    let text = match args.json {
        true => format!("{:#}\n", as_json(&array, refusal)),
        false => as_table(&array, refusal),
    };
    // It may be read by nobody.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// What is under way, and what is still to be done, a line each.
fn next_lines(array: &SeenArray) -> Vec<String> {
    let newest = array.newest();
    let url = super::url(&array.files());
    let has_strays = array.devices().iter().any(|device| device.member.has_strays);
    let mut lines: Vec<String> = array.devices().iter().filter_map(lost_text).collect();
    let out: Vec<&SeenDevice> = array.devices().iter().filter(|device| device.member.is_out).collect();
    for device in &out {
        let file = device.file.display();
        lines.push(format!(
            "{file} is out; hedgerow kvssd replace {url} --device {file} --with FILE puts another in its place"
        ));
    }
    match newest.work() {
        ArrayWork::Remove { device } => {
            let file = array.devices().get(device.wrapping_sub(1)).map(|seen| seen.file.display());
            let file = file.map(|file| format!(" --device {file}")).unwrap_or_default();
            let what = array.work_text(newest.work());
            lines.push(format!("under way: {what}; hedgerow kvssd remove {url}{file} goes on with it"));
        }
        ArrayWork::Rebalance => {
            lines.push(format!("under way: a rebalance; hedgerow kvssd rebalance {url} goes on with it"));
        }
        ArrayWork::Rebuild if array.working() < 2 => {
            lines.push("under way: the making of second copies, which need another device".into());
        }
        ArrayWork::Rebuild => lines.push(format!(
            "under way: the making of second copies; hedgerow kvssd rebuild {url} goes on with it"
        )),
        ArrayWork::Nothing if newest.shards_alone() > 0 && array.working() > 1 => lines.push(format!(
            "nothing is under way; hedgerow kvssd rebuild {url} makes second copies on the devices that work"
        )),
        ArrayWork::Nothing if has_strays => {
            lines.push(format!("nothing is under way; hedgerow kvssd rebalance {url} deletes the strays"));
        }
        ArrayWork::Nothing if array.working() > 1 && newest.rebalance_moves() > 0 => lines.push(format!(
            "nothing is under way; hedgerow kvssd rebalance {url} gives each device its share"
        )),
        ArrayWork::Nothing => lines.push("nothing is under way".into()),
    }
    lines
}

fn as_table(array: &SeenArray, refusal: Option<String>) -> String {
    let newest = array.newest();
    let mut text = String::new();
    let (devices, shards) = (newest.devices(), newest.shards().1);
    let copies = match (newest.copies(), newest.shards_alone()) {
        (1, _) => String::new(),
        (copies, 0) => format!(", {copies} copies of each"),
        (copies, alone) => format!(", {copies} copies of each but {alone}, which have one"),
    };
    // Writing to a text cannot fail.
    let _ = writeln!(
        text,
        "array {:032x}, {devices} devices, {shards} shards of keys{copies}, generation {}",
        newest.array_id(),
        newest.generation()
    );
    for line in refusal.into_iter().chain(next_lines(array)) {
        let _ = writeln!(text, "{line}");
    }
    let has_copies = newest.copies() > 1;
    let second = if has_copies { " second  alone" } else { "" };
    let _ = writeln!(
        text,
        "{:>6} {:>6} {:>6}{second} {:>6} {:>6} {:>6} {:>10} {:>10} {:>10} {:>6}  file",
        "device", "number", "shards", "going", "coming", "strays", "pairs", "taken", "capacity", "%"
    );
    (1..).zip(array.devices()).for_each(|(place, device)| row(&mut text, place, device, has_copies));
    text
}

fn row(text: &mut String, place: usize, device: &SeenDevice, has_copies: bool) {
    let ArrayMember { number, shards, second_copies, alone, going, coming, has_strays, is_out } =
        device.member;
    let second = if has_copies { format!(" {second_copies:>6} {alone:>6}") } else { String::new() };
    let strays = if has_strays { "yes" } else { "no" };
    let [pairs, taken, capacity, share] = match &device.info {
        Some(info) => [
            info.pairs.to_string(),
            bytes(info.used_bytes),
            bytes(info.capacity_bytes),
            format!("{:.2}", f64::from(info.utilization()) / 100.0),
        ],
        None => ["-"; 4].map(String::from),
    };
    let out = if is_out { " (out)" } else { "" };
    let _ = writeln!(
        text,
        "{place:>6} {number:>6} {shards:>6}{second} {going:>6} {coming:>6} {strays:>6} {pairs:>10} {taken:>10} {capacity:>10} {share:>6}  {}{out}",
        device.file.display()
    );
}

fn as_json(array: &SeenArray, refusal: Option<String>) -> serde_json::Value {
    let newest = array.newest();
    let (work, removed) = match newest.work() {
        ArrayWork::Nothing => ("nothing", None),
        ArrayWork::Rebalance => ("rebalance", None),
        ArrayWork::Rebuild => ("rebuild", None),
        ArrayWork::Remove { device } => ("remove", Some(device)),
    };
    let of_device = |SeenDevice { file, member, info, lost, .. }: &SeenDevice| {
        serde_json::json!({
            "file": file.display().to_string(),
            "number": member.number,
            "shards": member.shards,
            "second_copies": member.second_copies,
            "shards_alone": member.alone,
            "shards_going": member.going,
            "shards_coming": member.coming,
            "strays": member.has_strays,
            "out": member.is_out,
            "lost": lost.as_ref().map(ToString::to_string),
            "pairs": info.as_ref().map(|info| info.pairs),
            "used_bytes": info.as_ref().map(|info| info.used_bytes),
            "capacity_bytes": info.as_ref().map(|info| info.capacity_bytes),
        })
    };
    serde_json::json!({
        "array": format!("{:032x}", newest.array_id()),
        "generation": newest.generation(),
        "shards": newest.shards().1,
        "copies": newest.copies(),
        "shards_alone": newest.shards_alone(),
        "under_way": work,
        "removed_device": removed,
        "refusal": refusal,
        "devices": array.devices().iter().map(of_device).collect::<Vec<_>>(),
    })
}
