//! How a file is read: which part is fetched ahead, as bytes are asked for. Pure.
//!
//! Whoever reads on where the last read ended is taken to go on so. The window, what is fetched ahead, begins small, if
//! less so for who asks for much at once or has read much already, and grows fourfold each time the reader has to wait for bytes that are on their
//! way: so it becomes what the path holds, the bandwidth times the round trip and some more, without anybody measuring it.

use std::ops::Range;

use crate::limits::{BLOCK_BYTES, READ_AHEAD_CALLS, READ_AHEAD_FIRST, READ_AHEAD_MAX};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The reader of one open file.
#[derive(Debug)]
pub(super) struct Reading {
    /// Where it began, and where it would read on.
    first: u64,
    next: u64,
    /// How far ahead of it, in bytes.
    window: u64,
    /// Blocks before this one have been asked for.
    asked: u64,
}

impl Default for Reading {
    fn default() -> Self {
        // Most begin at the beginning.
        Self { first: 0, next: 0, window: READ_AHEAD_FIRST, asked: 0 }
    }
}

/// What to do for a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// It is one of its own: these bytes and no more.
    Alone,
    /// In blocks; these are to be asked for now.
    Blocks(Range<u64>),
}

impl Reading {
    /// Somebody reads `length` bytes, not 0, from `offset` on, of a file of `size` bytes; `most`: that may be kept for him.
    pub(super) fn read(&mut self, offset: u64, length: u64, size: u64, most: u64) -> Plan {
        // Several requests of the kernel's may overtake each other: a long read is many.
        let near =
            offset <= self.next.saturating_add(4 * BLOCK) && offset.saturating_add(16 * BLOCK) >= self.next;
        let end = offset.saturating_add(length);
        if !near {
            *self = Self { first: offset, next: end, window: READ_AHEAD_FIRST, asked: 0 };
            return Plan::Alone;
        }
        self.next = self.next.max(end);
        let so_far = (self.next - self.first).min(READ_AHEAD_CALLS * BLOCK);
        self.window = self.window.max((READ_AHEAD_CALLS * length).max(so_far).min(most));
        let first = self.asked.max(offset / BLOCK);
        let until = self.next.saturating_add(self.window).min(size).div_ceil(BLOCK);
        // Half a window at a time, where there is so much: then most reads need not look.
        let due = end.saturating_add(self.window / 2).min(size).div_ceil(BLOCK);
        if due <= first {
            return Plan::Blocks(0..0);
        }
        self.asked = until;
        Plan::Blocks(first..until)
    }

    /// The reader has had to wait for bytes on their way; `most`: that may be kept for it.
    pub(super) fn waited(&mut self, most: u64) {
        self.window = (4 * self.window).min(READ_AHEAD_MAX).min(most).max(READ_AHEAD_FIRST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 40;

    #[test]
    fn a_reader_that_goes_on_is_read_ahead_for() {
        let mut reading = Reading::default();
        assert_eq!(reading.read(0, 100, SIZE, SIZE), Plan::Blocks(0..5));
        assert_eq!(reading.read(100, 100, SIZE, SIZE), Plan::Blocks(0..0), "they are on their way");
        reading.waited(SIZE);
        assert_eq!(reading.read(BLOCK, 100, SIZE, SIZE), Plan::Blocks(5..18));
        for _ in 0..100 {
            reading.waited(SIZE);
        }
        assert_eq!(reading.read(BLOCK + 100, 1, SIZE, SIZE), Plan::Blocks(18..2 + READ_AHEAD_MAX / BLOCK));
        // Requests that overtake each other are no jump.
        assert_eq!(reading.read(0, BLOCK, SIZE, SIZE), Plan::Blocks(0..0));
    }

    #[test]
    fn every_block_of_a_file_is_asked_for_once() {
        let (mut reading, size) = (Reading::default(), 100 * BLOCK + 7);
        let mut asked = Vec::new();
        for (number, offset) in (0..size).step_by(8192).enumerate() {
            match reading.read(offset, 8192.min(size - offset), size, SIZE) {
                Plan::Blocks(blocks) => asked.extend(blocks),
                Plan::Alone => panic!("it goes on"),
            }
            if number % 500 == 0 {
                reading.waited(SIZE);
            }
        }
        assert_eq!(asked, (0..101).collect::<Vec<_>>());
    }

    #[test]
    fn a_reader_that_jumps_is_not() {
        let mut reading = Reading::default();
        for place in [50 * BLOCK, 7 * BLOCK, 90 * BLOCK, 20 * BLOCK] {
            assert_eq!(reading.read(place, 4096, SIZE, SIZE), Plan::Alone);
        }
        assert_eq!(reading.read(20 * BLOCK + 4096, 4096, SIZE, SIZE), Plan::Blocks(20..25));
    }

    #[test]
    fn a_small_cache_is_not_read_past() {
        let mut reading = Reading::default();
        (0..20).for_each(|_| reading.waited(8 * BLOCK));
        assert_eq!(reading.read(0, 1, SIZE, 8 * BLOCK), Plan::Blocks(0..9));
        assert_eq!(Reading::default().read(0, BLOCK, SIZE, 8 * BLOCK), Plan::Blocks(0..9));
    }

    #[test]
    fn who_has_read_much_goes_on_so() {
        let mut reading = Reading::default();
        for number in 0..10_000 {
            assert_ne!(reading.read(number * 8192, 8192, SIZE, SIZE), Plan::Alone);
        }
        assert_eq!(reading.window, READ_AHEAD_CALLS * BLOCK);
        // Elsewhere it is another reader.
        assert_eq!(reading.read(SIZE / 2, 8192, SIZE, SIZE), Plan::Alone);
        assert_eq!(reading.window, READ_AHEAD_FIRST);
    }

    #[test]
    fn who_asks_for_much_at_once_goes_on_so() {
        let mut reading = Reading::default();
        assert_eq!(reading.read(0, BLOCK, SIZE, SIZE), Plan::Blocks(0..1 + READ_AHEAD_CALLS));
    }
}
