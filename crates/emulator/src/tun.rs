//! TUN devices with offloads: packets up to 64 KiB with a vnet header, as the kernel's GSO makes them.
#![allow(unsafe_code)] // ioctls that no safe wrapper covers

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::interface::{Interface, check, interface_request, ioctl};
use crate::limits::{MTU, TUN_QUEUE_PACKETS};

// linux/if_tun.h
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;
const TUN_F_TSO_ECN: libc::c_ulong = 0x08;
const TUN_F_USO4: libc::c_ulong = 0x20;
const TUN_F_USO6: libc::c_ulong = 0x40;
const TSO: libc::c_ulong = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;

/// A TUN device and its file.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
    /// `/proc/net/dev` of its network namespace.
    statistics: File,
}

/// Why a device could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// `/dev/net/tun` is absent or closed to this user.
    #[error(
        "cannot open /dev/net/tun: {0}; it must exist and be readable and writable by this user \
         (mode 0666, as most distributions set it: `chmod 666 /dev/net/tun` as root), or run as root"
    )]
    Open(io::Error),
    /// A step of the set-up failed.
    #[error("cannot set up network device {device}: {step}")]
    Setup {
        /// The device's name.
        device: String,
        /// What was being done.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Tun {
    /// Creates device `name` in the calling thread's network namespace, with offloads on, addresses set and up.
    ///
    /// # Errors
    /// [`TunError`]; the device vanishes with its file.
    pub fn create(name: &str, addresses: &[(IpAddr, u8)]) -> Result<Self, TunError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(TunError::Open)?;
        let failed = |step| move |source| TunError::Setup { device: name.to_owned(), step, source };
        let mut request = interface_request(name);
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: `request` is a valid ifreq for the call's duration; TUNSETIFF reads and writes only it.
        unsafe { ioctl(&file, TUNSETIFF, &raw mut request) }.map_err(failed("create"))?;
        // UDP segmentation came with Linux 6.2; older kernels refuse its flags.
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        let offload =
            |flags: libc::c_ulong| unsafe { check(libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, flags)) };
        offload(TSO | TUN_F_USO4 | TUN_F_USO6).or_else(|_| offload(TSO)).map_err(failed("set offloads"))?;
        let interface = Interface::named(name).map_err(failed("open a socket"))?;
        interface.set_mtu(MTU).map_err(failed("set the MTU"))?;
        interface.set_queue_len(TUN_QUEUE_PACKETS).map_err(failed("set the queue length"))?;
        for &(address, prefix) in addresses {
            match address {
                IpAddr::V4(v4) => interface.set_ipv4(v4, prefix).map_err(failed("set the IPv4 address"))?,
                // A kernel without IPv6 still has a usable IPv4 link.
                IpAddr::V6(v6) => drop(interface.add_ipv6(&v6.octets(), prefix)),
            }
        }
        interface.bring_up().map_err(failed("bring it up"))?;
        let statistics = File::open("/proc/thread-self/net/dev").map_err(failed("read its statistics"))?;
        Ok(Self { file, name: name.to_owned(), statistics })
    }

    /// Packets that the kernel has dropped because nobody read them in time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let mut text = String::new();
        let read = (&self.statistics)
            .seek(SeekFrom::Start(0))
            .and_then(|_| (&self.statistics).read_to_string(&mut text));
        read.ok().and_then(|_| transmit_drops(&text, &self.name)).unwrap_or(0)
    }

    /// Reads one packet, vnet header first; `WouldBlock` when none waits.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn read_packet(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(into)
    }

    /// Writes one packet given in parts, vnet header first.
    ///
    /// # Errors
    /// As `writev(2)`.
    pub fn write_packet(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        (&self.file).write_vectored(parts).map(drop)
    }
}

/// Of a device, in the text of `/proc/net/dev` (proc_net(5)): eight columns of what it has received, eight of what it has
/// sent, the fourth of them drops.
fn transmit_drops(text: &str, device: &str) -> Option<u64> {
    let columns = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    columns.split_whitespace().nth(11)?.parse().ok()
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_in_the_column_of_what_is_sent() {
        let text = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
 link10: 0 0 0 0 0 0 0 0 0 0 0 77 0 0 0 0
 link1: 100 2 0 4 0 0 0 0 900 10 0 12345 0 0 0 0
";
        assert_eq!(transmit_drops(text, "link1"), Some(12345));
        assert_eq!(transmit_drops(text, "link10"), Some(77));
        assert_eq!(transmit_drops(text, "link"), None);
    }
}
