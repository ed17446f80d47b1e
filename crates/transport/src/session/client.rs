//! The client's end: connects, keeps the control link and the lanes up.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::message::{Ask, Body, Hello, PROTOCOL_VERSION, RefusalCode, Welcome};
use super::{Handler, LaneSettings, Session, SessionEnd, SessionId, Shared, Wanted, regulate};
use crate::control::{Control, Envelope, Link, QuicClient, QuicLink, TcpLink};
use crate::identity::{HostTrust, Identity, PublicKey, TrustError};
use crate::lane::buffer::Inbox;
use crate::lane::connection::Opening;
use crate::lane::mover::{LaneEnd, LaneNews, Lanes};
use crate::limits::{CONNECT_TIMEOUT, LANES_AT_ONCE_MAX, LANES_MAX, OUT_OF_REACH_LIMIT, QUIC_HEAD_START};
use crate::scheduler::LaneId;
use crate::secure::{HandshakeError, SecureTcp};
use crate::socket::{prepare_lane, send_window_bytes};
use crate::tls::{ClientTls, Purpose};
use crate::tuner::first_lanes;

/// What the control channel may run over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlChoice {
    /// QUIC, and TCP where UDP does not get through.
    #[default]
    Auto,
    /// TCP from the start.
    Tcp,
}

/// Where to connect to, as whom, and how.
#[derive(Debug)]
pub struct ConnectOptions {
    /// The server's name, for error messages.
    pub host: String,
    /// Its addresses, in the order of preference.
    pub addresses: Vec<SocketAddr>,
    /// This user's key.
    pub identity: Identity,
    /// How the server's key is judged.
    pub trust: HostTrust,
    /// What the session is about, as the server's [`Door`](super::Door) knows it.
    pub service: &'static str,
    /// What the control channel runs over.
    pub control: ControlChoice,
    /// The lanes.
    pub lanes: LaneSettings,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No address answers.
    #[error("cannot reach {host}: {reason}")]
    Unreachable {
        /// As given.
        host: String,
        /// What each attempt ended with.
        reason: String,
    },
    /// The server's key.
    #[error(transparent)]
    Untrusted(#[from] TrustError),
    /// The server does not know this key.
    #[error(
        "{host} does not know your key {}; its operator can let you in by adding this line to its authorized_keys:\n{}",
        key.fingerprint(), key.to_openssh()
    )]
    UnknownKey {
        /// As given.
        host: String,
        /// This side's key.
        key: PublicKey,
    },
    /// The server's own words.
    #[error("{host} refuses: {reason}")]
    Refused {
        /// As given.
        host: String,
        /// In words.
        reason: String,
    },
    /// The server is older or newer.
    #[error(
        "{host} speaks version {theirs} of the protocol, this program version {PROTOCOL_VERSION}; update the older one"
    )]
    Version {
        /// As given.
        host: String,
        /// The server's version.
        theirs: u32,
    },
    /// It answered, but not as one of ours does.
    #[error("{0} answers, but not as a longhaul server does")]
    Foreign(String),
    /// This machine's fault.
    #[error("cannot prepare the connection")]
    Local(#[from] std::io::Error),
}

/// Everything needed to make links and lanes.
struct Dialer {
    host: String,
    session: SessionId,
    remote: SocketAddr,
    service: &'static str,
    choice: ControlChoice,
    key: PublicKey,
    trust: Arc<HostTrust>,
    quic: QuicClient,
    control_tls: ClientTls,
    lane_tls: ClientTls,
    settings: LaneSettings,
}

/// UDP gets so much more where TCP has failed: without TCP there would be no lanes anyway.
const QUIC_ALONE: Duration = Duration::from_secs(2);

/// Lanes opened before the round-trip time is known.
const EAGER_LANES: usize = 4;

