//! What is measured in each case, and what shall come out.

use std::path::Path;

use clap::ValueEnum;
use longhaul_report::LeftOut;
use longhaul_report::emulator::Finding;
use longhaul_report::targets::Target;

use super::stage::{Buffers, Observed, Traffic};
use super::theory::{UDP_PAYLOAD_BYTES, interval_99, mathis_bps, quantile, tcp_share, udp_share, window_bps};
use super::traffic::{Amount, Load, Pings};
use crate::link::Counters;

/// A property of the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Name {
    /// How much traffic it carries at RTT 200 ms, and what it takes of the machine
    Capacity,
    /// Round trips beside the configured ones, idle and loaded
    Delay,
    /// Payload beside what the configured rate carries
    Rate,
    /// Losses, duplicates, reordered and corrupted packets beside their chances
    Counts,
    /// A TCP stream under random loss beside the Mathis rate
    Mathis,
    /// A TCP stream that its window limits: UsadaFox's table again
    Window,
    /// Many TCP streams at RTT 300 ms: ICEPP's table again
    Icepp,
}

/// An experiment: one kind of traffic over one link.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    pub(super) what: String,
    pub(super) over: Over,
    pub(super) buffers: Buffers,
    pub(super) traffic: Traffic,
    pub(super) judge: Judge,
    /// Made also when little time is to be taken.
    quick: bool,
}

/// What is between the hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// By options of `longhaul emulate up`.
    Link(Vec<String>),
    /// Mahimahi's mm-delay, with this delay each way.
    MmDelay { one_way_ms: u32 },
}

/// A window of ~340 MB: 13 Gbit/s at 200 ms.
const RAISED: Buffers = Buffers::Raised(512 << 20);
const RAISED_TWICE: Buffers = Buffers::Raised(1 << 30);

/// How what was seen becomes figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Judge {
    /// Gbit/s, this or more, and the CPU time that they take.
    Capacity { at_least: Option<f64> },
    /// Pings beside a round-trip time in milliseconds.
    Delay { rtt_ms: f64 },
    /// Payload beside this many bits per second; of UDP, as it comes to the host.
    Rate { bps: f64, udp: bool },
    /// How many of a sender's packets meet with an effect, each with this chance.
    Count { effect: Effect, share: f64 },
    /// What the emulator says it has delivered, beside what has arrived.
    Arrived,
    /// One stream that loses this share.
    Mathis { rtt_seconds: f64, loss: f64 },
    /// One stream beside its window; and what was published, in Mbit/s.
    Window { rtt_seconds: f64, wire_bps: f64, published_mbit_s: f64 },
    /// Streams beside what was published, in Mbit/s.
    Published { rtt_seconds: f64, wire_bps: f64, mbit_s: f64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Loss,
    Duplication,
    Reordering,
    Corruption,
}

impl Experiment {
    fn new(what: &str, link: &str, traffic: Traffic, judge: Judge) -> Self {
        let over = Over::Link(link.split(' ').map(str::to_owned).collect());
        Self { what: what.to_owned(), over, buffers: Buffers::Default, traffic, judge, quick: false }
    }

    fn with(self, buffers: Buffers) -> Self {
        Self { buffers, ..self }
    }

    fn also_quick(self) -> Self {
        Self { quick: true, ..self }
    }
}

/// A load that is looked at from its middle on.
fn load(load: Load) -> Traffic {
    Traffic { load: Some(load), ..Traffic::default() }
}

