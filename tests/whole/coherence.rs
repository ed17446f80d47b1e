//! What mounts keep is what is there: nobody sees the past, whoever changes files, by whatever way.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::mounting::Mounted;
use crate::stage::process::wait_for;
use crate::stage::{Need, Stage, Way};

const NOTICED_WITHIN: Duration = Duration::from_secs(20);

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

/// One read or write of a register, by the clock of this machine.
#[derive(Clone, Copy, Debug)]
struct Op {
    begin: Duration,
    end: Duration,
    value: u64,
    is_write: bool,
}

/// Whether there is an order of all operations that each could have been carried out in at one moment between its begin
/// and its end. Each value is written once; 0 is there from the beginning. (Gibbons and Korach: Testing Shared
/// Memories, SIAM J. Comput. 26, 1997: a value's zone goes from its first end to its last begin.)
fn is_linearizable(ops: &[Op]) -> Result<(), String> {
    let mut of_value = std::collections::BTreeMap::<u64, Vec<Op>>::new();
    of_value.entry(0).or_default().push(Op {
        begin: Duration::ZERO,
        end: Duration::ZERO,
        value: 0,
        is_write: true,
    });
    for op in ops {
        of_value.entry(op.value).or_default().push(*op);
    }
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for (value, ops) in &of_value {
        let write =
            ops.iter().find(|op| op.is_write).ok_or(format!("{value} was read, and never written"))?;
        if let Some(read) = ops.iter().find(|op| op.end < write.begin) {
            return Err(format!("{value} was read before it was written: {read:?}, {write:?}"));
        }
        let first_end = ops.iter().map(|op| op.end).min().unwrap_or_default();
        let last_begin = ops.iter().map(|op| op.begin).max().unwrap_or_default();
        if first_end < last_begin {
            forward.push((first_end, last_begin, *value));
        } else {
            backward.push((last_begin, first_end, *value));
        }
    }
    forward.sort_unstable();
    for pair in forward.windows(2) {
        if pair[1].0 < pair[0].1 {
            return Err(format!(
                "{} and {} were both there before and after each other",
                pair[0].2, pair[1].2
            ));
        }
    }
    for (begin, end, value) in backward {
        let place = forward.partition_point(|zone| zone.0 < begin);
        if let Some(zone) = place.checked_sub(1).map(|place| forward[place])
            && end < zone.1
        {
            return Err(format!("{value} came and went while {} was there", zone.2));
        }
    }
    Ok(())
}

#[test]
fn the_check_finds_what_is_wrong() {
    let op = |begin: u64, end: u64, value, is_write| Op {
        begin: Duration::from_millis(begin),
        end: Duration::from_millis(end),
        value,
        is_write,
    };
    let (read, write) = (|b, e, v| op(b, e, v, false), |b, e, v| op(b, e, v, true));
    is_linearizable(&[]).unwrap();
    is_linearizable(&[write(1, 5, 1), read(2, 3, 0), read(3, 4, 1), read(6, 7, 1)]).unwrap();
    // While two are written, either may be read, but not in turns.
    is_linearizable(&[write(1, 9, 1), write(1, 9, 2), read(2, 3, 1), read(4, 5, 2), read(10, 11, 2)])
        .unwrap();
    for wrong in [
        vec![write(1, 2, 1), read(3, 4, 0)],
        vec![write(1, 9, 1), read(2, 3, 1), read(4, 5, 0)],
        vec![write(1, 9, 1), write(1, 9, 2), read(2, 3, 1), read(4, 5, 2), read(6, 7, 1)],
        vec![write(1, 2, 1), write(3, 4, 2), read(5, 6, 1)],
        vec![read(1, 2, 7)],
        vec![read(1, 2, 7), write(3, 4, 7)],
    ] {
        is_linearizable(&wrong).unwrap_err();
    }
}

/// A place with a value that can be read and written whole.
trait Register: Send + Sync {
    fn read(&self) -> Option<u64>;
    fn write(&self, value: u64) -> io::Result<()>;
}

