//! The link goes down for a while, and lanes are reset: the same copy goes on by itself.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::stage::process::{LIMIT, Running, wait_for};
use crate::stage::tree::{assert_no_leftovers, assert_same_bytes, write_random};
use crate::stage::{Host, LISTEN, Need, Stage, Way};

const FILE_BYTES: u64 = 256 << 20;

#[test]
fn a_copy_outlives_twenty_seconds_without_a_link() {
    require!(Need::Emulator);
    let stage = Stage::alone("--rtt 80ms --rate 500Mbit");
    let _server = stage.serve();
    write_random(&stage.path("near/big"), FILE_BYTES, 2);
    let before = stage.carried(Way::Push);
    let mut copy = stage.start(&mut stage.copy(Way::Push, &["--json"], "big"));
    stage.wait_until_carried(Way::Push, before, FILE_BYTES / 3, &mut copy);
    stage.set_link("--loss 100%");
    // The outage is the scenario: nothing to wait for but its end.
    std::thread::sleep(Duration::from_secs(20));
    assert!(!copy.has_ended(), "it gave up: {}", copy.said());
    assert!(!stage.path("far/big").exists());
    stage.set_link("--loss 0%");
    let ended = copy.wait().expect(0);
    assert_eq!(ended.json()["files"], 1, "{}", ended.out);
    assert_same_bytes(&stage.path("near/big"), &stage.path("far/big"));
    assert_no_leftovers(&stage.path("far"));
}

/// The client's ports of all TCP connections to the server.
fn ports(stage: &Stage) -> BTreeSet<u16> {
    let list = stage.run(stage.on(Host::Near, "ss").args(["-tnH", "state", "established", "dst", LISTEN]));
    let port = |line: &str| line.split_whitespace().nth(2)?.rsplit_once(':')?.1.parse().ok();
    list.expect(0).out.lines().filter_map(port).collect()
}

/// Makes the kernel break a connection off; both ends see a reset.
fn reset(stage: &Stage, port: u16) {
    let by_kernel =
        stage.run(stage.on(Host::Near, "ss").args(["-K", "-tn", "sport", "=", &format!(":{port}")]));
    if by_kernel.code == Some(0) && !ports(stage).contains(&port) {
        return;
    }
    // A kernel without CONFIG_INET_DIAG_DESTROY: answer its next packet with a reset.
    let rule = |verb: &str| {
        let port = port.to_string();
        let rule = ["OUTPUT", "-p", "tcp", "--sport", &port, "-j", "REJECT", "--reject-with", "tcp-reset"];
        stage.run(stage.on(Host::Near, "iptables").arg(verb).args(rule)).expect(0);
    };
    rule("-I");
    wait_for("a connection is reset", LIMIT, || (!ports(stage).contains(&port)).then_some(()));
    rule("-D");
}

fn wait_for_lanes(stage: &Stage, count: usize, copy: &mut Running) -> BTreeSet<u16> {
    wait_for("lanes are open", LIMIT, || {
        assert!(!copy.has_ended(), "the copy was over too early; it said:\n{}", copy.said());
        Some(ports(stage)).filter(|ports| ports.len() >= count)
    })
}

#[test]
fn lanes_that_are_reset_connect_again() {
    require!(Need::Emulator, Need::Ss, Need::Iptables);
    const LANES: usize = 4;
    let stage = Stage::alone("--rtt 60ms --rate 400Mbit");
    let _server = stage.serve();
    write_random(&stage.path("near/big"), FILE_BYTES, 3);
    let before = stage.carried(Way::Push);
    let mut copy = stage.start(&mut stage.copy(Way::Push, &["--json", "--lanes", "4"], "big"));
    stage.wait_until_carried(Way::Push, before, FILE_BYTES / 8, &mut copy);
    // However long the next steps take: the copy is not over before them.
    stage.set_link("--rate 40Mbit");
    // One of them.
    let first = wait_for_lanes(&stage, LANES, &mut copy);
    reset(&stage, *first.first().unwrap());
    let second = wait_for_lanes(&stage, LANES, &mut copy);
    assert_eq!(second.difference(&first).count(), 1, "one lane is new: {first:?}, then {second:?}");
    // All of them.
    second.iter().for_each(|&port| reset(&stage, port));
    let third = wait_for_lanes(&stage, LANES, &mut copy);
    assert!(third.is_disjoint(&second), "all lanes are new: {second:?}, then {third:?}");
    stage.set_link("--rate 400Mbit");
    copy.wait().expect(0);
    assert_same_bytes(&stage.path("near/big"), &stage.path("far/big"));
    assert_no_leftovers(&stage.path("far"));
}
