//! How fast all lanes together send, so that they behave as one flow that knows its path. Pure.
//!
//! Each lane's congestion control looks for the bottleneck by itself; sixteen of them overfill its queue sixteen
//! times, lose a tenth of their packets there and slow down in step. The governor sees all lanes at once. It lets
//! them search freely until a queue stands (the round-trip time is above its minimum everywhere), takes the rate that
//! is then delivered for the path's, and from then on paces the lanes just under it: the queue drains, nothing is
//! lost, the rate stays. Now and then it sends more for a round trip, and searches again when more comes through.
//!
//! ```text
//!            a queue stands                  it is gone                  time to look
//!   SEARCH -----------------> DRAIN (0.75 B) -----------> CRUISE (0.985 B) --------> PROBE (1.1 B)
//!     ^                         |                          ^                           |  |
//!     |                         | it does not go:          +---------------------------+  |
//!     |                         v others fill it             no more came through         |
//!     +-- after a while -- COMPETE (no cap)                                               |
//!     +-----------------------------------------------------------------------------------+
//!                                      more came through
//! ```
//!
//! While it searches, and where packets are lost at random, BBR is the better congestion control: it fills a path in a
//! few round trips and does not take a lost packet for a full queue. Under a cap on a clean path CUBIC is, and where a
//! buffer or a CPU holds the lanes below the path's rate: it has no cycles of its own. The governor says which.
//!
//! Up to 20 ms of round-trip time CRUISE holds a queue of two milliseconds instead of a margin. As long as there is one,
//! more cannot come through, and where there is none the cap rises until there is: nothing is probed. DRAIN
//! steers for half of it, so that an exaggerated B ends it too, and is over when what is left does not stand any more.
//!
//! On longer paths a drain that ends as soon as it can goes straight to a probe, unless a probe has confirmed the rate before: what
//! stood may have been a host, not a queue.
//!
//! B is a rate of delivered bytes. What lanes lose to random loss, or leave out in their own cycles, the cap makes up
//! for: while it cruises it is raised until as much comes through as intended. The idea of pacing just under the slowest
//! part is Hiraki's (UsadaFox, 2010); the states are BBR's (Cardwell et al., "BBR: Congestion-Based Congestion Control",
//! 2016), for a bundle of connections instead of one.

mod end;

use std::collections::VecDeque;
use std::time::Duration;

pub use end::End;

use crate::scheduler::Nanos;

/// What all lanes together say at one time. Counters only grow, also when lanes come and go.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathReading {
    /// Bytes that have arrived so far, in order or not.
    pub delivered: u64,
    /// Bytes that had to be sent again so far.
    pub retransmitted: u64,
    /// The middle lane's smoothed round-trip time less its mean deviation: what is left of a few late packets, after a
    /// host has stalled, deviates by about as much as it is more, while all packets wait in a queue that stands.
    pub rtt: Duration,
    /// The least round-trip time any lane has seen.
    pub min_rtt: Duration,
}

