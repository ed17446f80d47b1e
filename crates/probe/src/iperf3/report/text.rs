//! Lines for people.

use std::fmt::Write;

use super::{Both, End, Half, Side, Start, by_role, is_both_ways, is_udp, seconds};
use crate::counts::Counts;
use crate::iperf3::message::Direction;
use crate::traffic::{FlowInterval, Role};

const RULE: &str = "- - - - - - - - - - - - - - - - - - - - - - - - -\n";

/// Four characters wide, with three digits that count.
fn scaled(number: f64, base: f64, units: [&str; 5]) -> String {
    let mut number = number;
    let mut unit = units[0];
    for next in &units[1..] {
        if number < base {
            break;
        }
        number /= base;
        unit = next;
    }
    let decimals = match number {
        number if number < 9.995 => 2,
        number if number < 99.95 => 1,
        _ => 0,
    };
    format!("{number:4.decimals$} {unit}")
}

/// Bytes, by powers of 1024.
#[must_use]
pub fn amount(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, ["Bytes", "KBytes", "MBytes", "GBytes", "TBytes"])
}

/// Bits a second, by powers of 1000.
#[must_use]
pub fn bit_rate(bits_per_s: f64) -> String {
    scaled(bits_per_s, 1000.0, ["bits/sec", "Kbits/sec", "Mbits/sec", "Gbits/sec", "Tbits/sec"])
}

/// Where streams are to go.
#[must_use]
pub fn heading(start: &Start) -> String {
    let mut text = match start.side {
        Side::Client => format!("Connecting to host {}, port {}\n", start.host, start.port),
        Side::Server => format!("Accepted connection from {}, port {}\n", start.host, start.port),
    };
    if start.side == Side::Client && start.parameters.direction == Direction::Reverse {
        let _ = writeln!(text, "Reverse mode, remote host {} is sending", start.host);
    }
    text
}

/// One line a stream.
#[must_use]
pub fn stream_opened(start: &Start) -> String {
    let mut text = String::new();
    for flow in &start.flows {
        let (local, remote) = (flow.local, flow.remote);
        let _ = writeln!(
            text,
            "[{:3}] local {} port {} connected to {} port {}",
            flow.socket,
            local.ip(),
            local.port(),
            remote.ip(),
            remote.port()
        );
    }
    text
}

fn role_word(start: &Start, role: Role) -> &'static str {
    match (is_both_ways(start), start.side, role) {
        (false, ..) => "",
        (true, Side::Client, Role::Sends) => "[TX-C]",
        (true, Side::Client, Role::Receives) => "[RX-C]",
        (true, Side::Server, Role::Sends) => "[TX-S]",
        (true, Side::Server, Role::Receives) => "[RX-S]",
    }
}

/// What the columns of the intervals are.
#[must_use]
pub fn interval_heading(start: &Start) -> String {
    let sends = start.flows.iter().any(|flow| flow.role == Role::Sends);
    let receives = start.flows.iter().any(|flow| flow.role == Role::Receives);
    let last = match (is_udp(start), sends, receives) {
        (true, true, false) => "Total Datagrams",
        (true, _, true) => "Jitter    Lost/Total Datagrams",
        (false, true, _) => "Retr  Cwnd",
        _ => "",
    };
    columns(start, last)
}

fn columns(start: &Start, last: &str) -> String {
    let role = if is_both_ways(start) { "[Role]" } else { "" };
    format!("{}\n", format!("[ ID]{role} Interval           Transfer     Bitrate         {last}").trim_end())
}

/// The beginning that all lines have.
fn beginning(name: &str, role: &str, from: f64, to: f64, bytes: u64, bits_per_s: f64) -> String {
    format!("[{name:>3}]{role} {from:6.2}-{to:<6.2} sec  {}  {}  ", amount(bytes), bit_rate(bits_per_s))
}

/// What was lost, as all lines of receivers have it.
fn losses(jitter_s: f64, lost: i64, packets: u64, percent: f64) -> String {
    let percent = match percent {
        percent if percent == 0.0 || percent >= 9.95 => format!("{percent:.0}"),
        percent => format!("{percent:.2}"),
    };
    format!("{:5.3} ms  {lost}/{packets} ({percent}%)  ", jitter_s * 1e3)
}

