//! How much memory a process may have.
//!
//! Owns: what the machine has, and what the control groups the process is in allow (of Linux, both versions), in all and at the moment. Must not know what it is for.

use std::path::Path;

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// The most memory this process can come to use, page cache included, in bytes: what the machine has, or less where a control group of
/// the process, or one above it, allows less. `None` where nothing says so. It reads files.
pub fn memory_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(of_groups(&groups, Path::new(GROUPS))).min()
}

/// How much of that could be had now, in bytes, what files have of the page cache counted in: it makes way. `None` where nothing says so. It reads files.
pub fn available_memory_bytes() -> Option<u64> {
    let machine =
        std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text, "MemAvailable:"));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    machine.into_iter().chain(least(&groups, Path::new(GROUPS), Memory::left)).min()
}

fn of_machine(meminfo: &str) -> Option<u64> {
    of_meminfo(meminfo, "MemTotal:")
}

fn of_meminfo(meminfo: &str, name: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The least limit of the groups in `of_process`, which are mounted at `mounted`.
fn of_groups(of_process: &str, mounted: &Path) -> Option<u64> {
    least(of_process, mounted, Memory::limit)
}

/// What a version of control groups calls what it says of memory.
#[derive(Debug, Clone, Copy)]
struct Memory {
    limit: &'static str,
    used: &'static str,
    /// In `memory.stat`: what files have of the page cache.
    of_files: [&'static str; 2],
}

const ONE: Memory = Memory {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    of_files: ["total_inactive_file ", "total_active_file "],
};
const TWO: Memory =
    Memory { limit: "memory.max", used: "memory.current", of_files: ["inactive_file ", "active_file "] };

impl Memory {
    fn limit(self, group: &Path) -> Option<u64> {
        number_in(&group.join(self.limit))
    }

    fn left(self, group: &Path) -> Option<u64> {
        let (limit, used) = (self.limit(group)?, number_in(&group.join(self.used))?);
        let stat = std::fs::read_to_string(group.join("memory.stat")).ok()?;
        let of_files = self.of_files.iter().map(|name| {
            let rest = stat.lines().find_map(|line| line.strip_prefix(name));
            rest.and_then(|rest| rest.parse().ok()).unwrap_or(0)
        });
        Some(limit.saturating_sub(used.saturating_sub(of_files.sum())))
    }
}

fn number_in(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The least that `asked` says of the groups in `of_process`, which are mounted at `mounted`, and of those above them. In a container the group that it sees
/// as the outermost may be mounted without the path that is told.
fn least(of_process: &str, mounted: &Path, asked: fn(Memory, &Path) -> Option<u64>) -> Option<u64> {
    let of_groups = of_process.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (memory, mounted) = match controllers {
            "" => (TWO, mounted.to_path_buf()),
            _ if controllers.split(',').any(|name| name == "memory") => (ONE, mounted.join("memory")),
            _ => return None,
        };
        let group = mounted.join(path.trim_start_matches('/'));
        let above = group.ancestors().take_while(|group| group.starts_with(&mounted));
        above.filter_map(|group| asked(memory, group)).min()
    });
    of_groups.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        assert_eq!(of_machine("MemTotal:       24684136 kB\nMemFree: 1 kB\n"), Some(24_684_136 << 10));
        let mounted = std::env::temp_dir().join(format!("hedgerow-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = mounted.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/a/memory.limit_in_bytes", "500000000\n");
        write("one/memory.max", "max\n");
        write("one/two/memory.max", "700000000\n");
        let of = |text| of_groups(text, &mounted);
        assert_eq!(of("5:cpu,cpuacct:/a\n4:memory:/a/b\n"), Some(500_000_000));
        assert_eq!(of("0::/one/two/three\n"), Some(700_000_000));
        assert_eq!((of("0::/one\n"), of("4:memory:/elsewhere\n"), of("")), (None, None, None));
        // What files have of the page cache makes way; where the use is not known, nothing is said.
        let left = |text| least(text, &mounted, Memory::left);
        assert_eq!(left("0::/one/two/three\n"), None);
        write("one/two/memory.current", "650000000\n");
        write("one/two/memory.stat", "anon 1\ninactive_file 50000000\nactive_file 7\nfile 9\n");
        assert_eq!(left("0::/one/two/three\n"), Some(100_000_007));
        write("memory/a/memory.usage_in_bytes", "600000000\n");
        write("memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 3\ntotal_active_file 4\n");
        assert_eq!(left("4:memory:/a/b\n"), Some(0), "more is used than is allowed");
        std::fs::remove_dir_all(&mounted).unwrap();
        let of_machine = "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:   3 kB\n";
        assert_eq!(of_meminfo(of_machine, "MemAvailable:"), Some(3 << 10));
        assert!(available_memory_bytes().unwrap() <= memory_bytes().unwrap());
        assert!(memory_bytes().is_some_and(|bytes| bytes > 16 << 20));
    }
}
