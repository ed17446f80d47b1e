//! IP packets as a TUN device with offloads hands them over: a vnet header, then IP.
//!
//! A GSO packet stands for a train of segments that share its headers. The link decides about segments; where only
//! some of them arrive, [`Packet::cut`] makes the packet that stands for a run of them, as if the kernel had
//! segmented there: lengths, IPv4 identification and checksum, TCP sequence and flags, partial checksum.
//! Pure; every length is checked against the bytes that are there.

use std::net::IpAddr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::MTU;
use crate::link::Run;

/// `struct virtio_net_hdr` (VIRTIO 1.2, 5.1.6), in the host's byte order as TUN gives it by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VnetHeader {
    /// 1: the transport checksum holds only the pseudo-header's sum.
    pub flags: u8,
    /// What the packet is cut into: 0 nothing, 1 TCPv4, 4 TCPv6, 5 UDP; 0x80: TCP with ECN.
    pub gso_type: u8,
    /// A hint of the kernel's, not relied on.
    pub header_bytes: u16,
    /// Payload bytes of a segment.
    pub gso_bytes: u16,
    /// Where checksumming starts.
    pub checksum_start: u16,
    /// Where the checksum is stored, from there.
    pub checksum_offset: u16,
}

/// Size of [`VnetHeader`].
pub const VNET_HEADER_BYTES: usize = size_of::<VnetHeader>();

const GSO_NONE: u8 = 0;
const GSO_ECN: u8 = 0x80;

const HOP_BY_HOP: u8 = 0;
const IGMP: u8 = 2;
const ICMPV6: u8 = 58;
/// RFC 4443: a program's, and not the kernel's own.
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
/// What tells them from the rest of ICMPv6 in a [`FlowKey`].
const ECHO_PORTS: (u16, u16) = (128, 128);
/// More fragments follow, or the offset is not 0 (RFC 791).
const FRAGMENT: u16 = 0x3fff;

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// What makes two packets belong together: addresses, protocol, ports (0 where there are none).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    addresses: Option<(IpAddr, IpAddr)>,
    protocol: u8,
    ports: (u16, u16),
}

impl FlowKey {
    /// Anything that is not IP.
    const OTHER: Self = Self { addresses: None, protocol: 0, ports: (0, 0) };

    /// Of a packet from one address to another.
    #[must_use]
    pub fn new(from: IpAddr, to: IpAddr, protocol: u8, ports: (u16, u16)) -> Self {
        Self { addresses: Some((from, to)), protocol, ports }
    }

    /// From where to where; none: not IP.
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.addresses
    }

    /// IP's number of it.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Whether kernels send it of their own accord: neighbours, routers and groups announced by ICMPv6 and IGMP, the former
    /// behind a hop-by-hop header too.
    #[must_use]
    pub fn is_housekeeping(&self) -> bool {
        let is_echo = self.protocol == ICMPV6 && self.ports == ECHO_PORTS;
        matches!(self.protocol, IGMP | ICMPV6 | HOP_BY_HOP) && self.addresses.is_some() && !is_echo
    }

    /// Source and destination.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        self.ports
    }

    #[cfg(test)]
    pub(crate) fn for_test(port: u16) -> Self {
        Self { ports: (port, 0), ..Self::OTHER }
    }
}

/// A packet as a train of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// Whose packet.
    pub flow: FlowKey,
    /// At least 1.
    pub segments: u32,
    /// IP and transport headers, repeated in each segment.
    pub header_bytes: u32,
    /// Payload of each segment but the last.
    pub segment_bytes: u32,
    /// Payload of the last segment.
    pub last_bytes: u32,
    /// IPv4's type of service, IPv6's traffic class: six bits of DSCP (RFC 2474), two of ECN (RFC 3168).
    pub traffic_class: u8,
}

impl Train {
    /// Whether its sender understands marks (RFC 3168): ECT(0), ECT(1), or marked already.
    #[must_use]
    pub fn can_be_marked(&self) -> bool {
        self.traffic_class & 3 != 0
    }

