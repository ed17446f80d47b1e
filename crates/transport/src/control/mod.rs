//! The control channel: requests and their replies, in both directions, over whatever link is up.
//!
//! A request is carried out at most once and its reply is not lost, although links may break in between: the asker
//! repeats a request on the next link, the answerer remembers replies until the asker says that it has them.

mod quic;
pub(crate) mod tcp;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::sync::{OnceCell, Semaphore, watch};

use crate::limits::{CONTROL_BODY_BYTES_MAX, CONTROL_STREAMS_MAX, REPLIES_KEPT_MAX};

pub(crate) use quic::{QuicClient, QuicServer};
pub(crate) use tcp::TcpLink;

/// The link broke, or the session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the control channel has ended")]
pub(crate) struct ControlGone;

/// A request as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// Its number in the session, counted by the asker.
    pub(crate) id: u64,
    /// Requests below this number need no reply any more.
    pub(crate) oldest: u64,
    pub(crate) body: Bytes,
}

/// Bytes of an envelope before its body.
pub(crate) const ENVELOPE_BYTES: usize = 16;

impl Envelope {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(ENVELOPE_BYTES + self.body.len());
        bytes.put_u64_le(self.id);
        bytes.put_u64_le(self.oldest);
        bytes.extend_from_slice(&self.body);
        bytes.freeze()
    }

    /// `None` when it is too short to be one.
    pub(crate) fn decode(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < ENVELOPE_BYTES {
            return None;
        }
        let (id, oldest) = (bytes.get_u64_le(), bytes.get_u64_le());
        Some(Self { id, oldest, body: bytes })
    }
}

/// Something that carries envelopes.
#[derive(Debug)]
pub(crate) enum Link {
    Quic(quinn::Connection),
    Tcp(TcpLink),
}

/// A request that has begun to arrive.
#[derive(Debug)]
pub(crate) enum Arriving {
    Quic(quinn::SendStream, quinn::RecvStream),
    Tcp(Envelope, tcp::TcpReplier),
}

impl Arriving {
    /// The rest of it; `None` when it broke off or is no request.
    pub(crate) async fn whole(self) -> Option<(Envelope, Replier)> {
        match self {
            Self::Quic(send, receive) => Some((quic::read(receive).await?, Replier::Quic(send))),
            Self::Tcp(envelope, replier) => Some((envelope, Replier::Tcp(replier))),
        }
    }
}

/// The way back for a reply.
#[derive(Debug)]
pub(crate) enum Replier {
    Quic(quinn::SendStream),
    Tcp(tcp::TcpReplier),
}

impl Replier {
    /// Sends the reply; a broken link is noticed elsewhere.
    pub(crate) async fn send(self, reply: Bytes) {
        match self {
            Self::Quic(stream) => quic::reply(stream, reply).await,
            Self::Tcp(replier) => replier.send(reply).await,
        }
    }
}

impl Link {
    /// Sends a request and waits for its reply.
    pub(crate) async fn exchange(&self, envelope: &Envelope) -> Result<Bytes, ControlGone> {
        match self {
            Self::Quic(connection) => quic::exchange(connection, envelope).await,
            Self::Tcp(link) => link.exchange(envelope).await,
        }
    }

    /// The next request from the peer.
    pub(crate) async fn accept(&self) -> Result<Arriving, ControlGone> {
        match self {
            Self::Quic(connection) => quic::accept(connection).await,
            Self::Tcp(link) => link.accept().await,
        }
    }

    /// Ends the link.
    pub(crate) fn close(&self) {
        match self {
            Self::Quic(connection) => connection.close(0u32.into(), b"done"),
            Self::Tcp(link) => link.close(),
        }
    }

    /// `QUIC` or `TCP`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Quic(_) => "QUIC",
            Self::Tcp(_) => "TCP",
        }
    }

    /// The link's own estimate of the round-trip time, where it has one.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        match self {
            Self::Quic(connection) => Some(connection.rtt()),
            Self::Tcp(link) => link.rtt(),
        }
    }
}

