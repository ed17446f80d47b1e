//! From disk to disk: a file goes from the directory of this host to that of the server and comes back, as `longhaul cp` copies it.
//!
//! It is the last that `longhaul probe` does where both directories are named, while nothing else of it is on the network. What is timed is
//! the copy itself, from its start over a session that is connected to its end, when the file is whole, verified and durable under its name.
//!
//! The file has the same name at both ends, and is at one place at a time but while it travels: it is removed here before it comes back.
//! Whatever happens, what has a name because of it is removed: its own, and those that a copy that was broken off leaves for a later one.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use longhaul_copy::{Copy, CopyOptions, Job, Station, far_buffers, unfinished_names};
use longhaul_files::client::Change;
use longhaul_files::dir::raise_open_file_limit;
use longhaul_files::{FilesClient, Name, Remote, TOP};
use longhaul_probe::disk::{DiskError, fill, free_bytes, in_words};
use longhaul_probe::limits::{FILE_LATE, FILE_LATE_TIMES};
use longhaul_probe::path::file_size::file_sizes;
use longhaul_probe::path::plan::Plan;
use longhaul_report::path::{DiskToDisk, Path as Record, Way};
use longhaul_transport::Session;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::process::Child;
use tokio::task::JoinHandle;

use crate::cli::cp::end_session;
use crate::cli::reach::Reach;
use crate::place::Place;
use crate::service::{COPIES, FILES};
use crate::signals::until_told_to_stop;
use crate::terminal::{Terminal, harmless};
use crate::units::show_size;

/// What is told of: the file, its way there, its way back.
pub(super) const STEPS: usize = 3;

/// What the client of the far directory keeps of files: it reads none.
const CACHE_BYTES: usize = 1 << 20;

/// How long the server may take to say what is free, or to remove a name, before that is given up: its disk may be busy with the file.
const PATIENCE: Duration = Duration::from_secs(30);

/// A broken-off copy's last pieces may still be on their way to the server: it is looked for what they make so often, so long apart, or two
/// round trips.
const LOOKS: u32 = 3;
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// How long this host's half of a broken-off copy may take to let go of its file, and how often that is looked at.
const LET_GO_LIMIT: Duration = Duration::from_secs(10);
const LET_GO_TICK: Duration = Duration::from_millis(5);

/// How often lanes are counted.
const TICK: Duration = Duration::from_millis(50);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All was measured, or what was not is in the record; nothing is left.
    Whole,
    /// Somebody wanted it to end, or something is left of it: that has been said.
    BrokenOff,
}

/// What is to be measured.
pub(super) struct Wish<'a> {
    /// Where both directories are.
    pub(super) reach: &'a Reach,
    pub(super) place: &'a Place,
    pub(super) here: &'a Path,
    pub(super) plan: &'a Plan,
    /// At rest, as far as it is not in the record.
    pub(super) rtt: Duration,
    pub(super) terminal: &'a Terminal,
}

impl Wish<'_> {
    /// Measures both ways, and notes in `record` what came of it, which has what the disks and the network do alone.
    pub(super) async fn measure(self, record: &mut Record) -> End {
        if record.disks.len() < 2 {
            let why = "disk to disk: it takes both disks, and what TCP carries between them";
            record.left_out.push(why.to_owned());
            return End::Whole;
        }
        let mut trip = match Trip::begin(&self, record) {
            Ok(trip) => trip,
            Err(error) => {
                record.left_out.push(format!("disk to disk: {error:#}"));
                return End::Whole;
            }
        };
        // The signals first: from here on they would leave files behind.
        let gone = tokio::select! {
            biased;
            () = until_told_to_stop() => None,
            gone = trip.there_and_back(record) => Some(gone),
        };
        let left = tokio::select! {
            biased;
            () = until_told_to_stop() => vec![trip.all_in_words("it was told to stop again")],
            left = trip.clean_up() => left,
        };
        for line in &left {
            self.terminal.say(&harmless(&format!("longhaul: {line}")));
        }
        if gone.is_none() && left.is_empty() {
            self.terminal.say("longhaul: interrupted; nothing is left of the file");
        }
        let end = if gone.is_none() || !left.is_empty() { End::BrokenOff } else { End::Whole };
        if let Err(error) = gone.unwrap_or_else(|| Err(anyhow!("interrupted"))) {
            let way = if record.disk_to_disk.is_empty() { "" } else { " from the server" };
            record.left_out.push(format!("disk to disk{way}: {error:#}"));
        }
        end
    }
}

