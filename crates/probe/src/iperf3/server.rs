//! The end that is asked for tests: one at a time, as iperf3's.
//!
//! Nobody proves who he is, so what a stranger can bring about is bounded: one test at a time, of bounded time, streams and memory,
//! at no more than the rate that the operator allows; others are told that the server is busy. UDP goes to the host of the control
//! connection only, which has answered TCP's handshake, and only after it has asked for the stream by UDP.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use longhaul_transport::socket::{TcpInfo, set_int};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{SocketType, sockopt};

use crate::iperf3::client::{
    Clock, Observer, Tick, buffers, congestion, flow_start, options, plan, results, unix_seconds,
};
use crate::iperf3::message::{Cookie, Direction, MessageError, Parameters, Protocol, Results};
use crate::iperf3::report::{End, Side, Start};
use crate::iperf3::state::State;
use crate::iperf3::wire::{Control, Meanwhile, WireError};
use crate::iperf3::{UDP_ANSWERS, UDP_HELLOS};
use crate::limits::{OVERTIME_MAX, SILENCE_MAX, STEP_TIMEOUT, STRANGERS_MAX, STRANGERS_PER_SOURCE_MAX};
use crate::processor::Watch;
use crate::socket::{self, wait_for};
use crate::traffic::{Plan, Role, Socket, Traffic};

/// How a server serves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    /// Bits a second that all streams of a test together may have in one direction; `None`: no bound.
    pub rate_max: Option<u64>,
    /// Time between reports; `None`: only one at the end.
    pub interval: Option<Duration>,
    /// TCP: the kernel drops what is received.
    pub skip_receive_copy: bool,
}

/// Why a test, or the server, ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server itself: it cannot go on.
    #[error("cannot listen on {address}: {source}; is another server running there? -p takes another port")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The server's sockets.
    #[error("cannot wait for clients: {0}")]
    Wait(io::Error),
    /// Its client.
    #[error("{peer}, {during}: {source}")]
    Client {
        /// Its address.
        peer: IpAddr,
        /// What was being done.
        during: &'static str,
        /// What went wrong.
        source: WireError,
    },
    /// What the client wanted.
    #[error("{peer} was refused: {why}")]
    Refused {
        /// Its address.
        peer: IpAddr,
        /// What was too much.
        why: String,
    },
    /// The client, or what it did.
    #[error("the test of {peer} was ended: {why}")]
    Ended {
        /// Its address.
        peer: IpAddr,
        /// By whom, or for what.
        why: &'static str,
    },
}

impl ServerError {
    /// Whether the server can take another test.
    #[must_use]
    pub fn is_of_one_test(&self) -> bool {
        !matches!(self, Self::Listen { .. } | Self::Wait(_))
    }
}

/// Listens.
#[derive(Debug)]
pub struct Server {
    door: Door,
    service: Service,
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub fn listen(address: SocketAddr, service: Service) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address, source };
        let listener = listener(address).map_err(failed)?;
        Ok(Self { door: Door::new(listener), service })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.door.listener.local_addr()
    }

    /// Waits for a client, and makes its test.
    ///
    /// # Errors
    /// [`ServerError`]; [`is_of_one_test`](ServerError::is_of_one_test) tells whether to go on.
    pub fn serve_one(&mut self, observer: &mut dyn Observer) -> Result<(Start, End), ServerError> {
        self.door.open_for = None;
        let first = loop {
            if let Some(arrived) = self.door.arrived.pop_front() {
                break arrived;
            }
            let far = Instant::now() + STEP_TIMEOUT;
            self.door.wait_alone(far).map_err(ServerError::Wait)?;
        };
        let peer = first.peer.ip();
        let control = Control::new(first.stream).map_err(ServerError::Wait)?;
        self.door.open_for = Some((first.cookie, peer));
        let mut test = Test { control, cookie: first.cookie, peer: first.peer, door: &mut self.door };
        let result = test.run(self.service, observer);
        if let Err(ServerError::Ended { .. } | ServerError::Wait(_)) = &result {
            // Who is gone does not hear it.
            let _ = test.control.say(State::ServerTerminate);
        }
        if result.is_err() {
            // Streams that nobody has taken.
            self.door.arrived.clear();
            self.door.streams_wanted = 0;
        }
        result
    }
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket::new(address, SocketType::STREAM)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, STRANGERS_MAX as i32)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A connection that has not sent its whole cookie.
#[derive(Debug)]
struct Stranger {
    stream: TcpStream,
    peer: SocketAddr,
    cookie: [u8; Cookie::BYTES],
    read: usize,
    until: Instant,
}

