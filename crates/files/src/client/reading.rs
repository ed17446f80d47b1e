//! How a file is read: which part is fetched ahead, as bytes are asked for. Pure.
//!
//! Whoever reads on where the last read ended is taken to go on so. The window, what is fetched ahead, begins small, if
//! less so for who asks for much at once, and grows when the reader has to wait for bytes that are on their
//! way, as long as they take no more than a few round trips and some: so it becomes what the path holds, the bandwidth times the round trip and some more,
//! without anybody measuring it.

use std::ops::Range;
use std::time::Duration;

use crate::limits::{BLOCK_BYTES, READ_AHEAD_CALLS, READ_AHEAD_FIRST, READ_AHEAD_MAX, READ_AHEAD_RATE};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The reader of one open file.
#[derive(Debug)]
pub(super) struct Reading {
    /// Where it would read on.
    next: u64,
    /// How far ahead of it, in bytes.
    window: u64,
    /// Blocks before this one have been asked for.
    asked: u64,
    /// And these when the window had just grown: only later ones have been asked for with all of it on their way. `None`: nothing has
    /// been asked for since.
    asked_before: Option<u64>,
}

impl Default for Reading {
    fn default() -> Self {
        // Most begin at the beginning.
        Self { next: 0, window: READ_AHEAD_FIRST, asked: 0, asked_before: None }
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
    /// Somebody reads `length` bytes, not 0, from `offset` on, of a file of `size` bytes; `most`: that may be kept for him. The round trip
    /// matters to those who ask for much at once.
    pub(super) fn read(
        &mut self,
        offset: u64,
        length: u64,
        size: u64,
        most: u64,
        round_trip: impl FnOnce() -> Duration,
    ) -> Plan {
        // Several requests of the kernel's may overtake each other: a long read is many.
        let near =
            offset <= self.next.saturating_add(4 * BLOCK) && offset.saturating_add(16 * BLOCK) >= self.next;
        let end = offset.saturating_add(length);
        if !near {
            *self = Self { next: end, window: READ_AHEAD_FIRST, asked: 0, asked_before: None };
            return Plan::Alone;
        }
        self.next = self.next.max(end);
        // The kernel cuts a call for a block in two where the caller's memory does not begin with a page.
        let holds =
            if length >= BLOCK / 2 { READ_AHEAD_RATE as f64 * round_trip().as_secs_f64() } else { 0.0 };
        let first = (READ_AHEAD_CALLS * length).max(holds as u64);
        self.window = self.window.max(first.min(READ_AHEAD_MAX).min(most));
        let first = self.asked.max(offset / BLOCK);
        let until = self.next.saturating_add(self.window).min(size).div_ceil(BLOCK);
        // Half a window at a time, where there is so much: then most reads need not look.
        let due = end.saturating_add(self.window / 2).min(size).div_ceil(BLOCK);
        if due <= first {
            return Plan::Blocks(0..0);
        }
        self.asked = until;
        self.asked_before.get_or_insert(until);
        Plan::Blocks(first..until)
    }

    /// The reader has had to wait for a block that came so long after it was asked for; `most`: that may be kept for it.
    pub(super) fn waited(&mut self, place: u64, took: Duration, round_trip: Duration, most: u64) {
        // What takes much longer than a few round trips stands in a queue: the path is full, and more would keep others waiting. Few are
        // not enough: lanes that begin carry little, and unequal parts of it.
        let may_grow = self.asked_before.is_some_and(|before| place >= before);
        if !may_grow || took >= 4 * round_trip + QUEUED {
            return;
        }
        let factor = if took < round_trip + QUEUED / 2 { 4 } else { 2 };
        self.window = (factor * self.window).min(READ_AHEAD_MAX).min(most).max(READ_AHEAD_FIRST);
        self.asked_before = None;
    }

    /// A block that was asked for has not come, or is not here any more: from there on it is asked for again.
    pub(super) fn lost(&mut self, place: u64) {
        self.asked = self.asked.min(place);
        self.asked_before = None;
    }
}

/// So long blocks may wait on their way beside a round trip: all lanes bring some at a time, and have buffers.
const QUEUED: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 40;

    const RTT: Duration = Duration::from_millis(100);

    #[test]
    fn a_reader_that_goes_on_is_read_ahead_for() {
        let mut reading = Reading::default();
        assert_eq!(reading.read(0, 100, SIZE, SIZE, || RTT), Plan::Blocks(0..5));
        assert_eq!(reading.read(100, 100, SIZE, SIZE, || RTT), Plan::Blocks(0..0), "they are on their way");
        reading.waited(0, RTT, RTT, SIZE);
        assert_eq!(reading.window, 4 * BLOCK, "the path has not seen so much yet");
        assert_eq!(reading.read(3 * BLOCK, 100, SIZE, SIZE, || RTT), Plan::Blocks(5..8));
        reading.waited(5, 5 * RTT, RTT, SIZE);
        assert_eq!(reading.window, 4 * BLOCK, "the path is full");
        reading.waited(5, RTT, RTT, SIZE);
        assert_eq!(reading.read(5 * BLOCK, 100, SIZE, SIZE, || RTT), Plan::Blocks(8..22));
        for _ in 0..10 {
            reading.waited(reading.asked, RTT, RTT, SIZE);
            reading.read(reading.next, 1, SIZE, SIZE, || RTT);
        }
        assert_eq!(reading.window, READ_AHEAD_MAX);
        // Requests that overtake each other are no jump.
        assert_eq!(reading.read(reading.next - BLOCK, BLOCK, SIZE, SIZE, || RTT), Plan::Blocks(0..0));
    }

