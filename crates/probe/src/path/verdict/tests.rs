use longhaul_report::Environment;
use longhaul_report::path::{Disk, HostFacts, Mtu, Rtt, Side};

use super::*;

/// A link of 1 Gbit/s x 50 ms between hosts with windows of 6 MiB at most, filled by eight streams and by one.
fn clean() -> Path {
    let way = Way::ToServer;
    let settings = vec![
        ("net.ipv4.tcp_rmem".to_owned(), "4096 131072 33554432".to_owned()),
        ("net.ipv4.tcp_wmem".to_owned(), "4096 16384 33554432".to_owned()),
    ];
    let host = HostFacts { settings, ..HostFacts::default() };
    let rtt = |median_ms| Rtt { sent: 100, back: 100, min_ms: median_ms, median_ms, p99_ms: median_ms };
    let row = |streams, mbps| Tcp {
        way,
        window_bytes: None,
        streams,
        mbps,
        window_mbps: None,
        mathis_mbps: None,
        retransmitted_percent: 0.0,
        rtt_ms: 55.0,
        rwnd_limited_percent: 0.0,
        sndbuf_limited_percent: 0.0,
        cpu: [20.0, 20.0],
        interrupts: [5.0, 5.0],
        hosts: [30.0, 30.0],
    };
    let packets = |sent, arrived, lost| Packets {
        sent_mbps: sent,
        arrived_mbps: arrived,
        packets: 100_000,
        lost,
        ..Packets::default()
    };
    Path {
        hosts: [host.clone(), host],
        rtt: Some(rtt(50.0)),
        loaded: vec![Loaded { way, mbps: 930.0, rtt: rtt(65.0) }],
        mtu: vec![Mtu { way, bytes: Some(1500) }],
        udp: vec![Udp {
            way,
            frame_bytes: 1518,
            bound: Bound::Path,
            above: packets(1060.0, 1000.0, 5600),
            below: Some(packets(900.0, 900.0, 0)),
            half: None,
            bursts: Vec::new(),
        }],
        tcp: vec![row(1, 900.0), row(8, 935.0)],
        ..Path::new("far", Environment::default())
    }
}

fn disk(side: Side, write_mbps: f64, read_mbps: f64) -> Disk {
    Disk { side, directory: "/data".to_owned(), write_mbps, read_mbps, direct: true }
}

fn verdict_of(change: impl Fn(&mut Path)) -> Limited {
    let mut path = clean();
    change(&mut path);
    let all = verdicts(&path);
    assert_eq!(all.len(), 1);
    all[0].clone()
}

/// A limit, whether there is bufferbloat, and what makes the clean path so.
type Labelled = (Limit, bool, fn(&mut Path));

