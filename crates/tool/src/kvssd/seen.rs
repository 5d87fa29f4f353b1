//! Devices that nobody has open, looked at together.
//!
//! Owns [`SeenArray`]. Promises that files are one only if opening takes them as that array, and that no byte of any is changed. Must not know what is done with it.

use std::path::PathBuf;

use hedgerow_kvssd::{ArrayPlace, ArrayWork, DeviceInfo, Geometry, check_places};

use crate::inspect::devices::{open, refusal};
use crate::kvssd_store::named;

/// A device, as it was left.
pub(super) struct SeenDevice {
    pub(super) file: PathBuf,
    pub(super) place: ArrayPlace,
    pub(super) info: DeviceInfo,
    geometry: Geometry,
}

/// All devices of an array.
pub(super) struct SeenArray {
    devices: Vec<SeenDevice>,
}

impl SeenArray {
    /// Looks at these files, in this order.
    ///
    /// # Errors
    /// All that is wrong, for a person, a line each.
    pub(super) fn look(files: &[PathBuf]) -> Result<SeenArray, String> {
        let (mut places, mut infos, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        for (number, file) in (1..).zip(files) {
            let mut view = match open(file) {
                Ok(view) => view,
                Err(error) => {
                    wrong.push(refusal(file, &error));
                    continue;
                }
            };
            let overview = view.overview();
            infos.push((overview.info, overview.geometry));
            match ArrayPlace::of(number, view.device()) {
                Ok(place) => places.push(place),
                Err(error) => wrong.push(format!("{}: {error}", file.display())),
            }
        }
        if wrong.is_empty() {
            wrong.extend(check_places(&places).iter().map(|error| named(files, "as an array", error)));
        }
        if wrong.is_empty() && !places.iter().flatten().any(|place| place.generation() > 0) {
            let url = super::url(files);
            wrong.push(format!(
                "no array was made of these devices yet: hedgerow serve --store {url} makes one"
            ));
        }
        if !wrong.is_empty() {
            return Err(wrong.join("\nhedgerow: "));
        }
        let of_file = |((file, place), info): ((&PathBuf, Option<ArrayPlace>), (DeviceInfo, Geometry))| {
            Some(SeenDevice { file: file.clone(), place: place?, info: info.0, geometry: info.1 })
        };
        Ok(SeenArray { devices: files.iter().zip(places).zip(infos).filter_map(of_file).collect() })
    }

    pub(super) fn devices(&self) -> &[SeenDevice] {
        &self.devices
    }

    /// The copy of the map that is in force.
    pub(super) fn newest(&self) -> &ArrayPlace {
        let newest = self.devices.iter().map(|device| &device.place).max_by_key(|place| place.generation());
        newest.expect("an array that was looked at has a device")
    }

    /// The geometry of its longest device.
    pub(super) fn longest(&self) -> Geometry {
        let longest = self.devices.iter().map(|device| device.geometry).max_by_key(Geometry::bytes);
        longest.expect("an array that was looked at has a device")
    }

    /// Bytes of the longest value that all of its devices take.
    pub(super) fn value_bytes_max(&self) -> u64 {
        self.devices.iter().map(|device| device.geometry.value_bytes_max()).min().unwrap_or(0)
    }

    /// All pairs, and all shards that they are spread over.
    pub(super) fn pairs_and_shards(&self) -> (u64, usize) {
        let pairs = self.devices.iter().map(|device| device.info.pairs).sum();
        (pairs, self.newest().shards().1)
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
