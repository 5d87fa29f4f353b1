//! Control groups of Linux, both versions, as far as a bound on memory needs them.
//!
//! Owns the names of files and groups. Promises that a group is bounded before anybody is in it, that swap is no way around the
//! bound, and that a group is removed when it is dropped; groups of runs that were killed are removed by the next one.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Refusal;

/// What groups of ours are called, before the number of the process.
const PREFIX: &str = "hedgerow-compare-";
/// How often the removal of a group is tried, 10 ms apart: the kernel may take a moment after the last process.
const REMOVALS: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The files that bound memory, in the order of writing, what goes into each, and whether it must be there: a kernel that
    /// does not account for swap has none for it.
    fn limits(self, bytes: u64) -> [(&'static str, u64, bool); 2] {
        match self {
            Version::One => {
                [("memory.limit_in_bytes", bytes, true), ("memory.memsw.limit_in_bytes", bytes, false)]
            }
            Version::Two => [("memory.max", bytes, true), ("memory.swap.max", 0, false)],
        }
    }
}

/// A group below which groups can be made.
#[derive(Debug, Clone)]
pub(crate) struct Hierarchy {
    version: Version,
    parent: PathBuf,
}

impl fmt::Display for Hierarchy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.version == Version::One { "v1" } else { "v2" };
        write!(out, "{version}, below {}", self.parent.display())
    }
}

impl Hierarchy {
    /// The first that lets us make a group of `bytes`, or why none does.
    pub(crate) fn find(bytes: u64) -> Result<Hierarchy, Vec<Refusal>> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut refusals = Vec::new();
        for hierarchy in candidates(&read("/proc/self/mounts"), &read("/proc/self/cgroup")) {
            hierarchy.remove_left_over();
            match hierarchy.make(bytes) {
                Ok(_) => return Ok(hierarchy),
                Err(refusal) => refusals.push(refusal),
            }
        }
        Err(refusals)
    }

    /// A new group, bounded.
    pub(crate) fn make(&self, bytes: u64) -> Result<Group, Refusal> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = self.parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&path).map_err(|error| Refusal { path: path.clone(), error })?;
        let group = Group { path };
        for (name, value, must_be_there) in self.version.limits(bytes) {
            if must_be_there || group.path.join(name).exists() {
                group.write(name, value)?;
            }
        }
        Ok(group)
    }

    /// Removes the groups of runs that are gone; those of others stay.
    fn remove_left_over(&self) {
        let Ok(entries) = fs::read_dir(&self.parent) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
            if number.is_some_and(|number| !Path::new("/proc").join(number).exists()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// Where a group may be made: at the top, and below the one this process is in, for those who may do so only there. The top
/// comes first: in version 2 a group that has processes itself cannot bound groups below.
fn candidates(mounts: &str, own: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(place), Some(kind), Some(options)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let version = match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::One,
            "cgroup2" => Version::Two,
            _ => continue,
        };
        let top = PathBuf::from(place);
        let below = own_group(own, version).map(|path| top.join(path.trim_start_matches('/')));
        for parent in std::iter::once(top.clone()).chain(below) {
            if !found.iter().any(|other: &Hierarchy| other.parent == parent) {
                found.push(Hierarchy { version, parent });
            }
        }
    }
    found
}

/// The group this process is in, by `/proc/self/cgroup`: lines of `number:controllers:path`.
fn own_group(own: &str, version: Version) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_it = match version {
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
            Version::Two => controllers.is_empty(),
        };
        is_it.then_some(path)
    })
}

/// A bounded group; removed when dropped, which must be after its processes have ended.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// Puts a process into it.
    pub(crate) fn admit(&self, process: u32) -> Result<(), Refusal> {
        self.write("cgroup.procs", u64::from(process))
    }

    #[cfg(test)]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn write(&self, name: &str, value: u64) -> Result<(), Refusal> {
        let path = self.path.join(name);
        // A file of the kernel's is written, never made: where it is missing there is no such bound.
        let written = fs::OpenOptions::new().write(true).open(&path);
        let written =
            written.and_then(|mut file| io::Write::write_all(&mut file, value.to_string().as_bytes()));
        written.map_err(|error| Refusal { path, error })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_in_both_versions() {
        let places = |mounts: &str, own: &str| -> Vec<String> {
            candidates(mounts, own).iter().map(ToString::to_string).collect()
        };
        let one = "proc /proc proc rw 0 0\ncgroup /cg/memory cgroup rw,relatime,memory 0 0\ncgroup /cg/cpu cgroup rw,cpu 0 0\n";
        let own = "4:memory:/user/me\n2:cpu:/\n0::/elsewhere\n";
        assert_eq!(places(one, own), ["v1, below /cg/memory", "v1, below /cg/memory/user/me"]);
        assert_eq!(places(one, "4:memory:/\n"), ["v1, below /cg/memory"]);
        let two = "cgroup2 /cg cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(places(two, own), ["v2, below /cg", "v2, below /cg/elsewhere"]);
        assert!(places("tmpfs /tmp tmpfs rw 0 0\n", own).is_empty());
    }

    #[test]
    fn a_place_without_the_controller_is_refused_by_name() {
        let parent = std::env::temp_dir().join(format!("{PREFIX}test-{}", std::process::id()));
        fs::create_dir_all(&parent).unwrap();
        for (version, missing) in [(Version::One, "memory.limit_in_bytes"), (Version::Two, "memory.max")] {
            let refusal = Hierarchy { version, parent: parent.clone() }.make(1 << 30).unwrap_err();
            assert!(refusal.path.ends_with(missing), "{refusal}");
            assert_eq!(refusal.error.kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0, "what could not be bounded was removed");
        let stale = parent.join(format!("{PREFIX}{}-0", u32::MAX));
        let other = parent.join("another");
        fs::create_dir(&stale).unwrap();
        fs::create_dir(&other).unwrap();
        Hierarchy { version: Version::Two, parent: parent.clone() }.remove_left_over();
        assert!(!stale.exists() && other.exists());
        fs::remove_dir_all(&parent).unwrap();
    }
}