impl PathReading {
    /// How long a packet waits.
    fn queue(&self) -> Duration {
        self.rtt.saturating_sub(self.min_rtt)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Search,
    /// `probed`: when the rate last stood the test of a probe, if it has.
    Drain {
        since: Nanos,
        probed: Option<Nanos>,
    },
    Cruise {
        since: Nanos,
        probed: Option<Nanos>,
    },
    /// Sends more for a round trip, less for another, and waits a third for the acknowledgements.
    Probe {
        since: Nanos,
        best: f64,
        gain: f64,
    },
    Compete {
        since: Nanos,
    },
}

/// The governor of one path.
#[derive(Debug)]
pub struct Governor {
    state: State,
    /// The path's rate in delivered bytes per second, as far as it is known.
    bandwidth: f64,
    readings: VecDeque<(Nanos, PathReading)>,
    /// Of the last reading, which a pause does not make less true.
    min_rtt: Option<Duration>,
    standing_ticks: u32,
    compete_for: Duration,
    /// What the cap is raised by so that the intended rate comes through.
    boost: f64,
    lossy: bool,
    /// The best rate of this search, and when it last went up.
    peak: f64,
    last_rise: Nanos,
    /// The search goes on, but something other than the path, a buffer or a CPU, is the limit.
    is_flat: bool,
    /// When the path was last seen to lose packets for no reason, and to hold what it was given.
    last_random_loss: Nanos,
    last_in_full: Nanos,
    cap: Option<f64>,
}

const DRAIN_GAIN: f64 = 0.75;
const CRUISE_GAIN: f64 = 0.985;
const PROBE_GAIN: f64 = 1.1;

/// See [`Governor::cruise_gain`]. Less than what is taken for a queue that stands ([`queue_stands`]), and as long as hosts now and then
/// hold up what they send: the link is busy meanwhile.
const HELD_QUEUE: Duration = Duration::from_millis(2);

/// What the queue is more or less than that is made up for ([`held_within`]) by this share of the rate at the most.
const HELD_SPAN: f64 = 0.05;

/// And this share of it for good, each round trip: slow enough not to swing with the queue that it steers.
const HELD_SHARE: f64 = 0.1;

/// Beyond that hosts' own delays, which grow with the path, are larger than the queue.
const SHORT_RTT_MAX: Duration = Duration::from_millis(20);

const FIRST_PROBE_GAIN: f64 = 1.25;

/// More than this above the known rate is news.
const NEWS: f64 = 1.03;

/// A queue that stands in so many ticks in a row is no burst.
const STANDING_TICKS: u32 = 2;

/// While it searches a round trip has many, and what a host's stall has made late is seen in the first of them.
const SEARCH_STANDING_TICKS: u32 = 3;

/// A path is looked at each round trip, between these two. Kernels and hosts send in bursts: over less than the first rates are
/// chance, and below the second nothing is gained by looking more often than the path can answer.
const TICK_MIN: Duration = Duration::from_millis(20);
const TICK_MAX: Duration = Duration::from_millis(100);

/// While it searches, a round trip has so many looks: each tenth of it that a queue is seen sooner is a tenth of what the path
/// holds that is not lost.
const SEARCH_LOOKS: u32 = 8;

/// Cruising time between probes: long enough that probes cost little, short enough to take up freed capacity.
const CRUISE_MIN: Duration = Duration::from_secs(5);

const CRUISE_RTTS: u32 = 20;

/// Coming short by so much for a few round trips, while packets are lost, is no accident.
const SHORTFALL: f64 = 0.05;

/// A path on which nothing was lost for so long is clean.
const CLEAN_AFTER: Duration = Duration::from_secs(10);

/// A rate that has not gone up for so long will not by itself: BBR doubles each round trip, and new lanes show within
/// the tuner's patience. Below the ten seconds after which BBR looks for its minimum.
const FLAT_AFTER: Duration = Duration::from_secs(4);

const FLAT_AFTER_RTTS: u32 = 16;

const COMPETE_MIN: Duration = Duration::from_secs(10);
const COMPETE_MAX: Duration = Duration::from_secs(120);

/// Makes up for a loss of a quarter; beyond that lanes fall short for other reasons.
const BOOST_MAX: f64 = 1.33;
/// Where a short path takes so much more without a queue, a search is sooner at its end than going on so.
const SHORT_BOOST_MAX: f64 = 1.2;
/// The best of four rates over a round trip is no more than that above their mean.
const BOOST_MIN: f64 = 0.93;
/// What comes through of a cap, beside what is chance over a round trip, where nothing else is the limit.
const ALL_OF_IT: f64 = 0.99;
/// What is missing says nothing before.
const BOOST_AFTER_ROUNDS: u32 = 8;

/// Sixteen packets: below that a cap is no rate any more, and what it lets through tells nothing of the path. After an
/// outage the first rates are such.
const CAP_BYTES_PER_ROUND_MIN: f64 = 16.0 * 1448.0;

/// Acknowledgements come in bursts: over 20 ms a rate is some per cent more or less than it is, which on a short path would be news.
const RATE_SPAN_MIN: Duration = Duration::from_millis(60);

/// See [`Governor::best_rate`].
const BEST_OF_ROUNDS: u32 = 4;

const HISTORY: Duration = Duration::from_secs(4);

impl Default for Governor {
    fn default() -> Self {
        Self {
            state: State::Search,
            bandwidth: 0.0,
            readings: VecDeque::new(),
            min_rtt: None,
            standing_ticks: 0,
            compete_for: COMPETE_MIN,
            boost: 1.0,
            lossy: false,
            peak: 0.0,
            last_rise: 0,
            is_flat: false,
            last_random_loss: 0,
            last_in_full: 0,
            cap: None,
        }
    }
}

impl Governor {
    /// How long after a reading the next is due: a round trip, where that is neither very short nor long; a part of it while
    /// the lanes double what they send in each.
    #[must_use]
    pub fn tick(&self) -> Duration {
        let parts = if self.state == State::Search && !self.is_flat { SEARCH_LOOKS } else { 1 };
        self.min_rtt.map_or(TICK_MAX, |min_rtt| (min_rtt / parts).clamp(TICK_MIN, TICK_MAX))
    }

