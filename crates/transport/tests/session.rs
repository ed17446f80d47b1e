//! Two ends of a session over loopback: requests, bytes, broken links and lanes, strangers.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul_transport::identity::{HostTrust, Identity, PublicKey};
use longhaul_transport::session::{
    ConnectError, ConnectOptions, ControlChoice, Door, LaneSettings, Refused, Server, ServerOptions, connect,
};
use longhaul_transport::{Extent, Handler, Pieces, Session, SessionEnd, Stored, Withdrawn, limits};

const MIB: u64 = 1 << 20;

/// Longer than anything here takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes that depend on object and offset; stored ones are checked and counted.
#[derive(Default)]
struct Memory {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    delivered: HashMap<u64, u64>,
    declined: HashMap<u64, u64>,
    /// Lengths by object and offset: an overdue piece comes twice.
    stored: HashMap<(u64, u64), u64>,
    requests: Vec<Bytes>,
    ended: Option<SessionEnd>,
    unwanted: Option<u64>,
    withdrawn: Option<u64>,
    /// To store this object's bytes is a panic.
    panics: Option<u64>,
}

fn byte_at(object: u64, offset: u64) -> u8 {
    (offset.wrapping_mul(31).wrapping_add(offset >> 8).wrapping_add(object * 7)) as u8
}

