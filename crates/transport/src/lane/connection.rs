//! One lane: a connection, and what it takes in and sends, by turns.
//!
//! Per MiB each way, at full frames: 4 writes or ~16 reads of the socket, 4 reads or writes of the file, one look at
//! the scheduler.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::mover::{LaneEnd, LaneNews, LaneStatus, Lanes, Stored, Withdrawn};
use crate::lane::buffer::{Inbox, Outbox, WireError, checksum};
use crate::lane::frame::{FrameHeader, FrameKind, PieceFrame, SESSION_ID_BYTES, decode_numbers};
use crate::limits::{ACKS_WAITING_MAX, FRAME_PAYLOAD_MAX, TURN_BYTES};
use crate::scheduler::{LaneId, Piece};
use crate::secure::Keys;

/// How a lane begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opening {
    /// This side says hello.
    Client {
        /// The lane's number.
        lane: LaneId,
        /// The session it joins.
        session: [u8; SESSION_ID_BYTES],
    },
    /// This side has read the hello, and welcomes.
    Server {
        /// The number the client gave it.
        lane: LaneId,
    },
}

impl Opening {
    fn lane(&self) -> LaneId {
        match self {
            Self::Client { lane, .. } | Self::Server { lane } => *lane,
        }
    }
}

/// A piece on its way out.
#[derive(Debug)]
struct Sending {
    piece: Piece,
    sent: u32,
}

/// One lane, owned by its mover.
pub(super) struct Lane {
    pub(super) id: LaneId,
    epoch: u16,
    pub(super) tcp: TcpStream,
    keys: Keys,
    inbox: Inbox,
    outbox: Outbox,
    pub(super) status: Arc<LaneStatus>,
    /// Pieces to tell the peer of.
    stored: Vec<u64>,
    declined: Vec<u64>,
    sending: Option<Sending>,
    /// The server has answered, or this is the server.
    welcomed: bool,
    // What epoll last said, until the socket says otherwise.
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// In the mover's `ready` queue.
    pub(super) queued: bool,
    /// Had room and found no work.
    pub(super) hungry: bool,
}

/// Whether a lane has more to do at once.
#[derive(PartialEq, Eq)]
pub(super) enum Turn {
    More,
    Wait,
}

impl Lane {
    /// Says the first words.
    ///
    /// # Errors
    /// No more descriptors.
    pub(super) fn open(
        tcp: TcpStream,
        keys: Keys,
        inbox: Inbox,
        opening: Opening,
        epoch: u16,
    ) -> io::Result<Self> {
        let id = opening.lane();
        let status = LaneStatus {
            id,
            tcp: tcp.try_clone()?,
            draining: AtomicBool::new(false),
            inbox_bytes: AtomicU64::new(0),
        };
        let mut lane = Self {
            id,
            epoch,
            tcp,
            keys,
            inbox,
            outbox: Outbox::new(),
            status: Arc::new(status),
            stored: Vec::new(),
            declined: Vec::new(),
            sending: None,
            welcomed: matches!(opening, Opening::Server { .. }),
            readable: true,
            writable: true,
            queued: false,
            hungry: false,
        };
        match opening {
            Opening::Client { lane: number, session } => {
                lane.outbox.push_hello(&mut lane.keys, epoch, number, &session);
            }
            Opening::Server { .. } => lane.outbox.push_welcome(&mut lane.keys, epoch),
        }
        Ok(lane)
    }

    /// Reads, handles, composes and writes, up to [`TURN_BYTES`] each way, and of one piece.
    pub(super) fn turn(&mut self, shared: &Lanes) -> Result<Turn, LaneEnd> {
        if self.epoch != shared.epoch() {
            return Err(LaneEnd::Stale);
        }
        self.receive(shared)?;
        self.send(shared)?;
        let more = self.readable || (self.writable && !self.hungry);
        Ok(if more { Turn::More } else { Turn::Wait })
    }

