//! The threads that move bytes between lanes and the application.
//!
//! A mover owns some of a session's lanes and waits for their sockets (epoll, edge-triggered). For a lane that can be
//! read it opens frames and hands them to the application; for a lane that has room it takes the next piece from the
//! scheduler and seals it. Disk reads and writes happen here, on this thread: bytes go from the cache they were
//! opened in to their place without a hand-over.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll};

use crate::lane::buffer::{Inbox, WireError};
use crate::lane::connection::{Lane, Opening, Turn};
use crate::lane::frame::LANE_NUMBER_MAX;
use crate::scheduler::{Extent, LaneId, Nanos, QueueFull, Scheduler};
use crate::secure::Keys;

/// The application's side of the data lanes; as it stands, that of an application whose sessions carry none. Called on the movers' threads, several at a time; may wait for a disk,
/// not for the network.
pub trait Pieces: Send + Sync + 'static {
    /// Sending: so many bytes of `object` from `offset` on, where they are in memory and stay as they are. They are sealed from there; others
    /// are asked for by [`fill`](Self::fill).
    fn lend(&self, _object: u64, _offset: u64, _length: usize) -> Option<Bytes> {
        None
    }

    /// Sending: fills `into` with the bytes of `object` from `offset` on.
    ///
    /// # Errors
    /// [`Withdrawn`]: the bytes cannot be had any more; the rest of the piece is not sent.
    fn fill(&self, _object: u64, _offset: u64, _into: &mut [IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        Err(Withdrawn)
    }

    /// Sending: the peer has stored these bytes. Once for each byte.
    fn delivered(&self, _extent: Extent) {}

    /// Sending: the peer, or [`fill`](Self::fill), has given these bytes up. Not for bytes delivered.
    fn declined(&self, _extent: Extent) {}

    /// Receiving: stores bytes that have proved whole, with their CRC-64/NVME. `data` begins at a page boundary in
    /// memory. The same bytes may come twice.
    fn store(&self, _object: u64, _offset: u64, _data: &[u8], _checksum: u64) -> Stored {
        Stored::Unwanted
    }

    /// Called first on each thread that calls the others: the place to take on a user's rights.
    fn enter_thread(&self) {}
}

/// See [`Pieces::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawn;

/// What became of bytes given to [`Pieces::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// They are where they belong.
    Kept,
    /// They, and the rest of their object, are not wanted any more.
    Unwanted,
}

/// Why a lane ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneEnd {
    /// The peer closed it in order.
    #[error("closed by the peer")]
    Goodbye,
    /// The connection broke.
    #[error("connection lost")]
    Io(#[from] io::Error),
    /// The bytes that came cannot be right.
    #[error("bad bytes from the peer: {0}")]
    BadBytes(String),
    /// A frame of another epoch of the session: it is not applied.
    #[error("it belongs to an earlier epoch of the session")]
    Stale,
    /// A frame that does not belong there.
    #[error("unexpected frame from the peer")]
    Unexpected,
    /// The peer sends pieces and does not read what became of them.
    #[error("the peer does not read that its pieces have come")]
    Unread,
    /// The thread that moved it has failed.
    #[error("this side has failed")]
    Failed,
}

impl From<WireError> for LaneEnd {
    fn from(error: WireError) -> Self {
        Self::BadBytes(error.to_string())
    }
}

/// Totals of a session, in bytes of payload.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Put on lanes, repeated pieces included.
    pub sent: AtomicU64,
    /// Taken from lanes.
    pub received: AtomicU64,
    /// Returned to the queue because their lane was lost.
    pub returned: AtomicU64,
    /// Nanoseconds movers spent in [`Pieces::fill`].
    pub fill_ns: AtomicU64,
    /// Nanoseconds movers spent in [`Pieces::store`].
    pub store_ns: AtomicU64,
}

