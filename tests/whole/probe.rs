//! `longhaul probe` beside iperf3 itself, which is the other end of each test.
//!
//! Each test has a network namespace of its own, where iperf3's port is free. No speed is measured here.

use std::process::Command;

use crate::stage::process::{Ended, LIMIT, Running, wait_for};
use crate::stage::{LONGHAUL, Need, Turn};

/// A network namespace with a loopback interface, and a directory for words.
struct Alone {
    holder: Running,
    // After the others: it holds what they have said.
    words: tempfile::TempDir,
    _turn: Turn,
}

impl Alone {
    fn new() -> Self {
        let turn = Turn::shared();
        let words = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sh", "-c", "ip link set lo up && echo up >&2 && exec sleep 1000"]);
        let mut holder = Running::start(&mut holder, &words.path().join("holder"));
        holder.wait_to_say("up");
        Self { holder, words, _turn: turn }
    }

    fn start(&self, name: &str, command: &str) -> Running {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/proc/{}/ns/net", self.holder.pid()));
        inside.args(command.split_whitespace());
        Running::start(&mut inside, &self.words.path().join(name))
    }

    /// A server that waits for clients at iperf3's port.
    fn server(&self, name: &str, command: &str) -> Running {
        self.server_at(5201, name, command)
    }

    /// A server that waits for clients at `port`, which its command tells it.
    fn server_at(&self, port: u16, name: &str, command: &str) -> Running {
        let mut server = self.start(name, command);
        self.wait_for_listener(port, &mut server);
        server
    }

    fn wait_for_listener(&self, port: u16, server: &mut Running) {
        wait_for("a server at its port", LIMIT, || {
            assert!(!server.has_ended(), "the server has ended:\n{}", server.said());
            (self.sockets(port, "0A") > 0).then_some(())
        });
    }

    /// TCP sockets of this port in a state, by its number in include/net/tcp_states.h.
    fn sockets(&self, port: u16, state: &str) -> usize {
        let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{}/net/{table}", self.holder.pid()));
        let lines = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default()).concat();
        let is_one = |line: &&str| {
            let columns: Vec<_> = line.split_whitespace().collect();
            columns.len() > 3 && columns[1].ends_with(&format!(":{port:04X}")) && columns[3] == state
        };
        lines.lines().filter(is_one).count()
    }

    fn run(&self, command: &str) -> Ended {
        self.start("client", command).wait()
    }
}

/// All that was printed, as JSON.
fn record(ended: &Ended) -> serde_json::Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}{}", ended.out, ended.err))
}

/// The tests that both clients make, and what of them arrives: at least so many bytes in `sum_received`.
const TESTS: [(&str, u64); 10] = [
    ("-t 1", 1 << 20),
    ("-t 1 -R", 1 << 20),
    ("-t 1 --bidir", 1 << 20),
    ("-t 2 -O 1 -P 4 -i 0.5", 1 << 20),
    ("-n 10M -w 64K -M 1000 -C reno -l 8K", 10 << 20),
    ("-t 1 -Z --fq-rate 40M", 2_000_000),
    ("-t 1 -Z -R", 1 << 20),
    ("-t 1 -u -b 8M -l 1000", 500_000),
    ("-t 1 -u -b 8M -l 64 -R", 500_000),
    ("-t 1 -u -b 4M --bidir -P 2 -l 9000", 250_000),
];

/// What every record has, whoever made it.
fn check(words: &str, record: &serde_json::Value, least: u64) {
    assert!(record["error"].is_null(), "{words}: {}", record["error"]);
    let end = &record["end"];
    let received = end["sum_received"]["bytes"].as_u64().unwrap();
    let sent = end["sum_sent"]["bytes"].as_u64().unwrap();
    assert!(received >= least * 9 / 10 && sent >= received / 2, "{words}: {sent} sent, {received} received");
    let streams = end["streams"].as_array().unwrap().len();
    let parallel = record["start"]["test_start"]["num_streams"].as_u64().unwrap() as usize;
    let both = words.contains("--bidir");
    assert_eq!(streams, parallel * if both { 2 } else { 1 }, "{words}");
    assert_eq!(end["sum_received_bidir_reverse"].is_object(), both, "{words}");
    assert!(!record["intervals"].as_array().unwrap().is_empty(), "{words}");
    let processor = &end["cpu_utilization_percent"];
    assert!(processor["host_total"].is_f64() && processor["remote_total"].is_f64(), "{words}: {processor}");
    if words.contains("-u") {
        assert!(end["sum"]["jitter_ms"].is_f64() && end["sum"]["lost_packets"].is_i64(), "{words}: {end}");
        let packets = end["sum"]["packets"].as_u64().unwrap();
        assert!(packets > 0 && end["sum"]["lost_packets"].as_u64().unwrap() <= packets, "{words}: {end}");
    } else {
        assert!(end["sum_sent"]["retransmits"].is_u64(), "{words}: {end}");
    }
    if words.contains("--fq-rate") {
        // The kernel's pacing begins after a first burst.
        let rate = end["sum_received"]["bits_per_second"].as_f64().unwrap();
        assert!(rate < 60e6, "{words}: {rate}");
    }
    if words.contains("-C") {
        assert_eq!(end["sender_tcp_congestion"], "reno", "{words}");
    }
}

