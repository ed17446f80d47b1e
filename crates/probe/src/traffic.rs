//! The flows of a test under way, and the threads that move and count their bytes.
//!
//! A flow of UDP has a thread of its own. Streams of TCP that go the same way share as many threads as half of the host has cores: the kernel's
//! network stack needs the others, and more senders than that only make the queues at the receivers longer than their caches.
//! Whoever runs a test looks at the counts now and then; no flow waits for anybody but its socket.

mod worker;

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, available_parallelism};
use std::time::Instant;

use longhaul_transport::socket::TcpInfo;

use crate::counts::{Counters, Counts, Meter};
use crate::processor::Busy;
use crate::tcp::{self, Budget};
use worker::{End, Work, Worker};

pub use crate::socket::{Options, Refused};

/// A connected socket.
#[derive(Debug)]
pub enum Socket {
    /// A stream.
    Tcp(TcpStream),
    /// Packets.
    Udp(UdpSocket),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
        }
    }
}

impl Socket {
    /// Both ends: this one first.
    ///
    /// # Errors
    /// As `getpeername(2)`, when it is not connected any more.
    pub fn ends(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok(match self {
            Self::Tcp(stream) => (stream.local_addr()?, stream.peer_addr()?),
            Self::Udp(socket) => (socket.local_addr()?, socket.peer_addr()?),
        })
    }
}

/// Which way a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// From here.
    Sends,
    /// To here.
    Receives,
}

/// What all flows of a test do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of a write, a read, or a packet.
    pub length: usize,
    /// Bits a second that each flow sends at most.
    pub rate: Option<u64>,
    /// Bits a second that each TCP flow receives at most.
    pub receive_rate_max: Option<u64>,
    /// Bytes that all flows together send.
    pub bytes: Option<u64>,
    /// TCP: the kernel drops what is received (MSG_TRUNC).
    pub skip_receive_copy: bool,
    /// TCP: what is sent is pages that the kernel takes as they are (sendfile(2)).
    pub zero_copy: bool,
    /// UDP: the packets' numbers are of 64 bits.
    pub wide_numbers: bool,
}

/// TCP's own words at a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpWords {
    /// Segments that were sent again, in the interval.
    pub retransmits: u64,
    /// Congestion window, in bytes.
    pub cwnd: u64,
    /// The receiver's window, in bytes.
    pub send_window: u64,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Its mean deviation.
    pub rttvar_us: u32,
    /// What the path takes in one packet.
    pub path_mtu: u32,
}

/// What one flow did in a part of the test.
#[derive(Clone, Copy, Debug)]
pub struct FlowInterval {
    /// The number of its socket.
    pub socket: i32,
    /// Which way it goes.
    pub role: Role,
    /// From when to when, in seconds since the test's beginning.
    pub start: f64,
    /// See `start`.
    pub end: f64,
    /// What it moved.
    pub counts: Counts,
    /// At a sender of TCP.
    pub tcp: Option<TcpWords>,
    /// It does not count: the start of the test.
    pub omitted: bool,
}

/// Lowest, highest and mean of what the intervals saw of TCP at a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TcpSummary {
    /// In the whole test.
    pub retransmits: u64,
    /// Bytes.
    pub cwnd_max: u64,
    /// Bytes.
    pub send_window_max: u64,
    /// Of the smoothed round-trip times.
    pub rtt_min_us: u32,
    /// See `rtt_min_us`.
    pub rtt_max_us: u32,
    /// See `rtt_min_us`.
    pub rtt_mean_us: u32,
    /// Segments with data that were sent in the whole test, those that were sent again among them.
    pub segments: u64,
    /// Payload of a full segment.
    pub mss: u32,
    /// Microseconds since the connection was made in which there was something to send.
    pub busy_us: u64,
    /// Of these, those in which the receiver's window was full.
    pub rwnd_limited_us: u64,
    /// Of these, those in which the sender's buffer was too small.
    pub sndbuf_limited_us: u64,
}