/// Every kind of limit, and what shows it.
const LABELLED: [Labelled; 30] = [
    (Limit::Rate, false, |_| {}),
    (Limit::Rate, true, |path| path.loaded[0].rtt.median_ms = 250.0),
    (Limit::Rate, true, |path| {
        path.rtt = Some(Rtt { median_ms: 5.0, ..path.rtt.unwrap_or_default() });
        path.loaded[0].rtt.median_ms = 30.0;
    }),
    // A core that is busy while the link is full is no limit.
    (Limit::Rate, false, |path| path.tcp[0].cpu = [99.0, 99.0]),
    (Limit::CpuHere, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].cpu) = (400.0, [99.0, 60.0]);
    }),
    (Limit::CpuThere, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].cpu) = (400.0, [60.0, 97.0]);
    }),
    (Limit::CpuThere, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].interrupts) = (400.0, [10.0, 98.0]);
    }),
    // Neither fills a core, but both share all that there are.
    (Limit::CpuHere, false, |path| {
        let row = &mut path.tcp[0];
        (row.mbps, row.cpu, row.interrupts, row.hosts) = (400.0, [80.0, 50.0], [26.0, 26.0], [97.0, 97.0]);
    }),
    // Nor is any core ever full, but UDP has shown that the path carries more than a core can send.
    (Limit::CpuHere, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].cpu, path.tcp[0].retransmitted_percent) = (400.0, [85.0, 50.0], 0.8);
        path.udp[0].bound = Bound::Sender;
        path.udp[0].above.cpu = [99.0, 30.0];
    }),
    // Nor here, but more streams fill the core, and carry more.
    (Limit::CpuThere, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].cpu, path.tcp[0].retransmitted_percent) = (100.0, [5.0, 85.0], 0.3);
        path.tcp[1].cpu = [5.0, 98.0];
        path.loaded[0].rtt.median_ms = 50.0;
    }),
    // They fill it, and carry less: somebody else has the rest of it.
    (Limit::CpuThere, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].cpu, path.tcp[0].retransmitted_percent) = (300.0, [5.0, 83.0], 0.3);
        (path.tcp[1].mbps, path.tcp[1].cpu) = (193.0, [6.0, 98.0]);
    }),
    // A receiver without time has missed packets that the path has carried.
    (Limit::CpuThere, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].cpu) = (475.0, [20.0, 98.0]);
        path.udp[0].above.arrived_mbps = 344.0;
    }),
    // Somebody else's work on all cores does not slow this down.
    (Limit::Unknown, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].hosts) = (400.0, [100.0, 100.0]);
    }),
    (Limit::Window, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].rwnd_limited_percent) = (330.0, 95.0);
    }),
    (Limit::Window, false, |path| {
        (path.tcp[0].mbps, path.tcp[0].sndbuf_limited_percent) = (330.0, 80.0);
    }),
    // The kernel does not say so, but 3 MiB in 50 ms are 503 Mbit/s.
    (Limit::Window, false, |path| {
        path.hosts[1].settings[0].1 = "4096 131072 6291456".to_owned();
        path.tcp[0].mbps = 480.0;
    }),
    (Limit::Loss, false, |path| {
        path.udp[0].below = path.udp[0].below.map(|below| Packets { lost: 100, ..below });
        (path.tcp[0].mbps, path.tcp[0].retransmitted_percent) = (20.0, 0.1);
    }),
    (Limit::Loss, false, |path| {
        path.udp[0].bound = Bound::Nothing;
        (path.tcp[0].mbps, path.tcp[0].retransmitted_percent) = (3.0, 8.0);
    }),
    (Limit::Policer, false, |path| {
        path.loaded[0].rtt.median_ms = 50.3;
        (path.tcp[0].mbps, path.tcp[0].retransmitted_percent) = (300.0, 3.0);
    }),
    // A short path has a short queue, and what overflows it is no policer.
    (Limit::Rate, false, |path| {
        path.rtt = Some(Rtt { median_ms: 1.0, ..path.rtt.unwrap_or_default() });
        path.loaded[0].rtt.median_ms = 1.9;
        path.tcp[0].retransmitted_percent = 1.0;
    }),
    // A burst of a sender that was held up overran it.
    (Limit::Policer, false, |path| {
        path.loaded[0].rtt.median_ms = 50.3;
        path.udp[0].below = path.udp[0].below.map(|below| Packets { lost: 800, ..below });
        path.udp[0].half = path.udp[0].below.map(|below| Packets { packets: 50_000, lost: 2, ..below });
        path.tcp[0].mbps = 300.0;
    }),
    // Loss at any load, half or not, is the path's.
    (Limit::Loss, false, |path| {
        path.loaded[0].rtt.median_ms = 50.3;
        path.udp[0].below = path.udp[0].below.map(|below| Packets { lost: 800, ..below });
        path.udp[0].half = path.udp[0].below.map(|below| Packets { packets: 50_000, lost: 390, ..below });
        (path.tcp[0].mbps, path.tcp[0].retransmitted_percent) = (300.0, 1.0);
    }),
    (Limit::Unknown, false, |path| path.tcp[0].mbps = 300.0),
    // Files are read here and written there; the link's 941 Mbit/s are more than either.
    (Limit::DiskHere, false, |path| path.disks = vec![disk(Side::Here, 100.0, 500.0)]),
    (Limit::DiskThere, false, |path| path.disks = vec![disk(Side::Server, 800.0, 100.0)]),
    // The slower of both.
    (Limit::DiskThere, false, |path| {
        path.disks = vec![disk(Side::Here, 90.0, 600.0), disk(Side::Server, 400.0, 90.0)];
    }),
    // What the disks are not used for this way.
    (Limit::Rate, false, |path| {
        path.disks = vec![disk(Side::Here, 10.0, 2000.0), disk(Side::Server, 2000.0, 10.0)];
    }),
    // Not by a tenth.
    (Limit::Rate, false, |path| path.disks = vec![disk(Side::Server, 860.0, 10.0)]),
    // One stream is held up by its window; many come to more than the disk takes.
    (Limit::DiskThere, true, |path| {
        (path.tcp[0].mbps, path.tcp[0].rwnd_limited_percent) = (330.0, 95.0);
        path.disks = vec![disk(Side::Server, 400.0, 10.0)];
        path.loaded[0].rtt.median_ms = 250.0;
    }),
    // Nobody has shown that the network carries more.
    (Limit::Unknown, false, |path| {
        path.udp[0].bound = Bound::Sender;
        path.tcp.iter_mut().for_each(|tcp| tcp.mbps = 300.0);
        path.disks = vec![disk(Side::Server, 300.0, 10.0)];
    }),
];

