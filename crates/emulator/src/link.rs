//! One direction of a link: the fate and the delivery time of each packet. Pure: the caller passes `now`.
//!
//! A packet meets, in this order: the queue (drop-tail, in bytes or packets) and its management, the wire (rate; each
//! segment is charged with its headers and Ethernet's overhead), outages, loss, corruption and duplication on the wire,
//! and the delay with its jitter. First in, first out and one rate, so a queue in bytes needs no list of packets: what
//! waits is the time until the wire is free.
//!
//! Invariants: segments leave in the order they came, but for those that shall overtake others; a segment is dropped, lost
//! or delivered exactly once, or delivered twice where it shall be; equal seed and equal packets of a flow give equal
//! fates whatever the timing, but for what depends on time itself, queue and outages.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::aqm::{Aqm, CoDel, Verdict, drd_share};
use crate::delay::Jitter;
use crate::dice::{Dice, Probability, Purpose};
use crate::limits::{CARRY_WHOLE_MAX, DELAY_MAX, ETHERNET_OVERHEAD_BYTES, FLOWS_MAX, MTU};
use crate::loss::{LossModel, LossState};
use crate::outage::Outage;
use crate::packet::{FlowKey, Train};

/// Nanoseconds since an origin of the caller's choosing.
pub type Nanos = u64;

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

const FULL_PACKET_BYTES: u64 = (MTU + ETHERNET_OVERHEAD_BYTES) as u64;

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
        let longest =
            self.delay.saturating_add(self.jitter.as_ref().map_or(Duration::ZERO, Jitter::usually_below));
        let in_flight = u128::from(rate) * longest.min(DELAY_MAX).as_nanos() / 8_000_000_000;
        let in_packets = self.queue_packets.map(|packets| packets.get().saturating_mul(FULL_PACKET_BYTES));
        // An unlimited queue holds what a second of the line rate brings; the rest is the memory's own drop.
        let unlimited = if self.rate_bps.is_some() { rate / 8 } else { 0 };
        let queued = self.queue_bytes.into_iter().chain(in_packets).min().unwrap_or(unlimited);
        u64::try_from(in_flight).unwrap_or(u64::MAX).saturating_add(queued)
    }

    /// Whether all segments of a packet share its fate, or all packets have the same.
    #[must_use]
    pub fn keeps_packets_whole(&self) -> bool {
        !self.corrupt.is_possible()
            && !self.duplicate.is_possible()
            && self.jitter.is_none()
            && self.reorder.is_none()
            && self.outage.is_none()
            && self.aqm.is_none()
            && (!self.loss.is_possible() || self.loss.is_certain())
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
    /// Most bytes that ever waited for the wire.
    pub queue_bytes_max: u64,
}

/// What is known of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    number: u64,
    packets: u64,
    loss: LossState,
    /// Of its last packet's jitter.
    deviation: Option<f64>,
}

