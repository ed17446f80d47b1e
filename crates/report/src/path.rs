//! The record of a path: what `longhaul probe` has measured of it, and what it takes for the limit.
//!
//! Rates of UDP are of the wire: each packet with Ethernet's 38 bytes of header, check sum, preamble and gap (RFC 2544's frames and
//! what is between them). Rates of TCP are of payload, and those of disks, and from disk to disk, of what is in the files.

mod controlled;
mod disk_to_disk;
mod disks;
mod paced;

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

pub use self::controlled::Controlled;
pub use self::disk_to_disk::{DiskToDisk, PartOfWay, START_RTTS};
pub use self::disks::{Disk, Side};
pub use self::paced::Paced;
use crate::record::{Environment, ReadError};
use crate::table::{machine, markdown, significant};

/// Name and version of the schema, first in every record.
pub const SCHEMA: &str = "longhaul-path/1";

/// Bytes that a packet has on Ethernet beside itself: header 14, check sum 4, preamble 8, gap 12.
pub const ETHERNET_BYTES: f64 = 38.0;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// From the one who asked to the server.
    ToServer,
    /// The other way.
    FromServer,
}

impl Way {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::ToServer, Self::FromServer];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ToServer => "to the server",
            Self::FromServer => "from the server",
        })
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// [`SCHEMA`].
    pub schema: String,
    /// In a few words.
    pub title: String,
    /// Where, when and with what.
    pub environment: Environment,
    /// The server, as it was given.
    pub host: String,
    /// How both hosts are set up: this one, the server.
    pub hosts: [HostFacts; 2],
    /// At rest.
    pub rtt: Option<Rtt>,
    /// Under load, by the way of the load.
    pub loaded: Vec<Loaded>,
    /// The longest IP packet that passes, each way.
    pub mtu: Vec<Mtu>,
    /// UDP by frame size.
    pub udp: Vec<Udp>,
    /// TCP by window and streams.
    pub tcp: Vec<Tcp>,
    /// TCP by congestion control.
    #[serde(default)]
    pub controlled: Vec<Controlled>,
    /// TCP with its streams paced, all together at several rates.
    #[serde(default)]
    pub paced: Vec<Paced>,
    /// Disks at both ends, of directories that were named.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// A file from one of these disks to the other, each way.
    #[serde(default)]
    pub disk_to_disk: Vec<DiskToDisk>,
    /// What limits the path.
    pub verdicts: Vec<Limited>,
    /// What was not measured, and why.
    pub left_out: Vec<String>,
}

/// How a host is set up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Of the program.
    pub version: String,
    /// Processors.
    pub cores: u32,
    /// Settings of the kernel, by the names of sysctl(8).
    pub settings: Vec<(String, String)>,
}

impl HostFacts {
    /// A number of a setting, by its place.
    #[must_use]
    pub fn number(&self, name: &str, place: usize) -> Option<u64> {
        let (_, value) = self.settings.iter().find(|(own, _)| own == name)?;
        value.split_whitespace().nth(place)?.parse().ok()
    }
}

/// Round-trip times of small packets, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rtt {
    /// Packets that were sent.
    pub sent: u32,
    /// That came back.
    pub back: u32,
    /// Least.
    pub min_ms: f64,
    /// Of all that came back.
    pub median_ms: f64,
    /// 99 of 100 were faster.
    pub p99_ms: f64,
}

/// Round-trip times while TCP fills the path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    /// Which way it was filled.
    pub way: Way,
    /// By how much, payload.
    pub mbps: f64,
    /// See there.
    pub rtt: Rtt,
}

/// The longest IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mtu {
    /// Which way.
    pub way: Way,
    /// Bytes; none: nothing came.
    pub bytes: Option<u32>,
}

/// What ended a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The path carries no more.
    Path,
    /// The sender sends no faster.
    Sender,
    /// No more may be offered.
    Allowed,
    /// Even the least was not carried.
    Nothing,
}

/// What a receiver counted of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Packets {
    /// The sender's rate on the wire, Mbit/s.
    pub sent_mbps: f64,
    /// What arrived, on the wire, over the time in which it did, Mbit/s.
    pub arrived_mbps: f64,
    /// Packets that were sent.
    pub packets: u64,
    /// That have not come.
    pub lost: u64,
    /// That came after one with a higher number.
    pub reordered: u64,
    /// That came again.
    pub duplicates: u64,
    /// That reached the receiver's host, and found its socket or its kernel's queue full: the host's, not the path's.
    pub dropped_by_receiver: u64,
    /// RFC 3550's, in milliseconds.
    pub jitter_ms: f64,
    /// Processors: the busiest flow's thread at the sender and at the receiver, in percent of one.
    pub cpu: [f64; 2],
}

