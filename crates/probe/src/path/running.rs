//! A test at the server: a thread that waits for its flows, runs them, and ends them when their time is over, or nobody asks
//! about them any more.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::echo::Answerer;
use super::gather::Ports;
use super::half::Half;
use super::knock::Token;
use super::test::{FlowSeen, Seen, Way, What, Wish};
use crate::limits::{PATH_TEST_IDLE_MAX, PATH_TEST_OVERTIME, STEP_TIMEOUT};
use crate::traffic::{Plan, Role, Socket};

/// How far a test is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its flows are waited for.
    Gathering,
    /// They are there.
    Ready,
    /// They run.
    Running,
    /// It is over, and why.
    Over(String),
}

/// A test.
#[derive(Debug)]
pub(crate) struct Running {
    wish: Wish,
    pub(crate) stage: watch::Sender<Stage>,
    begin: AtomicBool,
    end: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When it was asked about.
    heard: Instant,
    half: Option<Half>,
    echoed: u64,
    last: Seen,
}

/// How often the thread looks whether it is time for something.
const STEP: Duration = Duration::from_millis(50);

impl Running {
    /// Opens its ports, and waits for its flows on a thread of its own; `held` lives as long as that.
    pub(crate) fn open(wish: Wish, held: impl Send + 'static) -> io::Result<(Arc<Self>, Token, Vec<u16>)> {
        let ports = Ports::open(&wish)?;
        let running = Arc::new(Self {
            wish,
            stage: watch::channel(Stage::Gathering).0,
            begin: AtomicBool::new(false),
            end: AtomicBool::new(false),
            state: Mutex::new(State { heard: Instant::now(), half: None, echoed: 0, last: Seen::default() }),
        });
        let (token, numbers, own) = (ports.token(), ports.numbers()?, Arc::clone(&running));
        std::thread::Builder::new().name("test".to_owned()).spawn(move || {
            own.run(ports, held);
        })?;
        Ok((running, token, numbers))
    }

    fn run(&self, ports: Ports, held: impl Send) {
        let why = match self.run_to_end(ports) {
            Ok(why) => why.to_owned(),
            Err(error) => format!("the server's sockets: {error}"),
        };
        tracing::debug!(why, "test over");
        // Who hears that it is over may need its place.
        drop(held);
        self.stage.send_replace(Stage::Over(why));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_wanted(&self) -> bool {
        !self.end.load(SeqCst)
    }

    fn run_to_end(&self, ports: Ports) -> io::Result<&'static str> {
        let Some(sockets) = ports.gather(|| self.is_wanted())? else {
            return Ok(if self.is_wanted() { "its flows did not come within ten seconds" } else { ENDED });
        };
        self.stage.send_replace(Stage::Ready);
        let until = Instant::now() + STEP_TIMEOUT;
        while !self.begin.load(SeqCst) {
            if !self.is_wanted() {
                return Ok(ENDED);
            }
            if Instant::now() > until {
                return Ok("its client did not begin");
            }
            std::thread::park_timeout(STEP);
        }
        match self.wish.what {
            What::Echoes => self.run_echoes(sockets),
            What::Tcp | What::Udp => self.run_traffic(sockets),
        }
    }

    fn run_echoes(&self, sockets: Vec<Socket>) -> io::Result<&'static str> {
        let Some(Socket::Udp(socket)) = sockets.into_iter().next() else { return Ok(ENDED) };
        let mut answerer = Answerer::new(socket)?;
        self.started(None);
        let over = Instant::now() + Duration::from_millis(self.wish.milliseconds.into());
        loop {
            answerer.answer()?;
            let mut state = self.lock();
            state.echoed = answerer.total;
            if let Some(why) = self.is_over(&state, over) {
                state.last = self.seen_of(&state);
                return Ok(why);
            }
        }
    }

    fn run_traffic(&self, sockets: Vec<Socket>) -> io::Result<&'static str> {
        let role = if self.wish.way == Way::ToClient { Role::Sends } else { Role::Receives };
        let flows = sockets.into_iter().map(|socket| (socket, role)).collect();
        self.started(Some(Half::start(flows, &self.plan())?));
        let time = Duration::from_millis(self.wish.milliseconds.into());
        let (began, over) = (Instant::now(), Instant::now() + time + PATH_TEST_OVERTIME);
        loop {
            let left = if role == Role::Sends { time.saturating_sub(began.elapsed()) } else { STEP };
            std::thread::park_timeout(if left.is_zero() { STEP } else { left.min(STEP) });
            let mut state = self.lock();
            let too_much = self.wish.way == Way::ToServer && self.is_too_much(&state, began.elapsed());
            let Some(half) = &mut state.half else { return Ok(ENDED) };
            half.note();
            if role == Role::Sends && began.elapsed() >= time {
                half.stop_sending();
            }
            let why =
                if too_much { Some("more came than was asked for") } else { self.is_over(&state, over) };
            if let Some(why) = why {
                state.last = self.seen_of(&state);
                // Its threads are waited for without the lock.
                let half = state.half.take();
                drop(state);
                drop(half);
                return Ok(why);
            }
        }
    }

    /// UDP cannot be slowed down from here: who sends twice what he has asked for is not listened to.
    fn is_too_much(&self, state: &State, elapsed: Duration) -> bool {
        let (What::Udp, Some(rate), Some(half)) = (self.wish.what, self.wish.rate, &state.half) else {
            return false;
        };
        let allowed = 2.0 * rate as f64 * f64::from(self.wish.streams) * (elapsed.as_secs_f64() + 1.0) / 8.0;
        half.bytes(Role::Receives) as f64 > allowed
    }

    fn plan(&self) -> Plan {
        let Wish { what, way, rate, .. } = self.wish;
        let role = if way == Way::ToClient { Role::Sends } else { Role::Receives };
        // A client that is to be held to a rate may not hold itself to it.
        let receive_rate_max = rate.filter(|_| what == What::Tcp && role == Role::Receives);
        Plan { receive_rate_max, ..self.wish.plan(role) }
    }

    fn started(&self, half: Option<Half>) {
        let mut state = self.lock();
        (state.half, state.heard) = (half, Instant::now());
        drop(state);
        self.stage.send_replace(Stage::Running);
    }

    fn is_over(&self, state: &State, over: Instant) -> Option<&'static str> {
        if !self.is_wanted() {
            Some(ENDED)
        } else if Instant::now() >= over {
            Some("its time is over")
        } else if state.heard.elapsed() > PATH_TEST_IDLE_MAX {
            Some("its client did not ask about it any more")
        } else {
            None
        }
    }

    fn seen_of(&self, state: &State) -> Seen {
        let echoes = || FlowSeen { packets: state.echoed, ..FlowSeen::default() };
        match &state.half {
            Some(half) => half.seen(),
            None if self.wish.what == What::Echoes => Seen { flows: vec![echoes()], ..Seen::default() },
            None => Seen { flows: vec![FlowSeen::default(); self.wish.streams as usize], ..Seen::default() },
        }
    }

    /// The client wants it to begin, once its flows are there.
    pub(crate) fn begin(&self) {
        self.begin.store(true, SeqCst);
    }

    /// What has been counted.
    pub(crate) fn look(&self) -> Seen {
        let mut state = self.lock();
        state.heard = Instant::now();
        match &*self.stage.borrow() {
            Stage::Over(why) => {
                // One that never ran has counted nothing.
                let last =
                    if state.last.flows.is_empty() { self.seen_of(&state) } else { state.last.clone() };
                Seen { over: Some(why.clone()), ..last }
            }
            _ => self.seen_of(&state),
        }
    }

    /// It is to end soon; [`stage`](Self::stage) tells when it has.
    pub(crate) fn end(&self) {
        self.end.store(true, SeqCst);
    }
}

