//! What tests of a path are asked for, and what is counted in them.

use crate::counts::Counts;
use crate::traffic::{FlowTotal, Options, Plan, Role};

/// What travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Streams.
    Tcp,
    /// Packets.
    Udp,
    /// Packets that come back.
    Echoes,
}

/// Which way the load goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Way {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::ToServer, Self::ToClient];
}

/// A test that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// What travels.
    pub what: What,
    /// Which way.
    pub way: Way,
    /// How long, from the beginning.
    pub milliseconds: u32,
    /// At a time.
    pub streams: u32,
    /// Bytes of a write or of a packet's payload.
    pub length: usize,
    /// Bits of payload a second, of each stream; `None`: as fast as it goes.
    pub rate: Option<u64>,
    /// Of the sockets at both ends.
    pub options: Options,
}

impl Wish {
    /// What its flows do at an end, where none but the sender is held to the rate.
    pub(crate) fn plan(&self, role: Role) -> Plan {
        Plan {
            length: self.length,
            rate: self.rate.filter(|_| role == Role::Sends),
            receive_rate_max: None,
            bytes: None,
            skip_receive_copy: false,
            zero_copy: self.options.zero_copy,
            wide_numbers: true,
        }
    }
}

/// How a host is set up, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Of the program.
    pub version: String,
    /// Processors that it may use.
    pub cores: u32,
    /// Bits a second of a test that it allows.
    pub rate_max: Option<u64>,
    /// Settings of the kernel, as sysctl(8) names them.
    pub settings: Vec<(String, String)>,
}

impl Host {
    /// Looks at this one.
    #[must_use]
    pub fn look(version: &str, rate_max: Option<u64>) -> Self {
        let value = |name: &&str| {
            let text = std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok()?;
            Some(((*name).to_owned(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
        };
        Self {
            version: version.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            rate_max,
            settings: SETTINGS.iter().filter_map(value).collect(),
        }
    }

    /// A number of a setting, by its place.
    #[must_use]
    pub fn number(&self, name: &str, place: usize) -> Option<u64> {
        let (_, value) = self.settings.iter().find(|(own, _)| own == name)?;
        value.split_whitespace().nth(place)?.parse().ok()
    }
}

/// What a host tells of itself.
const SETTINGS: [&str; 9] = [
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_window_scaling",
    "net.core.default_qdisc",
];

/// What was counted at one end since the beginning of a test.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Since its beginning there.
    pub seconds: f64,
    /// One for each flow.
    pub flows: Vec<FlowSeen>,
    /// What it took.
    pub processor: Processor,
    /// Why it is over, if it is.
    pub over: Option<String>,
}

/// Of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowSeen {
    /// Payload.
    pub bytes: u64,
    /// UDP: sent, or known to have been sent.
    pub packets: u64,
    /// UDP, at a receiver: have not come.
    pub lost: u64,
    /// UDP, at a receiver: came after one with a higher number.
    pub reordered: u64,
    /// UDP, at a receiver: came again.
    pub duplicates: u64,
    /// UDP, at a receiver: RFC 3550's.
    pub jitter_s: f64,
    /// UDP, at a receiver: from the first arrival to the last.
    pub span_s: f64,
    /// UDP, at a receiver: payload that came in it.
    pub span_bytes: u64,
    /// UDP, at a receiver: reached the host, and found the socket full.
    pub dropped_here: u64,
    /// TCP, at a sender.
    pub tcp: Option<TcpSeen>,
}

/// TCP's own words at a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSeen {
    /// Segments that were sent again.
    pub retransmits: u64,
    /// Segments that were sent, these among them.
    pub segments: u64,
    /// Bytes.
    pub cwnd_max: u64,
    /// Bytes.
    pub send_window_max: u64,
    /// Mean of the smoothed round-trip times.
    pub rtt_mean_us: u64,
    /// Payload of a full segment.
    pub mss: u64,
    /// Microseconds with something to send.
    pub busy_us: u64,
    /// Of these, with the receiver's window full.
    pub rwnd_limited_us: u64,
    /// Of these, with the sender's buffer too small.
    pub sndbuf_limited_us: u64,
}

/// What a test took of a host's processors, in percent of one, and what they did beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Processor {
    /// The whole program.
    pub process: f64,
    /// The busiest thread of a flow, what it waited for a processor included: near 100 it is the limit.
    pub thread: f64,
    /// Of the core that had most of them, interrupts of the network.
    pub interrupts: f64,
    /// Of all cores, whatever they did, in percent of all of them.
    pub host: f64,
    /// Packets that came while the kernel had too many before them, whosever they were.
    pub dropped: u64,
}

impl FlowSeen {
    /// Of an engine's flow.
    #[must_use]
    pub fn of(total: &FlowTotal) -> Self {
        let Counts { bytes, packets, lost, reordered, duplicates, jitter_s, span_s, span_bytes } =
            total.counts;
        let tcp = total.tcp.map(|tcp| TcpSeen {
            retransmits: tcp.retransmits,
            segments: tcp.segments,
            cwnd_max: tcp.cwnd_max,
            send_window_max: tcp.send_window_max,
            rtt_mean_us: tcp.rtt_mean_us.into(),
            mss: tcp.mss.into(),
            busy_us: tcp.busy_us,
            rwnd_limited_us: tcp.rwnd_limited_us,
            sndbuf_limited_us: tcp.sndbuf_limited_us,
        });
        let lost = u64::try_from(lost).unwrap_or(0);
        let dropped_here = total.socket_drops;
        Self { bytes, packets, lost, reordered, duplicates, jitter_s, span_s, span_bytes, dropped_here, tcp }
    }
}

impl Seen {
    /// Payload of all flows.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.flows.iter().fold(0, |sum, flow| sum.saturating_add(flow.bytes))
    }

    /// A figure of all flows together.
    #[must_use]
    pub fn sum(&self, of: impl Fn(&FlowSeen) -> u64) -> u64 {
        self.flows.iter().fold(0, |sum, flow| sum.saturating_add(of(flow)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_place() {
        let settings = vec![("net.ipv4.tcp_rmem".to_owned(), "4096 131072 6291456".to_owned())];
        let host = Host { settings, ..Host::default() };
        assert_eq!(host.number("net.ipv4.tcp_rmem", 2), Some(6_291_456));
        assert_eq!(host.number("net.ipv4.tcp_rmem", 3), None);
        assert_eq!(host.number("net.core.rmem_max", 0), None);
        assert!(Host::look("1", None).cores > 0);
    }
}
