//! The control channel: requests and their replies, in both directions, over whatever link is up.
//!
//! A request is carried out at most once and its reply is not lost, although links may break in between: the asker
//! repeats a request on the next link, the answerer remembers replies until the asker says that it has them.

mod quic;
pub(crate) mod tcp;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::sync::{Semaphore, watch};

use crate::limits::{
    CONTROL_BODY_BYTES_MAX, CONTROL_STREAMS_MAX, REQUEST_BYTES_CARRIED_MAX, REQUEST_BYTES_OPEN_MAX,
    REQUESTS_AT_ONCE_MAX, REQUESTS_READ_AT_ONCE,
};

#[cfg(test)]
pub(crate) use quic::tests::pair as quic_pair;
pub(crate) use quic::{QuicClient, QuicLink, QuicServer};
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
    /// Earlier requests with this slot need none either. Without it, those that are over behind one that takes long would
    /// be kept. (Slots as in RFC 8881, 2.10.6.1.)
    pub(crate) slot: u32,
    pub(crate) body: Bytes,
}

/// Bytes of an envelope before its body.
pub(crate) const ENVELOPE_BYTES: usize = 20;

impl Envelope {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(ENVELOPE_BYTES + self.body.len());
        bytes.put_u64_le(self.id);
        bytes.put_u64_le(self.oldest);
        bytes.put_u32_le(self.slot);
        bytes.extend_from_slice(&self.body);
        bytes.freeze()
    }

    /// `None` when it is too short to be one.
    pub(crate) fn decode(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < ENVELOPE_BYTES {
            return None;
        }
        let (id, oldest, slot) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u32_le());
        Some(Self { id, oldest, slot, body: bytes })
    }
}