/// Eight bytes of an open file.
struct Bytes(File, u64);

impl Register for Bytes {
    fn read(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, self.1).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn write(&self, value: u64) -> io::Result<()> {
        self.0.write_all_at(&value.to_le_bytes(), self.1)
    }
}

/// The same for a reader who looks a few times, and then not for a while: meanwhile the writer need not tell anybody.
struct Seldom(Bytes, AtomicU64);

impl Register for Seldom {
    fn read(&self) -> Option<u64> {
        if self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) {
            std::thread::sleep(Duration::from_millis(1500));
            return None;
        }
        self.0.read()
    }

    fn write(&self, value: u64) -> io::Result<()> {
        self.0.write(value)
    }
}

/// A file that is opened, read or replaced, and closed each time; a name that leads to another.
struct Named(PathBuf);

impl Register for Named {
    fn read(&self) -> Option<u64> {
        fs::read_to_string(&self.0).ok()?.parse().ok()
    }

    fn write(&self, value: u64) -> io::Result<()> {
        let new = self.0.with_extension(value.to_string());
        fs::write(&new, value.to_string())?;
        fs::rename(&new, &self.0)
    }
}

/// The target of a link that is replaced.
struct Link(PathBuf);

impl Register for Link {
    fn read(&self) -> Option<u64> {
        fs::read_link(&self.0).ok()?.to_str()?.parse().ok()
    }

    fn write(&self, value: u64) -> io::Result<()> {
        let new = self.0.with_extension(value.to_string());
        symlink(value.to_string(), &new)?;
        fs::rename(&new, &self.0)
    }
}

/// Every now and then the link is cut: whoever waits goes on afterwards. The emulator does it by itself: to run a program
/// closes what is open here, which tells the server, and a link that is cut would wait for its own repair.
const CUTS: &str = "--outage 3s+2s/6s";

/// How long registers are played with: a few seconds, or as LONGHAUL_CHECK_SECONDS says.
fn check_time() -> Duration {
    let asked = std::env::var("LONGHAUL_CHECK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(asked.unwrap_or(10))
}

#[test]
fn readers_and_writers_on_two_mounts_agree_on_an_order() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared(&format!("--rtt 4ms --rate 1Gbit {CUTS}"));
    fill(&stage);
    let _server = stage.serve();
    play(&stage, check_time(), true, |_| {});
}

/// How long a server lives here. A mount needs a second or two to find the next, and as long to take back what it had.
const LIFE: Duration = Duration::from_secs(5);

#[test]
fn readers_and_writers_agree_on_an_order_whatever_happens_to_their_server() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 4ms --rate 1Gbit");
    fill(&stage);
    let server = stage.serve_and_restart();
    // A write that a dying server has carried out is carried out again by the next, over what another mount may have
    // written in between (SEMANTICS.md): bytes have one writer here.
    play(&stage, check_time() * 2, false, |is_over| {
        for signal in ["KILL", "TERM"].iter().cycle() {
            let begun = Instant::now();
            while begun.elapsed() < LIFE {
                std::thread::sleep(Duration::from_millis(100));
                if is_over() {
                    return;
                }
            }
            server.restart(signal, 0.5);
        }
    });
}

/// What is played with.
fn fill(stage: &Stage) {
    let far = stage.path("far");
    fs::write(far.join("bytes"), vec![0; 4 << 20]).unwrap();
    fs::write(far.join("reopened"), vec![0; 2 << 20]).unwrap();
    fs::write(far.join("alone"), vec![0; 6000]).unwrap();
    fs::write(far.join("named"), "0").unwrap();
    symlink("0", far.join("link")).unwrap();
}

