use proptest::prelude::*;

use super::*;

const TICK: Nanos = 100_000_000;

/// A path with a queue of one BDP and the lanes on it, in fluid steps of one tick. A lane's flight doubles per round
/// trip until its buffers are full or the queue overflows; then all give way and grow slowly.
struct Path {
    bottleneck: f64,
    rtt: f64,
    window: f64,
    lanes: Vec<PathLane>,
    next_id: LaneId,
    noise: u64,
}

struct PathLane {
    reading: LaneReading,
    ready_at: Nanos,
    flight: f64,
    slow_start: bool,
}

impl Path {
    fn new(bottleneck_bps: f64, rtt: Duration, window: f64, noise: u64) -> Self {
        let rtt = rtt.as_secs_f64();
        Self { bottleneck: bottleneck_bps / 8.0, rtt, window, lanes: Vec::new(), next_id: 0, noise }
    }

    fn random(&mut self) -> f64 {
        self.noise =
            self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.noise >> 33) as f64 / f64::from(1u32 << 31)
    }

    /// One tick; says how many bytes per second came through.
    fn step(&mut self, now: Nanos, target: usize) -> f64 {
        while self.lanes.len() < target {
            let reading = LaneReading { id: self.next_id, ..LaneReading::default() };
            self.next_id += 1;
            let ready_at = now + (2.0 * self.rtt * 1e9) as Nanos;
            self.lanes.push(PathLane { reading, ready_at, flight: 0.0, slow_start: true });
        }
        self.lanes.truncate(target);
        let tick = TICK as f64 / 1e9;
        // Within a tick a short path makes many round trips: steps of at most one.
        let steps = (tick / self.rtt).ceil().clamp(1.0, 50.0);
        let dt = tick / steps;
        let mut through = 0.0;
        for _ in 0..steps as usize {
            let bdp = self.bottleneck * self.rtt;
            for lane in self.lanes.iter_mut().filter(|l| l.ready_at <= now) {
                let growth =
                    if lane.slow_start { 2f64.powf(dt / self.rtt) } else { 1.0 + 0.02 * dt / self.rtt };
                lane.flight = (lane.flight.max(14_600.0) * growth).min(self.window);
            }
            let mut total: f64 = self.lanes.iter().map(|l| l.flight).sum();
            if total > 2.0 * bdp {
                for lane in &mut self.lanes {
                    lane.flight *= 0.7;
                    lane.slow_start = false;
                }
                total *= 0.7;
            }
            let rtt = self.rtt.max(total / self.bottleneck);
            through += total / rtt * dt;
            let jitter = 0.9 + 0.2 * self.random();
            for lane in self.lanes.iter_mut().filter(|l| l.ready_at <= now) {
                let held = if lane.flight >= self.window { 0.9 } else { 0.05 } * jitter;
                lane.reading.rtt_us = (rtt * 1e6) as u32;
                lane.reading.min_rtt_us = (self.rtt * 1e6) as u32;
                lane.reading.busy_us += (dt * 1e6) as u64;
                lane.reading.sndbuf_limited_us += (dt * 1e6 * held) as u64;
                lane.reading.bytes_acked += (lane.flight / rtt * dt * jitter) as u64;
            }
        }
        through / tick
    }

    /// Runs for `seconds`; says the rate in bits per second and the lanes at its end, and when 90 % of it was reached.
    fn run(&mut self, tuner: &mut Tuner, seconds: u64) -> (f64, usize, f64) {
        let mut rates = Vec::new();
        for tick in 1..=seconds * 10 {
            let now = tick * TICK;
            rates.push(self.step(now, tuner.target()) * 8.0);
            let readings: Vec<LaneReading> =
                self.lanes.iter().filter(|l| l.ready_at <= now).map(|l| l.reading).collect();
            tuner.on_tick(now, &readings, u64::MAX);
        }
        let end = rates[rates.len() - 20..].iter().sum::<f64>() / 20.0;
        let reached = rates.iter().position(|r| *r >= 0.9 * end).unwrap_or(0) as f64 / 10.0;
        (end, tuner.target(), reached)
    }
}

fn run(gbit: f64, rtt_ms: u64, window_mb: f64, seconds: u64) -> (f64, usize, f64) {
    let rtt = Duration::from_millis(rtt_ms);
    let mut tuner = Tuner::new(first_lanes(rtt, (window_mb * 1e6) as u64), 256);
    let (rate, lanes, reached) = Path::new(gbit * 1e9, rtt, window_mb * 1e6, 1).run(&mut tuner, seconds);
    (rate / 1e9, lanes, reached)
}