/// Opens a session. The first lanes connect together with the control channel.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(options: ConnectOptions, handler: Arc<dyn Handler>) -> Result<Session, ConnectError> {
    let ConnectOptions { host, addresses, identity, trust, service, control: choice, lanes: settings } =
        options;
    let trust = Arc::new(trust);
    let mut failures = Vec::new();
    for remote in addresses {
        let tls = |purpose| {
            ClientTls::new(&identity, Arc::clone(&trust), purpose)
                .map_err(|e| std::io::Error::other(e.to_string()))
        };
        let mut session = SessionId::default();
        rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        let dialer = Arc::new(Dialer {
            host: host.clone(),
            session,
            remote,
            service,
            choice,
            key: identity.public(),
            trust: Arc::clone(&trust),
            quic: QuicClient::new(tls(Purpose::Control)?).map_err(std::io::Error::other)?,
            control_tls: tls(Purpose::Control)?,
            lane_tls: tls(Purpose::Lane)?,
            settings,
        });
        match dialer.clone().begin(Arc::clone(&handler)).await {
            Ok(session) => return Ok(session),
            Err(DialError::Fatal(error)) => return Err(error),
            // It was asked to begin one.
            Err(DialError::NoSession) => return Err(ConnectError::Foreign(host)),
            Err(DialError::NoAnswer(reason)) => failures.push(format!("{remote}: {reason}")),
        }
    }
    let reason = if failures.is_empty() { "it has no address".to_owned() } else { failures.join("; ") };
    Err(ConnectError::Unreachable { host, reason })
}

/// Why one attempt failed: another address may do better, or not.
#[derive(Debug)]
enum DialError {
    NoAnswer(String),
    /// The server does not know the session.
    NoSession,
    Fatal(ConnectError),
}

impl From<TrustError> for DialError {
    fn from(error: TrustError) -> Self {
        Self::Fatal(error.into())
    }
}

impl From<HandshakeError> for DialError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Untrusted(error) => error.into(),
            error => Self::NoAnswer(chain(&error)),
        }
    }
}

