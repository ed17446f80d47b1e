//! What the kernel is told, and asked, about a flow's socket.
#![allow(unsafe_code)] // socket options that rustix does not cover

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longhaul_transport::socket::{set_int, set_pacing_rate};
use rustix::event::{PollFd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

// linux/udp.h
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;
// asm-generic/socket.h, linux/sock_diag.h
const SO_MEMINFO: libc::c_int = 55;
const MEMINFO_WORDS: usize = 9;
const MEMINFO_DROPS: usize = 8;
// asm-generic/sockios.h
const SIOCGSTAMPNS: libc::Ioctl = 0x8907;

/// What the person asked for; `None`: as the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Both buffers of the socket, in bytes; the kernel doubles it for its own use.
    pub window: Option<u64>,
    /// TCP's congestion control.
    pub congestion: Option<String>,
    /// TCP's largest segment.
    pub mss: Option<u32>,
    /// TCP sends what there is at once.
    pub no_delay: bool,
    /// TCP spaces its packets so that they have so many bits a second, of each stream.
    pub pacing: Option<u64>,
    /// TCP sends from pages that the kernel takes as they are.
    pub zero_copy: bool,
}

/// An option that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refuses {what}: {source}; {next}")]
pub struct Refused {
    what: String,
    next: &'static str,
    source: io::Error,
}

impl Options {
    fn set_common(&self, socket: &impl AsFd) -> Result<(), Refused> {
        let Some(bytes) = self.window else { return Ok(()) };
        // What a user may not have the kernel cuts in silence, and the report shows what it became.
        sockopt::set_socket_send_buffer_size(socket, bytes as usize)
            .and_then(|()| sockopt::set_socket_recv_buffer_size(socket, bytes as usize))
            .map_err(|error| Refused {
                what: format!("socket buffers of {bytes} bytes (-w)"),
                next: "ask for less",
                source: error.into(),
            })
    }

    /// To be done before connecting, or listening: windows and segments are agreed upon then.
    pub(crate) fn set_tcp(&self, socket: &impl AsFd) -> Result<(), Refused> {
        self.set_common(socket)?;
        if self.no_delay {
            set_int(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).map_err(|source| Refused {
                what: "to send at once (-N)".to_owned(),
                next: "leave it out",
                source,
            })?;
        }
        if let Some(mss) = self.mss {
            set_int(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss.cast_signed()).map_err(|source| {
                Refused { what: format!("segments of {mss} bytes (-M)"), next: "try 88 to 32767", source }
            })?;
        }
        if let Some(rate) = self.pacing {
            set_pacing_rate(socket, rate.div_ceil(8)).map_err(|source| Refused {
                what: format!("pacing at {rate} bit/s (--fq-rate)"),
                next: "leave it out",
                source,
            })?;
        }
        if let Some(name) = &self.congestion {
            sockopt::set_tcp_congestion(socket, name).map_err(|error| Refused {
                what: format!("congestion control `{name}` (-C)"),
                next: "`sysctl net.ipv4.tcp_available_congestion_control` lists what there is, \
                       and ..._allowed_... what users other than root may take",
                source: error.into(),
            })?;
        }
        Ok(())
    }

    pub(crate) fn set_udp(&self, socket: &impl AsFd) -> Result<(), Refused> {
        self.set_common(socket)
    }
}

/// A socket for `to`.
pub(crate) fn new(to: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Connects, but does not wait longer than `limit`.
pub(crate) fn connect(socket: &OwnedFd, to: SocketAddr, limit: Duration) -> io::Result<()> {
    // connect(2) heeds the limit on sending, and then says that it is under way.
    wait_at_most(socket, limit)?;
    rustix::net::connect(socket, &to).map_err(|error| match error {
        rustix::io::Errno::INPROGRESS => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no reply in {} s", limit.as_secs()))
        }
        other => other.into(),
    })
}