impl Name {
    /// As on the command line.
    pub(super) fn as_written(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// For the record.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Capacity => {
                "From near to far, both ends of iperf3 and the link on this machine; mean over the second half of the run. \
                 `raised`: tcp_rmem and tcp_wmem of both hosts up to 512 MiB, of which the kernel gives the window about two \
                 thirds; `raised twice`: up to 1 GiB. A loss holds the receiver's window up for two round trips, until what \
                 was sent again is acknowledged, and with loss 1e-5 hardly a round trip is without one: a stream then has \
                 at most its window / (2 x RTT), 6.8 Gbit/s with 512 MiB, whatever carries it: the target is \
                 out of reach with that, and judged all the same. CPU time is that of the whole run, over all \
                 payload that arrived; the machine's has the ends in it. mm-delay (mahimahi) delays a link without a rate as \
                 well; it is measured where it is given."
            }
            Self::Delay => {
                "ping every 20 ms. Of the round trips one by one ping shows three digits, so from 100 ms on none behind the \
                 point: there, the mean of all, which it tells in full, has to stand for the median. The load is one TCP stream \
                 that is paced to 1 Gbit/s (iperf3 --fq-rate, BBR, raised buffers) over a link without a rate: with a rate, \
                 pings would rightly wait behind its packets. `split` and `held` are the emulator's two ways through the \
                 kernel. `emulator late` is the sum of the medians that the emulator tells of both ways: its part in the \
                 error."
            }
            Self::Rate => {
                "Payload in the second half, as the receiver counts it. A packet of 1500 bytes takes 1538 of the wire: 1448 \
                 are TCP's payload (timestamps), 1472 UDP's. UDP is sent 10 % too fast, the queue drops the rest, and what \
                 comes to the far host is counted: iperf3's socket has not always room for it. TCP has \
                 one CUBIC stream with a receiver's buffer of 6 x rate x RTT and room for 10 in the queue, so that it fills \
                 the link and nothing is dropped."
            }
            Self::Counts => {
                "At least a million packets from near to far over a link without a rate, by the emulator's own counters. \
                 The target is where 99 % of all counts of independent events lie: one good figure in a hundred is outside. \
                 Losses, duplicates and order are compared with what the hosts' own kernels count; corruption is none that a \
                 kernel could find."
            }
            Self::Mathis => {
                "One stream from near to far, losses only that way, no rate. Expected: 1448 bytes / RTT x sqrt(3/2) / \
                 sqrt(loss), with the configured RTT. The constant is Mathis's for every packet acknowledged: Linux's \
                 senders count packets, not acknowledgements, so delayed ones do not change it. CUBIC aims at the same mean \
                 where it is friendly to Reno (RFC 9438, 4.3: RTT below ~1.2 s x cube root of the loss); the RTTs here are at \
                 most a twelfth of that. The mean is without the first quarter of the run."
            }
            Self::Window => {
                "One stream (Reno: slow start without HyStart) over 6.5 Gbit/s x 200 ms. The receiver's socket has twice \
                 SO_RCVBUF, as the kernel doubles it, given by tcp_rmem of its host: rmem_max cannot be raised there. \
                 Expected: the window that the receiver has offered (snd_wnd of TCP_INFO) / 200 ms, at most what the wire \
                 carries. Published: UsadaFox, University of Tokyo, 2010, where the window was 1.875 x SO_RCVBUF."
            }
            Self::Icepp => {
                "From near to far over 1 Gbit/s x 300 ms with CUBIC; the receiver's sockets have twice the window of \
                 `iperf -w`, as the kernel doubles it. Expected: what ICEPP, University of Tokyo, published of its path to \
                 CERN in 2004 (Linux 2.4.20 up to 256 KB, 2.6.0-test11 from 4 MB on), with that time's kernels and a path \
                 with losses: no target. Beside it: windows / RTT, at most what the wire carries."
            }
        }
    }

    /// All of it, or what shows in little time that it works.
    pub(super) fn experiments(self, quick: bool, mm_delay: Option<&Path>) -> Vec<Experiment> {
        let all = match self {
            Self::Capacity => capacity(if quick { 8 } else { 20 }, mm_delay.is_some()),
            Self::Delay => delay(quick),
            Self::Rate => rate(if quick { 6 } else { 12 }),
            Self::Counts => counts(),
            Self::Mathis => mathis(quick),
            Self::Window => window(if quick { 9 } else { 14 }),
            Self::Icepp => icepp(if quick { 8 } else { 14 }),
        };
        all.into_iter().filter(|experiment| experiment.quick || !quick).collect()
    }

    /// What cannot be shown here, and why.
    pub(super) fn left_out(self, mm_delay: Option<&Path>) -> Vec<LeftOut> {
        let out = |tool: &str, reason: &str| LeftOut { tool: tool.to_owned(), reason: reason.to_owned() };
        match self {
            Self::Capacity if mm_delay.is_none() => {
                vec![out("mm-delay", "no program given by --mm-delay")]
            }
            Self::Rate => vec![out(
                "UDP at 10 Gbit/s",
                "iperf3 sends single packets, 1 to 2 Gbit/s of them with a core to itself",
            )],
            _ => Vec::new(),
        }
    }
}

