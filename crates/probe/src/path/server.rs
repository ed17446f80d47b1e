//! The service at the server: one [`Station`] for each session, and one [`Service`] for all.
//!
//! What a client can bring about is bounded: tests of bounded time, streams and memory, no more than the rate that the operator
//! allows, and of one session at a time, or of as many as the operator wants to load the host together; a disk alone, one at a time, where the session may write files anyway. UDP is sent to an
//! address only after that address has sent a fresh cookie back ([`knock`](super::knock)). A test ends with its session, and when
//! nobody asks about it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul_transport::{Handler, Pieces, Session, SessionEnd};
use tokio::sync::oneshot;

use super::checkup::now_us;
use super::disks::{self, Directories};
use super::finding::Finding;
use super::message::{Answer, Ask, DiskAsk, DiskMessage, Facts, Findings, Open, Opened, SeenMessage};
use super::running::{Running, Stage};
use super::test::{Host, What, Wish};
use crate::limits::{CHECKUP_TIME_MAX, PATH_CLIENTS_MAX, PATH_HELD_FOR, PATH_TESTS_MAX, STEP_TIMEOUT};

/// Looks at the host that it runs on, and says what a client may know of it. It may take its time.
pub type Checkup = fn() -> Vec<Finding>;

/// What all sessions of a server share.
#[derive(Debug)]
pub struct Service {
    version: &'static str,
    /// Bits of payload a second that a test may have in one direction.
    rate_max: Option<u64>,
    next_session: AtomicU64,
    /// Sessions that may have tests at a time.
    clients: usize,
    holders: Mutex<Vec<Holder>>,
    /// A thread is at a disk; one that does not answer keeps it longer than its session lasts.
    at_disk: AtomicBool,
    checkup: Option<Checkup>,
    /// Whose turn it is to have it done.
    checking: Arc<tokio::sync::Mutex<()>>,
}

/// A session that this host is measured for.
#[derive(Debug)]
struct Holder {
    session: u64,
    tests: usize,
    last: Instant,
}

impl Service {
    /// `rate_max` bounds the bits of payload a second of a test.
    #[must_use]
    pub fn new(version: &'static str, rate_max: Option<u64>) -> Arc<Self> {
        Self::make(version, rate_max, None, 1)
    }

    /// As [`new`](Self::new), of a server that tells what its host lacks.
    #[must_use]
    pub fn with_checkup(version: &'static str, rate_max: Option<u64>, checkup: Checkup) -> Arc<Self> {
        Self::make(version, rate_max, Some(checkup), 1)
    }

    /// As [`with_checkup`](Self::with_checkup), of a server that so many clients may load at a time; of `rate_max` each has its share.
    #[must_use]
    pub fn for_clients(
        version: &'static str,
        rate_max: Option<u64>,
        checkup: Checkup,
        clients: usize,
    ) -> Arc<Self> {
        let clients = clients.clamp(1, PATH_CLIENTS_MAX);
        let share = rate_max.map(|rate| (rate / clients as u64).max(1));
        Self::make(version, share, Some(checkup), clients)
    }

