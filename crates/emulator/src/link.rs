//! One direction of a link: the fate and the delivery time of each packet. Pure: the caller passes `now`.
//!
//! A packet meets, in this order: the queue (drop-tail, in bytes or packets; of a policer, an account) and its management, the wire (rate; each
//! segment is charged with its headers and Ethernet's overhead), outages, loss, corruption and duplication on the wire,
//! and the delay with its jitter. First in, first out and one rate, so a queue in bytes needs no list of packets: what
//! waits is the time until the wire is free. Only where each flow has a queue of its own ([`fair`](crate::fair)) do packets
//! wait in the link, until their turn comes.
//!
//! Invariants: segments of a flow leave in the order they came, but for those that shall overtake others; a segment is
//! dropped, lost or delivered exactly once, or delivered twice where it shall be; equal seed and equal packets of a flow
//! give equal fates whatever the timing, but for what depends on time itself, queue, outages and traces.

mod config;
mod passed;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

pub use config::{LinkConfig, LinkPair, Reorder, RuledLink, bytes_held_max};
pub use passed::{Cause, Counters, Run};

use crate::aqm::{Aqm, CoDel, Verdict, drd_share};
use crate::dice::{Dice, Purpose};
use crate::fair::{FairQueues, Next, Waiting};
use crate::limits::{
    CARRY_WHOLE_MAX, DELAY_MAX, ETHERNET_OVERHEAD_BYTES, FAIR_PACKETS_MAX, FLOWS_MAX, FULL_PACKET_BYTES,
    IDLE_GAP_MAX,
};
use crate::loss::LossState;
use crate::packet::{FlowKey, Train};
use crate::trace::{Step, Trace};

/// Nanoseconds since an origin of the caller's choosing.
pub type Nanos = u64;

/// What is known of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    number: u64,
    packets: u64,
    loss: LossState,
    /// Of its last packet's jitter.
    deviation: Option<f64>,
}

/// What a link has decided. `P` names a packet to the caller.
#[derive(Debug)]
pub struct Outcome<P> {
    /// What arrives, in the order in which it has left the wire.
    pub runs: Vec<(P, Run)>,
    /// Packets of segments that have left the queues of their flows, an entry for each: sent or dropped.
    pub gone: Vec<P>,
    /// Segments that will not arrive, by their number in their packet; only where somebody wants to know.
    pub drops: Option<Vec<(P, u32, Cause)>>,
    /// The last run, which may grow.
    open: Option<(P, Open)>,
}

impl<P> Default for Outcome<P> {
    fn default() -> Self {
        Self { runs: Vec::new(), gone: Vec::new(), drops: None, open: None }
    }
}

impl<P: Copy> Outcome<P> {
    /// One in which drops are told one by one, if so.
    #[must_use]
    pub fn with_drops(told: bool) -> Self {
        Self { drops: told.then(Vec::new), ..Self::default() }
    }

    fn close(&mut self) {
        self.runs.extend(self.open.take().map(|(packet, open)| (packet, open.run)));
    }

    /// A segment does not arrive; what follows it cannot be carried together with what was before.
    fn drop(&mut self, segment: &Segment<P>, cause: Cause) {
        self.close();
        if let Some(drops) = &mut self.drops {
            drops.push((segment.packet, segment.index, cause));
        }
    }
}

/// A segment on its way through the link, with what its flow has decided for it.
#[derive(Clone, Copy, Debug)]
struct Segment<P> {
    packet: P,
    /// In its packet.
    index: u32,
    /// Of its flow, and its own in it.
    flow: u64,
    number: u64,
    ip_bytes: u32,
    is_lost: bool,
    deviation: f64,
}

impl<P> Segment<P> {
    fn wire_bytes(&self) -> u32 {
        self.ip_bytes + ETHERNET_OVERHEAD_BYTES
    }
}

