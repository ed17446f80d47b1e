//! What goes over the link: iperf3 and ping, how they are called and what they say.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::theory::quantile;

/// Bytes from near to far, by iperf3.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Load {
    pub(super) protocol: Protocol,
    pub(super) amount: Amount,
    /// How many streams each iperf3 has.
    pub(super) streams: u32,
    /// How many iperf3 there are, side by side.
    pub(super) processes: u16,
    /// Bits per second that each stream sends at the most.
    pub(super) pace_bps: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// With this congestion control.
    Tcp(&'static str),
    /// In datagrams of one full packet.
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Seconds(u32),
    Bytes(u64),
}

/// Round trips, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pings {
    pub(super) count: u32,
}

const INTERVAL: Duration = Duration::from_millis(20);

/// Of the first iperf3.
pub(super) const PORT: u16 = 5201;

/// Streams connect one after the other; of a round trip around the world.
const CONNECTING: Duration = Duration::from_millis(500);

/// For bytes whose time is not known.
const BYTES_PATIENCE: Duration = Duration::from_secs(90);

impl Load {
    pub(super) fn tcp(congestion: &'static str, seconds: u32) -> Self {
        Self {
            protocol: Protocol::Tcp(congestion),
            amount: Amount::Seconds(seconds),
            streams: 1,
            processes: 1,
            pace_bps: None,
        }
    }

    pub(super) fn udp(bps: u64, seconds: u32) -> Self {
        Self { protocol: Protocol::Udp, pace_bps: Some(bps), ..Self::tcp("", seconds) }
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        PORT..PORT + self.processes
    }

    pub(super) fn server(port: u16) -> Vec<OsString> {
        words(&format!("iperf3 --server --one-off --json --port {port}"))
    }

    pub(super) fn client(&self, far: &str, port: u16) -> Vec<OsString> {
        let mut text = format!("iperf3 --client {far} --port {port} --json --parallel {}", self.streams);
        match self.protocol {
            Protocol::Tcp(congestion) => text += &format!(" --congestion {congestion}"),
            Protocol::Udp => text += &format!(" --udp --length {}", super::theory::UDP_PAYLOAD_BYTES),
        }
        match (self.protocol, self.pace_bps) {
            (_, None) => {}
            (Protocol::Tcp(_), Some(bps)) => text += &format!(" --fq-rate {bps}"),
            (Protocol::Udp, Some(bps)) => text += &format!(" --bitrate {bps}"),
        }
        text += &match self.amount {
            Amount::Seconds(seconds) => format!(" --time {seconds}"),
            Amount::Bytes(bytes) => format!(" --bytes {bytes}"),
        };
        words(&text)
    }

    /// Without what it takes to come to an end.
    pub(super) fn longest(&self) -> Duration {
        let connecting = CONNECTING * self.streams;
        match self.amount {
            Amount::Seconds(seconds) => Duration::from_secs(seconds.into()) + connecting,
            Amount::Bytes(_) => BYTES_PATIENCE + connecting,
        }
    }
}

impl Pings {
    pub(super) fn words(self, far: &str) -> Vec<OsString> {
        words(&format!("ping -n -i {} -c {} {far}", INTERVAL.as_secs_f64(), self.count))
    }

    /// Without what it takes to come to an end.
    pub(super) fn longest(self) -> Duration {
        INTERVAL * self.count
    }
}

fn words(text: &str) -> Vec<OsString> {
    text.split(' ').map(Into::into).collect()
}

/// What the receiver of a load has seen, and the sender of its connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Flow {
    /// From the start to the end.
    pub(super) bytes: f64,
    /// Payload over the time that is looked at.
    pub(super) bps: f64,
    /// What was sent, over the same.
    pub(super) sent_bps: f64,
    /// What the receiver offered there; the sum of all streams' medians.
    pub(super) window_bytes: Option<f64>,
    /// The mean of what the sender measured there, over all streams.
    pub(super) rtt_seconds: Option<f64>,
}

/// What `iperf3 --json` prints, as far as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    intervals: Vec<Interval>,
    end: Ended,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Interval {
    sum: Sum,
    #[serde(default)]
    streams: Vec<Stream>,
}

#[derive(Debug, Deserialize)]
struct Sum {
    start: f64,
    seconds: f64,
    bytes: f64,
}

