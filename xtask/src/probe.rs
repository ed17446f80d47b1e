//! Traffic between the two hosts of a link, and what became of it: run on the hosts by [`netem`](crate::netem).
//!
//! Every program is small and plain, so that it is the link that is measured: one thread a direction, one packet a time.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Subcommand;
use serde::{Deserialize, Serialize};

use crate::show::print_out;

/// Where all of them listen.
const PORT: u16 = 7000;

/// Of the sender of a stream.
const CONGESTION_CONTROL: &str = "cubic";

/// The last packets' answers, and a late sender, have this long.
const PATIENCE: Duration = Duration::from_secs(3);

/// A packet's payload: its number, its time, and nothing.
const PAYLOAD_BYTES: usize = 64;

/// Send and count packets on a host of an emulated link
#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    /// Send each UDP packet back, for ever
    Answer,
    /// Send UDP packets and take the time to each one's answer
    Ask {
        to: IpAddr,
        packets: u32,
        #[arg(value_parser = humantime::parse_duration)]
        interval: Duration,
    },
    /// Send UDP packets with numbers
    Number {
        to: IpAddr,
        packets: u32,
        #[arg(value_parser = humantime::parse_duration)]
        interval: Duration,
    },
    /// Tell which of so many UDP packets with numbers did not come
    Miss { packets: u32 },
    /// Send over one TCP connection for a while
    Fill {
        to: IpAddr,
        #[arg(value_parser = humantime::parse_duration)]
        time: Duration,
    },
    /// Take what comes over one TCP connection, and tell how much in each second
    Drain,
}

/// What [`Probe::Ask`] prints.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Of the packets that were answered, in the order of their answers.
    pub(crate) rtt_us: Vec<f64>,
}

/// What [`Probe::Miss`] prints.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Missed {
    /// Numbers of those that did not come.
    pub(crate) missing: Vec<u32>,
    /// Packets that came again.
    pub(crate) again: u32,
}

/// What [`Probe::Drain`] prints.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Drained {
    /// Bytes that came in each second since the connection began; the last one is not whole.
    pub(crate) bytes: Vec<u64>,
}

impl Probe {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let text = match self {
            Self::Answer => answer()?,
            Self::Ask { to, packets, interval } => serde_json::to_string(&ask(to, packets, interval)?)?,
            Self::Number { to, packets, interval } => {
                send(&connected(to)?, Instant::now(), packets, interval)?;
                String::new()
            }
            Self::Miss { packets } => serde_json::to_string(&miss(packets)?)?,
            Self::Fill { to, time } => fill(to, time)?,
            Self::Drain => serde_json::to_string(&drain()?)?,
        };
        print_out(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn connected(to: IpAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((to, PORT))?;
    Ok(socket)
}

fn answer() -> anyhow::Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    let mut packet = [0u8; PAYLOAD_BYTES];
    loop {
        let (len, from) = socket.recv_from(&mut packet)?;
        let _ = socket.send_to(&packet[..len], from); // whoever asked may be gone
    }
}

/// Sends packets with their number and the time since `began`.
fn send(socket: &UdpSocket, began: Instant, packets: u32, interval: Duration) -> anyhow::Result<()> {
    let mut packet = [0u8; PAYLOAD_BYTES];
    for number in 0..packets {
        std::thread::sleep((interval * number).saturating_sub(began.elapsed()));
        packet[..4].copy_from_slice(&number.to_be_bytes());
        let now = u64::try_from(began.elapsed().as_nanos())?;
        packet[4..12].copy_from_slice(&now.to_be_bytes());
        match socket.send(&packet) {
            // The far host may not listen yet, and said so to an earlier packet: the count shows it.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            sent => drop(sent?),
        }
    }
    Ok(())
}

fn ask(to: IpAddr, packets: u32, interval: Duration) -> anyhow::Result<Asked> {
    let socket = connected(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let (began, theirs) = (Instant::now(), socket.try_clone()?);
    let sender = std::thread::spawn(move || send(&theirs, began, packets, interval));
    let mut rtt_us = Vec::new();
    let mut packet = [0u8; PAYLOAD_BYTES];
    while rtt_us.len() < packets as usize && socket.recv(&mut packet).is_ok() {
        let now = began.elapsed().as_nanos() as f64;
        let mut sent = [0u8; 8];
        sent.copy_from_slice(&packet[4..12]);
        rtt_us.push((now - u64::from_be_bytes(sent) as f64) / 1e3);
    }
    sender.join().map_err(|_| anyhow::anyhow!("the sender failed"))??;
    Ok(Asked { rtt_us })
}

/// Room for all packets of a run: a machine that is busy for a second hands over hundreds at once, and those that do not
/// fit would look like losses of the link.
const BUFFER_BYTES: usize = 64 << 20;

fn miss(packets: u32) -> anyhow::Result<Missed> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES)
        .context("cannot make room for packets (needs root)")?;
    let mut came = vec![0u32; packets as usize];
    let mut packet = [0u8; PAYLOAD_BYTES];
    // The first may take its time: whoever sends is started after this.
    while let Ok(PAYLOAD_BYTES) = socket.recv(&mut packet) {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut number = [0u8; 4];
        number.copy_from_slice(&packet[..4]);
        if let Some(came) = came.get_mut(u32::from_be_bytes(number) as usize) {
            *came += 1;
        }
    }
    let again = came.iter().map(|times| times.saturating_sub(1)).sum();
    let missing = (0..packets).filter(|number| came[*number as usize] == 0).collect();
    Ok(Missed { missing, again })
}

fn fill(to: IpAddr, time: Duration) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect((to, PORT)).context("nobody listens")?;
    // By the socket: not every namespace may choose its default.
    rustix::net::sockopt::set_tcp_congestion(&stream, CONGESTION_CONTROL)
        .context("cannot choose the congestion control")?;
    let (began, block) = (Instant::now(), [0u8; 16 << 10]);
    while began.elapsed() < time {
        stream.write_all(&block)?;
    }
    Ok(String::new())
}

fn drain() -> anyhow::Result<Drained> {
    let (mut stream, _) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?.accept()?;
    let (began, mut bytes, mut block) = (Instant::now(), Vec::new(), [0u8; 64 << 10]);
    loop {
        let len = stream.read(&mut block)?;
        if len == 0 {
            return Ok(Drained { bytes });
        }
        let second = began.elapsed().as_secs() as usize;
        if bytes.len() <= second {
            bytes.resize(second + 1, 0);
        }
        bytes[second] += len as u64;
    }
}
