//! Leases: until when a node serves, and from when it may be called lost.
//!
//! Owns the two machines of a lease, without I/O and without a clock. Promises that a node is called lost by who granted its lease only when it serves no more, however late its messages
//! are and however many are lost, as long as the two clocks drift against each other by no more than an eighth. Must not know what a node serves, or how messages travel.
//!
//! Nobody fences a memory node: who calls one lost that still serves has some read what others have changed since. So it ends by itself, by its own clock, a lease after it *sent* the last
//! heartbeat that was answered; whoever answered it counts a lease and an eighth from when it *answered*, which was later.

use crate::fabric::Nanos;

/// What happened to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum LeaseEvent {
    /// A heartbeat with this number was sent.
    Sent(u64),
    /// The heartbeat with this number was answered.
    Answered(u64),
    /// It is this late.
    Tick,
}

/// Heartbeats whose answers may still come, at most; older ones count for nothing.
const SENT_MAX: usize = 64;

/// The side of who has the lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HeldLease {
    lease_ns: Nanos,
    until: Nanos,
    is_over: bool,
    /// Heartbeats that are not answered, with when they were sent, in their order.
    sent: Vec<(u64, Nanos)>,
}

impl HeldLease {
    /// A lease that was asked for at `asked_at`, of the own clock.
    pub(super) fn new(lease_ns: Nanos, asked_at: Nanos) -> HeldLease {
        HeldLease { lease_ns, until: asked_at.saturating_add(lease_ns), is_over: false, sent: Vec::new() }
    }

    /// Takes in what happened, and says whether the lease goes on. Once it is over it stays so, whatever is answered then.
    pub(super) fn on(&mut self, now: Nanos, event: LeaseEvent) -> bool {
        self.is_over |= now >= self.until;
        match event {
            LeaseEvent::Sent(number) => {
                if self.sent.len() == SENT_MAX {
                    self.sent.remove(0);
                }
                self.sent.push((number, now));
            }
            LeaseEvent::Answered(number) if !self.is_over => {
                // An answer is to what was sent: any other number says nothing of when.
                if let Some(at) = self.sent.iter().position(|&(sent, _)| sent == number) {
                    let (_, sent_at) = self.sent[at];
                    self.sent.drain(..=at);
                    self.until = self.until.max(sent_at.saturating_add(self.lease_ns));
                }
            }
            LeaseEvent::Answered(_) | LeaseEvent::Tick => {}
        }
        !self.is_over
    }

    /// Until when it goes on if nothing is answered any more, by the own clock. Whoever serves looks at this after each thing that it did and before it says so.
    pub(super) fn until(&self) -> Nanos {
        if self.is_over { 0 } else { self.until }
    }
}

/// The side of who granted it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GrantedLease {
    wait_ns: Nanos,
    until: Nanos,
    is_over: bool,
}

impl GrantedLease {
    /// A lease that is granted now. It is over an eighth of `lease_ns`, and `margin_ns`, after it was granted last.
    pub(super) fn new(lease_ns: Nanos, margin_ns: Nanos, now: Nanos) -> GrantedLease {
        let wait_ns = lease_ns.saturating_add(lease_ns.div_ceil(8)).saturating_add(margin_ns);
        GrantedLease { wait_ns, until: now.saturating_add(wait_ns), is_over: false }
    }

    /// A heartbeat came. Whether it may be answered, which grants the lease again: never once it is over.
    pub(super) fn on_heartbeat(&mut self, now: Nanos) -> bool {
        if !self.is_over(now) {
            self.until = now.saturating_add(self.wait_ns);
        }
        !self.is_over
    }

    /// Whether its holder serves no more. Once this was said it stays so.
    pub(super) fn is_over(&mut self, now: Nanos) -> bool {
        self.is_over |= now >= self.until;
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use hedgerow_device::Random;

    use super::*;

    /// In units of which a step of time has eight or nine on each clock: all drift that is allowed.
    const LEASE: Nanos = 25;
    const STEPS: u32 = 6;

    /// A node, who grants its lease, and what is under way between them.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Pair {
        held: HeldLease,
        granted: GrantedLease,
        own_now: Nanos,
        other_now: Nanos,
        heartbeats: Vec<u64>,
        answers: Vec<u64>,
        next: u64,
        steps: u32,
        is_lost: bool,
        was_renewed: bool,
    }

