//! Packets in our memory: read from one TUN device, written to the other, and cut where the model says so.
//!
//! Per packet: one read, one write (two copies), ~1 us; a packet of up to 64 KiB counts as one.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use crate::capture::{Stage, Tap};
use crate::driver::{Clock, Direction, Engine};
use crate::limits::{MEMORY_SLACK_BYTES, MEMORY_TOUCHED_BYTES_MAX, READ_BATCH};
use crate::link::{Cause, LinkConfig, LinkPair, Nanos, Run};
use crate::memory::{Handle, PacketMemory};
use crate::packet::{Packet, VNET_HEADER_BYTES, mark_congestion};
use crate::tun::Tun;

/// Two TUN devices and the packets on their way between them.
#[derive(Debug)]
pub(crate) struct SplitEngine {
    devices: [Tun; 2],
    memory: [PacketMemory; 2],
}

impl SplitEngine {
    /// Between the devices of `near` and `far`; memory for what `link` can hold is touched now.
    #[must_use]
    pub(crate) fn new(near: Tun, far: Tun, link: &LinkPair) -> Self {
        let memory = [&link.forward, &link.backward].map(|config| {
            let held = config.bytes_held_max();
            PacketMemory::new(held.saturating_add(MEMORY_SLACK_BYTES), touched_bytes(config))
        });
        Self { devices: [near, far], memory }
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
                let mut lost = [0u8; 128]; // the kernel cuts the packet off
                match device.read_packet(&mut lost) {
                    Ok(_) => direction.own_drops += 1,
                    Err(_) => return false,
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
        let bytes = memory.bytes(packet);
        let written = write_run(&self.devices[1 - side], bytes, run);
        if let Some(tap) = tap {
            record(tap, now, Stage::Delivered, bytes, run, None);
        }
        memory.release(packet);
        written.is_ok()
    }

    fn flush(&mut self, _side: usize) -> bool {
        true
    }

    fn set(&mut self, side: usize, bytes_held_max: u64) {
        self.memory[side].set_bytes_max(bytes_held_max.saturating_add(MEMORY_SLACK_BYTES));
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
            record(tap, now, Stage::Dropped, memory.borrow().bytes(packet), &run, Some(cause));
        },
    );
}

/// Records the part of the packet in `bytes` that `run` names.
fn record(tap: &mut Tap, now: Nanos, stage: Stage, bytes: &[u8], run: &Run, cause: Option<Cause>) {
    let Some(packet) = Packet::parse(bytes) else { return };
    let cut = packet.cut(run);
    tap.record(now, stage, [&cut.headers()[VNET_HEADER_BYTES..], cut.payload], cause);
}

/// Writes the part of the packet in `bytes` that `run` names.
fn write_run(device: &Tun, bytes: &[u8], run: &Run) -> io::Result<()> {
    let Some(packet) = Packet::parse(bytes) else { return Ok(()) };
    if packet.is_whole(run) {
        return device.write_packet(&[IoSlice::new(bytes)]);
    }
    let cut = packet.cut(run);
    let flip = run.corrupt.and_then(|random| packet.corrupt_bit(run, random));
    if flip.is_none() && !run.mark {
        return device.write_packet(&[IoSlice::new(cut.headers()), IoSlice::new(cut.payload)]);
    }
    // Rare; the original may be shared by other runs.
    let mut bytes = [cut.headers(), cut.payload].concat();
    if let Some((at, bit)) = flip {
        bytes[cut.headers().len() + at] ^= bit;
    }
    if run.mark {
        mark_congestion(&mut bytes[VNET_HEADER_BYTES..]);
    }
    device.write_packet(&[IoSlice::new(&bytes)])
}

/// Memory worth touching before the start: what a full link holds, if it is fast enough for page faults to matter.
fn touched_bytes(config: &LinkConfig) -> u64 {
    match config.rate_bps {
        Some(_) => config.bytes_held_max().min(MEMORY_TOUCHED_BYTES_MAX),
        None => config.bytes_held_max().min(64 << 20),
    }
}
