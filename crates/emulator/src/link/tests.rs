use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;
use crate::delay::{Jitter, Shape};
use crate::dice::Probability;
use crate::loss::LossModel;
use crate::outage::Outage;
use crate::packet::{FlowKey, Train};
use crate::trace::Step;

const MS: u64 = 1_000_000;

fn train(flow: u16, segments: u32) -> Train {
    Train {
        flow: FlowKey::for_test(flow),
        segments,
        header_bytes: 52,
        segment_bytes: 1448,
        last_bytes: 1448,
        traffic_class: if flow.is_multiple_of(2) { 2 } else { 0 },
    }
}

fn p(p: f64) -> Probability {
    Probability::try_from(p).unwrap()
}

fn link(config: LinkConfig) -> Link<u32> {
    Link::new(config, Dice::new(1, 0))
}

fn offer(link: &mut Link<u32>, now: Nanos, train: &Train) -> Vec<Run> {
    let mut out = Outcome::default();
    link.offer(now, train, 0, &mut out);
    out.runs.into_iter().map(|(_, run)| run).collect()
}

fn set(link: &mut Link<u32>, config: LinkConfig) {
    link.set(0, config, &mut Outcome::default());
}

#[test]
fn a_delay_alone_carries_the_packet_whole() {
    let mut link = link(LinkConfig::with_delay(Duration::from_millis(100)));
    let runs = offer(&mut link, 5, &train(1, 45));
    assert_eq!(runs, [Run { first: 0, count: 45, deliver_at: 100 * MS + 5, corrupt: None, mark: false }]);
}

#[test]
fn a_link_that_becomes_much_faster_keeps_its_count_of_what_waits() {
    const WIRE_BYTES: u64 = 1448 + 52 + 38;
    let rate = |rate_bps| LinkConfig {
        rate_bps: Some(rate_bps),
        queue_bytes: Some(100 * WIRE_BYTES),
        ..LinkConfig::default()
    };
    for rates in [[2, u64::MAX], [1_000_000, 100_000_000], [100_000_000, 1_000_000]] {
        let mut link = link(rate(rates[0]));
        offer(&mut link, 0, &train(1, 45));
        let waits = link.queued_bytes(0);
        assert!(waits.abs_diff(45 * WIRE_BYTES) <= 1, "{waits}");
        set(&mut link, rate(rates[1]));
        assert!(link.queued_bytes(0).abs_diff(waits) <= 1, "{rates:?}: {}", link.queued_bytes(0));
        // There is room for 55 more, whatever the rates.
        offer(&mut link, 0, &train(1, 45));
        offer(&mut link, 0, &train(1, 45));
        let counters = link.counters();
        assert!(counters.dropped_queue.abs_diff(35) <= 1, "{rates:?}: {counters:?}");
    }
}

#[test]
fn what_flows_leave_unused_of_the_wire_is_counted() {
    let rate = LinkConfig { rate_bps: Some(1_000_000_000), ..LinkConfig::default() };
    let mut link = link(rate);
    // 45 packets take 554 us each time: the second train waits, the third comes 446 us late, and the last begins something else.
    for (at, idle_us) in [(1000 * MS, 0), (1000 * MS, 0), (1000 * MS + 1_553_616, 446), (1500 * MS, 446)] {
        offer(&mut link, at, &train(1, 45));
        assert!(link.counters().idle_ns.abs_diff(idle_us * 1000) < 1000, "{:?}", link.counters());
    }
}

#[test]
fn a_gigabit_carries_941_megabits_of_tcp_payload() {
    let mut link = link(LinkConfig { rate_bps: Some(1_000_000_000), ..LinkConfig::default() });
    let mut last = 0;
    let packets = 2_000u64;
    for _ in 0..packets {
        last = offer(&mut link, 0, &train(1, 45)).last().unwrap().deliver_at;
    }
    let payload_bits = packets * 45 * 1448 * 8;
    let rate = payload_bits as f64 / (last as f64 / 1e9);
    assert!((rate / 1e6 - 941.5).abs() < 0.1, "{rate}");
}

