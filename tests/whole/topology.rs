//! Emulated networks of several hosts and links: routes, rules, changes, captures, graphs; and what is left of one that was
//! killed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::stage::process::{LIMIT, assert_rtt, wait_for};
use crate::stage::{LONGHAUL, Need, Turn};

/// Two hosts behind a router each, and two ways between these; traffic of low priority has a link of its own.
const SITE: &str = r#"
    seed = 5

    [[host]]
    name = "alice"
    [[host]]
    name = "edge"
    router = true
    [[host]]
    name = "core"
    router = true
    [[host]]
    name = "bob"
    run = "touch here; sleep 1000"

    [[link]]
    name = "lan"
    between = ["alice", "edge"]
    [[link]]
    name = "wan"
    between = ["edge", "core"]
    rtt = "40ms"
    rate = "100Mbit"
    [[link.rule]]
    name = "low"
    dscp = 8
    rtt = "120ms"
    [[link]]
    name = "spare"
    between = ["edge", "core"]
    rtt = "10ms"
    [[link]]
    name = "site"
    between = ["core", "bob"]
"#;

/// A network that is up as long as this lives.
struct Lab {
    name: String,
    scratch: tempfile::TempDir,
    _turn: Turn,
}

fn words_of(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

impl Lab {
    fn up(name: &str, site: &str, options: &[&str]) -> Self {
        let lab = Self {
            name: format!("test-{name}-{}", std::process::id()),
            scratch: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            _turn: Turn::shared(),
        };
        std::fs::write(lab.file("site.toml"), site).unwrap();
        let site = lab.file("site.toml");
        let (code, said) = lab.emulate(&[&["up", &lab.name, "--topology", &site][..], options].concat());
        assert_eq!(code, Some(0), "{said}");
        lab
    }

    fn file(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    fn emulate(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(LONGHAUL);
        let output = command.arg("emulate").args(words).current_dir(self.scratch.path()).output().unwrap();
        (output.status.code(), words_of(&output))
    }

    fn exec(&self, host: &str, words: &[&str]) -> (Option<i32>, String) {
        self.emulate(&[&["exec", &self.name, host, "--"], words].concat())
    }

    /// Fails the test unless packets take so many milliseconds there and back.
    #[track_caller]
    fn assert_rtt(&self, from: &str, to: &str, options: &[&str], expected: f64) {
        let words = [&["ping", "-c", "3", "-i", "0.2", "-W", "2"], options, &[to]].concat();
        assert_rtt(expected, || self.exec(from, &words).1);
    }

    fn daemon(&self) -> Option<nix::unistd::Pid> {
        let wanted = format!("daemon\0{}\0", self.name);
        let numbers = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let found = pids.find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&wanted))
        });
        found.map(nix::unistd::Pid::from_raw)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.emulate(&["down", &self.name]); // a failed test has told already
    }
}

#[test]
fn hosts_reach_each_other_over_routers_by_links_of_their_own() {
    require!(Need::Emulator, Need::Ping);
    let lab = Lab::up("routed", SITE, &[]);
    let here = lab.file("here");
    wait_for("bob runs his command", LIMIT, || Path::new(&here).exists().then_some(()));
    lab.assert_rtt("alice", "bob", &[], 40.0);
    // Class selector 1 is the rule's traffic on the way there; the answer has the same.
    lab.assert_rtt("alice", "bob", &["-Q", "32"], 120.0);
    lab.assert_rtt("edge", "core.spare", &[], 10.0);
    lab.assert_rtt("bob", "fd77:0:0:0::1", &["-6"], 40.0);
    // A link by its name, a rule by its, and nothing else.
    let set = |words: &[&str]| lab.emulate(&[&["set", &lab.name], words].concat());
    let (code, said) = set(&["--rtt", "60ms"]);
    assert!(code == Some(2) && said.contains("lan, wan, spare, site"), "{said}");
    let (code, said) = set(&["--link", "wan", "--rule", "high", "--rtt", "60ms"]);
    assert!(code == Some(2) && said.contains("no rule `high`"), "{said}");
    assert_eq!(set(&["--link", "wan", "--rule", "low", "--rtt", "80ms"]).0, Some(0));
    lab.assert_rtt("alice", "bob", &["-Q", "32"], 80.0);
    lab.assert_rtt("alice", "bob", &[], 40.0);
    let (_, said) = lab.emulate(&["show", &lab.name, "--json"]);
    let links: Vec<&str> = said.lines().filter_map(|line| line.split('"').nth(3)).collect();
    assert_eq!(links, ["lan", "wan", "spare", "site"]);
    let (code, said) = lab.exec("carol", &["true"]);
    assert!(code == Some(2) && said.contains("alice, edge, core, bob"), "{said}");
}

