//! What a flow has moved, and how much of it in an interval.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one flow. One thread writes; others read now and then. A cache line pair of its own, so that flows do not
/// slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    bytes: AtomicU64,
    packets: AtomicU64,
    lost: AtomicU64,
    reordered: AtomicU64,
    duplicates: AtomicU64,
    jitter_ns: AtomicU64,
    span_ns: AtomicU64,
    span_bytes: AtomicU64,
}

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Payload.
    pub bytes: u64,
    /// UDP: packets that were sent; at a receiver, those that it knows to have been sent.
    pub packets: u64,
    /// UDP, at a receiver: of these, those that have not come. In an interval less than zero where late ones come.
    pub lost: i64,
    /// UDP, at a receiver: packets that came after one with a higher number.
    pub reordered: u64,
    /// UDP, at a receiver: packets that came again.
    pub duplicates: u64,
    /// UDP, at a receiver: RFC 3550's mean deviation of the transit time, now.
    pub jitter_s: f64,
    /// UDP, at a receiver: from the first arrival to the last, now.
    pub span_s: f64,
    /// UDP, at a receiver: payload that came in that time, after the first arrival.
    pub span_bytes: u64,
}

impl Counters {
    /// Another piece has been moved: by the flow's own thread.
    pub fn moved(&self, bytes: u64, packets: u64) {
        // One writer: no need for an atomic addition.
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
        self.packets.store(self.packets.load(Relaxed) + packets, Relaxed);
    }

    /// What a receiver of packets knows now: by the flow's own thread.
    pub fn tell(&self, counts: &Counts) {
        self.bytes.store(counts.bytes, Relaxed);
        self.packets.store(counts.packets, Relaxed);
        self.lost.store(counts.lost.cast_unsigned(), Relaxed);
        self.reordered.store(counts.reordered, Relaxed);
        self.duplicates.store(counts.duplicates, Relaxed);
        self.jitter_ns.store((counts.jitter_s * 1e9) as u64, Relaxed);
        self.span_ns.store((counts.span_s * 1e9) as u64, Relaxed);
        self.span_bytes.store(counts.span_bytes, Relaxed);
    }

    /// All that was moved.
    #[must_use]
    pub fn now(&self) -> Counts {
        Counts {
            bytes: self.bytes.load(Relaxed),
            packets: self.packets.load(Relaxed),
            lost: self.lost.load(Relaxed).cast_signed(),
            reordered: self.reordered.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            jitter_s: self.jitter_ns.load(Relaxed) as f64 / 1e9,
            span_s: self.span_ns.load(Relaxed) as f64 / 1e9,
            span_bytes: self.span_bytes.load(Relaxed),
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    /// What was moved since `before`, which was told by the same counters; the jitter and the span stay those of now.
    fn sub(self, before: Self) -> Self {
        Self {
            // The fields are read one by one, while another thread writes.
            bytes: self.bytes.saturating_sub(before.bytes),
            packets: self.packets.saturating_sub(before.packets),
            lost: self.lost.saturating_sub(before.lost),
            reordered: self.reordered.saturating_sub(before.reordered),
            duplicates: self.duplicates.saturating_sub(before.duplicates),
            jitter_s: self.jitter_s,
            span_s: self.span_s,
            span_bytes: self.span_bytes,
        }
    }
}

impl Counts {
    /// Of several flows together; the jitter is the mean of theirs, as iperf3 has it.
    #[must_use]
    pub fn total(all: &[Self]) -> Self {
        let mut total = Self::default();
        for one in all {
            total.bytes = total.bytes.saturating_add(one.bytes);
            total.packets = total.packets.saturating_add(one.packets);
            total.lost = total.lost.saturating_add(one.lost);
            total.reordered = total.reordered.saturating_add(one.reordered);
            total.duplicates = total.duplicates.saturating_add(one.duplicates);
            total.jitter_s += one.jitter_s / all.len() as f64;
            total.span_s = total.span_s.max(one.span_s);
            total.span_bytes = total.span_bytes.saturating_add(one.span_bytes);
        }
        total
    }

    /// Packets that were lost, for each that was sent, in percent.
    #[must_use]
    pub fn lost_percent(&self) -> f64 {
        if self.packets == 0 { 0.0 } else { self.lost as f64 * 100.0 / self.packets as f64 }
    }
}

/// Cuts what counters tell into intervals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// When, and from what, the whole counts.
    base: (f64, Counts),
    last: (f64, Counts),
}

impl Meter {
    /// What was moved since the last time this was asked, and from when: seconds of any clock.
    pub fn interval(&mut self, now: f64, counts: Counts) -> (f64, Counts) {
        let (since, before) = std::mem::replace(&mut self.last, (now, counts));
        (since - self.base.0, counts - before)
    }

    /// All that went before does not count.
    pub fn restart(&mut self, now: f64, counts: Counts) {
        self.base = (now, counts);
        self.last = self.base;
    }

    /// What was moved in all, and in how many seconds.
    #[must_use]
    pub fn total(&self, now: f64, counts: Counts) -> (f64, Counts) {
        (now - self.base.0, counts - self.base.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(bytes: u64) -> Counts {
        Counts { bytes, ..Counts::default() }
    }

    #[test]
    fn intervals_add_up_to_the_whole() {
        let mut meter = Meter::default();
        meter.restart(10.0, bytes(0));
        assert_eq!(meter.interval(11.0, bytes(7)), (0.0, bytes(7)));
        assert_eq!(meter.interval(12.0, bytes(10)), (1.0, bytes(3)));
        assert_eq!(meter.total(12.5, bytes(12)), (2.5, bytes(12)));
    }

    #[test]
    fn a_start_can_be_left_out() {
        let mut meter = Meter::default();
        assert_eq!(meter.interval(1.0, bytes(100)), (0.0, bytes(100)));
        meter.restart(1.0, bytes(100));
        assert_eq!(meter.interval(2.0, bytes(150)), (0.0, bytes(50)));
        assert_eq!(meter.total(2.0, bytes(150)), (1.0, bytes(50)));
    }

    #[test]
    fn late_packets_take_back_losses_of_an_interval_before() {
        let (one, two) = (Counts { lost: 3, ..bytes(5) }, Counts { lost: 1, ..bytes(9) });
        assert_eq!((two - one).lost, -2);
        assert_eq!(Counts::default().lost_percent(), 0.0);
        let jitter = |jitter_s| Counts { jitter_s, ..bytes(1) };
        assert_eq!(Counts::total(&[jitter(1.0), jitter(3.0)]), Counts { jitter_s: 2.0, ..bytes(2) });
    }
}
