//! A lane's two buffers. Pure: bytes in, frames out; frames in, bytes out.
//!
//! Per byte received: one copy out of the kernel into [`Inbox`]'s raw buffer, one pass that opens it into the frame
//! buffer, from where it goes to its place. Per byte sent: it is read into its place in [`Outbox`] and sealed there, or sealed
//! into that place from the memory it is in, and copied into the kernel. Both buffers fit a core's second-level cache, so main memory sees a byte twice a side.

use std::io::IoSliceMut;

use crate::lane::frame::{
    FRAME_HEADER_BYTES, FrameError, FrameHeader, FrameKind, PieceFrame, SESSION_ID_BYTES, encode_numbers,
};
use crate::lane::record::{HEADER_BYTES, Opener, PLAINTEXT_MAX, RECORD_MAX, RecordError, TRAILER_BYTES};
use crate::limits::{ACKS_PER_FRAME_MAX, ALIGNMENT, FRAME_PAYLOAD_MAX, INBOX_BYTES};
use crate::secure::{Keys, Opened};

/// What ends a lane: the peer broke the rules, or the bytes were changed on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// In a record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// In a frame's header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The bytes are not those that were read at the sender.
    #[error(
        "the checksum of a piece does not fit: the bytes were changed in the sender's or receiver's memory"
    )]
    Checksum,
}

/// Memory whose start can be used for direct I/O.
#[derive(Debug)]
struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// The receiving side.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Records as they came.
    raw: Box<[u8]>,
    raw_start: usize,
    raw_end: usize,
    /// Opened bytes that did not go straight to a payload: headers, short frames.
    loose: Box<[u8]>,
    loose_start: usize,
    loose_end: usize,
    header: [u8; FRAME_HEADER_BYTES],
    header_len: usize,
    frame: Option<FrameHeader>,
    payload: AlignedBuffer,
    payload_len: usize,
    closed: bool,
}

/// A record's worth of room beyond a full payload: its content type and padding land there.
const SLACK: usize = PLAINTEXT_MAX + 256 + 1;

impl Inbox {
    /// Empty, but for what came with the handshake.
    pub(crate) fn new(received: &[u8]) -> Self {
        let size = INBOX_BYTES.max(received.len());
        let mut raw = vec![0; size].into_boxed_slice();
        raw[..received.len()].copy_from_slice(received);
        Self {
            raw,
            raw_start: 0,
            raw_end: received.len(),
            loose: vec![0; SLACK].into_boxed_slice(),
            loose_start: 0,
            loose_end: 0,
            header: [0; FRAME_HEADER_BYTES],
            header_len: 0,
            frame: None,
            payload: AlignedBuffer::new(FRAME_PAYLOAD_MAX + SLACK),
            payload_len: 0,
            closed: false,
        }
    }

