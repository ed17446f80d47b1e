//! Locks that are made and removed again and again: the server is not asked each time, and nobody can tell.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longhaul_files::limits::SPARE_TERM;

use crate::mounting::{Mounted, round_trips};
use crate::stage::process::wait_for;
use crate::stage::{Need, Stage};

const SOON: Duration = Duration::from_secs(60);

/// Makes a lock and removes it, twice: by then it stays at the server.
fn take_and_leave(lock: &Path) {
    for _ in 0..2 {
        drop(File::create_new(lock).unwrap());
        fs::remove_file(lock).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

fn time(path: &Path) -> (i64, i64) {
    let of = fs::metadata(path).unwrap();
    (of.mtime(), of.mtime_nsec())
}

#[test]
fn a_lock_that_has_been_left_is_not_there() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 10ms --rate 1Gbit");
    let far = stage.path("far/dir");
    fs::create_dir(&far).unwrap();
    fs::write(far.join("f"), "words").unwrap();
    let _server = stage.serve();
    let mounts = [Mounted::new(&stage, "one", &[]), Mounted::new(&stage, "other", &[])];
    let [dir, other] = [mounts[0].path("dir"), mounts[1].path("dir")];
    let (lock, theirs) = (dir.join("lock"), other.join("lock"));
    let left = |lock: &Path| {
        // Not at once after another mount has looked.
        wait_for("a lock that stays at the server", SOON, || {
            take_and_leave(lock);
            far.join("lock").exists().then_some(())
        });
    };
    assert_eq!((names(&dir), names(&other)), (vec!["f".into()], vec!["f".into()]));

    left(&lock);
    let before = round_trips(&mounts[0]);
    for _ in 0..10 {
        assert_eq!((names(&dir), lock.exists()), (vec!["f".to_owned()], false));
        let was = time(&dir);
        let taken = File::create_new(&lock).unwrap();
        assert_eq!(File::create_new(&lock).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(lock.exists() && time(&lock) > was && time(&dir) > was);
        drop(taken);
        fs::remove_file(&lock).unwrap();
    }
    let trips = round_trips(&mounts[0]) - before;
    // In a directory whose names have changed its order is asked for.
    assert!(trips <= 1, "{trips} round trips");

    // A listing that is asked for has it not, either.
    fs::write(dir.join("g"), "").unwrap();
    left(&lock);
    assert_eq!(names(&dir), ["f", "g"]);
    assert!(far.join("lock").exists());
    fs::remove_file(dir.join("g")).unwrap();

    // The other mount: looks it up, also from a directory that it has come to before, lists, takes the lock.
    let there = File::open(&other).unwrap();
    let beside = PathBuf::from(format!("/proc/self/fd/{}/lock", there.as_raw_fd()));
    assert!(!beside.exists());
    left(&lock);
    assert!(!beside.exists() && !far.join("lock").exists());
    left(&lock);
    assert!(!theirs.exists() && !far.join("lock").exists());
    left(&lock);
    assert_eq!(names(&other), ["f"]);
    assert!(!far.join("lock").exists());
    left(&lock);
    let taken = File::create_new(&theirs).unwrap();
    assert_eq!(File::create_new(&lock).unwrap_err().kind(), ErrorKind::AlreadyExists);
    drop(taken);
    fs::remove_file(&theirs).unwrap();

    // One that has been taken and is held: the other mount sees it, and what has become of the directory. Times do not go back.
    left(&lock);
    names(&mounts[1].path(""));
    let taken = File::create_new(&lock).unwrap();
    let (of_lock, of_dir) = (time(&lock), time(&dir));
    fs::write(dir.join("g"), "").unwrap();
    assert_eq!((names(&dir), time(&lock)), (vec!["f".into(), "g".into(), "lock".into()], of_lock));
    fs::remove_file(dir.join("g")).unwrap();
    assert!(time(&other) >= of_dir && time(&dir) >= of_dir);
    assert_eq!(File::create_new(&theirs).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!((time(&theirs), time(&lock)), (of_lock, of_lock));
    drop(taken);
    fs::remove_file(&lock).unwrap();
    left(&lock);
    names(&mounts[1].path(""));
    let taken = File::create_new(&lock).unwrap();
    let of_dir = time(&dir);
    assert!(time(&other) >= of_dir && time(&dir) >= of_dir);
    drop(taken);
    fs::remove_file(&lock).unwrap();

    // What is made of it is what was written, by its new name.
    left(&lock);
    let mut file = File::create_new(&lock).unwrap();
    file.write_all(b"new words").unwrap();
    drop(file);
    fs::rename(&lock, dir.join("f")).unwrap();
    for f in [far.join("f"), other.join("f"), dir.join("f")] {
        assert_eq!(fs::read_to_string(f).unwrap(), "new words");
    }
    // Removed and made by those who want something else of it.
    left(&lock);
    fs::write(&lock, "made without O_EXCL").unwrap();
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "made without O_EXCL");
    fs::remove_file(&lock).unwrap();
    left(&lock);
    fs::create_dir(&lock).unwrap();
    fs::remove_dir(&lock).unwrap();
    left(&lock);
    fs::rename(dir.join("f"), &lock).unwrap();
    fs::rename(&lock, dir.join("f")).unwrap();
    left(&lock);
    fs::remove_file(dir.join("f")).unwrap();
    fs::remove_dir(&dir).unwrap();
    assert!(!far.exists());
    mounts.into_iter().for_each(|mounted| mounted.stop_having_known(1));
}

#[test]
fn a_lock_that_has_been_left_goes_when_somebody_may_miss_it() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 10ms --rate 1Gbit");
    let far = stage.path("far");
    fs::write(far.join("f"), "words").unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let (lock, at_server) = (mounted.path("lock"), far.join("lock"));
    let gone = |why: &str, within: Duration| {
        wait_for(why, within, || (!at_server.exists()).then_some(()));
    };
    // A program at the server opens something beside it.
    assert_eq!(names(&mounted.path("")), ["f"]);
    take_and_leave(&lock);
    assert!(at_server.exists());
    assert!(Command::new("cat").arg(far.join("f")).output().unwrap().status.success());
    gone("the end of a lock beside what is used", SPARE_TERM / 2);
    wait_for("a lock that stays", SOON, || {
        take_and_leave(&lock);
        at_server.exists().then_some(())
    });
    gone("the end of a lock that nobody uses", SOON);
    // And not longer than the mount.
    wait_for("a lock that stays", SOON, || {
        take_and_leave(&lock);
        at_server.exists().then_some(())
    });
    mounted.stop_having_known(1);
    assert!(!at_server.exists());
}

#[test]
fn a_lock_that_has_been_left_is_not_there_when_the_server_is_back() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    fs::write(stage.path("far/f"), "words").unwrap();
    let server = stage.serve_and_restart();
    let mounts = ["one", "other"].map(|name| Mounted::new(&stage, name, &[]));
    let [lock, theirs] = [0, 1].map(|mount: usize| mounts[mount].path("lock"));
    for signal in ["KILL", "TERM"] {
        wait_for("a lock that stays", SOON, || {
            take_and_leave(&lock);
            stage.path("far/lock").exists().then_some(())
        });
        server.signal(signal, 1.0);
        assert!(!theirs.exists(), "after {signal}");
        assert!(!lock.exists() && !stage.path("far/lock").exists());
    }
    mounts.into_iter().for_each(|mounted| mounted.stop_having_known(0));
}