/// One that has.
#[derive(Debug)]
struct Arrived {
    stream: TcpStream,
    peer: SocketAddr,
    cookie: Cookie,
}

/// Takes connections, and turns away whom it is not open for.
#[derive(Debug)]
struct Door {
    listener: TcpListener,
    strangers: Vec<Stranger>,
    arrived: VecDeque<Arrived>,
    /// The test under way.
    open_for: Option<(Cookie, IpAddr)>,
    /// Streams that it still waits for.
    streams_wanted: usize,
}

impl Door {
    fn new(listener: TcpListener) -> Self {
        let (strangers, arrived) = (Vec::new(), VecDeque::new());
        Self { listener, strangers, arrived, open_for: None, streams_wanted: 0 }
    }

    fn wait_alone(&mut self, until: Instant) -> io::Result<()> {
        self.wait_with(None, until)
    }

    /// Waits for the door, and for a socket of the caller's.
    fn wait_with(&mut self, other: Option<PollFd<'_>>, until: Instant) -> io::Result<()> {
        let until = self.strangers.iter().map(|stranger| stranger.until).fold(until, Instant::min);
        let mut sockets: Vec<PollFd<'_>> = other.into_iter().collect();
        sockets.extend(self.strangers.iter().map(|stranger| PollFd::new(&stranger.stream, PollFlags::IN)));
        if self.strangers.len() < STRANGERS_MAX {
            sockets.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        wait_for(&mut sockets, until)?;
        drop(sockets);
        self.accept()?;
        self.hear();
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        while self.strangers.len() < STRANGERS_MAX {
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // A connection that is gone already, or an interruption: there may be others. accept(2) has the list.
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) if is_lack(&error) => {
                    // Until somebody closes something.
                    std::thread::sleep(Duration::from_millis(10));
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let is_client = self.open_for.is_some_and(|(_, client)| client == peer.ip());
            let from_there = self.strangers.iter().filter(|other| other.peer.ip() == peer.ip()).count();
            if (!is_client && from_there >= STRANGERS_PER_SOURCE_MAX) || stream.set_nonblocking(true).is_err()
            {
                continue;
            }
            let until = Instant::now() + STEP_TIMEOUT;
            self.strangers.push(Stranger { stream, peer, cookie: [0; Cookie::BYTES], read: 0, until });
        }
        Ok(())
    }

    /// Reads cookies. Streams of one host are taken in the order of their connections: their places decide their directions.
    fn hear(&mut self) {
        let now = Instant::now();
        let mut waiting: Vec<IpAddr> = Vec::new();
        for mut stranger in std::mem::take(&mut self.strangers) {
            let Stranger { stream, cookie, read, until, .. } = &mut stranger;
            let open = socket::read_what_is_there(stream, cookie, read) && now < *until;
            let behind = waiting.contains(&stranger.peer.ip());
            if !open {
                continue;
            }
            if stranger.read < Cookie::BYTES || (behind && self.open_for.is_some()) {
                waiting.push(stranger.peer.ip());
                self.strangers.push(stranger);
            } else {
                self.decide(stranger);
            }
        }
    }

    fn decide(&mut self, stranger: Stranger) {
        let Stranger { stream, peer, cookie, .. } = stranger;
        let cookie = Cookie::from_bytes(cookie);
        let belongs = match self.open_for {
            None => self.arrived.is_empty(),
            Some(client) => self.streams_wanted > 0 && client == (cookie, peer.ip()),
        };
        if belongs {
            self.streams_wanted = self.streams_wanted.saturating_sub(1);
            self.arrived.push_back(Arrived { stream, peer, cookie });
        } else {
            // One byte fits any socket's buffer; who is gone does not hear it.
            let _ = (&stream).write_all(&[State::AccessDenied.code()]);
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EINTR
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EPERM
        )
    )
}

fn is_lack(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Others are turned away while the client is waited for.
impl Meanwhile for Door {
    fn wait(&mut self, control: PollFd<'_>, until: Instant) -> io::Result<()> {
        self.wait_with(Some(control), until)
    }
}

/// One test.
struct Test<'a> {
    control: Control,
    cookie: Cookie,
    peer: SocketAddr,
    door: &'a mut Door,
}

fn soon() -> Instant {
    Instant::now() + STEP_TIMEOUT
}

/// iperf3's numbers of what a server can refuse.
const REFUSED_RATE: u32 = 27;
const REFUSED_PARAMETERS: u32 = 114;
const REFUSED_STREAM: u32 = 8;

impl Test<'_> {
    fn run(&mut self, service: Service, observer: &mut dyn Observer) -> Result<(Start, End), ServerError> {
        let parameters = self.parameters(service)?;
        let flows = self.streams(&parameters)?;
        let start = self.start(&parameters, &flows);
        let beginning = "beginning the test";
        self.say(State::TestStart, beginning)?;
        let watch = Watch::start();
        self.say(State::TestRunning, beginning)?;
        observer.started(&start);
        let plan = bounded_plan(&parameters, service);
        let mut traffic = Traffic::start(flows, &plan, parameters.omit > 0).map_err(ServerError::Wait)?;
        self.watch(service, &start, &mut traffic, observer)?;
        let (totals, processor) = (traffic.totals(), watch.share());
        traffic.stop();
        drop(traffic);
        let telling = "exchanging results";
        self.say(State::ExchangeResults, telling)?;
        let said = self.control.message(soon(), self.door).map_err(|error| self.failed(telling, error))?;
        let peer = Results::from_bytes(&said, totals.len()).map_err(|error| self.failed(telling, error))?;
        let congestion = start.congestion.clone();
        let own = results(&totals, processor, congestion.clone()).to_json();
        self.control.send(&own, soon(), self.door).map_err(|error| self.failed(telling, error))?;
        self.say(State::DisplayResults, telling)?;
        // The next client may be here before the goodbye is.
        self.door.open_for = None;
        // A goodbye, or the end of the connection: it makes no difference.
        let _ = self.control.state(soon(), self.door);
        Ok((start, End { totals, processor, congestion, peer }))
    }