    /// Takes a reading; returns the cap on what all lanes together may send, in bytes per second, or none. Call about
    /// every [`tick`](Self::tick) while there is enough to send; [`pause`](Self::pause) when there is not.
    pub fn on_tick(&mut self, now: Nanos, reading: PathReading) -> Option<f64> {
        self.readings.push_back((now, reading));
        self.min_rtt = Some(reading.min_rtt);
        // After a pause the lanes have to come up again before anything is looked for.
        if let (1, State::Cruise { since, .. }) = (self.readings.len(), &mut self.state) {
            *since = now;
        }
        while self.readings.len() > 2 && now - self.readings[0].0 > nanos(HISTORY) {
            self.readings.pop_front();
        }
        let round = reading.min_rtt.max(TICK_MIN);
        let known_rate = self.rate_until(self.readings.len() - 1, round);
        let rate = known_rate.unwrap_or(0.0);
        let (stands, ticks) = match self.state {
            State::Search => (queue_grows(&reading), SEARCH_STANDING_TICKS),
            _ => (queue_stands(&reading), STANDING_TICKS),
        };
        self.standing_ticks = if stands { self.standing_ticks + 1 } else { 0 };
        let standing = self.standing_ticks >= ticks;
        self.adjust_boost(now, round, rate, standing);
        self.note_loss(now, &reading, round, known_rate, standing);
        self.state = self.next_state(now, &reading, round, rate, standing);
        self.note_rise(now, round, rate);
        self.cap = self.gain(now, round).map(|gain| self.cap_at(gain, round));
        self.cap
    }

    /// The path's rate times `gain`.
    fn cap_at(&self, gain: f64, round: Duration) -> f64 {
        (self.bandwidth * gain * self.boost).max(CAP_BYTES_PER_ROUND_MIN / round.as_secs_f64())
    }

    /// Whether the lanes should run BBR, rather than the system's choice.
    #[must_use]
    pub fn wants_bbr(&self) -> bool {
        self.lossy || (self.state == State::Search && !self.is_flat)
    }

    /// The cap as of the last tick.
    #[must_use]
    pub fn cap(&self) -> Option<f64> {
        self.cap
    }

    /// Nothing, or little, is being sent: what follows must not be compared with what was before.
    pub fn pause(&mut self, now: Nanos) {
        self.readings.clear();
        self.standing_ticks = 0;
        // A search begins anew with what is sent next.
        (self.peak, self.is_flat) = (0.0, false);
        // A probe, and what drains the queue that is gone by then, is over.
        let probed = match self.state {
            State::Drain { probed, .. } => probed,
            State::Probe { gain, .. } => (gain < FIRST_PROBE_GAIN).then_some(now),
            State::Search | State::Cruise { .. } | State::Compete { .. } => return,
        };
        self.state = State::Cruise { since: now, probed };
        let round = self.min_rtt.map_or(TICK_MAX, |rtt| rtt.max(TICK_MIN));
        // No queue is left of a short path's; the next begins with what comes next.
        let short = self.min_rtt.filter(|rtt| *rtt <= SHORT_RTT_MAX);
        let gain =
            short.map_or(CRUISE_GAIN, |rtt| held_gain(share_of_missing(HELD_QUEUE, Duration::ZERO, rtt)));
        self.cap = Some(self.cap_at(gain, round));
    }

    /// The path's rate in delivered bytes per second, once it is known.
    #[must_use]
    pub fn bandwidth(&self) -> Option<f64> {
        (self.state != State::Search && self.bandwidth > 0.0).then_some(self.bandwidth)
    }