/// A copy under way.
struct Copying {
    session: Session,
    ssh: Option<Child>,
    /// This host's half of it, as long as anybody has it.
    station: Weak<Station>,
}

/// The directory of the server.
struct Files {
    remote: Remote,
    ssh: Option<Child>,
}

/// The file is being written.
struct Filling {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), DiskError>>,
}

/// The file, where it may be, and what is open.
struct Trip<'a> {
    wish: &'a Wish<'a>,
    reach: Reach,
    rtt: Duration,
    name: Name,
    here: Arc<OwnedFd>,
    steps: usize,
    may_be_there: bool,
    /// Whose files are written at the server: known before one is.
    user_there: u32,
    filling: Option<Filling>,
    copying: Option<Copying>,
    files: Option<Files>,
}

impl<'a> Trip<'a> {
    fn begin(wish: &'a Wish<'a>, record: &Record) -> anyhow::Result<Self> {
        raise_open_file_limit();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let here = rustix::fs::open(wish.here, flags, Mode::empty());
        let here = here.map_err(|error| anyhow!("{}: {}", wish.here.display(), in_words(&error.into())))?;
        let measured = record.rtt.filter(|rtt| rtt.back > 0);
        Ok(Self {
            wish,
            reach: wish.reach.clone().for_copies(),
            rtt: measured.map_or(wish.rtt, |rtt| Duration::from_secs_f64(rtt.median_ms.max(0.0) / 1e3)),
            name: file_name()?,
            here: Arc::new(here),
            steps: wish.plan.steps() - STEPS,
            may_be_there: false,
            user_there: 0,
            filling: None,
            copying: None,
            files: None,
        })
    }

    fn tell(&mut self, what: &str) {
        self.steps += 1;
        self.wish.terminal.say(&format!("[{}/{}] {what}", self.steps, self.wish.plan.steps()));
    }

    /// Leaves open what is open when it ends, or is dropped: [`clean_up`](Self::clean_up) closes it.
    async fn there_and_back(&mut self, record: &mut Record) -> anyhow::Result<()> {
        let free = [free_bytes(&*self.here)?, self.free_there().await.context("what is free there")?];
        let sizes = file_sizes(record, self.wish.plan.disk_time, self.rtt, free)?;
        let size = show_size(sizes.to_server);
        self.tell(&format!("a file of {size} on the disk of this host"));
        self.fill(sizes.to_server).await?;
        self.tell(&format!("disk to disk to the server, {size}"));
        let (there, cold) = self.copy(Way::ToServer, sizes.to_server, false).await?;
        record.disk_to_disk.push(there);
        self.remove_here(std::slice::from_ref(&self.name))?;
        if sizes.from_server < sizes.to_server {
            self.shorten_there(sizes.from_server).await.context("cannot cut it there")?;
        }
        self.tell(&format!("disk to disk from the server, {}", show_size(sizes.from_server)));
        let (back, _) = self.copy(Way::FromServer, sizes.from_server, !cold).await?;
        record.disk_to_disk.push(back);
        Ok(())
    }

    async fn fill(&mut self, bytes: u64) -> anyhow::Result<()> {
        let is_over = Arc::<AtomicBool>::default();
        let (over, here, name) = (Arc::clone(&is_over), Arc::clone(&self.here), self.name.clone());
        let job = move || fill(&*here, name.as_bytes(), bytes, &|| !over.load(SeqCst));
        let filling = self.filling.insert(Filling { is_over, thread: tokio::task::spawn_blocking(job) });
        let filled = (&mut filling.thread).await;
        self.filling = None;
        filled?.map_err(|error| anyhow!("cannot write the file: {error}"))
    }

