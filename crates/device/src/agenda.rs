//! What is due when, in virtual time.
//!
//! Owns [`Agenda`]. Promises that what is due comes in the order of time, and what is due at one time in the order in which it was put down: so a simulation that draws its random
//! numbers from a seed runs the same way each time. Must not know what anything means.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An item, when it is due, and which one it is.
#[derive(Debug)]
struct DueItem<T> {
    at_ns: u64,
    number: u64,
    item: T,
}

impl<T> PartialEq for DueItem<T> {
    fn eq(&self, other: &DueItem<T>) -> bool {
        (self.at_ns, self.number) == (other.at_ns, other.number)
    }
}

impl<T> Eq for DueItem<T> {}

impl<T> PartialOrd for DueItem<T> {
    fn partial_cmp(&self, other: &DueItem<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for DueItem<T> {
    fn cmp(&self, other: &DueItem<T>) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

/// Items that are due at their times, and the time of the last that was taken. Time in ns, from 0 on.
#[derive(Debug)]
pub struct Agenda<T> {
    due: BinaryHeap<Reverse<DueItem<T>>>,
    now_ns: u64,
    number: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Agenda<T> {
        Agenda { due: BinaryHeap::new(), now_ns: 0, number: 0 }
    }
}

impl<T> Agenda<T> {
    /// The time: that of the last item that was taken.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Has an item be due at a time; at once, if that is past.
    pub fn put(&mut self, at_ns: u64, item: T) {
        self.number += 1;
        let at_ns = at_ns.max(self.now_ns);
        self.due.push(Reverse(DueItem { at_ns, number: self.number, item }));
    }

    /// The next item. It is its time then.
    pub fn take_next(&mut self) -> Option<T> {
        let Reverse(DueItem { at_ns, item, .. }) = self.due.pop()?;
        self.now_ns = at_ns;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_the_order_of_time_and_then_of_their_putting() {
        let mut agenda = Agenda::default();
        for (at, item) in [(30, 'a'), (10, 'b'), (30, 'c'), (20, 'd'), (10, 'e')] {
            agenda.put(at, item);
        }
        let mut seen = String::new();
        while let Some(item) = agenda.take_next() {
            seen.push(item);
            if item == 'd' {
                agenda.put(5, 'p');
                assert_eq!(agenda.now_ns(), 20);
            }
        }
        assert_eq!((seen.as_str(), agenda.now_ns()), ("bedpac", 30), "what is past is due at once");
    }
}
