//! How a file is read: which part is fetched ahead, as bytes are asked for. Pure.
//!
//! Whoever reads on where the last read ended is taken to go on so. The window, what is fetched ahead, begins small, if
//! less so for who asks for much at once, and grows when the reader has to wait for bytes that are on their
//! way, as long as they take no more than a few round trips and some: so it becomes what the path holds, the bandwidth times the round trip and some more,
//! without anybody measuring it. The same backwards, and for who jumps evenly ([`jumps`](super::jumps)).
//!
//! Whoever reads a file of which the kernel has given up pages here and there comes only for these. Where they lie so close
//! that a round trip for each would take longer than what is in between, all of it is fetched.

use std::mem;
use std::ops::Range;
use std::time::Duration;

use super::jumps::{Jumps, Way};
use crate::limits::{
    BLOCK_BYTES, JUMPS_SHARE, READ_AHEAD_CALLS, READ_AHEAD_FIRST, READ_AHEAD_FIRST_RATE, READ_AHEAD_MAX,
    READ_AHEAD_RATE, READ_OVER_RATE,
};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The reader of one open file; most begin at the beginning.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Where it would read on.
    next: u64,
    /// How far ahead of it, in bytes; 0: that is seen when he reads on.
    window: u64,
    /// Blocks before this one have been asked for; backwards: from this one on.
    asked: u64,
    /// And these when the window had just grown: only later ones have been asked for with all of it on their way. `None`: nothing has
    /// been asked for since.
    asked_before: Option<u64>,
    /// The last jump was to something a little further on.
    jumped_on: bool,
    /// He has waited for what stood in a queue.
    is_full: bool,
    goes_down: bool,
    jumps: Jumps,
}

/// What to do for a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// It is one of its own: these bytes and no more.
    Alone,
    /// In blocks; these are to be asked for now.
    Blocks(Range<u64>),
    /// Likewise, the last of them first.
    BlocksDown(Range<u64>),
    /// It is one of many that lie apart; these bytes are to be asked for now, each for itself.
    Apart(Vec<Range<u64>>),
}

impl Plan {
    /// Whether there is anything to be asked for.
    pub(super) fn asks(&self) -> bool {
        match self {
            Self::Alone => false,
            Self::Blocks(blocks) | Self::BlocksDown(blocks) => !blocks.is_empty(),
            Self::Apart(runs) => !runs.is_empty(),
        }
    }
}

impl Reading {
    /// Somebody is about to read. In the order in which he asks: a long read is several requests, which overtake each other
    /// as soon as they are looked at in tasks.
    pub(super) fn comes_to(&mut self, offset: u64, length: u64) {
        self.jumps.comes_to(offset, length);
    }