/// Of a sender of TCP.
#[derive(Debug, Deserialize)]
struct Stream {
    socket: u32,
    rtt: Option<f64>,
    snd_wnd: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ended {
    sum_received: Option<Received>,
    /// UDP's.
    sum: Option<Received>,
}

#[derive(Debug, Deserialize)]
struct Received {
    bytes: f64,
}

/// Shorter ones are what was left over at the end.
const INTERVAL_SECONDS_MIN: f64 = 0.5;

impl Flow {
    /// Of one iperf3: what its server and its client have printed, and from which second on it is looked at; by default
    /// from the middle.
    pub(super) fn of(server: &str, client: &str, from: Option<f64>) -> anyhow::Result<Self> {
        let (server, client) = (said(server).context("server")?, said(client).context("client")?);
        let last = server.intervals.iter().rfind(|interval| interval.sum.seconds >= INTERVAL_SECONDS_MIN);
        let end = last.map_or(0.0, |interval| interval.sum.start + interval.sum.seconds);
        let from = from.unwrap_or(end / 2.0) - 0.01;
        let counts = |sum: &Sum| sum.start >= from && sum.seconds >= INTERVAL_SECONDS_MIN;
        let bps = |intervals: &[Interval]| {
            let sums = intervals.iter().map(|interval| &interval.sum).filter(|sum| counts(sum));
            let (bytes, seconds) =
                sums.fold((0.0, 0.0), |(bytes, seconds), sum| (bytes + sum.bytes, seconds + sum.seconds));
            if seconds == 0.0 {
                bail!("it ended before it was looked at");
            }
            Ok(bytes * 8.0 / seconds)
        };
        let streams: Vec<&Stream> = client
            .intervals
            .iter()
            .filter(|interval| counts(&interval.sum))
            .flat_map(|interval| &interval.streams)
            .collect();
        let rtts: Vec<f64> = streams.iter().filter_map(|stream| stream.rtt).collect();
        // The number of what a server of UDP has received is in `sum`.
        let all = server.end.sum_received.or(server.end.sum);
        Ok(Self {
            bytes: all.map_or(0.0, |all| all.bytes).max(server.intervals.iter().map(|i| i.sum.bytes).sum()),
            bps: bps(&server.intervals)?,
            sent_bps: bps(&client.intervals)?,
            window_bytes: windows(&streams),
            rtt_seconds: (!rtts.is_empty()).then(|| rtts.iter().sum::<f64>() / rtts.len() as f64 / 1e6),
        })
    }

    /// Of iperf3 side by side.
    pub(super) fn together(flows: &[Self]) -> Self {
        let sum = |value: fn(&Self) -> f64| flows.iter().map(value).sum();
        let rtts: Vec<f64> = flows.iter().filter_map(|flow| flow.rtt_seconds).collect();
        Self {
            bytes: sum(|flow| flow.bytes),
            bps: sum(|flow| flow.bps),
            sent_bps: sum(|flow| flow.sent_bps),
            window_bytes: flows.iter().map(|flow| flow.window_bytes).sum(),
            rtt_seconds: (!rtts.is_empty()).then(|| rtts.iter().sum::<f64>() / rtts.len() as f64),
        }
    }
}

fn windows(streams: &[&Stream]) -> Option<f64> {
    let mut sockets: Vec<u32> = streams.iter().map(|stream| stream.socket).collect();
    sockets.sort_unstable();
    sockets.dedup();
    let of = |socket: u32| {
        let own = streams.iter().filter(|stream| stream.socket == socket);
        quantile(&own.filter_map(|stream| stream.snd_wnd).collect::<Vec<_>>(), 0.5)
    };
    (!sockets.is_empty()).then(|| sockets.into_iter().map(of).sum()).flatten()
}

fn said(json: &str) -> anyhow::Result<Said> {
    let said: Said = serde_json::from_str(json).context("iperf3 has no result")?;
    match said.error {
        Some(error) => bail!("iperf3: {error}"),
        None => Ok(said),
    }
}

/// What ping has seen, in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RoundTrips {
    /// One by one, with as many digits as ping shows: the fewer the longer they are, none from 100 ms on.
    pub(super) each_ms: Vec<f64>,
    /// Of all, in full.
    pub(super) mean_ms: f64,
    /// Likewise.
    pub(super) max_ms: f64,
    pub(super) sent: u32,
}

impl RoundTrips {
    /// From what ping prints.
    pub(super) fn of(text: &str) -> Option<Self> {
        let each_ms = text
            .lines()
            .filter_map(|line| line.split_once(" time=")?.1.split_once(" ms")?.0.parse::<f64>().ok());
        let sent = text.lines().find_map(|line| line.split_once(" packets transmitted")?.0.parse().ok())?;
        let summary = text.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "))?;
        let mut numbers = summary.split(['/', ' ']).map(str::parse::<f64>);
        let [_min, mean_ms, max_ms] = [numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?];
        Some(Self { each_ms: each_ms.collect(), mean_ms, max_ms, sent })
    }

    /// How far they are from `rtt_ms`, one by one.
    pub(super) fn errors_ms(&self, rtt_ms: f64) -> Vec<f64> {
        self.each_ms.iter().map(|ms| (ms - rtt_ms).abs()).collect()
    }
}

/// Datagrams that have come to a host's UDP, from its `/proc/net/snmp`; also those without room in their socket, and those
/// that came after it was closed.
pub(super) fn udp_datagrams(snmp: &str) -> Option<u64> {
    let value = |name| kernel_counter(snmp, "Udp", name);
    Some(value("InDatagrams")? + value("NoPorts")? + value("RcvbufErrors")?)
}

