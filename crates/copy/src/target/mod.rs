//! The receiving end: decides what it wants, puts bytes in their place, gives whole files their names.
//!
//! One thread, the [`planner`], takes offers in their order: it makes directories, links and empty files, compares
//! what is there, and says what it wants. The lanes' movers store bytes. Large files are synced and renamed by
//! finishers, so that no lane waits for a disk's cache.
//!
//! Invariants: nothing but a whole file is ever seen under its name; nothing outside the destination is touched
//! (every step is by descriptor and follows no link); the file system is touched only on these threads, which have
//! the user's rights; a directory gets its time and mode when nothing in it will change any more.

mod planner;
mod tree;
mod write;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_files::direct::DirectWrites;
use longhaul_files::{Dir, Name};
use longhaul_transport::{Session, Stored};
use tokio::sync::{Notify, oneshot, watch};

use crate::bundle;
use crate::destination::Destination;
use crate::journal::JournalRecord;
use crate::limits::{
    DIRECT_FILE_MIN, FINISHERS, FINISHING_MAX, GAPS_MAX, PARTIALS_OPEN_MAX, REFUSED_FILES_MAX,
    TEMPORARY_NAME_ATTEMPTS, WANTED_KIB_MAX, WRITE_BACK_BYTES,
};
use crate::message::{Entry, Finished, Meta, Wants};
use crate::options::{CopyOptions, Sync};
use crate::partial::{FileId, LeftOver, Partial, PartialError, SourceVersion, temporary_name};
use crate::progress::{Problems, Progress, count};
use crate::rivals;
use crate::source::BUNDLE;
use crate::walk::cannot;
use longhaul_files::RangeSet;
use planner::Planner;
use tree::{Settings, TargetDir};
use write::{direct_writes, start_write_back};

/// A small file that is wanted.
struct SmallFile {
    dir: Arc<TargetDir>,
    name: Name,
    size: u64,
    meta: Meta,
    /// Something has the name already.
    replaces: bool,
}

/// A large file that is wanted.
struct LargeFile {
    dir: Arc<TargetDir>,
    name: Name,
    meta: Meta,
    version: SourceVersion,
    data: RangeSet,
    left: LeftOver,
    state: Mutex<LargeState>,
}

#[derive(Default)]
struct LargeState {
    missing: RangeSet,
    open: Option<Open>,
    /// Threads that are writing to it: it is not finished under their hands.
    writers: usize,
    unsynced: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Arriving,
    Whole,
    GivenUp,
}

/// An open partial file, one of [`PARTIALS_OPEN_MAX`].
struct Open {
    partial: Partial,
    _slot: Slot,
}

/// Counted as long as it lives.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(counter: &Arc<AtomicUsize>, max: usize) -> io::Result<Self> {
        let slot = Self(Arc::clone(counter));
        if counter.fetch_add(1, Ordering::Relaxed) < max {
            Ok(slot)
        } else {
            Err(io::Error::other("the sender has begun too many files at a time"))
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

enum Incoming {
    Small(Box<SmallFile>),
    Large(Arc<LargeFile>),
}

impl Incoming {
    fn dir(&self) -> &TargetDir {
        match self {
            Self::Small(file) => &file.dir,
            Self::Large(file) => &file.dir,
        }
    }

    /// What its entry takes.
    fn kib(&self) -> usize {
        let (name, meta, ranges) = match self {
            Self::Small(file) => (&file.name, &file.meta, 0),
            Self::Large(file) => (&file.name, &file.meta, file.data.iter().count()),
        };
        (name.as_bytes().len() + meta.xattr_bytes() + ranges * size_of::<(u64, u64)>()) / 1024 + 1
    }
}

#[derive(Default)]
struct Files {
    /// By their numbers, until they are in their place or given up.
    wanted: HashMap<u64, Incoming>,
    /// What their entries take.
    wanted_kib: usize,
    /// Those that were given up, or never taken.
    refused: HashSet<u64>,
}

impl Files {
    fn insert(&mut self, id: u64, incoming: Incoming) {
        self.wanted_kib += incoming.kib();
        self.wanted.insert(id, incoming);
    }

    fn remove(&mut self, id: u64) -> Option<Incoming> {
        let incoming = self.wanted.remove(&id)?;
        self.wanted_kib -= incoming.kib();
        Some(incoming)
    }
}

/// What the planner is told.
enum Task {
    /// An offer, and the way back for the answer.
    Plan(u64, Vec<Entry>, oneshot::Sender<Wants>),
    /// The sender has withdrawn these files.
    GiveUp(Vec<u64>, oneshot::Sender<()>),
    /// All else is done: the last steps.
    Finish(oneshot::Sender<()>),
}

/// What a finisher is told.
enum Chore {
    /// A whole file waits for its name.
    Finish(u64, Arc<LargeFile>, Open),
    /// A newer copy wants this file; see [`rivals`].
    LetGo(u64),
}

/// How far the whole is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Course {
    UnderWay,
    Whole,
    /// The sender cannot go on, in its words.
    Broken(String),
}

