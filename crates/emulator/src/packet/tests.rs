use proptest::prelude::*;

use super::*;

const PAYLOAD: usize = 1448;

/// A TCP/IPv4 or TCP/IPv6 GSO packet as Linux writes it: total length, partial checksum over the pseudo-header.
fn tcp_gso(version: u8, payload: usize, flags: u8) -> Vec<u8> {
    let ip_len = if version == 4 { 20 } else { 40 };
    let tcp_len = 32;
    let mut ip = vec![0u8; ip_len + tcp_len];
    let total = ip.len() + payload;
    if version == 4 {
        ip[0] = 0x45;
        put_u16(&mut ip, 2, total as u16);
        put_u16(&mut ip, 4, 0xfffe);
        ip[8] = 64;
        ip[9] = TCP;
        ip[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
    } else {
        ip[0] = 0x60;
        put_u16(&mut ip, 4, (total - 40) as u16);
        ip[6] = TCP;
        ip[7] = 64;
        ip[8] = 0xfd;
        ip[24] = 0xfd;
    }
    let tcp = &mut ip[ip_len..];
    tcp[..4].copy_from_slice(&[0x30, 0x39, 0x1b, 0x58]);
    tcp[4..8].copy_from_slice(&0xffff_ff00u32.to_be_bytes());
    tcp[12] = 8 << 4;
    tcp[13] = flags;
    let pseudo = pseudo_sum(&ip, version, tcp_len + payload);
    put_u16(&mut ip, ip_len + 16, pseudo);
    let vnet = VnetHeader {
        flags: 1,
        gso_type: if version == 4 { 1 } else { 4 },
        gso_bytes: PAYLOAD as u16,
        checksum_start: ip_len as u16,
        checksum_offset: 16,
        ..VnetHeader::default()
    };
    let mut packet = vnet.as_bytes().to_vec();
    packet.extend_from_slice(&ip);
    packet.extend((0..payload).map(|i| (i / PAYLOAD + i) as u8));
    packet
}

fn pseudo_sum(ip: &[u8], version: u8, transport_len: usize) -> u16 {
    let addresses = if version == 4 { &ip[12..20] } else { &ip[8..40] };
    let words = addresses.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
    fold(words + u32::from(TCP) + transport_len as u32)
}

/// What the kernel does to a packet on its way out: segments with full headers and their payload.
fn segment(packet: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (vnet, ip) = VnetHeader::read_from_prefix(packet).unwrap();
    let version = ip[0] >> 4;
    let ip_len = if version == 4 { 20 } else { 40 };
    let header = ip_len + 32;
    let payload = &ip[header..];
    let size = if vnet.gso_type == GSO_NONE { payload.len().max(1) } else { usize::from(vnet.gso_bytes) };
    // The lengths and checksums of the packet itself must be right before it is segmented.
    let stored = u16::from_be_bytes([ip[ip_len + 16], ip[ip_len + 17]]);
    assert_eq!(stored, pseudo_sum(ip, version, ip.len() - ip_len), "partial checksum");
    if version == 4 {
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])) + 40, ip.len());
    }
    let count = payload.len().div_ceil(size);
    (0..count)
        .map(|i| {
            let mut h = ip[..header].to_vec();
            let body = &payload[i * size..((i + 1) * size).min(payload.len())];
            let tcp = ip_len;
            let seq = u32::from_be_bytes(h[tcp + 4..tcp + 8].try_into().unwrap());
            h[tcp + 4..tcp + 8].copy_from_slice(&seq.wrapping_add((i * size) as u32).to_be_bytes());
            if i > 0 {
                h[tcp + 13] &= !TCP_CWR;
            }
            if i + 1 < count {
                h[tcp + 13] &= !(TCP_FIN | TCP_PSH);
            }
            if version == 4 {
                let id = u16::from_be_bytes([h[4], h[5]]).wrapping_add(i as u16);
                put_u16(&mut h, 4, id);
                put_u16(&mut h, 2, (header + body.len()) as u16);
                put_u16(&mut h, 10, 0);
            } else {
                put_u16(&mut h, 4, (header + body.len() - 40) as u16);
            }
            put_u16(&mut h, tcp + 16, 0);
            (h, body.to_vec())
        })
        .collect()
}

fn bytes_of(cut: &Cut<'_>) -> Vec<u8> {
    [cut.headers(), cut.payload].concat()
}