fn capacity(seconds: u32, mm_delay: bool) -> Vec<Experiment> {
    let one = |congestion| load(Load::tcp(congestion, seconds));
    let unshaped = |what: &str, traffic, at_least| {
        Experiment::new(
            what,
            "--rtt 200ms --engine auto",
            traffic,
            Judge::Capacity { at_least: Some(at_least) },
        )
    };
    let shaped = |what: &str, link: &str, traffic, at_least| {
        let link = format!("--rtt 200ms --rate 10Gbit --engine auto{link}");
        Experiment::new(what, &link, traffic, Judge::Capacity { at_least })
    };
    let many = Load { streams: 64, ..Load::tcp("bbr", seconds) };
    // BBR looks at the path anew every 10 s: two of its rounds.
    let long = load(Load::tcp("bbr", 2 * seconds));
    let mut all = vec![
        unshaped("no rate, 1 stream, raised", one("cubic"), 12.0).with(RAISED).also_quick(),
        unshaped("no rate, 64 BBR streams", load(many), 7.0),
        shaped("10 Gbit/s, 1 stream, raised", "", one("cubic"), Some(9.0)).with(RAISED),
        shaped("10 Gbit/s, loss 1e-5, 1 BBR stream, raised", " --loss 0.001%", one("bbr"), Some(8.0))
            .with(RAISED),
        shaped("10 Gbit/s, loss 1e-5, 1 BBR stream, raised twice", " --loss 0.001%", long, Some(8.0))
            .with(RAISED_TWICE)
            .also_quick(),
    ];
    if mm_delay {
        all.push(Experiment {
            what: "mm-delay: no rate, 1 stream, raised".to_owned(),
            over: Over::MmDelay { one_way_ms: 100 },
            buffers: RAISED,
            traffic: one("cubic"),
            judge: Judge::Capacity { at_least: None },
            quick: true,
        });
    }
    all
}

fn delay(quick: bool) -> Vec<Experiment> {
    /// The load has come up to its rate, at 300 ms too.
    const RISEN_SECONDS: u32 = 7;
    let pings = Pings { count: if quick { 50 } else { 250 } };
    let mut all = Vec::new();
    for engine in ["split", "held"] {
        for rtt_ms in [1, 10, 100, 300] {
            let link = format!("--rtt {rtt_ms}ms --engine {engine}");
            let judge = Judge::Delay { rtt_ms: f64::from(rtt_ms) };
            let idle = Traffic { pings: Some(pings), ..Traffic::default() };
            let seconds = RISEN_SECONDS + pings.longest().as_secs_f64().ceil() as u32 + 1;
            let paced = Load { pace_bps: Some(1_000_000_000), ..Load::tcp("bbr", seconds) };
            let loaded =
                Traffic { load: Some(paced), from: Some(f64::from(RISEN_SECONDS)), pings: Some(pings) };
            let quick = rtt_ms == 10;
            for (name, traffic) in [("idle", idle), ("1 Gbit/s", loaded)] {
                let what = format!("{rtt_ms} ms, {engine}, {name}");
                let experiment = Experiment::new(&what, &link, traffic, judge).with(RAISED);
                all.push(Experiment { quick, ..experiment });
            }
        }
    }
    all
}

fn rate(seconds: u32) -> Vec<Experiment> {
    let mut all = Vec::new();
    for (name, mbit_s, rtt_ms) in
        [("10 Mbit/s", 10, 20), ("100 Mbit/s", 100, 20), ("1 Gbit/s", 1000, 10), ("10 Gbit/s", 10_000, 2)]
    {
        let bps = mbit_s * 1_000_000;
        let link = format!("--rtt {rtt_ms}ms --rate {mbit_s}Mbit --queue 10bdp --engine auto");
        let bdp_bytes = bps / 8 * rtt_ms / 1000;
        let tcp = Judge::Rate { bps: bps as f64 * tcp_share(), udp: false };
        all.push(
            Experiment::new(&format!("TCP, {name}"), &link, load(Load::tcp("cubic", seconds)), tcp)
                .with(Buffers::Receiver(6 * bdp_bytes))
                .also_quick(),
        );
        if mbit_s < 10_000 {
            let too_fast = Load::udp(bps / 10 * 11, seconds);
            let link = format!("--rtt {rtt_ms}ms --rate {mbit_s}Mbit --engine auto");
            let udp = Judge::Rate { bps: bps as f64 * udp_share(), udp: true };
            all.push(Experiment::new(&format!("UDP, {name}"), &link, load(too_fast), udp));
        }
    }
    all
}

