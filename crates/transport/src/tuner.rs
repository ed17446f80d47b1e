//! How many lanes a session has. Pure: readings of the kernel's own words in, a number of lanes out.
//!
//! One TCP connection carries at most (what its buffers hold) / RTT. Where that, and not the network, is the limit,
//! more connections help; where the network is the limit they only take from others. The kernel says which: the time
//! a connection was held up by the receiver's window or by its own send buffer (`tcpi_rwnd_limited`,
//! `tcpi_sndbuf_limited`), as against its congestion window.
//!
//! ```text
//!           half of the lanes are held up by buffers
//!   STEADY ------------------------------------------> SETTLING (more lanes are opened)
//!     ^                                                   |
//!     |  the rate has grown, or all lanes are at their buffers' limit again
//!     +---------------------------------------------------+
//!     |  it has not: back to the old number, and a pause that doubles each time
//!     +---------------------------------------------------+
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use crate::scheduler::{LaneId, Nanos};

/// What the kernel says of one lane, at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneReading {
    /// Which lane.
    pub id: LaneId,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// The least round-trip time seen.
    pub min_rtt_us: u32,
    /// Time with data to send, so far.
    pub busy_us: u64,
    /// Of it, held up by the receiver's window.
    pub rwnd_limited_us: u64,
    /// Of it, held up by the send buffer.
    pub sndbuf_limited_us: u64,
    /// Bytes acknowledged so far.
    pub bytes_acked: u64,
    /// The receiver's window; 0 where the kernel does not say.
    pub window_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct LaneState {
    last: LaneReading,
    /// Smoothed share of the time in which buffers held it up.
    limited: f64,
    /// The widest window its receiver has offered.
    window_max: u64,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Steady { not_before: Nanos },
    Settling { until: Nanos, lanes_before: usize, rate_before: f64 },
}

/// The number of lanes of one direction of a session.
#[derive(Debug)]
pub struct Tuner {
    lanes: BTreeMap<LaneId, LaneState>,
    target: usize,
    lanes_max: usize,
    phase: Phase,
    last_tick: Nanos,
    /// Acknowledged, in bytes per second: smoothed, and since the last tick.
    rate: f64,
    rate_now: f64,
    pause: Duration,
    failures: u32,
}

/// A lane counts as held up by buffers from this share of its time on.
const LIMITED_SHARE: f64 = 0.3;

/// A window narrower than this share of its widest is full of bytes that nobody has read: the receiver's disk or CPU
/// holds the lane up, not the size of the buffer, and more lanes would not help.
const OPEN_WINDOW: f64 = 0.6;

impl LaneReading {
    /// Whether its packets wait in a queue somewhere: a quarter above the minimum, and more than a host's own delays.
    fn queues(&self) -> bool {
        self.rtt_us > self.min_rtt_us + self.min_rtt_us / 4 + 2000
    }
}

/// Pause after lanes were added in vain, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Round trips a new lane needs to show what it can: two to connect, and ten doublings from ten packets to a full
/// window of several megabytes.
const SETTLE_RTTS: u32 = 12;

/// And then the smoothed rate needs twice its time constant to follow.
const SETTLE_SMOOTHING: Duration = Duration::from_secs(1);

/// The rate that the first lanes shall be able to reach together: enough that most paths never need more.
const FIRST_RATE_BYTES_PER_S: f64 = 900e6;

/// Each lane begins with ten packets: so many lanes reach a gigabit at 300 ms four round trips sooner than one. Of a gigabit
/// each then has 62 Mbit/s, and the kernel sends its packets in fives; of twice as many lanes or more they would go in twos,
/// and both ends and all between them handle more than twice as many trains (net/ipv4/tcp_output.c, tcp_tso_autosize: what a
/// lane sends in a millisecond, and two packets at least).
pub(crate) const FIRST_LANES_MAX: usize = 16;

/// So many lanes are too few to overshoot together.
const FEW_LANES: usize = 8;

/// From here on the rate of one lane is a few hundredths of the whole: lanes come half as many at a time.
const MANY_LANES: usize = 32;

/// Bytes per second from which on a host's cores may be what is short, and lanes that bring nothing take from the others:
/// they come a quarter as many at a time.
const CORES_MATTER: f64 = 500e6;

/// Lanes to begin with on a path of this round-trip time, where one lane has at most `window_bytes` under way.
#[must_use]
pub fn first_lanes(rtt: Duration, window_bytes: u64) -> usize {
    let lane_rate = window_bytes as f64 / rtt.as_secs_f64().max(1e-4);
    ((FIRST_RATE_BYTES_PER_S / lane_rate).ceil() as usize).clamp(2, FIRST_LANES_MAX)
}

impl Tuner {
    /// A session that begins with `first` lanes and never has more than `lanes_max`.
    #[must_use]
    pub fn new(first: usize, lanes_max: usize) -> Self {
        Self {
            lanes: BTreeMap::new(),
            target: first.min(lanes_max),
            lanes_max,
            phase: Phase::Steady { not_before: 0 },
            last_tick: 0,
            rate: 0.0,
            rate_now: 0.0,
            pause: FIRST_PAUSE,
            failures: 0,
        }
    }

