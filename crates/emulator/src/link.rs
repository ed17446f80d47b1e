//! One direction of a link: the fate and the delivery time of each packet. Pure: the caller passes `now`.
//!
//! A packet meets, in this order: the queue (drop-tail, in bytes), the wire (rate; each segment is charged with
//! its headers and Ethernet's overhead), loss and corruption on the wire, and the delay. First in, first out
//! and one rate, so the queue needs no list of packets: what waits is the time until the wire is free.
//!
//! Invariants: segments leave in the order they came; a segment is dropped, lost or delivered exactly once;
//! equal seed and equal packets of a flow give equal losses whatever the timing.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{CARRY_WHOLE_MAX, ETHERNET_OVERHEAD_BYTES, FLOWS_MAX};
use crate::loss::{Dice, Probability, Purpose};
use crate::packet::{FlowKey, Train};

/// Nanoseconds since an origin of the caller's choosing.
pub type Nanos = u64;

/// Settings of one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// From the end of a packet's serialisation to its arrival.
    pub delay: Duration,
    /// Bits per second of the wire, Ethernet's overhead included; none: no serialisation time, no queue.
    pub rate_bps: Option<u64>,
    /// Bytes (with Ethernet's overhead) that may wait for the wire; none: no limit.
    pub queue_bytes: Option<u64>,
    /// Each segment, independently.
    pub loss: Probability,
    /// Each segment, independently: one bit of its payload is flipped, unseen by TCP's checksum.
    pub corrupt: Probability,
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
        let rate = self.rate_bps.unwrap_or(crate::limits::UNSHAPED_RATE_BPS);
        let in_flight = u128::from(rate) * self.delay.as_nanos() / 8_000_000_000;
        // An unlimited queue holds what a second of the line rate brings; the rest is the memory's own drop.
        let queued = self.queue_bytes.unwrap_or(if self.rate_bps.is_some() { rate / 8 } else { 0 });
        u64::try_from(in_flight).unwrap_or(u64::MAX).saturating_add(queued)
    }
}

/// Both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPair {
    /// From `near` to `far`.
    pub forward: LinkConfig,
    /// From `far` to `near`.
    pub backward: LinkConfig,
}

impl LinkPair {
    /// The same settings each way; `link.delay` is one way, half the RTT.
    #[must_use]
    pub fn symmetric(link: LinkConfig) -> Self {
        Self { forward: link.clone(), backward: link }
    }

    /// Round-trip time of an idle link, without serialisation.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.forward.delay + self.backward.delay
    }
}

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
    /// Lost on the wire.
    pub lost: u64,
    /// Delivered with a flipped bit.
    pub corrupted: u64,
    /// Delivered, corrupted ones included.
    pub delivered: u64,
    /// Most bytes that ever waited for the wire.
    pub queue_bytes_max: u64,
}

#[derive(Debug)]
struct Flow {
    number: u64,
    packets: u64,
}

/// The state of one direction.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    dice: Dice,
    /// Time on the wire of one byte, in 2^-32 ns. At 100 Gbit/s the rounding is 3e-9 of the rate.
    byte_time: u64,
    /// When the wire is free, in 2^-32 ns.
    free_at: u128,
    last_delivery: Nanos,
    flows: HashMap<FlowKey, Flow>,
    flows_seen: u64,
    counters: Counters,
}

const FRACTION_BITS: u32 = 32;

impl Link {
    /// An idle link.
    #[must_use]
    pub fn new(config: LinkConfig, dice: Dice) -> Self {
        let byte_time = byte_time(config.rate_bps);
        Self {
            config,
            dice,
            byte_time,
            free_at: 0,
            last_delivery: 0,
            flows: HashMap::new(),
            flows_seen: 0,
            counters: Counters::default(),
        }
    }