fn counts() -> Vec<Experiment> {
    /// Two million full packets of TCP; a million of UDP, which come one by one.
    const TCP_BYTES: u64 = 3_000_000_000;
    const UDP_BYTES: u64 = 1_500_000_000;
    let from_start = |load| Traffic { load: Some(load), from: Some(0.0), pings: None };
    let one = |what: &str, link: &str, effect, share| {
        let link = format!("--rtt 2ms {link} --engine auto");
        let bytes = Load { amount: Amount::Bytes(TCP_BYTES), ..Load::tcp("bbr", 0) };
        Experiment::new(what, &link, from_start(bytes), Judge::Count { effect, share })
    };
    let datagrams = Load { amount: Amount::Bytes(UDP_BYTES), ..Load::udp(800_000_000, 0) };
    vec![
        one("TCP, loss 1 %", "--loss 1%,0%", Effect::Loss, 0.01).also_quick(),
        one("TCP, loss 0.01 %", "--loss 0.01%,0%", Effect::Loss, 0.0001),
        one("TCP, duplicates 1 %", "--duplicate 1%,0%", Effect::Duplication, 0.01),
        one("TCP, 25 % of every 5th packet ahead", "--reorder 25%:5,0%", Effect::Reordering, 0.05),
        one("TCP, corruption 0.1 %", "--corrupt 0.1%,0%", Effect::Corruption, 0.001),
        Experiment::new(
            "UDP, loss 1 %, duplicates 1 %",
            "--rtt 2ms --loss 1%,0% --duplicate 1%,0% --engine auto",
            from_start(datagrams),
            Judge::Arrived,
        ),
    ]
}

fn mathis(quick: bool) -> Vec<Experiment> {
    let one = |congestion: &'static str, loss: f64, rtt_us: u32, seconds: u32| {
        let what = format!("{congestion}, loss {loss:e}, {} ms", f64::from(rtt_us) / 1e3);
        let link = format!("--rtt {rtt_us}us --loss {}%,0% --engine auto", loss * 100.0);
        let traffic = Traffic { from: Some(f64::from(seconds / 4)), ..load(Load::tcp(congestion, seconds)) };
        Experiment::new(&what, &link, traffic, Judge::Mathis { rtt_seconds: f64::from(rtt_us) / 1e6, loss })
            .with(RAISED)
    };
    let short = |seconds: u32| if quick { seconds.min(12) } else { seconds };
    vec![
        one("cubic", 1e-5, 2000, 60),
        one("cubic", 1e-4, 4000, 50),
        one("cubic", 1e-3, 10_000, short(40)).also_quick(),
        one("cubic", 1e-2, 20_000, 30),
        one("reno", 1e-3, 10_000, 40),
    ]
}

fn window(seconds: u32) -> Vec<Experiment> {
    const RTT_SECONDS: f64 = 0.2;
    const WIRE_BPS: f64 = 6.5e9;
    let published = [(25, 235.42), (50, 470.36), (75, 701.95), (100, 806.78), (125, 811.66), (150, 811.68)];
    let one = |(mb, mb_s): (u64, f64)| {
        let judge = Judge::Window {
            rtt_seconds: RTT_SECONDS,
            wire_bps: WIRE_BPS * tcp_share(),
            published_mbit_s: mb_s * 8.0,
        };
        let traffic = load(Load::tcp("reno", seconds));
        let link = "--rtt 200ms --rate 6.5Gbit --engine auto";
        let experiment = Experiment::new(&format!("SO_RCVBUF {mb} MB"), link, traffic, judge)
            .with(Buffers::Receiver(2 * mb * 1_000_000));
        Experiment { quick: mb == 50, ..experiment }
    };
    published.into_iter().map(one).collect()
}