/// The state of one direction.
#[derive(Debug)]
pub struct Link<P> {
    config: LinkConfig,
    dice: Dice,
    effects: Effects,
    delay: Nanos,
    /// Time on the wire of one byte, in 2^-32 ns. At 100 Gbit/s the rounding is 3e-9 of the rate.
    byte_time: u64,
    /// When the wire is free, in 2^-32 ns.
    free_at: u128,
    /// What waited when the settings changed keeps its rate: until when it is on the wire, and the time of a byte of it.
    owed: (u128, u128),
    last_delivery: Nanos,
    /// When each waiting segment will have left, and its bytes; only where they are counted.
    departures: VecDeque<(u128, u64)>,
    /// The sum of their bytes.
    departing_bytes: u64,
    codel: CoDel,
    fair: Option<Box<FairQueues<Segment<P>>>>,
    /// Flows that were seen of late, and before.
    flows: [HashMap<FlowKey, Flow>; 2],
    /// Of programs, and of the kernels themselves.
    flows_seen: [u64; 2],
    counters: Counters,
}

const FRACTION_BITS: u32 = 32;

/// Packets that are thought to wait when they begin to be counted: 100 Gbit/s x 100 ms.
const COUNTED_MAX: u64 = 1 << 20;

impl<P: Copy + PartialEq> Link<P> {
    /// An idle link.
    #[must_use]
    pub fn new(config: LinkConfig, dice: Dice) -> Self {
        let byte_time = byte_time(config.rate_bps);
        Self {
            effects: Effects::of(&config),
            delay: nanos(config.delay),
            fair: matches!(config.aqm, Some(Aqm::FqCoDel { .. })).then(Box::default),
            config,
            dice,
            byte_time,
            free_at: 0,
            owed: (0, 1),
            last_delivery: 0,
            departures: VecDeque::new(),
            departing_bytes: 0,
            codel: CoDel::default(),
            flows: [HashMap::new(), HashMap::new()],
            flows_seen: [0; 2],
            counters: Counters::default(),
        }
    }

    /// Changes the settings; what is on its way stays so, and later packets do not overtake it unless they may. What waits
    /// in queues that are no more goes on the wire.
    pub fn set(&mut self, now: Nanos, config: LinkConfig, out: &mut Outcome<P>) {
        self.serve(now, out);
        let was_counting = self.effects.counts;
        let waits = self.queued(now);
        let until_free = self.free_at.saturating_sub(u128::from(now) << FRACTION_BITS);
        let old_byte_time = (until_free / u128::from(waits.max(1))).max(1);
        self.owed = (self.free_at, old_byte_time);
        self.byte_time = byte_time(config.rate_bps);
        self.effects = Effects::of(&config);
        self.delay = nanos(config.delay);
        if config.aqm != self.config.aqm {
            self.codel = CoDel::default();
        }
        self.config = config;
        if self.effects.counts != was_counting {
            self.departures.clear();
            self.departing_bytes = 0;
        }
        if self.effects.counts && !was_counting {
            // What is there already counts as full packets.
            let packets = waits.div_ceil(FULL_PACKET_BYTES).min(COUNTED_MAX);
            let each = old_byte_time * u128::from(FULL_PACKET_BYTES);
            for behind in (0..packets).rev() {
                let at = self.free_at.saturating_sub(each * u128::from(behind));
                self.departures.push_back((at, FULL_PACKET_BYTES));
            }
            self.departing_bytes = packets * FULL_PACKET_BYTES;
        }
        let is_fair = matches!(self.config.aqm, Some(Aqm::FqCoDel { .. }));
        if is_fair && self.fair.is_none() {
            self.fair = Some(Box::default());
        } else if !is_fair && let Some(mut fair) = self.fair.take() {
            while let Some(waiting) = fair.take_any() {
                self.send(now, waiting.item, false, out);
                out.gone.push(waiting.item.packet);
            }
            out.close();
        }
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

    /// Whether packets wait in the link itself; each of their segments comes out by itself.
    #[must_use]
    pub fn is_fair(&self) -> bool {
        self.fair.is_some()
    }

    /// When [`serve`](Self::serve) has something to do next.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        self.fair.as_ref().filter(|fair| fair.packets() > 0).map(|_| whole(self.free_at).saturating_add(1))
    }

    /// Bytes that wait for the wire at `now`, the rest of the one being sent included.
    #[must_use]
    pub fn queued_bytes(&self, now: Nanos) -> u64 {
        let now = u128::from(now) << FRACTION_BITS;
        let on_their_way = if self.effects.counts {
            self.departures.iter().filter(|(at, _)| *at > now).map(|(_, bytes)| bytes).sum()
        } else {
            self.bytes_before(now)
        };
        self.fair.as_ref().map_or(on_their_way, |fair| fair.bytes().saturating_add(on_their_way))
    }

