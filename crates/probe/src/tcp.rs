//! TCP from memory to memory: what a thread does that moves several streams in turns.
//!
//! Copies of each byte by the processor: one at each end, between memory that stays in the cache and the socket (none where pages are
//! sent, or what arrives is dropped in the kernel). A write is of [`write_bytes`] unless told otherwise, a read of
//! [`BLOCK_BYTES_MAX`] at most, and poll(2) is asked only where a socket was not ready. iperf3 3.12 has 128 KiB either way, too, and
//! waits with select(2) before it goes round.
//!
//! After a block it is the next stream's turn: what has been sent to one stream is read at the other end before it has left the caches.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use longhaul_transport::socket::set_int;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::MemfdFlags;
use rustix::net::{RecvFlags, SocketType};

use crate::counts::Counters;
use crate::limits::{
    BLOCK_BYTES_MAX, FAST_BYTES_PER_SECOND, LOOK_EVERY, PAGES_BYTES_PER_CALL, STEP_TIMEOUT,
    WRITE_BYTES_LEAST, WRITE_BYTES_MAX, WRITE_TIME,
};
use crate::memory::Memory;
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

/// Bytes of a write or read of a stream that has so many bits a second, unless told otherwise: a block, or less where that would be
/// a burst.
#[must_use]
pub fn write_bytes(rate: Option<u64>) -> usize {
    let of_time = |rate: u64| (rate as f64 / 8.0 * WRITE_TIME.as_secs_f64()) as usize;
    rate.map_or(BLOCK_BYTES_MAX, |rate| of_time(rate).clamp(WRITE_BYTES_LEAST, BLOCK_BYTES_MAX))
}

/// What is sent again and again: at most [`BLOCK_BYTES_MAX`], as often as a write takes it, so that it stays in a core's cache.
#[derive(Debug)]
pub(crate) enum Block {
    /// Copied into the kernel with each write.
    Memory(Memory),
    /// Pages that the kernel takes as they are (sendfile(2)), and how many bytes.
    Pages(File, usize),
}

impl Block {
    /// For writes of so many bytes.
    ///
    /// # Errors
    /// As `memfd_create(2)` and `write(2)`.
    pub(crate) fn new(length: usize, zero_copy: bool) -> io::Result<Self> {
        // Not zeros, which something on the way might compress.
        let bytes = Memory::random(length.min(BLOCK_BYTES_MAX))?;
        if !zero_copy {
            return Ok(Self::Memory(bytes));
        }
        let mut pages = File::from(rustix::fs::memfd_create("block", MemfdFlags::CLOEXEC)?);
        pages.write_all(&bytes)?;
        Ok(Self::Pages(pages, bytes.len()))
    }

    /// They may be sent in parts that are shorter than asked for, although there is room.
    fn is_pages(&self) -> bool {
        matches!(self, Self::Pages(..))
    }

    /// Sends so many bytes, or some of them.
    fn send(&self, mut stream: &TcpStream, length: usize) -> io::Result<usize> {
        match self {
            Self::Memory(bytes) => {
                // One part where one is enough: what the kernel copies from several, it copies more slowly.
                if length <= bytes.len() {
                    return stream.write(&bytes[..length]);
                }
                let mut parts = [IoSlice::new(&[]); WRITE_BYTES_MAX.div_ceil(BLOCK_BYTES_MAX)];
                let mut left = length;
                for part in &mut parts {
                    *part = IoSlice::new(&bytes[..left.min(bytes.len())]);
                    left -= part.len();
                }
                stream.write_vectored(&parts)
            }
            Self::Pages(pages, bytes) => {
                let length = length.min(*bytes).min(PAGES_BYTES_PER_CALL);
                Ok(rustix::fs::sendfile(stream, pages, Some(&mut 0), length)?)
            }
        }
    }
}

/// When a stream has something to do again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// At once.
    Now,
    /// When its socket is ready.
    Ready,
    /// After so long, for its rate's sake.
    After(Duration),
    /// Never: all has been moved, or the peer has closed.
    Never,
}

/// One of the streams of a thread.
pub(crate) trait Stream {
    /// What it waits for.
    const READY: PollFlags;

    fn socket(&self) -> &TcpStream;

    /// Moves what a system call can move. The socket does not block.
    ///
    /// # Errors
    /// As `send(2)` and `recv(2)`.
    fn turn(&mut self) -> io::Result<Turn>;
}

