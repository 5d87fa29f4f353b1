//! What the kernel says of this process and its machine, as numbers behind names in the files below `/proc`.
//!
//! Owns the reading of such files. Promises that a number that cannot be read is an error, not a zero. By hand, because five
//! numbers are wanted: the crate `procfs` parses some hundred fields for them at each look, and brings three more crates.

use std::fs;

/// Resident memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// All resident pages, those of mapped files (the store's above all) included.
    pub rss: u64,
    /// Resident anonymous pages, which are no file's: index, row cache, buffers, stacks.
    pub anonymous: u64,
}

impl Memory {
    /// The sizes now: one read of a few hundred bytes that the kernel makes up.
    pub fn now() -> Result<Memory, String> {
        const STATUS: &str = "/proc/self/status";
        Memory::parse(&read(STATUS)?).ok_or_else(|| format!("{STATUS} has no sizes of memory"))
    }

    fn parse(status: &str) -> Option<Memory> {
        let kilobytes = |name| number_in(status, name).map(|kb| kb << 10);
        Some(Memory { rss: kilobytes("VmRSS:")?, anonymous: kilobytes("RssAnon:")? })
    }
}

/// The memory of the machine in bytes.
pub fn machine_memory() -> Result<u64, String> {
    number("/proc/meminfo", "MemTotal:").map(|kb| kb << 10)
}

/// The process that started another, or took it over.
pub fn parent_of(process: i32) -> Option<i32> {
    let stat = read(&format!("/proc/{process}/stat")).ok()?;
    // Its name, in parentheses, may have any letters.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The number behind `name` in a file.
pub fn number(path: &str, name: &str) -> Result<u64, String> {
    number_in(&read(path)?, name).ok_or_else(|| format!("{path} has no number for {name}"))
}

/// The text of a file of the kernel's.
pub fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("reading {path}: {error}"))
}

fn number_in(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_says() {
        let status =
            "Name:\tx\nVmHWM:\t 9999 kB\nVmRSS:\t    5000 kB\nRssAnon:\t    3000 kB\nRssFile:\t 2000 kB\n";
        assert_eq!(Memory::parse(status), Some(Memory { anonymous: 3000 << 10, rss: 5000 << 10 }));
        assert_eq!(Memory::parse("VmRSS:\t5 kB\n"), None);
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(parent_of(own), rustix::process::getppid().map(|parent| parent.as_raw_pid()));
        assert_eq!(parent_of(0), None);
        let now = Memory::now().unwrap();
        assert!(now.anonymous > 0 && now.rss > now.anonymous && machine_memory().unwrap() > now.rss);
        assert!(number("/proc/meminfo", "Nothing:").unwrap_err().contains("no number for Nothing:"));
        assert!(number("/proc/none", "Nothing:").unwrap_err().contains("reading /proc/none"));
    }
}