/// Readers and writers of all kinds on two mounts, while `faults` happen; then whether there is an order.
fn play(stage: &Stage, until: Duration, both_write: bool, faults: impl FnOnce(&dyn Fn() -> bool) + Send) {
    let mounts = [Mounted::new(stage, "one", &[]), Mounted::new(stage, "other", &[])];
    let open = |mounted: &Mounted<'_>, writes: bool| {
        File::options().read(true).write(writes).open(mounted.path("bytes")).unwrap()
    };
    // Each register as each of two users of each mount has it; one of a pair reads, one writes.
    type Users = Vec<(Box<dyn Register>, bool)>;
    let registers: Vec<(&str, Users)> = vec![
        ("the beginning of a file", users(&mounts, both_write, |m, w| Box::new(Bytes(open(m, w), 0)))),
        (
            "bytes across blocks",
            users(&mounts, both_write, |m, w| Box::new(Bytes(open(m, w), (1 << 20) - 4))),
        ),
        (
            "bytes of a file opened each time",
            users(&mounts, both_write, |m, _| Box::new(Reopened(m.path("reopened"), 1 << 20))),
        ),
        ("a file under a name", users(&mounts, true, |m, _| Box::new(Named(m.path("named"))))),
        ("bytes that one mount has to itself now and then", {
            let open = |mount: usize, writes: bool| {
                File::options().read(true).write(writes).open(mounts[mount].path("alone")).unwrap()
            };
            let seldom: Box<dyn Register> = Box::new(Seldom(Bytes(open(1, false), 5000), AtomicU64::new(0)));
            vec![
                (Box::new(Bytes(open(0, true), 5000)) as Box<dyn Register>, true),
                (Box::new(Bytes(open(0, false), 5000)), false),
                (seldom, false),
            ]
        }),
        ("a link's target", users(&mounts, true, |m, _| Box::new(Link(m.path("link"))))),
    ];
    let begun = Instant::now();
    let histories: Vec<(&str, Mutex<Vec<Op>>)> =
        registers.iter().map(|(name, _)| (*name, Mutex::default())).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| faults(&|| begun.elapsed() + LIFE > until));
        for ((name, users), (_, history)) in registers.iter().zip(&histories) {
            for (number, (register, writes)) in users.iter().enumerate() {
                scope.spawn(move || {
                    let mut count = 0;
                    while begun.elapsed() < until {
                        let begin = begun.elapsed();
                        let value = if *writes {
                            count += 1;
                            let value = count * 16 + number as u64;
                            if let Err(error) = register.write(value) {
                                panic!("{name}: a write, begun after {begin:?}: {error}");
                            }
                            std::thread::sleep(Duration::from_millis(value % 23)); // readers get to keep something
                            Some(value)
                        } else {
                            register.read()
                        };
                        let end = begun.elapsed();
                        if let Some(value) = value {
                            history.lock().unwrap().push(Op { begin, end, value, is_write: *writes });
                        }
                    }
                });
            }
        }
    });
    for (name, history) in histories {
        let ops = history.into_inner().unwrap();
        let writes = ops.iter().filter(|op| op.is_write).count();
        assert!(writes > 10 && ops.len() - writes > 10, "{name}: {} operations, {writes} writes", ops.len());
        is_linearizable(&ops).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let [writer, other] = mounts;
    writer.stop_having_written(10);
    other.stop_having_known(10);
}

/// As [`Bytes`], of a file that is opened anew each time.
struct Reopened(PathBuf, u64);

impl Register for Reopened {
    fn read(&self) -> Option<u64> {
        Bytes(File::open(&self.0).ok()?, self.1).read()
    }

    fn write(&self, value: u64) -> io::Result<()> {
        Bytes(File::options().write(true).open(&self.0)?, self.1).write(value)
    }
}

fn users<'a>(
    mounts: &[Mounted<'a>; 2],
    both_write: bool,
    user: impl Fn(&Mounted<'a>, bool) -> Box<dyn Register>,
) -> Vec<(Box<dyn Register>, bool)> {
    let [one, other] = mounts;
    let all = [(one, false), (one, true), (other, false), (other, true)];
    let some = all.into_iter().take(if both_write { 4 } else { 3 });
    some.map(|(mounted, writes)| (user(mounted, writes), writes)).collect()
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
