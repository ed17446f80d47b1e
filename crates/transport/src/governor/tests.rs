use proptest::prelude::*;

use super::*;
use crate::tuner::FIRST_LANES_MAX;

/// A bottleneck with a drop-tail queue, and a bundle of flows that doubles per round trip until it loses packets or
/// meets its cap.
struct Bottleneck {
    /// As the governor wants it, in seconds.
    tick: f64,
    capacity: f64,
    rtt: f64,
    queue_max: f64,
    random_loss: f64,
    queue: f64,
    rate: f64,
    rtt_smoothed: f64,
    rtt_deviation: f64,
    sampled: f64,
    reading: PathReading,
    time: f64,
    dropped: f64,
    queued_time: f64,
    /// Acknowledgements come in bursts: a look sees up to this share of a tick's bytes earlier or later.
    burst: f64,
    dice: u32,
}

impl Bottleneck {
    fn new(mbit: f64, rtt_ms: f64, queue_bdp: f64, random_loss: f64) -> Self {
        let (capacity, rtt) = (mbit * 1e6 / 8.0, rtt_ms / 1e3);
        Self {
            tick: rtt.clamp(TICK_MIN.as_secs_f64(), TICK_MAX.as_secs_f64()),
            capacity,
            rtt,
            queue_max: (capacity * rtt * queue_bdp).max(100e3),
            random_loss,
            queue: 0.0,
            rate: 146e3 / rtt,
            rtt_smoothed: rtt,
            rtt_deviation: rtt / 2.0,
            sampled: 0.0,
            reading: PathReading::default(),
            time: 0.0,
            dropped: 0.0,
            queued_time: 0.0,
            burst: 0.0,
            dice: 1,
        }
    }

    /// One whose queue holds what the path does, and whose acknowledgements come in bursts.
    fn bursty(mbit: f64, rtt_ms: f64) -> Self {
        Self { burst: 0.05, ..Self::new(mbit, rtt_ms, 1.0, 0.0) }
    }

    /// One tick as the governor has it, and a look; bytes delivered.
    fn go(&mut self, governor: &mut Governor) -> f64 {
        let delivered = self.step(governor.cap(), 0.0);
        self.look(governor);
        delivered
    }

    /// One tick under `cap`, while others take `others` bytes per second; bytes delivered.
    fn step(&mut self, cap: Option<f64>, others: f64) -> f64 {
        let steps = (self.tick / (self.rtt / 4.0)).ceil().max(4.0);
        let dt = self.tick / steps;
        let mut delivered = 0.0;
        for _ in 0..steps as usize {
            // BBR's own limit: twice what is delivered.
            self.rate = (self.rate * 2f64.powf(dt / self.rtt)).min(self.capacity * 2.5);
            let sending = cap.map_or(self.rate, |cap| self.rate.min(cap));
            self.rate = self.rate.min(sending * 2.5);
            let free = (self.capacity - others).max(1.0);
            let arrived = sending * (1.0 - self.random_loss) * dt;
            let through = (self.queue + arrived).min(free * dt);
            self.queue += arrived - through;
            let lost = (self.queue - self.queue_max).max(0.0);
            self.queue -= lost;
            self.dropped += lost;
            self.reading.retransmitted += (lost + sending * self.random_loss * dt) as u64;
            let rtt_now = self.rtt + self.queue / free;
            self.acknowledge(through, rtt_now);
            self.reading.delivered += through as u64;
            self.queued_time += self.queue / free * dt;
            delivered += through;
        }
        self.tick();
        delivered
    }

    fn tick(&mut self) {
        self.time += self.tick;
        self.reading.min_rtt = Duration::from_secs_f64(self.rtt);
        self.reading.rtt = Duration::from_secs_f64((self.rtt_smoothed - self.rtt_deviation).max(0.0));
    }

