//! The server's end: one port for TCP and UDP, sessions and the lanes that join them.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::handshakes::{Handshakes, Unfinished};
use super::message::{Hello, PROTOCOL_VERSION, Refusal, RefusalCode, Welcome};
use super::{GOODBYE_LIMIT, Handler, LaneSettings, Session, SessionEnd, SessionId, Shared, Wanted, regulate};
use crate::control::{Control, Link, QuicLink, QuicServer, Replier, TcpLink};
use crate::identity::{Identity, PublicKey};
use crate::lane::buffer::Inbox;
use crate::lane::connection::Opening;
use crate::lane::frame::FrameKind;
use crate::lane::mover::{LaneNews, Lanes};
use crate::lane::record::RECORD_MAX;
use crate::limits::{CONNECT_TIMEOUT, LANES_MAX, OUT_OF_REACH_LIMIT, SESSIONS_MAX, SESSIONS_PER_KEY_MAX};
use crate::secure::SecureTcp;
use crate::socket::prepare_lane;
use crate::tls::{Purpose, server_config};

/// Decides who may come in, and makes the application's end of a new session.
pub trait Door: Send + Sync + 'static {
    /// For a client that has proved to hold `key`, and wants a session about `service`.
    ///
    /// # Errors
    /// [`Refused`].
    fn admit(&self, key: PublicKey, from: SocketAddr, service: &str) -> Result<Arc<dyn Handler>, Refused>;

    /// A session has begun.
    fn began(&self, _session: &Session) {}
}

/// Why a client may not come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its key is not known.
    UnknownKey,
    /// In words.
    Because(String),
}

/// Where to listen, as whom.
#[derive(Debug)]
pub struct ServerOptions {
    /// Address and port, of TCP and UDP alike; port 0 takes any that is free for both. `[::]` is every address of this
    /// machine, also where IPv6 is switched off.
    pub listen: SocketAddr,
    /// The host key.
    pub identity: Identity,
    /// The lanes.
    pub lanes: LaneSettings,
}