/// An error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl Dialer {
    async fn begin(self: Arc<Self>, handler: Arc<dyn Handler>) -> Result<Session, DialError> {
        let (lanes, news) =
            Lanes::start(LaneSettings::movers(), self.settings.piece_bytes_max, handler.clone())
                .map_err(|e| DialError::Fatal(e.into()))?;
        let first = self.settings.lanes.unwrap_or(EAGER_LANES).clamp(1, LANES_MAX);
        let wanted = Wanted { here: first, there: 0 };
        let keeper_stop = Arc::new(AtomicBool::new(false));
        let (wanted, wishes) = watch::channel(wanted);
        let first_lanes = |rtt| {
            self.settings.lanes.unwrap_or_else(|| first_lanes(rtt, send_window_bytes()).max(EAGER_LANES))
        };
        let (state, lanes_state) = watch::channel(LanesState::default());
        let (known_peer, peer) = watch::channel(None);
        let keeper = LaneKeeper {
            dialer: Arc::clone(&self),
            lanes: Arc::clone(&lanes),
            stop: Arc::clone(&keeper_stop),
            news,
            wishes,
            peer,
            state,
            next: 0,
            open: BTreeSet::new(),
            welcomed: BTreeSet::new(),
            opening: JoinSet::new(),
            failures: Failures::default(),
            ever: false,
        };
        let keeper = tokio::spawn(keeper.run());
        // As soon as the path is known, and with it how many lanes make a good start, they connect: while the
        // server reads the hello.
        let begin = async {
            let (link, peer) = self.reach().await?;
            known_peer.send_replace(Some(peer));
            let rtt = link.rtt().unwrap_or(Duration::from_millis(1));
            wanted.send_modify(|wanted| wanted.here = first_lanes(rtt));
            self.greet(&link, peer, 0).await?;
            Ok((Arc::new(link), peer, rtt))
        };
        let (link, peer, rtt) = match begin.await {
            Ok(begun) => begun,
            Err(error) => {
                keeper.abort();
                lanes.stop();
                return Err(error);
            }
        };
        let control = Arc::new(Control::new());
        let shared = Arc::new(Shared {
            id: self.session,
            peer,
            remote: self.remote,
            control,
            lanes,
            handler,
            wanted,
            end: watch::channel(None).0,
            settings: self.settings,
            pacing_cap: AtomicU64::new(0),
        });
        shared.control.set_link(Arc::clone(&link));
        let first = first_lanes(rtt);
        tracing::debug!(?rtt, control = link.kind(), lanes = first, "session begins");
        shared.wanted.send_modify(|wanted| wanted.here = first);
        tokio::spawn(regulate::run(Arc::clone(&shared), first, true));
        tokio::spawn(self.keep_control(Arc::clone(&shared), link, lanes_state, keeper_stop));
        Ok(Session { shared })
    }

    /// Makes a control link and says hello on it.
    async fn link(&self, epoch: u32) -> Result<Arc<Link>, DialError> {
        let (link, peer) = self.reach().await?;
        self.greet(&link, peer, epoch).await?;
        Ok(Arc::new(link))
    }

    async fn reach(&self) -> Result<(Link, PublicKey), DialError> {
        tokio::time::timeout(CONNECT_TIMEOUT, self.race())
            .await
            .unwrap_or_else(|_| Err(DialError::NoAnswer(format!("no reply within {CONNECT_TIMEOUT:?}"))))
    }

    async fn greet(&self, link: &Link, peer: PublicKey, epoch: u32) -> Result<(), DialError> {
        let session = Bytes::copy_from_slice(&self.session);
        let lanes = Some(self.settings.wishes());
        let service = self.service.to_owned();
        let hello = Hello { version: PROTOCOL_VERSION, session, epoch, lanes, service };
        let envelope = Envelope { id: u64::MAX, oldest: 0, slot: 0, body: hello.encode_to_vec().into() };
        let reply = tokio::time::timeout(CONNECT_TIMEOUT, link.exchange(&envelope)).await;
        let foreign = || DialError::Fatal(ConnectError::Foreign(self.host.clone()));
        let Ok(Ok(reply)) = reply else {
            return Err(DialError::NoAnswer("the connection broke off".to_owned()));
        };
        let welcome = Welcome::decode(reply).map_err(|_| foreign())?;
        let host = self.host.clone();
        if let Some(refusal) = welcome.refusal {
            return Err(match RefusalCode::try_from(refusal.code) {
                Ok(RefusalCode::UnknownKey) => {
                    DialError::Fatal(ConnectError::UnknownKey { host, key: self.key })
                }
                Ok(RefusalCode::Version) => {
                    DialError::Fatal(ConnectError::Version { host, theirs: welcome.version })
                }
                Ok(RefusalCode::NoSession) => DialError::NoSession,
                _ => DialError::Fatal(ConnectError::Refused { host, reason: refusal.reason }),
            });
        }
        if self.trust.learn(peer)? {
            tracing::warn!("new server {}: its key is {}", self.host, peer.fingerprint());
        }
        Ok(())
    }

    /// QUIC, and after a while TCP beside it: the first that works.
    async fn race(&self) -> Result<(Link, PublicKey), DialError> {
        let quic = async {
            if self.choice == ControlChoice::Tcp {
                std::future::pending::<()>().await;
            }
            let (connection, key) = self.quic.connect(self.remote).await?;
            Ok::<_, DialError>((Link::Quic(QuicLink::new(connection)), key))
        };
        let tcp = async {
            let connection = self.secure_tcp(&self.control_tls, Purpose::Control).await?;
            let key = connection.peer;
            Ok::<_, DialError>((Link::Tcp(TcpLink::start(connection, true)), key))
        };
        let head_start = if self.choice == ControlChoice::Tcp { Duration::ZERO } else { QUIC_HEAD_START };
        tokio::pin!(quic);
        tokio::pin!(tcp);
        let mut quic_failure = None;
        tokio::select! {
            result = &mut quic => match result {
                Err(DialError::NoAnswer(reason)) => quic_failure = Some(reason),
                result => return result,
            },
            () = tokio::time::sleep(head_start) => {}
        }
        if let Some(quic_failure) = quic_failure {
            return match tcp.await {
                Err(DialError::NoAnswer(reason)) => {
                    Err(DialError::NoAnswer(format!("{quic_failure} (UDP); {reason} (TCP)")))
                }
                result => result,
            };
        }
        tokio::select! {
            biased;
            result = &mut quic => match result {
                Err(DialError::NoAnswer(_)) => tcp.await,
                result => result,
            },
            result = &mut tcp => match result {
                Err(DialError::NoAnswer(reason)) => {
                    let both = |udp: String| DialError::NoAnswer(format!("{udp} (UDP); {reason} (TCP)"));
                    match tokio::time::timeout(QUIC_ALONE, quic).await {
                        Ok(Err(DialError::NoAnswer(udp))) => Err(both(udp)),
                        Ok(result) => result,
                        Err(_) => Err(both("no reply".to_owned())),
                    }
                }
                result => result,
            },
        }
    }

    async fn secure_tcp(&self, tls: &ClientTls, purpose: Purpose) -> Result<SecureTcp, HandshakeError> {
        let remote = self.remote;
        let socket = if remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Before connecting: buffers decide the window scale that the handshake announces.
        prepare_lane(&socket, self.settings.socket_options())?;
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, socket.connect(remote));
        let tcp: TcpStream = connecting.await.map_err(|_| HandshakeError::Timeout(CONNECT_TIMEOUT))??;
        SecureTcp::connect(tcp, tls, purpose, CONNECT_TIMEOUT).await
    }

    /// Connects a lane to the session's server. Any key may be trusted that nobody has shown before: the lane's must be
    /// the one the session has.
    async fn lane(&self, mut peer: watch::Receiver<Option<PublicKey>>) -> Result<SecureTcp, String> {
        let lane = self.secure_tcp(&self.lane_tls, Purpose::Lane).await.map_err(|e| chain(&e))?;
        match peer.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(peer)) if *peer == lane.peer => Ok(lane),
            Ok(_) => {
                Err(format!("it has another key than the session's server: {}", lane.peer.fingerprint()))
            }
            Err(_) => Err("there is no session".to_owned()),
        }
    }

    /// Answers the server, notices when the link breaks, and makes the next one.
    async fn keep_control(
        self: Arc<Self>,
        shared: Arc<Shared>,
        first: Arc<Link>,
        lanes: watch::Receiver<LanesState>,
        keeper_stop: Arc<AtomicBool>,
    ) {
        let keep = async {
            let mut link = first;
            let mut epoch: u32 = 0;
            loop {
                let control = Arc::clone(&shared.control);
                tokio::select! {
                    () = control.serve(Arc::clone(&link), shared.answer()) => {}
                    () = ping(&shared, &link) => {}
                }
                shared.control.lost(&link);
                if shared.has_ended() {
                    return shared.end_reason();
                }
                if shared.control.peer_leaves() {
                    return SessionEnd::ClosedByPeer;
                }
                tracing::warn!("connection to {} is broken: trying again", self.host);
                let since = Instant::now();
                link = loop {
                    epoch += 1;
                    match self.link(epoch).await {
                        Ok(link) => break link,
                        Err(DialError::NoAnswer(reason)) if since.elapsed() < OUT_OF_REACH_LIMIT => {
                            tracing::debug!(epoch, reason, "no connection yet");
                            tokio::time::sleep(Duration::from_millis(500)).await;
                        }
                        Err(DialError::NoAnswer(_)) => return SessionEnd::OutOfReach(OUT_OF_REACH_LIMIT),
                        Err(DialError::NoSession) => return SessionEnd::Forgotten,
                        Err(DialError::Fatal(error)) => return SessionEnd::NotResumed(chain(&error)),
                    }
                };
                tracing::info!(after = ?since.elapsed(), "connection is back");
                shared.lanes.enter_epoch(epoch as u16);
                shared.control.set_link(Arc::clone(&link));
            }
        };
        let end = tokio::select! {
            end = keep => end,
            () = shared.over() => SessionEnd::Closed,
            end = verdict(lanes.clone()) => end,
            end = until_laneless(&shared, lanes) => end,
        };
        keeper_stop.store(true, Ordering::SeqCst);
        shared.wanted.send_modify(|_| ()); // wakes the keeper
        match end {
            // The server is there, and would wait.
            end @ (SessionEnd::NoLanes(_) | SessionEnd::Broken(_)) => shared.leave(end).await,
            end => shared.end(end),
        }
    }
}

