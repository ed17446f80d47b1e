//! Reads that jump evenly: a record of every row, or a file from its end. What comes next is known when the third of them
//! begins. Pure.
//!
//! ```text
//!   run           run           run           asked ahead
//!   [##]..........[##]..........[##]..........[  ]..........[  ]
//!   '--- stride --'--- stride --'
//! ```

use std::ops::Range;

use crate::limits::{BLOCK_BYTES, JUMP_COST_BYTES, JUMPS_AHEAD_FIRST, JUMPS_AHEAD_MAX, READ_BYTES_MAX};

/// The jumps of one reader.
#[derive(Debug, Default)]
pub(super) struct Jumps {
    /// What has been read without a jump.
    run: Range<u64>,
    /// From the beginning of the run before to that of this one; and how long that was.
    stride: i64,
    length: u64,
    /// Jumps in a row that were like the one before.
    alike: u32,
    /// Runs that have been asked for behind this one.
    ahead: u64,
    /// How many there should be.
    window: u64,
    /// It has just grown: so many runs were asked for before.
    before: u64,
}

/// How somebody reads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// That is not known, or without jumps that matter.
    On,
    /// One run next to the other, backwards.
    Down,
    /// From run to run, with much in between that he does not read.
    Apart,
}

impl Jumps {
    /// He reads `length` bytes, not 0, from `offset` on.
    pub(super) fn comes_to(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        if offset == self.run.end && !self.run.is_empty() {
            self.run.end = end;
            return;
        }
        let (stride, run) = (offset.wrapping_sub(self.run.start) as i64, self.run.end - self.run.start);
        if (stride, run) == (self.stride, self.length) {
            self.alike = self.alike.saturating_add(1);
            (self.ahead, self.before) = (self.ahead.saturating_sub(1), self.before.saturating_sub(1));
        } else {
            *self = Self { stride, length: run, window: JUMPS_AHEAD_FIRST, ..Self::default() };
        }
        self.run = offset..end;
    }

    /// How he reads on, by what he has read.
    pub(super) fn way(&self) -> Way {
        let distance = self.stride.unsigned_abs();
        let reads_on = self.run.end - self.run.start > self.length;
        if self.alike == 0 || distance < self.length || reads_on {
            return Way::On;
        }
        let between = distance - self.length;
        let is_far = between >= SPARSE * self.length.max(JUMP_COST_BYTES) || between > 4 * BLOCK_BYTES as u64;
        match (is_far && self.length <= READ_BYTES_MAX.into(), self.stride < 0) {
            (true, _) => Way::Apart,
            (false, true) => Way::Down,
            (false, false) => Way::On,
        }
    }

    /// The runs of a file of `size` bytes that are to be asked for now, `most` bytes at a time.
    pub(super) fn next(&mut self, size: u64, most: u64) -> Vec<Range<u64>> {
        let window = self.window.min(most / self.length.max(1));
        // Half a window at a time: then most reads need not look.
        if self.ahead > window / 2 {
            return Vec::new();
        }
        let at = |number: u64| {
            let distance = self.stride.checked_mul(i64::try_from(number).ok()?)?;
            let from = self.run.start.checked_add_signed(distance)?;
            Some(from..from.saturating_add(self.length).min(size))
        };
        let runs = (self.ahead + 1..=window).map_while(at);
        let runs: Vec<_> = runs.take_while(|run| !run.is_empty()).collect();
        self.ahead = window;
        runs
    }

    /// How much he read without a jump before the last.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Whether he has jumped over bytes that begin there.
    pub(super) fn has_passed(&self, offset: u64) -> bool {
        if self.stride < 0 { offset > self.run.start } else { offset < self.run.start }
    }

    /// He has had to wait for a run that was asked for ahead.
    pub(super) fn waited(&mut self) {
        if self.before == 0 {
            self.before = self.ahead;
            self.window = (2 * self.window).min(JUMPS_AHEAD_MAX);
        }
    }
}