    /// What may be wrong, to see that it is found.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fault {
        None,
        /// The lease counts from when the answer came.
        CountsFromTheAnswer,
        /// Nothing is added for drift.
        NoEighth,
        /// Who was called lost is answered.
        AnswersTheLost,
    }

    impl Pair {
        fn new(lease: Nanos, fault: Fault) -> Pair {
            let mut granted = GrantedLease::new(lease, 0, 1000);
            if fault == Fault::NoEighth {
                granted = GrantedLease { wait_ns: lease, until: 1000 + lease, is_over: false };
            }
            Pair {
                held: HeldLease::new(lease, 0),
                granted,
                own_now: 0,
                other_now: 1000,
                heartbeats: Vec::new(),
                answers: Vec::new(),
                next: 0,
                steps: 0,
                is_lost: false,
                was_renewed: false,
            }
        }

        fn serves(&self) -> bool {
            self.own_now < self.held.until()
        }

        /// Everything that can happen next.
        fn choices(&self) -> Vec<Choice> {
            let mut choices = vec![Choice::Look];
            if self.steps < STEPS {
                choices.extend([(8, 8), (8, 9), (9, 8)].map(|(own, other)| Choice::Time(own, other)));
            }
            if self.heartbeats.len() + self.answers.len() < 2 && self.next < 2 {
                choices.push(Choice::Send);
            }
            for at in 0..self.heartbeats.len() {
                choices.extend([Choice::Hear(at), Choice::Lose(at)]);
            }
            choices.extend((0..self.answers.len()).map(Choice::Answer));
            choices
        }

        fn take(&mut self, choice: Choice, fault: Fault) {
            match choice {
                Choice::Time(own, other) => {
                    self.own_now += own;
                    self.other_now += other;
                    self.steps += 1;
                }
                Choice::Send => {
                    self.next += 1;
                    self.held.on(self.own_now, LeaseEvent::Sent(self.next));
                    self.heartbeats.push(self.next);
                }
                Choice::Hear(at) => {
                    let number = self.heartbeats.remove(at);
                    if self.granted.on_heartbeat(self.other_now) || fault == Fault::AnswersTheLost {
                        self.answers.push(number);
                    }
                }
                Choice::Lose(at) => {
                    self.heartbeats.remove(at);
                }
                Choice::Answer(at) => {
                    let number = self.answers.remove(at);
                    if fault == Fault::CountsFromTheAnswer {
                        self.held.sent.retain(|&(sent, _)| sent != number);
                        self.held.on(self.own_now, LeaseEvent::Sent(number));
                    }
                    let before = self.held.until();
                    self.held.on(self.own_now, LeaseEvent::Answered(number));
                    self.was_renewed |= self.held.until() > before;
                }
                Choice::Look => self.is_lost |= self.granted.is_over(self.other_now),
            }
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Choice {
        Time(Nanos, Nanos),
        Send,
        Hear(usize),
        Lose(usize),
        Answer(usize),
        Look,
    }

    /// All that can happen: how many states there are, in how many a lost node served, and in how many one was lost after its lease was renewed.
    fn explore(fault: Fault) -> (usize, usize, usize) {
        let mut seen = HashSet::new();
        let mut open = vec![Pair::new(LEASE, fault)];
        let (mut wrong, mut lost) = (0, 0);
        while let Some(pair) = open.pop() {
            if !seen.insert(pair.clone()) {
                continue;
            }
            wrong += usize::from(pair.is_lost && pair.serves());
            lost += usize::from(pair.is_lost && pair.was_renewed);
            for choice in pair.choices() {
                let mut next = pair.clone();
                next.take(choice, fault);
                open.push(next);
            }
        }
        (seen.len(), wrong, lost)
    }

    #[test]
    fn nobody_is_called_lost_while_it_serves() {
        let (states, wrong, lost) = explore(Fault::None);
        assert_eq!(wrong, 0);
        assert!(states > 10_000 && lost > 100, "{states} states, {lost} with a lost node");
    }

    #[test]
    fn what_would_be_wrong_is_found() {
        for fault in [Fault::CountsFromTheAnswer, Fault::NoEighth] {
            assert!(explore(fault).1 > 0, "{fault:?}");
        }
        // A node that is over stays so: an answer that should not have been given does no harm.
        assert_eq!(explore(Fault::AnswersTheLost).1, 0);
    }

    #[test]
    fn long_runs_at_random_are_right_too() {
        let (mut lost, mut renewed) = (0, 0);
        for seed in 0..300 {
            let mut random = Random::from_seed(seed);
            let mut pair = Pair::new(40 + random.below(200), Fault::None);
            let loss = random.below(4);
            for _ in 0..2000 {
                let ratio = random.below(9);
                let choice = match random.below(6) {
                    0 if pair.heartbeats.len() < 8 => Choice::Send,
                    1 if !pair.heartbeats.is_empty() => {
                        let at = random.below(pair.heartbeats.len() as u64) as usize;
                        if random.below(4) < loss { Choice::Lose(at) } else { Choice::Hear(at) }
                    }
                    2 if !pair.answers.is_empty() => {
                        Choice::Answer(random.below(pair.answers.len() as u64) as usize)
                    }
                    3 => Choice::Look,
                    _ if ratio < 4 => Choice::Time(1, 1),
                    // A ninth more of one clock at a time would be more than an eighth: nine to eight, spread.
                    _ if ratio < 6 => Choice::Time(8, 9),
                    _ => Choice::Time(9, 8),
                };
                pair.take(choice, Fault::None);
                assert!(!(pair.is_lost && pair.serves()), "seed {seed}");
            }
            lost += u32::from(pair.is_lost);
            renewed += u32::from(pair.was_renewed);
        }
        assert!(lost > 50 && renewed > 50, "{lost} lost, {renewed} renewed");
    }

    #[test]
    fn answers_to_what_was_not_sent_count_for_nothing() {
        let mut held = HeldLease::new(100, 0);
        assert!(held.on(10, LeaseEvent::Sent(1)));
        assert!(held.on(50, LeaseEvent::Answered(2)));
        assert_eq!(held.until(), 100);
        assert!(held.on(60, LeaseEvent::Answered(1)));
        assert_eq!(held.until(), 110);
        // The second time it is no news.
        assert!(held.on(109, LeaseEvent::Answered(1)));
        assert!(!held.on(110, LeaseEvent::Tick));
        assert!(!held.on(5, LeaseEvent::Tick), "it came back");
        assert_eq!(held.until(), 0);
        for number in 0..1000 {
            held.on(200, LeaseEvent::Sent(number));
        }
        assert!(held.sent.len() <= SENT_MAX);
    }
}
