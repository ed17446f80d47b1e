//! TUN devices with offloads: packets up to 64 KiB with a vnet header, as the kernel's GSO makes them.
#![allow(unsafe_code)] // ioctls that no safe wrapper covers

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use zerocopy::{Immutable, IntoBytes};

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

/// `struct in6_ifreq` of linux/ipv6.h.
#[repr(C)]
struct In6IfReq {
    address: libc::in6_addr,
    prefix_len: u32,
    index: libc::c_int,
}

/// A netlink message (rtnetlink(7)) with one attribute: the queue length of a device.
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct SetQueueLen {
    // struct nlmsghdr
    length: u32,
    message: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    // struct ifinfomsg
    family: u8,
    pad: u8,
    device_type: u16,
    index: u32,
    device_flags: u32,
    change: u32,
    // struct rtattr
    attribute_length: u16,
    attribute: u16,
    packets: u32,
}

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

/// Brings up the loopback device of the calling thread's network namespace.
///
/// # Errors
/// As the kernel answers.
pub fn bring_up_loopback() -> io::Result<()> {
    Interface::named("lo")?.bring_up()
}

/// A network device by name, and a socket to speak of it.
struct Interface {
    name: String,
    socket: OwnedFd,
}

impl Interface {
    fn named(name: &str) -> io::Result<Self> {
        Ok(Self { name: name.to_owned(), socket: datagram_socket(rustix::net::AddressFamily::INET)? })
    }

    fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let mut request = interface_request(&self.name);
        request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
        // SAFETY: `request` is a valid ifreq for the call's duration, as in all calls below.
        unsafe { ioctl(&self.socket, libc::SIOCSIFMTU, &raw mut request) }
    }

    /// By netlink: the ioctl for it wants rights in the first user namespace.
    fn set_queue_len(&self, packets: u32) -> io::Result<()> {
        use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
        let index = rustix::net::netdevice::name_to_index(&self.socket, &self.name)?;
        let request = SetQueueLen {
            length: size_of::<SetQueueLen>() as u32,
            message: libc::RTM_NEWLINK,
            flags: (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16,
            index,
            attribute_length: 8,
            attribute: libc::IFLA_TXQLEN,
            packets,
            ..SetQueueLen::default()
        };
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE is 0
        )?;
        rustix::net::send(&socket, request.as_bytes(), SendFlags::empty())?;
        let mut answer = [0u8; 512];
        let (got, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        // struct nlmsghdr, then the negated errno.
        match answer[..got]
            .get(16..20)
            .and_then(|code| <[u8; 4]>::try_from(code).ok())
            .map(i32::from_ne_bytes)
        {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn set_ipv4(&self, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        for (call, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, Ipv4Addr::from(mask))] {
            let mut request = interface_request(&self.name);
            // SAFETY: all-zero bytes are a valid sockaddr_in, which fits in the sockaddr it overlays.
            let mut place: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            place.sin_family = libc::AF_INET as libc::sa_family_t;
            place.sin_addr.s_addr = u32::from(value).to_be();
            // SAFETY: both are 16 bytes of plain data.
            request.ifr_ifru.ifru_addr =
                unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(place) };
            // SAFETY: as above.
            unsafe { ioctl(&self.socket, call, &raw mut request) }?;
        }
        Ok(())
    }

    fn add_ipv6(&self, address: &[u8; 16], prefix: u8) -> io::Result<()> {
        let socket = datagram_socket(rustix::net::AddressFamily::INET6)?;
        let index = rustix::net::netdevice::name_to_index(&self.socket, &self.name)?;
        let mut request = In6IfReq {
            address: libc::in6_addr { s6_addr: *address },
            prefix_len: u32::from(prefix),
            index: index as libc::c_int,
        };
        // SAFETY: `request` is a valid in6_ifreq for the call's duration.
        unsafe { ioctl(&socket, libc::SIOCSIFADDR, &raw mut request) }
    }

    fn bring_up(&self) -> io::Result<()> {
        let mut request = interface_request(&self.name);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        // SAFETY: as above.
        unsafe { ioctl(&self.socket, libc::SIOCSIFFLAGS, &raw mut request) }
    }
}

fn datagram_socket(family: rustix::net::AddressFamily) -> io::Result<OwnedFd> {
    use rustix::net::{SocketFlags, SocketType, socket_with};
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1; // the rest stays zero: a terminated string
    for (to, from) in request.ifr_name.iter_mut().take(room).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// # Safety
/// `argument` must be valid for what `request` reads and writes.
unsafe fn ioctl<T>(fd: &impl AsFd, request: libc::c_ulong, argument: *mut T) -> io::Result<()> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, argument) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