/// A listening server.
pub struct Server {
    tcp: TcpListener,
    quic: QuicServer,
    tls: Arc<rustls::ServerConfig>,
    address: SocketAddr,
    state: Arc<State>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

struct State {
    door: Box<dyn Door>,
    settings: LaneSettings,
    sessions: Mutex<HashMap<SessionId, Arc<Shared>>>,
    /// A session was added: lanes that came before it look again.
    added: Notify,
    handshakes: Handshakes,
}

/// Connections the kernel keeps for us while we are busy.
const BACKLOG: u32 = 1024;

/// Attempts to find a port that is free for both protocols.
const PORT_ATTEMPTS: usize = 16;

impl Server {
    /// Takes the port. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the port is taken or needs rights.
    pub fn bind(options: ServerOptions, door: impl Door) -> io::Result<Self> {
        let tls = server_config(&options.identity).map_err(io::Error::other)?;
        let mut attempts = 0;
        let mut listen = options.listen;
        let (tcp, udp) = loop {
            attempts += 1;
            match bind_both(listen) {
                Ok(both) => break both,
                Err(error) if is_without_ipv6(listen, &error) => {
                    tracing::info!("this machine has no IPv6: listening on IPv4 alone");
                    listen = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), listen.port());
                }
                // Another process may have the UDP half of a port that TCP got at random.
                Err(e)
                    if e.kind() == io::ErrorKind::AddrInUse
                        && attempts < PORT_ATTEMPTS
                        && listen.port() == 0 => {}
                Err(error) => return Err(error),
            }
        };
        let address = tcp.local_addr()?;
        let state = Arc::new(State {
            door: Box::new(door),
            settings: options.lanes,
            sessions: Mutex::default(),
            added: Notify::new(),
            handshakes: Handshakes::default(),
        });
        Ok(Self {
            tcp,
            quic: QuicServer::listen(udp, tls.clone(), options.identity.derived_secret(address.port()))?,
            tls: Arc::new(tls),
            address,
            state,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the future is dropped; then call [`close`](Self::close).
    pub async fn run(&self) {
        tokio::join!(self.accept_tcp(), self.accept_quic());
    }

    /// Ends all sessions.
    pub async fn close(&self) {
        // All at once: each may have to wait for its peer.
        let sessions: Vec<_> = self.state.lock().values().cloned().collect();
        let closing: JoinSet<()> = sessions.into_iter().map(|shared| Session { shared }.close()).collect();
        closing.join_all().await;
        let _ = tokio::time::timeout(Duration::from_secs(1), self.quic.close()).await; // silent peers are not waited for
    }

    async fn accept_tcp(&self) {
        loop {
            let (tcp, from) = match self.tcp.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, most likely: others must end first.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Some(unfinished) = self.state.handshakes.begin(from.ip()) else {
                tracing::warn!(%from, "too many unfinished handshakes: connection refused");
                continue;
            };
            let (state, tls) = (Arc::clone(&self.state), Arc::clone(&self.tls));
            tokio::spawn(async move {
                let result = state.greet_tcp(tcp, tls, unfinished).await;
                if let Err(reason) = result {
                    tracing::debug!(%from, reason, "connection refused");
                }
            });
        }
    }

    async fn accept_quic(&self) {
        while let Some(incoming) = self.quic.accept().await {
            let from = incoming.remote_address();
            let Some(unfinished) = self.state.handshakes.begin(from.ip()) else {
                incoming.refuse();
                continue;
            };
            let state = Arc::clone(&self.state);
            tokio::spawn(async move {
                match QuicServer::finish(incoming, CONNECT_TIMEOUT).await {
                    Ok((connection, key)) => {
                        state
                            .greet(Arc::new(Link::Quic(QuicLink::new(connection))), key, from, unfinished)
                            .await;
                    }
                    Err(error) => tracing::debug!(%from, %error, "QUIC handshake failed"),
                }
            });
        }
    }
}

fn bind_both(address: SocketAddr) -> io::Result<(TcpListener, std::net::UdpSocket)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let tcp = socket.listen(BACKLOG)?;
    let udp = std::net::UdpSocket::bind(tcp.local_addr()?)?;
    Ok((tcp, udp))
}

/// Whether all addresses were asked for, and there are none of IPv6's.
fn is_without_ipv6(listen: SocketAddr, error: &io::Error) -> bool {
    listen.ip() == Ipv6Addr::UNSPECIFIED
        && matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

impl State {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Shared>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn greet_tcp(
        self: &Arc<Self>,
        tcp: TcpStream,
        tls: Arc<rustls::ServerConfig>,
        unfinished: Unfinished,
    ) -> Result<(), String> {
        prepare_lane(&tcp, self.settings.socket_options()).map_err(|e| e.to_string())?;
        let connection = SecureTcp::accept(tcp, tls, CONNECT_TIMEOUT).await.map_err(|e| e.to_string())?;
        match connection.purpose {
            Purpose::Lane => self.join(connection).await,
            Purpose::Control => {
                let (key, from) = (connection.peer, connection.peer_address);
                let link = Arc::new(Link::Tcp(TcpLink::start(connection, false)));
                Arc::clone(self).greet(link, key, from, unfinished).await;
                Ok(())
            }
        }
    }

    /// Reads a lane's hello and adds the lane to its session.
    async fn join(&self, connection: SecureTcp) -> Result<(), String> {
        let SecureTcp { mut tcp, mut keys, received, peer, .. } = connection;
        let mut inbox = Inbox::new(&received);
        // A hello is the first record of a lane, whatever follows it: somebody unknown gets no more memory than that.
        let mut left = RECORD_MAX;
        let read_hello = async {
            loop {
                match inbox.next_frame(&mut keys).map_err(|e| e.to_string())? {
                    Some(frame) => return Ok(frame),
                    None if left == 0 => return Err("a first record without a hello".to_owned()),
                    None => match tcp.read(&mut inbox.room()[..left]).await {
                        Ok(0) => return Err("closed before it said hello".to_owned()),
                        Ok(bytes) => {
                            inbox.filled(bytes);
                            left -= bytes;
                        }
                        Err(error) => return Err(error.to_string()),
                    },
                }
            }
        };
        let frame = tokio::time::timeout(CONNECT_TIMEOUT, read_hello).await.map_err(|_| "no hello")??;
        let FrameKind::Hello { lane } = frame.kind else {
            return Err("a lane that does not say hello".to_owned());
        };
        let id = SessionId::try_from(inbox.payload(&frame)).map_err(|_| "a session id of wrong length")?;
        // Whoever is refused has opened all of its lanes by then, and each is unfinished until it is closed.
        let shared = tokio::select! {
            shared = self.session_of(id) => shared.ok_or("a lane of no session")?,
            () = until_closed(&mut tcp, &mut inbox, left) => return Err("a lane that was given up".to_owned()),
        };
        if shared.peer != peer {
            return Err("a lane with another key than its session's".to_owned());
        }
        if frame.epoch != shared.lanes.epoch() {
            return Err("a lane of another epoch".to_owned());
        }
        let lanes = shared.lanes.status();
        if lanes.len() >= LANES_MAX || lanes.iter().any(|l| l.id == lane) {
            return Err("a lane too many".to_owned());
        }
        // As its session wants it, which was not known when it connected.
        prepare_lane(&tcp, shared.settings.socket_options()).map_err(|e| e.to_string())?;
        let tcp = tcp.into_std().map_err(|e| e.to_string())?;
        shared.lanes.add(tcp, keys, inbox, Opening::Server { lane }).map_err(|e| e.to_string())
    }

    /// The session, which may be on its way still: lanes and control channel come at the same time.
    async fn session_of(&self, id: SessionId) -> Option<Arc<Shared>> {
        let look = async {
            loop {
                let added = self.added.notified();
                if let Some(shared) = self.lock().get(&id) {
                    return Arc::clone(shared);
                }
                added.await;
            }
        };
        tokio::time::timeout(CONNECT_TIMEOUT, look).await.ok()
    }

    /// Reads the hello of a control link, and begins or continues a session. The connection counts as `unfinished`
    /// until its peer has been let in, or it is closed.
    async fn greet(
        self: Arc<Self>,
        link: Arc<Link>,
        key: PublicKey,
        from: SocketAddr,
        unfinished: Unfinished,
    ) {
        let hello = async { link.accept().await.ok()?.whole().await };
        let Ok(Some((envelope, replier))) = tokio::time::timeout(CONNECT_TIMEOUT, hello).await else {
            return link.close();
        };
        let entered = match Hello::decode(envelope.body) {
            Ok(hello) => self.enter(&hello, key, from),
            Err(_) => Err((RefusalCode::Other, "that is no hello".to_owned())),
        };
        match entered {
            Ok(shared) => {
                drop(unfinished);
                link.admit(); // before the client hears of it, and asks
                welcome(replier, None).await;
                let control = Arc::clone(&shared.control);
                control.set_link(Arc::clone(&link));
                control.serve(link, shared.answer()).await;
            }
            Err((code, reason)) => {
                tracing::info!(%from, key = %key.fingerprint(), reason, "session refused");
                welcome(replier, Some(Refusal { code: code.into(), reason })).await;
                // The client closes; if it does not, the link is not held for it.
                let _ = tokio::time::timeout(CONNECT_TIMEOUT, link.accept()).await;
                link.close();
            }
        }
    }

    fn enter(
        self: &Arc<Self>,
        hello: &Hello,
        key: PublicKey,
        from: SocketAddr,
    ) -> Result<Arc<Shared>, (RefusalCode, String)> {
        if hello.version != PROTOCOL_VERSION {
            return Err((RefusalCode::Version, format!("this server speaks version {PROTOCOL_VERSION}")));
        }
        let id = SessionId::try_from(&hello.session[..])
            .map_err(|_| (RefusalCode::Other, "a session id of wrong length".to_owned()))?;
        let known = self.lock().get(&id).cloned();
        match known {
            Some(shared) => {
                let newer = u16::try_from(hello.epoch).is_ok_and(|epoch| epoch > shared.lanes.epoch());
                if shared.peer != key || !newer || shared.has_ended() {
                    return Err((RefusalCode::NoSession, "no such session".to_owned()));
                }
                tracing::info!(%from, epoch = hello.epoch, "session goes on over a new connection");
                shared.lanes.enter_epoch(hello.epoch as u16);
                Ok(shared)
            }
            None if hello.epoch > 0 => Err((RefusalCode::NoSession, "no such session".to_owned())),
            None => self.begin(id, key, from, hello),
        }
    }

    fn begin(
        self: &Arc<Self>,
        id: SessionId,
        key: PublicKey,
        from: SocketAddr,
        hello: &Hello,
    ) -> Result<Arc<Shared>, (RefusalCode, String)> {
        // Before threads are started for nothing; what counts is the look below.
        room_for(&self.lock(), key)?;
        let settings = self.settings.for_client(hello.lanes);
        let handler = self.door.admit(key, from, &hello.service).map_err(|refused| match refused {
            Refused::UnknownKey => (RefusalCode::UnknownKey, "this key is not known here".to_owned()),
            Refused::Because(reason) => (RefusalCode::Other, reason),
        })?;
        let start = Lanes::start(LaneSettings::movers(), settings.piece_bytes_max, handler.clone());
        let (lanes, mut news) = start.map_err(|e| (RefusalCode::Other, format!("out of resources: {e}")))?;
        let shared = Arc::new(Shared {
            id,
            peer: key,
            remote: from,
            control: Arc::new(Control::new()),
            lanes,
            handler,
            wanted: watch::channel(Wanted::default()).0,
            end: watch::channel(None).0,
            settings,
            pacing_cap: AtomicU64::new(0),
        });
        {
            let mut sessions = self.lock();
            if let Err(refusal) = room_for(&sessions, key) {
                shared.end(SessionEnd::Closed);
                return Err(refusal);
            }
            sessions.insert(id, Arc::clone(&shared));
        }
        self.added.notify_waiters();
        self.door.began(&Session { shared: Arc::clone(&shared) });
        let (state, watched) = (Arc::clone(self), Arc::clone(&shared));
        tokio::spawn(async move {
            tokio::select! {
                () = watched.over() => {}
                end = until_left(&watched.control) => watched.end(end),
            }
            state.lock().remove(&watched.id);
        });
        let told = Arc::downgrade(&shared);
        tokio::spawn(async move {
            while let Some(news) = news.recv().await {
                match news {
                    LaneNews::Welcomed(_) => {} // this side welcomes
                    LaneNews::Lost(lane, reason) => tracing::debug!(lane, %reason, "lane ended"),
                    LaneNews::Failed(reason) => {
                        if let Some(shared) = told.upgrade() {
                            shared.leave(SessionEnd::Broken(reason)).await;
                        }
                        return;
                    }
                }
            }
        });
        // The client opens the first lanes; how many there are, the tuner sees.
        tokio::spawn(regulate::run(Arc::clone(&shared), 1, false));
        Ok(shared)
    }
}

/// Whether one more session of `key` may be opened.
fn room_for(sessions: &HashMap<SessionId, Arc<Shared>>, key: PublicKey) -> Result<(), (RefusalCode, String)> {
    let full = |reason| Err((RefusalCode::Full, reason));
    if sessions.len() >= SESSIONS_MAX {
        return full(format!("{SESSIONS_MAX} sessions are open already; try again later"));
    }
    if sessions.values().filter(|session| session.peer == key).count() >= SESSIONS_PER_KEY_MAX {
        return full(format!(
            "{SESSIONS_PER_KEY_MAX} sessions of your key are open already; try again when some have ended"
        ));
    }
    Ok(())
}

/// Waits until the peer of a lane closes it. What it says before, a goodbye most likely, is in the inbox; of more than `left` bytes the
/// end is not seen.
async fn until_closed(tcp: &mut TcpStream, inbox: &mut Inbox, mut left: usize) {
    while left > 0 {
        let Ok(bytes @ 1..) = tcp.read(&mut inbox.room()[..left]).await else { return };
        inbox.filled(bytes);
        left -= bytes;
    }
    std::future::pending().await
}

async fn welcome(replier: Replier, refusal: Option<Refusal>) {
    let welcome = Welcome { refusal, version: PROTOCOL_VERSION };
    replier.send(Bytes::from(welcome.encode_to_vec())).await;
}

/// Waits until the client has left, or was without a control link for too long.
async fn until_left(control: &Control) -> SessionEnd {
    loop {
        tokio::select! {
            // By a link, perhaps, that came and went before this looked.
            () = control.until_peer_leaves() => {}
            linked = tokio::time::timeout(OUT_OF_REACH_LIMIT, control.until_up()) => {
                if linked.is_err() {
                    return SessionEnd::OutOfReach(OUT_OF_REACH_LIMIT);
                }
            }
        }
        tokio::select! {
            () = control.until_lost() => {}
            // It closes the link when it has the reply to its word.
            () = async { control.until_peer_leaves().await; tokio::time::sleep(GOODBYE_LIMIT).await } => {}
        }
        if control.peer_leaves() {
            return SessionEnd::ClosedByPeer;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::Poll;

    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::control::{Envelope, QuicClient};
    use crate::identity::HostTrust;
    use crate::lane::buffer::Outbox;
    use crate::tls::ClientTls;

    struct Nobody;

    impl Door for Nobody {
        fn admit(
            &self,
            _key: PublicKey,
            _from: SocketAddr,
            _service: &str,
        ) -> Result<Arc<dyn Handler>, Refused> {
            Err(Refused::UnknownKey)
        }
    }

    /// A server that lets nobody in, and what a stranger needs to come to it.
    fn nobodys_server() -> (SocketAddr, Arc<State>, impl Fn(Purpose) -> ClientTls) {
        let identity = Identity::ephemeral();
        let trust = Arc::new(HostTrust::Pinned(identity.public()));
        let options = ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            identity,
            lanes: LaneSettings::default(),
        };
        let server = Server::bind(options, Nobody).unwrap();
        let (address, state) = (server.address(), Arc::clone(&server.state));
        tokio::spawn(async move { server.run().await });
        let stranger = Identity::ephemeral();
        (address, state, move |purpose| ClientTls::new(&stranger, Arc::clone(&trust), purpose).unwrap())
    }

    async fn connect(address: SocketAddr, tls: &ClientTls, purpose: Purpose) -> SecureTcp {
        let tcp = TcpStream::connect(address).await.unwrap();
        SecureTcp::connect(tcp, tls, purpose, CONNECT_TIMEOUT).await.unwrap()
    }

    async fn unfinished(state: &State, count: usize, limit: Duration) {
        let reached = async {
            while state.handshakes.count() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(limit, reached).await.unwrap_or_else(|_| panic!("not {count}"));
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_connection_is_unfinished_until_its_peer_is_let_in_or_gone() {
        let (address, state, tls) = nobodys_server();
        let secure = connect(address, &tls(Purpose::Control), Purpose::Control).await;
        let quic = QuicClient::new(tls(Purpose::Control)).unwrap().connect(address).await.unwrap().0;
        let links = [Link::Tcp(TcpLink::start(secure, true)), Link::Quic(QuicLink::new(quic))];
        unfinished(&state, 2, MINUTE).await;
        for link in &links {
            let hello = Hello {
                version: PROTOCOL_VERSION,
                session: vec![0; 16].into(),
                epoch: 0,
                ..Hello::default()
            };
            let envelope = Envelope { id: 0, oldest: 0, slot: 0, body: hello.encode_to_vec().into() };
            let welcome = Welcome::decode(link.exchange(&envelope).await.unwrap()).unwrap();
            assert_eq!(welcome.refusal.unwrap().code(), RefusalCode::UnknownKey);
            assert_eq!(state.handshakes.count(), 2, "a refused peer's link is not gone yet");
        }
        links.iter().for_each(Link::close);
        unfinished(&state, 0, MINUTE).await;
    }

    #[tokio::test]
    async fn a_lane_of_no_session_is_unfinished_until_it_is_closed() {
        let (address, state, tls) = nobodys_server();
        let SecureTcp { mut tcp, mut keys, .. } = connect(address, &tls(Purpose::Lane), Purpose::Lane).await;
        let mut outbox = Outbox::new();
        outbox.push_hello(&mut keys, 0, 0, &[0; 16]);
        tcp.write_all(outbox.unsent()).await.unwrap();
        outbox.sent(outbox.unsent().len());
        unfinished(&state, 1, MINUTE).await;
        outbox.push_goodbye(&mut keys);
        tcp.write_all(outbox.unsent()).await.unwrap();
        drop(tcp);
        unfinished(&state, 0, CONNECT_TIMEOUT / 2).await;
    }

    #[tokio::test]
    async fn a_lane_is_open_until_its_end_whatever_it_says_before() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        near.write_all(b"goodbye").await.unwrap();
        far.readable().await.unwrap();
        let mut inbox = Inbox::new(&[]);
        {
            let mut closed = std::pin::pin!(until_closed(&mut far, &mut inbox, RECORD_MAX));
            let first = std::future::poll_fn(|context| Poll::Ready(closed.as_mut().poll(context))).await;
            assert!(first.is_pending(), "its session may come");
            drop(near);
            tokio::time::timeout(MINUTE, closed).await.expect("it is closed");
        }
        assert_eq!(inbox.held_bytes(), 7);
    }

    #[tokio::test]
    async fn a_client_that_leaves_before_anybody_looks_has_left() {
        let (near, far) = crate::control::quic_pair().await;
        let [near, far] = [near, far].map(|connection| Arc::new(Link::Quic(QuicLink::new(connection))));
        let leaving = Control::new();
        leaving.set_link(near);
        leaving.end();
        assert!(far.accept().await.is_err());

        let control = Control::new();
        control.set_link(Arc::clone(&far));
        control.lost(&far);
        let end = tokio::time::timeout(Duration::from_secs(60), until_left(&control)).await;
        assert_eq!(end, Ok(SessionEnd::ClosedByPeer));
    }

    #[test]
    fn only_a_machine_without_ipv6_is_served_by_ipv4_alone() {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 7473);
        for code in [libc::EAFNOSUPPORT, libc::EADDRNOTAVAIL] {
            assert!(is_without_ipv6(any, &io::Error::from_raw_os_error(code)));
            let named = "[2001:db8::1]:7473".parse().unwrap();
            assert!(!is_without_ipv6(named, &io::Error::from_raw_os_error(code)));
        }
        assert!(!is_without_ipv6(any, &io::Error::from_raw_os_error(libc::EADDRINUSE)));
    }
}