    /// Copies the file one way; and whether the server has stored it without keeping any of it in memory.
    async fn copy(&mut self, way: Way, bytes: u64, from_memory: bool) -> anyhow::Result<(DiskToDisk, bool)> {
        let (copy, mut problems) = Copy::prepare(self.job(way), CopyOptions::default(), Vec::new())?;
        let far = self.reach.reach(self.wish.place).await?;
        let station = copy.handler();
        let weak = Arc::downgrade(&station);
        let (session, ssh) = self.reach.connect(far, COPIES, station).await?;
        self.may_be_there |= way == Way::ToServer;
        self.copying = Some(Copying { session: session.clone(), ssh, station: weak });
        let began = Instant::now();
        let mut lanes = 0;
        let counting = async {
            loop {
                lanes = lanes.max(session.lane_count());
                tokio::time::sleep(TICK).await;
            }
        };
        tokio::select! {
            copied = copy.run(&session) => copied?,
            () = counting => {}
            () = tokio::time::sleep(self.late()) => bail!("given up after {} s", self.late().as_secs()),
        }
        let seconds = began.elapsed().as_secs_f64();
        // None of a part of the file would be worse than to read a little of it from memory.
        let buffers = far_buffers(&session).await.unwrap_or_default();
        let is_cold = buffers.past_cache_bytes >= bytes / 10 * 9;
        let lanes = lanes.max(session.lane_count()) as u32;
        drop(session);
        self.end_copy().await;
        if let Ok(problem) = problems.try_recv() {
            bail!("{}", problem.reason);
        }
        let mbps = bytes as f64 * 8e-6 / seconds.max(1e-9);
        Ok((DiskToDisk { way, bytes, seconds, mbps, lanes, from_memory }, is_cold))
    }

    /// After which a copy is given up.
    fn late(&self) -> Duration {
        (self.wish.plan.disk_time + longhaul_probe::limits::FILE_START_MAX) * FILE_LATE_TIMES + FILE_LATE
    }

    fn job(&self, way: Way) -> Job {
        let (here, there) = (self.path_here(&self.name), self.path_there(&self.name));
        match way {
            Way::ToServer => Job::Push { sources: vec![here], destination: there },
            Way::FromServer => Job::Pull {
                sources: vec![there],
                in_exports: matches!(self.wish.place, Place::Server { .. }),
                destination: here,
            },
        }
    }

    fn path_here(&self, name: &Name) -> PathBuf {
        self.wish.here.join(name.as_os_str())
    }

    fn path_there(&self, name: &Name) -> Vec<u8> {
        let mut path = self.wish.place.remote_path().to_vec();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend(name.as_bytes());
        path
    }

    /// The directory of the server, over a session of its own.
    async fn files(&mut self) -> anyhow::Result<Remote> {
        // Of a session that is over nothing more can be had.
        if let Some(files) = self.files.take_if(|files| files.remote.current().is_none()) {
            drop(files);
        }
        if let Some(files) = &self.files {
            return Ok(files.remote.clone());
        }
        let far = self.reach.reach(self.wish.place).await?;
        let client = FilesClient::new(CACHE_BYTES, Some(PATIENCE));
        let (session, ssh) = self.reach.connect(far, FILES, client.clone()).await?;
        let remote = Remote::attach(session, client, self.wish.place.remote_path(), None).await;
        let remote = remote.map_err(|error| anyhow!("{}", harmless(&error.to_string())))?;
        self.user_there = remote.user().uid;
        self.files = Some(Files { remote: remote.clone(), ssh });
        Ok(remote)
    }

    async fn free_there(&mut self) -> anyhow::Result<u64> {
        let there = self.files().await?.file_system(TOP).await.map_err(words)?;
        Ok(there.available.saturating_mul(there.fragment_size))
    }

    async fn shorten_there(&mut self, bytes: u64) -> anyhow::Result<()> {
        let remote = self.files().await?;
        let node = remote.look_up(TOP, self.name.as_bytes()).await.map_err(words)?.node;
        let shortened = remote.set_attr(node, Change { size: Some(bytes), ..Change::default() }).await;
        remote.forget(node, 1);
        shortened.map(drop).map_err(words)
    }