#[test]
fn labelled_findings_have_their_verdicts() {
    for (number, (limit, bloat, change)) in LABELLED.into_iter().enumerate() {
        let verdict = verdict_of(change);
        assert_eq!((verdict.limit, verdict.bufferbloat), (limit, bloat), "{number}: {verdict:#?}");
        assert!(!verdict.evidence.is_empty());
    }
}

#[test]
fn the_other_way_has_its_hosts_the_other_way_round() {
    let verdict = verdict_of(|path| {
        path.loaded[0].way = Way::FromServer;
        path.udp[0].way = Way::FromServer;
        path.tcp.iter_mut().for_each(|tcp| tcp.way = Way::FromServer);
        (path.tcp[0].mbps, path.tcp[0].cpu) = (400.0, [99.0, 60.0]);
    });
    assert_eq!((verdict.way, verdict.limit), (Way::FromServer, Limit::CpuThere));
}

#[test]
fn the_other_way_files_are_read_there_and_written_here() {
    let from_server = |disks: [Disk; 2]| {
        verdict_of(move |path| {
            path.loaded[0].way = Way::FromServer;
            path.udp[0].way = Way::FromServer;
            path.tcp.iter_mut().for_each(|tcp| tcp.way = Way::FromServer);
            path.disks = disks.to_vec();
        })
    };
    let fast = |side| disk(side, 2000.0, 2000.0);
    let reads = from_server([fast(Side::Here), disk(Side::Server, 2000.0, 300.0)]);
    assert_eq!(reads.limit, Limit::DiskThere);
    let writes = from_server([disk(Side::Here, 200.0, 2000.0), fast(Side::Server)]);
    assert_eq!(writes.limit, Limit::DiskHere);
    assert!(writes.evidence.contains(
        &"The disk of this host (/data) writes 200.0 Mbit/s, and the network carries 941.5.".to_owned()
    ));
    assert_eq!(writes.evidence.last().unwrap(), "Without that disk: rate of the link.");
    assert_eq!(writes.advice.len(), 1, "{:?}", writes.advice);
    assert_eq!(from_server([fast(Side::Here), fast(Side::Server)]).limit, Limit::Rate);
}

#[test]
fn lines_of_sysctl_are_exact() {
    let limited = |path: &mut Path| {
        (path.tcp[0].mbps, path.tcp[0].rwnd_limited_percent) = (330.0, 95.0);
    };
    assert!(verdict_of(limited).advice.is_empty(), "what is large enough stays");
    let verdict = verdict_of(|path| {
        limited(path);
        path.hosts.iter_mut().for_each(|host| host.settings.clear());
    });
    // 941 Mbit/s x 50 ms, twice, in MiB.
    assert_eq!(
        verdict.advice,
        [
            "On the server: `sysctl -w net.ipv4.tcp_rmem=\"4096 131072 12582912\" net.core.rmem_max=12582912`.",
            "On this host: `sysctl -w net.ipv4.tcp_wmem=\"4096 16384 12582912\" net.core.wmem_max=12582912`."
        ]
    );
}

#[test]
fn without_tcp_there_is_no_verdict() {
    assert!(verdicts(&Path::new("far", Environment::default())).is_empty());
}