    /// Changes the settings; what is on its way stays so, and later packets never overtake it.
    pub fn set(&mut self, config: LinkConfig) {
        self.byte_time = byte_time(config.rate_bps);
        self.config = config;
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// What has passed so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes that wait for the wire at `now`, the rest of the one being sent included.
    #[must_use]
    pub fn queued_bytes(&self, now: Nanos) -> u64 {
        let now = u128::from(now) << FRACTION_BITS;
        match self.byte_time {
            0 => 0,
            per_byte => {
                u64::try_from(self.free_at.saturating_sub(now) / u128::from(per_byte)).unwrap_or(u64::MAX)
            }
        }
    }

    /// Takes a packet at `now` and appends to `runs` which of its segments arrive and when.
    ///
    /// `now` must not go back. Cost: one table look-up, and ~3 ns a segment.
    pub fn offer(&mut self, now: Nanos, train: &Train, runs: &mut Vec<Run>) {
        let (flow, first_number) = self.enter_flow(train);
        let now_fine = u128::from(now) << FRACTION_BITS;
        let carry_max = CARRY_WHOLE_MAX.as_nanos() << FRACTION_BITS;
        let mut queued = self.queued_bytes(now);
        let mut open: Option<(Run, u128)> = None; // and when its first segment began on the wire
        self.counters.segments += u64::from(train.segments);
        for index in 0..train.segments {
            let ip_bytes = train.segment_ip_bytes(index);
            let wire_bytes = u64::from(ip_bytes + ETHERNET_OVERHEAD_BYTES);
            self.counters.bytes += u64::from(ip_bytes);
            // A link that has become much faster may owe more bytes than there are numbers.
            let with_it = queued.saturating_add(wire_bytes);
            let full = self.config.queue_bytes.is_some_and(|max| with_it > max.max(wire_bytes));
            if full && self.byte_time > 0 {
                self.counters.dropped_queue += 1;
                runs.extend(open.take().map(|(run, _)| run));
                continue;
            }
            let begins = self.free_at.max(now_fine);
            self.free_at = begins + u128::from(self.byte_time) * u128::from(wire_bytes);
            if self.byte_time > 0 {
                queued = with_it;
                self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(queued);
            }
            let number = first_number + u64::from(index);
            if self.dice.happens(self.config.loss, Purpose::Loss, flow, number) {
                self.counters.lost += 1;
                runs.extend(open.take().map(|(run, _)| run));
                continue;
            }
            let corrupt = self
                .dice
                .happens(self.config.corrupt, Purpose::Corruption, flow, number)
                .then(|| self.dice.roll(Purpose::CorruptedBit, flow, number));
            self.counters.delivered += 1;
            self.counters.corrupted += u64::from(corrupt.is_some());
            let deliver_at = self.arrival(self.free_at);
            match &mut open {
                Some((run, began))
                    if corrupt.is_none() && run.corrupt.is_none() && self.free_at - *began <= carry_max =>
                {
                    run.count += 1;
                    run.deliver_at = deliver_at;
                }
                _ => {
                    runs.extend(open.take().map(|(run, _)| run));
                    open = Some((Run { first: index, count: 1, deliver_at, corrupt }, begins));
                }
            }
        }
        runs.extend(open.map(|(run, _)| run));
    }

    /// Arrival of what leaves the wire at `left`; never before anything that left earlier.
    fn arrival(&mut self, left: u128) -> Nanos {
        let left = u64::try_from(left >> FRACTION_BITS).unwrap_or(u64::MAX);
        let delay = u64::try_from(self.config.delay.as_nanos()).unwrap_or(u64::MAX);
        self.last_delivery = self.last_delivery.max(left.saturating_add(delay));
        self.last_delivery
    }

    /// The flow's number and the number of the packet's first segment within it.
    fn enter_flow(&mut self, train: &Train) -> (u64, u64) {
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&train.flow) {
            // Numbers go on from `flows_seen`, so a forgotten flow that returns is a new one.
            self.flows.clear();
        }
        let flow = self.flows.entry(train.flow).or_insert_with(|| {
            self.flows_seen += 1;
            Flow { number: self.flows_seen, packets: 0 }
        });
        let first = flow.packets;
        flow.packets += u64::from(train.segments);
        (flow.number, first)
    }
}

fn byte_time(rate_bps: Option<u64>) -> u64 {
    rate_bps.map_or(0, |rate| {
        let fine = (8_000_000_000u128 << FRACTION_BITS) / u128::from(rate.max(1));
        u64::try_from(fine).unwrap_or(u64::MAX).max(1)
    })
}

#[cfg(test)]
mod tests;
