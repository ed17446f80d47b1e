//! Servers that are gone and come back: what mounts had, they have again; who has been given up is told.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use longhaul_files::limits::GRACE_MAX;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FcntlArg, RenameFlags, fcntl, renameat2};
use nix::libc;
use nix::sys::signal::{Signal, kill};

use crate::mounting::Mounted;
use crate::stage::process::wait_for;
use crate::stage::{Host, Need, Stage, Tended};

const SOON: Duration = Duration::from_secs(60);

fn open(mounted: &Mounted<'_>, name: &str) -> File {
    File::options().read(true).write(true).open(mounted.path(name)).unwrap()
}

/// The server that is there says that it does not know the connection: nobody waits until nothing has answered for long.
fn assert_learnt_at_once(mounts: &[Mounted<'_>]) {
    for mounted in mounts {
        let said = mounted.program.said();
        assert!(!said.contains("no answer to a ping"), "{said}");
        assert!(said.contains("the server is back"), "it has told what it did: {said}");
    }
}

fn lock_all(file: &File) -> Result<(), Errno> {
    let all = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&all)).map(drop)
}

#[test]
fn a_server_that_is_started_again_gives_mounts_back_what_they_had() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let far = stage.path("far");
    fs::create_dir_all(far.join("d/e")).unwrap();
    fs::write(far.join("d/e/f"), vec![1; 1 << 20]).unwrap();
    fs::write(far.join("locked"), "words").unwrap();
    fs::write(far.join("removed"), "words").unwrap();
    let server = stage.serve_and_restart();
    let mounts = ["one", "other"].map(|name| Mounted::new(&stage, name, &["-v"]));
    for signal in ["KILL", "TERM"] {
        let [mine, theirs] = [open(&mounts[0], "locked"), open(&mounts[1], "locked")];
        lock_all(&mine).unwrap();
        let read_only = File::open(mounts[0].path("d/e/f")).unwrap();
        let inode = read_only.metadata().unwrap().ino();
        let file = open(&mounts[0], "d/e/f");
        file.write_all_at(&[7; 1000], 0).unwrap();
        file.sync_all().unwrap();
        // Told to nobody yet.
        file.write_all_at(signal.as_bytes(), 5000).unwrap();
        server.signal(signal, 1.0);
        // Somebody else looks: he sees all of it, however long that takes.
        let begun = Instant::now();
        let seen = fs::read(mounts[1].path("d/e/f")).unwrap();
        assert!(begun.elapsed() < GRACE_MAX, "{:?}", begun.elapsed());
        assert_eq!((&seen[..1000], &seen[5000..5004]), (&[7; 1000][..], signal.as_bytes()));
        assert_eq!(lock_all(&theirs), Err(Errno::EAGAIN), "the lock is there still");
        let mut byte = [0];
        read_only.read_exact_at(&mut byte, 5000).unwrap();
        assert_eq!(
            (byte[0], fs::metadata(mounts[0].path("d/e/f")).unwrap().ino()),
            (signal.as_bytes()[0], inode)
        );
        file.write_all_at(b"goes on", 6000).unwrap();
        file.sync_all().unwrap();
        assert_eq!(&fs::read(far.join("d/e/f")).unwrap()[6000..6007], b"goes on");
        drop(mine);
        wait_for("the lock to go", SOON, || lock_all(&theirs).ok());
    }
    // What has gone in the meantime is gone.
    let removed = open(&mounts[0], "removed");
    removed.write_all_at(b"W", 0).unwrap();
    removed.sync_all().unwrap();
    fs::remove_file(far.join("removed")).unwrap();
    server.signal("KILL", 0.0);
    let error = wait_for("an error", SOON, || removed.metadata().err());
    assert!([libc::ESTALE, libc::EIO].contains(&error.raw_os_error().unwrap()), "{error}");
    fs::write(mounts[0].path("new"), "n").unwrap();
    assert_eq!(fs::read_to_string(mounts[1].path("new")).unwrap(), "n");
    drop(removed);
    assert_learnt_at_once(&mounts);
    let [one, other] = mounts;
    one.stop_having_written(1);
    other.stop_having_known(0);
}