    fn failed(&self, during: &'static str, error: impl Into<WireError>) -> ServerError {
        ServerError::Client { peer: self.peer.ip().to_canonical(), during, source: error.into() }
    }

    fn ended(&self, why: &'static str) -> ServerError {
        ServerError::Ended { peer: self.peer.ip().to_canonical(), why }
    }

    fn say(&mut self, state: State, during: &'static str) -> Result<(), ServerError> {
        self.control.say(state).map_err(|error| self.failed(during, error))
    }

    /// Tells the client with iperf3's number, and the operator in words.
    fn refuse(&mut self, code: u32, why: String) -> ServerError {
        let mut bytes = vec![State::ServerError.code()];
        bytes.extend(code.to_be_bytes());
        bytes.extend(0u32.to_be_bytes());
        // Who is gone does not hear it.
        let _ = self.control.write(&bytes, soon(), self.door);
        ServerError::Refused { peer: self.peer.ip().to_canonical(), why }
    }

    fn parameters(&mut self, service: Service) -> Result<Parameters, ServerError> {
        let asking = "asking for its parameters";
        self.say(State::ParamExchange, asking)?;
        let bytes = self.control.message(soon(), self.door).map_err(|error| self.failed(asking, error))?;
        let parameters = Parameters::from_bytes(&bytes)
            .map_err(|error: MessageError| self.refuse(REFUSED_PARAMETERS, error.to_string()))?;
        // What a client sends by UDP cannot be slowed down from here.
        let comes_by_udp = parameters.protocol == Protocol::Udp && parameters.direction != Direction::Reverse;
        let all = parameters.bandwidth.saturating_mul(u64::from(parameters.parallel));
        if let Some(most) = service.rate_max.filter(|most| comes_by_udp && (all == 0 || all > *most)) {
            let why = format!("UDP beyond {most} bit/s (--rate-max)");
            return Err(self.refuse(REFUSED_RATE, why));
        }
        Ok(parameters)
    }

    fn streams(&mut self, parameters: &Parameters) -> Result<Vec<(Socket, Role)>, ServerError> {
        let opening = "waiting for its streams";
        if parameters.protocol == Protocol::Tcp {
            self.prepare_listener(parameters)?;
            self.door.streams_wanted = parameters.streams();
        }
        let udp_at = self.control.stream.local_addr().map_err(|error| self.failed(opening, error))?;
        // Bound before the client is told to come: what it sends would be lost.
        let mut next = match parameters.protocol {
            Protocol::Udp => Some(self.bind_udp(udp_at, parameters)?),
            Protocol::Tcp => None,
        };
        self.say(State::CreateStreams, opening)?;
        let mut flows = Vec::with_capacity(parameters.streams());
        for place in 0..parameters.streams() {
            let socket = match next.take() {
                None => Socket::Tcp(self.next_stream(parameters)?),
                Some(bound) => {
                    let asker = self.next_hello(&bound)?;
                    bound.0.connect(asker.0).map_err(|error| self.failed(opening, error))?;
                    if place + 1 < parameters.streams() {
                        next = Some(self.bind_udp(udp_at, parameters)?);
                    }
                    bound.0.send(&asker.1).map_err(|error| self.failed(opening, error))?;
                    Socket::Udp(bound.0)
                }
            };
            flows.push((socket, role(parameters, place)));
        }
        Ok(flows)
    }

