//! One end is killed in mid-transfer: the next run goes on from there.

use crate::stage::process::Running;
use crate::stage::tree::{assert_no_leftovers, assert_same_bytes, write_random};
use crate::stage::{Need, Stage, Way};

const FILE_BYTES: u64 = 384 << 20;

/// 1 Gbit/s x 60 ms.
const BDP_BYTES: u64 = 7_500_000;

/// What may travel twice: what was in flight, in sockets and in buffers when the end died.
const TWICE_BYTES_MAX: u64 = 2 * BDP_BYTES + (64 << 20);

/// Bytes on the link for each byte of a file: headers of IP, TCP, TLS and frames; the rest of control is noise.
const OVERHEAD: f64 = 1.042;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Client,
    Server,
}

fn a_killed_copy_goes_on(way: Way, victim: Victim) {
    let stage = Stage::alone("--rtt 60ms --rate 1Gbit");
    write_random(&stage.source(way).join("big"), FILE_BYTES, 1);
    let before = stage.carried(way);
    let mut server = stage.serve();
    let mut client = stage.start(&mut stage.copy(way, &["--json"], "big"));
    stage.wait_until_carried(way, before, FILE_BYTES * 6 / 10, &mut client);
    // However long the next steps take: the copy is not over before them.
    stage.set_link("--rate 40Mbit");
    let target = stage.target(way).join("big");
    assert!(!target.exists(), "nothing is seen under the name before all of it is there");
    let kept: Running = match victim {
        Victim::Client => {
            client.kill();
            server
        }
        Victim::Server => {
            server.kill();
            server = stage.serve();
            // The new server knows nothing of the old one's sessions, and the client learns that.
            client.wait().expect(2).says(&["restarted; run the command again"]);
            server
        }
    };
    assert!(!target.exists());
    stage.set_link("--rate 1Gbit");
    let again = stage.run(&mut stage.copy(way, &["--json"], "big")).expect(0);
    assert_same_bytes(&stage.source(way).join("big"), &target);
    assert_no_leftovers(&stage.target(way));
    let told = again.json();
    assert!(told["skipped_bytes"].as_u64().unwrap() > FILE_BYTES / 4, "it did not begin anew: {told}");
    let after = stage.carried(way);
    let sent = (after.bytes - before.bytes) - (after.lost - before.lost) * 1500;
    let twice = ((sent as f64 / OVERHEAD) as u64).saturating_sub(FILE_BYTES);
    eprintln!("{way:?} {victim:?}: sent twice {} MiB; {told}", twice >> 20);
    assert!(twice <= TWICE_BYTES_MAX, "{} MiB were sent twice", twice >> 20);
    drop(kept);
}

#[test]
fn a_push_goes_on_after_its_sender_was_killed() {
    require!(Need::Emulator);
    a_killed_copy_goes_on(Way::Push, Victim::Client);
}

#[test]
fn a_push_goes_on_after_its_receiver_was_killed() {
    require!(Need::Emulator);
    a_killed_copy_goes_on(Way::Push, Victim::Server);
}

#[test]
fn a_pull_goes_on_after_its_sender_was_killed() {
    require!(Need::Emulator);
    a_killed_copy_goes_on(Way::Pull, Victim::Server);
}

#[test]
fn a_pull_goes_on_after_its_receiver_was_killed() {
    require!(Need::Emulator);
    a_killed_copy_goes_on(Way::Pull, Victim::Client);
}
