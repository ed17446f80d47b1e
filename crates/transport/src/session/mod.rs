//! A session: one control channel and a changing number of data lanes between two hosts that know each other's keys.

mod client;
mod handshakes;
pub(crate) mod message;
mod regulate;
mod server;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

pub use client::{ConnectError, ConnectOptions, ControlChoice, connect};
pub use regulate::{LaneSample, SessionSample};
pub use server::{Door, Refused, Server, ServerOptions};

use crate::control::{Answer, Control, ControlGone};
use crate::identity::PublicKey;
use crate::lane::frame::SESSION_ID_BYTES;
use crate::lane::mover::{Lanes, Pieces};
use crate::limits::{
    CONTROL_BODY_BYTES_MAX, LANES_MAX, MOVERS_MAX, OUT_OF_REACH_LIMIT, PIECE_BYTES_DEFAULT, PIECE_BYTES_MAX,
    PIECE_BYTES_MIN,
};
use crate::socket::LaneSocketOptions;
use message::{Ask, Body, LaneWishes};

/// Names a session.
pub(crate) type SessionId = [u8; SESSION_ID_BYTES];

/// The application at one end of a session.
pub trait Handler: Pieces {
    /// Carries out a request of the peer's. Called for several requests at a time; a request that is repeated after a
    /// broken link is carried out once.
    fn request(
        self: Arc<Self>,
        session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>>;

    /// The session is over; nothing is called any more.
    fn ended(&self, _end: &SessionEnd) {}
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionEnd {
    /// This side has closed it.
    #[error("the session was closed here")]
    Closed,
    /// The peer has closed it.
    #[error("the session was closed by the peer")]
    ClosedByPeer,
    /// The peer could not be reached for so long.
    #[error("the peer was out of reach for {0:?}")]
    OutOfReach(Duration),
    /// The server was restarted or has given the session up.
    #[error("the server does not know the session any more: it was restarted")]
    Forgotten,
    /// The connection broke, and another one was refused.
    #[error("the connection broke, and cannot be made again: {0}")]
    NotResumed(String),
    /// A defect, or a lack of resources, at this side.
    #[error("this side has failed: {0}")]
    Broken(String),
    /// The control channel works, but no data lane can be opened.
    #[error("no data lane can be opened: {0}")]
    NoLanes(String),
}

/// Why a request has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The session is over.
    #[error(transparent)]
    Ended(#[from] SessionEnd),
    /// The message is longer than [`CONTROL_BODY_BYTES_MAX`].
    #[error(
        "a control message of {0} bytes is too long (at most {CONTROL_BODY_BYTES_MAX}); it becomes shorter with fewer or \
         shorter names and patterns on the command line"
    )]
    TooLong(usize),
}

/// One end of a session. Clones are the same session; it lasts until [`close`](Self::close), by either end, or until
/// the other end has been out of reach for too long.
#[derive(Clone, Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    id: SessionId,
    peer: PublicKey,
    /// Where the peer was when the session began.
    remote: SocketAddr,
    control: Arc<Control>,
    lanes: Arc<Lanes>,
    handler: Arc<dyn Handler>,
    /// How many lanes there should be: the larger wish of the two ends.
    wanted: watch::Sender<Wanted>,
    end: watch::Sender<Option<SessionEnd>>,
    settings: LaneSettings,
    /// Bytes per second that the lanes may send now; 0: no cap.
    pacing_cap: AtomicU64,
}

/// How a session's lanes are set up.
#[derive(Clone, Copy, Debug)]
pub struct LaneSettings {
    /// A fixed number of lanes, for those who insist; `None`: as many as the path needs.
    pub lanes: Option<usize>,
    /// Longest piece of a file that one lane carries at a time.
    pub piece_bytes_max: u32,
    /// Size of the sockets' buffers, for those who insist.
    pub socket_buffer: Option<u32>,
    /// Bytes per second that all lanes together may send.
    pub rate_max: Option<u64>,
    /// A client's session that has no lane for so long, although its control channel works, is over.
    pub laneless_max: Duration,
}

