//! The record for programs: names and places as iperf3 3.12 has them, and some of our own (`longhaul`).

use serde_json::{Map, Value, json};

use super::{Both, End, Half, Side, Start, by_role, is_both_ways, is_udp, seconds};
use crate::counts::Counts;
use crate::iperf3::VERSION;
use crate::iperf3::message::Direction;
use crate::traffic::{FlowInterval, Role};

/// The whole record. What went wrong, if something did, is in `error`, and then there may be no end.
#[must_use]
pub fn document(
    start: Option<&Start>,
    intervals: &[Vec<FlowInterval>],
    end: Option<&End>,
    system: &str,
    error: Option<&str>,
) -> Value {
    let beginning = start
        .map_or_else(|| json!({"version": format!("iperf {VERSION}")}), |start| beginning(start, system));
    let interval = |flows: &Vec<FlowInterval>| start.map_or(Value::Null, |start| interval(start, flows));
    let mut all = json!({
        "start": beginning,
        "intervals": intervals.iter().map(interval).collect::<Vec<_>>(),
        "end": start.zip(end).map_or_else(|| json!({}), |(start, end)| ending(start, end)),
    });
    if let Some(error) = error {
        all["error"] = error.into();
    }
    all
}

fn beginning(start: &Start, system: &str) -> Value {
    let parameters = &start.parameters;
    let connected = |flow: &super::FlowStart| {
        json!({
            "socket": flow.socket,
            "local_host": flow.local.ip().to_string(), "local_port": flow.local.port(),
            "remote_host": flow.remote.ip().to_string(), "remote_port": flow.remote.port(),
        })
    };
    let mut all = json!({
        "connected": start.flows.iter().map(connected).collect::<Vec<_>>(),
        "version": format!("iperf {VERSION}"),
        "longhaul": env!("CARGO_PKG_VERSION"),
        "system_info": system,
        "timestamp": { "time": http_date(start.unix_seconds), "timesecs": start.unix_seconds },
        "cookie": start.cookie.text(),
        "target_bitrate": parameters.bandwidth,
        "sock_bufsize": parameters.window,
        "sndbuf_actual": start.buffers.0, "rcvbuf_actual": start.buffers.1,
        "test_start": {
            "protocol": if is_udp(start) { "UDP" } else { "TCP" },
            "num_streams": parameters.parallel, "blksize": parameters.length,
            "omit": parameters.omit, "duration": parameters.seconds,
            "bytes": parameters.bytes, "blocks": parameters.blocks,
            "reverse": u8::from(parameters.direction == Direction::Reverse),
            "bidir": u8::from(is_both_ways(start)),
            "tos": 0, "target_bitrate": parameters.bandwidth,
        },
    });
    let end = json!({"host": start.host, "port": start.port});
    all[if start.side == Side::Client { "connecting_to" } else { "accepted_connection" }] = end;
    if !is_udp(start) {
        all["tcp_mss_default"] = start.mss.into();
    }
    all
}

