//! The client's end of a session about tests: asks for them, and connects their flows.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_transport::Session;
use longhaul_transport::session::RequestError;
use rustix::event::{PollFd, PollFlags};

use super::knock::{Knock, Token};
use super::message::{Answer, Ask, Open, short};
use super::test::{Host, Seen, Way, What, Wish};
use crate::limits::{CONTROLS_MAX, STEP_TIMEOUT};
use crate::socket::wait_for;
use crate::tcp::{self, ConnectError};
use crate::traffic::Socket;
use crate::udp;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The control connection.
    #[error("the session with the server ended: {0}")]
    Session(#[from] RequestError),
    /// In the server's own words.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// It says what cannot be.
    #[error("the server's answer cannot be understood: it may be older or newer")]
    Answer,
    /// It does not know the request.
    #[error("the server is older, and does not know this; have the same version run there")]
    Older,
    /// It is there, and says nothing.
    #[error("the server has not answered within {0:?}; it may be busy: try again")]
    Late(Duration),
    /// A disk was not measured, and why.
    #[error("{0}")]
    Disk(String),
    /// A flow.
    #[error(
        "{0}; the test's data go to ports of their own, which a firewall on the way may not let through: allow TCP and UDP \
         from here to the server's ports above 32767 (its net.ipv4.ip_local_port_range)"
    )]
    Connect(#[from] ConnectError),
    /// UDP does not get there, or back.
    #[error(
        "no answer by UDP from {0}: a firewall on the way may drop it; allow UDP from here to the server's ports above 32767 \
         (its net.ipv4.ip_local_port_range), and answers"
    )]
    Silent(SocketAddr),
    /// The test's half there.
    #[error("the test ended at the server: {0}")]
    Ended(String),
    /// The test's half here.
    #[error("the test failed here: {0}")]
    Here(#[from] io::Error),
    /// By whoever waits for it.
    #[error("it was told to stop before the test began")]
    Stopped,
}

/// A session about tests.
#[derive(Debug, Clone)]
pub struct Prober {
    session: Session,
    /// The server's host.
    pub far: Arc<Host>,
    /// This one.
    pub near: Arc<Host>,
}

/// Flows of a test that are connected.
#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) test: u32,
    pub(crate) sockets: Vec<Socket>,
}

/// What both ends had counted at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Both {
    /// Here.
    pub near: Seen,
    /// At the server.
    pub far: Seen,
}

impl Both {
    /// The sender's.
    #[must_use]
    pub fn sender(&self, way: Way) -> &Seen {
        if way == Way::ToServer { &self.near } else { &self.far }
    }

    /// The receiver's.
    #[must_use]
    pub fn receiver(&self, way: Way) -> &Seen {
        if way == Way::ToServer { &self.far } else { &self.near }
    }
}

impl Prober {
    /// Asks the server how it is set up.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub async fn greet(session: Session, version: &str) -> Result<Self, ProbeError> {
        let near = Arc::new(Host::look(version, None));
        match ask(&session, Ask::Greet(true)).await? {
            Answer::Facts(facts) => Ok(Self { session, far: Arc::new(facts.host()), near }),
            _ => Err(ProbeError::Answer),
        }
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Congestion controls of TCP that both hosts have.
    #[must_use]
    pub fn controls(&self) -> Vec<String> {
        let of = |host: &Host| -> Vec<String> {
            let name = "net.ipv4.tcp_available_congestion_control";
            let value = host.settings.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
            value.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
        };
        let far = of(&self.far);
        of(&self.near).into_iter().filter(|control| far.contains(control)).take(CONTROLS_MAX).collect()
    }

