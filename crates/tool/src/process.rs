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

/// Whether this process ignores a signal, as `nohup` has it of SIGHUP: whoever started it wanted that. No where the system does not say.
pub fn ignores(signal: i32) -> bool {
    is_ignored(&read("/proc/self/status").unwrap_or_default(), signal)
}

fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    // One bit a signal, from 1 on.
    mask >> (signal - 1) & 1 == 1
}

/// The memory of the machine in bytes.
pub fn machine_memory() -> Result<u64, String> {
    number("/proc/meminfo", "MemTotal:").map(|kb| kb << 10)
}

/// Where a process stands among the others; 0 stands for what is outside of this container (its namespace of processes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The process that started it, or took it over.
    pub parent: i32,
    /// Its process group, which a terminal's keys signal as one.
    pub group: i32,
    /// Its session: the groups of one terminal.
    pub session: i32,
}

impl Standing {
    /// That of this process. Read from a file, because the calls of `rustix` for it panic where the answer is 0.
    pub fn own() -> Option<Standing> {
        Standing::parse(&read("/proc/self/stat").ok()?)
    }

    /// That of another process, if it is there and in sight.
    pub fn of(process: i32) -> Option<Standing> {
        Standing::parse(&read(&format!("/proc/{process}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Standing> {
        // The name of the program, in parentheses, may have any letters.
        let mut numbers = stat.rsplit_once(')')?.1.split_whitespace().skip(1).map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Standing { parent: next()?, group: next()?, session: next()? })
    }
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
    fn ignored_signals_are_bits() {
        let status = "SigBlk:\tffffffffffffffff\nSigIgn:\t0000000000004001\nSigCgt:\tffffffffffffffff\n";
        assert_eq!([1, 2, 15].map(|signal| is_ignored(status, signal)), [true, false, true]);
        assert!(!is_ignored("", 1) && !is_ignored("SigIgn:\tx\n", 1));
    }

    #[test]
    fn a_process_stands_where_the_kernel_says() {
        let in_container = Standing { parent: 3, group: 9, session: 0 };
        assert_eq!(Standing::parse("9 (a ) 7) S 3 9 0 0 -1 4194560"), Some(in_container));
        assert_eq!(Standing::parse("9 (name) S 3 9"), None);
        let own = Standing::own().unwrap();
        assert_eq!(Some(own), Standing::of(i32::try_from(std::process::id()).unwrap()));
        assert_eq!(Standing::of(0), None);
        assert_eq!(own.parent, rustix::process::getppid().map_or(0, |parent| parent.as_raw_pid()));
    }

    #[test]
    fn memory_is_what_the_kernel_says() {
        let status =
            "Name:\tx\nVmHWM:\t 9999 kB\nVmRSS:\t    5000 kB\nRssAnon:\t    3000 kB\nRssFile:\t 2000 kB\n";
        assert_eq!(Memory::parse(status), Some(Memory { anonymous: 3000 << 10, rss: 5000 << 10 }));
        assert_eq!(Memory::parse("VmRSS:\t5 kB\n"), None);
        let now = Memory::now().unwrap();
        assert!(now.anonymous > 0 && now.rss > now.anonymous && machine_memory().unwrap() > now.rss);
        assert!(number("/proc/meminfo", "Nothing:").unwrap_err().contains("no number for Nothing:"));
        assert!(number("/proc/none", "Nothing:").unwrap_err().contains("reading /proc/none"));
    }
}
