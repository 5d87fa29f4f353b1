//! Which processors the threads of an instance have.
//!
//! Owns the order in which processors are given to instances. Promises that the two threads of an instance are on one node of memory where that node has two processors left, and that instances take the nodes in turn.
//! Must not know what threads do. What a thread touches first lies on its own node (the kernel's default policy), so whoever makes an instance does it on one of the instance's processors ([`Cores::on`]).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const NODES: &str = "/sys/devices/system/node";
/// Threads of an instance: a client's and a device's.
const THREADS: usize = 2;

/// The processors that this process may run on.
#[derive(Debug)]
pub(super) struct Cores {
    /// Two for each instance, in their order.
    numbers: Vec<usize>,
    /// The system refused one of them to a thread: figures are the noisier.
    is_refused: AtomicBool,
}

impl Cores {
    /// None if there are less than two for each instance.
    pub(super) fn enough_for(instances: usize) -> Option<Cores> {
        let own = sched_getaffinity(None).ok()?;
        let own: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| own.is_set(core)).collect();
        let numbers = by_node(&nodes(Path::new(NODES)), &own);
        let is_enough = numbers.len() >= THREADS * instances;
        is_enough.then_some(Cores { numbers, is_refused: AtomicBool::new(false) })
    }

    /// Leaves this thread the processor of an instance's client.
    pub(super) fn pin_client(&self, instance: usize) {
        self.pin(THREADS * instance);
    }

    /// Leaves this thread the processor of an instance's device.
    pub(super) fn pin_device(&self, instance: usize) {
        self.pin(THREADS * instance + 1);
    }

    fn pin(&self, at: usize) {
        let mut set = CpuSet::new();
        set.set(self.numbers[at % self.numbers.len()]);
        self.keep(&set);
    }

    /// Does something on the processor of an instance's device; this thread has its own again afterwards.
    pub(super) fn on<T>(cores: Option<&Cores>, instance: usize, work: impl FnOnce() -> T) -> T {
        let own = cores.and_then(|cores| Some((cores, sched_getaffinity(None).ok()?)));
        if let Some((cores, _)) = &own {
            cores.pin_device(instance);
        }
        let done = work();
        if let Some((cores, own)) = own {
            cores.keep(&own);
        }
        done
    }

    fn keep(&self, set: &CpuSet) {
        if sched_setaffinity(None, set).is_err() {
            self.is_refused.store(true, Ordering::Relaxed);
        }
    }

    /// Whether each thread got what it was to have.
    pub(super) fn hold_all(&self) -> bool {
        !self.is_refused.load(Ordering::Relaxed)
    }
}

/// How many nodes of memory the machine has; 1 where that cannot be read.
pub(super) fn node_count() -> usize {
    nodes(Path::new(NODES)).len().max(1)
}

/// The processors of each node of memory, in the order of the nodes. None where the system does not say.
fn nodes(directory: &Path) -> Vec<Vec<usize>> {
    let mut nodes: Vec<(usize, Vec<usize>)> = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let list = std::fs::read_to_string(entry.path().join("cpulist"));
        let (Some(number), Ok(list)) = (number, list) else { continue };
        nodes.push((number, listed(list.trim())));
    }
    nodes.sort();
    nodes.into_iter().map(|(_, cores)| cores).filter(|cores| !cores.is_empty()).collect()
}

/// The numbers of `0-2,8`. What is none is left out.
fn listed(text: &str) -> Vec<usize> {
    let one = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(first..=last.min(CpuSet::MAX_CPU))
    };
    text.split(',').filter_map(one).flatten().collect()
}

/// Our own processors, two of a node after another, the nodes in turn; then those that are left of nodes with an odd number, and of no node.
fn by_node(nodes: &[Vec<usize>], own: &[usize]) -> Vec<usize> {
    let mut left: Vec<Vec<usize>> =
        nodes.iter().map(|cores| cores.iter().copied().filter(|core| own.contains(core)).collect()).collect();
    let mut numbers: Vec<usize> = Vec::with_capacity(own.len());
    while left.iter().any(|cores| cores.len() >= THREADS) {
        for cores in left.iter_mut().filter(|cores| cores.len() >= THREADS) {
            numbers.extend(cores.drain(..THREADS));
        }
    }
    let rest: Vec<usize> = own.iter().copied().filter(|core| !numbers.contains(core)).collect();
    numbers.extend(rest);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::paper::tests::unique_directory;

    #[test]
    fn both_threads_of_an_instance_are_on_one_node() {
        let directory = unique_directory("kvsb-nodes");
        // Numbered in turn, as many machines do: the neighbour of a processor is on the other node.
        for (node, list) in
            [("node10", "1,3,5\n"), ("node2", "0,2,4,6-7\n"), ("node3", "\n"), ("has_cpu", "0-9")]
        {
            std::fs::create_dir_all(directory.join(node)).unwrap();
            std::fs::write(directory.join(node).join("cpulist"), list).unwrap();
        }
        let nodes = nodes(&directory);
        assert_eq!(nodes, [vec![0, 2, 4, 6, 7], vec![1, 3, 5]]);
        let own: Vec<usize> = (0..9).collect();
        assert_eq!(by_node(&nodes, &own), [0, 2, 1, 3, 4, 6, 5, 7, 8]);
        // What the process may not run on is given to nobody, and what no node has is not lost.
        assert_eq!(by_node(&nodes, &[1, 2, 3, 4]), [2, 4, 1, 3]);
        assert_eq!(by_node(&[], &[4, 6, 9]), [4, 6, 9]);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn who_makes_an_instance_is_on_its_processor_and_then_where_it_was() {
        let Some(cores) = Cores::enough_for(1) else {
            return hedgerow_sim::skip("two processors are needed");
        };
        let running = || {
            let set = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect::<Vec<_>>()
        };
        let before = running();
        let meanwhile = Cores::on(Some(&cores), 0, running);
        assert_eq!((meanwhile, running()), (vec![cores.numbers[1]], before.clone()));
        assert_eq!(Cores::on(None, 0, running), before);
        assert!(cores.hold_all());
    }
}
