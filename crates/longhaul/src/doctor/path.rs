//! What the path between two hosts means for longhaul, and for others. Pure.

use longhaul_probe::path::clocks::Difference;
use longhaul_probe::path::test::Host;
use longhaul_transport::limits::{CONTROL_BODY_BYTES_MAX, LANES_MAX};
use serde_json::json;

use super::Finding;
use super::checks::{WIDER_RECEIVE_BUFFER, WIDER_SEND_BUFFER, receive_window, send_window};
use crate::units::{show_rate, show_size};

/// What was learnt of two hosts by one session.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// The far host, as it was given.
    pub(crate) name: String,
    pub(crate) near: Host,
    pub(crate) far: Host,
    /// Seconds of some messages and their answers; at least one.
    pub(crate) rtts_s: Vec<f64>,
    pub(crate) clocks: Option<Difference>,
    /// What the control channel runs over.
    pub(crate) control: Option<&'static str>,
}

/// All checks, in the order in which they are shown.
pub(crate) fn all(path: &Path) -> Vec<Finding> {
    let [to, from] = Way::BOTH.map(|way| tcp(path, way));
    vec![versions(path), round_trip(path), control(path), to, from, udp_buffers(path), clocks(path)]
}

/// The figures for programs.
pub(crate) fn figures(path: &Path) -> serde_json::Value {
    let tcp = |way| {
        Windows::of(path, way).map(|windows| {
            json!({
                "stream_window_bytes": windows.stream,
                "stream_bits_per_second": rate(windows.stream, path.rtt_s()),
                "lane_window_bytes": windows.lane,
                "lanes_for_1_gbit": windows.lanes(1e9, path.rtt_s()),
                "lanes_for_10_gbit": windows.lanes(1e10, path.rtt_s()),
            })
        })
    };
    json!({
        "rtt_ms": path.rtt_s() * 1e3,
        "control": path.control,
        "tcp_to": tcp(Way::To),
        "tcp_from": tcp(Way::From),
        "clock_ahead_ms": path.clocks.map(|clocks| clocks.ahead_s * 1e3),
        "clock_within_ms": path.clocks.map(|clocks| clocks.within_s * 1e3),
    })
}

impl Path {
    /// The shortest: what stood in queues is not the path's. No less than what can be told from nothing.
    fn rtt_s(&self) -> f64 {
        self.rtts_s.iter().copied().fold(f64::INFINITY, f64::min).clamp(1e-6, 3600.0)
    }
}

fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    format!("{ms:.*} ms", if ms < 10.0 { 2 } else { 1 })
}

/// Of any length, for a person.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => ms(s),
        s if s < 600.0 => format!("{s:.1} s"),
        s if s < 2.0 * 86_400.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

fn versions(path: &Path) -> Finding {
    let (near, far) = (&path.near.version, &path.far.version);
    let name = &path.name;
    if near == far {
        return Finding::fine("versions", format!("{near} at both ends"), "both ends know the same");
    }
    let why = "what only the newer one knows is refused by the other, or left out";
    Finding::fine("versions", format!("{near} here, {far} at {name}"), why)
        .slower("have the same version run at both ends")
}

fn round_trip(path: &Path) -> Finding {
    let rtt = path.rtt_s();
    let longest = path.rtts_s.iter().copied().fold(rtt, f64::max);
    let what = match path.rtts_s.len() {
        1 => ms(rtt),
        count => format!("{} (the shortest of {count} messages; the longest {})", ms(rtt), ms(longest)),
    };
    let why = format!(
        "who waits for an answer waits so long: a thousand names that are looked up one after the other take {}; and what a connection \
         carries is its window / RTT",
        time(1000.0 * rtt)
    );
    Finding::fine("round-trip time", what, why)
}

