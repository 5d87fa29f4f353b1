//! What the measurements were made on, in words.
//!
//! Owns the reading of the system's names for it. Promises a word for what cannot be read. Must not know what was measured.

use std::path::Path;

use hedgerow_device::PersistentMemoryModel;

/// The processor and how many, and the kernel.
pub(in crate::bench) fn machine() -> String {
    let line = |path: &str, name: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let found = text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        found.map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
    };
    let processor = line("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let kernel = line("/proc/sys/kernel/osrelease", "").unwrap_or_default();
    format!("{processor}, {} processors, Linux {kernel}", processors())
}

/// How many processors there are.
pub(in crate::bench) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// The kind of file system that a directory is on, and on what that is.
pub(in crate::bench) fn place(directory: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = std::fs::canonicalize(directory).ok().and_then(|directory| mounted(&mounts, &directory));
    found.unwrap_or_else(|| "a file system that is not known".into())
}

/// The mount of `directory` among those of the kernel's table.
fn mounted(mounts: &str, directory: &Path) -> Option<String> {
    let mut nearest: Option<(&str, &str, &str)> = None;
    for line in mounts.lines() {
        let mut words = line.split(' ');
        let (Some(device), Some(point), Some(kind)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        // Of mounts over each other the last one counts.
        if directory.starts_with(point) && nearest.is_none_or(|(_, other, _)| point.len() >= other.len()) {
            nearest = Some((device, point, kind));
        }
    }
    nearest.map(|(device, _, kind)| if device == kind { kind.into() } else { format!("{kind} on {device}") })
}

/// What the emulated medium plays, here.
pub(in crate::bench) fn emulation() -> String {
    let model = PersistentMemoryModel::optane();
    let here = model.latency_here();
    format!(
        "Intel Optane DC persistent memory, one DIMM of the first generation: random read {} ns and sequential read {} ns \
         per 256 bytes against {} ns for DRAM. DRAM takes {} ns a random line here, so those reads take {} ns and {} ns here in all; \
         {} lines of 64 bytes under way from a thread, {:.1} GB/s of read and {:.1} GB/s of write bandwidth shared by all \
         threads, {} KB of write buffer, {} MB of processor cache in front. Izraelevitz et al., Basic Performance Measurements of \
         the Intel Optane DC Persistent Memory Module (2019); Yang et al., An Empirical Guide to the Behavior and Use of \
         Scalable Persistent Memory (FAST 2020). Figures on this medium are the model's.",
        model.read_latency_ns,
        model.sequential_read_latency_ns,
        model.base_latency_ns,
        here.dram_ns,
        here.random_ns,
        here.sequential_ns,
        model.lines_in_flight,
        model.read_bandwidth as f64 / 1e9,
        model.write_bandwidth as f64 / 1e9,
        model.write_buffer_bytes >> 10,
        model.cache_bytes >> 20,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_counts() {
        let mounts = "/dev/sda1 / ext4 rw 0 0\ntmpfs /dev tmpfs rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n";
        let place = |directory: &str| mounted(mounts, Path::new(directory)).unwrap();
        assert_eq!(place("/home/a"), "ext4 on /dev/sda1");
        assert_eq!(place("/dev/shm/stores"), "tmpfs");
        assert_eq!(place("/device"), "ext4 on /dev/sda1");
        assert_eq!(mounted("", Path::new("/home")), None);
    }
}
