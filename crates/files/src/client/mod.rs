//! The client's end of a session about files: one call for each operation. What is known under a lease is answered
//! without asking.

mod behind;
mod cache;
#[cfg(test)]
mod fake;
mod fetch;
mod jumps;
mod listing;
mod locking;
mod memory;
mod metrics;
mod names;
mod open_files;
mod pages;
mod reading;
mod resume;
mod slots;
mod spares;
mod sweep;
mod transfers;
mod writing;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul_transport::identity::IdRange;
use longhaul_transport::session::RequestError;
use longhaul_transport::{Extent, Handler, Pieces, Session, Stored};
use prost::Message;
use rustix::io::Errno;
use tokio::sync::{Notify, Semaphore, watch};

use crate::limits::{JUMPS_SHARE, LEASE_TERM, ORDINARY_REQUESTS_MAX, RENEW_EVERY, WHOLE_FILES_COMING_MAX};
use crate::message::{
    Ask, Attached, Caller, Forget, Forgotten, Grant, Notice, OUT_OF_ORDER, Operation, Order, Renew, Reply,
    SESSION_OVER, Slot, Statistics, Tells,
};
use behind::{Ahead, Behind};
use cache::{Cache, Nanos, OwnChange, PartsUnderWay, Turn};
use fetch::Coming;
use listing::Walk;
use locking::Locking;
pub use locking::{LockHeld, LockRange};
pub use memory::Buffer;
use memory::Memory;
use metrics::Metrics;
pub use names::{Change, SetTime};
use open_files::OpenFile;
pub use open_files::only_reads;
pub use pages::PageCache;
use pages::Pages;
use resume::Present;
pub use resume::Reconnect;
use slots::{Slots, TakenSlot};
use spares::{Spare, Spares};
use sweep::Sweep;
use transfers::Transfers;
pub use writing::HowWritten;

/// The handler of a session about files, at the client: make it, connect with it, then [`Remote::attach`].
#[derive(Debug)]
pub struct FilesClient {
    timeout: Option<Duration>,
    memory: Arc<Memory>,
    transfers: Transfers,
    cache: Mutex<Cache>,
    behind: Behind,
    pages: Pages,
    spares: Spares,
    locking: Locking,
    /// Nodes are to be forgotten.
    forgets: Notify,
    /// Requests that may be under way at a time, but for vital ones.
    ordinary: Semaphore,
    /// Bytes for readers that jump.
    room_apart: Arc<Semaphore>,
    /// Messages of small files, and longer ones, that may be fetched ahead at a time.
    whole_turns: Semaphore,
    /// Requests that the server has been asked.
    asked: AtomicU64,
    metrics: Metrics,
    received_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    /// What has been attached with it.
    remote: OnceLock<Weak<Inner>>,
}

impl FilesClient {
    /// For one session that keeps at most `cache_bytes` of files, and of these at most half that have been written here
    /// and are not at the server. What the server has not answered after `timeout` has failed.
    #[must_use]
    pub fn new(cache_bytes: usize, timeout: Option<Duration>) -> Arc<Self> {
        let memory = Memory::new(cache_bytes);
        Arc::new(Self {
            timeout,
            transfers: Transfers::new(Arc::clone(&memory)),
            cache: Mutex::new(Cache::new(cache_bytes)),
            behind: Behind::new(cache_bytes / 2, Arc::clone(&memory)),
            pages: Pages::default(),
            spares: Spares::default(),
            locking: Locking::default(),
            forgets: Notify::new(),
            ordinary: Semaphore::new(ORDINARY_REQUESTS_MAX),
            whole_turns: Semaphore::new(WHOLE_FILES_COMING_MAX),
            room_apart: Arc::new(Semaphore::new((cache_bytes / JUMPS_SHARE).min(Semaphore::MAX_PERMITS))),
            asked: AtomicU64::new(0),
            metrics: Metrics::default(),
            received_bytes: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            remote: OnceLock::new(),
            memory,
        })
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.cache)
    }

    /// Tells the server what it need not know any more, if there is something.
    fn may_forget(&self, cache: MutexGuard<'_, Cache>) {
        if cache.has_forgotten() {
            self.forgets.notify_one();
        }
    }
}

/// Nanoseconds, also while the machine sleeps: a lease does not become longer by that.
fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as Nanos * 1_000_000_000 + time.tv_nsec as Nanos
}

