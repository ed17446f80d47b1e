//! How a file is read: which part is fetched ahead, as bytes are asked for. Pure.
//!
//! Whoever reads on where the last read ended is taken to go on so. The window, what is fetched ahead, begins small and
//! doubles each time the reader has to wait for bytes that are on their way: so it becomes what the path holds, the
//! bandwidth times the round trip and some more, without anybody measuring it.

use crate::limits::{BLOCK_BYTES, READ_AHEAD_FIRST, READ_AHEAD_MAX};

/// The reader of one open file.
#[derive(Debug)]
pub(super) struct Reading {
    /// Where it would read on.
    next: u64,
    /// How far ahead of it, in bytes.
    window: u64,
}

impl Default for Reading {
    fn default() -> Self {
        // Most begin at the beginning.
        Self { next: 0, window: READ_AHEAD_FIRST }
    }
}

/// What to do for a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// It is one of its own: these bytes and no more.
    Alone,
    /// In blocks; those before this place in the file are to be on their way.
    Ahead(u64),
}

impl Reading {
    /// Somebody reads `length` bytes from `offset` on.
    pub(super) fn read(&mut self, offset: u64, length: u64) -> Plan {
        // Several requests of the kernel's may overtake each other.
        let near = offset <= self.next.saturating_add(BLOCK_BYTES as u64)
            && offset.saturating_add(4 * BLOCK_BYTES as u64) >= self.next;
        let end = offset.saturating_add(length);
        if near {
            self.next = self.next.max(end);
            return Plan::Ahead(end.saturating_add(self.window));
        }
        self.next = end;
        self.window = READ_AHEAD_FIRST;
        Plan::Alone
    }

    /// The reader has had to wait for bytes on their way.
    pub(super) fn waited(&mut self) {
        self.window = (2 * self.window).min(READ_AHEAD_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[test]
    fn a_reader_that_goes_on_is_read_ahead_for() {
        let mut reading = Reading::default();
        assert_eq!(reading.read(0, 100), Plan::Ahead(100 + READ_AHEAD_FIRST));
        reading.waited();
        assert_eq!(reading.read(100, 100), Plan::Ahead(200 + 2 * READ_AHEAD_FIRST));
        for _ in 0..100 {
            reading.waited();
        }
        assert_eq!(reading.read(200, 1), Plan::Ahead(201 + READ_AHEAD_MAX));
        // Requests that overtake each other are no jump.
        assert!(matches!(reading.read(2 * BLOCK, 10), Plan::Alone));
        assert!(matches!(reading.read(BLOCK, BLOCK), Plan::Ahead(_)));
    }

    #[test]
    fn a_reader_that_jumps_is_not() {
        let mut reading = Reading::default();
        for place in [50 * BLOCK, 7 * BLOCK, 90 * BLOCK, 20 * BLOCK] {
            assert_eq!(reading.read(place, 4096), Plan::Alone);
        }
        assert_eq!(reading.read(20 * BLOCK + 4096, 4096), Plan::Ahead(20 * BLOCK + 8192 + READ_AHEAD_FIRST));
    }
}