#[test]
fn a_day_of_full_rate_does_not_drift() {
    let mut link = link(LinkConfig { rate_bps: Some(10_000_000_000), ..LinkConfig::default() });
    // 1538 bytes at 10 Gbit/s are 1230.4 ns. A second of them stands for the day: the error adds up evenly.
    let end = offer(&mut link, 0, &train(1, 812_744)).last().unwrap().deliver_at;
    let drift_per_day = u128::from(end).abs_diff(812_744 * 12_304 / 10) * 86_400;
    assert!(drift_per_day < u128::from(MS), "{drift_per_day} ns a day");
}

#[test]
fn a_whole_day_does_not_drift() {
    // A full packet takes 20 ms, at one rate or at two that change by the second.
    let step =
        |at, rate_bps| Step { at: Duration::from_secs(at), rate_bps: Some(rate_bps), ..Step::default() };
    let trace = Trace::new(vec![step(0, 1_000_000), step(1, 230_400)], Some(Duration::from_secs(2))).unwrap();
    let rate = LinkConfig { rate_bps: Some(615_200), ..LinkConfig::default() };
    for config in [rate, LinkConfig { trace: Some(trace), ..LinkConfig::default() }] {
        let mut link = link(config);
        let (day, mut last) = (86_400_000 * MS, 0);
        for second in (0..86_400).step_by(2) {
            last = offer(&mut link, second * 1000 * MS, &train(1, 100)).last().unwrap().deliver_at;
        }
        assert!(last.abs_diff(day) < 1000, "{} ns", day.abs_diff(last));
    }
}

#[test]
fn a_slow_link_delivers_in_parts_of_a_millisecond() {
    let mut link = link(LinkConfig { rate_bps: Some(100_000_000), ..LinkConfig::default() });
    let runs = offer(&mut link, 0, &train(1, 45));
    // 1538 bytes take 123 us: eight of them stay below 1 ms.
    assert_eq!(runs.iter().map(|r| r.count).collect::<Vec<_>>(), [8, 8, 8, 8, 8, 5]);
}

#[test]
fn a_full_queue_drops_the_tail_and_an_idle_link_takes_any_packet() {
    let config =
        LinkConfig { rate_bps: Some(1_000_000_000), queue_bytes: Some(15_380), ..LinkConfig::default() };
    let mut link = link(config.clone());
    let runs = offer(&mut link, 0, &train(1, 45));
    assert_eq!((runs.len(), runs[0].count), (1, 10));
    assert_eq!(link.counters().dropped_queue, 35);
    assert_eq!(link.queued_bytes(0), 15_380);
    // One packet's time later there is room for one.
    assert_eq!(offer(&mut link, 12_305, &train(1, 2)).iter().map(|r| r.count).sum::<u32>(), 1);
    let mut tiny = self::link(LinkConfig { queue_bytes: Some(1), ..config });
    assert_eq!(offer(&mut tiny, 0, &train(1, 3)).iter().map(|r| r.count).sum::<u32>(), 1);
}

#[test]
fn a_policer_drops_what_is_above_its_rate_and_holds_nothing_up() {
    let mut link = link(LinkConfig {
        rate_bps: Some(1_000_000_000),
        queue_bytes: Some(15_380),
        aqm: Some(Aqm::Policer),
        delay: Duration::from_millis(5),
        ..LinkConfig::default()
    });
    let runs = offer(&mut link, 0, &train(1, 45));
    assert_eq!((runs.len(), runs[0].count, runs[0].deliver_at), (1, 10, 5 * MS), "a burst passes at once");
    assert_eq!(link.counters().dropped_queue, 35);
    // A full packet takes 12.304 us; so many come in half of that, and as many as there is room for pass.
    let passed: u32 = (1..=2000u64)
        .map(|number| {
            let now = number * 6_152;
            let runs = offer(&mut link, now, &train(1, 1));
            assert!(runs.iter().all(|run| run.deliver_at == now + 5 * MS));
            runs.iter().map(|run| run.count).sum::<u32>()
        })
        .sum();
    assert!((999..=1001).contains(&passed), "{passed} of 2000 at twice the rate");
}