impl Pieces for FilesClient {
    fn lend(&self, object: u64, offset: u64, length: usize) -> Option<Bytes> {
        self.transfers.lend(object, offset, length)
    }

    fn delivered(&self, extent: Extent) {
        self.transfers.settled(&extent, true);
    }

    fn declined(&self, extent: Extent) {
        self.transfers.settled(&extent, false);
    }

    fn store(&self, object: u64, offset: u64, data: &[u8], _checksum: u64) -> Stored {
        self.transfers.store(object, offset, data)
    }
}

impl Handler for FilesClient {
    fn request(
        self: Arc<Self>,
        _session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        Box::pin(async move {
            if let Ok(notice) = Notice::decode(body) {
                self.transfers.give_up(notice.broken_transfer);
                self.locking.granted(&notice.locked);
                {
                    let mut cache = self.cache();
                    notice.broken_leases.iter().for_each(|broken| cache.broken(*broken));
                    // Pages are not filled with what is known of before, though its lease may be broken by a later message.
                    for broken in &notice.broken_pages {
                        let change = OwnChange::of_bytes(broken.node, 0, u64::MAX);
                        cache.begin_change(&[change]);
                        cache.end_change(&[change]);
                    }
                    self.may_forget(cache);
                }
                if let Some(inner) = self.remote.get().and_then(Weak::upgrade) {
                    let remote = Remote { inner };
                    // A file that is open here alone is opened there as well before it may lose its name.
                    remote.open_all(&notice.broken_leases).await;
                    // What only this client knows it tells; from now on it keeps nothing to itself.
                    remote.flush_all(notice.broken_leases.iter().map(|broken| broken.node)).await;
                    let is_broken =
                        |spare: &Spare| notice.broken_leases.iter().any(|broken| spare.concerns(broken.node));
                    remote.tell_spares(is_broken).await;
                    remote.return_written(&notice.broken_leases).await;
                    remote.break_pages(notice.broken_pages).await;
                }
            }
            Bytes::new()
        })
    }
}

/// Who asks for something, where the server takes the client's word for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl From<User> for Caller {
    fn from(User { uid, gid }: User) -> Self {
        Self { uid, gid }
    }
}

/// Why there is nothing to use.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The server's own words.
    #[error("{0}")]
    Refused(String),
    /// The session.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The reply is none.
    #[error("the server answers, but not as one that serves files: it may be older")]
    Foreign,
}

