//! The end that asks for a test.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant, SystemTime};

use longhaul_transport::socket::TcpInfo;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;

use crate::iperf3::message::{Cookie, Direction, MessageError, Parameters, Protocol, Results, StreamResult};
use crate::iperf3::report::{End, FlowStart, Side, Start};
use crate::iperf3::state::State;
use crate::iperf3::wire::{Control, Idle, WireError};
use crate::iperf3::{UDP_ANSWERS, UDP_HELLOS, stream_id};
use crate::limits::{LOOK_AT_BYTES_EVERY, STEP_TIMEOUT};
use crate::processor::{Share, Watch};
use crate::socket::wait_for;
use crate::tcp::{self, ConnectError};
use crate::traffic::{FlowInterval, FlowTotal, Options, Plan, Refused, Role, Socket, Traffic};
use crate::udp;

/// Which addresses of a host are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// The first that there is.
    #[default]
    Any,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    fn has(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// A test to be made.
#[derive(Clone, Debug)]
pub struct Test {
    /// Name or address of the server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Which of its addresses.
    pub family: Family,
    /// What is wanted. A UDP length of 0: what fits the path, by the control connection's segments.
    pub parameters: Parameters,
    /// Time between reports; `None`: only one at the end.
    pub interval: Option<Duration>,
    /// TCP: the kernel drops what is received.
    pub skip_receive_copy: bool,
}

/// Who is told while a test runs.
pub trait Observer {
    /// All streams are open.
    fn started(&mut self, start: &Start);
    /// Another interval is over.
    fn interval(&mut self, start: &Start, flows: &[FlowInterval]);
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No address.
    #[error("cannot find {host}: {source}; check the name, and -4 or -6 if given")]
    Resolve {
        /// As it was named.
        host: String,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody there.
    #[error(
        "{0}; is `iperf3 -s`, or `longhaul probe --iperf3 --listen`, running there, and does a firewall let it pass?"
    )]
    Connect(ConnectError),
    /// An option of a stream.
    #[error(transparent)]
    Option(Refused),
    /// Another client was first.
    #[error("the server is busy with another test; try again when that is over")]
    Busy,
    /// The server refuses.
    #[error("the server refuses the test, or broke it off: {}", reason(*code))]
    Refused {
        /// iperf3's number of the reason.
        code: u32,
    },
    /// The server was stopped.
    #[error("the server has ended the test")]
    Terminated,
    /// A word that does not belong there.
    #[error("the server says {0:?} out of turn; it may not be iperf3")]
    Unexpected(State),
    /// The connection that directs the test.
    #[error("the connection to the server, {during}: {source}")]
    Control {
        /// What was being done.
        during: &'static str,
        /// What went wrong.
        source: WireError,
    },
    /// A stream.
    #[error("a stream broke off: {0}")]
    Stream(io::Error),
    /// UDP does not get through.
    #[error("UDP stream {0} has no answer in {seconds} s: UDP may be blocked on the way; try without -u", seconds = STEP_TIMEOUT.as_secs())]
    NoAnswer(usize),
    /// This host.
    #[error("cannot begin: {0}")]
    Begin(io::Error),
}

impl From<ConnectError> for ClientError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused(refused) => Self::Option(refused),
            error => Self::Connect(error),
        }
    }
}

/// What a server's number says, of those that a test's parameters can bring about.
fn reason(code: u32) -> String {
    let words = match code {
        5 => "the test is too long",
        6 => "too many streams",
        7 | 20 => "writes or packets of this length (-l)",
        8 => "socket buffers of this size (-w)",
        10 => "segments of this size (-M)",
        27 => "the rate is above what it allows (-b)",
        114 => "it does not understand the parameters",
        _ => return format!("iperf3's error {code}"),
    };
    words.to_owned()
}

/// Makes a test.
///
/// # Errors
/// [`ClientError`].
pub fn run(test: &Test, observer: &mut dyn Observer) -> Result<(Start, End), ClientError> {
    let mut client = Client::connect(test)?;
    client.expect(State::ParamExchange, "waiting for its greeting")?;
    let parameters = client.parameters.to_json();
    client.control.send(&parameters, soon(), &mut Idle).map_err(during("sending the parameters"))?;
    client.expect(State::CreateStreams, "waiting for its consent")?;
    let flows = client.open_streams()?;
    let start = client.start(test, &flows);
    client.expect(State::TestStart, "waiting for all streams")?;
    client.expect(State::TestRunning, "waiting for the beginning")?;
    observer.started(&start);
    let plan = client.plan(test);
    let watch = Watch::start();
    let mut traffic = Traffic::start(flows, &plan, client.parameters.omit > 0).map_err(ClientError::Begin)?;
    client.watch(test, &start, &mut traffic, observer)?;
    traffic.stop_sending();
    let (totals, processor) = (traffic.totals(), watch.share());
    client.end(&totals, processor, start.congestion.clone(), &mut traffic).map(|end| (start, end))
}

