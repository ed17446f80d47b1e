//! UDP packets with numbers and times: what the thread of a flow does.
//!
//! A sender hands the kernel trains of up to [`SEGMENTS_MAX`] packets of one length (UDP_SEGMENT), several in a call; they travel
//! the network stack as one and are cut at its lower end. A receiver takes trains as they come (UDP_GRO), several in a call.
//! Where packets are too long for the path (fragments), or the kernel is older, each packet is a message of its own. System
//! calls for each packet: 1/64 or less at a sender that is not paced; copies of each byte: one at each end.
//!
//! All packets of one call bear one time, and all that one call received are taken to have come at one time. So the jitter of
//! fast flows is that of trains; where a sender is so slow that trains are single packets, it is that of packets.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::net::SocketType;
use rustix::time::{ClockId, clock_gettime};

use crate::counts::{Counters, Counts};
use crate::limits::{
    DATAGRAM_BYTES_MAX, LOOK_EVERY, MESSAGES_PER_CALL, PACKETS_PER_CALL, SEGMENTS_MAX, TRAINS_PER_CALL,
};
use crate::sequence::{Arrival, Jitter, Sequence};
use crate::socket::{self, Messages, Options, is_pause};
use crate::tcp::{Budget, ConnectError, Pace};

/// How a packet begins: seconds, microseconds, number, each of 32 bits, in network order; the number can be of 64 bits. It is
/// iperf3's form, so that all engines speak one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// When it was sent, by a clock of the sender's.
    pub time_us: u64,
    /// Counted from 1.
    pub number: Number,
}

/// The number of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// All of it.
    Whole(u64),
    /// Its lowest 32 bits.
    Low(u32),
}

impl Header {
    /// Reads the beginning of a packet; `wide`: its number is of 64 bits.
    #[must_use]
    pub fn read(packet: &[u8], wide: bool) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?));
        let time_us = u64::from(word(0)?) * 1_000_000 + u64::from(word(4)?);
        let number = if wide {
            Number::Whole(u64::from_be_bytes(packet.get(8..16)?.try_into().ok()?))
        } else {
            Number::Low(word(8)?)
        };
        Some(Self { time_us, number })
    }
}

fn write_time(packet: &mut [u8], time_us: u64) {
    packet[..4].copy_from_slice(&((time_us / 1_000_000) as u32).to_be_bytes());
    packet[4..8].copy_from_slice(&((time_us % 1_000_000) as u32).to_be_bytes());
}

fn write_number(packet: &mut [u8], number: u64, wide: bool) {
    if wide {
        packet[8..16].copy_from_slice(&number.to_be_bytes());
    } else {
        packet[8..12].copy_from_slice(&(number as u32).to_be_bytes());
    }
}

/// Of a clock that is never set.
fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000
}

/// A socket that sends to, and receives from, one address only.
///
/// # Errors
/// As `connect(2)`, or an option that the kernel refuses.
pub fn connect(to: SocketAddr, options: &Options) -> Result<UdpSocket, ConnectError> {
    let failed = |error| ConnectError::Connect(to, error);
    let socket = socket::new(to, SocketType::DGRAM).map_err(failed)?;
    options.set_udp(&socket)?;
    rustix::net::connect(&socket, &to).map_err(|error| failed(error.into()))?;
    Ok(socket.into())
}

/// What a sender sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packets {
    /// Payload of each.
    pub(crate) length: usize,
    /// Numbers of 64 bits.
    pub(crate) wide: bool,
    /// Bits of payload a second; `None`: as fast as it goes.
    pub(crate) rate: Option<u64>,
}

/// A sender's messages, and the shape that they have.
struct Trains {
    messages: Messages,
    /// Packets in a message, and messages in a call, at most.
    per_message: usize,
    per_call: usize,
    packets: Packets,
    /// Packets that were sent.
    sent: u64,
}

impl Trains {
    fn new(packets: Packets, cut: bool) -> Self {
        let per_message = if cut { (DATAGRAM_BYTES_MAX / packets.length).clamp(1, SEGMENTS_MAX) } else { 1 };
        let per_call = if per_message > 1 { TRAINS_PER_CALL } else { PACKETS_PER_CALL };
        let mut messages = Messages::new(per_call, per_message * packets.length);
        messages.set_train((per_message > 1).then_some(packets.length as u16));
        for number in 0..per_call {
            // Not zeros, which something on the way might compress.
            let _ =
                rustix::rand::getrandom(messages.bytes_mut(number), rustix::rand::GetRandomFlags::empty());
        }
        Self { messages, per_message, per_call, packets, sent: 0 }
    }

    fn per_call(&self) -> usize {
        self.per_message * self.per_call
    }

    /// Sends `count` packets: how many were taken.
    fn send(&mut self, socket: &UdpSocket, count: usize) -> io::Result<u64> {
        let Packets { length, wide, .. } = self.packets;
        let time_us = now_us();
        let mut lengths = [0; PACKETS_PER_CALL];
        let (mut left, mut used, mut number) = (count, 0, self.sent);
        while left > 0 {
            let here = left.min(self.per_message);
            for packet in self.messages.bytes_mut(used).chunks_exact_mut(length).take(here) {
                number += 1;
                write_time(packet, time_us);
                write_number(packet, number, wide);
            }
            lengths[used] = here * length;
            left -= here;
            used += 1;
        }
        let taken = self.messages.send(socket, &lengths[..used])?;
        let packets = lengths[..taken].iter().map(|bytes| bytes / length).sum::<usize>() as u64;
        self.sent += packets;
        Ok(packets)
    }
}

