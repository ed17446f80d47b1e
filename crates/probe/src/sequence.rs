//! What became of numbered packets: lost, late, twice; and how unevenly they came.
//!
//! Numbers begin with 1. A packet counts as lost as long as one with a higher number has come and it has not. One that is more
//! than [`REORDER_WINDOW`](crate::limits::REORDER_WINDOW) behind stays lost, since nobody remembers whether it has come.

use crate::limits::REORDER_WINDOW;

const WORDS: usize = (REORDER_WINDOW / 64) as usize;

/// What a packet was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Higher than all before.
    Newest,
    /// Lower than one before, and for the first time.
    Late,
    /// It has come before.
    Again,
    /// So far behind that nobody knows.
    Stale,
    /// Zero is no number.
    Nonsense,
}

/// The packets of one flow.
#[derive(Debug)]
pub struct Sequence {
    highest: u64,
    /// Packets that came, each counted once.
    came: u64,
    reordered: u64,
    duplicates: u64,
    /// One bit a number, of the highest and those behind it.
    window: Box<[u64; WORDS]>,
}

impl Default for Sequence {
    fn default() -> Self {
        Self { highest: 0, came: 0, reordered: 0, duplicates: 0, window: Box::new([0; WORDS]) }
    }
}

impl Sequence {
    /// A packet has come.
    pub fn note(&mut self, number: u64) -> Arrival {
        if number == self.highest.wrapping_add(1) && number != 0 {
            // Nearly all packets.
            self.highest = number;
            self.clear(number);
            self.mark(number);
            self.came += 1;
            return Arrival::Newest;
        }
        self.note_other(number)
    }

    fn note_other(&mut self, number: u64) -> Arrival {
        if number == 0 {
            return Arrival::Nonsense;
        }
        if number > self.highest {
            if number - self.highest >= REORDER_WINDOW {
                self.window.fill(0);
            } else {
                (self.highest + 1..=number).for_each(|between| self.clear(between));
            }
            self.highest = number;
            self.mark(number);
            self.came += 1;
            return Arrival::Newest;
        }
        if self.highest - number >= REORDER_WINDOW {
            self.reordered += 1;
            return Arrival::Stale;
        }
        let (word, bit) = place(number);
        if self.window[word] & bit != 0 {
            self.duplicates += 1;
            return Arrival::Again;
        }
        self.mark(number);
        self.came += 1;
        self.reordered += 1;
        Arrival::Late
    }

    fn mark(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.window[word] |= bit;
    }

    fn clear(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.window[word] &= !bit;
    }

    /// The full number of a packet that tells its lowest 32 bits: the one that is nearest to the highest so far.
    #[must_use]
    pub fn extend(&self, low: u32) -> u64 {
        let ahead = low.wrapping_sub(self.highest as u32);
        if ahead <= u32::MAX / 2 {
            return self.highest.saturating_add(u64::from(ahead));
        }
        let behind = u64::from(ahead.wrapping_neg());
        self.highest.checked_sub(behind).unwrap_or_else(|| u64::from(low))
    }

    /// The highest number: so many are known to have been sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.highest
    }

    /// Packets that have not come.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.highest - self.came
    }

    /// Packets that came after one with a higher number.
    #[must_use]
    pub fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Packets that came again.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }
}

fn place(number: u64) -> (usize, u64) {
    ((number % REORDER_WINDOW / 64) as usize, 1 << (number % 64))
}

/// RFC 3550, 6.4.1: the mean deviation of the difference between the times packets take, which needs no common clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jitter {
    transit_s: Option<f64>,
    jitter_s: f64,
}

impl Jitter {
    /// A packet came, so long after it was sent, by two clocks that need not agree.
    pub fn note(&mut self, transit_s: f64) {
        if let Some(before) = self.transit_s {
            self.jitter_s += ((transit_s - before).abs() - self.jitter_s) / 16.0;
        }
        self.transit_s = Some(transit_s);
    }

    /// In seconds.
    #[must_use]
    pub fn get(&self) -> f64 {
        self.jitter_s
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Remembers every number.
    #[derive(Default)]
    struct Slow {
        came: HashSet<u64>,
        highest: u64,
        reordered: u64,
        duplicates: u64,
    }

    impl Slow {
        fn note(&mut self, number: u64) {
            if number == 0 {
                return;
            }
            if number > self.highest {
                self.highest = number;
                self.came.insert(number);
            } else if self.highest - number >= REORDER_WINDOW || self.came.insert(number) {
                self.reordered += 1;
            } else {
                self.duplicates += 1;
            }
        }
    }

    /// Steps from one number to the next: mostly one, some small ones either way, some about the window's length or far.
    fn step() -> impl Strategy<Value = i64> {
        let window = REORDER_WINDOW.cast_signed();
        prop_oneof![
            8 => Just(1i64),
            4 => -20i64..20,
            1 => window - 3..window + 3,
            1 => -window - 3..-window + 3,
            1 => -1_000_000i64..1_000_000,
        ]
    }

    proptest! {
        #[test]
        fn it_counts_as_somebody_who_remembers_all(steps in prop::collection::vec(step(), 0..400)) {
            let (mut fast, mut slow) = (Sequence::default(), Slow::default());
            let mut number = 0u64;
            for step in steps {
                number = number.saturating_add_signed(step);
                fast.note(number);
                slow.note(number);
                prop_assert_eq!(fast.sent(), slow.highest);
                prop_assert_eq!(fast.lost(), slow.highest - slow.came.len() as u64);
                prop_assert_eq!((fast.reordered(), fast.duplicates()), (slow.reordered, slow.duplicates));
            }
        }

        #[test]
        fn short_numbers_are_made_whole(start in 0u64..1 << 40, off in -1_000_000i64..1_000_000) {
            let mut sequence = Sequence::default();
            sequence.note(start + 2_000_000);
            let number = (start + 2_000_000).saturating_add_signed(off);
            prop_assert_eq!(sequence.extend(number as u32), number);
        }

        #[test]
        fn no_number_is_too_strange(numbers in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut sequence = Sequence::default();
            for number in numbers {
                sequence.note(number);
                let _ = sequence.extend(number as u32);
                prop_assert!(sequence.lost() <= sequence.sent());
            }
        }
    }

    #[test]
    fn the_largest_number_is_not_followed_by_the_first() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.note(u64::MAX), Arrival::Newest);
        assert_eq!(sequence.note(0), Arrival::Nonsense);
        assert_eq!(sequence.note(1), Arrival::Stale);
        assert_eq!(sequence.lost(), u64::MAX - 1);
    }

    #[test]
    fn jitter_is_that_of_the_standard() {
        let mut jitter = Jitter::default();
        (0..3).for_each(|_| jitter.note(5.0));
        assert_eq!(jitter.get(), 0.0);
        jitter.note(5.016);
        assert!((jitter.get() - 0.001).abs() < 1e-9, "{jitter:?}");
    }
}