fn control(path: &Path) -> Finding {
    let rtt = ms(path.rtt_s());
    match path.control {
        Some("QUIC") => {
            let why = "a packet that is lost holds up its own message only";
            Finding::fine("control channel", "QUIC: UDP gets through", why)
        }
        Some(_) => {
            let why = format!(
                "over TCP a packet that is lost holds up all messages behind it, for a round trip ({rtt}) at least; and each command tries UDP \
                 in vain first"
            );
            Finding::fine("control channel", "TCP: UDP does not get through", why)
                .slower("let UDP to the server's port through, and what it answers")
        }
        None => Finding::fine("control channel", "it is broken at this moment", "all requests go over it")
            .unknown(),
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    To,
    From,
}

impl Way {
    const BOTH: [Self; 2] = [Self::To, Self::From];
}

/// Bytes that one TCP connection may have on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Windows {
    /// Of a program that leaves its buffers to the kernels.
    stream: u64,
    /// Of a lane.
    lane: u64,
    /// What bounds a lane is the receiver's.
    receiver_is_less: bool,
    /// Neither may be more than TCP's 16 bits say.
    unscaled: bool,
}

fn rate(window_bytes: u64, rtt_s: f64) -> f64 {
    window_bytes as f64 * 8.0 / rtt_s
}

/// As many bytes as a window of 16 bits says (RFC 9293).
const WINDOW_UNSCALED_BYTES: u64 = 65_535;

impl Windows {
    /// `None`: a host does not tell.
    fn of(path: &Path, way: Way) -> Option<Self> {
        let (sender, receiver) = match way {
            Way::To => (&path.near, &path.far),
            Way::From => (&path.far, &path.near),
        };
        let autotuned = sender.number("net.ipv4.tcp_wmem", 2)?;
        let receives = receive_window(receiver.number("net.ipv4.tcp_rmem", 2)?);
        let unscaled =
            [sender, receiver].iter().any(|host| host.number("net.ipv4.tcp_window_scaling", 0) == Some(0));
        let most = if unscaled { WINDOW_UNSCALED_BYTES } else { u64::MAX };
        let stream = send_window(autotuned, None).min(receives).min(most).max(1);
        let lane_sends = send_window(autotuned, sender.number("net.core.wmem_max", 0));
        let lane = lane_sends.min(receives).min(most).max(1);
        Some(Self { stream, lane, receiver_is_less: receives < lane_sends, unscaled })
    }

    /// That this rate takes.
    fn lanes(&self, bps: f64, rtt_s: f64) -> u64 {
        (bps / rate(self.lane, rtt_s)).ceil() as u64
    }
}

fn tcp(path: &Path, way: Way) -> Finding {
    let name = &path.name;
    let subject = match way {
        Way::To => "TCP to there",
        Way::From => "TCP from there",
    };
    let Some(windows) = Windows::of(path, way) else {
        return Finding::fine(
            subject,
            "a host does not tell its buffers",
            "window / RTT is what one carries",
        )
        .unknown();
    };
    let rtt = path.rtt_s();
    let lanes = |bps| windows.lanes(bps, rtt);
    let what = format!(
        "one stream of others {} at the most; longhaul takes {} or more for 1 Gbit/s, {} for 10",
        show_rate(rate(windows.stream, rtt)),
        counted(lanes(1e9)),
        lanes(1e10),
    );
    let why = format!(
        "a window of {} / {}: one stream of 1 Gbit/s would take {}. A connection of longhaul's has {}, and a session {LANES_MAX} of them at \
         the most",
        show_size(windows.stream),
        ms(rtt),
        show_size((1e9 / 8.0 * rtt) as u64),
        show_size(windows.lane),
    );
    let finding = Finding::fine(subject, what, why);
    if lanes(1e10) <= LANES_MAX as u64 {
        return finding;
    }
    let receiver_is_near = way == Way::From;
    let at = |is_near: bool| if is_near { "here".to_owned() } else { format!("at {name}") };
    finding.slower(if windows.unscaled {
        "where it is 0, here or there: sysctl -w net.ipv4.tcp_window_scaling=1".to_owned()
    } else if windows.receiver_is_less {
        format!("{}: {}", at(receiver_is_near), WIDER_RECEIVE_BUFFER)
    } else {
        format!("{}: {}", at(!receiver_is_near), WIDER_SEND_BUFFER)
    })
}

fn counted(lanes: u64) -> String {
    if lanes == 1 { "1 connection".to_owned() } else { format!("{lanes} connections") }
}

/// The longest message of the control channel and as much again, since the kernel counts its own part of each packet.
const UDP_BUFFER_WANTED: u64 = 2 * CONTROL_BODY_BYTES_MAX as u64;