/// Moves the bytes of all of them in turns, until they are over or `stop`. `over` is told which has ended by itself, and how.
pub(crate) fn move_all<S: Stream>(
    mut streams: Vec<S>,
    stop: &AtomicBool,
    mut over: impl FnMut(usize, io::Result<()>),
) {
    let mut turns = Vec::with_capacity(streams.len());
    for (place, stream) in streams.iter().enumerate() {
        let ready = stream.socket().set_nonblocking(true);
        turns.push(if ready.is_ok() { Turn::Now } else { Turn::Never });
        if let Err(error) = ready {
            over(place, Err(error));
        }
    }
    while !stop.load(Relaxed) && turns.iter().any(|turn| *turn != Turn::Never) {
        for (place, (stream, turn)) in streams.iter_mut().zip(&mut turns).enumerate() {
            if *turn != Turn::Now {
                continue;
            }
            match stream.turn() {
                Ok(next) => *turn = next,
                Err(error) if is_pause(&error) => *turn = Turn::Ready,
                Err(error) => {
                    *turn = Turn::Never;
                    over(place, Err(error));
                    continue;
                }
            }
            if *turn == Turn::Never {
                over(place, Ok(()));
            }
        }
        if let Err(error) = wait(&streams, &mut turns) {
            // It is not known which socket it is about: all end.
            let running = turns.iter().enumerate().filter(|(_, turn)| **turn != Turn::Never);
            running.for_each(|(place, _)| over(place, Err(io::Error::from(error.kind()))));
            return;
        }
    }
}

/// Waits until one of them has something to do, [`LOOK_EVERY`] at the most.
fn wait<S: Stream>(streams: &[S], turns: &mut [Turn]) -> io::Result<()> {
    let soonest = turns.iter().fold(LOOK_EVERY, |soonest, turn| match turn {
        Turn::Now => Duration::ZERO,
        Turn::After(wait) => soonest.min(*wait),
        Turn::Ready | Turn::Never => soonest,
    });
    let waits = |turn: &Turn| *turn == Turn::Ready;
    let waiting = streams.iter().zip(&*turns).filter(|(_, turn)| waits(turn));
    let mut sockets: Vec<_> = waiting.map(|(stream, _)| PollFd::new(stream.socket(), S::READY)).collect();
    if !soonest.is_zero() || !sockets.is_empty() {
        socket::wait_for(&mut sockets, Instant::now() + soonest)?;
    }
    // Less may be there than a receiver is woken for.
    let in_vain = soonest == LOOK_EVERY && sockets.iter().all(|socket| socket.revents().is_empty());
    let mut looked = sockets.iter().map(|socket| in_vain || !socket.revents().is_empty());
    for turn in turns {
        let may = match turn {
            Turn::Now | Turn::After(_) => true, // who has not waited for long enough waits again
            Turn::Ready => looked.next().unwrap_or(false),
            Turn::Never => false,
        };
        if may {
            *turn = Turn::Now;
        }
    }
    Ok(())
}

/// Writes until the budget is used up.
pub(crate) struct Sender<'a> {
    stream: &'a TcpStream,
    block: &'a Block,
    length: usize,
    pace: Option<Pace>,
    budget: Option<&'a Budget>,
    counters: &'a Counters,
    /// Of the write that has begun.
    left: usize,
}

impl<'a> Sender<'a> {
    /// `length`: of a write; `rate`: bits a second at most.
    pub(crate) fn new(
        stream: &'a TcpStream,
        (block, length): (&'a Block, usize),
        rate: Option<u64>,
        budget: Option<&'a Budget>,
        counters: &'a Counters,
    ) -> Self {
        Self { stream, block, length, pace: rate.map(Pace::new), budget, counters, left: 0 }
    }
}

impl Stream for Sender<'_> {
    const READY: PollFlags = PollFlags::OUT;

    fn socket(&self) -> &TcpStream {
        self.stream
    }

    fn turn(&mut self) -> io::Result<Turn> {
        if self.left == 0 {
            if let Some(wait) = self.pace.as_ref().and_then(Pace::still) {
                return Ok(Turn::After(wait));
            }
            self.left = self.budget.map_or(self.length, |budget| budget.take(self.length));
            if self.left == 0 {
                return Ok(Turn::Never);
            }
            if let Some(pace) = &mut self.pace {
                pace.sent(self.left as u64);
            }
        }
        let asked = self.left;
        let sent = self.block.send(self.stream, asked)?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.counters.moved(sent as u64, 0);
        self.left -= sent;
        Ok(if sent < asked && !self.block.is_pages() { Turn::Ready } else { Turn::Now })
    }
}

