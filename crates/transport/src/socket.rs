//! What the kernel is told, and asked, about a lane's TCP socket.
#![allow(unsafe_code)] // socket options that rustix does not cover

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::net::sockopt;

use crate::limits::{
    LANE_UNSENT_BYTES_MAX, LANE_UNSENT_BYTES_MIN, LANE_UNSENT_TIME, LANE_USER_TIMEOUT, RTO_MAX,
};

/// `struct tcp_info` of linux/tcp.h up to `tcpi_snd_wnd` (Linux 5.4). An older kernel fills less; the rest stays 0.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // the kernel's own names and meanings, see the kernel's header
pub struct TcpInfo {
    pub state: u8,
    pub ca_state: u8,
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    pub options: u8,
    pub wscale: u8,
    pub app_limited: u8,
    pub rto_us: u32,
    pub ato_us: u32,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub fackets: u32,
    pub last_data_sent_ms: u32,
    pub last_ack_sent_ms: u32,
    pub last_data_recv_ms: u32,
    pub last_ack_recv_ms: u32,
    pub pmtu: u32,
    pub rcv_ssthresh: u32,
    pub rtt_us: u32,
    pub rttvar_us: u32,
    pub snd_ssthresh: u32,
    pub snd_cwnd: u32,
    pub advmss: u32,
    pub reordering: u32,
    pub rcv_rtt_us: u32,
    pub rcv_space: u32,
    pub total_retrans: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub notsent_bytes: u32,
    pub min_rtt_us: u32,
    pub data_segs_in: u32,
    pub data_segs_out: u32,
    pub delivery_rate: u64,
    pub busy_us: u64,
    pub rwnd_limited_us: u64,
    pub sndbuf_limited_us: u64,
    pub delivered: u32,
    pub delivered_ce: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub rcv_ooopack: u32,
    pub snd_wnd: u32,
}

// linux/tcp.h, asm-generic/socket.h
const TCP_RTO_MAX_MS: libc::c_int = 44;
const TCP_NOTSENT_LOWAT: libc::c_int = 25;
const SO_MAX_PACING_RATE: libc::c_int = 47;

impl TcpInfo {
    /// Asks the kernel.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut info = Self::default();
        let mut len = size_of::<Self>() as libc::socklen_t;
        // SAFETY: `info` is plain data of `len` bytes, all of whose bit patterns are valid, and outlives the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut len,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(info) }
    }
}

fn set<T>(socket: &impl AsFd, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
    // SAFETY: `value` is plain data that outlives the call, and its true size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an option that is a number.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set(socket, level, option, value)
}

/// How lanes' sockets are set up on this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneSocketOptions {
    /// Bytes for SO_SNDBUF and SO_RCVBUF, for those who insist; `None`: what is best here.
    pub(crate) socket_buffer: Option<u32>,
    /// Bytes per second one lane may send.
    pub(crate) pacing_rate: Option<u64>,
}

/// Sets up a lane's socket. What this kernel does not know is left as it is: a lane works without all of it.
///
/// # Errors
/// Never for lack of rights; only when the socket is not one.
pub(crate) fn prepare_lane(socket: &impl AsFd, options: LaneSocketOptions) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    set_congestion_control(socket, true);
    set_unsent_bytes(socket, LANE_UNSENT_BYTES_MIN);
    let _ = sockopt::set_tcp_user_timeout(socket, LANE_USER_TIMEOUT.as_millis() as u32);
    let _ = set(socket, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, RTO_MAX.as_millis() as u32); // Linux 6.15
    sockopt::set_socket_keepalive(socket, true)?;
    let _ = sockopt::set_tcp_keepidle(socket, Duration::from_secs(20));
    let _ = sockopt::set_tcp_keepintvl(socket, Duration::from_secs(10));
    if let Some(bytes) = options.socket_buffer {
        sockopt::set_socket_send_buffer_size(socket, bytes as usize)?;
        sockopt::set_socket_recv_buffer_size(socket, bytes as usize)?;
    } else if let Some(bytes) = send_buffer_beyond_autotuning() {
        sockopt::set_socket_send_buffer_size(socket, bytes)?;
    }
    if let Some(rate) = options.pacing_rate {
        set_pacing_rate(socket, rate)?;
    }
    Ok(())
}

/// What a lane that sends so many bytes per second may take ahead: a power of two.
pub(crate) fn unsent_bytes(rate_bytes_per_s: u64) -> u32 {
    let bytes = rate_bytes_per_s as f64 * LANE_UNSENT_TIME.as_secs_f64();
    (bytes as u32).clamp(LANE_UNSENT_BYTES_MIN, LANE_UNSENT_BYTES_MAX).next_power_of_two()
}

/// Bytes that the socket takes before TCP has sent them.
pub(crate) fn set_unsent_bytes(socket: &impl AsFd, bytes: u32) {
    let _ = set(socket, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes); // Linux 3.12
}

/// BBR, or CUBIC. Where one is absent or not allowed the socket keeps what it has.
pub(crate) fn set_congestion_control(socket: &impl AsFd, bbr: bool) {
    let _ = sockopt::set_tcp_congestion(socket, if bbr { "bbr" } else { "cubic" });
}

/// Caps what the socket sends, in bytes per second; TCP spaces its packets accordingly.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn set_pacing_rate(socket: &impl AsFd, bytes_per_s: u64) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_s)
}

/// A send buffer that may be asked for and is larger than what TCP gives by itself: half of what the kernel makes of
/// it holds data in flight. `None` where autotuning goes at least as far, as on kernels with a small wmem_max.
fn send_buffer_beyond_autotuning() -> Option<usize> {
    let wmem_max = read_number("/proc/sys/net/core/wmem_max", 0)?;
    let autotuned = read_number("/proc/sys/net/ipv4/tcp_wmem", 2)?;
    // The kernel doubles what is asked for (socket(7)).
    (2 * wmem_max > autotuned).then_some(wmem_max)
}

/// Bytes a lane of this host can have under way: the send buffer, less the kernel's own share of it.
#[must_use]
pub(crate) fn send_window_bytes() -> u64 {
    let buffer = match send_buffer_beyond_autotuning() {
        Some(asked) => 2 * asked,
        None => read_number("/proc/sys/net/ipv4/tcp_wmem", 2).unwrap_or(4 << 20),
    };
    // Seen on Linux 6.18 with full-sized segments: 0.7 of the buffer is payload.
    (buffer as u64) * 7 / 10
}

fn read_number(path: &str, field: usize) -> Option<usize> {
    fs::read_to_string(path).ok()?.split_whitespace().nth(field)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_lane_s_socket_tells_what_it_has_done() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        prepare_lane(&near, LaneSocketOptions { socket_buffer: None, pacing_rate: Some(1 << 30) }).unwrap();
        near.write_all(&[1; 100_000]).unwrap();
        far.read_exact(&mut [0; 100_000]).unwrap();
        let info = TcpInfo::of(&near).unwrap();
        assert!(info.bytes_sent >= 100_000 && info.snd_wnd > 0 && info.min_rtt_us < 1_000_000, "{info:?}");
        assert_eq!(info.max_pacing_rate, 1 << 30);
    }
}