/// What others may know of a lane.
#[derive(Debug)]
pub(crate) struct LaneStatus {
    /// Its number.
    pub id: LaneId,
    /// Its socket.
    pub tcp: TcpStream,
    /// It takes no more pieces, and closes when it is idle.
    pub draining: AtomicBool,
    /// Bytes of frames received and not yet handled: 0 while the application keeps up.
    pub inbox_bytes: AtomicU64,
}

/// What the movers tell the session.
#[derive(Debug)]
pub(crate) enum LaneNews {
    /// The server has welcomed the lane: it is part of the session.
    Welcomed(LaneId),
    /// The lane is no more, and why.
    Lost(LaneId, LaneEnd),
    /// A mover has failed, in words: the session cannot go on.
    Failed(String),
}

/// What all movers of a session share.
pub struct Lanes {
    scheduler: Mutex<Scheduler>,
    pub(super) queue_has_room: tokio::sync::Notify,
    pushed: tokio::sync::Notify,
    pub(super) pieces: Arc<dyn Pieces>,
    status: Mutex<BTreeMap<LaneId, Arc<LaneStatus>>>,
    news: tokio::sync::mpsc::UnboundedSender<LaneNews>,
    epoch: AtomicU16,
    origin: Instant,
    /// Totals.
    pub traffic: Traffic,
    movers: Vec<MoverHandle>,
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lanes").field("status", &self.status).finish_non_exhaustive()
    }
}

struct MoverHandle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    /// Some of its lanes have room and found no work.
    hungry: Arc<AtomicBool>,
    lanes: Arc<AtomicU64>,
}

impl MoverHandle {
    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes()); // full means it is awake
    }
}

enum Command {
    Add(Box<Lane>),
    /// End every lane, in order.
    Stop,
}

impl Lanes {
    /// Starts `movers` threads without lanes, and gives the place where they tell their news.
    ///
    /// # Errors
    /// When the kernel has no descriptor or thread left.
    pub(crate) fn start(
        movers: usize,
        piece_bytes_max: u32,
        pieces: Arc<dyn Pieces>,
    ) -> io::Result<(Arc<Self>, tokio::sync::mpsc::UnboundedReceiver<LaneNews>)> {
        // Two messages for each lane, of which LANES_MAX are open at a time; the session does little but read them,
        // and a mover must not wait.
        let (news, told) = tokio::sync::mpsc::unbounded_channel();
        let mut handles = Vec::new();
        let mut starts = Vec::new();
        for _ in 0..movers.max(1) {
            let (commands, inbox) = channel();
            let wake = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&poll, &*wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
            let handle = MoverHandle {
                commands,
                wake: Arc::clone(&wake),
                hungry: Arc::default(),
                lanes: Arc::default(),
            };
            starts.push((inbox, wake, poll, Arc::clone(&handle.hungry), Arc::clone(&handle.lanes)));
            handles.push(handle);
        }
        let lanes = Arc::new(Self {
            scheduler: Mutex::new(Scheduler::new(piece_bytes_max)),
            queue_has_room: tokio::sync::Notify::new(),
            pushed: tokio::sync::Notify::new(),
            pieces,
            status: Mutex::default(),
            news,
            epoch: AtomicU16::new(0),
            origin: Instant::now(),
            traffic: Traffic::default(),
            movers: handles,
        });
        for (commands, wake, poll, hungry, count) in starts {
            let mover = Mover {
                shared: Arc::clone(&lanes),
                commands,
                wake,
                poll,
                hungry,
                count,
                lanes: BTreeMap::new(),
                ready: VecDeque::new(),
            };
            let thread = std::thread::Builder::new().name("mover".into()).spawn(move || mover.live());
            if let Err(error) = thread {
                lanes.stop(); // those that have started
                return Err(error);
            }
        }
        Ok((lanes, told))
    }