    /// What the wire still has to send, at a rate that only [`set`](Self::set) changes.
    fn bytes_before(&self, now: u128) -> u64 {
        let (until, old_byte_time) = self.owed;
        let of_old = until.saturating_sub(now) / old_byte_time;
        let of_new = match self.byte_time {
            0 => 0,
            per_byte => self.free_at.saturating_sub(now.max(until)) / u128::from(per_byte),
        };
        u64::try_from(of_old + of_new).unwrap_or(u64::MAX)
    }

    /// Takes a packet at `now` and adds to `out` which of its segments arrive and when; with it those of others whose turn
    /// has come, where there are [queues for each flow](Self::is_fair).
    ///
    /// `now` must not go back. Cost: a table look-up, and a few multiplications for each segment and each effect that the
    /// link has.
    pub fn offer(&mut self, now: Nanos, train: &Train, packet: P, out: &mut Outcome<P>) {
        // Who is sent next is decided by what has come until then.
        self.serve(now, out);
        let mut flow = self.flow(train);
        let mut queued = self.queued(now);
        self.counters.segments += u64::from(train.segments);
        for index in 0..train.segments {
            let number = flow.packets;
            flow.packets += 1;
            // Every packet is a step of the flow's chains, whatever becomes of it: they do not depend on timing.
            let is_lost =
                self.effects.loss && self.config.loss.loses(&mut flow.loss, self.dice, flow.number, number);
            let deviation = match &self.config.jitter {
                Some(jitter) => jitter.deviation(&mut flow.deviation, self.dice, flow.number, number),
                None => 0.0,
            };
            let ip_bytes = train.segment_ip_bytes(index);
            let segment = Segment { packet, index, flow: flow.number, number, ip_bytes, is_lost, deviation };
            self.counters.bytes += u64::from(ip_bytes);
            if self.fair.is_some() {
                self.put_aside(now, segment, train.can_be_marked(), out);
            } else {
                self.pass(now, segment, train.can_be_marked(), &mut queued, out);
            }
        }
        out.close();
        if let Some(known) = self.flows[0].get_mut(&train.flow) {
            *known = flow;
        }
        self.serve(now, out);
    }

    /// Sends what waits in the queues of flows, as far as the wire is free for it until `now`.
    pub fn serve(&mut self, now: Nanos, out: &mut Outcome<P>) {
        let Some(Aqm::FqCoDel { target, interval, ecn }) = self.config.aqm else { return };
        let Some(mut fair) = self.fair.take() else { return };
        let target = target.max(self.effects.full_packet);
        while whole(self.free_at) <= now {
            let mut dropped = |segment: Segment<P>| {
                self.counters.dropped_aqm += 1;
                out.drop(&segment, Cause::Management);
                out.gone.push(segment.packet);
            };
            let next = fair.take(whole(self.free_at), target, interval, ecn, &mut dropped);
            let Some(Next { packet: waiting, mark }) = next else { break };
            self.counters.marked += u64::from(mark);
            self.send(waiting.came, waiting.item, mark, out);
            out.gone.push(waiting.item.packet);
        }
        out.close();
        self.fair = Some(fair);
    }

    /// A segment that joins the queue of its flow.
    fn put_aside(&mut self, now: Nanos, segment: Segment<P>, can_be_marked: bool, out: &mut Outcome<P>) {
        let bytes = segment.wire_bytes();
        let Some(fair) = &mut self.fair else { return };
        let (flow, waiting) = (segment.flow, Waiting { item: segment, came: now, bytes, can_be_marked });
        fair.put(flow, waiting);
        self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(fair.bytes());
        let is_too_much = match (self.config.queue_bytes, self.config.queue_packets) {
            (_, Some(packets)) => fair.packets() > packets.get(),
            (Some(bytes), None) => fair.bytes() > bytes && fair.packets() > 1,
            (None, None) => fair.packets() > FAIR_PACKETS_MAX,
        };
        if is_too_much {
            fair.make_room(&mut |segment: Segment<P>| {
                self.counters.dropped_queue += 1;
                out.drop(&segment, Cause::Queue);
                out.gone.push(segment.packet);
            });
        }
    }