/// Waits for one of them; an interruption is as good.
pub(crate) fn wait_for(sockets: &mut [PollFd<'_>], until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = left.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match poll(sockets, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Neither reading nor writing waits longer than this.
pub(crate) fn wait_at_most(socket: &impl AsFd, limit: Duration) -> io::Result<()> {
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(limit))?;
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(limit))?;
    Ok(())
}

/// Packets are sent with DF set and however long they are: what does not fit the path is lost, and nobody remembers what fits
/// (IP_PMTUDISC_PROBE, ip(7)).
pub(crate) fn never_fragment(socket: &impl AsFd) -> io::Result<()> {
    let four = set_int(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
    // A socket of IPv6 can have a peer of IPv4.
    let six = set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
    four.or(six)
}

/// Packets that have found the socket's buffer full (SO_MEMINFO, Linux 4.12); 0 where the kernel does not say.
pub(crate) fn drops(socket: &impl AsFd) -> u64 {
    let mut words = [0u32; MEMINFO_WORDS];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: `words` is plain data of `length` bytes, and outlives the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 { 0 } else { words[MEMINFO_DROPS].into() }
}

/// How long ago the packet arrived that was read last from a socket of UDP, by the kernel's clock (SIOCGSTAMPNS, socket(7)): a thread is woken
/// later, on a busy host much later. The first question has the kernel note arrivals from then on; where it does not say, there
/// is no delay, nor is there one of a second: the clock has been set meanwhile.
pub(crate) fn since_arrival(socket: &impl AsFd) -> Duration {
    let mut stamp = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSTAMPNS, &raw mut stamp) };
    let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(stamp.tv_sec), u32::try_from(stamp.tv_nsec)) else {
        return Duration::ZERO;
    };
    let arrived = UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    let since = SystemTime::now().duration_since(arrived).unwrap_or_default();
    if result < 0 || since >= Duration::from_secs(1) { Duration::ZERO } else { since }
}

