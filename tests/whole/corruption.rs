//! Bits flip on the way, where no checksum of TCP sees it: the lane's own authentication does.

use crate::stage::tree::{assert_no_leftovers, assert_same_bytes, write_random};
use crate::stage::{Need, Stage, Way};

fn corrupted_bytes_never_arrive(way: Way) {
    const FILE_BYTES: u64 = 192 << 20;
    // Some ten of 140,000 packets.
    let stage = Stage::alone("--rtt 40ms --rate 1Gbit --corrupt 0.007%");
    let _server = stage.serve();
    write_random(&stage.source(way).join("big"), FILE_BYTES, 4);
    let before = stage.carried(way);
    let ended = stage.run(&mut stage.copy(way, &["-v", "--json"], "big")).expect(0);
    let corrupted = stage.carried(way).corrupted - before.corrupted;
    assert!(corrupted > 0, "nothing was corrupted: this has shown nothing");
    eprintln!("{corrupted} packets corrupted; {}", ended.out);
    assert_same_bytes(&stage.source(way).join("big"), &stage.target(way).join("big"));
    assert_no_leftovers(&stage.target(way));
}

#[test]
fn a_push_over_a_link_that_flips_bits_is_right_in_the_end() {
    require!(Need::Emulator);
    corrupted_bytes_never_arrive(Way::Push);
}

#[test]
fn a_pull_over_a_link_that_flips_bits_is_right_in_the_end() {
    require!(Need::Emulator);
    corrupted_bytes_never_arrive(Way::Pull);
}