/// Carries out requests.
pub(crate) type Answer = Arc<dyn Fn(Bytes) -> Pin<Box<dyn Future<Output = Bytes> + Send>> + Send + Sync>;

#[derive(Debug, Default)]
struct Asked {
    next: u64,
    waiting: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Answered {
    floor: u64,
    replies: BTreeMap<u64, Arc<OnceCell<Bytes>>>,
}

/// What is to be done with a request that has come.
#[derive(Debug)]
enum Admission {
    /// Carry it out, or wait for whoever does.
    Carry(Arc<OnceCell<Bytes>>),
    /// The asker has its reply already.
    Old,
    /// More requests than anybody may have open.
    TooMany,
}

impl Answered {
    fn admit(&mut self, id: u64, oldest: u64) -> Admission {
        if oldest > self.floor {
            self.floor = oldest;
            self.replies = self.replies.split_off(&oldest);
        }
        if id < self.floor {
            return Admission::Old;
        }
        if !self.replies.contains_key(&id) && self.replies.len() >= REPLIES_KEPT_MAX {
            return Admission::TooMany;
        }
        Admission::Carry(Arc::clone(self.replies.entry(id).or_default()))
    }
}

/// One side of a session's control channel.
#[derive(Debug)]
pub(crate) struct Control {
    asked: Mutex<Asked>,
    answered: Mutex<Answered>,
    /// One permit for each request that may be open.
    open: Semaphore,
    link: watch::Sender<Current>,
    heard: Mutex<Option<Instant>>,
}

/// The link in use.
#[derive(Clone, Debug)]
enum Current {
    /// Broken, or not there yet.
    None,
    Up(Arc<Link>),
    /// There will be no other.
    Ended,
}

/// Takes a request off the list when its asker gives up waiting, too.
struct Waiting<'a> {
    control: &'a Control,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.control.asked).waiting.remove(&self.id);
    }
}

impl Control {
    pub(crate) fn new() -> Self {
        Self {
            asked: Mutex::default(),
            answered: Mutex::default(),
            open: Semaphore::new(CONTROL_STREAMS_MAX as usize),
            link: watch::channel(Current::None).0,
            heard: Mutex::default(),
        }
    }

    /// Sends `body`, on as many links as it takes, and waits for the reply.
    ///
    /// # Panics
    /// When `body` is longer than a message may be.
    pub(crate) async fn request(&self, body: Bytes) -> Result<Bytes, ControlGone> {
        assert!(body.len() <= CONTROL_BODY_BYTES_MAX, "a control message of {} bytes", body.len());
        let _permit = self.open.acquire().await.map_err(|_| ControlGone)?;
        let waiting = {
            let mut asked = lock(&self.asked);
            let id = asked.next;
            asked.next += 1;
            asked.waiting.insert(id);
            Waiting { control: self, id }
        };
        let mut links = self.link.subscribe();
        loop {
            let link = match &*links.borrow_and_update() {
                Current::Ended => return Err(ControlGone),
                Current::Up(link) => Some(Arc::clone(link)),
                Current::None => None,
            };
            if let Some(link) = link {
                let oldest = lock(&self.asked).waiting.first().copied().unwrap_or(waiting.id);
                let envelope = Envelope { id: waiting.id, oldest, body: body.clone() };
                match link.exchange(&envelope).await {
                    Ok(reply) => {
                        self.hear();
                        return Ok(reply);
                    }
                    Err(ControlGone) => self.lost(&link),
                }
            }
            // Another link, or the end.
            if !matches!(&*links.borrow(), Current::Up(_)) || links.has_changed().unwrap_or(false) {
                links.changed().await.map_err(|_| ControlGone)?;
            }
        }
    }

    /// Puts a new link to use; the old one, if any, is closed.
    pub(crate) fn set_link(&self, link: Arc<Link>) {
        self.link.send_modify(|current| {
            if matches!(current, Current::Ended) {
                link.close();
                return;
            }
            if let Current::Up(old) = current {
                old.close();
            }
            *current = Current::Up(link);
        });
    }