    /// Where the next bytes from the socket go. Never empty: a whole record always fits.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.raw_start == self.raw_end {
            (self.raw_start, self.raw_end) = (0, 0);
        } else if self.raw.len() - self.raw_end < RECORD_MAX + SLACK {
            // At most the part of one record is left over.
            self.raw.copy_within(self.raw_start..self.raw_end, 0);
            self.raw_end -= self.raw_start;
            self.raw_start = 0;
        }
        &mut self.raw[self.raw_end..]
    }

    /// So many bytes were put into [`room`](Self::room).
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.raw_end += bytes;
    }

    /// The peer has said goodbye.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Bytes held: received and not yet part of a finished frame.
    pub(crate) fn held_bytes(&self) -> usize {
        self.raw_end - self.raw_start + self.loose_end - self.loose_start + self.payload_len
    }

    /// The next whole frame; its payload is [`payload`](Self::payload) until the next call.
    pub(crate) fn next_frame(&mut self, keys: &mut Keys) -> Result<Option<FrameHeader>, WireError> {
        loop {
            if let Some(frame) = self.frame
                && self.payload_len == frame.length as usize
            {
                self.frame = None;
                return Ok(Some(frame));
            }
            if self.loose_start < self.loose_end {
                self.take_loose()?;
                continue;
            }
            if self.closed || !self.open_record(keys)? {
                return Ok(None);
            }
        }
    }

    /// The payload of the frame that [`next_frame`](Self::next_frame) gave, at an address fit for direct I/O.
    pub(crate) fn payload(&self, frame: &FrameHeader) -> &[u8] {
        &self.payload.bytes()[..frame.length as usize]
    }

    /// Moves loose bytes to where they belong: a header, or a payload.
    fn take_loose(&mut self) -> Result<(), WireError> {
        let loose = &self.loose[self.loose_start..self.loose_end];
        let taken = match self.frame {
            None => {
                let taken = loose.len().min(FRAME_HEADER_BYTES - self.header_len);
                self.header[self.header_len..self.header_len + taken].copy_from_slice(&loose[..taken]);
                self.header_len += taken;
                if self.header_len == FRAME_HEADER_BYTES {
                    self.frame = Some(FrameHeader::decode(&self.header)?);
                    self.header_len = 0;
                    self.payload_len = 0;
                }
                taken
            }
            Some(frame) => {
                let taken = loose.len().min(frame.length as usize - self.payload_len);
                let to = &mut self.payload.bytes_mut()[self.payload_len..self.payload_len + taken];
                to.copy_from_slice(&loose[..taken]);
                self.payload_len += taken;
                taken
            }
        };
        self.loose_start += taken;
        Ok(())
    }

    /// Opens the next record, into the payload where it belongs to it whole; false when none is there whole.
    fn open_record(&mut self, keys: &mut Keys) -> Result<bool, WireError> {
        let waiting = &self.raw[self.raw_start..self.raw_end];
        let Some(len) = Opener::record_bytes(waiting)?.filter(|&len| len <= waiting.len()) else {
            return Ok(false);
        };
        let record = &waiting[..len];
        let wanted = self.frame.map_or(0, |frame| frame.length as usize - self.payload_len);
        // One of the opened bytes is the content type.
        let straight = Opener::opened_bytes(record) <= wanted + 1;
        let opened = if straight {
            keys.open(record, &mut self.payload.bytes_mut()[self.payload_len..])?
        } else {
            keys.open(record, &mut self.loose)?
        };
        match opened {
            Opened::Data(bytes) if straight => self.payload_len += bytes,
            Opened::Data(bytes) => (self.loose_start, self.loose_end) = (0, bytes),
            Opened::Nothing => {}
            Opened::Closed => self.closed = true,
        }
        self.raw_start += len;
        Ok(true)
    }
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct Outbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

const RECORDS_PER_FRAME: usize = FRAME_PAYLOAD_MAX / PLAINTEXT_MAX;
const FRAME_HEADER_RECORD: usize = HEADER_BYTES + FRAME_HEADER_BYTES + TRAILER_BYTES;
const NUMBERS_RECORD: usize = FRAME_HEADER_RECORD + ACKS_PER_FRAME_MAX * 8;

/// A key update, both kinds of answers, and a full frame.
const OUTBOX_BYTES: usize = 64 + 2 * NUMBERS_RECORD + FRAME_HEADER_RECORD + RECORDS_PER_FRAME * RECORD_MAX;

impl Outbox {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; OUTBOX_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Sealed bytes that the socket has not taken yet.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The socket took so many.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Adds the first frame of a client's lane.
    pub(crate) fn push_hello(
        &mut self,
        keys: &mut Keys,
        epoch: u16,
        lane: u64,
        session: &[u8; SESSION_ID_BYTES],
    ) {
        let kind = FrameKind::Hello { lane };
        self.push_small(keys, &FrameHeader { epoch, kind, length: SESSION_ID_BYTES as u32 }, session);
    }

    /// Adds the server's answer to it.
    pub(crate) fn push_welcome(&mut self, keys: &mut Keys, epoch: u16) {
        self.push_small(keys, &FrameHeader { epoch, kind: FrameKind::Welcome, length: 0 }, &[]);
    }

    /// Adds `kind`, `Stored` or `Declined`, for as many of `numbers` as fit one frame, and removes those.
    pub(crate) fn push_numbers(
        &mut self,
        keys: &mut Keys,
        epoch: u16,
        kind: FrameKind,
        numbers: &mut Vec<u64>,
    ) {
        let some = numbers.len().min(ACKS_PER_FRAME_MAX);
        if some > 0 {
            let payload = encode_numbers(&numbers[..some]);
            self.push_small(keys, &FrameHeader { epoch, kind, length: payload.len() as u32 }, &payload);
            numbers.drain(..some);
        }
    }