    /// The packet that begins with `head`, from the IP header on, and is `len` bytes long. What its segments are is not
    /// said; a sender fills them up to the MTU.
    #[must_use]
    pub fn of_held(head: &[u8], len: usize) -> Self {
        let len = len as u32;
        let single = |flow| Self {
            flow,
            segments: 1,
            header_bytes: 0,
            segment_bytes: len,
            last_bytes: len,
            traffic_class: traffic_class(head),
        };
        let Some((layout, flow)) = Layout::parse(head) else { return single(FlowKey::OTHER) };
        let header_bytes = layout.payload_at as u32;
        if len <= MTU || header_bytes >= MTU {
            return single(flow);
        }
        let (payload, segment_bytes) = (len - header_bytes, MTU - header_bytes);
        let segments = payload.div_ceil(segment_bytes);
        Self {
            flow,
            segments,
            header_bytes,
            segment_bytes,
            last_bytes: payload - (segments - 1) * segment_bytes,
            traffic_class: traffic_class(head),
        }
    }

    /// Size of a segment as an IP packet.
    #[must_use]
    pub fn segment_ip_bytes(&self, index: u32) -> u32 {
        self.header_bytes + if index + 1 == self.segments { self.last_bytes } else { self.segment_bytes }
    }
}

/// Where the headers of a packet lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    ip_version: u8,
    transport_at: usize,
    payload_at: usize,
    protocol: u8,
}

/// A parsed packet; borrows the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    vnet: VnetHeader,
    /// From the IP header on.
    ip: &'a [u8],
    layout: Option<Layout>,
    train: Train,
}

/// The largest header [`Packet::cut`] writes: vnet, IPv6 with extensions up to what [`Packet::parse`] accepts, TCP.
pub const HEADERS_MAX: usize = VNET_HEADER_BYTES + 256;

/// A part of a packet, ready to be written: rewritten headers, then a slice of the original payload.
#[derive(Debug)]
pub struct Cut<'a> {
    headers: [u8; HEADERS_MAX],
    headers_len: usize,
    /// Follows the headers.
    pub payload: &'a [u8],
}

impl Cut<'_> {
    /// The vnet header and the packet's headers.
    #[must_use]
    pub fn headers(&self) -> &[u8] {
        &self.headers[..self.headers_len]
    }
}

