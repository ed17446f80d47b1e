//! TCP from memory to memory: what the thread of a flow does.
//!
//! Copies of each byte by the processor: one at each end, between memory that stays in the cache and the socket (none where pages are
//! sent, or what arrives is dropped in the kernel); and one system call for each write or read, of [`write_bytes`] unless told otherwise. iperf3 3.12 has 128 KiB, and waits with
//! select(2) before each.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::net::{RecvFlags, SocketType};

use crate::counts::Counters;
use crate::limits::{
    LOOK_EVERY, PAGES_BYTES_PER_CALL, STEP_TIMEOUT, WRITE_BYTES_LEAST, WRITE_BYTES_MAX, WRITE_TIME,
};
use crate::pacing::Pacer;
use crate::socket::{self, Options, Refused, is_pause};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The far end, or the way there.
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, io::Error),
    /// An option.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Connects, with the options set before.
///
/// # Errors
/// [`ConnectError`]; after ten seconds without a reply, too.
pub fn connect(to: SocketAddr, options: &Options) -> Result<TcpStream, ConnectError> {
    let failed = |error| ConnectError::Connect(to, error);
    let socket = socket::new(to, SocketType::STREAM).map_err(failed)?;
    options.set_tcp(&socket)?;
    socket::connect(&socket, to, STEP_TIMEOUT).map_err(failed)?;
    Ok(socket.into())
}

/// Bytes that are left to be sent by all flows of a test together.
#[derive(Debug)]
pub struct Budget(AtomicU64);

impl Budget {
    /// So many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Takes up to `bytes` of it; 0: there is nothing left.
    pub fn take(&self, bytes: usize) -> usize {
        let taken = |left: u64| Some(left - left.min(bytes as u64));
        let left = self.0.fetch_update(Relaxed, Relaxed, taken).unwrap_or_default();
        left.min(bytes as u64) as usize
    }
}

/// Bytes of a write or read of a stream that has so many bits a second, unless told otherwise: the most, since fewer system
/// calls leave more of the processors to the network.
#[must_use]
pub fn write_bytes(rate: Option<u64>) -> usize {
    let of_time = |rate: u64| (rate as f64 / 8.0 * WRITE_TIME.as_secs_f64()) as usize;
    rate.map_or(WRITE_BYTES_MAX, |rate| of_time(rate).clamp(WRITE_BYTES_LEAST, WRITE_BYTES_MAX))
}

/// What is sent again and again.
#[derive(Debug)]
pub(crate) enum Block {
    /// Copied into the kernel with each write.
    Memory(Vec<u8>),
    /// Pages that the kernel takes as they are (sendfile(2)), and how many bytes.
    Pages(File, usize),
}

impl Block {
    /// Of these bytes.
    ///
    /// # Errors
    /// As `memfd_create(2)` and `write(2)`.
    pub(crate) fn new(bytes: Vec<u8>, zero_copy: bool) -> io::Result<Self> {
        if !zero_copy {
            return Ok(Self::Memory(bytes));
        }
        let mut pages = File::from(rustix::fs::memfd_create("block", MemfdFlags::CLOEXEC)?);
        pages.write_all(&bytes)?;
        Ok(Self::Pages(pages, bytes.len()))
    }

    fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::Pages(_, length) => *length,
        }
    }

    /// Sends what is between the two places, or some of it.
    fn send(&self, mut stream: &TcpStream, from: usize, to: usize) -> io::Result<usize> {
        match self {
            Self::Memory(bytes) => stream.write(&bytes[from..to]),
            Self::Pages(pages, _) => {
                let (mut offset, length) = (from as u64, (to - from).min(PAGES_BYTES_PER_CALL));
                Ok(rustix::fs::sendfile(stream, pages, Some(&mut offset), length)?)
            }
        }
    }
}

/// Writes until `stop`, or until the budget is used up.
///
/// # Errors
/// As `send(2)`.
pub(crate) fn send(
    stream: &TcpStream,
    block: &Block,
    rate: Option<u64>,
    budget: Option<&Budget>,
    counters: &Counters,
    stop: &AtomicBool,
) -> io::Result<()> {
    socket::wait_at_most(&stream, LOOK_EVERY)?;
    let mut pace = rate.map(Pace::new);
    while !stop.load(Relaxed) {
        if pace.as_ref().is_some_and(|pace| !pace.wait(stop)) {
            break;
        }
        let length = budget.map_or(block.len(), |budget| budget.take(block.len()));
        if length == 0 {
            break;
        }
        if let Some(pace) = &mut pace {
            pace.sent(length as u64);
        }
        let mut done = 0;
        while done < length && !stop.load(Relaxed) {
            match block.send(stream, done, length) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    counters.moved(sent as u64, 0);
                    done += sent;
                }
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Reads until `stop`, or the end of the stream. `rate_max`: reads no faster, so that TCP slows the sender down. `skip_copy`:
/// the kernel drops the bytes instead of handing them over (MSG_TRUNC, see tcp(7)), which a real program cannot do.
///
/// # Errors
/// As `recv(2)`.
pub(crate) fn receive(
    mut stream: &TcpStream,
    length: usize,
    rate_max: Option<u64>,
    skip_copy: bool,
    counters: &Counters,
    stop: &AtomicBool,
) -> io::Result<()> {
    socket::wait_at_most(&stream, LOOK_EVERY)?;
    let mut block = vec![0; length];
    let mut pace = rate_max.map(Pace::new);
    while !stop.load(Relaxed) {
        if pace.as_ref().is_some_and(|pace| !pace.wait(stop)) {
            break;
        }
        let received = if skip_copy {
            rustix::net::recv(stream, &mut block[..], RecvFlags::TRUNC)
                .map(|(_, bytes)| bytes)
                .map_err(Into::into)
        } else {
            stream.read(&mut block)
        };
        match received {
            Ok(0) => break,
            Ok(bytes) => {
                counters.moved(bytes as u64, 0);
                if let Some(pace) = &mut pace {
                    pace.sent(bytes as u64);
                }
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A [`Pacer`] with a clock, and a thread that sleeps.
#[derive(Debug)]
pub(crate) struct Pace {
    began: Instant,
    pub(crate) pacer: Pacer,
}

impl Pace {
    pub(crate) fn new(rate: u64) -> Self {
        Self { began: Instant::now(), pacer: Pacer::new(rate, Duration::ZERO) }
    }

    /// Waits until more may go; false: until the test was over.
    pub(crate) fn wait(&self, stop: &AtomicBool) -> bool {
        loop {
            let wait = self.pacer.wait(self.began.elapsed());
            if wait.is_zero() {
                return true;
            }
            std::thread::sleep(wait.min(LOOK_EVERY));
            if stop.load(Relaxed) {
                return false;
            }
        }
    }

    pub(crate) fn sent(&mut self, bytes: u64) {
        self.pacer.sent(bytes, self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_rate_writes_as_much_as_it_has_in_ten_milliseconds() {
        assert_eq!([None, Some(1), Some(100_000_000)].map(write_bytes), [1 << 20, 1024, 125_000]);
    }

    #[test]
    fn a_budget_is_used_up_to_the_last_byte() {
        let budget = Budget::new(10);
        assert_eq!([4, 4, 4, 4].map(|bytes| budget.take(bytes)), [4, 4, 2, 0]);
    }
}