    /// Segments are agreed upon when a connection begins, so that it is the listener that must have them. A 0 gives back what
    /// the test before has asked for.
    fn prepare_listener(&mut self, parameters: &Parameters) -> Result<(), ServerError> {
        let mss = parameters.mss.cast_signed();
        set_int(&self.door.listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss)
            .map_err(|error| self.refuse(REFUSED_STREAM, format!("segments of {mss} bytes: {error}")))
    }

    fn next_stream(&mut self, parameters: &Parameters) -> Result<TcpStream, ServerError> {
        let opening = "waiting for its streams";
        let until = soon();
        loop {
            if let Some(arrived) = self.door.arrived.pop_front() {
                let late = crate::traffic::Options { mss: None, ..options(parameters) };
                late.set_tcp(&arrived.stream)
                    .map_err(|error| self.refuse(REFUSED_STREAM, error.to_string()))?;
                arrived.stream.set_nonblocking(false).map_err(|error| self.failed(opening, error))?;
                return Ok(arrived.stream);
            }
            self.still_there(opening, until)?;
            self.door
                .wait_with(Some(PollFd::new(&self.control.stream, PollFlags::IN)), until)
                .map_err(ServerError::Wait)?;
        }
    }

    /// The client is there and may still take its time.
    fn still_there(&mut self, during: &'static str, until: Instant) -> Result<(), ServerError> {
        match self.control.look() {
            Ok(None) => {}
            Ok(Some(_)) => return Err(self.ended("its client gave up")),
            Err(error) => return Err(self.failed(during, error)),
        }
        if Instant::now() < until {
            return Ok(());
        }
        Err(self.failed(during, io::Error::new(io::ErrorKind::TimedOut, "not all have come in time")))
    }

    fn bind_udp(&mut self, at: SocketAddr, parameters: &Parameters) -> Result<Bound, ServerError> {
        let bind = || -> io::Result<UdpSocket> {
            let socket = socket::new(at, SocketType::DGRAM)?;
            // The streams before it have the same port, and are connected.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &at)?;
            Ok(socket.into())
        };
        let socket =
            bind().map_err(|error| self.refuse(REFUSED_STREAM, format!("no UDP socket: {error}")))?;
        options(parameters)
            .set_udp(&socket)
            .map_err(|error| self.refuse(REFUSED_STREAM, error.to_string()))?;
        Ok(Bound(socket))
    }

    /// Waits until the client's host asks for a stream: where from, and the answer. All else is thrown away unanswered.
    fn next_hello(&mut self, bound: &Bound) -> Result<(SocketAddr, [u8; 4]), ServerError> {
        let opening = "waiting for its streams";
        let until = soon();
        loop {
            self.still_there(opening, until)?;
            let limit = Duration::from_millis(100).min(until.saturating_duration_since(Instant::now()));
            let limit = limit.max(Duration::from_millis(1));
            bound.0.set_read_timeout(Some(limit)).map_err(ServerError::Wait)?;
            // One byte more than a hello, to tell longer packets from it.
            let mut bytes = [0; 5];
            if let Ok((4, from)) = bound.0.recv_from(&mut bytes) {
                let hello = UDP_HELLOS.iter().position(|hello| hello[..] == bytes[..4]);
                if let Some(place) =
                    hello.filter(|_| from.ip().to_canonical() == self.peer.ip().to_canonical())
                {
                    return Ok((from, UDP_ANSWERS[place]));
                }
            }
            self.door.wait_alone(Instant::now()).map_err(ServerError::Wait)?;
        }
    }