    /// Each lane's kernel takes its samples, one for two packets, as Linux' `tcp_rtt_estimator` does.
    fn acknowledge(&mut self, bytes: f64, rtt: f64) {
        let samples = self.sampled + bytes / LANES / 2896.0;
        self.sampled = samples.fract();
        for _ in 0..samples.min(100.0) as usize {
            let error = rtt - self.rtt_smoothed;
            self.rtt_smoothed += error / 8.0;
            let more = error.abs() - self.rtt_deviation;
            self.rtt_deviation += more / if error < 0.0 && more > 0.0 { 32.0 } else { 4.0 };
        }
    }

    /// The governor takes a reading, and says when the next is due.
    fn look(&mut self, governor: &mut Governor) -> Option<f64> {
        self.dice = self.dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223); // Numerical Recipes' ranqd1
        let late = self.capacity * self.tick * self.burst * f64::from(self.dice >> 16) / 65_536.0;
        let delivered = self.reading.delivered.saturating_sub(late as u64);
        let cap = governor.on_tick((self.time * 1e9) as u64, PathReading { delivered, ..self.reading });
        self.tick = governor.tick().as_secs_f64();
        cap
    }

    /// The receiver, or what carries the packets, stands still for some seconds, and then does all at once.
    fn stall(&mut self, seconds: f64, governor: &mut Governor) {
        // What is under way arrives late, and nothing more is sent without acknowledgements.
        let held = self.rate.min(self.capacity) * self.rtt.min(seconds);
        let end = self.time + seconds;
        while self.time < end {
            self.tick();
            self.look(governor);
        }
        self.reading.delivered += held as u64;
        // They were sent in bursts: most are late by as much.
        self.acknowledge(held, self.rtt + seconds);
    }
}

/// More are opened only where buffers, not the path, are the limit.
const LANES: f64 = FIRST_LANES_MAX as f64;

/// Runs; says the share of the capacity used after the first 5 s and 20 RTT, and the mean queueing delay in RTTs.
fn run(bottleneck: &mut Bottleneck, governor: &mut Governor, seconds: f64, others: f64) -> (f64, f64) {
    let settled = bottleneck.time + 5.0 + 20.0 * bottleneck.rtt;
    let end = bottleneck.time + seconds;
    let (mut cap, mut delivered, mut queued_before) = (None, 0.0, 0.0);
    while bottleneck.time < end {
        if bottleneck.time < settled {
            queued_before = bottleneck.queued_time;
        }
        let bytes = bottleneck.step(cap, others);
        delivered += if bottleneck.time > settled { bytes } else { 0.0 };
        cap = bottleneck.look(governor);
    }
    let span = end - settled;
    let share = delivered / span / (bottleneck.capacity - others);
    (share, (bottleneck.queued_time - queued_before) / span / bottleneck.rtt)
}

#[test]
fn a_gigabit_at_300_ms_is_used_without_a_queue() {
    let mut path = Bottleneck::new(941.0, 300.0, 1.0, 0.0);
    let (share, queue) = run(&mut path, &mut Governor::default(), 60.0, 0.0);
    assert!(share > 0.97, "{share}");
    assert!(queue < 0.1, "{queue} RTT of queue");
}

#[test]
fn a_short_path_is_full_and_its_queue_short() {
    for (mbit, rtt_ms) in [(941.0, 3.3), (941.0, 4.0), (9410.0, 10.0), (100.0, 15.0)] {
        let mut path = Bottleneck::new(mbit, rtt_ms, 4.0, 0.0);
        let (share, queue) = run(&mut path, &mut Governor::default(), 60.0, 0.0);
        assert!(share > 0.995, "{share} of {mbit} Mbit/s x {rtt_ms} ms");
        assert!(queue * rtt_ms < 2.0, "{} ms of queue, {mbit} Mbit/s x {rtt_ms} ms", queue * rtt_ms);
    }
}

