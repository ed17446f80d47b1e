//! The destination's disk is too small.

use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::stage::tree::{assert_no_leftovers, assert_same_bytes, assert_same_contents, write_random};
use crate::stage::{Need, Stage, Way};

/// Gives this thread, and what it starts from now on, mounts of its own; they vanish with it.
pub(crate) fn own_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let all = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, all, None::<&str>).unwrap();
}

fn mount_small(at: &Path, size: &str, more: MsFlags) {
    mount(Some("tmpfs"), at, Some("tmpfs"), more, Some(format!("size={size}").as_str())).unwrap();
}

/// A small disk; taken away again before its place is removed.
pub(crate) struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    pub(crate) fn new(at: &'a Path, size: &str) -> Self {
        mount_small(at, size, MsFlags::empty());
        Self(at)
    }

    fn enlarge(&self, size: &str) {
        mount_small(self.0, size, MsFlags::MS_REMOUNT);
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = umount2(self.0, MntFlags::MNT_DETACH); // a failed test may still use it
    }
}

fn a_full_disk(way: Way) {
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    own_mounts();
    let disk = stage.target(way);
    let small = SmallDisk::new(&disk, "40M");
    let _server = stage.serve();
    let source = stage.source(way).join("set");
    std::fs::create_dir(&source).unwrap();
    write_random(&source.join("too big"), 64 << 20, 5);
    for n in 0..20 {
        write_random(&source.join(format!("small {n}")), 100 << 10, n);
        write_random(&source.join(format!("tiny {n}")), 1000, n);
    }
    let copy = || {
        let mut command = stage.cp(&["-r", "--json"]);
        match way {
            Way::Push => command.arg(&source).arg("longhaul://far/data/"),
            Way::Pull => command.arg("longhaul://far/data/set").arg(&disk),
        };
        stage.run(&mut command)
    };
    let ended = copy().expect(1).says(&["too big", "No space left on device"]);
    let problems = ended.json()["problems"].clone();
    assert_eq!(problems.as_array().unwrap().len(), 1, "just the one file: {problems}");
    assert!(!disk.join("set/too big").exists(), "nothing is there under its name");
    assert_no_leftovers(&disk);
    for n in 0..20 {
        assert_same_bytes(&source.join(format!("small {n}")), &disk.join(format!("set/small {n}")));
        assert_same_bytes(&source.join(format!("tiny {n}")), &disk.join(format!("set/tiny {n}")));
    }
    small.enlarge("200M");
    let again = copy().expect(0).json();
    assert_eq!((&again["files"], &again["skipped_files"]), (&1.into(), &40.into()), "{again}");
    assert_same_contents(&source, &disk.join("set"));
}

#[test]
fn a_push_to_a_full_disk_says_so_and_keeps_what_fits() {
    require!(Need::Emulator, Need::Root);
    a_full_disk(Way::Push);
}

#[test]
fn a_pull_to_a_full_disk_says_so_and_keeps_what_fits() {
    require!(Need::Emulator, Need::Root);
    a_full_disk(Way::Pull);
}