    fn make(
        version: &'static str,
        rate_max: Option<u64>,
        checkup: Option<Checkup>,
        clients: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            version,
            rate_max,
            next_session: AtomicU64::new(0),
            clients,
            holders: Mutex::default(),
            at_disk: AtomicBool::new(false),
            checkup,
            checking: Arc::default(),
        })
    }

    /// The server's end of a new session that may have no disk measured.
    #[must_use]
    pub fn station(self: &Arc<Self>) -> Arc<Station> {
        self.new_station(None)
    }

    /// As [`station`](Self::station), of a session that may have the disks of these measured.
    #[must_use]
    pub fn station_with(self: &Arc<Self>, directories: Arc<dyn Directories>) -> Arc<Station> {
        self.new_station(Some(directories))
    }

    fn new_station(self: &Arc<Self>, directories: Option<Arc<dyn Directories>>) -> Arc<Station> {
        let number = self.next_session.fetch_add(1, Relaxed);
        let over = Arc::default();
        Arc::new(Station { service: Arc::clone(self), number, directories, tests: Mutex::default(), over })
    }

    fn holders(&self) -> MutexGuard<'_, Vec<Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more test of a session, which takes so many places.
    fn hold(self: &Arc<Self>, session: u64, places: usize) -> Result<Held, String> {
        let mut holders = self.holders();
        holders.retain(|holder| {
            holder.session == session || holder.tests > 0 || holder.last.elapsed() < PATH_HELD_FOR
        });
        let is_full = holders.len() >= self.clients;
        match holders.iter_mut().find(|holder| holder.session == session) {
            Some(own) if own.tests + places > PATH_TESTS_MAX => {
                return Err("other tests of yours are under way; end one first".to_owned());
            }
            Some(own) => own.tests += places,
            None if is_full => {
                let whose = if self.clients == 1 { "another client" } else { "other clients" };
                return Err(format!("it is busy with the tests of {whose}; try again later"));
            }
            None => holders.push(Holder { session, tests: places, last: Instant::now() }),
        }
        Ok(Held { service: Arc::clone(self), session, places })
    }

    /// All places of a session, and the disks of this host.
    fn hold_disk(self: &Arc<Self>, session: u64) -> Result<AtDisk, String> {
        let held = self.hold(session, PATH_TESTS_MAX)?;
        if self.at_disk.swap(true, SeqCst) {
            return Err("a disk has not answered an earlier measurement yet; try again later".to_owned());
        }
        Ok(AtDisk(held))
    }

    /// Looks at this host on a thread of its own, one at a time: a device or a directory that does not answer takes no more than that one.
    async fn check_up(&self, within: Duration) -> Result<Vec<Finding>, String> {
        let checkup = self.checkup.ok_or("it does not look at its host for others")?;
        let look = async {
            let turn = Arc::clone(&self.checking).lock_owned().await;
            let (done, findings) = oneshot::channel();
            let job = move || {
                let found = checkup();
                drop(turn);
                let _ = done.send(found); // the client has given up
            };
            let thread = std::thread::Builder::new().name("checkup".to_owned()).spawn(job);
            thread.map_err(|error| format!("it cannot start a thread: {error}"))?;
            findings.await.map_err(|_| "it failed when it looked at its host".to_owned())
        };
        let late = || format!("its host has not told within {within:?} what it has");
        tokio::time::timeout(within, look).await.map_err(|_| late())?
    }
}

/// A test's place, or several.
struct Held {
    service: Arc<Service>,
    session: u64,
    places: usize,
}

/// The places of the measurement of a disk.
struct AtDisk(Held);

impl Drop for AtDisk {
    fn drop(&mut self) {
        self.0.service.at_disk.store(false, SeqCst);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(holder) = self.service.holders().iter_mut().find(|holder| holder.session == self.session)
        {
            holder.tests = holder.tests.saturating_sub(self.places);
            holder.last = Instant::now();
        }
    }
}

/// The server's end of a session.
#[derive(Debug)]
pub struct Station {
    service: Arc<Service>,
    number: u64,
    directories: Option<Arc<dyn Directories>>,
    tests: Mutex<Tests>,
    /// The session is.
    over: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Tests {
    next: u32,
    open: BTreeMap<u32, Arc<Running>>,
    ended: bool,
}

impl Station {
    fn tests(&self) -> MutexGuard<'_, Tests> {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn carry_out(&self, ask: Ask) -> Result<Answer, String> {
        match ask {
            Ask::Greet(_) => {
                Ok(Answer::Facts(Facts::of(&Host::look(self.service.version, self.service.rate_max))))
            }
            Ask::Open(open) => self.open(open),
            Ask::Begin(test) => {
                let test = self.test(test)?;
                test.begin();
                until(&test, |stage| matches!(stage, Stage::Running | Stage::Over(_))).await;
                Ok(seen(&test))
            }
            Ask::Look(number) => {
                let test = self.test(number)?;
                Ok(seen(&test))
            }
            Ask::End(number) => {
                let test = self.test(number)?;
                test.end();
                until(&test, |stage| matches!(stage, Stage::Over(_))).await;
                self.tests().open.remove(&number);
                Ok(seen(&test))
            }
            Ask::Disk(disk) => self.disk(&disk).await,
            Ask::Checkup(_) => {
                let findings = self.service.check_up(CHECKUP_TIME_MAX).await?;
                Ok(Answer::Findings(Findings::of(findings)))
            }
            Ask::Clock(_) => Ok(Answer::Clock(now_us())),
        }
    }

