//! What mounts keep is what is there: nobody sees the past, whoever changes files, by whatever way.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::mounting::Mounted;
use crate::stage::process::wait_for;
use crate::stage::{Need, Stage, Way};

/// It is a moment; on a slow machine it may be a long one.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);

/// Waits until a change that was made at the server is seen.
fn seen(what: &str, look: impl Fn() -> bool) {
    wait_for(what, NOTICED_WITHIN, || look().then_some(()));
}

#[test]
fn what_is_known_is_not_asked_again() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 1Gbit");
    let far = stage.path("far");
    fs::create_dir(far.join("many")).unwrap();
    let count = 1000;
    for number in 0..count {
        fs::write(far.join(format!("many/file-{number}")), number.to_string()).unwrap();
    }
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let list = || {
        let names = fs::read_dir(mounted.path("many")).unwrap().map(|entry| entry.unwrap().path());
        names.map(|path| fs::symlink_metadata(path).unwrap().len()).sum::<u64>()
    };
    let bytes = |what: &dyn Fn()| {
        let before = stage.carried(Way::Pull).bytes;
        what();
        stage.carried(Way::Pull).bytes - before
    };
    let first = bytes(&|| assert_eq!(list(), 2890));
    // What is asked again and again all the same: is the server there, may leases be used on.
    let idle = 20_000;
    assert!(first > 5 * idle, "{first} bytes for a listing of {count}");
    for _ in 0..2 {
        let again = bytes(&|| assert_eq!(list(), 2890));
        assert!(again < idle, "{again} bytes for what is known");
    }
    // Absence is known as well, and a small file that has been read.
    let look = || {
        assert!(!mounted.path("many/absent").exists());
        assert_eq!(fs::read_to_string(mounted.path("many/file-7")).unwrap(), "7");
    };
    look();
    let again = bytes(&|| (0..200).for_each(|_| look()));
    assert!(again < idle, "{again} bytes for what is known");
    mounted.stop_having_known(1000);
}

#[test]
fn changes_that_are_made_at_the_server_are_noticed() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    let far = stage.path("far");
    fs::create_dir_all(far.join("d/e")).unwrap();
    fs::write(far.join("d/f"), "first").unwrap();
    fs::write(far.join("d/once"), "o").unwrap();
    fs::hard_link(far.join("d/once"), far.join("d/e/twice")).unwrap();
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let names = |below: &str| fs::read_dir(mounted.path(below)).unwrap().count();
    let read = |below: &str| fs::read_to_string(mounted.path(below)).unwrap_or_default();
    let mode = |below: &str| fs::symlink_metadata(mounted.path(below)).map_or(0, |attr| attr.mode() & 0o777);
    // All is known here.
    assert_eq!((names("d"), names("d/e"), read("d/f"), read("d/once")), (3, 1, "first".into(), "o".into()));
    assert!(!mounted.path("d/new").exists());

    fs::write(far.join("d/f"), "second").unwrap();
    seen("new bytes", || read("d/f") == "second");
    OpenOptions::new().append(true).open(far.join("d/f")).unwrap().write_all_at(b"s", 6).unwrap();
    seen("more bytes", || read("d/f") == "seconds");
    fs::set_permissions(far.join("d/f"), fs::Permissions::from_mode(0o604)).unwrap();
    seen("a new mode", || mode("d/f") == 0o604);
    fs::write(far.join("d/new"), "n").unwrap();
    seen("a new name", || mounted.path("d/new").exists() && names("d") == 4);
    fs::rename(far.join("d/new"), far.join("d/e/moved")).unwrap();
    seen("a name that has gone", || !mounted.path("d/new").exists());
    seen("a name that has come", || read("d/e/moved") == "n");
    fs::write(far.join("d/e/moved"), "m").unwrap();
    seen("bytes of a file that was moved", || read("d/e/moved") == "m");
    fs::write(far.join("d/e/twice"), "t").unwrap();
    seen("bytes under another name", || read("d/once") == "t");
    fs::remove_file(far.join("d/f")).unwrap();
    seen("a file that has gone", || !mounted.path("d/f").exists());
    fs::remove_dir_all(far.join("d/e")).unwrap();
    seen("a directory that has gone", || !mounted.path("d/e").exists());
    // Renamed here, changed there.
    fs::rename(mounted.path("d/once"), mounted.path("d/again")).unwrap();
    assert_eq!(read("d/again"), "t");
    fs::write(far.join("d/again"), "a").unwrap();
    seen("bytes under a new name", || read("d/again") == "a");
    mounted.stop_having_known(5);
}

#[test]
fn what_is_copied_to_the_server_is_noticed() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    let _server = stage.serve();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    for round in 0..3 {
        let words = format!("words of round {round}");
        fs::write(stage.path("near/f"), &words).unwrap();
        stage.run(&mut stage.copy(Way::Push, &["-f"], "f")).expect(0);
        seen("a copy", || fs::read_to_string(mounted.path("f")).is_ok_and(|read| read == words));
    }
    mounted.stop_having_known(1);
}

#[test]
fn an_open_file_outlives_its_name_whoever_removes_it() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    fs::write(stage.path("far/f"), "words").unwrap();
    let _server = stage.serve();
    let one = Mounted::new(&stage, "one", &[]);
    let other = Mounted::new(&stage, "other", &[]);
    assert_eq!(fs::read_to_string(one.path("f")).unwrap(), "words");
    // All of it is known here: nobody asks the server to open it.
    let open = File::open(one.path("f")).unwrap();
    fs::remove_file(other.path("f")).unwrap();
    fs::write(other.path("f"), "other").unwrap();
    let mut words = [0; 5];
    open.read_exact_at(&mut words, 0).unwrap();
    assert_eq!(&words, b"words");
    assert_eq!(fs::read_to_string(one.path("f")).unwrap(), "other");
    drop(open);
    one.stop_having_known(1);
    other.program.stop().expect(0);
}

#[test]
fn a_client_that_stands_still_holds_nobody_up_for_ever_and_sees_no_past() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    fs::write(stage.path("far/f"), "first").unwrap();
    let _server = stage.serve();
    let stands = Mounted::new(&stage, "one", &[]);
    let goes_on = Mounted::new(&stage, "other", &[]);
    let read = |path: &Path| fs::read_to_string(path);
    assert_eq!(read(&stands.path("f")).unwrap(), "first");
    kill(stands.program.pid(), Signal::SIGSTOP).unwrap();
    let begun = Instant::now();
    fs::write(goes_on.path("f"), "second").unwrap();
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    assert_eq!(read(&goes_on.path("f")).unwrap(), "second");
    kill(stands.program.pid(), Signal::SIGCONT).unwrap();
    // Its session has been ended; it waits for another, and never sees what was there.
    assert_eq!(read(&stands.path("f")).unwrap(), "second");
    goes_on.program.stop().expect(0);
}