fn udp_buffers(path: &Path) -> Finding {
    let subject = "UDP receive buffers";
    let both = [&path.near, &path.far].map(|host| host.number("net.core.rmem_default", 0));
    let [Some(near), Some(far)] = both else {
        return Finding::fine(subject, "a host does not tell", "what comes while nobody reads has to fit")
            .unknown();
    };
    let name = &path.name;
    let what = format!("{} here, {} at {name}", show_size(near), show_size(far));
    let why = format!(
        "what comes while the program does not run has to fit: {} at 1 Gbit/s, {} at 10. On the control channel (QUIC) what finds no room \
         is sent again a round trip later: {} for who waits for it",
        ms(near.min(far) as f64 * 8.0 / 1e9),
        ms(near.min(far) as f64 * 8.0 / 1e10),
        ms(path.rtt_s())
    );
    let finding = Finding::fine(subject, what, why);
    if near.min(far) >= UDP_BUFFER_WANTED {
        return finding;
    }
    let at = if near < far { "here".to_owned() } else { format!("at {name}") };
    finding.slower(format!("{at}: sysctl -w net.core.rmem_default=212992"))
}

/// Clocks that somebody keeps by NTP over the Internet are within some tens of milliseconds.
const CLOCKS_APART_S: f64 = 0.1;

