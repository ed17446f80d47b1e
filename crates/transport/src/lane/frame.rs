//! What travels on a lane: frames, each a fixed header and a payload. Pure.
//!
//! ```text
//! byte 0      1       2        4          8        16        24        32          40
//!      | kind | flags | epoch  | length   | piece  | object  | offset  | checksum  |  payload, `length` bytes
//! ```
//!
//! Little-endian. A piece travels as one or more frames, in order, on one lane; its last frame is flagged. The
//! receiver answers with the numbers of the pieces it has stored, or does not want any more.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::{ACKS_PER_FRAME_MAX, FRAME_PAYLOAD_MAX};

/// Size of a frame's header.
pub(crate) const FRAME_HEADER_BYTES: usize = size_of::<WireHeader>();

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireHeader {
    kind: u8,
    flags: u8,
    epoch: U16,
    length: U32,
    piece: U64,
    object: U64,
    offset: U64,
    checksum: U64,
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const PIECE: u8 = 3;
const STORED: u8 = 4;
const DECLINED: u8 = 5;

const LAST: u8 = 1;

/// A frame's header, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// The session's epoch at the sender.
    pub(crate) epoch: u16,
    /// What the frame is.
    pub(crate) kind: FrameKind,
    /// Payload bytes.
    pub(crate) length: u32,
}

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Client to server, first of all: the lane's session (16 bytes of payload) and its number there.
    Hello {
        /// The lane's number.
        lane: u64,
    },
    /// The server's answer.
    Welcome,
    /// Bytes of an object.
    Piece(PieceFrame),
    /// Payload: numbers of pieces whose bytes are stored.
    Stored,
    /// Payload: numbers of pieces that are not wanted any more.
    Declined,
}

/// A part of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceFrame {
    /// The sender's number for the piece, in this session.
    pub(crate) piece: u64,
    /// Whose bytes.
    pub(crate) object: u64,
    /// Where in the object the payload belongs.
    pub(crate) offset: u64,
    /// CRC-64/NVME of the payload, from the time it was read.
    pub(crate) checksum: u64,
    /// The piece ends with this frame.
    pub(crate) last: bool,
}

/// A header that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// From a newer version, or garbage.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// More than is ever sent.
    #[error("a frame of kind {kind} with {length} bytes of payload")]
    BadLength {
        /// As in the header.
        kind: u8,
        /// As in the header.
        length: u32,
    },
    /// Beyond the end of any object.
    #[error("bytes at offset {0} of an object")]
    BadOffset(u64),
    /// Nobody opens so many.
    #[error("lane number {0}")]
    BadLane(u64),
}

impl FrameHeader {
    /// As bytes.
    pub(crate) fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut wire = WireHeader {
            kind: 0,
            flags: 0,
            epoch: self.epoch.into(),
            length: self.length.into(),
            piece: 0.into(),
            object: 0.into(),
            offset: 0.into(),
            checksum: 0.into(),
        };
        match self.kind {
            FrameKind::Hello { lane } => {
                wire.kind = HELLO;
                wire.piece = lane.into();
            }
            FrameKind::Welcome => wire.kind = WELCOME,
            FrameKind::Piece(piece) => {
                wire.kind = PIECE;
                wire.flags = if piece.last { LAST } else { 0 };
                wire.piece = piece.piece.into();
                wire.object = piece.object.into();
                wire.offset = piece.offset.into();
                wire.checksum = piece.checksum.into();
            }
            FrameKind::Stored => wire.kind = STORED,
            FrameKind::Declined => wire.kind = DECLINED,
        }
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes.copy_from_slice(wire.as_bytes());
        bytes
    }

    /// From a peer's bytes; every length that follows from it is within bounds.
    pub(crate) fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, FrameError> {
        let wire: WireHeader = zerocopy::transmute!(*bytes);
        let length = wire.length.get();
        let bad_length = FrameError::BadLength { kind: wire.kind, length };
        let (kind, fits) = match wire.kind {
            HELLO => {
                let lane = wire.piece.get();
                if lane > LANE_NUMBER_MAX {
                    return Err(FrameError::BadLane(lane));
                }
                (FrameKind::Hello { lane }, length == SESSION_ID_BYTES as u32)
            }
            WELCOME => (FrameKind::Welcome, length == 0),
            PIECE => {
                let offset = wire.offset.get();
                // Linux' own bound of a file's size.
                if offset.checked_add(u64::from(length)).is_none_or(|end| end > i64::MAX as u64) {
                    return Err(FrameError::BadOffset(offset));
                }
                let piece = PieceFrame {
                    piece: wire.piece.get(),
                    object: wire.object.get(),
                    offset,
                    checksum: wire.checksum.get(),
                    last: wire.flags & LAST != 0,
                };
                (FrameKind::Piece(piece), (1..=FRAME_PAYLOAD_MAX as u32).contains(&length))
            }
            STORED | DECLINED => {
                let kind = if wire.kind == STORED { FrameKind::Stored } else { FrameKind::Declined };
                (kind, length > 0 && length.is_multiple_of(8) && length as usize / 8 <= ACKS_PER_FRAME_MAX)
            }
            kind => return Err(FrameError::UnknownKind(kind)),
        };
        if fits { Ok(Self { epoch: wire.epoch.get(), kind, length }) } else { Err(bad_length) }
    }
}