impl<'a> Packet<'a> {
    /// Reads what the device delivered; `None` when it is shorter than a vnet header. What is not IP, or has
    /// headers that do not fit its length, is one segment of an anonymous flow: it is carried, never cut.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (vnet, ip) = VnetHeader::read_from_prefix(bytes).ok()?;
        let single = |flow| Train {
            flow,
            segments: 1,
            header_bytes: 0,
            segment_bytes: ip.len() as u32,
            last_bytes: ip.len() as u32,
            traffic_class: traffic_class(ip),
        };
        let Some((layout, flow)) = Layout::parse(ip) else {
            return Some(Self { vnet, ip, layout: None, train: single(FlowKey::OTHER) });
        };
        let payload = ip.len() - layout.payload_at;
        let gso = usize::from(vnet.gso_bytes);
        let cuttable = vnet.gso_type & !GSO_ECN != GSO_NONE
            && gso > 0
            && payload > gso
            && matches!(layout.protocol, TCP | UDP)
            && layout.payload_at + VNET_HEADER_BYTES <= HEADERS_MAX;
        let train = if cuttable {
            let segments = payload.div_ceil(gso);
            Train {
                flow,
                segments: segments as u32,
                header_bytes: layout.payload_at as u32,
                segment_bytes: gso as u32,
                last_bytes: (payload - (segments - 1) * gso) as u32,
                traffic_class: traffic_class(ip),
            }
        } else {
            single(flow)
        };
        Some(Self { vnet, ip, layout: Some(layout), train })
    }

    /// The packet as the link sees it.
    #[must_use]
    pub fn train(&self) -> Train {
        self.train
    }

    /// Whether `run` is the whole packet, unharmed: then its bytes can be written as they are.
    #[must_use]
    pub fn is_whole(&self, run: &Run) -> bool {
        run.first == 0 && run.count == self.train.segments && run.corrupt.is_none() && !run.mark
    }

    /// The bytes of `run`'s payload, and where in the packet's payload they begin.
    fn payload_of(&self, run: &Run) -> &'a [u8] {
        let from = self.layout.map_or(0, |l| if self.train.segments > 1 { l.payload_at } else { 0 });
        let body = &self.ip[from..];
        let segment = self.train.segment_bytes as usize;
        let start = (run.first as usize * segment).min(body.len());
        let end = ((run.first + run.count) as usize * segment).min(body.len());
        &body[start..if self.train.segments > 1 { end } else { body.len() }]
    }

    /// The packet that stands for `run`, a proper part of this one or the whole.
    #[must_use]
    pub fn cut(&self, run: &Run) -> Cut<'a> {
        let payload = self.payload_of(run);
        let mut cut = Cut { headers: [0; HEADERS_MAX], headers_len: VNET_HEADER_BYTES, payload };
        let mut vnet = self.vnet;
        if let Some(layout) = self.layout.filter(|_| self.train.segments > 1) {
            let headers = &self.ip[..layout.payload_at];
            cut.headers_len += headers.len();
            let out = &mut cut.headers[VNET_HEADER_BYTES..VNET_HEADER_BYTES + headers.len()];
            out.copy_from_slice(headers);
            rewrite(out, layout, &self.train, run, payload.len());
            // The kernel's hint is how much of the packet lay in one piece, which after a router is more than its
            // headers; it refuses one that is longer than the packet.
            vnet.header_bytes = layout.payload_at as u16;
            if run.count == 1 {
                vnet.gso_type = GSO_NONE;
                vnet.gso_bytes = 0;
            }
        }
        cut.headers[..VNET_HEADER_BYTES].copy_from_slice(vnet.as_bytes());
        cut
    }

    /// Offset, within the payload of a run of one, of the bit that `random` names; `None` where there is no
    /// transport payload to harm (a flipped header bit would be a drop, not a corruption). TCP and UDP between
    /// TUN devices carry partial checksums, which the receiving kernel trusts: the flip goes unseen by it.
    #[must_use]
    pub fn corrupt_bit(&self, run: &Run, random: u64) -> Option<(usize, u8)> {
        let layout = self.layout?;
        let payload = self.payload_of(run);
        let skip = if self.train.segments > 1 { 0 } else { layout.payload_at };
        let bits = payload.len().checked_sub(skip)? as u64 * 8;
        let bit = random.checked_rem(bits)?;
        Some((skip + (bit / 8) as usize, 1 << (bit % 8)))
    }
}

