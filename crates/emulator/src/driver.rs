//! The packet driver: reads packets from two TUN devices, asks the link model, holds them, writes them when due.
//!
//! One thread for both directions: it sleeps until a packet comes or one is due. Per packet: one read, one write
//! (two copies), ~1 us; a packet of up to 64 KiB counts as one. A packet is cut only where the model says so.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::limits::{MEMORY_SLACK_BYTES, MEMORY_TOUCHED_BYTES_MAX, READ_BATCH};
use crate::link::{Link, LinkPair, Nanos, Run};
use crate::loss::Dice;
use crate::memory::{Handle, PacketMemory};
use crate::packet::Packet;
use crate::report::{DirectionReport, Lateness, Report};
use crate::tun::Tun;

/// What the driver is asked while it runs.
#[derive(Debug)]
enum Request {
    Set(LinkPair),
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
        self.send(Request::Set(link))
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
struct Waiting {
    run: Run,
    packet: Handle,
}

/// One direction: from one device, through a link, into the other device.
#[derive(Debug)]
struct Direction {
    link: Link,
    memory: PacketMemory,
    waiting: VecDeque<Waiting>,
    lateness_us: Histogram<u64>,
    own_drops: u64,
    runs: Vec<Run>,
}

/// The driver of two hosts.
#[derive(Debug)]
pub struct Driver {
    devices: [Tun; 2],
    directions: [Direction; 2],
    requests: Receiver<Request>,
    wake: std::sync::Arc<OwnedFd>,
    origin: Instant,
    realtime: bool,
}

impl Driver {
    /// A driver between `near` and `far`, and the way to speak to it once it runs.
    ///
    /// # Errors
    /// When the kernel has no event descriptor left.
    pub fn new(near: Tun, far: Tun, link: LinkPair, seed: u64) -> io::Result<(Self, DriverHandle)> {
        let wake =
            std::sync::Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (requests, inbox) = channel();
        let direction = |config: crate::link::LinkConfig, number| {
            let held = config.bytes_held_max();
            Direction {
                memory: PacketMemory::new(held.saturating_add(MEMORY_SLACK_BYTES), touched_bytes(&config)),
                link: Link::new(config, Dice::new(seed, number)),
                waiting: VecDeque::new(),
                lateness_us: new_histogram(),
                own_drops: 0,
                runs: Vec::new(),
            }
        };
        let driver = Self {
            devices: [near, far],
            directions: [direction(link.forward, 0), direction(link.backward, 1)],
            requests: inbox,
            wake: std::sync::Arc::clone(&wake),
            origin: Instant::now(),
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
        loop {
            let mut more = false;
            for side in 0..2 {
                more |= self.take_packets(side);
                self.deliver_due(side);
            }
            if more {
                continue;
            }
            if self.sleep()? && !self.answer_requests() {
                return Ok(());
            }
        }
    }

    fn now(&self) -> Nanos {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Reads a batch from the device of `side`; true when more may wait.
    fn take_packets(&mut self, side: usize) -> bool {
        for _ in 0..READ_BATCH {
            let now = self.now();
            let (device, direction) = (&self.devices[side], &mut self.directions[side]);
            let Some(room) = direction.memory.room() else {
                let mut lost = [0u8; 128]; // the kernel cuts the packet off
                match device.read_packet(&mut lost) {
                    Ok(_) => direction.own_drops += 1,
                    Err(_) => return false,
                }
                continue;
            };
            match device.read_packet(room) {
                Ok(len) => direction.take(now, len),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => {
                    direction.own_drops += 1;
                    return false;
                }
            }
        }
        true
    }

    fn deliver_due(&mut self, side: usize) {
        let now = self.now();
        let (device, direction) = (&self.devices[1 - side], &mut self.directions[side]);
        while direction.waiting.front().is_some_and(|w| w.run.deliver_at <= now) {
            let Some(Waiting { run, packet }) = direction.waiting.pop_front() else { break };
            direction.lateness_us.saturating_record((now - run.deliver_at) / 1000);
            if write_run(device, direction.memory.bytes(packet), &run).is_err() {
                direction.own_drops += 1;
            }
            direction.memory.release(packet);
        }
    }

    /// Sleeps until a packet comes, one is due, or there is a request (then true).
    fn sleep(&self) -> io::Result<bool> {
        let due = self.directions.iter().filter_map(|d| d.waiting.front()).map(|w| w.run.deliver_at).min();
        let timeout = due.map(|due| due.saturating_sub(self.now()));
        if timeout == Some(0) {
            return Ok(false);
        }
        let timeout = timeout
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        let mut fds = [
            PollFd::new(&self.devices[0], PollFlags::IN),
            PollFd::new(&self.devices[1], PollFlags::IN),
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
                    let LinkPair { forward, backward } = link;
                    for (direction, config) in self.directions.iter_mut().zip([forward, backward]) {
                        direction.set(config);
                    }
                }
                Ok(Request::Report(reply)) => drop(reply.send(self.report())), // the asker may have gone
                Ok(Request::Stop) | Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
                Err(std::sync::mpsc::TryRecvError::Empty) => return true,
            }
        }
    }

    fn report(&self) -> Report {
        let now = self.now();
        let [forward, backward] = [0, 1].map(|side| {
            let d = &self.directions[side];
            DirectionReport {
                config: d.link.config().clone(),
                counters: d.link.counters(),
                queue_bytes: d.link.queued_bytes(now),
                lateness: Lateness::of(&d.lateness_us),
                own_drops: d.own_drops,
            }
        });
        Report::new("TUN, packets split where a segment is hit", self.realtime, forward, backward)
    }
}

impl Direction {
    /// Takes the packet of `len` bytes just read into the memory's room.
    fn take(&mut self, now: Nanos, len: usize) {
        let handle = self.memory.commit(len);
        let Some(packet) = Packet::parse(self.memory.bytes(handle)) else {
            self.own_drops += 1;
            self.memory.release(handle);
            return;
        };
        self.link.offer(now, &packet.train(), &mut self.runs);
        for run in self.runs.drain(..) {
            self.memory.share(handle);
            self.waiting.push_back(Waiting { run, packet: handle });
        }
        self.memory.release(handle);
    }

    fn set(&mut self, config: crate::link::LinkConfig) {
        self.memory.set_bytes_max(config.bytes_held_max().saturating_add(MEMORY_SLACK_BYTES));
        self.link.set(config);
    }
}

/// Writes the part of the packet in `bytes` that `run` names.
fn write_run(device: &Tun, bytes: &[u8], run: &Run) -> io::Result<()> {
    let Some(packet) = Packet::parse(bytes) else { return Ok(()) };
    if packet.is_whole(run) {
        return device.write_packet(&[IoSlice::new(bytes)]);
    }
    let cut = packet.cut(run);
    match run.corrupt.and_then(|random| packet.corrupt_bit(run, random)) {
        Some((at, bit)) => {
            let mut payload = cut.payload.to_vec(); // rare; the original may be shared by other runs
            payload[at] ^= bit;
            device.write_packet(&[IoSlice::new(cut.headers()), IoSlice::new(&payload)])
        }
        None => device.write_packet(&[IoSlice::new(cut.headers()), IoSlice::new(cut.payload)]),
    }
}

/// Memory worth touching before the start: what a full link holds, if it is fast enough for page faults to matter.
fn touched_bytes(config: &crate::link::LinkConfig) -> u64 {
    match config.rate_bps {
        Some(_) => config.bytes_held_max().min(MEMORY_TOUCHED_BYTES_MAX),
        None => 64 << 20,
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