#[test]
fn losses_hit_single_segments_and_repeat_with_the_seed() {
    let config = LinkConfig { loss: LossModel::Random(p(0.01)), ..LinkConfig::default() };
    let losses = |batch: u32, spacing: u64| {
        let mut link = link(config.clone());
        let (mut arrived, mut next) = (Vec::new(), 0);
        for i in 0..(90_000 / batch) {
            for run in offer(&mut link, u64::from(i) * spacing, &train(7, batch)) {
                arrived.extend(next + run.first..next + run.first + run.count);
            }
            next += batch;
        }
        (arrived, link.counters().lost)
    };
    // The same packets as GSO frames of 45, singly, and at another pace: the same ones are lost.
    let (whole, lost) = losses(45, 0);
    assert_eq!(whole, losses(1, 77).0);
    assert!((lost as f64 - 900.0).abs() < 2.576 * 900f64.sqrt(), "{lost}");
}

#[test]
fn a_lower_delay_does_not_let_packets_overtake() {
    let mut link = link(LinkConfig::with_delay(Duration::from_millis(100)));
    let before = offer(&mut link, 0, &train(1, 1))[0].deliver_at;
    set(&mut link, LinkConfig::with_delay(Duration::from_millis(1)));
    assert!(offer(&mut link, 10, &train(1, 1))[0].deliver_at >= before);
    assert_eq!(offer(&mut link, 200 * MS, &train(1, 1))[0].deliver_at, 201 * MS);
}

/// How many of `n` events of probability `p` there are, within the 99 % confidence interval.
fn is_about(found: u64, p: f64, n: u64) -> bool {
    let (expected, sigma) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
    (found as f64 - expected).abs() < 2.576 * sigma
}

/// Everything that may happen to a segment.
fn rough(overtakes: bool) -> LinkConfig {
    LinkConfig {
        delay: Duration::from_millis(50),
        jitter: Some(Jitter {
            spread: Duration::from_millis(5),
            shape: Shape::Normal,
            correlation: p(0.3),
            overtakes,
        }),
        loss: LossModel::GilbertElliott { fail: p(0.001), recover: p(0.2), bad: p(0.7), good: p(0.0001) },
        corrupt: p(0.002),
        duplicate: p(0.01),
        reorder: Some(Reorder { probability: p(0.25), gap: NonZeroU64::new(5).unwrap() }),
        ..LinkConfig::default()
    }
}

#[test]
fn events_are_as_frequent_as_asked_for_in_gso_packets_too() {
    for segments in [1, 45] {
        let mut link = link(rough(true));
        let (n, mut out) = (1_080_000, Outcome::default());
        for i in 0..n / u64::from(segments) {
            link.offer(i * 1000, &train(1, segments), i as u32, &mut out);
        }
        let c = link.counters();
        assert_eq!((c.segments, c.lost + c.delivered), (n, n));
        assert!(is_about(c.corrupted, 0.002, c.delivered), "{c:?}");
        assert!(is_about(c.duplicated, 0.01, c.delivered), "{c:?}");
        // Of the fifths that are not lost.
        assert!(is_about(c.reordered, 0.25 / 5.0, c.delivered), "{c:?}");
        let arrived: u64 = out.runs.iter().map(|(_, run)| u64::from(run.count)).sum();
        assert_eq!(arrived, c.delivered + c.duplicated);
    }
}

#[test]
fn fates_do_not_depend_on_timing_or_on_other_flows() {
    let fates = |segments: u32, spacing: u64, others: bool| {
        let mut link = link(rough(true));
        let (mut fates, mut next) = (Vec::new(), 0);
        offer(&mut link, 0, &train(1, 1)); // the first flow of both
        for i in 0..90_000 / segments {
            let now = u64::from(i) * spacing;
            if others {
                offer(&mut link, now, &train(8 + i as u16 % 100, 3));
            }
            for run in offer(&mut link, now, &train(1, segments)) {
                let first = next + run.first;
                fates.extend((first..first + run.count).map(|n| (n, run.deliver_at - now, run.corrupt)));
            }
            next += segments;
        }
        fates
    };
    assert_eq!(fates(45, 0, false), fates(1, 7_777, true));
}