/// Something that carries envelopes.
#[derive(Debug)]
pub(crate) enum Link {
    Quic(QuicLink),
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
            Self::Quic(link) => link.exchange(envelope).await,
            Self::Tcp(link) => link.exchange(envelope).await,
        }
    }

    /// The next request from the peer.
    pub(crate) async fn accept(&self) -> Result<Arriving, ControlGone> {
        match self {
            Self::Quic(link) => link.accept().await,
            Self::Tcp(link) => link.accept().await,
        }
    }

    /// The peer may come in: from now on it may have as many requests open as any.
    pub(crate) fn admit(&self) {
        match self {
            Self::Quic(link) => link.admit(),
            Self::Tcp(link) => link.admit(),
        }
    }

    /// Ends the link.
    pub(crate) fn close(&self) {
        match self {
            Self::Quic(link) => link.close(),
            Self::Tcp(link) => link.close(),
        }
    }

    /// Ends the link because its session is over.
    fn leave(&self) {
        match self {
            Self::Quic(link) => link.leave(),
            Self::Tcp(link) => link.close(),
        }
    }

    /// Whether its end tells the peer that the session is over, too; else that has to be said before.
    pub(crate) fn tells_leaving(&self) -> bool {
        matches!(self, Self::Quic(_))
    }

    fn peer_has_left(&self) -> bool {
        match self {
            Self::Quic(link) => link.peer_has_left(),
            Self::Tcp(_) => false,
        }
    }

    /// Waits until the peer has been sent word that the link is closed. TCP tells it even when the process ends.
    pub(crate) async fn until_told(&self) {
        match self {
            Self::Quic(link) => link.until_told().await,
            Self::Tcp(_) => {}
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
            Self::Quic(link) => Some(link.rtt()),
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
    /// Slots that have been used and are free.
    free: BTreeSet<u32>,
    /// The first that has not been used.
    unused: u32,
}

impl Asked {
    /// Number and slot of another request.
    fn begin(&mut self) -> (u64, u32) {
        let id = self.next;
        self.next += 1;
        self.waiting.insert(id);
        let slot = self.free.pop_first().unwrap_or_else(|| {
            self.unused += 1;
            self.unused - 1
        });
        (id, slot)
    }

    fn end(&mut self, id: u64, slot: u32) {
        self.waiting.remove(&id);
        self.free.insert(slot);
    }
}

/// The peer's requests whose replies it may ask for again. `Way` is a way back to it.
#[derive(Debug)]
struct Answered<Way> {
    floor: u64,
    requests: BTreeMap<u64, Request<Way>>,
    /// The newest request with each slot.
    newest: Vec<Option<u64>>,
}

#[derive(Debug)]
enum Request<Way> {
    /// Being carried out; its reply goes the way by which it came last.
    UnderWay(Way),
    Done(Bytes),
}

/// What is to be done with a request that has come.
#[derive(Debug, PartialEq, Eq)]
enum Admission<Way> {
    /// Carry it out.
    Carry,
    /// It has been carried out: send the reply again.
    Again(Way, Bytes),
    /// Nothing: it is being carried out, or the asker has its reply already.
    Nothing,
    /// More requests than anybody may have open.
    TooMany,
}

impl<Way> Answered<Way> {
    fn new() -> Self {
        Self { floor: 0, requests: BTreeMap::new(), newest: Vec::new() }
    }

    fn admit(&mut self, (id, oldest, slot): (u64, u64, u32), way: Way) -> Admission<Way> {
        if slot >= CONTROL_STREAMS_MAX {
            return Admission::TooMany;
        }
        if oldest > self.floor {
            self.floor = oldest;
            self.requests = self.requests.split_off(&oldest);
        }
        let slot = slot as usize;
        if slot >= self.newest.len() {
            self.newest.resize(slot + 1, None);
        }
        let before = self.newest[slot];
        // One that comes late, by a link that was given up.
        if id < self.floor || before.is_some_and(|before| id < before) {
            return Admission::Nothing;
        }
        if before == Some(id) {
            return match self.requests.get_mut(&id) {
                Some(Request::Done(reply)) => Admission::Again(way, reply.clone()),
                // The asker has left the link by which it came before.
                Some(Request::UnderWay(before)) => {
                    *before = way;
                    Admission::Nothing
                }
                None => Admission::Nothing,
            };
        }
        if let Some(before) = before {
            self.requests.remove(&before);
        }
        // Two slots with one number would be two requests that are one.
        match self.requests.entry(id) {
            Entry::Occupied(_) => Admission::TooMany,
            Entry::Vacant(entry) => {
                entry.insert(Request::UnderWay(way));
                self.newest[slot] = Some(id);
                Admission::Carry
            }
        }
    }

    /// Keeps the reply, and gives the way back; `None` when nobody needs it any more.
    fn done(&mut self, id: u64, reply: &Bytes) -> Option<Way> {
        let request = self.requests.get_mut(&id)?;
        match std::mem::replace(request, Request::Done(reply.clone())) {
            Request::UnderWay(way) => Some(way),
            Request::Done(_) => None,
        }
    }
}

/// One side of a session's control channel.
#[derive(Debug)]
pub(crate) struct Control {
    asked: Mutex<Asked>,
    answered: Mutex<Answered<Replier>>,
    /// One permit for each request that may be open.
    open: Semaphore,
    /// One permit for each byte of them.
    open_bytes: Semaphore,
    /// One permit for each request of the peer's that is read, carried out or replied to, repetitions included.
    at_once: Arc<Semaphore>,
    /// One permit for each that is being read.
    reading: Semaphore,
    /// One permit for each byte of those that are carried out.
    carried_bytes: Semaphore,
    link: watch::Sender<Current>,
    heard: Mutex<Option<Instant>>,
    /// The peer has said that it is leaving: a broken link is the end.
    peer_leaves: watch::Sender<bool>,
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
    slot: u32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.control.asked).end(self.id, self.slot);
    }
}

impl Control {
    pub(crate) fn new() -> Self {
        Self {
            asked: Mutex::default(),
            answered: Mutex::new(Answered::new()),
            open: Semaphore::new(CONTROL_STREAMS_MAX as usize),
            open_bytes: Semaphore::new(REQUEST_BYTES_OPEN_MAX),
            at_once: Arc::new(Semaphore::new(REQUESTS_AT_ONCE_MAX)),
            reading: Semaphore::new(REQUESTS_READ_AT_ONCE),
            carried_bytes: Semaphore::new(REQUEST_BYTES_CARRIED_MAX),
            link: watch::channel(Current::None).0,
            heard: Mutex::default(),
            peer_leaves: watch::channel(false).0,
        }
    }