    fn start(&self, parameters: &Parameters, flows: &[(Socket, Role)]) -> Start {
        Start {
            side: Side::Server,
            host: self.peer.ip().to_canonical().to_string(),
            port: self.peer.port(),
            parameters: parameters.clone(),
            cookie: self.cookie,
            flows: flows.iter().filter_map(flow_start).collect(),
            buffers: flows.first().map_or((0, 0), |(socket, _)| buffers(socket)),
            congestion: congestion(flows),
            mss: TcpInfo::of(&self.control.stream).map_or(0, |info| info.snd_mss),
            unix_seconds: unix_seconds(),
        }
    }

    /// Looks at the traffic until the client says that the test is over.
    fn watch(
        &mut self,
        service: Service,
        start: &Start,
        traffic: &mut Traffic,
        observer: &mut dyn Observer,
    ) -> Result<(), ServerError> {
        let parameters = &start.parameters;
        let mut clock = Clock::new(parameters, service.interval);
        let mut patience = Patience::new(parameters, service);
        loop {
            let until = clock.next();
            self.door
                .wait_with(Some(PollFd::new(&self.control.stream, PollFlags::IN)), until)
                .map_err(ServerError::Wait)?;
            match self.control.look().map_err(|error| self.failed("during the test", error))? {
                None => {}
                Some(State::TestEnd) => break,
                Some(State::ClientTerminate) => return Err(self.ended("its client gave up")),
                Some(_) => return Err(self.ended("its client speaks out of turn")),
            }
            match clock.tick(Instant::now()) {
                Tick::Report => observer.interval(start, &traffic.interval()),
                Tick::Count => {
                    observer.interval(start, &traffic.interval());
                    traffic.count_from_now();
                }
                // The client's clock decides.
                Tick::Nothing | Tick::Over => {}
            }
            if let Some(why) = patience.is_over(traffic) {
                if why == TOO_FAST {
                    return Err(self.refuse(REFUSED_RATE, why.to_owned()));
                }
                return Err(self.ended(why));
            }
        }
        if clock.has_unreported() {
            observer.interval(start, &traffic.interval());
        }
        Ok(())
    }
}

/// A UDP socket that has no peer yet.
struct Bound(UdpSocket);

/// The first streams are those that the client sends on.
fn role(parameters: &Parameters, place: usize) -> Role {
    match parameters.direction {
        Direction::Forward => Role::Receives,
        Direction::Reverse => Role::Sends,
        Direction::Both if place < parameters.parallel as usize => Role::Receives,
        Direction::Both => Role::Sends,
    }
}

/// The plan, within what the operator allows.
fn bounded_plan(parameters: &Parameters, service: Service) -> Plan {
    let wanted = plan(parameters);
    let each = service.rate_max.map(|most| (most / u64::from(parameters.parallel)).max(1));
    Plan {
        rate: [wanted.rate, each].into_iter().flatten().min(),
        receive_rate_max: each,
        skip_receive_copy: service.skip_receive_copy,
        ..wanted
    }
}

const TOO_FAST: &str = "it sends faster than it said (--rate-max)";

/// When a server has waited long enough for a client.
#[derive(Debug)]
struct Patience {
    ends: Option<Instant>,
    moved: u64,
    moved_at: Instant,
    rate_max: Option<u64>,
}

/// A sender's clock may differ, and the first packets come at once.
const RATE_TOLERANCE: f64 = 1.1;

impl Patience {
    fn new(parameters: &Parameters, service: Service) -> Self {
        let now = Instant::now();
        let time = Duration::from_secs(parameters.omit + parameters.seconds) + OVERTIME_MAX;
        Self {
            ends: (parameters.seconds > 0).then_some(now + time),
            moved: 0,
            moved_at: now,
            rate_max: service.rate_max.filter(|_| parameters.protocol == Protocol::Udp),
        }
    }

    fn is_over(&mut self, traffic: &Traffic) -> Option<&'static str> {
        let now = Instant::now();
        let received = traffic.bytes(Role::Receives);
        let moved = received + traffic.bytes(Role::Sends);
        if moved > self.moved {
            (self.moved, self.moved_at) = (moved, now);
        }
        // Of the first second, all may come in its first moment.
        let allowed =
            self.rate_max.map(|most| most as f64 / 8.0 * RATE_TOLERANCE * (traffic.seconds() + 1.0));
        if allowed.is_some_and(|allowed| received as f64 > allowed) {
            return Some(TOO_FAST);
        }
        if now.duration_since(self.moved_at) > SILENCE_MAX {
            return Some("nothing has moved for too long");
        }
        self.ends.filter(|ends| now > *ends).map(|_| "its client does not end it")
    }
}
