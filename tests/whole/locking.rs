//! Locks of programs, across mounts: `fcntl(2)` and `flock(2)`.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::mounting::Mounted;
use crate::stage::process::{Running, wait_for};
use crate::stage::{Need, Stage};

fn range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// A lock of an open file (`F_OFD_SETLK`): several of one process exclude each other.
fn put(file: &File, kind: libc::c_int, start: i64, len: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind, start, len))).map(drop)
}

fn wait(file: &File, kind: libc::c_int, start: i64, len: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLKW(&range(kind, start, len))).map(drop)
}

fn in_the_way(file: &File, start: i64, len: i64) -> Option<(i64, i64)> {
    let mut look = range(libc::F_WRLCK, start, len);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut look)).unwrap();
    (look.l_type != libc::F_UNLCK as libc::c_short).then_some((look.l_start, look.l_len))
}

fn open(mounted: &Mounted<'_>) -> File {
    File::options().read(true).write(true).open(mounted.path("f")).unwrap()
}

/// A server, two mounts of it, and a file that is open on both.
fn two_mounts(stage: &Stage) -> (Running, [Mounted<'_>; 2], [File; 2]) {
    fs::write(stage.path("far/f"), "words").unwrap();
    let server = stage.serve();
    let mounts = [Mounted::new(stage, "one", &[]), Mounted::new(stage, "other", &[])];
    let files = [open(&mounts[0]), open(&mounts[1])];
    (server, mounts, files)
}

/// On a slow machine, too.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn locks_hold_between_mounts() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    let (_server, mounts, [mine, theirs]) = two_mounts(&stage);
    put(&mine, libc::F_WRLCK, 10, 90).unwrap();
    assert_eq!(put(&theirs, libc::F_RDLCK, 0, 11), Err(Errno::EAGAIN));
    assert_eq!(in_the_way(&theirs, 0, 0), Some((10, 90)));
    put(&theirs, libc::F_WRLCK, 0, 10).unwrap();
    // A part is given up; readers share.
    put(&mine, libc::F_UNLCK, 50, 50).unwrap();
    put(&mine, libc::F_RDLCK, 10, 40).unwrap();
    put(&theirs, libc::F_RDLCK, 20, 80).unwrap();
    assert_eq!(put(&mine, libc::F_WRLCK, 20, 1), Err(Errno::EAGAIN));
    // All of an open file go with it.
    drop(theirs);
    wait_for("a closed file's locks to go", SOON, || put(&mine, libc::F_WRLCK, 0, 0).ok());

    // flock(1), of another process on the other mount.
    let path = mounts[1].path("f");
    let flock = |arguments: &[&str]| {
        let mut command = Command::new("flock");
        command.args(arguments).arg(&path).arg("true").stdin(Stdio::null());
        command.status().unwrap().code()
    };
    assert_eq!(flock(&["--nonblock", "--conflict-exit-code", "9"]), Some(9));
    drop(mine);
    wait_for("the same", SOON, || (flock(&["--nonblock"]) == Some(0)).then_some(()));
}

#[test]
fn who_waits_for_a_lock_gets_it_or_a_signal() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    let (_server, mounts, [mine, theirs]) = two_mounts(&stage);
    put(&mine, libc::F_WRLCK, 0, 0).unwrap();
    // Somebody who waits can be killed.
    let mut waiting = Command::new("flock").arg(mounts[1].path("f")).arg("true").spawn().unwrap();
    let pid = Pid::from_raw(waiting.id() as i32);
    let wishes = || mounts[1].answered(|name| name == "PutLock");
    wait_for("somebody to wait", SOON, || (wishes() > 0).then_some(()));
    assert!(waiting.try_wait().unwrap().is_none());
    kill(pid, Signal::SIGTERM).unwrap();
    wait_for("one who waits to be killed", SOON, || waiting.try_wait().unwrap());

    let has_given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let before = wishes();
        let waiter = scope.spawn(|| {
            wait(&theirs, libc::F_WRLCK, 0, 0).unwrap();
            assert!(has_given_up.load(Ordering::SeqCst), "two have one lock");
        });
        wait_for("somebody to wait", SOON, || (wishes() > before).then_some(()));
        has_given_up.store(true, Ordering::SeqCst);
        put(&mine, libc::F_UNLCK, 0, 0).unwrap();
        waiter.join().unwrap();
    });
    assert_eq!(put(&mine, libc::F_RDLCK, 0, 1), Err(Errno::EAGAIN));
    // Who is gone has none.
    let [one, other] = mounts;
    kill(other.program.pid(), Signal::SIGKILL).unwrap();
    wait_for("a dead mount's locks to go", SOON * 2, || put(&mine, libc::F_WRLCK, 0, 0).ok());
    drop((theirs, one));
}

#[test]
fn who_would_wait_for_himself_is_told() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 5ms");
    let (_server, _mounts, [mine, theirs]) = two_mounts(&stage);
    put(&mine, libc::F_WRLCK, 0, 1).unwrap();
    put(&theirs, libc::F_WRLCK, 1, 1).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        // Whoever comes second is told; then the other gets his.
        let ends = [(&mine, 1), (&theirs, 0)].map(|(file, at)| {
            scope.spawn(move || {
                let end = wait(file, libc::F_WRLCK, at, 1);
                if end.is_err() {
                    put(file, libc::F_UNLCK, 0, 0).unwrap();
                }
                end
            })
        });
        let ends = ends.map(|end| end.join().unwrap());
        assert!(ends.contains(&Ok(())) && ends.contains(&Err(Errno::EDEADLK)), "{ends:?}");
    });
    assert!(begun.elapsed() < SOON);
}

#[test]
fn a_database_that_two_mounts_write_to_keeps_all() {
    require!(Need::Emulator, Need::Root, Need::Fuse, Need::Sqlite);
    a_database_keeps_all("delete", 20);
}

/// Its index is in mapped memory, which both write to.
#[test]
fn a_database_with_a_write_ahead_log_keeps_all_too() {
    require!(Need::Emulator, Need::Root, Need::Fuse, Need::Sqlite);
    a_database_keeps_all("wal", 20);
}

fn a_database_keeps_all(journal: &str, each: usize) {
    let stage = Stage::shared("--rtt 2ms");
    let _server = stage.serve();
    let mounts = [Mounted::new(&stage, "one", &[]), Mounted::new(&stage, "other", &[])];
    let sql = |mounted: &Mounted<'_>, words: &str| {
        // It follows links itself, also those of /proc, and would leave the mount's tree by them.
        let mut command = Command::new("nsenter");
        command.arg("--mount").arg("--target").arg(mounted.program.pid().to_string()).arg("sqlite3");
        command.arg("-cmd").arg(".timeout 60000").arg(mounted.inside("db")).arg(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let journal = format!("pragma journal_mode={journal}; ");
    sql(&mounts[0], &(journal + "create table t (who text, number integer)"));
    std::thread::scope(|scope| {
        for (who, mounted) in mounts.iter().enumerate() {
            scope.spawn(move || {
                // One process: what it has in memory it keeps.
                let inserts = (0..each).map(|number| format!("insert into t values ('{who}', {number}); "));
                sql(mounted, &inserts.collect::<String>());
            });
        }
    });
    let count = format!("{}\n", 2 * each);
    assert_eq!(sql(&mounts[0], "select count(*) from t"), count);
    assert_eq!(sql(&mounts[1], "select count(distinct who || ' ' || number) from t"), count);
    assert_eq!(sql(&mounts[0], "pragma integrity_check"), "ok\n");
}