#[test]
fn a_search_ends_where_the_buffer_holds_no_more_than_three_milliseconds() {
    // As much as 1 Gbit/s x 2.9 ms holds.
    let mut path = Bottleneck::new(941.0, 2.9, 1.0, 0.0);
    let mut governor = Governor::default();
    while governor.state == State::Search && path.time < 5.0 {
        path.go(&mut governor);
    }
    assert!(path.time < 0.2, "{} s, {} packets lost", path.time, path.dropped / 1500.0);
}

#[test]
fn a_short_paths_queue_is_soon_there_again_and_does_not_swing() {
    for (mbit, rtt_ms) in [(941.0, 3.3), (941.0, 4.0), (941.0, 15.0), (9410.0, 20.0)] {
        let mut path = Bottleneck::new(mbit, rtt_ms, 1.0, 0.0);
        let mut governor = Governor::default();
        run(&mut path, &mut governor, 5.0, 0.0);
        // A host stood still for as long as its queue lasted.
        path.queue = 0.0;
        let (begun, mut queues) = (path.time, Vec::new());
        while path.time < begun + 0.5 {
            path.go(&mut governor);
            queues.push((path.time - begun, path.queue / path.capacity * 1e3));
        }
        let soon = queues.iter().find(|(_, ms)| *ms > 1.2).map(|(after, _)| *after);
        assert!(soon.is_some_and(|after| after < 0.1), "{rtt_ms} ms: {queues:.2?}");
        let after = &queues[queues.iter().position(|(_, ms)| *ms > 1.2).unwrap_or(0)..];
        assert!(after.iter().all(|(_, ms)| (1.2..2.8).contains(ms)), "{rtt_ms} ms: {queues:.2?}");
    }
}

#[test]
fn a_rate_that_bursts_have_exaggerated_is_not_drained_again_and_again() {
    for (mbit, rtt_ms) in [(941.0, 3.3), (941.0, 4.0), (941.0, 15.0)] {
        let mut path = Bottleneck::bursty(mbit, rtt_ms);
        let mut governor = Governor::default();
        run(&mut path, &mut governor, 2.0, 0.0);
        let (mut draining, mut delivered, begun) = (0, 0.0, path.time);
        while path.time < begun + 20.0 {
            delivered += path.go(&mut governor);
            draining += u32::from(matches!(governor.state, State::Drain { .. }));
        }
        let share = delivered / (path.time - begun) / path.capacity;
        assert!(share > 0.997 && draining < 10, "{share}, {draining} looks in a drain, {rtt_ms} ms");
    }
}

#[test]
fn what_bursts_show_of_a_short_path_is_no_news() {
    for (mbit, rtt_ms) in [(941.0, 3.3), (941.0, 4.0), (941.0, 15.0), (9410.0, 20.0)] {
        let mut path = Bottleneck::bursty(mbit, rtt_ms);
        let mut governor = Governor::default();
        run(&mut path, &mut governor, 1.0, 0.0);
        let dropped = path.dropped;
        while path.time < 120.0 {
            path.go(&mut governor);
            assert!(
                !matches!(governor.state, State::Search | State::Probe { .. }),
                "{:?} after {} s, {mbit} Mbit/s x {rtt_ms} ms",
                governor.state,
                path.time
            );
        }
        assert_eq!(path.dropped, dropped, "{mbit} Mbit/s x {rtt_ms} ms");
    }
}

#[test]
fn a_short_path_is_full_from_the_first_search_on() {
    for (mbit, rtt_ms) in [(941.0, 3.3), (941.0, 4.0), (941.0, 15.0), (9410.0, 4.0)] {
        let mut path = Bottleneck::bursty(mbit, rtt_ms);
        let mut governor = Governor::default();
        while governor.state == State::Search {
            path.go(&mut governor);
        }
        let (found, mut delivered) = (path.time, 0.0);
        while path.time < found + 1.0 {
            delivered += path.go(&mut governor);
        }
        let share = delivered / (path.time - found) / path.capacity;
        assert!(share > 0.998, "{share} of {mbit} Mbit/s x {rtt_ms} ms");
    }
}