/// The receiving end of a copy.
pub(crate) struct Target {
    settings: Arc<Settings>,
    base: Dir,
    progress: Arc<Progress>,
    direct: DirectWrites,
    /// Written so.
    past_cache_bytes: AtomicU64,
    files: Mutex<Files>,
    /// Wanted files that are neither in their place nor given up.
    unsettled: AtomicU64,
    offers_done: AtomicU64,
    partials_open: Arc<AtomicUsize>,
    planner: Mutex<Option<Sender<Task>>>,
    finishers: Mutex<Option<SyncSender<Chore>>>,
    changed: Notify,
    course: watch::Sender<Course>,
    /// The file system makes no unnamed files.
    names_needed: AtomicBool,
    /// The client's, at a server, until it ends.
    session: Mutex<Option<Session>>,
    /// The sender could not read a file that it had offered.
    sender_failed: AtomicBool,
}

impl Target {
    /// Starts the threads. `enter_thread` is called first on each: it takes on the user's rights, which the calling
    /// thread must have as well.
    pub(crate) fn start(
        destination: Destination,
        options: CopyOptions,
        problems: Problems,
        progress: Arc<Progress>,
        enter_thread: impl Fn() + Send + std::marker::Sync + Clone + 'static,
    ) -> io::Result<Arc<Self>> {
        let (planner, tasks) = channel();
        let (finishers, chores) = sync_channel(FINISHING_MAX);
        let target = Arc::new(Self {
            direct: direct_writes(options.writing(), &destination.base),
            past_cache_bytes: AtomicU64::new(0),
            settings: Arc::new(Settings::new(options, problems)),
            base: destination.base.clone(),
            progress,
            files: Mutex::default(),
            unsettled: AtomicU64::new(0),
            offers_done: AtomicU64::new(0),
            partials_open: Arc::default(),
            planner: Mutex::new(Some(planner)),
            finishers: Mutex::new(Some(finishers)),
            changed: Notify::new(),
            course: watch::channel(Course::UnderWay).0,
            names_needed: AtomicBool::new(false),
            session: Mutex::default(),
            sender_failed: AtomicBool::new(false),
        });
        let plan = Planner::new(&target, destination);
        let enter = enter_thread.clone();
        spawn("planner", move || {
            enter();
            plan.run(&tasks);
        })?;
        let chores = Arc::new(Mutex::new(chores));
        for _ in 0..FINISHERS {
            let (weak, chores, enter) = (Arc::downgrade(&target), Arc::clone(&chores), enter_thread.clone());
            spawn("finisher", move || {
                enter();
                while let Some(chore) = next(&chores)
                    && let Some(target) = weak.upgrade()
                {
                    target.carry_out(chore);
                }
            })?;
        }
        Ok(target)
    }

    /// This copy is of a server's client, who may vanish; see [`rivals`].
    pub(crate) fn set_session(self: &Arc<Self>, session: Session) {
        *lock(&self.session) = Some(session);
        rivals::enter(self);
    }

    /// Gives up the file whose partial file is `part`, for another copy to go on with, if this copy's client has gone.
    /// Called by the other copy, which may be another user's: the work is left to a thread of this one.
    pub(crate) fn let_go(&self, part: FileId) {
        let client_has_gone = lock(&self.session).as_ref().is_some_and(|session| session.lane_count() == 0);
        if !client_has_gone {
            return;
        }
        let large = |(id, incoming): (&u64, &Incoming)| match incoming {
            Incoming::Large(file) => Some((*id, Arc::clone(file))),
            Incoming::Small(_) => None,
        };
        let files: Vec<_> = lock(&self.files).wanted.iter().filter_map(large).collect();
        let held = files
            .into_iter()
            .find(|(_, file)| lock(&file.state).open.as_ref().is_some_and(|open| open.partial.id() == part));
        if let Some((id, _)) = held
            && let Some(finishers) = lock(&self.finishers).as_ref()
        {
            let _ = finishers.try_send(Chore::LetGo(id)); // while they are busy, the other copy asks again
        }
    }

    /// Ends the threads; what is under way stays for a later run.
    pub(crate) fn stop(&self) {
        lock(&self.session).take();
        lock(&self.planner).take();
        lock(&self.finishers).take();
        *lock(&self.files) = Files::default();
        self.changed.notify_waiters();
    }