#[test]
fn what_kernels_say_among_themselves_shifts_nothing() {
    let lost = |kernels: bool| {
        let mut link = link(LinkConfig { loss: LossModel::Random(p(0.05)), ..LinkConfig::default() });
        let address = |last: u16| std::net::IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, last]);
        let mut lost = Vec::new();
        for i in 0..2000 {
            if kernels && i % 7 == 0 {
                const ICMPV6: u8 = 58;
                let flow = FlowKey::new(address(1), address(i), ICMPV6, (0, 0));
                offer(&mut link, 0, &Train { flow, ..train(0, 1) });
            }
            if offer(&mut link, 0, &train(1 + i % 3, 1)).is_empty() {
                lost.push(i);
            }
        }
        lost
    };
    assert!(lost(false).len() > 50);
    assert_eq!(lost(false), lost(true));
}

#[test]
fn jitter_keeps_the_order_unless_it_may_not() {
    let jitter = |overtakes| LinkConfig {
        delay: Duration::from_millis(10),
        jitter: Some(Jitter {
            spread: Duration::from_millis(2),
            shape: Shape::Uniform,
            correlation: Probability::ZERO,
            overtakes,
        }),
        ..LinkConfig::default()
    };
    let delays = |overtakes, spacing: u64| {
        let mut link = link(jitter(overtakes));
        let arrival = |i: u64| offer(&mut link, i * spacing, &train(1, 1))[0].deliver_at;
        (0..50_000u64).map(arrival).collect::<Vec<u64>>()
    };
    assert!(delays(false, 10_000).is_sorted());
    assert!(!delays(true, 10_000).is_sorted());
    // Far enough apart they cannot meet, and the distribution is the same.
    assert_eq!(delays(false, 5 * MS), delays(true, 5 * MS));
    let late = (0u64..).zip(delays(false, 5 * MS)).map(|(i, at)| at - i * 5 * MS);
    let mean = late.clone().sum::<u64>() as f64 / 50_000.0;
    assert!((mean / 1e6 - 10.0).abs() < 0.02, "{mean}");
    assert!(late.clone().min() < Some(8_010_000) && late.max() > Some(11_990_000));
}

#[test]
fn an_outage_lets_nothing_through() {
    let outage = Outage { at: Duration::from_secs(1), lasts: Duration::from_millis(200), every: None };
    let mut link = link(LinkConfig { outage: Some(outage), ..LinkConfig::default() });
    let got: Vec<u64> =
        (0..200).filter(|i| !offer(&mut link, i * 10 * MS, &train(1, 2)).is_empty()).collect();
    assert_eq!(got, (0..100).chain(120..200).collect::<Vec<u64>>());
    assert_eq!(link.counters().lost_outage, 40);
}

#[test]
fn a_managed_queue_drops_or_marks() {
    let codel =
        |ecn| Aqm::CoDel { target: Duration::from_millis(5), interval: Duration::from_millis(100), ecn };
    let drd = |ecn| Aqm::Drd { min: 50, max: NonZeroU64::new(100).unwrap(), ecn };
    for aqm in [codel(false), codel(true), drd(false), drd(true)] {
        for flow in [1, 2] {
            let mut link =
                link(LinkConfig { rate_bps: Some(100_000_000), aqm: Some(aqm), ..LinkConfig::default() });
            let mut out = Outcome::default();
            // 123 us each on the wire, one every 100.
            (0..100_000u64).for_each(|i| link.offer(i * 100_000, &train(flow, 1), i as u32, &mut out));
            let c = link.counters();
            let marks = out.runs.iter().filter(|(_, run)| run.mark).count() as u64;
            assert_eq!((c.marked, c.delivered + c.dropped_aqm), (marks, c.segments));
            // The second flow understands marks.
            let wants_mark = aqm.marks() && flow == 2;
            assert_eq!((c.marked > 1000, c.dropped_aqm > 1000), (wants_mark, !wants_mark), "{aqm:?} {c:?}");
        }
    }
    let mut idle =
        link(LinkConfig { rate_bps: Some(100_000_000), aqm: Some(drd(false)), ..LinkConfig::default() });
    assert_eq!(
        offer(&mut idle, 0, &train(1, 50)).iter().map(|r| r.count).sum::<u32>(),
        50,
        "none below the minimum"
    );
}