    /// Somebody reads `length` bytes, not 0, from `offset` on, of a file of `size` bytes; `most`: that may be kept for him. The round trip
    /// matters to those who ask for much at once, or jump on.
    pub(super) fn read(
        &mut self,
        offset: u64,
        length: u64,
        size: u64,
        most: u64,
        round_trip: impl Fn() -> Duration,
    ) -> Plan {
        match self.jumps.way() {
            Way::Apart => return Plan::Apart(self.jumps.next(size, most / JUMPS_SHARE as u64)),
            Way::Down => return self.read_down(offset, length, most, round_trip),
            Way::On => {}
        }
        // Several requests of the kernel's may overtake each other: a long read is many. Of pages it asks for those that it has not: whoever
        // reads on comes to the next of these, which has been asked for with what is between.
        let ahead = self.next.saturating_add(4 * BLOCK).max(self.asked.saturating_mul(BLOCK));
        let is_near = offset <= ahead && offset.saturating_add(16 * BLOCK) >= self.next;
        let end = offset.saturating_add(length);
        if !is_near || self.goes_down {
            let jumps_on = !self.goes_down && offset > ahead;
            let over = offset.saturating_sub(self.next);
            let is_short = jumps_on && over <= holds(READ_OVER_RATE, round_trip());
            if !is_short || !self.jumped_on {
                // There he may go on as he did before.
                let window = if jumps_on { self.window.min(self.jumps.length()) } else { 0 };
                self.begin(end, 0, false);
                self.window = window;
                self.jumped_on = is_short;
                return Plan::Alone;
            }
            if !self.is_full {
                // Twice as far, for what is fetched has to be on its way when he comes to the next; by and by, for a path may carry
                // little.
                let far = (2 * over).min(2 * self.window).min(READ_AHEAD_MAX).min(most);
                self.window = self.window.max(far);
            }
        }
        self.next = self.next.max(end);
        self.widen(length, most, round_trip);
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

    /// As [`read`](Self::read), backwards.
    fn read_down(&mut self, offset: u64, length: u64, most: u64, round_trip: impl Fn() -> Duration) -> Plan {
        let end = offset.saturating_add(length).div_ceil(BLOCK);
        if !self.goes_down {
            self.begin(offset, end, true);
        }
        self.widen(length, most, round_trip);
        let until = self.asked.min(end);
        let due = offset.saturating_sub(self.window / 2) / BLOCK;
        if due >= until {
            return Plan::BlocksDown(0..0);
        }
        let from = offset.saturating_sub(self.window) / BLOCK;
        self.asked = from;
        self.asked_before.get_or_insert(from);
        Plan::BlocksDown(from..until)
    }

    fn begin(&mut self, next: u64, asked: u64, goes_down: bool) {
        let jumps = mem::take(&mut self.jumps);
        *self = Self { next, asked, goes_down, jumps, ..Self::default() };
    }

    /// Who asks for much at once has more fetched ahead from the beginning.
    fn widen(&mut self, length: u64, most: u64, round_trip: impl Fn() -> Duration) {
        if self.window < READ_AHEAD_FIRST {
            let first = holds(READ_AHEAD_FIRST_RATE, round_trip());
            self.window = first.min(READ_AHEAD_MAX).min(most).max(READ_AHEAD_FIRST);
        }
        // The kernel cuts a call for a block in two where the caller's memory does not begin with a page.
        let holds = if length >= BLOCK / 2 { holds(READ_AHEAD_RATE, round_trip()) } else { 0 };
        let first = (READ_AHEAD_CALLS * length).max(holds);
        self.window = self.window.max(first.min(READ_AHEAD_MAX).min(most));
    }

    /// The reader has had to wait for a block that came so long after it was asked for; `most`: that may be kept for it.
    pub(super) fn waited(&mut self, place: u64, took: Duration, round_trip: Duration, most: u64) {
        let is_behind = |before| if self.goes_down { place < before } else { place >= before };
        let queued = is_queued(took, round_trip);
        self.is_full |= queued;
        if queued || !self.asked_before.is_some_and(is_behind) {
            return;
        }
        let factor = if took < round_trip + round_trip.max(QUEUED / 2) { 4 } else { 2 };
        self.window = (factor * self.window).min(READ_AHEAD_MAX).min(most).max(READ_AHEAD_FIRST);
        self.asked_before = None;
    }

    /// The same of bytes that lie apart.
    pub(super) fn waited_apart(&mut self, took: Duration, round_trip: Duration) {
        if !is_queued(took, round_trip) {
            self.jumps.waited();
        }
    }

    /// As [`Jumps::has_passed`].
    pub(super) fn has_passed(&self, offset: u64) -> bool {
        self.jumps.has_passed(offset)
    }

    /// A block that was asked for has not come, or is not here any more: from there on it is asked for again.
    pub(super) fn lost(&mut self, place: u64) {
        self.asked = if self.goes_down { self.asked.max(place + 1) } else { self.asked.min(place) };
        self.asked_before = None;
    }
}

/// Bytes that a path of so many per second has on its way.
fn holds(rate: u64, round_trip: Duration) -> u64 {
    (rate as f64 * round_trip.as_secs_f64()) as u64
}

/// What takes much longer than a few round trips stands in a queue: the path is full, and more would keep others waiting. Few are
/// not enough: lanes that begin carry little, and unequal parts of it.
fn is_queued(took: Duration, round_trip: Duration) -> bool {
    took >= 4 * round_trip + QUEUED
}

/// So long blocks may wait on their way beside a round trip: all lanes bring some at a time, and have buffers.
const QUEUED: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SIZE: u64 = 1 << 40;