/// Reads until the end of the stream. Alone on its thread, and while it is fast, it is not woken for less than a block (SO_RCVLOWAT):
/// each of the kernel's wake-ups costs as much as the copy of some packets. With others on the thread that was slower. While it is slow it counts what has come when it comes.
pub(crate) struct Receiver<'a> {
    stream: &'a TcpStream,
    is_alone: bool,
    /// Since when how many bytes have come, and whether it was fast before.
    since: (Instant, u64),
    is_fast: bool,
    block: Memory,
    skip_copy: bool,
    pace: Option<Pace>,
    counters: &'a Counters,
}

impl<'a> Receiver<'a> {
    /// `is_alone`: on its thread. `rate_max`: reads no faster, so that TCP slows the sender down. `skip_copy`: the kernel drops the
    /// bytes instead of handing them over (MSG_TRUNC, see tcp(7)), which a real program cannot do.
    pub(crate) fn new(
        (stream, is_alone): (&'a TcpStream, bool),
        length: usize,
        rate_max: Option<u64>,
        skip_copy: bool,
        counters: &'a Counters,
    ) -> Self {
        let block = Memory::new(length.min(BLOCK_BYTES_MAX));
        let since = (Instant::now(), 0);
        let pace = rate_max.map(Pace::new);
        Self { stream, is_alone, since, is_fast: false, block, skip_copy, pace, counters }
    }

    /// Reads what fits behind the bytes that the block has.
    fn read_into(&mut self, filled: usize) -> io::Result<usize> {
        let room = &mut self.block[filled..];
        let mut stream = self.stream;
        let bytes = if self.skip_copy {
            rustix::net::recv(stream, room, RecvFlags::TRUNC)?.1
        } else {
            stream.read(room)?
        };
        self.counters.moved(bytes as u64, 0);
        Ok(bytes)
    }

    /// So many bytes have come.
    fn note(&mut self, bytes: usize) {
        if !self.is_alone {
            return;
        }
        self.since.1 += bytes as u64;
        let elapsed = self.since.0.elapsed();
        if elapsed < LOOK_EVERY {
            return;
        }
        let is_fast = self.since.1 as f64 >= FAST_BYTES_PER_SECOND * elapsed.as_secs_f64();
        if is_fast != self.is_fast {
            let least = if is_fast { self.block.len() as i32 } else { 1 };
            let _ = set_int(self.stream, libc::SOL_SOCKET, libc::SO_RCVLOWAT, least); // or it is woken more often
        }
        (self.since, self.is_fast) = ((Instant::now(), 0), is_fast);
    }
}

impl Stream for Receiver<'_> {
    const READY: PollFlags = PollFlags::IN;

    fn socket(&self) -> &TcpStream {
        self.stream
    }

    fn turn(&mut self) -> io::Result<Turn> {
        if let Some(wait) = self.pace.as_ref().and_then(Pace::still) {
            return Ok(Turn::After(wait));
        }
        let mut filled = 0;
        let next = loop {
            match self.read_into(filled) {
                Ok(0) => break Turn::Never,
                Ok(bytes) => filled += bytes,
                Err(error) if filled > 0 && is_pause(&error) => break Turn::Ready,
                Err(error) => return Err(error),
            }
            if filled == self.block.len() {
                break Turn::Ready; // most often there is no more of it yet, and a read to learn that would cost more than the poll
            }
        };
        self.note(filled);
        if let Some(pace) = &mut self.pace {
            pace.sent(filled as u64);
        }
        Ok(next)
    }
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

    /// How long nothing may go yet.
    fn still(&self) -> Option<Duration> {
        Some(self.pacer.wait(self.began.elapsed())).filter(|wait| !wait.is_zero())
    }

    /// Waits until more may go; false: until the test was over.
    pub(crate) fn wait(&self, stop: &AtomicBool) -> bool {
        loop {
            let Some(wait) = self.still() else { return true };
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
        assert_eq!([None, Some(1), Some(100_000_000)].map(write_bytes), [128 << 10, 1024, 125_000]);
    }

    #[test]
    fn a_budget_is_used_up_to_the_last_byte() {
        let budget = Budget::new(10);
        assert_eq!([4, 4, 4, 4].map(|bytes| budget.take(bytes)), [4, 4, 2, 0]);
    }
}