    /// `link` is broken; unless it has been replaced already, there is none now.
    pub(crate) fn lost(&self, link: &Arc<Link>) {
        self.link.send_if_modified(|current| {
            let same = matches!(current, Current::Up(up) if Arc::ptr_eq(up, link));
            if same {
                *current = Current::None;
            }
            same
        });
    }

    /// No link will follow: waiting requests fail.
    pub(crate) fn end(&self) {
        self.link.send_modify(|current| {
            if let Current::Up(link) = current {
                link.close();
            }
            *current = Current::Ended;
        });
    }

    /// The link in use.
    pub(crate) fn current(&self) -> Option<Arc<Link>> {
        match &*self.link.borrow() {
            Current::Up(link) => Some(Arc::clone(link)),
            Current::None | Current::Ended => None,
        }
    }

    /// Waits until there is a link.
    pub(crate) async fn until_up(&self) {
        // The sender lives in `self`.
        let _ = self.link.subscribe().wait_for(|current| matches!(current, Current::Up(_))).await;
    }

    /// Whether the peer has answered or asked something in the last `span`.
    pub(crate) fn heard_from_peer_within(&self, span: Duration) -> bool {
        lock(&self.heard).is_some_and(|at| at.elapsed() < span)
    }

    fn hear(&self) {
        *lock(&self.heard) = Some(Instant::now());
    }

    /// Waits until the link in use is broken.
    pub(crate) async fn until_lost(&self) {
        let mut links = self.link.subscribe();
        while matches!(&*links.borrow_and_update(), Current::Up(_)) {
            if links.changed().await.is_err() {
                return;
            }
        }
    }

    /// Answers the requests that come over `link` until it breaks.
    pub(crate) async fn serve(self: &Arc<Self>, link: Arc<Link>, answer: Answer) {
        while let Ok(arriving) = link.accept().await {
            let (control, link, answer) = (Arc::clone(self), Arc::clone(&link), Arc::clone(&answer));
            tokio::spawn(async move {
                if let Some((envelope, replier)) = arriving.whole().await {
                    control.carry_out(envelope, replier, &link, &answer).await;
                }
            });
        }
        self.lost(&link);
    }

    async fn carry_out(&self, envelope: Envelope, replier: Replier, link: &Link, answer: &Answer) {
        self.hear();
        let admission = lock(&self.answered).admit(envelope.id, envelope.oldest);
        match admission {
            Admission::Old => {}
            Admission::TooMany => {
                tracing::warn!("the peer has more than {REPLIES_KEPT_MAX} requests open: its link is closed");
                link.close();
            }
            Admission::Carry(reply) => {
                let reply = reply.get_or_init(|| answer(envelope.body)).await.clone();
                replier.send(reply).await;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_kept_until_the_asker_has_them_and_no_longer() {
        let mut answered = Answered::default();
        let Admission::Carry(first) = answered.admit(0, 0) else { panic!() };
        first.set(Bytes::from_static(b"a")).unwrap();
        // A repetition meets the same cell.
        let Admission::Carry(again) = answered.admit(0, 0) else { panic!() };
        assert_eq!(again.get().unwrap(), "a");
        // Numbers may come out of order.
        assert!(matches!(answered.admit(5, 0), Admission::Carry(_)));
        assert!(matches!(answered.admit(3, 1), Admission::Carry(_)));
        assert!(matches!(answered.admit(0, 0), Admission::Old));
        assert_eq!(answered.replies.len(), 2);
    }

    #[test]
    fn kept_replies_are_bounded() {
        let mut answered = Answered::default();
        for id in 0..REPLIES_KEPT_MAX as u64 {
            assert!(matches!(answered.admit(id, 0), Admission::Carry(_)));
        }
        assert!(matches!(answered.admit(u64::MAX, 0), Admission::TooMany));
        assert!(matches!(answered.admit(7, 0), Admission::Carry(_)), "a repetition is no new one");
    }

    #[test]
    fn envelopes_round_trip() {
        let envelope = Envelope { id: 7, oldest: 3, body: Bytes::from_static(b"body") };
        assert_eq!(Envelope::decode(envelope.encode()), Some(envelope));
        assert_eq!(Envelope::decode(Bytes::from_static(&[0; 15])), None);
    }
}