    const RTT: Duration = Duration::from_millis(50);

    fn read(
        reading: &mut Reading,
        offset: u64,
        length: u64,
        size: u64,
        most: u64,
        round_trip: impl Fn() -> Duration,
    ) -> Plan {
        reading.comes_to(offset, length);
        reading.read(offset, length, size, most, round_trip)
    }

    #[test]
    fn a_reader_that_goes_on_is_read_ahead_for() {
        let mut reading = Reading::default();
        assert_eq!(read(&mut reading, 0, 100, SIZE, SIZE, || RTT), Plan::Blocks(0..5));
        assert_eq!(
            read(&mut reading, 100, 100, SIZE, SIZE, || RTT),
            Plan::Blocks(0..0),
            "they are on their way"
        );
        reading.waited(0, RTT, RTT, SIZE);
        assert_eq!(reading.window, 4 * BLOCK, "the path has not seen so much yet");
        assert_eq!(read(&mut reading, 3 * BLOCK, 100, SIZE, SIZE, || RTT), Plan::Blocks(5..8));
        reading.waited(5, 10 * RTT, RTT, SIZE);
        assert_eq!(reading.window, 4 * BLOCK, "the path is full");
        reading.waited(5, RTT, RTT, SIZE);
        assert_eq!(read(&mut reading, 5 * BLOCK, 100, SIZE, SIZE, || RTT), Plan::Blocks(8..22));
        for _ in 0..10 {
            reading.waited(reading.asked, RTT, RTT, SIZE);
            let next = reading.next;
            read(&mut reading, next, 1, SIZE, SIZE, || RTT);
        }
        assert_eq!(reading.window, READ_AHEAD_MAX);
        // Requests that overtake each other are no jump.
        let back = reading.next - BLOCK;
        assert_eq!(read(&mut reading, back, BLOCK, SIZE, SIZE, || RTT), Plan::Blocks(0..0));
    }

    /// A path, and a reader who takes what comes at once. Times in seconds.
    struct Path {
        /// Bytes per second.
        rate: f64,
        rtt: Duration,
        now: f64,
        /// When all that was asked for will have come.
        free: f64,
        /// Blocks: when they were asked for, and when they come.
        comes: HashMap<u64, (f64, f64)>,
        reading: Reading,
    }

    impl Path {
        fn new(rate: f64, rtt: Duration) -> Self {
            let (comes, reading) = (HashMap::new(), Reading::default());
            Self { rate, rtt, now: 0.0, free: 0.0, comes, reading }
        }

        /// When bytes come that are asked for now.
        fn ask(&mut self, bytes: u64) -> f64 {
            self.free = self.free.max(self.now + self.rtt.as_secs_f64()) + bytes as f64 / self.rate;
            self.free
        }

        /// The reader reads, and waits for what has not come.
        fn read(&mut self, offset: u64, length: u64, size: u64) {
            let rtt = self.rtt;
            if let Plan::Blocks(blocks) = read(&mut self.reading, offset, length, size, size, || rtt) {
                for place in blocks {
                    if !self.comes.contains_key(&place) {
                        let comes = (self.now, self.ask(BLOCK));
                        self.comes.insert(place, comes);
                    }
                }
            }
            for place in offset / BLOCK..(offset + length).div_ceil(BLOCK) {
                match self.comes.get(&place) {
                    Some((asked_at, comes_at)) if *comes_at > self.now => {
                        self.now = *comes_at;
                        let took = Duration::from_secs_f64(self.now - asked_at);
                        self.reading.waited(place, took, rtt, size);
                    }
                    Some(_) => {}
                    None => self.now = self.ask(length),
                }
            }
        }

        /// Bytes that may be fetched ahead.
        fn most_ahead(&self) -> f64 {
            let holds = self.rate * (4.0 * self.rtt.as_secs_f64() + 0.1);
            (4.0 * (holds + BLOCK as f64)).clamp(READ_AHEAD_FIRST as f64, READ_AHEAD_MAX as f64)
        }
    }