/// A counter in the form of `/proc/net/snmp` and `/proc/net/netstat`: a line of names, and a line of values.
pub(super) fn kernel_counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|found| found == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: Vec<OsString>) -> String {
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn commands() {
        let paced = Load { pace_bps: Some(1_000_000_000), ..Load::tcp("bbr", 9) };
        assert_eq!(
            text(paced.client("far", 5201)),
            "iperf3 --client far --port 5201 --json --parallel 1 --congestion bbr --fq-rate 1000000000 --time 9"
        );
        let counted = Load { amount: Amount::Bytes(7), processes: 2, ..Load::udp(2_000_000, 5) };
        assert_eq!(
            text(counted.client("far", 5202)),
            "iperf3 --client far --port 5202 --json --parallel 1 --udp --length 1472 --bitrate 2000000 --bytes 7"
        );
        assert_eq!(counted.ports().collect::<Vec<_>>(), [5201, 5202]);
        assert_eq!(text(Load::server(5202)), "iperf3 --server --one-off --json --port 5202");
        assert_eq!(text(Pings { count: 200 }.words("far")), "ping -n -i 0.02 -c 200 far");
    }

    #[test]
    fn what_iperf3_says_of_the_second_half() {
        let interval = |start: f64, bytes: u32, seconds: f64, streams: &str| {
            format!(
                r#"{{"sum":{{"start":{start},"end":9,"seconds":{seconds},"bytes":{bytes}}},"streams":[{streams}]}}"#
            )
        };
        let stream = |socket, rtt, window| format!(r#"{{"socket":{socket},"rtt":{rtt},"snd_wnd":{window}}}"#);
        let receiver = [
            interval(0.0, 10, 1.0, r#"{"socket":5}"#),
            interval(1.0, 100, 1.0, ""),
            interval(2.0, 300, 1.0, ""),
            interval(3.0, 500, 1.0, ""),
            interval(4.0, 9, 0.2, ""),
        ];
        let server =
            format!(r#"{{"intervals":[{}],"end":{{"sum_received":{{"bytes":919}}}}}}"#, receiver.join(","));
        let both = |rtt, window| format!("{},{}", stream(5, rtt, window), stream(7, rtt, 50));
        let sender = [
            interval(0.0, 1, 1.0, &both(9, 9)),
            interval(2.0, 400, 1.0, &both(2000, 70)),
            interval(3.0, 800, 1.0, &both(4000, 80)),
        ];
        let client = format!(r#"{{"intervals":[{}],"end":{{}}}}"#, sender.join(","));
        let flow = Flow::of(&server, &client, None).unwrap();
        assert_eq!((flow.bytes, flow.bps, flow.sent_bps), (919.0, 3200.0, 4800.0));
        assert_eq!((flow.window_bytes, flow.rtt_seconds), (Some(120.0), Some(0.003)));
        assert_eq!(Flow::of(&server, &client, Some(1.0)).unwrap().bps, 2400.0);
        let together = Flow::together(&[flow.clone(), flow]);
        assert_eq!((together.bps, together.window_bytes), (6400.0, Some(240.0)));
        assert_eq!(together.rtt_seconds, Some(0.003));
        assert!(Flow::of(&server, &client, Some(10.0)).is_err());
    }

    #[test]
    fn a_failure_of_iperf3_is_told() {
        let refused = r#"{"intervals":[],"end":{},"error":"unable to connect"}"#;
        let error = Flow::of(refused, refused, None).unwrap_err();
        assert!(format!("{error:#}").contains("unable to connect"), "{error:#}");
        assert!(Flow::of("", "", None).is_err());
    }

    #[test]
    fn what_ping_says() {
        let text = "PING far (10.77.0.2) 56(84) bytes of data.
64 bytes from 10.77.0.2: icmp_seq=1 ttl=64 time=1.21 ms
64 bytes from 10.77.0.2: icmp_seq=2 ttl=64 time=1.05 ms

--- far ping statistics ---
3 packets transmitted, 2 received, 33.3333% packet loss, time 41ms
rtt min/avg/max/mdev = 1.049/1.128/1.208/0.079 ms
";
        let found = RoundTrips::of(text).unwrap();
        assert_eq!((found.each_ms.as_slice(), found.sent), ([1.21, 1.05].as_slice(), 3));
        assert_eq!((found.mean_ms, found.max_ms), (1.128, 1.208));
        assert!((found.errors_ms(1.0)[0] - 0.21).abs() < 1e-9);
        assert_eq!(RoundTrips::of("ping: far: Name or service not known"), None);
    }

    #[test]
    fn datagrams_are_counted_where_they_arrive() {
        let snmp = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 70 1 5 9 5\n";
        assert_eq!(udp_datagrams(snmp), Some(76));
        assert_eq!(udp_datagrams("Udp: InDatagrams\n"), None);
    }
}
