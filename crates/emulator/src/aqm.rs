//! Active queue management: packets are dropped or marked before the queue is full, so that senders slow down in time.
//!
//! The queue is first in, first out, so a packet's time of leaving it is known when it comes: CoDel's verdicts fall in the
//! order of leaving, as if each packet were judged at the head of the queue. What is not known is what will have come
//! behind it by then. RFC 8289 never drops the last packet of a queue; here the target is the time of a full packet on the
//! wire at least, so that one packet that waits for another is no standing queue.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::link::Nanos;

/// How a queue is managed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Aqm {
    /// Not at all: it takes what fits.
    None,
    /// By how long packets wait (RFC 8289).
    CoDel {
        /// A standing wait above this is too long; RFC 8289: 5 ms.
        target: Duration,
        /// Standing means for so long; RFC 8289: 100 ms, a usual round trip.
        interval: Duration,
        /// Packets that can be are marked instead (RFC 3168).
        ecn: bool,
    },
    /// The same for each flow by itself, all served in turn (RFC 8290).
    FqCoDel {
        /// As [`CoDel`](Self::CoDel)'s.
        target: Duration,
        /// As [`CoDel`](Self::CoDel)'s.
        interval: Duration,
        /// Packets that can be are marked instead.
        ecn: bool,
    },
    /// Nothing waits: what the queue would hold passes at once, as a burst, and the rest is dropped. A policer (RFC 2475).
    Policer,
    /// By how many packets wait, at random: NIST Net's derivative random drop.
    Drd {
        /// Below so many none is dropped.
        min: u64,
        /// From so many on 95 % are; between the two the share rises evenly.
        max: NonZeroU64,
        /// Packets that can be are marked instead.
        ecn: bool,
    },
}

/// The largest share that [`Aqm::Drd`] drops.
pub const DRD_SHARE_MAX: f64 = 0.95;

impl Aqm {
    /// Whether packets that can be are marked rather than dropped.
    #[must_use]
    pub fn marks(&self) -> bool {
        match *self {
            Self::None | Self::Policer => false,
            Self::CoDel { ecn, .. } | Self::FqCoDel { ecn, .. } | Self::Drd { ecn, .. } => ecn,
        }
    }
}

/// The share that is dropped when so many wait.
#[must_use]
pub fn drd_share(waiting: u64, min: u64, max: NonZeroU64) -> f64 {
    match waiting {
        waiting if waiting >= max.get() => DRD_SHARE_MAX,
        waiting if waiting <= min => 0.0,
        waiting => DRD_SHARE_MAX * (waiting - min) as f64 / (max.get() - min) as f64,
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Keep,
    /// It goes on with a mark.
    Mark,
    /// It does not.
    Drop,
}

/// CoDel's variables, by the names of RFC 8289.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoDel {
    first_above: Option<Nanos>,
    drop_next: Nanos,
    count: u32,
    last_count: u32,
    dropping: bool,
    /// The last packet was dropped while dropping: when the next one shall be is still to be said.
    after_drop: bool,
}

impl CoDel {
    /// Judges the packet that leaves the queue at `now`, having waited for so long.
    pub fn judge(
        &mut self,
        now: Nanos,
        waited: Nanos,
        target: Duration,
        interval: Duration,
        can_mark: bool,
    ) -> Verdict {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let stands = self.stands(now, waited, target, interval);
        let next = |from: Nanos, count: u32| {
            from.saturating_add((interval as f64 / f64::from(count.max(1)).sqrt()) as u64)
        };
        if self.dropping {
            let after_drop = std::mem::take(&mut self.after_drop);
            if !stands {
                self.dropping = false;
                return Verdict::Keep;
            }
            if after_drop {
                self.drop_next = next(self.drop_next, self.count);
            }
            if now < self.drop_next {
                return Verdict::Keep;
            }
            self.count = self.count.saturating_add(1);
            if can_mark {
                self.drop_next = next(self.drop_next, self.count);
                return Verdict::Mark;
            }
            self.after_drop = true;
            return Verdict::Drop;
        }
        if !stands {
            return Verdict::Keep;
        }
        self.dropping = true;
        let dropped_before = self.count - self.last_count;
        let is_recent = now.saturating_sub(self.drop_next) < interval.saturating_mul(16);
        self.count = if dropped_before > 1 && is_recent { dropped_before } else { 1 };
        self.last_count = self.count;
        self.drop_next = next(now, self.count);
        if can_mark { Verdict::Mark } else { Verdict::Drop }
    }

    /// The queue is empty: nothing stands in it, and what comes next is not dropped for what was before.
    pub fn rest(&mut self) {
        self.first_above = None;
        self.dropping = false;
        self.after_drop = false;
    }

