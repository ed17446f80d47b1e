//! A queue of packets that the kernel holds for us (NFQUEUE; linux/netfilter/nfnetlink_queue.h).
//!
//! The kernel hands over each packet's head and number and keeps the rest; a verdict lets it go on or drops it.
//! Nothing of the payload is copied.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};

use crate::limits::{HELD_HEAD_BYTES, HELD_PACKETS_MAX, NFQUEUE_SOCKET_BYTES};
use crate::netlink::{self, HEADER_BYTES, Message, attributes};

const SUBSYSTEM: u16 = 3; // NFNL_SUBSYS_QUEUE
const MSG_PACKET: u16 = SUBSYSTEM << 8;
const MSG_VERDICT: u16 = SUBSYSTEM << 8 | 1;
const MSG_CONFIG: u16 = SUBSYSTEM << 8 | 2;
const MSG_VERDICT_BATCH: u16 = SUBSYSTEM << 8 | 3;

const CFG_CMD: u16 = 1;
const CFG_PARAMS: u16 = 2;
const CFG_QUEUE_MAXLEN: u16 = 3;
const CFG_MASK: u16 = 4;
const CFG_FLAGS: u16 = 5;
const CMD_BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
const FLAG_GSO: u32 = 4;

const PACKET_HDR: u16 = 1;
const VERDICT_HDR: u16 = 2;
const PAYLOAD: u16 = 10;
const CAP_LEN: u16 = 13;

const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;

/// `struct nfgenmsg`.
const FAMILY_HEADER_BYTES: usize = 4;

/// A queue of the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct PacketQueue {
    socket: OwnedFd,
    number: u16,
    /// What the kernel tells of all queues of the network namespace.
    statistics: File,
}

/// A packet in the kernel's hands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldPacket<'a> {
    /// Its number; they go up by one, so a gap tells of packets the socket had no room for.
    pub(crate) id: u32,
    /// Its first bytes, from the IP header on.
    pub(crate) head: &'a [u8],
    /// Its length.
    pub(crate) len: usize,
}

impl PacketQueue {
    /// Takes queue `number`, big packets (GSO) whole.
    pub(crate) fn bind(number: u16) -> io::Result<Self> {
        let socket = netlink::socket(Some(rustix::net::netlink::NETFILTER))?;
        let statistics = File::open("/proc/thread-self/net/netfilter/nfnetlink_queue")?;
        let queue = Self { socket, number, statistics };
        let config = |kind, value: &[u8]| {
            let mut message = queue.message(MSG_CONFIG, libc::NLM_F_ACK);
            message.put(kind, value);
            netlink::ask(&queue.socket, &mut message)
        };
        config(CFG_CMD, &[CMD_BIND, 0, 0, 0])?;
        let mut params = [0; 5];
        params[..4].copy_from_slice(&(HELD_HEAD_BYTES as u32).to_be_bytes());
        params[4] = COPY_PACKET;
        config(CFG_PARAMS, &params)?;
        config(CFG_QUEUE_MAXLEN, &HELD_PACKETS_MAX.to_be_bytes())?;
        let mut message = queue.message(MSG_CONFIG, libc::NLM_F_ACK);
        message.put(CFG_FLAGS, &FLAG_GSO.to_be_bytes());
        message.put(CFG_MASK, &FLAG_GSO.to_be_bytes());
        netlink::ask(&queue.socket, &mut message)?;
        // Beyond rmem_max only with CAP_NET_ADMIN; without it the kernel's own limit holds.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&queue.socket, NFQUEUE_SOCKET_BYTES)
            .or_else(|_| {
                rustix::net::sockopt::set_socket_recv_buffer_size(&queue.socket, NFQUEUE_SOCKET_BYTES)
            })?;
        Ok(queue)
    }

    /// The next packet, read into `room`; `WouldBlock` when none waits.
    ///
    /// # Errors
    /// As `recv(2)`; `ENOBUFS` once after packets had to be dropped, which their numbers tell as well.
    pub(crate) fn take<'a>(&self, room: &'a mut [u8]) -> io::Result<Option<HeldPacket<'a>>> {
        let (got, _) = rustix::net::recv(&self.socket, &mut *room, RecvFlags::DONTWAIT)?;
        Ok(parse(&room[..got]))
    }

    /// Lets all packets up to `id` go on.
    pub(crate) fn accept_up_to(&self, id: u32) -> io::Result<()> {
        self.verdict(MSG_VERDICT_BATCH, NF_ACCEPT, id)
    }

    /// Drops one packet.
    pub(crate) fn drop_one(&self, id: u32) -> io::Result<()> {
        self.verdict(MSG_VERDICT, NF_DROP, id)
    }

    /// Packets that the kernel has dropped because the queue was full.
    #[must_use]
    pub(crate) fn dropped(&self) -> u64 {
        let mut text = String::new();
        let read = (&self.statistics)
            .seek(SeekFrom::Start(0))
            .and_then(|_| (&self.statistics).read_to_string(&mut text));
        read.ok().and_then(|_| queue_drops(&text, self.number)).unwrap_or(0)
    }

    fn verdict(&self, kind: u16, verdict: u32, id: u32) -> io::Result<()> {
        let mut message = self.message(kind, 0);
        let mut value = [0; 8];
        value[..4].copy_from_slice(&verdict.to_be_bytes());
        value[4..].copy_from_slice(&id.to_be_bytes());
        message.put(VERDICT_HDR, &value);
        rustix::net::send(&self.socket, message.finish(), SendFlags::empty())?;
        Ok(())
    }

    fn message(&self, kind: u16, flags: i32) -> Message {
        let number = self.number.to_be_bytes();
        Message::new(kind, flags, &[libc::AF_UNSPEC as u8, 0, number[0], number[1]])
    }
}

impl AsFd for PacketQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Of a queue, in the kernel's table: number, port, waiting, copy mode, copy range, drops of the queue, of the socket, ids.
fn queue_drops(text: &str, number: u16) -> Option<u64> {
    let mut queues =
        text.lines().map(|line| line.split_whitespace().filter_map(|column| column.parse::<u64>().ok()));
    queues
        .find_map(|mut columns| (columns.next() == Some(u64::from(number))).then(|| columns.nth(4)).flatten())
}

/// `None` for a message that is not a packet.
fn parse(message: &[u8]) -> Option<HeldPacket<'_>> {
    let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
    if kind != MSG_PACKET {
        return None;
    }
    let (mut id, mut head, mut len) = (None, &[][..], None);
    for (kind, value) in attributes(message.get(HEADER_BYTES + FAMILY_HEADER_BYTES..)?) {
        match kind {
            PACKET_HDR => id = value.first_chunk().map(|id| u32::from_be_bytes(*id)),
            PAYLOAD => head = value,
            CAP_LEN => len = value.first_chunk().map(|len| u32::from_be_bytes(*len) as usize),
            _ => {}
        }
    }
    Some(HeldPacket { id: id?, head, len: len.unwrap_or(head.len()) })
}
