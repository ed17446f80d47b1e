//! Leases at work: breaks are sent, answers waited for, and clients fenced that do not answer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use longhaul_transport::Session;
use prost::Message;
use tokio::sync::watch;

use super::grace::{Grace, MountId};
use super::watch::{Noticed, Watch};
use crate::lease::{Break, ChangeId, Client, FileId, Leases, Nanos, Serial};
use crate::limits::FENCE_AFTER;
use crate::locks::{Locks, WaitId};
use crate::message::{Grant, Notice, node_number};
use crate::name::Name;
use crate::pages::{Pages, Use, UseId, Verdict};

/// The leases of all clients of a server, and the way to each client.
#[derive(Debug)]
pub(super) struct Coherence {
    leases: Mutex<Leases>,
    pages: Mutex<Pages>,
    locks: Mutex<Locks<FileId>>,
    /// Clients whose locks others have asked for in vain, since that was looked at last.
    wanted_of: Mutex<BTreeSet<Client>>,
    clients: Mutex<HashMap<Client, Joined>>,
    grace: Arc<Grace>,
    last_client: AtomicU64,
    origin: Instant,
    /// Counts what may have made a change ready.
    released: watch::Sender<u64>,
    runtime: tokio::runtime::Handle,
    /// Without it there are no leases: changes that programs make here directly would not be noticed.
    watch: Option<Watch>,
    others: Mutex<Others>,
}

/// Parts of this process that change files and do not say which.
#[derive(Debug, Default)]
struct Others {
    count: usize,
    /// How many there have been.
    begun: u64,
    /// What the last of them did may not have been noticed yet.
    unseen: bool,
}

/// As long as this lives, this process' own changes are noticed like those of others.
#[derive(Debug)]
pub struct Changing(Arc<Coherence>);

impl Drop for Changing {
    fn drop(&mut self) {
        lock(&self.0.others).count -= 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client, and the file that its nodes are numbered from.
#[derive(Clone, Debug)]
struct Joined {
    /// `None` in tests of what needs none.
    session: Option<Session>,
    top: FileId,
    gate: Arc<Gate>,
    mount: Option<MountId>,
    /// When it last asked whether it may go on to use its leases.
    heard_at: Instant,
}

/// What a client changes it changes with this open; when it has been shut, nothing is being changed any more, and
/// nothing will be.
#[derive(Debug, Default)]
pub(super) struct Gate(RwLock<bool>);

impl Gate {
    /// `None`: it has been shut.
    pub(super) fn enter(&self) -> Option<RwLockReadGuard<'_, bool>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner)).filter(|is_shut| !**is_shut)
    }

    /// Waits for what is being changed.
    pub(super) fn shut(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

/// How long the watching thread outlives the server.
const WATCH_TICK: Duration = Duration::from_secs(1);

/// How often late answers are looked for.
const FENCE_TICK: Duration = Duration::from_secs(1);

impl Coherence {
    /// For one server; called on its runtime.
    #[must_use]
    pub(super) fn new(grace: Arc<Grace>) -> Arc<Self> {
        let watch = Watch::new().map_err(|error| {
            tracing::warn!(%error, "no fanotify: mounts keep nothing that they have learnt, as changes here cannot be noticed");
        });
        let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let started = started.map_or(0, |since| since.as_nanos() as Serial);
        let coherence = Arc::new(Self {
            leases: Mutex::new(Leases::after(started)),
            pages: Mutex::new(Pages::after(started)),
            locks: Mutex::default(),
            wanted_of: Mutex::default(),
            clients: Mutex::default(),
            grace,
            last_client: AtomicU64::new(0),
            origin: Instant::now(),
            released: watch::channel(0).0,
            runtime: tokio::runtime::Handle::current(),
            watch: watch.ok(),
            others: Mutex::default(),
        });
        if coherence.watch.is_some() {
            let watching = Arc::downgrade(&coherence);
            let started = std::thread::Builder::new().name("watch".into()).spawn(move || {
                while let Some(coherence) = watching.upgrade() {
                    coherence.watch_for(WATCH_TICK);
                }
            });
            if let Err(error) = started {
                tracing::error!(%error, "changes here are not noticed");
            }
        }
        let fencing = Arc::downgrade(&coherence);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(FENCE_TICK).await;
                let Some(coherence) = fencing.upgrade() else { return };
                coherence.fence();
            }
        });
        coherence
    }