impl Packets {
    /// In percent of those that were sent.
    #[must_use]
    pub fn lost_percent(&self) -> f64 {
        if self.packets == 0 { 0.0 } else { self.lost as f64 * 100.0 / self.packets as f64 }
    }
}

/// UDP of one frame size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Udp {
    /// Which way.
    pub way: Way,
    /// Of the Ethernet frame, check sum included.
    pub frame_bytes: u32,
    /// What ended the search.
    pub bound: Bound,
    /// Just above what is carried: what arrives is the capacity.
    pub above: Packets,
    /// Below it, at nine tenths: the path's own loss and jitter.
    pub below: Option<Packets>,
    /// At half of it, where some were lost at nine tenths: what is lost here too has nothing to do with the load.
    #[serde(default)]
    pub half: Option<Packets>,
    /// All bursts of the search: offered and arrived in Mbit/s on the wire, and the loss in percent.
    pub bursts: Vec<[f64; 3]>,
}

/// TCP with one window and number of streams.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tcp {
    /// Which way.
    pub way: Way,
    /// Of each stream, both ends, as asked for; none: the kernels'.
    pub window_bytes: Option<u64>,
    /// At a time.
    pub streams: u32,
    /// Payload at the receiver after the start-up, Mbit/s.
    pub mbps: f64,
    /// Window / RTT of all streams, Mbit/s; none where the kernels choose it.
    pub window_mbps: Option<f64>,
    /// Mathis's rate of all streams, Mbit/s; none without loss.
    pub mathis_mbps: Option<f64>,
    /// Segments that were sent again, in percent of those that were sent.
    pub retransmitted_percent: f64,
    /// The sender's mean of its smoothed round-trip times, ms.
    pub rtt_ms: f64,
    /// Share of the sender's busy time with the receiver's window full, in percent.
    pub rwnd_limited_percent: f64,
    /// The same with the sender's buffer too small.
    pub sndbuf_limited_percent: f64,
    /// Processors: the busiest flow's thread at the sender and at the receiver, in percent of one.
    pub cpu: [f64; 2],
    /// Processors: interrupts of the network on the core that has most of them, sender and receiver, in percent.
    pub interrupts: [f64; 2],
    /// Processors: of all cores of the sender's and the receiver's host, whatever they did, in percent.
    #[serde(default)]
    pub hosts: [f64; 2],
}

/// What limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Windows: the sockets' buffers.
    Window,
    /// Loss that is not of a full link.
    Loss,
    /// The rate of the narrowest link.
    Rate,
    /// Something that drops all that is above a rate.
    Policer,
    /// A processor of this host.
    CpuHere,
    /// A processor of the server.
    CpuThere,
    /// A disk of this host.
    DiskHere,
    /// A disk of the server.
    DiskThere,
    /// Too little was measured.
    Unknown,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Window => "window",
            Self::Loss => "loss",
            Self::Rate => "rate of the link",
            Self::Policer => "policer",
            Self::CpuHere => "processor of this host",
            Self::CpuThere => "processor of the server",
            Self::DiskHere => "disk of this host",
            Self::DiskThere => "disk of the server",
            Self::Unknown => "unknown",
        })
    }
}

/// A verdict on one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limited {
    /// Which way.
    pub way: Way,
    /// By what.
    pub limit: Limit,
    /// A queue fills that delays everybody.
    pub bufferbloat: bool,
    /// The figures that it was taken from.
    pub evidence: Vec<String>,
    /// What longhaul does about it by itself.
    pub by_itself: String,
    /// What an administrator could change; lines of sysctl are exact.
    pub advice: Vec<String>,
}

