//! The settings of a link, and what follows from them alone.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::aqm::Aqm;
use crate::delay::Jitter;
use crate::dice::Probability;
use crate::limits::{DELAY_MAX, FAIR_PACKETS_MAX, FULL_PACKET_BYTES, UNSHAPED_RATE_BPS};
use crate::loss::LossModel;
use crate::outage::Outage;
use crate::rules::Rule;
use crate::trace::Trace;

/// Settings of one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// From the end of a packet's serialisation to its arrival.
    pub delay: Duration,
    /// How it varies from segment to segment; never below 0.
    pub jitter: Option<Jitter>,
    /// Bits per second of the wire, Ethernet's overhead included; none: no serialisation time, no queue.
    pub rate_bps: Option<u64>,
    /// Bytes (with Ethernet's overhead) that may wait for the wire; none: no limit.
    pub queue_bytes: Option<u64>,
    /// Segments that may, the one on the wire included; none: no limit.
    pub queue_packets: Option<NonZeroU64>,
    /// How the queue is managed before it is full; only where there is a rate.
    pub aqm: Option<Aqm>,
    /// Which segments are lost.
    pub loss: LossModel,
    /// Each segment, independently: one bit of its payload is flipped, unseen by TCP's checksum.
    pub corrupt: Probability,
    /// Each segment, independently: it arrives a second time, right behind itself.
    pub duplicate: Probability,
    /// Segments that overtake others.
    pub reorder: Option<Reorder>,
    /// When nothing gets through.
    pub outage: Option<Outage>,
    /// What changes by a timetable.
    pub trace: Option<Trace>,
}

/// Segments that have no delay, and so arrive before others that were sent earlier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Of those that may, each, independently.
    pub probability: Probability,
    /// Every so many-th of a flow may; 1: all.
    pub gap: NonZeroU64,
}

impl LinkConfig {
    /// Only a delay.
    #[must_use]
    pub fn with_delay(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Bytes in flight and queued at the most; what the packet memory must hold.
    #[must_use]
    pub fn bytes_held_max(&self) -> u64 {
        bytes_held_max([self])
    }

    /// Bits per second that it carries at the most.
    fn rate_bps_max(&self) -> u64 {
        let rate = self.trace.as_ref().and_then(Trace::rate_bps_max).or(self.rate_bps);
        rate.unwrap_or(UNSHAPED_RATE_BPS)
    }

    /// The longest that a packet is on its way, as a rule.
    fn time_held_max(&self) -> Duration {
        let delay =
            self.trace.as_ref().and_then(Trace::delay_max).map_or(self.delay, |max| max.max(self.delay));
        let delay = delay.saturating_add(self.jitter.as_ref().map_or(Duration::ZERO, Jitter::usually_below));
        let Some(rate) = self.mean_rate_bps() else { return delay.min(DELAY_MAX) };
        let packets = match (self.queue_packets, self.aqm) {
            (Some(packets), _) => Some(packets.get()),
            (None, Some(Aqm::FqCoDel { .. })) if self.queue_bytes.is_none() => Some(FAIR_PACKETS_MAX),
            _ => None,
        };
        let in_packets = packets.map(|packets| packets.saturating_mul(FULL_PACKET_BYTES));
        // An unlimited queue holds what a second of the line rate brings; the rest is the memory's own drop.
        let queued = self.queue_bytes.into_iter().chain(in_packets).min().unwrap_or(rate / 8);
        let waits =
            Duration::try_from_secs_f64(queued as f64 * 8.0 / rate.max(1) as f64).unwrap_or(DELAY_MAX);
        delay.saturating_add(waits).min(DELAY_MAX)
    }

    /// Of the trace, or of the link itself; none: as fast as it goes.
    #[must_use]
    pub fn mean_rate_bps(&self) -> Option<u64> {
        self.trace.as_ref().and_then(Trace::mean_rate_bps).or(self.rate_bps)
    }

    /// The same without its trace, which may be long.
    #[must_use]
    pub fn in_short(&self) -> Self {
        Self { trace: None, jitter: self.jitter.clone(), ..*self }
    }

    /// Whether all segments of a packet share its fate, or all packets have the same.
    #[must_use]
    pub fn keeps_packets_whole(&self) -> bool {
        !self.corrupt.is_possible()
            && !self.duplicate.is_possible()
            && self.jitter.is_none()
            && self.reorder.is_none()
            && self.outage.is_none()
            && self.trace.is_none()
            && self.aqm.is_none()
            && (!self.loss.is_possible() || self.loss.is_certain())
    }
}

/// Bytes that links hold together at the most, in one memory that is freed in the order in which it was filled: what all
/// of them bring in the longest time that a packet of any of them stays.
pub fn bytes_held_max<'a>(configs: impl IntoIterator<Item = &'a LinkConfig>) -> u64 {
    let (mut rate, mut fastest, mut longest) = (0u64, UNSHAPED_RATE_BPS, Duration::ZERO);
    for config in configs {
        rate = rate.saturating_add(config.rate_bps_max());
        fastest = fastest.max(config.rate_bps_max());
        longest = longest.max(config.time_held_max());
    }
    // The machine brings no more than so much.
    let bytes = u128::from(rate.min(fastest)) * longest.as_nanos() / 8_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPair {
    /// From `near` to `far`.
    pub forward: LinkConfig,
    /// From `far` to `near`.
    pub backward: LinkConfig,
    /// Traffic with a link of its own, in the order in which rules are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuledLink>,
}

/// A link of its own for packets that fit a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuledLink {
    /// What it is called.
    pub name: String,
    /// Which packets travel by it.
    pub rule: Rule,
    /// From `near` to `far`.
    pub forward: LinkConfig,
    /// From `far` to `near`.
    pub backward: LinkConfig,
}

impl LinkPair {
    /// The same settings each way; `link.delay` is one way, half the RTT.
    #[must_use]
    pub fn symmetric(link: LinkConfig) -> Self {
        Self { forward: link.clone(), backward: link, rules: Vec::new() }
    }

    /// Round-trip time of an idle link, without serialisation.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.forward.delay + self.backward.delay
    }
}
