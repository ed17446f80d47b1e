//! The packet driver: takes packets from two hosts, asks the link model, and lets them go when they are due.
//!
//! One thread for both directions: it sleeps until a packet comes or one is due. Where packets are meanwhile is the
//! engine's affair:
//!
//! | engine | packets are | for |
//! | --- | --- | --- |
//! | [`split`] | in our memory, read from and written to TUN devices | links where single segments of a big packet are lost or harmed |
//! | [`held`] | in the kernel, which waits for a verdict (NFQUEUE) | fast links without such effects: payload is never copied |

mod agenda;
mod direction;
pub(crate) mod held;
pub(crate) mod split;

use std::fmt::Debug;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::capture::Tap;
use crate::dice::Dice;
use crate::limits::{
    BREATH_EVERY_NS, BREATH_SHARE, IDLE_FROM_NS, QUANTA_PER_DELAY, QUANTUM_MAX, QUANTUM_MIN_NS,
    WAKES_LATE_MAX_NS,
};
use crate::link::{LinkPair, Nanos, Run};
use crate::processors::Processors;
use crate::report::Report;

pub(crate) use direction::Direction;
pub(crate) use direction::Treatment;

/// Where packets are while they are on their way.
pub(crate) trait Engine {
    /// What names a packet on its way.
    type Packet: Copy + Debug + PartialEq + Send;

    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Takes a batch of packets that `side` sends (0: near), offers them to the direction's link, and puts them among
    /// those that wait. True when more may be there.
    fn take(&mut self, side: usize, clock: &Clock, direction: &mut Direction<Self::Packet>) -> bool;

    /// Puts what the direction's links have decided among what waits.
    fn settle(&mut self, side: usize, now: Nanos, direction: &mut Direction<Self::Packet>);

    /// Lets a run of segments of a packet that `side` has sent go on to the other host, and records it; false when that
    /// fails.
    fn deliver(
        &mut self,
        side: usize,
        now: Nanos,
        packet: Self::Packet,
        run: &Run,
        tap: Option<&mut Tap>,
    ) -> bool;

    /// Ends a batch of deliveries; false when one of them has failed.
    fn flush(&mut self, side: usize) -> bool;

    /// The link has changed, and may hold so many bytes now.
    fn set(&mut self, side: usize, bytes_held_max: u64);

    /// Packets of `side` that the kernel has dropped before they could be taken.
    fn unread_drops(&self, side: usize) -> u64;

    /// What becomes readable when a host has sent something.
    fn sources(&self) -> [BorrowedFd<'_>; 2];
}

/// Time since the driver began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Instant,
    /// So long ago is now.
    behind: Nanos,
}

impl Clock {
    /// Nanoseconds since then.
    #[must_use]
    pub(crate) fn now(&self) -> Nanos {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_sub(self.behind)
    }

    /// The same, so much behind.
    fn behind(self, behind: Nanos) -> Self {
        Self { behind, ..self }
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
pub(crate) struct DriverHandle {
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
    pub(crate) fn set(&self, link: LinkPair) -> Result<(), DriverGone> {
        self.send(Request::Set(Box::new(link)))
    }

    /// What has happened so far.
    ///
    /// # Errors
    /// [`DriverGone`].
    pub(crate) fn report(&self) -> Result<Report, DriverGone> {
        let (reply, answer) = channel();
        self.send(Request::Report(reply))?;
        answer.recv().map_err(|_| DriverGone)
    }

    /// Ends the driver.
    pub(crate) fn stop(&self) {
        let _ = self.send(Request::Stop); // already gone is stopped
    }

    fn send(&self, request: Request) -> Result<(), DriverGone> {
        self.requests.send(request).map_err(|_| DriverGone)?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).map_err(|_| DriverGone)?;
        Ok(())
    }
}

/// The driver of two hosts.
#[derive(Debug)]
pub(crate) struct Driver<E: Engine> {
    engine: E,
    directions: [Direction<E::Packet>; 2],
    requests: Receiver<Request>,
    wake: std::sync::Arc<OwnedFd>,
    clock: Clock,
    processors: Option<Processors>,
    realtime: bool,
    ways: [String; 2],
    /// By how much an idle driver wakes later than it has asked for, as it was of late.
    wakes_late_ns: Nanos,
}

impl<E: Engine> Driver<E> {
    /// A driver between the hosts of `engine`, and the way to speak to it once it runs. Reports call the two directions
    /// `ways`.
    ///
    /// # Errors
    /// When the kernel has no event descriptor left.
    pub(crate) fn new(
        engine: E,
        link: LinkPair,
        dice: [Dice; 2],
        ways: [String; 2],
        taps: [Option<Tap>; 2],
    ) -> io::Result<(Self, DriverHandle)> {
        let wake =
            std::sync::Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (requests, inbox) = channel();
        let [forward, backward] = treatments(link);
        let [forward_tap, backward_tap] = taps;
        let driver = Self {
            engine,
            directions: [
                Direction::new(forward, dice[0], forward_tap),
                Direction::new(backward, dice[1], backward_tap),
            ],
            requests: inbox,
            wake: std::sync::Arc::clone(&wake),
            clock: Clock { began: Instant::now(), behind: 0 },
            processors: Processors::now(),
            realtime: false,
            ways,
            wakes_late_ns: 0,
        };
        Ok((driver, DriverHandle { requests, wake }))
    }