#[test]
fn ten_gigabits_at_200_ms_with_default_buffers() {
    let (rate, lanes, reached) = run(10.0, 200, 2.8, 20);
    assert!(rate > 9.0 && (85..=200).contains(&lanes), "{rate} Gbit/s on {lanes} lanes");
    assert!(reached < 13.5, "{reached} s");
    let (rate, lanes, reached) = run(10.0, 200, 5.6, 20);
    assert!(
        rate > 9.0 && (45..=100).contains(&lanes) && reached < 8.0,
        "{rate} Gbit/s on {lanes} lanes after {reached} s"
    );
}

#[test]
fn a_gigabit_needs_no_more_than_the_first_lanes() {
    for (rtt, most) in [(1, 2), (3, 2), (20, 4), (100, 17), (300, 49)] {
        let (rate, lanes, _) = run(1.0, rtt, 5.6, 60);
        assert!(rate > 0.95 && lanes <= most, "{rtt} ms: {rate} Gbit/s on {lanes} lanes");
    }
}

#[test]
fn lanes_added_in_vain_are_given_back() {
    // Half of the lanes say "limited", but more of them bring nothing: a slow disk at the far end.
    let mut tuner = Tuner::new(8, 256);
    let mut lanes: Vec<LaneReading> = Vec::new();
    let mut most = 0;
    for tick in 1..=600u64 {
        let target = tuner.target();
        most = most.max(target);
        let id = lanes.len() as u64;
        let new = LaneReading { rtt_us: 50_000, min_rtt_us: 50_000, ..LaneReading::default() };
        lanes.extend((id..target as u64).map(|id| LaneReading { id, ..new }));
        lanes.truncate(target);
        for lane in &mut lanes {
            lane.busy_us += 100_000;
            lane.rwnd_limited_us += 90_000;
            lane.bytes_acked += 10_000_000 / target as u64;
        }
        tuner.on_tick(tick * TICK, &lanes, u64::MAX);
    }
    assert_eq!(tuner.target(), 8);
    assert!(most > 8);
}

#[test]
fn the_end_of_a_transfer_opens_no_lanes() {
    let mut tuner = Tuner::new(2, 256);
    let reading =
        LaneReading { busy_us: 100, sndbuf_limited_us: 100, bytes_acked: 1 << 30, ..LaneReading::default() };
    assert_eq!(tuner.on_tick(TICK, &[reading, LaneReading { id: 1, ..reading }], 0), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn paths_are_filled_without_excess(
        gbit in 0.1f64..40.0, rtt_ms in 1u64..300, window_mb in 1.0f64..16.0, noise in any::<u64>(),
    ) {
        let rtt = Duration::from_millis(rtt_ms);
        let window = window_mb * 1e6;
        let first = first_lanes(rtt, window as u64);
        let mut tuner = Tuner::new(first, 256);
        let (rate, lanes, _) = Path::new(gbit * 1e9, rtt, window, noise).run(&mut tuner, 60);
        let lane_rate = window * 8.0 / rtt.as_secs_f64();
        let possible = (gbit * 1e9).min(lane_rate * 256.0);
        let needed = (possible / lane_rate).ceil() as usize;
        // Lanes that all give way at once and grow slowly, as here, are the worst case.
        prop_assert!(rate > 0.7 * possible, "{} of {} Gbit/s on {} lanes", rate / 1e9, possible / 1e9, lanes);
        prop_assert!(lanes <= first.max(3 * needed), "{lanes} lanes, {needed} needed");
    }
}

#[test]
fn a_receiver_that_does_not_read_gets_no_more_lanes() {
    // All lanes wait for the window, which is a quarter of what it was: its buffer is full of unread bytes.
    let mut tuner = Tuner::new(8, 256);
    let mut lanes: Vec<LaneReading> = (0..8)
        .map(|id| LaneReading {
            id,
            rtt_us: 50_000,
            min_rtt_us: 50_000,
            window_bytes: 6 << 20,
            ..LaneReading::default()
        })
        .collect();
    for tick in 1..=100u64 {
        for lane in &mut lanes {
            lane.busy_us += 100_000;
            lane.rwnd_limited_us += 90_000;
            lane.bytes_acked += 10_000_000;
            lane.window_bytes = if tick == 1 { 6 << 20 } else { 1 << 20 };
        }
        tuner.on_tick(tick * TICK, &lanes, u64::MAX);
    }
    assert_eq!(tuner.target(), 8);
}