    async fn disk(&self, ask: &DiskAsk) -> Result<Answer, String> {
        let (directory, time) = ask.wish()?;
        let directories = self.directories.as_ref().ok_or(
            "it has no exports, so no directory of which the disk could be measured; `longhaul serve` has",
        )?;
        let at_disk = self.service.hold_disk(self.number)?;
        tracing::info!(directory = %directory.escape_ascii(), ?time, "a disk");
        let directories = Arc::clone(directories);
        let outcome = disks::in_time(directories, directory, time, Arc::clone(&self.over), at_disk).await?;
        Ok(Answer::Disk(DiskMessage::of(outcome)))
    }

    fn test(&self, number: u32) -> Result<Arc<Running>, String> {
        self.tests().open.get(&number).cloned().ok_or_else(|| "there is no such test".to_owned())
    }

    fn open(&self, open: Open) -> Result<Answer, String> {
        let wish = self.allowed(open.wish()?)?;
        let held = self.service.hold(self.number, 1)?;
        let mut tests = self.tests();
        if tests.ended {
            return Err("the session is over".to_owned());
        }
        // Tests that were over and that nobody has ended.
        tests.open.retain(|_, test| !matches!(*test.stage.borrow(), Stage::Over(_)));
        tracing::info!(?wish, "a test of the path");
        let (test, token, ports) =
            Running::open(wish, held).map_err(|error| format!("no sockets for the test: {error}"))?;
        let number = tests.next;
        tests.next = tests.next.wrapping_add(1);
        tests.open.insert(number, test);
        Ok(Answer::Opened(Opened::new(number, token, &ports)))
    }

    /// Within what the operator allows.
    fn allowed(&self, mut wish: Wish) -> Result<Wish, String> {
        let Some(rate_max) = self.service.rate_max else { return Ok(wish) };
        let each = (rate_max / u64::from(wish.streams)).max(1);
        match (wish.what, wish.rate) {
            (What::Echoes, _) => {}
            (What::Tcp, rate) => wish.rate = Some(rate.map_or(each, |rate| rate.min(each))),
            (What::Udp, Some(rate)) if rate <= each => {}
            (What::Udp, _) => {
                return Err(format!("its operator allows {rate_max} bit/s of UDP; ask for less (-b)"));
            }
        }
        Ok(wish)
    }
}

/// A test takes its next step soon, or has failed; a thread that does not run for a while is not waited for.
async fn until(test: &Running, reached: impl FnMut(&Stage) -> bool) {
    let mut stage = test.stage.subscribe();
    let _ = tokio::time::timeout(STEP_TIMEOUT + Duration::from_secs(1), stage.wait_for(reached)).await;
}

fn seen(test: &Running) -> Answer {
    Answer::Seen(SeenMessage::of(&test.look()))
}

impl Handler for Station {
    fn request(
        self: Arc<Self>,
        _session: Session,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Bytes> + Send + 'static>> {
        Box::pin(async move {
            // An empty reply is what older and newer versions take for "unknown".
            let Some(ask) = Ask::from_bytes(body) else { return Bytes::new() };
            self.carry_out(ask).await.unwrap_or_else(Answer::Refused).into_bytes()
        })
    }

    fn ended(&self, _end: &SessionEnd) {
        self.over.store(true, SeqCst);
        let mut tests = self.tests();
        tests.ended = true;
        std::mem::take(&mut tests.open).values().for_each(|test| test.end());
        drop(tests);
        // No other test of this session follows: the next client need not wait.
        self.service.holders().retain(|holder| holder.session != self.number);
    }
}

/// No bytes of files travel in such a session.
impl Pieces for Station {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_measured_for_one_session_at_a_time() {
        let service = Service::new("1", None);
        let (one, other) = (service.station(), service.station());
        let held: Vec<Held> =
            (0..PATH_TESTS_MAX).map(|_| service.hold(one.number, 1).map_err(|_| ()).unwrap()).collect();
        assert!(service.hold(one.number, 1).is_err_and(|why| why.contains("under way")));
        assert!(service.hold(other.number, 1).is_err_and(|why| why.contains("busy")));
        drop(held);
        assert!(service.hold(other.number, 1).is_err(), "the next test of the first may follow");
        assert!(service.hold(one.number, 1).is_ok());
        one.ended(&SessionEnd::Closed);
        assert!(service.hold(other.number, 1).is_ok());
    }