#[test]
fn mounts_that_have_the_same_files_open_come_back_together() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    for name in ["f", "g"] {
        fs::write(stage.path("far").join(name), "first words").unwrap();
    }
    let server = stage.serve_and_restart();
    let mounts = ["one", "other"].map(|name| Mounted::new(&stage, name, &["-v"]));
    // Each writes one file, and has the other's open.
    let written = [open(&mounts[0], "f"), open(&mounts[1], "g")];
    let watched = [File::open(mounts[0].path("g")).unwrap(), File::open(mounts[1].path("f")).unwrap()];
    let mut byte = [0];
    watched.iter().for_each(|file| file.read_exact_at(&mut byte, 0).unwrap());
    for words in [b"1", b"2", b"3"] {
        // Nobody has looked for a while: each can have its file alone.
        std::thread::sleep(Duration::from_millis(1500));
        written.iter().for_each(|file| file.write_all_at(words, 0).unwrap());
    }
    server.signal("KILL", 0.5);
    let begun = Instant::now();
    for file in &watched {
        file.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(&byte, b"3");
    }
    assert!(begun.elapsed() < GRACE_MAX, "{:?}", begun.elapsed());
    assert_learnt_at_once(&mounts);
    written.iter().for_each(|file| file.sync_all().unwrap());
    drop((written, watched));
    let [one, other] = mounts;
    // If nothing had been kept back, nobody would have had to wait for anybody.
    one.stop_having_written(1);
    other.stop_having_written(1);
}

#[test]
fn bytes_on_their_way_to_a_server_that_dies_get_there() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 20ms --rate 200Mbit");
    let server = stage.serve_and_restart();
    let mounted = Mounted::new(&stage, "mnt", &[]);
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = File::options().read(true).write(true).create_new(true).open(mounted.path("big")).unwrap();
    for number in 0..48 {
        if number % 16 == 8 {
            server.signal("KILL", 0.5);
        }
        file.write_all_at(&block, number << 20).unwrap();
    }
    file.sync_all().unwrap();
    let there = fs::read(stage.path("far/big")).unwrap();
    assert!(there.len() == 48 << 20 && there.chunks(1 << 20).all(|chunk| chunk == block));
    // And those that are read.
    let mut here = vec![0; 1 << 20];
    let fresh = open(&mounted, "big");
    for number in 0..48 {
        if number == 3 {
            server.signal("KILL", 0.5);
        }
        fresh.read_exact_at(&mut here, number << 20).unwrap();
        assert!(here == block, "block {number}");
    }
}

/// A server that dies while nothing comes through its host's firewall in one direction.
struct Walled<'a> {
    stage: &'a Stage,
    server: Tended,
    mounted: Mounted<'a>,
}

impl<'a> Walled<'a> {
    fn new(stage: &'a Stage) -> Self {
        let server = stage.serve_and_restart();
        Self { stage, server, mounted: Mounted::new(stage, "mnt", &[]) }
    }

    fn here(&self, name: &str) -> PathBuf {
        self.mounted.path(name)
    }

