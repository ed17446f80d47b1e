//! The receiving end: decides what it wants, puts bytes in their place, gives whole files their names.
//!
//! One thread, the planner, takes offers in their order: it makes directories, links and empty files, compares what is
//! there, and says what it wants. The lanes' movers store bytes. Large files are synced and renamed by finishers, so
//! that no lane waits for a disk's cache.
//!
//! Invariants: nothing but a whole file is ever seen under its name; nothing outside the destination is touched
//! (every step is by descriptor and follows no link); a directory gets its time and mode when nothing in it will
//! change any more.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longhaul_files::attr::{set_mode, set_modified, set_owner, set_xattr};
use longhaul_files::dir::is_on_local_disk;
use longhaul_files::{Attr, Dir, Kind, Name};
use longhaul_transport::limits::ALIGNMENT;
use longhaul_transport::{Session, Stored};
use tokio::sync::{Notify, oneshot};

use crate::bundle;
use crate::journal::JournalRecord;
use crate::limits::{
    BUNDLED_FILE_MAX, DIRECT_FILE_MIN, FINISHERS, FINISHING_MAX, HARD_LINKS_WAITING_MAX, OFFERS_OPEN_MAX,
    RIVALS_PATIENCE, WRITE_BACK_BYTES,
};
use crate::message::{Entry, Finished, Meta, Want, Wants, What, WireRanges, to_wire_ranges};
use crate::options::{CopyOptions, Existing, Sync, Writing};
use crate::partial::{FileId, Partial, PartialError, SourceVersion, left_over, temporary_name};
use crate::progress::{Problems, Progress, count};
use crate::ranges::RangeSet;
use crate::rivals;
use crate::source::BUNDLE;
use crate::walk::cannot;

/// Where the copy goes.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    /// The directory that exists.
    pub(crate) base: Dir,
    /// The name the one source gets there; `None`: its own.
    pub(crate) rename: Option<Name>,
}

/// A directory that files arrive in. When the last that needs it is gone, it gets its own attributes.
struct TargetDir {
    dir: Dir,
    /// What it shall have in the end; `None`: it is left as it is.
    meta: Option<Meta>,
    /// Kept so that it gets its attributes after this one.
    _parent: Option<Arc<TargetDir>>,
    settings: Arc<Settings>,
}

impl Drop for TargetDir {
    fn drop(&mut self) {
        let Some(meta) = &self.meta else { return };
        let applied = self.dir.fd().and_then(|fd| self.settings.apply(&*fd, meta));
        if let Err(error) = applied {
            self.settings.problems.tell(self.dir.path(), cannot("set the attributes of", &error));
        }
    }
}

/// What all parts of the receiving end know.
struct Settings {
    options: CopyOptions,
    existing: Existing,
    sync: Sync,
    direct: DirectWrites,
    /// Permission bits that new files do not get when modes are not preserved.
    umask: u32,
    is_root: bool,
    problems: Problems,
    progress: Arc<Progress>,
}

impl Settings {
    /// Sets what shall be kept of the source's attributes. The time comes last: everything else changes it.
    fn apply(&self, file: impl std::os::fd::AsFd, meta: &Meta) -> io::Result<()> {
        let file = file.as_fd();
        if self.options.preserve && self.is_root {
            set_owner(file, meta.uid, meta.gid)?;
        }
        if self.options.xattrs {
            for xattr in &meta.xattrs {
                // Security labels are the system's, unless one is root.
                if self.is_root || !xattr.name.starts_with(b"security.") {
                    set_xattr(file, xattr)?;
                }
            }
        }
        set_mode(file, self.mode_for(meta))?;
        set_modified(file, meta.modified)
    }

    fn mode_for(&self, meta: &Meta) -> u32 {
        if self.options.preserve { meta.mode } else { meta.mode & 0o777 & !self.umask }
    }
}

/// Whether writes past the page cache are best here. They spare the memory, and most of the processor's part; but a
/// disk with heads needs the kernel to put writes in order, which come interleaved from many lanes.
#[derive(Debug)]
struct DirectWrites {
    best: AtomicBool,
    /// Decide by what is seen.
    by_sight: bool,
    bytes: AtomicU64,
    took_ns: AtomicU64,
}

/// Slower than so many nanoseconds a byte (60 MB/s for each thread), over [`SIGHT_BYTES`], is a disk that seeks.
const SEEKING_NS_PER_BYTE: u64 = 16;

