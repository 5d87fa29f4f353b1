//! A machine with several devices, in virtual time: where it stops being faster with each device more.
//!
//! Owns [`NodeModel`]. Promises the same figures from the same numbers. Must not know what commands do: a device is a rate and a latency here, as `SimHost` gives them, or a drive.
//!
//! Devices share nothing, so alone they are as many times as fast as there are of them. What they share is the machine: cores, which each command takes for its time, and the memory's bus, over which each
//! command's bytes go, one after another. Both are first come, first served. Every number is the caller's: what a command takes of a core is to be measured, of each library by itself.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hedgerow_device::Agenda;

use crate::code::{KvError, Result};

/// What devices of a machine share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeModel {
    /// Cores, which do one command at a time each.
    pub cores: u32,
    /// What a command takes of a core, in ns: as measured.
    pub cpu_ns: u64,
    /// Bytes a second over the bus that devices share.
    pub bus_bytes_a_second: u64,
}

/// What the devices do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLoad {
    /// How many there are.
    pub devices: u32,
    /// Commands under way on each.
    pub depth: u32,
    /// From one completion of a busy device to the next, in ns.
    pub device_ns: u64,
    /// How much longer a command takes that comes to an idle device, in ns.
    pub latency_ns: u64,
    /// Bytes of a command.
    pub bytes: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeFigures {
    /// Commands a second, of all devices.
    pub a_second: f64,
    /// Cores that were busy, on average.
    pub cores_busy: f64,
    /// The share of the time that the bus was busy.
    pub bus_busy: f64,
    /// Half of the commands were complete in so many ns, and 99 of 100.
    pub latency_ns: [u64; 2],
}

/// A command of a device that has a core, and when it was given.
#[derive(Debug, Clone, Copy)]
struct NodeCommand {
    device: usize,
    started_ns: u64,
}

#[derive(Debug, Clone, Copy)]
enum NodeDue {
    Computed(NodeCommand),
    Transferred(NodeCommand),
    Complete(NodeCommand),
}

struct NodeRun {
    model: NodeModel,
    load: NodeLoad,
    agenda: Agenda<NodeDue>,
    /// When each core is free.
    cores: BinaryHeap<Reverse<u64>>,
    bus_free_ns: u64,
    devices_free_ns: Vec<u64>,
    latencies: Vec<u64>,
}

impl NodeRun {
    fn start(&mut self, device: usize) {
        let started_ns = self.agenda.now_ns();
        let Reverse(free_ns) = self.cores.pop().unwrap_or_default();
        let end_ns = free_ns.max(started_ns) + self.model.cpu_ns;
        self.cores.push(Reverse(end_ns));
        self.agenda.put(end_ns, NodeDue::Computed(NodeCommand { device, started_ns }));
    }