proptest! {
    #[test]
    fn cut_packets_segment_into_the_segments_of_the_whole(
        version in prop::sample::select(vec![4u8, 6]),
        payload in PAYLOAD + 1..60_000usize,
        flags in any::<u8>(),
        a in 0u32..50, b in 0u32..50,
    ) {
        let bytes = tcp_gso(version, payload, flags);
        let packet = Packet::parse(&bytes).unwrap();
        let n = packet.train().segments;
        prop_assert_eq!(n as usize, payload.div_ceil(PAYLOAD));
        let (first, last) = (a.min(b) % n, a.max(b) % n);
        let (first, last) = (first.min(last), first.max(last));
        let run = Run { first, count: last - first + 1, deliver_at: 0, corrupt: None, mark: false };
        let part = bytes_of(&packet.cut(&run));
        let whole = segment(&bytes);
        prop_assert_eq!(segment(&part), whole[first as usize..=last as usize].to_vec());
    }

    #[test]
    fn any_bytes_parse_and_cut_without_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300), version in 0u8..8, protocol in any::<u8>(),
        random in any::<u64>(),
    ) {
        if bytes.len() > 20 {
            bytes[VNET_HEADER_BYTES] = version << 4 | 5;
            bytes[VNET_HEADER_BYTES + if version == 6 { 6 } else { 9 }] = protocol;
        }
        if let Some(packet) = Packet::parse(&bytes) {
            let train = packet.train();
            prop_assert!(train.segments > 0);
            for first in 0..train.segments.min(5) {
                let run = Run { first, count: 1, deliver_at: 0, corrupt: Some(random), mark: false };
                let cut = packet.cut(&run);
                if let Some((at, _)) = packet.corrupt_bit(&run, random) {
                    prop_assert!(at < cut.payload.len());
                }
            }
        }
    }
}

#[test]
fn a_datagram_train_is_cut_into_datagrams() {
    let mut bytes = tcp_gso(4, 3000, 0);
    let at = VNET_HEADER_BYTES;
    bytes[1] = 5;
    bytes[at + 9] = UDP;
    let packet = Packet::parse(&bytes).unwrap();
    // The TCP header's last 24 bytes count as payload now: 3024 bytes, three segments.
    assert_eq!(packet.train().segments, 3);
    let cut = packet.cut(&Run { first: 1, count: 1, deliver_at: 0, corrupt: None, mark: false });
    assert_eq!(cut.payload.len(), PAYLOAD);
    let headers = &cut.headers()[VNET_HEADER_BYTES..];
    assert_eq!(u16::from_be_bytes([headers[24], headers[25]]) as usize, 8 + PAYLOAD);
    assert_eq!(cut.headers()[1], GSO_NONE);
}

#[test]
fn a_flipped_bit_lies_in_the_payload_of_a_single_packet_too() {
    let mut bytes = tcp_gso(4, 100, 0);
    bytes[1] = GSO_NONE;
    let packet = Packet::parse(&bytes).unwrap();
    let run = Run { first: 0, count: 1, deliver_at: 0, corrupt: Some(7), mark: false };
    for random in 0..2000 {
        let (at, _) = packet.corrupt_bit(&run, random).unwrap();
        assert!((52..152).contains(&at), "{at}");
    }
}

#[test]
fn a_mark_leaves_the_header_s_checksum_right() {
    for (version, at, capable) in [(4, 1, 0x02), (6, 1, 0x20)] {
        let mut ip = tcp_gso(version, 100, 0)[VNET_HEADER_BYTES..].to_vec();
        assert!(traffic_class(&ip) & 3 == 0);
        ip[at] |= capable;
        assert!(traffic_class(&ip) & 3 != 0);
        let sum =
            |ip: &[u8]| fold(ip[..20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum());
        if version == 4 {
            let check = !sum(&ip);
            put_u16(&mut ip, 10, check);
            assert_eq!(sum(&ip), 0xffff);
        }
        let before = ip.clone();
        mark_congestion(&mut ip);
        assert_eq!(ip[at], before[at] | capable | capable >> 1);
        if version == 4 {
            assert_eq!(sum(&ip), 0xffff);
        } else {
            assert_eq!((&ip[..1], &ip[2..]), (&before[..1], &before[2..]));
        }
    }
    for mut short in [vec![], vec![0x45, 2], vec![0x60; 39], vec![0; 60]] {
        let before = short.clone();
        mark_congestion(&mut short);
        assert_eq!(short, before);
    }
}

#[test]
fn a_part_is_not_said_to_have_more_headers_than_it_has() {
    let mut bytes = tcp_gso(4, 3 * PAYLOAD, 0);
    bytes[2..4].copy_from_slice(&2948u16.to_ne_bytes());
    let packet = Packet::parse(&bytes).unwrap();
    for count in [1, 2] {
        let cut = packet.cut(&Run { first: 1, count, deliver_at: 0, corrupt: None, mark: false });
        let hint = u16::from_ne_bytes([cut.headers()[2], cut.headers()[3]]);
        assert_eq!(usize::from(hint), cut.headers().len() - VNET_HEADER_BYTES);
    }
}