/// A caption, the head, and rows.
pub type Table = (String, Vec<&'static str>, Vec<Vec<String>>);

impl Path {
    /// A record without measurements.
    #[must_use]
    pub fn new(host: &str, environment: Environment) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            title: format!("The path to {host}"),
            environment,
            host: host.to_owned(),
            hosts: Default::default(),
            rtt: None,
            loaded: Vec::new(),
            mtu: Vec::new(),
            udp: Vec::new(),
            tcp: Vec::new(),
            controlled: Vec::new(),
            paced: Vec::new(),
            disks: Vec::new(),
            disk_to_disk: Vec::new(),
            verdicts: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// As JSON, for people too.
    ///
    /// # Errors
    /// When a figure is not a number JSON can hold.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        crate::record::read(SCHEMA, text)
    }

    /// The highest capacity by UDP one way, Mbit/s on the wire, of a search that the path has ended.
    #[must_use]
    pub fn capacity(&self, way: Way) -> Option<f64> {
        let of = self.udp.iter().filter(|udp| udp.way == way && udp.bound == Bound::Path);
        of.map(|udp| udp.above.arrived_mbps)
            .fold(None, |best: Option<f64>, rate| Some(best.unwrap_or(0.0).max(rate)))
    }

    /// Everything as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n{}\n", self.title, machine(&self.environment));
        for line in self.sentences() {
            let _ = writeln!(text, "{line}\n");
        }
        for (caption, head, rows) in self.tables() {
            let _ = write!(text, "{caption}\n\n{}\n", markdown(&head, &rows));
        }
        for line in &self.left_out {
            let _ = writeln!(text, "Not measured: {line}");
        }
        text
    }

    /// In words: round-trip times, MTU, verdicts, from disk to disk.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(rtt) = &self.rtt {
            lines.push(format!("Round-trip time at rest: {}.", rtt.in_words()));
        }
        for loaded in &self.loaded {
            let (way, mbps) = (loaded.way, significant(loaded.mbps));
            lines.push(format!("While TCP sends {mbps} Mbit/s {way}: {}.", loaded.rtt.in_words()));
        }
        for mtu in &self.mtu {
            let bytes = mtu.bytes.map_or_else(|| "none passed".to_owned(), |bytes| format!("{bytes} bytes"));
            lines.push(format!("Longest IP packet {}: {bytes}.", mtu.way));
        }
        for verdict in &self.verdicts {
            let bloat = if verdict.bufferbloat { ", with bufferbloat" } else { "" };
            lines.push(format!(
                "The limit {}: **{}**{bloat}. {} {}",
                verdict.way,
                verdict.limit,
                verdict.evidence.join(" "),
                verdict.by_itself
            ));
            lines.extend(verdict.advice.iter().cloned());
        }
        lines.extend(Way::BOTH.into_iter().filter_map(|way| self.paced_in_words(way)));
        lines.extend(self.disk_to_disk_sentences());
        lines
    }

    /// Caption, head and rows of each table.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = Vec::new();
        for way in Way::BOTH {
            let rows: Vec<_> = self.udp.iter().filter(|udp| udp.way == way).map(Udp::row).collect();
            if !rows.is_empty() {
                let caption = format!("UDP {way}, Mbit/s of the wire, by frame size");
                let head = vec![
                    "frame",
                    "capacity",
                    "bound by",
                    "loss above",
                    "at 90 %",
                    "loss",
                    "jitter ms",
                    "reordered",
                    "twice",
                ];
                tables.push((caption, head, rows));
            }
        }
        for way in Way::BOTH {
            let rows: Vec<_> = self.tcp.iter().filter(|tcp| tcp.way == way).map(Tcp::row).collect();
            if !rows.is_empty() {
                let caption = format!("TCP {way}, Mbit/s of payload, by window and streams");
                let head = vec![
                    "window",
                    "streams",
                    "measured",
                    "window/RTT",
                    "Mathis",
                    "sent again",
                    "RTT ms",
                    "CPU sender, receiver",
                ];
                tables.push((caption, head, rows));
            }
        }
        tables.extend(Way::BOTH.into_iter().filter_map(|way| self.controlled_table(way)));
        tables.extend(Way::BOTH.into_iter().filter_map(|way| self.paced_table(way)));
        tables.extend(self.disks_table());
        tables.extend(self.disk_to_disk_table());
        tables
    }
}

impl Rtt {
    fn in_words(&self) -> String {
        let Self { sent, back, min_ms, median_ms, p99_ms } = self;
        if *back == 0 {
            return format!("none of {sent} packets came back");
        }
        let lost = if back < sent { format!(", {} of {sent} lost", sent - back) } else { String::new() };
        format!("{min_ms:.2} ms at least, median {median_ms:.2}, 99 % below {p99_ms:.2}{lost}")
    }
}

fn percent(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{} %", significant(value)) }
}