impl Default for LaneSettings {
    fn default() -> Self {
        Self {
            lanes: None,
            piece_bytes_max: PIECE_BYTES_DEFAULT,
            socket_buffer: None,
            rate_max: None,
            laneless_max: OUT_OF_REACH_LIMIT,
        }
    }
}

impl LaneSettings {
    /// Threads that move this host's bytes.
    fn movers() -> usize {
        std::thread::available_parallelism().map_or(2, |cores| 2 * usize::from(cores)).min(MOVERS_MAX)
    }

    /// As a client tells its server.
    fn wishes(&self) -> LaneWishes {
        LaneWishes {
            lanes: self.lanes.map_or(0, |lanes| lanes as u32),
            piece_bytes_max: self.piece_bytes_max,
            socket_buffer: self.socket_buffer.unwrap_or(0),
            rate_max: self.rate_max.unwrap_or(0),
        }
    }

    /// A server's own, for a client with these wishes: it never sends faster than it would by itself.
    fn for_client(&self, wishes: Option<LaneWishes>) -> Self {
        let LaneWishes { lanes, piece_bytes_max, socket_buffer, rate_max } = wishes.unwrap_or_default();
        let wish = |number: u32| (number > 0).then_some(number);
        Self {
            lanes: wish(lanes).map(|lanes| (lanes as usize).min(LANES_MAX)).or(self.lanes),
            piece_bytes_max: wish(piece_bytes_max)
                .map_or(self.piece_bytes_max, |bytes| bytes.clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)),
            socket_buffer: wish(socket_buffer).or(self.socket_buffer),
            rate_max: self.rate_max.into_iter().chain((rate_max > 0).then_some(rate_max)).min(),
            laneless_max: self.laneless_max,
        }
    }

    fn socket_options(&self) -> LaneSocketOptions {
        LaneSocketOptions { socket_buffer: self.socket_buffer, pacing_rate: self.rate_max }
    }
}

/// The wishes for lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    here: usize,
    there: usize,
}

impl Wanted {
    fn lanes(self) -> usize {
        self.here.max(self.there)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("peer", &self.peer)
            .field("lanes", &self.lanes.count())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// The key of the other end.
    #[must_use]
    pub fn peer(&self) -> PublicKey {
        self.shared.peer
    }

    /// The address that the other end had when the session began.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.shared.remote
    }

    /// The data lanes.
    #[must_use]
    pub fn lanes(&self) -> &Lanes {
        &self.shared.lanes
    }

    /// Asks the other end's application; waits for its reply over broken links.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn request(&self, body: Bytes) -> Result<Bytes, RequestError> {
        if body.len() >= CONTROL_BODY_BYTES_MAX {
            return Err(RequestError::TooLong(body.len()));
        }
        let request = self.shared.control.request(Body::Application(body).encode());
        match request.await {
            Ok(reply) => Ok(reply),
            Err(ControlGone) => Err(self.shared.end_reason().into()),
        }
    }

    /// What the control channel runs over: `QUIC`, or `TCP` where UDP is blocked; `None` while it is broken.
    #[must_use]
    pub fn control_kind(&self) -> Option<&'static str> {
        self.shared.control.current().map(|link| link.kind())
    }

    /// The round-trip time as the control channel sees it.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        self.shared.control.current().and_then(|link| link.rtt())
    }

    /// State of all lanes, queues and buffers now.
    #[must_use]
    pub fn sample(&self) -> SessionSample {
        regulate::sample(&self.shared)
    }

    /// Waits until the session is over.
    pub async fn ended(&self) -> SessionEnd {
        let mut end = self.shared.end.subscribe();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(SessionEnd::Closed),
            Err(_) => SessionEnd::Closed,
        }
    }

    /// Ends the session in order: the other end is told.
    pub async fn close(self) {
        self.shared.leave(SessionEnd::Closed).await;
    }
}

/// How long a closing end waits for the other to confirm, and the other for the link to be closed.
const GOODBYE_LIMIT: Duration = Duration::from_secs(3);