#[test]
fn what_others_leave_of_a_short_path_is_taken() {
    for rtt_ms in [3.3, 15.0] {
        let mut path = Bottleneck::bursty(941.0, rtt_ms);
        let mut governor = Governor::default();
        run(&mut path, &mut governor, 20.0, 60e6);
        let (share, _) = run(&mut path, &mut governor, 15.0, 0.0);
        assert!(share > 0.99, "{share} after others have left, {rtt_ms} ms");
    }
}

#[test]
fn a_host_that_is_always_late_is_no_queue() {
    // Half of the path's rate was taken for all of it, and packets wait for a millisecond or two in the hosts whatever is sent.
    let (rate, least) = (125e6, Duration::from_micros(200));
    let mut governor = Governor {
        state: State::Cruise { since: 0, probed: Some(0) },
        bandwidth: rate / 2.0,
        ..Governor::default()
    };
    let mut reading =
        PathReading { rtt: least + Duration::from_micros(1500), min_rtt: least, ..PathReading::default() };
    let searches = (1..1000u64).find(|tick| {
        reading.delivered += (governor.cap().unwrap_or(rate / 2.0).min(rate) * 0.02) as u64;
        governor.on_tick(tick * 20_000_000, reading);
        governor.state == State::Search
    });
    assert!(searches.is_some_and(|tick| tick < 750), "{searches:?} {}", governor.boost);
}

#[test]
fn a_rate_that_a_stall_has_made_less_comes_back_soon() {
    for (mbit, rtt_ms) in [(941.0, 3.3), (941.0, 4.0), (9410.0, 20.0)] {
        let mut path = Bottleneck::new(mbit, rtt_ms, 1.0, 0.0);
        let mut governor = Governor::default();
        run(&mut path, &mut governor, 6.0, 0.0);
        governor.bandwidth *= 0.88;
        path.burst = 0.02;
        let (begun, mut delivered) = (path.time, 0.0);
        while path.time < begun + 2.5 {
            let bytes = path.step(governor.cap(), 0.0);
            delivered += if path.time > begun + 1.5 { bytes } else { 0.0 };
            path.look(&mut governor);
        }
        let share = delivered / path.capacity;
        assert!(share > 0.99, "{share} of {mbit} Mbit/s x {rtt_ms} ms");
    }
}

#[test]
fn a_probe_does_not_outlast_a_pause() {
    let (mut probes, mut drains) = (0, [0; 2]);
    for (drains, rtt_ms) in drains.iter_mut().zip([4.0, 30.0]) {
        let mut path = Bottleneck::new(941.0, rtt_ms, 1.0, 0.0);
        let mut governor = Governor::default();
        while path.time < 30.0 {
            path.go(&mut governor);
            match governor.state {
                State::Probe { .. } => probes += 1,
                State::Drain { .. } => *drains += 1,
                _ => continue,
            }
            governor.pause((path.time * 1e9) as u64);
            let share = governor.cap().unwrap() / path.capacity;
            assert!((0.9..1.1).contains(&share), "{share} of the capacity in {:?}", governor.state);
            assert_eq!(governor.tick(), path.reading.min_rtt.max(TICK_MIN));
        }
    }
    assert!(probes > 0 && drains.iter().all(|count| *count > 0), "{probes} {drains:?}");
}

#[test]
fn a_drain_that_a_long_pause_interrupts_has_not_failed() {
    let mut path = Bottleneck::new(941.0, 30.0, 1.0, 0.0);
    let mut governor = Governor::default();
    while !matches!(governor.state, State::Drain { .. }) {
        path.go(&mut governor);
    }
    governor.pause((path.time * 1e9) as u64);
    path.time += 60.0;
    // The first packets meet somebody else's queue.
    path.reading.rtt = path.reading.min_rtt + Duration::from_millis(10);
    path.look(&mut governor);
    let share = governor.cap().expect("a cap") / path.capacity;
    assert!(share < 1.1, "{share} of the capacity in {:?}", governor.state);
}