    fn far(&self, name: &str) -> PathBuf {
        self.stage.path("far").join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.far(name)).unwrap()
    }

    /// The clients' ports of the server's TCP connections.
    fn connections(&self) -> Vec<String> {
        let there =
            self.stage.run(self.stage.on(Host::Far, "ss").args(["-Htn", "state", "established"])).expect(0);
        let port = |line: &str| Some(line.split_whitespace().nth(3)?.rsplit(':').next()?.to_owned());
        there.out.lines().filter_map(port).collect()
    }

    /// Has a program begin something until it waits for the server and `is_so`; then the server is killed, `others` do something there, and it
    /// is started again.
    fn killed<T: Send>(
        &self,
        direction: &str,
        operation: impl FnOnce() -> T + Send,
        is_so: impl Fn() -> bool,
        others: impl FnOnce(),
    ) -> T {
        let wall = |change| {
            let mut iptables = self.stage.on(Host::Far, "iptables");
            self.stage.run(iptables.args([change, direction, "-j", "DROP"])).expect(0);
        };
        // Nothing has to be looked up.
        wait_for("leases", SOON, || self.mounted.may_keep().then_some(()));
        let names = fs::read_dir(self.here("")).unwrap();
        names.for_each(|name| assert!(name.unwrap().metadata().is_ok()));
        let looked_up = || self.mounted.answered(|name| name == "Lookup");
        let (before, is_there) = (looked_up(), self.here("lock").exists());
        assert_eq!((looked_up(), is_there), (before, self.far("lock").exists()), "it is known");
        wall("-I");
        let (tell, thread) = mpsc::channel();
        std::thread::scope(|scope| {
            let operation = scope.spawn(move || {
                tell.send(nix::unistd::gettid()).unwrap();
                operation()
            });
            // In a call to the mount, which is answered at once but for what is asked of the server.
            let place = format!("/proc/self/task/{}/wchan", thread.recv().unwrap());
            let waits = || fs::read_to_string(&place).unwrap() == "request_wait_answer";
            wait_for("a request", SOON, || (waits() && is_so()).then_some(()));
            assert!(!operation.is_finished());
            let connections = self.connections();
            self.server.kill(1.0);
            others();
            // The kernel would still send what the dead had written.
            for port in connections {
                let arguments = ["-I", "OUTPUT", "-p", "tcp", "--dport", &port, "-j", "DROP"];
                self.stage.run(self.stage.on(Host::Far, "iptables").args(arguments)).expect(0);
            }
            wall("-D");
            operation.join().unwrap()
        })
    }
}

#[test]
fn a_change_that_a_server_made_before_it_died_is_not_made_again() {
    require!(Need::Emulator, Need::Root, Need::Fuse, Need::Iptables);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    for name in ["removed", "cut", "log", "synced", "long", "one", "other"] {
        fs::write(stage.path("far").join(name), name).unwrap();
    }
    let walled = Walled::new(&stage);
    let (here, far, text) = (|name| walled.here(name), |name| walled.far(name), |name| walled.text(name));
    let theirs = |name| fs::write(far(name), "theirs").unwrap();

    let remove = || fs::remove_file(here("removed"));
    walled.killed("OUTPUT", remove, || !far("removed").exists(), || theirs("removed")).unwrap();
    assert_eq!(text("removed"), "theirs", "another file");
    assert_eq!(fs::read_to_string(here("removed")).unwrap(), "theirs");

    let cut = || nix::unistd::truncate(&here("cut"), 0);
    walled.killed("OUTPUT", cut, || text("cut").is_empty(), || theirs("cut")).unwrap();
    assert_eq!(text("cut"), "theirs");

    let mut log = File::options().append(true).open(here("log")).unwrap();
    let append = || log.write_all(b" mine");
    let others = || File::options().append(true).open(far("log")).unwrap().write_all(b" theirs").unwrap();
    walled.killed("OUTPUT", append, || text("log") == "log mine", others).unwrap();
    assert_eq!(text("log"), "log mine theirs");

    // Bytes at a place: what another has written over them since stays.
    let synced = File::options().write(true).custom_flags(libc::O_SYNC).open(here("synced")).unwrap();
    synced.write_all_at(b"s", 0).unwrap();
    let write = || synced.write_all_at(b"mine", 0);
    walled.killed("OUTPUT", write, || text("synced").starts_with("mine"), || theirs("synced")).unwrap();
    assert_eq!(text("synced"), "theirs");

    // So many that they go over the lanes.
    let long = File::options().write(true).custom_flags(libc::O_SYNC).open(here("long")).unwrap();
    long.write_all_at(&vec![b'l'; 1 << 20], 0).unwrap();
    let (mine, is_mine) = ([b'm'; 100_000], || text("long").starts_with(&"m".repeat(100_000)));
    walled.killed("OUTPUT", || long.write_all_at(&mine, 0), is_mine, || theirs("long")).unwrap();
    assert!(text("long") == "theirs", "{} bytes", text("long").len());

    let exchange =
        || renameat2(AT_FDCWD, &here("one"), AT_FDCWD, &here("other"), RenameFlags::RENAME_EXCHANGE);
    walled.killed("OUTPUT", exchange, || text("one") == "other", || ()).unwrap();
    assert_eq!((text("one"), text("other")), ("other".to_owned(), "one".to_owned()));

    let make = |name| File::options().write(true).create_new(true).open(here(name)).map(drop);
    walled.killed("OUTPUT", || make("lock"), || far("lock").exists(), || ()).unwrap();
    let make_dir = |name| fs::create_dir(here(name));
    walled.killed("OUTPUT", || make_dir("dir"), || far("dir").exists(), || ()).unwrap();
}

