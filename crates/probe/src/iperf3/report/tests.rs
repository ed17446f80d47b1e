use super::*;
use crate::traffic::TcpWords;

fn start(direction: Direction, protocol: Protocol, roles: &[Role]) -> Start {
    let flow = |(place, role): (usize, &Role)| FlowStart {
        socket: 5 + 2 * place as i32,
        role: *role,
        local: ([127, 0, 0, 1], 4000 + place as u16).into(),
        remote: ([127, 0, 0, 1], 5201).into(),
    };
    Start {
        side: Side::Client,
        host: "far".to_owned(),
        port: 5201,
        parameters: Parameters { direction, protocol, ..Parameters::default() },
        cookie: Cookie::new([0; 36]),
        flows: roles.iter().enumerate().map(flow).collect(),
        buffers: (1, 2),
        congestion: None,
        mss: 1448,
        unix_seconds: 0,
    }
}

fn flow(socket: i32, role: Role, bytes: u64, tcp: Option<TcpWords>) -> FlowInterval {
    let counts = Counts { bytes, packets: 125, lost: 5, jitter_s: 67e-6, ..Counts::default() };
    FlowInterval { socket, role, start: 0.0, end: 1.0, counts, tcp, omitted: false }
}

#[test]
fn quantities_are_as_wide_as_iperf3_has_them() {
    let amounts = [0, 1023, 12_500, 131_072, 1 << 20, 5 << 40].map(amount);
    assert_eq!(
        amounts,
        ["0.00 Bytes", "1023 Bytes", "12.2 KBytes", " 128 KBytes", "1.00 MBytes", "5.00 TBytes"]
    );
    let rates = [100e3, 1.05e6, 7.69e9, 999.6e9].map(bit_rate);
    assert_eq!(rates, [" 100 Kbits/sec", "1.05 Mbits/sec", "7.69 Gbits/sec", "1000 Gbits/sec"]);
}

#[test]
fn intervals_look_as_they_do_with_iperf3() {
    let words = TcpWords { cwnd: 944 << 10, ..TcpWords::default() };
    let test = start(Direction::Forward, Protocol::Tcp, &[Role::Sends]);
    assert_eq!(interval_heading(&test), "[ ID] Interval           Transfer     Bitrate         Retr  Cwnd\n");
    assert_eq!(
        interval(&test, &[flow(5, Role::Sends, 131_072, Some(words))]),
        "[  5]   0.00-1.00   sec   128 KBytes  1.05 Mbits/sec    0    944 KBytes       \n"
    );
    let test = start(Direction::Both, Protocol::Tcp, &[Role::Sends, Role::Sends, Role::Receives]);
    let flows = [
        flow(5, Role::Sends, 131_072, Some(words)),
        flow(7, Role::Sends, 131_072, Some(words)),
        flow(9, Role::Receives, 131_072, None),
    ];
    let text = interval(&test, &flows);
    let sum = "[SUM][TX-C]   0.00-1.00   sec   256 KBytes  2.10 Mbits/sec    0             \n";
    assert!(text.contains(sum) && text.contains("[  9][RX-C] ") && text.lines().count() == 4, "{text}");
    let test = start(Direction::Reverse, Protocol::Udp, &[Role::Receives]);
    assert_eq!(
        interval(&test, &[flow(5, Role::Receives, 12_500, None)]),
        "[  5]   0.00-1.00   sec  12.2 KBytes   100 Kbits/sec  0.067 ms  5/125 (4.00%)  \n"
    );
    assert!(interval_heading(&test).ends_with("Jitter    Lost/Total Datagrams\n"));
}

fn ended(roles: &[Role]) -> End {
    let total = |(place, role): (usize, &Role)| FlowTotal {
        socket: 5 + 2 * place as i32,
        role: *role,
        seconds: 2.0,
        counts: Counts { bytes: 1000, packets: 10, lost: 1, reordered: 3, ..Counts::default() },
        tcp: (*role == Role::Sends).then_some(TcpSummary { retransmits: 7, ..TcpSummary::default() }),
        busy_s: 0.0,
        socket_drops: 0,
    };
    let said = |place: usize| StreamResult {
        id: stream_id(place),
        bytes: 900,
        retransmits: Some(2),
        packets: 9,
        errors: 1,
        seconds: 2.0,
        ..StreamResult::default()
    };
    End {
        totals: roles.iter().enumerate().map(total).collect(),
        processor: Share { total: 3.0, user: 1.0, system: 2.0 },
        congestion: Some("bbr".to_owned()),
        peer: Results {
            has_retransmits: true,
            congestion: Some("cubic".to_owned()),
            streams: (0..roles.len()).map(said).collect(),
            ..Results::default()
        },
    }
}

#[test]
fn ends_tell_of_both_sides() {
    let roles = [Role::Sends, Role::Receives];
    let (test, over) = (start(Direction::Both, Protocol::Tcp, &roles), ended(&roles));
    let record = document(Some(&test), &[], Some(&over), "Linux", None);
    let end = &record["end"];
    assert_eq!(end["sum_sent"]["bytes"], 1000);
    assert_eq!(end["sum_sent"]["retransmits"], 7);
    assert_eq!(end["sum_received"]["bytes"], 900);
    assert_eq!(end["sum_sent_bidir_reverse"]["bytes"], 900);
    assert_eq!(end["sum_sent_bidir_reverse"]["retransmits"], 2);
    assert_eq!(end["sum_received_bidir_reverse"]["bytes"], 1000);
    assert_eq!(end["sender_tcp_congestion"], "bbr");
    assert_eq!(end["cpu_utilization_percent"]["host_system"], 2.0);
    let text = text::end(&test, &over);
    assert!(
        text.contains("[  5][TX-C]   0.00-2.00   sec  1000 Bytes  4.00 Kbits/sec    7             sender\n"),
        "{text}"
    );
    let (test, over) = (start(Direction::Reverse, Protocol::Udp, &roles[1..]), ended(&roles[1..]));
    let record = document(Some(&test), &[], Some(&over), "Linux", None);
    assert_eq!(record["end"]["sum"]["lost_packets"], 1);
    assert_eq!(record["end"]["sum"]["lost_percent"], 10.0);
    assert_eq!(record["end"]["streams"][0]["udp"]["out_of_order"], 3);
}

#[test]
fn a_test_that_failed_has_a_record_too() {
    let record = document(None, &[], None, "Linux", Some("nobody listens"));
    assert_eq!(record["error"], "nobody listens");
    assert!(record["end"].is_object() && record["intervals"].as_array().unwrap().is_empty());
}