const SIGHT_BYTES: u64 = 16 << 20;

impl DirectWrites {
    fn new(best: bool, by_sight: bool) -> Self {
        Self { best: AtomicBool::new(best), by_sight, bytes: AtomicU64::new(0), took_ns: AtomicU64::new(0) }
    }

    fn are_best(&self) -> bool {
        self.best.load(Ordering::Relaxed)
    }

    fn note(&self, bytes: usize, took: Duration) {
        if !self.by_sight {
            return;
        }
        let took = self.took_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed) + took.as_nanos() as u64;
        let bytes = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if bytes >= SIGHT_BYTES {
            if took / bytes > SEEKING_NS_PER_BYTE && self.best.swap(false, Ordering::Relaxed) {
                tracing::info!("the disk is slow past the page cache: writing through it");
            }
            self.bytes.store(0, Ordering::Relaxed);
            self.took_ns.store(0, Ordering::Relaxed);
        }
    }
}

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
    state: Mutex<LargeState>,
}

struct LargeState {
    missing: RangeSet,
    present: RangeSet,
    open: Option<Partial>,
    unsynced: u64,
    over: bool,
}

enum Incoming {
    Small(Box<SmallFile>),
    Large(Arc<LargeFile>),
}

/// A whole file that waits for its name.
struct Finishing {
    id: u64,
    file: Arc<LargeFile>,
    partial: Partial,
}

/// An offer for the planner, and the way back for its answer.
type Planned = (u64, Vec<Entry>, oneshot::Sender<Wants>);

/// The receiving end of a copy.
pub(crate) struct Target {
    settings: Arc<Settings>,
    base: Dir,
    files: Mutex<HashMap<u64, Incoming>>,
    /// Wanted files that are neither in their place nor given up.
    open_files: AtomicU64,
    offers_done: AtomicU64,
    placed: AtomicU64,
    planner: Mutex<Option<Sender<Planned>>>,
    finishers: Mutex<Option<SyncSender<Finishing>>>,
    changed: Notify,
    is_whole: AtomicBool,
    temporary: AtomicU64,
    /// The file system makes no unnamed files.
    names_needed: AtomicBool,
    /// The client's, at a server, until it ends.
    session: Mutex<Option<Session>>,
    /// The sender could not read a file that it had offered.
    sender_failed: AtomicBool,
}