    #[test]
    fn no_more_is_fetched_ahead_than_the_path_holds() {
        // Bytes per second; the reader takes what comes at once.
        for (rate, rtt_ms) in [(12.5e6, 10), (125e6, 3), (125e6, 200), (1.25e9, 20), (1.25e9, 100)] {
            let rtt = Duration::from_millis(rtt_ms);
            let mut path = Path::new(rate, rtt);
            for quarter in 0..4 * 20_000 {
                path.read(quarter * (BLOCK / 4), BLOCK / 4, SIZE);
                assert!(path.comes.contains_key(&(quarter / 4)), "it goes on");
            }
            let bdp = rate * rtt.as_secs_f64();
            let (window, most) = (path.reading.window as f64, path.most_ahead());
            assert!(window >= bdp.min(READ_AHEAD_MAX as f64) && window <= most, "{rate} {rtt_ms} {window}");
            let reached = 20_000.0 * BLOCK as f64 / path.now;
            assert!(reached > 0.95 * rate, "{rate} {rtt_ms} {reached}");
        }
    }

    #[test]
    fn what_was_lost_is_asked_for_again() {
        let mut reading = Reading::default();
        assert_eq!(read(&mut reading, 0, 100, SIZE, SIZE, || RTT), Plan::Blocks(0..5));
        reading.lost(2);
        assert_eq!(read(&mut reading, 2 * BLOCK, 100, SIZE, SIZE, || RTT), Plan::Blocks(2..7));
    }

