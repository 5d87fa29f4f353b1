//! Devices that nobody has open, looked at together.
//!
//! Owns [`SeenArray`]. Promises that files are one only if opening takes them as that array, with the same devices out, and that no byte of any is changed. Must not know what is done with it.

use std::path::{Path, PathBuf};

use hedgerow_kvssd::{ArrayError, ArrayMember, ArrayPlace, ArrayWork, DeviceInfo, Geometry, next_opening};

use crate::inspect::devices::{open, refusal};
use crate::kvssd_store::named;

/// A device, as it was left.
pub(super) struct SeenDevice {
    pub(super) file: PathBuf,
    /// What the map in force says of it.
    pub(super) member: ArrayMember,
    /// What is on it; none of one that is out.
    pub(super) info: Option<DeviceInfo>,
    /// Why the next opening puts it out, where it does.
    pub(super) lost: Option<ArrayError>,
    geometry: Option<Geometry>,
}

/// All devices of an array.
pub(super) struct SeenArray {
    devices: Vec<SeenDevice>,
    newest: ArrayPlace,
}

impl SeenArray {
    /// Looks at these files, in this order. `alone` as it is for opening.
    ///
    /// # Errors
    /// All that is wrong, for a person, a line each.
    pub(super) fn look(files: &[PathBuf], alone: bool) -> Result<SeenArray, String> {
        let (mut found, mut infos) = (Vec::new(), Vec::new());
        for (device, file) in (1..).zip(files) {
            let view = open(file).map_err(|error| ArrayError::Device { device, error });
            let (place, info) = match view {
                Err(error) => (Err(error), None),
                Ok(mut view) => {
                    let overview = view.overview();
                    let place = ArrayPlace::of(device, view.device());
                    (place, Some((overview.info, overview.geometry)))
                }
            };
            found.push(place);
            infos.push(info);
        }
        let (newest, mut lost) = next_opening(found, alone).map_err(|wrong| told(files, &wrong))?;
        let members = newest.members();
        let device = |(place, ((file, member), info)): (usize, ((&PathBuf, ArrayMember), _))| {
            let info: Option<(DeviceInfo, Geometry)> = if member.is_out { None } else { info };
            let (info, geometry) = info.unzip();
            SeenDevice { file: file.clone(), member, info, geometry, lost: lost.remove(&place) }
        };
        let devices = (1..).zip(files.iter().zip(members).zip(infos)).map(device).collect();
        Ok(SeenArray { devices, newest })
    }

    pub(super) fn devices(&self) -> &[SeenDevice] {
        &self.devices
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.devices.iter().map(|device| device.file.clone()).collect()
    }

    /// The map that is in force, as the next opening has it.
    pub(super) fn newest(&self) -> &ArrayPlace {
        &self.newest
    }

    /// Whether a device, by its place from 0, works.
    pub(super) fn is_in(&self, place: usize) -> bool {
        self.devices.get(place).is_some_and(|device| !device.member.is_out)
    }

    /// How many of its devices work.
    pub(super) fn working(&self) -> usize {
        self.devices.iter().filter(|device| !device.member.is_out).count()
    }

    /// Refuses an array that the next opening would have go on without a device, unless that is the one which is meant.
    pub(super) fn check_all_there(&self, but: Option<&Path>) -> Result<(), String> {
        let lost = self.devices.iter().filter(|device| Some(&*device.file) != but);
        let lines: Vec<String> = lost.filter_map(lost_text).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let url = super::url(&self.files());
        Err(format!(
            "{}\nhedgerow: nothing was changed; hedgerow kvssd replace {url} puts another device in its place, and hedgerow kvssd rebuild {url} goes on without it",
            lines.join("\nhedgerow: ")
        ))
    }

    /// The geometry of its longest device.
    pub(super) fn longest(&self) -> Option<Geometry> {
        self.devices.iter().filter_map(|device| device.geometry).max_by_key(Geometry::bytes)
    }

    /// Bytes of the longest value that all of its devices take.
    pub(super) fn value_bytes_max(&self) -> u64 {
        let geometries = self.devices.iter().filter_map(|device| device.geometry);
        geometries.map(|geometry| geometry.value_bytes_max()).min().unwrap_or(0)
    }

    /// About how many pairs so many copies of shards have.
    pub(super) fn pairs_of(&self, copies: usize) -> u64 {
        let pairs: u64 = self.devices.iter().filter_map(|device| Some(device.info.as_ref()?.pairs)).sum();
        let all: usize =
            self.devices.iter().map(|device| device.member.shards + device.member.second_copies).sum();
        pairs * copies as u64 / all.max(1) as u64
    }

    /// What is under way, as a noun.
    pub(super) fn work_text(&self, work: ArrayWork) -> String {
        match work {
            ArrayWork::Nothing => "nothing".into(),
            ArrayWork::Rebalance => "a rebalance".into(),
            ArrayWork::Rebuild => "the making of second copies".into(),
            ArrayWork::Remove { device } => {
                let file =
                    self.devices.get(device.wrapping_sub(1)).map(|seen| seen.file.display().to_string());
                format!("the removal of device {device} ({})", file.unwrap_or_default())
            }
        }
    }
}

/// That a device is about to be put out, and why.
pub(super) fn lost_text(device: &SeenDevice) -> Option<String> {
    let why = device.lost.as_ref()?;
    Some(format!("{} cannot be used, and the next opening goes on without it: {why}", device.file.display()))
}

fn told(files: &[PathBuf], wrong: &[ArrayError]) -> String {
    let line = |error: &ArrayError| match error {
        ArrayError::Device { device, error } => {
            files.get(device - 1).map_or_else(|| error.to_string(), |file| refusal(file, error))
        }
        ArrayError::Undecided { .. } => format!("{} (here: --alone)", named(files, "as an array", error)),
        error => named(files, "as an array", error),
    };
    if wrong.is_empty() {
        let url = super::url(files);
        return format!("no array was made of these devices yet: hedgerow serve --store {url} makes one");
    }
    wrong.iter().map(line).collect::<Vec<_>>().join("\nhedgerow: ")
}