    fn nothing() -> Vec<Finding> {
        Vec::new()
    }

    #[test]
    fn as_many_clients_as_the_operator_wants_share_the_rate() {
        let service = Service::for_clients("1", Some(1000), nothing, 2);
        let [one, two, three] = [0; 3].map(|_| service.station());
        let held = [&one, &two].map(|station| service.hold(station.number, 1).map_err(|_| ()).unwrap());
        assert!(service.hold(three.number, 1).is_err_and(|why| why.contains("other clients")));
        assert_eq!(service.rate_max, Some(500));
        drop(held);
        two.ended(&SessionEnd::Closed);
        assert!(service.hold(three.number, 1).is_ok() && service.hold(one.number, 1).is_ok());
    }

    #[test]
    fn a_disk_is_measured_alone_and_one_at_a_time() {
        let service = Service::new("1", None);
        let (one, other) = (service.station(), service.station());
        let test = service.hold(one.number, 1);
        assert!(service.hold_disk(one.number).is_err_and(|why| why.contains("under way")));
        drop(test);
        let disk = service.hold_disk(one.number);
        assert!(disk.is_ok());
        assert!(service.hold(one.number, 1).is_err_and(|why| why.contains("under way")));
        // A disk that does not answer holds up no tests of others, but no more threads wait for it.
        one.ended(&SessionEnd::Closed);
        assert!(service.hold(other.number, 1).is_ok());
        assert!(service.hold_disk(other.number).is_err_and(|why| why.contains("not answered")));
        drop(disk);
        assert!(service.hold_disk(other.number).is_ok());
    }

    #[tokio::test]
    async fn a_host_is_looked_at_one_at_a_time() {
        static ANSWERS: AtomicBool = AtomicBool::new(false);
        let service = Service::with_checkup("1", None, || {
            while !ANSWERS.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            vec![Finding::fine("TUN", "opens", "links")]
        });
        let soon = Duration::from_millis(20);
        let (one, other) = tokio::join!(service.check_up(soon), service.check_up(soon));
        for answer in [one, other] {
            assert!(answer.is_err_and(|why| why.contains("has not told within 20ms")));
        }
        ANSWERS.store(true, SeqCst);
        let answer = service.station().carry_out(Ask::Checkup(true)).await;
        let Ok(Answer::Findings(findings)) = answer else { panic!("{answer:?}") };
        assert_eq!(findings.findings(), [Finding::fine("TUN", "opens", "links")]);
    }

    #[tokio::test]
    async fn a_host_that_cannot_be_looked_at_is_said_so() {
        let limit = Duration::from_secs(60);
        let failed = Service::with_checkup("1", None, || panic!("as a test wants it"));
        for _ in 0..2 {
            assert!(failed.check_up(limit).await.is_err_and(|why| why.contains("failed")));
        }
        let none = Service::new("1", None).check_up(limit).await;
        assert!(none.is_err_and(|why| why.contains("for others")));
    }

    #[test]
    fn no_more_than_the_operator_allows() {
        let wish = |what, rate| Wish {
            what,
            way: super::super::test::Way::ToServer,
            milliseconds: 1,
            streams: 4,
            length: 100,
            rate,
            options: crate::traffic::Options::default(),
        };
        let station = Service::new("1", Some(1000)).station();
        let rate = |what, asked| station.allowed(wish(what, asked)).map(|wish| wish.rate);
        assert_eq!(rate(What::Tcp, None), Ok(Some(250)));
        assert_eq!(rate(What::Tcp, Some(100)), Ok(Some(100)));
        assert_eq!(rate(What::Udp, Some(250)), Ok(Some(250)));
        assert!(rate(What::Udp, Some(251)).is_err() && rate(What::Udp, None).is_err());
        let free = Service::new("1", None).station();
        assert_eq!(free.allowed(wish(What::Udp, None)), Ok(wish(What::Udp, None)));
    }
}