/// How a session's lanes are.
#[derive(Debug, Default)]
struct LanesState {
    /// Welcomed by the server, and open.
    open: usize,
    /// Why a lane was lost before that, or could not be opened: the last reason.
    failure: Option<String>,
    /// There will never be any.
    verdict: Option<SessionEnd>,
}

/// Waits until there cannot be lanes.
async fn verdict(mut lanes: watch::Receiver<LanesState>) -> SessionEnd {
    if let Ok(state) = lanes.wait_for(|state| state.verdict.is_some()).await
        && let Some(end) = &state.verdict
    {
        return end.clone();
    }
    std::future::pending().await // the keeper has stopped: the session is over
}

/// Waits until there was no lane for too long although the control channel worked.
async fn until_laneless(shared: &Shared, mut lanes: watch::Receiver<LanesState>) -> SessionEnd {
    loop {
        if lanes.wait_for(|state| state.open == 0).await.is_err() {
            std::future::pending::<()>().await; // as above
        }
        shared.control.until_up().await;
        let for_too_long = tokio::select! {
            _ = lanes.wait_for(|state| state.open > 0) => false,
            () = shared.control.until_lost() => false,
            () = tokio::time::sleep(shared.settings.laneless_max) => true,
        };
        if for_too_long {
            let failure = lanes.borrow().failure.clone();
            return SessionEnd::NoLanes(
                failure.unwrap_or_else(|| "the server does not answer on any".to_owned()),
            );
        }
    }
}

