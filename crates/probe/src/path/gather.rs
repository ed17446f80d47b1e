//! The server's sockets of a test: opened for it alone, and given only to flows that have proved themselves.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{SocketType, sockopt};

use super::knock::{Gate, Knock, Reaction, TOKEN_BYTES, Token, random};
use super::test::{What, Wish};
use crate::limits::{STEP_TIMEOUT, STRANGERS_PER_SOURCE_MAX};
use crate::socket::{self, wait_for};
use crate::traffic::Socket;

/// Sockets that wait for flows.
#[derive(Debug)]
pub(crate) struct Ports {
    open: Open,
    token: Token,
    streams: usize,
}

#[derive(Debug)]
enum Open {
    Tcp(TcpListener),
    Udp(Vec<UdpSocket>),
}

/// Every address of this host, whichever it has.
fn anywhere<T>(make: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    make((Ipv6Addr::UNSPECIFIED, 0).into()).or_else(|_| make((Ipv4Addr::UNSPECIFIED, 0).into()))
}

fn listener(address: SocketAddr, wish: &Wish) -> io::Result<TcpListener> {
    let socket = socket::new(address, SocketType::STREAM)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Connections that are accepted have the same.
    wish.options.set_tcp(&socket).map_err(io::Error::other)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, wish.streams.cast_signed() + 16)?;
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn port(address: SocketAddr, wish: &Wish) -> io::Result<UdpSocket> {
    let socket = socket::new(address, SocketType::DGRAM)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    wish.options.set_udp(&socket).map_err(io::Error::other)?;
    rustix::net::bind(&socket, &address)?;
    let socket = UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Ports {
    /// Opens what a test needs.
    pub(crate) fn open(wish: &Wish) -> io::Result<Self> {
        let open = match wish.what {
            What::Tcp => Open::Tcp(anywhere(|address| listener(address, wish))?),
            What::Udp | What::Echoes => {
                let all: io::Result<Vec<_>> =
                    (0..wish.streams).map(|_| anywhere(|address| port(address, wish))).collect();
                Open::Udp(all?)
            }
        };
        Ok(Self { open, token: random()?, streams: wish.streams as usize })
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    /// TCP: one; UDP: one for each flow.
    pub(crate) fn numbers(&self) -> io::Result<Vec<u16>> {
        match &self.open {
            Open::Tcp(listener) => Ok(vec![listener.local_addr()?.port()]),
            Open::Udp(sockets) => sockets.iter().map(|socket| Ok(socket.local_addr()?.port())).collect(),
        }
    }

    /// Waits until all flows are there; `None`: in vain, or nobody wants them any more.
    pub(crate) fn gather(self, wanted: impl Fn() -> bool) -> io::Result<Option<Vec<Socket>>> {
        let until = Instant::now() + STEP_TIMEOUT;
        let go_on = || wanted() && Instant::now() < until;
        match self.open {
            Open::Tcp(listener) => gather_tcp(&listener, self.token, self.streams, go_on),
            Open::Udp(sockets) => gather_udp(sockets, self.token, go_on),
        }
    }
}

/// A connection that has not sent its token.
struct Stranger {
    stream: TcpStream,
    token: [u8; TOKEN_BYTES],
    read: usize,
}

/// Sockets are looked at this often even when nothing comes.
const STEP: Duration = Duration::from_millis(50);

fn gather_tcp(
    listener: &TcpListener,
    token: Token,
    streams: usize,
    go_on: impl Fn() -> bool,
) -> io::Result<Option<Vec<Socket>>> {
    let mut strangers: Vec<Stranger> = Vec::new();
    let mut there = Vec::new();
    while go_on() {
        let mut sockets = vec![PollFd::new(listener, PollFlags::IN)];
        sockets.extend(strangers.iter().map(|stranger| PollFd::new(&stranger.stream, PollFlags::IN)));
        wait_for(&mut sockets, Instant::now() + STEP)?;
        drop(sockets);
        while let Ok((stream, _)) = listener.accept() {
            // The test's own, and some whose place is elsewhere.
            if strangers.len() < streams + STRANGERS_PER_SOURCE_MAX && stream.set_nonblocking(true).is_ok() {
                strangers.push(Stranger { stream, token: [0; TOKEN_BYTES], read: 0 });
            }
        }
        for mut stranger in std::mem::take(&mut strangers) {
            let Stranger { stream, token: said, read } = &mut stranger;
            let open = socket::read_what_is_there(stream, said, read);
            match (open, stranger.read == TOKEN_BYTES) {
                (true, false) => strangers.push(stranger),
                (true, true) if stranger.token == token => {
                    stranger.stream.set_nonblocking(false)?;
                    there.push(Socket::Tcp(stranger.stream));
                }
                _ => {}
            }
        }
        if there.len() >= streams {
            there.truncate(streams);
            return Ok(Some(there));
        }
    }
    Ok(None)
}

fn gather_udp(
    sockets: Vec<UdpSocket>,
    token: Token,
    go_on: impl Fn() -> bool,
) -> io::Result<Option<Vec<Socket>>> {
    let mut gates: Vec<Gate> = sockets.iter().map(|_| Gate::new(token)).collect();
    let mut proved = vec![false; sockets.len()];
    while go_on() {
        let mut waiting: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        wait_for(&mut waiting, Instant::now() + STEP)?;
        drop(waiting);
        for ((socket, gate), proved) in sockets.iter().zip(&mut gates).zip(&mut proved) {
            hear(socket, gate, proved)?;
        }
        if proved.iter().all(|proved| *proved) {
            for socket in &sockets {
                socket.set_nonblocking(false)?;
            }
            return Ok(Some(sockets.into_iter().map(Socket::Udp).collect()));
        }
    }
    Ok(None)
}

/// Datagrams that one look at a port takes: whoever floods one must not keep the others from being looked at.
const DATAGRAMS_PER_LOOK: usize = 64;

fn hear(socket: &UdpSocket, gate: &mut Gate, proved: &mut bool) -> io::Result<()> {
    let mut bytes = [0; 128];
    for _ in 0..DATAGRAMS_PER_LOOK {
        // What ICMP says of a datagram that was sent is an error, too.
        let Ok((length, from)) = socket.recv_from(&mut bytes) else { return Ok(()) };
        match gate.hear(from, &bytes[..length], random()?) {
            Reaction::Ignore => {}
            Reaction::Answer(knock) => drop(socket.send_to(&knock.encode(), from)),
            Reaction::Proved => {
                if !*proved {
                    socket.connect(from)?;
                    *proved = true;
                    // What others have sent before does not count.
                    while socket.recv(&mut bytes).is_ok() {}
                }
                // Two: one may be lost, and after the last flow's nobody answers any more.
                for _ in 0..2 {
                    drop(socket.send(&Knock::Ready.encode()));
                }
                return Ok(());
            }
        }
    }
    Ok(())
}
