//! A queue for each flow, served in turn and each managed by `CoDel`: FQ-CoDel, as RFC 8290 has it.
//!
//! Flows are spread over [`FAIR_QUEUES`] queues by number, which beats a hash: two flows share a queue only when there are
//! more flows than queues. A queue that has just become busy is served before those that have been for longer, so
//! that flows that send little wait for nobody.
//!
//! Unlike drop-tail and `CoDel` alone, what becomes of a packet here depends on those that come after it. So packets wait
//! in lists, and the link asks for the next one when its wire is free.

use std::collections::VecDeque;
use std::time::Duration;

use crate::aqm::{CoDel, Verdict};
use crate::limits::{FAIR_DROP_BATCH, FAIR_QUEUES, FULL_PACKET_BYTES};
use crate::link::Nanos;

/// Bytes that a queue may send in its turn: a full packet (RFC 8290, section 5.2.4).
const QUANTUM: i64 = FULL_PACKET_BYTES as i64;

/// A packet that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<T> {
    /// What the link knows of it.
    pub item: T,
    /// When it came.
    pub came: Nanos,
    /// On the wire.
    pub bytes: u32,
    /// Its sender understands marks.
    pub can_be_marked: bool,
}

/// Where a queue stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// In no list: nothing waits, and it has had its turn.
    #[default]
    Idle,
    /// Among those that have just become busy.
    New,
    /// Among the others.
    Old,
}

#[derive(Debug)]
struct Queue<T> {
    packets: VecDeque<Waiting<T>>,
    bytes: u64,
    /// Bytes it may still send before the next one's turn.
    credit: i64,
    codel: CoDel,
    place: Place,
}

/// What comes out of the queues.
#[derive(Clone, Copy, Debug)]
pub struct Next<T> {
    /// The packet.
    pub packet: Waiting<T>,
    /// To be marked.
    pub mark: bool,
}

/// All queues of a link.
#[derive(Debug)]
pub struct FairQueues<T> {
    queues: Vec<Queue<T>>,
    new: VecDeque<usize>,
    old: VecDeque<usize>,
    packets: u64,
    bytes: u64,
}

impl<T: Copy> FairQueues<T> {
    /// Empty ones.
    #[must_use]
    pub fn new() -> Self {
        Self { queues: Vec::new(), new: VecDeque::new(), old: VecDeque::new(), packets: 0, bytes: 0 }
    }

    /// Packets that wait.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Bytes that wait, Ethernet's overhead included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts a packet behind the others of its flow.
    pub fn put(&mut self, flow: u64, packet: Waiting<T>) {
        // What kernels say among themselves has one of its own.
        let number = if flow >> 63 == 1 { FAIR_QUEUES } else { (flow % FAIR_QUEUES as u64) as usize };
        if self.queues.len() <= number {
            self.queues.resize_with(number + 1, Queue::default);
        }
        let queue = &mut self.queues[number];
        self.packets += 1;
        self.bytes += u64::from(packet.bytes);
        queue.bytes += u64::from(packet.bytes);
        queue.packets.push_back(packet);
        if queue.place == Place::Idle {
            queue.place = Place::New;
            queue.credit = QUANTUM;
            self.new.push_back(number);
        }
    }

    /// Drops from the head of the fattest queue: half of what it holds, but not too many in one go (RFC 8290,
    /// section 4.1).
    pub fn make_room(&mut self, gone: &mut impl FnMut(T)) {
        let Some(fattest) = self.queues.iter_mut().max_by_key(|queue| queue.bytes) else { return };
        let half = fattest.bytes / 2;
        let before = fattest.bytes;
        for _ in 0..FAIR_DROP_BATCH {
            let Some(packet) = fattest.packets.pop_front() else { break };
            fattest.bytes -= u64::from(packet.bytes);
            self.packets -= 1;
            gone(packet.item);
            if fattest.bytes <= half {
                break;
            }
        }
        self.bytes -= before - fattest.bytes;
    }

    /// The packet whose turn it is at `now`; those that `CoDel` drops on the way go to `gone`.
    pub fn take(
        &mut self,
        now: Nanos,
        target: Duration,
        interval: Duration,
        ecn: bool,
        gone: &mut impl FnMut(T),
    ) -> Option<Next<T>> {
        loop {
            let (is_new, number) = match (self.new.front(), self.old.front()) {
                (Some(number), _) => (true, *number),
                (None, Some(number)) => (false, *number),
                (None, None) => return None,
            };
            let list = if is_new { &mut self.new } else { &mut self.old };
            let queue = &mut self.queues[number];
            if queue.credit <= 0 {
                queue.credit += QUANTUM;
                queue.place = Place::Old;
                list.pop_front();
                self.old.push_back(number);
                continue;
            }
            let (packets, bytes) = (queue.packets.len(), queue.bytes);
            let next = queue.take(now, target, interval, ecn, gone);
            self.packets -= (packets - queue.packets.len()) as u64;
            self.bytes -= bytes - queue.bytes;
            let Some(next) = next else {
                list.pop_front();
                // A new queue that is empty waits behind the old ones: otherwise a flow that sends a packet now and then
                // would always be new (RFC 8290, section 4.2).
                if is_new && !self.old.is_empty() {
                    queue.place = Place::Old;
                    self.old.push_back(number);
                } else {
                    queue.place = Place::Idle;
                }
                continue;
            };
            queue.credit -= i64::from(next.packet.bytes);
            return Some(next);
        }
    }

