//! Packets in our memory: read from one TUN device, written to the other, and cut where the model says so.
//!
//! Per packet: one read, one write (two copies), ~1 us; a packet of up to 64 KiB counts as one.

use std::cell::RefCell;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use crate::capture::{Stage, Tap};
use crate::driver::{Clock, Direction, Engine, Treatment};
use crate::limits::{MEMORY_SLACK_BYTES, MEMORY_TOUCHED_BYTES_MAX, READ_BATCH};
use crate::link::{LinkConfig, Nanos, Run};
use crate::memory::{Handle, PacketMemory};
use crate::packet::{Cut, Packet, VNET_HEADER_BYTES, mark_congestion};
use crate::tun::Tun;

/// In a capture.
const OWN_DROP: &str = "dropped by the emulator itself, which had no room for it or could not write it";

/// Two TUN devices and the packets on their way between them.
#[derive(Debug)]
pub(crate) struct SplitEngine {
    devices: [Tun; 2],
    memory: [PacketMemory; 2],
}

impl SplitEngine {
    /// Between the devices of two hosts; memory for what `ways` can hold is touched now.
    #[must_use]
    pub(crate) fn new(devices: [Tun; 2], ways: [&Treatment; 2]) -> Self {
        let memory = ways.map(|way| {
            let held = way.bytes_held_max();
            PacketMemory::new(held.saturating_add(MEMORY_SLACK_BYTES), touched_bytes(&way.link))
        });
        Self { devices, memory }
    }
}

impl Engine for SplitEngine {
    type Packet = Handle;

    fn name(&self) -> &'static str {
        "TUN, packets split where a segment is hit"
    }

    fn take(&mut self, side: usize, clock: &Clock, direction: &mut Direction<Handle>) -> bool {
        let (device, memory) = (&self.devices[side], &mut self.memory[side]);
        for _ in 0..READ_BATCH {
            let now = clock.now();
            let Some(room) = memory.room() else {
                let mut lost = [0u8; 256]; // the kernel cuts the packet off
                let Ok(len) = device.read_packet(&mut lost) else { return false };
                direction.own_drops += 1;
                if let Some(tap) = &mut direction.tap {
                    let head = lost.get(VNET_HEADER_BYTES..len).unwrap_or_default();
                    tap.record(now, Stage::Sent, [head, &[]], None);
                    tap.record(now, Stage::Dropped, [head, &[]], Some(OWN_DROP));
                }
                continue;
            };
            match device.read_packet(room) {
                Ok(len) => offer(now, len, memory, direction),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => {
                    direction.own_drops += 1;
                    return false;
                }
            }
        }
        true
    }

    fn settle(&mut self, side: usize, now: Nanos, direction: &mut Direction<Handle>) {
        settle(&mut self.memory[side], now, direction);
    }

    fn deliver(&mut self, side: usize, now: Nanos, packet: Handle, run: &Run, tap: Option<&mut Tap>) -> bool {
        let memory = &mut self.memory[side];
        let part = Part::of(memory.bytes(packet), run);
        let written = part.as_ref().is_some_and(|part| {
            let [first, rest] = part.bytes();
            self.devices[1 - side].write_packet(&[IoSlice::new(first), IoSlice::new(rest)]).is_ok()
        });
        if let (Some(tap), Some(part)) = (tap, &part) {
            let (stage, why) = match written {
                true => (Stage::Delivered, None),
                false => (Stage::Dropped, Some(OWN_DROP)),
            };
            part.record(tap, now, stage, why);
        }
        drop(part);
        memory.release(packet);
        written
    }

    fn flush(&mut self, _side: usize) -> bool {
        true
    }

    fn set(&mut self, side: usize, bytes_held_max: u64) {
        self.memory[side].set_bytes_max(bytes_held_max.saturating_add(MEMORY_SLACK_BYTES));
    }

    fn unread_drops(&self, side: usize) -> u64 {
        self.devices[side].dropped()
    }

    fn sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.devices[0].as_fd(), self.devices[1].as_fd()]
    }
}

/// Takes the packet of `len` bytes just read into the memory's room.
fn offer(now: Nanos, len: usize, memory: &mut PacketMemory, direction: &mut Direction<Handle>) {
    let packet = memory.commit(len);
    let Some(parsed) = Packet::parse(memory.bytes(packet)) else {
        direction.own_drops += 1;
        memory.release(packet);
        return;
    };
    let train = parsed.train();
    if let Some(tap) = &mut direction.tap {
        tap.record(now, Stage::Sent, [&memory.bytes(packet)[VNET_HEADER_BYTES..], &[]], None);
    }
    if direction.offer(now, &train, packet) {
        (0..train.segments).for_each(|_| memory.share(packet));
    }
    settle(memory, now, direction);
    memory.release(packet);
}

/// A packet is held by each of its runs, and by each of its segments that waits in a link.
fn settle(memory: &mut PacketMemory, now: Nanos, direction: &mut Direction<Handle>) {
    let memory = RefCell::new(memory);
    direction.settle(
        |packet| memory.borrow_mut().share(packet),
        |packet| memory.borrow_mut().release(packet),
        |tap, packet, segment, cause| {
            let run = Run { first: segment, count: 1, deliver_at: 0, corrupt: None, mark: false };
            if let Some(part) = Part::of(memory.borrow().bytes(packet), &run) {
                part.record(tap, now, Stage::Dropped, Some(cause.in_words()));
            }
        },
    );
}

/// A packet that stands for a run of another one's segments, or that one itself.
#[allow(clippy::large_enum_variant)] // one at a time, never stored
enum Part<'a> {
    Whole(&'a [u8]),
    Cut(Cut<'a>),
    /// Rare: changed, where the original may be shared by other runs.
    Changed(Vec<u8>),
}

impl<'a> Part<'a> {
    /// What `run` names of the packet in `bytes`, with its mark and its flipped bit.
    fn of(bytes: &'a [u8], run: &Run) -> Option<Self> {
        let packet = Packet::parse(bytes)?;
        if packet.is_whole(run) {
            return Some(Self::Whole(bytes));
        }
        let cut = packet.cut(run);
        let flip = run.corrupt.and_then(|random| packet.corrupt_bit(run, random));
        if flip.is_none() && !run.mark {
            return Some(Self::Cut(cut));
        }
        let headers = cut.headers().len();
        let mut bytes = [cut.headers(), cut.payload].concat();
        if let Some((at, bit)) = flip {
            bytes[headers + at] ^= bit;
        }
        if run.mark {
            mark_congestion(&mut bytes[VNET_HEADER_BYTES..]);
        }
        Some(Self::Changed(bytes))
    }

    /// In two parts, vnet header first.
    fn bytes(&self) -> [&[u8]; 2] {
        match self {
            Self::Whole(bytes) => [bytes, &[]],
            Self::Cut(cut) => [cut.headers(), cut.payload],
            Self::Changed(bytes) => [bytes, &[]],
        }
    }

    fn record(&self, tap: &mut Tap, now: Nanos, stage: Stage, why: Option<&'static str>) {
        let [first, rest] = self.bytes();
        tap.record(now, stage, [&first[VNET_HEADER_BYTES..], rest], why);
    }
}

/// Memory worth touching before the start: what a full link holds, if it is fast enough for page faults to matter.
fn touched_bytes(config: &LinkConfig) -> u64 {
    match config.rate_bps {
        Some(_) => config.bytes_held_max().min(MEMORY_TOUCHED_BYTES_MAX),
        None => config.bytes_held_max().min(64 << 20),
    }
}