impl Layout {
    fn parse(ip: &[u8]) -> Option<(Self, FlowKey)> {
        let version = ip.first()? >> 4;
        let (transport_at, protocol, addresses) = match version {
            4 => {
                let header = usize::from(ip[0] & 15) * 4;
                let fixed: &[u8; 20] = ip.first_chunk()?;
                if header < 20 || header > ip.len() {
                    return None;
                }
                let address =
                    |at: usize| IpAddr::from(<[u8; 4]>::try_from(&fixed[at..at + 4]).unwrap_or_default());
                (header, fixed[9], (address(12), address(16)))
            }
            6 => {
                let fixed: &[u8; 40] = ip.first_chunk()?;
                let address =
                    |at: usize| IpAddr::from(<[u8; 16]>::try_from(&fixed[at..at + 16]).unwrap_or_default());
                // Extension headers are rare here and never before a GSO payload the kernel makes.
                (40, fixed[6], (address(8), address(24)))
            }
            _ => return None,
        };
        let transport = &ip[transport_at..];
        // Of a fragment only the first has a transport header, and that one may be cut off: none is looked at.
        if version == 4 && u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENT != 0 {
            let layout = Self { ip_version: version, transport_at, payload_at: transport_at, protocol: 0 };
            return Some((layout, FlowKey::new(addresses.0, addresses.1, protocol, (0, 0))));
        }
        let header = match protocol {
            TCP => usize::from(transport.get(12)? >> 4) * 4,
            UDP => 8,
            _ => 0,
        };
        if (protocol == TCP && header < 20) || header > transport.len() {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([transport[at], transport[at + 1]]);
        let ports = match protocol {
            TCP | UDP => (port(0), port(2)),
            ICMPV6 if matches!(transport.first(), Some(&(ECHO_REQUEST | ECHO_REPLY))) => ECHO_PORTS,
            _ => (0, 0),
        };
        let layout = Self { ip_version: version, transport_at, payload_at: transport_at + header, protocol };
        Some((layout, FlowKey::new(addresses.0, addresses.1, protocol, ports)))
    }
}

/// The two bits of RFC 3168 in the header of an IP packet.
fn congestion_bits(ip: &[u8]) -> Option<(usize, u8)> {
    match ip.first()? >> 4 {
        4 => Some((1, 0x03)),
        // The traffic class lies across the first two bytes.
        6 => Some((1, 0x30)),
        _ => None,
    }
}

fn traffic_class(ip: &[u8]) -> u8 {
    match *ip {
        [first, second, ..] if first >> 4 == 4 => second,
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        _ => 0,
    }
}

/// Marks an IP packet: congestion experienced. One that has no such bits stays as it is.
pub fn mark_congestion(ip: &mut [u8]) {
    let Some((at, bits)) = congestion_bits(ip) else { return };
    let is_v4 = bits == 0x03;
    if ip.len() < if is_v4 { 20 } else { 40 } {
        return;
    }
    let before = u16::from_be_bytes([ip[0], ip[1]]);
    ip[at] |= bits;
    if is_v4 {
        // HC' = ~(~HC + ~m + m') (RFC 1624)
        let after = u16::from_be_bytes([ip[0], ip[1]]);
        let sum = u16::from_be_bytes([ip[10], ip[11]]);
        put_u16(ip, 10, !fold(u32::from(!sum) + u32::from(!before) + u32::from(after)));
    }
}

/// Makes the copied headers of the whole train those of `run`.
fn rewrite(headers: &mut [u8], layout: Layout, train: &Train, run: &Run, payload_len: usize) {
    let old_total = train.header_bytes as usize
        + (train.segments - 1) as usize * train.segment_bytes as usize
        + train.last_bytes as usize;
    let new_total = headers.len() + payload_len;
    let (ip, transport) = headers.split_at_mut(layout.transport_at);
    if layout.ip_version == 4 {
        put_u16(ip, 2, new_total as u16);
        let id = u16::from_be_bytes([ip[4], ip[5]]);
        put_u16(ip, 4, id.wrapping_add(run.first as u16));
        put_u16(ip, 10, 0);
        let sum = !fold(ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum());
        put_u16(ip, 10, sum);
    } else {
        put_u16(ip, 4, (new_total - layout.transport_at) as u16);
    }
    let checksum_at = if layout.protocol == TCP { 16 } else { 6 };
    if layout.protocol == TCP {
        let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
        let sequence = sequence.wrapping_add(run.first * train.segment_bytes);
        transport[4..8].copy_from_slice(&sequence.to_be_bytes());
        if run.first > 0 {
            transport[13] &= !TCP_CWR;
        }
        if run.first + run.count < train.segments {
            transport[13] &= !(TCP_FIN | TCP_PSH);
        }
    } else {
        put_u16(transport, 4, (new_total - layout.transport_at) as u16);
    }
    // The field holds the pseudo-header's sum, in which only the transport length has changed.
    let partial = u16::from_be_bytes([transport[checksum_at], transport[checksum_at + 1]]);
    let old_len = (old_total - layout.transport_at) as u16;
    let new_len = (new_total - layout.transport_at) as u16;
    let sum = fold(u32::from(partial) + u32::from(!old_len) + u32::from(new_len));
    put_u16(transport, checksum_at, sum);
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// One's-complement sum of 16-bit words (RFC 1071).
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