    /// The next packet whatever the time, with nothing dropped: for a link that changes its mind.
    pub fn take_any(&mut self) -> Option<Waiting<T>> {
        let never = Duration::from_secs(u64::MAX >> 32);
        self.take(0, never, never, false, &mut |_| ()).map(|next| next.packet)
    }
}

impl<T: Copy> Default for FairQueues<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let (packets, codel) = (VecDeque::new(), CoDel::default());
        Self { packets, bytes: 0, credit: 0, codel, place: Place::Idle }
    }
}

impl<T: Copy> Queue<T> {
    fn take(
        &mut self,
        now: Nanos,
        target: Duration,
        interval: Duration,
        ecn: bool,
        gone: &mut impl FnMut(T),
    ) -> Option<Next<T>> {
        while let Some(packet) = self.packets.pop_front() {
            self.bytes -= u64::from(packet.bytes);
            // The last packet of a queue has not waited too long, whatever it has (RFC 8289, section 5.4).
            let is_last = self.bytes <= FULL_PACKET_BYTES;
            let waited = if is_last { 0 } else { now.saturating_sub(packet.came) };
            match self.codel.judge(now, waited, target, interval, ecn && packet.can_be_marked) {
                Verdict::Drop => gone(packet.item),
                verdict => return Some(Next { packet, mark: verdict == Verdict::Mark }),
            }
        }
        self.codel.rest();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(5);
    const INTERVAL: Duration = Duration::from_millis(100);

    fn packet(item: u64, came: Nanos, bytes: u32) -> Waiting<u64> {
        Waiting { item, came, bytes, can_be_marked: false }
    }

    fn take(queues: &mut FairQueues<u64>, now: Nanos, gone: &mut Vec<u64>) -> Option<u64> {
        queues.take(now, TARGET, INTERVAL, false, &mut |item| gone.push(item)).map(|next| next.packet.item)
    }

    #[test]
    fn flows_share_the_wire_by_bytes() {
        let mut queues = FairQueues::new();
        // Flow 1 sends full packets, flow 2 small ones; items tell the flow.
        (0..200).for_each(|_| queues.put(1, packet(1, 0, 1538)));
        (0..2000).for_each(|_| queues.put(2, packet(2, 0, 154)));
        let mut bytes = [0u64; 3];
        for _ in 0..600 {
            let flow = take(&mut queues, 0, &mut Vec::new()).unwrap();
            bytes[flow as usize] += if flow == 1 { 1538 } else { 154 };
        }
        let ratio = bytes[1] as f64 / bytes[2] as f64;
        assert!((0.9..1.1).contains(&ratio), "{bytes:?}");
    }

    #[test]
    fn who_sends_little_waits_for_nobody() {
        let mut queues = FairQueues::new();
        (0..100).for_each(|i| queues.put(1, packet(i, 0, 1000)));
        // Until its first turn is over, and it has something left of the next.
        (0..3).for_each(|_| assert!(take(&mut queues, 0, &mut Vec::new()).is_some()));
        queues.put(2, packet(1000, 0, 100));
        assert_eq!(take(&mut queues, 0, &mut Vec::new()), Some(1000));
        // Found empty in its turn, the queue is an old one: what comes now waits for the others'.
        assert_eq!(queues.queues[2].place, Place::New);
        assert!(take(&mut queues, 0, &mut Vec::new()) < Some(100));
        assert_eq!(queues.queues[2].place, Place::Old);
        queues.put(2, packet(1001, 0, 100));
        assert_eq!((queues.new.len(), queues.queues[2].place), (0, Place::Old));
        let order: Vec<u64> = (0..3).filter_map(|_| take(&mut queues, 0, &mut Vec::new())).collect();
        assert!(order.contains(&1001), "{order:?}");
    }

    #[test]
    fn every_packet_comes_out_once_or_is_dropped_once() {
        let mut queues = FairQueues::new();
        let (mut gone, mut out, mut now) = (Vec::new(), Vec::new(), 0);
        for item in 0..20_000u64 {
            // Seven flows, twice what the wire carries.
            now += 500_000;
            queues.put(item % 7, packet(item, now, 1538));
            if item % 2 == 0 {
                out.extend(take(&mut queues, now, &mut gone));
            }
            if queues.packets() > 1000 {
                queues.make_room(&mut |item| gone.push(item));
            }
        }
        assert!(gone.len() > 5000, "{}", gone.len());
        while let Some(rest) = queues.take_any() {
            out.push(rest.item);
        }
        assert_eq!((queues.packets(), queues.bytes()), (0, 0));
        // Within a flow in order.
        for flow in 0..7 {
            let of_flow: Vec<u64> = out.iter().copied().filter(|item| item % 7 == flow).collect();
            assert!(of_flow.is_sorted());
        }
        let mut all = [gone, out].concat();
        all.sort_unstable();
        assert_eq!(all, (0..20_000).collect::<Vec<_>>());
    }

    #[test]
    fn the_fattest_queue_makes_room() {
        let mut queues = FairQueues::new();
        (0..100).for_each(|i| queues.put(1, packet(i, 0, 1538)));
        (100..110).for_each(|i| queues.put(2, packet(i, 0, 1538)));
        let mut gone = Vec::new();
        queues.make_room(&mut |item| gone.push(item));
        assert_eq!(gone, (0..50).collect::<Vec<u64>>());
        assert_eq!((queues.packets(), queues.bytes()), (60, 60 * 1538));
    }
}