    /// Nanoseconds since the session began.
    #[must_use]
    pub fn now(&self) -> Nanos {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The scheduler; hold the guard briefly.
    pub(crate) fn scheduler(&self) -> MutexGuard<'_, Scheduler> {
        // Its methods do not panic between changes; a poisoned lock holds a whole state.
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an extent to be sent; waits while the queue is full.
    pub async fn push(&self, extent: Extent) {
        self.queue(Scheduler::push, extent).await;
    }

    /// Likewise, before what waits at the end of objects with higher numbers ([`Scheduler::push_in_turn`]).
    pub async fn push_in_turn(&self, extent: Extent) {
        self.queue(Scheduler::push_in_turn, extent).await;
    }

    async fn queue(&self, push: fn(&mut Scheduler, Extent) -> Result<(), QueueFull>, extent: Extent) {
        loop {
            let room = self.queue_has_room.notified();
            let pushed = push(&mut self.scheduler(), extent);
            match pushed {
                Ok(()) => {
                    self.pushed.notify_one();
                    return self.kick();
                }
                Err(QueueFull) => room.await,
            }
        }
    }

    /// Waits until something has been pushed since the last call.
    pub(crate) async fn until_busy(&self) {
        self.pushed.notified().await;
    }

    /// Gives up what waits to be sent of an object.
    pub fn cancel(&self, object: u64) {
        self.scheduler().cancel(object);
        self.queue_has_room.notify_waiters();
    }

    /// Wakes movers that have lanes with room and had no work for them.
    pub(crate) fn kick(&self) {
        for mover in &self.movers {
            if mover.hungry.swap(false, Ordering::SeqCst) {
                mover.wake();
            }
        }
    }

    /// The lanes that are open now.
    #[must_use]
    pub(crate) fn status(&self) -> Vec<Arc<LaneStatus>> {
        self.lock_status().values().cloned().collect()
    }

    fn lock_status(&self) -> MutexGuard<'_, BTreeMap<LaneId, Arc<LaneStatus>>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of open lanes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock_status().len()
    }

    /// The session's epoch.
    pub(crate) fn epoch(&self) -> u16 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Enters a new epoch: lanes of the old one are cut off, and what they carried is sent again.
    pub(crate) fn enter_epoch(&self, epoch: u16) {
        self.epoch.store(epoch, Ordering::SeqCst);
        for lane in self.status() {
            let _ = lane.tcp.shutdown(std::net::Shutdown::Both); // its mover sees the end
        }
    }

    /// Hands a lane over to the mover with the fewest.
    pub(crate) fn add(&self, tcp: TcpStream, keys: Keys, inbox: Inbox, opening: Opening) -> io::Result<()> {
        let lane = Box::new(Lane::open(tcp, keys, inbox, opening, self.epoch())?);
        let (id, status) = (lane.id, Arc::clone(&lane.status));
        self.lock_status().insert(id, status);
        self.scheduler().add_lane(id);
        let Some(mover) = self.movers.iter().min_by_key(|m| m.lanes.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        mover.lanes.fetch_add(1, Ordering::Relaxed);
        // A mover lives until it is told to stop, after which no lane is added.
        let _ = mover.commands.send(Command::Add(lane));
        mover.wake();
        Ok(())
    }

    /// Ends all lanes in order, and the threads.
    pub(crate) fn stop(&self) {
        for mover in &self.movers {
            let _ = mover.commands.send(Command::Stop); // stopped already
            mover.wake();
        }
    }

    fn lane_ended(&self, id: LaneId, end: LaneEnd) {
        self.lock_status().remove(&id);
        let bytes = self.scheduler().on_lane_lost(id);
        self.traffic.returned.fetch_add(bytes, Ordering::Relaxed);
        self.tell(LaneNews::Lost(id, end));
        self.kick();
    }

    pub(super) fn tell(&self, news: LaneNews) {
        let _ = self.news.send(news); // nobody listens any more when the session has ended
    }
}

/// The token of the wake-up descriptor, which no lane has for its number.
const WAKE: u64 = LANE_NUMBER_MAX + 1;

struct Mover {
    shared: Arc<Lanes>,
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    poll: OwnedFd,
    hungry: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    lanes: BTreeMap<LaneId, Box<Lane>>,
    ready: VecDeque<LaneId>,
}

impl Mover {
    /// Runs until it is told to stop. A failure of its own, or of the application on its thread, ends the session.
    fn live(mut self) {
        let ran = catch_unwind(AssertUnwindSafe(|| self.run()));
        if let Err(reason) = ran.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
            tracing::error!(reason, "a thread that moves bytes has failed: its session ends");
            self.shared.tell(LaneNews::Failed(reason));
            self.end_all(|| LaneEnd::Failed);
        }
    }