#[test]
fn what_another_made_before_a_server_was_asked_is_not_taken_for_ones_own() {
    require!(Need::Emulator, Need::Root, Need::Fuse, Need::Iptables);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let walled = Walled::new(&stage);
    for is_lock in [true, false] {
        let name = if is_lock { "lock" } else { "dir" };
        let make = |path: PathBuf| match is_lock {
            true => File::options().write(true).create_new(true).open(path).map(drop),
            false => fs::create_dir(path),
        };
        let others = || make(walled.far(name)).unwrap();
        let made = walled.killed("INPUT", || make(walled.here(name)), || true, others);
        assert_eq!(made.unwrap_err().kind(), ErrorKind::AlreadyExists, "{name}");
    }
}

#[test]
fn a_mount_that_does_not_come_back_in_time_is_told_what_it_has_lost() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms --rate 1Gbit");
    let far = stage.path("far");
    fs::write(far.join("f"), "first words").unwrap();
    let server = stage.serve_and_restart();
    let mounts = [Mounted::new(&stage, "one", &[]), Mounted::new(&stage, "other", &[])];
    let [mine, theirs] = [open(&mounts[0], "f"), File::open(mounts[1].path("f")).unwrap()];
    lock_all(&mine).unwrap();
    wait_for("a write that has not been told when its mount stands still", SOON, || {
        // Nobody has wanted it for a while: it can be had alone.
        std::thread::sleep(Duration::from_millis(1500));
        mine.write_all_at(b"x", 0).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        mine.write_all_at(b"FIRST", 0).unwrap();
        kill(mounts[0].program.pid(), Signal::SIGSTOP).unwrap();
        std::thread::sleep(Duration::from_millis(500)); // what is on its way gets there
        if !fs::read(far.join("f")).unwrap().starts_with(b"FIRST") {
            return Some(());
        }
        // This machine was so busy that there was time to tell it.
        kill(mounts[0].program.pid(), Signal::SIGCONT).unwrap();
        mine.write_all_at(b"first", 0).unwrap();
        None
    });
    server.signal("KILL", 0.0);
    // Waited for, and then not any more.
    let begun = Instant::now();
    let mut words = [0; 5];
    theirs.read_exact_at(&mut words, 0).unwrap();
    assert!((Duration::from_secs(15)..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(&words[1..], b"irst");
    let theirs = open(&mounts[1], "f");
    lock_all(&theirs).unwrap();
    kill(mounts[0].program.pid(), Signal::SIGCONT).unwrap();
    let error = wait_for("an error", SOON, || mine.sync_all().err());
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(&fs::read(far.join("f")).unwrap()[1..5], b"irst", "and nothing comes late");
    // It goes on with what is there now.
    assert_eq!(&fs::read(mounts[0].path("f")).unwrap()[1..], b"irst words");
}

#[test]
fn a_mount_whose_server_is_gone_waits_and_can_be_taken_out() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 2ms");
    let server = stage.serve();
    fs::write(stage.path("far/f"), "words").unwrap();
    let mut patient = Mounted::new(&stage, "patient", &[]);
    let hasty = Mounted::new(&stage, "hasty", &["--timeout", "5s"]);
    // In order: the clients are told.
    server.stop().expect(0);
    patient.program.wait_to_say("operations wait");
    assert_eq!(fs::read(hasty.path("f")).unwrap_err().raw_os_error(), Some(libc::EIO));
    std::thread::scope(|scope| {
        let path = patient.path("f");
        let reader = scope.spawn(move || fs::read(path));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!reader.is_finished());
        patient.program.stop().expect(0);
        assert!(reader.join().unwrap().is_err(), "and nobody is left waiting");
    });
    hasty.program.stop().expect(0);
}