/// The state of one direction.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    dice: Dice,
    effects: Effects,
    delay: Nanos,
    /// Time on the wire of one byte, in 2^-32 ns. At 100 Gbit/s the rounding is 3e-9 of the rate.
    byte_time: u64,
    /// When the wire is free, in 2^-32 ns.
    free_at: u128,
    last_delivery: Nanos,
    /// When each waiting segment will have left; only where their number is limited.
    departures: VecDeque<u128>,
    codel: CoDel,
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
            effects: Effects::of(&config),
            delay: nanos(config.delay),
            config,
            dice,
            byte_time,
            free_at: 0,
            last_delivery: 0,
            departures: VecDeque::new(),
            codel: CoDel::default(),
            flows: HashMap::new(),
            flows_seen: 0,
            counters: Counters::default(),
        }
    }

    /// Changes the settings; what is on its way stays so, and later packets do not overtake it unless they may.
    pub fn set(&mut self, config: LinkConfig) {
        self.byte_time = byte_time(config.rate_bps);
        self.effects = Effects::of(&config);
        self.delay = nanos(config.delay);
        if config.aqm != self.config.aqm {
            self.codel = CoDel::default();
        }
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
    /// `now` must not go back. Cost: a table look-up, and a few multiplications for each segment and each effect that the
    /// link has.
    pub fn offer(&mut self, now: Nanos, train: &Train, runs: &mut Vec<Run>) {
        let mut flow = self.flow(train);
        let now_fine = u128::from(now) << FRACTION_BITS;
        let mut queued = self.queued_bytes(now);
        let mut open: Option<Open> = None;
        self.counters.segments += u64::from(train.segments);
        let effects = self.effects;
        for index in 0..train.segments {
            let number = flow.packets;
            flow.packets += 1;
            // Every packet is a step of the flow's chains, whatever becomes of it: they do not depend on timing.
            let is_lost =
                effects.loss && self.config.loss.loses(&mut flow.loss, self.dice, flow.number, number);
            let deviation = match &self.config.jitter {
                Some(jitter) => jitter.deviation(&mut flow.deviation, self.dice, flow.number, number),
                None => 0.0,
            };
            let ip_bytes = train.segment_ip_bytes(index);
            let wire_bytes = u64::from(ip_bytes + ETHERNET_OVERHEAD_BYTES);
            self.counters.bytes += u64::from(ip_bytes);
            // A link that has become much faster may owe more bytes than there are numbers.
            let with_it = queued.saturating_add(wire_bytes);
            let begins = self.free_at.max(now_fine);
            let mut mark = false;
            if effects.rate {
                let full = self.config.queue_bytes.is_some_and(|max| with_it > max.max(wire_bytes))
                    || (effects.counts_packets && self.has_too_many_packets(now_fine));
                if full {
                    self.counters.dropped_queue += 1;
                    runs.extend(open.take().map(|open| open.run));
                    continue;
                }
                if effects.aqm {
                    let verdict = self.manage(now, whole(begins), train.can_be_marked, flow.number, number);
                    if verdict == Verdict::Drop {
                        self.counters.dropped_aqm += 1;
                        runs.extend(open.take().map(|open| open.run));
                        continue;
                    }
                    mark = verdict == Verdict::Mark;
                    self.counters.marked += u64::from(mark);
                }
                self.free_at = begins + u128::from(self.byte_time) * u128::from(wire_bytes);
                queued = with_it;
                self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(queued);
                if effects.counts_packets {
                    self.departures.push_back(self.free_at);
                }
            } else {
                self.free_at = begins;
            }
            let event =
                if effects.wire { self.event(whole(begins), flow.number, number) } else { Event::NONE };
            if is_lost || event.is_down {
                self.counters.lost_outage += u64::from(event.is_down);
                self.counters.lost += u64::from(!event.is_down);
                runs.extend(open.take().map(|open| open.run));
                continue;
            }
            self.counters.delivered += 1;
            let deliver_at = match event.overtakes {
                true => whole(self.free_at),
                false => self.arrival(self.free_at, deviation),
            };
            let run = Run { first: index, count: 1, deliver_at, corrupt: event.corrupt, mark };
            match &mut open {
                Some(open) if self.joins(open, &run) => {
                    open.run.count += 1;
                    open.run.deliver_at = deliver_at;
                }
                _ => {
                    runs.extend(open.take().map(|open| open.run));
                    open = Some(Open { run, began: begins });
                }
            }
            if effects.wire {
                self.counters.corrupted += u64::from(event.corrupt.is_some());
                self.counters.reordered += u64::from(event.overtakes);
                self.counters.duplicated += u64::from(event.comes_twice);
                if event.comes_twice {
                    runs.extend(open.take().map(|open| open.run));
                    runs.push(run);
                }
            }
        }
        runs.extend(open.map(|open| open.run));
        if let Some(known) = self.flows.get_mut(&train.flow) {
            *known = flow;
        }
    }

    /// Whether a segment finds too many before it.
    fn has_too_many_packets(&mut self, now: u128) -> bool {
        let left = self.departures.partition_point(|at| *at <= now);
        self.departures.drain(..left);
        self.config.queue_packets.is_some_and(|max| self.departures.len() as u64 >= max.get())
    }

    /// What happens on the wire to a segment that begins on it at `begins`.
    fn event(&self, begins: Nanos, flow: u64, number: u64) -> Event {
        let happens = |p, purpose| self.dice.happens(p, purpose, flow, number);
        Event {
            is_down: self.config.outage.is_some_and(|outage| outage.is_on(begins)),
            corrupt: happens(self.config.corrupt, Purpose::Corruption)
                .then(|| self.dice.roll(Purpose::CorruptedBit, flow, number)),
            overtakes: self.config.reorder.is_some_and(|Reorder { probability, gap }| {
                number % gap == gap.get() - 1 && happens(probability, Purpose::Reordering)
            }),
            comes_twice: happens(self.config.duplicate, Purpose::Duplication),
        }
    }

    /// What the queue's management makes of a segment that came at `now` and will leave the queue at `leaves`.
    fn manage(&mut self, now: Nanos, leaves: Nanos, can_be_marked: bool, flow: u64, number: u64) -> Verdict {
        let Some(aqm) = self.config.aqm else { return Verdict::Keep };
        let can_mark = can_be_marked && aqm.marks();
        match aqm {
            Aqm::None => Verdict::Keep,
            Aqm::CoDel { target, interval, .. } => {
                let full_packet = u128::from(self.byte_time) * u128::from(FULL_PACKET_BYTES);
                let target = target.max(Duration::from_nanos(whole(full_packet)));
                self.codel.judge(leaves, leaves - now, target, interval, can_mark)
            }
            Aqm::Drd { min, max, .. } => {
                let share = drd_share(self.departures.len() as u64, min, max);
                match self.dice.fraction(Purpose::Drd, flow, number) < share {
                    false => Verdict::Keep,
                    true if can_mark => Verdict::Mark,
                    true => Verdict::Drop,
                }
            }
        }
    }

    /// Whether a segment goes on together with those before it.
    fn joins(&self, open: &Open, next: &Run) -> bool {
        open.run.corrupt.is_none()
            && next.corrupt.is_none()
            && open.run.mark == next.mark
            && match self.effects.own_times {
                true => open.run.deliver_at == next.deliver_at,
                false => self.free_at - open.began <= CARRY_WHOLE_MAX.as_nanos() << FRACTION_BITS,
            }
    }

    /// Arrival of what leaves the wire at `left`; never before anything that left earlier, unless it may overtake.
    fn arrival(&mut self, left: u128, deviation: f64) -> Nanos {
        let mut delay = self.delay;
        if let Some(jitter) = &self.config.jitter {
            // Not less than none, and not too long.
            let varied = (delay as f64 + deviation * 1e9).clamp(0.0, DELAY_MAX.as_nanos() as f64);
            delay = varied as Nanos;
            if jitter.overtakes {
                let at = whole(left).saturating_add(delay);
                // Should overtaking end, it ends for what is on its way too.
                self.last_delivery = self.last_delivery.max(at);
                return at;
            }
        }
        let at = whole(left).saturating_add(delay);
        self.last_delivery = self.last_delivery.max(at);
        self.last_delivery
    }

    fn flow(&mut self, train: &Train) -> Flow {
        if let Some(flow) = self.flows.get(&train.flow) {
            return *flow;
        }
        if self.flows.len() >= FLOWS_MAX {
            // Numbers go on from `flows_seen`, so a forgotten flow that returns is a new one.
            self.flows.clear();
        }
        self.flows_seen += 1;
        let flow = Flow { number: self.flows_seen, ..Flow::default() };
        self.flows.insert(train.flow, flow);
        flow
    }
}