const ENDED: &str = "its client has ended it";

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::knock::{BYTES, Knock};
    use super::*;
    use crate::limits::COOKIES_MAX;
    use crate::traffic::Options;

    fn wish(what: What, way: Way) -> Wish {
        let rate = Some(8_000_000);
        Wish { what, way, milliseconds: 60_000, streams: 1, length: 1000, rate, options: Options::default() }
    }

    fn socket(port: u16) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    fn hear(socket: &UdpSocket) -> Option<Knock> {
        let mut bytes = [0; 2000];
        let length = socket.recv(&mut bytes).unwrap();
        Knock::decode(&bytes[..length])
    }

    /// A client that has the token asks for traffic in the name of a third address: with hellos that seem to come from there, and
    /// with the cookie of its own address.
    #[test]
    fn an_address_that_has_not_answered_is_sent_the_bounded_handshake_alone() {
        let (test, token, ports) = Running::open(wish(What::Udp, Way::ToClient), ()).unwrap();
        let (own, victim) = (socket(ports[0]), socket(ports[0]));
        own.send(&Knock::Hello(token).encode()).unwrap();
        let Some(Knock::Cookie(cookie)) = hear(&own) else { panic!("no cookie") };
        // No more than the server's socket holds, should nobody read it meanwhile.
        for _ in 0..50 {
            victim.send(&Knock::Hello(token).encode()).unwrap();
            victim.send(&Knock::Proof(token, cookie).encode()).unwrap();
            victim.send(&Knock::Proof(token, [0; 16]).encode()).unwrap();
        }
        test.begin();
        // The true one is let in after all of that, and has its traffic: the test runs.
        own.send(&Knock::Proof(token, cookie).encode()).unwrap();
        assert_eq!(hear(&own), Some(Knock::Ready));
        let mut packets = 0;
        while packets < 20 {
            packets += u32::from(hear(&own).is_none());
        }
        victim.set_nonblocking(true).unwrap();
        let (mut bytes, mut answers) = ([0; 2000], 0);
        // What a socket says of the port that it is sent to no more is no datagram.
        while let Ok(length) = victim.recv(&mut bytes) {
            assert!(length == BYTES && matches!(Knock::decode(&bytes[..length]), Some(Knock::Cookie(_))));
            answers += 1;
        }
        assert!(answers < COOKIES_MAX, "{answers}");
        test.end();
    }

    #[test]
    fn a_test_whose_flows_do_not_come_holds_its_place_only_until_it_is_ended() {
        struct Place(std::sync::mpsc::Sender<()>);
        impl Drop for Place {
            fn drop(&mut self) {
                let _ = self.0.send(()); // who waits for it may be gone
            }
        }
        let (freed, is_freed) = std::sync::mpsc::channel();
        let (test, _, _) = Running::open(wish(What::Tcp, Way::ToServer), Place(freed)).unwrap();
        assert!(is_freed.recv_timeout(Duration::from_millis(100)).is_err());
        test.end();
        is_freed.recv_timeout(Duration::from_secs(20)).unwrap();
        let mut stage = test.stage.subscribe();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(stage.wait_for(|stage| matches!(stage, Stage::Over(_)))).unwrap();
        drop(stage);
        assert_eq!(test.look().over.as_deref(), Some(ENDED));
    }
}
