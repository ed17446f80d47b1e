//! Packets of emulated hosts, and what the emulator's control socket is told.

use longhaul_emulator::control::{reread_answer, reread_request};
use longhaul_emulator::dice::Dice;
use longhaul_emulator::link::{Link, Outcome, Run};
use longhaul_emulator::packet::{Packet, Train, VNET_HEADER_BYTES};
use longhaul_emulator::{LinkSpec, Nanos};

use crate::script::Script;

/// A packet of a TUN device: its segments are its payload, no more and no less, and a part that is cut out of it is
/// the packet that stands for these segments.
pub fn packet(data: &[u8]) {
    let mut script = Script::new(data);
    let (first, count, random) = (script.u16(), script.u8(), script.u64());
    let bytes = script.rest();
    let Some(packet) = Packet::parse(bytes) else { return };
    let train = packet.train();
    let ip_bytes = bytes.len() - VNET_HEADER_BYTES;
    assert!(train.segments > 0);
    let payload = (train.segments as usize - 1) * train.segment_bytes as usize + train.last_bytes as usize;
    assert_eq!(train.header_bytes as usize + payload, ip_bytes);
    let run = |first, count| Run { first, count, deliver_at: 0, corrupt: None, mark: false };
    let whole = run(0, train.segments);
    assert!(packet.is_whole(&whole));
    let cut = packet.cut(&whole);
    assert_eq!(cut.headers().len() + cut.payload.len(), bytes.len());
    let first = u32::from(first) % train.segments;
    let part = run(first, 1 + u32::from(count) % (train.segments - first));
    assert_part(&packet, &train, &part, bytes);
    let single = run(first, 1);
    assert_part(&packet, &train, &single, bytes);
    if let Some((at, bit)) = packet.corrupt_bit(&single, random) {
        assert!(at < packet.cut(&single).payload.len() && bit.count_ones() == 1);
    }
}

fn assert_part(packet: &Packet<'_>, train: &Train, run: &Run, bytes: &[u8]) {
    let cut = packet.cut(run);
    let start = VNET_HEADER_BYTES + (train.header_bytes + run.first * train.segment_bytes) as usize;
    assert_eq!(cut.payload, &bytes[start..start + cut.payload.len()], "other bytes than the segments'");
    let part = [cut.headers(), cut.payload].concat();
    let part = Packet::parse(&part).expect("a packet").train();
    assert_eq!((part.flow, part.segments), (train.flow, run.count));
    if run.count > 1 {
        assert_eq!((part.header_bytes, part.segment_bytes), (train.header_bytes, train.segment_bytes));
    }
}

/// Lines on the control socket; every link that they make carries packets, in order, and loses none uncounted.
pub fn emulated_link(data: &[u8]) {
    let segment = packet_of(1500, 0);
    let burst = packet_of(65_535, 1448);
    let trains = [segment, burst].map(|bytes| Packet::parse(&bytes).expect("a packet").train());
    let mut spec = LinkSpec::default();
    let mut link = None;
    let mut clock: Nanos = 0;
    for line in data.split(|&b| b == b'\n').take(20) {
        if let Some(again) = reread_answer(line) {
            assert!(reread_answer(&again).is_some());
        }
        let Some((again, change)) = reread_request(line) else { continue };
        assert!(reread_request(&again).is_some());
        let Some(merged) = change.map(|change| spec.merge(&change)) else { continue };
        let Ok(pair) = merged.resolve() else { continue };
        spec = merged;
        let _ = (pair.rtt(), pair.forward.bytes_held_max(), pair.backward.bytes_held_max());
        let link = link.get_or_insert_with(|| Link::new(pair.forward.clone(), Dice::new(1, 0)));
        for config in [pair.backward, pair.forward] {
            link.set(clock, config, &mut Outcome::default());
            for train in trains.iter().cycle().take(6) {
                carry(link, clock, train);
                clock += 1_000_000;
            }
        }
    }
}

fn carry(link: &mut Link<u32>, now: Nanos, train: &Train) {
    let (before, mut out) = (link.counters(), Outcome::default());
    link.offer(now, train, 0, &mut out);
    let after = link.counters();
    let delivered: u64 = out.runs.iter().map(|(_, run)| u64::from(run.count)).sum();
    let twice = after.duplicated - before.duplicated;
    assert_eq!(after.delivered - before.delivered + twice, delivered);
    let fates = after.dropped_queue + after.dropped_aqm + after.lost + after.lost_outage + after.delivered;
    let _ = link.queued_bytes(now);
    if link.is_fair() {
        assert!(after.segments >= fates && link.due().is_none_or(|due| due > now));
        return;
    }
    assert_eq!(after.segments, fates);
    assert!(out.runs.iter().all(|(_, run)| run.deliver_at >= now));
    let config = link.config();
    let overtaking = config.reorder.is_some() || config.jitter.as_ref().is_some_and(|j| j.overtakes);
    assert!(overtaking || out.runs.windows(2).all(|pair| pair[0].1.deliver_at <= pair[1].1.deliver_at));
}

/// A TCP packet over IPv4 of so many bytes, to be cut into segments of `gso` bytes.
fn packet_of(ip_bytes: usize, gso: u16) -> Vec<u8> {
    let mut bytes = vec![0; VNET_HEADER_BYTES + ip_bytes];
    bytes[1] = u8::from(gso > 0);
    bytes[4..6].copy_from_slice(&gso.to_ne_bytes());
    let ip = &mut bytes[VNET_HEADER_BYTES..];
    (ip[0], ip[9]) = (0x45, 6);
    ip[32] = 5 << 4;
    bytes
}