impl Target {
    /// Starts the threads. `enter_thread` is called first on each: it takes on the user's rights.
    pub(crate) fn start(
        destination: Destination,
        options: CopyOptions,
        problems: Problems,
        progress: Arc<Progress>,
        enter_thread: impl Fn() + Send + std::marker::Sync + Clone + 'static,
    ) -> io::Result<Arc<Self>> {
        let direct = match options.writing() {
            Writing::Auto => is_on_local_disk(&destination.base),
            Writing::Direct => true,
            Writing::Buffered => false,
        };
        let settings = Arc::new(Settings {
            existing: options.existing(),
            sync: options.sync(),
            direct: DirectWrites::new(direct, options.writing() == Writing::Auto),
            umask: current_umask(),
            is_root: rustix::process::geteuid().is_root(),
            options,
            problems,
            progress,
        });
        let (planner, offers) = channel();
        let (finishers, finishing) = sync_channel(FINISHING_MAX);
        let target = Arc::new(Self {
            base: destination.base.clone(),
            files: Mutex::default(),
            open_files: AtomicU64::new(0),
            offers_done: AtomicU64::new(0),
            placed: AtomicU64::new(0),
            planner: Mutex::new(Some(planner)),
            finishers: Mutex::new(Some(finishers)),
            changed: Notify::new(),
            is_whole: AtomicBool::new(false),
            temporary: AtomicU64::new(0),
            names_needed: AtomicBool::new(false),
            session: Mutex::default(),
            sender_failed: AtomicBool::new(false),
            settings,
        });
        let plan = Planner::new(&target, destination);
        let enter = enter_thread.clone();
        spawn("planner", move || {
            enter();
            plan.run(&offers);
        })?;
        let finishing = Arc::new(Mutex::new(finishing));
        for _ in 0..FINISHERS {
            let (weak, finishing, enter) =
                (Arc::downgrade(&target), Arc::clone(&finishing), enter_thread.clone());
            spawn("finisher", move || {
                enter();
                loop {
                    let next = lock(&finishing).recv();
                    let (Ok(next), Some(target)) = (next, weak.upgrade()) else { return };
                    target.finish_large(next);
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
    pub(crate) fn let_go(&self, part: FileId) {
        let client_has_gone = lock(&self.session).as_ref().is_some_and(|session| session.lane_count() == 0);
        if !client_has_gone {
            return;
        }
        let large = |(id, incoming): (&u64, &Incoming)| match incoming {
            Incoming::Large(file) => Some((*id, Arc::clone(file))),
            Incoming::Small(_) => None,
        };
        let files: Vec<_> = lock(&self.files).iter().filter_map(large).collect();
        let held = files.iter().find(|(_, file)| lock(&file.state).open.as_ref().is_some_and(|p| p.is(part)));
        if let Some((id, file)) = held {
            let reason = "not copied: a newer copy of it has taken over".to_owned();
            self.fail_file(*id, &file.path(), reason);
        }
    }

    /// Ends the threads; what is under way stays for a later run.
    pub(crate) fn stop(&self) {
        lock(&self.session).take();
        lock(&self.planner).take();
        lock(&self.finishers).take();
        lock(&self.files).clear();
        self.changed.notify_waiters();
    }

    /// Takes an offer.
    pub(crate) async fn offer(&self, number: u64, entries: Vec<Entry>) -> Wants {
        let over = || Wants { over: true, ..Wants::default() };
        let (reply, answer) = oneshot::channel();
        let sent = lock(&self.planner)
            .as_ref()
            .is_some_and(|planner| planner.send((number, entries, reply)).is_ok());
        if sent { answer.await.unwrap_or_else(|_| over()) } else { over() }
    }

    /// The sender cannot read these after all, or they have changed: what is there of them is of no use.
    pub(crate) fn give_up(&self, files: &[u64]) {
        self.sender_failed.store(true, Ordering::SeqCst);
        for id in files {
            let incoming = lock(&self.files).remove(id);
            if let Some(incoming) = incoming {
                self.abandon(incoming, false);
            }
        }
    }

    /// Waits until all of `offers` offers are done with, and finishes the whole.
    pub(crate) async fn end(self: &Arc<Self>, offers: u64) -> Finished {
        // Offers are answered before the end is told.
        self.settings.progress.all_found.store(true, Ordering::Relaxed);
        loop {
            let changed = self.changed.notified();
            let planned = self.offers_done.load(Ordering::SeqCst) >= offers;
            let stopped = lock(&self.planner).is_none();
            if (planned && self.open_files.load(Ordering::SeqCst) == 0) || stopped {
                break;
            }
            changed.await;
        }
        // The planner makes the last hard links and lets go of the directories, which then get their times.
        let (reply, done) = oneshot::channel();
        let closing = lock(&self.planner).take();
        if let Some(planner) = closing
            && planner.send((u64::MAX, Vec::new(), reply)).is_ok()
        {
            let _ = done.await; // it has ended otherwise: with the same effect
        }
        self.is_whole.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
        self.settings.problems.all_passed().await;
        Finished { files: self.placed.load(Ordering::SeqCst), problems: self.settings.problems.count() }
    }

    /// Waits until the sender has said that it is at its end and all is in its place.
    pub(crate) async fn whole(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_whole.load(Ordering::SeqCst) {
                return;
            }
            changed.await;
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
        let file = match lock(&self.files).get(&object) {
            Some(Incoming::Large(file)) => Arc::clone(file),
            Some(Incoming::Small(_)) | None => return Stored::Unwanted,
        };
        let record = JournalRecord { offset, length: data.len() as u32, checksum };
        match self.store_part(object, &file, &record, data) {
            Ok(()) => Stored::Kept,
            Err(error) => {
                let reason = match &error {
                    PartialError::Busy => format!("not copied: {error}"),
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
            let file = match lock(&self.files).entry(bundled.file) {
                std::collections::hash_map::Entry::Occupied(slot)
                    if matches!(slot.get(), Incoming::Small(_)) =>
                {
                    slot.remove()
                }
                _ => continue,
            };
            let Incoming::Small(file) = file else { continue };
            let path = file.path();
            let placed = match bundled.bytes {
                // The sender tells the reason.
                None => {
                    self.sender_failed.store(true, Ordering::SeqCst);
                    false
                }
                Some(bytes) if bytes.len() as u64 == file.size => match self.place_small(&file, bytes) {
                    Ok(()) => true,
                    Err(error) => {
                        self.settings.problems.tell(path, cannot("write", &error));
                        false
                    }
                },
                Some(_) => {
                    self.settings.problems.tell(path, "not copied: it came with another size than announced");
                    false
                }
            };
            if placed {
                count(&self.settings.progress.done_bytes, file.size);
                self.note_placed();
            }
            drop(file);
            self.close_file();
        }
    }

    /// Writes a small file under no name, or a passing one, and then gives it its own.
    fn place_small(&self, file: &SmallFile, bytes: &[u8]) -> io::Result<()> {
        let dir = &file.dir.dir;
        let write = |target: &File| -> io::Result<()> {
            target.write_all_at(bytes, 0)?;
            self.settings.apply(target, &file.meta)?;
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
                    let passing = self.passing_name();
                    dir.name_file(&target, &passing)?;
                    return self.rename_over(dir, &passing, &file.name);
                }
                // EOPNOTSUPP, or EISDIR from kernels and file systems that do not know the flag (open(2)).
                Err(error) if is_unsupported(&error) => self.names_needed.store(true, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        let passing = self.passing_name();
        let target = dir.create_file(&passing, true)?;
        let written = write(&target).and_then(|()| dir.rename(&passing, &file.name));
        if written.is_err() {
            let _ = dir.remove(&passing); // the first error is the one to tell
        }
        written
    }

    fn rename_over(&self, dir: &Dir, from: &Name, to: &Name) -> io::Result<()> {
        dir.rename(from, to).inspect_err(|_| {
            let _ = dir.remove(from); // the first error is the one to tell
        })
    }

    fn passing_name(&self) -> Name {
        temporary_name(self.temporary.fetch_add(1, Ordering::Relaxed))
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
            if state.over {
                return Ok(()); // a second copy of the last bytes
            }
            if state.open.is_none() {
                let direct = self.settings.direct.are_best() && file.version.size >= DIRECT_FILE_MIN;
                let LargeState { present, .. } = &*state;
                let (dir, name) = (&file.dir.dir, &file.name);
                state.open = Some(Partial::open(dir, name, file.version, present, &file.data, direct)?);
            }
            let Some(open) = &state.open else { return Ok(()) };
            (Arc::clone(&open.buffered), open.direct.clone().filter(|_| self.settings.direct.are_best()))
        };
        let began = Instant::now();
        write_at(&buffered, direct.as_deref(), offset, data)?;
        if direct.is_some() {
            self.settings.direct.note(data.len(), began.elapsed());
        }
        let finished = {
            let mut state = lock(&file.state);
            if state.over {
                return Ok(());
            }
            if let Some(open) = &mut state.open
                && open.is_journaled()
            {
                open.note(record)?;
            }
            let new = state.missing.remove(offset, end);
            count(&self.settings.progress.done_bytes, new);
            if direct.is_none() {
                state.unsynced += new;
                if state.unsynced >= WRITE_BACK_BYTES {
                    state.unsynced = 0;
                    start_write_back(&buffered);
                }
            }
            if state.missing.is_empty() {
                state.over = true;
                state.open.take()
            } else {
                None
            }
        };
        if let Some(partial) = finished {
            let finisher = lock(&self.finishers).clone();
            if let Some(finisher) = finisher {
                // Waits while all finishers are busy: then the disk is the slowest part.
                let _ = finisher.send(Finishing { id, file: Arc::clone(file), partial }); // the copy was given up
            }
        }
        Ok(())
    }

    fn finish_large(&self, Finishing { id, file, partial }: Finishing) {
        let finished = self.settings.apply(&*partial.buffered, &file.meta).and_then(|()| {
            if self.settings.sync != Sync::Never {
                partial.buffered.sync_data()?;
            }
            partial.finish()
        });
        let removed = lock(&self.files).remove(&id);
        match finished {
            Ok(()) => self.note_placed(),
            Err(error) => self.settings.problems.tell(file.path(), cannot("finish", &error)),
        }
        drop((file, removed));
        self.close_file();
    }

    fn fail_file(&self, id: u64, path: &std::path::Path, reason: String) {
        let incoming = lock(&self.files).remove(&id);
        // Only the first of several movers tells.
        if let Some(incoming) = incoming {
            self.settings.problems.tell(path, reason);
            self.abandon(incoming, true);
        }
    }

    /// Lets go of a file that will not be whole, and removes what is there of it unless a later run can go on from it.
    fn abandon(&self, incoming: Incoming, resumable: bool) {
        if let Incoming::Large(file) = &incoming {
            let partial = {
                let mut state = lock(&file.state);
                state.over = true;
                state.open.take()
            };
            if let Some(partial) = partial
                && !(resumable && partial.is_journaled())
            {
                partial.discard();
            }
        }
        drop(incoming);
        self.close_file();
    }

    fn note_placed(&self) {
        self.placed.fetch_add(1, Ordering::SeqCst);
        count(&self.settings.progress.done_files, 1);
    }

    fn open_file(&self, id: u64, incoming: Incoming) {
        self.open_files.fetch_add(1, Ordering::SeqCst);
        lock(&self.files).insert(id, incoming);
    }

    fn close_file(&self) {
        self.open_files.fetch_sub(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

impl SmallFile {
    fn path(&self) -> PathBuf {
        self.dir.dir.path().join(self.name.as_os_str())
    }
}

impl LargeFile {
    fn path(&self) -> PathBuf {
        self.dir.dir.path().join(self.name.as_os_str())
    }
}

/// A name that others shall share.
#[derive(Clone)]
struct LinkedFile {
    dir: Arc<TargetDir>,
    name: Name,
}

/// Takes offers in their order.
struct Planner {
    target: std::sync::Weak<Target>,
    settings: Arc<Settings>,
    destination: Destination,
    /// By their ids.
    dirs: HashMap<u64, Arc<TargetDir>>,
    top: Option<Arc<TargetDir>>,
    /// Files that have hard links, by their ids.
    linked: HashMap<u64, LinkedFile>,
    /// Links to make when all files are there.
    links: Vec<(LinkedFile, LinkedFile)>,
    /// Offers that came before their turn.
    early: BTreeMap<u64, (Vec<Entry>, oneshot::Sender<Wants>)>,
    next: u64,
    /// How long it will still wait for other copies.
    patience: Duration,
}

/// What the planner says to one entry.
type Decision = Result<(Want, Option<RangeSet>), String>;

impl Planner {
    fn new(target: &Arc<Target>, destination: Destination) -> Self {
        let settings = Arc::clone(&target.settings);
        let top = Arc::new(TargetDir {
            dir: destination.base.clone(),
            meta: None,
            _parent: None,
            settings: Arc::clone(&settings),
        });
        Self {
            target: Arc::downgrade(target),
            settings,
            destination,
            dirs: HashMap::new(),
            top: Some(top),
            linked: HashMap::new(),
            links: Vec::new(),
            early: BTreeMap::new(),
            next: 0,
            patience: RIVALS_PATIENCE,
        }
    }

    fn run(mut self, offers: &Receiver<Planned>) {
        while let Ok((number, entries, reply)) = offers.recv() {
            if number == u64::MAX {
                self.finish();
                let _ = reply.send(Wants::default()); // nobody waits: the copy was given up
                return;
            }
            // The sender has no more open than this; one that has more is not answered.
            if self.early.len() > 2 * OFFERS_OPEN_MAX || number < self.next {
                continue;
            }
            self.early.insert(number, (entries, reply));
            while let Some((entries, reply)) = self.early.remove(&self.next) {
                self.next += 1;
                let Some(target) = self.target.upgrade() else { return };
                let wants = self.plan(&target, entries);
                let _ = reply.send(wants); // the sender has given up
                target.offers_done.fetch_add(1, Ordering::SeqCst);
                target.changed.notify_waiters();
            }
        }
    }

    fn plan(&mut self, target: &Target, entries: Vec<Entry>) -> Wants {
        let mut wants = Wants::default();
        for entry in entries {
            let parent = entry.parent;
            let name = entry.name.clone();
            self.note_found(&entry.what);
            let (want, part) = self.decide(target, entry).unwrap_or_else(|reason| {
                let dir = self.dir(parent).map_or_else(|| self.destination.base.path(), |d| d.dir.path());
                let path = name.map_or_else(|| dir.clone(), |name| dir.join(name.as_os_str()));
                self.settings.problems.tell(path, reason);
                (Want::Cannot, None)
            });
            wants.wants.push(want.into());
            if let Some(part) = part {
                wants.parts.push(WireRanges { ranges: to_wire_ranges(part.iter()) });
            }
        }
        wants
    }

    /// The receiver of a pull knows no more of the whole than what has been offered.
    fn note_found(&self, what: &What) {
        let bytes = match what {
            What::Dir | What::DirEnd => return,
            What::File { size, data, .. } if data.is_empty() => *size,
            What::File { data, .. } => data.iter().map(|(start, end)| end - start).sum(),
            What::HardLink { .. } | What::Symlink { .. } | What::Special { .. } => 0,
        };
        count(&self.settings.progress.found_files, 1);
        count(&self.settings.progress.found_bytes, bytes);
    }

    fn dir(&self, id: u64) -> Option<&Arc<TargetDir>> {
        if id == 0 { self.top.as_ref() } else { self.dirs.get(&id) }
    }

    fn decide(&mut self, target: &Target, entry: Entry) -> Decision {
        if matches!(entry.what, What::DirEnd) {
            self.dirs.remove(&entry.id);
            return NOTHING;
        }
        // A directory that could not be made has told its own problem.
        let parent = self.dir(entry.parent).ok_or("not copied: its directory could not be made")?;
        let parent = Arc::clone(parent);
        let renamed = if entry.parent == 0 { self.destination.rename.clone() } else { None };
        let Some(name) = renamed.or(entry.name) else {
            // The destination itself.
            self.dirs.insert(entry.id, parent);
            return NOTHING;
        };
        match entry.what {
            What::Dir => self.decide_dir(entry.id, parent, name, entry.meta),
            What::File { size, has_hard_links, data } => {
                if has_hard_links && self.linked.len() < HARD_LINKS_WAITING_MAX {
                    self.linked.insert(entry.id, LinkedFile { dir: Arc::clone(&parent), name: name.clone() });
                }
                self.decide_file(target, entry.id, parent, name, size, &data, entry.meta)
            }
            What::HardLink { to } => {
                let to =
                    self.linked.get(&to).ok_or("not copied: the file it is another name of is not known")?;
                if self.links.len() >= HARD_LINKS_WAITING_MAX {
                    return Err("not copied: there are too many hard links".to_owned());
                }
                self.links.push((to.clone(), LinkedFile { dir: parent, name }));
                NOTHING
            }
            What::Symlink { target: to } => self.decide_link(target, &parent, &name, &to, &entry.meta),
            What::Special { kind, device } => {
                self.decide_special(target, &parent, &name, kind, device, &entry.meta)
            }
            What::DirEnd => NOTHING,
        }
    }

    fn decide_dir(&mut self, id: u64, parent: Arc<TargetDir>, name: Name, meta: Meta) -> Decision {
        let made = if self.settings.options.dry_run {
            true
        } else {
            match parent.dir.make_dir(&name) {
                Ok(made) => made,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err("not copied: something that is no directory is in its place".to_owned());
                }
                Err(error) => return Err(cannot("make", &error)),
            }
        };
        // A directory that was there keeps its attributes unless they are to be preserved.
        let set = (made || self.settings.options.preserve) && !self.settings.options.dry_run;
        let dir = TargetDir {
            dir: parent.dir.child(name),
            meta: set.then_some(meta),
            _parent: Some(parent),
            settings: Arc::clone(&self.settings),
        };
        self.dirs.insert(id, Arc::new(dir));
        NOTHING
    }

    #[allow(clippy::too_many_arguments)] // an entry, taken apart
    fn decide_file(
        &mut self,
        target: &Target,
        id: u64,
        dir: Arc<TargetDir>,
        name: Name,
        size: u64,
        data: &[(u64, u64)],
        meta: Meta,
    ) -> Decision {
        if size > BUNDLED_FILE_MAX && !self.settings.options.dry_run {
            let waited = rivals::wait_for_turn(&dir.dir, &name, self.patience);
            self.patience = self.patience.saturating_sub(waited.unwrap_or_default()); // opening it will tell the error
        }
        let there = self.look(&dir.dir, &name)?;
        match there {
            Some(attr) if attr.kind == Kind::Dir => {
                return Err("not copied: a directory is in its place".to_owned());
            }
            Some(attr) if attr.kind == Kind::File && self.keeps(&attr, size, &meta) => {
                self.bring_in_line(&dir.dir, &name, &attr, &meta);
                count(&self.settings.progress.skipped_files, 1);
                count(&self.settings.progress.skipped_bytes, size);
                return Ok((Want::HasIt, None));
            }
            _ => {}
        }
        if self.settings.options.dry_run {
            count(&self.settings.progress.done_bytes, size);
            count(&self.settings.progress.done_files, 1);
            return NOTHING;
        }
        let small = SmallFile { dir, name, size, meta, replaces: there.is_some() };
        if size == 0 {
            target.place_small(&small, &[]).map_err(|error| cannot("make", &error))?;
            target.note_placed();
            return NOTHING;
        }
        if size <= BUNDLED_FILE_MAX {
            target.open_file(id, Incoming::Small(Box::new(small)));
            return Ok((Want::All, None));
        }
        self.want_large(target, id, small, data)
    }

    fn want_large(&self, target: &Target, id: u64, file: SmallFile, data: &[(u64, u64)]) -> Decision {
        let SmallFile { dir, name, size, meta, .. } = file;
        let mut all = RangeSet::default();
        if data.is_empty() {
            all.insert(0, size);
        }
        data.iter().for_each(|&(start, end)| all.insert(start, end));
        let version = SourceVersion { size, modified: meta.modified };
        let mut present = match self.settings.existing {
            Existing::Replace => RangeSet::default(),
            _ => left_over(&dir.dir, &name, version),
        };
        let mut missing = all.clone();
        for (start, end) in present.iter() {
            missing.remove(start, end);
        }
        if missing.is_empty() {
            // Whole but for its name: the last bytes are sent once more, and bring the name with them.
            let last =
                all.iter().last().map_or((0, size), |(start, end)| (start.max(end.saturating_sub(1)), end));
            missing.insert(last.0, last.1);
            present.remove(last.0, last.1);
        }
        let part = (missing != all).then(|| missing.clone());
        if part.is_some() {
            count(&self.settings.progress.skipped_bytes, all.bytes() - missing.bytes());
        }
        let state = LargeState { missing, present, open: None, unsynced: 0, over: false };
        let file = LargeFile { dir, name, meta, version, data: all, state: Mutex::new(state) };
        target.open_file(id, Incoming::Large(Arc::new(file)));
        Ok(if part.is_some() { (Want::Part, part) } else { (Want::All, None) })
    }

    /// Whether the file that is there may stay.
    fn keeps(&self, there: &Attr, size: u64, meta: &Meta) -> bool {
        let equal = there.size == size && there.modified == meta.modified;
        match self.settings.existing {
            Existing::Replace => false,
            Existing::SkipEqual => equal,
            Existing::SkipNewer => equal || there.modified > meta.modified,
            Existing::SkipAll => true,
        }
    }

    /// A file whose bytes are right may have got other permissions since.
    fn bring_in_line(&self, dir: &Dir, name: &Name, there: &Attr, meta: &Meta) {
        let settings = &self.settings;
        if settings.options.dry_run || !settings.options.preserve || settings.existing != Existing::SkipEqual
        {
            return;
        }
        let owner = settings.is_root && (there.uid, there.gid) != (meta.uid, meta.gid);
        let set = || -> io::Result<()> {
            if owner {
                dir.set_owner(name, meta.uid, meta.gid)?;
            }
            if owner || there.mode != meta.mode {
                dir.set_mode(name, meta.mode)?;
            }
            Ok(())
        };
        if let Err(error) = set() {
            settings
                .problems
                .tell(dir.path().join(name.as_os_str()), cannot("set the attributes of", &error));
        }
    }

    fn look(&self, dir: &Dir, name: &Name) -> Result<Option<Attr>, String> {
        match dir.attr(name) {
            // In a dry run the directory may not have been made.
            Err(_) if self.settings.options.dry_run => Ok(None),
            attr => attr.map_err(|error| cannot("look at", &error)),
        }
    }

    fn decide_link(
        &self,
        target: &Target,
        dir: &Arc<TargetDir>,
        name: &Name,
        to: &[u8],
        meta: &Meta,
    ) -> Decision {
        let dir = &dir.dir;
        let there = self.look(dir, name)?;
        if there.is_some_and(|attr| attr.kind == Kind::Symlink) && dir.read_link(name).is_ok_and(|t| t == to)
        {
            count(&self.settings.progress.skipped_files, 1);
            return Ok((Want::HasIt, None));
        }
        self.place_unlike_file(target, dir, name, there, meta, |passing| dir.make_link(passing, to))
    }

    fn decide_special(
        &self,
        target: &Target,
        dir: &Arc<TargetDir>,
        name: &Name,
        kind: Kind,
        device: u64,
        meta: &Meta,
    ) -> Decision {
        let dir = &dir.dir;
        let there = self.look(dir, name)?;
        if there.is_some_and(|attr| attr.kind == kind && attr.special_device == device) {
            count(&self.settings.progress.skipped_files, 1);
            return Ok((Want::HasIt, None));
        }
        self.place_unlike_file(target, dir, name, there, meta, |passing| {
            dir.make_special(passing, kind, device)?;
            dir.set_mode(passing, self.settings.mode_for(meta))
        })
    }

    /// Makes something under a passing name and moves it to its own.
    fn place_unlike_file(
        &self,
        target: &Target,
        dir: &Dir,
        name: &Name,
        there: Option<Attr>,
        meta: &Meta,
        make: impl FnOnce(&Name) -> io::Result<()>,
    ) -> Decision {
        match there {
            Some(attr) if attr.kind == Kind::Dir => {
                return Err("not copied: a directory is in its place".to_owned());
            }
            Some(_) if self.settings.existing == Existing::SkipAll => return Ok((Want::HasIt, None)),
            _ => {}
        }
        if !self.settings.options.dry_run {
            let passing = target.passing_name();
            let placed = make(&passing).and_then(|()| {
                if self.settings.options.preserve && self.settings.is_root {
                    dir.set_owner(&passing, meta.uid, meta.gid)?;
                }
                dir.set_modified(&passing, meta.modified)?;
                target.rename_over(dir, &passing, name)
            });
            placed.map_err(|error| cannot("make", &error))?;
        }
        target.note_placed();
        NOTHING
    }

    /// All files are there: makes hard links, lets the directories go, and makes all durable.
    fn finish(&mut self) {
        if self.target.upgrade().is_some_and(|t| t.settings.options.dry_run) {
            return;
        }
        for (to, link) in std::mem::take(&mut self.links) {
            let Some(target) = self.target.upgrade() else { return };
            let passing = target.passing_name();
            let made = to.dir.dir.hard_link(&to.name, &link.dir.dir, &passing).and_then(|()| {
                // rename(2) of two names of one file does nothing: both stay.
                target.rename_over(&link.dir.dir, &passing, &link.name)?;
                link.dir.dir.remove(&passing).map(drop)
            });
            match made {
                Ok(()) => target.note_placed(),
                Err(error) => {
                    let path = link.dir.dir.path().join(link.name.as_os_str());
                    self.settings.problems.tell(path, cannot("link", &error));
                }
            }
        }
        self.linked.clear();
        self.dirs.clear();
        self.top = None;
        if self.settings.sync != Sync::Never
            && let Err(error) = self.destination.base.sync_file_system()
        {
            self.settings
                .problems
                .tell(self.destination.base.path(), cannot("write to the disk what was copied to", &error));
        }
    }
}

/// Nothing has to be sent.
const NOTHING: Decision = Ok((Want::Nothing, None));

/// Writes all of `data`: what is aligned past the page cache where that is open, the rest through it.
fn write_at(buffered: &File, direct: Option<&File>, offset: u64, data: &[u8]) -> io::Result<()> {
    let aligned = match direct {
        Some(_) if offset.is_multiple_of(ALIGNMENT as u64) => data.len() / ALIGNMENT * ALIGNMENT,
        _ => 0,
    };
    let (straight, rest) = data.split_at(aligned);
    if let Some(direct) = direct
        && !straight.is_empty()
    {
        match direct.write_all_at(straight, offset) {
            // A file system that opens files so and then wants a larger alignment.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                buffered.write_all_at(straight, offset)?
            }
            written => written?,
        }
    }
    buffered.write_all_at(rest, offset + aligned as u64)
}

/// Begins writing a file's dirty pages to the disk, without waiting.
fn start_write_back(file: &File) {
    let _ = sync_file_range::start(file); // the sync at the end does all in any case
}

mod sync_file_range {
    #![allow(unsafe_code)] // no safe wrapper for sync_file_range(2)

    use std::os::fd::AsRawFd;

    pub(super) fn start(file: &std::fs::File) -> std::io::Result<()> {
        // SAFETY: a plain system call on an open descriptor.
        let result = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::IsADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error())
}

/// The process' umask, without changing it.
fn current_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

fn spawn(name: &str, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(job).map(drop)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