    /// Ends the session of a copy, and returns when nothing here writes for it any more.
    async fn end_copy(&mut self) {
        let Some(Copying { session, ssh, station }) = self.copying.take() else { return };
        end_session(session, ssh).await;
        let let_go = async {
            while station.strong_count() > 0 {
                tokio::time::sleep(LET_GO_TICK).await;
            }
        };
        let _ = tokio::time::timeout(LET_GO_LIMIT, let_go).await; // a disk that does not answer: what it does then is seen by nobody
    }

    /// Closes what is open and removes what is there; what could not be, in words.
    async fn clean_up(&mut self) -> Vec<String> {
        if let Some(filling) = &mut self.filling {
            filling.is_over.store(true, SeqCst);
            let _ = (&mut filling.thread).await; // what became of the file is of no interest
        }
        let is_broken_off = self.copying.is_some();
        self.end_copy().await;
        let mut left = Vec::new();
        let names = self.names(rustix::process::geteuid().as_raw());
        if let Err(error) = self.remove_here(&names) {
            left.push(self.left_here(&error.to_string()));
        }
        if self.may_be_there {
            // A session that has broken meanwhile gets a second chance.
            let mut removed = self.remove_there(is_broken_off).await;
            if removed.is_err() {
                self.files = None;
                removed = self.remove_there(is_broken_off).await;
            }
            left.extend(removed.err().map(|error| self.left_there(&format!("{error:#}"))));
        }
        if let Some(Files { remote, ssh }) = self.files.take()
            && let Some(session) = remote.stop()
        {
            end_session(session, ssh).await;
        }
        left
    }

    /// What may have come to be, in the order in which it is removed: an unfinished file that finds its name meanwhile has it then.
    fn names(&self, user: u32) -> Vec<Name> {
        let mut names = unfinished_names(&self.name, user).to_vec();
        names.push(self.name.clone());
        names
    }

    fn remove_here(&self, names: &[Name]) -> anyhow::Result<()> {
        for name in names {
            match rustix::fs::unlinkat(&*self.here, name.as_bytes(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(words(error)),
            }
        }
        Ok(())
    }

    async fn remove_there(&mut self, is_broken_off: bool) -> anyhow::Result<()> {
        let remote = self.files().await?;
        let names = self.names(self.user_there);
        for look in 0..if is_broken_off { LOOKS } else { 1 } {
            if look > 0 {
                tokio::time::sleep(LOOK_PAUSE.max(2 * self.rtt)).await;
            }
            for name in &names {
                match remote.remove(TOP, name.as_bytes(), false).await {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(words(error)),
                }
            }
        }
        Ok(())
    }

    fn left_here(&self, why: &str) -> String {
        let names = self.names(rustix::process::geteuid().as_raw());
        let paths = names.iter().map(|name| self.path_here(name).display().to_string()).collect::<Vec<_>>();
        format!("on this host may be left: {} ({why}); remove them", paths.join(" "))
    }

    fn left_there(&self, why: &str) -> String {
        let shown = |name: &Name| OsStr::from_bytes(&self.path_there(name)).display().to_string();
        let paths = self.names(self.user_there).iter().map(shown).collect::<Vec<_>>();
        format!("on the server may be left: {} ({why}); remove them there", paths.join(" "))
    }

    fn all_in_words(&self, why: &str) -> String {
        let here = self.left_here(why);
        if self.may_be_there { format!("{here}; {}", self.left_there(why)) } else { here }
    }
}

fn words(error: Errno) -> anyhow::Error {
    anyhow!("{}", in_words(&error.into()))
}

/// A name that no file has: nobody's listing shows it unasked, and no copy takes it for an unfinished one's.
fn file_name() -> anyhow::Result<Name> {
    let mut number = [0; 8];
    // So few bytes come in one piece.
    getrandom(&mut number[..], GetRandomFlags::empty())?;
    let text = format!(".longhaul-probe-{:016x}", u64::from_ne_bytes(number));
    Ok(Name::new(text.as_bytes())?)
}
