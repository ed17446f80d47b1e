//! Whether readers and writers on several mounts agree on an order, whatever happens meanwhile: to the link, to their
//! server, or to one of the mounts.

use std::fs::{self, File};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, fchown, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::mapping::Mapping;
use crate::mounting::{Mounted, mount_arguments};
use crate::stage::process::LIMIT;
use crate::stage::{Host, LONGHAUL, Need, Stage};

/// One read or write of a register, by the clock of this machine.
#[derive(Clone, Copy, Debug)]
struct Op {
    begin: Duration,
    end: Duration,
    value: u64,
    is_write: bool,
    /// By whom.
    mount: usize,
}

/// The end of an operation that has failed: it may come to be at any time, or never.
const OPEN: Duration = Duration::MAX;

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
        mount: 0,
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
            let mut ops = [&of_value[&pair[0].2][..], &of_value[&pair[1].2]].concat();
            ops.sort_unstable_by_key(|op| op.begin);
            return Err(format!(
                "{} and {} were both there before and after each other: {ops:#?}",
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
        mount: 0,
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
    let failed = Op { end: OPEN, ..write(1, 0, 1) };
    is_linearizable(&[failed, read(2, 3, 0), write(4, 5, 2), read(6, 7, 1)]).unwrap();
    is_linearizable(&[failed, read(2, 3, 1), read(4, 5, 0)]).unwrap_err();
    // Somebody who has seen it where it was lost may have; another may not.
    let elsewhere = Op { mount: 1, ..read(2, 3, 1) };
    let lost = |ops: &[Op]| is_linearizable(&without_lost(ops, 0));
    lost(&[failed, read(2, 3, 1), read(4, 5, 0)]).unwrap();
    lost(&[failed, elsewhere, read(4, 5, 0)]).unwrap_err();
}

/// Without what a mount has lost and told its writer so, and nobody has seen but by this mount.
fn without_lost(ops: &[Op], mount: usize) -> Vec<Op> {
    let failed = ops.iter().filter(|op| op.is_write && op.end == OPEN && op.mount == mount);
    let mut lost: std::collections::BTreeSet<u64> = failed.map(|op| op.value).collect();
    for op in ops.iter().filter(|op| op.mount != mount) {
        lost.remove(&op.value);
    }
    ops.iter().filter(|op| !lost.contains(&op.value)).copied().collect()
}

/// A place with a value that can be read and written whole.
trait Register: Send + Sync {
    fn read(&self) -> io::Result<u64>;
    /// When it returns, the server has the value, or has given this mount leave to keep it.
    fn write(&self, value: u64) -> io::Result<()>;
}

/// Eight bytes of a file that is open until something goes wrong.
struct Bytes {
    path: PathBuf,
    writes: bool,
    /// What was written is on the server's disk before anybody relies on it.
    syncs: bool,
    at: u64,
    file: Mutex<Option<File>>,
}

impl Bytes {
    fn new(path: PathBuf, (writes, syncs): (bool, bool), at: u64) -> Self {
        let file = File::options().read(true).write(writes).open(&path).unwrap();
        Self { path, writes, syncs, at, file: Mutex::new(Some(file)) }
    }

    fn with<T>(&self, act: impl Fn(&File) -> io::Result<T>) -> io::Result<T> {
        let mut file = self.file.lock().unwrap();
        let open = || File::options().read(true).write(self.writes).open(&self.path);
        let opened = file.take().map_or_else(open, Ok)?;
        let acted = act(&opened)?;
        *file = Some(opened);
        Ok(acted)
    }

    fn write_bytes(&self, bytes: &[u8]) -> io::Result<()> {
        self.with(|file| {
            file.write_all_at(bytes, self.at)?;
            if self.syncs { file.sync_data() } else { Ok(()) }
        })
    }
}

fn value_at(file: &File, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

impl Register for Bytes {
    fn read(&self) -> io::Result<u64> {
        self.with(|file| value_at(file, self.at))
    }

    fn write(&self, value: u64) -> io::Result<()> {
        self.write_bytes(&value.to_le_bytes())
    }
}

/// A value that is there many times, so that it travels over the lanes, in pieces: a reader looks at one of them.
struct Long {
    bytes: Bytes,
    /// Which is looked at.
    at: u64,
}

/// Times a [`Long`] value is there.
const TIMES: usize = 40_000;

impl Register for Long {
    fn read(&self) -> io::Result<u64> {
        self.bytes.with(|file| value_at(file, self.bytes.at + self.at))
    }

    fn write(&self, value: u64) -> io::Result<()> {
        self.bytes.write_bytes(&value.to_le_bytes().repeat(TIMES))
    }
}

/// The same in memory that the file is mapped into. Such memory is gone with its mount, and its readers with it.
struct InMemory(Mapping, usize);

impl Register for InMemory {
    fn read(&self) -> io::Result<u64> {
        std::thread::sleep(Duration::from_millis(1)); // else there is no end of reads
        Ok(self.0.get(self.1))
    }

    fn write(&self, value: u64) -> io::Result<()> {
        self.0.set(self.1, value);
        Ok(())
    }
}

/// As [`Reopened`], by those who have a lock file: of all of them, whatever their mounts, one at a time.
struct Locked {
    file: Reopened,
    lock: PathBuf,
    is_taken: Arc<AtomicBool>,
}

impl Locked {
    fn with<T>(&self, act: impl Fn(&Reopened) -> io::Result<T>) -> io::Result<T> {
        std::thread::sleep(Duration::from_millis(1)); // others want it, too
        while let Err(error) = File::create_new(&self.lock) {
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!self.is_taken.swap(true, Ordering::SeqCst), "two have the lock");
        let acted = act(&self.file);
        self.is_taken.store(false, Ordering::SeqCst);
        fs::remove_file(&self.lock)?;
        acted
    }
}

impl Register for Locked {
    fn read(&self) -> io::Result<u64> {
        self.with(Reopened::read)
    }

    fn write(&self, value: u64) -> io::Result<()> {
        self.with(|file| file.write(value))
    }
}

/// The same for a reader who looks a few times, and then not for a while: meanwhile the writer need not tell anybody.
struct Seldom<R>(R, AtomicU64);

impl<R: Register> Register for Seldom<R> {
    fn read(&self) -> io::Result<u64> {
        if self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) {
            std::thread::sleep(Duration::from_millis(1500));
        }
        self.0.read()
    }

    fn write(&self, value: u64) -> io::Result<()> {
        self.0.write(value)
    }
}

/// As [`Bytes`], of a file that is opened anew each time.
struct Reopened(PathBuf, u64);

impl Register for Reopened {
    fn read(&self) -> io::Result<u64> {
        value_at(&File::open(&self.0)?, self.1)
    }

    fn write(&self, value: u64) -> io::Result<()> {
        let file = File::options().write(true).open(&self.0)?;
        file.write_all_at(&value.to_le_bytes(), self.1)?;
        close(file)
    }
}

/// What was written is told by then, or has failed.
fn close(file: File) -> io::Result<()> {
    Ok(nix::unistd::close(file.into_raw_fd())?)
}

/// A file that is opened, read or replaced, and closed each time; a name that leads to another.
struct Named(PathBuf);

impl Register for Named {
    fn read(&self) -> io::Result<u64> {
        fs::read_to_string(&self.0)?.parse().map_err(io::Error::other)
    }

    fn write(&self, value: u64) -> io::Result<()> {
        let new = self.0.with_extension(value.to_string());
        let file = File::create(&new)?;
        file.write_all_at(value.to_string().as_bytes(), 0)?;
        close(file)?;
        fs::rename(&new, &self.0)
    }
}

/// The target of a link that is replaced.
struct Link(PathBuf);

impl Register for Link {
    fn read(&self) -> io::Result<u64> {
        let target = fs::read_link(&self.0)?;
        target.to_string_lossy().parse().map_err(io::Error::other)
    }

    fn write(&self, value: u64) -> io::Result<()> {
        let new = self.0.with_extension(value.to_string());
        symlink(value.to_string(), &new)?;
        fs::rename(&new, &self.0)
    }
}

/// Whose a file is. It is written to just before that is changed, and both travel together.
struct Owner(PathBuf);

impl Register for Owner {
    fn read(&self) -> io::Result<u64> {
        Ok(fs::metadata(&self.0)?.uid().into())
    }

    fn write(&self, value: u64) -> io::Result<()> {
        let file = File::options().write(true).open(&self.0)?;
        file.write_all_at(&value.to_le_bytes(), 0)?;
        fchown(&file, Some(value as u32), None)?;
        close(file)
    }
}

/// Every now and then the link is cut: whoever waits goes on afterwards. The emulator does it by itself: to run a program
/// closes what is open here, which tells the server, and a link that is cut would wait for its own repair.
/// Packets overtake each other, too.
const CUTS: &str = "--outage 3s+2s/6s --reorder 5%";

/// How long registers are played with: a few seconds, or as LONGHAUL_CHECK_SECONDS says.
fn check_time() -> Duration {
    let asked = std::env::var("LONGHAUL_CHECK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(asked.unwrap_or(10))
}

#[test]
fn readers_and_writers_on_two_mounts_agree() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared(&format!("--rtt 4ms --rate 1Gbit {CUTS}"));
    fill(&stage);
    let _server = stage.serve();
    let mounts = [Mounted::new(&stage, "one", &[]), Mounted::new(&stage, "other", &[])];
    let paths = [mounts[0].path("played"), mounts[1].path("played")];
    play(&Players { paths, shaken: None, server_dies: false, until: check_time() }, |_| {});
    stop(mounts);
}

fn stop([one, other]: [Mounted<'_>; 2]) {
    one.stop_having_written(10);
    other.stop_having_known(10);
}

/// How long a server lives here. A mount needs a second or two to find the next, and as long to take back what it had.
const SERVERS_LIFE: Duration = Duration::from_secs(5);

#[test]
fn readers_and_writers_agree_whatever_happens_to_their_server() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 4ms --rate 1Gbit");
    fill(&stage);
    let server = stage.serve_and_restart();
    let mounts = [Mounted::new(&stage, "one", &[]), Mounted::new(&stage, "other", &[])];
    let paths = [mounts[0].path("played"), mounts[1].path("played")];
    let players = Players { paths, shaken: None, server_dies: true, until: check_time() * 2 };
    play(&players, |left| {
        for signal in ["KILL", "TERM"].iter().cycle() {
            std::thread::sleep(SERVERS_LIFE);
            if left() < SERVERS_LIFE {
                return;
            }
            server.signal(signal, 0.5);
        }
    });
    stop(mounts);
}

/// A mount that stands still for longer has been given up, and its session has ended.
const STANDS_STILL: Duration = Duration::from_secs(35);

#[test]
fn readers_and_writers_agree_whatever_happens_to_one_of_their_mounts() {
    require!(Need::Emulator, Need::Root, Need::Fuse);
    let stage = Stage::shared("--rtt 4ms --rate 1Gbit");
    fill(&stage);
    let _server = stage.serve();
    let one = Mounted::new(&stage, "one", &[]);
    let place = stage.path("other");
    let arguments = mount_arguments(&stage, "other", &[]);
    let other = stage.tend(Host::Near, LONGHAUL, arguments, "mounted at", Some(&place));
    let other_path = PathBuf::from(format!("/proc/{}/root{}", other.pid(), place.join("played").display()));
    let until = (check_time() * 2).max(STANDS_STILL + Duration::from_secs(20));
    let players =
        Players { paths: [one.path("played"), other_path], shaken: Some(1), server_dies: false, until };
    let failures = play(&players, |left| {
        for (signal, lasts) in
            [("KILL", Duration::from_millis(500)), ("STOP", STANDS_STILL)].into_iter().cycle()
        {
            std::thread::sleep(SERVERS_LIFE);
            if left() < lasts + SERVERS_LIFE {
                return;
            }
            other.signal(signal, lasts.as_secs_f64());
            std::thread::sleep(lasts);
        }
    });
    // Else nothing has happened to it.
    assert!(failures > 10, "{failures} operations have failed");
    one.stop_having_known(10);
}

/// What is played with. Where a mount has gone, there is no such directory.
fn fill(stage: &Stage) {
    let played = stage.path("far/played");
    fs::create_dir(&played).unwrap();
    fs::write(played.join("bytes"), vec![0; 4 << 20]).unwrap();
    fs::write(played.join("long"), vec![0; 2 << 20]).unwrap();
    fs::write(played.join("reopened"), vec![0; 2 << 20]).unwrap();
    fs::write(played.join("alone"), vec![0; 6000]).unwrap();
    fs::write(played.join("mapped"), vec![0; 8192]).unwrap();
    fs::write(played.join("locked"), vec![0; 8]).unwrap();
    fs::write(played.join("named"), "0").unwrap();
    symlink("0", played.join("link")).unwrap();
    File::create(played.join("owned")).unwrap();
}

struct Players {
    /// What [`fill`] has made, as two mounts show it.
    paths: [PathBuf; 2],
    /// The mount that things happen to. It may lose what it has not told the server, and tells its users so.
    shaken: Option<usize>,
    /// A file that is open and has lost its name may be gone.
    server_dies: bool,
    /// And for longer where a machine is so slow that too little has been done.
    until: Duration,
}

/// Somebody who reads or writes one register.
struct User {
    register: Box<dyn Register>,
    writes: bool,
    mount: usize,
}

impl Players {
    /// A reader and a writer on each mount, as `register` makes them: of a mount, and whether it is to write.
    fn two_each(&self, register: impl Fn(usize, bool) -> Box<dyn Register>) -> Vec<User> {
        let all = [(0, false), (0, true), (1, false), (1, true)];
        all.map(|(mount, writes)| User { register: register(mount, writes), writes, mount }).into()
    }

    /// What counts of a register's operations.
    fn counted(&self, ops: &[Op]) -> Vec<Op> {
        self.shaken.map_or_else(|| ops.to_vec(), |mount| without_lost(ops, mount))
    }

    fn bytes(&self, name: &str, mount: usize, writes: bool, at: u64) -> Bytes {
        Bytes::new(self.paths[mount].join(name), (writes, self.shaken.is_some()), at)
    }

    fn long(&self, mount: usize, writes: bool, begin: u64, at: u64) -> Box<dyn Register> {
        Box::new(Long { bytes: self.bytes("long", mount, writes, begin), at })
    }

    fn registers(&self) -> Vec<(&'static str, Vec<User>)> {
        let path = |mount: usize, name: &str| self.paths[mount].join(name);
        // Somebody writes, somebody beside him reads, and somebody elsewhere now and then.
        let alone = self.shaken.unwrap_or(0);
        let bytes = |mount, writes| self.bytes("alone", mount, writes, 5000);
        let seldom = Seldom(bytes(1 - alone, false), AtomicU64::new(0));
        let mut registers = vec![
            (
                "the beginning of a file",
                self.two_each(|m, writes| Box::new(self.bytes("bytes", m, writes, 0))),
            ),
            (
                "bytes across blocks",
                self.two_each(|m, writes| Box::new(self.bytes("bytes", m, writes, (1 << 20) - 4))),
            ),
            ("the beginning of a long write", self.two_each(|m, writes| self.long(m, writes, 0, 0))),
            (
                "the end of a long write",
                self.two_each(|m, writes| self.long(m, writes, 1 << 20, TIMES as u64 * 8 - 8)),
            ),
            (
                "bytes of a file opened each time",
                self.two_each(|m, _| Box::new(Reopened(path(m, "reopened"), 1 << 20))),
            ),
            ("a file under a name", self.two_each(|m, _| Box::new(Named(path(m, "named"))))),
            (
                "bytes that one mount has to itself now and then",
                vec![
                    User { register: Box::new(bytes(alone, true)), writes: true, mount: alone },
                    User { register: Box::new(bytes(alone, false)), writes: false, mount: alone },
                    User { register: Box::new(seldom), writes: false, mount: 1 - alone },
                ],
            ),
            ("a link's target", self.two_each(|m, _| Box::new(Link(path(m, "link"))))),
            ("a file's owner", self.two_each(|m, _| Box::new(Owner(path(m, "owned"))))),
        ];
        if self.shaken.is_none() && !self.server_dies {
            // A mount that dies with the lock leaves it. Locks stay at the server as long as one mount alone takes them.
            let is_taken = Arc::<AtomicBool>::default();
            let locked = |mount| {
                let file = Reopened(path(mount, "locked"), 0);
                Locked { file, lock: path(mount, "lock"), is_taken: Arc::clone(&is_taken) }
            };
            registers.push((
                "what a lock guards",
                vec![
                    User { register: Box::new(locked(0)), writes: true, mount: 0 },
                    User { register: Box::new(locked(0)), writes: false, mount: 0 },
                    User {
                        register: Box::new(Seldom(locked(1), AtomicU64::new(0))),
                        writes: false,
                        mount: 1,
                    },
                ],
            ));
            // Of those who write one does by memory, of those who read the other mount's.
            let in_memory = |m, writes| {
                let file = File::options().read(true).write(writes).open(path(m, "mapped")).unwrap();
                InMemory(Mapping::new(&file, 8192, writes), 512)
            };
            registers.push((
                "memory that a file is mapped into",
                self.two_each(|m, writes| match (m, writes) {
                    (0, false) => Box::new(self.bytes("mapped", m, false, 4096)),
                    (_, true) if m != 0 => Box::new(Reopened(path(m, "mapped"), 4096)),
                    _ => Box::new(in_memory(m, writes)),
                }),
            ));
        }
        registers
    }
}

/// Whether there are so many operations that their order shows something.
fn are_enough(ops: &[Op]) -> bool {
    let writes = ops.iter().filter(|op| op.is_write).count();
    writes > 10 && ops.len() - writes > 10
}

/// Has registers read and written while `faults` happen, which are told how much time is left; then whether there is an
/// order. How many operations have failed.
fn play(players: &Players, faults: impl FnOnce(&dyn Fn() -> Duration) + Send) -> usize {
    let registers = players.registers();
    let (begun, until) = (Instant::now(), players.until);
    let histories: Vec<(&str, Mutex<Vec<Op>>)> =
        registers.iter().map(|(name, _)| (*name, Mutex::default())).collect();
    let failures = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| faults(&|| until.saturating_sub(begun.elapsed())));
        for ((name, users), (_, history)) in registers.iter().zip(&histories) {
            for (number, User { register, writes, mount }) in users.iter().enumerate() {
                let failures = &failures;
                scope.spawn(move || {
                    let mut count = 0;
                    let has_enough = || are_enough(&players.counted(&history.lock().unwrap()));
                    while begun.elapsed() < until || begun.elapsed() < LIMIT && !has_enough() {
                        let begin = begun.elapsed();
                        count += 1;
                        let mut value = count * 16 + number as u64;
                        let done = if *writes {
                            register.write(value)
                        } else {
                            register.read().map(|read| value = read)
                        };
                        let end = if done.is_ok() { begun.elapsed() } else { OPEN };
                        if *writes || done.is_ok() {
                            let op = Op { begin, end, value, is_write: *writes, mount: *mount };
                            history.lock().unwrap().push(op);
                        }
                        if let Err(error) = done {
                            let is_gone = error.raw_os_error() == Some(nix::libc::ESTALE) && !writes;
                            let may_fail = players.shaken == Some(*mount) || players.server_dies && is_gone;
                            assert!(may_fail, "{name}: writes: {writes}, begun after {begin:?}: {error}");
                            failures.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(Duration::from_millis(50));
                        }
                        if *writes {
                            std::thread::sleep(Duration::from_millis(value % 23)); // readers get to keep something
                        }
                    }
                });
            }
        }
    });
    for (name, history) in histories {
        let ops = players.counted(&history.into_inner().unwrap());
        assert!(are_enough(&ops), "{name}: {} operations are not enough", ops.len());
        is_linearizable(&ops).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    failures.into_inner() as usize
}
