//! What a copy keeps of a tree: all that `cp -a` and `rsync -aHAX` would.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::stage::tree::{assert_same_contents, assert_same_trees, write_random};
use crate::stage::{Need, Stage, Way};

/// Every kind of file, odd modes and times.
fn fill(top: &Path, xattrs: bool) {
    let dir = |name: &str| std::fs::create_dir_all(top.join(name)).unwrap();
    ["empty", "a/b/c/d", "sticky", "sealed"].into_iter().for_each(dir);
    File::create(top.join("empty file")).unwrap();
    write_random(&top.join("a/small"), 777, 10);
    write_random(&top.join("a/b/medium"), 300_001, 11);
    write_random(&top.join("a/b/c/large"), (20 << 20) + 13, 12);
    std::fs::hard_link(top.join("a/small"), top.join("a/b/c/d/second name")).unwrap();
    std::fs::hard_link(top.join("a/b/c/large"), top.join("large again")).unwrap();
    symlink("small", top.join("a/link")).unwrap();
    symlink("/nonexistent/\u{fc}ber", top.join("a/broken")).unwrap();
    symlink("b", top.join("a/link to directory")).unwrap();
    mkfifo(&top.join("pipe"), Mode::from_bits_truncate(0o640)).unwrap();
    write_random(&top.join("sealed/inside"), 10, 13);
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(&[7; 5000], 400 << 20).unwrap();
    sparse.write_all_at(&[8; 5000], (1 << 30) - 5000).unwrap();
    File::create(top.join("all hole")).unwrap().set_len(50 << 20).unwrap();
    if xattrs {
        for (path, value) in [("a/small", "one"), ("a/b", "of a directory"), ("a/b/c/large", "")] {
            let set =
                Command::new("setfattr").args(["-n", "user.note", "-v", value]).arg(top.join(path)).status();
            assert!(set.unwrap().success());
        }
    }
    for (path, mode) in [
        ("a/small", 0o600),
        ("a/b/medium", 0o4755),
        ("empty file", 0o000),
        ("sticky", 0o1777),
        ("a/b", 0o2750),
        ("sealed", 0o500),
    ] {
        std::fs::set_permissions(top.join(path), Permissions::from_mode(mode)).unwrap();
    }
    set_times(top);
}

/// Times to the nanosecond, before 1970 and far ahead; directories last, and inner ones first.
fn set_times(top: &Path) {
    let times = [
        ("a/small", 1, 999_999_999),
        ("a/b/medium", 4_000_000_000, 1),
        ("a/b/c/large", 1_234_567_890, 123_456_789),
        ("a/b/c/d", 86_400, 5),
        ("a/b/c", 86_401, 6),
        ("a/b", 86_402, 7),
        ("a", 86_403, 8),
        ("empty", 86_404, 9),
        ("sealed", 86_405, 10),
    ];
    for (path, seconds, nanos) in times {
        let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        File::open(top.join(path)).unwrap().set_modified(time).unwrap();
    }
    let before_1970 = SystemTime::UNIX_EPOCH - Duration::new(1000, 5);
    File::open(top.join("sparse")).unwrap().set_modified(before_1970).unwrap();
}

/// Copies `tree` into the other side's directory, where it may be already.
fn copy_tree(stage: &Stage, way: Way, options: &[&str]) -> Command {
    let mut command = stage.cp(options);
    match way {
        Way::Push => command.arg(stage.path("near/tree")).arg("longhaul://far/data/"),
        Way::Pull => command.arg("longhaul://far/data/tree").arg(stage.path("near")),
    };
    command
}

fn all_of_a_tree(way: Way) {
    let stage = Stage::alone("--rtt 20ms --rate 1Gbit");
    let _server = stage.serve();
    let (source, target) = (stage.source(way).join("tree"), stage.target(way).join("tree"));
    fill(&source, true);
    stage.run(&mut copy_tree(&stage, way, &["-a"])).expect(0);
    assert_same_trees(&source, &target);
    // Holes stay holes, also where all is one.
    for name in ["sparse", "all hole"] {
        let blocks = |top: &Path| top.join(name).metadata().unwrap().blocks();
        assert!(blocks(&target) <= blocks(&source) + 64, "{name}: {} blocks", blocks(&target));
    }
    // Again: nothing travels.
    let before = stage.carried(way);
    let again = stage.run(&mut copy_tree(&stage, way, &["-a", "--json"])).expect(0).json();
    assert_eq!(again["bytes"], 0, "{again}");
    let sent = stage.carried(way).bytes - before.bytes;
    assert!(sent < 300_000, "a copy with nothing to do sent {sent} bytes");
    assert_same_trees(&source, &target);
}

#[test]
fn a_push_keeps_all_of_a_tree() {
    require!(Need::Emulator, Need::Root, Need::UserXattrs);
    all_of_a_tree(Way::Push);
}

#[test]
fn a_pull_keeps_all_of_a_tree() {
    require!(Need::Emulator, Need::Root, Need::UserXattrs);
    all_of_a_tree(Way::Pull);
}

#[test]
fn without_options_modes_follow_the_umask_and_times_stay() {
    require!(Need::Emulator);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let _server = stage.serve();
    let source = stage.path("near/f");
    write_random(&source, 100, 14);
    std::fs::set_permissions(&source, Permissions::from_mode(0o4777)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000, 42);
    File::open(&source).unwrap().set_modified(time).unwrap();
    stage.run(&mut stage.copy(Way::Push, &[], "f")).expect(0);
    let meta = stage.path("far/f").metadata().unwrap();
    assert_eq!(meta.modified().unwrap(), time);
    assert_eq!(meta.mode() & 0o7777 & !0o755, 0, "{:o}", meta.mode());
    // -p: exactly.
    stage.run(&mut stage.copy(Way::Push, &["-p"], "f")).expect(0);
    assert_eq!(stage.path("far/f").metadata().unwrap().mode() & 0o7777, 0o4777);
}

#[test]
fn many_small_files_cost_no_round_trip_each() {
    require!(Need::Emulator);
    const FILES: u64 = 5000;
    // A long way: what counts is round trips, and not what a slow machine needs for so many files.
    const RTT: Duration = Duration::from_millis(400);
    let stage = Stage::alone("--rtt 400ms --rate 1Gbit");
    let _server = stage.serve();
    for way in [Way::Push, Way::Pull] {
        let tree = stage.source(way).join(format!("{way:?}"));
        for d in 0..50 {
            std::fs::create_dir_all(tree.join(format!("d{d}"))).unwrap();
            for n in 0..FILES / 50 {
                let bytes = format!("{d} {n} ").repeat(50 + n as usize * 3);
                std::fs::write(tree.join(format!("d{d}/f{n}")), bytes).unwrap();
            }
        }
        let ended = stage.run(&mut stage.copy(way, &["-r", "--json"], &format!("{way:?}"))).expect(0);
        assert_eq!(ended.json()["files"], FILES, "{}", ended.out);
        let round_trips = ended.took.as_millis() / RTT.as_millis();
        eprintln!("{way:?}: {FILES} files in {round_trips} round trips");
        // One for each ten files would be 500; what they take is the disk's and the processor's.
        assert!(round_trips < 80, "{FILES} files took {round_trips} round trips");
        assert_same_contents(&tree, &stage.target(way).join(format!("{way:?}")));
    }
}