    /// A segment that meets the one queue; `queued` bytes are in it.
    fn pass(
        &mut self,
        now: Nanos,
        segment: Segment<P>,
        can_be_marked: bool,
        queued: &mut u64,
        out: &mut Outcome<P>,
    ) {
        let mut mark = false;
        if self.effects.rate {
            let wire_bytes = u64::from(segment.wire_bytes());
            // A link that has become much faster may owe more bytes than there are numbers.
            let with_it = queued.saturating_add(wire_bytes);
            let full = self.config.queue_bytes.is_some_and(|max| with_it > max.max(wire_bytes))
                || self.config.queue_packets.is_some_and(|max| self.departures.len() as u64 >= max.get());
            if full {
                self.counters.dropped_queue += 1;
                out.drop(&segment, Cause::Queue);
                return;
            }
            if self.effects.aqm {
                let begins = whole(self.free_at).max(now);
                let verdict = self.manage(now, begins, can_be_marked, segment.flow, segment.number);
                if verdict == Verdict::Drop {
                    self.counters.dropped_aqm += 1;
                    out.drop(&segment, Cause::Management);
                    return;
                }
                mark = verdict == Verdict::Mark;
                self.counters.marked += u64::from(mark);
            }
            *queued = with_it;
            self.counters.queue_bytes_max = self.counters.queue_bytes_max.max(with_it);
        }
        self.send(now, segment, mark, out);
    }

    /// Puts a segment that came at `came` on the wire as soon as that is free, and adds it to `out` unless it is lost.
    fn send(&mut self, came: Nanos, segment: Segment<P>, mark: bool, out: &mut Outcome<P>) {
        let effects = self.effects;
        let begins = self.free_at.max(u128::from(came) << FRACTION_BITS);
        if effects.rate && !effects.polices {
            let gap = whole(begins - self.free_at);
            self.counters.idle_ns += if gap < IDLE_GAP_MAX.as_nanos() as Nanos { gap } else { 0 };
        }
        let wire_bytes = u64::from(segment.wire_bytes());
        let mut is_lost = segment.is_lost;
        if effects.trace {
            self.free_at = self.left_by(begins, wire_bytes);
            if let Some(loss) = self.step_at(whole(begins)).loss {
                is_lost = self.dice.happens(loss, Purpose::Loss, segment.flow, segment.number);
            }
        } else {
            self.free_at = begins + u128::from(self.byte_time) * u128::from(wire_bytes);
        }
        if effects.counts {
            self.departures.push_back((self.free_at, wire_bytes));
            self.departing_bytes += wire_bytes;
        }
        let event = match effects.wire {
            true => self.event(whole(begins), segment.flow, segment.number),
            false => Event::NONE,
        };
        if is_lost || event.is_down {
            self.counters.lost_outage += u64::from(event.is_down);
            self.counters.lost += u64::from(!event.is_down);
            out.drop(&segment, if event.is_down { Cause::Outage } else { Cause::Loss });
            return;
        }
        self.counters.delivered += 1;
        self.counters.delivered_bytes += u64::from(segment.ip_bytes);
        let left = if effects.polices { u128::from(came) << FRACTION_BITS } else { self.free_at };
        let deliver_at = match event.overtakes {
            true => whole(left),
            false => self.arrival(left, segment.deviation),
        };
        let run = Run { first: segment.index, count: 1, deliver_at, corrupt: event.corrupt, mark };
        match &mut out.open {
            Some((packet, open)) if *packet == segment.packet && self.joins(open, &run) => {
                open.run.count += 1;
                open.run.deliver_at = deliver_at;
            }
            _ => {
                out.close();
                out.open = Some((segment.packet, Open { run, began: begins }));
            }
        }
        if effects.wire {
            self.counters.corrupted += u64::from(event.corrupt.is_some());
            self.counters.reordered += u64::from(event.overtakes);
            self.counters.duplicated += u64::from(event.comes_twice);
            if event.comes_twice {
                out.close();
                out.runs.push((segment.packet, run));
            }
        }
    }

    /// Bytes that wait, for the packet that comes at `now`.
    fn queued(&mut self, now: Nanos) -> u64 {
        let now = u128::from(now) << FRACTION_BITS;
        if !self.effects.counts {
            return self.bytes_before(now);
        }
        let left = self.departures.partition_point(|(at, _)| *at <= now);
        self.departing_bytes -= self.departures.drain(..left).map(|(_, bytes)| bytes).sum::<u64>();
        self.departing_bytes
    }