    /// Something in this process changes files of clients' and does not come here with it.
    #[must_use]
    pub(super) fn others_change(self: &Arc<Self>) -> Changing {
        let mut others = lock(&self.others);
        others.count += 1;
        others.begun += 1;
        others.unseen = true;
        Changing(Arc::clone(self))
    }

    fn watch_for(self: &Arc<Self>, limit: Duration) {
        let Some(watch) = &self.watch else { return };
        {
            let leases = self.leases();
            let pages = lock(&self.pages);
            watch.make_room(|file| leases.is_held(file) || !pages.is_unused(file));
            watch.drop_opens(|dir| leases.is_exclusive(dir));
        }
        let before = {
            let others = lock(&self.others);
            (others.count == 0).then_some(others.begun)
        };
        match watch.wait(limit, || lock(&self.others).unseen) {
            Some(Noticed::Files(files)) => self.noticed(files),
            Some(Noticed::All) => {
                tracing::debug!("too many changes: all leases are broken");
                let mut files = self.leases().all();
                files.extend(lock(&self.pages).all());
                self.noticed(files);
            }
            // All has been seen of those that had ended before, and no other has begun.
            None => {
                let mut others = lock(&self.others);
                others.unseen &= before != Some(others.begun);
            }
        }
    }

    /// Changes that are made directly in this directory, or to this file, will be noticed; false: they cannot be.
    pub(super) fn watch_file(&self, file: FileId, fd: &OwnedFd) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.add(file, fd.as_fd()))
    }

    /// As [`Watch::covers`].
    pub(super) fn covers(&self, file: FileId, in_dir: Option<(FileId, &Name)>, own_mark: bool) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.covers(file, in_dir, own_mark))
    }

    /// Of this name in a watched directory, too.
    pub(super) fn watch_name(&self, dir: FileId, name: &Name, file: FileId) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.add_name(dir, name, file))
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        lock(&self.leases)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<Client, Joined>> {
        lock(&self.clients)
    }

    fn now(&self) -> Nanos {
        self.origin.elapsed().as_nanos() as Nanos
    }

    /// A session takes part; until [`leave`](Self::leave).
    pub(super) fn join(
        &self,
        session: Option<Session>,
        top: FileId,
        mount: Option<MountId>,
    ) -> (Client, Arc<Gate>) {
        let client = self.last_client.fetch_add(1, Ordering::Relaxed) + 1;
        let gate = Arc::<Gate>::default();
        self.leases().join(client);
        lock(&self.pages).join(client);
        self.clients().insert(
            client,
            Joined { session, top, gate: Arc::clone(&gate), mount, heard_at: Instant::now() },
        );
        (client, gate)
    }

    /// A session is over, and what it had is nobody's. In the background, as what it has sent may be on its way to a disk that takes its time; and
    /// once: whoever takes it off the list does all the rest.
    pub(super) fn end(self: &Arc<Self>, client: Client) -> Option<Session> {
        let Joined { session, gate, mount, .. } = self.clients().remove(&client)?;
        let coherence = Arc::clone(self);
        self.in_background(move || {
            if let Some(mount) = mount {
                coherence.grace.leave(mount); // before others get what it had
            }
            gate.shut();
            coherence.leave(client);
        });
        session
    }

    fn leave(&self, client: Client) {
        self.leases().gone(client);
        lock(&self.pages).gone(client);
        self.tell_released();
        self.with_locks(|locks| ((), locks.gone(client)));
    }

    /// Does something with locks; whoever has got his by that is told.
    pub(super) fn with_locks<T>(&self, deed: impl FnOnce(&mut Locks<FileId>) -> (T, Vec<WaitId>)) -> T {
        let (result, woken) = deed(&mut lock(&self.locks));
        let mut of_client = BTreeMap::<Client, Vec<u64>>::new();
        for (client, number) in woken {
            of_client.entry(client).or_default().push(number);
        }
        for (client, locked) in of_client {
            let Some(Joined { session: Some(session), .. }) = self.clients().get(&client).cloned() else {
                continue;
            };
            self.runtime.spawn(async move {
                let notice = Notice { locked, ..Notice::default() };
                let _ = session.request(notice.encode_to_vec().into()).await; // or the session is over, and so the lock
            });
        }
        result
    }

    fn tell_released(&self) {
        self.released.send_modify(|count| *count += 1);
    }

    /// As [`Leases::grant`].
    pub(super) fn grant(&self, client: Client, file: FileId) -> Option<Serial> {
        self.leases().grant(client, file)
    }

    /// As [`Leases::forgotten`].
    pub(super) fn forgotten(&self, client: Client, file: FileId) {
        self.leases().forgotten(client, file);
        lock(&self.pages).forgotten(client, file);
        self.tell_released();
    }

    /// Whether a client may go on to use its leases.
    pub(super) fn may_renew(&self, client: Client) -> bool {
        match self.clients().get_mut(&client) {
            Some(joined) => joined.heard_at = Instant::now(),
            None => return false, // it has been given up, and has not heard of it
        }
        let now = self.now();
        self.leases().may_renew(now, client) && lock(&self.pages).may_renew(now, client)
    }

    /// Files are about to be changed, until the returned is dropped. It is not to be done before that
    /// [is ready](Change::is_ready).
    pub(super) fn change(
        self: &Arc<Self>,
        client: Client,
        files: impl IntoIterator<Item = FileId>,
    ) -> Change {
        let (id, breaks) = self.leases().begin_change(self.now(), client, files);
        self.send(breaks);
        Change { coherence: Arc::clone(self), id }
    }

    /// A client is to see what is in these files, until the returned is dropped; not before that is ready. `None`: it can
    /// at once.
    pub(super) fn access(self: &Arc<Self>, client: Client, files: &[FileId]) -> Option<Change> {
        let (id, breaks) = {
            let mut leases = self.leases();
            if !leases.is_behind(client, files) {
                return None;
            }
            leases.begin_access(self.now(), client, files.iter().copied())
        };
        self.send(breaks);
        Some(Change { coherence: Arc::clone(self), id })
    }

    /// Whether any client may know more of some file than is in it.
    pub(super) fn has_exclusive(&self) -> bool {
        self.leases().has_exclusive()
    }

    /// As [`Leases::progress`].
    pub(super) fn progress(&self, client: Client) {
        let now = self.now();
        self.leases().progress(now, client);
        lock(&self.pages).progress(now, client);
    }

    /// As [`Leases::make_exclusive`]. Who writes without telling changes nobody's pages.
    pub(super) fn make_exclusive(&self, client: Client, file: FileId) -> Option<Serial> {
        // Whoever is about to keep pages has begun an access first.
        let mut leases = self.leases();
        if lock(&self.pages).others_keep(client, file) {
            return None;
        }
        leases.make_exclusive(self.now(), client, file)
    }

    /// A client is to know alone what names a directory has, from a change of them on, and until another looks: another client, or a
    /// program here that opens something in it. `None`: it cannot.
    pub(super) fn keep_exclusive(&self, client: Client, dir: FileId, fd: &OwnedFd) -> Option<Serial> {
        // Nothing that is opened from here on may miss the lease, nor the lease what is opened.
        let mut leases = self.leases();
        let is_watched = self.watch.as_ref().is_some_and(|watch| watch.add_opens(dir, fd.as_fd()));
        if is_watched { leases.keep_exclusive(self.now(), client, dir) } else { None }
    }

    /// A client's kernel is to keep pages of a file: the lease's number, or 0 where it is giving back what it has.
    pub(super) async fn map(self: &Arc<Self>, client: Client, file: FileId, alone: bool) -> Serial {
        let (id, breaks) = self.leases().begin_access(self.now(), client, [file]);
        let access = Change { coherence: Arc::clone(self), id };
        self.send(breaks);
        access.ready().await;
        let what = if alone { Use::MapAlone } else { Use::Map };
        let using = self.begin_use(client, file, what);
        match using.may_go().await {
            Verdict::Go(serial) => serial,
            Verdict::Returning | Verdict::Wait => 0,
        }
    }

    /// A client is to see a file's bytes, or to change them, until the returned is dropped: waits until no pages are in the
    /// way.
    pub(super) async fn use_bytes(
        self: &Arc<Self>,
        client: Client,
        file: FileId,
        what: Use,
    ) -> Option<Using> {
        if what == Use::Look && self.has_no_pages(file) {
            return None;
        }
        let using = self.begin_use(client, file, what);
        using.may_go().await;
        Some(using)
    }

    /// Whether nobody's kernel keeps pages of a file, or wants to.
    pub(super) fn has_no_pages(&self, file: FileId) -> bool {
        lock(&self.pages).is_unused(file)
    }

    /// The same of a change that cannot wait; `None`: it would have to.
    pub(super) fn change_bytes(self: &Arc<Self>, client: Client, file: FileId) -> Option<Using> {
        let using = self.begin_use(client, file, Use::Change);
        matches!(using.asked(), Verdict::Go(_)).then_some(using)
    }

    fn begin_use(self: &Arc<Self>, client: Client, file: FileId, what: Use) -> Using {
        let id = lock(&self.pages).begin(client, file, what);
        Using { coherence: Arc::clone(self), id }
    }

    /// Files have been changed by others than clients.
    pub(super) fn noticed(self: &Arc<Self>, files: impl IntoIterator<Item = FileId>) {
        let (now, files) = (self.now(), files.into_iter().collect::<Vec<_>>());
        let breaks = self.leases().noticed(now, files.iter().copied());
        self.send(breaks);
        self.noticed_pages(files);
    }

    /// The same of their bytes alone.
    pub(super) fn noticed_pages(self: &Arc<Self>, files: impl IntoIterator<Item = FileId>) {
        let breaks = lock(&self.pages).noticed(self.now(), files);
        self.send_pages(breaks);
    }

    /// Does what may have to wait for disks.
    pub(super) fn in_background(&self, work: impl FnOnce() + Send + 'static) {
        self.runtime.spawn_blocking(work);
    }

    /// Tells clients to give leases up, each of all of its own in one message, and waits for the answers in tasks.
    fn send(self: &Arc<Self>, breaks: Vec<Break>) {
        self.send_each(
            breaks,
            |broken_leases| Notice { broken_leases, ..Notice::default() },
            Self::leave_lease,
        );
    }

    /// The same of pages.
    fn send_pages(self: &Arc<Self>, breaks: Vec<Break>) {
        self.send_each(
            breaks,
            |broken_pages| Notice { broken_pages, ..Notice::default() },
            Self::leave_pages,
        );
    }

    fn leave_lease(&self, Break { client, file, serial }: Break) {
        self.leases().released(client, file, serial);
    }

    fn leave_pages(&self, Break { client, file, serial }: Break) {
        lock(&self.pages).released(client, file, serial);
    }

    fn send_each(
        self: &Arc<Self>,
        breaks: Vec<Break>,
        notice: impl Fn(Vec<Grant>) -> Notice,
        leave: fn(&Self, Break),
    ) {
        let mut of_client = BTreeMap::<Client, Vec<Break>>::new();
        for broken in breaks {
            of_client.entry(broken.client).or_default().push(broken);
        }
        for (client, breaks) in of_client {
            let Some(Joined { session: Some(session), top, .. }) = self.clients().get(&client).cloned()
            else {
                continue;
            };
            for breaks in breaks.chunks(BREAKS_AT_ONCE) {
                let granted =
                    |broken: &Break| Grant { node: node_number(broken.file, top), serial: broken.serial };
                let notice = notice(breaks.iter().map(granted).collect());
                let (coherence, session, breaks) = (Arc::clone(self), session.clone(), breaks.to_vec());
                self.runtime.spawn(async move {
                    // If the session is over, it leaves anyway.
                    if session.request(notice.encode_to_vec().into()).await.is_ok() {
                        breaks.into_iter().for_each(|broken| leave(&coherence, broken));
                        coherence.tell_released();
                    }
                });
            }
        }
    }

    /// Somebody has wanted a lock that this client has.
    pub(super) fn wanted_of(&self, client: Client) {
        lock(&self.wanted_of).insert(client);
    }

    /// Clients that have locks which others want, and have not been heard of for as long as leases may last.
    fn silent_in_the_way(&self) -> Vec<Client> {
        let mut wanted = std::mem::take(&mut *lock(&self.wanted_of));
        wanted.extend(lock(&self.locks).waited_for());
        let clients = self.clients();
        let is_silent = |client: &Client| {
            clients.get(client).is_some_and(|joined| joined.heard_at.elapsed() > FENCE_AFTER)
        };
        wanted.into_iter().filter(is_silent).collect()
    }

    fn fence(self: &Arc<Self>) {
        let now = self.now();
        let mut late = self.leases().to_fence(now);
        late.extend(lock(&self.pages).to_fence(now));
        for client in late.into_iter().chain(self.silent_in_the_way()) {
            if self.grace.is_stopping() {
                return;
            }
            if !self.clients().contains_key(&client) {
                continue; // it has just ended
            }
            tracing::warn!("a client has not given up what another is to use: its session is ended");
            if let Some(session) = self.end(client) {
                self.runtime.spawn(session.close());
            }
        }
    }
}