fn icepp(seconds: u32) -> Vec<Experiment> {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    /// iperf3 connects its streams one after the other, each in a round trip.
    const STREAMS_MAX: u32 = 32;
    let published = [
        (4, 256 * KIB, 4.50),
        (8, 256 * KIB, 8.04),
        (16, 256 * KIB, 16.6),
        (32, 256 * KIB, 36.4),
        (64, 256 * KIB, 57.9),
        (128, 256 * KIB, 140.0),
        (160, 256 * KIB, 171.0),
        (128, 128 * KIB, 129.0),
        (128, 64 * KIB, 126.0),
        (12, 4 * MIB, 347.0),
        (16, 4 * MIB, 406.0),
        (24, 4 * MIB, 542.0),
        (30, 4 * MIB, 489.0),
        (32, 4 * MIB, 603.0),
        (28, 8 * MIB, 634.0),
    ];
    let one = |(streams, window, mbit_s): (u32, u64, f64)| {
        let judge = Judge::Published { rtt_seconds: 0.3, wire_bps: 1e9 * tcp_share(), mbit_s };
        let processes = streams.div_ceil(STREAMS_MAX);
        let all =
            Load { streams: streams / processes, processes: processes as u16, ..Load::tcp("cubic", seconds) };
        let what = match window {
            MIB.. => format!("{streams} streams, {} MB", window / MIB),
            _ => format!("{streams} streams, {} KB", window / KIB),
        };
        let link = "--rtt 300ms --rate 1Gbit --engine auto";
        let experiment = Experiment::new(&what, link, load(all), judge).with(Buffers::Receiver(2 * window));
        Experiment { quick: streams == 16, ..experiment }
    };
    published.into_iter().map(one).collect()
}

impl Effect {
    /// How many packets it could meet with, and how many it has.
    fn found(self, counters: &Counters) -> (u64, u64) {
        // What is lost on the wire is neither corrupted nor sent ahead, and does not arrive twice.
        let arriving = counters.delivered;
        match self {
            Self::Loss => (counters.segments - counters.dropped_queue, counters.lost),
            Self::Duplication => (arriving, counters.duplicated),
            Self::Reordering => (arriving, counters.reordered),
            Self::Corruption => (arriving, counters.corrupted),
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Loss => "lost",
            Self::Duplication => "duplicated",
            Self::Reordering => "sent ahead",
            Self::Corruption => "corrupted",
        }
    }
}

impl Judge {
    /// The figures; none where what they need was not seen.
    pub(super) fn findings(self, observed: &Observed) -> Vec<Finding> {
        let found = match self {
            Self::Capacity { at_least } => capacity_findings(observed, at_least),
            Self::Delay { rtt_ms } => delay_findings(observed, rtt_ms),
            Self::Rate { bps, udp } => rate_findings(observed, bps, udp),
            Self::Count { effect, share } => count_findings(observed, effect, share),
            Self::Arrived => arrived_findings(observed),
            Self::Mathis { rtt_seconds, loss } => mathis_findings(observed, rtt_seconds, loss),
            Self::Window { rtt_seconds, wire_bps, published_mbit_s } => {
                window_findings(observed, rtt_seconds, wire_bps, published_mbit_s)
            }
            Self::Published { rtt_seconds, wire_bps, mbit_s } => {
                published_findings(observed, rtt_seconds, wire_bps, mbit_s)
            }
        };
        found.unwrap_or_default()
    }
}

fn capacity_findings(observed: &Observed, at_least: Option<f64>) -> Option<Vec<Finding>> {
    let flow = observed.flow.as_ref()?;
    let gb = flow.bytes / 1e9;
    let rate = Finding::shown("Gbit/s", flow.bps / 1e9);
    let rate = match at_least {
        Some(bound) => rate.wanted(Target::AtLeast(bound)),
        None => rate,
    };
    let cpu = |what, seconds: Option<f64>| seconds.map(|seconds| Finding::shown(what, seconds / gb));
    let cpus = [
        cpu("emulator, CPU s/GB", observed.emulator_cpu_seconds),
        cpu("whole machine, CPU s/GB", observed.machine_cpu_seconds),
    ];
    Some(std::iter::once(rate).chain(cpus.into_iter().flatten()).collect())
}

/// ping shows no digits behind the point from here on.
const WHOLE_MS: f64 = 100.0;