    fn next_state(
        &mut self,
        now: Nanos,
        reading: &PathReading,
        round: Duration,
        rate: f64,
        standing: bool,
    ) -> State {
        let lasts = |since: Nanos, limit: Duration| now - since >= nanos(limit);
        match self.state {
            State::Search => {
                if standing && rate > 0.0 {
                    self.bandwidth = self.best_rate(now, round);
                    return State::Drain { since: now, probed: None };
                }
            }
            State::Drain { since, probed } => {
                // While a queue stands the bottleneck is busy: its true rate shows. What was delivered before the
                // drain does not count for long: the path may have become narrower.
                let before = self.bandwidth;
                let best = self.best_rate(now, round);
                self.bandwidth = if standing && best > 0.0 && lasts(since, round * BEST_OF_ROUNDS) {
                    best
                } else {
                    self.bandwidth.max(rate)
                };
                let probed = probed.filter(|_| (before / NEWS..before * NEWS).contains(&self.bandwidth));
                // What is held of a short path's queue needs no drain.
                let remains = if is_short(reading) { queue_stands(reading) } else { queue_remains(reading) };
                if !remains && lasts(since, round) {
                    self.compete_for = COMPETE_MIN;
                    // On a long path a queue that stood takes longer: this may have been a host's hiccup.
                    if probed.is_none() && !is_short(reading) && !lasts(since, round * 3 / 2) {
                        return State::Probe { since: now, best: 0.0, gain: FIRST_PROBE_GAIN };
                    }
                    return State::Cruise { since: now, probed };
                }
                // A queue of two round trips, drained at a quarter of the rate, and twice that for the smoothed RTT.
                if lasts(since, reading.rtt * 12 + Duration::from_secs(1)) {
                    return State::Compete { since: now };
                }
                return State::Drain { since, probed };
            }
            State::Cruise { since, probed } => {
                if standing {
                    // The path has become narrower, or the estimate was too high: what comes through is the truth.
                    let best = self.best_rate(now, round);
                    let before = self.bandwidth;
                    if best > 0.0 && best < before * CRUISE_GAIN {
                        self.bandwidth = best;
                    }
                    // Of a path that is another now nothing is known; an estimate that is set right was confirmed.
                    let is_news = self.bandwidth * NEWS < before;
                    return State::Drain { since: now, probed: probed.filter(|_| !is_news) };
                }
                // Whatever a short path has more is found by filling its queue; as much more is another path, or what looks like a queue
                // stays as it is, whatever is sent: it is a host.
                if is_short(reading) {
                    let is_other = self.boost >= BOOST_MAX
                        || (self.boost >= SHORT_BOOST_MAX && self.comes_through(rate));
                    return if is_other { State::Search } else { State::Cruise { since, probed: Some(now) } };
                }
                // The first look comes soon, and is a good one: the rate was still growing when the queue was seen.
                let (is_time, gain) = match probed {
                    None => (true, FIRST_PROBE_GAIN),
                    Some(probed) => (lasts(probed, CRUISE_MIN.max(round * CRUISE_RTTS)), PROBE_GAIN),
                };
                if is_time && lasts(since, round * 2) {
                    return State::Probe { since: now, best: 0.0, gain };
                }
            }
            State::Probe { since, best, gain } => {
                let best = best.max(rate);
                let is_news = best > self.bandwidth * NEWS;
                if is_news {
                    self.bandwidth = best;
                }
                if lasts(since, rate_span(round) * 3) {
                    return State::Cruise { since: now, probed: Some(now) };
                }
                return if is_news { State::Search } else { State::Probe { since, best, gain } };
            }
            State::Compete { since } => {
                if lasts(since, self.compete_for) {
                    self.compete_for = (self.compete_for * 2).min(COMPETE_MAX);
                    return State::Search;
                }
            }
        }
        self.state
    }

    /// The cap as a multiple of the path's rate.
    fn gain(&self, now: Nanos, round: Duration) -> Option<f64> {
        match self.state {
            State::Search | State::Compete { .. } => None,
            State::Drain { .. } => Some(self.drain_gain()),
            State::Cruise { .. } => Some(self.cruise_gain()),
            State::Probe { since, gain, .. } if now - since < nanos(rate_span(round)) => Some(gain),
            // Gives back what the probe may have queued.
            State::Probe { since, gain, .. } if now - since < nanos(rate_span(round) * 2) => {
                Some(2.0 * CRUISE_GAIN - gain)
            }
            State::Probe { .. } => Some(CRUISE_GAIN),
        }
    }

    /// On a short path all but a half of what is to stay.
    fn drain_gain(&self) -> f64 {
        self.less_than(HELD_QUEUE / 2).map_or(DRAIN_GAIN, |less| (1.0 + less).clamp(DRAIN_GAIN, 1.0))
    }