/// What one flow did in the whole test.
#[derive(Clone, Copy, Debug)]
pub struct FlowTotal {
    /// The number of its socket.
    pub socket: i32,
    /// Which way it goes.
    pub role: Role,
    /// How long, in seconds.
    pub seconds: f64,
    /// What it moved.
    pub counts: Counts,
    /// At a sender of TCP.
    pub tcp: Option<TcpSummary>,
    /// Seconds since its beginning in which its thread, which it may share with others, ran or waited for a processor.
    pub busy_s: f64,
    /// Packets of UDP that found the socket's buffer full, at a receiver.
    pub socket_drops: u64,
}

#[derive(Debug)]
struct Flow {
    socket: Arc<Socket>,
    role: Role,
    counters: Arc<Counters>,
    meter: Meter,
    retransmits: Retransmits,
    seen: Seen,
    /// Of its thread.
    busy: Arc<Busy>,
    end: Arc<End>,
}

/// The kernel's count at the base and at the last look.
#[derive(Clone, Copy, Debug, Default)]
struct Retransmits {
    base: u32,
    last: u32,
    segments_base: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    looks: u64,
    rtt_sum_us: u64,
    summary: TcpSummary,
}

/// Flows that run.
#[derive(Debug)]
pub struct Traffic {
    flows: Vec<Flow>,
    threads: Vec<JoinHandle<()>>,
    began: Instant,
    omitting: bool,
    stop_sending: Arc<AtomicBool>,
    stop_receiving: Arc<AtomicBool>,
}

