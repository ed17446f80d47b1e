//! The record of the reports' own experiments, made again: what `longhaul bench reports` keeps.
//!
//! Each experiment has a link and a kind of measurement; what was published of it is found by its name
//! ([`published`](crate::published)) and stands beside, but is no part of the record.

use serde::{Deserialize, Serialize};

use crate::io::Place;
use crate::record::{Environment, LeftOut, Link, ReadError, Scenario, Verdict};
use crate::trace::{Lane, Sample, Trace};

/// Name and version of the schema, first in every record.
pub const SCHEMA: &str = "longhaul-reports/1";

/// Experiments on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was measured, in a few words.
    pub title: String,
    /// Where, when and with what.
    pub environment: Environment,
    /// In the order in which they were made.
    pub experiments: Vec<Experiment>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Short name; its first word is the place: `jaxa-tcp`.
    pub name: String,
    /// What it is, and of which report.
    pub title: String,
    /// How it is made here, and what is different from then.
    pub about: Vec<String>,
    /// What is between the hosts.
    pub link: Link,
    /// Tools, or parts of it, that were not run, and why.
    pub left_out: Vec<LeftOut>,
    /// What was found.
    pub found: Found,
}

/// What was found, by the kind of measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// UDP by the size of a frame: every burst.
    Udp(Vec<Run>),
    /// TCP by the window and the number of streams.
    Tcp(Vec<Run>),
    /// File I/O by the length of a call.
    Files(Place),
    /// Copies, and longhaul's over time, where that was recorded.
    Copies {
        /// Every run of every tool.
        scenario: Scenario,
        /// The first of longhaul's.
        levels: Vec<Level>,
    },
}

/// Traffic from memory to memory, once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Who made it.
    pub tool: String,
    /// From 1.
    pub round: u32,
    /// The near host's command.
    pub command: Vec<String>,
    /// UDP: bytes of a frame on Ethernet, from its address to its checksum.
    pub frame_bytes: u64,
    /// UDP: load that was asked for, in bits of frames, preambles and gaps a second.
    pub offered_bps: f64,
    /// TCP: bytes that were asked for as the buffers of each socket.
    pub window_bytes: u64,
    /// TCP: connections at a time.
    pub streams: u64,
    /// Time for which it was counted.
    pub seconds: f64,
    /// Payload that arrived.
    pub bits_per_second: f64,
    /// UDP.
    pub packets_sent: u64,
    /// UDP.
    pub packets_received: u64,
    /// Why there is no result.
    pub failure: Option<String>,
    /// The emulator's word on its link.
    pub link: Verdict,
}

/// Bytes of a frame beside the payload of UDP over IPv4: Ethernet 14 and 4 (IEEE 802.3), IPv4 20 (RFC 791), UDP 8 (RFC 768).
pub const UDP_FRAMING: u64 = 46;

/// Bytes of the wire beside a frame: preamble 8, gap 12 (IEEE 802.3).
pub const WIRE_FRAMING: u64 = 20;

/// Share of packets that may be lost for a load to count, as JAXA's measurements took it.
pub const LOSS_MAX: f64 = 0.05;

impl Run {
    /// UDP: share of packets that did not arrive.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let received = self.packets_received.min(self.packets_sent) as f64;
        if self.packets_sent == 0 { 1.0 } else { 1.0 - received / self.packets_sent as f64 }
    }

    /// UDP: frames that arrived, in Mbit/s, as the reports count them.
    #[must_use]
    pub fn frames_mbps(&self) -> Option<f64> {
        let rate = (self.packets_received * self.frame_bytes) as f64 * 8e-6 / self.seconds;
        (self.failure.is_none() && rate.is_finite()).then_some(rate)
    }

    /// Payload, in Mbit/s.
    #[must_use]
    pub fn mbps(&self) -> Option<f64> {
        let rate = self.bits_per_second * 1e-6;
        (self.failure.is_none() && rate.is_finite()).then_some(rate)
    }
}

/// A copy at a moment, both ends together. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Level {
    /// Since the session began.
    pub seconds: f64,
    /// Payload of files that has arrived.
    pub done: u64,
    /// On the lanes, both ways, since the beginning.
    pub wire: u64,
    /// Connections.
    pub lanes: u64,
    /// Received and not read: the sockets' buffers.
    pub sockets: u64,
    /// Read and not stored: the program's buffers.
    pub program: u64,
    /// Stored and not on disk: the page caches.
    pub page_cache: u64,
}

/// Moments of a copy that are kept: enough for a plot on a wide page.
const LEVELS_MAX: usize = 300;

/// A trace, of which not every sample is kept.
#[must_use]
pub fn levels(trace: &Trace) -> Vec<Level> {
    let every = trace.samples.len().div_ceil(LEVELS_MAX).max(1);
    trace.samples.iter().step_by(every).map(Level::of).collect()
}