    /// A short path is kept full by a queue of two milliseconds, where the margin that keeps a long path without one is as large
    /// a part of the rate as on that. The queue is what is measured, so it is what is steered by.
    fn cruise_gain(&self) -> f64 {
        self.missing().map_or(CRUISE_GAIN, held_gain)
    }

    /// What a short path's queue is less than that, as a share of the rate.
    fn missing(&self) -> Option<f64> {
        self.less_than(HELD_QUEUE)
    }

    /// What a short path's queue is less than it should be, as the share of the rate that makes up for it.
    fn less_than(&self, wanted: Duration) -> Option<f64> {
        let (_, last) = self.readings.back().filter(|(_, last)| is_short(last))?;
        Some(share_of_missing(wanted, last.queue(), last.min_rtt))
    }

    /// Integral control: a shortfall of 1 % for a round trip raises the cap by 0.3 %. Where a queue is held and is longer than it should be,
    /// nothing is missing: the rate has been taken for more than it is, as the best of some bursts, and the cap is lowered by that. Where it
    /// does not come about though all that the cap allows comes through, the rate has been taken for less, as when a host stalled.
    fn adjust_boost(&mut self, now: Nanos, round: Duration, rate: f64, standing: bool) {
        // After a pause the lanes have to come up again first.
        let after = (round * BOOST_AFTER_ROUNDS).min(HISTORY / 2);
        let is_seen = self.readings.front().is_some_and(|(first, _)| now - first > nanos(after));
        if standing {
            self.boost = self.boost.min(1.0 + (self.boost - 1.0) / 2.0);
        } else if matches!(self.state, State::Cruise { since, .. } if is_seen && now - since > nanos(round * 2))
        {
            // What a host's stall leaves out, and what comes all at once after it, is no more than that either: it says
            // nothing of the path.
            let shortfall = (CRUISE_GAIN - rate / self.bandwidth).clamp(-SHORTFALL, SHORTFALL);
            let ticks_per_round = round.as_secs_f64() / self.tick().as_secs_f64();
            let comes_through = self.comes_through(rate);
            let (more, least) = match self.missing().map(|missing| missing * HELD_SHARE) {
                Some(missing) if self.boost < 1.0 || (missing > 0.0 && comes_through) => (missing, BOOST_MIN),
                Some(missing) if missing < 0.0 => (missing.min(shortfall * 0.3), BOOST_MIN),
                // One look at less, by chance, takes back no more than one look at all of it has given.
                Some(missing) => ((shortfall * 0.3).max(-missing), 1.0),
                None => (shortfall * 0.3, 1.0),
            };
            self.boost = (self.boost + more / ticks_per_round).clamp(least, BOOST_MAX);
        }
    }

    /// The cap is the limit, and not the path or a host.
    fn comes_through(&self, rate: f64) -> bool {
        self.cap.is_some_and(|cap| rate > cap * ALL_OF_IT)
    }

    /// A packet lost where no queue stands, and none has for a few round trips, is lost at random.
    fn note_loss(
        &mut self,
        now: Nanos,
        reading: &PathReading,
        round: Duration,
        rate: Option<f64>,
        standing: bool,
    ) {
        let calm = !standing
            && !queue_remains(reading)
            && match self.state {
                State::Search => true,
                State::Cruise { since, .. } => now - since > nanos(round * 4),
                _ => false,
            };
        let before =
            self.readings.iter().rev().nth(1).map_or(reading.retransmitted, |(_, r)| r.retransmitted);
        if calm && reading.retransmitted > before {
            self.last_random_loss = now;
        }
        if !calm || rate.is_none_or(|rate| rate > self.bandwidth * (CRUISE_GAIN - SHORTFALL)) {
            self.last_in_full = now;
        }
        let lost_lately = self.last_random_loss > 0 && now - self.last_random_loss < nanos(round * 4);
        let falls_short = now - self.last_in_full > nanos(round * 4);
        // On a short path a search has filled the queue, and lost what did not fit, before anybody looks. If it is not that,
        // a cruise soon falls short.
        let tells = !is_short(reading) || self.is_flat;
        if lost_lately && (falls_short || (self.state == State::Search && tells)) {
            self.lossy = true;
        } else if calm && self.lossy && now - self.last_random_loss > nanos(CLEAN_AFTER.max(round * 20)) {
            self.lossy = false;
        }
    }