    /// How many lanes there should be.
    #[must_use]
    pub fn target(&self) -> usize {
        self.target
    }

    /// Bytes per second that the peer has acknowledged of late.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Takes the readings of all open lanes; `demand_bytes` wait to be sent. Returns the number of lanes there should
    /// be. Call about every 100 ms.
    pub fn on_tick(&mut self, now: Nanos, readings: &[LaneReading], demand_bytes: u64) -> usize {
        let elapsed = Duration::from_nanos(now.saturating_sub(self.last_tick)).as_secs_f64();
        if elapsed <= 0.0 {
            return self.target;
        }
        self.last_tick = now;
        self.take_readings(readings, elapsed);
        // The end of a transfer says nothing about the path.
        if readings.is_empty() || (demand_bytes as f64) < self.rate / 2.0 {
            return self.target;
        }
        let limited = self.lanes.values().filter(|l| l.limited > LIMITED_SHARE && !l.last.queues()).count();
        let all_limited = limited * 5 >= readings.len() * 4;
        match self.phase {
            Phase::Steady { not_before } => {
                // Lanes the other side has opened count as wanted.
                self.target = self.target.max(readings.len()).min(self.lanes_max);
                if now >= not_before && limited * 2 >= readings.len() && self.target < self.lanes_max {
                    self.grow(now, readings);
                }
            }
            Phase::Settling { until, lanes_before, rate_before } => {
                let has_grown = self.rate >= rate_before * gain_wanted(lanes_before, self.target);
                let all_there = readings.len() >= self.target;
                if has_grown && all_there && (all_limited || now >= until) {
                    self.phase = Phase::Steady { not_before: 0 };
                } else if now >= until {
                    // The network, a disk or a CPU is the limit: keep what the gain, if any, was worth.
                    let gain = self.rate / rate_before.max(1.0);
                    let worth =
                        if gain > 1.05 { (lanes_before as f64 * gain * 1.1).ceil() as usize } else { 0 };
                    self.target = worth.clamp(lanes_before, self.target);
                    self.failures += 1;
                    self.phase = Phase::Steady { not_before: now + nanos(self.pause) };
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                }
            }
        }
        self.target
    }

    fn take_readings(&mut self, readings: &[LaneReading], elapsed: f64) {
        let mut acked = 0;
        let mut lanes = BTreeMap::new();
        for reading in readings {
            let previous = self.lanes.get(&reading.id);
            let last = previous.map_or(LaneReading::default(), |l| l.last);
            let busy = reading.busy_us.saturating_sub(last.busy_us);
            let window_max = previous.map_or(0, |l| l.window_max).max(reading.window_bytes);
            let by_window = if (reading.window_bytes as f64) < window_max as f64 * OPEN_WINDOW {
                0
            } else {
                reading.rwnd_limited_us.saturating_sub(last.rwnd_limited_us)
            };
            let held = by_window + reading.sndbuf_limited_us.saturating_sub(last.sndbuf_limited_us);
            let share = if busy == 0 { 0.0 } else { (held as f64 / busy as f64).min(1.0) };
            // Two ticks in a row must be limited.
            let limited = previous.map_or(0.0, |l| l.limited) * 0.7 + share * 0.3;
            acked += reading.bytes_acked.saturating_sub(last.bytes_acked);
            lanes.insert(reading.id, LaneState { last: *reading, limited, window_max });
        }
        self.lanes = lanes;
        self.rate_now = acked as f64 / elapsed;
        // A time constant of ~0.5 s.
        let weight = (elapsed / 0.5).min(1.0);
        self.rate += (self.rate_now - self.rate) * weight;
    }

    fn grow(&mut self, now: Nanos, readings: &[LaneReading]) {
        let lanes_before = self.target;
        // While the rate still rises its smoothed value lags behind.
        let rate_before = self.rate.max(self.rate_now);
        // Few lanes may be tripled at once; many new ones overshoot together and keep the hosts' cores busy with it, and
        // where the limit is a CPU that the kernel's words do not tell from a buffer, each costs more than it brings.
        let factor = match lanes_before {
            0..MANY_LANES if self.failures > 0 => 1.5,
            0..FEW_LANES => 3.0,
            FEW_LANES..MANY_LANES => 2.0,
            _ if rate_before < CORES_MATTER => 1.5,
            _ => 1.25,
        };
        self.target = ((lanes_before as f64 * factor).ceil() as usize).min(self.lanes_max);
        let rtt = Duration::from_micros(readings.iter().map(|r| u64::from(r.rtt_us)).max().unwrap_or(0));
        let settle = rtt * SETTLE_RTTS + SETTLE_SMOOTHING;
        self.phase = Phase::Settling { until: now + nanos(settle), lanes_before, rate_before };
    }
}

/// Half of what the new lanes would add if nothing but buffers were in the way.
fn gain_wanted(lanes_before: usize, lanes_now: usize) -> f64 {
    1.0 + 0.5 * (lanes_now as f64 / lanes_before.max(1) as f64 - 1.0)
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