#[test]
fn a_queue_may_count_packets() {
    let mut link = link(LinkConfig {
        rate_bps: Some(1_000_000_000),
        queue_packets: NonZeroU64::new(10),
        ..LinkConfig::default()
    });
    assert_eq!(offer(&mut link, 0, &train(1, 45)).iter().map(|r| r.count).sum::<u32>(), 10);
    assert_eq!(link.counters().dropped_queue, 35);
    // One has left, and a second one has not quite.
    assert_eq!(offer(&mut link, 24_000, &train(1, 3)).iter().map(|r| r.count).sum::<u32>(), 1);
    assert_eq!(offer(&mut link, 10 * MS, &train(1, 12)).iter().map(|r| r.count).sum::<u32>(), 10);
}

#[test]
fn flows_with_queues_of_their_own_do_not_wait_for_each_other() {
    let ms = Duration::from_millis;
    let longest_wait = |aqm| {
        let config = LinkConfig { rate_bps: Some(100_000_000), aqm, ..LinkConfig::default() };
        let (mut link, mut came, mut longest) = (link(config), Vec::new(), 0);
        let mut sent = [0u64; 3];
        // Two flows, one twice as eager, bring 1.8 times what the wire carries; a third brings a packet each 10 ms.
        for i in 0..100_000u64 {
            let now = i * 67_000;
            let flow = if i.is_multiple_of(150) { 5 } else { 1 + u16::from(i.is_multiple_of(3)) * 2 };
            let mut out = Outcome::default();
            came.push((now, flow));
            link.offer(now, &train(flow, 1), i as u32, &mut out);
            for (packet, run) in out.runs {
                let (came, flow) = came[packet as usize];
                sent[usize::from(flow / 2)] += 1;
                if flow == 5 {
                    longest = longest.max(run.deliver_at - came);
                }
            }
        }
        (longest, sent)
    };
    let (apart, shares) = longest_wait(Some(Aqm::FqCoDel { target: ms(5), interval: ms(100), ecn: false }));
    let (together, _) = longest_wait(None);
    // Two packets' time, and more than a second.
    assert!(apart < 300_000 && together > 1000 * MS, "{apart} {together}");
    assert!(shares[0].abs_diff(shares[1]) < shares[0] / 50, "{shares:?}");
}

#[test]
fn a_trace_is_followed_to_the_bit() {
    let ms = Duration::from_millis;
    let step = |at, rate_bps| Step { at: ms(at), rate_bps: Some(rate_bps), ..Step::default() };
    let steps = vec![step(0, 12_304_000), step(10, 0), step(30, 24_608_000)];
    let trace = Trace::new(steps, Some(ms(40))).unwrap();
    let mut link = link(LinkConfig { trace: Some(trace), ..LinkConfig::default() });
    // At 12.304 Mbit/s a packet takes a millisecond.
    let at: Vec<u64> = (0..60).map(|_| offer(&mut link, 0, &train(1, 1))[0].deliver_at).collect();
    let expected = |packet: u64| {
        let (cycle, packet) = (packet / 30, packet % 30);
        cycle * 40 * MS + if packet < 10 { (packet + 1) * MS } else { 30 * MS + (packet - 9) * MS / 2 }
    };
    for (packet, at) in (0..).zip(at) {
        assert!(at.abs_diff(expected(packet)) <= 2, "packet {packet}: {at}");
    }
    assert_eq!(link.queued_bytes(75 * MS), 10 * 1538);
    // Half of it at one rate, half after the pause.
    assert_eq!(offer(&mut link, 89 * MS + MS / 2, &train(1, 1))[0].deliver_at, 110 * MS + MS / 4);
}

#[test]
fn a_trace_may_change_delay_and_loss() {
    let ms = Duration::from_millis;
    let calm = Step { delay: Some(ms(5)), ..Step::default() };
    let storm = Step { at: ms(10), delay: Some(ms(50)), loss: Some(p(1.0)), rate_bps: None };
    let trace = Trace::new(vec![calm, storm, Step { at: ms(20), ..Step::default() }], None).unwrap();
    let mut link = link(LinkConfig { trace: Some(trace), ..LinkConfig::with_delay(ms(20)) });
    let mut arrives = |at| offer(&mut link, at * MS, &train(1, 1)).first().map(|run| run.deliver_at / MS);
    assert_eq!([0, 9, 10, 19, 20].map(&mut arrives), [Some(5), Some(14), None, None, Some(40)]);
}

