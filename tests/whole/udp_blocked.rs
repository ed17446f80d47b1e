//! A firewall lets no UDP through.

use crate::stage::tree::{assert_same_bytes, write_random};
use crate::stage::{Host, Need, Stage, Way};

#[test]
fn without_udp_the_control_channel_runs_over_tcp() {
    require!(Need::Emulator, Need::Iptables);
    let stage = Stage::shared("--rtt 50ms --rate 1Gbit");
    let _server = stage.serve();
    for host in [Host::Near, Host::Far] {
        stage.run(stage.on(host, "iptables").args(["-I", "INPUT", "-p", "udp", "-j", "DROP"])).expect(0);
    }
    for way in [Way::Push, Way::Pull] {
        let name = format!("{way:?}");
        write_random(&stage.source(way).join(&name), 30 << 20, 7);
        let ended = stage.run(&mut stage.copy(way, &["--json"], &name)).expect(0);
        let ended = ended.says(&["UDP does not get through: the control channel runs over TCP"]);
        assert_eq!(ended.json()["control"], "TCP");
        assert_same_bytes(&stage.source(way).join(&name), &stage.target(way).join(&name));
    }
    // Who knows it can say so, and is not told.
    write_random(&stage.path("near/f"), 1000, 8);
    let ended = stage.run(&mut stage.copy(Way::Push, &["--tcp", "--json"], "f")).expect(0);
    assert!(!ended.err.contains("UDP"), "{}", ended.err);
}
