//! The packet driver: takes packets from two hosts, asks the link model, and lets them go when they are due.
//!
//! One thread for both directions: it sleeps until a packet comes or one is due. Where packets are meanwhile is the
//! engine's affair:
//!
//! | engine | packets are | for |
//! | --- | --- | --- |
//! | [`split`] | in our memory, read from and written to TUN devices | links where single segments of a big packet are lost or harmed |
//! | [`held`] | in the kernel, which waits for a verdict (NFQUEUE) | fast links without such effects: payload is never copied |

pub mod held;
pub mod split;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::dice::Dice;
use crate::limits::{QUANTA_PER_DELAY, QUANTUM_MAX, QUANTUM_MIN_NS};
use crate::link::{Link, LinkConfig, LinkPair, Nanos, Run};
use crate::processors::Processors;
use crate::report::{DirectionReport, Lateness, Report};

/// Where packets are while they are on their way.
pub trait Engine {
    /// What names a packet on its way.
    type Packet: Copy + Debug + Send;

    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Takes a batch of packets that `side` sends (0: near), offers them to the direction's link, and puts them among
    /// those that wait. True when more may be there.
    fn take(&mut self, side: usize, clock: &Clock, direction: &mut Direction<Self::Packet>) -> bool;

    /// Lets a run of segments of a packet that `side` has sent go on to the other host; false when that fails.
    fn deliver(&mut self, side: usize, packet: Self::Packet, run: &Run) -> bool;

    /// Ends a batch of deliveries; false when one of them has failed.
    fn flush(&mut self, side: usize) -> bool;

    /// The link has changed.
    fn set(&mut self, side: usize, config: &LinkConfig);

    /// What becomes readable when a host has sent something.
    fn sources(&self) -> [BorrowedFd<'_>; 2];
}

/// Time since the driver began.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Nanoseconds since then.
    #[must_use]
    pub fn now(&self) -> Nanos {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What the driver is asked while it runs.
#[derive(Debug)]
enum Request {
    Set(Box<LinkPair>),
    Report(Sender<Report>),
    Stop,
}

/// The way to a running driver.
#[derive(Clone, Debug)]
pub struct DriverHandle {
    requests: Sender<Request>,
    wake: std::sync::Arc<OwnedFd>,
}

/// The driver has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the packet driver has ended")]
pub struct DriverGone;

impl DriverHandle {
    /// Changes the link; packets on their way keep their times.
    ///
    /// # Errors
    /// [`DriverGone`].
    pub fn set(&self, link: LinkPair) -> Result<(), DriverGone> {
        self.send(Request::Set(Box::new(link)))
    }

    /// What has happened so far.
    ///
    /// # Errors
    /// [`DriverGone`].
    pub fn report(&self) -> Result<Report, DriverGone> {
        let (reply, answer) = channel();
        self.send(Request::Report(reply))?;
        answer.recv().map_err(|_| DriverGone)
    }

    /// Ends the driver.
    pub fn stop(&self) {
        let _ = self.send(Request::Stop); // already gone is stopped
    }

    fn send(&self, request: Request) -> Result<(), DriverGone> {
        self.requests.send(request).map_err(|_| DriverGone)?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).map_err(|_| DriverGone)?;
        Ok(())
    }
}

/// A run of segments that waits for its time.
#[derive(Debug)]
pub struct Waiting<P> {
    run: Run,
    packet: P,
}

/// One direction: the link, and what is on its way.
#[derive(Debug)]
pub struct Direction<P> {
    link: Link,
    waiting: VecDeque<Waiting<P>>,
    lateness_us: Histogram<u64>,
    /// Packets dropped for want of room, or refused by the kernel.
    own_drops: u64,
    /// Packets of many segments that were dropped whole although a real queue would have taken a part.
    coarse_drops: u64,
    runs: Vec<Run>,
}

impl<P> Direction<P> {
    fn new(link: Link) -> Self {
        Self {
            link,
            waiting: VecDeque::new(),
            lateness_us: new_histogram(),
            own_drops: 0,
            coarse_drops: 0,
            runs: Vec::new(),
        }
    }

    /// Puts a run among those that wait: at the end, unless it overtakes some.
    fn wait(&mut self, run: Run, packet: P) {
        let at = match self.waiting.back() {
            Some(last) if last.run.deliver_at > run.deliver_at => {
                self.waiting.partition_point(|waiting| waiting.run.deliver_at <= run.deliver_at)
            }
            _ => self.waiting.len(),
        };
        self.waiting.insert(at, Waiting { run, packet });
    }
}

/// The driver of two hosts.
#[derive(Debug)]
pub struct Driver<E: Engine> {
    engine: E,
    directions: [Direction<E::Packet>; 2],
    requests: Receiver<Request>,
    wake: std::sync::Arc<OwnedFd>,
    clock: Clock,
    processors: Option<Processors>,
    realtime: bool,
}

impl<E: Engine> Driver<E> {
    /// A driver between the hosts of `engine`, and the way to speak to it once it runs.
    ///
    /// # Errors
    /// When the kernel has no event descriptor left.
    pub fn new(engine: E, link: LinkPair, seed: u64) -> io::Result<(Self, DriverHandle)> {
        let wake =
            std::sync::Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (requests, inbox) = channel();
        let direction = |config, number| Direction::new(Link::new(config, Dice::new(seed, number)));
        let driver = Self {
            engine,
            directions: [direction(link.forward, 0), direction(link.backward, 1)],
            requests: inbox,
            wake: std::sync::Arc::clone(&wake),
            clock: Clock(Instant::now()),
            processors: Processors::now(),
            realtime: false,
        };
        Ok((driver, DriverHandle { requests, wake }))
    }

