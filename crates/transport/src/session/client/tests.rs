//! A client whose server is behind somebody who lets pass what he likes.

use std::pin::Pin;

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;
use crate::identity::KnownHosts;
use crate::lane::mover::tests::Everything;
use crate::session::{Door, Refused, Server, ServerOptions};
use crate::tls::server_config;

const LIMIT: Duration = Duration::from_secs(120);

/// How long a session has to be without lanes here: longer than a slow machine takes to open one.
const LANELESS: Duration = Duration::from_secs(10);

impl Handler for Everything {
    fn request(
        self: Arc<Self>,
        _session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send>> {
        Box::pin(async { body })
    }
}

struct Everybody;

impl Door for Everybody {
    fn admit(&self, _key: PublicKey, _from: SocketAddr, _service: &str) -> Result<Arc<dyn Handler>, Refused> {
        Ok(Arc::new(Everything))
    }
}

fn start_server(identity: &Identity) -> SocketAddr {
    let options = ServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        identity: identity.clone(),
        lanes: LaneSettings::default(),
    };
    let server = Server::bind(options, Everybody).unwrap();
    let address = server.address();
    tokio::spawn(async move { server.run().await });
    address
}

/// What becomes of connections.
#[derive(Clone)]
struct Fate {
    /// Where control links go; `None`: they wait.
    control: Option<SocketAddr>,
    /// Where lanes go; `None`: they end after a handshake with `lanes_as`.
    lanes: Option<SocketAddr>,
    lanes_as: Identity,
}

/// What is seen of a lane that ends after its handshake.
#[derive(Debug)]
enum Seen {
    Handshake,
    /// After it, in a second.
    Bytes(Vec<u8>),
}

/// In front of servers.
async fn front(fate: watch::Receiver<Fate>) -> (SocketAddr, mpsc::UnboundedReceiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, see) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            tokio::spawn(pass(tcp, fate.clone(), seen.clone()));
        }
    });
    (address, see)
}

/// Passes one connection on for as long as its fate is the same.
async fn pass(mut tcp: TcpStream, mut fate: watch::Receiver<Fate>, seen: mpsc::UnboundedSender<Seen>) {
    let mut hello = [0; 2000];
    let is_lane = loop {
        let bytes = tcp.peek(&mut hello).await.unwrap();
        let has = |word: &[u8]| hello[..bytes].windows(word.len()).any(|w| w == word);
        if has(Purpose::Lane.alpn()) || has(Purpose::Control.alpn()) {
            break has(Purpose::Lane.alpn());
        }
    };
    let to = |fate: &Fate| if is_lane { fate.lanes } else { fate.control };
    if is_lane && fate.borrow().lanes.is_none() {
        let config = Arc::new(server_config(&fate.borrow().lanes_as).unwrap());
        let Ok(SecureTcp { mut tcp, mut received, .. }) = SecureTcp::accept(tcp, config, LIMIT).await else {
            return;
        };
        let _ = seen.send(Seen::Handshake);
        let _ = tokio::time::timeout(Duration::from_secs(1), tcp.read_to_end(&mut received)).await;
        let _ = seen.send(Seen::Bytes(received));
        return;
    }
    let Some(server) = fate.wait_for(|fate| to(fate).is_some()).await.ok().and_then(|fate| to(&fate)) else {
        return;
    };
    let mut far = TcpStream::connect(server).await.unwrap();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut tcp, &mut far) => {}
        _ = fate.wait_for(|fate| to(fate) != Some(server)) => {}
    }
}

fn options(address: SocketAddr, trust: HostTrust) -> ConnectOptions {
    ConnectOptions {
        host: "far".into(),
        addresses: vec![address],
        identity: Identity::ephemeral(),
        trust,
        service: "tests",
        control: ControlChoice::Tcp,
        lanes: LaneSettings { laneless_max: LANELESS, ..LaneSettings::default() },
    }
}

async fn end_of(session: &Session) -> SessionEnd {
    tokio::time::timeout(LIMIT, session.ended()).await.expect("the session ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_lanes_are_all_refused_ends() {
    let identity = Identity::ephemeral();
    let server = start_server(&identity);
    let fate = Fate { control: Some(server), lanes: None, lanes_as: identity.clone() };
    let (_fate, watched) = watch::channel(fate);
    let (address, _seen) = front(watched).await;
    let mut options = options(address, HostTrust::Pinned(identity.public()));
    options.lanes.laneless_max = 2 * LIMIT; // not for this reason
    let session = connect(options, Arc::new(Everything)).await.unwrap();
    let SessionEnd::NoLanes(reason) = end_of(&session).await else { panic!() };
    assert!(reason.contains("the server does not take it"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_gets_no_more_lanes_ends_although_it_had_some() {
    let identity = Identity::ephemeral();
    let server = start_server(&identity);
    let open = Fate { control: Some(server), lanes: Some(server), lanes_as: identity.clone() };
    let (fate, watched) = watch::channel(open);
    let (address, _seen) = front(watched).await;
    let options = options(address, HostTrust::Pinned(identity.public()));
    let session = connect(options, Arc::new(Everything)).await.unwrap();
    // As long as there are lanes, it goes on.
    assert!(tokio::time::timeout(LANELESS + Duration::from_secs(1), session.ended()).await.is_err());
    fate.send_modify(|fate| fate.lanes = None);
    let SessionEnd::NoLanes(reason) = end_of(&session).await else { panic!() };
    assert!(reason.contains("the server does not take it"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_of_another_server_are_not_told_the_session() {
    let (identity, other) = (Identity::ephemeral(), Identity::ephemeral());
    let server = start_server(&identity);
    let (fate, watched) = watch::channel(Fate { control: None, lanes: None, lanes_as: other });
    let (address, mut seen) = front(watched).await;
    let dir = tempfile::tempdir().unwrap();
    let file = KnownHosts::load(&dir.path().join("known_hosts")).unwrap();
    let options = options(address, HostTrust::known("far".into(), file));
    // The lanes are there first: then neither key is known.
    let lanes_first = async {
        assert!(matches!(seen.recv().await, Some(Seen::Handshake)));
        fate.send_modify(|fate| fate.control = Some(server));
        loop {
            if let Some(Seen::Bytes(bytes)) = seen.recv().await {
                return bytes;
            }
        }
    };
    let (session, bytes) = tokio::join!(connect(options, Arc::new(Everything)), lanes_first);
    assert!(bytes.is_empty(), "a hello names the session");
    assert!(matches!(end_of(&session.unwrap()).await, SessionEnd::NoLanes(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_not_taken_up_again_says_why() {
    let (identity, other) = (Identity::ephemeral(), Identity::ephemeral());
    let (server, replaced, restarted) =
        (start_server(&identity), start_server(&other), start_server(&identity));
    for (next, expected) in [(replaced, "somebody is in between"), (restarted, "does not know the session")] {
        let fate = Fate { control: Some(server), lanes: Some(server), lanes_as: identity.clone() };
        let (fate, watched) = watch::channel(fate);
        let (address, _seen) = front(watched).await;
        let options = options(address, HostTrust::Pinned(identity.public()));
        let session = connect(options, Arc::new(Everything)).await.unwrap();
        fate.send_modify(|fate| fate.control = Some(next));
        let end = end_of(&session).await;
        assert!(end.to_string().contains(expected), "{end}");
    }
}