/// `Mon, 23 Nov 2026 06:30:46 GMT`, as HTTP has it.
fn http_date(unix_seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 0;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    format!(
        "{}, {:02} {} {year} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        left + 1,
        MONTHS[month],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// What intervals and sums have in common.
fn moved(start: f64, end: f64, bytes: u64, sender: bool) -> Map<String, Value> {
    let seconds = (end - start).max(0.0);
    let rate = if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
    let all = json!({
        "start": start, "end": end, "seconds": seconds, "bytes": bytes, "bits_per_second": rate, "sender": sender,
    });
    match all {
        Value::Object(all) => all,
        _ => Map::new(),
    }
}

fn put_losses(all: &mut Map<String, Value>, half: &Half) {
    all.insert("jitter_ms".to_owned(), (half.jitter_s * 1e3).into());
    all.insert("lost_packets".to_owned(), half.lost.into());
    all.insert("packets".to_owned(), half.packets.into());
    all.insert("lost_percent".to_owned(), half.lost_percent().into());
}

fn interval(start: &Start, flows: &[FlowInterval]) -> Value {
    let streams: Vec<Value> =
        flows.iter().map(|flow| interval_stream(start, flow, &flow.counts, true)).collect();
    let mut all = json!({"streams": streams});
    for (place, (_, flows)) in by_role(flows, start.side, |flow| flow.role).into_iter().enumerate() {
        let counts = Counts::total(&flows.iter().map(|flow| flow.counts).collect::<Vec<_>>());
        let mut sum = interval_stream(start, flows[0], &counts, false);
        if flows[0].tcp.is_some() {
            let retransmits = flows.iter().filter_map(|flow| flow.tcp).map(|tcp| tcp.retransmits);
            sum["retransmits"] = retransmits.sum::<u64>().into();
        }
        all[if place == 0 { "sum" } else { "sum_bidir_reverse" }] = sum;
    }
    all
}

fn interval_stream(start: &Start, flow: &FlowInterval, counts: &Counts, own: bool) -> Value {
    let sends = flow.role == Role::Sends;
    let mut all = moved(flow.start, flow.start + seconds(flow), counts.bytes, sends);
    let mut put = |name: &str, value: Value| all.insert(name.to_owned(), value);
    put("omitted", flow.omitted.into());
    if own {
        put("socket", flow.socket.into());
    }
    if let Some(tcp) = flow.tcp.filter(|_| own) {
        put("retransmits", tcp.retransmits.into());
        put("snd_cwnd", tcp.cwnd.into());
        put("snd_wnd", tcp.send_window.into());
        put("rtt", tcp.rtt_us.into());
        put("rttvar", tcp.rttvar_us.into());
        put("pmtu", tcp.path_mtu.into());
    }
    match (is_udp(start), sends) {
        (true, true) => drop(put("packets", counts.packets.into())),
        (true, false) => {
            let half = Half {
                packets: counts.packets,
                lost: counts.lost,
                jitter_s: counts.jitter_s,
                ..Half::default()
            };
            put_losses(&mut all, &half);
        }
        (false, _) => {}
    }
    Value::Object(all)
}

fn ending(start: &Start, end: &End) -> Value {
    let flows = end.flows();
    let client = start.side == Side::Client;
    let stream = |flow: &Both| if is_udp(start) { udp_stream(flow) } else { tcp_stream(flow) };
    let mut all = json!({"streams": flows.iter().map(stream).collect::<Vec<_>>()});
    for (place, (role, flows)) in by_role(&flows, start.side, |flow| flow.role).into_iter().enumerate() {
        let suffix = if place == 0 { "" } else { "_bidir_reverse" };
        let sends = role == Role::Sends;
        let (sent, received) = (
            Half::total(flows.iter().map(|flow| &flow.sent)),
            Half::total(flows.iter().map(|flow| &flow.received)),
        );
        let mut sum_sent = moved(0.0, sent.seconds, sent.bytes, sends || is_udp(start));
        let mut sum_received = moved(0.0, received.seconds, received.bytes, sends && !is_udp(start));
        if is_udp(start) {
            put_losses(&mut sum_sent, &Half { lost: 0, jitter_s: 0.0, ..sent });
            put_losses(&mut sum_received, &received);
            let mut sum = moved(0.0, received.seconds, sent.bytes, sends);
            put_losses(&mut sum, &received);
            all[format!("sum{suffix}")] = sum.into();
        } else if flows.iter().any(|flow| flow.retransmits.is_some()) {
            let retransmits: u64 = flows.iter().filter_map(|flow| flow.retransmits).sum();
            sum_sent.insert("retransmits".to_owned(), retransmits.into());
        }
        all[format!("sum_sent{suffix}")] = sum_sent.into();
        all[format!("sum_received{suffix}")] = sum_received.into();
    }
    let (here, there) = (end.processor, end.peer.processor);
    all["cpu_utilization_percent"] = json!({
        "host_total": here.total, "host_user": here.user, "host_system": here.system,
        "remote_total": there[0], "remote_user": there[1], "remote_system": there[2],
    });
    if !is_udp(start) {
        let client_sends = start.parameters.direction != Direction::Reverse;
        let own = if client_sends == client { "sender" } else { "receiver" };
        let other = if client_sends == client { "receiver" } else { "sender" };
        for (name, congestion) in [(own, &end.congestion), (other, &end.peer.congestion)] {
            if let Some(congestion) = congestion {
                all[format!("{name}_tcp_congestion")] = congestion.as_str().into();
            }
        }
    }
    all
}

fn tcp_stream(flow: &Both) -> Value {
    let sends = flow.role == Role::Sends;
    let mut sender = moved(0.0, flow.sent.seconds, flow.sent.bytes, sends);
    let mut receiver = moved(0.0, flow.received.seconds, flow.received.bytes, sends);
    sender.insert("socket".to_owned(), flow.socket.into());
    receiver.insert("socket".to_owned(), flow.socket.into());
    if let Some(retransmits) = flow.retransmits {
        sender.insert("retransmits".to_owned(), retransmits.into());
    }
    if let Some(tcp) = flow.tcp {
        let numbers = [
            ("max_snd_cwnd", tcp.cwnd_max),
            ("max_snd_wnd", tcp.send_window_max),
            ("max_rtt", tcp.rtt_max_us.into()),
            ("min_rtt", tcp.rtt_min_us.into()),
            ("mean_rtt", tcp.rtt_mean_us.into()),
        ];
        sender.extend(numbers.map(|(name, number)| (name.to_owned(), number.into())));
    }
    json!({"sender": sender, "receiver": receiver})
}

fn udp_stream(flow: &Both) -> Value {
    let mut all = moved(0.0, flow.sent.seconds, flow.sent.bytes, flow.role == Role::Sends);
    put_losses(&mut all, &flow.received);
    all.insert("socket".to_owned(), flow.socket.into());
    all.insert("out_of_order".to_owned(), flow.reordered.into());
    json!({"udp": all})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(http_date(1_795_415_446), "Mon, 23 Nov 2026 06:30:46 GMT");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http_date(1_735_689_599), "Tue, 31 Dec 2024 23:59:59 GMT");
    }
}