    /// BBR stops for a moment every ten seconds, all lanes at once, to see the least round-trip time again. Where the
    /// search has come to its end without a queue there is nothing more for it to find.
    fn note_rise(&mut self, now: Nanos, round: Duration, rate: f64) {
        if self.state != State::Search || self.readings.len() < 2 {
            (self.peak, self.last_rise, self.is_flat) = (0.0, now, false);
        } else if rate > self.peak * NEWS {
            (self.peak, self.last_rise) = (rate, now);
        } else if now - self.last_rise > nanos(FLAT_AFTER.max(round * FLAT_AFTER_RTTS)) {
            self.is_flat = true;
        }
    }

    /// The best rate over a round trip ([`rate_span`]), of the last few: a host's stall is no property of the path. 0: nothing came
    /// through, or too little has been seen since a pause, and nothing can be said.
    fn best_rate(&self, now: Nanos, round: Duration) -> f64 {
        let since = nanos(round * BEST_OF_ROUNDS);
        let ends = (0..self.readings.len()).rev().take_while(|&end| now - self.readings[end].0 <= since);
        ends.filter_map(|end| self.rate_until(end, round)).fold(0.0, f64::max)
    }

    /// Delivered bytes per second until the reading `end`, over [`rate_span`], or over what has been seen where that is less,
    /// but for a round trip.
    fn rate_until(&self, end: usize, round: Duration) -> Option<f64> {
        let &(at, last) = self.readings.get(end)?;
        let before = |span| move |&&(earlier, _): &&(Nanos, PathReading)| at - earlier >= nanos(span);
        let mut earlier = self.readings.range(..end).rev();
        let start = earlier.find(before(rate_span(round)));
        let &(from, first) = start.or_else(|| self.readings.front().filter(before(round)))?;
        Some((last.delivered - first.delivered) as f64 / Duration::from_nanos(at - from).as_secs_f64())
    }
}

/// What each lane may send, in bytes per second, so that all together send `cap`: what some cannot use, because their
/// congestion windows only allow for the rates in `able`, the others may have. Twice its even share at the most: windows
/// grow before the next look.
#[must_use]
pub fn share(cap: f64, mut able: Vec<f64>) -> f64 {
    able.sort_unstable_by(f64::total_cmp);
    let most = 2.0 * cap / able.len().max(2) as f64;
    let mut left = cap;
    for (i, rate) in able.iter().enumerate() {
        let share = left / (able.len() - i) as f64;
        if *rate >= share || share > most {
            return share.min(most);
        }
        left -= rate;
    }
    most
}

/// What a rate is taken over.
fn rate_span(round: Duration) -> Duration {
    if round > SHORT_RTT_MAX { round } else { RATE_SPAN_MIN }
}

/// What the held queue is more or less than it should be is made up for in this time: twice what it takes to see what has come of it, a
/// look and a round trip. Soon, because until then a host's next hiccup finds no queue; and without swinging.
fn held_within(min_rtt: Duration) -> Duration {
    (TICK_MIN + min_rtt) * 2
}

/// What a queue is less than it should be, as the share of the rate that makes up for it.
fn share_of_missing(wanted: Duration, queue: Duration, min_rtt: Duration) -> f64 {
    (wanted.as_secs_f64() - queue.as_secs_f64()) / held_within(min_rtt).as_secs_f64()
}

fn held_gain(missing: f64) -> f64 {
    1.0 + missing.clamp(-HELD_SPAN, HELD_SPAN)
}

fn is_short(reading: &PathReading) -> bool {
    reading.min_rtt <= SHORT_RTT_MAX
}

/// The lanes still double what they send: a round trip after the first packet has waited, as much waits as the path holds. The buffers
/// of a short path may hold hardly more than what is held of its queue: longer than that none would ever be seen.
fn queue_grows(reading: &PathReading) -> bool {
    let hosts_own = if is_short(reading) { HELD_QUEUE } else { Duration::from_millis(3) };
    reading.queue() > (reading.min_rtt / 12).max(hosts_own)
}

/// Well above the minimum, and above what hosts themselves add.
fn queue_stands(reading: &PathReading) -> bool {
    reading.queue() > (reading.min_rtt / 5).max(Duration::from_millis(3))
}

fn queue_remains(reading: &PathReading) -> bool {
    reading.queue() > (reading.min_rtt / 12).max(Duration::from_millis(2))
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
