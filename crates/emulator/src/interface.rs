//! Network devices: names, addresses, routes and pairs of them, in the calling thread's network namespace.
#![allow(unsafe_code)] // ioctls that no safe wrapper covers

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use zerocopy::{Immutable, IntoBytes};

use crate::limits::MTU;
use crate::netlink::{self, Message};

/// `struct ifinfomsg` (rtnetlink(7)).
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct InterfaceHeader {
    family: u8,
    pad: u8,
    device_type: u16,
    index: u32,
    flags: u32,
    change: u32,
}

/// `struct rtmsg` (rtnetlink(7)).
#[derive(Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
struct RouteHeader {
    family: u8,
    prefix: u8,
    source_prefix: u8,
    tos: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
}

/// `struct in6_ifreq` of linux/ipv6.h.
#[repr(C)]
struct In6IfReq {
    address: libc::in6_addr,
    prefix_len: u32,
    index: libc::c_int,
}

/// Brings up the loopback device of the calling thread's network namespace.
///
/// # Errors
/// As the kernel answers.
pub(crate) fn bring_up_loopback() -> io::Result<()> {
    Interface::named("lo")?.bring_up()
}

/// A network device by name, and a socket to speak of it.
pub(crate) struct Interface {
    name: String,
    socket: OwnedFd,
}

impl Interface {
    pub(crate) fn named(name: &str) -> io::Result<Self> {
        Ok(Self { name: name.to_owned(), socket: datagram_socket(rustix::net::AddressFamily::INET)? })
    }

    pub(crate) fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let mut request = interface_request(&self.name);
        request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
        // SAFETY: `request` is a valid ifreq for the call's duration, as in all calls below.
        unsafe { ioctl(&self.socket, libc::SIOCSIFMTU, &raw mut request) }
    }

    /// By netlink: the ioctl for it wants rights in the first user namespace.
    pub(crate) fn set_queue_len(&self, packets: u32) -> io::Result<()> {
        let header = InterfaceHeader { index: self.index()?, ..InterfaceHeader::default() };
        let mut message = Message::new(libc::RTM_NEWLINK, libc::NLM_F_ACK, header.as_bytes());
        message.put(libc::IFLA_TXQLEN, &packets.to_ne_bytes());
        netlink::ask(&netlink::socket(None)?, &mut message)
    }

    /// Packets of more segments than this are cut before the device gets them. By netlink, as there is no ioctl for it.
    pub(crate) fn set_gso_segments(&self, segments: u32) -> io::Result<()> {
        let header = InterfaceHeader { index: self.index()?, ..InterfaceHeader::default() };
        let mut message = Message::new(libc::RTM_NEWLINK, libc::NLM_F_ACK, header.as_bytes());
        message.put(libc::IFLA_GSO_MAX_SEGS, &segments.to_ne_bytes());
        netlink::ask(&netlink::socket(None)?, &mut message)
    }

    fn index(&self) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.socket, &self.name)?)
    }

    pub(crate) fn set_ipv4(&self, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
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

    pub(crate) fn add_ipv6(&self, address: &[u8; 16], prefix: u8) -> io::Result<()> {
        let socket = datagram_socket(rustix::net::AddressFamily::INET6)?;
        let index = self.index()?;
        let mut request = In6IfReq {
            address: libc::in6_addr { s6_addr: *address },
            prefix_len: u32::from(prefix),
            index: index as libc::c_int,
        };
        // SAFETY: `request` is a valid in6_ifreq for the call's duration.
        unsafe { ioctl(&socket, libc::SIOCSIFADDR, &raw mut request) }
    }

    pub(crate) fn bring_up(&self) -> io::Result<()> {
        let mut request = interface_request(&self.name);
        // SAFETY: as above.
        unsafe { ioctl(&self.socket, libc::SIOCGIFFLAGS, &raw mut request) }?;
        // SAFETY: the call above has filled in this field.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        // SAFETY: as above.
        unsafe { ioctl(&self.socket, libc::SIOCSIFFLAGS, &raw mut request) }
    }
}

fn datagram_socket(family: rustix::net::AddressFamily) -> io::Result<OwnedFd> {
    use rustix::net::{SocketFlags, SocketType, socket_with};
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

pub(crate) fn interface_request(name: &str) -> libc::ifreq {
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
pub(crate) unsafe fn ioctl<T>(fd: &impl AsFd, request: libc::c_ulong, argument: *mut T) -> io::Result<()> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, argument) })
}

pub(crate) fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

// linux/veth.h and linux/if_link.h
const VETH_INFO_PEER: u16 = 1;

/// Both ends of a pair have this address (locally administered): with address resolution off the kernel sends to the
/// device's own address, and the other end takes it for its own. So no ARP and no neighbour discovery is needed.
const PAIR_ADDRESS: [u8; 6] = [2, 0x6c, 0x68, 0, 0, 1];

/// Makes two devices that are wired to each other: `name` here, `peer` in the network namespace `there`.
pub(crate) fn create_pair(name: &str, peer: &str, there: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::IFF_NOARP as u32;
    let header = InterfaceHeader { flags, change: flags, ..InterfaceHeader::default() };
    let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut message = Message::new(libc::RTM_NEWLINK, flags, header.as_bytes());
    describe(&mut message, name);
    let link = message.nest(libc::IFLA_LINKINFO, &[]);
    message.put(libc::IFLA_INFO_KIND, b"veth");
    let data = message.nest(libc::IFLA_INFO_DATA, &[]);
    let other = message.nest(VETH_INFO_PEER, header.as_bytes());
    describe(&mut message, peer);
    message.put(libc::IFLA_NET_NS_FD, &there.as_raw_fd().to_ne_bytes());
    message.close(other);
    message.close(data);
    message.close(link);
    netlink::ask(&netlink::socket(None)?, &mut message)
}

fn describe(message: &mut Message, name: &str) {
    message.put(libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
    message.put(libc::IFLA_MTU, &MTU.to_ne_bytes());
    message.put(libc::IFLA_ADDRESS, &PAIR_ADDRESS);
}

/// Sends what is for `host` out of device `name`.
pub(crate) fn route_host(host: IpAddr, name: &str) -> io::Result<()> {
    let prefix = if host.is_ipv4() { 32 } else { 128 };
    route(host, prefix, None, name)
}

/// Sends what is for the network of `address` to `gateway`, which is reached by device `name`.
pub(crate) fn route_network(address: IpAddr, prefix: u8, gateway: IpAddr, name: &str) -> io::Result<()> {
    let network = match address {
        IpAddr::V4(v4) => IpAddr::from(Ipv4Addr::from(
            v4.to_bits() & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0),
        )),
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            IpAddr::from(Ipv6Addr::from(v6.to_bits() & mask))
        }
    };
    route(network, prefix, Some(gateway), name)
}

fn route(to: IpAddr, prefix: u8, gateway: Option<IpAddr>, name: &str) -> io::Result<()> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let header = RouteHeader {
        family: if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8,
        prefix,
        table: libc::RT_TABLE_MAIN,
        protocol: libc::RTPROT_STATIC,
        scope: if gateway.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK },
        kind: libc::RTN_UNICAST,
        ..RouteHeader::default()
    };
    let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE;
    let mut message = Message::new(libc::RTM_NEWROUTE, flags, header.as_bytes());
    message.put(libc::RTA_DST, &octets(to));
    if let Some(gateway) = gateway {
        message.put(libc::RTA_GATEWAY, &octets(gateway));
    }
    message.put(libc::RTA_OIF, &Interface::named(name)?.index()?.to_ne_bytes());
    netlink::ask(&netlink::socket(None)?, &mut message)
}