    /// The round-trip time as the control channel sees it.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.session.rtt().unwrap_or(Duration::from_millis(100))
    }

    /// Opens a test, and connects its flows.
    pub(crate) async fn open(&self, wish: &Wish) -> Result<Flows, ProbeError> {
        let Answer::Opened(opened) = ask(&self.session, Ask::Open(Open::of(wish))).await? else {
            return Err(ProbeError::Answer);
        };
        let ports = if wish.what == What::Tcp { 1 } else { wish.streams as usize };
        let (token, ports) = opened.parts(ports).ok_or(ProbeError::Answer)?;
        let (host, wish, rtt) = (self.session.remote(), wish.clone(), self.rtt());
        let connect = move || connect(host, &wish, token, &ports, rtt);
        let sockets = tokio::task::spawn_blocking(connect).await.map_err(io::Error::other)?;
        match sockets {
            Ok(sockets) => Ok(Flows { test: opened.test, sockets }),
            Err(error) => {
                let _ = self.end(opened.test, 0).await; // the connection's error says more
                Err(error)
            }
        }
    }

    pub(crate) async fn begin(&self, test: u32, flows: usize) -> Result<Seen, ProbeError> {
        let seen = self.seen(Ask::Begin(test), flows).await?;
        seen.over.clone().map_or(Ok(seen), |why| Err(ProbeError::Ended(why)))
    }

    pub(crate) async fn look(&self, test: u32, flows: usize) -> Result<Seen, ProbeError> {
        self.seen(Ask::Look(test), flows).await
    }

    pub(crate) async fn end(&self, test: u32, flows: usize) -> Result<Seen, ProbeError> {
        self.seen(Ask::End(test), flows).await
    }

    pub(super) async fn seen(&self, question: Ask, flows: usize) -> Result<Seen, ProbeError> {
        match ask(&self.session, question).await? {
            Answer::Seen(seen) => seen.seen(flows).ok_or(ProbeError::Answer),
            _ => Err(ProbeError::Answer),
        }
    }
}

pub(super) async fn ask(session: &Session, question: Ask) -> Result<Answer, ProbeError> {
    let answer = session.request(question.into_bytes()).await?;
    if answer.is_empty() {
        return Err(ProbeError::Older);
    }
    match Answer::from_bytes(answer) {
        Some(Answer::Refused(why)) => Err(ProbeError::Refused(short(&why))),
        Some(answer) => Ok(answer),
        None => Err(ProbeError::Answer),
    }
}

fn connect(
    host: SocketAddr,
    wish: &Wish,
    token: Token,
    ports: &[u16],
    rtt: Duration,
) -> Result<Vec<Socket>, ProbeError> {
    let at = |port| SocketAddr::new(host.ip(), port);
    match wish.what {
        What::Tcp => {
            let one = |_| {
                let stream = tcp::connect(at(ports[0]), &wish.options)?;
                (&stream).write_all(&token)?;
                Ok(Socket::Tcp(stream))
            };
            (0..wish.streams).map(one).collect()
        }
        What::Udp | What::Echoes => ports
            .iter()
            .map(|port| {
                let socket = udp::connect(at(*port), &wish.options)?;
                knock(&socket, token, rtt)?
                    .then_some(Socket::Udp(socket))
                    .ok_or(ProbeError::Silent(at(*port)))
            })
            .collect(),
    }
}

/// Proofs after which a flow goes on without having heard that it is let in: the server tells when it was not.
const PROOFS_UNANSWERED_MAX: u32 = 3;

/// The client's side of the handshake; false: there was no answer.
fn knock(socket: &std::net::UdpSocket, token: Token, rtt: Duration) -> io::Result<bool> {
    let over = Instant::now() + STEP_TIMEOUT;
    let patience = 2 * rtt + Duration::from_millis(200);
    let (mut next, mut proofs) = (Knock::Hello(token), 0);
    let mut bytes = [0; 128];
    socket.set_nonblocking(true)?;
    while Instant::now() < over {
        // What ICMP says of a datagram before is no reason to give up.
        let _ = socket.send(&next.encode());
        let until = Instant::now() + patience;
        while Instant::now() < until {
            wait_for(&mut [PollFd::new(socket, PollFlags::IN)], until)?;
            let heard = socket.recv(&mut bytes).ok().and_then(|length| Knock::decode(&bytes[..length]));
            match heard {
                Some(Knock::Cookie(cookie)) if matches!(next, Knock::Hello(_)) => {
                    next = Knock::Proof(token, cookie);
                    break;
                }
                Some(Knock::Ready) => {
                    socket.set_nonblocking(false)?;
                    return Ok(true);
                }
                _ => {}
            }
        }
        proofs += u32::from(matches!(next, Knock::Proof(..)));
        if proofs > PROOFS_UNANSWERED_MAX {
            socket.set_nonblocking(false)?;
            return Ok(true);
        }
    }
    Ok(false)
}