#[test]
fn tests_against_a_server_of_iperf3() {
    require!(Need::Root, Need::Iperf3);
    let alone = Alone::new();
    // One for each test: between two it does not listen for a moment.
    let test = |words: &str| {
        let server = alone.server("server", "iperf3 --server --one-off");
        let ended = alone.run(&format!("{LONGHAUL} probe --iperf3 127.0.0.1 {words}")).expect(0);
        server.wait();
        ended
    };
    for (words, least) in TESTS {
        check(words, &record(&test(&format!("{words} --json"))), least);
    }
    let ended = test("-t 1");
    assert!(ended.out.contains("Retr  Cwnd") && ended.out.contains("receiver\n"), "{}", ended.out);
    let _server = alone.server_at(5202, "server-6", "iperf3 --server --version6 --port 5202");
    alone.run(&format!("{LONGHAUL} probe --iperf3 ::1 -6 -p 5202 -t 1")).expect(0);
}

#[test]
fn tests_of_a_client_of_iperf3() {
    require!(Need::Root, Need::Iperf3);
    let alone = Alone::new();
    let mut server = alone.server("server", &format!("{LONGHAUL} probe --iperf3 --listen"));
    server.wait_to_say("knows no keys");
    for (words, least) in TESTS {
        let ended = alone.run(&format!("iperf3 --client 127.0.0.1 {words} --json")).expect(0);
        check(words, &record(&ended), least);
    }
    // A server of iperf3 3.12 does not heed this.
    let words = "-t 1 -R --fq-rate 40M";
    let ended = alone.run(&format!("iperf3 --client 127.0.0.1 {words} --json")).expect(0);
    check(words, &record(&ended), 2_000_000);
    alone.run("iperf3 --client ::1 -t 1").expect(0);
    assert!(!server.said().contains("longhaul: "), "{}", server.said());
}

/// One says nothing as long as the others speak; one says nonsense; one has a cookie and then a message without end; one asks for
/// more streams than there may be.
const STRANGERS: &str = r#"
set -e
to=/dev/tcp/127.0.0.1/5201
exec 3<>$to
exec 4<>$to; printf 'GET / HTTP/1.1\r\n\r\n' >&4
cookie=abcdefghijklmnopqrstuvwxyz0123456789
exec 5<>$to; printf "$cookie\0" >&5; head -c 1 <&5 >/dev/null; printf '\377\377\377\377{' >&5; cat <&5 >/dev/null || true
exec 6<>$to; printf "$cookie\0" >&6; head -c 1 <&6 >/dev/null
wants='{"tcp":true,"parallel":1000000}'
printf '\0\0\0\037%s' "$wants" >&6; cat <&6 >/dev/null || true
"#;

#[test]
fn a_server_bounds_what_strangers_may_do() {
    require!(Need::Root, Need::Iperf3);
    let alone = Alone::new();
    let mut server = alone.server("server", &format!("{LONGHAUL} probe --iperf3 --listen --rate-max 20M"));
    // Who says nothing, or nonsense, is in nobody's way for long.
    let program = alone.words.path().join("strangers");
    std::fs::write(&program, STRANGERS).unwrap();
    let strangers = alone.start("strangers", &format!("bash {}", program.display()));
    strangers.wait().expect(0);
    for words in ["-t 1", "-t 1 -R", "-t 1 -P 4"] {
        let record = record(&alone.run(&format!("iperf3 --client 127.0.0.1 {words} --json")).expect(0));
        let sum = &record["end"]["sum_received"];
        // What sockets hold comes at once.
        let rate = sum["bytes"].as_f64().unwrap() * 8.0 / sum["seconds"].as_f64().unwrap();
        assert!(rate < 60e6, "{words}: {rate}");
    }
    let refused = alone.run("iperf3 --client 127.0.0.1 -u -b 30M -t 1");
    assert!(refused.code != Some(0), "{}{}", refused.out, refused.err);
    alone.run("iperf3 --client 127.0.0.1 -u -b 10M -t 1").expect(0);
    // A second client is told that the server is busy.
    let first = alone.start("first", "iperf3 --client 127.0.0.1 -t 10");
    // It has its stream when it has been let in.
    wait_for("a test under way", LIMIT, || (alone.sockets(5201, "01") >= 2).then_some(()));
    wait_for("a client that is told", LIMIT, || {
        let ended = alone.run(&format!("{LONGHAUL} probe --iperf3 127.0.0.1 -t 1"));
        ended.err.contains("busy with another test").then_some(())
    });
    first.wait().expect(0);
    assert!(!server.has_ended());
}

#[test]
fn what_stands_in_the_way_is_named() {
    require!(Need::Root, Need::Iperf3);
    let alone = Alone::new();
    let probe = |words: &str| alone.run(&format!("{LONGHAUL} probe {words}"));
    probe("--iperf3 127.0.0.1").expect(2).says(&["Connection refused", "is `iperf3 -s`"]);
    probe("--iperf3 no-such-host.invalid").expect(2).says(&["cannot find no-such-host.invalid"]);
    let record = record(&probe("--iperf3 127.0.0.1 --json").expect(2));
    assert!(record["error"].as_str().unwrap().contains("Connection refused"), "{record}");
    let _server = alone.server("server", &format!("{LONGHAUL} probe --iperf3 --listen 127.0.0.1"));
    probe("--iperf3 --listen 127.0.0.1").expect(2).says(&["another server", "-p takes another port"]);
    probe("--iperf3 127.0.0.1 -C no-such").expect(2).says(&["congestion control `no-such`", "tcp_available"]);
}