const PING_INTERVAL: Duration = Duration::from_secs(2);

/// Without an answer for so long a link is taken for broken.
const PING_LIMIT: Duration = Duration::from_secs(15);

/// Asks the server every now and then whether it is there, one question at a time; returns when it is not.
async fn ping(shared: &Shared, link: &Arc<Link>) {
    loop {
        tokio::time::sleep(PING_INTERVAL).await;
        let ping = shared.control.request(Body::Session(Ask::Ping(true)).encode());
        tokio::pin!(ping);
        tokio::select! {
            _ = &mut ping => {}
            () = tokio::time::sleep(PING_LIMIT) => {
                tracing::debug!(link = link.kind(), "no answer to a ping");
                return;
            }
        }
    }
}

/// Opens lanes until there are as many as wanted.
struct LaneKeeper {
    dialer: Arc<Dialer>,
    lanes: Arc<Lanes>,
    stop: Arc<AtomicBool>,
    news: mpsc::UnboundedReceiver<LaneNews>,
    wishes: watch::Receiver<Wanted>,
    /// The session's server, once it is known.
    peer: watch::Receiver<Option<PublicKey>>,
    state: watch::Sender<LanesState>,
    next: LaneId,
    open: BTreeSet<LaneId>,
    /// Those of them that the server has let in.
    welcomed: BTreeSet<LaneId>,
    opening: JoinSet<(LaneId, Result<SecureTcp, String>)>,
    failures: Failures,
    ever: bool,
}

/// Lanes that failed, one after the other.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    since: Option<Instant>,
}