/// The files of a server, from the directory on that the session is attached to. Clones are the same.
#[derive(Clone, Debug)]
pub struct Remote {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    present: watch::Sender<Present>,
    /// What all sessions are attached to.
    path: Bytes,
    /// By which the server knows this client again.
    mount: [u8; 16],
    /// The server's machine, as it was started last.
    boot: Mutex<String>,
    /// The directory that all is below, by a number that no other has.
    top: u64,
    /// Files that the server has stored something of, and not synced: how often.
    unsynced: Mutex<HashMap<u64, u64>>,
    /// What was written in sessions up to this number, and not told, is lost.
    forfeited: watch::Sender<u64>,
    /// Writes under way that others see at once.
    writing: watch::Sender<usize>,
    client: Arc<FilesClient>,
    read_only: bool,
    acts_for_all: bool,
    /// Of users, and of groups: what numbers those here have there.
    ids: [Vec<IdRange>; 2],
    user: User,
    runtime: tokio::runtime::Handle,
    files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    last_file: AtomicU64,
    /// Of requests that belong together.
    last_order: AtomicU64,
    slots: Slots,
    /// Blocks on their way: those who wait for one share it.
    coming: Mutex<HashMap<(u64, u64), Coming>>,
    walk: Mutex<Walk>,
    sweep: Mutex<Sweep>,
    /// Files on their way as a whole, likewise.
    whole_coming: Mutex<HashMap<u64, watch::Receiver<Option<()>>>>,
    /// Listings on their way, likewise.
    listings_coming: Mutex<HashMap<u64, watch::Receiver<Option<()>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// Attaches a session that was connected with `client` to a path of the server's: `export/path/below`. When it is over,
    /// the next is made by `reconnect`, if there is one.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn attach(
        session: Session,
        client: Arc<FilesClient>,
        path: &[u8],
        reconnect: Option<Arc<dyn Reconnect>>,
    ) -> Result<Self, AttachError> {
        let mut mount = [0; 16];
        let known = rustix::rand::getrandom(&mut mount, rustix::rand::GetRandomFlags::empty()).is_ok();
        let known_as: &[u8] = if known && reconnect.is_some() { &mount } else { &[] };
        let attached = resume::attach(&session, path, known_as).await?;
        let ids = attached.id_ranges();
        let Attached { read_only, acts_for_all, user: Caller { uid, gid }, boot, top, .. } = attached;
        let remote = Self {
            inner: Arc::new(Inner {
                present: watch::channel(Present::Up { session: session.clone(), number: 1, settled: true }).0,
                path: Bytes::copy_from_slice(path),
                mount,
                boot: Mutex::new(boot),
                top,
                unsynced: Mutex::default(),
                forfeited: watch::channel(0).0,
                writing: watch::channel(0).0,
                client,
                read_only,
                acts_for_all,
                ids,
                user: User { uid, gid },
                runtime: tokio::runtime::Handle::current(),
                files: Mutex::default(),
                last_file: AtomicU64::new(0),
                last_order: AtomicU64::new(0),
                slots: Slots::default(),
                coming: Mutex::default(),
                walk: Mutex::default(),
                sweep: Mutex::default(),
                whole_coming: Mutex::default(),
                listings_coming: Mutex::default(),
            }),
        };
        let _ = remote.inner.client.remote.set(Arc::downgrade(&remote.inner)); // attached twice: the server refuses
        tokio::spawn(Self::keep_session(Arc::downgrade(&remote.inner), session, reconnect));
        tokio::spawn(Self::keep_leases(Arc::downgrade(&remote.inner)));
        tokio::spawn(Self::keep_forgetting(Arc::downgrade(&remote.inner)));
        tokio::spawn(Memory::give_back(Arc::downgrade(&remote.inner.client.memory)));
        Ok(remote)
    }

    /// Asks for leave to go on using the leases, for ever.
    async fn keep_leases(remote: Weak<Inner>) {
        while let Some(inner) = remote.upgrade() {
            let mut present = inner.present.subscribe();
            let sent = now();
            let remote = Self { inner };
            if remote.vital_call(Renew {}).await.outcome.is_ok() {
                remote.inner.client.cache().renewed(sent, LEASE_TERM);
            }
            if matches!(*remote.inner.present.borrow(), Present::Over(_)) {
                return;
            }
            drop(remote);
            // In another session there are other leases.
            let _ = tokio::time::timeout(RENEW_EVERY, present.changed()).await;
        }
    }

    /// Tells the server what it need not know any more, many at a time.
    async fn keep_forgetting(remote: Weak<Inner>) {
        while let Some(inner) = remote.upgrade() {
            let remote = Self { inner };
            let client = Arc::clone(&remote.inner.client);
            let Some((session, _)) = remote.session(0).await else { return };
            let nodes = client.cache().take_forgotten(FORGOTTEN_AT_ONCE);
            if nodes.is_empty() {
                drop(remote);
                // The client lives as long as the session, which it ends.
                if tokio::time::timeout(FORGET_TICK, client.forgets.notified()).await.is_ok() {
                    tokio::time::sleep(FORGET_PAUSE).await;
                }
                continue;
            }
            let nodes = nodes.into_iter().map(|(node, times)| Forgotten { node, times }).collect();
            // In no other session than this: they count by session.
            let _ = resume::ask(&session, Forget { nodes }).await;
        }
    }

    /// Nothing may be changed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    /// The server acts with root's rights, and takes this end's word for who asks.
    #[must_use]
    pub fn acts_for_all(&self) -> bool {
        self.inner.acts_for_all
    }

    /// What numbers the users of this host have at a server that acts for all, and its groups; none: the same.
    #[must_use]
    pub fn id_ranges(&self) -> &[Vec<IdRange>; 2] {
        &self.inner.ids
    }

    /// The server's user whose rights all operations have.
    #[must_use]
    pub fn user(&self) -> User {
        self.inner.user
    }

    async fn call<O: Operation>(&self, operation: O) -> Answer<O::Outcome> {
        self.call_after(None, operation).await
    }

    /// As [`call`](Self::call); what has been sent ahead is carried out before it, and has been settled when this returns.
    async fn call_after<O: Operation>(&self, ahead: Option<Ahead>, operation: O) -> Answer<O::Outcome> {
        let _ordinary = self.inner.client.ordinary.acquire().await;
        let Some(ahead) = ahead else { return self.vital_call(operation).await };
        let mut answer = self.ordered_call(operation.clone(), Order::default(), Some(&ahead)).await;
        ahead.settled().await;
        // The answer came, and then the session ended before a part's own did: that has been stored once more, after what was asked.
        if ahead.arrived.session.load(Ordering::SeqCst) > answer.session {
            answer = self.vital_call(operation).await;
        }
        let node = ahead.node;
        drop(ahead);
        self.inner.client.behind.tidy(node);
        answer
    }

    /// As [`call`](Self::call), of what others may wait for: it finds room however much is being asked.
    async fn vital_call<O: Operation>(&self, operation: O) -> Answer<O::Outcome> {
        self.ordered_call(operation, Order::default(), None).await
    }

    /// `order`, unless it is to be carried out after something.
    async fn ordered_call<O: Operation>(
        &self,
        operation: O,
        order: Order,
        ahead: Option<&Ahead>,
    ) -> Answer<O::Outcome> {
        self.inner.client.asked.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let answer = self.in_time(self.answer::<O>(operation.ask(), order, ahead)).await;
        self.inner.client.metrics.add(O::NAME, begun.elapsed());
        let none = || Answer { outcome: Err(Errno::IO), grants: Vec::new(), session: u64::MAX };
        answer.ok().flatten().unwrap_or_else(none)
    }

    /// Asks, in the next session if this one is over; `None`: there is no other, or it cannot be asked.
    async fn answer<O: Operation>(
        &self,
        ask: Ask,
        order: Order,
        ahead: Option<&Ahead>,
    ) -> Option<Answer<O::Outcome>> {
        let changes = ask.changes();
        // What comes after others does so in each session: they may be carried out again.
        let taken = (changes && ahead.is_none()).then(|| self.inner.slots.take()).flatten();
        let mut slot = taken.as_ref().map_or_else(Slot::default, TakenSlot::slot);
        let boot = taken.as_ref().map(|_| lock(&self.inner.boot).clone());
        let mut after = 0;
        loop {
            let (session, number) = self.session(after).await?;
            if changes && after > 0 && self.is_forfeited(after) {
                return None;
            }
            slot.rebooted = slot.again && boot.as_ref() != Some(&*lock(&self.inner.boot));
            // What has been settled is not waited for: it may have been in another session.
            let ahead = ahead.filter(|ahead| !ahead.is_settled());
            let body = ask.clone().into_bytes(ahead.map_or(order, |ahead| ahead.order), slot);
            match session.request(body).await {
                Ok(reply) => match (Reply::read(reply), ahead) {
                    // The server has ended the session, and has not told yet.
                    ((Err(SESSION_OVER), _), _) => {}
                    ((Err(OUT_OF_ORDER), _), Some(ahead)) => {
                        ahead.settled().await;
                        continue;
                    }
                    // An open file that it does not know: it has been lost with a server, as its name had been before.
                    ((Err(Errno::BADF), grants), _) => {
                        return Some(Answer { outcome: Err(Errno::STALE), grants, session: number });
                    }
                    ((outcome, grants), _) => {
                        return Some(Answer { outcome, grants, session: number });
                    }
                },
                Err(RequestError::Ended(_)) => {}
                Err(error @ RequestError::TooLong(_)) => {
                    tracing::error!(%error);
                    return None;
                }
            }
            (after, slot.again) = (number, taken.is_some());
        }
    }

    /// The server has given this client up since then: what it was asked in this session, others may have gone on from.
    fn is_forfeited(&self, session: u64) -> bool {
        *self.inner.forfeited.borrow() >= session
    }

    /// Waits for something of the server's, not longer than its user wants to.
    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Result<T, Errno> {
        let Some(limit) = self.inner.client.timeout else { return Ok(answer.await) };
        tokio::time::timeout(limit, answer).await.map_err(|_| Errno::IO)
    }

    /// Asks, and keeps what may be kept of the answer.
    async fn learn<O: Operation>(
        &self,
        operation: O,
        keep: impl FnOnce(&mut Cache, Turn, &Result<O::Outcome, Errno>),
    ) -> Result<O::Outcome, Errno> {
        self.learn_after(None, operation, keep).await
    }

    /// The same, of what comes after something that has been sent ahead.
    async fn learn_after<O: Operation>(
        &self,
        ahead: Option<Ahead>,
        operation: O,
        keep: impl FnOnce(&mut Cache, Turn, &Result<O::Outcome, Errno>),
    ) -> Result<O::Outcome, Errno> {
        let asking = Asking::begin_after(&self.inner.client, ahead.as_ref().and_then(|ahead| ahead.parts));
        let Answer { outcome, grants, .. } = self.call_after(ahead, operation).await;
        let mut cache = self.inner.client.cache();
        outcome.iter().flat_map(Tells::told).for_each(|node| cache.told(node));
        cache.granted(asking.turn, &grants);
        keep(&mut cache, asking.turn, &outcome);
        drop(cache);
        outcome
    }

    /// Asks for a change of these; what is known of them is of no use from now on.
    async fn change<O: Operation>(
        &self,
        operation: O,
        changes: &[OwnChange<'_>],
        keep: impl FnOnce(&mut Cache, &O::Outcome),
    ) -> Result<O::Outcome, Errno> {
        self.change_after(None, operation, changes, keep).await
    }

    /// The same, after something that has been sent ahead.
    async fn change_after<O: Operation>(
        &self,
        ahead: Option<Ahead>,
        operation: O,
        changes: &[OwnChange<'_>],
        keep: impl FnOnce(&mut Cache, &O::Outcome),
    ) -> Result<O::Outcome, Errno> {
        let asking = Asking::begin(&self.inner.client);
        let changing = Changing::begin(&self.inner.client, changes);
        let answer = self.call_after(ahead, operation).await;
        self.changed(&asking, changing, answer, keep)
    }

    fn changed<T: Tells>(
        &self,
        asking: &Asking<'_>,
        changing: Changing<'_>,
        Answer { outcome, grants, .. }: Answer<T>,
        keep: impl FnOnce(&mut Cache, &T),
    ) -> Result<T, Errno> {
        let mut cache = changing.end();
        outcome.iter().flat_map(Tells::told).for_each(|node| cache.told(node));
        // What the leases are for will be asked for: what has been brought may be older than one's own change.
        cache.granted(asking.turn, &grants);
        if let Ok(outcome) = &outcome {
            keep(&mut cache, outcome);
        }
        self.inner.client.may_forget(cache);
        outcome
    }

    /// What has been done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let client = &self.inner.client;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cache = client.cache();
        let (known, kept_bytes, lease_ms) =
            (cache.hits, cache.bytes() as u64, cache.valid_for(now()) / 1_000_000);
        drop(cache);
        Statistics {
            operations: client.metrics.statistics(),
            asked: count(&client.asked),
            known,
            behind: count(&client.behind.taken),
            kernel_requests: 0,
            received_bytes: count(&client.received_bytes),
            stored_bytes: count(&client.stored_bytes),
            kept_bytes,
            unsent_bytes: client.behind.bytes() as u64,
            lease_ms,
        }
    }
}