#[test]
fn what_comes_at_once_after_a_stall_does_not_lower_the_cap() {
    let mut path = Bottleneck::new(941.0, 4.0, 1.0, 0.0);
    let mut governor = Governor::default();
    run(&mut path, &mut governor, 10.0, 0.0);
    for _ in 0..20 {
        let late = (path.step(governor.cap(), 0.0) / 4.0) as u64;
        path.reading.delivered -= late;
        path.look(&mut governor);
        path.step(governor.cap(), 0.0);
        path.reading.delivered += late;
        for _ in 0..10 {
            let cap = path.look(&mut governor).unwrap();
            let cruises = matches!(governor.state, State::Cruise { .. });
            assert!(!cruises || cap > path.capacity * 0.96, "{} of the capacity", cap / path.capacity);
            path.step(governor.cap(), 0.0);
        }
    }
}

#[test]
fn an_estimate_that_is_set_right_is_not_looked_for_anew() {
    let mut path = Bottleneck::new(941.0, 4.0, 1.0, 0.0);
    let mut governor = Governor::default();
    run(&mut path, &mut governor, 10.0, 0.0);
    // The best of some bursts was taken for the rate, and a host's stall has left a queue.
    governor.bandwidth = path.capacity * 1.025;
    path.queue += path.capacity * 0.006;
    let (mut drains, end) = (0, path.time + 2.0);
    while path.time < end {
        path.go(&mut governor);
        drains += u32::from(matches!(governor.state, State::Drain { .. }));
        let is_first = matches!(governor.state, State::Probe { gain, .. } if gain > PROBE_GAIN);
        assert!(!is_first, "{:?}", governor.state);
    }
    assert!(drains > 0 && governor.bandwidth < path.capacity * 1.01, "{drains} {}", governor.bandwidth);
}

#[test]
fn a_host_that_stalls_on_a_short_path_does_not_raise_the_cap() {
    let mut path = Bottleneck::new(941.0, 4.0, 1.0, 0.0);
    let mut governor = Governor::default();
    run(&mut path, &mut governor, 10.0, 0.0);
    for _ in 0..10 {
        path.stall(0.06, &mut governor);
        let end = path.time + 1.0;
        while path.time < end {
            path.step(governor.cap(), 0.0);
            let cap = path.look(&mut governor).unwrap();
            assert!(cap < path.capacity * 1.15, "{} of the capacity", cap / path.capacity);
        }
    }
}

#[test]
fn a_host_that_stalls_again_and_again_at_the_start_is_no_queue() {
    let mut path = Bottleneck::new(10_000.0, 300.0, 1.0, 0.0);
    let mut governor = Governor::default();
    for _ in 0..8 {
        let end = path.time + 0.3;
        while path.time < end {
            path.go(&mut governor);
        }
        path.stall(0.3, &mut governor);
        assert_eq!(governor.state, State::Search, "at {} Mbit/s", path.rate * 8e-6);
    }
    assert!(path.rate > path.capacity / 20.0);
}

#[test]
fn a_rate_that_was_probed_is_not_drained_again_and_again() {
    for rtt_ms in [20.0, 100.0, 300.0] {
        let mut path = Bottleneck::new(941.0, rtt_ms, 1.0, 0.0);
        let mut governor = Governor::default();
        run(&mut path, &mut governor, 20.0 * rtt_ms / 1e3 + 5.0, 0.0);
        let (mut draining, end) = (0.0, path.time + 60.0);
        while path.time < end {
            path.go(&mut governor);
            draining += if matches!(governor.state, State::Drain { .. }) { path.tick } else { 0.0 };
        }
        assert!(draining < 3.0, "{draining} s of 60, {rtt_ms} ms");
    }
}