/// The lines of an interval: each stream, and each direction where it has several.
#[must_use]
pub fn interval(start: &Start, flows: &[FlowInterval]) -> String {
    let mut text = String::new();
    for (role, flows) in by_role(flows, start.side, |flow| flow.role) {
        let word = role_word(start, role);
        for flow in &flows {
            let cwnd = flow.tcp.map(|tcp| (tcp.retransmits, Some(tcp.cwnd)));
            text += &interval_line(start, &flow.socket.to_string(), word, flow, &flow.counts, cwnd);
        }
        if let [first, _, ..] = flows[..] {
            let counts = Counts::total(&flows.iter().map(|flow| flow.counts).collect::<Vec<_>>());
            let retransmits = first.tcp.map(|_| flows.iter().filter_map(|flow| flow.tcp));
            let retransmits = retransmits.map(|all| (all.map(|tcp| tcp.retransmits).sum(), None));
            text += &interval_line(start, "SUM", word, first, &counts, retransmits);
        }
    }
    text
}

fn interval_line(
    start: &Start,
    name: &str,
    role: &str,
    flow: &FlowInterval,
    counts: &Counts,
    tcp: Option<(u64, Option<u64>)>,
) -> String {
    let rate = counts.bytes as f64 * 8.0 / seconds(flow);
    let mut line = beginning(name, role, flow.start, flow.end, counts.bytes, rate);
    line += &match (is_udp(start), flow.role, tcp) {
        (true, Role::Sends, _) => format!("{}  ", counts.packets),
        (true, Role::Receives, _) => {
            losses(counts.jitter_s, counts.lost, counts.packets, counts.lost_percent())
        }
        (false, _, Some((retransmits, Some(cwnd)))) => format!("{retransmits:3}   {}       ", amount(cwnd)),
        (false, _, Some((retransmits, None))) => format!("{retransmits:3}             "),
        (false, _, None) => " ".repeat(16),
    };
    line += if flow.omitted { "(omitted)\n" } else { "\n" };
    line
}

/// The lines after the last interval.
#[must_use]
pub fn end(start: &Start, end: &End) -> String {
    let mut text = String::from(RULE);
    let last = match (is_udp(start), start.side, start.parameters.direction) {
        (true, ..) => "Jitter    Lost/Total Datagrams",
        (false, Side::Server, Direction::Forward) => "",
        (false, ..) => "Retr",
    };
    text += &columns(start, last);
    let flows = end.flows();
    for (role, flows) in by_role(&flows, start.side, |flow| flow.role) {
        let word = role_word(start, role);
        for flow in &flows {
            text += &end_lines(start, &flow.socket.to_string(), word, flow);
        }
        if let [first, _, ..] = flows[..] {
            let known = flows.iter().filter_map(|flow| flow.retransmits);
            let sum = Both {
                sent: Half::total(flows.iter().map(|flow| &flow.sent)),
                received: Half::total(flows.iter().map(|flow| &flow.received)),
                retransmits: first.retransmits.map(|_| known.sum()),
                ..*first
            };
            text += &end_lines(start, "SUM", word, &sum);
        }
    }
    for (role, flows) in by_role(&flows, start.side, |flow| flow.role) {
        let (late, lost) = (flows.iter().map(|flow| flow.reordered).sum::<u64>(), role == Role::Receives);
        if is_udp(start) && lost && late > 0 {
            let _ = writeln!(text, "{late} datagrams received out-of-order");
        }
    }
    text
}

fn end_lines(start: &Start, name: &str, role: &str, flow: &Both) -> String {
    let mut text = String::new();
    // A server knows its own end only when it speaks.
    let ends = match (start.side, flow.role) {
        (Side::Client, _) => &[true, false][..],
        (Side::Server, Role::Sends) => &[true],
        (Side::Server, Role::Receives) => &[false],
    };
    for sender in ends {
        let half = if *sender { &flow.sent } else { &flow.received };
        text += &beginning(name, role, 0.0, half.seconds, half.bytes, half.bits_per_second());
        text += &match (is_udp(start), sender, flow.retransmits) {
            (true, true, _) => losses(0.0, 0, half.packets, 0.0),
            (true, false, _) => losses(half.jitter_s, half.lost, half.packets, half.lost_percent()),
            (false, true, Some(retransmits)) => format!("{retransmits:3}             "),
            (false, ..) => " ".repeat(16),
        };
        text += if *sender { "sender\n" } else { "receiver\n" };
    }
    text
}
