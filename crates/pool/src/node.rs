//! One node of a pool in real time: a machine, and the fabric that it works over.
//!
//! Owns when a machine is told what. Promises that it is told everything that its fabric has for it, in that order, and a tick no earlier than it asked for and about a millisecond late at most where its
//! thread has a processor. Must not know which machine it is. It is what `cluster.rs` is for all nodes of a simulated pool.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hedgerow_device::Clock;

use crate::fabric::tcp::TcpFabric;
use crate::fabric::{Fabric, FabricEvent, Nanos};
use crate::machine::{In, Machine, Out};

/// Events that are dealt with before it is looked whether a tick is due.
const EVENTS_A_STEP: usize = 256;
/// The system's waits are no shorter than a millisecond: who is to tick sooner than this does not wait.
const TOO_SOON_TO_WAIT_NS: Nanos = 100_000;

/// A machine over TCP. Whoever has it calls [`step`](NodeDriver::step) again and again, from a thread of its own.
#[derive(Debug)]
pub struct NodeDriver<M: Machine> {
    machine: M,
    fabric: TcpFabric,
    clock: Clock,
    ticks: BTreeSet<Nanos>,
    /// The present machine's tags of what is under way, by those that the fabric has: an earlier machine may have used the same.
    under_way: BTreeMap<u64, u64>,
    next_tag: u64,
    out: Vec<Out<M::Answer>>,
    answers: Vec<M::Answer>,
}

impl<M: Machine> NodeDriver<M> {
    /// Has the machine begin.
    pub fn new(machine: M, fabric: TcpFabric) -> NodeDriver<M> {
        let (ticks, out, answers) = (BTreeSet::new(), Vec::new(), Vec::new());
        let (clock, under_way, next_tag) = (Clock::system(), BTreeMap::new(), 0);
        let mut driver = NodeDriver { machine, fabric, clock, ticks, under_way, next_tag, out, answers };
        driver.feed(In::Tick);
        driver
    }

    /// Has another machine begin in the place of this one, over the same fabric. It is told nothing of what this one had posted, as if its node had begun again; datagrams that were for this one may come to it.
    pub fn restart(&mut self, machine: M) {
        self.machine = machine;
        self.ticks.clear();
        self.under_way.clear();
        self.feed(In::Tick);
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The fabric.
    pub fn fabric(&self) -> &TcpFabric {
        &self.fabric
    }

    /// The fabric, to tell it where others are.
    pub fn fabric_mut(&mut self) -> &mut TcpFabric {
        &mut self.fabric
    }

    /// Asks the machine for something.
    pub fn call(&mut self, call: M::Call) {
        self.feed(In::Call(call));
    }

    /// Answers that have come since this was last asked.
    pub fn take_answers(&mut self) -> Vec<M::Answer> {
        std::mem::take(&mut self.answers)
    }

    /// Goes on: deals with what has come, or waits for something to come. It waits no longer than `at_most`, and a [`FabricWaker`](crate::fabric::tcp::FabricWaker) ends that.
    pub fn step(&mut self, at_most: Duration) {
        let mut is_idle = true;
        for _ in 0..EVENTS_A_STEP {
            let input = match self.fabric.poll() {
                Some(FabricEvent::Received(bytes)) => In::Message(bytes),
                Some(FabricEvent::Done(tag, result)) => match self.under_way.remove(&tag) {
                    Some(own) => In::Done(own, result),
                    // An earlier machine's.
                    None => continue,
                },
                None => break,
            };
            is_idle = false;
            self.feed(input);
        }
        let now = self.clock.monotonic_ns();
        if self.ticks.first().is_some_and(|&at| at <= now) {
            self.ticks = self.ticks.split_off(&(now + 1));
            is_idle = false;
            self.feed(In::Tick);
        }
        if is_idle {
            let next = self.ticks.first().map_or(Nanos::MAX, |&at| at.saturating_sub(now));
            if next < TOO_SOON_TO_WAIT_NS {
                std::thread::yield_now();
            } else {
                self.fabric.wait(at_most.min(Duration::from_nanos(next)));
            }
        }
        self.fabric.flush();
    }

    /// The fabric's tag for one of the machine's.
    fn tag(&mut self, own: u64) -> u64 {
        self.next_tag += 1;
        self.under_way.insert(self.next_tag, own);
        self.next_tag
    }

    fn feed(&mut self, input: In<M::Call>) {
        let mut out = std::mem::take(&mut self.out);
        self.machine.on(self.clock.monotonic_ns(), input, &mut out);
        for one in out.drain(..) {
            match one {
                Out::Post { session, to, batch, tag } => {
                    let tag = self.tag(tag);
                    self.fabric.post(session, to, batch, tag);
                }
                Out::Fence { session, tag } => {
                    let tag = self.tag(tag);
                    self.fabric.fence(session, tag);
                }
                Out::Send { to, bytes } => self.fabric.send(to, bytes),
                Out::Answer(answer) => self.answers.push(answer),
                Out::At(at) => {
                    self.ticks.insert(at);
                }
            }
        }
        self.out = out;
    }
}