    fn receive(&mut self, shared: &Lanes) -> Result<(), LaneEnd> {
        let mut budget = TURN_BYTES;
        loop {
            while let Some(frame) = self.inbox.next_frame(&mut self.keys)? {
                self.handle(&frame, shared)?;
            }
            self.status.inbox_bytes.store(self.inbox.held_bytes() as u64, Ordering::Relaxed);
            if self.inbox.is_closed() {
                return Err(LaneEnd::Goodbye);
            }
            if !self.readable || budget == 0 {
                return Ok(());
            }
            match (&self.tcp).read(self.inbox.room()) {
                Ok(0) => return Err(LaneEnd::Io(ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => {
                    self.inbox.filled(bytes);
                    budget = budget.saturating_sub(bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn handle(&mut self, frame: &FrameHeader, shared: &Lanes) -> Result<(), LaneEnd> {
        if frame.epoch != self.epoch {
            return Err(LaneEnd::Stale);
        }
        match frame.kind {
            FrameKind::Piece(piece) => self.store(frame, piece, shared)?,
            FrameKind::Stored => {
                let now = shared.now();
                for number in decode_numbers(self.inbox.payload(frame)) {
                    let piece = shared.scheduler().on_stored(number, now);
                    if let Some(piece) = piece {
                        shared.pieces.delivered(piece.extent());
                    }
                }
            }
            FrameKind::Declined => {
                for number in decode_numbers(self.inbox.payload(frame)) {
                    let piece = shared.scheduler().on_declined(number);
                    if let Some(piece) = piece {
                        shared.pieces.declined(piece.extent());
                    }
                }
            }
            FrameKind::Welcome if !self.welcomed => {
                self.welcomed = true;
                shared.tell(LaneNews::Welcomed(self.id));
            }
            FrameKind::Welcome | FrameKind::Hello { .. } => return Err(LaneEnd::Unexpected),
        }
        Ok(())
    }

    fn store(&mut self, frame: &FrameHeader, piece: PieceFrame, shared: &Lanes) -> Result<(), LaneEnd> {
        let data = self.inbox.payload(frame);
        if checksum(data) != piece.checksum {
            return Err(WireError::Checksum.into());
        }
        shared.traffic.received.fetch_add(data.len() as u64, Ordering::Relaxed);
        let began = Instant::now();
        let stored = shared.pieces.store(piece.object, piece.offset, data, piece.checksum);
        shared.traffic.store_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if piece.last {
            match stored {
                Stored::Kept => self.stored.push(piece.piece),
                Stored::Unwanted => self.declined.push(piece.piece),
            }
            if self.stored.len() + self.declined.len() > ACKS_WAITING_MAX {
                return Err(LaneEnd::Unread);
            }
        }
        Ok(())
    }

    fn send(&mut self, shared: &Lanes) -> Result<(), LaneEnd> {
        self.hungry = false;
        if !self.writable {
            return Ok(());
        }
        let mut budget = TURN_BYTES;
        // The next piece is for the next lane: where little waits, all of them have some of it.
        let mut may_begin = true;
        while self.writable && budget > 0 {
            if self.outbox.unsent().is_empty() && !self.compose(shared, &mut may_begin)? {
                self.hungry = may_begin;
                return Ok(());
            }
            match (&self.tcp).write(self.outbox.unsent()) {
                Ok(bytes) => {
                    self.outbox.sent(bytes);
                    budget = budget.saturating_sub(bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Puts answers and the next frame of a piece into the outbox; false when there is nothing to send. A piece more, if this turn
    /// `may_begin` one, and has none yet.
    fn compose(&mut self, shared: &Lanes, may_begin: &mut bool) -> Result<bool, LaneEnd> {
        self.outbox.refresh_keys(&mut self.keys)?;
        let (outbox, keys) = (&mut self.outbox, &mut self.keys);
        outbox.push_numbers(keys, self.epoch, FrameKind::Stored, &mut self.stored);
        outbox.push_numbers(keys, self.epoch, FrameKind::Declined, &mut self.declined);
        while self.sending.is_some() || (*may_begin && self.take_piece(shared)?) {
            *may_begin = false;
            if self.compose_piece(shared) {
                break;
            }
        }
        Ok(!self.outbox.unsent().is_empty())
    }

    /// False when there is no piece for this lane.
    fn take_piece(&mut self, shared: &Lanes) -> Result<bool, LaneEnd> {
        if self.status.draining.load(Ordering::Relaxed) {
            if shared.scheduler().lane_is_idle(self.id) {
                return Err(LaneEnd::Goodbye);
            }
            return Ok(false);
        }
        let (piece, has_room) = {
            let now = shared.now();
            let mut scheduler = shared.scheduler();
            (scheduler.take(self.id, now), scheduler.has_room())
        };
        if has_room {
            shared.queue_has_room.notify_waiters();
        }
        self.sending = piece.map(|piece| Sending { piece, sent: 0 });
        Ok(self.sending.is_some())
    }

    /// Adds the next frame of the piece under way; false when the application has withdrawn it.
    fn compose_piece(&mut self, shared: &Lanes) -> bool {
        let Some(Sending { piece, sent }) = &mut self.sending else { return false };
        let length = (piece.length - *sent).min(FRAME_PAYLOAD_MAX as u32);
        let offset = piece.offset + u64::from(*sent);
        let last = *sent + length == piece.length;
        let frame = PieceFrame { piece: piece.number, object: piece.object, offset, checksum: 0, last };
        let filled = match shared.pieces.lend(piece.object, offset, length as usize) {
            Some(data) => {
                self.outbox.push_lent(&mut self.keys, self.epoch, frame, &data);
                Ok(())
            }
            None => {
                let began = Instant::now();
                self.outbox.push_piece(&mut self.keys, self.epoch, frame, length as usize, |into| {
                    let filled = shared.pieces.fill(piece.object, offset, into);
                    shared.traffic.fill_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    filled
                })
            }
        };
        *sent += length;
        let piece = *piece;
        if last || filled.is_err() {
            self.sending = None;
        }
        match filled {
            Ok(()) => {
                shared.traffic.sent.fetch_add(u64::from(length), Ordering::Relaxed);
                true
            }
            Err(Withdrawn) => {
                let given_up = shared.scheduler().on_declined(piece.number);
                if let Some(piece) = given_up {
                    shared.pieces.declined(piece.extent());
                }
                false
            }
        }
    }

    /// The last words of a lane that ends in order.
    pub(super) fn say_goodbye(&mut self) {
        if self.outbox.unsent().is_empty() {
            self.outbox.push_goodbye(&mut self.keys);
            let _ = (&self.tcp).write(self.outbox.unsent()); // one small record; without it the peer sees an end too
        }
        let _ = self.tcp.shutdown(std::net::Shutdown::Write);
    }
}