#[test]
fn freed_and_lost_capacity_is_noticed() {
    let mut path = Bottleneck::new(1000.0, 100.0, 1.0, 0.0);
    let mut governor = Governor::default();
    run(&mut path, &mut governor, 20.0, 60e6);
    let (share, _) = run(&mut path, &mut governor, 40.0, 0.0);
    assert!(share > 0.9, "after others have left: {share}");
    path.dropped = 0.0;
    let (share, queue) = run(&mut path, &mut governor, 40.0, 90e6);
    assert!(share > 0.9 && queue < 0.5, "after others have come: {share}, {queue} RTT of queue");
}

#[test]
fn no_queue_no_cap() {
    // Buffers limit the rate to half of the path: nothing to govern.
    let mut governor = Governor::default();
    let mut reading = PathReading {
        rtt: Duration::from_millis(201),
        min_rtt: Duration::from_millis(200),
        ..PathReading::default()
    };
    for tick in 1..600u64 {
        reading.delivered += 50_000_000;
        assert_eq!(governor.on_tick(tick * 100_000_000, reading), None);
    }
}

#[test]
fn what_a_lane_cannot_use_others_get() {
    assert_eq!(share(100.0, vec![50.0, 50.0, 50.0, 50.0]), 25.0);
    assert_eq!(share(100.0, vec![f64::INFINITY, 10.0, 10.0, 50.0]), 40.0);
    assert_eq!(share(100.0, vec![f64::INFINITY, 1.0, 1.0, 1.0]), 50.0, "twice an even share");
    assert_eq!(share(100.0, vec![5.0, 5.0]), 100.0);
    assert_eq!(share(100.0, vec![]), 100.0);
}

