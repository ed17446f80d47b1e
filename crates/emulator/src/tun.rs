//! TUN devices with offloads: packets up to 64 KiB with a vnet header, as the kernel's GSO makes them.
#![allow(unsafe_code)] // ioctls that no safe wrapper covers

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
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
        Ok(Self { file })
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

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
