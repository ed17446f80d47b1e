//! Round-trip times by packets that come back, at rest and under load; and the path's MTU each way.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::client::{Flows, ProbeError, Prober};
use super::echo::{ECHO_BYTES_MIN, Echo};
use super::test::{Way, What, Wish};
use crate::limits::{ECHO_BYTES_MAX, LOOK_AT_TESTS_EVERY, PATH_TEST_TIME_MAX};
use crate::socket::{self, since_arrival, wait_for};
use crate::traffic::{Options, Socket};

/// A server's answers to packets, until this is dropped.
#[derive(Debug)]
pub struct Echoes {
    prober: Prober,
    test: u32,
    socket: Arc<UdpSocket>,
    peer: SocketAddr,
    keeper: tokio::task::JoinHandle<()>,
}

/// What came back of some packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pings {
    /// How many were sent.
    pub sent: u32,
    /// Seconds of each that came back, in their order.
    pub rtts_s: Vec<f64>,
}

impl Pings {
    /// The value below which a share of all lies; `None`: nothing came.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.rtts_s.clone();
        sorted.sort_by(f64::total_cmp);
        let place = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(place.saturating_sub(1)).copied()
    }
}

impl Drop for Echoes {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Headers of IP and UDP before a payload.
#[must_use]
pub fn header_bytes(peer: SocketAddr) -> usize {
    if peer.ip().to_canonical().is_ipv4() { 28 } else { 48 }
}

impl Echoes {
    /// Opens the test.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub async fn open(prober: &Prober) -> Result<Self, ProbeError> {
        let wish = Wish {
            what: What::Echoes,
            way: Way::ToServer,
            milliseconds: PATH_TEST_TIME_MAX.as_millis() as u32,
            streams: 1,
            length: ECHO_BYTES_MIN,
            rate: None,
            options: Options::default(),
        };
        let Flows { test, sockets } = prober.open(&wish).await?;
        let Some(Socket::Udp(socket)) = sockets.into_iter().next() else { return Err(ProbeError::Answer) };
        socket::never_fragment(&socket)?;
        socket.set_nonblocking(true)?;
        let peer = socket.peer_addr()?;
        prober.begin(test, 1).await?;
        let kept = prober.clone();
        let keeper = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_AT_TESTS_EVERY).await;
                // Where it is over nothing comes back, and that is seen.
                if kept.look(test, 1).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { prober: prober.clone(), test, socket: Arc::new(socket), peer, keeper })
    }

    /// The server's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Ends the test.
    pub async fn close(self) {
        let _ = self.prober.end(self.test, 1).await; // it ends by itself, too
    }

    /// Sends a packet of 52 or 72 bytes with its IP header every so often, for so long.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn ping(&self, every: Duration, span: Duration) -> Result<Pings, ProbeError> {
        let (socket, patience) = (Arc::clone(&self.socket), 3 * self.prober.rtt() + Duration::from_secs(1));
        let pings = tokio::task::spawn_blocking(move || ping(&socket, every, span, patience));
        Ok(pings.await.map_err(io::Error::other)??)
    }

    /// The longest IP packet that passes one way with DF set, up to 9244 bytes; `None`: none of those that were tried.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn path_mtu(&self, way: Way, rtt: Duration) -> Result<Option<u32>, ProbeError> {
        let socket = Arc::clone(&self.socket);
        let longest = tokio::task::spawn_blocking(move || longest(&socket, way, rtt));
        let payload = longest.await.map_err(io::Error::other)??;
        Ok(payload.map(|payload| (payload + header_bytes(self.peer)) as u32))
    }
}