impl Failures {
    fn add(&mut self) {
        self.count += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    /// 0.1 s after the first, up to 3 s after many.
    fn pause(&self) -> Duration {
        Duration::from_millis(u64::from(self.count.min(30)) * 100)
    }

    /// A session that never had a lane does not get one either: not because the server is busy for a moment.
    fn are_hopeless(&self) -> bool {
        self.count >= FAILURES_MAX && self.since.is_some_and(|since| since.elapsed() >= FAILING_MAX)
    }
}

const FAILURES_MAX: u32 = 8;

const FAILING_MAX: Duration = Duration::from_secs(3);

impl LaneKeeper {
    async fn run(mut self) {
        loop {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            self.open_missing();
            tokio::select! {
                changed = self.wishes.changed() => if changed.is_err() { return },
                Some(news) = self.news.recv() => self.on_news(news),
                Some(opened) = self.opening.join_next() => if let Ok((id, result)) = opened {
                    self.on_opened(id, result);
                },
            }
        }
    }

    fn open_missing(&mut self) {
        let wanted = self.wishes.borrow().lanes().min(LANES_MAX);
        while self.open.len() + self.opening.len() < wanted && self.opening.len() < LANES_AT_ONCE_MAX {
            let id = self.next;
            self.next += 1;
            let (dialer, peer) = (Arc::clone(&self.dialer), self.peer.clone());
            let pause = self.failures.pause();
            self.opening.spawn(async move {
                tokio::time::sleep(pause).await;
                (id, dialer.lane(peer).await)
            });
        }
    }

    fn on_opened(&mut self, id: LaneId, result: Result<SecureTcp, String>) {
        let added = result.and_then(|secure| {
            let SecureTcp { tcp, keys, received, .. } = secure;
            let tcp = tcp.into_std().map_err(|e| e.to_string())?;
            let opening = Opening::Client { lane: id, session: self.dialer.session };
            self.lanes.add(tcp, keys, Inbox::new(&received), opening).map_err(|e| e.to_string())
        });
        match added {
            Ok(()) => {
                self.open.insert(id);
            }
            Err(reason) => self.on_failure(id, &reason),
        }
    }

    /// A lane has come to nothing.
    fn on_failure(&mut self, id: LaneId, reason: &str) {
        tracing::debug!(lane = id, reason, "a lane could not be opened");
        self.failures.add();
        let reason = format!("TCP to {}: {reason}", self.dialer.remote);
        self.state.send_modify(|state| {
            if !self.ever && self.failures.are_hopeless() {
                state.verdict.get_or_insert(SessionEnd::NoLanes(reason.clone()));
            }
            state.failure = Some(reason);
        });
    }

    fn on_news(&mut self, news: LaneNews) {
        match news {
            LaneNews::Welcomed(id) => {
                self.welcomed.insert(id);
                self.failures = Failures::default();
                self.ever = true;
            }
            LaneNews::Lost(id, end) => self.on_lost(id, &end),
            LaneNews::Failed(reason) => self.state.send_modify(|state| {
                state.verdict.get_or_insert(SessionEnd::Broken(reason));
            }),
        }
        let open = self.welcomed.len();
        self.state.send_if_modified(|state| std::mem::replace(&mut state.open, open) != open);
    }

    fn on_lost(&mut self, id: LaneId, end: &LaneEnd) {
        self.open.remove(&id);
        if !self.welcomed.remove(&id) {
            return self.on_failure(id, &format!("the server does not take it: {}", chain(end)));
        }
        match end {
            LaneEnd::Goodbye => tracing::debug!(lane = id, "lane closed"),
            LaneEnd::BadBytes(reason) => {
                tracing::warn!(lane = id, "{reason}: its pieces go again on another lane")
            }
            end => {
                tracing::debug!(lane = id, reason = chain(end), "lane lost: its pieces go again on another")
            }
        }
    }
}

#[cfg(test)]
mod tests;
