//! What has become of packets: which have arrived, which not and why, and how many.

use serde::{Deserialize, Serialize};

use super::Nanos;

/// Consecutive segments of one packet that arrive together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the first segment in its packet.
    pub first: u32,
    /// How many segments.
    pub count: u32,
    /// When the last of them arrives.
    pub deliver_at: Nanos,
    /// A random number that names the payload bit to flip, in a run of one.
    pub corrupt: Option<u64>,
    /// To be marked: congestion experienced (RFC 3168).
    pub mark: bool,
}

/// What has passed, in segments as the wire sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Offered by the sender.
    pub segments: u64,
    /// Offered bytes, IP headers included, Ethernet's overhead not.
    pub bytes: u64,
    /// Dropped because the queue was full.
    pub dropped_queue: u64,
    /// Dropped by the queue's management.
    pub dropped_aqm: u64,
    /// Marked by it, and delivered unless they were lost later.
    pub marked: u64,
    /// Lost on the wire.
    pub lost: u64,
    /// Lost because the link was down.
    pub lost_outage: u64,
    /// Delivered with a flipped bit.
    pub corrupted: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Delivered without the delay, to overtake others.
    pub reordered: u64,
    /// Delivered, each counted once.
    pub delivered: u64,
    /// Bytes of these, IP headers included.
    #[serde(default)]
    pub delivered_bytes: u64,
    /// Most bytes that ever waited for the wire.
    pub queue_bytes_max: u64,
    /// Nanoseconds that the wire has stood still between two packets, where these were less than
    /// [`IDLE_GAP_MAX`](crate::limits::IDLE_GAP_MAX) apart: what flows under way have left unused.
    #[serde(default)]
    pub idle_ns: u64,
}

impl Counters {
    /// All that will not arrive.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_queue + self.dropped_aqm + self.lost + self.lost_outage
    }

    /// Of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            bytes: self.bytes + other.bytes,
            dropped_queue: self.dropped_queue + other.dropped_queue,
            dropped_aqm: self.dropped_aqm + other.dropped_aqm,
            marked: self.marked + other.marked,
            lost: self.lost + other.lost,
            lost_outage: self.lost_outage + other.lost_outage,
            corrupted: self.corrupted + other.corrupted,
            duplicated: self.duplicated + other.duplicated,
            reordered: self.reordered + other.reordered,
            delivered: self.delivered + other.delivered,
            delivered_bytes: self.delivered_bytes + other.delivered_bytes,
            queue_bytes_max: self.queue_bytes_max.max(other.queue_bytes_max),
            idle_ns: self.idle_ns + other.idle_ns,
        }
    }
}

/// Why a segment does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There was no room for it.
    Queue,
    /// The queue's management wanted senders to slow down.
    Management,
    /// On the wire.
    Loss,
    /// The link was down.
    Outage,
}