    /// Carries packets until told to stop, or until nobody is left to tell.
    ///
    /// # Errors
    /// When the kernel refuses to wait on the devices.
    pub(crate) fn run(mut self) -> io::Result<()> {
        self.realtime = realtime::raise_priority();
        // The default slack of 50 us would be added to every delivery.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        let mut woke_at = 0;
        let mut slept = 0;
        let mut breath = Breath::default();
        loop {
            // Who is never done is asked all the same.
            if breath.take(&self.clock) && !self.answer_requests() {
                return Ok(());
            }
            // Who was idle has been woken some time after the packet came.
            let was_idle = slept >= IDLE_FROM_NS;
            let came_before = if was_idle { self.wakes_late_ns } else { 0 };
            slept = 0;
            let clock = self.clock.behind(came_before);
            let mut more = false;
            for side in 0..2 {
                more |= self.engine.take(side, &clock, &mut self.directions[side]);
                self.deliver_due(side);
            }
            if more {
                continue;
            }
            let done_at = self.clock.now();
            if !was_idle {
                self.rest(woke_at);
            }
            let asked = self.sleep()?;
            woke_at = self.clock.now();
            slept = woke_at - done_at;
            breath.slept(slept);
            if asked && !self.answer_requests() {
                return Ok(());
            }
        }
    }

    fn deliver_due(&mut self, side: usize) {
        let now = self.clock.now();
        let direction = &mut self.directions[side];
        direction.serve(now);
        self.engine.settle(side, now, direction);
        let mut any = false;
        while let Some((packet, run)) = direction.take_due(now) {
            direction.own_drops +=
                u64::from(!self.engine.deliver(side, now, packet, &run, direction.tap.as_mut()));
            any = true;
        }
        if any {
            direction.own_drops += u64::from(!self.engine.flush(side));
        }
    }

    /// On a long link, lets packets gather until the next quantum after `woke_at`: a wake for each takes the CPU from the
    /// hosts, and this much later nobody can tell.
    fn rest(&self, woke_at: Nanos) {
        let shortest =
            self.directions.iter().map(|direction| direction.shortest_delay).min().unwrap_or_default();
        let quantum = (shortest / QUANTA_PER_DELAY).min(QUANTUM_MAX);
        let next = woke_at.saturating_add(u64::try_from(quantum.as_nanos()).unwrap_or(u64::MAX));
        let left = next.saturating_sub(self.clock.now());
        if left > QUANTUM_MIN_NS {
            std::thread::sleep(Duration::from_nanos(left));
        }
    }

    /// Sleeps until a packet comes, one is due, or there is a request (then true).
    fn sleep(&mut self) -> io::Result<bool> {
        let due = self.directions.iter().filter_map(Direction::due).min();
        let left = due.map(|due| due.saturating_sub(self.clock.now()));
        if left == Some(0) {
            return Ok(false);
        }
        // A processor that sleeps wakes late. Who has nothing else to do asks to be woken earlier, and waits awake.
        let early = match left {
            Some(left) if left >= IDLE_FROM_NS => self.wakes_late_ns,
            _ => 0,
        };
        let timeout = left
            .map(|left| left - early)
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        let asleep_at = self.clock.now();
        let sources = self.engine.sources();
        let mut fds = [
            PollFd::new(&sources[0], PollFlags::IN),
            PollFd::new(&sources[1], PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        let woken = match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(woken) => woken,
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let asked = !fds[2].revents().is_empty();
        if let (0, Some(due), Some(left)) = (woken, due, left.filter(|left| *left >= IDLE_FROM_NS)) {
            let late = self.clock.now().saturating_sub(asleep_at + left - early).min(WAKES_LATE_MAX_NS);
            // A running mean: one stall is no rule.
            self.wakes_late_ns = (self.wakes_late_ns * 7 + late) / 8;
            while self.clock.now() < due {
                std::hint::spin_loop();
            }
        }
        Ok(asked)
    }

    /// False when the driver shall end.
    fn answer_requests(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count); // would-block: another turn took it
        loop {
            match self.requests.try_recv() {
                Ok(Request::Set(link)) => {
                    let now = self.clock.now();
                    for (side, treatment) in treatments(*link).into_iter().enumerate() {
                        self.engine.set(side, treatment.bytes_held_max());
                        self.directions[side].set(now, treatment);
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
        let [forward, backward] =
            [0, 1].map(|side| self.directions[side].report(now, self.engine.unread_drops(side)));
        let stolen = self.processors.and_then(Processors::stolen);
        Report::new(self.engine.name(), &self.ways, self.realtime, stolen, forward, backward)
    }
}

/// When a driver that is never done lets others have the processor. The kernel takes it from a real-time thread that has
/// had it for a second, for 50 ms or more, which packets would feel; a pause of a fraction of a millisecond they do
/// not.
#[derive(Clone, Copy, Debug, Default)]
struct Breath {
    began: Nanos,
    slept: Nanos,
}

impl Breath {
    /// Pauses, if there has not been sleep enough. True when it was time to.
    fn take(&mut self, clock: &Clock) -> bool {
        let passed = clock.now().saturating_sub(self.began);
        if passed < BREATH_EVERY_NS {
            return false;
        }
        let left = (passed / BREATH_SHARE).saturating_sub(self.slept);
        if left > 0 {
            std::thread::sleep(Duration::from_nanos(left));
        }
        *self = Self { began: clock.now(), slept: 0 };
        true
    }

    /// It has slept for want of work.
    fn slept(&mut self, time: Nanos) {
        self.slept += time;
    }
}

/// A link's two directions.
pub(crate) fn treatments(link: LinkPair) -> [Treatment; 2] {
    let (forward, backward) = link
        .rules
        .into_iter()
        .map(|class| {
            let forward = (class.name.clone(), class.rule, class.forward);
            (forward, (class.name, class.rule, class.backward))
        })
        .unzip();
    [Treatment { link: link.forward, rules: forward }, Treatment { link: link.backward, rules: backward }]
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