    #[test]
    fn every_block_of_a_file_is_asked_for_once() {
        let (mut reading, size) = (Reading::default(), 100 * BLOCK + 7);
        let mut asked = Vec::new();
        for (number, offset) in (0..size).step_by(8192).enumerate() {
            match read(&mut reading, offset, 8192.min(size - offset), size, SIZE, || RTT) {
                Plan::Blocks(blocks) => asked.extend(blocks),
                other => panic!("it goes on: {other:?}"),
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
            assert_eq!(read(&mut reading, place, 4096, SIZE, SIZE, || RTT), Plan::Alone);
        }
        assert_eq!(read(&mut reading, 20 * BLOCK + 4096, 4096, SIZE, SIZE, || RTT), Plan::Blocks(20..25));
    }

    /// Over pages that the kernel has.
    #[test]
    fn a_reader_that_jumps_to_what_has_been_asked_for_goes_on() {
        let mut reading = Reading::default();
        let plan = read(&mut reading, 0, BLOCK, SIZE, SIZE, || 2 * RTT);
        let Plan::Blocks(asked) = plan else { panic!("{plan:?}") };
        let (window, mut until) = (reading.window, asked.end);
        for place in [7, 40, 41, 60, 90] {
            assert!(place < until);
            match read(&mut reading, place * BLOCK, BLOCK, SIZE, SIZE, || 2 * RTT) {
                Plan::Blocks(more) if more.is_empty() => {}
                Plan::Blocks(more) => {
                    assert_eq!(more.start, until, "nothing is asked for twice, or left out");
                    until = more.end;
                }
                other => panic!("at {place}: {other:?}"),
            }
        }
        assert!(reading.window == window && until > 90 + window / BLOCK / 2);
        assert_eq!(
            read(&mut reading, (until + 5) * BLOCK, BLOCK, SIZE, SIZE, || 2 * RTT),
            Plan::Alone,
            "that has not"
        );
    }

    #[test]
    fn a_reader_that_comes_for_what_the_kernel_has_given_up_is_read_ahead_for_over_the_rest() {
        let mut reading = Reading::default();
        let mut comes_to = |block: u64| read(&mut reading, block * BLOCK, 4096, SIZE, SIZE, || RTT);
        assert_eq!([comes_to(300), comes_to(310)], [Plan::Alone, Plan::Alone], "once may be by chance");
        assert_eq!(comes_to(323), Plan::Blocks(323..328));
        assert_eq!(comes_to(330), Plan::Blocks(330..339), "twice as far as before");
        assert_eq!(comes_to(345), Plan::Blocks(345..362));
        assert_eq!(comes_to(340), Plan::Blocks(0..0), "requests overtake each other");
        assert_eq!(
            [comes_to(391), comes_to(500)],
            [Plan::Alone, Plan::Alone],
            "further than two round trips"
        );
        assert_eq!([comes_to(460), comes_to(430)], [Plan::Alone, Plan::Alone], "and these are backwards");
    }

    #[test]
    fn a_reader_that_jumps_far_on_goes_on_as_he_did_before() {
        let mut reading = Reading::default();
        let read_all = |reading: &mut Reading, blocks: Range<u64>| {
            let offsets = (blocks.start * BLOCK..blocks.end * BLOCK).step_by(BLOCK as usize / 8);
            offsets.map(|offset| read(reading, offset, BLOCK / 8, SIZE, SIZE, || RTT)).last()
        };
        read_all(&mut reading, 0..20);
        (0..9).for_each(|_| {
            reading.waited(reading.asked, RTT, RTT, SIZE);
            reading.asked_before = Some(reading.asked);
        });
        assert_eq!(reading.window, READ_AHEAD_MAX);
        let mut jump = |from: u64| {
            let plan = read(&mut reading, from * BLOCK, BLOCK / 8, SIZE, SIZE, || RTT);
            assert_eq!(plan, Plan::Alone, "he may not go on");
            let window = reading.window / BLOCK;
            read_all(&mut reading, from..from + 30);
            window
        };
        assert_eq!(
            [jump(500), jump(1000), jump(100)],
            [20, 20, 0],
            "as much as he read, and backwards nothing"
        );
    }

    /// Parts of a file that the kernel has are read at once.
    #[test]
    fn what_the_kernel_has_makes_no_reader_slower() {
        const MIB: u64 = 1 << 20;
        let (size, paths) =
            (4096 * MIB, [(12.5e6, 200), (125e6, 3), (125e6, 20), (125e6, 100), (125e6, 200), (1.25e9, 200)]);
        for (rate, rtt_ms, between, missing) in paths.into_iter().flat_map(|(rate, rtt)| {
            [(10, 1), (10, 4), (30, 1), (10, 10), (40, 10), (40, 40), (100, 100), (100, 4)]
                .map(|(between, missing)| (rate, rtt, between * MIB, missing * MIB))
        }) {
            let (mut path, mut seed) = (Path::new(rate, Duration::from_millis(rtt_ms)), 1_u64);
            // Half as long to half as long again.
            let mut about = |length: u64| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (length / 2 + (seed >> 33) % length) / 4096 * 4096
            };
            let mut offset = about(between);
            while offset < size {
                let end = (offset + about(missing)).min(size);
                while offset < end {
                    let length = (128 << 10).min(end - offset);
                    path.read(offset, length, size);
                    offset += length;
                }
                offset += about(between);
            }
            let (reached, window) = (size as f64 / path.now, path.reading.window as f64);
            let case = format!("{rate} bytes/s, {rtt_ms} ms, {missing} bytes after {between}");
            assert!(reached > 0.95 * rate.min(125e6), "{case}: {reached} bytes/s");
            assert!(window <= 2.0 * path.most_ahead(), "{case}: {window} bytes ahead");
        }
    }