    /// Carries packets until told to stop, or until nobody is left to tell.
    ///
    /// # Errors
    /// When the kernel refuses to wait on the devices.
    pub fn run(mut self) -> io::Result<()> {
        self.realtime = realtime::raise_priority();
        // The default slack of 50 us would be added to every delivery.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let mut woke_at = 0;
        loop {
            let mut more = false;
            for side in 0..2 {
                more |= self.engine.take(side, &self.clock, &mut self.directions[side]);
                self.deliver_due(side);
            }
            if more {
                continue;
            }
            self.rest(woke_at);
            let asked = self.sleep()?;
            woke_at = self.clock.now();
            if asked && !self.answer_requests() {
                return Ok(());
            }
        }
    }

    fn deliver_due(&mut self, side: usize) {
        let now = self.clock.now();
        let direction = &mut self.directions[side];
        let mut any = false;
        while direction.waiting.front().is_some_and(|w| w.run.deliver_at <= now) {
            let Some(Waiting { run, packet }) = direction.waiting.pop_front() else { break };
            direction.lateness_us.saturating_record((now - run.deliver_at) / 1000);
            direction.own_drops += u64::from(!self.engine.deliver(side, packet, &run));
            any = true;
        }
        if any {
            direction.own_drops += u64::from(!self.engine.flush(side));
        }
    }

    /// On a long link, lets packets gather until the next quantum after `woke_at`: a wake for each takes the CPU from the
    /// hosts, and this much later nobody can tell.
    fn rest(&self, woke_at: Nanos) {
        let shortest = self.directions.iter().map(|d| d.link.config().delay).min().unwrap_or_default();
        let quantum = (shortest / QUANTA_PER_DELAY).min(QUANTUM_MAX);
        let next = woke_at.saturating_add(u64::try_from(quantum.as_nanos()).unwrap_or(u64::MAX));
        let left = next.saturating_sub(self.clock.now());
        if left > QUANTUM_MIN_NS {
            std::thread::sleep(Duration::from_nanos(left));
        }
    }

    /// Sleeps until a packet comes, one is due, or there is a request (then true).
    fn sleep(&self) -> io::Result<bool> {
        let due = self.directions.iter().filter_map(|d| d.waiting.front()).map(|w| w.run.deliver_at).min();
        let timeout = due.map(|due| due.saturating_sub(self.clock.now()));
        if timeout == Some(0) {
            return Ok(false);
        }
        let timeout = timeout
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        let sources = self.engine.sources();
        let mut fds = [
            PollFd::new(&sources[0], PollFlags::IN),
            PollFd::new(&sources[1], PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => Ok(!fds[2].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// False when the driver shall end.
    fn answer_requests(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count); // would-block: another turn took it
        loop {
            match self.requests.try_recv() {
                Ok(Request::Set(link)) => {
                    for (side, config) in [link.forward, link.backward].into_iter().enumerate() {
                        self.engine.set(side, &config);
                        self.directions[side].link.set(config);
                    }
                }
                Ok(Request::Report(reply)) => drop(reply.send(self.report())), // the asker may have gone
                Ok(Request::Stop) | Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
            }
        }
    }

    fn report(&self) -> Report {
        let now = self.clock.now();
        let [forward, backward] = [0, 1].map(|side| {
            let d = &self.directions[side];
            DirectionReport {
                config: d.link.config().clone(),
                counters: d.link.counters(),
                queue_bytes: d.link.queued_bytes(now),
                lateness: Lateness::of(&d.lateness_us),
                own_drops: d.own_drops,
                coarse_drops: d.coarse_drops,
            }
        });
        let stolen = self.processors.and_then(Processors::stolen);
        Report::new(self.engine.name(), self.realtime, stolen, forward, backward)
    }
}

fn new_histogram() -> Histogram<u64> {
    // 1 us to 1 h, two digits: 13 KiB. The bounds are constants within the crate's rules.
    Histogram::new_with_bounds(1, Duration::from_secs(3600).as_micros() as u64, 2).expect("constant bounds")
}

mod realtime {
    #![allow(unsafe_code)] // sched_setscheduler has no safe wrapper

    /// Asks for the lowest real-time priority; false where this user may not have it.
    pub(super) fn raise_priority() -> bool {
        let parameters = libc::sched_param { sched_priority: 1 };
        // SAFETY: a plain system call on this thread with a valid pointer.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
    }
}