    fn bus_ns(&self) -> u64 {
        let ns = u128::from(self.load.bytes) * 1_000_000_000 / u128::from(self.model.bus_bytes_a_second);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Goes on by one part; the device whose command is complete then.
    fn go_on(&mut self) -> Option<Option<usize>> {
        let due = self.agenda.take_next()?;
        let now_ns = self.agenda.now_ns();
        match due {
            NodeDue::Computed(command) => {
                self.bus_free_ns = self.bus_free_ns.max(now_ns) + self.bus_ns();
                self.agenda.put(self.bus_free_ns, NodeDue::Transferred(command));
            }
            NodeDue::Transferred(command) => {
                let free_ns = &mut self.devices_free_ns[command.device];
                *free_ns = (*free_ns).max(now_ns) + self.load.device_ns;
                self.agenda.put(*free_ns + self.load.latency_ns, NodeDue::Complete(command));
            }
            NodeDue::Complete(command) => {
                self.latencies.push(now_ns - command.started_ns);
                return Some(Some(command.device));
            }
        }
        Some(None)
    }
}

impl NodeModel {
    /// Runs so many commands of each device, in a closed loop.
    ///
    /// # Errors
    /// [`KvError::Param`]: no cores, no bus, no devices, nothing under way, no commands, or a time that no machine has.
    pub fn run(&self, load: NodeLoad, commands_a_device: u32) -> Result<NodeFigures> {
        let counts = [self.cores, load.devices, load.depth, commands_a_device];
        if counts.contains(&0) || self.bus_bytes_a_second == 0 {
            return Err(KvError::Param { what: "a node has cores, a bus and devices with commands" });
        }
        if [self.cpu_ns, load.device_ns, load.latency_ns, load.bytes].iter().any(|&n| n > 1 << 40) {
            return Err(KvError::Param { what: "a time, or bytes, of a command that no machine has" });
        }
        let mut run = NodeRun {
            model: *self,
            load,
            agenda: Agenda::default(),
            cores: (0..self.cores).map(|_| Reverse(0)).collect(),
            bus_free_ns: 0,
            devices_free_ns: vec![0; load.devices as usize],
            latencies: Vec::new(),
        };
        let mut left: VecDeque<u32> = vec![commands_a_device; load.devices as usize].into();
        // In turns, so that no device has all cores first.
        for _ in 0..load.depth {
            for (device, left) in left.iter_mut().enumerate().filter(|(_, left)| **left > 0) {
                *left -= 1;
                run.start(device);
            }
        }
        while let Some(complete) = run.go_on() {
            if let Some(device) = complete
                && left[device] > 0
            {
                left[device] -= 1;
                run.start(device);
            }
        }
        let (count, ns) = (run.latencies.len() as f64, run.agenda.now_ns().max(1) as f64);
        run.latencies.sort_unstable();
        let part =
            |share: usize| run.latencies[(run.latencies.len() * share / 100).min(run.latencies.len() - 1)];
        Ok(NodeFigures {
            a_second: count * 1e9 / ns,
            cores_busy: count * self.cpu_ns as f64 / ns,
            bus_busy: count * run.bus_ns() as f64 / ns,
            latency_ns: [part(50), part(99)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flash::drive_model::{DriveModel, FrontKind};

    /// Half of the machine that such devices were shown on: 48 hardware threads and 24 GB/s a node of memory.
    fn node(cpu_ns: u64) -> NodeModel {
        NodeModel { cores: 48, cpu_ns, bus_bytes_a_second: 24_000_000_000 }
    }

    /// How many devices' worth so many of them give.
    fn speed_up(node: &NodeModel, kind: FrontKind, bytes: u64, devices: u32) -> f64 {
        let device_ns = DriveModel::default().front_ns(kind, 16, bytes);
        let load = NodeLoad { devices, depth: 64, device_ns, latency_ns: 100_000, bytes };
        let all = node.run(load, 3_000).unwrap().a_second;
        all * device_ns as f64 / 1e9
    }

    #[test]
    fn devices_scale_until_the_bus_is_full() {
        for (kind, bytes) in [(FrontKind::Insert, 64), (FrontKind::Insert, 4096), (FrontKind::Retrieve, 4096)]
        {
            let speed_up = speed_up(&node(2_000), kind, bytes, 18);
            assert!((17.2..18.0).contains(&speed_up), "{kind:?} of {bytes}: {speed_up:.2}");
        }
        // 1.61 GB/s of a device go into 24 GB/s 14.9 times; of values of 1 MiB, 1.93, 12.4 times.
        for (bytes, most) in [(64 << 10, 14.9), (1 << 20, 12.4)] {
            let of = |devices| speed_up(&node(2_000), FrontKind::Insert, bytes, devices);
            assert!(of(12) > 11.4, "{bytes}: {:.2}", of(12));
            assert!((of(18) - most).abs() < 0.3, "{bytes}: {:.2}", of(18));
        }
    }

    /// Cores that are just enough for 18 devices are not when each command takes twice as much of them.
    #[test]
    fn twice_the_time_of_a_core_bends_the_curve() {
        let of = |cpu_ns, devices| speed_up(&node(cpu_ns), FrontKind::Insert, 4096, devices);
        assert!(of(20_000, 18) > 17.0, "{:.2}", of(20_000, 18));
        let (half, all) = (of(40_000, 9), of(40_000, 18));
        // 48 cores at 40 us are 1.2 million commands a second, and a device does 107,700.
        assert!(half > 8.5 && (10.8..11.3).contains(&all), "{half:.2} {all:.2}");
        let load = NodeLoad { devices: 18, depth: 64, device_ns: 9_288, latency_ns: 0, bytes: 4096 };
        let figures = node(40_000).run(load, 3_000).unwrap();
        assert!(figures.cores_busy > 47.0 && figures.bus_busy < 0.3, "{figures:?}");
        assert!(node(40_000).run(load, 3_000).unwrap() == figures, "one model is one run");
    }

    #[test]
    fn a_node_without_something_is_refused() {
        let load = NodeLoad { devices: 1, depth: 1, device_ns: 1, latency_ns: 1, bytes: 1 };
        node(1).run(load, 1).unwrap();
        for (node, load, commands) in [
            (NodeModel { cores: 0, ..node(1) }, load, 1),
            (NodeModel { bus_bytes_a_second: 0, ..node(1) }, load, 1),
            (node(u64::MAX), load, 1),
            (node(1), NodeLoad { depth: 0, ..load }, 1),
            (node(1), NodeLoad { bytes: u64::MAX, ..load }, 1),
            (node(1), load, 0),
        ] {
            assert!(matches!(node.run(load, commands), Err(KvError::Param { .. })), "{node:?} {load:?}");
        }
    }
}