    #[test]
    fn no_more_is_fetched_ahead_than_the_path_holds() {
        // Bytes per second; the reader takes what comes at once.
        for (rate, rtt_ms) in [(12.5e6, 10), (125e6, 3), (125e6, 200), (1.25e9, 20), (1.25e9, 100)] {
            let rtt = Duration::from_millis(rtt_ms);
            let (mut reading, mut now, mut free) = (Reading::default(), 0.0_f64, 0.0_f64);
            let mut comes: Vec<(f64, f64)> = Vec::new();
            for place in 0..20_000 {
                let Plan::Blocks(asked) = reading.read(place * BLOCK, 8192, SIZE, SIZE, || rtt) else {
                    panic!()
                };
                for _ in asked {
                    free = free.max(now + rtt.as_secs_f64()) + BLOCK as f64 / rate;
                    comes.push((now, free));
                }
                let (asked_at, comes_at) = comes[place as usize];
                if comes_at > now {
                    now = comes_at;
                    reading.waited(place, Duration::from_secs_f64(now - asked_at), rtt, SIZE);
                }
            }
            let bdp = rate * rtt.as_secs_f64();
            let window = reading.window as f64;
            let most = (4.0 * (rate * (4.0 * rtt.as_secs_f64() + 0.1) + BLOCK as f64))
                .clamp(READ_AHEAD_FIRST as f64, READ_AHEAD_MAX as f64);
            assert!(window >= bdp.min(READ_AHEAD_MAX as f64) && window <= most, "{rate} {rtt_ms} {window}");
            let reached = 20_000.0 * BLOCK as f64 / now;
            assert!(reached > 0.95 * rate, "{rate} {rtt_ms} {reached}");
        }
    }

    #[test]
    fn what_was_lost_is_asked_for_again() {
        let mut reading = Reading::default();
        assert_eq!(reading.read(0, 100, SIZE, SIZE, || RTT), Plan::Blocks(0..5));
        reading.lost(2);
        assert_eq!(reading.read(2 * BLOCK, 100, SIZE, SIZE, || RTT), Plan::Blocks(2..7));
    }

    #[test]
    fn every_block_of_a_file_is_asked_for_once() {
        let (mut reading, size) = (Reading::default(), 100 * BLOCK + 7);
        let mut asked = Vec::new();
        for (number, offset) in (0..size).step_by(8192).enumerate() {
            match reading.read(offset, 8192.min(size - offset), size, SIZE, || RTT) {
                Plan::Blocks(blocks) => asked.extend(blocks),
                Plan::Alone => panic!("it goes on"),
            }
            if number % 500 == 0 {
                reading.waited(offset / BLOCK, RTT, RTT, SIZE);
            }
        }
        assert_eq!(asked, (0..101).collect::<Vec<_>>());
    }

    #[test]
    fn a_reader_that_jumps_is_not() {
        let mut reading = Reading::default();
        for place in [50 * BLOCK, 7 * BLOCK, 90 * BLOCK, 20 * BLOCK] {
            assert_eq!(reading.read(place, 4096, SIZE, SIZE, || RTT), Plan::Alone);
        }
        assert_eq!(reading.read(20 * BLOCK + 4096, 4096, SIZE, SIZE, || RTT), Plan::Blocks(20..25));
    }

    #[test]
    fn a_small_cache_is_not_read_past() {
        let mut reading = Reading::default();
        assert_eq!(reading.read(0, 1, SIZE, 8 * BLOCK, || RTT), Plan::Blocks(0..5));
        reading.waited(5, RTT, RTT, 8 * BLOCK);
        assert_eq!(reading.read(BLOCK, 1, SIZE, 8 * BLOCK, || RTT), Plan::Blocks(5..10));
        assert_eq!(Reading::default().read(0, BLOCK, SIZE, 8 * BLOCK, || RTT), Plan::Blocks(0..9));
    }

    #[test]
    fn what_was_left_out_is_asked_for_with_the_next() {
        let mut reading = Reading::default();
        assert_eq!(reading.read(0, 1, SIZE, SIZE, || RTT), Plan::Blocks(0..5));
        reading.lost(4);
        assert_eq!(reading.read(1, 1, SIZE, SIZE, || RTT), Plan::Blocks(0..0), "not due yet");
        assert_eq!(reading.read(2 * BLOCK, 1, SIZE, SIZE, || RTT), Plan::Blocks(4..7));
    }

    #[test]
    fn who_asks_for_much_at_once_goes_on_so() {
        let mut reading = Reading::default();
        let near = Duration::from_millis(10);
        assert_eq!(reading.read(0, BLOCK, SIZE, SIZE, || near), Plan::Blocks(0..1 + READ_AHEAD_CALLS));
        let mut far = Reading::default();
        let rtt = Duration::from_millis(200);
        assert_eq!(far.read(0, BLOCK, SIZE, SIZE, || rtt), Plan::Blocks(0..1 + (128_000_000 / BLOCK) + 1));
        let mut near_small = Reading::default();
        assert_eq!(
            near_small.read(0, BLOCK / 2 - 1, SIZE, SIZE, || panic!("nobody asks")),
            Plan::Blocks(0..17)
        );
    }
}