/// How long a closing end waits until its last packet is on its way: a moment, unless the machine is very busy.
const LAST_PACKET_LIMIT: Duration = Duration::from_millis(200);

impl Shared {
    /// Makes the session end after the other end has been told.
    async fn leave(&self, reason: SessionEnd) {
        let link = self.control.current();
        // Where one packet says it all, nobody waits for an answer; if it is lost, the peer finds out by itself.
        if !link.as_ref().is_some_and(|link| link.tells_leaving()) {
            let bye = self.control.request(Body::Session(Ask::Bye(true)).encode());
            let _ = tokio::time::timeout(GOODBYE_LIMIT, bye).await; // out of reach, as above
        }
        self.end(reason);
        // The process may end next; the other end would then wait for the rest of the link's idle time.
        if let Some(link) = link {
            let _ = tokio::time::timeout(LAST_PACKET_LIMIT, link.until_told()).await;
        }
    }

    /// Makes the session end, once.
    fn end(&self, reason: SessionEnd) {
        let first = self.end.send_if_modified(|end| {
            let first = end.is_none();
            if first {
                *end = Some(reason.clone());
            }
            first
        });
        if first {
            self.control.end();
            self.lanes.stop();
            self.handler.ended(&reason);
        }
    }

    fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    fn end_reason(&self) -> SessionEnd {
        self.end.borrow().clone().unwrap_or(SessionEnd::Closed)
    }

    /// Resolves when the session is over.
    async fn over(&self) {
        let _ = self.end.subscribe().wait_for(Option::is_some).await; // the sender lives in `self`
    }

    /// What carries out requests that come over the control channel.
    fn answer(self: &Arc<Self>) -> Answer {
        let shared = Arc::downgrade(self);
        Arc::new(move |body| {
            let shared = shared.upgrade();
            Box::pin(async move {
                match (shared, Body::decode(&body)) {
                    (Some(shared), Some(Body::Session(ask))) => shared.answer_session(ask),
                    (Some(shared), Some(Body::Application(body))) => {
                        Arc::clone(&shared.handler).request(Session { shared }, body).await
                    }
                    // A request of a later version: an empty reply is what such a version takes for "unknown".
                    _ => Bytes::new(),
                }
            })
        })
    }

    fn answer_session(&self, ask: Ask) -> Bytes {
        match ask {
            Ask::Ping(_) => {}
            Ask::Lanes(count) => {
                let there = (count as usize).min(LANES_MAX);
                self.wanted.send_modify(|wanted| wanted.there = there);
            }
            // The reply must get through before the link is closed: the leaving side closes it.
            Ask::Bye(_) => self.control.peer_says_bye(),
        }
        Bytes::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_s_lanes_are_as_its_client_wishes_and_no_faster_than_its_own() {
        let server = LaneSettings { rate_max: Some(1000), ..LaneSettings::default() };
        let client = LaneSettings {
            lanes: Some(3),
            piece_bytes_max: 128 << 10,
            socket_buffer: Some(1 << 20),
            rate_max: Some(2000),
            ..LaneSettings::default()
        };
        let both = server.for_client(Some(client.wishes()));
        assert_eq!((both.lanes, both.piece_bytes_max), (Some(3), 128 << 10));
        assert_eq!((both.socket_buffer, both.rate_max), (Some(1 << 20), Some(1000)));
        let free = LaneSettings::default().for_client(Some(client.wishes()));
        assert_eq!(free.rate_max, Some(2000));
        let none = server.for_client(None);
        assert_eq!(
            (none.lanes, none.piece_bytes_max, none.rate_max),
            (None, PIECE_BYTES_DEFAULT, Some(1000))
        );
        let absurd = LaneWishes { lanes: u32::MAX, piece_bytes_max: u32::MAX, ..LaneWishes::default() };
        let bounded = server.for_client(Some(absurd));
        assert_eq!((bounded.lanes, bounded.piece_bytes_max), (Some(LANES_MAX), PIECE_BYTES_MAX));
    }
}