#[test]
fn a_fair_queue_that_is_switched_off_sends_what_it_holds() {
    let aqm =
        Aqm::FqCoDel { target: Duration::from_millis(5), interval: Duration::from_millis(100), ecn: false };
    let config = LinkConfig { rate_bps: Some(100_000_000), aqm: Some(aqm), ..LinkConfig::default() };
    let mut link = link(config.clone());
    let mut out = Outcome::default();
    link.offer(0, &train(1, 45), 7, &mut out);
    assert_eq!((out.gone.len(), link.queued_bytes(0)), (1, 45 * 1538));
    assert_eq!(link.due(), Some(123_041));
    link.set(0, LinkConfig { aqm: None, ..config }, &mut out);
    assert_eq!((out.gone.len(), link.counters().delivered, link.due()), (45, 45, None));
    assert_eq!(out.runs.last().unwrap().1.deliver_at, 45 * 123_040);
}

/// The slow, obvious model: a list of the departure times of what waits.
struct Reference {
    byte_ns: f64,
    queue_max: u64,
    departures: Vec<(f64, u64)>,
}

impl Reference {
    fn offer(&mut self, now: Nanos, wire_bytes: u64) -> Option<f64> {
        let now = now as f64;
        let begins = self.departures.last().map_or(now, |last| last.0.max(now));
        let waiting = (begins - now) / self.byte_ns;
        if waiting + wire_bytes as f64 > (self.queue_max.max(wire_bytes)) as f64 + 1.0 {
            return None;
        }
        self.departures.push((begins + wire_bytes as f64 * self.byte_ns, wire_bytes));
        self.departures.last().map(|last| last.0)
    }
}

