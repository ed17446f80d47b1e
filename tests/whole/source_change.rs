//! A source file changes, or shrinks, while it is copied.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::stage::tree::{assert_no_leftovers, assert_same_bytes, write_random};
use crate::stage::{Need, Stage, Way};

const FILE_BYTES: u64 = 160 << 20;

fn a_changing_source(way: Way, change: fn(&Path)) {
    let stage = Stage::alone("--rtt 40ms --rate 500Mbit");
    let _server = stage.serve();
    let (source, target) = (stage.source(way).join("big"), stage.target(way).join("big"));
    write_random(&source, FILE_BYTES, 6);
    std::fs::write(&target, "what was there before").unwrap();
    let before = stage.carried(way);
    let mut copy = stage.start(&mut stage.copy(way, &["--json"], "big"));
    stage.wait_until_carried(way, before, FILE_BYTES / 4, &mut copy);
    // However long this takes: the copy is not over before it.
    stage.set_link("--rate 40Mbit");
    change(&source);
    stage.set_link("--rate 500Mbit");
    let ended = copy.wait().expect(1).says(&["big: it has changed while it was copied; run the copy again"]);
    assert_eq!(ended.json()["files"], 0, "{}", ended.out);
    assert_eq!(std::fs::read(&target).unwrap(), b"what was there before");
    assert_no_leftovers(&stage.target(way));
    let again = stage.run(&mut stage.copy(way, &["--json"], "big")).expect(0).json();
    assert_eq!(again["skipped_bytes"], 0, "nothing of the old version is of use: {again}");
    assert_same_bytes(&source, &target);
}

/// In the part that has been sent already, so that only a look at the file can tell.
fn overwrite(source: &Path) {
    OpenOptions::new().write(true).open(source).unwrap().write_all_at(b"changed", 1000).unwrap();
}

fn truncate(source: &Path) {
    OpenOptions::new().write(true).open(source).unwrap().set_len(FILE_BYTES / 2).unwrap();
}

#[test]
fn a_push_of_a_file_that_changes_is_refused() {
    require!(Need::Emulator);
    a_changing_source(Way::Push, overwrite);
}

#[test]
fn a_push_of_a_file_that_shrinks_is_refused() {
    require!(Need::Emulator);
    a_changing_source(Way::Push, truncate);
}

#[test]
fn a_pull_of_a_file_that_changes_is_refused() {
    require!(Need::Emulator);
    a_changing_source(Way::Pull, overwrite);
}

#[test]
fn a_pull_of_a_file_that_shrinks_is_refused() {
    require!(Need::Emulator);
    a_changing_source(Way::Pull, truncate);
}