/// The control connection, and what was asked for.
struct Client {
    control: Control,
    address: SocketAddr,
    cookie: Cookie,
    parameters: Parameters,
    options: Options,
    mss: u32,
}

fn soon() -> Instant {
    Instant::now() + STEP_TIMEOUT
}

fn during<E: Into<WireError>>(during: &'static str) -> impl Fn(E) -> ClientError {
    move |source| ClientError::Control { during, source: source.into() }
}

impl Client {
    fn connect(test: &Test) -> Result<Self, ClientError> {
        let unknown = |source| ClientError::Resolve { host: test.host.clone(), source };
        let addresses = (test.host.as_str(), test.port).to_socket_addrs().map_err(unknown)?;
        let none = || unknown(io::Error::new(io::ErrorKind::NotFound, "it has no address of that kind"));
        let mut last = none();
        for address in addresses.filter(|address| test.family.has(address.ip())) {
            match tcp::connect(address, &Options::default()) {
                Ok(stream) => return Self::greet(test, stream, address),
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    fn greet(test: &Test, stream: TcpStream, address: SocketAddr) -> Result<Self, ClientError> {
        let mut random = [0; Cookie::BYTES - 1];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| ClientError::Begin(error.into()))?;
        let cookie = Cookie::new(random);
        let mss = TcpInfo::of(&stream).map_or(0, |info| info.snd_mss);
        let mut parameters = test.parameters.clone();
        if parameters.length == 0 {
            // What TCP's segments carry over this path UDP's packets can, too.
            let fits = crate::limits::DATAGRAM_BYTES_MIN..=crate::limits::DATAGRAM_BYTES_MAX;
            let path = mss as usize;
            parameters.length =
                if fits.contains(&path) { path } else { crate::limits::DATAGRAM_BYTES_DEFAULT };
        }
        let options = options(&parameters);
        let mut control = Control::new(stream).map_err(ClientError::Begin)?;
        control.write(cookie.as_bytes(), soon(), &mut Idle).map_err(during("greeting it"))?;
        Ok(Self { control, address, cookie, parameters, options, mss })
    }

    /// Waits for a state; a refusal is read to its end.
    fn expect(&mut self, wanted: State, doing: &'static str) -> Result<(), ClientError> {
        let state = self.control.state(soon(), &mut Idle).map_err(during(doing))?;
        if state == wanted { Ok(()) } else { Err(self.trouble(state)) }
    }

    /// What a state that was not waited for means.
    fn trouble(&mut self, state: State) -> ClientError {
        match state {
            State::AccessDenied => ClientError::Busy,
            State::ServerTerminate => ClientError::Terminated,
            State::ServerError => {
                let mut numbers = [0; 8];
                match self.control.read(&mut numbers, soon(), &mut Idle) {
                    Ok(()) => {
                        let code = u32::from_be_bytes([numbers[0], numbers[1], numbers[2], numbers[3]]);
                        ClientError::Refused { code }
                    }
                    Err(error) => during("hearing why it refuses")(error),
                }
            }
            state => ClientError::Unexpected(state),
        }
    }

    fn open_streams(&mut self) -> Result<Vec<(Socket, Role)>, ClientError> {
        let parallel = self.parameters.parallel as usize;
        let role = |place: usize| match self.parameters.direction {
            Direction::Forward => Role::Sends,
            Direction::Reverse => Role::Receives,
            Direction::Both if place < parallel => Role::Sends,
            Direction::Both => Role::Receives,
        };
        (0..self.parameters.streams()).map(|place| Ok((self.open_stream(place)?, role(place)))).collect()
    }

    fn open_stream(&self, place: usize) -> Result<Socket, ClientError> {
        match self.parameters.protocol {
            Protocol::Tcp => {
                let stream = tcp::connect(self.address, &self.options)?;
                io::Write::write_all(&mut &stream, self.cookie.as_bytes()).map_err(ClientError::Stream)?;
                Ok(Socket::Tcp(stream))
            }
            Protocol::Udp => {
                let socket = udp::connect(self.address, &self.options)?;
                socket.set_read_timeout(Some(STEP_TIMEOUT)).map_err(ClientError::Begin)?;
                socket.send(&UDP_HELLOS[0]).map_err(ClientError::Stream)?;
                let mut answer = [0; 4];
                loop {
                    match socket.recv(&mut answer) {
                        Ok(4) if UDP_ANSWERS.contains(&answer) => return Ok(Socket::Udp(socket)),
                        // Traffic of a server that is ahead of us.
                        Ok(_) => {}
                        Err(_) => return Err(ClientError::NoAnswer(place + 1)),
                    }
                }
            }
        }
    }

    fn start(&self, test: &Test, flows: &[(Socket, Role)]) -> Start {
        Start {
            side: Side::Client,
            host: test.host.clone(),
            port: test.port,
            parameters: self.parameters.clone(),
            cookie: self.cookie,
            flows: flows.iter().filter_map(flow_start).collect(),
            buffers: flows.first().map_or((0, 0), |(socket, _)| buffers(socket)),
            congestion: congestion(flows),
            mss: self.mss,
            unix_seconds: unix_seconds(),
        }
    }

    fn plan(&self, test: &Test) -> Plan {
        let bytes = self.parameters.bytes;
        Plan {
            receive_rate_max: None,
            // A receiver ends the test when it has them.
            bytes: (bytes > 0 && self.parameters.direction != Direction::Reverse).then_some(bytes),
            skip_receive_copy: test.skip_receive_copy,
            ..plan(&self.parameters)
        }
    }

    /// Looks at the traffic until the test is over.
    fn watch(
        &mut self,
        test: &Test,
        start: &Start,
        traffic: &mut Traffic,
        observer: &mut dyn Observer,
    ) -> Result<(), ClientError> {
        let mut clock = Clock::new(&self.parameters, test.interval);
        loop {
            let by_bytes = self.parameters.bytes > 0;
            let now = Instant::now();
            let until = if by_bytes { clock.next().min(now + LOOK_AT_BYTES_EVERY) } else { clock.next() };
            wait_for(&mut [PollFd::new(&self.control.stream, PollFlags::IN)], until)
                .map_err(during("waiting for it"))?;
            if let Some(state) = self.control.look().map_err(during("during the test"))? {
                return Err(self.trouble(state));
            }
            if let Some(error) = traffic.failure() {
                return Err(self.broken(error));
            }
            let moved = by_bytes && self.has_moved_all(traffic);
            let tick = clock.tick(Instant::now());
            let over = moved || tick == Tick::Over;
            if tick == Tick::Report || tick == Tick::Count || (over && clock.has_unreported()) {
                let flows = traffic.interval();
                observer.interval(start, &flows);
            }
            if tick == Tick::Count {
                traffic.count_from_now();
            }
            if over {
                return Ok(());
            }
        }
    }

    fn has_moved_all(&self, traffic: &Traffic) -> bool {
        let role = if self.parameters.direction == Direction::Reverse { Role::Receives } else { Role::Sends };
        traffic.all_ended(Role::Sends) || traffic.bytes(role) >= self.parameters.bytes
    }

    /// A stream has failed: the server may have said why.
    fn broken(&mut self, error: io::Error) -> ClientError {
        match self.control.state(Instant::now() + Duration::from_secs(1), &mut Idle) {
            Ok(state) => self.trouble(state),
            Err(_) => ClientError::Stream(error),
        }
    }

    /// Both ends tell what they have counted. Receivers go on reading until the server has stopped sending: it could not
    /// hear us while it waits for room.
    fn end(
        &mut self,
        totals: &[FlowTotal],
        processor: Share,
        congestion: Option<String>,
        traffic: &mut Traffic,
    ) -> Result<End, ClientError> {
        let telling = "exchanging results";
        self.control.say(State::TestEnd).map_err(during(telling))?;
        self.expect(State::ExchangeResults, telling)?;
        traffic.stop();
        let results = results(totals, processor, congestion.clone());
        self.control.send(&results.to_json(), soon(), &mut Idle).map_err(during(telling))?;
        let bytes = self.control.message(soon(), &mut Idle).map_err(during(telling))?;
        let peer = Results::from_bytes(&bytes, totals.len())
            .map_err(|error: MessageError| during(telling)(error))?;
        self.expect(State::DisplayResults, telling)?;
        // All is known: a server that is gone by now misses nothing.
        let _ = self.control.say(State::Done);
        Ok(End { totals: totals.to_vec(), processor, congestion, peer })
    }
}

/// The engines' options of a test.
pub(super) fn options(parameters: &Parameters) -> Options {
    Options {
        window: (parameters.window > 0).then_some(parameters.window),
        congestion: parameters.congestion.clone(),
        mss: (parameters.mss > 0).then_some(parameters.mss),
        no_delay: parameters.no_delay,
        pacing: (parameters.pacing > 0).then_some(parameters.pacing),
        zero_copy: parameters.zero_copy,
    }
}

/// What the engines do in a test, whichever end.
pub(super) fn plan(parameters: &Parameters) -> Plan {
    Plan {
        length: parameters.length,
        rate: (parameters.bandwidth > 0).then_some(parameters.bandwidth),
        receive_rate_max: None,
        bytes: None,
        skip_receive_copy: false,
        zero_copy: parameters.zero_copy,
        wide_numbers: parameters.wide_numbers,
    }
}

pub(super) fn flow_start((socket, role): &(Socket, Role)) -> Option<FlowStart> {
    use std::os::fd::{AsFd, AsRawFd};
    let (local, remote) = socket.ends().ok()?;
    let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
    let number = socket.as_fd().as_raw_fd();
    Some(FlowStart { socket: number, role: *role, local: plain(local), remote: plain(remote) })
}

pub(super) fn buffers(socket: &Socket) -> (u64, u64) {
    let size = |result: rustix::io::Result<usize>| result.map_or(0, |bytes| bytes as u64);
    (size(sockopt::socket_send_buffer_size(socket)), size(sockopt::socket_recv_buffer_size(socket)))
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Of the first stream; all are asked for the same.
pub(super) fn congestion(flows: &[(Socket, Role)]) -> Option<String> {
    match flows.first() {
        Some((Socket::Tcp(stream), _)) => sockopt::tcp_congestion(stream).ok(),
        _ => None,
    }
}

/// What this end says of a test.
pub(super) fn results(totals: &[FlowTotal], processor: Share, congestion: Option<String>) -> Results {
    let stream = |(place, total): (usize, &FlowTotal)| StreamResult {
        id: stream_id(place),
        bytes: total.counts.bytes,
        retransmits: total.tcp.map(|tcp| tcp.retransmits),
        jitter: total.counts.jitter_s,
        errors: total.counts.lost,
        packets: total.counts.packets,
        seconds: total.seconds,
    };
    Results {
        processor: [processor.total, processor.user, processor.system],
        has_retransmits: totals.iter().any(|total| total.tcp.is_some()),
        congestion,
        streams: totals.iter().enumerate().map(stream).collect(),
    }
}

/// What it is time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tick {
    Nothing,
    /// An interval is over.
    Report,
    /// So is the start that does not count.
    Count,
    /// So is the test.
    Over,
}

/// The times of a test.
#[derive(Debug)]
pub(super) struct Clock {
    interval: Option<Duration>,
    next_report: Option<Instant>,
    last_report: Instant,
    has_reported: bool,
    count_at: Option<Instant>,
    /// `None`: something else ends it.
    over_at: Option<Instant>,
    counted: Option<Duration>,
}

impl Clock {
    pub(super) fn new(parameters: &Parameters, interval: Option<Duration>) -> Self {
        let now = Instant::now();
        let omit = Duration::from_secs(parameters.omit);
        let counted = (parameters.seconds > 0 && parameters.bytes == 0 && parameters.blocks == 0)
            .then(|| Duration::from_secs(parameters.seconds));
        Self {
            interval,
            next_report: interval.map(|interval| now + interval),
            last_report: now,
            has_reported: false,
            count_at: (!omit.is_zero()).then_some(now + omit),
            over_at: counted.map(|counted| now + omit + counted),
            counted,
        }
    }

    /// When it is time for something again, at the latest.
    pub(super) fn next(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(1);
        [self.next_report, self.count_at, self.over_at].into_iter().flatten().fold(far, Instant::min)
    }

    pub(super) fn tick(&mut self, now: Instant) -> Tick {
        if self.count_at.is_some_and(|at| now >= at) {
            self.count_at = None;
            self.over_at = self.counted.map(|counted| now + counted);
            self.next_report = self.interval.map(|interval| now + interval);
            self.last_report = now;
            self.has_reported = false;
            return Tick::Count;
        }
        if self.over_at.is_some_and(|at| now >= at) {
            // Said once: a server goes on until its client says so, too.
            self.over_at = None;
            return Tick::Over;
        }
        match (self.next_report, self.interval) {
            (Some(at), Some(interval)) if now >= at => {
                // What was missed while the machine was busy is one long interval.
                self.next_report = Some((at + interval).max(now));
                self.last_report = now;
                self.has_reported = true;
                Tick::Report
            }
            _ => Tick::Nothing,
        }
    }

    /// Whether there is more at the end than the rest of a tick that came late.
    pub(super) fn has_unreported(&self) -> bool {
        let least = self.interval.map_or(Duration::ZERO, |interval| interval / 10);
        !self.has_reported || self.last_report.elapsed() > least
    }
}