proptest! {
    #[test]
    fn queue_and_rate_follow_the_obvious_model(
        rate_mbit in 1u64..20_000,
        queue_kib in 1u64..2_000,
        packets in prop::collection::vec((0u64..400_000, 1u32..45), 1..200),
    ) {
        let rate = rate_mbit * 1_000_000;
        let mut link = link(LinkConfig {
            rate_bps: Some(rate), queue_bytes: Some(queue_kib * 1024), ..LinkConfig::default()
        });
        let mut reference =
            Reference { byte_ns: 8e9 / rate as f64, queue_max: queue_kib * 1024, departures: Vec::new() };
        let mut now = 0;
        for (gap, segments) in packets {
            now += gap;
            let runs = offer(&mut link, now, &train(1, segments));
            let expected: Vec<f64> = (0..segments).filter_map(|_| reference.offer(now, 1538)).collect();
            let got: u32 = runs.iter().map(|r| r.count).sum();
            // Byte rounding of the queue may admit one segment more or less; then the models part, so stop.
            if u64::from(got).abs_diff(expected.len() as u64) == 1 { return Ok(()); }
            prop_assert_eq!(got as usize, expected.len());
            if let (Some(run), Some(at)) = (runs.last(), expected.last()) {
                prop_assert!((run.deliver_at as f64 - at).abs() < 1000.0, "{} {}", run.deliver_at, at);
            }
        }
    }

    #[test]
    fn every_segment_has_one_fate_whatever_the_link_does_and_becomes(
        packets in prop::collection::vec((0u64..3_000_000, 1u32..45, 0u16..4, 0u8..9), 1..150),
        overtakes in any::<bool>(), ecn in any::<bool>(),
    ) {
        let ms = Duration::from_millis;
        let shaped = LinkConfig { rate_bps: Some(50_000_000), queue_bytes: Some(200_000), ..rough(overtakes) };
        let step = |at, rate_bps| Step { at: ms(at), rate_bps: Some(rate_bps), delay: Some(ms(at)), loss: None };
        let trace = Trace::new(vec![step(0, 90_000_000), step(7, 0), step(9, 10_000_000)], Some(ms(20))).unwrap();
        let fair = Aqm::FqCoDel { target: ms(5), interval: ms(20), ecn };
        let configs = [
            LinkConfig { aqm: Some(Aqm::CoDel { target: ms(5), interval: ms(20), ecn }), ..shaped.clone() },
            LinkConfig { aqm: Some(Aqm::Drd { min: 5, max: NonZeroU64::new(50).unwrap(), ecn }), ..shaped.clone() },
            LinkConfig { queue_packets: NonZeroU64::new(30), queue_bytes: None, ..shaped.clone() },
            LinkConfig { trace: Some(trace.clone()), ..shaped.clone() },
            LinkConfig { aqm: Some(fair), ..shaped.clone() },
            LinkConfig { aqm: Some(fair), trace: Some(trace), ..shaped.clone() },
            LinkConfig { outage: Some(Outage { at: ms(5), lasts: ms(3), every: Some(ms(10)) }), ..shaped },
            LinkConfig::with_delay(ms(1)),
            rough(!overtakes),
        ];
        let mut link = link(configs[0].clone());
        let (mut now, mut arrived, mut marked) = (0, 0, 0);
        let mut sizes = Vec::new();
        // What waits in the link itself, of each packet.
        let mut waits: Vec<u32> = Vec::new();
        for (gap, segments, flow, config) in packets {
            now += gap;
            let mut out = Outcome::default();
            let was_fair = link.is_fair();
            link.set(now, configs[usize::from(config)].clone(), &mut out);
            sizes.push(segments);
            waits.push(if link.is_fair() { segments } else { 0 });
            link.offer(now, &train(flow, segments), sizes.len() as u32 - 1, &mut out);
            for packet in out.gone {
                prop_assert!(waits[packet as usize] > 0);
                waits[packet as usize] -= 1;
            }
            for (packet, run) in out.runs {
                prop_assert!(run.count > 0 && run.first + run.count <= sizes[packet as usize]);
                prop_assert!(run.corrupt.is_none() || run.count == 1);
                // Nobody has asked fair queues for what was due meanwhile.
                prop_assert!(was_fair || link.is_fair() || run.deliver_at >= now);
                arrived += u64::from(run.count);
                marked += if run.mark { u64::from(run.count) } else { 0 };
            }
        }
        let mut out = Outcome::default();
        link.set(now, LinkConfig::default(), &mut out);
        out.gone.iter().for_each(|packet| waits[*packet as usize] -= 1);
        prop_assert!(waits.iter().all(|waiting| *waiting == 0), "{:?}", waits);
        arrived += out.runs.iter().map(|(_, run)| u64::from(run.count)).sum::<u64>();
        let c = link.counters();
        prop_assert_eq!(c.segments, c.dropped_queue + c.dropped_aqm + c.lost + c.lost_outage + c.delivered);
        prop_assert_eq!(arrived, c.delivered + c.duplicated);
        // Of those that are marked some are lost, and some arrive twice.
        prop_assert!(marked <= c.marked * 2);
    }

    #[test]
    fn every_segment_has_one_fate_and_order_is_kept(
        loss in 0.0f64..0.5, corrupt in 0.0f64..0.5,
        packets in prop::collection::vec((0u64..1_000_000, 1u32..45, 0u16..3), 1..100),
    ) {
        let mut link = link(LinkConfig {
            delay: Duration::from_millis(3),
            rate_bps: Some(1_000_000_000),
            queue_bytes: Some(100_000),
            loss: LossModel::Random(p(loss)),
            corrupt: p(corrupt),
            ..LinkConfig::default()
        });
        let (mut now, mut last) = (0, 0);
        for (gap, segments, flow) in packets {
            now += gap;
            let mut next = 0;
            for run in offer(&mut link, now, &train(flow, segments)) {
                prop_assert!(run.first >= next && run.count > 0 && run.first + run.count <= segments);
                prop_assert!(run.corrupt.is_none() || run.count == 1);
                prop_assert!(run.deliver_at >= last && run.deliver_at >= now + 3 * MS);
                next = run.first + run.count;
                last = run.deliver_at;
            }
        }
        let c = link.counters();
        prop_assert_eq!(c.segments, c.dropped_queue + c.lost + c.delivered);
    }
}