    /// Adds a goodbye.
    pub(crate) fn push_goodbye(&mut self, keys: &mut Keys) {
        self.push_bytes(&keys.close_notify());
    }

    /// Adds the key update where one is due.
    pub(crate) fn refresh_keys(&mut self, keys: &mut Keys) -> Result<(), WireError> {
        if let Some(update) = keys.refresh()? {
            self.push_bytes(&update);
        }
        Ok(())
    }

    /// Adds a frame of `length` bytes of a piece. `fill` writes the bytes into the places given to it; when it fails,
    /// nothing is added.
    pub(crate) fn push_piece<E>(
        &mut self,
        keys: &mut Keys,
        epoch: u16,
        piece: PieceFrame,
        length: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (head, body) = self.place(length);
        let mut digest = crc_fast::Digest::new(CHECKSUM);
        {
            // A record is as long as its plaintext and both its ends: the last one may be short.
            let mut places: Vec<IoSliceMut<'_>> = body
                .chunks_mut(RECORD_MAX)
                .map(|record| {
                    let end = record.len() - TRAILER_BYTES;
                    IoSliceMut::new(&mut record[HEADER_BYTES..end])
                })
                .collect();
            fill(&mut places)?;
            places.iter().for_each(|place| digest.update(place));
        }
        seal_head(keys, head, epoch, PieceFrame { checksum: digest.finalize(), ..piece }, length);
        body.chunks_mut(RECORD_MAX).for_each(|record| keys.seal(record));
        self.end += head.len() + body.len();
        Ok(())
    }

    /// Adds a frame of bytes of a piece that are in memory.
    pub(crate) fn push_lent(&mut self, keys: &mut Keys, epoch: u16, piece: PieceFrame, data: &[u8]) {
        let (head, body) = self.place(data.len());
        seal_head(keys, head, epoch, PieceFrame { checksum: checksum(data), ..piece }, data.len());
        let records = body.chunks_mut(RECORD_MAX).zip(data.chunks(PLAINTEXT_MAX));
        records.for_each(|(record, text)| keys.seal_from(text, record));
        self.end += head.len() + body.len();
    }

    /// Where a frame of so many bytes goes: the record of its header, and those of its payload.
    fn place(&mut self, length: usize) -> (&mut [u8], &mut [u8]) {
        debug_assert!((1..=FRAME_PAYLOAD_MAX).contains(&length));
        let payload_bytes = length + length.div_ceil(PLAINTEXT_MAX) * (HEADER_BYTES + TRAILER_BYTES);
        self.bytes[self.end..][..FRAME_HEADER_RECORD + payload_bytes].split_at_mut(FRAME_HEADER_RECORD)
    }

    /// A frame whose payload fits the header's record.
    fn push_small(&mut self, keys: &mut Keys, header: &FrameHeader, payload: &[u8]) {
        let len = FRAME_HEADER_RECORD + payload.len();
        let record = &mut self.bytes[self.end..self.end + len];
        let text = &mut record[HEADER_BYTES..len - TRAILER_BYTES];
        text[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode());
        text[FRAME_HEADER_BYTES..].copy_from_slice(payload);
        keys.seal(record);
        self.end += len;
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }
}

fn seal_head(keys: &mut Keys, head: &mut [u8], epoch: u16, piece: PieceFrame, length: usize) {
    let header = FrameHeader { epoch, kind: FrameKind::Piece(piece), length: length as u32 }.encode();
    head[HEADER_BYTES..HEADER_BYTES + FRAME_HEADER_BYTES].copy_from_slice(&header);
    keys.seal(head);
}

/// The end-to-end checksum of a frame's payload.
pub(crate) const CHECKSUM: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc64Nvme;

/// The checksum of `payload`.
pub(crate) fn checksum(payload: &[u8]) -> u64 {
    crc_fast::checksum(CHECKSUM, payload)
}
