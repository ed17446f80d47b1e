//! What a direction of a test did between two looks at it.

use longhaul_probe::path::client::Both;
use longhaul_probe::path::test::{Seen, Way, What};
use serde::Serialize;

/// What the receiver got, in its own time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Interval {
    /// Seconds since the test's beginning there.
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) bytes: u64,
    pub(super) bits_per_second: f64,
    /// TCP: segments that the sender has sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retransmits: Option<u64>,
    /// UDP: packets that should have come, by their numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) packets: Option<u64>,
    /// UDP: of these, that did not; those that were late are missing where they should have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<i64>,
}

/// One direction's counts, from one look to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    what: What,
    way: Way,
    last: Count,
}

/// Since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Count {
    pub(super) seconds: f64,
    pub(super) bytes: u64,
    /// TCP.
    pub(super) retransmits: u64,
    /// UDP.
    pub(super) packets: u64,
    /// UDP, on the path.
    pub(super) lost: u64,
}

impl Count {
    pub(super) fn of(both: &Both, way: Way) -> Self {
        let (sender, receiver) = (both.sender(way), both.receiver(way));
        Self {
            seconds: receiver.seconds,
            bytes: receiver.bytes(),
            retransmits: retransmits(sender),
            packets: receiver.sum(|flow| flow.packets),
            lost: receiver.sum(|flow| flow.lost.saturating_sub(flow.dropped_here)),
        }
    }
}

fn retransmits(sender: &Seen) -> u64 {
    sender.sum(|flow| flow.tcp.map_or(0, |tcp| tcp.retransmits))
}

impl Meter {
    pub(super) fn new(what: What, way: Way) -> Self {
        Self { what, way, last: Count::default() }
    }

    /// Since the last one; `None`: no time has passed there.
    pub(super) fn interval(&mut self, both: &Both) -> Option<Interval> {
        let now = Count::of(both, self.way);
        let seconds = now.seconds - self.last.seconds;
        if !(seconds > 0.0 && seconds.is_finite()) {
            return None;
        }
        let last = std::mem::replace(&mut self.last, now);
        let bytes = now.bytes.saturating_sub(last.bytes);
        let (is_tcp, is_udp) = (self.what == What::Tcp, self.what == What::Udp);
        Some(Interval {
            start: last.seconds,
            end: now.seconds,
            bytes,
            bits_per_second: bytes as f64 * 8.0 / seconds,
            retransmits: is_tcp.then(|| now.retransmits.saturating_sub(last.retransmits)),
            packets: is_udp.then(|| now.packets.saturating_sub(last.packets)),
            lost: is_udp.then(|| now.lost.cast_signed().saturating_sub(last.lost.cast_signed())),
        })
    }
}

#[cfg(test)]
mod tests {
    use longhaul_probe::path::test::{FlowSeen, TcpSeen};

    use super::*;

    fn both(seconds: f64, bytes: u64, retransmits: u64, lost: u64) -> Both {
        let tcp = Some(TcpSeen { retransmits, ..TcpSeen::default() });
        let sent = FlowSeen { bytes: 2 * bytes, packets: 99, tcp, ..FlowSeen::default() };
        let came = FlowSeen { bytes, packets: bytes / 10, lost, ..FlowSeen::default() };
        let seen = |flow| Seen { seconds, flows: vec![flow, flow], ..Seen::default() };
        Both { near: seen(came), far: seen(sent) }
    }

    #[test]
    fn an_interval_is_what_the_receiver_got_in_it() {
        let mut meter = Meter::new(What::Tcp, Way::ToClient);
        let first = meter.interval(&both(1.0, 1000, 1, 0)).unwrap();
        assert_eq!((first.start, first.end, first.bytes, first.bits_per_second), (0.0, 1.0, 2000, 16_000.0));
        assert_eq!((first.retransmits, first.packets, first.lost), (Some(2), None, None));
        // An answer that was overtaken.
        assert_eq!(meter.interval(&both(0.5, 500, 1, 0)), None);
        let second = meter.interval(&both(1.5, 2000, 4, 0)).unwrap();
        assert_eq!((second.start, second.bytes, second.bits_per_second), (1.0, 2000, 32_000.0));
        assert_eq!(second.retransmits, Some(6));
    }

    #[test]
    fn packets_that_came_late_are_not_lost() {
        let mut meter = Meter::new(What::Udp, Way::ToClient);
        let first = meter.interval(&both(1.0, 1000, 0, 3)).unwrap();
        assert_eq!((first.retransmits, first.packets, first.lost), (None, Some(200), Some(6)));
        assert_eq!(meter.interval(&both(2.0, 2000, 0, 1)).unwrap().lost, Some(-4));
    }
}