fn delay_findings(observed: &Observed, rtt_ms: f64) -> Option<Vec<Finding>> {
    let trips = observed.round_trips.as_ref()?;
    let errors = trips.errors_ms(rtt_ms);
    let p99 = Finding::shown("p99 of |error|, ms", quantile(&errors, 0.99)?);
    // A whole number of ms says half a ms less.
    let blur = if rtt_ms < WHOLE_MS { 0.0 } else { 0.5 };
    let most = Finding::shown("longest round trip, ms", trips.max_ms);
    let lost = trips.sent.saturating_sub(errors.len() as u32);
    let lost = Finding::shown("pings lost", f64::from(lost)).wanted(Target::AtMost(0.0));
    let median = Finding::shown("median of |error|, ms", quantile(&errors, 0.5)?);
    let mean = Finding::shown("|error| of the mean, ms", (trips.mean_ms - rtt_ms).abs());
    let center = Target::AtMost(0.1);
    // The rest of the error is the hosts' own: system calls, and waking ping.
    let late =
        observed.shown.as_ref().map(|shown| shown.forward.lateness.p50_us + shown.backward.lateness.p50_us);
    let late = late.map(|us| Finding::shown("emulator late, both ways, ms", us as f64 / 1e3));
    let mut found = match &observed.flow {
        None => {
            let centers =
                if rtt_ms < WHOLE_MS { [median.wanted(center), mean] } else { [mean.wanted(center), median] };
            centers
                .into_iter()
                .chain([p99.wanted(Target::AtMost(1.0 - blur)), most, lost])
                .collect::<Vec<_>>()
        }
        Some(flow) => {
            let load = Finding::shown("load, Mbit/s", flow.bps / 1e6).wanted(Target::AtLeast(850.0));
            vec![median, mean, p99.wanted(Target::AtMost(2.0 - blur)), most, lost, load]
        }
    };
    found.extend(late);
    Some(found)
}

fn rate_findings(observed: &Observed, bps: f64, udp: bool) -> Option<Vec<Finding>> {
    let flow = observed.flow.as_ref()?;
    let received = flow.bps / 1e6;
    if !udp {
        return Some(vec![Finding::shown("payload, Mbit/s", received).within(bps / 1e6, 0.01)]);
    }
    let arrived = observed.far_datagrams_per_second? * UDP_PAYLOAD_BYTES * 8.0 / 1e6;
    Some(vec![
        Finding::shown("payload, Mbit/s", arrived).within(bps / 1e6, 0.01),
        Finding::shown("of it in time for iperf3, Mbit/s", received),
        Finding::shown("sent, Mbit/s", flow.sent_bps / 1e6),
    ])
}

const REORDER_GAP: u64 = 5;

fn count_findings(observed: &Observed, effect: Effect, share: f64) -> Option<Vec<Finding>> {
    let (packets, found) = effect.found(&observed.shown.as_ref()?.forward.counters);
    // Of every fifth packet a dice is thrown only.
    let thrown = if matches!(effect, Effect::Reordering) { packets / REORDER_GAP } else { packets };
    let (low, high) = interval_99(thrown, share * packets as f64 / thrown.max(1) as f64);
    // Counts are whole.
    let interval = Target::Between(low.ceil(), high.floor());
    let mut findings = vec![
        Finding::shown(effect.in_words(), found as f64)
            .beside((packets as f64 * share).round())
            .wanted(interval),
        Finding::shown("packets", packets as f64).wanted(Target::AtLeast(1e6)),
    ];
    let by_a_host = |what, count: Option<u64>| {
        Some(Finding::shown(what, count? as f64).beside(found as f64).within(found as f64, 0.01))
    };
    match effect {
        Effect::Loss => {
            findings.push(by_a_host("sent again, by the sender's TCP", observed.near_segments_again)?)
        }
        Effect::Duplication => {
            findings.push(by_a_host("there already, by the receiver's TCP", observed.far_known_segments)?);
        }
        Effect::Reordering | Effect::Corruption => {}
    }
    if effect == Effect::Reordering {
        // As the receiver's kernel sees it.
        let early = observed.far_early_segments? as f64;
        findings.push(
            Finding::shown("arrived before their turn", early)
                .beside(found as f64)
                .within(found as f64, 0.01),
        );
    }
    Some(findings)
}

fn arrived_findings(observed: &Observed) -> Option<Vec<Finding>> {
    let Counters { delivered, duplicated, .. } = observed.shown.as_ref()?.forward.counters;
    let counted = (delivered + duplicated) as f64;
    // The packets of iperf3's TCP connection are counted by the emulator only.
    let around = Target::Between(counted - 200.0, counted);
    Some(vec![
        Finding::shown("datagrams arrived", observed.far_datagrams? as f64).beside(counted).wanted(around),
    ])
}