/// What happens to a segment on the wire.
#[derive(Clone, Copy, Debug)]
struct Event {
    is_down: bool,
    corrupt: Option<u64>,
    overtakes: bool,
    comes_twice: bool,
}

impl Event {
    const NONE: Self = Self { is_down: false, corrupt: None, overtakes: false, comes_twice: false };
}

/// Which parts of the model a link has at all: most have few, and every segment would ask.
#[derive(Clone, Copy, Debug)]
struct Effects {
    rate: bool,
    /// Packets in the queue are counted.
    counts_packets: bool,
    aqm: bool,
    loss: bool,
    /// Anything of [`Event`].
    wire: bool,
    /// Segments of a packet may arrive at times of their own.
    own_times: bool,
}

impl Effects {
    fn of(config: &LinkConfig) -> Self {
        let rate = config.rate_bps.is_some();
        let counts = config.queue_packets.is_some() || matches!(config.aqm, Some(Aqm::Drd { .. }));
        Self {
            rate,
            counts_packets: rate && counts,
            aqm: rate && config.aqm.is_some(),
            loss: config.loss.is_possible(),
            wire: config.outage.is_some()
                || config.corrupt.is_possible()
                || config.reorder.is_some()
                || config.duplicate.is_possible(),
            own_times: config.jitter.is_some() || config.reorder.is_some(),
        }
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A run that may grow, and when its first segment began on the wire.
#[derive(Clone, Copy, Debug)]
struct Open {
    run: Run,
    began: u128,
}

/// In whole nanoseconds.
fn whole(fine: u128) -> Nanos {
    u64::try_from(fine >> FRACTION_BITS).unwrap_or(u64::MAX)
}

fn byte_time(rate_bps: Option<u64>) -> u64 {
    rate_bps.map_or(0, |rate| {
        let fine = (8_000_000_000u128 << FRACTION_BITS) / u128::from(rate.max(1));
        u64::try_from(fine).unwrap_or(u64::MAX).max(1)
    })
}

#[cfg(test)]
mod tests;