/// The trace again, with all that is received and not stored in the first lane.
#[must_use]
pub fn trace(levels: &[Level]) -> Trace {
    Trace { samples: levels.iter().map(Level::sample).collect() }
}

impl Level {
    fn of(sample: &Sample) -> Self {
        let far = sample.far.unwrap_or_default();
        let near = sample.lanes.iter().fold(0u64, |sum, lane| sum.saturating_add(lane.inbox_bytes));
        Self {
            seconds: sample.seconds,
            done: sample.done_bytes,
            wire: sample.sent_bytes.saturating_add(sample.received_bytes),
            lanes: sample.lanes.len() as u64,
            sockets: sample.socket_bytes.saturating_add(far.socket_bytes),
            program: near.saturating_add(far.inbox_bytes),
            page_cache: sample.dirty_bytes.saturating_add(far.dirty_bytes),
        }
    }

    fn sample(&self) -> Sample {
        // Whoever wrote the record: no more lanes than a session may have.
        const LANES_MAX: u64 = 1024;
        let mut lanes = vec![Lane::default(); self.lanes.min(LANES_MAX) as usize];
        if let Some(first) = lanes.first_mut() {
            first.inbox_bytes = self.program;
        }
        Sample {
            seconds: self.seconds,
            done_bytes: self.done,
            received_bytes: self.wire,
            dirty_bytes: self.page_cache,
            socket_bytes: self.sockets,
            lanes,
            ..Sample::default()
        }
    }
}

impl Reports {
    /// A record without experiments.
    #[must_use]
    pub fn new(title: &str, environment: Environment) -> Self {
        Self { schema: SCHEMA.to_owned(), title: title.to_owned(), environment, experiments: Vec::new() }
    }

    /// As JSON, for people too.
    ///
    /// # Errors
    /// When a figure is not a number JSON can hold.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Reads a record; what is derived in it is computed anew.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn from_json(text: &str) -> Result<Self, ReadError> {
        let mut record: Self = crate::record::read(SCHEMA, text)?;
        for experiment in &mut record.experiments {
            if let Found::Copies { scenario, .. } = &mut experiment.found {
                scenario.derive();
            }
        }
        Ok(record)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::tests::{run as copy, scenario};
    use crate::record::{End, OURS};

    pub(crate) fn burst(tool: &str, offered_bps: f64, received: u64) -> Run {
        Run {
            tool: tool.to_owned(),
            round: 1,
            frame_bytes: 1250,
            offered_bps,
            seconds: 1.0,
            packets_sent: 100_000,
            packets_received: received,
            link: Verdict { trusted: true, ..Verdict::default() },
            ..Run::default()
        }
    }

    #[test]
    fn frames_are_counted_whole() {
        let run = burst(OURS, 1e9, 96_000);
        assert_eq!(run.frames_mbps(), Some(960.0));
        assert!((run.loss() - 0.04).abs() < 1e-9);
        assert_eq!(Run { failure: Some("no".to_owned()), ..run.clone() }.frames_mbps(), None);
        assert_eq!(Run { packets_sent: 0, ..run.clone() }.loss(), 1.0);
        assert_eq!(Run { packets_received: 100_001, ..run }.loss(), 0.0, "one came twice");
    }

    #[test]
    fn a_trace_is_kept_small_and_whole() {
        let lanes = vec![Lane { inbox_bytes: 2 }; 3];
        let samples = (0..3000)
            .map(|tick| Sample {
                seconds: f64::from(tick),
                done_bytes: 7,
                sent_bytes: 1,
                received_bytes: 2,
                socket_bytes: 5,
                lanes: lanes.clone(),
                ..Sample::default()
            })
            .collect();
        let kept = levels(&Trace { samples });
        assert_eq!(kept.len(), 300);
        let level =
            Level { seconds: 10.0, done: 7, wire: 3, lanes: 3, sockets: 5, program: 6, page_cache: 0 };
        assert_eq!(kept[1], level);
        assert_eq!(levels(&trace(&kept)), kept);
    }

    #[test]
    fn records_round_trip() {
        let mut record = Reports::new("r", Environment::default());
        let copies = scenario(vec![copy(OURS, 1_000_000_000, 9.0, End::Complete)]);
        record.experiments.push(Experiment {
            name: "kek-copy".to_owned(),
            title: String::new(),
            about: Vec::new(),
            link: copies.link.clone(),
            left_out: Vec::new(),
            found: Found::Copies { scenario: copies, levels: vec![Level::default()] },
        });
        let text = record.to_json().unwrap();
        assert_eq!(Reports::from_json(&text).unwrap(), record);
    }
}