/// Names a session; random, never used again.
pub(crate) const SESSION_ID_BYTES: usize = 16;

/// The highest number a lane may have. A mover's own descriptor has the one above it in the same set.
pub(crate) const LANE_NUMBER_MAX: u64 = u64::MAX - 1;

/// The piece numbers in the payload of a `Stored` or `Declined` frame.
pub(crate) fn decode_numbers(payload: &[u8]) -> impl Iterator<Item = u64> + '_ {
    payload.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The payload of a `Stored` or `Declined` frame.
pub(crate) fn encode_numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = FrameHeader> {
        let piece = (any::<u64>(), any::<u64>(), 0..1u64 << 62, any::<u64>(), any::<bool>()).prop_map(
            |(piece, object, offset, checksum, last)| {
                FrameKind::Piece(PieceFrame { piece, object, offset, checksum, last })
            },
        );
        prop_oneof![
            (0..=LANE_NUMBER_MAX, any::<u16>()).prop_map(|(lane, epoch)| FrameHeader {
                epoch,
                kind: FrameKind::Hello { lane },
                length: 16
            }),
            any::<u16>().prop_map(|epoch| FrameHeader { epoch, kind: FrameKind::Welcome, length: 0 }),
            (any::<u16>(), piece, 1..=FRAME_PAYLOAD_MAX as u32)
                .prop_map(|(epoch, kind, length)| FrameHeader { epoch, kind, length }),
            (any::<u16>(), 1..=ACKS_PER_FRAME_MAX as u32).prop_map(|(epoch, n)| FrameHeader {
                epoch,
                kind: FrameKind::Stored,
                length: n * 8
            }),
            (any::<u16>(), 1..=ACKS_PER_FRAME_MAX as u32).prop_map(|(epoch, n)| FrameHeader {
                epoch,
                kind: FrameKind::Declined,
                length: n * 8
            }),
        ]
    }

    proptest! {
        #[test]
        fn headers_round_trip(header in kinds()) {
            prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn any_bytes_are_a_bounded_header_or_an_error(bytes in any::<[u8; FRAME_HEADER_BYTES]>(), kind in 0u8..8) {
            let mut bytes = bytes;
            bytes[0] = kind;
            if let Ok(header) = FrameHeader::decode(&bytes) {
                prop_assert!(header.length as usize <= FRAME_PAYLOAD_MAX);
            }
        }

        #[test]
        fn numbers_round_trip(numbers in prop::collection::vec(any::<u64>(), 0..50)) {
            prop_assert_eq!(decode_numbers(&encode_numbers(&numbers)).collect::<Vec<_>>(), numbers);
        }
    }

    #[test]
    fn impossible_headers_are_named() {
        let mut bytes = FrameHeader { epoch: 0, kind: FrameKind::Welcome, length: 0 }.encode();
        bytes[0] = 99;
        assert_eq!(FrameHeader::decode(&bytes), Err(FrameError::UnknownKind(99)));
        let piece = PieceFrame { piece: 1, object: 1, offset: u64::MAX, checksum: 0, last: true };
        let header = FrameHeader { epoch: 0, kind: FrameKind::Piece(piece), length: 8 };
        assert_eq!(FrameHeader::decode(&header.encode()), Err(FrameError::BadOffset(u64::MAX)));
        let lane = LANE_NUMBER_MAX + 1;
        let header = FrameHeader { epoch: 0, kind: FrameKind::Hello { lane }, length: 16 };
        assert_eq!(FrameHeader::decode(&header.encode()), Err(FrameError::BadLane(lane)));
    }
}
