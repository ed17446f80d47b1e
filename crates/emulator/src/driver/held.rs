//! Packets in the kernel's hands: it shows us their heads and waits for our verdict (NFQUEUE).
//!
//! Payload is never copied, which leaves the machine's memory bandwidth to the hosts under test. The kernel cannot
//! split a packet for us, so this engine is for links that lose nothing on the wire: where a queue overflows, it drops
//! a packet of many segments whole, counts that, and the report doubts the result. Per packet: one receive of ~250
//! bytes; a verdict covers a batch.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};

use crate::capture::Tap;
use crate::driver::{Clock, Direction, Engine};
use crate::limits::READ_BATCH;
use crate::link::{Nanos, Run};
use crate::nfqueue::PacketQueue;
use crate::packet::Train;

/// Two queues of held packets.
#[derive(Debug)]
pub(crate) struct HeldEngine {
    sides: [Side; 2],
}

#[derive(Debug)]
struct Side {
    queue: PacketQueue,
    /// The number the next packet should have.
    next_id: Option<u32>,
    /// Packets up to this one are to go on.
    accepted: Option<u32>,
}

/// A packet on its way, or one that is to be dropped when its turn comes: the kernel finds the oldest at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeldId {
    id: u32,
    drop: bool,
}

impl HeldEngine {
    /// Between the queues of what `near` and `far` send.
    #[must_use]
    pub(crate) fn new(near: PacketQueue, far: PacketQueue) -> Self {
        Self { sides: [near, far].map(|queue| Side { queue, next_id: None, accepted: None }) }
    }
}

impl Engine for HeldEngine {
    type Packet = HeldId;

    fn name(&self) -> &'static str {
        "NFQUEUE, packets held whole in the kernel"
    }

    fn take(&mut self, side: usize, clock: &Clock, direction: &mut Direction<HeldId>) -> bool {
        let Side { queue, next_id, .. } = &mut self.sides[side];
        let mut room = [0u8; 2048];
        for _ in 0..READ_BATCH {
            match queue.take(&mut room) {
                Ok(Some(packet)) => {
                    let missing = next_id.map_or(0, |next| packet.id.wrapping_sub(next));
                    direction.own_drops += u64::from(missing);
                    *next_id = Some(packet.id.wrapping_add(1));
                    let (now, train) = (clock.now(), Train::of_held(packet.head, packet.len));
                    let id = HeldId { id: packet.id, drop: false };
                    let (arrives, run) = direction.offer_whole(now, &train, id);
                    direction.wait(run, HeldId { drop: !arrives, ..id });
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // Packets were dropped for want of room: their missing numbers count them.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => {
                    direction.own_drops += 1;
                    return false;
                }
            }
        }
        true
    }

    fn settle(&mut self, _side: usize, _now: Nanos, _direction: &mut Direction<HeldId>) {}

    fn deliver(&mut self, side: usize, _: Nanos, packet: HeldId, _: &Run, _: Option<&mut Tap>) -> bool {
        let side = &mut self.sides[side];
        if packet.drop {
            return side.queue.drop_one(packet.id).is_ok();
        }
        side.accepted = Some(packet.id);
        true
    }

    fn flush(&mut self, side: usize) -> bool {
        let side = &mut self.sides[side];
        side.accepted.take().is_none_or(|id| side.queue.accept_up_to(id).is_ok())
    }

    fn set(&mut self, _side: usize, _bytes_held_max: u64) {}

    fn unread_drops(&self, side: usize) -> u64 {
        self.sides[side].queue.dropped()
    }

    fn sources(&self) -> [BorrowedFd<'_>; 2] {
        [self.sides[0].queue.as_fd(), self.sides[1].queue.as_fd()]
    }
}