/// Leases in one message: 30 bytes each.
const BREAKS_AT_ONCE: usize = 1500;

/// Files are being changed, or looked at, as long as this lives.
#[derive(Debug)]
pub(super) struct Change {
    coherence: Arc<Coherence>,
    id: ChangeId,
}

impl Change {
    /// Whether nobody's lease is in the way.
    pub(super) fn is_ready(&self) -> bool {
        self.coherence.leases().is_ready(self.id)
    }

    /// Waits until it is.
    pub(super) async fn ready(&self) {
        let mut released = self.coherence.released.subscribe();
        // The sender lives in `self`.
        let _ = released.wait_for(|_| self.is_ready()).await;
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let frees = self.coherence.leases().end_change(self.id);
        if frees {
            self.coherence.tell_released();
        }
    }
}

/// Bytes of a file are being used, or are about to be, as long as this lives.
#[derive(Debug)]
pub(super) struct Using {
    coherence: Arc<Coherence>,
    id: UseId,
}

impl Using {
    /// Whether they may be; who is in the way is told.
    fn asked(&self) -> Verdict {
        let (verdict, breaks) = lock(&self.coherence.pages).may_go(self.coherence.now(), self.id);
        if !breaks.is_empty() {
            self.coherence.send_pages(breaks);
            self.coherence.tell_released(); // who is told to give back what he waits for more of
        }
        verdict
    }

    /// Waits until they may be.
    async fn may_go(&self) -> Verdict {
        let mut released = self.coherence.released.subscribe();
        let mut has_waited = false;
        loop {
            released.borrow_and_update();
            match self.asked() {
                Verdict::Wait => {
                    has_waited = true;
                    let _ = released.changed().await; // the sender lives in `self`
                }
                verdict => {
                    if has_waited {
                        self.coherence.tell_released(); // those who came later have let it go first
                    }
                    return verdict;
                }
            }
        }
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        let frees = lock(&self.coherence.pages).end(self.id);
        if frees {
            self.coherence.tell_released();
        }
    }
}