    /// Whether packets have waited too long for an interval.
    fn stands(&mut self, now: Nanos, waited: Nanos, target: Duration, interval: Nanos) -> bool {
        if u128::from(waited) < target.as_nanos() {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            Some(due) => now >= due,
            None => {
                self.first_above = Some(now.saturating_add(interval));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn derivative_random_drop_rises_evenly() {
        let share = |waiting| drd_share(waiting, 100, NonZeroU64::new(200).unwrap());
        assert_eq!([0, 100, 150, 200, 1000].map(share), [0.0, 0.0, 0.475, 0.95, 0.95]);
        assert_eq!(drd_share(7, 7, NonZeroU64::new(7).unwrap()), 0.95);
    }

    /// RFC 8289, section 5, word for word but for the exemption of the last packet, over a list of packets: (number, when
    /// it came).
    struct Textbook {
        queue: VecDeque<(usize, u64)>,
        first_above_time: u64,
        drop_next: u64,
        count: u32,
        lastcount: u32,
        dropping: bool,
        dropped: Vec<usize>,
    }

    const TARGET: u64 = 5_000_000;
    const INTERVAL: u64 = 100_000_000;

    fn control_law(t: u64, count: u32) -> u64 {
        t + (INTERVAL as f64 / f64::from(count).sqrt()) as u64
    }

    impl Textbook {
        fn dodequeue(&mut self, now: u64) -> (Option<(usize, u64)>, bool) {
            let p = self.queue.pop_front();
            let Some((_, came)) = p else {
                self.first_above_time = 0;
                return (None, false);
            };
            let mut ok_to_drop = false;
            if now - came < TARGET {
                self.first_above_time = 0;
            } else if self.first_above_time == 0 {
                self.first_above_time = now + INTERVAL;
            } else if now >= self.first_above_time {
                ok_to_drop = true;
            }
            (p, ok_to_drop)
        }

        fn dequeue(&mut self, now: u64) -> Option<(usize, u64)> {
            let (mut p, mut ok) = self.dodequeue(now);
            if self.dropping {
                if !ok {
                    self.dropping = false;
                }
                while now >= self.drop_next && self.dropping {
                    self.dropped.extend(p.map(|(number, _)| number));
                    self.count += 1;
                    (p, ok) = self.dodequeue(now);
                    if ok {
                        self.drop_next = control_law(self.drop_next, self.count);
                    } else {
                        self.dropping = false;
                    }
                }
            } else if ok {
                self.dropped.extend(p.map(|(number, _)| number));
                (p, _) = self.dodequeue(now);
                self.dropping = true;
                let delta = self.count - self.lastcount;
                self.count = 1;
                if delta > 1 && now.saturating_sub(self.drop_next) < 16 * INTERVAL {
                    self.count = delta;
                }
                self.drop_next = control_law(now, self.count);
                self.lastcount = self.count;
            }
            p
        }

        /// The packets dropped when these arrive and each takes `service` on the wire.
        fn run(arrivals: &[u64], service: u64) -> Vec<usize> {
            let mut it = Self {
                queue: VecDeque::new(),
                first_above_time: 0,
                drop_next: 0,
                count: 0,
                lastcount: 0,
                dropping: false,
                dropped: Vec::new(),
            };
            let (mut next, mut free_at) = (0, 0);
            while next < arrivals.len() || !it.queue.is_empty() {
                let now = if it.queue.is_empty() { free_at.max(arrivals[next]) } else { free_at };
                while next < arrivals.len() && arrivals[next] <= now {
                    it.queue.push_back((next, arrivals[next]));
                    next += 1;
                }
                if it.dequeue(now).is_some() {
                    free_at = now + service;
                }
            }
            it.dropped.sort_unstable();
            it.dropped
        }
    }

    /// The same by [`CoDel`], each packet judged as it comes.
    fn judged(arrivals: &[u64], service: u64) -> Vec<usize> {
        let (mut codel, mut free_at, mut dropped) = (CoDel::default(), 0, Vec::new());
        let (target, interval) = (Duration::from_nanos(TARGET), Duration::from_nanos(INTERVAL));
        for (number, came) in arrivals.iter().enumerate() {
            let leaves = free_at.max(*came);
            match codel.judge(leaves, leaves - came, target, interval, false) {
                Verdict::Drop => dropped.push(number),
                _ => free_at = leaves + service,
            }
        }
        dropped
    }

    proptest! {
        #[test]
        fn codel_drops_what_the_textbook_drops(
            service in 100_000u64..2_000_000,
            bursts in prop::collection::vec((1u64..80, 0u64..60_000_000), 1..60),
        ) {
            let (mut arrivals, mut now) = (Vec::new(), 1);
            for (packets, gap) in bursts {
                for _ in 0..packets {
                    now += 1000;
                    arrivals.push(now);
                }
                now += gap;
            }
            prop_assert_eq!(judged(&arrivals, service), Textbook::run(&arrivals, service));
        }
    }

    #[test]
    fn a_standing_queue_is_dropped_from_ever_more_often() {
        // Twice what the wire carries, for ten seconds.
        let arrivals: Vec<u64> = (1..20_000).map(|i| i * 500_000).collect();
        let dropped = judged(&arrivals, 1_000_000);
        let within = |from: f64, to: f64| {
            let time = |n: &usize| arrivals[*n] as f64 / 1e9;
            dropped.iter().filter(|n| (from..to).contains(&time(n))).count()
        };
        assert_eq!(within(0.0, 0.05), 0);
        assert!(within(4.0, 5.0) > within(1.0, 2.0) && within(1.0, 2.0) > 5, "{dropped:?}");
    }
}