/// With so many times more in between than he reads, or than a request costs, what is in between is left out.
const SPARSE: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 40;

    const MIB: u64 = 1 << 20;

    /// What is asked for at each of these reads.
    fn asked(jumps: &mut Jumps, reads: impl IntoIterator<Item = (u64, u64)>) -> Vec<Vec<u64>> {
        let asked = reads.into_iter().map(|(offset, length)| {
            jumps.comes_to(offset, length);
            match jumps.way() {
                Way::Apart => jumps.next(SIZE, SIZE).into_iter().map(|run| run.start / MIB).collect(),
                Way::On | Way::Down => Vec::new(),
            }
        });
        asked.collect()
    }

    #[test]
    fn who_jumps_evenly_is_expected_from_the_third_run_on() {
        let mut jumps = Jumps::default();
        let first = asked(&mut jumps, (5..9).map(|row| (row * 16 * MIB, 4096)));
        assert_eq!(first, [vec![], vec![], vec![128, 144, 160, 176], vec![]]);
        let then = asked(&mut jumps, (9..11).map(|row| (row * 16 * MIB, 4096)));
        assert_eq!(then, [vec![192, 208], vec![]], "half a window at a time");
        jumps.waited();
        jumps.waited(); // for one that was asked for before the window grew
        assert_eq!(jumps.window, 2 * JUMPS_AHEAD_FIRST);
        // Not to another place, and not for more.
        for other in [(7 * MIB, 4096), (400 * MIB, 4096), (800 * MIB, 8192)] {
            assert_eq!(asked(&mut jumps, [other]), [vec![]]);
            assert_eq!(jumps.way(), Way::On);
        }
    }

    #[test]
    fn runs_of_several_reads_are_one() {
        let run = |row: u64| (0..4).map(move |part| (row * 64 * MIB + part * MIB, MIB));
        let mut jumps = Jumps::default();
        let asked = asked(&mut jumps, (0..4).flat_map(run));
        let begins: Vec<usize> = (0..16).filter(|read| !asked[*read].is_empty()).collect();
        assert_eq!(begins, [8]);
        assert_eq!((asked[8].clone(), jumps.length), (vec![192, 256, 320, 384], 4 * MIB));
    }

    #[test]
    fn backwards_is_down_or_apart() {
        let way = |stride: u64, length: u64| {
            let mut jumps = Jumps::default();
            (1..9).rev().for_each(|row| jumps.comes_to(row * stride, length));
            let next = jumps.next(SIZE, SIZE);
            (jumps.way(), next.iter().map(|run| (run.start, run.end)).collect::<Vec<_>>())
        };
        assert_eq!(way(8192, 8192).0, Way::Down);
        assert_eq!(way(8192, 100).0, Way::Down, "a request costs more than what is left out");
        assert_eq!(way(16 * MIB, MIB), (Way::Apart, vec![(0, MIB)]), "and not before the beginning");
        assert_eq!(way(4096, 8192).0, Way::On, "overlapping");
        assert_eq!(way(0, 8192).0, Way::On, "on the spot");
    }

    #[test]
    fn small_gaps_are_read_over() {
        let way = |stride: u64, length: u64| {
            let mut jumps = Jumps::default();
            (0..9).for_each(|row| jumps.comes_to(row * stride, length));
            jumps.way()
        };
        assert_eq!(way(MIB, MIB), Way::On, "no jump at all");
        assert_eq!(way(8192, 100), Way::On);
        assert_eq!(way(3 * MIB, MIB), Way::On);
        assert_eq!(way(4 * MIB, MIB), Way::Apart);
        assert_eq!(way(16 * MIB, 8 * MIB), Way::Apart);
        assert_eq!(way(64 * MIB, 32 * MIB), Way::On, "more than one request");
    }

    #[test]
    fn no_more_is_asked_for_than_the_file_and_the_memory_have() {
        let mut jumps = Jumps::default();
        (0..5).for_each(|row| jumps.comes_to(row * 16 * MIB, MIB));
        jumps.window = JUMPS_AHEAD_MAX;
        assert_eq!(jumps.next(SIZE, 3 * MIB).len(), 3);
        let last = jumps.next(100 * MIB + 7, SIZE);
        assert!(last.is_empty(), "beyond the end: {last:?}");
        (jumps.ahead, jumps.run) = (0, 80 * MIB..81 * MIB);
        let cut = jumps.next(96 * MIB + 7, SIZE);
        assert_eq!((cut.len(), cut[0].clone()), (1, 96 * MIB..96 * MIB + 7));
        for most in [0, u64::MAX] {
            let mut far = Jumps { stride: i64::MAX, length: 1, alike: 9, window: 9, ..Jumps::default() };
            far.run = u64::MAX - 1..u64::MAX;
            assert_eq!(far.next(u64::MAX, most), []);
        }
    }
}