    /// Bytes of files that were written past the page cache.
    pub(crate) fn past_cache_bytes(&self) -> u64 {
        self.past_cache_bytes.load(Ordering::Relaxed)
    }

    /// Takes an offer.
    pub(crate) async fn offer(&self, number: u64, entries: Vec<Entry>) -> Wants {
        let over = || Wants { over: true, ..Wants::default() };
        let (reply, answer) = oneshot::channel();
        if !self.tell_planner(Task::Plan(number, entries, reply)) {
            return over();
        }
        answer.await.unwrap_or_else(|_| over())
    }

    /// False when the copy is over.
    fn tell_planner(&self, task: Task) -> bool {
        lock(&self.planner).as_ref().is_some_and(|planner| planner.send(task).is_ok())
    }

    /// The sender cannot read these after all, or they have changed: what is there of them is of no use.
    /// Returns when that is done, so that who says it again and again waits.
    pub(crate) async fn give_up(&self, files: Vec<u64>) {
        self.sender_failed.store(true, Ordering::SeqCst);
        let (reply, done) = oneshot::channel();
        if self.tell_planner(Task::GiveUp(files, reply)) {
            let _ = done.await; // over: nothing is kept for a later run either
        }
    }

    /// The sender cannot go on, for the reason that it gives.
    pub(crate) fn break_off(&self, reason: String) {
        self.course.send_replace(Course::Broken(reason));
    }

    /// Waits until all of `offers` offers are done with, and finishes the whole. `None`: it was stopped before.
    pub(crate) async fn end(&self, offers: u64) -> Option<Finished> {
        // Offers are answered before the end is told.
        self.progress.all_found.store(true, Ordering::Relaxed);
        loop {
            let changed = self.changed.notified();
            if lock(&self.planner).is_none() {
                return None;
            }
            let planned = self.offers_done.load(Ordering::SeqCst) >= offers;
            if planned && self.unsettled.load(Ordering::SeqCst) == 0 {
                break;
            }
            changed.await;
        }
        let (reply, done) = oneshot::channel();
        if !self.tell_planner(Task::Finish(reply)) || done.await.is_err() {
            return None;
        }
        self.course.send_replace(Course::Whole);
        self.settings.problems.all_passed().await;
        Some(Finished { whole: true, problems: self.settings.problems.count() })
    }

    /// Waits until the sender has said that it is at its end and all is in its place.
    ///
    /// # Errors
    /// The sender's reason why it cannot go on.
    pub(crate) async fn whole(&self) -> Result<(), String> {
        let mut course = self.course.subscribe();
        // The sender of changes lives in `self`.
        match course.wait_for(|course| *course != Course::UnderWay).await.as_deref() {
            Ok(Course::Broken(reason)) => Err(reason.clone()),
            _ => Ok(()),
        }
    }

    /// Whether the sender may have problems left to tell: later ones than its word that all was offered.
    pub(crate) fn sender_failed(&self) -> bool {
        self.sender_failed.load(Ordering::SeqCst)
    }

    /// Bytes from the lanes; see [`Pieces::store`](longhaul_transport::Pieces::store).
    pub(crate) fn store(&self, object: u64, offset: u64, data: &[u8], checksum: u64) -> Stored {
        if object & BUNDLE != 0 {
            self.store_bundle(data);
            return Stored::Kept;
        }
        let file = {
            let files = lock(&self.files);
            match files.wanted.get(&object) {
                Some(Incoming::Large(file)) => Arc::clone(file),
                Some(Incoming::Small(_)) => return Stored::Unwanted,
                // A second copy of bytes of a file that is in its place already is no refusal.
                None if files.refused.contains(&object) => return Stored::Unwanted,
                None => return Stored::Kept,
            }
        };
        let record = JournalRecord { offset, length: data.len() as u32, checksum };
        match self.store_part(object, &file, &record, data) {
            Ok(()) => Stored::Kept,
            Err(error) => {
                let reason = match &error {
                    PartialError::Busy | PartialError::Overtaken => format!("not copied: {error}"),
                    PartialError::Io(error) => cannot("write", error),
                };
                self.fail_file(object, &file.path(), reason);
                Stored::Unwanted
            }
        }
    }

