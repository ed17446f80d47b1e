//! What a test found: as text and as JSON of the forms that iperf3's users, and their programs, know.

use std::net::SocketAddr;

use crate::counts::Counts;
use crate::iperf3::message::{Cookie, Direction, Parameters, Protocol, Results, StreamResult};
use crate::iperf3::stream_id;
use crate::processor::Share;
use crate::traffic::{FlowInterval, FlowTotal, Role, TcpSummary};

mod json;
mod text;

pub use json::document;
pub use text::{amount, bit_rate, end, heading, interval, interval_heading, stream_opened};

/// Which end tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that asked for the test.
    Client,
    /// The other.
    Server,
}

/// One stream, before it has moved anything.
#[derive(Clone, Copy, Debug)]
pub struct FlowStart {
    /// The number of its socket.
    pub socket: i32,
    /// Which way it goes.
    pub role: Role,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// A test that begins.
#[derive(Clone, Debug)]
pub struct Start {
    /// Which end this is.
    pub side: Side,
    /// The other end: as it was named, or its address.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// What was agreed on.
    pub parameters: Parameters,
    /// The mark of its connections.
    pub cookie: Cookie,
    /// Its streams.
    pub flows: Vec<FlowStart>,
    /// Sizes of the first stream's buffers, for sending and receiving, as the kernel has them.
    pub buffers: (u64, u64),
    /// This end's congestion control.
    pub congestion: Option<String>,
    /// TCP's segments on the control connection.
    pub mss: u32,
    /// When, in seconds since 1970.
    pub unix_seconds: u64,
}

/// A test that is over, as this end saw it, and what the other end said.
#[derive(Clone, Debug)]
pub struct End {
    /// What this end moved.
    pub totals: Vec<FlowTotal>,
    /// Processor time of this end.
    pub processor: Share,
    /// This end's congestion control.
    pub congestion: Option<String>,
    /// What the other end said.
    pub peer: Results,
}

/// What one end of a stream saw.
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    bytes: u64,
    seconds: f64,
    packets: u64,
    lost: i64,
    jitter_s: f64,
}

impl Half {
    fn bits_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 * 8.0 / self.seconds } else { 0.0 }
    }

    fn lost_percent(&self) -> f64 {
        Counts { packets: self.packets, lost: self.lost, ..Counts::default() }.lost_percent()
    }

    fn total<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut total = Self::default();
        let mut count = 0.0;
        for half in all {
            total.bytes = total.bytes.saturating_add(half.bytes);
            total.seconds = total.seconds.max(half.seconds);
            total.packets = total.packets.saturating_add(half.packets);
            total.lost = total.lost.saturating_add(half.lost);
            total.jitter_s += half.jitter_s;
            count += 1.0;
        }
        total.jitter_s /= f64::max(count, 1.0);
        total
    }
}

/// Both ends of a stream.
#[derive(Clone, Copy, Debug)]
struct Both {
    socket: i32,
    role: Role,
    sent: Half,
    received: Half,
    /// Segments sent again, where the sender knows.
    retransmits: Option<u64>,
    /// Where the sender is here.
    tcp: Option<TcpSummary>,
    reordered: u64,
}

impl End {
    fn flows(&self) -> Vec<Both> {
        let flow = |(place, total): (usize, &FlowTotal)| {
            let said = self.peer.stream(stream_id(place)).copied().unwrap_or_default();
            let here = Half {
                bytes: total.counts.bytes,
                seconds: total.seconds,
                packets: total.counts.packets,
                lost: total.counts.lost,
                jitter_s: total.counts.jitter_s,
            };
            let there = said.half(total.seconds);
            let (sent, received) = match total.role {
                Role::Sends => (here, there),
                Role::Receives => (there, here),
            };
            let retransmits = match (total.tcp, total.role) {
                (Some(tcp), _) => Some(tcp.retransmits),
                (None, Role::Receives) if self.peer.has_retransmits => said.retransmits,
                _ => None,
            };
            let reordered = total.counts.reordered;
            Both {
                socket: total.socket,
                role: total.role,
                sent,
                received,
                retransmits,
                tcp: total.tcp,
                reordered,
            }
        };
        self.totals.iter().enumerate().map(flow).collect()
    }
}

impl StreamResult {
    /// What a peer of before 3.2 says has no times.
    fn half(&self, seconds: f64) -> Half {
        let seconds = if self.seconds > 0.0 { self.seconds } else { seconds };
        Half { bytes: self.bytes, seconds, packets: self.packets, lost: self.errors, jitter_s: self.jitter }
    }
}

/// The flows of an interval or a test by direction, the client's first; each direction that there is.
fn by_role<T>(all: &[T], side: Side, role: impl Fn(&T) -> Role) -> Vec<(Role, Vec<&T>)> {
    let first = if side == Side::Client { Role::Sends } else { Role::Receives };
    let other = if first == Role::Sends { Role::Receives } else { Role::Sends };
    let of = |wanted: Role| (wanted, all.iter().filter(|one| role(one) == wanted).collect::<Vec<_>>());
    [first, other].map(of).into_iter().filter(|(_, flows)| !flows.is_empty()).collect()
}

fn is_udp(start: &Start) -> bool {
    start.parameters.protocol == Protocol::Udp
}

fn is_both_ways(start: &Start) -> bool {
    start.parameters.direction == Direction::Both
}

fn seconds(interval: &FlowInterval) -> f64 {
    (interval.end - interval.start).max(1e-9)
}

#[cfg(test)]
mod tests;