    /// Sends `body`, on as many links as it takes, and waits for the reply.
    ///
    /// # Panics
    /// When `body` is longer than a message may be.
    pub(crate) async fn request(&self, body: Bytes) -> Result<Bytes, ControlGone> {
        assert!(body.len() <= CONTROL_BODY_BYTES_MAX, "a control message of {} bytes", body.len());
        let _permit = self.open.acquire().await.map_err(|_| ControlGone)?;
        let _bytes = self.open_bytes.acquire_many(body.len() as u32).await.map_err(|_| ControlGone)?;
        let (id, slot) = lock(&self.asked).begin();
        let _waiting = Waiting { control: self, id, slot };
        let mut links = self.link.subscribe();
        loop {
            let link = match &*links.borrow_and_update() {
                Current::Ended => return Err(ControlGone),
                Current::Up(link) => Some(Arc::clone(link)),
                Current::None => None,
            };
            if let Some(link) = link {
                let oldest = lock(&self.asked).waiting.first().copied().unwrap_or(id);
                let envelope = Envelope { id, oldest, slot, body: body.clone() };
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

    /// `link` is broken; unless it has been replaced already, there is none now. Those who wait for a reply over it
    /// go on to the next one.
    pub(crate) fn lost(&self, link: &Arc<Link>) {
        if link.peer_has_left() {
            self.peer_leaves.send_replace(true);
        }
        link.close();
        self.link.send_if_modified(|current| {
            let same = matches!(current, Current::Up(up) if Arc::ptr_eq(up, link));
            if same {
                *current = Current::None;
            }
            same
        });
    }

    /// The peer's word that it is leaving; a link may say the same as it is closed.
    pub(crate) fn peer_says_bye(&self) {
        self.peer_leaves.send_replace(true);
    }

    pub(crate) fn peer_leaves(&self) -> bool {
        *self.peer_leaves.borrow()
    }

    /// Waits until the peer has said that it is leaving.
    pub(crate) async fn until_peer_leaves(&self) {
        let _ = self.peer_leaves.subscribe().wait_for(|leaves| *leaves).await; // the sender lives in `self`
    }

    /// No link will follow: waiting requests fail.
    pub(crate) fn end(&self) {
        self.link.send_modify(|current| {
            if let Current::Up(link) = current {
                link.leave();
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

    /// Waits until there is a link; one that came and went before anybody looked is not noticed.
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
            let Ok(permit) = Arc::clone(&self.at_once).try_acquire_owned() else {
                misuse("requests at a time", &link);
                break;
            };
            let (control, link, answer) = (Arc::clone(self), Arc::clone(&link), Arc::clone(&answer));
            tokio::spawn(async move {
                if let Some((envelope, replier)) = control.read(arriving).await {
                    control.carry_out(envelope, replier, &link, &answer).await;
                }
                drop(permit);
            });
        }
        self.lost(&link);
    }

    async fn read(&self, arriving: Arriving) -> Option<(Envelope, Replier)> {
        let _permit = self.reading.acquire().await.ok()?;
        arriving.whole().await
    }

    async fn carry_out(&self, envelope: Envelope, replier: Replier, link: &Link, answer: &Answer) {
        self.hear();
        let Envelope { id, oldest, slot, body } = envelope;
        let Ok(bytes) = self.carried_bytes.try_acquire_many(body.len() as u32) else {
            return misuse("bytes of requests under way", link);
        };
        let admission = lock(&self.answered).admit((id, oldest, slot), replier);
        match admission {
            Admission::Nothing => {}
            Admission::TooMany => misuse("requests open", link),
            Admission::Again(replier, reply) => {
                drop((bytes, body));
                replier.send(reply).await;
            }
            Admission::Carry => {
                // A task of its own, so that a panic there does not leave the asker waiting for ever.
                let reply = tokio::spawn(answer(body)).await.unwrap_or_else(|error| {
                    tracing::error!(%error, "a request could not be carried out");
                    Bytes::new()
                });
                drop(bytes);
                let replier = lock(&self.answered).done(id, &reply);
                if let Some(replier) = replier {
                    replier.send(reply).await;
                }
            }
        }
    }
}

/// The peer has gone beyond bounds that every asker of ours keeps: its link is cut off.
fn misuse(what: &str, link: &Link) {
    tracing::warn!("the peer has too many {what}: its link is closed");
    link.close();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_kept_until_the_asker_has_them_and_no_longer() {
        let mut answered = Answered::new();
        assert_eq!(answered.admit((0, 0, 0), "first"), Admission::Carry);
        let reply = Bytes::from_static(b"a");
        assert_eq!(answered.done(0, &reply), Some("first"));
        assert_eq!(answered.admit((0, 0, 0), "second"), Admission::Again("second", reply.clone()));
        // Numbers may come out of order.
        assert_eq!(answered.admit((5, 0, 2), "first"), Admission::Carry);
        assert_eq!(answered.admit((3, 1, 1), "first"), Admission::Carry);
        assert_eq!(answered.admit((0, 0, 0), "first"), Admission::Nothing);
        assert_eq!(answered.requests.len(), 2);
        // An asker that has given up is not answered.
        assert_eq!(answered.admit((6, 6, 0), "first"), Admission::Carry);
        assert_eq!(answered.done(5, &reply), None);
    }

    #[test]
    fn what_is_over_behind_a_request_that_takes_long_is_not_kept() {
        let mut answered = Answered::new();
        assert_eq!(answered.admit((0, 0, 0), ()), Admission::Carry);
        for id in 1..100_000 {
            assert_eq!(answered.admit((id, 0, 1), ()), Admission::Carry);
            assert_eq!(answered.done(id, &Bytes::new()), Some(()));
            assert_eq!(answered.requests.len(), 2);
        }
        // It is not carried out again either, if it comes late.
        assert_eq!(answered.admit((7, 0, 1), ()), Admission::Nothing);
        assert_eq!(answered.done(0, &Bytes::new()), Some(()));
    }

    #[test]
    fn a_repetition_is_answered_once_over_the_newest_link() {
        let mut answered = Answered::new();
        assert_eq!(answered.admit((0, 0, 0), "first"), Admission::Carry);
        for _ in 0..10_000 {
            assert_eq!(answered.admit((0, 0, 0), "second"), Admission::Nothing, "nothing waits for it");
        }
        assert_eq!(answered.admit((0, 0, 0), "third"), Admission::Nothing);
        assert_eq!(answered.done(0, &Bytes::new()), Some("third"));
        assert_eq!(answered.done(0, &Bytes::new()), None);
    }

    #[test]
    fn kept_replies_are_bounded() {
        let mut answered = Answered::new();
        for slot in 0..CONTROL_STREAMS_MAX {
            assert_eq!(answered.admit((slot.into(), 0, slot), ()), Admission::Carry);
        }
        for slot in [CONTROL_STREAMS_MAX, u32::MAX] {
            assert_eq!(answered.admit((u64::MAX, 0, slot), ()), Admission::TooMany);
        }
        assert_eq!(answered.admit((7, 0, 7), ()), Admission::Nothing, "a repetition is no new one");
        assert_eq!(answered.admit((7, 0, 6), ()), Admission::TooMany, "one number with two slots");
        assert!(answered.requests.len() <= CONTROL_STREAMS_MAX as usize);
    }

    #[test]
    fn slots_are_used_again() {
        let mut asked = Asked::default();
        let begun: Vec<_> = (0..3).map(|_| asked.begin()).collect();
        assert_eq!(begun, [(0, 0), (1, 1), (2, 2)]);
        asked.end(1, 1);
        assert_eq!(asked.begin(), (3, 1));
        assert_eq!(asked.begin(), (4, 3));
        assert_eq!(asked.waiting, BTreeSet::from([0, 2, 3, 4]));
    }

    /// A link to one end of a control channel that carries out requests with `answer`, and that link's other end.
    async fn served(answer: Answer) -> (Arc<Control>, Arc<Link>, Arc<Link>) {
        let (near, far) = crate::secure::tests::pair().await;
        let near = Arc::new(Link::Tcp(TcpLink::start(near, true)));
        let far = Arc::new(Link::Tcp(TcpLink::start(far, true)));
        let control = Arc::new(Control::new());
        control.set_link(Arc::clone(&far));
        let (server, link) = (Arc::clone(&control), Arc::clone(&far));
        tokio::spawn(async move { server.serve(link, answer).await });
        (control, near, far)
    }

    fn never() -> Answer {
        Arc::new(|_| Box::pin(std::future::pending()))
    }

    /// Longer than anything here takes on a slow machine.
    const LIMIT: Duration = Duration::from_secs(60);

    /// Whether the link is cut off within some time when these requests are sent, without waiting for replies.
    async fn cut_off(
        control: &Control,
        near: &Arc<Link>,
        requests: impl Iterator<Item = Envelope>,
        within: Duration,
    ) -> bool {
        for envelope in requests {
            let near = Arc::clone(near);
            tokio::spawn(async move { near.exchange(&envelope).await });
            tokio::task::yield_now().await;
        }
        tokio::time::timeout(within, control.until_lost()).await.is_ok()
    }

    /// How long a link is watched that must not be cut off.
    const FOR_A_WHILE: Duration = Duration::from_millis(500);

    #[tokio::test]
    async fn a_peer_cannot_have_any_number_of_requests_carried_out() {
        let empty = |id, oldest| Envelope { id, oldest, slot: 0, body: Bytes::new() };
        let (control, near, _far) = served(never()).await;
        // Those it says it needs no reply to are under way all the same.
        let count = 2 * REQUESTS_AT_ONCE_MAX as u64;
        assert!(cut_off(&control, &near, (0..count).map(|id| empty(id, id)), LIMIT).await);
        let (control, near, _far) = served(never()).await;
        assert!(!cut_off(&control, &near, (0..count).map(|_| empty(7, 0)), FOR_A_WHILE).await);
    }

    #[tokio::test]
    async fn bytes_of_requests_under_way_are_bounded() {
        let body = Bytes::from(vec![0; CONTROL_BODY_BYTES_MAX]);
        let fit = (REQUEST_BYTES_CARRIED_MAX / CONTROL_BODY_BYTES_MAX) as u64;
        for (count, too_many) in [(fit, false), (fit + 1, true)] {
            let (control, near, _far) = served(never()).await;
            let requests =
                (0..count).map(|id| Envelope { id, oldest: 0, slot: id as u32, body: body.clone() });
            let within = if too_many { LIMIT } else { FOR_A_WHILE };
            assert_eq!(cut_off(&control, &near, requests, within).await, too_many, "{count} requests");
        }
    }

    #[tokio::test]
    async fn a_request_whose_answer_fails_is_answered_all_the_same() {
        let (_control, near, _far) = served(Arc::new(|_| Box::pin(async { panic!("on purpose") }))).await;
        let reply = near.exchange(&Envelope { id: 0, oldest: 0, slot: 0, body: Bytes::new() }).await;
        assert_eq!(reply.unwrap(), Bytes::new());
    }

    #[tokio::test]
    async fn a_request_under_way_moves_from_a_link_that_is_given_up_to_the_next() {
        let (near, silent) = crate::secure::tests::pair().await;
        let asker = Arc::new(Control::new());
        let first = Arc::new(Link::Tcp(TcpLink::start(near, true)));
        asker.set_link(Arc::clone(&first));
        let request = tokio::spawn({
            let asker = Arc::clone(&asker);
            async move { asker.request(Bytes::from_static(b"a")).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        asker.lost(&first);
        let (_control, near, _far) = served(Arc::new(|body| Box::pin(async move { body }))).await;
        asker.set_link(near);
        let reply = tokio::time::timeout(LIMIT, request).await.expect("it goes on");
        assert_eq!(reply.unwrap().unwrap(), "a");
        drop(silent);
    }

    #[test]
    fn envelopes_round_trip() {
        let envelope = Envelope { id: 7, oldest: 3, slot: 9, body: Bytes::from_static(b"body") };
        assert_eq!(Envelope::decode(envelope.encode()), Some(envelope));
        assert_eq!(Envelope::decode(Bytes::from_static(&[0; ENVELOPE_BYTES - 1])), None);
    }
}