    /// When so many bytes that begin on the wire at `begins` have left it, where its rate changes.
    fn left_by(&self, begins: u128, bytes: u64) -> u128 {
        let Some(trace) = &self.config.trace else { return begins };
        let mut at = begins;
        let mut bits = bytes as f64 * 8.0;
        loop {
            let (step, until) = trace.at(whole(at));
            let Some(rate) = step.rate_bps.or(self.config.rate_bps) else { return at };
            let until = u128::from(until) << FRACTION_BITS;
            if rate > 0 {
                let needed = (bits / rate as f64 * FINE_PER_SECOND) as u128;
                // Rounding leaves no bit behind for the next step.
                if needed <= until - at + ROUNDING {
                    return at + needed;
                }
                bits -= (until - at) as f64 / FINE_PER_SECOND * rate as f64;
            }
            at = until;
        }
    }

    /// What the trace says.
    fn step_at(&self, now: Nanos) -> Step {
        self.config.trace.as_ref().map(|trace| trace.at(now).0).unwrap_or_default()
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
            Aqm::None | Aqm::Policer => Verdict::Keep,
            Aqm::CoDel { target, interval, .. } => {
                let target = target.max(self.effects.full_packet);
                self.codel.judge(leaves, leaves - now, target, interval, can_mark)
            }
            // Judged when its turn comes.
            Aqm::FqCoDel { .. } => Verdict::Keep,
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
        if self.effects.trace {
            delay = self.step_at(whole(left)).delay.map_or(delay, nanos);
        }
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
        let [recent, older] = &mut self.flows;
        if let Some(flow) = recent.get(&train.flow) {
            return *flow;
        }
        if recent.len() >= FLOWS_MAX / 2 {
            // Numbers go on, so a forgotten flow that returns is a new one; one that is seen now and then is not
            // forgotten.
            *older = std::mem::take(recent);
        }
        if let Some(flow) = older.remove(&train.flow) {
            recent.insert(train.flow, flow);
            return flow;
        }
        // What kernels say among themselves comes when it likes, or never: it does not shift the others' numbers.
        let is_kernels = train.flow.is_housekeeping();
        let seen = &mut self.flows_seen[usize::from(is_kernels)];
        *seen += 1;
        let flow = Flow { number: *seen | u64::from(is_kernels) << 63, ..Flow::default() };
        self.flows[0].insert(train.flow, flow);
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
    /// What leaves the one queue is kept in a list.
    counts: bool,
    /// Of the one queue.
    aqm: bool,
    /// Nothing waits in it.
    polices: bool,
    loss: bool,
    /// Anything of [`Event`].
    wire: bool,
    /// Segments of a packet may arrive at times of their own.
    own_times: bool,
    trace: bool,
    /// Time of a full packet on the wire.
    full_packet: Duration,
}

impl Effects {
    fn of(config: &LinkConfig) -> Self {
        let rate = config.mean_rate_bps();
        let is_fair = matches!(config.aqm, Some(Aqm::FqCoDel { .. }));
        let counts = config.trace.is_some()
            || config.queue_packets.is_some()
            || matches!(config.aqm, Some(Aqm::Drd { .. }));
        Self {
            rate: rate.is_some(),
            counts: rate.is_some() && counts && !is_fair,
            aqm: rate.is_some() && config.aqm.is_some() && !is_fair,
            polices: matches!(config.aqm, Some(Aqm::Policer)),
            loss: config.loss.is_possible(),
            wire: config.outage.is_some()
                || config.corrupt.is_possible()
                || config.reorder.is_some()
                || config.duplicate.is_possible(),
            own_times: config.jitter.is_some()
                || config.reorder.is_some()
                || config.trace.as_ref().is_some_and(Trace::has_delay),
            trace: config.trace.is_some(),
            full_packet: rate.map_or(Duration::ZERO, |rate| {
                Duration::from_secs_f64(FULL_PACKET_BYTES as f64 * 8.0 / rate.max(1) as f64)
            }),
        }
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const FINE_PER_SECOND: f64 = 1e9 * (1u64 << FRACTION_BITS) as f64;

/// A thousandth of a nanosecond, once a step at the most.
const ROUNDING: u128 = (1 << FRACTION_BITS) / 1000;

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
