//! What is due when: mostly in the order in which it comes, and cheap for that.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::link::Nanos;

#[derive(Debug)]
struct Entry<T> {
    due: Nanos,
    /// Those that are due together keep their order.
    number: u64,
    item: T,
}

impl<T> Entry<T> {
    fn key(&self) -> (Nanos, u64) {
        (self.due, self.number)
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Things to do, each at its time. One that is due no earlier than the last goes to the end of a list; only those that
/// overtake others need a heap.
#[derive(Debug)]
pub(crate) struct Agenda<T> {
    in_order: VecDeque<Entry<T>>,
    overtaking: BinaryHeap<Reverse<Entry<T>>>,
    numbers: u64,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self { in_order: VecDeque::new(), overtaking: BinaryHeap::new(), numbers: 0 }
    }

    pub(crate) fn add(&mut self, due: Nanos, item: T) {
        let entry = Entry { due, number: self.numbers, item };
        self.numbers += 1;
        match self.in_order.back() {
            Some(last) if last.due > due => self.overtaking.push(Reverse(entry)),
            _ => self.in_order.push_back(entry),
        }
    }

    /// When the next thing is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let overtaking = self.overtaking.peek().map(|Reverse(entry)| entry.due);
        self.in_order.front().map(|entry| entry.due).into_iter().chain(overtaking).min()
    }

    /// When the last one of the list is due.
    pub(crate) fn last_due(&self) -> Option<Nanos> {
        self.in_order.back().map(|entry| entry.due)
    }

    /// The next thing that is due at `now` or was before, and when.
    pub(crate) fn take_due(&mut self, now: Nanos) -> Option<(Nanos, T)> {
        let first_overtakes = match (self.in_order.front(), self.overtaking.peek()) {
            (Some(first), Some(Reverse(other))) => other.key() < first.key(),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let entry = if first_overtakes {
            let is_due = self.overtaking.peek().is_some_and(|Reverse(entry)| entry.due <= now);
            if !is_due {
                return None;
            }
            self.overtaking.pop().map(|Reverse(entry)| entry)
        } else {
            self.in_order.pop_front_if(|entry| entry.due <= now)
        };
        entry.map(|entry| (entry.due, entry.item))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_is_done_in_time_and_in_order(steps in prop::collection::vec((0u64..50, 0u64..5), 1..200)) {
            let (mut agenda, mut expected, mut now, mut done) = (Agenda::new(), Vec::new(), 0, Vec::new());
            for (number, (later, gap)) in steps.into_iter().enumerate() {
                agenda.add(now + later, number);
                expected.push((now + later, number));
                now += gap;
                let next = agenda.next_due();
                let before = done.len();
                while let Some((due, number)) = agenda.take_due(now) {
                    prop_assert!(due <= now);
                    done.push((due, number));
                }
                prop_assert_eq!(next.is_some_and(|due| due <= now), done.len() > before);
                prop_assert!(agenda.next_due().is_none_or(|due| due > now));
            }
            while let Some(entry) = agenda.take_due(Nanos::MAX) {
                done.push(entry);
            }
            // Nothing is taken before something that was due earlier and was there.
            expected.sort_unstable();
            let mut sorted = done.clone();
            sorted.sort_unstable();
            prop_assert_eq!(&sorted, &expected);
        }
    }

    #[test]
    fn what_is_due_together_keeps_its_order() {
        let mut agenda = Agenda::new();
        for (due, item) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (4, 'e')] {
            agenda.add(due, item);
        }
        let order: String = std::iter::from_fn(|| agenda.take_due(5)).map(|(_, item)| item).collect();
        assert_eq!(order, "bdeac");
    }
}