    #[test]
    fn a_reader_that_goes_backwards_is_read_ahead_for() {
        let (mut reading, size) = (Reading::default(), 100 * BLOCK + 7);
        let (mut offset, mut times) = (size, vec![0; 101]);
        let (mut number, mut widest) = (0, 0);
        while offset > 0 {
            let length = offset.min(8192);
            offset -= length;
            match read(&mut reading, offset, length, size, SIZE, || RTT) {
                Plan::Alone | Plan::Blocks(_) if number < 2 || offset == 0 => {}
                Plan::BlocksDown(blocks) => {
                    assert!(blocks.end <= offset / BLOCK + 1 || blocks.is_empty(), "{blocks:?}");
                    blocks.for_each(|place| times[place as usize] += 1);
                    let due = offset.saturating_sub(reading.window / 2) / BLOCK;
                    assert!(reading.asked <= due, "at {offset}: {reading:?}");
                }
                other => panic!("at {offset}: {other:?}"),
            }
            if number % 500 == 0 {
                reading.waited(offset / BLOCK, RTT, RTT, SIZE);
            }
            (number, widest) = (number + 1, reading.window.max(widest));
        }
        assert_eq!(times[..100], [1; 100]);
        assert!(widest > READ_AHEAD_FIRST);
        // One that has made room for others is asked for with the next.
        let mut reading = Reading::default();
        (90..93).rev().for_each(|place| drop(read(&mut reading, place * BLOCK, BLOCK, SIZE, SIZE, || RTT)));
        let lowest = reading.asked;
        reading.lost(89);
        assert_eq!(read(&mut reading, 89 * BLOCK, BLOCK, SIZE, SIZE, || RTT), Plan::BlocksDown(57..90));
        assert!(lowest < 89);
        // And then forwards.
        assert_eq!(read(&mut reading, 90 * BLOCK, BLOCK, SIZE, SIZE, || RTT), Plan::Alone);
        let on = read(&mut reading, 91 * BLOCK, BLOCK, SIZE, SIZE, || RTT);
        assert!(matches!(on, Plan::Blocks(ref blocks) if blocks.start == 91), "{on:?}");
    }

    #[test]
    fn a_reader_that_jumps_evenly_is_expected() {
        let mut reading = Reading::default();
        let row = |row: u64| row * 16 * BLOCK..row * 16 * BLOCK + 4096;
        let plans: Vec<_> =
            (3..7).map(|number| read(&mut reading, row(number).start, 4096, SIZE, SIZE, || RTT)).collect();
        let ahead = (6..10).map(row).collect();
        assert_eq!(plans, [Plan::Alone, Plan::Alone, Plan::Apart(ahead), Plan::Apart(vec![])]);
        // He comes to where he reads on.
        let on = |part: u64| row(7).start + part * 4096;
        assert!(matches!(read(&mut reading, on(0), 4096, SIZE, SIZE, || RTT), Plan::Apart(_)));
        assert_eq!(read(&mut reading, on(1), 4096, SIZE, SIZE, || RTT), Plan::Alone);
        assert!(matches!(read(&mut reading, on(2), 4096, SIZE, SIZE, || RTT), Plan::Blocks(_)));
    }

    #[test]
    fn a_small_cache_is_not_read_past() {
        let mut reading = Reading::default();
        assert_eq!(read(&mut reading, 0, 1, SIZE, 8 * BLOCK, || RTT), Plan::Blocks(0..5));
        reading.waited(5, RTT, RTT, 8 * BLOCK);
        assert_eq!(read(&mut reading, BLOCK, 1, SIZE, 8 * BLOCK, || RTT), Plan::Blocks(5..10));
        assert_eq!(read(&mut Reading::default(), 0, BLOCK, SIZE, 8 * BLOCK, || RTT), Plan::Blocks(0..9));
    }

    #[test]
    fn what_was_left_out_is_asked_for_with_the_next() {
        let mut reading = Reading::default();
        assert_eq!(read(&mut reading, 0, 1, SIZE, SIZE, || RTT), Plan::Blocks(0..5));
        reading.lost(4);
        assert_eq!(read(&mut reading, 1, 1, SIZE, SIZE, || RTT), Plan::Blocks(0..0), "not due yet");
        assert_eq!(read(&mut reading, 2 * BLOCK, 1, SIZE, SIZE, || RTT), Plan::Blocks(4..7));
    }

    #[test]
    fn who_asks_for_much_at_once_goes_on_so() {
        let mut reading = Reading::default();
        let near = Duration::from_millis(10);
        assert_eq!(read(&mut reading, 0, BLOCK, SIZE, SIZE, || near), Plan::Blocks(0..1 + READ_AHEAD_CALLS));
        let mut far = Reading::default();
        let rtt = Duration::from_millis(200);
        assert_eq!(
            read(&mut far, 0, BLOCK, SIZE, SIZE, || rtt),
            Plan::Blocks(0..1 + (128_000_000 / BLOCK) + 1)
        );
        let mut near_small = Reading::default();
        assert_eq!(read(&mut near_small, 0, BLOCK / 2 - 1, SIZE, SIZE, || near), Plan::Blocks(0..17));
    }
}
