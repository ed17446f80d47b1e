//! What the two ends of a session say to each other about the session itself. Protocol Buffers, so that a later
//! version may add fields; the application's own requests travel beside them, opaque.

use bytes::{BufMut, Bytes, BytesMut};
use prost::{Message, Oneof};

/// The first request on every control link.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Hello {
    /// [`PROTOCOL_VERSION`] of the client.
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    /// 16 random bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) session: Bytes,
    /// 0 for a new session; one more for each further link of it.
    #[prost(uint32, tag = "3")]
    pub(crate) epoch: u32,
    /// How a new session's lanes shall be set up at the server as well.
    #[prost(message, optional, tag = "4")]
    pub(crate) lanes: Option<LaneWishes>,
    /// What a new session is about: the application's own word.
    #[prost(string, tag = "5")]
    pub(crate) service: String,
}

/// What the person at the client insists on; 0 stands for no wish.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LaneWishes {
    /// A fixed number of lanes.
    #[prost(uint32, tag = "1")]
    pub(crate) lanes: u32,
    /// Longest piece of a file that one lane carries at a time, in bytes.
    #[prost(uint32, tag = "2")]
    pub(crate) piece_bytes_max: u32,
    /// Size of the sockets' buffers in bytes.
    #[prost(uint32, tag = "3")]
    pub(crate) socket_buffer: u32,
    /// Bytes per second that all lanes together may send.
    #[prost(uint64, tag = "4")]
    pub(crate) rate_max: u64,
}

/// The server's answer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Welcome {
    /// Absent: come in.
    #[prost(message, optional, tag = "1")]
    pub(crate) refusal: Option<Refusal>,
    /// [`PROTOCOL_VERSION`] of the server.
    #[prost(uint32, tag = "2")]
    pub(crate) version: u32,
    // Tag 3 was a number of lanes that nobody read: not to be used again.
}

/// Why not.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Refusal {
    #[prost(enumeration = "RefusalCode", tag = "1")]
    pub(crate) code: i32,
    /// In words.
    #[prost(string, tag = "2")]
    pub(crate) reason: String,
}

/// Kinds of refusal that the client explains better than the server can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum RefusalCode {
    /// See the reason.
    Other = 0,
    /// The client's key is not in `authorized_keys`.
    UnknownKey = 1,
    /// The protocol versions have nothing in common.
    Version = 2,
    /// The session to be continued is not known: the server was restarted, or has given it up.
    NoSession = 3,
    /// Too many sessions.
    Full = 4,
}

/// A request about the session.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionRequest {
    #[prost(oneof = "Ask", tags = "1, 2, 3")]
    pub(crate) ask: Option<Ask>,
}

/// The requests.
#[derive(Clone, Copy, PartialEq, Oneof)]
pub(crate) enum Ask {
    /// Are you there?
    #[prost(bool, tag = "1")]
    Ping(bool),
    /// The sending side of the server wants so many lanes.
    #[prost(uint32, tag = "2")]
    Lanes(u32),
    /// The session is over.
    #[prost(bool, tag = "3")]
    Bye(bool),
}

/// The version of everything that travels.
pub(crate) const PROTOCOL_VERSION: u32 = 1;

const ABOUT_SESSION: u8 = 0;
const FOR_APPLICATION: u8 = 1;

/// Whom a request is for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    Session(Ask),
    Application(Bytes),
}

impl Body {
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Self::Session(ask) => {
                let mut bytes = BytesMut::new();
                bytes.put_u8(ABOUT_SESSION);
                bytes.extend_from_slice(&SessionRequest { ask: Some(*ask) }.encode_to_vec());
                bytes.freeze()
            }
            Self::Application(body) => {
                let mut bytes = BytesMut::with_capacity(1 + body.len());
                bytes.put_u8(FOR_APPLICATION);
                bytes.extend_from_slice(body);
                bytes.freeze()
            }
        }
    }

    /// `None` for what this version does not know.
    pub(crate) fn decode(bytes: &Bytes) -> Option<Self> {
        match *bytes.first()? {
            ABOUT_SESSION => SessionRequest::decode(bytes.slice(1..)).ok()?.ask.map(Self::Session),
            FOR_APPLICATION => Some(Self::Application(bytes.slice(1..))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bodies_round_trip() {
        for body in [
            Body::Session(Ask::Ping(true)),
            Body::Session(Ask::Lanes(48)),
            Body::Session(Ask::Bye(true)),
            Body::Application(Bytes::from_static(b"x")),
        ] {
            assert_eq!(Body::decode(&body.encode()), Some(body));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_body_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let bytes = Bytes::from(bytes);
            let _ = (Body::decode(&bytes), Hello::decode(bytes.clone()), Welcome::decode(bytes));
        }
    }
}