#[test]
fn routed_packets_pass_whatever_engine_is_chosen() {
    require!(Need::Emulator, Need::Ping);
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let site = scratch.path().join("site.toml");
    // The command of a host may tidy up before it ends.
    let tidy = r#"run = "trap 'sleep 0.3; touch tidied; exit' TERM; while :; do sleep 0.1; done""#;
    std::fs::write(&site, SITE.replace(r#"run = "touch here; sleep 1000""#, tidy)).unwrap();
    let mut run = Command::new(LONGHAUL);
    run.args(["emulate", "run", "--topology"])
        .arg(&site)
        .args(["--on", "alice", "--", "ping", "-c", "3", "bob"]);
    let output = run.current_dir(scratch.path()).output().unwrap();
    let said = words_of(&output);
    assert!(said.contains("3 received"), "{said}");
    assert!(scratch.path().join("tidied").exists(), "{said}");
    let held =
        SITE.replace("between = [\"edge\", \"core\"]", "between = [\"edge\", \"core\"]\nengine = \"held\"");
    std::fs::write(&site, held).unwrap();
    let mut run = Command::new(LONGHAUL);
    let output = run.args(["emulate", "run", "--topology"]).arg(&site).args(["--", "true"]).output().unwrap();
    assert!(words_of(&output).contains("ends at a router"), "{}", words_of(&output));
}

#[test]
fn a_trace_that_begins_with_silence_is_reported() {
    require!(Need::Emulator);
    let lab = Lab::up("traced", SITE, &[]);
    std::fs::write(lab.file("t.csv"), "time,rate\n0,0\n1s,10Mbit\n").unwrap();
    let (code, said) = lab.emulate(&["set", &lab.name, "--link", "spare", "--trace", &lab.file("t.csv")]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = lab.emulate(&["show", &lab.name, "--json"]);
    assert!(
        code == Some(0) && said.contains(r#""trace":{"steps":2,"period":null,"mean_rate_bps":10000000}"#),
        "{said}"
    );
}

#[test]
fn a_link_that_is_changed_under_traffic_loses_nothing() {
    require!(Need::Emulator, Need::Ping);
    let lab = Lab::up("changed", SITE, &[]);
    // After its last packet ping waits for twice the longest round trip only: a long one gives a busy machine time.
    assert_eq!(lab.emulate(&["set", &lab.name, "--link", "wan", "--rtt", "500ms"]).0, Some(0));
    let mut ping = Command::new(LONGHAUL);
    ping.args([
        "emulate", "exec", &lab.name, "alice", "--", "ping", "-q", "-i", "0.005", "-c", "400", "-W", "3",
    ]);
    let ping = ping.arg("bob").stdout(std::process::Stdio::piped()).spawn().unwrap();
    for round in 0..12 {
        let change = match round % 4 {
            0 => ["--rtt", "10ms", "--aqm", "fq_codel"],
            1 => ["--rate", "20Mbit", "--jitter", "3ms:normal"],
            2 => ["--rtt", "500ms", "--aqm", "none"],
            _ => ["--rate", "1Gbit", "--jitter", "0ms"],
        };
        let (code, said) = lab.emulate(&[&["set", &lab.name, "--link", "wan"], &change[..]].concat());
        assert_eq!(code, Some(0), "{said}");
    }
    let output = ping.wait_with_output().unwrap();
    let said = words_of(&output);
    assert!(said.contains("400 packets transmitted, 400 received"), "{said}");
}

#[test]
fn nothing_is_left_of_a_network_whose_process_was_killed() {
    require!(Need::Emulator, Need::Ping);
    // Whatever other tests have, in this machine's own namespace there is no device of ours and there are no namespaces
    // with names.
    let devices = || {
        let mut devices = String::new();
        for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
            let _ = writeln!(devices, "{:?}", entry.file_name());
        }
        let named = std::fs::read_dir("/run/netns").map_or(0, Iterator::count);
        format!("{devices}{named} namespaces with names")
    };
    let before = devices();
    let lab = Lab::up("killed", SITE, &[]);
    let daemon = lab.daemon().expect("the daemon runs");
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_for("the daemon is gone", LIMIT, || lab.daemon().is_none().then_some(()));
    assert_eq!(devices(), before);
    // Nor of what it ran on its hosts, which would keep them.
    let here = lab.scratch.path().canonicalize().unwrap();
    wait_for("the hosts' commands are gone", LIMIT, || {
        let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
        let is_here = |entry: std::fs::DirEntry| {
            std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == here)
        };
        (!processes.any(is_here)).then_some(())
    });
    let (code, said) = lab.emulate(&["down", &lab.name]);
    assert!(code == Some(0) && said.contains("no emulated network is up"), "{said}");
    // The name is free again, and the addresses are.
    let site = lab.file("site.toml");
    let (code, said) = lab.emulate(&["up", &lab.name, "--topology", &site]);
    assert_eq!(code, Some(0), "{said}");
    lab.assert_rtt("alice", "bob", &[], 40.0);
}

#[test]
fn what_passes_a_link_is_recorded_and_drawn() {
    require!(Need::Emulator, Need::Ping);
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (capture, graph) = (scratch.path().join("all.pcapng"), scratch.path().join("traffic.svg"));
    let mut run = Command::new(LONGHAUL);
    // While nothing has come back ping waits as long as it is told; then for twice the longest round trip only.
    run.args(["emulate", "run", "--rtt", "2s", "--loss", "30%,0%", "--seed", "3"]);
    run.arg("--capture").arg(&capture).arg("--graph").arg(&graph);
    let output =
        run.args(["--", "ping", "-4", "-q", "-i", "0.01", "-c", "100", "-W", "10", "far"]).output().unwrap();
    let said = words_of(&output);
    let received: usize = said
        .split("transmitted, ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{said}"));
    assert!((50..90).contains(&received), "{said}");
    let recorded = icmp_by_interface(&std::fs::read(&capture).unwrap());
    assert_eq!(recorded, [[100, received, 100 - received], [received, received, 0]]);
    let drawn = std::fs::read_to_string(&graph).unwrap();
    assert!(drawn.contains("near-&gt;far") && drawn.contains("<polygon"), "something was sampled");
}

/// Of a pcapng file with two directions: ICMP packets of each that were sent, delivered and dropped.
fn icmp_by_interface(file: &[u8]) -> [[usize; 3]; 2] {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut counts) = (0, [[0; 3]; 2]);
    while at < file.len() {
        const ENHANCED_PACKET: usize = 6;
        const ETHERNET: usize = 14;
        const ICMP: u8 = 1;
        let packet = at + 28;
        if word(at) == ENHANCED_PACKET && file[packet + 12..packet + ETHERNET] == [8, 0] {
            let interface = word(at + 8);
            counts[interface / 3][interface % 3] += usize::from(file[packet + ETHERNET + 9] == ICMP);
        }
        at += word(at + 4);
    }
    counts
}