/// Sleeps of this thread end when they should, not up to 50 us later (PR_SET_TIMERSLACK).
pub(crate) fn sleep_exactly() {
    // SAFETY: this option takes numbers only, and concerns the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}

/// Whether the kernel cuts trains of packets (Linux 4.18).
pub(crate) fn can_cut_trains(socket: &impl AsFd) -> bool {
    set_int(socket, libc::SOL_UDP, UDP_SEGMENT, 0).is_ok()
}

/// Has the kernel hand over trains of packets as they were sent (Linux 5.0). Where it cannot, each comes by itself.
pub(crate) fn take_trains(socket: &impl AsFd) {
    let _ = set_int(socket, libc::SOL_UDP, UDP_GRO, 1);
}

/// Reads what there is of the bytes with which a connection begins, and no more; `read` of them are there. False: it is gone.
pub(crate) fn read_what_is_there(mut stream: &TcpStream, into: &mut [u8], read: &mut usize) -> bool {
    while *read < into.len() {
        match stream.read(&mut into[*read..]) {
            Ok(0) => return false,
            Ok(bytes) => *read += bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    true
}

/// Whether reading or writing has just waited as long as it may, or was interrupted.
pub(crate) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Room for one control message with the length of a train's packets.
#[repr(C)]
#[derive(Clone, Copy)]
struct TrainLength {
    header: libc::cmsghdr,
    bytes: [u8; 8],
}

const _: () = assert!(size_of::<TrainLength>() == 24 && align_of::<TrainLength>() == 8);

/// Messages for one call of sendmmsg(2) or recvmmsg(2), and all that they point to. Boxed slices, which do not move.
pub(crate) struct Messages {
    headers: Box<[libc::mmsghdr]>,
    // Pointed to by `headers`.
    _parts: Box<[libc::iovec]>,
    lengths: Box<[TrainLength]>,
    buffer: Box<[u8]>,
    each: usize,
}

// SAFETY: the pointers are to memory that `Messages` owns, and are used by its methods only, which borrow it.
unsafe impl Send for Messages {}

impl Messages {
    /// `count` messages of `each` bytes.
    pub(crate) fn new(count: usize, each: usize) -> Self {
        let mut buffer = vec![0u8; count * each].into_boxed_slice();
        let mut parts: Box<[libc::iovec]> = buffer
            .chunks_exact_mut(each)
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
            .collect();
        // SAFETY: all zeros is a valid value of these structures, which are plain data.
        let mut lengths: Box<[TrainLength]> =
            vec![unsafe { std::mem::zeroed::<TrainLength>() }; count].into();
        let headers = parts
            .iter_mut()
            .zip(lengths.iter_mut())
            .map(|(part, length)| {
                // SAFETY: as above.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = part;
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = (&raw mut *length).cast();
                header
            })
            .collect();
        Self { headers, _parts: parts, lengths, buffer, each }
    }

    /// The bytes of a message.
    pub(crate) fn bytes_mut(&mut self, number: usize) -> &mut [u8] {
        &mut self.buffer[number * self.each..][..self.each]
    }

    /// Makes each message to be sent a train of packets of `length` bytes, or a single packet.
    pub(crate) fn set_train(&mut self, length: Option<u16>) {
        for (header, control) in self.headers.iter_mut().zip(&mut self.lengths) {
            header.msg_hdr.msg_controllen = if length.is_some() { size_of::<TrainLength>() } else { 0 };
            // SAFETY: as in `new`.
            control.header = unsafe { std::mem::zeroed() };
            control.header.cmsg_len = size_of::<libc::cmsghdr>() + size_of::<u16>();
            control.header.cmsg_level = libc::SOL_UDP;
            control.header.cmsg_type = UDP_SEGMENT;
            control.bytes = [0; 8];
            control.bytes[..2].copy_from_slice(&length.unwrap_or(0).to_ne_bytes());
        }
    }

    /// Sends the first `lengths.len()` messages, with so many bytes each: how many were taken.
    pub(crate) fn send(&mut self, socket: &impl AsFd, lengths: &[usize]) -> io::Result<usize> {
        assert!(lengths.len() <= self.headers.len());
        for (header, length) in self.headers.iter_mut().zip(lengths) {
            assert!(*length <= self.each);
            // SAFETY: it points to an element of `parts`, which lives as long as `self`; nobody else refers to it now.
            unsafe { (*header.msg_hdr.msg_iov).iov_len = *length };
        }
        // SAFETY: the headers, and all that they point to, are owned by `self` and live through the call; the lengths were
        // checked to lie within each message's own bytes.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_fd().as_raw_fd(),
                self.headers.as_mut_ptr(),
                lengths.len() as libc::c_uint,
                libc::MSG_NOSIGNAL,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Waits for a message, and receives those that are there: how many.
    pub(crate) fn receive(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        for header in &mut self.headers {
            header.msg_hdr.msg_controllen = size_of::<TrainLength>();
        }
        // SAFETY: as in `send`; the lengths of the parts are those of `new`, since a receiver does not send.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                libc::MSG_WAITFORONE,
                std::ptr::null_mut(),
            )
        };
        if received < 0 { Err(io::Error::last_os_error()) } else { Ok(received as usize) }
    }

    /// The packets of a message that was received.
    pub(crate) fn packets(&self, number: usize) -> std::slice::Chunks<'_, u8> {
        let header = &self.headers[number];
        let bytes = &self.buffer[number * self.each..][..(header.msg_len as usize).min(self.each)];
        let control = &self.lengths[number];
        let told = header.msg_hdr.msg_controllen >= size_of::<libc::cmsghdr>() + size_of::<libc::c_int>()
            && control.header.cmsg_level == libc::SOL_UDP
            && control.header.cmsg_type == UDP_GRO;
        let mut length = [0; 4];
        length.copy_from_slice(&control.bytes[..4]);
        let length = if told { libc::c_int::from_ne_bytes(length).max(0) as usize } else { bytes.len() };
        bytes.chunks(length.max(1))
    }
}