    fn run(&mut self) -> Result<(), String> {
        self.shared.pieces.enter_thread();
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = if self.ready.is_empty() { None } else { Some(&NOW) };
            events.clear();
            match epoll::wait(&self.poll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(format!("cannot wait for sockets: {error}")),
            }
            for event in &events {
                if event.data.u64() == WAKE {
                    if !self.obey() {
                        self.end_all(|| LaneEnd::Goodbye);
                        return Ok(());
                    }
                    self.enqueue_hungry();
                } else {
                    self.note(event.data.u64(), event.flags);
                }
            }
            // One turn for each lane that is ready now; those that want more come round again.
            for _ in 0..self.ready.len() {
                let Some(id) = self.ready.pop_front() else { break };
                self.take_turn(id);
            }
        }
    }

    fn note(&mut self, id: LaneId, flags: epoll::EventFlags) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        lane.readable |= broken || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP);
        lane.writable |= broken || flags.contains(epoll::EventFlags::OUT);
        self.enqueue(id);
    }

    fn enqueue(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && !lane.queued
        {
            lane.queued = true;
            self.ready.push_back(id);
        }
    }

    fn enqueue_hungry(&mut self) {
        let hungry: Vec<LaneId> = self.lanes.values().filter(|l| l.hungry).map(|l| l.id).collect();
        hungry.into_iter().for_each(|id| self.enqueue(id));
    }

    fn take_turn(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.queued = false;
        match lane.turn(&self.shared) {
            Ok(Turn::More) => self.enqueue(id),
            Ok(Turn::Wait) => {
                // Work pushed before the flag was seen would wake nobody: look once more.
                if lane.hungry && !self.hungry.swap(true, Ordering::SeqCst) {
                    let work = {
                        let scheduler = self.shared.scheduler();
                        scheduler.waiting_bytes() > 0
                    };
                    if work {
                        self.enqueue(id);
                    }
                }
            }
            Err(end) => self.end(id, end),
        }
    }

    fn end(&mut self, id: LaneId, end: LaneEnd) {
        let Some(mut lane) = self.lanes.remove(&id) else { return };
        if matches!(end, LaneEnd::Goodbye) {
            lane.say_goodbye();
        }
        drop(lane); // closing the socket takes it out of epoll
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.shared.lane_ended(id, end);
    }

    /// Carries out what it was told; false when that was to stop.
    fn obey(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        loop {
            match self.commands.try_recv() {
                Ok(Command::Add(lane)) => self.add(lane),
                Ok(Command::Stop) | Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
            }
        }
    }

    fn add(&mut self, lane: Box<Lane>) {
        use epoll::EventFlags as E;
        let id = lane.id;
        let flags = E::IN | E::OUT | E::RDHUP | E::ET;
        let added = epoll::add(&self.poll, &lane.tcp, epoll::EventData::new_u64(id), flags);
        self.lanes.insert(id, lane);
        match added {
            Ok(()) => self.enqueue(id),
            Err(error) => self.end(id, LaneEnd::Io(error.into())),
        }
    }

    fn end_all(&mut self, reason: impl Fn() -> LaneEnd) {
        while let Some(&id) = self.lanes.keys().next() {
            self.end(id, reason());
        }
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it does not say why").to_owned()
}

const NOW: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };

#[cfg(test)]
pub(crate) mod tests;