/// Sends until `stop`, or until the budget is used up.
///
/// # Errors
/// As `sendmmsg(2)`.
pub(crate) fn send(
    socket: &UdpSocket,
    packets: Packets,
    budget: Option<&Budget>,
    counters: &Counters,
    stop: &AtomicBool,
) -> io::Result<()> {
    socket::wait_at_most(socket, LOOK_EVERY)?;
    if packets.rate.is_some() {
        socket::sleep_exactly();
    }
    let mut trains = Trains::new(packets, socket::can_cut_trains(socket));
    let mut pace = packets.rate.map(Pace::new);
    while !stop.load(Relaxed) {
        let mut count = trains.per_call();
        if let Some(pace) = &pace {
            if !pace.wait(stop) {
                break;
            }
            count = pace.pacer.burst(packets.length, count);
        }
        if let Some(budget) = budget {
            count = budget.take(count * packets.length).div_ceil(packets.length);
            if count == 0 {
                break;
            }
        }
        match trains.send(socket, count) {
            Ok(sent) => {
                counters.moved(sent * packets.length as u64, sent);
                if let Some(pace) = &mut pace {
                    pace.sent(sent * packets.length as u64);
                }
            }
            Err(error) if is_pause(&error) || is_passing(&error) => {}
            // Too long to be cut for this path, or by this interface: as fragments, or one by one.
            Err(error) if trains.per_message > 1 && !is_gone(&error) => {
                let sent = trains.sent;
                trains = Trains::new(packets, false);
                trains.sent = sent;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What a queue that is full says, and a far end that does not listen yet, or no more.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ECONNREFUSED))
}

/// There is no way to the far end.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EPERM
                | libc::EACCES
                | libc::EBADF
        )
    )
}

/// What became of the packets of one flow.
#[derive(Debug, Default)]
pub(crate) struct Account {
    sequence: Sequence,
    jitter: Jitter,
    bytes: u64,
    /// When the first came, how many bytes with it, and when the last.
    first: Option<(u64, u64)>,
    last_us: u64,
}

impl Account {
    /// A packet came; one that is too short to have a number is none of this flow's.
    pub(crate) fn note(&mut self, packet: &[u8], wide: bool, now_us: u64) {
        let Some(header) = Header::read(packet, wide) else { return };
        let number = match header.number {
            Number::Whole(number) => number,
            Number::Low(low) => self.sequence.extend(low),
        };
        if self.sequence.note(number) == Arrival::Nonsense {
            return;
        }
        self.jitter.note((now_us as f64 - header.time_us as f64) / 1e6);
        self.bytes += packet.len() as u64;
        self.last_us = now_us;
        match &mut self.first {
            Some((at_us, bytes)) if *at_us == now_us => *bytes += packet.len() as u64,
            Some(_) => {}
            None => self.first = Some((now_us, packet.len() as u64)),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let (first_us, first_bytes) = self.first.unwrap_or_default();
        Counts {
            bytes: self.bytes,
            packets: self.sequence.sent(),
            lost: i64::try_from(self.sequence.lost()).unwrap_or(i64::MAX),
            reordered: self.sequence.reordered(),
            duplicates: self.sequence.duplicates(),
            jitter_s: self.jitter.get(),
            span_s: self.last_us.saturating_sub(first_us) as f64 / 1e6,
            span_bytes: self.bytes - first_bytes,
        }
    }
}

/// Receives until `stop`.
///
/// # Errors
/// As `recvmmsg(2)`.
pub(crate) fn receive(
    socket: &UdpSocket,
    wide: bool,
    counters: &Counters,
    stop: &AtomicBool,
) -> io::Result<()> {
    socket::wait_at_most(socket, LOOK_EVERY)?;
    socket::take_trains(socket);
    let mut messages = Messages::new(MESSAGES_PER_CALL, 64 << 10);
    let mut account = Account::default();
    while !stop.load(Relaxed) {
        match messages.receive(socket) {
            Ok(count) => {
                let now_us = now_us();
                for number in 0..count {
                    for packet in messages.packets(number) {
                        account.note(packet, wide, now_us);
                    }
                }
                counters.tell(&account.counts());
            }
            Err(error) if is_pause(&error) || is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_survive(time_us in 0u64..1 << 50, number: u64, wide: bool) {
            let mut packet = [0; 20];
            write_time(&mut packet, time_us);
            write_number(&mut packet, number, wide);
            let number = if wide { Number::Whole(number) } else { Number::Low(number as u32) };
            prop_assert_eq!(Header::read(&packet, wide), Some(Header { time_us, number }));
        }
    }

    /// Sends so many bytes over loopback, and tells what came of them.
    fn over_loopback(packets: Packets, bytes: u64) -> (Counts, Counts) {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        let (sent, received, stop) = (Counters::default(), Counters::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&far, packets.wide, &received, &stop));
            send(&near, packets, Some(&Budget::new(bytes)), &sent, &stop).unwrap();
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while received.now().packets < sent.now().packets && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Relaxed);
            receiver.join().unwrap().unwrap();
        });
        (sent.now(), received.now())
    }

    #[test]
    fn packets_arrive_and_are_counted() {
        // As many as a socket's buffer of usual size holds, should the receiver not run meanwhile.
        for (length, wide, count) in
            [(16, true, 100), (64, false, 100), (1448, true, 50), (9000, false, 8), (65_507, true, 2)]
        {
            let packets = Packets { length, wide, rate: Some(200_000_000) };
            let (sent, received) = over_loopback(packets, count * length as u64);
            assert_eq!((sent.bytes, sent.packets), (count * length as u64, count));
            assert_eq!((received.bytes, received.packets, received.lost), (sent.bytes, count, 0), "{length}");
            assert_eq!((received.reordered, received.duplicates), (0, 0));
            assert!(received.jitter_s < 1.0, "{received:?}");
        }
    }
}