/// Sends and receives on one thread. The time of an arrival is the kernel's: when the thread is woken for it is this host's affair, and
/// the server does not count either how long it took to answer.
fn ping(socket: &UdpSocket, every: Duration, span: Duration, patience: Duration) -> io::Result<Pings> {
    // Answers to what was sent before.
    let mut bytes = [0; 128];
    while socket.recv(&mut bytes).is_ok() {}
    let began = Instant::now();
    let us = |now: Instant| now.duration_since(began).as_micros() as u64;
    let mut pings = Pings::default();
    let mut back = Vec::new();
    let mut next = began;
    loop {
        let now = Instant::now();
        if now >= next && now < began + span {
            let number = u64::from(pings.sent) + 1;
            let echo = Echo { wanted: ECHO_BYTES_MIN as u16, came: 0, number, time_us: us(now) };
            echo.write(&mut bytes);
            // What finds no room is lost.
            let _ = socket.send(&bytes[..ECHO_BYTES_MIN]);
            pings.sent += 1;
            back.push(false);
            next += every;
        }
        let missing = back.iter().any(|back| !back);
        let over = now >= began + span;
        if over && (!missing || now >= began + span + patience) {
            return Ok(pings);
        }
        let until = if over { began + span + patience } else { next.min(began + span) };
        wait_for(&mut [PollFd::new(socket, PollFlags::IN)], until)?;
        while let Ok(length) = socket.recv(&mut bytes) {
            let now = us(Instant::now()).saturating_sub(since_arrival(socket).as_micros() as u64);
            let Some(echo) = Echo::read(&bytes[..length]) else { continue };
            let place = (echo.number as usize).wrapping_sub(1);
            // One copy of each, and none of another measurement.
            if let Some(first) = back.get_mut(place).filter(|back| !**back)
                && echo.time_us <= now
            {
                *first = true;
                pings.rtts_s.push((now - echo.time_us) as f64 / 1e6);
            }
        }
    }
}

/// Lengths that are tried at once; each three times, since packets get lost.
const SIZES_AT_ONCE: usize = 12;
const COPIES: usize = 3;

/// The longest payload that passes. `low` passes always, `high` does not: between them as many are tried at once as make each
/// round narrow it to a thirteenth.
fn longest(socket: &UdpSocket, way: Way, rtt: Duration) -> io::Result<Option<usize>> {
    let (mut low, mut high) = (ECHO_BYTES_MIN - 1, ECHO_BYTES_MAX + 1);
    let mut round = 0;
    while high - low > 1 {
        let step = (high - low).div_ceil(SIZES_AT_ONCE + 1).max(1);
        let sizes: Vec<usize> = (low + 1..high).step_by(step).collect();
        // Longer ones may still fit beside those that are tried first.
        let best = passes(socket, way, &sizes, round, rtt)?;
        round += 1;
        match best {
            Some(best) => {
                low = best;
                high = sizes.iter().copied().find(|size| *size > best).unwrap_or(high);
            }
            None => high = sizes[0],
        }
    }
    Ok((low >= ECHO_BYTES_MIN).then_some(low))
}

/// The longest of these payloads that passes.
fn passes(
    socket: &UdpSocket,
    way: Way,
    sizes: &[usize],
    round: u64,
    rtt: Duration,
) -> io::Result<Option<usize>> {
    let mut bytes = vec![0; ECHO_BYTES_MAX];
    let mut best = None;
    for _ in 0..COPIES {
        for (place, size) in sizes.iter().enumerate() {
            let (length, wanted) =
                if way == Way::ToServer { (*size, ECHO_BYTES_MIN) } else { (ECHO_BYTES_MIN, *size) };
            let number = u64::MAX - (round * SIZES_AT_ONCE as u64 * 4 + place as u64);
            Echo { wanted: wanted as u16, came: 0, number, time_us: 0 }.write(&mut bytes);
            // EMSGSIZE: too long for the first link.
            let _ = socket.send(&bytes[..length]);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let until = Instant::now() + rtt + rtt / 2 + Duration::from_millis(150);
    while Instant::now() < until {
        wait_for(&mut [PollFd::new(socket, PollFlags::IN)], until)?;
        while let Ok(length) = socket.recv(&mut bytes) {
            let Some(echo) = Echo::read(&bytes[..length]) else { continue };
            let passed = if way == Way::ToServer { usize::from(echo.came) } else { length };
            if sizes.contains(&passed) && best.is_none_or(|best| passed > best) {
                best = Some(passed);
            }
        }
    }
    Ok(best)
}