    fn store_bundle(&self, data: &[u8]) {
        for bundled in bundle::files(data) {
            let Ok(bundled) = bundled else {
                self.settings.problems.tell(self.base.path(), "a bundle of small files was damaged");
                return;
            };
            // A second copy of a bundle finds its files done.
            let Some(file) = self.take_small(bundled.file) else { continue };
            let placed = match bundled.bytes {
                // The sender tells the reason.
                None => {
                    self.sender_failed.store(true, Ordering::SeqCst);
                    false
                }
                Some(bytes) if bytes.len() as u64 == file.size => match self.place_small(&file, bytes) {
                    Ok(()) => true,
                    Err(error) => {
                        self.settings.problems.tell(file.path(), cannot("write", &error));
                        false
                    }
                },
                Some(_) => {
                    let reason = "not copied: it came with another size than announced";
                    self.settings.problems.tell(file.path(), reason);
                    false
                }
            };
            if placed {
                count(&self.progress.done_bytes, file.size);
                self.note_placed();
            } else {
                self.refuse(bundled.file);
            }
            self.settle(&file.dir);
        }
    }

    fn take_small(&self, id: u64) -> Option<Box<SmallFile>> {
        let mut files = lock(&self.files);
        match files.remove(id)? {
            Incoming::Small(file) => Some(file),
            large => {
                files.insert(id, large);
                None
            }
        }
    }