fn mathis_findings(observed: &Observed, rtt_seconds: f64, loss: f64) -> Option<Vec<Finding>> {
    let flow = observed.flow.as_ref()?;
    let expected = mathis_bps(rtt_seconds, loss) / 1e6;
    let losses = observed.shown.as_ref()?.forward.counters.lost;
    let mut found = vec![
        Finding::shown("Mbit/s", flow.bps / 1e6).within(expected, 0.2),
        Finding::shown("packets lost", losses as f64),
    ];
    found.extend(flow.rtt_seconds.map(|rtt| Finding::shown("RTT that TCP measured, ms", rtt * 1e3)));
    Some(found)
}

fn window_findings(
    observed: &Observed,
    rtt_seconds: f64,
    wire_bps: f64,
    published_mbit_s: f64,
) -> Option<Vec<Finding>> {
    let flow = observed.flow.as_ref()?;
    let window = flow.window_bytes?;
    let expected = window_bps(window, rtt_seconds).min(wire_bps) / 1e6;
    Some(vec![
        Finding::shown("Mbit/s", flow.bps / 1e6).within(expected, 0.03),
        Finding::shown("window, MB", window / 1e6),
        Finding::shown("published, Mbit/s", published_mbit_s),
    ])
}

fn published_findings(
    observed: &Observed,
    rtt_seconds: f64,
    wire_bps: f64,
    mbit_s: f64,
) -> Option<Vec<Finding>> {
    let flow = observed.flow.as_ref()?;
    let theory = window_bps(flow.window_bytes?, rtt_seconds).min(wire_bps);
    Some(vec![
        Finding::shown("Mbit/s", flow.bps / 1e6).beside(mbit_s),
        Finding::shown("windows / RTT or the wire, Mbit/s", theory / 1e6),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::traffic::{Flow, Protocol, RoundTrips};
    use super::*;

    const ALL: [Name; 7] =
        [Name::Capacity, Name::Delay, Name::Rate, Name::Counts, Name::Mathis, Name::Window, Name::Icepp];

    fn flow(bps: f64) -> Observed {
        let flow =
            Flow { bytes: 1e9, bps, sent_bps: bps, window_bytes: Some(50e6), rtt_seconds: Some(0.0021) };
        Observed { flow: Some(flow), ..Observed::default() }
    }

    fn holds(findings: &[Finding], what: &str) -> Option<bool> {
        let finding = findings.iter().find(|finding| finding.what == what).unwrap();
        finding.target.map(|target| match target {
            Target::AtLeast(bound) => finding.value >= bound,
            Target::AtMost(bound) => finding.value <= bound,
            Target::Between(low, high) => (low..=high).contains(&finding.value),
        })
    }

    #[test]
    fn every_experiment_has_a_name_of_its_own_and_every_case_a_quick_one() {
        for case in ALL {
            let all = case.experiments(false, Some(Path::new("mm-delay")));
            let mut names: Vec<&str> = all.iter().map(|experiment| experiment.what.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all.len(), "{case:?}");
            let quick = case.experiments(true, None);
            assert!(!quick.is_empty() && quick.len() < all.len(), "{case:?}");
        }
    }

    #[test]
    fn cubic_is_friendly_to_reno_wherever_it_is_judged() {
        for experiment in Name::Mathis.experiments(false, None) {
            let Judge::Mathis { rtt_seconds, loss } = experiment.judge else { panic!("{experiment:?}") };
            assert!(rtt_seconds <= 1.2 * loss.cbrt() / 12.0, "{}", experiment.what);
        }
    }

    #[test]
    fn loss_is_in_percent_on_the_command_line() {
        let links: Vec<Over> = Name::Mathis.experiments(false, None).into_iter().map(|e| e.over).collect();
        let Over::Link(words) = &links[0] else { panic!("{links:?}") };
        assert_eq!(words.join(" "), "--rtt 2000us --loss 0.001%,0% --engine auto");
    }

    #[test]
    fn many_streams_are_those_of_several_iperf3() {
        let all = Name::Icepp.experiments(false, None);
        let most = all.iter().find(|experiment| experiment.what == "160 streams, 256 KB").unwrap();
        let load = most.traffic.load.as_ref().unwrap();
        assert_eq!((load.streams, load.processes, load.protocol), (32, 5, Protocol::Tcp("cubic")));
        assert_eq!(most.buffers, Buffers::Receiver(512 * 1024));
        assert!(all.iter().any(|experiment| experiment.what == "28 streams, 8 MB"));
    }

    #[test]
    fn rates() {
        let found = Judge::Rate { bps: 941.48e6, udp: false }.findings(&flow(935e6));
        assert_eq!(holds(&found, "payload, Mbit/s"), Some(true));
        let found = Judge::Rate { bps: 941.48e6, udp: false }.findings(&flow(930e6));
        assert_eq!(holds(&found, "payload, Mbit/s"), Some(false));
        let arrived = Observed { far_datagrams_per_second: Some(81_274.0), ..flow(0.5e9) };
        let found = Judge::Rate { bps: 957.09e6, udp: true }.findings(&arrived);
        assert_eq!(holds(&found, "payload, Mbit/s"), Some(true));
        assert_eq!(holds(&found, "of it in time for iperf3, Mbit/s"), None);
        assert!(Judge::Rate { bps: 1.0, udp: true }.findings(&Observed::default()).is_empty());
    }

    #[test]
    fn capacity_and_what_it_takes() {
        let observed = Observed { emulator_cpu_seconds: Some(0.5), ..flow(13e9) };
        let found = Judge::Capacity { at_least: Some(12.0) }.findings(&observed);
        assert_eq!((holds(&found, "Gbit/s"), holds(&found, "emulator, CPU s/GB")), (Some(true), None));
        assert_eq!(found[1].value, 0.5);
        assert_eq!(found.len(), 2, "the machine's is unknown");
    }

    #[test]
    fn round_trips() {
        let trips = |each_ms: Vec<f64>, mean_ms, max_ms| Observed {
            round_trips: Some(RoundTrips { sent: each_ms.len() as u32, each_ms, mean_ms, max_ms }),
            ..Observed::default()
        };
        let short = Judge::Delay { rtt_ms: 10.0 }.findings(&trips(vec![10.1, 10.0, 12.5], 10.9, 12.51));
        assert_eq!(holds(&short, "median of |error|, ms"), Some(true));
        assert_eq!(holds(&short, "p99 of |error|, ms"), Some(false));
        assert_eq!(holds(&short, "pings lost"), Some(true));
        let long = Judge::Delay { rtt_ms: 100.0 }.findings(&trips(vec![100.0, 101.0], 100.25, 100.6));
        assert_eq!(holds(&long, "|error| of the mean, ms"), Some(false));
        assert_eq!(holds(&long, "p99 of |error|, ms"), Some(false), "it may be 101.4");
        let loaded = Observed { flow: flow(1e9).flow, ..trips(vec![11.5], 11.5, 11.5) };
        let loaded = Judge::Delay { rtt_ms: 10.0 }.findings(&loaded);
        assert_eq!(holds(&loaded, "p99 of |error|, ms"), Some(true));
        assert_eq!(holds(&loaded, "median of |error|, ms"), None);
    }

    #[test]
    fn what_is_lost_can_meet_with_nothing_else() {
        let counters =
            Counters { segments: 1100, dropped_queue: 100, lost: 10, delivered: 990, ..Counters::default() };
        assert_eq!(Effect::Loss.found(&counters), (1000, 10));
        assert_eq!(Effect::Duplication.found(&counters), (990, 0));
    }

    #[test]
    fn streams_beside_mathis_and_their_windows() {
        let window = Judge::Window { rtt_seconds: 0.2, wire_bps: 6.12e9, published_mbit_s: 1883.0 };
        let found = window.findings(&flow(1.98e9));
        assert_eq!((holds(&found, "Mbit/s"), found[0].expected), (Some(true), Some(2000.0)));
        assert_eq!(holds(&window.findings(&flow(1.9e9)), "Mbit/s"), Some(false));
        let published =
            Judge::Published { rtt_seconds: 0.3, wire_bps: 0.94e9, mbit_s: 634.0 }.findings(&flow(0.9e9));
        assert_eq!((published[0].expected, published[1].value), (Some(634.0), 940.0));
    }
}