/// What has come of a request.
struct Answer<T> {
    outcome: Result<T, Errno>,
    grants: Vec<Grant>,
    /// The number of the session in which it came.
    session: u64,
}

/// A question under way; it ends when its asker gives up waiting, too.
struct Asking<'a> {
    client: &'a FilesClient,
    turn: Turn,
}

impl<'a> Asking<'a> {
    fn begin(client: &'a FilesClient) -> Self {
        Self::begin_after(client, None)
    }

    fn begin_after(client: &'a FilesClient, parts: Option<PartsUnderWay>) -> Self {
        Self { client, turn: client.cache().begin_after(parts) }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.client.cache().end(self.turn);
    }
}

/// Changes of one's own under way, as above.
struct Changing<'a> {
    client: &'a FilesClient,
    changes: &'a [OwnChange<'a>],
    has_ended: bool,
}

impl<'a> Changing<'a> {
    fn begin(client: &'a FilesClient, changes: &'a [OwnChange<'a>]) -> Self {
        client.cache().begin_change(changes);
        Self { client, changes, has_ended: false }
    }

    /// It has been made: nothing comes between that and what is kept of it.
    fn end(mut self) -> MutexGuard<'a, Cache> {
        let mut cache = self.client.cache();
        cache.end_change(self.changes);
        self.has_ended = true;
        cache
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut cache = self.client.cache();
        cache.end_change(self.changes);
        self.client.may_forget(cache);
    }
}

/// In one message: 20 bytes each.
const FORGOTTEN_AT_ONCE: usize = 2048;

/// Others may follow.
const FORGET_PAUSE: Duration = Duration::from_millis(50);

/// How long a task outlives its session.
const FORGET_TICK: Duration = Duration::from_secs(5);