impl Traffic {
    /// Starts them all.
    ///
    /// # Errors
    /// When a thread cannot be had.
    pub fn start(flows: Vec<(Socket, Role)>, plan: &Plan, omit: bool) -> io::Result<Self> {
        let block = Arc::new(tcp::Block::new(plan.length, plan.zero_copy)?);
        let budget = plan.bytes.map(|bytes| Arc::new(Budget::new(bytes)));
        let mut traffic = Self {
            flows: Vec::with_capacity(flows.len()),
            threads: Vec::new(),
            began: Instant::now(),
            omitting: omit,
            stop_sending: Arc::default(),
            stop_receiving: Arc::default(),
        };
        let dealt = worker::deal(&flows, available_parallelism().map_or(1, NonZeroUsize::get));
        for (socket, role) in flows {
            let mut flow = Flow {
                socket: Arc::new(socket),
                role,
                counters: Arc::default(),
                meter: Meter::default(),
                retransmits: Retransmits::default(),
                seen: Seen::default(),
                busy: Arc::default(),
                end: Arc::default(),
            };
            // Before there is anything to count.
            flow.restart(0.0);
            traffic.flows.push(flow);
        }
        for places in dealt {
            let Some(&first) = places.first() else { continue };
            let role = traffic.flows[first].role;
            let stop = if role == Role::Sends { &traffic.stop_sending } else { &traffic.stop_receiving };
            let mut worker = Worker {
                role,
                plan: plan.clone(),
                block: block.clone(),
                budget: budget.clone(),
                stop: stop.clone(),
                busy: Arc::default(),
                flows: Vec::with_capacity(places.len()),
            };
            for place in places {
                let flow = &mut traffic.flows[place];
                flow.busy = worker.busy.clone();
                worker.flows.push(flow.work());
            }
            // Where this fails the others end when `traffic` is dropped.
            let thread = std::thread::Builder::new().name("flows".to_owned());
            traffic.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(traffic)
    }

    /// Since the beginning.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// What each flow did since this was last asked.
    pub fn interval(&mut self) -> Vec<FlowInterval> {
        let (now, omitted) = (self.seconds(), self.omitting);
        self.flows.iter_mut().map(|flow| flow.interval(now, omitted)).collect()
    }

    /// The start that does not count is over.
    pub fn count_from_now(&mut self) {
        let now = self.seconds();
        self.omitting = false;
        self.flows.iter_mut().for_each(|flow| flow.restart(now));
    }

    /// What each flow did in the whole test.
    #[must_use]
    pub fn totals(&self) -> Vec<FlowTotal> {
        let now = self.seconds();
        self.flows.iter().map(|flow| flow.total(now)).collect()
    }

    /// All that flows of a role moved since the very beginning.
    #[must_use]
    pub fn bytes(&self, role: Role) -> u64 {
        self.flows.iter().filter(|flow| flow.role == role).map(|flow| flow.counters.now().bytes).sum()
    }

    /// Whether flows of a role have all ended by themselves: the budget is used up, or the peers have closed.
    #[must_use]
    pub fn all_ended(&self, role: Role) -> bool {
        let mut of_role = self.flows.iter().filter(|flow| flow.role == role).peekable();
        of_role.peek().is_some() && of_role.all(|flow| flow.end.is_over())
    }

    /// The first flow that has failed.
    pub fn failure(&mut self) -> Option<io::Error> {
        self.flows.iter().find_map(|flow| flow.end.take_failure())
    }

    /// Senders stop; receivers go on.
    pub fn stop_sending(&self) {
        self.stop_sending.store(true, Relaxed);
    }

    /// Ends all flows, and waits for their threads. What fails now no longer matters.
    pub fn stop(&mut self) {
        self.stop_sending.store(true, Relaxed);
        self.stop_receiving.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Flow {
    /// What its thread has to know.
    fn work(&self) -> Work {
        Work { socket: self.socket.clone(), counters: self.counters.clone(), end: self.end.clone() }
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        match (&*self.socket, self.role) {
            (Socket::Tcp(stream), Role::Sends) => TcpInfo::of(stream).ok(),
            _ => None,
        }
    }

    fn restart(&mut self, now: f64) {
        self.meter.restart(now, self.counters.now());
        let (sent_again, segments) =
            self.tcp_info().map_or((0, 0), |info| (info.total_retrans, info.data_segs_out));
        self.retransmits = Retransmits { base: sent_again, last: sent_again, segments_base: segments };
        self.seen = Seen::default();
    }

    fn interval(&mut self, now: f64, omitted: bool) -> FlowInterval {
        let end = self.meter.total(now, Counts::default()).0;
        let (start, counts) = self.meter.interval(now, self.counters.now());
        let tcp = self.tcp_info().map(|info| {
            let words = TcpWords {
                retransmits: u64::from(info.total_retrans.wrapping_sub(self.retransmits.last)),
                cwnd: u64::from(info.snd_cwnd) * u64::from(info.snd_mss),
                send_window: u64::from(info.snd_wnd),
                rtt_us: info.rtt_us,
                rttvar_us: info.rttvar_us,
                path_mtu: info.pmtu,
            };
            self.retransmits.last = info.total_retrans;
            self.seen.note(words);
            words
        });
        FlowInterval {
            socket: self.socket.as_fd().as_raw_fd(),
            role: self.role,
            start,
            end,
            counts,
            tcp,
            omitted,
        }
    }

    fn total(&self, now: f64) -> FlowTotal {
        let (seconds, counts) = self.meter.total(now, self.counters.now());
        let tcp = self.tcp_info().map(|info| TcpSummary {
            retransmits: u64::from(info.total_retrans.wrapping_sub(self.retransmits.base)),
            rtt_mean_us: self.seen.rtt_sum_us.checked_div(self.seen.looks).unwrap_or(0) as u32,
            segments: u64::from(info.data_segs_out.wrapping_sub(self.retransmits.segments_base)),
            mss: info.snd_mss,
            busy_us: info.busy_us,
            rwnd_limited_us: info.rwnd_limited_us,
            sndbuf_limited_us: info.sndbuf_limited_us,
            ..self.seen.summary
        });
        let busy_s = self.busy.seconds();
        let socket_drops = match (&*self.socket, self.role) {
            (Socket::Udp(socket), Role::Receives) => crate::socket::drops(socket),
            _ => 0,
        };
        let socket = self.socket.as_fd().as_raw_fd();
        FlowTotal { socket, role: self.role, seconds, counts, tcp, busy_s, socket_drops }
    }
}

impl Seen {
    fn note(&mut self, words: TcpWords) {
        let summary = &mut self.summary;
        summary.cwnd_max = summary.cwnd_max.max(words.cwnd);
        summary.send_window_max = summary.send_window_max.max(words.send_window);
        summary.rtt_max_us = summary.rtt_max_us.max(words.rtt_us);
        summary.rtt_min_us =
            if self.looks == 0 { words.rtt_us } else { summary.rtt_min_us.min(words.rtt_us) };
        self.looks += 1;
        self.rtt_sum_us += u64::from(words.rtt_us);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = tcp::connect(listener.local_addr().unwrap(), &Options::default()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn plan(bytes: Option<u64>) -> Plan {
        Plan {
            length: 10_000,
            rate: None,
            receive_rate_max: None,
            bytes,
            skip_receive_copy: false,
            zero_copy: false,
            wide_numbers: true,
        }
    }

    fn wait_until(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "not in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn bytes_are_moved_and_counted_at_both_ends() {
        for (skip_receive_copy, zero_copy) in [(false, false), (true, false), (false, true)] {
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            for (near, far) in [pair(), pair()] {
                sends.push((Socket::Tcp(near), Role::Sends));
                receives.push((Socket::Tcp(far), Role::Receives));
            }
            let plan = Plan { skip_receive_copy, zero_copy, ..plan(Some(5_000_001)) };
            let mut far = Traffic::start(receives, &plan, false).unwrap();
            let mut near = Traffic::start(sends, &plan, false).unwrap();
            wait_until(|| near.all_ended(Role::Sends) && far.bytes(Role::Receives) == 5_000_001);
            assert!(!near.all_ended(Role::Receives) && !far.all_ended(Role::Receives));
            let sent: u64 = near.interval().iter().map(|flow| flow.counts.bytes).sum();
            assert_eq!(sent, 5_000_001);
            assert!(near.totals().iter().all(|flow| flow.tcp.unwrap().cwnd_max > 0));
            near.stop();
            drop(near);
            wait_until(|| far.all_ended(Role::Receives));
            assert!(far.failure().is_none());
        }
    }

    #[test]
    fn a_flow_that_waits_for_its_peer_stops_when_it_is_told_to() {
        let (near, far) = pair();
        let mut near = Traffic::start(vec![(Socket::Tcp(near), Role::Sends)], &plan(None), false).unwrap();
        wait_until(|| near.bytes(Role::Sends) > 0);
        near.stop();
        drop(far);
    }

    #[test]
    fn a_stream_whose_peer_is_gone_does_not_hold_up_the_others_of_its_thread() {
        let ((near, far), (lost, gone)) = (pair(), pair());
        drop(gone);
        let far = Traffic::start(vec![(Socket::Tcp(far), Role::Receives)], &plan(None), false).unwrap();
        let both = [lost, near].map(|stream| (Socket::Tcp(stream), Role::Sends));
        let mut near = Traffic::start(both.into(), &plan(None), false).unwrap();
        wait_until(|| near.flows[0].end.is_over());
        let before = far.bytes(Role::Receives);
        wait_until(|| far.bytes(Role::Receives) > before + 1_000_000);
        assert!(near.failure().is_some() && near.failure().is_none(), "told once");
        assert!(!near.all_ended(Role::Sends));
    }

    #[test]
    fn a_rate_holds_at_either_end() {
        for (rate, receive_rate_max) in [(Some(8_000_000), None), (None, Some(8_000_000))] {
            let (near, far) = pair();
            let plan = Plan { rate, receive_rate_max, ..plan(None) };
            let far = Traffic::start(vec![(Socket::Tcp(far), Role::Receives)], &plan, false).unwrap();
            let _near = Traffic::start(vec![(Socket::Tcp(near), Role::Sends)], &plan, false).unwrap();
            wait_until(|| far.bytes(Role::Receives) > 300_000);
            // In this order: this thread may stand still between the two.
            let (bytes, seconds) = (far.bytes(Role::Receives), far.seconds());
            assert!(bytes as f64 <= 1e6 * seconds + 20_000.0, "{bytes} in {seconds} s");
        }
    }
}
