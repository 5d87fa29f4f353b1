//! How much memory a process may have.
//!
//! Owns: what the machine has, and what the control groups the process is in allow (of Linux, both versions). Must not know what it is for.

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

fn of_machine(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The least limit of the groups in `of_process`, which are mounted at `mounted`.
fn of_groups(of_process: &str, mounted: &Path) -> Option<u64> {
    let limits = of_process.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        match controllers {
            "" => limit(mounted, path, "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                limit(&mounted.join("memory"), path, "memory.limit_in_bytes")
            }
            _ => None,
        }
    });
    limits.min()
}

/// The least limit of the group at `path` below `mounted` and of those above it. In a container the group that it sees as the
/// outermost may be mounted without the path that is told.
fn limit(mounted: &Path, path: &str, file: &str) -> Option<u64> {
    let group = mounted.join(path.trim_start_matches('/'));
    let above = group.ancestors().take_while(|group| group.starts_with(mounted));
    let limit = |group: &Path| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    above.filter_map(limit).min()
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
        std::fs::remove_dir_all(&mounted).unwrap();
        assert!(memory_bytes().is_some_and(|bytes| bytes > 16 << 20));
    }
}