    /// Writes a small file under no name, or a passing one, and then gives it its own.
    fn place_small(&self, file: &SmallFile, bytes: &[u8]) -> io::Result<()> {
        let dir = &file.dir.dir;
        let write = |target: &File| -> io::Result<()> {
            target.write_all_at(bytes, 0)?;
            self.settings.keep(target, &file.meta, || file.path());
            if self.settings.sync == Sync::Each { target.sync_data() } else { Ok(()) }
        };
        if !self.names_needed.load(Ordering::Relaxed) {
            match dir.create_unnamed() {
                Ok(target) => {
                    write(&target)?;
                    if !file.replaces {
                        match dir.name_file(&target, &file.name) {
                            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                            named => return named,
                        }
                    }
                    let (passing, ()) = with_passing_name(|passing| dir.name_file(&target, passing))?;
                    return rename_over(dir, &passing, &file.name);
                }
                // EOPNOTSUPP, or EISDIR from kernels and file systems that do not know the flag (open(2)).
                Err(error) if is_unsupported(&error) => self.names_needed.store(true, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        let (passing, target) = with_passing_name(|passing| dir.create_file(passing))?;
        let written = write(&target).and_then(|()| dir.rename(&passing, &file.name));
        if written.is_err() {
            let _ = dir.remove(&passing); // the first error is the one to tell
        }
        written
    }

    fn store_part(
        &self,
        id: u64,
        file: &Arc<LargeFile>,
        record: &JournalRecord,
        data: &[u8],
    ) -> Result<(), PartialError> {
        let offset = record.offset;
        let end = offset + data.len() as u64;
        if end > file.version.size {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        }
        let (buffered, direct) = {
            let mut state = lock(&file.state);
            if state.stage != Stage::Arriving {
                return Ok(()); // a second copy of the last bytes
            }
            let open = match state.open.take() {
                Some(open) => open,
                None => self.open_partial(file)?,
            };
            let open = state.open.insert(open);
            let direct = open.partial.direct.clone().filter(|_| self.direct.are_best());
            let buffered = Arc::clone(&open.partial.buffered);
            state.writers += 1;
            (buffered, direct)
        };
        let written = self.direct.write_at(&buffered, direct.as_deref(), offset, data);
        let whole = {
            let mut state = lock(&file.state);
            state.writers -= 1;
            if state.stage == Stage::Arriving {
                written.map_err(io::Error::from)?;
                if let Some(open) = &mut state.open {
                    open.partial.note(record)?;
                }
                let new = state.missing.remove(offset, end);
                if state.missing.count() > GAPS_MAX {
                    return Err(io::Error::other("its parts have come in too many pieces").into());
                }
                count(&self.progress.done_bytes, new);
                if direct.is_none() {
                    state.unsynced += new;
                    if state.unsynced >= WRITE_BACK_BYTES {
                        state.unsynced = 0;
                        start_write_back(&buffered);
                    }
                } else {
                    count(&self.past_cache_bytes, new);
                }
                if state.missing.is_empty() {
                    state.stage = Stage::Whole;
                }
            }
            // The last who writes passes it on, although others have brought its last bytes.
            if state.stage == Stage::Whole && state.writers == 0 { state.open.take() } else { None }
        };
        if let Some(open) = whole {
            let finishers = lock(&self.finishers).clone();
            if let Some(finishers) = finishers {
                // Waits while all finishers are busy: then the disk is the slowest part.
                let _ = finishers.send(Chore::Finish(id, Arc::clone(file), open)); // the copy was given up
            }
        }
        Ok(())
    }

    fn open_partial(&self, file: &LargeFile) -> Result<Open, PartialError> {
        let slot = Slot::take(&self.partials_open, PARTIALS_OPEN_MAX)?;
        let direct = self.direct.are_best() && file.version.size >= DIRECT_FILE_MIN;
        let partial = Partial::open(&file.dir.dir, &file.name, file.version, &file.left, &file.data, direct)?;
        Ok(Open { partial, _slot: slot })
    }

    fn carry_out(&self, chore: Chore) {
        match chore {
            Chore::Finish(id, file, open) => self.finish_large(id, &file, open),
            Chore::LetGo(id) => {
                let path = match lock(&self.files).wanted.get(&id) {
                    Some(Incoming::Large(file)) => file.path(),
                    Some(Incoming::Small(_)) | None => return,
                };
                self.fail_file(id, &path, "not copied: a newer copy of it has taken over".to_owned());
            }
        }
    }

    fn finish_large(&self, id: u64, file: &LargeFile, open: Open) {
        let Open { partial, _slot } = open;
        self.settings.keep(&*partial.buffered, &file.meta, || file.path());
        let synced = if self.settings.sync == Sync::Never { Ok(()) } else { partial.buffered.sync_data() };
        if lock(&self.files).remove(id).is_none() {
            // Withdrawn meanwhile: it must not be seen under its name. If all has ended, a later run goes on from it.
            if lock(&self.planner).is_some() {
                partial.discard();
            }
            return;
        }
        match synced.and_then(|()| partial.finish()) {
            Ok(()) => self.note_placed(),
            Err(error) => {
                self.refuse(id);
                self.settings.problems.tell(file.path(), cannot("finish", &error));
            }
        }
        self.settle(&file.dir);
    }

    fn fail_file(&self, id: u64, path: &Path, reason: String) {
        // Only the first of several movers tells.
        if let Some(incoming) = self.refuse(id) {
            self.settings.problems.tell(path, reason);
            self.abandon(&incoming, true);
        }
    }

    /// Notes that a file will not come, and takes it off the list of those that are wanted.
    fn refuse(&self, id: u64) -> Option<Incoming> {
        let mut files = lock(&self.files);
        if files.refused.len() < REFUSED_FILES_MAX {
            files.refused.insert(id);
        }
        files.remove(id)
    }

    fn is_refused(&self, id: u64) -> bool {
        lock(&self.files).refused.contains(&id)
    }

    /// Lets go of a file that will not be whole, and removes what is there of it unless a later run can go on from it.
    fn abandon(&self, incoming: &Incoming, resumable: bool) {
        if let Incoming::Large(file) = incoming {
            let open = {
                let mut state = lock(&file.state);
                state.stage = Stage::GivenUp;
                state.open.take()
            };
            if let Some(Open { partial, .. }) = open
                && !(resumable && partial.is_journaled())
            {
                partial.discard();
            }
        }
        self.settle(incoming.dir());
    }

    fn note_placed(&self) {
        count(&self.progress.done_files, 1);
    }

    /// A file is wanted; false when there are too many.
    fn expect(&self, id: u64, incoming: Incoming) -> bool {
        let mut files = lock(&self.files);
        if files.wanted_kib >= WANTED_KIB_MAX || files.wanted.contains_key(&id) {
            return false;
        }
        incoming.dir().expect_one();
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        files.insert(id, incoming);
        true
    }

    /// A wanted file is in its place, or given up.
    fn settle(&self, dir: &TargetDir) {
        dir.settle_one(&self.settings);
        self.unsettled.fetch_sub(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

impl SmallFile {
    fn path(&self) -> PathBuf {
        self.dir.dir.path_of(&self.name)
    }
}

impl LargeFile {
    fn path(&self) -> PathBuf {
        self.dir.dir.path_of(&self.name)
    }
}

/// Makes something under a name of no meaning; another copy may use the same by chance.
fn with_passing_name<T>(mut make: impl FnMut(&Name) -> io::Result<T>) -> io::Result<(Name, T)> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let passing = temporary_name();
        match make(&passing) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && attempts < TEMPORARY_NAME_ATTEMPTS => {}
            made => return made.map(|made| (passing, made)),
        }
    }
}

fn rename_over(dir: &Dir, from: &Name, to: &Name) -> io::Result<()> {
    dir.rename(from, to).inspect_err(|_| {
        let _ = dir.remove(from); // the first error is the one to tell
    })
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::IsADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error())
}

/// The next one, for whichever finisher is free.
fn next(chores: &Mutex<Receiver<Chore>>) -> Option<Chore> {
    lock(chores).recv().ok()
}

fn spawn(name: &str, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(job).map(drop)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