fn clocks(path: &Path) -> Finding {
    let name = &path.name;
    let why = "`cp --update` compares times that two hosts have written: of two versions that were written within that time of each other it \
               may keep the older. Leases count durations and do not need it";
    let Some(clocks) = path.clocks else {
        return Finding::fine("clocks", format!("{name} does not tell its time"), why).unknown();
    };
    let way = if clocks.ahead_s < 0.0 { "behind" } else { "ahead" };
    let (apart, within) = (time(clocks.ahead_s.abs()), time(clocks.within_s));
    let what = if clocks.exceeds(0.0) {
        format!("{name} is {apart} {way}, give or take {within}")
    } else {
        format!("no further apart than {}", time(clocks.ahead_s.abs() + clocks.within_s))
    };
    let finding = Finding::fine("clocks", what, why);
    if clocks.exceeds(CLOCKS_APART_S) {
        let todo = "at the end whose clock is not synchronised, or at both: run chrony or systemd-timesyncd (timedatectl set-ntp true)";
        return finding.slower(todo);
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn host(changes: &[(&str, &str)]) -> Host {
        let usual = [
            ("net.core.rmem_default", "212992"),
            ("net.core.wmem_max", "212992"),
            ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
            ("net.ipv4.tcp_wmem", "4096 16384 4194304"),
            ("net.ipv4.tcp_window_scaling", "1"),
        ];
        let setting = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Host {
            version: "1.0".to_owned(),
            settings: changes.iter().chain(&usual).map(setting).collect(),
            ..Host::default()
        }
    }

    fn path(near: Host, far: Host) -> Path {
        let clocks = Some(Difference { ahead_s: 0.005, within_s: 0.15 });
        let rtts_s = vec![0.31, 0.3, 0.305];
        Path { name: "far".to_owned(), near, far, rtts_s, clocks, control: Some("QUIC") }
    }

    fn usual() -> Path {
        path(host(&[]), host(&[]))
    }

    fn bad(path: &Path) -> Vec<Finding> {
        all(path).into_iter().filter(|finding| finding.state != State::Fine).collect()
    }

    #[test]
    fn figures_are_those_of_the_path() {
        let all = all(&usual());
        assert!(bad(&usual()).is_empty(), "{all:#?}");
        let of = |subject: &str| all.iter().find(|finding| finding.subject == subject).unwrap();
        assert!(
            of("round-trip time")
                .what
                .starts_with("300.0 ms (the shortest of 3 messages; the longest 310.0 ms)")
        );
        assert!(of("round-trip time").why.contains("take 300.0 s"), "{}", of("round-trip time").why);
        // 0.7 of 4 MiB in 300 ms; 1 and 10 Gbit/s are 37.5 and 375 MB in the same time.
        for way in ["to", "from"] {
            let tcp = of(&format!("TCP {way} there"));
            assert!(tcp.what.contains("one stream of others 78.29 Mbit/s at the most"), "{}", tcp.what);
            assert!(tcp.what.contains("13 connections or more for 1 Gbit/s, 128 for 10"), "{}", tcp.what);
            assert!(tcp.why.contains("35.76 MiB"), "{}", tcp.why);
        }
        assert!(of("UDP receive buffers").why.contains("1.70 ms at 1 Gbit/s, 0.17 ms at 10"));
        assert_eq!(of("clocks").what, "no further apart than 155.0 ms");
        let figures = figures(&usual());
        assert_eq!((&figures["rtt_ms"], &figures["tcp_to"]["lanes_for_1_gbit"]), (&300.0.into(), &13.into()));
    }

    #[test]
    fn the_end_that_bounds_is_told_what_to_do() {
        let small = ("net.ipv4.tcp_rmem", "4096 131072 212992");
        let only = |path: Path| {
            let [finding] = &bad(&path)[..] else { panic!("{:#?}", bad(&path)) };
            (finding.subject.clone(), finding.todo.clone().unwrap())
        };
        let at_far = only(path(host(&[]), host(&[small])));
        assert_eq!(at_far.0, "TCP to there");
        assert!(at_far.1.starts_with("at far: sysctl -w net.ipv4.tcp_rmem="), "{}", at_far.1);
        let here = only(path(host(&[small]), host(&[])));
        assert!(here.0 == "TCP from there" && here.1.starts_with("here: sysctl"), "{here:?}");
        let small = ("net.ipv4.tcp_wmem", "4096 16384 212992");
        let here = only(path(host(&[small]), host(&[])));
        assert!(
            here.0 == "TCP to there" && here.1.starts_with("here: sysctl -w net.ipv4.tcp_wmem="),
            "{here:?}"
        );
        // A lane may ask for more than others get.
        let asked = ("net.core.wmem_max", "4194304");
        let fine = path(host(&[small, asked]), host(&[]));
        assert!(bad(&fine).is_empty());
        assert!(Windows::of(&fine, Way::To).unwrap().lane > Windows::of(&fine, Way::To).unwrap().stream);
        let unscaled = path(host(&[("net.ipv4.tcp_window_scaling", "0")]), host(&[]));
        assert!(
            bad(&unscaled).len() == 2 && tcp(&unscaled, Way::To).todo.unwrap().contains("window_scaling=1")
        );
        let udp = only(path(host(&[("net.core.rmem_default", "65536")]), host(&[])));
        assert!(udp.0 == "UDP receive buffers" && udp.1.starts_with("here: "), "{udp:?}");
    }

    #[test]
    fn clocks_that_may_be_right_are_not_called_wrong() {
        let of = |ahead_s, within_s| {
            let finding = clocks(&Path { clocks: Some(Difference { ahead_s, within_s }), ..usual() });
            (finding.state, finding.what)
        };
        assert_eq!(of(0.2, 0.15).0, State::Fine);
        let ahead = of(7.5, 0.15);
        assert_eq!(ahead, (State::Slower, "far is 7.5 s ahead, give or take 150.0 ms".to_owned()));
        assert_eq!(of(-86_400.0 * 9.0, 0.001).1, "far is 9 days behind, give or take 1.00 ms");
        assert_eq!(of(0.01, 0.001), (State::Fine, "far is 10.0 ms ahead, give or take 1.00 ms".to_owned()));
        assert_eq!(clocks(&Path { clocks: None, ..usual() }).state, State::Unknown);
    }

    #[test]
    fn what_else_is_not_as_it_should_be() {
        let other = path(host(&[]), Host { version: "1.1".to_owned(), ..host(&[]) });
        assert_eq!(bad(&other)[0].what, "1.0 here, 1.1 at far");
        let blocked = bad(&Path { control: Some("TCP"), ..usual() });
        assert!(blocked[0].why.contains("(300.0 ms)") && blocked[0].todo.is_some(), "{blocked:?}");
        // Whatever a far host says, nothing fails.
        for number in ["0", "1", "18446744073709551615", "x", ""] {
            let value = format!("{number} {number} {number}");
            let names =
                ["net.core.rmem_default", "net.core.wmem_max", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"];
            let far = host(&names.map(|name| (name, value.as_str())));
            for rtts_s in [vec![0.0], vec![f64::INFINITY, 1e300]] {
                let clocks = Some(Difference { ahead_s: 1.8e13, within_s: 1e13 });
                let path = Path { rtts_s, clocks, ..path(host(&[]), far.clone()) };
                assert_eq!((all(&path).len(), figures(&path).is_object()), (7, true));
            }
        }
    }
}
