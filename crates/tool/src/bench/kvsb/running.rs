//! The thread of a device, and what threads have of processors.
//!
//! Owns [`Running`] and the reading of the kernel's accounts of threads. Promises that an account that cannot be read is an error, not a zero. Must not know what devices are asked.

use std::time::{Duration, Instant};

use hedgerow_kvssd::{Device, DeviceThread};

use super::cores::Cores;
use crate::process::read;

/// What threads of devices are called.
const DEVICE_THREAD: &str = "hedgerow-kvssd";
const THREAD_START_MAX: Duration = Duration::from_secs(10);

/// A device with its thread.
pub(super) struct Running {
    pub(super) thread: DeviceThread,
    /// The kernel's number of it.
    pub(super) task: String,
    pub(super) cpu_before: Duration,
}

impl Running {
    /// A thread begins on the processors of the one that starts it.
    pub(super) fn start(device: Device, cores: Option<&Cores>, instance: usize) -> Result<Running, String> {
        let before = device_tasks()?;
        let thread = Cores::on(cores, instance, || DeviceThread::start(device));
        let thread = thread.map_err(|error| error.to_string())?;
        let task = new_task(&before)?;
        let cpu_before = task_cpu(&task)?;
        Ok(Running { thread, task, cpu_before })
    }

    /// The device, and what its thread had of a processor.
    pub(super) fn stop(self) -> Result<(Device, Duration), String> {
        let cpu = task_cpu(&self.task)?.saturating_sub(self.cpu_before);
        Ok((self.thread.stop().map_err(|error| error.to_string())?, cpu))
    }
}

/// The threads of this process that drive devices.
fn device_tasks() -> Result<Vec<String>, String> {
    let failed = |error| format!("reading /proc/self/task: {error}");
    let entries = std::fs::read_dir("/proc/self/task").map_err(failed)?;
    let tasks = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    // One that has ended since has no name.
    let name = |task: &str| read(&format!("/proc/self/task/{task}/comm")).unwrap_or_default();
    Ok(tasks.filter(|task| name(task).trim() == DEVICE_THREAD).collect())
}

/// The one that has come since. It names itself, once it runs.
fn new_task(before: &[String]) -> Result<String, String> {
    let start = Instant::now();
    while start.elapsed() < THREAD_START_MAX {
        if let Some(task) = device_tasks()?.into_iter().find(|task| !before.contains(task)) {
            return Ok(task);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Err("the thread of a device did not begin".into())
}

/// Processor time that a thread of this process has had.
pub(super) fn task_cpu(task: &str) -> Result<Duration, String> {
    let path = format!("/proc/self/task/{task}/schedstat");
    let text = read(&path)?;
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    ns.map(Duration::from_nanos).ok_or_else(|| format!("{path} has no time"))
}

/// What this thread has had.
pub(super) fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