impl Memory {
    fn wait_until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let state = self.state.lock().unwrap();
        let (_state, timeout) = self.changed.wait_timeout_while(state, LIMIT, |s| !condition(s)).unwrap();
        assert!(!timeout.timed_out(), "not within {LIMIT:?}: {what}");
    }

    fn stored_bytes(&self, object: u64) -> u64 {
        let state = self.state.lock().unwrap();
        state.stored.iter().filter(|((of, _), _)| *of == object).map(|(_, length)| length).sum()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

impl Pieces for Memory {
    fn fill(&self, object: u64, offset: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), Withdrawn> {
        if self.state.lock().unwrap().withdrawn == Some(object) && offset > 0 {
            return Err(Withdrawn);
        }
        let mut at = offset;
        for part in into {
            for byte in part.iter_mut() {
                *byte = byte_at(object, at);
                at += 1;
            }
        }
        Ok(())
    }

    fn delivered(&self, extent: Extent) {
        self.change(|s| *s.delivered.entry(extent.object).or_default() += extent.length);
    }

    fn declined(&self, extent: Extent) {
        self.change(|s| *s.declined.entry(extent.object).or_default() += extent.length);
    }

    fn store(&self, object: u64, offset: u64, data: &[u8], _checksum: u64) -> Stored {
        assert_eq!(data.as_ptr().align_offset(4096), 0);
        let panics = self.state.lock().unwrap().panics == Some(object);
        assert!(!panics, "on purpose");
        for (i, &byte) in data.iter().enumerate() {
            assert_eq!(byte, byte_at(object, offset + i as u64), "object {object} offset {offset}+{i}");
        }
        self.change(|s| {
            s.stored.insert((object, offset), data.len() as u64);
        });
        if self.state.lock().unwrap().unwanted == Some(object) { Stored::Unwanted } else { Stored::Kept }
    }
}

impl Handler for Memory {
    fn request(
        self: Arc<Self>,
        _session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        Box::pin(async move {
            self.change(|s| s.requests.push(body.clone()));
            let mut reply = b"got ".to_vec();
            reply.extend_from_slice(&body);
            reply.into()
        })
    }

    fn ended(&self, end: &SessionEnd) {
        self.change(|s| s.ended = Some(end.clone()));
    }
}

/// Lets one key in.
struct OneKey {
    key: PublicKey,
    memory: Arc<Memory>,
    sessions: Arc<Mutex<Vec<Session>>>,
}

impl Door for OneKey {
    fn admit(&self, key: PublicKey, _from: SocketAddr, _service: &str) -> Result<Arc<dyn Handler>, Refused> {
        if key == self.key { Ok(self.memory.clone()) } else { Err(Refused::UnknownKey) }
    }

    fn began(&self, session: &Session) {
        self.sessions.lock().unwrap().push(session.clone());
    }
}

struct Far {
    memory: Arc<Memory>,
    sessions: Arc<Mutex<Vec<Session>>>,
    address: SocketAddr,
    host_key: PublicKey,
    client: Identity,
}

fn start_server() -> (Far, tokio::task::JoinHandle<()>) {
    let client = Identity::ephemeral();
    let memory = Arc::<Memory>::default();
    let sessions = Arc::default();
    let door = OneKey { key: client.public(), memory: memory.clone(), sessions: Arc::clone(&sessions) };
    let identity = Identity::ephemeral();
    let host_key = identity.public();
    let listen = "127.0.0.1:0".parse().unwrap();
    let server =
        Server::bind(ServerOptions { listen, identity, lanes: LaneSettings::default() }, door).unwrap();
    let address = server.address();
    let task = tokio::spawn(async move { server.run().await });
    (Far { memory, sessions, address, host_key, client }, task)
}

impl Far {
    fn options(&self) -> ConnectOptions {
        ConnectOptions {
            host: "far".into(),
            addresses: vec![self.address],
            identity: self.client.clone(),
            trust: HostTrust::Pinned(self.host_key),
            service: "tests",
            control: ControlChoice::Auto,
            lanes: LaneSettings::default(),
        }
    }

    async fn connect(&self) -> (Session, Arc<Memory>) {
        let memory = Arc::<Memory>::default();
        (connect(self.options(), memory.clone()).await.unwrap(), memory)
    }

    /// As [`connect`](Self::connect); the control channel must run over QUIC, unless this machine is so slow that TCP was
    /// tried as well.
    async fn connect_by_quic(&self) -> (Session, Arc<Memory>) {
        let begun = Instant::now();
        let (session, memory) = self.connect().await;
        let (kind, took) = (session.control_kind(), begun.elapsed());
        assert!(kind == Some("QUIC") || took >= limits::QUIC_HEAD_START, "{kind:?} after {took:?}");
        (session, memory)
    }
}

fn extent(object: u64, length: u64) -> Extent {
    Extent { object, offset: 0, length, whole: false }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_and_requests_go_both_ways() {
    let (far, _server) = start_server();
    let (session, near) = far.connect_by_quic().await;
    assert_eq!(session.peer(), far.host_key);
    assert_eq!(session.request(Bytes::from_static(b"hello")).await.unwrap(), "got hello");
    let there = far.sessions.lock().unwrap()[0].clone();
    assert_eq!(there.peer(), far.client.public());
    assert_eq!(there.request(Bytes::from_static(b"back")).await.unwrap(), "got back");
    session.lanes().push(extent(1, 50 * MIB + 123)).await;
    there.lanes().push(extent(2, 30 * MIB + 7)).await;
    near.wait_until("delivered", |s| s.delivered.get(&1) == Some(&(50 * MIB + 123)));
    far.memory.wait_until("delivered", |s| s.delivered.get(&2) == Some(&(30 * MIB + 7)));
    assert_eq!(far.memory.stored_bytes(1), 50 * MIB + 123);
    assert_eq!(near.stored_bytes(2), 30 * MIB + 7);
    session.close().await;
    far.memory.wait_until("ended", |s| s.ended.is_some());
    assert_eq!(far.memory.state.lock().unwrap().ended, Some(SessionEnd::ClosedByPeer));
}

#[tokio::test(flavor = "multi_thread")]
async fn control_works_over_tcp() {
    let (far, _server) = start_server();
    let memory = Arc::<Memory>::default();
    let options = ConnectOptions { control: ControlChoice::Tcp, ..far.options() };
    let session = connect(options, memory.clone()).await.unwrap();
    assert_eq!(session.control_kind(), Some("TCP"));
    let requests = (0..200u32).map(|i| {
        let session = session.clone();
        tokio::spawn(async move {
            let body = Bytes::from(vec![i as u8; 30_000]);
            let reply = session.request(body.clone()).await.unwrap();
            assert!(reply.starts_with(b"got ") && reply[4..] == body[..]);
        })
    });
    for request in requests.collect::<Vec<_>>() {
        request.await.unwrap();
    }
    session.lanes().push(extent(1, MIB)).await;
    memory.wait_until("delivered", |s| s.delivered.get(&1) == Some(&MIB));
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unwanted_and_withdrawn_bytes_are_declined() {
    let (far, _server) = start_server();
    let (session, near) = far.connect().await;
    far.memory.change(|s| s.unwanted = Some(1));
    near.change(|s| s.withdrawn = Some(2));
    session.lanes().push(extent(1, 3 * MIB)).await;
    session.lanes().push(extent(2, 3 * MIB)).await;
    session.lanes().push(extent(3, 3 * MIB)).await;
    near.wait_until("declined", |s| s.declined.get(&1) == Some(&(3 * MIB)));
    near.wait_until("delivered", |s| s.delivered.get(&3) == Some(&(3 * MIB)));
    near.wait_until("all decided", |s| {
        s.declined.get(&2).copied().unwrap_or(0) + s.delivered.get(&2).copied().unwrap_or(0) == 3 * MIB
    });
    assert!(near.state.lock().unwrap().declined.contains_key(&2));
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_told_how_to_get_in_and_a_changed_server_is_refused() {
    let (far, _server) = start_server();
    let stranger = Identity::ephemeral();
    let key = stranger.public();
    let options = ConnectOptions { identity: stranger, ..far.options() };
    let error = connect(options, Arc::<Memory>::default()).await.unwrap_err();
    assert!(matches!(error, ConnectError::UnknownKey { .. }), "{error}");
    assert!(error.to_string().contains(&key.to_openssh()));
    let trust = HostTrust::Pinned(key);
    let error =
        connect(ConnectOptions { trust, ..far.options() }, Arc::<Memory>::default()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Untrusted(_)), "{error}");
    assert!(far.sessions.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_is_said_so() {
    let options =
        ConnectOptions { addresses: vec!["127.0.0.1:1".parse().unwrap()], ..start_server().0.options() };
    let error = connect(options, Arc::<Memory>::default()).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot reach far: 127.0.0.1:1: "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_from_one_address_keep_nobody_else_out() {
    let (far, _server) = start_server();
    let mut silent = Vec::new();
    for _ in 0..600 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        silent.push(socket.connect(far.address).await.unwrap());
    }
    let began = Instant::now();
    let options = ConnectOptions { control: ControlChoice::Tcp, ..far.options() };
    let session = connect(options, Arc::<Memory>::default()).await.unwrap();
    assert_eq!(session.request(Bytes::from_static(b"hello")).await.unwrap(), "got hello");
    // The silent ones are there for as long at least.
    assert!(began.elapsed() < limits::CONNECT_TIMEOUT, "{:?}", began.elapsed());
    session.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_has_a_bounded_number_of_sessions() {
    let (far, _server) = start_server();
    let mut sessions = Vec::new();
    let lanes = LaneSettings { lanes: Some(1), ..LaneSettings::default() };
    for _ in 0..limits::SESSIONS_PER_KEY_MAX {
        let options = ConnectOptions { lanes, ..far.options() };
        sessions.push(connect(options, Arc::<Memory>::default()).await.unwrap());
    }
    let error = connect(far.options(), Arc::<Memory>::default()).await.unwrap_err();
    assert!(error.to_string().contains("64 sessions of your key are open"), "{error}");
    // One that ends makes room.
    sessions.pop().unwrap().close().await;
    let began = Instant::now();
    while let Err(error) = connect(far.options(), Arc::<Memory>::default()).await {
        assert!(began.elapsed() < LIMIT, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_while_bytes_are_stored_ends_the_session() {
    let broken =
        |end: &SessionEnd| matches!(end, SessionEnd::Broken(reason) if reason.contains("on purpose"));
    let (far, _server) = start_server();
    far.memory.change(|s| s.panics = Some(1));
    let (session, near) = far.connect().await;
    session.lanes().push(extent(1, MIB)).await;
    far.memory.wait_until("ended", |s| s.ended.as_ref().is_some_and(broken));
    near.wait_until("the other end is told", |s| s.ended == Some(SessionEnd::ClosedByPeer));
    // The same at the client's end.
    let (far, _server) = start_server();
    let (_session, near) = far.connect().await;
    near.change(|s| s.panics = Some(1));
    let there = far.sessions.lock().unwrap()[0].clone();
    there.lanes().push(extent(1, MIB)).await;
    near.wait_until("ended", |s| s.ended.as_ref().is_some_and(broken));
    far.memory.wait_until("the other end is told", |s| s.ended == Some(SessionEnd::ClosedByPeer));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_and_exits_is_not_waited_for() {
    let (far, _server) = start_server();
    let far = Arc::new(far);
    let client = Arc::clone(&far);
    let exited = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (session, _) = client.connect_by_quic().await;
            session.close().await;
        });
        runtime.shutdown_background();
    });
    tokio::task::spawn_blocking(|| exited.join().unwrap()).await.unwrap();
    let began = Instant::now();
    far.memory.wait_until("ended", |s| s.ended == Some(SessionEnd::ClosedByPeer));
    // Somebody who exits without a word is missed after that time.
    assert!(began.elapsed() < limits::LINK_IDLE_TIMEOUT / 2, "{:?}", began.elapsed());
}