impl Udp {
    fn row(&self) -> Vec<String> {
        let bound = match self.bound {
            Bound::Path => "path",
            Bound::Sender => "sender",
            Bound::Allowed => "what is allowed",
            Bound::Nothing => "loss at any rate",
        };
        let below = |of: fn(&Packets) -> String| self.below.as_ref().map_or_else(|| "-".to_owned(), of);
        vec![
            self.frame_bytes.to_string(),
            significant(self.above.arrived_mbps),
            bound.to_owned(),
            percent(self.above.lost_percent()),
            below(|below| significant(below.sent_mbps)),
            below(|below| percent(below.lost_percent())),
            below(|below| format!("{:.3}", below.jitter_ms)),
            below(|below| below.reordered.to_string()),
            below(|below| below.duplicates.to_string()),
        ]
    }
}

impl Tcp {
    fn row(&self) -> Vec<String> {
        let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), significant);
        vec![
            self.window_in_words(),
            self.streams.to_string(),
            significant(self.mbps),
            or_dash(self.window_mbps),
            or_dash(self.mathis_mbps),
            percent(self.retransmitted_percent),
            format!("{:.2}", self.rtt_ms),
            format!("{:.0} %, {:.0} %", self.cpu[0], self.cpu[1]),
        ]
    }

    /// `256 KiB`, or `kernel's`.
    #[must_use]
    pub fn window_in_words(&self) -> String {
        match self.window_bytes {
            None => "kernel's".to_owned(),
            Some(bytes) if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
            Some(bytes) => format!("{} KiB", bytes >> 10),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn path() -> Path {
        let mut path = Path::new("far", Environment::default());
        path.rtt = Some(Rtt { sent: 100, back: 99, min_ms: 10.0, median_ms: 10.1, p99_ms: 11.0 });
        path.mtu.push(Mtu { way: Way::ToServer, bytes: Some(1500) });
        path.udp.push(Udp {
            way: Way::ToServer,
            frame_bytes: 1518,
            bound: Bound::Path,
            above: Packets {
                sent_mbps: 106.0,
                arrived_mbps: 100.0,
                packets: 1000,
                lost: 60,
                ..Packets::default()
            },
            below: Some(Packets { sent_mbps: 90.0, arrived_mbps: 90.0, packets: 1000, ..Packets::default() }),
            half: None,
            bursts: vec![[106.0, 100.0, 6.0]],
        });
        path.tcp.push(Tcp {
            way: Way::ToServer,
            window_bytes: Some(256 << 10),
            streams: 4,
            mbps: 94.0,
            window_mbps: Some(838.0),
            mathis_mbps: None,
            retransmitted_percent: 0.0,
            rtt_ms: 10.2,
            rwnd_limited_percent: 0.0,
            sndbuf_limited_percent: 0.0,
            cpu: [5.0, 6.0],
            interrupts: [0.0, 0.0],
            hosts: [0.0, 0.0],
        });
        path.controlled.push(Controlled { control: "reno".to_owned(), tcp: path.tcp[0] });
        path.disks.push(Disk {
            side: Side::Server,
            directory: "/data".to_owned(),
            write_mbps: 1234.0,
            read_mbps: 2345.0,
            direct: true,
        });
        path.disk_to_disk.push(DiskToDisk {
            way: Way::ToServer,
            bytes: 64 << 20,
            seconds: 5.9,
            mbps: 91.0,
            lanes: 16,
            from_memory: false,
        });
        path
    }

    #[test]
    fn records_round_trip() {
        let text = path().to_json().unwrap();
        assert_eq!(Path::from_json(&text).unwrap(), path());
    }

    #[test]
    fn records_from_before_disks_were_measured_are_read() {
        let mut old = serde_json::to_value(path()).unwrap();
        for since in ["disks", "disk_to_disk"] {
            old.as_object_mut().unwrap().remove(since).unwrap();
        }
        let without = Path { disks: Vec::new(), disk_to_disk: Vec::new(), ..path() };
        assert_eq!(Path::from_json(&old.to_string()).unwrap(), without);
        assert!(!without.markdown().contains("Disk"));
    }

    #[test]
    fn tables_say_what_was_measured() {
        let text = path().markdown();
        assert!(text.contains("10.00 ms at least, median 10.10, 99 % below 11.00, 1 of 100 lost"), "{text}");
        assert!(text.contains("| the server |     /data |  1234 | 2345 |                 yes |"), "{text}");
        assert!(text.contains("| to the server |     91.0 |  64 |    5.90 |    16 |      disk |"), "{text}");
        assert!(text.contains("by congestion control") && text.contains("| reno    |       4 |"), "{text}");
        assert!(text.contains("256 KiB") && text.contains("838") && text.contains("1500 bytes"), "{text}");
        assert_eq!(path().capacity(Way::ToServer), Some(100.0));
        assert_eq!(path().capacity(Way::FromServer), None);
    }
}
