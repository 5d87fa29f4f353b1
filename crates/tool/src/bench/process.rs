//! What the process has used: processor time, bytes written, disk.
//!
//! Owns the reading of the kernel's accounts. Promises that an account that cannot be read is an error, not a zero.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::process::{number, read};

/// Running totals of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// User and system time of all threads.
    pub cpu: Duration,
    /// Bytes this process caused to be sent to storage: pages dirtied (`write_bytes` of `/proc/self/io`). A page dirtied
    /// again before it is written back counts once.
    pub bytes_written: u64,
    /// Bytes this process caused to be fetched from storage (`read_bytes` of `/proc/self/io`), read ahead or asked for.
    pub bytes_read: u64,
}

impl Usage {
    /// The totals now.
    pub fn now() -> Result<Usage, String> {
        Ok(Usage {
            cpu: cpu_time(),
            bytes_written: number("/proc/self/io", "write_bytes:")?,
            bytes_read: number("/proc/self/io", "read_bytes:")?,
        })
    }
}

/// Watches how much of the machine others use: a benchmark beside a compiler measures the compiler.
#[derive(Debug, Clone, Copy)]
pub struct Neighbours {
    since: Instant,
    all: Duration,
    own: Duration,
}

impl Neighbours {
    /// Begins to watch.
    pub fn watch() -> Result<Neighbours, String> {
        Ok(Neighbours { since: Instant::now(), all: busy_time()?, own: cpu_time() })
    }

    /// Processors that were busy with other than this process since, on average; the kernel's own work and time stolen by
    /// the host are among it.
    pub fn processors(&self) -> Result<f64, String> {
        let all = busy_time()?.saturating_sub(self.all);
        let others = all.saturating_sub(cpu_time() - self.own);
        // The kernel counts hundredths of a second: shorter spans say nothing.
        let elapsed = self.since.elapsed().as_secs_f64();
        Ok(if elapsed < 0.1 { 0.0 } else { others.as_secs_f64() / elapsed })
    }
}

/// Time that all processors together have spent on anything since the machine started.
fn busy_time() -> Result<Duration, String> {
    let text = read("/proc/stat")?;
    let line = text.lines().next().and_then(|line| line.strip_prefix("cpu "));
    let ticks: Option<Vec<u64>> =
        line.and_then(|line| line.split_whitespace().map(|ticks| ticks.parse().ok()).collect());
    match ticks.as_deref() {
        // user, nice, system, idle, iowait, irq, softirq, steal: all but idle and iowait; a tick is 10 ms.
        Some([user, nice, system, _, _, irq, softirq, steal, ..]) => {
            Ok(Duration::from_millis(10 * (user + nice + system + irq + softirq + steal)))
        }
        _ => Err("/proc/stat has no processor times".into()),
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Bytes of disk that the files under `directory` occupy (blocks allocated, not lengths). Files that vanish meanwhile
/// count nothing.
pub fn disk_bytes(directory: &Path) -> Result<u64, String> {
    let mut total = 0;
    let mut pending = vec![directory.to_path_buf()];
    while let Some(path) = pending.pop() {
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries {
            let entry = entry.map_err(|error| format!("listing {}: {error}", path.display()))?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => pending.push(entry.path()),
                Ok(metadata) => total += metadata.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    Ok(total)
}

/// Waits until the process has used less than 2 % of one processor for 300 ms: until flushes and compactions are done.
/// Gives up after `limit`; says whether it came to rest.
pub fn wait_until_idle(limit: Duration) -> bool {
    const STEP: Duration = Duration::from_millis(100);
    let start = Instant::now();
    let mut quiet_steps = 0;
    let mut before = cpu_time();
    while start.elapsed() < limit {
        std::thread::sleep(STEP);
        let now = cpu_time();
        quiet_steps = if now - before < STEP / 50 { quiet_steps + 1 } else { 0 };
        before = now;
        if quiet_steps == 3 {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_grow_with_use() {
        let before = Usage::now().unwrap();
        let start = Instant::now();
        while Usage::now().unwrap().cpu - before.cpu < Duration::from_millis(5) {
            assert!(start.elapsed() < Duration::from_secs(60), "60 s of work are not counted");
        }
    }

    #[test]
    fn own_work_is_not_the_neighbours() {
        let neighbours = Neighbours::watch().unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) {}
        let processors = std::thread::available_parallelism().unwrap().get() as f64;
        let others = neighbours.processors().unwrap();
        assert!((0.0..processors + 0.5).contains(&others), "{others} of {processors}");
    }

    #[test]
    fn disk_bytes_counts_below() {
        let directory = std::env::temp_dir().join(format!("hedgerow-disk-bytes-{}", std::process::id()));
        fs::create_dir_all(directory.join("below")).unwrap();
        fs::write(directory.join("below/file"), vec![7; 100_000]).unwrap();
        let file = fs::File::open(directory.join("below/file")).unwrap();
        file.sync_all().unwrap();
        let bytes = disk_bytes(&directory).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert!((100_000..200_000).contains(&bytes), "{bytes}");
    }
}