proptest! {
    #[test]
    fn lanes_together_send_what_they_may(cap in 1.0f64..1e10, able in prop::collection::vec(0.0f64..1e9, 1..100)) {
        let (each, most) = (share(cap, able.clone()), 2.0 * cap / able.len().max(2) as f64);
        let sum: f64 = able.iter().map(|able| able.min(each)).sum();
        let could = able.iter().map(|able| able.min(most)).sum::<f64>().min(cap);
        prop_assert!(sum > could * 0.999_999 && sum < cap * 1.000_001, "{sum} of {could}, {each} each");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn paths_are_used_with_little_queue(
        mbit in 10.0f64..20_000.0, rtt_ms in 2.0f64..400.0, queue_bdp in 0.5f64..4.0, loss in 0.0f64..0.05,
    ) {
        let mut path = Bottleneck::new(mbit, rtt_ms, queue_bdp, loss);
        let (share, queue) = run(&mut path, &mut Governor::default(), 60.0, 0.0);
        prop_assert!(share > 0.9, "{share} of the capacity");
        // Short paths: the queue counts from where it can be told from the hosts' own delays.
        prop_assert!(queue * rtt_ms < (0.35 * rtt_ms).max(3.5), "{queue} RTT of queue");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_link_that_was_down_is_used_again(
        mbit in 10.0f64..10_000.0, rtt_ms in 2.0f64..400.0, up_s in 0.3f64..15.0, down_s in 0.5f64..30.0,
        standing in any::<bool>(), pause in any::<bool>(),
    ) {
        let mut path = Bottleneck::new(mbit, rtt_ms, 1.0, 0.0);
        let mut governor = Governor::default();
        run(&mut path, &mut governor, up_s, 0.0);
        // Nothing comes through, and the last round-trip times stay as they were.
        path.reading.rtt = Duration::from_secs_f64(path.rtt * if standing { 1.5 } else { 1.0 } + 0.004);
        let end = path.time + down_s;
        while path.time < end {
            path.time += path.tick;
            path.look(&mut governor);
        }
        if pause {
            governor.pause((path.time * 1e9) as u64);
        }
        (path.queue, path.rate) = (0.0, 146e3 / path.rtt);
        let (share, _) = run(&mut path, &mut governor, 60.0, 0.0);
        prop_assert!(share > 0.9, "{share} of the capacity");
    }
}

#[test]
fn a_search_that_ends_without_a_queue_leaves_bbr_before_it_looks_for_its_minimum() {
    // Buffers hold the lanes at 5 Gbit/s on a path of 10.
    let mut governor = Governor::default();
    let mut reading = PathReading {
        rtt: Duration::from_millis(200),
        min_rtt: Duration::from_millis(200),
        ..PathReading::default()
    };
    let mut rate = 1e6;
    for tick in 1..=90u64 {
        rate = f64::min(rate * 1.4, 625e6);
        reading.delivered += (rate / 10.0) as u64;
        assert_eq!(governor.on_tick(tick * 100_000_000, reading), None);
        assert!(tick > 40 || governor.wants_bbr(), "BBR while the rate rises");
    }
    assert!(!governor.wants_bbr());
    // A lost packet that no queue explains: BBR is the one for it.
    reading.delivered += 62_500_000;
    reading.retransmitted += 1500;
    governor.on_tick(91 * 100_000_000, reading);
    assert!(governor.wants_bbr());
}

#[test]
fn a_first_transfer_after_a_long_pause_searches_with_bbr() {
    let mut governor = Governor::default();
    governor.pause(0);
    let mut reading = PathReading {
        rtt: Duration::from_millis(200),
        min_rtt: Duration::from_millis(200),
        ..PathReading::default()
    };
    let mut rate = 1e6;
    for tick in 1..=30u64 {
        rate *= 1.2;
        reading.delivered += (rate / 10.0) as u64;
        governor.on_tick(60_000_000_000 + tick * 100_000_000, reading);
        assert!(governor.wants_bbr(), "{tick}");
    }
}

#[test]
fn after_a_pause_no_more_is_sent_than_the_path_carries() {
    for rtt_ms in [3.3, 50.0, 200.0] {
        let mut path = Bottleneck::new(941.0, rtt_ms, 1.0, 0.0);
        let mut governor = Governor::default();
        run(&mut path, &mut governor, 20.0, 0.0);
        governor.pause((path.time * 1e9) as u64);
        (path.time, path.queue, path.rate) = (path.time + 1.0, 0.0, 146e3 / path.rtt);
        let (mut cap, end) = (governor.cap(), path.time + 12.0 * path.rtt.max(0.02));
        while path.time < end {
            let most = cap.unwrap() / path.capacity;
            assert!(most < 1.12, "{most} of what the path carries, {rtt_ms} ms");
            path.step(cap, 0.0);
            cap = path.look(&mut governor);
        }
    }
}

#[test]
fn what_a_search_of_a_short_path_loses_is_not_lost_at_random() {
    const RATE: f64 = 117e6;
    let least = Duration::from_micros(3300);
    let (mut governor, mut time) = (Governor::default(), 0);
    let mut reading = PathReading { rtt: least, min_rtt: least, ..PathReading::default() };
    let mut look = |governor: &mut Governor, share: f64, queue_ms, lost| {
        time += 20_000_000;
        reading.delivered += (RATE * 0.02 * share) as u64;
        reading.retransmitted += lost;
        reading.rtt = least + Duration::from_millis(queue_ms);
        governor.on_tick(time, reading);
    };
    // The queue is full and empty again between two looks, and then it stands.
    [0.1, 0.5, 1.0].into_iter().for_each(|share| look(&mut governor, share, 0, 500_000));
    (0..5).for_each(|_| look(&mut governor, 1.0, 4, 500_000));
    (0..50).for_each(|_| look(&mut governor, 0.985, 0, 0));
    assert!(governor.bandwidth().is_some() && !governor.wants_bbr());
    // Packets are lost without a queue, and the lanes get less through.
    let tells = (1..50).find(|_| {
        look(&mut governor, 0.8, 0, 15_000);
        governor.wants_bbr()
    });
    assert!(tells.is_some());
}
